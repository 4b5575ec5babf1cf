"""Pairs files of any form become pairs: texts, conversations, dialogues, without ids."""

import csv
import json
import re
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from litbench.cli import main
from litbench.data.chunks import ROW
from litbench.data.ingest import RejectedRows, read_foreign
from litbench.data.records import Column, Schema, connected_prompts
from litbench.data.sources.evaluation_pairs import read_training_pairs
from litbench.data.sources.pairs import read_any_pairs
from litbench.evaluation.benchmark import Benchmark, run_benchmark
from litbench.models.baselines import LengthRater
from litbench.raters.interface import judge_pairs
from litbench.runs.errors import DataError

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


def from_gpt(text):
    return {"from": "gpt", "value": text}


def parts(message):
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def more_forms(prompt):
    """The same pair in forms of other tools; each has its own columns and messages."""
    chosen, rejected = 'It\'s "open",\n} {said', "No light."
    human = {"from": "human", "value": prompt}
    return {
        "ShareGPT": {"chosen": [human, from_gpt(chosen)], "rejected": [human, from_gpt(rejected)]},
        "one message": {
            "conversations": [human],
            "chosen": from_gpt(chosen),
            "rejected": from_gpt(rejected),
        },
        "parts": {
            "prompt": [parts(user(prompt))],
            "chosen": [parts(assistant(chosen))],
            "rejected": [parts(assistant(rejected))],
        },
        "messages beside texts": {
            "context": [user(prompt)],
            "chosen": chosen,
            "rejected": rejected,
        },
        "around messages": {
            "input": {"messages": [user(prompt)]},
            "preferred_output": [assistant(chosen)],
            "non_preferred_output": [assistant(rejected)],
        },
        "no prompt in the column": {
            "prompt": None,
            "chosen": [user(prompt), assistant(chosen)],
            "rejected": [user(prompt), assistant(rejected)],
        },
        "signed preference": {
            "context": [user(prompt)],
            "response1": chosen if prompt == PROMPTS[0] else rejected,
            "response2": rejected if prompt == PROMPTS[0] else chosen,
            "overall_preference": -3 if prompt == PROMPTS[0] else 1,
        },
        "sides first": {
            "question": prompt,
            "response_chosen": chosen,
            "response_rejected": rejected,
        },
        "better": {"query": prompt, "better": chosen, "worse": rejected},
        "accepted": {"instruction": prompt, "accepted": chosen, "rejected": rejected},
        "speakers": {
            "prompt": prompt,
            "chosen": [{"speaker": "assistant", "text": chosen}],
            "rejected": [{"speaker": "assistant", "text": rejected}],
        },
        "messages as JSON": {
            side: json.dumps([json.dumps(user(prompt)), json.dumps(assistant(text))])
            for side, text in (("chosen", chosen), ("rejected", rejected))
        },
        "camel case": {"prompt": prompt, "chosenText": chosen, "rejectedText": rejected},
        "other case": {
            "Prompt": "x",
            "prompt": prompt,
            "chosen": chosen,
            "Chosen": "x",
            "REJECTED": "x",
            "rejected": rejected,
        },
    }


def from_frame(path, rows):
    """Write rows as pandas does: a list becomes what Python prints, or numpy with arrays."""
    if path.stem == "numpy":
        rows = [{name: as_array(value) for name, value in row.items()} for row in rows]
    pd.DataFrame(rows).to_csv(path, index=False)


def as_array(value):
    return np.array(value, dtype=object) if isinstance(value, list) else value


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
    numbered = read_any_pairs(path, numbered=True)
    prompts = numbered.sort_by(ROW)["prompt"].to_pylist()
    assert prompts == PROMPTS[::-1]


@pytest.mark.parametrize("file", ["rows.jsonl", "rows.parquet", "python.csv", "numpy.csv"])
@pytest.mark.parametrize("form", more_forms(""))
def test_forms_of_other_tools_become_pairs(tmp_path, monkeypatch, form, file):
    rows = [more_forms(prompt)[form] for prompt in PROMPTS]
    path = tmp_path / file
    (from_frame if path.suffix == ".csv" else write)(path, rows)
    texts = {(prompt, 'It\'s "open",\n} {said', "No light.") for prompt in PROMPTS}
    columns = ["prompt", "chosen", "rejected"]
    pairs = read_any_pairs(path).select(columns).to_pylist()
    assert {tuple(pair.values()) for pair in pairs} == texts
    command = ["litbench", "data", "import_pairs", "--pairs", str(path), "--out"]
    monkeypatch.setattr(sys, "argv", [*command, str(tmp_path / "out")])
    main()
    imported = pq.read_table(tmp_path / "out" / "pairs.parquet", columns=columns).to_pylist()
    assert {tuple(pair.values()) for pair in imported} == texts


