"""SQL that casts the columns of a chunk to a schema of `litbench.data.records`.

Each value is cast once. A struct of column, reason and value has the first problem of each row.
"""

import functools
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import duckdb

from litbench.data.chunks import KEY, LINE, PROBLEM, ROW, database
from litbench.data.records import STORIES, Schema
from litbench.data.text import EMPTY, NO_TEXT
from litbench.runs.config import nearest
from litbench.runs.errors import DataError

# Prefix of the column with the whole numbers among scores, null for other scores.
WHOLE_SCORE = "(whole) "

# SQL literals, quoted identifiers, and bare ones that are neither fields, types nor functions.
_IDENTIFIER = re.compile(
    r"""'(?:[^']|'')*'|"((?:[^"]|"")*)"|(?<![\w.:])(?<!\bas\s)([^\W\d]\w*)(?!\w|\s*\()""",
    re.IGNORECASE,
)

# Regular expressions are slow, so the first character decides where it can.
_MACROS = r"""
CREATE MACRO is_empty(t) AS CASE
  WHEN unicode(t) BETWEEN 33 AND 126 AND unicode(t) <> ord('&') THEN false
  ELSE regexp_full_match(t, '{empty}')
END;
-- The start of a conversation, or of the parts of a message, as JSON or as Python prints it.
CREATE MACRO is_conversation(t) AS CASE
  WHEN unicode(t) > 32 AND unicode(t) NOT IN (ord('['), ord('{')) THEN false
  ELSE regexp_matches(t,
    '^\s*(\[\s*)?\{\s*[''"](role|from|content|value|type)[''"]\s*:\s*[''"]')
END;
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
""".replace("{empty}", EMPTY)
# By kind of column: the macro that converts a text, the SQL type, and the reason if it fails.
_KINDS = {
    "text": ("", "VARCHAR", "not text"),
    "messages": ("", "VARCHAR", "not text"),
    "integer": ("as_whole", "BIGINT", "not a whole number"),
    "number": ("as_number", "DOUBLE", "not a finite number"),
    "time": ("as_time", "BIGINT", "not a time (Unix seconds, ISO 8601, a year or a day)"),
    "score": ("as_score", "DOUBLE", "not a number"),
}
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_AS_TEXT = ("VARCHAR", "UUID", "UBIGINT", "HUGEINT", "DECIMAL")


@functools.cache
def connect() -> duckdb.DuckDBPyConnection:
    """Open the database with the macros of the casts."""
    connection = database()
    connection.execute(_MACROS)
    return connection


def _as_text(value: str, form: str, kind: str) -> str:
    """Return SQL for what a macro or a cast reads of a value of an SQL type; null if it cannot."""
    if kind == "messages":
        return f"({_extra(value, form)})::VARCHAR"
    if kind == "time" and form.startswith(("DATE", "TIMESTAMP")):
        return f"trunc(epoch(TRY_CAST({value} AS TIMESTAMP)))"
    if form in _WHOLE:
        return f"CAST({value} AS VARCHAR)" if kind == "text" else value
    if form == "JSON":
        is_scalar = f"json_type({value}) IN ('VARCHAR', 'BIGINT', 'UBIGINT', 'DOUBLE')"
        if kind == "text":
            is_whole = f"regexp_full_match({value}->>'$', '-?[0-9]+')"
            is_scalar = f"json_type({value}) = 'VARCHAR' OR {is_whole}"
        return f"CASE WHEN {is_scalar} THEN {value}->>'$' END"
    if form in ("DOUBLE", "FLOAT") and kind == "text":
        # pandas writes integers as floats in a column with nulls.
        is_whole = f"{value} = trunc({value}) AND abs({value}) < 9007199254740992"
        return f"CASE WHEN {is_whole} THEN {value}::BIGINT::VARCHAR END"
    if form.startswith((*_AS_TEXT, "DOUBLE", "FLOAT")) and not form.endswith("]"):
        return f"{value}::VARCHAR"
    return "NULL::VARCHAR"


