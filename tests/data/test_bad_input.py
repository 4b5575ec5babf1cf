"""Bad input: a one-line error with exit code 2, or a rejected row while the others are kept."""

import csv
import decimal
import gzip
import io
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from litbench.data.ingest import RejectedRows, read_foreign
from litbench.data.records import STORIES
from litbench.runs.config import run_program

MAP = ["--columns.prompt=title", "--columns.text=body", "--columns.prompt_id=post"]
ENDINGS = ["jsonl", "csv", "parquet"]
every_format = pytest.mark.parametrize("ending", ENDINGS)


@dataclass
class Outcome:
    """Result of a run of make_stories.py: exit code, error message, tables."""

    code: int
    error: str
    stories: dict[str, dict[str, Any]]
    rejected_rows: list[dict[str, Any]]
    counts: dict[str, Any]

    def adds_up_to(self, rows):
        """Whether every row of the file is counted exactly once: kept, rejected or not selected."""
        assert self.code == 0, self.error
        noted = [row["row"] for row in self.rejected_rows]
        assert len(set(noted)) == len(noted)
        assert sum(self.counts["rejected_rows"].values()) == len(noted)
        assert self.counts["stories"] == len(self.stories)
        return len(self.stories) + len(noted) + self.counts["not_selected"] == rows

    def says(self, *parts):
        """Whether the run ended with exit code 2 and a one-line message containing all parts."""
        assert self.code == 2
        *notes, error = self.error.splitlines()
        assert error.startswith("error: ")
        assert all(note.endswith("give encoding") for note in notes)
        assert "Traceback" not in self.error
        assert len(self.error) < 2_000
        assert not [part for part in parts if part not in self.error], self.error
        return True


Run = Callable[..., Outcome]


@pytest.fixture
def make_stories(tmp_path, monkeypatch, capsys, load_program):
    """Run make_stories.py on a file in this process, with command-line arguments."""
    module = load_program("data_prep/make_stories.py")
    numbers = itertools.count()

    def run(source, *arguments, columns=MAP):
        out = tmp_path / f"out{next(numbers)}"
        line = ["make_stories.py", f"--out={out}", f"--input={source}", *columns, *arguments]
        monkeypatch.setattr(sys, "argv", line)
        capsys.readouterr()
        code = 0
        try:
            run_program(module.main, module.Config, module.__doc__)
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        error = capsys.readouterr().err
        if code:
            assert not (out / "manifest.json").exists()
            return Outcome(code, error, {}, [], {})
        rows = pq.read_table(out / "stories.parquet").to_pylist()
        stories = {row["story_id"]: row for row in rows}
        assert len(stories) == len(rows)
        noted = (out / "rejected.jsonl").read_text(encoding="utf-8").splitlines()
        counts = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["counts"]
        return Outcome(code, error, stories, [json.loads(line) for line in noted], counts)

    return run


def rows_of(count=6):
    return [
        {
            "story_id": f"s{k}",
            "post": f"p{k // 2}",
            "title": f"[WP] A prompt, number {k // 2}",
            "body": f'The {k}th story said "go",\nand then, of course, it went.',
            "score": k,
            "created_utc": 1_500_000_000 + k,
        }
        for k in range(count)
    ]


def write(path, rows):
    names = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        path.write_text(text, encoding="utf-8")
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
    else:
        columns = {}
        for name in names:
            values = [row.get(name) for row in rows]
            if len({type(value) for value in values} - {type(None)}) > 1:
                values = [None if value is None else str(value) for value in values]
            columns[name] = values
        pq.write_table(pa.table(columns), path)
    return path


# Whole files ---------------------------------------------------------------------------------

HEADING = b"story_id,post,title,body"
BAD_FILES = {
    "empty Parquet": ("raw.parquet", b"", "cannot be read"),
    "empty CSV": ("raw.csv", b"", "no usable row"),
    "heading alone": ("raw.csv", HEADING + b"\n", "no usable row"),
    "blank CSV": ("raw.csv", b"\n\n", "no usable row"),
    "blank JSONL": ("raw.jsonl", b"\n \n", "no usable row"),
    "not Parquet": ("raw.parquet", b"no table", "cannot be read"),
    "broken Parquet": ("raw.parquet", b"PAR1" + b"\xff" * 99 + b"\x10\0\0\0PAR1", "cannot be read"),
    "no ending": ("raw", b"a", "neither Parquet nor JSON nor a table"),
    "wrong ending": ("raw.jsonl.gz", b"a", "not JSON (1)"),
    "workbook": ("raw.csv", b"PK\x03\x04" + b"\xff" * 99, "a zip archive or an Excel workbook"),
    "web page": ("raw.json", b"<!DOCTYPE html><title>Not found</title>", "a web page"),
    "truncated gzip": ("raw.csv.gz", gzip.compress(HEADING)[:-9], "truncated or damaged"),
    "compressed Parquet": ("raw.parquet.gz", gzip.compress(b"PAR1"), "decompress it"),
    "unfinished array": ("raw.json", b'[{"story_id": "a"},', "without its end"),
    "Latin-1": ("raw.csv", b"story_id,post,title,k\xf6rper\na,b,c,d\n", "'body'"),
    "UTF-16": ("raw.csv", HEADING.decode().encode("utf-16"), "no usable row"),
}


