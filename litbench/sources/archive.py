"""Dumps of Reddit: one JSON object a line, plain or compressed, as of Pushshift and Arctic Shift.

A dump holds the submissions or the comments of a month or of a subreddit. `Dump` streams the
objects of the wanted subreddits, `read_posts` turns submissions and `read_stories` comments into
batches of rows.

The score of a comment is as old as the archive's reading of it. Pushshift read a comment once and
says when in `retrieved_on` or `retrieved_utc`; Arctic Shift reads again after 36 hours, overwrites
the score and says so in `_meta.retrieved_2nd_on`.
"""

import bz2
import codecs
import functools
import itertools
import json
import lzma
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from tqdm.utils import CallbackIOWrapper

from litbench.errors import ConfigError, DataError, MissingExtraError
from litbench.sources.posts import (
    STORY_ROWS,
    THING_ID,
    fullname,
    mend,
    mend_row,
    number_of,
    prompt_tag,
    story_row,
    text_of,
)
from litbench.text import count_words

_BLOCK = 4 << 20
# Reddit's longest post has 40,000 characters; a longer line is no post, and memory is bounded.
_LONGEST_LINE = 32 << 20
_BATCH_ROWS = 2_048
# What `zstd --long=31` writes, as the monthly dumps are; needs 2 GiB of memory.
_WINDOW_LOG = 31
# Pushshift's older dumps; .zst is opened by `_zstd`.
_OPENERS: dict[str, Callable[..., Any]] = {".bz2": bz2.open, ".xz": lzma.open}

# Escaped characters that names of subreddits are made of.
_ESCAPED_NAME = re.compile(rb"\\u00(?:3[0-9]|4[1-9A-Fa-f]|5[0-9AaFf]|6[1-9A-Fa-f]|7[0-9Aa])")
_NAME = re.compile(r"[A-Za-z0-9_]{2,}")
_ID = re.compile(THING_ID)

# What a story needs to know of its post. `key` is the post's id as a number; titles of posts that
# are no prompts are not kept.
POSTS = pa.schema(
    [
        pa.field("key", pa.int64()),
        pa.field("read_utc", pa.int64()),
        pa.field("is_prompt", pa.bool_()),
        pa.field("title", pa.large_string()),
        pa.field("link_flair_text", pa.large_string()),
        pa.field("created_utc", pa.int64()),
        pa.field("over_18", pa.bool_()),
    ]
)

# Columns of `read_stories`: `key` is the comment's id as a number.
KEYED_ROWS = STORY_ROWS.append(pa.field("key", pa.int64()))

# Called for a line that cannot be used: its number from 1, the column, the reason, the value.
Problem = Callable[[int, str, str, Any], None]
# A prompt by the last columns of POSTS: title, link_flair_text, created_utc, over_18.
Post = tuple[str, str | None, int | None, bool]

Item = TypeVar("Item")


def check_subreddits(names: Collection[str]) -> None:
    """Check names of subreddits.

    Raises:
        ConfigError: there is none, or one cannot be a name.
    """
    if not names:
        raise ConfigError("subreddits is empty: name at least one, such as WritingPrompts")
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"subreddits: '{name}' is not a subreddit's name: write it as Reddit spells it, "
                "without r/"
            )


# Reading lines -------------------------------------------------------------------------------


