"""Does the formula of power hold? Against simulated evaluations through the tests LitBench reports.

    python benchmarks/power.py
    python benchmarks/power.py --simulations 2000

Takes what `litbench.metrics.power.detectable` says is found in 50 % and in 80 % of evaluations and
simulates evaluations in which just that is true: two raters of two disagreements, and one rater
against chance, at sizes of real sets and correlations within prompts. Then evaluations without a
difference, and how far measured correlations within prompts scatter around the true one. Reads and
writes no file; prints tables and, as last line, one JSON object. The second line is the one that
docs/power.md quotes: 55 s of one CPU core.
"""

import json
import time
from dataclasses import dataclass, field

import numpy as np
from tqdm import tqdm

from litbench.config import run_program
from litbench.metrics.power import (
    Design,
    Difference,
    Effect,
    Lead,
    detectable,
    draw_kinds,
    intra_prompt_correlation,
    simulated_power,
)

DESIGNS = {
    "500 prompts, 2,480 pairs, even": Design(prompts=500, pairs_per_prompt=4.96),
    "500 prompts, 2,480 pairs, worth 150": Design(prompts=500, pairs_per_prompt=4.96, evenness=0.3),
    "137 prompts, 881 pairs, worth 128": Design(
        prompts=137, pairs_per_prompt=881 / 137, evenness=0.934
    ),
    "83 prompts, 619 pairs, worth 36": Design(
        prompts=83, pairs_per_prompt=619 / 83, evenness=0.434
    ),
    "20 prompts, 100 pairs, even": Design(prompts=20, pairs_per_prompt=5),
    "12 prompts, 120 pairs, even": Design(prompts=12, pairs_per_prompt=10),
}
WANTED = (0.5, 0.8)


@dataclass
class Config:
    """What to simulate.

    Attributes:
        simulations: evaluations per cell.
        designs: names in DESIGNS.
        correlations: within prompts.
        disagreements: of two raters.
        seed: seeds everything.
    """

    simulations: int = 100
    designs: list[str] = field(default_factory=lambda: list(DESIGNS))
    correlations: list[float] = field(default_factory=lambda: [0.0, 0.1, 0.3])
    disagreements: list[float] = field(default_factory=lambda: [0.15, 0.4])
    seed: int = 0


def found(effect: Effect, design: Design, wanted: float, config: Config) -> float | None:
    """How often the least detectable effect is found; None where nothing is detectable."""
    least = detectable(effect, design, wanted)
    if least is None:
        return None
    return simulated_power(
        effect.at(least), design, simulations=config.simulations, seed=config.seed
    )


def scatter(design: Design, correlation: float, evaluations: int, seed: int) -> float:
    """Standard deviation of the measured correlation within prompts, at a disagreement of 0.3."""
    random, sizes = np.random.default_rng(seed), design.sizes()
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    values = np.array([1.0, -1.0, 0.0])
    measured = [
        intra_prompt_correlation(
            values[draw_kinds([0.15, 0.15, 0.7], correlation, sizes, random)], clusters
        )
        for _ in range(evaluations)
    ]
    return float(np.std(measured))


def _range(values: list[float | None]) -> str:
    known = [round(100 * value) for value in values if value is not None]
    if not known:
        return "–"
    least, most = min(known), max(known)
    return f"{least}" if least == most else f"{least} to {most}"


def main(config: Config) -> None:
    """Simulate every cell and print."""
    started = time.perf_counter()
    two: dict[tuple[str, float, float], list[float | None]] = {}
    one: dict[tuple[str, float, float], list[float | None]] = {}
    none: list[float] = []
    cells = [(name, within) for name in config.designs for within in config.correlations]
    for name, within in tqdm(cells, unit="cell", disable=None):
        design = DESIGNS[name]
        differences = [
            Difference(difference=0.0, disagreement=share, intra_prompt=within)
            for share in config.disagreements
        ]
        lead = Lead(agreement=0.6, intra_prompt=within)
        for wanted in WANTED:
            two[name, within, wanted] = [
                found(effect, design, wanted, config) for effect in differences
            ]
            one[name, within, wanted] = [found(lead, design, wanted, config)]
        none += [
            simulated_power(effect, design, simulations=config.simulations, seed=config.seed)
            for effect in differences
        ]
    for title, by_cell in (("two raters", two), ("one rater against chance", one)):
        print(f"\n{title}: found in % of evaluations, {config.simulations:,} a cell, of what is")
        print(f"said to be detectable in {' and in '.join(f'{100 * w:.0f} %' for w in WANTED)}\n")
        print("| design | " + " | ".join(f"within {c:g}" for c in config.correlations) + " |")
        print("| --- " * (len(config.correlations) + 1) + "|")
        for name in config.designs:
            shown = [
                ", ".join(_range(by_cell[name, within, wanted]) for wanted in WANTED)
                for within in config.correlations
            ]
            print(f"| {name} | " + " | ".join(shown) + " |")
    print(f"\nwithout a difference: {100 * min(none):.1f} to {100 * max(none):.1f} % found")
    spreads = {
        name: round(scatter(DESIGNS[name], 0.1, config.simulations, config.seed), 3)
        for name in config.designs
    }
    print("standard deviation of the measured correlation within prompts, of a true 0.1:")
    for name, spread in spreads.items():
        print(f"  {name}: {spread:.3f}")
    errors = {
        f"{kind} {wanted:g}": [
            round(value - wanted, 3)
            for (_, _, of), values in by_cell.items()
            if of == wanted
            for value in values
            if value is not None
        ]
        for kind, by_cell in (("two raters", two), ("one rater", one))
        for wanted in WANTED
    }
    print(
        json.dumps(
            {
                "simulations": config.simulations,
                "seconds": round(time.perf_counter() - started, 1),
                **{
                    f"simulated minus stated, {name}": [min(values), max(values)]
                    for name, values in errors.items()
                },
                "found without a difference": [round(min(none), 4), round(max(none), 4)],
                "measured correlation, sd": spreads,
            }
        )
    )


if __name__ == "__main__":
    run_program(main, Config, __doc__)
