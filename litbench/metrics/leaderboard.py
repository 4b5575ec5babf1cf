"""The leaderboard: every figure of every rater, from verdicts and pairs."""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.config import nearest
from litbench.errors import ConfigError
from litbench.metrics.agreement import (
    PairFacts,
    PairScores,
    efforts,
    pair_scores,
    per_repeat_agreement,
)
from litbench.metrics.calibration import Calibration, calibration
from litbench.metrics.comparisons import Comparison, compare_all
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.records import OUTCOMES
from litbench.text import clean_name

_CSV_COLUMNS = (
    "rater", "kind", "agreement", "low", "high", "n", "prompts", "effective_prompts",
    "chosen_longer", "chosen_shorter", "before_symmetry", "coverage", "difference", "p_holm",
    "seconds", "pairs_per_second", "stories_per_second", "trained_on", "both_orders", "flip_rate",
    "position_lean", "consistent", "consistent_low", "consistent_high", "consistent_share",
    *OUTCOMES, "explanation_words", "input_tokens", "output_tokens", "cost_usd",
    "cost_per_1000_pairs",
)  # fmt: skip
# Full-width forms count: spreadsheets of East Asian locales take them for the plain ones.
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")
_GAPS = ((0, 25), (25, 50), (50, 100), (100, 200), (200, 400), (400, math.inf))


