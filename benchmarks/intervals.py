"""Measure the coverage of 95 % intervals of agreement, for several methods.

    python benchmarks/intervals.py

Simulates raters of known agreement. Prompts are the clusters: the agreement of each is drawn from a
beta distribution with the given intra-cluster correlation. Sizes follow small real sets. The false
alarm rate is how often two equally good raters differ significantly. Prints a table and, as the
last line, one JSON object. One CPU core, about two minutes.

`--fits N` simulates cross-validated raters instead, N sets of stories per cell: linear models of 12
features or of 200 words, whose folds are trained again without each prompt, and a stand-in of a
reward model, whose intervals have twice the variance. Stories are preferred by a linear score plus
noise, or at random. A cell tells how often the 95 % interval misses the truth (1/2 at random, else
the mean over the sets), below and above it, and how often p is under 0.05; for the difference to
the longer story (1/2 after symmetry) and to another rater as well. `--prompts`, `--signals`,
`--kinds` and `--repeats` choose cells.

    python benchmarks/intervals.py --fits 500
    python benchmarks/intervals.py --fits 300 --signals 0.5 1 2

A second table has pairs of texts by 8, 14 or 30 writers for 12 prompts, graded by a judge and
scored by raters: each has a level for every writer and for every writer and prompt. Clustered by
prompt and writer, as reported, and by prompt alone.
"""

import argparse
import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy import sparse, stats
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from litbench.data.text import digest
from litbench.evaluation.folds import balance_lengths
from litbench.metrics.comparisons import paired_difference
from litbench.metrics.intervals import (
    Interval,
    Training,
    clustered_mean,
    jackknife_interval,
    training_of_difference,
)
from litbench.models.linear_preference import leave_out_each, logistic
from litbench.writers.metrics import PairCredits, pair_credits

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


# Cross-validated raters: columns of the stories, and inverse strength of the penalty.
RATERS = {
    "features": ("style", 0.1),
    "bag of words": ("words", 1.0),
    "stand-in of a reward model": ("embedding", 1.0),
    "features, half of the prompts": ("style", 0.1),
}
_STORIES, _WORDS_PER_STORY = 7, 60


@dataclass(frozen=True)
class Cell:
    """A kind of sets and its raters; `signal` is the size of the score relative to its noise."""

    rater: str
    prompts: int
    signal: float
    is_symmetric: bool


def draw_pairs(
    cell: Cell, random: np.random.Generator
) -> tuple[pa.Table, np.ndarray, dict[str, np.ndarray]]:
    """Draw pairs of 7 stories per prompt, of which each is later in half of its pairs.

    Returns:
        Ids and lengths of the pairs; the prompt of each pair; and by rater its columns, chosen
        minus rejected story.
    """
    shape = (cell.prompts, _STORIES)
    style = random.normal(size=(*shape, 12))
    lengths = np.exp(5 + 0.5 * style[..., 0]).round().astype(int)
    # Words depend on the style, so that they carry the signal too.
    rates = np.exp(0.3 * style @ random.normal(size=(12, 200)))
    words = random.poisson(_WORDS_PER_STORY * rates / rates.sum(-1, keepdims=True)).astype(float)
    words = np.log1p(words)
    words /= np.linalg.norm(words, axis=-1, keepdims=True)
    embedding = np.tanh(style @ random.normal(size=(12, 30)) + random.normal(size=(*shape, 30)))
    scores = cell.signal * style[..., 1:].sum(-1) / math.sqrt(11) + random.normal(size=shape)
    first, second = np.triu_indices(_STORIES, 1)
    prompt = np.repeat(np.arange(cell.prompts), len(first))
    first, second = np.tile(first, cell.prompts), np.tile(second, cell.prompts)
    is_kept = random.random(len(prompt)) < 0.5
    prompt, first, second = prompt[is_kept], first[is_kept], second[is_kept]
    is_first = scores[prompt, first] > scores[prompt, second]
    chosen, rejected = np.where(is_first, [first, second], [second, first])
    columns = {
        name: values[prompt, chosen] - values[prompt, rejected]
        for name, values in (("style", style), ("words", words), ("embedding", embedding))
    }
    names = [f"{cell.prompts} {number} {random.integers(1 << 60)}" for number in range(len(prompt))]
    of_side = {"chosen": chosen, "rejected": rejected}
    table = {f"{side}_n_words": lengths[prompt, story] for side, story in of_side.items()}
    return pa.table({"pair_id": names, **table}), prompt, columns