@pytest.mark.parametrize(("name", "content", "said"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_file(make_stories, tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    assert make_stories(path).says(str(path), said)


@every_format
def test_missing_column(make_stories, tmp_path, ending):
    path = write(tmp_path / f"raw.{ending}", rows_of())
    outcome = make_stories(path, columns=MAP[:2])
    assert outcome.says(str(path), "'prompt_id' is missing", "post, ", "map it to a column")


# Single rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [b"\xff", b"\xed\xa0\x80"])
@every_format
def test_invalid_utf8_rejects_the_row(make_stories, tmp_path, ending, broken):
    path = write(tmp_path / f"raw.{ending}", rows_of())
    if ending == "parquet":
        table = pa.Table.from_pylist(rows_of())
        bodies = [text.encode() for text in table["body"].to_pylist()]
        bodies[2] = b"The 2th" + broken
        raw = pa.array(bodies, pa.binary()).view(pa.string())
        pq.write_table(table.set_column(table.column_names.index("body"), "body", raw), path)
    else:
        path.write_bytes(path.read_bytes().replace(b"The 2th", b"The 2th" + broken))
    outcome = make_stories(path)
    assert outcome.adds_up_to(6)
    assert set(outcome.stories) == {"s0", "s1", "s3", "s4", "s5"}
    (noted,) = outcome.rejected_rows
    assert noted["row"] == 3
    assert "not UTF-8" in noted["reason"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"story_id": "x", "body": ', "not JSON"),
        ('{"story_id": "x"} {"story_id": "y"}', "not JSON"),
        ("not JSON at all", "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ("null", "not a JSON object"),
        ("\x00", "not JSON"),
        ('{"story_id": ' + "1" * 5_000 + "}", "not JSON"),
        ('{"story_id": ' + "[" * 200_000 + "]" * 200_000 + "}", "not JSON"),
        ('{"story_id": "x", "post": "p", "title": "t", "body": {"text": "nested"}}', "not text"),
    ],
)
def test_broken_json_line_is_rejected(make_stories, tmp_path, line, reason):
    path = write(tmp_path / "raw.jsonl", rows_of())
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[2:]]))
    outcome = make_stories(path)
    assert outcome.adds_up_to(7)
    assert len(outcome.stories) == 6
    (noted,) = outcome.rejected_rows
    assert noted["row"] == 3
    assert noted["reason"].startswith(reason)


@pytest.mark.parametrize("line", ["x,p,t,b,1,1500000000,more", "x,p,t", '"x"y,p,t'])
def test_csv_row_with_wrong_number_of_fields(make_stories, tmp_path, line):
    path = write(tmp_path / "raw.csv", [{**row, "body": "one line"} for row in rows_of()])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], line, *lines[3:]]))
    outcome = make_stories(path)
    assert outcome.adds_up_to(7)
    assert len(outcome.stories) == 6
    (noted,) = outcome.rejected_rows
    assert noted["row"] == 3


@pytest.mark.parametrize("position", [0, 3, 5])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_unclosed_csv_quote_rejects_one_row(make_stories, tmp_path, position, quoting):
    buffer = io.StringIO()
    writer = csv.writer(buffer, quoting=quoting, lineterminator="\n")
    writer.writerow(rows_of()[0])
    writer.writerows({**row, "title": "t, u", "body": "one line"}.values() for row in rows_of())
    lines = buffer.getvalue().splitlines()
    assert '"t, u",' in lines[position + 1]
    lines[position + 1] = lines[position + 1].replace('"t, u",', '"t, u,')
    path = tmp_path / "raw.csv"
    path.write_text("\n".join(lines))
    outcome = make_stories(path)
    assert outcome.adds_up_to(6)
    assert set(outcome.stories) == {f"s{k}" for k in range(6) if k != position}
    (noted,) = outcome.rejected_rows
    assert noted["row"] == position + 1


