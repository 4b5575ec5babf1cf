"""Benchmark pairing against hand-written SQL that does the same work.

    python benchmarks/pairing.py
    python benchmarks/pairing.py --n_stories 10000000 --memory_limit 3GB --program_only

Synthetic stories have texts of about 100 words, log-normal scores and about 20 stories per prompt.
The figures are ratios of CPU seconds, ours to those of DuckDB SQL that reads the same file, applies
the same rules (those of the paper's full set without `drop_talk`), counts the same steps and keeps
the same pairs: keys alone, and with both tables written with their texts.

Memory is measured in a process of its own that runs data_prep/make_pairs.py; the operating system
reports its CPU time and peak. With `--program_only`, nothing else is measured.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from figures import Figure, in_turn, quotients, report

from litbench.data.curation import filters
from litbench.data.curation.engine import open_engine
from litbench.data.curation.moderation import BOT_NAMES
from litbench.data.curation.pair_making import CuratedPairs
from litbench.data.curation.rules import PairRules
from litbench.data.records import STORIES
from litbench.runs.config import run_program

_ROOT = Path(__file__).resolve().parent.parent
_ROWS_PER_PART = 200_000
_PER_PROMPT = 20

SQL = """
CREATE TEMP TABLE marked AS
SELECT story_id, prompt_id, score, created_utc, author, n_words,
    md5(replace(replace(replace(replace(lower(text), ' ', ''), chr(10), ''), chr(13), ''),
        chr(9), '')) AS key,
    CASE
        WHEN regexp_matches(text, $gone) THEN 'drop_deleted'
        WHEN coalesce(regexp_matches(author, $names), false)
            OR regexp_matches(substr(text, 1, 400), $template)
            OR regexp_matches(substr(text, 1, 400), $signature)
            OR regexp_matches(right(text, 400), $signature) THEN 'drop_bots'
        WHEN score IS NULL THEN 'has_score'
        WHEN created_utc IS NULL THEN 'has_time'
        WHEN score < 10 THEN 'min_score'
        WHEN n_tokens > 2048 THEN 'max_tokens'
        WHEN n_words < 50 THEN 'min_words'
    END AS removed_by
FROM read_parquet($stories);
SELECT removed_by, count(*) FROM marked GROUP BY removed_by;
CREATE TEMP TABLE stories AS
SELECT * EXCLUDE (removed_by, key) FROM marked WHERE removed_by IS NULL
QUALIFY row_number() OVER (PARTITION BY key ORDER BY created_utc, story_id) = 1;
SELECT count(*) FROM stories;
CREATE TEMP TABLE candidates AS
SELECT
    c.prompt_id,
    c.story_id AS chosen_story_id, c.score AS chosen_score,
    c.created_utc AS chosen_created_utc, c.n_words AS chosen_n_words, c.author AS chosen_author,
    r.story_id AS rejected_story_id, r.score AS rejected_score,
    r.created_utc AS rejected_created_utc, r.n_words AS rejected_n_words,
    r.author AS rejected_author,
    CASE
        WHEN 4 * (c.score - r.score) < c.score THEN 'min_gap'
        WHEN c.created_utc <= r.created_utc THEN 'chosen_later'
    END AS removed_by
