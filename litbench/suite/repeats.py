"""Repeats: how far a judge agrees with itself, and what of its flips the order explains.

A judge with `samples` answers each question several times. Votes are 1 for the chosen story, 0 for
the other, 1/2 for a tie and NaN for an answer without a verdict; two votes disagree by their
distance, so that a tie disagrees by 1/2 with a story.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.metrics.agreement import OUTCOME_CREDITS
from litbench.metrics.comparisons import difference_interval
from litbench.metrics.intervals import Interval, clustered_mean, jackknife_interval
from litbench.suite.passport import CallFigures, PassportInterval


@dataclass(frozen=True)
class Repeats:
    """What repeated answers show about a judge.

    Attributes:
        figures: `self_agreement` of two answers to the same question; `by_repeats`, how often they
            differ, which explains as many flips; `by_order`, the other flips; and `gain`, the
            agreement of the last of `growth` minus that of one answer in each order.
        p_order: p value of no effect of the order.
        growth: agreement by number of calls; the last is the judge's verdict.
    """

    figures: dict[str, Interval]
    p_order: float
    growth: list[CallFigures]


def votes_of(verdicts: pa.Table, pair_ids: Sequence[str], rater: str) -> np.ndarray | None:
    """The votes of a judge in the order of its verdicts; shape (pairs, orders, samples).

    Returns:
        None if some pair was not judged once in both orders, or with other numbers of samples.
    """
    rows = verdicts.filter(pc.equal(verdicts["rater"], rater))
    by_pair: dict[str, list[list[float]]] = {}
    names = ("pair_id", "order", "outcome", "samples")
    columns = [rows[name].to_pylist() for name in names]
    for pair, order, outcome, samples in zip(*columns, strict=True):
        if order is not None:
            votes = [OUTCOME_CREDITS.get(name, np.nan) for name in (samples or outcome).split()]
            by_pair.setdefault(pair, []).append(votes)
    orders = [by_pair.get(pair, []) for pair in pair_ids]
    shapes = {tuple(map(len, votes)) for votes in orders}
    if len(shapes) != 1 or len(shape := shapes.pop()) != 2 or shape[0] != shape[1]:
        return None
    return np.array(orders)


def distances(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean distances of votes in two groups of answers to the same questions.

    The first minus the second is an unbiased estimate of half of the energy distance (Szekely and
    Rizzo, 2013, Energy statistics), whose mean is 0 only if both groups vote alike.

    Args:
        first: votes of a group; shape (n, answers).
        second: votes of the other group; shape (n, answers).

    Returns:
        The distance of a vote of one group and a vote of the other, and that of two votes of a
        group, averaged over both groups; shape (n,) each, NaN where an answer is missing.
    """

    def within(votes: np.ndarray) -> np.ndarray:
        upper = np.triu_indices(votes.shape[1], 1)
        return _row_means(np.abs(votes[:, upper[0]] - votes[:, upper[1]]))

    between = np.abs(first[:, :, None] - second[:, None, :]).reshape(len(first), -1)
    return _row_means(between), _row_means(np.column_stack([within(first), within(second)]))


def repeats_of(
    votes: np.ndarray, clusters: Sequence[Any] | np.ndarray, dollars: float | None = None
) -> Repeats | None:
    """Compute the figures of repeated answers; None with a single answer to each question.

    Args:
        votes: shape (pairs, 2, samples).
        clusters: prompts of the pairs.
        dollars: price of an answer.
    """
    samples = votes.shape[2]
    if samples < 2:
        return None
    between, within = distances(votes[:, 0], votes[:, 1])
    keys, is_known = np.asarray(clusters), np.isfinite(between - within)
    excess = clustered_mean((between - within)[is_known], keys[is_known])
    by_order, p_order = difference_interval(excess)
    single = np.nan_to_num(votes, nan=0.5).mean(axis=2)
    # The verdict of an order is the side with more votes; without votes it counts 1/2.
    verdicts = (np.sign(np.nansum(votes - 0.5, axis=2).round(9)) + 1) / 2
    ways = [(1, 1, single[:, 0]), (2, 1, single.mean(axis=1)), (2, samples, verdicts.mean(axis=1))]
    gain = clustered_mean(ways[2][2] - ways[1][2], keys)
    growth = [
        CallFigures(
            orders,
            count,
            PassportInterval.of(jackknife_interval(credit, keys)),
            None if dollars is None else dollars * orders * count,
        )
        for orders, count, credit in ways
    ]
    figures = {
        "self_agreement": jackknife_interval(1 - within[is_known], keys[is_known]),
        "by_repeats": jackknife_interval(within[is_known], keys[is_known]),
        "by_order": by_order,
        "gain": difference_interval(gain)[0],
    }
    return Repeats(figures, p_order, growth)


def _row_means(values: np.ndarray) -> np.ndarray:
    """Means of the known numbers of each row; NaN without any."""
    is_known = np.isfinite(values)
    sums = np.where(is_known, values, 0.0).sum(axis=1)
    counts = is_known.sum(axis=1)
    means: np.ndarray = np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)
    return means
