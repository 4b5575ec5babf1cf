"""What an explanation's text is like: features, each a list of English word stems.

An explanation has a feature if it has one of the words of explanation_words.yaml. Case, full-width
letters, invisible characters and Markdown syntax make no difference. Explanations in other
languages have no word of the lists.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from importlib import resources

import yaml

from litbench.text import normalise


@dataclass(frozen=True)
class Words:
    """A feature of explanations: a list of stems.

    Attributes:
        about: what having one of them means.
        group: subject (what the explanation talks of) or manner (how).
        stems: see explanation_words.yaml.
        but_not: stems that are passed over where they stand, since they mean something else.
    """

    about: str
    group: str
    stems: str
    but_not: str = ""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """All stems at once; what is to be passed over is caught by a group named `other`."""
        wanted, other = _alternatives(self.stems), _alternatives(self.but_not)
        return re.compile(rf"\b(?:(?P<other>{other})|(?:{wanted}))")

    def find(self, folded: str) -> str | None:
        """The first stem's match in a text that `fold` made, or None."""
        matches = self.pattern.finditer(folded)
        return next((match[0] for match in matches if match["other"] is None), None)


def _alternatives(listed: str) -> str:
    # The longest first, so that "run-on" is not cut short by "run"; no stem at all never matches.
    stems = sorted((stem.strip() for stem in listed.split(",")), key=len, reverse=True)
    return "|".join(_as_regex(stem) for stem in stems if stem) or r"(?!)"


def _as_regex(stem: str) -> str:
    # A word's own hyphen is optional; nothing here repeats inside a repetition.
    body = "[- ]?".join(re.escape(part) for part in stem.rstrip("*").split("-"))
    return body + (r"\w*" if stem.endswith("*") else r"\b")


def _load_words() -> dict[str, Words]:
    file = resources.files("litbench.metrics").joinpath("explanation_words.yaml")
    lists = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {name: Words(**keys) for name, keys in lists.items()}


FEATURES = _load_words()
_MARKS = str.maketrans("_*#`~>", "      ")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def fold(text: str) -> str:
    """The text as the lists of stems are looked up in it."""
    # Markdown's _ counts as a letter in a regular expression and would hide a word.
    return normalise(text.translate(_MARKS))


def features_of(text: str) -> list[bool]:
    """Which of FEATURES an explanation has; in their order."""
    folded = fold(text)
    return [words.find(folded) is not None for words in FEATURES.values()]


def excerpt(name: str, text: str, letters: int = 420) -> str:
    """A piece of an explanation, from the first sentence that has a feature.

    Args:
        name: of FEATURES.
        text: an explanation with the feature.
        letters: at most so many.
    """
    parts = [part for part in _SENTENCE_END.split(text) if part.strip()]
    start = next((k for k, part in enumerate(parts) if FEATURES[name].find(fold(part))), 0)
    shown = " ".join(" ".join(parts[start:]).split())
    cut = shown if len(shown) <= letters else shown[:letters].rsplit(" ", 1)[0] + " …"
    return f"… {cut}" if start else cut
