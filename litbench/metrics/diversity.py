"""Diversity of a set of texts."""

import re
from collections.abc import Sequence

# A Chinese or Japanese character is a word, as in `litbench.data.text.count_words`.
_WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|(?:(?![\u3040-\u30ff\u3400-\u9fff])[^\W_])+")

# Of each text only its beginning counts.
_MAX_WORDS = 50


def distinct_trigrams(texts: Sequence[str]) -> float:
    """Share of distinct trigrams among all word trigrams of the beginnings of the texts.

    Only the first words count, since longer texts repeat more. For the same reason, compare only
    sets of the same number of texts.

    Args:
        texts: for example all completions of a training step.

    Returns:
        Between 0 and 1 (no trigram occurs twice); NaN if no text has three words.
    """
    trigrams: list[tuple[str, ...]] = []
    for text in texts:
        words = _WORDS.findall(text.lower())[:_MAX_WORDS]
        trigrams.extend(zip(words, words[1:], words[2:], strict=False))
    return len(set(trigrams)) / len(trigrams) if trigrams else float("nan")
