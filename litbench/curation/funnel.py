"""The funnel: how many rows each named step kept and removed, and examples of what went."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from litbench.text import digest

_LONGEST_EXAMPLE = 600


@dataclass(frozen=True)
class FunnelStep:
    """One step of curation.

    Attributes:
        step: its name, which is also its config key where it has one.
        about: the rule in words, with its value.
        unit: what is counted, stories or pairs.
        kept: rows that passed.
        removed: rows that did not.
    """

    step: str
    about: str
    unit: str
    kept: int
    removed: int


class Funnel:
    """The steps in their order; what one kept is what the next one starts from."""

    def __init__(self) -> None:
        self.steps: list[FunnelStep] = []

    def add(self, step: str, about: str, unit: str, kept: int, removed: int) -> None:
        """Add a step.

        Raises:
            AssertionError: it does not start from what the last step with its unit kept.
        """
        if self.steps and self.steps[-1].unit == unit:
            before = self.steps[-1].kept
            if kept + removed != before:
                raise AssertionError(f"{step}: {kept} kept + {removed} removed is not {before}")
        self.steps.append(FunnelStep(step, about, unit, kept, removed))

    def add_all(
        self, rules: Sequence[tuple[str, str]], removed: Mapping[str, int], start: int, unit: str
    ) -> None:
        """Add several steps that were counted at once: `removed` by each rule's name."""
        kept = start
        for step, about in rules:
            kept -= removed.get(step, 0)
            self.add(step, about, unit, kept, removed.get(step, 0))

    def plain(self) -> list[dict[str, Any]]:
        """The steps as JSON can hold them."""
        return [asdict(step) for step in self.steps]

    def __str__(self) -> str:
        """A table for the terminal."""
        width = max((len(step.about) for step in self.steps), default=0)
        return "\n".join(
            f"  {step.about:<{width}}  {step.kept:>9,} {step.unit:<7} (-{step.removed:,})"
            for step in self.steps
        )


class Examples:
    """A few of the rows that each step removed or of the passages that it cut.

    They are drawn by a hash, so neither the order of rows nor the size of batches matters.

    Attributes:
        per_step: how many are kept of each step.
    """

    def __init__(self, per_step: int = 5) -> None:
        self.per_step = per_step
        self._kept: dict[str, set[tuple[str, str, str, str]]] = {}

    def add(self, step: str, name: str, text: str, about: str = "") -> None:
        """Offer an example: the row's story_id or pair_id, the text, and facts in words."""
        kept = self._kept.setdefault(step, set())
        kept.add((digest("example", step, name, text), name, text[:_LONGEST_EXAMPLE], about))
        if len(kept) > self.per_step:
            kept.remove(max(kept))

    def rows(self) -> list[dict[str, str]]:
        """`step`, `name`, `text` (its first 600 characters) and `about`, by step."""
        return [
            {"step": step, "name": name, "text": text, "about": about}
            for step, kept in sorted(self._kept.items())
            for _, name, text, about in sorted(kept)
        ]

    def write(self, path: Path) -> None:
        """Write the rows as JSONL."""
        lines = (json.dumps(row, ensure_ascii=True) + "\n" for row in self.rows())
        path.write_text("".join(lines), encoding="utf-8")
