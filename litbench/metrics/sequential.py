"""Group-sequential tests: look at a comparison several times and keep the error of one look.

A comparison is planned with a last look, when all pairs are judged. At look k, a share t_k of them
is judged, and the statistic z_k of the report's test, as a normal quantile, is compared with a
boundary c_k. The two-sided error spent until t is that of Hwang, Shih and DeCani (1990) with
gamma = -1, and the boundaries follow from it and from the shares of the looks made so far (Lan and
DeMets, 1983): number and times of the looks need not be planned. Without a difference,
z_k sqrt(t_k) is a Brownian motion at t_k, whose chance to leave the boundaries is integrated look
by look (Armitage, McPherson and Rowe, 1969; Jennison and Turnbull, 2000, chapter 19).

Stopping because a difference has become improbable (`conditional_power`) is non-binding: the
boundaries ignore it, so that judging on costs no error.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from litbench.metrics.comparisons import difference_interval, holm
from litbench.metrics.intervals import LEVEL, ClusteredMean, Interval

ALPHA = 1 - LEVEL
GAMMA = -1.0
# A comparison is futile below this conditional power.
MIN_POWER = 0.1
# Standard errors that the optimistic trend adds to the estimate. With ten looks, a difference that
# the fixed plan finds in 80 % is then decided in 69 % with 59 % of the calls; no difference takes
# 52 %. One standard error would take 62 %, none would decide only 52 %.
OPTIMISM = 0.55
# Fewer prompts than these make no early stop: the t statistic is too rough an approximation.
MIN_PROMPTS, MIN_PROMPTS_OF_LOOK = 20, 8
# A boundary beyond which no statistic is expected; p values are not resolved below it.
_MAX_Z = 9.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(160)


def prompts_at_looks(prompts: int, looks: int) -> list[int]:
    """Number of prompts judged at each look, increasing to all; a single look at few prompts.

    Args:
        prompts: number of prompts.
        looks: maximum number of looks; those at fewer than `MIN_PROMPTS_OF_LOOK` are left out.
    """
    if prompts < MIN_PROMPTS:
        return [prompts]
    sizes = {math.ceil(prompts * look / looks) for look in range(1, looks + 1)}
    return sorted(size for size in sizes if size >= MIN_PROMPTS_OF_LOOK)


def spent(share: float, alpha: float = ALPHA) -> float:
    """The two-sided error that may be spent until a share of the pairs is judged."""
    if share >= 1:
        return alpha
    return alpha * math.expm1(-GAMMA * share) / math.expm1(-GAMMA)


class _Path:
    """The distribution of the statistic among paths that have not left the boundaries so far.

    Works on the scale of z sqrt(t), a Brownian motion. A drift per unit of t changes the density of
    a path at x by the likelihood ratio exp(drift x - drift^2 t / 2), so it is added at the end.
    """

    def __init__(self) -> None:
        self._share = 0.0
        self._points, self._mass = np.zeros(1), np.ones(1)

    def exits(self, share: float, bound: Any, drift: Any = 0.0) -> tuple[Any, Any]:
        """The chances to be below -`bound` and above `bound` at the next look, for |z|.

        Args:
            share: share of the pairs judged at the next look.
            bound: of z; a number, or an array with the shape of `drift`.
            drift: a number, or an array of any shape.
        """
        from scipy import special  # noqa: PLC0415

        step, drift = share - self._share, np.asarray(drift)[..., None]
        limit = np.asarray(bound)[..., None] * math.sqrt(share)
        ratio = np.exp(drift * self._points - drift**2 * self._share / 2)
        start = self._points + drift * step
        below, above = (
            (ratio * self._mass * special.ndtr((-limit - sign * start) / math.sqrt(step))).sum(-1)
            for sign in (1, -1)
        )
        return below, above

    def advance(self, share: float, bound: float) -> None:
        """Keep the paths whose |z| is at most `bound` at this look."""
        step, high = share - self._share, min(bound, _MAX_Z) * math.sqrt(share)
        points = high * _NODES
        steps = (points[:, None] - self._points) / math.sqrt(step)
        density = np.exp(-(steps**2) / 2) @ self._mass / math.sqrt(2 * math.pi * step)
        self._points, self._mass = points, density * _WEIGHTS * high
        self._share = share


@lru_cache(maxsize=4096)
def boundaries(shares: tuple[float, ...], alpha: float = ALPHA) -> tuple[float, ...]:
    """The boundaries of |z| at looks whose last share need not be 1, see the module.

    Args:
        shares: shares of the pairs judged at the looks, increasing, above 0 and at most 1.
        alpha: two-sided error over all looks.
    """
    bounds: list[float] = []
    path, total = _Path(), 0.0
    for share in shares:
        error = spent(share, alpha) - total
        bound = _bound(path, share, error)
        total += error
        path.advance(share, bound)
        bounds.append(bound)
    return tuple(bounds)


def _bound(path: _Path, share: float, error: float) -> float:
    """The bound that |z| exceeds at the next look with the chance `error`."""
    from scipy import optimize  # noqa: PLC0415

    def excess(bound: float) -> float:
        return float(sum(path.exits(share, bound)) - error)

    if excess(_MAX_Z) >= 0:
        return _MAX_Z
    return float(optimize.brentq(excess, 0.0, _MAX_Z, xtol=1e-8))


def z_of_p(p: float, sign: float) -> float:
    """A two-sided p value as a normal quantile with a sign; NaN for NaN."""
    from scipy import special  # noqa: PLC0415

    return math.copysign(min(-float(special.ndtri(p / 2)), 2 * _MAX_Z), sign)


def repeated_p(shares: Sequence[float], z: float) -> float:
    """The smallest error at which the boundary of the last look is reached.

    It is a valid p value whatever the reason to stop at this look (Jennison and Turnbull, 2000,
    section 9.3), and at most alpha where |z| reaches the boundary for alpha.

    Args:
        shares: of the looks so far, the last of which has `z`.
        z: NaN if the statistic has no variance.
    """
    from scipy import optimize  # noqa: PLC0415

    key = tuple(shares)

    def excess(log_alpha: float) -> float:
        return boundaries(key, math.exp(log_alpha))[-1] - abs(z)

    ends = math.log(1e-12), 0.0
    if math.isnan(z) or excess(ends[1]) >= 0:
        return math.nan if math.isnan(z) else 1.0
    if excess(ends[0]) <= 0:
        return 1e-12
    return math.exp(optimize.brentq(excess, *ends, xtol=1e-4))


def decided(p_values: Mapping[str, float], alpha: float = ALPHA) -> list[str]:
    """The comparisons that are decided, by the group-sequential Holm procedure.

    Of m comparisons that are not yet decided, one is decided if it reaches its boundary for
    alpha / m; its share of the error is then free for the others, whose boundaries are computed
    again from their first look (Ye, Li, Liu and Yao, 2013, the variable procedure). With repeated p
    values, this is Holm's correction.

    Args:
        p_values: `repeated_p` of each comparison at its last look; those decided earlier keep the p
            value of the look that decided them.
        alpha: the chance of one or more wrong decisions.
    """
    adjusted = holm(list(p_values.values()))
    return [name for name, p in zip(p_values, adjusted, strict=True) if p <= alpha]


def conditional_power(share: float, z: Any, bound: Any) -> Any:
    """The chance to reach the boundary of the last look in the direction seen, if all goes well.

    The trend is optimistic: the estimate plus `OPTIMISM` standard errors (Pepe and Anderson, 1992,
    Two-stage experimental designs: early stopping with a negative result).

    Args:
        share: share of the pairs judged, below 1.
        z: the statistic, or an array of any shape.
        bound: boundary of the last look, likewise.
    """
    from scipy import special  # noqa: PLC0415

    drift = (abs(z) + OPTIMISM) / math.sqrt(share)
    ahead = abs(z) * math.sqrt(share) + drift * (1 - share) - bound
    return special.ndtr(ahead / math.sqrt(1 - share))


def level_at(shares: Sequence[float]) -> float:
    """The confidence level of the repeated intervals of a look (Jennison and Turnbull, 1989).

    Intervals of this level at every look cover the truth together in 95 %, so that any reason to
    stop is allowed. It is above 0.95.

    Args:
        shares: of the looks so far.
    """
    from scipy import special  # noqa: PLC0415

    return 1 - 2 * float(special.ndtr(-boundaries(tuple(shares))[-1]))


def more_extreme(shares: Sequence[float], bounds: Sequence[float], z: Any, drift: Any) -> Any:
    """The chance of a result above the one seen, by stage-wise ordering.

    Above are the results that crossed the upper boundary at an earlier look, or that have a higher
    z at this one (Tsiatis, Rosner and Mehta, 1984, Exact confidence intervals following a group
    sequential test). A stop for futility is ignored, as if the look had been planned as the last.

    Args:
        shares: share of the pairs judged at the looks so far.
        bounds: of |z| at the looks before the last.
        z: the statistic at the last look; a number, or an array with the shape of `drift`.
        drift: mean of z at share 1.
    """
    path, chance = _Path(), 0.0
    for share, bound in zip(shares[:-1], bounds, strict=True):
        chance += path.exits(share, bound, drift)[1]
        path.advance(share, bound)
    return chance + path.exits(shares[-1], z, drift)[1]


def stagewise_interval(
    estimate: ClusteredMean, shares: Sequence[float], bounds: Sequence[float], limit: float = 1.0
) -> Interval:
    """The median-unbiased difference and its 95 % interval after a stop, by stage-wise ordering.

    The distance of z from its mean is a t statistic as a normal quantile, so that a single look
    gives the t interval of the report.

    Args:
        estimate: at the look of the stop.
        shares: see `more_extreme`.
        bounds: see `more_extreme`.
        limit: the largest possible difference.
    """
    from scipy import optimize, special  # noqa: PLC0415

    interval, p = difference_interval(estimate, limit)
    if math.isnan(p) or estimate.error == 0:
        # The variance is unknown: its substitute has a level only.
        return difference_interval(estimate, limit, level_at(shares))[0]
    z, share = z_of_p(p, estimate.mean), shares[-1]
    reach = (abs(z) + _MAX_Z) / math.sqrt(shares[0])

    def difference(chance: float) -> float:
        drift = optimize.brentq(
            lambda drift: more_extreme(shares, bounds, z, drift) - chance, -reach, reach
        )
        distance = z - drift * math.sqrt(share)
        # By the lower tail, because the upper one rounds to 1.
        t = -special.stdtrit(estimate.freedom, float(special.ndtr(-abs(distance))))
        value = estimate.mean - estimate.error * math.copysign(t, distance)
        return float(np.clip(value, -limit, limit))

    low, median, high = map(difference, (ALPHA / 2, 0.5, 1 - ALPHA / 2))
    return replace(interval, mean=median, low=low, high=high)


def expected_looks(
    shares: Sequence[float], alpha: float, drift: float, *, futility: bool, paths: int = 20_000
) -> np.ndarray:
    """The chance to be judged until each look, by seeded simulated paths; shape (looks,).

    Args:
        shares: shares of the pairs judged at the looks.
        alpha: two-sided error of the comparison.
        drift: mean of z at the last look.
        futility: whether to stop for futility.
        paths: number of paths.
    """
    steps = np.diff(shares, prepend=0.0)
    random = np.random.default_rng(0)
    z = random.normal(drift * steps, np.sqrt(steps), (paths, len(steps))).cumsum(axis=1)
    z /= np.sqrt(shares)
    bounds = boundaries(tuple(shares), alpha)
    is_active, chances = np.ones(paths, bool), []
    for look, (share, bound) in enumerate(zip(shares, bounds, strict=True)):
        chances.append(is_active.mean())
        is_active &= np.abs(z[:, look]) < bound
        if futility and look < len(bounds) - 1:
            is_active &= conditional_power(share, z[:, look], bounds[-1]) >= MIN_POWER
    return np.array(chances)
