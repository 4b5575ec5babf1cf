"""Reading tables: rows of any format, fitted to a schema one by one.

Programs read what fits into memory through `read_table`, and raw input of any size through
`stream_table` or, where repeated ids must be found and all chunks have the same columns,
`litbench.large_table`. A row that breaks its schema is set aside with its reason when the caller
brings a `RejectedRows`, and is an error that names file, row and column when not.
"""

import json
import math
import re
import string
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from litbench.config import nearest
from litbench.errors import DataError
from litbench.formats import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    Problem,
    RawRows,
    as_column,
    as_text,
    read_raw,
    without_point,
)
from litbench.records import (
    ARROW_TYPES,
    STORIES,
    Kind,
    RejectedRows,
    Schema,
    cut_rows,
    iterate_rows,
    row_sizes,
)
from litbench.text import count_words, digest

# The column of `read_table` that has each row's number in the source.
ROW = "(row)"

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


def _select_rows(raw: RawRows, where: str, source: str) -> RawRows:
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
    return raw.take(pc.indices_nonzero(pc.fill_null(found.column(0), fill_value=False)).to_numpy())


# One row for each element of a row's lists ---------------------------------------------------


@dataclass
class _Lists:
    """A column of lists.

    Attributes:
        lengths: elements of each row; 0 for null, -1 for what is no list.
        flatten: the elements of some rows, one after the other, and those that are strange.
    """

    lengths: np.ndarray
    flatten: Callable[[np.ndarray], tuple[pa.Array | pa.ChunkedArray, dict[int, Any]]]


def _lists_of(raw: RawRows, name: str) -> _Lists:
    column = raw.table[name]
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
        return _Lists(lengths, lambda rows: (pc.list_flatten(column.take(pa.array(rows))), {}))
    # Lists among other things, or written as JSON: one by one.
    odd = raw.strange.get(name, {})
    values = [_as_list(odd.get(row, value)) for row, value in enumerate(column.to_pylist())]

    def flatten(rows: np.ndarray) -> tuple[pa.Array, dict[int, Any]]:
        return as_column([element for row in rows for element in values[row] or ()])

    return _Lists(np.array([-1 if value is None else len(value) for value in values]), flatten)


def _as_list(value: Any) -> list[Any] | None:
    """The value as a list, empty for null; null for what is no list."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if value is None:
        return []
    return value if isinstance(value, list) else None


def _explode(
    raw: RawRows,
    names: Sequence[str],
    source: str,
    problem: Problem,
    rejected_rows: RejectedRows | None,
) -> Iterator[RawRows]:
    """One row for each element of the named lists, which belong together place by place."""
    for name in names:
        if name not in raw.table.column_names:
            raise DataError(
                f"{source}: no column '{name}' (under explode:): "
                f"{nearest(name, raw.table.column_names)}"
            )
    lists = {name: _lists_of(raw, name) for name in names}
    lengths = np.stack([one.lengths for one in lists.values()])
    for row in np.flatnonzero((lengths != lengths[0]).any(axis=0) | (lengths[0] < 0)).tolist():
        found = {name: int(one.lengths[row]) for name, one in lists.items()}
        first_broken = next((name for name, length in found.items() if length < 0), None)
        if first_broken is not None:
            problem(raw.rows[row], first_broken, "not a list", raw.table[first_broken][row].as_py())
        else:
            problem(raw.rows[row], names[0], "lists of unequal length", found)
        lengths[0, row] = -1
    if rejected_rows is not None:
        rejected_rows.empty_lists += int((lengths[0] == 0).sum())
    used = np.flatnonzero(lengths[0] > 0)
    flat = {name: one.flatten(used) for name, one in lists.items()}
    parents = np.repeat(used, lengths[0, used])
    # A post stands beside each of its stories: what was bounded before is so no longer. Its lists
    # do not, since all of them beside each of their elements is the square of their length.
    others = {name: odd for name, odd in raw.strange.items() if name not in names}
    beside = RawRows(raw.table.drop_columns(list(names)), raw.rows, others)
    sizes = np.zeros(len(raw.rows), dtype=np.int64)
    if beside.table.num_columns:
        sizes += _sizes_of_all(beside.table)
    start = 0
    for end in cut_rows(sizes[parents], CHUNK_ROWS, CHUNK_BYTES):
        piece = beside.take(parents[start:end])
        columns = {}
        for name in raw.table.column_names:
            if name not in flat:
                columns[name] = piece.table[name]
                continue
            elements, odd = flat[name]
            columns[name] = elements.slice(start, end - start)
            piece.strange[name] = {k - start: v for k, v in odd.items() if start <= k < end}
        yield RawRows(pa.table(columns), piece.rows, piece.strange, raw.read)
        start = end


def _sizes_of_all(table: pa.Table) -> np.ndarray:
    """Bytes of every row, as `row_sizes`, but not of its texts only; int64, shape (rows,)."""
    sizes = row_sizes(table)
    for column in table.columns:
        kind = column.type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            sizes += [column.slice(row, 1).nbytes for row in range(len(column))]
    return sizes


# Columns by the map --------------------------------------------------------------------------

_HASH = re.compile(r"hash\(([^()]*)\)")


def _hash_names(origin: str) -> list[str] | None:
    """The columns of "hash(title, body)"; null for another kind of origin."""
    found = _HASH.fullmatch(origin)
    return None if found is None else [name.strip() for name in found[1].split(",")]


def _origin_names(origin: str) -> list[str]:
    """The input's columns that an origin needs."""
    if origin.startswith("="):
        return []
    hashed = _hash_names(origin)
    if hashed is not None:
        return hashed
    if "{" in origin:
        return [name for _, name, _, _ in _template_parts(origin) if name is not None]
    return [origin]


