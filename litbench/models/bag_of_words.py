"""A bag of words: logistic regression on differences of tf-idf vectors.

A baseline of which words the preferred stories have. Its vocabulary is learnt from the training
pairs, so it is trained in every fold of a cross-validation. A word is as `litbench.data.text`
counts it: in Chinese and Japanese, a character.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.records import PAIRS, connected_prompts, pair_weights
from litbench.data.tables import read_table
from litbench.models.linear_preference import LinearRater, fit_to_pairs, leave_out_each
from litbench.raters.interface import blind, check_stories, training_prompts_of
from litbench.raters.nonstories import add_negatives
from litbench.raters.quantities import UNSPACED_RANGES
from litbench.runs.errors import DataError

_WORD = rf"[{UNSPACED_RANGES}]|[^\W{UNSPACED_RANGES}]+(?:['’][^\W{UNSPACED_RANGES}]+)*"
# Words of fewer training stories are left out.
_MIN_STORIES = 2
# With more training stories, training again without each prompt takes too long.
_MAX_STORIES_TO_LEAVE_OUT = 1_500


@dataclass
class BagOfWordsOptions:
    """Options of the training.

    Attributes:
        c: inverse regularisation strengths to select from, in 5 folds of the training prompts.
        negatives: see `litbench.models.features.FeatureOptions`.
    """

    c: list[float] = field(default_factory=lambda: [0.1, 1.0, 10.0, 100.0])
    negatives: bool = False

    def train(self, name: str, pairs: pa.Table, folder: Path, seed: int) -> "BagOfWords":
        """Train on a pairs table; deterministic, writes no files."""
        del folder, seed
        return fit_bag_of_words(pairs, self, name)


@dataclass
class PairsOptions(BagOfWordsOptions):
    """Options of a rater that is trained when it is loaded, which takes seconds.

    Attributes:
        path: the pairs file to train on.
        split: train on the pairs of this split only.
    """

    path: Path = Path()
    split: str | None = None

    def load(self, name: str) -> "BagOfWords":
        """Train on the pairs file."""
        pairs = read_table(self.path, PAIRS)
        if self.split is not None:
            pairs = pairs.filter(pc.equal(pairs["split"], self.split))
        model = fit_bag_of_words(pairs, self, name)
        model.learn_scope(pairs)
        return model


@dataclass
class BagOfWords(LinearRater):
    """Bradley-Terry on tf-idf vectors: reward = coefficients . vector.

    Attributes:
        vectorizer: a fitted TfidfVectorizer; the vectors have length 1.
        coefficients: one for each word; float64, shape (words,).
        c: the selected inverse regularisation strength.
        prompts: `prompt_key` of the training prompts.
    """

    name: str
    vectorizer: Any
    coefficients: np.ndarray
    c: float
    prompts: frozenset[str]
    kind: str = "bag_of_words"
    gives_probability = True

    def vectors(self, prompts: Sequence[str], stories: Sequence[str]) -> Any:
        """Tf-idf vectors; sparse, shape (n, words)."""
        del prompts
        return self.vectorizer.transform(stories)

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Rewards in log-odds; float64, shape (n,)."""
        check_stories(stories)
        rewards: np.ndarray = self.vectors(prompts, stories) @ self.coefficients
        return rewards

    def training_prompts(self) -> frozenset[str]:
        return self.prompts

    def notes(self) -> dict[str, Any]:
        """The selected strength and the number of words."""
        return {"c": self.c, "words": len(self.coefficients)}


def word_vectors(stories: Sequence[str]) -> tuple[Any, Any]:
    """The tf-idf vectors of stories, of length 1, and their fitted vectorizer.

    Args:
        stories: shape (n,).

    Returns:
        A TfidfVectorizer, and a sparse matrix of shape (n, words).
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415

    vectorizer = TfidfVectorizer(
        token_pattern=_WORD, min_df=_MIN_STORIES, sublinear_tf=True, dtype=np.float64
    )
    try:
        return vectorizer, vectorizer.fit_transform(stories)
    except ValueError as error:
        raise DataError(
            f"a bag of words needs words in {_MIN_STORIES} or more stories, and the "
            f"{len(stories)} training stories have none: leave it out"
        ) from error


def fit_bag_of_words(
    pairs: pa.Table, options: BagOfWordsOptions, name: str = "bag_of_words"
) -> BagOfWords:
    """Fit the vocabulary and the coefficients to preference pairs.

    Args:
        pairs: table with the schema PAIRS.
        options: see BagOfWordsOptions.
        name: name of the rater.
    """
    if pairs.num_rows < 2:
        raise DataError(f"{pairs.num_rows} pairs are too few for a bag of words: give at least two")
    if options.negatives:
        pairs = add_negatives(pairs)
    blinded, first_chosen = blind(pairs)
    stories = sorted({story for pair in blinded for story in (pair.first, pair.second)})
    vectorizer, vectors = word_vectors(stories)
    row_of = {story: row for row, story in enumerate(stories)}
    first, second = ([row_of[getattr(p, side)] for p in blinded] for side in ("first", "second"))
    c, coefficients = fit_to_pairs(pairs, vectors[first] - vectors[second], first_chosen, options.c)
    model = BagOfWords(name, vectorizer, coefficients, c, training_prompts_of(pairs))

    def without_each() -> tuple[list[str], np.ndarray]:
        # The coefficients are a weighted sum of story vectors. With the Cholesky factor of the
        # stories' inner products as their vectors, there are as many columns as stories.
        inner = (vectors @ vectors.T).toarray() + 1e-9 * np.eye(len(stories))
        factor = np.linalg.cholesky(inner)
        reduced = np.linalg.solve(factor, vectors @ coefficients)
        differences = factor[first] - factor[second]
        prompts, weights = connected_prompts(pairs), pair_weights(pairs)
        names, without = leave_out_each(differences, first_chosen, prompts, c, reduced, weights)
        return names, (vectors.T @ np.linalg.solve(factor.T, without.T)).T

    if len(stories) <= _MAX_STORIES_TO_LEAVE_OUT:
        model.without_each = without_each
    return model
