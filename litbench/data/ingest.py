"""Reading foreign files (see `litbench.data.formats`), `datasets` folders and the Hub.

`read_foreign` reads a table into memory; `stream_foreign` and `StreamingTable` read input of any
size. LitBench's own tables are read by `litbench.data.tables`.

Each kind of source is read by a generator of chunks, and DuckDB fits each chunk to a schema of
`litbench.data.records` in one query. Rows that do not fit the schema are collected in a
`RejectedRows` with a reason, or raise an error that names file, row and column.
"""

import csv
import functools
import itertools
import json
import math
import re
import sqlite3
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import feather
from pydantic_core import to_json

from litbench.data.formats import MAX_LINE, Form, json_rows, open_text, sniff
from litbench.data.records import STORIES, Schema, is_account, is_text
from litbench.data.text import EMPTY, NO_TEXT, count_words, digest
from litbench.runs.config import nearest
from litbench.runs.errors import DataError
from litbench.runs.hub import is_name, open_stream
from litbench.runs.progress import ProgressBar

# Column with the number of each row in the source, counted from 1.
ROW = "(row)"
# Column with the JSON of each row, for schemas that declare it; null if the source is not JSON.
LINE = "(line)"
CHUNK_ROWS = 8_192
CHUNK_BYTES = 64 << 20

_MAX_COLUMNS = 1_000
# Characters of JSON lines that are read at a time. Larger blocks take five times as long, because
# the memory of each is requested from the system.
_BLOCK = 1 << 20
# Largest column of a Parquet row group that is read as a dictionary.
_LARGEST_CODED = 16 << 20
# Column with a hash of each row's key, to find repeated keys.
_KEY = "(key)"
_PROBLEM = "(problem)"
# Prefix of the column with the whole numbers among scores, null for other scores.
_WHOLE_SCORE = "(whole) "
_INTERNAL = (ROW, LINE, _KEY, _PROBLEM)

# SQL literals, quoted identifiers, and bare ones that are neither fields, types nor functions.
_IDENTIFIER = re.compile(
    r"""'(?:[^']|'')*'|"((?:[^"]|"")*)"|(?<![\w.:])(?<!\bas\s)([^\W\d]\w*)(?!\w|\s*\()""",
    re.IGNORECASE,
)

# Called for each broken row with its number, the column, the reason and the value.
Problem = Callable[..., None]


class RejectedRows:
    """Rows that could not be used, with reasons; stored on disk, so there can be any number.

    Attributes:
        not_selected: number of rows left out by the caller's condition.
    """

    def __init__(self) -> None:
        self.not_selected = 0
        # SQLite stores an unnamed database in $TMPDIR and deletes it with the connection.
        # Another thread may collect it.
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        self._database.execute("CREATE TABLE rejected (file, row, column, reason, value)")
        self._database.execute("BEGIN")

    def add(self, file: str, row: int, column: str, reason: str, value: Any = None) -> None:
        """Add a row; `row` is its number in the file, counted from 1."""
        # Account names are not stored.
        shown = None if value is None or is_account(column) else repr(value)[:120]
        try:
            values = (file, row, column, reason, shown)
            self._database.execute("INSERT INTO rejected VALUES (?, ?, ?, ?, ?)", values)
        except sqlite3.Error as error:
            raise DataError(
                f"cannot store rejected rows ({error}): free space in the temporary folder, or set "
                "TMPDIR to another one"
            ) from error

    def reject(
        self, table: pa.Table, broken: pa.ChunkedArray, file: str, column: str, reason: str
    ) -> pa.Table:
        """Add the rows of a numbered table where `broken` is true, and return the other rows."""
        for row in table[ROW].filter(broken).to_pylist():
            self.add(file, row, column, reason)
        return table.filter(pc.invert(broken))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, sorted by file and row: file, row, column, reason, start of the value."""
        return list(self._sorted())

    def counts(self) -> dict[str, int]:
        """Count the rows by column and reason, most frequent first."""
        query = "SELECT column || ': ' || reason, count(*) FROM rejected GROUP BY 1 ORDER BY 2 DESC"
        return dict(self._database.execute(query + ", 1"))

    def summary(self) -> str:
        """Format the counts for the terminal; empty if all rows were used."""
        lines = [
            f"  rejected: {count:,} rows, {reason} (see rejected.jsonl)\n"
            for reason, count in self.counts().items()
        ]
        left_out = f"  left out by where: {self.not_selected:,} rows\n"
        return "".join(lines) + (left_out if self.not_selected else "")

    def write(self, path: Path) -> None:
        """Write the rows as JSONL, sorted by file and row."""
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in self._sorted())

    def _sorted(self) -> Iterator[dict[str, Any]]:
        names = ("file", "row", "column", "reason", "value")
        query = "SELECT * FROM rejected ORDER BY file, row, rowid"
        return (dict(zip(names, row, strict=True)) for row in self._database.execute(query))


# Sources: chunks with the source's columns and each row's number --------------------------------


class _Chunk(NamedTuple):
    """Rows of a source.

    Attributes:
        names: names of the source's columns.
        rows: table that the SQL below reads under the name `raw`.
        sql: SQL of a relation with the columns "(0)", "(1)", ... in the order of `names`, and ROW.
    """

    names: Sequence[str]
    rows: pa.Table
    sql: str = "raw"


def _without(table: pa.Table, *names: str) -> pa.Table:
    """Drop columns by name, and pandas' index."""
    columns = [
        index
        for index, name in enumerate(table.column_names)
        if name not in names and not re.fullmatch(r"__index_level_\d+__", name)
    ]
    return table.select(columns)


def _check_columns(names: Collection[str]) -> None:
    if len(names) > _MAX_COLUMNS:
        raise ValueError(
            f"has more than {_MAX_COLUMNS:,} columns: put keys that differ by row into one object"
        )


