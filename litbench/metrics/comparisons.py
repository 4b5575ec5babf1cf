"""Comparisons of raters, paired on the same pairs, against a reference chosen in advance."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from litbench.metrics.intervals import (
    LEVEL,
    ClusteredMean,
    Interval,
    Training,
    clustered_mean,
    effective_clusters,
    interval_without_variance,
    jackknife_interval,
    training_of_difference,
)

Trainings = Mapping[str, Training | None]


@dataclass(frozen=True)
class Comparison:
    """A rater compared with the reference.

    Attributes:
        difference: agreement of the rater minus that of the reference.
        p_value: two-sided p value of no difference; below 0.05 where the interval excludes zero.
        p_holm: `p_value` after Holm's correction for all comparisons made together.
    """

    rater: str
    reference: str
    difference: Interval
    p_value: float
    p_holm: float

    @property
    def is_clear(self) -> bool:
        """Whether the difference is significant at the 5 % level after correction."""
        return self.p_holm < 0.05


def difference_interval(
    estimate: ClusteredMean, limit: float = 1.0, level: float = LEVEL
) -> tuple[Interval, float]:
    """The t interval of a difference, within -limit and limit, and its p value.

    NaN if the error is NaN, or 0 without a limit.
    """
    from scipy import stats  # noqa: PLC0415

    mean, error = estimate.mean, estimate.error
    if math.isnan(error) or (error == 0 and math.isinf(limit)):
        return estimate.interval(math.nan, math.nan), math.nan
    if error == 0:
        p = min(1.0, 2 * (1 + abs(mean)) ** -estimate.effective_clusters)
        return interval_without_variance(estimate, (-limit, limit), level), p
    half = float(stats.t.ppf((1 + level) / 2, estimate.freedom)) * error
    interval = estimate.interval(max(-limit, mean - half), min(limit, mean + half))
    return interval, float(2 * stats.t.sf(abs(mean) / error, estimate.freedom))


def interval_p(interval: Interval, null: float = 0.0, *, is_share: bool = False) -> float:
    """The two-sided p value of a null value by a 95 % t interval; NaN without bounds.

    Args:
        interval: of a difference, or of a share, whose interval is symmetric on the logit scale.
        null: the value to test.
        is_share: whether the interval is that of a share.
    """
    from scipy import special, stats  # noqa: PLC0415

    ends = np.array([interval.mean, null, interval.low if null < interval.mean else interval.high])
    mean, tested, bound = special.logit(ends) if is_share and 0 < ends[0] < 1 else ends
    if mean == bound:
        return 0.0 if mean != tested else 1.0
    freedom = max(interval.effective_clusters - 1, 1.0)
    t = stats.t.ppf((1 + LEVEL) / 2, freedom) * (mean - tested) / (mean - bound)
    return float(2 * stats.t.sf(abs(t), freedom))


def paired_difference(
    credit: np.ndarray,
    reference: np.ndarray,
    clusters: Sequence[Any] | np.ndarray,
    training: Training | None = None,
) -> tuple[Interval, float]:
    """Mean paired difference with a cluster-jackknife t interval and its two-sided p value.

    Args:
        credit: per-pair credit of the rater, 0 to 1; shape (n,).
        reference: per-pair credit of the reference; shape (n,).
        clusters: prompt of each pair; shape (n,).
        training: of the difference; see `litbench.metrics.intervals.clustered_mean`.
    """
    return difference_interval(clustered_mean(credit - reference, clusters, training))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for several comparisons (Holm, 1979); NaN stays NaN and is not counted."""
    order = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    adjusted = [math.nan] * len(p_values)
    running = 0.0
    for rank, (p, index) in enumerate(order):
        running = max(running, min(1.0, p * (len(order) - rank)))
        adjusted[index] = running
    return adjusted


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for the false discovery rate (Benjamini and Hochberg, 1995, step-up rule).

    NaN stays NaN and is not counted.
    """
    from scipy import stats  # noqa: PLC0415

    values = np.array(p_values, dtype=float)
    is_known = ~np.isnan(values)
    values[is_known] = stats.false_discovery_control(values[is_known])
    adjusted: list[float] = values.tolist()
    return adjusted


def compare_all(
    credits: Mapping[str, np.ndarray],
    reference: str | None,
    clusters: Sequence[Any] | np.ndarray,
    trainings: Trainings = MappingProxyType({}),
) -> list[Comparison]:
    """Compare every rater with the reference, with Holm's correction for all comparisons.

    Args:
        credits: by rater, the credit of each pair; shape (n,) each.
        reference: a key of `credits`; None compares every two raters.
        clusters: prompt of each pair; shape (n,).
        trainings: by rater, the training of its credits; raters without one are fixed.
    """
    pairs = list(itertools.combinations(credits, 2))
    if reference is not None:
        pairs = [(name, reference) for name in credits if name != reference]
    results = [
        paired_difference(
            credits[rater],
            credits[other],
            clusters,
            training_of_difference(trainings.get(rater), trainings.get(other)),
        )
        for rater, other in pairs
    ]
    adjusted = holm([p for _, p in results])
    return [
        Comparison(rater, other, interval, p, p_holm)
        for (rater, other), (interval, p), p_holm in zip(pairs, results, adjusted, strict=True)
    ]


@dataclass(frozen=True)
class Change:
    """The change of a rater's agreement between two evaluations of the same pairs.

    `before` is the rater's agreement in the evaluation `reference`, `difference` is paired, and
    `p_holm` is corrected for all changes computed together.
    """

    rater: str
    evaluation: str
    reference: str
    before: Interval
    after: Interval
    difference: Interval
    p_value: float
    p_holm: float


def compare_evaluations(
    credits: Mapping[str, Mapping[str, np.ndarray]],
    clusters: Sequence[Any] | np.ndarray,
    trainings: Mapping[str, Trainings],
) -> list[Change]:
    """Compare every rater of the first evaluation with its results in the other evaluations.

    `credits` has by evaluation and rater the credit of each pair, shape (n,), for the same pairs in
    the same order, and `trainings` has their trainings; `clusters` has the prompts of the pairs.
    """
    reference, *others = credits

    def difference(rater: str, other: str) -> tuple[Interval, float]:
        after, before = credits[other][rater], credits[reference][rater]
        trained = (trainings[name].get(rater) for name in (other, reference))
        return paired_difference(after, before, clusters, training_of_difference(*trained))

    compared = [
        (rater, other, difference(rater, other))
        for rater in credits[reference]
        for other in others
        if rater in credits[other]
    ]
    changes = []
    for (rater, other, result), p_holm in zip(
        compared, holm([p for _, _, (_, p) in compared]), strict=True
    ):
        before, after = (
            jackknife_interval(credits[name][rater], clusters, trainings[name].get(rater))
            for name in (reference, other)
        )
        changes.append(Change(rater, other, reference, before, after, *result, p_holm))
    return changes


def stratified_difference(
    credit: np.ndarray, present: np.ndarray, strata: np.ndarray, clusters: np.ndarray
) -> ClusteredMean:
    """Credit of the rows with a feature minus credit of those without it, within strata.

    The differences of the strata are averaged with weights n1 n0 / (n1 + n0) (Cochran, 1954), so
    that a better rater which has the feature more often does not confound the difference. The
    standard error is the delete-one-prompt jackknife (CV3) of this average. The degrees of freedom
    follow from the effective number of prompts of the rarer side.

    If all rows of a side are correct, or all wrong, the variance of that side is computed from
    its effective number of prompts plus one correct and one wrong prompt (Agresti and Caffo, 2000);
    docs/results/coverage.md has the coverage with and without this.

    Args:
        credit: credit of each row, 0 to 1; shape (n,).
        present: whether the row has the feature; shape (n,).
        strata: group of each row, such as its rater; shape (n,).
        clusters: prompt of each row; shape (n,).

    Returns:
        The difference. It is NaN if no stratum has rows with and without the feature; its error
        is NaN if no stratum has both after leaving out some prompt.
    """
    _, stratum = np.unique(strata, return_inverse=True)
    _, cluster = np.unique(clusters, return_inverse=True)
    shape = (int(cluster.max()) + 1, int(stratum.max()) + 1)
    has = np.asarray(present, dtype=float)
    # Per prompt and stratum: rows with the feature and without it, and their credit.
    counts = np.zeros((4, *shape))
    for total, weights in zip(
        counts, (has, 1 - has, has * credit, (1 - has) * credit), strict=True
    ):
        np.add.at(total, (cluster, stratum), weights)

    def difference(n1: np.ndarray, n0: np.ndarray, s1: np.ndarray, s0: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            within = np.where((n1 > 0) & (n0 > 0), s1 / n1 - s0 / n0, 0.0)
            weight = np.nan_to_num(n1 * n0 / (n1 + n0))
            mean: np.ndarray = (weight * within).sum(axis=-1) / weight.sum(axis=-1)
        return mean

    sums = counts.sum(axis=1)
    mean = float(difference(*sums))
    varied = (sums[0] > 0) & (sums[1] > 0)
    sizes = counts[:2, :, varied].sum(axis=2)
    effective = min(effective_clusters(size) for size in sizes)
    n, count = int(sizes.sum()), int(np.count_nonzero(sizes.sum(axis=0)))
    if math.isnan(mean) or count < 2:
        return ClusteredMean(mean, math.nan, n, count, effective)
    # Prompts that occur only in strata without variation do not matter and are not counted.
    without = difference(*(sums[:, None] - counts))
    variance = (count - 1) / count * float(np.sum((without - mean) ** 2))
    for size, right in zip(sizes, sums[2:], strict=True):
        if float(right[varied].sum() / size.sum()) in (0.0, 1.0):
            worth = effective_clusters(size) + 2
            variance += 1 / worth * (1 - 1 / worth) / worth
    # A variance of zero is not exactly zero after rounding.
    error = 0.0 if variance <= 1e-24 else math.sqrt(variance)
    return ClusteredMean(mean, error, n, count, effective)
