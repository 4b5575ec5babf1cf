"""Story, Pair, Verdict: the schemas, reading and writing them.

Three tables carry everything (`STORIES`, `PAIRS`, `VERDICTS`). They are Arrow tables in memory
and Parquet on disk; JSONL, CSV and `datasets` go in and out. Times are whole seconds since 1970
in UTC. A row that breaks its schema is set aside with its reason when the caller brings a
`SetAside`, and is an error that names file, row and column when not.
"""

import contextlib
import csv
import hashlib
import itertools
import json
import string
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from litbench.config import nearest
from litbench.errors import DataError, MissingExtraError
from litbench.text import count_words, digest, prompt_key

Kind = Literal["text", "integer", "number", "time"]

_ARROW = {
    "text": pa.large_string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "time": pa.int64(),
}
_LARGEST_LINE = 256 << 20
_ROW_GROUP = 16_384


@dataclass(frozen=True)
class Column:
    """One column of a schema; `required` columns exist and hold no null."""

    name: str
    kind: Kind
    about: str
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schema:
    """A table's columns, in the order in which they are written."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def arrow(self) -> pa.Schema:
        """The Arrow schema of the declared columns."""
        return pa.schema(
            [pa.field(c.name, _ARROW[c.kind], nullable=not c.required) for c in self.columns]
        )


STORIES = Schema(
    "stories",
    (
        Column("story_id", "text", "unique name of the story", required=True),
        Column("prompt_id", "text", "the post or task it answers", required=True),
        Column("prompt", "text", "the prompt's text", required=True),
        Column("text", "text", "the story's text", required=True),
        Column("n_words", "integer", "length in words, see litbench.text", required=True),
        Column("source", "text", "where it comes from", required=True),
        Column("score", "integer", "net upvotes; may be negative"),
        Column("score_utc", "time", "when the score was read"),
        Column("created_utc", "time", "when the story was posted"),
        Column("author", "text", "salted hash of the author's name"),
        Column("flair", "text", "the post's tag, such as WP"),
        Column("n_tokens", "integer", "length in tokens of the tokenizer the manifest names"),
    ),
    key=("story_id",),
)

PAIRS = Schema(
    "pairs",
    (
        Column("pair_id", "text", "unique name; the same whichever side is chosen", required=True),
        Column("prompt_id", "text", "the prompt both stories answer", required=True),
        Column("prompt", "text", "the prompt's text", required=True),
        Column("chosen", "text", "text of the preferred story", required=True),
        Column("rejected", "text", "text of the other story", required=True),
        Column(
            "label_source",
            "text",
            "who preferred it",
            required=True,
            choices=("votes", "people", "model", "planted"),
        ),
        Column("split", "text", "train, test or another name; all when not split", required=True),
        Column("chosen_story_id", "text", "story_id of chosen", required=True),
        Column("rejected_story_id", "text", "story_id of rejected", required=True),
        Column("chosen_n_words", "integer", "words of chosen", required=True),
        Column("rejected_n_words", "integer", "words of rejected", required=True),
        Column("chosen_score", "integer", "net upvotes of chosen"),
        Column("rejected_score", "integer", "net upvotes of rejected"),
        Column("chosen_created_utc", "time", "when chosen was posted"),
        Column("rejected_created_utc", "time", "when rejected was posted"),
        Column("chosen_author", "text", "salted hash"),
        Column("rejected_author", "text", "salted hash"),
        Column("margin", "number", "by how much chosen should lead, in reward"),
        Column("weight", "number", "weight of the pair in training"),
        Column("fold", "text", "fold the source assigned"),
    ),
    key=("pair_id",),
)

OUTCOMES = ("chosen", "rejected", "tie", "unparsed", "refused", "error")

VERDICTS = Schema(
    "verdicts",
    (
        Column("pair_id", "text", "the pair judged", required=True),
        Column("rater", "text", "name of the rater in the run's config", required=True),
        Column("kind", "text", "kind of rater", required=True),
        Column("order", "text", "story that stood first; null without order",
               choices=("chosen", "rejected")),
        Column("outcome", "text", "what the rater decided", required=True, choices=OUTCOMES),
        Column("p_chosen", "number", "probability given to the chosen story, 0 to 1"),
        Column("reward_chosen", "number", "reward of the chosen story"),
        Column("reward_rejected", "number", "reward of the rejected story"),
        Column("explanation", "text", "what the rater wrote"),
        Column("input_tokens", "integer", "tokens read"),
        Column("output_tokens", "integer", "tokens written"),
        Column("cost_usd", "number", "price paid"),
        Column("seconds", "number", "time spent on this verdict"),
        Column("fold", "text", "repeat/fold whose model judged it; null outside cross-validation"),
    ),
    key=("pair_id", "rater", "order", "fold"),
)  # fmt: skip


@dataclass
class SetAside:
    """Rows that could not be used, each with its reason.

    Attributes:
        rows: file, row (from 1), column, reason and the start of the offending value.
        not_selected: rows left out because the caller's own condition said so.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    not_selected: int = 0

    def add(self, file: str, row: int, column: str, reason: str, value: Any = None) -> None:
        """Note one row; `row` counts from 1 in the file's own order."""
        shown = None if value is None else repr(value)[:120]
        self.rows.append(
            {"file": file, "row": row, "column": column, "reason": reason, "value": shown}
        )

    def counts(self) -> dict[str, int]:
        """How many rows per column and reason, most frequent first."""
        counter = Counter(f"{row['column']}: {row['reason']}" for row in self.rows)
        return dict(sorted(counter.items(), key=lambda item: (-item[1], item[0])))

    def write(self, path: Path) -> None:
        """Write the rows as JSONL, in the order of the file."""
        ordered = sorted(self.rows, key=lambda row: (row["file"], row["row"]))
        lines = (json.dumps(row, ensure_ascii=True) + "\n" for row in ordered)
        path.write_text("".join(lines), encoding="utf-8")


