"""Calibration of probabilities.

The label is always "chosen" and never varies, so p_chosen cannot be compared with it. Instead, the
confidence max(p, 1 - p) is compared with whether the favoured story is the chosen one.
"""

import math
from dataclasses import dataclass

import numpy as np

from litbench.metrics.intervals import Interval, Training, jackknife_interval

# Maximum number of bins of equal size, and minimum number of pairs in each.
_BINS, _MIN_PAIRS = 8, 20


@dataclass(frozen=True)
class Calibration:
    """Calibration of a rater's probabilities.

    Attributes:
        brier: mean of (1 - p_chosen)^2; 0.25 if every probability is 1/2.
        log_loss: mean of -log p_chosen, in nats; 0.693 if every probability is 1/2.
        ece: expected calibration error, over bins of equal size.
        ece_if_calibrated: its mean for a rater whose probabilities are right, which is above 0
            since each bin has few pairs.
        bins: mean confidence and agreement in each bin.
        n: number of pairs with a probability.
    """

    brier: float
    log_loss: float
    ece: float
    ece_if_calibrated: float
    bins: list[tuple[float, Interval]]
    n: int


def calibration(
    p_chosen: np.ndarray, clusters: np.ndarray, training: Training | None = None
) -> Calibration | None:
    """Measure calibration.

    Args:
        p_chosen: probability of the chosen story, NaN where missing; shape (n,).
        clusters: prompt of each pair; shape (n,).
        training: of the agreement, see `litbench.metrics.intervals.clustered_mean`.

    Returns:
        The calibration, or None if no probability differs from one half.
    """
    present = np.flatnonzero(np.isfinite(p_chosen))
    p, clusters = p_chosen[present], clusters[present]
    if len(p) == 0 or np.all(p == 0.5):
        return None
    confidence = np.maximum(p, 1 - p)
    correct = np.where(p == 0.5, 0.5, (p > 0.5).astype(float))
    order = np.argsort(confidence, kind="stable")
    parts = np.array_split(order, max(1, min(_BINS, len(p) // _MIN_PAIRS)))
    table = []
    for part in parts:
        trained = None if training is None else training.take(present[part])
        interval = jackknife_interval(correct[part], clusters[part], trained)
        table.append((float(confidence[part].mean()), interval))
    error = sum(
        len(part) * abs(mean - interval.mean)
        for part, (mean, interval) in zip(parts, table, strict=True)
    )
    # The mean distance of a normal variable from its mean, by the binomial variance of each bin.
    by_chance = sum(
        math.sqrt(2 / math.pi * float(np.sum(confidence[part] * (1 - confidence[part]))))
        for part in parts
    )
    return Calibration(
        brier=float(np.mean((1 - p) ** 2)),
        log_loss=float(np.mean([-math.log(max(value, 1e-12)) for value in p])),
        ece=error / len(p),
        ece_if_calibrated=by_chance / len(p),
        bins=table,
        n=len(p),
    )
