"""Place ratings by criterion on the distribution of a reference, as WebNovelBench does.

Ratings become z-scores of the reference, the weights of the criteria come from the first principal
component, and the weighted sum is placed among those of the reference ("WebNovelBench", arXiv
2505.14818). A reference is a set of works, each with its mean ratings by
criterion; the benchmark's are 4,332 novels with eight criteria on a scale of 1 to 5.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from litbench.artifact import write_json
from litbench.errors import DataError

_MIN_WORKS = 10


@dataclass(frozen=True, eq=False)
class ReferenceDistribution:
    """Distribution of a reference of n works, for k criteria.

    Attributes:
        criteria: names of the criteria, in the order of the columns of ratings.
        mean: mean rating of each criterion, shape (k,).
        std: standard deviation (of the population), shape (k,).
        weights: weights of the z-scores, positive with sum 1, shape (k,).
        low: lowest composite of the reference.
        high: highest composite of the reference.
        values: composites of the reference scaled to 0 at `low` and 1 at `high`, ascending,
            shape (n,).
    """

    criteria: tuple[str, ...]
    mean: np.ndarray
    std: np.ndarray
    weights: np.ndarray
    low: float
    high: float
    values: np.ndarray

    @classmethod
    def fit(cls, ratings: np.ndarray, criteria: Sequence[str]) -> "ReferenceDistribution":
        """Fit on the mean ratings of the works of a reference.

        The weights are |v| / sum |v|, where v is the first principal component of the z-scores.

        Args:
            ratings: mean ratings, shape (n, k).
            criteria: names of the columns.

        Raises:
            DataError: fewer than ten works, a missing rating, a criterion that does not vary or
                that runs against the others.
        """
        ratings = np.asarray(ratings, np.float64, order="C")
        if ratings.ndim != 2 or ratings.shape[1] != len(criteria):
            raise DataError(f"ratings of shape {ratings.shape} for {len(criteria)} criteria")
        if not np.isfinite(ratings).all():
            missing = int((~np.isfinite(ratings)).any(axis=1).sum())
            raise DataError(f"{missing} of {len(ratings)} works lack a rating: leave them out")
        _check_works(len(ratings), "the table of ratings")
        mean, std = ratings.mean(axis=0), ratings.std(axis=0)
        # Rounding gives equal ratings a deviation of about 1e-16.
        std[np.ptp(ratings, axis=0) == 0] = 0
        _check_std(std, criteria, "the table of ratings")
        loadings = np.linalg.svd((ratings - mean) / std, full_matrices=False)[2][0]
        loadings *= np.sign(loadings.sum())
        if (loadings <= 0).any():
            name = criteria[int(loadings.argmin())]
            raise DataError(
                f"criterion {name} runs against the first principal component (loading "
                f"{loadings.min():.2g}): reverse its ratings or leave it out"
            )
        weights = loadings / loadings.sum()
        composites = np.sort(_weighted((ratings - mean) / std, weights))
        low, high = composites[[0, -1]]
        values = (composites - low) / (high - low)
        return cls(tuple(criteria), mean, std, weights, float(low), float(high), values)

    @classmethod
    def read(cls, path: Path, criteria: Sequence[str] = ()) -> "ReferenceDistribution":
        """Read a file that `write` wrote, or the benchmark's `fixed_parameters.json`.

        Args:
            path: file with the keys that `write` gives.
            criteria: names of the criteria, for a file without the key `criteria`.

        Raises:
            DataError: the file is missing or not a reference distribution.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            names = tuple(content.get("criteria", criteria))
            mean, std, weights, values = (
                np.array(content[key], np.float64)
                for key in ("mean", "std", "weights", "normalized_existing_scores")
            )
            low, high = float(content["min_score"]), float(content["max_score"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{path}: not a reference distribution ({error!r}): give fixed_parameters.json of "
                "WebNovelBench, or a file fitted on ratings"
            ) from error
        if not (mean.shape == std.shape == weights.shape == (len(names),)) or values.ndim != 1:
            raise DataError(
                f"{path}: {mean.size} means, {std.size} deviations and {weights.size} weights for "
                f"{len(names)} criteria: name one criterion for each number"
            )
        if criteria and names != tuple(criteria):
            raise DataError(
                f"{path}: made for criteria {', '.join(names)}, not {', '.join(criteria)}: fit "
                "one for these criteria"
            )
        numbers = np.concatenate([mean, std, weights, values, [low, high]])
        if not (np.isfinite(numbers).all() and low < high):
            raise DataError(
                f"{path}: a number is not finite, or min_score not below max_score: fit it again"
            )
        _check_works(len(values), path)
        _check_std(std, names, path)
        return cls(names, mean, std, weights, low, high, np.sort(values))

    def write(self, path: Path) -> None:
        """Write the distribution as JSON, with the benchmark's keys and `criteria`."""
        content = {
            "criteria": self.criteria,
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
            "weights": self.weights.tolist(),
            "min_score": self.low,
            "max_score": self.high,
            "normalized_existing_scores": self.values.tolist(),
        }
        write_json(content, path)

    def composite(self, ratings: np.ndarray) -> np.ndarray:
        """Weighted sum of z-scores: shape (..., k) to (...); NaN where a rating is missing."""
        # In this memory order a row has the same sum whatever the other rows are.
        ratings = np.asarray(ratings, np.float64, order="C")
        return _weighted((ratings - self.mean) / self.std, self.weights)

    def value(self, ratings: np.ndarray) -> np.ndarray:
        """Composite scaled to 0 and 1 at the ends of the reference; may lie outside of them."""
        value: np.ndarray = (self.composite(ratings) - self.low) / (self.high - self.low)
        return value

    def percentile(self, ratings: np.ndarray, *, rank: bool = False) -> np.ndarray:
        """Percentage of the reference at or below: `percentile_of_value` of `value`."""
        return self.percentile_of_value(self.value(ratings), rank=rank)

    def percentile_of_value(self, value: np.ndarray, *, rank: bool = False) -> np.ndarray:
        """Percentage of the reference at or below a value.

        Args:
            value: scaled composites of any shape; NaN gives NaN.
            rank: average over ties as scipy's `percentileofscore` does for `kind="rank"`; the
                published code uses it.
        """
        at_or_below = np.searchsorted(self.values, value, side="right").astype(np.float64)
        if rank:
            below = np.searchsorted(self.values, value, side="left")
            at_or_below = (below + at_or_below + (at_or_below > below)) / 2
        return np.where(np.isnan(value), np.nan, 100 * at_or_below / len(self.values))

    @property
    def explained_variance(self) -> float:
        """Share of the first principal component in the variance of the reference's z-scores."""
        variance = (self.values * (self.high - self.low)).var()
        return float(variance / (self.weights**2).sum() / len(self.weights))


def _weighted(z: np.ndarray, weights: np.ndarray) -> np.ndarray:
    total: np.ndarray = (z * weights).sum(axis=-1)
    return total


def _check_works(n: int, where: str | Path) -> None:
    if n < _MIN_WORKS:
        raise DataError(f"{where}: {n} works: a reference needs at least {_MIN_WORKS}")


def _check_std(std: np.ndarray, criteria: Sequence[str], where: str | Path) -> None:
    constant = [name for name, value in zip(criteria, std, strict=True) if not value > 0]
    if constant:
        raise DataError(
            f"{where}: {', '.join(constant)} has no positive deviation: leave the criterion out"
        )
