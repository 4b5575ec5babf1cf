"""Chunks of foreign files (see `litbench.data.formats`), `datasets` folders and the Hub.

`read_chunks` yields the rows of a source in chunks of bounded size; `litbench.data.casts` has the
SQL that casts their columns to a schema.
"""

import codecs
import csv
import functools
import io
import itertools
import json
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pydantic_core import to_json

from litbench.data.formats import MAX_LINE, Form, json_rows, open_bytes, open_text, sniff
from litbench.data.records import is_text
from litbench.runs.errors import DataError
from litbench.runs.hub import is_name, open_stream
from litbench.runs.progress import ProgressBar

# Column with the number of each row in the source, counted from 1.
ROW = "(row)"
# Column with the JSON of each row, for schemas that declare it; null if the source is not JSON.
LINE = "(line)"
# Columns that are added to those of a source: these, a hash of the key, and the first problem.
KEY = "(key)"
PROBLEM = "(problem)"
_INTERNAL = (ROW, LINE, KEY, PROBLEM)
CHUNK_ROWS = 8_192
CHUNK_BYTES = 64 << 20

_MAX_COLUMNS = 1_000
# Bytes of text that are read at a time. Larger blocks take five times as long, because the memory
# of each is requested from the system.
_BLOCK = 1 << 20
# Largest column of a Parquet row group that is read as a dictionary.
_LARGEST_CODED = 16 << 20

# Called for each broken row with its number, the column, the reason and the value.
Problem = Callable[..., None]


@functools.cache
def database() -> duckdb.DuckDBPyConnection:
    """Open an in-memory database for expressions of a config, without file or network access."""
    connection = duckdb.connect()
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


class Chunk(NamedTuple):
    """Rows of a source.

    Attributes:
        names: names of the source's columns.
        rows: table that the SQL below reads under the name `raw`.
        sql: SQL of a relation with the columns "(0)", "(1)", ... in the order of `names`, and ROW.
    """

    names: Sequence[str]
    rows: pa.Table
    sql: str = "raw"


def without(table: pa.Table, *names: str) -> pa.Table:
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


def _chunk(table: pa.Table, numbers: Any, problem: Problem, encoding: str = "utf-8") -> Chunk:
    """Return a chunk without the rows whose text is not UTF-8, in types that DuckDB reads."""
    _check_columns(table.column_names)
    table = without(table, *_INTERNAL)
    names, count = table.column_names, table.num_columns
    columns = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    rows = pa.table([*columns, pa.array(numbers)], [*(f"({k})" for k in range(count)), ROW])
    rows = _valid(rows, "(row)", problem, encoding)
    return Chunk(names, pa.table(list(map(_readable, rows.columns)), rows.column_names))


def _valid(rows: pa.Table, where: str, problem: Problem, encoding: str) -> pa.Table:
    """Remove rows with text that is not UTF-8; `where` and `encoding` are for the message."""
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        indices = []
        for index in range(rows.num_rows):
            try:
                for column in rows.columns:
                    column[index].validate(full=True)
                indices.append(index)
            except pa.ArrowInvalid:
                problem(rows[ROW][index].as_py(), where, f"bytes that are not {encoding.upper()}")
        rows = rows.take(pa.array(indices, pa.int64()))
    return rows


def _batch_chunks(
    batches: Iterable[pa.RecordBatch], total: int | None, problem: Problem, most: float = math.inf
) -> Iterator[Chunk]:
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


@functools.cache
def _is_readable(kind: pa.DataType) -> bool:
    """Whether DuckDB reads a type of Arrow; it refuses maps with repeated keys."""
    try:
        duckdb.from_arrow(pa.table([pa.nulls(0, kind)], ["c"]))
    except duckdb.NotImplementedException:
        return False
    return "map<" not in str(kind)


