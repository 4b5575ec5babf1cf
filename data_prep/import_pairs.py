"""Turn published preference pairs into a pairs table.

    python data_prep/import_pairs.py --config configs/data/storyer_pairs.yaml

Reads pairs in one of three forms, from a file or from the Hub:

- a table of stories and a table of pairs that name two of them (`stories` is given);
- prompt, chosen and rejected text in one row, or with `several` lists of chosen and of rejected
  texts, of which every chosen one makes a pair with every rejected one;
- prompt, a first and a second text, and a label that says which is better (`label_first` and
  `label_second` are given). Here an explanation of the label that calls the texts A and B can come
  along (`rationale`): which of the two was A is kept with it.

What the source does not have stays null. Texts stay as they were published unless `cleaning` says
otherwise. No rule of make_pairs.py is applied: these pairs are somebody else's choice. Writes
`pairs.parquet`, `rejected.jsonl` (rows that could not be used, with reasons), with `cleaning`
also `examples.jsonl` (what was cut), and `manifest.json` into `out`.
"""

import contextlib
import itertools
import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from litbench.formats import read_raw

from litbench.artifact import Artifact
from litbench.config import nearest, run_program
from litbench.curation.cleaning import Cleaning, clean_table
from litbench.curation.funnel import Examples
from litbench.errors import ConfigError, DataError
from litbench.records import PAIRS, STORIES, Column, Schema, empty_columns, pair_id, prompt_keys
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

# Two texts and which of them is better.
LABEL = Column("label", "text", "which text is better", required=True)
LABELLED = two_texts("labelled texts", ("first", "second"), (LABEL,))

# What the source says for its label, under a name that is no column of a source. It is part of
# the key: of rows that differ in it alone `find_repeats` knows better which one stays.
EXPLANATION = "(rationale)"
EXPLAINED = two_texts(
    LABELLED.name,
    ("first", "second"),
    (LABEL, Column(EXPLANATION, "text", "why")),
)

# What the key `rationale` becomes, as make_rationales.py writes it too.
RATIONALE = ("rationale", "rationale_first")

