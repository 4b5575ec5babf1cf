"""Dumps of Reddit: one JSON object a line, plain or zstd, as of Pushshift and Arctic Shift.

A dump holds the submissions or the comments of a month or of a subreddit. It is read once, from
its beginning, in blocks: `Dump` finds the lines that can be of the wanted subreddits, by bytes and
without parsing the others, `read_posts` turns lines of submissions and `read_stories` lines of
comments into batches of rows. Between the two stands `Posts`, which holds what a story needs to
know of its post in about 200 bytes each.

The score of a comment is as old as the archive's reading of it. Pushshift read a comment once and
says when in `retrieved_on` or `retrieved_utc`; Arctic Shift reads again after 36 hours, overwrites
the score and says so in `_meta.retrieved_2nd_on`.
"""

import codecs
import hashlib
import itertools
import json
import queue
import re
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa

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
_READ = 1 << 20
# Reddit's longest post has 40,000 characters; a line beyond this is no post, and memory is bounded.
_LONGEST_LINE = 32 << 20
_BATCH_ROWS = 2_048
_BATCH_BYTES = 32 << 20
# What `zstd --long=31` writes; the decompressor may then need that much memory.
_WINDOW = 1 << 31

_ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + n, 0x2A, 0x4D, 0x18]) for n in range(16)))
_OTHER_FORMATS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}
# Appended to a compressed file as one more frame: it comes out only if the file's own last frame
# is whole. No JSON holds zero bytes, and the frame itself holds few of them.
_END = bytes(1_000)

_ESCAPE = b"\\u00"
# Escapes of the characters that names of subreddits are made of.
_ESCAPED_NAME = re.compile(rb"\\u00(?:3[0-9]|4[1-9A-Fa-f]|5[0-9AaFf]|6[1-9A-Fa-f]|7[0-9Aa])")
_NAME = re.compile(r"[A-Za-z0-9_]{2,}")
_ID = re.compile(THING_ID)

# What import needs of a post. `key` is its id as a number; titles of posts that are no prompts
# are not kept.
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

# Columns of `read_stories`: `key` is the id as a number.
KEYED_ROWS = STORY_ROWS.append(pa.field("key", pa.int64()))

# Hears of a line that cannot be used: its number from 1, the column, the reason, the value.
Problem = Callable[[int, str, str, Any], None]


def check_subreddits(names: Collection[str]) -> None:
    """Check names of subreddits.

    Raises:
        ConfigError: none, or one that cannot be a name.
    """
    if not names:
        raise ConfigError("subreddits is empty: name at least one, such as WritingPrompts")
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"subreddits: '{name}' is no name of a subreddit: write it as Reddit spells it, "
                "without r/"
            )


# Reading lines -------------------------------------------------------------------------------


class _Source:
    """A compressed file with the end mark behind it; counts and hashes what is read."""

    def __init__(self, file: IO[bytes], tail: bytes, note: Callable[[bytes], None]) -> None:
        self._file = file
        self._tail = tail
        self._note = note

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if data:
            self._note(data)
            return data
        tail, self._tail = self._tail, b""
        return tail


