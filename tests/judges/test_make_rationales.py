"""Rationales agree with the labels, record the side shown as A, and are requested once."""

import json
import re
from collections import Counter

import pyarrow as pa
import pytest
from fake_openai import KEY, FakeOpenAI, drawn_manners, longer_story, shown_story

from litbench.data.records import PAIRS
from litbench.data.tables import read_table, write_table
from litbench.runs.config import build
from litbench.runs.errors import ConfigError, DataError, ModelError
from litbench.runs.outputs import read_manifest

pytest.importorskip("inspect_ai")
pytest.importorskip("openai")

PROGRAM = "data_prep/make_rationales.py"
QUICK = {"first_wait_seconds": 0.01, "timeout_seconds": 60}


def make_pairs(pair_table, count):
    """Pairs whose chosen story is the longer one in three of four cases."""
    rows = []
    for k in range(count):
        long = f"the long story number {k} " + "that goes on " * (k % 5 + 2)
        short = f"the short story number {k}"
        chosen, rejected = (short, long) if k % 4 == 0 else (long, short)
        rows.append({"chosen": chosen, "rejected": rejected, "split": "test" if k == 1 else "all"})
    return pair_table(rows)


@pytest.fixture
def distil(load_program, tmp_path, pair_table):
    """Run the program on 24 pairs (or on `table`) with some keys; returns its counts."""
    program = load_program(PROGRAM)

    def run(table=None, **keys):
        write_table(make_pairs(pair_table, 24) if table is None else table, tmp_path / "in.parquet")
        config = build(
            program.Config,
            {
                "pairs": str(tmp_path / "in.parquet"),
                "out": str(tmp_path / "out"),
                "model": FakeOpenAI.model,
                "traffic": QUICK,
                **keys,
            },
        )
        program.main(config)
        return {} if config.dry_run else dict(read_manifest(config.out)["counts"])

    return run


def rows_of(tmp_path):
    return read_table(tmp_path / "out" / "pairs.parquet", PAIRS).to_pylist()


def test_agreeing_explanations_are_kept(distil, tmp_path):
    with FakeOpenAI(lambda q: f"A is: {shown_story(q, 'A')}\n\n{longer_story(q)}") as server:
        counts = distil()
        assert server.requests == 24
    rows = rows_of(tmp_path)
    assert len(rows) == 24
    filled = [row for row in rows if row["rationale"] is not None]
    assert len(filled) == sum(counts["rationales"].values()) == 18
    for row in filled:
        assert row["chosen_n_words"] > row["rejected_n_words"]
        assert "Preferred" not in row["rationale"], "the verdict is no part of the explanation"
        side = row[row["rationale_first"]]
        assert row["rationale"].startswith(f"A is: {side}"), "Story A of the text is that side"
    assert {row["rationale_first"] for row in filled} == {"chosen", "rejected"}
    assert all(row["rationale_first"] is None for row in rows if row["rationale"] is None)
    assert counts["answers"] == {"agrees": 18, "disagrees": 6}
    assert counts["rejected_rows"] == {"rationale: disagrees": 6}
    assert counts["models"] == ["judge-1"]
    noted = [json.loads(x) for x in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    short = [k for k, row in enumerate(rows, 1) if row["chosen_n_words"] < row["rejected_n_words"]]
    assert [item["row"] for item in noted] == short


def test_label_is_hidden_and_positions_balanced(distil):
    """A judge that always answers A agrees with exactly half of the labels."""
    with FakeOpenAI(lambda _: "The first one.\nPreferred: A") as server:
        counts = distil()
        said = " ".join(server.asked)
    assert counts["answers"] == {"agrees": 12, "disagrees": 12}
    assert counts["rationales"] == {"A": 12, "B": 0}
    assert "chosen" not in said
    assert "rejected" not in said


def test_unusable_answers_are_rejected(distil, tmp_path):
    manners = drawn_manners(seed=5, share=0.8)
    with FakeOpenAI(manners=manners) as server:
        with pytest.raises(ModelError, match=r"of 24 questions got no answer.*accept_errors"):
            distil()
        assert not (tmp_path / "out/manifest.json").exists()
        counts = distil(accept_errors=True)
        expected = Counter(manners(question) for question in server.asked)
    assert min(expected.values()) > 0
    assert len(expected) == 6, "every manner and the plain answer are drawn"
    rejected = counts["rejected_rows"]
    assert rejected["rationale: refused"] == expected["refusal"] + expected["filter"]
    assert rejected["rationale: cut"] == expected["length"]
    assert rejected["rationale: unparsed"] == expected["rambling"]
    assert rejected["rationale: error"] == expected["no choice"]
    assert sum(rejected.values()) + counts["answers"]["agrees"] == 24
    assert counts["answers"]["agrees"] + counts["answers"]["disagrees"] == expected[None]


@pytest.mark.parametrize(
    "say",
    [
        lambda q: "\n".join(longer_story(q).split("\n")[::-1]),
        lambda q: f"Hm.\nPreferred: A\nNo, wait.\n{longer_story(q)}",
    ],
    ids=["the verdict first", "a verdict taken back"],
)
def test_empty_explanations(distil, say):
    with FakeOpenAI(say):
        counts = distil()
    assert counts["answers"] == {"unparsed": 24}
    assert counts["rejected_rows"] == {"rationale: unparsed": 24}


def test_dry_run_sends_no_requests(distil, tmp_path, capsys):
    distil(dry_run=True)
    said = capsys.readouterr().out
    assert re.search(r"rationales \(openai-api/fake/judge\) +24 +0 ", said)
    assert not (tmp_path / "out").exists()
    with FakeOpenAI() as server:
        with pytest.raises(ConfigError, match="max_calls of 10"):
            distil(traffic={**QUICK, "max_calls": 10})
        distil(dry_run=True)
        assert re.search(r"fake/judge\) +14 +10 ", capsys.readouterr().out)
        distil()
        assert server.requests == 24


def test_invalid_input_sends_no_requests(distil, tmp_path, pair_table):
    with pytest.raises(ConfigError, match=r"label.*explanation"):
        distil(template="verdict_label")
    pairs = make_pairs(pair_table, 4)
    with pytest.raises(DataError, match=r"\{'rationale'\}"):
        distil(pairs.append_column("rationale", pa.array(["x"] * 4)))
    assert not (tmp_path / "out").exists()


def test_where_and_no_key_in_files(distil, tmp_path, capsys):
    with FakeOpenAI() as server:
        counts = distil(where="split = 'all'")
        assert counts["pairs"] == 23
        before = (tmp_path / "out/pairs.parquet").read_bytes()
        distil(where="split = 'all'", traffic={"connections": 3})
        assert "unchanged" in capsys.readouterr().out
        assert server.requests == 23
    assert (tmp_path / "out/pairs.parquet").read_bytes() == before
    for path in (tmp_path / "out").rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()
    assert "traffic" not in read_manifest(tmp_path / "out")["config"]
