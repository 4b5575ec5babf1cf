"""Chunks of foreign files (see `litbench.data.formats`), `datasets` folders and the Hub.

`read_chunks` yields the rows of a source in chunks of bounded size; `litbench.data.casts` casts
their columns to a schema.
"""

import csv
import functools
import io
import itertools
import json
import math
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pydantic_core import from_json, to_json

from litbench.data.formats import Form, json_rows, open_text, sniff
from litbench.data.records import is_text
from litbench.data.text import valid_unicode
from litbench.runs.errors import DataError
from litbench.runs.hub import is_name, open_stream
from litbench.runs.progress import ProgressBar

# Column with the number of each row in the source, counted from 1.
ROW = "(row)"
# Column with the JSON of each row, for schemas that declare it; null if the source is not JSON.
LINE = "(line)"
CHUNK_ROWS = 8_192
CHUNK_BYTES = 64 << 20
# Type of columns whose values are objects, lists, or of several types.
JSON = pa.json_(pa.large_string())

_MAX_COLUMNS = 1_000
# Columns that are not read: those that are added, and pandas' index.
_INDEX = re.compile(r"\(row\)|\(line\)|__index_level_\d+__")
# Characters of CSV that are read at a time.
_BLOCK = 4 << 20
# Largest column of a Parquet row group that is read as a dictionary.
_LARGEST_CODED = 16 << 20

# Called for each broken row with its number, the column, the reason and the value.
Problem = Callable[..., None]


def as_json(values: Iterable[Any]) -> pa.ChunkedArray:
    """Return a column of any values as JSON."""
    texts = (
        None
        if value is None
        else to_json(value, bytes_mode="base64", inf_nan_mode="constants", fallback=str).decode()
        for value in values
    )
    return pa.chunked_array([pa.array(texts, pa.large_string())]).cast(JSON)


def _check_columns(names: Collection[str]) -> None:
    if len(names) > _MAX_COLUMNS:
        raise ValueError(
            f"has more than {_MAX_COLUMNS:,} columns: put keys that differ by row into one object"
        )


def _bar(total: int | None, unit: str) -> Any:
    return ProgressBar(total=total, desc="reading", unit=unit, unit_scale=True, leave=False)


# JSON -------------------------------------------------------------------------------------------

