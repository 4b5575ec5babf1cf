"""Power: how many pairs, prompts or annotators distinguish two raters, or one from chance.

The test is the one that LitBench reports: a cluster jackknife by prompt with a t quantile
(`litbench.metrics.comparisons`), on the logit scale for a single rater
(`litbench.metrics.intervals.jackknife_interval`). Its statistic has approximately a noncentral t
distribution with G* - 1 degrees of freedom. With n pairs, G* effective prompts and a correlation r
of two pairs of one prompt, the variance of a mean over pairs is that of one pair times

    (1 - r) / n + r / G*,

the design effect of clusters of unequal size (Kish, 1965, Survey Sampling). More pairs of the same
prompts never reduce it below r / G*.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from litbench.errors import ConfigError
from litbench.metrics.intervals import clustered_mean, effective_clusters

# `needed` returns None above this number.
_MOST = 10**9
_CHANCE = 0.5


Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """An evaluation of two raters on the same pairs, or of one rater against chance.

    Attributes:
        agreement: agreement of the rater.
        pairs: number of pairs.
        prompts: number of prompts.
        reference: agreement of the other rater; None for one rater.
        disagreement: share of pairs in which the two raters name different stories, or in general
            the mean square of their difference in credit; None if their errors are independent.
        intra_prompt: correlation between two pairs of one prompt: of the difference in credit for
            two raters, of the credit for one rater.
        evenness: effective prompts per prompt; 1 if all prompts have the same number of pairs, see
            `litbench.metrics.intervals.effective_clusters`.
        annotators: number of labels per pair; credit is the mean over them.
        annotator_agreement: how often two annotators prefer the same story of a pair; required for
            more than one annotator.
    """

    agreement: Share
    pairs: int
    prompts: Annotated[int, Field(ge=2)]
    reference: Share | None = None
    disagreement: Share | None = None
    intra_prompt: Annotated[float, Field(ge=0, lt=1)] = 0.0
    evenness: Share = 1.0
    annotators: Annotated[int, Field(ge=1)] = 1
    annotator_agreement: Annotated[float, Field(ge=0.5, le=1)] | None = None

    def __post_init__(self) -> None:
        """Check that the numbers are consistent."""
        if self.prompts > self.pairs:
            raise ConfigError(
                f"{self.prompts} prompts have {self.pairs} pairs: give at least one pair per prompt"
            )
        if self.annotators > 1 and self.annotator_agreement is None:
            raise ConfigError(f"annotators is {self.annotators}: give annotator_agreement too")
        if self.reference is None:
            if self.agreement == 1 or self.disagreement is not None:
                raise ConfigError(
                    "for one rater, give an agreement below 1 and no disagreement, or add a "
                    "reference"
                )
            return
        least = abs(self.agreement - self.reference)
        most = min(self.agreement + self.reference, 2 - self.agreement - self.reference)
        if not least - 1e-9 <= self.square <= most + 1e-9 or not self.square:
            raise ConfigError(
                f"disagreement is {self.disagreement}: for raters with an agreement of "
                f"{self.agreement:g} and {self.reference:g}, give {least:.3f} to {most:.3f}, "
                "above 0"
            )

    @property
    def effective_prompts(self) -> float:
        """The effective number of prompts of equal size."""
        # With one pair per prompt, all prompts have equal size.
        return self.prompts * (1.0 if self.pairs == self.prompts else self.evenness)

    @property
    def square(self) -> float:
        """Mean square of the difference in credit of two raters, with one annotator."""
        assert self.reference is not None
        if self.disagreement is not None:
            return self.disagreement
        p, q = self.agreement, self.reference
        return p * (1 - q) + q * (1 - p)

    def error(self, agreement: np.ndarray | float) -> np.ndarray:
        """Standard error of the agreement, or of the difference of two; shape of `agreement`."""
        value = np.asarray(agreement, dtype=float)
        doubt = 0.0 if self.annotator_agreement is None else 1 - self.annotator_agreement
        # The part of a pair's variance that is due to annotators, and averages out over them.
        if self.reference is None:
            variance = value * (1 - value)
            of_labels = np.minimum(variance, doubt / 2)
        else:
            variance = np.maximum(self.square - (value - self.reference) ** 2, 0.0)
            of_labels = np.minimum(variance, self.square * 2 * doubt)
        of_pair = variance - of_labels * (1 - 1 / self.annotators)
        between = max(0.0, 1 / self.effective_prompts - 1 / self.pairs)
        error: np.ndarray = np.sqrt(of_pair / self.pairs + self.intra_prompt * variance * between)
        return error

    def signal(self, agreement: np.ndarray | float) -> np.ndarray:
        """Noncentrality, the effect over its standard error; shape of `agreement`."""
        from scipy import special  # noqa: PLC0415

        value = np.asarray(agreement, dtype=float)
        if self.reference is None:
            effect = abs(special.logit(value) - special.logit(_CHANCE)) * value * (1 - value)
        else:
            effect = abs(value - self.reference)
        with np.errstate(divide="ignore", invalid="ignore"):
            # 0 without an effect; infinite for an effect without error.
            signal: np.ndarray = np.where(effect > 1e-12, effect / self.error(value), 0.0)
        return signal


def _critical(case: Case, alpha: float) -> tuple[float, float]:
    """The critical value of the test, and its degrees of freedom."""
    from scipy import stats  # noqa: PLC0415

    freedom = max(case.effective_prompts - 1, 1.0)
    return float(stats.t.isf(alpha / 2, freedom)), freedom


def _power_at(signal: float, case: Case, alpha: float) -> float:
    return _t_power(signal, *_critical(case, alpha))


def _t_power(signal: float, critical: float, freedom: float) -> float:
    from scipy import stats  # noqa: PLC0415

    # scipy's noncentral t distribution fails far beyond the critical value.
    if signal > 10 * critical + 100:
        return 1.0
    above = stats.nct.sf(critical, freedom, signal)
    return min(1.0, float(above + stats.nct.cdf(-critical, freedom, signal)))


def power(case: Case, alpha: float = 0.05) -> float:
    """How often the two-sided test at level `alpha` detects the effect; `alpha` without an effect.

    For several comparisons with Holm's correction, use alpha / number of comparisons.
    """
    return _power_at(float(case.signal(case.agreement)), case, alpha)


def needed(
    what: Literal["prompts", "pairs", "annotators"],
    case: Case,
    wanted: float = 0.8,
    alpha: float = 0.05,
) -> int | None:
    """The smallest number of prompts, pairs or annotators with the wanted power, or None.

    For `prompts`, the pairs per prompt stay as in the case. For `pairs`, the prompts stay.
    `annotators` requires a case with `annotator_agreement`.
    """
    if what == "annotators" and case.annotator_agreement is None:
        return None
    each = case.pairs / case.prompts
    least = {"prompts": 2, "pairs": case.prompts, "annotators": 1}[what]

    def reaches(number: int) -> bool:
        changes = {what: number}
        if what == "prompts":
            changes["pairs"] = math.ceil(number * each - 1e-9)
        return power(replace(case, **changes), alpha) >= wanted

    # Power is not monotonic at the minimum: one pair per prompt is even, a few more are not.
    if reaches(least):
        return least
    number = least + bisect.bisect_left(range(least, _MOST), True, key=reaches)
    return None if number >= _MOST else number


def detectable(case: Case, wanted: float = 0.8, alpha: float = 0.05) -> float | None:
    """The smallest difference of two raters, or agreement of one, with the wanted power.

    Accurate to 1e-5. The agreement of the case is ignored; its disagreement is kept. Returns None
    if no difference has the wanted power.
    """
    base = _CHANCE if case.reference is None else case.reference
    # The difference is largest if one rater is right in all pairs on which they disagree.
    most = 1 - 1e-9 if case.reference is None else base + case.square
    values = np.linspace(base, most, 100_001)[1:]
    signals = case.signal(values)
    # On the logit scale, the signal falls again for a very high agreement.
    top = int(np.argmax(signals))
    index = bisect.bisect_left(
        range(top + 1), wanted, key=lambda at: _power_at(float(signals[at]), case, alpha)
    )
    if index > top:
        return None
    return float(values[index] - (0 if case.reference is None else base))


def plan(case: Case, wanted: float = 0.8, alpha: float = 0.05) -> dict[str, float | None]:
    """The power of an evaluation, and the numbers that it would need.

    Returns:
        `power` and `detectable`, as from the functions; `half_width`, half of the expected interval
        at level `alpha`; `prompts_needed`, `pairs_needed` and `annotators_needed`, from `needed`.
    """
    from scipy import special  # noqa: PLC0415

    if not alpha < wanted < 1:
        raise ConfigError(f"power is {wanted}: give a number above alpha ({alpha:g}) and below 1")
    half = _critical(case, alpha)[0] * float(case.error(case.agreement))
    if case.reference is None:
        certain = case.agreement * (1 - case.agreement)
        ends = special.logit(case.agreement) + np.array([-half, half]) / certain
        half = float(np.diff(special.expit(ends))[0]) / 2
    return {
        "power": power(case, alpha),
        "half_width": half,
        "detectable": detectable(case, wanted, alpha),
        "prompts_needed": needed("prompts", case, wanted, alpha),
        "pairs_needed": needed("pairs", case, wanted, alpha),
        "annotators_needed": needed("annotators", case, wanted, alpha),
    }


@dataclass(frozen=True, kw_only=True)
class GradeCase:
    """Two writers whose grades are compared on the same prompts.

    Attributes:
        difference: difference of their grades.
        deviation: standard deviation over prompts of the difference on one prompt.
        prompts: number of prompts.
    """

    difference: Annotated[float, Field(gt=0)]
    deviation: Annotated[float, Field(gt=0)]
    prompts: Annotated[int, Field(ge=2)]


def grade_plan(case: GradeCase, wanted: float = 0.8, alpha: float = 0.05) -> dict[str, Any]:
    """The power of the paired t test over prompts, and what it would need.

    Returns:
        `power`; `detectable`, the difference with the wanted power; `prompts_needed`, None above a
        billion.
    """
    from scipy import stats  # noqa: PLC0415

    def power_of(difference: float, prompts: int) -> float:
        critical = float(stats.t.isf(alpha / 2, prompts - 1))
        signal = difference / case.deviation * math.sqrt(prompts)
        return _t_power(signal, critical, prompts - 1)

    low, high = 0.0, case.deviation
    while power_of(high, case.prompts) < wanted:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power_of(middle, case.prompts) >= wanted else (middle, high)
    needed_prompts = 2 + bisect.bisect_left(
        range(2, _MOST), True, key=lambda prompts: power_of(case.difference, prompts) >= wanted
    )
    return {
        "power": power_of(case.difference, case.prompts),
        "detectable": high,
        "prompts_needed": None if needed_prompts >= _MOST else needed_prompts,
    }


def intra_prompt_correlation(values: np.ndarray, clusters: Sequence[Any] | np.ndarray) -> float:
    """The correlation within prompts that explains the jackknife's standard error of the mean.

    `values` and `clusters` (the prompts) are per pair. The result is at most 1, and below 0 if
    pairs of one prompt are less alike than by chance. It is NaN with one pair in each prompt, with
    fewer than two prompts, or if all values are equal.
    """
    estimate = clustered_mean(values, clusters)
    variance = float(np.var(values)) if len(values) else 0.0
    if variance < 1e-12 or math.isnan(estimate.error) or estimate.n == estimate.clusters:
        return math.nan
    design_effect = estimate.error**2 * estimate.n / variance
    return min(1.0, (design_effect - 1) / (estimate.n / estimate.effective_clusters - 1))


def measure(
    credits: Mapping[str, np.ndarray], reference: str, clusters: Sequence[Any] | np.ndarray
) -> dict[str, Case]:
    """The comparisons of an evaluation as cases, taking the observed effects as the true ones.

    Args:
        credits: by rater, the credit of each pair; shape (n,) each.
        reference: a key of `credits`.
        clusters: prompt of each pair; shape (n,).

    Returns:
        Cases by the names of both raters, without raters that never differ from the reference. An
        unknown or negative correlation within prompts is set to 0.
    """
    _, sizes = np.unique(np.asarray(clusters), return_counts=True)
    evenness = min(1.0, effective_clusters(sizes) / len(sizes))
    base = credits[reference]
    cases = {}
    for name, credit in credits.items():
        square = float(np.mean((credit - base) ** 2))
        # With many ties the mean square may be below the difference, which `Case` does not support.
        if square > 0 and abs(float(np.mean(credit - base))) <= square:
            within = intra_prompt_correlation(credit - base, clusters)
            cases[f"{name} - {reference}"] = Case(
                agreement=float(credit.mean()),
                reference=float(base.mean()),
                disagreement=square,
                intra_prompt=max(0.0, float(np.nan_to_num(within))),
                pairs=int(sizes.sum()),
                prompts=len(sizes),
                evenness=evenness,
            )
    return cases
