"""Reading and writing tables: Parquet, JSONL, JSON, CSV, TSV, `datasets` folders and the Hub.

`read_table` reads what fits into memory, `stream_table` and `LargeTable` input of any size. Every
kind of source is a generator of chunks; DuckDB fits each chunk to a schema of `litbench.records`
in one query. A row that does not fit is kept in a `RejectedRows` with its reason, or is an error
that names file, row and column.
"""

import codecs
import csv
import functools
import json
import math
import os
import sqlite3
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO, TypedDict, Unpack

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import feather
from tqdm import tqdm

from litbench.config import nearest
from litbench.errors import DataError
from litbench.hub import is_name, open_stream
from litbench.records import ARROW_TYPES, STORIES, Schema
from litbench.text import count_words, digest

# The column that holds each row's number in the source, counted from 1.
ROW = "(row)"
CHUNK_ROWS = 8_192
CHUNK_BYTES = 64 << 20

_LARGEST_LINE = 256 << 20
_ROW_GROUP = 16_384
# A hash of each row's key, while rows are compared.
_KEY = "(key)"
_PROBLEM, _VALUE = "(problem)", "(value)"
_JSON = pa.json_(pa.large_string())

# Called with each broken row: its number, the column, the reason and the value.
Problem = Callable[..., None]


class RejectedRows:
    """Rows that could not be used, each with its reason; any number of them, in little memory.

    Attributes:
        not_selected: rows left out by the caller's own condition.
    """

    def __init__(self) -> None:
        self.not_selected = 0
        # A database without a name lies in $TMPDIR and goes with its connection.
        self._database = sqlite3.connect("", isolation_level=None)
        weakref.finalize(self, self._database.close)
        self._database.execute("CREATE TABLE rejected (file, row, column, reason, value)")
        self._database.execute("BEGIN")

    def add(self, file: str, row: int, column: str, reason: str, value: Any = None) -> None:
        """Note one row; `row` counts from 1 in the file's own order."""
        shown = None if value is None else repr(value)[:120]
        try:
            noted = (file, row, column, reason, shown)
            self._database.execute("INSERT INTO rejected VALUES (?, ?, ?, ?, ?)", noted)
        except sqlite3.Error as error:
            raise DataError(
                f"cannot keep rejected rows ({error}): free space in the temporary folder, or set "
                "TMPDIR to another one"
            ) from error

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows by file and number: file, row, column, reason and the start of the value."""
        return list(self._sorted())

    def counts(self) -> dict[str, int]:
        """How many rows per column and reason, most frequent first."""
        query = "SELECT column || ': ' || reason, count(*) FROM rejected GROUP BY 1 ORDER BY 2 DESC"
        return dict(self._database.execute(query + ", 1"))

    def summary(self) -> str:
        """Lines for the terminal; empty when every row could be used."""
        lines = [
            f"  rejected: {count:,} rows, {reason} (see rejected.jsonl)\n"
            for reason, count in self.counts().items()
        ]
        left_out = f"  left out by where: {self.not_selected:,} rows\n"
        return "".join(lines) + (left_out if self.not_selected else "")

    def write(self, path: Path) -> None:
        """Write the rows as JSONL, by file and row number."""
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in self._sorted())

    def _sorted(self) -> Iterator[dict[str, Any]]:
        names = ("file", "row", "column", "reason", "value")
        query = "SELECT * FROM rejected ORDER BY file, row, rowid"
        return (dict(zip(names, row, strict=True)) for row in self._database.execute(query))


# Sources: chunks of their own columns, with the number of each row in `ROW` -------------------


def _without(table: pa.Table, *names: str) -> pa.Table:
    return table.select([name for name in table.column_names if name not in names])


def _numbered(table: pa.Table, numbers: Any) -> pa.Table:
    names = table.column_names
    if len(set(names)) < len(names):
        raise ValueError(f"column '{max(names, key=names.count)}' stands there twice")
    return _without(table, ROW).append_column(ROW, pa.array(numbers))


def _bar(total: int | None, unit: str) -> Any:
    return tqdm(total=total, desc="reading", unit=unit, unit_scale=True, leave=False, disable=None)


def _batch_chunks(
    batches: Iterable[pa.RecordBatch], total: int | None, problem: Problem, most: float = math.inf
) -> Iterator[pa.Table]:
    """Chunks of batches of any size; batches of more than `most` bytes in all are refused."""
    done = decoded = 0
    with _bar(total, " rows") as bar:
        for batch in batches:
            table = pa.Table.from_batches([batch]).replace_schema_metadata(None)
            size = sum(map(_decoded_size, batch.columns))
            decoded += size
            if decoded > most:
                raise ValueError(f"decodes to more than {most:,} bytes: export it as JSONL")
            step = max(1, min(CHUNK_ROWS, table.num_rows * CHUNK_BYTES // max(size, 1)))
            for start in range(0, table.num_rows, step):
                part = table.slice(start, step)
                yield _valid(_numbered(part, np.arange(part.num_rows) + done + 1), problem)
                done += part.num_rows
                bar.update(part.num_rows)


def _valid(chunk: pa.Table, problem: Problem) -> pa.Table:
    """A chunk without dictionaries and without the rows that hold text that is not UTF-8."""
    columns = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in chunk.columns
    ]
    chunk = pa.table(columns, chunk.column_names)
    try:
        chunk.validate(full=True)
        return chunk
    except pa.ArrowInvalid:
        kept = []
        for place in range(chunk.num_rows):
            try:
                chunk.slice(place, 1).to_pylist()
                kept.append(place)
            except UnicodeDecodeError:
                problem(chunk[ROW][place].as_py(), "(row)", "bytes that are not UTF-8")
        return chunk.take(pa.array(kept, pa.int64()))


def _decoded_size(column: pa.Array) -> int:
    """Bytes of a column's values, each counted as often as it is named."""
    if pa.types.is_dictionary(column.type) and _is_text(column.type.value_type):
        lengths = pc.binary_length(column.dictionary).take(column.indices)
        return pc.sum(lengths).as_py() or 0
    return int(column.nbytes)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _open_text(path: Path, encoding: str, newline: str) -> TextIO:
    """Open a text file; bytes of another encoding become surrogates, found row by row."""
    encoding = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    return path.open(encoding=encoding, errors="surrogateescape", newline=newline)


