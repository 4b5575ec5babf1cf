"""Turn dumps of Reddit (Pushshift, Arctic Shift) into a stories table.

    litbench data import_archive --config configs/data/archive_stories.yaml

Reads submissions and comments of a month or of a subreddit as JSON lines or arrays, plain or
compressed (.zst, .gz, .bz2, .xz): first the prompts from the submissions, then the top-level
comments on these prompts. Lines are streamed. The rows of each file are stored in `out/parts` until
all files are read, so a killed run resumes at the file that it was reading.

Writes into `out`: `stories.parquet`, `rejected.jsonl` (lines that could not be used, with reasons)
and `manifest.json`. A comment in several files is written several times; make_stories.py keeps its
latest reading.
"""

import glob
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from litbench.collect.archive import POSTS, latest_posts, read_posts, read_records, read_stories
from litbench.data.curation.funnel import Funnel
from litbench.data.ingest import RejectedRows
from litbench.data.records import STORIES
from litbench.data.sources.posts import PROMPT_TAGS, STORY_ROWS, load_salt, salt_name
from litbench.data.tables import write_sorted_batches
from litbench.runs.config import run_program
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact, Cache, write_json
from litbench.runs.progress import ProgressBar


@dataclass
class Config:
    """Configuration of `import_archive.py`.

    Attributes:
        submissions: files of submissions, or patterns such as dumps/RS_2019-*.zst.
        comments: files of comments, or patterns.
        out: output folder.
        subreddits: names as Reddit spells them; lines of other subreddits are counted and left out.
        prompt_tags: a post is a prompt if its title opens with one of these tags in brackets; null
            accepts every post.
        min_score_age_hours: scores that the archive read sooner after posting, or at an unknown
            time, become null; 0 keeps all scores that are not hidden.
        source: value of the column `source`.
    """

    submissions: list[str]
    comments: list[str]
    out: Path
    subreddits: list[str] = field(default_factory=lambda: ["WritingPrompts"])
    prompt_tags: list[str] | None = field(default_factory=lambda: list(PROMPT_TAGS))
    min_score_age_hours: float = 36
    source: str = "reddit_archive"


def find_files(patterns: Sequence[str], key: str) -> list[Path]:
    """Return the files of paths and patterns; the files of a pattern are sorted by name."""
    # A pattern without a match may be a path that contains brackets.
    paths = [Path(name) for pattern in patterns for name in sorted(glob.glob(pattern)) or [pattern]]  # noqa: PTH207
    for path in paths:
        if not path.is_file():
            raise ConfigError(
                f"{key}: there is no file {path}: check the path; for a folder, give {path}/*.zst"
            )
    if not paths or len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError(f"{key} has no file, or the same file twice: name each file once")
    return paths


def identity(path: Path) -> str:
    """Identify a file without reading it, by name, size and modification time."""
    stat = path.stat()
    return f"{path.name}, {stat.st_size} bytes, changed {stat.st_mtime_ns}"


# Folder with the rows and the rejected rows of one file, and its counts.
Part = tuple[Path, dict[str, Any]]


def read_file(
    path: Path,
    parts: Cache,
    made_for: list[Any],
    config: Config,
    bar: "ProgressBar",
    schema: pa.Schema,
    read: Callable[..., Iterator[pa.RecordBatch]],
) -> Part:
    """Read one file into a part, unless an earlier run has done so."""
    before = identity(path)
    end = bar.n + path.stat().st_size

    def write(folder: Path) -> None:
        bar.set_description(path.name)
        rejected_rows, counted = RejectedRows(), Counter[str]()
        problem = partial(rejected_rows.add, str(path))
        records = read_records(path, config.subreddits, problem, counted, bar.update)
        with pq.ParquetWriter(
            folder / "rows.parquet", schema, compression="lz4", use_dictionary=False
        ) as sink:
            for batch in read(records, problem=problem, counts=counted):
                sink.write_batch(batch)
        rejected_rows.write(folder / "rejected.jsonl")
        if identity(path) != before:
            raise DataError(f"{path} changed while it was read: run the same command again")
        counts = {"file": str(path), **counted, "rejected_rows": rejected_rows.counts()}
        write_json(counts, folder / "counts.json")

    folder = parts.get_folder([made_for, before], write, path.name)
    bar.update(end - bar.n)
    return folder, json.loads((folder / "counts.json").read_bytes())


def add_steps(
    funnel: Funnel,
    unit: str,
    config: Config,
    parts: Sequence[Part],
    steps: dict[str, tuple[str, str]],
) -> Counter[str]:
    """Add the steps from all lines to the remaining rows; returns the summed counts."""
    total: Counter[str] = Counter()
    for _, counts in parts:
        total.update({key: n for key, n in counts.items() if isinstance(n, int)})
        total["rejected"] += sum(counts["rejected_rows"].values())
    steps = {
        "subreddits": (f"in {', '.join(config.subreddits)}", "elsewhere"),
        "usable": ("can be read", "rejected"),
        **steps,
    }
    lines = total["lines"] - total["blank"]
    funnel.add("read", f"lines of {unit}", unit, lines, 0)
    rules = [(step, about) for step, (about, _) in steps.items()]
    funnel.add_all(rules, {step: total[key] for step, (_, key) in steps.items()}, lines, unit)
    return total


