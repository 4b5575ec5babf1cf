"""eval/report.py: evaluations of the same pairs compared, and the paper's tables as files."""

import csv
import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from litbench.data.records import prompt_keys
from litbench.data.tables import write_table
from litbench.evaluation.results import Evaluation
from litbench.metrics.comparisons import holm, paired_difference
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import write_sealed

THANKS = "\n\nEdit: thank you for the gold, kind stranger!"


def rows_of(thanks):
    """Forty pairs; in every third the chosen story thanks for gold."""
    rows = []
    for number in range(40):
        chosen = "The river rose. " * (1 + number % 3) + (thanks if number % 3 == 0 else "")
        rejected = "The river fell. " * (1 + number % 2)
        rows.append({"chosen": chosen.strip(), "rejected": rejected.strip()})
    return rows


@pytest.fixture
def evaluated(load_program, pair_table, tmp_path):
    """Judge pairs by raters that need no training; returns the folder."""
    benchmark = load_program("eval/benchmark.py")

    def run(name, rows, raters=("longer", "notes")):
        write_table(pair_table(rows), tmp_path / f"{name}.parquet")
        benchmark.main(
            benchmark.Config(
                pairs=tmp_path / f"{name}.parquet",
                out=tmp_path / name,
                raters={rater: {"kind": rater} for rater in raters},
                reference=raters[0],
            )
        )
        return tmp_path / name

    return run


@pytest.fixture
def report(load_program, tmp_path):
    """Run the program; returns the folder."""
    program = load_program("eval/report.py")

    def run(evaluations, **options):
        program.main(program.Config(evaluations=evaluations, out=tmp_path / "out", **options))
        return tmp_path / "out"

    return run