@pytest.mark.parametrize("broken", ["", 's9,p,"t, u,b,1,2\n', 's9,p,5" t,b,1,2\n', "s9,p\xff,t\n"])
def test_csv_is_read_alike_in_blocks_of_any_size(tmp_path, monkeypatch, broken):
    path = write(tmp_path / "raw.csv", rows_of())
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], broken.encode("latin-1"), *lines[5:]]))
    columns = {"prompt": "title", "text": "body", "prompt_id": "post", "source": "'test'"}
    results = []
    for size in (1, 16, 64, 1 << 20):
        monkeypatch.setattr("litbench.data.chunks._BLOCK", size)
        rejected = RejectedRows()
        stories = read_foreign(path, STORIES, columns=columns, rejected_rows=rejected)
        assert {row["story_id"] for row in stories.to_pylist()} >= {f"s{k}" for k in range(6)}
        results.append((stories.to_pylist(), rejected.rows))
    assert all(result == results[0] for result in results)


def test_rejected_rows_are_printed_and_written(make_stories, tmp_path):
    rows = rows_of()
    rows[2]["score"] = "l" * 10_000
    path = write(tmp_path / "raw.jsonl", rows)
    (noted,) = make_stories(path).rejected_rows
    assert noted["file"] == str(path)
    assert noted["column"] == "score"
    assert noted["value"].startswith("'lll")
    assert len(noted["value"]) <= 120


# Columns that nobody reads -------------------------------------------------------------------

HALVES = pa.array(np.arange(6, dtype=np.float16))
EXOTIC = {
    "float16": HALVES,
    "embedding": pa.FixedSizeListArray.from_arrays(HALVES, 1),
    "list of float16": pa.ListArray.from_arrays(pa.array(range(7), pa.int32()), HALVES),
    "struct of float16": pa.StructArray.from_arrays([HALVES], ["a"]),
    "dictionary of float16": pa.DictionaryArray.from_arrays(pa.array([0] * 6), HALVES),
    "tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float16(), [1]), pa.FixedSizeListArray.from_arrays(HALVES, 1)
    ),
    "decimal256": pa.array([decimal.Decimal("1.5")] * 6, pa.decimal256(60, 2)),
    "list of decimal256": pa.array([[decimal.Decimal(1)]] * 6, pa.list_(pa.decimal256(60, 2))),
    "duration": pa.array([90] * 6, pa.duration("s")),
    "calendar interval": pa.array([(1, 2, 3)] * 6, pa.month_day_nano_interval()),
    "map": pa.array([[("k", 1)]] * 6, pa.map_(pa.string(), pa.int64())),
    "map with a repeated key": pa.array([[("k", 1), ("k", 2)]] * 6, pa.map_("string", "int64")),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0] * 6, pa.int8()), pa.array(range(6), pa.int32()), [pa.array(range(6))]
    ),
    "run-end encoded": pa.RunEndEncodedArray.from_arrays(
        pa.array([6], pa.int32()), pa.array(["a"])
    ),
    "nanoseconds": pa.array([1] * 6, pa.timestamp("ns", "Asia/Kathmandu")),
    "list view": pa.array([[1]] * 6, pa.list_view(pa.int64())),
    "null": pa.nulls(6),
}


