"""Agreement with the labels: one number per pair from its verdicts, and strata of pairs.

In each order a correct verdict counts 1, a tie 1/2, and a pair that was not judged 1/2. These
credits are averaged over orders, then (in repeated cross-validation) over repeats, then over pairs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.errors import DataError
from litbench.records import OUTCOMES, connected_prompts
from litbench.text import count_words

_ORDERS = ("chosen", "rejected")
# By the index of an outcome in `OUTCOMES`: its credit, whether it is a judgement, and whether it
# names a story.
_CREDIT = np.array([{"chosen": 1.0, "rejected": 0.0}.get(name, 0.5) for name in OUTCOMES])
_IS_NAMED = np.array([name in _ORDERS for name in OUTCOMES])
_IS_JUDGED = np.array([name in (*_ORDERS, "tie") for name in OUTCOMES])


@dataclass(frozen=True)
class PairScores:
    """One rater's verdicts, gathered per pair; all arrays have shape (n,), in the pairs' order.

    Attributes:
        rater: name.
        kind: kind of rater.
        credit: headline agreement of each pair, 0 to 1.
        pooled_credit: credit from the probability averaged over orders; 1/2 where an order has no
            probability, NaN everywhere if the rater gives no probabilities.
        judged: share of the pair's verdicts that were a judgement (coverage).
        both_orders: credit where every verdict was a judgement, NaN elsewhere.
        flipped: 1 where the two orders named different stories, 0 where they named the same story;
            NaN unless both orders named a story.
        consistent: 1 where both orders named the chosen story, 0 where both named the rejected
            story; the mean over repeats in which both orders named the same story, NaN without
            such repeats.
        same: share of the pair's repeats in which both orders named the same story; NaN for
            verdicts without an order.
        first_wins: share of judged orders in which the story shown first won; NaN for verdicts
            without an order.
        p_chosen: probability of the chosen story, averaged over orders and repeats; NaN where a
            verdict has no probability.
        seconds: total time of the pair's verdicts, or NaN if unknown.
        cost_usd: total cost of the pair's verdicts, or NaN if unknown.
    """

    rater: str
    kind: str
    credit: np.ndarray
    pooled_credit: np.ndarray
    judged: np.ndarray
    both_orders: np.ndarray
    flipped: np.ndarray
    consistent: np.ndarray
    same: np.ndarray
    first_wins: np.ndarray
    p_chosen: np.ndarray
    seconds: np.ndarray
    cost_usd: np.ndarray


@dataclass(frozen=True)
class Effort:
    """Counts of a rater's outcomes, and the length of its explanations and answers.

    `explanation_words` is the mean over judgements with a nonempty explanation. It is None if there
    are no explanations; token counts are None if unknown.
    """

    outcomes: dict[str, int]
    explanation_words: float | None
    input_tokens: int | None
    output_tokens: int | None


def _mean_by(values: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """Mean of each group, NaN for an empty group or one with a NaN; shape (groups,)."""
    sizes = np.bincount(group, minlength=groups)
    sums = np.bincount(group, weights=values, minlength=groups)
    with np.errstate(invalid="ignore"):
        return sums / sizes


def _sum_by(values: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """Sum of each group's finite values, NaN for a group without any; shape (groups,)."""
    known = np.isfinite(values)
    sums = np.bincount(group[known], weights=values[known], minlength=groups)
    counts = np.bincount(group[known], minlength=groups)
    return np.where(counts > 0, sums, np.nan)


def _codes(column: pa.ChunkedArray, values: Sequence[str]) -> np.ndarray:
    """The index of each text in `values`; -1 for null and for other texts."""
    known = pa.array(values, column.type)
    codes: np.ndarray = pc.fill_null(pc.index_in(column, value_set=known), -1).to_numpy()
    return codes


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """float64, NaN for null."""
    numbers: np.ndarray = pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy()
    return numbers


