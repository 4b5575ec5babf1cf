"""Schemas of the tables (`STORIES`, `PAIRS`, ...), and functions on their rows.

Tables are Arrow in memory and Parquet on disk; `litbench.data.tables` reads and writes them. Times
are whole seconds since 1970 in UTC.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.text import are_empty, prompt_key
from litbench.runs.errors import DataError

# A score is a whole number (votes) or any number (ratings).
# Messages are text, or JSON text of lists and objects.
Kind = Literal["text", "messages", "integer", "number", "time", "score"]

# Such as author, chosen_author, author_fullname, username, userId; not author_flair_text.
_ACCOUNT = re.compile(
    r"(?:.*[\W_]|(?-i:.*[a-z](?=[A-Z])))?(?:author|user|redditor|poster|submitter|account|screen_?name|login|nickname)"
    r"(?:[\W_]*(?:name|fullname|id|handle))?(?:[\W_]*\d+)?",
    re.IGNORECASE | re.DOTALL,
)

ARROW_TYPES = {
    "text": pa.large_string(),
    "messages": pa.large_string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "time": pa.int64(),
    "score": pa.int64(),
}


@dataclass(frozen=True)
class Column:
    """One column of a schema.

    A `required` column must exist and contain no nulls. Foreign rows with an empty text in a column
    that `is_story` are rejected.
    """

    name: str
    kind: Kind
    about: str
    required: bool = False
    choices: tuple[str, ...] = ()
    is_story: bool = False


def stored_type(column: Column, dtype: pa.DataType) -> pa.DataType:
    """Return the type in which values of a type are stored: scores with fractions as float64."""
    has_fractions = column.kind == "score" and pa.types.is_floating(dtype)
    return pa.float64() if has_fractions else ARROW_TYPES[column.kind]


def is_account(column: str) -> bool:
    """Return whether a column holds account names or ids, by its name."""
    return _ACCOUNT.fullmatch(column) is not None


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's types of text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


@dataclass(frozen=True)
class Schema:
    """A table's columns, in the order in which they are written; a table may have more.

    `key` are the columns that together identify a row. Of rows with equal keys, the row with the
    latest time in the column `latest` is kept.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    latest: str | None = None

    def arrow(self) -> pa.Schema:
        """Return the Arrow schema of the declared columns, with whole scores."""
        return pa.schema(
            [pa.field(c.name, ARROW_TYPES[c.kind], nullable=not c.required) for c in self.columns]
        )


STORIES = Schema(
    "stories",
    (
        Column("story_id", "text", "unique name of the story", required=True),
        Column("prompt_id", "text", "the post or task it answers", required=True),
        Column("prompt", "text", "the prompt's text", required=True),
        Column("text", "text", "the story's text", required=True, is_story=True),
        Column("n_words", "integer", "length in words, see litbench.data.text", required=True),
        Column("source", "text", "where it comes from", required=True),
        Column("score", "score", "net upvotes, which may be negative, or a rating"),
        Column("score_utc", "time", "when the score was read"),
        Column("created_utc", "time", "when the story was posted"),
        Column("author", "text", "salted hash of the author's name"),
        Column("flair", "text", "the post's tag, such as WP"),
        Column("n_tokens", "integer", "length in tokens of the tokenizer the manifest names"),
    ),
    key=("story_id",),
    latest="score_utc",
)

# Who preferred a story, and what pages and model cards call the labels. A file that does not say
# gives the last one.
LABEL_TEXTS = {
    "votes": "readers' votes",
    "people": "annotators' judgements",
    "model": "labels by a model, not by annotators",
    "planted": "planted labels: simulated, so they do not describe real readers",
    "not stated": "labels whose source is not stated",
}
LABEL_SOURCES = tuple(LABEL_TEXTS)
LabelSource = Literal["votes", "people", "model", "planted", "not stated"]
NOT_STATED: LabelSource = "not stated"

# The stories of a pair.
SIDES = ("chosen", "rejected")

