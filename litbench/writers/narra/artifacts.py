"""Interactive elements of a story: what they are like, and whether one repeats another.

An element's HTML is text to compare, never to run.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from litbench.writers.narra.reading import WORDS

# Similarity above which an element is made once more (App. H), to the last accepted ones.
TAU, _WINDOW = 0.58, 6
_KEPT_RECORDS = 8
_BONUS, _SIGNAL_BONUS = 0.2, 0.15


@dataclass(frozen=True)
class Element:
    """An interactive element as its writer describes it.

    Attributes:
        type: such as "locked_box".
        purpose: what the player does and finds; None if the plan names none.
        html: the page, untrusted.
    """

    type: str
    description: str
    purpose: str | None
    html: str


@dataclass(frozen=True)
class Record:
    """An accepted element.

    Attributes:
        summary: one sentence.
        score: similarity to the closest element before it, rounded to three digits.
        violation: the kept version is too similar.
        closest: summary of that element; None for the first one.
        retried: whether a second version was made.
    """

    summary: str
    tags: tuple[str, ...]
    score: float
    violation: bool
    closest: str | None
    retried: bool


def _has(text: str, words: Collection[str]) -> bool:
    """Whether a text contains one of the words, also inside a longer one."""
    return any(word in text for word in words)


def visual_style(element: Element) -> str:
    """The visual style of an element: the first matching keyword group, else its type."""
    text = f"{element.type} {element.description} {element.html}".lower()
    for style, words in WORDS["styles"].items():
        if _has(text, words):
            return f"{style} aesthetic"
    return f"{(element.type or 'interactive').replace('_', ' ')} aesthetic"


def interaction_pattern(element: Element) -> str:
    """How the player handles an element: the first pattern whose words are in its HTML."""
    html = element.html.lower()
    for pattern, words in WORDS["interactions"].items():
        if _has(html, words):
            return f"{pattern} interaction"
    return "tap/click interaction"


def element_tags(element: Element) -> set[str]:
    """Type, look, pattern, content and handling of an element."""
    text = f"{element.type} {element.description} {element.html}".lower()
    named = {**WORDS["content_tags"], **WORDS["interaction_tags"]}
    tags = {tag for tag, words in named.items() if _has(text, words)}
    labels = (
        element.type.lower().replace("_", "-"),
        visual_style(element).lower(),
        interaction_pattern(element).lower(),
    )
    return tags | {label.replace(" ", "-") for label in labels if label}


def element_summary(element: Element) -> str:
    """One sentence: look, type, handling and purpose."""
    purpose = (element.purpose or element.description or "advance the story").strip().rstrip(".")
    return (
        f"A {visual_style(element)} built as a "
        f"{element.type.replace('_', ' ')}; the player engages through "
        f"{interaction_pattern(element)} to {purpose.lower()}."
    )


def _jaccard(first: Collection[str], second: Collection[str]) -> float:
    return len(set(first) & set(second)) / len(set(first) | set(second))


def tag_similarity(first: Collection[str], second: Collection[str]) -> float:
    """Jaccard index of two sets of tags, plus 0.2 for common content and for common handling."""
    if not first or not second:
        return 0.0
    shared = set(first) & set(second)
    bonus = sum(
        bool(shared & set(named)) for named in (WORDS["content_tags"], WORDS["interaction_tags"])
    )
    return min(1.0, _jaccard(first, second) + _BONUS * bonus)


def summary_similarity(first: str, second: str) -> float:
    """Jaccard index of the words of two summaries, plus 0.15 for a common telling word.

    Words of up to three characters do not count, so that "map" never does.
    """
    words = [
        {word for word in re.findall(r"[a-z0-9]+", text.lower()) if len(word) > 3}
        for text in (first, second)
    ]
    if not words[0] or not words[1]:
        return 0.0
    bonus = _SIGNAL_BONUS * bool(words[0] & words[1] & set(WORDS["signal"]))
    return min(1.0, _jaccard(*words) + bonus)


def needs_retry(
    element: Element, records: Sequence[Record], *, as_published: bool
) -> tuple[bool, float, Record | None]:
    """Whether an element is to be made once more, its score, and the first record that gives it.

    In the paper its score has to exceed `TAU`; for the published code it is enough to reach it.
    """
    summary = element_summary(element)
    tags = element_tags(element)
    score, nearest = 0.0, None
    for record in records[-_WINDOW:]:
        similarity = max(
            tag_similarity(tags, record.tags), summary_similarity(summary, record.summary)
        )
        if similarity > score:
            score, nearest = similarity, record
    return score > TAU or (as_published and score == TAU), score, nearest


def accept(
    element: Element, retry: Element | None, records: Sequence[Record], *, as_published: bool
) -> tuple[Record, ...]:
    """Add the record of an element, or of its retry if that is strictly less similar.

    Records are in the order of their acceptance; the last eight are returned.
    """
    chosen = element
    violates, score, nearest = needs_retry(element, records, as_published=as_published)
    if retry is not None:
        again = needs_retry(retry, records, as_published=as_published)
        if again[1] < score:
            chosen, (violates, score, nearest) = retry, again
    record = Record(
        element_summary(chosen),
        tuple(sorted(element_tags(chosen))),
        round(score, 3),
        violates,
        nearest.summary if nearest else None,
        retry is not None,
    )
    return (*records, record)[-_KEPT_RECORDS:]


def extract_html(text: str) -> str:
    """The HTML of a reply: the content of its first closed fence, or the whole reply."""
    fenced = re.search(r"```(?:html)?(.*?)```", text, re.S | re.I)
    return (fenced[1] if fenced else "").strip() or text.strip()
