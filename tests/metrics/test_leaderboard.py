"""The leaderboard: every figure of a small evaluation counted by hand, and how it is written."""

import csv
import math
import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from litbench.data.records import OUTCOMES
from litbench.evaluation.report.csv_table import write_csv
from litbench.evaluation.report.document import compared
from litbench.evaluation.report.leaderboard import (
    correction_note,
    leaderboard_text,
    significance_note,
    strata_note,
)
from litbench.metrics.comparisons import Comparison, paired_difference
from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import (
    CHANCE,
    lacks_information,
    leaderboard,
    leaderboard_csv,
    plain,
)
from litbench.runs.errors import ConfigError
from litbench.runs.terminal import csv_cell, write_dollars

Build = Callable[..., pa.Table]

# Words of chosen and rejected: in four pairs the chosen story is longer, in three shorter, in one
# as long.
LENGTHS = ((9, 4), (8, 2), (7, 6), (30, 3), (2, 5), (3, 9), (1, 40), (6, 6))


def _pairs(pair_table):
    return pair_table(
        [
            {
                "pair_id": f"p{index}",
                "prompt_id": f"q{index // 2}",
                "chosen": "oak " * longer,
                "rejected": "ash " * shorter,
            }
            for index, (longer, shorter) in enumerate(LENGTHS)
        ]
    )


def _longer():
    return [
        {
            "pair_id": f"p{index}",
            "rater": "longer",
            "kind": "longer",
            "outcome": "chosen" if a > b else "rejected" if a < b else "tie",
            "seconds": 0.5,
        }
        for index, (a, b) in enumerate(LENGTHS)
    ]


def _judge():
    """Right in both orders on 0 to 4, always first on 5 and 6, refuses one order of 7."""
    rows = []
    for index in range(8):
        for order in ("chosen", "rejected"):
            outcome = "chosen" if index < 5 else order
            p = {"chosen": 0.9, "rejected": 0.2}[outcome]
            refused = index == 7 and order == "rejected"
            rows.append(
                {
                    "pair_id": f"p{index}",
                    "rater": "judge",
                    "kind": "llm",
                    "order": order,
                    "outcome": "refused" if refused else outcome,
                    "p_chosen": None if refused else p,
                    "seconds": 0.25,
                    "cost_usd": 0.01,
                    "explanation": "I refuse" if refused else "it has more life " * (1 + index % 2),
                    "input_tokens": 100,
                    "output_tokens": 7,
                }
            )
    return rows


@pytest.fixture
def rows(pair_table, verdict_table):
    return leaderboard(verdict_table(_longer() + _judge()), _pairs(pair_table), "longer")


def test_every_figure_of_a_judge_by_hand(rows):
    judge = rows[0]
    assert (judge.rater, judge.kind) == ("judge", "llm")
    # 5 right; 5 and 6 are half right; 7 is right in one order and 1/2 in the other.
    assert judge.agreement.mean == pytest.approx((5 + 0.5 + 0.5 + 0.75) / 8)
    assert (judge.agreement.n, judge.agreement.clusters) == (8, 4)
    assert judge.agreement.effective_clusters == pytest.approx(4)
    # On 5 and 6 the mean probability is (0.9 + 0.2) / 2 = 0.55; on 7 one order lacks one.
    assert judge.pooled_agreement.mean == pytest.approx((5 + 1 + 1 + 0.5) / 8)
    assert judge.both_orders.mean == pytest.approx((5 + 0.5 + 0.5) / 7)
    assert judge.both_orders.n == 7
    assert judge.coverage == pytest.approx(15 / 16)
    assert judge.flip_rate.mean == pytest.approx(2 / 7)
    assert judge.position_bias.mean == pytest.approx((5 * 0.5 + 1 + 1 + 1) / 8)
    assert judge.chosen_longer.mean == pytest.approx(4 / 4)
    assert judge.chosen_shorter.mean == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert judge.seconds == pytest.approx(16 * 0.25)
    assert judge.pairs_per_second == pytest.approx(8 / 4)
    # No two of these pairs share a story.
    assert judge.stories_per_second == pytest.approx(2 * 8 / 4)
    assert judge.cost_usd == pytest.approx(16 * 0.01)
    assert (judge.repeats, judge.before_symmetry, judge.trained_on) == ([], None, 0)
    assert judge.calibration.n == 7
    # Both orders name the same story on 0 to 4, and it is the chosen one.
    assert (judge.consistent.mean, judge.consistent.n) == (1.0, 5)
    assert judge.consistent_share == pytest.approx(5 / 8)
    assert judge.outcomes == {
        **dict.fromkeys(OUTCOMES, 0),
        "chosen": 13,
        "rejected": 2,
        "refused": 1,
    }
    # Eight verdicts on even pairs have 4 words, seven on odd ones 8.
    assert judge.explanation_words == pytest.approx((8 * 4 + 7 * 8) / 15)
    assert (judge.input_tokens, judge.output_tokens) == (1_600, 112)
    assert judge.cost_per_1000_pairs == pytest.approx(1_000 * 0.16 / 8)
    assert judge.is_judge


