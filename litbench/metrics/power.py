"""Power: how many pairs and prompts it takes to tell two raters apart, or one from chance.

The test is the one that LitBench reports: a cluster jackknife by prompt with a t quantile of
effective prompts - 1 degrees of freedom (`litbench.metrics.comparisons`), for one rater on the
logit scale (`litbench.metrics.intervals.jackknife_interval`). Its statistic has, nearly, a
noncentral t distribution, whose noncentrality is the effect over its standard error. With n pairs,
G* effective prompts and a correlation r of two pairs of one prompt, the variance of a mean over
pairs is that of one pair times

    1 / n * (1 + (n / G* - 1) * r) = (1 - r) / n + r / G*,

the design effect of clusters of unequal size (Kish, 1965, Survey Sampling; Kerry and Bland,
2001, Unequal cluster sizes for trials in English and Welsh general practice): more pairs of the
same prompts never bring it below r / G*.
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from litbench.errors import ConfigError
from litbench.metrics.comparisons import holm, paired_difference
from litbench.metrics.intervals import (
    Interval,
    clustered_mean,
    effective_clusters,
    jackknife_interval,
)
from litbench.metrics.leaderboard import csv_cell
from litbench.text import clean_name

# Where more are needed, none will do.
_MOST = 10**9


@dataclass(frozen=True, kw_only=True)
class Design:
    """The prompts and pairs of an evaluation.

    Attributes:
        prompts: how many.
        pairs_per_prompt: their mean.
        evenness: effective prompts for each prompt, above 0 and up to 1, which is the same number
            of pairs in each; see `litbench.metrics.intervals.effective_clusters`.
    """

    prompts: int
    pairs_per_prompt: float
    evenness: float = 1.0

    def __post_init__(self) -> None:
        if self.prompts < 2:
            raise ConfigError(f"prompts is {self.prompts}: a difference needs 2 or more to be told")
        if not 1 <= self.pairs_per_prompt < math.inf:
            raise ConfigError(
                f"{self.pairs_per_prompt:g} pairs a prompt: give 1 or more, and no more prompts "
                "than pairs"
            )
        if not 0 < self.evenness <= 1:
            raise ConfigError(f"evenness is {self.evenness}: give a number above 0 and up to 1")
        if self.pairs_per_prompt == 1 and self.evenness < 1:
            raise ConfigError(
                f"evenness is {self.evenness} with one pair in each prompt: these are even, give 1"
            )

    @classmethod
    def of(cls, clusters: Sequence[Any] | np.ndarray) -> "Design":
        """The design of real pairs.

        Args:
            clusters: the prompt of each pair; shape (n,).
        """
        _, sizes = np.unique(np.asarray(clusters), return_counts=True)
        # Rounding must not make even prompts uneven.
        evenness = min(1.0, round(effective_clusters(sizes) / max(len(sizes), 1), 12)) or 1.0
        return cls(
            prompts=len(sizes),
            pairs_per_prompt=float(sizes.sum() / max(len(sizes), 1)),
            evenness=evenness,
        )

    @property
    def pairs(self) -> int:
        """Pairs, rounded up."""
        return math.ceil(self.prompts * self.pairs_per_prompt - 1e-9)

    @property
    def effective_prompts(self) -> float:
        """How many prompts of equal size these are worth."""
        return self.prompts * self.evenness

    def with_pairs_per_prompt(self, pairs: float) -> "Design":
        """As many prompts, just as even, with other numbers of pairs; with one each, even."""
        evenness = 1.0 if pairs == 1 else self.evenness
        return replace(self, pairs_per_prompt=pairs, evenness=evenness)

    def design_effect(self, intra_prompt: float) -> float:
        """How many times the variance of as many independent pairs a mean over these has."""
        return 1 + (self.pairs_per_prompt / self.evenness - 1) * intra_prompt

    def independent_pairs(self, intra_prompt: float) -> float:
        """How many independent pairs these are worth."""
        return self.prompts * self.pairs_per_prompt / self.design_effect(intra_prompt)

    def sizes(self) -> np.ndarray:
        """Pairs per prompt that add up to `pairs`, about as even as asked; shape (prompts,).

        Where uneven, they fall with a power of their rank, one the least.
        """
        from scipy import optimize  # noqa: PLC0415

        ranks = np.arange(1, self.prompts + 1)
        spare = self.pairs - self.prompts

        def spread(exponent: float) -> np.ndarray:
            upto = np.cumsum(ranks**-exponent)
            found: np.ndarray = np.diff(np.round(spare * upto / upto[-1]), prepend=0).astype(int)
            return 1 + found

        def excess(exponent: float) -> float:
            return effective_clusters(spread(exponent)) - self.effective_prompts

        if excess(0.0) <= 0:
            return spread(0.0)
        if excess(20.0) > 0:
            raise ConfigError(
                f"evenness is {self.evenness}: {self.pairs} pairs cannot lie so unevenly in "
                f"{self.prompts} prompts; give a larger one"
            )
        return spread(float(optimize.bisect(excess, 0.0, 20.0, xtol=1e-4)))


def _check_share(name: str, value: float, *, open_ends: bool = False) -> None:
    if not (0 < value < 1 if open_ends else 0 <= value <= 1):
        between = "above 0 and below 1" if open_ends else "from 0 to 1"
        raise ConfigError(f"{name} is {value}: give a number {between}")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two raters on the same pairs.

    Attributes:
        difference: agreement of one minus that of the other.
        disagreement: mean square of the paired difference of credit; where both name a story in
            every pair, the share of pairs in which they name different ones.
        intra_prompt: correlation of the paired difference of two pairs of one prompt, from 0.
    """

    difference: float
    disagreement: float
    intra_prompt: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.disagreement <= 1:
            raise ConfigError(
                f"disagreement is {self.disagreement}: give the share of pairs in which the two "
                "raters name different stories, above 0 and up to 1"
            )
        # Shares taken from rounded agreements may miss each other in the last digits.
        if not abs(self.difference) <= self.disagreement + 1e-9:
            raise ConfigError(
                f"difference is {self.difference} and disagreement {self.disagreement}: raters "
                "cannot differ by more than the share of pairs in which they disagree"
            )
        _check_share("intra_prompt", self.intra_prompt)

    @classmethod
    def of_raters(
        cls,
        agreement: float,
        reference: float,
        *,
        disagreement: float | None = None,
        correlation: float | None = None,
        intra_prompt: float = 0.0,
    ) -> "Difference":
        """From the agreement of both and how far they are right on the same pairs.

        Args:
            agreement: of the one.
            reference: of the other.
            disagreement: share of pairs in which they name different stories; or
            correlation: of whether they are right (phi); 0 where they err independently.
            intra_prompt: see the class.

        Raises:
            ConfigError: no two raters can be so.
        """
        for name, value in (("agreement", agreement), ("reference", reference)):
            _check_share(name, value, open_ends=True)
        if (disagreement is None) == (correlation is None):
            raise ConfigError("disagreement or correlation of the two raters: give one of them")
        least = abs(agreement - reference)
        most = min(agreement + reference, 2 - agreement - reference)
        spread = 2 * math.sqrt(agreement * (1 - agreement) * reference * (1 - reference))
        independent = agreement * (1 - reference) + reference * (1 - agreement)
        if correlation is not None:
            disagreement = independent - spread * correlation
        assert disagreement is not None
        if not least - 1e-9 <= disagreement <= most + 1e-9:
            given = f"disagreement is {disagreement}"
            bounds = f"{least:.3f} to {most:.3f}"
            if correlation is not None:
                given = f"correlation is {correlation}"
                bounds = (
                    f"{(independent - most) / spread:.3f} to {(independent - least) / spread:.3f}"
                )
            raise ConfigError(
                f"{given}: raters that agree in {agreement:g} and {reference:g} can have {bounds}"
            )
        return cls(
            difference=agreement - reference, disagreement=disagreement, intra_prompt=intra_prompt
        )

    @property
    def value(self) -> float:
        """The difference."""
        return self.difference

    @property
    def span(self) -> tuple[float, float]:
        """None, and the one where all disagreement is on one side."""
        return 0.0, self.disagreement

    def at(self, value: float) -> "Difference":
        """Another difference of raters that disagree as often."""
        return replace(self, difference=value)

    def noncentrality(self, independent_pairs: float) -> float:
        """The difference over its standard error."""
        variance = self.disagreement - self.difference**2
        # All pairs are won by one rater: there is no error left.
        if variance < 1e-12:
            return math.inf
        return abs(self.difference) * math.sqrt(independent_pairs / variance)