_SCALARS = {str: pa.large_string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def _read_json(path: Path, form: Form, problem: Problem, *, with_lines: bool) -> Iterator[pa.Table]:
    """Yield the rows of JSONL, or of a JSON document, with `LINE` if `with_lines`.

    All are parsed before the first chunk, for the names and types of the columns. A column
    therefore has the same type in all chunks, even if some rows do not have it. Large files are not
    held in memory but parsed again.
    """
    kinds: dict[str, set[pa.DataType]] = {}
    tables, size = [], 0
    parse = functools.partial(_json_tables, path, form, kinds, with_lines=with_lines)
    for table in parse(problem):
        tables.append(table)
        size += table.nbytes
        if size > 2 * CHUNK_BYTES:
            tables.clear()
    types = {name: _common_type(types) for name, types in kinds.items()}
    is_held = size <= 2 * CHUNK_BYTES
    for table in tables if is_held else parse(lambda *_: None):
        columns = {
            name: _as_type(table[name], kind)
            if name in table.column_names
            else pa.nulls(table.num_rows, kind)
            for name, kind in types.items()
        }
        yield pa.table({**columns, **{n: table[n] for n in (LINE, ROW) if n in table.column_names}})


def _json_tables(
    path: Path,
    form: Form,
    kinds: dict[str, set[pa.DataType]],
    problem: Problem,
    *,
    with_lines: bool,
) -> Iterator[pa.Table]:
    """Yield the rows with `ROW`, and collect the types of each column's values."""
    number = 0
    for texts in _json_texts(path, form):
        rows, lines, numbers = [], [], []
        for text in texts:
            number += 1
            try:
                row, line = _parse(text)
                reason = "" if isinstance(row, dict) else "not a JSON object"
            except TypeError:
                # pydantic refuses surrogates, which stand for invalid bytes.
                reason = f"bytes that are not {form.encoding.upper()}"
            except (ValueError, RecursionError):
                reason = "not JSON"
            if not reason:
                rows.append(row)
                lines.append(line)
                numbers.append(number)
            elif text.strip():
                # Without the line, which may contain an account name.
                problem(number, "(line)", reason)
        columns = {}
        for name in dict.fromkeys(itertools.chain(*rows)):
            if name not in (LINE, ROW):
                columns[name], types = _column([row.get(name) for row in rows])
                kinds.setdefault(name, set()).update(types)
        _check_columns(kinds)
        if with_lines:
            columns[LINE] = pa.array(lines, pa.large_string())
        if rows:
            yield pa.table({**columns, ROW: numbers})


def _json_texts(path: Path, form: Form) -> Iterator[Sequence[str]]:
    """Yield the lines of JSONL, or the rows of a JSON document, some at a time."""
    # More objects of Python do not fit into a processor's cache.
    size, most = _bar(path.stat().st_size, "B"), min(1 << 20, CHUNK_BYTES)
    with open_text(path, form, "\n") as (file, position), size as bar:
        rows = json_rows(file.read()) if form.kind == "document" else iter(())
        while texts := [*itertools.islice(rows, CHUNK_ROWS)] or file.readlines(most):
            yield texts
            bar.update(position() - bar.n)


def _parse(text: str) -> tuple[Any, str]:
    """Parse JSON; also return it with U+FFFD for half characters, as truncated texts have them."""
    try:
        return from_json(text), text
    except ValueError:
        # Python reads half characters, and nests deeper.
        text = json.dumps(json.loads(text), ensure_ascii=False)
        return json.loads(valid_unicode(text)), valid_unicode(text)


def _column(values: list[Any]) -> tuple[pa.Array | pa.ChunkedArray, set[pa.DataType]]:
    """Return the values of a column, as JSON if their types differ, and their types."""
    kinds = {type(value) for value in values} - {type(None)}
    types = {_SCALARS.get(kind, JSON) for kind in kinds}
    try:
        if len(types) < 2 and JSON not in types:
            return pa.array(values, *types), types
        pa.array([value for value in values if type(value) is int], pa.int64())
    except OverflowError:
        types.add(JSON)
    return as_json(values), types


def _common_type(types: set[pa.DataType]) -> pa.DataType:
    if types == {pa.int64(), pa.float64()}:
        return pa.float64()
    return JSON if len(types) > 1 else next(iter(types), pa.large_string())


def _as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == JSON != kind:
        column = column.cast(pa.large_string())
    if kind == JSON != column.type:
        return as_json(column.to_pylist())
    return column.cast(kind, safe=False)


# CSV --------------------------------------------------------------------------------------------


def _read_csv(path: Path, form: Form, problem: Problem) -> Iterator[pa.Table]:
    size = _bar(path.stat().st_size, "B")
    with open_text(path, form) as (file, position), size as bar:
        for _ in range(form.skip):
            file.readline()
        names = next((values for values in _parser(file, form) if values), [])
        "".join(names).encode()
        for columns, numbers in _records(file, form, names, problem) if names else ():
            yield _numbered(pa.table(list(columns), names), numbers)
            bar.update(position() - bar.n)


def _parser(lines: Iterable[str], form: Form) -> Iterator[list[str]]:
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if form.is_quoted else csv.QUOTE_NONE
    return csv.reader(lines, strict=True, delimiter=form.delimiter, quoting=quoting)


def _records(
    file: TextIO, form: Form, names: Sequence[str], problem: Problem
) -> Iterator[tuple[Iterable[Any], Any]]:
    """Yield the columns of some records, and their numbers.

    Arrow reads the blocks in which every quotation mark is where the standard has one, up to the
    first other block. After an unclosed quotation mark Arrow and DuckDB (`store_rejects`) lose
    rows, so Python reads the rest.
    """
    number, rest = 0, ""
    while block := file.read(_BLOCK):
        rest += block + (file.readline() or "\n")
        try:
            # Arrow removes a byte order mark at the start.
            content = ("\n" + rest).encode()
            end = _end_of_records(content, form)
        except UnicodeEncodeError:
            break
        if end is None or len(content) - end > CHUNK_BYTES // 4:
            break
        rest = content[end:].decode()
        columns, skipped = _by_arrow(content[:end], form, len(names))
        numbers = np.arange(len(columns[0]) + len(skipped)) + number + 1
        number += len(numbers)
        for row in skipped:
            _reject_width(numbers[row.number - 1], row.actual_columns, names, problem)
        yield columns, np.delete(numbers, [row.number - 1 for row in skipped])
    yield from _by_python(file, form, names, rest, number, problem)


def _end_of_records(content: bytes, form: Form) -> int | None:
    """Return the length of the whole records between line ends; None if a quote is misplaced.

    A quoted field is between delimiters or line ends, and a quotation mark in it is doubled.
    """
    data = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero((data == ord("\n")) | (data == ord("\r"))) + 1
    if form.is_quoted and b'"' in content:
        quotes = np.flatnonzero(data == ord('"'))
        neighbours = np.concatenate([data[quotes[::2] - 1], data[quotes[1::2] + 1]])
        if not np.isin(neighbours, list(('"\r\n' + form.delimiter).encode("ascii"))).all():
            return None
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return int(ends[-1])


def _by_arrow(
    content: bytes, form: Form, width: int
) -> tuple[list[pa.ChunkedArray], list[pa_csv.InvalidRow]]:
    """Return the columns of whole records, and the records of another width."""
    skipped: list[pa_csv.InvalidRow] = []

    def skip(row: pa_csv.InvalidRow) -> str:
        skipped.append(row)
        return "skip"

    names = [str(index) for index in range(width)]
    table = pa_csv.read_csv(
        pa.BufferReader(content),
        pa_csv.ReadOptions(use_threads=False, block_size=len(content) + 1, column_names=names),
        pa_csv.ParseOptions(
            delimiter=form.delimiter,
            quote_char='"' if form.is_quoted else False,
            newlines_in_values=True,
            invalid_row_handler=skip,
        ),
        pa_csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(names, pa.large_string()),
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    return table.columns, skipped


def _by_python(
    file: TextIO, form: Form, names: Sequence[str], rest: str, number: int, problem: Problem
) -> Iterator[tuple[Iterable[Any], Any]]:
    """Yield records like `_records`; after a broken record, reading resumes at the next line."""
    # Lines that have been read, and the lines of the current record.
    waiting, current = deque(io.StringIO(rest, newline="")), list[str]()

    def lines() -> Iterator[str]:
        while line := waiting.popleft() if waiting else file.readline():
            current.append(line)
            yield line

    rows, numbers, size = [], [], 0
    parser = _parser(lines(), form)
    values: list[str] | None = []
    while values is not None:
        current.clear()
        try:
            values = next(parser, None)
        except csv.Error as error:
            number += 1
            problem(number, "(row)", "not CSV", str(error))
            waiting.extendleft(reversed(current[1:]))
            parser = _parser(lines(), form)
            continue
        number += bool(values)
        if values and len(values) != len(names):
            _reject_width(number, len(values), names, problem)
        elif values and re.search("[\ud800-\udfff]", "".join(values)):
            problem(number, "(row)", f"bytes that are not {form.encoding.upper()}")
        elif values:
            rows.append([value or None for value in values])
            numbers.append(number)
            size += sum(map(len, current))
        if rows and (values is None or size > _BLOCK):
            columns = zip(*rows, strict=True)
            yield (pa.array(column, pa.large_string()) for column in columns), numbers
            rows, numbers, size = [], [], 0


def _reject_width(number: int, width: int, names: Sequence[str], problem: Problem) -> None:
    count = f"{width} fields under {len(names)} headings"
    problem(int(number), "(row)", "more or fewer fields than headings", count)


# Parquet and Arrow ------------------------------------------------------------------------------


def _read_parquet(path: Path, problem: Problem) -> Iterator[pa.Table]:
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    # Arrow holds a column read as a dictionary in memory, so not columns of long texts, unless
    # they repeat.
    long = {
        column.path_in_schema
        for group in groups
        for column in map(group.column, range(group.num_columns))
        if column.physical_type != "BYTE_ARRAY"
        or _LARGEST_CODED < column.total_uncompressed_size < 200 * column.total_compressed_size
    }
    paths = {metadata.schema.column(index).path for index in range(len(metadata.schema))}
    # A buffer without pre-buffering reads pages as needed: a group may not fit into memory.
    how = {"read_dictionary": paths - long, "buffer_size": 1 << 20, "pre_buffer": False}

    def batches() -> Iterator[pa.RecordBatch]:
        for number, group in enumerate(groups):
            rows = group.num_rows * CHUNK_BYTES // max(group.total_byte_size, 1)
            with pq.ParquetFile(path, metadata=metadata, **how) as file:
                yield from file.iter_batches(max(1, min(CHUNK_ROWS, rows)), row_groups=[number])

    # A few kilobytes can decode to gigabytes: a long text in a dictionary that every row refers to.
    most = max(512 << 20, 200 * path.stat().st_size)
    yield from _batch_tables(batches(), metadata.num_rows, problem, most)


def _read_folder(path: Path, problem: Problem) -> Iterator[pa.Table]:
    """Read a folder saved by `datasets`: files of Arrow batches, listed in `state.json`."""
    if splits := sorted(state.parent.name for state in path.glob("*/state.json")):
        raise ValueError(f"has splits {splits}: name one, as {path / splits[0]}")
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))

    def batches() -> Iterator[pa.RecordBatch]:
        for entry in state["_data_files"]:
            with pa.memory_map(str(path / entry["filename"])) as file:
                yield from pa.ipc.open_stream(file)

    yield from _batch_tables(batches(), None, problem)


