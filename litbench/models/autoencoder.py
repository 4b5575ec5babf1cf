"""A sparse autoencoder of differences: few signed units say how two stories of a pair differ.

Matryoshka batch-top-k (Bussmann et al., 2024 and 2025) in the form that preferences need (Movva et
al., 2025; LitBench paper, 3.4.1 and A.1). What goes in is embedding minus embedding, so the
difference seen from the other side is its negative, and must be told by the same units with their
signs turned. Hence there are no biases and no rectifier: `units(-x) == -units(x)` to the last bit,
the top k are those of greatest size, and swapping the sides of a pair can change no fit.

The batch decides what is active while training. Afterwards a level does: the one that lets as many
units through, per training example, as were trained with.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from litbench.artifact import write_atomically, write_json
from litbench.config import as_plain, build
from litbench.errors import ConfigError, DataError, MissingExtraError, ModelError

_WEIGHTS, _OPTIONS = "autoencoder.safetensors", "autoencoder.json"
# The share of the loss that dead units may take (Gao et al., 2024).
_REVIVAL_WEIGHT = 1 / 32
_LARGEST_GRADIENT = 1.0
_LEAST_STEPS, _LEAST_BATCH = 32, 8


@dataclass
class AutoencoderOptions:
    """How the autoencoder is built and trained; the defaults are the paper's (A.1).

    Attributes:
        units: how many there are (the paper's M).
        active: how many of them an example has, on average over a batch (K).
        prefixes: the first so many units must do without the others, for each of these numbers;
            the last is `units`.
        learning_rate: of Adam.
        batch_size: examples in a step, at most: halved until an epoch has 32 steps, down to 8,
            since on small sets a hundred epochs of one step each would teach nothing.
        epochs: at most.
        patience: epochs without a better validation loss after which training stops; the best
            epoch is kept.
        dead_after: steps without an example after which a unit counts as dead and is given what
            the others leave over.
        revived: how many dead units an example may use for that, at most.
        validation_share: share of the prompts that decide when to stop.
    """

    units: int = 32
    active: int = 4
    prefixes: list[int] = field(default_factory=lambda: [8, 32])
    learning_rate: float = 5e-4
    batch_size: int = 512
    epochs: int = 100
    patience: int = 10
    dead_after: int = 256
    revived: int = 8
    validation_share: float = 0.1

    def check(self) -> None:
        """Refuse what cannot be trained.

        Raises:
            ConfigError: a number is out of its range, or the prefixes do not end in `units`.
        """
        for name in ("units", "active", "batch_size", "epochs", "patience", "dead_after"):
            if getattr(self, name) < 1:
                raise ConfigError(f"autoencoder: {name} is {getattr(self, name)}: give at least 1")
        if self.active > self.units or self.revived < 0:
            raise ConfigError(
                f"autoencoder: active is {self.active} of {self.units} units, revived is "
                f"{self.revived}: give no more than there are, and at least 0"
            )
        if self.prefixes != sorted(set(self.prefixes)) or [0, *self.prefixes][-1] != self.units:
            raise ConfigError(
                f"autoencoder: prefixes is {self.prefixes}: give growing numbers that end in "
                f"units, {self.units}"
            )
        if self.prefixes[0] < 1 or not 0 < self.learning_rate < math.inf:
            raise ConfigError("autoencoder: prefixes and learning_rate must be above 0")
        if not 0 < self.validation_share < 1:
            raise ConfigError(
                f"autoencoder: validation_share is {self.validation_share}: give a share between "
                "0 and 1"
            )

    def batch_for(self, examples: int) -> int:
        """How many of so many examples a step takes."""
        batch = self.batch_size
        while batch // 2 >= _LEAST_BATCH and examples < _LEAST_STEPS * batch:
            batch //= 2
        return batch


@dataclass(frozen=True)
class Autoencoder:
    """A trained autoencoder; numpy alone.

    Attributes:
        encoder: float32, shape (units, dimensions).
        decoder: directions of length 1, float32, shape (units, dimensions).
        level: a unit is active on an example where its size is at least this.
        scale: what examples are divided by: the root of the mean squared length of those trained
            on.
        options: it was trained with.
        notes: epochs, steps, losses, units that are dead, examples.
    """

    encoder: np.ndarray
    decoder: np.ndarray
    level: float
    scale: float
    options: AutoencoderOptions
    notes: dict[str, Any]

    def units(self, differences: np.ndarray) -> np.ndarray:
        """What the units say of some examples.

        Args:
            differences: shape (n, dimensions).

        Returns:
            Signed and sparse; float64, shape (n, units).
        """
        before = (differences / self.scale) @ self.encoder.T.astype(np.float64)
        return np.where(np.abs(before) >= self.level, before, 0.0)

    def unexplained(self, differences: np.ndarray) -> float:
        """Share of the squared length of some examples that the units do not give back."""
        scaled = differences / self.scale
        rest = scaled - self.units(differences) @ self.decoder.astype(np.float64)
        return float(np.square(rest).sum() / np.square(scaled).sum())

    def save(self, folder: Path) -> None:
        """Write `autoencoder.safetensors` and `autoencoder.json` into a folder."""
        from safetensors.numpy import save_file  # noqa: PLC0415

        weights = {"encoder": self.encoder, "decoder": self.decoder}
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / _WEIGHTS, lambda path: save_file(weights, path))
        content = {
            "level": self.level, "scale": self.scale, "options": as_plain(self.options),
            "notes": self.notes,
        }  # fmt: skip
        write_json(content, folder / _OPTIONS)

    @classmethod
    def load(cls, folder: Path) -> "Autoencoder":
        """Read one back; every unit is the same to the last bit.

        Raises:
            ModelError: there is none, or it is damaged.
        """
        from safetensors.numpy import load_file  # noqa: PLC0415

        try:
            weights = load_file(folder / _WEIGHTS)
            content = json.loads((folder / _OPTIONS).read_text(encoding="utf-8"))
            options = build(AutoencoderOptions, content["options"], str(folder / _OPTIONS))
            return cls(
                weights["encoder"], weights["decoder"], content["level"], content["scale"],
                options, content["notes"],
            )  # fmt: skip
        except Exception as error:  # safetensors raises a type of its own
            raise ModelError(
                f"no autoencoder in {folder} ({type(error).__name__}: {error}): run "
                "eval/preferences.py again"
            ) from error


def fit_autoencoder(
    train: np.ndarray, validation: np.ndarray, options: AutoencoderOptions, seed: int
) -> Autoencoder:
    """Train an autoencoder; the same seed and number of threads give the same one.

    Neither the sign of an example nor the state of torch's own random numbers has a part in it.

    Args:
        train: differences; shape (n, dimensions).
        validation: differences that decide when to stop; shape (v, dimensions).
        options: see AutoencoderOptions.
        seed: of the first directions and the order of the examples.

    Raises:
        ConfigError: see `AutoencoderOptions.check`.
        DataError: there is nothing to train on or to stop by, or all examples are zero.
        ModelError: the training ran away.
        MissingExtraError: torch is not installed.
    """
    options.check()
    if len(train) < 2 or not len(validation):
        raise DataError(
            f"{len(train)} differences to train an autoencoder on and {len(validation)} to stop "
            "by: give more pairs, of more prompts"
        )
    try:
        import torch  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("torch", "models") from error
    scale = float(np.sqrt(np.square(train, dtype=np.float64).sum(1).mean()))
    if not (math.isfinite(scale) and scale > 0 and np.square(validation).sum() > 0):
        raise DataError("the differences are all zero, or not finite: give pairs of other texts")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    examples = torch.from_numpy((train / scale).astype(np.float32)).to(device)
    held = torch.from_numpy((validation / scale).astype(np.float32)).to(device)
    batch_size = options.batch_for(len(examples))
    training = _Training(examples.shape[1], options, seed, device)
    best, best_loss, best_epoch, waited, losses = training.copy(), math.inf, 0, 0, []
    for epoch in range(1, options.epochs + 1):
        for rows in training.batches(len(examples), batch_size):
            training.step(examples[rows])
        loss = training.loss_of(held)
        losses.append(loss)
        if loss < best_loss:
            best, best_loss, best_epoch, waited = training.copy(), loss, epoch, 0
        else:
            waited += 1
            if waited == options.patience:
                break
    if not best_epoch:
        raise ModelError(
            f"the autoencoder's loss is not a number after {training.steps} steps: give a lower "
            f"learning_rate than {options.learning_rate}"
        )
    encoder, decoder = (part.cpu().numpy() for part in best)
    sizes = np.abs((train / scale) @ encoder.T.astype(np.float64))
    through = min(options.active * len(train), sizes.size)
    level = float(np.partition(sizes, sizes.size - through, axis=None)[sizes.size - through])
    notes = {
        "examples": len(train),
        "batch_size": batch_size,
        "epochs": len(losses),
        "best_epoch": best_epoch,
        "steps": training.steps,
        "validation_loss": round(best_loss, 6),
        "dead_units": int((sizes < level).all(0).sum()),
    }
    return Autoencoder(encoder, decoder, level, scale, options, notes)


class _Training:
    """The weights while they are trained.

    Args:
        dimensions: of an example.
        options: see AutoencoderOptions.
        seed: see `fit_autoencoder`.
        device: of the weights.
    """

    def __init__(self, dimensions: int, options: AutoencoderOptions, seed: int, device: Any):
        import torch  # noqa: PLC0415

        self.steps = 0
        self._options = options
        # On the CPU on any machine, so that a GPU starts from the same numbers.
        self._random = torch.Generator().manual_seed(seed)
        start = torch.randn(options.units, dimensions, generator=self._random)
        start = torch.nn.functional.normalize(start, dim=1).to(device)
        self._encoder = start.clone().requires_grad_()
        self._decoder = start.clone().requires_grad_()
        self._optimizer = torch.optim.Adam([self._encoder, self._decoder], lr=options.learning_rate)
        self._silent = torch.zeros(options.units, dtype=torch.long, device=device)

    def copy(self) -> tuple[Any, Any]:
        """Encoder and decoder as they are now."""
        return self._encoder.detach().clone(), self._decoder.detach().clone()

    def batches(self, count: int, batch_size: int) -> Iterator[Any]:
        """One epoch's rows; int64, shape (batch,) each."""
        import torch  # noqa: PLC0415

        return iter(torch.randperm(count, generator=self._random).split(batch_size))

    def step(self, examples: Any) -> None:
        """One step of Adam on float32 examples, shape (batch, dimensions)."""
        import torch  # noqa: PLC0415

        before = examples @ self._encoder.T
        units = self._largest(before)
        self._silent = torch.where((units != 0).any(0), 0, self._silent + 1)
        loss = self._loss(examples, units) + self._revival(examples, units, before)
        self._optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            # The length of a direction is fixed, so only what turns it counts.
            along = (self._decoder * self._decoder.grad).sum(1, keepdim=True)
            self._decoder.grad -= along * self._decoder
        torch.nn.utils.clip_grad_norm_([self._encoder, self._decoder], _LARGEST_GRADIENT)
        self._optimizer.step()
        with torch.no_grad():
            self._decoder /= self._decoder.norm(dim=1, keepdim=True)
        self.steps += 1

    def loss_of(self, examples: Any) -> float:
        """Loss on examples that are not trained on, all of them as one batch."""
        import torch  # noqa: PLC0415

        with torch.no_grad():
            return float(self._loss(examples, self._largest(examples @ self._encoder.T)))

    def _largest(self, before: Any) -> Any:
        """Keep the greatest of a batch by size, `active` for each example on average."""
        import torch  # noqa: PLC0415

        places = before.abs().flatten().topk(self._options.active * len(before)).indices
        kept = torch.zeros(before.numel(), dtype=torch.bool, device=before.device)
        kept[places] = True
        return torch.where(kept.view_as(before), before, 0.0)

    def _loss(self, examples: Any, units: Any) -> Any:
        """Share of the squared length that is not given back, mean over the prefixes."""
        import torch  # noqa: PLC0415

        total = examples.square().sum()
        shares = [
            (examples - units[:, :end] @ self._decoder[:end]).square().sum() / total
            for end in self._options.prefixes
        ]
        return torch.stack(shares).mean()

    def _revival(self, examples: Any, units: Any, before: Any) -> Any:
        """Share of what is left over that dead units do not give back, weighted; 0 without any."""
        import torch  # noqa: PLC0415

        dead = torch.nonzero(self._silent > self._options.dead_after).flatten()
        used = min(self._options.revived, len(dead))
        if not used:
            return 0.0
        left = (examples - units @ self._decoder).detach()
        of_dead = before[:, dead]
        places = of_dead.abs().topk(used, dim=1).indices
        some = torch.zeros_like(of_dead).scatter(1, places, of_dead.gather(1, places))
        rest = (left - some @ self._decoder[dead]).square().sum()
        return _REVIVAL_WEIGHT * rest / left.square().sum().clamp_min(1e-12)
