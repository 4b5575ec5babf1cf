"""Compare writers by grades: means, judges' offsets, comparisons, agreement and correlations.

A grade is a number for one piece of writing (`litbench.records.GRADES`). Grades of one quantity can
be compared, those of two quantities cannot.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from litbench.metrics.comparisons import difference_interval, holm
from litbench.metrics.intervals import (
    Interval,
    clustered_mean,
    jackknife_interval,
    mean_interval,
    two_way_interval,
    two_way_mean,
)

_ROUNDING = 1e-9
_Row = TypeVar("_Row")
_Key = TypeVar("_Key")


class Cell(NamedTuple):
    """The mean grade of a writer for a prompt by a judge, over samples."""

    writer: str
    prompt: str
    judge: str
    grade: float


@dataclass(frozen=True)
class AdditiveFit:
    """Least squares fit of grade = writer + judge + prompt.

    Attributes:
        judges: by judge, how far it grades above the mean of all judges.
        is_connected: whether the table allows the fit; if not, all offsets are 0. It does not if,
            for example, no writer has grades by two judges.
    """

    judges: dict[str, float]
    is_connected: bool


@dataclass(frozen=True)
class WriterRow:
    """A line of the leaderboard of writers.

    Attributes:
        grade: mean over prompts of the grades without the judges' offsets; interval by prompt.
        plain: mean of the grades as they are.
        grades: number of grades.
        difference: grade minus that of the reference on the same prompts; None for the reference.
        p_holm: p value of no difference, after Holm's correction.
        win_rates: by rater, the share of other writers' texts with a lower reward.
    """

    writer: str
    grade: Interval
    plain: float
    grades: int
    difference: Interval | None
    p_holm: float | None
    win_rates: dict[str, Interval]


@dataclass(frozen=True)
class Correlation:
    """Correlations of two columns over writers; NaN with fewer than three."""

    first: str
    second: str
    writers: int
    pearson: float
    kendall: float
    spearman: float


@dataclass(frozen=True)
class GradeAgreement:
    """How far a rater agrees with the grades of another one, on single texts and on writers.

    Attributes:
        agreement: share of pairs of texts for the same prompt that it orders as the reference does,
            of those that the reference grades differently; a tie counts one half; clustered by
            prompt and writer.
        systems: correlations of the writers' means.
        texts: number of texts.
    """

    rater: str
    reference: str
    quantity: str
    agreement: Interval
    systems: Correlation
    texts: int


def fit_offsets(cells: Sequence[Cell]) -> AdditiveFit:
    """Fit writer, judge and prompt effects; effects of judges and of prompts have mean 0."""
    from sklearn.preprocessing import OneHotEncoder  # noqa: PLC0415

    encoder = OneHotEncoder()
    # Sparse: a dense matrix of a thousand prompts would take hundreds of megabytes.
    design = encoder.fit_transform([(cell.writer, cell.prompt, cell.judge) for cell in cells])
    writers, _, judges = encoder.categories_
    # The normal equations, with two constraints that make prompts and judges sum to 0.
    normal = (design.T @ design).toarray()
    normal[len(writers) : -len(judges), len(writers) : -len(judges)] += 1
    normal[-len(judges) :, -len(judges) :] += 1
    grades = np.array([cell.grade for cell in cells])
    effects, _, rank, _ = np.linalg.lstsq(normal, design.T @ grades, rcond=None)
    is_connected = bool(rank == len(normal))
    offsets = effects[-len(judges) :] if is_connected else np.zeros(len(judges))
    return AdditiveFit(dict(zip(judges.tolist(), offsets.tolist(), strict=True)), is_connected)


def grouped(rows: Iterable[_Row], key: Callable[[_Row], _Key]) -> dict[_Key, list[_Row]]:
    """The rows by key, of keys in the order of their first rows."""
    groups: dict[_Key, list[_Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


def members_of(groups: Sequence[Any]) -> list[list[int]]:
    """The indices of each group's members, of groups in the order of their first members."""
    return list(grouped(range(len(groups)), groups.__getitem__).values())


