"""Attention over sequences laid end to end, so that nothing is padded.

A batch is one row of tokens; positions restart where a sequence does, and `cu_seq_lens_q` says
where. On a GPU in 16 bits torch's own variable-length attention does the work; elsewhere each
sequence is attended to by itself, which costs no more than its own length squared. Models reach it
through transformers' attention interface under the name `ATTENTION`.
"""

from itertools import pairwise
from typing import Any

from litbench.errors import ModelError

ATTENTION = "litbench_packed"
# What torch's kernel (FlashAttention 2) can do.
_MOST_HEAD_WIDTH = 256


def register() -> None:
    """Make `ATTENTION` known to transformers; may be called again."""
    from transformers import AttentionInterface, AttentionMaskInterface  # noqa: PLC0415

    AttentionInterface.register(ATTENTION, packed_attention)
    AttentionMaskInterface.register(ATTENTION, _no_mask)


def can_pack(model: Any) -> bool:
    """Whether a model of transformers lets its attention be exchanged, and pools its last token.

    Args:
        model: a model with a `score` or a language-modelling head.
    """
    config = model.config.get_text_config()
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return False
    decodes = hasattr(model, "score") or model.get_output_embeddings() is not None
    return bool(decodes and getattr(model, "_supports_attention_backend", False))


def _no_mask(*_: Any, **__: Any) -> None:
    """The boundaries say it all."""


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
    **_: Any,
) -> tuple[Any, None]:
    """Attend within each sequence.

    Args:
        module: the attention layer.
        query: (1, heads, tokens, width).
        key: (1, key heads, tokens, width); the key heads divide the heads.
        value: as key.
        attention_mask: none; it would hide the boundaries.
        dropout: of attention weights.
        scaling: of the scores; 1 / sqrt(width) when not given.
        sliding_window: how many tokens back a token sees, itself among them; all when None.
        cu_seq_lens_q: (sequences + 1,) int32, where each starts, and the end.
        max_length_q: length of the longest.
        is_causal: whether a token sees only those before it; the layer's own when None.

    Returns:
        (1, tokens, heads, width), and no weights.

    Raises:
        ModelError: called on a batch that is not packed.
    """
    if cu_seq_lens_q is None or query.shape[0] != 1 or attention_mask is not None:
        raise ModelError(
            "packed attention was called on rows with padding: set the model's attention to sdpa "
            "before calling it by yourself (model.set_attn_implementation('sdpa'))"
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    if _has_kernel(query, dropout):
        out = _kernel(
            query, key, value, cu_seq_lens_q, max_length_q, scaling, causal, sliding_window
        )
    else:
        out = _one_by_one(
            query, key, value, cu_seq_lens_q, dropout, scaling, causal, sliding_window
        )
    return out[None], None


def _has_kernel(query: Any, dropout: float) -> bool:
    import torch  # noqa: PLC0415

    return bool(
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] <= _MOST_HEAD_WIDTH
        and not dropout
    )


def _kernel(
    query: Any,
    key: Any,
    value: Any,
    starts: Any,
    longest: int | None,
    scaling: float | None,
    causal: bool,
    window: int | None,
) -> Any:
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415

    assert longest is not None
    back = -1 if window is None or window > longest else window - 1
    return varlen_attn(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        starts,
        starts,
        longest,
        longest,
        scale=scaling,
        window_size=(back, 0 if causal else -1),
        enable_gqa=key.shape[1] != query.shape[1],
    )


def _one_by_one(
    query: Any,
    key: Any,
    value: Any,
    starts: Any,
    dropout: float,
    scaling: float | None,
    causal: bool,
    window: int | None,
) -> Any:
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
            place = torch.arange(end - start, device=query.device)
            apart = place[:, None] - place[None, :]
            mask = (apart < window) & (apart >= 0 if causal else apart > -window)
        pieces.append(
            scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                dropout_p=dropout,
                scale=scaling,
                is_causal=causal and mask is None,
            )[0].transpose(0, 1)
        )
    return torch.cat(pieces)