class Dump:
    """One file of a dump, read once.

    Attributes:
        path: the file; .zst, .bz2 and .xz are decompressed.
        position: bytes of the file read so far.
        lines: lines read so far.
        elsewhere: of these, how many are not of the subreddits.
        blank: of these, how many are empty.
    """

    def __init__(
        self,
        path: Path,
        subreddits: Collection[str],
        progress: Callable[[int], object] | None = None,
    ) -> None:
        """Take a file; `progress` is called with numbers of bytes read, in another thread."""
        check_subreddits(subreddits)
        self.path = path
        self._progress = progress or (lambda _: None)
        self._names = frozenset(subreddits)
        self._needles = [f'"{name}"'.encode() for name in subreddits]
        self.position = self.lines = self.elsewhere = self.blank = 0

    def records(self, problem: Problem) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the objects of the subreddits with their line numbers; the rest is counted.

        Names are compared letter for letter.

        Raises:
            DataError: the file cannot be read, is cut off or damaged.
            MissingExtraError: it is zstd and backports.zstd is not installed.
        """
        for lines in self._lines():
            candidates = self._candidates(lines)
            self.elsewhere += len(lines) - len(candidates)
            for place in candidates:
                number, line = self.lines + place + 1, lines[place]
                if not line or line.isspace():
                    self.blank += 1
                    continue
                if len(line) > _LONGEST_LINE:
                    problem(number, "line", f"longer than {_LONGEST_LINE:,} bytes", None)
                    continue
                try:
                    record = parse_line(line)
                except DataError as error:
                    # Not the line itself, which holds the author's name.
                    problem(number, "line", str(error), f"{len(line):,} bytes")
                    continue
                subreddit = record.get("subreddit")
                if isinstance(subreddit, str) and subreddit in self._names:
                    yield number, record
                else:
                    self.elsewhere += 1
            self.lines += len(lines)

    def _candidates(self, lines: Sequence[bytes]) -> list[int]:
        """Places of the lines to parse.

        The others begin and end as an object and hold none of the names in quotes nor any escaped
        character of a name: no parser would find a name in them.
        """
        found = {n for n, line in enumerate(lines) if line[:1] != b"{" or line[-1:] != b"}"}
        for needle in self._needles:
            found |= {n for n, line in enumerate(lines) if needle in line}
        escaped = (n for n, line in enumerate(lines) if b"\\u00" in line)
        return sorted(found.union(n for n in escaped if _ESCAPED_NAME.search(lines[n])))

    def _lines(self) -> Iterator[list[bytes]]:
        rest = b""
        for block in _ahead(self._blocks()):
            *lines, rest = (rest + block).split(b"\n")
            # The head of an endless line is enough to reject it.
            rest = rest[: _LONGEST_LINE + 1]
            yield lines
        if rest:
            yield [rest]

    def _blocks(self) -> Iterator[bytes]:
        """Yield the decompressed content in pieces of 4 MiB."""
        errors: tuple[type[BaseException], ...] = (EOFError, OSError, lzma.LZMAError, MemoryError)
        opens = _OPENERS.get(self.path.suffix)
        if self.path.suffix == ".zst":
            zstd = _zstd()
            errors = (*errors, zstd.ZstdError)
            options = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
            opens = functools.partial(zstd.open, options=options)
        try:
            with self.path.open("rb") as file:
                source = CallbackIOWrapper(self._note, file)
                source = source if opens is None else opens(source)
                block = source.read(_BLOCK).removeprefix(codecs.BOM_UTF8)
                while block:
                    yield block
                    block = source.read(_BLOCK)
        except errors as error:
            raise DataError(
                f"{self.path} is cut off, damaged or unreadable after byte {self.position:,} "
                f"({error}): get the file again, and run the same command to go on; what was "
                "imported from other files is kept"
            ) from error

    def _note(self, n_bytes: int) -> None:
        self.position += n_bytes
        self._progress(n_bytes)


def _zstd() -> Any:
    """The standard library's zstd, or its backport."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415
    else:
        try:
            from backports import zstd  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("backports.zstd", "data") from error
    return zstd


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield from an iterator that runs one item ahead in another thread.

    Decompressing and counting words release the interpreter lock.
    """
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = executor.submit(next, items, None)
            yield item


def parse_line(line: bytes) -> dict[str, Any]:
    """Parse one line.

    Raises:
        DataError: it is not UTF-8, not JSON, nested too deeply or no object.
    """
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8") from error
    except RecursionError as error:
        raise DataError("nested too deeply") from error
    except ValueError as error:
        raise DataError("not JSON") from error
    if not isinstance(record, dict):
        raise DataError("no JSON object")
    return record


def _key(kind: str, value: Any, name: str) -> int:
    """An id as a number; Reddit counts in base 36."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 63:
        # Some archives give ids of posts as numbers.
        return value
    if not isinstance(value, str):
        raise DataError(f"{name} is {'missing' if value is None else 'not text'}")
    bare = fullname(kind, value)[3:]
    if not _ID.fullmatch(bare):
        raise DataError(f"{name} is no id of Reddit")
    return int(bare, 36)


def read_utc(record: Mapping[str, Any]) -> int | None:
    """When the archive read the score of a post or comment; null where it does not say.

    Raises:
        DataError: the time is not a number.
    """
    meta = record.get("_meta")
    again = number_of(meta, "retrieved_2nd_on") if isinstance(meta, dict) else None
    if again is not None:
        return again
    first = number_of(record, "retrieved_on")
    return first if first is not None else number_of(record, "retrieved_utc")


def _reject(problem: Problem, number: int, error: DataError, record: Mapping[str, Any]) -> None:
    """Pass on an error with a message such as "body is missing": column, reason, value."""
    column, _, reason = str(error).partition(" ")
    value = record.get(column)
    # No account's name is written anywhere; what is nested may hold one, too.
    if column == "author" or isinstance(value, dict | list):
        value = None
    problem(number, column, reason.removeprefix("is "), value)