def test_every_figure_of_the_longer_story_by_hand(rows):
    longer = rows[1]
    assert longer.agreement.mean == pytest.approx((4 + 0.5) / 8)
    assert (longer.chosen_longer.mean, longer.chosen_longer.n) == (1.0, 4)
    assert (longer.chosen_shorter.mean, longer.chosen_shorter.n) == (0.0, 3)
    assert longer.coverage == 1.0
    assert longer.flip_rate is longer.position_bias is longer.pooled_agreement is None
    assert longer.both_orders is longer.calibration is longer.cost_usd is None
    assert longer.consistent is longer.consistent_share is longer.explanation_words is None
    assert longer.input_tokens is longer.output_tokens is longer.cost_per_1000_pairs is None
    assert (longer.outcomes["tie"], sum(longer.outcomes.values())) == (1, 8)
    assert not longer.is_judge


def test_agreement_by_gap(pair_table, verdict_table):
    # Gaps of 24 words (10 pairs, all right), of 25 (11 pairs, all wrong), and of 60 (9 pairs).
    gaps = [24] * 10 + [25] * 11 + [60] * 9
    pairs = pair_table(
        [
            {
                "pair_id": f"p{k}",
                "chosen": "oak " * (1 + gap * (k % 2)),
                "rejected": "ash " * (1 + gap * (1 - k % 2)),
            }
            for k, gap in enumerate(gaps)
        ]
    )
    verdicts = verdict_table(
        [
            {"pair_id": f"p{k}", "outcome": "chosen" if gap == 24 else "rejected"}
            for k, gap in enumerate(gaps)
        ]
    )
    (row,) = leaderboard(verdicts, pairs, "rater")
    shown = [(low, high, interval.mean, interval.n) for low, high, interval in row.by_gap]
    assert shown == [(0.0, 25.0, 1.0, 10), (25.0, 50.0, 0.0, 11)]


def test_pairs_before_symmetry_have_a_column_of_their_own(pair_table, verdict_table):
    wider = _pairs(pair_table)
    (row,) = leaderboard(verdict_table(_longer()), wider[:4], "longer", before_symmetry=wider)
    assert (row.agreement.mean, row.agreement.n) == (1.0, 4)
    assert row.before_symmetry.mean == pytest.approx((4 + 0.5) / 8)
    assert row.before_symmetry.n == 8
    assert row.seconds == pytest.approx(4 * 0.5)


def test_repeats_average_to_the_headline(pair_table, verdict_table):
    wider = _pairs(pair_table)
    verdicts = [
        {
            "pair_id": f"p{k}",
            "fold": f"{repeat}/{k % 2}",
            "seconds": 0.125,
            "outcome": "chosen" if (k + repeat) % 3 else "rejected",
        }
        for repeat in range(3)
        for k in range(8)
    ]
    headline = wider.slice(0, 4)
    (row,) = leaderboard(verdict_table(verdicts), headline, "rater", before_symmetry=wider)
    # Of pairs 0 to 3, those whose number plus the repeat is a multiple of three are wrong.
    assert row.repeats == [2 / 4, 3 / 4, 3 / 4]
    assert row.agreement.mean == pytest.approx(sum(row.repeats) / 3)
    assert row.pairs_per_second == pytest.approx(3 * 4 / (3 * 4 * 0.125))


def test_an_unknown_reference_names_the_nearest(pair_table, verdict_table):
    with pytest.raises(ConfigError, match=r"'lunger' .*'longer'"):
        leaderboard(verdict_table(_longer()), _pairs(pair_table), "lunger")


def test_json_writes_null_for_what_cannot_be_told(pair_table, verdict_table):
    pairs = pair_table([{"pair_id": "p0"}])
    (row,) = leaderboard(verdict_table([{"pair_id": "p0"}]), pairs, "rater")
    assert math.isnan(row.agreement.low)
    assert math.isnan(row.seconds)
    assert math.isnan(row.pairs_per_second)
    (content,) = plain([row])
    assert content["agreement"]["low"] is content["pairs_per_second"] is content["seconds"] is None


