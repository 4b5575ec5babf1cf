"""Ratings of stories, by people and by judges whose ratings were recorded, and pairs made of them.

A published study has a table of stories and a table or two of ratings, whose columns it names as it
likes (`RatingTable` says how to read one). They become one table by the schema `RATINGS`: one
number per story and rater. Two stories of a prompt become a pair whose label is the higher mean of
the people.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from litbench.config import nearest
from litbench.curation.funnel import Funnel
from litbench.errors import ConfigError, DataError
from litbench.records import PAIRS, Column, Schema, check_prompt_ids, empty_columns, pair_id
from litbench.tables import ROW, RejectedRows, read_table
from litbench.text import count_words, digest

RaterKind = Literal["person", "recorded"]

RATINGS = Schema(
    "ratings",
    (
        Column("story_id", "text", "the story rated", required=True),
        Column("rater", "text", "who rated it", required=True),
        Column(
            "rater_kind",
            "text",
            "a person, or a judge whose ratings were recorded",
            required=True,
            choices=("person", "recorded"),
        ),
        Column("rating", "number", "higher is better; null where none could be read"),
        Column("explanation", "text", "what the rater wrote"),
        Column("story_digest", "text", "`story_digest` of its text; null without text"),
    ),
    key=("story_id", "rater", "rater_kind"),
)

# Stories as studies publish them: some without their text.
RATED_STORIES = Schema(
    "rated stories",
    (
        Column("story_id", "text", "unique name of the story", required=True),
        Column("prompt_id", "text", "the prompt it answers", required=True),
        Column("prompt", "text", "the prompt's text", required=True),
        Column("text", "text", "the story's text; null where it is not published"),
    ),
    key=("story_id",),
)

_ROWS = Schema(
    "rows of ratings",
    (
        Column("story_id", "text", "the story rated", required=True),
        Column("rater", "text", "who rated it", required=True),
        Column("item", "text", "what was asked, where a rating has several rows"),
        Column("explanation", "text", "what the rater wrote"),
    ),
    # Which of several rows counts is decided among those that have a value.
    key=(),
)

# Two means of the same ratings in another order differ by rounding.
ROUNDING = 1e-9
# The split of pairs without a label, so that nothing takes them for labelled ones.
TIED = "tied"
_WORDS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


@dataclass
class RatingTable:
    """How to read a table of ratings.

    Attributes:
        table: the file.
        rater: column of the rater's name, or an SQL expression over the columns such as
            "judge || ' prompt ' || eval_prompt".
        values: columns of numbers, or of yes and no (1 and 0); a row's value is their mean.
        item: column that tells the rows of one rater and story apart, such as the test that was
            asked or the prompt of the judge; the rating is the mean over them.
        story_id: column of the story.
        explanation: column of what the rater wrote.
        where: SQL condition on the file's rows.
        encoding: of a text file, such as cp1252.
        lowest_is_best: the values are ranks, 1 the best; a rating is then the negative mean.
        least_share: least share of a rater's items that must have a value for a rating.
        slots: the rater's name is a place in a list, filled by another person from story to story.
    """

    table: Path
    rater: str
    values: list[str]
    item: str | None = None
    story_id: str = "story_id"
    explanation: str | None = None
    where: str | None = None
    encoding: str = "utf-8"
    lowest_is_best: bool = False
    least_share: float = 1.0
    slots: bool = False


def story_digest(prompt: str, text: str) -> str:
    """Name a story by what a rater reads of it."""
    return digest("story", prompt, text)


def _as_number(value: Any) -> float:
    if isinstance(value, str):
        value = _WORDS.get(value.strip().casefold(), value)
    if not isinstance(value, str | bool | int | float) or not math.isfinite(float(value)):
        raise ValueError("not a finite number")
    return float(value)


def read_ratings(
    how: RatingTable,
    kind: RaterKind,
    digests: Mapping[str, str | None],
    rejected_rows: RejectedRows,
    *,
    are_selected: bool = False,
) -> pa.Table:
    """Read a table of ratings.

    A row without a value is rejected where people rated; of a recorded judge it is an answer that
    could not be read, so that the rating is null where less than `least_share` of the values are
    known.

    Args:
        how: the file and its columns.
        kind: who rated.
        digests: `story_digest` of every story, None of one without text.
        rejected_rows: takes the rows that cannot be used.
        are_selected: the caller left stories out: rows about others are left out, not rejected.

    Returns:
        Table by the schema RATINGS, in the order of rater and story.
    """
    if not how.values:
        raise ConfigError("values: name the columns that hold the ratings")
    if not 0 < how.least_share <= 1:
        raise ConfigError(f"least_share is {how.least_share}: give a share above 0, at most 1")
    columns = {
        name: getattr(how, name)
        for name in ("story_id", "rater", "item", "explanation")
        if getattr(how, name) is not None
    }
    file = str(how.table)
    rows = read_table(
        how.table,
        _ROWS,
        columns=columns,
        rejected_rows=rejected_rows,
        where=how.where,
        encoding=how.encoding,
        numbered=True,
    )
    for name in how.values:
        if name not in rows.column_names:
            raise DataError(f"{file}: no column '{name}': {nearest(name, rows.column_names)}")
    usable: dict[tuple[str, str, str], list[tuple[bool, str, float | None, dict[str, Any]]]]
    usable = defaultdict(list)
    for row in rows.to_pylist():
        if row["story_id"] not in digests:
            if are_selected:
                rejected_rows.not_selected += 1
                continue
            rejected_rows.add(file, row[ROW], "story_id", "no such story", row["story_id"])
            continue
        value = _value_of(row, how.values, file, kind, rejected_rows)
        if value is None and kind == "person":
            continue
        content = digest(*(one for one in row.items() if one[0] != ROW))
        key = (row["rater"], row["story_id"], row["item"] or "")
        usable[key].append((value is None, content, value, row))
    given: dict[tuple[str, str], dict[str, tuple[float | None, str | None]]] = defaultdict(dict)
    items: dict[str, set[str]] = defaultdict(set)
    for (rater, story, item), found_rows in usable.items():
        # One with a value first, then the smallest by content, whatever the order of rows.
        kept = min(found_rows, key=lambda one: one[:2])
        for one in found_rows:
            if one is not kept:
                reason = "repeated row" if one[1] == kept[1] else "duplicate id"
                rejected_rows.add(file, one[3][ROW], "story_id", reason, story)
        items[rater].add(item)
        given[rater, story][item] = (kept[2], kept[3]["explanation"])
    if not given:
        raise DataError(
            f"{file}: no rating of these stories: {rejected_rows.counts()}: check values"
        )
    sign = -1.0 if how.lowest_is_best else 1.0
    found = []
    for (rater, story), by_item in sorted(given.items()):
        # Tests are numbered: 2 comes before 10.
        ordered = [by_item[item] for item in sorted(by_item, key=lambda name: (len(name), name))]
        known = [value for value, _ in ordered if value is not None]
        enough = len(known) >= how.least_share * len(items[rater]) - ROUNDING
        texts = [text for _, text in ordered if text]
        found.append(
            {
                "story_id": story,
                "rater": rater,
                "rater_kind": kind,
                "rating": sign * sum(known) / len(known) if known and enough else None,
                "explanation": "\n\n".join(texts) or None,
                "story_digest": digests[story],
            }
        )
    return pa.Table.from_pylist(found, schema=RATINGS.arrow())


def _value_of(
    row: Mapping[str, Any],
    names: Sequence[str],
    file: str,
    kind: RaterKind,
    rejected_rows: RejectedRows,
) -> float | None:
    """Mean of a row's values; None where one is missing or, once noted, no number."""
    numbers = []
    for name in names:
        if row[name] is None:
            if kind == "person":
                rejected_rows.add(file, row[ROW], name, "null")
            return None
        try:
            numbers.append(_as_number(row[name]))
        except ValueError:
            rejected_rows.add(file, row[ROW], name, "not a rating", row[name])
            return None
    return sum(numbers) / len(numbers)


