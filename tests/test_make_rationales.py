"""Rationales agree with the readers, say which side they call A, and cost no call twice."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from fake_openai import KEY, FakeOpenAI, drawn_manners, longer_story, shown_story

from litbench.artifact import read_manifest
from litbench.config import build
from litbench.errors import ConfigError, DataError, ModelError
from litbench.records import PAIRS
from litbench.tables import read_table, write_table

pytest.importorskip("inspect_ai")
pytest.importorskip("openai")

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "data_prep/make_rationales.py"
QUICK = {"first_wait_seconds": 0.01, "timeout_seconds": 60}


def make_pairs(pair_table: Callable[..., pa.Table], count: int) -> pa.Table:
    """Pairs of which the chosen story is the longer in three of four."""
    rows = []
    for k in range(count):
        long = f"the long story number {k} " + "that goes on " * (k % 5 + 2)
        short = f"the short story number {k}"
        chosen, rejected = (short, long) if k % 4 == 0 else (long, short)
        rows.append({"chosen": chosen, "rejected": rejected, "split": "test" if k == 1 else "all"})
    return pair_table(rows)


@pytest.fixture
def distil(
    load_program: Callable[[str], ModuleType], tmp_path: Path, pair_table: Callable[..., pa.Table]
) -> Callable[..., dict[str, Any]]:
    """Run the program on 24 pairs (or on `table`) with some keys; its counts."""
    program = load_program(PROGRAM)

    def run(table: pa.Table | None = None, **keys: Any) -> dict[str, Any]:
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


def rows_of(tmp_path: Path) -> list[dict[str, Any]]:
    return read_table(tmp_path / "out" / "pairs.parquet", PAIRS).to_pylist()


def bring(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)


def test_what_agrees_is_kept_and_says_which_side_was_a(
    distil: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with FakeOpenAI(lambda q: f"A is: {shown_story(q, 'A')}\n\n{longer_story(q)}") as server:
        bring(server, monkeypatch)
        counts = distil()
        assert server.requests == 24
    rows = rows_of(tmp_path)
    assert len(rows) == 24
    kept = [row for row in rows if row["rationale"] is not None]
    assert len(kept) == counts["rationales"] == 18
    for row in kept:
        assert row["chosen_n_words"] > row["rejected_n_words"]
        assert "Preferred" not in row["rationale"], "the verdict is no part of the explanation"
        side = row[row["rationale_first"]]
        assert row["rationale"].startswith(f"A is: {side}"), "Story A of the text is that side"
    assert {row["rationale_first"] for row in kept} == {"chosen", "rejected"}
    assert all(row["rationale_first"] is None for row in rows if row["rationale"] is None)
    assert counts["agreement"] == {"n": 24, "agrees": 18, "share": 0.75}
    assert counts["rejected_rows"] == {"rationale: disagrees": 6}
    assert counts["preferred"]["A"] + counts["preferred"]["B"] == 24
    assert counts["tokens"]["cached_tokens"] == 24 * 7
    assert counts["models"] == ["judge-1"]
    noted = [json.loads(x) for x in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    short = [k for k, row in enumerate(rows, 1) if row["chosen_n_words"] < row["rejected_n_words"]]
    assert [one["row"] for one in noted] == short


def test_the_judge_is_blind_and_a_is_right_as_often_as_b(
    distil: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever always answers A agrees with exactly one half."""
    with FakeOpenAI(lambda _: "The first one.\nPreferred: A") as server:
        bring(server, monkeypatch)
        counts = distil()
        said = " ".join(server.asked)
    assert counts["agreement"] == {"n": 24, "agrees": 12, "share": 0.5}
    assert counts["preferred"] == {"A": 24, "B": 0}
    assert counts["kept_where_right"] == {"A": 12, "B": 0}
    assert "chosen" not in said
    assert "rejected" not in said


def test_what_is_no_verdict_is_rejected_with_its_reason(
    distil: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manners = drawn_manners(seed=5, share=0.8)
    with FakeOpenAI(manners=manners) as server:
        bring(server, monkeypatch)
        with pytest.raises(ModelError, match=r"of 24 questions have got no answer.*accept_errors"):
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
    assert sum(rejected.values()) + counts["rationales"] == 24
    assert counts["agreement"]["n"] == expected[None]


@pytest.mark.parametrize(
    "say",
    [
        lambda q: "\n".join(longer_story(q).split("\n")[::-1]),
        lambda q: f"Hm.\nPreferred: A\nNo, wait.\n{longer_story(q)}",
    ],
    ids=["the verdict first", "a verdict taken back"],
)
def test_what_explains_nothing_is_no_explanation(
    distil: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    say: Callable[[str], str],
) -> None:
    with FakeOpenAI(say) as server:
        bring(server, monkeypatch)
        counts = distil()
    assert (counts["rationales"], counts["rejected_rows"]) == (0, {"rationale: unparsed": 24})
    assert counts["agreement"]["n"] == 0


def test_a_dry_run_tells_and_asks_nothing(
    distil: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    distil(dry_run=True)
    said = capsys.readouterr().out
    assert "dry run: 24 calls of openai-api/fake/judge, some" in said
    assert "at most 24,576 output tokens" in said
    assert not (tmp_path / "out").exists()
    with FakeOpenAI() as server:
        bring(server, monkeypatch)
        with pytest.raises(ConfigError, match="max_calls of 10"):
            distil(traffic={**QUICK, "max_calls": 10})
        distil(dry_run=True)
        assert "dry run: 14 calls" in capsys.readouterr().out
        distil()
        assert server.requests == 24


def test_nothing_is_asked_before_everything_else_is_right(
    distil: Callable[..., dict[str, Any]],
    tmp_path: Path,
    pair_table: Callable[..., pa.Table],
) -> None:
    with pytest.raises(ConfigError, match="asks for a label: give one whose answer is"):
        distil(template="verdict_label")
    pairs = make_pairs(pair_table, 4)
    with pytest.raises(DataError, match=r"a column \{'rationale'\} already"):
        distil(pairs.append_column("rationale", pa.array(["x"] * 4)))
    assert not (tmp_path / "out").exists()


def test_pairs_are_chosen_by_a_condition_and_files_hold_no_key(
    distil: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FakeOpenAI() as server:
        bring(server, monkeypatch)
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