def test_csv_rows_and_columns(rows, tmp_path):
    write_csv(leaderboard_csv(rows), tmp_path / "leaderboard.csv")
    with (tmp_path / "leaderboard.csv").open(encoding="utf-8", newline="") as file:
        judge, longer = csv.DictReader(file)
    assert float(judge["agreement"]) == pytest.approx(6.75 / 8)
    assert (judge["pairs"], judge["prompts"], judge["rater"]) == ("8", "4", "judge")
    assert float(judge["agreement_low"]) < float(judge["agreement"])
    assert float(judge["difference"]) == pytest.approx(6.75 / 8 - 4.5 / 8)
    assert (longer["difference"], longer["p_holm"], longer["trained_on"]) == ("", "", "0")
    assert float(judge["flip_rate"]) == pytest.approx(2 / 7, abs=1e-6)
    assert (judge["chosen"], judge["rejected"], judge["refused"], judge["cut"]) == (
        "13",
        "2",
        "1",
        "0",
    )
    assert (longer["consistent"], longer["flip_rate"], longer["cost_usd"]) == ("", "", "")


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@x", "\t=x", "  =x", "\rx", "＝1"])
def test_csv_escapes_formulas(name):
    assert csv_cell(name) == "'" + name


def test_table_of_judges_only_with_judges(rows, pair_table, verdict_table):
    text = leaderboard_text(rows)
    orders, in_orders, _, answers, answered, blank, note = text.splitlines()[6:]
    assert orders.startswith("judge ")
    assert answers.startswith("judge ")
    assert re.findall(r"0\.286 \[|0\.688 \[", in_orders) == ["0.286 [", "0.688 ["]
    for part in ("0.938", " 1,600 112 ", " 0.16 20.00 ", " 5.9 "):
        assert part in answered, part
    # Of the outcomes other than a story only one was met.
    assert "refused" in answers
    assert "unparsed" not in answers
    assert (blank, note) == ("", significance_note(rows))
    alone = leaderboard(verdict_table(_longer()), _pairs(pair_table), "longer")
    assert len(leaderboard_text(alone).splitlines()) == 3 + 1


def test_the_text_moves_no_cursor(pair_table, verdict_table):
    rows = [
        {**row, "rater": "a\x1b[2J", "seconds": None, "cost_usd": 0.5, "outcome": outcome}
        for row, outcome in zip(_longer(), ["tie", *["unparsed"] * 100], strict=False)
    ]
    verdicts = verdict_table(
        rows + [{**row, "rater": "\u202eb", "seconds": None} for row in _longer()]
    )
    text = leaderboard_text(leaderboard(verdicts, _pairs(pair_table), "\u202eb"))
    assert "a[2J" in text
    assert " against b, p (Holm) " in text
    assert not {"\x1b", "\u202e"} & set(text)


def test_strata_on_few_pairs_are_said_to_be(pair_table, verdict_table):
    pairs = _pairs(pair_table)
    (row,) = leaderboard(verdict_table(_longer()), pairs, "longer")
    assert strata_note(row) == ""
    texts = pa.array(["" if k > 1 else "oak" for k in range(8)], pairs["chosen"].type)
    untold = pairs.set_column(pairs.column_names.index("chosen"), "chosen", texts)
    (row,) = leaderboard(verdict_table(_longer()), untold, "longer")
    assert "Of 8 pairs, the chosen story is known to be longer in 2 and shorter in 0" in (
        leaderboard_text([row])
    )
    assert "nan" not in leaderboard_text([row])


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1234.5, "1,234.50"),
        (1.0, "1.00"),
        (0.9, "0.90"),
        (0.0123, "0.012"),
        (0.0, "0.00"),
        (None, "–"),
    ],
)
def test_dollars_keep_two_digits(value, written):
    assert write_dollars(value) == written


def test_the_text_names_pairs_prompts_reference_and_noise(rows):
    text = leaderboard_text(rows)
    assert "8 pairs, 4 prompts (4 effective)" in text
    assert "against longer, p (Holm)" in text
    judge, longer = text.splitlines()[3:5]
    assert judge.startswith("judge")
    assert "0.844" in judge
    comparison = rows[0].comparison
    low, high = comparison.difference.low, comparison.difference.high
    assert (
        f"{6.75 / 8 - 4.5 / 8:+.3f} [{low:+.3f}, {high:+.3f}] p = {comparison.p_holm:.3f}" in judge
    )
    assert comparison.p_holm > 0.05
    assert "Not significant: 1 of 1 differences from longer (judge)" in text
    assert "reference" in longer


def symmetric(pair_table, verdict_table, kind="longer"):
    """Eight pairs, the chosen story longer in half of them, and three raters."""
    pairs = pair_table(
        [
            {
                "prompt_id": f"P{k // 2}",
                "chosen": "oak " * (3 + k % 2),
                "rejected": "elm " * (4 - k % 2),
            }
            for k in range(8)
        ]
    )
    right = {"coin": [1, 0] * 4, "good": [1, 1, 1, 1, 1, 1, 1, 0], "fair": [1, 1, 0, 1] * 2}
    rows = [
        {
            "pair_id": name,
            "rater": rater,
            "kind": kind if rater == "coin" else "reward",
            "outcome": "chosen" if is_right else "rejected",
        }
        for rater, flags in right.items()
        for name, is_right in zip(pairs["pair_id"].to_pylist(), flags, strict=True)
    ]
    return verdict_table(rows), pairs


