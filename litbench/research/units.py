"""A model describes units of a sparse autoencoder, and its descriptions are tested (paper, A.1).

A unit is described from pairs in which it is active, where story A is the side with the higher
activation, and from pairs in which it is inactive. In the test pairs the order is arbitrary, and
the unit is inactive in some of them. No pair or prompt is used for both.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from litbench.data.text import digest
from litbench.judges.answers import Answer, AnswerStore
from litbench.judges.prices import dollars_of
from litbench.judges.session import JUDGE, Models, ask
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.raters.templates.delimiters import without_delimiters
from litbench.raters.templates.template import fill
from litbench.runs.config import read_yaml
from litbench.runs.terminal import clean_name

# The questions about a unit: `describe`, `example` (one per pair) and `verify`.
_QUESTIONS = read_yaml(Path(__file__).with_name("units.yaml"))
# Tolerates Markdown around the words.
_QUALITY = re.compile(r"^[^\w\n]*quality[^\w:\n]*:[\s*_]*([^\s*_].*)$", re.I | re.M)
_MORE = re.compile(r"^[^\w\n]*more[^\w:\n]*:\W*+(A|B|neither)[^\w\n]*$", re.I | re.M)
_MAX_DESCRIBED = 300
# Pairs to describe a unit: those with its strongest activations, and as many random ones on which
# it is inactive. Random test pairs on which it is active, and inactive. Characters of each story
# that are shown.
_EXAMPLES, _TESTS, _QUIET_TESTS, _LETTERS = 6, 20, 10, 3_000


class UnitPairs(NamedTuple):
    """Row indices of the pairs that describe a unit, and of those that test the description.

    Attributes:
        examples: pairs in which the unit is active.
        contrasts: pairs of the same prompts' half in which it is inactive.
        tests: pairs of the other half.
    """

    examples: list[int]
    contrasts: list[int]
    tests: list[int]


def choose_pairs(values: np.ndarray, prompts: Sequence[str], unit: int, seed: int) -> UnitPairs:
    """Choose the pairs of a unit: half of the prompts describe it, the other half test it.

    `values` are the unit's activations and `prompts` the prompts of the pairs, both of shape (n,).
    """
    describes = np.array([int(digest("half", seed, p), 16) % 2 == 0 for p in prompts], dtype=bool)
    active = values != 0

    def drawn(mask: np.ndarray) -> list[int]:
        rows = np.flatnonzero(mask).tolist()
        return sorted(rows, key=lambda row: digest("test", seed, unit, row))

    def by_prompt(rows: list[int]) -> list[int]:
        """One pair per prompt while prompts last: otherwise the pairs share the prompt itself."""
        first = set({prompts[row]: row for row in reversed(rows)}.values())
        return sorted(rows, key=lambda row: row not in first)[:_EXAMPLES]

    best = sorted(np.flatnonzero(active & describes).tolist(), key=lambda r: (-abs(values[r]), r))
    return UnitPairs(
        by_prompt(best),
        by_prompt(drawn(~active & describes)),
        drawn(active & ~describes)[:_TESTS] + drawn(~active & ~describes)[:_QUIET_TESTS],
    )


def describe_question(
    sides: Sequence[tuple[str, str]], values: np.ndarray, pairs: UnitPairs
) -> str:
    """The question what the sides with more of a unit share and the contrasting pairs lack."""

    def shown(rows: Sequence[int], kind: str) -> str:
        texts = []
        for number, row in enumerate(rows, 1):
            stories = sides[row] if values[row] >= 0 else sides[row][::-1]
            content = {"kind": kind, "number": str(number), **_truncated(stories)}
            texts.append(fill(_QUESTIONS["example"], content).rstrip())
        return "\n\n".join(texts)

    content = {
        "count": str(len(pairs.examples)),
        "examples": shown(pairs.examples, "POSITIVE"),
        "contrasts": shown(pairs.contrasts, "NEGATIVE"),
    }
    return fill(_QUESTIONS["describe"], content)


def verify_question(description: str, sides: tuple[str, str]) -> str:
    """The question which side has more of the described quality."""
    content = {"description": description, **_truncated(sides)}
    return fill(_QUESTIONS["verify"], content)


def read_description(text: str) -> str | None:
    """The quality that an answer names last, on one line; None if it names none."""
    qualities = _QUALITY.findall(text)
    line = clean_name(without_delimiters(qualities[-1].rstrip(" \t\r*_"))) if qualities else ""
    return (line if len(line) <= _MAX_DESCRIBED else line[: _MAX_DESCRIBED - 1] + "…") or None


def read_more(text: str) -> int | None:
    """1 for story A, -1 for B, 0 for neither; None if the answer names none or several of them."""
    named = {match.upper() for match in _MORE.findall(text)}
    return {"A": 1, "B": -1, "NEITHER": 0}[named.pop()] if len(named) == 1 else None


def _truncated(stories: tuple[str, str]) -> dict[str, str]:
    cut = [text if len(text) <= _LETTERS else text[:_LETTERS] + " […]" for text in stories]
    return dict(zip(("story_a", "story_b"), map(without_delimiters, cut), strict=True))


@dataclass(frozen=True)
class Fidelity:
    """How often a model names the side with more of a unit from its description, on new pairs.

    Naming neither side counts 1/2, which is also chance. `unread` answers could not be parsed and
    are left out.
    """

    agreement: Interval
    unread: int


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


def describe_units(
    models: Models,
    units: np.ndarray,
    sides: Sequence[tuple[str, str]],
    prompts: Sequence[str],
    *,
    seed: int,
    answers: Path,
) -> tuple[dict[int, tuple[str, Fidelity | None]], dict[str, Any]]:
    """Ask a model for descriptions of the units that are ever active, and test them.

    Args:
        models: with the role `judge`, which is asked.
        units: activations; shape (n, units).
        sides: first and second story of each pair.
        prompts: key of each pair's prompt.
        seed: seed of the selected pairs.
        answers: folder of the stored answers.

    Returns:
        Description and fidelity by unit, and a summary of the answers.
    """
    every: list[Answer] = []
    active = np.flatnonzero(units.any(0)).tolist()
    chosen = {unit: choose_pairs(units[:, unit], prompts, unit, seed) for unit in active}
    with AnswerStore(answers) as store:

        def ask_all(texts: list[str], about: str) -> list[str]:
            """The model's answers; empty if truncated, refused or an error."""
            batch = ask(models, texts, store, about)
            every.extend(batch)
            return [answer.text if answer.outcome == "answered" else "" for answer in batch]

        shown = {unit: pairs for unit, pairs in chosen.items() if pairs.examples}
        texts = ask_all(
            [describe_question(sides, units[:, unit], pairs) for unit, pairs in shown.items()],
            "descriptions",
        )
        parsed = zip(shown, map(read_description, texts), strict=True)
        descriptions = {unit: text for unit, text in parsed if text is not None}
        tests = [(unit, row) for unit in descriptions for row in chosen[unit].tests]
        texts = ask_all(
            [verify_question(descriptions[unit], sides[row]) for unit, row in tests], "tests"
        )
    read = dict(zip(tests, map(read_more, texts), strict=True))
    described: dict[int, tuple[str, Fidelity | None]] = {}
    for unit, description in descriptions.items():
        rows = chosen[unit].tests
        mores = [read[unit, row] for row in rows]
        clusters = np.array([prompts[row] for row in rows])
        described[unit] = (description, fidelity_of(mores, units[rows, unit], clusters))
    return described, {
        "model": models.roles[JUDGE].model,
        "answered_by": sorted({answer.model for answer in every if answer.model}),
        "answers": len(every),
        "not_described": len(chosen) - len(descriptions),
        "errors": sum(answer.outcome == "error" for answer in every),
        "cost_usd": dollars_of(every, models.budgets["role", JUDGE].price),
    }
