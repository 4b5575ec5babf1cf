"""Tables too large for the memory, read by way of the disk.

`read_large_table` gives what `litbench.tables.read_table` gives, chunk by chunk: the same rows,
the same row of several with one key, one type for each column.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from litbench.errors import DataError
from litbench.formats import CHUNK_ROWS, as_text
from litbench.records import RejectedRows, Schema
from litbench.tables import Reader, stream_all
from litbench.text import digest


class LargeTable:
    """A table on disk, fitted to its schema, without repeated keys; made by `read_large_table`.

    Attributes:
        schema: columns and types of every chunk: the declared ones first, then the extra ones.
        num_rows: how many rows it has.
    """

    schema: pa.Schema
    num_rows: int

    def __init__(self, folder: Path, schema: Schema) -> None:
        self._folder = folder
        self._declared = schema
        # Files of chunks of equal types, and the rows of each of their chunks.
        self._parts: list[tuple[pa.Schema, list[int]]] = []
        self._writer: pa.RecordBatchWriter | None = None
        self._key_writer: pq.ParquetWriter | None = None
        self._rows = 0
        self._dropped = np.zeros(0, dtype=np.int64)

    def chunks(self) -> Iterator[pa.Table]:
        """Read the rows, in the order of the sources; may be called again."""
        start = 0
        for table in self._unified(None):
            end = start + table.num_rows
            low, high = np.searchsorted(self._dropped, [start, end])
            if high > low:
                mask = np.ones(table.num_rows, dtype=bool)
                mask[self._dropped[low:high] - start] = False
                yield table.filter(pa.array(mask))
            else:
                yield table
            start = end

    def _path(self, part: int) -> Path:
        return self._folder / f"{part}.arrow"

    def _add(self, table: pa.Table, source: int, rows: Sequence[int]) -> None:
        """Write one chunk; `rows` are the row numbers in the source of that number."""
        given = self._parts[-1][0] if self._parts else pa.schema([])
        names = list(dict.fromkeys([*given.names, *table.column_names]))
        columns = {}
        for name in names:
            known = given.field(name).type if name in given.names else pa.null()
            if name not in table.column_names or pa.types.is_null(table[name].type):
                columns[name] = pa.nulls(table.num_rows, known)
            else:
                columns[name] = table[name]
        table = pa.table(columns)
        if self._writer is None or table.schema != given:
            if self._writer is not None:
                self._writer.close()
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            path = str(self._path(len(self._parts)))
            self._writer = pa.ipc.new_file(path, table.schema, options=options)
            self._parts.append((table.schema, []))
        self._writer.write_table(table.combine_chunks())
        self._parts[-1][1].append(table.num_rows)
        keys = pa.table(
            {
                "place": np.arange(self._rows, self._rows + table.num_rows),
                "source": np.full(table.num_rows, source),
                "row": pa.array(rows, pa.int64()),
                "latest": pa.nulls(table.num_rows, pa.int64())
                if self._declared.latest is None
                else table[self._declared.latest],
                **{f"key{k}": table[name] for k, name in enumerate(self._declared.key)},
            }
        )
        if self._key_writer is None:
            self._key_writer = pq.ParquetWriter(self._folder / "keys.parquet", keys.schema)
        self._key_writer.write_table(keys)
        self._rows += table.num_rows

    def _finish(self, problem: Callable[[int, int, str, str, Any], None]) -> None:
        """Settle types and repeated keys; `problem(source, row, ...)` hears of the dropped rows."""
        self._close()
        names = dict.fromkeys(name for schema, _ in self._parts for name in schema.names)
        self.schema = pa.schema([(name, self._common_type(name)) for name in names])
        self._dropped = self._find_repeated(problem)
        self.num_rows = self._rows - len(self._dropped)

    def _close(self) -> None:
        for writer in (self._writer, self._key_writer):
            if writer is not None:
                writer.close()
        self._writer = self._key_writer = None

    def _common_type(self, name: str) -> pa.DataType:
        """The type that holds all values of a column; text, of JSON, where no other does."""
        kinds = [schema.field(name).type for schema, _ in self._parts if name in schema.names]
        different = [kind for kind in dict.fromkeys(kinds) if not pa.types.is_null(kind)]
        if len(different) < 2:
            return different[0] if different else pa.null()
        try:
            single = [pa.schema([("one", kind)]) for kind in different]
            common = pa.unify_schemas(single, promote_options="permissive").field(0).type
            for table in self._stored(None):
                if name in table.column_names:
                    table[name].cast(common)
            return common
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            return pa.large_string()

    def _stored(self, places: np.ndarray | None) -> Iterator[pa.Table]:
        """The chunks as they were written; with `places`, those alone that hold one of them."""
        start = 0
        for part, (_, sizes) in enumerate(self._parts):
            with pa.OSFile(str(self._path(part))) as file:
                opened = pa.ipc.open_file(file)
                for number, size in enumerate(sizes):
                    end = start + size
                    if places is None or np.diff(np.searchsorted(places, [start, end])) > 0:
                        yield pa.Table.from_batches([opened.get_batch(number)])
                    start = end

    def _unified(self, places: np.ndarray | None) -> Iterator[pa.Table]:
        for table in self._stored(places):
            columns = {}
            for one in self.schema:
                if one.name not in table.column_names:
                    columns[one.name] = pa.nulls(table.num_rows, one.type)
                    continue
                values = table[one.name]
                if values.type == one.type:
                    columns[one.name] = values
                elif pa.types.is_large_string(one.type) and not pa.types.is_null(values.type):
                    columns[one.name] = as_text(values.to_pylist())[0]
                else:
                    columns[one.name] = values.cast(one.type)
            yield pa.table(columns, self.schema)

    def _find_repeated(self, problem: Callable[[int, int, str, str, Any], None]) -> np.ndarray:
        """Places of rows to drop: of several with one key all but the one `read_table` keeps."""
        if not self._declared.key:
            return np.zeros(0, dtype=np.int64)
        import duckdb  # noqa: PLC0415

        keys = [f"key{k}" for k in range(len(self._declared.key))]
        listed = ", ".join(keys)
        same = " AND ".join(f"k.{key} IS NOT DISTINCT FROM r.{key}" for key in keys)
        path = str(self._folder / "keys.parquet").replace("'", "''")
        # The names in the queries are our own.
        with duckdb.connect() as connection:
            connection.execute("SET memory_limit = '1GB'")
            connection.execute("SET temp_directory = ?", [str(self._folder / "duckdb")])
            connection.execute(
                f"CREATE TABLE repeated AS SELECT {listed}, row_number() OVER () AS name "  # noqa: S608
                f"FROM '{path}' GROUP BY {listed} HAVING count(*) > 1"
            )
            connection.execute(
                f"CREATE TABLE rows AS SELECT k.*, r.name FROM '{path}' k JOIN repeated r ON {same}"  # noqa: S608
            )
            found = connection.sql("SELECT place FROM rows ORDER BY place").to_arrow_table()
            places = found["place"].to_numpy()
            if not len(places):
                return np.zeros(0, dtype=np.int64)
            connection.execute("CREATE TABLE contents (place BIGINT, content VARCHAR)")
            with tqdm(
                total=len(places), desc="repeated", unit=" rows", leave=False, disable=None
            ) as bar:
                for contents in self._contents(places):
                    connection.register("contents_of_chunk", contents)
                    connection.execute("INSERT INTO contents SELECT * FROM contents_of_chunk")
                    connection.unregister("contents_of_chunk")
                    bar.update(contents.num_rows)
            dropped = connection.sql(
                "SELECT place, source, row, key0, content = kept AS same FROM ("
                "  SELECT *, first_value(content) OVER each AS kept, row_number() OVER each AS nth"
                "  FROM rows JOIN contents USING (place) WINDOW each AS"
                "  (PARTITION BY name ORDER BY latest DESC NULLS LAST, content, place)"
                ") WHERE nth > 1 ORDER BY place"
            ).to_arrow_reader(CHUNK_ROWS)
            gone = []
            for batch in dropped:
                for row in batch.to_pylist():
                    reason = "repeated row" if row["same"] else "duplicate id"
                    problem(row["source"], row["row"], self._declared.key[0], reason, row["key0"])
                gone.append(batch.column("place").to_numpy())
        return np.concatenate(gone)

    def _contents(self, places: np.ndarray) -> Iterator[pa.Table]:
        """Digests of the rows at some places, in ascending order."""
        starts = np.cumsum([0, *(size for _, sizes in self._parts for size in sizes)])
        held = [
            (int(start), places[low:high])
            for start, low, high in zip(
                starts[:-1],
                np.searchsorted(places, starts[:-1]),
                np.searchsorted(places, starts[1:]),
                strict=True,
            )
            if high > low
        ]
        for (start, wanted), table in zip(held, self._unified(places), strict=True):
            rows = table.take(pa.array(wanted - start)).to_pylist()
            yield pa.table({"place": wanted, "content": [digest(*row.items()) for row in rows]})


def read_large_table(
    sources: Sequence[str | Path],
    schema: Schema,
    folder: Path,
    *,
    columns: Mapping[str, str] | None = None,
    rejected_rows: RejectedRows | None = None,
    where: str | None = None,
    explode: Sequence[str] | None = None,
) -> LargeTable:
    """Read sources of any size as one table: as `read_table`, by way of the disk.

    The fitted rows are written into `folder`, keys are compared within a memory limit, and what
    has the key of another row is set aside as there. An extra column has one type in all chunks,
    and holds JSON where its values have none in common.

    Args:
        sources: see `read_table`; keys are compared across all of them.
        schema: see `read_table`.
        folder: an empty folder with room for all rows (compressed); the caller removes it.
        columns: see `read_table`.
        rejected_rows: see `read_table`.
        where: see `stream_table`.
        explode: see `stream_table`.

    Raises:
        DataError: see `read_table`; also when the disk is full.
        MissingExtraError: see `read_table`.
    """
    import duckdb  # noqa: PLC0415

    readers = [Reader(source, schema, columns, rejected_rows, where, explode) for source in sources]
    table = LargeTable(folder, schema)
    try:
        for number, chunk in stream_all(readers):
            table._add(chunk.table, number, chunk.rows)
        readers[0].refuse_nothing(readers)
        table._finish(lambda number, *what: readers[number].problem(*what))
    except (OSError, duckdb.Error) as error:
        raise DataError(
            f"cannot keep rows in {folder} ({error}): free space or choose another folder"
        ) from error
    finally:
        table._close()
    return table
