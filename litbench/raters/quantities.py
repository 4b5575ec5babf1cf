"""Quantities of a text: shares of characters, and frequencies learnt from stories.

    counted = count_frequencies(stories)
    quantities("It opened.", counted)

They are cheap (one pass over the text), need no list of any language's words, and work where words
have no spaces between them. `litbench.raters.scope` compares them with those of training stories.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from litbench.data.text import digest
from litbench.runs.config import read_yaml

# The quantities, in the order of `quantities`.
NAMES = (
    "characters",
    "letters",
    "known_letters",
    "symbols",
    "digits",
    "capitals",
    "repeated",
    "words",
    "order",
    "stretch",
    "lines",
    "story",
)
# Longer texts are judged by their first characters, about 2,000 words of English.
MAX_CHARACTERS = 12_000
# Words of a passage, such as code in a story; words of a repetition.
_STRETCH, _RUN = 100, 12
_MAX_WORDS, _ORDER_WORDS, _COMMON_WORDS, _MAX_PAIRS = 4_000, 800, 600, 20_000
_ENDINGS = 256
_CLASSES = _ORDER_WORDS + _ENDINGS
# Weight of independence in the probability of a pair of words, in words.
_PRIOR = 20.0
TABLE = 1 << 16
# Alphabets have fewer letters; other scripts have too many n-grams of three characters.
_MAX_ALPHABET = 300
# Characters that are words, as in Chinese and Japanese; ranges of a regular expression.
UNSPACED_RANGES = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
_TOKEN = re.compile(
    rf"[{UNSPACED_RANGES}]|[^\W{UNSPACED_RANGES}]+(?:['’][^\W{UNSPACED_RANGES}]+)*|[^\w\s]"
)


@dataclass
class Frequencies:
    """Frequencies of characters and words in stories.

    Attributes:
        order: length of the character n-grams.
        letters: the common letters.
        words: the common words, most frequent first.
        characters: bits of each hashed n-gram; shape (65536,).
        word_bits: bits of each word, then of any other word; shape (words + 1,).
        pairs: keys of neighbouring words that occur together, ascending.
        information: their pointwise mutual information, in bits.
        alone: that of a word beside one with which it never occurs; shape (classes,).
        story: weights of common words, higher in stories than in other prose.
    """

    order: int
    letters: str
    words: list[str]
    characters: np.ndarray
    word_bits: np.ndarray
    pairs: np.ndarray
    information: np.ndarray
    alone: np.ndarray
    story: np.ndarray

    def __post_init__(self) -> None:
        self.index = {word: number for number, word in enumerate(self.words)}
        self.known = frozenset(self.letters)


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text.lower())


def _codes(text: str) -> np.ndarray:
    data = " ".join(text.split()).encode("utf-32-le", "replace")
    return np.frombuffer(data, np.dtype("<u4")).astype(np.uint32)


def _hashes(codes: np.ndarray, order: int) -> np.ndarray:
    """Hash every n-gram of characters to an index of the table."""
    mixed: Any = np.zeros(max(len(codes) - order + 1, 0), np.uint32)
    for position in range(order):
        part = codes[position : position + len(mixed)]
        mixed = mixed * np.uint32(0x9E3779B1) + part * np.uint32(0x85EBCA6B)
        mixed ^= mixed >> np.uint32(15)
    hashed: np.ndarray = mixed & np.uint32(TABLE - 1)
    return hashed


@cache
def _ending(letters: str) -> int:
    return _ORDER_WORDS + int(digest(letters)[:4], 16) % _ENDINGS


def _class(token: str, number: int) -> int:
    """A common word is a class; other words are classed by their last two letters."""
    return number if number < _ORDER_WORDS else _ending(token[-2:])


def _numbers(tokens: Sequence[str], index: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the number and the class of each token."""
    other = len(index)
    numbers = [index.get(token, other) for token in tokens]
    classes = [
        _class(token, number if number < other else _ORDER_WORDS)
        for token, number in zip(tokens, numbers, strict=True)
    ]
    return np.array(numbers, np.int64), np.array(classes, np.int64)


def _rates(numbers: np.ndarray) -> np.ndarray:
    """Square roots of the rates of the most common words; shape (_COMMON_WORDS,)."""
    counts = np.bincount(numbers[numbers < _COMMON_WORDS], minlength=_COMMON_WORDS)
    rates: np.ndarray = np.sqrt(counts / max(len(numbers), 1))
    return rates


