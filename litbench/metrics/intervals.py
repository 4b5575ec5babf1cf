"""Confidence intervals for means over pairs, clustered by prompt.

Pairs of one prompt share stories, so they are not independent: a prompt is the unit that is
drawn. `jackknife_interval` is what LitBench reports; `benchmarks/intervals.py` measures the
coverage of the methods here at the cluster sizes of real sets, and is why.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval.

    Attributes:
        mean: the mean over pairs.
        low: lower bound, within the limits of the quantity; NaN when it cannot be told.
        high: upper bound, likewise.
        n: pairs.
        clusters: prompts.
        effective_clusters: see `effective_clusters`.
    """

    mean: float
    low: float
    high: float
    n: int
    clusters: int
    effective_clusters: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def effective_clusters(sizes: np.ndarray) -> float:
    """How many clusters of equal size would be worth these: (sum n)^2 / sum n^2.

    Args:
        sizes: pairs per prompt; shape (clusters,).

    Returns:
        Between 1 and the number of clusters (Kish, 1965, for weights); 0 without clusters.
    """
    total = float(np.sum(sizes))
    return total**2 / float(np.sum(np.square(sizes, dtype=float))) if total else 0.0


def _cluster_sums(values: np.ndarray, clusters: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    _, place = np.unique(np.asarray(clusters, dtype=object).astype(str), return_inverse=True)
    return np.bincount(place, weights=values), np.bincount(place).astype(float)


def jackknife_interval(
    values: np.ndarray,
    clusters: Sequence[Any],
    limits: tuple[float, float] = (0.0, 1.0),
    level: float = LEVEL,
) -> Interval:
    """Cluster jackknife with a t quantile.

    The variance is CV3 (MacKinnon, Nielsen and Webb, 2023, Cluster-robust inference: a guide,
    section 3): (G - 1) / G times the sum over prompts of (mean without the prompt - mean)^2. The
    t quantile has `effective_clusters` - 1 degrees of freedom rather than G - 1, which matters
    when a few prompts hold most pairs. When every pair has the same value the variance says
    nothing; for shares (`limits` 0 and 1, value 0 or 1) an exact binomial interval
    (Clopper-Pearson) with the effective number of prompts as sample size stands in.

    Args:
        values: one number per pair; shape (n,).
        clusters: the prompt of each pair; shape (n,).
        limits: least and greatest value the mean can have.
        level: confidence level.

    Returns:
        The interval; NaN bounds with fewer than two prompts.
    """
    from scipy import stats  # noqa: PLC0415

    n = len(values)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0, 0, 0.0)
    sums, sizes = _cluster_sums(values, clusters)
    count, effective = len(sizes), effective_clusters(sizes)
    mean = float(sums.sum() / n)
    if count < 2:
        return Interval(mean, math.nan, math.nan, n, count, effective)
    without = (sums.sum() - sums) / (n - sizes)
    error = math.sqrt((count - 1) / count * float(np.sum((without - mean) ** 2)))
    if error < 1e-12 and limits == (0.0, 1.0) and mean in (0.0, 1.0):
        tail = (1 - level) / 2
        reach = 1 - tail ** (1 / effective)
        low, high = (1 - reach, 1.0) if mean == 1.0 else (0.0, reach)
        return Interval(mean, low, high, n, count, effective)
    half = float(stats.t.ppf((1 + level) / 2, max(effective - 1, 1.0))) * error
    low, high = max(limits[0], mean - half), min(limits[1], mean + half)
    return Interval(mean, low, high, n, count, effective)


def bootstrap_interval(
    values: np.ndarray,
    clusters: Sequence[Any],
    draws: int = 2_000,
    seed: int = 0,
    level: float = LEVEL,
) -> Interval:
    """Percentile bootstrap over prompts: what many papers report; kept for comparison.

    Args:
        values: one number per pair; shape (n,).
        clusters: the prompt of each pair; shape (n,).
        draws: resamples.
        seed: seeds them.
        level: confidence level.
    """
    sums, sizes = _cluster_sums(values, clusters)
    random = np.random.default_rng(seed)
    picks = random.integers(len(sums), size=(draws, len(sums)))
    means = sums[picks].sum(1) / sizes[picks].sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    mean = float(sums.sum() / sizes.sum())
    effective = effective_clusters(sizes)
    return Interval(mean, float(low), float(high), len(values), len(sums), effective)


def wild_bootstrap_interval(
    values: np.ndarray,
    clusters: Sequence[Any],
    draws: int = 999,
    seed: int = 0,
    level: float = LEVEL,
) -> Interval:
    """Wild cluster bootstrap-t with Rademacher weights (Cameron, Gelbach and Miller, 2008).

    Residual sums of whole prompts change sign together; the quantiles of the resulting t
    statistics replace those of Student's distribution.

    Args:
        values: one number per pair; shape (n,).
        clusters: the prompt of each pair; shape (n,).
        draws: resamples.
        seed: seeds them.
        level: confidence level.
    """
    sums, sizes = _cluster_sums(values, clusters)
    n, count = float(sizes.sum()), len(sizes)
    mean = float(sums.sum() / n)
    residual = sums - mean * sizes
    error = math.sqrt(count / (count - 1) * float(np.sum(residual**2))) / n
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(draws, count))
    moved = signs * residual
    shift = moved.sum(1) / n
    spread = np.sqrt(count / (count - 1) * np.sum((moved - shift[:, None] * sizes) ** 2, 1)) / n
    reach = float(np.quantile(np.abs(shift) / np.maximum(spread, 1e-12), level)) * error
    effective = effective_clusters(sizes)
    return Interval(mean, mean - reach, mean + reach, len(values), count, effective)
