"""Agreement with the labels: how verdicts become one number per pair, and its strata.

Per order a right verdict counts 1, a tie 1/2, and a pair that was not judged 1/2; then the mean
over orders (and, in repeated cross-validation, over repeats), then over pairs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.errors import DataError
from litbench.records import prompt_keys

_CREDIT = {"chosen": 1.0, "rejected": 0.0}
_JUDGED = ("chosen", "rejected", "tie")


@dataclass(frozen=True)
class PairScores:
    """One rater's verdicts, gathered per pair; all arrays have shape (n,), in the pairs' order.

    Attributes:
        rater: name.
        kind: kind of rater.
        credit: headline agreement of each pair, 0 to 1.
        pooled_credit: the same, from the probability averaged over orders; 1/2 where an order
            lacks one, NaN throughout when the rater gives none.
        judged: share of the pair's verdicts that were a judgement (coverage).
        both_orders: credit where every verdict was a judgement, NaN elsewhere.
        flipped: 1 where the two orders named different stories, 0 where the same; NaN unless
            both named one.
        first_wins: share of judged orders in which the story shown first won; NaN without order.
        p_chosen: probability for the chosen story, averaged over orders and repeats; NaN where
            some verdict lacks one.
        seconds: total time of the pair's verdicts, or NaN.
        cost_usd: total price, or NaN.
    """

    rater: str
    kind: str
    credit: np.ndarray
    pooled_credit: np.ndarray
    judged: np.ndarray
    both_orders: np.ndarray
    flipped: np.ndarray
    first_wins: np.ndarray
    p_chosen: np.ndarray
    seconds: np.ndarray
    cost_usd: np.ndarray


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _mean_of_all(values: Sequence[float | None]) -> float:
    present = [value for value in values if value is not None]
    # The probability of one order alone would carry the lean to a position into the mean.
    return _mean(present) if len(present) == len(values) else math.nan


def _sum(values: Sequence[float | None]) -> float:
    present = [value for value in values if value is not None]
    return sum(present) if present else math.nan


def _credit(outcome: str) -> float:
    return _CREDIT.get(outcome, 0.5)


def _pooled_credit(p: float) -> float:
    return 0.5 if math.isnan(p) or p == 0.5 else float(p > 0.5)


def _gather(
    rater: str, pair_ids: Sequence[str], rows: dict[str, list[dict[str, Any]]]
) -> PairScores:
    columns: dict[str, list[float]] = {
        name: [] for name in PairScores.__annotations__ if name not in ("rater", "kind")
    }
    kind = ""
    has_probabilities = False
    for pair_id in pair_ids:
        verdicts = rows[pair_id]
        kind = verdicts[0]["kind"]
        judged = [float(verdict["outcome"] in _JUDGED) for verdict in verdicts]
        by_repeat: dict[str | None, list[dict[str, Any]]] = {}
        for verdict in verdicts:
            by_repeat.setdefault(verdict["fold"], []).append(verdict)
        credits, probabilities, flips = [], [], []
        for repeat in by_repeat.values():
            credits.append(_mean([_credit(verdict["outcome"]) for verdict in repeat]))
            probabilities.append(_mean_of_all([verdict["p_chosen"] for verdict in repeat]))
            winners = {
                verdict["order"]: verdict["outcome"]
                for verdict in repeat
                if verdict["outcome"] in _CREDIT
            }
            if len(winners) == 2 and None not in winners:
                flips.append(float(winners["chosen"] != winners["rejected"]))
        first = [
            0.5 if verdict["outcome"] == "tie" else float(verdict["outcome"] == verdict["order"])
            for verdict in verdicts
            if verdict["order"] is not None and verdict["outcome"] in _JUDGED
        ]
        has_probabilities |= any(verdict["p_chosen"] is not None for verdict in verdicts)
        columns["credit"].append(_mean(credits))
        columns["pooled_credit"].append(_mean([_pooled_credit(p) for p in probabilities]))
        columns["judged"].append(_mean(judged))
        columns["both_orders"].append(_mean(credits) if all(judged) else math.nan)
        columns["flipped"].append(_mean(flips))
        columns["first_wins"].append(_mean(first))
        columns["p_chosen"].append(_mean(probabilities))
        columns["seconds"].append(_sum([verdict["seconds"] for verdict in verdicts]))
        columns["cost_usd"].append(_sum([verdict["cost_usd"] for verdict in verdicts]))
    if not has_probabilities:
        columns["pooled_credit"] = [math.nan] * len(pair_ids)
    arrays = {name: np.array(values, dtype=float) for name, values in columns.items()}
    return PairScores(rater=rater, kind=kind, **arrays)


def pair_scores(verdicts: pa.Table, pairs: pa.Table) -> list[PairScores]:
    """Gather verdicts per rater and pair.

    Args:
        verdicts: table by the schema VERDICTS; verdicts on other pairs are left out.
        pairs: table by the schema PAIRS.

    Returns:
        One PairScores per rater, in the order in which raters first appear.

    Raises:
        DataError: a rater has no row for some pair. A pair it could not judge is a row with its
            outcome, so a missing row is a fault.
    """
    pair_ids = pairs["pair_id"].to_pylist()
    wanted = set(pair_ids)
    columns = (
        "pair_id",
        "rater",
        "kind",
        "order",
        "outcome",
        "p_chosen",
        "seconds",
        "cost_usd",
        "fold",
    )
    by_rater: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in verdicts.select(columns).to_pylist():
        rows = by_rater.setdefault(row["rater"], {})
        if row["pair_id"] in wanted:
            rows.setdefault(row["pair_id"], []).append(row)
    scores = []
    for rater, rows in by_rater.items():
        missing = len(wanted) - len(rows)
        if missing:
            example = next(pair_id for pair_id in pair_ids if pair_id not in rows)
            raise DataError(
                f"rater {rater}: no verdict on {missing} of {len(wanted)} pairs, such as "
                f"{example}: run it again on this pairs file"
            )
        scores.append(_gather(rater, pair_ids, rows))
    return scores


@dataclass(frozen=True)
class PairFacts:
    """What strata need to know of each pair; shape (n,) each.

    Attributes:
        clusters: `prompt_key` of the prompt.
        difference: words of chosen minus words of rejected.
    """

    clusters: np.ndarray
    difference: np.ndarray

    @classmethod
    def of(cls, pairs: pa.Table) -> "PairFacts":
        """Read the facts off a pairs table."""
        difference = np.array(pairs["chosen_n_words"].to_pylist()) - np.array(
            pairs["rejected_n_words"].to_pylist()
        )
        return cls(np.array(prompt_keys(pairs)), difference)


def per_repeat_agreement(verdicts: pa.Table, pairs: pa.Table, rater: str) -> list[float]:
    """Headline agreement of each repeat of a cross-validation, by repeat.

    Args:
        verdicts: table by the schema VERDICTS whose `fold` reads "repeat/fold".
        pairs: table by the schema PAIRS; verdicts on other pairs are left out.
        rater: its name.
    """
    wanted = set(pairs["pair_id"].to_pylist())
    credits: dict[int, dict[str, list[float]]] = {}
    for row in verdicts.select(["pair_id", "rater", "fold", "outcome"]).to_pylist():
        if row["rater"] == rater and row["fold"] is not None and row["pair_id"] in wanted:
            repeat = credits.setdefault(int(row["fold"].split("/")[0]), {})
            repeat.setdefault(row["pair_id"], []).append(_credit(row["outcome"]))
    return [_mean([_mean(of) for of in credits[repeat].values()]) for repeat in sorted(credits)]
