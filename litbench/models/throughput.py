"""How fast training is, as shares of what could be: real tokens, padding, model FLOPs.

Model FLOPs of a training step (forward and twice that backward), for matrix products only:

    6 N T + 6 L d sum(t^2)      causal      (12 L d for an encoder)

with N the weights of the backbone's linear layers (embeddings and head left out), T the real
tokens, L the layers, d = heads x head width and t the length of each sequence. With frozen weights
under adapters no gradient of the weights is computed: 4 N instead of 6 N. Padding and recomputed
activations are work, but not the model's. MFU = FLOPs / (seconds x devices x peak).
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# Dense bf16 peaks in FLOP/s from the vendors' data sheets; the longest name that fits counts.
_PEAKS: Mapping[str, float] = {
    "A100": 312e12,
    "H100": 989e12,
    "H100 PCIe": 756e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "L4": 121e12,
    "L40S": 362e12,
}
# Bytes of activations that a layer keeps for each token and unit of width with 16-bit activations
# and fused attention: Korthikanti et al. (2022), Eq. 2 without its attention scores, has 34 with a
# feed-forward part four times as wide; the gate of today's decoders adds one more such artifact.
_ACTIVATION_BYTES = 34 + 8
# Logits, their logarithms after the softmax, and the gradients of both.
_LOGIT_BYTES = 4 * 4


@dataclass(frozen=True)
class Shape:
    """What a model's FLOPs depend on.

    Attributes:
        parameters: all weights.
        trained: those that are trained.
        matrix: weights of linear layers without the head.
        layers: of attention.
        width: heads x head width.
        hidden: width of the residual stream.
        vocabulary: tokens it knows.
        is_causal: whether tokens see only those before them.
    """

    parameters: int
    trained: int
    matrix: int
    layers: int
    width: int
    hidden: int
    vocabulary: int
    is_causal: bool

    @classmethod
    def of(cls, model: Any) -> "Shape":
        """Measure a model of transformers, with or without adapters."""
        import torch  # noqa: PLC0415
        from transformers.pytorch_utils import Conv1D  # noqa: PLC0415

        # GPT-2 writes its linear layers as Conv1D.
        linear = (torch.nn.Linear, Conv1D)
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
        outside = ("score", "classifier", "lm_head", "pooler", "lora_", "vision", "multi_modal")
        matrix = sum(
            _size(module.weight)
            for name, module in model.named_modules()
            if isinstance(module, linear) and not any(part in name for part in outside)
        )
        return cls(
            parameters=sum(_size(weight) for weight in model.parameters()),
            trained=sum(_size(weight) for weight in model.parameters() if weight.requires_grad),
            matrix=matrix,
            layers=config.num_hidden_layers,
            width=heads * head_width,
            hidden=config.hidden_size,
            vocabulary=config.vocab_size,
            is_causal=hasattr(model, "score") or hasattr(model, "lm_head"),
        )

    def training_flops(self, lengths: np.ndarray) -> float:
        """FLOPs of training on sequences of these lengths; shape (n,)."""
        frozen = self.trained < self.matrix
        tokens, squares = float(lengths.sum()), float((lengths.astype(np.float64) ** 2).sum())
        attention = (6 if self.is_causal else 12) * self.layers * self.width * squares
        return (4 if frozen else 6) * self.matrix * tokens + attention

    def activation_bytes(self, tokens: int) -> int:
        """Memory of the activations of a pass of so many tokens, in 16 bits, estimated."""
        return _ACTIVATION_BYTES * self.layers * self.hidden * tokens

    def logit_bytes(self, places: int) -> int:
        """Memory of the logits of so many places in training: four copies in 32 bits."""
        return _LOGIT_BYTES * self.vocabulary * places


def _size(weight: Any) -> int:
    """Numbers in a weight; four-bit weights are packed two to a byte."""
    state = getattr(weight, "quant_state", None)
    return int(np.prod(state.shape)) if state is not None else int(weight.numel())


def peak_flops(device_name: str) -> float | None:
    """Dense bf16 FLOP/s of a device by its name, or None when it is not in our table."""
    # Whole words: an L40 is no L4.
    words = re.split(r"[\s-]+", device_name)
    fitting = [name for name in _PEAKS if all(word in words for word in name.split())]
    return _PEAKS[max(fitting, key=len)] if fitting else None


def peak_memory_bytes() -> int:
    """Most memory this process has held: on its GPU where it has one, in RAM else."""
    import torch  # noqa: PLC0415

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    import resource  # noqa: PLC0415

    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(held if sys.platform == "darwin" else held * 1024)
