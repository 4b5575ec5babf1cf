"""Evaluate pairing rules and filters in simulations, where the true quality of stories is known.

A rule is right about a pair whose chosen story is the better one. The more relevant measure is what
a rater learns from the rule's pairs: `fit_preference` fits a logistic regression to the features
that a rater observes (`observe`), and `judge_random` tests it on random pairs, not selected by
votes. Each simulated world gives one value of every measure, so intervals are over seeds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from litbench.metrics.comparisons import paired_difference
from litbench.metrics.intervals import Interval, jackknife_interval, mean_interval

MEASURES = {
    "agreement": "agreement with true quality on random pairs",
    "prefers_longer": "how often the rater prefers the longer of two random stories",
    "random_longer": "random pairs whose better story is the longer",
    "right": "training pairs whose chosen story is the better",
    "chosen_longer": "training pairs whose chosen story is the longer",
    "pairs": "pairs to train on",
}
# Shares of random pairs, with intervals on the logit scale.
_OF_RANDOM_PAIRS = tuple(MEASURES)[:3]
# Share of a distractor's variance that all stories of an author have in common, so that a rater
# can learn to prefer an author.
_AUTHOR_SHARE = 0.3
# The variant that learns from random pairs labelled by true quality.
TRUTH = "truth"


@dataclass(frozen=True)
class Learner:
    """The features of a story that a simulated rater observes.

    It observes the length, several noisy signs of quality, and distractors that are unrelated to
    both. With more distractors, it needs more pairs.

    Attributes:
        length: scale of the length.
        signs: number of noisy signs of quality.
        sign_noise: standard deviation of the noise of a sign; that of quality is 1.
        distractors: number of unrelated features.
    """

    length: Literal["log", "words"] = "log"
    signs: Annotated[int, Field(ge=0)] = 6
    sign_noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    distractors: Annotated[int, Field(ge=0)] = 24


def observe(
    quality: np.ndarray, n_words: np.ndarray, author: np.ndarray, learner: Learner, seed: int
) -> np.ndarray:
    """The features of n stories that a rater observes; `author` has the index of each author.

    Returns:
        Shape (n, 1 + signs + distractors): standardised length, signs, distractors.
    """
    random = np.random.default_rng([seed, 7])
    scaled = np.log1p(n_words) if learner.length == "log" else n_words.astype(float)
    length = (scaled - scaled.mean()) / max(float(scaled.std()), 1e-12)
    noise = random.normal(0, learner.sign_noise, (len(quality), learner.signs))
    of_author = random.normal(size=(int(author.max()) + 1, learner.distractors))
    own = random.normal(size=(len(quality), learner.distractors))
    distractors = math.sqrt(_AUTHOR_SHARE) * of_author[author] + math.sqrt(1 - _AUTHOR_SHARE) * own
    return np.column_stack([length, quality[:, None] + noise, distractors])


def within_prompts(prompt: np.ndarray) -> np.ndarray:
    """All pairs of two stories of the same prompt.

    Args:
        prompt: prompt of each story; shape (n,).

    Returns:
        Indices of the two stories, in ascending order; shape (m, 2).
    """
    order = np.argsort(prompt, kind="stable")
    _, starts, sizes = np.unique(prompt[order], return_index=True, return_counts=True)
    pairs = [np.zeros((0, 2), np.int64)]
    for size in np.unique(sizes):
        both = np.column_stack(np.triu_indices(size, 1))
        pairs.append((starts[sizes == size][:, None, None] + both).reshape(-1, 2))
    indices: np.ndarray = order[np.concatenate(pairs)]
    return indices


def _share_above(difference: np.ndarray) -> float:
    """Share of differences above zero; zero counts one half, NaN for an empty array."""
    return float(np.mean((np.sign(difference) + 1) / 2)) if len(difference) else math.nan


def pair_figures(quality: np.ndarray, n_words: np.ndarray, pairs: np.ndarray) -> dict[str, float]:
    """How often the labels of a rule are right, and how often they favour the longer story.

    Args:
        quality: of all stories; shape (n,).
        n_words: of all stories; shape (n,).
        pairs: indices of the chosen and the rejected story; shape (m, 2).

    Returns:
        `right` and `chosen_longer`, see `MEASURES`.
    """
    chosen, rejected = pairs.T
    return {
        "right": _share_above(quality[chosen] - quality[rejected]),
        "chosen_longer": _share_above(n_words[chosen] - n_words[rejected]),
    }


def true_pairs(
    quality: np.ndarray, possible: np.ndarray, most: int, random: np.random.Generator
) -> np.ndarray:
    """At most `most` of the possible pairs, in random order, the better story first."""
    is_better = quality[possible[:, 0]] > quality[possible[:, 1]]
    ordered: np.ndarray = np.where(is_better[:, None], possible, possible[:, ::-1])
    return ordered[random.permutation(len(ordered))[:most]]


def fit_preference(differences: np.ndarray) -> np.ndarray:
    """Weights of a logistic regression without intercept; shape (k,).

    Minimises sum(log(1 + exp(-differences @ w))) + |w|^2 / 2.

    Args:
        differences: features of the chosen story minus those of the rejected; shape (m, k).
    """
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    # scikit-learn needs two classes: add each pair with its sides swapped, both with weight 1/2.
    model = LogisticRegression(
        C=1.0, fit_intercept=False, solver="newton-cholesky", tol=1e-8, max_iter=100
    )
    both, labels = np.concatenate([differences, -differences]), np.repeat([1, 0], len(differences))
    model.fit(both, labels, sample_weight=np.full(len(both), 0.5))
    weights: np.ndarray = model.coef_[0]
    return weights


def judge_random(
    weights: np.ndarray, differences: np.ndarray, better: np.ndarray, longer: np.ndarray
) -> dict[str, float]:
    """Test a rater on random pairs; returns the first three of `MEASURES`, NaN without pairs.

    Args:
        weights: from `fit_preference`; shape (k,).
        differences: features of the first story minus those of the second; shape (m, k).
        better: quality of the first minus that of the second; shape (m,).
        longer: words of the first minus those of the second; shape (m,).
    """
    preferred = np.sign(differences @ weights)
    return {
        "agreement": _share_above(preferred * np.sign(better)),
        "prefers_longer": _share_above((preferred * np.sign(longer))[longer != 0]),
        "random_longer": _share_above(np.sign(better) * np.sign(longer)),
    }


@dataclass(frozen=True)
class Summary:
    """One measure of one variant in one world, over seeds.

    Attributes:
        world: name of the world, or of the sweep.
        value: value of the swept parameter; None for a single world.
        variant: name of the rules, or `TRUTH`.
        amount: number of training pairs: `equal`, as many as the smallest variant has, or `all`.
        measure: key of `MEASURES`.
        interval: mean over the seeds that have the measure; NaN if none has.
        difference: difference from the reference variant, paired by seed; None for the reference.
    """

    world: str
    value: float | None
    variant: str
    amount: Literal["equal", "all"]
    measure: str
    interval: Interval
    difference: Interval | None


def summarise(rows: Sequence[Mapping[str, Any]], reference: str) -> list[Summary]:
    """Means and 95 % intervals over seeds, in the order of the rows, then of `MEASURES`.

    Args:
        rows: one row for each world, value, seed, variant and amount, with these keys and
            `MEASURES`. Every world has the same seeds in the same order.
        reference: the variant that others are compared with.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        key = (row["world"], row["value"], row["variant"], row["amount"])
        groups.setdefault(key, []).append(row)
    summaries = []
    for (world, value, variant, amount), of in groups.items():
        others = groups[world, value, reference, amount]
        seeds = np.array([row["seed"] for row in of])
        for measure in MEASURES:
            own, other = (np.array([row[measure] for row in part], float) for part in (of, others))
            interval, difference = _interval(measure, own, seeds), None
            if variant != reference:
                known = np.isfinite(own - other)
                gain = (own - other)[known]
                difference = paired_difference(gain, np.zeros(len(gain)), seeds[known])[0]
            summaries.append(Summary(world, value, variant, amount, measure, interval, difference))
    return summaries


def _interval(measure: str, values: np.ndarray, seeds: np.ndarray) -> Interval:
    known = np.isfinite(values)
    if measure in _OF_RANDOM_PAIRS:
        return jackknife_interval(values[known], seeds[known])
    interval = mean_interval(values[known], seeds[known])
    if measure == "pairs":
        return interval
    # Other shares may be fixed by the rule, such as 0.5 by symmetry; their interval has no width.
    return replace(interval, low=max(interval.low, 0.0), high=min(interval.high, 1.0))
