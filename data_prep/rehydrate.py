"""Fetch the texts of published pairs of comment ids from Reddit.

    python data_prep/rehydrate.py --config configs/data/litbench_test.yaml

Needs `praw_client_id` and `praw_client_secret` in the environment or in praw.ini. Reads a table
with `chosen_comment_id` and `rejected_comment_id`, as push_to_hub.py writes it with `ids_only`;
asks Reddit for a hundred comments at a time, then for their posts, whose titles are the prompts.
Every hundred is kept in `out/parts` as soon as it was read: a killed run goes on with the next.

The label stays as published. Writes `pairs.parquet`, `comments.parquet` (every comment asked for
and what has become of it), `rejected.jsonl` (pairs that cannot be made, with reasons),
`examples.jsonl` (what cleaning cut) and `manifest.json` into `out`, and prints what has changed
since publication.
"""

import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from tqdm import tqdm

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.curation.cleaning import Cleaning, clean_table
from litbench.curation.funnel import Examples
from litbench.errors import ConfigError, DataError
from litbench.records import PAIRS, Column, Schema, pair_id
from litbench.sources.posts import (
    THING_ID,
    fullname,
    load_salt,
    mend,
    mend_row,
    salt_name,
    story_row,
)
from litbench.sources.reddit import (
    BATCH,
    Parts,
    Patience,
    RedditClient,
    RedditError,
    open_parts,
    text_state,
)
from litbench.tables import ROW, RejectedRows, read_table, write_table
from litbench.text import count_words, digest, normalise_prompt

SIDES = ("chosen", "rejected")
# What push_to_hub.py publishes of a pair beside ids and votes.
LABELS = ("label_source", "split", "margin", "weight", "fold")
IDS = Schema(
    "pairs of ids",
    (
        Column("chosen_comment_id", "text", "the preferred comment", required=True),
        Column("rejected_comment_id", "text", "the other comment", required=True),
        Column("chosen_upvotes", "integer", "its votes when the pairs were published"),
        Column("rejected_upvotes", "integer", "its votes when the pairs were published"),
        *(replace(one, required=False) for one in PAIRS.columns if one.name in LABELS),
    ),
    key=("chosen_comment_id", "rejected_comment_id"),
)
COMMENTS = pa.schema(
    [
        ("story_id", pa.large_string()),
        ("prompt_id", pa.large_string()),
        ("state", pa.large_string()),
        ("text", pa.large_string()),
        ("n_words", pa.int64()),
        ("score", pa.int64()),
        ("score_utc", pa.int64()),
        ("published_score", pa.int64()),
        ("created_utc", pa.int64()),
        ("edited_utc", pa.int64()),
        ("author", pa.large_string()),
    ]
)
# What a pair has beyond PAIRS, each once per side.
EXTRA = ("score_utc", "published_score", "edited_utc")

LabelSource = Literal["votes", "people", "model", "planted"]


@dataclass
class Config:
    """Which pairs to fetch.

    Attributes:
        pairs: a file, a folder saved by datasets, or owner/name[@revision][:split].
        out: folder to write.
        columns: for each of chosen_comment_id, rejected_comment_id, chosen_upvotes and
            rejected_upvotes, and for label_source, split, margin, weight and fold, its column in
            `pairs`, where that has another name; "=test" is the same for all pairs.
        where: SQL condition on the columns of `pairs`.
        published: the day the pairs were published, as "2025-07-01"; comments edited after it are
            counted. Null counts edited comments only.
        label_source: who preferred the chosen stories of pairs that do not say so themselves:
            votes, people, model or planted.
        split: written into the column `split` of pairs that have none themselves.
        cleaning: what to cut out of prompts and texts; by default nothing, so that the texts are
            what Reddit shows.
        read_again_after_days: comments and posts read longer ago are read again, which drops what
            authors have deleted since; null keeps them.
        user_agent: how the program names itself; null takes praw's setting or a default.
        patience: pauses and tries after faulty answers.
    """

    pairs: str
    out: Path
    columns: dict[str, str] = field(default_factory=dict)
    where: str | None = None
    published: str | None = None
    label_source: LabelSource = "votes"
    split: str = "test"
    cleaning: Cleaning = field(default_factory=Cleaning.none)
    read_again_after_days: float | None = None
    user_agent: str | None = None
    patience: Patience = field(default_factory=Patience)


