"""Grades of runs, and what they say about writers, judges and people.

Grades are rows of `litbench.records.GRADES`; those of people count as those of one rater, `PEOPLE`.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.metrics.plackett_luce import Ranking, ranking_of
from litbench.metrics.writers import Cell, GradeAgreement, grade_agreement, members_of
from litbench.metrics.writing import (
    Inconsistency,
    LengthCorrelation,
    length_correlation,
    negotiation_inconsistency,
)

PEOPLE = "people"
# Quantities of the protocol tow: lengths of the input and of the text, weights of the planner, and
# shares of the criteria that a judge has planned for a text.
LENGTHS = ("input characters", "output characters")
WEIGHT, SHARE = "weight ", "share "


@dataclass
class Graded:
    """All grades of the runs.

    Attributes:
        rows: rows of the tables of grades that have a grade.
        missing: number of rows without one.
        people: raters that are people.
        stories: the stories of all runs; None if there are none.
        text_grades: (judge, story_id) -> the judge's grade of that text.
        headline: the quantity that the protocol names first.
        notes: why results cannot be compared with published ones.
    """

    rows: list[dict[str, Any]]
    missing: int
    people: set[str]
    stories: pa.Table | None
    text_grades: dict[tuple[str, str], float]
    headline: str
    notes: list[str]


def cells_of(graded: Graded, quantity: str) -> list[Cell]:
    """Mean grades by writer, prompt and rater; all people are the rater `PEOPLE`."""
    grades = defaultdict(list)
    for row in graded.rows:
        if row["quantity"] == quantity:
            rater = PEOPLE if row["rater"] in graded.people else row["rater"] or ""
            grades[row["writer"], row["prompt_id"], rater].append(row["grade"])
    return [Cell(*place, float(np.mean(of))) for place, of in grades.items()]


def rankings_of(graded: Graded, quantity: str) -> dict[str, list[Ranking]]:
    """Every rater's rankings of the writers by prompt, of people and of judges."""
    groups: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in graded.rows:
        if row["quantity"] == quantity and row["rater"] is not None:
            groups[row["rater"], row["prompt_id"]][row["writer"]].append(row["grade"])
    rankings = defaultdict(list)
    for (rater, prompt), by_writer in groups.items():
        means = {writer: round(float(np.mean(of)), 9) for writer, of in by_writer.items()}
        kind = PEOPLE if rater in graded.people else "judges"
        rankings[kind].append(ranking_of(means, rater, prompt))
    return dict(rankings)


def pairwise_rankings(
    rewards: Sequence[float], writers: Sequence[str], groups: Sequence[Any], prompts: Sequence[str]
) -> list[Ranking]:
    """A rater's verdicts on pairs of texts by two writers; intervals are by prompt."""
    return [
        ranking_of(
            {writers[one]: rewards[one], writers[other]: rewards[other]}, prompt=prompts[one]
        )
        for indices in members_of(groups)
        for one, other in itertools.combinations(indices, 2)
        if writers[one] != writers[other]
    ]


def without_people(cells: list[Cell]) -> list[Cell]:
    """The judges' grades; those of people if there are no judges. The two are not pooled."""
    return [cell for cell in cells if cell.judge != PEOPLE] or cells


def agreements_with_people(graded: Graded) -> list[GradeAgreement]:
    """Compare every judge with the mean of the people, by quantity."""
    by_quantity: dict[str, dict[str, dict[tuple[str, str, int], list[float]]]] = {}
    for row in graded.rows:
        place = (row["writer"], row["prompt_id"], row["sample"])
        rater = PEOPLE if row["rater"] in graded.people else row["rater"]
        of_rater = by_quantity.setdefault(row["quantity"], {}).setdefault(rater, {})
        of_rater.setdefault(place, []).append(row["grade"])
    found = []
    for quantity, by_rater in by_quantity.items():
        people = by_rater.pop(PEOPLE, {})
        for rater, grades in by_rater.items():
            shared = [
                (writer, prompt, prompt, float(np.mean(people[place])), float(np.mean(of)))
                for place, of in grades.items()
                if place in people
                for writer, prompt, _ in [place]
            ]
            if shared:
                found.append(grade_agreement(rater, PEOPLE, quantity, shared))
    return found


def length_correlations(graded: Graded, quantity: str) -> list[tuple[str, str, LengthCorrelation]]:
    """Correlate lengths with each other, and the judges' grades with them, over texts."""
    values: dict[str, dict[tuple[str, str, int], float]] = defaultdict(dict)
    for row in graded.rows:
        is_length = row["quantity"] in LENGTHS
        if is_length or (row["quantity"] == quantity and row["rater"] is not None):
            name = row["quantity"] if is_length else f"{quantity} by {row['rater']}"
            values[name][row["writer"], row["prompt_id"], row["sample"]] = row["grade"]
    found = []
    for x, y in itertools.combinations(values, 2) if values.keys() >= set(LENGTHS) else ():
        shared = [place for place in values[x] if place in values[y]]
        if x in LENGTHS and shared:
            of_both = ([values[name][place] for place in shared] for name in (x, y))
            found.append((x, y, length_correlation(*of_both)))
    return found


def plan_inconsistencies(graded: Graded) -> dict[str, list[Inconsistency]]:
    """How far the weights of each planner differ between samples, by prompt with several.

    A judge that plans its own criteria is a planner, too; its plan is of one writer's text.
    """
    plans: dict[tuple[str, str, str], dict[int, dict[str, float]]] = defaultdict(dict)
    for row in graded.rows:
        if row["quantity"].startswith((WEIGHT, SHARE)):
            # The planner's plan does not depend on the writer.
            writer = row["writer"] if row["quantity"].startswith(SHARE) else ""
            plan = plans[row["rater"], row["prompt_id"], writer].setdefault(row["sample"], {})
            plan[row["quantity"]] = row["grade"]
    found = defaultdict(list)
    for (planner, *_), trials in plans.items():
        if len(trials) > 1:
            ordered = [trials[sample] for sample in sorted(trials)]
            found[planner].append(negotiation_inconsistency(ordered))
    return dict(found)
