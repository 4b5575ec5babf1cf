"""Confidence intervals for means over pairs, clustered by prompt.

Pairs of one prompt share stories, so they are not independent: the sampling unit is the prompt.
LitBench reports `jackknife_interval`; `benchmarks/intervals.py` compares its coverage with other
methods (docs/statistics.md). Choices also share readers, and pairs of texts share writers:
`two_way_interval` clusters by prompt and by reader or writer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

LEVEL = 0.95
# Variance of a mean over pairs that cross-validated models judge, relative to fixed models,
# if training again without each prompt takes too long.
TRAINED_VARIANCE = 2.0


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval.

    Attributes:
        mean: the mean over pairs.
        low: lower bound, within the range of the quantity; NaN if it cannot be estimated.
        high: upper bound; see `low`.
        n: number of pairs.
        clusters: number of prompts.
        effective_clusters: see `effective_clusters`.
    """

    mean: float
    low: float
    high: float
    n: int
    clusters: int
    effective_clusters: float

    @property
    def is_bounded(self) -> bool:
        """Whether the bounds could be estimated."""
        return math.isfinite(self.low)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Interval":
        """The interval of JSON values, of which unknown ones are null."""
        numbers: dict[str, Any] = {
            key: math.nan if value is None else value for key, value in values.items()
        }
        return cls(**numbers)

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return "–"
        # Adding 0.0 removes the sign of a negative zero.
        mean, low, high = (
            f"{round(value, 3) + 0.0:.3f}" for value in (self.mean, self.low, self.high)
        )
        return f"{mean} [{low}, {high}]" if self.is_bounded else f"{mean} (one prompt: no interval)"


