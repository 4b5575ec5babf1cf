"""Confidence intervals: hand-computed cases, invariances, and measured coverage."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from litbench.metrics.intervals import (
    Training,
    clustered_mean,
    effective_clusters,
    jackknife_interval,
    mean_interval,
    training_of_difference,
)
from litbench.models.linear_preference import logistic

# Three prompts with 2, 1 and 3 pairs.
VALUES = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 0.0])
CLUSTERS = ["a", "a", "b", "c", "c", "c"]


@st.composite
def samples(draw):
    sizes = draw(st.lists(st.integers(1, 6), min_size=2, max_size=8))
    n = sum(sizes)
    values = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=n, max_size=n))
    return np.array(values), np.repeat(np.arange(len(sizes)), sizes)


def test_the_jackknife_error_is_cv3():
    # Means without a, b, c: 3/4, 3/5, 2/3; the mean is 4/6; (G - 1) / G = 2/3.
    squares = (3 / 4 - 4 / 6) ** 2 + (3 / 5 - 4 / 6) ** 2 + (2 / 3 - 4 / 6) ** 2
    estimate = clustered_mean(VALUES, CLUSTERS)
    assert estimate.mean == pytest.approx(4 / 6)
    assert estimate.error == pytest.approx(math.sqrt(2 / 3 * squares))
    assert (estimate.n, estimate.clusters) == (6, 3)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], "–"),
        ([1.0, 0.0], "0.500 (one prompt: no interval)"),
        ([-1e-9, 0.0], "0.000 (one prompt: no interval)"),
    ],
)
def test_an_interval_without_bounds_has_no_brackets(values, shown):
    assert str(mean_interval(np.array(values), ["p"] * len(values))) == shown


def test_interval_on_the_logit_scale():
    interval = jackknife_interval(VALUES, CLUSTERS)
    assert interval.effective_clusters == pytest.approx(36 / (4 + 1 + 9))
    error = math.sqrt(2 / 3 * ((1 / 12) ** 2 + (1 / 15) ** 2))
    # Student's t at 97.5 % with 36/14 - 1 = 1.571 degrees of freedom lies between the table's
    # 12.706 for 1 and 4.303 for 2.
    logit = [math.log(p / (1 - p)) for p in (interval.low, interval.mean, interval.high)]
    assert logit[2] - logit[1] == pytest.approx(logit[1] - logit[0])
    quantile = (logit[2] - logit[1]) * (2 / 3) * (1 / 3) / error
    assert 4.303 < quantile < 12.706


@pytest.mark.parametrize(("sizes", "worth"), [([3, 3, 3], 3.0), ([1], 1.0), ([8, 1, 1], 100 / 66)])
def test_effective_clusters_by_hand(sizes, worth):
    assert effective_clusters(np.array(sizes)) == pytest.approx(worth)


@given(samples())
def test_effective_clusters_lie_between_one_and_all(sample):
    sizes = np.bincount(sample[1])
    assert 1 <= effective_clusters(sizes) <= len(sizes) + 1e-9


def test_all_right_gives_the_exact_binomial_bound():
    # No failure in 12 draws: the 97.5 % bound is 1 - 0.025^(1/12) = 26.46 %, by the tables.
    interval = jackknife_interval(np.ones(120), np.repeat(np.arange(12), 10))
    assert interval.high == 1.0
    assert 1 - interval.low == pytest.approx(0.2646, abs=5e-5)


def test_identical_prompts_leave_uncertainty():
    interval = jackknife_interval(np.full(60, 0.5), np.repeat(np.arange(20), 3))
    # 1 - 0.025^(1/20) = 16.84 % of prompts may look otherwise, and be all right or all wrong.
    assert interval.low == pytest.approx(0.5 - 0.1684 * 0.5, abs=5e-5)
    assert interval.high == pytest.approx(0.5 + 0.1684 * 0.5, abs=5e-5)


def test_one_prompt_has_a_mean_but_no_bounds():
    interval = jackknife_interval(np.array([1.0, 0.0, 1.0]), ["p", "p", "p"])
    assert interval.mean == pytest.approx(2 / 3)
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


@given(samples())
def test_interval_contains_mean_within_limits(sample):
    interval = jackknife_interval(*sample)
    assert 0 <= interval.low <= interval.mean + 1e-12
    assert interval.mean - 1e-12 <= interval.high <= 1


@given(samples(), st.randoms(use_true_random=False))
def test_prompt_names_and_order_do_not_matter(sample, random):
    values, clusters = sample
    names = [f"prompt {name}" for name in range(clusters.max() + 1)]
    random.shuffle(names)
    order = list(range(len(values)))
    random.shuffle(order)
    plain = jackknife_interval(values, clusters)
    moved = jackknife_interval(values[order], [names[clusters[index]] for index in order])
    for attribute in ("mean", "low", "high", "effective_clusters"):
        assert getattr(moved, attribute) == pytest.approx(getattr(plain, attribute), abs=1e-9)


@given(samples())
def test_naming_the_other_side_mirrors_the_interval(sample):
    values, clusters = sample
    plain, mirrored = jackknife_interval(values, clusters), jackknife_interval(1 - values, clusters)
    assert mirrored.low == pytest.approx(1 - plain.high, abs=1e-9)
    assert mirrored.high == pytest.approx(1 - plain.low, abs=1e-9)


@given(samples(), st.integers(2, 5))
def test_copies_of_pairs_within_their_prompts_add_no_certainty(sample, copies):
    values, clusters = sample
    once = jackknife_interval(values, clusters)
    many = jackknife_interval(np.tile(values, copies), np.tile(clusters, copies))
    assert (many.low, many.high) == (pytest.approx(once.low), pytest.approx(once.high))
    assert many.n == copies * once.n


def test_pairs_that_agree_within_prompts_widen_the_interval():
    values = np.array([1.0] * 30 + [0.0] * 30)
    alike = jackknife_interval(values, np.repeat(np.arange(12), 5))
    mixed = jackknife_interval(values, np.tile(np.arange(12), 5))
    assert alike.high - alike.low > 2 * (mixed.high - mixed.low)


def test_training_of_unknown_effect_doubles_the_variance():
    plain = clustered_mean(VALUES, CLUSTERS)
    assert clustered_mean(VALUES, CLUSTERS, Training()).error == pytest.approx(
        math.sqrt(2) * plain.error
    )


# Changes of the six values if the models are trained without b, c or z, which judges no pair.
CHANGES = np.array([[1, 0, 0], [0, 0.5, 0], [0, -1, 0.5], [0, 0, 0], [-1, 0, 0], [0, 0, 1]]).T
TRAINING = Training(("b", "c", "z"), sparse.csr_array(CHANGES.T))


def test_training_adds_a_third_of_what_retraining_without_each_prompt_adds():
    changes = dict(zip(TRAINING.prompts, CHANGES, strict=True))
    mean, squares = VALUES.mean(), []
    for prompt in "abcz":
        left = np.array([name != prompt for name in CLUSTERS])
        # Of the prompt's own pairs, no model was trained on it.
        retrained = VALUES + np.where(left, changes.get(prompt, 0.0), 0.0)
        squares.append((retrained[left].sum() / left.sum() - mean) ** 2)
    plain = clustered_mean(VALUES, CLUSTERS).error ** 2
    jackknife = 3 / 4 * sum(squares)
    changes_of_others = CHANGES.copy()
    for index, prompt in enumerate(TRAINING.prompts):
        changes_of_others[index, [name == prompt for name in CLUSTERS]] = 0
    training = Training(TRAINING.prompts, sparse.csr_array(changes_of_others.T))
    result = clustered_mean(VALUES, CLUSTERS, training).error ** 2
    assert jackknife > plain
    assert result == pytest.approx(plain + (jackknife - plain) / 3)


def test_the_training_of_a_difference_is_that_of_its_values():
    rows = np.array([0, 2, 3, 5])
    other = Training(("a", "c"), sparse.csr_array(np.arange(12.0).reshape(6, 2)))
    result = training_of_difference(TRAINING, other).take(rows, -1)
    dense = {"a": -np.arange(0, 12, 2.0), "b": CHANGES[0], "z": CHANGES[2]}
    dense["c"] = CHANGES[1] - np.arange(1, 12, 2.0)
    assert result.prompts == ("a", "b", "c", "z")
    assert result.changes.toarray().T.tolist() == [(-dense[name][rows]).tolist() for name in "abcz"]
    (only,) = training_of_difference(None, other).changes.toarray()[1:2].tolist()
    assert only == [-2, -3]
    assert training_of_difference(None, None) is None
    assert training_of_difference(TRAINING, Training()).changes is None


@pytest.fixture(scope="module")
def benchmark(load_program):
    return load_program("benchmarks/intervals.py")


def test_the_benchmark_draws_what_it_says(benchmark):
    random = np.random.default_rng(0)
    values = (random.random(400) < 0.7).astype(float)
    half = 1.96 * values.std() / math.sqrt(400)
    wanted = values.mean() - half, values.mean() + half
    result = benchmark.percentile_bootstrap(values, np.arange(400), 0, resamples=4_000)
    assert result == pytest.approx(wanted, abs=0.008)
    sizes = benchmark.draw_sizes("83 prompts, 619 pairs", random)
    assert (len(sizes), sizes.sum()) == (83, 619)
    assert 1 <= sizes.min() <= sizes.max() <= 40
    many = np.full(20_000, 2)
    pairs = benchmark.draw_outcomes(many, 0.78, 0.3, random).reshape(-1, 2)
    assert pairs.mean() == pytest.approx(0.78, abs=0.01)
    assert np.corrcoef(pairs.T)[0, 1] == pytest.approx(0.3, abs=0.03)


@pytest.mark.long
@pytest.mark.parametrize("name", ["83 prompts, 619 pairs", "46 prompts, 465 pairs"])
@pytest.mark.parametrize(
    ("agreement", "correlation"),
    [(a, c) for a in (0.5, 0.65, 0.78) for c in (0.0, 0.1, 0.3)] + [(0.95, 0.1)],
)
def test_coverage_at_real_sizes(benchmark, name, agreement, correlation):
    methods = {"reported": benchmark.METHODS["jackknife, logit (reported)"]}
    result = benchmark.measure(name, agreement, correlation, 1_000, 0, methods=methods)
    assert 0.92 <= result["reported"][0] <= 0.97


@pytest.mark.long
@pytest.mark.parametrize("method", ["percentile bootstrap", "jackknife, t on effective-1"])
def test_coverage_near_full_agreement(benchmark, method):
    result = benchmark.measure("46 prompts, 465 pairs", 0.95, 0.3, 1_000, 0)
    # 1,000 simulations tell coverages of 0.85 and 0.90 apart by four standard errors of 0.011.
    assert result[method][0] < 0.85
    assert result["jackknife, logit (reported)"][0] > 0.88


def test_coverage_with_few_writers(benchmark):
    pytest.importorskip("litbench.writers.metrics")
    result = benchmark.measure_writers(14, 0.5, 0.6, 100, 0)
    # Three standard errors of 100 simulations at 0.95 are 0.065.
    assert result["prompt and writer (reported)"] > 0.88
    assert result["difference (reported)"] > 0.88
    assert result["prompt"] < 0.65


@pytest.mark.long
@pytest.mark.parametrize("name", ["83 prompts, 619 pairs", "12 prompts, 120 pairs"])
def test_equally_good_raters_are_seldom_called_different(benchmark, name):
    # Binomial: 0.05 plus three standard errors of 0.0069.
    assert benchmark.measure_differences(name, 0.78, 0.1, 1_000, 0) < 0.07


def test_the_interval_of_a_mean_by_hand():
    # Clusters of one size: the jackknife is the standard error of the clusters' means, and the t
    # quantile of 2 degrees of freedom is 4.3027.
    result = mean_interval(np.array([1.0, 3.0, 4.0, 6.0, 10.0, 12.0]), list("aabbcc"))
    means = np.array([2.0, 5.0, 11.0])
    reach = 4.3027 * means.std(ddof=1) / math.sqrt(3)
    assert result.mean == pytest.approx(6)
    assert (result.low, result.high) == pytest.approx((6 - reach, 6 + reach), abs=1e-3)
    assert math.isnan(mean_interval(np.ones(3), list("aaa")).low)


def test_rounding_leaves_no_negative_zero():
    result = mean_interval(np.array([-1e-17, -3e-17, 1e-17, -1e-17]), list("aabb"))
    assert result.mean < 0
    assert str(result) == "0.000 [0.000, 0.000]"


def test_simulated_cross_validation_has_wider_intervals_than_fixed_models(benchmark):
    cell = benchmark.Cell(prompts=12, signal=0.0, is_symmetric=True)
    figures = benchmark.measure_fits(cell, ["features"], 3, 1)
    agreement = figures["features", "agreement"]
    assert agreement["width"] > 1.2 * figures["features", "fixed models"]["width"]
    assert 0.3 < agreement["mean"] < 0.7


def test_the_simulation_fits_the_model_of_the_raters(benchmark):
    drawn = benchmark.draw_set(benchmark.Cell(12, 1.0, False), 1, np.random.default_rng(0))
    for columns, strength in (("style", 0.1), ("words", 1.0)):
        differences = drawn.differences[columns]
        fitted = benchmark.fit_chosen(differences, strength)
        wanted = logistic(differences, np.ones(len(differences), bool), strength)
        assert fitted == pytest.approx(wanted, abs=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("is_symmetric", [False, True])
def test_cross_validation_on_noise_is_seldom_significant(benchmark, is_symmetric):
    cell = benchmark.Cell(24, 0.0, is_symmetric)
    figures = benchmark.measure_fits(cell, ["features"], 200, 3)
    agreement = figures["features", "agreement"]
    # Binomial: 0.05 plus three standard errors of 0.0154.
    assert agreement["p_under_0.05"] < 0.1
    assert figures["features", "fixed models"]["p_under_0.05"] > 0.1
    assert agreement["mean"] == pytest.approx(0.5, abs=0.01)
