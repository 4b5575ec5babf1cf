"""Casts of a chunk's rows to a schema of `litbench.data.records`.

Arrow casts columns whose values all have the right type, Python the values of other columns. DuckDB
computes SQL expressions, and writes lists and objects of Parquet as JSON.
"""

import functools
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import from_json

from litbench.data.chunks import JSON, ROW, as_json
from litbench.data.records import ARROW_TYPES, STORIES, Column, Schema, is_text
from litbench.data.text import NO_TEXT, are_empty, count_words
from litbench.runs.config import nearest
from litbench.runs.errors import DataError

# SQL literals, quoted identifiers, and bare ones that are neither fields, types nor functions.
_IDENTIFIER = re.compile(
    r"""'(?:[^']|'')*'|"((?:[^"]|"")*)"|(?<![\w.:])(?<!\bas\s)([^\W\d]\w*)(?!\w|\s*\()""",
    re.IGNORECASE,
)
# The start of a conversation, or of the parts of a message, as JSON or as Python prints it.
_CONVERSATION = r"""^\s*(\[\s*)?\{\s*['"](role|from|content|value|type)['"]\s*:\s*['"]"""
# Numbers that are years, months such as 201707 and days such as 20170714.
_DATES = ((1_900, 2_100, "%Y"), (190_001, 210_012, "%Y%m"), (10_000_000, 99_999_999, "%Y%m%d"))
_MOMENTS = r"""
SELECT CASE WHEN TRY_CAST(t AS DOUBLE) IS NULL AND regexp_matches(t, '^\s*[0-9]')
  THEN CAST(floor(epoch(TRY_CAST(t AS TIMESTAMPTZ))) AS BIGINT) END AS seconds FROM dates
"""
_SCALARS = (str, int, float, Decimal)


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
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


class Broken(NamedTuple):
    """The first problem of a row; the column is empty for rows left out by `where`."""

    column: str
    reason: str
    value: str | None = None


def cast_rows(
    source: str,
    rows: pa.Table,
    schema: Schema,
    columns: Mapping[str, str] | None,
    where: str | None,
    *,
    nested: bool,
) -> tuple[pa.Table, list[tuple[int, Broken]]]:
    """Cast a chunk's rows to a schema; for the options see `litbench.data.ingest.ReadOptions`.

    Returns:
        The declared columns, extra columns and `ROW` of the good rows; and the other rows.
    """
    mapped = dict(columns or {})
    allowed = [column.name for column in schema.columns]
    for name in mapped.keys() - set(allowed):
        advice = nearest(name, allowed)
        raise DataError(f"{source}: columns: '{name}' is not a column of {schema.name}: {advice}")
    ignored = {*mapped, *mapped.values()}
    origins = mapped | {name: name for name in rows.column_names if name not in ignored}
    is_counted = schema is STORIES and columns is not None
    for column in schema.columns:
        is_given = column.name in origins or (is_counted and column.name == "n_words")
        if column.required and not is_given:
            advice = "" if columns is None else ": map it to a column or an SQL expression"
            raise DataError(
                f"{source}: column '{column.name}' is missing ({column.about}); it has "
                f"{', '.join(name for name in origins if name != ROW)}{advice}"
            )
    as_they_are = [name for name in origins if nested and name not in allowed]
    values, broken = _select(source, rows, origins, where, as_they_are)
    fitted = {}
    for column in schema.columns:
        fitted[column.name] = pa.nulls(values.num_rows, ARROW_TYPES[column.kind])
        if column.name in origins and not (is_counted and column.name == "n_words"):
            fitted[column.name] = _fit(column, values[column.name], broken)
    table = pa.table(
        fitted | {n: _extra(values[n]) for n in values.column_names if n not in allowed}
    )
    others = [(table[ROW][index].as_py(), row) for index, row in sorted(broken.items())]
    if broken:
        is_good = np.ones(table.num_rows, bool)
        is_good[list(broken)] = False
        table = table.filter(is_good)
    changes = {c.name: _whole(table[c.name]) for c in schema.columns if c.kind == "score"}
    if is_counted:
        changes["n_words"] = count_words(table["text"])
    for name, values in changes.items():
        if values is not None:
            table = table.set_column(table.column_names.index(name), name, values)
    return table, others


