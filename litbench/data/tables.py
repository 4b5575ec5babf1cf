"""LitBench's own tables: Parquet with a schema of `litbench.data.records`, checked on reading.

A file that a manifest beside it lists must have the digest in the manifest.

Files from elsewhere are read by `litbench.data.ingest`.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from litbench.data.records import ARROW_TYPES, Column, Schema, is_text, stored_type
from litbench.runs.errors import DataError
from litbench.runs.outputs import own_manifest

_ADVICE = "write it again with the program that made it, or import it"
_ROW_GROUP = 16_384


def read_table(path: str | Path, schema: Schema) -> pa.Table:
    """Read one of LitBench's tables.

    Returns:
        Table with the declared columns first (null if an optional one is absent), then extra
        columns; large_string, int64 and float64.

    Raises:
        DataError: the file is missing, not Parquet or empty, or not the one that the manifest
            beside it lists; a column is missing or has another
            type; a value is null although it is required, is not one of the column's choices, not
            finite or not UTF-8; or a key is repeated. The message names file, row and column.
    """
    path = Path(path)
    _check_file(path)
    try:
        # Not pq.read_table, which reads columns from folder names such as a=1.
        with pq.ParquetFile(path) as file:
            table = file.read().replace_schema_metadata(None)
        if not table.num_rows:
            raise ValueError("holds no rows")
        names = [column.name for column in schema.columns]
        extra = [name for name in table.column_names if name not in names]
        declared = [_fitted(table, column) for column in schema.columns]
        table = pa.table([*declared, *table.select(extra).columns], [*names, *extra])
        table.validate(full=True)
        _check_keys(table, schema)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}): {_ADVICE}") from error
    except ValueError as error:
        raise DataError(f"{path}: {error}: {_ADVICE}") from error
    return table


def _check_file(path: Path) -> None:
    """Raise a DataError if a file is missing, or was changed since the manifest was written."""
    if not path.is_file():
        raise DataError(f"there is no file {path}: check the path, or run the step that writes it")
    own_manifest(path)


def _fitted(table: pa.Table, column: Column) -> pa.ChunkedArray:
    """Return a column with the type of its kind; raises ValueError if its values do not fit."""
    name, kind = column.name, ARROW_TYPES[column.kind]
    if name not in table.column_names:
        if column.required:
            raise ValueError(f"column '{name}' is missing ({column.about})")
        return pa.chunked_array([pa.nulls(table.num_rows, kind)])
    values = table[name]
    stored = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    is_number = pa.types.is_integer(stored) or pa.types.is_floating(stored)
    suits = is_text(stored) if column.kind == "text" else is_number
    if not (suits or pa.types.is_null(stored)):
        raise ValueError(f"column '{name}' is {stored}, not {kind}")
    values = values.cast(stored_type(column, stored))
    if column.required:
        _check(pc.is_valid(values), name, "null")
    if column.choices:
        is_valid = pc.is_in(values, value_set=pa.array(column.choices, kind))
        _check(
            pc.or_(is_valid, pc.is_null(values)), name, f"not one of {', '.join(column.choices)}"
        )
    if pa.types.is_floating(values.type):
        _check(pc.is_finite(values), name, "not a finite number")
    return values


def _check(holds: pa.ChunkedArray, name: str, reason: str) -> None:
    """Raise ValueError with the first row for which a condition is false."""
    row = pc.index(holds, pa.scalar(value=False)).as_py()
    if row >= 0:
        raise ValueError(f"row {row + 1}, column {name}: {reason}")


def _check_keys(table: pa.Table, schema: Schema) -> None:
    keys = table.select(schema.key)
    if schema.key and keys.group_by(schema.key).aggregate([]).num_rows < table.num_rows:
        seen: set[tuple[str, ...]] = set()
        for row, key in enumerate(zip(*keys.to_pydict().values(), strict=True), start=1):
            if key in seen:
                raise ValueError(f"row {row}, column {schema.key[0]}: repeats the key {key}")
            seen.add(key)


def check_parquet(path: Path, schema: Schema) -> None:
    """Check a Parquet file's columns and nulls against a schema, without reading its texts.

    Raises:
        DataError: the file is missing, not Parquet or empty, or not the one that the manifest
            beside it lists; or a column is missing, has the wrong type, or has nulls although it is
            required.
    """
    _check_file(path)
    # Imports pandas, which takes longer than the rest of this module.
    import pyarrow.dataset as pa_dataset  # noqa: PLC0415

    try:
        dataset = pa_dataset.dataset(path, format="parquet")
        faults = [] if dataset.count_rows() else ["holds no rows"]
        for column in schema.columns:
            name = column.name
            actual = dataset.schema.field(name).type if name in dataset.schema.names else None
            wanted = stored_type(column, actual or pa.null())
            if actual != wanted and not (column.kind == "text" and actual and is_text(actual)):
                faults.append(f"column '{name}' is {actual or 'missing'}, not {wanted}")
            elif column.required and (nulls := dataset.count_rows(filter=pc.field(name).is_null())):
                faults.append(f"column '{name}' has {nulls} nulls")
    except (pa.ArrowException, OSError) as error:
        faults = [f"not a Parquet file ({error})"]
    if faults:
        raise DataError(f"{path}: {faults[0]}: write the file again")


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table as Parquet; the bytes do not depend on the table's chunks."""
    # Arrow ends a page at the end of a chunk, so chunks must be combined first.
    pq.write_table(table.combine_chunks(), path, compression="zstd", row_group_size=_ROW_GROUP)


def write_sorted_batches(batches: pa.RecordBatchReader, schema: Schema, path: Path) -> int:
    """Write batches as Parquet, with a schema's columns first; returns the number of rows.

    The bytes do not depend on the sizes of the batches. At most one row group is held in memory.
    """
    names = [column.name for column in schema.columns]
    extra = [column.with_metadata(None) for column in batches.schema if column.name not in names]
    types = {field.name: field.type for field in batches.schema}
    declared = [
        pa.field(c.name, stored_type(c, types[c.name]), nullable=not c.required)
        for c in schema.columns
    ]
    target = pa.schema([*declared, *extra])
    rows = 0
    with pq.ParquetWriter(path, target, compression="zstd") as writer:
        waiting = target.empty_table()
        for batch in batches:
            table = pa.Table.from_batches([batch]).select(target.names).cast(target)
            waiting = pa.concat_tables([waiting, table])
            while waiting.num_rows >= _ROW_GROUP:
                writer.write_table(waiting.slice(0, _ROW_GROUP).combine_chunks())
                waiting = waiting.slice(_ROW_GROUP)
            rows += table.num_rows
        if waiting.num_rows:
            writer.write_table(waiting.combine_chunks())
    return rows
