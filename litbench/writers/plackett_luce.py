"""Plackett-Luce utilities from rankings of any sizes, with ties, and intervals by rater and prompt.

The probability of a ranking is a product over its stages: the item that comes next is chosen among
those that remain, in proportion to exp(utility) (Plackett, 1975; Luce, 1959). Rankings of two items
make it the model of Bradley and Terry.

The order of tied items is not known: the likelihood of a tied block is the mean over its orders, up
to five items, and Efron's approximation (1977, for the same form in Cox regression) beyond.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litbench.metrics.intervals import LEVEL, effective_clusters
from litbench.runs.errors import DataError

# Tied blocks of one ranking, the best first; a block of one is an item without a tie.
Blocks = Sequence[Sequence[str]]

# Larger tied blocks have Efron's form.
_MAX_ORDERED = 5


@dataclass(frozen=True)
class Ranking:
    """One rater's ranking of some items.

    Attributes:
        blocks: tied items together, the best first.
        rater: whose ranking it is; None where raters are no sample, as for one model.
        prompt: the prompt whose stories are ranked; None if it is unknown.
    """

    blocks: Blocks
    rater: Hashable = None
    prompt: Hashable = None


@dataclass(frozen=True)
class Utilities:
    """Utilities of items, centred to mean zero over the items that have a finite one.

    Attributes:
        values: item to utility; NaN for an item without a finite one.
        low: lower bound of the 95 % interval; NaN without an interval.
        high: upper bound.
        log_likelihood: at the maximum, without the prior.
        rankings: number of rankings with at least two items.
        tied_blocks: blocks of two or more items in them.
        raters: number of raters, where they are named.
        prompts: number of prompts, where they are named.
        infinite: items without a finite utility, because wins do not connect them with the others
            both ways.
        prior: strength of the Gaussian prior; 0 for maximum likelihood.
    """

    values: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    log_likelihood: float
    rankings: int
    tied_blocks: int
    raters: int
    prompts: int
    infinite: tuple[str, ...] = ()
    prior: float = 0.0


def ranking_of(
    ratings: Mapping[str, float], rater: Hashable = None, prompt: Hashable = None
) -> Ranking:
    """The ranking that ratings make: higher is better, equal ratings are a tie."""
    blocks = defaultdict(list)
    for item, rating in ratings.items():
        blocks[rating].append(item)
    return Ranking([blocks[rating] for rating in sorted(blocks, reverse=True)], rater, prompt)


def plackett_luce(rankings: Sequence[Ranking], *, prior: float = 0.0) -> Utilities:
    """Fit utilities by maximum likelihood, with intervals over raters and prompts.

    The raters of a prompt rank the same stories, so the variance is that by rater plus that by
    prompt minus that by both together (Cameron, Gelbach and Miller, 2011), and at least half of the
    last, as in `litbench.metrics.intervals.two_way_interval`; where only raters or only prompts are
    named, it is that by them. The first two are jackknives: the fit is repeated without each rater
    or prompt. The t quantile has the smaller effective number of clusters minus 1 degrees of
    freedom.

    Args:
        rankings: those with fewer than two items are left out.
        prior: strength of a Gaussian prior of mean zero: prior / 2 times the sum of squared
            utilities is subtracted from the log-likelihood. It gives every item a finite value.

    Returns:
        The utilities. Items whose wins do not connect them with the others both ways get NaN, and
        so do intervals if leaving out a rater or prompt disconnects an item, or there is only one.

    Raises:
        DataError: no ranking of two items, an item twice in one ranking, or a negative prior.
    """
    if prior < 0:
        raise DataError(f"prior is {prior}: give a strength of 0 or more")
    used = [ranking for ranking in rankings if sum(map(len, ranking.blocks)) > 1]
    if not used:
        raise DataError("no ranking has two items: utilities need at least one comparison")
    for ranking in used:
        items = list(itertools.chain(*ranking.blocks))
        if len(items) != len(set(items)):
            raise DataError(f"a ranking has an item twice: {items}: merge its ratings")
    every = sorted({item for ranking in used for block in ranking.blocks for item in block})
    connected = every if prior else _connected(used, every)
    values, low, high = (dict.fromkeys(every, math.nan) for _ in range(3))
    likelihood = math.nan
    if len(connected) > 1:
        fit = _Fit(used, connected, prior)
        best, likelihood = fit.maximise(np.ones(len(used)), np.zeros(len(connected)))
        half = _half_widths(fit, best)
        for index, item in enumerate(connected):
            values[item] = float(best[index])
            low[item] = float(best[index] - half[index])
            high[item] = float(best[index] + half[index])
    return Utilities(
        values,
        low,
        high,
        likelihood,
        len(used),
        sum(len(block) > 1 for ranking in used for block in ranking.blocks),
        len({ranking.rater for ranking in used} - {None}),
        len({ranking.prompt for ranking in used} - {None}),
        tuple(item for item in every if math.isnan(values[item])),
        prior,
    )


def _half_widths(fit: "_Fit", best: np.ndarray) -> np.ndarray:
    """Half of each interval; shape (items,)."""
    from scipy import stats  # noqa: PLC0415

    columns = [
        [ranking.rater for ranking in fit.rankings],
        [ranking.prompt for ranking in fit.rankings],
    ]
    ways = [_numbered(labels) for labels in columns if any(label is not None for label in labels)]
    sizes = [np.bincount(labels) for labels in ways]
    if not ways or min(map(len, sizes)) < 2:
        return np.full(len(best), math.nan)
    variance = sum(_jackknife_variance(fit, best, labels) for labels in ways)
    if len(ways) > 1:
        together = _cell_variance(fit, best, _numbered(list(zip(*ways, strict=True))))
        variance = np.maximum(variance - together, together / 2)
    freedom = max(min(map(effective_clusters, sizes)) - 1, 1.0)
    return np.asarray(stats.t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(variance))


def _numbered(labels: Sequence[Hashable]) -> np.ndarray:
    """Integers that stand for the labels; shape (rankings,)."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels])


