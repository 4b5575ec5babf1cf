"""Compare writers by grades: means, judges' offsets, comparisons, agreement and correlations.

A grade is a number for one piece of writing (`litbench.data.records.GRADES`). Grades of one
quantity can be compared, those of two quantities cannot.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from litbench.data.records import connected_rows
from litbench.metrics.comparisons import difference_interval, holm
from litbench.metrics.intervals import (
    ClusteredMean,
    Interval,
    jackknife_interval,
    two_way_interval,
    two_way_mean,
)

_ROUNDING = 1e-9
_Row = TypeVar("_Row")
_Key = TypeVar("_Key")


class GradeCell(NamedTuple):
    """The mean grade of a writer for a prompt by a judge, over samples."""

    writer: str
    prompt: str
    judge: str
    grade: float


@dataclass(frozen=True)
class WriterRow:
    """A line of the leaderboard of writers.

    Attributes:
        grade: mean over all prompts of the grades without the judges' offsets; see
            `additive_grades`. The interval is by prompt; `clusters` are the writer's prompts.
        plain: mean of the grades as they are.
        missing: number of prompts that other writers have grades for and this one has not.
        difference: grade minus that of the reference; None for the reference, and if no prompts
            connect the two.
        p_holm: p value of no difference, after Holm's correction.
        win_rates: by rater, the share of other writers' texts with a lower reward.
        stopped: at how many prompts its run stopped, if it did until decided.
    """

    writer: str
    grade: Interval
    plain: float
    grades: int
    missing: int
    difference: Interval | None
    p_holm: float | None
    win_rates: dict[str, Interval]
    stopped: str = ""


@dataclass(frozen=True)
class Correlation:
    """Correlations of two columns over writers; NaN with fewer than three."""

    first: str
    second: str
    writers: int
    pearson: float
    kendall: float
    spearman: float


def fit_offsets(cells: Sequence[GradeCell]) -> tuple[dict[str, float], bool]:
    """How far each judge grades above the mean of all, by least squares of writer + judge + prompt.

    Also whether the table allows the fit. It does not if, for example, no writer has grades by two
    judges; all offsets are 0 then.
    """
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
    return dict(zip(judges.tolist(), offsets.tolist(), strict=True)), is_connected


def grouped(rows: Iterable[_Row], key: Callable[[_Row], _Key]) -> dict[_Key, list[_Row]]:
    """The rows by key, of keys in the order of their first rows."""
    groups: dict[_Key, list[_Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


def members_of(groups: Sequence[Any]) -> list[list[int]]:
    """The indices of each group's members, of groups in the order of their first members."""
    return list(grouped(range(len(groups)), groups.__getitem__).values())


def means_by_prompt(cells: Sequence[GradeCell]) -> dict[str, dict[str, float]]:
    """Mean grades by writer and prompt, without the judges' offsets."""
    offsets, _ = fit_offsets(cells)
    return {
        writer: {
            prompt: float(np.mean([cell.grade - offsets[cell.judge] for cell in group]))
            for prompt, group in grouped(cells, lambda cell: cell.prompt).items()
        }
        for writer, cells in grouped(cells, lambda cell: cell.writer).items()
    }