class Dump:
    """One file of a dump, which is read once.

    Attributes:
        path: the file, plain or zstd; its first bytes tell which.
        size: bytes of the file.
        position: bytes of it read so far.
        lines: lines read so far.
        elsewhere: of these, how many cannot be of the subreddits and were not parsed.
        blank: of these, how many are empty.
    """

    def __init__(
        self,
        path: Path,
        subreddits: Collection[str],
        progress: Callable[[int], object] | None = None,
    ) -> None:
        """Take a file; `progress` hears how many bytes of it were read, in another thread."""
        check_subreddits(subreddits)
        self.path = path
        self._progress = progress
        self._needles = [f'"{name}"'.encode() for name in subreddits]
        self._hash = hashlib.sha256()
        self.position = self.lines = self.elsewhere = self.blank = 0
        try:
            self.size = path.stat().st_size
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}; check the path") from error

    def sha256(self) -> str:
        """Digest of the bytes read so far."""
        return self._hash.hexdigest()

    def candidates(self) -> Generator[list[tuple[int, bytes | None]], None, None]:
        """Yield the lines that can be of the subreddits, a block at a time.

        A line is left out only when it begins and ends as an object and none of the names stands
        in it, in quotes or with one of its characters escaped: then no parser finds the name.

        Yields:
            Numbers from 1 and lines without their end; null for a line of more than 32 MiB.

        Raises:
            DataError: the file cannot be read, is cut off, damaged or in another format.
            MissingExtraError: it is compressed and zstandard is not installed.
        """
        rest: list[bytes] = []
        held = 0
        # Lines that are too long are dropped as they come.
        skipping = False
        with closing(_read_ahead(self._blocks())) as blocks:
            for block in blocks:
                first, last = block.find(b"\n") + 1, block.rfind(b"\n") + 1
                if not first:
                    held += len(block)
                    skipping = skipping or held > _LONGEST_LINE
                    rest = [] if skipping else [*rest, block]
                    continue
                found = self._finish_line(rest, block[:first], skipping)
                found += self._scan(block, first, last)
                rest, held, skipping = [block[last:]], len(block) - last, False
                yield found
        if held:
            yield self._finish_line(rest, b"\n", skipping)

    def _finish_line(
        self, parts: Sequence[bytes], end: bytes, skipping: bool
    ) -> list[tuple[int, bytes | None]]:
        line = b"".join([*parts, end])
        if skipping or len(line) > _LONGEST_LINE:
            self.lines += 1
            return [(self.lines, None)]
        return self._scan(line, 0, len(line))

    def _scan(self, block: bytes, start: int, stop: int) -> list[tuple[int, bytes | None]]:
        """Find candidates among the whole lines of block[start:stop]."""
        if start == stop:
            return []
        view = np.frombuffer(block, np.uint8)[start:stop]
        ends = np.flatnonzero(view == ord("\n"))
        begins = np.concatenate(([0], ends[:-1] + 1))
        # Whatever does not look like an object is parsed, so that a broken line is found out.
        odd = (view[begins] != ord("{")) | (view[ends - 1] != ord("}"))
        empty = begins == ends
        chosen = set(np.flatnonzero(odd & ~empty).tolist())
        stops = (ends + start).tolist()
        for needle in self._needles:
            at = block.find(needle, start, stop)
            while at >= 0:
                row = bisect_left(stops, at)
                chosen.add(row)
                at = block.find(needle, stops[row], stop)
        at = block.find(_ESCAPE, start, stop)
        while at >= 0:
            if _ESCAPED_NAME.match(block, at):
                row = bisect_left(stops, at)
                chosen.add(row)
                at = block.find(_ESCAPE, stops[row], stop)
            else:
                at = block.find(_ESCAPE, at + len(_ESCAPE), stop)
        found: list[tuple[int, bytes | None]] = []
        for row in sorted(chosen):
            line = block[int(begins[row]) + start : stops[row]]
            if line.isspace():
                self.blank += 1
            else:
                found.append((self.lines + row + 1, line))
        n_empty = int(empty.sum())
        self.blank += n_empty
        self.elsewhere += len(stops) - len(chosen) - n_empty
        self.lines += len(stops)
        return found

    def _note(self, data: bytes) -> None:
        self.position += len(data)
        self._hash.update(data)
        if self._progress is not None:
            self._progress(len(data))

    def _blocks(self) -> Iterator[bytes]:
        """Yield the file's content in pieces of up to 4 MiB."""
        try:
            with self.path.open("rb") as file:
                magic = file.read(8)
                file.seek(0)
                for start, name in _OTHER_FORMATS.items():
                    if magic.startswith(start):
                        raise DataError(
                            f"{self.path} is {name}, and only zstd and plain lines are read: "
                            "unpack it first"
                        )
                is_zstd = magic.startswith(_ZSTD)
                if self.path.suffix == ".zst" and not is_zstd:
                    raise DataError(
                        f"{self.path} is not zstd, though its name says so (its first bytes are "
                        f"{magic!r}): fetch it again"
                    )
                if is_zstd:
                    yield from self._decompressed(file)
                    return
                while block := file.read(_BLOCK):
                    begins = self.position == 0
                    self._note(block)
                    yield block.removeprefix(codecs.BOM_UTF8) if begins else block
        except OSError as error:
            raise DataError(
                f"{self.path}: cannot be read after byte {self.position:,} ({error}): check the "
                "disk"
            ) from error

    def _decompressed(self, file: IO[bytes]) -> Iterator[bytes]:
        try:
            import zstandard  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("zstandard", "data") from error
        advice = "fetch it again; what was imported from other files is kept"
        cut_off = DataError(
            f"{self.path} is cut off or damaged: its compressed data are not whole where the file "
            f"ends, at byte {self.size:,}: {advice}"
        )
        source = _Source(file, zstandard.ZstdCompressor().compress(_END), self._note)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        held = b""
        with decompressor.stream_reader(
            cast(IO[bytes], source), read_size=_READ, read_across_frames=True, closefd=False
        ) as reader:
            try:
                while block := reader.read(_BLOCK):
                    # The end mark may come in two pieces, of which the second is short.
                    if held and len(block) >= len(_END):
                        yield held
                        held = b""
                    held += block
            except zstandard.ZstdError as error:
                if self.position >= self.size:
                    raise cut_off from error
                raise DataError(
                    f"{self.path} is damaged within the {_READ:,} bytes before byte "
                    f"{self.position:,} of {self.size:,} ({error}): {advice}"
                ) from error
            except MemoryError as error:
                raise DataError(
                    f"{self.path}: no memory to decompress it, and a dump made with "
                    "zstd --long=31 needs 2 GiB for that: free some"
                ) from error
        if not held.endswith(_END):
            raise cut_off
        yield held.removesuffix(_END)


