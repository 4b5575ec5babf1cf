"""Comparisons of raters: paired on the same pairs, against a reference named beforehand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litbench.metrics.intervals import Interval, jackknife_interval


@dataclass(frozen=True)
class Comparison:
    """A rater against the reference.

    Attributes:
        rater: name.
        reference: name.
        difference: agreement of the rater minus that of the reference, with its interval.
        p_value: two-sided, of no difference; from the same t distribution as the interval.
        p_holm: the same after Holm's correction for all comparisons made together.
    """

    rater: str
    reference: str
    difference: Interval
    p_value: float
    p_holm: float

    @property
    def is_clear(self) -> bool:
        """Whether the difference is outside the noise at the 5 % level after correction."""
        return self.p_holm < 0.05


def paired_difference(
    credit: np.ndarray, reference: np.ndarray, clusters: Sequence[Any]
) -> tuple[Interval, float]:
    """Mean paired difference with a cluster-jackknife interval and p value.

    Args:
        credit: per-pair credit of the rater; shape (n,).
        reference: per-pair credit of the reference; shape (n,).
        clusters: prompt of each pair; shape (n,).
    """
    from scipy import stats  # noqa: PLC0415

    interval = jackknife_interval(credit - reference, clusters, limits=(-math.inf, math.inf))
    if math.isnan(interval.low):
        return interval, math.nan
    freedom = max(interval.effective_clusters - 1, 1.0)
    half = (interval.high - interval.low) / 2
    if half < 1e-12:
        return interval, 1.0 if abs(interval.mean) < 1e-12 else 0.0
    error = half / float(stats.t.ppf(0.975, freedom))
    return interval, float(2 * stats.t.sf(abs(interval.mean) / error, freedom))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for several comparisons (Holm, 1979); NaN stays NaN and is not counted."""
    order = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted = [math.nan] * len(p_values)
    running = 0.0
    for rank, (p, place) in enumerate(order):
        running = max(running, min(1.0, p * (len(order) - rank)))
        adjusted[place] = running
    return adjusted


def compare_all(
    credits: dict[str, np.ndarray], reference: str, clusters: Sequence[Any]
) -> list[Comparison]:
    """Compare every rater with the reference, Holm-corrected together.

    Args:
        credits: per-pair credit by rater; shape (n,) each.
        reference: a key of `credits`.
        clusters: prompt of each pair; shape (n,).
    """
    names = [name for name in credits if name != reference]
    results = [paired_difference(credits[n], credits[reference], clusters) for n in names]
    adjusted = holm([p for _, p in results])
    return [
        Comparison(name, reference, interval, p, p_holm)
        for name, (interval, p), p_holm in zip(names, results, adjusted, strict=True)
    ]