def _text_chunks(
    file: Any, rows: Iterable[tuple[int, Sequence[str]]], names: Sequence[str], problem: Problem
) -> Iterator[pa.Table]:
    """Chunks of numbered rows of texts; empty texts become null."""
    numbers: list[int] = []
    records: list[Sequence[str]] = []
    size = 0

    def chunk() -> pa.Table:
        fields = ([one or None for one in values] for values in zip(*records, strict=True))
        columns = [pa.array(values, pa.large_string()) for values in fields]
        return _numbered(pa.table(columns, names), numbers)

    with _bar(os.fstat(file.fileno()).st_size, "B") as bar:
        for number, values in rows:
            try:
                "".join(values).encode()
            except UnicodeEncodeError as error:
                reason = f"bytes that are not {file.encoding.removesuffix('-sig').upper()}"
                problem(
                    number,
                    "(line)" if names == ["line"] else "(row)",
                    reason,
                    f"at character {error.start}",
                )
                continue
            numbers.append(number)
            records.append(values)
            size += sum(map(len, values))
            if len(numbers) >= CHUNK_ROWS or size >= CHUNK_BYTES:
                bar.update(file.buffer.tell() - bar.n)
                yield chunk()
                numbers, records, size = [], [], 0
        if numbers:
            yield chunk()


def _json_texts(path: Path, encoding: str, problem: Problem) -> Iterator[pa.Table]:
    """Lines of JSONL without blank ones, or elements of a JSON array, as a column `line`."""

    def lines() -> Iterator[tuple[int, Sequence[str]]]:
        number = 0
        while line := file.readline(_LARGEST_LINE):
            number += 1
            if len(line) == _LARGEST_LINE:
                raise ValueError(f"line {number} has more than {_LARGEST_LINE:,} characters")
            if not line.isspace():
                yield number, (line,)

    def elements() -> Iterator[tuple[int, Sequence[str]]]:
        query = "SELECT unnest(from_json(?::JSON, '[\"JSON\"]'))::VARCHAR"
        yield from enumerate(duckdb.execute(query, [file.read()]).fetchall(), start=1)

    with _open_text(path, encoding, "\n") as file:
        rows = elements() if path.suffix == ".json" else lines()
        yield from _text_chunks(file, rows, ["line"], problem)


def _read_json(path: Path, encoding: str, problem: Problem) -> Iterator[pa.Table]:
    """Rows of JSONL, or of a JSON array.

    The file is read twice: for names and types of its columns, and for its rows. So a column has
    one type in all chunks, whether JSON writes it out in every row or not.
    """
    with closing(_database().cursor()) as connection:
        types, broken = _json_columns(connection, _json_texts(path, encoding, problem), problem)
        pointers = _pointers(types)
        values = [
            f"nullif(j[{k}]::VARCHAR, 'null')" if kind == "JSON" else f"TRY_CAST(s[{k}] AS {kind})"
            for k, kind in enumerate(types.values(), start=1)
        ]
        query = (
            f"SELECT {', '.join(values)} FROM (SELECT json_extract(line, {pointers}) AS j, "  # noqa: S608
            f"json_extract_string(line, {pointers}) AS s FROM raw)"
        )
        for lines in _json_texts(path, encoding, lambda *_: None):
            good = lines.filter(pc.invert(pc.is_in(lines[ROW], value_set=broken)))
            if types and good.num_rows:
                table = connection.register("raw", good).sql(query).to_arrow_table()
                columns = [
                    column.cast(_JSON) if kind == "JSON" else column
                    for column, kind in zip(table.columns, types.values(), strict=True)
                ]
                yield _numbered(pa.table(columns, list(types)), good[ROW].combine_chunks())


