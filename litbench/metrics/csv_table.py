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


def flat_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows as plain values; an interval becomes `key`, `key_low` and `key_high`.

    Args:
        rows: all rows have the same keys.
    """
    intervals = {key for row in rows for key, value in row.items() if isinstance(value, Interval)}
    ends = {"": "mean", "_low": "low", "_high": "high"}
    return [
        {
            f"{key}{suffix}": plain(value and getattr(value, end) if key in intervals else value)
            for key, value in row.items()
            for suffix, end in (ends if key in intervals else {"": ""}).items()
        }
        for row in rows
    ]


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write at least one row as CSV; see `flat_rows` and `csv_cell`."""
    flat = flat_rows(rows)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(flat[0])
        writer.writerows([csv_cell(value) for value in row.values()] for row in flat)