def _gather(
    pair: np.ndarray,
    fold: np.ndarray,
    order: np.ndarray,
    outcome: np.ndarray,
    p_chosen: np.ndarray,
    pairs: int,
) -> dict[str, np.ndarray]:
    """One rater's arrays of PairScores except time and cost; every pair has a verdict."""
    is_judged, is_named, credit = _IS_JUDGED[outcome], _IS_NAMED[outcome], _CREDIT[outcome]
    is_chosen, is_tie = (outcome == OUTCOMES.index(name) for name in ("chosen", "tie"))

    folds = int(fold.max()) + 1
    keys, repeat = np.unique(pair.astype(np.int64) * folds + fold, return_inverse=True)
    repeats, pair_of = len(keys), keys // folds

    # NaN if one order has no probability: the other order's would carry position bias.
    p_repeat = _mean_by(p_chosen, repeat, repeats)
    pooled = np.where(np.isnan(p_repeat) | (p_repeat == 0.5), 0.5, p_repeat > 0.5)
    if not np.isfinite(p_chosen).any():
        pooled = np.full(repeats, np.nan)

    in_order = [
        np.bincount(repeat[is_named & (order == code)], minlength=repeats)
        for code in range(len(_ORDERS))
    ]
    unordered = np.bincount(repeat[is_named & (order < 0)], minlength=repeats)
    both_named = (in_order[0] > 0) & (in_order[1] > 0) & (unordered == 0)
    won = np.bincount(repeat[is_named & is_chosen], minlength=repeats)
    named = in_order[0] + in_order[1]
    one_winner = (won == 0) | (won == named)
    flipped, same = both_named & ~one_winner, both_named & one_winner

    # _ORDERS and OUTCOMES both begin with "chosen", "rejected".
    has_order = is_judged & (order >= 0)
    first = np.where(is_tie, 0.5, outcome == order)
    judged = _mean_by(is_judged.astype(float), pair, pairs)
    means = _mean_by(_mean_by(credit, repeat, repeats), pair_of, pairs)
    ordered = np.bincount(pair[order >= 0], minlength=pairs) > 0
    return {
        "credit": means,
        "pooled_credit": _mean_by(pooled, pair_of, pairs),
        "judged": judged,
        "both_orders": np.where(judged == 1, means, np.nan),
        "flipped": _mean_by(flipped[both_named].astype(float), pair_of[both_named], pairs),
        "consistent": _mean_by((won > 0)[same].astype(float), pair_of[same], pairs),
        "same": np.where(ordered, _mean_by(same.astype(float), pair_of, pairs), np.nan),
        "first_wins": _mean_by(first[has_order], pair[has_order], pairs),
        "p_chosen": _mean_by(p_repeat, pair_of, pairs),
    }


def pair_scores(verdicts: pa.Table, pairs: pa.Table) -> list[PairScores]:
    """Gather verdicts per pair for each rater, in the order in which raters first appear.

    Verdicts on other pairs are ignored.

    Raises:
        DataError: a rater has no verdict on some pair. A pair that it could not judge has a row
            with that outcome, so a missing row is an error.
    """
    wanted = pairs["pair_id"].unique().to_pylist()
    index_of_row = _codes(pairs["pair_id"], wanted)
    table = verdicts.filter(pc.is_in(verdicts["pair_id"], pairs["pair_id"].unique()))
    raters = pc.unique(verdicts["rater"]).to_pylist()
    folds = pc.unique(table["fold"]).drop_null().to_pylist()
    rater, all_pairs = _codes(table["rater"], raters), _codes(table["pair_id"], wanted)
    outcome, order = _codes(table["outcome"], OUTCOMES), _codes(table["order"], _ORDERS)
    # A row without a fold belongs to repeat 0.
    fold = _codes(table["fold"], folds) + 1
    p_chosen, seconds, cost = (
        _numbers(table[name]) for name in ("p_chosen", "seconds", "cost_usd")
    )
    scores = []
    for number, name in enumerate(raters):
        rows = np.flatnonzero(rater == number)
        pair = all_pairs[rows]
        has_verdict = np.bincount(pair, minlength=len(wanted)) > 0
        if not has_verdict.all():
            example = wanted[int(np.argmin(has_verdict))]
            raise DataError(
                f"rater {name}: no verdict on {int((~has_verdict).sum())} of {len(wanted)} pairs, "
                f"such as {example}: run it again on this pairs file"
            )
        arrays = _gather(pair, fold[rows], order[rows], outcome[rows], p_chosen[rows], len(wanted))
        arrays["seconds"] = _sum_by(seconds[rows], pair, len(wanted))
        arrays["cost_usd"] = _sum_by(cost[rows], pair, len(wanted))
        kind = table["kind"][int(rows[0])].as_py()
        scores.append(
            PairScores(name, kind, **{key: of[index_of_row] for key, of in arrays.items()})
        )
    return scores


