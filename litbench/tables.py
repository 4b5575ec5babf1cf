"""Reading and writing tables: Parquet, JSONL, JSON, CSV, TSV, `datasets` folders and the Hub.

`read_table` reads what fits into memory, `stream_table` and `read_large_table` read input of any
size. Each row is fitted to a schema of `litbench.records`. A row that does not fit is kept in a
`RejectedRows` with its reason, or is an error that names file, row and column.
"""

import codecs
import csv
import heapq
import itertools
import json
import math
import os
import tempfile
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from tqdm import tqdm

from litbench.config import nearest
from litbench.errors import DataError, MissingExtraError
from litbench.hub import is_name, open_stream
from litbench.records import ARROW_TYPES, STORIES, Kind, Schema
from litbench.text import count_words, digest

# The column that holds each row's number in the source, counted from 1.
ROW = "(row)"
CHUNK_ROWS = 8_192
CHUNK_BYTES = 64 << 20

_LARGEST_LINE = 256 << 20
_MOST_KEYS = 1_000
_BATCH_ROWS = 1_000
_ROW_GROUP = 16_384
_ROW_GROUP_BYTES = 256 << 20
# Column of a query: the row's position in its chunk.
_POSITION = "(position)"
_JSON = pa.json_(pa.large_string())
# Types of a JSON file's columns that are made of their JSON, and SQL for their values.
_OF_JSON = {
    "JSON": "nullif({}::VARCHAR, 'null')::JSON",
    **{f"{kind}[]": f"from_json({{}}, '[\"{kind}\"]')" for kind in ("JSON", "VARCHAR", "DOUBLE")},
}

# Called with each broken row: its number, the column, the reason and the value.
Problem = Callable[..., None]


class RejectedRows:
    """Rows that could not be used, each with its reason; any number of them, in little memory.

    Counts are exact. Rows beyond the first thousands go to a temporary file in `$TMPDIR`.

    Attributes:
        not_selected: rows left out by the caller's own condition.
        empty_lists: rows without an element in the lists to explode.
    """

    _MOST_IN_MEMORY = 10_000

    def __init__(self) -> None:
        self.not_selected = 0
        self.empty_lists = 0
        self._counts: Counter[str] = Counter()
        self._waiting: list[dict[str, Any]] = []
        self._spilled: BinaryIO | None = None
        # Start and end of each run of sorted rows in the temporary file.
        self._runs: list[tuple[int, int]] = []

    def add(self, file: str, row: int, column: str, reason: str, value: Any = None) -> None:
        """Note one row; `row` counts from 1 in the file's own order.

        Raises:
            DataError: the temporary file cannot be written.
        """
        shown = None if value is None else repr(value)[:120]
        self._counts[f"{column}: {reason}"] += 1
        self._waiting.append(
            {"file": file, "row": row, "column": column, "reason": reason, "value": shown}
        )
        if len(self._waiting) >= self._MOST_IN_MEMORY:
            self._spill()

    @property
    def total(self) -> int:
        """How many rows were noted."""
        return self._counts.total()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows at once: file, row (from 1), column, reason and the start of the value."""
        return [*itertools.chain.from_iterable(map(self._read_run, self._runs)), *self._waiting]

    def counts(self) -> dict[str, int]:
        """How many rows per column and reason, most frequent first."""
        return dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0])))

    def summary(self) -> str:
        """Lines for the terminal; empty when every row could be used."""
        lines = [
            f"  rejected: {count:,} rows, {reason} (see rejected.jsonl)\n"
            for reason, count in self.counts().items()
        ]
        if self.not_selected:
            lines.append(f"  left out by where: {self.not_selected:,} rows\n")
        if self.empty_lists:
            lines.append(f"  without an element in their lists: {self.empty_lists:,} rows\n")
        return "".join(lines)

    def write(self, path: Path) -> None:
        """Write the rows as JSONL, by file and row number."""
        runs = [*map(self._read_run, self._runs), iter(sorted(self._waiting, key=_by_place))]
        with path.open("w", encoding="utf-8") as file:
            for row in heapq.merge(*runs, key=_by_place):
                file.write(json.dumps(row, ensure_ascii=True) + "\n")

    def _spill(self) -> None:
        rows = sorted(self._waiting, key=_by_place)
        lines = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows).encode()
        try:
            if self._spilled is None:
                self._spilled = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
                weakref.finalize(self, self._spilled.close)
            start = self._spilled.seek(0, os.SEEK_END)
            self._spilled.write(lines)
            self._spilled.flush()
        except OSError as error:
            raise DataError(
                f"cannot write rejected rows to {tempfile.gettempdir()} ({error}): free space "
                "there or set TMPDIR to another folder"
            ) from error
        self._runs.append((start, start + len(lines)))
        self._waiting = []

    def _read_run(self, run: tuple[int, int]) -> Iterator[dict[str, Any]]:
        assert self._spilled is not None
        start, end = run
        rest = b""
        while start < end:
            # pread, since several runs are read in turn.
            block = os.pread(self._spilled.fileno(), min(end - start, 1 << 16), start)
            start += len(block)
            *lines, rest = (rest + block).split(b"\n")
            yield from map(json.loads, lines)


def _by_place(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["file"], row["row"]


# SQL -----------------------------------------------------------------------------------------


def _connect() -> duckdb.DuckDBPyConnection:
    """A database in memory for expressions of a config: no files, no network, no extensions."""
    connection = duckdb.connect()
    for setting in (
        "TimeZone = 'UTC'",
        "python_enable_replacements = false",
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    return connection


def _query(
    connection: duckdb.DuckDBPyConnection, query: str, given: pa.Table, name: str = "raw"
) -> pa.Table:
    """Run a query on one table; columns of JSON are marked by their type."""
    connection.register(name, given)
    try:
        relation = connection.sql(query)
        kinds = relation.types
        table = relation.to_arrow_table()
    finally:
        connection.unregister(name)
    for place, kind in enumerate(kinds):
        if str(kind) == "JSON":
            texts = table.column(place).cast(pa.large_string())
            table = table.set_column(place, table.column_names[place], texts.cast(_JSON))
    return table


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _plain_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of JSON as the texts it is written in."""
    texts = [chunk.storage for chunk in column.chunks]
    return pa.chunked_array(texts, pa.large_string())


# Files as they are ---------------------------------------------------------------------------


@dataclass
class _Chunk:
    """Some rows of a source before any check.

    Attributes:
        table: the rows that could be read, in the source's own columns.
        rows: each row's number in the source.
        read: about how many bytes of the source were read so far; 0 where that is not known.
    """

    table: pa.Table
    rows: np.ndarray
    read: int = 0

    def take(self, positions: np.ndarray) -> "_Chunk":
        return _Chunk(self.table.take(pa.array(positions)), self.rows[positions], self.read)


