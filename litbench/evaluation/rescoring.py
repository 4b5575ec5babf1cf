"""Float32 rewards for the best stories of each prompt, where 16 bits may change their order."""

from collections.abc import Callable

import numpy as np

# Stories on which the error of 16 bits is measured first.
_SAMPLE = 64


def rescore_best(
    rewards: np.ndarray, groups: np.ndarray, score: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, int]:
    """Score stories again whose reward is within the error of 16 bits of the best of their prompt.

    The error is the largest difference between both rewards of a story, over a sample and all
    stories that were scored again. Each reward may be wrong by it, so stories within twice the
    error of the best are scored again, unless there is only the best.

    Args:
        rewards: rewards in 16 bits, float64, shape (n,).
        groups: number of the prompt of each story, from 0, shape (n,).
        score: returns the float32 rewards of the stories with these indices.

    Returns:
        The rewards, float64, shape (n,): float32 where a story was scored again. The best story of
        each prompt is that of float32, if no error is larger than those measured. And the number of
        stories that were scored again.
    """
    best = np.full(groups.max(initial=-1) + 1, -np.inf)
    np.maximum.at(best, groups, rewards)
    exact = np.full(len(rewards), np.nan)
    indices = np.unique(np.linspace(0, len(rewards) - 1, min(len(rewards), _SAMPLE)).astype(int))
    while len(indices):
        exact[indices] = score(indices)
        error = np.nanmax(np.abs(exact - rewards))
        is_near = rewards >= best[groups] - 2 * error
        is_contested = is_near & (np.bincount(groups[is_near], minlength=len(best)) > 1)[groups]
        indices = np.flatnonzero(is_contested & np.isnan(exact))
    is_exact = np.isfinite(exact)
    return np.where(is_exact, exact, rewards), int(is_exact.sum())
