"""A linear model of preferences on differences of anything: which side of a pair is chosen.

Logistic regression without intercept, which is the Bradley-Terry model with a linear reward (paper,
4.1). Whatever the sign of a row, with its label following, the fit is the same but for rounding.
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
    weights: np.ndarray | None = None,
) -> LinearPreference:
    """Fit the model; see `choose_strength`; strengths are for columns of size 1."""
    if len(differences) < 2:
        raise DataError(f"{len(differences)} pairs are too few for a linear model: give two")
    scale = np.sqrt(np.square(differences, dtype=np.float64).mean(0))
    scale[scale < 1e-12] = 1.0
    scaled = differences / scale
    c = choose_strength(scaled, first_chosen, prompts, strengths, weights)
    return LinearPreference(logistic(scaled, first_chosen, c, weights), scale, c)


def choose_strength(
    differences: np.ndarray,
    first_chosen: np.ndarray,
    prompts: Sequence[str],
    strengths: Sequence[float],
    weights: np.ndarray | None = None,
    folds: int = 5,
) -> float:
    """The inverse strength of the penalty with the least log-loss in folds over prompts.

    Args:
        differences: first side minus second side, on the scale that is penalised; shape
            (n, columns).
        first_chosen: bool, shape (n,).
        prompts: of each row; shape (n,).
        strengths: to choose from.
        weights: of the rows; 1 for each when None.
        folds: how many at most; the first strength is taken where there cannot be two.
    """
    from sklearn.metrics import log_loss  # noqa: PLC0415
    from sklearn.model_selection import GroupKFold  # noqa: PLC0415

    if not strengths or min(strengths) <= 0:
        raise ConfigError(f"c: {list(strengths)}: give at least one strength, all of them positive")
    groups, group = np.unique(np.asarray(prompts), return_inverse=True)
    count = min(folds, len(groups))
    if len(strengths) == 1 or count < 2:
        return strengths[0]
    weights = np.ones(len(differences)) if weights is None else weights
    losses = dict.fromkeys(strengths, 0.0)
    for train, test in GroupKFold(count).split(differences, groups=group):
        for c in strengths:
            found = logistic(differences[train], first_chosen[train], c, weights[train])
            # Of the chosen side, so that a row's sign has no part in it.
            margins = np.where(first_chosen[test], 1.0, -1.0) * (differences[test] @ found)
            p = 1 / (1 + np.exp(-np.clip(margins, -700, 700)))
            losses[c] += log_loss(
                np.ones(len(test)), p, labels=[0, 1], sample_weight=weights[test], normalize=False
            )
    return min(strengths, key=lambda c: (losses[c], c))


def logistic(
    differences: np.ndarray, first_chosen: np.ndarray, c: float, weights: np.ndarray | None = None
) -> np.ndarray:
    """Minimise sum(weight * log(1 + exp(-toward chosen . w))) + |w|^2 / (2 c).

    Arguments are those of `choose_strength`. Returns the coefficients; float64, shape (columns,).
    The last digits depend on how many threads add up the rows.
    """
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    if differences.shape[1] > len(differences):
        # The penalty leaves no weight outside the space of the rows, and Newton's matrix is smaller
        # within it.
        basis: np.ndarray = np.linalg.svd(differences, full_matrices=False)[2]
        within: np.ndarray = logistic(differences @ basis.T, first_chosen, c, weights) @ basis
        return within
    weights = np.ones(len(differences)) if weights is None else weights
    # Both orders of every row, at half the weight each: two classes whatever the labels.
    both = np.concatenate([differences, -differences])
    label = np.concatenate([first_chosen, ~first_chosen])
    # Newton: few columns and many rows; lbfgs gives up short of this tolerance on some data.
    model = LogisticRegression(
        C=c, fit_intercept=False, solver="newton-cholesky", max_iter=1_000, tol=1e-8
    )
    model.fit(both, label, sample_weight=np.tile(weights, 2) / 2)
    found: np.ndarray = model.coef_[0].astype(np.float64)
    return found