def _json_columns(
    connection: duckdb.DuckDBPyConnection, chunks: Iterable[pa.Table], problem: Problem
) -> tuple[dict[str, str], pa.Array]:
    """SQL types of the columns of JSON by name, and the numbers of broken rows."""
    found: dict[str, set[str]] = {}
    broken: list[int] = []
    for chunk in chunks:
        sql = "SELECT TRY(json_keys(line)), json_valid(line) FROM raw"
        keys, valid = connection.register("raw", chunk).sql(sql).to_arrow_table().columns
        empty = pc.equal(pc.fill_null(pc.list_value_length(keys), 0), 0)
        for row in chunk.append_column("valid", valid).filter(empty).to_pylist():
            if row["line"].strip() != "{}":
                reason = "not a JSON object" if row["valid"] else "not JSON"
                problem(row[ROW], "(line)", reason, row["line"][:60])
                broken.append(row[ROW])
        names = pc.unique(pc.list_flatten(keys)).to_pylist()
        connection.register("raw", chunk.filter(pc.invert(empty)))
        pointers = _pointers(names)
        # json_type calls every whole number that is not negative UBIGINT.
        is_large = "lambda v: v IS NOT NULL AND TRY_CAST(v AS BIGINT) IS NULL"
        large = f"list_transform(json_extract_string(line, {pointers}), {is_large})"
        kinds = f"SELECT DISTINCT json_type(line, {pointers}), {large} FROM raw"  # noqa: S608
        for types, larges in connection.sql(kinds).fetchall():
            for name, kind, is_large in zip(names, types, larges, strict=True):
                whole = "HUGEINT" if is_large else "BIGINT"
                found.setdefault(name, set()).add(whole if kind in ("BIGINT", "UBIGINT") else kind)
    return {name: _sql_type(kinds) for name, kinds in found.items()}, pa.array(broken, pa.int64())


def _pointers(names: Iterable[str]) -> str:
    """JSON pointers to keys, as a list in SQL."""
    pointers = ("/" + name.replace("~", "~0").replace("/", "~1") for name in names)
    return "([" + ", ".join("'" + p.replace("'", "''") + "'" for p in pointers) + "]::VARCHAR[])"


def _sql_type(kinds: set[str]) -> str:
    """The type of a column whose values have these types in JSON."""
    kinds = kinds - {None, "NULL"}
    if kinds == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    kind = min(kinds, default="VARCHAR")
    is_one = len(kinds) < 2 and kind in ("VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN")
    return kind if is_one else "JSON"


def _read_csv(path: Path, encoding: str, problem: Problem) -> Iterator[pa.Table]:
    # DuckDB (`store_rejects`) and Arrow are faster, but a quote that is never closed takes the
    # next row with it. Here that record is an error, and reading goes on at the next line.
    csv.field_size_limit(_LARGEST_LINE)
    # Lines of the record that is read, and lines of a broken one to read once more.
    given: list[str] = []
    again: deque[str] = deque()

    def lines() -> Iterator[str]:
        while line := again.popleft() if again else file.readline():
            given.append(line)
            yield line

    def parse() -> Iterator[list[str]]:
        return csv.reader(lines(), strict=True, delimiter="\t" if path.suffix == ".tsv" else ",")

    def records() -> Iterator[tuple[int, Sequence[str]]]:
        number, parsed = 0, parse()
        while True:
            given.clear()
            try:
                values = next(parsed, None)
            except csv.Error as error:
                number += 1
                problem(number, "(row)", "not CSV", str(error))
                again.extendleft(reversed(given[1:]))
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

    with _open_text(path, encoding, "") as file:
        names = next((values for values in parse() if values), [])
        "".join(names).encode()
        yield from _text_chunks(file, records(), names, problem)


