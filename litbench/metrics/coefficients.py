"""Intervals of the coefficients of linear models, by the grouped jackknife over prompts."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from litbench.data.text import digest
from litbench.metrics.intervals import LEVEL, Interval, effective_clusters

# Maximum number of groups of prompts that the jackknife of coefficients leaves out in turn.
_MAX_GROUPS = 100


def coefficient_interval(models: Sequence[Mapping[str, Any]], name: str) -> Interval:
    """The mean coefficient of the models of a cross-validation, and its 95 % interval.

    Each model of a repeat is trained without one of K groups of prompts, so the variance of a
    repeat is the grouped jackknife's, (K - 1) / K times the sum of squared deviations (Kott, 2001,
    The delete-a-group jackknife). It is averaged over R repeats; the t quantile has R (K - 1)
    degrees of freedom. The bounds are NaN for a single model.

    Args:
        models: records of the models: `notes` with `coefficients`, and `seed` of the repeat.
        name: name of the feature.
    """
    from scipy import stats  # noqa: PLC0415

    by_repeat: dict[Any, list[float]] = {}
    for model in models:
        by_repeat.setdefault(model.get("seed"), []).append(model["notes"]["coefficients"][name])
    values = [np.array(numbers) for numbers in by_repeat.values()]
    mean = float(np.concatenate(values).mean())
    freedom = sum(len(repeat) - 1 for repeat in values)
    if not freedom:
        return Interval(mean, math.nan, math.nan, len(models), 1, 1.0)
    variance = np.mean([(len(repeat) - 1) * float(np.var(repeat)) for repeat in values])
    half = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half, len(models), freedom, float(freedom))


def coefficient_intervals(
    fit: Callable[[np.ndarray], np.ndarray], prompts: Sequence[str]
) -> tuple[list[Interval], list[float]]:
    """Intervals of coefficients by the delete-a-group jackknife over prompts (Kott, 2001).

    There are up to 100 groups. The degrees of freedom of the t quantile are the number of groups,
    or the effective number of prompts if that is smaller, minus 1.

    Args:
        fit: function from row indices (int, shape (k,)) to coefficients, shape (columns,).
        prompts: prompt of each row; shape (n,).

    Returns:
        For each column its interval, and the two-sided p value of a coefficient of 0; NaN with
        fewer than two prompts.
    """
    from scipy import stats  # noqa: PLC0415

    distinct, index, sizes = np.unique(np.asarray(prompts), return_inverse=True, return_counts=True)
    effective, rows = effective_clusters(sizes), len(index)
    whole = fit(np.arange(rows))
    groups = min(len(distinct), _MAX_GROUPS)
    freedom = max(min(groups, effective) - 1, 1.0)
    error = np.full(len(whole), math.nan)
    if groups > 1:
        order = sorted(range(len(distinct)), key=lambda k: digest("jackknife", distinct[k]))
        group_of = np.empty(len(distinct), dtype=int)
        group_of[order] = np.arange(len(distinct)) % groups
        without = np.array([fit(np.flatnonzero(group_of[index] != g)) for g in range(groups)])
        error = np.sqrt((groups - 1) / groups * np.square(without - whole).sum(0))
    reach = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * error
    intervals = [
        Interval(w, w - half, w + half, rows, len(distinct), effective)
        for w, half in zip(whole.tolist(), reach.tolist(), strict=True)
    ]
    # A unit that is never active has no meaningful coefficient.
    positive = np.where(error > 1e-12, error, math.nan)
    p_values: list[float] = (2 * stats.t.sf(np.abs(whole) / positive, freedom)).tolist()
    return intervals, p_values
