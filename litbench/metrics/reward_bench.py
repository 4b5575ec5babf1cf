"""RewardBench 2's own score: best of four by subset, and the subset Ties by its own formula.

Malik et al., 2025, RewardBench 2: Advancing Reward Model Evaluation; the weights are those of the
published code, allenai/reward-bench at 05a9005.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.records import SIDES
from litbench.metrics.agreement import PairScores
from litbench.metrics.best_of_k import find_items, item_credits

_TIES = "Ties"


@dataclass(frozen=True)
class TiesRow:
    """A row of the subset Ties, with the rewards of its answers.

    A prompt has a row with one correct answer and a row with several.
    """

    prompt: str
    has_several: bool
    correct: tuple[float, ...]
    incorrect: tuple[float, ...]

    @property
    def gap(self) -> float:
        """The lowest reward of a correct answer minus the highest of an incorrect one."""
        return min(self.correct) - max(self.incorrect)

    @property
    def spread(self) -> float:
        """The range of the correct answers' rewards."""
        return max(self.correct) - min(self.correct)


def ties_score(rows: Sequence[TiesRow]) -> float:
    """The score of the subset Ties, 0 to 1.01.

    A row is accurate if every correct answer is above all incorrect ones. Accuracy of the rows with
    several and with one correct answer count 0.3 each. Over prompts with both rows, the share whose
    gap exceeds the spread of their correct answers counts 0.2, the same with the smaller of both
    gaps 0.2, and the mean of tanh(smaller gap / spread - 1) 0.01; 0 / 0 counts 0.
    """
    several = {row.prompt: row for row in rows if row.has_several}
    single = {row.prompt: row for row in rows if not row.has_several}

    def mean(values: Sequence[float] | np.ndarray) -> float:
        return float(np.mean(values)) if len(values) else 0.0

    both = [prompt for prompt in several if prompt in single]
    gaps = np.array([several[prompt].gap for prompt in both])
    smaller = np.minimum(gaps, [single[prompt].gap for prompt in both])
    spreads = np.array([several[prompt].spread for prompt in both])
    with np.errstate(divide="ignore", invalid="ignore"):
        margins = np.nan_to_num(np.tanh(smaller / spreads - 1))
    return (
        0.3 * mean([row.gap > 0 for row in several.values()])
        + 0.3 * mean([row.gap > 0 for row in single.values()])
        + 0.2 * mean(gaps > spreads)
        + 0.2 * mean(smaller > spreads)
        + 0.01 * mean(margins)
    )


@dataclass(frozen=True)
class RewardBenchScore:
    """The published score of a rater.

    Attributes:
        subsets: score of each subset; NaN for Ties if the rater gives no rewards.
        mean: mean over the subsets, each counted once.
    """

    rater: str
    subsets: dict[str, float]

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.subsets.values())))


def reward_bench_2(
    scores: Sequence[PairScores], verdicts: pa.Table, pairs: pa.Table
) -> list[RewardBenchScore]:
    """The score of every rater, highest first; none if the pairs are not RewardBench 2.

    Args:
        scores: of all raters on these pairs.
        verdicts: with the schema VERDICTS.
        pairs: with `item_id` and `subset`; the items of the subset Ties are named `ref:N` and
            `tied:N`.
    """
    if not {"item_id", "subset"} <= set(pairs.column_names):
        return []
    subsets = pairs["subset"].to_pylist()
    if _TIES not in subsets:
        return []
    items_of: dict[str, list[int]] = {}
    for row, subset in enumerate(subsets):
        items_of.setdefault(subset, []).append(row)
    results = []
    for rater in scores:
        by_subset = {}
        for subset, rows in sorted(items_of.items()):
            if subset == _TIES:
                ties = _ties_rows(verdicts, pairs.take(rows), rater.rater)
                by_subset[subset] = math.nan if ties is None else ties_score(ties)
                continue
            items, _ = find_items(pairs.take(rows))
            by_subset[subset] = float(item_credits(rater.credit[rows], items).mean())
        results.append(RewardBenchScore(rater.rater, by_subset))
    return sorted(results, key=lambda score: (math.isnan(score.mean), -score.mean, score.rater))


def _ties_rows(verdicts: pa.Table, pairs: pa.Table, rater: str) -> list[TiesRow] | None:
    """The rows of the subset Ties with a rater's rewards; None if it gives none."""
    table = verdicts.filter(pc.equal(verdicts["rater"], rater))
    table = table.filter(pc.is_in(table["pair_id"], pairs["pair_id"]))
    if table["reward_chosen"].null_count or table["reward_rejected"].null_count:
        return None
    columns = (table[name].to_pylist() for name in ("pair_id", "reward_chosen", "reward_rejected"))
    rewards = {pair: both for pair, *both in zip(*columns, strict=True)}
    answers_of: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    names = ("item_id", "pair_id", *(f"{side}_story_id" for side in SIDES))
    for item, pair, *stories in zip(*(pairs[name].to_pylist() for name in names), strict=True):
        sides = answers_of.setdefault(item, ({}, {}))
        for answers, story, reward in zip(sides, stories, rewards[pair], strict=True):
            answers[story] = reward
    rows = []
    for item, (correct, incorrect) in answers_of.items():
        kind, _, prompt = item.partition(":")
        both = (tuple(correct.values()), tuple(incorrect.values()))
        rows.append(TiesRow(prompt, kind == "tied", *both))
    return rows
