"""The program compare: the same pairs in several evaluations."""

import json

import numpy as np
import pytest

from litbench.errors import ConfigError, DataError
from litbench.metrics.comparisons import holm, paired_difference
from litbench.records import prompt_keys
from litbench.tables import write_table


@pytest.fixture
def evaluated(load_program, pair_table, tmp_path):
    """Judge pairs by raters that need no training; returns the folder."""
    benchmark = load_program("eval/benchmark.py")

    def run(name, rows, raters=("longer", "talk")):
        write_table(pair_table(rows), tmp_path / f"{name}.parquet")
        named = {rater: {"kind": rater} for rater in raters}
        reference = raters[0]
        benchmark.main(
            benchmark.Config(
                pairs=tmp_path / f"{name}.parquet", out=tmp_path / name, raters=named,
                reference=reference,
            )
        )  # fmt: skip
        return tmp_path / name

    return run


def rows_of(thanks):
    """Forty pairs; in every third the chosen story thanks for gold."""
    rows = []
    for place in range(40):
        chosen = "The river rose. " * (1 + place % 3)
        if place % 3 == 0:
            chosen += thanks
        rejected = "The river fell. " * (1 + place % 2)
        rows.append({"chosen": chosen.strip(), "rejected": rejected.strip()})
    return rows


THANKS = "\n\nEdit: thank you for the gold, kind stranger!"


def test_a_difference_is_paired_and_clustered_by_prompt(load_program, pair_table, evaluated):
    compare = load_program("eval/compare.py")
    folders = {
        "published": evaluated("published", rows_of(THANKS)),
        "cut": evaluated("cut", rows_of("")),
    }
    out = folders["cut"].parent / "out"
    compare.main(compare.Config(evaluations=folders, out=out))
    rows = {row["rater"]: row for row in json.loads((out / "comparison.json").read_text())}
    assert set(rows) == {"longer", "talk"}
    pairs = pair_table(rows_of(""))
    with_talk = np.array([1.0 if place % 3 == 0 else 0.5 for place in range(40)])
    expected, p_value = paired_difference(np.full(40, 0.5), with_talk, prompt_keys(pairs))
    talk = rows["talk"]
    assert talk["difference"]["mean"] == pytest.approx(expected.mean, abs=1e-6)
    assert talk["difference"]["low"] == pytest.approx(expected.low, abs=1e-6)
    assert talk["p_value"] == pytest.approx(p_value, abs=1e-6)
    assert (talk["reference"], talk["evaluation"]) == ("published", "cut")
    assert talk["agreement"]["mean"] == 0.5
    both = [rows[name]["p_value"] for name in ("longer", "talk")]
    assert [rows[name]["p_holm"] for name in ("longer", "talk")] == pytest.approx(
        holm(both), abs=1e-6
    )


def test_the_order_of_the_pairs_does_not_matter(load_program, evaluated):
    compare = load_program("eval/compare.py")
    rows = [{**row, "pair_id": f"pair{place:02d}"} for place, row in enumerate(rows_of(THANKS))]
    folders = {"one": evaluated("one", rows), "other": evaluated("other", rows[::-1])}
    # Prompts go by place in the fixture, and pairs must keep theirs.
    with_prompts = [{**row, "prompt_id": f"p{place % 7}"} for place, row in enumerate(rows)]
    folders["other"] = evaluated("again", with_prompts[::-1])
    out = folders["one"].parent / "out"
    compare.main(compare.Config(evaluations=folders, out=out))
    for row in json.loads((out / "comparison.json").read_text()):
        assert row["difference"]["mean"] == 0


def test_other_pairs_and_other_raters_are_refused(load_program, evaluated):
    compare = load_program("eval/compare.py")
    one = evaluated("one", rows_of(THANKS))
    fewer = evaluated("fewer", rows_of(THANKS)[:30])
    alone = evaluated("alone", rows_of(THANKS), raters=("shorter",))
    out = one.parent / "out"
    with pytest.raises(DataError, match="fewer has 30 pairs and one 40, 30 of them the same"):
        compare.main(compare.Config(evaluations={"one": one, "fewer": fewer}, out=out))
    with pytest.raises(ConfigError, match="no rater is in all of them"):
        compare.main(compare.Config(evaluations={"one": one, "alone": alone}, out=out))
    with pytest.raises(ConfigError, match=r"'longr' is not in every.*did you mean 'longer'"):
        compare.main(compare.Config(evaluations={"a": one, "b": one}, out=out, raters=["longr"]))
    with pytest.raises(ConfigError, match="two or more"):
        compare.main(compare.Config(evaluations={"one": one}, out=out))
    assert not out.exists()


def test_pairs_made_anew_since_and_other_folders_are_refused(load_program, pair_table, evaluated):
    compare = load_program("eval/compare.py")
    one, other = evaluated("one", rows_of(THANKS)), evaluated("other", rows_of(""))
    folders = {"one": one, "other": other}
    write_table(pair_table(rows_of("")[::-1]), one.parent / "one.parquet")
    with pytest.raises(DataError, match=r"one.parquet has changed since .*one judged it"):
        compare.main(compare.Config(evaluations=folders, out=one.parent / "out"))
    one = evaluated("one", rows_of(THANKS))
    (other / "manifest.json").write_text('{"inputs": {}}', encoding="utf-8")
    with pytest.raises(DataError, match=r"other: its manifest is of no evaluation"):
        compare.main(compare.Config(evaluations=folders, out=one.parent / "out"))
