"""What can be counted on the pairs on which a unit is active: a label without a model."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litbench.text import clean_name

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
# In scripts without spaces between words, two adjacent characters count as a word.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+")

_SHOWN = 6


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
) -> Surface:
    """The surface features and words of one unit."""
    correlations = {
        name: round(float(np.corrcoef(values, column)[0, 1]), 3)
        for name, column in zip(names, differences.T, strict=True)
        if np.ptp(column) > 1e-12 and np.ptp(values) > 0
    }
    strongest = sorted(correlations, key=lambda name: (-abs(correlations[name]), name))[:_SHOWN]
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
        [word for word in ranked[:_SHOWN] if z[word] > 0],
        [word for word in ranked[::-1][:_SHOWN] if z[word] < 0],
    )


def surface_label(surface: Surface) -> str:
    """A label from surface features: the strongest correlations, and words of either side."""
    words = [", ".join(f"“{clean_name(w)}”" for w in of[:3]) for of in (surface.more, surface.less)]
    parts = [f"{name} {r:+.2f}" for name, r in list(surface.correlations.items())[:2]]
    parts += [f"{start} {of}" for start, of in zip(("words", "not"), words, strict=True) if of]
    return "; ".join(parts)