def _jackknife_variance(fit: "_Fit", best: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Variance of the utilities by refitting without each cluster; NaN if that disconnects items.

    `labels` numbers the cluster of each ranking; shape (rankings,). Returns shape (items,).
    """
    count, without = labels.max() + 1, []
    for left_out in range(count):
        weights = (labels != left_out).astype(float)
        if not fit.is_connected(weights):
            return np.full(len(best), math.nan)
        without.append(fit.maximise(weights, best)[0])
    error = np.sum((np.array(without) - best) ** 2, axis=0)
    return np.asarray((count - 1) / count * error)


def _cell_variance(fit: "_Fit", best: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """As `_jackknife_variance`, by one Newton step for each cluster: there are many small ones."""
    count = labels.max() + 1
    scores = np.zeros((count, len(best)))
    np.add.at(scores, labels, fit.scores(best))
    steps = np.linalg.solve(fit.curvature(best), scores.T)
    return np.asarray((count - 1) / count * np.sum(steps**2, axis=1))


def _edges(blocks: Blocks) -> Iterable[tuple[str, str]]:
    """Pairs of items of which the first wins; with Efron's form a tie wins both ways."""
    for index, block in enumerate(blocks):
        for other in blocks[index + 1 :]:
            yield from itertools.product(block, other)
        if len(block) > _MAX_ORDERED:
            yield from itertools.permutations(block, 2)


def _connected(rankings: Sequence[Ranking], items: Sequence[str]) -> list[str]:
    """The largest set of items that wins connect both ways, the first one of equal size."""
    from scipy.sparse import coo_array  # noqa: PLC0415
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    index_of = {item: index for index, item in enumerate(items)}
    wins = {
        (index_of[a], index_of[b])
        for ranking in rankings
        for a, b in _edges(ranking.blocks)
        if a in index_of and b in index_of
    }
    rows, columns = zip(*wins, strict=True) if wins else ((), ())
    graph = coo_array((np.ones(len(wins)), (rows, columns)), shape=(len(items), len(items)))
    _, labels = connected_components(graph, directed=True, connection="strong")
    largest = np.bincount(labels).argmax()
    return [item for item, label in zip(items, labels, strict=True) if label == largest]


@dataclass
class _Fit:
    """The likelihood of all rankings as sums over stages.

    A term is a block and the items after it; equal terms of all raters are kept once. The
    probability of a term is, up to exp(sum of the block's utilities), the mean over its orders of
    the product over their stages of 1 / (membership @ exp(utilities)).

    Attributes:
        rankings: with at least two items each.
        items: those that get a utility; others are left out of the rankings.
        prior: strength of the prior.
    """

    rankings: Sequence[Ranking]
    items: Sequence[str]
    prior: float

    def __post_init__(self) -> None:
        """Lay out terms, orders and stages as arrays."""
        from scipy.sparse import coo_array  # noqa: PLC0415

        index_of = {item: index for index, item in enumerate(self.items)}
        counts: dict[tuple[frozenset[int], frozenset[int]], int] = {}
        cells = []
        for number, ranking in enumerate(self.rankings):
            blocks = [
                frozenset(index_of[i] for i in block if i in index_of) for block in ranking.blocks
            ]
            for index, block in enumerate(blocks):
                rest = frozenset().union(*blocks[index + 1 :])
                if block and len(block) + len(rest) > 1:
                    cells.append((counts.setdefault((block, rest), len(counts)), number))
        # Which terms each ranking has; shape (terms, rankings).
        self._counts = coo_array(
            (np.ones(len(cells)), tuple(zip(*cells, strict=True))),
            shape=(len(counts), len(self.rankings)),
        ).tocsr()
        stages: list[np.ndarray] = []
        # The first stage of each order, and the first order of each term.
        self._orders: list[int] = []
        self._terms: list[int] = []
        self._block = np.zeros((len(counts), len(self.items)))
        for index, (block, rest) in enumerate(counts):
            self._block[index, list(block)] = 1
            self._terms.append(len(self._orders))
            for order in self._stages(sorted(block), sorted(rest)):
                self._orders.append(len(stages))
                stages.extend(order)
        self._member = np.array(stages)
        self._term_of_order = np.repeat(
            np.arange(len(counts)), np.diff([*self._terms, len(self._orders)])
        )

    def _stages(self, block: list[int], rest: list[int]) -> Iterable[list[np.ndarray]]:
        """The memberships of each stage, for each order of a block."""
        base = np.zeros(len(self.items))
        base[rest] = 1
        if len(block) > _MAX_ORDERED:
            tied = np.zeros(len(self.items))
            tied[block] = 1
            yield [base + tied * (1 - stage / len(block)) for stage in range(len(block))]
            return
        for order in itertools.permutations(block):
            memberships = []
            for stage in range(len(order)):
                member = base.copy()
                member[list(order[stage:])] = 1
                memberships.append(member)
            yield memberships

    def is_connected(self, weights: np.ndarray) -> bool:
        """Whether the rankings with a weight still connect all items."""
        weighted = [ranking for ranking, w in zip(self.rankings, weights, strict=True) if w]
        return bool(self.prior) or len(_connected(weighted, self.items)) == len(self.items)

    def maximise(self, weights: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, float]:
        """Utilities at the maximum, centred, and the log-likelihood without the prior.

        Args:
            weights: weight of each ranking; shape (rankings,).
            start: utilities to begin with; shape (items,).
        """
        from scipy import optimize  # noqa: PLC0415

        counts = self._counts @ weights

        def negative(u: np.ndarray) -> tuple[float, np.ndarray]:
            values, slopes = self._by_term(u)
            penalty, its_slope = self._penalty(u)
            return penalty - float(counts @ values), its_slope - counts @ slopes

        solution: Any = optimize.minimize(
            negative, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 500}
        )
        best = solution.x - solution.x.mean()
        return best, float(counts @ self._by_term(best)[0])

    def scores(self, u: np.ndarray) -> np.ndarray:
        """Gradient of each ranking's log-likelihood; shape (rankings, items)."""
        return np.asarray(self._counts.T @ self._by_term(u)[1])

    def curvature(self, u: np.ndarray) -> np.ndarray:
        """Negative Hessian of the penalised log-likelihood; shape (items, items)."""
        from scipy import optimize  # noqa: PLC0415

        counts = self._counts.sum(axis=1)

        def slope(at: np.ndarray) -> np.ndarray:
            return np.asarray(self._penalty(at)[1] - counts @ self._by_term(at)[1])

        return np.asarray(optimize.approx_fprime(u, slope))

    def _penalty(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """The penalty of the log-likelihood, and its gradient; shapes (), (items,)."""
        # Only differences matter: without a prior, the sum is held at zero.
        level = 0.0 if self.prior else 1.0
        value = self.prior / 2 * float(u @ u) + level / 2 * float(u.sum()) ** 2
        return value, self.prior * u + level * u.sum()

    def _by_term(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-likelihood of each term and its gradient; shapes (terms,), (terms, items)."""
        weights = np.exp(u)
        totals = self._member @ weights
        by_order = np.add.reduceat(np.log(totals), self._orders)
        # Mean over the orders of a term, and the share of each order in it.
        least = np.minimum.reduceat(by_order, self._terms)[self._term_of_order]
        relative = np.exp(least - by_order)
        sums = np.add.reduceat(relative, self._terms)
        logs = np.log(sums / np.bincount(self._term_of_order)) - least[self._terms]
        share = relative / sums[self._term_of_order]
        slopes = np.add.reduceat(self._member * weights / totals[:, None], self._orders)
        mean = np.add.reduceat(share[:, None] * slopes, self._terms)
        return self._block @ u + logs, self._block - mean