@dataclass
class _Source:
    """A file to read.

    Attributes:
        path: where it is.
        problem: called with each row that cannot be read.
        encoding: of a text file.
        texts: columns that become texts by their name alone, where 5 and 5.0 differ.
        lists: columns whose elements become rows.
    """

    path: Path
    problem: Problem
    encoding: str = "utf-8"
    texts: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()

    def open(self, newline: str) -> Any:
        """Open a text file; bytes of another encoding become surrogates, found row by row."""
        encoding = "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding
        return self.path.open(encoding=encoding, errors="surrogateescape", newline=newline)

    def has_surrogate(self, text: str, row: int, column: str) -> bool:
        """Whether a text held bytes of another encoding; then the row is a problem."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            reason = f"bytes that are not {self.encoding.upper()}"
            self.problem(row, column, reason, f"at character {error.start}")
            return True
        return False


def _lines(source: _Source) -> Iterator[_Chunk]:
    """The lines of a file as a column `line`, without blank ones."""
    rows: list[int] = []
    lines: list[str] = []
    size = number = 0

    def chunk() -> _Chunk:
        column = pa.array(lines, pa.large_string())
        return _Chunk(pa.table({"line": column}), np.array(rows), file.buffer.tell())

    with source.open("\n") as file:
        while line := file.readline(_LARGEST_LINE):
            number += 1
            if len(line) == _LARGEST_LINE and not line.endswith("\n"):
                source.problem(number, "(line)", f"longer than {_LARGEST_LINE:,}", line[:60])
                while line and not line.endswith("\n"):
                    line = file.readline(_LARGEST_LINE)
                continue
            if line.isspace() or (
                not line.isascii() and source.has_surrogate(line, number, "(line)")
            ):
                continue
            rows.append(number)
            lines.append(line)
            size += len(line)
            if len(lines) >= CHUNK_ROWS or size >= CHUNK_BYTES:
                yield chunk()
                rows, lines, size = [], [], 0
        if lines:
            yield chunk()


def _elements(source: _Source) -> Iterator[_Chunk]:
    """The elements of a JSON array as a column `line`."""
    if source.path.stat().st_size > _LARGEST_LINE:
        raise DataError(
            f"{source.path} is larger than {_LARGEST_LINE:,} bytes, and a JSON array is read "
            "whole: save it as JSONL, one object to a line"
        )
    with source.open("\n") as file, closing(_connect()) as connection:
        whole = pa.table({"text": pa.array([_without_surrogates(file.read(), source)])})
        query = "SELECT unnest(from_json(text, '[\"JSON\"]'))::VARCHAR AS line FROM raw"
        try:
            is_array = _query(connection, "SELECT json_type(text) = 'ARRAY' FROM raw", whole)
            if not is_array[0][0].as_py():
                raise DataError(
                    f"{source.path} holds no JSON array: end its name in .jsonl if it has one "
                    "object to a line"
                )
            table = _query(connection, query, whole)
        except duckdb.Error as error:
            raise DataError(
                f"{source.path} is not JSON ({_first_line(error)}): end its name in .jsonl if it "
                "has one object to a line"
            ) from error
    table = table.cast(pa.schema([("line", pa.large_string())]))
    for start in range(0, table.num_rows, CHUNK_ROWS):
        part = table.slice(start, CHUNK_ROWS)
        yield _Chunk(part, np.arange(start + 1, start + 1 + part.num_rows))


def _without_surrogates(text: str, source: _Source) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{source.path} has bytes that are not {source.encoding.upper()} (character "
            f"{error.start}): name its encoding under encoding:"
        ) from error
    return text


def _read_json(source: _Source) -> Iterator[_Chunk]:
    """Rows of JSONL, or of a JSON array.

    The file is read twice: for names and types of its columns, and for its rows. So a column has
    one type in all chunks, whether JSON writes it out in every row or not.
    """
    read = _elements if source.path.suffix == ".json" else _lines
    with closing(_connect()) as connection:
        types, broken = _json_columns(source, connection, read(source))
        if not types:
            return
        quiet = _Source(source.path, lambda *_: None, source.encoding)
        # By position: DuckDB does not tell `Score` from `score`.
        texts = [name for name, kind in types.items() if kind not in _OF_JSON]
        nested = [name for name, kind in types.items() if kind in _OF_JSON]
        values = [f"TRY_CAST(s[{k + 1}] AS {types[name]})" for k, name in enumerate(texts)]
        values += [_OF_JSON[types[name]].format(f"j[{k + 1}]") for k, name in enumerate(nested)]
        too_large = [
            f"s[{place + 1}] IS NOT NULL AND TRY_CAST(s[{place + 1}] AS BIGINT) IS NULL AS o{place}"
            for place, name in enumerate(texts)
            if types[name] == "BIGINT"
        ]
        columns = [f"{value} AS c{place}" for place, value in enumerate(values)]
        query = (
            f"SELECT {', '.join(columns + too_large)} FROM (SELECT "  # noqa: S608
            f"json_extract_string(line, {_pointers(texts)}) AS s, "
            f"json_extract(line, {_pointers(nested)}) AS j FROM raw)"
        )
        names = [*texts, *nested]
        for chunk in read(quiet):
            low, high = np.searchsorted(broken, [chunk.rows[0], chunk.rows[-1] + 1])
            if high > low:
                keep = np.flatnonzero(~np.isin(chunk.rows, broken[low:high]))
                chunk = chunk.take(keep)  # noqa: PLW2901
            if not len(chunk.rows):
                continue
            found = _query(connection, query, chunk.table)
            table = found.select(range(len(names))).rename_columns(names).select(list(types))
            fit = np.ones(len(chunk.rows), dtype=bool)
            for flag in found.column_names[len(names) :]:
                for row in pc.indices_nonzero(found[flag]).to_pylist():
                    name = texts[int(flag[1:])]
                    if fit[row]:
                        source.problem(chunk.rows[row], name, "a number too large for 64 bits")
                    fit[row] = False
            whole = _Chunk(table, chunk.rows, chunk.read)
            yield whole if fit.all() else whole.take(np.flatnonzero(fit))


def _pointers(names: Iterable[str]) -> str:
    """JSON pointers to keys, as a list in SQL."""
    pointers = ("/" + name.replace("~", "~0").replace("/", "~1") for name in names)
    return "[" + ", ".join("'" + one.replace("'", "''") + "'" for one in pointers) + "]::VARCHAR[]"


def _json_columns(
    source: _Source, connection: duckdb.DuckDBPyConnection, chunks: Iterator[_Chunk]
) -> tuple[dict[str, str], np.ndarray]:
    """Names and SQL types of the columns of a JSON file, and the numbers of its broken rows."""
    found: dict[str, set[str | None]] = {}
    elements: dict[str, set[str | None]] = {name: set() for name in source.lists}
    broken: list[int] = []
    size = source.path.stat().st_size
    with tqdm(
        total=size, desc="columns", unit="B", unit_scale=True, leave=False, disable=None
    ) as bar:
        for chunk in chunks:
            keys = _query(connection, "SELECT TRY(json_keys(line)) AS k FROM raw", chunk.table)["k"]
            empty = pc.equal(pc.fill_null(pc.list_value_length(keys), 0), 0)
            for row in pc.indices_nonzero(empty).to_pylist():
                number = int(chunk.rows[row])
                source.problem(number, "(line)", *_why_no_object(chunk.table["line"][row].as_py()))
                broken.append(number)
            names = pc.unique(pc.list_flatten(keys)).to_pylist()
            found |= {name: set() for name in names if name not in found}
            if len(found) > _MOST_KEYS:
                raise DataError(
                    f"{source.path} has objects of more than {_MOST_KEYS:,} different keys: keep "
                    "the keys that vary in one nested object"
                )
            if names:
                good = chunk.table.filter(pc.invert(empty))
                query = f"SELECT DISTINCT json_type(line, {_pointers(names)}) AS t FROM raw"  # noqa: S608
                for types in _query(connection, query, good)["t"].to_pylist():
                    for name, one in zip(names, types, strict=True):
                        found[name].add(one)
                for name in source.lists.intersection(names):
                    values = f"json_type(json_extract(line, {_pointers([name])}[1]), '$[*]')"
                    query = f"SELECT DISTINCT unnest({values}) AS t FROM raw"  # noqa: S608
                    elements[name].update(_query(connection, query, good)["t"].to_pylist())
            bar.update(max(chunk.read - bar.n, 0))
    columns = {name: _sql_type(kinds, name in source.texts) for name, kinds in found.items()}
    for name in source.lists & columns.keys():
        if found[name] <= {"ARRAY", "NULL", None}:
            one = _sql_type(elements[name], name in source.texts)
            columns[name] = f"{one}[]" if f"{one}[]" in _OF_JSON else "JSON[]"
    return columns, np.array(broken, dtype=np.int64)


def _sql_type(kinds: set[str | None], is_text: bool) -> str:
    """The type of a column whose values have these types in JSON."""
    kinds = kinds - {None, "NULL"}
    if kinds <= {"VARCHAR"}:
        return "VARCHAR"
    if kinds <= {"BIGINT", "UBIGINT"}:
        return "BIGINT"
    if kinds == {"BOOLEAN"}:
        return "BOOLEAN"
    return "DOUBLE" if kinds <= {"BIGINT", "UBIGINT", "DOUBLE"} and not is_text else "JSON"


def _why_no_object(line: str) -> tuple[str, Any]:
    """Why a line holds no row: reason and value."""
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "half a surrogate pair: not valid Unicode", None
    except (ValueError, RecursionError) as error:
        return "not JSON", str(error)
    if value == {}:
        return "an object without a key", None
    return ("not JSON", None) if isinstance(value, dict) else ("not a JSON object", value)


class _Records:
    """Lines for the CSV reader, of which those of a broken record can be read again."""

    def __init__(self, file: Iterable[str]) -> None:
        self._file = iter(file)
        self._again: deque[str] = deque()
        self._given: list[str] = []

    def __iter__(self) -> "_Records":
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._file)
        self._given.append(line)
        return line

    def start_record(self) -> None:
        self._given.clear()

    def give_up_first_line(self) -> None:
        self._again.extendleft(reversed(self._given[1:]))


def _read_csv(source: _Source) -> Iterator[_Chunk]:
    # DuckDB (`store_rejects`) and Arrow are faster, but a quote that is never closed takes the
    # next row with it. Here that record is an error, and reading goes on at the next line.
    csv.field_size_limit(_LARGEST_LINE)
    records: list[list[str]] = []
    rows: list[int] = []
    size = number = 0

    def chunk() -> _Chunk:
        columns = [
            pa.array([value or None for value in values], pa.large_string())
            for values in zip(*records, strict=True)
        ]
        table = pa.table(columns, names=names)
        return _Chunk(table, np.array(rows), os.lseek(file.fileno(), 0, os.SEEK_CUR))

    with source.open("") as file:
        lines = _Records(file)
        delimiter = "\t" if source.path.suffix == ".tsv" else ","
        reader = csv.reader(lines, strict=True, delimiter=delimiter)
        try:
            names = next((values for values in reader if values), [])
            "".join(names).encode()
        except (csv.Error, UnicodeError) as error:
            raise DataError(
                f"{source.path}: the headings cannot be read ({error}): name the file's encoding "
                "under encoding:, or save it as CSV in UTF-8"
            ) from error
        _check_names(names, source.path)
        while True:
            lines.start_record()
            try:
                values = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                number += 1
                source.problem(number, "(row)", "not CSV", str(error))
                lines.give_up_first_line()
                continue
            if not values:
                continue
            number += 1
            whole = "".join(values)
            if len(values) != len(names):
                count = f"{len(values)} fields under {len(names)} headings"
                source.problem(number, "(row)", "more or fewer fields than headings", count)
            elif whole.isascii() or not source.has_surrogate(whole, number, "(row)"):
                records.append(values)
                rows.append(number)
                size += len(whole)
                if len(rows) >= CHUNK_ROWS or size >= CHUNK_BYTES:
                    yield chunk()
                    records, rows, size = [], [], 0
        if rows:
            yield chunk()


def _check_names(names: Sequence[str], path: Path) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{path}: column '{twice[0]}' stands there twice: rename one of them")


def _rows_at_once(rows: int, size: int) -> int:
    """How many rows of a table of so many rows and bytes make a chunk."""
    return max(1, min(CHUNK_ROWS, rows * CHUNK_BYTES // max(size, 1)))


def _read_parquet(source: _Source) -> Iterator[_Chunk]:
    path, size = source.path, source.path.stat().st_size
    # A few kilobytes can hold gigabytes: one long text in a dictionary, named by every row.
    most = max(1 << 30, 200 * size)
    try:
        # With a buffer and without pre-buffering, pages are read as they are needed: a row group
        # may be larger than the memory.
        options = {"buffer_size": 1 << 20, "pre_buffer": False}
        file = pq.ParquetFile(path, **options)
        _check_names(file.schema_arrow.names, path)
        texts = [one.name for one in file.schema_arrow if pa.types.is_string(one.type)]
        encoded = pq.ParquetFile(path, read_dictionary=texts, **options)
        first = decoded = 0
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            dictionaries = _dictionary_bytes(encoded, number, texts)
            chunk_rows = _rows_at_once(group.num_rows, group.total_byte_size)
            at_once = max(1, min(chunk_rows, 4 * CHUNK_BYTES // max(dictionaries, 1)))
            batches = file.iter_batches(batch_size=at_once, row_groups=[number])
            waiting: list[pa.RecordBatch] = []
            rows = held = 0
            while (batch := next(batches, None)) is not None or waiting:
                if batch is not None:
                    waiting.append(batch)
                    rows, held = rows + batch.num_rows, held + batch.nbytes
                    if decoded + held > most:
                        raise DataError(
                            f"{path} ({size:,} bytes) decodes to more than {most:,} bytes: "
                            "export it as JSONL"
                        )
                    if rows + at_once <= chunk_rows and held < CHUNK_BYTES:
                        continue
                # In one piece: work on many small ones takes longer.
                table = pa.Table.from_batches(waiting).combine_chunks()
                numbers = np.arange(first + 1, first + 1 + rows)
                first, decoded = first + rows, decoded + held
                read = size * first // file.metadata.num_rows
                yield _with_valid_text(_Chunk(table, numbers, read), source.problem)
                waiting, rows, held = [], 0, 0
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a Parquet file ({error}): export it again") from error


def _dictionary_bytes(file: pq.ParquetFile, group: int, names: Sequence[str]) -> int:
    """Bytes of the dictionaries of a row group's texts, found by reading one row."""
    if not names:
        return 0
    batch = next(file.iter_batches(batch_size=1, row_groups=[group], columns=list(names)), None)
    return 0 if batch is None else sum(column.dictionary.nbytes for column in batch.columns)


