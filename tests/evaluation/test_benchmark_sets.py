"""A benchmark of several sets: every set that is there, and means over the same sets."""

import json

import pytest

from litbench.data.records import PAIRS
from litbench.data.tables import read_table, write_table
from litbench.evaluation import loop as evaluation
from litbench.evaluation.results import Evaluation
from litbench.metrics.sets import over_sets
from litbench.runs.config import build
from litbench.runs.errors import ConfigError, DataError

BASELINES = {"longer": {"kind": "longer"}, "shorter": {"kind": "shorter"}}


def pairs_of(pair_table, longer, shorter, **keys):
    """Pairs of which so many have the longer story as chosen."""
    long, short = "it goes on and on and on", "it ends"
    rows = []
    for index in range(longer + shorter):
        chosen, rejected = (long, short) if index < longer else (short, long)
        texts = {"chosen": f"{chosen} {index}", "rejected": f"{rejected} {index}"}
        rows.append({**texts, "prompt_id": f"p{index % 5}", **keys})
    return pair_table(rows)


@pytest.fixture
def benchmark(load_program, pair_table, tmp_path):
    """Run the program on two sets and an absent one; what sets.json says."""
    program = load_program("eval/benchmark.py")
    write_table(pairs_of(pair_table, 9, 3, label_source="votes"), tmp_path / "one.parquet")
    write_table(pairs_of(pair_table, 4, 12), tmp_path / "two.parquet")
    pairs = {name: str(tmp_path / f"{name}.parquet") for name in ("one", "two", "gone")}
    pairs["one"] = {"pairs": pairs["one"], "about": "votes | <b>of readers</b>"}

    def run(raters=None, **keys):
        arguments = {"out": str(tmp_path / "out"), "pairs": pairs, **keys}
        config = build(program.Config, {**arguments, "raters": {**BASELINES, **(raters or {})}})
        program.main(config)
        return None if config.dry_run else read_sets(tmp_path)

    return run


def read_sets(tmp_path):
    return json.loads((tmp_path / "out/sets.json").read_text())


def row_of(rows, of_set, rater):
    (row,) = [row for row in rows["rows"] if (row["set"], row["rater"]) == (of_set, rater)]
    return row


@pytest.fixture
def asked(monkeypatch):
    """Names of raters and numbers of pairs that are judged."""
    calls = []
    judge = evaluation.judge_pairs

    def noting(rater, pairs, fold=None):
        calls.append((rater.name, pairs.num_rows))
        return judge(rater, pairs, fold)

    monkeypatch.setattr(evaluation, "judge_pairs", noting)
    return calls


def test_every_set_and_rater_has_its_row(benchmark, tmp_path):
    result = benchmark({"notes": {"kind": "notes"}})
    assert len(result["rows"]) == 6
    first, two = (row_of(result, name, "longer") for name in ("one", "two"))
    assert (first["agreement"], first["pairs"], first["prompts"], first["labels"]) == (
        0.75,
        12,
        5,
        "votes",
    )
    assert (two["agreement"], two["pairs"], two["labels"]) == (0.25, 16, "people")
    for name in ("one", "two"):
        longer, shorter = (row_of(result, name, rater) for rater in ("longer", "shorter"))
        assert longer["agreement"] + shorter["agreement"] == pytest.approx(1)
        assert longer["agreement_low"] < longer["agreement"] < longer["agreement_high"]
        assert row_of(result, name, "notes")["agreement"] == 0.5
    means = {row["rater"]: row for row in result["over_sets"]["raters"]}
    assert means["longer"]["mean"] == 0.5, "a mean over sets, whatever their sizes"
    assert means["longer"]["low"] is None, "sets that share prompts are one cluster"
    assert (means["longer"]["lowest"], means["longer"]["highest"]) == (0.25, 0.75)
    text = (tmp_path / "out/sets.md").read_text()
    assert "<b>" not in text
    assert "gone: absent" in text
    judged = Evaluation.find(tmp_path / "out/two")
    rows = judged.rows
    assert {row.rater: row.agreement.mean for row in rows} == {
        row["rater"]: row["agreement"] for row in result["rows"] if row["set"] == "two"
    }


def test_only_added_sets_and_raters_run(benchmark, asked, pair_table, tmp_path, capsys):
    benchmark()
    assert sorted(asked) == [("longer", 12), ("longer", 16), ("shorter", 12), ("shorter", 16)]
    asked.clear()
    first = benchmark()
    assert not asked
    assert "Agreement with the labels" in capsys.readouterr().out
    write_table(pairs_of(pair_table, 2, 2), tmp_path / "gone.parquet")
    result = benchmark()
    assert sorted(asked) == [("longer", 4), ("shorter", 4)]
    assert [row for row in result["rows"] if row["set"] != "gone"] == first["rows"]
    asked.clear()
    benchmark({"coin": {"kind": "random"}})
    assert sorted(asked) == [("coin", 4), ("coin", 12), ("coin", 16)]


