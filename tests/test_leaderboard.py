"""The leaderboard: every figure of a small evaluation counted by hand, and how it is written."""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from litbench.errors import ConfigError, DataError
from litbench.metrics.intervals import jackknife_interval
from litbench.metrics.leaderboard import (
    LeaderboardRow,
    leaderboard,
    leaderboard_json,
    leaderboard_text,
    write_leaderboard_csv,
)

Build = Callable[..., pa.Table]

# Words of chosen and rejected: in four pairs the chosen story is longer, in three shorter, in one
# as long.
LENGTHS = ((9, 4), (8, 2), (7, 6), (30, 3), (2, 5), (3, 9), (1, 40), (6, 6))


def _pairs(pair_table: Build) -> pa.Table:
    return pair_table(
        [
            {
                "pair_id": f"p{place}",
                "prompt_id": f"q{place // 2}",
                "chosen": "oak " * longer,
                "rejected": "ash " * shorter,
            }
            for place, (longer, shorter) in enumerate(LENGTHS)
        ]
    )


def _longer() -> list[dict[str, Any]]:
    return [
        {
            "pair_id": f"p{place}",
            "rater": "longer",
            "kind": "longer",
            "outcome": "chosen" if a > b else "rejected" if a < b else "tie",
            "seconds": 0.5,
        }
        for place, (a, b) in enumerate(LENGTHS)
    ]


def _judge() -> list[dict[str, Any]]:
    """Right in both orders on 0 to 4, always first on 5 and 6, refuses one order of 7."""
    rows = []
    for place in range(8):
        for order in ("chosen", "rejected"):
            outcome = "chosen" if place < 5 else order
            p = {"chosen": 0.9, "rejected": 0.2}[outcome]
            refused = place == 7 and order == "rejected"
            rows.append(
                {
                    "pair_id": f"p{place}",
                    "rater": "judge",
                    "kind": "llm",
                    "order": order,
                    "outcome": "refused" if refused else outcome,
                    "p_chosen": None if refused else p,
                    "seconds": 0.25,
                    "cost_usd": 0.01,
                }
            )
    return rows


@pytest.fixture
def rows(pair_table: Build, verdict_table: Build) -> list[LeaderboardRow]:
    return leaderboard(verdict_table(_longer() + _judge()), _pairs(pair_table), "longer")


def test_every_figure_of_a_judge_by_hand(rows: list[LeaderboardRow]) -> None:
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
    assert judge.position_lean.mean == pytest.approx((5 * 0.5 + 1 + 1 + 1) / 8)
    assert judge.chosen_longer.mean == pytest.approx(4 / 4)
    assert judge.chosen_shorter.mean == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert judge.seconds == pytest.approx(16 * 0.25)
    assert judge.pairs_per_second == pytest.approx(8 / 4)
    # No two of these pairs share a story.
    assert judge.stories_per_second == pytest.approx(2 * 8 / 4)
    assert judge.cost_usd == pytest.approx(16 * 0.01)
    assert (judge.repeats, judge.before_symmetry, judge.trained_on) == ([], None, 0)
    assert judge.calibration.n == 7


def test_every_figure_of_the_longer_story_by_hand(rows: list[LeaderboardRow]) -> None:
    longer = rows[1]
    assert longer.agreement.mean == pytest.approx((4 + 0.5) / 8)
    assert (longer.chosen_longer.mean, longer.chosen_longer.n) == (1.0, 4)
    assert (longer.chosen_shorter.mean, longer.chosen_shorter.n) == (0.0, 3)
    assert longer.coverage == 1.0
    assert longer.flip_rate is longer.position_lean is longer.pooled_agreement is None
    assert longer.both_orders is longer.calibration is longer.cost_usd is None


def test_the_comparison_is_paired_and_the_reference_has_none(rows: list[LeaderboardRow]) -> None:
    judge, longer = rows
    assert longer.comparison is None
    assert judge.comparison.reference == "longer"
    expected = judge.agreement.mean - longer.agreement.mean
    assert judge.comparison.difference.mean == pytest.approx(expected)
    assert judge.comparison.p_holm == judge.comparison.p_value


