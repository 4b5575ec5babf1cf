"""Benchmark reading foreign JSON lines with broken rows against DuckDB's own reader.

    python benchmarks/reading.py

The file has stories of 60 to 900 random words; one row in fifty is broken: no JSON, no text, or a
score that is no number. The figure is a ratio of CPU seconds. `litbench.data.ingest.read_foreign`
names row, column and reason of every broken row. DuckDB (`ignore_errors`) drops lines that are no
JSON and sets values of the wrong type to null, which the query filters. Both must keep the same
rows.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

import duckdb
from figures import WORDS, Figure, in_turn, quotients, report

from litbench.data.ingest import CHUNK_ROWS, RejectedRows, read_foreign
from litbench.data.records import STORIES

_QUERY = """
SELECT * FROM read_json($path, format = 'newline_delimited', ignore_errors = true, columns = {
    story_id: 'VARCHAR', prompt_id: 'VARCHAR', prompt: 'VARCHAR', text: 'VARCHAR',
    n_words: 'BIGINT', source: 'VARCHAR', score: 'BIGINT', created_utc: 'BIGINT'})
WHERE story_id IS NOT NULL AND prompt_id IS NOT NULL AND text IS NOT NULL AND score IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY story_id) = 1
"""


def write_rows(rows: int, path: Path) -> int:
    """Write the file; return the number of rows that are not broken."""
    source, good = random.Random(0), 0
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
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
            line = json.dumps(row)
            if number % 50 == 0:
                broken = (line[:-20], {**row, "text": None}, {**row, "score": "many"})[
                    number // 50 % 3
                ]
                line = broken if isinstance(broken, str) else json.dumps(broken)
            else:
                good += 1
            file.write(line + "\n")
    return good


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stories.jsonl"
        good = write_rows(arguments.rows, path)

        def ours() -> int:
            return int(read_foreign(path, STORIES, rejected_rows=RejectedRows()).num_rows)

        def by_duckdb() -> int:
            with duckdb.connect() as connection:
                query = connection.sql(_QUERY, params={"path": str(path)})
                table = query.to_arrow_reader(CHUNK_ROWS).read_all()
            return int(table.num_rows)

        ways = {"ours": ours, "duckdb": by_duckdb}
        seconds, rows = in_turn(ways, arguments.repeats, time.process_time)
    if set(rows.values()) != {good}:
        raise SystemExit(f"{good} rows are not broken, but read were {rows}")
    name = "reading broken JSON lines: CPU to that of DuckDB's reader"
    ratios = quotients(seconds["ours"], seconds["duckdb"])
    report("reading", [Figure(name, ratios, 1.5, at_most=True)], rows=arguments.rows)


if __name__ == "__main__":
    main()
