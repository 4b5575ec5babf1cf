"""Dumps are read line by line: nothing wanted is lost, nothing broken passes, cuts are noticed."""

import bz2
import json
import lzma
import random
import tracemalloc
from collections import Counter
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.errors import ConfigError, DataError, MissingExtraError
from litbench.sources import archive
from litbench.sources.archive import (
    POSTS,
    Dump,
    answered_post,
    latest_posts,
    parse_line,
    read_posts,
    read_stories,
    read_utc,
)

NAMES = ["WritingPrompts", "nosleep_2"]
SALT = "a salt of the tests"


zstd = archive._zstd()


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


def read_all(dump: Dump) -> tuple[list[int], list[tuple[int, str, str]]]:
    """Numbers of the lines that were found, and what could not be used."""
    problems: list[tuple[int, str, str]] = []
    found = [
        number for number, _ in dump.records(lambda row, *rest: problems.append((row, *rest[:2])))
    ]
    return found, problems


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
    escape = draw(st.sampled_from([0, 0.1, 1]))
    if escape:
        # Any character inside a text that stands for itself may be written as an escape.
        source = random.Random(draw(st.integers(0, 1_000)))
        form = source.choice(["\\u{:04x}", "\\u{:04X}"])
        inside, place, out = False, 0, []
        while place < len(text):
            character = text[place]
            if inside and character == "\\":
                out.append(text[place : place + 2])
                place += 2
                continue
            if character == '"':
                inside = not inside
            elif inside and ord(character) < 0x10000 and source.random() < escape:
                character = form.format(ord(character))
            out.append(character)
            place += 1
        text = "".join(out)
    return text.encode("utf-8", "surrogatepass")


BROKEN = st.sampled_from(
    [b'{"subreddit":"WritingPrompts"', b"[1]", b'"WritingPrompts"', b"\xff{}", b"null", b"{}x",
     b'{"subreddit":"WritingPrompts", "a":\xff}', b"", b" ", b"\t\r", b"x" * 70]
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
        except (ValueError, AssertionError):
            broken.append(number)
            continue
        value = record.get("subreddit")
        if isinstance(value, str) and value in NAMES:
            wanted.append(number)
    return wanted, broken, blank


@settings(max_examples=400)
@given(
    lines=st.lists(st.one_of(json_lines(), BROKEN), max_size=12),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    last=st.booleans(),
    block=st.sampled_from([1, 7, 64, 1 << 20]),
    packed=st.booleans(),
)
def test_looking_at_bytes_before_parsing_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    ending: bytes,
    last: bool,
    block: int,
    packed: bool,
) -> None:
    content = ending.join(lines) + (ending if last and lines else b"")
    # Without an end, an empty last line is no line.
    if lines and not last and not lines[-1]:
        lines = lines[:-1]
    path = tmp_path_factory.mktemp("dump") / ("lines.zst" if packed else "lines")
    if packed:
        write_zstd(path, content)
    else:
        path.write_bytes(content)
    with mock.patch.object(archive, "_BLOCK", block):
        dump = Dump(path, NAMES)
        found, problems = read_all(dump)
    wanted, broken, blank = parse_all(lines)
    assert found == wanted
    assert {row for row, *_ in problems} <= set(broken)
    # A broken line that looks whole and does not hold a name is one of those not parsed.
    shaped = [n for n in broken if lines[n - 1][:1] == b"{" and lines[n - 1][-1:] == b"}"]
    assert set(broken) - set(shaped) <= {row for row, *_ in problems}
    assert (dump.lines, dump.blank) == (len(lines), blank)
    assert dump.lines == dump.blank + dump.elsewhere + len(found) + len(problems)


@pytest.mark.parametrize("form", ["\\u{:04x}", "\\u{:04X}"])
def test_a_single_escaped_character_hides_no_name(form: str, tmp_path: Path) -> None:
    name = "_0123456789" + "".join(map(chr, [*range(65, 91), *range(97, 123)]))
    lines = [
        f'{{"subreddit":"{name[:place]}{form.format(ord(name[place]))}{name[place + 1 :]}"}}\n'
        for place in range(len(name))
    ]
    path = tmp_path / "lines"
    path.write_text("".join(lines))
    assert read_all(Dump(path, [name]))[0] == list(range(1, len(lines) + 1))