def _readable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as JSON if DuckDB cannot read its type, such as float16 or decimal256."""
    if _is_readable(column.type):
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


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join tables until they have a quarter of `CHUNK_BYTES`."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(table.nbytes for table in waiting) >= CHUNK_BYTES // 4:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


# JSON -------------------------------------------------------------------------------------------

# Escapes in JSON of half a character, which JSON writers leave in truncated texts.
_LONE_SURROGATE = re.compile(
    rb"\\u[dD](?<!\\\\u[dD])(?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|[c-fC-F][0-9a-fA-F]{2}"
    rb"(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)


def _lines(path: Path, form: Form, problem: Problem) -> Iterator[pa.Table]:
    """Yield the lines of JSONL, or the rows of a JSON document, as column `line`, with ROW."""
    number = 1
    with _bar(path.stat().st_size, "B") as bar:
        arrays = _document_rows(path, form) if form.kind == "document" else _blocks(path, form, bar)
        for lines in arrays:
            table = pa.table([lines, np.arange(len(lines)) + number], ["line", ROW])
            number += len(lines)
            yield _valid(table, "(line)", problem, form.encoding)


def _document_rows(path: Path, form: Form) -> Iterator[pa.Array]:
    with open_text(path, form) as (file, _):
        rows = json_rows(file.read())
    while texts := [_mended(_as_bytes(text)) for text in itertools.islice(rows, CHUNK_ROWS)]:
        yield pa.array(texts, pa.large_binary()).view(pa.large_string())


def _blocks(path: Path, form: Form, bar: Any) -> Iterator[pa.Array]:
    """Yield arrays of the lines of a text file, in UTF-8."""
    is_utf8 = codecs.lookup(form.encoding).name in ("utf-8", "utf-8-sig")
    size, mark = min(_BLOCK, CHUNK_BYTES), codecs.BOM_UTF8
    opened: Any = open_bytes(path) if is_utf8 else open_text(path, form, "\n")
    with opened as (file, position):
        while block := file.read(size) + file.readline(MAX_LINE):
            if len(block) > MAX_LINE:
                raise ValueError(f"has a line of more than {MAX_LINE:,} characters")
            content = block if isinstance(block, bytes) else _as_bytes(block)
            yield _split_lines(_mended(content.removeprefix(mark)))
            mark = b""
            bar.update(position() - bar.n)


def _mended(content: bytes) -> bytes:
    """Replace half characters."""
    return _LONE_SURROGATE.sub(rb"\\ufffd", content)


def _split_lines(content: bytes) -> pa.Array:
    content = content if content.endswith(b"\n") else content + b"\n"
    ends = np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n")) + 1
    offsets = pa.py_buffer(np.concatenate([[0], ends]).astype(np.int64))
    return pa.LargeStringArray.from_buffers(len(ends), offsets, pa.py_buffer(content))


def _read_json(path: Path, form: Form, problem: Problem) -> Iterator[Chunk]:
    """Yield the rows of JSONL, or of a JSON document.

    All lines are read before the first chunk, for the names and types of the columns. A column
    therefore has the same type in all chunks, even if some rows do not have it. The lines of large
    files are not held in memory but read again.
    """
    held: list[pa.Table] = []
    size = 0

    def first_lines() -> Iterator[pa.Table]:
        nonlocal size
        for lines in _gathered(_lines(path, form, problem)):
            size += lines.nbytes
            held.append(lines)
            if size > 2 * CHUNK_BYTES:
                held.clear()
            yield lines

    types, left_out = _json_columns(first_lines(), problem)
    # Names in a struct have characters and differ by more than case; other values are extracted.
    folded = Counter(name.casefold() for name in types if name and "\0" not in name)
    struct = {name: kind for name, kind in types.items() if folded[name.casefold()] == 1}
    value_of = {
        name: 's."' + name.replace('"', '""') + '"'
        if name in struct
        else f"json_transform(json_extract(line, {_pointers([name])})[1], '\"{kind}\"')"
        for name, kind in types.items()
    }
    columns = "".join(
        (f"nullif({value}, 'null'::JSON)" if types[name] == "JSON" else value) + f' AS "({k})", '
        for k, (name, value) in enumerate(value_of.items())
    )
    structure = json.dumps(struct or {"-": "JSON"}).replace("'", "''")
    sql = (
        f'(SELECT {columns}"{ROW}", line AS "{LINE}" FROM '  # noqa: S608
        f"(SELECT line, \"{ROW}\", json_transform(line, '{structure}') AS s FROM raw WHERE is_row))"
    )
    is_held = size <= 2 * CHUNK_BYTES
    for lines in held if is_held else _gathered(_lines(path, form, lambda *_: None)):
        is_row = pc.invert(pc.is_in(lines[ROW], value_set=left_out))
        if types and pc.any(is_row).as_py():
            yield Chunk(list(types), lines.append_column("is_row", is_row), sql)


def _json_columns(chunks: Iterable[pa.Table], problem: Problem) -> tuple[dict[str, str], pa.Array]:
    """Return the SQL types of the columns of JSON by name, and the numbers of lines to leave out.

    These are broken lines, which are reported, and blank ones.
    """
    kinds_of: dict[str, set[str]] = {}
    left_out: list[int] = []
    # Few groups, as most lines have the same structure, which fails for deeply nested values.
    # BIGINT has 19 digits.
    groups = (
        f"SELECT form, list(\"{ROW}\") FILTER (form IS NULL OR form[1] <> '{{'), "  # noqa: S608
        r"bool_or(regexp_matches(line, ':\s*-?[0-9]{19}')) FROM "
        "(SELECT *, coalesce(TRY(json_structure(line)::VARCHAR), "
        "TRY(to_json(map(json_keys(line), json_type(line, '$.*')))::VARCHAR)) AS form FROM raw) "
        f'GROUP BY form ORDER BY min("{ROW}")'
    )
    with closing(database().cursor()) as connection:
        for chunk in chunks:
            connection.register("raw", chunk)
            has_long = False
            for form, rows, is_long in connection.sql(groups).fetchall():
                if rows is not None:
                    left_out += _report_lines(chunk, rows, form is not None, problem)
                    continue
                has_long = has_long or is_long
                for name, kind in json.loads(form).items():
                    # A list or an object has a structure of its own.
                    kinds_of.setdefault(name, set()).add(kind if isinstance(kind, str) else "JSON")
                _check_columns(kinds_of)
            numbers = [name for name, kinds in kinds_of.items() if kinds - {"VARCHAR", "JSON"}]
            for name in _large_integers(connection, numbers) if has_long else ():
                kinds_of[name].add("JSON")
    types = {n: _sql_type(kinds) for n, kinds in kinds_of.items() if n not in _INTERNAL}
    return types, pa.array(left_out, pa.int64())


def _report_lines(
    chunk: pa.Table, rows: Sequence[int], is_json: bool, problem: Problem
) -> Iterator[int]:
    """Report lines without keys, and yield the numbers of all but empty objects."""
    for row in chunk.filter(pc.is_in(chunk[ROW], value_set=pa.array(rows))).to_pylist():
        line = row["line"].strip()
        if line not in ("", "{}"):
            # Without the line, which may contain an account name.
            problem(row[ROW], "(line)", "not a JSON object" if is_json else "not JSON")
        if line != "{}":
            yield row[ROW]


def _large_integers(connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> Iterator[str]:
    """Yield the columns that have integers too large for BIGINT."""
    is_large = "regexp_full_match(v, '-?[0-9]{19,}') AND TRY_CAST(v AS BIGINT) IS NULL"
    values = f"json_extract_string(line, {_pointers(names)})"
    query = f"SELECT DISTINCT list_transform({values}, lambda v: {is_large}) FROM raw "  # noqa: S608
    for row in connection.sql(query + "WHERE json_valid(line)").fetchall():
        yield from (name for name, large in zip(names, row[0], strict=True) if large)


def _pointers(names: Iterable[str]) -> str:
    """Return an SQL list of JSON pointers to keys."""
    pointers = ("/" + name.replace("~", "~0").replace("/", "~1") for name in names)
    return "([" + ", ".join("'" + p.replace("'", "''") + "'" for p in pointers) + "]::VARCHAR[])"


def _sql_type(kinds: set[str]) -> str:
    """Return the SQL type of a column whose values have these types in JSON."""
    kinds = {kind.removeprefix("U") for kind in kinds} - {"NULL"}
    if kinds == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    kind = min(kinds, default="VARCHAR")
    is_one = len(kinds) < 2 and kind in ("VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN")
    return kind if is_one else "JSON"


# CSV --------------------------------------------------------------------------------------------


class _Records:
    """Records of CSV as tables with the columns "(0)", "(1)", ... and ROW.

    Arrow reads the blocks in which every quotation mark is where the standard has one. After an
    unclosed quotation mark Arrow and DuckDB (`store_rejects`) lose rows, so Python reads the other
    blocks: the broken record is rejected, and reading resumes at the next line.
    """

    def __init__(self, file: TextIO, form: Form, problem: Problem) -> None:
        self._file, self._form, self._problem = file, form, problem
        # Lines to be read by Python, and the lines of its current record.
        self._waiting: deque[str] = deque()
        self._current: list[str] = []
        self._number = 0
        for _ in range(form.skip):
            file.readline()
        self.names = next((values for values in self._parser() if values), [])
        "".join(self.names).encode()
        _check_columns(self.names)

    def tables(self) -> Iterator[pa.Table]:
        rest, block = b"", "\n"
        while block and self.names:
            block = self._file.read(_BLOCK) + self._file.readline()
            # The last line may lack its end.
            content = rest + _as_bytes(block or "\n")
            end = _end_of_records(content, self._form)
            is_long = len(content) - (end or 0) > (CHUNK_BYTES // 4 if block else 0)
            rest = b"" if end is None or is_long else content[end:]
            table = None if end is None or is_long else self._read_by_arrow(content[:end])
            if table is None:
                text = content[: len(content) - len(rest)].decode("utf-8", "surrogateescape")
                self._waiting.extend(io.StringIO(text, newline=""))
                table = self._read_by_python()
            yield table

    def _parser(self) -> Iterator[list[str]]:
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self._form.is_quoted else csv.QUOTE_NONE
        return csv.reader(
            self._lines(), strict=True, delimiter=self._form.delimiter, quoting=quoting
        )

    def _lines(self) -> Iterator[str]:
        while line := self._waiting.popleft() if self._waiting else self._file.readline():
            self._current.append(line)
            yield line

    def _read_by_python(self) -> pa.Table:
        """Read the waiting lines, and those that complete their last record."""
        numbers, rows, parser = [], [], self._parser()
        while self._waiting:
            self._current.clear()
            try:
                values = next(parser)
            except csv.Error as error:
                self._number += 1
                self._problem(self._number, "(row)", "not CSV", str(error))
                self._waiting.extendleft(reversed(self._current[1:]))
                parser = self._parser()
                continue
            self._number += bool(values)
            if len(values) == len(self.names):
                numbers.append(self._number)
                rows.append(values)
            elif values:
                self._reject_width(self._number, len(values))
        columns = zip(*rows, strict=True) if rows else [()] * len(self.names)
        arrays = (
            pa.array([_as_bytes(text) or None for text in texts], pa.large_binary())
            for texts in columns
        )
        return self._table((array.view(pa.large_string()) for array in arrays), numbers)

    def _read_by_arrow(self, content: bytes) -> pa.Table | None:
        """Read whole records; None if they are not UTF-8, which `skip` would have to decode."""
        try:
            content.decode()
        except UnicodeDecodeError:
            return None
        skipped: list[pa_csv.InvalidRow] = []

        def skip(row: pa_csv.InvalidRow) -> str:
            skipped.append(row)
            return "skip"

        names = [f"({k})" for k in range(len(self.names))]
        table = pa_csv.read_csv(
            # Arrow removes a byte order mark at the start.
            pa.BufferReader(b"\n" + content),
            pa_csv.ReadOptions(use_threads=False, block_size=len(content) + 1, column_names=names),
            pa_csv.ParseOptions(
                delimiter=self._form.delimiter,
                quote_char='"' if self._form.is_quoted else False,
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
        for row in skipped:
            self._reject_width(self._number + row.number, row.actual_columns)
        count = table.num_rows + len(skipped)
        numbers = np.delete(np.arange(count), [row.number - 1 for row in skipped])
        self._number += count
        return self._table(table.columns, numbers + self._number - count + 1)

    def _table(self, columns: Iterable[Any], numbers: Any) -> pa.Table:
        names = [*(f"({k})" for k in range(len(self.names))), ROW]
        return pa.table([*columns, pa.array(numbers, pa.int64())], names)

    def _reject_width(self, number: int, width: int) -> None:
        count = f"{width} fields under {len(self.names)} headings"
        self._problem(number, "(row)", "more or fewer fields than headings", count)


def _end_of_records(content: bytes, form: Form) -> int | None:
    """Return the length of the whole records of CSV; None if a quotation mark is misplaced.

    A quoted field is between delimiters or line ends, and a quotation mark in it is doubled.
    """
    if not form.delimiter.isascii():
        return None
    data = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero((data == ord("\n")) | (data == ord("\r"))) + 1
    if form.is_quoted and b'"' in content:
        quotes = np.flatnonzero(data == ord('"'))
        opening, closing = quotes[::2], quotes[1::2]
        is_edge = np.zeros(256, bool)
        is_edge[list(_as_bytes('"\r\n' + form.delimiter))] = True
        before = data[opening[opening > 0] - 1]
        after = data[closing[closing + 1 < len(data)] + 1]
        if not (is_edge[before].all() and is_edge[after].all()):
            return None
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return int(ends[-1]) if len(ends) else 0


def _read_csv(path: Path, form: Form, problem: Problem) -> Iterator[Chunk]:
    with open_text(path, form) as (file, position), _bar(path.stat().st_size, "B") as bar:
        records = _Records(file, form, problem)
        for table in _gathered(records.tables()):
            bar.update(position() - bar.n)
            if table.num_rows:
                columns = table.drop_columns([ROW]).rename_columns(records.names)
                yield _chunk(columns, table[ROW].to_numpy(), problem, form.encoding)


# Parquet and Arrow ------------------------------------------------------------------------------


def _read_parquet(path: Path, _: Form, problem: Problem) -> Iterator[Chunk]:
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


def _read_folder(path: Path, problem: Problem) -> Iterator[Chunk]:
    """Read a folder saved by `datasets`: files of Arrow batches, listed in `state.json`."""
    if splits := sorted(state.parent.name for state in path.glob("*/state.json")):
        raise ValueError(f"has splits {splits}: name one, as {path / splits[0]}")
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))

    def batches() -> Iterator[pa.RecordBatch]:
        for entry in state["_data_files"]:
            with pa.memory_map(str(path / entry["filename"])) as file:
                yield from pa.ipc.open_stream(file)

    yield from _batch_chunks(batches(), None, problem)


_READERS: dict[str, Callable[[Path, Form, Problem], Iterator[Chunk]]] = {
    "parquet": _read_parquet,
    "lines": _read_json,
    "document": _read_json,
    "csv": _read_csv,
}


def read_chunks(path: Path, encoding: str | None, problem: Problem) -> Iterator[Chunk]:
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