def _read_ahead(blocks: Iterator[bytes], depth: int = 3) -> Generator[bytes, None, None]:
    """Yield from an iterator that another thread runs: decompressing needs no interpreter lock."""
    waiting: queue.Queue[bytes | BaseException | None] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: bytes | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def work() -> None:
        try:
            for block in blocks:
                put(block)
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001
            put(error)  # raised where the blocks are used

    thread = threading.Thread(target=work, name="read-ahead", daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()


# Parsing -------------------------------------------------------------------------------------


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


def records(
    dump: Dump, subreddits: Collection[str], problem: Problem
) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """Yield the numbered objects of the subreddits, a block at a time; the rest is counted.

    A name is compared letter for letter.
    """
    names = frozenset(subreddits)
    with closing(dump.candidates()) as blocks:
        for block in blocks:
            found = []
            for number, line in block:
                if line is None:
                    problem(number, "line", f"longer than {_LONGEST_LINE:,} bytes", None)
                    continue
                try:
                    record = parse_line(line)
                except DataError as error:
                    # Not the line itself, which holds the author's name.
                    problem(number, "line", str(error), f"{len(line):,} bytes")
                    continue
                subreddit = record.get("subreddit")
                if isinstance(subreddit, str) and subreddit in names:
                    found.append((number, record))
                else:
                    dump.elsewhere += 1
            yield found


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
        DataError: a time that is none.
    """
    meta = record.get("_meta")
    again = number_of(meta, "retrieved_2nd_on") if isinstance(meta, dict) else None
    if again is not None:
        return again
    first = number_of(record, "retrieved_on")
    return first if first is not None else number_of(record, "retrieved_utc")


def _report(problem: Problem, number: int, error: DataError, record: Mapping[str, Any]) -> None:
    """Pass on an error with a message such as "body is missing": column, reason, value."""
    column, _, reason = str(error).partition(" ")
    value = record.get(column)
    # No account's name is written anywhere; what is nested may hold one, too.
    if column == "author" or isinstance(value, dict | list):
        value = None
    problem(number, column, reason.removeprefix("is "), value)


# Posts ---------------------------------------------------------------------------------------


def read_posts(
    dump: Dump,
    subreddits: Collection[str],
    prompt_tags: Collection[str] | None,
    problem: Problem,
    counts: Counter[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the subreddits' posts of a file of submissions by the schema POSTS.

    Args:
        dump: the file.
        subreddits: names as Reddit spells them.
        prompt_tags: tags in capitals; a post is a prompt if its title opens with one of them.
            Null: every post is one.
        problem: hears of lines that cannot be used.
        counts: `posts`, `prompts`, `mended_texts` are added.
    """
    tags = None if prompt_tags is None else frozenset(prompt_tags)
    for block in records(dump, subreddits, problem):
        rows = []
        for number, record in block:
            try:
                title = text_of(record, "title")
                is_prompt = tags is None or prompt_tag(title) in tags
                flair = text_of(record, "link_flair_text", needed=False)
                texts = {"title": title, "link_flair_text": flair}
                for name, text in texts.items():
                    texts[name] = _storable(text, counts) if is_prompt else None
                row = {
                    "key": _key("t3", record.get("id"), "id"),
                    "read_utc": read_utc(record),
                    "is_prompt": is_prompt,
                    "created_utc": number_of(record, "created_utc"),
                    "over_18": bool(record.get("over_18", False)),
                }
            except DataError as error:
                _report(problem, number, error, record)
                continue
            rows.append({**row, **texts})
            counts["prompts"] += is_prompt
        counts["posts"] += len(rows)
        if rows:
            yield pa.RecordBatch.from_pylist(rows, POSTS)


def _storable(text: str | None, counts: Counter[str]) -> str | None:
    if text is None:
        return None
    mended = mend(text)
    counts["mended_texts"] += mended is not text
    return mended


class Posts:
    """The posts of the subreddits, looked up by id; about 200 bytes each.

    Attributes:
        repeated: rows that another reading of the same post replaced.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take posts by the schema POSTS; of several readings of a post the latest counts."""
        # Texts stay in the batches they come in: to join them would need their memory twice.
        self._batches: list[pa.RecordBatch] = []
        own = [name for name in POSTS.names if name not in ("key", "read_utc", "is_prompt")]
        empty = pa.RecordBatch.from_pylist([], POSTS)
        columns: list[list[np.ndarray]] = [[], [], []]
        for batch in itertools.chain([empty], batches):
            columns[0].append(batch["key"].to_numpy())
            columns[1].append(batch["read_utc"].fill_null(-(1 << 63)).to_numpy())
            columns[2].append(batch["is_prompt"].to_numpy(zero_copy_only=False))
            self._batches.append(batch.select(own).filter(batch["is_prompt"]))
        keys, times, is_prompt = (np.concatenate(column) for column in columns)
        del columns
        kept = latest(keys, times)
        self.repeated = len(keys) - len(kept)
        prompts = kept[is_prompt[kept]]
        self._others = keys[kept[~is_prompt[kept]]]
        self._keys = keys[prompts]
        # Where each prompt stands among the rows of all batches, and where each batch begins.
        self._rows = (np.cumsum(is_prompt) - 1)[prompts]
        self._begins = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    def __len__(self) -> int:
        """How many prompts there are."""
        return len(self._keys)

    @property
    def others(self) -> int:
        """How many posts are no prompts."""
        return len(self._others)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        numbers = self._keys.nbytes + self._rows.nbytes + self._others.nbytes
        return int(sum(batch.nbytes for batch in self._batches) + numbers)

    def look_up(self, keys: Sequence[int]) -> list[dict[str, Any] | bool]:
        """The post of each key by the names of Reddit's API.

        Returns:
            In place of a post: False when it is no prompt, True when it is not known at all.
        """
        wanted = np.array(keys, np.int64)
        places, known = _places(self._keys, wanted)
        _, others = _places(self._others, wanted)
        found: list[dict[str, Any] | bool] = [not other for other in others.tolist()]
        rows = self._rows[places[known]]
        numbers = np.searchsorted(self._begins, rows, side="right") - 1
        rows = rows - self._begins[numbers]
        names = self._batches[0].schema.names
        read: dict[int, dict[str, Any]] = {}
        for place, number, row in zip(
            np.flatnonzero(known).tolist(), numbers.tolist(), rows.tolist(), strict=True
        ):
            # Comments of one time answer few posts.
            post = read.get(keys[place])
            if post is None:
                columns = self._batches[number].columns
                values = [column[row].as_py() for column in columns]
                post = read[keys[place]] = dict(zip(names, values, strict=True))
                post["id"] = np.base_repr(keys[place], 36).lower()
            found[place] = post
        return found


def _places(among: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each wanted number would stand in a sorted array, and whether it does."""
    places = np.searchsorted(among, wanted)
    known = np.zeros(len(wanted), bool)
    inside = places < len(among)
    known[inside] = among[places[inside]] == wanted[inside]
    return places, known


def latest(keys: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Places of the latest reading of every key; of readings of one time the last in order.

    Args:
        keys: int64; shape (n,).
        times: int64; shape (n,).

    Returns:
        int64 places in the order of their keys; shape (number of different keys,).
    """
    order = np.lexsort((times, keys))
    ordered = keys[order]
    is_last = np.ones(len(order), bool)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    return order[is_last]


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
    parent, link = comment.get("parent_id"), comment.get("link_id")
    if isinstance(parent, str) and parent.startswith("t1_"):
        return None
    post = _key("t3", link, "link_id")
    if parent == link and isinstance(parent, str):
        return post
    if parent is None:
        if "parent_id" not in comment:
            raise DataError("parent_id is missing")
        counts["null_parents"] += 1
        return post
    if isinstance(parent, int) and not isinstance(parent, bool):
        return post if parent == post else None
    if not isinstance(parent, str):
        raise DataError("parent_id is not text")
    if parent[:3].lower() == "t1_":
        return None
    if _key("t3", parent, "parent_id") != post:
        raise DataError("parent_id is neither a comment nor the post of link_id")
    return post


def read_stories(
    dump: Dump,
    subreddits: Collection[str],
    posts: Posts,
    *,
    source: str,
    salt: str,
    min_score_age_hours: float,
    problem: Problem,
    counts: Counter[str],
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the top-level comments of prompts of a file of comments by KEYED_ROWS.

    Args:
        dump: the file.
        subreddits: names as Reddit spells them.
        posts: the posts; a comment of another post is counted and left out.
        source: written into the column `source`.
        salt: see `litbench.sources.posts.load_salt`.
        min_score_age_hours: a score that was read sooner after posting becomes null.
        problem: hears of lines that cannot be used.
        counts: `replies`, `unknown_posts`, `not_prompts`, `rows`, and of the rows
            `scores_missing`, `scores_hidden`, `scores_not_settled`, `mended_texts`,
            `null_parents`, are added.
    """
    latest_utc = int(time.time()) + 86_400

    def make(batch: list[tuple[int, int, dict[str, Any]]]) -> pa.RecordBatch | None:
        rows = []
        found = posts.look_up([post for _, post, _ in batch])
        for (number, _, comment), post in zip(batch, found, strict=True):
            if isinstance(post, bool):
                counts["unknown_posts" if post else "not_prompts"] += 1
                continue
            try:
                row = story_row(
                    comment,
                    post,
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
                _report(problem, number, error, comment)
                continue
            counts["mended_texts"] += mend_row(row)
            _count_score(row, comment, counts)
            rows.append(row)
        counts["rows"] += len(rows)
        if not rows:
            return None
        arrays = [
            pa.nulls(len(rows), field.type)
            if field.name in ("n_words", "n_tokens")
            else pa.array([row[field.name] for row in rows], field.type)
            for field in KEYED_ROWS
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=_NOT_COUNTED)

    with closing(_gather(dump, subreddits, problem, counts)) as batches:
        yield from _count_ahead(batch for batch in map(make, batches) if batch is not None)


_NOT_COUNTED = pa.schema([field.with_nullable(True) for field in KEYED_ROWS])


def _count_score(row: dict[str, Any], comment: Mapping[str, Any], counts: Counter[str]) -> None:
    if comment.get("score") is None:
        counts["scores_missing"] += 1
    elif comment.get("score_hidden") is True:
        counts["scores_hidden"] += 1
    elif not row["score_settled"]:
        counts["scores_not_settled"] += 1


def _gather(
    dump: Dump, subreddits: Collection[str], problem: Problem, counts: Counter[str]
) -> Generator[list[tuple[int, int, dict[str, Any]]], None, None]:
    """Yield batches of top-level comments with the numbers of their lines and their posts."""
    batch: list[tuple[int, int, dict[str, Any]]] = []
    size = 0
    for block in records(dump, subreddits, problem):
        for number, comment in block:
            try:
                post = answered_post(comment, counts)
            except DataError as error:
                _report(problem, number, error, comment)
                continue
            if post is None:
                counts["replies"] += 1
                continue
            batch.append((number, post, comment))
            body = comment.get("body")
            size += len(body) if isinstance(body, str) else 0
            if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _count_ahead(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fill n_words in, in another thread: Arrow needs no interpreter lock."""

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["n_words"] = count_words(columns["text"])
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=KEYED_ROWS)

    under_way: deque[Future[pa.RecordBatch]] = deque()
    with ThreadPoolExecutor(1) as executor:
        for batch in batches:
            under_way.append(executor.submit(count, batch))
            if len(under_way) > 2:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