@dataclass(frozen=True, kw_only=True)
class Lead:
    """One rater, whose interval is to leave out a number, such as chance.

    Attributes:
        agreement: of the rater.
        against: the number.
        intra_prompt: correlation of the credit of two pairs of one prompt, from 0.
        spread: variance of a pair's credit for each agreement * (1 - agreement); 1 for a rater
            that is right or wrong in every pair, less with ties.
    """

    agreement: float
    against: float = 0.5
    intra_prompt: float = 0.0
    spread: float = 1.0

    def __post_init__(self) -> None:
        _check_share("agreement", self.agreement, open_ends=True)
        _check_share("against", self.against, open_ends=True)
        _check_share("intra_prompt", self.intra_prompt)
        if not 0 < self.spread <= 1 + 1e-9:
            raise ConfigError(f"spread is {self.spread}: give a number above 0 and up to 1")

    @property
    def value(self) -> float:
        """The agreement."""
        return self.agreement

    @property
    def span(self) -> tuple[float, float]:
        """Nothing, and the agreement above it that is told with the fewest pairs.

        Above that the interval on the logit scale grows faster than the lead.
        """
        from scipy import optimize  # noqa: PLC0415

        found = optimize.minimize_scalar(
            lambda value: -self.at(value).noncentrality(1.0),
            bounds=(self.against, 1 - 1e-9),
            method="bounded",
        )
        return self.against, float(found.x)

    def at(self, value: float) -> "Lead":
        """Another agreement."""
        return replace(self, agreement=value)

    def noncentrality(self, independent_pairs: float) -> float:
        """The lead in log-odds over its standard error."""
        from scipy import special  # noqa: PLC0415

        lead = abs(float(special.logit(self.agreement) - special.logit(self.against)))
        return lead / self._error(independent_pairs)

    def _error(self, independent_pairs: float) -> float:
        """Standard error of the log-odds."""
        certain = self.agreement * (1 - self.agreement)
        return math.sqrt(self.spread / (certain * independent_pairs))

    def expected_interval(self, design: Design, alpha: float = 0.05) -> tuple[float, float]:
        """The interval that a rater gets which agrees in just this share."""
        from scipy import special  # noqa: PLC0415

        error = self._error(design.independent_pairs(self.intra_prompt))
        half = _reach(design.effective_prompts, alpha) * error
        low, high = special.expit(special.logit(self.agreement) + np.array([-half, half]))
        return float(low), float(high)


