"""The leaderboard: all results of every rater, from verdicts and pairs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.data.records import connected_prompts
from litbench.metrics.agreement import (
    PairScores,
    efforts,
    length_differences,
    pair_scores,
    per_repeat_agreement,
)
from litbench.metrics.calibration import Calibration, calibration
from litbench.metrics.comparisons import Comparison, compare_all
from litbench.metrics.intervals import Interval
from litbench.runs.config import nearest
from litbench.runs.errors import ConfigError

# The reference where the longer story is right in exactly half of the pairs.
CHANCE = "1/2"

_GAPS = ((0, 25), (25, 50), (50, 100), (100, 200), (200, 400), (400, math.inf))


@dataclass(frozen=True)
class LeaderboardRow:
    """The results of one rater; values that do not apply are None or NaN.

    Attributes:
        agreement: headline agreement.
        pooled_agreement: agreement of the probability averaged over orders; only for raters that
            judge in both orders.
        both_orders: agreement on pairs judged in every order; None if all pairs were.
        coverage: share of verdicts that are judgements.
        flip_rate: share of pairs in which the two orders disagree.
        position_bias: how often the story shown first wins.
        consistent: agreement on pairs for which both orders name the same story.
        consistent_share: share of all pairs for which both orders name the same story, averaged
            over repeats.
        chosen_longer: agreement on pairs whose chosen story is longer.
        by_gap: agreement by length gap in words; (minimum, maximum, interval).
        outcomes: number of verdicts with each outcome.
        explanation_words: mean over judgements with a nonempty explanation; None without any.
        input_tokens: total; None if unknown, as `output_tokens`.
        comparison: comparison with the reference; None for the reference itself, and for the
            longer story where the reference is `CHANCE`.
        repeats: agreement of each repeat of a cross-validation.
        pairs_per_second: counts a pair once per repeat, as do `stories_per_second` and
            `cost_per_1000_pairs`.
        stories_per_second: distinct stories per second.
        before_symmetry: agreement on the pairs before length symmetry, if they are given.
        trained_on: number of prompts of these pairs that the rater was trained on; if above 0, the
            results are not valid.
        stopped: how many pairs it judged until it was decided or futile, such as "312 of 1,200
            pairs"; empty if it judged all.
    """

    rater: str
    kind: str
    agreement: Interval
    pooled_agreement: Interval | None
    both_orders: Interval | None
    coverage: float
    flip_rate: Interval | None
    position_bias: Interval | None
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
    stopped: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether the rater judged any pair; if not, its agreement is NaN."""
        return self.coverage > 0

    @property
    def is_judge(self) -> bool:
        """Whether the rater has orders, explanations, tokens, a cost, or pairs it did not judge."""
        values = (self.position_bias, self.explanation_words, self.input_tokens, self.cost_usd)
        return self.coverage < 1 or any(value is not None for value in values)

    @property
    def no_information(self) -> str:
        """Why its verdicts carry no information, see `lacks_information`; empty otherwise."""
        flip_rate, first = self.flip_rate, self.position_bias
        return lacks_information(
            self.outcomes,
            self.coverage,
            None if flip_rate is None else flip_rate.mean,
            None if first is None else first.mean,
        )


def lacks_information(
    outcomes: Mapping[str, int],
    coverage: float,
    flip_rate: float | None = None,
    position_bias: float | None = None,
) -> str:
    """Why verdicts carry no information about the stories; empty if they may carry some.

    Args:
        outcomes: number of verdicts with each outcome.
        coverage: share of verdicts that are judgements.
        flip_rate: share of pairs whose orders name different stories; None without orders.
        position_bias: how often the story shown first wins; None without orders.
    """
    named = outcomes.get("chosen", 0) + outcomes.get("rejected", 0)
    ties = outcomes.get("tie", 0)
    if coverage < 0.5:
        return f"only {coverage:.0%} of the verdicts are judgements"
    # Fewer verdicts may be alike by chance.
    if named + ties < 10:
        return ""
    if ties >= 0.95 * (named + ties):
        return f"it prefers neither story in {ties:,} of {named + ties:,} judgements"
    if position_bias is not None and abs(position_bias - 0.5) >= 0.45:
        side = "first" if position_bias > 0.5 else "second"
        share = max(position_bias, 1 - position_bias)
        return f"it names the story shown {side} in {share:.0%} of its judgements"
    if flip_rate is not None and flip_rate >= 0.9:
        return f"its two orders name different stories in {flip_rate:.0%} of the pairs"
    return ""


