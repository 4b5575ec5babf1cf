"""What signed units say about preferences: how well they predict, and which of them matter.

Pure functions of numbers: units on pairs (positive where the first side has more), labels, prompts.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litbench.metrics.comparisons import benjamini_hochberg, holm, paired_difference
from litbench.metrics.intervals import LEVEL, Interval, effective_clusters, jackknife_interval
from litbench.text import clean_name, digest

# Groups of prompts that the jackknife of coefficients leaves out in turn, at most.
_MOST_GROUPS = 100
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
# Scripts without spaces between words: there two characters that follow each other are a word.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+")


@dataclass(frozen=True)
class Agreement:
    """One linear model on pairs of prompts that it was not fitted on.

    Attributes:
        name: what it is fitted on.
        agreement: share of pairs whose chosen side it names; an even margin counts 1/2.
        chosen_longer: the same where the chosen story is the longer; None without such pairs.
        chosen_shorter: and the shorter.
        over_longer: agreement minus that of the longer story, paired; None for itself.
        p_holm: of no such difference, after Holm's correction for all models; NaN for itself.
    """

    name: str
    agreement: Interval
    chosen_longer: Interval | None
    chosen_shorter: Interval | None
    over_longer: Interval | None
    p_holm: float


@dataclass(frozen=True)
class Fidelity:
    """How well a description foretells its unit on pairs it was not made from.

    Attributes:
        agreement: share of the pairs on which the unit is active whose side with more of it the
            reader of the description names; neither side is 1/2, and so is chance.
        unread: answers that could not be read; left out.
    """

    agreement: Interval
    unread: int


@dataclass(frozen=True)
class Surface:
    """What can be counted on both sides of the pairs that a unit is active on.

    Attributes:
        correlations: surface feature -> correlation of the unit with its difference, the greatest
            by size first.
        more: words that more often stand only on the side with more of the unit.
        less: words of the other side.
    """

    correlations: dict[str, float]
    more: list[str]
    less: list[str]


@dataclass(frozen=True)
class UnitRow:
    """One unit of the table: of the one autoencoder that was fitted on all pairs.

    Attributes:
        unit: its place.
        coefficient: log-odds of being preferred per root mean square of the unit, all units
            together in one model. The interval takes the units and the strength of the penalty as
            given: it does not say what another training of the autoencoder would find.
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
        if self.description is not None:
            return clean_name(self.description)
        return surface_label(self.surface)


