"""Turn dumps of Reddit (Pushshift, Arctic Shift) into a stories table.

    python data_prep/import_archive.py --config configs/data/archive_stories.yaml

Reads submissions and comments as JSON lines, plain or compressed (.zst, .bz2, .xz), of a month or
of a subreddit: first the prompts from the submissions, then the top-level comments of these
prompts. Both are streamed. Each file is kept in `out/parts` until all are read, so a killed run
resumes with the file it was in. Writes `stories.parquet`, `rejected.jsonl` (lines that could not
be used, with reasons) and `manifest.json` into `out`.
"""

import glob
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from litbench.artifact import Artifact, file_digest, fingerprint, write_atomically
from litbench.config import run_program
from litbench.curation.funnel import Funnel
from litbench.errors import ConfigError, DataError
from litbench.records import STORIES
from litbench.sources.archive import (
    KEYED_ROWS,
    POSTS,
    Dump,
    check_subreddits,
    latest_posts,
    read_posts,
    read_stories,
)
from litbench.sources.parts import Parts
from litbench.sources.posts import PROMPT_TAGS, STORY_ROWS, load_salt, salt_name
from litbench.tables import RejectedRows, write_sorted_batches

UNKNOWN_TIME = -(1 << 63)


@dataclass
class Config:
    """What to read and which comments are stories.

    Attributes:
        submissions: files of submissions, or patterns such as dumps/RS_2019-*.zst.
        comments: files of comments, likewise.
        out: folder to write.
        subreddits: names as Reddit spells them; other lines are counted and left out.
        prompt_tags: a post is a prompt when its title opens with one of these in brackets; null
            for every post.
        min_score_age_hours: a score that the archive read sooner after posting, or at an unknown
            time, has not settled: it becomes null. 0 keeps every score that is not hidden.
        source: written into the column `source`.
    """

    submissions: list[str]
    comments: list[str]
    out: Path
    subreddits: list[str] = field(default_factory=lambda: ["WritingPrompts"])
    prompt_tags: list[str] | None = field(default_factory=lambda: list(PROMPT_TAGS))
    min_score_age_hours: float = 36
    source: str = "reddit_archive"


def check(config: Config) -> None:
    """Check what the types cannot."""
    check_subreddits(config.subreddits)
    if config.min_score_age_hours < 0:
        raise ConfigError("min_score_age_hours is below 0: give 0 to keep every score")
    if config.prompt_tags is not None and not all(map(str.isalpha, config.prompt_tags or [""])):
        raise ConfigError(
            f"prompt_tags is {config.prompt_tags}: write WP for [WP], or null for every post"
        )


def find_files(patterns: Sequence[str], key: str) -> list[Path]:
    """Resolve paths and patterns; the files of a pattern in the order of their names."""
    # A path may hold brackets of its own.
    found = [Path(name) for pattern in patterns for name in sorted(glob.glob(pattern)) or [pattern]]  # noqa: PTH207
    for path in found:
        if not path.is_file():
            raise ConfigError(f"{key}: there is no file {path}: give files, or {path}/*.zst")
    if not found or len({path.resolve() for path in found}) < len(found):
        raise ConfigError(f"{key} names no file, or one of them twice: name each file once")
    return found


def identity(path: Path) -> str:
    """What tells a file from another without reading it: name, size, time of change."""
    stat = path.stat()
    return f"{path.name}, {stat.st_size} bytes, changed {stat.st_mtime_ns}"


@dataclass
class Part:
    """What was taken out of one file: Parquet, JSONL, and what was counted."""

    rows: Path
    rejected: Path
    counts: dict[str, Any]