# What a test is to find.
Effect = Difference | Lead


def corrected_alpha(alpha: float, comparisons: int) -> float:
    """The level that the first of several comparisons must meet by Holm's rule: the worst case.

    Raises:
        ConfigError: alpha is no level, or there is no comparison.
    """
    _check_share("alpha", alpha, open_ends=True)
    if comparisons < 1:
        raise ConfigError(f"comparisons is {comparisons}: give 1 or more")
    return alpha / comparisons


def _reach(effective_prompts: float, alpha: float) -> float:
    """Standard errors to each bound."""
    from scipy import stats  # noqa: PLC0415

    return float(stats.t.isf(alpha / 2, max(effective_prompts - 1, 1.0)))


def _power(noncentrality: float, effective_prompts: float, alpha: float) -> float:
    from scipy import stats  # noqa: PLC0415

    freedom = max(effective_prompts - 1, 1.0)
    reach = _reach(effective_prompts, alpha)
    if noncentrality == math.inf:
        return 1.0
    above = float(stats.nct.sf(reach, freedom, noncentrality))
    below = float(stats.nct.cdf(-reach, freedom, noncentrality))
    return min(1.0, above + below)


def power(effect: Effect, design: Design, alpha: float = 0.05) -> float:
    """How often the two-sided test finds the effect; `alpha` where there is none.

    Args:
        effect: a Difference or a Lead.
        design: of the evaluation.
        alpha: level of this one test, see `corrected_alpha`.
    """
    signal = effect.noncentrality(design.independent_pairs(effect.intra_prompt))
    return _power(signal, design.effective_prompts, alpha)