def _read_parquet(path: Path, _: str, problem: Problem) -> Iterator[pa.Table]:
    texts = [one.name for one in pq.read_schema(path) if _is_text(one.type)]
    # With a buffer and without pre-buffering, pages are read as they are needed: a row group may
    # be larger than the memory.
    file = pq.ParquetFile(path, read_dictionary=texts, buffer_size=1 << 20, pre_buffer=False)

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            rows = group.num_rows * CHUNK_BYTES // max(group.total_byte_size, 1)
            yield from file.iter_batches(max(1, min(CHUNK_ROWS, rows)), row_groups=[number])

    # A few kilobytes can hold gigabytes: one long text in a dictionary, named by every row.
    most = max(512 << 20, 200 * path.stat().st_size)
    with file:
        yield from _batch_chunks(batches(), file.metadata.num_rows, problem, most)


def _read_folder(path: Path, _: str, problem: Problem) -> Iterator[pa.Table]:
    """A folder that `datasets` saved: files of Arrow batches, listed in `state.json`."""
    if splits := sorted(one.parent.name for one in path.glob("*/state.json")):
        raise ValueError(f"has splits {splits}: name one, as {path / splits[0]}")
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))

    def batches() -> Iterator[pa.RecordBatch]:
        for one in state["_data_files"]:
            with pa.memory_map(str(path / one["filename"])) as file:
                yield from pa.ipc.open_stream(file)

    yield from _batch_chunks(batches(), None, problem)


_READERS: dict[str, Callable[[Path, str, Problem], Iterator[pa.Table]]] = {
    ".parquet": _read_parquet,
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
}


def _read_chunks(path: Path, encoding: str, problem: Problem) -> Iterator[pa.Table]:
    """Read a source chunk by chunk, each of a bounded number of rows and bytes."""
    if not path.exists() and is_name(path):
        yield from _batch_chunks(open_stream(str(path)), None, problem)
        return
    if not path.exists():
        raise DataError(f"there is no file {path}: check the path, or run the step that writes it")
    if path.is_file() and path.suffix not in _READERS:
        raise DataError(
            f"{path} ends in '{path.suffix}': LitBench reads {', '.join(_READERS)}, a folder "
            "saved by datasets, or a dataset's name"
        )
    before = path.stat()
    try:
        read = _read_folder if path.is_dir() else _READERS[path.suffix]
        yield from read(path, encoding, problem)
    except (pa.ArrowException, duckdb.Error, csv.Error, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{path} cannot be read ({reason}): check its format and encoding (here {encoding}), "
            "or make it again"
        ) from error
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise DataError(f"{path} changed while it was read: run again when it is written")


# Fitting chunks to a schema ---------------------------------------------------------------------

_MACROS = r"""
CREATE MACRO as_number(t) AS
  CASE WHEN isfinite(TRY_CAST(t AS DOUBLE)) THEN TRY_CAST(t AS DOUBLE) END;
CREATE MACRO as_whole(t) AS CASE
  WHEN regexp_full_match(t, '\s*[+-]?[0-9]+\s*') THEN TRY_CAST(t AS BIGINT)
  WHEN as_number(t) = trunc(as_number(t)) AND abs(as_number(t)) < 9223372036854775808.0
    THEN CAST(as_number(t) AS BIGINT)
END;
CREATE MACRO as_time(t) AS CASE
  -- Eight digits are a day, 20170714, and not seconds in 1970.
  WHEN regexp_full_match(t, '[0-9]{8}') THEN CAST(epoch(try_strptime(t, '%Y%m%d')) AS BIGINT)
  WHEN TRY_CAST(t AS DOUBLE) IS NOT NULL THEN TRY_CAST(trunc(as_number(t)) AS BIGINT)
  WHEN regexp_matches(t, '^\s*[0-9]') THEN CAST(floor(epoch(TRY_CAST(t AS TIMESTAMPTZ))) AS BIGINT)
END;
"""
_MACRO = {"integer": "as_whole", "number": "as_number", "time": "as_time", "text": ""}
_NOT_A = {
    "text": "not text",
    "integer": "not a whole number",
    "number": "not a finite number",
    "time": "not a time (Unix seconds or ISO 8601)",
}
_SQL_TYPES = {"text": "VARCHAR", "integer": "BIGINT", "number": "DOUBLE", "time": "BIGINT"}
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_AS_TEXT = ("VARCHAR", "UUID", "UBIGINT", "HUGEINT", "DECIMAL")


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """A database in memory for expressions of a config: no files, no network, no extensions."""
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