def test_the_form_is_that_of_the_table(tmp_path, capsys):
    """Neither the first row nor a row of another form decides how the others are read."""
    rows = [forms(prompt)["whole conversations"] for prompt in PROMPTS]
    first = {**rows[0], "chosen": None}
    last = {"chosen": "It shone.", "rejected": "No light."}
    user_last = {side: [user("A lamp.")] for side in ("chosen", "rejected")}
    path = write(tmp_path / "pairs.jsonl", [first, last, *rows, user_last])
    assert sorted(read_any_pairs(path)["prompt"].to_pylist()) == sorted(PROMPTS)
    assert "chosen: not messages that end with a story" in capsys.readouterr().err
    texts = [{"chosen": f"The lamp {k}.", "rejected": f"The gate {k}."} for k in range(3)]
    path = write(path, [*texts, rows[0]])
    assert sorted(read_any_pairs(path)["chosen"].to_pylist()) == [row["chosen"] for row in texts]
    error = capsys.readouterr().err
    assert f"{path}: the pairs have no prompts" in error
    assert "1 rows rejected, chosen: not text" in error


def test_labelled_pairs_have_messages_as_prompts(tmp_path, monkeypatch):
    rows = [
        {"context": [user(prompt)], "response1": "It shone.", "response2": "No light.", "degree": n}
        for prompt, n in zip(PROMPTS, (-3, 1, 0), strict=True)
    ]
    columns = "{first: response1, second: response2, label: degree}"
    labels = ["--label_first", "[-3, -2, -1]", "--label_second", "[1, 2, 3]"]
    path = write(tmp_path / "pairs.jsonl", rows)
    command = ["data", "import_pairs", "--pairs", str(path), "--out", str(tmp_path / "out")]
    line = ["litbench", *command, "--pair_columns", columns, *labels]
    monkeypatch.setattr(sys, "argv", line)
    main()
    pairs = pq.read_table(tmp_path / "out" / "pairs.parquet").to_pylist()
    texts = {(pair["prompt"], pair["chosen"]) for pair in pairs}
    assert texts == {("A lamp.", "It shone."), ("A tide.", "No light.")}


def needs_extension(command):
    """Skip the commands of an extension that is not there."""
    if command[0] == "audit":
        pytest.importorskip("litbench.audit.command")


@pytest.mark.parametrize("chosen", ["same", None, [user("p")]])
@pytest.mark.parametrize(
    "command",
    [
        ["audit", "pairs.jsonl"],
        ["score", "--rater", "{kind: longer}", "--input", "pairs.jsonl"],
        ["data", "import_pairs", "--pairs", "pairs.jsonl"],
    ],
)
def test_a_file_without_a_usable_pair_is_an_error(tmp_path, monkeypatch, capsys, command, chosen):
    needs_extension(command)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pairs.jsonl", [{"prompt": "p", "chosen": chosen, "rejected": "same"}])
    monkeypatch.setattr(sys, "argv", ["litbench", *command, "--out", "out.jsonl"])
    with pytest.raises(SystemExit, match="2"):
        main()
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: pairs.jsonl: no ")


def test_a_list_of_messages_is_no_story(tmp_path):
    rows = [{"prompt": "A lamp.", "text": [user("A lamp."), assistant("It shone.")]}]
    rows.append({"prompt": "A lamp.", "text": "[{'lamp'}] it said."})
    from_frame(tmp_path / "python.csv", rows)
    rejected = RejectedRows()
    schema = Schema("rows", (Column("text", "text", "the text", required=True),), ())
    table = read_foreign(tmp_path / "python.csv", schema, rejected_rows=rejected)
    assert table["text"].to_pylist() == ["[{'lamp'}] it said."]
    assert rejected.counts() == {"text: a list of messages, not a text": 1}


def test_pairs_without_a_text_are_not_trained_on(tmp_path, capsys):
    texts = [forms(prompt)["texts"] for prompt in PROMPTS]
    pairs = read_any_pairs(write(tmp_path / "pairs.jsonl", texts))
    rows = pairs.to_pylist()
    rows[1]["rejected"] = "\u200b "
    path = tmp_path / "pairs.parquet"
    pq.write_table(pa.Table.from_pylist(rows, pairs.schema), path)
    left = read_training_pairs(path, None)
    assert left["pair_id"].to_pylist() == [rows[0]["pair_id"], rows[2]["pair_id"]]
    assert capsys.readouterr().err == f"{path}: 1 pairs left out: no text\n"


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


@pytest.mark.parametrize("column", [{}, {"prompt": ""}, {"prompt": None}, {"prompt": " \u200b"}])
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
    with pytest.raises(DataError, match=r"reader .*3 of 3 pairs"):
        judge_pairs(reader, pairs)


def test_columns_without_known_names_are_an_error(tmp_path):
    path = write(tmp_path / "pairs.jsonl", [{"prompt": "p", "a": "x", "b": "y"}])
    with pytest.raises(DataError, match=r"which column .*chosen .*rejected"):
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
    needs_extension(command)
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / "own.csv",
        [
            {"heading": f"A door {n}.", "a": "It shone all night. " * 9, "b": f"No {n}."}
            for n in range(12)
        ],
    )
    columns = ("--prompt", "heading", "--chosen", "a", "--rejected", "b")
    for flags in (columns[:4], columns):
        monkeypatch.setattr(sys, "argv", ["litbench", *command, "--out", "out", *flags])
        if flags == columns:
            main()
            assert re.search("12 (pairs|read|used)", capsys.readouterr().out)
        else:
            with pytest.raises(SystemExit):
                main()
            assert "give --rejected COLUMN" in capsys.readouterr().err
