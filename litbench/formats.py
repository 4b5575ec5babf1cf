"""Files as they are: Parquet, JSONL, CSV, `datasets` folders and the Hub, chunk by chunk.

A chunk has a bounded number of rows and bytes, and the row numbers of the file. What cannot be
read at all is told to the caller, row by row; whether the values are those of a schema is judged
in `litbench.tables`.
"""

import codecs
import csv
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from litbench.errors import DataError, MissingExtraError
from litbench.hub import is_name, open_stream

_LARGEST_LINE = 256 << 20
CHUNK_ROWS = 8_192
CHUNK_BYTES = 64 << 20

# Told of each broken row: its number, the column, the reason and the value.
Problem = Callable[..., None]


@dataclass
class RawRows:
    """Some rows of a source before any check.

    Attributes:
        table: the rows that could be read.
        rows: each row's number in the source.
        strange: by column and place in the table, values that are neither text nor whole numbers
            in a column that otherwise holds text or whole numbers; in a column of text the table
            has their JSON.
        read: bytes of the source read so far, about; 0 where that is not known.
    """

    table: pa.Table
    rows: Sequence[int]
    strange: dict[str, dict[int, Any]] = field(default_factory=dict)
    read: int = 0

    def take(self, places: Sequence[int] | np.ndarray) -> "RawRows":
        """The rows at some places, which may come more than once."""
        taken = [int(place) for place in places]
        strange = {
            name: {new: values[old] for new, old in enumerate(taken) if old in values}
            for name, values in self.strange.items()
        }
        table = self.table.take(pa.array(taken, pa.int64()))
        return RawRows(table, [self.rows[place] for place in taken], strange, self.read)


def as_column(values: Sequence[Any]) -> tuple[pa.Array, dict[int, Any]]:
    """Make values a column; of mixed types it holds JSON, to be judged value by value."""
    kinds = set(map(type, values)) - {type(None)}
    try:
        # Arrow would take true for 1.0 among numbers, also within a list.
        listed = {type(one) for value in values if isinstance(value, list) for one in value}
        if any(bool in types and types - {bool, type(None)} for types in (kinds, listed)):
            raise pa.ArrowTypeError("true or false among other values")
        fractions: dict[int, Any] = {}
        if kinds == {int, float}:
            # Arrow takes them all for fractions: where text belongs, a whole number is text.
            fractions = {k: value for k, value in enumerate(values) if isinstance(value, float)}
        return pa.array(values), fractions
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return as_text(values)


def as_text(values: Iterable[Any]) -> tuple[pa.Array, dict[int, Any]]:
    """Make values a column of texts; the strange ones, also returned by place, become JSON."""
    texts: list[str | None] = []
    strange = {}
    for place, value in enumerate(values):
        if value is None or isinstance(value, str):
            texts.append(value)
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            strange[place] = value
        texts.append(json.dumps(without_point(value), default=str))
    return pa.array(texts, pa.large_string()), strange


def without_point(value: Any) -> Any:
    """A fraction that is a whole number as such; any other value as it is.

    Beside a fraction Arrow holds 5 as 5.0, so that how it is written must not depend on its type.
    """
    # Larger whole numbers Arrow does not put among fractions.
    if isinstance(value, float) and value.is_integer() and abs(value) <= 1 << 53:
        return int(value)
    return value