def _connected_writers(means: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Groups of writers whom common prompts connect, directly or through other writers."""
    pairs = [(writer, prompt) for writer, by_prompt in means.items() for prompt in by_prompt]
    groups = connected_rows(
        [("writer", [writer for writer, _ in pairs]), ("prompt", [prompt for _, prompt in pairs])]
    )
    of_writer = dict(zip((writer for writer, _ in pairs), groups, strict=True))
    return list(grouped(means, of_writer.__getitem__).values())


def additive_grades(
    means: Mapping[str, Mapping[str, float]], reference: str | None = None
) -> tuple[dict[str, ClusteredMean], dict[str, ClusteredMean]]:
    """Each writer's mean grade over all prompts, by least squares of grade = writer + prompt.

    The fit predicts the grades that a writer lacks, so that a writer that refuses the hard prompts
    gains nothing. Without missing grades it is the mean over prompts. Standard errors are the
    jackknife by prompt, which repeats the fit without each prompt.

    Args:
        means: grades by writer and prompt; common prompts connect all writers.
        reference: writer to compare the others with; nothing is compared if it is not among them.

    Returns:
        By writer the grade, and the difference from the reference. The error is NaN for a writer
        with a single prompt, and for all if a single prompt connects some of them with the others.
    """
    prompts = list(dict.fromkeys(prompt for by_prompt in means.values() for prompt in by_prompt))
    names, column = list(means), {prompt: index for index, prompt in enumerate(prompts)}
    grades = np.zeros((len(prompts), len(names)))
    is_known = np.zeros_like(grades)
    for index, by_prompt in enumerate(means.values()):
        rows = [column[prompt] for prompt in by_prompt]
        grades[rows, index], is_known[rows, index] = list(by_prompt.values()), 1
    whole, without = _fits(grades, is_known)
    sizes = is_known.sum(0)
    errors, gap_errors = np.full((2, len(names)), math.nan)
    base = names.index(reference) if reference in names else None
    if without is not None:
        errors = _jackknife_error(without - whole)
        errors[sizes == 1] = math.nan
        if base is not None:
            gaps = without - without[:, [base]] - (whole - whole[base])
            gap_errors = _jackknife_error(gaps)
            gap_errors[(sizes == 1) | (sizes[base] == 1)] = math.nan

    def estimate(mean: float, error: float, n: float) -> ClusteredMean:
        return ClusteredMean(float(mean), float(error), int(n), int(n), float(n))

    grades_of = {name: estimate(whole[k], errors[k], sizes[k]) for k, name in enumerate(names)}
    if base is None:
        return grades_of, {}
    return grades_of, {
        name: estimate(whole[k] - whole[base], gap_errors[k], min(sizes[k], sizes[base]))
        for k, name in enumerate(names)
        if k != base
    }


def _fits(grades: np.ndarray, is_known: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The writers' grades by least squares of grade = writer + prompt, with and without a prompt.

    Args:
        grades: shape (prompts, writers); 0 where it is missing.
        is_known: 1 for a grade, 0 for a missing one; the same shape.

    Returns:
        The grades, shape (writers,), and those without each prompt, shape (prompts, writers); None
        with a single prompt, or if leaving one out disconnects writers.
    """
    # Differences from the prompt's mean grade leave the writers' normal equations.
    share = is_known / is_known.sum(1, keepdims=True)
    level = (share * grades).sum(1)
    count, width = grades.shape
    normal = is_known[:, :, None] * np.eye(width) - is_known[:, :, None] * share[:, None, :]
    target = is_known * (grades - level[:, None])

    def fit(normal: np.ndarray, target: np.ndarray, level: np.ndarray, share: np.ndarray) -> Any:
        effects = (np.linalg.pinv(normal, hermitian=True) @ target[..., None])[..., 0]
        return effects + (level - (share * effects).sum(-1))[..., None]

    whole = fit(normal.sum(0), target.sum(0), level.mean(), share.mean(0))
    if count == 1:
        return whole, None
    left = normal.sum(0) - normal
    # Writers that have only this prompt drop out of the fit without it.
    dropped = ((is_known > 0) & (is_known.sum(0) == 1)).sum(1)
    rank = np.linalg.matrix_rank(left, hermitian=True)
    if (rank < width - 1 - dropped).any():
        return whole, None
    levels, shares = ((total.sum(0) - total) / (count - 1) for total in (level, share))
    return whole, fit(left, target.sum(0) - target, levels, shares)


def _jackknife_error(deviations: np.ndarray) -> np.ndarray:
    """Standard errors of estimates without each of `count` clusters; shape (count, k) to (k,)."""
    count = len(deviations)
    errors: np.ndarray = np.sqrt((count - 1) / count * np.square(deviations).sum(0))
    # A variance of zero is not exactly zero after rounding.
    return np.where(errors > _ROUNDING, errors, 0.0)


def writer_rows(
    cells: Sequence[GradeCell],
    reference: str | None = None,
    win_rates: Mapping[str, Mapping[str, Interval]] = {},
) -> list[WriterRow]:
    """Return the leaderboard, best first.

    `reference` is the writer that all others are compared with, chosen beforehand; `win_rates` are
    by rater and writer.
    """
    means = means_by_prompt(cells)
    estimates: dict[str, ClusteredMean] = {}
    differences: dict[str, tuple[Interval, float]] = {}
    prompts = {cell.prompt for cell in cells}
    for writers in _connected_writers(means):
        additive, gaps = additive_grades({writer: means[writer] for writer in writers}, reference)
        estimates |= additive
        differences |= {
            writer: difference_interval(gap, limit=math.inf) for writer, gap in gaps.items()
        }
    adjusted = dict(zip(differences, holm([p for _, p in differences.values()]), strict=True))
    rows = []
    for writer, estimate in estimates.items():
        grades = [cell.grade for cell in cells if cell.writer == writer]
        rows.append(
            WriterRow(
                writer,
                difference_interval(estimate, limit=math.inf)[0],
                float(np.mean(grades)),
                len(grades),
                len(prompts) - estimate.clusters,
                differences[writer][0] if writer in differences else None,
                adjusted.get(writer),
                {rater: rates[writer] for rater, rates in win_rates.items() if writer in rates},
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
                credit = float(np.mean(np.heaviside(gaps, 0.5)))
                credits.append((writers[index], credit, prompts[index]))
    return {
        writer: jackknife_interval(
            np.array([credit[1] for credit in group]), [credit[2] for credit in group]
        )
        for writer, group in grouped(credits, lambda credit: credit[0]).items()
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
    first, other = np.array(pairs, dtype=int).reshape(-1, 2).T
    expected, gaps = (
        np.asarray(grades)[first] - np.asarray(grades)[other] for grades in (reference, values)
    )
    is_known = np.abs(expected) > _ROUNDING
    agrees = np.where(np.abs(gaps) <= _ROUNDING, 0.5, (gaps > 0) == (expected > 0))
    both = np.array([(writers[a], writers[b]) for a, b in pairs], dtype=object).reshape(-1, 2)
    return PairCredits(agrees[is_known], np.array(prompts)[first][is_known], both[is_known])


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
    """The agreement of raters with judges, compared with a reference rater, if there is one."""
    compared = {
        (rater, judge): credit.difference(credits[reference, judge])
        for (rater, judge), credit in credits.items()
        if reference is not None and rater != reference
    }
    adjusted = dict(zip(compared, holm([p for _, p in compared.values()]), strict=True))
    return [
        TextAgreement(
            *key,
            credit.interval(),
            compared[key][0] if key in compared else None,
            adjusted.get(key),
        )
        for key, credit in credits.items()
    ]


def correlate(first: str, second: str, columns: Mapping[str, Mapping[str, float]]) -> Correlation:
    """Correlate two columns (by name, then writer) over the writers with both numbers."""
    from scipy import stats  # noqa: PLC0415

    numbers = [
        {writer: number for writer, number in columns[name].items() if math.isfinite(number)}
        for name in (first, second)
    ]
    shared = sorted(numbers[0].keys() & numbers[1].keys())
    x, y = (np.array([numbers[writer] for writer in shared]) for numbers in numbers)
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
    rater: str, reference: str, graded: Sequence[tuple[str, str, float, float]]
) -> tuple[Interval, Correlation]:
    """A rater's agreement with a reference on pairs of texts, and the correlation over writers.

    `graded` has the writer, the prompt, and the grades by reference and rater of each text.
    """
    writers, prompts, expected, values = zip(*graded, strict=True)
    agreement = pair_credits(expected, values, prompts, prompts, writers).interval()
    return agreement, correlate_writers(rater, reference, graded)


def correlate_writers(
    rater: str, reference: str, graded: Sequence[tuple[str, str, float, float]]
) -> Correlation:
    """Correlate the writers' means of `graded`, see `grade_agreement`."""
    by_writer = grouped(graded, lambda row: row[0])
    columns = {
        name: {
            writer: float(np.mean([row[at] for row in rows])) for writer, rows in by_writer.items()
        }
        for at, name in ((2, reference), (3, rater))
    }
    return correlate(rater, reference, columns)


class Inconsistency(NamedTuple):
    """How far weights differ between trials, as means over dimensions.

    Attributes:
        delta: sum over the later trials of the absolute differences to the first one.
        sigma: root of the sum (not the mean) of squared differences to the mean over trials.
        dropped: dimensions that are not in all trials.
    """

    delta: float
    sigma: float
    dropped: int


class LengthCorrelation(NamedTuple):
    """Pearson correlation and least-squares slope of y on x, over n texts.

    `p` is the p value of no correlation between independent texts (Table 6).
    """

    n: int
    pearson: float
    slope: float
    p: float


def negotiation_inconsistency(trials: Sequence[Mapping[str, float]]) -> Inconsistency:
    """Compare the weights of several trials of one plan.

    Args:
        trials: weights by dimension; where a judge names its own dimensions, each sub-score divided
            by the total.

    Returns:
        NaN if no dimension is in all trials, or with fewer than two trials.
    """
    named = {name for trial in trials for name in trial}
    shared = sorted(name for name in named if all(name in trial for trial in trials))
    if not shared or len(trials) < 2:
        return Inconsistency(np.nan, np.nan, len(named) - len(shared))
    weights = np.array([[trial[name] for name in shared] for trial in trials])
    delta = np.abs(weights[1:] - weights[0]).sum(axis=0)
    sigma = np.sqrt(((weights - weights.mean(axis=0)) ** 2).sum(axis=0))
    return Inconsistency(float(delta.mean()), float(sigma.mean()), len(named) - len(shared))


def length_correlation(x: Sequence[float], y: Sequence[float]) -> LengthCorrelation:
    """Correlate two quantities of texts, such as lengths; NaN if one of them does not vary."""
    from scipy.stats import linregress  # noqa: PLC0415

    if len(x) < 2 or min(np.ptp(x), np.ptp(y)) == 0:
        return LengthCorrelation(len(x), np.nan, np.nan, np.nan)
    fit = linregress(x, y)
    return LengthCorrelation(len(x), float(fit.rvalue), float(fit.slope), float(fit.pvalue))


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


def prompt_ranges(cells: Sequence[GradeCell], limit: float | None = None) -> list[PromptRange]:
    """Each writer's range over prompts, by grades without the judges' offsets."""
    ranges = []
    for writer, means in means_by_prompt(cells).items():
        low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        below = None if limit is None else sum(mean < limit for mean in means.values())
        ranges.append(PromptRange(writer, means[low], low, means[high], high, below))
    return ranges
