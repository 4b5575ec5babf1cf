"""The comparison of writers as tables of text, for the terminal and for the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litbench.metrics.grades import PeopleAgreement
from litbench.metrics.plackett_luce import Utilities
from litbench.metrics.printing import write_p
from litbench.metrics.writers import (
    Correlation,
    PromptRange,
    TextAgreement,
    WriterRow,
)
from litbench.metrics.writing import Inconsistency, LengthCorrelation
from litbench.report.document import signed

# Percentiles above it do not tell writers apart (protocol webnovel).
CEILING = 99

Table = list[list[str]]


@dataclass(frozen=True)
class Comparison:
    """Everything that eval/writers.py finds out.

    Attributes:
        rows: the leaderboard by `quantity`.
        judges: the offset of each judge; `is_connected` as in `AdditiveFit`.
        utilities: Plackett-Luce utilities by source: people, judges or a rater.
        columns: numbers by name and writer, which `correlations` compares.
        quantities: mean grades by quantity and writer.
        text_agreement: of each rater with each judge.
        people_agreement: agreement of each judge with people, by quantity.
        length_correlation: (x, y, correlation) of lengths and grades.
        plan_inconsistency: by planner, one per prompt.
        trained_on: by rater, the number of prompts it was trained on.
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
    length_correlation: list[tuple[str, str, LengthCorrelation]]
    plan_inconsistency: dict[str, list[Inconsistency]]
    ranges: list[PromptRange]
    missing_grades: int
    not_comparable: list[str]
    trained_on: dict[str, int]


def comparison_tables(found: Comparison) -> dict[str, Table]:
    """All tables by title; the first row of each is its heading. Empty ones are left out."""
    writers = [row.writer for row in found.rows]
    tables = {
        f"Writers by {found.quantity}": _leaderboard(found.rows, found.reference),
        "Judges' offsets": [
            ["judge", "grades above the mean of all judges by"],
            *([judge, f"{offset:+.2f}"] for judge, offset in found.judges.items()),
        ],
        "Utilities (Plackett-Luce)": [
            ["writer", *found.utilities],
            *([name, *(_utility(of, name) for of in found.utilities.values())] for name in writers),
        ],
        "Range over prompts": [
            ["writer", "lowest", "on", "highest", "on", "below the limit"],
            *(
                [
                    one.writer,
                    _number(one.low),
                    one.lowest,
                    _number(one.high),
                    one.highest,
                    "–" if one.collapsed is None else str(one.collapsed),
                ]
                for one in found.ranges
            ),
        ],
        "Columns": _by_writer(writers, found.columns, 3),
        "Correlations over writers": [
            ["columns", "writers", "Pearson", "tau-b", "Spearman"],
            *(
                [f"{one.first}, {one.second}", str(one.writers), *_correlation(one)]
                for one in found.correlations
            ),
        ],
        "Raters against judges, on single texts": [
            ["rater", "judge", "agreement", "pairs", "minus the longer", "p (Holm)"],
            *(
                [
                    one.rater,
                    one.judge,
                    str(one.agreement),
                    f"{one.agreement.n:,}",
                    signed(one.difference),
                    write_p(one.p_holm),
                ]
                for one in found.text_agreement
            ),
        ],
        "Judges against people": [
            [
                *("judge", "quantity", "agreement on pairs", "pairs", "Pearson", "tau-b"),
                *("Spearman", "tau-b within prompts", "minus people", "against the others"),
                "one person",
            ],
            *(
                [
                    one.rater,
                    one.quantity + ("" if one.is_paired else " (other texts)"),
                    str(one.agreement),
                    f"{one.agreement.n:,}",
                    *_correlation(one.systems),
                    str(one.within),
                    str(one.offset),
                    *(
                        "" if share is None else str(share)
                        for share in (one.against_others, one.one_person)
                    ),
                ]
                for one in found.people_agreement
            ),
        ],
        "Lengths of texts": [
            ["of", "on", "texts", "Pearson", "slope"],
            *(
                [y, x, f"{one.n:,}", _number(one.pearson, 4), _number(one.slope, 3)]
                for x, y, one in found.length_correlation
            ),
        ],
        "Negotiation inconsistency": [
            ["planner", "prompts", "delta", "sigma"],
            *(
                [
                    planner,
                    str(len(of)),
                    _number(float(np.mean([one.delta for one in of])), 3),
                    _number(float(np.mean([one.sigma for one in of])), 3),
                ]
                for planner, of in found.plan_inconsistency.items()
            ),
        ],
        "Mean grades": _by_writer(writers, found.quantities, 2),
    }
    if len(found.judges) < 2:
        del tables["Judges' offsets"]
    if not found.utilities:
        del tables["Utilities (Plackett-Luce)"]
    return {title: table for title, table in tables.items() if len(table) > 1}


def comparison_notes(found: Comparison) -> list[str]:
    """What a reader must know about these results."""
    notes = []
    if found.missing_grades:
        notes.append(f"{found.missing_grades:,} grades are missing: no rating could be read")
    if found.quantity == "percentile":
        notes += [
            f"{row.writer} lies above the {CEILING}th percentile, where the scale saturates: "
            "compare the quantity value"
            for row in found.rows
            if row.plain > CEILING
        ]
    notes += [
        f"by {name}, wins do not connect {', '.join(of.infinite)} with the others both ways: no "
        "finite utility; utility_prior shrinks it"
        for name, of in found.utilities.items()
        if of.infinite
    ]
    if not found.is_connected:
        notes.append("judges graded different writers or prompts, so their offsets are not known")
    notes += [f"not comparable with published results: {note}" for note in found.not_comparable]
    notes += [
        f"{rater} was trained on {count} of these prompts"
        for rater, count in found.trained_on.items()
        if count
    ]
    return notes


def _leaderboard(rows: Sequence[WriterRow], reference: str | None) -> Table:
    raters = list(dict.fromkeys(rater for row in rows for rater in row.win_rates))
    heading = ["writer", "grade", "95 % interval", "prompts", "grades"]
    heading += [f"difference to {reference}", "p (Holm)"] if reference is not None else []
    table = [[*heading, *(f"win rate by {rater}" for rater in raters)]]
    for row in rows:
        grade, gap = row.grade, row.difference
        cells = [
            row.writer,
            _number(grade.mean),
            f"{_number(grade.low)} to {_number(grade.high)}",
            str(grade.clusters),
            str(row.grades),
        ]
        if gap is not None:
            bounds = f"[{_number(gap.low)}, {_number(gap.high)}]"
            cells += [f"{gap.mean:+.2f} {bounds}", write_p(row.p_holm)]
        elif reference is not None:
            cells += ["", ""]
        shares = (row.win_rates.get(rater) for rater in raters)
        table.append([*cells, *("–" if share is None else str(share) for share in shares)])
    return table


def _by_writer(writers: Sequence[str], columns: dict[str, dict[str, float]], digits: int) -> Table:
    rows = [[name, *(_number(of.get(name), digits) for of in columns.values())] for name in writers]
    return [["writer", *columns], *rows]


def _utility(found: Utilities, writer: str) -> str:
    values = (found.values, found.low, found.high)
    mean, low, high = (_number(of.get(writer)) for of in values)
    return mean if "–" in (mean, low) else f"{mean} [{low}, {high}]"


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _correlation(one: Correlation) -> list[str]:
    return [_number(value) for value in (one.pearson, one.kendall, one.spearman)]
