"""What runs the expressions of curation: DuckDB on this machine, or Spark.

Curation is written once, as Ibis expressions. An engine reads Parquet, keeps a step's result,
and hands rows over in order. Both engines give the same rows: every draw is by md5, every order
is total, and texts are compared by their bytes.
"""

import itertools
import os
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import ibis
import pyarrow as pa
import pyarrow.parquet as pq

from litbench.errors import ConfigError, DataError, MissingExtraError

EngineName = Literal["duckdb", "spark"]

_BATCH = 8_192


class Engine(ABC):
    """Runs Ibis expressions; a context manager that removes its working files.

    Attributes:
        work: folder for working files, such as what does not fit into memory.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Named like what a killed run leaves behind, so that the next one clears it away.
        self.work = Path(tempfile.mkdtemp(dir=folder, prefix=".part-"))
        self._names = (f"kept_{number}" for number in itertools.count())

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        shutil.rmtree(self.work, ignore_errors=True)

    @abstractmethod
    def read(self, path: Path) -> Any:
        """A Parquet file as an expression; it is read as steps need it."""

    @abstractmethod
    def keep(self, expression: Any) -> Any:
        """Evaluate a table once and keep the result."""

    @abstractmethod
    def batches(self, expression: Any) -> Iterator[pa.RecordBatch]:
        """Evaluate a table and yield its rows in its order, without holding them all."""

    @abstractmethod
    def rows(self, expression: Any) -> list[dict[str, Any]]:
        """Evaluate a small table."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything that was kept."""

    def put(self, table: pa.Table) -> Any:
        """Make a table from Python visible to expressions."""
        path = self.work / f"{next(self._names)}.parquet"
        pq.write_table(table, path)
        return self.read(path)

    def count(self, table: Any) -> int:
        """The number of rows of a table."""
        rows = self.rows(table.aggregate(rows=table.count()))
        return int(rows[0]["rows"])

    def count_by(self, table: Any, column: str) -> dict[Any, int]:
        """The number of rows per value of a column."""
        rows = self.rows(table.group_by(column).agg(rows=table.count()))
        return {row[column]: row["rows"] for row in rows}


