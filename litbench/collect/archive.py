"""Read dumps of Reddit by Pushshift and Arctic Shift: JSON lines or arrays, maybe compressed.

A dump has the submissions or the comments of a month or of a subreddit. `read_records` streams the
objects of given subreddits. `read_posts` turns submissions into batches of rows, and
`read_stories` turns comments into batches of rows.

The score of a comment is from the time at which the archive read it. Pushshift reads a comment
once, at `retrieved_on` or `retrieved_utc`. Arctic Shift reads it again after 36 hours, at
`_meta.retrieved_2nd_on`, and overwrites the score.
"""

import codecs
import itertools
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.data.formats import Form, json_rows, open_bytes, open_text, sniff
from litbench.data.sources.posts import (
    STORY_ROWS,
    THING_ID,
    fullname,
    number_of,
    prompt_tag,
    story_row,
    text_of,
)
from litbench.data.text import count_words
from litbench.runs.errors import DataError

# Posts have at most 40,000 characters; the limit bounds memory.
_LONGEST_LINE = 32 << 20
_BATCH_ROWS = 2_048
_ID = re.compile(THING_ID)

# Columns of a post that its stories need. Titles of posts that are not prompts are null.
POSTS = pa.schema(
    [
        pa.field("id", pa.large_string()),
        pa.field("read_utc", pa.int64()),
        pa.field("title", pa.large_string()),
        pa.field("link_flair_text", pa.large_string()),
        pa.field("over_18", pa.bool_()),
    ]
)

# Called for a line that cannot be used: its number from 1, the column, the reason and the value.
Problem = Callable[[int, str, str, Any], None]


def read_lines(path: Path, progress: Callable[[int], object]) -> Iterator[bytes]:
    """Yield the lines of a file, or the objects of a JSON document, decompressed.

    `progress` gets the bytes read.
    """
    bytes_read = 0
    try:
        if sniff(path, "utf-8").kind == "document":
            with open_text(path, Form("document")) as (file, _):
                yield from (
                    row.encode("utf-8", "surrogateescape") for row in json_rows(file.read())
                )
            return
        with open_bytes(path) as (stream, position):
            line = stream.readline(_LONGEST_LINE).removeprefix(codecs.BOM_UTF8)
            while line:
                if len(line) == _LONGEST_LINE:
                    raise ValueError(f"a line of {_LONGEST_LINE:,} bytes or more")
                yield line
                line = stream.readline(_LONGEST_LINE)
                progress(position() - bytes_read)
                bytes_read = position()
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is truncated, damaged or unreadable after byte {bytes_read:,} ({error}): get "
            "the file again and run the same command"
        ) from error


