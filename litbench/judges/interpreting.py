"""Ask a model what a unit of differences is about, and test what it says on other pairs.

In the pairs that describe a unit, story A is the side with more of it. In the pairs that test the
description the order says nothing, and the unit is quiet in some of them. No pair or prompt serves
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
# Stars and the like around the words are markdown.
_QUALITY = re.compile(r"^\W*quality\W*:[\s*_]*([^\s*_].*?)[\s*_]*$", re.I | re.M)
_MORE = re.compile(r"^\W*more\W*:\W*(A|B|neither)\W*$", re.I | re.M)
_MOST_LETTERS = 300


@dataclass
class InterpretingOptions:
    """How units are described and descriptions tested.

    Attributes:
        examples: pairs that a description is made from, those on which the unit is strongest.
        tests: pairs on which the unit is active that test a description, drawn at random.
        quiet_tests: pairs on which it is not.
        shown_letters: of a story; the rest is cut off.
    """

    examples: PositiveInt = 6
    tests: PositiveInt = 20
    quiet_tests: NonNegativeInt = 10
    shown_letters: PositiveInt = 3_000


@dataclass(frozen=True)
class UnitPairs:
    """Which pairs serve to describe a unit and which to test the description; rows."""

    examples: list[int]
    tests: list[int]


def load_questions() -> dict[str, str]:
    """The packaged questions: `describe`, with one `example` a pair, and `verify`."""
    return read_yaml(_FILE)


def choose_pairs(
    values: np.ndarray, prompts: Sequence[str], unit: int, options: InterpretingOptions, seed: int
) -> UnitPairs:
    """Choose the pairs of a unit; the prompts of one half describe it, those of the other test it.

    `values` are those of the unit and `prompts` those of the pairs, both of shape (n,).
    """
    describes = np.array([int(digest("half", seed, p), 16) % 2 == 0 for p in prompts], dtype=bool)
    active = values != 0

    def drawn(mask: np.ndarray, count: int) -> list[int]:
        rows = np.flatnonzero(mask & ~describes).tolist()
        return sorted(rows, key=lambda row: digest("test", seed, unit, row))[:count]

    best = sorted(np.flatnonzero(active & describes).tolist(), key=lambda r: (-abs(values[r]), r))
    # One pair a prompt as long as there are prompts: otherwise the prompt is what they share.
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
    """Ask what the sides with more of a unit have in common; `rows` are the pairs to show."""
    examples = []
    for number, row in enumerate(rows, 1):
        stories = sides[row] if values[row] > 0 else sides[row][::-1]
        content = {"number": str(number), **_shown(stories, shown_letters)}
        examples.append(_filled(questions["example"], content).rstrip())
    content = {"count": str(len(rows)), "examples": "\n\n".join(examples)}
    return _filled(questions["describe"], content)


def verify_question(
    questions: Mapping[str, str], description: str, sides: tuple[str, str], shown_letters: int
) -> str:
    """Ask which side has more of what a description says."""
    content = {"description": description, **_shown(sides, shown_letters)}
    return _filled(questions["verify"], content)


def read_description(text: str) -> str | None:
    """The quality that an answer names, on one line; None where it names none. The last counts."""
    found = _QUALITY.findall(text)
    line = clean_name(without_delimiters(found[-1])) if found else ""
    return (line if len(line) <= _MOST_LETTERS else line[: _MOST_LETTERS - 1] + "…") or None


def read_more(text: str) -> int | None:
    """1 for story A, -1 for B, 0 for neither; None where nothing is named, or more than one."""
    found = {match.upper() for match in _MORE.findall(text)}
    return {"A": 1, "B": -1, "NEITHER": 0}[found.pop()] if len(found) == 1 else None


def _shown(stories: tuple[str, str], letters: int) -> dict[str, str]:
    cut = [text if len(text) <= letters else text[:letters] + " […]" for text in stories]
    return dict(zip(("story_a", "story_b"), map(without_delimiters, cut), strict=True))


def _filled(template: str, content: Mapping[str, str]) -> str:
    """Fill in a template; braces in the content stay as they are."""
    names = "|".join(content)
    return re.sub(rf"\{{({names})\}}", lambda match: content[match[1]], template)
