"""Reading foreign files (see `litbench.data.formats`), `datasets` folders and the Hub.

`read_foreign` reads a table into memory; `stream_foreign` and `StreamingTable` read input of any
size. LitBench's own tables are read by `litbench.data.tables`.

`litbench.data.chunks` reads a source chunk by chunk, and DuckDB casts each chunk to a schema by one
query of `litbench.data.casts`. Rows that do not fit the schema are collected in a `RejectedRows`
with a reason, or raise an error that names file, row and column.
"""

import functools
import itertools
import json
import sqlite3
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather

from litbench.data.casts import cast_rows
from litbench.data.chunks import LINE, ROW, read_chunks
from litbench.data.records import Schema, is_account
from litbench.data.text import digest
from litbench.runs.errors import DataError


class RejectedRows:
    """Rows that could not be used, with reasons; stored on disk, so there can be any number.

    Attributes:
        not_selected: number of rows left out by the caller's condition.
    """

    def __init__(self) -> None:
        self.not_selected = 0
        # SQLite stores an unnamed database in $TMPDIR and deletes it with the connection.
        # Another thread may collect it.
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        self._database.execute("CREATE TABLE rejected (file, row, column, reason, value)")
        self._database.execute("BEGIN")

    def add(self, file: str, row: int, column: str, reason: str, value: Any = None) -> None:
        """Add a row; `row` is its number in the file, counted from 1."""
        # Account names are not stored.
        shown = None if value is None or is_account(column) else repr(value)[:120]
        try:
            values = (file, row, column, reason, shown)
            self._database.execute("INSERT INTO rejected VALUES (?, ?, ?, ?, ?)", values)
        except sqlite3.Error as error:
            raise DataError(
                f"cannot store rejected rows ({error}): free space in the temporary folder, or set "
                "TMPDIR to another one"
            ) from error

    def reject(
        self, table: pa.Table, broken: pa.ChunkedArray, file: str, column: str, reason: str
    ) -> pa.Table:
        """Add the rows of a numbered table where `broken` is true, and return the other rows."""
        for row in table[ROW].filter(broken).to_pylist():
            self.add(file, row, column, reason)
        return table.filter(pc.invert(broken))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, sorted by file and row: file, row, column, reason, start of the value."""
        return list(self._sorted())

    def counts(self) -> dict[str, int]:
        """Count the rows by column and reason, most frequent first."""
        query = "SELECT column || ': ' || reason, count(*) FROM rejected GROUP BY 1 ORDER BY 2 DESC"
        return dict(self._database.execute(query + ", 1"))

    def summary(self) -> str:
        """Format the counts for the terminal; empty if all rows were used."""
        lines = [
            f"  rejected: {count:,} rows, {reason} (see rejected.jsonl)\n"
            for reason, count in self.counts().items()
        ]
        left_out = f"  left out by where: {self.not_selected:,} rows\n"
        return "".join(lines) + (left_out if self.not_selected else "")

    def write(self, path: Path) -> None:
        """Write the rows as JSONL, sorted by file and row."""
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in self._sorted())

    def _sorted(self) -> Iterator[dict[str, Any]]:
        names = ("file", "row", "column", "reason", "value")
        query = "SELECT * FROM rejected ORDER BY file, row, rowid"
        return (dict(zip(names, row, strict=True)) for row in self._database.execute(query))


def _distinct(
    names: Sequence[str], source: str, schema: Schema, columns: Mapping[str, str] | None
) -> list[str]:
    """Return unique names for a source's columns: "a (1)" and "a (2)" if "a" is repeated.

    Raises:
        DataError: a repeated name is a column of the schema, or of the source under `columns`.
    """
    names = [name or "unnamed" for name in names]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    read = {column.name for column in schema.columns} | set((columns or {}).values())
    if unclear := sorted(read & repeated):
        raise DataError(f"{source}: column '{unclear[0]}' appears twice: rename or remove one")
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name} ({number})" for number in itertools.count(1))
        free = (n for n in numbered if n not in names and n not in distinct)
        distinct.append(next(free) if name in repeated else name)
    return distinct


class ReadOptions(TypedDict, total=False):
    """Options of reading a source, all optional.

    Attributes:
        columns: maps each column of the schema to a column of the source or to a DuckDB SQL
            expression over its columns, such as "strftime(to_timestamp(created), '%Y-%m')" or
            "'a constant'". A row for which the expression fails is rejected. `unnest(column)`
            makes one row per element of a list. If given (even empty), `n_words` is counted again.
        rejected_rows: collects broken rows. If not given, the first broken row is an error.
        where: SQL condition on the source's columns; other rows are left out. Columns of CSV are
            text.
        encoding: encoding of a text file, such as cp1252; null tells it by the content.
        numbered: whether to add the column `ROW`, each row's number in the source.
        nested: whether extra columns of lists and objects in Parquet stay as they are; by default
            they are JSON text, as are those of JSON.
    """

    columns: Mapping[str, str] | None
    rejected_rows: RejectedRows | None
    where: str | None
    encoding: str | None
    numbered: bool
    nested: bool


def _reject(
    source: str,
    rejected: RejectedRows | None,
    row: int,
    column: str,
    reason: str,
    value: Any = None,
) -> None:
    """Add a broken row to `rejected`, or raise DataError if that is null."""
    if rejected is None:
        shown = "" if value is None else f" ({value!r:.80})"
        raise DataError(
            f"{source}: row {row}, column {column}: {reason}{shown}: fix or remove the row"
        )
    rejected.add(source, row, column, reason, value)


def _fitted_chunks(source: str | Path, schema: Schema, options: ReadOptions) -> Iterator[pa.Table]:
    """Yield the chunks of a source fitted to a schema, with each row's `ROW`."""
    columns, where = options.get("columns"), options.get("where")
    rejected, nested = options.get("rejected_rows"), options.get("nested", False)
    problem = functools.partial(_reject, str(source), rejected)
    with_lines = any(column.name == LINE for column in schema.columns)
    encoding = options.get("encoding")
    for chunk in read_chunks(Path(source), encoding, problem, with_lines=with_lines):
        names = _distinct(chunk.column_names, str(source), schema, columns)
        try:
            table, broken = cast_rows(
                str(source), chunk.rename_columns(names), schema, columns, where, nested=nested
            )
        except (duckdb.Error, pa.ArrowException) as error:
            what = f"where: {where!r} cannot be evaluated" if where else "cannot be read"
            reason = str(error).partition("\n")[0]
            raise DataError(
                f"{source}: {what}: {reason} (columns of CSV are text: TRY_CAST(score AS INT))"
            ) from error
        for number, row in broken:
            if row.column:
                problem(number, *row)
            elif rejected:
                rejected.not_selected += 1
        if table.num_rows:
            yield table