def _converted(value: str, given: str, kind: str) -> str:
    """SQL for a value of a type as a column of that kind holds it; null where it cannot."""
    text = "NULL::VARCHAR"
    if kind == "time" and given.startswith(("DATE", "TIMESTAMP")):
        return f"trunc(epoch({value}))"
    if given in _WHOLE:
        return f"{value}::VARCHAR" if kind == "text" else value
    if given == "JSON":
        is_scalar = f"json_type({value}) IN ('VARCHAR', 'BIGINT', 'UBIGINT', 'DOUBLE')"
        if kind == "text":
            is_whole = f"regexp_full_match({value}->>'$', '-?[0-9]+')"
            is_scalar = f"json_type({value}) = 'VARCHAR' OR {is_whole}"
        text = f"CASE WHEN {is_scalar} THEN {value}->>'$' END"
    elif given in ("DOUBLE", "FLOAT") and kind == "text":
        # A whole number that stands among fractions or nulls, as pandas writes it.
        is_whole = f"{value} = trunc({value}) AND abs({value}) < 9007199254740992"
        text = f"CASE WHEN {is_whole} THEN {value}::BIGINT::VARCHAR END"
    elif given.startswith((*_AS_TEXT, "DOUBLE", "FLOAT")) and not given.endswith("]"):
        text = f"{value}::VARCHAR"
    return f"{_MACRO[kind]}({text})"


def _extra(value: str, given: str) -> str:
    """SQL for a column that the schema does not have: lists and objects as their JSON."""
    if given == "JSON":
        # A text among other values stands without quotes.
        return f"({value}->>'$')"
    is_nested = given.endswith("]") or given.startswith(("STRUCT", "MAP", "UNION"))
    return f"to_json({value})::VARCHAR" if is_nested else value


def _mapped(
    connection: duckdb.DuckDBPyConnection,
    source: str,
    names: Sequence[str],
    origins: Mapping[str, str],
    where: str | None,
) -> str:
    """SQL for the rows of `raw`: the value `v0` of the first origin, and so on.

    Of an expression `x0` says whether it failed.
    """
    # The source's columns by position, and by name for expressions, where case says nothing.
    slots = {name: f'"({k})"' for k, name in enumerate(names)}
    by_name = {name.lower(): name for name in reversed(names)}.values()
    aliases = [slots[name] + ' AS "' + name.replace('"', '""') + '"' for name in by_name]
    scope = f"(SELECT *, {', '.join(aliases)} FROM raw)"  # noqa: S608
    inner, outer = [], []
    for k, (name, origin) in enumerate(origins.items()):
        if origin in slots:
            inner.append(f"{slots[origin]} AS s{k}")
            outer.append(f"s{k} AS v{k}")
            continue
        # Null where it fails, and {v: null} where it is null. DuckDB cannot try an unnest.
        is_tried = "unnest(" not in origin.lower()
        value = f"struct_pack(v := ({origin}\n))"
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
    is_chosen = "true" if where is None else f"coalesce(CAST(({where}\n) AS BOOLEAN), false)"
    return (
        f'SELECT {", ".join(outer)}, "{ROW}", "(chosen)" FROM '  # noqa: S608
        f'(SELECT {", ".join(inner)}, "{ROW}", {is_chosen} AS "(chosen)" FROM {scope})'
    )


def _query(
    connection: duckdb.DuckDBPyConnection,
    source: str,
    names: Sequence[str],
    schema: Schema,
    columns: Mapping[str, str] | None,
    where: str | None,
) -> tuple[str, list[str], list[tuple[str, str]]]:
    """SQL that fits the chunks of one source, registered as `raw`, to a schema.

    Returns:
        The SQL; its columns: the fitted ones, `ROW`, `_KEY`, the place of the row's problem in the
        third part (-1: left out by `where`; null: none) and its value; and column and reason of
        every problem.
    """
    mapped = dict(columns or {})
    known = [column.name for column in schema.columns]
    for name in mapped.keys() - set(known):
        advice = nearest(name, known)
        raise DataError(f"{source}: columns: '{name}' is no column of {schema.name}: {advice}")
    origins = mapped | {n: n for n in names if n not in mapped and n not in mapped.values()}
    rows = _mapped(connection, source, names, origins, where)
    relation = connection.sql(rows)
    kinds = dict(zip(relation.columns, map(str, relation.types), strict=True))
    given = {name: (f"v{k}", kinds[f"v{k}"]) for k, name in enumerate(origins)}
    problems: list[tuple[str, str]] = []
    cases, shown = ['WHEN NOT "(chosen)" THEN -1'], [""]

    def flag(column: str, reason: str, condition: str, value: str = "NULL") -> None:
        cases.append(f"WHEN {condition} THEN {len(problems)}")
        shown.append(f"WHEN {len(problems)} THEN {value}::VARCHAR")
        problems.append((column, reason))

    for k, (name, origin) in enumerate(origins.items()):
        if f"x{k}" in kinds:
            flag(name, f"cannot be computed: {origin}", f"x{k}")
    fitted = {}
    for column in schema.columns:
        name, sql_type = column.name, _SQL_TYPES[column.kind]
        value, kind = given.pop(name, ("NULL", ""))
        if name == "n_words" and schema is STORIES and columns is not None:
            # Counted later, whatever the source calls a word.
            fitted[name] = "NULL::BIGINT"
            continue
        if not kind and column.required:
            raise DataError(
                f"{source}: column '{name}' is missing ({column.about}); it has "
                f"{', '.join(origins)}: name its origin under columns:"
            )
        one = _converted(value, kind, column.kind) if kind else value
        one = fitted[name] = f"({one})::{sql_type}"
        shown_value = _extra(value, kind)
        if kind not in ("", sql_type) or kind == "DOUBLE":
            flag(name, _NOT_A[column.kind], f"{value} IS NOT NULL AND {one} IS NULL", shown_value)
        if column.required:
            flag(name, "null", f"{value} IS NULL")
        if column.kind == "time":
            flag(name, "in the future", f"{one} > {int(time.time()) + 86_400}", shown_value)
        if column.choices:
            reason = f"not one of {', '.join(column.choices)}"
            flag(name, reason, f"{one} NOT IN {column.choices}", value)
    is_unnested = any("unnest(" in origin.lower() for origin in mapped.values())
    for name, (value, kind) in given.items():
        # Lists that became rows would stand whole beside each of these rows.
        if not (is_unnested and kind.endswith("]")):
            fitted[name] = _extra(value, kind)
    key = ", ".join(fitted[name] for name in schema.key) or "0"
    results = [f"{one} AS o{k}" for k, one in enumerate(fitted.values())]
    sql = (
        f'SELECT {", ".join(results)}, "{ROW}", hash({key}), '  # noqa: S608
        f"CASE {' '.join(cases)} END AS problem, "
        f"CASE problem WHEN -1 THEN NULL {' '.join(shown)} END FROM ({rows})"
    )
    return sql, [*fitted, ROW, _KEY, _PROBLEM, _VALUE], problems


