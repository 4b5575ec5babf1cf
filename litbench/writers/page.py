"""The comparison of writers: its tables for the terminal, and writers.html."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from litbench.evaluation.report import figures
from litbench.evaluation.report.document import (
    Card,
    Figure,
    Page,
    Section,
    Table,
    few_prompts,
    p_value,
    short_name,
    shorten,
    signed,
    stacked,
    table_of,
    written_now,
)
from litbench.evaluation.stopping import until_section
from litbench.metrics.intervals import Interval
from litbench.writers.grades import PeopleAgreement, Repeats
from litbench.writers.group_page import group_sections
from litbench.writers.groups import GroupMatrix
from litbench.writers.metrics import (
    Correlation,
    Inconsistency,
    LengthCorrelation,
    PromptRange,
    TextAgreement,
    WriterRow,
)
from litbench.writers.plackett_luce import Utilities

# Percentiles above it do not tell writers apart (protocol webnovel).
CEILING = 99
_EXCERPT = 600


@dataclass(frozen=True)
class WriterComparison:
    """Everything that litbench writers compare finds out.

    Attributes:
        rows: the leaderboard by `quantity`.
        judges: the offset of each judge; see `fit_offsets`, also for `is_connected`.
        utilities: Plackett-Luce utilities by source: people, judges or a rater.
        columns: numbers by name and writer, which `correlations` compares.
        quantities: mean grades by quantity and writer.
        text_agreement: of each rater with each judge.
        people_agreement: agreement of each judge with people, by quantity.
        method_correlation: see `method_correlations`.
        changes: by quantity and writer, the difference from the reference.
        costs: see `GradeTable`.
        length_correlation: (x, y, correlation) of lengths and grades.
        plan_inconsistency: by planner, one per prompt.
        trained_on: by rater, the number of prompts it was trained on.
        groups: by grouping, its matrices.
        until: of runs until decided, the records of `litbench.evaluation.stopping`.
    """

    quantity: str
    reference: str | None
    rows: list[WriterRow]
    judges: dict[str, float]
    is_connected: bool
    utilities: dict[str, Utilities]
    columns: dict[str, dict[str, float]]
    quantities: dict[str, dict[str, float]]
    correlations: list[Correlation]
    text_agreement: list[TextAgreement]
    people_agreement: list[PeopleAgreement]
    method_correlation: list[tuple[str, str, dict[str, Correlation]]]
    changes: dict[str, dict[str, Interval]]
    costs: list[list[Any]]
    length_correlation: list[tuple[str, str, LengthCorrelation]]
    plan_inconsistency: dict[str, list[Inconsistency]]
    ranges: list[PromptRange]
    repeats: list[Repeats]
    missing_grades: int
    not_comparable: list[str]
    trained_on: dict[str, int]
    groups: dict[str, list[GroupMatrix]]
    until: list[dict[str, Any]]


def _correlations(read: Callable[[Any], Correlation]) -> dict[str, Callable[[Any], str]]:
    """Columns of a correlation that a row has."""
    return {
        "Pearson": lambda row: _number(read(row).pearson),
        "tau-b": lambda row: _number(read(row).kendall),
        "Spearman": lambda row: _number(read(row).spearman),
    }


def _numbers(
    comparison: WriterComparison, columns: Mapping[str, Mapping[str, float]], digits: int
) -> Table:
    """Columns that the leaderboard does not have; as rows if they outnumber the writers."""
    writers = [row.writer for row in comparison.rows]
    grades = [row.grade.mean for row in comparison.rows]
    rates = {f"win rate by {rater}" for row in comparison.rows for rater in row.win_rates}
    rows = [
        [name, *(_number(column.get(writer), digits) for writer in writers)]
        for name, column in columns.items()
        if name not in rates
        and not np.allclose([column.get(writer, math.nan) for writer in writers], grades)
    ]
    if len(rows) > len(writers):
        return Table(["quantity", *writers], rows)
    heading, *values = zip(["writer", *writers], *rows, strict=True)
    return Table(heading, values if rows else [])


def _writer_tables(comparison: WriterComparison) -> dict[str, Table]:
    """Tables of writers and of the grades behind their means."""
    utilities: dict[str, Callable[[str], str]] = {
        name: partial(_utility, fit) for name, fit in comparison.utilities.items()
    }
    return {
        f"Writers by {comparison.quantity}": _leaderboard(comparison.rows, comparison.reference),
        "Judges' offsets": table_of(
            list(comparison.judges.items()) if len(comparison.judges) > 1 else [],
            {
                "judge": lambda row: row[0],
                "grades above the mean of all judges by": lambda row: f"{row[1]:+.2f}",
            },
        ),
        "Utilities (Plackett-Luce)": table_of(
            [row.writer for row in comparison.rows], {"writer": str, **utilities}
        ),
        "Range over prompts": table_of(
            comparison.ranges,
            {
                "writer": lambda row: row.writer,
                "lowest": lambda row: _number(row.low),
                "lowest on": lambda row: row.lowest,
                "highest": lambda row: _number(row.high),
                "highest on": lambda row: row.highest,
                "below the limit": lambda row: row.collapsed,
            },
        ),
        "Repeated judgements": table_of(
            comparison.repeats,
            {
                "writer": lambda row: row.writer,
                "prompt": lambda row: row.prompt,
                "judge": lambda row: row.judge,
                "judgements": lambda row: len(row.grades),
                "mean": lambda row: _number(float(np.mean(row.grades)), 4),
                "median": lambda row: _number(row.quartiles[1], 4),
                "IQR": lambda row: _number(row.quartiles[2] - row.quartiles[0], 4),
                "variance": lambda row: _number(row.variance, 5),
            },
        ),
        "Columns": _numbers(comparison, comparison.columns, 3),
        f"Changes from {comparison.reference}": _changes(comparison),
        "Costs": Table(
            ["role", "step", "calls", "dollars", "tokens read\nby a call", "written"],
            comparison.costs,
        ),
    }


def _changes(comparison: WriterComparison) -> Table:
    """The reference's mean by quantity, and how far the others differ (HoWToBench, Table 7)."""
    reference = comparison.reference or ""
    writers = [row.writer for row in comparison.rows if row.writer != reference]
    means = {name: comparison.quantities[name].get(reference) for name in comparison.changes}
    rows = [
        [name, _number(means[name])]
        + [stacked(changes.get(writer), is_signed=True) for writer in writers]
        for name, changes in comparison.changes.items()
        if any(change.mean for change in changes.values())
    ]
    return Table(["quantity", reference, *writers], rows)