def _hash(names: Sequence[str], table: pa.Table, source: str, origin: str) -> pa.ChunkedArray:
    for name in names:
        if name not in table.column_names:
            raise DataError(
                f"{source}: no column '{name}' for '{origin}': {nearest(name, table.column_names)}"
            )
    columns = [table[name].to_pylist() for name in names]
    digests = [
        None if all(value is None for value in values) else digest(*map(without_point, values))
        for values in zip(*columns, strict=True)
    ]
    return pa.chunked_array([pa.array(digests, pa.large_string())])


class _RowFormatter(string.Formatter):
    """Fills "{subreddit} {created_utc:%Y-%m}" from a row; fields are columns and nothing else."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:  # noqa: ARG002
        return kwargs[field_name], field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("%"):
            value = datetime.fromtimestamp(_to_time(value), UTC)
        return str(format(value, format_spec))


def _template_parts(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise DataError(f"columns: '{template}' is no template: {error}: mend it") from error


def _fill(
    template: str, table: pa.Table, source: str, problem: Callable[[int, str, Any], None]
) -> pa.ChunkedArray:
    fields = _template_parts(template)
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
            whole = {name: without_point(value) for name, value in values.items()}
            filled[row] = formatter.vformat(template, (), whole)
        except (ValueError, TypeError, OverflowError, OSError):
            problem(row, f"does not fit the template {template}", values)
    return pa.chunked_array([pa.array(filled, pa.large_string())])


def _select(
    raw: RawRows,
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
        elif (hashed := _hash_names(origin)) is not None:
            named[name] = _hash(hashed, table, source, origin)
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
    """Find rows whose key was seen before; see `read_table` for which one of several is kept."""
    keys = [table[name].to_pylist() for name in schema.key]
    places: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(zip(*keys, strict=True)):
        places.setdefault(key, []).append(row)
    dropped = []
    for key, rows in places.items():
        if len(rows) == 1:
            continue
        found: dict[int, tuple[bool, int, str]] = {}
        for row in rows:
            values = table.slice(row, 1).to_pylist()[0]
            time_of = None if schema.latest is None else values[schema.latest]
            found[row] = (time_of is None, -(time_of or 0), digest(*values.items()))
        _, kept = min((found[row], row) for row in rows)
        for row in rows:
            if row != kept:
                same = found[row] == found[kept]
                problem(row, schema.key[0], "repeated row" if same else "duplicate id", key[0])
                dropped.append(row)
    return dropped


def _fit(
    raw: RawRows,
    schema: Schema,
    source: str,
    problem: Problem,
    columns: Mapping[str, str] | None,
) -> RawRows:
    """Fit raw rows to a schema; `problem(row, column, reason, value)` hears of each broken row."""
    rows = raw.rows
    broken: set[int] = set()

    def flag(column: str, row: int, reason: str, value: Any = None) -> None:
        if row not in broken:
            problem(rows[row], column, reason, value)
        broken.add(row)

    table = _select(raw, schema, columns or {}, source, flag)
    fitted: dict[str, pa.ChunkedArray] = {}
    latest = int(time.time() + 86_400)
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
        values = table[name]
        if column.kind == "text":
            strange = raw.strange.get((columns or {}).get(name, name), {})
            for row, value in strange.items():
                flag(name, row, "not text", value)
            if strange and pa.types.is_floating(values.type):
                # Whole numbers among fractions, which Arrow holds as fractions too.
                whole = (None if k in strange else v for k, v in enumerate(values.to_pylist()))
                numbers = pa.array([None if v is None else int(v) for v in whole], pa.int64())
                values = pa.chunked_array([numbers])
        values = _convert(values, column.kind, partial(flag, name))
        fitted[name] = values
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
    result = RawRows(pa.table(fitted).replace_schema_metadata(None), rows, read=raw.read)
    if broken:
        return result.take([row for row in range(result.table.num_rows) if row not in broken])
    return result


# Whole tables and streams ----------------------------------


class Reader:
    """What reading one source needs to know and counts on the way."""

    def __init__(
        self,
        source: str | Path,
        schema: Schema,
        columns: Mapping[str, str] | None,
        rejected_rows: RejectedRows | None,
        where: str | None,
        explode: Sequence[str] | None = None,
    ) -> None:
        self.source = str(source)
        # Rows as they are in the source, those that `where` kept and left out, those that fit.
        self.found = self.selected = self.left_out = self.kept = 0
        self._schema = schema
        self._columns = columns
        self._set_aside = rejected_rows
        self._where = where
        self._explode = explode
        self._noted_before = 0 if rejected_rows is None else rejected_rows.total
        # The columns seen so far. JSON need not write a column out where it is null, so that a
        # chunk may lack what the next one has; a file of any other kind has them in all chunks.
        self._known: dict[str, None] = {}
        self._knows_all = Path(source).suffix not in (".jsonl", ".ndjson")

    def problem(self, row: int, column: str, reason: str, value: Any = None) -> None:
        """Note a broken row, or raise."""
        if self._set_aside is None:
            shown = "" if value is None else f" ({value!r:.80})"
            raise DataError(
                f"{self.source}: row {row}, column {column}: {reason}{shown}: mend or remove the "
                "row"
            )
        self._set_aside.add(self.source, row, column, reason, value)

    def chunks(self) -> Iterator[RawRows]:
        """Read the source as it is."""
        for chunk in read_raw(self.source, self.problem):
            self.found += chunk.table.num_rows
            yield chunk

    def stream(self) -> Iterator[RawRows]:
        """Read the source chunk by chunk, fitted to the schema; empty chunks are left out."""
        for chunk in self.chunks():
            whole = self._with_known_columns(chunk)
            pieces: Iterable[RawRows] = (whole,)
            if self._explode:
                pieces = _explode(whole, self._explode, self.source, self.problem, self._set_aside)
            for piece in pieces:
                try:
                    selected = self.select(piece)
                except DataError as error:
                    # Perhaps the condition names a column that comes later.
                    if self._knows_all or type(error.__cause__).__name__ != "BinderException":
                        raise
                    self._look_ahead(None)
                    selected = self.select(self._with_known_columns(piece))
                if selected.table.num_rows:
                    yield self.fit(selected)

    def select(self, raw: RawRows) -> RawRows:
        """The rows that the caller's condition is true of; the others are counted."""
        selected = raw
        if self._where is not None and raw.table.num_rows:
            selected = _select_rows(raw, self._where, self.source)
        self.selected += selected.table.num_rows
        left_out = raw.table.num_rows - selected.table.num_rows
        self.left_out += left_out
        if self._set_aside is not None:
            self._set_aside.not_selected += left_out
        return selected

    def fit(self, raw: RawRows) -> RawRows:
        """Fit rows to the schema."""
        fitted = _fit(raw, self._schema, self.source, self.problem, self._columns)
        self.kept += fitted.table.num_rows
        return fitted

    def refuse_nothing(self, readers: Sequence["Reader"] | None = None) -> None:
        """Raise where no row is left, for the reason why; `readers` are all of a large table."""
        readers = readers or [self]
        if sum(reader.kept for reader in readers):
            return
        name = ", ".join(reader.source for reader in readers[:3]) + ", ..." * (len(readers) > 3)
        found = sum(reader.found for reader in readers)
        left_out = sum(reader.left_out for reader in readers)
        rejected_rows = self._set_aside or RejectedRows()
        noted = rejected_rows.total - self._noted_before
        if not found and not noted:
            raise DataError(f"{name} holds no rows: make it again")
        if left_out and not sum(reader.selected for reader in readers):
            raise DataError(
                f"{name}: where: {self._where!r} is true of none of {left_out} rows: widen it"
            )
        if rejected_rows.empty_lists and not noted:
            raise DataError(
                f"{name}: the lists under explode: are empty in all {found} rows: name others"
            )
        reasons = "; ".join(f"{why} ({n})" for why, n in rejected_rows.counts().items())
        raise DataError(f"{name}: no usable row is left, all were set aside: {reasons}")

    def _wanted(self) -> set[str]:
        columns = self._columns or {}
        origins = {name for origin in columns.values() for name in _origin_names(origin)}
        for column in self._schema.columns:
            counted = column.name == "n_words" and self._columns is not None
            if column.required and column.name not in columns and not counted:
                origins.add(column.name)
        return origins | set(self._explode or ())

    def _with_known_columns(self, chunk: RawRows) -> RawRows:
        self._known.update(dict.fromkeys(chunk.table.column_names))
        if not self._knows_all and self._wanted() - set(self._known):
            self._look_ahead(self._wanted())
        table = chunk.table
        for name in self._known:
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(table.num_rows))
        # In the order in which they first came, whatever the chunks.
        table = table.select(list(self._known))
        return RawRows(table, chunk.rows, chunk.strange, chunk.read)

    def _look_ahead(self, wanted: set[str] | None) -> None:
        """Read the names of columns from the whole file, or until all wanted ones were found."""
        self._knows_all = True
        size = Path(self.source).stat().st_size
        with tqdm(
            total=size, desc="columns", unit="B", unit_scale=True, leave=False, disable=None
        ) as bar:
            for chunk in read_raw(self.source, lambda *_: None):
                self._known.update(dict.fromkeys(chunk.table.column_names))
                bar.update(chunk.read - bar.n)
                if wanted is not None and wanted <= set(self._known):
                    self._knows_all = False
                    break