class ReadOptions(TypedDict, total=False):
    """How to read a source, beside its schema; all may be left out.

    Attributes:
        columns: where each column comes from: the name of a column of the source, or else a DuckDB
            SQL expression over its columns, such as "strftime(to_timestamp(created), '%Y-%m')" or
            "'a constant'". A row for which it fails is rejected. `unnest(column)` makes each
            element of a list a row. Given (even empty), the input counts as raw, and `n_words` is
            counted anew.
        rejected_rows: collects broken rows. Without it the first broken row is an error.
        where: SQL condition on a row of the source; other rows are left out. CSV holds text only.
        encoding: of a text file, such as cp1252.
        numbered: adds the column `ROW`, each row's number in the source.
    """

    columns: Mapping[str, str] | None
    rejected_rows: RejectedRows | None
    where: str | None
    encoding: str
    numbered: bool


def _reject(
    source: str, noted: RejectedRows | None, row: int, column: str, reason: str, value: Any = None
) -> None:
    """Note a broken row, or raise."""
    if noted is None:
        shown = "" if value is None else f" ({value!r:.80})"
        raise DataError(
            f"{source}: row {row}, column {column}: {reason}{shown}: mend or remove the row"
        )
    noted.add(source, row, column, reason, value)


def _fitted_chunks(source: str | Path, schema: Schema, options: ReadOptions) -> Iterator[pa.Table]:
    """Chunks of a source fitted to a schema, with each row's `ROW` and `_KEY`."""
    columns, where = options.get("columns"), options.get("where")
    noted = options.get("rejected_rows")
    problem = functools.partial(_reject, str(source), noted)
    sql = ""
    with closing(_database().cursor()) as connection:
        for chunk in _read_chunks(Path(source), options.get("encoding", "utf-8"), problem):
            given = _without(chunk, ROW)
            raw = given.rename_columns([f"({k})" for k in range(given.num_columns)])
            connection.register("raw", raw.append_column(ROW, chunk[ROW]))
            try:
                if not sql:
                    made = _query(
                        connection, str(source), given.column_names, schema, columns, where
                    )
                    sql, names, problems = made
                for batch in connection.sql(sql).to_arrow_reader(CHUNK_ROWS):
                    table = pa.Table.from_batches([batch]).rename_columns(names)
                    if table[_PROBLEM].null_count < table.num_rows:
                        if noted:
                            noted.not_selected += pc.sum(pc.equal(table[_PROBLEM], -1)).as_py() or 0
                        broken = table.filter(pc.greater_equal(table[_PROBLEM], 0))
                        for row in broken.select([ROW, _PROBLEM, _VALUE]).to_pylist():
                            column, reason = problems[row[_PROBLEM]]
                            problem(row[ROW], column, reason, row[_VALUE])
                        table = table.filter(table[_PROBLEM].is_null())
                    if schema is STORIES and columns is not None:
                        place = table.column_names.index("n_words")
                        table = table.set_column(place, "n_words", count_words(table["text"]))
                    if table.num_rows:
                        yield _without(table, _PROBLEM, _VALUE)
            except (duckdb.Error, pa.ArrowException) as error:
                what = f"where: {where!r} cannot be evaluated" if where else "cannot be read"
                raise DataError(
                    f"{source}: {what}: {error} (CSV holds text only: write TRY_CAST(score AS INT))"
                ) from error


