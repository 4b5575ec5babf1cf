"""How verdicts become agreement: small cases whose figures can be counted by hand."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.data.records import OUTCOMES
from litbench.metrics.agreement import (
    efforts,
    length_differences,
    pair_scores,
    per_repeat_agreement,
)
from litbench.runs.errors import DataError

NAN = float("nan")
Build = Callable[..., pa.Table]


def _pairs(pair_table, n):
    return pair_table([{"pair_id": f"p{k}"} for k in range(n)])


def _score(pair_table, verdict_table, rows):
    """Scores of one rater; `pair` is the pair's number."""
    n = 1 + max(row["pair"] for row in rows)
    verdicts = [{"pair_id": f"p{row['pair']}", **row} for row in rows]
    (scores,) = pair_scores(verdict_table(verdicts), _pairs(pair_table, n))
    return scores


def test_credit_of_outcomes(pair_table, verdict_table):
    rows = [{"pair": k, "outcome": outcome} for k, outcome in enumerate(OUTCOMES)]
    scores = _score(pair_table, verdict_table, rows)
    expected = {
        "chosen": 1,
        "rejected": 0,
        "tie": 0.5,
        "unparsed": 0.5,
        "refused": 0.5,
        "cut": 0.5,
        "error": 0.5,
    }
    assert scores.credit.tolist() == [expected[outcome] for outcome in OUTCOMES]
    assert scores.judged.tolist() == [1, 1, 1, 0, 0, 0, 0]
    np.testing.assert_array_equal(scores.both_orders, [1, 0, 0.5, NAN, NAN, NAN, NAN])


def test_verdicts_of_several_folds_have_a_training(pair_table, verdict_table):
    def training(*rows):
        rows = [{"pair": k, **row} for k, row in rows]
        return _score(pair_table, verdict_table, rows).training

    # A held-out test set: one model judged all pairs of a repeat, as of each seed of an ablation.
    seeds = [(k, {"fold": f"{seed}/0"}) for seed in (0, 1) for k in (0, 1)]
    assert training(*seeds) is None
    assert training((0, {}), (1, {})) is None
    folds = [(k, {"fold": f"{repeat}/{k}"}) for repeat in (0, 1) for k in (0, 1)]
    assert training(*folds).changes is None
    outcomes = ("chosen", "rejected", "tie", "chosen")
    flipped = ("q", "", "q", "p q")
    rows = [
        (k, {**row, "outcome": outcome, "flipped_by": prompts})
        for (k, row), outcome, prompts in zip(folds, outcomes, flipped, strict=True)
    ]
    result = training(*rows)
    assert result.prompts == ("p", "q")
    # Of two repeats, a right verdict that is flipped takes half a credit.
    assert result.changes.toarray().tolist() == [[0, -0.5], [-0.5, -0.5]]


def test_orders_are_averaged_before_pairs(pair_table, verdict_table):
    rows = [
        {"pair": 0, "order": "chosen", "outcome": "chosen"},
        {"pair": 0, "order": "rejected", "outcome": "chosen"},
        {"pair": 1, "order": "chosen", "outcome": "chosen"},
        {"pair": 1, "order": "rejected", "outcome": "rejected"},
        {"pair": 2, "order": "chosen", "outcome": "tie"},
        {"pair": 2, "order": "rejected", "outcome": "refused"},
        {"pair": 3, "order": "chosen", "outcome": "refused"},
        {"pair": 3, "order": "rejected", "outcome": "chosen"},
    ]
    scores = _score(pair_table, verdict_table, rows)
    assert scores.credit.tolist() == [1, (1 + 0) / 2, (0.5 + 0.5) / 2, (0.5 + 1) / 2]
    assert scores.judged.tolist() == [1, 1, 1 / 2, 1 / 2]
    np.testing.assert_array_equal(scores.both_orders, [1, 0.5, NAN, NAN])
    np.testing.assert_array_equal(scores.flipped, [0, 1, NAN, NAN])
    # Pair 2: its one judged order tied; pair 3: the chosen story won while standing second.
    np.testing.assert_array_equal(scores.position_bias, [1 / 2, 2 / 2, 0.5, 0])
    np.testing.assert_array_equal(scores.consistent, [1, NAN, NAN, NAN])
    np.testing.assert_array_equal(scores.same, [1, 0, 0, 0])


def test_repeats_are_averaged_after_orders(pair_table, verdict_table):
    # The second repeat was read in one order only: its verdict weighs a whole repeat.
    rows = [
        {"pair": 0, "fold": "0/1", "order": "chosen", "outcome": "chosen"},
        {"pair": 0, "fold": "0/1", "order": "rejected", "outcome": "chosen"},
        {"pair": 0, "fold": "1/3", "order": "chosen", "outcome": "rejected"},
    ]
    scores = _score(pair_table, verdict_table, rows)
    assert scores.credit.tolist() == [(1 + 0) / 2]
    # Only the first repeat was read in both orders.
    assert (scores.consistent.tolist(), scores.same.tolist()) == ([1.0], [1 / 2])


def test_the_pooled_probability_averages_orders_first(pair_table, verdict_table):
    rows = [
        {"pair": 0, "order": "chosen", "outcome": "chosen", "p_chosen": 0.9},
        {"pair": 0, "order": "rejected", "outcome": "rejected", "p_chosen": 0.3},
        {"pair": 1, "order": "chosen", "outcome": "chosen", "p_chosen": 0.6},
        {"pair": 1, "order": "rejected", "outcome": "rejected", "p_chosen": 0.1},
        {"pair": 2, "order": "chosen", "outcome": "chosen", "p_chosen": 0.75},
        {"pair": 2, "order": "rejected", "outcome": "rejected", "p_chosen": 0.25},
    ]
    scores = _score(pair_table, verdict_table, rows)
    assert scores.credit.tolist() == [0.5, 0.5, 0.5]
    # Means 0.6, 0.35 and 0.5.
    assert scores.pooled_credit.tolist() == [1.0, 0.0, 0.5]
    assert scores.p_chosen.tolist() == pytest.approx([0.6, 0.35, 0.5])


