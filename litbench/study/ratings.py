"""Studies whose readers rate stories by a rubric.

The stories of a prompt are a group: a reader rates them one by one, can go back, and submits them
together. In studies of sessions, a group is what a reader played. Pages of the store have the kind
`rating`, with the story as `pair_id` and its position in the group as `order`; one of them, of the
kind `checked`, also asks for a named number. A page of the kind `submit`, with the prompt as
`pair_id`, ends the group.
"""

import contextlib
import json
import math
import random
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.optimize import linear_sum_assignment

from litbench.data.records import RATINGS, STORIES, Column, Schema
from litbench.data.sources.ratings import grades_of, story_digest
from litbench.data.tables import read_table
from litbench.data.text import digest
from litbench.raters.templates.rubric import Rating, Rubric, load_rubric
from litbench.runs.errors import DataError
from litbench.runs.outputs import read_manifest, read_manifest_of
from litbench.study.metrics import ANSWERED
from litbench.study.plan import RatingPlan, Study, read_plan, reading_text, reading_time
from litbench.study.store import ReaderPage, Shown, Store, page_of

CHECK = "check"
# What choosing a number takes besides reading, for the estimate.
_SECONDS_PER_RATING = 5

ANSWERS = Schema(
    "answers",
    (
        Column("reader", "text", "salted hash of the reader's id", required=True),
        Column("place", "integer", "number of the page in the reader's order", required=True),
        Column("story_id", "text", "the story rated", required=True),
        Column("position", "integer", "place of the story in its group"),
        Column("ratings", "text", "JSON object: criterion to number", required=True),
        Column("is_right", "integer", "1 if the named number was chosen, else 0; null: not asked"),
        *ANSWERED,
        Column("excluded", "text", "rules of the plan that leave the reader out; null: none"),
    ),
    key=("reader", "place"),
)
# The pages of one group of a reader.
_GROUP = """
select choices.* from choices join readers using (number)
where reader = ? and (kind = 'submit' and pair_id = ?
    or kind in ('rating', 'checked') and pair_id in (select value from json_each(?))) order by place
"""


class IncompleteError(ValueError):
    """An answer leaves out a criterion."""


@dataclass(frozen=True)
class RatingLine:
    """One row of radio buttons: the form's field, what is asked, and numbers with their meaning."""

    field: str
    name: str
    about: str
    options: list[tuple[float, str]]


@dataclass(frozen=True, eq=False)
class RubricStudy(Study):
    """An opened study whose pages ask for ratings by a rubric."""

    rubric: Rubric

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """By `prompt_id`, what readers rate."""
        names = defaultdict(list)
        for name, row in sorted(self.by_id.items()):
            names[row["prompt_id"]].append(name)
        return dict(names)

    def lines(self, page: ReaderPage) -> list[RatingLine]:
        """The questions of a page; the line of the attention check is the same at every look."""
        lines = []
        for at, criterion in enumerate(self.rubric.criteria):
            about, anchors = criterion.parts
            options = [(n, anchors.get(n, "")) for n in self.rubric.options(criterion)]
            name = criterion.name.replace("_", " ")
            lines.append(RatingLine(f"rating{at}", name[:1].upper() + name[1:], about, options))
        if page.kind == "checked":
            draw = random.Random(digest(CHECK, self.plan.seed, page.number, page.pair_id))
            options = draw.choice(lines).options
            about = f"To show that you read this line, choose {draw.choice(options)[0]:g} here."
            plain = [(number, "") for number, _ in options]
            lines.insert(draw.randint(1, len(lines)), RatingLine(CHECK, "Attention", about, plain))
        return lines


@dataclass(frozen=True, eq=False)
class RatingStudy(RubricStudy):
    """An opened study of stories; `stories` has the schema STORIES."""

    plan: RatingPlan
    stories: pa.Table

    @classmethod
    def open(cls, folder: Path) -> "RatingStudy":
        """Read the folder of a study; DataError if one of its files was changed."""
        plan = read_plan(folder, RatingPlan)
        for name in ("stories.parquet", "rubric.yaml"):
            read_manifest_of(folder / name)
        stories = read_table(folder / "stories.parquet", STORIES)
        return cls(folder, plan, load_rubric(folder / "rubric.yaml"), stories)

    @cached_property
    def by_id(self) -> dict[str, dict[str, Any]]:
        return {row["story_id"]: row for row in self.stories.to_pylist()}

    def words_of(self, name: str) -> int:
        words: int = self.by_id[name]["n_words"]
        return words

    def estimate(self) -> dict[str, Any]:
        """The readers, hours and cost of the study."""
        plan, stories, criteria = self.plan, self.stories.num_rows, len(self.rubric.criteria)
        sizes = [
            min(len(stories), plan.stories_per_group or len(stories))
            for stories in self.groups.values()
        ]
        groups = min(plan.groups_per_reader, len(sizes))
        each = groups * sum(sizes) / len(sizes)
        readers = math.ceil(round(stories * plan.readers_per_story / each, 9))
        return {
            "stories": stories,
            "prompts": len(sizes),
            "ratings": stories * plan.readers_per_story * criteria,
            **reading_time(self, readers, round(each), _SECONDS_PER_RATING * criteria),
        }

    def estimate_text(self, facts: Mapping[str, Any]) -> str:
        return f"""\
{facts["stories"]:,} stories of {facts["prompts"]:,} prompts, {self.plan.readers_per_story} \
readers a story: {facts["readers"]:,} readers, {facts["ratings"]:,} ratings
{reading_text(self.plan, facts)}"""


