"""A linear model of which side of a pair is chosen, from differences of features of the two sides.

Logistic regression without intercept, which is the Bradley-Terry model with a linear reward (paper,
4.1). Negating a row and its label changes the fit only by rounding.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.data.records import connected_prompts, pair_weights
from litbench.raters.interface import BlindPair, ScoreRater
from litbench.raters.nonstories import NEGATIVES
from litbench.runs.errors import ConfigError, DataError

_FOLDS = 5
_PAIRS_AT_ONCE = 1_000


@dataclass(frozen=True)
class LinearPreference:
    """A fitted model.

    Attributes:
        coefficients: coefficients of the scaled columns; positive means more of it is preferred.
        scale: root mean square of each column over the training rows; 1 for a column of zeros.
        c: the selected inverse strength of the L2 penalty.
    """

    coefficients: np.ndarray
    scale: np.ndarray
    c: float

    def margins(self, differences: np.ndarray) -> np.ndarray:
        """Log-odds that the first side is chosen; 0 for a row of zeros; float64, shape (n,)."""
        terms = differences / self.scale * self.coefficients
        # fsum does not depend on the batch, and gives opposite sums for opposite rows.
        return np.array([math.fsum(row) for row in terms.tolist()], dtype=np.float64)


class LinearRater(ScoreRater):
    """A rater whose reward is vector . coefficients, plus a constant.

    Subclasses define `vectors`.

    Attributes:
        coefficients: float64, shape (columns,).
        without_each: returns the training prompts, shape (k,), and the coefficients of the model
            that is trained without each of them, shape (k, columns); None if that takes too long.
    """

    coefficients: np.ndarray
    without_each: Callable[[], tuple[Sequence[str], np.ndarray]] | None = None

    def vectors(self, prompts: Sequence[str], stories: Sequence[str]) -> Any:
        """Return the vectors of stories; shape (n, columns), may be sparse."""
        raise NotImplementedError

    def flipped_by(self, pairs: Sequence[BlindPair]) -> list[list[str]] | None:
        """See `litbench.raters.interface.Rater.flipped_by`."""
        if self.without_each is None:
            return None
        names, coefficients = self.without_each()
        flipped = []
        for start in range(0, len(pairs), _PAIRS_AT_ONCE):
            part = pairs[start : start + _PAIRS_AT_ONCE]
            prompts = [pair.prompt for pair in part]
            first, second = (
                self.vectors(prompts, [getattr(pair, side) for pair in part])
                for side in ("first", "second")
            )
            differences = first - second
            margins = differences @ self.coefficients
            is_flipped = (differences @ coefficients.T) * margins[:, None] < 0
            flipped += [np.array(names)[row].tolist() for row in is_flipped]
        return flipped


@cache
def _loaded_libraries() -> Any:
    """The libraries whose threads can be limited; finding them takes longer than a small fit."""
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415

    return ThreadpoolController()


def leave_out_each(
    differences: np.ndarray,
    first_chosen: np.ndarray,
    prompts: Sequence[str],
    c: float,
    coefficients: np.ndarray,
    weights: np.ndarray | None = None,
) -> tuple[list[str], np.ndarray]:
    """Coefficients of `logistic` without the pairs of each prompt, with the same strength.

    They are those of one Newton step (Pregibon, 1981, Logistic regression diagnostics).

    Args:
        differences: first side minus second side, scaled; shape (n, columns), not sparse.
        first_chosen: see `choose_strength`.
        prompts: prompt of each row; shape (n,).
        c: inverse strength of the penalty.
        coefficients: the fitted coefficients; shape (columns,).
        weights: weights of the rows; 1 by default.

    Returns:
        The distinct prompts, shape (k,), and the coefficients, shape (k, columns).
    """
    names, group = np.unique(np.asarray(prompts), return_inverse=True)
    signed = differences * np.where(first_chosen, 1.0, -1.0)[:, None]
    wrong = 1 / (1 + np.exp(np.clip(signed @ coefficients, -700, 700)))
    pull = wrong if weights is None else weights * wrong
    curvature = pull * (1 - wrong)
    without = np.tile(coefficients, (len(names), 1))
    with _loaded_libraries().limit(limits=1, user_api="blas"):
        hessian = signed.T @ (curvature[:, None] * signed) + np.eye(len(coefficients)) / c
        reach = np.linalg.solve(hessian, signed.T).T
        for index in range(len(names)):
            rows = np.flatnonzero(group == index)
            # Removing few rows from the Hessian: Woodbury's identity.
            mutual = np.eye(len(rows)) - curvature[rows, None] * (reach[rows] @ signed[rows].T)
            without[index] -= np.linalg.solve(mutual, pull[rows]) @ reach[rows]
    return names.tolist(), without


def fit_linear_preference(
    differences: np.ndarray,
    first_chosen: np.ndarray,
    prompts: Sequence[str],
    strengths: Sequence[float],
    weights: np.ndarray | None = None,
) -> LinearPreference:
    """Fit the model; for the arguments see `choose_strength`. Columns are scaled before the fit."""
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
) -> float:
    """Select the inverse strength of the penalty with the lowest log-loss in 5 folds over prompts.

    With fewer than 5 prompts there are as many folds; with one, the first strength is returned.

    Args:
        differences: first side minus second side, scaled; shape (n, columns), may be sparse.
        first_chosen: whether the first side is the chosen one; bool, shape (n,).
        prompts: prompt of each row; shape (n,).
        strengths: inverse strengths to select from.
        weights: weights of the rows; 1 by default.
    """
    from sklearn.metrics import log_loss  # noqa: PLC0415
    from sklearn.model_selection import GroupKFold  # noqa: PLC0415

    if not strengths or min(strengths) <= 0:
        raise ConfigError(f"c: {list(strengths)}: give at least one strength, all of them positive")
    groups, group = np.unique(np.asarray(prompts), return_inverse=True)
    count = min(_FOLDS, len(groups))
    if len(strengths) == 1 or count < 2:
        return strengths[0]
    weights = np.ones(len(group)) if weights is None else weights
    losses = dict.fromkeys(strengths, 0.0)
    for train, test in GroupKFold(count).split(differences, groups=group):
        for c in strengths:
            fitted = logistic(differences[train], first_chosen[train], c, weights[train])
            # Margins of the chosen side, which do not depend on the sign of a row.
            margins = np.where(first_chosen[test], 1.0, -1.0) * (differences[test] @ fitted)
            p = 1 / (1 + np.exp(-np.clip(margins, -700, 700)))
            losses[c] += log_loss(
                np.ones(len(test)), p, labels=[0, 1], sample_weight=weights[test], normalize=False
            )
    return min(strengths, key=lambda c: (losses[c], c))


def fit_to_pairs(
    pairs: pa.Table,
    differences: np.ndarray,
    first_chosen: np.ndarray,
    strengths: Sequence[float],
) -> tuple[float, np.ndarray]:
    """Select the strength and fit, with the prompts and weights of a pairs table.

    For the other arguments see `choose_strength`. Negatives do not help to select the strength.
    Returns the strength, and the coefficients; float64, shape (columns,).
    """
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    weights, groups = pair_weights(pairs), np.array(connected_prompts(pairs))
    is_judged = np.array(pairs["label_source"]) != NEGATIVES
    # The number of threads changes the last digits, and does not help with few columns.
    with threadpool_limits(1, "blas"):
        c = choose_strength(
            differences[is_judged],
            first_chosen[is_judged],
            groups[is_judged].tolist(),
            strengths,
            weights[is_judged],
        )
        return c, logistic(differences, first_chosen, c, weights)


def logistic(
    differences: np.ndarray, first_chosen: np.ndarray, c: float, weights: np.ndarray | None = None
) -> np.ndarray:
    """Minimise sum(weight * log(1 + exp(-(chosen - rejected) . w))) + |w|^2 / (2 c).

    For the arguments see `choose_strength`. Returns the coefficients; float64, shape (columns,).
    The last digits depend on the number of BLAS threads.
    """
    from scipy import sparse  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    rows, columns = differences.shape
    weights = np.ones(rows) if weights is None else weights
    # Both orders of every row, with half the weight each, so that there are always two classes.
    label = np.concatenate([first_chosen, ~first_chosen])
    twice = np.tile(weights, 2) / 2
    is_sparse = sparse.issparse(differences)
    if columns > rows and not is_sparse:
        # The solution is in the row space, where Newton's matrix is smaller.
        basis: np.ndarray = np.linalg.svd(differences, full_matrices=False)[2]
        within: np.ndarray = logistic(differences @ basis.T, first_chosen, c, weights) @ basis
        return within
    stack: Any = sparse.vstack if is_sparse else np.concatenate
    # Newton: lbfgs does not reach these tolerances on some data.
    solver, tolerance = ("newton-cg", 1e-10) if is_sparse else ("newton-cholesky", 1e-8)
    model = LogisticRegression(
        C=c, fit_intercept=False, solver=solver, max_iter=1_000, tol=tolerance
    )
    model.fit(stack([differences, -differences]), label, sample_weight=twice)
    coefficients: np.ndarray = model.coef_[0].astype(np.float64)
    return coefficients