# What became of a row's rationale, in the order of reports, and the column that says it on the
# way. The column's name is in brackets so that no source has it.
FATES = ("kept", "absent", "other_verdict", "unreadable_verdict")
FATE = "(fate of the rationale)"

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
        pair_columns: for each column its origin in `pairs`: a column's name, a template, or
            "=constant". In the labelled form the columns are prompt, first, second, label and,
            where the source has them, first_score, second_score, first_created_utc and so on.
        keep: further columns of `pairs` to take along as they are.
        label_first: values of `label` that prefer the first text; true and false are mapped by a
            template, label: "{column}", which gives True and False.
        label_second: values that prefer the second; a row with any other is set aside.
        several: `chosen` and `rejected` are columns of lists, or of lists as JSON.
        rationale: column with an explanation that calls the first text Story A and the second
            Story B, for the labelled form only. It becomes the columns `rationale`, without its
            last line where that is a verdict such as "Preferred: A", and `rationale_first`, the
            side that stood as A (chosen or rejected). Both are null where there is none, where its
            verdict is not the label's, and where a verdict line cannot be read or stands before
            the last one, since it may then argue for the other text.
        stories: table of stories, or null when `pairs` holds the texts.
        story_columns: the same map for `stories`.
        where: SQL condition on the columns of `pairs`.
        label_source: who preferred the chosen story.
        split: written where the source names no split.
        cleaning: what to cut out of the texts; nothing when not given, and a step that is not
            named is on when it is.
    """

    pairs: str
    out: Path
    pair_columns: dict[str, str] = field(default_factory=dict)
    keep: list[str] = field(default_factory=list)
    label_first: list[str | int] = field(default_factory=list)
    label_second: list[str | int] = field(default_factory=list)
    several: bool = False
    rationale: str | None = None
    stories: str | None = None
    story_columns: dict[str, str] = field(default_factory=dict)
    where: str | None = None
    label_source: Literal["votes", "people", "model", "planted"] = "votes"
    split: str = "all"
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
    if config.several and (first or config.stories is not None):
        raise ConfigError(
            "several is for rows that hold lists of chosen and rejected texts: leave out stories, "
            "label_first and label_second"
        )
    taken = [name for name in config.keep if name in PAIRS.arrow().names]
    if taken:
        raise ConfigError(f"keep: '{taken[0]}' is a column of pairs: map it under pair_columns")
    if config.rationale is not None:
        if not first:
            raise ConfigError(
                "rationale: only a first and a second text tell which story is A: give label_first "
                "and label_second, or take the column along under keep"
            )
        twice = [name for name in config.keep if name in RATIONALE]
        if twice:
            raise ConfigError(f"keep: '{twice[0]}' is made of rationale: give one of them")
    if config.stories is not None:
        return LINKS
    if config.rationale is not None:
        return EXPLAINED
    return LABELLED if first else TEXTS


def check_kept(given: pa.Table, config: Config) -> None:
    """Refuse a column to keep that is not there."""
    for name in config.keep:
        if name not in given.column_names:
            mapped = name in (*config.pair_columns.values(), config.rationale)
            advice = "it is mapped already" if mapped else nearest(name, given.column_names)
            raise DataError(f"{config.pairs}: no column '{name}' to keep: {advice}")


def kept_columns(config: Config) -> list[str]:
    """Columns of the result beyond those of every pairs table, `FATE` among them."""
    return [*config.keep, *((*RATIONALE, FATE) if config.rationale is not None else ())]


def read_rationale(text: str | None, *, prefers_first: bool) -> tuple[str | None, str]:
    """Take the verdict line off a rationale.

    Returns:
        The explanation, where it argues for the label as far as its verdict tells, and which of
        `FATES` became of it.
    """
    explanation, label = split_verdict(text or "")
    if label is not None and (label == "A") != prefers_first:
        return None, "other_verdict"
    if has_verdict_line(explanation):
        return None, "unreadable_verdict"
    return (explanation, "kept") if explanation else (None, "absent")


def read_rationales(given: pa.Table, is_first: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    """Take a verdict line off every rationale, and say which side it calls A.

    Args:
        given: labelled texts.
        is_first: whether the label prefers the first text; bool, shape (rows,).

    Returns:
        The columns of `RATIONALE`, and `FATE`.
    """
    texts: list[str | None] = []
    firsts: list[str | None] = []
    fates: list[str | None] = []
    said = given[EXPLANATION].to_pylist()
    for whole, first in zip(said, is_first.to_pylist(), strict=True):
        text, fate = read_rationale(whole, prefers_first=first)
        texts.append(text)
        firsts.append(None if text is None else "chosen" if first else "rejected")
        fates.append(fate)
    return {
        column: pa.chunked_array([pa.array(values, pa.large_string())])
        for column, values in zip((*RATIONALE, FATE), (texts, firsts, fates), strict=True)
    }


def columns_by_type(schema: Schema) -> dict[str, pa.DataType]:
    """The Arrow type of each declared column."""
    return {name: column.type for name, column in empty_columns(schema, 0).items()}


def join_stories(
    links: pa.Table, stories: pa.Table, config: Config, rejected_rows: RejectedRows
) -> pa.Table:
    """Look both stories of every pair up; a pair that cannot be made is set aside."""
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


class SetAsideOfRows(RejectedRows):
    """Notes rows of a table made of a source under the source's name and numbers.

    Args:
        file: the source.
        rows: of each row of the table, the number of the source's row that it was made of.
    """

    def __init__(self, file: str, rows: Sequence[int]) -> None:
        super().__init__()
        self._source, self._numbers = file, rows

    def add(self, file: str, row: int, column: str, reason: str, value: Any = None) -> None:
        """Note one row of the table."""
        del file
        super().add(self._source, self._numbers[row - 1], column, reason, value)


def pair_up(config: Config, path: Path) -> RejectedRows:
    """Write a table with a row for every chosen and every rejected text of a source's rows.

    Args:
        config: names the source.
        path: of the table.

    Returns:
        What takes the rows of the table that cannot be used; it has those of the source already.

    Raises:
        DataError: no row of the source makes a pair.
    """
    origins = [config.pair_columns.get(side, side) for side in SIDES]
    broken: list[tuple[int, str, str, Any]] = []
    made: list[dict[str, Any]] = []
    numbers: list[int] = []
    for chunk in read_raw(config.pairs, lambda *problem: broken.append(problem)):
        for name in origins:
            if name not in chunk.table.column_names:
                raise DataError(
                    f"{config.pairs}: no column '{name}': {nearest(name, chunk.table.column_names)}"
                )
        for number, row in zip(chunk.rows, chunk.table.to_pylist(), strict=True):
            lists = [as_list(row[name]) for name in origins]
            for name, texts in zip(origins, lists, strict=True):
                if not texts:
                    broken.append((number, name, "no list of texts", row[name]))
            for two in itertools.product(*(texts or [] for texts in lists)):
                made.append(row | dict(zip(origins, two, strict=True)))
                numbers.append(number)
    if not made:
        raise DataError(
            f"{config.pairs}: no row has lists of chosen and rejected texts: {broken[:1]}"
        )
    write_table(pa.Table.from_pylist(made), path)
    rejected_rows = SetAsideOfRows(config.pairs, numbers)
    for number, *problem in broken:
        RejectedRows.add(rejected_rows, config.pairs, number, *problem)
    return rejected_rows


def as_list(value: Any) -> list[Any] | None:
    """A list, or one written as JSON; None for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, list) else None


