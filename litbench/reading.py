"""Reading tables: Parquet, JSONL, CSV and `datasets`, fitted to a schema row by row.

Every program reads its input through `read_table`. A row that breaks its schema is set aside with
its reason when the caller brings a `SetAside`, and is an error that names file, row and column
when not.
"""

import codecs
import csv
import json
import math
import string
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from litbench.config import nearest
from litbench.errors import DataError, MissingExtraError
from litbench.records import ARROW_TYPES, STORIES, Kind, Schema, SetAside, iterate_rows
from litbench.text import count_words, digest

_LARGEST_LINE = 256 << 20
_GATHERED_ROWS = 8_192
_GATHERED_BYTES = 64 << 20


# Reading files as they are -------------------------------------------------------------------


@dataclass
class _Raw:
    """A file's rows before any check.

    Attributes:
        table: the rows that could be read.
        rows: each row's number in the file.
        strange: by column and row number, values that are neither text nor whole numbers in a
            column that otherwise holds text; the table has their JSON.
        left_out: rows a `where` left out.
    """

    table: pa.Table
    rows: Sequence[int]
    strange: dict[str, dict[int, Any]] = field(default_factory=dict)
    left_out: int = 0


class _Gatherer:
    """Collects rows into Arrow columns, some thousand at a time to bound the memory."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._parts = [pa.table({name: pa.array([], pa.large_string()) for name in names})]
        self._rows: list[int] = []
        self._strange: dict[str, dict[int, Any]] = {}
        self._waiting: list[dict[str, Any]] = []
        self._bytes = 0

    def add(self, row: int, record: dict[str, Any], size: int) -> None:
        """Add one row; `size` is about its bytes."""
        self._rows.append(row)
        self._waiting.append(record)
        self._bytes += size
        if len(self._waiting) >= _GATHERED_ROWS or self._bytes >= _GATHERED_BYTES:
            self._flush()

    def finish(self) -> _Raw:
        """Return all rows added; columns of mixed types hold JSON, to be judged value by value."""
        self._flush()
        # Without columns a table forgets how many rows it has.
        parts = [part for part in self._parts if part.num_columns] or self._parts[:1]
        try:
            table = pa.concat_tables(parts, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            table = self._concatenate_as_text(parts)
        return _Raw(table, self._rows, self._strange)

    def _flush(self) -> None:
        if not self._waiting:
            return
        first = len(self._rows) - len(self._waiting)
        columns = {}
        for name in dict.fromkeys(name for record in self._waiting for name in record):
            values = [record.get(name) for record in self._waiting]
            kinds = set(map(type, values)) - {type(None)}
            try:
                # Arrow would take true for 1.0 among numbers.
                if bool in kinds and len(kinds) > 1:
                    raise pa.ArrowTypeError("true or false among other values")
                columns[name] = pa.array(values)
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
                columns[name] = self._as_text(name, values, first)
        self._parts.append(pa.table(columns))
        self._waiting, self._bytes = [], 0

    def _as_text(self, name: str, values: list[Any], first: int) -> pa.Array:
        texts = []
        for place, value in enumerate(values, first):
            if value is None or isinstance(value, str):
                texts.append(value)
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                self._strange.setdefault(name, {})[self._rows[place]] = value
            texts.append(json.dumps(value))
        return pa.array(texts, pa.large_string())

    def _concatenate_as_text(self, parts: list[pa.Table]) -> pa.Table:
        columns: dict[str, list[pa.Array]] = {
            name: [] for name in dict.fromkeys(name for part in parts for name in part.column_names)
        }
        first = 0
        for part in parts:
            for name, chunks in columns.items():
                has = name in part.column_names
                values = part[name].to_pylist() if has else [None] * part.num_rows
                chunks.append(self._as_text(name, values, first))
            first += part.num_rows
        return pa.table({name: pa.chunked_array(chunks) for name, chunks in columns.items()})


def _read_jsonl(path: Path, problem: Callable[..., None]) -> _Raw:
    # Arrow's JSON reader is faster, but takes "2024-01-01" for a time, joins objects across
    # lines, and overflows its stack on deeply nested ones.
    gathered = _Gatherer()
    with path.open("rb") as file:
        for row, line in enumerate(file, 1):
            if row == 1:
                line = line.removeprefix(codecs.BOM_UTF8)  # noqa: PLW2901
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode("utf-8"))
                if b"\\u" in line:
                    json.dumps(record, ensure_ascii=False).encode("utf-8")
            except UnicodeDecodeError as error:
                problem(row, "(line)", f"bytes that are not UTF-8, at byte {error.start}")
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
            gathered.add(row, record, len(line))
    return gathered.finish()


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


def _read_csv(path: Path, problem: Callable[..., None]) -> _Raw:
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
        gathered = _Gatherer(names)
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
                problem(
                    row, "(row)", f"{len(values)} fields under {len(names)} headings", values[0]
                )
                continue
            try:
                size = len("".join(values).encode("utf-8"))
            except UnicodeEncodeError:
                problem(row, "(row)", "bytes that are not UTF-8")
                continue
            gathered.add(row, {n: v or None for n, v in zip(names, values, strict=True)}, size)
    return gathered.finish()


def _check_names(names: Sequence[str], source: str | Path) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{source}: column '{twice[0]}' stands there twice: rename one of them")


def _read_parquet(path: Path, problem: Callable[..., None]) -> _Raw:
    try:
        file = pq.ParquetFile(path)
        _check_names(file.schema_arrow.names, path)
        table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a Parquet file ({error}): export it again") from error
    try:
        table.validate(full=True)
        return _Raw(table, range(1, table.num_rows + 1))
    except pa.ArrowInvalid:
        pass
    # Some string is not UTF-8: find the rows.
    keep = []
    for row in range(table.num_rows):
        one = table.slice(row, 1)
        try:
            one.to_pylist()
            keep.append(row)
        except UnicodeDecodeError as error:
            problem(row + 1, "(row)", f"bytes that are not UTF-8, at byte {error.start}")
    return _Raw(table.take(pa.array(keep, pa.int64())), [row + 1 for row in keep])


def _read_dataset(source: str, problem: Callable[..., None]) -> _Raw:  # noqa: ARG001
    try:
        import datasets  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("datasets", "data") from error
    path = Path(source)
    try:
        if path.is_dir():
            loaded = datasets.load_from_disk(str(path))
            name, split = str(path), ""
        else:
            name, _, split = source.partition(":")
            name, _, revision = name.partition("@")
            loaded = datasets.load_dataset(name, split=split or None, revision=revision or None)
    except Exception as error:  # the library raises dozens of types
        raise DataError(
            f"cannot load the dataset {source!r} ({type(error).__name__}: {error}): check the name "
            "(owner/name, owner/name@revision, owner/name:split), the network and your access"
        ) from error
    if isinstance(loaded, dict):
        one = path / min(loaded) if path.is_dir() else f"{name}:{min(loaded)}"
        raise DataError(f"{source} has splits {sorted(loaded)}: name one, as {one}")
    table = loaded.with_format("arrow")[:]
    return _Raw(table, range(1, table.num_rows + 1))


_READERS: dict[str, Callable[[Path, Callable[..., None]], _Raw]] = {
    ".parquet": _read_parquet,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".csv": _read_csv,
}


def _read_raw(source: str | Path, problem: Callable[..., None]) -> _Raw:
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
            return _READERS[path.suffix](path, problem)
        except OSError as error:
            raise DataError(
                f"cannot read {path} ({error}): check the disk and your access"
            ) from error
    if path.is_dir():
        return _read_dataset(str(path), problem)
    name = str(source)
    # owner/name, with no further slash and no file ending, is a name on the Hub.
    if name.count("/") == 1 and not name.startswith((".", "/", "~")) and not path.suffix:
        return _read_dataset(name, problem)
    raise DataError(f"there is no file {name}: check the path, or run the step that writes it")


# Fitting values to a schema ------------------------------------------------------------------


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
            value = float(value)
        except ValueError:
            value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
    if isinstance(value, date):
        return _to_time(datetime(value.year, value.month, value.day, tzinfo=UTC))
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
    """Bring a column to its type; a value that will not go becomes null after `problem`."""
    target = ARROW_TYPES[kind]
    given = values.type
    whole = pa.types.is_integer(given) and not pa.types.is_uint64(given)
    exact = {
        "text": pa.types.is_string(given) or pa.types.is_large_string(given),
        "integer": whole,
        "number": whole or pa.types.is_floating(given),
        "time": whole,
    }[kind]
    if pa.types.is_null(given):
        return pa.chunked_array([pa.nulls(len(values), target)])
    if exact:
        cast = pc.cast(values, target, safe=False)
        if kind == "number":
            for row in pc.indices_nonzero(pc.invert(pc.is_finite(cast))).to_pylist():
                problem(row, "not a finite number", values[row].as_py())
            return pc.if_else(pc.is_finite(cast), cast, pa.scalar(None, target))
        return cast
    if kind == "time" and pa.types.is_timestamp(given):
        return pc.cast(pc.cast(values, pa.timestamp("s"), safe=False), target)
    convert, reason = _CONVERT[kind]
    converted: list[Any] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            converted.append(None if value is None else convert(value))
        except (ValueError, TypeError, OverflowError):
            problem(row, reason, value)
            converted.append(None)
    return pa.chunked_array([pa.array(converted, target)])


def _select_rows(raw: _Raw, where: str, source: str) -> _Raw:
    import duckdb  # noqa: PLC0415

    with duckdb.connect() as connection:
        connection.register("raw", raw.table)
        try:
            # The condition is the user's own, from their own config.
            query = f"SELECT ({where})::BOOLEAN FROM raw"  # noqa: S608
            found = connection.sql(query).to_arrow_table()
        except duckdb.Error as error:
            hint = ""
            if source.endswith(".csv"):
                hint = "; CSV holds text only: write TRY_CAST(score AS INT) for score"
            raise DataError(
                f"{source}: where: {where!r} cannot be evaluated: {error}{hint}"
            ) from error
    if found.num_rows != raw.table.num_rows:
        raise DataError(
            f"{source}: where: {where!r} gives {found.num_rows} answers for {raw.table.num_rows} "
            "rows: write a condition on one row"
        )
    keep = pc.fill_null(found.column(0), fill_value=False)
    rows = [raw.rows[place] for place in pc.indices_nonzero(keep).to_pylist()]
    return _Raw(raw.table.filter(keep), rows, raw.strange, raw.table.num_rows - len(rows))


class _RowFormatter(string.Formatter):
    """Fills "{subreddit} {created_utc:%Y-%m}" from a row; fields are columns and nothing else."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:  # noqa: ARG002
        return kwargs[field_name], field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("%"):
            value = datetime.fromtimestamp(_to_time(value), UTC)
        return str(format(value, format_spec))


