"""Calibration of simulated raters whose probabilities are known to be right or wrong."""

import math

import numpy as np
import pytest

from litbench.metrics.calibration import calibration


def _simulated(n, sharpen, seed=0):
    """Probabilities for the chosen story by a rater that is right as often as `confidence`.

    What it says is `confidence` with its log-odds multiplied by `sharpen`.
    """
    random = np.random.default_rng(seed)
    confidence = random.uniform(0.5, 0.95, n)
    right = random.random(n) < confidence
    log_odds = sharpen * np.log(confidence / (1 - confidence))
    said = 1 / (1 + np.exp(-log_odds))
    return np.where(right, said, 1 - said), np.arange(n)


def test_a_calibrated_rater_has_an_error_near_zero():
    result = calibration(*_simulated(20_000, sharpen=1.0))
    # Eight bins of 2,500: a bin's agreement has a standard error of at most 0.01.
    assert result.ece < 0.015


def test_an_overconfident_rater_has_not():
    result = calibration(*_simulated(20_000, sharpen=3.0))
    assert result.ece > 0.1
    top_confidence, top = result.bins[-1]
    assert top.high < top_confidence


def test_brier_and_log_loss_of_pairs_with_a_probability():
    result = calibration(np.array([0.8, np.nan, 0.4]), np.array([0, 1, 2]))
    assert result.n == 2
    assert result.brier == pytest.approx((0.2**2 + 0.6**2) / 2)
    assert result.log_loss == pytest.approx(-(math.log(0.8) + math.log(0.4)) / 2)


def test_certainty_in_the_wrong_story_is_finite():
    result = calibration(np.array([0.0, 1.0]), np.array([0, 1]))
    assert result.log_loss == pytest.approx(-math.log(1e-12) / 2)
    assert result.brier == pytest.approx(0.5)


def test_bins_are_of_equal_size_and_ordered_by_confidence():
    result = calibration(*_simulated(160, sharpen=1.0))
    assert [interval.n for _, interval in result.bins] == [20] * 8
    means = [mean for mean, _ in result.bins]
    assert means == sorted(means)


@pytest.mark.parametrize("p", [[], [np.nan, np.nan], [0.5, 0.5]])
def test_a_rater_without_probabilities_has_no_calibration(p):
    assert calibration(np.array(p), np.arange(len(p))) is None


def test_a_calibrated_rater_has_the_error_that_is_printed_beside():
    results = [calibration(*_simulated(100, sharpen=1.0, seed=seed)) for seed in range(200)]
    result = np.mean([result.ece for result in results])
    assert result == pytest.approx(0.078, abs=0.005)
    assert np.mean([result.ece_if_calibrated for result in results]) == pytest.approx(
        result, abs=0.004
    )
