"""What signed units say about preferences: how well they predict, and which of them matter.

Pure functions of numbers: units on pairs (positive where the first side has more), labels, prompts.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litbench.metrics.comparisons import benjamini_hochberg, compare_all
from litbench.metrics.intervals import LEVEL, Interval, effective_clusters, jackknife_interval
from litbench.text import aligned, clean_name, digest

# Groups of prompts that the jackknife of coefficients leaves out in turn, at most.
_MOST_GROUPS = 100
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
# Scripts without spaces between words: there two characters that follow each other are a word.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+")


@dataclass(frozen=True)
class Agreement:
    """One linear model on pairs of held-out prompts, and its lead over the longer one."""

    name: str
    agreement: Interval
    chosen_longer: Interval | None
    chosen_shorter: Interval | None
    over_longer: Interval | None
    p_holm: float


@dataclass(frozen=True)
class Fidelity:
    """How often a description's reader names the side with more of the unit, on other pairs.

    Naming neither side is 1/2, and so is chance; `unread` answers are left out.
    """

    agreement: Interval
    unread: int


@dataclass(frozen=True)
class Surface:
    """What can be counted on the pairs that a unit is active on.

    `correlations` are with differences of surface features; `more` are words that stand more often
    only on the side with more of the unit, `less` those of the other side.
    """

    correlations: dict[str, float]
    more: list[str]
    less: list[str]


@dataclass(frozen=True)
class UnitRow:
    """One unit of the autoencoder that was fitted on all pairs.

    Attributes:
        unit: its place.
        coefficient: log-odds of being preferred per root mean square of the unit, all units
            together in one model. The interval takes the units and the penalty as given.
        p_bh: of a coefficient of 0, adjusted for all units (Benjamini and Hochberg).
        prevalence: share of pairs on which it is active.
        preferred: among these, how often the side with more of it is the chosen one.
        description: by a model; None where none was asked or none could tell.
        fidelity: of the description.
        surface: what is counted.
    """

    unit: int
    coefficient: Interval
    p_bh: float
    prevalence: float
    preferred: Interval
    description: str | None
    fidelity: Fidelity | None
    surface: Surface

    @property
    def is_significant(self) -> bool:
        """Whether the coefficient differs from 0 after correction."""
        return self.p_bh < 0.05

    @property
    def label(self) -> str:
        """The description, or what is counted, on one line."""
        told = self.description
        return surface_label(self.surface) if told is None else clean_name(told)


@dataclass(frozen=True)
class PreferenceStudy:
    """Everything the page shows in numbers.

    `units` are the active ones of one autoencoder, by size of the coefficient; those of
    `agreements` are others, since each fold has its own. `unexplained` is the share of the squared
    held-out differences that the units do not give back.
    """

    pairs: int
    prompts: int
    held_out: str
    agreements: list[Agreement]
    units: list[UnitRow]
    silent_units: int
    unexplained: float
    described_by: str | None


def credits_of(margins: np.ndarray, first_chosen: np.ndarray) -> np.ndarray:
    """1 where a margin names the chosen side, 1/2 where it is even, else 0; shape (n,)."""
    credits: np.ndarray = (1 + np.sign(np.where(first_chosen, margins, -margins))) / 2
    return credits


def agreement_rows(
    credits: Mapping[str, np.ndarray], longer: str, clusters: np.ndarray, words: np.ndarray
) -> list[Agreement]:
    """Agreement of several models on the same pairs.

    Args:
        credits: of each model, 0 to 1 (a mean over repeats); shape (n,) each.
        longer: the key of the longer story's.
        clusters: prompt of each pair; shape (n,).
        words: words of the chosen story minus those of the other; shape (n,).
    """
    against = {one.rater: one for one in compare_all(credits, longer, clusters)}
    rows = []
    for name, credit in credits.items():
        longer_ones, shorter_ones = (
            jackknife_interval(credit[keep], clusters[keep]) if keep.any() else None
            for keep in (words > 0, words < 0)
        )
        found = against.get(name)
        over, p_holm = (found.difference, found.p_holm) if found else (None, math.nan)
        whole = jackknife_interval(credit, clusters)
        rows.append(Agreement(name, whole, longer_ones, shorter_ones, over, p_holm))
    return rows


def coefficient_intervals(
    fit: Callable[[np.ndarray], np.ndarray], prompts: Sequence[str]
) -> tuple[list[Interval], list[float]]:
    """Intervals of coefficients by leaving out prompts, up to a hundred groups of them in turn.

    The delete-a-group jackknife (Kott, 2001) with a t quantile at the number of groups, or the
    effective number of prompts where that is less, minus 1.

    Args:
        fit: rows (int, shape (k,)) -> coefficients, shape (columns,).
        prompts: of each row; shape (n,).

    Returns:
        Of each column its interval, and the two-sided p value of 0; NaN with fewer than two
        prompts.
    """
    from scipy import stats  # noqa: PLC0415

    distinct, place, sizes = np.unique(np.asarray(prompts), return_inverse=True, return_counts=True)
    effective, rows = effective_clusters(sizes), len(place)
    whole = fit(np.arange(rows))
    groups = min(len(distinct), _MOST_GROUPS)
    freedom = max(min(groups, effective) - 1, 1.0)
    error = np.full(len(whole), math.nan)
    if groups > 1:
        order = sorted(range(len(distinct)), key=lambda k: digest("jackknife", distinct[k]))
        group_of = np.empty(len(distinct), dtype=int)
        group_of[order] = np.arange(len(distinct)) % groups
        without = np.array([fit(np.flatnonzero(group_of[place] != g)) for g in range(groups)])
        error = np.sqrt((groups - 1) / groups * np.square(without - whole).sum(0))
    reach = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * error
    intervals = [
        Interval(w, w - half, w + half, rows, len(distinct), effective)
        for w, half in zip(whole.tolist(), reach.tolist(), strict=True)
    ]
    # A unit that is active in no pair has no coefficient to speak of.
    known = np.where(error > 1e-12, error, math.nan)
    p_values: list[float] = (2 * stats.t.sf(np.abs(whole) / known, freedom)).tolist()
    return intervals, p_values


def unit_rows(
    units: np.ndarray,
    first_chosen: np.ndarray,
    clusters: np.ndarray,
    coefficients: Sequence[Interval],
    p_values: Sequence[float],
    described: Mapping[int, tuple[str | None, Fidelity | None]],
    surfaces: Mapping[int, Surface],
) -> list[UnitRow]:
    """The table of units, by size of the coefficient; without units that are never active."""
    adjusted = benjamini_hochberg(p_values)
    rows = []
    for unit, surface in surfaces.items():
        active = units[:, unit] != 0
        preferred = credits_of(units[active, unit], first_chosen[active])
        rows.append(
            UnitRow(
                unit, coefficients[unit], adjusted[unit], float(active.mean()),
                jackknife_interval(preferred, clusters[active]),
                *described.get(unit, (None, None)), surface,
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: -abs(row.coefficient.mean))


def fidelity_of(
    answers: Sequence[int | None], values: np.ndarray, clusters: np.ndarray
) -> Fidelity | None:
    """Compare what a reader of a description says with its unit."""
    said = np.array([math.nan if answer is None else answer for answer in answers])
    active = ~np.isnan(said) & (values != 0)
    if not active.any():
        return None
    credit = (1 + said[active] * np.sign(values[active])) / 2
    agreement = jackknife_interval(credit, np.asarray(clusters)[active])
    return Fidelity(agreement, int(np.isnan(said).sum()))


def distinct_words(text: str) -> frozenset[str]:
    """The different words of a text, folded; pairs of characters where none are set apart."""
    runs = _UNSPACED.findall(text)
    pairs = (run[place : place + 2] for run in runs for place in range(len(run) - 1))
    spaced = _WORD.findall(_UNSPACED.sub(" ", text)) if runs else _WORD.findall(text)
    return frozenset(pairs) | {word.casefold().replace("’", "'") for word in spaced}


def surface_of(
    values: np.ndarray,
    differences: np.ndarray,
    names: Sequence[str],
    words: Sequence[tuple[frozenset[str], frozenset[str]]],
    shown: int = 6,
) -> Surface:
    """What can be counted about one unit."""
    correlations = {
        name: round(float(np.corrcoef(values, column)[0, 1]), 3)
        for name, column in zip(names, differences.T, strict=True)
        if np.ptp(column) > 1e-12 and np.ptp(values) > 0
    }
    strongest = sorted(correlations, key=lambda name: (-abs(correlations[name]), name))[:shown]
    active = np.flatnonzero(values).tolist()
    only: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for row in active:
        more, less = words[row] if values[row] > 0 else words[row][::-1]
        only[0].update(more - less)
        only[1].update(less - more)
    # A sign test's z; words that stand in few of the pairs say little.
    least = max(3, len(active) // 20)
    z = {
        word: (only[0][word] - only[1][word]) / math.sqrt(count)
        for word, count in (only[0] + only[1]).items()
        if count >= least
    }
    ranked = sorted(z, key=lambda word: (-z[word], word))
    return Surface(
        {name: correlations[name] for name in strongest},
        [word for word in ranked[:shown] if z[word] > 0],
        [word for word in ranked[::-1][:shown] if z[word] < 0],
    )


def surface_label(surface: Surface) -> str:
    """A name by counts: the strongest correlations and the words of either side."""
    words = [", ".join(f"“{clean_name(w)}”" for w in of[:3]) for of in (surface.more, surface.less)]
    said = [f"{name} {r:+.2f}" for name, r in list(surface.correlations.items())[:2]]
    said += [f"{start} {of}" for start, of in zip(("words", "not"), words, strict=True) if of]
    return "; ".join(said)


def preference_rows(study: PreferenceStudy) -> list[dict[str, Any]]:
    """The units as rows of a table."""
    kept = ("unit", "label", "coefficient", "p_bh", "prevalence", "preferred")
    return [
        {name: getattr(row, name) for name in kept}
        | {
            "pairs": row.preferred.n,
            "fidelity": row.fidelity and row.fidelity.agreement,
            "surface": surface_label(row.surface),
        }
        for row in study.units
    ]


def preferences_text(study: PreferenceStudy, shown: int = 12) -> str:
    """The study for a terminal."""
    named = "named by counts" if study.described_by is None else "described by a model"
    significant = sum(row.is_significant for row in study.units)
    agreements = [[f"  {row.name}", str(row.agreement)] for row in study.agreements]
    rows = [
        [f"{unit.coefficient}{'*' if unit.is_significant else ''}", f"{unit.unit}: {unit.label}"]
        for unit in study.units[:shown]
    ]
    return (
        f"held-out agreement: {study.pairs:,} pairs of {study.prompts:,} prompts, "
        f"{study.held_out}\n{aligned(agreements)}\n"
        f"units of one autoencoder, fitted on all pairs, {named}: {len(study.units)} active, "
        f"{study.silent_units} silent, {significant} significant (*); {study.unexplained:.0%} of "
        f"the held-out differences not explained\n{aligned(rows) if rows else ''}"
        f"coefficients of {len(rows)} units; units.csv has all of {len(study.units)}"
    )
