"""Grades by genre, persona, criterion, judge or prompt: matrices of writers and groups."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import stdev

import numpy as np

from litbench.metrics.comparisons import difference_interval, holm
from litbench.metrics.intervals import ClusteredMean, Interval, clustered_mean, mean_interval
from litbench.runs.config import nearest
from litbench.runs.errors import ConfigError
from litbench.writers.grades import (
    CHARACTERS,
    FAILURE,
    PEOPLE,
    WEIGHT,
    GradeTable,
    cells_of,
    rankings_of,
    without_people,
)
from litbench.writers.metrics import grouped, means_by_prompt
from litbench.writers.plackett_luce import plackett_luce

# More groups make no readable matrix.
_MAX_GROUPS = 60
ALL = "all writers"
# Groupings that are no column of the stories.
NO_COLUMNS = ("criterion", "judge", "prompt", "step")
# Quantities whose means by group are shown together (tow, narra).
_BY_PREFIX = {
    WEIGHT: "weights of content",
    CHARACTERS: "characters of instructions",
    FAILURE: "failures, as share of judgements,",
}
# Prompt, group and grade.
GroupGrade = tuple[str, str, float]


@dataclass(frozen=True)
class GroupCell:
    """A writer's mean grade in a group, and its difference from the writer's mean over all groups.

    Attributes:
        grade: mean over the group's prompts; the interval is by prompt.
        difference: None without a meaningful mean over all groups.
        p_holm: p value of no difference, after Holm's correction over the cells of all writers; for
            `ALL` over its own.
    """

    grade: Interval
    difference: Interval | None = None
    p_holm: float = math.nan


@dataclass(frozen=True)
class GroupMatrix:
    """Means by writer and group; `ALL` is the mean of the writers with a grade for a prompt.

    Attributes:
        title: what the values are.
        cells: by row (mostly writers), then group.
        is_centered: whether 0 divides the values, such as differences.
    """

    title: str
    cells: dict[str, dict[str, GroupCell]]
    is_centered: bool = False

    @property
    def groups(self) -> list[str]:
        """The groups, in the order of the matrix."""
        return list(dict.fromkeys(group for row in self.cells.values() for group in row))


def group_matrix(
    title: str, grades: Mapping[str, Sequence[GroupGrade]], *, is_centered: bool = False
) -> GroupMatrix:
    """Means by row and group, with differences from the row's mean over all groups.

    The mean over all groups is over prompts, each with the mean over its groups. Its difference
    from a group's mean is linear in the prompts, which gives the standard error: of groups of
    prompts as of criteria or judges of the same prompts. The degrees of freedom are those of the
    group's prompts.

    Args:
        title: what the grades are.
        grades: by row, grades of prompts in groups; a prompt may have several in one group.
        is_centered: see `GroupMatrix`.

    Raises:
        ConfigError: there are no grades, such as for a column without values.
    """
    cells = {row: dict(_cells(of_row)) for row, of_row in grades.items() if of_row}
    if not cells:
        raise ConfigError(f"by: '{title}' has no values: choose another grouping")
    for rows in (cells.keys() - {ALL}, cells.keys() & {ALL}):
        tested = [(row, group) for row in sorted(rows) for group in cells[row]]
        adjusted = holm([cells[row][group].p_holm for row, group in tested])
        for (row, group), p in zip(tested, adjusted, strict=True):
            cells[row][group] = replace(cells[row][group], p_holm=p)
    return GroupMatrix(title, cells, is_centered)


def _cells(grades: Sequence[GroupGrade]) -> Iterator[tuple[str, GroupCell]]:
    prompts = {prompt: index for index, prompt in enumerate(dict.fromkeys(g[0] for g in grades))}
    names = {group: index for index, group in enumerate(dict.fromkeys(g[1] for g in grades))}
    sums, counts = np.zeros((2, len(prompts), len(names)))
    for prompt, group, grade in grades:
        sums[prompts[prompt], names[group]] += grade
        counts[prompts[prompt], names[group]] += 1
    is_known = counts > 0
    means = np.divide(sums, counts, out=np.zeros_like(sums), where=is_known)
    by_prompt = means.sum(1) / is_known.sum(1)
    overall, total = by_prompt.mean(), len(prompts)
    for group, index in names.items():
        at = is_known[:, index]
        n, mean = int(at.sum()), float(means[at, index].mean())
        shifts = at * total / n * (means[:, index] - mean) - (by_prompt - overall)
        error = clustered_mean(shifts, range(total)).error if n > 1 else math.nan
        gap = ClusteredMean(mean - overall, error, n, n, float(n))
        difference, p = difference_interval(gap, limit=math.inf)
        yield group, GroupCell(mean_interval(means[at, index], range(n)), difference, p)


def _with_all(grades: Mapping[str, Iterable[GroupGrade]]) -> dict[str, list[GroupGrade]]:
    """The grades of writers, and those of `ALL`."""
    listed = {writer: list(of_writer) for writer, of_writer in grades.items()}
    together = grouped((g for rows in listed.values() for g in rows), lambda grade: grade[:2])
    mean = [(*key, float(np.mean([g[2] for g in rows]))) for key, rows in together.items()]
    return {**listed, ALL: mean} if len(listed) > 1 else listed


def group_matrices(graded: GradeTable, by: str, quantity: str, prior: float) -> list[GroupMatrix]:
    """All matrices of a grouping, the first of the grades.

    Args:
        graded: the grades.
        by: `criterion`, `judge`, `prompt`, `step`, or a column of the stories.
        quantity: the quantity to compare, except by criterion and step.
        prior: of the utilities, by criterion.

    Raises:
        ConfigError: there is no such column, or it has too many values.
    """
    judged = without_people(cells_of(graded, quantity))
    if by == "criterion":
        return _by_criterion(graded, prior)
    if by == "judge":
        cells = grouped(cells_of(graded, quantity), lambda cell: cell.writer)
        grades = {w: [(c.prompt, c.judge, c.grade) for c in rows] for w, rows in cells.items()}
        return [group_matrix(f"{quantity} by judge", _with_all(grades)), *_between(grades)]
    if by == "step":
        return [group_matrix("grades of texts by step", _with_all(_by_step(graded)))]
    names = groups_of_prompts(graded, by)
    if len(set(names.values())) > _MAX_GROUPS:
        raise ConfigError(
            f"by: {by} has {len(set(names.values()))} values, and a matrix at most {_MAX_GROUPS}: "
            "choose another column"
        )

    def by_group(grades: Mapping[str, float]) -> list[GroupGrade]:
        rows = [
            (prompt, names[prompt], grade) for prompt, grade in grades.items() if prompt in names
        ]
        return sorted(rows, key=lambda grade: grade[1])

    means = {writer: by_group(grades) for writer, grades in means_by_prompt(judged).items()}
    matrices = [group_matrix(f"{quantity} by {by}", _with_all(means))]
    for prefix, title in _BY_PREFIX.items():
        if rows := quantities_by_prompt(graded, prefix):
            grades = {name: by_group(row) for name, row in rows.items()}
            matrices.append(group_matrix(f"{title} by {by}", grades))
    return matrices


def quantities_by_prompt(graded: GradeTable, prefix: str) -> dict[str, dict[str, float]]:
    """Quantities with a prefix, without it, by prompt, such as the planner's weights (tow)."""
    return {
        name.removeprefix(prefix): {
            prompt: float(np.mean([cell.grade for cell in cells]))
            for prompt, cells in grouped(cells_of(graded, name), lambda cell: cell.prompt).items()
        }
        for name in dict.fromkeys(row["quantity"] for row in graded.rows)
        if name.startswith(prefix)
    }