def _macro(form: str, kind: str) -> str:
    """Return the macro that converts what `_as_text` returns to a kind of column; may be empty."""
    if form in _WHOLE:
        return "as_seconds" if kind == "time" else ""
    is_converted = kind == "time" and form.startswith(("DATE", "TIMESTAMP"))
    return "" if is_converted or not form else _KINDS[kind][0]


def _extra(value: str, form: str, *, nested: bool = False) -> str:
    """Return SQL for a column that is not in the schema; see `ReadOptions.nested`."""
    if form == "JSON":
        # Texts are written without quotes.
        return f"({value}->>'$')"
    if form.startswith("TIME") and form.endswith("_NS"):
        # Python reads nanoseconds only with pandas.
        return f"{value}::{form.removesuffix('_NS')}"
    if form == "INTERVAL":
        # Parquet has no such type.
        return f"{value}::VARCHAR"
    is_nested = form.endswith("]") or form.startswith(("STRUCT", "MAP", "UNION"))
    if nested and not re.search(r"\b(UNION|INTERVAL|JSON)\b", form):
        return value
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


def cast_query(
    connection: duckdb.DuckDBPyConnection,
    source: str,
    names: Sequence[str],
    rows: str,
    schema: Schema,
    columns: Mapping[str, str] | None,
    where: str | None,
    *,
    nested: bool = False,
) -> tuple[str, list[str]]:
    """Return SQL that fits the rows of a source's chunks, an SQL relation, to a schema.

    Returns:
        The SQL and the names of its columns. After the fitted columns come `ROW`, `KEY` and
        `PROBLEM`: column, reason and value of the first problem, null for good rows. The column is
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
    texts: dict[str, str] = {}
    fitted = {}
    for column in schema.columns:
        name, (_, sql_type, reason) = column.name, _KINDS[column.kind]
        value, kind = foreign.pop(name, ("NULL", ""))
        if name == "n_words" and schema is STORIES and columns is not None:
            # Counted later by our rule.
            fitted[name] = "NULL::BIGINT"
            continue
        if not kind and column.required:
            advice = "" if columns is None else ": map it to a column or an SQL expression"
            raise DataError(
                f"{source}: column '{name}' is missing ({column.about}); it has "
                f"{', '.join(origins)}{advice}"
            )
        converted, text, shown = f"o{len(fitted)}", f"t{len(fitted)}", _extra(value, kind)
        texts[text] = _as_text(value, kind, column.kind) if kind else value
        fitted[name] = f"({_macro(kind, column.kind)}({text}))::{sql_type}"
        if kind not in ("", sql_type) or kind == "DOUBLE":
            failed = f"{value} IS NOT NULL AND {converted} IS NULL"
            flag(name, reason, failed, shown)
        if column.kind == "score":
            whole = f"{_macro(kind, 'integer')}({text})"
            # DOUBLE holds whole numbers up to 2^53 exactly.
            fitted[WHOLE_SCORE + name] = (
                f"CASE WHEN abs({converted}) < 9007199254740992 "
                f"THEN CASE WHEN {converted} = trunc({converted}) THEN {converted}::BIGINT END "
                f"ELSE ({whole})::BIGINT END"
            )
        if column.required:
            flag(name, "null", f"{value} IS NULL")
        if column.is_story:
            flag(name, NO_TEXT, f"is_empty({converted})")
        if column.required and column.kind == "text":
            is_list = f"is_conversation({converted})"
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
            fitted[name] = _extra(value, kind, nested=nested)
    output = {name: f"o{k}" for k, name in enumerate(fitted)}
    key = ", ".join(output[name] for name in schema.key) or "0"
    # Nested, so that each value is computed once.
    inner = ", ".join(f"{value} AS {output[name]}" for name, value in fitted.items())
    read = "".join(f", {value} AS {text}" for text, value in texts.items())
    sql = (
        f'SELECT {", ".join(output.values())}, "{ROW}", hash({key}), CASE {" ".join(cases)} END '  # noqa: S608
        f"FROM (SELECT *, {inner} FROM (SELECT *{read} FROM ({values})))"
    )
    return sql, [*fitted, ROW, KEY, PROBLEM]


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
