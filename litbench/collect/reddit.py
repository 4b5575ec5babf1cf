"""Read Reddit through PRAW: searches, listings, posts with top-level comments, and things by id.

PRAW authenticates and obeys the rate limit; urllib3's `Retry` retries failed requests. Answers are
read as JSON, because PRAW's objects send another request for every missing field.
"""

import configparser
import contextlib
import functools
import importlib.metadata
import os
import re
import string
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from litbench.data.curation.moderation import GONE
from litbench.data.sources.posts import THING_ID, fullname
from litbench.runs.errors import ConfigError, LitBenchError, MissingExtraError

# Most things by id, and most comments of a post, that Reddit returns per request.
BATCH = 100
_MAX_COMMENTS = 500
# Per request. Pauses double up to ten minutes, the window of Reddit's rate limit.
_MAX_RETRIES = 10
# Where there is no connection; prawcore repeats these twice.
_MAX_CONNECTS = 3
_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 600
_RETRIED = (408, 429, 500, 502, 503, 504, 520, 522)

# ASCII as in the SQL filters.
_GONE = re.compile(GONE, re.ASCII)

TimeFilter = Literal["hour", "day", "week", "month", "year", "all"]
State = Literal["present", "deleted", "removed"]


class RedditError(LitBenchError):
    """Reddit returned no usable answer."""


class RefusedError(RedditError):
    """A post or subreddit does not exist or is not public.

    Attributes:
        reason: such as "not found" or "private".
    """

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"Reddit refuses {what} ({reason}): check the name, or leave it out")
        self.reason = reason


def text_state(text: str) -> State:
    """Return whether a text or title is present, deleted by its author, or removed.

    The rule is that of `drop_deleted` in make_pairs.py. Empty texts count as removed.
    """
    # SQL engines trim only these characters; str.strip() removes more.
    bare = text.strip(string.whitespace)
    notice = _GONE.fullmatch(bare)
    if notice is None:
        return "present" if bare else "removed"
    return "deleted" if notice[1].lower() == "deleted" else "removed"


def post_id(value: str) -> str:
    """Return the id of a post, in base 36, from an id, a full name or a URL."""
    text = value.strip()
    url = re.search(r"/(?:comments|gallery)/([0-9A-Za-z]+)|redd\.it/([0-9A-Za-z]+)/?$", text)
    bare = (url[1] or url[2]) if url else text
    bare = bare.lower().removeprefix("t3_")
    if not re.fullmatch(THING_ID, bare):
        raise ConfigError(
            f"{value!r:.80} is not a Reddit post: give an id such as 1abcde, or a URL"
        )
    return bare


def search_query(prompt: str) -> str:
    """Return search words for the posts of a prompt, without its tag and search operators."""
    # AND, OR and NOT are operators only in upper case.
    bare = re.sub(r"^[\s*_#>]*\[[^\]]{1,12}\]", " ", prompt).lower()
    words = re.sub(r"[^\w'’]+", " ", bare).split()
    if not words:
        raise ConfigError(f"the prompt {prompt!r:.80} has no words to search for: remove it")
    query = " ".join(words)
    if len(query) > 512:
        # Reddit's limit.
        query = query[:513].rpartition(" ")[0] or query[:512]
    return query


class PostComments(NamedTuple):
    """The JSON of a post and of its top-level comments.

    `withheld` is the number of comments that Reddit listed under "more comments" but did not
    return.
    """

    post: dict[str, Any]
    comments: list[dict[str, Any]]
    withheld: int


