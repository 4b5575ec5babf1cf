"""Calibration of simulated raters whose probabilities are known to be right or wrong."""

import math

import numpy as np
import pytest

from litbench.metrics.calibration import calibration


def _simulated(n: int, sharpen: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities for the chosen story by a rater that is right as often as `confidence`.

    What it says is `confidence` with its log-odds multiplied by `sharpen`.
    """
    random = np.random.default_rng(seed)
    confidence = random.uniform(0.5, 0.95, n)
    right = random.random(n) < confidence
    log_odds = sharpen * np.log(confidence / (1 - confidence))
    said = 1 / (1 + np.exp(-log_odds))
    return np.where(right, said, 1 - said), np.arange(n)


def test_a_calibrated_rater_has_an_error_near_zero() -> None:
    result = calibration(*_simulated(20_000, sharpen=1.0))
    # Eight bins of 2,500: a bin's agreement has a standard error of at most 0.01.
    assert result.ece < 0.015


def test_an_overconfident_rater_has_not() -> None:
    result = calibration(*_simulated(20_000, sharpen=3.0))
    assert result.ece > 0.1
    top_confidence, top = result.bins[-1]
    assert top.high < top_confidence


def test_an_underconfident_rater_has_not() -> None:
    result = calibration(*_simulated(20_000, sharpen=0.3))
    assert result.ece > 0.1
    top_confidence, top = result.bins[-1]
    assert top.low > top_confidence


def test_brier_and_log_loss_by_hand() -> None:
    result = calibration(np.array([0.8, 0.4]), np.array([0, 1]))
    assert result.brier == pytest.approx((0.2**2 + 0.6**2) / 2)
    assert result.log_loss == pytest.approx(-(math.log(0.8) + math.log(0.4)) / 2)


def test_one_bin_compares_mean_confidence_with_agreement() -> None:
    # Confidences 0.8, 0.6, 0.5; right, wrong, and half right.
    result = calibration(np.array([0.8, 0.4, 0.5]), np.array([0, 1, 2]))
    assert len(result.bins) == 1
    assert result.ece == pytest.approx(abs((0.8 + 0.6 + 0.5) / 3 - (1 + 0 + 0.5) / 3))


def test_certainty_in_the_wrong_story_is_finite() -> None:
    result = calibration(np.array([0.0, 1.0]), np.array([0, 1]))
    assert result.log_loss == pytest.approx(-math.log(1e-12) / 2)
    assert result.brier == pytest.approx(0.5)


def test_bins_are_of_equal_size_and_ordered_by_confidence() -> None:
    result = calibration(*_simulated(160, sharpen=1.0))
    assert [interval.n for _, interval in result.bins] == [20] * 8
    means = [mean for mean, _ in result.bins]
    assert means == sorted(means)


def test_few_pairs_make_few_bins() -> None:
    p, clusters = _simulated(59, sharpen=1.0)
    assert len(calibration(p, clusters).bins) == 2


def test_the_side_that_is_named_chosen_does_not_matter_to_confidence() -> None:
    p, clusters = _simulated(400, sharpen=1.0)
    named, renamed = calibration(p, clusters), calibration(1 - p, clusters)
    assert [mean for mean, _ in renamed.bins] == pytest.approx([mean for mean, _ in named.bins])
    for (_, plain), (_, mirrored) in zip(named.bins, renamed.bins, strict=True):
        assert mirrored.mean == pytest.approx(1 - plain.mean)


def test_pairs_without_a_probability_are_left_out() -> None:
    result = calibration(np.array([0.8, np.nan, 0.4]), np.array([0, 1, 2]))
    assert result.n == 2
    assert result.brier == pytest.approx((0.2**2 + 0.6**2) / 2)


@pytest.mark.parametrize("p", [[], [np.nan, np.nan], [0.5, 0.5]])
def test_a_rater_without_probabilities_has_no_calibration(p: list[float]) -> None:
    assert calibration(np.array(p), np.arange(len(p))) is None


def test_inputs_stay_as_they_were() -> None:
    p, clusters = _simulated(100, sharpen=1.0)
    before = p.copy(), clusters.copy()
    calibration(p, clusters)
    np.testing.assert_array_equal(p, before[0])
    np.testing.assert_array_equal(clusters, before[1])
