"""Fetch the texts of published pairs of comment ids from Reddit.

    litbench data rehydrate --config configs/data/litbench_test.yaml

Needs `praw_client_id` and `praw_client_secret` in the environment or in praw.ini. Reads a table
with `chosen_comment_id` and `rejected_comment_id`, such as push_to_hub.py writes with `ids_only`.
Requests a hundred comments at a time, then their posts, whose titles are the prompts. Each answer
is stored in `out/parts`, so a killed run resumes.

Writes into `out`: `pairs.parquet`, `rejected.jsonl` (pairs that cannot be made, with reasons) and
`manifest.json`. Prints what has changed since publication. Labels stay as published. Texts are not
cleaned; use import_pairs.py with `cleaning`.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from litbench.collect.parts import fresh_parts
from litbench.collect.reddit import BATCH, RedditClient, text_state
from litbench.data.chunks import ROW
from litbench.data.ingest import RejectedRows, read_foreign
from litbench.data.records import PAIRS, SIDES, Column, Schema, pair_id
from litbench.data.sources.posts import (
    THING_ID,
    fullname,
    load_salt,
    salt_name,
    story_row,
    text_of,
)
from litbench.data.tables import write_table
from litbench.data.text import count_words, normalise_prompt
from litbench.runs.config import run_program
from litbench.runs.errors import DataError
from litbench.runs.outputs import Artifact, Cache
from litbench.runs.progress import ProgressBar

# Columns that push_to_hub.py publishes in addition to ids and votes.
LABELS = ("label_source", "split", "margin", "weight", "fold")
IDS = Schema(
    "pairs of ids",
    (
        Column("chosen_comment_id", "text", "the preferred comment", required=True),
        Column("rejected_comment_id", "text", "the other comment", required=True),
        Column("chosen_upvotes", "integer", "its votes when the pairs were published"),
        Column("rejected_upvotes", "integer", "its votes when the pairs were published"),
        *(replace(column, required=False) for column in PAIRS.columns if column.name in LABELS),
    ),
    key=("chosen_comment_id", "rejected_comment_id"),
)
# Columns in addition to PAIRS, once per side.
EXTRA = ("score_utc", "published_score", "edited_utc")

# Facts about comments or posts, by full name.
Facts = dict[str, dict[str, Any]]


@dataclass
class Config:
    """Configuration of `rehydrate.py`.

    Attributes:
        pairs: a file, a folder saved by datasets, or owner/name[@revision][:split].
        out: output folder.
        columns: maps columns of the ids (chosen_comment_id, rejected_comment_id, chosen_upvotes,
            rejected_upvotes) and labels (label_source, split, margin, weight, fold) to columns of
            `pairs` with other names, or to constants such as "'train'". By default, label_source
            is votes and split is test.
        where: SQL condition on the columns of `pairs`.
        read_again_after_days: comments and posts read longer ago are read again, which drops texts
            that were deleted since; null never reads again.
    """

    pairs: str
    out: Path
    columns: dict[str, str] = field(default_factory=dict)
    where: str | None = None
    read_again_after_days: float | None = None


def read_ids(config: Config, rejected_rows: RejectedRows) -> list[dict[str, Any]]:
    """Return the pairs of full names; rejects repeated and contradictory pairs."""
    table = read_foreign(
        config.pairs,
        IDS,
        columns=config.columns,
        rejected_rows=rejected_rows,
        where=config.where,
        numbered=True,
    )
    by_id: dict[str, list[dict[str, Any]]] = {}
    for row in table.select([ROW, *(column.name for column in IDS.columns)]).to_pylist():
        names = {side: fullname("t1", row[f"{side}_comment_id"]) for side in SIDES}
        name = pair_id(*names.values())
        by_id.setdefault(name, []).append({**row, **names, "pair_id": name})
    rows = []
    for same in by_id.values():
        for number, pair in enumerate(same):
            if not all(re.fullmatch(f"t1_{THING_ID}", pair[side]) for side in SIDES):
                reason = "not a comment's id"
            elif pair["chosen"] == pair["rejected"]:
                reason = "the same comment on both sides"
            elif len({repeat["chosen"] for repeat in same}) == 2:
                reason = "the pair also appears with its sides swapped"
            elif number:
                reason = "repeated pair"
            else:
                rows.append(pair)
                continue
            shown = [pair[side] for side in SIDES]
            rejected_rows.add(config.pairs, pair[ROW], "ids", reason, shown)
    return rows


def comment_facts(thing: Mapping[str, Any] | None, read_utc: int, salt: str) -> dict[str, Any]:
    """Return a comment's row without the prompt, and its state.

    The state is present, deleted (by its author), removed (by moderators or Reddit), missing
    (Reddit does not know the id), or an error message.
    """
    if thing is None:
        return {"state": "missing"}
    # Only the post's id is known here; the post is read later.
    post = {"id": thing.get("link_id"), "title": ""}
    try:
        row = story_row(thing, post, source="reddit", salt=salt, score_utc=read_utc, escaped=False)
    except DataError as error:
        return {"state": str(error)}
    names = ("prompt_id", "text", "score", "score_utc", "created_utc", "edited_utc", "author")
    return {"state": text_state(row["text"]), **{name: row[name] for name in names}}


def post_facts(thing: Mapping[str, Any] | None, _: int) -> dict[str, Any]:
    """Return a post's title and the state of the title."""
    title = None if thing is None else text_of(thing, "title", needed=False)
    # Only the title matters: a prompt whose text or image is gone is still a prompt.
    return {"state": "missing" if title is None else text_state(title), "title": title}