def _methods(methods: Sequence[tuple[str, str, Mapping[str, Correlation]]]) -> Table:
    """The three correlations of each quantity, by group."""
    groups = list(dict.fromkeys(group for *_, by_group in methods for group in by_group))

    def written(row: Correlation | None) -> str:
        values = () if row is None else (row.pearson, row.kendall, row.spearman)
        return " / ".join(map(_number, values)) or "–"

    heading = [f"{group}: Pearson /\ntau-b / Spearman" for group in groups]
    rows = [[*names, *(written(by_group.get(g)) for g in groups)] for *names, by_group in methods]
    return Table(["quantity", "judge", *heading], rows)


def _agreement_tables(comparison: WriterComparison) -> dict[str, Table]:
    """How quantities, raters, judges and people agree."""
    return {
        "Correlations over writers": table_of(
            comparison.correlations,
            {
                "columns": lambda row: f"{row.first}, {row.second}",
                "writers": lambda row: row.writers,
                **_correlations(lambda row: row),
            },
        ),
        "Raters against judges, on single texts": table_of(
            comparison.text_agreement,
            {
                "rater": lambda row: row.rater,
                "judge": lambda row: row.judge,
                "agreement": lambda row: row.agreement,
                "pairs": lambda row: row.agreement.n,
                "minus the longer": lambda row: signed(row.difference),
                "p (Holm)": lambda row: p_value(row.p_holm),
            },
        ),
        "Quantities against people, over writers": _methods(comparison.method_correlation),
        "Judges against people": table_of(
            comparison.people_agreement,
            {
                "judge": lambda row: row.rater,
                "quantity": lambda row: row.quantity + ("" if row.is_paired else " (other texts)"),
                "agreement on pairs": lambda row: row.agreement,
                "pairs": lambda row: row.agreement.n,
                **_correlations(lambda row: row.systems),
                "tau-b within prompts": lambda row: row.within,
                "minus people": lambda row: row.offset,
                "against the others": lambda row: row.against_others,
                "one person": lambda row: row.one_person,
            },
        ),
    }