def _check_power(wanted: float, alpha: float) -> None:
    if not alpha < wanted < 1:
        raise ConfigError(f"power is {wanted}: give a number above alpha ({alpha:g}) and below 1")


def _first(reaches: Callable[[int], bool], least: int) -> int | None:
    """The least whole number from `least` for which it holds; None where there is none.

    Args:
        reaches: holds for every number above one for which it holds.
        least: where to begin.
    """
    high = least
    while not reaches(high):
        if high >= _MOST:
            return None
        high *= 2
    low = max(least - 1, high // 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def prompts_needed(
    effect: Effect, design: Design, wanted: float = 0.8, alpha: float = 0.05
) -> int | None:
    """Prompts with as many pairs each, just as even, that find the effect so often.

    Args:
        effect: a Difference or a Lead.
        design: its number of prompts does not matter.
        wanted: power.
        alpha: see `power`.

    Returns:
        At least 2; None where a thousand million do not suffice, as without an effect.
    """
    _check_power(wanted, alpha)
    return _first(
        lambda prompts: power(effect, replace(design, prompts=prompts), alpha) >= wanted, 2
    )


def pairs_needed(
    effect: Effect, design: Design, wanted: float = 0.8, alpha: float = 0.05
) -> int | None:
    """Pairs, all of as many prompts as there are, that find the effect so often.

    Args:
        effect: a Difference or a Lead.
        design: its number of pairs does not matter.
        wanted: power.
        alpha: see `power`.

    Returns:
        At least one pair a prompt; None where no number suffices: pairs of one prompt that are
        alike do not stand for other prompts.
    """
    _check_power(wanted, alpha)

    def reaches(pairs: int) -> bool:
        each = pairs / design.prompts
        return power(effect, design.with_pairs_per_prompt(each), alpha) >= wanted

    return _first(reaches, design.prompts)


def detectable(
    effect: Effect, design: Design, wanted: float = 0.8, alpha: float = 0.05
) -> float | None:
    """The smallest value that is found so often: a difference, or an agreement above the number.

    Args:
        effect: a Difference, whose disagreement is kept, or a Lead; its own value does not matter.
        design: of the evaluation.
        wanted: power.
        alpha: see `power`.

    Returns:
        None where none is: raters that disagree so seldom cannot be told apart by these pairs,
        even if all of their disagreement is on one side.
    """
    _check_power(wanted, alpha)
    low, high = effect.span
    if power(effect.at(high), design, alpha) < wanted:
        return None
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (
            (low, middle) if power(effect.at(middle), design, alpha) >= wanted else (middle, high)
        )
    return high


