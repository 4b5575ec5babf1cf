"""Matrices of writers and groups as heat maps and tables, for writers.html and a terminal."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from litbench.evaluation.report import figures
from litbench.evaluation.report.document import (
    Cell,
    Figure,
    Section,
    Table,
    compared,
    short_name,
    stacked,
    table_of,
)
from litbench.metrics.comparisons import Comparison
from litbench.writers.groups import ALL, GroupCell, GroupMatrix

_ABOUT = (
    "Mean of each row in each group. Bold: differs from the row's mean over all groups "
    "(p < 0.05 after Holm's correction over the writers' cells; the row of all writers is "
    "corrected apart). Colour: from the lowest to the highest mean. All writers: on each "
    "prompt the mean of the writers that have it."
)
_CENTERED = "Colours: above 0 and below 0."


def group_sections(
    groups: Mapping[str, Sequence[GroupMatrix]], writers: Sequence[str]
) -> tuple[list[Section], list[str]]:
    """A section for each matrix, with its writers in the given order, and texts for a terminal."""
    sections, texts = [], []
    ranks = {writer: rank for rank, writer in enumerate(writers)}
    for matrix in itertools.chain.from_iterable(groups.values()):
        # Rows that are no writers, such as judges, keep their order.
        order = sorted(matrix.cells, key=lambda row: ranks.get(row, len(ranks)))
        section = _section(matrix, order)
        sections.append(section)
        tables = [part.as_text() for part in section.parts if part.fold is None]
        means = _table(matrix, order, _text).as_text()
        texts.append("\n\n".join([f"{section.title}\n{means}", *tables]))
    return sections, texts


def group_rows(groups: Mapping[str, Sequence[GroupMatrix]]) -> Iterator[dict[str, Any]]:
    """Rows of groups.csv: every cell of every matrix."""
    for by, matrices in groups.items():
        for matrix in matrices:
            for row, of_row in matrix.cells.items():
                for group, cell in of_row.items():
                    gap = cell.difference
                    yield {
                        "by": by,
                        "values": matrix.title,
                        "writer": row,
                        "group": group,
                        "mean": cell.grade.mean,
                        "low": cell.grade.low,
                        "high": cell.grade.high,
                        "prompts": cell.grade.clusters,
                        "difference": gap and gap.mean,
                        "difference_low": gap and gap.low,
                        "difference_high": gap and gap.high,
                        "p_holm": cell.p_holm,
                    }


def _row(matrix: GroupMatrix, row: str) -> list[GroupCell | None]:
    return [matrix.cells[row].get(group) for group in matrix.groups]


def _table(
    matrix: GroupMatrix, rows: Sequence[str], write: Callable[[GroupCell | None], str | Cell]
) -> Table:
    lines = [[row, *map(write, _row(matrix, row))] for row in rows]
    return Table(["", *matrix.groups], lines)


def _section(matrix: GroupMatrix, rows: Sequence[str]) -> Section:
    cells = [_row(matrix, row) for row in rows]
    title = matrix.title[0].upper() + matrix.title[1:]
    address = Section(title).address
    drawn = figures.heat_map(
        [short_name(row) for row in rows],
        [short_name(group) for group in matrix.groups],
        np.array([[cell.grade.mean if cell else math.nan for cell in row] for row in cells]),
        matrix.title,
        center=0.0 if matrix.is_centered else None,
        bold=np.array([[cell is not None and cell.p_holm < 0.05 for cell in row] for row in cells]),
    )
    about = _CENTERED if matrix.is_centered else _ABOUT
    folded = Section(
        "All cells: mean, interval, difference from the row's mean, p",
        table=_table(matrix, rows, _cell),
        name=f"{address}-cells",
        fold=False,
    )
    table = _groups_table(matrix)
    parts = [Section("Groups", table=table, name=f"{address}-groups")] if table else []
    return Section(title, figures=[Figure("Heat map", about, drawn)], parts=[*parts, folded])


def _text(cell: GroupCell | None) -> str:
    return "–" if cell is None or math.isnan(cell.grade.mean) else f"{cell.grade.mean:.2f}"


def _cell(cell: GroupCell | None) -> Cell:
    if cell is None or not cell.grade.is_bounded:
        return Cell(_text(cell))
    gap = _compared(cell)
    more = [] if cell.difference is None else [" ".join([gap.text, *gap.small[:1]]), *gap.small[1:]]
    return stacked(cell.grade, *more)


def _compared(cell: GroupCell) -> Cell:
    if cell.difference is None or not cell.difference.is_bounded:
        return Cell("–")
    return compared(Comparison("", "", cell.difference, math.nan, cell.p_holm))


def _groups_table(matrix: GroupMatrix) -> Table | None:
    """By group: prompts, mean of all writers, and the best writer; None if rows are no writers."""
    if ALL not in matrix.cells:
        return None
    together = matrix.cells[ALL]
    means = {
        group: {
            row: of_row[group].grade.mean
            for row, of_row in matrix.cells.items()
            if row != ALL and group in of_row
        }
        for group in matrix.groups
    }
    return table_of(
        matrix.groups,
        {
            "group": lambda group: group,
            "prompts": lambda group: together[group].grade.clusters,
            "mean of all writers": lambda group: _cell(replace(together[group], difference=None)),
            "difference\nfrom all groups": lambda group: _compared(together[group]),
            "highest": lambda group: max(means[group], key=means[group].__getitem__),
            "range of writers": lambda group: (
                f"{min(means[group].values()):.2f} to {max(means[group].values()):.2f}"
            ),
        },
    )
