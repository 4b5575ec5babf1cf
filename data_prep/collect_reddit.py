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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
from tqdm import tqdm

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.errors import ConfigError, DataError
from litbench.records import STORIES, Column, Schema
from litbench.sources.parts import Parts
from litbench.sources.posts import (
    PROMPT_TAGS,
    STORY_ROWS,
    fullname,
    is_settled,
    load_salt,
    mend_row,
    prompt_tag,
    salt_name,
    story_row,
)
from litbench.sources.reddit import (
    PostSort,
    RedditClient,
    RefusedError,
    TimeFilter,
    post_id,
    search_query,
    text_state,
)
from litbench.tables import ROW, RejectedRows, read_table, write_sorted_batches
from litbench.text import count_words, digest

PROMPTS = Schema(
    "prompts", (Column("prompt", "text", "words to search for", required=True),), key=("prompt",)
)
POSTS = Schema(
    "posts", (Column("post", "text", "a post's id or address", required=True),), key=("post",)
)
ORDERS = ("top", "controversial", "new", "hot", "rising")
# What is kept of a post: enough to skip it and to make rows of its comments; not its author.
FACTS = (
    *("id", "title", "created_utc", "link_flair_text", "over_18", "num_comments"),
    "removed_by_category",
)


@dataclass
class Config:
    """What to collect and how.

    Attributes:
        out: folder to write.
        subreddit: where searches and listings look.
        prompts: texts to search for.
        prompts_from: table with more of them: a file, or owner/name[@revision][:split]; a row that
            cannot be searched for is rejected.
        prompt_column: its column of prompts.
        posts: ids or addresses of posts.
        posts_from: table with more of them; a row that names no post is rejected.
        post_column: its column of posts.
        skip_posts: ids or addresses of posts to leave out, wherever they are found.
        listings: such as top/year, controversial/all, new, hot, rising.
        limit: posts per search.
        listing_limit: posts per listing; Reddit gives about 1,000 at most.
        search_sort: which posts a search gives first.
        search_time: how far a search looks back.
        prompt_tags: tags in the title that make a post a prompt; null takes every post.
        min_score_age_hours: a score read sooner after posting is not settled and becomes null.
        read_again_after_days: searches and posts read longer ago are read again, which drops what
            authors have deleted since; null keeps them.
    """

    out: Path
    subreddit: str = "WritingPrompts"
    prompts: list[str] = field(default_factory=list)
    prompts_from: str | None = None
    prompt_column: str = "prompt"
    posts: list[str] = field(default_factory=list)
    posts_from: str | None = None
    post_column: str = "post_id"
    skip_posts: list[str] = field(default_factory=list)
    listings: list[str] = field(default_factory=list)
    limit: int = 100
    listing_limit: int = 1_000
    search_sort: PostSort = "top"
    search_time: TimeFilter = "all"
    prompt_tags: list[str] | None = field(default_factory=lambda: list(PROMPT_TAGS))
    min_score_age_hours: float = 0
    read_again_after_days: float | None = None


