"""The funnel: how many rows each step kept and removed, with examples of removed rows."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from litbench.data.text import digest

_LONGEST_EXAMPLE = 600
# What to do if a step removes too much; otherwise: lower it, or set it to null.
_REMEDIES = {
    "has_score": "check the column of the score",
    "has_time": "check the column of the time, or set chosen_later to false",
    "min_score": "lower it, or set it to null; for ratings set label_source to people",
    "max_tokens": "raise it, or set it to null",
    "max_pairs_per_prompt": "raise it, or set it to null",
    "drop_near_duplicates": "raise it, or set it to null",
    "test_from": "give an earlier day",
    **dict.fromkeys(
        ("drop_deleted", "drop_bots", "drop_talk", "drop_duplicates", "chosen_later"),
        "set it to false",
    ),
}


class FunnelStep(NamedTuple):
    """One step of curation: its name (usually a config key), the rule in words, and counts."""

    step: str
    about: str
    unit: str  # stories or pairs
    kept: int
    removed: int


class Funnel:
    """The steps in order; each starts with the rows that the previous one kept."""

    def __init__(self) -> None:
        self.steps: list[FunnelStep] = []

    def add(self, step: str, about: str, unit: str, kept: int, removed: int) -> None:
        """Add a step.

        Raises:
            AssertionError: kept and removed do not add up to the rows that the last step kept.
        """
        last = self.steps[-1] if self.steps else None
        if last and last.unit == unit and kept + removed != last.kept:
            raise AssertionError(f"{step}: {kept} kept + {removed} removed is not {last.kept}")
        self.steps.append(FunnelStep(step, about, unit, kept, removed))

    def add_all(
        self, rules: Iterable[tuple[str, str]], removed: Mapping[str, int], start: int, unit: str
    ) -> None:
        """Add several steps that were counted together; `removed` maps rule names to counts."""
        for step, about in rules:
            start -= removed.get(step, 0)
            self.add(step, about, unit, start, removed.get(step, 0))

    @classmethod
    def of(cls, steps: Iterable[Mapping[str, Any]]) -> "Funnel":
        funnel = cls()
        funnel.steps = [FunnelStep(**step) for step in steps]
        return funnel

    def plain(self) -> list[dict[str, Any]]:
        """Return the steps as dictionaries that can be written as JSON."""
        return [step._asdict() for step in self.steps]

    def summary(self) -> str:
        """Return one line: what the steps left, and which rule removed most of its rows, if any."""
        parts, unit = [], ""
        for step in self.steps:
            if step.unit != unit or step.removed:
                about = f"{step.kept:,} {step.unit}" if step.unit != unit else f"{step.kept:,}"
                parts.append(f"{about} ({step.about})")
            unit = step.unit
        advice = self.advice()
        return " → ".join(parts) + (f"; {advice}" if advice else "")

    def advice(self) -> str:
        """Name the rule that removed the largest share and what to do; "" if none removed half."""
        shares = {
            step.step: step.removed / (step.kept + step.removed)
            for step in self.steps
            if step.removed > step.kept
            # It is the paper's rule against early posting: only data without times must do without.
            and not (step.step == "chosen_later" and step.kept)
        }
        for step in self.steps:
            if step.step == "within_prompt" and not step.kept and not shares:
                return (
                    "no two stories of a prompt differ in score: check the columns of the prompt "
                    "and the score"
                )
        if not shares:
            return ""
        most = max(shares, key=lambda name: shares[name])
        remedy = _REMEDIES.get(most, "lower it, or set it to null")
        return f"{most} removed most: {remedy}"

    def __str__(self) -> str:
        """Format the funnel as a table for the terminal."""
        width = max((len(step.about) for step in self.steps), default=0)
        return "\n".join(
            f"  {step.about:<{width}}  {step.kept:>9,} {step.unit:<7} (-{step.removed:,})"
            for step in self.steps
        )


class Examples:
    """A sample of the rows that each step removed, or of the passages that it cut.

    The sample is drawn by hash, so it does not depend on row order or batch size.

    Attributes:
        per_step: most examples kept for each step.
    """

    def __init__(self, per_step: int = 5) -> None:
        self.per_step = per_step
        self._kept: dict[str, set[tuple[str, str, str, str]]] = {}

    def add(self, step: str, name: str, text: str, about: str = "") -> None:
        """Offer an example; `name` is its story_id or pair_id, `about` describes the row."""
        examples = self._kept.setdefault(step, set())
        examples.add((digest("example", step, name, text), name, text[:_LONGEST_EXAMPLE], about))
        if len(examples) > self.per_step:
            examples.remove(max(examples))

    def rows(self) -> list[dict[str, str]]:
        """Return `step`, `name`, `text` (first 600 characters) and `about`, sorted by step."""
        return [
            {"step": step, "name": name, "text": text, "about": about}
            for step, examples in sorted(self._kept.items())
            for _, name, text, about in sorted(examples)
        ]

    def write(self, path: Path) -> None:
        """Write the rows as JSONL."""
        lines = (json.dumps(row) + "\n" for row in self.rows())
        path.write_text("".join(lines), encoding="utf-8")