def no_rows(source: str | Path, options: ReadOptions) -> DataError:
    """The error of a source without usable rows, with the reasons."""
    rejected = options.get("rejected_rows") or RejectedRows()
    reasons = "; ".join(f"{why} ({n})" for why, n in rejected.counts().items()) or "none"
    where = f"where: {options.get('where')!r}, " if options.get("where") else ""
    return DataError(f"{source}: no usable row is left ({where}rejected: {reasons})")


# Whole tables and streams -----------------------------------------------------------------------


class StreamingTable:
    """A table of any size, read from one or more sources, with unique keys.

    Of several rows with the same key, the one with the latest `Schema.latest` is kept (null is
    earliest). Ties are resolved by content, so the result does not depend on row order.

    Args:
        sources: see `read_foreign`, which also lists the errors.
        declared: the schema.
        folder: empty folder with space for all rows (compressed), which the caller removes; null
            keeps the rows in memory.
        options: see `ReadOptions`.

    Attributes:
        schema: columns and types of every chunk: the declared columns first, then extra columns.
        num_rows: number of rows.
    """

    def __init__(
        self,
        sources: Sequence[str | Path],
        declared: Schema,
        folder: Path | None,
        **options: Unpack[ReadOptions],
    ) -> None:
        # Chunks in memory, or files of chunks, with the source and the keys of each chunk.
        self._held: list[pa.Table | Path] = []
        self.num_rows = 0
        of_chunk: list[str] = []
        keys: list[np.ndarray] = []
        schemas: dict[pa.Schema, None] = {}
        for source in sources:
            for chunk in _fitted_chunks(source, declared, options):
                schemas[chunk.schema] = None
                self.num_rows += chunk.num_rows
                values = zip(*(chunk[name].to_pylist() for name in declared.key), strict=True)
                keys.append(np.fromiter(map(hash, values), np.int64))
                of_chunk.append(str(source))
                self._held.append(chunk)
                if folder is not None:
                    self._held[-1] = path = folder / f"{len(self._held)}.arrow"
                    try:
                        feather.write_feather(chunk, str(path), compression="lz4")
                    except OSError as error:
                        advice = "free space or choose another folder"
                        raise DataError(f"cannot write {path}: {error}; {advice}") from error
        if not self._held:
            raise no_rows(sources[0], options)
        names = dict.fromkeys(name for schema in schemas for name in schema.names)
        self._all = pa.schema([(name, _common_type(schemas, name)) for name in names])
        is_numbered = options.get("numbered")
        self.schema = pa.schema([c for c in self._all if c.name != ROW or is_numbered])
        # Indices of the rows to leave out, per chunk.
        self._dropped: list[list[int]] = [[] for _ in self._held]
        if declared.key:
            self._drop_repeated(declared, keys, of_chunk, options.get("rejected_rows"))
        self.num_rows -= sum(map(len, self._dropped))

    def chunks(self) -> Iterator[pa.Table]:
        """Yield the rows in the order of the sources; may be called several times."""
        for number, dropped in enumerate(self._dropped):
            table = self._load(number).select(self.schema.names)
            if dropped:
                table = table.take(pa.array(np.delete(np.arange(table.num_rows), dropped)))
            yield table

    def _load(self, number: int) -> pa.Table:
        held = self._held[number]
        table = feather.read_table(str(held)) if isinstance(held, Path) else held
        columns = [
            table[column.name].cast(column.type, safe=False)
            if column.name in table.column_names
            else pa.nulls(table.num_rows, column.type)
            for column in self._all
        ]
        return pa.table(columns, self._all)

    def _drop_repeated(
        self,
        declared: Schema,
        keys: Sequence[np.ndarray],
        of_chunk: Sequence[str],
        rejected_rows: RejectedRows | None,
    ) -> None:
        """Keep one row per key and reject the others."""
        hashes, counts = np.unique(np.concatenate(keys), return_counts=True)
        repeated = hashes[counts > 1]
        rows = []
        for number, chunk_keys in enumerate(keys):
            indices = np.flatnonzero(np.isin(chunk_keys, repeated)).tolist()
            table = self._load(number).take(pa.array(indices)) if len(indices) else None
            for index, row in zip(indices, table.to_pylist() if table else (), strict=True):
                content = digest(*(item for item in row.items() if item[0] != ROW))
                latest = row[declared.latest] if declared.latest else None
                rank = (latest is None, -(latest or 0), content, number, index)
                rows.append((tuple(row[name] for name in declared.key), rank, row[ROW]))
        best: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for key, rank, _ in rows:
            best[key] = min(rank, best.get(key, rank))
        for key, rank, row in rows:
            if rank != best[key]:
                *_, content, number, index = rank
                self._dropped[number].append(index)
                reason = "repeated row" if content == best[key][2] else "duplicate id"
                _reject(of_chunk[number], rejected_rows, row, declared.key[0], reason, key[0])


