"""Read published ratings by annotators and recorded judges, and make pairs from them.

A study publishes a table of stories and one or two tables of ratings, whose columns `RatingTable`
describes. They are combined into one table with the schema `RATINGS`: one number per story and
rater. Two stories of a prompt become a pair, whose chosen story has the higher mean rating by the
annotators.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from litbench.data.chunks import ROW
from litbench.data.curation.funnel import Funnel
from litbench.data.ingest import RejectedRows, read_foreign
from litbench.data.records import (
    GRADES,
    PAIRS,
    RATINGS,
    SIDES,
    Column,
    Schema,
    check_prompt_ids,
    empty_columns,
    pair_id,
)
from litbench.data.tables import write_table
from litbench.data.text import count_words, digest
from litbench.runs.config import nearest
from litbench.runs.errors import DataError
from litbench.runs.outputs import Artifact

RaterKind = Literal["person", "recorded"]

# Stories as studies publish them, some without text.
RATED_STORIES = Schema(
    "rated stories",
    (
        Column("story_id", "text", "unique name of the story", required=True),
        Column("prompt_id", "text", "the prompt it answers", required=True),
        Column("prompt", "text", "the prompt's text", required=True),
        Column("text", "text", "the story's text; null if not published"),
    ),
    key=("story_id",),
)

_ROWS = Schema(
    "rows of ratings",
    (
        Column("story_id", "text", "the story rated", required=True),
        Column("rater", "text", "who rated it", required=True),
        Column("item", "text", "what was asked, if a rating has several rows"),
        Column("explanation", "text", "what the rater wrote"),
    ),
    # Repeated rows are resolved later, preferring rows with a value.
    key=(),
)

# Means of the same ratings in different orders differ by rounding errors.
ROUNDING = 1e-9
# Split of pairs without a label, so that they are not mistaken for labelled pairs.
TIED = "tied"
_WORDS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


@dataclass
class RatingTable:
    """How to read a table of ratings.

    Attributes:
        table: file of the table.
        rater: column of the rater's name, or an SQL expression over the columns such as
            "judge || ' prompt ' || eval_prompt".
        values: columns of numbers, or of yes and no (1 and 0); a row's value is their mean. With
            several, each column is also a separate criterion.
        item: column that distinguishes the rows of a rater and story, such as the test or the
            judge's prompt; the rating is the mean over these rows.
        story_id: column of the story's id.
        explanation: column of the rater's explanation.
        where: SQL condition on the file's rows.
        encoding: encoding of a text file, such as cp1252; null: UTF-8, or detected.
        lowest_is_best: whether the values are ranks, with 1 the best; ratings are then negated,
            and the stories of a prompt an item.
        min_share: minimum share of a rater's items that must have a value for a rating.
        slots: whether the rater's name is a slot, filled by different annotators for each story.
    """

    table: Path
    rater: str
    values: Annotated[list[str], Field(min_length=1)]
    item: str | None = None
    story_id: str = "story_id"
    explanation: str | None = None
    where: str | None = None
    encoding: str | None = None
    lowest_is_best: bool = False
    min_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    slots: bool = False


def story_digest(prompt: str, text: str) -> str:
    """Return a digest of the prompt and text that a rater reads."""
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

    Rows of annotators without a value are rejected. A judge's row without a value is an answer that
    could not be read; the rating is null if fewer than `min_share` of its values are known.

    Args:
        how: the file and its columns.
        kind: kind of the raters.
        digests: maps story_ids to `story_digest`, or to null for stories without text.
        rejected_rows: collects the rows that cannot be used.
        are_selected: whether the caller left stories out; rows of unknown stories are then left
            out instead of rejected.

    Returns:
        Table with the schema RATINGS, sorted by rater and story.
    """
    columns = {
        name: getattr(how, name)
        for name in ("story_id", "rater", "item", "explanation")
        if getattr(how, name) is not None
    }
    file = str(how.table)
    rows = read_foreign(
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
    usable: dict[tuple[str, str, str], list[tuple[bool, str, list[float], dict[str, Any]]]]
    usable = defaultdict(list)
    for row in rows.to_pylist():
        if row["story_id"] not in digests:
            if are_selected:
                rejected_rows.not_selected += 1
                continue
            rejected_rows.add(file, row[ROW], "story_id", "no such story", row["story_id"])
            continue
        numbers = _numbers_of(row, how.values, file, kind, rejected_rows)
        if not numbers and kind == "person":
            continue
        content = digest(*(item for item in row.items() if item[0] != ROW))
        key = (row["rater"], row["story_id"], row["item"] or "")
        usable[key].append((not numbers, content, numbers, row))
    by_story: dict[tuple[str, str], dict[str, tuple[list[float], str | None]]] = defaultdict(dict)
    items: dict[str, set[str]] = defaultdict(set)
    for (rater, story, item), candidates in usable.items():
        # Prefer a row with a value; resolve ties by content, independently of row order.
        first = min(candidates, key=lambda candidate: candidate[:2])
        for candidate in candidates:
            if candidate is not first:
                reason = "repeated row" if candidate[1] == first[1] else "duplicate id"
                rejected_rows.add(file, candidate[3][ROW], "story_id", reason, story)
        items[rater].add(item)
        by_story[rater, story][item] = (first[2], first[3]["explanation"])
    if not by_story:
        raise DataError(
            f"{file}: no rating of these stories: {rejected_rows.counts()}: check values"
        )
    sign = -1.0 if how.lowest_is_best else 1.0
    ratings = []
    for (rater, story), by_item in sorted(by_story.items()):
        # Sort numbered items numerically: 2 before 10.
        ordered = [by_item[item] for item in sorted(by_item, key=lambda name: (len(name), name))]
        rated = [numbers for numbers, _ in ordered if numbers]
        enough = len(rated) >= how.min_share * len(items[rater]) - ROUNDING
        texts = [text for _, text in ordered if text]
        values: dict[str | None, list[float]] = {
            None: [sum(numbers) / len(numbers) for numbers in rated]
        }
        if len(how.values) > 1:
            values |= {name: [row[k] for row in rated] for k, name in enumerate(how.values)}
        for criterion, of_items in values.items():
            has_rating = bool(rated) and enough
            ratings.append(
                {
                    "story_id": story,
                    "rater": rater,
                    "rater_kind": kind,
                    "criterion": criterion,
                    "rating": sign * sum(of_items) / len(of_items) if has_rating else None,
                    "outcome": "rated" if has_rating else "unparsed",
                    "explanation": "\n\n".join(texts) or None,
                    "story_digest": digests[story],
                }
            )
    return pa.Table.from_pylist(ratings, schema=RATINGS.arrow())


def _numbers_of(
    row: Mapping[str, Any],
    names: Sequence[str],
    file: str,
    kind: RaterKind,
    rejected_rows: RejectedRows,
) -> list[float]:
    """Return a row's values; none if one is missing or is not a number."""
    numbers = []
    for name in names:
        if row[name] is None:
            if kind == "person":
                rejected_rows.add(file, row[ROW], name, "null")
            return []
        try:
            numbers.append(_as_number(row[name]))
        except ValueError:
            rejected_rows.add(file, row[ROW], name, "not a rating", row[name])
            return []
    return numbers


def overall_ratings(ratings: pa.Table) -> pa.Table:
    """Return the ratings of whole texts, without those of single criteria."""
    return ratings.filter(pc.is_null(ratings["criterion"]))


def grades_of(
    ratings: pa.Table, stories: pa.Table, writer: str, whole: str = "overall"
) -> pa.Table:
    """Return every rating as a grade of the story's writer.

    Args:
        ratings: table with the schema RATINGS.
        stories: table with `story_id`, `prompt_id` and `writer`. Stories of one writer and prompt
            with the same `sample` have a grade together, the mean; without that column each is a
            sample of its own.
        writer: column of the stories that says who wrote them.
        whole: quantity of the ratings of whole texts.

    Returns:
        Table with the schema GRADES.
    """
    if writer not in stories.column_names:
        raise DataError(f"stories: no column '{writer}': {nearest(writer, stories.column_names)}")
    samples: Counter[tuple[str, str]] = Counter()
    places = {}
    for row in stories.sort_by("story_id").to_pylist():
        of_writer = (str(row[writer]), row["prompt_id"])
        sample = row.get("sample")
        places[row["story_id"]] = (*of_writer, samples[of_writer] if sample is None else sample)
        samples[of_writer] += 1
    by_key: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in ratings.to_pylist():
        key = (*places[row["story_id"]], row["rater"], row["criterion"] or whole)
        by_key[key] += [row["rating"]] * (row["rating"] is not None)
    grades = [
        dict(zip(GRADES.key, key, strict=True))
        | {"grade": sum(numbers) / len(numbers) if numbers else None}
        for key, numbers in by_key.items()
    ]
    return pa.Table.from_pylist(grades, schema=GRADES.arrow())


def people_means(ratings: pa.Table, least: int) -> dict[str, float]:
    """Return the annotators' mean rating of every story with at least `least` ratings."""
    by_story: dict[str, list[float]] = defaultdict(list)
    for row in overall_ratings(ratings).select(["story_id", "rater_kind", "rating"]).to_pylist():
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
    are_items: bool = False,
) -> pa.Table:
    """Pair all rated stories within a prompt; the one with the higher mean is chosen.

    With `are_items`, the pairs of a prompt are one item.

    Stories with equal means become pairs of the split `TIED`, whose chosen side is decided by a
    hash and has no meaning. Texts that the source does not have are empty, with a length of 0.

    Returns:
        Table with the schema PAIRS, sorted by pair_id, with `rating` and `keep` per side.
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
    pairs, copies = [], 0
    for within in by_prompt.values():
        for a, b in itertools.combinations(within, 2):
            if a["text"] and a["text"] == b["text"]:
                copies += 1
                continue
            name = pair_id(a["story_id"], b["story_id"])
            gap = a["rating"] - b["rating"]
            a_chosen = gap > 0 if abs(gap) > ROUNDING else int(digest("tie", name), 16) % 2 == 0
            chosen, rejected = (a, b) if a_chosen else (b, a)
            pair = {
                "pair_id": name,
                "prompt_id": a["prompt_id"],
                "prompt": a["prompt"],
                "label_source": "people",
                "split": split if abs(gap) > ROUNDING else TIED,
                "item_id": a["prompt_id"] if are_items and abs(gap) > ROUNDING else None,
            }
            for side, story in (("chosen", chosen), ("rejected", rejected)):
                pair[side] = story["text"] or ""
                for column in ("story_id", "n_words", "rating", *keep):
                    pair[f"{side}_{column}"] = story[column]
            pairs.append(pair)
    funnel.add("pairs", "pairs within a prompt", "pairs", len(pairs) + copies, 0)
    funnel.add("same_text", "texts differ", "pairs", len(pairs), copies)
    if not pairs:
        raise DataError(
            f"no prompt has two stories to pair: {funnel.plain()}: check the ids of "
            "stories and ratings"
        )
    pairs.sort(key=lambda pair: str(pair["pair_id"]))
    names = [f"{side}_{name}" for name in ("rating", *keep) for side in SIDES]
    types = {name: column.type for name, column in empty_columns(PAIRS, 0).items()}
    columns = {name: pa.array([pair.get(name) for pair in pairs], types[name]) for name in types}
    return pa.table(columns | {name: pa.array([pair[name] for pair in pairs]) for name in names})


def gaps(pairs: pa.Table) -> np.ndarray:
    """Return the differences of mean ratings, chosen minus rejected; float64, shape (n,)."""
    difference: np.ndarray = pairs["chosen_rating"].to_numpy() - pairs["rejected_rating"].to_numpy()
    return difference


def with_label(pairs: pa.Table, min_gap: float, funnel: Funnel) -> pa.Table:
    """Return the pairs whose mean ratings differ, by at least `min_gap`."""
    gap = gaps(pairs)
    tied, small = np.abs(gap) <= ROUNDING, gap < min_gap - ROUNDING
    funnel.add("ties", "the means differ", "pairs", int((~tied).sum()), int(tied.sum()))
    is_clear = ~tied & ~small
    if min_gap:
        removed = int((~tied & small).sum())
        funnel.add("min_gap", f"by {min_gap:g} or more", "pairs", int(is_clear.sum()), removed)
    return pairs.filter(pa.array(is_clear))


# Importing -----------------------------------------------------------------------------------


@dataclass
class RatingImport:
    """Published ratings: files of stories and of ratings, and how they become pairs.

    Attributes:
        stories: file of the stories.
        people: ratings by annotators.
        out: output folder.
        recorded: ratings by recorded judges; null if there are none.
        story_columns: maps `story_id`, `prompt_id`, `prompt` and `text` to the file's columns.
        where: SQL condition on the stories' rows.
        encoding: encoding of the stories' file, if it is a text file.
        keep: further columns of the stories to copy into the pairs, once per side.
        min_raters: minimum number of annotators who rated a story.
        min_gap: minimum difference of two means, in units of a rating.
        split: name of the split.
        writer: column of the stories that says who wrote them, a system or a person.
    """

    stories: Path
    people: RatingTable
    out: Path
    recorded: RatingTable | None = None
    story_columns: dict[str, str] = field(default_factory=dict)
    where: str | None = None
    encoding: str | None = None
    keep: list[str] = field(default_factory=list)
    min_raters: int = 2
    min_gap: float = 0.0
    split: str = "all"
    writer: str | None = None


def import_ratings(config: RatingImport, program: str) -> None:
    """Import published ratings and write pairs and ratings into `config.out`.

    data_prep/import_ratings.py describes the files.

    Raises:
        DataError: no pair could be made.
    """
    tables: dict[RaterKind, RatingTable] = {"person": config.people}
    if config.recorded is not None:
        tables["recorded"] = config.recorded
    inputs = {f"ratings ({kind})": how.table for kind, how in tables.items()}
    inputs["stories"] = config.stories
    artifact = Artifact(config.out, program=program, config=config, inputs=inputs)
    if artifact.is_current():
        return
    rejected_rows, funnel = RejectedRows(), Funnel()
    stories = read_foreign(
        config.stories,
        RATED_STORIES,
        columns=config.story_columns,
        rejected_rows=rejected_rows,
        where=config.where,
        encoding=config.encoding,
    )
    rows = zip(*(stories[name].to_pylist() for name in ("story_id", "prompt", "text")), strict=True)
    digests = {name: story_digest(prompt, text) if text else None for name, prompt, text in rows}
    selected = config.where is not None
    read = [
        read_ratings(how, kind, digests, rejected_rows, are_selected=selected)
        for kind, how in tables.items()
    ]
    ratings = pa.concat_tables(read)
    funnel.add("stories", "stories that can be used", "stories", stories.num_rows, 0)
    means = people_means(ratings, config.min_raters)
    every = pair_rated_stories(
        stories,
        means,
        funnel,
        split=config.split,
        keep=config.keep,
        are_items=config.people.lowest_is_best,
    )
    pairs = with_label(every, config.min_gap, funnel)
    if pairs.num_rows == 0:
        raise DataError(
            f"{config.stories}: none of {every.num_rows} pairs has means that differ by "
            f"{config.min_gap:g}: lower min_gap"
        )
    artifact.write("pairs.parquet", lambda path: write_table(pairs, path))
    artifact.write("all_pairs.parquet", lambda path: write_table(every, path))
    artifact.write("ratings.parquet", lambda path: write_table(ratings, path))
    if config.writer is not None:
        grades = grades_of(ratings, stories, config.writer)
        artifact.write("grades.parquet", lambda path: write_table(grades, path))
    artifact.write("rejected.jsonl", rejected_rows.write)
    recorded: dict[str, Counter[str]] = {}
    of_judges = overall_ratings(ratings).filter(pc.field("rater_kind") == "recorded")
    for row in of_judges.to_pylist():
        count = recorded.setdefault(row["rater"], Counter(rated=0, unread=0))
        count["unread" if row["rating"] is None else "rated"] += 1
    artifact.counts = {
        "headline": "overall",
        "pairs": pairs.num_rows,
        "prompts": pc.count_distinct(pairs["prompt_id"]).as_py(),
        "people": len(set(read[0]["rater"].to_pylist())),
        "recorded": recorded,
        "funnel": funnel.plain(),
        "not_selected": rejected_rows.not_selected,
        "rejected_rows": rejected_rows.counts(),
    }
    artifact.finish()
    print(f"{config.out / 'pairs.parquet'}: {pairs.num_rows:,} pairs")
    print(funnel)
    print(rejected_rows.summary(), end="")