def _with_valid_text(chunk: _Chunk, problem: Problem) -> _Chunk:
    try:
        chunk.table.validate(full=True)
        return chunk
    except pa.ArrowInvalid:
        pass
    # Some text is not UTF-8: find the rows.
    keep = []
    for position in range(chunk.table.num_rows):
        try:
            chunk.table.slice(position, 1).to_pylist()
            keep.append(position)
        except UnicodeDecodeError as error:
            row = int(chunk.rows[position])
            problem(row, "(row)", "bytes that are not UTF-8", f"at byte {error.start}")
    return chunk.take(np.array(keep, dtype=np.int64))


def _read_folder(source: _Source) -> Iterator[_Chunk]:
    try:
        import datasets  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("datasets", "data") from error
    path = source.path
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # the library raises dozens of types
        raise DataError(
            f"cannot load the dataset '{path}' ({type(error).__name__}: {error}): name a folder "
            "saved by datasets, or a file in it"
        ) from error
    if isinstance(loaded, dict):
        one = path / min(loaded)
        raise DataError(f"{path} has splits {sorted(loaded)}: name one, as {one}")
    loaded = loaded.with_format("arrow")
    at_once = _rows_at_once(len(loaded), loaded.data.nbytes)
    for start in range(0, len(loaded), at_once):
        table = loaded[start : start + at_once]
        yield _Chunk(table, np.arange(start + 1, start + 1 + table.num_rows))


