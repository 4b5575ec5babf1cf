"""Measure the coverage of 95 % intervals of agreement, for several methods.

    python benchmarks/intervals.py

Simulates raters of known agreement. Prompts are the clusters: the agreement of each is drawn from a
beta distribution with the given intra-cluster correlation. Sizes follow small real sets. The false
alarm rate is how often two equally good raters differ significantly. Prints a table and, as the
last line, one JSON object. One CPU core, about two minutes.

`--fits N` simulates cross-validated raters instead, N sets of stories per cell: linear models of 12
features or of 200 words, whose folds are trained again without each prompt, and a stand-in of a
reward model, whose intervals have twice the variance. Stories are preferred by a linear score plus
noise, or at random. A row tells how often the 95 % interval misses the truth (1/2 at random, else
the mean over the sets), below and above it, and how often p is under 0.05: of the agreement with
three variances, of that on one fold, and of differences to the longer story (1/2 after symmetry)
and between raters. `--kinds`, `--prompts`, `--signals` and `--repeats` choose raters and cells.

    python benchmarks/intervals.py --fits 500 > noise.csv
    python benchmarks/intervals.py --fits 300 --signals 0.5 1 2

A second table has pairs of texts by 8, 14 or 30 writers for 12 prompts, graded by a judge and
scored by raters: each has a level for every writer and for every writer and prompt. Clustered by
prompt and writer, as reported, and by prompt alone.
"""

import argparse
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy import sparse, special, stats
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from litbench.data.curation.rules import buckets_for
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
from litbench.models.linear_preference import leave_out_each

if TYPE_CHECKING:
    from litbench.writers.metrics import PairCredits

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
) -> "tuple[PairCredits, PairCredits]":
    """Credits of a rater, and of one whose levels are independent of the judge's."""
    # The other measurements need no extension.
    from litbench.writers.metrics import pair_credits  # noqa: PLC0415

    prompts, chapters = 12, 4
    levels = random.normal(size=(3, writers))
    levels[1] = correlation * levels[0] + math.sqrt(1 - correlation**2) * levels[1]
    noise = random.normal(size=(3, writers, prompts, 1))
    noise = noise + random.normal(size=(3, writers, prompts, chapters))
    values = math.sqrt(between) * levels[:, :, None, None] + math.sqrt((1 - between) / 2) * noise
    writer, prompt, chapter = (index.ravel().tolist() for index in np.indices(values.shape[1:]))
    groups = [(p, c) for p, c in zip(prompt, chapter, strict=True)]
    grades, *rewards = values.reshape(3, -1).tolist()
    first, second = (
        pair_credits(grades, reward, groups, list(map(str, prompt)), list(map(str, writer)))
        for reward in rewards
    )
    return first, second


