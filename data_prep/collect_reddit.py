"""Collect stories from Reddit: all top-level comments on prompts.

    litbench data collect_reddit --config configs/data/collect_reddit.yaml

Needs `praw_client_id` and `praw_client_secret` in the environment or in praw.ini. Reads the posts
that Reddit's search finds for each prompt, listings of a subreddit, and posts by id. Every search
and post is stored in `out/parts` as soon as it was read, so a killed run resumes, and a config with
more prompts only requests the new ones.

Writes into `out`: `stories.parquet`, `rejected.jsonl` (skipped posts and comments that could not be
used, with reasons) and `manifest.json`. Deleted and removed comments are kept as rows, so that
make_pairs.py counts them. Posts in `skip_posts` are deleted from `out`, except for their ids.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa

from litbench.collect.parts import fresh_parts
from litbench.collect.reddit import (
    RedditClient,
    RefusedError,
    TimeFilter,
    post_id,
    search_query,
    text_state,
)
from litbench.data.ingest import RejectedRows
from litbench.data.records import STORIES
from litbench.data.sources.posts import (
    PROMPT_TAGS,
    STORY_ROWS,
    fullname,
    is_settled,
    load_salt,
    prompt_tag,
    salt_name,
    story_row,
    text_of,
)
from litbench.data.tables import write_sorted_batches
from litbench.data.text import count_words, digest
from litbench.runs.config import run_program
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact
from litbench.runs.progress import ProgressBar

ORDERS = ("top", "controversial", "new", "hot", "rising")


@dataclass
class Config:
    """Configuration of `collect_reddit.py`.

    Attributes:
        out: output folder.
        subreddit: subreddit of searches and listings.
        prompts: texts to search for.
        prompts_file: text file with further ones, one a line, such as the prompts of Fan et al.
            (2018), which the paper searched for; empty lines are left out.
        posts: ids or URLs of posts.
        listings: listings such as top/year, controversial/all, new, hot, rising.
        skip_posts: ids or URLs of posts to leave out.
        limit: maximum posts per search, those with the most votes first.
        listing_limit: maximum posts per listing; Reddit returns at most about 1,000.
        prompt_tags: a post is a prompt if its title has one of these tags; null accepts every post.
        min_score_age_hours: scores read sooner after posting become null.
        read_again_after_days: searches and posts read longer ago are read again, which drops texts
            that were deleted since; null never reads again.
    """

    out: Path
    subreddit: str = "WritingPrompts"
    prompts: list[str] = field(default_factory=list)
    prompts_file: Path | None = None
    posts: list[str] = field(default_factory=list)
    listings: list[str] = field(default_factory=list)
    skip_posts: list[str] = field(default_factory=list)
    limit: int = 100
    listing_limit: int = 1_000
    prompt_tags: list[str] | None = field(default_factory=lambda: list(PROMPT_TAGS))
    min_score_age_hours: float = 0
    read_again_after_days: float | None = None


def find_searches(config: Config) -> dict[str, dict[str, Any]]:
    """Return the arguments of `RedditClient.find` for all searches and listings, by key."""
    prompts = [*config.prompts, *read_prompts(config.prompts_file)]
    searches: list[dict[str, Any]] = [
        {"method": "search", "query": search_query(prompt), "sort": "top", "limit": config.limit}
        for prompt in prompts
    ]
    for listing in config.listings:
        method, _, time = listing.partition("/")
        times = ("", *get_args(TimeFilter)) if method in ("top", "controversial") else ("",)
        if method not in ORDERS or time not in times:
            raise ConfigError(
                f"listings: {listing!r} is not a listing: give {', '.join(ORDERS)}, or top/year"
            )
        times_given = {"time_filter": time} if time else {}
        searches.append({"method": method, **times_given, "limit": config.listing_limit})
    # The tags are part of the key because skipped posts depend on them.
    about = (config.subreddit, config.prompt_tags)
    return {digest(*about, *search.items()): search for search in searches}


def read_prompts(path: Path | None) -> list[str]:
    """The lines of a file of prompts that are not empty; ConfigError if it cannot be read."""
    try:
        text = "" if path is None else path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"prompts_file: cannot read {path} ({error}): give a UTF-8 text with a prompt a line"
        ) from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def reason_to_skip(post: Mapping[str, Any], prompt_tags: Sequence[str] | None) -> str | None:
    """Return the reason to skip a post, or null."""
    if post.get("removed_by_category"):
        return f"removed ({post['removed_by_category']})"
    title = post.get("title")
    if not isinstance(title, str) or text_state(title) != "present":
        return "removed (title)"
    tag = prompt_tag(title)
    if prompt_tags is not None and tag not in {tag.upper() for tag in prompt_tags}:
        return f"not a prompt ([{tag}])" if tag else "not a prompt (no tag)"
    return "no comments" if post.get("num_comments") == 0 else None


def read_search(client: RedditClient, config: Config, search: dict[str, Any]) -> dict[str, Any]:
    """Return the ids of the posts of a search or listing, with the reason to skip each or null."""
    posts = client.find(config.subreddit, **search)
    reasons = {post["id"]: reason_to_skip(post, config.prompt_tags) for post in posts}
    return {"read_utc": int(time.time()), "posts": reasons}


def read_post(client: RedditClient, post: str, salt: str) -> dict[str, Any]:
    """Read a post and its comments, and return its part with a row per comment."""
    read_utc = int(time.time())
    try:
        read = client.post_with_comments(post)
    except RefusedError as error:
        return {"read_utc": read_utc, "refused": error.reason}
    rows, broken = [], []
    for comment in read.comments:
        try:
            row = story_row(
                comment,
                read.post,
                source=f"reddit:{read.post.get('subreddit')}",
                salt=salt,
                score_utc=read_utc,
                escaped=False,
            )
            rows.append(row)
        except DataError as error:
            broken.append({"comment": comment.get("id"), "reason": str(error)})
    about = {"title": text_of(read.post, "title", needed=False)}
    about |= {name: read.post.get(name) for name in ("removed_by_category", "num_comments")}
    return {
        "read_utc": read_utc,
        "post": about,
        "rows": rows,
        "broken": broken,
        "withheld": read.withheld,
    }


def collected_rows(
    posts: Sequence[str],
    parts: Callable[[str], dict[str, Any]],
    config: Config,
    skip: Callable[[str, str], None],
    rejected_rows: RejectedRows,
    comments: Counter[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the posts, sorted by post; calls `skip` for posts without rows."""
    for post in posts:
        part = parts(post)
        reason = part.get("refused") or reason_to_skip(part["post"], config.prompt_tags)
        if reason is not None or not (part["rows"] or part["broken"]):
            skip(post, reason or "no comments")
            continue
        for number, broken in enumerate(part["broken"], 1):
            rejected_rows.add(
                f"posts/{post}", number, "comment", broken["reason"], broken["comment"]
            )
        rows = sorted(part["rows"], key=lambda row: row["story_id"])
        for row in rows:
            comments[text_state(row["text"])] += 1
            comments["edited"] += row["edited_utc"] is not None
            if not is_settled(row["created_utc"], row["score_utc"], config.min_score_age_hours):
                row["score"] = None
        comments["broken"] += len(part["broken"])
        comments["withheld"] += part["withheld"]
        columns = {name: [row.get(name) for row in rows] for name in STORY_ROWS.names}
        columns["n_words"] = count_words(pa.array(columns["text"], pa.large_string()))
        yield pa.RecordBatch.from_pydict(columns, STORY_ROWS)


