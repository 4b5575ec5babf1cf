"""Does the autoencoder find planted features? Against principal components, chance and hypothesaes.

    python benchmarks/preferences.py

Plants signed sparse directions in made-up differences, more of them active in some pairs than in
others, under noise, and lets a few of them decide which side is chosen. Measures how well the
directions come back (`litbench.metrics.preferences.recovery`), over seeds, and how well linear
models on the units, on principal components and on the raw differences foretell held-out labels,
true ones and permuted ones. `hypothesaes` takes part where it is installed; it is trained as
published, on differences with a random sign.
"""

import importlib.util
import json
import time
from collections.abc import Callable

import numpy as np

from litbench.metrics.preferences import credits_of, recovery
from litbench.models.autoencoder import AutoencoderOptions, fit_autoencoder
from litbench.models.linear_preference import fit_linear_preference

PAIRS, DIMENSIONS, PLANTED, ACTIVE, NOISE = 4_000, 96, 24, 4, 0.5
SEEDS = range(5)
STRENGTHS = [0.01, 0.1, 1.0]


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
    weights[::4] = draw.choice([-1.5, 1.5], size=len(weights[::4]))
    labels = draw.random(pairs) < 1 / (1 + np.exp(-sizes @ weights))
    return sizes @ directions + noise, directions, labels


def principal(train: np.ndarray, count: int) -> np.ndarray:
    """The first principal directions of differences, whose mean is 0; shape (count, d)."""
    return np.linalg.svd(train, full_matrices=False)[2][:count]


def published(train: np.ndarray, held: np.ndarray, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """The autoencoder of hypothesaes at the paper's settings: differences -> units."""
    import torch  # noqa: PLC0415
    from hypothesaes.sae import SparseAutoencoder  # noqa: PLC0415

    torch.manual_seed(seed)
    model = SparseAutoencoder(
        train.shape[1], 32, 4, dead_neuron_threshold_steps=256, prefix_lengths=[8, 32],
        use_batch_topk=True,
    )  # fmt: skip
    model.fit(
        torch.from_numpy(train).float(), torch.from_numpy(held).float(), n_epochs=100,
        show_progress=False,
    )  # fmt: skip
    published.directions = model.decoder.weight.detach().cpu().numpy().T  # type: ignore[attr-defined]
    return lambda rows: model.get_activations(rows.astype(np.float32), show_progress=False)


def main() -> None:
    """Measure and print; the last line is one JSON object."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    has_library = importlib.util.find_spec("hypothesaes") is not None
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    for seed in SEEDS:
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
        if has_library:
            started = time.perf_counter()
            units = published(train, held, seed)
            note("seconds hypothesaes", time.perf_counter() - started)
            spaces["hypothesaes"] = (published.directions, units)  # type: ignore[attr-defined]
        chance = np.random.default_rng(seed + 1_000).normal(size=(32, DIMENSIONS))
        found_by = {name: of for name, (of, _) in spaces.items() if name != "raw"}
        for name, directions in {**found_by, "chance": chance}.items():
            score = recovery(directions, planted)
            note(f"nearest {name}", score.nearest)
            note(f"matched {name}", score.matched)
            note(f"found {name}", score.found)
        shuffled = np.random.default_rng(seed).permutation(labels)
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
        print(f"{name:28s} {np.mean(values):8.3f}  {min(values):8.3f} to {max(values):.3f}")
    means = {name: round(float(np.mean(values)), 3) for name, values in found.items()}
    print(
        json.dumps(
            {
                "seeds": len(SEEDS),
                "matched_over_components": round(
                    means["matched units"] / means["matched components"], 2
                ),
                "matched_over_chance": round(means["matched units"] / means["matched chance"], 2),
                **means,
            }
        )
    )


if __name__ == "__main__":
    main()