def check_reference(reference: str, raters: Sequence[str]) -> None:
    """Raise a ConfigError if the reference is not a rater; call it before judging."""
    if reference not in raters:
        raise ConfigError(f"reference '{reference}' is not a rater: {nearest(reference, raters)}")


def reference_credits(
    scores: Sequence[PairScores], pairs: pa.Table, reference: str
) -> tuple[str, dict[str, np.ndarray]]:
    """The reference, and the credits of all raters that are compared with it.

    After length symmetry, the longer story is right in exactly half of the pairs by construction,
    so its own result on each pair is a coin's: `CHANCE` takes its place.

    Raters that judged no pair are compared with nothing.

    Args:
        scores: of all raters.
        pairs: the pairs that they judged.
        reference: the rater that all others are compared with.

    Returns:
        The name of the reference, and by rater the credit of each pair, shape (n,), with the
        reference among them.
    """
    credits = {
        rater.rater: rater.credit
        for rater in scores
        if rater.judged.any() or rater.rater == reference
    }
    is_longer = {rater.rater for rater in scores if rater.kind == "longer"}
    if reference not in is_longer or not longer_is_coin(pairs):
        return reference, credits
    compared = {rater: credit for rater, credit in credits.items() if rater not in is_longer}
    return CHANCE, {**compared, CHANCE: np.full(pairs.num_rows, 0.5)}


def longer_is_coin(pairs: pa.Table) -> bool:
    """Whether the longer story is the chosen one in exactly half of the pairs with a longer one."""
    differences = length_differences(pairs)
    longer = int((differences > 0).sum())
    return longer > 0 and longer == int((differences < 0).sum())


