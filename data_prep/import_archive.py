"""Turn dumps of Reddit (Pushshift, Arctic Shift) into a stories table.

    python data_prep/import_archive.py --config configs/data/archive_stories.yaml

Reads submissions and comments as JSON lines, plain or in zstd, of a month or of a subreddit. The
first pass takes the prompts out of the submissions, the second the top-level comments of these
prompts out of the comments. Both stream; memory holds the prompts and, with dumps compressed as
the monthly ones, 2 GiB for their window. Each file is kept in `parts/` until all are read, so a
killed run goes on with the file it was in. Writes `stories.parquet`, `rejected.jsonl` (lines that
could not be used, with reasons) and `manifest.json` into `out`.
"""

import glob
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from litbench.artifact import (
    Artifact,
    code_digest,
    fingerprint,
    write_atomically,
    write_json,
)
from litbench.config import run_program
from litbench.curation.funnel import Funnel
from litbench.errors import ConfigError, DataError
from litbench.records import STORIES
from litbench.sources.archive import (
    KEYED_ROWS,
    POSTS,
    Dump,
    Posts,
    check_subreddits,
    latest,
    read_posts,
    read_stories,
)
from litbench.sources.posts import PROMPT_TAGS, STORY_ROWS, load_salt, salt_name
from litbench.tables import RejectedRows, write_sorted_batches


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


@dataclass(frozen=True)
class Part:
    """What was taken out of one file.

    Attributes:
        dump: the file.
        name: of the part's files in the folder, without their endings.
        fingerprint: of all that the part depends on.
    """

    dump: Path
    folder: Path
    name: str
    fingerprint: str

    @property
    def rows(self) -> Path:
        """The rows, in Arrow's own format, which costs less time to write twice than Parquet."""
        return self.folder / f"{self.name}.arrow"

    @property
    def rejected_rows(self) -> Path:
        """The lines that could not be used, JSONL."""
        return self.folder / f"{self.name}.rejected.jsonl"

    def counts(self) -> dict[str, Any] | None:
        """What was counted when the part was made; null when it is not there, whole and current."""
        try:
            note = json.loads((self.folder / f"{self.name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        whole = self.rows.exists() and self.rejected_rows.exists()
        if not whole or note.get("fingerprint") != self.fingerprint:
            return None
        counts: dict[str, Any] = note["counts"]
        return counts

    def finish(self, counts: dict[str, Any]) -> None:
        """Note the counts, last: only now is the part whole."""
        note = {"fingerprint": self.fingerprint, "counts": counts}
        write_json(note, self.folder / f"{self.name}.json")


def find_files(patterns: Sequence[str], key: str) -> list[Path]:
    """Resolve paths and patterns; the files of a pattern in the order of their names."""
    found: list[Path] = []
    for pattern in patterns:
        # A name may hold brackets of its own.
        names = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern))  # noqa: PTH207
        paths = [Path(name) for name in names]
        if not paths:
            raise ConfigError(f"{key}: there is no file {pattern}: check the path")
        found += paths
    if not found:
        raise ConfigError(f"{key} names no file: give at least one")
    seen: set[Path] = set()
    for path in found:
        if path.is_dir():
            raise ConfigError(f"{key}: {path} is a folder: write {path}/*.zst for its files")
        if path.resolve() in seen:
            raise ConfigError(f"{key}: {path} is named twice: name it once")
        seen.add(path.resolve())
    return found


def identity(path: Path) -> str:
    """What tells a file from another without reading all of it: name, size, time of change."""
    stat = path.stat()
    return f"{path.name}, {stat.st_size} bytes, changed {stat.st_mtime_ns}"