def means_by_prompt(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """Mean grades by writer and prompt, without the judges' offsets."""
    offsets = fit_offsets(cells).judges
    return {
        writer: {
            prompt: float(np.mean([cell.grade - offsets[cell.judge] for cell in of]))
            for prompt, of in grouped(own, lambda cell: cell.prompt).items()
        }
        for writer, own in grouped(cells, lambda cell: cell.writer).items()
    }


def writer_rows(
    cells: Sequence[Cell],
    reference: str | None = None,
    win_rates: Mapping[str, Mapping[str, Interval]] = {},
) -> list[WriterRow]:
    """Return the leaderboard, best first.

    Args:
        cells: the grades of one quantity.
        reference: the writer that all others are compared with, chosen beforehand.
        win_rates: by rater and writer, see the function `win_rates`.
    """
    means = means_by_prompt(cells)
    expected = {} if reference is None else means[reference]
    differences: dict[str, tuple[Interval, float]] = {}
    for writer, of_prompt in means.items():
        shared = [prompt for prompt in of_prompt if prompt in expected]
        if writer != reference and shared:
            gaps = np.array([of_prompt[prompt] - expected[prompt] for prompt in shared])
            estimate = clustered_mean(gaps, shared)
            differences[writer] = difference_interval(estimate, limit=math.inf)
    adjusted = dict(zip(differences, holm([p for _, p in differences.values()]), strict=True))
    rows = []
    for writer, of_prompt in means.items():
        own = [cell.grade for cell in cells if cell.writer == writer]
        rows.append(
            WriterRow(
                writer,
                mean_interval(np.array(list(of_prompt.values())), list(of_prompt)),
                float(np.mean(own)),
                len(own),
                differences[writer][0] if writer in differences else None,
                adjusted.get(writer),
                {rater: of[writer] for rater, of in win_rates.items() if writer in of},
            )
        )
    return sorted(rows, key=lambda row: -row.grade.mean)


def win_rates(
    rewards: Sequence[float],
    writers: Sequence[str],
    groups: Sequence[Any],
    prompts: Sequence[str],
) -> dict[str, Interval]:
    """By writer, the share of other writers' texts of the same group that have a lower reward.

    A tie counts one half. All arguments have shape (texts,).

    Args:
        rewards: the rewards of a rater.
        writers: who wrote each text.
        groups: texts of one group are compared, such as those for the same prompt and step.
        prompts: clusters of the intervals.
    """
    credits = []
    for indices in members_of(groups):
        for index in indices:
            others = [other for other in indices if writers[other] != writers[index]]
            if others:
                gaps = rewards[index] - np.array([rewards[other] for other in others])
                credit = float(np.mean((gaps > 0) + 0.5 * (gaps == 0)))
                credits.append((writers[index], credit, prompts[index]))
    return {
        writer: jackknife_interval(np.array([one[1] for one in own]), [one[2] for one in own])
        for writer, own in grouped(credits, lambda one: one[0]).items()
    }


class PairCredits(NamedTuple):
    """Credits of a grading for pairs of texts, and what the pairs share.

    Attributes:
        credits: 1 where it orders the pair as the reference does, 1/2 for a tie; shape (pairs,).
        prompts: shape (pairs,).
        writers: both writers of each pair; shape (pairs, 2).
    """

    credits: np.ndarray
    prompts: np.ndarray
    writers: np.ndarray

    def interval(self) -> Interval:
        """The mean, clustered by prompt and by writer, since most pairs share writers."""
        return two_way_interval(*self)

    def difference(self, other: "PairCredits") -> tuple[Interval, float]:
        """The mean paired difference from another grading of the same pairs, and its p value."""
        paired = self.credits - other.credits
        return difference_interval(two_way_mean(paired, self.prompts, self.writers))


def pair_credits(
    reference: Sequence[float],
    values: Sequence[float],
    groups: Sequence[Any],
    prompts: Sequence[str],
    writers: Sequence[str],
) -> PairCredits:
    """Compare two gradings of the same texts, on all pairs within a group.

    Pairs that the reference grades equally are left out. All arguments have shape (texts,).
    """
    pairs = [pair for indices in members_of(groups) for pair in itertools.combinations(indices, 2)]
    one, other = np.array(pairs, dtype=int).reshape(-1, 2).T
    expected, own = (np.asarray(of)[one] - np.asarray(of)[other] for of in (reference, values))
    is_known = np.abs(expected) > _ROUNDING
    agrees = np.where(np.abs(own) <= _ROUNDING, 0.5, (own > 0) == (expected > 0))
    both = np.array([(writers[a], writers[b]) for a, b in pairs], dtype=object).reshape(-1, 2)
    return PairCredits(agrees[is_known], np.array(prompts)[one][is_known], both[is_known])


@dataclass(frozen=True)
class TextAgreement:
    """How far a rater orders single texts as a judge does.

    Attributes:
        difference: agreement minus that of the longer text on the same pairs; None for the longer
            text itself, and if it was not asked.
        p_holm: p value of no difference, after Holm's correction for all raters and judges.
    """

    rater: str
    judge: str
    agreement: Interval
    difference: Interval | None = None
    p_holm: float | None = None


def text_agreements(
    credits: Mapping[tuple[str, str], PairCredits], reference: str | None
) -> list[TextAgreement]:
    """The agreement of raters with judges, compared with a reference.

    Args:
        credits: by rater and judge.
        reference: the rater that all others are compared with; None for no comparison.
    """
    compared = {
        (rater, judge): of.difference(credits[reference, judge])
        for (rater, judge), of in credits.items()
        if reference is not None and rater != reference
    }
    adjusted = dict(zip(compared, holm([p for _, p in compared.values()]), strict=True))
    return [
        TextAgreement(
            *key, of.interval(), compared[key][0] if key in compared else None, adjusted.get(key)
        )
        for key, of in credits.items()
    ]


def correlate(first: str, second: str, columns: Mapping[str, Mapping[str, float]]) -> Correlation:
    """Correlate two columns (by name, then writer) over the writers with both numbers."""
    from scipy import stats  # noqa: PLC0415

    known = [
        {writer: number for writer, number in columns[name].items() if math.isfinite(number)}
        for name in (first, second)
    ]
    shared = sorted(known[0].keys() & known[1].keys())
    x, y = (np.array([numbers[writer] for writer in shared]) for numbers in known)
    # A column whose values differ only by rounding has no order.
    if len(shared) < 3 or min(np.ptp(x), np.ptp(y)) <= _ROUNDING:
        return Correlation(first, second, len(shared), math.nan, math.nan, math.nan)
    x, y = x.round(9), y.round(9)
    return Correlation(
        first,
        second,
        len(shared),
        float(stats.pearsonr(x, y).statistic),
        float(stats.kendalltau(x, y).statistic),
        float(stats.spearmanr(x, y).statistic),
    )


def grade_agreement(
    rater: str,
    reference: str,
    quantity: str,
    graded: Sequence[tuple[str, str, Any, float, float]],
) -> GradeAgreement:
    """Compare a rater with a reference on the texts that both graded.

    Args:
        rater: name of the rater.
        reference: name of the reference, such as people.
        quantity: what was graded.
        graded: (writer, prompt, group, grade of the reference, grade of the rater) per text.
    """
    writers, prompts, groups, expected, values = zip(*graded, strict=True)
    columns: dict[str, dict[str, float]] = {rater: {}, reference: {}}
    for indices in members_of(writers):
        writer = writers[indices[0]]
        columns[rater][writer] = float(np.mean([values[index] for index in indices]))
        columns[reference][writer] = float(np.mean([expected[index] for index in indices]))
    return GradeAgreement(
        rater,
        reference,
        quantity,
        pair_credits(expected, values, groups, prompts, writers).interval(),
        correlate(rater, reference, columns),
        len(graded),
    )


@dataclass(frozen=True)
class PromptRange:
    """The lowest and the highest mean grade of a writer, and their prompts.

    `collapsed` counts the prompts below the limit given; None without a limit.
    """

    writer: str
    low: float
    lowest: str
    high: float
    highest: str
    collapsed: int | None


def prompt_ranges(cells: Sequence[Cell], limit: float | None = None) -> list[PromptRange]:
    """Each writer's range over prompts, by grades without the judges' offsets."""
    ranges = []
    for writer, means in means_by_prompt(cells).items():
        low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        below = None if limit is None else sum(mean < limit for mean in means.values())
        ranges.append(PromptRange(writer, means[low], low, means[high], high, below))
    return ranges