def _bar(total: int | None, unit: str) -> Any:
    return ProgressBar(total=total, desc="reading", unit=unit, unit_scale=True, leave=False)


def _chunk(table: pa.Table, numbers: Any, problem: Problem, encoding: str = "utf-8") -> _Chunk:
    """Return a chunk without the rows whose text is not UTF-8, in types that DuckDB reads."""
    _check_columns(table.column_names)
    table = _without(table, *_INTERNAL)
    names, count = table.column_names, table.num_columns
    columns = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    rows = pa.table([*columns, pa.array(numbers)], [*(f"({k})" for k in range(count)), ROW])
    rows = _valid(rows, "(row)", problem, encoding)
    return _Chunk(names, pa.table(list(map(_readable, rows.columns)), rows.column_names))


def _valid(rows: pa.Table, where: str, problem: Problem, encoding: str) -> pa.Table:
    """Remove rows with text that is not UTF-8; `where` and `encoding` are for the message."""
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        indices = []
        for index in range(rows.num_rows):
            try:
                for column in rows.columns:
                    column[index].as_py()
                indices.append(index)
            except UnicodeDecodeError:
                problem(rows[ROW][index].as_py(), where, f"bytes that are not {encoding.upper()}")
        rows = rows.take(pa.array(indices, pa.int64()))
    return rows


