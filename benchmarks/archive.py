"""How fast a dump of Reddit is imported, beside `zstd -dc | wc -l` and a plain loop of json.

    python benchmarks/archive.py --megabytes 250

Invents a file of submissions and a file of comments as the monthly dumps are: all subreddits
mixed, a tenth of the comments in the wanted one (`--share`; in a real month it is under a
hundredth), the fields of real rows, zstd with a window of 2^31 bytes; the texts are word soup.
Three ways then read the comments in turn, `--repeats` times, and medians are printed: the program
`zstd` piped into `wc -l`, which only counts lines; a Python loop that decompresses, parses every
line with json and keeps the top-level comments; and data_prep/import_archive.py as it is run, from
its start to the finished table, which reads the submissions too (their bytes are counted). Rates
are megabytes of compressed input a second; CPU seconds are given beside them, since a busy machine
changes these less. The last line is one JSON object.
"""

import argparse
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow.parquet as pq

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ROOT = Path(__file__).resolve().parent.parent
SUBREDDIT = "WritingPrompts"
ELSEWHERE = ("AskReddit", "funny", "pics", "gaming", "worldnews", "nba", "politics", "soccer")
FIRST_SECOND = 1_577_836_800  # 2020 begins


class Soup:
    """Invented words with the frequencies of a language, joined to texts."""

    def __init__(self, seed: int) -> None:
        source = random.Random(seed)
        letters = "etaoinshrdlucmfwypvbgk"
        words = ["".join(source.choices(letters, k=source.randint(2, 9))) for _ in range(20_000)]
        # What real texts hold beside words: paragraphs, quotes to be escaped, other scripts.
        for place in range(20, len(words), 40):
            words[place] += source.choice(
                [",", ".", ".\n\n", '."\n\n"', "\u2019s", " \u2014", " &amp;"]
            )
        self._words = np.array(words, dtype=object)
        weights = np.cumsum(1 / np.arange(1, len(words) + 1))
        self._upto = weights / weights[-1]
        self._draw = np.random.default_rng(seed)

    def texts(self, lengths: list[int]) -> list[str]:
        """One text of so many words for each length."""
        places = np.searchsorted(self._upto, self._draw.random(sum(lengths)))
        words = self._words[places].tolist()
        texts, start = [], 0
        for length in lengths:
            texts.append(" ".join(words[start : start + length]))
            start += length
        return texts