def test_lines_that_need_no_parsing_are_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text(
        '{"subreddit":"AskReddit","body":"caf\\u00e9 \\u003cb\\u003e WritingPrompts"}\n' * 50
        + '{"subreddit":"WritingPrompts"}\n'
    )
    with mock.patch.object(archive, "parse_line", wraps=parse_line) as parse:
        assert read_all(Dump(path, NAMES))[0] == [51]
    assert parse.call_count == 1


# Files ----------------------------------------------------------------------------------------


def test_frames_follow_one_another_with_windows_of_two_gigabytes(tmp_path: Path) -> None:
    line = b'{"subreddit":"WritingPrompts","body":"%d"}\n'
    frames = [b"".join(line % (k * 10 + n) for n in range(10)) for k in range(3)]
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"12345"
    path = write_zstd(tmp_path / "RC.zst", frames[0], b"", *frames[1:])
    packed = path.read_bytes()
    path.write_bytes(skippable + packed + skippable)
    heard: list[int] = []
    dump = Dump(path, NAMES, heard.append)
    assert read_all(dump)[0] == list(range(1, 31))
    assert dump.position == sum(heard) == path.stat().st_size


@pytest.mark.parametrize("kind", ["words", "noise", "zeros"])
def test_a_file_cut_off_anywhere_is_noticed(kind: str, tmp_path: Path) -> None:
    source = random.Random(3)
    body = {
        "words": " ".join(source.choices(["river", "moth", "ladder"], k=200)),
        "noise": source.randbytes(300).hex(),
        "zeros": "\0" * 5_000,
    }[kind]
    line = b'{"subreddit":"WritingPrompts","body":"' + body.encode() + b'"}\n'
    whole = write_zstd(tmp_path / "whole.zst", line).read_bytes()
    path = tmp_path / "cut.zst"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=rf"cut\.zst is cut off.* after byte {length:,} .*get"):
            read_all(Dump(path, NAMES))
    path.write_bytes(whole)
    found, problems = read_all(Dump(path, NAMES))
    assert len(found) + len(problems) == 1


@pytest.mark.parametrize("name", ["RC.zst", "RC.bz2", "RC.xz"])
def test_damage_is_noticed(name: str, tmp_path: Path) -> None:
    content = random.Random(0).randbytes(200_000).hex().encode()
    path = tmp_path / name
    if name == "RC.zst":
        write_zstd(path, content)
    else:
        path.write_bytes((bz2 if name == "RC.bz2" else lzma).compress(content))
    packed = bytearray(path.read_bytes())
    packed[60_000:80_000] = b"\xff" * 20_000
    for damaged in (bytes(packed), bytes(packed[:-5]), b"<html>not found</html>\n"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"is cut off, damaged or unreadable after byte"):
            read_all(Dump(path, NAMES))


@pytest.mark.parametrize("name", ["RC", "RC.zst", "RC.bz2", "RC.xz"])
def test_a_byte_order_mark_is_no_part_of_a_line(name: str, tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf{"subreddit":"WritingPrompts"}\n'
    path = tmp_path / name
    if name == "RC.zst":
        write_zstd(path, content)
    else:
        pack = {"RC.bz2": bz2.compress, "RC.xz": lzma.compress}.get(name, bytes)
        path.write_bytes(pack(content))
    assert read_all(Dump(path, NAMES)) == ([1], [])


def test_plain_lines_need_no_zstd(tmp_path: Path) -> None:
    plain = tmp_path / "RC"
    plain.write_bytes(b'{"subreddit":"WritingPrompts"}\n')
    packed = write_zstd(tmp_path / "RC.zst", plain.read_bytes())
    with (
        mock.patch.dict("sys.modules", {"backports": None, "backports.zstd": None}),
        mock.patch("sys.version_info", (3, 13)),
    ):
        assert read_all(Dump(plain, NAMES))[0] == [1]
        with pytest.raises(MissingExtraError, match=r"litbench\[data\]"):
            read_all(Dump(packed, NAMES))


@pytest.mark.parametrize("names", [[], ["r/WritingPrompts"], ["Writing Prompts"], [""]])
def test_names_of_subreddits_are_checked(names: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="subreddits"):
        Dump(tmp_path, names)


@pytest.mark.parametrize("block", [16, 64, 1 << 20])
def test_an_endless_line_is_rejected_and_its_neighbours_stay(block: int, tmp_path: Path) -> None:
    good = b'{"subreddit":"WritingPrompts"}'
    lines = [
        good,
        b'{"subreddit":"WritingPrompts","body":"' + b"x" * 1_000 + b'"}',
        good,
        b"y" * 999,
    ]
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(lines))
    with (
        mock.patch.object(archive, "_BLOCK", block),
        mock.patch.object(archive, "_LONGEST_LINE", 99),
    ):
        dump = Dump(path, NAMES)
        found, problems = read_all(dump)
    assert found == [1, 3]
    assert problems == [(row, "line", "longer than 99 bytes") for row in (2, 4)]
    assert dump.lines == 4


