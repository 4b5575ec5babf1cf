"""How answers are read.

An answer that keeps the asked form has a verdict; any other has none, and is never guessed at.
"""

import re
from typing import Literal, cast

Label = Literal["A", "B"]

# Around the words stands whatever Markdown a model likes, as in "**Preferred: Story B**"; the
# full-width colon (U+FF1A) is the one of Chinese and Japanese keyboards.
_VERDICT_LINE = re.compile(
    r"(?:^|(?<=\r))[ \t*_#>`-]*preferred[ \t*_`]*[:\uff1a](?P<named>.*)$", re.I | re.M
)
_NAMED = re.compile(r"[\s*_`\"'(\[]*(?:story\s+)?(?P<label>[AB])[\s*_`\"')\].]*", re.I)


def split_verdict(answer: str) -> tuple[str, Label | None]:
    """Divide an answer of the explanation form.

    The last line that begins with `Preferred:` binds, since a model may weigh both stories, or
    quote a line of one, before it decides. What follows that line is dropped.

    Returns:
        The explanation without the verdict line, and the label. Where no line, or not the last
        one, names one story, the whole answer and None.
    """
    lines = list(_VERDICT_LINE.finditer(answer))
    if not lines:
        return answer.strip(), None
    named = _NAMED.fullmatch(lines[-1]["named"])
    if named is None:
        return answer.strip(), None
    return answer[: lines[-1].start()].strip(), cast(Label, named["label"].upper())


def has_verdict_line(text: str) -> bool:
    """Whether a line begins with `Preferred:`, whatever it names.

    Where an explanation still has one, a verdict was taken back or cannot be read, and nobody knows
    which story it argues for.
    """
    return _VERDICT_LINE.search(text) is not None


def read_label(answer: str) -> Label | None:
    """The label of an answer of the explanation form, or None where it does not keep the form."""
    return split_verdict(answer)[1]