# Reading files as they are -------------------------------------------------------------------


@dataclass
class _Raw:
    """A file's rows before any check: the table and each row's number in the file."""

    table: pa.Table
    rows: Sequence[int]
    left_out: int = 0


def _from_dicts(records: list[dict[str, Any]]) -> pa.Table:
    """Columns of mixed types become JSON text, to be judged value by value later."""
    names = list(dict.fromkeys(name for record in records for name in record))
    columns = {}
    for name in names:
        values = [record.get(name) for record in records]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            columns[name] = pa.array(
                [v if v is None or isinstance(v, str) else json.dumps(v) for v in values],
                pa.large_string(),
            )
    return pa.table(columns)


def _read_jsonl_by_line(path: Path, problem: Callable[..., None]) -> _Raw:
    records, rows = [], []
    with path.open("rb") as file:
        for row, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode("utf-8"))
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
            records.append(record)
            rows.append(row)
    return _Raw(_from_dicts(records), rows)


def _read_jsonl(path: Path, problem: Callable[..., None]) -> _Raw:
    try:
        # One block holds at least one line, so the block must be as large as the longest line.
        options = pa_json.ReadOptions(block_size=min(max(path.stat().st_size, 1), 64 << 20))
        table = pa_json.read_json(path, read_options=options)
        table.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        # Something does not fit: go line by line, which finds out what and where.
        return _read_jsonl_by_line(path, problem)
    return _Raw(table, range(1, table.num_rows + 1))


def _read_csv_by_row(path: Path, problem: Callable[..., None]) -> _Raw:
    records, rows = [], []
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        csv.field_size_limit(_LARGEST_LINE)
        reader = csv.reader(file)
        names = next(reader, [])
        row = 0
        while True:
            row += 1
            try:
                values = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                problem(row, "(row)", "not CSV", str(error))
                continue
            if not values:
                continue
            if len(values) != len(names):
                problem(row, "(row)", f"{len(values)} fields under {len(names)} headings", values[0])
                continue
            if any("\ud800" <= letter <= "\udfff" for value in values for letter in value):
                problem(row, "(row)", "bytes that are not UTF-8")
                continue
            records.append({n: v if v else None for n, v in zip(names, values, strict=True)})
            rows.append(row)
    table = _from_dicts(records) if records else pa.table({n: pa.array([], pa.large_string()) for n in names})
    return _Raw(table, rows)


