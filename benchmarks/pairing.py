"""Measure what pairing costs: LitBench against hand-written SQL and pandas.

    python benchmarks/pairing.py
    python benchmarks/pairing.py --large 10000000 --memory_limit 2GB

Two comparisons on synthetic stories (ids, lognormal scores, times, lengths, authors; about 20 per
prompt), all of which must keep the same pairs:

(a) pairing alone, on keys without texts: filters, pairs within prompts, gap and time rule, length
symmetry, by LitBench's expressions, by one SQL query and by pandas; the result stays in memory.
(b) the whole program with texts of about 100 words: data_prep/make_pairs.py with its schema check,
funnel, examples, digest and splits, against SQL that reads the same file, counts the same steps,
removes the same rows and writes the same two files; each in a process of its own, whose peak
memory is read from the operating system. The talk rule is off in both; the SQL is handed the
split of each prompt, which the program computes.

With `--large` the whole program runs once more on so many stories, within `memory_limit` for
DuckDB, and the growth is printed. Prints times and, as last line, one JSON object with the ratios.
"""

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from litbench.config import run_program
from litbench.curation import filters, pairing
from litbench.curation.splits import split_prompts
from litbench.records import STORIES

_ROOT = Path(__file__).resolve().parent.parent
_SPLITS = {"train": 0.9, "test": 0.1}
_TEXTS_AT_ONCE = 200_000

_PER_PROMPT = 20
_MIN_SCORE, _MAX_TOKENS, _MIN_WORDS = 10, 2_048, 50
_MIN_GAP, _BUCKETS, _SEED = 0.25, 100, 0
_SIDES = ("story_id", "score", "created_utc", "n_words", "author")
_COLUMNS = ["pair_id", "prompt_id", "split"] + [
    f"{side}_{name}" for side in ("chosen", "rejected") for name in _SIDES
]

SQL = f"""
CREATE OR REPLACE TEMP TABLE pairs AS
WITH stories AS (
    SELECT * FROM read_parquet('{{path}}')
    WHERE score >= {_MIN_SCORE} AND n_tokens <= {_MAX_TOKENS} AND n_words >= {_MIN_WORDS}
), candidates AS (
    SELECT
        md5(least(c.story_id, r.story_id) || '|' || greatest(c.story_id, r.story_id)) AS pair_id,
        c.prompt_id, c.split,
        c.story_id AS chosen_story_id, c.score AS chosen_score,
        c.created_utc AS chosen_created_utc, c.n_words AS chosen_n_words,
        c.author AS chosen_author,
        r.story_id AS rejected_story_id, r.score AS rejected_score,
        r.created_utc AS rejected_created_utc, r.n_words AS rejected_n_words,
        r.author AS rejected_author,
        abs(c.n_words - r.n_words) AS size, sign(c.n_words - r.n_words) AS side
    FROM stories c JOIN stories r
        ON c.prompt_id = r.prompt_id AND c.split = r.split AND c.score > r.score
        AND c.created_utc > r.created_utc AND 4 * (c.score - r.score) >= c.score
), widest AS (
    SELECT split, max(size) AS widest FROM candidates GROUP BY split
), bucketed AS (
    SELECT *, least(size * {_BUCKETS // 2} // greatest(widest, 1), {_BUCKETS // 2 - 1}) AS bucket
    FROM candidates JOIN widest USING (split)
), counted AS (
    SELECT split, bucket,
        least(count(*) FILTER (side > 0), count(*) FILTER (side < 0)) AS fewer
    FROM bucketed GROUP BY split, bucket
), placed AS (
    SELECT *,
        row_number() OVER (PARTITION BY split, bucket, side
                           ORDER BY md5('{_SEED}|' || pair_id), pair_id) AS place
    FROM bucketed JOIN counted USING (split, bucket)
)
SELECT {", ".join(_COLUMNS)} FROM placed WHERE side = 0 OR place <= fewer
"""


