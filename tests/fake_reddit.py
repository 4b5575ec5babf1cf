"""A small Reddit on loopback, for the real PRAW client, with planted faults.

    with FakeReddit(make_world(seed=1), faults=lambda number, kind: "500") as reddit:
        environment = reddit.environment(tmp_path)
        ...
    assert reddit.answered["comments"] == 12

A praw.ini in the user's configuration folder points PRAW at it. What Reddit forbids fails the test.
"""

import base64
import json
import os
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from loopback import Handler, Loopback

# prawcore reads it when it is imported.
os.environ.setdefault("prawcore_timeout", "4")

# Never to be seen in any output.
CLIENT_ID = "planted-client-id"
CLIENT_SECRET = "planted-client-secret"  # noqa: S105
SALT = "planted-salt-of-the-tests"
NOW = 1_760_000_000

FAULTS = ("429", "429 later", "500", "503", "hang", "reset", "cut")
WORDS = ("amber", "bridge", "été", "don't", "half-light", "a & b", "<i>", "x &gt; y", "* * *\n\n")


@dataclass
class World:
    """Posts, comments and replies by id, as the API's JSON.

    Attributes:
        refused: reason by post id, for posts that are not for everyone.
    """

    posts: dict[str, dict[str, Any]] = field(default_factory=dict)
    comments: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def add_post(self, title, **facts):
        name = f"p{len(self.posts):05}"
        self.posts[name] = {
            "id": name,
            "name": f"t3_{name}",
            "title": title,
            "author": f"asker_{len(self.posts) % 5}",
            "subreddit": "WritingPrompts",
            "created_utc": float(NOW - 40 * 86_400 + 600 * len(self.posts)),
            "link_flair_text": "Writing Prompt",
            "over_18": False,
            "removed_by_category": None,
            **facts,
        }
        return name

    def add_comment(self, post, body, parent=None, **facts):
        name = f"c{len(self.comments):05}"
        self.comments[name] = {
            "id": name,
            "name": f"t1_{name}",
            "link_id": f"t3_{post}",
            "parent_id": f"t3_{post}" if parent is None else f"t1_{parent}",
            "body": body,
            "author": f"Writer_{len(self.comments) % 11}",
            "score": len(self.comments) % 37 - 3,
            "score_hidden": False,
            "created_utc": self.posts[post]["created_utc"] + 60.0 * (1 + len(self.comments) % 50),
            "edited": False,
            **facts,
        }
        return name

    def delete(self, comment):
        self.comments[comment] |= {"body": "[deleted]", "author": "[deleted]"}

    def remove(self, comment, body="[removed]"):
        self.comments[comment] |= {"body": body}

    def edit(self, comment, when):
        self.comments[comment]["body"] += " More."
        self.comments[comment]["edited"] = float(when)

    def answers(self, name):
        """The comments on a post or comment, by its full name."""
        return [comment for comment in self.comments.values() if comment["parent_id"] == name]


def make_text(source, words):
    return " ".join(source.choices(WORDS, k=words))