def _batch_chunks(
    batches: Iterable[pa.RecordBatch], total: int | None, problem: Problem, most: float = math.inf
) -> Iterator[_Chunk]:
    """Split batches into chunks; raises ValueError if they decode to more than `most` bytes."""
    done = decoded = 0
    with _bar(total, " rows") as bar:
        for batch in batches:
            table = pa.Table.from_batches([batch]).replace_schema_metadata(None)
            size = sum(map(_decoded_size, batch.columns))
            decoded += size
            _check_decoded(decoded, most)
            step = max(1, min(CHUNK_ROWS, table.num_rows * CHUNK_BYTES // max(size, 1)))
            for start in range(0, table.num_rows, step):
                part = table.slice(start, step)
                yield _chunk(part, np.arange(part.num_rows) + done + 1, problem)
                done += part.num_rows
                bar.update(part.num_rows)


def _readable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as JSON if DuckDB cannot read its type, such as float16 or decimal256."""
    try:
        duckdb.from_arrow(pa.table([column.slice(0, 0)], ["c"]))
        # DuckDB refuses maps with repeated keys.
        is_readable = "map<" not in str(column.type)
    except duckdb.NotImplementedException:
        is_readable = False
    if is_readable:
        return column
    texts = (
        None
        if value is None
        else to_json(value, bytes_mode="base64", inf_nan_mode="null", fallback=str).decode()
        for value in column.to_pylist()
    )
    return pa.chunked_array([pa.array(texts, pa.large_string())]).cast(pa.json_(pa.large_string()))


def _check_decoded(size: int, most: float) -> None:
    if size > most:
        raise ValueError(f"decodes to more than {most:,} bytes: export it as JSONL")


def _decoded_size(column: pa.Array) -> int:
    """Return the bytes of a column's values after decoding dictionaries at any depth."""
    if isinstance(column, pa.StructArray):
        return sum(map(_decoded_size, column.flatten()))
    if isinstance(column, pa.MapArray):
        return _decoded_size(column.keys) + _decoded_size(column.items)
    if isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return _decoded_size(column.flatten())
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else None
    if kind is not None and (is_text(kind) or pa.types.is_binary(kind)):
        lengths = pc.binary_length(column.dictionary).take(column.indices)
        return pc.sum(lengths).as_py() or 0
    return int(column.nbytes)


def _as_bytes(text: str) -> bytes:
    """Encode in UTF-8; bytes that were invalid in the file stay invalid, for `_valid`."""
    return text.encode("utf-8", "surrogateescape")


# Escapes in JSON of half a character, which JSON writers leave in truncated texts.
_LONE_SURROGATE = re.compile(
    r"\\u[dD](?<!\\\\u[dD])(?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|[c-fC-F][0-9a-fA-F]{2}"
    r"(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)


def _lines(path: Path, form: Form, problem: Problem) -> Iterator[pa.Table]:
    """Yield the lines of JSONL, or the rows of a JSON document, as column `line`, with ROW."""

    def blocks() -> Iterator[pa.Array]:
        if form.kind == "document":
            rows = json_rows(file.read())
            while texts := [_json_bytes(text) for text in itertools.islice(rows, CHUNK_ROWS)]:
                yield pa.array(texts, pa.large_binary()).view(pa.large_string())
        else:
            while text := file.read(min(_BLOCK, CHUNK_BYTES)) + file.readline(MAX_LINE):
                if len(text) > MAX_LINE:
                    raise ValueError(f"has a line of more than {MAX_LINE:,} characters")
                yield _split_lines(_json_bytes(text))

    def joined() -> pa.Table:
        lines = pa.concat_arrays(arrays)
        table = pa.table([lines, np.arange(len(lines)) + number], ["line", ROW])
        return _valid(table, "(line)", problem, form.encoding)

    with (
        open_text(path, form, "\n") as (file, position),
        _bar(path.stat().st_size, "B") as bar,
    ):
        number, arrays = 1, list[pa.Array]()
        for array in blocks():
            arrays.append(array)
            bar.update(position() - bar.n)
            if sum(array.nbytes for array in arrays) >= CHUNK_BYTES // 4:
                yield joined()
                number, arrays = number + sum(map(len, arrays)), []
        if arrays:
            yield joined()


def _json_bytes(text: str) -> bytes:
    return _as_bytes(_LONE_SURROGATE.sub(r"\\ufffd", text))


def _split_lines(content: bytes) -> pa.Array:
    content = content if content.endswith(b"\n") else content + b"\n"
    ends = np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n")) + 1
    offsets = pa.py_buffer(np.concatenate([[0], ends]).astype(np.int64))
    return pa.LargeStringArray.from_buffers(len(ends), offsets, pa.py_buffer(content))


def _read_json(path: Path, form: Form, problem: Problem) -> Iterator[_Chunk]:
    """Yield the rows of JSONL, or of a JSON document.

    The file is read twice: for the names and types of its columns, and for its rows. A column
    therefore has the same type in all chunks, even if some rows do not have it.
    """
    types, broken = _json_columns(_lines(path, form, problem), problem)
    mixed = [name for name, kind in types.items() if kind == "JSON"]
    plain = [name for name in types if name not in mixed]
    value_of = {name: f"nullif(j[{k}], 'null'::JSON)" for k, name in enumerate(mixed, start=1)}
    value_of |= {n: f"TRY_CAST(s[{k}] AS {types[n]})" for k, n in enumerate(plain, start=1)}
    columns = "".join(f'{value_of[name]} AS "({k})", ' for k, name in enumerate(types))
    sql = (
        f'(SELECT {columns}"{ROW}", line AS "{LINE}" FROM (SELECT line, "{ROW}", '  # noqa: S608
        f"json_extract(line, {_pointers(mixed)}) AS j, "
        f"json_extract_string(line, {_pointers(plain)}) AS s FROM raw))"
    )
    for lines in _lines(path, form, lambda *_: None):
        rows = lines.filter(pc.invert(pc.is_in(lines[ROW], value_set=broken)))
        if types and rows.num_rows:
            yield _Chunk(list(types), rows, sql)


def _json_columns(chunks: Iterable[pa.Table], problem: Problem) -> tuple[dict[str, str], pa.Array]:
    """Return the SQL types of the columns of JSON by name, and the numbers of lines to leave out.

    These are broken lines, which are reported, and blank ones.
    """
    types_of: dict[str, set[str]] = {}
    left_out: list[int] = []
    with closing(_database().cursor()) as connection:
        for chunk in chunks:
            sql = (
                "SELECT keys, CASE WHEN keys IS NULL OR keys = [] THEN json_valid(line) END "
                "FROM (SELECT line, TRY(json_keys(line)) AS keys FROM raw)"
            )
            keys, valid = connection.register("raw", chunk).sql(sql).to_arrow_table().columns
            for row in chunk.append_column("valid", valid).filter(valid.is_valid()).to_pylist():
                line = row["line"].strip()
                if line != "{}":
                    left_out.append(row[ROW])
                if line not in ("", "{}"):
                    reason = "not a JSON object" if row["valid"] else "not JSON"
                    # Without the line, which may contain an account name.
                    problem(row[ROW], "(line)", reason)
            names = pc.unique(pc.list_flatten(keys)).to_pylist()
            _check_columns(types_of.keys() | set(names))
            connection.register("raw", chunk.filter(valid.is_null()))
            kinds = f"SELECT DISTINCT json_type(line, {_pointers(names)}) FROM raw"  # noqa: S608
            for (kinds_of_row,) in connection.sql(kinds).fetchall():
                for name, kind in zip(names, kinds_of_row, strict=True):
                    types_of.setdefault(name, set()).add("BIGINT" if kind == "UBIGINT" else kind)
            # json_type returns UBIGINT for every integer that is not negative.
            whole = [name for name in names if "BIGINT" in types_of[name]]
            is_large = "regexp_full_match(v, '-?[0-9]{19,}') AND TRY_CAST(v AS BIGINT) IS NULL"
            large = (
                f"SELECT DISTINCT list_transform(json_extract_string(line, {_pointers(whole)}), "  # noqa: S608
                f"lambda v: {is_large}) FROM raw"
            )
            for (larges,) in connection.sql(large).fetchall() if whole else ():
                for name, too_large in zip(whole, larges, strict=True):
                    types_of[name].update(["JSON"] if too_large else [])
    types = {n: _sql_type(kinds) for n, kinds in types_of.items() if n not in _INTERNAL}
    return types, pa.array(left_out, pa.int64())


def _pointers(names: Iterable[str]) -> str:
    """Return an SQL list of JSON pointers to keys."""
    pointers = ("/" + name.replace("~", "~0").replace("/", "~1") for name in names)
    return "([" + ", ".join("'" + p.replace("'", "''") + "'" for p in pointers) + "]::VARCHAR[])"


def _sql_type(kinds: set[str]) -> str:
    """Return the SQL type of a column whose values have these types in JSON."""
    kinds = kinds - {None, "NULL"}
    if kinds == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    kind = min(kinds, default="VARCHAR")
    is_one = len(kinds) < 2 and kind in ("VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN")
    return kind if is_one else "JSON"


def _read_csv(path: Path, form: Form, problem: Problem) -> Iterator[_Chunk]:
    # DuckDB (`store_rejects`) and Arrow are faster, but lose the row after an unclosed quote. Here
    # the broken record is an error, and reading resumes at the next line.
    # Lines of the current record, and lines of a broken record to read again.
    current: list[str] = []
    again: deque[str] = deque()

    def lines() -> Iterator[str]:
        while line := again.popleft() if again else file.readline():
            current.append(line)
            yield line

    def parse() -> Iterator[list[str]]:
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if form.is_quoted else csv.QUOTE_NONE
        return csv.reader(lines(), strict=True, delimiter=form.delimiter, quoting=quoting)

    def records() -> Iterator[tuple[int, Sequence[str]]]:
        number, parsed = 0, parse()
        while True:
            current.clear()
            try:
                values = next(parsed, None)
            except csv.Error as error:
                number += 1
                problem(number, "(row)", "not CSV", str(error))
                again.extendleft(reversed(current[1:]))
                parsed = parse()
                continue
            if values is None:
                return
            number += bool(values)
            if values and len(values) != len(names):
                count = f"{len(values)} fields under {len(names)} headings"
                problem(number, "(row)", "more or fewer fields than headings", count)
            elif values:
                yield number, values

    def chunk() -> _Chunk:
        numbers, rows = zip(*taken, strict=True)
        fields = ([_as_bytes(text) or None for text in texts] for texts in zip(*rows, strict=True))
        columns = [pa.array(values, pa.large_binary()).view(pa.large_string()) for values in fields]
        bar.update(position() - bar.n)
        return _chunk(pa.table(columns, names), numbers, problem, form.encoding)

    with open_text(path, form) as (file, position), _bar(path.stat().st_size, "B") as bar:
        for _ in range(form.skip):
            file.readline()
        names = next((values for values in parse() if values), [])
        "".join(names).encode()
        taken: list[tuple[int, Sequence[str]]] = []
        size = 0
        for number, values in records():
            taken.append((number, values))
            size += sum(map(len, values))
            if len(taken) >= CHUNK_ROWS or size >= CHUNK_BYTES:
                yield chunk()
                taken, size = [], 0
        if taken:
            yield chunk()


def _read_parquet(path: Path, _: Form, problem: Problem) -> Iterator[_Chunk]:
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    # A few kilobytes can decode to gigabytes: a long text in a dictionary that every row refers to.
    most = max(512 << 20, 200 * path.stat().st_size)
    _check_decoded(sum(group.total_byte_size for group in groups), most)

    def batches() -> Iterator[pa.RecordBatch]:
        for number, group in enumerate(groups):
            columns = [group.column(index) for index in range(group.num_columns)]
            # Arrow holds a column read as a dictionary in memory, so not columns of long texts,
            # unless they repeat.
            coded = [
                column.path_in_schema
                for column in columns
                if column.physical_type == "BYTE_ARRAY"
                and not _LARGEST_CODED
                < column.total_uncompressed_size
                < 200 * column.total_compressed_size
            ]
            rows = group.num_rows * CHUNK_BYTES // max(group.total_byte_size, 1)
            # A buffer without pre-buffering reads pages as needed: a group may not fit into memory.
            how = {"read_dictionary": coded, "buffer_size": 1 << 20, "pre_buffer": False}
            with pq.ParquetFile(path, metadata=metadata, **how) as file:
                yield from file.iter_batches(max(1, min(CHUNK_ROWS, rows)), row_groups=[number])

    yield from _batch_chunks(batches(), metadata.num_rows, problem, most)


def _read_folder(path: Path, problem: Problem) -> Iterator[_Chunk]:
    """Read a folder saved by `datasets`: files of Arrow batches, listed in `state.json`."""
    if splits := sorted(state.parent.name for state in path.glob("*/state.json")):
        raise ValueError(f"has splits {splits}: name one, as {path / splits[0]}")
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))

    def batches() -> Iterator[pa.RecordBatch]:
        for entry in state["_data_files"]:
            with pa.memory_map(str(path / entry["filename"])) as file:
                yield from pa.ipc.open_stream(file)

    yield from _batch_chunks(batches(), None, problem)


_READERS: dict[str, Callable[[Path, Form, Problem], Iterator[_Chunk]]] = {
    "parquet": _read_parquet,
    "lines": _read_json,
    "document": _read_json,
    "csv": _read_csv,
}


def _read_chunks(path: Path, encoding: str | None, problem: Problem) -> Iterator[_Chunk]:
    """Yield chunks of a source, each of a bounded number of rows and bytes."""
    if not path.exists() and is_name(path):
        yield from _batch_chunks(open_stream(str(path)), None, problem)
        return
    if not path.exists():
        raise DataError(f"there is no file {path}: check the path, or run the step that writes it")
    before = path.stat()
    try:
        if path.is_dir():
            yield from _read_folder(path, problem)
        else:
            form = sniff(path, encoding)
            yield from _READERS[form.kind](path, form, problem)
    # An unknown encoding is a LookupError.
    except (pa.ArrowException, duckdb.Error, csv.Error, OSError, ValueError, LookupError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{path} cannot be read ({reason}): LitBench reads Parquet, JSON, JSON lines, CSV and "
            "TSV, plain or compressed as .gz, .zst, .bz2 or .xz, and folders saved by datasets"
        ) from error
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise DataError(f"{path} changed while it was read: run again when the file is complete")


# Fitting chunks to a schema ---------------------------------------------------------------------

_MACROS = r"""
CREATE MACRO as_number(t) AS
  CASE WHEN isfinite(TRY_CAST(t AS DOUBLE)) THEN TRY_CAST(t AS DOUBLE) END;
CREATE MACRO as_whole(t) AS CASE
  WHEN regexp_full_match(t, '\s*[+-]?[0-9]+\s*') THEN TRY_CAST(t AS BIGINT)
  WHEN as_number(t) = trunc(as_number(t)) AND abs(as_number(t)) < 9223372036854775808.0
    THEN CAST(as_number(t) AS BIGINT)
END;
CREATE MACRO as_score(t) AS CASE
  WHEN abs(as_number(t)) < 9223372036854775808.0 THEN as_number(t)
  ELSE CAST(as_whole(t) AS DOUBLE)
END;
CREATE MACRO as_seconds(n) AS CASE
  -- Small numbers are no Unix seconds of 1970, but day numbers of Excel, years, months such as
  -- 201707 and days such as 20170714.
  WHEN n > 99999999 THEN TRY_CAST(trunc(n) AS BIGINT)
  WHEN n BETWEEN 25569 AND 73050 THEN TRY_CAST(round((n - 25569) * 86400) AS BIGINT)
  WHEN n <> trunc(n) THEN TRY_CAST(trunc(n) AS BIGINT)
  WHEN n BETWEEN 1900 AND 2100
    THEN epoch(try_strptime(TRY_CAST(TRY_CAST(n AS INT) AS VARCHAR), '%Y'))::BIGINT
  WHEN n BETWEEN 190001 AND 210012 AND n % 100 BETWEEN 1 AND 12
    THEN epoch(try_strptime(TRY_CAST(TRY_CAST(n AS INT) AS VARCHAR), '%Y%m'))::BIGINT
  WHEN n >= 10000000
    THEN epoch(try_strptime(TRY_CAST(TRY_CAST(n AS INT) AS VARCHAR), '%Y%m%d'))::BIGINT
  ELSE TRY_CAST(trunc(n) AS BIGINT)
END;
CREATE MACRO as_time(t) AS CASE
  WHEN TRY_CAST(t AS DOUBLE) IS NOT NULL THEN as_seconds(as_number(t))
  WHEN regexp_matches(t, '^\s*[0-9]') THEN CAST(floor(epoch(TRY_CAST(t AS TIMESTAMPTZ))) AS BIGINT)
END;
"""
# By kind of column: the macro that converts a text, the SQL type, and the reason if it fails.
_KINDS = {
    "text": ("", "VARCHAR", "not text"),
    "messages": ("", "VARCHAR", "not text"),
    "integer": ("as_whole", "BIGINT", "not a whole number"),
    "number": ("as_number", "DOUBLE", "not a finite number"),
    "time": ("as_time", "BIGINT", "not a time (Unix seconds, ISO 8601, a year or a day)"),
    "score": ("as_score", "DOUBLE", "not a number"),
}
# The start of a conversation, or of the parts of a message, as JSON or as Python prints it.
_MESSAGES = r"""^\s*(\[\s*)?\{\s*['"](role|from|content|value|type)['"]\s*:\s*['"]"""
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_AS_TEXT = ("VARCHAR", "UUID", "UBIGINT", "HUGEINT", "DECIMAL")


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """Open an in-memory database for expressions of a config, without file or network access."""
    connection = duckdb.connect()
    connection.execute(_MACROS)
    for setting in (
        "TimeZone = 'UTC'",
        "arrow_large_buffer_size = true",
        "python_enable_replacements = false",
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET GLOBAL {setting}")
    return connection


def _converted(value: str, form: str, kind: str) -> str:
    """Return SQL that converts a value of an SQL type to a kind of column; null if it cannot."""
    text = "NULL::VARCHAR"
    if kind == "messages":
        return f"({_extra(value, form)})::VARCHAR"
    if kind == "time" and form.startswith(("DATE", "TIMESTAMP")):
        return f"trunc(epoch(TRY_CAST({value} AS TIMESTAMP)))"
    if form in _WHOLE:
        macro = {"text": "CAST({} AS VARCHAR)", "time": "as_seconds({})"}.get(kind, "{}")
        return macro.format(value)
    if form == "JSON":
        is_scalar = f"json_type({value}) IN ('VARCHAR', 'BIGINT', 'UBIGINT', 'DOUBLE')"
        if kind == "text":
            is_whole = f"regexp_full_match({value}->>'$', '-?[0-9]+')"
            is_scalar = f"json_type({value}) = 'VARCHAR' OR {is_whole}"
        text = f"CASE WHEN {is_scalar} THEN {value}->>'$' END"
    elif form in ("DOUBLE", "FLOAT") and kind == "text":
        # pandas writes integers as floats in a column with nulls.
        is_whole = f"{value} = trunc({value}) AND abs({value}) < 9007199254740992"
        text = f"CASE WHEN {is_whole} THEN {value}::BIGINT::VARCHAR END"
    elif form.startswith((*_AS_TEXT, "DOUBLE", "FLOAT")) and not form.endswith("]"):
        text = f"{value}::VARCHAR"
    return f"{_KINDS[kind][0]}({text})"


def _extra(value: str, form: str) -> str:
    """Return SQL for a column that is not in the schema; lists and objects become JSON text."""
    if form == "JSON":
        # Texts are written without quotes.
        return f"({value}->>'$')"
    if form == "INTERVAL":
        # Parquet has no such type.
        return f"{value}::VARCHAR"
    is_nested = form.endswith("]") or form.startswith(("STRUCT", "MAP", "UNION"))
    return f"to_json({value})::VARCHAR" if is_nested else value


def _mapped(
    connection: duckdb.DuckDBPyConnection,
    source: str,
    names: Sequence[str],
    rows: str,
    origins: Mapping[str, str],
    where: str | None,
) -> str:
    """Return SQL that computes the values `v0`, `v1`, ... of the origins for a chunk's rows.

    For an expression, `x0` tells whether it failed.
    """
    # The source's columns by position, and by name for expressions, whose names ignore case.
    slots = {name: f'"({k})"' for k, name in enumerate(names)}
    folded = Counter(name.casefold() for name in names)
    aliases = [
        slots[name] + ' AS "' + name.replace('"', '""') + '"'
        for name in names
        if folded[name.casefold()] == 1
    ]

    def exact(expression: str) -> str:
        """Refer to columns by position: quoted names, and names that differ only in case."""

        def slot(match: re.Match[str]) -> str:
            quoted, bare = match.groups()
            name = bare if quoted is None else quoted.replace('""', '"')
            is_exact = quoted is not None or folded[(name or "").casefold()] > 1
            return slots.get(name, match[0]) if is_exact else match[0]

        return _IDENTIFIER.sub(slot, expression)

    scope = f"(SELECT {', '.join(['*', *aliases])} FROM {rows})"  # noqa: S608
    inner, outer = [], []
    for k, (name, origin) in enumerate(origins.items()):
        if origin in slots:
            inner.append(f"{slots[origin]} AS s{k}")
            outer.append(f"s{k} AS v{k}")
            continue
        # Null if the expression fails, {v: null} if it is null. TRY does not accept unnest.
        is_tried = "unnest(" not in origin.lower()
        value = f"struct_pack(v := ({exact(origin)}\n))"
        inner.append(f"TRY({value}) AS s{k}" if is_tried else f"{value} AS s{k}")
        outer.append(f"s{k}.v AS v{k}, s{k} IS NULL AS x{k}")
        try:
            connection.sql(f"SELECT {inner[-1]} FROM {scope}")  # noqa: S608
        except duckdb.Error as error:
            reason = str(error).partition("\n")[0]
            raise DataError(
                f"{source}: no column '{origin}' (mapped to {name}), nor is it SQL "
                f"({reason}): {nearest(origin, names)}"
            ) from error
    is_chosen = "true"
    if where is not None:
        is_chosen = f"coalesce(CAST(({exact(where)}\n) AS BOOLEAN), false)"
    return (
        f'SELECT {", ".join(outer)}, "{ROW}", "(chosen)" FROM '  # noqa: S608
        f'(SELECT {", ".join(inner)}, "{ROW}", {is_chosen} AS "(chosen)" FROM {scope})'
    )


def _query(
    connection: duckdb.DuckDBPyConnection,
    source: str,
    names: Sequence[str],
    rows: str,
    schema: Schema,
    columns: Mapping[str, str] | None,
    where: str | None,
) -> tuple[str, list[str]]:
    """Return SQL that fits the rows of a source's chunks, an SQL relation, to a schema.

    Returns:
        The SQL and the names of its columns. After the fitted columns come `ROW`, `_KEY` and
        `_PROBLEM`: column, reason and value of the first problem, null for good rows. The column is
        empty for rows left out by `where`.
    """
    mapped = dict(columns or {})
    allowed = [column.name for column in schema.columns]
    for name in mapped.keys() - set(allowed):
        advice = nearest(name, allowed)
        raise DataError(f"{source}: columns: '{name}' is not a column of {schema.name}: {advice}")
    origins = mapped | {n: n for n in names if n not in mapped and n not in mapped.values()}
    if LINE in allowed:
        is_json = LINE in connection.sql(f"SELECT * FROM {rows}").columns  # noqa: S608
        origins[LINE] = f'"{LINE}"' if is_json else "NULL"
    values = _mapped(connection, source, names, rows, origins, where)
    relation = connection.sql(values)
    kinds = dict(zip(relation.columns, map(str, relation.types), strict=True))
    foreign = {name: (f"v{k}", kinds[f"v{k}"]) for k, name in enumerate(origins)}
    cases: list[str] = []

    def flag(column: str, reason: str, condition: str, value: str = "NULL") -> None:
        what = f"'column': {_literal(column)}, 'reason': {_literal(reason)}"
        cases.append(f"WHEN {condition} THEN {{{what}, 'value': {value}::VARCHAR}}")

    flag("", "", 'NOT "(chosen)"')
    for k, (name, origin) in enumerate(origins.items()):
        if f"x{k}" in kinds:
            flag(name, f"cannot be computed: {origin}", f"x{k}")
    fitted = {}
    for column in schema.columns:
        name, (_, sql_type, reason) = column.name, _KINDS[column.kind]
        value, kind = foreign.pop(name, ("NULL", ""))
        if name == "n_words" and schema is STORIES and columns is not None:
            # Counted later by our rule.
            fitted[name] = "NULL::BIGINT"
            continue
        if not kind and column.required:
            advice = "" if columns is None else ": name its origin under columns:"
            raise DataError(
                f"{source}: column '{name}' is missing ({column.about}); it has "
                f"{', '.join(origins)}{advice}"
            )
        converted, shown = f"o{len(fitted)}", _extra(value, kind)
        text = _converted(value, kind, column.kind) if kind else value
        fitted[name] = f"({text})::{sql_type}"
        if kind not in ("", sql_type) or kind == "DOUBLE":
            failed = f"{value} IS NOT NULL AND {converted} IS NULL"
            flag(name, reason, failed, shown)
        if column.kind == "score":
            whole = _converted(value, kind, "integer") if kind else value
            fitted[_WHOLE_SCORE + name] = f"({whole})::BIGINT"
        if column.required:
            flag(name, "null", f"{value} IS NULL")
        if column.is_story:
            flag(name, NO_TEXT, f"regexp_full_match({converted}, {_literal(EMPTY)})")
        if column.required and column.kind == "text":
            is_list = f"regexp_matches({converted}, {_literal(_MESSAGES)})"
            flag(name, "a list of messages, not a text", is_list, shown)
        if column.kind == "time":
            future = f"{converted} > {int(time.time()) + 86_400}"
            flag(name, "in the future", future, shown)
        if column.choices:
            reason = f"not one of {', '.join(column.choices)}"
            flag(name, reason, f"{converted} NOT IN {column.choices}", value)
    is_unnested = any("unnest(" in origin.lower() for origin in mapped.values())
    for name, (value, kind) in foreign.items():
        # Leave out unnested lists, which would be repeated in full in each of their rows.
        if not (is_unnested and kind.endswith("]")):
            fitted[name] = _extra(value, kind)
    output = {name: f"o{k}" for k, name in enumerate(fitted)}
    key = ", ".join(output[name] for name in schema.key) or "0"
    # Nested, so that each value is computed once.
    inner = ", ".join(f"{value} AS {output[name]}" for name, value in fitted.items())
    sql = (
        f'SELECT {", ".join(output.values())}, "{ROW}", hash({key}), CASE {" ".join(cases)} END '  # noqa: S608
        f"FROM (SELECT *, {inner} FROM ({values}))"
    )
    return sql, [*fitted, ROW, _KEY, _PROBLEM]


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _distinct(
    names: Sequence[str], source: str, schema: Schema, columns: Mapping[str, str] | None
) -> list[str]:
    """Return unique names for a source's columns: "a (1)" and "a (2)" if "a" is repeated.

    Raises:
        DataError: a repeated name is a column of the schema, or of the source under `columns`.
    """
    names = [name or "unnamed" for name in names]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    read = {column.name for column in schema.columns} | set((columns or {}).values())
    if unclear := sorted(read & repeated):
        raise DataError(f"{source}: column '{unclear[0]}' appears twice: rename or remove one")
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name} ({number})" for number in itertools.count(1))
        free = (n for n in numbered if n not in names and n not in distinct)
        distinct.append(next(free) if name in repeated else name)
    return distinct


class ReadOptions(TypedDict, total=False):
    """Options of reading a source, all optional.

    Attributes:
        columns: maps each column of the schema to a column of the source or to a DuckDB SQL
            expression over its columns, such as "strftime(to_timestamp(created), '%Y-%m')" or
            "'a constant'". A row for which the expression fails is rejected. `unnest(column)`
            makes one row per element of a list. If given (even empty), `n_words` is counted again.
        rejected_rows: collects broken rows. If not given, the first broken row is an error.
        where: SQL condition on the source's columns; other rows are left out. Columns of CSV are
            text.
        encoding: encoding of a text file, such as cp1252; null tells it by the content.
        numbered: whether to add the column `ROW`, each row's number in the source.
    """

    columns: Mapping[str, str] | None
    rejected_rows: RejectedRows | None
    where: str | None
    encoding: str | None
    numbered: bool


def _reject(
    source: str,
    rejected: RejectedRows | None,
    row: int,
    column: str,
    reason: str,
    value: Any = None,
) -> None:
    """Add a broken row to `rejected`, or raise DataError if that is null."""
    if rejected is None:
        shown = "" if value is None else f" ({value!r:.80})"
        raise DataError(
            f"{source}: row {row}, column {column}: {reason}{shown}: fix or remove the row"
        )
    rejected.add(source, row, column, reason, value)


def _fitted_chunks(source: str | Path, schema: Schema, options: ReadOptions) -> Iterator[pa.Table]:
    """Yield the chunks of a source fitted to a schema, with each row's `ROW` and `_KEY`."""
    columns, where = options.get("columns"), options.get("where")
    rejected = options.get("rejected_rows")
    problem = functools.partial(_reject, str(source), rejected)
    sql = ""
    with closing(_database().cursor()) as connection:
        for chunk in _read_chunks(Path(source), options.get("encoding"), problem):
            chunk_columns = _distinct(chunk.names, str(source), schema, columns)
            connection.register("raw", chunk.rows)
            try:
                if not sql:
                    sql, names = _query(
                        connection, str(source), chunk_columns, chunk.sql, schema, columns, where
                    )
                for batch in connection.sql(sql).to_arrow_reader(CHUNK_ROWS):
                    table = pa.Table.from_batches([batch]).rename_columns(names)
                    if table[_PROBLEM].null_count < table.num_rows:
                        broken = table.select([ROW, _PROBLEM]).filter(table[_PROBLEM].is_valid())
                        for row in broken.to_pylist():
                            if row[_PROBLEM]["column"]:
                                problem(row[ROW], **row[_PROBLEM])
                            elif rejected:
                                rejected.not_selected += 1
                        table = table.filter(table[_PROBLEM].is_null())
                    if schema is STORIES and columns is not None:
                        index = table.column_names.index("n_words")
                        table = table.set_column(index, "n_words", count_words(table["text"]))
                    if table.num_rows:
                        yield _with_scores(_without(table, _PROBLEM))
            except (duckdb.Error, pa.ArrowException) as error:
                what = f"where: {where!r} cannot be evaluated" if where else "cannot be read"
                reason = str(error).partition("\n")[0]
                raise DataError(
                    f"{source}: {what}: {reason} (columns of CSV are text: TRY_CAST(score AS INT))"
                ) from error


def _with_scores(table: pa.Table) -> pa.Table:
    """Take the whole numbers as scores where all scores of a chunk are whole."""
    for whole in [name for name in table.column_names if name.startswith(_WHOLE_SCORE)]:
        name = whole.removeprefix(_WHOLE_SCORE)
        if table[whole].null_count == table[name].null_count:
            table = table.set_column(table.column_names.index(name), name, table[whole])
        table = table.drop_columns([whole])
    return table


def _no_rows(source: str | Path, options: ReadOptions) -> DataError:
    rejected = options.get("rejected_rows") or RejectedRows()
    reasons = "; ".join(f"{why} ({n})" for why, n in rejected.counts().items()) or "none"
    where = f"where: {options.get('where')!r}, " if options.get("where") else ""
    return DataError(f"{source}: no usable row is left ({where}rejected: {reasons})")


# Whole tables and streams -----------------------------------------------------------------------


class StreamingTable:
    """A table of any size, read from one or more sources, with unique keys.

    Of several rows with the same key, the one with the latest `Schema.latest` is kept (null is
    earliest). Ties are resolved by content, so the result does not depend on row order.

    Args:
        sources: see `read_foreign`, which also lists the errors.
        declared: the schema.
        folder: empty folder with space for all rows (compressed), which the caller removes; null
            keeps the rows in memory.
        options: see `ReadOptions`.

    Attributes:
        schema: columns and types of every chunk: the declared columns first, then extra columns.
        num_rows: number of rows.
    """

    def __init__(
        self,
        sources: Sequence[str | Path],
        declared: Schema,
        folder: Path | None,
        **options: Unpack[ReadOptions],
    ) -> None:
        # Chunks in memory, or files of chunks, with the source and the keys of each chunk.
        self._held: list[pa.Table | Path] = []
        of_chunk: list[str] = []
        keys: list[np.ndarray] = []
        schemas: dict[pa.Schema, None] = {}
        for source in sources:
            for chunk in _fitted_chunks(source, declared, options):
                schemas[chunk.schema] = None
                # A view would hold all columns of the chunk in memory.
                keys.append(chunk[_KEY].to_numpy().copy())
                of_chunk.append(str(source))
                self._held.append(chunk)
                if folder is not None:
                    self._held[-1] = path = folder / f"{len(keys)}.arrow"
                    try:
                        feather.write_feather(chunk, str(path), compression="lz4")
                    except OSError as error:
                        advice = "free space or choose another folder"
                        raise DataError(f"cannot write {path}: {error}; {advice}") from error
        if not keys:
            raise _no_rows(sources[0], options)
        names = dict.fromkeys(name for schema in schemas for name in schema.names)
        self._all = pa.schema([(name, _common_type(schemas, name)) for name in names])
        internal = {_KEY} if options.get("numbered") else {_KEY, ROW}
        self.schema = pa.schema([column for column in self._all if column.name not in internal])
        # Indices of the rows to leave out, per chunk.
        self._dropped: list[list[int]] = [[] for _ in keys]
        if declared.key:
            self._drop_repeated(declared, keys, of_chunk, options.get("rejected_rows"))
        self.num_rows = sum(map(len, keys)) - sum(map(len, self._dropped))

    def chunks(self) -> Iterator[pa.Table]:
        """Yield the rows in the order of the sources; may be called several times."""
        for number, dropped in enumerate(self._dropped):
            table = self._load(number).select(self.schema.names)
            if dropped:
                table = table.take(pa.array(np.delete(np.arange(table.num_rows), dropped)))
            yield table

    def _load(self, number: int) -> pa.Table:
        held = self._held[number]
        table = feather.read_table(str(held)) if isinstance(held, Path) else held
        columns = [
            table[column.name].cast(column.type, safe=False)
            if column.name in table.column_names
            else pa.nulls(table.num_rows, column.type)
            for column in self._all
        ]
        return pa.table(columns, self._all)

    def _drop_repeated(
        self,
        declared: Schema,
        keys: Sequence[np.ndarray],
        of_chunk: Sequence[str],
        rejected_rows: RejectedRows | None,
    ) -> None:
        """Keep one row per key and reject the others."""
        hashes, counts = np.unique(np.concatenate(keys), return_counts=True)
        repeated = hashes[counts > 1]
        rows = []
        for number, chunk_keys in enumerate(keys):
            indices = np.flatnonzero(np.isin(chunk_keys, repeated)).tolist()
            table = self._load(number).take(pa.array(indices)) if len(indices) else None
            for index, row in zip(indices, table.to_pylist() if table else (), strict=True):
                content = digest(*(item for item in row.items() if item[0] not in (ROW, _KEY)))
                latest = row[declared.latest] if declared.latest else None
                rank = (latest is None, -(latest or 0), content, number, index)
                rows.append((tuple(row[name] for name in declared.key), rank, row[ROW]))
        best: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for key, rank, _ in rows:
            best[key] = min(rank, best.get(key, rank))
        for key, rank, row in rows:
            if rank != best[key]:
                *_, content, number, index = rank
                self._dropped[number].append(index)
                reason = "repeated row" if content == best[key][2] else "duplicate id"
                _reject(of_chunk[number], rejected_rows, row, declared.key[0], reason, key[0])


def _common_type(schemas: Iterable[pa.Schema], name: str) -> pa.DataType:
    """Return a type that can hold all values of a column; text if there is no other."""
    kinds = [pa.schema([s.field(name)]) for s in schemas if name in s.names]
    try:
        return pa.unify_schemas(kinds, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.large_string()


def read_foreign(source: str | Path, schema: Schema, **options: Unpack[ReadOptions]) -> pa.Table:
    """Read a table from a file, a `datasets` folder or a data set's name on the Hub.

    Args:
        source: Parquet, JSON, JSON lines, CSV or TSV, plain or compressed, whatever its suffix; a
            folder saved by `datasets`; or `owner/name[@revision][:split]`.
        schema: the columns to read, such as STORIES or PAIRS.
        options: see `ReadOptions`.

    Returns:
        Table with the declared columns first, then extra columns; large_string, int64 and float64.
        Extra columns of lists or objects are JSON text. Keys are unique, see `StreamingTable`.

    Raises:
        DataError: the file is missing or invalid, a required column is missing, no row is usable,
            or (without `rejected_rows`) a row is broken; the message names file, row and column.
        MissingExtraError: `source` is on the Hub and `datasets` is not installed.
    """
    return pa.concat_tables(StreamingTable([source], schema, None, **options).chunks())


def stream_foreign(
    source: str | Path, schema: Schema, **options: Unpack[ReadOptions]
) -> Iterator[pa.Table]:
    """Read a table of any size chunk by chunk, in the order of the source.

    Arguments and errors are as in `read_foreign`. Repeated keys are not removed.

    Yields:
        Tables of at least one row, with at most `CHUNK_ROWS` rows and some hundred megabytes.
    """
    chunk = None
    for chunk in _fitted_chunks(source, schema, options):
        yield _without(chunk, _KEY, *([] if options.get("numbered") else [ROW]))
    if chunk is None:
        raise _no_rows(source, options)