def _read_csv(path: Path, problem: Callable[..., None]) -> _Raw:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            names = next(csv.reader(file), [])
        table = pa_csv.read_csv(
            path,
            read_options=pa_csv.ReadOptions(block_size=64 << 20),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.large_string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return _read_csv_by_row(path, problem)
    return _Raw(table, range(1, table.num_rows + 1))


def _read_parquet(path: Path, problem: Callable[..., None]) -> _Raw:
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
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
        raise MissingExtraError("datasets", "train") from error
    path = Path(source)
    try:
        if path.is_dir():
            loaded = datasets.load_from_disk(str(path))
            name, split = str(path), ""
        else:
            name, _, split = source.partition(":")
            name, _, revision = name.partition("@")
            loaded = datasets.load_dataset(name, split=split or None, revision=revision or None)
    except Exception as error:  # noqa: BLE001 - the library raises dozens of types
        raise DataError(
            f"cannot load the dataset {source!r} ({type(error).__name__}: {error}): check the name "
            "(owner/name, owner/name@revision, owner/name:split), the network and your access"
        ) from error
    if isinstance(loaded, dict):
        raise DataError(f"{source} has splits {sorted(loaded)}: name one, as {name}:{min(loaded)}")
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
        return _READERS[path.suffix](path, problem)
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
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("a fraction where a whole number belongs")
    number = int(value)
    if abs(number) >= 1 << 63:
        raise ValueError("a number too large for 64 bits")
    return number


def _to_number(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError("true or false where a number belongs")
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError("not a finite number")
    return number


def _to_time(value: Any) -> int:
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return int(float(value))
        moment = datetime.fromisoformat(value)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    if isinstance(value, bool):
        raise ValueError("true or false where a time belongs")
    return int(value)


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int):
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
    target = _ARROW[kind]
    given = values.type
    exact = {
        "text": pa.types.is_string(given) or pa.types.is_large_string(given),
        "integer": pa.types.is_integer(given),
        "number": pa.types.is_integer(given) or pa.types.is_floating(given),
        "time": pa.types.is_integer(given),
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
            found = connection.sql(f"SELECT ({where}) FROM raw").to_arrow_table()  # noqa: S608
        except duckdb.Error as error:
            raise DataError(f"{source}: where: {where!r} cannot be evaluated: {error}") from error
    keep = pc.indices_nonzero(pc.fill_null(found.column(0).cast(pa.bool_()), fill_value=False))
    rows = [raw.rows[place] for place in keep.to_pylist()]
    return _Raw(raw.table.take(keep), rows, raw.table.num_rows - len(rows))


class _RowFormatter(string.Formatter):
    """Fills "{subreddit} {created_utc:%Y-%m}" from a row; fields are columns and nothing else."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        return kwargs[field_name], field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("%") and isinstance(value, int | float):
            value = datetime.fromtimestamp(value, UTC)
        return str(format(value, format_spec))


def _fill(template: str, table: pa.Table, source: str) -> pa.ChunkedArray:
    names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    for name in names:
        if name not in table.column_names:
            raise DataError(
                f"{source}: no column '{name}' for '{template}': {nearest(name, table.column_names)}"
            )
    if not names:
        return pa.chunked_array([pa.array([template] * table.num_rows, pa.large_string())])
    formatter = _RowFormatter()
    filled = [
        None
        if any(value is None for value in row.values())
        else formatter.vformat(template, (), row)
        for row in table.select(names).to_pylist()
    ]
    return pa.chunked_array([pa.array(filled, pa.large_string())])


def _select(raw: _Raw, schema: Schema, columns: Mapping[str, str], source: str) -> pa.Table:
    """Rename and fill columns by the map; keep the rest as extra columns."""
    known = {column.name for column in schema.columns}
    for name in columns:
        if name not in known:
            raise DataError(f"columns: '{name}' is no column of {schema.name}: {nearest(name, sorted(known))}")
    table, taken, named = raw.table, set(), {}
    for name, origin in columns.items():
        if "{" in origin or origin.startswith("="):
            named[name] = _fill(origin.removeprefix("="), table, source)
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
    columns: Mapping[str, str] | None = None,
    now: float | None = None,
) -> pa.Table:
    """Fit raw rows to a schema; `problem(row, column, reason, value)` hears of each broken row."""
    table = _select(raw, schema, columns or {}, source)
    rows = raw.rows
    broken: set[int] = set()

    def flag(row: int, column: str, reason: str, value: Any = None) -> None:
        if row not in broken:
            problem(rows[row], column, reason, value)
        broken.add(row)

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
            fitted[name] = pa.chunked_array([pa.nulls(table.num_rows, _ARROW[column.kind])])
            continue
        values = _convert(
            table[name], column.kind, lambda row, why, value, name=name: flag(row, name, why, value)
        )
        fitted[name] = values
        if column.required:
            for row in pc.indices_nonzero(pc.is_null(values)).to_pylist():
                flag(row, name, "null")
        if column.kind == "time":
            future = pc.fill_null(pc.greater(values, latest), fill_value=False)
            for row in pc.indices_nonzero(future).to_pylist():
                flag(row, name, "in the future", values[row].as_py())
        if column.choices:
            allowed = pc.is_in(values, value_set=pa.array(column.choices, pa.large_string()))
            wrong = pc.and_(pc.is_valid(values), pc.invert(allowed))
            for row in pc.indices_nonzero(wrong).to_pylist():
                flag(row, name, f"not one of {', '.join(column.choices)}", values[row].as_py())
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
        where: SQL condition (DuckDB) on the file's own columns; other rows are left out.

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
    if where is not None:
        raw = _select_rows(raw, where, name)
        if set_aside is not None:
            set_aside.not_selected += raw.left_out
    table = fit(raw, schema, name, problem, columns) if raw.table.num_rows else raw.table
    if table.num_rows == 0:
        reasons = "; ".join(f"{why} ({n})" for why, n in (set_aside or SetAside()).counts().items())
        raise DataError(f"{name}: no usable row is left, all were set aside: {reasons}")
    return table


def check_parquet(path: Path, schema: Schema) -> None:
    """Check a Parquet file's columns and nulls against a schema, without reading its texts.

    Raises:
        DataError: no such file, not Parquet, no rows, a column missing, of another type, or null
            where it must not be.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}: check the path, or run the step that writes it")
    try:
        file = pq.ParquetFile(path)
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
        found, wanted = given.field(column.name).type, _ARROW[column.kind]
        text = pa.types.is_string(found) or pa.types.is_large_string(found)
        if not (text if column.kind == "text" else found == wanted):
            raise DataError(f"{path}: column '{column.name}' holds {found}, not {wanted}: make it again")
        if column.required:
            place = given.names.index(column.name)
            nulls = 0
            for group in range(file.metadata.num_row_groups):
                statistics = file.metadata.row_group(group).column(place).statistics
                nulls += statistics.null_count if statistics is not None else 0
            if nulls:
                raise DataError(f"{path}: column '{column.name}' has {nulls} nulls: make it again")


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table as Parquet, JSONL or CSV by the path's ending, or else as a `datasets` folder.

    The same table gives the same bytes.

    Raises:
        MissingExtraError: a folder was asked for and `datasets` is not installed.
    """
    if path.suffix == ".parquet":
        pq.write_table(table, path, compression="zstd", row_group_size=_ROW_GROUP)
    elif path.suffix in (".jsonl", ".ndjson"):
        with path.open("w", encoding="utf-8") as file:
            for row in iterate_rows(table):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    elif path.suffix == ".csv":
        pa_csv.write_csv(table, path)
    else:
        try:
            import datasets  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("datasets", "train") from error
        datasets.Dataset(datasets.table.InMemoryTable(table)).save_to_disk(str(path))


def iterate_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows as dictionaries, a batch at a time."""
    for batch in table.to_batches(max_chunksize=1_000):
        yield from batch.to_pylist()


def empty_columns(schema: Schema, rows: int) -> dict[str, pa.Array]:
    """Null columns for every declared column of a schema; shape (rows,) each."""
    return {column.name: pa.nulls(rows, _ARROW[column.kind]) for column in schema.columns}


def pair_id(story_a: str, story_b: str) -> str:
    """Name a pair by its two stories; the same in either order, and in SQL (md5 of "low|high")."""
    low, high = sorted((story_a, story_b))
    return hashlib.md5(f"{low}|{high}".encode(), usedforsecurity=False).hexdigest()


def prompt_keys(table: pa.Table) -> list[str]:
    """`litbench.text.prompt_key` of every row's prompt: the clusters and groups of all statistics."""
    prompts = table["prompt"].to_pylist()
    keys = {prompt: prompt_key(prompt) for prompt in set(prompts)}
    return [keys[prompt] for prompt in prompts]


def write_sorted_batches(batches: pa.RecordBatchReader, schema: Schema, path: Path) -> int:
    """Write a stream of rows as Parquet with a schema's columns first; return the rows written.

    Row groups have a fixed size whatever the batches, so the same rows give the same bytes.
    """
    names = [column.name for column in schema.columns]
    extra = [name for name in batches.schema.names if name not in names]
    target = pa.schema(
        [*schema.arrow(), *(batches.schema.field(name).with_metadata(None) for name in extra)]
    )
    rows = 0
    with pq.ParquetWriter(path, target, compression="zstd") as writer:
        waiting: list[pa.Table] = []
        for batch in itertools.chain(batches, [None]):
            if batch is not None:
                waiting.append(pa.Table.from_batches([batch]).select(target.names).cast(target))
            held = sum(table.num_rows for table in waiting)
            if held < _ROW_GROUP and batch is not None:
                continue
            table = pa.concat_tables(waiting) if waiting else target.empty_table()
            whole = table.num_rows if batch is None else held - held % _ROW_GROUP
            writer.write_table(table.slice(0, whole), row_group_size=_ROW_GROUP)
            waiting = [table.slice(whole)]
            rows += whole
    return rows