def stream_all(readers: Sequence[Reader]) -> Iterator[tuple[int, RawRows]]:
    """Read sources one after the other: the number of each chunk's reader, and its rows."""
    files = [Path(reader.source) for reader in readers]
    size = sum(f.stat().st_size for f in files) if all(f.is_file() for f in files) else None
    unit = " rows" if size is None else "B"
    bar = tqdm(total=size, desc="reading", unit=unit, unit_scale=True, leave=False, disable=None)
    with bar:
        before = 0
        for number, reader in enumerate(readers):
            for chunk in reader.stream():
                if chunk.table.num_rows:
                    yield number, chunk
                # Where the bytes of a source are not known, its rows are counted.
                done = chunk.table.num_rows if size is None else before + chunk.read - bar.n
                bar.update(done)
            before = int(bar.n)


def read_table(
    source: str | Path,
    schema: Schema,
    *,
    columns: Mapping[str, str] | None = None,
    rejected_rows: RejectedRows | None = None,
    where: str | None = None,
    numbered: bool = False,
) -> pa.Table:
    """Read a table from Parquet, JSONL, CSV, a `datasets` folder or a data set's name.

    Args:
        source: a file, a folder saved by `datasets`, or `owner/name[@revision][:split]`.
        schema: STORIES, PAIRS or VERDICTS.
        columns: where each column comes from: a column's name; a template such as
            "{subreddit} {created_utc:%Y-%m}"; "hash(title, body)", which is
            `litbench.text.digest` of these columns' values (5.0 taken for 5, as in a template),
            for sets without ids, and null where all of them are; or "=constant". Given (even
            empty), the input counts as raw, and `n_words` is counted anew.
        rejected_rows: collects broken rows. Without it the first broken row is an error.
        where: SQL condition (DuckDB) on the file's own columns, which are all text in CSV; other
            rows are left out. It is a condition on one row: what it says must not depend on the
            rows beside it.
        numbered: adds the column `ROW`, each row's number in the source from 1, by which the
            caller can set rows aside as this function does.

    Returns:
        The declared columns first, then the extra ones; large_string, int64 and float64. Of rows
        with one key the one with the latest `Schema.latest` is kept, where the schema names such
        a column (a story's `score_utc`; null comes before all times), and of several such the
        smallest by content, whatever the order.

    Raises:
        DataError: no such file, not of its format, a required column missing, no usable row,
            or (without `rejected_rows`) a broken row, named by file, row and column.
        MissingExtraError: a data set was named and `datasets` is not installed.
    """
    reader = Reader(source, schema, columns, rejected_rows, where)
    chunks = [chunk for _, chunk in stream_all([reader])]
    reader.refuse_nothing()
    table = _concatenate([chunk.table for chunk in chunks])
    rows = [row for chunk in chunks for row in chunk.rows]

    def problem(place: int, column: str, reason: str, value: Any) -> None:
        reader.problem(rows[place], column, reason, value)

    gone = set(_check_keys(table, schema, problem))
    if numbered:
        table = table.select([name for name in table.column_names if name != ROW])
        table = table.append_column(ROW, pa.array(rows, pa.int64()))
    if not gone:
        return table
    return table.take(pa.array([k for k in range(table.num_rows) if k not in gone], pa.int64()))


