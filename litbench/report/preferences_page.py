"""preferences.html: what preferences encode, and the pairs to see it by (see document.py)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litbench.metrics.preferences import PreferenceStudy, UnitRow, surface_label
from litbench.report import figures
from litbench.report.document import Figure, render
from litbench.text import digest

_MOST_LETTERS = 12_000
_SHOWN_UNITS = 20
# Letters that leave half of a plot to its bars.
_MOST_LABEL = 34
_UNKNOWN_SHARE = 0.05
# Of the characters that the plots' font can be trusted to have.
_LAST_DRAWN = 0x2E7F


@dataclass(frozen=True)
class ShownPair:
    """A pair on which a unit is active, the side with more of it first."""

    how: str
    size: float
    prompt: str
    more: str
    less: str
    more_chosen: bool


def pairs_to_read(
    values: np.ndarray,
    prompts: Sequence[str],
    sides: Sequence[tuple[str, str]],
    first_chosen: np.ndarray,
    unit: int,
    count: int,
) -> list[ShownPair]:
    """The pairs on which a unit is strongest, and as many others drawn by a hash.

    Args:
        values: of the unit; shape (n,).
        prompts: texts; shape (n,).
        sides: first and second story of each pair; shape (n,).
        first_chosen: bool, shape (n,).
        unit: its place.
        count: of either sort.
    """
    active = np.flatnonzero(values).tolist()
    strongest = sorted(active, key=lambda row: (-abs(values[row]), row))[:count]
    others = [row for row in active if row not in strongest]
    drawn = sorted(others, key=lambda row: digest("to read", unit, row))[:count]
    shown = []
    for how, rows in (("strongest", strongest), ("at random", drawn)):
        for row in rows:
            more, less = sides[row] if values[row] > 0 else sides[row][::-1]
            more_chosen = bool(first_chosen[row]) == bool(values[row] > 0)
            size = abs(float(values[row]))
            shown.append(ShownPair(how, size, prompts[row], _cut(more), _cut(less), more_chosen))
    return shown


def _cut(text: str) -> str:
    if len(text) <= _MOST_LETTERS:
        return text
    return f"{text[:_MOST_LETTERS]} […{len(text) - _MOST_LETTERS:,} more letters]"


def draw_units(study: PreferenceStudy) -> Figure | None:
    """The coefficients with their intervals; None without active units.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    shown = sorted(study.units[:_SHOWN_UNITS], key=lambda row: -row.coefficient.mean)
    if not shown:
        return None

    def bar(row: UnitRow) -> tuple[str, float, float, float]:
        c = row.coefficient
        low, high = (c.low, c.high) if c.low == c.low else (c.mean, c.mean)
        return _short(row), c.mean, low, high

    caption = (
        "Log-odds of being preferred for a root mean square of each unit, with 95 % intervals by "
        "prompt that take the units as given. A unit's sign is its own: more of what is named "
        "raises or lowers the odds."
    )
    drawn = figures.coefficients([bar(row) for row in shown], "log-odds")
    return Figure("Coefficients of the units", caption, drawn)


def _short(row: UnitRow) -> str:
    # The font of the plots has no Chinese.
    if any(ord(letter) > _LAST_DRAWN for letter in row.label):
        return f"unit {row.unit}"
    text = f"{row.unit}: {row.label}"
    return text if len(text) <= _MOST_LABEL else f"{text[: _MOST_LABEL - 1]}…"


def _summary(study: PreferenceStudy) -> str:
    significant = [row for row in study.units if row.is_significant]
    found = (
        f"Linear in sparse units, held-out agreement is {study.agreements[0].agreement}. "
        f"{len(significant)} of {len(study.units)} units have a significant coefficient"
    )
    return f"{found}: above all {significant[0].label}." if significant else f"{found}."


def render_preferences(
    *,
    title: str,
    study: PreferenceStudy,
    panel: Figure | None,
    examples: Mapping[int, Sequence[ShownPair]],
    embedding_notes: Mapping[str, Any],
    label_sources: Sequence[str],
    manifests: Mapping[str, str],
) -> str:
    """Render the page.

    Args:
        title: heading of the page.
        study: its figures.
        panel: of `draw_units`.
        examples: of each active unit, `pairs_to_read`.
        embedding_notes: see `litbench.models.embeddings.Embedding`.
        label_sources: of the pairs.
        manifests: name and text of what made the page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    warnings = []
    # Only a model of transformers tells what it does not know, and words lose no end.
    unknown, cut = (embedding_notes.get(name, 0) for name in ("unknown_tokens", "tokens_cut"))
    if unknown > _UNKNOWN_SHARE:
        warnings.append(
            f"The embedding model has no word for {unknown:.0%} of the tokens: it hardly reads "
            "these stories."
        )
    if cut:
        share = cut / (cut + embedding_notes["tokens"])
        warnings.append(
            f"The ends of {embedding_notes['longer_than_a_window']:,} of "
            f"{embedding_notes['texts']:,} stories were cut off, {share:.0%} of all tokens: the "
            "units know beginnings."
        )
    return render(
        "preferences_page.html",
        title=title,
        label_sources=sorted(set(label_sources)),
        summary=_summary(study),
        study=study,
        panels=[] if panel is None else [panel],
        examples=examples,
        counted={row.unit: surface_label(row.surface) for row in study.units},
        warnings=warnings,
        manifests=manifests,
    )
