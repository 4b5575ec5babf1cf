"""Posts and comments as rows: tags, bots, salts, hashes, scores."""

import stat

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.data.sources import posts
from litbench.data.sources.posts import (
    hash_accounts,
    hash_author,
    is_bot,
    is_reddit_shaped,
    load_salt,
    prompt_tag,
    story_row,
    unescape,
)
from litbench.runs.errors import ConfigError, DataError

SALT = "a salt of enough characters"


@pytest.fixture
def row_of():
    """Return the row of a comment with some changed fields of comment and post."""

    def build(post=None, **comment):
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
def test_a_tag_is_what_a_title_opens_with(title, tag):
    assert prompt_tag(title) == tag


@pytest.mark.parametrize("name", ["AutoModerator", "WritingPromptsBot", "remind_me_bot", "my-bot2"])
def test_a_bot_says_so(name):
    assert is_bot(name)


def test_salt_of_the_environment(monkeypatch):
    monkeypatch.setenv(posts.SALT_VARIABLE, SALT)
    assert load_salt() == SALT
    monkeypatch.setenv(posts.SALT_VARIABLE, "short")
    with pytest.raises(ConfigError, match="16 characters"):
        load_salt()


def test_salt_file_is_created_once_and_private(monkeypatch, tmp_path):
    monkeypatch.delenv(posts.SALT_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    first = load_salt()
    assert load_salt() == first
    assert len(first) == 32
    files = list((tmp_path / "litbench").iterdir())
    assert [file.name for file in files] == ["salt"]
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_an_author_is_a_hash_that_depends_on_the_salt(name):
    if name in ("[deleted]", "[removed]"):
        return
    hashed = hash_author(name, SALT)
    assert hashed is not None
    assert len(hashed) == 16
    assert hashed == hash_author(name.casefold(), SALT)
    assert hashed != hash_author(name, SALT + "!")


def test_error_of_a_field_hides_its_value():
    for name, value in (("author", {"name": "RealName"}), ("created_utc", "RealName")):
        look = posts.text_of if name == "author" else posts.number_of
        with pytest.raises(DataError) as told:
            look({name: value}, name)
        assert "RealName" not in str(told.value)


def test_only_archives_are_unescaped_and_only_once(row_of):
    written = "a &amp;lt; b &gt; c &amp;nbsp;"
    assert row_of(body=written)["text"] == written
    assert row_of(body=written, escaped=True)["text"] == "a &lt; b > c \xa0"


def test_a_score_read_too_soon_is_no_score(row_of):
    late = 1_000_000 + 24 * 3_600
    assert row_of(score_utc=late, min_score_age_hours=24)["score"] == 7
    assert row_of(score_utc=late - 1, min_score_age_hours=24)["score"] is None
    assert row_of(score_utc=None, min_score_age_hours=24)["score"] is None
    assert row_of(score_utc=None)["score"] == 7


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", None),
        ("body", None),
        ("body", 5),
        ("created_utc", None),
        ("created_utc", "soon"),
        ("score", True),
        ("score", []),
        ("created_utc", float("nan")),
        ("score", 1 << 63),
        ("edited", "1e400"),
        ("author", {}),
    ],
)
def test_a_broken_field_is_named(row_of, field, value):
    with pytest.raises(DataError, match=field):
        row_of(**{field: value})


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("[WP] A &amp; B", "[WP] A & B"),
        ("&gt; quoted", "> quoted"),
        ("&lt;3", "<3"),
        ("&amp;lt;", "&lt;"),
        ("&amp;amp;", "&amp;"),
        ("&amp;#x200B;", "\u200b"),
        ("&#x200B;", "\u200b"),
        ("&amp;amp;#x200B;", "\u200b"),
        ("a &amp;nbsp; b", "a \xa0 b"),
        ("AT&T &copy; &eacute;", "AT&T &copy; &eacute;"),
        ("<b> & > plain", "<b> & > plain"),
    ],
)
def test_reddits_escapes_are_undone_once(written, text):
    assert unescape(written) == text


@pytest.mark.parametrize(
    ("origins", "is_shaped"),
    [
        ({"text": "body", "prompt": "title"}, True),
        ({"text": "selftext", "x": "subreddit"}, True),
        ({"text": "body", "prompt_id": "md5(link_id)"}, True),
        ({"text": "comment.body", "created_utc": "comment.created_utc"}, True),
        ({"text": "trim(body)", "link_flair_text": "link_flair_text"}, True),
        ({"text": "body", "prompt": "heading", "score": "hearts"}, False),
        ({"text": "text", "prompt": "title", "subreddit": "subreddit"}, False),
        ({"prompt": "title"}, False),
        ({"text": "somebody", "prompt": "title"}, False),
    ],
)
def test_reddits_columns_are_recognised(origins, is_shaped):
    assert is_reddit_shaped(origins) == is_shaped


def test_account_names_are_hashed_once(monkeypatch):
    monkeypatch.setenv(posts.SALT_VARIABLE, SALT)
    names = ["author", "chosen_author", "author_fullname", "User Name", "userId", "chosenAuthor"]
    names += ["link_author", "username", "AUTHOR_NAME"]
    others = {"author_flair_text": "poet", "title": "Ann", "authority": "Ann", "score": 1}
    rows = [
        {**dict.fromkeys(names, name), **others}
        for name in ("Ann", "ANN", "[deleted]", None, "StoryBot", "Bob")
    ]
    hashed = hash_accounts(pa.Table.from_pylist(rows))
    ann, bob = hash_author("Ann", SALT), hash_author("Bob", SALT)
    for name in names:
        assert hashed[name].to_pylist() == [ann, ann, None, None, "bot", bob]
    assert {name: hashed[name][0].as_py() for name in others} == others
    assert hash_accounts(hashed).equals(hashed)
    numbers = hash_accounts(pa.table({"user_id": [7, None]}))["user_id"].to_pylist()
    assert numbers == [hash_author("7", SALT), None]


def test_no_salt_is_created_without_names(monkeypatch, tmp_path):
    monkeypatch.delenv(posts.SALT_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    hash_accounts(pa.table({"author": ["0123456789abcdef", None], "text": ["a", "b"]}))
    assert not list(tmp_path.iterdir())