def apply_labels(given: pa.Table, config: Config, rejected_rows: RejectedRows) -> pa.Table:
    """Turn first and second into chosen and rejected; set a row aside whose label names neither."""
    prefers = {
        side: pc.is_in(
            given["label"], value_set=pa.array([str(value) for value in values], pa.large_string())
        )
        for side, values in (("first", config.label_first), ("second", config.label_second))
    }
    either = pc.or_(prefers["first"], prefers["second"])
    for row in pc.indices_nonzero(pc.invert(either)).to_pylist():
        label = given["label"][row].as_py()
        number = given[ROW][row].as_py()
        rejected_rows.add(config.pairs, number, "label", "prefers neither text", label)
    given = given.filter(either)
    is_first = prefers["first"].filter(either)
    columns = {name: given[name] for name in (ROW, "prompt", "prompt_id", *config.keep)}
    columns |= {column.name: given[column.name] for column in OF_PAIR}
    for ending in ("", *(f"_{column.name}" for column in PER_SIDE)):
        first, second = given[f"first{ending}"], given[f"second{ending}"]
        columns[f"chosen{ending}"] = pc.if_else(is_first, first, second)
        columns[f"rejected{ending}"] = pc.if_else(is_first, second, first)
    if config.rationale is not None:
        columns |= read_rationales(given, is_first)
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
    """Fill in ids and lengths, clean, and set pairs aside that say nothing or stand twice.

    Returns:
        Pairs in the order of pair_id, and the number of texts that each step of cleaning changed.
    """
    # Where a pair stood says nothing about which of two is kept.
    rows = texts[ROW].combine_chunks()
    pairs = name_pairs(texts.drop_columns([ROW]))
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
    pairs = pairs.take(pa.array(order, pa.int64()))
    columns = {name: pairs[name] for name in pairs.column_names}
    columns |= {f"{side}_n_words": count_words(pairs[side]) for side in SIDES}
    columns["split"] = pc.fill_null(pairs["split"], config.split)
    columns["label_source"] = pa.chunked_array([pa.array([config.label_source] * pairs.num_rows)])
    types = columns_by_type(PAIRS)
    result = {name: columns[name].cast(kind) for name, kind in types.items()}
    return pa.table(result | {name: columns[name] for name in kept_columns(config)}), cut


def main(config: Config) -> None:
    """Read, join or label, complete, write."""
    schema = choose_schema(config)
    inputs = {"pairs": config.pairs}
    if config.stories is not None:
        inputs["stories"] = config.stories
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    if artifact.is_current():
        return
    rejected_rows, examples = RejectedRows(), Examples()
    origins = dict(config.pair_columns)
    if config.rationale is not None:
        origins[EXPLANATION] = config.rationale
    with contextlib.ExitStack() as stack:
        source = config.pairs
        if config.several:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            source = str(folder / "pairs.parquet")
            rejected_rows = pair_up(config, Path(source))
        given = read_table(
            source,
            schema,
            columns=origins,
            rejected_rows=rejected_rows,
            where=config.where,
            numbered=True,
        )
    check_kept(given.drop_columns([ROW]), config)
    if config.stories is not None:
        columns = {"source": "=import", **config.story_columns}
        stories = read_table(config.stories, STORIES, columns=columns, rejected_rows=rejected_rows)
        given = join_stories(given, stories, config, rejected_rows)
    if config.label_first:
        given = apply_labels(given, config, rejected_rows)
    pairs, cut = complete(given, config, rejected_rows, examples)
    rationales: dict[str, int] = {}
    if FATE in pairs.column_names:
        # Of the rows that stay, so that the counts add up to the pairs.
        found = pairs[FATE].to_pylist()
        rationales = {fate: found.count(fate) for fate in FATES}
        pairs = pairs.drop_columns([FATE])
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
        "rejected_rows": rejected_rows.counts(),
    }
    if rationales:
        artifact.counts["rationales"] = rationales
    if config.cleaning != Cleaning.none():
        artifact.write("examples.jsonl", examples.write)
        artifact.counts["cleaning"] = cut
    artifact.finish()
    print(f"{config.out / 'pairs.parquet'}: {pairs.num_rows:,} pairs")
    print(rejected_rows.summary(), end="")
    if rationales:
        print(
            f"  rationales: {rationales['kept']:,} kept, {rationales['absent']:,} absent, "
            f"{rationales['other_verdict']:,} dropped since their verdict is not the label's, "
            f"{rationales['unreadable_verdict']:,} since it cannot be read or is not the only one"
        )
    for step, texts in cut.items():
        print(f"  {step}: {texts:,} texts changed (see examples.jsonl)")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
