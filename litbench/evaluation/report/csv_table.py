"""Tables of results as CSV files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import plain
from litbench.runs.terminal import show


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
    """Write at least one row as CSV; see `flat_rows` and `litbench.runs.terminal`."""
    flat = flat_rows(rows)
    text = show([list(flat[0]), *(list(row.values()) for row in flat)], "csv")
    path.write_text(text, encoding="utf-8", newline="")
