"""Figures as a CSV file."""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import plain

# Full-width forms count: spreadsheets of East Asian locales take them for the plain ones.
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")


def csv_cell(value: Any) -> Any:
    """A value for CSV: what `plain` gives, and a text that a spreadsheet would run made harmless.

    Spreadsheets take a cell that begins with =, +, -, @, a tab or a carriage return for a formula;
    an apostrophe in front makes it a text (OWASP, CSV injection).
    """
    value = plain(value)
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as CSV, cells by `csv_cell`; an interval becomes `key`, `key_low` and `key_high`.

    Args:
        rows: at least one; all with the keys of the first.
        path: of the file.
    """
    intervals = {key for row in rows for key, value in row.items() if isinstance(value, Interval)}
    heading: list[str] = []
    for key in rows[0]:
        heading += [key, f"{key}_low", f"{key}_high"] if key in intervals else [key]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(heading)
        for row in rows:
            cells: list[Any] = []
            for key, value in row.items():
                if key not in intervals:
                    cells.append(value)
                else:
                    cells += [value and getattr(value, end) for end in ("mean", "low", "high")]
            writer.writerow([csv_cell(cell) for cell in cells])