def _read_hub(name: str) -> Iterator[_Chunk]:
    first = 0
    for batch in open_stream(name):
        rows = np.arange(first + 1, first + 1 + batch.num_rows)
        first += batch.num_rows
        yield _Chunk(pa.Table.from_batches([batch]), rows)


_READERS: dict[str, Callable[[_Source], Iterator[_Chunk]]] = {
    ".parquet": _read_parquet,
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
}


def _state(path: Path) -> list[tuple[int, int]]:
    """Sizes and times of a file, or of the files in a folder."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [(one.stat().st_size, one.stat().st_mtime_ns) for one in files]


def _read_chunks(source: _Source) -> Iterator[_Chunk]:
    """Read a source chunk by chunk, each of a bounded number of rows and bytes.

    Raises:
        DataError: it cannot be read, is of no known format, or changed while it was read.
    """
    path = source.path
    if not path.exists():
        if is_name(path):
            yield from _read_hub(str(path))
            return
        raise DataError(f"there is no file {path}: check the path, or run the step that writes it")
    if path.is_file() and path.suffix not in _READERS:
        raise DataError(
            f"{path} ends in '{path.suffix}': LitBench reads {', '.join(_READERS)}, a folder "
            "saved by datasets, or a dataset's name"
        )
    before = _state(path)
    if path.is_file() and before[0][0] == 0:
        raise DataError(f"{path} is empty (0 bytes): make it again")
    try:
        yield from (_read_folder if path.is_dir() else _READERS[path.suffix])(source)
    except UnicodeError as error:
        raise DataError(
            f"{path} is not {source.encoding.upper()} ({error}): name its encoding under encoding:"
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {path} ({error}): check the disk and your access") from error
    if _state(path) != before:
        raise DataError(f"{path} changed while it was read: run again when it is written")


# Values by their schema ----------------------------------------------------------------------


def _to_integer(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError("true or false where a whole number belongs")
    if isinstance(value, str):
        value = float(value) if any(c in value for c in ".eE") else int(value)
    number = int(value)
    if number != value:
        raise ValueError("a fraction where a whole number belongs")
    return _in_64_bits(number)


def _in_64_bits(number: int) -> int:
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError("a number too large for 64 bits")
    return number


def _to_number(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError("true or false where a number belongs")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _to_time(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError("true or false where a time belongs")
    if isinstance(value, str):
        try:
            # Eight digits are a day, 20170714, and not seconds in 1970.
            value = datetime.fromisoformat(value) if len(value) == 8 else float(value)
        except ValueError:
            value = float(value) if len(value) == 8 else datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
    return _in_64_bits(int(value))


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"a {type(value).__name__} where text belongs")


_CONVERT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "text": (_to_text, "not text"),
    "integer": (_to_integer, "not a whole number"),
    "number": (_to_number, "not a number"),
    "time": (_to_time, "not a time (Unix seconds or ISO 8601)"),
}


def _convert(
    values: pa.ChunkedArray, kind: Kind, problem: Callable[[int, str, Any], None]
) -> pa.ChunkedArray:
    """Bring a column to its type; a value that cannot be becomes null after `problem`."""
    target, given = ARROW_TYPES[kind], values.type
    whole = pa.types.is_integer(given) and not pa.types.is_uint64(given)
    exact = {
        "text": pa.types.is_string(given) or pa.types.is_large_string(given) or whole,
        "integer": whole,
        "number": whole or pa.types.is_floating(given),
        "time": whole,
    }[kind]
    if pa.types.is_null(given):
        return pa.chunked_array([pa.nulls(len(values), target)])
    if exact:
        cast_values = pc.cast(values, target, safe=False)
        if kind != "number":
            return cast_values
        finite = pc.is_finite(cast_values)
        for row in pc.indices_nonzero(pc.invert(finite)).to_pylist():
            problem(row, "not a finite number", values[row].as_py())
        return pc.if_else(finite, cast_values, pa.scalar(None, target))
    if kind == "time" and (pa.types.is_timestamp(given) or pa.types.is_date(given)):
        return pc.cast(pc.cast(values, pa.timestamp("s"), safe=False), target)
    convert, reason = _CONVERT[kind]
    converted: list[Any] = []
    for row, value in enumerate(_python_values(values)):
        try:
            converted.append(None if value is None else convert(value))
        except (ValueError, TypeError, OverflowError):
            problem(row, reason, value)
            converted.append(None)
    return pa.chunked_array([pa.array(converted, target)])


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    """A column's values; those of JSON are parsed."""
    if column.type != _JSON:
        return cast("list[Any]", column.to_pylist())
    values: list[Any] = []
    for text in _plain_texts(column).to_pylist():
        try:
            values.append(None if text is None else json.loads(text))
        except RecursionError:
            # Too deep for Python; a list is no value of any schema.
            values.append([])
    return values


def _years_out_of_range(column: pa.ChunkedArray) -> list[int]:
    """Positions of dates and times that neither Python nor JSON can hold."""
    if not (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)):
        return []
    seconds = pc.cast(pc.cast(column, pa.timestamp("s"), safe=False), pa.int64())
    low, high = -62_135_596_800, 253_402_300_799  # the years 1 to 9999
    outside = pc.or_(pc.less(seconds, low), pc.greater(seconds, high))
    return cast(
        "list[int]", pc.indices_nonzero(pc.fill_null(outside, fill_value=False)).to_pylist()
    )


