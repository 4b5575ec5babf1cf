"""Leave-one-out agreement: an annotator, and every rater, against the mean of the other annotators.

A judge that agrees with the labels on 60 % of the pairs may be poor, or as good as an annotator.
Each annotator is left out in turn. The mean of the others is the label, and the annotator and every
rater are compared with it on all pairs within a prompt. Selecting pairs by the mean of all
annotators would overestimate the agreement of the one left out (docs/statistics.md).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from litbench.metrics.comparisons import (
    Comparison,
    Trainings,
    compare_all,
    difference_interval,
    holm,
)
from litbench.metrics.intervals import (
    Interval,
    clustered_mean,
    jackknife_interval,
    ratio_interval,
)
from litbench.metrics.leaderboard import plain

# Means of the same ratings, summed in different orders, differ by rounding.
_ROUNDING = 1e-9
_QUANTILES = 500
# The name of a single annotator in the list of raters.
ONE_ANNOTATOR = "one annotator"


@dataclass(frozen=True)
class RaterAgreement:
    """A rater's agreement, on the comparisons that `one_annotator` has.

    `relative` is (agreement - 1/2) / (agreement of one annotator - 1/2): 1 is as good as an
    annotator, 0 a coin. Its bounds are NaN where annotators are not clearly above chance.
    """

    rater: str
    agreement: Interval
    comparison: Comparison
    relative: Interval


@dataclass(frozen=True)
class Excess:
    """How far two annotators agree more than independent ones must, by a rater that shows it best.

    Attributes:
        rater: the rater; None for chance.
        expected: the lowest agreement above chance of two independent annotators, from -1 to 1.
        difference: the agreement of two annotators above chance, minus `expected`.
        p_holm: p value of no difference, after Holm's correction over the raters.
    """

    rater: str | None
    expected: float
    difference: Interval
    p_holm: float


@dataclass(frozen=True)
class AnnotatorAgreement:
    """How far annotators agree with each other, and raters with annotators.

    Attributes:
        annotators: number of names.
        slots: whether a name is a position in a list, filled by different people for different
            stories. The left-out annotator of a pair may then be two people.
        min_gap: minimum gap between the others' mean ratings of the two stories.
        pairs: pairs of stories with at least one comparison.
        one_annotator: agreement of one annotator with the mean of the others, over all comparisons
            (an annotator and a pair of stories); a tie of the annotator counts 1/2.
        left_out: number of comparisons in which the others' means are equal or closer than
            `min_gap`.
        two_annotators: how often two annotators prefer the same story; a tie of either counts 1/2.
        two_decided: the same over the comparisons in which neither annotator ties.
        difficulty_spread: how far pairs differ in difficulty, see `label_ceiling`; from pairs on
            which four annotators or more have a preference, NaN without them.
        excess: see `annotator_excess`; None if no pair has two annotators.
        alpha: `krippendorff_alpha` of the ratings of all stories.
        by_annotator: agreement of each annotator; empty if names are slots.
        raters: agreement of each rater, highest first.
    """

    annotators: int
    slots: bool
    min_gap: float
    pairs: int
    one_annotator: Interval
    left_out: int
    two_annotators: Interval
    two_decided: Interval
    difficulty_spread: float
    excess: Excess | None
    alpha: float
    by_annotator: dict[str, Interval]
    raters: list[RaterAgreement]

    @property
    def is_dependent(self) -> bool:
        """Whether annotators agree significantly less than independent ones would."""
        return (
            self.excess is not None
            and self.excess.difference.high < 0
            and self.excess.p_holm < 0.05
        )

    @property
    def at_chance(self) -> bool:
        """Whether the agreement of two annotators is not significantly above chance."""
        # With one prompt the interval is unbounded, so this is True.
        return not self.two_annotators.low > 0.5


def krippendorff_alpha(ratings: Sequence[Sequence[float]]) -> float:
    """Agreement of each story's ratings beyond chance (Krippendorff, 2011, interval metric).

    NaN where no story has two ratings, or all ratings are equal.
    """
    units = [np.asarray(unit, dtype=float) for unit in ratings if len(unit) > 1]
    if not units:
        return math.nan
    values = np.concatenate(units)
    # Alpha compares mean squared differences of two values, which are twice the variance.
    expected = float(values.var(ddof=1))
    observed = sum(len(unit) * float(unit.var(ddof=1)) for unit in units) / len(values)
    return 1 - observed / expected if expected > _ROUNDING else math.nan


def label_ceiling(two_annotators: Interval, per_story: float, spread: float = math.nan) -> Interval:
    """Agreement of a rater that knows each pair's majority of people with the labels.

    Annotators name a pair's preferred story independently, each with probability q >= 1/2. Two of
    them agree with q^2 + (1 - q)^2 = (1 + x) / 2, where x = (2 q - 1)^2. Over pairs, x has a beta
    distribution with the mean that two annotators show. The label of `per_story` annotators is that
    of their majority, with ties decided by a coin; it is concave in x, so that pairs of equal
    difficulty give an upper bound.

    Args:
        two_annotators: agreement of two annotators.
        per_story: number of annotators behind a label.
        spread: variance of x over its largest possible one, mean (1 - mean); 0: equal difficulty,
            NaN: unknown, for the upper bound.
    """
    from scipy import stats  # noqa: PLC0415

    k = max(round(per_story), 1)

    def ceiling(agreement: float) -> float:
        mean = min(max(2 * agreement - 1, 0), 1)
        x = np.array([mean])
        if spread > _ROUNDING and 0 < mean < 1:
            both = min(1 / spread - 1, 1e6)
            x = stats.beta.ppf(
                (np.arange(_QUANTILES) + 0.5) / _QUANTILES, mean * both, (1 - mean) * both
            )
        q = (1 + np.sqrt(x)) / 2
        right = stats.binom.sf(k / 2, k, q) + (k % 2 == 0) * stats.binom.pmf(k // 2, k, q) / 2
        return float(right.mean())

    interval = two_annotators
    ends = (ceiling(interval.mean), ceiling(interval.low), ceiling(interval.high))
    return Interval(*ends, interval.n, interval.clusters, interval.effective_clusters)


def annotator_agreement(
    ratings: Mapping[str, Mapping[str, float]],
    first: Sequence[str],
    second: Sequence[str],
    clusters: Sequence[Any] | np.ndarray,
    credits: Mapping[str, np.ndarray],
    *,
    trainings: Trainings = MappingProxyType({}),
    min_gap: float = 0.0,
    slots: bool = False,
) -> AnnotatorAgreement | None:
    """Compare each annotator, and every rater, with the mean of the other annotators.

    Args:
        ratings: by annotator, the rating of each story that they rated.
        first: story_id of the first story of each pair, for all pairs within a prompt; shape (n,).
        second: story_id of the second story; shape (n,).
        clusters: prompt of each pair; shape (n,).
        credits: by rater, how far it prefers the first story, 0 to 1; shape (n,) each.
        trainings: by rater, the training of its credits; raters without one are fixed.
        min_gap: minimum gap between the others' mean ratings.
        slots: see AnnotatorAgreement.

    Returns:
        The agreement, or None if no annotator can be compared with others on any pair.
    """
    names, clusters = sorted(ratings), np.asarray(clusters)
    if len(names) < 2:
        return None
    left, right = (
        np.array([[ratings[name].get(story, math.nan) for name in names] for story in stories])
        for stories in (first, second)
    )
    signs, gap = _sign(left - right), _mean_of_others(left) - _mean_of_others(right)
    possible = np.isfinite(signs) & np.isfinite(gap)
    far = np.where(possible, np.abs(gap), 0.0) >= max(min_gap - _ROUNDING, 2 * _ROUNDING)
    valid = possible & far
    if not valid.any():
        return None
    label = _sign(gap)
    # 1 for the same preference, 0 for the opposite one, 1/2 for a tie.
    credit = (1 + signs * label) / 2
    prompts = np.broadcast_to(clusters[:, None], valid.shape)[valid]
    values = {
        name: ((1 + (2 * towards[:, None] - 1) * label) / 2)[valid]
        for name, towards in credits.items()
    }
    pair = np.nonzero(valid)[0]
    trained = {
        name: training and training.take(pair, label[valid]) for name, training in trainings.items()
    }
    compared = {ONE_ANNOTATOR: credit[valid], **values}
    comparisons = compare_all(compared, ONE_ANNOTATOR, prompts, trained)
    raters = [
        RaterAgreement(
            row.rater,
            jackknife_interval(values[row.rater], prompts, trained.get(row.rater)),
            row,
            ratio_interval(
                values[row.rater] - 0.5, credit[valid] - 0.5, prompts, trained.get(row.rater)
            ),
        )
        for row in comparisons
    ]
    by_annotator = {
        name: jackknife_interval(credit[use, k], clusters[use])
        for k, name in enumerate(names)
        if not slots and (use := valid[:, k]).any()
    }
    rated = dict.fromkeys(story for rated_stories in ratings.values() for story in rated_stories)
    by_story = [
        [rated_stories[story] for rated_stories in ratings.values() if story in rated_stories]
        for story in rated
    ]
    return AnnotatorAgreement(
        annotators=len(names),
        slots=slots,
        min_gap=min_gap,
        pairs=int(valid.any(1).sum()),
        one_annotator=jackknife_interval(credit[valid], prompts),
        left_out=int((possible & ~valid).sum()),
        two_annotators=_two_annotators(signs, clusters),
        two_decided=_two_annotators(np.where(signs == 0, math.nan, signs), clusters),
        difficulty_spread=_difficulty_spread(signs),
        excess=annotator_excess(signs, clusters, credits),
        alpha=krippendorff_alpha(by_story),
        by_annotator=by_annotator,
        raters=sorted(raters, key=lambda row: (-row.agreement.mean, row.rater)),
    )


def _sign(difference: np.ndarray) -> np.ndarray:
    """-1, 0 or 1; NaN for NaN."""
    signs: np.ndarray = np.sign(np.where(np.abs(difference) <= _ROUNDING, 0.0, difference))
    return signs


def _mean_of_others(ratings: np.ndarray) -> np.ndarray:
    """Mean rating of the other annotators, NaN without any; shape of `ratings`."""
    is_known = np.isfinite(ratings)
    count = is_known.sum(1, keepdims=True) - is_known
    values = np.where(is_known, ratings, 0.0)
    total = values.sum(1, keepdims=True) - values
    mean: np.ndarray = np.where(count > 0, total / np.maximum(count, 1), math.nan)
    return mean


def _two_annotators(signs: np.ndarray, clusters: np.ndarray) -> Interval:
    """How often two annotators prefer the same story; the mean over all pairs of annotators."""
    several = np.isfinite(signs).sum(1) > 1
    return jackknife_interval((1 + _products(signs[several])) / 2, clusters[several])


def _products(values: np.ndarray) -> np.ndarray:
    """Mean product of two annotators' signs in each pair, which has two or more of them."""
    signs, count = np.nan_to_num(values), np.isfinite(values).sum(1)
    products = signs.sum(1) ** 2 - np.square(signs).sum(1)
    return np.asarray(products / (count * (count - 1)))


