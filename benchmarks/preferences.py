"""Does the autoencoder find planted features? Against principal components, chance and hypothesaes.

    python benchmarks/preferences.py

Plants signed sparse directions in made-up differences, more of them active in some pairs than in
others, under noise, and lets a few of them decide which side is chosen. Measures how well the
directions come back (`recovery`), over seeds, and how well linear
models on the units, on principal components and on the raw differences foretell held-out labels,
true ones and permuted ones; and which units' coefficients are said to be clear.

`hypothesaes` takes part where it can be imported, on the same differences, whose signs are random:
as published, and with smaller batches and twice the units, since it needs two one-sided units for a
signed direction. LitBench does not install it; beside LitBench with all extras it needs

    pip install --target FOLDER --no-deps hypothesaes==2.0.1 statsmodels patsy
    PYTHONPATH=FOLDER python benchmarks/preferences.py
"""

import contextlib
import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from litbench.config import run_program
from litbench.metrics.comparisons import benjamini_hochberg
from litbench.metrics.preferences import coefficient_intervals, credits_of
from litbench.models.autoencoder import AutoencoderOptions, fit_autoencoder
from litbench.models.linear_preference import fit_linear_preference, logistic

PAIRS, DIMENSIONS, PLANTED, ACTIVE, NOISE = 4_000, 96, 24, 4, 0.5
# Every so many planted directions one decides about labels.
DECIDING = slice(None, None, 4)
STRENGTHS = [0.01, 0.1, 1.0]
# Units and batch of hypothesaes; the first is the paper's.
LIBRARY = {
    "hypothesaes": (32, 512),
    "hypothesaes, batch 64": (32, 64),
    "hypothesaes, 64 units, batch 64": (64, 64),
}


