"""Describe a unit of embedding differences with a model, and test the description on other pairs.

In the pairs used to describe a unit, story A is the side with the higher activation. In the test
pairs the order is arbitrary, and the unit is inactive in some of them. No pair or prompt is used
for both.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from litbench.config import read_yaml
from litbench.templates import without_delimiters
from litbench.text import clean_name, digest

_FILE = Path(__file__).with_name("interpreting.yaml")
# Tolerates Markdown around the words.
_QUALITY = re.compile(r"^\W*quality\W*:[\s*_]*([^\s*_].*?)[\s*_]*$", re.I | re.M)
_MORE = re.compile(r"^\W*more\W*:\W*(A|B|neither)\W*$", re.I | re.M)
_MOST_LETTERS = 300


@dataclass
class InterpretingOptions:
    """How units are described and descriptions tested.

    Attributes:
        examples: pairs shown to describe a unit: those with its strongest activations.
        tests: random test pairs on which the unit is active.
        quiet_tests: random test pairs on which the unit is inactive.
        shown_letters: characters of each story that are shown; the rest is truncated.
    """

    examples: PositiveInt = 6
    tests: PositiveInt = 20
    quiet_tests: NonNegativeInt = 10
    shown_letters: PositiveInt = 3_000


@dataclass(frozen=True)
class UnitPairs:
    """Row indices of the pairs that describe a unit, and of those that test the description."""

    examples: list[int]
    tests: list[int]


def load_questions() -> dict[str, str]:
    """Return the packaged question templates: `describe`, `example` (one per pair) and `verify`."""
    return read_yaml(_FILE)


def choose_pairs(
    values: np.ndarray, prompts: Sequence[str], unit: int, options: InterpretingOptions, seed: int
) -> UnitPairs:
    """Choose the pairs of a unit: half of the prompts describe it, the other half test it.

    `values` are the unit's activations and `prompts` the prompts of the pairs, both of shape (n,).
    """
    describes = np.array([int(digest("half", seed, p), 16) % 2 == 0 for p in prompts], dtype=bool)
    active = values != 0

    def drawn(mask: np.ndarray, count: int) -> list[int]:
        rows = np.flatnonzero(mask & ~describes).tolist()
        return sorted(rows, key=lambda row: digest("test", seed, unit, row))[:count]

    best = sorted(np.flatnonzero(active & describes).tolist(), key=lambda r: (-abs(values[r]), r))
    # One pair per prompt while prompts last: otherwise the pairs share the prompt itself.
    first = set({prompts[row]: row for row in reversed(best)}.values())
    best.sort(key=lambda row: row not in first)
    return UnitPairs(
        best[: options.examples],
        drawn(active, options.tests) + drawn(~active, options.quiet_tests),
    )


def describe_question(
    questions: Mapping[str, str],
    sides: Sequence[tuple[str, str]],
    values: np.ndarray,
    rows: Sequence[int],
    shown_letters: int,
) -> str:
    """The question what the sides with more of a unit share; `rows` are the pairs to show."""
    examples = []
    for number, row in enumerate(rows, 1):
        stories = sides[row] if values[row] > 0 else sides[row][::-1]
        content = {"number": str(number), **_truncated(stories, shown_letters)}
        examples.append(_filled(questions["example"], content).rstrip())
    content = {"count": str(len(rows)), "examples": "\n\n".join(examples)}
    return _filled(questions["describe"], content)


def verify_question(
    questions: Mapping[str, str], description: str, sides: tuple[str, str], shown_letters: int
) -> str:
    """The question which side has more of the described quality."""
    content = {"description": description, **_truncated(sides, shown_letters)}
    return _filled(questions["verify"], content)


def read_description(text: str) -> str | None:
    """The quality that an answer names last, on one line; None if it names none."""
    qualities = _QUALITY.findall(text)
    line = clean_name(without_delimiters(qualities[-1])) if qualities else ""
    return (line if len(line) <= _MOST_LETTERS else line[: _MOST_LETTERS - 1] + "…") or None


def read_more(text: str) -> int | None:
    """1 for story A, -1 for B, 0 for neither; None if the answer names none or several of them."""
    named = {match.upper() for match in _MORE.findall(text)}
    return {"A": 1, "B": -1, "NEITHER": 0}[named.pop()] if len(named) == 1 else None


def _truncated(stories: tuple[str, str], letters: int) -> dict[str, str]:
    cut = [text if len(text) <= letters else text[:letters] + " […]" for text in stories]
    return dict(zip(("story_a", "story_b"), map(without_delimiters, cut), strict=True))


def _filled(template: str, content: Mapping[str, str]) -> str:
    """Fill in a template; braces in the content are left as they are."""
    names = "|".join(content)
    return re.sub(rf"\{{({names})\}}", lambda match: content[match[1]], template)