def test_an_endless_line_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 20_000_000)
    with (
        mock.patch.object(archive, "_BLOCK", 1 << 16),
        mock.patch.object(archive, "_LONGEST_LINE", 1 << 18),
    ):
        tracemalloc.start()
        try:
            _, problems = read_all(Dump(path, NAMES))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert len(problems) == 1
    assert peak < 4_000_000


# Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\xff", "not UTF-8"),
        (b"{", "not JSON"),
        (b'{"a": 1}{', "not JSON"),
        (b"[]", "no JSON object"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "not JSON"),
    ],
)
def test_a_broken_line_says_what_it_is(line: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=f"^{reason}$"):
        parse_line(line)


@pytest.mark.parametrize(
    ("comment", "answered"),
    [
        ({"link_id": "t3_ab", "parent_id": "t3_ab"}, 371),
        ({"link_id": "T3_AB", "parent_id": "t3_ab"}, 371),
        ({"link_id": "ab", "parent_id": "t3_ab"}, 371),
        ({"link_id": "t3_ab", "parent_id": None}, 371),
        ({"link_id": 371, "parent_id": None}, 371),
        ({"link_id": "t3_ab", "parent_id": 371}, 371),
        ({"link_id": "t3_ab", "parent_id": 41_785_179_015}, None),
        ({"link_id": "t3_ab", "parent_id": "t1_ab"}, None),
        ({"link_id": "t3_ab", "parent_id": "T1_zz"}, None),
    ],
)
def test_top_level_comments_are_told_in_every_form(
    comment: dict[str, object], answered: int | None
) -> None:
    assert answered_post(comment, Counter()) == answered


@pytest.mark.parametrize(
    ("comment", "column"),
    [
        ({"link_id": "t3_ab"}, "parent_id is missing"),
        ({"parent_id": "t3_ab"}, "link_id is missing"),
        ({"link_id": "t3_ab", "parent_id": "t3_cd"}, "parent_id is neither"),
        ({"link_id": "t3_ab", "parent_id": True}, "parent_id is not text"),
        ({"link_id": "t3_+1", "parent_id": "t3_+1"}, "link_id is no id"),
        ({"link_id": "t3_" + "z" * 13, "parent_id": None}, "link_id is no id"),
        ({"link_id": 0, "parent_id": None}, "link_id is not text"),
        ({"link_id": ["t3_ab"], "parent_id": None}, "link_id is not text"),
    ],
)
def test_a_comment_that_names_no_post_is_never_guessed_at(
    comment: dict[str, object], column: str
) -> None:
    with pytest.raises(DataError, match=column):
        answered_post(comment, Counter())


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


@pytest.mark.parametrize("value", [True, "yesterday", [], float("nan"), float("inf"), 1 << 63])
def test_a_time_that_is_none_is_named(value: object) -> None:
    with pytest.raises(DataError, match="retrieved_on is not a number"):
        read_utc({"retrieved_on": value})


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.one_of(st.none(), st.integers(0, 3)), st.booleans()),
        max_size=30,
    )
)
def test_the_latest_reading_of_a_post_counts(rows: list[tuple[int, int | None, bool]]) -> None:
    full = [
        {"key": key, "read_utc": read, "is_prompt": prompt, "title": f"[WP] {place}",
         "link_flair_text": None, "created_utc": None, "over_18": False}
        for place, (key, read, prompt) in enumerate(rows)
    ]  # fmt: skip
    by_key: dict[int, dict[str, object]] = {}
    for row in sorted(full, key=lambda row: -1 if row["read_utc"] is None else row["read_utc"]):
        by_key[row["key"]] = row
    posts = latest_posts(pa.Table.from_pylist(full, POSTS).to_batches(max_chunksize=3))
    assert posts == {
        key: (row["title"], None, None, False) if row["is_prompt"] else None
        for key, row in by_key.items()
    }


