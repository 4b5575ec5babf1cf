"""One way to write a table: for a terminal, as CSV, as Markdown or as LaTeX."""

import csv
import io
import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Literal

from litbench.runs.markdown import escape

# Spreadsheets of East Asian locales also read the full-width characters as the start of a formula.
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\char34}",
    "`": r"{\char96}",
    "'": r"{'}",
    "-": "{-}",
    # After \\ LaTeX would read [ and * as arguments.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "–": "--",
    "“": "``",
    "”": "''",
    "…": r"\dots{}",
}


def clean_name(name: str) -> str:
    """Return a name on one line, without control and formatting characters.

    Names come from configs and verdict files of others. They may contain terminal escape sequences
    or right-to-left overrides.
    """
    line = " ".join(name.split())
    return "".join(letter for letter in line if unicodedata.category(letter)[0] != "C")


def csv_cell(value: Any) -> Any:
    """A value for CSV, with text escaped that a spreadsheet would run.

    Spreadsheets read a cell that begins with =, +, -, @, a tab or a carriage return as a formula; a
    leading apostrophe makes it a text (OWASP, CSV injection).
    """
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def latex_escape(text: str) -> str:
    """Escape any text for LaTeX."""
    return "".join(_LATEX.get(letter, letter) for letter in clean_name(text))


def show(
    table: Sequence[Sequence[Any]],
    form: Literal["text", "csv", "md", "latex"] = "text",
    align: str = "",
) -> str:
    """Write a table, whose texts may come from others: they are escaped.

    Args:
        table: the heading and the rows, all of the same length; texts, or values for CSV.
        form: `text` for a terminal; `latex` is a `tabular`, which needs booktabs.
        align: l or r for each column of `text` and `latex`; the first is left-aligned by default,
            the others right-aligned.
    """
    align = align or "l" + "r" * (len(table[0]) - 1)
    if form == "csv":
        written = io.StringIO()
        csv.writer(written).writerows([csv_cell(cell) for cell in row] for row in table)
        return written.getvalue()
    if form == "md":
        lines = [f"| {' | '.join(map(escape, row))} |" for row in table]
        return "\n".join([lines[0], f"|{' --- |' * len(align)}", *lines[1:]])
    if form == "latex":
        heading, *body = [" & ".join(map(latex_escape, row)) + r" \\" for row in table]
        start = f"\\begin{{tabular}}{{{align}}}"
        ruled = [start, r"\toprule", heading, r"\midrule", *body, r"\bottomrule"]
        return "\n".join([*ruled, r"\end{tabular}"])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if side == "l" else cell.rjust(width)
            for cell, width, side in zip(row, widths, align, strict=True)
        ).rstrip()
        for row in table
    ]
    return "\n".join(lines)


def write_dollars(value: float | None) -> str:
    """Format dollars to the cent, or to two significant digits below ten cents."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"
