"""Measure the coverage of 95 % intervals of agreement, for several methods.

    python benchmarks/intervals.py

Simulates raters of known agreement. Prompts are the clusters: the agreement of each is drawn from a
beta distribution with the given intra-cluster correlation. Sizes follow small real sets. The false
alarm rate is how often two equally good raters differ significantly. Prints a table and, as the
last line, one JSON object. One CPU core, about two minutes.

A second table has pairs of texts by 8, 14 or 30 writers for 12 prompts, graded by a judge and
scored by raters: each has a level for every writer and for every writer and prompt. Clustered by
prompt and writer, as reported, and by prompt alone.
"""

import argparse
import itertools
import json
import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy import stats
from tqdm import tqdm

from litbench.metrics.comparisons import paired_difference
from litbench.metrics.intervals import clustered_mean, jackknife_interval
from litbench.metrics.writers import PairCredits, pair_credits
from litbench.text import digest

# Prompts, pairs, and the standard deviation of the log weights of prompts. Each prompt has 1 to 40
# pairs.
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
    """Draw the number of pairs of each prompt, shape (prompts,); the sum is the size of the set."""
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
    """Draw outcomes of a rater, 1.0 if correct and 0.0 if not; shape (pairs,), sorted by prompt."""
    share = np.full(len(sizes), agreement)
    if correlation > 0:
        strength = (1 - correlation) / correlation
        share = random.beta(agreement * strength, (1 - agreement) * strength, len(sizes))
    outcomes: np.ndarray = random.random(sizes.sum()) < np.repeat(share, sizes)
    return outcomes.astype(float)


def percentile_bootstrap(
    values: np.ndarray, clusters: np.ndarray, seed: int, resamples: int = 1_000
) -> tuple[float, float]:
    """Quantiles of the means of resampled prompts, as many papers report."""
    sums, sizes = np.bincount(clusters, weights=values), np.bincount(clusters)
    picks = np.random.default_rng(seed).integers(len(sums), size=(resamples, len(sums)))
    means = sums[picks].sum(1) / sizes[picks].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def plain_jackknife(values: np.ndarray, clusters: np.ndarray, _: int) -> tuple[float, float]:
    """Student's t interval; degrees of freedom: effective number of clusters minus one."""
    estimate = clustered_mean(values, clusters)
    half = float(stats.t.ppf(0.975, estimate.freedom)) * estimate.error
    return estimate.mean - half, estimate.mean + half


def reported(values: np.ndarray, clusters: np.ndarray, _: int) -> tuple[float, float]:
    """The interval that LitBench reports, `jackknife_interval`."""
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
    """Return coverage and mean width of the intervals of each method."""
    random = np.random.default_rng(int(digest(seed, 0, name, agreement, correlation), 16))
    results: dict[str, list[tuple[bool, float]]] = {method: [] for method in methods}
    for simulation in range(simulations):
        sizes = draw_sizes(name, random)
        values = draw_outcomes(sizes, agreement, correlation, random)
        clusters = np.repeat(np.arange(len(sizes)), sizes)
        for method, interval in methods.items():
            low, high = interval(values, clusters, simulation)
            # Widths are of the interval clipped to [0, 1].
            results[method].append((low <= agreement <= high, min(high, 1.0) - max(low, 0.0)))
    return {method: tuple(np.mean(rows, axis=0).tolist()) for method, rows in results.items()}


def measure_differences(
    name: str, agreement: float, correlation: float, simulations: int, seed: int
) -> float:
    """Share of simulations in which two equally good raters differ with p < 0.05.

    Prompts differ in difficulty between the raters, who judge half of the pairs alike.
    """
    random = np.random.default_rng(int(digest(seed, 1, name, agreement, correlation), 16))
    significant = 0
    for _ in range(simulations):
        sizes = draw_sizes(name, random)
        first, second, common = (
            draw_outcomes(sizes, agreement, correlation, random) for _ in range(3)
        )
        same = random.random(len(first)) < 0.5
        first, second = np.where(same, common, first), np.where(same, common, second)
        _, p = paired_difference(first, second, np.repeat(np.arange(len(sizes)), sizes))
        significant += p < 0.05
    return significant / simulations