def people_means(ratings: pa.Table, least: int) -> dict[str, float]:
    """Mean rating by the people of every story that at least so many of them rated."""
    by_story: dict[str, list[float]] = defaultdict(list)
    for row in ratings.select(["story_id", "rater_kind", "rating"]).to_pylist():
        if row["rater_kind"] == "person" and row["rating"] is not None:
            by_story[row["story_id"]].append(row["rating"])
    return {
        story: float(np.mean(values)) for story, values in by_story.items() if len(values) >= least
    }


def pair_rated_stories(
    stories: pa.Table,
    means: Mapping[str, float],
    funnel: Funnel,
    *,
    split: str,
    keep: Sequence[str] = (),
) -> pa.Table:
    """All pairs of rated stories within a prompt; chosen is the one with the higher mean.

    Stories with equal means are pairs here too, with sides that go by a hash and say nothing:
    they are in split `TIED`. A text that the source does not have is empty, with a length of 0.

    Returns:
        Table by the schema PAIRS in the order of pair_id, with `rating` and `keep` per side.
    """
    check_prompt_ids(stories, "stories")
    for name in keep:
        if name not in stories.column_names:
            raise DataError(
                f"stories: no column '{name}' to keep: {nearest(name, stories.column_names)}"
            )
    rows = sorted(stories.to_pylist(), key=lambda row: row["story_id"])
    rated = [row for row in rows if row["story_id"] in means]
    funnel.add("rated", "rated by enough people", "stories", len(rated), len(rows) - len(rated))
    words = count_words(pa.array([row["text"] or "" for row in rated], pa.large_string()))
    by_prompt: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row, n_words in zip(rated, words.to_pylist(), strict=True):
        mean = means[row["story_id"]]
        by_prompt[row["prompt_id"]].append({**row, "n_words": n_words, "rating": mean})
    found, copies = [], 0
    for within in by_prompt.values():
        for one, other in itertools.combinations(within, 2):
            if one["text"] and one["text"] == other["text"]:
                copies += 1
                continue
            name = pair_id(one["story_id"], other["story_id"])
            gap = one["rating"] - other["rating"]
            is_chosen = gap > 0 if abs(gap) > ROUNDING else int(digest("tie", name), 16) % 2 == 0
            chosen, rejected = (one, other) if is_chosen else (other, one)
            pair = {
                "pair_id": name,
                "prompt_id": one["prompt_id"],
                "prompt": one["prompt"],
                "label_source": "people",
                "split": split if abs(gap) > ROUNDING else TIED,
            }
            for side, story in (("chosen", chosen), ("rejected", rejected)):
                pair[side] = story["text"] or ""
                for column in ("story_id", "n_words", "rating", *keep):
                    pair[f"{side}_{column}"] = story[column]
            found.append(pair)
    funnel.add("pairs", "pairs within a prompt", "pairs", len(found) + copies, 0)
    funnel.add("same_text", "two texts, not one", "pairs", len(found), copies)
    if not found:
        raise DataError(
            f"no prompt has two stories that could be paired: {funnel.plain()}: check the ids of "
            "stories and ratings"
        )
    found.sort(key=lambda pair: str(pair["pair_id"]))
    names = [f"{side}_{name}" for name in ("rating", *keep) for side in ("chosen", "rejected")]
    types = {name: column.type for name, column in empty_columns(PAIRS, 0).items()}
    columns = {name: pa.array([pair.get(name) for pair in found], types[name]) for name in types}
    return pa.table(columns | {name: pa.array([pair[name] for pair in found]) for name in names})


def gaps(pairs: pa.Table) -> np.ndarray:
    """By how much the people's mean of chosen is above that of rejected; float64, shape (n,)."""
    difference: np.ndarray = pairs["chosen_rating"].to_numpy() - pairs["rejected_rating"].to_numpy()
    return difference


def with_label(pairs: pa.Table, min_gap: float, funnel: Funnel) -> pa.Table:
    """The pairs in which the people prefer one story, by at least `min_gap` of a rating."""
    gap = gaps(pairs)
    tied, small = np.abs(gap) <= ROUNDING, gap < min_gap - ROUNDING
    funnel.add("ties", "the means differ", "pairs", int((~tied).sum()), int(tied.sum()))
    kept = ~tied & ~small
    if min_gap:
        removed = int((~tied & small).sum())
        funnel.add("min_gap", f"by {min_gap:g} or more", "pairs", int(kept.sum()), removed)
    return pairs.filter(pa.array(kept))