def _no_rows(source: str | Path, options: ReadOptions) -> DataError:
    noted = options.get("rejected_rows") or RejectedRows()
    reasons = "; ".join(f"{why} ({n})" for why, n in noted.counts().items()) or "none"
    where = f"where: {options.get('where')!r}, " if options.get("where") else ""
    return DataError(f"{source}: no usable row is left ({where}rejected: {reasons})")


# Whole tables and streams -----------------------------------------------------------------------


class LargeTable:
    """Sources of any size read as one table, each key once.

    Of rows with one key the one with the latest `Schema.latest` is kept (null comes before all
    times), and of several such the smallest by content, whatever the order.

    Args:
        sources: see `read_table`, which also says what is raised.
        declared: the schema.
        folder: empty, with room for all rows (compressed); the caller removes it. Null: memory.
        options: see `ReadOptions`.

    Attributes:
        schema: columns and types of every chunk: the declared ones first, then the extra ones.
        num_rows: how many rows it has.
    """

    def __init__(
        self,
        sources: Sequence[str | Path],
        declared: Schema,
        folder: Path | None,
        **options: Unpack[ReadOptions],
    ) -> None:
        # Chunks in memory, or the files that hold them; of each its source and keys.
        self._held: list[pa.Table | Path] = []
        of_chunk: list[str] = []
        keys: list[np.ndarray] = []
        schemas: dict[pa.Schema, None] = {}
        for source in sources:
            for chunk in _fitted_chunks(source, declared, options):
                schemas[chunk.schema] = None
                keys.append(chunk[_KEY].to_numpy())
                of_chunk.append(str(source))
                self._held.append(chunk)
                if folder is not None:
                    self._held[-1] = path = folder / f"{len(keys)}.arrow"
                    try:
                        feather.write_feather(chunk, str(path), compression="lz4")
                    except OSError as error:
                        raise DataError(f"cannot keep rows in {folder} ({error})") from error
        if not keys:
            raise _no_rows(sources[0], options)
        names = dict.fromkeys(name for schema in schemas for name in schema.names)
        self._all = pa.schema([(name, _common_type(schemas, name)) for name in names])
        gone = {_KEY} if options.get("numbered") else {_KEY, ROW}
        self.schema = pa.schema([one for one in self._all if one.name not in gone])
        # Of each chunk the places of the rows to leave out.
        self._dropped: list[list[int]] = [[] for _ in keys]
        if declared.key:
            self._drop_repeated(declared, keys, of_chunk, options.get("rejected_rows"))
        self.num_rows = sum(map(len, keys)) - sum(map(len, self._dropped))

    def chunks(self) -> Iterator[pa.Table]:
        """Read the rows, in the order of the sources; may be called again."""
        for number, dropped in enumerate(self._dropped):
            table = self._load(number).select(self.schema.names)
            if dropped:
                table = table.take(pa.array(np.delete(np.arange(table.num_rows), dropped)))
            yield table

    def _load(self, number: int) -> pa.Table:
        held = self._held[number]
        table = feather.read_table(str(held)) if isinstance(held, Path) else held
        columns = [
            table[one.name].cast(one.type, safe=False)
            if one.name in table.column_names
            else pa.nulls(table.num_rows, one.type)
            for one in self._all
        ]
        return pa.table(columns, self._all)

    def _drop_repeated(
        self,
        declared: Schema,
        keys: Sequence[np.ndarray],
        of_chunk: Sequence[str],
        rejected_rows: RejectedRows | None,
    ) -> None:
        """Reject all rows of one key but the one to keep."""
        hashes, counts = np.unique(np.concatenate(keys), return_counts=True)
        repeated = hashes[counts > 1]
        rows = []
        for number, one in enumerate(keys):
            places = np.flatnonzero(np.isin(one, repeated)).tolist()
            table = self._load(number).take(pa.array(places)) if len(places) else None
            for place, row in zip(places, table.to_pylist() if table else (), strict=True):
                content = digest(*(item for item in row.items() if item[0] not in (ROW, _KEY)))
                latest = row[declared.latest] if declared.latest else None
                rank = (latest is None, -(latest or 0), content, number, place)
                rows.append((tuple(row[name] for name in declared.key), rank, row[ROW]))
        best: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for key, rank, _ in rows:
            best[key] = min(rank, best.get(key, rank))
        for key, rank, row in rows:
            if rank != best[key]:
                *_, content, number, place = rank
                self._dropped[number].append(place)
                reason = "repeated row" if content == best[key][2] else "duplicate id"
                _reject(of_chunk[number], rejected_rows, row, declared.key[0], reason, key[0])