def fetch(
    kind: str,
    wanted: set[str],
    keep: Callable[[Mapping[str, Any] | None, int], dict[str, Any]],
    client: RedditClient,
    parts: Cache,
    made_for: Any,
) -> Facts:
    """Return facts about comments or posts; requests those that are in no part."""
    facts: Facts = {}
    for _, part in parts.stored(lambda path: json.loads(path.read_bytes())):
        facts |= part["things"]
    missing = sorted(wanted - facts.keys())

    def request(batch: list[str]) -> dict[str, Any]:
        things, read_utc = client.info(batch), int(time.time())
        new = {name: keep(things.get(name), read_utc) for name in batch}
        return {"read_utc": read_utc, "made_for": made_for, "things": new}

    starts = range(0, len(missing), BATCH)
    for start in ProgressBar(starts, desc=kind, unit="request", leave=False):
        batch = missing[start : start + BATCH]
        facts |= parts.get([made_for, batch], partial(request, batch))["things"]
    return facts


def make_pairs(
    pair_ids: Sequence[Mapping[str, Any]],
    comments: Facts,
    posts: Facts,
    config: Config,
    rejected_rows: RejectedRows,
) -> pa.Table:
    """Add texts and prompts to the pairs; rejects pairs without them.

    Returns:
        Table with the schema PAIRS, and the columns of EXTRA per side.
    """
    rows = []
    for pair in pair_ids:
        sides = {side: comments[pair[side]] for side in SIDES}
        present = [comment for comment in sides.values() if comment["state"] == "present"]
        prompts = [posts[comment["prompt_id"]] for comment in present]
        reasons = [(side, comment["state"]) for side, comment in sides.items()]
        reasons += [("prompt", post["state"]) for post in prompts]
        reasons = [(column, state) for column, state in reasons if state != "present"]
        if not reasons and len({normalise_prompt(post["title"]) for post in prompts}) > 1:
            reasons = [("prompt", "the comments answer two prompts")]
        if reasons:
            shown = [pair[side] for side in SIDES]
            rejected_rows.add(config.pairs, pair[ROW], *reasons[0], shown)
            continue
        row = {
            **pair,
            "prompt_id": sides["chosen"]["prompt_id"],
            "prompt": prompts[0]["title"],
            "label_source": pair["label_source"] or "votes",
            "split": pair["split"] or "test",
        }
        for side, comment in sides.items():
            row |= {f"{side}_{name}": value for name, value in comment.items()}
            row[f"{side}_story_id"], row[side] = pair[side], comment["text"]
            row[f"{side}_published_score"] = pair[f"{side}_upvotes"]
        rows.append(row)
    extra = [pa.field(f"{side}_{name}", pa.int64()) for name in EXTRA for side in SIDES]
    fields = [pa.field(field.name, field.type) for field in PAIRS.arrow()]
    table = pa.Table.from_pylist(rows, pa.schema([*fields, *extra])).sort_by("pair_id")
    for side in SIDES:
        index = table.column_names.index(f"{side}_n_words")
        table = table.set_column(index, f"{side}_n_words", count_words(table[side]))
    return table


def changes(pairs: pa.Table, comments: Facts, n_published: int) -> dict[str, Any]:
    """Return the changes of comments and votes since publication."""
    rows = pairs.drop_columns([*SIDES, "prompt"]).to_pylist()
    leads = [
        row["chosen_score"] - row["rejected_score"]
        for row in rows
        if row["chosen_score"] is not None and row["rejected_score"] is not None
    ]
    return {
        "comments": {
            "asked_for": len(comments),
            **dict(sorted(Counter(facts["state"] for facts in comments.values()).items())),
            "edited": sum(facts.get("edited_utc") is not None for facts in comments.values()),
        },
        "order": {
            "pairs_with_both_scores": len(leads),
            "changed": sum(lead < 0 for lead in leads),
            "tied": leads.count(0),
        },
        "coverage": {"published": n_published, "made": len(rows)},
    }


def main(config: Config) -> None:
    """Fetch the texts, write the pairs and report changes."""
    rejected_rows, salt = RejectedRows(), load_salt()
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"salt": salt_name(salt), "pairs": config.pairs},
    )
    made_for = {"form": 5, "salt": salt_name(salt)}
    comment_parts, post_parts = (
        fresh_parts(config.out, kind, made_for, config.read_again_after_days)
        for kind in ("comments", "posts")
    )
    if any((config.out / "parts").glob("*/*.json")) and artifact.is_current():
        return
    pair_ids = read_ids(config, rejected_rows)
    wanted = {pair[side] for pair in pair_ids for side in SIDES}
    with closing(RedditClient()) as client:
        keep = partial(comment_facts, salt=salt)
        comments = fetch("comments", wanted, keep, client, comment_parts, made_for)
        comments = {name: facts for name, facts in comments.items() if name in wanted}
        present = [facts for facts in comments.values() if facts["state"] == "present"]
        answered = {facts["prompt_id"] for facts in present}
        posts = fetch("posts", answered, post_facts, client, post_parts, made_for)
    pairs = make_pairs(pair_ids, comments, posts, config, rejected_rows)
    if pairs.num_rows == 0:
        raise DataError(
            f"{config.pairs}: no pair could be made ({rejected_rows.counts()}): check the ids"
        )
    artifact.write("pairs.parquet", lambda path: write_table(pairs, path))
    artifact.write("rejected.jsonl", rejected_rows.write)
    changed = changes(pairs, comments, len(pair_ids))
    artifact.counts = {
        "pairs": pairs.num_rows,
        "prompts": len(set(pairs["prompt_id"].to_pylist())),
        "rejected_rows": rejected_rows.counts(),
        **changed,
    }
    artifact.finish()
    print(f"{config.out / 'pairs.parquet'}: {pairs.num_rows:,} pairs")
    for name, values in changed.items():
        print(f"  {name.replace('_', ' ')}: {json.dumps(values)}")
    print(rejected_rows.summary(), end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