FROM stories c JOIN stories r ON c.prompt_id = r.prompt_id AND c.score > r.score;
SELECT removed_by, count(*) FROM candidates GROUP BY removed_by;
CREATE TEMP TABLE pairs AS
WITH named AS (
    SELECT * EXCLUDE (removed_by),
        md5(least(chosen_story_id, rejected_story_id) || '|'
            || greatest(chosen_story_id, rejected_story_id)) AS pair_id,
        abs(chosen_n_words - rejected_n_words) AS size,
        sign(chosen_n_words - rejected_n_words) AS side
    FROM candidates WHERE removed_by IS NULL
), bucketed AS (
    SELECT *, least(size * 50 // greatest(max(size) OVER (), 1), 49) AS bucket FROM named
), counted AS (
    SELECT bucket, least(count(*) FILTER (side > 0), count(*) FILTER (side < 0)) AS fewer
    FROM bucketed GROUP BY bucket
)
SELECT *,
    side = 0 OR row_number() OVER (PARTITION BY bucket, side
                                   ORDER BY md5('0|' || pair_id), pair_id) <= fewer AS stays
FROM bucketed JOIN counted USING (bucket);
SELECT count(*) FROM pairs WHERE stays
"""
COPY = """
COPY (
    SELECT p.pair_id, p.prompt_id, c.prompt, c.text AS chosen, r.text AS rejected,
        'votes' AS label_source, 'all' AS split, p.chosen_story_id, p.rejected_story_id,
        p.chosen_n_words, p.rejected_n_words, p.chosen_score, p.rejected_score,
        p.chosen_created_utc, p.rejected_created_utc, p.chosen_author, p.rejected_author
    FROM pairs p
    JOIN read_parquet('{stories}') c ON c.story_id = p.chosen_story_id
    JOIN read_parquet('{stories}') r ON r.story_id = p.rejected_story_id
    {where}
    ORDER BY p.pair_id
) TO '{out}' (FORMAT parquet, COMPRESSION zstd)
"""


@dataclass
class Config:
    """Size of the benchmark.

    Attributes:
        n_stories: number of synthetic stories, before any filter.
        repeats: number of runs of each way.
        memory_limit: DuckDB's `memory_limit` in the program.
        program_only: only run the program once, for its memory.
    """

    n_stories: int = 300_000
    repeats: int = 5
    memory_limit: str | None = None
    program_only: bool = False


def write_stories(n_stories: int, path: Path) -> None:
    """Write stories with scores, lengths and times as skewed as in real data."""
    random = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(random.choice(letters, size)) for size in random.integers(2, 10, 5_000)]
    paragraphs = pa.array([" ".join(random.choice(words, 20)) + "." for _ in range(4_000)])
    names = random.permutation(n_stories)
    schema = STORIES.arrow()
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for start in range(0, n_stories, _ROWS_PER_PART):
            rows = min(_ROWS_PER_PART, n_stories - start)
            prompts = random.integers(0, max(1, n_stories // _PER_PROMPT), rows)
            n_words = np.round(np.exp(random.normal(6.1, 0.7, rows))).astype(np.int64)
            # Scores increase with length, so that length symmetry removes pairs.
            log_score = random.normal(1.6, 1.3, rows) + 0.3 * (np.log1p(n_words) - 6.1)
            parts = [paragraphs.take(pa.array(random.integers(0, 4_000, rows))) for _ in range(5)]
            columns = {
                "story_id": [f"t1_{name:08x}" for name in names[start : start + rows]],
                "prompt_id": [f"t3_{number:07x}" for number in prompts],
                "prompt": [f"[WP] Prompt {number:07x}" for number in prompts],
                "text": pc.binary_join_element_wise(*parts, "\n"),
                "n_words": n_words,
                "source": pa.repeat("benchmark", rows),
                "score": np.round(np.exp(log_score)).astype(np.int64),
                "created_utc": 1_400_000_000 + random.integers(0, 86_400 * 30, rows),
                "author": [f"{name:016x}" for name in random.integers(0, 1 << 40, rows)],
                "n_tokens": np.round(n_words * 1.3).astype(np.int64),
            }
            arrays = [
                pa.nulls(rows, field.type)
                if field.name not in columns
                else pa.array(columns[field.name]).cast(field.type)
                for field in schema
            ]
            writer.write_table(pa.table(arrays, schema=schema))


def run_apart(*command: str | Path) -> tuple[float, float]:
    """Run a Python program in a subprocess; return its CPU seconds and peak memory in GB."""
    arguments = [sys.executable, *map(str, command)]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, cwd=_ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} exited with code {process.returncode}")
    # `ru_maxrss` is in KiB on Linux and in bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1_024
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 1e9


def pair_by_sql(stories: Path, out: Path, *, with_texts: bool) -> int:
    """Pair by `SQL`; return the number of pairs."""
    values = {
        "gone": filters._GONE,
        "names": BOT_NAMES,
        "template": filters._BOT_TEMPLATE,
        "signature": filters._BOT_SIGNATURE,
        "stories": str(stories),
    }
    with duckdb.connect(config={"temp_directory": str(out / "spill")}) as con:
        con.execute("SET preserve_insertion_order = false")
        for statement in SQL.split(";"):
            used = {name: value for name, value in values.items() if f"${name}" in statement}
            rows = con.execute(statement, used).fetchall()
        if with_texts:
            for name, where in (("pairs", "WHERE p.stays"), ("pairs_before_symmetry", "")):
                path = out / f"{name}.parquet"
                con.execute(COPY.format(stories=stories, where=where, out=path))
    return int(rows[0][0])


def pair_by_litbench(stories: Path, out: Path, *, with_texts: bool) -> int:
    """Pair by `CuratedPairs`; return the number of pairs."""
    with open_engine("duckdb", out) as engine:
        pairs = CuratedPairs(engine, engine.read(stories), PairRules(drop_talk=False))
        if with_texts:
            pairs.write(pairs.after, out / "pairs.parquet")
            pairs.write(pairs.before, out / "pairs_before_symmetry.parquet")
        return int(engine.count(pairs.after))


def measure(config: Config) -> dict[str, Any]:
    """Measure and report; return the facts about the program."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stories = folder / "stories.parquet"
        write_stories(config.n_stories, stories)
        options = [f"--stories={stories}", f"--out={folder / 'program'}"]
        if config.memory_limit is not None:
            options.append(f"--memory_limit={config.memory_limit}")
        seconds, peak = run_apart("data_prep/make_pairs.py", *options)
        written = folder / "program" / "pairs_before_symmetry.parquet"
        facts = {
            "n_stories": config.n_stories,
            "n_pairs": pq.ParquetFile(written).metadata.num_rows,
            "program_cpu_seconds": round(seconds, 1),
            "program_peak_gb": round(peak, 2),
        }
        print(facts)
        if config.program_only:
            return facts
        figures = []
        for about, with_texts, goal in (("keys alone", False, 1.3), ("with texts", True, 1.5)):
            ways: dict[str, Callable[[], int]] = {
                "ours": partial(pair_by_litbench, stories, folder, with_texts=with_texts),
                "sql": partial(pair_by_sql, stories, folder, with_texts=with_texts),
            }
            times, pairs = in_turn(ways, config.repeats, time.process_time)
            if pairs["ours"] != pairs["sql"]:
                raise SystemExit(f"{about}: different numbers of pairs: {pairs}")
            ratios = quotients(times["ours"], times["sql"])
            figure = f"pairing, {about}: CPU to that of SQL by hand"
            figures.append(Figure(figure, ratios, goal, at_most=True))
    report("pairing", figures, **facts)
    return facts


def main(config: Config) -> None:
    """Measure and report."""
    measure(config)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
