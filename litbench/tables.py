"""Reading and writing tables: Parquet, JSONL, JSON, CSV, TSV, `datasets` folders and the Hub.

`read_table` reads what fits into memory, `stream_table` and `read_large_table` read input of any
size. Each row is fitted to a schema of `litbench.records`. A row that does not fit is kept in a
`RejectedRows` with its reason, or is an error that names file, row and column.
"""

import codecs
import csv
import itertools
import json
import math
import tempfile
import time
import weakref
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, TypedDict, Unpack, cast

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
    **{f"{kind}[]": f"from_json({{}}, '[\"{kind}\"]')" for kind in ("VARCHAR", "DOUBLE")},
}

# Called with each broken row: its number, the column, the reason and the value.
Problem = Callable[..., None]


class RejectedRows:
    """Rows that could not be used, each with its reason; any number of them, in little memory.

    Attributes:
        not_selected: rows left out by the caller's own condition.
        empty_lists: rows without an element in the lists to explode.
    """

    def __init__(self) -> None:
        self.not_selected = 0
        self.empty_lists = 0
        self._counts: Counter[str] = Counter()
        self._file: IO[bytes] | None = None
        # Of each row the file, by its place in `_names`, the number, and where its line starts.
        self._names: dict[str, int] = {}
        self._files, self._numbers, self._starts = array("q"), array("q"), array("q")

    def add(self, file: str, row: int, column: str, reason: str, value: Any = None) -> None:
        """Note one row; `row` counts from 1 in the file's own order.

        Raises:
            DataError: the temporary file in `$TMPDIR` cannot be written.
        """
        shown = None if value is None else repr(value)[:120]
        noted = {"file": file, "row": row, "column": column, "reason": reason, "value": shown}
        self._counts[f"{column}: {reason}"] += 1
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            self._files.append(self._names.setdefault(file, len(self._names)))
            self._numbers.append(row)
            self._starts.append(self._file.tell())
            self._file.write(json.dumps(noted).encode() + b"\n")
        except OSError as error:
            raise DataError(
                f"cannot write rejected rows to {tempfile.gettempdir()} ({error}): free space "
                "there or set TMPDIR to another folder"
            ) from error

    @property
    def total(self) -> int:
        """How many rows were noted."""
        return self._counts.total()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows at once: file, row (from 1), column, reason and the start of the value."""
        return [json.loads(line) for line in self._lines()]

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
        with path.open("wb") as file:
            file.writelines(self._lines())

    def _lines(self) -> Iterator[bytes]:
        if self._file is None:
            return
        rank = np.argsort(np.argsort(np.array(list(self._names))))
        end = self._file.tell()
        for place in np.lexsort((np.array(self._numbers), rank[np.array(self._files)])):
            self._file.seek(self._starts[place])
            yield self._file.readline()
        self._file.seek(end)


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


def _query(connection: duckdb.DuckDBPyConnection, query: str, given: pa.Table) -> pa.Table:
    """Run a query on one table, called `raw`; columns of JSON are marked by their type."""
    connection.register("raw", given)
    try:
        relation = connection.sql(query)
        kinds = relation.types
        table = relation.to_arrow_table()
    finally:
        connection.unregister("raw")
    for place, kind in enumerate(kinds):
        if str(kind) == "JSON":
            texts = table.column(place).cast(pa.large_string())
            table = table.set_column(place, table.column_names[place], texts.cast(_JSON))
    return table


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# Files as they are: chunks of a source's own columns, with the number of each row in `ROW` ------


@dataclass
class _Source:
    """A file to read.

    Attributes:
        path: where it is.
        encoding: of a text file.
        texts: columns that become texts by their name alone, where 5 and 5.0 differ.
        lists: columns whose elements become rows.
        read: about how many bytes were read so far; 0 where that is not known.
    """

    path: Path
    encoding: str
    texts: frozenset[str]
    lists: frozenset[str]
    read: int = 0

    def open(self, newline: str) -> Any:
        """Open a text file; bytes of another encoding become surrogates, found row by row."""
        encoding = "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding
        return self.path.open(encoding=encoding, errors="surrogateescape", newline=newline)

    def is_valid(self, text: str, row: int, column: str, problem: Problem) -> bool:
        """Whether a text has no bytes of another encoding; else the row is a problem."""
        try:
            if not text.isascii():
                text.encode()
        except UnicodeEncodeError as error:
            reason = f"bytes that are not {self.encoding.upper()}"
            problem(row, column, reason, f"at character {error.start}")
            return False
        return True


def _numbered(table: pa.Table, first: int) -> pa.Table:
    """A table with row numbers that start after `first`."""
    numbers = pa.array(np.arange(first + 1, first + 1 + table.num_rows))
    return _without(table, ROW).append_column(ROW, numbers)


def _without(table: pa.Table, *names: str) -> pa.Table:
    return table.select([name for name in table.column_names if name not in names])


def _lines(source: _Source, problem: Problem) -> Iterator[pa.Table]:
    """The lines of a file as a column `line`, without blank ones."""
    rows: list[int] = []
    lines: list[str] = []
    size = number = 0
    with source.open("\n") as file:
        while line := file.readline(_LARGEST_LINE):
            number += 1
            if len(line) == _LARGEST_LINE and not line.endswith("\n"):
                problem(number, "(line)", f"longer than {_LARGEST_LINE:,}", line[:60])
                while line and not line.endswith("\n"):
                    line = file.readline(_LARGEST_LINE)
            elif not line.isspace() and source.is_valid(line, number, "(line)", problem):
                rows.append(number)
                lines.append(line)
                size += len(line)
            if len(lines) >= CHUNK_ROWS or size >= CHUNK_BYTES:
                source.read = file.buffer.tell()
                yield pa.table({"line": pa.array(lines, pa.large_string()), ROW: rows})
                rows, lines, size = [], [], 0
        if lines:
            yield pa.table({"line": pa.array(lines, pa.large_string()), ROW: rows})


def _elements(source: _Source, _: Problem) -> Iterator[pa.Table]:
    """The elements of a JSON array as a column `line`."""
    if source.path.stat().st_size > _LARGEST_LINE:
        raise DataError(
            f"{source.path} is larger than {_LARGEST_LINE:,} bytes, and a JSON array is read "
            "whole: save it as JSONL, one object to a line"
        )
    with source.open("\n") as file, closing(_connect()) as connection:
        whole = pa.table({"text": pa.array([file.read()])})
        query = "SELECT unnest(from_json(text, '[\"JSON\"]'))::VARCHAR AS line FROM raw"
        try:
            table = _query(connection, query, whole).cast(pa.schema([("line", pa.large_string())]))
        except duckdb.Error as error:
            raise DataError(
                f"{source.path} holds no JSON array ({_first_line(error)}): end its name in "
                ".jsonl if it has one object to a line"
            ) from error
    for start in range(0, table.num_rows, CHUNK_ROWS):
        yield _numbered(table.slice(start, CHUNK_ROWS), start)


def _read_json(source: _Source, problem: Problem) -> Iterator[pa.Table]:
    """Rows of JSONL, or of a JSON array.

    The file is read twice: for names and types of its columns, and for its rows. So a column has
    one type in all chunks, whether JSON writes it out in every row or not.
    """
    read = _elements if source.path.suffix == ".json" else _lines
    with closing(_connect()) as connection:
        types, broken = _json_columns(source, connection, read(source, problem), problem)
        # By position: DuckDB does not tell `Score` from `score`.
        texts = [name for name, kind in types.items() if kind not in _OF_JSON]
        nested = [name for name, kind in types.items() if kind in _OF_JSON]
        values = [f"TRY_CAST(s[{k + 1}] AS {types[name]})" for k, name in enumerate(texts)]
        values += [_OF_JSON[types[name]].format(f"j[{k + 1}]") for k, name in enumerate(nested)]
        columns = [f"{value} AS c{k}" for k, value in enumerate(values)]
        query = (
            f"SELECT {', '.join(columns)} FROM (SELECT "  # noqa: S608
            f"json_extract_string(line, {_pointers(texts)}) AS s, "
            f"json_extract(line, {_pointers(nested)}) AS j FROM raw)"
        )
        for lines in read(source, lambda *_: None):
            rows = lines[ROW].to_numpy()
            low, high = np.searchsorted(broken, [rows[0], rows[-1] + 1])
            good = lines.filter(pa.array(~np.isin(rows, broken[low:high])))
            if types and good.num_rows:
                table = _query(connection, query, good).rename_columns([*texts, *nested])
                yield _without(table.select(list(types)), ROW).append_column(ROW, good[ROW])


def _pointers(names: Iterable[str]) -> str:
    """JSON pointers to keys, as a list in SQL."""
    pointers = ("/" + name.replace("~", "~0").replace("/", "~1") for name in names)
    return "([" + ", ".join("'" + p.replace("'", "''") + "'" for p in pointers) + "]::VARCHAR[])"


def _json_columns(
    source: _Source,
    connection: duckdb.DuckDBPyConnection,
    chunks: Iterator[pa.Table],
    problem: Problem,
) -> tuple[dict[str, str], np.ndarray]:
    """Names and SQL types of the columns of a JSON file, and the numbers of its broken rows."""
    found: dict[str, set[str | None]] = {}
    elements: dict[str, set[str | None]] = {name: set() for name in source.lists}
    broken: list[int] = []

    def note(values: str, names: Sequence[str], kinds: dict[str, set[str | None]]) -> None:
        query = f"SELECT DISTINCT {values} AS t FROM raw"  # noqa: S608
        for types in _query(connection, query, good)["t"].to_pylist():
            for name, one in zip(names, types, strict=True):
                kinds[name].add(one)

    size = source.path.stat().st_size
    with tqdm(
        total=size, desc="columns", unit="B", unit_scale=True, leave=False, disable=None
    ) as bar:
        for chunk in chunks:
            keys = _query(connection, "SELECT TRY(json_keys(line)) AS k FROM raw", chunk)["k"]
            empty = pc.equal(pc.fill_null(pc.list_value_length(keys), 0), 0)
            for row in chunk.filter(empty).to_pylist():
                if row["line"].strip() != "{}":
                    problem(row[ROW], "(line)", *_why_no_object(row["line"]))
                    broken.append(row[ROW])
            good = chunk.filter(pc.invert(empty))
            names = pc.unique(pc.list_flatten(keys)).to_pylist()
            found |= {name: set() for name in names if name not in found}
            if len(found) > _MOST_KEYS:
                raise DataError(
                    f"{source.path} has objects of more than {_MOST_KEYS:,} different keys: keep "
                    "the keys that vary in one nested object"
                )
            note(f"json_type(line, {_pointers(names)})", names, found)
            whole = [name for name in names if found[name] & {"BIGINT", "UBIGINT"}]
            fits = "lambda v: if(TRY_CAST(v AS BIGINT) IS NULL AND v IS NOT NULL, 'HUGEINT', NULL)"
            texts = f"json_extract_string(line, {_pointers(whole)})"
            note(f"list_transform({texts}, {fits})", whole, found)
            for name in source.lists.intersection(names):
                values = f"json_type(json_extract(line, {_pointers([name])}[1]), '$[*]')"
                note(f"[unnest({values})]", [name], elements)
            bar.update(max(source.read - bar.n, 0))
    columns = {name: _sql_type(kinds, name in source.texts) for name, kinds in found.items()}
    for name in source.lists & columns.keys():
        if found[name] <= {"ARRAY", "NULL", None}:
            one = _sql_type(elements[name], name in source.texts)
            columns[name] = f"{one}[]" if f"{one}[]" in _OF_JSON else "JSON"
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
    return ("not JSON", None) if isinstance(value, dict) else ("not a JSON object", value)


def _read_csv(source: _Source, problem: Problem) -> Iterator[pa.Table]:
    # DuckDB (`store_rejects`) and Arrow are faster, but a quote that is never closed takes the
    # next row with it. Here that record is an error, and reading goes on at the next line.
    csv.field_size_limit(_LARGEST_LINE)
    delimiter = "\t" if source.path.suffix == ".tsv" else ","
    # Lines of the record that is read, and lines of a broken one to read once more.
    given: list[str] = []
    again: deque[str] = deque()

    def lines() -> Iterator[str]:
        while line := again.popleft() if again else file.readline():
            given.append(line)
            yield line

    def chunk() -> pa.Table:
        source.read = file.buffer.tell()
        columns = [
            pa.array([value or None for value in values], pa.large_string())
            for values in zip(*records, strict=True)
        ]
        return _without(pa.table(columns, names), ROW).append_column(ROW, pa.array(rows))

    with source.open("") as file:
        reader = csv.reader(lines(), strict=True, delimiter=delimiter)
        try:
            names = next((values for values in reader if values), [])
            "".join(names).encode()
        except (csv.Error, UnicodeError) as error:
            raise DataError(
                f"{source.path}: the headings cannot be read ({error}): name the file's encoding "
                "under encoding:, or save it as CSV in UTF-8"
            ) from error
        _check_names(names, source.path)
        records: list[list[str]] = []
        rows: list[int] = []
        size = number = 0
        while True:
            given.clear()
            try:
                values = next(reader, None)
            except csv.Error as error:
                number += 1
                problem(number, "(row)", "not CSV", str(error))
                again.extendleft(reversed(given[1:]))
                reader = csv.reader(lines(), strict=True, delimiter=delimiter)
                continue
            if values is None:
                break
            if not values:
                continue
            number += 1
            whole = "".join(values)
            if len(values) != len(names):
                count = f"{len(values)} fields under {len(names)} headings"
                problem(number, "(row)", "more or fewer fields than headings", count)
            elif source.is_valid(whole, number, "(row)", problem):
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


def _read_parquet(source: _Source, problem: Problem) -> Iterator[pa.Table]:
    path, size = source.path, source.path.stat().st_size
    # A few kilobytes can hold gigabytes: one long text in a dictionary, named by every row.
    most = max(512 << 20, 200 * size)
    schema = pq.read_schema(path)
    _check_names(schema.names, path)
    texts = [one.name for one in schema if _is_text(one.type)]
    # With a buffer and without pre-buffering, pages are read as they are needed: a row group may
    # be larger than the memory.
    file = pq.ParquetFile(path, read_dictionary=texts, buffer_size=1 << 20, pre_buffer=False)
    done = decoded = 0
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        at_once = _rows_at_once(group.num_rows, group.total_byte_size)
        for batch in file.iter_batches(at_once, row_groups=[number]):
            sizes = row_sizes(batch)
            decoded += int(sizes.sum())
            if decoded > most:
                raise DataError(
                    f"{path} ({size:,} bytes) decodes to more than {most:,} bytes: export it as "
                    "JSONL"
                )
            for start, end in itertools.pairwise([0, *cut_rows(sizes, CHUNK_ROWS, CHUNK_BYTES)]):
                part = batch.slice(start, end - start)
                columns = [_decoded(column) for column in part.columns]
                chunk = _numbered(pa.table(columns, batch.schema.names), done)
                done += part.num_rows
                source.read = size * done // file.metadata.num_rows
                yield _with_valid_text(chunk, problem)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _decoded(column: Any) -> Any:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _with_valid_text(chunk: pa.Table, problem: Problem) -> pa.Table:
    try:
        chunk.validate(full=True)
        return chunk
    except pa.ArrowInvalid:
        pass
    # Some text is not UTF-8: find the rows.
    keep = []
    for position, row in enumerate(chunk[ROW].to_pylist()):
        try:
            chunk.slice(position, 1).to_pylist()
            keep.append(position)
        except UnicodeDecodeError as error:
            problem(row, "(row)", "bytes that are not UTF-8", f"at byte {error.start}")
    return chunk.take(pa.array(keep, pa.int64()))


def _read_folder(source: _Source, _: Problem) -> Iterator[pa.Table]:
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
        yield _numbered(loaded[start : start + at_once], start)


def _read_hub(name: str) -> Iterator[pa.Table]:
    done = 0
    for batch in open_stream(name):
        yield _numbered(pa.Table.from_batches([batch]), done)
        done += batch.num_rows


_READERS: dict[str, Callable[[_Source, Problem], Iterator[pa.Table]]] = {
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


def _read_chunks(source: _Source, problem: Problem) -> Iterator[pa.Table]:
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
        yield from (_read_folder if path.is_dir() else _READERS[path.suffix])(source, problem)
    except UnicodeError as error:
        raise DataError(
            f"{path} holds bytes that are not {source.encoding.upper()} ({error}): name its "
            "encoding under encoding:"
        ) from error
    except (pa.ArrowException, duckdb.Error, OSError) as error:
        raise DataError(
            f"{path} cannot be read ({_first_line(error)}): check your access, or make it again"
        ) from error
    if _state(path) != before:
        raise DataError(f"{path} changed while it was read: run again when it is written")


# Values by their schema ----------------------------------------------------------------------

_NOT_A = {
    "text": "not text",
    "integer": "not a whole number",
    "number": "not a number",
    "time": "not a time (Unix seconds or ISO 8601)",
}


def _parse(value: Any, kind: Kind) -> str | int | float:
    """One value as a column of that kind holds it.

    Raises:
        ValueError, TypeError or OverflowError: it is none of that kind.
    """
    if kind == "text" and isinstance(value, str):
        return value
    if isinstance(value, bool):
        raise TypeError("true or false")
    if kind == "text":
        if isinstance(value, int):
            return str(value)
        raise TypeError("neither text nor a whole number")
    if kind == "number":
        if not math.isfinite(number := float(value)):
            raise ValueError("not finite")
        return number
    if kind == "time":
        if isinstance(value, str):
            # Eight digits are a day, 20170714, and not seconds in 1970.
            is_day = len(value) == 8 and value.isdigit()
            try:
                value = datetime.fromisoformat(value) if is_day else float(value)
            except ValueError:
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        whole = int(value)
    else:
        if isinstance(value, str):
            value = float(value) if any(c in value for c in ".eE") else int(value)
        whole = int(value)
        # A fraction that large may have been any of several whole numbers.
        if whole != value or (isinstance(value, float) and abs(value) >= 1 << 63):
            raise ValueError("a fraction")
    if not -(1 << 63) <= whole < 1 << 63:
        raise ValueError("too large for 64 bits")
    return whole


def _convert(values: pa.ChunkedArray, kind: Kind) -> tuple[pa.ChunkedArray, list[int], str]:
    """Bring a column to its type.

    Returns:
        The column, positions of values that cannot be of this type, and why.
    """
    target, given = ARROW_TYPES[kind], values.type
    whole = pa.types.is_integer(given) and not pa.types.is_uint64(given)
    if kind == "number" and (whole or pa.types.is_floating(given)):
        numbers = values.cast(target, safe=False)
        wrong = pc.indices_nonzero(pc.invert(pc.is_finite(numbers))).to_pylist()
        return numbers, wrong, "not a finite number"
    if whole or pa.types.is_null(given) or (kind == "text" and _is_text(given)):
        return values.cast(target), [], ""
    if kind == "time" and (pa.types.is_timestamp(given) or pa.types.is_date(given)):
        return values.cast(pa.timestamp("s"), safe=False).cast(target), [], ""
    converted: list[Any] = []
    wrong = []
    for position, value in enumerate(_python_values(values)):
        try:
            converted.append(None if value is None else _parse(value, kind))
        except (ValueError, TypeError, OverflowError):
            wrong.append(position)
            converted.append(None)
    return pa.chunked_array([pa.array(converted, target)]), wrong, _NOT_A[kind]


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    """A column's values; those of JSON are parsed."""
    if column.type != _JSON:
        return cast("list[Any]", column.to_pylist())
    values: list[Any] = []
    for chunk in column.chunks:
        for text in chunk.storage.to_pylist():
            try:
                values.append(None if text is None else json.loads(text))
            except (ValueError, RecursionError):
                # Too deep or too many digits for Python; a list is no value of any schema.
                values.append([])
    return values


