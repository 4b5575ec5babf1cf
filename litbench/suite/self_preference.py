"""Self-preference: how far a judge prefers texts of its own family beyond what people do.

A judge that prefers its own family may only prefer the better texts. People's preference on the
same pairs is the measure of that, so without people there is no number.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.data.records import SIDES, connected_prompts
from litbench.data.sources.ratings import ROUNDING
from litbench.metrics.comparisons import difference_interval
from litbench.metrics.intervals import (
    ClusteredMean,
    Interval,
    clustered_mean,
    jackknife_interval,
    two_way_mean,
)
from litbench.runs.config import read_yaml
from litbench.runs.errors import ConfigError

_FAMILIES = Path(__file__).with_name("families.yaml")
# Columns of a side that may say who wrote it.
SOURCES = ("writer", "system", "model", "source", "generator")
# Label sources that are people's choices.
PEOPLE = ("votes", "people")


def read_families(path: Path | None = None) -> dict[str, re.Pattern[str]]:
    """Read the families by name: the packaged ones, and those of a user's file.

    Raises:
        ConfigError: an entry is not a regular expression.
    """
    families = {}
    for file in (_FAMILIES, path):
        for name, expression in (read_yaml(file) if file else {}).items():
            try:
                families[str(name)] = re.compile(str(expression), re.I)
            except re.error as error:
                raise ConfigError(
                    f"{file}: {name}: {expression!r:.80} is no regular expression ({error})"
                ) from error
    return families


def family_of(name: str | None, families: Mapping[str, re.Pattern[str]]) -> str | None:
    """Return the family whose expression matches first in a name; None if none matches."""
    matches = [
        (match.start(), family)
        for family, expression in families.items()
        if (match := expression.search(name or ""))
    ]
    return min(matches)[1] if matches else None


def source_column(pairs: pa.Table) -> str | None:
    """The name of the columns that say who wrote each side, without the side; None if none does."""
    names = set(pairs.column_names)
    return next((name for name in SOURCES if {f"{side}_{name}" for side in SIDES} <= names), None)


def people_preference(pairs: pa.Table) -> np.ndarray:
    """How far people prefer the chosen story: 1, 1/2 where their ratings are equal, else NaN.

    NaN where the label is not people's. Shape (n,).
    """
    is_people = np.isin(np.array(pairs["label_source"].to_pylist(), dtype=object), PEOPLE)
    preferred = np.ones(pairs.num_rows)
    ratings = [f"{side}_rating" for side in SIDES]
    if set(ratings) <= set(pairs.column_names):
        chosen, rejected = (np.array(pairs[name].to_pylist(), dtype=float) for name in ratings)
        preferred[np.abs(chosen - rejected) <= ROUNDING] = 0.5
    return np.where(is_people, preferred, np.nan)


def self_preference(
    credit: np.ndarray,
    pairs: pa.Table,
    family: str,
    families: Mapping[str, re.Pattern[str]],
) -> dict[str, Interval] | str:
    """Compute a judge's self-preference beyond people's.

    Args:
        credit: how far the judge prefers the chosen story of each pair; shape (n,).
        pairs: the pairs, with a `source_column`.
        family: the judge's family.
        families: see `read_families`.

    Returns:
        Figures of a card, on pairs of which one side is by the family; or why there are none.
        `own_family` is how often the judge prefers that side (a tie counts 1/2),
        `own_family_people` how often people do, and `own_family_excess` the difference, clustered
        by prompt and by the source of the other side.
    """
    column = source_column(pairs)
    if column is None:
        return f"no column says who wrote the texts: chosen_{SOURCES[0]} and rejected_{SOURCES[0]}"
    sources = np.array([pairs[f"{side}_{column}"].to_pylist() for side in SIDES], dtype=object)
    of_name = {name: family_of(name, families) == family for name in set(sources.ravel().tolist())}
    is_own = np.vectorize(of_name.get, otypes=[bool])(sources)
    is_named = sources.astype(bool).all(axis=0)
    rows = np.flatnonzero(is_named & (is_own[0] != is_own[1]))
    if not len(rows):
        return f"no pair has one text by {family}"
    people = people_preference(pairs)
    rows = rows[np.isfinite(people[rows])]
    if not len(rows):
        return "no people here: the labels are not people's choices"
    sign = np.where(is_own[0], 1, -1)[rows]
    judge, chosen = (0.5 + sign * (values[rows] - 0.5) for values in (credit, people))
    prompts = np.array(connected_prompts(pairs))[rows]
    others = np.where(is_own[0], sources[1], sources[0])[rows]
    return {
        "own_family": jackknife_interval(judge, prompts),
        "own_family_people": jackknife_interval(chosen, prompts),
        "own_family_excess": difference_interval(excess_mean(judge - chosen, prompts, others))[0],
    }


def excess_mean(
    values: np.ndarray, prompts: Sequence[Any] | np.ndarray, others: Sequence[Any] | np.ndarray
) -> ClusteredMean:
    """The mean, clustered by prompt and by the other side's source; by prompt for one source."""
    if len(set(np.asarray(others).tolist())) < 2:
        return clustered_mean(values, prompts)
    return two_way_mean(values, prompts, others)
