"""Power: how many pairs or prompts distinguish two raters, or one rater from chance.

The test is the one that LitBench reports: a cluster jackknife by prompt with a t quantile
(`litbench.metrics.comparisons`), on the logit scale for a single rater
(`litbench.metrics.intervals.jackknife_interval`). Its statistic has approximately a noncentral t
distribution with G - 1 degrees of freedom. With n pairs, G effective prompts and a correlation r
of two pairs of one prompt, the variance of a mean over pairs is that of one pair times

    (1 - r) / n + r / G,

the design effect of clusters of unequal size (Kish, 1965, Survey Sampling). More pairs of the same
prompts never reduce it below r / G.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from litbench.metrics.intervals import (
    Training,
    clustered_mean,
    effective_clusters,
    training_of_difference,
)
from litbench.runs.errors import ConfigError

# `needed` returns None above this number.
_MOST = 10**9

Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """An evaluation of two raters on the same pairs, or of one rater against chance.

    Attributes:
        agreement: agreement of the rater.
        pairs: number of pairs.
        prompts: effective number of prompts, see `litbench.metrics.intervals.effective_clusters`:
            the number of prompts if all have the same number of pairs, otherwise less.
        reference: agreement of the other rater; None for one rater.
        disagreement: share of pairs in which the two raters name different stories, or in general
            the mean square of their difference in credit; None if their errors are independent.
        intra_prompt: correlation between two pairs of one prompt: of the difference in credit for
            two raters, of the credit for one rater.
        annotators: number of labels per pair; credit is the mean over them.
        annotator_agreement: how often two annotators prefer the same story of a pair; required for
            more than one annotator.
    """

    agreement: Share
    pairs: float
    prompts: Annotated[float, Field(ge=2)]
    reference: Share | None = None
    disagreement: Share | None = None
    intra_prompt: Annotated[float, Field(ge=0, lt=1)] = 0.0
    annotators: Annotated[int, Field(ge=1)] = 1
    annotator_agreement: Annotated[float, Field(ge=0.5, le=1)] | None = None

    def __post_init__(self) -> None:
        """Check that the numbers are consistent."""
        # Rounding may put the effective number of prompts a little above the number of pairs.
        if self.prompts > self.pairs * (1 + 1e-9):
            raise ConfigError(
                f"{self.prompts:g} prompts have {self.pairs:g} pairs: give at least one pair per "
                "prompt"
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
    def square(self) -> float:
        """Mean square of the difference in credit of two raters, with one annotator."""
        assert self.reference is not None
        if self.disagreement is not None:
            return self.disagreement
        p, q = self.agreement, self.reference
        return p * (1 - q) + q * (1 - p)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the test."""
        return max(self.prompts - 1, 1.0)

    def error(self, agreement: float) -> float:
        """Standard error of this agreement, or of its difference from the reference."""
        doubt = 0.0 if self.annotator_agreement is None else 1 - self.annotator_agreement
        # The part of a pair's variance that is due to annotators, and averages out over them.
        if self.reference is None:
            variance = agreement * (1 - agreement)
            of_labels = min(variance, doubt / 2)
        else:
            variance = max(self.square - (agreement - self.reference) ** 2, 0.0)
            of_labels = min(variance, self.square * 2 * doubt)
        of_pair = variance - of_labels * (1 - 1 / self.annotators)
        between = max(0.0, 1 / self.prompts - 1 / self.pairs)
        return math.sqrt(of_pair / self.pairs + self.intra_prompt * variance * between)

    def effect(self, agreement: float) -> float:
        """The effect of this agreement, in units of `error`."""
        if self.reference is not None:
            return abs(agreement - self.reference)
        # The logit and its derivative.
        share = agreement * (1 - agreement)
        return abs(math.log(agreement / (1 - agreement))) * share if share else 0.0


def t_power(signal: float, freedom: float, alpha: float) -> float:
    """Power of a two-sided t test at level `alpha`, with the noncentrality `signal`."""
    from scipy import stats  # noqa: PLC0415

    critical = float(stats.t.isf(alpha / 2, freedom))
    # scipy's noncentral t distribution fails far beyond the critical value.
    if signal > 10 * critical + 100:
        return 1.0
    above = stats.nct.sf(critical, freedom, signal)
    return min(1.0, float(above + stats.nct.cdf(-critical, freedom, signal)))


def needed_signal(wanted: float, freedom: float, alpha: float) -> float:
    """The noncentrality at which `t_power` has the wanted power.

    Raises:
        ConfigError: the power is not between `alpha` and 1.
    """
    from scipy import optimize, stats  # noqa: PLC0415

    if not alpha < wanted < 1:
        raise ConfigError(f"power is {wanted}: give a number above alpha ({alpha:g}) and below 1")
    most = 10 * float(stats.t.isf(alpha / 2, freedom)) + 101
    root = optimize.brentq(lambda signal: t_power(signal, freedom, alpha) - wanted, 0.0, most)
    return float(root)


def power(case: Case, alpha: float = 0.05) -> float:
    """How often the two-sided test at level `alpha` detects the effect; `alpha` without an effect.

    For several comparisons with Holm's correction, use alpha / number of comparisons.
    """
    effect, error = case.effect(case.agreement), case.error(case.agreement)
    if effect <= 1e-12:
        return alpha
    return t_power(effect / error if error else math.inf, case.freedom, alpha)


