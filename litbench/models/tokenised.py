"""Pairs as token ids, on disk: made once, before any process waits for another.

The file lies in the cache (`litbench.locations.cache_folder`) under the digest of all it
depends on, and is mapped into memory, so that the processes of a machine share it. The first
process of each machine makes it before collectives are set up: a launcher's watchdog does not
count the time.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.artifact import fingerprint, read_part, versions, write_part
from litbench.locations import cache_folder

_POLL_SECONDS = 0.5
# Raised by hand when the same pairs come out as other ids.
_VERSION = 1


@dataclass(frozen=True)
class TokenisedPairs:
    """Pairs ready for training.

    Attributes:
        table: one row per pair: `pair_id`; list<int32> columns `ids_0` and, where the objective
            compares two sequences, `ids_1`; float64 columns `weight` and `margin`; int32
            `answer`, how many of the last tokens are taught (0 where none are), and `label_at`,
            which of these is the label.
        counts: pairs given, kept and cut, and tokens.
        rejected_rows: for each pair that is not used, its id and the reason.
    """

    table: pa.Table
    counts: dict[str, int]
    rejected_rows: list[dict[str, str]]

    def __post_init__(self) -> None:
        sides = [name for name in ("ids_0", "ids_1") if name in self.table.column_names]
        arrays = [self.table[name].combine_chunks() for name in sides]
        object.__setattr__(
            self,
            "_sides",
            [(a.values.to_numpy(zero_copy_only=True), a.offsets.to_numpy()) for a in arrays],
        )

    def __len__(self) -> int:
        """How many pairs."""
        return int(self.table.num_rows)

    def __str__(self) -> str:
        """The counts, for the terminal."""
        named = [(what.replace("_", " "), count) for what, count in self.counts.items()]
        return ", ".join(f"{count:,} {what}" for what, count in named)

    def sequences(self, row: int) -> list[np.ndarray]:
        """The token ids of one pair, int32, one array per sequence."""
        sides: list[tuple[np.ndarray, np.ndarray]] = self._sides  # type: ignore[attr-defined]
        return [values[offsets[row] : offsets[row + 1]] for values, offsets in sides]

    def lengths(self) -> np.ndarray:
        """Tokens of every sequence; int64, shape (pairs, sequences of a pair)."""
        sides: list[tuple[np.ndarray, np.ndarray]] = self._sides  # type: ignore[attr-defined]
        return np.stack([np.diff(offsets) for _, offsets in sides], axis=1).astype(np.int64)

    def column(self, name: str) -> np.ndarray:
        """A column of numbers."""
        values: np.ndarray = self.table[name].to_numpy()
        return values


def make_tokenised(
    rows: list[dict[str, Any]], rejected_rows: list[dict[str, str]], cut: int
) -> TokenisedPairs:
    """Put tokenised pairs into a table; `cut` of them lost tokens."""
    sides = [name for name in ("ids_0", "ids_1") if rows and name in rows[0]] or ["ids_0"]
    columns: dict[str, Any] = {"pair_id": pa.array([r["pair_id"] for r in rows], pa.large_string())}
    for side in sides:
        columns[side] = pa.array([row[side] for row in rows], pa.list_(pa.int32()))
    for name in ("weight", "margin"):
        columns[name] = pa.array([row[name] for row in rows], pa.float64())
    for name in ("answer", "label_at"):
        columns[name] = pa.array([row[name] for row in rows], pa.int32())
    reasons = Counter(entry["reason"] for entry in rejected_rows)
    counts = {
        "pairs_given": len(rows) + len(rejected_rows),
        "pairs": len(rows),
        "pairs_cut": cut,
        "tokens": sum(len(row[name]) for row in rows for name in sides),
        **{f"set aside: {reason}": count for reason, count in sorted(reasons.items())},
    }
    return TokenisedPairs(pa.table(columns), counts, rejected_rows)


def cached(depends_on: Any, make: Callable[[], TokenisedPairs]) -> TokenisedPairs:
    """Read tokenised pairs from the cache, or make them there.

    Of the processes that a launcher started on one machine the first makes the file, and the
    others wait for it.

    Args:
        depends_on: plain values; another value makes another file, as do another version of
            tokenizers and a raised `_VERSION`.
        make: tokenises.
    """
    made_by = [_VERSION, versions().get("tokenizers")]
    path = cache_folder() / "pairs" / f"{fingerprint(depends_on, made_by)}.arrow"
    is_first = int(os.environ.get("LOCAL_RANK", "0")) == 0
    while (found := read_part(path, _read)) is None:
        if is_first:
            write_part(path, lambda part: _write(make(), part))
        else:
            # A launcher stops all processes when the one that works fails.
            time.sleep(_POLL_SECONDS)
    return found


def _write(made: TokenisedPairs, path: Path) -> None:
    about = {"counts": made.counts, "rejected_rows": made.rejected_rows}
    table = made.table.combine_chunks().replace_schema_metadata({"about": json.dumps(about)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        # One batch, so that a side is one array without copying.
        writer.write_table(table, max_chunksize=max(1, table.num_rows))


def _read(path: Path) -> TokenisedPairs:
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    about = json.loads(table.schema.metadata[b"about"])
    return TokenisedPairs(table, about["counts"], about["rejected_rows"])