def comparison_tables(comparison: WriterComparison) -> dict[str, Table]:
    """All tables by title; empty ones are left out."""
    tables = _writer_tables(comparison) | _agreement_tables(comparison)
    tables |= {
        "Lengths of texts": table_of(
            comparison.length_correlation,
            {
                "of": lambda row: row[1],
                "on": lambda row: row[0],
                "texts": lambda row: row[2].n,
                "Pearson (* p < 0.1, ** p < 0.05)": lambda row: starred(row[2]),
                "p": lambda row: p_value(row[2].p),
                "slope": lambda row: _number(row[2].slope, 3),
            },
        ),
        "Negotiation inconsistency": table_of(
            list(comparison.plan_inconsistency.items()),
            {
                "planner": lambda row: row[0],
                "prompts": lambda row: len(row[1]),
                "delta": lambda row: float(np.mean([trial.delta for trial in row[1]])),
                "sigma": lambda row: float(np.mean([trial.sigma for trial in row[1]])),
            },
        ),
        # The longest table.
        "Mean grades": _numbers(comparison, comparison.quantities, 2),
    }
    return {
        title: table for title, table in tables.items() if table.rows and len(table.heading) > 1
    }


def comparison_notes(comparison: WriterComparison) -> list[str]:
    """Remarks on these results."""
    notes = []
    if comparison.missing_grades:
        notes.append(f"{comparison.missing_grades:,} grades are missing: no rating could be read")
    if incomplete := [row for row in comparison.rows if row.missing]:
        total = max(row.missing + row.grade.clusters for row in incomplete)
        listed = ", ".join(f"{row.writer} for {row.missing:,}" for row in incomplete)
        notes.append(
            f"prompts without a grade, of {total:,}: {listed}; the grade predicts them from "
            "the writer's other prompts and from the other writers"
        )
    if stopped := [row for row in comparison.rows if row.stopped]:
        listed = ", ".join(f"{row.writer} after {row.stopped}" for row in stopped)
        notes.append(
            f"stopped early: {listed}; their grades are biased away from those of the writer they "
            "were compared with, and their intervals do not allow for the looks"
        )
    if comparison.quantity == "percentile":
        notes += [
            f"{row.writer} lies above the {CEILING}th percentile, where the scale saturates: "
            "compare the quantity value"
            for row in comparison.rows
            if row.plain > CEILING
        ]
    notes += [
        f"by {name}, wins do not connect {', '.join(utilities.infinite)} with the others both "
        "ways: no finite utility; utility_prior shrinks it"
        for name, utilities in comparison.utilities.items()
        if utilities.infinite
    ]
    if not comparison.is_connected:
        notes.append("judges graded different writers or prompts, so their offsets are not known")
    notes += [
        f"not comparable with published results: {note}" for note in comparison.not_comparable
    ]
    notes += [
        f"{rater} was trained on {count} of these prompts"
        for rater, count in comparison.trained_on.items()
        if count
    ]
    if prior := max((fit.prior for fit in comparison.utilities.values()), default=0.0):
        notes.append(f"utilities are shrunk by a prior of strength {prior:g}")
    return notes


def writer_records(comparison: WriterComparison) -> list[dict[str, Any]]:
    """Rows of writers.csv."""
    return [
        {
            "writer": row.writer,
            "grade": row.grade.mean,
            "low": row.grade.low,
            "high": row.grade.high,
            "prompts": row.grade.clusters,
            "grades": row.grades,
            "missing": row.missing,
            "plain_mean": row.plain,
            "stopped": row.stopped,
            **{name: column.get(row.writer) for name, column in comparison.columns.items()},
        }
        for row in comparison.rows
    ]


def _label(row: WriterRow) -> str:
    return f"{row.writer} (stopped: {row.stopped})" if row.stopped else row.writer


def _leaderboard(rows: Sequence[WriterRow], reference: str | None) -> Table:
    columns: dict[str, Callable[[WriterRow], Any]] = {
        "writer": _label,
        "grade": lambda row: _number(row.grade.mean),
        "95 % interval": lambda row: f"{_number(row.grade.low)} to {_number(row.grade.high)}",
        "prompts": lambda row: row.grade.clusters,
        "grades": lambda row: row.grades,
    }
    if any(row.missing for row in rows):
        columns["without a grade"] = lambda row: row.missing
    if reference is not None:

        def difference(row: WriterRow) -> str:
            gap = row.difference
            if gap is None:
                return ""
            return f"{gap.mean:+.2f} [{_number(gap.low)}, {_number(gap.high)}]"

        columns[f"difference to {reference}"] = difference
        columns["p (Holm)"] = lambda row: "" if row.difference is None else p_value(row.p_holm)
    for rater in dict.fromkeys(rater for row in rows for rater in row.win_rates):
        columns[f"win rate by {rater}"] = lambda row, rater=rater: row.win_rates.get(rater)  # type: ignore[misc]
    return table_of(rows, columns)


