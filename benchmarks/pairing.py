"""Measure what pairing costs: data_prep/make_pairs.py against hand-written SQL.

    python benchmarks/pairing.py
    python benchmarks/pairing.py --large 10000000 --memory_limit 2GB

Synthetic stories (texts of about 100 words, lognormal scores, about 20 stories per prompt) are
paired by the program and by DuckDB SQL that reads the same file, counts the same steps and writes
the same two files; both must keep the same pairs. Each runs in a process of its own, whose peak
memory is read from the operating system. The talk rule is off in both, and the SQL is given the
split of each prompt. `--large` runs the program once more on so many stories. Prints times and, as
last line, one JSON object.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from litbench.config import run_program
from litbench.curation import filters
from litbench.curation.splits import split_of
from litbench.records import STORIES

_ROOT = Path(__file__).resolve().parent.parent
_SPLITS = {"train": 0.9, "test": 0.1}
_ROWS_PER_PART = 200_000
_PER_PROMPT = 20

SQL = """
CREATE TEMP TABLE marked AS
SELECT story_id, prompt_id, score, created_utc, author, n_words,
    md5(replace(replace(replace(replace(lower(replace(text, 'İ', 'I')), ' ', ''), chr(10), ''),
        chr(13), ''), chr(9), '')) AS key,
    CASE
        WHEN regexp_matches(trim(text), $gone) THEN 'drop_deleted'
        WHEN coalesce(regexp_matches(author, $names), false)
            OR regexp_matches(substr(trim(text), 1, 400), $template)
            OR regexp_matches(substr(trim(text), 1, 400), $signature)
            OR regexp_matches(right(trim(text), 400), $signature) THEN 'drop_bots'
        WHEN score IS NULL THEN 'has_score'
        WHEN created_utc IS NULL THEN 'has_time'
        WHEN score < 10 THEN 'min_score'
        WHEN n_tokens > 2048 THEN 'max_tokens'
        WHEN n_words < 50 THEN 'min_words'
    END AS removed_by
FROM read_parquet($stories);
SELECT removed_by, count(*) FROM marked GROUP BY removed_by;
CREATE TEMP TABLE stories AS
SELECT m.* EXCLUDE (removed_by, key), s.split
FROM marked m JOIN read_parquet($splits) s USING (prompt_id)
WHERE removed_by IS NULL
QUALIFY row_number() OVER (PARTITION BY key ORDER BY created_utc, story_id) = 1;
SELECT count(*) FROM stories;
CREATE TEMP TABLE candidates AS
SELECT
    c.prompt_id, c.split,
    c.story_id AS chosen_story_id, c.score AS chosen_score,
    c.created_utc AS chosen_created_utc, c.n_words AS chosen_n_words, c.author AS chosen_author,
    r.story_id AS rejected_story_id, r.score AS rejected_score,
    r.created_utc AS rejected_created_utc, r.n_words AS rejected_n_words,
    r.author AS rejected_author,
    CASE
        WHEN 4 * (c.score - r.score) < c.score THEN 'min_gap'
        WHEN c.created_utc <= r.created_utc THEN 'chosen_later'
    END AS removed_by
FROM stories c JOIN stories r
    ON c.prompt_id = r.prompt_id AND c.split = r.split AND c.score > r.score;
