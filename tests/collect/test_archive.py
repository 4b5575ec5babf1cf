"""Dumps are read line by line; broken lines are rejected and truncation is detected."""

from collections import Counter
from unittest import mock

import pytest

from litbench.collect.archive import (
    answered_post,
    read_records,
    read_stories,
)
from litbench.data import formats
from litbench.runs.errors import DataError

NAMES = ["WritingPrompts", "nosleep_2"]
LINE = b'{"subreddit":"WritingPrompts"}\n'
zstd = formats.zstd()


def write_zstd(path, *frames):
    """Write each frame as a stream, so that it declares its window but no length."""
    options = {
        zstd.CompressionParameter.window_log: 31,
        zstd.CompressionParameter.checksum_flag: 1,
    }
    with path.open("wb") as file:
        for content in frames:
            with zstd.ZstdFile(file, "wb", options=options) as stream:
                stream.write(content)
    return path


def read_all(path):
    """Return the numbers of the usable and the broken lines, and the counts."""
    problems = []
    counts = Counter()
    records = read_records(path, NAMES, lambda row, *_: problems.append(row), counts)
    return [number for number, _ in records], problems, counts


# Files ----------------------------------------------------------------------------------------


def test_concatenated_frames_with_large_windows(tmp_path):
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"12345"
    path = write_zstd(tmp_path / "RC.zst", LINE * 10, b"", LINE * 20)
    path.write_bytes(skippable + path.read_bytes() + skippable)
    heard = []
    records = read_records(path, NAMES, mock.Mock(), Counter(), heard.append)
    assert [number for number, _ in records] == list(range(1, 31))
    assert sum(heard) == path.stat().st_size


@pytest.mark.parametrize("body", [b"words of many kinds " * 40, b"\\u0000" * 900])
def test_a_file_cut_off_anywhere_is_noticed(body, tmp_path):
    line = b'{"subreddit":"WritingPrompts","body":"' + body + b'"}\n'
    whole = write_zstd(tmp_path / "whole.zst", line).read_bytes()
    path = tmp_path / "cut.zst"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"cut\.zst is truncated.* after byte"):
            read_all(path)
    path.write_bytes(whole)
    assert read_all(path)[0] == [1]


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
def test_top_level_comments_are_told_in_every_form(comment, answered):
    assert answered_post(comment) == answered


@pytest.mark.parametrize(
    ("comment", "column"),
    [
        ({"link_id": "t3_ab"}, "parent_id is not a Reddit id"),
        ({"parent_id": "t3_ab"}, "link_id is missing"),
        ({"link_id": "t3_ab", "parent_id": "t3_cd"}, "parent_id is neither"),
        ({"link_id": "t3_ab", "parent_id": True}, "parent_id is a bool"),
        ({"link_id": "t3_+1", "parent_id": "t3_+1"}, "link_id is not a Reddit id"),
        ({"link_id": "t3_" + "z" * 13, "parent_id": None}, "link_id is not a Reddit id"),
        ({"link_id": -1, "parent_id": None}, "link_id is not a Reddit id"),
        ({"link_id": ["t3_ab"], "parent_id": None}, "link_id is a list"),
    ],
)
def test_comment_without_a_post_is_an_error(comment, column):
    with pytest.raises(DataError, match=column):
        answered_post(comment)


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
def test_scores_read_too_early_are_null_and_counted(more, score, counted):
    comment = {
        "id": "c1",
        "link_id": "t3_p1",
        "parent_id": "t3_p1",
        "body": "Story.",
        "author": "someone",
        "score": 12,
        "created_utc": 1_600_003_600,
        "edited": False,
        "retrieved_on": 1_700_000_000,
    } | more
    counts = Counter()
    (batch,) = read_stories(
        [(1, comment)],
        {"p1": {"id": "p1", "title": "[WP] A door"}},
        source="test",
        salt="a salt of the tests",
        min_score_age_hours=36,
        problem=mock.Mock(),
        counts=counts,
    )
    assert batch.to_pylist()[0]["score"] == score
    about_scores = {name: n for name, n in counts.items() if name.startswith("scores_")}
    assert about_scores == ({counted: 1} if counted else {})
