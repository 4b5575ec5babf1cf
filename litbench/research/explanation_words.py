"""Features of explanations, each a list of English word stems (explanation_words.yaml).

Case, full-width letters, invisible characters and Markdown syntax are ignored. Explanations in
other languages have no features.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from litbench.data.text import normalise
from litbench.runs.config import read_yaml

_MARKS = str.maketrans("_*#`~>", "      ")


@dataclass(frozen=True)
class Words:
    """A feature of explanations, defined by word stems.

    Attributes:
        about: description of the feature.
        group: subject (what the explanation talks about) or manner (how).
        stems: see explanation_words.yaml.
        but_not: stems that are skipped, since they mean something else.
    """

    about: str
    group: str
    stems: str
    but_not: str = ""

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """A pattern of all stems; the group `other` captures the stems to skip."""
        wanted, other = _alternatives(self.stems), _alternatives(self.but_not)
        return re.compile(rf"\b(?:(?P<other>{other})|(?:{wanted}))")

    def find(self, folded: str) -> str | None:
        """The first word with one of the stems in a text from `_fold`, or None."""
        matches = self._pattern.finditer(folded)
        return next((match[0] for match in matches if match["other"] is None), None)


def _alternatives(listed: str) -> str:
    # Longest first, so that "run" does not hide "run-on". An empty list never matches.
    stems = sorted((stem.strip() for stem in listed.split(",")), key=len, reverse=True)
    return "|".join(_as_regex(stem) for stem in stems if stem) or r"(?!)"


def _as_regex(stem: str) -> str:
    # Hyphens are optional. No nested repetition, so matching takes linear time.
    body = "[- ]?".join(re.escape(part) for part in stem.rstrip("*").split("-"))
    return body + (r"\w*" if stem.endswith("*") else r"\b")


FEATURES = {
    name: Words(**keys)
    for name, keys in read_yaml(Path(__file__).with_name("explanation_words.yaml")).items()
}


def _fold(text: str) -> str:
    # \b does not separate a word from Markdown's _.
    return normalise(text.translate(_MARKS))


def features_of(text: str) -> list[bool]:
    """Whether an explanation has each feature, in the order of FEATURES."""
    folded = _fold(text)
    return [words.find(folded) is not None for words in FEATURES.values()]
