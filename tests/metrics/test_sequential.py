"""Boundaries agree with published tables, and the decisions follow from them."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, special

from litbench.metrics.comparisons import difference_interval
from litbench.metrics.intervals import clustered_mean
from litbench.metrics.sequential import (
    OPTIMISM,
    _Path,
    boundaries,
    conditional_power,
    decided,
    expected_looks,
    level_at,
    more_extreme,
    prompts_at_looks,
    repeated_p,
    spent,
    stagewise_interval,
    z_of_p,
)

# Two-sided 5 %, equally spaced looks: Jennison and Turnbull (2000), Group Sequential Methods,
# Tables 2.1 (Pocock) and 2.3 (O'Brien and Fleming).
POCOCK = [2.178, 2.289, 2.361, 2.413, 2.453, 2.485, 2.512, 2.535, 2.555]
OBRIEN_FLEMING = [1.977, 2.004, 2.024, 2.040, 2.053, 2.063, 2.072, 2.080, 2.087]
TENTHS = tuple(look / 10 for look in range(1, 11))


def exit_probabilities(shares, bounds, drift=0.0):
    """The chances that z first leaves the boundaries at each look: below and above."""
    path, exits = _Path(), []
    for share, bound in zip(shares, bounds, strict=True):
        exits.append(path.exits(share, bound, drift))
        path.advance(share, bound)
    return np.array(exits)


@pytest.mark.parametrize(("constants", "power"), [(POCOCK, 0.0), (OBRIEN_FLEMING, 0.5)])
def test_published_constants(constants, power):
    for looks, constant in enumerate(constants, 2):
        shares = np.arange(1, looks + 1) / looks

        def error(c, shares=shares):
            return exit_probabilities(shares, c * shares**-power).sum() - 0.05

        assert optimize.brentq(error, 1.5, 3) == pytest.approx(constant, abs=6e-4)


def test_spending_boundaries_of_a_published_design(monkeypatch):
    # gsDesign's default, upper bound sfHSD with gamma -4 and a one-sided error of 0.025: the bounds
    # of gsDesign(k = 3) in its documentation. A two-sided 0.05 differs by paths that cross both.
    monkeypatch.setattr("litbench.metrics.sequential.GAMMA", -4.0)
    assert boundaries((1 / 3, 2 / 3, 1.0), 0.05 + 1e-12) == pytest.approx(
        (3.0107, 2.5465, 1.9992), abs=6e-4
    )


@pytest.mark.parametrize("shares", [(1.0,), TENTHS, (0.08, 0.11, 0.5, 0.97, 1.0)])
@pytest.mark.parametrize("alpha", [0.05, 0.0125])
def test_looks_at_any_times_spend_the_planned_error(shares, alpha):
    exits = exit_probabilities(shares, boundaries(shares, alpha))
    assert exits.sum(axis=1).cumsum() == pytest.approx([spent(s, alpha) for s in shares])
    assert exits[:, 0] == pytest.approx(exits[:, 1])


def test_an_early_boundary_does_not_depend_on_later_looks():
    assert boundaries(TENTHS)[:4] == boundaries(TENTHS[:4])
    assert boundaries((1.0,)) == pytest.approx((1.959964,))


def test_repeated_p_is_alpha_at_the_boundary():
    for alpha in (0.05, 0.0125):
        z = boundaries(TENTHS[:3], alpha)[-1]
        assert repeated_p(TENTHS[:3], -z) == pytest.approx(alpha, rel=1e-3)
    assert repeated_p((1.0,), 1.2) == pytest.approx(2 * special.ndtr(-1.2), rel=1e-3)
    assert repeated_p(TENTHS[:3], 0.1) == 1.0
    assert math.isnan(repeated_p((1.0,), math.nan))


def test_a_decision_frees_its_share_of_the_error():
    half = boundaries(TENTHS[:5], 0.025)[-1]
    whole = boundaries(TENTHS[:5], 0.05)[-1]
    between = (half + whole) / 2
    p_values = {name: repeated_p(TENTHS[:5], between) for name in ("first", "second")}
    assert decided(p_values) == []
    p_values["second"] = repeated_p(TENTHS[:2], 5.0)
    assert decided(p_values) == ["first", "second"]
    assert decided({"first": p_values["first"], "second": math.nan}) == ["first"]


def test_conditional_power_is_that_of_the_optimistic_trend():
    share, z, bound = 0.4, 0.8, 2.24
    drift = (z + OPTIMISM) / math.sqrt(share)
    rest = np.random.default_rng(1).normal(drift * 0.6, math.sqrt(0.6), 200_000)
    reached = z * math.sqrt(share) + rest >= bound
    assert conditional_power(share, z, bound) == pytest.approx(reached.mean(), abs=4e-3)
    assert conditional_power(share, -z, bound) == conditional_power(share, z, bound)


def test_repeated_interval_excludes_zero_where_the_boundary_is_reached():
    rng = np.random.default_rng(2)
    clusters = np.repeat(np.arange(12), 3)
    level = level_at(TENTHS[:5])
    assert level_at((1.0,)) == pytest.approx(0.95)
    bound, reached = boundaries(TENTHS[:5])[-1], []
    for mean in np.linspace(0.1, 0.9, 17):
        values = rng.choice([-1.0, 1.0], 36, p=[(1 - mean) / 2, (1 + mean) / 2])
        estimate = clustered_mean(values, clusters)
        z = z_of_p(difference_interval(estimate)[1], estimate.mean)
        interval, _ = difference_interval(estimate, level=level)
        assert (interval.low > 0) == (z > bound)
        reached.append(z > bound)
    assert {*reached} == {True, False}


def test_stagewise_chances_of_a_published_example():
    # The example of rpact's getFinalConfidenceInterval: two looks, O'Brien and Fleming's boundary,
    # 20 and 30 values whose z are added with equal weights. It prints, per sqrt(n), a median of
    # 0.3546145 and the interval 0.06967801 to 0.63468553.
    t = np.array([50 / 130 * math.sqrt(20), 51 / 140 * math.sqrt(30)])
    z, bound = -special.ndtri(special.stdtr([19, 29], -t)).sum() / math.sqrt(2), 2.796511

    def chance(first, last):
        """By the means of z at both looks, as rpact's drift is not the same at both."""
        points = np.linspace(first - 9, bound, 20_001)
        ahead = special.ndtr((last - z + math.sqrt(0.5) * (points - first)) / math.sqrt(0.5))
        density = np.exp(-((points - first) ** 2) / 2) / math.sqrt(2 * math.pi)
        return special.ndtr(first - bound) + np.trapezoid(density * ahead, points)

    for effect, expected in ((0.06967801, 0.025), (0.3546145, 0.5), (0.63468553, 0.975)):
        first, second = effect * math.sqrt(20), effect * math.sqrt(30)
        assert chance(first, (first + second) / math.sqrt(2)) == pytest.approx(expected, abs=1e-6)
        drift = effect * math.sqrt(50)
        assert more_extreme((0.5, 1.0), (bound,), z, drift) == pytest.approx(
            chance(drift * math.sqrt(0.5), drift), abs=1e-5
        )


