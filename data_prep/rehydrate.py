"""Fetch the texts of published pairs of comment ids from Reddit.

    python data_prep/rehydrate.py --config configs/data/litbench_test.yaml

Needs `praw_client_id` and `praw_client_secret` in the environment or in praw.ini. Reads a table
with `chosen_comment_id` and `rejected_comment_id`, as push_to_hub.py writes it with `ids_only`;
asks Reddit for a hundred comments at a time, then for their posts, whose titles are the prompts.
Every hundred is kept in `out/parts` as soon as it was read: a killed run resumes with the next.

The label stays as published. Writes `pairs.parquet`, `comments.parquet` (every comment asked for
and what has become of it), `rejected.jsonl` (pairs that cannot be made, with reasons) and
`manifest.json` into `out`, and prints what has changed since publication. Texts are as Reddit
shows them; import_pairs.py with `cleaning` cleans them.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.errors import ConfigError, DataError
from litbench.records import PAIRS, Column, Schema, pair_id
from litbench.sources.parts import Parts
from litbench.sources.posts import (
    THING_ID,
    fullname,
    load_salt,
    mend,
    mend_row,
    salt_name,
    story_row,
)
from litbench.sources.reddit import BATCH, RedditClient, text_state
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
# What is known of comments or posts, by full name.
Facts = dict[str, dict[str, Any]]


@dataclass
class Config:
    """Which pairs to fetch.

    Attributes:
        pairs: a file, a folder saved by datasets, or owner/name[@revision][:split].
        out: folder to write.
        columns: for each of chosen_comment_id, rejected_comment_id, chosen_upvotes and
            rejected_upvotes, and for label_source, split, margin, weight and fold, its column in
            `pairs`, where that has another name; "'test'" is the same for all pairs.
        where: SQL condition on the columns of `pairs`.
        published: the day the pairs were published, as "2025-07-01"; comments edited after it are
            counted. Null counts edited comments only.
        label_source: who preferred the chosen stories of pairs that do not say so themselves:
            votes, people, model or planted.
        split: written into the column `split` of pairs that have none themselves.
        read_again_after_days: comments and posts read longer ago are read again, which drops what
            authors have deleted since; null keeps them.
    """

    pairs: str
    out: Path
    columns: dict[str, str] = field(default_factory=dict)
    where: str | None = None
    published: str | None = None
    label_source: LabelSource = "votes"
    split: str = "test"
    read_again_after_days: float | None = None


def read_ids(config: Config, rejected_rows: RejectedRows) -> list[dict[str, Any]]:
    """The pairs of full names; those that repeat or contradict each other are rejected."""
    table = read_table(
        config.pairs,
        IDS,
        columns=config.columns,
        rejected_rows=rejected_rows,
        where=config.where,
        numbered=True,
    )
    given: list[dict[str, Any]] = []
    orders: dict[str, set[str]] = {}
    for row in table.select([ROW, *(one.name for one in IDS.columns)]).to_pylist():
        number = row.pop(ROW)
        spelled = {side: row.pop(f"{side}_comment_id") for side in SIDES}
        names = {side: fullname("t1", name) for side, name in spelled.items()}
        wrong = [side for side in SIDES if not re.fullmatch(f"t1_{THING_ID}", names[side])]
        if wrong:
            column, value = f"{wrong[0]}_comment_id", spelled[wrong[0]]
            rejected_rows.add(config.pairs, number, column, "not a comment's id", value)
        elif names["chosen"] == names["rejected"]:
            column, reason = "rejected_comment_id", "the same comment on both sides"
            rejected_rows.add(config.pairs, number, column, reason, names["rejected"])
        else:
            name = pair_id(*names.values())
            orders.setdefault(name, set()).add(names["chosen"])
            given.append({"row": number, "pair_id": name, **names, **row})
    kept: dict[str, dict[str, Any]] = {}
    for pair in given:
        reason = None
        if len(orders[pair["pair_id"]]) == 2:
            reason = "the pair stands there with the sides swapped, too"
        elif pair["pair_id"] in kept:
            reason = "the pair stands there already"
        if reason is None:
            kept[pair["pair_id"]] = pair
        else:
            shown = [pair[side] for side in SIDES]
            rejected_rows.add(config.pairs, pair["row"], "chosen_comment_id", reason, shown)
    return list(kept.values())


# Reading from Reddit ---------------------------------------------------------------------------


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


def post_facts(thing: Mapping[str, Any] | None, _: int) -> dict[str, Any]:
    """What is kept of a post: its title and whether that is there to be read."""
    title = None if thing is None else thing.get("title")
    if not isinstance(title, str):
        return {"state": "missing", "title": None}
    # A post without its title is no prompt; one whose text or picture is gone still is.
    return {"state": text_state(title), "title": mend(title)}


def fetch(
    kind: str,
    wanted: set[str],
    keep: Callable[[Mapping[str, Any] | None, int], dict[str, Any]],
    client: RedditClient,
    parts: Parts,
) -> tuple[Facts, int]:
    """Facts about comments or posts; those that are absent from the parts are requested.

    Returns:
        The facts, and how many of them an earlier run had read.
    """
    held = [part for name in parts.names(kind) if (part := parts.get(name)) is not None]
    facts: Facts = {}
    # What was read last counts.
    for part in sorted(held, key=lambda part: part["read_utc"]):
        facts |= {name: one for name, one in part["things"].items() if name in wanted}
    read_before = len(facts)
    missing = sorted(wanted - facts.keys())
    starts = range(0, len(missing), BATCH)
    for start in tqdm(starts, desc=kind, unit="request", disable=None, leave=False):
        batch = missing[start : start + BATCH]
        things = client.info(batch)
        new = {name: keep(things.get(name), client.read_utc) for name in batch}
        parts.put(f"{kind}/{digest(*batch)}", {"read_utc": client.read_utc, "things": new})
        facts |= new
    return facts, read_before


# Making pairs ----------------------------------------------------------------------------------


def make_pairs(
    given: Sequence[Mapping[str, Any]],
    comments: Facts,
    posts: Facts,
    config: Config,
    rejected_rows: RejectedRows,
) -> pa.Table:
    """Add texts and prompts to the pairs; a pair that lacks one is rejected.

    Returns:
        Table by PAIRS, and the columns of EXTRA per side.
    """
    rows = []
    for pair in given:
        sides = {side: comments[pair[side]] for side in SIDES}
        absent = [(side, one) for side, one in sides.items() if one["state"] != "present"]
        reason = None
        if absent:
            side, one = absent[0]
            reason = (side, one.get("reason", one["state"]))
        else:
            prompts = [posts[one["prompt_id"]] for one in sides.values()]
            states = [one["state"] for one in prompts if one["state"] != "present"]
            if states:
                reason = ("prompt", states[0])
            elif len({normalise_prompt(one["title"]) for one in prompts}) > 1:
                reason = ("prompt", "the comments answer two prompts")
        if reason is not None:
            shown = [pair[side] for side in SIDES]
            rejected_rows.add(config.pairs, pair["row"], *reason, shown)
            continue
        row = {
            **pair,
            "prompt_id": sides["chosen"]["prompt_id"],
            "prompt": prompts[0]["title"],
            "label_source": pair["label_source"] or config.label_source,
            "split": pair["split"] or config.split,
        }
        for side, one in sides.items():
            row |= {f"{side}_{name}": value for name, value in one.items()}
            row[f"{side}_story_id"], row[side] = pair[side], one["text"]
            row[f"{side}_published_score"] = pair[f"{side}_upvotes"]
        rows.append(row)
    extra = [pa.field(f"{side}_{name}", pa.int64()) for name in EXTRA for side in SIDES]
    fields = [pa.field(one.name, one.type) for one in PAIRS.arrow()]
    table = pa.Table.from_pylist(rows, pa.schema([*fields, *extra])).sort_by("pair_id")
    for side in SIDES:
        place = table.column_names.index(f"{side}_n_words")
        table = table.set_column(place, f"{side}_n_words", count_words(table[side]))
    return table


def comment_table(given: Sequence[Mapping[str, Any]], comments: Facts) -> pa.Table:
    """Every comment asked for, by its id."""
    published = {pair[side]: pair[f"{side}_upvotes"] for pair in given for side in SIDES}
    rows = [
        {"story_id": name, **facts, "published_score": published[name]}
        for name, facts in sorted(comments.items())
    ]
    table = pa.Table.from_pylist(rows, COMMENTS)
    place = table.column_names.index("n_words")
    return table.set_column(place, "n_words", count_words(table["text"]))


def changes(
    given: Sequence[Mapping[str, Any]], comments: Facts, n_pairs: int, published_utc: int | None
) -> dict[str, Any]:
    """What has become of the comments, their votes and the pairs since publication."""
    states = Counter(one["state"] for one in comments.values())
    present = [one for one in comments.values() if one["state"] == "present"]
    steps_of = {}
    for pair, side in product(given, SIDES):
        before, now = pair[f"{side}_upvotes"], comments[pair[side]].get("score")
        if before is not None and now is not None:
            # A comment of several pairs counts once.
            steps_of[pair[side]] = now - before
    steps = list(steps_of.values())
    shares = (0.05, 0.25, 0.5, 0.75, 0.95)
    quantiles = np.quantile(steps, shares).tolist() if steps else []
    both = [[comments[pair[side]] for side in SIDES] for pair in given]
    both = [sides for sides in both if all(one["state"] == "present" for one in sides)]
    voted = [(a["score"], b["score"]) for a, b in both if None not in (a["score"], b["score"])]
    turned = sum(a < b for a, b in voted)
    return {
        "comments": {
            "asked_for": len(comments),
            "fetched": len(comments) - states["missing"] - states["broken"],
            **{
                state: states[state]
                for state in ("present", "deleted", "removed", "missing", "broken")
            },
            "edited": sum(one["edited"] for one in present),
            "edited_since_publication": None
            if published_utc is None
            else sum((one["edited_utc"] or 0) > published_utc for one in present),
            "account_deleted": sum(one["author"] is None for one in present),
            "mended": sum(one["mended"] for one in present),
        },
        "score_changes": {
            "comments": len(steps),
            "unchanged": steps.count(0),
            "quantiles": {
                f"{share:.0%}": value for share, value in zip(shares, quantiles, strict=False)
            },
        },
        "order": {
            "pairs_with_both_scores": len(voted),
            "changed": turned,
            "changed_share": turned / len(voted) if voted else None,
            "tied": sum(a == b for a, b in voted),
        },
        "chosen_later": {
            "pairs_with_both_times": len(both),
            "holds": sum(a["created_utc"] > b["created_utc"] for a, b in both),
        },
        "coverage": {
            "published": len(given), "made": n_pairs, "share": n_pairs / len(given)
        },
    }  # fmt: skip


def say(found: Mapping[str, Any]) -> None:
    """Print the changes."""
    for name in ("comments", "score_changes", "order", "chosen_later", "coverage"):
        values = ", ".join(
            f"{key.replace('_', ' ')} {value:.3g}" if isinstance(value, float) else
            f"{key.replace('_', ' ')} {value}"
            for key, value in found[name].items()
        )  # fmt: skip
        print(f"  {name.replace('_', ' ')}: {values}")


def main(config: Config) -> None:
    """Read ids, request what is absent, make pairs, report what has changed."""
    published_utc = _end_of_day(config.published)
    rejected_rows, salt = RejectedRows(), load_salt()
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"pairs": config.pairs, "salt": salt_name(salt)},
    )
    depends_on = {"form": 3, "salt": salt_name(salt)}
    parts = Parts(config.out / "parts", depends_on, config.read_again_after_days)
    if parts.are_current() and artifact.is_current():
        return
    given = read_ids(config, rejected_rows)
    if not given:
        raise DataError(f"{config.pairs}: no pair of ids is left: {rejected_rows.counts()}")
    wanted = {pair[side] for pair in given for side in SIDES}
    with closing(RedditClient()) as client:
        keep = partial(comment_facts, salt=salt)
        comments, comments_before = fetch("comments", wanted, keep, client, parts)
        answered = {one["prompt_id"] for one in comments.values() if one["state"] == "present"}
        posts, posts_before = fetch("posts", answered, post_facts, client, parts)
    pairs = make_pairs(given, comments, posts, config, rejected_rows)
    if pairs.num_rows == 0:
        raise DataError(f"{config.pairs}: no pair could be made: {rejected_rows.counts()}")
    found = changes(given, comments, pairs.num_rows, published_utc)
    table = comment_table(given, comments)
    artifact.write("pairs.parquet", lambda path: write_table(pairs, path))
    artifact.write("comments.parquet", lambda path: write_table(table, path))
    artifact.write("rejected.jsonl", rejected_rows.write)
    parts.discard_absent()
    read = [one["score_utc"] for one in comments.values()]
    artifact.counts = {
        "requests_of_this_run": client.traffic(),
        "read_before": {"comments": comments_before, "posts": posts_before},
        "pairs": pairs.num_rows,
        "prompts": len(set(pairs["prompt_id"].to_pylist())),
        "rejected_rows": rejected_rows.counts(),
        "read_from_utc": min(read),
        "read_to_utc": max(read),
        **found,
    }
    artifact.finish()
    print(f"{config.out / 'pairs.parquet'}: {pairs.num_rows:,} pairs")
    say(found)
    print(rejected_rows.summary(), end="")


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
