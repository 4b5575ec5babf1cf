"""Leave-one-out agreement: an annotator, and every rater, against the mean of the other annotators.

A judge that agrees with people on 60 % of the pairs may be poor, or as good as any one annotator.
So each annotator is left out in turn; the mean of the others is the label, and the annotator and
every rater are compared with it on all pairs within a prompt. Pairs selected by the mean of all
annotators would flatter the one (docs/statistics.md).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litbench.metrics.comparisons import Comparison, compare_all
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.metrics.leaderboard import plain

# Means of the same ratings in another order differ by rounding.
_ROUNDING = 1e-9
# Stands for the annotators among the raters' names.
ONE_ANNOTATOR = "one annotator"


@dataclass(frozen=True)
class RaterAgreement:
    """A rater against the labels that one annotator is compared with, comparison by comparison."""

    rater: str
    agreement: Interval
    comparison: Comparison


@dataclass(frozen=True)
class AnnotatorAgreement:
    """How far annotators agree with each other, and raters with them.

    Attributes:
        annotators: number of names.
        slots: whether a name is a position in a list that different people fill from story to
            story; "one annotator" then stands for two people.
        min_gap: least gap of the others' means, in units of a rating.
        pairs: pairs of stories with at least one comparison.
        one_annotator: one annotator against the mean of the others, over all comparisons (an
            annotator and a pair of stories); a tie of the annotator counts 1/2.
        left_out: comparisons in which the others' means are equal or closer than `min_gap`.
        two_annotators: how often two annotators prefer the same story; a tie of either counts 1/2.
        alpha: see `krippendorff_alpha`; of the ratings of all stories.
        by_annotator: each annotator; empty where names are slots.
        raters: highest agreement first.
    """

    annotators: int
    slots: bool
    min_gap: float
    pairs: int
    one_annotator: Interval
    left_out: int
    two_annotators: Interval
    alpha: float
    by_annotator: dict[str, Interval]
    raters: list[RaterAgreement]

    @property
    def at_chance(self) -> bool:
        """Whether the agreement of two annotators is not significantly above chance."""
        return self.two_annotators.low <= 0.5


def krippendorff_alpha(ratings: Sequence[Sequence[float]]) -> float:
    """Agreement of each story's ratings beyond chance (Krippendorff, 2011, interval metric).

    NaN where no story has two ratings, or all ratings are equal.
    """
    units = [np.asarray(unit, dtype=float) for unit in ratings if len(unit) > 1]
    if not units:
        return math.nan
    values = np.concatenate(units)
    # The mean squared difference of two distinct values is twice their variance.
    expected = float(values.var(ddof=1))
    observed = sum(len(unit) * float(unit.var(ddof=1)) for unit in units) / len(values)
    return 1 - observed / expected if expected > _ROUNDING else math.nan


def annotator_agreement(
    ratings: Mapping[str, Mapping[str, float]],
    first: Sequence[str],
    second: Sequence[str],
    clusters: Sequence[Any] | np.ndarray,
    credits: Mapping[str, np.ndarray],
    *,
    min_gap: float = 0.0,
    slots: bool = False,
) -> AnnotatorAgreement | None:
    """Compare each annotator, and every rater, with the mean of the other annotators.

    Args:
        ratings: per annotator the rating of each story they rated.
        first: story_id of one story of each pair; all pairs within a prompt; shape (n,).
        second: of the other; shape (n,).
        clusters: the prompt of each pair; shape (n,).
        credits: per rater how far it prefers the first story, 0 to 1; shape (n,) each.
        min_gap: least gap of the others' means.
        slots: see AnnotatorAgreement.

    Returns:
        The figures; None where on no pair an annotator can be compared with others.
    """
    names, clusters = sorted(ratings), np.asarray(clusters)
    if len(names) < 2:
        return None
    one, other = (
        np.array([[ratings[name].get(story, math.nan) for name in names] for story in stories])
        for stories in (first, second)
    )
    own, gap = _sign(one - other), _mean_of_others(one) - _mean_of_others(other)
    possible = np.isfinite(own) & np.isfinite(gap)
    far = np.where(possible, np.abs(gap), 0.0) >= max(min_gap - _ROUNDING, 2 * _ROUNDING)
    valid = possible & far
    if not valid.any():
        return None
    label = _sign(gap)
    # 1 for the same preference, 0 for the opposite one, 1/2 for a tie.
    credit = (1 + own * label) / 2
    prompts = np.broadcast_to(clusters[:, None], valid.shape)[valid]
    values = {
        name: ((1 + (2 * towards[:, None] - 1) * label) / 2)[valid]
        for name, towards in credits.items()
    }
    comparisons = compare_all({ONE_ANNOTATOR: credit[valid], **values}, ONE_ANNOTATOR, prompts)
    raters = [
        RaterAgreement(found.rater, jackknife_interval(values[found.rater], prompts), found)
        for found in comparisons
    ]
    by_annotator = {
        name: jackknife_interval(credit[use, k], clusters[use])
        for k, name in enumerate(names)
        if not slots and (use := valid[:, k]).any()
    }
    rated = dict.fromkeys(story for of in ratings.values() for story in of)
    by_story = [[of[story] for of in ratings.values() if story in of] for story in rated]
    return AnnotatorAgreement(
        annotators=len(names),
        slots=slots,
        min_gap=min_gap,
        pairs=int(valid.any(1).sum()),
        one_annotator=jackknife_interval(credit[valid], prompts),
        left_out=int((possible & ~valid).sum()),
        two_annotators=_two_annotators(own, clusters),
        alpha=krippendorff_alpha(by_story),
        by_annotator=by_annotator,
        raters=sorted(raters, key=lambda row: (-row.agreement.mean, row.rater)),
    )


def _sign(difference: np.ndarray) -> np.ndarray:
    """-1, 0 or 1; NaN stays NaN."""
    signs: np.ndarray = np.sign(np.where(np.abs(difference) <= _ROUNDING, 0.0, difference))
    return signs


def _mean_of_others(ratings: np.ndarray) -> np.ndarray:
    """Mean of everyone else's rating, NaN where nobody else rated; shape of `ratings`."""
    known = np.isfinite(ratings)
    count = known.sum(1, keepdims=True) - known
    values = np.where(known, ratings, 0.0)
    total = values.sum(1, keepdims=True) - values
    mean: np.ndarray = np.where(count > 0, total / np.maximum(count, 1), math.nan)
    return mean


def _two_annotators(own: np.ndarray, clusters: np.ndarray) -> Interval:
    """How often two annotators prefer the same story; per pair the mean over all twos."""
    several = np.isfinite(own).sum(1) > 1
    signs, count = np.nan_to_num(own[several]), np.isfinite(own[several]).sum(1)
    # The products of all twos add up to half of this.
    products = signs.sum(1) ** 2 - np.square(signs).sum(1)
    return jackknife_interval((1 + products / (count * (count - 1))) / 2, clusters[several])


def annotators_json(found: AnnotatorAgreement) -> dict[str, Any]:
    """The figures as JSON can hold them; what cannot be told is null."""
    content: dict[str, Any] = plain(found)
    for item, row in zip(content["raters"], found.raters, strict=True):
        item["comparison"]["significant"] = row.comparison.is_clear
    return {**content, "at_chance": found.at_chance}
