"""Turn published preference pairs into a pairs table.

    python data_prep/import_pairs.py --config configs/data/storyer_pairs.yaml

Reads pairs in one of three forms, from a file or from the Hub:

- a table of stories and a table of pairs that name two of them (`stories` is given);
- prompt, chosen and rejected text in one row;
- prompt, a first and a second text, and a label that says which is better (`label_first` and
  `label_second` are given). Here an explanation of the label that calls the texts A and B can come
  along (`rationale`): which of the two was A is kept with it.

What the source does not have stays null. Texts stay as they were published unless `cleaning` says
otherwise. No rule of make_pairs.py is applied: these pairs are somebody else's choice. Writes
`pairs.parquet`, `rejected.jsonl` (rows that could not be used, with reasons), with `cleaning`
also `examples.jsonl` (what was cut), and `manifest.json` into `out`.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from litbench.artifact import Artifact
from litbench.config import nearest, run_program
from litbench.curation.cleaning import Cleaning, clean_table
from litbench.curation.funnel import Examples
from litbench.errors import ConfigError, DataError
from litbench.records import (
    PAIRS,
    STORIES,
    Column,
    Schema,
    check_prompt_ids,
    pair_id,
    prompt_keys,
)
from litbench.tables import ROW, RejectedRows, read_table, write_table
from litbench.templates import has_verdict_line, split_verdict
from litbench.text import count_words, digest

SIDES = ("chosen", "rejected")

# What a row may say of each of its two stories, whatever the form calls them.
PER_SIDE = (
    Column("story_id", "text", "unique name of the story"),
    Column("score", "integer", "net upvotes"),
    Column("created_utc", "time", "when it was posted"),
    Column("author", "text", "salted hash"),
)

OF_PAIR = (
    Column("margin", "number", "by how much chosen should lead, in reward"),
    Column("weight", "number", "weight of the pair in training"),
    Column("split", "text", "train, test or another name"),
    Column("fold", "text", "fold the source assigned"),
)


def two_texts(name: str, sides: tuple[str, str], more: Sequence[Column]) -> Schema:
    """Schema of a row that holds a prompt and two texts."""
    return Schema(
        name,
        (
            Column("prompt", "text", "the prompt's text", required=True),
            *(Column(side, "text", f"the {side} story's text", required=True) for side in sides),
            Column("prompt_id", "text", "the prompt both stories answer"),
            *(Column(f"{s}_{c.name}", c.kind, c.about) for c in PER_SIDE for s in sides),
            *more,
            *OF_PAIR,
        ),
        key=("prompt", *sides, *(column.name for column in more)),
    )


# A pair that holds its texts.
TEXTS = two_texts("texts", SIDES, ())

# Two texts, which of them is better and what the source says for it, under a name that no source
# has. It is part of the key: of rows that differ in it alone `find_repeats` knows which one stays.
EXPLANATION = "(rationale)"
LABELLED = two_texts(
    "labelled texts",
    ("first", "second"),
    (
        Column("label", "text", "which text is better", required=True),
        Column(EXPLANATION, "text", "why"),
    ),
)

# What the key `rationale` becomes, as make_rationales.py writes it too.
RATIONALE = ("rationale", "rationale_first")

# A pair that names its stories by id.
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
    """What to read and how its columns are called.

    Attributes:
        pairs: a file, a folder saved by datasets, or owner/name[@revision][:split].
        out: folder to write.
        pair_columns: for each column its origin in `pairs`: a column's name, or else an SQL
            expression (DuckDB) such as "chosen[-1].content" for a list of messages. In the
            labelled form the columns are prompt, first, second, label and, where the source has
            them, first_score, second_score, first_created_utc and so on.
        keep: further columns of `pairs` to take along as they are.
        label_first: values of `label` that prefer the first text; true and false are written
            by label: "CAST(column AS TEXT)", which gives true and false.
        label_second: values that prefer the second; a row with any other is rejected.
        explode: columns that hold lists of one length, such as rejected: each element becomes a
            row of its own before `where` and `pair_columns` see it.
        rationale: column with an explanation that calls the first text Story A and the second
            Story B, for the labelled form only. It becomes the columns `rationale`, without its
            last line where that is a verdict such as "Preferred: A", and `rationale_first`, the
            side that stood as A (chosen or rejected). Both are null where there is none, where its
            verdict is not the label's, and where a verdict line cannot be read or stands before
            the last one, since it may then argue for the other text.
        stories: table of stories, or null when `pairs` holds the texts.
        story_columns: the same map for `stories`.
        where: SQL condition on the columns of `pairs`.
        encoding: of text files, such as cp1252.
        label_source: who preferred the chosen story.
        split: written where the source names no split.
        max_train_pairs_per_prompt: most pairs of a prompt in the split train; a hash of their
            stories chooses them. Others are rejected.
        cleaning: what to cut out of the texts; a step that is not named is off.
    """

    pairs: str
    out: Path
    pair_columns: dict[str, str] = field(default_factory=dict)
    keep: list[str] = field(default_factory=list)
    label_first: list[str | int] = field(default_factory=list)
    label_second: list[str | int] = field(default_factory=list)
    explode: list[str] = field(default_factory=list)
    rationale: str | None = None
    stories: str | None = None
    story_columns: dict[str, str] = field(default_factory=dict)
    where: str | None = None
    encoding: str = "utf-8"
    label_source: Literal["votes", "people", "model", "planted"] = "votes"
    split: str = "all"
    max_train_pairs_per_prompt: int | None = None
    cleaning: Cleaning = field(default_factory=Cleaning.none)


def choose_schema(config: Config) -> Schema:
    """Check what the types cannot, and tell the form that `pairs` is in."""
    first, second = ({str(value) for value in v} for v in (config.label_first, config.label_second))
    if bool(first) != bool(second):
        raise ConfigError("label_first and label_second belong together: give both, or neither")
    if first & second:
        raise ConfigError(
            f"'{min(first & second)}' is in label_first and in label_second: keep one"
        )
    if first and config.stories is not None:
        raise ConfigError("stories and label_first are two forms of pairs: give one of them")
    made = [*PAIRS.arrow().names, *(RATIONALE if config.rationale is not None else ())]
    taken = [name for name in config.keep if name in made]
    if taken:
        raise ConfigError(f"keep: '{taken[0]}' is a column of pairs: map it under pair_columns")
    if config.rationale is not None and not first:
        raise ConfigError(
            "rationale: only a first and a second text tell which story is A: give label_first and "
            "label_second, or take the column along under keep"
        )
    if config.stories is not None:
        return LINKS
    return LABELLED if first else TEXTS


def check_kept(given: pa.Table, config: Config) -> None:
    """Refuse a column to keep that is not there."""
    for name in config.keep:
        if name not in given.column_names:
            mapped = name in (*config.pair_columns.values(), config.rationale)
            advice = "it is mapped already" if mapped else nearest(name, given.column_names)
            raise DataError(f"{config.pairs}: no column '{name}' to keep: {advice}")


def read_rationales(given: pa.Table, is_first: pa.ChunkedArray, fates: Counter[str]) -> pa.Table:
    """Take the verdict line off every rationale, and say which side it calls A.

    Args:
        given: labelled texts.
        is_first: whether the label prefers the first text; bool, shape (rows,).
        fates: counts the rationales by what became of them.

    Returns:
        The columns of `RATIONALE`; null unless the rationale argues for the label as far as its
        verdict tells.
    """
    found: dict[str, list[str | None]] = {name: [] for name in RATIONALE}
    said = given[EXPLANATION].to_pylist()
    for whole, first in zip(said, is_first.to_pylist(), strict=True):
        text, label = split_verdict(whole or "")
        if label is not None and (label == "A") != first:
            fate = "other_verdict"
        elif has_verdict_line(text):
            fate = "unreadable_verdict"
        else:
            fate = "kept" if text else "absent"
        fates[fate] += 1
        is_kept = fate == "kept"
        found["rationale"].append(text if is_kept else None)
        found["rationale_first"].append(("chosen" if first else "rejected") if is_kept else None)
    return pa.table({name: pa.array(values, pa.large_string()) for name, values in found.items()})


def join_stories(
    links: pa.Table, stories: pa.Table, config: Config, rejected_rows: RejectedRows
) -> pa.Table:
    """Look both stories of every pair up; a pair that cannot be made is rejected."""
    ids = stories["story_id"].combine_chunks()
    places = {
        side: pc.index_in(links[f"{side}_story_id"], value_set=ids).combine_chunks()
        for side in SIDES
    }
    prompt_of = stories["prompt_id"]
    prompts = {side: prompt_of.take(places[side]) for side in SIDES}
    same = pc.fill_null(pc.equal(prompts["chosen"], prompts["rejected"]), fill_value=False)
    rows = links[ROW].to_pylist()
    for row in pc.indices_nonzero(pc.invert(same)).to_pylist():
        missing = [side for side in SIDES if not places[side][row].is_valid]
        if missing:
            name = f"{missing[0]}_story_id"
            rejected_rows.add(
                config.pairs, rows[row], name, "no such story", links[name][row].as_py()
            )
        else:
            link = [links[f"{side}_story_id"][row].as_py() for side in SIDES]
            rejected_rows.add(config.pairs, rows[row], "prompt_id", "stories of two prompts", link)
    links = links.filter(same)
    columns: dict[str, pa.ChunkedArray] = {}
    for side in SIDES:
        found = stories.take(places[side].filter(same.combine_chunks()))
        columns[side] = found["text"]
        columns |= {f"{side}_{column.name}": found[column.name] for column in PER_SIDE}
        columns |= {name: found[name] for name in ("prompt", "prompt_id")}
    columns |= {column.name: links[column.name] for column in OF_PAIR}
    return pa.table(columns | {name: links[name] for name in (ROW, *config.keep)})


def apply_labels(
    given: pa.Table, config: Config, rejected_rows: RejectedRows, fates: Counter[str]
) -> pa.Table:
    """Turn first and second into chosen and rejected; reject a row whose label names neither."""
    prefers = {
        side: pc.is_in(
            given["label"], value_set=pa.array([str(value) for value in values], pa.large_string())
        )
        for side, values in (("first", config.label_first), ("second", config.label_second))
    }
    either = pc.or_(prefers["first"], prefers["second"])
    for row in given.select([ROW, "label"]).filter(pc.invert(either)).to_pylist():
        reason = "prefers neither text"
        rejected_rows.add(config.pairs, row[ROW], "label", reason, row["label"])
    given = given.filter(either)
    is_first = prefers["first"].filter(either)
    columns = {name: given[name] for name in (ROW, "prompt", "prompt_id", *config.keep)}
    columns |= {column.name: given[column.name] for column in OF_PAIR}
    for ending in ("", *(f"_{column.name}" for column in PER_SIDE)):
        first, second = given[f"first{ending}"], given[f"second{ending}"]
        columns[f"chosen{ending}"] = pc.if_else(is_first, first, second)
        columns[f"rejected{ending}"] = pc.if_else(is_first, second, first)
    if config.rationale is not None:
        rationales = read_rationales(given, is_first, fates)
        columns |= dict(zip(RATIONALE, rationales.columns, strict=True))
    return pa.table(columns)


def name_pairs(texts: pa.Table) -> pa.Table:
    """Fill in what names prompts, stories and pairs; the same however the texts are cleaned later.

    A source without ids gets them from its texts, so the same story has the same one everywhere.
    """
    prompt_ids = pa.chunked_array([pa.array(prompt_keys(texts), pa.large_string())])
    columns = {"prompt_id": pc.coalesce(texts["prompt_id"], prompt_ids)}
    for side in SIDES:
        made = [
            digest("story", row["prompt_id"], row[side]) if row["id"] is None else row["id"]
            for batch in pa.table(
                {
                    "prompt_id": columns["prompt_id"],
                    side: texts[side],
                    "id": texts[f"{side}_story_id"],
                }
            ).to_batches(max_chunksize=1_000)
            for row in batch.to_pylist()
        ]
        columns[f"{side}_story_id"] = pa.chunked_array([pa.array(made, pa.large_string())])
    ids = zip(*(columns[f"{side}_story_id"].to_pylist() for side in SIDES), strict=True)
    columns["pair_id"] = pa.chunked_array([pa.array([pair_id(*two) for two in ids])])
    columns["pair_id"] = columns["pair_id"].cast(pa.large_string())
    return pa.table({name: texts[name] for name in texts.column_names} | columns)


def find_repeats(
    pairs: pa.Table, rows: pa.Array, file: str, rejected_rows: RejectedRows
) -> list[int]:
    """Rows of pairs that stand there more than once, all but one of each.

    Of several that agree one with a rationale stays, if there is any, and of these the smallest by
    content, so that the order of rows does not matter; of several that do not agree none does.

    Args:
        pairs: pairs with their ids.
        rows: their numbers in the source.
        file: named in `rejected_rows`.
        rejected_rows: takes the rows that go.
    """
    has_rationale = [False] * pairs.num_rows
    if RATIONALE[0] in pairs.column_names:
        has_rationale = pairs[RATIONALE[0]].is_valid().to_pylist()
    places: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(pairs["pair_id"].to_pylist()):
        places[name].append(place)
    gone = []
    for same in places.values():
        if len(same) == 1:
            continue
        content = {place: digest(*pairs.slice(place, 1).to_pylist()[0].items()) for place in same}
        agree = len({pairs["chosen_story_id"][place].as_py() for place in same}) == 1
        explained = [place for place in same if has_rationale[place]]
        kept = min(explained or same, key=content.__getitem__) if agree else None
        reason = "the two stories are a pair already" if agree else "preferred both ways"
        for place in same:
            if place != kept:
                rejected_rows.add(file, rows[place].as_py(), "pair_id", reason)
                gone.append(place)
    return gone


def complete(
    texts: pa.Table, config: Config, rejected_rows: RejectedRows, examples: Examples
) -> tuple[pa.Table, dict[str, int]]:
    """Fill in ids and lengths, clean, and reject pairs that say nothing or stand twice.

    Returns:
        Pairs in the order of pair_id, and the number of texts that each step of cleaning changed.
    """
    # Where a pair stood says nothing about which of two is kept.
    rows = texts[ROW].combine_chunks()
    pairs = name_pairs(texts.drop_columns([ROW]))
    check_prompt_ids(pairs, config.pairs)
    cut: dict[str, int] = {}
    if config.cleaning != Cleaning.none():
        named = dict.fromkeys(SIDES, "pair_id")
        pairs, cut = clean_table(pairs, config.cleaning, named, examples)
    same = pc.equal(pairs["chosen"], pairs["rejected"]).combine_chunks()
    for row in rows.filter(same).to_pylist():
        rejected_rows.add(config.pairs, row, "rejected", "the same text on both sides")
    pairs, rows = pairs.filter(pc.invert(same)), rows.filter(pc.invert(same))
    gone = set(find_repeats(pairs, rows, config.pairs, rejected_rows))
    # Filtered and put in order at once: every pass copies all texts.
    names = pairs["pair_id"].to_pylist()
    order = sorted((row for row in range(pairs.num_rows) if row not in gone), key=names.__getitem__)
    if config.max_train_pairs_per_prompt is not None:
        # Names are digests, so their order is a random one.
        kept, seen = [], Counter[str]()
        for row in order:
            seen[prompt := pairs["prompt_id"][row].as_py()] += 1
            is_train = (pairs["split"][row].as_py() or config.split) == "train"
            if is_train and seen[prompt] > config.max_train_pairs_per_prompt:
                reason = "beyond max_train_pairs_per_prompt"
                rejected_rows.add(config.pairs, rows[row].as_py(), "prompt_id", reason)
            else:
                kept.append(row)
        order = kept
    pairs = pairs.take(pa.array(order, pa.int64()))
    columns = {name: pairs[name] for name in pairs.column_names}
    columns |= {f"{side}_n_words": count_words(pairs[side]) for side in SIDES}
    columns["split"] = pc.fill_null(pairs["split"], config.split)
    columns["label_source"] = pa.chunked_array([pa.array([config.label_source] * pairs.num_rows)])
    schema = PAIRS.arrow()
    result = {one.name: columns[one.name].cast(one.type) for one in schema}
    extra = [*config.keep, *(RATIONALE if config.rationale is not None else ())]
    return pa.table(result | {name: columns[name] for name in extra}), cut


def main(config: Config) -> None:
    """Read, join or label, complete, write."""
    schema = choose_schema(config)
    inputs = {"pairs": config.pairs}
    if config.stories is not None:
        inputs["stories"] = config.stories
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    if artifact.is_current():
        return
    rejected_rows, examples, rationales = RejectedRows(), Examples(), Counter[str]()
    origins = dict(config.pair_columns)
    if config.rationale is not None:
        origins[EXPLANATION] = config.rationale
    given = read_table(
        config.pairs,
        schema,
        columns=origins,
        rejected_rows=rejected_rows,
        where=config.where,
        explode=config.explode,
        encoding=config.encoding,
        numbered=True,
    )
    check_kept(given.drop_columns([ROW]), config)
    if config.stories is not None:
        columns = {"source": "'import'", **config.story_columns}
        stories = read_table(
            config.stories,
            STORIES,
            columns=columns,
            rejected_rows=rejected_rows,
            encoding=config.encoding,
        )
        given = join_stories(given, stories, config, rejected_rows)
    if config.label_first:
        given = apply_labels(given, config, rejected_rows, rationales)
    pairs, cut = complete(given, config, rejected_rows, examples)
    if pairs.num_rows == 0:
        shown = {row["value"] for row in rejected_rows.rows if row["column"] == "label"}
        labels = f"; labels found: {', '.join(sorted(shown)[:5])}" if shown else ""
        raise DataError(
            f"{config.pairs}: no pair could be made: {rejected_rows.counts()}{labels}: check "
            "pair_columns and the labels"
        )
    artifact.write("pairs.parquet", lambda path: write_table(pairs, path))
    artifact.write("rejected.jsonl", rejected_rows.write)
    artifact.counts = {
        "pairs": pairs.num_rows,
        "prompts": pc.count_distinct(pairs["prompt_id"]).as_py(),
        "not_selected": rejected_rows.not_selected,
        "empty_lists": rejected_rows.empty_lists,
        "rejected_rows": rejected_rows.counts(),
    }
    if rationales:
        artifact.counts["rationales"] = dict(rationales)
    if config.cleaning != Cleaning.none():
        artifact.write("examples.jsonl", examples.write)
        artifact.counts["cleaning"] = cut
    artifact.finish()
    print(f"{config.out / 'pairs.parquet'}: {pairs.num_rows:,} pairs")
    print(rejected_rows.summary(), end="")
    if rationales:
        print(f"  rationales: {', '.join(f'{n:,} {fate}' for fate, n in rationales.items())}")
    for step, texts in cut.items():
        print(f"  {step}: {texts:,} texts changed (see examples.jsonl)")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