def draw_kinds(
    shares: Sequence[float], correlation: float, sizes: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Draw a kind for each pair; prompts differ in their shares by a Dirichlet distribution.

    So two pairs of one prompt have this correlation in any number that is given to kinds.

    Args:
        shares: of each kind; they add up to 1.
        correlation: from 0 to 1.
        sizes: pairs per prompt; shape (prompts,).
        random: draws.

    Returns:
        Places among `shares`; shape (pairs,), prompt by prompt.
    """
    own = np.tile(np.asarray(shares, float), (len(sizes), 1))
    if correlation >= 1:
        own = np.eye(len(shares))[random.choice(len(shares), len(sizes), p=own[0])]
    elif correlation > 0:
        # Gamma draws of a small share may all be zero; the least float keeps their sum above it.
        parts = random.standard_gamma(own * (1 - correlation) / correlation) + 1e-300
        own = parts / parts.sum(1, keepdims=True)
    upto = np.cumsum(own, 1)[:, :-1]
    found: np.ndarray = (random.random(sizes.sum())[:, None] > np.repeat(upto, sizes, 0)).sum(1)
    return found


def simulated_power(
    effect: Effect,
    design: Design,
    alpha: float = 0.05,
    *,
    simulations: int = 1_000,
    seed: int = 0,
) -> float:
    """How often the real test finds the effect in simulated evaluations: a check of `power`.

    Args:
        effect: what is true.
        design: of each evaluation.
        alpha: see `power`.
        simulations: evaluations drawn.
        seed: seeds them.
    """
    random = np.random.default_rng(seed)
    sizes = design.sizes()
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    found = 0
    for _ in range(simulations):
        if isinstance(effect, Difference):
            half, lead = effect.disagreement / 2, effect.difference / 2
            # Rounding may leave less than nothing.
            shares = [max(0.0, half + lead), max(0.0, half - lead), 1 - effect.disagreement]
            kinds = draw_kinds(shares, effect.intra_prompt, sizes, random)
            # Where both raters are right or both wrong, the difference is the same.
            _, p = paired_difference(1.0 * (kinds != 1), 1.0 * (kinds != 0), clusters)
            found += p < alpha
        else:
            ties = 4 * effect.agreement * (1 - effect.agreement) * max(0.0, 1 - effect.spread)
            shares = [effect.agreement - ties / 2, ties, 1 - effect.agreement - ties / 2]
            if min(shares) < 0:
                raise ConfigError(
                    f"spread is {effect.spread} at an agreement of {effect.agreement}: ties alone "
                    "do not make it, so it cannot be simulated"
                )
            kinds = draw_kinds(shares, effect.intra_prompt, sizes, random)
            interval = jackknife_interval(1 - kinds / 2, clusters, 1 - alpha)
            found += not interval.low <= effect.against <= interval.high
    return found / simulations


@dataclass(frozen=True)
class Plan:
    """What an evaluation could tell.

    Attributes:
        case: name.
        agreement: of the rater; None where only the difference is known.
        reference: agreement of the other rater, or the number that the interval is to leave out.
        disagreement: of two raters, see `Difference`; None for one.
        intra_prompt: correlation within prompts.
        prompts: of the evaluation.
        pairs: of the evaluation.
        effective_prompts: see `Design`.
        power: how often the effect is found.
        half_width: half of the expected interval at the level of the test.
        detectable: smallest difference of two raters, or agreement of one, that is found with the
            wanted power; None where none is.
        prompts_needed: for the wanted power, with as many pairs a prompt; None where none suffice.
        pairs_needed: the pairs of so many prompts.
        pairs_of_these_prompts: pairs needed with as many prompts; None where none suffice.
        simulated: power in simulated evaluations; None where none were made.
    """

    case: str
    agreement: float | None
    reference: float | None
    disagreement: float | None
    intra_prompt: float
    prompts: int
    pairs: int
    effective_prompts: float
    power: float
    half_width: float
    detectable: float | None
    prompts_needed: int | None
    pairs_needed: int | None
    pairs_of_these_prompts: int | None
    simulated: float | None = None


def plan(
    case: str,
    effect: Effect,
    design: Design,
    wanted: float = 0.8,
    alpha: float = 0.05,
    *,
    agreement: float | None = None,
    simulations: int = 0,
    seed: int = 0,
) -> Plan:
    """Compute all of it.

    Args:
        case: name.
        effect: what is assumed.
        design: of the evaluation.
        wanted: power.
        alpha: see `power`.
        agreement: of the rater, where two are compared.
        simulations: evaluations to simulate; none when 0.
        seed: seeds them.
    """
    prompts = prompts_needed(effect, design, wanted, alpha)
    reference: float | None
    disagreement: float | None
    if isinstance(effect, Lead):
        low, high = effect.expected_interval(design, alpha)
        half, agreement, reference = (high - low) / 2, effect.agreement, effect.against
        disagreement = None
    else:
        variance = effect.disagreement - effect.difference**2
        error = math.sqrt(max(variance, 0.0) / design.independent_pairs(effect.intra_prompt))
        half = _reach(design.effective_prompts, alpha) * error
        reference = None if agreement is None else agreement - effect.difference
        disagreement = effect.disagreement
    simulated = None
    if simulations:
        simulated = simulated_power(effect, design, alpha, simulations=simulations, seed=seed)
    return Plan(
        case,
        agreement,
        reference,
        disagreement,
        effect.intra_prompt,
        design.prompts,
        design.pairs,
        design.effective_prompts,
        power(effect, design, alpha),
        half,
        detectable(effect, design, wanted, alpha),
        prompts,
        None if prompts is None else replace(design, prompts=prompts).pairs,
        pairs_needed(effect, design, wanted, alpha),
        simulated,
    )


def intra_prompt_correlation(values: np.ndarray, clusters: Sequence[Any] | np.ndarray) -> float:
    """The correlation within prompts that gives the mean the error that the jackknife finds.

    Args:
        values: one number per pair; shape (n,).
        clusters: the prompt of each pair; shape (n,).

    Returns:
        At most 1, below 0 where pairs of one prompt are less alike than chance makes them; NaN
        with one pair in each prompt, fewer than two prompts, or values that are all the same.
    """
    estimate = clustered_mean(values, clusters)
    variance = float(np.var(values)) if len(values) else 0.0
    if variance < 1e-12 or math.isnan(estimate.error) or estimate.n == estimate.clusters:
        return math.nan
    design_effect = estimate.error**2 * estimate.n / variance
    return min(1.0, (design_effect - 1) / (estimate.n / estimate.effective_clusters - 1))


@dataclass(frozen=True)
class Seen:
    """What an evaluation found about a rater, and what it could have found.

    Attributes:
        rater: name.
        reference: name of the rater it was compared with; None for one rater against a number.
        found: difference of agreement to the reference, or agreement, with its interval.
        p_holm: corrected over the comparisons made together; None for one rater.
        differ: share of pairs in which the two have different credit; None for one rater.
        correlation: of the credit of the two; NaN where one has the same everywhere; None for one.
        intra_prompt: as found, see `intra_prompt_correlation`; plans take 0 where it is less or
            not known.
        plan: for a true effect as large as the found one; None where nothing could be planned,
            as with raters that never differ, or one that is always right or never decides.
    """

    rater: str
    reference: str | None
    found: Interval
    p_holm: float | None
    differ: float | None
    correlation: float | None
    intra_prompt: float
    plan: Plan | None


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    return float(np.corrcoef(one, other)[0, 1])


def _planned(intra_prompt: float) -> float:
    return max(0.0, intra_prompt) if math.isfinite(intra_prompt) else 0.0


def seen_differences(
    credits: Mapping[str, np.ndarray],
    reference: str,
    clusters: Sequence[Any] | np.ndarray,
    wanted: float = 0.8,
    alpha: float = 0.05,
    comparisons: int | None = None,
) -> list[Seen]:
    """Measure how raters of an evaluation depend on the reference, and plan with that.

    Args:
        credits: per-pair credit by rater; shape (n,) each.
        reference: a key of `credits`.
        clusters: prompt of each pair; shape (n,).
        wanted: power.
        alpha: of all comparisons together.
        comparisons: how many are made together; all of these when None.

    Raises:
        ConfigError: fewer than two prompts, or no rater beside the reference.
    """
    names = [name for name in credits if name != reference]
    if not names:
        raise ConfigError(f"raters: there is none beside the reference {reference}: name another")
    level = corrected_alpha(alpha, len(names) if comparisons is None else comparisons)
    design = Design.of(clusters)
    base = credits[reference]
    tests = [paired_difference(credits[name], base, clusters) for name in names]
    rows = []
    for name, (found, _), p_holm in zip(names, tests, holm([p for _, p in tests]), strict=True):
        paired = credits[name] - base
        within = intra_prompt_correlation(paired, clusters)
        square = float(np.mean(paired**2))
        planned = None
        if square > 0:
            effect = Difference(
                difference=found.mean, disagreement=square, intra_prompt=_planned(within)
            )
            case = f"{name} against {reference}"
            agreement = float(credits[name].mean())
            planned = plan(case, effect, design, wanted, level, agreement=agreement)
        differ = float(np.mean(paired != 0))
        together = _correlation(credits[name], base)
        rows.append(Seen(name, reference, found, p_holm, differ, together, within, planned))
    return rows


def seen_leads(
    credits: Mapping[str, np.ndarray],
    clusters: Sequence[Any] | np.ndarray,
    wanted: float = 0.8,
    alpha: float = 0.05,
    against: float = 0.5,
) -> list[Seen]:
    """The same for each rater by itself, against a number.

    Args:
        credits: per-pair credit by rater; shape (n,) each.
        clusters: prompt of each pair; shape (n,).
        wanted: power.
        alpha: of each.
        against: the number, such as chance.
    """
    design = Design.of(clusters)
    rows = []
    for name, credit in credits.items():
        found = jackknife_interval(credit, clusters)
        within = intra_prompt_correlation(credit, clusters)
        planned = None
        variance = float(np.var(credit))
        if variance > 1e-12:
            spread = variance / (found.mean * (1 - found.mean))
            effect = Lead(
                agreement=found.mean,
                against=against,
                intra_prompt=_planned(within),
                spread=spread,
            )
            planned = plan(f"{name} against {against:g}", effect, design, wanted, alpha)
        rows.append(Seen(name, None, found, None, None, None, within, planned))
    return rows


def write_power_csv(plans: Sequence[Plan], path: Path) -> None:
    """Write the plans as CSV, by `csv_cell`."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Plan)])
        for one in plans:
            writer.writerow([csv_cell(value) for value in astuple(one)])


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None or math.isnan(value) else format(value, form)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        ).rstrip()
        for row in rows
    ]