SCRIPT = f"""
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
        WHEN score < {_MIN_SCORE} THEN 'min_score'
        WHEN n_tokens > {_MAX_TOKENS} THEN 'max_tokens'
        WHEN n_words < {_MIN_WORDS} THEN 'min_words'
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
    SELECT *, least(size * {_BUCKETS // 2} // greatest(widest, 1), {_BUCKETS // 2 - 1}) AS bucket
    FROM named JOIN widest USING (split)
), counted AS (
    SELECT split, bucket,
        least(count(*) FILTER (side > 0), count(*) FILTER (side < 0)) AS fewer
    FROM bucketed GROUP BY split, bucket
)
SELECT *,
    side = 0 OR row_number() OVER (PARTITION BY split, bucket, side
                                   ORDER BY md5('{_SEED}|' || pair_id), pair_id) <= fewer AS stays
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
        large: stories of one more run of the whole program; null leaves it out.
        memory_limit: DuckDB's, in every run of the whole program and of the SQL beside it.
        folder: where the synthetic stories are written; a temporary one when null.
        way: set by the benchmark itself, for the process that runs the SQL.
    """

    n_stories: int = 1_000_000
    repeats: int = 3
    large: int | None = None
    memory_limit: str | None = None
    folder: Path | None = None
    way: str | None = None


