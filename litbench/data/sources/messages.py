"""Conversations in cells of foreign tables.

    read_messages('[{"from": "human", "value": "A lamp."}, {"from": "gpt", "value": "It shone."}]')

A conversation is a list of messages, one message, or an object with such a list: messages of trl
(`role`, `content`), ShareGPT (`from`, `value`) or others (`_ROLE`, `_CONTENT`), whose content is
text or a list of parts. A table in CSV has its JSON, also encoded twice, or what Python or numpy
print. The HH data have a text with the turns of Human and Assistant.
"""

import ast
import json
import re
from typing import Any, NamedTuple

_ROLES = {
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt"), "assistant"),
}
# Keys of a message.
_ROLE = ("role", "from", "speaker")
_CONTENT = ("content", "value", "text", "parts")
# How a cell begins that is parsed: a list, an object or a tuple, perhaps in quotes.
_OPENING = re.compile(r"""\s*("\s*[\[{]|[\[{]|\(\s*\{|array\()""")
# Keys of an object around the messages.
_AROUND = ("messages", "conversations", "conversation")
# What parsing a cell raises if it holds something else.
CELL_ERRORS = (
    *(AttributeError, KeyError, TypeError, ValueError, SyntaxError),
    *(RecursionError, MemoryError, StopIteration),
)
_TURN = re.compile(r"\r?\n\r?\n(Human|Assistant):")
# What numpy prints beyond Python's literals: no commas between elements, array(...) and nan.
_NUMPY = re.compile(
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|\}\s*\{|array\(|,\s*dtype=\w+\)|\bnan\b""",
    re.DOTALL,
)


class Message(NamedTuple):
    """A message; the role is user, assistant, system or another name."""

    role: str
    content: str


def read_messages(text: str) -> list[Message] | None:
    """Return the messages of a cell; None if it is not a conversation of at least one message."""
    try:
        return _messages(parse_cell(text))
    except CELL_ERRORS:
        return None


def parse_cell(text: str) -> Any:
    """Parse a list or an object, in JSON or as Python or numpy print it; raises `CELL_ERRORS`."""
    if text.lstrip().startswith("Human:"):
        _, *turns = _TURN.split("\n\n" + text.strip())
        pairs = zip(turns[::2], turns[1::2], strict=True)
        return [{"role": role, "content": content.strip()} for role, content in pairs]
    if not _OPENING.match(text):
        raise ValueError("neither a list nor an object")
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        commas = {"}": "}, {", "a": "", ",": "", "n": "None"}
        return ast.literal_eval(_NUMPY.sub(lambda m: m[1] or commas[m[0][0]], text.strip()))
    return json.loads(value, strict=False) if isinstance(value, str) else value


def _messages(value: Any) -> list[Message] | None:
    if isinstance(value, dict):
        around = next((value[key] for key in _AROUND if key in value), None)
        return _messages([value] if around is None else around)
    return [
        _message(parse_cell(message) if isinstance(message, str) else message) for message in value
    ] or None


def _message(message: dict[str, Any]) -> Message:
    role = message[next(key for key in _ROLE if key in message)].lower()
    content = message[next(key for key in _CONTENT if key in message)]
    if isinstance(content, dict):
        content = [content]
    if isinstance(content, list):
        content = "".join(part if isinstance(part, str) else part["text"] for part in content)
    elif not isinstance(content, str | None):
        raise TypeError("a content that is not text")
    return Message(_ROLES.get(role, role), content or "")
