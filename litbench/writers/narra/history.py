"""The messages of an episode, with one definition of an exchange and of a scene change."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "message", "choice", "transition", "notice"]

# System messages: they are shown, but they are no part of an exchange.
SYSTEM_KINDS = ("transition", "notice")

# A judge sees the first and the last lines of a long transcript, each cut to this many characters.
_HEAD, _TAIL, _LINE_LETTERS = 12, 30, 700


@dataclass(frozen=True)
class NarraMessage:
    """One message of a scene.

    Attributes:
        speaker: character id; "system" for transitions and notices.
        text: what is said, unchanged.
        kind: `text` is written by the writer, `message` and `choice` by the reader.
    """

    speaker: str
    text: str
    kind: Kind


def spoken(history: Sequence[NarraMessage]) -> list[NarraMessage]:
    """The messages without those of the system."""
    return [message for message in history if message.kind not in SYSTEM_KINDS]


def exchanges(history: Sequence[NarraMessage]) -> int:
    """Number of exchanges: two messages that are not of the system make one."""
    return len(spoken(history)) // 2


def has_transition(history: Sequence[NarraMessage]) -> bool:
    """Whether the scene has changed at least once."""
    return any(message.kind == "transition" for message in history)


def may_end(countdown: int, history: Sequence[NarraMessage]) -> bool:
    """Whether the reader may be offered to end the story."""
    return countdown > 0 and has_transition(history)


def render_transcript(lines: Sequence[tuple[str, str, str]], *, cut: bool = True) -> str:
    """Write a transcript for a judge, one line per message.

    Args:
        lines: role, speaker and text of each message; an empty speaker is shown as the role.
        cut: show only 700 characters of each line, and of more than 43 lines the first 12 and the
            last 30, with one line between them that says how many were left out.

    Returns:
        The lines without those of empty messages.
    """
    written = []
    for role, speaker, text in lines:
        flat = text.strip().replace("\n", " ")
        if flat:
            if cut and len(flat) > _LINE_LETTERS:
                flat = flat[:_LINE_LETTERS] + "…"
            written.append(f"[{role}|{speaker or role or '?'}] {flat}")
    if not cut or len(written) <= _HEAD + _TAIL + 1:
        return "\n".join(written)
    omitted = f"... {len(written) - _HEAD - _TAIL} messages omitted ..."
    return "\n".join([*written[:_HEAD], omitted, *written[-_TAIL:]])