def draw_stories(n_stories: int) -> pa.Table:
    """Keys of synthetic stories whose scores, lengths and times are as skewed as real ones."""
    random = np.random.default_rng(0)
    prompts = max(1, n_stories // _PER_PROMPT)
    prompt = random.integers(0, prompts, n_stories)
    n_words = np.round(np.exp(random.normal(6.1, 0.7, n_stories))).astype(np.int64)
    # Length draws votes, so that symmetry has pairs to prune.
    log_score = random.normal(1.6, 1.3, n_stories) + 0.3 * (np.log1p(n_words) - 6.1)
    return pa.table(
        {
            "story_id": pa.array([f"t1_{place:08x}" for place in random.permutation(n_stories)]),
            "prompt_id": pa.array([f"t3_{place:07x}" for place in prompt]),
            "split": np.where(prompt % 10 == 0, "test", "train"),
            "score": np.round(np.exp(log_score)).astype(np.int64),
            "created_utc": 1_400_000_000 + random.integers(0, 86_400 * 30, n_stories),
            "n_words": n_words,
            "n_tokens": np.round(n_words * 1.3).astype(np.int64),
            "author": pa.array([f"{name:016x}" for name in random.integers(0, 1 << 40, n_stories)]),
        }
    )


def by_litbench(path: Path) -> Any:
    """Pair by the expressions of data_prep/make_pairs.py, stored after the same steps."""
    con = ibis.duckdb.connect()
    stories = con.read_parquet(path)
    rules = filters.story_rules(
        stories,
        drop_deleted=False,
        drop_bots=False,
        needs_score=True,
        needs_time=True,
        min_score=_MIN_SCORE,
        max_tokens=_MAX_TOKENS,
        min_words=_MIN_WORDS,
    )
    kept = stories.filter(filters.removed_by(rules).isnull()).drop("n_tokens")
    candidates = pairing.within_prompt(con.create_table("kept", kept, temp=True))
    gap_and_time = pairing.pair_rules(candidates, min_gap=_MIN_GAP, chosen_later=True)
    pairs = candidates.filter(filters.removed_by(gap_and_time).isnull())
    pairs = con.create_table("pairs", pairs, temp=True)
    marked = pairing.breaks_symmetry(pairs, _BUCKETS, _SEED)
    balanced = marked.filter(~marked.removed).select(_COLUMNS)
    return con.create_table("balanced", balanced, temp=True)


def by_sql(path: Path) -> Any:
    """Pair by one query written by hand."""
    con = duckdb.connect()
    con.execute(SQL.format(path=path))
    return con


def _md5(texts: pd.Series) -> list[str]:
    return [hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() for text in texts]


def by_pandas(path: Path) -> pd.DataFrame:
    """Pair by a self-merge in pandas, which runs on one core."""
    stories = pd.read_parquet(path)
    enough = (stories.score >= _MIN_SCORE) & (stories.n_tokens <= _MAX_TOKENS)
    stories = stories[enough & (stories.n_words >= _MIN_WORDS)].drop(columns="n_tokens")
    sides = [
        stories.rename(columns={name: f"{side}_{name}" for name in _SIDES})
        for side in ("chosen", "rejected")
    ]
    pairs = sides[0].merge(sides[1], on=["prompt_id", "split"])
    lead = pairs.chosen_score - pairs.rejected_score
    later = pairs.chosen_created_utc > pairs.rejected_created_utc
    pairs = pairs[(lead > 0) & (4 * lead >= pairs.chosen_score) & later].reset_index(drop=True)
    swap = pairs.chosen_story_id > pairs.rejected_story_id
    low = pairs.chosen_story_id.where(~swap, pairs.rejected_story_id)
    high = pairs.rejected_story_id.where(~swap, pairs.chosen_story_id)
    pairs["pair_id"] = _md5(low + "|" + high)
    difference = pairs.chosen_n_words - pairs.rejected_n_words
    size, side = difference.abs(), np.sign(difference)
    half = _BUCKETS // 2
    widest = size.groupby(pairs.split).transform("max").clip(lower=1)
    pairs["bucket"] = (size * half // widest).clip(upper=half - 1)
    pairs["side"], pairs["longer"], pairs["shorter"] = side, side > 0, side < 0
    pairs["draw"] = _md5(f"{_SEED}|" + pairs.pair_id)
    cell = pairs.groupby(["split", "bucket"])
    fewer = np.minimum(cell.longer.transform("sum"), cell.shorter.transform("sum"))
    ordered = pairs.sort_values(["draw", "pair_id"])
    place = ordered.groupby(["split", "bucket", "side"]).cumcount()
    return pairs[(side == 0) | (place.reindex(pairs.index) < fewer)][_COLUMNS]


def _kept(result: Any) -> list[tuple[str, str]]:
    columns = ("chosen_story_id", "rejected_story_id")
    if isinstance(result, pd.DataFrame):
        table = pa.table({name: pa.array(result[name], pa.string()) for name in columns})
    elif isinstance(result, duckdb.DuckDBPyConnection):
        table = result.sql("SELECT chosen_story_id, rejected_story_id FROM pairs").to_arrow_table()
    else:
        table = result.select(*columns).to_pyarrow()
    return sorted(zip(*(table[name].to_pylist() for name in columns), strict=True))


def compare_on_keys(n_stories: int, repeats: int) -> dict[str, Any]:
    """Comparison (a); returns seconds and ratios.

    Raises:
        AssertionError: two ways keep different pairs.
    """
    ways: dict[str, Callable[[Path], Any]] = {
        "litbench": by_litbench,
        "sql": by_sql,
        "pandas": by_pandas,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    kept: list[tuple[str, str]] | None = None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stories.parquet"
        pq.write_table(draw_stories(n_stories), path, compression="zstd")
        for repeat in range(repeats):
            for name, way in ways.items():
                started = time.perf_counter()
                result = way(path)
                seconds[name].append(time.perf_counter() - started)
                if repeat == 0:
                    found = _kept(result)
                    if kept is not None and found != kept:
                        raise AssertionError(f"{name} keeps {len(found)} pairs, not the same ones")
                    kept = found
                del result
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    n_pairs = len(kept or [])
    print(f"(a) keys alone: {n_stories:,} stories, {n_pairs:,} pairs, the same by every way")
    for name, times in seconds.items():
        runs = ", ".join(f"{value:.2f}" for value in times)
        print(f"  {name:<9} {medians[name]:7.2f} s   ({runs})")
    return {
        "n_pairs": n_pairs,
        "litbench_over_sql": round(medians["litbench"] / medians["sql"], 2),
        "pandas_over_sql": round(medians["pandas"] / medians["sql"], 2),
        "pandas_over_litbench": round(medians["pandas"] / medians["litbench"], 2),
    }


def write_stories(n_stories: int, path: Path) -> None:
    """Write a stories table with texts: five paragraphs of 20 words each, drawn from 4,000."""
    random = np.random.default_rng(1)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(random.choice(letters, size)) for size in random.integers(2, 10, 5_000)]
    paragraphs = pa.array([" ".join(random.choice(words, 20)) + "." for _ in range(4_000)])
    keys = draw_stories(n_stories).drop("split")
    types = {column.name: STORIES.arrow().field(column.name).type for column in STORIES.columns}
    with pq.ParquetWriter(path, STORIES.arrow(), compression="zstd") as writer:
        for start in range(0, n_stories, _TEXTS_AT_ONCE):
            part = keys.slice(start, _TEXTS_AT_ONCE)
            rows = part.num_rows
            # Some stories are short, so that the shortest rule has work.
            drawn = [paragraphs.take(pa.array(random.integers(0, 4_000, rows))) for _ in range(5)]
            short = pa.array(random.random(rows) < 0.05)
            texts = pc.if_else(short, drawn[0], pc.binary_join_element_wise(*drawn, "\n"))
            columns = {
                "prompt": pc.binary_join_element_wise("[WP] Prompt", part["prompt_id"], " "),
                "text": texts,
                "source": pa.repeat("benchmark", rows),
                "score_utc": pa.nulls(rows, pa.int64()),
                "flair": pa.repeat("WP", rows),
                **{name: part[name] for name in part.column_names},
            }
            arrays = [pc.cast(columns[name], kind) for name, kind in types.items()]
            table = pa.table(arrays, schema=STORIES.arrow())
            writer.write_table(table)


def by_script(stories: Path, out: Path, memory_limit: str | None) -> None:
    """The whole work in SQL written by hand."""
    con = duckdb.connect(config={"temp_directory": str(out / "spill")})
    if memory_limit is not None:
        con.execute(f"SET memory_limit = '{memory_limit}'")
    con.execute("SET preserve_insertion_order = false")
    values = {
        "gone": filters._GONE,
        "names": filters.BOT_NAMES,
        "template": filters._BOT_TEMPLATE,
        "signature": filters._BOT_SIGNATURE,
        "stories": str(stories),
        "splits": str(out / "splits.parquet"),
    }
    for statement in SCRIPT.split(";"):
        used = {name: value for name, value in values.items() if f"${name}" in statement}
        if statement.strip():
            con.execute(statement, used).fetchall()
    for name, where in (("pairs", "WHERE p.stays"), ("pairs_before_symmetry", "")):
        con.execute(COPY.format(stories=stories, where=where, out=out / f"{name}.parquet"))


def run_apart(command: list[str]) -> tuple[float, float]:
    """Run a command in a process of its own; returns seconds and its peak memory in GB."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=_ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1_024
    return time.perf_counter() - started, usage.ru_maxrss * unit / 1e9


def program_command(stories: Path, out: Path, limit: str | None) -> list[str]:
    """The command of the whole program, by the rules of the SQL."""
    options = [f"--splits={json.dumps(_SPLITS)}", "--drop_talk=false"]
    options += [f"--memory_limit={limit}"] if limit is not None else []
    paths = [f"--stories={stories}", f"--out={out}"]
    return [sys.executable, "data_prep/make_pairs.py", *paths, *options]


def compare_whole(given: Config, folder: Path) -> dict[str, Any]:
    """Comparison (b); returns seconds, memory and the ratio.

    Raises:
        AssertionError: the two keep different pairs.
    """
    stories = folder / "stories.parquet"
    write_stories(given.n_stories, stories)
    prompts = pq.read_table(stories, columns=["prompt_id", "prompt"]).to_pydict()
    prompt_of = dict(zip(prompts["prompt_id"], prompts["prompt"], strict=True))
    split_of = split_prompts(prompt_of.values(), _SPLITS, _SEED)
    by_hand = folder / "sql"
    by_hand.mkdir()
    assigned = {"prompt_id": list(prompt_of), "split": [split_of[p] for p in prompt_of.values()]}
    pq.write_table(pa.table(assigned), by_hand / "splits.parquet")
    limit = [f"--memory_limit={given.memory_limit}"] if given.memory_limit is not None else []
    sql = [sys.executable, __file__, "--way=sql", f"--folder={folder}", *limit]
    seconds: dict[str, list[float]] = {"program": [], "sql": []}
    memory: dict[str, float] = {}
    for repeat in range(given.repeats):
        out = folder / f"program{repeat}"
        commands = {"program": program_command(stories, out, given.memory_limit), "sql": sql}
        for name, command in commands.items():
            took, peak = run_apart(command)
            seconds[name].append(took)
            memory[name] = max(memory.get(name, 0.0), peak)
    columns = ["chosen_story_id", "rejected_story_id", "split"]
    for name in ("pairs.parquet", "pairs_before_symmetry.parquet"):
        tables = [pq.read_table(place / name, columns=columns) for place in (out, by_hand)]
        kept = [sorted(zip(*table.to_pydict().values(), strict=True)) for table in tables]
        if kept[0] != kept[1]:
            raise AssertionError(f"{name}: {len(kept[0])} pairs, by SQL {len(kept[1])}")
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"(b) the whole program: {given.n_stories:,} stories, {len(kept[0]):,} pairs with texts")
    for name, times in seconds.items():
        runs = ", ".join(f"{value:.2f}" for value in times)
        print(f"  {name:<9} {medians[name]:7.2f} s   ({runs})   peak {memory[name]:.2f} GB")
    return {
        "program_over_sql": round(medians["program"] / medians["sql"], 2),
        "program_seconds": round(medians["program"], 2),
        "program_peak_gb": round(memory["program"], 2),
        "sql_peak_gb": round(memory["sql"], 2),
    }


def run_large(given: Config, folder: Path, small_seconds: float) -> dict[str, Any]:
    """The whole program on more stories: its memory, and how its time has grown."""
    assert given.large is not None
    stories = folder / "large.parquet"
    write_stories(given.large, stories)
    took, peak = run_apart(program_command(stories, folder / "large", given.memory_limit))
    pairs = pq.ParquetFile(folder / "large" / "pairs.parquet").metadata.num_rows
    times, growth = given.large / given.n_stories, took / small_seconds
    print(f"(c) {given.large:,} stories, {pairs:,} pairs: {took:.1f} s, peak {peak:.2f} GB")
    print(f"  {times:g} times the stories take {growth:.1f} times as long")
    return {
        "large": given.large,
        "large_seconds": round(took, 1),
        "large_peak_gb": round(peak, 2),
        "large_over_small": round(growth, 2),
    }


def main(given: Config) -> dict[str, Any]:
    """Measure, check, print; returns what the last line holds."""
    if given.way == "sql":
        assert given.folder is not None
        by_script(given.folder / "stories.parquet", given.folder / "sql", given.memory_limit)
        return {}
    summary = {"n_stories": given.n_stories, **compare_on_keys(given.n_stories, given.repeats)}
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        summary |= compare_whole(given, folder)
        if given.large is not None:
            summary |= run_large(given, folder, summary["program_seconds"])
    print(json.dumps(summary))
    return summary


if __name__ == "__main__":
    run_program(lambda config: main(config) and None, Config, __doc__)