def _select(
    source: str,
    rows: pa.Table,
    origins: Mapping[str, str],
    where: str | None,
    as_they_are: Collection[str],
) -> tuple[pa.Table, dict[int, Broken]]:
    """Return the values of columns and SQL expressions, and the rows that fail or are left out.

    Lists and objects become JSON, except columns `as_they_are`.
    """
    if any("unnest(" in origin.lower() for origin in origins.values()):
        # Lists would be repeated in full in each of their rows.
        origins = {n: o for n, o in origins.items() if n != o or "list<" not in str(rows[n].type)}
    direct = [
        name
        for name, origin in origins.items()
        if origin in rows.column_names and not pa.types.is_nested(rows[origin].type)
    ]
    computed = {name: origin for name, origin in origins.items() if name not in direct}
    broken: dict[int, Broken] = {}
    columns = {}
    if computed or where is not None:
        (*structs, is_chosen, numbers), kinds = _compute(source, rows, computed, where, as_they_are)
        _flag(broken, Broken("", ""), pc.invert(is_chosen))
        for (name, origin), struct, kind in zip(computed.items(), structs, kinds, strict=False):
            _flag(broken, Broken(name, f"cannot be computed: {origin}"), pc.is_null(struct))
            values = pc.struct_field(struct, "v")
            if kind == "STRUCT(v JSON)":
                values = values.cast(JSON)
            elif pa.types.is_nested(values.type) and name not in as_they_are:
                values = as_json(values.to_pylist())
            columns[name] = values
        if not numbers.equals(rows[ROW]):
            rows = rows.take(np.searchsorted(rows[ROW].to_numpy(), numbers.to_numpy()))
    columns |= {name: rows[origins[name]] for name in direct}
    return pa.table({name: columns[name] for name in origins}), broken


def _compute(
    source: str,
    rows: pa.Table,
    origins: Mapping[str, str],
    where: str | None,
    as_they_are: Collection[str],
) -> tuple[list[pa.ChunkedArray], list[str]]:
    """Compute a struct of each origin, null if the SQL fails; whether to choose a row; and `ROW`.

    Returns:
        The columns and their SQL types.
    """
    # The source's columns by position, and by name for expressions, whose names ignore case.
    slots = {name: f'"({k})"' for k, name in enumerate(rows.column_names)}
    folded = Counter(name.casefold() for name in slots)
    aliases = [
        slot + ' AS "' + name.replace('"', '""') + '"'
        for name, slot in slots.items()
        if folded[name.casefold()] == 1
    ]
    scope = f"(SELECT {', '.join(['*', *aliases])} FROM raw)"  # noqa: S608

    def slot(match: re.Match[str]) -> str:
        name = match[2] or (match[1] or "").replace('""', '"')
        is_exact = match[1] is not None or folded[name.casefold()] > 1
        return slots.get(name, match[0]) if is_exact else match[0]

    def exact(sql: str) -> str:
        """Refer to columns by position: quoted names, and names that differ only in case."""
        return _IDENTIFIER.sub(slot, sql) + "\n"

    items = []
    for k, (name, origin) in enumerate(origins.items()):
        value = slots.get(origin) or exact(origin)
        if origin in slots and name not in as_they_are:
            value = f"to_json({value})"
        value = f"struct_pack(v := ({value}))"
        # TRY does not accept unnest.
        items.append(f"{value if 'unnest(' in origin.lower() else f'TRY({value})'} AS s{k}")
    is_chosen = "true" if where is None else f"coalesce(({exact(where)})::BOOLEAN, false)"
    everything = ", ".join([*items, f"{is_chosen} AS chosen", f"{slots[ROW]} AS number"])
    with closing(_database().cursor()) as connection:
        connection.register("raw", rows.rename_columns([f"({k})" for k in range(len(slots))]))
        try:
            relation = connection.sql(f"SELECT {everything} FROM {scope}")  # noqa: S608
        except duckdb.Error:
            for item, (name, origin) in zip(items, origins.items(), strict=True):
                try:
                    connection.sql(f"SELECT {item} FROM {scope}")  # noqa: S608
                except duckdb.Error as error:
                    reason = str(error).partition("\n")[0]
                    raise DataError(
                        f"{source}: no column '{origin}' (mapped to {name}), nor is it SQL "
                        f"({reason}): {nearest(origin, rows.column_names)}"
                    ) from error
            raise
        return relation.to_arrow_table().columns, list(map(str, relation.types))


# Values -----------------------------------------------------------------------------------------


def _flag(broken: dict[int, Broken], problem: Broken, mask: Any, values: Any = None) -> None:
    """Note a problem of the rows where `mask` is true and that have no earlier one."""
    if not pc.any(mask).as_py():
        return
    for index in pc.indices_nonzero(pc.fill_null(mask, fill_value=False)).to_pylist():
        value = _extra(values[index : index + 1]).cast(pa.large_string())[0] if values else None
        broken.setdefault(index, problem._replace(value=value and value.as_py()))


def _fit(column: Column, values: pa.ChunkedArray, broken: dict[int, Broken]) -> pa.ChunkedArray:
    """Cast a column, and note the rows whose values the schema does not allow."""
    fitted = _cast(values, column.kind)

    def flag(reason: str, mask: Any, shown: pa.ChunkedArray | None = None) -> None:
        _flag(broken, Broken(column.name, reason), mask, shown)

    flag(_CASTS[column.kind][1], pc.and_(pc.is_valid(values), pc.is_null(fitted)), values)
    if column.required:
        flag("null", pc.is_null(values))
    if column.is_story:
        flag(NO_TEXT, are_empty(fitted))
    if column.required and column.kind == "text":
        is_list = pc.match_substring_regex(fitted, _CONVERSATION)
        flag("a list of messages, not a text", is_list, values)
    if column.kind == "time":
        flag("in the future", pc.greater(fitted, int(time.time()) + 86_400), values)
    if column.choices:
        is_choice = pc.is_in(fitted, pa.array([*column.choices, None], fitted.type))
        flag(f"not one of {', '.join(column.choices)}", pc.invert(is_choice), values)
    return fitted


