"""Attention over sequences laid end to end, so that nothing is padded.

A batch is one row of tokens; positions restart with every sequence, and `cu_seq_lens_q` holds the
starts. On a GPU in 16 bits torch's variable-length kernel attends, in 32 bits padded rows do; on a
CPU one call per sequence costs least. Models find it in transformers' attention interface as
`ATTENTION`.
"""

from itertools import pairwise
from typing import Any

from litbench.errors import ModelError

ATTENTION = "litbench_packed"
# What torch's kernel (FlashAttention 2) can do, and on which GPUs.
_MOST_HEAD_WIDTH = 256
_LEAST_CAPABILITY = (8, 0)
# Kinds of layers in which a token sees nothing but earlier tokens of its own sequence.
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}


def register() -> None:
    """Make `ATTENTION` known to transformers; may be called again."""
    from transformers import AttentionInterface, AttentionMaskInterface  # noqa: PLC0415

    AttentionInterface.register(ATTENTION, packed_attention)
    AttentionMaskInterface.register(ATTENTION, _no_mask)


def can_pack(model: Any) -> bool:
    """Whether a model of transformers lets its attention be exchanged, and pools its last token.

    Where layers do what `packed_attention` does not (capped scores, sinks, chunks, convolutions
    over neighbouring tokens), the answer is no.

    Args:
        model: a model with a `score` or a language-modelling head.
    """
    config = model.config.get_text_config()
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return False
    decodes = hasattr(model, "score") or model.get_output_embeddings() is not None
    if not decodes or not getattr(model, "_supports_attention_backend", False):
        return False
    import torch  # noqa: PLC0415

    kinds = set(getattr(config, "layer_types", None) or ())
    decoder = model.get_decoder()
    # Convolutions know no boundaries, and sinks take a share of every softmax.
    return (
        kinds <= _KNOWN_LAYERS
        and not any(isinstance(module, torch.nn.Conv1d) for module in decoder.modules())
        and not any("sink" in name.rpartition(".")[2] for name, _ in decoder.named_parameters())
    )


def _no_mask(*_: Any, **__: Any) -> None:
    """`cu_seq_lens_q` replaces the mask."""


def packed_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Any = None,
    max_length_q: int | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    **_: Any,
) -> tuple[Any, None]:
    """Attend within each sequence.

    The arguments are those of transformers' attention interface: query (1, heads, tokens, width),
    key and value (1, key heads, tokens, width), and where each sequence starts, and the end, in
    `cu_seq_lens_q`, int32 (sequences + 1,).

    Returns:
        (1, tokens, heads, width), and no weights.
    """
    import torch  # noqa: PLC0415

    if softcap is not None or s_aux is not None:
        what = "capped scores (softcap)" if s_aux is None else "attention sinks (s_aux)"
        raise ModelError(
            f"{type(module).__name__} wants {what}, which packed attention does not compute: set "
            "attention to eager"
        )
    if cu_seq_lens_q is None or query.shape[0] != 1 or attention_mask is not None:
        raise ModelError(
            "packed attention was called on rows with padding: set the model's attention to sdpa "
            "before calling it by yourself (model.set_attn_implementation('sdpa'))"
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        # Rotary positions and norms in fp32 give queries and keys in fp32 beside values in 16 bits,
        # and autocast does not reach the kernel.
        low = torch.get_autocast_dtype(kind)
        query, key, value = (part.to(low) for part in (query, key, value))
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    if _has_kernel(query, dropout):
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415

        assert max_length_q is not None
        back = -1 if sliding_window is None or sliding_window > max_length_q else sliding_window - 1
        out = varlen_attn(
            query.contiguous(), key.contiguous(), value.contiguous(), cu_seq_lens_q, cu_seq_lens_q,
            max_length_q, max_length_q, scale=scaling, window_size=(back, 0 if causal else -1),
            enable_gqa=key.shape[1] != query.shape[1],
        )  # fmt: skip
    else:
        compute = _padded if query.is_cuda else _one_by_one
        out = compute(query, key, value, cu_seq_lens_q, causal, sliding_window, dropout, scaling)
    return out[None], None


def _has_kernel(query: Any, dropout: float) -> bool:
    import torch  # noqa: PLC0415

    return bool(
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] <= _MOST_HEAD_WIDTH
        and not dropout
        and torch.cuda.get_device_capability(query.device) >= _LEAST_CAPABILITY
    )


def _one_by_one(
    query: Any,
    key: Any,
    value: Any,
    starts: Any,
    causal: bool,
    window: int | None,
    dropout: float,
    scaling: float | None,
) -> Any:
    """Attention of each sequence by itself: no padding, but as many calls as sequences."""
    import torch  # noqa: PLC0415
    from torch.nn.functional import scaled_dot_product_attention  # noqa: PLC0415

    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    pieces = []
    for start, end in pairwise(starts.tolist()):
        q, k, v = (part[start:end].transpose(0, 1)[None] for part in (query, key, value))
        mask = None
        if window is not None and end - start > window:
            mask = _mask(end - start, causal, window, query.device)
        found = scaled_dot_product_attention(
            q, k, v, mask, dropout, is_causal=causal and mask is None, scale=scaling
        )
        pieces.append(found[0].transpose(0, 1))
    return torch.cat(pieces)


def _padded(
    query: Any,
    key: Any,
    value: Any,
    starts: Any,
    causal: bool,
    window: int | None,
    dropout: float,
    scaling: float | None,
) -> Any:
    """Attention of all sequences in one call, on rows padded to the longest."""
    import torch  # noqa: PLC0415
    from torch.nn.functional import scaled_dot_product_attention  # noqa: PLC0415
    from torch.nn.utils.rnn import pad_sequence  # noqa: PLC0415

    lengths = starts.diff()
    q, k, v = (
        pad_sequence(part.split(lengths.tolist()), batch_first=True).transpose(1, 2)
        for part in (query, key, value)
    )
    longest = q.shape[2]
    real = torch.arange(longest, device=query.device) < lengths[:, None]
    mask = _mask(longest, causal, window, query.device) & real[:, None, None, :]
    # A padded query would see no key at all, and its gradient would not be finite.
    mask = mask | ~real[:, None, :, None]
    grouped = key.shape[1] != query.shape[1]
    found = scaled_dot_product_attention(q, k, v, mask, dropout, scale=scaling, enable_gqa=grouped)
    return found.transpose(1, 2)[real]


def _mask(length: int, causal: bool, window: int | None, device: Any) -> Any:
    """Which token (row) sees which (column) within one sequence."""
    import torch  # noqa: PLC0415

    index = torch.arange(length, device=device)
    apart = index[:, None] - index[None, :]
    reach = length if window is None else window
    return (apart < reach) & (apart >= 0 if causal else apart > -reach)
