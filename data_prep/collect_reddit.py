"""Collect stories from Reddit: all top-level comments of prompt posts.

    python data_prep/collect_reddit.py --config configs/data/collect_reddit.yaml

Needs `praw_client_id` and `praw_client_secret` in the environment or in praw.ini. Reads what
Reddit's search finds for each prompt, listings of a subreddit, and posts by id. Every search and
every post is kept in `out/parts` as soon as it was read: a killed run resumes with the next, and a
config with more prompts requests only what is new.

Writes `stories.parquet`, `rejected.jsonl` (posts that were skipped and comments that could not be
used, with reasons) and `manifest.json` into `out`. Deleted and removed comments stay as rows, so
that make_pairs.py counts them. Of a post in `skip_posts`, which an earlier run may have kept,
nothing but the id stays in `out`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
from tqdm import tqdm

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.errors import ConfigError, DataError
from litbench.records import STORIES
from litbench.sources.parts import Parts
from litbench.sources.posts import (
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
from litbench.sources.reddit import (
    RedditClient,
    RefusedError,
    TimeFilter,
    post_id,
    search_query,
    text_state,
)
from litbench.tables import RejectedRows, write_sorted_batches
from litbench.text import count_words, digest

ORDERS = ("top", "controversial", "new", "hot", "rising")


@dataclass
class Config:
    """What to collect and how.

    Attributes:
        out: folder to write.
        subreddit: where searches and listings look.
        prompts: texts to search for.
        posts: ids or addresses of posts.
        listings: such as top/year, controversial/all, new, hot, rising.
        skip_posts: ids or addresses of posts to leave out, wherever they are found.
        limit: posts per search, those with the most votes first.
        listing_limit: posts per listing; Reddit gives about 1,000 at most.
        prompt_tags: tags in the title that make a post a prompt; null takes every post.
        min_score_age_hours: a score read sooner after posting is not settled and becomes null.
        read_again_after_days: searches and posts read longer ago are read again, which drops what
            authors have deleted since; null keeps them.
    """

    out: Path
    subreddit: str = "WritingPrompts"
    prompts: list[str] = field(default_factory=list)
    posts: list[str] = field(default_factory=list)
    listings: list[str] = field(default_factory=list)
    skip_posts: list[str] = field(default_factory=list)
    limit: int = 100
    listing_limit: int = 1_000
    prompt_tags: list[str] | None = field(default_factory=lambda: list(PROMPT_TAGS))
    min_score_age_hours: float = 0
    read_again_after_days: float | None = None


def find_searches(config: Config) -> dict[str, dict[str, Any]]:
    """The searches and listings of a config, as arguments of `RedditClient.find`, by part."""
    found: list[dict[str, Any]] = [
        {"method": "search", "query": search_query(prompt), "sort": "top", "limit": config.limit}
        for prompt in config.prompts
    ]
    for listing in config.listings:
        method, _, time = listing.partition("/")
        times = ("", *get_args(TimeFilter)) if method in ("top", "controversial") else ("",)
        if method not in ORDERS or time not in times:
            raise ConfigError(
                f"listings: {listing!r} is none: write one of {', '.join(ORDERS)}, or as top/year"
            )
        times_given = {"time_filter": time} if time else {}
        found.append({"method": method, **times_given, "limit": config.listing_limit})
    # What is skipped depends on the tags.
    about = (config.subreddit, config.prompt_tags)
    return {f"searches/{digest(*about, *one.items())}": one for one in found}


def reason_to_skip(post: Mapping[str, Any], prompt_tags: Sequence[str] | None) -> str | None:
    """Why a post's comments are no stories to collect; null where they are."""
    if post.get("removed_by_category"):
        return f"removed ({post['removed_by_category']})"
    title = post.get("title")
    if not isinstance(title, str) or text_state(title) != "present":
        return "removed (title)"
    tag = prompt_tag(title)
    if prompt_tags is not None and tag not in {one.upper() for one in prompt_tags}:
        return f"not a prompt ([{tag}])" if tag else "not a prompt (no tag)"
    return "no comments" if post.get("num_comments") == 0 else None


def read_search(client: RedditClient, config: Config, search: dict[str, Any]) -> dict[str, Any]:
    """Ids of the posts that a search or listing finds, each with the reason to skip it or null."""
    posts = client.find(config.subreddit, **search)
    found = {post["id"]: reason_to_skip(post, config.prompt_tags) for post in posts}
    return {"read_utc": client.read_utc, "posts": found}


def read_post(client: RedditClient, post: str, salt: str) -> dict[str, Any]:
    """Read a post with its comments, and make rows of them."""
    try:
        read = client.post_with_comments(post)
    except RefusedError as error:
        return {"read_utc": client.read_utc, "refused": error.reason}
    rows, broken = [], []
    for comment, read_utc in read.comments:
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
        "read_utc": read.read_utc, "post": about, "rows": rows, "broken": broken,
        "withheld": read.withheld,
    }  # fmt: skip