def _cast(values: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """Cast values to a kind of column; null if a value cannot be cast."""
    dtype = values.type
    if kind == "text" and (is_text(dtype) or pa.types.is_integer(dtype)):
        return values.cast(pa.large_string())
    if kind == "messages" and not pa.types.is_floating(dtype):
        return _extra(values).cast(pa.large_string())
    if kind == "time" and (pa.types.is_timestamp(dtype) or pa.types.is_date(dtype)):
        moments = values.cast(pa.timestamp("us", getattr(dtype, "tz", None)))
        return pc.divide(moments.cast(pa.int64()), 1_000_000)
    if kind == "number" and (pa.types.is_floating(dtype) or pa.types.is_integer(dtype)):
        numbers = values.cast(pa.float64(), safe=False)
        return pc.if_else(pc.is_finite(numbers), numbers, None)
    whole = _whole(values) if kind in ("integer", "score", "time") else None
    # Smaller numbers are not Unix seconds.
    if whole is not None and (kind != "time" or (pc.min(whole).as_py() or 0) > 99_999_999):
        return whole
    items: Iterable[Any] = values.to_pylist()
    if isinstance(dtype, pa.JsonType):
        items = (from_json(text) if text and text[0] not in "[{" else None for text in items)
    scalars = [v if isinstance(v, _SCALARS) and not isinstance(v, bool) else None for v in items]
    results = [None if value is None else _CASTS[kind][0](value) for value in scalars]
    if kind == "score" and any(isinstance(result, float) for result in results):
        results = [None if result is None else float(result) for result in results]
        return pa.chunked_array([pa.array(results, pa.float64())])
    fitted = pa.chunked_array([pa.array(results, ARROW_TYPES[kind])])
    if kind != "time" or fitted.null_count == values.null_count:
        return fitted
    pairs = zip(scalars, results, strict=True)
    texts = [v if r is None and isinstance(v, str) else None for v, r in pairs]
    with closing(_database().cursor()) as connection:
        connection.register("dates", pa.table({"t": pa.array(texts, pa.large_string())}))
        return pc.coalesce(fitted, connection.sql(_MOMENTS).to_arrow_table()["seconds"])


def _whole(values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return int64 if all values are whole numbers, or decimal digits of these."""
    dtype = values.type
    if not (is_text(dtype) or pa.types.is_integer(dtype) or pa.types.is_floating(dtype)):
        return None
    try:
        whole = values.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    # Arrow reads hexadecimal numbers, too.
    return whole if not is_text(dtype) or whole.cast(dtype).equals(values) else None


def _text(value: Any) -> str | None:
    if isinstance(value, float):
        # pandas writes integers as floats in a column with nulls.
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else None
    return str(value)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _integer(value: Any) -> int | None:
    if isinstance(value, int):
        whole = value
    elif re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", str(value)):
        whole = int(value)
    elif (number := _number(value)) is not None and number.is_integer():
        whole = int(number)
    else:
        return None
    return whole if -(2**63) <= whole < 2**63 else None


def _score(value: Any) -> float | None:
    if (whole := _integer(value)) is not None:
        return whole
    number = _number(value)
    return None if number is None or number.is_integer() else number


def _seconds(value: Any) -> int | None:
    """Return Unix seconds; small numbers are days of Excel, years, months and days."""
    number = _number(value)
    if number is None or abs(number) >= 2**63:
        return None
    if 25_569 <= number <= 73_050:
        return round((number - 25_569) * 86_400)
    for low, high, form in _DATES:
        if low <= number <= high and number.is_integer():
            try:
                return int(datetime.strptime(f"{number:.0f}", form).replace(tzinfo=UTC).timestamp())
            except ValueError:
                return None if form == "%Y%m%d" else int(number)
    return int(number)


# By kind of column: the cast of a value, and the reason if it fails.
_CASTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "text": (_text, "not text"),
    "messages": (str, "not text"),
    "integer": (_integer, "not a whole number"),
    "number": (_number, "not a finite number"),
    "time": (_seconds, "not a time (Unix seconds, ISO 8601, a year or a day)"),
    "score": (_score, "not a number"),
}


def _extra(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column that is not in the schema; texts of JSON are written without quotes."""
    dtype = values.type
    if isinstance(dtype, pa.JsonType):
        texts = values.cast(pa.large_string())
        if not pc.any(pc.starts_with(texts, '"')).as_py():
            return texts
        items = (from_json(v) if v and v[0] == '"' else v for v in texts.to_pylist())
        return pa.chunked_array([pa.array(items, pa.large_string())])
    return values.cast(pa.large_string()) if is_text(dtype) else values
