"""A linear model of preferences on differences of anything: which side of a pair is chosen.

Logistic regression without intercept, which is the Bradley-Terry model with a linear reward (paper,
4.1). Whatever the sign of a row, with its label following, the fit is the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litbench.errors import ConfigError, DataError


@dataclass(frozen=True)
class LinearPreference:
    """A fitted model.

    Attributes:
        coefficients: per column divided by its scale; positive means more of it is preferred.
        scale: root mean square of each column over the training rows; 1 for a column of zeros.
        c: the inverse strength of the L2 penalty that was chosen.
    """

    coefficients: np.ndarray
    scale: np.ndarray
    c: float

    def margins(self, differences: np.ndarray) -> np.ndarray:
        """Log-odds that the first side is chosen; 0 for a row of zeros; float64, shape (n,)."""
        terms = differences / self.scale * self.coefficients
        # Summed alike whatever the batch, and rows of opposite sign to opposite numbers.
        return np.array([math.fsum(row) for row in terms.tolist()], dtype=np.float64)


def fit_linear_preference(
    differences: np.ndarray,
    first_chosen: np.ndarray,
    prompts: Sequence[str],
    strengths: Sequence[float],
    folds: int = 5,
) -> LinearPreference:
    """Fit the model; the strength of the penalty is chosen by log-loss in folds over prompts.

    Args:
        differences: first side minus second side; shape (n, columns).
        first_chosen: bool, shape (n,).
        prompts: of each row; shape (n,).
        strengths: inverse strengths of the penalty to choose from; they hold for columns of root
            mean square 1.
        folds: how many inner folds at most.

    Raises:
        DataError: fewer than two rows.
        ConfigError: no strength, or one that is not positive.
    """
    from sklearn.metrics import log_loss  # noqa: PLC0415
    from sklearn.model_selection import GroupKFold  # noqa: PLC0415

    if len(differences) < 2:
        raise DataError(f"{len(differences)} pairs are too few for a linear model: give two")
    if not strengths or min(strengths) <= 0:
        raise ConfigError(f"c: {list(strengths)}: give at least one strength, all of them positive")
    scale = np.sqrt(np.square(differences, dtype=np.float64).mean(0))
    scale[scale < 1e-12] = 1.0
    # The side that was chosen always first: one row for a pair, and its sign has no part in it.
    toward_chosen = np.where(first_chosen[:, None], differences, -differences) / scale
    groups, group = np.unique(np.asarray(prompts), return_inverse=True)
    count, chosen = min(folds, len(groups)), strengths[0]
    if len(strengths) > 1 and count > 1:
        losses = dict.fromkeys(strengths, 0.0)
        for train, test in GroupKFold(count).split(toward_chosen, groups=group):
            for c in strengths:
                found = logistic(toward_chosen[train], c)
                p = 1 / (1 + np.exp(-np.clip(toward_chosen[test] @ found, -700, 700)))
                losses[c] += log_loss(np.ones(len(test)), p, labels=[0, 1], normalize=False)
        chosen = min(strengths, key=lambda c: (losses[c], c))
    return LinearPreference(logistic(toward_chosen, chosen), scale, chosen)


def logistic(toward_chosen: np.ndarray, c: float) -> np.ndarray:
    """Minimise sum(log(1 + exp(-rows . w))) + |w|^2 / (2 c).

    Args:
        toward_chosen: chosen side minus the other; shape (n, columns).
        c: inverse strength of the penalty.

    Returns:
        The coefficients; shape (columns,).
    """
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    # sklearn wants two classes: every row from both sides, at half the weight each.
    both = np.concatenate([toward_chosen, -toward_chosen])
    label = np.repeat([True, False], len(toward_chosen))
    model = LogisticRegression(
        C=c, fit_intercept=False, solver="newton-cholesky", max_iter=1_000, tol=1e-8
    )
    fitted: np.ndarray = model.fit(both, label, sample_weight=np.full(len(both), 0.5)).coef_[0]
    return fitted
