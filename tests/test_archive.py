"""Dumps are read line by line: nothing wanted is lost, nothing broken passes, cuts are noticed."""

import bz2
import json
import lzma
import random
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.errors import DataError, MissingExtraError
from litbench.sources import archive
from litbench.sources.archive import (
    POSTS,
    answered_post,
    latest_posts,
    read_records,
    read_stories,
    read_utc,
)

NAMES = ["WritingPrompts", "nosleep_2"]
LINE = b'{"subreddit":"WritingPrompts"}\n'
zstd = archive.zstd()


def write_zstd(path: Path, *frames: bytes) -> Path:
    """Each frame is written as a stream, so it declares its window and no length."""
    options = {
        zstd.CompressionParameter.window_log: 31,
        zstd.CompressionParameter.checksum_flag: 1,
    }
    with path.open("wb") as file:
        for content in frames:
            with zstd.ZstdFile(file, "wb", options=options) as stream:
                stream.write(content)
    return path


def write_packed(path: Path, content: bytes) -> Path:
    """Write a file in the form that its name says."""
    if path.suffix == ".zst":
        return write_zstd(path, content)
    pack = {".bz2": bz2.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(content))
    return path


def read_all(path: Path) -> tuple[list[int], list[int], Counter[str]]:
    """Numbers of the lines that were found, and of those that could not be used; counts."""
    problems: list[int] = []
    counts: Counter[str] = Counter()
    records = read_records(path, NAMES, lambda row, *_: problems.append(row), counts)
    return [number for number, _ in records], problems, counts


# What may stand on a line ---------------------------------------------------------------------

ORDINARY = st.text(st.sampled_from('ab"\\{}[]:,\n\r\t\u2028é語😀/u0057'), max_size=12)
SUBREDDITS = st.one_of(
    st.sampled_from([*NAMES, "writingprompts", "WritingPrompt", "AskReddit", '"WritingPrompts"']),
    st.none(),
    st.integers(),
    st.lists(st.sampled_from(NAMES), max_size=1),
    ORDINARY,
)


@st.composite
def json_lines(draw: st.DrawFn) -> bytes:
    """A line in some writer's hand: spaces, order of keys and escapes are all allowed by JSON."""
    record = {draw(ORDINARY): draw(ORDINARY) for _ in range(draw(st.integers(0, 2)))}
    if draw(st.integers(0, 4)):
        record["subreddit"] = draw(SUBREDDITS)
    keys = draw(st.permutations(list(record)))
    text = json.dumps(
        {key: record[key] for key in keys},
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " : ")])),
    )
    return text.encode()


BROKEN = st.sampled_from(
    [b'{"subreddit":"WritingPrompts"', b"[1]", b'"WritingPrompts"', b"\xff{}", b"null", b"{}x",
     b'{"subreddit":"WritingPrompts", "a":\xff}', b"", b" ", b"\t\r", b"x" * 70, b"[" * 200_000]
)  # fmt: skip


def parse_all(lines: list[bytes]) -> tuple[list[int], list[int], int]:
    """What a reader finds that parses every line: wanted, not usable, empty."""
    wanted, broken, blank = [], [], 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            blank += 1
            continue
        try:
            record = json.loads(line.decode())
            assert isinstance(record, dict)
        except (ValueError, AssertionError, RecursionError):
            broken.append(number)
            continue
        value = record.get("subreddit")
        if isinstance(value, str) and value in NAMES:
            wanted.append(number)
    return wanted, broken, blank


@settings(max_examples=200)
@given(
    lines=st.lists(st.one_of(json_lines(), BROKEN), max_size=12),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    last=st.booleans(),
    name=st.sampled_from(["lines", "lines.zst", "lines.bz2", "lines.xz"]),
)
def test_looking_at_bytes_before_parsing_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    ending: bytes,
    last: bool,
    name: str,
) -> None:
    content = ending.join(lines) + (ending if last and lines else b"")
    # Without an end, an empty last line is no line.
    if lines and not last and not lines[-1]:
        lines = lines[:-1]
    path = write_packed(tmp_path_factory.mktemp("dump") / name, b"\xef\xbb\xbf" + content)
    found, problems, counts = read_all(path)
    wanted, broken, blank = parse_all(lines)
    assert found == wanted
    assert problems == broken
    assert (counts["lines"], counts["blank"]) == (len(lines), blank)
    assert counts["lines"] == blank + counts["elsewhere"] + len(found) + len(problems)


