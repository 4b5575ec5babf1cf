"""Agreement against cost: what a cascade of two raters would reach at every threshold.

A cascade (`litbench.judges.mixes`) asks an expensive rater about the pairs of which a cheap one is
unsure. Where both have judged all pairs, every threshold can be read off their verdicts without
asking anyone again, from the cheap rater alone to the expensive one alone.

The curve is a description of these pairs. A threshold that was picked because it looks best on
them agrees less on others: choose one on other pairs (`choose_threshold`), then look it up here.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.config import nearest
from litbench.errors import ConfigError
from litbench.metrics.agreement import PairFacts, PairScores, pair_scores
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.metrics.leaderboard import csv_cell
from litbench.text import clean_name

Unit = Literal["probability", "reward", "verdict"]

_CSV_COLUMNS = (
    "cheap", "expensive", "unit", "threshold", "asked", "cost_usd_per_1000", "agreement", "low",
    "high", "n", "prompts", "effective_prompts",
)  # fmt: skip


@dataclass(frozen=True)
class CascadePoint:
    """A cascade at one threshold.

    Attributes:
        threshold: the expensive rater is asked where the cheap one's certainty is below it; -inf
            for the cheap rater alone, inf where it is asked everywhere.
        asked: share of pairs that the expensive rater is asked about.
        agreement: headline agreement of the cascade.
        cost_usd: dollars per 1,000 pairs; NaN where the expensive rater's price is not known.
    """

    threshold: float
    asked: float
    agreement: Interval
    cost_usd: float


@dataclass(frozen=True)
class Curve:
    """A cascade at all its thresholds.

    Attributes:
        cheap: name of the rater that judges all pairs.
        expensive: name of the one that is asked.
        unit: what certainty is: the probability of the preferred story, the difference of the
            rewards, or, for a rater with neither, nothing but the verdict.
        points: by rising threshold, from the cheap rater alone to the expensive one asked
            everywhere.
    """

    cheap: str
    expensive: str
    unit: Unit
    points: list[CascadePoint]


@dataclass(frozen=True)
class RaterPoint:
    """A rater that judged all pairs itself: a single one, a jury, a cascade that was run.

    Attributes:
        rater: name.
        kind: kind of rater.
        agreement: headline agreement.
        cost_usd: dollars per 1,000 pairs; NaN where no verdict has a price.
    """

    rater: str
    kind: str
    agreement: Interval
    cost_usd: float


@dataclass(frozen=True)
class Frontier:
    """Curves and what stands beside them.

    Attributes:
        raters: every rater of the verdicts, in their order.
        curves: every cheap rater with every expensive one.
        fallback: whether the cheap rater's verdict stands where the expensive one ends undecided.
    """

    raters: list[RaterPoint]
    curves: list[Curve]
    fallback: bool


@dataclass(frozen=True)
class _Rounds:
    """A rater's verdicts by repeat of a cross-validation; one repeat outside of it.

    Attributes:
        kind: kind of rater.
        credit: see PairScores; shape (repeats, n).
        cost_usd: price of the pair, NaN where not known; shape (repeats, n).
        certainty: -inf where the orders do not all name one story or a number is missing;
            shape (repeats, n).
        unit: of `certainty`.
    """

    kind: str
    credit: np.ndarray
    cost_usd: np.ndarray
    certainty: np.ndarray
    unit: Unit

    @property
    def cost_known(self) -> bool:
        """Whether any verdict has a price."""
        return bool(np.isfinite(self.cost_usd).any())

    @property
    def cost(self) -> np.ndarray:
        """Price of each pair, mean over repeats; a verdict without a price was free; shape (n,)."""
        costs: np.ndarray = np.nan_to_num(self.cost_usd).mean(0)
        return costs


def _reward_gaps(verdicts: pa.Table, pair_ids: Sequence[str]) -> np.ndarray:
    """Reward of chosen minus rejected, mean over orders; NaN where one lacks it; shape (n,)."""
    place = {pair_id: row for row, pair_id in enumerate(pair_ids)}
    sums, counts = np.zeros(len(pair_ids)), np.zeros(len(pair_ids))
    for pair_id, chosen, rejected in zip(
        *(verdicts[name].to_pylist() for name in ("pair_id", "reward_chosen", "reward_rejected")),
        strict=True,
    ):
        if pair_id in place:
            known = chosen is not None and rejected is not None
            sums[place[pair_id]] += chosen - rejected if known else math.nan
            counts[place[pair_id]] += 1
    return sums / counts


def _rounds(verdicts: pa.Table, pairs: pa.Table) -> _Rounds:
    """Gather one rater's verdicts.

    Raises:
        DataError: see `pair_scores`.
    """
    # "repeat/fold", see litbench.records.VERDICTS.
    repeats = [
        None if fold is None else fold.split("/")[0] for fold in verdicts["fold"].to_pylist()
    ]
    scores: list[PairScores] = []
    gaps = []
    pair_ids = pairs["pair_id"].to_pylist()
    for repeat in dict.fromkeys(repeats):
        of_repeat = verdicts.filter(pa.array([other == repeat for other in repeats]))
        scores += pair_scores(of_repeat, pairs)
        gaps.append(_reward_gaps(of_repeat, pair_ids))
    credit = np.array([score.credit for score in scores])
    p_chosen = np.array([score.p_chosen for score in scores])
    gap = np.array(gaps)
    unit: Unit = "verdict"
    certainty = np.ones_like(credit)
    if np.isfinite(p_chosen).any():
        unit, certainty = "probability", np.maximum(p_chosen, 1 - p_chosen)
    elif np.isfinite(gap).any():
        unit, certainty = "reward", np.abs(gap)
    # Only verdicts that all name one story add up to 0 or 1.
    is_sure = np.isin(credit, (0.0, 1.0)) & np.isfinite(certainty)
    return _Rounds(
        scores[0].kind,
        credit,
        np.array([score.cost_usd for score in scores]),
        # Probabilities and differences of rewards that are equal differ in their last digits.
        np.where(is_sure, np.round(certainty, 12), -np.inf),
        unit,
    )


def _thresholds(certainty: np.ndarray, most: int) -> np.ndarray:
    """Thresholds that ask different shares, at most so many, evenly over the shares asked."""
    ordered = np.sort(certainty, axis=None)
    values = np.unique(ordered[np.isfinite(ordered)])
    candidates = np.concatenate([[-np.inf], values, [np.inf]])
    shares, first = np.unique(np.searchsorted(ordered, candidates), return_index=True)
    candidates = candidates[first]
    even = np.searchsorted(shares, np.linspace(0, shares[-1], most))
    chosen: np.ndarray = candidates[np.unique(even)]
    return chosen


def _curve(
    cheap: tuple[str, _Rounds],
    expensive: tuple[str, _Rounds],
    clusters: np.ndarray,
    most_points: int,
    *,
    fallback: bool,
) -> Curve:
    (cheap_name, first), (expensive_name, second) = cheap, expensive
    credit = second.credit.mean(0)
    points = []
    for threshold in _thresholds(first.certainty, most_points):
        asked = first.certainty < threshold
        answer = np.broadcast_to(credit, asked.shape)
        if fallback:
            answer = np.where(answer == 0.5, first.credit, answer)
        cascade = np.where(asked, answer, first.credit).mean(0)
        cost = math.nan
        if second.cost_known:
            cost = 1_000 * float(np.mean(first.cost + asked.mean(0) * second.cost))
        points.append(
            CascadePoint(
                float(threshold),
                float(asked.mean()),
                jackknife_interval(cascade, clusters),
                cost,
            )
        )
    return Curve(cheap_name, expensive_name, first.unit, points)


def frontier(
    verdicts: pa.Table,
    pairs: pa.Table,
    cheap: Sequence[str],
    expensive: Sequence[str],
    *,
    most_points: int = 100,
    fallback: bool = False,
) -> Frontier:
    """Compute the curve of every cheap rater with every expensive one.

    In a cross-validation each repeat of the cheap rater is a cascade of its own, and the figures
    are means over them; of the expensive one the mean over repeats is taken. A rater whose
    verdicts have no price is free in a cascade, but where it is the expensive one: then the curve
    has the share asked and no dollars.

    Args:
        verdicts: table by the schema VERDICTS.
        pairs: table by the schema PAIRS.
        cheap: names of raters.
        expensive: names of raters.
        most_points: thresholds per curve; the shares they ask are spread evenly.
        fallback: the cheap rater's verdict stands where the expensive one ends undecided, as in
            `litbench.judges.mixes.Cascade`.

    Raises:
        ConfigError: a name is none of these raters', or one rater is both.
        DataError: a rater lacks a verdict on some pair.
    """
    names = pc.unique(verdicts["rater"]).to_pylist()
    for key, wanted in (("cheap", cheap), ("expensive", expensive)):
        if not wanted:
            raise ConfigError(f"{key} is empty: name raters of the verdicts, such as {names[0]}")
        for name in wanted:
            if name not in names:
                raise ConfigError(f"{key}: '{name}' has no verdicts: {nearest(name, names)}")
    both = sorted(set(cheap) & set(expensive))
    if both:
        raise ConfigError(f"{both[0]} is cheap and expensive: name it once")
    if most_points < 2:
        raise ConfigError(f"most_points is {most_points}: give at least 2, the two ends")
    clusters = PairFacts.of(pairs).clusters
    rounds = {
        name: _rounds(verdicts.filter(pc.equal(verdicts["rater"], name)), pairs) for name in names
    }
    raters = [
        RaterPoint(
            name,
            of.kind,
            jackknife_interval(of.credit.mean(0), clusters),
            1_000 * float(of.cost.mean()) if of.cost_known else math.nan,
        )
        for name, of in rounds.items()
    ]
    curves = [
        _curve((one, rounds[one]), (other, rounds[other]), clusters, most_points, fallback=fallback)
        for one in cheap
        for other in expensive
    ]
    return Frontier(raters, curves, fallback)


def choose_threshold(
    curve: Curve, *, asked: float | None = None, cost_usd: float | None = None
) -> CascadePoint:
    """The threshold that spends a budget: the one that asks most without exceeding it.

    Labels do not enter, but the certainties of these pairs do: take the curve of validation pairs,
    and report the cascade on others.

    Args:
        curve: from validation pairs.
        asked: most of the share of pairs to ask about; or
        cost_usd: most dollars per 1,000 pairs.

    Raises:
        ConfigError: neither or both are given, the curve has no dollars, or the cheap rater alone
            is above the budget.
    """
    if (asked is None) == (cost_usd is None):
        raise ConfigError("a budget is a share of pairs asked or dollars: give one of them")
    if cost_usd is not None and math.isnan(curve.points[0].cost_usd):
        raise ConfigError(
            f"the price of {curve.expensive} is not known: give the share of pairs asked instead"
        )
    within = [
        point
        for point in curve.points
        if (asked is None or point.asked <= asked)
        and (cost_usd is None or point.cost_usd <= cost_usd)
    ]
    if not within:
        raise ConfigError(
            f"no threshold is within the budget (asked {asked}, dollars {cost_usd}): "
            f"{curve.cheap} alone costs {curve.points[0].cost_usd:.4g} dollars per 1,000 pairs"
        )
    return within[-1]


def at_shares(curve: Curve, shares: Sequence[float]) -> list[CascadePoint]:
    """The points that ask nearest to these shares of the pairs; each once, by share."""
    nearest_points = [min(curve.points, key=lambda point: abs(point.asked - s)) for s in shares]
    return sorted(dict.fromkeys(nearest_points), key=lambda point: point.asked)


def write_frontier_csv(found: Frontier, path: Path) -> None:
    """Write every point of every curve as CSV, by `csv_cell`; an end has no threshold."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_CSV_COLUMNS)
        for curve in found.curves:
            for point in curve.points:
                of = point.agreement
                values = [
                    curve.cheap, curve.expensive, curve.unit, point.threshold, point.asked,
                    point.cost_usd, of.mean, of.low, of.high, of.n, of.clusters,
                    of.effective_clusters,
                ]  # fmt: skip
                writer.writerow([csv_cell(value) for value in values])


def frontier_text(found: Frontier) -> str:
    """The curves for a terminal, at every tenth of the pairs asked."""
    first = found.raters[0].agreement
    lines = [
        f"agreement of cascades: {first.n:,} pairs, {first.clusters:,} prompts "
        f"(worth {first.effective_clusters:.0f} of equal size), 95 % intervals by prompt"
    ]
    for curve in found.curves:
        cascade = f"{clean_name(curve.cheap)}, then {clean_name(curve.expensive)}"
        lines += ["", cascade, "  asked  $/1,000  agreement"]
        for point in at_shares(curve, [place / 10 for place in range(11)]):
            cost = "–" if math.isnan(point.cost_usd) else f"{point.cost_usd:.3f}"
            lines.append(f"  {point.asked:>5.1%}  {cost:>7}  {point.agreement}")
    return "\n".join(lines)