def _years_out_of_range(column: pa.ChunkedArray) -> list[int]:
    """Positions of dates and times that neither Python nor JSON can hold."""
    if not (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)):
        return []
    seconds = column.cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    low, high = -62_135_596_800, 253_402_300_799  # the years 1 to 9999
    outside = pc.or_(pc.less(seconds, low), pc.greater(seconds, high))
    return cast("list[int]", pc.indices_nonzero(outside).to_pylist())


class ReadOptions(TypedDict, total=False):
    """How to read a source, beside its schema; all may be left out.

    Attributes:
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
    """

    columns: Mapping[str, str] | None
    rejected_rows: RejectedRows | None
    where: str | None
    explode: Sequence[str]
    encoding: str
    numbered: bool


class _Reader:
    """Reads one source, fits its rows to a schema and counts them.

    Attributes:
        found: rows of the source.
        left_out: rows that `where` is not true of.
        selected: the others.
        kept: rows that fit the schema.
    """

    def __init__(
        self,
        source: str | Path,
        schema: Schema,
        columns: Mapping[str, str] | None = None,
        rejected_rows: RejectedRows | None = None,
        where: str | None = None,
        explode: Sequence[str] = (),
        encoding: str = "utf-8",
        numbered: bool = False,
    ) -> None:
        self.source, self.numbered = str(source), numbered
        self.found = self.left_out = self.selected = self.kept = 0
        self._schema = schema
        self._is_raw = columns is not None
        self._columns = dict(columns or {})
        self._rejected_rows = rejected_rows
        self._where = where
        self._explode = explode
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
        texts = {self._columns.get(c.name, c.name) for c in schema.columns if c.kind == "text"}
        self.file = _Source(Path(source), encoding, frozenset(texts), frozenset(explode))

    def problem(self, row: int, column: str, reason: str, value: Any = None) -> None:
        """Note a broken row, or raise."""
        if self._rejected_rows is None:
            shown = "" if value is None else f" ({value!r:.80})"
            raise DataError(
                f"{self.source}: row {row}, column {column}: {reason}{shown}: mend or remove the "
                "row"
            )
        self._rejected_rows.add(self.source, row, column, reason, value)

    def stream(self) -> Iterator[pa.Table]:
        """Read the source chunk by chunk, fitted to the schema, with row numbers in `ROW`."""
        with closing(_connect()) as connection:
            for chunk in _read_chunks(self.file, self.problem):
                if not self.found:
                    self._check_names(chunk)
                self.found += chunk.num_rows
                pieces = self._exploded(chunk, connection) if self._explode else [chunk]
                for piece in pieces:
                    fitted = self._fitted(piece, connection)
                    self.kept += fitted.num_rows
                    if fitted.num_rows:
                        yield fitted

    def refuse_nothing(self) -> None:
        """Raise where no row is left, for the reason why."""
        if self.kept:
            return
        rejected_rows = self._rejected_rows or RejectedRows()
        rejected = rejected_rows.total - self._rejected_before
        if not self.found and not rejected:
            raise DataError(f"{self.source} holds no rows: make it again")
        if self.left_out and not self.selected:
            raise DataError(
                f"{self.source}: where: {self._where!r} is true of none of {self.left_out} rows: "
                "widen it"
            )
        if rejected_rows.empty_lists and not rejected:
            raise DataError(
                f"{self.source}: the lists under explode: are empty in all {self.found} rows: "
                "name others"
            )
        reasons = "; ".join(f"{why} ({n})" for why, n in rejected_rows.counts().items())
        raise DataError(f"{self.source}: no usable row is left, all were rejected: {reasons}")

    def _check_names(self, table: pa.Table) -> None:
        for name in self._explode:
            if name not in table.column_names:
                raise DataError(
                    f"{self.source}: no column '{name}' (under explode:): "
                    f"{nearest(name, table.column_names)}"
                )

    def _fitted(self, chunk: pa.Table, connection: duckdb.DuckDBPyConnection) -> pa.Table:
        """Select rows, map columns, and check and convert values."""
        chunk, computed = self._computed(chunk, connection)
        self.selected += chunk.num_rows
        rows = chunk[ROW].to_pylist()
        broken: set[int] = set()

        def flag(column: str, positions: Any, reason: str, values: Any = None) -> None:
            for position in positions:
                if position not in broken:
                    value = values and _python_values(values.slice(position, 1))[0]
                    self.problem(rows[position], column, reason, value)
                broken.add(position)

        given, columns = _without(chunk, ROW), {}
        for name, origin in self._columns.items():
            if origin in given.column_names:
                columns[name] = given[origin]
            else:
                columns[name], failed = computed[name]
                flag(name, _true(failed), f"cannot be computed: {origin}")
        renamed = set(self._columns.values())
        for name in given.column_names:
            if name not in renamed and name not in columns:
                columns[name] = given[name]
        for name, values in columns.items():
            columns[name] = _decoded(values)
            flag(name, _years_out_of_range(columns[name]), "a time outside the years 1 to 9999")
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
                columns[name] = pa.chunked_array([pa.nulls(len(rows))])
            values, wrong, reason = _convert(columns[name], column.kind)
            fitted[name] = values
            flag(name, wrong, reason, columns[name])
            if column.required:
                flag(name, _true(pc.is_null(values)), "null")
            if column.kind == "time":
                flag(name, _true(pc.greater(values, latest)), "in the future", values)
            if column.choices:
                allowed = pa.array([*column.choices, None], pa.large_string())
                wrong = _true(pc.invert(pc.is_in(values, value_set=allowed)))
                flag(name, wrong, f"not one of {', '.join(column.choices)}", values)
        for name, values in columns.items():
            if name not in fitted:
                fitted[name] = _plain_values(values, connection)
        table = pa.table(fitted | {ROW: chunk[ROW]})
        if broken:
            table = table.take(pa.array(np.setdiff1d(np.arange(len(rows)), list(broken))))
        return table

    def _computed(
        self, chunk: pa.Table, connection: duckdb.DuckDBPyConnection
    ) -> tuple[pa.Table, dict[str, tuple[pa.ChunkedArray, pa.ChunkedArray]]]:
        """The rows that `where` is true of; of each expression its values and where it failed."""
        names = _without(chunk, ROW).column_names
        origins = {n: origin for n, origin in self._columns.items() if origin not in names}
        if self._where is None and not origins:
            return chunk, {}
        if not self.selected:
            for name, origin in origins.items():
                self._check_expression(name, origin, chunk, connection)
        # An expression is null where it fails and {v: null} where it is null.
        computed = [f", {_guarded(origin)} AS e{k}" for k, origin in enumerate(origins.values())]
        selected = [f", e{k}.v AS v{k}, e{k} IS NULL AS f{k}" for k in range(len(origins))]
        condition = "true" if self._where is None else self._where
        query = (
            f'SELECT "{_POSITION}"{"".join(selected)} FROM (SELECT "{_POSITION}"'  # noqa: S608
            f"{''.join(computed)} FROM raw WHERE ({condition}\n))"
        )
        positions = pa.array(np.arange(chunk.num_rows))
        try:
            found = _query(connection, query, chunk.append_column(_POSITION, positions))
        except duckdb.Error as error:
            hint = ""
            if Path(self.source).suffix in (".csv", ".tsv"):
                hint = "; CSV holds text only: write TRY_CAST(score AS INT) for score"
            raise DataError(
                f"{self.source}: where: {condition!r} cannot be evaluated: {error}{hint}"
            ) from error
        left_out = chunk.num_rows - found.num_rows
        self.left_out += left_out
        if self._rejected_rows is not None:
            self._rejected_rows.not_selected += left_out
        if left_out:
            chunk = chunk.take(found[_POSITION])
        return chunk, {name: (found[f"v{k}"], found[f"f{k}"]) for k, name in enumerate(origins)}

    def _check_expression(
        self, name: str, origin: str, table: pa.Table, connection: duckdb.DuckDBPyConnection
    ) -> None:
        try:
            query = f"SELECT {_guarded(origin)} FROM raw"  # noqa: S608
            _query(connection, query, table.slice(0, 0))
        except duckdb.Error as error:
            raise DataError(
                f"{self.source}: no column '{origin}' (mapped to {name}), nor is it SQL "
                f"({_first_line(error)}): {nearest(origin, table.column_names)}"
            ) from error

    def _exploded(
        self, chunk: pa.Table, connection: duckdb.DuckDBPyConnection
    ) -> Iterator[pa.Table]:
        """One row for each element of the named lists, which belong together by position."""
        names = list(self._explode)
        lists = chunk.select(names).rename_columns([f"l{k}" for k in range(len(names))])
        columns = [_as_list(f"l{k}", lists.column(k).type) for k in range(len(names))]
        counted = ", ".join(f"coalesce(len({c}), -1) AS n{k}" for k, c in enumerate(columns))
        counts = _query(connection, f"SELECT {counted} FROM raw", lists)  # noqa: S608
        lengths = np.stack([column.to_numpy() for column in counts.columns])
        rows = chunk[ROW].to_numpy()
        for row in np.flatnonzero((lengths != lengths[0]).any(axis=0) | (lengths[0] < 0)).tolist():
            found = dict(zip(names, lengths[:, row].tolist(), strict=True))
            no_list = next((name for name, length in found.items() if length < 0), None)
            if no_list is not None:
                value = _python_values(chunk[no_list].slice(row, 1))[0]
                self.problem(int(rows[row]), no_list, "not a list", value)
            else:
                self.problem(int(rows[row]), names[0], "lists of unequal length", found)
            lengths[0, row] = -1
        if self._rejected_rows is not None:
            self._rejected_rows.empty_lists += int((lengths[0] == 0).sum())
        used = np.flatnonzero(lengths[0] > 0)
        unnested = ", ".join(f"unnest({column}) AS l{k}" for k, column in enumerate(columns))
        query = f"SELECT {unnested} FROM raw"  # noqa: S608
        elements = _query(connection, query, lists.take(pa.array(used))).rename_columns(names)
        parents = np.repeat(used, lengths[0, used])
        # A post stands beside each of its stories: what was bounded before is so no longer.
        beside = _without(chunk, *names)
        ends = cut_rows(row_sizes(beside)[parents], CHUNK_ROWS, CHUNK_BYTES)
        for start, end in itertools.pairwise([0, *ends]):
            piece = beside.take(pa.array(parents[start:end]))
            for name in names:
                piece = piece.append_column(name, elements[name].slice(start, end - start))
            yield piece.select(chunk.column_names)