def _fill(
    template: str, table: pa.Table, source: str, problem: Callable[[int, str, Any], None]
) -> pa.ChunkedArray:
    try:
        fields = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise DataError(f"columns: '{template}' is no template: {error}: mend it") from error
    names = list(dict.fromkeys(name for _, name, _, _ in fields if name is not None))
    if not names:
        raise DataError(f"columns: '{template}' names no column: a constant begins with =")
    for name in names:
        if name not in table.column_names:
            raise DataError(
                f"{source}: no column '{name}' for '{template}': "
                f"{nearest(name, table.column_names)}"
            )
    if any("{" in (spec or "") for _, _, spec, _ in fields):
        raise DataError(f"columns: '{template}' has braces within braces: write the format out")
    formatter = _RowFormatter()
    filled: list[str | None] = []
    for row, values in enumerate(iterate_rows(table.select(names))):
        filled.append(None)
        if any(value is None for value in values.values()):
            continue
        try:
            filled[row] = formatter.vformat(template, (), values)
        except (ValueError, TypeError, OverflowError, OSError):
            problem(row, f"does not fit the template {template}", values)
    return pa.chunked_array([pa.array(filled, pa.large_string())])


def _select(
    raw: _Raw,
    schema: Schema,
    columns: Mapping[str, str],
    source: str,
    flag: Callable[[str, int, str, Any], None],
) -> pa.Table:
    """Rename and fill columns by the map; keep the rest as extra columns."""
    known = {column.name for column in schema.columns}
    for name in columns:
        if name not in known:
            raise DataError(
                f"columns: '{name}' is no column of {schema.name}: {nearest(name, sorted(known))}"
            )
    table, taken, named = raw.table, set(), {}
    for name, origin in columns.items():
        if origin.startswith("="):
            constant = pa.scalar(origin[1:], pa.large_string())
            named[name] = pa.chunked_array([pa.repeat(constant, table.num_rows)])
        elif "{" in origin:
            named[name] = _fill(origin, table, source, partial(flag, name))
        elif origin in table.column_names:
            named[name] = table[origin]
            taken.add(origin)
        else:
            raise DataError(
                f"{source}: no column '{origin}' (mapped to {name}): "
                f"{nearest(origin, table.column_names)}"
            )
    for name in table.column_names:
        if name not in taken and name not in named:
            named[name] = table[name]
    return pa.table(named)