def crossvalidate(
    rater: str,
    differences: np.ndarray,
    prompt: np.ndarray,
    is_headline: np.ndarray,
    trainings: Mapping[int, np.ndarray],
    folds: np.ndarray,
) -> tuple[np.ndarray, Training]:
    """Credits of a rater on the headline pairs, and their training.

    Args:
        rater: a name of RATERS.
        differences: its columns; shape (n, columns).
        prompt: shape (n,).
        is_headline: whether a pair is judged; shape (n,).
        trainings: by number of a repeat and fold, the rows to train on.
        folds: fold of each pair in each repeat; shape (repeats, n).
    """
    strength = RATERS[rater][1]
    scaled = differences / np.sqrt(np.square(differences).mean(0))
    repeats, n = folds.shape
    count = int(folds.max()) + 1
    credit, changes = np.zeros(n), np.zeros((n, int(prompt.max()) + 1))
    for number, train in trainings.items():
        test = np.flatnonzero((folds[number // count] == number % count) & is_headline)
        chosen = np.ones(len(train), bool)
        fitted = logistic(scaled[train], chosen, strength)
        right = (np.sign(scaled[test] @ fitted) + 1) / 2
        credit[test] += right / repeats
        if not rater.startswith("stand-in"):
            left_out, without = leave_out_each(
                scaled[train], chosen, prompt[train], strength, fitted
            )
            flipped = (np.sign(scaled[test] @ without.T) + 1) / 2 - right[:, None]
            changes[np.ix_(test, np.array(left_out, int))] += flipped / repeats
    if rater.startswith("stand-in"):
        return credit[is_headline], Training()
    prompts = tuple(range(changes.shape[1]))
    return credit[is_headline], Training(prompts, sparse.csr_array(changes[is_headline]))


def fit_once(
    cell: Cell, repeats: int, random: np.random.Generator
) -> dict[str, tuple[Interval, float]]:
    """Cross-validate a set as `litbench fit` does; returns intervals and p values."""
    pairs, prompt, columns = draw_pairs(cell, random)
    n, count = len(prompt), min(max(cell.prompts // 15, 3), 5)
    orders = [random.permutation(cell.prompts) % count for _ in range(repeats)]
    folds = np.array([order[prompt] for order in orders])
    everything = np.arange(n)
    trainings = {
        repeat * count + fold: np.flatnonzero(folds[repeat] != fold)
        for repeat in range(repeats)
        for fold in range(count)
    }
    if cell.rater.endswith("half of the prompts"):
        drawn = random.permutation(cell.prompts)[: cell.prompts // 2]
        trainings = {key: rows[np.isin(prompt[rows], drawn)] for key, rows in trainings.items()}
    is_headline = np.ones(n, bool)
    if cell.is_symmetric:
        is_headline = np.isin(everything, balance_lengths(pairs, {0: everything}, 0)[0])
        trainings = balance_lengths(pairs, trainings, 0)
    args = (prompt, is_headline, trainings, folds)
    other = "stand-in of a reward model" if cell.rater.startswith("features") else "features"
    (credit, training), (reference, of_reference) = (
        crossvalidate(name, columns[RATERS[name][0]], *args) for name in (cell.rater, other)
    )
    clusters = prompt[is_headline]
    lengths = [pairs[f"{side}_n_words"].to_numpy() for side in ("chosen", "rejected")]
    longer = (np.sign(lengths[0] - lengths[1])[is_headline] + 1) / 2
    longer = np.full(len(credit), 0.5) if cell.is_symmetric else longer
    both = training_of_difference(training, of_reference)
    half = np.full(len(credit), 0.5)
    return {
        "agreement": (
            jackknife_interval(credit, clusters, training),
            paired_difference(credit, half, clusters, training)[1],
        ),
        "fixed models": (
            jackknife_interval(credit, clusters),
            paired_difference(credit, half, clusters)[1],
        ),
        "minus longer": paired_difference(credit, longer, clusters, training),
        f"minus {other}": paired_difference(credit, reference, clusters, both),
    }


def measure_fits(cell: Cell, fits: int, repeats: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Of each quantity: its mean and spread, misses of its interval, and p values under 0.05."""
    random = np.random.default_rng(int(digest(seed, 3, *vars(cell).values()), 16))
    with threadpool_limits(1, "blas"):
        rows = [fit_once(cell, repeats, random) for _ in range(fits)]
    found = {}
    for quantity in rows[0]:
        intervals = [row[quantity][0] for row in rows]
        means, lows, highs = np.array([(one.mean, one.low, one.high) for one in intervals]).T
        is_share = quantity in ("agreement", "fixed models")
        truth = float(means.mean()) if cell.signal else 0.5 * is_share
        p_values = np.array([row[quantity][1] for row in rows])
        found[quantity] = {
            "mean": float(means.mean()),
            "sd": float(means.std(ddof=1)),
            "below": float((highs < truth).mean()),
            "above": float((lows > truth).mean()),
            "p_under_0.05": float((p_values < 0.05).mean()),
            "width": float((highs - lows).mean()),
        }
    return found


def print_fits(options: argparse.Namespace) -> None:
    """Simulate the cells of cross-validated raters and print a row per cell and quantity."""
    fits, repeats = options.fits, options.repeats
    heading = ["rater", "prompts", "signal", "symmetric", "quantity", "mean", "sd"]
    heading += ["missed, %", "below, above", "p < 0.05, %", "width"]
    print(f"| {' | '.join(heading)} |\n{'| --- ' * len(heading)}|")
    for key in itertools.product(options.kinds, options.prompts, options.signals, (False, True)):
        for quantity, of in measure_fits(Cell(*key), fits, repeats).items():
            below, above = 100 * of["below"], 100 * of["above"]
            shown = [
                *(f"{of[name]:.3f}" for name in ("mean", "sd")),
                f"{below + above:.1f}",
                f"{below:.1f}, {above:.1f}",
                f"{100 * of['p_under_0.05']:.1f}",
                f"{of['width']:.3f}",
            ]
            print("|", " | ".join([*map(str, key), quantity, *shown]), "|", flush=True)


def main() -> None:
    """Simulate all cells and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--simulations", type=int, default=1_000, help="per cell")
    parser.add_argument("--fits", type=int, help="sets per cell of cross-validated raters")
    parser.add_argument("--repeats", type=int, default=3, help="of the cross-validation")
    parser.add_argument("--prompts", type=int, nargs="+", default=[12, 24, 48, 100])
    parser.add_argument("--signals", type=float, nargs="+", default=[0.0])
    parser.add_argument("--kinds", nargs="+", default=list(RATERS), choices=list(RATERS))
    options = parser.parse_args()
    if options.fits is not None:
        print_fits(options)
        return
    count = options.simulations
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