def read_ids(config: Config, rejected_rows: RejectedRows) -> list[dict[str, Any]]:
    """The pairs of full names; those that contradict each other are set aside."""
    table = read_table(
        config.pairs,
        IDS,
        columns=config.columns,
        rejected_rows=rejected_rows,
        where=config.where,
        numbered=True,
    )
    given: list[dict[str, Any]] = []
    for row in table.select([ROW, *(one.name for one in IDS.columns)]).to_pylist():
        number = row[ROW]
        names = {side: fullname("t1", row[f"{side}_comment_id"]) for side in SIDES}
        wrong = [side for side in SIDES if not re.fullmatch(f"t1_{THING_ID}", names[side])]
        if wrong:
            column = f"{wrong[0]}_comment_id"
            rejected_rows.add(config.pairs, number, column, "not a comment's id", row[column])
        elif names["chosen"] == names["rejected"]:
            reason = "the same comment on both sides"
            rejected_rows.add(
                config.pairs, number, "rejected_comment_id", reason, names["rejected"]
            )
        else:
            votes = {f"{side}_published_score": row[f"{side}_upvotes"] for side in SIDES}
            labels = {name: row[name] for name in LABELS}
            given.append({"row": number, **names, **votes, **labels})
    orders: dict[str, set[str]] = {}
    for pair in given:
        orders.setdefault(pair_id(pair["chosen"], pair["rejected"]), set()).add(pair["chosen"])
    kept, seen = [], set()
    for pair in given:
        name = pair_id(pair["chosen"], pair["rejected"])
        shown = [pair[side] for side in SIDES]
        if len(orders[name]) == 2:
            reason = "the pair stands there with the sides swapped, too"
            rejected_rows.add(config.pairs, pair["row"], "chosen_comment_id", reason, shown)
        elif name in seen:
            reason = "the pair stands there already"
            rejected_rows.add(config.pairs, pair["row"], "chosen_comment_id", reason, shown)
        else:
            seen.add(name)
            kept.append({**pair, "pair_id": name})
    return kept


# Asking Reddit ---------------------------------------------------------------------------------


def comment_facts(thing: Mapping[str, Any] | None, read_utc: int, salt: str) -> dict[str, Any]:
    """What is kept of a comment: its row without the prompt, and its state.

    States: present, deleted (by its author), removed (by moderators or Reddit), missing (Reddit
    does not know the id), broken (with `reason`).
    """
    if thing is None:
        return {"state": "missing", "score_utc": read_utc}
    try:
        # The post is read later; its id is all that is known here.
        post = {"id": thing.get("link_id"), "title": ""}
        row = story_row(thing, post, source="reddit", salt=salt, score_utc=read_utc, escaped=False)
    except DataError as error:
        return {"state": "broken", "reason": str(error), "score_utc": read_utc}
    mended = mend_row(row)
    names = ("prompt_id", "text", "score", "score_utc", "created_utc", "edited_utc", "author")
    return {
        "state": text_state(row["text"]),
        "edited": bool(thing.get("edited")),
        "mended": mended > 0,
        **{name: row[name] for name in names},
    }


