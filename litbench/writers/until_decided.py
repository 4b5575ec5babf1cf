"""Write until decided: a run ends once each writer's difference from a reference has been decided.

    litbench run stories --options.prompts prompts.parquet --writer openai/gpt-4.1-mini \
        --writer openai/gpt-4.1 --judge JUDGE --until decided --against openai/gpt-4.1 --out FOLDER

See `litbench.evaluation.until_decided`. All writers write about the same prompts, until the last
comparison has ended; a difference is that of the headline's mean grades, paired by prompt.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

import numpy as np

from litbench.evaluation.until_decided import (
    POWER,
    Looks,
    Plan,
    UntilKeys,
    prompt_order,
    reference_level,
)
from litbench.judges.session import Session
from litbench.metrics.intervals import ClusteredMean, clustered_mean
from litbench.metrics.power import needed_signal
from litbench.metrics.sequential import ALPHA, MIN_PROMPTS, expected_looks, prompts_at_looks
from litbench.runs.errors import ConfigError
from litbench.writers.metrics import GradeCell, means_by_prompt
from litbench.writers.protocol import Item


class WriterLooks(Looks):
    """Compares the grades of a run's writers until every comparison has ended.

    Attributes:
        blocks: the items of each block.
    """

    def __init__(
        self, keys: UntilKeys, quantity: str, writers: Collection[str], items: Sequence[Item]
    ) -> None:
        """Order the items, and place the looks; raises a ConfigError if they are too few."""
        if len(items) < MIN_PROMPTS:
            raise ConfigError(
                f"until: {len(items)} prompts are fewer than {MIN_PROMPTS}, too few for an early "
                "stop: leave until out"
            )
        against = keys.against
        if against is None or [*writers] == [against]:
            raise ConfigError(f"against: is {against}: name another writer of this run, or a grade")
        level = reference_level(against, writers)
        by_id = {item.prompt_id: item for item in items}
        order = [by_id[name] for name in prompt_order(keys, by_id)]
        ends = prompts_at_looks(len(order), keys.looks)
        self.blocks = [order[start:end] for start, end in pairwise([0, *ends])]
        # By writer, prompt and judge.
        self._grades = defaultdict[tuple[str, str, str], list[float]](list)
        plan = Plan(keys, against, level, ends, ends, quantity=quantity)
        super().__init__(plan, {name: True for name in writers if name != against})

    def run(self, write: Callable[[Sequence[Item]], bool]) -> None:
        """Look after each block.

        Args:
            write: has all writers write about items, and passes their sessions to `add`; false if a
                session may go on in a further run. The block is then not used.
        """
        for look, block in enumerate(self.blocks):
            if not self.is_open:
                return
            if not write(block):
                self.end_by_limit()
                return
            self.compare_at(look)

    def add(self, session: Session) -> None:
        """Add the grades of a session that has ended."""
        for judge, quantity, grade, _ in session.result.grades() if session.result else ():
            if quantity == self.plan.quantity and grade is not None:
                self._grades[session.writer, session.prompt_id, judge or ""].append(grade)

    def estimate(self, name: str, look: int) -> ClusteredMean:
        """The mean difference in grade over the prompts that both have a grade for."""
        del look
        against, level = self.plan.against, self.plan.level
        both = {key: values for key, values in self._grades.items() if key[0] in (name, against)}
        cells = [GradeCell(*key, fmean(values)) for key, values in both.items()]
        means: Mapping[str, Mapping[str, float]] = means_by_prompt(cells) if cells else {}
        grades = means.get(name, {})
        base = means.get(against, {}) if level is None else dict.fromkeys(grades, level)
        prompts = [prompt for prompt in grades if prompt in base]
        gaps = np.array([grades[prompt] - base[prompt] for prompt in prompts])
        return clustered_mean(gaps, prompts)

    def print_expected(self, calls: int) -> None:
        """Print the expected number of calls, of those for all prompts."""
        plan, count = self.plan, len(self._comparisons)
        signal = needed_signal(POWER, math.inf, ALPHA / count)
        expected = []
        for name, drift in (("none", 0.0), ("planned", signal), ("twice", 2 * signal)):
            chances = expected_looks(plan.shares, ALPHA / count, drift, futility=plan.keys.futility)
            # The run goes on while any comparison is open.
            share = float((1 - (1 - chances) ** count) @ np.diff(plan.shares, prepend=0.0))
            expected.append(f"{share * calls:,.0f} ({share:.0%}) if the difference is {name}")
        print(
            f"until decided: {len(plan.prompts)} looks, the first at {plan.prompts[0]:,} of "
            f"{plan.prompts[-1]:,} prompts; {calls:,} calls at worst, {', '.join(expected)}. All "
            "prompts find the planned difference in 80 %; the first look prints it"
        )
