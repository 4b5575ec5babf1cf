"""Turn published preference pairs into a pairs table.

    python data_prep/import_pairs.py --config configs/data/storyer_pairs.yaml

Reads either a table of stories and a table of pairs that names two stories each (`stories` is
given), or one table that holds prompt and both texts (`stories` is null). What the source does
not have stays null. Writes `pairs.parquet`, `set_aside.jsonl` (rows that could not be used, with
reasons) and `manifest.json` into `out`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa

from litbench.config import run_program
from litbench.errors import DataError
from litbench.manifest import Product
from litbench.reading import read_table
from litbench.records import (
    PAIRS,
    STORIES,
    Column,
    Schema,
    SetAside,
    empty_columns,
    pair_id,
    write_table,
)
from litbench.text import count_words, digest, prompt_key

# A pair that names its stories by id.
LINKS = Schema(
    "links",
    (
        Column("chosen_story_id", "text", "story_id of the preferred story", required=True),
        Column("rejected_story_id", "text", "story_id of the other story", required=True),
    ),
    key=("chosen_story_id", "rejected_story_id"),
)

# A pair that holds its texts.
TEXTS = Schema(
    "texts",
    (
        Column("prompt", "text", "the prompt's text", required=True),
        Column("chosen", "text", "text of the preferred story", required=True),
        Column("rejected", "text", "text of the other story", required=True),
        Column("prompt_id", "text", "the prompt both stories answer"),
        *(
            Column(f"{side}_{name}", kind, about)
            for name, kind, about in (
                ("story_id", "text", "unique name of the story"),
                ("score", "integer", "net upvotes"),
                ("created_utc", "time", "when it was posted"),
                ("author", "text", "salted hash"),
            )
            for side in ("chosen", "rejected")
        ),
        Column("margin", "number", "by how much chosen should lead, in reward"),
        Column("weight", "number", "weight of the pair in training"),
        Column("split", "text", "train, test or another name"),
    ),
    key=("prompt", "chosen", "rejected"),
)


@dataclass
class Config:
    """What to read and how its columns are called.

    Attributes:
        pairs: a file, a folder saved by datasets, or owner/name[@revision][:split].
        out: folder to write.
        pair_columns: for each column its origin in `pairs`: a column's name, a template, or
            "=constant".
        stories: table of stories, or null when `pairs` holds the texts.
        story_columns: the same map for `stories`.
        where: SQL condition on the columns of `pairs`.
        label_source: who preferred the chosen story.
        split: written where the source names no split.
    """

    pairs: str
    out: Path
    pair_columns: dict[str, str] = field(default_factory=dict)
    stories: str | None = None
    story_columns: dict[str, str] = field(default_factory=dict)
    where: str | None = None
    label_source: Literal["votes", "people", "model", "planted"] = "votes"
    split: str = "all"


def join_stories(links: pa.Table, stories: pa.Table, file: str, set_aside: SetAside) -> pa.Table:
    """Look both stories of every pair up; a pair that cannot be made is set aside.

    Its row is then counted among the rows that could be read.
    """
    by_id = {row["story_id"]: row for row in stories.to_pylist()}
    rows = []
    for number, link in enumerate(links.to_pylist(), 1):
        sides = {side: by_id.get(link[f"{side}_story_id"]) for side in ("chosen", "rejected")}
        missing = [f"{side}_story_id" for side, story in sides.items() if story is None]
        if missing:
            set_aside.add(file, number, missing[0], "no such story", link[missing[0]])
            continue
        chosen, rejected = sides["chosen"], sides["rejected"]
        assert chosen is not None
        assert rejected is not None
        if chosen["prompt_id"] != rejected["prompt_id"]:
            set_aside.add(file, number, "prompt_id", "stories of two prompts", link)
            continue
        row = {name: link.get(name) for name in ("margin", "weight", "split")}
        row |= {"prompt": chosen["prompt"], "prompt_id": chosen["prompt_id"]}
        for side, story in (("chosen", chosen), ("rejected", rejected)):
            row[side] = story["text"]
            for name in ("story_id", "score", "created_utc", "author"):
                row[f"{side}_{name}"] = story[name]
        rows.append(row)
    types = {name: column.type for name, column in empty_columns(TEXTS, 0).items()}
    return pa.table({n: pa.array([row[n] for row in rows], t) for n, t in types.items()})


def complete(texts: pa.Table, config: Config, set_aside: SetAside) -> pa.Table:
    """Fill in ids and lengths, and set pairs aside that say nothing or stand twice.

    Their rows are then counted among the rows that could be read.
    """
    words = {
        side: count_words(texts[side].combine_chunks()).to_pylist()
        for side in ("chosen", "rejected")
    }
    rows, seen = [], set()
    for number, row in enumerate(texts.to_pylist(), 1):
        if row["chosen"] == row["rejected"]:
            set_aside.add(config.pairs, number, "rejected", "the same text on both sides")
            continue
        row["prompt_id"] = row["prompt_id"] or prompt_key(row["prompt"])
        for side in ("chosen", "rejected"):
            made = digest("story", row["prompt_id"], row[side])
            row[f"{side}_story_id"] = row[f"{side}_story_id"] or made
            row[f"{side}_n_words"] = words[side][number - 1]
        row["pair_id"] = pair_id(row["chosen_story_id"], row["rejected_story_id"])
        if row["pair_id"] in seen:
            set_aside.add(config.pairs, number, "pair_id", "the two stories are a pair already")
            continue
        seen.add(row["pair_id"])
        row["label_source"] = config.label_source
        row["split"] = row["split"] or config.split
        rows.append(row)
    types = {name: column.type for name, column in empty_columns(PAIRS, 0).items()}
    table = pa.table({n: pa.array([row.get(n) for row in rows], t) for n, t in types.items()})
    return table.sort_by("pair_id")


def main(config: Config) -> None:
    """Read, join, complete, write."""
    inputs = {"pairs": config.pairs}
    if config.stories is not None:
        inputs["stories"] = config.stories
    product = Product(config.out, program=__file__, config=config, inputs=inputs)
    if product.is_current():
        return
    set_aside = SetAside()
    schema = TEXTS if config.stories is None else LINKS
    given = read_table(
        config.pairs, schema, columns=config.pair_columns, set_aside=set_aside, where=config.where
    )
    if config.stories is not None:
        columns = {"source": "=import", **config.story_columns}
        stories = read_table(config.stories, STORIES, columns=columns, set_aside=set_aside)
        given = join_stories(given, stories, config.pairs, set_aside)
    pairs = complete(given, config, set_aside)
    if pairs.num_rows == 0:
        raise DataError(f"{config.pairs}: no pair could be made: {set_aside.counts()}")
    product.write("pairs.parquet", lambda path: write_table(pairs, path))
    product.write("set_aside.jsonl", set_aside.write)
    product.counts = {
        "pairs": pairs.num_rows,
        "prompts": len(set(pairs["prompt_id"].to_pylist())),
        "not_selected": set_aside.not_selected,
        "set_aside": set_aside.counts(),
    }
    product.finish()
    print(f"{config.out / 'pairs.parquet'}: {pairs.num_rows:,} pairs")
    print(set_aside.summary(), end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
