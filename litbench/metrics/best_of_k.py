"""Best of k: is an item's best answer, by people, also a rater's first choice?

An item is a set of answers that people compared together: a ranking, or one best answer and several
others. Its pairs share an `item_id`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from litbench.data.records import SIDES, connected_prompts
from litbench.metrics.agreement import PairScores
from litbench.metrics.comparisons import Comparison, compare_all, difference_interval
from litbench.metrics.intervals import Interval, Training, clustered_mean, jackknife_interval
from litbench.metrics.leaderboard import longer_is_coin

# The reference where no rater is named: a random choice among an item's answers.
RANDOM_CHOICE = "random choice"


@dataclass(frozen=True)
class AnswerSet:
    """The answers that people compared together.

    Attributes:
        rows: the item's pairs.
        best: for each best answer, its pairs with worse answers.
        answers: number of answers, k.
        is_ranked: whether people also ordered answers other than the best.
    """

    rows: np.ndarray
    best: tuple[np.ndarray, ...]
    answers: int
    is_ranked: bool

    @property
    def chance(self) -> float:
        """The share of best answers, which a random choice reaches."""
        return len(self.best) / self.answers


@dataclass(frozen=True)
class BestOfK:
    """A rater's results on the items.

    Attributes:
        share: share of the items in which the rater puts a best answer first; see `item_credits`.
        comparison: with the reference, corrected by Holm for all raters; None for the reference.
        tau: mean over ranked items of concordant minus discordant pairs, divided by the item's
            pairs (Kendall, 1938, tau-a of the pairs that people ordered); None without rankings.
    """

    rater: str
    share: Interval
    comparison: Comparison | None
    tau: Interval | None


@dataclass(frozen=True)
class BestOfKResults:
    """The results of all raters, best first.

    Attributes:
        items: number of items.
        left_out: items without a best answer that is compared with every worse one.
        min_answers: smallest number of answers of an item; `max_answers` is the largest.
        chance: expected share of a random choice.
        reference: the rater that the others are compared with, or `RANDOM_CHOICE`.
    """

    items: int
    left_out: int
    min_answers: int
    max_answers: int
    chance: float
    reference: str
    rows: tuple[BestOfK, ...]


def find_items(pairs: pa.Table) -> tuple[list[AnswerSet], int]:
    """The items of pairs with `item_id`, and the number of those left out.

    The best answers are those that no pair of the item rejects. An item is left out if it has none,
    or if a best and a worse answer are not a pair.
    """
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(pairs["item_id"].to_pylist()):
        if name is not None:
            rows_of.setdefault(name, []).append(row)
    chosen, rejected = (np.array(pairs[f"{side}_story_id"].to_pylist()) for side in SIDES)
    items, left_out = [], 0
    for rows in map(np.array, rows_of.values()):
        worse = set(rejected[rows])
        best = sorted(set(chosen[rows]) - worse)
        of_best = tuple(rows[chosen[rows] == answer] for answer in best)
        if not best or any(len(with_worse) != len(worse) for with_worse in of_best):
            left_out += 1
            continue
        is_ranked = sum(map(len, of_best)) < len(rows)
        items.append(AnswerSet(rows, of_best, len(best) + len(worse), is_ranked))
    return items, left_out


def item_credits(credit: np.ndarray, items: Sequence[AnswerSet]) -> np.ndarray:
    """Whether each item's best answer beats all worse ones; float64, shape (items,).

    A best answer that ties for the first place counts 1 over the number of answers that share it.
    Of several best answers the most successful one counts.

    Args:
        credit: credit of each pair, averaged over orders: above 1/2 the chosen answer wins, and at
            1/2 (as for a pair that was not judged) both share the place; shape (n,).
        items: their rows index `credit`.
    """

    def first_place(values: np.ndarray) -> float:
        return 0.0 if (values < 0.5).any() else 1.0 / (1 + int((values == 0.5).sum()))

    return np.array([max(first_place(credit[rows]) for rows in item.best) for item in items])


def best_of_k(
    scores: Sequence[PairScores], pairs: pa.Table, reference: str
) -> BestOfKResults | None:
    """Results of every rater on items of three or more answers; None if the pairs have none.

    Args:
        scores: of all raters on these pairs.
        pairs: with the schema PAIRS.
        reference: the rater that the others are compared with. `RANDOM_CHOICE` takes its place if
            it judged nothing, or is the longer story and the pairs have length symmetry.
    """
    if "item_id" not in pairs.column_names:
        return None
    items, left_out = find_items(pairs)
    if not any(item.answers > 2 for item in items):
        return None
    prompts = connected_prompts(pairs)
    clusters = np.array([prompts[item.rows[0]] for item in items])
    chances = np.array([item.chance for item in items])
    judged = {rater.rater: rater for rater in scores if rater.judged.any()}
    credits = {name: item_credits(rater.credit, items) for name, rater in judged.items()}
    is_coin = reference in judged and judged[reference].kind == "longer" and longer_is_coin(pairs)
    if reference not in judged or is_coin:
        reference = RANDOM_CHOICE
        credits[reference] = chances
    # How training changes an item's credit is not known, so the variance is doubled.
    trainings = {name: rater.training and Training() for name, rater in judged.items()}
    compared = {
        result.rater: result for result in compare_all(credits, reference, clusters, trainings)
    }
    ranked = np.flatnonzero([item.is_ranked for item in items])

    def tau(credit: np.ndarray, training: Training | None) -> Interval | None:
        values = [float(np.sign(credit[items[index].rows] - 0.5).mean()) for index in ranked]
        estimate = clustered_mean(np.array(values), clusters[ranked], training)
        return difference_interval(estimate)[0] if values else None

    rows = [
        BestOfK(
            name,
            jackknife_interval(credits[name], clusters, trainings[name]),
            compared.get(name),
            tau(rater.credit, trainings[name]),
        )
        for name, rater in judged.items()
    ]
    answers = [item.answers for item in items]
    return BestOfKResults(
        items=len(items),
        left_out=left_out,
        min_answers=min(answers),
        max_answers=max(answers),
        chance=float(chances.mean()),
        reference=reference,
        rows=tuple(sorted(rows, key=lambda row: (-row.share.mean, row.rater))),
    )
