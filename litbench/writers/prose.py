"""Text statistics of EQ-Bench Longform: length, vocabulary complexity, slop, repetition.

They describe one writer's chapters in English, as github.com/EQ-bench/longform-writing-bench
computes and publishes them. A chapter is a text, a story a sequence of chapters. The extra `prose`
has the libraries. NLTK's data are read from the folders in `NLTK_DATA` and NLTK's usual ones.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from litbench.runs.errors import DataError, MissingExtraError

# Later versions split words at dashes and quotes in other ways.
_NLTK_VERSIONS = ("3.9.1", "3.9.2")


@dataclass(frozen=True)
class SlopLists:
    """Words and phrases that language models overuse, lower-case, words separated by a blank."""

    words: frozenset[str]
    bigrams: frozenset[str]
    trigrams: frozenset[str]

    @classmethod
    def read(cls, folder: Path) -> "SlopLists":
        """Read the benchmark's three files, lists of lists that start with a word or phrase.

        Raises:
            DataError: a file is missing or has another form.
        """
        lists = []
        for name in ("slop_list", "slop_list_bigrams", "slop_list_trigrams"):
            path = folder / f"{name}.json"
            try:
                rows = json.loads(path.read_text(encoding="utf-8"))
                lists.append(frozenset(phrase for phrase, *_ in rows))
            except (OSError, ValueError, TypeError) as error:
                raise DataError(
                    f"{path}: not a list of slop phrases ({error}): give the folder data/ of "
                    "EQ-bench/longform-writing-bench"
                ) from error
        return cls(*lists)


@dataclass(frozen=True)
class Slop:
    """Hits of the slop lists in a text of `words` words."""

    words: int
    word_hits: int
    bigram_hits: int
    trigram_hits: int

    @property
    def index(self) -> float:
        """Hits per 1,000 words; a bigram counts as 2, a trigram as 8. 0 without words."""
        hits = self.word_hits + 2 * self.bigram_hits + 8 * self.trigram_hits
        return 1000 * hits / self.words if self.words else 0.0


@dataclass(frozen=True)
class Complexity:
    """Sentences, tokens (punctuation included), syllables, and tokens of 3 syllables or more."""

    sentences: int
    tokens: int
    syllables: int
    polysyllabic: int

    @property
    def index(self) -> float:
        """Mean of Flesch-Kincaid grade / 14 and share of long tokens / 20 %, each at most 100.

        May be negative; 0 without tokens.
        """
        if self.tokens == 0:
            return 0.0
        grade = 0.39 * self.tokens / self.sentences + 11.8 * self.syllables / self.tokens - 15.59
        long_tokens = 100 * self.polysyllabic / self.tokens
        return (min(grade, 14) / 14 + min(long_tokens, 20) / 20) * 50


@dataclass(frozen=True)
class ProseStatistics:
    """Statistics of one writer, of all chapters of all stories.

    Attributes:
        length: mean number of characters of a chapter; NaN without chapters.
        complexity: index of `complexity`, about 0 to 100.
        slop: index of `slop`, per 1,000 words.
        repetition: see `repetition`; NaN for fewer than two stories.
    """

    length: float
    complexity: float
    slop: float
    repetition: float


@dataclass(frozen=True)
class _English:
    """NLTK's tokenizers and dictionaries; `syllables` is of lower-case words."""

    split_sentences: Callable[[str], list[str]]
    split_words: Callable[[str], list[str]]
    syllables: Mapping[str, int]
    stop_words: frozenset[str]

    def tokens(self, text: str) -> list[str]:
        """The tokens of all sentences of a text, as NLTK's `word_tokenize` gives them."""
        return [
            word for sentence in self.split_sentences(text) for word in self.split_words(sentence)
        ]