def groups_of_prompts(graded: GradeTable, by: str) -> dict[str, str]:
    """The group of each prompt: itself, or the first value of a column of its stories."""
    if by == "prompt":
        return {row["prompt_id"]: row["prompt_id"] for row in graded.rows}
    columns = [] if graded.stories is None else graded.stories.column_names
    if by not in columns:
        choices = [*NO_COLUMNS, *columns]
        raise ConfigError(f"by: no column '{by}' in stories.parquet: {nearest(by, choices)}")
    rows = reversed(graded.story_rows("prompt_id", by))
    return {prompt: str(value) for prompt, value in rows if value is not None}


def _by_step(graded: GradeTable) -> dict[str, list[GroupGrade]]:
    """The judges' grades of single texts, such as chapters."""
    if graded.stories is None:
        raise ConfigError("by: no run has stories.parquet, so there are no steps")
    rows = graded.story_rows("source", "prompt_id", "step", "story_id")
    rated = grouped(graded.text_grades.items(), lambda item: item[0][1])
    return {
        writer: [
            (prompt, step, grade)
            for _, prompt, step, story in of_writer
            for _, grade in rated.get(story, ())
        ]
        for writer, of_writer in grouped(rows, lambda row: row[0]).items()
    }


def _by_criterion(graded: GradeTable, prior: float) -> list[GroupMatrix]:
    """Judges' ratings by criterion, people's minus judges', and the utilities of each criterion."""
    if not graded.criteria:
        raise ConfigError("by: no judge rated criteria in these runs")
    grades: dict[str, list[GroupGrade]] = {}
    gaps: dict[str, list[GroupGrade]] = {}
    utilities: dict[str, dict[str, GroupCell]] = {}
    source = ""
    for name in graded.criteria:
        cells = cells_of(graded, name)
        judged = without_people(cells)
        means = means_by_prompt(judged)
        for writer, of_writer in means.items():
            rows = grades.setdefault(writer, [])
            rows += [(prompt, name, grade) for prompt, grade in of_writer.items()]
        for cell in cells if len(judged) < len(cells) else ():
            other = means.get(cell.writer, {}).get(cell.prompt)
            if cell.judge == PEOPLE and other is not None:
                gaps.setdefault(cell.writer, []).append((cell.prompt, name, cell.grade - other))
        rankings = rankings_of(graded, name)
        source = PEOPLE if PEOPLE in rankings else "judges"
        ranked = [r for r in rankings.get(source, ()) if len(set().union(*r.blocks)) > 1]
        if not ranked:
            continue
        fit = plackett_luce(ranked, prior=prior)
        finite = {writer: value for writer, value in fit.values.items() if math.isfinite(value)}
        for writer, value in finite.items():
            bounds = (fit.low.get(writer, math.nan), fit.high.get(writer, math.nan))
            interval = Interval(value, *bounds, len(ranked), len(ranked), float(len(ranked)))
            utilities.setdefault(writer, {})[name] = GroupCell(interval)
    matrices = [group_matrix("ratings by criterion", _with_all(grades))]
    if gaps:
        title = "people minus judges by criterion"
        matrices.append(group_matrix(title, _with_all(gaps), is_centered=True))
    if utilities:
        title = f"utilities by criterion, by {source}"
        matrices.append(GroupMatrix(title, utilities, is_centered=True))
    return matrices


