"""The leaderboard: every figure of every rater, from verdicts and pairs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.config import nearest
from litbench.errors import ConfigError
from litbench.metrics.agreement import (
    PairFacts,
    efforts,
    pair_scores,
    per_repeat_agreement,
)
from litbench.metrics.calibration import Calibration, calibration
from litbench.metrics.comparisons import Comparison, compare_all
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.records import prompt_keys

_GAPS = ((0, 25), (25, 50), (50, 100), (100, 200), (200, 400), (400, math.inf))


@dataclass(frozen=True)
class LeaderboardRow:
    """One rater's figures; what does not apply is None or NaN.

    Attributes:
        agreement: headline agreement.
        pooled_agreement: from the probability averaged over orders; only for ordered raters.
        both_orders: agreement on pairs judged in every order; only where some were not.
        coverage: share of verdicts that are judgements.
        flip_rate: share of pairs in which the two orders disagree.
        position_lean: how often the story shown first wins.
        consistent: agreement on pairs of which both orders name the same story.
        consistent_share: share of all pairs that are such; over repeats the mean.
        chosen_longer: agreement on pairs whose chosen story is the longer.
        by_gap: agreement by length gap in words; (least, most, interval).
        comparison: against the reference; None for the reference itself.
        repeats: agreement of each repeat of a cross-validation.
        pairs_per_second: repeats counted, as in `stories_per_second` and `cost_per_1000_pairs`.
        stories_per_second: distinct stories.
        before_symmetry: agreement on the pairs before length symmetry, where given.
        trained_on: prompts of these pairs it was trained on; above 0 the row means nothing.
    """

    rater: str
    kind: str
    agreement: Interval
    pooled_agreement: Interval | None
    both_orders: Interval | None
    coverage: float
    flip_rate: Interval | None
    position_lean: Interval | None
    consistent: Interval | None
    consistent_share: float | None
    outcomes: dict[str, int]
    explanation_words: float | None
    input_tokens: int | None
    output_tokens: int | None
    chosen_longer: Interval
    chosen_shorter: Interval
    by_gap: list[tuple[float, float, Interval]]
    calibration: Calibration | None
    comparison: Comparison | None
    repeats: list[float]
    seconds: float
    pairs_per_second: float
    stories_per_second: float
    cost_usd: float | None
    cost_per_1000_pairs: float | None
    before_symmetry: Interval | None
    trained_on: int

    @property
    def is_judge(self) -> bool:
        """Whether it was asked: it has orders, words, tokens or a price, or left pairs unjudged."""
        told = (self.position_lean, self.explanation_words, self.input_tokens, self.cost_usd)
        return self.coverage < 1 or any(value is not None for value in told)


def check_reference(reference: str, raters: Sequence[str]) -> None:
    """Refuse a reference that is no rater; programs do so before hours of judging."""
    if reference not in raters:
        raise ConfigError(f"reference '{reference}' is no rater: {nearest(reference, raters)}")


def leaderboard(
    verdicts: pa.Table,
    pairs: pa.Table,
    reference: str,
    *,
    before_symmetry: pa.Table | None = None,
    trained_on: Mapping[str, int] | None = None,
) -> list[LeaderboardRow]:
    """Compute every rater's figures.

    Args:
        verdicts: table by the schema VERDICTS.
        pairs: the pairs the headline stands on.
        reference: the rater all others are compared with, named before looking.
        before_symmetry: a superset of `pairs` without the last filter; verdicts must cover it.
        trained_on: per rater how many of the prompts it was trained on.

    Returns:
        One row per rater, highest agreement first.
    """
    all_scores = pair_scores(verdicts, pairs)
    check_reference(reference, [scores.rater for scores in all_scores])
    facts = PairFacts.of(pairs)
    clusters, gaps = facts.clusters, np.abs(facts.difference)
    credits = {scores.rater: scores.credit for scores in all_scores}
    comparisons = {one.rater: one for one in compare_all(credits, reference, clusters)}
    wider: dict[str, Interval] = {}
    if before_symmetry is not None:
        keys = prompt_keys(before_symmetry)
        for scores in pair_scores(verdicts, before_symmetry):
            wider[scores.rater] = jackknife_interval(scores.credit, keys)
    sides = [pairs[name].to_pylist() for name in ("chosen_story_id", "rejected_story_id")]
    stories = len({key for side in sides for key in zip(clusters, side, strict=True)})
    effort_of = efforts(verdicts, pairs)
    longer, shorter = facts.difference > 0, facts.difference < 0
    rows = []

    def interval(values: np.ndarray) -> Interval | None:
        known = np.isfinite(values)
        return jackknife_interval(values[known], clusters[known]) if known.any() else None

    for scores in all_scores:
        ordered = bool(np.isfinite(scores.first_wins).any())
        complete = bool(np.isfinite(scores.both_orders).all())
        seconds = (
            float(np.nansum(scores.seconds)) if np.isfinite(scores.seconds).any() else math.nan
        )
        cost = float(np.nansum(scores.cost_usd)) if np.isfinite(scores.cost_usd).any() else None
        repeats = per_repeat_agreement(verdicts, pairs, scores.rater)
        times = max(len(repeats), 1)
        by_gap = [
            (float(low), float(high), jackknife_interval(scores.credit[inside], clusters[inside]))
            for low, high in _GAPS
            if (inside := (gaps >= low) & (gaps < high)).sum() >= 10
        ]
        judged = len(scores.credit) * times
        rows.append(
            LeaderboardRow(
                rater=scores.rater,
                kind=scores.kind,
                agreement=jackknife_interval(scores.credit, clusters),
                pooled_agreement=interval(scores.pooled_credit) if ordered else None,
                both_orders=None if complete else interval(scores.both_orders),
                coverage=float(scores.judged.mean()),
                flip_rate=interval(scores.flipped),
                position_lean=interval(scores.first_wins),
                consistent=interval(scores.consistent),
                consistent_share=float(np.nan_to_num(scores.same).mean()) if ordered else None,
                **vars(effort_of[scores.rater]),
                chosen_longer=jackknife_interval(scores.credit[longer], clusters[longer]),
                chosen_shorter=jackknife_interval(scores.credit[shorter], clusters[shorter]),
                by_gap=by_gap,
                calibration=calibration(scores.p_chosen, clusters),
                comparison=comparisons.get(scores.rater),
                repeats=repeats,
                seconds=seconds,
                pairs_per_second=judged / seconds if seconds else math.inf,
                stories_per_second=stories * times / seconds if seconds else math.inf,
                cost_usd=cost,
                cost_per_1000_pairs=None if cost is None else 1_000 * cost / judged,
                before_symmetry=wider.get(scores.rater),
                trained_on=(trained_on or {}).get(scores.rater, 0),
            )
        )
    return sorted(rows, key=lambda row: (-row.agreement.mean, row.rater))


def plain(value: Any) -> Any:
    """Turn figures into what JSON can hold: six digits, intervals as objects, NaN as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, float):
        return None if not math.isfinite(value) else round(value, 6)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def leaderboard_json(rows: list[LeaderboardRow]) -> list[dict[str, Any]]:
    """The rows as JSON can hold them; what cannot be told is null."""
    return [plain(row) for row in rows]


def leaderboard_csv(rows: Sequence[LeaderboardRow]) -> list[dict[str, Any]]:
    """The figures that fit into one cell, or an interval's three, for `csv_table.write_csv`."""
    inner = ("by_gap", "calibration", "comparison", "outcomes", "repeats")
    names = [one.name for one in fields(LeaderboardRow) if one.name not in inner]
    return [
        {name: getattr(row, name) for name in names}
        | {
            "pairs": row.agreement.n,
            "prompts": row.agreement.clusters,
            "effective_prompts": row.agreement.effective_clusters,
            "difference": row.comparison and row.comparison.difference,
            "p_holm": row.comparison and row.comparison.p_holm,
        }
        | row.outcomes
        for row in rows
    ]