def post_facts(thing: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is kept of a post: its title and whether that is there to be read."""
    title = None if thing is None else thing.get("title")
    if not isinstance(title, str):
        return {"state": "missing", "title": None}
    # A post without its title is no prompt; one whose text or picture is gone still is.
    return {"state": text_state(title), "title": mend(title)}


class Store:
    """Things of one kind, by full name, kept in parts of a hundred.

    Attributes:
        facts: what is known of each name.
        read_before: how many of the names wanted were read by an earlier run.
    """

    def __init__(self, parts: Parts, kind: str, wanted: set[str]) -> None:
        """Load what earlier runs have read."""
        self._parts, self._kind = parts, kind
        self._wanted = wanted
        self.facts: dict[str, dict[str, Any]] = {}
        self._home: dict[str, str] = {}
        held = [(part["read_utc"], name, part) for name in parts.names(kind)
                if (part := parts.get(name)) is not None]  # fmt: skip
        # What was read last holds.
        for _, name, part in sorted(held, key=lambda item: item[:2]):
            for thing, facts in part["things"].items():
                if thing in wanted:
                    self.facts[thing], self._home[thing] = facts, name
        self.read_before = len(self.facts)

    def missing(self) -> list[str]:
        """Names that are wanted and not read yet, sorted."""
        return sorted(self._wanted - self.facts.keys())

    def fetch(
        self,
        client: RedditClient,
        keep: Callable[[Mapping[str, Any] | None, int], dict[str, Any]],
    ) -> None:
        """Ask for the missing ones, a hundred at a time."""
        missing = self.missing()
        batches = [missing[start : start + BATCH] for start in range(0, len(missing), BATCH)]
        for batch in tqdm(batches, desc=self._kind, unit="request", disable=None, leave=False):
            things, read_utc = client.info(batch)
            facts = {name: keep(things.get(name), read_utc) for name in batch}
            name = f"{self._kind}/{digest(*batch)}"
            self._parts.put(name, read_utc, {"things": facts})
            self.facts |= facts
            self._home |= dict.fromkeys(batch, name)

    def discard_unused(self) -> None:
        """Remove parts nothing of which is used: superseded texts must not stay."""
        for name in set(self._parts.names(self._kind)) - set(self._home.values()):
            self._parts.discard(name)


def posts_of(comments: Store) -> set[str]:
    """Full names of the posts that the present comments answer."""
    return {one["prompt_id"] for one in comments.facts.values() if one["state"] == "present"}


# Making pairs ----------------------------------------------------------------------------------


def make_pairs(
    given: Sequence[Mapping[str, Any]],
    comments: Mapping[str, Mapping[str, Any]],
    posts: Mapping[str, Mapping[str, Any]],
    config: Config,
    rejected_rows: RejectedRows,
) -> pa.Table:
    """Put texts and prompts to the pairs; one that cannot be made is set aside.

    Returns:
        Table by PAIRS, without `n_words`, and with the columns of EXTRA per side.
    """
    rows = []
    for pair in given:
        sides = {side: comments[pair[side]] for side in SIDES}
        reason = next(
            (
                (side, one.get("reason", one["state"]))
                for side, one in sides.items()
                if one["state"] != "present"
            ),
            None,
        )
        if reason is None:
            prompts = {side: posts[one["prompt_id"]] for side, one in sides.items()}
            absent = [side for side in SIDES if prompts[side]["state"] != "present"]
            titles = {normalise_prompt(one["title"]) for one in prompts.values() if one["title"]}
            if absent:
                reason = ("prompt", prompts[absent[0]]["state"])
            elif len(titles) > 1:
                reason = ("prompt", "the comments answer two prompts")
        if reason is not None:
            shown = [pair[side] for side in SIDES]
            rejected_rows.add(config.pairs, pair["row"], *reason, shown)
            continue
        row: dict[str, Any] = {
            "pair_id": pair["pair_id"],
            "prompt_id": sides["chosen"]["prompt_id"],
            "prompt": prompts["chosen"]["title"],
            **{name: pair[name] for name in LABELS},
        }
        row["label_source"] = row["label_source"] or config.label_source
        row["split"] = row["split"] or config.split
        for side, one in sides.items():
            row[side] = one["text"]
            row[f"{side}_story_id"] = pair[side]
            row[f"{side}_published_score"] = pair[f"{side}_published_score"]
            for name in ("score", "created_utc", "author", "score_utc", "edited_utc"):
                row[f"{side}_{name}"] = one[name]
        rows.append(row)
    extra = [pa.field(f"{side}_{name}", pa.int64()) for name in EXTRA for side in SIDES]
    fields = [pa.field(one.name, one.type) for one in PAIRS.arrow()]
    schema = pa.schema([*fields, *extra])
    columns = {one.name: pa.array([row.get(one.name) for row in rows], one.type) for one in schema}
    return pa.table(columns, schema=schema).sort_by("pair_id")


def with_words(pairs: pa.Table) -> pa.Table:
    """The pairs with the lengths of the texts that are written."""
    for side in SIDES:
        name = f"{side}_n_words"
        place = pairs.schema.get_field_index(name)
        pairs = pairs.set_column(place, name, count_words(pairs[side]))
    return pairs


def comment_table(
    given: Sequence[Mapping[str, Any]], comments: Mapping[str, Mapping[str, Any]]
) -> pa.Table:
    """Every comment asked for, by its id."""
    published = {pair[side]: pair[f"{side}_published_score"] for pair in given for side in SIDES}
    rows = [
        {"story_id": name, **facts, "published_score": published[name]}
        for name, facts in sorted(comments.items())
    ]
    columns = {
        one.name: pa.array([row.get(one.name) for row in rows], one.type) for one in COMMENTS
    }
    columns["n_words"] = count_words(columns["text"])
    return pa.table(columns, schema=COMMENTS)


# What has changed ------------------------------------------------------------------------------


def changes(
    given: Sequence[Mapping[str, Any]],
    comments: Mapping[str, Mapping[str, Any]],
    pairs: pa.Table,
    published_utc: int | None,
) -> dict[str, Any]:
    """What has become of the comments, their votes and the pairs since publication."""
    states = Counter(one["state"] for one in comments.values())
    there = [one for one in comments.values() if one["state"] not in ("missing", "broken")]
    present = [one for one in there if one["state"] == "present"]
    since = None
    if published_utc is not None:
        since = sum((one["edited_utc"] or 0) > published_utc for one in present)
    moved = []
    for pair in given:
        for side in SIDES:
            before, now = pair[f"{side}_published_score"], comments[pair[side]].get("score")
            if before is not None and now is not None:
                moved.append((pair[side], now - before))
    # A comment of several pairs counts once.
    steps = sorted(dict(moved).values())
    both = [
        (comments[pair["chosen"]], comments[pair["rejected"]])
        for pair in given
        if all(comments[pair[side]]["state"] == "present" for side in SIDES)
    ]
    voted = [(a["score"], b["score"]) for a, b in both if None not in (a["score"], b["score"])]
    turned, tied = sum(a < b for a, b in voted), sum(a == b for a, b in voted)
    later = sum(a["created_utc"] > b["created_utc"] for a, b in both)
    names, texts = pairs["pair_id"].to_pylist(), zip(
        pairs["prompt"].to_pylist(), pairs["chosen"].to_pylist(), pairs["rejected"].to_pylist(),
        strict=True,
    )  # fmt: skip
    return {
        "comments": {
            "asked_for": len(comments),
            "fetched": len(there),
            **{state: states[state] for state in ("present", "deleted", "removed", "missing")},
            "broken": states["broken"],
            "edited": sum(one["edited"] for one in present),
            "edited_since_publication": since,
            "account_deleted": sum(one["author"] is None for one in present),
            "mended": sum(one["mended"] for one in present),
        },
        "score_changes": {
            "comments": len(steps),
            "unchanged": steps.count(0),
            "quantiles": _quantiles(steps),
        },
        "order": {
            "pairs_with_both_scores": len(voted),
            "changed": turned,
            "changed_share": turned / len(voted) if voted else None,
            "tied": tied,
        },
        "chosen_later": {"pairs_with_both_times": len(both), "holds": later},
        "coverage": {
            "published": len(given),
            "made": pairs.num_rows,
            "share": pairs.num_rows / len(given),
        },
        "digests": {
            "pairs": digest(*names),
            "texts": digest(*(part for row in texts for part in row)),
        },
    }


def _quantiles(values: Sequence[int]) -> dict[str, float] | None:
    if not values:
        return None
    shares = {"5%": 0.05, "25%": 0.25, "50%": 0.5, "75%": 0.75, "95%": 0.95}
    if len(values) == 1:
        return dict.fromkeys(shares, float(values[0]))
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return {name: cuts[round(share * 20) - 1] for name, share in shares.items()}


def say(found: Mapping[str, Any]) -> str:
    """The changes as lines for the terminal."""
    comments, order, votes = found["comments"], found["order"], found["score_changes"]
    cover, later = found["coverage"], found["chosen_later"]
    since = comments["edited_since_publication"]
    lines = [
        f"comments: {comments['asked_for']:,} asked for, {comments['fetched']:,} fetched, "
        f"{comments['present']:,} present, {comments['deleted']:,} deleted, "
        f"{comments['removed']:,} removed, {comments['missing']:,} missing, "
        f"{comments['broken']:,} broken",
        f"edited: {comments['edited']:,}"
        + ("" if since is None else f", {since:,} of them since publication"),
    ]
    if votes["comments"]:
        cuts = ", ".join(f"{name} {value:+g}" for name, value in votes["quantiles"].items())
        lines.append(
            f"votes since publication, {votes['comments']:,} comments: {votes['unchanged']:,} "
            f"unchanged; change at {cuts}"
        )
    if order["pairs_with_both_scores"]:
        lines.append(
            f"order now, {order['pairs_with_both_scores']:,} pairs: {order['changed']:,} the other "
            f"way round ({order['changed_share']:.1%}), {order['tied']:,} tied"
        )
    lines += [
        f"chosen posted later: {later['holds']:,} of {later['pairs_with_both_times']:,} pairs",
        f"pairs: {cover['made']:,} of {cover['published']:,} published ({cover['share']:.1%})",
        f"digests: pairs {found['digests']['pairs']}, texts {found['digests']['texts']}",
    ]
    return "".join(f"  {line}\n" for line in lines)


def main(config: Config) -> None:
    """Read ids, ask for what is absent, make pairs, say what has changed."""
    published_utc = _end_of_day(config.published)
    rejected_rows, examples = RejectedRows(), Examples()
    salt = load_salt()
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"pairs": config.pairs, "salt": salt_name(salt)},
        runtime_keys=("user_agent", "patience"),
    )
    # Without an age limit a finished product stays as it is, and its input need not be read.
    if config.read_again_after_days is None and artifact.is_current():
        return
    given = read_ids(config, rejected_rows)
    if not given:
        raise DataError(f"{config.pairs}: no pair of ids is left: {rejected_rows.counts()}")
    parts = open_parts(config.out, salt, config.read_again_after_days)
    comments = Store(parts, "comments", {pair[side] for pair in given for side in SIDES})
    posts = Store(parts, "posts", posts_of(comments))
    traffic: dict[str, Any] = {}
    if comments.missing() or posts.missing():
        parts.discard_leftovers()
        client = RedditClient(config.user_agent, config.patience)
        try:
            comments.fetch(client, lambda thing, when: comment_facts(thing, when, salt))
            posts = Store(parts, "posts", posts_of(comments))
            posts.fetch(client, lambda thing, _: post_facts(thing))
        except RedditError as error:
            raise RedditError(
                f"{error} ({len(comments.facts)} comments and {len(posts.facts)} posts are kept in "
                f"{parts.folder})"
            ) from error
        finally:
            client.close()
        traffic = client.traffic.plain()
    elif artifact.is_current():
        return
    pairs = make_pairs(given, comments.facts, posts.facts, config, rejected_rows)
    pairs, cleaning = clean_table(pairs, config.cleaning, dict.fromkeys(SIDES, "pair_id"), examples)
    pairs = with_words(pairs)
    if pairs.num_rows == 0:
        raise DataError(f"{config.pairs}: no pair could be made: {rejected_rows.counts()}")
    found = changes(given, comments.facts, pairs, published_utc)
    table = comment_table(given, comments.facts)
    artifact.write("pairs.parquet", lambda path: write_table(pairs, path))
    artifact.write("comments.parquet", lambda path: write_table(table, path))
    artifact.write("rejected.jsonl", rejected_rows.write)
    artifact.write("examples.jsonl", examples.write)
    comments.discard_unused()
    posts.discard_unused()
    read = [one["score_utc"] for one in comments.facts.values()]
    artifact.counts = {
        "requests_of_this_run": traffic,
        "read_before": {"comments": comments.read_before, "posts": posts.read_before},
        "pairs": pairs.num_rows,
        "prompts": len(set(pairs["prompt_id"].to_pylist())),
        "rejected_rows": rejected_rows.counts(),
        "cleaning": cleaning,
        "read_from_utc": min(read),
        "read_to_utc": max(read),
        **found,
    }
    artifact.finish()
    print(f"{config.out / 'pairs.parquet'}: {pairs.num_rows:,} pairs")
    print(say(found), end="")
    print(rejected_rows.summary(), end="")
    if traffic:
        print(
            f"  {traffic['requests']:,} requests, {sum(traffic['faults'].values()):,} of them with "
            "faulty answers"
        )


def _end_of_day(day: str | None) -> int | None:
    if day is None:
        return None
    try:
        moment = date.fromisoformat(day)
    except ValueError as error:
        raise ConfigError(f"published is {day!r}: write a day as '2025-07-01'") from error
    return int(datetime(moment.year, moment.month, moment.day, tzinfo=UTC).timestamp()) + 86_400


if __name__ == "__main__":
    run_program(main, Config, __doc__)