def leaderboard(
    verdicts: pa.Table,
    pairs: pa.Table,
    reference: str,
    *,
    before_symmetry: pa.Table | None = None,
    trained_on: Mapping[str, int] | None = None,
) -> list[LeaderboardRow]:
    """Compute the results of every rater.

    Args:
        verdicts: table with the schema VERDICTS.
        pairs: the pairs of the headline agreement.
        reference: the rater that all others are compared with, chosen in advance; see
            `reference_credits`.
        before_symmetry: a superset of `pairs`, from before length symmetry; verdicts must cover it.
        trained_on: by rater, the number of prompts that it was trained on.

    Returns:
        One row per rater, highest agreement first; last, raters that judged no pair.
    """
    all_scores = pair_scores(verdicts, pairs)
    check_reference(reference, [scores.rater for scores in all_scores])
    clusters, differences = np.array(connected_prompts(pairs)), length_differences(pairs)
    gaps, longer, shorter = np.abs(differences), differences > 0, differences < 0
    name, credits = reference_credits(all_scores, pairs, reference)
    trainings = {scores.rater: scores.training for scores in all_scores}
    comparisons = {
        comparison.rater: comparison
        for comparison in compare_all(credits, name, clusters, trainings)
    }
    wider: dict[str, Interval] = {}
    if before_symmetry is not None:
        keys = np.array(connected_prompts(before_symmetry))
        for scores in pair_scores(verdicts, before_symmetry):
            wider[scores.rater] = scores.interval(scores.credit, keys)
    sides = [pairs[name].to_pylist() for name in ("chosen_story_id", "rejected_story_id")]
    stories = len({key for side in sides for key in zip(clusters, side, strict=True)})
    effort_of = efforts(verdicts, pairs)
    rows = []

    for scores in all_scores:

        def interval(values: np.ndarray, scores: PairScores = scores) -> Interval | None:
            rows = np.flatnonzero(np.isfinite(values))
            return scores.interval(values, clusters, rows) if len(rows) else None

        def agreement(*inside: np.ndarray, scores: PairScores = scores) -> Interval:
            interval = scores.interval(scores.credit, clusters, *inside)
            if scores.judged.any():
                return interval
            return replace(interval, mean=math.nan, low=math.nan, high=math.nan)

        ordered = bool(np.isfinite(scores.position_bias).any())
        complete = bool(np.isfinite(scores.both_orders).all())
        seconds = (
            float(np.nansum(scores.seconds)) if np.isfinite(scores.seconds).any() else math.nan
        )
        cost = float(np.nansum(scores.cost_usd)) if np.isfinite(scores.cost_usd).any() else None
        is_judged = bool(scores.judged.any())
        repeats = per_repeat_agreement(verdicts, pairs, scores.rater)
        times = max(len(repeats), 1)
        by_gap = [
            (float(low), float(high), scores.interval(scores.credit, clusters, inside))
            for low, high in _GAPS
            if is_judged and (inside := (gaps >= low) & (gaps < high)).sum() >= 10
        ]
        judged = len(scores.credit) * times
        rows.append(
            LeaderboardRow(
                rater=scores.rater,
                kind=scores.kind,
                agreement=agreement(),
                pooled_agreement=interval(scores.pooled_credit) if ordered else None,
                both_orders=None if complete else interval(scores.both_orders),
                coverage=float(scores.judged.mean()),
                flip_rate=interval(scores.flipped),
                position_bias=interval(scores.position_bias),
                consistent=interval(scores.consistent),
                consistent_share=float(np.nan_to_num(scores.same).mean()) if ordered else None,
                **effort_of[scores.rater],
                chosen_longer=agreement(longer),
                chosen_shorter=agreement(shorter),
                by_gap=by_gap,
                calibration=calibration(scores.p_chosen, clusters, scores.training),
                comparison=comparisons.get(scores.rater),
                repeats=repeats if is_judged else [],
                seconds=seconds,
                pairs_per_second=judged / seconds if seconds else math.inf,
                stories_per_second=stories * times / seconds if seconds else math.inf,
                cost_usd=cost,
                cost_per_1000_pairs=None if cost is None else 1_000 * cost / judged,
                before_symmetry=wider.get(scores.rater) if is_judged else None,
                trained_on=(trained_on or {}).get(scores.rater, 0),
            )
        )
    return sorted_rows(rows)


def sorted_rows(rows: Sequence[LeaderboardRow]) -> list[LeaderboardRow]:
    """Rows by agreement, highest first; last, raters that judged no pair."""
    return sorted(rows, key=lambda row: (not row.is_judged, -row.agreement.mean, row.rater))


def plain(value: Any) -> Any:
    """Convert results to JSON values: numbers to six digits, intervals to objects, NaN to None."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, float):
        return None if not math.isfinite(value) else round(value, 6)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def leaderboard_csv(rows: Sequence[LeaderboardRow]) -> list[dict[str, Any]]:
    """The rows for `csv_table.write_csv`: single values and intervals, without nested results."""
    inner = ("by_gap", "calibration", "comparison", "outcomes", "repeats")
    names = [field.name for field in fields(LeaderboardRow) if field.name not in inner]
    return [
        {name: getattr(row, name) for name in names}
        | {
            "pairs": row.agreement.n,
            "prompts": row.agreement.clusters,
            "effective_prompts": row.agreement.effective_clusters,
            "difference": row.comparison and row.comparison.difference,
            "p_holm": row.comparison and row.comparison.p_holm,
            "no_information": row.no_information,
        }
        | row.outcomes
        for row in rows
    ]