@pytest.mark.parametrize("drift", [0.0, 2.8, -5.6])
def test_stagewise_intervals_cover(drift):
    bounds, steps = np.array(boundaries(TENTHS)), np.full(10, 0.1)
    paths = np.random.default_rng(3).normal(drift * steps, np.sqrt(steps), (20_000, 10))
    z = paths.cumsum(axis=1) / np.sqrt(TENTHS)
    is_out = (np.abs(z) > bounds) | (np.arange(10) == 9)
    chances = np.concatenate(
        [
            more_extreme(TENTHS[: look + 1], bounds[:look], z[is_first, look], drift)
            for look in range(10)
            if (is_first := is_out.argmax(axis=1) == look).any()
        ]
    )
    for quantile in (0.025, 0.5, 0.975):
        error = math.sqrt(quantile * (1 - quantile) / len(chances))
        assert (chances < quantile).mean() == pytest.approx(quantile, abs=3.5 * error)


def test_stagewise_interval_is_the_test_and_the_t_interval_of_one_look():
    estimate = clustered_mean(np.resize([1.0, 0.0, 1.0, -1.0, 1.0, 0.5], 60), np.arange(60) // 5)
    interval, _ = difference_interval(estimate)
    assert vars(stagewise_interval(estimate, (0.4,), ())) == pytest.approx(vars(interval))
    *bounds, bound = boundaries(TENTHS)
    for sign, factor in itertools.product((1, -1), (0.98, 1.02)):
        t = -special.stdtrit(estimate.freedom, special.ndtr(-bound * factor))
        scaled = replace(estimate, mean=sign * estimate.error * t)
        result = stagewise_interval(scaled, TENTHS, bounds)
        assert (result.low * result.high > 0) == (factor > 1), "it excludes 0 where it is decided"
        assert result.low < result.mean < result.high
        assert abs(result.mean) < abs(scaled.mean), "the plain mean is biased away from 0"
    # A z that no earlier look foretold is beyond the precision of its distribution.
    far = clustered_mean(np.resize([0.9, 0.7], 60), np.arange(60))
    results = [
        stagewise_interval(replace(far, mean=sign * far.mean), TENTHS[:2], bounds[:1])
        for sign in (1, -1)
    ]
    assert results[0].mean == pytest.approx(-results[1].mean)
    assert results[0].low > 0


def test_expected_looks_are_those_of_the_boundaries():
    bounds = boundaries(TENTHS, 0.025)
    exits = exit_probabilities(TENTHS, bounds, drift=3.0).sum(axis=1)
    reached = 1 - np.concatenate([[0], exits.cumsum()[:-1]])
    assert expected_looks(TENTHS, 0.025, 3.0, futility=False) == pytest.approx(reached, abs=0.012)
    # The shares of the calls that the module states for one rater.
    for drift, calls in ((0.0, 0.515), (2.8, 0.59), (5.6, 0.316)):
        chances = expected_looks(TENTHS, 0.05, drift, futility=True)
        assert chances.mean() == pytest.approx(calls, abs=0.01)


def test_few_prompts_have_few_looks():
    assert prompts_at_looks(19, 10) == [19]
    assert prompts_at_looks(20, 10) == [8, 10, 12, 14, 16, 18, 20]
    assert prompts_at_looks(110, 10) == [11, 22, 33, 44, 55, 66, 77, 88, 99, 110]


def test_z_of_p():
    assert z_of_p(0.05, -1) == pytest.approx(-1.959964)
    assert z_of_p(0.0, 1) == 18.0
    assert math.isnan(z_of_p(math.nan, 1))


def test_mass_is_conserved():
    path = _Path()
    path.advance(0.3, 9.0)
    assert sum(path.exits(0.6, 0.0, drift=1.5)) == pytest.approx(1.0)