def _common_type(schemas: Iterable[pa.Schema], name: str) -> pa.DataType:
    """The type that holds all values of a column; text where no other does."""
    kinds = [pa.schema([s.field(name)]) for s in schemas if name in s.names]
    try:
        return pa.unify_schemas(kinds, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.large_string()


def read_table(source: str | Path, schema: Schema, **options: Unpack[ReadOptions]) -> pa.Table:
    """Read a table from a file, a `datasets` folder or a data set's name on the Hub.

    Args:
        source: Parquet, JSONL, a JSON array of objects, CSV, TSV, a folder saved by `datasets`, or
            `owner/name[@revision][:split]`.
        schema: the columns to read, such as STORIES or PAIRS.
        options: see `ReadOptions`.

    Returns:
        The declared columns first, then the extra ones; large_string, int64 and float64. Extra
        columns of lists or objects hold their JSON. Each key stands there once, see `LargeTable`.

    Raises:
        DataError: no such file, not of its format, a required column missing, no usable row,
            or (without `rejected_rows`) a broken row, named by file, row and column.
        MissingExtraError: a set on the Hub was named and `datasets` is not installed.
    """
    return pa.concat_tables(LargeTable([source], schema, None, **options).chunks())


def stream_table(
    source: str | Path, schema: Schema, **options: Unpack[ReadOptions]
) -> Iterator[pa.Table]:
    """Read a table of any size chunk by chunk, in the order of the source.

    Arguments and errors as in `read_table`. Rows of one key are not looked for.

    Yields:
        Tables of at least one row; at most some thousand rows and some hundred megabytes.
    """
    chunk = None
    for chunk in _fitted_chunks(source, schema, options):
        yield _without(chunk, _KEY, *([] if options.get("numbered") else [ROW]))
    if chunk is None:
        raise _no_rows(source, options)


# Writing and checking ---------------------------------------------------------------------------


def check_parquet(path: Path, schema: Schema) -> None:
    """Check a Parquet file's columns and nulls against a schema, without reading its texts.

    Raises:
        DataError: no such file, not Parquet, no rows, a column missing, of another type, or null
            where it must not be.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}: check the path, or run the step that writes it")
    # Imports pandas, which takes longer than the rest of this module.
    import pyarrow.dataset as pa_dataset  # noqa: PLC0415

    try:
        given = pa_dataset.dataset(path, format="parquet")
        faults = [] if given.count_rows() else ["holds no rows"]
        for column in schema.columns:
            name, wanted = column.name, ARROW_TYPES[column.kind]
            found = given.schema.field(name).type if name in given.schema.names else None
            if found != wanted and not (column.kind == "text" and found and _is_text(found)):
                faults.append(f"column '{name}' is {found or 'missing'}, not {wanted}")
            elif column.required and (nulls := given.count_rows(filter=pc.field(name).is_null())):
                faults.append(f"column '{name}' has {nulls} nulls")
    except (pa.ArrowException, OSError) as error:
        faults = [f"not a Parquet file ({error})"]
    if faults:
        raise DataError(f"{path}: {faults[0]}: make it again")


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table as Parquet; the same table gives the same bytes, whatever its chunks."""
    # Arrow ends a page where a chunk ends, so chunks would show in the bytes.
    pq.write_table(table.combine_chunks(), path, compression="zstd", row_group_size=_ROW_GROUP)


def write_sorted_batches(batches: pa.RecordBatchReader, schema: Schema, path: Path) -> int:
    """Write a stream of rows as Parquet with a schema's columns first; return the rows written.

    The same rows give the same bytes whatever the batches, and no more than one row group is held
    in memory.
    """
    names = [column.name for column in schema.columns]
    extra = [one.with_metadata(None) for one in batches.schema if one.name not in names]
    target = pa.schema([*schema.arrow(), *extra])
    rows = 0
    with pq.ParquetWriter(path, target, compression="zstd") as writer:
        waiting = target.empty_table()
        for batch in batches:
            table = pa.Table.from_batches([batch]).select(target.names).cast(target)
            waiting = pa.concat_tables([waiting, table])
            while waiting.num_rows >= _ROW_GROUP:
                writer.write_table(waiting.slice(0, _ROW_GROUP).combine_chunks())
                waiting = waiting.slice(_ROW_GROUP)
            rows += table.num_rows
        if waiting.num_rows:
            writer.write_table(waiting.combine_chunks())
    return rows
