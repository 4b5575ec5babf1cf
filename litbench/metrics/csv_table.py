"""Tables of results as CSV files."""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import plain

# Spreadsheets of East Asian locales also read the full-width characters as the start of a formula.
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")


def csv_cell(value: Any) -> Any:
    """A value for CSV: as `plain` returns it, with text escaped that a spreadsheet would run.

    Spreadsheets read a cell that begins with =, +, -, @, a tab or a carriage return as a formula; a
    leading apostrophe makes it a text (OWASP, CSV injection).
    """
    value = plain(value)
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as CSV, escaped by `csv_cell`.

    An interval becomes the columns `key`, `key_low` and `key_high`.

    Args:
        rows: at least one row; all rows have the same keys.
        path: the file to write.
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
