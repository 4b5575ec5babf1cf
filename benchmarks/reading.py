"""Benchmark reading foreign files against DuckDB's own readers.

    python benchmarks/reading.py

The files have stories of 60 to 900 random words, as JSON lines, CSV and Parquet. In the broken
ones, one row in fifty is cut, or has no text, or a score that is no number. The figures are ratios
of CPU seconds. `litbench.data.ingest.read_foreign` names row, column and reason of every broken
row. DuckDB (`ignore_errors`) drops rows that it cannot read, and the query filters null values.
Both must keep the same rows.
"""

import argparse
import csv
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from figures import WORDS, Figure, in_turn, quotients, report

from litbench.data.chunks import CHUNK_ROWS
from litbench.data.ingest import RejectedRows, read_foreign
from litbench.data.records import STORIES

_COLUMNS = """columns = {story_id: 'VARCHAR', prompt_id: 'VARCHAR', prompt: 'VARCHAR',
    text: 'VARCHAR', n_words: 'BIGINT', source: 'VARCHAR', score: 'BIGINT', created_utc: 'BIGINT'}
"""
_READERS = {
    "jsonl": f"read_json($path, format = 'newline_delimited', ignore_errors = true, {_COLUMNS})",
    "csv": "read_csv($path, header = true, auto_detect = false, quote = '\"', escape = '\"', "
    f"delim = ',', ignore_errors = true, {_COLUMNS})",
    "parquet": "(SELECT * REPLACE (TRY_CAST(score AS BIGINT) AS score) FROM read_parquet($path))",
}
_KEPT = """
WHERE story_id IS NOT NULL AND prompt_id IS NOT NULL AND text IS NOT NULL AND score IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY story_id) = 1
"""
_NAMES = {"jsonl": "JSON lines", "csv": "CSV", "parquet": "Parquet"}


def _rows(count: int, *, is_broken: bool) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield rows, and whether each is cut."""
    source = random.Random(0)
    for number in range(count):
        size = source.randint(60, 900)
        row = {
            "story_id": f"s{number}",
            "prompt_id": f"p{number // 20}",
            "prompt": f"[WP] Prompt {number // 20}",
            "text": " ".join(source.choices(WORDS.split(), k=size)),
            "n_words": size,
            "source": "benchmark",
            "score": source.randint(1, 500),
            "created_utc": 1_600_000_000 + number,
        }
        kind = number // 50 % 3 if is_broken and number % 50 == 0 else -1
        changes: dict[int, dict[str, Any]] = {1: {"text": None}, 2: {"score": "many"}}
        yield row | changes.get(kind, {}), kind == 0


def write_rows(count: int, path: Path, *, is_broken: bool) -> None:
    """Write a file; Parquet has no cut rows."""
    rows = _rows(count, is_broken=is_broken)
    if path.suffix == ".parquet":
        table = [row | {"score": str(row["score"])} if is_broken else row for row, _ in rows]
        pq.write_table(pa.Table.from_pylist(table), path)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for number, (row, is_cut) in enumerate(rows):
            if path.suffix == ".jsonl":
                line = json.dumps(row)
                file.write((line[:-20] if is_cut else line) + "\n")
                continue
            if not number:
                writer.writerow(row)
            writer.writerow(list(row.values())[: 3 if is_cut else None])


def measure(path: Path, repeats: int) -> list[float]:
    """Return the ratio of each repeat; SystemExit if the readers keep different rows."""

    def ours() -> int:
        return int(read_foreign(path, STORIES, rejected_rows=RejectedRows()).num_rows)

    def by_duckdb() -> int:
        query = f"SELECT * FROM {_READERS[path.suffix[1:]]} {_KEPT}"
        with duckdb.connect() as connection:
            reader = connection.sql(query, params={"path": str(path)}).to_arrow_reader(CHUNK_ROWS)
            return int(reader.read_all().num_rows)

    ways = {"ours": ours, "duckdb": by_duckdb}
    seconds, rows = in_turn(ways, repeats, time.process_time)
    if len(set(rows.values())) > 1:
        raise SystemExit(f"the readers keep different rows of {path.name}: {rows}")
    return quotients(seconds["ours"], seconds["duckdb"])


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for ending, name in _NAMES.items():
            for is_broken in (False, True):
                path = Path(folder) / f"stories.{ending}"
                write_rows(arguments.rows, path, is_broken=is_broken)
                what = f"reading {'broken ' if is_broken else ''}{name}"
                ratios = measure(path, arguments.repeats)
                figures.append(
                    Figure(f"{what}: CPU to that of DuckDB's reader", ratios, 1.3, at_most=True)
                )
    report("reading", figures, rows=arguments.rows)


if __name__ == "__main__":
    main()