def make_world(seed, posts=12, comments=9):
    """Prompt posts with comments of every kind, and three posts that are no prompts to collect."""
    source = random.Random(seed)
    world = World()
    for number in range(posts):
        post = world.add_post(f"[WP] The {make_text(source, 6)} of number {number} & more")
        for index in range(source.randrange(comments // 2, comments * 3 // 2)):
            comment = world.add_comment(post, make_text(source, source.randrange(20, 60)))
            chance = source.random()
            if chance < 0.1:
                world.delete(comment)
            elif chance < 0.2:
                world.remove(comment)
            elif chance < 0.3:
                world.edit(comment, NOW - 86_400)
            elif index % 3 == 0:
                reply = world.add_comment(post, "A reply, which is no story.", parent=comment)
                world.add_comment(post, "A reply to the reply.", parent=reply)
    world.add_post("[PI] An answer of number one that is the post itself")
    world.add_post("[WP] The removed one of number two", removed_by_category="moderator")
    world.add_post("[WP] The one of number three that nobody answered")
    return world


def make_published(seed, posts):
    """A world of prompt posts with three comments each, and pairs of them as published by id.

    Each post gives two pairs that share a comment. In every pair the chosen comment has more votes
    and was posted later.
    """
    source = random.Random(seed)
    world, pairs = World(), []
    for number in range(posts):
        post = world.add_post(f"[WP] The {make_text(source, 5)} of number {number}")
        start = world.posts[post]["created_utc"]
        low, *higher = (
            world.add_comment(
                post,
                make_text(source, source.randrange(15, 40)),
                score=10 * index + source.randrange(5),
                created_utc=start + 100.0 * index,
            )
            for index in (1, 2, 3)
        )
        pairs += [
            {
                "chosen_comment_id": high,
                "rejected_comment_id": low,
                "chosen_upvotes": world.comments[high]["score"],
                "rejected_upvotes": world.comments[low]["score"],
            }
            for high in higher
        ]
    return world, pairs


class FakeReddit(Loopback):
    """The server; a context manager.

    Attributes:
        answered: good answers by kind of request: token, search, listing, comments, more
            comments, info.
        faults: faulty answers by their kind.
        paths: what was asked for, in order; of a POST with its body.
    """

    def __init__(
        self,
        world,
        *,
        faults=lambda _number, _kind: None,
        page=500,
        hang_seconds=1.0,
    ):
        """A server that is not started yet.

        Args:
            world: what it serves.
            faults: fault of a request, by its number (from 1) and kind; None for a good answer.
            page: top-level comments it shows before "more comments".
            hang_seconds: how long a hang lasts.
        """
        self.world = world
        self.draw = faults
        self.page = page
        self.hang_seconds = hang_seconds
        self.answered = Counter()
        self.faults = Counter()
        self.paths = []
        self.tokens = set()
        super().__init__(_Handler)

    def take_over(self, patch, folder, **more):
        """Bring the clients of this process here."""
        for name, value in self.environment(folder, **more).items():
            patch.setenv(name, value)
        # PRAW reads its files once in a process.
        patch.setattr("praw.config.Config.CONFIG", None)
        patch.setattr("litbench.collect.reddit._BACKOFF_SECONDS", 0.001)

    @property
    def requests(self):
        """How many requests came in."""
        return len(self.paths)

    def environment(self, folder, **more):
        """Environment variables that bring a client here; writes a praw.ini into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        ini = f"[DEFAULT]\nreddit_url={self.url}\noauth_url={self.url}\n"
        (folder / "praw.ini").write_text(ini, encoding="utf-8")
        return {
            "XDG_CONFIG_HOME": str(folder),
            "praw_client_id": CLIENT_ID,
            "praw_client_secret": CLIENT_SECRET,
            "LITBENCH_SALT": SALT,
            "NO_PROXY": "127.0.0.1",
            **more,
        }


_EXPIRED = {"www-authenticate": 'Bearer realm="reddit", error="invalid_token"'}


class _Handler(Handler):
    def do_GET(self):
        self._serve("GET")

    def do_POST(self):
        self._serve("POST")

    # The frame of every answer ----------------------------------------------------------------

    def _serve(self, method):
        reddit = self.server.fake
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        values = {name: several[0] for name, several in parse_qs(parts.query + "&" + body).items()}
        kind = _kind(parts.path)
        with reddit.lock:
            reddit.paths.append(self.path if method == "GET" else f"{parts.path}?{body}")
            number = len(reddit.paths)
        fault = reddit.draw(number, kind)
        if fault in (None, "cut"):
            status, content, headers = self._answer(kind, parts.path, values)
            data = json.dumps(content).encode()
        with reddit.lock:
            if fault is None:
                reddit.answered[kind if status == 200 else str(status)] += 1
            else:
                reddit.faults[fault] += 1
        if fault is None:
            self._send(status, data, headers)
        elif fault == "cut":
            self.close_connection = True
            self._send(status, data[: len(data) // 2], headers, len(data))
        else:
            self._fail(fault)

    def _send(self, status, data, headers, length=None):
        self.send_response(status)
        limits = {"remaining": "999.0", "used": "1", "reset": "300"}
        headers |= {f"x-ratelimit-{name}": value for name, value in limits.items()}
        headers |= {"Content-Type": "application/json", "Content-Length": length or len(data)}
        if self.close_connection:
            # Unsaid, the client might send its next request into the closing connection.
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(data)

    def _fail(self, fault):
        reddit = self.server.fake
        if fault == "429 later":
            self._send(429, b"{}", {"Retry-After": "0"})
        elif fault.isdigit():
            self._send(int(fault), b"<html>Our servers are busy.</html>", {})
        elif fault == "page":
            self._send(200, b"<html>whoa there</html>", {})
        elif fault == "expired":
            reddit.tokens.clear()
            self._send(401, b"{}", {**_EXPIRED})
        elif fault == "hang":
            reddit.closing.wait(reddit.hang_seconds)
            self.close_connection = True
        else:
            assert fault == "reset", fault
            self.reset()

    # What is answered -------------------------------------------------------------------------

    def _answer(self, kind, path, values):
        reddit = self.server.fake
        if kind == "token":
            credentials = self.headers.get("authorization", "").removeprefix("Basic ")
            if base64.b64decode(credentials).decode() != f"{CLIENT_ID}:{CLIENT_SECRET}":
                return 401, {"message": "Unauthorized", "error": 401}, {}
            assert values["grant_type"] == "client_credentials", "not read-only"
            token = f"token-{reddit.requests}"
            reddit.tokens.add(token)
            made = {"access_token": token, "token_type": "bearer", "expires_in": 86_400}
            return 200, {**made, "scope": "*"}, {}
        if self.headers.get("authorization", "").removeprefix("bearer ") not in reddit.tokens:
            return 401, {"message": "Unauthorized", "error": 401}, {**_EXPIRED}
        status, content = getattr(self, f"_{kind.replace(' ', '_')}")(path, values)
        return status, content, {}

    def _search(self, path, values):
        assert values["restrict_sr"] == "True", "a search of all Reddit"
        wanted = set(values["q"].split())
        posts = self.server.fake.world.posts.values()
        titles = [(post, re.findall(r"[\w'’]+", post["title"].lower())) for post in posts]
        return self._page(path, [post for post, words in titles if wanted <= set(words)])

    def _listing(self, path, values):  # noqa: ARG002
        return self._page(path, self.server.fake.world.posts.values())

    def _page(self, path, posts):
        if not path.startswith("/r/WritingPrompts/"):
            return 404, {"message": "Not Found", "error": 404, "reason": "banned"}
        return 200, _listing([self._post(post) for post in posts])

    def _post(self, post):
        comments = self.server.fake.world.comments.values()
        number = sum(comment["link_id"] == post["name"] for comment in comments)
        return {"kind": "t3", "data": {**post, "num_comments": number}}

    def _comments(self, path, values):
        reddit = self.server.fake
        assert values["depth"] == "1", "replies are no stories"
        name = path.strip("/").split("/")[1]
        if name in reddit.world.refused:
            reason = reddit.world.refused[name]
            return 403, {"message": "Forbidden", "error": 403, "reason": reason}
        if name not in reddit.world.posts:
            return 404, {"message": "Not Found", "error": 404}
        comments = reddit.world.answers(f"t3_{name}")
        shown = min(reddit.page, int(values["limit"]))
        children = [self._comment(comment) for comment in comments[:shown]]
        if hidden := comments[shown:]:
            children.append(_more(hidden))
        return 200, [_listing([self._post(reddit.world.posts[name])]), _listing(children)]

    def _comment(self, comment):
        replies = self.server.fake.world.answers(comment["name"])
        inner = _listing([_more(replies)]) if replies else ""
        return {"kind": "t1", "data": {**comment, "replies": inner}}

    def _more_comments(self, path, values):  # noqa: ARG002
        world = self.server.fake.world
        asked = values["children"].split(",")
        assert len(asked) <= 100
        assert values["limit_children"] == "true", "replies are no stories"
        things = [self._comment(world.comments[name]) for name in asked if name in world.comments]
        # A reply comes as a thing of its own.
        things += [_more(replies) for name in asked if (replies := world.answers(f"t1_{name}"))]
        return 200, {"json": {"errors": [], "data": {"things": things}}}

    def _info(self, path, values):  # noqa: ARG002
        world = self.server.fake.world
        names = values["id"].split(",")
        assert len(names) <= 100
        children = []
        for name in names:
            kind, bare = name.split("_")
            if kind == "t1" and bare in world.comments:
                children.append({"kind": "t1", "data": world.comments[bare]})
            elif kind == "t3" and bare in world.posts:
                children.append(self._post(world.posts[bare]))
        return 200, _listing(children)


def _listing(children):
    return {"kind": "Listing", "data": {"children": children, "after": None, "before": None}}


def _more(hidden):
    names = [item["id"] for item in hidden]
    data = {"count": len(names), "parent_id": hidden[0]["parent_id"], "children": names}
    return {"kind": "more", "data": {**data, "id": names[0], "name": f"t1_{names[0]}"}}


def _kind(path):
    for part, kind in (
        ("/api/v1/access_token", "token"),
        ("/api/info", "info"),
        ("/api/morechildren", "more comments"),
        ("/comments/", "comments"),
        ("/search", "search"),
    ):
        if part in path:
            return kind
    return "listing"