def _true(mask: Any) -> list[int]:
    """Positions where a mask is true and not null."""
    return cast("list[int]", pc.indices_nonzero(mask).to_pylist())


def _guarded(expression: str) -> str:
    return f"TRY(struct_pack(v := ({expression}\n)))"


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


def _plain_values(
    values: pa.ChunkedArray, connection: duckdb.DuckDBPyConnection
) -> pa.ChunkedArray:
    """An extra column: lists and objects as the text of their JSON, other values as they are."""
    if values.type == _JSON or pa.types.is_nested(values.type):
        # A text among other values stands without quotes.
        value = "c->>'$'" if values.type == _JSON else "to_json(c)::VARCHAR"
        query = f"SELECT {value} AS c FROM raw"  # noqa: S608
        values = _query(connection, query, pa.table({"c": values}))["c"]
    return values.cast(pa.large_string()) if _is_text(values.type) else values


# Whole tables and streams --------------------------------------------------------------------


class LargeTable:
    """A table fitted to its schema, without repeated keys; made by `read_large_table`.

    Attributes:
        schema: columns and types of every chunk: the declared ones first, then the extra ones.
        num_rows: how many rows it has.
    """

    schema: pa.Schema
    num_rows: int

    def __init__(self, readers: Sequence[_Reader], declared: Schema, folder: Path | None) -> None:
        self._declared = declared
        # Chunks in memory, or the files that hold them; each ends before this row of the table.
        self._held: list[pa.Table | Path] = []
        self._ends = [0]
        self._dropped = np.zeros(0, dtype=np.int64)
        schemas: dict[pa.Schema, None] = {}
        database = ":memory:" if folder is None else str(folder / "keys.duckdb")
        limit = "80%" if folder is None else "1GB"
        with closing(duckdb.connect(database, config={"memory_limit": limit})) as keys:
            for number, reader in enumerate(readers):
                for chunk in _with_bar(reader):
                    schemas[chunk.schema] = None
                    self._add(chunk, number, folder, keys)
            if not any(reader.kept for reader in readers):
                readers[0].refuse_nothing()
            names = dict.fromkeys(name for schema in schemas for name in schema.names)
            if not readers[0].numbered:
                del names[ROW]
            self.schema = pa.schema([(name, _common_type(schemas, name)) for name in names])
            if declared.key:
                self._drop_repeated(readers, keys)
        self.num_rows = self._ends[-1] - len(self._dropped)

    def chunks(self) -> Iterator[pa.Table]:
        """Read the rows, in the order of the sources; may be called again."""
        for number, (start, end) in enumerate(itertools.pairwise(self._ends)):
            table = self._load(number).select(self.schema.names)
            low, high = np.searchsorted(self._dropped, [start, end])
            if high > low:
                kept = np.delete(np.arange(end - start), self._dropped[low:high] - start)
                table = table.take(pa.array(kept))
            yield table

    def _load(self, number: int) -> pa.Table:
        held = self._held[number]
        table = held if isinstance(held, pa.Table) else pa.ipc.open_file(str(held)).read_all()
        columns = [
            table[one.name].cast(one.type, safe=False)
            if one.name in table.column_names
            else pa.nulls(table.num_rows, one.type)
            for one in self.schema
        ]
        return pa.table(columns, self.schema)

    def _add(
        self, table: pa.Table, source: int, folder: Path | None, keys: duckdb.DuckDBPyConnection
    ) -> None:
        """Hold one chunk of the source with this number, and note its keys."""
        if folder is None:
            self._held.append(table)
        else:
            path = folder / f"{len(self._held)}.arrow"
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            with pa.ipc.new_file(str(path), table.schema, options=options) as writer:
                writer.write_table(table)
            self._held.append(path)
        start, end = self._ends[-1], self._ends[-1] + table.num_rows
        self._ends.append(end)
        if self._declared.key:
            latest = self._declared.latest
            noted = {
                "place": np.arange(start, end),
                "source": np.full(table.num_rows, source),
                "row": table[ROW],
                "latest": table[latest] if latest else pa.nulls(table.num_rows, pa.int64()),
                **{f"key{k}": table[name] for k, name in enumerate(self._declared.key)},
            }
            _insert(keys, "keys", pa.table(noted))

    def _drop_repeated(self, readers: Sequence[_Reader], keys: duckdb.DuckDBPyConnection) -> None:
        """Of rows with one key keep one, the latest or else the smallest by content."""
        names = ", ".join(f"key{k}" for k in range(len(self._declared.key)))
        keys.execute(
            f"CREATE TABLE repeated AS SELECT * FROM keys "  # noqa: S608
            f"QUALIFY count(*) OVER (PARTITION BY {names}) > 1"
        )
        found = keys.sql("SELECT place FROM repeated ORDER BY place").to_arrow_table()
        places = found["place"].to_numpy()
        for number, (start, end) in enumerate(itertools.pairwise(self._ends)):
            low, high = np.searchsorted(places, [start, end])
            if high > low:
                rows = self._load(number).take(pa.array(places[low:high] - start)).to_pylist()
                contents = [digest(*(i for i in row.items() if i[0] != ROW)) for row in rows]
                _insert(keys, "contents", pa.table({"place": places[low:high], "c": contents}))
        if not len(places):
            return
        dropped = keys.sql(
            "SELECT place, source, row, key0, c = kept AS same FROM ("  # noqa: S608
            "  SELECT *, first_value(c) OVER each AS kept, row_number() OVER each AS nth"
            f"  FROM repeated JOIN contents USING (place) WINDOW each AS (PARTITION BY {names}"
            "  ORDER BY latest DESC NULLS LAST, c, place)) WHERE nth > 1 ORDER BY place"
        ).to_arrow_reader(CHUNK_ROWS)
        gone = []
        for batch in dropped:
            for row in batch.to_pylist():
                reason = "repeated row" if row["same"] else "duplicate id"
                problem = readers[row["source"]].problem
                problem(row["row"], self._declared.key[0], reason, row["key0"])
            gone.append(batch.column("place").to_numpy())
        self._dropped = np.concatenate(gone)