def measure_writers(
    writers: int, correlation: float, between: float, simulations: int, seed: int
) -> dict[str, float]:
    """Coverage of the true agreement and of the true difference, the means over simulations."""
    random = np.random.default_rng(int(digest(seed, 2, writers, correlation, between), 16))
    results: dict[str, list[tuple[float, float, float]]] = {
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
        for rows, interval in zip(results.values(), intervals, strict=True):
            rows.append((interval.mean, interval.low, interval.high))
    coverage = {}
    for method, rows in results.items():
        mean, low, high = np.array(rows).T
        coverage[method] = float(np.mean((low <= mean.mean()) & (mean.mean() <= high)))
    return coverage


# Cross-validated raters: columns of the stories, inverse strength of the penalty, and share of the
# training prompts.
RATERS = {
    "features": ("style", 0.1, 1.0),
    "features, half of the prompts": ("style", 0.1, 0.5),
    "bag of words": ("words", 1.0, 1.0),
    "stand-in of a reward model": ("embedding", 1.0, 1.0),
}
_STORIES, _WORDS_PER_STORY = 7, 60
# One query balances the training pairs of this many sets.
_SETS_AT_ONCE = 25


@dataclass(frozen=True)
class Cell:
    """A kind of sets; `signal` is the size of the score relative to its noise."""

    prompts: int
    signal: float
    is_symmetric: bool


@dataclass
class SimulatedSet:
    """Pairs of 7 stories per prompt, of which each is later in half of its pairs.

    Attributes:
        lengths: ids of the pairs, and the number of words of both stories.
        prompt: prompt of each pair; shape (n,).
        differences: by columns of RATERS, those of the chosen minus those of the rejected story.
        folds: fold of each pair in each repeat; shape (repeats, n).
        judged: the headline pairs.
        trainings: by share of the training prompts, repeat and fold, the pairs to train on.
    """

    lengths: pa.Table
    prompt: np.ndarray
    differences: dict[str, np.ndarray]
    folds: np.ndarray
    judged: np.ndarray
    trainings: dict[tuple[float, int, int], np.ndarray]


def draw_set(cell: Cell, repeats: int, random: np.random.Generator) -> SimulatedSet:
    """Draw a set and its folds, without length symmetry."""
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
    differences = {
        name: values[prompt, chosen] - values[prompt, rejected]
        for name, values in (("style", style), ("words", words), ("embedding", embedding))
    }
    names = [f"{cell.prompts} {number} {random.integers(1 << 60)}" for number in range(len(prompt))]
    of_side = {"chosen": chosen, "rejected": rejected}
    table = {f"{side}_n_words": lengths[prompt, story] for side, story in of_side.items()}
    count = min(max(cell.prompts // 15, 3), 5)
    folds = np.array([(random.permutation(cell.prompts) % count)[prompt] for _ in range(repeats)])
    drawn = np.isin(prompt, random.permutation(cell.prompts)[: cell.prompts // 2])
    trainings = {
        (share, repeat, fold): np.flatnonzero((folds[repeat] != fold) & (drawn | (share == 1.0)))
        for share in (1.0, 0.5)
        for repeat, fold in itertools.product(range(repeats), range(count))
    }
    everything = np.arange(len(prompt))
    lengths_table = pa.table({"pair_id": names, **table})
    return SimulatedSet(lengths_table, prompt, differences, folds, everything, trainings)


def balance_sets(sets: Sequence[SimulatedSet]) -> None:
    """Prune judged and training pairs by length symmetry, as `litbench fit` does in each set."""
    pairs = pa.concat_tables([drawn.lengths for drawn in sets])
    offsets = np.cumsum([0, *(len(drawn.prompt) for drawn in sets)])
    jobs: dict[int, list[tuple[int, Any, np.ndarray]]] = {}
    for number, drawn in enumerate(sets):
        least = min(map(len, drawn.trainings.values()))
        jobs.setdefault(buckets_for(least), []).extend(
            (number, key, rows) for key, rows in drawn.trainings.items()
        )
        jobs.setdefault(buckets_for(len(drawn.judged)), []).append((number, None, drawn.judged))
    for group in jobs.values():
        rows = {index: row + offsets[number] for index, (number, _, row) in enumerate(group)}
        balanced = balance_lengths(pairs, rows, 0)
        for index, (number, key, _) in enumerate(group):
            left = balanced[index] - offsets[number]
            if key is None:
                sets[number].judged = left
            else:
                sets[number].trainings[key] = left


def fit_chosen(differences: np.ndarray, strength: float) -> np.ndarray:
    """The coefficients of `logistic` for rows that are all chosen, by Newton's method.

    Without scikit-learn's checks and its copy of the rows, a small fit takes a fifth of the time.
    """
    coefficients = np.zeros(differences.shape[1])
    for _ in range(50):
        wrong = special.expit(-differences @ coefficients)
        hessian = differences.T @ ((wrong * (1 - wrong))[:, None] * differences)
        hessian += np.eye(len(coefficients)) / strength
        step = np.linalg.solve(hessian, coefficients / strength - differences.T @ wrong)
        coefficients -= step
        if np.abs(step).max() < 1e-9:
            return coefficients
    raise ArithmeticError("50 steps were too few")


def crossvalidate(rater: str, drawn: SimulatedSet) -> tuple[np.ndarray, np.ndarray, Training]:
    """Credits of a rater of RATERS on the judged pairs, those of the first repeat, and training."""
    columns, strength, share = RATERS[rater]
    differences = drawn.differences[columns]
    scaled = differences / np.sqrt(np.square(differences).mean(0))
    repeats, n = drawn.folds.shape
    is_judged = np.zeros(n, bool)
    is_judged[drawn.judged] = True
    credit, of_first = np.zeros((2, n))
    changes = np.zeros((n, int(drawn.prompt.max()) + 1))
    for (of_share, repeat, fold), train in drawn.trainings.items():
        if of_share != share:
            continue
        test = np.flatnonzero((drawn.folds[repeat] == fold) & is_judged)
        chosen = np.ones(len(train), bool)
        fitted = fit_chosen(scaled[train], strength)
        right = (np.sign(scaled[test] @ fitted) + 1) / 2
        credit[test] += right / repeats
        if repeat == 0:
            of_first[test] = right
        if not rater.startswith("stand-in"):
            left_out, without = leave_out_each(
                scaled[train], chosen, drawn.prompt[train], strength, fitted
            )
            flipped = (np.sign(scaled[test] @ without.T) + 1) / 2 - right[:, None]
            changes[np.ix_(test, np.array(left_out, int))] += flipped / repeats
    if rater.startswith("stand-in"):
        training = Training()
    else:
        prompts = tuple(range(changes.shape[1]))
        training = Training(prompts, sparse.csr_array(changes[drawn.judged]))
    return credit[drawn.judged], of_first[drawn.judged], training


def judge_set(
    cell: Cell, raters: Sequence[str], drawn: SimulatedSet
) -> dict[tuple[str, str], tuple[Interval, float]]:
    """Cross-validate raters as `litbench fit` does; by rater and quantity, interval and p value."""
    raters_credits = {rater: crossvalidate(rater, drawn) for rater in raters}
    clusters = drawn.prompt[drawn.judged]
    lengths = [drawn.lengths[f"{side}_n_words"].to_numpy() for side in ("chosen", "rejected")]
    half = np.full(len(clusters), 0.5)
    longer = half if cell.is_symmetric else (np.sign(lengths[0] - lengths[1]) + 1) / 2
    everything, fold = np.ones(len(clusters), bool), drawn.folds[0][drawn.judged] == 0
    results = {}
    for rater, (credit, of_first, training) in raters_credits.items():
        for quantity, values, rows, trained in (
            ("agreement", credit, everything, training),
            ("fixed models", credit, everything, None),
            ("twice the variance", credit, everything, Training()),
            # As in an ablation or on a test set: models that no judged prompt trained.
            ("one fold", of_first, fold, None),
        ):
            args = clusters[rows], trained
            results[rater, quantity] = (
                jackknife_interval(values[rows], *args),
                paired_difference(values[rows], half[rows], *args)[1],
            )
        results[rater, "minus longer"] = paired_difference(credit, longer, clusters, training)
    for first, second in itertools.combinations(raters, 2):
        (credit, _, training), (other, _, of_other) = raters_credits[first], raters_credits[second]
        both = training_of_difference(training, of_other)
        results[first, f"minus {second}"] = paired_difference(credit, other, clusters, both)
    return results


def measure_fits(
    cell: Cell, raters: Sequence[str], fits: int, repeats: int
) -> dict[tuple[str, str], dict[str, float]]:
    """Of each quantity: its mean and spread, misses of its interval, and p values under 0.05."""
    random = np.random.default_rng(int(digest(0, 3, *vars(cell).values()), 16))
    rows = []
    with threadpool_limits(1, "blas"):
        for start in range(0, fits, _SETS_AT_ONCE):
            count = min(_SETS_AT_ONCE, fits - start)
            sets = [draw_set(cell, repeats, random) for _ in range(count)]
            if cell.is_symmetric:
                balance_sets(sets)
            rows += [judge_set(cell, raters, drawn) for drawn in sets]
    figures_by_name = {}
    for key in rows[0]:
        intervals = [row[key][0] for row in rows]
        means, lows, highs = np.array(
            [(interval.mean, interval.low, interval.high) for interval in intervals]
        ).T
        is_share = not key[1].startswith("minus")
        truth = float(means.mean()) if cell.signal else 0.5 * is_share
        p_values = np.array([row[key][1] for row in rows])
        figures_by_name[key] = {
            "mean": float(means.mean()),
            "sd": float(means.std(ddof=1)),
            "below": float((highs < truth).mean()),
            "above": float((lows > truth).mean()),
            "p_under_0.05": float((p_values < 0.05).mean()),
            "width": float((highs - lows).mean()),
        }
    return figures_by_name


def print_fits(options: argparse.Namespace) -> None:
    """Simulate the cells of cross-validated raters and print a row per cell and quantity."""
    fits, repeats = options.fits, options.repeats
    print("rater,prompts,signal,symmetric,quantity,sets,repeats,mean,sd,missed_percent,", end="")
    print("below_percent,above_percent,p_under_0.05_percent,width")
    for key in itertools.product(options.prompts, options.signals, (False, True)):
        figures = measure_fits(Cell(*key), options.kinds, fits, repeats)
        for (rater, quantity), row in figures.items():
            below, above = 100 * row["below"], 100 * row["above"]
            values = [
                *(f"{row[name]:.3f}" for name in ("mean", "sd")),
                *(f"{percent:.1f}" for percent in (below + above, below, above)),
                f"{100 * row['p_under_0.05']:.1f}",
                f"{row['width']:.3f}",
            ]
            columns = [f'"{rater}"', *map(str, key), f'"{quantity}"', str(fits), str(repeats)]
            print(",".join([*columns, *values]), flush=True)


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
    for panel, rates in zip(PANELS, panels, strict=True):
        print("|", " | ".join([*map(str, panel), *(f"{100 * c:.1f}" for c in rates.values())]), "|")
    writers = {method: min(panel[method] for panel in panels) for method in panels[0]}
    results = {"coverage": summary, "false_alarms": false_alarms, "lowest_by_writer": writers}
    print(json.dumps({"simulations": count, **results}))


if __name__ == "__main__":
    main()
