"""Preference pairs from elsewhere: columns of their files, conversations, ids, repeated pairs.

`read_any_pairs` reads a pairs table of LitBench, or any file of prompts with two stories each.
"""

import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from litbench.errors import DataError
from litbench.ingest import ROW, RejectedRows, read_foreign
from litbench.records import (
    PAIRS,
    Column,
    Schema,
    check_prompt_ids,
    pair_id,
    prompt_keys,
    stored_type,
)
from litbench.sources.columns import GUESS, find_columns, first_rows
from litbench.tables import read_table
from litbench.text import count_words, digest

SIDES = ("chosen", "rejected")
# The last turn of a dialogue in one text, as in the HH data.
_TURN = "\n\nAssistant:"
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
)


def two_texts(first: str, second: str, *more: Column) -> Schema:
    """Return the schema of rows with a prompt and two texts."""
    sides = (first, second)
    columns = (
        Column("prompt", "text", "the prompt's text", required=True),
        *(Column(side, "text", f"the {side} story's text", required=True) for side in sides),
        Column("prompt_id", "text", "the prompt both stories answer"),
        *(Column(f"{s}_{c.name}", c.kind, c.about) for c in PER_SIDE for s in sides),
        *more,
        *OF_PAIR,
    )
    # `drop_repeats` handles rows that differ only in the explanation.
    return Schema("texts", columns, key=("prompt", *sides, *(column.name for column in more)))


def conversation_columns(columns: Mapping[str, str]) -> dict[str, str]:
    """Return `columns` with SQL (DuckDB) that takes prompt, chosen and rejected from messages."""

    def messages(column: str) -> str:
        return (
            f"""from_json(CAST({column} AS JSON), '[{{"role":"VARCHAR","content":"VARCHAR"}}]')"""
        )

    def joined(messages: str) -> str:
        texts = f"list_transform({messages}, lambda message: message.content)"
        return f"nullif(array_to_string({texts}, chr(10) || chr(10)), '')"

    sides = {side: messages(columns.get(side, side)) for side in SIDES}
    if prompt := columns.get("prompt"):
        is_list = f"json_type(TRY_CAST({prompt} AS JSON)) = 'ARRAY'"
        text = (
            f"CASE WHEN {is_list} THEN {joined(messages(prompt))} ELSE to_json({prompt})->>'$' END"
        )
    else:
        first, second = (f"{of_side}[:-2]" for of_side in sides.values())
        text = f"CASE WHEN {first} = {second} THEN {joined(first)} END"
    stories = {side: f"{of_side}[-1].content" for side, of_side in sides.items()}
    return {**columns, **stories, "prompt": text}


def name_pairs(texts: pa.Table) -> pa.Table:
    """Fill in missing ids of prompts, stories and pairs; call it before cleaning.

    Missing ids are digests of the uncleaned texts, so a story has the same id in all sources.
    Without a prompt, the missing `prompt_id` is a digest of both stories.
    """
    columns: dict[str, Any] = {name: texts[name] for name in texts.column_names}
    keys = pc.coalesce(texts["prompt_id"], pa.array(prompt_keys(texts), pa.large_string()))
    sides = zip(*(texts[side].to_pylist() for side in SIDES), strict=True)
    of_pair = pa.array(map(pair_id, *zip(*sides, strict=True)), pa.large_string())
    own = pc.if_else(pc.equal(texts["prompt"], ""), of_pair, keys)
    columns["prompt_id"] = pc.coalesce(texts["prompt_id"], own)
    for side in SIDES:
        names = [keys, texts[side], texts[f"{side}_story_id"]]
        ids = [
            row["2"] or digest("story", row["0"], row["1"])
            for batch in pa.table(names, ["0", "1", "2"]).to_batches(max_chunksize=1_000)
            for row in batch.to_pylist()
        ]
        columns[f"{side}_story_id"] = pa.array(ids, pa.large_string())
    both = zip(*(columns[f"{side}_story_id"].to_pylist() for side in SIDES), strict=True)
    own = texts["pair_id"].to_pylist() if "pair_id" in texts.column_names else []
    # A source's own ids are kept if they are unique.
    is_unique = len(set(own)) == texts.num_rows and None not in own
    named = map(str, own) if is_unique else (pair_id(*two) for two in both)
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
    kept = []
    for _, same in sorted(indices.items()):
        if len(same) == 1:
            kept += same
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
                kept.append(same[number])
            else:
                rejected_rows.add(file, row[ROW], "pair_id", reason)
    return pairs.take(pa.array(kept, pa.int64()))


