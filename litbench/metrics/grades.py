"""Grades of runs, and what they say about writers, judges and people.

Grades are rows of `litbench.records.GRADES`; those of people count as those of one rater, `PEOPLE`.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.metrics.annotators import annotator_agreement
from litbench.metrics.intervals import Interval, two_way_mean_interval
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
        criteria: ratings by criterion, in the form of `rows`, that have no grades of their own.
    """

    rows: list[dict[str, Any]]
    missing: int
    people: set[str]
    stories: pa.Table | None
    text_grades: dict[tuple[str, str], float]
    headline: str
    notes: list[str]
    criteria: list[dict[str, Any]] = field(default_factory=list)


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


@dataclass(frozen=True)
class PeopleAgreement(GradeAgreement):
    """How far a rater agrees with people on one quantity.

    Attributes:
        is_paired: whether both graded the same texts; otherwise their means by writer and prompt
            are compared, such as those of sessions that a model and that people played.
        within: mean rank correlation (tau-b) with one person over the texts of a prompt, by prompt
            and person.
        offset: the rater's grade minus a person's of the same text, by prompt and person.
        one_person: agreement of one person with the mean of the others, by prompt; None if no text
            was graded by two.
        against_others: the rater's agreement with the same means.
    """

    is_paired: bool
    within: Interval
    offset: Interval
    one_person: Interval | None
    against_others: Interval | None


# Writer, prompt and sample; without a sample all of them together.
_Place = tuple[str, str, int | None]


def agreements_with_people(graded: Graded) -> list[PeopleAgreement]:
    """Compare every judge with the people, by quantity and criterion."""
    by_quantity: dict[str, dict[str, dict[_Place, list[float]]]] = {}
    for row in [*graded.rows, *graded.criteria]:
        if row["rater"] is not None:
            place = (row["writer"], row["prompt_id"], row["sample"])
            of_rater = by_quantity.setdefault(row["quantity"], {}).setdefault(row["rater"], {})
            of_rater.setdefault(place, []).append(row["grade"])
    found = []
    for quantity, by_rater in by_quantity.items():
        people = {name: _means(of) for name, of in by_rater.items() if name in graded.people}
        merged = {name: _means(_merged(by_rater[name])) for name in people}
        for rater in by_rater.keys() - people.keys() if people else ():
            grades = _means(by_rater[rater])
            is_paired = any(place in of for of in people.values() for place in grades)
            if not is_paired:
                grades = _means(_merged(by_rater[rater]))
            compared = people if is_paired else merged
            one = _agreement_with_people(rater, quantity, grades, compared, is_paired=is_paired)
            found += [one] if one is not None else []
    order = {name: at for at, name in enumerate(by_quantity)}
    return sorted(found, key=lambda one: (order[one.quantity], one.rater))


def _means(grades: Mapping[_Place, Sequence[float]]) -> dict[_Place, float]:
    return {place: float(np.mean(of)) for place, of in grades.items()}


def _merged(grades: Mapping[_Place, Sequence[float]]) -> dict[_Place, list[float]]:
    """The grades by writer and prompt."""
    found: dict[_Place, list[float]] = defaultdict(list)
    for (writer, prompt, _), of in grades.items():
        found[writer, prompt, None] += of
    return found


def _agreement_with_people(
    rater: str,
    quantity: str,
    grades: Mapping[_Place, float],
    people: Mapping[str, Mapping[_Place, float]],
    *,
    is_paired: bool,
) -> PeopleAgreement | None:
    """Compare a rater's grades with those of each person; None without a common text."""
    from scipy.stats import kendalltau  # noqa: PLC0415

    of_people: dict[_Place, list[float]] = defaultdict(list)
    for of in people.values():
        for place, grade in of.items():
            of_people[place].append(grade)
    places = [place for place in grades if place in of_people]
    if not places:
        return None
    rows = [(p[0], p[1], p[1], float(np.mean(of_people[p])), grades[p]) for p in places]
    base = grade_agreement(rater, PEOPLE, quantity, rows)
    offsets = [
        (grades[place] - grade, place[1], name)
        for name, of in people.items()
        for place, grade in of.items()
        if place in grades
    ]
    correlations = []
    for name, of in people.items():
        by_prompt: dict[str, list[_Place]] = defaultdict(list)
        for place in of:
            if place in grades:
                by_prompt[place[1]].append(place)
        for prompt, texts in by_prompt.items():
            pairs = np.array([(of[place], grades[place]) for place in texts])
            # Undefined if one of the two grades all texts alike.
            if (np.ptp(pairs, axis=0) > 0).all():
                correlations.append((float(kendalltau(*pairs.T).statistic), prompt, name))
    groups = members_of([place[1] for place in places])
    firsts, seconds = (
        [places[pair[side]] for of in groups for pair in itertools.combinations(of, 2)]
        for side in (0, 1)
    )
    gaps = [grades[one] - grades[other] for one, other in zip(firsts, seconds, strict=True)]
    left_out = firsts and annotator_agreement(
        {name: {str(place): grade for place, grade in of.items()} for name, of in people.items()},
        list(map(str, firsts)),
        list(map(str, seconds)),
        [place[1] for place in firsts],
        {rater: (1 + np.sign(np.round(gaps, 9))) / 2},
    )
    return PeopleAgreement(
        **vars(base),
        is_paired=is_paired,
        within=_by_prompt_and_person(correlations),
        offset=_by_prompt_and_person(offsets),
        one_person=left_out.one_annotator if left_out else None,
        against_others=left_out.raters[0].agreement if left_out else None,
    )


def _by_prompt_and_person(rows: Sequence[tuple[float, str, str]]) -> Interval:
    values, prompts, names = ([row[at] for row in rows] for at in range(3))
    return two_way_mean_interval(np.array(values, dtype=float), prompts, names)


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