def test_a_missing_verdict_names_the_rater_and_a_pair(pair_table, verdict_table):
    verdicts = verdict_table(
        [
            {"pair_id": "p0", "rater": "whole"},
            {"pair_id": "p1", "rater": "whole"},
            {"pair_id": "p0", "rater": "half"},
        ]
    )
    with pytest.raises(DataError, match=r"half: .*1 of 2 .*p1"):
        pair_scores(verdicts, _pairs(pair_table, 2))


def test_scores_follow_the_pairs_and_raters_their_first_row(pair_table, verdict_table):
    verdicts = verdict_table(
        [
            {"pair_id": "p1", "rater": "b", "outcome": "rejected"},
            {"pair_id": "p0", "rater": "a", "outcome": "tie"},
            {"pair_id": "p0", "rater": "b", "outcome": "chosen"},
            {"pair_id": "p1", "rater": "a", "outcome": "chosen"},
        ]
    )
    scores = pair_scores(verdicts, _pairs(pair_table, 2))
    assert [(s.rater, s.credit.tolist()) for s in scores] == [("b", [1, 0]), ("a", [0.5, 1])]


@given(data=st.data())
@settings(max_examples=40)
def test_renaming_the_sides_mirrors_every_figure(data, pair_table, verdict_table):
    other = {"chosen": "rejected", "rejected": "chosen"}
    rows = []
    for pair in range(data.draw(st.integers(1, 4))):
        for order in data.draw(st.sampled_from([(None,), ("chosen", "rejected")])):
            outcome = data.draw(st.sampled_from(OUTCOMES))
            # Eighths, so that 1 - p is exact.
            p = data.draw(st.sampled_from([None, 0.125, 0.375, 0.5, 0.875]))
            rows.append({"pair": pair, "order": order, "outcome": outcome, "p_chosen": p})
    renamed = [
        {
            **row,
            "order": other.get(row["order"]),
            "outcome": other.get(row["outcome"], row["outcome"]),
            "p_chosen": None if row["p_chosen"] is None else 1 - row["p_chosen"],
        }
        for row in rows
    ]
    plain = _score(pair_table, verdict_table, rows)
    mirrored = _score(pair_table, verdict_table, renamed)
    for name in ("credit", "pooled_credit", "both_orders", "consistent", "p_chosen"):
        np.testing.assert_array_equal(getattr(mirrored, name), 1 - getattr(plain, name))
    for name in ("judged", "flipped", "same", "position_bias"):
        np.testing.assert_array_equal(getattr(mirrored, name), getattr(plain, name))


def test_outcomes_words_and_tokens_are_counted_on_these_pairs(pair_table, verdict_table):
    rows = [
        {"pair_id": "p0", "outcome": "chosen", "explanation": "two words", "input_tokens": 5},
        {
            "pair_id": "p1",
            "outcome": "rejected",
            "explanation": "four words in it",
            "input_tokens": 6,
            "output_tokens": 2,
        },
        # No judgement, nothing said, and another pair: none of them has a length.
        {"pair_id": "p2", "outcome": "refused", "explanation": "I will not say which, ever"},
        {"pair_id": "p3", "outcome": "tie", "explanation": " ... "},
        {"pair_id": "p4", "outcome": "cut", "output_tokens": 40},
        {"pair_id": "elsewhere", "explanation": "one", "input_tokens": 100, "output_tokens": 100},
        {"pair_id": "p0", "rater": "silent"},
    ]
    result = efforts(verdict_table(rows), _pairs(pair_table, 5))
    counts = dict.fromkeys(("chosen", "rejected", "tie", "refused", "cut"), 1)
    assert result["rater"]["outcomes"] == {name: counts.get(name, 0) for name in OUTCOMES}
    assert result["rater"]["explanation_words"] == (2 + 4) / 2
    assert (result["rater"]["input_tokens"], result["rater"]["output_tokens"]) == (11, 42)
    silent = result["silent"]
    assert sum(silent["outcomes"].values()) == 1
    assert silent["explanation_words"] is silent["input_tokens"] is silent["output_tokens"] is None


def test_agreement_of_each_repeat_averages_orders_then_pairs(pair_table, verdict_table):
    verdicts = verdict_table(
        [
            {"pair_id": "p0", "fold": "0/0", "order": "chosen", "outcome": "chosen"},
            {"pair_id": "p0", "fold": "0/0", "order": "rejected", "outcome": "rejected"},
            {"pair_id": "p1", "fold": "0/1", "outcome": "rejected"},
            {"pair_id": "p0", "fold": "1/0", "outcome": "chosen"},
            {"pair_id": "p1", "fold": "1/1", "outcome": "tie"},
            {"pair_id": "p1", "fold": "1/1", "outcome": "chosen", "rater": "another"},
        ]
    )
    repeats = per_repeat_agreement(verdicts, _pairs(pair_table, 2), "rater")
    assert repeats == [(0.5 + 0) / 2, (1 + 0.5) / 2]


def test_length_differences_of_known_texts(pair_table):
    rows = [{"chosen": "one two", "rejected": "one"}, {"chosen": "one", "rejected": "one two"}]
    differences = length_differences(pair_table([*rows, {"chosen": "", "rejected": "one"}]))
    np.testing.assert_array_equal(differences, [1, -1, NAN])
