"""The Reddit client, through the real PRAW, against a server on loopback."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_reddit import (
    CLIENT_ID,
    FAULTS,
    NOW,
    FakeReddit,
    World,
    make_world,
)
from hypothesis import given
from hypothesis import strategies as st

from litbench.errors import ConfigError
from litbench.sources.parts import Parts
from litbench.sources.reddit import (
    RedditClient,
    RedditError,
    RefusedError,
    post_id,
    search_query,
    text_state,
)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Make a client of a server."""
    clients: list[RedditClient] = []

    def make(server: FakeReddit, **environment: str) -> RedditClient:
        server.take_over(monkeypatch, tmp_path / "settings", **environment)
        clients.append(RedditClient())
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def first_is(fault: str, kind: str = "info") -> Callable[[int, str], str | None]:
    """A fault in place of the first answer of its kind."""
    waiting = [fault]
    return lambda _number, this: waiting.pop() if this == kind and waiting else None


def crowded_post(comments: int, replies: int = 0) -> tuple[World, str]:
    world = World()
    post = world.add_post("[WP] A crowded one.")
    for number in range(comments):
        comment = world.add_comment(post, f"story {number}")
        for _ in range(replies):
            world.add_comment(post, "a reply", parent=comment)
    return world, post


# Settings --------------------------------------------------------------------------------------


def without_credentials(patch: pytest.MonkeyPatch, folder: Path) -> None:
    for name in ("client_id", "client_secret", "user_agent", "site"):
        patch.delenv(f"praw_{name}", raising=False)
    patch.setenv("XDG_CONFIG_HOME", str(folder))
    patch.setattr("praw.config.Config.CONFIG", None)


def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_credentials(monkeypatch, tmp_path)
    with pytest.raises(ConfigError) as told:
        RedditClient().info([])
    assert "export praw_client_id=... praw_client_secret=..." in str(told.value)
    assert "praw.ini" in str(told.value)
    monkeypatch.setenv("praw_client_id", CLIENT_ID)
    with pytest.raises(ConfigError, match="credentials are missing") as told:
        RedditClient().info([])
    assert CLIENT_ID not in str(told.value)


@pytest.mark.parametrize("content", ["client_secret=planted\n", "[mine]\nclient_secret=planted\n"])
def test_a_broken_praw_ini_is_an_error_without_its_content(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    without_credentials(monkeypatch, tmp_path)
    monkeypatch.setenv("praw_site", "nowhere")
    (tmp_path / "praw.ini").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"praw\.ini cannot be used") as told:
        RedditClient().info([])
    assert "planted" not in str(told.value)


def test_a_password_that_praw_finds_is_not_used(connect: Callable[..., RedditClient]) -> None:
    with FakeReddit(make_world(1)) as server:
        connect(server, praw_username="ann", praw_password="planted").info(["t3_abc"])  # noqa: S106
        assert not server.violations
        assert "planted" not in "".join(server.paths)


def test_wrong_credentials_are_no_fault_to_wait_for(connect: Callable[..., RedditClient]) -> None:
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
def test_all_top_level_comments_come_and_no_replies(
    connect: Callable[..., RedditClient], comments: int, requests: int
) -> None:
    world, post = crowded_post(comments, replies=2)
    with FakeReddit(world, page=40) as server:
        read = connect(server).post_with_comments(post)
        assert server.answered["comments"] == 1
        assert server.answered["more comments"] == requests
        assert server.replies_sent == 0
        assert not server.violations
    expected = sorted(one["id"] for one in world.top_level(post))
    assert sorted(comment["id"] for comment, _ in read.comments) == expected
    assert read.withheld == 0
    assert read.read_utc == NOW
    assert {when for _, when in read.comments} <= {NOW}


def test_comments_that_are_announced_and_not_given_are_counted(
    connect: Callable[..., RedditClient],
) -> None:
    world, post = crowded_post(30)
    with FakeReddit(world, page=20) as server:
        announced = world.top_level(post)

        def vanish(number: int, _moment: str) -> None:
            if "morechildren" in server.paths[number - 1]:
                for one in announced[-3:]:
                    world.comments.pop(one["id"], None)

        server.on_request = vanish
        read = connect(server).post_with_comments(post)
    assert (len(read.comments), read.withheld) == (27, 3)


