"""Find and repair JSON in models' replies; in linear time, because replies are untrusted.

The rules, for every reader of JSON:

1. An object or array begins at a place that the caller's expression matches, and ends where it is
   complete; the search goes on behind it. Strings may contain line breaks and control characters.
2. One that cannot be decoded is passed over by one character. After `_MAX_BROKEN` of them the
   search ends, because text full of braces would take quadratic time.
3. Only a caller that asks for it gets a broken one repaired: `repaired` straightens curly quotes,
   removes control characters and trailing commas, and closes what a truncated reply left open.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from litbench.data.text import valid_unicode

OBJECT = re.compile(r"(?P<start>\{)")

_MAX_BROKEN = 100
_DECODER = json.JSONDecoder(strict=False)
_CLOSERS = {"{": "}", "[": "]"}
_CLEANED = str.maketrans(
    {"“": '"', "”": '"', "‘": "'", "’": "'", "\ufeff": None}
    | {chr(code): None for code in [*range(9), 11, 12, *range(14, 32), 127]}
)
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{\[\]}]|[^"{\[\]}]+', re.S)
_TRAILING_COMMA = re.compile(r",(?=\s{0,200}[}\]])")


class Found(NamedTuple):
    """JSON in a text: where it is, and its content; `is_broken` if it cannot be decoded."""

    start: int
    end: int
    content: Any
    is_broken: bool = False


def find_json(text: str, opens: re.Pattern[str] = OBJECT) -> Iterator[Found]:
    """Yield JSON in order, broken JSON too.

    Args:
        text: the reply.
        opens: what JSON begins with, at its group `start`.
    """
    n_broken = 0
    match = opens.search(text)
    while match and n_broken < _MAX_BROKEN:
        start = match.start("start")
        try:
            content, end = _DECODER.raw_decode(text, start)
            yield Found(start, end, content)
        except (ValueError, RecursionError):
            end, n_broken = start + 1, n_broken + 1
            yield Found(start, end, None, is_broken=True)
        match = opens.search(text, end)


def json_objects(text: str) -> Iterator[Any]:
    """Yield the outermost objects that can be decoded, in order."""
    return (match.content for match in find_json(text) if not match.is_broken)


def decoded(text: str) -> Any:
    """The JSON that a text begins with, without lone surrogates; None if it cannot be decoded."""
    try:
        content, _ = _DECODER.raw_decode(text)
        # Escapes may be lone surrogates, which no later question may contain.
        return json.loads(valid_unicode(json.dumps(content, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None


def repaired(text: str, *, is_closed: bool = False) -> str:
    """Clean JSON, and close what a truncated reply left open unless it `is_closed`."""
    cleaned = text.translate(_CLEANED)
    return _TRAILING_COMMA.sub("", cleaned if is_closed else _balanced(cleaned))


def _balanced(text: str) -> str:
    """Close what is open, in order, and drop surplus closing brackets."""
    pieces: list[str] = []
    stack: list[str] = []
    for match in _PIECE.finditer(text):
        piece = match[0]
        if piece in _CLOSERS:
            stack.append(_CLOSERS[piece])
        elif piece in _CLOSERS.values():
            if not stack:
                break
            # A closing bracket of the other kind closes what is open.
            piece = stack.pop()
        elif piece.startswith('"') and (len(piece) == 1 or not piece.endswith('"')):
            piece = piece.rstrip("\\") + '"'
        pieces.append(piece)
    return "".join([*pieces, *reversed(stack)])