def annotator_excess(
    values: np.ndarray, clusters: np.ndarray, credits: Mapping[str, np.ndarray]
) -> Excess | None:
    """Compare the agreement of two annotators with what a rater's agreement with each implies.

    If annotators are independent given the pair, with t the pair's mean sign and b a rater's from
    -1 to 1, two of them have the mean product E[t^2], which is at least E[t b]^2 (Cauchy and
    Schwarz). A smaller one means that their residuals correlate negatively, as of ratings that were
    sorted or made to differ: then leaving one out measures this rule, not people.

    Args:
        values: sign of each annotator's preference, NaN where there is none; shape (n, annotators).
        clusters: prompt of each pair; shape (n,).
        credits: by rater, how far it prefers the first story, 0 to 1; shape (n,) each.
    """
    count = np.isfinite(values).sum(1)
    several = count > 1
    if not several.any():
        return None
    products, prompts = _products(values[several]), clusters[several]
    mean_sign = np.nansum(values[several], axis=1) / count[several]
    results = []
    chance: dict[str | None, np.ndarray] = {None: np.full(len(values), 0.5)}
    for rater, credit in (chance | dict(credits)).items():
        both = mean_sign * (2 * credit[several] - 1)
        shared = float(both.mean())
        # The derivative of the square by each pair's product.
        estimate = clustered_mean(products - 2 * shared * both, prompts)
        estimate = replace(estimate, mean=float(products.mean()) - shared**2)
        results.append((rater, shared**2, *difference_interval(estimate)))
    adjusted = holm([p for *_, p in results])
    excesses = [
        Excess(rater, expected, difference, p)
        for (rater, expected, difference, _), p in zip(results, adjusted, strict=True)
    ]
    return min(excesses, key=lambda excess: excess.difference.mean)


def _difficulty_spread(values: np.ndarray) -> float:
    """The spread of `label_ceiling`, by the products of two and of four annotators' signs."""
    signs = np.nan_to_num(values)
    count = np.count_nonzero(signs, axis=1)
    use = count > 3
    if not use.any():
        return math.nan
    total, n = signs[use].sum(1), count[use]
    # Elementary symmetric polynomials of n signs, whose squares are 1, over their numbers of terms.
    of_two = (total**2 - n) / (n * (n - 1))
    of_four = (total**4 - 6 * total**2 * n + 3 * n**2 + 8 * total**2 - 6 * n) / (
        n * (n - 1) * (n - 2) * (n - 3)
    )
    mean = float(of_two.mean())
    if not 0 < mean < 1:
        return 0.0
    return min(max((float(of_four.mean()) - mean**2) / (mean - mean**2), 0.0), 1.0)


def annotators_json(agreement: AnnotatorAgreement) -> dict[str, Any]:
    """The agreement as JSON values; unknown numbers are null."""
    return {
        **plain(agreement),
        "at_chance": agreement.at_chance,
        "is_dependent": agreement.is_dependent,
    }
