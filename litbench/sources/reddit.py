"""Reddit through PRAW: searches, listings, posts with their top-level comments, things by id.

PRAW signs in and keeps to the rate limit; urllib3's `Retry` repeats failed requests. Answers are
read as the API's own JSON: PRAW's objects would send another request for every missing field.
"""

import configparser
import contextlib
import functools
import importlib.metadata
import os
import re
import string
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple

from litbench.curation.moderation import GONE
from litbench.errors import ConfigError, LitBenchError, MissingExtraError
from litbench.sources.posts import THING_ID, fullname

# The most that Reddit returns at once: things by id, and comments of a post.
BATCH = 100
_MOST_COMMENTS = 500
# Of one request. The pauses double up to ten minutes, Reddit's window for its rate limit.
_MOST_RETRIES = 10
_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 600
_RETRIED = (408, 429, 500, 502, 503, 504, 520, 522)

# ASCII, as in the SQL of the filters.
_GONE = re.compile(GONE, re.ASCII)

TimeFilter = Literal["hour", "day", "week", "month", "year", "all"]
State = Literal["present", "deleted", "removed"]


class RedditError(LitBenchError):
    """Reddit gives no usable answer."""


class RefusedError(RedditError):
    """A post or subreddit does not exist or is not public.

    Attributes:
        reason: in a few words, such as "not found" or "private".
    """

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"Reddit refuses {what} ({reason}): check the name, or leave it out")
        self.reason = reason


def text_state(text: str) -> State:
    """Whether a comment's text or a post's title is there, was deleted by its author or removed.

    By the same rule as `drop_deleted` of make_pairs.py. An empty text does not say who emptied it
    and counts as removed.
    """
    # The spaces that SQL engines trim; str.strip would take more.
    bare = text.strip(string.whitespace)
    found = _GONE.fullmatch(bare)
    if found is None:
        return "present" if bare else "removed"
    return "deleted" if found[1].lower() == "deleted" else "removed"


def post_id(value: str) -> str:
    """The id of a post, in base 36, from an id, a full name or an address."""
    text = value.strip()
    found = re.search(r"/(?:comments|gallery)/([0-9A-Za-z]+)|redd\.it/([0-9A-Za-z]+)/?$", text)
    bare = (found[1] or found[2]) if found else text
    bare = bare.lower().removeprefix("t3_")
    if not re.fullmatch(THING_ID, bare):
        raise ConfigError(
            f"{value!r:.80} is not a Reddit post: write an id such as 1abcde, or its address"
        )
    return bare


def search_query(prompt: str) -> str:
    """The words to search for to find a prompt's posts, without its tag and search operators."""
    # AND, OR and NOT are operators in upper case only.
    bare = re.sub(r"^[\s*_#>]*\[[^\]]{1,12}\]", " ", prompt).lower()
    words = re.sub(r"[^\w'’]+", " ", bare).split()
    if not words:
        raise ConfigError(f"the prompt {prompt!r:.80} has no words to search for: leave it out")
    query = " ".join(words)
    if len(query) > 512:
        # Reddit accepts no more.
        query = query[:513].rpartition(" ")[0] or query[:512]
    return query


class PostComments(NamedTuple):
    """A post with its top-level comments: their JSON, and when each was read.

    `withheld` counts the comments that Reddit announced under "more comments" and did not return.
    """

    post: dict[str, Any]
    comments: list[tuple[dict[str, Any], int]]
    withheld: int
    read_utc: int


