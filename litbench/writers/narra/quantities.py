"""Quantities of an episode beside its ratings, and the grades that ratings make."""

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from litbench.writers.narra.reading import WORDS

STORY_CRITERIA = (
    "story_relevance",
    "story_coherence",
    "story_empathy",
    "story_surprise",
    "story_engagement",
    "story_complexity",
    "character_shaping",
)
UX_CRITERIA = (
    "ux_story_satisfaction",
    "ux_perceived_story_quality",
    "ux_process_engagement",
    "ux_use_again_intent",
)
CRITERIA = STORY_CRITERIA + UX_CRITERIA
# The published user-experience figures are means of all eleven criteria, not of the four.
GRADES = {"storyq": STORY_CRITERIA, "ux": UX_CRITERIA, "all11": CRITERIA}

_TOKEN = re.compile(r"[A-Za-z0-9']+|[\u4e00-\u9fff]")
_TERM = re.compile(r"[A-Za-z][A-Za-z0-9']{2,}")
_SENTENCE_END = re.compile(r"(?:\r?\n)+|(?<=[.!?。！？；;])\s*")


def repetition_index(texts: Sequence[str]) -> float:
    """The published repetition index ("slop score") of a writer's messages, to two digits.

    It is 100 min(1, .34 min(4.5 b, 1) + .24 min(7 t, 1) + .18 min(1.8 f, 1) + .14 min(4 p, 1) +
    .10 min(40 g, 1)), with the shares b of bigrams, t of trigrams, f of frequent terms, p of
    openings, and the stock phrases g per token.
    """
    whole = "\n".join(flat for text in texts if (flat := " ".join(text.split())))
    tokens = [token.lower() for token in _TOKEN.findall(whole)]
    sentences = [part for part in _SENTENCE_END.split(whole) if part.strip()]
    terms = [term.lower() for term in _TERM.findall(whole)] or _openings(sentences, 10)
    frequent = sum(count for _, count in Counter(terms).most_common(8)) / max(len(terms), 1)
    phrases = [phrase for group in WORDS["stock_phrases"].values() for phrase in group]
    hits = sum(len(re.findall(phrase, whole.lower())) for phrase in phrases)
    parts = (
        (0.34, 4.5, _surplus(list(pairwise(tokens)))),
        (0.24, 7, _surplus(list(zip(tokens, tokens[1:], tokens[2:], strict=False)))),
        (0.18, 1.8, frequent),
        (0.14, 4, _surplus(_openings(sentences, 12))),
        (0.10, 40, hits / max(len(tokens), 1)),
    )
    return round(100 * min(1.0, sum(w * min(factor * share, 1) for w, factor, share in parts)), 2)


def _surplus(items: Sequence[Hashable]) -> float:
    """Share of items that repeat an earlier one."""
    return (len(items) - len(set(items))) / max(len(items), 1)


def _openings(sentences: Sequence[str], letters: int) -> list[str]:
    """The first letters of sentences, without punctuation, where there are at least four."""
    openings = [re.sub(r"\W+", "", sentence.lower())[:letters] for sentence in sentences]
    return [opening for opening in openings if len(opening) >= 4]


def grades(ratings: Mapping[str, float | None]) -> dict[str, float | None]:
    """The grades of one judge's ratings: means of 7 story criteria, 4 of experience, all 11.

    A missing rating is None or absent; a grade without any rating is None.
    """
    rated = {name: value for name, value in ratings.items() if value is not None}
    return {
        grade: fmean(values) if (values := [rated[n] for n in names if n in rated]) else None
        for grade, names in GRADES.items()
    }


def published_rating(criterion: str, value: object) -> int:
    """A rating as the published code stores it.

    Rounded (halves to even) and cut to 1..5; an unreadable or missing one is 1. The wish to use
    the system again goes to the nearest of 1, 3 and 5, ties down.
    """
    try:
        rounded = round(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return 1
    rating = max(1, min(5, rounded))
    if criterion == "ux_use_again_intent":
        return min((1, 3, 5), key=lambda allowed: abs(allowed - rating))
    return rating