@cache
def _english() -> _English:
    try:
        import nltk  # noqa: PLC0415
        from nltk.tokenize import NLTKWordTokenizer, PunktTokenizer  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("nltk", "prose") from error
    if nltk.__version__ not in _NLTK_VERSIONS:
        raise MissingExtraError(f"nltk {' or '.join(_NLTK_VERSIONS)}", "prose")
    try:
        sentences = PunktTokenizer("english").tokenize
        pronunciations = nltk.data.load("corpora/cmudict/cmudict", "text", cache=False)
        stop_words = nltk.data.load("corpora/stopwords/english", "text", cache=False)
    except LookupError as error:
        needed = "punkt_tab cmudict stopwords"
        raise DataError(
            f"NLTK's data ({needed}) are not in its folders: run python -m nltk.downloader "
            f"{needed}, or set NLTK_DATA to a folder that has them"
        ) from error
    syllables: dict[str, int] = {}
    for line in pronunciations.splitlines():
        word, _, *phonemes = line.lower().split()
        # Vowels end in a digit, their stress.
        count = sum(phoneme[-1].isdigit() for phoneme in phonemes)
        syllables[word] = max(count, syllables.get(word, 0))
    split_words = NLTKWordTokenizer().tokenize
    return _English(sentences, split_words, syllables, frozenset(stop_words.split()))


def _ngrams(tokens: Sequence[str], n: int) -> list[str]:
    return [" ".join(tokens[k : k + n]) for k in range(len(tokens) - n + 1)]


def complexity(text: str) -> Complexity:
    """Count what the complexity index needs. A token without known pronunciation: one syllable."""
    english = _english()
    syllables = [english.syllables.get(token.lower(), 1) for token in english.tokens(text)]
    return Complexity(
        sentences=len(english.split_sentences(text)),
        tokens=len(syllables),
        syllables=sum(syllables),
        polysyllabic=sum(count >= 3 for count in syllables),
    )


def slop(text: str, lists: SlopLists) -> Slop:
    """Count hits of the slop lists among alphanumeric tokens, across sentences.

    The published bigrams and trigrams were collected without stop words and are looked up in text
    with stop words, so most occurrences are missed, as in the published values.
    """
    words = [token for token in _english().tokens(text.lower()) if token.isalnum()]
    bigrams, trigrams = _ngrams(words, 2), _ngrams(words, 3)
    return Slop(
        words=len(words),
        word_hits=sum(word in lists.words for word in words),
        bigram_hits=sum(bigram in lists.bigrams for bigram in bigrams),
        trigram_hits=sum(trigram in lists.trigrams for trigram in trigrams),
    )


def repetition(stories: Sequence[Sequence[str]]) -> float:
    """Occurrences of the most frequent phrases, per 1,000 words.

    Phrases are bigrams and trigrams of a chapter's alphabetic tokens without stop words. Those of
    at least two stories count, the 40 most frequent of each length. Words are separated by blanks.

    Returns:
        NaN for fewer than two stories, or without words.
    """
    n_words = sum(len(chapter.split()) for story in stories for chapter in story)
    if len(stories) < 2 or n_words == 0:
        return float("nan")
    tokens = [[_content_words(chapter) for chapter in story] for story in stories]
    repeated = 0
    for n in (2, 3):
        by_story = [
            Counter(ngram for chapter in story for ngram in _ngrams(chapter, n)) for story in tokens
        ]
        total = sum(by_story, Counter[str]())
        stories_with = Counter(itertools.chain.from_iterable(by_story))
        shared = (total[ngram] for ngram, count in stories_with.items() if count >= 2)
        repeated += sum(sorted(shared, reverse=True)[:40])
    return 1000 * repeated / n_words


def _content_words(text: str) -> list[str]:
    """Alphabetic tokens without stop words, lower-case."""
    english = _english()
    words = (token.lower() for token in english.tokens(text) if token.isalpha())
    return [word for word in words if word not in english.stop_words]


def prose_statistics(stories: Sequence[Sequence[str]], lists: SlopLists) -> ProseStatistics:
    """Compute all statistics of one writer's stories, given as the texts of their chapters."""
    chapters = [chapter for story in stories for chapter in story]
    text = "\n\n".join(chapters)
    return ProseStatistics(
        length=float(np.mean([len(chapter) for chapter in chapters])) if chapters else float("nan"),
        complexity=complexity(text).index,
        slop=slop(text, lists).index,
        repetition=repetition(stories),
    )
