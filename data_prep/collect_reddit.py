"""Collect stories from Reddit: all top-level comments of prompt posts.

    python data_prep/collect_reddit.py --config configs/data/collect_reddit.yaml

Needs `praw_client_id` and `praw_client_secret` in the environment or in praw.ini. Reads what
Reddit's search finds for each prompt, listings of a subreddit, and posts by id. Every search and
every post is kept in `out/parts` as soon as it was read: a killed run loses the post under way and
goes on with the next, and a config with more prompts asks for what is new only.

Writes `stories.parquet`, `rejected.jsonl` (posts that were skipped and comments that could not be
used, with reasons) and `manifest.json` into `out`. Deleted and removed comments stay as rows, so
that make_pairs.py counts them. Of a post in `skip_posts`, which an earlier run may have kept,
nothing but the id stays in `out`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from tqdm import tqdm

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.errors import ConfigError, DataError
from litbench.records import STORIES, Column, Schema
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
    CommentSort,
    Parts,
    Patience,
    PostSort,
    RedditClient,
    RedditClients,
    RedditError,
    RefusedError,
    TimeFilter,
    open_parts,
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
# What is kept of a post's JSON: enough to skip it and to make rows of its comments.
FACTS = (
    *("id", "title", "created_utc", "link_flair_text", "over_18", "num_comments"),
    *("removed_by_category", "subreddit"),
)
_POSTS_AT_ONCE = 200


@dataclass
class Config:
    """What to collect and how.

    Attributes:
        out: folder to write.
        subreddit: where searches and listings look.
        prompts: texts to search for.
        prompts_from: table with more of them: a file, or owner/name[@revision][:split]; a row that
            cannot be searched for is set aside.
        prompt_column: its column of prompts.
        posts: ids or addresses of posts.
        posts_from: table with more of them; a row that names no post is set aside.
        post_column: its column of posts.
        skip_posts: ids or addresses of posts to leave out, wherever they are found.
        listings: such as top/year, controversial/all, new, hot, rising.
        limit: posts per search.
        listing_limit: posts per listing; Reddit gives about 1,000 at most.
        search_sort: which posts a search gives first.
        search_time: how far a search looks back.
        comment_sort: order in which comments are asked for; all are read in the end.
        prompt_tags: tags in the title that make a post a prompt; null takes every post.
        min_score_age_hours: a score read sooner after posting is not settled and becomes null.
        read_again_after_days: searches and posts read longer ago are read again, which drops what
            authors have deleted since; null keeps them.
        threads: clients at work at once; all of them share the application's rate limit.
        user_agent: how the program names itself; null takes praw's setting or a default.
        patience: pauses and tries after faulty answers.
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
    comment_sort: CommentSort = "top"
    prompt_tags: list[str] | None = field(default_factory=lambda: list(PROMPT_TAGS))
    min_score_age_hours: float = 0
    read_again_after_days: float | None = None
    threads: int = 1
    user_agent: str | None = None
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True)
class Question:
    """A search or a listing, that is, what finds posts.

    Attributes:
        kind: search or listing.
        name: its part's name.
        text: the words searched for, or the listing's order.
        time_filter: hour to all.
    """

    kind: Literal["search", "listing"]
    name: str
    text: str
    time_filter: TimeFilter


def questions(config: Config, rejected_rows: RejectedRows) -> list[Question]:
    """The searches and listings of a config, each once."""
    queries = list(map(search_query, config.prompts))
    if config.prompts_from is not None:
        queries += read_usable(
            config.prompts_from, PROMPTS, config.prompt_column, search_query, rejected_rows
        )
    found: dict[str, Question] = {}
    for query in queries:
        about = (config.subreddit, query, config.search_sort, config.search_time, config.limit)
        name = f"searches/{digest('search', *about)}"
        found[name] = Question("search", name, query, config.search_time)
    times = ("hour", "day", "week", "month", "year", "all")
    for listing in config.listings:
        order, _, time_filter = listing.partition("/")
        if order not in ORDERS or (time_filter or "all") not in times:
            raise ConfigError(
                f"listings: {listing!r} is none: write one of {', '.join(ORDERS)}, for the first "
                f"two with one of {', '.join(times)}, as top/year"
            )
        settings = (config.subreddit, order, time_filter, config.listing_limit)
        name = f"listings/{digest('listing', *settings)}"
        found[name] = Question("listing", name, order, time_filter or "all")  # type: ignore[arg-type]
    return list(found.values())


