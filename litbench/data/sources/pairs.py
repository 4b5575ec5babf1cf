"""Preference pairs from elsewhere: columns of their files, conversations, ids, repeated pairs.

`read_any_pairs` reads a pairs table of LitBench, or any file of prompts with two stories each;
`import_pairs` turns published pairs into a pairs table.
"""

import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from litbench.data.chunks import ROW
from litbench.data.columns import GUESS, find_columns, first_rows
from litbench.data.curation.cleaning import Cleaning, clean_table
from litbench.data.curation.funnel import Examples
from litbench.data.ingest import RejectedRows, read_foreign
from litbench.data.records import (
    LABEL_SOURCES,
    NOT_STATED,
    PAIRS,
    SIDES,
    STORIES,
    Column,
    Kind,
    LabelSource,
    Schema,
    check_prompt_ids,
    connected_prompts,
    empty_columns,
    is_text,
    pair_id,
    prompt_keys,
    stored_type,
)
from litbench.data.sources.items import answer_columns, explode, find_answers
from litbench.data.sources.messages import Message, read_messages
from litbench.data.sources.posts import hash_accounts
from litbench.data.sources.verdict_lines import has_verdict_line, split_verdict
from litbench.data.tables import read_table, write_table
from litbench.data.text import NO_TEXT, are_empty, count_words, digest
from litbench.runs.config import nearest
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact

# First values of a column that tell whether it has conversations.
_FORM_ROWS = 1_000
# Optional columns of each of the two stories of a row.
PER_SIDE = (
    Column("story_id", "text", "unique name of the story"),
    Column("score", "score", "net upvotes or rating"),
    Column("created_utc", "time", "when it was posted"),
    Column("author", "text", "salted hash"),
)
OF_PAIR = (
    Column("margin", "number", "by how much chosen should lead, in reward"),
    Column("weight", "number", "weight of the pair in training"),
    Column("split", "text", "train, test or another name"),
    Column("fold", "text", "fold the source assigned"),
    Column("item_id", "text", "answers that people compared together"),
)


def two_texts(
    first: str, second: str, *more: Column, conversations: Collection[str] = ()
) -> Schema:
    """Return the schema of rows with a prompt and two texts, some of which are conversations."""
    sides = (first, second)
    kinds: dict[str, Kind] = dict.fromkeys(conversations, "messages")
    columns = (
        Column("prompt", kinds.get("prompt", "text"), "the prompt's text"),
        *(Column(s, kinds.get(s, "text"), f"the {s} story's text", required=True) for s in sides),
        Column("prompt_id", "text", "the prompt both stories answer"),
        *(Column(f"{s}_{c.name}", c.kind, c.about) for c in PER_SIDE for s in sides),
        *more,
        *OF_PAIR,
    )
    # `drop_repeats` handles rows that differ only in the explanation.
    return Schema("texts", columns, key=("prompt", *sides, *(column.name for column in more)))


def read_texts(
    source: str | Path,
    sides: tuple[str, str],
    columns: Mapping[str, str],
    rejected_rows: RejectedRows,
    first: pa.Table,
    more: Sequence[Column] = (),
    where: str | None = None,
    encoding: str | None = None,
) -> pa.Table:
    """Read the prompt and the two texts of each row; for `first` see `first_rows`.

    A row with several answers gives several rows, see `litbench.data.sources.items`.

    The form is that of the table: a column has conversations if most of its first rows do, see
    `litbench.data.sources.messages`. The story is then the last message, and a prompt all messages.
    If no row has a prompt, the earlier messages of both stories are the prompt; texts that are no
    conversations have none, which is said on stderr.

    Returns:
        Table of the schema `two_texts`, with the column `ROW` and extra columns.

    Raises:
        DataError: as `read_foreign`.
    """
    answers = find_answers(first, columns) if sides == SIDES else {}
    names = ("prompt",) if answers else ("prompt", *sides)
    origins = {**columns, **answers}
    conversations = [
        name
        for name in names
        if (origin := origins.get(name, name)) in first.column_names
        and _is_conversation(first[origin])
    ]
    schema = two_texts(*sides, *more, conversations=conversations)
    if answers:
        one_row = [column for column in schema.columns if not column.name.startswith(SIDES)]
        schema = replace(schema, columns=(*one_row, *answer_columns(answers)), key=())
    texts = read_foreign(
        source,
        schema,
        columns=origins,
        rejected_rows=rejected_rows,
        where=where,
        encoding=encoding,
        numbered=True,
    )
    if answers:
        texts = explode(texts, answers, str(source), rejected_rows)
        for name, values in empty_columns(two_texts(*sides), texts.num_rows).items():
            if name not in texts.column_names:
                texts = texts.append_column(name, values)
    # A prompt without visible text is none.
    empty = are_empty(pc.fill_null(texts["prompt"], ""))
    texts = _with_column(texts, "prompt", pc.if_else(empty, "", texts["prompt"]))
    has_prompts = pc.any(pc.invert(empty)).as_py()
    for name in conversations:
        texts = _take_messages(texts, name, str(source), rejected_rows)
    if not has_prompts and set(sides) <= set(conversations):
        before, other = (texts[f"(before {side})"] for side in sides)
        texts = _with_column(texts, "prompt", before)
        differ = pc.not_equal(before, other)
        reason = "the conversations differ before their last messages"
        texts = rejected_rows.reject(texts, differ, str(source), "prompt", reason)
    texts = _with_column(texts, "prompt", pc.fill_null(texts["prompt"], ""))
    no_prompt = pc.equal(texts["prompt"], "")
    if pc.all(no_prompt, min_count=1).as_py():
        print(f"{source}: the pairs have no prompts", file=sys.stderr)
    else:
        texts = rejected_rows.reject(texts, no_prompt, str(source), "prompt", "no text")
    return texts.select([name for name in texts.column_names if not name.startswith("(before ")])


