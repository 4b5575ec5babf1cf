"""Reddit through PRAW: searches, listings, posts with their top-level comments, things by id.

PRAW signs in, keeps to the rate-limit headers and speaks the API. What it does not do for long
runs is done here: faulty answers are asked for again after growing pauses, every request is
counted, and what was read is kept in parts, so that a killed run goes on where it was.

Answers are taken as the API's own JSON (`praw.Reddit.request`), not as PRAW's objects, for which
a missing field is a reason to send another request without a word.
"""

import configparser
import importlib.metadata
import json
import os
import random
import re
import string
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from litbench.artifact import fingerprint, write_atomically
from litbench.curation.gone import GONE
from litbench.errors import ConfigError, LitBenchError, MissingExtraError
from litbench.sources.posts import THING_ID, fullname, salt_name

# The most that Reddit hands out at once: things by id or of a listing, and comments of a post.
BATCH = 100
_MOST_COMMENTS = 500

# ASCII, as to the engines of tables.
_GONE = re.compile(GONE, re.ASCII)
# To be counted up when parts come to hold something else: older ones then count as absent.
_FORM_OF_PARTS = 2

CommentSort = Literal["confidence", "top", "new", "old", "controversial", "qa"]
PostSort = Literal["relevance", "hot", "top", "new", "comments"]
TimeFilter = Literal["hour", "day", "week", "month", "year", "all"]
State = Literal["present", "deleted", "removed"]

_KINDS = (
    ("/api/v1/access_token", "token"),
    ("/api/info", "info"),
    ("/api/morechildren", "more comments"),
    ("/comments/", "comments"),
    ("/search", "search"),
)
# Of an account, Reddit lets one request at a time ask for "more comments".
_MORE_COMMENTS = threading.Lock()

Item = TypeVar("Item")
Result = TypeVar("Result")


class RedditError(LitBenchError):
    """Reddit gives no usable answer."""


class RefusedError(RedditError):
    """Reddit says that a post or subreddit is not there, or not for everyone.

    Attributes:
        reason: in a few words, such as "not found" or "private".
    """

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"Reddit refuses {what} ({reason}): check the name, or leave it out")
        self.reason = reason


@dataclass(frozen=True)
class Patience:
    """How long to wait for answers and between tries.

    The pause after the n-th faulty answer is drawn between half and all of
    `first_wait_seconds * 2**(n - 1)`, or is what Reddit asks for.

    Attributes:
        timeout_seconds: give a request up when nothing arrives for so long.
        first_wait_seconds: the pause after the first faulty answer.
        longest_wait_seconds: no pause is longer; when Reddit asks for a longer one, the run ends
            and says so.
        max_tries: how often one request is sent before the run ends with an error.
    """

    timeout_seconds: float = 30
    first_wait_seconds: float = 1
    longest_wait_seconds: float = 900
    max_tries: int = 8

    def __post_init__(self) -> None:
        if self.timeout_seconds <= 0 or self.first_wait_seconds < 0 or self.max_tries < 1:
            raise ConfigError(
                "patience: timeout_seconds must be above 0, first_wait_seconds at least 0 and "
                f"max_tries at least 1, not {self}: mend the config"
            )


@dataclass
class Traffic:
    """What went over the wire.

    Attributes:
        answered: usable answers by kind: token, search, listing, comments, more comments, info.
        faults: faulty answers by cause; each was followed by a pause and another try.
        waited_seconds: length of these pauses. The pauses by which PRAW keeps to the rate limit
            are not in it.
    """

    answered: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    waited_seconds: float = 0.0

    def plain(self) -> dict[str, Any]:
        """The counts as JSON can hold them."""
        return {
            "requests": self.answered.total() + self.faults.total(),
            "answered": dict(sorted(self.answered.items())),
            "faults": dict(sorted(self.faults.items())),
            "waited_seconds": round(self.waited_seconds, 1),
        }


def text_state(text: str) -> State:
    """Whether a comment's text or a post's title is there, was deleted by its author or removed.

    By the same rule as `drop_deleted` of make_pairs.py. An empty text does not say who emptied it
    and counts as removed.
    """
    # The spaces that engines trim; str.strip would take more.
    bare = text.strip(string.whitespace)
    found = _GONE.fullmatch(bare)
    if found is None:
        return "present" if bare else "removed"
    return "deleted" if found[1].lower() == "deleted" else "removed"