PAIRS = Schema(
    "pairs",
    (
        Column("pair_id", "text", "unique name; the same whichever side is chosen", required=True),
        Column("prompt_id", "text", "the prompt both stories answer", required=True),
        Column("prompt", "text", "the prompt's text", required=True),
        Column("chosen", "text", "text of the preferred story", required=True),
        Column("rejected", "text", "text of the other story", required=True),
        Column(
            "label_source",
            "text",
            "who preferred it",
            required=True,
            choices=LABEL_SOURCES,
        ),
        Column("split", "text", "train, test or another name; all when not split", required=True),
        Column("chosen_story_id", "text", "story_id of chosen", required=True),
        Column("rejected_story_id", "text", "story_id of rejected", required=True),
        Column("chosen_n_words", "integer", "words of chosen", required=True),
        Column("rejected_n_words", "integer", "words of rejected", required=True),
        Column("chosen_score", "score", "net upvotes or rating of chosen"),
        Column("rejected_score", "score", "net upvotes or rating of rejected"),
        Column("chosen_created_utc", "time", "when chosen was posted"),
        Column("rejected_created_utc", "time", "when rejected was posted"),
        Column("chosen_author", "text", "salted hash"),
        Column("rejected_author", "text", "salted hash"),
        Column("margin", "number", "by how much chosen should lead, in reward"),
        Column("weight", "number", "weight of the pair in training"),
        Column("fold", "text", "fold the source assigned"),
        Column("item_id", "text", "answers that people compared together: their pairs share it"),
    ),
    key=("pair_id",),
)

OUTCOMES = ("chosen", "rejected", "tie", "unparsed", "refused", "cut", "error")

VERDICTS = Schema(
    "verdicts",
    (
        Column("pair_id", "text", "the pair judged", required=True),
        Column("rater", "text", "name of the rater in the run's config", required=True),
        Column("kind", "text", "kind of rater", required=True),
        Column(
            "order",
            "text",
            "story that stood first; null without order",
            choices=SIDES,
        ),
        Column("outcome", "text", "what the rater decided", required=True, choices=OUTCOMES),
        Column("p_chosen", "number", "probability given to the chosen story, 0 to 1"),
        Column("reward_chosen", "number", "reward of the chosen story"),
        Column("reward_rejected", "number", "reward of the rejected story"),
        Column("label_mass", "number", "probability that the answer was a label at all, 0 to 1"),
        Column("explanation", "text", "what the rater wrote"),
        Column(
            "samples",
            "text",
            "outcomes of repeated answers to the same question, separated by spaces, whose mean is "
            "the outcome; null for a single answer",
        ),
        Column("input_tokens", "integer", "tokens read"),
        Column("output_tokens", "integer", "tokens written"),
        Column("cost_usd", "number", "price paid"),
        Column("seconds", "number", "time spent on this verdict"),
        Column("fold", "text", "repeat/fold whose model judged it; null outside cross-validation"),
        Column(
            "flipped_by",
            "text",
            "hashes of training prompts, separated by spaces, without any of which the fold's "
            "model prefers the other story; null if it was not trained again",
        ),
    ),
    key=("pair_id", "rater", "order", "fold"),
)

TURNS = Schema(
    "turns",
    (
        Column("writer", "text", "the model under test", required=True),
        Column("prompt_id", "text", "the item", required=True),
        Column("sample", "integer", "number of the sample", required=True),
        Column("role", "text", "who answers: writer, or the name of another role", required=True),
        Column("step", "text", "step of the protocol; attempt n ends in /n", required=True),
        Column("text", "text", "the answer", required=True),
        Column(
            "outcome",
            "text",
            "what became of the request",
            required=True,
            choices=("answered", "refused", "cut", "error"),
        ),
        Column("model", "text", "model name reported by the provider"),
        Column("input_tokens", "integer", "tokens read"),
        Column("output_tokens", "integer", "tokens written"),
        Column("cost_usd", "number", "price paid"),
        Column("seconds", "number", "duration of the request"),
    ),
    key=("writer", "prompt_id", "sample", "role", "step"),
)

