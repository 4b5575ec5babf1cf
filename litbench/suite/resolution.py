"""Resolution: which writers a rater tells apart, and the smallest difference that it would find.

Every two writers are compared by the paired differences of their grades on the same prompts, with
Holm's correction over all pairs of writers.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa

from litbench.data.records import SIDES, connected_prompts
from litbench.metrics.agreement import length_differences
from litbench.metrics.comparisons import difference_interval, holm
from litbench.metrics.intervals import clustered_mean
from litbench.metrics.power import needed_signal
from litbench.suite.passport import ResolutionFigures
from litbench.suite.self_preference import people_preference, source_column

_ALPHA, _POWER = 0.05, 0.8

# Grades by writer, then prompt.
Grades = Mapping[str, Mapping[str, float]]


@cache
def _signal(freedom: float, alpha: float) -> float:
    return needed_signal(_POWER, freedom, alpha)


def resolution_of(grades: Grades, limit: float = math.inf) -> ResolutionFigures:
    """Compare every two writers.

    Args:
        grades: by writer and prompt.
        limit: the largest possible difference of two grades.
    """
    tests, errors = [], []
    for first, second in itertools.combinations(grades.values(), 2):
        prompts = sorted(first.keys() & second.keys())
        if len(prompts) < 3:
            continue
        gaps = np.array([first[prompt] - second[prompt] for prompt in prompts])
        estimate = clustered_mean(gaps, prompts)
        tests.append(difference_interval(estimate, limit)[1])
        if estimate.error > 0:
            errors.append((estimate.error, estimate.freedom))
    smallest = [error * _signal(freedom, _ALPHA / len(tests)) for error, freedom in errors]
    median = float(np.median(smallest)) if smallest else math.nan
    means = [float(np.mean(list(by_prompt.values()))) for by_prompt in grades.values()]
    return ResolutionFigures(
        len(grades),
        len(tests),
        sum(p < _ALPHA for p in holm(tests)),
        median if median <= limit else None,
        max(means) - min(means),
    )


def win_rates(
    credit: np.ndarray, sources: Mapping[str, Sequence[str]], prompts: Sequence[str]
) -> dict[str, dict[str, float]]:
    """The share of pairs that each writer wins under each prompt.

    Args:
        credit: how far a rater prefers the chosen story of each pair; shape (n,), NaN where it
            says nothing.
        sources: the writers by side; shape (n,) each. Pairs by one writer are left out.
        prompts: shape (n,).
    """
    wins: dict[str, dict[str, list[float]]] = {}
    for chosen, rejected, prompt, value in zip(
        *(sources[side] for side in SIDES), prompts, credit.tolist(), strict=True
    ):
        if chosen != rejected and None not in (chosen, rejected) and math.isfinite(value):
            for writer, share in ((chosen, value), (rejected, 1 - value)):
                wins.setdefault(writer, {}).setdefault(prompt, []).append(share)
    return {
        writer: {prompt: float(np.mean(shares)) for prompt, shares in by_prompt.items()}
        for writer, by_prompt in wins.items()
    }


def resolutions(
    pairs: pa.Table, credits: Mapping[str, np.ndarray], dollars: Mapping[str, float | None]
) -> dict[str, ResolutionFigures]:
    """The resolution of raters, of the longer story and of people, by win rates on the same pairs.

    Args:
        pairs: the pairs; without a `source_column` there are no figures.
        credits: by rater, see `win_rates`.
        dollars: what its verdicts cost, by rater.
    """
    name = source_column(pairs)
    if name is None:
        return {}
    longer = (np.sign(length_differences(pairs)) + 1) / 2
    credits = {**credits, "people": people_preference(pairs), "longer": longer}
    sources = {side: pairs[f"{side}_{name}"].to_pylist() for side in SIDES}
    prompts = connected_prompts(pairs)
    return {
        rater: replace(resolution_of(grades, limit=1.0), dollars=dollars.get(rater))
        for rater, credit in credits.items()
        if len(grades := win_rates(credit, sources, prompts)) > 1
    }


def resolutions_of_grades(
    grades: pa.Table, turns: pa.Table, headline: str
) -> dict[str, ResolutionFigures]:
    """The resolution of the judges of a protocol's run, by their mean grades of an item.

    Beside the judges stand the run's quantities that need none, such as `words`.

    Args:
        grades: grades table.
        turns: turns table, for the price of the judges' answers.
        headline: the quantity of the judges.
    """
    by_rater: dict[str, dict[str, dict[str, list[float]]]] = {}
    for row in grades.to_pylist():
        is_compared = row["rater"] is None or row["quantity"] == headline
        if is_compared and row["grade"] is not None:
            by_writer = by_rater.setdefault(row["rater"] or row["quantity"], {})
            by_prompt = by_writer.setdefault(row["writer"], {})
            by_prompt.setdefault(row["prompt_id"], []).append(row["grade"])
    dollars: dict[str, float | None] = {}
    for role, cost in zip(turns["role"].to_pylist(), turns["cost_usd"].to_pylist(), strict=True):
        total = dollars.setdefault(role, 0.0)
        dollars[role] = None if cost is None or total is None else total + cost
    return {
        rater: replace(
            resolution_of(
                {
                    writer: {prompt: float(np.mean(values)) for prompt, values in items.items()}
                    for writer, items in by_writer.items()
                }
            ),
            dollars=dollars.get(rater),
        )
        for rater, by_writer in by_rater.items()
    }
