"""Grades of runs, and what they say about writers, judges and people.

Grades are rows of `litbench.data.records.GRADES`; those of people count as those of one rater,
`PEOPLE`.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.metrics.annotators import AnnotatorAgreement, annotator_agreement
from litbench.metrics.intervals import Interval, two_way_mean_interval
from litbench.writers.metrics import (
    Correlation,
    GradeCell,
    Inconsistency,
    LengthCorrelation,
    correlate_writers,
    grade_agreement,
    grouped,
    length_correlation,
    members_of,
    negotiation_inconsistency,
)
from litbench.writers.plackett_luce import Ranking, ranking_of

PEOPLE = "people"
# Quantities of the protocol tow: lengths of the input and of the text, weights of the planner, and
# shares of the criteria that a judge has planned for a text.
LENGTHS = ("input characters", "output characters")
WEIGHT, SHARE = "weight ", "share "
# Lengths of an instruction's parts, and failures that judges named (narra).
CHARACTERS, FAILURE = "characters of ", "failure "


@dataclass
class GradeTable:
    """All grades of the runs.

    Attributes:
        rows: rows of the tables of grades that have a grade; also ratings by criterion where the
            criterion is no quantity of the grades.
        missing: number of rows without one.
        people: raters that are people.
        stories: the stories of all runs; None if there are none.
        text_grades: (judge, story_id) -> the judge's grade of that text.
        headline: the quantity that the protocol names first.
        notes: why results cannot be compared with published ones.
        repeats: the known grades of repeated judgements, rows of the table REPEATS.
        criteria: the criteria of the ratings that are also quantities.
        costs: role, step, calls, dollars, and mean tokens of a call, read and written.
        until: of runs until decided, the records of `litbench.evaluation.stopping`.
    """

    rows: list[dict[str, Any]]
    missing: int
    people: set[str]
    stories: pa.Table | None
    text_grades: dict[tuple[str, str], float]
    headline: str
    notes: list[str]
    repeats: list[dict[str, Any]] = field(default_factory=list)
    criteria: list[str] = field(default_factory=list)
    costs: list[list[Any]] = field(default_factory=list)
    until: list[dict[str, Any]] = field(default_factory=list)

    def story_rows(self, *names: str) -> list[tuple[Any, ...]]:
        """The values of some columns of the stories, row by row; none without stories."""
        if self.stories is None:
            return []
        return list(zip(*(self.stories[name].to_pylist() for name in names), strict=True))


def cells_of(graded: GradeTable, quantity: str) -> list[GradeCell]:
    """Mean grades by writer, prompt and rater; all people are the rater `PEOPLE`."""
    rows = [
        row | {"rater": PEOPLE if row["rater"] in graded.people else row["rater"] or ""}
        for row in graded.rows
        if row["quantity"] == quantity
    ]
    means = _means(rows, "writer", "prompt_id", "rater")
    return [
        GradeCell(writer, prompt, judge, grade) for (writer, prompt, judge), grade in means.items()
    ]


def _means(rows: Iterable[Mapping[str, Any]], *names: str) -> dict[Any, float]:
    """Mean grades by the values of some columns."""
    groups = grouped(rows, itemgetter(*names))
    return {key: float(np.mean([row["grade"] for row in rows])) for key, rows in groups.items()}


def rankings_of(graded: GradeTable, quantity: str) -> dict[str, list[Ranking]]:
    """Every rater's rankings of the writers by prompt, of people and of judges.

    People who rank once each and share no text, as in groups of sessions, are clusters alone: their
    rankings name no prompt.
    """
    rows = [row for row in graded.rows if row["quantity"] == quantity and row["rater"] is not None]
    by_rater = grouped(rows, itemgetter("rater", "prompt_id"))
    by_people = [row for row in rows if row["rater"] in graded.people]
    texts = {(row["writer"], row["prompt_id"], row["sample"]) for row in by_people}
    people = [rater for rater, _ in by_rater if rater in graded.people]
    share_nothing = len(texts) == len(by_people) and len(people) == len(set(people))
    rankings = [
        ranking_of(
            {w: round(mean, 9) for w, mean in _means(rows, "writer").items()},
            rater,
            None if share_nothing and rater in graded.people else prompt,
        )
        for (rater, prompt), rows in by_rater.items()
    ]
    return grouped(rankings, lambda ranking: PEOPLE if ranking.rater in graded.people else "judges")


def pairwise_rankings(
    rewards: Sequence[float], writers: Sequence[str], groups: Sequence[Any], prompts: Sequence[str]
) -> list[Ranking]:
    """A rater's verdicts on pairs of texts by two writers; intervals are by prompt."""
    return [
        ranking_of(
            {writers[index]: rewards[index], writers[other]: rewards[other]}, prompt=prompts[index]
        )
        for indices in members_of(groups)
        for index, other in itertools.combinations(indices, 2)
        if writers[index] != writers[other]
    ]


def without_people(cells: list[GradeCell]) -> list[GradeCell]:
    """The judges' grades; those of people if there are no judges. The two are not pooled."""
    return [cell for cell in cells if cell.judge != PEOPLE] or cells


