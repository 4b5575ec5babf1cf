"""Foreign files are read by content: compression, JSON shape, CSV dialect and encoding."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import sys
import tarfile

import pandas as pd
import pyarrow.parquet as pq
import pytest

from litbench.cli import main
from litbench.data.formats import sniff
from litbench.data.ingest import RejectedRows, read_foreign
from litbench.data.records import Column, Schema
from litbench.runs.errors import DataError

ROWS = [
    {"prompt": f"A door, {k}.", "text": f'"Come in," said {k}. A café; — then.'} for k in range(6)
]
FRAME = pd.DataFrame(ROWS)
STORIES = Schema(
    "stories", tuple(Column(name, "text", name, required=True) for name in ROWS[0]), ()
)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
ARRAY = json.dumps(ROWS)
CSV = FRAME.to_csv(index=False)
UNQUOTED = "prompt\ttext\n" + "".join("\t".join(row.values()) + "\n" for row in ROWS)
PARQUET = io.BytesIO()
FRAME.to_parquet(PARQUET)

FILES = {
    "lines.json": LINES,
    "lines.csv": LINES,
    "lines": LINES,
    "array.jsonl": ARRAY,
    "arrays.json": json.dumps(ROWS[:2]) + json.dumps(ROWS[2:]),
    "arrays on lines.json": json.dumps(ROWS[:2]) + "\n" + json.dumps(ROWS[2:]),
    "row per line.json": "[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n",
    "comma at the end.json": ARRAY[:-1] + ",]",
    "indented.json": json.dumps(ROWS, indent=1),
    "indented objects.jsonl": "\n".join(json.dumps(row, indent=1) for row in ROWS),
    "data.json": json.dumps({"version": "1", "data": ROWS}),
    "columns of rows.json": FRAME.to_json(),
    "columns of lists.json": json.dumps(FRAME.to_dict(orient="list")),
    "rows by number.json": FRAME.to_json(orient="index"),
    "split.json": FRAME.to_json(orient="split"),
    "table.json": FRAME.to_json(orient="table"),
    "viewer.json": json.dumps(
        {"features": [], "rows": [{"row_idx": k, "row": row} for k, row in enumerate(ROWS)]}
    ),
    "plain.CSV": CSV,
    "plain.txt": CSV,
    "table.jsonl": CSV,
    "byte order mark.csv": "\ufeff" + CSV,
    "semicolons.csv": FRAME.to_csv(index=False, sep=";"),
    "separator of Excel.csv": "sep=;\r\n" + FRAME.to_csv(index=False, sep=";"),
    "bars.csv": FRAME.to_csv(index=False, sep="|"),
    "tabs.csv": FRAME.to_csv(index=False, sep="\t"),
    "quoted.tsv": FRAME.to_csv(index=False, sep="\t"),
    "all quoted.tsv": FRAME.to_csv(index=False, sep="\t", quoting=csv.QUOTE_ALL),
    "unquoted.tsv": UNQUOTED,
    "lines.jsonl.gz": gzip.compress(LINES.encode()),
    "compressed.jsonl": bz2.compress(LINES.encode()),
    "table.csv.xz": lzma.compress(CSV.encode()),
    "cp1252.csv": CSV.encode("cp1252"),
    "cp1252.json": json.dumps(ROWS, ensure_ascii=False).encode("cp1252"),
    "cp1252.tsv.gz": gzip.compress(UNQUOTED.encode("cp1252")),
    "utf-16.csv": CSV.encode("utf-16"),
    "no mark.jsonl": LINES.encode("utf-16-le"),
    "big end first.csv": CSV.encode("utf-16-be"),
    "table.bin": PARQUET.getvalue(),
    "rows.parquet": LINES,
}


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(("name", "content"), FILES.items(), ids=FILES)
def test_a_file_is_read_by_its_content(tmp_path, capsys, name, content):
    path = write(tmp_path / name, content)
    assert read_foreign(path, STORIES).select(list(ROWS[0])).to_pylist() == ROWS
    guesses = capsys.readouterr().err.count(f"{path} is not UTF-8 and is read as cp1252")
    assert guesses == name.startswith("cp1252")


@pytest.mark.parametrize("name", ["semicolons.csv", "cp1252.csv", "columns of rows.json"])
def test_commands_read_such_files(tmp_path, monkeypatch, name):
    path, out = write(tmp_path / name, FILES[name]), tmp_path / "out.parquet"
    rater = ["--rater", "{kind: longer}"]
    monkeypatch.setattr(
        sys, "argv", ["litbench", "score", "--input", str(path), "--out", str(out), *rater]
    )
    main()
    assert pq.read_table(out).select(list(ROWS[0])).to_pylist() == ROWS


UNUSUAL = {
    # A first row of nulls, of another kind, or broken.
    "null.json": ("[null, " + ARRAY[1:], {"(line): not a JSON object": 1}),
    "broken.jsonl": ('{"prompt": "A\n' + LINES, {"(line): not JSON": 1}),
    "null.jsonl": ('{"prompt": null, "text": null}\n' + LINES, {"prompt: null": 1}),
    # A single row.
    "short.tsv": (UNQUOTED + "A door\n", {"(row): more or fewer fields than headings": 1}),
    "unclosed.csv": (CSV + '"A door,x\n', {"(row): not CSV": 1}),
    "one byte.csv": (CSV.encode() + b"A \xe9,x\n", {"(row): bytes that are not UTF-8": 1}),
    "no text.csv": (CSV.encode("cp1252") + b"A \xff,x\n", None),
    # Windows-1252 has all these bytes, but few are ASCII.
    "Greek.csv": (("prompt,text\n" + "θυρα,ανοιξε\n" * 9).encode("iso8859-7"), None),
}


@pytest.mark.parametrize(("name", "file"), UNUSUAL.items(), ids=UNUSUAL)
def test_unusual_rows_are_counted(tmp_path, name, file):
    content, reasons = file
    path, rejected = write(tmp_path / name, content), RejectedRows()
    if reasons is None:
        with pytest.raises(DataError, match="not UTF-8"):
            read_foreign(path, STORIES)
        return
    assert read_foreign(path, STORIES, rejected_rows=rejected).to_pylist() == ROWS
    assert rejected.counts() == reasons


def archive(form):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=form) as tar:
        member = tarfile.TarInfo("rows.jsonl")
        member.size = len(LINES.encode())
        tar.addfile(member, io.BytesIO(LINES.encode()))
    return file.getvalue()


# Files that are not read, and what they are called.
OTHERS = {
    "rows.tar": (archive("w"), "a tar archive"),
    "rows.tar.gz": (archive("w:gz"), "a tar archive"),
    "twice.jsonl.gz": (gzip.compress(gzip.compress(LINES.encode())), "compressed twice"),
    "texts.json": (json.dumps([row["text"] for row in ROWS]), "no names"),
    "lists.jsonl": ("\n".join(json.dumps([*row.values()]) for row in ROWS), "no names"),
    "indented.json": (json.dumps(["A door, it shut.", "A gate."], indent=1), "no names"),
    "Python.jsonl": ("\n".join(map(repr, ROWS)), "Python prints"),
    "table.md": ("| prompt | text |\n|:---|---:|\n| A door. | It shut. |\n", "Markdown"),
    "stream.arrow": (b"\xff\xff\xff\xff\x10\0\0\0", "an Arrow stream"),
    "page.csv": (b"\n<!DOCTYPE html><p>a,b</p>", "a web page"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_named_as_what_they_are(tmp_path, name):
    content, what = OTHERS[name]
    with pytest.raises(DataError, match=what):
        read_foreign(write(tmp_path / name, content), STORIES)


def test_stories_over_several_lines_keep_a_tsv_quoted(tmp_path):
    rows = [{"prompt": "A door.", "text": f'"Come in,"\nsaid {k}\tand left.'} for k in range(4)]
    path = tmp_path / "rows.tsv"
    pd.DataFrame(rows).to_csv(path, sep="\t", index=False)
    assert read_foreign(path, STORIES).to_pylist() == rows


def test_one_object_is_one_row(tmp_path):
    messages = [
        {"role": "user", "content": "A door."},
        {"role": "assistant", "content": "It shut."},
    ]
    row = {"prompt": "A door.", "text": "It shut.", "chosen": messages, "rejected": messages}
    path = write(tmp_path / "row.json", json.dumps(row, indent=2))
    (result,) = read_foreign(path, STORIES).to_pylist()
    assert json.loads(result["chosen"]) == messages


@pytest.mark.parametrize("escape", [r"\ud83d", r"\uDE00", r"\ud83d\ud83d\ude00", r"\ude00\ud83d"])
def test_lone_surrogates_become_replacement_characters(tmp_path, escape):
    path = write(
        tmp_path / "rows.jsonl", f'{{"prompt": "\\ud83d\\ude00 x", "text": "a{escape}"}}\n'
    )
    (row,) = read_foreign(path, STORIES).to_pylist()
    text = json.loads(f'"a{escape}"')
    assert row == {
        "prompt": "\U0001f600 x",
        "text": "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text),
    }


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "rows.csv")
    with pytest.raises(DataError, match="pipe"):
        read_foreign(tmp_path / "rows.csv", STORIES)


def test_an_encoding_that_is_given_is_not_guessed(tmp_path):
    path = write(tmp_path / "rows.csv", CSV.encode("cp1252"))
    with pytest.raises(DataError, match="not UTF-8"):
        read_foreign(path, STORIES, encoding="utf-8")
    assert sniff(path).encoding == "cp1252"
