"""A sparse autoencoder of differences: a few signed units describe how two stories differ.

Matryoshka batch-top-k (Bussmann et al., 2024 and 2025), adapted to preferences (Movva et al., 2025;
LitBench paper, 3.4.1 and A.1). Swapping the sides of a pair negates its difference, so there are no
biases and no rectifier: `units(-x) == -units(x)` exactly. In training, the largest units of the
batch are active; afterwards, a threshold gives the same mean number of active units per example.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from litbench.runs.config import as_plain
from litbench.runs.errors import ConfigError, DataError, ModelError
from litbench.runs.outputs import write_atomically, write_json

# A unit that is inactive for 256 steps is dead. Up to 8 dead units per example then reconstruct the
# residual, with this weight in the loss (Gao et al., 2024).
_DEAD_AFTER, _REVIVED, _REVIVAL_WEIGHT = 256, 8, 1 / 32
_LARGEST_GRADIENT, _PATIENCE = 1.0, 10
_MIN_STEPS, _MIN_BATCH = 32, 8


@dataclass
class AutoencoderOptions:
    """Options of the autoencoder; the defaults are the paper's (A.1).

    Attributes:
        units: number of units (M in the paper).
        active: mean number of active units per example in a batch (K in the paper).
        prefixes: sizes of the nested groups of first units that must each reconstruct the input;
            the last is `units`.
        learning_rate: learning rate of Adam.
        batch_size: maximum batch size; it is halved until an epoch has 32 steps, down to 8.
        epochs: maximum number of epochs; training stops after 10 epochs without a better validation
            loss, and the best epoch is kept.
    """

    units: int = 32
    active: int = 4
    prefixes: list[int] = field(default_factory=lambda: [8, 32])
    learning_rate: Annotated[float, Field(gt=0)] = 5e-4
    batch_size: Annotated[int, Field(gt=0)] = 512
    epochs: Annotated[int, Field(gt=0)] = 100

    def __post_init__(self) -> None:
        ends = [0, *self.prefixes]
        if not 0 < self.active <= self.units or ends != sorted(set(ends)) or ends[-1] != self.units:
            raise ConfigError(
                f"autoencoder: units is {self.units}, active {self.active} and prefixes "
                f"{self.prefixes}: give active <= units and increasing prefixes up to units"
            )

    def batch_for(self, examples: int) -> int:
        """The batch size for a training set of `examples` examples."""
        batch = self.batch_size
        while batch // 2 >= _MIN_BATCH and examples < _MIN_STEPS * batch:
            batch //= 2
        return batch


@dataclass(frozen=True)
class Autoencoder:
    """A trained autoencoder; needs only numpy.

    Attributes:
        encoder: float32, shape (units, dimensions).
        decoder: directions of length 1, float32, shape (units, dimensions).
        level: threshold of the absolute value above which a unit is active.
        scale: divisor of inputs: the root mean squared length of the training examples.
        options: options of the training.
        notes: numbers of examples, epochs, steps and dead units, and the validation loss.
    """

    encoder: np.ndarray
    decoder: np.ndarray
    level: float
    scale: float
    options: AutoencoderOptions
    notes: dict[str, Any]

    def units(self, differences: np.ndarray) -> np.ndarray:
        """Signed, sparse units; float64, shape (n, units)."""
        before = (differences / self.scale) @ self.encoder.T.astype(np.float64)
        return np.where(np.abs(before) >= self.level, before, 0.0)

    def unexplained(self, differences: np.ndarray) -> float:
        """Share of the squared length of the inputs that the units do not reconstruct."""
        scaled = differences / self.scale
        rest = scaled - self.units(differences) @ self.decoder.astype(np.float64)
        return float(np.square(rest).sum() / np.square(scaled).sum())

    def save(self, folder: Path) -> None:
        """Write `autoencoder.safetensors` and `autoencoder.json` into a folder."""
        from safetensors.numpy import save_file  # noqa: PLC0415

        weights = {"encoder": self.encoder, "decoder": self.decoder}
        path = folder / "autoencoder.safetensors"
        write_atomically(path, lambda path: save_file(weights, path))
        content = {"level": self.level, "scale": self.scale, "options": as_plain(self.options)}
        write_json({**content, "notes": self.notes}, folder / "autoencoder.json")


def fit_autoencoder(
    train: np.ndarray, validation: np.ndarray, options: AutoencoderOptions, seed: int
) -> Autoencoder:
    """Train an autoencoder; deterministic for a seed and number of threads.

    The result does not depend on the signs of the examples or on torch's global random state.

    Args:
        train: differences; shape (n, dimensions).
        validation: differences for early stopping; shape (v, dimensions).
        options: see AutoencoderOptions.
        seed: seed of the initial directions and of the order of the examples.
    """
    import torch  # noqa: PLC0415

    if len(train) < 2 or not np.square(validation).sum() > 0 or not np.square(train).sum() > 0:
        raise DataError(
            f"{len(train)} differences to train an autoencoder and {len(validation)} to validate "
            "are too few, or all zero: give more pairs, of more prompts"
        )
    scale = float(np.sqrt(np.square(train, dtype=np.float64).sum(1).mean()))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    examples, held = (
        torch.from_numpy((part / scale).astype(np.float32)).to(device)
        for part in (train, validation)
    )
    # Initialise on the CPU, so that a GPU starts from the same numbers.
    random = torch.Generator().manual_seed(seed)
    start = torch.randn(options.units, examples.shape[1], generator=random)
    start = torch.nn.functional.normalize(start, dim=1).to(device)
    encoder, decoder = start.clone().requires_grad_(), start.clone().requires_grad_()
    optimizer = torch.optim.Adam([encoder, decoder], lr=options.learning_rate)
    silent = torch.zeros(options.units, dtype=torch.long, device=device)

    def largest(before: Any, count: int) -> Any:
        is_active = torch.zeros(before.numel(), dtype=torch.bool, device=device)
        is_active[before.abs().flatten().topk(count).indices] = True
        return torch.where(is_active.view_as(before), before, 0.0)

    def share_lost(batch: Any, units: Any) -> Any:
        """Share of the squared length that is not reconstructed, mean over the prefixes."""
        rests = [batch - units[:, :end] @ decoder[:end] for end in options.prefixes]
        return torch.stack([rest.square().sum() for rest in rests]).div(batch.square().sum()).mean()

    def revival(batch: Any, units: Any, before: Any) -> Any:
        """Share of the residual that dead units do not reconstruct, weighted."""
        dead = torch.nonzero(silent > _DEAD_AFTER).flatten()
        if not len(dead):
            return 0.0
        left = (batch - units @ decoder).detach()
        of_dead = before[:, dead]
        used = of_dead.abs().topk(min(_REVIVED, len(dead)), dim=1).indices
        some = torch.zeros_like(of_dead).scatter(1, used, of_dead.gather(1, used))
        rest = (left - some @ decoder[dead]).square().sum()
        return _REVIVAL_WEIGHT * rest / left.square().sum().clamp_min(1e-12)

    best, best_loss, best_epoch, epoch, steps = (encoder, decoder), math.inf, 0, 0, 0
    for epoch in range(1, options.epochs + 1):
        order = torch.randperm(len(examples), generator=random)
        for rows in order.split(options.batch_for(len(examples))):
            batch = examples[rows]
            before = batch @ encoder.T
            units = largest(before, options.active * len(batch))
            silent = torch.where((units != 0).any(0), 0, silent + 1)
            loss = share_lost(batch, units) + revival(batch, units, before)
            optimizer.zero_grad()
            loss.backward()
            with torch.no_grad():
                # Directions have length 1: remove the radial part of the gradient.
                decoder.grad -= (decoder * decoder.grad).sum(1, keepdim=True) * decoder
            torch.nn.utils.clip_grad_norm_([encoder, decoder], _LARGEST_GRADIENT)
            optimizer.step()
            with torch.no_grad():
                decoder /= decoder.norm(dim=1, keepdim=True)
            steps += 1
        with torch.no_grad():
            held_loss = float(
                share_lost(held, largest(held @ encoder.T, options.active * len(held)))
            )
        if held_loss < best_loss:
            best = encoder.detach().clone(), decoder.detach().clone()
            best_loss, best_epoch = held_loss, epoch
        elif epoch - best_epoch >= _PATIENCE:
            break
    if not best_epoch:
        raise ModelError(
            f"the autoencoder's loss is not a number after {steps} steps: give a lower "
            f"learning_rate than {options.learning_rate}"
        )
    weights = [part.cpu().numpy() for part in best]
    sizes = np.abs((train / scale) @ weights[0].T.astype(np.float64))
    through = min(options.active * len(train), sizes.size)
    level = float(np.partition(sizes, sizes.size - through, axis=None)[sizes.size - through])
    notes = {
        "examples": len(train),
        "batch_size": options.batch_for(len(examples)),
        "epochs": epoch,
        "best_epoch": best_epoch,
        "steps": steps,
        "validation_loss": round(best_loss, 6),
        "dead_units": int((sizes < level).all(0).sum()),
    }
    return Autoencoder(weights[0], weights[1], level, scale, options, notes)