@dataclass(frozen=True)
class PreferenceStudy:
    """Everything the page shows in numbers.

    Attributes:
        pairs: that agreement is measured on.
        prompts: of them.
        held_out: how they were held out, in words.
        agreements: the units first.
        units: by size of the coefficient, active ones only; not those of `agreements`, which come
            from an autoencoder for each fit and have other places and meanings in each.
        silent_units: units that are active on no pair.
        unexplained: share of the squared difference that the units do not give back, on pairs held
            out; mean over the fits.
        described_by: the model that was asked for descriptions; None without one.
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
    toward = np.where(first_chosen, margins, -margins)
    return np.where(toward > 0, 1.0, np.where(toward < 0, 0.0, 0.5))


def agreement_rows(
    credits: Mapping[str, np.ndarray], longer: str, prompts: Sequence[str], words: np.ndarray
) -> list[Agreement]:
    """Agreement of several models on the same pairs.

    Args:
        credits: of each model, 0 to 1 (a mean over repeats); shape (n,) each.
        longer: the key of the longer story's.
        prompts: of each pair; shape (n,).
        words: words of the chosen story minus those of the other; shape (n,).
    """
    clusters = np.asarray(prompts)
    tests: list[tuple[Interval | None, float]] = [
        (None, math.nan) if name == longer else paired_difference(credit, credits[longer], clusters)
        for name, credit in credits.items()
    ]
    adjusted = holm([p for _, p in tests])
    rows = []
    for (name, credit), (over, _), p_holm in zip(credits.items(), tests, adjusted, strict=True):
        parts = [
            jackknife_interval(credit[keep], clusters[keep]) if keep.any() else None
            for keep in (words > 0, words < 0)
        ]
        whole = jackknife_interval(credit, clusters)
        rows.append(Agreement(name, whole, parts[0], parts[1], over, p_holm))
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

    def interval(mean: float, half: float) -> Interval:
        return Interval(mean, mean - half, mean + half, rows, len(distinct), effective)

    groups = min(len(distinct), _MOST_GROUPS)
    if groups < 2:
        return [interval(float(w), math.nan) for w in whole], [math.nan] * len(whole)
    order = sorted(range(len(distinct)), key=lambda k: digest("jackknife", distinct[k]))
    group_of = np.empty(len(distinct), dtype=int)
    group_of[order] = np.arange(len(distinct)) % groups
    without = np.array([fit(np.flatnonzero(group_of[place] != g)) for g in range(groups)])
    error = np.sqrt((groups - 1) / groups * np.square(without - whole).sum(0))
    freedom = max(min(groups, effective) - 1, 1.0)
    reach = float(stats.t.ppf((1 + LEVEL) / 2, freedom))
    intervals, p_values = [], []
    for w, e in zip(whole.tolist(), error.tolist(), strict=True):
        intervals.append(interval(w, reach * e))
        # A unit that is active in no pair has no coefficient to speak of.
        p_values.append(float(2 * stats.t.sf(abs(w) / e, freedom)) if e > 1e-12 else math.nan)
    return intervals, p_values


def unit_rows(
    units: np.ndarray,
    first_chosen: np.ndarray,
    prompts: Sequence[str],
    coefficients: Sequence[Interval],
    p_values: Sequence[float],
    described: Mapping[int, tuple[str | None, Fidelity | None]],
    surfaces: Mapping[int, Surface],
) -> list[UnitRow]:
    """The table of units, by size of the coefficient; without units that are never active.

    Args:
        units: signed; shape (n, units).
        first_chosen: bool, shape (n,).
        prompts: of each pair; shape (n,).
        coefficients: of each unit.
        p_values: of each unit.
        described: of some units, their description and its fidelity.
        surfaces: of each active unit.
    """
    clusters, adjusted = np.asarray(prompts), benjamini_hochberg(p_values)
    rows = []
    for unit in range(units.shape[1]):
        active = units[:, unit] != 0
        if not active.any():
            continue
        preferred = credits_of(units[active, unit], first_chosen[active])
        description, fidelity = described.get(unit, (None, None))
        rows.append(
            UnitRow(
                unit, coefficients[unit], adjusted[unit], float(active.mean()),
                jackknife_interval(preferred, clusters[active]), description, fidelity,
                surfaces[unit],
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: -abs(row.coefficient.mean))


def fidelity_of(
    answers: Sequence[int | None], values: np.ndarray, prompts: Sequence[str]
) -> Fidelity | None:
    """Compare what a reader of a description says with its unit.

    Args:
        answers: 1 where the first side has more, -1 where the second, 0 for neither, None where
            the answer could not be read; shape (n,).
        values: of the unit; shape (n,).
        prompts: of each pair; shape (n,).

    Returns:
        None where no answer about an active pair was read.
    """
    read = np.array([answer is not None for answer in answers], dtype=bool)
    said = np.array([answer or 0 for answer in answers], dtype=float)
    active = read & (values != 0)
    if not active.any():
        return None
    credit = (1 + said[active] * np.sign(values[active])) / 2
    agreement = jackknife_interval(credit, np.asarray(prompts)[active])
    return Fidelity(agreement, int((~read).sum()))


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
    """What can be counted about one unit.

    Args:
        values: of the unit; shape (n,).
        differences: of surface features, first side minus second; shape (n, len(names)).
        names: of the features.
        words: the different words of both sides of each pair; shape (n,).
        shown: how many features and words are kept.
    """
    active = np.flatnonzero(values).tolist()
    correlations = {}
    for column, name in enumerate(names):
        one = differences[:, column]
        if np.ptp(one) > 1e-12 and np.ptp(values) > 0:
            correlations[name] = round(float(np.corrcoef(values, one)[0, 1]), 3)
    strongest = sorted(correlations, key=lambda name: (-abs(correlations[name]), name))[:shown]
    only: dict[str, list[int]] = {}
    for row in active:
        more, less = words[row] if values[row] > 0 else words[row][::-1]
        for side, own in enumerate((more - less, less - more)):
            for word in own:
                only.setdefault(word, [0, 0])[side] += 1
    # A sign test's z; words that stand in few of the pairs say little.
    least = max(3, len(active) // 20)
    z = {
        word: (more - less) / math.sqrt(more + less)
        for word, (more, less) in only.items()
        if more + less >= least
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
    return [
        {
            "unit": row.unit,
            "label": row.label,
            "coefficient": row.coefficient,
            "p_bh": row.p_bh,
            "prevalence": row.prevalence,
            "pairs": row.preferred.n,
            "preferred": row.preferred,
            "fidelity": None if row.fidelity is None else row.fidelity.agreement,
            "surface": surface_label(row.surface),
        }
        for row in study.units
    ]


def preferences_text(study: PreferenceStudy, shown: int = 12) -> str:
    """The study for a terminal."""
    width = max(len(row.name) for row in study.agreements)
    lines = [
        f"held-out agreement: {study.pairs:,} pairs of {study.prompts:,} prompts, {study.held_out}"
    ]
    lines += [f"  {row.name:<{width}}  {row.agreement}" for row in study.agreements]
    named = "named by counts" if study.described_by is None else "described by a model"
    significant = sum(row.is_significant for row in study.units)
    lines += [
        "",
        f"units of one autoencoder, fitted on all pairs, {named}: "
        f"{len(study.units)} active, {study.silent_units} silent, {significant} significant (*); "
        f"{study.unexplained:.0%} of the held-out differences not explained",
        "coefficient                prevalence  preferred  fidelity  unit",
    ]
    for unit in study.units[:shown]:
        c, told = unit.coefficient, unit.fidelity
        mark = "*" if unit.is_significant else ""
        cells = [
            f"{c.mean:+.3f} [{c.low:+.3f}, {c.high:+.3f}]{mark}".ljust(25),
            f"{unit.prevalence:.3f}".rjust(11),
            f"{unit.preferred.mean:.3f}".rjust(9),
            ("–" if told is None else f"{told.agreement.mean:.3f}").rjust(8),
            f"{unit.unit}: {unit.label}",
        ]
        lines.append("  ".join(cells))
    if len(study.units) > shown:
        lines.append(f"and {len(study.units) - shown} more in units.csv")
    return "\n".join(lines)