def post_id(value: str) -> str:
    """The id of a post, in base 36, from an id, a full name or an address.

    Raises:
        ConfigError: it is none of them.
    """
    text = value.strip()
    found = re.search(r"/(?:comments|gallery)/([0-9A-Za-z]+)|redd\.it/([0-9A-Za-z]+)/?$", text)
    bare = (found[1] or found[2]) if found else text
    bare = bare.lower().removeprefix("t3_")
    if not re.fullmatch(THING_ID, bare):
        raise ConfigError(
            f"{value!r:.80} is no post of Reddit's: write an id such as 1abcde, or the address of "
            "a post"
        )
    return bare


def search_query(prompt: str) -> str:
    """What to search for to find a prompt's posts: its words, without tag and operators.

    Raises:
        ConfigError: the prompt has no word.
    """
    # In upper case AND, OR and NOT are operators, and a colon makes a field of what is before it.
    bare = re.sub(r"^[\s*_#>]*\[[^\]]{1,12}\]", " ", prompt)
    words = re.sub(r"[^\w'’]+", " ", bare.lower()).split()
    if not words:
        raise ConfigError(f"the prompt {prompt!r:.80} has no words to search for: leave it out")
    query = ""
    for word in words:
        # Reddit takes 512 characters.
        if len(query) + 1 + len(word) > 512:
            break
        query = f"{query} {word}".strip()
    return query or words[0][:512]


# One client ------------------------------------------------------------------------------------


class _PatientRequestor:
    """A prawcore requestor that asks again after faulty answers, counts, and notes the time.

    It stands below prawcore's own retries (two, which 429 ends), so those have nothing to do but
    renew a token.
    """

    def __init__(
        self, requestor: Any, patience: Patience, traffic: Traffic, stop: threading.Event
    ) -> None:
        self._requestor = requestor
        self._patience = patience
        self._traffic = traffic
        self._stop = stop
        self.oauth_url: str = requestor.oauth_url
        self.reddit_url: str = requestor.reddit_url
        self.read_utc = 0

    def close(self) -> None:
        self._requestor.close()

    def request(self, method: str, url: str, **arguments: Any) -> Any:
        """Send a request until the answer is usable.

        Raises:
            RedditError: no usable answer in `max_tries`, or Reddit asks for too long a pause.
        """
        from prawcore.exceptions import RequestException  # noqa: PLC0415

        path = urlsplit(url).path
        kind = next((kind for part, kind in _KINDS if part in path), "listing")
        # prawcore passes its own default on and praw does not pass its setting.
        arguments["timeout"] = self._patience.timeout_seconds
        for attempt in range(1, self._patience.max_tries + 1):
            asked = None
            try:
                answer = self._requestor.request(method, url, **arguments)
            except RequestException as error:
                cause = _broken_connection(error.original_exception)
                if cause is None:
                    raise RedditError(
                        f"{method.upper()} {path} cannot be sent ({error.original_exception}): "
                        "check reddit_url and oauth_url in praw.ini"
                    ) from error
            else:
                fault = _faulty_answer(answer)
                if fault is None:
                    self._traffic.answered[kind] += 1
                    self.read_utc = _read_utc(answer.headers)
                    return answer
                cause = fault
                if answer.status_code == 401:
                    # An expired token, of which prawcore gets a new one before it sends the
                    # request again; or else wrong credentials, for good.
                    self._traffic.faults[cause] += 1
                    return answer
                asked = _asked_pause(answer)
            self._traffic.faults[cause] += 1
            if attempt < self._patience.max_tries:
                self._wait(attempt, asked, path)
        raise RedditError(
            f"Reddit gave no usable answer to {method.upper()} {path} in {attempt} tries, the last "
            f"time: {cause}; see whether Reddit is up and run the same command again to go on"
        )

    def _wait(self, attempt: int, asked: float | None, path: str) -> None:
        longest = self._patience.longest_wait_seconds
        first = self._patience.first_wait_seconds
        if asked is None:
            pause = min(longest, first * 2 ** (attempt - 1)) * random.uniform(0.5, 1)
        elif asked > longest:
            raise RedditError(
                f"Reddit asks for a pause of {asked:.0f} s before {path}, longer than patience."
                f"longest_wait_seconds ({longest:g}): run the same command again after that time"
            )
        else:
            # Of several clients told the same time, not all come back at once.
            pause = asked + first * random.random()
        started = time.monotonic()
        stopped = self._stop.wait(pause)
        self._traffic.waited_seconds += time.monotonic() - started
        if stopped:
            raise RedditError("stopped, since another thread failed")