@dataclass(frozen=True)
class PeopleAgreement:
    """How far a rater agrees with people on one quantity.

    Attributes:
        agreement: share of pairs of texts for the same prompt that it orders as people do, of those
            that people grade differently; a tie counts one half; clustered by prompt and writer.
        systems: correlations of the writers' means.
        texts: number of texts.
        is_paired: whether both graded the same texts; otherwise their means by writer and prompt
            are compared, such as those of sessions that a model and that people played.
        within: mean rank correlation (tau-b) with one person over the texts of a prompt, by prompt
            and person.
        offset: the rater's grade minus a person's of the same text, by prompt and person.
        one_person: agreement of one person with the mean of the others, by prompt; None if no text
            was graded by two.
        against_others: the rater's agreement with the same means.
    """

    rater: str
    reference: str
    quantity: str
    agreement: Interval
    systems: Correlation
    texts: int
    is_paired: bool
    within: Interval
    offset: Interval
    one_person: Interval | None
    against_others: Interval | None


def method_correlations(
    graded: GradeTable, quantity: str, groupings: Sequence[Mapping[str, str]]
) -> list[tuple[str, str, dict[str, Correlation]]]:
    """Correlate each judge's quantities with people's grades, over writers (HoWToBench, Table 3).

    Only texts that people graded count. `groupings` have by prompt its group, such as its task.

    Returns:
        Quantity, judge ("" without), and the correlations over `all` prompts and those of each
        group. Quantities that do not differ between writers are left out.
    """
    cells = cells_of(graded, quantity)
    people = {(c.writer, c.prompt): c.grade for c in cells if c.judge == PEOPLE}
    rows: dict[Any, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for name in dict.fromkeys(row["quantity"] for row in graded.rows) if people else ():
        for writer, prompt, judge, grade in cells_of(graded, name):
            groups = ["all", *(names[prompt] for names in groupings if prompt in names)]
            for group in groups if judge != PEOPLE and (writer, prompt) in people else ():
                row = (writer, prompt, people[writer, prompt], grade)
                rows[name, judge][group].append(row)
    methods = [
        (*key, {group: correlate_writers(key[0], PEOPLE, r) for group, r in of_method.items()})
        for key, of_method in rows.items()
    ]
    return [method for method in methods if math.isfinite(method[2]["all"].pearson)]


# Writer, prompt and sample; without a sample all of them together.
_Place = tuple[Any, ...]


def agreements_with_people(graded: GradeTable) -> list[PeopleAgreement]:
    """Compare every judge with the people, by quantity and criterion."""
    rows = [row for row in graded.rows if row["rater"] is not None]
    keys = ("writer", "prompt_id", "sample")
    agreements = []
    for quantity, of_quantity in grouped(rows, itemgetter("quantity")).items():
        by_rater = grouped(of_quantity, itemgetter("rater"))
        people = by_rater.keys() & graded.people
        read = {itemgetter(*keys)(row) for name in people for row in by_rater[name]}
        for rater in sorted(by_rater.keys() - people) if people else ():
            is_paired = not read.isdisjoint(map(itemgetter(*keys), by_rater[rater]))
            names = keys if is_paired else keys[:2]
            grades = {name: _means(rows, *names) for name, rows in by_rater.items()}
            compared = {name: grades[name] for name in by_rater if name in people}
            agreement = _agreement_with_people(
                rater, quantity, grades[rater], compared, is_paired=is_paired
            )
            agreements += [agreement] if agreement is not None else []
    return agreements


def _agreement_with_people(
    rater: str,
    quantity: str,
    grades: Mapping[_Place, float],
    people: Mapping[str, Mapping[_Place, float]],
    *,
    is_paired: bool,
) -> PeopleAgreement | None:
    """Compare a rater's grades with those of each person; None without a common text."""
    # Place, person and grade of the texts that the rater graded too.
    both = [
        (key, name, grade)
        for name, grades_of_person in people.items()
        for key, grade in grades_of_person.items()
        if key in grades
    ]
    of_people = grouped(both, lambda row: row[0])
    places = [key for key in grades if key in of_people]
    if not places:
        return None
    rows = [
        (key[0], key[1], float(np.mean([row[2] for row in of_people[key]])), grades[key])
        for key in places
    ]
    offsets = [(grades[key] - grade, key[1], name) for key, name, grade in both]
    left_out = _against_others(rater, {key: grades[key] for key in places}, people)
    return PeopleAgreement(
        rater,
        PEOPLE,
        quantity,
        *grade_agreement(rater, PEOPLE, rows),
        texts=len(rows),
        is_paired=is_paired,
        within=_within_prompts(both, grades),
        offset=_by_prompt_and_person(offsets),
        one_person=left_out.one_annotator if left_out else None,
        against_others=left_out.raters[0].agreement if left_out else None,
    )


def _within_prompts(
    both: Sequence[tuple[_Place, str, float]], grades: Mapping[_Place, float]
) -> Interval:
    """Mean rank correlation of a rater with a person over the texts of a prompt."""
    from scipy.stats import kendalltau  # noqa: PLC0415

    correlations = []
    for (prompt, name), texts in grouped(both, lambda row: (row[0][1], row[1])).items():
        pairs = np.array([(grade, grades[key]) for key, _, grade in texts])
        # Undefined if one of the two grades all texts alike.
        if (np.ptp(pairs, axis=0) > 0).all():
            correlations.append((float(kendalltau(*pairs.T).statistic), prompt, name))
    return _by_prompt_and_person(correlations)


def _by_prompt_and_person(rows: Sequence[tuple[float, str, str]]) -> Interval:
    values, prompts, names = ([row[at] for row in rows] for at in range(3))
    return two_way_mean_interval(np.array(values, dtype=float), prompts, names)


def _against_others(
    rater: str, grades: Mapping[_Place, float], people: Mapping[str, Mapping[_Place, float]]
) -> AnnotatorAgreement | None:
    """Rater and people against the mean of the other people, on pairs of texts of a prompt."""
    pairs = [
        pair
        for places in grouped(grades, lambda key: key[1]).values()
        for pair in itertools.combinations(places, 2)
    ]
    if not pairs:
        return None
    gaps = [grades[first] - grades[other] for first, other in pairs]
    return annotator_agreement(
        {
            name: {str(key): grade for key, grade in grades_of_person.items()}
            for name, grades_of_person in people.items()
        },
        [str(first) for first, _ in pairs],
        [str(other) for _, other in pairs],
        [first[1] for first, _ in pairs],
        {rater: (1 + np.sign(np.round(gaps, 9))) / 2},
    )


def grades_by_text(graded: GradeTable, quantity: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Lengths of inputs and texts, and the grades by each judge, by writer, prompt and sample."""
    rows = [
        row
        for row in graded.rows
        if row["quantity"] in LENGTHS or (row["quantity"] == quantity and row["rater"] is not None)
    ]
    return {
        name if name in LENGTHS else f"{name} by {rater}": _means(
            rows, "writer", "prompt_id", "sample"
        )
        for (name, rater), rows in grouped(rows, itemgetter("quantity", "rater")).items()
    }


def length_correlations(
    graded: GradeTable, quantity: str
) -> list[tuple[str, str, LengthCorrelation]]:
    """Correlate lengths with each other, and the judges' grades with them, over texts."""
    values = grades_by_text(graded, quantity)
    correlations = []
    for x, y in length_pairs(values):
        shared = [key for key in values[x] if key in values[y]]
        if shared:
            of_both = ([values[name][key] for key in shared] for name in (x, y))
            correlations.append((x, y, length_correlation(*of_both)))
    return correlations


def length_pairs(names: Collection[str]) -> list[tuple[str, str]]:
    """Pairs of a length and another length or grade; none without both lengths."""
    pairs = itertools.combinations(names, 2) if set(LENGTHS) <= set(names) else ()
    return [(x, y) for x, y in pairs if x in LENGTHS]


def plan_inconsistencies(graded: GradeTable) -> dict[str, list[Inconsistency]]:
    """How far the weights of each planner differ between samples, by prompt with several.

    A judge that plans its own criteria is a planner, too; its plan is of one writer's text.
    """
    rows = [row for row in graded.rows if row["quantity"].startswith((WEIGHT, SHARE))]

    def plan_of(row: Mapping[str, Any]) -> tuple[str, str, str]:
        # The planner's plan does not depend on the writer.
        writer = row["writer"] if row["quantity"].startswith(SHARE) else ""
        return row["rater"], row["prompt_id"], writer

    planned = []
    for (planner, *_), plan_rows in grouped(rows, plan_of).items():
        trials = sorted(grouped(plan_rows, itemgetter("sample")).items())
        if len(trials) > 1:
            weights = [{row["quantity"]: row["grade"] for row in trial} for _, trial in trials]
            planned.append((planner, negotiation_inconsistency(weights)))
    by_planner = grouped(planned, itemgetter(0))
    return {planner: [pair for _, pair in pairs] for planner, pairs in by_planner.items()}


@dataclass(frozen=True)
class Repeats:
    """The grades of one piece of writing by repeated judgements (WebNovelBench, 5.3)."""

    writer: str
    prompt: str
    judge: str
    grades: list[float]

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """First quartile, median and third quartile."""
        low, median, high = np.percentile(self.grades, (25, 50, 75)).tolist()
        return low, median, high

    @property
    def variance(self) -> float:
        """Unbiased variance over the judgements."""
        return float(np.var(self.grades, ddof=1))


def repeats_of(graded: GradeTable, quantity: str) -> list[Repeats]:
    """The repeated judgements of a quantity, by writer, prompt, sample and judge."""
    rows = [row for row in graded.repeats if row["quantity"] == quantity]
    groups = grouped(rows, itemgetter("writer", "prompt_id", "sample", "rater"))
    return [
        Repeats(
            writer,
            f"{prompt}, sample {sample}" if sample else prompt,
            judge,
            [row["grade"] for row in same],
        )
        for (writer, prompt, sample, judge), same in groups.items()
        if len(same) > 1
    ]