def with_column(folder, column, name="x"):
    """Write the rows with one more column, as `datasets` does where Parquet lacks its type."""
    table = pa.Table.from_pylist(rows_of()).append_column(name, column)
    try:
        pq.write_table(table, folder / "raw.parquet")
        return folder / "raw.parquet"
    except pa.ArrowException:
        saved = folder / "saved"
        saved.mkdir()
        with pa.ipc.new_stream(str(saved / "data.arrow"), table.schema) as stream:
            stream.write_table(table)
        (saved / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
        return saved


@pytest.mark.parametrize("column", EXOTIC.values(), ids=EXOTIC)
def test_column_of_any_type_stops_nothing_unless_it_is_read(make_stories, tmp_path, column):
    path = with_column(tmp_path, column)
    assert len(make_stories(path).stories) == 6
    for name in ("text", "score", "created_utc"):
        outcome = make_stories(path, f"--columns.{name}=x")
        if outcome.code:
            assert outcome.says(str(path))
        else:
            assert outcome.adds_up_to(6)


NANOSECONDS = """
import sys


class WithoutPandas:
    def find_spec(self, name, *_):
        if name == "pandas":
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, WithoutPandas())
from litbench.data.ingest import RejectedRows, read_foreign
from litbench.data.records import STORIES
columns = {"prompt": "title", "text": "body", "prompt_id": "post", "source": "'x'"}
table = read_foreign(sys.argv[1], STORIES, columns=columns, rejected_rows=RejectedRows())
assert len(table.to_pylist()) == 6
"""


def test_repeated_rows_with_nanoseconds_need_no_pandas(tmp_path):
    table = pa.Table.from_pylist(rows_of()).append_column("x", EXOTIC["nanoseconds"])
    pq.write_table(pa.concat_tables([table, table]), tmp_path / "raw.parquet")
    command = [sys.executable, "-c", NANOSECONDS, str(tmp_path / "raw.parquet")]
    subprocess.run(command, check=True)


def test_numbers_of_unusual_types_are_read(make_stories, tmp_path):
    outcome = make_stories(with_column(tmp_path, HALVES), "--columns.score=x")
    assert [row["score"] for row in outcome.stories.values()] == list(range(6))


@pytest.mark.parametrize(
    "name", ["", " ", "a\0b", 'a"b', "a'b", "(row)", "(key)", "(problem)", "(0)"]
)
@every_format
def test_column_of_any_name_stops_nothing(make_stories, tmp_path, ending, name):
    path = write(tmp_path / f"raw.{ending}", [{**row, name: 1} for row in rows_of()])
    assert len(make_stories(path).stories) == 6


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_repeated_column_is_an_error_only_if_it_is_read(make_stories, tmp_path, ending):
    rows = rows_of()
    names = [*rows[0], "x", "x", "", "", "score (1)"]
    records = [[*row.values(), 1, 2, 3, 4, 5] for row in rows]

    def save(names):
        path = tmp_path / f"raw.{ending}"
        if ending == "csv":
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([names, *records])
        else:
            columns = map(pa.array, zip(*records, strict=True))
            pq.write_table(pa.Table.from_arrays(list(columns), names), path)
        return path

    first = next(iter(make_stories(save(names)).stories.values()))
    assert [int(first[name]) for name in ("x (1)", "x (2)", "unnamed (1)", "unnamed (2)")] == [
        1,
        2,
        3,
        4,
    ]
    assert make_stories(save(names), "--columns.score=x").says("column 'x' appears twice")
    twice = ["score" if name == "" else name for name in names]
    assert make_stories(save(twice)).says("column 'score' appears twice")


# Random damage -------------------------------------------------------------------------------


def corrupt(data, rng):
    """Damage a few bytes: change, remove, insert, repeat or overwrite some."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data))
        span = rng.choice([1, 1, 1, 2, 8, 40])
        marks = [b'"', b",", b"\n", b"\r", b"\\", b"{", b"}", b"[", b":", b"\x00", b"\xff", b"'"]
        kind = rng.randrange(5)
        if kind == 0:
            data = data[:at] + rng.randbytes(1) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + data[at + span :]
        elif kind == 2:
            data = data[:at] + rng.choice(marks) + data[at:]
        elif kind == 3:
            data = data[: at + span] + data[at:]
        else:
            data = data[:at] + rng.choice(marks) + data[at + 1 :]
    return data or b" "


def plain_rows(count):
    """Rows of one line each, so that a damaged line is one damaged row."""
    return [{**row, "body": f"Story {row['story_id']} went on, and on."} for row in rows_of(count)]


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_random_damage_loses_no_good_row(tmp_path, ending):
    rng = random.Random(20)
    path = write(tmp_path / f"raw.{ending}", plain_rows(12))
    columns = {"prompt": "title", "text": "body", "prompt_id": "post", "source": "'test'"}
    expected = read_foreign(path, STORIES, columns=columns).to_pylist()
    lines = path.read_bytes().splitlines()
    # The header is left intact: it defines the columns.
    head = lines.pop(0) + b"\n" if ending == "csv" else b""
    for _ in range(30):
        body = corrupt(b"\n".join(lines), rng)
        path.write_bytes(head + body)
        whole = set(body.replace(b"\r\n", b"\n").split(b"\n"))
        rejected_rows = RejectedRows()
        stories = read_foreign(path, STORIES, columns=columns, rejected_rows=rejected_rows)
        results = {row["story_id"]: row for row in stories.to_pylist()}
        # A damaged row may get the id of an intact one; duplicates are rejected.
        twice = any(row["column"] == "story_id" for row in rejected_rows.rows)
        for line, row in zip(lines, expected, strict=True):
            if line in whole and not twice:
                row_read = results.get(row["story_id"], {})
                assert {name: row_read.get(name) for name in row} == row, body
        if ending == "jsonl":
            written = sum(bool(line.strip()) for line in body.split(b"\n"))
            assert stories.num_rows + len(rejected_rows.rows) == written, body


def test_random_damage_to_parquet(make_stories, tmp_path):
    rng = random.Random(21)
    path = write(tmp_path / "raw.parquet", rows_of(50))
    good = path.read_bytes()
    refused = 0
    for _ in range(20):
        path.write_bytes(corrupt(good, rng))
        outcome = make_stories(path)
        if outcome.code:
            assert outcome.says(str(path))
            refused += 1
        else:
            assert outcome.adds_up_to(50)
    assert refused > 3


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_random_bytes(make_stories, tmp_path, ending):
    rng = random.Random(22)
    path = tmp_path / f"raw.{ending}"
    for size in (1, 2, 10, 100, 10_000):
        path.write_bytes(rng.randbytes(size))
        assert make_stories(path).says(str(path))
