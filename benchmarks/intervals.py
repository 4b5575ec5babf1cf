"""Measure how often a 95 % interval of an agreement covers the truth, method by method.

    python benchmarks/intervals.py

Simulates raters whose true agreement is known. Prompts are the clusters: each has its own
agreement, drawn from a beta distribution, so that pairs of one prompt are alike by the
intra-cluster correlation asked for. Sizes follow small real sets. The last column is
how often two raters that are equally good are called different. Reads and writes no file; prints
tables and, as last line, one JSON object. One CPU core, 76 seconds.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy import stats
from tqdm import tqdm

from litbench.config import run_program
from litbench.metrics.comparisons import paired_difference
from litbench.metrics.intervals import (
    clustered_mean,
    jackknife_interval,
)
from litbench.text import digest

# prompts, pairs, and the spread (of log weights) of pairs per prompt; each prompt has at least
# one pair and at most 40.
SETS = {
    "83 prompts, 619 pairs": (83, 619, 1.0),
    "46 prompts, 465 pairs": (46, 465, 1.0),
    "20 prompts, 100 pairs": (20, 100, 1.0),
    "12 prompts, 120 pairs": (12, 120, 0.0),
}
_MOST = 40
Bounds = tuple[float, float]


@dataclass
class Config:
    """What to simulate.

    Attributes:
        simulations: per cell.
        agreements: true agreements.
        correlations: intra-cluster correlations; between 0 and 1.
        sets: names in SETS.
        seed: seeds everything.
    """

    simulations: int = 1_000
    agreements: list[float] = field(default_factory=lambda: [0.5, 0.65, 0.78, 0.95])
    correlations: list[float] = field(default_factory=lambda: [0.0, 0.1, 0.3])
    sets: list[str] = field(default_factory=lambda: list(SETS))
    seed: int = 0


def draw_sizes(name: str, random: np.random.Generator) -> np.ndarray:
    """Draw pairs per prompt, shape (prompts,), which sum to the pairs of the set."""
    prompts, pairs, spread = SETS[name]
    if spread == 0:
        return np.full(prompts, pairs // prompts)
    while True:
        weights = random.lognormal(0, spread, prompts)
        sizes = 1 + random.multinomial(pairs - prompts, weights / weights.sum())
        if sizes.max() <= _MOST:
            return sizes


def draw_outcomes(
    sizes: np.ndarray, agreement: float, correlation: float, random: np.random.Generator
) -> np.ndarray:
    """Draw which pairs a rater judges rightly; 0.0 or 1.0, shape (pairs,), prompt by prompt."""
    share = np.full(len(sizes), agreement)
    if correlation > 0:
        strength = (1 - correlation) / correlation
        share = random.beta(agreement * strength, (1 - agreement) * strength, len(sizes))
    return (random.random(sizes.sum()) < np.repeat(share, sizes)).astype(float)


def _plain(values: np.ndarray, clusters: np.ndarray, freedom: str) -> Bounds:
    estimate = clustered_mean(values, clusters)
    degrees = estimate.freedom if freedom == "effective" else estimate.clusters - 1
    half = float(stats.t.ppf(0.975, degrees)) * estimate.error
    return estimate.mean - half, estimate.mean + half


def _jackknife(values: np.ndarray, clusters: np.ndarray, seed: int) -> Bounds:
    del seed
    interval = jackknife_interval(values, clusters)
    return interval.low, interval.high


def percentile_bootstrap(
    values: np.ndarray, clusters: np.ndarray, seed: int, draws: int = 1_000
) -> Bounds:
    """What many papers report: quantiles of the means of resampled prompts."""
    sums, sizes = np.bincount(clusters, weights=values), np.bincount(clusters)
    picks = np.random.default_rng(seed).integers(len(sums), size=(draws, len(sums)))
    means = sums[picks].sum(1) / sizes[picks].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


METHODS: dict[str, Callable[[np.ndarray, np.ndarray, int], Bounds]] = {
    "percentile bootstrap": percentile_bootstrap,
    "jackknife, t on G-1": lambda values, clusters, _: _plain(values, clusters, "all"),
    "jackknife, t on effective-1": lambda values, clusters, _: _plain(
        values, clusters, "effective"
    ),
    "jackknife, logit (reported)": _jackknife,
}


def _random(*cell: float | str) -> np.random.Generator:
    # Of the cell's own name, so that a run of few cells draws what a run of all draws.
    return np.random.default_rng(int(digest(*cell), 16))


def measure(
    name: str,
    agreement: float,
    correlation: float,
    simulations: int,
    seed: int,
    *,
    methods: dict[str, Callable[[np.ndarray, np.ndarray, int], Bounds]] = METHODS,
) -> dict[str, tuple[float, float]]:
    """Simulate one cell.

    Returns:
        Per method, the share of intervals that cover the true agreement, and their mean width.
    """
    random = _random(seed, 0, name, agreement, correlation)
    covered = dict.fromkeys(methods, 0)
    width = dict.fromkeys(methods, 0.0)
    for simulation in range(simulations):
        sizes = draw_sizes(name, random)
        values = draw_outcomes(sizes, agreement, correlation, random)
        clusters = np.repeat(np.arange(len(sizes)), sizes)
        for method, interval in methods.items():
            low, high = interval(values, clusters, simulation)
            covered[method] += low <= agreement <= high
            # What lies beyond 0 and 1 no one would print.
            width[method] += min(high, 1.0) - max(low, 0.0)
    return {m: (covered[m] / simulations, width[m] / simulations) for m in methods}


def measure_differences(
    name: str, agreement: float, correlation: float, simulations: int, seed: int
) -> float:
    """Share of simulations in which two equally good raters differ with p < 0.05.

    Each finds prompts of its own hard; half of the pairs they judge alike.
    """
    random = _random(seed, 1, name, agreement, correlation)
    clear = 0
    for _ in range(simulations):
        sizes = draw_sizes(name, random)
        one, other, common = (
            draw_outcomes(sizes, agreement, correlation, random) for _ in range(3)
        )
        same = random.random(len(one)) < 0.5
        one, other = np.where(same, common, one), np.where(same, common, other)
        _, p = paired_difference(one, other, np.repeat(np.arange(len(sizes)), sizes))
        clear += p < 0.05
    return clear / simulations


def main(config: Config) -> None:
    """Simulate every cell and print."""
    started = time.perf_counter()
    cells = [(s, a, c) for s in config.sets for a in config.agreements for c in config.correlations]
    results, false_alarms = {}, {}
    for cell in tqdm(cells, unit="cell"):
        results[cell] = measure(*cell, config.simulations, config.seed)
        false_alarms[cell] = measure_differences(*cell, config.simulations, config.seed)
    noise = 100 * math.sqrt(0.95 * 0.05 / config.simulations)
    print(
        f"coverage of 95 % intervals in %, and mean width; {config.simulations:,} simulations a "
        f"cell, Monte-Carlo error {noise:.1f} points at 95 %\n"
    )
    print("| set | agreement | correlation | " + " | ".join(METHODS) + " | false alarms |")
    print("| --- " * (len(METHODS) + 4) + "|")
    for cell, by_method in results.items():
        shown = [f"{100 * c:.1f} ({w:.3f})" for c, w in by_method.values()]
        print(
            f"| {cell[0]} | {cell[1]:g} | {cell[2]:g} | "
            + " | ".join(shown)
            + f" | {100 * false_alarms[cell]:.1f} |"
        )
    summary = {}
    for method in METHODS:
        coverage = np.array([by_method[method][0] for by_method in results.values()])
        summary[method] = {
            "mean_coverage": round(float(coverage.mean()), 4),
            "lowest": float(coverage.min()),
            "highest": float(coverage.max()),
            "cells_within_92_to_97": int(((coverage >= 0.92) & (coverage <= 0.97)).sum()),
            "cells_below_92": int((coverage < 0.92).sum()),
            "mean_width": round(float(np.mean([r[method][1] for r in results.values()])), 4),
        }
    print("\n| method | mean | lowest | highest | cells in 92 to 97 % | below | mean width |")
    print("| --- " * 7 + "|")
    for method, row in summary.items():
        print(
            f"| {method} | {100 * row['mean_coverage']:.1f} | {100 * row['lowest']:.1f} | "
            f"{100 * row['highest']:.1f} | {row['cells_within_92_to_97']} of {len(cells)} | "
            f"{row['cells_below_92']} | {row['mean_width']:.3f} |"
        )
    alarms = np.array(list(false_alarms.values()))
    print(
        f"\ntwo equally good raters called different (5 % is right): mean "
        f"{100 * alarms.mean():.1f} %, highest {100 * alarms.max():.1f} %"
    )
    print(
        json.dumps(
            {
                "simulations": config.simulations,
                "seconds": round(time.perf_counter() - started, 1),
                "coverage": summary,
                "false_alarms": {
                    "mean": round(float(alarms.mean()), 4),
                    "highest": float(alarms.max()),
                },
            }
        )
    )


if __name__ == "__main__":
    run_program(main, Config, __doc__)