def plans_text(plans: Sequence[Plan], wanted: float) -> str:
    """The plans for a terminal."""
    head = (
        "case, agreement", "against", "disagree", "within", "pairs", "prompts", "worth", "power",
        "simulated", "half width", "detectable", "needs prompts", "or pairs of these",
    )  # fmt: skip
    rows = [
        (
            f"{clean_name(one.case)} {_cell(one.agreement, '.3f')}",
            _cell(one.reference, ".3f"),
            _cell(one.disagreement, ".3f"),
            f"{one.intra_prompt:.3f}",
            f"{one.pairs:,}",
            f"{one.prompts:,}",
            f"{one.effective_prompts:,.0f}",
            f"{one.power:.3f}",
            _cell(one.simulated, ".3f"),
            f"{one.half_width:.3f}",
            _cell(one.detectable, ".3f"),
            _cell(one.prompts_needed, ","),
            _cell(one.pairs_of_these_prompts, ","),
        )
        for one in plans
    ]
    lines = [
        *_table([head, *rows]),
        "",
        f"Detectable and needed: for a power of {wanted:g}. Detectable: a difference of two raters "
        "that disagree as often, or an agreement of one.",
        "Needs prompts: with as many pairs each. A dash: there is none.",
    ]
    return "\n".join(lines)