def _story_weights(stories: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Weights of Fisher's discriminant of stories against other prose, with a diagonal covariance.

    Args:
        stories: rates in windows of stories; shape (windows, _COMMON_WORDS).
        others: rates in the paragraphs of `other_prose.yaml`; shape (paragraphs, _COMMON_WORDS).
    """
    difference = stories.mean(0) - others.mean(0)
    variance = 0.7 * stories.var(0) + 0.3 * others.var(0) + 1e-5
    weights: np.ndarray = difference / variance
    return weights / math.sqrt(max(difference @ weights, 1e-12))


@cache
def _other_prose() -> dict[str, list[str]]:
    """Paragraphs of prose that is no story in English and Chinese, for all alphabets and others."""
    return read_yaml(Path(__file__).with_name("other_prose.yaml"))


def count_frequencies(stories: Sequence[str]) -> Frequencies:
    """Count the frequencies of characters and words in stories."""
    characters: Counter[str] = Counter()
    for story in stories:
        characters.update(story)
    letters = [(letter, n) for letter, n in characters.most_common() if letter.isalpha()]
    totals = np.cumsum([n for _, n in letters] or [0])
    common = "".join(
        letter
        for (letter, n), total in zip(letters, totals, strict=False)
        if total - n <= 0.9995 * totals[-1]
    )
    order = 3 if len(common) < _MAX_ALPHABET else 2
    table = np.full(TABLE, 0.5)
    for story in stories:
        table += np.bincount(_hashes(_codes(story), order), minlength=TABLE)
    texts = [_tokens(story) for story in stories]
    counts = Counter(token for tokens in texts for token in tokens)
    words = [word for word, n in counts.most_common(_MAX_WORDS) if n >= 3]
    total = max(counts.total(), 1)
    inside = np.array([counts[word] for word in words], float)
    # The rest is spread over as many words as it has.
    rest = max(total - inside.sum(), 1) / max(len(counts) - len(words), 1)
    index = {word: number for number, word in enumerate(words)}
    numbered = [_numbers(tokens, index) for tokens in texts]
    parts = [
        _rates(numbers[start : start + 200])
        for numbers, _ in numbered
        for start in range(0, max(len(numbers) - 100, 1), 200)
    ]
    language = "en" if order > 2 else "zh"
    others = [_rates(_numbers(_tokens(text), index)[0]) for text in _other_prose()[language]]
    return Frequencies(
        order,
        common,
        words,
        -np.log2(table / table.sum()),
        -np.log2(np.append(inside, rest) / total),
        *_pairs([classes for _, classes in numbered]),
        _story_weights(np.array(parts[:3_000]), np.array(others)),
    )


def _pairs(texts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys and pointwise mutual information of neighbouring classes; see `Frequencies`."""
    keys = np.concatenate([text[:-1] * _CLASSES + text[1:] for text in texts])
    left = np.bincount(keys // _CLASSES, minlength=_CLASSES).astype(float)
    right = np.bincount(keys % _CLASSES, minlength=_CLASSES) / max(len(keys), 1)
    pairs, counts = np.unique(keys, return_counts=True)
    frequent = np.sort(np.argsort(-counts, kind="stable")[:_MAX_PAIRS])
    frequent = frequent[counts[frequent] > 1]
    pairs, counts = pairs[frequent], counts[frequent]
    first, second = pairs // _CLASSES, pairs % _CLASSES
    expected = right[second]
    probability = (counts + _PRIOR * expected) / (left[first] + _PRIOR)
    return pairs, np.log2(probability / expected), np.log2(_PRIOR / (left + _PRIOR))


def _information(classes: np.ndarray, counted: Frequencies) -> np.ndarray:
    """Pointwise mutual information of neighbouring words, in bits; on average 0 in random order."""
    if len(classes) < 2 or not len(counted.pairs):
        return np.zeros(1)
    keys = classes[:-1] * _CLASSES + classes[1:]
    at = np.minimum(np.searchsorted(counted.pairs, keys), len(counted.pairs) - 1)
    seen = counted.pairs[at] == keys
    bits: np.ndarray = np.where(seen, counted.information[at], counted.alone[classes[:-1]])
    return bits


def quantities(text: str, counted: Frequencies) -> list[float]:
    """The quantities of a text, in the order of `NAMES`."""
    text = text[:MAX_CHARACTERS]
    lines = sum(1 for line in text.split("\n") if line.strip())
    codes = _codes(text)
    bits = counted.characters[_hashes(codes, counted.order)]
    if not len(bits):
        bits = counted.characters.max(keepdims=True)
    tokens = _tokens(text)
    numbers, classes = _numbers(tokens, counted.index)
    characters = Counter(" ".join(text.split()))
    total = max(characters.total(), 1)
    letters = sum(n for letter, n in characters.items() if letter.isalpha())
    known = sum(characters[letter] for letter in characters.keys() & counted.known)
    digits = sum(n for letter, n in characters.items() if letter.isdigit())
    capitals = sum(n for letter, n in characters.items() if letter.isupper())
    symbols = total - letters - digits - characters[" "]
    runs = list(zip(*(tokens[k:] for k in range(_RUN)), strict=False))
    information = _information(classes, counted)
    word_bits = counted.word_bits[numbers] if tokens else counted.word_bits.max(keepdims=True)
    return [
        float(bits.mean()),
        letters / total,
        known / max(letters, 1),
        symbols / total,
        digits / total,
        capitals / max(letters, 1),
        1 - len(set(runs)) / len(runs) if runs else 0.0,
        float(word_bits.mean()),
        float(information.mean()),
        _worst(word_bits[: len(information)] - information),
        100 * max(lines - 1, 0) / max(len(tokens), 1),
        float(counted.story @ _rates(numbers)),
    ]


def _worst(bits: np.ndarray) -> float:
    """The largest mean of `_STRETCH` neighbouring words; of all if there are fewer."""
    sums = np.cumsum(np.append(0.0, bits))
    words = min(len(bits), _STRETCH)
    return float((sums[words:] - sums[:-words]).max() / words)


def windows_of(story: str, size: int, count: int) -> Iterator[str]:
    """Yield up to `count` parts of a story with `size` words each, evenly spaced."""
    words = [match.span() for match in _TOKEN.finditer(story) if match[0][0].isalnum()]
    parts = len(words) // size
    for number in sorted({parts * k // count for k in range(count)}) if parts else ():
        first = number * size
        yield story[words[first][0] : words[first + size - 1][1] + 1]
