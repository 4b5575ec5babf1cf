"""What an explanation's text is like: features, each a rule that can be read.

Most features are lists of English word stems (explanation_words.yaml): the explanation has the
feature if it has one of them. Case, typographic quotes, full-width letters, invisible characters
and Markdown syntax make no difference. The other features look at the verdict (which story won),
at the stories (is a quoted passage really in one of them?) or at the form of the answer.

How often these lists find what people say a comment is about is measured by
`benchmarks/explanation_words.py`. Explanations in other languages have no word of the lists.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Literal

import yaml

from litbench.text import normalise

Group = Literal["subject", "manner", "form", "side"]
Side = Literal["first", "second"]

_MANY_SUBJECTS = 7
_QUOTED_WORDS = 3


@dataclass(frozen=True)
class Words:
    """A list of stems.

    Attributes:
        about: what having one of them means.
        group: subject (what the explanation talks of), manner (how), or side (only looked for in
            sentences about one story).
        stems: see explanation_words.yaml.
        but_not: stems that are passed over where they stand, since they mean something else.
    """

    about: str
    group: Group
    stems: str
    but_not: str = ""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """All stems at once; what is to be passed over is caught by a group named `other`."""
        wanted = "|".join(_as_regex(stem) for stem in _stems_of(self.stems))
        if not self.but_not:
            return re.compile(rf"\b(?:{wanted})")
        other = "|".join(_as_regex(stem) for stem in _stems_of(self.but_not))
        return re.compile(rf"\b(?:(?P<other>{other})|(?:{wanted}))")

    def find(self, folded: str) -> str | None:
        """The first stem's match in a text that `fold` made, or None."""
        for match in self.pattern.finditer(folded):
            if not self.but_not or match["other"] is None:
                return match[0]
        return None


def _stems_of(listed: str) -> list[str]:
    # The longest first, so that "run-on" is not cut short by "run".
    return sorted((stem.strip() for stem in listed.split(",")), key=len, reverse=True)


def _as_regex(stem: str) -> str:
    # A word's own hyphen is optional; nothing here repeats inside a repetition.
    body = "[- ]?".join(re.escape(part) for part in stem.rstrip("*").split("-"))
    return body + (r"\w*" if stem.endswith("*") else r"\b")


def _load_words() -> dict[str, Words]:
    file = resources.files("litbench.metrics").joinpath("explanation_words.yaml")
    lists = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {name: Words(**keys) for name, keys in lists.items()}


_LISTS = _load_words()
FAULTS, MERITS = _LISTS.pop("faults"), _LISTS.pop("merits")
WORDS = _LISTS

_MARKS = str.maketrans("_*#`~>", "      ")
_QUOTES = str.maketrans("“”„«»’‘", '"""""\'\'')
_THINGS = "story|response|text|option|entry|version|submission|piece|passage|candidate"
_DOES = "is|has|was|feels|offers|uses|wins|lacks|does"


def _label(letter: str, number: str, nth: str, which: str) -> re.Pattern[str]:
    """What names the story shown first, or that shown second.

    Letters are capitals: "a story a child would tell" names no story A, and a bare A is a label
    only before a verb.
    """
    return re.compile(
        rf"\b(?:(?i:{_THINGS})[\s\"'(\[#:]{{0,3}}(?:{letter}|{number})\b"
        rf"|{letter}(?:'s\b| (?:{_DOES})\b)"
        rf"|(?i:{which}|{nth} (?:{_THINGS}|one))\b)"
    )