def _broken_connection(error: Exception) -> str | None:
    import requests  # noqa: PLC0415

    if isinstance(error, requests.Timeout):
        return "timeout"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "answer cut off"
    if isinstance(error, requests.ConnectionError):
        # A body that stops arriving is reported as a lost connection.
        return "timeout" if "timed out" in str(error) else "connection lost"
    return None


def _faulty_answer(answer: Any) -> str | None:
    status = answer.status_code
    if status in (401, 408, 429) or status >= 500:
        return str(status)
    if status != 200:
        return None
    try:
        content = answer.json()
    except ValueError:
        return "not JSON"
    errors = content.get("json", {}).get("errors", []) if isinstance(content, dict) else []
    return "429" if any(error[0] == "RATELIMIT" for error in errors) else None


def _asked_pause(answer: Any) -> float | None:
    asked = answer.headers.get("retry-after")
    if asked is None and answer.status_code == 429:
        remaining = _seconds(answer.headers.get("x-ratelimit-remaining", ""))
        if remaining is not None and remaining < 1:
            asked = answer.headers.get("x-ratelimit-reset")
    if asked is None:
        return None
    moment = _moment(asked)
    if moment is not None:
        return max(0.0, float(moment - _read_utc(answer.headers)))
    return _seconds(asked)