def _concatenate(tables: Sequence[pa.Table]) -> pa.Table:
    """All rows at once; an extra column whose types have none in common holds JSON."""
    columns: dict[str, pa.ChunkedArray] = {}
    for name in dict.fromkeys(name for table in tables for name in table.column_names):
        parts = [
            table.select([name])
            if name in table.column_names
            else pa.table({name: pa.nulls(table.num_rows)})
            for table in tables
        ]
        try:
            columns[name] = pa.concat_tables(parts, promote_options="permissive")[name]
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            texts, _ = as_text(value for part in parts for value in part[name].to_pylist())
            columns[name] = pa.chunked_array([texts])
    return pa.table(columns)


def stream_table(
    source: str | Path,
    schema: Schema,
    *,
    columns: Mapping[str, str] | None = None,
    rejected_rows: RejectedRows | None = None,
    where: str | None = None,
    explode: Sequence[str] | None = None,
) -> Iterator[pa.Table]:
    """Read a table of any size chunk by chunk, in the order of the source.

    As `read_table`, with these differences: rows of one key are not looked for, and the type of
    an extra column may change from chunk to chunk where JSON has no one type for it. Both are
    what `read_large_table` is for.

    Args:
        source: see `read_table`.
        schema: see `read_table`.
        columns: see `read_table`.
        rejected_rows: see `read_table`.
        where: see `read_table`; on the columns as they are after `explode`.
        explode: columns that hold lists, or lists as JSON, of one length within a row. Each
            element becomes a row of its own, with the row's other columns beside it. A row whose
            lists differ in length is set aside, and one whose lists are empty or null is counted
            in `rejected_rows.empty_lists`.

    Yields:
        Tables of at least one row; at most some thousand rows and some hundred megabytes.

    Raises:
        DataError: see `read_table`.
        MissingExtraError: see `read_table`.
    """
    reader = Reader(source, schema, columns, rejected_rows, where, explode)
    for chunk in reader.stream():
        if chunk.table.num_rows:
            yield chunk.table
    reader.refuse_nothing()