RATING_OUTCOMES = ("rated", "unparsed", "off_scale", "refused", "cut", "error")

RATINGS = Schema(
    "ratings",
    (
        Column("story_id", "text", "the story rated", required=True),
        Column("rater", "text", "who rated it", required=True),
        Column(
            "rater_kind",
            "text",
            "an annotator (person), a judge whose ratings were recorded, or a model asked",
            required=True,
            choices=("person", "recorded", "model"),
        ),
        Column("rating", "number", "null if it could not be read"),
        Column("explanation", "text", "what the rater wrote"),
        Column("story_digest", "text", "`story_digest` of its text; null without text"),
        Column("criterion", "text", "what was rated; null for the whole text"),
        Column("sample", "integer", "number of the writer's sample"),
        Column("outcome", "text", "what became of the rating", choices=RATING_OUTCOMES),
        Column("input_tokens", "integer", "tokens read, of all criteria together"),
        Column("output_tokens", "integer", "tokens written, of all criteria together"),
        Column("cost_usd", "number", "price paid, of all criteria together"),
        Column("seconds", "number", "duration of the request"),
    ),
    key=("story_id", "rater", "rater_kind", "criterion"),
)

GRADES = Schema(
    "grades",
    (
        Column("writer", "text", "who wrote", required=True),
        Column("prompt_id", "text", "the item", required=True),
        Column("sample", "integer", "number of the sample", required=True),
        Column("rater", "text", "the judge; null for a quantity without one"),
        Column("quantity", "text", "what is graded, such as overall", required=True),
        Column("grade", "number", "null if no rating could be read"),
        Column("flags", "text", "what is unusual, separated by ;"),
    ),
    key=("writer", "prompt_id", "sample", "rater", "quantity"),
)

REPEATS = Schema(
    "repeats",
    (*GRADES.columns, Column("repeat", "integer", "number of the judgement", required=True)),
    key=(*GRADES.key, "repeat"),
)


def empty_columns(schema: Schema, rows: int) -> dict[str, pa.Array]:
    """Return an all-null column of shape (rows,) for every declared column of a schema."""
    return {column.name: pa.nulls(rows, ARROW_TYPES[column.kind]) for column in schema.columns}


def pair_id(story_a: str, story_b: str) -> str:
    """Return the id of a pair, independent of order; in SQL: the md5 of "low|high"."""
    low, high = sorted((story_a, story_b))
    return hashlib.md5(f"{low}|{high}".encode(), usedforsecurity=False).hexdigest()


def prompt_keys(table: pa.Table) -> list[str]:
    """Return the `litbench.data.text.prompt_key` of every row; without a prompt, that of its id."""
    columns = (table[name].to_pylist() for name in ("prompt", "prompt_id"))
    prompts = [prompt or f"prompt_id {name}" for prompt, name in zip(*columns, strict=True)]
    keys = {prompt: prompt_key(prompt) for prompt in set(prompts)}
    return [keys[prompt] for prompt in prompts]


def connected_prompts(pairs: pa.Table) -> list[str]:
    """Group pairs that folds must not separate; all statistics cluster by these groups.

    Two pairs are in one group if they share a prompt (by `litbench.data.text.prompt_key`), a
    `prompt_id` or a story, directly or through other pairs.

    Args:
        pairs: table with the schema PAIRS.

    Returns:
        The group of each pair, in row order. A group is named by the smallest of its prompt keys,
        which is the pair's own key if texts and ids agree.
    """
    keys = prompt_keys(pairs)
    stories = [("story", pairs[f"{side}_story_id"].to_pylist()) for side in SIDES]
    groups = connected_rows([("prompt", keys), ("id", pairs["prompt_id"].to_pylist()), *stories])
    first = dict(sorted(zip(groups, keys, strict=True), reverse=True))
    return [first[group] for group in groups]