def _common_type(schemas: Iterable[pa.Schema], name: str) -> pa.DataType:
    """Return a type that can hold all values of a column; text if there is no other."""
    kinds = [pa.schema([s.field(name)]) for s in schemas if name in s.names]
    try:
        return pa.unify_schemas(kinds, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.large_string()


def read_foreign(source: str | Path, schema: Schema, **options: Unpack[ReadOptions]) -> pa.Table:
    """Read a table from a file, a `datasets` folder or a data set's name on the Hub.

    Args:
        source: Parquet, JSON, JSON lines, CSV or TSV, plain or compressed, whatever its suffix; a
            folder saved by `datasets`; or `owner/name[@revision][:split]`.
        schema: the columns to read, such as STORIES or PAIRS.
        options: see `ReadOptions`.

    Returns:
        Table with the declared columns first, then extra columns; large_string, int64 and float64.
        Extra columns of lists or objects are JSON text. Keys are unique, see `StreamingTable`.

    Raises:
        DataError: the file is missing or invalid, a required column is missing, no row is usable,
            or (without `rejected_rows`) a row is broken; the message names file, row and column.
        MissingExtraError: `source` is on the Hub and `datasets` is not installed.
    """
    return pa.concat_tables(StreamingTable([source], schema, None, **options).chunks())


def stream_foreign(
    source: str | Path, schema: Schema, **options: Unpack[ReadOptions]
) -> Iterator[pa.Table]:
    """Read a table of any size chunk by chunk, in the order of the source.

    Arguments and errors are as in `read_foreign`. Repeated keys are not removed.

    Yields:
        Tables of at least one row, with at most `CHUNK_ROWS` rows and some hundred megabytes.
    """
    chunk = None
    for chunk in _fitted_chunks(source, schema, options):
        yield chunk if options.get("numbered") else chunk.drop_columns([ROW])
    if chunk is None:
        raise no_rows(source, options)