class _Reader:
    """Reads one source, fits its rows to a schema and counts them.

    Attributes:
        found: rows of the source.
        left_out: rows that `where` is not true of.
        kept: rows that fit the schema.
    """

    def __init__(
        self,
        source: str | Path,
        schema: Schema,
        columns: Mapping[str, str] | None,
        rejected_rows: RejectedRows | None,
        where: str | None,
        explode: Sequence[str] | None = None,
        encoding: str = "utf-8",
    ) -> None:
        self.source = str(source)
        self.found = self.left_out = self.kept = 0
        self._schema = schema
        self._is_raw = columns is not None
        self._columns = dict(columns or {})
        self._rejected_rows = rejected_rows
        self._where = where
        self._explode = explode or ()
        self._rejected_before = 0 if rejected_rows is None else rejected_rows.total
        try:
            self.source.encode()
            codecs.lookup(encoding)
        except UnicodeEncodeError as error:
            raise DataError(f"{self.source!a}: its name is not UTF-8: rename it") from error
        except LookupError as error:
            raise DataError(f"encoding: {error}: name one such as utf-8 or cp1252") from error
        known = [column.name for column in schema.columns]
        for name in self._columns:
            if name not in known:
                raise DataError(
                    f"columns: '{name}' is no column of {schema.name}: {nearest(name, known)}"
                )
        texts = {c.name for c in schema.columns if c.kind == "text"}
        origins = {self._columns.get(name, name) for name in texts}
        lists = frozenset(self._explode)
        self._file = _Source(Path(source), self.problem, encoding, frozenset(origins), lists)

    def problem(self, row: int, column: str, reason: str, value: Any = None) -> None:
        """Note a broken row, or raise."""
        if self._rejected_rows is None:
            shown = "" if value is None else f" ({value!r:.80})"
            raise DataError(
                f"{self.source}: row {row}, column {column}: {reason}{shown}: mend or remove the "
                "row"
            )
        self._rejected_rows.add(self.source, int(row), column, reason, value)

    def stream(self) -> Iterator[_Chunk]:
        """Read the source chunk by chunk, fitted to the schema."""
        with closing(_connect()) as connection:
            is_checked = False
            for chunk in _read_chunks(self._file):
                self.found += len(chunk.rows)
                pieces = self._exploded(chunk, connection) if self._explode else [chunk]
                for piece in pieces:
                    if not is_checked:
                        self._check_expressions(piece.table, connection)
                        is_checked = True
                    fitted = self._fitted(piece, connection)
                    self.kept += len(fitted.rows)
                    if len(fitted.rows):
                        yield fitted

    def _check_expressions(self, table: pa.Table, connection: duckdb.DuckDBPyConnection) -> None:
        """Refuse a column or condition that cannot be evaluated on this source."""
        for name, origin in self._columns.items():
            if origin in table.column_names:
                continue
            try:
                query = f"SELECT {_guarded(origin)} FROM raw"  # noqa: S608
                _query(connection, query, table.slice(0, 0))
            except duckdb.Error as error:
                raise DataError(
                    f"{self.source}: no column '{origin}' (mapped to {name}), nor is it SQL "
                    f"({_first_line(error)}): {nearest(origin, table.column_names)}"
                ) from error

    def _fitted(self, chunk: _Chunk, connection: duckdb.DuckDBPyConnection) -> _Chunk:
        """Select rows, map columns, and check and convert values."""
        broken: set[int] = set()
        chunk, computed = self._computed(chunk, connection)

        def flag(column: str, position: int, reason: str, value: Any = None) -> None:
            if position not in broken:
                self.problem(chunk.rows[position], column, reason, value)
            broken.add(position)

        given, columns = chunk.table, {}
        for name, origin in self._columns.items():
            if origin in given.column_names:
                columns[name] = given[origin]
                continue
            columns[name], failed = computed[name]
            for position in pc.indices_nonzero(failed).to_pylist():
                flag(name, position, f"cannot be computed: {origin}")
        renamed = {origin for origin in self._columns.values() if origin in given.column_names}
        for name in given.column_names:
            if name not in renamed and name not in columns:
                columns[name] = given[name]
        for name, values in columns.items():
            if pa.types.is_dictionary(values.type):
                columns[name] = values.cast(values.type.value_type)
            for position in _years_out_of_range(columns[name]):
                flag(name, position, "a time outside the years 1 to 9999")
        fitted = self._declared(columns, len(chunk.rows), flag)
        extra = {name: values for name, values in columns.items() if name not in fitted}
        result = _Chunk(
            pa.table(fitted | _plain_columns(extra, connection)), chunk.rows, chunk.read
        )
        if broken:
            return result.take(np.setdiff1d(np.arange(len(chunk.rows)), list(broken)))
        return result

    def _declared(
        self,
        columns: Mapping[str, pa.ChunkedArray],
        rows: int,
        flag: Callable[..., None],
    ) -> dict[str, pa.ChunkedArray]:
        """The schema's columns; `flag(column, position, reason, value)` hears of broken values."""
        fitted: dict[str, pa.ChunkedArray] = {}
        latest = int(time.time() + 86_400)
        for column in self._schema.columns:
            name = column.name
            if name == "n_words" and self._schema is STORIES and self._is_raw:
                # Our own count, whatever the source calls a word.
                fitted[name] = count_words(fitted["text"])
                continue
            if name not in columns:
                if column.required:
                    raise DataError(
                        f"{self.source}: column '{name}' is missing ({column.about}); it has "
                        f"{', '.join(columns)}: name its origin under columns:"
                    )
                fitted[name] = pa.chunked_array([pa.nulls(rows, ARROW_TYPES[column.kind])])
                continue
            values = fitted[name] = _convert(columns[name], column.kind, partial(flag, name))
            if column.required:
                for row in pc.indices_nonzero(pc.is_null(values)).to_pylist():
                    flag(name, row, "null")
            if column.kind == "time":
                future = pc.fill_null(pc.greater(values, latest), fill_value=False)
                for row in pc.indices_nonzero(future).to_pylist():
                    flag(name, row, "in the future", values[row].as_py())
            if column.choices:
                allowed = pc.is_in(values, value_set=pa.array(column.choices, pa.large_string()))
                wrong = pc.and_(pc.is_valid(values), pc.invert(allowed))
                for row in pc.indices_nonzero(wrong).to_pylist():
                    reason = f"not one of {', '.join(column.choices)}"
                    flag(name, row, reason, values[row].as_py())
        return fitted

    def _computed(
        self, chunk: _Chunk, connection: duckdb.DuckDBPyConnection
    ) -> tuple[_Chunk, dict[str, tuple[pa.ChunkedArray, pa.ChunkedArray]]]:
        """The rows that `where` is true of; of each expression its values and where it failed."""
        names = chunk.table.column_names
        origins = {n: origin for n, origin in self._columns.items() if origin not in names}
        if self._where is None and not origins:
            return chunk, {}
        computed = [f", {_guarded(origin)} AS e{k}" for k, origin in enumerate(origins.values())]
        selected = [f", e{k}.v AS v{k}, e{k} IS NULL AS f{k}" for k in range(len(origins))]
        condition = "true" if self._where is None else self._where
        query = (
            f'SELECT "{_POSITION}"{"".join(selected)} FROM (SELECT "{_POSITION}"'  # noqa: S608
            f"{''.join(computed)} FROM raw WHERE ({condition}\n))"
        )
        positions = pa.array(np.arange(len(chunk.rows)))
        try:
            given = chunk.table.append_column(_POSITION, positions)
            found = _query(connection, query, given)
        except duckdb.Error as error:
            hint = ""
            if Path(self.source).suffix in (".csv", ".tsv"):
                hint = "; CSV holds text only: write TRY_CAST(score AS INT) for score"
            raise DataError(
                f"{self.source}: where: {condition!r} cannot be evaluated: {error}{hint}"
            ) from error
        left_out = len(chunk.rows) - found.num_rows
        self.left_out += left_out
        if self._rejected_rows is not None:
            self._rejected_rows.not_selected += left_out
        if left_out:
            chunk = chunk.take(found[_POSITION].to_numpy())
        return chunk, {name: (found[f"v{k}"], found[f"f{k}"]) for k, name in enumerate(origins)}

    def _exploded(self, chunk: _Chunk, connection: duckdb.DuckDBPyConnection) -> Iterator[_Chunk]:
        """One row for each element of the named lists, which belong together by position."""
        names = list(self._explode)
        for name in names:
            if name not in chunk.table.column_names:
                raise DataError(
                    f"{self.source}: no column '{name}' (under explode:): "
                    f"{nearest(name, chunk.table.column_names)}"
                )
        lists = chunk.table.select(names).rename_columns([f"l{k}" for k in range(len(names))])
        columns = [_as_list(f"l{k}", lists.column(k).type) for k in range(len(names))]
        lengths = np.stack(
            list(
                _query(
                    connection,
                    f"SELECT {', '.join(f'coalesce(len({c}), -1) AS n{k}' for k, c in enumerate(columns))} FROM raw",  # noqa: E501, S608
                    lists,
                )
                .to_pydict()
                .values()
            )
        )
        for row in np.flatnonzero((lengths != lengths[0]).any(axis=0) | (lengths[0] < 0)).tolist():
            found = dict(zip(names, lengths[:, row].tolist(), strict=True))
            no_list = next((name for name, length in found.items() if length < 0), None)
            if no_list is not None:
                value = _python_values(chunk.table[no_list].slice(row, 1))[0]
                self.problem(chunk.rows[row], no_list, "not a list", value)
            else:
                self.problem(chunk.rows[row], names[0], "lists of unequal length", found)
            lengths[0, row] = -1
        if self._rejected_rows is not None:
            self._rejected_rows.empty_lists += int((lengths[0] == 0).sum())
        used = np.flatnonzero(lengths[0] > 0)
        unnested = ", ".join(f"unnest({column}) AS l{k}" for k, column in enumerate(columns))
        query = f"SELECT {unnested} FROM raw"  # noqa: S608
        elements = _query(connection, query, lists.take(pa.array(used))).rename_columns(names)
        parents = np.repeat(used, lengths[0, used])
        # A post stands beside each of its stories: what was bounded before is so no longer.
        beside = _Chunk(chunk.table.drop_columns(names), chunk.rows, chunk.read)
        start = 0
        for end in cut_rows(_all_sizes(beside)[parents], CHUNK_ROWS, CHUNK_BYTES):
            piece = beside.take(parents[start:end])
            part = elements.slice(start, end - start)
            both = {name: piece.table[name] for name in piece.table.column_names}
            both |= {name: part[name] for name in names}
            piece.table = pa.table({name: both[name] for name in chunk.table.column_names})
            yield piece
            start = end


