"""Paired comparisons: hand-computed differences and Holm's correction."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.metrics.comparisons import (
    compare_all,
    difference_interval,
    holm,
    interval_p,
    paired_difference,
)
from litbench.metrics.intervals import Interval, clustered_mean, jackknife_interval
from litbench.metrics.sets import shrunken

P_VALUES = st.lists(st.floats(0, 1), max_size=8)


def test_holm_follows_the_textbook():
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 gives 0.02, 0.03, 0.06, 0.04; the last may
    # not fall below the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(P_VALUES)
def test_holm_bounds(p_values):
    for p, adjusted in zip(p_values, holm(p_values), strict=True):
        assert p <= adjusted <= min(1.0, p * len(p_values)) + 1e-12


def test_the_difference_and_its_p_value_by_hand():
    # Five prompts with one pair each; differences 1, 1, 0, 1, -1: mean 0.4, variance 0.8,
    # error sqrt(0.8 / 5) = 0.4, so t = 1 on 4 degrees of freedom: p = 0.3739 by the tables,
    # and 2.776 errors to each bound, cut at 1.
    credit = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
    reference = np.array([0.0, 0.0, 1.0, 0.0, 1.0])
    interval, p = paired_difference(credit, reference, list("abcde"))
    assert interval.mean == pytest.approx(0.4)
    assert interval.low == pytest.approx(0.4 - 2.776 * 0.4, abs=1e-3)
    assert interval.high == 1.0
    assert p == pytest.approx(0.3739, abs=5e-5)


@given(st.integers(0, 10_000))
def test_swapping_rater_and_reference_flips_the_sign(seed):
    random = np.random.default_rng(seed)
    first, other = random.integers(0, 2, size=(2, 20)).astype(float)
    clusters = random.integers(0, 6, size=20)
    forth, p_forth = paired_difference(first, other, clusters)
    back, p_back = paired_difference(other, first, clusters)
    assert (back.mean, back.low, back.high) == pytest.approx((-forth.mean, -forth.high, -forth.low))
    assert p_back == pytest.approx(p_forth)


@given(st.integers(0, 10_000))
def test_p_value_matches_interval(seed):
    random = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(8), 3)
    first = (random.random(24) < 0.9).astype(float)
    other = (random.random(24) < 0.5).astype(float)
    interval, p = paired_difference(first, other, clusters)
    assert (p < 0.05) == (interval.low > 0 or interval.high < 0)


@pytest.mark.parametrize(("prompts", "clear"), [(2, False), (5, False), (6, True), (40, True)])
def test_a_difference_without_any_variance_still_needs_prompts(prompts, clear):
    # Better everywhere by 1: by chance that is 2 * 0.5^G, below 0.05 from 6 prompts on.
    interval, p = paired_difference(np.ones(prompts), np.zeros(prompts), range(prompts))
    assert p == pytest.approx(min(1.0, 2 * 0.5**prompts))
    assert (p < 0.05) == clear
    assert (interval.low > 0) == clear
    assert interval.high == 1.0


def test_pairing_sees_a_lead_that_separate_intervals_hide():
    # Ten prompts always missed and ten always met; the rater mends one pair of each of the first.
    clusters = np.repeat(np.arange(20), 5)
    base = (clusters >= 10).astype(float)
    better = base.copy()
    better[:50:5] = 1.0
    _, p = paired_difference(better, base, clusters)
    assert p < 0.01
    assert jackknife_interval(better, clusters).low < base.mean()


@pytest.mark.parametrize(
    ("reference", "compared"),
    [("b", [("a", "b"), ("c", "b")]), (None, [("a", "b"), ("a", "c"), ("b", "c")])],
)
def test_compare_with_a_reference_or_all(reference, compared):
    draw = np.random.default_rng(0)
    credits = {name: (draw.random(60) < p).astype(float) for name, p in (("a", 0.9), ("b", 0.5))}
    credits["c"] = credits["b"].copy()
    clusters = np.arange(60) % 12
    result = compare_all(credits, reference, clusters)
    assert [(item.rater, item.reference) for item in result] == compared
    assert [item.p_holm for item in result] == holm([item.p_value for item in result])
    assert [item.is_clear for item in result] == ["a" in pair for pair in compared]
    assert result[0].difference == paired_difference(credits["a"], credits["b"], clusters)[0]


def test_a_p_value_of_an_interval_is_that_of_its_test():
    random = np.random.default_rng(3)
    values, clusters = random.random(60) - 0.4, np.arange(60) // 3
    interval, p = difference_interval(clustered_mean(values, clusters))
    assert interval_p(interval) == pytest.approx(p)
    # A share is excluded at 5 % exactly at its bounds.
    share = jackknife_interval(values + 0.4, clusters)
    for bound in (share.low, share.high):
        assert interval_p(share, bound, is_share=True) == pytest.approx(0.05)
    assert math.isnan(interval_p(replace(share, low=math.nan, high=math.nan), 0.4, is_share=True))


def test_shrunken_figures_are_nearer_to_the_truth():
    """The best of 14 sets is overstated; its shrunken value is not."""
    random = np.random.default_rng(4)
    errors, gains, overstated = np.full(14, 0.05), [], []
    for _ in range(300):
        truth = 0.55 + 0.04 * random.standard_normal(14)
        means = truth + errors * random.standard_normal(14)
        result = shrunken([Interval(m, m - 0.098, m + 0.098, 100, 30, 30.0) for m in means])
        best = int(np.argmax(means))
        overstated.append((means[best] - truth[best], result[best] - truth[best]))
        gains.append(np.mean((means - truth) ** 2) - np.mean((np.array(result) - truth) ** 2))
    plain, shrunk = np.mean(overstated, axis=0)
    assert plain > 0.04
    assert abs(shrunk) < 0.015
    assert np.mean(gains) > 0
    assert shrunken([Interval(0.5, 0.4, 0.6, 9, 9, 9.0)] * 9) is None
    equal = shrunken(
        [Interval(0.5, math.nan, math.nan, 9, 1, 1.0)] + [Interval(0.6, 0.5, 0.7, 9, 9, 9.0)] * 9
    )
    assert equal == pytest.approx([0.59] * 10, abs=0.011)