def _seconds(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _read_utc(headers: Mapping[str, str]) -> int:
    """When an answer was made, by the server's clock; by this machine's if it does not say."""
    moment = _moment(headers.get("date", ""))
    return int(time.time()) if moment is None else moment


def _moment(text: str) -> int | None:
    try:
        return int(parsedate_to_datetime(text).timestamp())
    except ValueError:
        return None


@dataclass
class PostComments:
    """A post with its top-level comments.

    Attributes:
        post: its JSON.
        comments: JSON and time of reading of each top-level comment.
        withheld: comments that Reddit announced under "more comments" and did not hand out.
        read_utc: when the post was read.
    """

    post: dict[str, Any]
    comments: list[tuple[dict[str, Any], int]]
    withheld: int
    read_utc: int


class RedditClient:
    """One application's read-only access to Reddit, for one thread: PRAW is not thread-safe.

    Credentials come from where PRAW looks for them: the environment (`praw_client_id`,
    `praw_client_secret`) or praw.ini; `praw_site` names a section of it. A user's name and
    password are not used, even where PRAW finds them.

    Attributes:
        traffic: what this client sent and got.
    """

    def __init__(
        self,
        user_agent: str | None = None,
        patience: Patience | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Sign in when the first request is sent.

        Args:
            user_agent: how the program names itself; null for PRAW's settings or else a default.
            patience: pauses and tries.
            stop: once set, pauses end with an error.

        Raises:
            ConfigError: credentials are missing; the message names what to set.
            MissingExtraError: praw is not installed.
        """
        try:
            import praw  # noqa: PLC0415
            import prawcore  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("praw", "data") from error
        self.traffic = Traffic()
        agent = _check_settings(user_agent)
        requestors: list[_PatientRequestor] = []

        def make(**settings: Any) -> _PatientRequestor:
            inner = prawcore.Requestor(**settings)
            requestors.append(
                _PatientRequestor(
                    inner, patience or Patience(), self.traffic, stop or threading.Event()
                )
            )
            return requestors[0]

        self._reddit = praw.Reddit(
            user_agent=agent,
            requestor_class=make,
            check_for_updates=False,
            check_for_async=False,
        )
        self._reddit.read_only = True
        self._requestor = requestors[0]

    @property
    def read_utc(self) -> int:
        """When the latest answer was made."""
        return self._requestor.read_utc

    def close(self) -> None:
        """Close the connections."""
        self._requestor.close()

    def search(
        self, subreddit: str, query: str, *, sort: PostSort, time_filter: TimeFilter, limit: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Posts that Reddit's search finds, and when the first of them were read.

        Raises:
            RefusedError: there is no such subreddit, or it is private.
            RedditError: no usable answer.
        """
        parameters = {"q": query, "restrict_sr": "True", "sort": sort, "t": time_filter}
        return self._posts(f"r/{subreddit}/search/", {**parameters, "syntax": "lucene"}, limit)

    def listing(
        self, subreddit: str, order: str, *, time_filter: TimeFilter, limit: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Posts of a listing (top, new, hot, controversial, rising), and when they were read.

        Raises:
            RefusedError: there is no such subreddit, or it is private.
            RedditError: no usable answer.
        """
        return self._posts(f"r/{subreddit}/{order}", {"t": time_filter}, limit)

    def post_with_comments(self, post: str, sort: CommentSort = "top") -> PostComments:
        """A post and all of its top-level comments, without the replies to them.

        One request brings up to 500 comments, and each hundred beyond them one more.

        Raises:
            RefusedError: the post is not there, or not for everyone.
            RedditError: no usable answer.
        """
        name = fullname("t3", post)
        path = f"comments/{post}/"
        answer, read_utc = self._ask(
            "GET", path, params={"limit": _MOST_COMMENTS, "depth": 1, "sort": sort}
        )
        try:
            facts = dict(answer[0]["data"]["children"][0]["data"])
            page = answer[1]["data"]["children"]
        except (KeyError, IndexError, TypeError) as error:
            raise _unexpected(path, answer) from error
        found: dict[str, tuple[dict[str, Any], int]] = {}
        waiting = self._take(page, name, read_utc, found, path)
        asked: set[str] = set()
        while waiting := [child for child in waiting if child not in asked | found.keys()]:
            batch, waiting = waiting[:BATCH], waiting[BATCH:]
            asked.update(batch)
            with _MORE_COMMENTS:
                answer, when = self._ask(
                    "POST",
                    "api/morechildren/",
                    data={
                        "children": ",".join(batch),
                        "depth": 1,
                        "limit_children": "true",
                        "link_id": name,
                        "sort": sort,
                    },
                )
            try:
                errors, things = answer["json"]["errors"], answer["json"]["data"]["things"]
            except (KeyError, TypeError) as error:
                raise _unexpected("api/morechildren/", answer) from error
            if errors:
                raise RedditError(f"Reddit refuses more comments of {name}: {errors!r:.200}")
            waiting += self._take(things, name, when, found, "api/morechildren/")
        return PostComments(facts, list(found.values()), len(asked - found.keys()), read_utc)

    def info(self, fullnames: Sequence[str]) -> tuple[dict[str, dict[str, Any]], int]:
        """Up to 100 posts and comments by full name; those not there are left out.

        Returns:
            JSON by full name, and when it was read.

        Raises:
            RedditError: no usable answer.
        """
        if not 0 < len(fullnames) <= BATCH:
            raise ValueError(f"{len(fullnames)} names, not 1 to {BATCH}")
        answer, read_utc = self._ask("GET", "api/info/", params={"id": ",".join(fullnames)})
        try:
            things = [dict(child["data"]) for child in answer["data"]["children"]]
            return {thing["name"]: thing for thing in things}, read_utc
        except (KeyError, TypeError) as error:
            raise _unexpected("api/info/", answer) from error

    def _take(
        self,
        things: Any,
        post: str,
        read_utc: int,
        found: dict[str, tuple[dict[str, Any], int]],
        path: str,
    ) -> list[str]:
        """Put the post's own comments into `found`; return the ids that are still hidden."""
        hidden: list[str] = []
        try:
            for thing in things:
                data = thing["data"]
                if data.get("parent_id") != post:
                    continue
                if thing["kind"] == "t1":
                    found.setdefault(data["id"], (data, read_utc))
                elif thing["kind"] == "more":
                    hidden += data["children"]
        except (KeyError, TypeError) as error:
            raise _unexpected(path, things) from error
        return list(dict.fromkeys(hidden))

    def _posts(
        self, path: str, parameters: Mapping[str, str], limit: int
    ) -> tuple[list[dict[str, Any]], int]:
        found: dict[str, dict[str, Any]] = {}
        after: str | None = None
        first_utc: int | None = None
        while True:
            page = {**parameters, "limit": min(BATCH, limit - len(found))}
            answer, read_utc = self._ask(
                "GET", path, params=page if after is None else {**page, "after": after}
            )
            first_utc = read_utc if first_utc is None else first_utc
            before = len(found)
            try:
                for child in answer["data"]["children"]:
                    if child["kind"] == "t3":
                        found.setdefault(child["data"]["id"], dict(child["data"]))
                after = answer["data"]["after"]
            except (KeyError, TypeError) as error:
                raise _unexpected(path, answer) from error
            # A page without anything new would come again for ever.
            if after is None or len(found) == before or len(found) >= limit:
                return list(found.values())[:limit], first_utc

    def _ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> tuple[Any, int]:
        import praw.exceptions  # noqa: PLC0415
        from prawcore import exceptions  # noqa: PLC0415

        try:
            answer = self._reddit.request(method=method, path=path, params=params, data=data)
        except exceptions.Redirect as error:
            # A subreddit that is not there leads to a search for its name.
            raise RefusedError(path, "not found") from error
        except exceptions.OAuthException as error:
            raise ConfigError(_REFUSED.format(error.error)) from error
        except exceptions.ResponseException as error:
            status = error.response.status_code
            if status == 401:
                raise ConfigError(_REFUSED.format(status)) from error
            reason = _reason(error.response)
            if reason is not None:
                raise RefusedError(path, reason) from error
            raise RedditError(
                f"Reddit answers {method} {path} with {status}: check that the application is "
                "allowed to use the API and that its user agent says who asks"
            ) from error
        except praw.exceptions.RedditAPIException as error:
            raise RedditError(
                f"Reddit refuses {method} {path} ({error}): mend the config"
            ) from error
        except KeyError as error:
            # prawcore 4.0 looks a 401 that does not say why up in a table that lacks it.
            if error.args != (401,):
                raise
            raise ConfigError(_REFUSED.format(401)) from error
        return answer, self.read_utc


_REFUSED = (
    "Reddit refuses the credentials ({}): check praw_client_id and praw_client_secret, and that "
    "the application's type is script"
)


def _check_settings(user_agent: str | None) -> str:
    """Look for the credentials where PRAW will; return the user agent."""
    from praw.config import Config  # noqa: PLC0415

    site = os.environ.get("praw_site") or "DEFAULT"  # noqa: SIM112
    try:
        settings = Config(site)
    except configparser.NoSectionError as error:
        raise ConfigError(
            f"praw_site is {site}, and praw.ini has no section [{site}]: correct one of them"
        ) from error
    except (configparser.Error, ValueError) as error:
        raise ConfigError(f"praw.ini cannot be read: {type(error).__name__}: mend it") from error
    absent = (Config.CONFIG_NOT_SET, None, "")
    missing = [n for n in ("client_id", "client_secret") if getattr(settings, n) in absent]
    if missing:
        export = " ".join(f"praw_{name}=..." for name in missing)
        raise ConfigError(
            f"Reddit's credentials are missing ({' and '.join(missing)}): export {export}, or "
            f"write {' and '.join(missing)} below [{site}] in ~/.config/praw.ini; Reddit gives "
            "them to an application of type script (https://www.reddit.com/prefs/apps), once it "
            "has approved the use"
        )
    if user_agent:
        return user_agent
    given = settings.user_agent
    version = importlib.metadata.version("litbench")
    return f"python:litbench:v{version}" if given in absent else str(given)


def _reason(response: Any) -> str | None:
    """Why Reddit refuses one post or subreddit; null when it refuses the client."""
    try:
        content = response.json()
    except ValueError:
        # A page for people: the network or the application is blocked, whatever it asks for.
        return None
    if response.status_code not in (403, 404, 451) or not isinstance(content, dict):
        return None
    if "/api/v1/access_token" in response.url:
        return None
    fallback = {403: "forbidden", 404: "not found", 451: "withheld for legal reasons"}
    reason = content.get("reason")
    return str(reason) if reason else fallback[response.status_code]


def _unexpected(path: str, answer: Any) -> RedditError:
    return RedditError(
        f"Reddit's answer to {path} has an unknown form ({answer!r:.80}): see whether a newer "
        "litbench knows it"
    )


# Several clients -------------------------------------------------------------------------------


class RedditClients:
    """One client per thread. All clients of an application share one rate limit."""

    def __init__(self, threads: int, user_agent: str | None, patience: Patience) -> None:
        """Check the credentials; nothing is sent yet.

        Raises:
            ConfigError: credentials are missing, or `threads` is below 1.
            MissingExtraError: praw is not installed.
        """
        if threads < 1:
            raise ConfigError(f"threads is {threads}: it must be at least 1")
        self._stop = threading.Event()
        self._settings = (user_agent, patience, self._stop)
        self._own = threading.local()
        self._lock = threading.Lock()
        self._own.client = RedditClient(*self._settings)
        self._all: list[RedditClient] = [self._own.client]
        # Kept between calls of `map`, so that each thread signs in once.
        self._executor = ThreadPoolExecutor(threads) if threads > 1 else None

    def map(
        self, work: Callable[[RedditClient, Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """Do `work(client, item)` for every item; yield results as they come.

        The first error ends it: work under way in other threads ends at its next pause.
        """
        if self._executor is None:
            for item in items:
                yield work(self._own.client, item)
            return
        try:
            futures = [self._executor.submit(self._with_client, work, item) for item in items]
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            self._stop.set()
            self._executor.shutdown(wait=True, cancel_futures=True)
            raise

    def traffic(self) -> Traffic:
        """The sum over all clients."""
        total = Traffic()
        for client in self._all:
            total.answered += client.traffic.answered
            total.faults += client.traffic.faults
            total.waited_seconds += client.traffic.waited_seconds
        return total

    def close(self) -> None:
        """End the threads and close all connections."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        for client in self._all:
            client.close()

    def _with_client(self, work: Callable[[RedditClient, Item], Result], item: Item) -> Result:
        if not hasattr(self._own, "client"):
            self._own.client = RedditClient(*self._settings)
            with self._lock:
                self._all.append(self._own.client)
        return work(self._own.client, item)


# What was read ---------------------------------------------------------------------------------


class Parts:
    """Answers that were read, one JSON file each, whole or not there.

    A part is absent when it depends on something else than asked for (such as another salt), is
    too old, or cannot be read: a power cut can leave a renamed file empty.

    Attributes:
        folder: where they lie.
    """

    def __init__(self, folder: Path, depends_on: Any, read_again_after_days: float | None) -> None:
        """Args are the folder, plain values, and the age from which on a part counts as absent."""
        self.folder = folder
        self._made_for = fingerprint(depends_on)
        self._oldest_utc = (
            None if read_again_after_days is None else time.time() - read_again_after_days * 86_400
        )
        # What this run has read is not old, whatever the server's clock says.
        self._new: set[str] = set()

    def get(self, name: str) -> dict[str, Any] | None:
        """Read a part, such as "posts/1abcde"; null when it is absent."""
        try:
            part = json.loads((self.folder / f"{name}.json").read_bytes())
            made_for, read_utc = part["made_for"], part["read_utc"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return None
        too_old = self._oldest_utc is not None and read_utc < self._oldest_utc
        if made_for != self._made_for or (too_old and name not in self._new):
            return None
        content: dict[str, Any] = part
        return content

    def put(self, name: str, read_utc: int, content: Mapping[str, Any]) -> None:
        """Keep a part.

        Raises:
            DataError: the disk is full or the folder cannot be written.
        """
        part = {"made_for": self._made_for, "read_utc": read_utc, **content}
        # Half surrogate pairs are no UTF-8, but come through JSON's escapes.
        text = json.dumps(part, ensure_ascii=True)
        write_atomically(
            self.folder / f"{name}.json", lambda path: path.write_text(text, encoding="ascii")
        )
        self._new.add(name)

    def names(self, kind: str) -> list[str]:
        """Names of the parts in a subfolder, sorted, absent ones too."""
        return sorted(f"{kind}/{path.stem}" for path in (self.folder / kind).glob("[!.]*.json"))

    def discard(self, name: str) -> None:
        """Remove a part."""
        (self.folder / f"{name}.json").unlink(missing_ok=True)

    def discard_absent(self) -> None:
        """Remove what counts as absent and so would lie there for nothing, old texts in it."""
        for path in self.folder.glob("*/[!.]*.json"):
            name = f"{path.parent.name}/{path.stem}"
            if self.get(name) is None:
                self.discard(name)

    def discard_leftovers(self) -> None:
        """Remove what a killed run was writing."""
        for path in self.folder.rglob(".part-*"):
            path.unlink(missing_ok=True)


def open_parts(out: Path, salt: str, read_again_after_days: float | None) -> Parts:
    """The parts of an output folder; those with another salt's authors count as absent."""
    depends_on = {"form": _FORM_OF_PARTS, "salt": salt_name(salt)}
    return Parts(out / "parts", depends_on, read_again_after_days)
