"""Benchmark the import of a Reddit dump against a plain Python loop over JSON lines.

    python benchmarks/archive.py --megabytes 250

Generates a file of submissions and one of comments in the form of the monthly dumps: all subreddits
mixed, a tenth of the comments in the selected one (`--share`), zstd with a window of 2^31 bytes.
Two methods are timed in turn: a Python loop that decompresses the file, parses every line with json
and counts the top-level comments; and data_prep/import_archive.py from its start to the finished
table. The figures are the loop's seconds over the importer's, by the clock and of all processors.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from figures import Figure, in_turn, quotients, report

from litbench.sources.archive import zstd

ROOT = Path(__file__).resolve().parent.parent
FIRST_SECOND = 1_577_836_800  # 2020-01-01 UTC
# Real rows have about as many fields that the importer does not read.
UNREAD = {f"field_number_{number}": None for number in range(34)}


def text_generator() -> Callable[[int], str]:
    """Return a function that generates a text of n words with Zipf-like frequencies."""
    source, rng = random.Random(0), np.random.default_rng(0)
    words = ["".join(source.choices("etaoinshrdlu", k=source.randint(2, 9))) for _ in range(9_999)]
    # Real texts also contain paragraphs, quotation marks to be escaped and other scripts.
    for index in range(20, len(words), 40):
        words[index] += source.choice([",", ".\n\n", '."\n\n"', "\u2019s", " &amp;"])
    vocabulary, total = np.array(words, dtype=object), np.cumsum(1 / np.arange(1, len(words) + 1))
    return lambda n: " ".join(vocabulary[np.searchsorted(total, rng.random(n) * total[-1])])


def generate_submissions(posts: int, text: Callable[[int], str]) -> Iterator[dict[str, Any]]:
    """Generate submissions; every tenth is in the selected subreddit."""
    for number in range(posts):
        wanted = number % 10 == 0
        created = FIRST_SECOND + number * 20
        yield UNREAD | {
            "author": f"author{number % 10**6}",
            "created_utc": created,
            "id": np.base_repr(10**9 + number, 36).lower(),
            "link_flair_text": "Writing Prompt" if wanted else None,
            "over_18": False,
            "retrieved_on": created + 10**6,
            "score": 3,
            "selftext": "",
            "subreddit": "WritingPrompts" if wanted else "AskReddit",
            "title": ("[WP] " if wanted else "") + text(25),
        }


def generate_comments(
    megabytes: float, share: float, posts: int, text: Callable[[int], str]
) -> Iterator[dict[str, Any]]:
    """Generate about `megabytes` of JSON; `share` of the comments is in the selected subreddit."""
    source = random.Random(0)
    written = 0.0
    for number in itertools.count():
        if written > megabytes * 1e6:
            return
        wanted = source.random() < share
        # Four of ten comments in the subreddit are stories.
        story = wanted and source.random() < 0.4
        body = text(min(int(source.lognormvariate(6.1 if story else 3.2, 0.7)) + 3, 4_000))
        written += len(body) + 1_050
        post = source.randrange(posts // 10) * 10 + (0 if wanted else 1 + source.randrange(9))
        link = "t3_" + np.base_repr(10**9 + post, 36).lower()
        created = FIRST_SECOND + number
        yield UNREAD | {
            "author": f"author{source.randrange(10**6)}",
            "body": body,
            "created_utc": created,
            "edited": False,
            "id": np.base_repr(10**10 + number, 36).lower(),
            "link_id": link,
            "parent_id": link if story or source.random() < 0.3 else "t1_" + link[3:],
            "retrieved_on": created + 10**6,
            "score": int(source.paretovariate(1)),
            "subreddit": "WritingPrompts" if wanted else "AskReddit",
        }


def write_dump(rows: Iterable[dict[str, Any]], path: Path) -> int:
    """Write rows as JSON lines in one zstd frame, like the dumps; return the number of rows."""
    parameter = zstd().CompressionParameter
    options = {parameter.compression_level: 3, parameter.window_log: 31}
    lines = 0
    with zstd().ZstdFile(path, "wb", options=options) as stream:
        for lines, row in enumerate(rows, 1):  # noqa: B007
            stream.write(
                json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
            )
    return lines


def loop_with_json(path: Path) -> int:
    """Count the top-level comments of the subreddit with a plain loop."""
    options = {zstd().DecompressionParameter.window_log_max: 31}
    with zstd().open(path, options=options) as stream:
        return sum(
            comment["subreddit"] == "WritingPrompts" and comment["parent_id"] == comment["link_id"]
            for comment in map(json.loads, stream)
        )


def run_importer(submissions: Path, comments: Path, out: Path) -> int:
    """Run data_prep/import_archive.py in a subprocess; return the number of stories it writes."""
    shutil.rmtree(out, ignore_errors=True)
    command = [
        sys.executable,
        str(ROOT / "data_prep" / "import_archive.py"),
        *("--submissions", f"[{submissions}]", "--comments", f"[{comments}]", "--out", str(out)),
    ]
    environment = {"LITBENCH_SALT": "a salt for the benchmark", **os.environ}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return pq.ParquetFile(out / "stories.parquet").metadata.num_rows


def cpu_seconds() -> float:
    """CPU seconds of this process and of its finished children."""
    return sum(os.times()[:4])


def main() -> None:
    """Generate the files, time both methods and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=100, help="approximate size of the JSON")
    parser.add_argument(
        "--share", type=float, default=0.1, help="share of comments in the subreddit"
    )
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        submissions, comments = folder / "RS_2020-01.zst", folder / "RC_2020-01.zst"
        text, posts = text_generator(), max(int(given.megabytes * 80), 100)
        write_dump(generate_submissions(posts, text), submissions)
        rows = generate_comments(given.megabytes, given.share, posts, text)
        written = write_dump(rows, comments)
        ways: dict[str, Callable[[], int]] = {
            "json_loop": lambda: loop_with_json(comments),
            "import": lambda: run_importer(submissions, comments, folder / "out"),
        }
        figures = []
        for about, clock in (("time", time.perf_counter), ("CPU", cpu_seconds)):
            seconds, found = in_turn(ways, given.repeats, clock)
            if found["json_loop"] != found["import"]:
                raise SystemExit(f"the two ways find different numbers of stories: {found}")
            ratios = quotients(seconds["json_loop"], seconds["import"])
            figures.append(
                Figure(f"archive: {about} of a loop with json over the import's", ratios)
            )
    report("archive", figures, share=given.share, comments=written)


if __name__ == "__main__":
    main()