def _insert(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    connection.register("chunk", rows)
    connection.execute(f"CREATE TABLE IF NOT EXISTS {name} AS SELECT * FROM chunk LIMIT 0")  # noqa: S608
    connection.execute(f"INSERT INTO {name} SELECT * FROM chunk")  # noqa: S608
    connection.unregister("chunk")


def _common_type(schemas: Iterable[pa.Schema], name: str) -> pa.DataType:
    """The type that holds all values of a column; text where no other does."""
    kinds = [pa.schema([s.field(name)]) for s in schemas if name in s.names]
    try:
        return pa.unify_schemas(kinds, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.large_string()


def _with_bar(reader: _Reader) -> Iterator[pa.Table]:
    """The chunks of a source, with a progress bar over its bytes, or else its rows."""
    path = reader.file.path
    size = path.stat().st_size if path.is_file() else None
    unit = " rows" if size is None else "B"
    with tqdm(
        total=size, desc="reading", unit=unit, unit_scale=True, leave=False, disable=None
    ) as bar:
        for chunk in reader.stream():
            yield chunk
            bar.update(chunk.num_rows if size is None else reader.file.read - bar.n)


def read_table(source: str | Path, schema: Schema, **options: Unpack[ReadOptions]) -> pa.Table:
    """Read a table from a file, a `datasets` folder or a data set's name on the Hub.

    Args:
        source: Parquet, JSONL, a JSON array of objects, CSV, TSV, a folder saved by `datasets`, or
            `owner/name[@revision][:split]`.
        schema: the columns to read, such as STORIES or PAIRS.
        options: see `ReadOptions`.

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
    table = LargeTable([_Reader(source, schema, **options)], schema, None)
    return pa.concat_tables(table.chunks())


def stream_table(
    source: str | Path, schema: Schema, **options: Unpack[ReadOptions]
) -> Iterator[pa.Table]:
    """Read a table of any size chunk by chunk, in the order of the source.

    Arguments and errors as in `read_table`. Rows of one key are not looked for.

    Yields:
        Tables of at least one row; at most some thousand rows and some hundred megabytes.
    """
    reader = _Reader(source, schema, **options)
    for chunk in reader.stream():
        yield chunk if reader.numbered else _without(chunk, ROW)
    reader.refuse_nothing()


def read_large_table(
    sources: Sequence[str | Path], schema: Schema, folder: Path, **options: Unpack[ReadOptions]
) -> LargeTable:
    """Read sources of any size as one table: as `read_table`, by way of the disk.

    Other arguments as there; keys are compared across all sources. `folder` is empty and has room
    for all rows (compressed); the caller removes it.

    Raises:
        DataError: see `read_table`; also when the disk is full.
        MissingExtraError: see `read_table`.
    """
    readers = [_Reader(source, schema, **options) for source in sources]
    try:
        return LargeTable(readers, schema, folder)
    except (OSError, duckdb.Error) as error:
        raise DataError(
            f"cannot keep rows in {folder} ({error}): free space or choose another folder"
        ) from error


# Writing and checking ------------------------------------------------------------------------


def check_parquet(path: Path, schema: Schema) -> None:
    """Check a Parquet file's columns and nulls against a schema.

    Raises:
        DataError: no such file, not Parquet, no rows, a column missing, of another type, or null
            where it must not be.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}: check the path, or run the step that writes it")
    try:
        # Imports pandas, which takes longer than the rest of this module.
        import pyarrow.dataset as pa_dataset  # noqa: PLC0415

        given = pa_dataset.dataset(path, format="parquet")
        if given.count_rows() == 0:
            raise DataError(f"{path} holds no rows: make it again")
        for column in schema.columns:
            name = column.name
            if name not in given.schema.names:
                raise DataError(
                    f"{path}: column '{name}' is missing ({column.about}): make the file with the "
                    f"program that writes {schema.name}"
                )
            found, wanted = given.schema.field(name).type, ARROW_TYPES[column.kind]
            if not (_is_text(found) if column.kind == "text" else found == wanted):
                raise DataError(
                    f"{path}: column '{name}' holds {found}, not {wanted}: make it again"
                )
            # Where the file says how many nulls it has, its rows are not read.
            nulls = given.count_rows(filter=pc.field(name).is_null()) if column.required else 0
            if nulls:
                raise DataError(f"{path}: column '{name}' has {nulls} nulls: make it again")
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a Parquet file ({error}): make it again") from error


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table as Parquet, JSONL or CSV by the path's ending, or else as a `datasets` folder.

    The same table gives the same bytes, whatever its chunks. CSV has no types: there an empty
    text is read back as null and an extra column as text.

    Raises:
        DataError: a column holds what the format cannot, such as lists in CSV.
        MissingExtraError: a folder was asked for and `datasets` is not installed.
    """
    if path.suffix == ".parquet":
        _write_row_groups([table], table.schema, path)
    elif path.suffix in (".jsonl", ".ndjson"):
        with path.open("w", encoding="utf-8") as file:
            for row in iterate_rows(table):
                file.write(json.dumps(row, ensure_ascii=False, default=_plain) + "\n")
    elif path.suffix == ".csv":
        try:
            pa_csv.write_csv(table, path)
        except pa.ArrowInvalid as error:
            raise DataError(f"{path}: CSV cannot hold a column ({error}): use Parquet") from error
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


def row_sizes(table: pa.Table | pa.RecordBatch) -> np.ndarray:
    """Bytes of every row's texts, lists and objects; int64, shape (rows,)."""
    sizes = np.zeros(table.num_rows, dtype=np.int64)
    for column in table.columns:
        if pa.types.is_dictionary(column.type) and _is_text(column.type):
            lengths = pc.binary_length(column.dictionary).take(column.indices)
            sizes += pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
        elif _is_text(column.type):
            lengths = pc.fill_null(pc.binary_length(column), 0)
            sizes += np.asarray(lengths, dtype=np.int64)
        elif pa.types.is_nested(column.type) or column.type == _JSON:
            sizes += [column.slice(row, 1).nbytes for row in range(len(column))]
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

    The same rows give the same bytes whatever the batches, and no more than one row group is held
    in memory.
    """
    names = [column.name for column in schema.columns]
    extra = [one.with_metadata(None) for one in batches.schema if one.name not in names]
    target = pa.schema([*schema.arrow(), *extra])
    tables = (pa.Table.from_batches([one]).select(target.names).cast(target) for one in batches)
    return _write_row_groups(tables, target, path)


def _write_row_groups(tables: Iterable[pa.Table], schema: pa.Schema, path: Path) -> int:
    """Write tables as Parquet in row groups by rows and bytes; return the rows written."""
    rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        waiting = schema.empty_table()
        sizes = np.zeros(0, dtype=np.int64)
        for table in itertools.chain(tables, [None]):
            if table is not None:
                waiting = pa.concat_tables([waiting, table])
                sizes = np.concatenate([sizes, row_sizes(table)])
                if len(sizes) < _ROW_GROUP and sizes.sum() < _ROW_GROUP_BYTES:
                    continue
            ends = cut_rows(sizes, _ROW_GROUP, _ROW_GROUP_BYTES)
            if table is not None:
                # The last group may still grow.
                ends.pop()
            for start, end in itertools.pairwise([0, *ends]):
                # Arrow ends a page where a chunk ends, so chunks would show in the bytes.
                writer.write_table(waiting.slice(start, end - start).combine_chunks())
            written = ends[-1] if ends else 0
            waiting, sizes = waiting.slice(written), sizes[written:]
            rows += written
    return rows
