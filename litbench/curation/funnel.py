"""The funnel: how many rows each named step kept and removed, and examples of what went."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from litbench.text import digest

_LONGEST_EXAMPLE = 600


class FunnelStep(NamedTuple):
    """One step of curation: its name (a config key where it has one), the rule in words, counts."""

    step: str
    about: str
    unit: str  # what is counted, stories or pairs
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
        last = self.steps[-1] if self.steps else None
        if last and last.unit == unit and kept + removed != last.kept:
            raise AssertionError(f"{step}: {kept} kept + {removed} removed is not {last.kept}")
        self.steps.append(FunnelStep(step, about, unit, kept, removed))

    def add_all(
        self, rules: Iterable[tuple[str, str]], removed: Mapping[str, int], start: int, unit: str
    ) -> None:
        """Add several steps that were counted at once: `removed` by each rule's name."""
        for step, about in rules:
            start -= removed.get(step, 0)
            self.add(step, about, unit, start, removed.get(step, 0))

    def plain(self) -> list[dict[str, Any]]:
        """The steps as JSON can hold them."""
        return [step._asdict() for step in self.steps]

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
        lines = (json.dumps(row) + "\n" for row in self.rows())
        path.write_text("".join(lines), encoding="utf-8")