def read_any_pairs(source: str | Path) -> pa.Table:
    """Read a pairs table of LitBench, or pairs from elsewhere.

    Pairs from elsewhere need a chosen and a rejected text; as in trl, both texts may be
    conversations, and without a column of prompts the prompt is what both texts start with. Either
    every pair has a prompt or none has, which is said on stderr. What the pairs lack is filled in:
    ids by hash, split "all", label source "people", numbers of words. Rows that cannot be used are
    counted on stderr.

    Args:
        source: Parquet, JSONL, CSV, TSV, a folder saved by `datasets`, or a name on the Hub.

    Returns:
        Table with the schema PAIRS, and the source's extra columns.

    Raises:
        DataError: no column is recognised as the chosen or the rejected text, or no pair is left.
    """
    path = Path(source)
    if path.suffix == ".parquet" and path.is_file() and _has_all_columns(path):
        return read_table(path, PAIRS)
    rejected_rows = RejectedRows()
    rows = first_rows(source)
    given = dict.fromkeys((*SIDES, "prompt"), GUESS)
    found = find_columns(
        source, rows.column_names, given, SIDES, "rename them, or use data_prep/import_pairs.py"
    )
    origins = {name: origin for name, origin in found.items() if origin is not None}
    is_implicit = "prompt" not in origins
    if _is_conversation(rows[origins["chosen"]]):
        origins = conversation_columns(origins)
    else:
        quoted = origins.get("prompt", "").replace('"', '""')
        origins["prompt"] = "''" if is_implicit else f"""coalesce("{quoted}", '')"""
    texts = read_foreign(
        source, two_texts(*SIDES), columns=origins, rejected_rows=rejected_rows, numbered=True
    )
    if origins["prompt"] == "''":
        texts = _with_implicit_prompts(texts)
    same, no_prompt = pc.equal(*(texts[s] for s in SIDES)), pc.equal(texts["prompt"], "")
    if pc.all(no_prompt).as_py():
        print(f"{source}: the pairs have no prompts", file=sys.stderr)
        no_prompt = pc.is_null(no_prompt)
    for column, reason, broken in (
        ("prompt", "no text", no_prompt),
        ("rejected", "the same text on both sides", same),
    ):
        for row in texts[ROW].filter(broken).to_pylist():
            rejected_rows.add(str(source), row, column, reason)
    texts = texts.filter(pc.invert(pc.or_(no_prompt, same)))
    pairs = name_pairs(texts)
    check_prompt_ids(pairs, str(source))
    pairs = drop_repeats(pairs, str(source), rejected_rows)
    for reason, count in rejected_rows.counts().items():
        print(f"{source}: {count:,} rows rejected, {reason}", file=sys.stderr)
    if not pairs.num_rows:
        raise DataError(f"{source}: no pair is left ({rejected_rows.counts()}): check the columns")
    return _completed(pairs)


def _has_all_columns(path: Path) -> bool:
    """Whether a Parquet file has the required columns of PAIRS, and is thus read strictly."""
    try:
        names = pq.read_schema(path).names
    except (pa.ArrowException, OSError):
        return True
    return all(column.name in names for column in PAIRS.columns if column.required)


def _is_conversation(values: pa.ChunkedArray) -> bool:
    try:
        messages = json.loads(str(values[0].as_py()))
    except (ValueError, RecursionError):
        return False
    return isinstance(messages, list) and all(
        isinstance(message, dict) and {"role", "content"} <= message.keys() for message in messages
    )


def _with_implicit_prompts(texts: pa.Table) -> pa.Table:
    """Take what both texts start with as the prompt, up to the last turn or the last space."""
    rows = []
    for sides in zip(*(texts[side].to_pylist() for side in SIDES), strict=True):
        alike = itertools.takewhile(lambda two: two[0] == two[1], zip(*sides, strict=False))
        shared = "".join(character for character, _ in alike)
        turn = shared.rfind(_TURN)
        end = turn + len(_TURN) if turn >= 0 else 1 + max(shared.rfind(" "), shared.rfind("\n"))
        rows.append((shared[:end].strip(), *(side[end:].strip() for side in sides)))
    for name, values in zip(("prompt", *SIDES), zip(*rows, strict=True), strict=True):
        index = texts.column_names.index(name)
        texts = texts.set_column(index, name, pa.array(values, pa.large_string()))
    return texts


def _completed(pairs: pa.Table) -> pa.Table:
    """Return pairs with the schema PAIRS, missing values filled in, and extra columns."""
    columns = {name: pairs[name] for name in pairs.column_names if name != ROW}
    for side in SIDES:
        columns[f"{side}_n_words"] = count_words(pairs[side])
    source = columns.get("label_source", pa.nulls(pairs.num_rows, pa.large_string()))
    columns["label_source"] = pc.fill_null(source, "people")
    columns["split"] = pc.fill_null(pairs["split"], "all")
    return as_pairs(columns)


def as_pairs(columns: Mapping[str, pa.ChunkedArray]) -> pa.Table:
    """Return a table with the columns of PAIRS, which must be there, then the other columns."""
    declared = {
        column.name: columns[column.name].cast(stored_type(column, columns[column.name].type))
        for column in PAIRS.columns
    }
    extra = {name: values for name, values in columns.items() if name not in declared}
    return pa.table({**declared, **extra})