def read_file(
    path: Path,
    kind: str,
    parts: Parts,
    config: Config,
    bar: "tqdm[Any]",
    read: Callable[..., Iterator[pa.RecordBatch]],
) -> Part:
    """Take out of one file what is wanted, unless an earlier run has done so."""
    before = identity(path)
    name = f"{kind}/{fingerprint(before)[:16]}"
    rows, rejected = (parts.folder / f"{name}{end}" for end in (".parquet", ".rejected.jsonl"))
    made = parts.get(name)
    if made is not None and made["digests"] == [
        file_digest(file) if file.exists() else None for file in (rows, rejected)
    ]:
        bar.update(path.stat().st_size)
        return Part(rows, rejected, made["counts"])
    bar.set_description(path.name)
    dump = Dump(path, config.subreddits, bar.update)
    rejected_rows, counted = RejectedRows(), Counter[str]()
    batches = read(dump, problem=partial(rejected_rows.add, str(path)), counts=counted)

    def write(file: Path) -> None:
        schema = POSTS if kind == "submissions" else KEYED_ROWS
        with pq.ParquetWriter(file, schema, compression="lz4", use_dictionary=False) as sink:
            for batch in batches:
                sink.write_batch(batch)

    write_atomically(rows, write)
    write_atomically(rejected, rejected_rows.write)
    if identity(path) != before:
        raise DataError(f"{path} changed while it was read: run the same command again")
    counts = {
        "file": str(path),
        "bytes": dump.position,
        "lines": dump.lines,
        "blank": dump.blank,
        "elsewhere": dump.elsewhere,
        "rejected_rows": rejected_rows.counts(),
        **counted,
    }
    # Last: only now is the part whole.
    parts.put(name, {"counts": counts, "digests": [file_digest(rows), file_digest(rejected)]})
    return Part(rows, rejected, counts)


def totals(parts: Sequence[Part]) -> Counter[str]:
    """Sums over files of what is a number; `rejected_rows` is the sum over its reasons."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update({key: n for key, n in part.counts.items() if isinstance(n, int)})
        total["rejected_rows"] += sum(part.counts["rejected_rows"].values())
    return total


def add_steps(
    funnel: Funnel,
    unit: str,
    config: Config,
    found: Counter[str],
    steps: dict[str, tuple[str, int]],
) -> None:
    """Add the steps from the lines of all files to what is left of them."""
    steps = {
        "subreddits": (f"in {', '.join(config.subreddits)}", found["elsewhere"]),
        "usable": ("can be read", found["rejected_rows"]),
        **steps,
    }
    lines = found["lines"] - found["blank"]
    funnel.add("read", f"lines of {unit}", unit, lines, 0)
    rules = [(step, about) for step, (about, _) in steps.items()]
    funnel.add_all(rules, {step: removed for step, (_, removed) in steps.items()}, lines, unit)


def keep_latest(parts: Sequence[Part]) -> tuple[np.ndarray, dict[str, Any]]:
    """Choose, of several readings of a comment, the latest; of those of one time the last.

    Returns:
        Which rows of all parts are kept (bool, shape (rows,)); and how old the scores of these
        were, in hours, when they were read.
    """
    names = ["key", "score_utc", "created_utc"]
    table = pa.concat_tables(pq.read_table(part.rows, columns=names) for part in parts)
    keys, times = (table[name].fill_null(UNKNOWN_TIME).to_numpy() for name in names[:2])
    order = np.lexsort((times, keys))
    keep = np.zeros(len(keys), bool)
    is_last = np.append(np.diff(keys[order]) != 0, True)[: len(keys)]
    keep[order[is_last]] = True
    known = keep & (times != UNKNOWN_TIME)
    ages = (times[known] - table["created_utc"].to_numpy()[known]) / 3_600
    about: dict[str, Any] = {"unknown": int(keep.sum() - known.sum())}
    for name, share in (("percentile_5", 0.05), ("median", 0.5), ("percentile_95", 0.95)):
        about[name] = round(float(np.quantile(ages, share)), 1) if len(ages) else None
    return keep, about


def batches_of(parts: Sequence[Part], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Rows of all parts, in the order of the files."""
    for part in parts:
        yield from pq.ParquetFile(part.rows).iter_batches(columns=list(columns), batch_size=2_048)


def kept_rows(parts: Sequence[Part], keep: np.ndarray) -> Iterator[pa.RecordBatch]:
    """Those rows of all parts that are kept."""
    start = 0
    for batch in batches_of(parts, STORY_ROWS.names):
        wanted = keep[start : start + batch.num_rows]
        start += batch.num_rows
        yield batch.filter(pa.array(wanted))