def named_posts(config: Config, rejected_rows: RejectedRows) -> list[str]:
    """Ids of the posts that the config names, each once."""
    posts = list(map(post_id, config.posts))
    if config.posts_from is not None:
        posts += read_usable(config.posts_from, POSTS, config.post_column, post_id, rejected_rows)
    return list(dict.fromkeys(posts))


def read_usable(
    source: str,
    schema: Schema,
    column: str,
    make: Callable[[str], str],
    rejected_rows: RejectedRows,
) -> list[str]:
    """What `make` makes of a table's rows; one that it refuses is set aside and ends nothing."""
    name = schema.key[0]
    columns = {name: column}
    table = read_table(source, schema, columns=columns, rejected_rows=rejected_rows, numbered=True)
    made = []
    for number, value in zip(table[ROW].to_pylist(), table[name].to_pylist(), strict=True):
        try:
            made.append(make(value))
        except ConfigError:
            rejected_rows.add(source, number, name, f"not {schema.columns[0].about}", value)
    return made


def answer(client: RedditClient, question: Question, config: Config, parts: Parts) -> None:
    """Ask a question and keep the facts of the posts found."""
    if question.kind == "search":
        posts, read_utc = client.search(
            config.subreddit,
            question.text,
            sort=config.search_sort,
            time_filter=question.time_filter,
            limit=config.limit,
        )
    else:
        posts, read_utc = client.listing(
            config.subreddit,
            question.text,
            time_filter=question.time_filter,
            limit=config.listing_limit,
        )
    parts.put(question.name, read_utc, {"text": question.text, "posts": list(map(facts, posts))})