def test_things_come_by_name_and_unknown_ones_are_left_out(
    connect: Callable[..., RedditClient],
) -> None:
    world = make_world(2)
    names = [f"t1_{name}" for name in world.comments][:60] + [f"t3_{n}" for n in world.posts]
    with FakeReddit(world) as server:
        client = connect(server)
        things = client.info([*names, "t1_zzzzzz", "t3_zzzzzz"])
        assert server.answered["info"] == 1
    assert list(things) == names
    assert client.read_utc == NOW


@pytest.mark.parametrize("reason", ["private", "quarantined"])
def test_a_post_that_is_not_for_everyone_is_refused(
    connect: Callable[..., RedditClient], reason: str
) -> None:
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


def test_a_client_that_is_blocked_does_not_take_it_for_a_missing_post(
    connect: Callable[..., RedditClient],
) -> None:
    world, post = crowded_post(3)
    with FakeReddit(world, faults=first_is("403", "comments")) as server:
        with pytest.raises(RedditError, match="with status 403") as told:
            connect(server).post_with_comments(post)
        assert not isinstance(told.value, RefusedError)


# Faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["token", "info", "more comments"])
@pytest.mark.parametrize("fault", [*FAULTS, "502", "504", "520", "408"])
def test_a_request_that_failed_is_repeated_and_counted(
    connect: Callable[..., RedditClient], fault: str, kind: str
) -> None:
    world, post = crowded_post(9)
    with FakeReddit(world, page=5, faults=first_is(fault, kind), hang_seconds=60) as server:
        client = connect(server)
        assert list(client.info([f"t3_{post}"])) == [f"t3_{post}"]
        assert len(client.post_with_comments(post).comments) == 9
        assert server.faults == {fault: 1}
        assert server.answered == {"token": 1, "info": 1, "comments": 1, "more comments": 1}
    assert client.requests == server.requests == 5
    causes = {"429 later": "429", "hang": "ReadTimeoutError", "reset": "ProtocolError"}
    # prawcore repeats requests whose answers were cut off.
    expected = {} if fault == "cut" else {causes.get(fault, fault): 1}
    assert client.traffic() == {"requests": 5, "retries": expected}


def test_five_failures_in_a_row_are_outlasted(connect: Callable[..., RedditClient]) -> None:
    waiting = ["502", "429", "500", "503", "429"]
    with FakeReddit(
        make_world(1), faults=lambda _, kind: waiting.pop() if kind == "info" and waiting else None
    ) as server:
        client = connect(server)
        client.info(["t3_abc"])
    assert client.traffic() == {"requests": 7, "retries": {"429": 2, "500": 1, "502": 1, "503": 1}}


def test_the_pause_reddit_asks_for_is_kept(connect: Callable[..., RedditClient]) -> None:
    with FakeReddit(make_world(1), faults=first_is("429 later"), retry_after="1") as server:
        client = connect(server)
        started = time.monotonic()
        client.info(["t3_abc"])
        assert time.monotonic() - started >= 1


