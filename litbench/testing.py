"""The checks that every rater must pass, for the tests of a new one.

from litbench.testing import check_rater

def test_my_rater(pairs):
check_rater(MyRater(), pairs)
"""

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.data.records import SIDES
from litbench.raters.interface import Rater, judge_pairs

# Pairs that are also judged one at a time.
_ALONE = 6
_OTHER = {"chosen": "rejected", "rejected": "chosen"}
_NUMBERS = ("p_chosen", "reward_chosen", "reward_rejected")
# Columns that a rater must not see; any value may stand there.
_LABELS = ("score", "created_utc", "author")

_Verdict = dict[str, Any]


def rename_sides(pairs: pa.Table) -> pa.Table:
    """Exchange chosen and rejected in every column that has a side."""
    columns = {}
    for name in pairs.column_names:
        side, _, rest = name.partition("_")
        other = _OTHER.get(side, side)
        columns[name] = pairs[f"{other}_{rest}" if rest else other]
    return pa.table(columns)


def check_rater(
    rater: Rater,
    pairs: pa.Table,
    *,
    load: Callable[[Path], Rater] | None = None,
    tolerance: float = 1e-5,
) -> None:
    """Check that a rater is blind, and that its verdicts depend on the texts only.

    - With chosen and rejected renamed, every verdict is the opposite one: p becomes 1 - p.
    - The order of the pairs, and judging a pair alone, change nothing.
    - Votes, times and authors change nothing.
    - A rater with `save` gives the same verdicts once saved and loaded.

    Args:
        rater: the rater; one that stores answers has been told where (`work_in`).
        pairs: pairs with texts, schema `litbench.data.records.PAIRS`. The rater must prefer the
            chosen story of some, and the rejected of others.
        load: what loads the rater from a folder; its class's `load` when None.
        tolerance: largest difference of probabilities and rewards.

    Raises:
        AssertionError: a check fails; the message names it, and the first pair that differs.
    """
    verdicts = _verdicts(rater, pairs)
    outcomes = {verdict["outcome"] for verdict in verdicts.values()}
    if not set(SIDES) <= outcomes:
        raise AssertionError(
            f"{rater.name}: all outcomes are {', '.join(sorted(outcomes))}: give pairs in "
            "which it prefers the chosen story of some, and the rejected story of others"
        )
    renamed = {
        (pair, _OTHER.get(order, order)): _opposite(verdict)
        for (pair, order), verdict in _verdicts(rater, rename_sides(pairs)).items()
    }
    backwards = pairs.take(list(range(pairs.num_rows))[::-1])
    alone: dict[tuple[str, Any], _Verdict] = {}
    for row in range(min(_ALONE, pairs.num_rows)):
        alone |= _verdicts(rater, pairs.slice(row, 1))
    without = [
        name for name in pairs.column_names if name.partition("_")[2] in _LABELS or name == "margin"
    ]
    unlabelled = pairs
    for name in without:
        empty = pa.nulls(pairs.num_rows, pairs.schema.field(name).type)
        unlabelled = unlabelled.set_column(unlabelled.column_names.index(name), name, empty)
    checks = {
        "with sides renamed": renamed,
        "with the pairs in another order": _verdicts(rater, backwards),
        "with a pair alone": alone,
        "without votes, times and authors": _verdicts(rater, unlabelled),
    }
    if hasattr(rater, "save"):
        with tempfile.TemporaryDirectory() as folder:
            rater.save(Path(folder))
            # A rater that can be saved has both.
            loaded = (load or type(rater).load)(Path(folder))  # type: ignore[attr-defined]
            checks["saved and loaded"] = _verdicts(loaded, pairs)
    for name, others in checks.items():
        _check_same(f"{rater.name}, {name}", verdicts, others, tolerance)


def _verdicts(rater: Rater, pairs: pa.Table) -> dict[tuple[str, Any], _Verdict]:
    """The verdicts by pair and order."""
    rows = judge_pairs(rater, pairs).to_pylist()
    return {
        (row["pair_id"], row["order"]): {name: row[name] for name in ("outcome", *_NUMBERS)}
        for row in rows
    }


def _opposite(verdict: _Verdict) -> _Verdict:
    """The verdict, with the sides renamed back."""
    p = verdict["p_chosen"]
    return {
        "outcome": _OTHER.get(verdict["outcome"], verdict["outcome"]),
        "p_chosen": None if p is None else 1 - p,
        "reward_chosen": verdict["reward_rejected"],
        "reward_rejected": verdict["reward_chosen"],
    }


def _check_same(
    name: str,
    verdicts: dict[tuple[str, Any], _Verdict],
    others: dict[tuple[str, Any], _Verdict],
    tolerance: float,
) -> None:
    for key, other in others.items():
        verdict = verdicts[key]
        here, there = (
            np.array([values[name] for name in _NUMBERS], dtype=float)
            for values in (verdict, other)
        )
        same = np.allclose(here, there, rtol=0, atol=tolerance, equal_nan=True)
        p = verdict["p_chosen"]
        # An outcome may change with rounding where the probabilities are equal.
        is_close = p is not None and math.isclose(p, 0.5, abs_tol=tolerance)
        if not same or (verdict["outcome"] != other["outcome"] and not is_close):
            raise AssertionError(f"{name}: pair {key[0]} was {verdict} and is {other}")