def seen_text(rows: Sequence[Seen], wanted: float) -> str:
    """What was seen, for a terminal.

    The power for the seen effect is left out: it is another way to write the p value (Hoenig and
    Heisey, 2001, The Abuse of Power).
    """
    table: list[tuple[str, ...]] = [
        (
            "seen", "found", "p (Holm)", "differ", "correlation", "within", "detectable",
            "needs prompts", "pairs", "or pairs of these",
        )
    ]  # fmt: skip
    for row in rows:
        name = clean_name(row.rater)
        if row.reference is not None:
            name += f" - {clean_name(row.reference)}"
        own = ["-"] * 4
        if row.plan is not None:
            own = [
                _cell(row.plan.detectable, ".3f"),
                _cell(row.plan.prompts_needed, ","),
                _cell(row.plan.pairs_needed, ","),
                _cell(row.plan.pairs_of_these_prompts, ","),
            ]
        table.append(
            (
                name,
                str(row.found),
                "<0.001"
                if row.p_holm is not None and row.p_holm < 0.001
                else _cell(row.p_holm, ".3f"),
                _cell(row.differ, ".3f"),
                _cell(row.correlation, ".3f"),
                _cell(row.intra_prompt, ".3f"),
                *own,
            )
        )
    first = rows[0].found
    return "\n".join(
        [
            f"{first.n:,} pairs, {first.clusters:,} prompts (worth {first.effective_clusters:.0f} "
            "of equal size)",
            *_table(table),
            "",
            f"Detectable: what would be found with a power of {wanted:g}. Needed: if the true "
            "effect were the one found,",
            "which is itself uncertain, and too large on average where it was reported for being "
            "clear.",
        ]
    )