_FIRST = _label("A", "1", "first", "the former")
_SECOND = _label("B", "2", "second", "the latter")
_TOGETHER = re.compile(
    r"\bboth (?:of them|(?:short )?(?:stories|responses|texts|entries|pieces|submissions))\b"
    r"|\b(?:stories|responses|texts|entries) (?:A|1) and (?:B|2)\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_QUOTED = re.compile(r'"([^"\n]{1,600})"')
_ELLIPSIS = re.compile(r"\.{3}|\[\.{3}\]|…")
_ITEM = re.compile(r"^[ \t]{0,8}(?:[-*•+]|\d{1,2}[.)])[ \t]+\S", re.MULTILINE)
_POINTS = re.compile(r"\b\d{1,3}(?:\.\d)? ?(?:/|out of) ?(?:5|10|20|100)\b")


def fold(text: str) -> str:
    """The text as the lists of stems are looked up in it."""
    # Markdown's _ counts as a letter in a regular expression and would hide a word.
    return normalise(text.translate(_MARKS))


def _as_written(text: str) -> str:
    """The text with its case, for labels and quotations."""
    return unicodedata.normalize("NFKC", text.translate(_MARKS)).translate(_QUOTES)


def sentences(text: str) -> list[str]:
    """Cut a text where a sentence or a line ends."""
    return [part for part in _SENTENCE_END.split(text) if part.strip()]


@dataclass(frozen=True)
class Explained:
    """One explanation and what it is about.

    Attributes:
        text: the explanation as the rater wrote it.
        winner: which story, by place, the verdict names; None for a tie or without order.
        sources: texts that may be quoted, in any order, as `bare` leaves them; none are looked at
            where the explanation quotes nothing.
    """

    text: str
    winner: Side | None = None
    sources: Callable[[], Iterable[str]] = tuple

    @cached_property
    def folded(self) -> str:
        """See `fold`."""
        return fold(self.text)

    @cached_property
    def words(self) -> frozenset[str]:
        """The names of the lists in `WORDS` of which it has a word."""
        return frozenset(name for name, words in WORDS.items() if words.find(self.folded))

    @cached_property
    def named(self) -> list[tuple[str, frozenset[Side]]]:
        """Each sentence, folded, with the stories it names by place."""
        found = []
        for sentence in sentences(_as_written(self.text)):
            places: set[Side] = {"first", "second"} if _TOGETHER.search(sentence) else set()
            if _FIRST.search(sentence):
                places.add("first")
            if _SECOND.search(sentence):
                places.add("second")
            found.append((fold(sentence), frozenset(places)))
        return found

    @cached_property
    def first_named(self) -> Side | None:
        """The story that is named first on its own; None where none is."""
        written = _as_written(self.text)
        first, second = _FIRST.search(written), _SECOND.search(written)
        if first is None or second is None:
            return "first" if first else "second" if second else None
        return "first" if first.start() < second.start() else "second"

    @cached_property
    def quotes(self) -> tuple[bool, bool]:
        """Whether some quoted passage is in a story or prompt, and whether some is in none."""
        passages = [
            bare(part)
            for match in _QUOTED.finditer(_as_written(self.text))
            for part in _ELLIPSIS.split(match[1])
        ]
        passages = [part for part in passages if len(part.split()) >= _QUOTED_WORDS]
        if not passages:
            return False, False
        sources = list(self.sources())
        hits = [any(part in source for source in sources) for part in passages]
        return any(hits), not all(hits)

    def says_of(self, winner: bool, words: Words) -> bool:
        """Whether a sentence that names the winner alone (or the loser alone) has such a word."""
        if self.winner is None:
            return False
        other: Side = "second" if self.winner == "first" else "first"
        side = frozenset([self.winner if winner else other])
        return any(places == side and words.find(text) for text, places in self.named)


def bare(text: str) -> str:
    """A passage without the marks in which a quotation may differ from its source."""
    return " ".join(re.sub(r"[^\w' ]+", " ", fold(text)).split())


@dataclass(frozen=True)
class Feature:
    """A feature of explanations.

    Attributes:
        name: as tables have it.
        about: its rule in a few words.
        group: subject, manner or form.
        holds: whether an explanation has it; None for a feature that depends on the other
            explanations of the rater (`SHORTEST`, `LONGEST`).
    """

    name: str
    about: str
    group: Group
    holds: Callable[[Explained], bool] | None


SHORTEST, LONGEST = "shortest_quarter", "longest_quarter"


_SUBJECTS = frozenset(name for name, words in WORDS.items() if words.group == "subject")

# name, rule in a few words, and whether an explanation has the feature
_FORMS: tuple[tuple[str, str, Callable[[Explained], bool] | None], ...] = (
    (
        "many_subjects", f"talks of {_MANY_SUBJECTS} or more of the subjects above",
        lambda of: len(of.words & _SUBJECTS) >= _MANY_SUBJECTS,
    ),
    (
        "names_both",
        'names both stories: "Story A" and "Story B", "the first story" and "the second", "both"',
        lambda of: {"first", "second"} <= frozenset().union(*(at for _, at in of.named)),
    ),
    (
        "second_named_first", "names the story shown second before the one shown first",
        lambda of: of.first_named == "second",
    ),
    (
        "winner_named_first", "names the story it prefers before the other",
        lambda of: of.winner is not None and of.first_named == of.winner,
    ),
    (
        "criticises_winner",
        "a sentence that names the preferred story alone finds a fault (weak, lacks, cliche, ...)",
        lambda of: of.says_of(winner=True, words=FAULTS),
    ),
    (
        "criticises_loser", "a sentence that names the other story alone finds a fault",
        lambda of: of.says_of(winner=False, words=FAULTS),
    ),
    (
        "praises_loser",
        "a sentence that names the other story alone finds a merit (strong, vivid, well, ...)",
        lambda of: of.says_of(winner=False, words=MERITS),
    ),
    (
        "quotes", f"quotes {_QUOTED_WORDS} words or more that are in a story or the prompt",
        lambda of: of.quotes[0],
    ),
    (
        "misquotes", f"puts {_QUOTED_WORDS} words or more in quotation marks that are in neither",
        lambda of: of.quotes[1],
    ),
    (
        "list", "has two or more lines that are items of a list",
        lambda of: len(_ITEM.findall(of.text)) >= 2,
    ),
    (
        "marks", "gives marks: 7/10, 4 out of 5",
        lambda of: _POINTS.search(of.folded) is not None,
    ),
    (SHORTEST, "has fewer words than three quarters of the rater's explanations", None),
    (LONGEST, "has more words than three quarters of the rater's explanations", None),
)  # fmt: skip


def _has(name: str) -> Callable[[Explained], bool]:
    return lambda of: name in of.words


FEATURES = (
    *(Feature(name, words.about, words.group, _has(name)) for name, words in WORDS.items()),
    *(Feature(name, about, "form", holds) for name, about, holds in _FORMS),
)
FEATURE_NAMES = tuple(feature.name for feature in FEATURES)


def excerpt(name: str, text: str, letters: int = 420) -> str:
    """A piece of an explanation that shows a feature: from the sentence that has it, or the start.

    Args:
        name: a feature's.
        text: an explanation with the feature.
        letters: at most so many.
    """
    parts = sentences(text)
    start = 0
    if name in WORDS:
        words = WORDS[name]
        start = next((k for k, part in enumerate(parts) if words.find(fold(part))), 0)
    shown = " ".join(" ".join(parts[start:]).split())
    cut = shown if len(shown) <= letters else shown[:letters].rsplit(" ", 1)[0] + " …"
    return f"… {cut}" if start else cut