# From lines to rows ---------------------------------------------------------------------------


def dump_of(path: Path, rows: list[object]) -> Dump:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Dump(path, NAMES)


def post(key: str, title: str = "[WP] A door", **more: object) -> dict[str, object]:
    base = {"id": key, "title": title, "subreddit": "WritingPrompts", "created_utc": 1_600_000_000}
    return base | more


def comment(key: str, link: str, **more: object) -> dict[str, object]:
    return {
        "id": key, "link_id": f"t3_{link}", "parent_id": f"t3_{link}", "body": f"Story {key}.",
        "author": "someone", "score": 12, "created_utc": 1_600_003_600, "edited": False,
        "subreddit": "WritingPrompts", "retrieved_on": 1_700_000_000,
    } | more  # fmt: skip


def stories_of(
    tmp_path: Path, submissions: list[object], comments: list[object], hours: float = 36
) -> tuple[list[dict[str, object]], Counter[str], list[tuple[object, ...]]]:
    problems: list[tuple[object, ...]] = []
    counts: Counter[str] = Counter()
    batches = read_posts(
        dump_of(tmp_path / "RS", submissions), ["WP"], lambda *row: problems.append(row), counts,
    )  # fmt: skip
    posts = latest_posts(batches)
    rows = [
        row
        for batch in read_stories(
            dump_of(tmp_path / "RC", comments), posts, source="test", salt=SALT,
            min_score_age_hours=hours, problem=lambda *row: problems.append(row), counts=counts,
        )
        for row in batch.to_pylist()
    ]  # fmt: skip
    return rows, counts, problems


def test_a_story_carries_what_the_dump_says(tmp_path: Path) -> None:
    rows, counts, problems = stories_of(
        tmp_path,
        [post("p1", "[wp] You &amp; a <door>", over_18=True, link_flair_text="Writing Prompt")],
        [comment("c1", "p1", body="It&#39;s &lt;open&gt;, half-light.", edited=1_600_009_000.0,
                 created_utc="1600003600")],
    )  # fmt: skip
    assert not problems
    row = rows[0]
    assert (row["story_id"], row["prompt_id"], row["flair"]) == ("t1_c1", "t3_p1", "WP")
    assert row["prompt"] == "[wp] You & a <door>"
    assert row["text"] == "It&#39;s <open>, half-light."
    assert row["n_words"] == 5
    assert (row["created_utc"], row["score_utc"]) == (1_600_003_600, 1_700_000_000)
    assert (row["edited_utc"], row["over_18"], row["is_bot"]) == (1_600_009_000, True, False)
    assert row["prompt_created_utc"] == 1_600_000_000
    assert row["author"] not in (None, "someone")
    assert (row["score"], row["score_settled"], row["key"]) == (12, True, int("c1", 36))
    assert counts["rows"] == counts["prompts"] == 1


@pytest.mark.parametrize(
    ("more", "score", "counted"),
    [
        ({}, 12, None),
        ({"retrieved_on": 1_600_003_600 + 36 * 3_600}, 12, None),
        ({"retrieved_on": 1_600_003_600 + 36 * 3_600 - 1}, None, "scores_not_settled"),
        ({"retrieved_on": None}, None, "scores_not_settled"),
        ({"score_hidden": True, "score": 1}, None, "scores_hidden"),
        ({"score": None}, None, "scores_missing"),
        (
            {"retrieved_on": 1_600_003_620, "_meta": {"retrieved_2nd_on": 1_600_140_000}},
            12,
            None,
        ),
    ],
)
def test_scores_read_too_early_are_null_and_counted(
    more: dict[str, object], score: int | None, counted: str | None, tmp_path: Path
) -> None:
    rows, counts, _ = stories_of(tmp_path, [post("p1")], [comment("c1", "p1", **more)])
    assert rows[0]["score"] == score
    about_scores = {name: n for name, n in counts.items() if name.startswith("scores_")}
    assert about_scores == ({counted: 1} if counted else {})