@dataclass(frozen=True)
class LeaderboardRow:
    """One rater's figures.

    Attributes:
        rater: name.
        kind: kind of rater.
        agreement: headline agreement.
        pooled_agreement: from the probability averaged over orders; only for ordered raters.
        both_orders: agreement on pairs judged in every order; only where some were not.
        coverage: share of verdicts that are judgements.
        flip_rate: share of pairs in which the two orders disagree; only for ordered raters.
        position_lean: how often the story shown first wins; only for ordered raters.
        consistent: agreement on pairs of which both orders name the same story; only for ordered
            raters.
        consistent_share: share of all pairs that are such; over repeats the mean.
        outcomes: verdicts by outcome, every one of `OUTCOMES`.
        explanation_words: mean length of an explanation, see `litbench.metrics.agreement.Effort`.
        input_tokens: read for these pairs; None where nobody tells.
        output_tokens: written, likewise.
        chosen_longer: agreement on pairs whose chosen story is the longer.
        chosen_shorter: agreement on pairs whose chosen story is the shorter.
        by_gap: agreement by length gap in words; (least, most, interval).
        calibration: None without probabilities.
        comparison: against the reference; None for the reference itself.
        repeats: agreement of each repeat of a cross-validation.
        seconds: time for all its verdicts on these pairs; NaN where no verdict tells.
        pairs_per_second: pairs over seconds, repeats counted; NaN likewise.
        stories_per_second: distinct stories of these pairs over seconds, repeats counted; NaN
            likewise.
        cost_usd: for these pairs; None where nothing was paid.
        cost_per_1000_pairs: the same for a thousand of them, repeats counted.
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


def _where_known(values: np.ndarray, clusters: np.ndarray) -> Interval | None:
    known = np.isfinite(values)
    return jackknife_interval(values[known], clusters[known]) if known.any() else None


def _by_gap(scores: PairScores, facts: PairFacts) -> list[tuple[float, float, Interval]]:
    size = np.abs(facts.difference)
    rows = []
    for low, high in _GAPS:
        inside = (size >= low) & (size < high)
        if inside.sum() >= 10:
            interval = jackknife_interval(scores.credit[inside], facts.clusters[inside])
            rows.append((float(low), float(high), interval))
    return rows


def check_reference(reference: str, raters: Sequence[str]) -> None:
    """Check that the reference is among the raters; programs do so before hours of judging.

    Raises:
        ConfigError: it is not; the nearest rater is named.
    """
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

    Raises:
        ConfigError: the reference is no rater of these verdicts.
        DataError: see `pair_scores`.
    """
    all_scores = pair_scores(verdicts, pairs)
    names = [scores.rater for scores in all_scores]
    check_reference(reference, names)
    facts = PairFacts.of(pairs)
    comparisons = {
        comparison.rater: comparison
        for comparison in compare_all(
            {s.rater: s.credit for s in all_scores}, reference, facts.clusters
        )
    }
    wider: dict[str, Interval] = {}
    if before_symmetry is not None:
        wider_facts = PairFacts.of(before_symmetry)
        for scores in pair_scores(verdicts, before_symmetry):
            wider[scores.rater] = jackknife_interval(scores.credit, wider_facts.clusters)
    stories = len(
        {
            (key, story)
            for side in ("chosen_story_id", "rejected_story_id")
            for key, story in zip(facts.clusters, pairs[side].to_pylist(), strict=True)
        }
    )
    effort_of = efforts(verdicts, pairs)
    rows = []
    for scores in all_scores:
        effort = effort_of[scores.rater]
        ordered = bool(np.isfinite(scores.first_wins).any())
        complete = bool(np.isfinite(scores.both_orders).all())
        longer, shorter = facts.difference > 0, facts.difference < 0
        timed = np.isfinite(scores.seconds).any()
        seconds = float(np.nansum(scores.seconds)) if timed else math.nan
        repeats = per_repeat_agreement(verdicts, pairs, scores.rater)
        rounds = max(len(repeats), 1)
        paid = np.isfinite(scores.cost_usd).any()
        cost = float(np.nansum(scores.cost_usd)) if paid else None
        consistent = _where_known(scores.consistent, facts.clusters)
        rows.append(
            LeaderboardRow(
                rater=scores.rater,
                kind=scores.kind,
                agreement=jackknife_interval(scores.credit, facts.clusters),
                pooled_agreement=_where_known(scores.pooled_credit, facts.clusters)
                if ordered
                else None,
                both_orders=None if complete else _where_known(scores.both_orders, facts.clusters),
                coverage=float(scores.judged.mean()),
                flip_rate=_where_known(scores.flipped, facts.clusters),
                position_lean=_where_known(scores.first_wins, facts.clusters),
                consistent=consistent,
                consistent_share=float(np.nan_to_num(scores.same).mean()) if ordered else None,
                outcomes=effort.outcomes,
                explanation_words=effort.explanation_words,
                input_tokens=effort.input_tokens,
                output_tokens=effort.output_tokens,
                chosen_longer=jackknife_interval(scores.credit[longer], facts.clusters[longer]),
                chosen_shorter=jackknife_interval(scores.credit[shorter], facts.clusters[shorter]),
                by_gap=_by_gap(scores, facts),
                calibration=calibration(scores.p_chosen, facts.clusters),
                comparison=comparisons.get(scores.rater),
                repeats=repeats,
                seconds=seconds,
                pairs_per_second=len(scores.credit) * rounds / seconds if seconds else math.inf,
                stories_per_second=stories * rounds / seconds if seconds else math.inf,
                cost_usd=cost,
                cost_per_1000_pairs=None
                if cost is None
                else 1_000 * cost / (len(scores.credit) * rounds),
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


def csv_cell(value: Any) -> Any:
    """A value for CSV: what `plain` gives, and a text that a spreadsheet would run made harmless.

    Spreadsheets take a cell that begins with =, +, -, @, a tab or a carriage return for a formula;
    an apostrophe in front makes it a text (OWASP, CSV injection).
    """
    value = plain(value)
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def write_leaderboard_csv(rows: list[LeaderboardRow], path: Path) -> None:
    """Write the headline figures as CSV, by `csv_cell`."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_CSV_COLUMNS)
        for row in rows:
            comparison = row.comparison
            wider = row.before_symmetry
            consistent = row.consistent
            values = [
                row.rater, row.kind, row.agreement.mean, row.agreement.low, row.agreement.high,
                row.agreement.n, row.agreement.clusters, row.agreement.effective_clusters,
                row.chosen_longer.mean, row.chosen_shorter.mean,
                None if wider is None else wider.mean, row.coverage,
                None if comparison is None else comparison.difference.mean,
                None if comparison is None else comparison.p_holm,
                row.seconds, row.pairs_per_second, row.stories_per_second, row.trained_on,
                *(
                    None if of is None else of.mean
                    for of in (row.both_orders, row.flip_rate, row.position_lean)
                ),
                *((None,) * 3 if consistent is None
                  else (consistent.mean, consistent.low, consistent.high)),
                row.consistent_share, *(row.outcomes[name] for name in OUTCOMES),
                row.explanation_words, row.input_tokens, row.output_tokens, row.cost_usd,
                row.cost_per_1000_pairs,
            ]  # fmt: skip
            writer.writerow([csv_cell(value) for value in values])


def noise_note(rows: Sequence[LeaderboardRow]) -> str:
    """Which differences from the reference chance alone could make; empty without a comparison."""
    compared = [row for row in rows if row.comparison is not None]
    if not compared or compared[0].comparison is None:
        return ""
    reference = clean_name(compared[0].comparison.reference)
    unclear = [
        clean_name(row.rater) for row in compared if row.comparison and not row.comparison.is_clear
    ]
    if not unclear:
        return f"Every difference from {reference} is outside the noise."
    verb = "is" if len(unclear) == 1 else "are"
    return (
        f"{len(unclear)} of {len(compared)} differences from {reference} {verb} within the noise "
        f"({', '.join(unclear)}): these pairs cannot tell such raters from it, nor show that they "
        "are equal to it."
    )


def strata_note(row: LeaderboardRow) -> str:
    """On how few pairs the strata by length stand, where they are not nearly all; else empty."""
    longer, shorter, n = row.chosen_longer.n, row.chosen_shorter.n, row.agreement.n
    if longer + shorter >= 0.8 * n:
        return ""
    return (
        f"Of {n:,} pairs the chosen story is known to be the longer in {longer:,} and the shorter "
        f"in {shorter:,}: agreement there says nothing of the others."
    )


def _of(interval: Interval) -> str:
    return f"{interval.mean:.3f}" if interval.n else "-"


def write_dollars(value: float | None) -> str:
    """An amount of dollars to the cent, or to two digits where it is less than ten cents."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def _number(value: Interval | float | None, form: str = ",.0f") -> str:
    if isinstance(value, Interval):
        value = value.mean
    return "" if value is None else format(value, form)


def _judges_text(rows: Sequence[LeaderboardRow], width: int) -> list[str]:
    columns = {
        "flip rate": [_number(row.flip_rate, ".3f") for row in rows],
        "first wins": [_number(row.position_lean, ".3f") for row in rows],
        "orders agree on": [_number(row.consistent_share, ".1%") for row in rows],
        "and are right": ["" if row.consistent is None else str(row.consistent) for row in rows],
        "coverage": [_number(row.coverage, ".3f") for row in rows],
        **{
            name: [_number(row.outcomes[name] or None) for row in rows]
            for name in OUTCOMES
            if name not in ("chosen", "rejected")
        },
        "words": [_number(row.explanation_words, ",.1f") for row in rows],
        "tokens read": [_number(row.input_tokens) for row in rows],
        "written": [_number(row.output_tokens) for row in rows],
        "$": ["" if row.cost_usd is None else write_dollars(row.cost_usd) for row in rows],
        "$ per 1,000 pairs": [
            "" if row.cost_usd is None else write_dollars(row.cost_per_1000_pairs) for row in rows
        ],
        "seconds": [
            ""
            if math.isnan(row.seconds)
            else _number(row.seconds, ",.3g" if row.seconds < 100 else ",.0f")
            for row in rows
        ],
    }
    shown = [[title, *(cell or "-" for cell in of)] for title, of in columns.items() if any(of)]
    widths = [max(map(len, column)) for column in shown]
    names = ["judge", *(clean_name(row.rater) for row in rows)]
    width = max(width, len(names[0]))
    return [
        f"{name:<{width}}  "
        + "  ".join(f"{cell:>{wide}}" for cell, wide in zip(cells, widths, strict=True))
        for name, *cells in zip(names, *shown, strict=True)
    ]


def leaderboard_text(rows: list[LeaderboardRow]) -> str:
    """The leaderboard for a terminal; where raters were asked, with a second table about them."""
    width = max(len(clean_name(row.rater)) for row in rows)
    reference = next((clean_name(row.rater) for row in rows if row.comparison is None), "")
    first = rows[0].agreement
    lines = [
        f"agreement with the labels: {first.n:,} pairs, {first.clusters:,} prompts "
        f"(worth {first.effective_clusters:.0f} of equal size), 95 % intervals by prompt",
        "",
        f"{'rater':<{width}}  agreement              chosen longer  shorter  vs {reference}",
    ]
    for row in rows:
        versus = "reference"
        if row.comparison is not None:
            verdict = "" if row.comparison.is_clear else " (within noise)"
            versus = f"{row.comparison.difference.mean:+.3f}{verdict}"
        flag = f"  TRAINED ON {row.trained_on} OF THESE PROMPTS" if row.trained_on else ""
        lines.append(
            f"{clean_name(row.rater):<{width}}  {row.agreement!s:<21}  "
            f"{_of(row.chosen_longer):>13}  {_of(row.chosen_shorter):>7}  {versus}{flag}"
        )
    note = strata_note(rows[0])
    lines += ["", note] if note else []
    judges = [row for row in rows if row.is_judge]
    if judges:
        lines += ["", *_judges_text(judges, width)]
        note = noise_note(rows)
        lines += ["", note] if note else []
    return "\n".join(lines)