def _check_keys(table: pa.Table, schema: Schema, problem: Callable[..., None]) -> list[int]:
    """Find rows whose key was seen before; of several the smallest by content is the one kept."""
    keys = [table[name].to_pylist() for name in schema.key]
    places: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(zip(*keys, strict=True)):
        places.setdefault(key, []).append(row)
    dropped = []
    for key, rows in places.items():
        if len(rows) == 1:
            continue
        content = {row: digest(*table.slice(row, 1).to_pylist()[0].items()) for row in rows}
        kept = min(rows, key=lambda row: (content[row], row))
        for row in rows:
            if row != kept:
                same = content[row] == content[kept]
                problem(row, schema.key[0], "repeated row" if same else "duplicate id", key[0])
                dropped.append(row)
    return dropped


def fit(
    raw: _Raw,
    schema: Schema,
    source: str,
    problem: Callable[..., None],
    *,
    columns: Mapping[str, str] | None = None,
    now: float | None = None,
) -> pa.Table:
    """Fit raw rows to a schema; `problem(row, column, reason, value)` hears of each broken row."""
    rows = raw.rows
    broken: set[int] = set()

    def flag(column: str, row: int, reason: str, value: Any = None) -> None:
        if row not in broken:
            problem(rows[row], column, reason, value)
        broken.add(row)

    table = _select(raw, schema, columns or {}, source, flag)
    fitted: dict[str, pa.ChunkedArray] = {}
    latest = int((now if now is not None else time.time()) + 86_400)
    for column in schema.columns:
        name = column.name
        if name == "n_words" and schema is STORIES and columns is not None:
            # Raw input: our own count, whatever the source calls a word.
            fitted[name] = count_words(fitted["text"])
            continue
        if name not in table.column_names:
            if column.required:
                raise DataError(
                    f"{source}: column '{name}' is missing ({column.about}); it has "
                    f"{', '.join(table.column_names)}: name its origin under columns:"
                )
            fitted[name] = pa.chunked_array([pa.nulls(table.num_rows, ARROW_TYPES[column.kind])])
            continue
        values = _convert(table[name], column.kind, partial(flag, name))
        fitted[name] = values
        strange = (
            raw.strange.get((columns or {}).get(name, name)) if column.kind == "text" else None
        )
        if strange:
            for row, number in enumerate(rows):
                if number in strange:
                    flag(name, row, "not text", strange[number])
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
                flag(name, row, f"not one of {', '.join(column.choices)}", values[row].as_py())
    for name in table.column_names:
        if name not in fitted:
            extra = table[name]
            if pa.types.is_string(extra.type):
                extra = extra.cast(pa.large_string())
            fitted[name] = extra
    result = pa.table(fitted)
    keep = [row for row in range(result.num_rows) if row not in broken]
    if broken:
        result = result.take(pa.array(keep, pa.int64()))
    dropped = _check_keys(
        result, schema, lambda row, column, why, value: problem(rows[keep[row]], column, why, value)
    )
    if dropped:
        gone = set(dropped)
        result = result.take(
            pa.array([row for row in range(result.num_rows) if row not in gone], pa.int64())
        )
    return result.replace_schema_metadata(None)