def _is_conversation(column: pa.ChunkedArray) -> bool:
    """Whether most of a column's first values are conversations."""
    texts = column.drop_null()[:_FORM_ROWS].to_pylist() if is_text(column.type) else []
    return 2 * sum(read_messages(text) is not None for text in texts) > len(texts)


def _take_messages(texts: pa.Table, name: str, file: str, rejected_rows: RejectedRows) -> pa.Table:
    """Replace the conversations of a column by their text.

    That of a prompt is all its messages. That of a story is the last message, and the earlier ones
    become the column "(before NAME)".
    """

    def joined(messages: Sequence[Message]) -> str:
        return "\n\n".join(message.content for message in messages if message.content)

    before, contents = list[str](), list[str | None]()
    for text in texts[name].to_pylist():
        messages = read_messages(text or "") or []
        before.append(joined(messages[:-1]))
        if name == "prompt":
            contents.append(joined(messages) if messages or text is None else None)
        else:
            is_story = messages and messages[-1].role not in ("user", "system")
            contents.append(messages[-1].content if is_story else None)
    texts = _with_column(texts, name, _texts(contents))
    texts = _with_column(texts, f"(before {name})", _texts(before))
    reason = "not messages" if name == "prompt" else "not messages that end with a story"
    return rejected_rows.reject(texts, pc.is_null(texts[name]), file, name, reason)


def _texts(values: Sequence[str | None]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, pa.large_string())])