class RedditClient:
    """Read-only client of Reddit; like PRAW, it is not thread-safe.

    It authenticates with the first request. PRAW reads the credentials from the environment
    (`praw_client_id`, `praw_client_secret`) or praw.ini. Methods that send requests raise
    `RedditError` if there is no usable answer and `ConfigError` if credentials are refused.
    """

    _session: Any = None

    @functools.cached_property
    def _reddit(self) -> Any:
        import praw  # noqa: PLC0415
        from requests import Session  # noqa: PLC0415
        from requests.adapters import HTTPAdapter  # noqa: PLC0415
        from urllib3.util import Retry  # noqa: PLC0415

        class StatedRetry(Retry):
            """Says on stderr that a request is repeated, and why."""

            def increment(self, *request: Any, **reasons: Any) -> Any:
                following = super().increment(*request, **reasons)
                response, error = reasons.get("response"), reasons.get("error")
                # The cause is after the last colon of the message.
                cause = str(error).rpartition(": ")[-1]
                reason = f"status {response.status}" if response else cause
                print(f"no answer from Reddit ({reason}): trying again", file=sys.stderr)
                return following

        retry = StatedRetry(
            _MAX_RETRIES,
            connect=_MAX_CONNECTS,
            status_forcelist=_RETRIED,
            # POST too: signing in and "more comments" change nothing.
            allowed_methods=None,
            backoff_factor=_BACKOFF_SECONDS,
            backoff_max=_LONGEST_BACKOFF_SECONDS,
        )
        self._session = Session()
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retry))
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
            # Do not chain the error, whose message may quote a secret.
            raise ConfigError(
                f"praw.ini cannot be used ({type(error).__name__}): check its lines, and that it "
                "has the section that praw_site names"
            ) from None
        reddit.read_only = True
        return reddit

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def find(self, subreddit: str, method: str, **settings: Any) -> list[dict[str, Any]]:
        """Return the attributes of the posts of a search or a listing.

        `method` is a method of PRAW's subreddit: search, top, controversial, new, hot or rising.
        """
        with _explained(f"r/{subreddit}/{method}"):
            return list(map(vars, getattr(self._reddit.subreddit(subreddit), method)(**settings)))

    def post_with_comments(self, post: str) -> PostComments:
        """Return a post and all its top-level comments, without replies.

        The first request returns up to 500 comments, each further one up to 100. PRAW's
        `replace_more` would also read the replies, with many more requests.

        Raises:
            RefusedError: the post does not exist or is not public.
        """
        name = fullname("t3", post)
        comments: dict[str, dict[str, Any]] = {}
        hidden: dict[str, None] = {}
        asked: set[str] = set()
        with _explained(f"post {post}"):
            params = {"limit": _MAX_COMMENTS, "depth": 1, "sort": "top"}
            answer = self._reddit.request(method="GET", path=f"comments/{post}/", params=params)
            facts = dict(answer[0]["data"]["children"][0]["data"])
            things = answer[1]["data"]["children"]
            while True:
                for thing in things:
                    data = thing["data"]
                    if data.get("parent_id") != name:
                        continue
                    if thing["kind"] == "t1":
                        comments.setdefault(data["id"], data)
                    elif thing["kind"] == "more":
                        hidden |= dict.fromkeys(data["children"])
                ids = asked | comments.keys()
                batch = [comment for comment in hidden if comment not in ids][:BATCH]
                if not batch:
                    withheld = len(asked - comments.keys())
                    return PostComments(facts, list(comments.values()), withheld)
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
                        "the same command again"
                    )
                things = answer["data"]["things"]

    def info(self, fullnames: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the JSON of up to 100 posts and comments by full name; skips unknown names."""
        with _explained("api/info"):
            params = {"id": ",".join(fullnames)}
            answer = self._reddit.request(method="GET", path="api/info/", params=params)
            return {child["data"]["name"]: child["data"] for child in answer["data"]["children"]}


_CREDENTIALS = (
    "Reddit refuses the credentials ({}): check praw_client_id and praw_client_secret, and that "
    "the application's type is script"
)
_REASONS = {403: "forbidden", 404: "not found", 451: "withheld for legal reasons"}


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn errors of PRAW and of unexpected answers into one-line LitBench errors."""
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
        reason = getattr(error, "original_exception", error)
        raise RedditError(
            f"Reddit gave no usable answer to {what} ({reason}): run the same command again"
        ) from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if error.args == (401,):
            # prawcore 4.0 has no exception class for a 401 without a reason.
            raise ConfigError(_CREDENTIALS.format(401)) from error
        raise RedditError(
            f"Reddit's answer to {what} has an unexpected format ({error!r:.80})"
        ) from error


def _response_error(what: str, response: Any) -> LitBenchError:
    status = response.status_code
    if status == 401:
        return ConfigError(_CREDENTIALS.format(status))
    with contextlib.suppress(ValueError, AttributeError):
        # A page that is not JSON means that the application or network is blocked.
        content = response.json()
        if status in _REASONS and "/api/v1/access_token" not in response.url:
            return RefusedError(what, str(content.get("reason") or _REASONS[status]))
    return RedditError(
        f"Reddit answered {what} with status {status} and no content: run the same command again"
    )
