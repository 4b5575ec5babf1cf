"""Figures as a CSV file."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import csv_cell


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
