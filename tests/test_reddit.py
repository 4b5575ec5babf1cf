"""The Reddit client, through the real PRAW, against a server on loopback."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.utils import formatdate
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

from litbench import __version__
from litbench.errors import ConfigError
from litbench.sources import reddit as module
from litbench.sources.reddit import (
    Parts,
    Patience,
    RedditClient,
    RedditClients,
    RedditError,
    RefusedError,
    post_id,
    search_query,
    text_state,
)

# A good answer may be late on a busy machine; only a hang is to be waited out.
QUICK = Patience(timeout_seconds=30, first_wait_seconds=0.01)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Make a client of a server."""
    clients: list[RedditClient] = []

    def make(server: FakeReddit, patience: Patience = QUICK, **environment: str) -> RedditClient:
        server.take_over(monkeypatch, tmp_path / "settings", **environment)
        clients.append(RedditClient(patience=patience))
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
        RedditClient()
    assert "export praw_client_id=... praw_client_secret=..." in str(told.value)
    assert "praw.ini" in str(told.value)
    monkeypatch.setenv("praw_client_id", CLIENT_ID)
    with pytest.raises(ConfigError) as told:
        RedditClient()
    assert "missing (client_secret)" in str(told.value)
    assert "praw_client_id" not in str(told.value)
    assert CLIENT_ID not in str(told.value)


def test_a_section_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_credentials(monkeypatch, tmp_path)
    monkeypatch.setenv("praw_site", "nowhere")
    with pytest.raises(ConfigError, match=r"no section \[nowhere\]"):
        RedditClient()


def test_credentials_in_a_section_of_praw_ini_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_credentials(monkeypatch, tmp_path)
    (tmp_path / "praw.ini").write_text("[mine]\nclient_id=a\nclient_secret=b\n", encoding="utf-8")
    monkeypatch.setenv("praw_site", "mine")
    RedditClient().close()


