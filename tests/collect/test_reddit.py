"""The Reddit client with PRAW against a local server."""

import json
import time

import pytest
from fake_reddit import CLIENT_ID, FAULTS, FakeReddit, World, make_world
from hypothesis import given
from hypothesis import strategies as st

from litbench.collect.parts import fresh_parts
from litbench.collect.reddit import (
    RedditClient,
    RedditError,
    RefusedError,
    post_id,
    search_query,
    text_state,
)
from litbench.runs.errors import ConfigError


@pytest.fixture
def connect(monkeypatch, tmp_path):
    """Make a client of a server."""
    clients = []

    def make(server, **environment):
        server.take_over(monkeypatch, tmp_path / "settings", **environment)
        clients.append(RedditClient())
        return clients[-1]

    yield make
    for client in clients:
        client.close()


# Settings --------------------------------------------------------------------------------------


def first_is(fault, kind="info"):
    """Replace the first answer of a kind by a fault."""
    waiting = [fault]
    return lambda _number, this: waiting.pop() if this == kind and waiting else None


def crowded_post(comments, replies=0):
    world = World()
    post = world.add_post("[WP] A crowded one.")
    for number in range(comments):
        comment = world.add_comment(post, f"story {number}")
        for _ in range(replies):
            world.add_comment(post, "a reply", parent=comment)
    return world, post


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    for name in ("client_id", "client_secret", "user_agent", "site"):
        monkeypatch.delenv(f"praw_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("praw.config.Config.CONFIG", None)


@pytest.mark.usefixtures("no_credentials")
def test_missing_credentials_are_named(monkeypatch):
    monkeypatch.setenv("praw_client_id", CLIENT_ID)
    with pytest.raises(ConfigError, match="praw_client_id") as told:
        RedditClient().info([])
    assert CLIENT_ID not in str(told.value)


@pytest.mark.usefixtures("no_credentials")
@pytest.mark.parametrize("content", ["client_secret=planted\n", "[mine]\nclient_secret=planted\n"])
def test_error_of_praw_ini_hides_its_content(monkeypatch, tmp_path, content):
    monkeypatch.setenv("praw_site", "nowhere")
    (tmp_path / "praw.ini").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"praw\.ini cannot be used") as told:
        RedditClient().info([])
    assert "planted" not in str(told.value)


def test_wrong_credentials_are_no_fault_to_wait_for(connect):
    with FakeReddit(make_world(1)) as server:
        client = connect(server, praw_client_secret="wrong-planted")  # noqa: S106
        with pytest.raises(ConfigError, match="refuses the credentials") as told:
            client.info(["t3_abc"])
        assert server.requests == 1
        assert "planted" not in str(told.value)


# What is asked and what comes back -------------------------------------------------------------


@pytest.mark.parametrize(
    ("comments", "requests"), [(0, 0), (40, 0), (41, 1), (140, 1), (141, 2), (300, 3)]
)
def test_all_top_level_comments_come_and_no_replies(connect, comments, requests):
    world, post = crowded_post(comments, replies=2)
    with FakeReddit(world, page=40) as server:
        read = connect(server).post_with_comments(post)
        assert server.answered["comments"] == 1
        assert server.answered["more comments"] == requests
    expected = sorted(answer["id"] for answer in world.answers(f"t3_{post}"))
    assert sorted(comment["id"] for comment in read.comments) == expected
    assert read.withheld == 0


@pytest.mark.parametrize("reason", ["private", "quarantined"])
def test_a_post_that_is_not_for_everyone_is_refused(connect, reason):
    world, post = crowded_post(3)
    world.refused[post] = reason
    with FakeReddit(world) as server:
        client = connect(server)
        with pytest.raises(RefusedError) as told:
            client.post_with_comments(post)
        assert told.value.reason == reason
        with pytest.raises(RefusedError) as told:
            client.post_with_comments("zzzz")
        assert told.value.reason == "not found"


# Faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["token", "info", "more comments"])
@pytest.mark.parametrize("fault", [*FAULTS, "520"])
def test_a_request_that_failed_is_repeated(connect, fault, kind):
    world, post = crowded_post(9)
    with FakeReddit(world, page=5, faults=first_is(fault, kind), hang_seconds=60) as server:
        client = connect(server)
        assert list(client.info([f"t3_{post}"])) == [f"t3_{post}"]
        assert len(client.post_with_comments(post).comments) == 9
        assert server.faults == {fault: 1}
        assert server.answered == {"token": 1, "info": 1, "comments": 1, "more comments": 1}


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("503", RedditError, "no usable answer to api/info .*503.*run the same command again"),
        ("page", RedditError, "with status 200 and no content"),
        ("401", ConfigError, "refuses the credentials"),
        ("expired", ConfigError, "refuses the credentials"),
    ],
)
def test_failed_request_says_what_to_do(connect, monkeypatch, fault, error, message):
    monkeypatch.setattr("litbench.collect.reddit._MAX_RETRIES", 3)
    monkeypatch.setattr("prawcore.sessions.FiniteRetryStrategy._sleep_seconds", lambda _: None)
    with FakeReddit(make_world(1), faults=lambda _, kind: fault if kind == "info" else None) as s:
        with pytest.raises(error, match=message):
            connect(s).info(["t3_abc"])
        assert s.faults[fault] == {"503": 4, "page": 1}.get(fault, 3)


# Parts -----------------------------------------------------------------------------------------


def test_outdated_parts_are_removed(tmp_path):
    manifest = tmp_path / "manifest.json"
    now = int(time.time())
    parts = fresh_parts(tmp_path, "posts", {"salt": "a"})
    for name, age in (("old", 3), ("new", 1)):
        part = {"made_for": {"salt": "a"}, "read_utc": now - age * 86_400, "name": name}
        parts.get(name, lambda part=part: part, label=name)
    manifest.touch()

    def kept(*arguments):
        again = fresh_parts(tmp_path, "posts", *arguments)
        read = lambda path: json.loads(path.read_bytes())["name"]  # noqa: E731
        return sorted(name for _, name in again.stored(read))

    assert kept({"salt": "a"}, 4) == ["new", "old"]
    assert manifest.exists()
    assert kept({"salt": "a"}, 2) == ["new"]
    assert not manifest.exists(), "what was made of the removed part is not current"
    assert kept({"salt": "b"}) == []


# Words -----------------------------------------------------------------------------------------


# Which texts are gone at all is tested beside the filter, in test_filters.py.
@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("[deleted]", "deleted"),
        ("[deleted by user]", "deleted"),
        ("[ Removed by reddit in response to a copyright notice. ]", "removed"),
        (" \n", "removed"),
        ("[removed by reddit" + " " * 1_000_000, "present"),
    ],
)
def test_the_state_of_a_comment(body, state):
    assert text_state(body) == state


@pytest.mark.parametrize(
    "value",
    [
        "1aB2",
        "t3_1ab2",
        " 1ab2 ",
        "https://www.reddit.com/r/WritingPrompts/comments/1ab2/wp_a_door/",
        "https://old.reddit.com/comments/1ab2",
        "https://redd.it/1ab2",
        "/r/x/comments/1ab2/y/zz/",
    ],
)
def test_a_post_is_known_by_id_or_address(value):
    assert post_id(value) == "1ab2"


@pytest.mark.parametrize("value", ["", "t1_abc", "../../x", "a b", "https://reddit.com/r/x", "é"])
def test_what_is_no_post_is_named(value):
    with pytest.raises(ConfigError, match="Reddit post"):
        post_id(value)


@given(st.text(min_size=1, max_size=900))
def test_a_query_is_short_and_has_no_operators(prompt):
    try:
        query = search_query(f"[WP] {prompt}")
    except ConfigError:
        return
    assert 0 < len(query) <= 512
    assert not set(query) & set('"():[]{}^~*?\\/!&|+-')
    assert not set(query.split()) & {"AND", "OR", "NOT"}
