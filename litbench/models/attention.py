"""Attention over packed sequences, without padding.

A batch is one row of concatenated sequences: position ids restart with every sequence, and
`cu_seq_lens_q` holds the boundaries. On a GPU, attention is torch's variable-length kernel in
16-bit precision and runs on padded rows in 32-bit precision. On a CPU one call per sequence is
fastest. The implementation is registered in transformers' attention interface as `ATTENTION`.
"""

from itertools import pairwise
from typing import Any

from litbench.runs.errors import ModelError

ATTENTION = "litbench_packed"
# Limits of torch's kernel (FlashAttention 2).
_MAX_HEAD_DIM = 256
_MIN_COMPUTE_CAPABILITY = (8, 0)
# Layer types in which a token attends to earlier tokens of its own sequence only.
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}


def register() -> None:
    """Register `ATTENTION` with transformers; repeated calls are harmless."""
    from transformers import AttentionInterface, AttentionMaskInterface  # noqa: PLC0415

    AttentionInterface.register(ATTENTION, packed_attention)
    AttentionMaskInterface.register(ATTENTION, _no_mask)


def can_pack(model: Any) -> bool:
    """Whether a transformers model can run on packed sequences.

    The model must be a decoder whose attention implementation can be replaced. Models with soft
    capping, attention sinks, chunked attention or convolutions over tokens cannot be packed.
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
    # Convolutions mix tokens across boundaries; sinks take a share of every softmax.
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
    """Compute attention within each sequence.

    The arguments are those of transformers' attention interface: query (1, heads, tokens,
    head_dim), key and value (1, key_value_heads, tokens, head_dim), and the boundaries of the
    sequences in `cu_seq_lens_q`, int32 (sequences + 1,).

    Returns:
        Output (1, tokens, heads, head_dim), and None in place of attention weights.
    """
    import torch  # noqa: PLC0415

    if softcap is not None or s_aux is not None:
        what = "capped scores (softcap)" if s_aux is None else "attention sinks (s_aux)"
        raise ModelError(
            f"{type(module).__name__} uses {what}, which packed attention does not support: set "
            "attention to eager"
        )
    if cu_seq_lens_q is None or query.shape[0] != 1 or attention_mask is not None:
        raise ModelError(
            "packed attention was called on rows with padding: before you call the model "
            "directly, set its attention to sdpa (model.set_attn_implementation('sdpa'))"
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        # Rotary embeddings and norms in fp32 return queries and keys in fp32 while values are in
        # 16 bits, and autocast does not apply to the kernel.
        low = torch.get_autocast_dtype(kind)
        query, key, value = (part.to(low) for part in (query, key, value))
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    if _has_kernel(query, dropout):
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415

        assert max_length_q is not None
        back = -1 if sliding_window is None or sliding_window > max_length_q else sliding_window - 1
        out = varlen_attn(
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            cu_seq_lens_q,
            cu_seq_lens_q,
            max_length_q,
            max_length_q,
            scale=scaling,
            window_size=(back, 0 if causal else -1),
            enable_gqa=key.shape[1] != query.shape[1],
        )
    else:
        compute = _padded if query.is_cuda else _one_by_one
        out = compute(query, key, value, cu_seq_lens_q, causal, sliding_window, dropout, scaling)
    return out[None], None


def _has_kernel(query: Any, dropout: float) -> bool:
    import torch  # noqa: PLC0415

    return bool(
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] <= _MAX_HEAD_DIM
        and not dropout
        and torch.cuda.get_device_capability(query.device) >= _MIN_COMPUTE_CAPABILITY
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
    """Compute attention with one call per sequence, without padding."""
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
        out = scaled_dot_product_attention(
            q, k, v, mask, dropout, is_causal=causal and mask is None, scale=scaling
        )
        pieces.append(out[0].transpose(0, 1))
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
    """Compute attention with one call, on rows padded to the longest sequence."""
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
    # A padding query with every key masked would have a gradient that is not finite.
    mask = mask | ~real[:, None, :, None]
    grouped = key.shape[1] != query.shape[1]
    out = scaled_dot_product_attention(q, k, v, mask, dropout, scale=scaling, enable_gqa=grouped)
    return out.transpose(1, 2)[real]


def _mask(length: int, causal: bool, window: int | None, device: Any) -> Any:
    """Boolean mask (length, length): True where the query (row) attends to the key (column)."""
    import torch  # noqa: PLC0415

    index = torch.arange(length, device=device)
    distance = index[:, None] - index[None, :]
    reach = length if window is None else window
    return (distance < reach) & (distance >= 0 if causal else distance > -reach)