def test_intervals_go_by_prompt(rows: list[LeaderboardRow]) -> None:
    credit = np.array([1, 1, 1, 1, 1, 0.5, 0.5, 0.75])
    assert rows[0].agreement == jackknife_interval(credit, [0, 0, 1, 1, 2, 2, 3, 3])


def test_rows_are_sorted_by_agreement_then_name(pair_table: Build, verdict_table: Build) -> None:
    verdicts = [{**row, "rater": name} for name in ("b", "a") for row in _longer()]
    verdicts += [{**row, "rater": "c", "outcome": "chosen"} for row in _longer()]
    rows = leaderboard(verdict_table(verdicts), _pairs(pair_table), "b")
    assert [row.rater for row in rows] == ["c", "a", "b"]


def test_gaps_are_counted_in_words_and_small_ones_left_out(
    pair_table: Build, verdict_table: Build
) -> None:
    # Gaps of 24 words (10 pairs, all right), of 25 (11 pairs, all wrong), and of 60 (9 pairs).
    gaps = [24] * 10 + [25] * 11 + [60] * 9
    pairs = pair_table(
        [
            {"pair_id": f"p{k}", "chosen": "oak " * (1 + gap * (k % 2)),
             "rejected": "ash " * (1 + gap * (1 - k % 2))}
            for k, gap in enumerate(gaps)
        ]
    )  # fmt: skip
    verdicts = verdict_table(
        [
            {"pair_id": f"p{k}", "outcome": "chosen" if gap == 24 else "rejected"}
            for k, gap in enumerate(gaps)
        ]
    )
    (row,) = leaderboard(verdicts, pairs, "rater")
    shown = [(low, high, interval.mean, interval.n) for low, high, interval in row.by_gap]
    assert shown == [(0.0, 25.0, 1.0, 10), (25.0, 50.0, 0.0, 11)]


def test_pairs_before_symmetry_have_a_column_of_their_own(
    pair_table: Build, verdict_table: Build
) -> None:
    wider = _pairs(pair_table)
    headline = wider.slice(0, 4)
    (row,) = leaderboard(verdict_table(_longer()), headline, "longer", before_symmetry=wider)
    assert (row.agreement.mean, row.agreement.n) == (1.0, 4)
    assert row.before_symmetry.mean == pytest.approx((4 + 0.5) / 8)
    assert row.before_symmetry.n == 8
    assert row.seconds == pytest.approx(4 * 0.5)


def test_repeats_average_to_the_headline(pair_table: Build, verdict_table: Build) -> None:
    wider = _pairs(pair_table)
    verdicts = [
        {"pair_id": f"p{k}", "fold": f"{repeat}/{k % 2}", "seconds": 0.125,
         "outcome": "chosen" if (k + repeat) % 3 else "rejected"}
        for repeat in range(3)
        for k in range(8)
    ]  # fmt: skip
    headline = wider.slice(0, 4)
    (row,) = leaderboard(verdict_table(verdicts), headline, "rater", before_symmetry=wider)
    # Of pairs 0 to 3, those whose number plus the repeat is a multiple of three are wrong.
    assert row.repeats == [2 / 4, 3 / 4, 3 / 4]
    assert row.agreement.mean == pytest.approx(sum(row.repeats) / 3)
    assert row.pairs_per_second == pytest.approx(3 * 4 / (3 * 4 * 0.125))


def test_an_unknown_reference_names_the_nearest(pair_table: Build, verdict_table: Build) -> None:
    with pytest.raises(ConfigError, match=r"'lunger' is no rater: did you mean 'longer'"):
        leaderboard(verdict_table(_longer()), _pairs(pair_table), "lunger")


def test_a_missing_verdict_names_the_rater(pair_table: Build, verdict_table: Build) -> None:
    with pytest.raises(DataError, match="rater judge: no verdict on 1 of 8 pairs, such as p7"):
        leaderboard(verdict_table(_longer() + _judge()[:-2]), _pairs(pair_table), "longer")