def plant(seed: int, pairs: int = PAIRS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Differences, directions and labels; shapes (n, d), (planted, d), (n,) bool.

    The noise of a pair is half as long as what its active directions add up to.
    """
    draw = np.random.default_rng(seed)
    directions = draw.normal(size=(PLANTED, DIMENSIONS))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    # Features of the world are not equally common.
    shares = np.linspace(1.6, 0.4, PLANTED) * ACTIVE / PLANTED
    active = draw.random((pairs, PLANTED)) < shares
    sizes = active * draw.choice([-1, 1], size=active.shape) * draw.uniform(0.6, 1.4, active.shape)
    noise = draw.normal(size=(pairs, DIMENSIONS)) * NOISE * np.sqrt(ACTIVE / DIMENSIONS)
    weights = np.zeros(PLANTED)
    weights[DECIDING] = draw.choice([-1.5, 1.5], size=len(weights[DECIDING]))
    labels = draw.random(pairs) < 1 / (1 + np.exp(-sizes @ weights))
    return sizes @ directions + noise, directions, labels


@dataclass(frozen=True)
class Recovery:
    """How well found directions match planted ones.

    Attributes:
        nearest: of each planted direction the greatest |cosine| with a found one; mean.
        matched: the same when each found direction may serve once; mean of the best matching.
        found: share of the planted directions whose match has a |cosine| above 0.9.
    """

    nearest: float
    matched: float
    found: float


def recovery(found: np.ndarray, planted: np.ndarray) -> Recovery:
    """Compare directions; their signs and lengths do not count.

    Args:
        found: shape (f, dimensions); f at least the number of planted ones.
        planted: shape (p, dimensions).
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415

    def unit(rows: np.ndarray) -> np.ndarray:
        lengths: np.ndarray = np.linalg.norm(rows, axis=1, keepdims=True)
        scaled: np.ndarray = rows / np.maximum(lengths, 1e-12)
        return scaled

    cosines = np.abs(unit(planted) @ unit(found).T)
    rows, columns = linear_sum_assignment(-cosines)
    best = cosines[rows, columns]
    return Recovery(float(cosines.max(1).mean()), float(best.mean()), float((best > 0.9).mean()))


def principal(train: np.ndarray, count: int) -> np.ndarray:
    """The first principal directions of differences, whose mean is 0; shape (count, d)."""
    return np.linalg.svd(train, full_matrices=False)[2][:count]


def clear_units(
    units: np.ndarray, first_chosen: np.ndarray, prompts: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Which units have p < 0.05, and which of them after Benjamini and Hochberg; bool."""
    linear = fit_linear_preference(units, first_chosen, prompts, STRENGTHS)
    scaled = units / linear.scale
    _, p_values = coefficient_intervals(
        lambda rows: logistic(scaled[rows], first_chosen[rows], linear.c), prompts
    )
    return np.array(p_values) < 0.05, np.array(benjamini_hochberg(p_values)) < 0.05


def published(
    train: np.ndarray, held: np.ndarray, seed: int, units: int, batch_size: int
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """The autoencoder of hypothesaes: its directions, and differences -> units."""
    import torch  # noqa: PLC0415
    from hypothesaes.sae import SparseAutoencoder  # noqa: PLC0415

    torch.manual_seed(seed)
    model = SparseAutoencoder(
        train.shape[1], units, ACTIVE, dead_neuron_threshold_steps=256,
        prefix_lengths=[units // 4, units], use_batch_topk=True,
    )  # fmt: skip
    # It prints when it stops early.
    with contextlib.redirect_stdout(io.StringIO()):
        model.fit(
            torch.from_numpy(train).float(), torch.from_numpy(held).float(),
            batch_size=batch_size, n_epochs=100, show_progress=False,
        )  # fmt: skip
    directions = model.decoder.weight.detach().cpu().numpy().T
    return directions, lambda rows: model.get_activations(
        rows.astype(np.float32), show_progress=False
    )


def library() -> dict[str, tuple[int, int]]:
    """The settings of hypothesaes to measure; none where it cannot be imported."""
    try:
        import hypothesaes.sae  # noqa: F401, PLC0415
    except ImportError as error:
        print(f"without hypothesaes ({error}); see the top of this file")
        return {}
    return LIBRARY


@dataclass
class Config:
    """How much to measure.

    Attributes:
        seeds: synthetic sets, each with directions and labels of its own.
    """

    seeds: int = 5


def main(config: Config) -> None:
    """Measure and print; the last line is one JSON object."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    settings = library()
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    for seed in range(config.seeds):
        differences, planted, labels = plant(seed)
        train, held, test = np.split(differences, [2_600, 3_000])
        known = np.concatenate([train, held])
        # Any grouping will do: pairs are drawn one by one here.
        prompts = [str(row % 50) for row in range(len(known))]
        started = time.perf_counter()
        model = fit_autoencoder(train, held, AutoencoderOptions(), seed)
        note("seconds", time.perf_counter() - started)
        note("steps", model.notes["steps"])
        parts = principal(known, 32)
        spaces: dict[str, tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]] = {
            "units": (model.decoder, model.units),
            "components": (parts, lambda rows, parts=parts: rows @ parts.T),
            "raw": (planted, lambda rows: rows),
        }
        for name, (units, batch_size) in settings.items():
            started = time.perf_counter()
            spaces[name] = published(train, held, seed, units, batch_size)
            note(f"seconds {name}", time.perf_counter() - started)
        chance = np.random.default_rng(seed + 1_000).normal(size=(32, DIMENSIONS))
        found_by = {name: of for name, (of, _) in spaces.items() if name != "raw"}
        for name, directions in {**found_by, "chance": chance}.items():
            score = recovery(directions, planted)
            note(f"nearest {name}", score.nearest)
            note(f"matched {name}", score.matched)
            note(f"found {name}", score.found)
        shuffled = np.random.default_rng(seed).permutation(labels)
        cosines = np.abs(planted @ model.decoder.T)
        deciding = np.isin(np.arange(len(model.decoder)), cosines.argmax(1)[DECIDING])
        _, clear = clear_units(model.units(known), labels[: len(known)], prompts)
        note("clear units that decide", float(clear[deciding].mean()))
        note("clear units that do not", float(clear[~deciding].mean()))
        below, clear = clear_units(model.units(known), shuffled[: len(known)], prompts)
        note("p < 0.05, permuted", float(below.mean()))
        note("clear units, permuted", float(clear.sum()))
        for name, (_, project) in spaces.items():
            for kind, told in (("agreement", labels), ("permuted", shuffled)):
                before, after = told[: len(known)], told[len(known) :]
                fitted = fit_linear_preference(project(known), before, prompts, STRENGTHS)
                credit = credits_of(fitted.margins(project(test)), after)
                note(f"{kind} {name}", float(credit.mean()))
            if name != "raw":
                active = project(test) != 0
                note(f"active {name}", float(active.sum(1).mean()))
                turned = np.abs(project(-test) + project(test)).max()
                note(f"not odd {name}", float(turned))
    for name, values in sorted(found.items()):
        print(f"{name:44s} {np.mean(values):8.3f}  {min(values):8.3f} to {max(values):.3f}")
    means = {name: round(float(np.mean(values)), 3) for name, values in found.items()}
    print(
        json.dumps(
            {
                "seeds": config.seeds,
                "matched_over_components": round(
                    means["matched units"] / means["matched components"], 2
                ),
                "matched_over_chance": round(means["matched units"] / means["matched chance"], 2),
                **means,
            }
        )
    )


if __name__ == "__main__":
    run_program(main, Config, __doc__)
