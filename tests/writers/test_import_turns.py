"""litbench writers import_turns: turns of a published table, by selects."""

import json

import pyarrow as pa
import pytest

from litbench.data.records import TURNS
from litbench.data.tables import read_table, write_table
from litbench.judges.session import recorded_names
from litbench.runs.config import build
from litbench.runs.errors import ConfigError, DataError

WRITER = {
    "columns": {
        "writer": "model",
        "prompt_id": "item",
        "role": "'writer'",
        "step": "'chapter_' || n",
        "text": "text",
    },
    "where": "text <> ''",
}
JUDGE = {
    "columns": WRITER["columns"]
    | {"role": "'j'", "text": "reply", "outcome": "how", "sample": "n - n"},
    "where": "reply IS NOT NULL",
}
ROWS = [
    {"model": "m", "item": 3, "n": 1, "text": "One.", "reply": "Plot: 3", "how": "answered"},
    {"model": "m", "item": 3, "n": 2, "text": "Two.", "reply": "Plo", "how": "cut"},
    {"model": "k", "item": 3, "n": 1, "text": "", "reply": None, "how": None},
    {"model": None, "item": 3, "n": 9, "text": "Whose?", "reply": None, "how": None},
]


@pytest.fixture
def turns(load_program, tmp_path):
    """Import rows by selects; returns the rows of the table."""
    program = load_program("litbench writers import_turns")

    def run(rows, *selects):
        write_table(pa.Table.from_pylist(rows), tmp_path / "published.parquet")
        keys = {"table": str(tmp_path / "published.parquet"), "out": str(tmp_path / "out")}
        program.main(build(program.Config, {**keys, "selects": list(selects)}))
        return read_table(tmp_path / "out/turns.parquet", TURNS).to_pylist()

    return run


def test_every_select_gives_turns(turns, tmp_path, capsys):
    rows = turns(ROWS, WRITER, JUDGE)
    shown = [(row["role"], row["step"], row["text"], row["outcome"]) for row in rows]
    assert shown == [
        ("writer", "chapter_1", "One.", "answered"),
        ("writer", "chapter_2", "Two.", "answered"),
        ("j", "chapter_1", "Plot: 3", "answered"),
        ("j", "chapter_2", "Plo", "cut"),
    ]
    assert {(row["writer"], row["prompt_id"], row["sample"]) for row in rows} == {("m", "3", 0)}
    assert recorded_names(f"recorded/{tmp_path}/out/turns.parquet") == (["m"], ["j"])
    counts = json.loads((tmp_path / "out/manifest.json").read_text())["counts"]
    assert counts == {
        "turns": 4,
        "writers": ["m"],
        "roles": ["j", "writer"],
        "rejected_rows": {"writer: null": 1},
    }
    capsys.readouterr()
    turns(ROWS, WRITER, JUDGE)
    assert "unchanged" in capsys.readouterr().out


def test_errors(turns):
    same_step = {**WRITER, "columns": WRITER["columns"] | {"step": "'chapter'"}}
    cases = [
        (ConfigError, "key 'selects' is .*at least 1 item", []),
        (ConfigError, "unknown key 'selects.0.were': did you mean", [WRITER | {"were": "1"}]),
        (
            DataError,
            r"2 turns repeat writer, prompt, sample, role and step of another, such as "
            r"\('m', '3', 0, 'writer', 'chapter_1'\)",
            [WRITER, WRITER],
        ),
        (DataError, "outcome", [{**WRITER, "columns": WRITER["columns"] | {"outcome": "'done'"}}]),
    ]
    for error, said, selects in cases:
        with pytest.raises(error, match=said):
            turns(ROWS, *selects)
    assert len(turns(ROWS, same_step)) == 1, "repeated keys of one select are rejected rows"
