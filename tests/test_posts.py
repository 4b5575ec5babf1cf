"""Posts and comments as rows: tags, bots, salts, hashes, scores."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.errors import ConfigError, DataError
from litbench.records import STORIES
from litbench.sources import posts
from litbench.sources.posts import (
    hash_author,
    is_bot,
    load_salt,
    prompt_tag,
    story_row,
)

SALT = "a salt of enough characters"


@pytest.fixture
def row_of() -> Callable[..., dict[str, Any]]:
    """The row of a comment that differs from a plain one by some fields of comment and post."""

    def build(post: dict[str, Any] | None = None, **comment: Any) -> dict[str, Any]:
        settings = {"score_utc": 2_000_000, "escaped": False, "min_score_age_hours": 0}
        settings |= {name: comment.pop(name) for name in settings if name in comment}
        plain = {"id": "c1", "body": "A story.", "author": "Ann", "score": 7, "created_utc": 1e6}
        title = {"id": "p1", "title": "[WP] A door.", "created_utc": 999_000.0, "over_18": True}
        return story_row(
            {**plain, **comment}, {**title, **(post or {})}, source="test", salt=SALT, **settings
        )

    return build


@pytest.mark.parametrize(
    ("title", "tag"),
    [
        ("[WP] A door.", "WP"),
        ("**[wp]** A door.", "WP"),
        ("  [ eu ] A door.", "EU"),
        ("[Modpost] Rules", "MODPOST"),
        ("A door. [WP]", None),
        ("[a door that opens into another year] Go.", None),
        ("", None),
        ("[" * 1_000_000, None),
        (" " * 1_000_000, None),
    ],
)
def test_a_tag_is_what_a_title_opens_with(title: str, tag: str | None) -> None:
    assert prompt_tag(title) == tag


@pytest.mark.parametrize("name", ["AutoModerator", "WritingPromptsBot", "remind_me_bot", "my-bot2"])
def test_a_bot_says_so(name: str) -> None:
    assert is_bot(name)


@pytest.mark.parametrize(
    "name", ["talbot", "Abbot", "robotics_fan", "Botany", None, "a" * 1_000_000]
)
def test_a_person_is_no_bot(name: str | None) -> None:
    assert not is_bot(name)


def test_the_salt_of_the_environment_wins_and_must_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(posts.SALT_VARIABLE, SALT)
    assert load_salt() == SALT
    monkeypatch.setenv(posts.SALT_VARIABLE, "short")
    with pytest.raises(ConfigError, match="16 characters"):
        load_salt()


def test_a_salt_is_made_once_and_is_for_its_user_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(posts.SALT_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    first = load_salt()
    assert load_salt() == first
    assert len(first) == 32
    files = list((tmp_path / "litbench").iterdir())
    assert [file.name for file in files] == ["salt"]
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600


def test_an_emptied_salt_is_an_error_and_no_salt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(posts.SALT_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "litbench").mkdir()
    (tmp_path / "litbench" / "salt").write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="shorter than 16"):
        load_salt()


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_an_author_is_a_hash_that_depends_on_the_salt(name: str) -> None:
    if name in ("[deleted]", "[removed]"):
        return
    hashed = hash_author(name, SALT)
    assert hashed is not None
    assert len(hashed) == 16
    assert hashed == hash_author(name.casefold(), SALT)
    assert hashed != hash_author(name, SALT + "!")


def test_a_salt_has_a_name_that_changes_with_it_and_does_not_hold_it() -> None:
    assert posts.salt_name(SALT) == posts.salt_name(SALT) != posts.salt_name(SALT + "!")
    assert SALT not in posts.salt_name(SALT)


@given(st.text(st.sampled_from("a\ud83d\ude00\udfff🏰é"), max_size=6))
def test_a_text_fits_utf_8_and_a_whole_one_is_left_alone(text: str) -> None:
    mended = posts.text_of({"text": text}, "text")
    mended.encode()
    if not any(0xD800 <= ord(letter) < 0xE000 for letter in text):
        assert mended is text


def test_what_is_said_of_a_broken_field_holds_nothing_of_it() -> None:
    for name, value in (("author", {"name": "RealName"}), ("created_utc", "RealName")):
        look = posts.text_of if name == "author" else posts.number_of
        with pytest.raises(DataError) as told:
            look({name: value}, name)
        assert "RealName" not in str(told.value)


def test_a_row_has_the_columns_of_a_story(row_of: Callable[..., dict[str, Any]]) -> None:
    row = row_of()
    counted = {"n_words", "n_tokens"}
    assert {column.name for column in STORIES.columns} - counted <= set(row)
    assert (row["story_id"], row["prompt_id"], row["flair"]) == ("t1_c1", "t3_p1", "WP")
    assert (row["score"], row["created_utc"], row["over_18"]) == (7, 1_000_000, True)
    assert "Ann" not in map(str, row.values())


def test_only_archives_are_unescaped_and_only_once(row_of: Callable[..., dict[str, Any]]) -> None:
    written = "a &amp;lt; b &gt; c &amp;nbsp;"
    assert row_of(body=written)["text"] == written
    assert row_of(body=written, escaped=True)["text"] == "a &lt; b > c &nbsp;"


@pytest.mark.parametrize(
    ("edited", "when"), [(False, None), (None, None), (True, None), (5e5, 500_000)]
)
def test_the_time_of_an_edit(
    row_of: Callable[..., dict[str, Any]], edited: Any, when: int | None
) -> None:
    assert row_of(edited=edited)["edited_utc"] == when


def test_a_hidden_score_is_no_score(row_of: Callable[..., dict[str, Any]]) -> None:
    # Reddit then says 1, which is nobody's vote.
    assert row_of(score=1, score_hidden=True)["score"] is None


def test_a_score_read_too_soon_is_no_score(row_of: Callable[..., dict[str, Any]]) -> None:
    late = 1_000_000 + 24 * 3_600
    assert row_of(score_utc=late, min_score_age_hours=24)["score"] == 7
    assert row_of(score_utc=late - 1, min_score_age_hours=24)["score"] is None
    assert row_of(score_utc=None, min_score_age_hours=24)["score"] is None
    assert row_of(score_utc=None)["score"] == 7


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", None), ("body", None), ("body", 5), ("created_utc", None), ("created_utc", "soon"),
        ("score", True), ("score", []), ("created_utc", float("nan")), ("score", 1 << 63),
        ("edited", "1e400"), ("author", {}),
    ],
)  # fmt: skip
def test_a_broken_field_is_named(
    row_of: Callable[..., dict[str, Any]], field: str, value: Any
) -> None:
    with pytest.raises(DataError, match=field):
        row_of(**{field: value})