def read_file(
    part: Part,
    config: Config,
    bar: "tqdm[Any]",
    read: Callable[[Dump, Callable[..., None], Counter[str]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> dict[str, Any]:
    """Take out of one file what is wanted; returns the counts. A part that is there is kept."""
    counts = part.counts()
    if counts is not None:
        bar.update(part.dump.stat().st_size)
        return counts
    bar.set_description(part.dump.name)
    dump = Dump(part.dump, config.subreddits, bar.update)
    rejected_rows, counted = RejectedRows(), Counter[str]()

    def problem(row: int, column: str, reason: str, value: Any) -> None:
        rejected_rows.add(str(part.dump), row, column, reason, value)

    rows = read(dump, problem, counted)
    write_atomically(part.rows, lambda path: write_batches(rows, schema, path))
    write_atomically(part.rejected_rows, rejected_rows.write)
    counts = {
        "file": str(part.dump),
        "bytes": dump.position,
        "sha256": dump.sha256(),
        "lines": dump.lines,
        "blank": dump.blank,
        "elsewhere": dump.elsewhere,
        "rejected_rows": rejected_rows.counts(),
        **{name: counted[name] for name in sorted(counted)},
    }
    part.finish(counts)
    return counts


def write_batches(batches: Iterator[pa.RecordBatch], schema: pa.Schema, path: Path) -> None:
    """Write rows as they come."""
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema, options=options) as sink:
        for batch in batches:
            sink.write_batch(batch)


def read_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read some columns of what `write_batches` wrote, a batch at a time."""
    with pa.memory_map(str(path)) as file:
        names = pa.ipc.open_file(file).schema.names
        wanted = [names.index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=wanted)
        reader = pa.ipc.open_file(file, options=options)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def totals(counts: Sequence[dict[str, Any]]) -> Counter[str]:
    """Sums over files of what is a number; `rejected_rows` is the sum of its reasons."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update({name: value for name, value in one.items() if isinstance(value, int)})
        total["rejected_rows"] += sum(one["rejected_rows"].values())
    return total


def keep_latest(parts: Sequence[Part]) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Choose, of several readings of a comment, the latest, by ids and times alone.

    Returns:
        For every part which of its rows are kept (bool, shape (rows,)); and how old the scores of
        the rows were when they were read.
    """
    columns = [KEYED_ROWS.field(name) for name in ("score_utc", "created_utc", "key")]
    schema = pa.schema(columns)
    tables = [
        pa.Table.from_batches(read_batches(part.rows, schema.names), schema) for part in parts
    ]
    joined = pa.concat_tables(tables)
    times = joined["score_utc"].fill_null(-(1 << 63)).to_numpy()
    chosen = latest(joined["key"].to_numpy(), times)
    keep = np.zeros(joined.num_rows, bool)
    keep[chosen] = True
    known = keep & (times != -(1 << 63))
    ages = (times[known] - joined["created_utc"].to_numpy()[known]) / 3_600
    about: dict[str, Any] = {"unknown": int(keep.sum() - known.sum())}
    for name, share in (("percentile_5", 0.05), ("median", 0.5), ("percentile_95", 0.95)):
        about[name] = round(float(np.quantile(ages, share)), 1) if len(ages) else None
    ends = np.cumsum([table.num_rows for table in tables])
    return np.split(keep, ends[:-1]), about


def kept_rows(parts: Sequence[Part], keep: Sequence[np.ndarray]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all parts that are kept, in the order of the files."""
    for part, mask in zip(parts, keep, strict=True):
        start = 0
        for batch in read_batches(part.rows, STORY_ROWS.names):
            wanted = mask[start : start + batch.num_rows]
            start += batch.num_rows
            yield batch if wanted.all() else batch.filter(pa.array(wanted))


def check(config: Config) -> None:
    """Check what the types cannot."""
    check_subreddits(config.subreddits)
    if config.min_score_age_hours < 0:
        raise ConfigError("min_score_age_hours is below 0: give 0 to keep every score")
    if config.prompt_tags is not None:
        if not config.prompt_tags:
            raise ConfigError("prompt_tags is empty: name tags such as WP, or null for every post")
        for tag in config.prompt_tags:
            if not tag.isalpha():
                raise ConfigError(f"prompt_tags: '{tag}' is no tag: write WP for [WP]")


def add_steps(
    funnel: Funnel,
    config: Config,
    total: Counter[str],
    unit: str,
    steps: Sequence[tuple[str, str, int]],
    left: int,
) -> None:
    """Add the steps from the lines of all files to the rows that are left."""
    kept = total["lines"] - total["blank"]
    funnel.add("read", f"lines of {unit}", unit, kept, 0)
    own = [
        ("subreddits", f"in {', '.join(config.subreddits)}", total["elsewhere"]),
        ("usable", "can be read", total["rejected_rows"]),
    ]
    for step, about, removed in [*own, *steps]:
        kept -= removed
        funnel.add(step, about, unit, kept, removed)
    if kept != left:
        raise AssertionError(f"{unit}: {left} are left, and the steps leave {kept}")


def import_posts(config: Config, parts: Sequence[Part], bar: "tqdm[Any]") -> list[dict[str, Any]]:
    """Take the posts out of every file of submissions; returns the counts of each."""
    tags = None if config.prompt_tags is None else [tag.upper() for tag in config.prompt_tags]

    def read(
        dump: Dump, problem: Callable[..., None], counts: Counter[str]
    ) -> Iterator[pa.RecordBatch]:
        return read_posts(dump, config.subreddits, tags, problem, counts)

    return [read_file(part, config, bar, read, POSTS) for part in parts]


def import_stories(
    config: Config, parts: Sequence[Part], posts: Posts, salt: str, bar: "tqdm[Any]"
) -> list[dict[str, Any]]:
    """Take the stories out of every file of comments; returns the counts of each."""

    def read(
        dump: Dump, problem: Callable[..., None], counts: Counter[str]
    ) -> Iterator[pa.RecordBatch]:
        return read_stories(
            dump,
            config.subreddits,
            posts,
            source=config.source,
            salt=salt,
            min_score_age_hours=config.min_score_age_hours,
            problem=problem,
            counts=counts,
        )

    return [read_file(part, config, bar, read, KEYED_ROWS) for part in parts]


def main(config: Config) -> None:
    """Read the submissions, read the comments, keep the latest readings, write."""
    check(config)
    submissions = find_files(config.submissions, "submissions")
    comments = find_files(config.comments, "comments")
    salt = load_salt()
    # Dumps are too large to be hashed before they are read; their digests are in the counts.
    inputs = {f"submissions: {path}": identity(path) for path in submissions}
    inputs |= {f"comments: {path}": identity(path) for path in comments}
    inputs["salt"] = salt_name(salt)
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    folder = config.out / "parts"
    if artifact.is_current():
        # The run that made it may have been killed before it could remove them.
        shutil.rmtree(folder, ignore_errors=True)
        return
    posts_depend_on = [code_digest(__file__), config.subreddits, config.prompt_tags]
    posts_parts = [
        Part(
            path, folder, f"submissions-{number:04d}", fingerprint(posts_depend_on, identity(path))
        )
        for number, path in enumerate(submissions)
    ]
    settings = [config.min_score_age_hours, config.source, inputs["salt"]]
    stories_depend_on = [*settings, *(part.fingerprint for part in posts_parts)]
    parts = [
        Part(path, folder, f"comments-{number:04d}", fingerprint(stories_depend_on, identity(path)))
        for number, path in enumerate(comments)
    ]
    total = sum(path.stat().st_size for path in [*submissions, *comments])
    funnel = Funnel()
    with tqdm(total=total, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        posts_counts = import_posts(config, posts_parts, bar)
        rows = itertools.chain.from_iterable(
            read_batches(part.rows, POSTS.names) for part in posts_parts
        )
        posts = Posts(rows)
        found = totals(posts_counts)
        add_steps(funnel, config, found, "posts", [
            ("prompt_tags", "title opens with a prompt's tag", found["posts"] - found["prompts"]),
            ("latest_reading", "latest reading of each prompt", found["prompts"] - len(posts)),
        ], left=len(posts))  # fmt: skip
        if not len(posts):
            raise DataError(
                f"no prompt of {', '.join(config.subreddits)} is in {', '.join(config.submissions)}"
                f" ({found['lines']:,} lines, {found['elsewhere']:,} of other subreddits, "
                f"{posts.others:,} posts without the tag): give other files, spell subreddits "
                "letter for letter, or set prompt_tags to null for every post"
            )
        story_counts = import_stories(config, parts, posts, salt, bar)
    keep, score_age = keep_latest(parts)
    stories = int(sum(mask.sum() for mask in keep))
    found = totals(story_counts)
    add_steps(funnel, config, found, "comments", [
        ("top_level", "answers a post, not a comment", found["replies"]),
        ("known_posts", "its post is in the submissions", found["unknown_posts"]),
        ("prompt_tags", "its post is a prompt", found["not_prompts"]),
        ("latest_reading", "latest reading of each comment", found["rows"] - stories),
    ], left=stories)  # fmt: skip
    print(funnel)
    if not stories:
        raise DataError(
            f"no comment in {', '.join(config.comments)} answers one of {len(posts):,} prompts: "
            "give submissions and comments of the same months (the steps above say where the "
            "lines went)"
        )
    reader = pa.RecordBatchReader.from_batches(STORY_ROWS, kept_rows(parts, keep))
    artifact.write("stories.parquet", lambda path: write_sorted_batches(reader, STORIES, path))
    artifact.write(
        "rejected.jsonl",
        lambda path: join_files([part.rejected_rows for part in [*posts_parts, *parts]], path),
    )
    scores = {name: found[f"scores_{name}"] for name in ("not_settled", "hidden", "missing")}
    rejected_rows: Counter[str] = Counter()
    for counts in [*posts_counts, *story_counts]:
        rejected_rows.update(counts["rejected_rows"])
    artifact.counts = {
        "stories": stories,
        "prompts": len(posts),
        "funnel": funnel.plain(),
        # Of all rows, before the latest reading of each was chosen.
        "scores_null": scores,
        "score_age_hours": score_age,
        "rejected_rows": dict(rejected_rows.most_common()),
        "files": [*posts_counts, *story_counts],
    }
    artifact.finish()
    shutil.rmtree(folder)
    print(f"{config.out / 'stories.parquet'}: {stories:,} stories")
    print(
        f"  scores left null: {scores['not_settled']:,} read before they settled, "
        f"{scores['hidden']:,} hidden, {scores['missing']:,} missing; half were read within "
        f"{score_age['median']} hours of posting"
    )
    for reason, number in rejected_rows.most_common():
        print(f"  set aside: {number:,} lines, {reason} (see rejected.jsonl)")


def join_files(files: Sequence[Path], path: Path) -> None:
    """Write several files one behind the other."""
    with path.open("wb") as joined:
        for file in files:
            with file.open("rb") as part:
                shutil.copyfileobj(part, joined)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