def test_broken_sets_are_reported_at_the_end(benchmark, tmp_path, capsys):
    whole = benchmark()
    (tmp_path / "gone.parquet").write_bytes(b"half of a file")
    # Also where all the others are current, and in a dry run.
    for dry_run in (True, False):
        with pytest.raises(DataError, match="not used: gone"):
            benchmark(dry_run=dry_run)
        assert "gone: not used: " in capsys.readouterr().out
    assert read_sets(tmp_path)["rows"] == whole["rows"]
    text = (tmp_path / "out/sets.md").read_text()
    assert "- gone: not used: gone.parquet cannot be read" in text
    assert str(tmp_path) not in text
    (tmp_path / "gone.parquet").unlink()
    assert benchmark() == whole
    for name in ("one", "two", "gone"):
        (tmp_path / f"{name}.parquet").write_bytes(b"half of a file")
    with pytest.raises(DataError, match="none of the 3 sets"):
        benchmark()


def test_means_exclude_sets_with_training_prompts(benchmark, tmp_path, pair_table, load_program):
    # The prompts of all tables here are p0 to p4.
    train = load_program("train/features.py")
    write_table(pairs_of(pair_table, 20, 10), tmp_path / "train.parquet")
    keys = {"pairs": str(tmp_path / "train.parquet"), "out": str(tmp_path / "features")}
    train.main(build(train.Config, keys))
    other = pairs_of(pair_table, 6, 6, prompt="Another prompt")
    write_table(other, tmp_path / "two.parquet")
    result = benchmark({"features": {"kind": "features", "path": str(tmp_path / "features/model")}})
    assert row_of(result, "one", "features")["trained_on"] == 5
    assert row_of(result, "two", "features")["trained_on"] == 0
    means = result["over_sets"]
    assert (means["sets"], means["left_out"]) == (["two"], {"one": ["features"]})
    assert {row["rater"]: row["mean"] for row in means["raters"]} == {
        row["rater"]: row["agreement"] for row in result["rows"] if row["set"] == "two"
    }
    assert "TRAINED ON 5 OF ITS PROMPTS" in (tmp_path / "out/sets.md").read_text()


def test_means_are_over_the_sets_of_all_raters():
    rows = [
        {"set": name, "rater": rater, "agreement": value, "trained_on": seen}
        for name, rater, value, seen in [
            ("a", "x", 0.9, 0),
            ("a", "y", 0.5, 3),
            ("b", "x", 0.6, 0),
            ("b", "y", 0.7, 0),
            ("b", "recorded", 0.8, 0),
            ("c", "x", 0.4, 0),
            ("c", "y", 0.3, 0),
        ]
    ]
    result = over_sets(rows, ["x", "y"], "x")
    assert result["sets"] == ["b", "c"]
    assert {row["rater"]: row["mean"] for row in result["raters"]} == {"x": 0.5, "y": 0.5}


def test_omitted_pairs_are_noted(benchmark, tmp_path, pair_table, capsys):
    rows = [
        {"chosen": f"a long story {k}", "rejected": "" if k < 7 else f"story {k}"}
        for k in range(20)
    ]
    write_table(pair_table(rows), tmp_path / "one.parquet")
    result = benchmark(max_pairs=10)
    assert (
        row_of(result, "one", "longer")["pairs"] == row_of(result, "two", "longer")["pairs"] == 10
    )
    said = capsys.readouterr().out
    assert "one: 7 pairs left out: no text" in said
    assert "one: 10 of 13 pairs drawn" in said
    assert "two: 10 of 16 pairs drawn" in said
    judged = Evaluation.find(tmp_path / "out/two")
    drawn = judged.pairs.headline["pair_id"].to_pylist()
    assert len(drawn) == 10
    whole = read_table(tmp_path / "two.parquet", PAIRS)
    write_table(whole.take(list(range(whole.num_rows - 1, -1, -1))), tmp_path / "two.parquet")
    benchmark(max_pairs=10)
    again = Evaluation.find(tmp_path / "out/two").pairs.headline["pair_id"].to_pylist()
    assert set(again) == set(drawn), "the draw goes by the pairs, not by their order"


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ({"pairs": {"gone": "/nowhere.parquet"}}, DataError, "none of the 1 sets"),
        ({"pairs": {}}, DataError, "none of the 0 sets"),
        ({"pairs": {"../up": "/nowhere.parquet"}}, ConfigError, "cannot be a folder"),
        ({"pairs": {"a": {"pair": "x"}}}, ConfigError, "did you mean 'pairs'"),
        ({"split": "test"}, ConfigError, "split: with several sets"),
        ({"reference": "notes"}, ConfigError, "not a rater"),
        ({"max_pairs": 1}, ConfigError, "2 or more"),
    ],
)
def test_what_cannot_be_done_is_said(benchmark, keys, error, says):
    with pytest.raises(error, match=says):
        benchmark(**keys)