def test_a_rater_that_never_judged_has_half_and_no_coverage(
    pair_table: Build, verdict_table: Build
) -> None:
    verdicts = [{"pair_id": f"p{k}", "outcome": "error"} for k in range(8)]
    (row,) = leaderboard(verdict_table(verdicts), _pairs(pair_table), "rater")
    assert (row.agreement.mean, row.coverage, row.both_orders) == (0.5, 0.0, None)


def test_json_holds_every_row_and_nothing_json_cannot_hold(rows: list[LeaderboardRow]) -> None:
    content = leaderboard_json(rows)
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert [row["rater"] for row in content] == ["judge", "longer"]
    assert content[0]["agreement"]["mean"] == pytest.approx(rows[0].agreement.mean, abs=1e-6)
    assert content[1]["comparison"] is None


def test_json_writes_null_for_what_cannot_be_told(pair_table: Build, verdict_table: Build) -> None:
    pairs = pair_table([{"pair_id": "p0"}])
    (row,) = leaderboard(verdict_table([{"pair_id": "p0"}]), pairs, "rater")
    assert math.isnan(row.agreement.low)
    assert math.isinf(row.pairs_per_second)
    (content,) = leaderboard_json([row])
    assert content["agreement"]["low"] is content["pairs_per_second"] is None


def test_csv_has_a_row_per_rater_and_a_value_per_column(
    rows: list[LeaderboardRow], tmp_path: Path
) -> None:
    write_leaderboard_csv(rows, tmp_path / "leaderboard.csv")
    with (tmp_path / "leaderboard.csv").open(encoding="utf-8", newline="") as file:
        judge, longer = csv.DictReader(file)
    assert float(judge["agreement"]) == pytest.approx(6.75 / 8)
    assert (judge["n"], judge["prompts"], judge["rater"]) == ("8", "4", "judge")
    assert float(judge["coverage"]) == pytest.approx(15 / 16)
    assert float(judge["difference"]) == pytest.approx(6.75 / 8 - 4.5 / 8)
    assert float(judge["chosen_shorter"]) == pytest.approx(2 / 3, abs=1e-6)
    assert float(judge["seconds"]) == 4.0
    assert (longer["difference"], longer["p_holm"], longer["trained_on"]) == ("", "", "0")
    assert None not in judge


def test_the_text_names_pairs_prompts_reference_and_noise(rows: list[LeaderboardRow]) -> None:
    text = leaderboard_text(rows)
    assert "8 pairs, 4 prompts (worth 4 of equal size)" in text
    assert "vs longer" in text
    judge, longer = text.splitlines()[-2:]
    assert judge.startswith("judge")
    assert "0.844" in judge
    assert f"{6.75 / 8 - 4.5 / 8:+.3f} (within noise)" in judge
    assert "reference" in longer


def test_a_rater_trained_on_test_prompts_is_flagged(
    pair_table: Build, verdict_table: Build
) -> None:
    rows = leaderboard(
        verdict_table(_longer()), _pairs(pair_table), "longer", trained_on={"longer": 3}
    )
    assert rows[0].trained_on == 3
    assert "TRAINED ON 3 OF THESE PROMPTS" in leaderboard_text(rows)


def test_a_clear_lead_is_not_called_noise(pair_table: Build, verdict_table: Build) -> None:
    pairs = pair_table([{"pair_id": f"p{k}", "prompt_id": f"q{k}"} for k in range(30)])
    verdicts = [
        {"pair_id": f"p{k}", "rater": rater, "outcome": outcome}
        for rater, outcome in (("good", "chosen"), ("bad", "rejected"))
        for k in range(30)
    ]
    rows = leaderboard(verdict_table(verdicts), pairs, "bad")
    assert rows[0].comparison.is_clear
    assert "+1.000" in leaderboard_text(rows)
    assert "noise" not in leaderboard_text(rows)


def test_tables_stay_as_they_were(pair_table: Build, verdict_table: Build) -> None:
    pairs, verdicts = _pairs(pair_table), verdict_table(_longer() + _judge())
    before = pairs.to_pylist(), verdicts.to_pylist()
    leaderboard(verdicts, pairs, "longer", before_symmetry=pairs)
    assert (pairs.to_pylist(), verdicts.to_pylist()) == before