def test_lines_that_need_no_parsing_are_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"subreddit":"AskReddit","body":"of WritingPrompts"}\n' * 50 + LINE)
    with mock.patch.object(archive.json, "loads", wraps=json.loads) as parse:
        assert read_all(path)[0] == [51]
    assert parse.call_count == 1


# Files ----------------------------------------------------------------------------------------


def test_frames_follow_one_another_with_windows_of_two_gigabytes(tmp_path: Path) -> None:
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"12345"
    path = write_zstd(tmp_path / "RC.zst", LINE * 10, b"", LINE * 20)
    path.write_bytes(skippable + path.read_bytes() + skippable)
    heard: list[int] = []
    records = read_records(path, NAMES, mock.Mock(), Counter(), heard.append)
    assert [number for number, _ in records] == list(range(1, 31))
    assert sum(heard) == path.stat().st_size


@pytest.mark.parametrize("body", [b"words of many kinds " * 40, b"\\u0000" * 900])
def test_a_file_cut_off_anywhere_is_noticed(body: bytes, tmp_path: Path) -> None:
    line = b'{"subreddit":"WritingPrompts","body":"' + body + b'"}\n'
    whole = write_zstd(tmp_path / "whole.zst", line).read_bytes()
    path = tmp_path / "cut.zst"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"cut\.zst is cut off.* after byte .*get the file"):
            read_all(path)
    path.write_bytes(whole)
    assert read_all(path)[0] == [1]


@pytest.mark.parametrize("name", ["RC.zst", "RC.bz2", "RC.xz"])
def test_damage_is_noticed(name: str, tmp_path: Path) -> None:
    path = write_packed(tmp_path / name, random.Random(0).randbytes(200_000).hex().encode())
    packed = bytearray(path.read_bytes())
    packed[60_000:80_000] = b"\xff" * 20_000
    for damaged in (bytes(packed), bytes(packed[:-5]), b"<html>not found</html>\n"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"is cut off, damaged or unreadable after byte"):
            read_all(path)


def test_plain_lines_need_no_zstd(tmp_path: Path) -> None:
    plain, packed = tmp_path / "RC", write_zstd(tmp_path / "RC.zst", LINE)
    plain.write_bytes(LINE)
    with (
        mock.patch.dict("sys.modules", {"backports": None, "backports.zstd": None}),
        mock.patch("sys.version_info", (3, 13)),
    ):
        assert read_all(plain)[0] == [1]
        with pytest.raises(MissingExtraError, match=r"litbench\[data\]"):
            read_all(packed)


def test_an_endless_line_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(LINE + b"y" * 999)
    with (
        mock.patch.object(archive, "_LONGEST_LINE", 99),
        pytest.raises(DataError, match="a line of 99 bytes or more"),
    ):
        read_all(path)


# Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "answered"),
    [
        ({"link_id": "t3_ab", "parent_id": "t3_ab"}, "ab"),
        ({"link_id": "T3_AB", "parent_id": "t3_ab"}, "ab"),
        ({"link_id": "ab", "parent_id": "t3_ab"}, "ab"),
        ({"link_id": "t3_ab", "parent_id": None}, "ab"),
        ({"link_id": 371, "parent_id": None}, "ab"),
        ({"link_id": "t3_ab", "parent_id": 371}, "ab"),
        ({"link_id": "t3_ab", "parent_id": 41_785_179_015}, None),
        ({"link_id": "t3_ab", "parent_id": "t1_ab"}, None),
        ({"link_id": "t3_ab", "parent_id": "T1_zz"}, None),
    ],
)
def test_top_level_comments_are_told_in_every_form(
    comment: dict[str, object], answered: str | None
) -> None:
    assert answered_post(comment) == answered