def efforts(verdicts: pa.Table, pairs: pa.Table) -> dict[str, Effort]:
    """Count outcomes, words and tokens of every rater; verdicts on other pairs are ignored."""
    table = verdicts.filter(pc.is_in(verdicts["pair_id"], pairs["pair_id"].unique()))
    effort_of = {}
    for rater in pc.unique(table["rater"]).to_pylist():
        own = table.filter(pc.equal(table["rater"], rater))
        counts = dict.fromkeys(OUTCOMES, 0) | Counter(own["outcome"].to_pylist())
        judged = own.filter(pa.array(_IS_JUDGED[_codes(own["outcome"], OUTCOMES)]))
        # A thousand texts at a time, since counting may copy the texts.
        parts = judged["explanation"].drop_null().chunks
        texts = [part[k : k + 1_000] for part in parts for k in range(0, len(part), 1_000)]
        words = [n for some in texts for n in count_words(some).to_pylist() if n]
        tokens = (pc.sum(own[name]).as_py() for name in ("input_tokens", "output_tokens"))
        effort_of[rater] = Effort(counts, float(np.mean(words)) if words else None, *tokens)
    return effort_of


@dataclass(frozen=True)
class PairFacts:
    """Facts of each pair, shape (n,) each.

    Attributes:
        clusters: group of the pair, from `litbench.records.connected_prompts`.
        difference: words of the chosen story minus words of the rejected story; NaN where a text is
            unknown.
    """

    clusters: np.ndarray
    difference: np.ndarray

    @classmethod
    def of(cls, pairs: pa.Table) -> "PairFacts":
        """The facts of a pairs table."""
        words = _numbers(pairs["chosen_n_words"]) - _numbers(pairs["rejected_n_words"])
        known = has_texts(pairs)
        return cls(np.array(connected_prompts(pairs)), np.where(known, words, np.nan))


def has_texts(pairs: pa.Table) -> np.ndarray:
    """Whether both texts of each pair are known; bool, shape (n,).

    Texts are empty where a source publishes only its ratings.
    """
    texts = [pc.not_equal(pairs[side], "") for side in ("chosen", "rejected")]
    known: np.ndarray = pc.and_(*texts).to_numpy()
    return known


def per_repeat_agreement(verdicts: pa.Table, pairs: pa.Table, rater: str) -> list[float]:
    """Headline agreement of each repeat of a cross-validation; `fold` is "repeat/fold"."""
    own = verdicts.filter(
        pc.and_(pc.equal(verdicts["rater"], rater), pc.is_valid(verdicts["fold"]))
    )
    ids = pairs["pair_id"].unique().to_pylist()
    pair = _codes(own["pair_id"], ids)
    repeat = np.array([int(fold.split("/")[0]) for fold in own["fold"].to_pylist()], dtype=int)
    credit = _CREDIT[_codes(own["outcome"], OUTCOMES)]
    agreements = []
    for number in np.unique(repeat[pair >= 0]):
        rows = (repeat == number) & (pair >= 0)
        agreements.append(float(np.nanmean(_mean_by(credit[rows], pair[rows], len(ids)))))
    return agreements