def needed(
    what: Literal["prompts", "pairs"], case: Case, wanted: float = 0.8, alpha: float = 0.05
) -> int | None:
    """The smallest number of effective prompts, or of pairs, with the wanted power, or None.

    For `prompts`, the pairs per prompt stay as in the case. For `pairs`, the prompts stay.
    """
    from scipy import optimize  # noqa: PLC0415

    each = case.pairs / case.prompts
    least = 2.0 if what == "prompts" else case.prompts

    def lacking(logarithm: float) -> float:
        number = math.exp(logarithm)
        prompts, pairs = (number, number * each) if what == "prompts" else (case.prompts, number)
        return power(replace(case, prompts=prompts, pairs=pairs), alpha) - wanted

    # On a logarithmic scale the root is found in fewer steps.
    ends = math.log(least), math.log(_MOST)
    if lacking(ends[0]) >= 0:
        return math.ceil(least - 1e-9)
    if lacking(ends[1]) < 0:
        return None
    return math.ceil(math.exp(optimize.brentq(lacking, *ends, xtol=1e-13)) - 1e-7)


def detectable(case: Case, wanted: float = 0.8, alpha: float = 0.05) -> float | None:
    """The smallest difference of two raters, or agreement of one, with the wanted power.

    The agreement of the case is ignored; its disagreement is kept. Returns None if no difference
    has the wanted power.
    """
    from scipy import optimize  # noqa: PLC0415

    signal = needed_signal(wanted, case.freedom, alpha)

    def beyond(value: float) -> float:
        return case.effect(value) - signal * case.error(value)

    if case.reference is None:
        # On the logit scale, the signal falls again for a very high agreement.
        minimum = optimize.minimize_scalar(
            lambda value: -case.effect(value) / case.error(value), bounds=(0.5, 1), method="bounded"
        )
        base, most = 0.5, float(minimum.x)
    else:
        # The difference is largest if one rater is right in all pairs on which they disagree.
        base, most = case.reference, case.reference + case.square
    if beyond(most) < 0:
        return None
    return float(optimize.brentq(beyond, base, most)) - (base if case.reference else 0.0)


def plan(case: Case, wanted: float = 0.8, alpha: float = 0.05) -> dict[str, float | None]:
    """The power of an evaluation, and the numbers that it would need.

    Returns:
        `power` and `detectable`, as from the functions; `half_width`, half of the expected interval
        at level `alpha`; `prompts_needed` and `pairs_needed`, from `needed`.
    """
    from scipy import special, stats  # noqa: PLC0415

    half = float(stats.t.isf(alpha / 2, case.freedom)) * case.error(case.agreement)
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
    }


def intra_prompt_correlation(
    values: np.ndarray, clusters: Sequence[Any] | np.ndarray, training: Training | None = None
) -> float:
    """The correlation within prompts that explains the jackknife's standard error of the mean.

    `values` and `clusters` (the prompts) are per pair. The result is at most 1, and below 0 if
    pairs of one prompt are less alike than by chance. It is NaN with one pair in each prompt, with
    fewer than two prompts, or if all values are equal. For `training` see `clustered_mean`.
    """
    estimate = clustered_mean(values, clusters, training)
    variance = float(np.var(values)) if len(values) else 0.0
    if variance < 1e-12 or math.isnan(estimate.error) or estimate.n == estimate.clusters:
        return math.nan
    design_effect = estimate.error**2 * estimate.n / variance
    return min(1.0, (design_effect - 1) / (estimate.n / estimate.effective_clusters - 1))


def measure(
    credits: Mapping[str, np.ndarray],
    reference: str,
    clusters: Sequence[Any] | np.ndarray,
    trainings: Mapping[str, Training | None] = MappingProxyType({}),
) -> dict[str, Case]:
    """The comparisons of an evaluation as cases, taking the observed effects as the true ones.

    Args:
        credits: by rater, the credit of each pair; shape (n,) each.
        reference: a key of `credits`; if its credit of every pair is 1/2, it is chance, and the
            cases are those of one rater.
        clusters: prompt of each pair; shape (n,).
        trainings: by rater, the training of its credits; raters without one are fixed.

    Returns:
        Cases by the names of both raters, without raters that never differ from the reference. An
        unknown or negative correlation within prompts is set to 0.
    """
    _, sizes = np.unique(np.asarray(clusters), return_counts=True)
    base = credits[reference]
    is_chance = bool((base == 0.5).all())
    cases = {}
    for name, credit in credits.items():
        mean, square = float(credit.mean()), float(np.mean((credit - base) ** 2))
        # With many ties the mean square may be below the difference, which `Case` does not support.
        is_possible = mean < 1 if is_chance else abs(float(np.mean(credit - base))) <= square
        if square > 0 and is_possible:
            training = training_of_difference(trainings.get(name), trainings.get(reference))
            within = intra_prompt_correlation(credit - base, clusters, training)
            cases[f"{name} - {reference}"] = Case(
                agreement=mean,
                reference=None if is_chance else float(base.mean()),
                disagreement=None if is_chance else square,
                intra_prompt=max(0.0, float(np.nan_to_num(within))),
                pairs=int(sizes.sum()),
                prompts=effective_clusters(sizes),
            )
    return cases