@dataclass(frozen=True)
class ClusteredMean:
    """A mean over pairs and its standard error.

    Attributes:
        mean: the mean over pairs; NaN without pairs.
        error: standard error by the cluster jackknife; NaN if a prompt has all pairs, and exactly 0
            if leaving out a prompt never changes the mean.
        n: number of pairs.
        clusters: number of prompts.
        effective_clusters: see `effective_clusters`.
    """

    mean: float
    error: float
    n: int
    clusters: int
    effective_clusters: float

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the t distribution: `effective_clusters` - 1, at least 1."""
        return max(self.effective_clusters - 1, 1.0)

    def interval(self, low: float, high: float) -> Interval:
        return Interval(self.mean, low, high, self.n, self.clusters, self.effective_clusters)


@dataclass(frozen=True)
class Training:
    """The variance that cross-validated models add to a mean over the pairs that they judge.

    Two prompts of different folds train the models that judge each other, so their verdicts are
    correlated. Without signal, the sum of these correlations is a degenerate U-statistic of order
    two, and its variance is twice that of the cluster jackknife with fixed models.

    Attributes:
        prompts: prompts that the models were trained on; shape (k,).
        changes: change of each value if the models are trained without a prompt, averaged over
            repeats; sparse array of shape (n, k). None if unknown: see `TRAINED_VARIANCE`.
    """

    prompts: tuple[Any, ...] = ()
    changes: Any = None

    def take(self, rows: np.ndarray | slice, factors: np.ndarray | float = 1.0) -> "Training":
        """The training of some rows, given as numbers or a mask, with their values multiplied."""
        if self.changes is None:
            return self
        factors = np.asarray(factors)[..., None]
        return replace(self, changes=self.changes[rows].multiply(factors).tocsr())

    def variance(self, plain: float, names: np.ndarray, shifts: np.ndarray, left: Any) -> float:
        """The variance of a mean over pairs.

        With J the cluster jackknife whose models are trained again without the prompt, it is
        plain + (J - plain) / 3. Of a component of first order of the mean (Efron and Stein, 1981,
        The jackknife estimate of variance), plain and J both have its variance; of the component
        of second order without signal, plain has half of its variance and J twice.

        Args:
            plain: the jackknife with fixed models.
            names: the clusters; shape (clusters,).
            shifts: the mean without each cluster minus the mean; shape (clusters,).
            left: number of pairs without each cluster; shape (clusters,).
        """
        if self.changes is None:
            return TRAINED_VARIANCE * plain
        rows = {
            name: (shift, n) for name, shift, n in zip(names.tolist(), shifts, left, strict=True)
        }
        everything = (0.0, self.changes.shape[0])
        totals = dict(zip(self.prompts, np.asarray(self.changes.sum(axis=0)).ravel(), strict=True))
        retrained = []
        for prompt in {*rows, *totals}:
            shift, n = rows.get(prompt, everything)
            retrained.append(shift + totals.get(prompt, 0.0) / n)
        count = len(retrained)
        jackknife = (count - 1) / count * float(np.sum(np.square(retrained)))
        return plain + max(jackknife - plain, 0.0) / 3


def training_of_difference(first: Training | None, second: Training | None) -> Training | None:
    """The training of the first value of each pair minus the second; None if both are."""
    terms = [(term, sign) for term, sign in ((first, 1), (second, -1)) if term is not None]
    if not terms:
        return None
    if any(term.changes is None for term, _ in terms):
        return Training()
    from scipy import sparse  # noqa: PLC0415

    prompts = tuple(sorted({prompt for term, _ in terms for prompt in term.prompts}))
    column = {prompt: index for index, prompt in enumerate(prompts)}
    changes: Any = 0
    for term, sign in terms:
        entries = term.changes.tocoo()
        columns = np.array([column[prompt] for prompt in term.prompts], int)[entries.col]
        at, shape = (entries.row, columns), (entries.shape[0], len(prompts))
        changes = sparse.csr_array((sign * entries.data, at), shape) + changes
    return Training(prompts, changes)


def effective_clusters(sizes: np.ndarray) -> float:
    """Effective number of clusters of equal size: (sum n)^2 / sum n^2.

    Args:
        sizes: pairs per prompt; shape (clusters,).

    Returns:
        Between 1 and the number of clusters (Kish, 1965, for weights); 0 without clusters.
    """
    total = float(np.sum(sizes))
    return total**2 / float(np.sum(np.square(sizes, dtype=float))) if total else 0.0


def clustered_mean(
    values: np.ndarray, clusters: Sequence[Any] | np.ndarray, training: Training | None = None
) -> ClusteredMean:
    """Mean over pairs with its cluster-jackknife standard error.

    The variance is CV3 (MacKinnon, Nielsen and Webb, 2023, Cluster-robust inference: A guide to
    empirical practice): (G - 1) / G times the sum over the G prompts of (mean without the
    prompt - mean)^2.

    A pair may belong to several clusters, as a pair of texts does to both of their writers: it is
    left out with each of them, as in the jackknife of a U-statistic.

    Args:
        values: one number per pair; shape (n,).
        clusters: the prompt of each pair, shape (n,); or its clusters, shape (n, clusters per
            pair), where a cluster that is named twice counts once.
        training: of values whose models were trained on other prompts among the clusters; None if
            no model was, as for a held-out test set or a judge.
    """
    n = len(values)
    if n == 0:
        return ClusteredMean(math.nan, math.nan, 0, 0, 0.0)
    names, numbers = np.unique(np.asarray(clusters), return_inverse=True)
    of_pair = np.sort(numbers.reshape(n, -1), axis=1)
    # A pair of two texts by one writer belongs to that writer once.
    is_first = np.diff(of_pair, axis=1, prepend=-1) != 0
    pair, _ = np.nonzero(is_first)
    cluster = of_pair[is_first]
    sums, sizes = np.bincount(cluster, values[pair]), np.bincount(cluster).astype(float)
    count, effective = len(sizes), effective_clusters(sizes)
    total = float(np.sum(values))
    mean = total / n
    if sizes.max() == n:
        return ClusteredMean(mean, math.nan, n, count, effective)
    shifts = (total - sums) / (n - sizes) - mean
    variance = (count - 1) / count * float(np.sum(shifts**2))
    if training is not None:
        variance = training.variance(variance, names, shifts, n - sizes)
    error = math.sqrt(variance)
    # A variance of zero is not exactly zero after rounding.
    return ClusteredMean(mean, error if error > 1e-12 else 0.0, n, count, effective)


def interval_without_variance(
    estimate: ClusteredMean, limits: tuple[float, float], level: float = LEVEL
) -> Interval:
    """Interval of a mean that is the same in every prompt, so that its estimated variance is zero.

    None of `effective_clusters` prompts had a different mean. By the exact binomial bound (Clopper
    and Pearson, 1934), the share of prompts with a different mean is at most
    1 - (alpha / 2)^(1 / effective); their mean may be anywhere within the limits, the smallest and
    the largest possible mean.
    """
    unseen = 1 - ((1 - level) / 2) ** (1 / estimate.effective_clusters)
    mean = estimate.mean
    return estimate.interval(mean - unseen * (mean - limits[0]), mean + unseen * (limits[1] - mean))


def jackknife_interval(
    values: np.ndarray,
    clusters: Sequence[Any] | np.ndarray,
    training: Training | None = None,
    level: float = LEVEL,
) -> Interval:
    """Interval of a share: cluster jackknife with a t quantile, on the logit scale.

    The logit, common for shares in surveys (Korn and Graubard, 1998), keeps the bounds between 0
    and 1 and extends the interval towards one half, where an interval on the linear scale covers
    too little when nearly all pairs agree. The t quantile has `effective_clusters` - 1 degrees of
    freedom rather than G - 1, which matters when a few prompts have most of the pairs.

    Args:
        values: one number from 0 to 1 per pair; shape (n,).
        clusters: the prompt of each pair; shape (n,).
        training: see `clustered_mean`.
        level: confidence level.

    Returns:
        The interval; its bounds are NaN with fewer than two prompts.
    """
    return _share_interval(clustered_mean(values, clusters, training), level)


def two_way_mean(
    values: np.ndarray,
    clusters: Sequence[Any] | np.ndarray,
    others: Sequence[Any] | np.ndarray,
) -> ClusteredMean:
    """Mean with its standard error, clustered by prompt and by reader, or by prompt and writers.

    The variance is that by prompt plus that by reader minus that by both together (Cameron, Gelbach
    and Miller, 2011, Robust inference with multiway clustering), each by the cluster jackknife. The
    result can be near 0 or negative by chance, so it is at least half of the last, the variance of
    independent choices. docs/results/coverage.md has the coverage.

    Args:
        values: one number per choice; shape (n,).
        clusters: the prompt of each choice; shape (n,).
        others: the reader of each choice, shape (n,); or both writers of a pair, shape (n, 2), see
            `clustered_mean`.

    Returns:
        The mean; `n` counts choices, `clusters` prompts, and `effective_clusters` is the smaller of
        the two effective numbers. The error is NaN with a single prompt or reader.
    """
    if len(values) == 0:
        return clustered_mean(values, [])
    _, prompt = np.unique(np.asarray(clusters), return_inverse=True)
    names, other = np.unique(np.asarray(others), return_inverse=True)
    other = other.reshape(len(values), -1)
    by_prompt, by_other, by_both = (
        clustered_mean(values, groups)
        for groups in (prompt, other, prompt[:, None] * len(names) + other)
    )
    variance = by_prompt.error**2 + by_other.error**2 - by_both.error**2
    error = math.sqrt(max(variance, by_both.error**2 / 2))
    effective = min(by_prompt.effective_clusters, by_other.effective_clusters)
    return replace(by_prompt, error=error, effective_clusters=effective)


def two_way_interval(
    values: np.ndarray,
    clusters: Sequence[Any] | np.ndarray,
    others: Sequence[Any] | np.ndarray,
) -> Interval:
    """Interval of a share, clustered two ways; see `two_way_mean` and `jackknife_interval`."""
    return _share_interval(two_way_mean(values, clusters, others))


def two_way_mean_interval(
    values: np.ndarray,
    clusters: Sequence[Any] | np.ndarray,
    others: Sequence[Any] | np.ndarray,
) -> Interval:
    """The t interval of an unbounded mean, clustered two ways; see `two_way_mean`."""
    return _mean_interval(two_way_mean(values, clusters, others))


def _t_quantile(freedom: float, level: float = LEVEL) -> float:
    """The quantile of the t distribution that bounds an interval."""
    # As scipy.stats.t.ppf, whose import takes 50 MB.
    from scipy import special  # noqa: PLC0415

    return float(special.stdtrit(freedom, (1 + level) / 2))


def _share_interval(estimate: ClusteredMean, level: float = LEVEL) -> Interval:
    """The t interval of a share on the logit scale."""
    from scipy import special  # noqa: PLC0415

    if math.isnan(estimate.error):
        return estimate.interval(math.nan, math.nan)
    mean = estimate.mean
    # Training may give a mean of 0 or 1 an error, but the logit of such a mean is infinite.
    if estimate.error == 0 or mean in (0, 1):
        return interval_without_variance(estimate, (0.0, 1.0), level)
    half = _t_quantile(estimate.freedom, level) * estimate.error / (mean * (1 - mean))
    low, high = special.expit(special.logit(mean) + np.array([-half, half]))
    return estimate.interval(float(low), float(high))


def ratio_interval(
    above: np.ndarray,
    below: np.ndarray,
    clusters: Sequence[Any] | np.ndarray,
    training: Training | None = None,
) -> Interval:
    """Interval of a ratio of two means of the same rows, by Fieller's theorem (1954).

    Unlike the delta method's, it is valid where the mean below is small; its bounds are
    NaN where the mean below is not significantly different from zero.

    Args:
        above: shape (n,).
        below: shape (n,).
        clusters: the prompt of each row; shape (n,).
        training: of `above`, see `clustered_mean`.
    """
    first, second = clustered_mean(above, clusters, training), clustered_mean(below, clusters)
    ratio = first.mean / second.mean if second.mean else math.nan
    # The variance of a sum has the covariance in it.
    both = clustered_mean(above + below, clusters, training).error ** 2
    covariance = (both - first.error**2 - second.error**2) / 2
    t = _t_quantile(second.freedom)
    a = second.mean**2 - t**2 * second.error**2
    b = first.mean * second.mean - t**2 * covariance
    c = first.mean**2 - t**2 * first.error**2
    estimate = replace(first, mean=ratio)
    if not a > 0:
        return estimate.interval(math.nan, math.nan)
    half = math.sqrt(max(b**2 - a * c, 0.0))
    return estimate.interval((b - half) / a, (b + half) / a)


def mean_interval(values: np.ndarray, clusters: Sequence[Any] | np.ndarray) -> Interval:
    """The t interval of an unbounded mean; its bounds are NaN with fewer than two clusters.

    `values` and `clusters` have shape (n,).
    """
    return _mean_interval(clustered_mean(values, clusters))


def _mean_interval(estimate: ClusteredMean) -> Interval:
    """The t interval of an unbounded mean."""
    half = _t_quantile(estimate.freedom) * estimate.error
    return estimate.interval(estimate.mean - half, estimate.mean + half)