def read_table(
    source: str | Path,
    schema: Schema,
    *,
    columns: Mapping[str, str] | None = None,
    set_aside: SetAside | None = None,
    where: str | None = None,
) -> pa.Table:
    """Read a table from Parquet, JSONL, CSV, a `datasets` folder or a dataset's name.

    Args:
        source: a file, a folder saved by `datasets`, or `owner/name[@revision][:split]`.
        schema: STORIES, PAIRS or VERDICTS.
        columns: where each column comes from: a column's name, or a template such as
            "{subreddit} {created_utc:%Y-%m}", or "=constant". Given (even empty), the input
            counts as raw, and `n_words` is counted anew.
        set_aside: collects broken rows. Without it the first broken row is an error.
        where: SQL condition (DuckDB) on the file's own columns, which are all text in CSV; other
            rows are left out.

    Returns:
        The declared columns first, then the extra ones; large_string, int64 and float64.

    Raises:
        DataError: no such file, not of its format, a required column missing, no usable row,
            or (without `set_aside`) a broken row, named by file, row and column.
        MissingExtraError: a dataset was named and `datasets` is not installed.
    """
    name = str(source)

    def problem(row: int, column: str, reason: str, value: Any = None) -> None:
        if set_aside is None:
            shown = "" if value is None else f" ({value!r:.80})"
            raise DataError(
                f"{name}: row {row}, column {column}: {reason}{shown}: mend or remove the row"
            )
        set_aside.add(name, row, column, reason, value)

    raw = _read_raw(source, problem)
    if raw.table.num_rows == 0 and (set_aside is None or not set_aside.rows):
        raise DataError(f"{name} holds no rows: make it again")
    if where is not None and raw.table.num_rows:
        raw = _select_rows(raw, where, name)
        if set_aside is not None:
            set_aside.not_selected += raw.left_out
        if raw.table.num_rows == 0:
            raise DataError(
                f"{name}: where: {where!r} is true of none of {raw.left_out} rows: widen it"
            )
    table = fit(raw, schema, name, problem, columns=columns) if raw.table.num_rows else raw.table
    if table.num_rows == 0:
        reasons = "; ".join(f"{why} ({n})" for why, n in (set_aside or SetAside()).counts().items())
        raise DataError(f"{name}: no usable row is left, all were set aside: {reasons}")
    return table