def _batched(rows: Iterator[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while batch := list(itertools.islice(rows, _BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(batch, schema)


# Posts ---------------------------------------------------------------------------------------


def read_posts(
    dump: Dump, prompt_tags: Collection[str] | None, problem: Problem, counts: Counter[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the posts of a file of submissions by the schema POSTS.

    Args:
        dump: the file.
        prompt_tags: tags in capitals; a post is a prompt if its title opens with one of them.
            Null: every post is one.
        problem: called for lines that cannot be used.
        counts: `posts`, `prompts`, `mended_texts` are added to.
    """

    def rows() -> Iterator[dict[str, Any]]:
        for number, record in dump.records(problem):
            try:
                title = text_of(record, "title")
                flair = text_of(record, "link_flair_text", needed=False)
                is_prompt = prompt_tags is None or prompt_tag(title) in prompt_tags
                row = {
                    "key": _key("t3", record.get("id"), "id"),
                    "read_utc": read_utc(record),
                    "is_prompt": is_prompt,
                    "title": mend(title) if is_prompt else None,
                    "link_flair_text": mend(flair) if is_prompt and flair is not None else None,
                    "created_utc": number_of(record, "created_utc"),
                    "over_18": bool(record.get("over_18", False)),
                }
            except DataError as error:
                _reject(problem, number, error, record)
                continue
            if is_prompt:
                counts["mended_texts"] += row["title"] != title
                counts["mended_texts"] += row["link_flair_text"] != flair
            counts["posts"] += 1
            counts["prompts"] += is_prompt
            yield row

    return _batched(rows(), POSTS)


def latest_posts(batches: Iterable[pa.RecordBatch]) -> dict[int, Post | None]:
    """The latest reading of every post, by its id as a number; null for one that is no prompt.

    Of readings of one time the last in order counts; one without a time is the oldest.
    """
    posts: dict[int, Post | None] = {}
    times: dict[int, float] = {}
    for batch in batches:
        columns = (column.to_pylist() for column in batch.columns)
        for key, read, is_prompt, title, flair, created, over_18 in zip(*columns, strict=True):
            time_read = -math.inf if read is None else read
            if time_read >= times.get(key, -math.inf):
                times[key] = time_read
                # There are millions of posts and a few flairs.
                flair_once = None if flair is None else sys.intern(flair)
                posts[key] = (title, flair_once, created, over_18) if is_prompt else None
    return posts


# Stories -------------------------------------------------------------------------------------


def answered_post(comment: Mapping[str, Any], counts: Counter[str]) -> int | None:
    """The number of the post that a comment answers; null for a reply to another comment.

    A top-level comment has a parent_id that equals link_id. What the later Pushshift API wrote has
    null there instead, and for a reply the number of its parent.

    Args:
        comment: its JSON.
        counts: `null_parents` is added to.

    Raises:
        DataError: link_id or parent_id is absent or no name of Reddit's, or parent_id names
            another post.
    """
    parent = comment.get("parent_id")
    if isinstance(parent, str) and parent[:3].lower() == "t1_":
        return None
    post = _key("t3", comment.get("link_id"), "link_id")
    if parent is None:
        if "parent_id" not in comment:
            raise DataError("parent_id is missing")
        counts["null_parents"] += 1
        return post
    if isinstance(parent, int) and not isinstance(parent, bool):
        return post if parent == post else None
    if not isinstance(parent, str):
        raise DataError("parent_id is not text")
    if _key("t3", parent, "parent_id") != post:
        raise DataError("parent_id is neither a comment nor the post of link_id")
    return post


def read_stories(
    dump: Dump,
    posts: Mapping[int, Post | None],
    *,
    source: str,
    salt: str,
    min_score_age_hours: float,
    problem: Problem,
    counts: Counter[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the top-level comments of prompts of a file of comments by KEYED_ROWS.

    Args:
        dump: the file.
        posts: from `latest_posts`; a comment of another post is counted and left out.
        source: written into the column `source`.
        salt: see `litbench.sources.posts.load_salt`.
        min_score_age_hours: a score that was read sooner after posting becomes null.
        problem: called for lines that cannot be used.
        counts: `replies`, `unknown_posts`, `not_prompts`, `rows`, and of the rows
            `scores_missing`, `scores_hidden`, `scores_not_settled`, `mended_texts`,
            `null_parents`, are added to.
    """
    latest_utc = int(time.time()) + 86_400

    def rows() -> Iterator[dict[str, Any]]:
        for number, comment in dump.records(problem):
            try:
                key = answered_post(comment, counts)
                if key is None:
                    counts["replies"] += 1
                    continue
                post = posts.get(key)
                if post is None:
                    counts["not_prompts" if key in posts else "unknown_posts"] += 1
                    continue
                about = dict(zip(POSTS.names[3:], post, strict=True))
                row = story_row(
                    comment,
                    {**about, "id": np.base_repr(key, 36)},
                    source=source,
                    salt=salt,
                    score_utc=read_utc(comment),
                    escaped=True,
                    min_score_age_hours=min_score_age_hours,
                )
                row["key"] = _key("t1", comment.get("id"), "id")
                if row["created_utc"] > latest_utc:
                    raise DataError("created_utc is in the future")
            except DataError as error:
                _reject(problem, number, error, comment)
                continue
            counts["rows"] += 1
            counts["mended_texts"] += mend_row(row)
            if comment.get("score") is None:
                counts["scores_missing"] += 1
            elif comment.get("score_hidden") is True:
                counts["scores_hidden"] += 1
            elif not row["score_settled"]:
                counts["scores_not_settled"] += 1
            yield row

    # `n_words` is filled in below, while the next batch is parsed.
    nullable = pa.schema([field.with_nullable(True) for field in KEYED_ROWS])
    for batch in _ahead(_batched(rows(), nullable)):
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["n_words"] = count_words(columns["text"])
        yield pa.RecordBatch.from_arrays(list(columns.values()), schema=KEYED_ROWS)