# Number of writers, correlation of the levels of judge and rater over writers, and the share of the
# variance of grades and rewards that is between writers.
PANELS = [
    (writers, *kind)
    for writers in (8, 14, 30)
    for kind in ((0.0, 0.0), (0.5, 0.2), (0.0, 0.6), (0.5, 0.6), (0.8, 0.8))
]


def draw_panel(
    writers: int, correlation: float, between: float, random: np.random.Generator
) -> tuple[PairCredits, PairCredits]:
    """Credits of a rater, and of one whose levels are independent of the judge's."""
    prompts, chapters = 12, 4
    levels = random.normal(size=(3, writers))
    levels[1] = correlation * levels[0] + math.sqrt(1 - correlation**2) * levels[1]
    noise = random.normal(size=(3, writers, prompts, 1))
    noise = noise + random.normal(size=(3, writers, prompts, chapters))
    values = math.sqrt(between) * levels[:, :, None, None] + math.sqrt((1 - between) / 2) * noise
    writer, prompt, chapter = (of.ravel().tolist() for of in np.indices(values.shape[1:]))
    groups = [(p, c) for p, c in zip(prompt, chapter, strict=True)]
    grades, *rewards = values.reshape(3, -1).tolist()
    first, second = (
        pair_credits(grades, of, groups, list(map(str, prompt)), list(map(str, writer)))
        for of in rewards
    )
    return first, second


def measure_writers(
    writers: int, correlation: float, between: float, simulations: int, seed: int
) -> dict[str, float]:
    """Coverage of the true agreement and of the true difference, the means over simulations."""
    random = np.random.default_rng(int(digest(seed, 2, writers, correlation, between), 16))
    found: dict[str, list[tuple[float, float, float]]] = {
        "prompt and writer (reported)": [],
        "prompt": [],
        "difference (reported)": [],
    }
    for _ in range(simulations):
        rater, other = draw_panel(writers, correlation, between, random)
        intervals = (
            rater.interval(),
            jackknife_interval(rater.credits, rater.prompts),
            rater.difference(other)[0],
        )
        for rows, one in zip(found.values(), intervals, strict=True):
            rows.append((one.mean, one.low, one.high))
    coverage = {}
    for method, rows in found.items():
        mean, low, high = np.array(rows).T
        coverage[method] = float(np.mean((low <= mean.mean()) & (mean.mean() <= high)))
    return coverage


def main() -> None:
    """Simulate all cells and print."""
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
        columns = [f"{100 * c:.1f} ({width:.3f})" for c, width in by_method.values()]
        print("|", " | ".join([*map(str, cell), *columns, f"{100 * alarms[-1]:.1f}"]), "|")
        for method, (covered, _) in by_method.items():
            coverage[method].append(covered)
    summary = {
        method: {"mean": np.mean(c), "lowest": min(c), "cells_below_92": sum(x < 0.92 for x in c)}
        for method, c in coverage.items()
    }
    false_alarms = {"mean": np.mean(alarms), "highest": max(alarms)}
    panels = [measure_writers(*panel, count // 2, 0) for panel in tqdm(PANELS, unit="cell")]
    print("\n| writers | correlation | between writers | " + " | ".join(panels[0]) + " |")
    print("| --- " * (len(panels[0]) + 3) + "|")
    for panel, of in zip(PANELS, panels, strict=True):
        print("|", " | ".join([*map(str, panel), *(f"{100 * c:.1f}" for c in of.values())]), "|")
    writers = {method: min(of[method] for of in panels) for method in panels[0]}
    found = {"coverage": summary, "false_alarms": false_alarms, "lowest_by_writer": writers}
    print(json.dumps({"simulations": count, **found}))


if __name__ == "__main__":
    main()
