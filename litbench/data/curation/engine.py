"""Engines that run curation: DuckDB on this machine, or Spark.

Curation is written once, as Ibis expressions, which an engine compiles to SQL. Both engines give
identical rows: subsamples are drawn by md5, every sort order is total, and texts are compared byte
by byte.
"""

import itertools
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import duckdb
import ibis
import pyarrow as pa
import pyarrow.parquet as pq

from litbench.runs.errors import ConfigError, DataError, MissingExtraError

EngineName = Literal["duckdb", "spark"]

_BATCH_ROWS = 8_192


class Engine:
    """DuckDB in this process; a context manager that removes its working files.

    Args:
        folder: parent of the folder for working files; created if missing.
        options: settings passed to DuckDB.

    Attributes:
        work: folder for working files, such as data spilled from memory.
    """

    def __init__(self, folder: Path, options: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # A later run deletes folders with this prefix that a killed run left behind.
        self.work = Path(tempfile.mkdtemp(dir=folder, prefix=".part-"))
        self._names = (f"table_{number}" for number in itertools.count())
        try:
            self._con = self._connect(options)
        except Exception:
            shutil.rmtree(self.work)
            raise

    def _connect(self, options: Mapping[str, str]) -> Any:
        try:
            # Queries sort explicitly where order matters; preserving it elsewhere costs memory.
            settings = {"temp_directory": str(self.work), "preserve_insertion_order": False}
            return ibis.duckdb.connect(**settings, **options)
        except duckdb.Error as error:
            text = ", ".join(f"{key} is '{value}'" for key, value in options.items())
            raise ConfigError(f"{text} ({error}): give a size such as 4GB") from error

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._close()
        shutil.rmtree(self.work, ignore_errors=True)
        if isinstance(error, duckdb.OutOfMemoryException | duckdb.IOException | OSError):
            raise DataError(
                f"the engine failed in {self.work.parent} ({' '.join(str(error).split())[:200]}):"
                " raise memory_limit, or free disk space there"
            ) from error

    def _close(self) -> None:
        self._con.disconnect()

    def read(self, path: Path) -> Any:
        """Open a Parquet file as an Ibis table, read lazily."""
        # Brackets escape characters of the path that DuckDB would read as a glob pattern.
        return self._con.read_parquet(re.sub(r"([*?\[])", r"[\1]", str(path)))

    def keep(self, table: Any) -> Any:
        """Evaluate a table and return the stored result as a table."""
        return self._con.create_table(next(self._names), table, temp=True)

    def batches(self, table: Any) -> Iterator[pa.RecordBatch]:
        """Evaluate a table and yield its rows in order, in batches of bounded size."""
        # DuckDB sums integers in 128 bits, which Arrow reads as decimals.
        schema = table.schema().to_pyarrow()
        # Not `to_pyarrow_batches`: ibis 12.0 calls a method that DuckDB 2.0 removed.
        relation = self._con.con.sql(self._con.compile(table))
        for batch in relation.to_arrow_reader(_BATCH_ROWS):
            yield batch.cast(schema)

    def put(self, table: pa.Table) -> Any:
        """Write an Arrow table to disk and return it as an Ibis table."""
        path = self.work / f"{next(self._names)}.parquet"
        pq.write_table(table, path)
        return self.read(path)

    def rows(self, table: Any) -> list[dict[str, Any]]:
        """Evaluate a small table and return its rows as dictionaries."""
        return [row for batch in self.batches(table) for row in batch.to_pylist()]

    def count(self, table: Any) -> int:
        return int(self.rows(table.aggregate(rows=table.count()))[0]["rows"])


class SparkEngine(Engine):
    """Spark: the active session, or a new one with the given settings.

    Workers read files themselves, so they must be able to access the inputs and the output folder.
    """

    def _connect(self, options: Mapping[str, str]) -> Any:
        try:
            from pyspark.sql import SparkSession  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("pyspark", "spark") from error
        builder = SparkSession.builder.appName("litbench")
        defaults = {"spark.sql.session.timeZone": "UTC", "spark.ui.enabled": "false"}
        for key, value in {**defaults, **options}.items():
            builder = builder.config(key, value)
        self._is_own = SparkSession.getActiveSession() is None
        try:
            self._session: Any = builder.getOrCreate()
        except Exception as error:  # Py4J raises its own exception classes
            raise ConfigError(
                f"engine: spark does not start ({str(error)[:300]}): it needs Java 17 or newer and "
                "a reachable spark.master"
            ) from error
        return ibis.pyspark.connect(self._session)

    def _close(self) -> None:
        if self._is_own:
            self._session.stop()

    def read(self, path: Path) -> Any:
        # Backslashes escape characters of the path that Hadoop would read as a glob pattern.
        return self._con.read_parquet(re.sub(r"([*?\[\]{}\\])", r"\\\1", str(path.absolute())))

    def keep(self, table: Any) -> Any:
        # A file, not Spark's cache: with the cache, query plans grow and take minutes to optimise.
        return self.read(self._write(table))

    def batches(self, table: Any) -> Iterator[pa.RecordBatch]:
        folder = self._write(table)
        # Spark names the parts in row order.
        for part in sorted(folder.glob("part-*.parquet")):
            yield from pq.ParquetFile(part).iter_batches(_BATCH_ROWS)
        shutil.rmtree(folder)

    def _write(self, table: Any) -> Path:
        folder = self.work / next(self._names)
        frame = self._session.sql(self._con.compile(table))
        frame.write.parquet(str(folder.absolute()))
        return folder


def open_engine(
    name: EngineName,
    folder: Path,
    *,
    memory_limit: str | None = None,
    spark: Mapping[str, str] | None = None,
) -> Engine:
    """Open an engine that keeps its working files in `folder`.

    Args:
        name: duckdb or spark.
        folder: created if missing; Spark's workers must be able to access it.
        memory_limit: memory limit of DuckDB, such as "4GB"; above it, DuckDB spills to `folder`.
        spark: Spark settings, such as {"spark.master": "spark://host:7077"}.
    """
    if name == "spark":
        return SparkEngine(folder, spark or {})
    return Engine(folder, {"memory_limit": memory_limit} if memory_limit else {})
