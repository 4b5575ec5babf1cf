"""Ask a model what a unit of differences is about, and test what it says on other pairs.

In the pairs that describe a unit, story A is the side with more of it. In the pairs that test the
description the sides stand in an order that says nothing, and some pairs are among them on which
the unit is quiet. No pair serves for both, nor do two pairs of one prompt.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from litbench.config import build, read_yaml
from litbench.errors import ConfigError
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
        shown_letters: of a story; the rest is cut off, at the end of a word where there are words.
    """

    examples: int = 6
    tests: int = 20
    quiet_tests: int = 10
    shown_letters: int = 3_000

    def check(self) -> None:
        """Refuse numbers that leave nothing to read.

        Raises:
            ConfigError: one is too small.
        """
        for name, least in (
            ("examples", 1), ("tests", 1), ("quiet_tests", 0), ("shown_letters", 100),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise ConfigError(
                    f"interpreting: {name} is {getattr(self, name)}: give at least {least}"
                )


@dataclass(frozen=True)
class Questions:
    """The texts of the questions; keys of interpreting.yaml."""

    describe: str
    verify: str
    example: str


@dataclass(frozen=True)
class UnitPairs:
    """Which pairs serve to describe a unit and which to test the description; rows."""

    examples: list[int]
    tests: list[int]


def load_questions() -> Questions:
    """The questions that come with LitBench."""
    return build(Questions, read_yaml(_FILE), str(_FILE))


def choose_pairs(
    values: np.ndarray, prompts: Sequence[str], unit: int, options: InterpretingOptions, seed: int
) -> UnitPairs:
    """Choose the pairs of a unit; the prompts of one half describe it, those of the other test it.

    Args:
        values: of the unit; shape (n,).
        prompts: of each pair; shape (n,).
        unit: its place, which draws pairs of its own.
        options: see InterpretingOptions.
        seed: of the halves and the draws.
    """
    describes = np.array([int(digest("half", seed, p), 16) % 2 == 0 for p in prompts], dtype=bool)
    active = values != 0

    def drawn(rows: np.ndarray, count: int) -> list[int]:
        ordered = sorted(rows.tolist(), key=lambda row: digest("test", seed, unit, row))
        return ordered[:count]

    best = sorted(np.flatnonzero(active & describes).tolist(), key=lambda r: (-abs(values[r]), r))
    # One pair a prompt as long as there are prompts: otherwise the prompt is what they share.
    seen: set[str] = set()
    first = []
    for row in best:
        if prompts[row] not in seen:
            seen.add(prompts[row])
            first.append(row)
    others = [row for row in best if row not in set(first)]
    return UnitPairs(
        [*first, *others][: options.examples],
        drawn(np.flatnonzero(active & ~describes), options.tests)
        + drawn(np.flatnonzero(~active & ~describes), options.quiet_tests),
    )


def describe_question(
    questions: Questions,
    sides: Sequence[tuple[str, str]],
    values: np.ndarray,
    rows: Sequence[int],
    shown_letters: int,
) -> str:
    """Ask what the sides with more of a unit have in common.

    Args:
        questions: of `load_questions`.
        sides: first and second story of each pair; shape (n,).
        values: of the unit; shape (n,).
        rows: the pairs to show.
        shown_letters: see InterpretingOptions.
    """
    shown = []
    for number, row in enumerate(rows, 1):
        more, less = sides[row] if values[row] > 0 else sides[row][::-1]
        content = {
            "number": str(number),
            "story_a": _shown(more, shown_letters),
            "story_b": _shown(less, shown_letters),
        }
        shown.append(_filled(questions.example, content).rstrip())
    content = {"count": str(len(rows)), "examples": "\n\n".join(shown)}
    return _filled(questions.describe, content)


def verify_question(
    questions: Questions, description: str, sides: tuple[str, str], shown_letters: int
) -> str:
    """Ask which side has more of what a description says."""
    content = {
        "description": description,
        "story_a": _shown(sides[0], shown_letters),
        "story_b": _shown(sides[1], shown_letters),
    }
    return _filled(questions.verify, content)


def read_description(text: str) -> str | None:
    """The quality that an answer names, on one line; None where it names none. The last counts."""
    found = _QUALITY.findall(text)
    line = clean_name(without_delimiters(found[-1])) if found else ""
    if not line:
        return None
    return line if len(line) <= _MOST_LETTERS else line[: _MOST_LETTERS - 1] + "…"


def read_more(text: str) -> int | None:
    """1 for story A, -1 for B, 0 for neither; None where nothing stands, or more than one."""
    found = {match.upper() for match in _MORE.findall(text)}
    return {"A": 1, "B": -1, "NEITHER": 0}[found.pop()] if len(found) == 1 else None


def _shown(text: str, letters: int) -> str:
    if len(text) > letters:
        cut = text[:letters]
        words = (cut.rsplit(maxsplit=1) or [cut])[0]
        # Without spaces between words there is nothing to cut at.
        text = (words if len(words) > letters * 0.9 else cut) + " […]"
    return without_delimiters(text)


def _filled(template: str, content: Mapping[str, str]) -> str:
    """Fill the places of a template; what stands in braces in the content stays as it is."""
    names = "|".join(content)
    return re.sub(rf"\{{({names})\}}", lambda match: content[match[1]], template)