def read_csv(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_one_evaluation_makes_a_page_and_no_tables(report, evaluated, capsys):
    folder = evaluated("one", rows_of(THANKS))
    out = report({"one": folder})
    assert {path.name for path in out.iterdir()} == {"report.html", "manifest.json"}
    assert 'id="comparison"' not in (out / "report.html").read_text("utf-8")
    capsys.readouterr()
    report({"one": folder})
    assert "unchanged" in capsys.readouterr().out


def test_a_difference_is_paired_and_clustered_by_prompt(report, pair_table, evaluated):
    folders = {
        "published": evaluated("published", rows_of(THANKS)),
        "cut": evaluated("cut", rows_of("")),
    }
    out = report(folders)
    rows = {row["rater"]: row for row in json.loads((out / "comparison.json").read_text())}
    assert set(rows) == {"longer", "notes"}
    with_talk = np.array([1.0 if number % 3 == 0 else 0.5 for number in range(40)])
    clusters = prompt_keys(pair_table(rows_of("")))
    expected, p_value = paired_difference(np.full(40, 0.5), with_talk, clusters)
    notes = rows["notes"]
    for end in ("mean", "low", "high"):
        assert notes["difference"][end] == pytest.approx(getattr(expected, end), abs=1e-6)
    assert notes["p_value"] == pytest.approx(p_value, abs=1e-6)
    assert (notes["reference"], notes["evaluation"]) == ("published", "cut")
    assert notes["after"]["mean"] == 0.5
    both = [rows[name]["p_value"] for name in ("longer", "notes")]
    assert [rows[name]["p_holm"] for name in ("longer", "notes")] == pytest.approx(
        holm(both), abs=1e-6
    )
    page = (out / "report.html").read_text("utf-8")
    assert 'id="comparison"' in page
    assert f"{notes['difference']['mean']:.3f}" in page


def copied(folder, tmp_path, *others):
    """Copy an evaluation and files into another folder, and remove the originals."""
    away = tmp_path / "elsewhere"
    away.mkdir()
    shutil.move(folder, away / "evaluation")
    for file, index in others:
        (away / index).parent.mkdir(exist_ok=True)
        shutil.move(tmp_path / file, away / index)
    return away / "evaluation"


@pytest.mark.parametrize("place", ["pairs/one.parquet", "one.parquet", "evaluation/one.parquet"])
def test_a_copied_evaluation_finds_its_pairs(report, evaluated, tmp_path, monkeypatch, place):
    folder = evaluated("one", rows_of(THANKS))
    evaluation = copied(folder, tmp_path, ("one.parquet", place))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert (report({"one": evaluation}) / "report.html").is_file()
    # A file of the same name with other pairs is not taken for it.
    other = tmp_path / "elsewhere/another/one.parquet"
    other.parent.mkdir()
    other.write_bytes(b"other")
    assert Evaluation.find(Path("evaluation")).pairs_path.samefile(place)


def test_relative_paths_of_a_manifest_are_relative_to_it(evaluated, tmp_path, monkeypatch):
    folder = evaluated("one", rows_of(THANKS))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["inputs"]["pairs"]["path"] = "../one.parquet"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    assert Evaluation.find(folder).pairs_path.samefile(tmp_path / "one.parquet")


def test_pairs_that_were_not_copied_are_not_found(report, evaluated, tmp_path):
    evaluation = copied(evaluated("one", rows_of(THANKS)), tmp_path)
    (tmp_path / "one.parquet").unlink()
    (tmp_path / "elsewhere/pairs").mkdir()
    (tmp_path / "elsewhere/pairs/one.parquet").write_bytes(b"other")
    with pytest.raises(DataError, match=r"one\.parquet is not found, nor is a file one\.parq"):
        report({"one": evaluation})


def test_table_entries(report, evaluated):
    first = evaluated("one", rows_of(THANKS))
    two = evaluated("two", rows_of(""), raters=("longer", "notes", "shorter"))
    out = report(
        {"one": first, "two": two},
        tables=True,
        parameters={"shorter": 8.0e9},
        families={"shorter": "f"},
        published={"shorter": "bt-llama-8b"},
    )
    table = {row["rater"]: row for row in read_csv(out / "table3.csv")}
    # The chosen story with thanks is longer, so that each rater differs.
    assert set(table) == {"longer (one)", "longer (two)", "notes (one)", "notes (two)", "shorter"}
    assert table["shorter"]["published_agreement"] == "0.78"
    assert all(not row["published_agreement"] for name, row in table.items() if name != "shorter")
    sized = {name: (row["parameters"], row["family"]) for name, row in table.items()}
    assert sized.pop("shorter") == ("8000000000.0", "f")
    assert set(sized.values()) == {("", "")}
    assert ">8B<" in (out / "figure5.svg").read_text("utf-8")
    for name in ("figure4", "figure5"):
        ET.parse(out / f"{name}.svg")  # noqa: S314
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert r"\begin{tabular}" in (out / "table3.tex").read_text("utf-8")
    out = report({"one": first}, tables=True, raters=["notes"])
    assert [row["rater"] for row in read_csv(out / "table3.csv")] == ["notes"]


def test_what_does_not_fit_is_named(report, evaluated, pair_table, tmp_path):
    first = evaluated("one", rows_of(THANKS))
    fewer = evaluated("fewer", rows_of(THANKS)[:30])
    with pytest.raises(DataError, match=r"fewer .*30 .*40, 30"):
        report({"one": first, "fewer": fewer})
    with pytest.raises(ConfigError, match="evaluations is empty"):
        report({})
    with pytest.raises(ConfigError, match=r"raters: 'longr' .*'longer'"):
        report({"one": first}, raters=["longr"])
    for key, value in (
        ("parameters", {"longr": 1.0}),
        ("families", {"longr": "x"}),
        ("published", {"longr": "gpt-4.1"}),
    ):
        with pytest.raises(ConfigError, match=rf"{key}: 'longr' is not a rater.*'longer'"):
            report({"one": first}, tables=True, **{key: value})
    with pytest.raises(ConfigError, match=r"published\.longer: 'gpt-4.11'"):
        report({"one": first}, tables=True, published={"longer": "gpt-4.11"})
    write_table(pair_table(rows_of("")[::-1]), tmp_path / "one.parquet")
    with pytest.raises(DataError, match=r"one.parquet has changed"):
        report({"one": first})
    write_sealed({"inputs": {}}, fewer / "manifest.json")
    with pytest.raises(DataError, match=r"fewer: its manifest"):
        report({"fewer": fewer})
