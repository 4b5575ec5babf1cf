"""The funnel: how many rows each named step kept and removed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


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
    """Collects steps in their order and checks that nothing is lost between them."""

    def __init__(self) -> None:
        self.steps: list[FunnelStep] = []

    def add(self, step: str, about: str, unit: str, kept: int, removed: int) -> None:
        """Add a step; within a unit, what the last step kept is what this one started from."""
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