def _between(grades: Mapping[str, Sequence[GroupGrade]]) -> list[GroupMatrix]:
    """How judges, and people, agree on texts: correlations, and the judges' spread by prompt."""
    by_judge: dict[str, dict[tuple[str, str], float]] = {}
    for writer, of_writer in grades.items():
        for prompt, judge, grade in of_writer:
            by_judge.setdefault(judge, {})[writer, prompt] = grade
    spreads: dict[str, list[GroupGrade]] = {}
    for writer, of_writer in grades.items():
        for prompt, rows in grouped(
            (g for g in of_writer if g[1] != PEOPLE), lambda g: g[0]
        ).items():
            if len(rows) > 1:
                spread = stdev(grade for *_, grade in rows)
                spreads.setdefault(writer, []).append((prompt, prompt, spread))
    cells: dict[str, dict[str, GroupCell]] = {}
    for first, other in product(by_judge, repeat=2):
        shared = sorted(by_judge[first].keys() & by_judge[other].keys())
        pair = np.array([[by_judge[name][key] for key in shared] for name in (first, other)])
        if len(shared) > 2 and (np.ptp(pair, axis=1) > 0).all():
            r, n = float(np.corrcoef(pair)[0, 1]), len(shared)
            cell = GroupCell(Interval(r, math.nan, math.nan, n, n, float(n)))
            cells.setdefault(first, {})[other] = cell
    title = "Pearson correlations of judges over texts"
    matrices = [GroupMatrix(title, cells, is_centered=True)] if len(cells) > 1 else []
    if spreads and len({prompt for rows in spreads.values() for prompt, *_ in rows}) <= _MAX_GROUPS:
        title = "standard deviation between judges by prompt"
        matrices.append(group_matrix(title, _with_all(spreads)))
    return matrices