def batches_of(parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all parts, in the order of the files."""
    for folder, _ in parts:
        yield from pq.ParquetFile(folder / "rows.parquet").iter_batches(batch_size=2_048)


def rejected_reasons(parts: Sequence[Part]) -> Counter[str]:
    """Count the rejected lines of some files by reason."""
    reasons = Counter[str]()
    for _, counts in parts:
        reasons.update(counts["rejected_rows"])
    return reasons


def no_prompts(config: Config, total: Counter[str], parts: Sequence[Part]) -> DataError:
    """Return the error of submissions without a prompt, with what most of their lines are."""
    advice = {
        "elsewhere": "spell subreddits letter for letter",
        "not_prompts": "set prompt_tags to null for every post",
        "rejected": f"these are no submissions ({', '.join(rejected_reasons(parts))}): check that "
        "submissions and comments are not swapped",
    }
    most = max(advice, key=total.__getitem__)
    return DataError(
        f"no prompt of {', '.join(config.subreddits)} among {total['lines']:,} lines of "
        f"submissions ({total['elsewhere']:,} of other subreddits, {total['not_prompts']:,} posts "
        f"without a tag, {total['rejected']:,} rejected): {advice[most]}"
    )


def main(config: Config) -> None:
    """Import the dumps and write the stories."""
    if not config.subreddits:
        raise ConfigError("subreddits is empty: name at least one, such as WritingPrompts")
    submissions = find_files(config.submissions, "submissions")
    comments = find_files(config.comments, "comments")
    salt = load_salt()
    # Dumps are too large to hash.
    inputs = {f"submissions: {path}": identity(path) for path in submissions}
    inputs |= {f"comments: {path}": identity(path) for path in comments}
    inputs["salt"] = salt_name(salt)
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    cache = Cache(config.out / "parts")
    if artifact.is_current():
        # The previous run may have been killed before it removed the parts.
        shutil.rmtree(cache.folder, ignore_errors=True)
        return
    tags = None if config.prompt_tags is None else [tag.upper() for tag in config.prompt_tags]
    about_posts = [config.subreddits, tags]
    settings = [config.min_score_age_hours, config.source, inputs["salt"]]
    about_stories = [*about_posts, *settings, *map(identity, submissions)]
    funnel = Funnel()
    total = sum(path.stat().st_size for path in [*submissions, *comments])
    with ProgressBar(total=total, unit="B", unit_scale=True, leave=False) as bar:
        read = partial(read_posts, prompt_tags=tags)
        posts_parts = [
            read_file(path, cache, about_posts, config, bar, POSTS, read) for path in submissions
        ]
        steps = {"prompt_tags": ("title opens with a prompt's tag", "not_prompts")}
        counted = add_steps(funnel, "posts", config, posts_parts, steps)
        if not counted["prompts"]:
            raise no_prompts(config, counted, posts_parts)
        read_comments = partial(
            read_stories,
            posts=latest_posts(batches_of(posts_parts)),
            source=config.source,
            salt=salt,
            min_score_age_hours=config.min_score_age_hours,
        )
        parts = [
            read_file(path, cache, about_stories, config, bar, STORY_ROWS, read_comments)
            for path in comments
        ]
    steps = {
        "top_level": ("answers a post, not a comment", "replies"),
        "known_posts": ("its post is in the submissions", "unknown_posts"),
        "prompt_tags": ("its post is a prompt", "not_prompts"),
    }
    counted = add_steps(funnel, "comments", config, parts, steps)
    stories = counted["rows"]
    assert funnel.steps[-1].kept == stories, "every line is counted"
    print(funnel)
    if not stories:
        raise DataError(
            f"no comment in {', '.join(config.comments)} answers one of the prompts (rejected: "
            f"{', '.join(rejected_reasons(parts)) or 'none'}): give comments, of the same months "
            "as the submissions (the steps above say where the lines went)"
        )
    reader = pa.RecordBatchReader.from_batches(STORY_ROWS, batches_of(parts))
    artifact.write("stories.parquet", lambda path: write_sorted_batches(reader, STORIES, path))
    every = [*posts_parts, *parts]

    def join(path: Path) -> None:
        with path.open("wb") as file:
            for part, _ in every:
                file.write((part / "rejected.jsonl").read_bytes())

    artifact.write("rejected.jsonl", join)
    scores = {name: counted[f"scores_{name}"] for name in ("not_settled", "hidden", "missing")}
    artifact.counts = {
        "stories": stories,
        "funnel": funnel.plain(),
        "scores_null": scores,
        "files": [counts for _, counts in every],
    }
    artifact.finish()
    shutil.rmtree(cache.folder)
    print(f"{config.out / 'stories.parquet'}: {stories:,} stories")
    print("  scores left null: " + ", ".join(f"{n:,} {why}" for why, n in scores.items()))
    for reason, number in rejected_reasons(every).most_common():
        print(f"  rejected: {number:,} lines, {reason} (see rejected.jsonl)")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
