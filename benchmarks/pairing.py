"""Measure what pairing costs: LitBench's Ibis expressions against hand-written SQL and pandas.

    python benchmarks/curation.py
    python benchmarks/curation.py --n_stories 50000

Draws the keys of synthetic stories (ids, lognormal scores, times, lengths, authors; about 20 per
prompt; no texts), writes them to a temporary Parquet file and lets each way read it, filter, pair
within prompts, apply the gap and the time rule and prune to length symmetry with the same seeded
draw. Checks that all ways keep the same pairs. The ways take turns; prints the median time of
each and, as last line, one JSON object with the ratios to the hand-written SQL. The result stays
in each engine's memory: writing files is not measured.
"""

import hashlib
import json
import statistics
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
import pyarrow.parquet as pq

from litbench.config import run_program
from litbench.curation import filters, pairing

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


@dataclass
class Config:
    """How much to measure.

    Attributes:
        n_stories: synthetic stories, before any filter.
        repeats: runs of each way, of which the median counts.
    """

    n_stories: int = 1_000_000
    repeats: int = 3


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


def main(n_stories: int = 1_000_000, repeats: int = 3) -> dict[str, Any]:
    """Measure, check, print; returns what the last line holds.

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
    print(f"{n_stories:,} stories, {n_pairs:,} pairs, the same by every way")
    for name, times in seconds.items():
        runs = ", ".join(f"{value:.2f}" for value in times)
        print(f"  {name:<9} {medians[name]:7.2f} s   ({runs})")
    summary = {
        "n_stories": n_stories,
        "n_pairs": n_pairs,
        "seconds": {name: round(value, 3) for name, value in medians.items()},
        "litbench_over_sql": round(medians["litbench"] / medians["sql"], 2),
        "pandas_over_sql": round(medians["pandas"] / medians["sql"], 2),
        "pandas_over_litbench": round(medians["pandas"] / medians["litbench"], 2),
    }
    print(json.dumps(summary))
    return summary


if __name__ == "__main__":
    run_program(lambda config: main(config.n_stories, config.repeats), Config, __doc__)