def _guarded(expression: str) -> str:
    """An expression that is null where it fails and {v: null} where it is null."""
    return f"TRY(struct_pack(v := ({expression}\n)))"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _as_list(column: str, kind: pa.DataType) -> str:
    """SQL for a column of lists, or of lists as JSON: [] for null, null for what is no list."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"coalesce({column}, [])"
    text = f"({column}->>'$')" if kind == _JSON else f"({column}::VARCHAR)"
    element = "JSON" if kind == _JSON else "VARCHAR"
    return (
        f"CASE WHEN {text} IS NULL THEN []::{element}[] WHEN TRY(json_type({text})) = 'ARRAY' "
        f"THEN from_json({text}, '[\"{element}\"]') END"
    )


def _all_sizes(chunk: _Chunk) -> np.ndarray:
    """Bytes of every row, those of lists and objects too; int64, shape (rows,)."""
    sizes = np.zeros(len(chunk.rows), dtype=np.int64)
    if chunk.table.num_columns:
        sizes += row_sizes(chunk.table)
    for column in chunk.table.columns:
        if pa.types.is_nested(column.type) or column.type == _JSON:
            sizes += [column.slice(row, 1).nbytes for row in range(len(column))]
    return sizes


def _plain_columns(
    columns: Mapping[str, pa.ChunkedArray], connection: duckdb.DuckDBPyConnection
) -> dict[str, pa.ChunkedArray]:
    """Extra columns: lists and objects as the text of their JSON, others as they are."""
    plain = {}
    for name, values in columns.items():
        if values.type == _JSON:
            plain[name] = _plain_texts(values)
        elif pa.types.is_nested(values.type):
            query = "SELECT to_json(c)::VARCHAR AS c FROM raw"
            texts = _query(connection, query, pa.table({"c": values}))["c"]
            plain[name] = texts.cast(pa.large_string())
        elif pa.types.is_string(values.type):
            plain[name] = values.cast(pa.large_string())
        else:
            plain[name] = values
    return plain


# Whole tables and streams --------------------------------------------------------------------


class LargeTable:
    """A table fitted to its schema, without repeated keys; made by `read_large_table`.

    Attributes:
        schema: columns and types of every chunk: the declared ones first, then the extra ones.
        num_rows: how many rows it has.
    """

    schema: pa.Schema
    num_rows: int

    def __init__(self, folder: Path | None, declared: Schema) -> None:
        self._folder = folder
        self._declared = declared
        # Chunks in memory, or the files that hold them.
        self._held: list[pa.Table | Path] = []
        self._ends = [0]
        self._schemas: dict[pa.Schema, None] = {}
        self._dropped = np.zeros(0, dtype=np.int64)
        config = {} if folder is None else {"memory_limit": "1GB"}
        path = ":memory:" if folder is None else str(folder / "keys.duckdb")
        self._keys = duckdb.connect(path, config=config)

    def chunks(self) -> Iterator[pa.Table]:
        """Read the rows, in the order of the sources; may be called again."""
        for number, (start, end) in enumerate(itertools.pairwise(self._ends)):
            table = self._load(number)
            low, high = np.searchsorted(self._dropped, [start, end])
            if high > low:
                mask = np.ones(table.num_rows, dtype=bool)
                mask[self._dropped[low:high] - start] = False
                table = table.filter(pa.array(mask))
            yield table

    def _load(self, number: int) -> pa.Table:
        held = self._held[number]
        table = held if isinstance(held, pa.Table) else pa.ipc.open_file(str(held)).read_all()
        columns = {}
        for one in self.schema:
            if one.name not in table.column_names:
                columns[one.name] = pa.nulls(table.num_rows, one.type)
            else:
                columns[one.name] = pc.cast(table[one.name], one.type, safe=False)
        return pa.table(columns, self.schema)

    def _add(self, table: pa.Table, source: int, rows: np.ndarray) -> None:
        """Hold one chunk; `rows` are the row numbers in the source of that number."""
        self._schemas[table.schema] = None
        if self._folder is None:
            self._held.append(table)
        else:
            path = self._folder / f"{len(self._held)}.arrow"
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            with pa.ipc.new_file(str(path), table.schema, options=options) as writer:
                writer.write_table(table)
            self._held.append(path)
        start, end = self._ends[-1], self._ends[-1] + table.num_rows
        self._ends.append(end)
        if not self._declared.key:
            return
        latest = self._declared.latest
        keys = {
            "place": np.arange(start, end),
            "source": np.full(table.num_rows, source),
            "row": rows,
            "latest": pa.nulls(table.num_rows, pa.int64()) if latest is None else table[latest],
            **{f"key{k}": table[name] for k, name in enumerate(self._declared.key)},
        }
        self._keys.register("chunk", pa.table(keys))
        self._keys.execute("CREATE TABLE IF NOT EXISTS keys AS SELECT * FROM chunk LIMIT 0")
        self._keys.execute("INSERT INTO keys SELECT * FROM chunk")
        self._keys.unregister("chunk")

    def _finish(self, problem: Callable[..., None]) -> None:
        """Settle types and repeated keys; `problem(source, row, ...)` hears of the dropped rows."""
        names = dict.fromkeys(name for schema in self._schemas for name in schema.names)
        self.schema = pa.schema([(name, self._common_type(name)) for name in names])
        if self._declared.key:
            self._dropped = self._find_repeated(problem)
        self._keys.close()
        self.num_rows = self._ends[-1] - len(self._dropped)

    def _common_type(self, name: str) -> pa.DataType:
        """The type that holds all values of a column; text where no other does."""
        kinds = [pa.schema([s.field(name)]) for s in self._schemas if name in s.names]
        try:
            return pa.unify_schemas(kinds, promote_options="permissive").field(0).type
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return pa.large_string()

    def _find_repeated(self, problem: Callable[..., None]) -> np.ndarray:
        """Places of the rows to drop: of several with one key all but the one that is kept."""
        keys = ", ".join(f"key{k}" for k in range(len(self._declared.key)))
        same = " AND ".join(
            f"k.key{k} IS NOT DISTINCT FROM r.key{k}" for k in range(len(self._declared.key))
        )
        # The names in the queries are our own.
        self._keys.execute(
            f"CREATE TABLE repeated AS SELECT {keys}, row_number() OVER () AS name "  # noqa: S608
            f"FROM keys GROUP BY {keys} HAVING count(*) > 1"
        )
        self._keys.execute(
            f"CREATE TABLE rows AS SELECT k.*, r.name FROM keys k JOIN repeated r ON {same}"  # noqa: S608
        )
        found = self._keys.sql("SELECT place FROM rows ORDER BY place").to_arrow_table()
        places = found["place"].to_numpy()
        if not len(places):
            return np.zeros(0, dtype=np.int64)
        self._keys.execute("CREATE TABLE contents (place BIGINT, content VARCHAR)")
        with tqdm(
            total=len(places), desc="repeated", unit=" rows", leave=False, disable=None
        ) as bar:
            for number, (start, end) in enumerate(itertools.pairwise(self._ends)):
                low, high = np.searchsorted(places, [start, end])
                if high == low:
                    continue
                rows = self._load(number).take(pa.array(places[low:high] - start)).to_pylist()
                contents = pa.table(
                    {"place": places[low:high], "c": [_content(row) for row in rows]}
                )
                self._keys.register("chunk", contents)
                self._keys.execute("INSERT INTO contents SELECT * FROM chunk")
                self._keys.unregister("chunk")
                bar.update(len(rows))
        dropped = self._keys.sql(
            "SELECT place, source, row, key0, content = kept AS same FROM ("
            "  SELECT *, first_value(content) OVER each AS kept, row_number() OVER each AS nth"
            "  FROM rows JOIN contents USING (place) WINDOW each AS"
            "  (PARTITION BY name ORDER BY latest DESC NULLS LAST, content, place)"
            ") WHERE nth > 1 ORDER BY place"
        ).to_arrow_reader(CHUNK_ROWS)
        gone = []
        for batch in dropped:
            for row in batch.to_pylist():
                reason = "repeated row" if row["same"] else "duplicate id"
                problem(row["source"], row["row"], self._declared.key[0], reason, row["key0"])
            gone.append(batch.column("place").to_numpy())
        return np.concatenate(gone)


def _content(row: Mapping[str, Any]) -> str:
    """Digest of a row, whatever its number in the source."""
    return digest(*(item for item in row.items() if item[0] != ROW))


def _gather(readers: Sequence[_Reader], table: LargeTable, *, numbered: bool = False) -> LargeTable:
    """Read sources one after the other into a table, of which repeated keys are dropped."""
    paths = [Path(reader.source) for reader in readers]
    size = sum(p.stat().st_size for p in paths) if all(p.is_file() for p in paths) else None
    unit = " rows" if size is None else "B"
    before = 0
    with tqdm(
        total=size, desc="reading", unit=unit, unit_scale=True, leave=False, disable=None
    ) as bar:
        for number, reader in enumerate(readers):
            for chunk in reader.stream():
                table._add(_numbered(chunk) if numbered else chunk.table, number, chunk.rows)
                # Where the bytes of a source are not known, its rows are counted.
                bar.update(len(chunk.rows) if size is None else before + chunk.read - bar.n)
            before = int(bar.n)
    _refuse_nothing(readers)
    table._finish(lambda number, *what: readers[number].problem(*what))
    return table


def _numbered(chunk: _Chunk) -> pa.Table:
    """A chunk's table with the column `ROW`."""
    names = [name for name in chunk.table.column_names if name != ROW]
    return chunk.table.select(names).append_column(ROW, pa.array(chunk.rows, pa.int64()))