class _Gatherer:
    """Collects rows until they make a chunk."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._rows: list[int] = []
        self._records: list[dict[str, Any]] = []
        self._bytes = 0

    def add(self, row: int, record: dict[str, Any], size: int) -> bool:
        """Add one row of about so many bytes; return whether the chunk is full."""
        self._rows.append(row)
        self._records.append(record)
        self._bytes += size
        return len(self._records) >= CHUNK_ROWS or self._bytes >= CHUNK_BYTES

    def take(self, read: int) -> Iterator[RawRows]:
        """The chunk, if any row came, to be followed by the next one."""
        columns, strange = {}, {}
        for name in dict.fromkeys(name for record in self._records for name in record):
            columns[name], odd = as_column([record.get(name) for record in self._records])
            if odd:
                strange[name] = odd
        if columns:
            yield RawRows(pa.table(columns), self._rows, strange, read)
        else:
            # Without columns a table forgets how many rows it has.
            for row in self._rows:
                self._problem(row, "(line)", "an object without a key")
        self._rows, self._records, self._bytes = [], [], 0


def _numbered_lines(file: BinaryIO, problem: Problem) -> Iterator[tuple[int, bytes]]:
    row = 0
    while line := file.readline(_LARGEST_LINE):
        row += 1
        if len(line) == _LARGEST_LINE and not line.endswith(b"\n"):
            problem(row, "(line)", f"a line longer than {_LARGEST_LINE:,} bytes", line[:60])
            while line and not line.endswith(b"\n"):
                line = file.readline(_LARGEST_LINE)
            continue
        yield row, line


def _read_jsonl(path: Path, problem: Problem) -> Iterator[RawRows]:
    # Arrow's JSON reader is faster, but takes "2024-01-01" for a time, joins objects across
    # lines, and overflows its stack on deeply nested ones.
    gathered = _Gatherer(problem)
    with path.open("rb") as file:
        for row, line in _numbered_lines(file, problem):
            if row == 1:
                line = line.removeprefix(codecs.BOM_UTF8)  # noqa: PLW2901
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode("utf-8"))
                if b"\\u" in line:
                    json.dumps(record, ensure_ascii=False).encode("utf-8")
            except UnicodeDecodeError as error:
                problem(row, "(line)", "bytes that are not UTF-8", f"at byte {error.start}")
                continue
            except UnicodeEncodeError:
                problem(row, "(line)", "half a surrogate pair: not valid Unicode")
                continue
            except (ValueError, RecursionError) as error:
                problem(row, "(line)", "not JSON", str(error))
                continue
            if not isinstance(record, dict):
                problem(row, "(line)", "not a JSON object", record)
                continue
            if gathered.add(row, record, len(line)):
                yield from gathered.take(file.tell())
        yield from gathered.take(file.tell())


class _Lines:
    """A file's lines, of which those of a broken record can be read again."""

    def __init__(self, file: Iterable[str]) -> None:
        self._file = iter(file)
        self._again: deque[str] = deque()
        self._given: list[str] = []

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._file)
        self._given.append(line)
        return line

    def start_record(self) -> None:
        self._given.clear()

    def give_up_first_line(self) -> None:
        self._again.extendleft(reversed(self._given[1:]))


def _read_csv(path: Path, problem: Problem) -> Iterator[RawRows]:
    # Arrow's CSV reader is faster, but a quote that is never closed swallows the rows below it
    # without a word. Here that record is an error, and reading goes on at the next line.
    csv.field_size_limit(_LARGEST_LINE)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = _Lines(file)
        reader = csv.reader(lines, strict=True)
        try:
            names = next((values for values in reader if values), [])
            "".join(names).encode("utf-8")
        except (csv.Error, UnicodeEncodeError) as error:
            raise DataError(
                f"{path}: the headings cannot be read ({error}): save it as CSV in UTF-8"
            ) from error
        _check_names(names, path)

        def whole() -> Iterator[RawRows]:
            # A column of nulls alone is text here too.
            for chunk in gathered.take(os.lseek(file.fileno(), 0, os.SEEK_CUR)):
                target = pa.schema([(name, pa.large_string()) for name in names])
                yield RawRows(chunk.table.cast(target), chunk.rows, read=chunk.read)

        gathered = _Gatherer(problem)
        row = 0
        while True:
            lines.start_record()
            try:
                values = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                row += 1
                problem(row, "(row)", "not CSV", str(error))
                lines.give_up_first_line()
                continue
            if not values:
                continue
            row += 1
            if len(values) != len(names):
                found = f"{len(values)} fields under {len(names)} headings"
                problem(row, "(row)", "more or fewer fields than headings", found)
                continue
            try:
                size = len("".join(values).encode("utf-8"))
            except UnicodeEncodeError:
                problem(row, "(row)", "bytes that are not UTF-8")
                continue
            record: dict[str, Any] = {n: v or None for n, v in zip(names, values, strict=True)}
            if gathered.add(row, record, size):
                yield from whole()
        yield from whole()