def read_records(
    path: Path,
    subreddits: Collection[str],
    problem: Problem,
    counts: Counter[str],
    progress: Callable[[int], object] = lambda _: None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of the subreddits with their line numbers from 1.

    For speed, an object is parsed only if its line contains the quoted name of a subreddit
    literally. (JSON writers do not escape ASCII letters.) Adds `lines`, `blank` and `elsewhere`
    (lines of other subreddits) to `counts`.

    Raises:
        DataError: the file cannot be read, is truncated or damaged, or has too long a line.
    """
    needles = [f'"{name}"'.encode() for name in subreddits]
    for number, line in enumerate(read_lines(path, progress), 1):
        counts["lines"] += 1
        bare = line.strip()
        looks_whole = bare[:1] == b"{" and bare[-1:] == b"}"
        if not bare:
            counts["blank"] += 1
        elif looks_whole and not any(needle in bare for needle in needles):
            counts["elsewhere"] += 1
        else:
            try:
                record = json.loads(bare)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict):
                # Do not report the line, which contains the author's name.
                problem(number, "line", "no JSON object", f"{len(line):,} bytes")
            elif record.get("subreddit") in subreddits:
                yield number, record
            else:
                counts["elsewhere"] += 1


def _id(kind: str, value: Any, name: str) -> str:
    """Return an id in base 36 without its kind prefix."""
    if type(value) is int:
        # Some archives write ids of posts as numbers.
        value = np.base_repr(value, 36)
    bare = fullname(kind, text_of({name: value}, name))[3:]
    if not _ID.fullmatch(bare):
        raise DataError(f"{name} is not a Reddit id")
    return bare


def read_utc(record: Mapping[str, Any]) -> int | None:
    """Return the time at which the archive read the score of a post or comment, or null."""
    meta = record.get("_meta")
    second = number_of(meta, "retrieved_2nd_on") if isinstance(meta, dict) else None
    if second is not None:
        return second
    first = number_of(record, "retrieved_on")
    return first if first is not None else number_of(record, "retrieved_utc")


def _rows(
    records: Iterable[tuple[int, dict[str, Any]]],
    make: Callable[[dict[str, Any]], dict[str, Any] | None],
    schema: pa.Schema,
    problem: Problem,
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the rows that `make` returns; skips null and reports DataError."""

    def rows() -> Iterator[dict[str, Any]]:
        for number, record in records:
            try:
                row = make(record)
            except DataError as error:
                # Messages begin with the column, such as "body is missing".
                column, _, reason = str(error).partition(" ")
                value = record.get(column)
                # Account names must not be stored; nested values may contain them.
                shown = None if column == "author" or isinstance(value, dict | list) else value
                problem(number, column, reason.removeprefix("is "), shown)
                continue
            if row is not None:
                yield row

    remaining = rows()
    while batch := list(itertools.islice(remaining, _BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(batch, schema)


def read_posts(
    records: Iterable[tuple[int, dict[str, Any]]],
    prompt_tags: Collection[str] | None,
    problem: Problem,
    counts: Counter[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the posts of a file of submissions with the schema POSTS.

    A post is a prompt if `prompt_tags` is null or has the tag of its title (in capitals). Posts
    that are not prompts get a null title. Adds `prompts` and `not_prompts` to `counts`.
    """

    def make(post: dict[str, Any]) -> dict[str, Any]:
        title = text_of(post, "title")
        flair = text_of(post, "link_flair_text", needed=False)
        is_prompt = prompt_tags is None or prompt_tag(title) in prompt_tags
        row = {
            "id": _id("t3", post.get("id"), "id"),
            "read_utc": read_utc(post),
            "title": title if is_prompt else None,
            # Interning saves memory: millions of posts have few distinct flairs.
            "link_flair_text": flair and sys.intern(flair),
            "over_18": bool(post.get("over_18", False)),
        }
        counts["prompts" if is_prompt else "not_prompts"] += 1
        return row

    return _rows(records, make, POSTS, problem)


def latest_posts(batches: Iterable[pa.RecordBatch]) -> dict[str, dict[str, Any]]:
    """Map each post's id to its latest reading; ties go to the last one."""
    posts: dict[str, dict[str, Any]] = {}
    for row in itertools.chain.from_iterable(batch.to_pylist() for batch in batches):
        before = posts.get(row["id"])
        if before is None or (before["read_utc"] or 0) <= (row["read_utc"] or 0):
            posts[row["id"]] = row
    return posts


def answered_post(comment: Mapping[str, Any]) -> str | None:
    """Return the id of the post that a comment answers; null for a reply to another comment.

    For a top-level comment, parent_id equals link_id. In dumps of the later Pushshift API it is
    null, and for a reply it is the parent's id as a number.

    Raises:
        DataError: an id is invalid, or the parent is another post.
    """
    parent = comment.get("parent_id", "")
    if str(parent)[:3].lower() == "t1_":
        return None
    post = _id("t3", comment.get("link_id"), "link_id")
    if parent is None or _id("t3", parent, "parent_id") == post:
        return post
    if isinstance(parent, int):
        return None
    raise DataError("parent_id is neither a comment nor the post of link_id")


def read_stories(
    records: Iterable[tuple[int, dict[str, Any]]],
    posts: Mapping[str, Mapping[str, Any]],
    *,
    source: str,
    salt: str,
    min_score_age_hours: float,
    problem: Problem,
    counts: Counter[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the top-level comments of prompts in a file of comments, with the schema STORY_ROWS.

    Args:
        records: from `read_records`.
        posts: from `latest_posts`; comments on other posts are counted and left out.
        source: value of the column `source`.
        salt: see `litbench.data.sources.posts.load_salt`.
        min_score_age_hours: scores that were read sooner after posting become null.
        problem: called for lines that cannot be used.
        counts: updated with the outcome of every comment and its score.
    """
    latest_utc = int(time.time()) + 86_400

    def make(comment: dict[str, Any]) -> dict[str, Any] | None:
        key = answered_post(comment)
        if key is None:
            counts["replies"] += 1
            return None
        post = posts.get(key)
        if post is None or post["title"] is None:
            counts["unknown_posts" if post is None else "not_prompts"] += 1
            return None
        _id("t1", comment.get("id"), "id")
        row = story_row(
            comment,
            post,
            source=source,
            salt=salt,
            score_utc=read_utc(comment),
            escaped=True,
            min_score_age_hours=min_score_age_hours,
        )
        if row["created_utc"] > latest_utc:
            raise DataError("created_utc is in the future")
        counts["rows"] += 1
        if row["score"] is None:
            hidden = "hidden" if comment.get("score_hidden") else "not_settled"
            counts["scores_missing" if comment.get("score") is None else f"scores_{hidden}"] += 1
        return row

    # `n_words` is null at first and counted per batch.
    nullable = pa.schema([field.with_nullable(True) for field in STORY_ROWS])
    for batch in _rows(records, make, nullable, problem):
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["n_words"] = count_words(columns["text"])
        yield pa.RecordBatch.from_arrays(list(columns.values()), schema=STORY_ROWS)