def test_a_broken_praw_ini_is_an_error_without_its_content(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_credentials(monkeypatch, tmp_path)
    (tmp_path / "praw.ini").write_text("client_secret=planted\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"praw\.ini cannot be read") as told:
        RedditClient()
    assert "planted" not in str(told.value)


def test_the_user_agent_names_program_and_version(
    connect: Callable[..., RedditClient], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with FakeReddit(make_world(1)) as server:
        connect(server).info(["t3_abc"])
        assert all(f"litbench:v{__version__}" in agent for agent in server.agents)
        server.agents.clear()
        connect(server, praw_user_agent="from the environment").info(["t3_abc"])
        assert all(agent.startswith("from the environment") for agent in server.agents)
        server.agents.clear()
        server.take_over(monkeypatch, tmp_path / "settings")
        client = RedditClient("from the config", QUICK)
        client.info(["t3_abc"])
        client.close()
        assert all(agent.startswith("from the config") for agent in server.agents)


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


@pytest.mark.parametrize(("limit", "requests"), [(1, 1), (100, 1), (101, 2), (240, 3), (1_000, 3)])
def test_a_listing_is_read_page_by_page(
    connect: Callable[..., RedditClient], limit: int, requests: int
) -> None:
    world = World()
    for number in range(250):
        world.add_post(f"[WP] Number {number}")
    with FakeReddit(world) as server:
        posts, read_utc = connect(server).listing(
            "WritingPrompts", "new", time_filter="all", limit=limit
        )
        assert server.answered["listing"] == requests
    assert [post["id"] for post in posts] == list(world.posts)[:limit]
    assert read_utc == NOW


def test_a_search_finds_the_prompt(connect: Callable[..., RedditClient]) -> None:
    world = make_world(3)
    with FakeReddit(world) as server:
        for post in world.posts.values():
            found, _ = connect(server).search(
                "WritingPrompts",
                search_query(post["title"]),
                sort="top",
                time_filter="all",
                limit=9,
            )
            assert post["id"] in [one["id"] for one in found]
        assert not server.violations


def test_a_subreddit_that_is_not_there_is_refused(connect: Callable[..., RedditClient]) -> None:
    with FakeReddit(make_world(1)) as server, pytest.raises(RefusedError, match="banned"):
        connect(server).listing("Nowhere", "new", time_filter="all", limit=1)


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


def test_texts_come_plain(connect: Callable[..., RedditClient]) -> None:
    world = World()
    post = world.add_post("[WP] Salt & pepper <3")
    comment = world.add_comment(post, "a & b < c > d &amp; e")
    with FakeReddit(world) as server:
        client = connect(server)
        read = client.post_with_comments(post)
        things, _ = client.info([f"t1_{comment}", f"t3_{post}"])
    assert read.post["title"] == things[f"t3_{post}"]["title"] == "[WP] Salt & pepper <3"
    assert read.comments[0][0]["body"] == things[f"t1_{comment}"]["body"] == "a & b < c > d &amp; e"


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
        things, read_utc = client.info([*names, "t1_zzzzzz", "t3_zzzzzz"])
        assert server.answered["info"] == 1
        with pytest.raises(ValueError, match="101 names"):
            client.info(["t1_a"] * 101)
    assert list(things) == names
    assert read_utc == NOW


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
        with pytest.raises(RedditError, match="with 403") as told:
            connect(server).post_with_comments(post)
        assert not isinstance(told.value, RefusedError)


# Faults ----------------------------------------------------------------------------------------

CAUSES = {
    "429 later": "429", "hang": "timeout", "reset": "connection lost", "cut": "answer cut off",
    "page": "not JSON",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["token", "info"])
@pytest.mark.parametrize("fault", [*FAULTS, "502", "504", "520", "408"])
def test_a_fault_is_waited_out_and_counted(
    connect: Callable[..., RedditClient], fault: str, kind: str
) -> None:
    world = make_world(2)
    name = f"t3_{next(iter(world.posts))}"
    patience = replace(QUICK, timeout_seconds=1) if fault == "hang" else QUICK
    with FakeReddit(world, faults=first_is(fault, kind), hang_seconds=60) as server:
        client = connect(server, patience)
        things, _ = client.info([name])
        assert list(things) == [name]
        assert server.faults == {fault: 1}
        assert server.answered == {"token": 1, "info": 1}
    assert client.traffic.answered == {"token": 1, "info": 1}
    assert client.traffic.faults == {CAUSES.get(fault, fault): 1}
    assert client.traffic.plain()["requests"] == server.requests == 3


def test_a_body_that_stops_arriving_is_a_timeout() -> None:
    from requests.exceptions import ConnectionError as Lost  # noqa: PLC0415

    broken = module._broken_connection
    assert broken(Lost("HTTPConnectionPool(host='x', port=1): Read timed out.")) == "timeout"
    assert broken(Lost("Connection refused")) == "connection lost"
    assert broken(ValueError("no address")) is None


def test_an_expired_token_is_renewed(
    connect: Callable[..., RedditClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    # prawcore waits some seconds before it sends a request again.
    monkeypatch.setattr("prawcore.sessions.time.sleep", lambda _: None)
    world = make_world(2)
    with FakeReddit(world, faults=first_is("expired")) as server:
        client = connect(server)
        things, _ = client.info([f"t3_{next(iter(world.posts))}"])
        assert len(things) == 1
        assert server.answered == {"token": 2, "info": 1}
    assert client.traffic.faults == {"401": 1}


@pytest.mark.parametrize("fault", ["401", "expired"])
def test_a_token_that_never_serves_is_an_error(
    connect: Callable[..., RedditClient], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr("prawcore.sessions.time.sleep", lambda _: None)
    with FakeReddit(make_world(1), faults=lambda _n, kind: fault if kind == "info" else None) as s:
        with pytest.raises(ConfigError, match="refuses the credentials"):
            connect(s).info(["t3_abc"])
        assert s.faults.total() == 3


def test_a_reddit_that_stays_down_is_an_error_after_so_many_tries(
    connect: Callable[..., RedditClient],
) -> None:
    with FakeReddit(make_world(1), faults=lambda _n, kind: "503" if kind == "info" else None) as s:
        client = connect(s, Patience(timeout_seconds=1, first_wait_seconds=0.001, max_tries=4))
        with pytest.raises(RedditError, match=r"in 4 tries, the last time: 503.*run the same"):
            client.info(["t3_abc"])
        assert s.faults == {"503": 4}


def test_a_server_that_is_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with FakeReddit(make_world(1)) as server:
        server.take_over(monkeypatch, tmp_path)
    client = RedditClient(patience=Patience(1, 0.001, max_tries=2))
    with pytest.raises(RedditError, match="in 2 tries, the last time: connection lost"):
        client.info(["t3_abc"])
    client.close()


def test_pauses_double_are_jittered_and_capped(
    connect: Callable[..., RedditClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    class Clock:
        def wait(self, seconds: float) -> bool:
            pauses.append(seconds)
            return False

        def is_set(self) -> bool:
            return False

    with FakeReddit(make_world(1), faults=lambda _n, kind: "500" if kind == "info" else None) as s:
        client = connect(s, Patience(1, 2, longest_wait_seconds=30, max_tries=9))
        monkeypatch.setattr(client._requestor, "_stop", Clock())
        for _ in range(2):
            with pytest.raises(RedditError):
                client.info(["t3_abc"])
    assert len(pauses) == 16
    full = [min(30, 2 * 2**attempt) for attempt in range(8)] * 2
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, full, strict=True))
    assert pauses[:8] != pauses[8:]


def test_the_pause_reddit_asks_for_is_kept(connect: Callable[..., RedditClient]) -> None:
    with FakeReddit(make_world(1), faults=first_is("429 later"), retry_after="1") as server:
        client = connect(server)
        started = time.monotonic()
        client.info(["t3_abc"])
        assert time.monotonic() - started >= 1
    assert client.traffic.waited_seconds >= 1


def test_a_pause_given_as_a_date_is_kept(connect: Callable[..., RedditClient]) -> None:
    date = formatdate(NOW + 1, usegmt=True)
    with FakeReddit(make_world(1), faults=first_is("429 later"), retry_after=date) as server:
        client = connect(server)
        client.info(["t3_abc"])
    assert client.traffic.waited_seconds >= 1


@pytest.mark.parametrize("asked", ["nan", "-3", "soon", "inf"])
def test_a_pause_that_means_nothing_is_not_kept(
    connect: Callable[..., RedditClient], asked: str
) -> None:
    with FakeReddit(make_world(1), faults=first_is("429 later"), retry_after=asked) as server:
        client = connect(server)
        client.info(["t3_abc"])
    assert client.traffic.waited_seconds < 1


def test_a_pause_that_is_too_long_ends_the_run_and_is_named(
    connect: Callable[..., RedditClient],
) -> None:
    with FakeReddit(make_world(1), faults=first_is("429 later"), retry_after="86400") as server:
        with pytest.raises(RedditError, match="a pause of 86400 s"):
            connect(server).info(["t3_abc"])
        assert server.faults.total() == 1


def test_the_rate_limit_is_kept(connect: Callable[..., RedditClient]) -> None:
    with FakeReddit(make_world(1), rate=(3, 1)) as server:
        client = connect(server)
        started = time.monotonic()
        for _ in range(6):
            client.info(["t3_abc"])
        assert time.monotonic() - started > 1
        assert not server.violations
    assert not client.traffic.faults


def test_patience_must_make_sense() -> None:
    for wrong in ({"timeout_seconds": 0}, {"max_tries": 0}, {"first_wait_seconds": -1}):
        with pytest.raises(ConfigError, match="patience"):
            Patience(**wrong)


# Threads ---------------------------------------------------------------------------------------


def test_every_thread_has_a_client_of_its_own_and_more_comments_come_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = World()
    posts = [world.add_post(f"[WP] Number {number}") for number in range(12)]
    for post in posts:
        for number in range(9):
            world.add_comment(post, f"story {number}")
    users: dict[int, set[int]] = {}

    def work(client: RedditClient, post: str) -> int:
        users.setdefault(id(client), set()).add(threading.get_ident())
        return len(client.post_with_comments(post).comments)

    with FakeReddit(world, page=4) as server:
        server.take_over(monkeypatch, tmp_path)
        clients = RedditClients(4, None, QUICK)
        assert list(clients.map(work, posts)) == [9] * 12
        assert not server.violations
        assert server.answered["more comments"] == 12
        assert clients.traffic().plain()["requests"] == server.requests
        clients.close()
    assert len(users) > 1
    assert all(len(threads) == 1 for threads in users.values())


def test_the_first_error_ends_the_others_pauses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def faults(_number: int, kind: str) -> str | None:
        return "500" if kind == "info" else None

    def work(client: RedditClient, place: int) -> None:
        if place == 1:
            client.post_with_comments("zzzz")
        client.info(["t3_abc"])

    with FakeReddit(make_world(1), faults=faults) as server:
        server.take_over(monkeypatch, tmp_path)
        clients = RedditClients(2, None, Patience(1, first_wait_seconds=60))
        started = time.monotonic()
        with pytest.raises(RefusedError):
            list(clients.map(work, range(20)))
        clients.close()
        assert time.monotonic() - started < 50


def test_no_thread_is_no_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with FakeReddit(make_world(1)) as server:
        server.take_over(monkeypatch, tmp_path)
        with pytest.raises(ConfigError, match="threads is 0"):
            RedditClients(0, None, QUICK)


# Parts -----------------------------------------------------------------------------------------


def test_a_part_is_absent_when_it_does_not_fit(tmp_path: Path) -> None:
    parts = Parts(tmp_path, {"salt": "a"}, None)
    assert parts.get("posts/x") is None
    parts.put("posts/x", NOW, {"rows": ["\ud83d half"]})
    assert parts.get("posts/x")["rows"] == ["\ud83d half"]  # type: ignore[index]
    assert parts.names("posts") == ["posts/x"]
    assert Parts(tmp_path, {"salt": "b"}, None).get("posts/x") is None
    (tmp_path / "posts" / "x.json").write_text("", encoding="utf-8")
    assert parts.get("posts/x") is None


def test_a_part_grows_old(tmp_path: Path) -> None:
    writer = Parts(tmp_path, 1, None)
    writer.put("posts/old", int(time.time()) - 3 * 86_400, {})
    writer.put("posts/new", int(time.time()) - 86_400, {})
    reader = Parts(tmp_path, 1, 2)
    assert reader.get("posts/old") is None
    assert reader.get("posts/new") is not None
    assert writer.get("posts/old") is not None


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    parts = Parts(tmp_path, 1, None)
    parts.put("posts/x", NOW, {})
    (tmp_path / "posts" / ".part-abc.json").write_text("{", encoding="utf-8")
    assert parts.names("posts") == ["posts/x"]
    parts.discard_leftovers()
    assert [path.name for path in (tmp_path / "posts").iterdir()] == ["x.json"]


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
    with pytest.raises(ConfigError, match="no post of Reddit's"):
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


@pytest.mark.parametrize("answer", [{}, [], {"data": None}, {"data": {"children": [1]}}])
def test_an_answer_of_unknown_form_is_an_error(
    connect: Callable[..., RedditClient], monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr("fake_reddit._Handler._info", lambda *_: (200, answer))
    with FakeReddit(make_world(1)) as server, pytest.raises(RedditError, match="unknown form"):
        connect(server).info(["t3_abc"])