def facts(post: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a post; not its author."""
    return {name: post.get(name) for name in FACTS}


def read_post(client: RedditClient, post: str, config: Config, parts: Parts, salt: str) -> None:
    """Read a post with its comments, and keep the rows made of them."""
    try:
        read = client.post_with_comments(post, config.comment_sort)
    except RefusedError as error:
        parts.put(f"posts/{post}", client.read_utc, {"refused": error.reason})
        return
    about = facts(read.post)
    mended = mend_row(about)
    rows, broken = [], []
    for comment, read_utc in read.comments:
        try:
            row = story_row(
                comment,
                about,
                source=f"reddit:{about['subreddit']}",
                salt=salt,
                score_utc=read_utc,
                escaped=False,
            )
        except DataError as error:
            broken.append({"comment": comment.get("id"), "reason": str(error)})
            continue
        mended += mend_row(row)
        rows.append(row)
    content = {"post": about, "rows": rows, "broken": broken, "mended": mended}
    parts.put(f"posts/{post}", read.read_utc, {**content, "withheld": read.withheld})


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
    """The parts of a config as a stories table, with everything counted on the way.

    Attributes:
        posts: counts of posts by what became of them.
        comments: counts of comments by what they are.
        rejected_rows: skipped posts and comments that make no row.
        read_utc: when each post was read.
    """

    def __init__(self, config: Config, rejected_rows: RejectedRows) -> None:
        """Nothing is read yet."""
        self.posts: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.comments: Counter[str] = Counter()
        self.rejected_rows = rejected_rows
        self.read_utc: list[int] = []
        self._config = config

    def skip(self, post: str, reason: str) -> None:
        """Count a post that is left out."""
        self.skipped[reason] += 1
        self.rejected_rows.add("posts", self.skipped.total(), "post", reason, fullname("t3", post))

    def batches(self, parts: Parts, posts: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Rows of the posts, in the order of their ids, some posts at a time."""
        waiting: list[dict[str, Any]] = []
        for place, post in enumerate(posts, 1):
            waiting += self._rows(parts, post)
            if waiting and (place % _POSTS_AT_ONCE == 0 or place == len(posts)):
                yield from _story_table(waiting).to_batches()
                waiting = []
        if waiting:
            yield from _story_table(waiting).to_batches()

    def _rows(self, parts: Parts, post: str) -> list[dict[str, Any]]:
        part = parts.get(f"posts/{post}")
        if part is None:
            raise DataError(
                f"{parts.folder / 'posts' / post}.json was there and is gone: run the same command "
                "again, and only once at a time"
            )
        self.read_utc.append(part["read_utc"])
        if "refused" in part:
            self.skip(post, part["refused"])
            return []
        reason = reason_to_skip(part["post"], self._config.prompt_tags)
        if reason is None and not (part["rows"] or part["broken"]):
            reason = "no comments"
        if reason is not None:
            self.skip(post, reason)
            return []
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
            self.rejected_rows.add(file, place, "comment", one["reason"], one["comment"])
        self.comments["top_level"] += len(rows) + len(part["broken"])
        self.comments["broken"] += len(part["broken"])
        self.comments["withheld"] += part["withheld"]
        self.comments["mended_texts"] += part["mended"]
        return rows


def _story_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    texts = pa.array([row["text"] for row in rows], pa.large_string())
    columns = {
        one.name: pa.array([row.get(one.name) for row in rows], one.type) for one in STORY_ROWS
    }
    columns["n_words"] = count_words(texts)
    return pa.table(columns, schema=STORY_ROWS)


def choose_posts(
    config: Config,
    asked: Sequence[Question],
    named: Sequence[str],
    parts: Parts,
    collection: Collection,
) -> list[str]:
    """Ids of the posts to read, sorted; those that need no reading to be skipped are counted."""
    found: dict[str, dict[str, Any] | None] = dict.fromkeys(named)
    collection.posts["found"] = len(named)
    for question in asked:
        part = parts.get(question.name)
        assert part is not None
        for post in part["posts"]:
            # Of a post that was in skip_posts once, no more than its id is left.
            found.setdefault(post_id(str(post["id"])), post if len(post) > 1 else None)
        collection.posts["found"] += len(part["posts"])
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


def collect(
    config: Config,
    asked: Sequence[Question],
    named: Sequence[str],
    parts: Parts,
    salt: str,
    collection: Collection,
) -> tuple[list[str], dict[str, Any]]:
    """Ask Reddit for whatever is absent from the parts.

    Returns:
        Ids of the posts to make stories of, sorted, and the counts of requests.
    """
    clients: RedditClients | None = None

    def do(about: str, work: Callable[[RedditClient, Any], None], items: Sequence[Any]) -> None:
        # Credentials are needed only when something must be asked for.
        nonlocal clients
        if not items:
            return
        if clients is None:
            clients = RedditClients(config.threads, config.user_agent, config.patience)
        with tqdm(desc=about, total=len(items), disable=None, leave=False) as bar:
            for _ in clients.map(work, items):
                bar.update()

    try:
        do(
            "searches",
            lambda client, question: answer(client, question, config, parts),
            [question for question in asked if parts.get(question.name) is None],
        )
        posts = choose_posts(config, asked, named, parts, collection)
        missing = [post for post in posts if parts.get(f"posts/{post}") is None]
        collection.posts["read_before"] = len(posts) - len(missing)
        do("posts", lambda client, post: read_post(client, post, config, parts, salt), missing)
    except RedditError as error:
        kept = len(parts.names("posts"))
        raise RedditError(f"{error} ({kept} posts are kept in {parts.folder})") from error
    finally:
        if clients is not None:
            clients.close()
    return posts, {} if clients is None else clients.traffic().plain()


def forget(posts: Sequence[str], parts: Parts) -> None:
    """Remove whatever earlier runs have kept of some posts but their ids."""
    unwanted = set(map(post_id, posts))
    for post in unwanted:
        parts.discard(f"posts/{post}")
    # Searches and listings hold titles.
    for name in [*parts.names("searches"), *parts.names("listings")]:
        part = parts.get(name)
        if part is None:
            continue
        left = [
            {"id": post["id"]} if post_id(str(post["id"])) in unwanted else post
            for post in part["posts"]
        ]
        if left != part["posts"]:
            parts.put(name, part["read_utc"], {**part, "posts": left})


def is_too_old(
    config: Config, asked: Sequence[Question], named: Sequence[str], parts: Parts
) -> bool:
    """Whether something must be read again because it was read too long ago."""
    if config.read_again_after_days is None:
        return False
    if any(parts.get(question.name) is None for question in asked):
        return True
    posts = choose_posts(config, asked, named, parts, Collection(config, RejectedRows()))
    return any(parts.get(f"posts/{post}") is None for post in posts)


def main(config: Config) -> None:
    """Ask for what is absent, put everything together, write."""
    if min(config.limit, config.listing_limit) < 1:
        raise ConfigError("limit and listing_limit must be at least 1: mend the config")
    rejected_rows = RejectedRows()
    inputs = {
        name: source
        for name in ("prompts_from", "posts_from")
        if (source := getattr(config, name)) is not None
    }
    salt = load_salt()
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={**inputs, "salt": salt_name(salt)},
        runtime_keys=("threads", "user_agent", "patience"),
    )
    asked, named = questions(config, rejected_rows), named_posts(config, rejected_rows)
    if not asked and not named:
        raise ConfigError("nothing to collect: give prompts, posts or listings, or a table of them")
    parts = open_parts(config.out, salt, config.read_again_after_days)
    if not is_too_old(config, asked, named, parts) and artifact.is_current():
        return
    parts.discard_leftovers()
    collection = Collection(config, rejected_rows)
    posts, traffic = collect(config, asked, named, parts, salt, collection)

    def write(path: Path) -> None:
        reader = pa.RecordBatchReader.from_batches(STORY_ROWS, collection.batches(parts, posts))
        collection.comments["rows"] = write_sorted_batches(reader, STORIES, path)
        if not collection.comments["rows"]:
            raise DataError(
                f"no comment was found in {len(posts)} posts (skipped: {dict(collection.skipped)}):"
                " widen the config"
            )

    artifact.write("stories.parquet", write)
    artifact.write("rejected.jsonl", rejected_rows.write)
    forget(config.skip_posts, parts)
    parts.discard_absent()
    artifact.counts = {
        "requests_of_this_run": traffic,
        "searches": sum(question.kind == "search" for question in asked),
        "listings": sum(question.kind == "listing" for question in asked),
        "posts": {**collection.posts, "skipped": dict(sorted(collection.skipped.items()))},
        "comments": dict(collection.comments),
        "read_from_utc": min(collection.read_utc),
        "read_to_utc": max(collection.read_utc),
        "rejected_rows": rejected_rows.counts(),
    }
    artifact.finish()
    _say(config, collection, traffic)


def _say(config: Config, collection: Collection, traffic: Mapping[str, Any]) -> None:
    posts, comments = collection.posts, collection.comments
    print(
        f"{config.out / 'stories.parquet'}: {comments['rows']:,} stories of {posts['kept']:,} posts"
    )
    print(
        f"  comments: {comments['present']:,} present, {comments['deleted']:,} deleted, "
        f"{comments['removed']:,} removed, {comments['edited']:,} edited, "
        f"{comments['broken']:,} broken, {comments['withheld']:,} withheld by Reddit"
    )
    for reason, count in sorted(collection.skipped.items()):
        print(f"  skipped: {count:,} posts, {reason}")
    if traffic:
        faults = ", ".join(f"{count} {cause}" for cause, count in traffic["faults"].items())
        print(
            f"  {traffic['requests']:,} requests; faulty answers: {faults or 'none'}; waited "
            f"{traffic['waited_seconds']:g} s after them"
        )
    else:
        print("  nothing was asked of Reddit: all of it was read before")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
