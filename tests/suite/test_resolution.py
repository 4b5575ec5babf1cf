"""Writers told apart: counted by hand, and by simulation."""

import json
import math
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from conftest import pair_table

from litbench.data.records import GRADES, TURNS
from litbench.data.tables import write_table
from litbench.metrics.power import needed_signal
from litbench.runs.errors import ConfigError
from litbench.runs.outputs import Artifact
from litbench.suite.card import CardKeys, write_card
from litbench.suite.resolution import resolution_of, resolutions, win_rates


def grades_of(means, noise, prompts, seed=0):
    draw = np.random.default_rng(seed)
    hard = draw.normal(0, 5, prompts)
    return {
        f"writer {k}": {f"p{i}": mean + hard[i] + draw.normal(0, noise) for i in range(prompts)}
        for k, mean in enumerate(means)
    }


def test_two_writers_are_told_apart_from_the_third():
    result = resolution_of(grades_of([0, 0.1, 3], 0.5, 12))
    assert (result.writers, result.pairs, result.told_apart) == (3, 3, 2)
    assert result.spread == pytest.approx(3, abs=0.5)


def test_the_smallest_difference_is_found_in_four_of_five():
    told_apart, noise = 0, 1.0
    smallest = resolution_of(grades_of([0, 0], noise, 20)).smallest
    for seed in range(300):
        told_apart += resolution_of(grades_of([0, 0.93], noise, 20, seed)).told_apart
    # Paired differences have the error sqrt(2 / 20); t with 19 degrees needs 2.96 of them.
    assert 2.96 * math.sqrt(2 / 20) == pytest.approx(0.936, abs=0.01)
    assert smallest == pytest.approx(0.936, abs=0.25)
    assert told_apart / 300 == pytest.approx(0.8, abs=0.07)


def test_holm_keeps_wrong_pairs_of_writers_rare():
    wrong = [resolution_of(grades_of([0] * 5, 1.0, 10, seed)).told_apart > 0 for seed in range(200)]
    # Ten tests at 5 % without the correction are wrong in about 30 %.
    assert np.mean(wrong) < 0.1


def test_the_smallest_difference_is_that_of_the_first_test_of_holm():
    grades = grades_of([0, 0], 1.0, 20)
    shifted = {prompt: grade + 1 for prompt, grade in grades["writer 0"].items()}
    more = resolution_of({**grades, "writer 2": shifted}).smallest
    needed = [needed_signal(0.8, 19, 0.05 / tests) for tests in (3, 1)]
    assert more / resolution_of(grades).smallest == pytest.approx(needed[0] / needed[1], rel=1e-3)


def test_writers_with_fewer_than_three_common_prompts_are_not_compared():
    grades = {"a": {"p": 1.0, "q": 2.0}, "b": {"p": 2.0, "q": 3.0}}
    result = resolution_of(grades)
    assert (result.writers, result.pairs, result.told_apart) == (2, 0, 0)
    assert result.smallest is None


SOURCES = {"chosen": ["a", "a", "b", "b"], "rejected": ["b", "c", "c", "b"]}


def test_win_rates_counted_by_hand():
    rates = win_rates(np.array([1, 0.5, 0, 1]), SOURCES, ["p", "p", "q", "q"])
    assert rates == {"a": {"p": 0.75}, "b": {"p": 0.0, "q": 0.0}, "c": {"p": 0.5, "q": 1.0}}


def test_a_rater_without_any_judgement_has_no_resolution():
    pairs = pair_table.__wrapped__()([{"prompt_id": f"p{number // 2}"} for number in range(4)])
    assert resolutions(pairs, {"judge": np.ones(4)}, {}) == {}, "no columns of writers"
    for side, writers in SOURCES.items():
        pairs = pairs.append_column(f"{side}_writer", pa.array(writers))
    result = resolutions(pairs, {"judge": np.full(4, np.nan)}, {"longer": 2.0})
    assert result["longer"].dollars == 2.0
    assert "judge" not in result


def test_the_judges_of_a_run_of_a_protocol_have_a_resolution(tmp_path, capsys):
    """The judge tells the third writer from the others, for $0.06; lengths tell the second."""
    rows, turns = [], []
    words = grades_of([300, 340, 300], 5, 12, seed=1)
    for writer, by_prompt in grades_of([0, 0, 3], 0.5, 12).items():
        for number, (prompt, grade) in enumerate(by_prompt.items()):
            key = {"writer": writer, "prompt_id": prompt, "sample": 0}
            halves = [grade - 1, grade + 1] if number else [grade, None]
            rows += [
                {**key, "sample": sample, "rater": "critic", "quantity": "overall", "grade": half}
                for sample, half in enumerate(halves)
            ]
            rows.append({**key, "quantity": "words", "grade": words[writer][prompt]})
            rows.append({**key, "rater": "critic", "quantity": "style", "grade": 1.0})
            turn = {"outcome": "answered", "text": "x", "step": "1", **key}
            turns.append({**turn, "role": "writer", "cost_usd": 9.0})
            turns.append({**turn, "role": "critic", "cost_usd": 0.06 / 36})
    artifact = Artifact(tmp_path, program="litbench run", config={}, inputs={})
    for name, schema, values in (("grades", GRADES, rows), ("turns", TURNS, turns)):
        table = pa.Table.from_pylist(values, schema.arrow())
        artifact.write(f"{name}.parquet", partial(write_table, table))
    artifact.counts = {"protocol": "longform", "headline": "overall"}
    artifact.finish()

    write_card(CardKeys(run=tmp_path))
    results = json.loads((tmp_path / "card/card.json").read_text())
    assert set(results) == {"critic", "words"}
    critic = results["critic"]
    assert (critic["writers"], critic["pairs"], critic["told_apart"]) == (3, 3, 2)
    assert critic["dollars"] == pytest.approx(0.06)
    assert (results["words"]["told_apart"], results["words"]["dollars"]) == (2, None)
    assert "$0.03 per pair told apart" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ConfigError, match="ask"):
        write_card(CardKeys(run=tmp_path, ask=2))