SELECT removed_by, count(*) FROM candidates GROUP BY removed_by;
CREATE TEMP TABLE pairs AS
WITH named AS (
    SELECT * EXCLUDE (removed_by),
        md5(least(chosen_story_id, rejected_story_id) || '|'
            || greatest(chosen_story_id, rejected_story_id)) AS pair_id,
        abs(chosen_n_words - rejected_n_words) AS size,
        sign(chosen_n_words - rejected_n_words) AS side
    FROM candidates WHERE removed_by IS NULL
), widest AS (
    SELECT split, max(size) AS widest FROM named GROUP BY split
), bucketed AS (
    SELECT *, least(size * 50 // greatest(widest, 1), 49) AS bucket
    FROM named JOIN widest USING (split)
), counted AS (
    SELECT split, bucket,
        least(count(*) FILTER (side > 0), count(*) FILTER (side < 0)) AS fewer
    FROM bucketed GROUP BY split, bucket
)
SELECT *,
    side = 0 OR row_number() OVER (PARTITION BY split, bucket, side
                                   ORDER BY md5('0|' || pair_id), pair_id) <= fewer AS stays
FROM bucketed JOIN counted USING (split, bucket);
SELECT split, count(*), count(*) FILTER (side > 0) FROM pairs WHERE stays GROUP BY split;
"""
COPY = """
COPY (
    SELECT p.pair_id, p.prompt_id, c.prompt, c.text AS chosen, r.text AS rejected,
        'votes' AS label_source, p.split, p.chosen_story_id, p.rejected_story_id,
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
    """How much to measure.

    Attributes:
        n_stories: synthetic stories, before any filter.
        repeats: runs of each way, of which the median counts.
        large: stories of one more run of the program; null leaves it out.
        memory_limit: DuckDB's, in every run.
        folder: where the synthetic stories are written; a temporary one when null.
        sql: set by the benchmark itself, for the process that runs the SQL.
    """

    n_stories: int = 1_000_000
    repeats: int = 3
    large: int | None = None
    memory_limit: str | None = None
    folder: Path | None = None
    sql: bool = False


def write_stories(n_stories: int, path: Path) -> None:
    """Write stories whose scores, lengths and times are as skewed as real ones."""
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
            # Length draws votes, so that symmetry has pairs to prune.
            log_score = random.normal(1.6, 1.3, rows) + 0.3 * (np.log1p(n_words) - 6.1)
            drawn = [paragraphs.take(pa.array(random.integers(0, 4_000, rows))) for _ in range(5)]
            columns = {
                "story_id": [f"t1_{name:08x}" for name in names[start : start + rows]],
                "prompt_id": [f"t3_{number:07x}" for number in prompts],
                "prompt": [f"[WP] Prompt {number:07x}" for number in prompts],
                "text": pc.binary_join_element_wise(*drawn, "\n"),
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


def run_sql(folder: Path, memory_limit: str | None) -> None:
    """The same work in SQL written by hand."""
    out = folder / "sql"
    con = duckdb.connect(config={"temp_directory": str(out / "spill")})
    if memory_limit is not None:
        con.execute(f"SET memory_limit = '{memory_limit}'")
    con.execute("SET preserve_insertion_order = false")
    stories = folder / "stories.parquet"
    values = {
        "gone": filters._GONE,
        "names": filters.BOT_NAMES,
        "template": filters._BOT_TEMPLATE,
        "signature": filters._BOT_SIGNATURE,
        "stories": str(stories),
        "splits": str(out / "splits.parquet"),
    }
    for statement in SQL.split(";"):
        used = {name: value for name, value in values.items() if f"${name}" in statement}
        if statement.strip():
            con.execute(statement, used).fetchall()
    for name, where in (("pairs", "WHERE p.stays"), ("pairs_before_symmetry", "")):
        con.execute(COPY.format(stories=stories, where=where, out=out / f"{name}.parquet"))


def run_apart(*command: str | Path) -> tuple[float, float]:
    """Run a Python program in a process of its own; returns seconds and its peak memory in GB."""
    started = time.perf_counter()
    arguments = [sys.executable, *map(str, command)]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, cwd=_ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1_024
    return time.perf_counter() - started, usage.ru_maxrss * unit / 1e9


def run_make_pairs(stories: Path, out: Path, limit: list[str]) -> tuple[float, float]:
    """Run the program by the rules of the SQL."""
    options = [f"--splits={json.dumps(_SPLITS)}", "--drop_talk=false", *limit]
    program = "data_prep/make_pairs.py"
    return run_apart(program, f"--stories={stories}", f"--out={out}", *options)


def compare(config: Config, folder: Path, limit: list[str]) -> dict[str, Any]:
    """Run both ways in turn; returns the figures.

    Raises:
        AssertionError: the two keep different pairs.
    """
    stories, by_hand = folder / "stories.parquet", folder / "sql"
    write_stories(config.n_stories, stories)
    by_hand.mkdir()
    table = pq.read_table(stories, columns=["prompt_id", "prompt"]).to_pydict()
    prompts = dict(zip(table["prompt_id"], table["prompt"], strict=True))
    splits = [split_of(prompt, _SPLITS, 0) for prompt in prompts.values()]
    pq.write_table(pa.table({"prompt_id": list(prompts), "split": splits}),
                   by_hand / "splits.parquet")  # fmt: skip
    runs: dict[str, list[tuple[float, float]]] = {"program": [], "sql": []}
    for repeat in range(config.repeats):
        out = folder / f"program{repeat}"
        runs["program"].append(run_make_pairs(stories, out, limit))
        runs["sql"].append(run_apart(Path(__file__), "--sql=true", f"--folder={folder}", *limit))
    columns = ["chosen_story_id", "rejected_story_id", "split"]
    for name in ("pairs.parquet", "pairs_before_symmetry.parquet"):
        tables = [pq.read_table(place / name, columns=columns) for place in (out, by_hand)]
        kept = [sorted(zip(*table.to_pydict().values(), strict=True)) for table in tables]
        if kept[0] != kept[1]:
            raise AssertionError(f"{name}: {len(kept[0])} pairs, by SQL {len(kept[1])}")
    print(f"{config.n_stories:,} stories, {len(kept[0]):,} pairs before symmetry")
    figures: dict[str, Any] = {"n_stories": config.n_stories, "n_pairs": len(kept[0])}
    for name, found in runs.items():
        seconds, peak = statistics.median(run[0] for run in found), max(run[1] for run in found)
        print(f"  {name:<9} {seconds:7.2f} s   peak {peak:.2f} GB")
        figures |= {f"{name}_seconds": round(seconds, 2), f"{name}_peak_gb": round(peak, 2)}
    figures["program_over_sql"] = round(figures["program_seconds"] / figures["sql_seconds"], 2)
    return figures


def main(config: Config) -> dict[str, Any]:
    """Measure, check, print; returns what the last line holds."""
    if config.sql:
        assert config.folder is not None
        run_sql(config.folder, config.memory_limit)
        return {}
    limit = [f"--memory_limit={config.memory_limit}"] if config.memory_limit is not None else []
    with tempfile.TemporaryDirectory(dir=config.folder) as name:
        folder = Path(name)
        figures = compare(config, folder, limit)
        if config.large is not None:
            stories = folder / "large.parquet"
            write_stories(config.large, stories)
            seconds, peak = run_make_pairs(stories, folder / "large", limit)
            print(f"{config.large:,} stories: {seconds:.1f} s, peak {peak:.2f} GB")
            figures |= {
                "large": config.large,
                "large_seconds": round(seconds, 1),
                "large_peak_gb": round(peak, 2),
            }
    print(json.dumps(figures))
    return figures


if __name__ == "__main__":
    run_program(lambda config: main(config) and None, Config, __doc__)
