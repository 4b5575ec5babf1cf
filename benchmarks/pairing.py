"""Measure the time and memory of data_prep/make_pairs.py.

    python benchmarks/pairing.py
    python benchmarks/pairing.py --n_stories 10000000 --memory_limit 2GB

Synthetic stories have texts of about 100 words, log-normal scores and about 20 stories per prompt.
Each run is a separate process; CPU time and peak memory are those reported by the operating system.
To compare with another commit, set `--root` to a checkout of it. The last line is one JSON object.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from litbench.config import run_program
from litbench.records import STORIES

_SPLITS = {"train": 0.9, "test": 0.1}
_ROWS_PER_PART = 200_000
_PER_PROMPT = 20


@dataclass
class Config:
    """Size of the benchmark.

    Attributes:
        n_stories: number of synthetic stories, before any filter.
        repeats: number of runs; the median is reported.
        memory_limit: DuckDB's `memory_limit`.
        root: checkout whose program is run.
    """

    n_stories: int = 1_000_000
    repeats: int = 3
    memory_limit: str | None = None
    root: Path = Path(__file__).resolve().parent.parent


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


def run_apart(*command: str | Path, root: Path) -> tuple[float, float]:
    """Run a Python program in a subprocess; return its CPU seconds and peak memory in GB."""
    arguments = [sys.executable, *map(str, command)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, cwd=root, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} exited with code {process.returncode}")
    # `ru_maxrss` is in KiB on Linux and in bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1_024
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 1e9


def main(config: Config) -> dict[str, Any]:
    """Measure, print and return the figures of the last line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_stories(config.n_stories, folder / "stories.parquet")
        options = [f"--stories={folder / 'stories.parquet'}", f"--splits={json.dumps(_SPLITS)}"]
        if config.memory_limit is not None:
            options.append(f"--memory_limit={config.memory_limit}")
        runs = []
        for repeat in range(config.repeats):
            out = folder / f"run{repeat}"
            command = ("data_prep/make_pairs.py", f"--out={out}", *options)
            runs.append(run_apart(*command, root=config.root))
        n_pairs = pq.ParquetFile(out / "pairs_before_symmetry.parquet").metadata.num_rows
    figures = {
        "n_stories": config.n_stories,
        "n_pairs": n_pairs,
        "cpu_seconds": round(statistics.median(seconds for seconds, _ in runs), 2),
        "peak_gb": round(max(peak for _, peak in runs), 2),
    }
    print(json.dumps(figures))
    return figures


if __name__ == "__main__":
    run_program(lambda config: main(config) and None, Config, __doc__)
