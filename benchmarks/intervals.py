"""Measure how often a 95 % interval of an agreement covers the truth, method by method.

    python benchmarks/intervals.py

Simulates raters whose true agreement is known. Prompts are the clusters: each has its own
agreement, drawn from a beta distribution with the intra-cluster correlation asked for. Sizes follow
small real sets. False alarms are how often two raters that are equally good are called different.
Prints a table and, as last line, one JSON object. One CPU core, about a minute.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Mapping

import numpy as np
from scipy import stats
from tqdm import tqdm

from litbench.metrics.comparisons import paired_difference
from litbench.metrics.intervals import clustered_mean, jackknife_interval
from litbench.text import digest

# prompts, pairs, and the spread (of log weights) of pairs per prompt; each prompt has at least
# one pair and at most 40.
SETS = {
    "83 prompts, 619 pairs": (83, 619, 1.0),
    "46 prompts, 465 pairs": (46, 465, 1.0),
    "20 prompts, 100 pairs": (20, 100, 1.0),
    "12 prompts, 120 pairs": (12, 120, 0.0),
}
AGREEMENTS = (0.5, 0.65, 0.78, 0.95)
CORRELATIONS = (0.0, 0.1, 0.3)
Method = Callable[[np.ndarray, np.ndarray, int], tuple[float, float]]


def draw_sizes(name: str, random: np.random.Generator) -> np.ndarray:
    """Draw pairs per prompt, shape (prompts,), which sum to the pairs of the set."""
    prompts, pairs, spread = SETS[name]
    if spread == 0:
        return np.full(prompts, pairs // prompts)
    while True:
        weights = random.lognormal(0, spread, prompts)
        sizes = 1 + random.multinomial(pairs - prompts, weights / weights.sum())
        if sizes.max() <= 40:
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


def percentile_bootstrap(
    values: np.ndarray, clusters: np.ndarray, seed: int, draws: int = 1_000
) -> tuple[float, float]:
    """What many papers report: quantiles of the means of resampled prompts."""
    sums, sizes = np.bincount(clusters, weights=values), np.bincount(clusters)
    picks = np.random.default_rng(seed).integers(len(sums), size=(draws, len(sums)))
    means = sums[picks].sum(1) / sizes[picks].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def plain_jackknife(values: np.ndarray, clusters: np.ndarray, _: int) -> tuple[float, float]:
    """The t interval with the effective number of clusters less one."""
    estimate = clustered_mean(values, clusters)
    half = float(stats.t.ppf(0.975, estimate.freedom)) * estimate.error
    return estimate.mean - half, estimate.mean + half


def reported(values: np.ndarray, clusters: np.ndarray, _: int) -> tuple[float, float]:
    """`jackknife_interval`."""
    interval = jackknife_interval(values, clusters)
    return interval.low, interval.high


METHODS: dict[str, Method] = {
    "percentile bootstrap": percentile_bootstrap,
    "jackknife, t on effective-1": plain_jackknife,
    "jackknife, logit (reported)": reported,
}


def measure(
    name: str,
    agreement: float,
    correlation: float,
    simulations: int,
    seed: int,
    *,
    methods: Mapping[str, Method] = METHODS,
) -> dict[str, tuple[float, float]]:
    """Per method, the share of intervals that cover the true agreement, and their mean width."""
    random = np.random.default_rng(int(digest(seed, 0, name, agreement, correlation), 16))
    found: dict[str, list[tuple[bool, float]]] = {method: [] for method in methods}
    for simulation in range(simulations):
        sizes = draw_sizes(name, random)
        values = draw_outcomes(sizes, agreement, correlation, random)
        clusters = np.repeat(np.arange(len(sizes)), sizes)
        for method, interval in methods.items():
            low, high = interval(values, clusters, simulation)
            # What lies beyond 0 and 1 no one would print.
            found[method].append((low <= agreement <= high, min(high, 1.0) - max(low, 0.0)))
    return {method: tuple(np.mean(rows, axis=0).tolist()) for method, rows in found.items()}


def measure_differences(
    name: str, agreement: float, correlation: float, simulations: int, seed: int
) -> float:
    """Share of simulations in which two equally good raters differ with p < 0.05.

    Each finds prompts of its own hard; half of the pairs they judge alike.
    """
    random = np.random.default_rng(int(digest(seed, 1, name, agreement, correlation), 16))
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


def main() -> None:
    """Simulate every cell and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--simulations", type=int, default=1_000, help="per cell")
    count = parser.parse_args().simulations
    cells = list(itertools.product(SETS, AGREEMENTS, CORRELATIONS))
    coverage: dict[str, list[float]] = {method: [] for method in METHODS}
    alarms = []
    print("| set | agreement | correlation | " + " | ".join(METHODS) + " | false alarms |")
    print("| --- " * (len(METHODS) + 4) + "|")
    for cell in tqdm(cells, unit="cell"):
        by_method = measure(*cell, count, 0)
        alarms.append(measure_differences(*cell, count, 0))
        shown = [f"{100 * c:.1f} ({width:.3f})" for c, width in by_method.values()]
        print("|", " | ".join([*map(str, cell), *shown, f"{100 * alarms[-1]:.1f}"]), "|")
        for method, (covered, _) in by_method.items():
            coverage[method].append(covered)
    summary = {
        method: {"mean": np.mean(c), "lowest": min(c), "cells_below_92": sum(x < 0.92 for x in c)}
        for method, c in coverage.items()
    }
    false_alarms = {"mean": np.mean(alarms), "highest": max(alarms)}
    print(json.dumps({"simulations": count, "coverage": summary, "false_alarms": false_alarms}))


if __name__ == "__main__":
    main()
