"""Configs of published results: each says what it needs, and plans where stand-ins give that."""

import csv
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from chinese_writers import write_books
from test_longform import write_texts
from test_published_texts import write_tow, write_webnovel

from litbench.data.records import TURNS
from litbench.data.tables import read_table, write_table
from litbench.runs.config import load_config
from litbench.writers.import_turns import TurnImport, import_turns
from litbench.writers.run import RunCommand, command

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "configs/paper"
# All captions of the papers, and what the benchmark without a paper publishes.
CAPTIONS = {
    "LitBench": (3, 10, 0, 0),
    "HoWToBench": (19, 6, 0, 0),
    "WebNovelBench": (2, 10, 0, 0),
    "NARRA-Gym": (1, 6, 4, 11),
}
OTHERS = ("Leaderboard", "Text statistics", "Chapter averages", "Similarity")
STATES = ("whole", "not", "no result")
KINDS = ("Table ", "Figure ", "Table A", "Figure A")
# Presets that ask, without those that read published texts.
PLANNED = {
    "longform_leaderboard": [None],
    "webnovelbench_figure3": [None],
    "howtobench_table4": [None, "inconsistency"],
    "narra_table1": [None, "full"],
}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*_*.yaml")), ids=lambda path: path.stem)
def test_a_config_says_what_it_costs_or_needs(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    header = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    assert any(said in header for said in ("Dry run", "not run (needs ", "o cost"))


def test_every_table_and_figure_of_the_papers_is_listed():
    with (ROOT / "docs/results/papers.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [
        (paper, f"{kind}{number}")
        for paper, counts in CAPTIONS.items()
        for kind, count in zip(KINDS, counts, strict=True)
        for number in range(1, count + 1)
    ]
    expected += [("EQ-Bench Longform", name) for name in OTHERS]
    assert sorted((row["paper"], row["item"]) for row in rows) == sorted(expected)
    results = [row for row in rows if row["state"] != "no result"]
    assert {row["state"] for row in rows} == set(STATES)
    for row in results:
        assert None not in row, f"{row}: a comma without quotation marks"
        assert row["why not exactly"], row
        assert bool(row["source"]) == (row["state"] != "not"), row
        path, _, preset = row["source"].partition(" --preset ")
        if path.startswith("configs/"):
            content = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
            assert not preset or preset in content["presets"], row
    page = (ROOT / "docs/reproduce.md").read_text(encoding="utf-8")
    (about,) = [block for block in page.split("\n\n") if "papers.csv" in block]
    counts = [sum(row["state"] == state for row in rows) for state in STATES]
    assert list(map(int, re.findall(r"\b\d+\b", about))) == [len(results), *counts]


@pytest.mark.parametrize(
    ("name", "preset", "rater"),
    [
        ("eval/best_of_n", "figure_7", "verifier"),
        ("paper/litbench_a8", None, "verifier"),
        ("paper/litbench_table3", "figure_4", "bradley_terry_llama"),
    ],
)
def test_the_verifier_is_the_papers(name, preset, rater):
    """5.1, 5.5 and A.8 evaluate a Bradley-Terry model of Llama-8B; small presets Llama-1B."""
    presets = [preset, "small" if preset is None else f"{preset}_small"]
    content = yaml.safe_load((FOLDER.parent / f"{name}.yaml").read_text(encoding="utf-8"))
    recipe = yaml.safe_load((FOLDER / "bradley_terry.yaml").read_text(encoding="utf-8"))
    recipes = (recipe | recipe["presets"]["llama_8b"], recipe)
    for chosen, trained in zip(presets, recipes, strict=True):
        raters = (content if chosen is None else content["presets"][chosen])["raters"]
        assert raters[rater]["path"] == f"{trained['output_dir']}/model"
    assert [recipe["model_name_or_path"].rpartition("-")[2] for recipe in recipes] == ["8B", "1B"]


def test_texts_are_changed_as_in_table_7(tmp_path, monkeypatch):
    """One to three paragraphs, or sentences of short texts, are missing, or stand there twice."""
    monkeypatch.setenv("HOWTOBENCH", str(tmp_path))
    long, short = "".join(f"第{n}段。也是。\n" for n in range(6)), "甲来了。乙走了！丙呢？"
    rows = [
        {"instruction_id": f"i{n}", "model": model, "text": (long, short)[n % 2]}
        for n in range(400)
        for model in ("deepseek-r1", "gemini-2.0-flash", "other")
    ]
    write_table(pa.Table.from_pylist(rows), tmp_path / "outputs.parquet")
    path = ROOT / "configs/data/howtobench_changes.yaml"
    import_turns(load_config(TurnImport, [f"--config={path}", f"--out={tmp_path / 'out'}"]))
    texts = {}
    for row in read_table(tmp_path / "out/turns.parquet", TURNS).to_pylist():
        texts.setdefault(row["prompt_id"], {})[row["writer"]] = row["text"]
    assert {text["initial"] for text in texts.values()} == {long, short}
    for text in texts.values():
        pieces = re.findall(".+\n" if text["initial"] == long else "[^。！？]+.", text["initial"])
        dropped = [piece for piece in pieces if piece not in text["drop"]]
        assert 1 <= len(dropped) <= min(3, len(pieces) - 1)
        assert [text["repeat"].count(piece) for piece in pieces] == [
            1 + (piece in dropped) for piece in pieces
        ]


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """Folders with invented texts in place of the published ones, beside which commands run."""
    for name in ("webnovel", "tow"):
        (tmp_path / name).mkdir()
    write_texts(tmp_path / "longform")
    write_webnovel(tmp_path / "webnovel")
    write_tow(tmp_path / "tow")
    parameters = {
        **dict.fromkeys(("mean", "std", "weights"), [1.0] * 8),
        "min_score": -1,
        "max_score": 1,
        "normalized_existing_scores": [k / 9 for k in range(10)],
    }
    (tmp_path / "webnovel/fixed_parameters.json").write_text(json.dumps(parameters))
    (tmp_path / "runs/novels/books").mkdir(parents=True)
    write_books(tmp_path / "runs/novels/books/books.jsonl")
    monkeypatch.chdir(tmp_path)
    for variable, name in (
        ("LONGFORM_BENCH", "longform"),
        ("WEBNOVELBENCH", "webnovel"),
        ("HOWTOBENCH", "tow"),
    ):
        monkeypatch.setenv(variable, str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "preset"), [(name, preset) for name, presets in PLANNED.items() for preset in presets]
)
@pytest.mark.usefixtures("stand_ins")
def test_a_run_is_planned(name, preset, capsys):
    pytest.importorskip("inspect_ai")
    path = FOLDER / f"{name}.yaml"
    inputs = [] if preset is None else [f"--preset={preset}"]
    config = load_config(RunCommand, [f"--config={path}", *inputs, "--dry_run", "true"])
    command(config)
    said = capsys.readouterr().out
    assert "per dialogue: " in said
    for writer in yaml.safe_load(path.read_text(encoding="utf-8"))["writers"]:
        assert writer in said
