"""How fast a dump of Reddit is imported, beside a plain loop of json.

    python benchmarks/archive.py --megabytes 250

Invents a file of submissions and one of comments as the monthly dumps are: all subreddits mixed, a
tenth of the comments in the wanted one (`--share`), zstd with a window of 2^31 bytes. Two ways then
read them in turn, and medians are printed: a Python loop that decompresses, parses every line with
json and keeps the top-level comments; and data_prep/import_archive.py from its start to the
finished table. The last line is one JSON object.
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
from statistics import median
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from litbench.sources.archive import zstd

ROOT = Path(__file__).resolve().parent.parent
FIRST_SECOND = 1_577_836_800  # 2020 begins
# Real rows have as many fields that the importer does not read.
UNREAD = {f"field_number_{number}": None for number in range(34)}


class Soup:
    """Invented words with the frequencies of a language, joined to texts."""

    def __init__(self) -> None:
        source = random.Random(0)
        words = [
            "".join(source.choices("etaoinshrdlu", k=source.randint(2, 9))) for _ in range(9_999)
        ]
        # What real texts hold beside words: paragraphs, quotes to be escaped, other scripts.
        for place in range(20, len(words), 40):
            words[place] += source.choice([",", ".\n\n", '."\n\n"', "\u2019s", " &amp;"])
        self._words = np.array(words, dtype=object)
        self._upto = np.cumsum(1 / np.arange(1, len(words) + 1))
        self._draw = np.random.default_rng(0)

    def text(self, n_words: int) -> str:
        """A text of so many words."""
        places = np.searchsorted(self._upto, self._draw.random(n_words) * self._upto[-1])
        return " ".join(self._words[places])


def invent_submissions(posts: int, soup: Soup) -> Iterator[dict[str, Any]]:
    """Every tenth post is of the subreddit."""
    for place in range(posts):
        wanted = place % 10 == 0
        created = FIRST_SECOND + place * 20
        yield UNREAD | {
            "author": f"author{place % 10**6}", "created_utc": created,
            "id": np.base_repr(10**9 + place, 36).lower(),
            "link_flair_text": "Writing Prompt" if wanted else None, "over_18": False,
            "retrieved_on": created + 10**6, "score": 3, "selftext": "",
            "subreddit": "WritingPrompts" if wanted else "AskReddit",
            "title": ("[WP] " if wanted else "") + soup.text(25),
        }  # fmt: skip


def invent_comments(
    megabytes: float, share: float, posts: int, soup: Soup
) -> Iterator[dict[str, Any]]:
    """Comments until their JSON is about so large; a share of them is of the subreddit."""
    source = random.Random(0)
    written = 0.0
    for place in itertools.count():
        if written > megabytes * 1e6:
            return
        wanted = source.random() < share
        # Of ten comments in the subreddit four are stories.
        story = wanted and source.random() < 0.4
        body = soup.text(min(int(source.lognormvariate(6.1 if story else 3.2, 0.7)) + 3, 4_000))
        written += len(body) + 1_050
        post = source.randrange(posts // 10) * 10 + (0 if wanted else 1 + source.randrange(9))
        link = "t3_" + np.base_repr(10**9 + post, 36).lower()
        created = FIRST_SECOND + place
        yield UNREAD | {
            "author": f"author{source.randrange(10**6)}", "body": body, "created_utc": created,
            "edited": False, "id": np.base_repr(10**10 + place, 36).lower(), "link_id": link,
            "parent_id": link if story or source.random() < 0.3 else "t1_" + link[3:],
            "retrieved_on": created + 10**6, "score": int(source.paretovariate(1)),
            "subreddit": "WritingPrompts" if wanted else "AskReddit",
        }  # fmt: skip


def write_dump(rows: Iterable[dict[str, Any]], path: Path) -> int:
    """Write rows as the dumps are, JSON lines in one zstd frame; return how many."""
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
    """Top-level comments of the subreddit, by the obvious loop."""
    options = {zstd().DecompressionParameter.window_log_max: 31}
    with zstd().open(path, options=options) as stream:
        return sum(
            comment["subreddit"] == "WritingPrompts" and comment["parent_id"] == comment["link_id"]
            for comment in map(json.loads, stream)
        )


def run_importer(submissions: Path, comments: Path, out: Path) -> int:
    """Stories that data_prep/import_archive.py writes, as a process of its own."""
    shutil.rmtree(out, ignore_errors=True)
    command = [
        sys.executable,
        str(ROOT / "data_prep" / "import_archive.py"),
        *("--submissions", f"[{submissions}]", "--comments", f"[{comments}]", "--out", str(out)),
    ]
    environment = {"LITBENCH_SALT": "a salt for the benchmark", **os.environ}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return pq.ParquetFile(out / "stories.parquet").metadata.num_rows


def timed(work: Callable[[], int]) -> tuple[float, float, int]:
    """Seconds, CPU seconds (of processes that it started, too), and the result."""
    started, used = time.perf_counter(), sum(os.times()[:4])
    result = work()
    return time.perf_counter() - started, sum(os.times()[:4]) - used, result


def main() -> None:
    """Invent, time, check, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=250, help="of JSON, about")
    parser.add_argument("--share", type=float, default=0.1, help="of the comments that is wanted")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        submissions, comments = folder / "RS_2020-01.zst", folder / "RC_2020-01.zst"
        soup, posts = Soup(), max(int(given.megabytes * 80), 100)
        write_dump(invent_submissions(posts, soup), submissions)
        rows = invent_comments(given.megabytes, given.share, posts, soup)
        found: dict[str, float] = {"share": given.share, "comments": write_dump(rows, comments)}
        ways: dict[str, Callable[[], int]] = {
            "json_loop": lambda: loop_with_json(comments),
            "import": lambda: run_importer(submissions, comments, folder / "out"),
        }
        runs: dict[str, list[tuple[float, float, int]]] = {way: [] for way in ways}
        # In turn, so that a busy minute of the machine falls on both.
        for _, (way, work) in itertools.product(range(given.repeats), ways.items()):
            runs[way].append(timed(work))
    if len({times[0][2] for times in runs.values()}) > 1:
        raise SystemExit(f"the two ways find different numbers of stories: {runs}")
    for way, times in runs.items():
        for place, unit in enumerate(("seconds", "cpu_seconds")):
            found[f"{way}_{unit}"] = round(median(one[place] for one in times), 2)
    ratio = found["json_loop_seconds"] / found["import_seconds"]
    print(json.dumps(found | {"import_over_json_loop": round(ratio, 3)}))


if __name__ == "__main__":
    main()
