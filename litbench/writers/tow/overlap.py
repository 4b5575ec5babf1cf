"""Overlap of a text with a reference: BLEU and ROUGE on Chinese words.

The functions take tokens, so that a text is cut once (`tokenize`, in the extra `prose`). Values are
those of the released code of Tree-of-Writing (github.com/ZhuoerFeng/ACL2026-Tree-of-Writing), which
computes ROUGE with rouge-chinese 1.0.3; `bleu1` is ours, as the paper's BLEU-1 is not in that code.
"""

import math
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from litbench.runs.errors import MissingExtraError

# rouge-chinese begins a new line after these, one pattern after the other.
_SENTENCE_ENDS = (
    *(re.compile(rf"({mark})([^”’])") for mark in ("[。！？?]", r"\.{6}", "…{2}")),
    re.compile("([。！？?][”’])([^，。！？?])"),
)


@cache
def _jieba() -> Any:
    try:
        # On import it uses what setuptools deprecates, and Python warns of its escape sequences.
        with warnings.catch_warnings(action="ignore"):
            import jieba  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("jieba", "prose") from error
    tokenizer = jieba.Tokenizer()
    # As its `initialize` does, but without a cache in the shared temporary folder and without log.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer


def tokenize(text: str) -> list[str]:
    """Cut a text into words with jieba; punctuation, blanks and line breaks are tokens."""
    tokens: list[str] = _jieba().lcut(text)
    return tokens


def _ngrams(tokens: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(tokens[k : k + n]) for k in range(len(tokens) - n + 1)]


def ngram_precision(hypothesis: Sequence[str], reference: Sequence[str], n: int) -> float:
    """Share of the n-grams of the hypothesis that are in the reference, with clipped counts.

    The released code calls this BLEU-n. It has no brevity penalty, and no mean over orders.

    Returns:
        0 to 1; 0 if the hypothesis has no n-gram.
    """
    counts = Counter(_ngrams(hypothesis, n))
    return (counts & Counter(_ngrams(reference, n))).total() / max(counts.total(), 1)


def bleu1(hypothesis: Sequence[str], reference: Sequence[str]) -> float:
    """BLEU-1 of a text: unigram precision times the brevity penalty exp(1 - r / h) for h < r."""
    if not hypothesis:
        return 0.0
    brevity = math.exp(min(0.0, 1 - len(reference) / len(hypothesis)))
    return brevity * ngram_precision(hypothesis, reference, 1)


def rouge_n(hypothesis: Sequence[str], reference: Sequence[str], n: int) -> float:
    """ROUGE-n: F-score of the sets of n-grams, 0 to 1."""
    first, second = (set(_ngrams(_rouge_words(side), n)) for side in (hypothesis, reference))
    return _f_score(len(first & second), len(first), len(second))


def rouge_l(hypothesis: Sequence[str], reference: Sequence[str]) -> float:
    """ROUGE-L: F-score of the longest common subsequence, 0 to 1."""
    first, second = _rouge_words(hypothesis), _rouge_words(reference)
    return _f_score(longest_common_subsequence(first, second), len(first), len(second))


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence.

    Bit-parallel (Hyyrö, "Bit-parallel LCS-length computation revisited", 2004): one step for each
    token of `second`, on integers with a bit for each token of `first`.
    """
    positions: dict[str, int] = {}
    for k, token in enumerate(first):
        positions[token] = positions.get(token, 0) | 1 << k
    every = (1 << len(first)) - 1
    # A zero bit is a place where the subsequence grows.
    state = every
    for token in second:
        matches = state & positions.get(token, 0)
        state = (state + matches | state - matches) & every
    return len(first) - state.bit_count()


def _rouge_words(tokens: Sequence[str]) -> list[str]:
    """Tokens without blanks. As in rouge-chinese, a line of blanks becomes one empty token."""
    text = " ".join(tokens)
    for end in _SENTENCE_ENDS:
        text = end.sub(r"\1\n\2", text)
    lines = text.rstrip().split("\n")
    return [word for line in lines if line for word in line.split() or [""]]


def _f_score(overlap: int, n_hypothesis: int, n_reference: int) -> float:
    if overlap == 0:
        return 0.0
    precision, recall = overlap / n_hypothesis, overlap / n_reference
    # The package adds this to avoid a division by zero.
    return 2 * precision * recall / (precision + recall + 1e-8)