def main(config: Config) -> None:
    """Request missing searches and posts, and write the stories."""
    salt = load_salt()
    inputs = {"salt": salt_name(salt), "prompts_file": config.prompts_file}
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    made_for = {"form": 5, "salt": salt_name(salt)}
    search_parts, post_parts = (
        fresh_parts(config.out, kind, made_for, config.read_again_after_days)
        for kind in ("searches", "posts")
    )
    if any((config.out / "parts").glob("*/*.json")) and artifact.is_current():
        return
    searches = find_searches(config)
    reasons: dict[str, str | None] = dict.fromkeys(map(post_id, config.posts))
    if not searches and not reasons:
        raise ConfigError("nothing to collect: give prompts, posts or listings")
    unwanted = dict.fromkeys(map(post_id, config.skip_posts), "in skip_posts")
    for post in unwanted:
        post_parts.discard([made_for, post], post)
    rejected_rows = RejectedRows()
    comments, skipped = Counter[str](), Counter[str]()

    def skip(post: str, reason: str) -> None:
        skipped[reason] += 1
        rejected_rows.add("posts", skipped.total(), "post", reason, fullname("t3", post))

    n_requested = 0
    client = RedditClient()

    def search_part(name: str) -> dict[str, Any]:
        def make() -> dict[str, Any]:
            return {**read_search(client, config, searches[name]), "made_for": made_for}

        return search_parts.get([made_for, name], make, label=name)

    def post_part(post: str) -> dict[str, Any]:
        def make() -> dict[str, Any]:
            nonlocal n_requested
            n_requested += 1
            return {**read_post(client, post, salt), "made_for": made_for}

        return post_parts.get([made_for, post], make, label=post)

    with closing(client):
        for name in ProgressBar(searches, desc="searches", leave=False):
            # Posts named by the config are read even if a search skips them.
            reasons = search_part(name)["posts"] | reasons
        reasons |= {post: reason for post, reason in unwanted.items() if post in reasons}
        chosen = sorted(post for post, reason in reasons.items() if reason is None)
        for post in ProgressBar(chosen, desc="posts", leave=False):
            post_part(post)
    for post, reason in sorted(reasons.items()):
        if reason is not None:
            skip(post, reason)

    def write(path: Path) -> None:
        batches = collected_rows(chosen, post_part, config, skip, rejected_rows, comments)
        reader = pa.RecordBatchReader.from_batches(STORY_ROWS, batches)
        comments["rows"] = write_sorted_batches(reader, STORIES, path)
        if not comments["rows"]:
            raise DataError(
                f"no comment was found in {len(chosen)} posts (skipped: {dict(skipped)}): widen "
                "the config"
            )

    artifact.write("stories.parquet", write)
    artifact.write("rejected.jsonl", rejected_rows.write)
    n_kept = len(reasons) - skipped.total()
    artifact.counts = {
        "searches": len(searches),
        "posts": {
            "found": len(reasons),
            "read_before": len(chosen) - n_requested,
            "kept": n_kept,
            "skipped": dict(sorted(skipped.items())),
        },
        "comments": dict(comments),
        "rejected_rows": rejected_rows.counts(),
    }
    artifact.finish()
    print(f"{config.out / 'stories.parquet'}: {comments['rows']:,} stories of {n_kept:,} posts")
    print("  comments: " + ", ".join(f"{n:,} {state}" for state, n in sorted(comments.items())))
    for reason, count in sorted(skipped.items()):
        print(f"  skipped: {count:,} posts, {reason}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
