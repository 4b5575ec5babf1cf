"""A small Reddit on loopback, for the real PRAW client, with faults drawn from a seed.

In a test:

    with FakeReddit(make_world(seed=1), faults=drawn_faults(seed=7, share=0.2)) as reddit:
        environment = reddit.environment(tmp_path)
        ...
    assert reddit.answered["comments"] == 12

PRAW is pointed at it by a praw.ini in the user's configuration folder, the way any other Reddit
would be named.
"""

import base64
import html
import json
import os
import random
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from email.utils import formatdate
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
WORDS = (
    *("amber", "bridge", "candle", "dragon", "ember", "forest", "glass", "harbour", "island"),
    *("junction", "keeper", "letter", "mirror", "north", "ocean", "paper", "quiet", "river"),
    *("stone", "tower", "under", "velvet", "window", "yonder", "été", "don't", "half-light"),
)  # fmt: skip


def base36(number):
    digits = ""
    while number:
        number, rest = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[rest] + digits
    return digits or "0"


@dataclass
class World:
    """Posts and comments by id, as the API's JSON.

    Attributes:
        posts: posts by id.
        comments: comments by id; replies too.
        refused: reason by post id, for posts that are not for everyone.
    """

    posts: dict[str, dict[str, Any]] = field(default_factory=dict)
    comments: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def add_post(self, title, **facts):
        name = base36(50_000_000 + len(self.posts))
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
            "selftext": "",
            **facts,
        }
        return name

    def add_comment(self, post, body, parent=None, **facts):
        name = base36(1_000_000_000 + len(self.comments))
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

    def top_level(self, post):
        return [one for one in self.comments.values() if one["parent_id"] == f"t3_{post}"]

    def replies(self, comment):
        return [one for one in self.comments.values() if one["parent_id"] == f"t1_{comment}"]


def make_text(source, words):
    return " ".join(source.choices([*WORDS, "a & b", "<i>", "x &gt; y", "* * *\n\n"], k=words))


