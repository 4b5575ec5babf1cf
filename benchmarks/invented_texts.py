"""Invented texts: made-up words in a given style.

A text has exactly the given number of words (`litbench.data.text.count_words`). Its sentence and
paragraph lengths, commas, quoted speech and vocabulary follow the story's style.
"""

import itertools
from functools import cache

import numpy as np
import pyarrow as pa

# Sentence length, commas, variety of words, quoted speech, length of paragraphs, long words.
STYLES = 6
_BATCH_WORDS = 1_000_000
_VOCABULARY = 6_000
_PROMPT_WORDS = (8, 20)

_SYLLABLES = tuple(onset + vowel for onset in "bdfgklmnprstvz" for vowel in "aeiou")
# What may follow a word within a sentence, and at its end: punctuation, closing quote, space,
# opening quote.
_MIDDLE = (" ", ", ")
_ENDS = ((".", "?", "!"), ("", "”"), (" ", "\n\n", ""), ("", "“"))


def invented_texts(
    styles: np.ndarray, n_words: np.ndarray, random: np.random.Generator
) -> pa.Array:
    """Return texts with the given styles and word counts.

    Args:
        styles: about standard normal, shape (n, STYLES).
        n_words: at least 1, shape (n,).
        random: source of random numbers.
    """
    words = _words()
    glue = np.array([*_MIDDLE, *map("".join, itertools.product(*_ENDS))], dtype=object)
    ends = np.cumsum(n_words)
    batches = np.searchsorted(ends, np.arange(_BATCH_WORDS, ends[-1], _BATCH_WORDS), side="left")
    texts: list[str] = []
    for rows in np.split(np.arange(len(n_words)), np.unique(batches + 1)):
        if len(rows):
            texts += _batch(styles[rows], n_words[rows], random, words, glue)
    return pa.array(texts, pa.large_string())


def invented_prompts(count: int, random: np.random.Generator) -> pa.Array:
    """Return prompts of invented words; each begins with its number and is therefore unique."""
    words, lengths = _words()[: 2 * _VOCABULARY : 2], random.integers(*_PROMPT_WORDS, count)
    drawn = words[random.integers(_VOCABULARY, size=int(lengths.sum()))].tolist()
    ends = np.cumsum(lengths).tolist()
    prompts = [
        f"{number}. {' '.join(drawn[end - length : end])}."
        for number, (end, length) in enumerate(zip(ends, lengths.tolist(), strict=True))
    ]
    return pa.array(prompts, pa.large_string())


@cache
def _words() -> np.ndarray:
    """Return every invented word in lower case and capitalised, longer words last."""
    # The seed is fixed: all worlds share one vocabulary.
    random = np.random.default_rng(20)
    halves = []
    for fewest, most in ((1, 2), (3, 4)):
        half: dict[str, None] = {}
        while len(half) < _VOCABULARY // 2:
            parts = random.integers(len(_SYLLABLES), size=random.integers(fewest, most + 1))
            # A final consonant gives more distinct short words.
            last = ("", "n", "r", "s", "l", "m")[random.integers(6)]
            half["".join(_SYLLABLES[part] for part in parts) + last] = None
        halves += list(half)
    both = [form for word in halves for form in (word, word.capitalize())]
    return np.array(both, dtype=object)


def _batch(
    styles: np.ndarray,
    n_words: np.ndarray,
    random: np.random.Generator,
    words: np.ndarray,
    glue: np.ndarray,
) -> list[str]:
    """Return the texts of a batch of stories, vectorised over words."""

    def odds(base: float, width: float, style: int) -> np.ndarray:
        share: np.ndarray = 1 / (1 + np.exp(-(base + width * styles[:, style])))
        return share

    story = np.repeat(np.arange(len(n_words)), n_words)
    count = len(story)
    last = np.zeros(count, dtype=bool)
    last[np.cumsum(n_words) - 1] = True
    mark = random.random(count)
    stop = np.exp(-2.6 - 0.35 * styles[:, 0])[story]
    ends = last | (mark < stop)
    comma = ~ends & (mark < stop + odds(-2.9, 0.5, 1)[story])
    # Word frequency is about 1 / rank; the vocabulary size is part of the style.
    half = _VOCABULARY // 2
    wide = np.clip(np.exp(5.5 + 0.8 * styles[:, 2]), 20, half)
    word = np.floor(wide[story] ** random.random(count)).astype(np.int64) - 1
    word = np.minimum(word, half - 1)
    word += half * (random.random(count) < odds(-1.2, 0.4, 5)[story])
    starts = np.concatenate([[True], ends[:-1]])
    # Per sentence: whether it is quoted, its final punctuation, whether a new paragraph follows.
    sentence_story = story[starts]
    sentences = len(sentence_story)
    quoted = random.random(sentences) < odds(-1.3, 0.9, 3)[sentence_story]
    end = np.searchsorted(np.array([0.84, 0.94]), random.random(sentences), side="right")
    paragraph = random.random(sentences) < odds(-1.2, 0.6, 4)[sentence_story]
    space = np.where(last[ends], 2, paragraph.astype(np.int64))
    next_quoted = np.append(quoted[1:], False) & ~last[ends]
    after = comma.astype(np.int64)
    chosen = (end, quoted.astype(np.int64), space, next_quoted.astype(np.int64))
    after[ends] = len(_MIDDLE) + np.ravel_multi_index(chosen, tuple(map(len, _ENDS)))
    pieces = np.empty(2 * count, dtype=object)
    pieces[0::2] = words[2 * word + starts]
    pieces[1::2] = glue[after]
    parts = pieces.tolist()
    opens = quoted[np.searchsorted(sentence_story, np.arange(len(n_words)))].tolist()
    bounds = [0, *(2 * np.cumsum(n_words)).tolist()]
    return [
        ("“" if opens[row] else "") + "".join(parts[bounds[row] : bounds[row + 1]])
        for row in range(len(n_words))
    ]