def _check_names(names: Sequence[str], source: str | Path) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{source}: column '{twice[0]}' stands there twice: rename one of them")


def _rows_at_once(rows: int, size: int) -> int:
    """How many rows of a table of so many rows and bytes make a chunk."""
    return max(1, min(CHUNK_ROWS, rows * CHUNK_BYTES // max(size, 1)))


def _read_parquet(path: Path, problem: Problem) -> Iterator[RawRows]:
    try:
        # With a buffer and without pre-buffering, pages are read as they are needed: a row group
        # may be larger than the memory.
        file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
        _check_names(file.schema_arrow.names, path)
        groups = [file.metadata.row_group(k) for k in range(file.metadata.num_row_groups)]
        at_once = min(
            (_rows_at_once(group.num_rows, group.total_byte_size) for group in groups),
            default=1,
        )
        batches = file.iter_batches(batch_size=at_once)
        first, size, count = 0, path.stat().st_size, max(file.metadata.num_rows, 1)
        while (batch := next(batches, None)) is not None:
            table = pa.Table.from_batches([batch])
            rows = range(first + 1, first + 1 + table.num_rows)
            first += table.num_rows
            yield _without_broken_text(RawRows(table, rows, read=size * first // count), problem)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a Parquet file ({error}): export it again") from error


def _without_broken_text(chunk: RawRows, problem: Problem) -> RawRows:
    try:
        chunk.table.validate(full=True)
        return chunk
    except pa.ArrowInvalid:
        pass
    # Some string is not UTF-8: find the rows.
    keep = []
    for place in range(chunk.table.num_rows):
        try:
            chunk.table.slice(place, 1).to_pylist()
            keep.append(place)
        except UnicodeDecodeError as error:
            row = chunk.rows[place]
            problem(row, "(row)", "bytes that are not UTF-8", f"at byte {error.start}")
    return chunk.take(keep)


def _read_folder(path: Path) -> Iterator[RawRows]:
    try:
        import datasets  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("datasets", "data") from error
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
        yield RawRows(table, range(start + 1, start + 1 + table.num_rows))


def _read_hub(name: str) -> Iterator[RawRows]:
    first = 0
    for batch in open_stream(name):
        rows = range(first + 1, first + 1 + batch.num_rows)
        first += batch.num_rows
        yield RawRows(pa.Table.from_batches([batch]), rows)


_READERS: dict[str, Callable[[Path, Problem], Iterator[RawRows]]] = {
    ".parquet": _read_parquet,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".csv": _read_csv,
}


def read_raw(source: str | Path, problem: Problem) -> Iterator[RawRows]:
    """Read a source chunk by chunk, each of a bounded number of rows and bytes."""
    path = Path(source)
    if path.is_file():
        if path.suffix not in _READERS:
            raise DataError(
                f"{path} ends in '{path.suffix}': LitBench reads {', '.join(_READERS)}, a folder "
                "saved by datasets, or a dataset's name"
            )
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty (0 bytes): make it again")
        try:
            yield from _READERS[path.suffix](path, problem)
        except OSError as error:
            raise DataError(
                f"cannot read {path} ({error}): check the disk and your access"
            ) from error
        return
    if path.is_dir():
        yield from _read_folder(path)
    elif is_name(source):
        yield from _read_hub(str(source))
    else:
        raise DataError(
            f"there is no file {source}: check the path, or run the step that writes it"
        )