def connected_rows(columns: Sequence[tuple[str, Sequence[str]]]) -> list[int]:
    """Return the connected component of each row.

    Each column is a kind and one value per row. Rows that share a value of a kind are connected.
    """
    parents = list(range(len(columns[0][1])))

    def root(row: int) -> int:
        while parents[row] != row:
            parents[row] = row = parents[parents[row]]
        return row

    first: dict[tuple[str, str], int] = {}
    for kind, values in columns:
        for row, value in enumerate(values):
            parents[root(row)] = root(first.setdefault((kind, value), row))
    return [root(row) for row in range(len(parents))]


def check_prompt_ids(table: pa.Table, source: str) -> None:
    """Raise a DataError if one `prompt_id` has several prompts (by normalised text)."""
    keys: dict[str, set[str]] = {}
    for name, key in zip(table["prompt_id"].to_pylist(), prompt_keys(table), strict=True):
        keys.setdefault(name, set()).add(key)
    ambiguous = [name for name, of_id in keys.items() if len(of_id) > 1]
    if ambiguous:
        raise DataError(
            f"{source}: {len(ambiguous)} of {len(keys)} prompt_ids have several prompts, such as "
            f"{ambiguous[0]!r:.60}: correct the texts if they are one prompt, else map prompt_id "
            "to a column that distinguishes them, or to md5(prompt)"
        )


def as_conversations(pairs: pa.Table) -> pa.Table:
    """Return the pairs with each text as a list of one message, the form that trl expects."""
    roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    offsets = pa.array(range(pairs.num_rows + 1), pa.int32())
    for name, role in roles.items():
        texts = pairs[name].combine_chunks()
        speakers = pa.repeat(pa.scalar(role, texts.type), len(texts))
        messages = pa.StructArray.from_arrays([speakers, texts], ["role", "content"])
        lists = pa.ListArray.from_arrays(offsets, messages)
        pairs = pairs.set_column(pairs.column_names.index(name), name, lists)
    return pairs


def numbers_of_pairs(pairs: pa.Table, name: str, otherwise: float) -> np.ndarray:
    """Return a finite numeric column, or `otherwise` for all pairs if it is absent or all null.

    Returns:
        float64, shape (n,).
    """
    column = pairs[name] if name in pairs.column_names else None
    if column is None or column.null_count == len(column):
        return np.full(pairs.num_rows, otherwise, dtype=np.float64)
    if column.null_count:
        raise DataError(
            f"column {name} is null in {column.null_count} of {len(column)} pairs: give every pair "
            f"a {name}, or none"
        )
    values: np.ndarray = column.to_numpy().astype(np.float64)
    if not np.isfinite(values).all():
        raise DataError(
            f"column {name} is not finite in {int((~np.isfinite(values)).sum())} of "
            f"{len(values)} pairs: correct these values, or leave the pairs out"
        )
    return values


def pair_weights(pairs: pa.Table) -> np.ndarray:
    """Return the positive training weight of every pair, float64, shape (n,).

    Without a column of weights, the pairs of an item weigh together as much as one other pair, so
    that an item with many answers does not dominate.
    """
    has_items = "item_id" in pairs.column_names and pairs["item_id"].null_count < pairs.num_rows
    if has_items and pc.all(pc.is_null(pairs["weight"])).as_py():
        items = pairs["item_id"].to_pylist()
        sizes = Counter(items)
        return np.array([1.0 if item is None else 1.0 / sizes[item] for item in items])
    weight = numbers_of_pairs(pairs, "weight", 1.0)
    if (weight <= 0).any():
        raise DataError("column weight is 0 or negative in some pairs: leave these pairs out")
    return weight


def has_texts(pairs: pa.Table) -> np.ndarray:
    """Whether both texts of each pair are known; bool, shape (n,).

    Texts are empty where a source publishes only its ratings.
    """
    empty = [are_empty(pairs[side]) for side in SIDES]
    have_texts: np.ndarray = pc.invert(pc.or_(*empty)).to_numpy()
    return have_texts


def label_text(sources: Sequence[str]) -> str:
    """The source of the labels."""
    return "; ".join(LABEL_TEXTS[source] for source in sources)