def _utility(utilities: Utilities, writer: str) -> str:
    mean, low, high = (
        _number(values.get(writer)) for values in (utilities.values, utilities.low, utilities.high)
    )
    return mean if "–" in (mean, low) else f"{mean} [{low}, {high}]"


def starred(correlation: LengthCorrelation) -> str:
    """A correlation with the marks of significance of Table 6 of HoWToBench."""
    return _number(correlation.pearson, 4) + "*" * sum(
        correlation.p < level for level in (0.1, 0.05)
    )


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _panel(comparison: WriterComparison, published: Mapping[str, Mapping[str, float]]) -> Figure:
    """The leaderboard as a dot plot, with the first published result."""
    name = next(iter(published), None)
    labels = {
        row.writer: short_name(row.writer) + " (stopped)" * bool(row.stopped)
        for row in comparison.rows
    }
    points = {} if name is None else published[name]
    hollow = {labels.get(writer, short_name(writer)): n for writer, n in points.items()}
    drawn = figures.dots(
        [(labels[row.writer], [[row.grade]]) for row in comparison.rows],
        [comparison.quantity],
        f"{comparison.quantity}, mean over prompts",
        levels=(),
        hollow=hollow,
        mark=f"published: {name}",
    )
    return Figure("Writers", "Mean grade and 95 % interval, by prompt.", drawn, tall=True)


def _lead(comparison: WriterComparison) -> str:
    best = comparison.rows[0].grade
    same = [row.writer for row in comparison.rows if abs(row.grade.mean - best.mean) < 1e-9]
    who = same[0] if len(same) == 1 else f"{', '.join(same[:-1])} and {same[-1]}"
    return (
        f"{who} {'has' if len(same) == 1 else 'share'} the highest mean "
        f"{comparison.quantity.replace('_', ' ')}: {best.mean:.2f}, over "
        f"{best.clusters:,} {'prompt' if best.clusters == 1 else 'prompts'}"
        f"{' (stopped early)' * bool(comparison.rows[0].stopped)}."
    )


def writers_page(
    comparison: WriterComparison,
    notes: Sequence[str],
    published: Mapping[str, Mapping[str, float]],
    excerpts: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    pictures: Sequence[Section] = (),
) -> tuple[str, Page]:
    """All tables for a terminal, and the page: the leaderboard of writers, tables and excerpts.

    `published` has results by name and writer, `excerpts` a prompt and a text of each writer.
    """
    tables = comparison_tables(comparison)
    texts = [f"{title}\n{table.as_text()}" for title, table in tables.items()]
    rows, panel = comparison.rows, _panel(comparison, published)
    about = (
        "Higher is better; means of single prompts are between "
        f"{min(row.low for row in comparison.ranges):.2f} and "
        f"{max(row.high for row in comparison.ranges):.2f}. Grades are the ratings of models "
        "unless a table says people. A writer's grade is the mean over all prompts, without the "
        "judges' offsets and with missing grades predicted (writer + prompt). Win rate: the share "
        "of other writers' texts for the same prompt and step with a lower reward."
    )
    warnings = [*few_prompts(rows[0].grade), *(f"{note}." for note in notes)]
    cards = [
        Card([(writer, shorten(text, _EXCERPT))], prompt=shorten(prompt, _EXCERPT))
        for writer, (prompt, text) in excerpts.items()
    ]
    note = "The beginning of one text of each writer, for the same prompt where there is one."
    by_group, group_texts = group_sections(comparison.groups, [row.writer for row in rows])
    leaderboard, *others = (Section(title, table=table) for title, table in tables.items())
    sections = [
        Section("Overview", about, figures=[panel], name="overview"),
        leaderboard,
        *([Section("Limits", warnings=warnings)] if warnings else []),
        *(until_section(record) for record in comparison.until),
        *by_group,
        *others,
        *pictures,
        *([Section("Excerpts", note, cards=cards)] if cards else []),
    ]
    facts, files = f"{len(rows)} writers. {written_now()}", {"writers": panel}
    page = Page("LitBench: writers", _lead(comparison), facts, sections, files=files)
    return "\n\n".join([*texts, *group_texts, *notes]) + "\n", page