def test_on_symmetric_pairs_the_reference_is_one_half(pair_table, verdict_table):
    verdicts, pairs = symmetric(pair_table, verdict_table)
    rows = {row.rater: row for row in leaderboard(verdicts, pairs, "coin")}
    assert rows["coin"].comparison is None
    assert {row.comparison.reference for row in rows.values() if row.comparison} == {CHANCE}
    credit = np.array([1.0] * 7 + [0.0])
    expected, p = paired_difference(credit, np.full(8, 0.5), np.repeat(np.arange(4), 2))
    good = rows["good"].comparison
    assert (good.difference, good.p_value) == (expected, p)
    # Two comparisons, not three: the longer story's own result is no hypothesis.
    assert good.p_holm == pytest.approx(min(1, 2 * p))
    text = leaderboard_text(list(rows.values()))
    assert "against 1/2, p (Holm)" in text
    assert "The longer story is right in exactly half of these pairs" in text


def test_another_reference_is_kept_on_symmetric_pairs(pair_table, verdict_table):
    verdicts, pairs = symmetric(pair_table, verdict_table)
    rows = leaderboard(verdicts, pairs, "fair")
    assert {row.comparison.reference for row in rows if row.comparison} == {"fair"}
    verdicts, pairs = symmetric(pair_table, verdict_table, kind="reward")
    rows = leaderboard(verdicts, pairs, "coin")
    assert {row.comparison.reference for row in rows if row.comparison} == {"coin"}
    assert "1/2" not in leaderboard_text(rows)


def test_a_corrected_p_beside_an_interval_is_explained():
    def row(name, low, high, p):
        return name, Interval(0.026, low, high, 400, 40, 38.0), p

    both = [row("a", 0.001, 0.052, 0.09), row("b", -0.2, 0.1, 0.5)]
    note = correction_note(both)
    assert "Holm's correction for these 2 comparisons" in note
    assert note.endswith("Not significant after the correction though the interval excludes 0: a.")
    cells = [
        compared(Comparison(name, "longer", interval, p / 2, p)).small for name, interval, p in both
    ]
    assert ["not significant" in small for small in cells] == [True, False]
    clear = [row("a", 0.001, 0.052, 0.04), row("b", -0.2, 0.1, 0.5)]
    assert correction_note(clear).endswith("each interval is for one comparison alone.")
    # One comparison has no correction; one without a p value is none.
    assert correction_note(both[:1]) == ""
    assert correction_note([both[0], row("c", math.nan, math.nan, math.nan)]) == ""


@pytest.mark.parametrize(
    ("counts", "shares", "reason"),
    [
        ((30, 29, 0), (1.0, 0.98, 1.0), "it names the story shown first in 100%"),
        ((30, 29, 1), (1.0, 0.98, 0.02), "it names the story shown second in 98%"),
        ((30, 30, 0), (1.0, 0.97, 0.6), "its two orders name different stories in 97%"),
        ((1, 0, 59), (1.0, None, None), "it prefers neither story in 59 of 60 judgements"),
        ((20, 8, 0), (0.46, 0.2, 0.5), "only 46% of the verdicts are judgements"),
        # A judge that leans, one without orders, and too few verdicts to tell.
        ((30, 29, 0), (1.0, 0.73, 0.86), ""),
        ((59, 1, 0), (1.0, None, None), ""),
        ((4, 4, 0), (1.0, 1.0, 1.0), ""),
    ],
)
def test_raters_without_information(counts, shares, reason):
    outcomes = dict(zip(("chosen", "rejected", "tie"), counts, strict=True))
    result = lacks_information(outcomes, *shares)
    assert result.startswith(reason)
    assert bool(result) == bool(reason)


def test_a_rater_that_names_the_first_story_is_called_so(pair_table, verdict_table):
    pairs = _pairs(pair_table)
    verdicts = verdict_table(
        [
            {"pair_id": name, "rater": "j", "kind": "judge", "order": order, "outcome": order}
            for name in pairs["pair_id"].to_pylist()
            for order in ("chosen", "rejected")
        ]
    )
    (row,) = leaderboard(verdicts, pairs, "j")
    warning, _, table = leaderboard_text([row]).split("\n\n")[:3]
    assert warning.startswith("j: no information about the stories: it names the story shown first")
    assert "0.500 (no information)" in table
    assert "[" not in table.splitlines()[1], "halves in every pair are no narrow interval"