def collected_rows(
    posts: Sequence[str],
    parts: Parts,
    config: Config,
    skip: Callable[[str, str], None],
    rejected_rows: RejectedRows,
    comments: Counter[str],
) -> Iterator[pa.RecordBatch]:
    """Rows of the posts, in the order of their ids; `skip` is told of posts without any."""
    for post in posts:
        part = parts.get(f"posts/{post}")
        assert part is not None
        reason = part.get("refused") or reason_to_skip(part["post"], config.prompt_tags)
        if reason is not None or not (part["rows"] or part["broken"]):
            skip(post, reason or "no comments")
            continue
        for place, one in enumerate(part["broken"], 1):
            file = f"parts/posts/{post}.json"
            rejected_rows.add(file, place, "comment", one["reason"], one["comment"])
        rows = sorted(part["rows"], key=lambda row: row["story_id"])
        for row in rows:
            comments[text_state(row["text"])] += 1
            comments["edited"] += row["edited_utc"] is not None
            if not is_settled(row["created_utc"], row["score_utc"], config.min_score_age_hours):
                row["score"] = None
        comments["broken"] += len(part["broken"])
        comments["withheld"] += part["withheld"]
        columns = {one.name: [row.get(one.name) for row in rows] for one in STORY_ROWS}
        columns["n_words"] = count_words(pa.array(columns["text"], pa.large_string()))
        yield pa.RecordBatch.from_pydict(columns, STORY_ROWS)


def main(config: Config) -> None:
    """Request what is absent, put everything together, write."""
    salt = load_salt()
    artifact = Artifact(
        config.out, program=__file__, config=config, inputs={"salt": salt_name(salt)}, version=2
    )
    depends_on = {"form": 4, "salt": salt_name(salt)}
    parts = Parts(config.out, depends_on, config.read_again_after_days)
    if parts.names() and artifact.is_current():
        return
    searches = find_searches(config)
    found: dict[str, str | None] = dict.fromkeys(map(post_id, config.posts))
    if not searches and not found:
        raise ConfigError("nothing to collect: give prompts, posts or listings")
    unwanted = dict.fromkeys(map(post_id, config.skip_posts), "in skip_posts")
    for post in unwanted:
        parts.discard(f"posts/{post}")
    rejected_rows = RejectedRows()
    comments, skipped = Counter[str](), Counter[str]()

    def skip(post: str, reason: str) -> None:
        skipped[reason] += 1
        rejected_rows.add("posts", skipped.total(), "post", reason, fullname("t3", post))

    with closing(RedditClient()) as client:
        for name in tqdm(parts.absent(searches), desc="searches", disable=None, leave=False):
            parts.put(name, read_search(client, config, searches[name]))
        for part in map(parts.get, searches):
            assert part is not None
            # A post that the config names is read whatever a search says.
            found = part["posts"] | found
        found |= {post: reason for post, reason in unwanted.items() if post in found}
        chosen = sorted(post for post, reason in found.items() if reason is None)
        absent = parts.absent(f"posts/{post}" for post in chosen)
        for name in tqdm(absent, desc="posts", disable=None, leave=False):
            parts.put(name, read_post(client, name.removeprefix("posts/"), salt))
    for post, reason in sorted(found.items()):
        if reason is not None:
            skip(post, reason)

    def write(path: Path) -> None:
        batches = collected_rows(chosen, parts, config, skip, rejected_rows, comments)
        reader = pa.RecordBatchReader.from_batches(STORY_ROWS, batches)
        comments["rows"] = write_sorted_batches(reader, STORIES, path)
        if not comments["rows"]:
            raise DataError(
                f"no comment was found in {len(chosen)} posts (skipped: {dict(skipped)}): widen "
                "the config"
            )

    artifact.write("stories.parquet", write)
    artifact.write("rejected.jsonl", rejected_rows.write)
    kept = len(found) - skipped.total()
    artifact.counts = {
        "requests_of_this_run": client.traffic(),
        "searches": len(searches),
        "posts": {
            "found": len(found), "read_before": len(chosen) - len(absent), "kept": kept,
            "skipped": dict(sorted(skipped.items())),
        },
        "comments": dict(comments),
        "rejected_rows": rejected_rows.counts(),
    }  # fmt: skip
    artifact.finish()
    print(f"{config.out / 'stories.parquet'}: {comments['rows']:,} stories of {kept:,} posts")
    print("  comments: " + ", ".join(f"{n:,} {state}" for state, n in sorted(comments.items())))
    for reason, count in sorted(skipped.items()):
        print(f"  skipped: {count:,} posts, {reason}")
    print(f"  {client.requests:,} requests, {client.retries.total():,} of them repeated")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
