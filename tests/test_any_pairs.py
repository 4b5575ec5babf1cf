"""Pairs files of any form become pairs: texts, conversations, dialogues, without ids."""

import csv
import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from litbench.cli import main
from litbench.errors import DataError
from litbench.evaluation.benchmark import Benchmark, run_benchmark
from litbench.models.baselines import LengthRater
from litbench.raters import judge_pairs
from litbench.records import connected_prompts
from litbench.sources.pairs import read_any_pairs

PROMPTS = ["A lamp.", "A tide.", "A gate."]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def forms(prompt):
    """One pair in every form; the chosen story is "It shone.", the rejected "No light."."""
    texts = {"chosen": "It shone.", "rejected": "No light."}
    turns = {side: [assistant(text)] for side, text in texts.items()}
    return {
        "texts": {"prompt": prompt, **texts},
        "other names": {"Writing Prompt": prompt, "winner": "It shone.", "loser": "No light."},
        "conversations": {"prompt": [user(prompt)], **turns},
        "stories as messages": {"prompt": prompt, **turns},
        "whole conversations": {
            side: [user(prompt), *messages] for side, messages in turns.items()
        },
        "dialogues": {
            side: f"\n\nHuman: {prompt}\n\nAssistant: {text}" for side, text in texts.items()
        },
    }


def write(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(rows[0])
            for row in rows:
                writer.writerow(v if isinstance(v, str) else json.dumps(v) for v in row.values())
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("form", forms(""))
def test_a_file_of_any_form_becomes_pairs(tmp_path, form, ending):
    path = write(tmp_path / f"pairs.{ending}", [forms(prompt)[form] for prompt in PROMPTS])
    pairs = read_any_pairs(path)
    assert sorted(pairs["prompt"].to_pylist()) == sorted(PROMPTS)
    assert set(pairs["chosen"].to_pylist()) == {"It shone."}
    assert set(pairs["rejected"].to_pylist()) == {"No light."}
    assert set(pairs["chosen_n_words"].to_pylist()) == {2}
    assert set(pairs["split"].to_pylist()) == {"all"}
    for name in ("pair_id", "prompt_id", "chosen_story_id"):
        assert len(set(pairs[name].to_pylist())) == 3
    assert pairs.equals(read_any_pairs(path)), "ids do not change"
    write(path, [forms(prompt)[form] for prompt in reversed(PROMPTS)])
    assert pairs.equals(read_any_pairs(path)), "nor do they depend on the order of rows"


def test_what_a_file_has_is_kept(tmp_path):
    row = {"pair_id": "own", "split": "test", "margin": 0.5, "label_source": "model", "note": "x"}
    row |= {"prompt_id": "p", "chosen_story_id": "c", "rejected_story_id": "r", "fold": "2"}
    (pair,) = read_any_pairs(
        write(tmp_path / "pairs.jsonl", [{**forms("A lamp.")["texts"], **row}])
    ).to_pylist()
    assert {name: pair[name] for name in row} == row


def test_broken_rows_are_counted_on_stderr(tmp_path, capsys):
    texts = forms("A lamp.")["texts"]
    rows = [
        texts,
        {**texts, "chosen": None},
        {**texts, "prompt": ""},
        {**texts, "chosen": "same", "rejected": "same"},
        {**texts, "chosen": "a", "rejected": "b"},
        {**texts, "chosen": "b", "rejected": "a"},
    ]
    path = write(tmp_path / "pairs.jsonl", rows)
    assert read_any_pairs(path)["chosen"].to_pylist() == ["It shone."]
    said = capsys.readouterr().err.splitlines()
    assert sorted(said) == [
        f"{path}: 1 rows rejected, chosen: null",
        f"{path}: 1 rows rejected, prompt: no text",
        f"{path}: 1 rows rejected, rejected: the same text on both sides",
        f"{path}: 2 rows rejected, pair_id: preferred both ways",
    ]
    with pytest.raises(DataError, match="no pair is left"):
        read_any_pairs(write(path, rows[3:]))


@pytest.mark.parametrize("column", [{}, {"prompt": ""}, {"prompt": None}])
def test_pairs_without_prompts_are_grouped_by_their_stories(tmp_path, capsys, column):
    texts = [("It shone.", "No light."), ("A gate.", "The sea."), ("No light.", "Salt.")]
    rows = [{**column, "chosen": chosen, "rejected": rejected} for chosen, rejected in texts]
    path = write(tmp_path / "pairs.jsonl", rows)
    pairs = read_any_pairs(path)
    assert capsys.readouterr().err == f"{path}: the pairs have no prompts\n"
    assert pairs["prompt"].to_pylist() == [""] * 3
    groups = dict(zip(pairs["chosen"].to_pylist(), connected_prompts(pairs), strict=True))
    assert groups["It shone."] == groups["No light."] != groups["A gate."]
    judge_pairs(LengthRater("longer", "longer", 1), pairs)
    reader = LengthRater("reader", "longer", 1)
    reader.reads_prompt = True
    with pytest.raises(DataError, match="rater reader reads the prompt, and 3 of 3 pairs have"):
        judge_pairs(reader, pairs)


def test_columns_without_known_names_are_an_error(tmp_path):
    path = write(tmp_path / "pairs.jsonl", [{"prompt": "p", "a": "x", "b": "y"}])
    with pytest.raises(DataError, match="cannot tell which column is the chosen and the rejected"):
        read_any_pairs(path)


def test_a_benchmark_reads_any_pairs(tmp_path):
    rows = [
        {"prompt": prompt, "chosen": "It shone all night.", "rejected": "No."} for prompt in PROMPTS
    ]
    path = write(tmp_path / "pairs.csv", rows)
    raters = {name: {"kind": name} for name in ("longer", "shorter")}
    run_benchmark(Benchmark(path, tmp_path / "out", raters), "test")
    board = json.loads((tmp_path / "out" / "leaderboard.json").read_text())
    assert {row["rater"]: row["agreement"]["mean"] for row in board} == {"longer": 1, "shorter": 0}


@pytest.mark.parametrize(
    "command",
    [
        ["audit", "own.csv", "--rater", "{kind: shorter}", "--probe_prompts", "2"],
        ["eval", "benchmark", "--pairs", "own.csv", "--raters", "{longer: {kind: longer}}"],
        ["eval", "crossvalidate", "--pairs", "own.csv", "--raters", "{longer: {kind: longer}}"],
        ["train", "features", "--pairs", "own.csv"],
    ],
    ids=["audit", "benchmark", "crossvalidate", "train"],
)
def test_columns_are_given_by_the_same_keys(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / "own.csv",
        [
            {"heading": f"A door {n}.", "a": "It shone all night. " * 9, "b": f"No {n}."}
            for n in range(12)
        ],
    )
    columns = ("--prompt", "heading", "--chosen", "a", "--rejected", "b")
    for given in (columns[:4], columns):
        monkeypatch.setattr(sys, "argv", ["litbench", *command, "--out", "out", *given])
        if given == columns:
            main()
            assert "12 pairs" in capsys.readouterr().out
        else:
            with pytest.raises(SystemExit):
                main()
            assert "give --rejected COLUMN" in capsys.readouterr().err
