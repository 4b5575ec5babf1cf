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

from litbench.runs.errors import DataError
from litbench.runs.outputs import write_json

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
        explained: share of the variance of the z-scores by principal component, shape (k,), as in
            Figure 6; empty if the file does not have it.
    """

    criteria: tuple[str, ...]
    mean: np.ndarray
    std: np.ndarray
    weights: np.ndarray
    low: float
    high: float
    values: np.ndarray
    explained: tuple[float, ...] = ()

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
        if missing := int((~np.isfinite(ratings)).any(axis=1).sum()):
            raise DataError(f"{missing} of {len(ratings)} works lack a rating: leave them out")
        _check_works(len(ratings), "the table of ratings")
        mean, std = ratings.mean(axis=0), ratings.std(axis=0)
        # Rounding gives equal ratings a deviation of about 1e-16.
        std[np.ptp(ratings, axis=0) == 0] = 0
        _check_std(std, criteria, "the table of ratings")
        _, singular, components = np.linalg.svd((ratings - mean) / std, full_matrices=False)
        loadings = components[0] * np.sign(components[0].sum())
        explained = tuple((singular**2 / (singular**2).sum()).tolist())
        if (loadings <= 0).any():
            name = criteria[int(loadings.argmin())]
            raise DataError(
                f"criterion {name} runs against the first principal component (loading "
                f"{loadings.min():.2g}): reverse its ratings or leave it out"
            )
        weights = loadings / loadings.sum()
        composites = np.sort(_composite(ratings, mean, std, weights))
        low, high = composites[[0, -1]]
        values = (composites - low) / (high - low)
        return cls(tuple(criteria), mean, std, weights, float(low), float(high), values, explained)

    @classmethod
    def read(cls, path: Path, criteria: Sequence[str]) -> "ReferenceDistribution":
        """Read a file that `write` wrote, or the benchmark's `fixed_parameters.json`.

        Args:
            path: the file; that of the benchmark does not name its criteria.
            criteria: names of the criteria.

        Raises:
            DataError: the file is missing, not a reference distribution, or of other criteria.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            mean, std, weights, values, ends = (
                np.array(numbers, np.float64)
                for numbers in (
                    content["mean"],
                    content["std"],
                    content["weights"],
                    content["normalized_existing_scores"],
                    [content["min_score"], content["max_score"]],
                )
            )
            if any(numbers.shape != (len(criteria),) for numbers in (mean, std, weights)):
                raise ValueError(f"mean, std and weights are not of {len(criteria)} criteria each")
            if not np.isfinite(np.concatenate([mean, std, weights, values, ends])).all():
                raise ValueError("a number is not finite")
            if not ends[0] < ends[1]:
                raise ValueError("min_score is not below max_score")
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{path}: not a reference distribution ({error!r}): give fixed_parameters.json of "
                "WebNovelBench, or a file fitted on ratings"
            ) from error
        names = tuple(content.get("criteria", criteria))
        if names != tuple(criteria):
            raise DataError(
                f"{path}: made for criteria {', '.join(names)}, not {', '.join(criteria)}: fit "
                "one for these criteria"
            )
        _check_works(len(values), path)
        _check_std(std, criteria, path)
        explained = tuple(content.get("explained_variance", ()))
        low, high = map(float, ends)
        return cls(names, mean, std, weights, low, high, np.sort(values), explained)

    def write(self, path: Path) -> None:
        """Write the distribution as JSON: the benchmark's keys, criteria, explained variance."""
        content = {
            "criteria": self.criteria,
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
            "weights": self.weights.tolist(),
            "min_score": self.low,
            "max_score": self.high,
            "normalized_existing_scores": self.values.tolist(),
            "explained_variance": self.explained,
        }
        write_json(content, path)

    def composite(self, ratings: np.ndarray) -> np.ndarray:
        """Weighted sum of z-scores: shape (..., k) to (...); NaN where a rating is missing."""
        return _composite(ratings, self.mean, self.std, self.weights)

    def value(self, ratings: np.ndarray) -> np.ndarray:
        """Composite scaled to 0 and 1 at the ends of the reference; may lie outside of them."""
        value: np.ndarray = (self.composite(ratings) - self.low) / (self.high - self.low)
        return value

    def percentile(self, ratings: np.ndarray, *, rank: bool = False) -> np.ndarray:
        """Percentage of the reference at or below: shape (..., k) to (...), NaN as in `composite`.

        `rank` averages over ties as scipy's `percentileofscore` does for `kind="rank"`; the
        published code uses it.
        """
        value = self.value(ratings)
        at_or_below = np.searchsorted(self.values, value, side="right").astype(np.float64)
        if rank:
            below = np.searchsorted(self.values, value, side="left")
            at_or_below = (below + at_or_below + (at_or_below > below)) / 2
        return np.where(np.isnan(value), np.nan, 100 * at_or_below / len(self.values))


def _composite(
    ratings: np.ndarray, mean: np.ndarray, std: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    # In this memory order a row has the same sum whatever the other rows are.
    ratings = np.asarray(ratings, np.float64, order="C")
    composite: np.ndarray = ((ratings - mean) / std * weights).sum(axis=-1)
    return composite


def _check_works(n: int, where: str | Path) -> None:
    if n < _MIN_WORKS:
        raise DataError(f"{where}: {n} works: a reference needs at least {_MIN_WORKS}")


def _check_std(std: np.ndarray, criteria: Sequence[str], where: str | Path) -> None:
    constant = [name for name, value in zip(criteria, std, strict=True) if not value > 0]
    if constant:
        raise DataError(
            f"{where}: {', '.join(constant)} has no positive deviation: leave the criterion out"
        )
