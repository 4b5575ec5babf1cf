"""Turn published preference pairs into a pairs table.

    python data_prep/import_pairs.py --config configs/data/storyer_pairs.yaml

Reads pairs in one of three forms, from a file or from the Hub:

- a table of stories and a table of pairs of their ids (if `stories` is given);
- the prompt, the chosen and the rejected text in one row, also as messages (`conversational`);
- the prompt, a first and a second text, and a label that tells which is better (if `label_first`
  and `label_second` are given). A row may also have an explanation of the label that calls the
  texts A and B (`rationale`); the side that was A is then stored with it.

Columns that the source does not have are null. Texts are unchanged unless `cleaning` is given, and
the rules of make_pairs.py are not applied. Writes into `out`: `pairs.parquet`, `rejected.jsonl`
(rows that could not be used, with reasons), `examples.jsonl` (removed passages, with `cleaning`)
and `manifest.json`.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa
import pyarrow.compute as pc

from litbench.config import Input, nearest, run_program
from litbench.curation.cleaning import Cleaning, clean_table
from litbench.curation.funnel import Examples
from litbench.errors import ConfigError, DataError
from litbench.ingest import ROW, RejectedRows, read_foreign
from litbench.records import (
    PAIRS,
    STORIES,
    Column,
    Schema,
    check_prompt_ids,
)
from litbench.sources.pairs import (
    OF_PAIR,
    PER_SIDE,
    SIDES,
    as_pairs,
    conversation_columns,
    drop_repeats,
    name_pairs,
    two_texts,
)
from litbench.store import Artifact
from litbench.tables import write_table
from litbench.templates import has_verdict_line, split_verdict
from litbench.text import count_words

# Columns made from `rationale`, as in make_rationales.py.
RATIONALE = ("rationale", "rationale_first")
# Column of the label's explanation; no source has this name.
EXPLANATION = "(rationale)"

LABEL = (
    Column("label", "text", "which text is better", required=True),
    Column(EXPLANATION, "text", "why"),
)


# Pairs of story ids.
LINKS = Schema(
    "links",
    (
        Column("chosen_story_id", "text", "story_id of the preferred story", required=True),
        Column("rejected_story_id", "text", "story_id of the other story", required=True),
        *OF_PAIR,
    ),
    key=("chosen_story_id", "rejected_story_id"),
)


@dataclass
class Config:
    """Configuration of `import_pairs.py`.

    Attributes:
        pairs: a file, a folder saved by datasets, or owner/name[@revision][:split].
        out: output folder.
        pair_columns: maps each column to a column of `pairs` or to an SQL expression (DuckDB), such
            as "chosen[-1].content" for a list of messages, or "unnest(rejected)" for one row per
            element. The labelled form has the columns prompt, first, second, label and,
            optionally, first_score and so on.
        conversational: whether the texts are lists of messages with `role` and `content`, as in
            trl's conversational preference data. The last message of each side is the story. The
            earlier messages, which both sides share, are the prompt, unless pair_columns maps
            `prompt` to a column of messages or text.
        keep: further columns of `pairs` to copy.
        label_first: values of `label` that prefer the first text. For booleans, map label to
            "CAST(column AS TEXT)", which gives true and false.
        label_second: values of `label` that prefer the second text; rows with other values are
            rejected.
        rationale: column with an explanation that calls the first text Story A and the second
            Story B, for the labelled form only. It becomes `rationale`, without a verdict such as
            "Preferred: A" in its last line, and `rationale_first`, the side that was Story A. Both
            are null if there is no explanation, or if its verdict is unclear or contradicts the
            label.
        stories: table of stories; null if `pairs` has the texts.
        story_columns: maps the columns of `stories`, as `pair_columns`.
        where: SQL condition on the columns of `pairs`.
        encoding: encoding of text files, such as cp1252.
        label_source: origin of the labels.
        split: split of the pairs for which the source has none.
        max_train_pairs_per_prompt: most pairs of a prompt in the split train; larger prompts are
            subsampled, and the other pairs are rejected.
        cleaning: cleaning steps; steps that are not given are off.
    """

    pairs: Annotated[str, Input]
    out: Path
    pair_columns: dict[str, str] = field(default_factory=dict)
    conversational: bool = False
    keep: list[str] = field(default_factory=list)
    label_first: list[str | int] = field(default_factory=list)
    label_second: list[str | int] = field(default_factory=list)
    rationale: str | None = None
    stories: Annotated[str | None, Input] = None
    story_columns: dict[str, str] = field(default_factory=dict)
    where: str | None = None
    encoding: str = "utf-8"
    label_source: Literal["votes", "people", "model", "planted"] = "votes"
    split: str = "all"
    max_train_pairs_per_prompt: int | None = None
    cleaning: Cleaning = field(default_factory=Cleaning.none)


def choose_schema(config: Config) -> Schema:
    """Return the schema of `pairs`; raise ConfigError if the keys do not fit together."""
    first, second = ({str(value) for value in v} for v in (config.label_first, config.label_second))
    if bool(first) != bool(second) or first & second:
        raise ConfigError("label_first and label_second belong together and share no value")
    if first and config.stories is not None:
        raise ConfigError("stories and label_first are two forms of pairs: give one of them")
    if config.conversational and (first or config.stories is not None):
        raise ConfigError("conversational needs chosen and rejected: leave out stories and labels")
    if config.rationale is not None and not first:
        raise ConfigError("rationale: give label_first and label_second, which tell who is A")
    reserved = [*PAIRS.arrow().names, *(RATIONALE if config.rationale is not None else ())]
    if taken := [name for name in config.keep if name in reserved]:
        raise ConfigError(f"keep: '{taken[0]}' is a column of pairs: map it under pair_columns")
    if config.stories is not None:
        return LINKS
    return two_texts("first", "second", *LABEL) if first else two_texts(*SIDES)


def join_stories(
    links: pa.Table, stories: pa.Table, config: Config, rejected_rows: RejectedRows
) -> pa.Table:
    """Look up both stories of every pair; reject pairs that cannot be made."""
    check_prompt_ids(stories, str(config.stories))
    ids = stories["story_id"].combine_chunks()
    indices = {
        side: pc.index_in(links[f"{side}_story_id"], value_set=ids).combine_chunks()
        for side in SIDES
    }
    prompts = [stories["prompt_id"].take(indices[side]) for side in SIDES]
    same = pc.fill_null(pc.equal(*prompts), fill_value=False).combine_chunks()
    for row in pc.indices_nonzero(pc.invert(same)).to_pylist():
        link = [links[f"{side}_story_id"][row].as_py() for side in SIDES]
        column, reason = "prompt_id", "stories of two prompts"
        for side in reversed(SIDES):
            if not indices[side][row].is_valid:
                column, reason = f"{side}_story_id", "no such story"
        rejected_rows.add(config.pairs, links[ROW][row].as_py(), column, reason, link)
    links = links.filter(same)
    columns = {name: links[name] for name in (ROW, *config.keep, *(c.name for c in OF_PAIR))}
    for side in SIDES:
        story = stories.take(indices[side].filter(same))
        columns |= {f"{side}_{column.name}": story[column.name] for column in PER_SIDE}
        columns |= {side: story["text"], "prompt": story["prompt"], "prompt_id": story["prompt_id"]}
    return pa.table(columns)


def apply_labels(
    given: pa.Table, config: Config, rejected_rows: RejectedRows, fates: Counter[str]
) -> pa.Table:
    """Turn first and second into chosen and rejected; reject rows with an unknown label.

    `fates` counts the rationales by outcome.
    """
    first, second = (
        pc.is_in(given["label"], value_set=pa.array(list(map(str, values)), pa.large_string()))
        for values in (config.label_first, config.label_second)
    )
    either = pc.or_(first, second)
    for row in given.select([ROW, "label"]).filter(pc.invert(either)).to_pylist():
        rejected_rows.add(config.pairs, row[ROW], "label", "prefers neither text", row["label"])
    given, first = given.filter(either), first.filter(either)
    plain = (ROW, "prompt", "prompt_id", *config.keep, *(column.name for column in OF_PAIR))
    columns = {name: given[name] for name in plain}
    for ending in ("", *(f"_{column.name}" for column in PER_SIDE)):
        a, b = given[f"first{ending}"], given[f"second{ending}"]
        columns[f"chosen{ending}"] = pc.if_else(first, a, b)
        columns[f"rejected{ending}"] = pc.if_else(first, b, a)
    if config.rationale is not None:
        rows = zip(given[EXPLANATION].to_pylist(), first.to_pylist(), strict=True)
        rationales = [read_rationale(text or "", is_first, fates) for text, is_first in rows]
        for name, values in zip(RATIONALE, zip(*rationales, strict=True), strict=True):
            columns[name] = pa.chunked_array([pa.array(values, pa.large_string())])
    return pa.table(columns)


def read_rationale(
    explanation: str, is_first: bool, fates: Counter[str]
) -> tuple[str, str] | tuple[None, None]:
    """Return a rationale without its verdict, and the side it calls A, if it supports the label."""
    text, label = split_verdict(explanation)
    if label is not None and (label == "A") != is_first:
        fate = "other_verdict"
    elif has_verdict_line(text):
        fate = "unreadable_verdict"
    else:
        fate = "kept" if text else "absent"
    fates[fate] += 1
    return (text, "chosen" if is_first else "rejected") if fate == "kept" else (None, None)


def complete(
    texts: pa.Table, config: Config, rejected_rows: RejectedRows, examples: Examples
) -> tuple[pa.Table, dict[str, int]]:
    """Fill in ids and lengths, clean texts, and reject repeated pairs and pairs of equal texts.

    Returns:
        The pairs sorted by pair_id, and the number of texts that each cleaning step changed.
    """
    pairs = name_pairs(texts)
    check_prompt_ids(pairs, config.pairs)
    cut: dict[str, int] = {}
    if config.cleaning != Cleaning.none():
        named = dict.fromkeys(SIDES, "pair_id")
        pairs, cut = clean_table(pairs, config.cleaning, named, examples)
    same = pc.equal(pairs["chosen"], pairs["rejected"])
    for row in pairs[ROW].filter(same).to_pylist():
        rejected_rows.add(config.pairs, row, "rejected", "the same text on both sides")
    pairs = drop_repeats(pairs.filter(pc.invert(same)), config.pairs, rejected_rows)
    if config.max_train_pairs_per_prompt is not None:
        # Pairs are sorted by pair_id, a digest, so the first ones are a random subsample.
        kept, seen = [], Counter[str]()
        for index, row in enumerate(pairs.select([ROW, "prompt_id", "split"]).to_pylist()):
            seen[row["prompt_id"]] += 1
            is_train = (row["split"] or config.split) == "train"
            if is_train and seen[row["prompt_id"]] > config.max_train_pairs_per_prompt:
                reason = "beyond max_train_pairs_per_prompt"
                rejected_rows.add(config.pairs, row[ROW], "prompt_id", reason)
            else:
                kept.append(index)
        pairs = pairs.take(pa.array(kept, pa.int64()))
    columns = {name: pairs[name] for name in pairs.column_names}
    columns |= {f"{side}_n_words": count_words(pairs[side]) for side in SIDES}
    columns["split"] = pc.fill_null(pairs["split"], config.split)
    columns["label_source"] = pa.chunked_array([pa.array([config.label_source] * pairs.num_rows)])
    extra = [*config.keep, *(RATIONALE if config.rationale is not None else ())]
    return as_pairs({name: columns[name] for name in (*PAIRS.arrow().names, *extra)}), cut


def main(config: Config) -> None:
    """Import the pairs and write them."""
    schema = choose_schema(config)
    artifact = Artifact(config.out, program=__file__, config=config)
    if artifact.is_current():
        return
    rejected_rows, examples, rationales = RejectedRows(), Examples(), Counter[str]()
    origins = dict(config.pair_columns)
    if config.conversational:
        origins = conversation_columns(origins)
    if config.rationale is not None:
        origins[EXPLANATION] = config.rationale
    given = read_foreign(
        config.pairs,
        schema,
        columns=origins,
        rejected_rows=rejected_rows,
        where=config.where,
        encoding=config.encoding,
        numbered=True,
    )
    names = given.drop_columns([ROW]).column_names
    for name in config.keep:
        if name not in names:
            advice = nearest(name, names)
            raise DataError(f"{config.pairs}: no column '{name}' to keep (or mapped): {advice}")
    if config.stories is not None:
        stories = read_foreign(
            config.stories,
            STORIES,
            columns={"source": "'import'", **config.story_columns},
            rejected_rows=rejected_rows,
            encoding=config.encoding,
        )
        given = join_stories(given, stories, config, rejected_rows)
    if config.label_first:
        given = apply_labels(given, config, rejected_rows, rationales)
    pairs, cut = complete(given, config, rejected_rows, examples)
    if pairs.num_rows == 0:
        labels = {row["value"] for row in rejected_rows.rows if row["column"] == "label"}
        raise DataError(
            f"{config.pairs}: no pair could be made: {rejected_rows.counts()}, labels found: "
            f"{sorted(labels)[:5]}: check pair_columns and the labels"
        )
    artifact.write("pairs.parquet", lambda path: write_table(pairs, path))
    artifact.write("rejected.jsonl", rejected_rows.write)
    artifact.counts = {
        "pairs": pairs.num_rows,
        "prompts": pc.count_distinct(pairs["prompt_id"]).as_py(),
        "not_selected": rejected_rows.not_selected,
        "rejected_rows": rejected_rows.counts(),
        "rationales": dict(rationales),
        "cleaning": cut,
    }
    if config.cleaning != Cleaning.none():
        artifact.write("examples.jsonl", examples.write)
    artifact.finish()
    print(f"{config.out / 'pairs.parquet'}: {pairs.num_rows:,} pairs")
    print(rejected_rows.summary(), end="")
    for what, counts in (("rationales", rationales), ("texts changed (see examples.jsonl)", cut)):
        if counts:
            print(f"  {what}: {', '.join(f'{n:,} {name}' for name, n in counts.items())}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