def _batch_tables(
    batches: Iterable[pa.RecordBatch], total: int | None, problem: Problem, most: float = math.inf
) -> Iterator[pa.Table]:
    """Yield the rows of batches; raises ValueError if they decode to more than `most` bytes."""
    done = decoded = 0
    with _bar(total, " rows") as bar:
        for batch in batches:
            size = sum(map(_decoded_size, batch.columns))
            decoded += size
            if decoded > most:
                raise ValueError(f"decodes to more than {most:,} bytes: export it as JSONL")
            step = max(1, min(CHUNK_ROWS, batch.num_rows * CHUNK_BYTES // max(size, 1)))
            for start in range(0, batch.num_rows, step):
                part = batch.slice(start, step)
                numbers = np.arange(part.num_rows) + done + 1
                table = pa.table(list(map(_plain, part.columns)), part.schema.names)
                yield _valid(_numbered(table, numbers), problem)
                done += part.num_rows
                bar.update(part.num_rows)


def _plain(column: pa.Array) -> pa.Array | pa.ChunkedArray:
    """Return a column as a type that DuckDB and `litbench.data.casts` read, else as JSON."""
    dtype = column.type
    if pa.types.is_dictionary(dtype):
        return _plain(column.cast(dtype.value_type))
    if pa.types.is_timestamp(dtype) and dtype.unit == "ns":
        # Python reads nanoseconds only with pandas.
        return column.cast(pa.timestamp("us", dtype.tz), safe=False)
    return column if _is_plain(dtype) else as_json(column.to_pylist())


@functools.cache
def _is_plain(dtype: pa.DataType) -> bool:
    """Whether DuckDB and Parquet have a type; DuckDB refuses maps with repeated keys."""
    try:
        duckdb.from_arrow(pa.table([pa.nulls(0, dtype)], ["c"]))
    except duckdb.NotImplementedException:
        return False
    return not re.search("map|union|duration|interval|extension|run_end|view", str(dtype))


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


def _valid(table: pa.Table, problem: Problem) -> pa.Table:
    """Remove rows with text that is not UTF-8, found by halving."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        half = table.num_rows // 2
        if not half:
            problem(table[ROW][0].as_py(), "(row)", "bytes that are not UTF-8")
            return table.slice(1)
        halves = (table.slice(0, half), table.slice(half))
        return pa.concat_tables(_valid(part, problem) for part in halves)
    return table


def _numbered(table: pa.Table, numbers: Any) -> pa.Table:
    """Add `ROW`, and remove pandas' index."""
    _check_columns(table.column_names)
    is_column = [not _INDEX.fullmatch(name) for name in table.column_names]
    table = table.select(np.flatnonzero(is_column).tolist())
    return table.append_column(ROW, pa.array(numbers, pa.int64()))


def read_chunks(
    path: Path, encoding: str | None, problem: Problem, *, with_lines: bool
) -> Iterator[pa.Table]:
    """Yield chunks of a source: its columns, whose names may repeat, and `ROW`.

    JSON has `LINE`, too, if `with_lines`.
    Each chunk has at most `CHUNK_ROWS` rows and some hundred megabytes.
    """
    if not path.exists() and is_name(path):
        yield from _batch_tables(open_stream(str(path)), None, problem)
        return
    if not path.exists():
        raise DataError(f"there is no file {path}: check the path, or run the step that writes it")
    before = path.stat()
    try:
        if path.is_dir():
            tables = _read_folder(path, problem)
        elif (form := sniff(path, encoding)).kind == "parquet":
            tables = _read_parquet(path, problem)
        elif form.kind == "csv":
            tables = _read_csv(path, form, problem)
        else:
            tables = _read_json(path, form, problem, with_lines=with_lines)
        for table in tables:
            for start in range(0, table.num_rows, CHUNK_ROWS):
                yield table.slice(start, CHUNK_ROWS)
    # An unknown encoding is a LookupError.
    except (pa.ArrowException, csv.Error, OSError, ValueError, LookupError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{path} cannot be read ({reason}): LitBench reads Parquet, JSON, JSON lines, CSV and "
            "TSV, plain or compressed as .gz, .zst, .bz2 or .xz, and folders saved by datasets"
        ) from error
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise DataError(f"{path} changed while it was read: run again when the file is complete")