def _refuse_nothing(readers: Sequence[_Reader]) -> None:
    """Raise where no row is left, for the reason why."""
    if sum(reader.kept for reader in readers):
        return
    name = ", ".join(reader.source for reader in readers[:3]) + ", ..." * (len(readers) > 3)
    found = sum(reader.found for reader in readers)
    left_out = sum(reader.left_out for reader in readers)
    rejected_rows = readers[0]._rejected_rows or RejectedRows()
    rejected = rejected_rows.total - readers[0]._rejected_before
    if not found and not rejected:
        raise DataError(f"{name} holds no rows: make it again")
    if left_out and not rejected:
        raise DataError(
            f"{name}: where: {readers[0]._where!r} is true of none of {left_out} rows: widen it"
        )
    if rejected_rows.empty_lists and not rejected:
        raise DataError(
            f"{name}: the lists under explode: are empty in all {found} rows: name others"
        )
    reasons = "; ".join(f"{why} ({n})" for why, n in rejected_rows.counts().items())
    raise DataError(f"{name}: no usable row is left, all were rejected: {reasons}")


def read_table(
    source: str | Path,
    schema: Schema,
    *,
    columns: Mapping[str, str] | None = None,
    rejected_rows: RejectedRows | None = None,
    where: str | None = None,
    explode: Sequence[str] | None = None,
    encoding: str = "utf-8",
    numbered: bool = False,
) -> pa.Table:
    """Read a table from a file, a `datasets` folder or a data set's name on the Hub.

    Args:
        source: Parquet, JSONL, a JSON array of objects, CSV, TSV, a folder saved by `datasets`, or
            `owner/name[@revision][:split]`.
        schema: the columns to read, such as STORIES or PAIRS.
        columns: where each column comes from: the name of a column of the source, or else a DuckDB
            SQL expression over its columns, such as "strftime(to_timestamp(created), '%Y-%m')" or
            "'a constant'". A row for which it fails is rejected. Given (even empty), the input
            counts as raw, and `n_words` is counted anew.
        rejected_rows: collects broken rows. Without it the first broken row is an error.
        where: SQL condition on a row of the source; other rows are left out. CSV holds text only.
        explode: columns that hold lists, or lists as JSON, of one length within a row. Each
            element becomes a row of its own, before `where` and `columns`. A row whose lists
            differ in length is rejected; one whose lists are empty or null is counted in
            `rejected_rows.empty_lists`.
        encoding: of a text file, such as cp1252.
        numbered: adds the column `ROW`, each row's number in the source.

    Returns:
        The declared columns first, then the extra ones; large_string, int64 and float64. Extra
        columns of lists or objects hold their JSON. Of rows with one key the one with the latest
        `Schema.latest` is kept (null comes before all times), and of several such the smallest by
        content, whatever the order.

    Raises:
        DataError: no such file, not of its format, a required column missing, no usable row,
            or (without `rejected_rows`) a broken row, named by file, row and column.
        MissingExtraError: a data set was named and `datasets` is not installed.
    """
    reader = _Reader(source, schema, columns, rejected_rows, where, explode, encoding)
    table = _gather([reader], LargeTable(None, schema), numbered=numbered)
    return pa.concat_tables(table.chunks())


def stream_table(
    source: str | Path,
    schema: Schema,
    *,
    columns: Mapping[str, str] | None = None,
    rejected_rows: RejectedRows | None = None,
    where: str | None = None,
    explode: Sequence[str] | None = None,
    encoding: str = "utf-8",
    numbered: bool = False,
) -> Iterator[pa.Table]:
    """Read a table of any size chunk by chunk, in the order of the source.

    Arguments and errors as in `read_table`. Rows of one key are not looked for.

    Yields:
        Tables of at least one row; at most some thousand rows and some hundred megabytes.
    """
    reader = _Reader(source, schema, columns, rejected_rows, where, explode, encoding)
    for chunk in reader.stream():
        yield _numbered(chunk) if numbered else chunk.table
    _refuse_nothing([reader])


