"""Explanations that end in a line `Preferred: A`, as data sets of explanations have them."""

import re
from typing import Literal, cast

# Allows Markdown around the words, as in "**Preferred: Story B**", and the full-width colon
# (U+FF1A) of Chinese and Japanese keyboards.
_VERDICT_LINE = re.compile(
    r"(?:^|(?<=\r))[ \t*_#>`-]*preferred[ \t*_`]*[:\uff1a](?P<named>.*)$", re.I | re.M
)
_NAMED = re.compile(r"[\s*_`\"'(\[]*(?:story\s+)?(?P<label>[AB])[\s*_`\"')\].]*", re.I)


def split_verdict(answer: str) -> tuple[str, Literal["A", "B"] | None]:
    """Split an answer into explanation and label, for training.

    Only lines that begin with `Preferred:` count, so that models learn the requested form. The last
    such line counts; the text after it is dropped.

    Returns:
        The explanation without the verdict line, and the label. If there is no verdict line, or
        the last one does not name one story: the whole answer and None.
    """
    lines = list(_VERDICT_LINE.finditer(answer))
    named = _NAMED.fullmatch(lines[-1]["named"]) if lines else None
    if named is None:
        return answer.strip(), None
    return answer[: lines[-1].start()].strip(), cast(Literal["A", "B"], named["label"].upper())


def has_verdict_line(text: str) -> bool:
    """Whether any line begins with `Preferred:`, even if it names no story."""
    return _VERDICT_LINE.search(text) is not None