def base36(number: int) -> str:
    """A number as Reddit writes ids."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits or "0"


def invent_submissions(posts: int, soup: Soup, source: random.Random) -> Iterator[dict[str, Any]]:
    """Every tenth post is of the subreddit."""
    titles = soup.texts([source.randint(8, 40) for _ in range(posts)])
    for place, title in enumerate(titles):
        wanted = place % 10 == 0
        created = FIRST_SECOND + place * 20
        yield {
            "archived": False, "author": f"author{source.randrange(10**6)}",
            "author_flair_text": None, "author_fullname": f"t2_{base36(source.getrandbits(40))}",
            "can_gild": True, "created_utc": created, "distinguished": None, "edited": False,
            "domain": "self.x", "gilded": 0, "id": base36(10**9 + place), "is_self": True,
            "link_flair_text": "Writing Prompt" if wanted else None, "locked": False,
            "num_comments": source.randrange(60), "over_18": source.random() < 0.02,
            "permalink": f"/r/x/comments/{base36(10**9 + place)}/", "retrieved_on": created + 10**6,
            "score": int(source.paretovariate(1)), "selftext": "", "stickied": False,
            "subreddit": SUBREDDIT if wanted else source.choice(ELSEWHERE),
            "subreddit_id": "t5_2s3nb", "subreddit_type": "public",
            "title": ("[WP] " if wanted else "") + title, "url": "https://www.reddit.com/",
        }  # fmt: skip


def invent_comments(
    megabytes: float, share: float, posts: int, soup: Soup, source: random.Random
) -> Iterator[dict[str, Any]]:
    """Comments until their JSON is about so large; a share of them is of the subreddit."""
    written, place = 0, 0
    while written < megabytes * 1e6:
        wanted_rows = [source.random() < share for _ in range(2_000)]
        # Of ten comments in the subreddit four are stories.
        stories = [wanted and source.random() < 0.4 for wanted in wanted_rows]
        lengths = [
            min(max(int(source.lognormvariate(math.log(450 if story else 25), 0.7)), 3), 4_000)
            for story in stories
        ]
        for wanted, story, body in zip(wanted_rows, stories, soup.texts(lengths), strict=True):
            post = source.randrange(posts // 10) * 10
            post += 0 if wanted else 1 + source.randrange(9)
            created = FIRST_SECOND + place
            link, top = base36(10**9 + post), story or source.random() < 0.3
            comment = base36(10**10 + place)
            place += 1
            written += len(body) + 1_050
            yield {
                "all_awardings": [], "approved_at_utc": None, "associated_award": None,
                "author": f"author{source.randrange(10**6)}", "author_created_utc": None,
                "author_flair_background_color": None, "author_flair_css_class": None,
                "author_flair_richtext": [], "author_flair_template_id": None,
                "author_flair_text": None, "author_flair_text_color": None,
                "author_flair_type": "text",
                "author_fullname": f"t2_{base36(source.getrandbits(40))}",
                "author_patreon_flair": False, "author_premium": False, "body": body,
                "can_gild": True, "collapsed": False, "collapsed_reason": None,
                "controversiality": 0, "created_utc": created, "distinguished": None,
                "edited": created + 3_600 if source.random() < 0.05 else False, "gilded": 0,
                "gildings": {}, "id": comment, "is_submitter": False, "link_id": f"t3_{link}",
                "locked": False, "no_follow": True,
                "parent_id": f"t3_{link}" if top else f"t1_{base36(10**10 + place // 2)}",
                "permalink": f"/r/x/comments/{link}/y/{comment}/", "retrieved_on": created + 10**6,
                "score": int(source.paretovariate(1)), "send_replies": True, "stickied": False,
                "subreddit": SUBREDDIT if wanted else source.choice(ELSEWHERE),
                "subreddit_id": "t5_2s3nb", "subreddit_name_prefixed": "r/x",
                "subreddit_type": "public", "total_awards_received": 0, "treatment_tags": [],
            }  # fmt: skip


def write_dump(rows: Iterator[dict[str, Any]], path: Path) -> tuple[int, int]:
    """Write rows as the dumps are: JSON lines in one zstd frame; return lines and bytes of JSON."""
    options = {
        zstd.CompressionParameter.compression_level: 3,
        zstd.CompressionParameter.window_log: 31,
    }
    lines = written = 0
    with zstd.ZstdFile(path, "wb", options=options) as stream:
        for row in rows:
            line = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
            stream.write(line)
            lines += 1
            written += len(line)
    return lines, written


def count_with_zstd(path: Path) -> int:
    """Lines by `zstd -dc --long=31 | wc -l`."""
    command = ["zstd", "-dc", "--long=31", "--quiet", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as unpack:
        counted = subprocess.run(
            ["wc", "-l"],  # noqa: S607
            stdin=unpack.stdout,
            capture_output=True,
            check=True,
        )
    if unpack.returncode:
        raise SystemExit("zstd failed: run the benchmark again")
    return int(counted.stdout)


def loop_with_json(path: Path) -> int:
    """Top-level comments of the subreddit, by the obvious loop."""
    options = {zstd.DecompressionParameter.window_log_max: 31}
    with zstd.open(path, options=options) as stream:
        kept = [
            comment
            for comment in map(json.loads, stream)
            if comment["subreddit"] == SUBREDDIT and comment["parent_id"] == comment["link_id"]
        ]
    return len(kept)


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
        soup, source = Soup(0), random.Random(0)
        posts = max(int(given.megabytes * 80), 100)
        write_dump(invent_submissions(posts, soup, source), submissions)
        rows = invent_comments(given.megabytes, given.share, posts, soup, source)
        lines, unpacked = write_dump(rows, comments)
        packed, packed_posts = comments.stat().st_size, submissions.stat().st_size
        ways: dict[str, tuple[int, Callable[[], int]]] = {
            "zstd": (packed, lambda: count_with_zstd(comments)),
            "json_loop": (packed, lambda: loop_with_json(comments)),
            "import": (
                packed + packed_posts,
                lambda: run_importer(submissions, comments, folder / "out"),
            ),
        }
        if not shutil.which("zstd"):
            print("zstd is not installed (apt-get install zstd): its part is left out")
            del ways["zstd"]
        runs: dict[str, list[tuple[float, float, int]]] = {way: [] for way in ways}
        # In turn, so that a busy minute of the machine falls on all of them.
        for _, (way, (_, work)) in itertools.product(range(given.repeats), ways.items()):
            runs[way].append(timed(work))
    results = {way: times[0][2] for way, times in runs.items()}
    if results.get("zstd", lines) != lines or results["import"] != results["json_loop"]:
        raise SystemExit(f"of {lines} lines the three ways find {results}")
    print(
        f"{lines:,} comments, {unpacked / 1e6:.0f} MB in {packed / 1e6:.1f} MB of zstd; "
        f"{results['import']:,} stories; medians of {given.repeats}:"
    )
    found: dict[str, float] = {"comments": lines, "share": given.share}
    for way, times in runs.items():
        seconds, cpu = (median(one[k] for one in times) for k in (0, 1))
        rate = ways[way][0] / 1e6 / seconds
        print(f"{way:10} {rate:7.1f} MB/s {seconds:7.2f} s ({cpu:.2f} CPU seconds)")
        found |= {f"{way}_mb_per_second": round(rate, 2), f"{way}_cpu_seconds": round(cpu, 2)}
    for way in runs.keys() - {"import"}:
        ratio = found["import_mb_per_second"] / found[f"{way}_mb_per_second"]
        found[f"import_over_{way}"] = round(ratio, 3)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