def find_searches(config: Config, queries: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The searches and listings of a config, as arguments of `RedditClient.find`, by part."""
    order = {"sort": config.search_sort, "time_filter": config.search_time}
    found: list[dict[str, Any]] = [
        {"method": "search", "query": query, **order, "limit": config.limit} for query in queries
    ]
    for listing in config.listings:
        method, _, time = listing.partition("/")
        times = ("", *get_args(TimeFilter)) if method in ("top", "controversial") else ("",)
        if method not in ORDERS or time not in times:
            raise ConfigError(
                f"listings: {listing!r} is none: write one of {', '.join(ORDERS)}, for the first "
                f"two with one of {', '.join(get_args(TimeFilter))}, as top/year"
            )
        times_given = {"time_filter": time} if time else {}
        found.append({"method": method, **times_given, "limit": config.listing_limit})
    return {f"searches/{digest(config.subreddit, *one.items())}": one for one in found}


def read_usable(
    source: str | None,
    schema: Schema,
    column: str,
    make: Callable[[str], str],
    rejected_rows: RejectedRows,
) -> list[str]:
    """What `make` makes of a table's rows; a row that it refuses is rejected."""
    if source is None:
        return []
    name = schema.key[0]
    table = read_table(
        source, schema, columns={name: column}, rejected_rows=rejected_rows, numbered=True
    )
    made = []
    for number, value in zip(table[ROW].to_pylist(), table[name].to_pylist(), strict=True):
        try:
            made.append(make(value))
        except ConfigError:
            rejected_rows.add(source, number, name, f"not {schema.columns[0].about}", value)
    return made


def facts(post: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a post."""
    return {name: post.get(name) for name in FACTS}


def read_post(client: RedditClient, post: str, salt: str) -> dict[str, Any]:
    """Read a post with its comments, and make rows of them."""
    try:
        read = client.post_with_comments(post)
    except RefusedError as error:
        return {"read_utc": client.read_utc, "refused": error.reason}
    about = facts(read.post)
    mended = mend_row(about)
    source = f"reddit:{read.post.get('subreddit')}"
    rows, broken = [], []
    for comment, read_utc in read.comments:
        try:
            row = story_row(
                comment, about, source=source, salt=salt, score_utc=read_utc, escaped=False
            )
        except DataError as error:
            broken.append({"comment": comment.get("id"), "reason": str(error)})
            continue
        mended += mend_row(row)
        rows.append(row)
    counts = {"mended_texts": mended, "withheld": read.withheld}
    return {
        "read_utc": read.read_utc, "post": about, "rows": rows, "broken": broken, "counts": counts
    }  # fmt: skip


def reason_to_skip(post: Mapping[str, Any], prompt_tags: Sequence[str] | None) -> str | None:
    """Why a post's comments are no stories to collect; null where they are."""
    if post.get("removed_by_category"):
        return f"removed ({post['removed_by_category']})"
    title = post.get("title")
    if not isinstance(title, str):
        return "no title"
    if text_state(title) != "present":
        return "removed (title)"
    if prompt_tags is not None:
        tag = prompt_tag(title)
        if tag not in {one.upper() for one in prompt_tags}:
            return f"not a prompt ([{tag}])" if tag else "not a prompt (no tag)"
    return "no comments" if post.get("num_comments") == 0 else None


class Collection:
    """The parts of a config as a stories table, with everything counted.

    Attributes:
        skipped: posts that were left out, by reason.
        posts: counts of posts by what became of them.
        comments: counts of comments by what they are.
        times: when each post was read.
    """

    def __init__(self, config: Config, rejected_rows: RejectedRows) -> None:
        self.skipped: Counter[str] = Counter()
        self.comments: Counter[str] = Counter()
        self.posts: Counter[str] = Counter()
        self.times: list[int] = []
        self._config = config
        self._rejected_rows = rejected_rows

    def skip(self, post: str, reason: str) -> None:
        """Count a post that is left out."""
        self.skipped[reason] += 1
        number = self.skipped.total()
        self._rejected_rows.add("posts", number, "post", reason, fullname("t3", post))

    def batches(self, parts: Parts, posts: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Rows of the posts, in the order of their ids."""
        for post in posts:
            part = parts.get(f"posts/{post}")
            if part is None:
                raise DataError(
                    f"{parts.folder / 'posts' / post}.json was there and is gone: run the same "
                    "command again, and only once at a time"
                )
            self.times.append(part["read_utc"])
            reason = part.get("refused") or reason_to_skip(part["post"], self._config.prompt_tags)
            if reason is None and not (part["rows"] or part["broken"]):
                reason = "no comments"
            if reason is not None:
                self.skip(post, reason)
            elif rows := self._rows(post, part):
                columns = [
                    pa.array([row.get(one.name) for row in rows], one.type) for one in STORY_ROWS
                ]
                names = STORY_ROWS.names
                columns[names.index("n_words")] = count_words(columns[names.index("text")])
                yield pa.RecordBatch.from_arrays(columns, schema=STORY_ROWS)

    def _rows(self, post: str, part: Mapping[str, Any]) -> list[dict[str, Any]]:
        self.posts["kept"] += 1
        rows = sorted(part["rows"], key=lambda row: row["story_id"])
        for row in rows:
            state = text_state(row["text"])
            self.comments[state] += 1
            self.comments["edited"] += row["edited_utc"] is not None
            self.comments["account_deleted"] += row["author"] is None and state == "present"
            self.comments["by_bots"] += row["is_bot"]
            self.comments["score_hidden"] += not row["score_settled"]
            row["score_settled"] = row["score_settled"] and is_settled(
                row["created_utc"], row["score_utc"], self._config.min_score_age_hours
            )
            if not row["score_settled"]:
                row["score"] = None
        for place, one in enumerate(part["broken"], 1):
            file = str(Path("parts", "posts", f"{post}.json"))
            self._rejected_rows.add(file, place, "comment", one["reason"], one["comment"])
        self.comments["top_level"] += len(rows) + len(part["broken"])
        self.comments["broken"] += len(part["broken"])
        self.comments.update(part["counts"])
        return rows


def forget(posts: Sequence[str], parts: Parts) -> None:
    """Remove all but the ids of some posts from the parts."""
    unwanted = set(map(post_id, posts))
    for post in unwanted:
        parts.discard(f"posts/{post}")
    # Searches hold titles.
    for name in parts.names("searches"):
        part = parts.get(name)
        if part is not None and unwanted & {post["id"] for post in part["posts"]}:
            part["posts"] = [
                {"id": post["id"]} if post["id"] in unwanted else post for post in part["posts"]
            ]
            parts.put(name, part)


def choose_posts(
    config: Config,
    searches: Iterable[str],
    named: Sequence[str],
    parts: Parts,
    collection: Collection,
) -> list[str]:
    """Ids of the posts to read, sorted; those that need no reading to be skipped are counted."""
    found: dict[str, dict[str, Any] | None] = dict.fromkeys(named)
    collection.posts["found"] = len(named)
    for name in searches:
        part = parts.get(name)
        assert part is not None
        collection.posts["found"] += len(part["posts"])
        for post in part["posts"]:
            # Of a post that was in skip_posts once, no more than its id is left.
            found.setdefault(post["id"], post if len(post) > 1 else None)
    collection.posts["found_again"] = collection.posts["found"] - len(found)
    unwanted = set(map(post_id, config.skip_posts))
    chosen = []
    for post, about in sorted(found.items()):
        reason = "in skip_posts" if post in unwanted else None
        if reason is None and about is not None:
            reason = reason_to_skip(about, config.prompt_tags)
        if reason is None:
            chosen.append(post)
        else:
            collection.skip(post, reason)
    return chosen


def main(config: Config) -> None:
    """Request what is absent, put everything together, write."""
    if min(config.limit, config.listing_limit) < 1:
        raise ConfigError("limit and listing_limit must be at least 1: correct the config")
    rejected_rows = RejectedRows()
    tables = {"prompts_from": config.prompts_from, "posts_from": config.posts_from}
    inputs = {key: source for key, source in tables.items() if source is not None}
    salt = load_salt()
    artifact = Artifact(
        config.out, program=__file__, config=config, inputs={**inputs, "salt": salt_name(salt)}
    )
    depends_on = {"form": 3, "salt": salt_name(salt)}
    parts = Parts(config.out / "parts", depends_on, config.read_again_after_days)
    if parts.are_current() and artifact.is_current():
        return
    queries = list(map(search_query, config.prompts))
    queries += read_usable(
        config.prompts_from, PROMPTS, config.prompt_column, search_query, rejected_rows
    )
    named = list(map(post_id, config.posts))
    named += read_usable(config.posts_from, POSTS, config.post_column, post_id, rejected_rows)
    searches = find_searches(config, queries)
    if not searches and not named:
        raise ConfigError("nothing to collect: give prompts, posts or listings, or a table of them")
    collection = Collection(config, rejected_rows)
    comments, skipped = collection.comments, collection.skipped
    with closing(RedditClient()) as client:
        for name in tqdm(parts.absent(searches), desc="searches", disable=None, leave=False):
            posts = list(map(facts, client.find(config.subreddit, **searches[name])))
            parts.put(name, {"read_utc": client.read_utc, "posts": posts})
        named = list(dict.fromkeys(named))
        chosen = choose_posts(config, searches, named, parts, collection)
        absent = parts.absent(f"posts/{post}" for post in chosen)
        collection.posts["read_before"] = len(chosen) - len(absent)
        for name in tqdm(absent, desc="posts", disable=None, leave=False):
            parts.put(name, read_post(client, name.removeprefix("posts/"), salt))

    def write(path: Path) -> None:
        reader = pa.RecordBatchReader.from_batches(STORY_ROWS, collection.batches(parts, chosen))
        comments["rows"] = write_sorted_batches(reader, STORIES, path)
        if not comments["rows"]:
            raise DataError(
                f"no comment was found in {len(chosen)} posts (skipped: {dict(skipped)}): widen "
                "the config"
            )

    artifact.write("stories.parquet", write)
    artifact.write("rejected.jsonl", rejected_rows.write)
    forget(config.skip_posts, parts)
    parts.discard_absent()
    artifact.counts = {
        "requests_of_this_run": client.traffic(),
        "searches": len(searches),
        "posts": {**collection.posts, "skipped": dict(sorted(skipped.items()))},
        "comments": dict(comments),
        "read_from_utc": min(collection.times),
        "read_to_utc": max(collection.times),
        "rejected_rows": rejected_rows.counts(),
    }
    artifact.finish()
    kept = collection.posts["kept"]
    print(f"{config.out / 'stories.parquet'}: {comments['rows']:,} stories of {kept:,} posts")
    print(
        f"  comments: {comments['present']:,} present, {comments['deleted']:,} deleted, "
        f"{comments['removed']:,} removed, {comments['edited']:,} edited, "
        f"{comments['broken']:,} broken, {comments['withheld']:,} withheld by Reddit"
    )
    for reason, count in sorted(skipped.items()):
        print(f"  skipped: {count:,} posts, {reason}")
    print(f"  {client.requests:,} requests, {client.retries.total():,} of them repeated")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