class RedditClient:
    """One application's read-only access to Reddit; not thread-safe, as PRAW is not.

    Signs in with the first request. Credentials come from where PRAW looks for them: the
    environment (`praw_client_id`, `praw_client_secret`) or praw.ini. Methods that send requests
    raise `RedditError` when there is no usable answer and `ConfigError` for credentials.

    Attributes:
        requests: how many requests were sent; one that failed for good is not counted.
        retries: how many were repeated, by status or kind of error.
        read_utc: when the latest answer was made, by the server's clock.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.retries: Counter[str] = Counter()
        self.read_utc = 0
        self._session: Any = None

    @functools.cached_property
    def _reddit(self) -> Any:
        import praw  # noqa: PLC0415
        from requests import Session  # noqa: PLC0415
        from requests.adapters import HTTPAdapter  # noqa: PLC0415
        from urllib3.util import Retry  # noqa: PLC0415

        retry = Retry(
            _MOST_RETRIES,
            status_forcelist=_RETRIED,
            # POST too: signing in and "more comments" change nothing.
            allowed_methods=None,
            backoff_factor=_BACKOFF_SECONDS,
            backoff_max=_LONGEST_BACKOFF_SECONDS,
        )
        self._session = Session()
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retry))
        self._session.hooks["response"].append(self._note)
        ours = f"python:litbench:v{importlib.metadata.version('litbench')}"
        try:
            reddit = praw.Reddit(
                user_agent=os.environ.get("praw_user_agent", ours),  # noqa: SIM112
                requestor_kwargs={"session": self._session},
                check_for_updates=False,
                check_for_async=False,
            )
        except praw.exceptions.MissingRequiredAttributeException as error:
            raise ConfigError(
                "Reddit's credentials are missing: export praw_client_id=... "
                "praw_client_secret=..., or write client_id and client_secret into "
                "~/.config/praw.ini; Reddit gives them to an application of type script "
                "(https://www.reddit.com/prefs/apps), once it has approved the use"
            ) from error
        except configparser.Error as error:
            # Without the message, which may quote a secret.
            raise ConfigError(
                f"praw.ini cannot be used ({type(error).__name__}): check its lines, and that it "
                "has the section that praw_site names"
            ) from None
        reddit.read_only = True
        return reddit

    def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            self._session.close()

    def find(self, subreddit: str, method: str, **settings: Any) -> list[dict[str, Any]]:
        """Attributes of the posts of a search or a listing.

        `method` is one of PRAW's subreddit: search, top, controversial, new, hot or rising.
        """
        with _explained(f"r/{subreddit}/{method}"):
            return list(map(vars, getattr(self._reddit.subreddit(subreddit), method)(**settings)))

    def post_with_comments(self, post: str) -> PostComments:
        """A post and all of its top-level comments, without the replies to them.

        One request brings up to 500 comments, and each hundred beyond them one more. PRAW's own
        `replace_more` would read the replies too, in many more requests. `RefusedError`: the post
        does not exist or is not public.
        """
        name = fullname("t3", post)
        found: dict[str, tuple[dict[str, Any], int]] = {}
        hidden: dict[str, None] = {}
        asked: set[str] = set()
        with _explained(f"post {post}"):
            params = {"limit": _MOST_COMMENTS, "depth": 1, "sort": "top"}
            answer = self._reddit.request(method="GET", path=f"comments/{post}/", params=params)
            read_utc = self.read_utc
            facts = dict(answer[0]["data"]["children"][0]["data"])
            things = answer[1]["data"]["children"]
            while True:
                for thing in things:
                    data = thing["data"]
                    if data.get("parent_id") != name:
                        continue
                    if thing["kind"] == "t1":
                        found.setdefault(data["id"], (data, self.read_utc))
                    elif thing["kind"] == "more":
                        hidden |= dict.fromkeys(data["children"])
                batch = [one for one in hidden if one not in asked and one not in found][:BATCH]
                if not batch:
                    withheld = len(asked - found.keys())
                    return PostComments(facts, list(found.values()), withheld, read_utc)
                asked.update(batch)
                more = {"children": ",".join(batch), "link_id": name, "sort": "top"}
                answer = self._reddit.request(
                    method="POST",
                    path="api/morechildren/",
                    data={**more, "depth": 1, "limit_children": "true"},
                )["json"]
                if answer["errors"]:
                    raise RedditError(
                        f"Reddit refuses more comments of {name} ({answer['errors']!r:.200}): run "
                        "the same command again to go on"
                    )
                things = answer["data"]["things"]

    def info(self, fullnames: Sequence[str]) -> dict[str, dict[str, Any]]:
        """JSON of up to 100 posts and comments by full name; unknown ones are left out."""
        with _explained("api/info"):
            params = {"id": ",".join(fullnames)}
            answer = self._reddit.request(method="GET", path="api/info/", params=params)
            return {child["data"]["name"]: child["data"] for child in answer["data"]["children"]}

    def traffic(self) -> dict[str, Any]:
        """The counts as JSON can hold them."""
        return {"requests": self.requests, "retries": dict(sorted(self.retries.items()))}

    def _note(self, response: Any, **_: Any) -> None:
        history = response.raw.retries.history
        self.requests += 1 + len(history)
        self.retries.update(str(one.status or type(one.error).__name__) for one in history)
        try:
            self.read_utc = int(parsedate_to_datetime(response.headers.get("date", "")).timestamp())
        except ValueError:
            self.read_utc = int(time.time())


_CREDENTIALS = (
    "Reddit refuses the credentials ({}): check praw_client_id and praw_client_secret, and that "
    "the application's type is script"
)
_REASONS = {403: "forbidden", 404: "not found", 451: "withheld for legal reasons"}


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn the errors of PRAW and of unexpected answers into errors of one line."""
    try:
        from praw.exceptions import RedditAPIException  # noqa: PLC0415
        from prawcore import exceptions  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("praw", "data") from error
    try:
        yield
    except exceptions.Redirect as error:
        # A subreddit that does not exist redirects to a search for its name.
        raise RefusedError(what, "not found") from error
    except exceptions.OAuthException as error:
        raise ConfigError(_CREDENTIALS.format(error.error)) from error
    except exceptions.ResponseException as error:
        raise _response_error(what, error.response) from error
    except (exceptions.RequestException, RedditAPIException) as error:
        said = getattr(error, "original_exception", error)
        raise RedditError(
            f"Reddit gave no usable answer to {what} ({said}): run the same command again to go on"
        ) from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if error.args == (401,):
            # prawcore 4.0 has no class for a 401 without a reason.
            raise ConfigError(_CREDENTIALS.format(401)) from error
        raise RedditError(
            f"Reddit's answer to {what} has an unknown form ({error!r:.80})"
        ) from error


def _response_error(what: str, response: Any) -> LitBenchError:
    status = response.status_code
    if status == 401:
        return ConfigError(_CREDENTIALS.format(status))
    with contextlib.suppress(ValueError, AttributeError):
        # A page in place of JSON is not about this post: the application or network is blocked.
        content = response.json()
        if status in _REASONS and "/api/v1/access_token" not in response.url:
            return RefusedError(what, str(content.get("reason") or _REASONS[status]))
    return RedditError(
        f"Reddit answers {what} with status {status} and nothing usable: run the same command again"
    )