def main(config: Config) -> None:
    """Read the submissions, read the comments, keep the latest readings, write."""
    check(config)
    submissions = find_files(config.submissions, "submissions")
    comments = find_files(config.comments, "comments")
    salt = load_salt()
    # Dumps are too large to be hashed.
    inputs = {f"submissions: {path}": identity(path) for path in submissions}
    inputs |= {f"comments: {path}": identity(path) for path in comments}
    inputs["salt"] = salt_name(salt)
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    folder = config.out / "parts"
    if artifact.is_current():
        # The run that made it may have been killed before it could remove them.
        shutil.rmtree(folder, ignore_errors=True)
        return
    tags = None if config.prompt_tags is None else [tag.upper() for tag in config.prompt_tags]
    about_posts = [config.subreddits, tags]
    settings = [config.min_score_age_hours, config.source, inputs["salt"]]
    about_stories = [*about_posts, *settings, *map(identity, submissions)]
    funnel = Funnel()
    total = sum(path.stat().st_size for path in [*submissions, *comments])
    with tqdm(total=total, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        store = Parts(folder, about_posts)
        read = partial(read_posts, prompt_tags=tags)
        posts_parts = [
            read_file(path, "submissions", store, config, bar, read) for path in submissions
        ]
        posts = latest_posts(batches_of(posts_parts, POSTS.names))
        prompts = sum(post is not None for post in posts.values())
        found = totals(posts_parts)
        add_steps(funnel, "posts", config, found, {
            "prompt_tags": ("title opens with a prompt's tag", found["posts"] - found["prompts"]),
            "latest_reading": ("latest reading of each prompt", found["prompts"] - prompts),
        })  # fmt: skip
        if not prompts:
            raise DataError(
                f"no prompt of {', '.join(config.subreddits)} is in {', '.join(config.submissions)}"
                f" ({found['lines']:,} lines, {found['elsewhere']:,} of other subreddits, "
                f"{len(posts):,} posts without the tag): give other files, spell subreddits "
                "letter for letter, or set prompt_tags to null for every post"
            )
        store = Parts(folder, about_stories)
        read_comments = partial(
            read_stories,
            posts=posts,
            source=config.source,
            salt=salt,
            min_score_age_hours=config.min_score_age_hours,
        )
        parts = [
            read_file(path, "comments", store, config, bar, read_comments) for path in comments
        ]
    keep, score_age = keep_latest(parts)
    stories, found = int(keep.sum()), totals(parts)
    add_steps(funnel, "comments", config, found, {
        "top_level": ("answers a post, not a comment", found["replies"]),
        "known_posts": ("its post is in the submissions", found["unknown_posts"]),
        "prompt_tags": ("its post is a prompt", found["not_prompts"]),
        "latest_reading": ("latest reading of each comment", found["rows"] - stories),
    })  # fmt: skip
    assert funnel.steps[-1].kept == stories, "every line is counted"
    print(funnel)
    if not stories:
        raise DataError(
            f"no comment in {', '.join(config.comments)} answers one of {prompts:,} prompts: give "
            "submissions and comments of the same months (the steps above say where the lines went)"
        )
    reader = pa.RecordBatchReader.from_batches(STORY_ROWS, kept_rows(parts, keep))
    artifact.write("stories.parquet", lambda path: write_sorted_batches(reader, STORIES, path))
    every = [*posts_parts, *parts]
    rejected: Counter[str] = Counter()
    for part in every:
        rejected.update(part.counts["rejected_rows"])

    def join(path: Path) -> None:
        path.write_bytes(b"".join(part.rejected.read_bytes() for part in every))

    artifact.write("rejected.jsonl", join)
    scores = {name: found[f"scores_{name}"] for name in ("not_settled", "hidden", "missing")}
    artifact.counts = {
        "stories": stories,
        "prompts": prompts,
        "funnel": funnel.plain(),
        # Of all rows, before the latest reading of each was chosen.
        "scores_null": scores,
        "score_age_hours": score_age,
        "rejected_rows": dict(rejected.most_common()),
        "files": [part.counts for part in every],
    }
    artifact.finish()
    shutil.rmtree(folder)
    print(f"{config.out / 'stories.parquet'}: {stories:,} stories")
    print(
        f"  scores left null: {scores['not_settled']:,} read before they settled, "
        f"{scores['hidden']:,} hidden, {scores['missing']:,} missing; half were read within "
        f"{score_age['median']} hours of posting"
    )
    for reason, number in rejected.most_common():
        print(f"  rejected: {number:,} lines, {reason} (see rejected.jsonl)")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