@pytest.mark.parametrize(
    ("comment", "column"),
    [
        ({"link_id": "t3_ab"}, "parent_id is no id"),
        ({"parent_id": "t3_ab"}, "link_id is missing"),
        ({"link_id": "t3_ab", "parent_id": "t3_cd"}, "parent_id is neither"),
        ({"link_id": "t3_ab", "parent_id": True}, "parent_id is a bool"),
        ({"link_id": "t3_+1", "parent_id": "t3_+1"}, "link_id is no id"),
        ({"link_id": "t3_" + "z" * 13, "parent_id": None}, "link_id is no id"),
        ({"link_id": -1, "parent_id": None}, "link_id is no id"),
        ({"link_id": ["t3_ab"], "parent_id": None}, "link_id is a list"),
    ],
)
def test_a_comment_that_names_no_post_is_never_guessed_at(
    comment: dict[str, object], column: str
) -> None:
    with pytest.raises(DataError, match=column):
        answered_post(comment)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({}, None),
        ({"retrieved_on": None}, None),
        ({"retrieved_on": 5}, 5),
        ({"retrieved_utc": "7.0"}, 7),
        ({"retrieved_on": 5, "retrieved_utc": 7}, 5),
        ({"retrieved_on": 5, "_meta": {"retrieved_2nd_on": 9}}, 9),
        ({"retrieved_on": 5, "_meta": {"note": "no_2nd_retrieval"}}, 5),
        ({"retrieved_on": 5, "_meta": None}, 5),
    ],
)
def test_the_time_of_a_score_is_the_last_reading(
    record: dict[str, object], expected: int | None
) -> None:
    assert read_utc(record) == expected


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(1, 3), st.booleans())))
def test_the_latest_reading_of_a_post_counts(rows: list[tuple[str, int | None, bool]]) -> None:
    full = [
        {"id": key, "read_utc": read, "title": f"[WP] {place}" if prompt else None,
         "link_flair_text": None, "over_18": False}
        for place, (key, read, prompt) in enumerate(rows)
    ]  # fmt: skip
    by_key = {row["id"]: row for row in sorted(full, key=lambda row: row["read_utc"] or 0)}
    posts = latest_posts(pa.Table.from_pylist(full, POSTS).to_batches(max_chunksize=3))
    assert posts == by_key


@pytest.mark.parametrize(
    ("more", "score", "counted"),
    [
        ({}, 12, None),
        ({"retrieved_on": 1_600_003_600 + 36 * 3_600}, 12, None),
        ({"retrieved_on": 1_600_003_600 + 36 * 3_600 - 1}, None, "scores_not_settled"),
        ({"retrieved_on": None}, None, "scores_not_settled"),
        ({"score_hidden": True, "score": 1}, None, "scores_hidden"),
        ({"score": None}, None, "scores_missing"),
        ({"retrieved_on": 1_600_003_620, "_meta": {"retrieved_2nd_on": 1_600_140_000}}, 12, None),
    ],
)
def test_scores_read_too_early_are_null_and_counted(
    more: dict[str, object], score: int | None, counted: str | None
) -> None:
    comment: dict[str, Any] = {
        "id": "c1", "link_id": "t3_p1", "parent_id": "t3_p1", "body": "Story.", "author": "someone",
        "score": 12, "created_utc": 1_600_003_600, "edited": False, "retrieved_on": 1_700_000_000,
    } | more  # fmt: skip
    counts: Counter[str] = Counter()
    (batch,) = read_stories(
        [(1, comment)], {"p1": {"id": "p1", "title": "[WP] A door"}}, source="test",
        salt="a salt of the tests", min_score_age_hours=36, problem=mock.Mock(), counts=counts,
    )  # fmt: skip
    assert batch.to_pylist()[0]["score"] == score
    about_scores = {name: n for name, n in counts.items() if name.startswith("scores_")}
    assert about_scores == ({counted: 1} if counted else {})