def test_an_expired_token_is_renewed(connect: Callable[..., RedditClient]) -> None:
    world = make_world(2)
    with FakeReddit(world, faults=first_is("expired")) as server:
        assert len(connect(server).info([f"t3_{next(iter(world.posts))}"])) == 1
        assert server.answered == {"token": 2, "info": 1}


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("503", RedditError, "no usable answer to api/info .*503.*run the same command again"),
        ("page", RedditError, "with status 200 and nothing usable"),
        ("401", ConfigError, "refuses the credentials"),
        ("expired", ConfigError, "refuses the credentials"),
    ],
)
def test_a_request_that_fails_for_good_ends_with_what_to_do(
    connect: Callable[..., RedditClient],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.setattr("litbench.sources.reddit._MOST_RETRIES", 3)
    monkeypatch.setattr("prawcore.sessions.FiniteRetryStrategy._sleep_seconds", lambda _: None)
    with FakeReddit(make_world(1), faults=lambda _, kind: fault if kind == "info" else None) as s:
        with pytest.raises(error, match=message):
            connect(s).info(["t3_abc"])
        assert s.faults[fault] == {"503": 4, "page": 1}.get(fault, 3)


@pytest.mark.parametrize("answer", [{}, [], {"data": None}, {"data": {"children": [1]}}])
def test_an_answer_of_unknown_form_is_an_error(
    connect: Callable[..., RedditClient], monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    for name in ("_info", "_listing", "_comments"):
        monkeypatch.setattr(f"fake_reddit._Handler.{name}", lambda *_: (200, answer))
    with FakeReddit(make_world(1)) as server:
        client = connect(server)
        for ask in (
            lambda: client.info(["t3_abc"]),
            lambda: client.post_with_comments("abc"),
            lambda: client.find("WritingPrompts", "new", limit=1),
        ):
            with pytest.raises(RedditError, match="unknown form"):
                ask()


# Parts -----------------------------------------------------------------------------------------


def test_parts_made_for_something_else_or_too_old_are_removed(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    now = int(time.time())
    parts = Parts(tmp_path, {"salt": "a"})
    assert parts.get("posts/old") is None
    parts.put("posts/old", {"read_utc": now - 3 * 86_400})
    parts.put("posts/new", {"read_utc": now - 86_400, "rows": [1]})
    manifest.touch()
    again = Parts(tmp_path, {"salt": "a"}, 4)
    assert again.names() == again.names("posts") == ["posts/new", "posts/old"]
    assert again.absent(["posts/new", "posts/other"]) == ["posts/other"]
    assert manifest.exists()
    again = Parts(tmp_path, {"salt": "a"}, 2)
    assert again.names() == ["posts/new"]
    assert (again.get("posts/new") or {})["rows"] == [1]
    assert not manifest.exists(), "what was made of the removed part is not current"
    assert Parts(tmp_path, {"salt": "b"}).names() == []


def test_damaged_and_partial_parts_are_removed(tmp_path: Path) -> None:
    Parts(tmp_path, 1).put("posts/x", {"read_utc": 1, "rows": [1, 2, 3]})
    path = tmp_path / "parts" / "posts" / "x.json"
    whole = path.read_bytes()
    path.with_name(".part-abc.json").write_text("{", encoding="utf-8")
    for place in range(0, len(whole), 7):
        for damaged in (whole[:place], whole[:place] + b"~" + whole[place + 1 :]):
            path.write_bytes(damaged)
            Parts(tmp_path, 1)
            assert not list(path.parent.iterdir()), damaged


# Words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("[deleted]", "deleted"),
        (" [removed]\n", "removed"),
        ("[ Removed by Reddit ]", "removed"),
        ("[ Removed by reddit in response to a copyright notice. ]", "removed"),
        ("[removed] the knife from the wall", "present"),
        ("[deleted by user]", "deleted"),
        ("[removed by moderator]", "removed"),
        ("[ removed ]", "removed"),
        (" \n", "removed"),
        ("[removed by reddit" + " " * 1_000_000, "present"),
        ("A story of the [deleted].", "present"),
    ],
)
def test_the_state_of_a_comment(body: str, state: str) -> None:
    assert text_state(body) == state


@pytest.mark.parametrize(
    "value",
    [
        "1aB2", "t3_1ab2", " 1ab2 ",
        "https://www.reddit.com/r/WritingPrompts/comments/1ab2/wp_a_door/",
        "https://old.reddit.com/comments/1ab2", "https://redd.it/1ab2", "/r/x/comments/1ab2/y/zz/",
    ],
)  # fmt: skip
def test_a_post_is_known_by_id_or_address(value: str) -> None:
    assert post_id(value) == "1ab2"


@pytest.mark.parametrize("value", ["", "t1_abc", "../../x", "a b", "https://reddit.com/r/x", "é"])
def test_what_is_no_post_is_named(value: str) -> None:
    with pytest.raises(ConfigError, match="is not a Reddit post"):
        post_id(value)


@given(st.text(min_size=1, max_size=900))
def test_a_query_is_short_and_has_no_operators(prompt: str) -> None:
    try:
        query = search_query(f"[WP] {prompt}")
    except ConfigError:
        return
    assert 0 < len(query) <= 512
    assert not set(query) & set('"():[]{}^~*?\\/!&|+-')
    assert not set(query.split()) & {"AND", "OR", "NOT"}


def test_a_query_holds_the_words_of_the_prompt() -> None:
    assert search_query("[WP] Title: don't AND (won't)!") == "title don't and won't"
    with pytest.raises(ConfigError, match="no words"):
        search_query("[WP] ...")


def test_long_prompts_take_no_long_time() -> None:
    for prompt in ("[" * 1_000_000 + "word", "word " * 200_000, " " * 1_000_000 + "word"):
        assert len(search_query(prompt)) <= 512
