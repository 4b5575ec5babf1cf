"""Invented texts: exactly as many words as asked for, each prompt once."""

import numpy as np

from litbench.data.text import count_words, prompt_key


def test_texts_have_exactly_n_words(load_program):
    invented = load_program("benchmarks/invented_texts.py")
    random = np.random.default_rng(1)
    n_words = np.maximum(np.exp(random.normal(4.9, 0.9, 800)).astype(int), 1)
    styles = random.standard_normal((800, invented.STYLES))
    texts = invented.invented_texts(styles, n_words, np.random.default_rng(2))
    assert count_words(texts).to_pylist() == n_words.tolist()
    assert texts.equals(invented.invented_texts(styles, n_words, np.random.default_rng(2)))
    prompts = invented.invented_prompts(100, random).to_pylist()
    assert len({prompt_key(prompt) for prompt in prompts}) == 100
