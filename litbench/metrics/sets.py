"""Results on several sets of pairs, and means over the same sets for all raters compared."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import numpy as np

from litbench.metrics.comparisons import compare_all
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.metrics.leaderboard import plain

# The spread between fewer sets is too uncertain to shrink by.
MIN_SETS = 10


def linked_sets(prompts: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Group sets that share prompts; by set, the first name of its group.

    `prompts` has by set the keys of its prompts.
    """
    groups: list[tuple[str, set[str]]] = []
    for name, keys in prompts.items():
        linked = [group for group in groups if group[1] & set(keys)]
        rest = [group for group in groups if group not in linked]
        first = linked[0][0] if linked else name
        groups = [*rest, (first, set(keys).union(*(keys for _, keys in linked)))]
    return {
        name: next(first for first, keys in groups if keys & set(set_keys))
        for name, set_keys in prompts.items()
    }


def shrunken(estimates: Sequence[Interval]) -> list[float] | None:
    """Empirical Bayes estimates of the same rater's figures on several sets; None below ten sets.

    A figure is stated because it is high or low, and so is partly chance. Each is moved towards the
    mean over sets, the more the wider its interval is against the spread between sets (Efron and
    Morris, 1975; the spread by DerSimonian and Laird, 1986). Estimates without an interval count
    with the widest.
    """
    if len(estimates) < MIN_SETS:
        return None
    means = np.array([estimate.mean for estimate in estimates])
    errors = np.array([(estimate.high - estimate.low) / (2 * 1.96) for estimate in estimates])
    variance = np.square(np.where(np.isfinite(errors), errors, np.nanmax(errors)))
    weight = 1 / np.maximum(variance, 1e-12)
    spread = float(np.sum(weight * (means - np.average(means, weights=weight)) ** 2))
    scale = weight.sum() - np.square(weight).sum() / weight.sum()
    between = max((spread - (len(means) - 1)) / scale, 0.0)
    center = float(np.average(means, weights=1 / (variance + between)))
    shrunk = center + between / (between + variance) * (means - center)
    return [float(value) for value in shrunk]


def over_sets(
    rows: Sequence[Mapping[str, Any]],
    raters: Sequence[str],
    reference: str,
    groups: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Unweighted means over the sets on which no rater was trained.

    The intervals are those of a two-stage sample, of sets and of prompts within them: the spread
    of the sets' agreements around their mean has both sources of error (Cochran, 1977, Sampling
    Techniques, 10.3). They tell what to expect of further sets like these, if there are such.

    Args:
        rows: `set`, `rater`, `agreement` and `trained_on` of all sets; every rater has a row in
            every set.
        raters: the raters to compare; without those that judged no pair of a set.
        reference: the rater that the others are compared with, set by set.
        groups: `linked_sets`; sets that share prompts are one cluster.

    Returns:
        `sets`: names of the sets in the means; `left_out`: for each other set, the raters that were
        trained on its prompts; `raters`: sorted by mean, `mean`, `low` and `high` (null for one
        set), `lowest` and `highest`, and `minus_reference` (a paired difference with its interval
        and `p_holm`; null for the reference).
    """
    names = list(dict.fromkeys(row["set"] for row in rows))
    trained = {
        name: [row["rater"] for row in rows if row["set"] == name and row["trained_on"]]
        for name in names
    }
    used = [name for name in names if not trained[name]]
    value = {(row["rater"], row["set"]): row["agreement"] for row in rows}
    values = {
        rater: np.array([value[rater, name] for name in used])
        for rater in raters
        if used and all(value.get((rater, name)) is not None for name in used)
    }
    clusters = [groups.get(name, name) for name in used]
    compared = compare_all(values, reference, clusters) if reference in values else []
    comparisons = {comparison.rater: comparison for comparison in compared}
    means = []
    for rater, shares in values.items():
        interval, against = jackknife_interval(shares, clusters), comparisons.get(rater)
        difference = against and {**asdict(against.difference), "p_holm": against.p_holm}
        numbers: dict[str, Any] = {
            "mean": interval.mean,
            "low": interval.low,
            "high": interval.high,
        }
        numbers |= {"lowest": min(shares), "highest": max(shares), "minus_reference": difference}
        means.append({"rater": rater, **plain(numbers)})
    return {
        "sets": used,
        "left_out": {name: raters for name, raters in trained.items() if raters},
        "raters": sorted(means, key=lambda row: (-row["mean"], row["rater"])),
    }