def right_number(line: RatingLine) -> float:
    """The number that the line of an attention check asks for."""
    return float(line.about.removesuffix(" here.").rpartition(" ")[2])


class RatingStore(Store):
    """The store of a study of stories; an answer is a JSON object from field to number."""

    counted = ("rating", "checked")
    nouns = ("answers", "story")
    # What a page calls what is rated.
    noun: ClassVar[str] = "Text"
    study: RatingStudy

    def _assign(self, number: int) -> None:
        """Give a reader groups of the stories with the fewest readers, in balanced positions.

        So two stories of a prompt that is read whole differ by one reader at most, and two
        positions of a story by one, as long as nobody leaves.
        """
        plan = self.study.plan
        shown = self._all(
            "select pair_id, \"order\" from choices where kind in ('rating', 'checked')"
        )
        readers, positions = Counter(row["pair_id"] for row in shown), Counter(map(tuple, shown))
        choices = self._all("select kind, pair_id from choices where number = ?", number)
        seen = {
            self.study.by_id[row["pair_id"]]["prompt_id"]
            for row in choices
            if row["kind"] in self.counted
        }
        draw = random.Random(digest("assign", plan.seed, number, len(choices)))
        groups: list[tuple[float, str, list[str]]] = []
        for prompt, names in self.study.groups.items():
            free = [name for name in names if readers[name] < plan.readers_per_story]
            draw.shuffle(free)
            free.sort(key=readers.__getitem__)
            picked = free[: plan.stories_per_group]
            if picked and prompt not in seen:
                load = sum(readers[name] for name in picked) / len(picked)
                groups.append((load, prompt, picked))
        draw.shuffle(groups)
        groups.sort(key=lambda group: group[0])
        rows: list[tuple[str, str, str | None]] = []
        for _, prompt, picked in groups[: plan.groups_per_reader - len(seen)]:
            # Random numbers below 1 decide between positions that are equally rare.
            costs = [
                [positions[name, str(at)] * len(picked) + draw.random() for name in picked]
                for at in range(1, len(picked) + 1)
            ]
            _, order = linear_sum_assignment(np.array(costs))
            rows += [("rating", picked[at], str(position)) for position, at in enumerate(order, 1)]
            rows.append(("submit", prompt, None))
        self._add_rating_pages(number, rows, choices, draw)

    def _add_rating_pages(
        self,
        number: int,
        rows: list[tuple[str, str, str | None]],
        earlier: Sequence[sqlite3.Row],
        draw: random.Random,
    ) -> None:
        """Append pages; one of a reader's pages of ratings checks attention."""
        places = [at for at, row in enumerate(rows) if row[0] == "rating"]
        has_check = any(row["kind"] == "checked" for row in earlier)
        if self._plan.checks_attention and places and not has_check:
            at = draw.choice(places)
            rows[at] = ("checked", *rows[at][1:])
        self._add_pages(number, rows)

    def group(self, reader: str, page: ReaderPage) -> list[tuple[ReaderPage, dict[str, Any]]]:
        """The stories of a page's group; empty once it is submitted.

        With each, what was `given`, by field, and the `reason`; empty if it is not rated.
        """
        prompt = page.pair_id
        if page.kind != "submit":
            prompt = self.study.by_id[page.pair_id]["prompt_id"]
        stories = json.dumps(self.study.groups[prompt])
        rows = self._all(_GROUP, reader, prompt, stories)
        if not rows or rows[-1]["kind"] != "submit" or rows[-1]["answered"] is not None:
            return []
        return [
            (
                page_of(row, page.done, page.total),
                {"given": json.loads(row["answer"]), "reason": row["reason"] or ""}
                if row["answer"]
                else {},
            )
            for row in rows[:-1]
        ]

    def _may_change(self, page: sqlite3.Row) -> bool:
        return page["kind"] in self.counted and bool(
            self._all(
                "select 1 from choices where number = ? and kind = 'submit' and pair_id = ? "
                "and answered is null",
                page["number"],
                self.study.by_id[page["pair_id"]]["prompt_id"],
            )
        )

    def _read_answer(self, page: sqlite3.Row, answer: str) -> tuple[str | None, bool | None]:
        ratings: dict[str, float] = json.loads(answer)
        is_story = page["kind"] in self.counted
        lines = self.study.lines(page_of(page)) if is_story else []
        if missing := {line.field for line in lines} - ratings.keys():
            raise IncompleteError(f"{len(missing)} criteria are not rated")
        if len(ratings) > len(lines):
            raise ValueError("no such answer")
        is_right = None
        for line in lines:
            if ratings[line.field] not in dict(line.options):
                raise ValueError("no such answer")
            if line.field == CHECK:
                is_right = ratings[CHECK] == right_number(line)
        return None, is_right

    def view(self, reader: str, page: ReaderPage) -> Shown:
        """A story with its rubric, or the end of its group."""
        group = self.group(reader, page)
        places = [page.place for page, _ in group]
        values: dict[str, Any] = {
            "noun": self.noun,
            "group": group,
            "at": places.index(page.place) if page.place in places else 0,
        }
        if page.kind == "submit":
            return "submit", values
        earlier = dict(zip(places, (turn for _, turn in group), strict=True))[page.place]
        least = 0 if earlier else math.ceil(self.study.min_seconds(page.pair_id))
        story = self.study.by_id[page.pair_id]
        lines = self.study.lines(page)
        asked = {"story": story, "lines": lines, "least": least, "missing": False, "given": {}}
        return "rating", values | asked | earlier

    def read_form(self, form: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
        """The numbers chosen, by field, as JSON."""
        fields = [name for name in form if re.fullmatch(rf"rating[0-9]{{1,3}}|{CHECK}", name)]
        numbers = [form[name] for name in fields]
        if not all(re.fullmatch(r"-?[0-9]{1,6}(\.[0-9]{1,6})?", number) for number in numbers):
            raise ValueError("no such answer")
        ratings = dict(zip(fields, map(float, numbers), strict=True))
        return json.dumps(ratings), {"given": ratings}

    def answers(self) -> pa.Table:
        """All answers; table with the schema ANSWERS, whose readers are salted hashes."""
        names = [criterion.name for criterion in self.study.rubric.criteria]
        excluded = {row["reader"]: "; ".join(row["excluded"]) for row in self.readers()}
        rows = []
        for row in self._answered():
            if row["kind"] in self.counted:
                numbers = json.loads(row["answer"])
                ratings = {name: numbers[f"rating{at}"] for at, name in enumerate(names)}
                about = {
                    "story_id": row["pair_id"],
                    "position": row["order"] and int(row["order"]),
                    "ratings": json.dumps(ratings, ensure_ascii=False),
                    "excluded": excluded[row["reader"]] or None,
                }
                rows.append(row | about)
        return pa.Table.from_pylist(rows, ANSWERS.arrow())

    def export(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """All answers, and stories, ratings and grades as a run has them.

        Ratings and grades are without the readers whom the rules leave out.
        """
        study, answers = self.study, self.answers()
        ratings = [
            rating
            for row in answers.filter(pc.is_null(answers["excluded"])).to_pylist()
            for story in [study.by_id[row["story_id"]]]
            for rating in rating_rows(
                study.rubric,
                row,
                story_id=row["story_id"],
                sample=story.get("sample"),
                story_digest=story_digest(story["prompt"], story["text"]),
            )
        ]
        table = pa.Table.from_pylist(ratings, RATINGS.arrow())
        counts = read_manifest(study.folder)["counts"]
        grades = grades_of(table, study.stories, "source", counts["headline"])
        tables = {"answers": answers, "stories": study.stories, "ratings": table, "grades": grades}
        return tables, {name: counts.get(name) for name in ("protocol", "headline")}


def rating_rows(rubric: Rubric, answer: Mapping[str, Any], **about: Any) -> list[dict[str, Any]]:
    """A row of ANSWERS as rows of RATINGS: the whole by the rubric, and criteria."""
    ratings = json.loads(answer["ratings"])
    about |= {"rater": answer["reader"], "rater_kind": "person", "outcome": "rated"}
    whole = {
        "rating": rubric.grade({name: Rating(number) for name, number in ratings.items()}),
        "explanation": answer["reason"],
        "seconds": answer["seconds"],
    }
    criteria = [{**about, "criterion": name, "rating": number} for name, number in ratings.items()]
    return [about | whole, *criteria]


def run_of(stories: Path) -> dict[str, Any]:
    """The protocol and the headline of the run that stories come from, for comparisons with it."""
    with contextlib.suppress(DataError):
        counts = read_manifest(stories.parent)["counts"]
        if {"protocol", "headline"} <= counts.keys():
            return {name: counts[name] for name in ("protocol", "headline")}
    return {"headline": "overall"}
