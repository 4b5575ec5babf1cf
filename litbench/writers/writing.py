"""Analyses of Tree-of-Writing over many texts or plans (sections 5.3 and 6.1 of the paper)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Inconsistency(NamedTuple):
    """How far weights differ between trials, as means over dimensions.

    Attributes:
        delta: sum over the later trials of the absolute differences to the first one.
        sigma: root of the sum (not the mean) of squared differences to the mean over trials.
        dropped: dimensions that are not in all trials.
    """

    delta: float
    sigma: float
    dropped: int


class LengthCorrelation(NamedTuple):
    """Pearson correlation and least-squares slope of y on x, over n texts.

    `p` is the p value of no correlation between independent texts (Table 6).
    """

    n: int
    pearson: float
    slope: float
    p: float


def negotiation_inconsistency(trials: Sequence[Mapping[str, float]]) -> Inconsistency:
    """Compare the weights of several trials of one plan.

    Args:
        trials: weights by dimension; where a judge names its own dimensions, each sub-score divided
            by the total.

    Returns:
        NaN if no dimension is in all trials, or with fewer than two trials.
    """
    named = {name for trial in trials for name in trial}
    shared = sorted(name for name in named if all(name in trial for trial in trials))
    if not shared or len(trials) < 2:
        return Inconsistency(np.nan, np.nan, len(named) - len(shared))
    weights = np.array([[trial[name] for name in shared] for trial in trials])
    delta = np.abs(weights[1:] - weights[0]).sum(axis=0)
    sigma = np.sqrt(((weights - weights.mean(axis=0)) ** 2).sum(axis=0))
    return Inconsistency(float(delta.mean()), float(sigma.mean()), len(named) - len(shared))


def length_correlation(x: Sequence[float], y: Sequence[float]) -> LengthCorrelation:
    """Correlate two quantities of texts, such as lengths; NaN if one of them does not vary."""
    from scipy.stats import linregress  # noqa: PLC0415

    if len(x) < 2 or min(np.ptp(x), np.ptp(y)) == 0:
        return LengthCorrelation(len(x), np.nan, np.nan, np.nan)
    fit = linregress(x, y)
    return LengthCorrelation(len(x), float(fit.rvalue), float(fit.slope), float(fit.pvalue))