def _with_column(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    if name not in table.column_names:
        return table.append_column(name, values)
    return table.set_column(table.column_names.index(name), name, values)


def name_pairs(texts: pa.Table) -> pa.Table:
    """Fill in missing ids of prompts, stories and pairs; call it before cleaning.

    Missing ids are digests of the uncleaned texts, so a story has the same id in all sources.
    Without a prompt, the missing `prompt_id` is a digest of both stories.
    """
    columns: dict[str, Any] = {name: texts[name] for name in texts.column_names}
    keys = pc.coalesce(texts["prompt_id"], pa.array(prompt_keys(texts), pa.large_string()))
    sides = zip(*(texts[side].to_pylist() for side in SIDES), strict=True)
    of_pair = pa.array(itertools.starmap(pair_id, sides), pa.large_string())
    prompt_ids = pc.if_else(pc.equal(texts["prompt"], ""), of_pair, keys)
    columns["prompt_id"] = pc.coalesce(texts["prompt_id"], prompt_ids)
    for side in SIDES:
        names = [keys, texts[side], texts[f"{side}_story_id"]]
        ids = [
            row["2"] or digest("story", row["0"], row["1"])
            for batch in pa.table(names, ["0", "1", "2"]).to_batches(max_chunksize=1_000)
            for row in batch.to_pylist()
        ]
        columns[f"{side}_story_id"] = pa.array(ids, pa.large_string())
    both = zip(*(columns[f"{side}_story_id"].to_pylist() for side in SIDES), strict=True)
    prompt_ids = texts["pair_id"].to_pylist() if "pair_id" in texts.column_names else []
    # A source's own ids are kept if they are unique.
    is_unique = len(set(prompt_ids)) == texts.num_rows and None not in prompt_ids
    named = map(str, prompt_ids) if is_unique else (pair_id(*two) for two in both)
    columns["pair_id"] = pa.array(named, pa.large_string())
    return pa.table(columns)


def drop_repeats(pairs: pa.Table, file: str, rejected_rows: RejectedRows) -> pa.Table:
    """Keep one row of each repeated pair, or none if its rows have different labels.

    Rows with a rationale are preferred, and ties are resolved by content, independently of row
    order. The result is sorted by pair_id.
    """
    indices: dict[str, list[int]] = defaultdict(list)
    for index, name in enumerate(pairs["pair_id"].to_pylist()):
        indices[name].append(index)
    numbers = []
    for _, same in sorted(indices.items()):
        if len(same) == 1:
            numbers += same
            continue
        rows = pairs.take(same).to_pylist()
        agree = len({row["chosen_story_id"] for row in rows}) == 1
        ranks = [
            (row.get("rationale") is None, digest(*(i for i in row.items() if i[0] != ROW)))
            for row in rows
        ]
        best = ranks.index(min(ranks)) if agree else None
        reason = "the two stories are a pair already" if agree else "preferred both ways"
        for number, row in enumerate(rows):
            if number == best:
                numbers.append(same[number])
            else:
                rejected_rows.add(file, row[ROW], "pair_id", reason)
    return pairs.take(pa.array(numbers, pa.int64()))


def read_any_pairs(
    source: str | Path, columns: Mapping[str, str] | None = None, *, numbered: bool = False
) -> pa.Table:
    """Read a pairs table of LitBench, or pairs from elsewhere.

    Pairs from elsewhere need a chosen and a rejected text, in a form that `read_texts` reads. Every
    pair has a prompt, or none has. What the pairs lack is filled in: ids by hash, split "all",
    label source "not stated", numbers of words. Rows that cannot be used are counted on stderr.

    Args:
        source: any source of `litbench.data.ingest.read_foreign`.
        columns: columns of `source` that are the prompt, chosen and rejected, the others are
            guessed; its `encoding`; and `label_source`, for rows that do not state it.
        numbered: whether pairs from elsewhere have the column `ROW`, their row in the source.

    Returns:
        Table with the schema PAIRS, and the source's extra columns.

    Raises:
        DataError: no column is recognised as the chosen or the rejected text, or no pair is left.
    """
    origins = dict(columns or {})
    label_source = origins.pop("label_source", NOT_STATED)
    if not origins and is_pairs_table(source):
        return _with_label_source(read_table(Path(source), PAIRS), label_source)
    rejected_rows, encoding = RejectedRows(), origins.get("encoding")
    first = first_rows(source, encoding=encoding)
    origins = _find_texts(source, first, origins, SIDES)
    texts = read_texts(source, SIDES, origins, rejected_rows, first, encoding=encoding)
    texts = _with_two_texts(texts, str(source), rejected_rows)
    pairs = name_pairs(texts)
    check_prompt_ids(pairs, str(source))
    pairs = drop_repeats(pairs, str(source), rejected_rows)
    for reason, count in rejected_rows.counts().items():
        print(f"{source}: {count:,} rows rejected, {reason}", file=sys.stderr)
    if not pairs.num_rows:
        raise DataError(f"{source}: no pair is left ({rejected_rows.counts()}): check the columns")
    table = _completed(pairs, label_source, "all")
    return table.append_column(ROW, pairs[ROW]) if numbered else table


def find_pair_columns(
    source: str | Path, columns: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the columns of the prompt, chosen and rejected; none for LitBench's own table.

    For the arguments and errors see `read_any_pairs`.
    """
    if not set(columns or {}) - {"label_source"} and is_pairs_table(source):
        return {}
    columns = columns or {}
    first = first_rows(source, encoding=columns.get("encoding"))
    return _find_texts(source, first, columns, SIDES)


def _find_texts(
    source: str | Path,
    first: pa.Table,
    columns: Mapping[str, str],
    required: Sequence[str],
    sides: Sequence[str] = SIDES,
) -> dict[str, str]:
    """Return the origins of the prompt and the sides; those that are not given are guessed."""
    if answers := find_answers(first, columns) if sides == SIDES else {}:
        return answers
    keys = {name: columns.get(name, GUESS) for name in ("prompt", *sides)}
    origins = find_columns(source, first.column_names, keys, required)
    return {name: origin for name, origin in origins.items() if origin is not None}


def is_pairs_table(source: str | Path) -> bool:
    """Whether a file is Parquet with the required columns of PAIRS, and is thus read strictly."""
    path = Path(source)
    if path.suffix != ".parquet" or not path.is_file():
        return False
    try:
        names = pq.read_schema(path).names
    except (pa.ArrowException, OSError):
        return True
    return all(column.name in names for column in PAIRS.columns if column.required)


def _with_two_texts(texts: pa.Table, file: str, rejected_rows: RejectedRows) -> pa.Table:
    for side in SIDES:
        texts = rejected_rows.reject(texts, are_empty(texts[side]), file, side, NO_TEXT)
    same = pc.equal(texts["chosen"], texts["rejected"])
    return rejected_rows.reject(texts, same, file, "rejected", "the same text on both sides")


def _completed(pairs: pa.Table, label_source: str, split: str) -> pa.Table:
    """Return pairs with the schema PAIRS, missing values filled in, and extra columns."""
    columns = {name: pairs[name] for name in pairs.column_names if name != ROW}
    for side in SIDES:
        columns[f"{side}_n_words"] = count_words(pairs[side])
    columns.setdefault("label_source", pa.nulls(pairs.num_rows, pa.large_string()))
    columns["split"] = pc.fill_null(pairs["split"], split)
    return _with_label_source(hash_accounts(as_pairs(columns)), label_source)


def _with_label_source(pairs: pa.Table, label_source: str) -> pa.Table:
    """Set the source of labels that is null, unknown to LitBench or not stated."""
    stated = [source for source in LABEL_SOURCES if source != NOT_STATED]
    sources = [row if row in stated else label_source for row in pairs["label_source"].to_pylist()]
    index = pairs.column_names.index("label_source")
    return pairs.set_column(index, "label_source", pa.array(sources, pa.large_string()))


def as_pairs(columns: Mapping[str, pa.ChunkedArray]) -> pa.Table:
    """Return a table with the columns of PAIRS, which must be there, then the other columns."""
    declared = {
        column.name: columns[column.name].cast(stored_type(column, columns[column.name].type))
        for column in PAIRS.columns
    }
    extra = {name: values for name, values in columns.items() if name not in declared}
    return pa.table({**declared, **extra})


# Importing -----------------------------------------------------------------------------------

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
class PairImport:
    """Published pairs: a file or a data set on the Hub, its columns and what its labels mean.

    Attributes:
        pairs: a file, a folder saved by datasets, or owner/name[@revision][:split].
        out: output folder.
        pair_columns: maps each column to a column of `pairs` or to an SQL expression (DuckDB), such
            as "chosen[-1].content" for a list of messages, or "unnest(rejected)" for one row per
            element. The labelled form has the columns prompt, first, second, label and,
            optionally, first_score and so on. Columns of prompt, chosen and rejected with common
            names are found. Texts may be conversations, as in trl or ShareGPT: the last message is
            then the story, and without a column of prompts the earlier messages are the prompt.
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
        encoding: encoding of text files, such as cp1252; null: UTF-8, or detected.
        label_source: who preferred the chosen texts, where `pairs` does not say.
        split: split of the pairs for which the source has none.
        test_share: instead, this share of the prompts is the split test, and the others are train.
            Prompts that share a story are in the same split.
        seed: seed of `test_share`.
        max_train_pairs_per_prompt: maximum pairs of a prompt in the split train; larger ones are
            subsampled, and the other pairs are rejected.
        cleaning: cleaning steps; steps that are not given are off.
    """

    pairs: str
    out: Path
    pair_columns: dict[str, str] = field(default_factory=dict)
    keep: list[str] = field(default_factory=list)
    label_first: list[str | int] = field(default_factory=list)
    label_second: list[str | int] = field(default_factory=list)
    rationale: str | None = None
    stories: str | None = None
    story_columns: dict[str, str] = field(default_factory=dict)
    where: str | None = None
    encoding: str | None = None
    label_source: LabelSource = NOT_STATED
    split: str = "all"
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    seed: int = 0
    max_train_pairs_per_prompt: int | None = None
    cleaning: Cleaning = field(default_factory=Cleaning.none)


def check_keys(config: PairImport) -> None:
    """Raise ConfigError if the keys do not fit together."""
    first, second = ({str(value) for value in v} for v in (config.label_first, config.label_second))
    if bool(first) != bool(second) or first & second:
        raise ConfigError("give label_first and label_second together, with different values")
    if first and config.stories is not None:
        raise ConfigError("stories and label_first are two forms of pairs: give one of them")
    if config.rationale is not None and not first:
        raise ConfigError("rationale: give label_first and label_second, which define story A")
    reserved = [*PAIRS.arrow().names, *(RATIONALE if config.rationale is not None else ())]
    if taken := [name for name in config.keep if name in reserved]:
        raise ConfigError(f"keep: '{taken[0]}' is a column of pairs: map it under pair_columns")


def join_stories(
    links: pa.Table, stories: pa.Table, config: PairImport, rejected_rows: RejectedRows
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
    given: pa.Table, config: PairImport, rejected_rows: RejectedRows, fates: Counter[str]
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
    texts: pa.Table, config: PairImport, rejected_rows: RejectedRows, examples: Examples
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
    pairs = _with_two_texts(pairs, config.pairs, rejected_rows)
    pairs = drop_repeats(pairs, config.pairs, rejected_rows)
    if config.test_share is not None:
        pairs = hold_out(pairs, config.test_share, config.seed)
    if config.max_train_pairs_per_prompt is not None:
        # Pairs are sorted by pair_id, a digest, so the first ones are a random subsample.
        beyond, seen = [], Counter[str]()
        for row in pairs.select(["prompt_id", "split"]).to_pylist():
            seen[row["prompt_id"]] += 1
            is_train = (row["split"] or config.split) == "train"
            beyond.append(is_train and seen[row["prompt_id"]] > config.max_train_pairs_per_prompt)
        reason = "beyond max_train_pairs_per_prompt"
        mask = pa.chunked_array([pa.array(beyond, pa.bool_())])
        pairs = rejected_rows.reject(pairs, mask, config.pairs, "prompt_id", reason)
    declared = [column.name for column in PAIRS.columns]
    names = [*declared, *config.keep, *(RATIONALE if config.rationale is not None else ())]
    present = [name for name in names if name in pairs.column_names]
    return _completed(pairs.select(present), config.label_source, config.split), cut


def hold_out(pairs: pa.Table, share: float, seed: int) -> pa.Table:
    """Set the split: a share of the prompts, at least one, is test, and the others are train."""
    prompts = connected_prompts(pairs)
    ordered = sorted(set(prompts), key=lambda prompt: digest("test", seed, prompt))
    test = set(ordered[: max(round(share * len(ordered)), 1)])
    splits = ["test" if prompt in test else "train" for prompt in prompts]
    return _with_column(pairs, "split", pa.chunked_array([pa.array(splits, pa.large_string())]))


def import_pairs(config: PairImport, program: str) -> None:
    """Import published pairs and write them into `config.out`.

    data_prep/import_pairs.py describes the files.

    Raises:
        DataError: no pair could be made.
    """
    check_keys(config)
    inputs = {"pairs": config.pairs, "stories": config.stories}
    artifact = Artifact(config.out, program=program, config=config, inputs=inputs)
    if artifact.is_current():
        return
    rejected_rows, examples, rationales = RejectedRows(), Examples(), Counter[str]()
    origins = dict(config.pair_columns)
    if config.stories is not None:
        table = read_foreign(
            config.pairs,
            LINKS,
            columns=origins,
            rejected_rows=rejected_rows,
            where=config.where,
            encoding=config.encoding,
            numbered=True,
        )
    else:
        is_labelled = bool(config.label_first)
        first = first_rows(config.pairs, config.where, config.encoding)
        origins |= _find_texts(config.pairs, first, origins, (), () if is_labelled else SIDES)
        if config.rationale is not None:
            origins[EXPLANATION] = config.rationale
        sides, more = (("first", "second"), LABEL) if is_labelled else (SIDES, ())
        table = read_texts(
            config.pairs, sides, origins, rejected_rows, first, more, config.where, config.encoding
        )
    names = table.drop_columns([ROW]).column_names
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
        table = join_stories(table, stories, config, rejected_rows)
    if config.label_first:
        table = apply_labels(table, config, rejected_rows, rationales)
    pairs, cut = complete(table, config, rejected_rows, examples)
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
