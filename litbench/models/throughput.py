"""Speed of training: parameters, model FLOPs, a device's peak, memory.

Model FLOPs of a training step are 6 N T, with N the parameters without embeddings and T the tokens;
4 N T where the backbone is frozen under adapters, since no gradient of its weights is computed.
Attention scores, padding and recomputed activations are not counted.
"""

import re
from typing import Any

# Dense bf16 peaks in FLOP/s from the vendors' data sheets; the longest name that fits counts.
_PEAKS = {
    "A100": 312e12,
    "H100": 989e12,
    "H100 PCIe": 756e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "L4": 121e12,
    "L40S": 362e12,
}


def count_parameters(model: Any, *, trained: bool = False) -> int:
    """Number of weights, or of those that are trained; 4-bit weights count as what they stand for."""
    return sum(
        quantized.shape.numel()
        if (quantized := getattr(weight, "quant_state", None))
        else weight.numel()
        for weight in model.parameters()
        if weight.requires_grad or not trained
    )


def training_flops(model: Any, tokens: int) -> float:
    """FLOPs of training on so many tokens."""
    embeddings = model.get_input_embeddings().weight.numel()
    matrix = count_parameters(model) - embeddings
    frozen = count_parameters(model, trained=True) < matrix / 2
    return float((4 if frozen else 6) * matrix * tokens)


def peak_flops(device_name: str) -> float | None:
    """Dense bf16 FLOP/s of a device by its name; None when it is not in our table."""
    # Whole words: an L40 is no L4.
    words = re.split(r"[\s-]+", device_name)
    fitting = [name for name in _PEAKS if all(word in words for word in name.split())]
    return _PEAKS[max(fitting, key=len)] if fitting else None


def peak_memory_gib() -> float:
    """Most memory this process has held: on its GPU where it has one, else in RAM."""
    import torch  # noqa: PLC0415

    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated() / 2**30)
    import resource  # noqa: PLC0415

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