def read_large_table(
    sources: Sequence[str | Path],
    schema: Schema,
    folder: Path,
    *,
    columns: Mapping[str, str] | None = None,
    rejected_rows: RejectedRows | None = None,
    where: str | None = None,
    explode: Sequence[str] | None = None,
    encoding: str = "utf-8",
) -> LargeTable:
    """Read sources of any size as one table: as `read_table`, by way of the disk.

    Args:
        sources: keys are compared across all of them.
        schema: see `read_table`.
        folder: an empty folder with room for all rows (compressed); the caller removes it.
        columns: see `read_table`.
        rejected_rows: see `read_table`.
        where: see `read_table`.
        explode: see `read_table`.
        encoding: see `read_table`.

    Raises:
        DataError: see `read_table`; also when the disk is full.
        MissingExtraError: see `read_table`.
    """
    readers = [
        _Reader(source, schema, columns, rejected_rows, where, explode, encoding)
        for source in sources
    ]
    try:
        return _gather(readers, LargeTable(folder, schema))
    except (OSError, duckdb.Error) as error:
        raise DataError(
            f"cannot keep rows in {folder} ({error}): free space or choose another folder"
        ) from error


# Writing and checking ------------------------------------------------------------------------


def check_parquet(path: Path, schema: Schema) -> None:
    """Check a Parquet file's columns and nulls against a schema.

    Texts are read only where the file does not say how many nulls they have.

    Raises:
        DataError: no such file, not Parquet, no rows, a column missing, of another type, or null
            where it must not be.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}: check the path, or run the step that writes it")
    try:
        # With a buffer and without pre-buffering, pages are read as they are needed.
        file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a Parquet file ({error}): make it again") from error
    if file.metadata.num_rows == 0:
        raise DataError(f"{path} holds no rows: make it again")
    given = file.schema_arrow
    for column in schema.columns:
        if column.name not in given.names:
            raise DataError(
                f"{path}: column '{column.name}' is missing ({column.about}): make the file with "
                f"the program that writes {schema.name}"
            )
        found, wanted = given.field(column.name).type, ARROW_TYPES[column.kind]
        text = pa.types.is_string(found) or pa.types.is_large_string(found)
        if not (text if column.kind == "text" else found == wanted):
            raise DataError(
                f"{path}: column '{column.name}' holds {found}, not {wanted}: make it again"
            )
        if column.required:
            nulls = _count_nulls(file, path, column.name)
            if nulls:
                raise DataError(f"{path}: column '{column.name}' has {nulls} nulls: make it again")


def _count_nulls(file: pq.ParquetFile, path: Path, name: str) -> int:
    """Nulls of a column, by the file's own statistics where it has them."""
    # A column of lists or objects has a place for each of its parts.
    paths = [file.schema.column(place).path for place in range(len(file.schema))]
    place = paths.index(name)
    nulls = 0
    for group in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(group).column(place).statistics
        if statistics is not None and statistics.has_null_count:
            nulls += statistics.null_count
            continue
        try:
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[name]):
                nulls += batch.column(0).null_count
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path}: column '{name}' cannot be read ({error}): make it again"
            ) from error
    return nulls


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table as Parquet, JSONL or CSV by the path's ending, or else as a `datasets` folder.

    The same table gives the same bytes, whatever its chunks. CSV has no types: there an empty
    text is read back as null and an extra column as text.

    Raises:
        DataError: a column holds what the format cannot, such as lists in CSV.
        MissingExtraError: a folder was asked for and `datasets` is not installed.
    """
    if path.suffix == ".parquet":
        with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
            for start in range(0, max(table.num_rows, 1), _ROW_GROUP):
                # Arrow ends a page where a chunk ends, so chunks would show in the bytes.
                writer.write_table(table.slice(start, _ROW_GROUP).combine_chunks())
    elif path.suffix in (".jsonl", ".ndjson"):
        with path.open("w", encoding="utf-8") as file:
            for row in iterate_rows(table):
                file.write(json.dumps(row, ensure_ascii=False, default=_plain) + "\n")
    elif path.suffix == ".csv":
        for one in table.schema:
            if pa.types.is_nested(one.type):
                raise DataError(
                    f"{path}: CSV cannot hold column '{one.name}' ({one.type}): use Parquet"
                )
        pa_csv.write_csv(table, path)
    else:
        try:
            import datasets  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("datasets", "data") from error
        # Chunks become record batches, and so would show in the bytes.
        whole = datasets.table.InMemoryTable(table.combine_chunks())
        datasets.Dataset(whole).save_to_disk(str(path))


def _plain(value: Any) -> str:
    if isinstance(value, date | Decimal):
        return str(value)
    raise DataError(f"JSONL cannot hold {value!r:.80} ({type(value).__name__}): use Parquet")


def iterate_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows as dictionaries, a batch at a time."""
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
        yield from batch.to_pylist()


def row_sizes(table: pa.Table) -> np.ndarray:
    """Bytes of the texts of every row; int64, shape (rows,)."""
    sizes = np.zeros(table.num_rows, dtype=np.int64)
    for column in table.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            lengths = pc.fill_null(pc.binary_length(column), 0)
            sizes += lengths.to_numpy().astype(np.int64, copy=False)
    return sizes


def cut_rows(sizes: np.ndarray, most_rows: int, most_bytes: int) -> list[int]:
    """Cut rows into groups of at most so many rows and bytes; a single row may be larger.

    Args:
        sizes: bytes of each row, see `row_sizes`.
        most_rows: of a group.
        most_bytes: of a group of several rows.

    Returns:
        The end of each group. A group depends on no row after it but the next.
    """
    until = np.cumsum(sizes)
    ends: list[int] = []
    start = 0
    while start < len(sizes):
        before = until[start - 1] if start else 0
        fit = int(np.searchsorted(until, before + most_bytes, side="right"))
        start = min(start + most_rows, max(start + 1, fit), len(sizes))
        ends.append(start)
    return ends


def write_sorted_batches(batches: pa.RecordBatchReader, schema: Schema, path: Path) -> int:
    """Write a stream of rows as Parquet with a schema's columns first; return the rows written.

    Row groups go by rows and bytes whatever the batches, so the same rows give the same bytes,
    and no more than one group is held in memory.
    """
    names = [column.name for column in schema.columns]
    extra = [name for name in batches.schema.names if name not in names]
    target = pa.schema(
        [*schema.arrow(), *(batches.schema.field(name).with_metadata(None) for name in extra)]
    )
    rows = 0
    with pq.ParquetWriter(path, target, compression="zstd") as writer:
        waiting = target.empty_table()
        sizes = np.zeros(0, dtype=np.int64)
        for batch in itertools.chain(batches, [None]):
            if batch is not None:
                table = pa.Table.from_batches([batch]).select(target.names).cast(target)
                waiting = pa.concat_tables([waiting, table])
                sizes = np.concatenate([sizes, row_sizes(table)])
                if len(sizes) < _ROW_GROUP and sizes.sum() < _ROW_GROUP_BYTES:
                    continue
            ends = cut_rows(sizes, _ROW_GROUP, _ROW_GROUP_BYTES)
            if batch is not None and ends and ends[-1] - ([0, *ends])[-2] < _ROW_GROUP:
                # The last group may still grow.
                ends.pop()
            for start, end in itertools.pairwise([0, *ends]):
                # Arrow ends a page where a chunk ends, so chunks would show in the bytes.
                group = waiting.slice(start, end - start).combine_chunks()
                writer.write_table(group, row_group_size=_ROW_GROUP)
            written = ends[-1] if ends else 0
            waiting, sizes = waiting.slice(written), sizes[written:]
            rows += written
    return rows
