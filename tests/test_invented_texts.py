"""Invented texts: exactly as many words as asked for, in styles that tell some of the quality."""

import math

import numpy as np

from litbench.curation.invented_texts import invented_prompts, invented_texts, styles_of
from litbench.models.features import feature_matrix
from litbench.text import count_words, prompt_key


def test_texts_have_exactly_n_words():
    random = np.random.default_rng(1)
    n_words = np.maximum(np.exp(random.normal(4.9, 0.9, 800)).astype(int), 1)
    styles = styles_of(random.standard_normal(800), 0.6, random)
    texts = invented_texts(styles, n_words, np.random.default_rng(2))
    assert count_words(texts).to_pylist() == n_words.tolist()
    assert texts.equals(invented_texts(styles, n_words, np.random.default_rng(2)))
    prompts = invented_prompts(100, random).to_pylist()
    assert len({prompt_key(prompt) for prompt in prompts}) == 100


def test_styles_tell_the_share_of_quality_asked_for():
    quality = np.random.default_rng(1).standard_normal(40_000)
    for share in (0.0, 0.3, 0.8):
        styles = styles_of(quality, share, np.random.default_rng(2))
        told = styles @ np.linalg.lstsq(styles, quality, rcond=None)[0]
        assert abs(np.var(told) - share) < 0.02


def told_by_features(share):
    """Return the held-out agreement on random pairs of a linear model of surface features."""
    random = np.random.default_rng(5)
    quality = random.standard_normal(1_200)
    n_words = np.full(1_200, 130)
    texts = invented_texts(styles_of(quality, share, random), n_words, random).to_pylist()
    features = feature_matrix(["A prompt"] * len(texts), texts)
    features = (features - features.mean(0)) / np.maximum(features.std(0), 1e-9)
    half = len(features) // 2
    weights = np.linalg.solve(
        features[:half].T @ features[:half] + 10 * np.eye(features.shape[1]),
        features[:half].T @ quality[:half],
    )
    told = np.corrcoef(features[half:] @ weights, quality[half:])[0, 1]
    return 0.5 + math.asin(told) / math.pi


def test_features_learn_some_of_the_quality_and_never_all():
    assert 0.62 < told_by_features(0.6) < 0.80
    assert 0.43 < told_by_features(0.0) < 0.57
