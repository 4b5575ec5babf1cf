"""Comparisons of raters, paired on the same pairs, against a reference chosen in advance."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litbench.metrics.intervals import (
    LEVEL,
    ClusteredMean,
    Interval,
    clustered_mean,
    interval_without_variance,
    jackknife_interval,
)


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


def difference_interval(estimate: ClusteredMean, limit: float = 1.0) -> tuple[Interval, float]:
    """The t interval of a difference, within -limit and limit, and its p value.

    NaN if the error is NaN, or 0 without a limit.
    """
    from scipy import stats  # noqa: PLC0415

    mean, error = estimate.mean, estimate.error
    if math.isnan(error) or (error == 0 and math.isinf(limit)):
        return estimate.interval(math.nan, math.nan), math.nan
    if error == 0:
        p = min(1.0, 2 * (1 + abs(mean)) ** -estimate.effective_clusters)
        return interval_without_variance(estimate, (-limit, limit)), p
    half = float(stats.t.ppf((1 + LEVEL) / 2, estimate.freedom)) * error
    interval = estimate.interval(max(-limit, mean - half), min(limit, mean + half))
    return interval, float(2 * stats.t.sf(abs(mean) / error, estimate.freedom))


def paired_difference(
    credit: np.ndarray, reference: np.ndarray, clusters: Sequence[Any] | np.ndarray
) -> tuple[Interval, float]:
    """Mean paired difference with a cluster-jackknife t interval and its two-sided p value.

    Args:
        credit: per-pair credit of the rater, 0 to 1; shape (n,).
        reference: per-pair credit of the reference; shape (n,).
        clusters: prompt of each pair; shape (n,).
    """
    return difference_interval(clustered_mean(credit - reference, clusters))


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
    known = ~np.isnan(values)
    values[known] = stats.false_discovery_control(values[known])
    adjusted: list[float] = values.tolist()
    return adjusted


def compare_all(
    credits: Mapping[str, np.ndarray],
    reference: str | None,
    clusters: Sequence[Any] | np.ndarray,
) -> list[Comparison]:
    """Compare every rater with the reference, with Holm's correction for all comparisons.

    Args:
        credits: by rater, the credit of each pair; shape (n,) each.
        reference: a key of `credits`; None compares every two raters.
        clusters: prompt of each pair; shape (n,).
    """
    pairs = list(itertools.combinations(credits, 2))
    if reference is not None:
        pairs = [(name, reference) for name in credits if name != reference]
    results = [paired_difference(credits[one], credits[other], clusters) for one, other in pairs]
    adjusted = holm([p for _, p in results])
    return [
        Comparison(one, other, interval, p, p_holm)
        for (one, other), (interval, p), p_holm in zip(pairs, results, adjusted, strict=True)
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
    credits: Mapping[str, Mapping[str, np.ndarray]], clusters: Sequence[Any] | np.ndarray
) -> list[Change]:
    """Compare every rater of the first evaluation with its results in the other evaluations.

    `credits` has by evaluation and rater the credit of each pair, shape (n,), for the same pairs in
    the same order; `clusters` has their prompts.
    """
    reference, *others = credits
    compared = [
        (rater, other, paired_difference(credits[other][rater], before, clusters))
        for rater, before in credits[reference].items()
        for other in others
        if rater in credits[other]
    ]
    changes = []
    for (rater, other, result), p_holm in zip(
        compared, holm([p for _, _, (_, p) in compared]), strict=True
    ):
        before, after = (
            jackknife_interval(credits[name][rater], clusters) for name in (reference, other)
        )
        changes.append(Change(rater, other, reference, before, after, *result, p_holm))
    return changes
