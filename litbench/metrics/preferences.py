"""How well signed units predict preferences, and which units matter.

Pure functions of arrays: units of pairs (positive if the first side has more), labels, prompts.
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

# Maximum number of groups of prompts that the jackknife of coefficients leaves out in turn.
_MOST_GROUPS = 100
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
# In scripts without spaces between words, two adjacent characters count as a word.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+")


@dataclass(frozen=True)
class Agreement:
    """A linear model on pairs of held-out prompts, also relative to the longer-story baseline."""

    name: str
    agreement: Interval
    chosen_longer: Interval | None
    chosen_shorter: Interval | None
    over_longer: Interval | None
    p_holm: float


@dataclass(frozen=True)
class Fidelity:
    """How often a model names the side with more of a unit from its description, on new pairs.

    Naming neither side counts 1/2, which is also chance. `unread` answers could not be parsed and
    are left out.
    """

    agreement: Interval
    unread: int


@dataclass(frozen=True)
class Surface:
    """Surface features and words of the pairs on which a unit is active.

    Attributes:
        correlations: correlations with differences of surface features.
        more: words that occur more often only on the side with more of the unit.
        less: words that occur more often only on the side with less of the unit.
    """

    correlations: dict[str, float]
    more: list[str]
    less: list[str]


@dataclass(frozen=True)
class UnitRow:
    """One unit of the autoencoder that was fitted on all pairs.

    Attributes:
        unit: index of the unit.
        coefficient: log-odds of being preferred per root mean square of the unit, in one model of
            all units. The interval takes the units and the penalty as given.
        p_bh: p value of a coefficient of 0, adjusted for all units (Benjamini and Hochberg).
        prevalence: share of pairs on which the unit is active.
        preferred: among these, how often the side with more of the unit is the chosen one.
        description: description by a model; None if no model was asked or the model had none.
        fidelity: fidelity of the description.
        surface: surface features and words.
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
        """The description, or the surface label without one, on one line."""
        if self.description is None:
            return surface_label(self.surface)
        return clean_name(self.description)