class DuckDBEngine(Engine):
    """DuckDB in this process; what exceeds its memory goes to disk."""

    def __init__(self, folder: Path, memory_limit: str | None) -> None:
        import duckdb  # noqa: PLC0415

        super().__init__(folder)
        self._con: Any = ibis.duckdb.connect(temp_directory=str(self.work))
        # Every order that matters is asked for, and keeping others takes memory.
        self._con.raw_sql("SET preserve_insertion_order = false")
        if memory_limit is not None:
            try:
                self._con.raw_sql(f"SET memory_limit = '{memory_limit}'")
            except duckdb.Error as error:
                self.__exit__()
                raise ConfigError(
                    f"memory_limit is '{memory_limit}' ({error}): give a size such as 4GB"
                ) from error

    def read(self, path: Path) -> Any:
        """See `Engine.read`."""
        # A star in a folder's name is no pattern.
        return self._con.read_parquet(re.sub(r"([*?\[])", r"[\1]", str(path)))

    def keep(self, expression: Any) -> Any:
        """See `Engine.keep`."""
        with self._explained():
            return self._con.create_table(next(self._names), expression, temp=True)

    def batches(self, expression: Any) -> Iterator[pa.RecordBatch]:
        """See `Engine.batches`."""
        # DuckDB adds whole numbers up to 128 bits, which Arrow takes for decimals.
        schema = expression.schema().to_pyarrow()
        with self._explained():
            # Not `to_pyarrow_batches`: ibis 12.0 calls a method that DuckDB 2.0 no longer has.
            relation = self._con.con.sql(self._con.compile(expression))
            for batch in relation.to_arrow_reader(_BATCH):
                yield batch.cast(schema)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say what to do where memory or the disk ends."""
        import duckdb  # noqa: PLC0415

        try:
            yield
        except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(
                f"DuckDB cannot go on in {self.work.parent} ({reason}): raise memory_limit, or "
                "free space there"
            ) from error

    def rows(self, expression: Any) -> list[dict[str, Any]]:
        """See `Engine.rows`."""
        return [row for batch in self.batches(expression) for row in batch.to_pylist()]

    def close(self) -> None:
        """See `Engine.close`."""
        self._con.disconnect()


class SparkEngine(Engine):
    """Spark: the session that is running, or the cluster that `spark.master` names.

    Files are read by the workers, so inputs and the output folder must lie where these see them.
    """

    def __init__(self, folder: Path, options: Mapping[str, str]) -> None:
        try:
            from pyspark.sql import SparkSession  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("pyspark", "spark") from error
        super().__init__(folder)
        given = {"spark.sql.session.timeZone": "UTC", **options}
        running = SparkSession.getActiveSession()
        if running is None and not ("spark.master" in given or _has_master()):
            # One machine: Spark's 200 partitions are for clusters.
            cores = os.cpu_count() or 1
            given = {
                "spark.master": f"local[{cores}]",
                "spark.sql.shuffle.partitions": str(2 * cores),
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                **given,
            }
        builder = SparkSession.builder.appName("litbench")
        for key, value in given.items():
            builder = builder.config(key, value)
        try:
            self._session: Any = builder.getOrCreate()
        except Exception as error:  # the bridge to Java raises its own kinds
            shutil.rmtree(self.work, ignore_errors=True)
            raise ConfigError(
                f"engine: spark does not start ({str(error)[:300]}): it needs Java 17 or newer and "
                "a reachable spark.master"
            ) from error
        self._is_own = running is None
        self._con: Any = ibis.pyspark.connect(self._session)

    def read(self, path: Path) -> Any:
        """See `Engine.read`."""
        # Backslashes keep Hadoop from taking a star in a folder's name for a pattern.
        return self._con.read_parquet(re.sub(r"([*?\[\]{}\\])", r"\\\1", str(path.absolute())))

    def keep(self, expression: Any) -> Any:
        """See `Engine.keep`."""
        # Spark's own cache keeps the way to each result, and planning over many steps of caps
        # takes minutes; a file has no past.
        folder = self.work / next(self._names)
        self._write(expression, folder)
        return self.read(folder)

    def batches(self, expression: Any) -> Iterator[pa.RecordBatch]:
        """See `Engine.batches`."""
        folder = self.work / next(self._names)
        self._write(expression, folder)
        # Ordered rows lie in files whose names go in that order.
        for part in sorted(folder.glob("part-*.parquet")):
            yield from pq.ParquetFile(part).iter_batches(_BATCH)
        shutil.rmtree(folder)

    def rows(self, expression: Any) -> list[dict[str, Any]]:
        """See `Engine.rows`."""
        found: list[dict[str, Any]] = (
            self._session.sql(self._con.compile(expression)).toArrow().to_pylist()
        )
        return found

    def close(self) -> None:
        """See `Engine.close`."""
        if self._is_own:
            self._session.stop()

    def _write(self, expression: Any, folder: Path) -> None:
        frame = self._session.sql(self._con.compile(expression))
        frame.write.parquet(str(folder.absolute()))


def _has_master() -> bool:
    # Spark Connect, spark-submit, and a folder with spark-defaults.conf name it themselves.
    names = ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR")
    return any(name in os.environ for name in names)


def open_engine(
    name: EngineName,
    folder: Path,
    *,
    memory_limit: str | None = None,
    spark: Mapping[str, str] | None = None,
) -> Engine:
    """Open an engine whose working files lie in `folder`.

    Args:
        name: duckdb or spark.
        folder: made if it is not there; must be seen by Spark's workers.
        memory_limit: DuckDB's, such as "4GB"; beyond, it spills to `folder`.
        spark: settings of Spark, such as {"spark.master": "spark://host:7077"}.

    Raises:
        ConfigError: a limit DuckDB does not take, or Spark does not start.
        MissingExtraError: pyspark is not installed.
    """
    if name == "duckdb":
        return DuckDBEngine(folder, memory_limit)
    return SparkEngine(folder, spark or {})
