"""Conversations in cells of foreign tables.

    read_messages('[{"from": "human", "value": "A lamp."}, {"from": "gpt", "value": "It shone."}]')

A conversation is a list of messages, one message, or an object with such a list: messages of trl
(`role`, `content`) or ShareGPT (`from`, `value`), whose content is text or a list of parts. A table
in CSV has its JSON or what Python or numpy print. The HH data have a text with the turns of Human
and Assistant.
"""

import ast
import json
import re
from typing import Any, NamedTuple

_ROLES = {
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt"), "assistant"),
}
# Keys of an object around the messages.
_AROUND = ("messages", "conversations", "conversation")
# What parsing a cell raises if it holds something else.
CELL_ERRORS = (KeyError, TypeError, ValueError, SyntaxError, RecursionError, MemoryError)
_TURN = re.compile(r"\n\n(Human|Assistant):")
# What numpy prints beyond Python's literals: no commas between elements, and array(...).
_NUMPY = re.compile(
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|\}\s*\{|array\(|,\s*dtype=\w+\)""", re.DOTALL
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
    if not text.lstrip().startswith(("[", "{")):
        raise ValueError("neither a list nor an object")
    try:
        return json.loads(text, strict=False)
    except ValueError:
        commas = {"}": "}, {", "a": "", ",": ""}
        return ast.literal_eval(_NUMPY.sub(lambda m: m[1] or commas[m[0][0]], text.strip()))


def _messages(value: Any) -> list[Message] | None:
    if isinstance(value, dict):
        around = next((value[key] for key in _AROUND if key in value), None)
        return _messages([value] if around is None else around)
    return [_message(message) for message in value] or None


def _message(message: dict[str, Any]) -> Message:
    is_sharegpt = "from" in message
    role = message["from" if is_sharegpt else "role"].lower()
    content = message["value" if is_sharegpt else "content"]
    if isinstance(content, list):
        content = "".join(part if isinstance(part, str) else part["text"] for part in content)
    elif not isinstance(content, str | None):
        raise TypeError("a content that is not text")
    return Message(_ROLES.get(role, role), content or "")