@dataclass(frozen=True)
class PreferenceStudy:
    """The results of a study of preferences.

    Attributes:
        agreements: held-out agreement of linear models; each fold has its own autoencoder.
        units: active units of the autoencoder that was fitted on all pairs, largest coefficients
            first.
        silent_units: number of units that are never active.
        unexplained: share of the squared held-out differences that the units do not reconstruct.
        described_by: the model that described the units, or None.
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
    """1 where a margin names the chosen side, 1/2 where it is zero, else 0; shape (n,)."""
    credits: np.ndarray = (1 + np.sign(np.where(first_chosen, margins, -margins))) / 2
    return credits


def agreement_rows(
    credits: Mapping[str, np.ndarray], longer: str, clusters: np.ndarray, words: np.ndarray
) -> list[Agreement]:
    """Agreement of several models on the same pairs.

    Args:
        credits: by model, the credit of each pair, 0 to 1 (a mean over repeats); shape (n,) each.
        longer: key of the longer-story baseline in `credits`.
        clusters: prompt of each pair; shape (n,).
        words: words of the chosen story minus words of the rejected story; shape (n,).
    """
    against = {one.rater: one for one in compare_all(credits, longer, clusters)}
    rows = []
    for name, credit in credits.items():
        chosen_longer, chosen_shorter = (
            jackknife_interval(credit[keep], clusters[keep]) if keep.any() else None
            for keep in (words > 0, words < 0)
        )
        compared = against.get(name)
        over, p_holm = (compared.difference, compared.p_holm) if compared else (None, math.nan)
        overall = jackknife_interval(credit, clusters)
        rows.append(Agreement(name, overall, chosen_longer, chosen_shorter, over, p_holm))
    return rows


def coefficient_intervals(
    fit: Callable[[np.ndarray], np.ndarray], prompts: Sequence[str]
) -> tuple[list[Interval], list[float]]:
    """Intervals of coefficients by the delete-a-group jackknife over prompts (Kott, 2001).

    There are up to 100 groups. The degrees of freedom of the t quantile are the number of groups,
    or the effective number of prompts if that is smaller, minus 1.

    Args:
        fit: function from row indices (int, shape (k,)) to coefficients, shape (columns,).
        prompts: prompt of each row; shape (n,).

    Returns:
        For each column its interval, and the two-sided p value of a coefficient of 0; NaN with
        fewer than two prompts.
    """
    from scipy import stats  # noqa: PLC0415

    distinct, index, sizes = np.unique(np.asarray(prompts), return_inverse=True, return_counts=True)
    effective, rows = effective_clusters(sizes), len(index)
    whole = fit(np.arange(rows))
    groups = min(len(distinct), _MOST_GROUPS)
    freedom = max(min(groups, effective) - 1, 1.0)
    error = np.full(len(whole), math.nan)
    if groups > 1:
        order = sorted(range(len(distinct)), key=lambda k: digest("jackknife", distinct[k]))
        group_of = np.empty(len(distinct), dtype=int)
        group_of[order] = np.arange(len(distinct)) % groups
        without = np.array([fit(np.flatnonzero(group_of[index] != g)) for g in range(groups)])
        error = np.sqrt((groups - 1) / groups * np.square(without - whole).sum(0))
    reach = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * error
    intervals = [
        Interval(w, w - half, w + half, rows, len(distinct), effective)
        for w, half in zip(whole.tolist(), reach.tolist(), strict=True)
    ]
    # A unit that is never active has no meaningful coefficient.
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
    """The table of units that are ever active, largest coefficients first."""
    adjusted = benjamini_hochberg(p_values)
    rows = []
    for unit, surface in surfaces.items():
        active = units[:, unit] != 0
        preferred = credits_of(units[active, unit], first_chosen[active])
        rows.append(
            UnitRow(
                unit,
                coefficients[unit],
                adjusted[unit],
                float(active.mean()),
                jackknife_interval(preferred, clusters[active]),
                *described.get(unit, (None, None)),
                surface,
            )
        )
    return sorted(rows, key=lambda row: -abs(row.coefficient.mean))


def fidelity_of(
    answers: Sequence[int | None], values: np.ndarray, clusters: np.ndarray
) -> Fidelity | None:
    """Compare the answers of a model that reads a description with the values of the unit."""
    signs = np.array([math.nan if answer is None else answer for answer in answers])
    active = ~np.isnan(signs) & (values != 0)
    if not active.any():
        return None
    credit = (1 + signs[active] * np.sign(values[active])) / 2
    agreement = jackknife_interval(credit, np.asarray(clusters)[active])
    return Fidelity(agreement, int(np.isnan(signs).sum()))


def distinct_words(text: str) -> frozenset[str]:
    """The distinct words of a text, case-folded; pairs of characters in unspaced scripts."""
    runs = _UNSPACED.findall(text)
    pairs = (run[start : start + 2] for run in runs for start in range(len(run) - 1))
    spaced = _WORD.findall(_UNSPACED.sub(" ", text)) if runs else _WORD.findall(text)
    return frozenset(pairs) | {word.casefold().replace("’", "'") for word in spaced}


def surface_of(
    values: np.ndarray,
    differences: np.ndarray,
    names: Sequence[str],
    words: Sequence[tuple[frozenset[str], frozenset[str]]],
    shown: int = 6,
) -> Surface:
    """The surface features and words of one unit."""
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
    # z of a sign test; words that occur in few pairs are skipped.
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
    """A label from surface features: the strongest correlations, and words of either side."""
    words = [", ".join(f"“{clean_name(w)}”" for w in of[:3]) for of in (surface.more, surface.less)]
    parts = [f"{name} {r:+.2f}" for name, r in list(surface.correlations.items())[:2]]
    parts += [f"{start} {of}" for start, of in zip(("words", "not"), words, strict=True) if of]
    return "; ".join(parts)


def preference_rows(study: PreferenceStudy) -> list[dict[str, Any]]:
    """The units as rows of a table."""
    names = ("unit", "label", "coefficient", "p_bh", "prevalence", "preferred")
    return [
        {name: getattr(row, name) for name in names}
        | {
            "pairs": row.preferred.n,
            "fidelity": row.fidelity and row.fidelity.agreement,
            "surface": surface_label(row.surface),
        }
        for row in study.units
    ]


def preferences_text(study: PreferenceStudy, shown: int = 12) -> str:
    """The study as text for a terminal."""
    named = "labelled by counts" if study.described_by is None else "described by a model"
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
        f"coefficients of {len(rows)} units; units.csv has all {len(study.units)}"
    )
