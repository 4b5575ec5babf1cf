"""The suite: every set that is there, every rater on it, and what must be known beside the figures.

With them the forms of other people's benchmarks that data_prep/import_pairs.py reads for it.
"""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
import yaml

from litbench.artifact import read_manifest
from litbench.config import build, load_config
from litbench.errors import ConfigError, DataError
from litbench.evaluation import Judged
from litbench.records import PAIRS
from litbench.tables import read_table, write_table

ROOT = Path(__file__).resolve().parent.parent


def pairs_of(pair_table: Callable[..., pa.Table], longer: int, shorter: int, **keys: Any) -> Any:
    """Pairs of which so many have the longer story as chosen."""
    long, short = "it goes on and on and on", "it ends"
    rows = []
    for place in range(longer + shorter):
        chosen, rejected = (long, short) if place < longer else (short, long)
        texts = {"chosen": f"{chosen} {place}", "rejected": f"{rejected} {place}"}
        rows.append({**texts, "prompt_id": f"p{place % 5}", **keys})
    return pair_table(rows)


@pytest.fixture
def evaluate(
    load_program: Callable[[str], ModuleType], pair_table: Callable[..., pa.Table], tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """Run the program on two sets and an absent one; what suite.json says."""
    program = load_program("eval/suite.py")
    write_table(pairs_of(pair_table, 9, 3, label_source="votes"), tmp_path / "one.parquet")
    write_table(pairs_of(pair_table, 4, 12), tmp_path / "two.parquet")
    sets = {name: {"pairs": str(tmp_path / f"{name}.parquet")} for name in ("one", "two", "gone")}
    sets["one"]["about"] = "votes | <b>of readers</b>"

    def run(**keys: Any) -> dict[str, Any]:
        config = build(program.Config, {"out": str(tmp_path / "out"), "sets": sets, **keys})
        program.main(config)
        if config.dry_run:
            return {}
        found: dict[str, Any] = json.loads((config.out / "suite.json").read_text())
        return found

    return run


def row_of(found: dict[str, Any], of_set: str, rater: str) -> dict[str, Any]:
    (row,) = [row for row in found["rows"] if (row["set"], row["rater"]) == (of_set, rater)]
    return dict(row)


def test_every_set_and_rater_has_its_row(
    evaluate: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    found = evaluate(raters={"talk": {"kind": "talk"}})
    assert len(found["rows"]) == 6
    one, two = (row_of(found, name, "longer") for name in ("one", "two"))
    assert (one["agreement"], one["pairs"], one["prompts"], one["labels"]) == (0.75, 12, 5, "votes")
    assert (two["agreement"], two["pairs"], two["labels"]) == (0.25, 16, "people")
    for name in ("one", "two"):
        longer, shorter = (row_of(found, name, rater) for rater in ("longer", "shorter"))
        assert longer["agreement"] + shorter["agreement"] == pytest.approx(1)
        assert longer["low"] < longer["agreement"] < longer["high"]
        assert row_of(found, name, "talk")["agreement"] == 0.5
    assert found["absent"] == ["gone"]
    means = {row["rater"]: row for row in found["over_sets"]}
    assert means["longer"]["mean"] == 0.5, "a mean over sets, whatever their sizes"
    assert means["longer"]["sd"] == pytest.approx(0.353553, abs=1e-5)
    assert (means["longer"]["lowest"], means["longer"]["highest"]) == (0.25, 0.75)
    with (tmp_path / "out/suite.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 6
    text = (tmp_path / "out/suite.md").read_text()
    assert "no interval" in text
    assert "<b>" not in text
    assert "gone: absent" in text


def test_each_set_is_an_evaluation_that_others_read(
    evaluate: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    found = evaluate()
    judged = Judged.find(tmp_path / "out/two")
    rows = judged.leaderboard(judged.read_verdicts(), judged.read_pairs())
    assert {row.rater: row.agreement.mean for row in rows} == {
        row["rater"]: row["agreement"] for row in found["rows"] if row["set"] == "two"
    }


def test_a_set_or_a_rater_added_later_is_the_only_one_to_run(
    evaluate: Callable[..., dict[str, Any]],
    tmp_path: Path,
    pair_table: Callable[..., pa.Table],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    load_program: Callable[[str], ModuleType],
) -> None:
    asked = []
    program = load_program("eval/suite.py")
    judge = program.judge_pairs

    def judge_and_note(rater: Any, pairs: pa.Table) -> pa.Table:
        asked.append((rater.name, pairs.num_rows))
        return judge(rater, pairs)

    monkeypatch.setattr(program, "judge_pairs", judge_and_note)
    evaluate()
    assert sorted(asked) == [("longer", 12), ("longer", 16), ("shorter", 12), ("shorter", 16)]
    asked.clear()
    first = evaluate()
    assert not asked
    assert "# Agreement" in capsys.readouterr().out
    write_table(pairs_of(pair_table, 2, 2), tmp_path / "gone.parquet")
    found = evaluate()
    assert sorted(asked) == [("longer", 4), ("shorter", 4)]
    assert found["absent"] == []
    assert [row for row in found["rows"] if row["set"] != "gone"] == first["rows"]
    asked.clear()
    evaluate(raters={"coin": {"kind": "random"}})
    assert sorted(asked) == [("coin", 4), ("coin", 12), ("coin", 16)]


def test_a_killed_run_keeps_what_was_judged(
    evaluate: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    load_program: Callable[[str], ModuleType],
    tmp_path: Path,
) -> None:
    undisturbed = evaluate()["rows"]
    shutil.rmtree(tmp_path / "out")
    program = load_program("eval/suite.py")
    judge, asked = program.judge_pairs, []

    def judge_then_die(rater: Any, pairs: pa.Table) -> pa.Table:
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(rater.name)
        return judge(rater, pairs)

    monkeypatch.setattr(program, "judge_pairs", judge_then_die)
    with pytest.raises(KeyboardInterrupt):
        evaluate()
    monkeypatch.setattr(
        program, "judge_pairs", lambda rater, pairs: asked.append("again") or judge(rater, pairs)
    )
    assert evaluate()["rows"] == undisturbed
    assert asked.count("again") == 1


def test_a_broken_set_is_set_aside_and_the_others_go_on(
    evaluate: Callable[..., dict[str, Any]],
    tmp_path: Path,
    pair_table: Callable[..., pa.Table],
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = evaluate()
    (tmp_path / "gone.parquet").write_bytes(b"half of a file")
    for _ in range(2):
        # Also where all the others are current, and in a dry run.
        for dry_run in (True, False):
            with pytest.raises(DataError, match="set aside: gone, for the reasons above"):
                evaluate(dry_run=dry_run)
            assert "set aside: gone: " in capsys.readouterr().out
        found = json.loads((tmp_path / "out/suite.json").read_text())
        assert found["rows"] == whole["rows"]
        assert found["absent"] == []
        assert "gone.parquet is not a Parquet file" in found["rejected_rows"]["gone"]
        text = (tmp_path / "out/suite.md").read_text()
        assert "- gone: set aside: gone.parquet is not a Parquet file" in text
        assert str(tmp_path) not in text
    # Gone again: the tables must not tell of it any more.
    (tmp_path / "gone.parquet").unlink()
    assert evaluate() == whole
    assert "gone: absent" in (tmp_path / "out/suite.md").read_text()
    write_table(pairs_of(pair_table, 2, 2), tmp_path / "gone.parquet")
    assert {row["set"] for row in evaluate()["rows"]} == {"one", "two", "gone"}
    for name in ("one", "two", "gone"):
        (tmp_path / f"{name}.parquet").write_bytes(b"half of a file")
    with pytest.raises(DataError, match="none of the 3 sets that are there can be used"):
        evaluate()


def test_a_rater_trained_on_a_sets_prompts_is_flagged_and_not_in_its_mean(
    evaluate: Callable[..., dict[str, Any]],
    tmp_path: Path,
    pair_table: Callable[..., pa.Table],
    load_program: Callable[[str], ModuleType],
) -> None:
    pytest.importorskip("sklearn")
    # The prompts of all tables here are p0 to p4.
    train = load_program("train/features.py")
    pairs = pairs_of(pair_table, 20, 10)
    write_table(pairs, tmp_path / "train.parquet")
    train.main(build(train.Config, {"pairs": str(tmp_path / "train.parquet"),
                                    "out": str(tmp_path / "features")}))  # fmt: skip
    other = pairs_of(pair_table, 6, 6, prompt="Another prompt")
    write_table(other, tmp_path / "two.parquet")
    path = str(tmp_path / "features/model")
    found = evaluate(raters={"features": {"kind": "features", "path": path}})
    assert row_of(found, "one", "features")["trained_on_prompts"] == 5
    assert row_of(found, "two", "features")["trained_on_prompts"] == 0
    mean = next(row for row in found["over_sets"] if row["rater"] == "features")
    assert (mean["sets"], mean["sets_trained_on"]) == (1, 1)
    assert mean["mean"] == row_of(found, "two", "features")["agreement"]
    assert "TRAINED ON 5 OF ITS PROMPTS" in (tmp_path / "out/suite.md").read_text()


def test_pairs_without_text_and_pairs_not_drawn_are_counted(
    evaluate: Callable[..., dict[str, Any]],
    tmp_path: Path,
    pair_table: Callable[..., pa.Table],
) -> None:
    rows = [{"chosen": f"a long story {k}", "rejected": "" if k < 7 else f"story {k}"}
            for k in range(20)]  # fmt: skip
    write_table(pair_table(rows), tmp_path / "one.parquet")
    found = evaluate(most_pairs=10)
    one, two = (row_of(found, name, "longer") for name in ("one", "two"))
    assert (one["pairs"], one["pairs_without_text"], one["pairs_not_drawn"]) == (10, 7, 3)
    assert (two["pairs"], two["pairs_without_text"], two["pairs_not_drawn"]) == (10, 0, 6)
    # The draw goes by the pairs, not by their order.
    drawn = set(read_table(tmp_path / "out/two/pairs.parquet", PAIRS)["pair_id"].to_pylist())
    whole = read_table(tmp_path / "two.parquet", PAIRS)
    write_table(whole.take(list(range(whole.num_rows - 1, -1, -1))), tmp_path / "two.parquet")
    evaluate(most_pairs=10)
    again = read_table(tmp_path / "out/two/pairs.parquet", PAIRS)["pair_id"].to_pylist()
    assert set(again) == drawn


def test_a_dry_run_writes_no_figures(
    evaluate: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = {"kind": "judge", "model": "mockllm/model", "template": "minimal"}
    pytest.importorskip("inspect_ai")
    evaluate(dry_run=True, raters={"judge": judge})
    said = capsys.readouterr().out
    assert "one: 12 pairs, labels of votes" in said
    assert "one: judge" in said
    assert "two: judge" in said
    assert not (tmp_path / "out/suite.json").exists()


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ({"sets": {"gone": {"pairs": "/nowhere.parquet"}}}, DataError, "none of the 1 sets"),
        ({"sets": {}}, ConfigError, "sets: none is named"),
        ({"sets": {"../up": {"pairs": "/nowhere.parquet"}}}, ConfigError, "names a folder"),
        ({"sets": {"a": {"pair": "x"}}}, ConfigError, "did you mean 'pairs'"),
        ({"reference": "talk"}, ConfigError, "no rater"),
        ({"most_pairs": 1}, ConfigError, "at least 2"),
    ],
)
def test_what_cannot_be_done_is_said(
    evaluate: Callable[..., dict[str, Any]], keys: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        evaluate(**keys)


# Forms of other people's benchmarks ----------------------------------------------------------


@pytest.fixture
def import_with(
    load_program: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., pa.Table]:
    """Run import_pairs.py by one of its configs on some rows; the pairs."""
    program = load_program("data_prep/import_pairs.py")

    def run(config: str, rows: list[dict[str, Any]]) -> pa.Table:
        for name in ("WQ", "WPB"):
            monkeypatch.setenv(name, str(tmp_path))
        path = ROOT / "configs/data" / config
        named = Path(yaml.safe_load(path.read_text())["pairs"].rpartition("/")[2])
        source = tmp_path / (named if named.suffix == ".jsonl" else "rows.jsonl")
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        out = tmp_path / "imported"
        arguments = ["--config", str(path), "--out", str(out), "--pairs", str(source)]
        program.main(load_config(program.Config, arguments))
        return read_table(out / "pairs.parquet", PAIRS)

    return run


@pytest.mark.parametrize(
    "name", sorted(path.name for path in (ROOT / "configs/data").glob("wq_*.yaml"))
)
def test_the_writing_quality_benchmark_is_read(
    name: str, import_with: Callable[..., pa.Table]
) -> None:
    rows = [
        {
            "original_id": f"h-{k}", "paragraph1": f"first text {k}",
            "paragraph2": f"second text {k}", "reference_preference": str(1 + k % 2),
            "sample_type": "style-mimic", "source": f"Author_{k % 3}", "text_input": "both",
            "output": "{}", "id": f"test-{k}",
        }
        for k in range(6)
    ]  # fmt: skip
    pairs = import_with(name, rows).to_pylist()
    assert len(pairs) == 6
    for pair in pairs:
        place = int(pair["chosen"][-1])
        assert pair["chosen"].startswith("second" if place % 2 else "first")
    assert len({pair["prompt"] for pair in pairs}) > 1, "else all are one cluster"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_published_pairs_of_writing_preference_bench_are_read(
    language: str, import_with: Callable[..., pa.Table]
) -> None:
    rows = [
        {"prompt": f"task {k}", "language": of, "genre": "fiction", "chosen": f"good {of} {k}",
         "rejected": f"dull {of} {k}", "chosen_human_score": 3, "rejected_human_score": 1}
        for k in range(3) for of in ("en", "zh")
    ]  # fmt: skip
    pairs = import_with(f"wpb_{language}_published_pairs.yaml", rows)
    assert pairs.num_rows == 3
    assert all(language in text for text in pairs["chosen"].to_pylist())


def test_several_rejected_texts_make_several_pairs(
    import_with: Callable[..., pa.Table], tmp_path: Path
) -> None:
    rows = [
        {"id": "1", "prompt": "task 1", "chosen": ["right 1"],
         "rejected": ["wrong a", "wrong b", "wrong c"], "subset": "Focus"},
        {"id": "2", "prompt": "task 2", "chosen": ["tie"], "rejected": ["x"], "subset": "Ties"},
        {"id": "3", "prompt": "task 3", "chosen": ["right 3", "right too"], "rejected": ["wrong"],
         "subset": "Math"},
        {"id": "4", "prompt": "task 4", "chosen": ["right 4"], "rejected": [], "subset": "Math"},
        {"id": "5", "prompt": "task 5", "chosen": ["same", None], "rejected": ["same"],
         "subset": "Math"},
    ]  # fmt: skip
    pairs = import_with("reward_bench_2_pairs.yaml", rows).to_pylist()
    assert {(pair["chosen"], pair["rejected"]) for pair in pairs} == {
        ("right 1", "wrong a"), ("right 1", "wrong b"), ("right 1", "wrong c"),
        ("right 3", "wrong"), ("right too", "wrong"),
    }  # fmt: skip
    assert {pair["subset"] for pair in pairs} == {"Focus", "Math"}
    noted = [json.loads(x) for x in (tmp_path / "imported/rejected.jsonl").read_text().split("\n")
             if x]  # fmt: skip
    assert [(one["row"], one["column"]) for one in noted] == [
        (4, "rejected"), (5, "chosen"), (5, "rejected")
    ]  # fmt: skip
    assert all(one["file"].endswith("rows.jsonl") for one in noted)
    counts = read_manifest(tmp_path / "imported")["counts"]
    assert counts["not_selected"] == 1


def test_lists_need_a_form_that_has_them(
    load_program: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    program = load_program("data_prep/import_pairs.py")
    keys = {"pairs": "x.jsonl", "out": str(tmp_path), "several": True}
    with pytest.raises(ConfigError, match="leave out stories"):
        program.main(build(program.Config, {**keys, "stories": "y.parquet"}))
    source = tmp_path / "plain.jsonl"
    source.write_text('{"prompt": "p", "chosen": "a", "rejected": "b"}\n')
    with pytest.raises(DataError, match="no row has lists"):
        program.main(build(program.Config, {**keys, "pairs": str(source)}))