def make_world(seed, posts=12, comments=9):
    """Prompt posts with comments of every kind, and three posts that are no prompts to collect."""
    source = random.Random(seed)
    world = World()
    for number in range(posts):
        post = world.add_post(f"[WP] The {make_text(source, 6)} of number {number} & more")
        for place in range(source.randrange(comments // 2, comments * 3 // 2)):
            comment = world.add_comment(post, make_text(source, source.randrange(20, 60)))
            chance = source.random()
            if chance < 0.1:
                world.delete(comment)
            elif chance < 0.2:
                world.remove(comment)
            elif chance < 0.3:
                world.edit(comment, NOW - 86_400)
            elif place % 3 == 0:
                reply = world.add_comment(post, "A reply, which is no story.", parent=comment)
                world.add_comment(post, "A reply to the reply.", parent=reply)
    world.add_post("[PI] An answer of number one that is the post itself")
    world.add_post("[WP] The removed one of number two", removed_by_category="moderator")
    world.add_post("[WP] The one of number three that nobody answered")
    return world


def make_published(seed, posts, third_pairs):
    """A world of prompt posts with three comments each, and pairs of them as published by id.

    Each post gives two pairs that share a comment, and the first `third_pairs` posts one more. In
    every pair the chosen comment has more votes and was posted later.
    """
    source = random.Random(seed)
    world, pairs = World(), []
    for number in range(posts):
        post = world.add_post(f"[WP] The {make_text(source, 5)} of number {number}")
        start = world.posts[post]["created_utc"]
        low, middle, high = (
            world.add_comment(
                post,
                make_text(source, source.randrange(15, 40)),
                score=10 * place + source.randrange(5),
                created_utc=start + 100.0 * place,
            )
            for place in (1, 2, 3)
        )
        chosen = [(high, low), (middle, low)] + [(high, middle)] * (number < third_pairs)
        pairs += [
            {
                "chosen_comment_id": one,
                "rejected_comment_id": other,
                "chosen_upvotes": world.comments[one]["score"],
                "rejected_upvotes": world.comments[other]["score"],
            }
            for one, other in chosen
        ]
    return world, pairs


def drawn_faults(seed, share=0.2, kinds=FAULTS):
    """Draw a fault, or none, for each request by its number."""

    def draw(number, _kind):
        source = random.Random(f"{seed}:{number}")
        return source.choice(kinds) if source.random() < share else None

    return draw


class Killer:
    """Kills a process at some requests, drawn from a seed, before or after their answers.

    Attributes:
        process: the one to kill next.
        killed: how many were.
    """

    def __init__(self, seed, kills, requests):
        """Draw the requests out of the first ones that an undisturbed run needs."""
        source = random.Random(seed)
        numbers = sorted(source.sample(range(2, requests - 4), kills))
        moments = [source.choice(("before", "after")) for _ in numbers]
        self._due = list(zip(numbers, moments, strict=True))
        self._source = source
        self._lock = threading.Lock()
        self._dead = set()
        self.process = None

    @property
    def killed(self):
        return len(self._dead)

    def __call__(self, number, moment):
        if moment == "after":
            # Somewhere between taking the answer and having it on the disk.
            time.sleep(self._source.random() * 0.02)
        with self._lock:
            # Two that are due at once are two processes' kills.
            process = self.process
            if not self._due or process is None or process.pid in self._dead:
                return
            if number >= self._due[0][0] and moment == self._due[0][1]:
                self._due.pop(0)
                self._dead.add(process.pid)
                process.kill()


class FakeReddit(Loopback):
    """The server; a context manager.

    Attributes:
        answered: good answers by kind of request: token, search, listing, comments, more
            comments, info.
        faults: faulty answers by their kind.
        violations: what a client did that Reddit forbids.
        replies_sent: comments that are no stories and were sent all the same.
        paths: what was asked for, in order; of a POST with its body.
    """

    def __init__(
        self,
        world,
        *,
        faults=lambda _number, _kind: None,
        on_request=lambda _number, _moment: None,
        page=500,
        hang_seconds=1.0,
        now=NOW,
        retry_after="0",
    ):
        """A server that is not started yet.

        Args:
            world: what it serves.
            faults: fault of a request, by its number (from 1) and kind; None for a good answer.
            on_request: called with a request's number before and after its answer.
            page: top-level comments it shows before "more comments".
            hang_seconds: how long a hang lasts.
            now: its clock, which stands still.
            retry_after: the header of "429 later".
        """
        self.world = world
        self.draw = faults
        self.on_request = on_request
        self.page = page
        self.hang_seconds = hang_seconds
        self.now = now
        self.retry_after = retry_after
        self.answered = Counter()
        self.faults = Counter()
        self.violations = Counter()
        self.replies_sent = 0
        self.paths = []
        self.tokens = set()
        super().__init__(_Handler)

    def take_over(self, patch, folder, **more):
        """Bring the clients of this process here."""
        for name, value in self.environment(folder, **more).items():
            patch.setenv(name, value)
        # PRAW reads its files once in a process.
        patch.setattr("praw.config.Config.CONFIG", None)
        patch.setattr("litbench.sources.reddit._BACKOFF_SECONDS", 0.001)

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


def _listing(children, after=None):
    return {"kind": "Listing", "data": {"children": children, "after": after, "before": None}}


class _Handler(Handler):
    def date_time_string(self, timestamp=None):  # noqa: ARG002
        return formatdate(self.server.fake.now, usegmt=True)

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
        reddit.on_request(number, "before")
        fault = reddit.draw(number, kind)
        if fault is None:
            status, content, headers = self._answer(method, kind, parts.path, values)
            if values.get("raw_json") != "1":
                content = _escape(content)
            with reddit.lock:
                reddit.answered[kind if status == 200 else str(status)] += 1
            self._send(status, json.dumps(content).encode(), headers)
        else:
            with reddit.lock:
                reddit.faults[fault] += 1
            self._fail(fault, method, kind, parts.path, values)
        reddit.on_request(number, "after")

    def _send(self, status, data, headers, missing_bytes=0):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        for name, value in (("remaining", "999.0"), ("used", "1"), ("reset", "300")):
            self.send_header(f"x-ratelimit-{name}", value)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(data) + missing_bytes))
        if self.close_connection:
            # Unsaid, the client might send its next request into the closing connection.
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def _fail(self, fault, method, kind, path, values):
        reddit = self.server.fake
        error = json.dumps({"message": "faulty", "error": 0}).encode()
        if fault == "429 later":
            self._send(429, error, {"Retry-After": reddit.retry_after})
        elif fault.isdigit():
            self._send(int(fault), b"<html>Our servers are busy.</html>", {})
        elif fault == "page":
            self._send(200, b"<html>whoa there</html>", {})
        elif fault == "expired":
            reddit.tokens.clear()
            said = {"www-authenticate": 'Bearer realm="reddit", error="invalid_token"'}
            self._send(401, error, said)
        elif fault == "cut":
            content = json.dumps(self._answer(method, kind, path, values)[1]).encode()
            self.close_connection = True
            self._send(200, content[: len(content) // 2], {}, len(content))
        elif fault == "hang":
            reddit.closing.wait(reddit.hang_seconds)
            self.close_connection = True
        else:
            assert fault == "reset", fault
            self.reset()

    # What is answered -------------------------------------------------------------------------

    def _answer(self, method, kind, path, values):
        reddit = self.server.fake
        if kind == "token":
            given = self.headers.get("authorization", "").removeprefix("Basic ")
            if base64.b64decode(given).decode() != f"{CLIENT_ID}:{CLIENT_SECRET}":
                return 401, {"message": "Unauthorized", "error": 401}, {}
            if method != "POST" or values.get("grant_type") != "client_credentials":
                reddit.violations["not the read-only way to a token"] += 1
            token = f"token-{reddit.requests}"
            reddit.tokens.add(token)
            made = {"access_token": token, "token_type": "bearer", "expires_in": 86_400}
            return 200, {**made, "scope": "*"}, {}
        if self.headers.get("authorization", "").removeprefix("bearer ") not in reddit.tokens:
            said = {"www-authenticate": 'Bearer realm="reddit", error="invalid_token"'}
            return 401, {"message": "Unauthorized", "error": 401}, said
        status, content = getattr(self, f"_{kind.replace(' ', '_')}")(path, values)
        return status, content, {}

    def _search(self, path, values):
        wanted = set(values["q"].split())
        found = [
            post for post in self.server.fake.world.posts.values()
            if wanted <= set(re.findall(r"[\w'’]+", post["title"].lower()))
        ]  # fmt: skip
        if values.get("restrict_sr") != "True":
            self.server.fake.violations["search of all Reddit"] += 1
        return self._page(path, found, values)

    def _listing(self, path, values):
        return self._page(path, list(self.server.fake.world.posts.values()), values)

    def _page(self, path, posts, values):
        if not path.startswith("/r/WritingPrompts/"):
            return 404, {"message": "Not Found", "error": 404, "reason": "banned"}
        start = 0
        if "after" in values:
            start = 1 + next(k for k, post in enumerate(posts) if post["name"] == values["after"])
        end = start + min(100, int(values.get("limit", 25)))
        children = [{"kind": "t3", "data": self._post(post)} for post in posts[start:end]]
        after = posts[end - 1]["name"] if end < len(posts) else None
        return 200, _listing(children, after)

    def _post(self, post):
        world = self.server.fake.world
        number = sum(one["link_id"] == post["name"] for one in world.comments.values())
        return {**post, "num_comments": number}

    def _comments(self, path, values):
        reddit = self.server.fake
        name = path.strip("/").split("/")[1]
        if name in reddit.world.refused:
            reason = reddit.world.refused[name]
            return 403, {"message": "Forbidden", "error": 403, "reason": reason}
        if name not in reddit.world.posts:
            return 404, {"message": "Not Found", "error": 404}
        comments = reddit.world.top_level(name)
        shown = comments[: min(reddit.page, int(values.get("limit", 200)))]
        children = [self._tree(one, int(values.get("depth", 10))) for one in shown]
        hidden = [one["id"] for one in comments[len(shown) :]]
        if hidden:
            children.append(_more(f"t3_{name}", hidden))
        post = {"kind": "t3", "data": self._post(reddit.world.posts[name])}
        return 200, [_listing([post]), _listing(children)]

    def _tree(self, comment, depth):
        replies = self.server.fake.world.replies(comment["id"])
        inner = ""
        if replies and depth > 1:
            self.server.fake.replies_sent += len(replies)
            inner = _listing([self._tree(one, depth - 1) for one in replies])
        elif replies:
            inner = _listing([_more(comment["name"], [one["id"] for one in replies])])
        return {"kind": "t1", "data": {**comment, "replies": inner}}

    def _more_comments(self, path, values):  # noqa: ARG002
        reddit = self.server.fake
        asked = values["children"].split(",")
        world = reddit.world
        things = []
        for name in asked[:100]:
            if name not in world.comments:
                continue
            things.append({"kind": "t1", "data": {**world.comments[name], "replies": ""}})
            replies = world.replies(name)
            if replies and values.get("limit_children") != "true":
                reddit.replies_sent += len(replies)
                things += [{"kind": "t1", "data": {**one, "replies": ""}} for one in replies]
            elif replies:
                things.append(_more(f"t1_{name}", [one["id"] for one in replies]))
        if len(asked) > 100:
            reddit.violations["more than 100 children"] += 1
            things.append(_more(values["link_id"], asked[100:]))
        return 200, {"json": {"errors": [], "data": {"things": things}}}

    def _info(self, path, values):  # noqa: ARG002
        reddit = self.server.fake
        names = values["id"].split(",")
        if len(names) > 100:
            reddit.violations["more than 100 names"] += 1
        children = []
        for name in names[:100]:
            kind, bare = name.split("_")
            if kind == "t1" and bare in reddit.world.comments:
                children.append({"kind": "t1", "data": reddit.world.comments[bare]})
            elif kind == "t3" and bare in reddit.world.posts:
                children.append({"kind": "t3", "data": self._post(reddit.world.posts[bare])})
        return 200, _listing(children)


def _more(parent, children):
    data = {"count": len(children), "parent_id": parent, "children": children, "id": children[0]}
    return {"kind": "more", "data": {**data, "name": f"t1_{children[0]}", "depth": 0}}


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


def _escape(content):
    """What Reddit does to texts when it is not asked for raw JSON."""
    if isinstance(content, str):
        return html.escape(content, quote=False)
    if isinstance(content, list):
        return [_escape(one) for one in content]
    if isinstance(content, dict):
        return {name: _escape(one) for name, one in content.items()}
    return content
