"""Read the replies of writers and readers: JSON, tagged beats, choices, wishes to end.

Replies are untrusted text of any length: every function takes time linear in it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from litbench.raters.templates.json_replies import decoded, repaired
from litbench.runs.config import read_yaml

T = TypeVar("T", dict[str, Any], list[Any])

END_CHOICE = "End the story now"
# Word lists of the published code.
WORDS: dict[str, Any] = read_yaml(Path(__file__).with_name("words.yaml"))

_FENCE = "```"
_PREAMBLE = re.compile(r"(?:here(?:'s| is) the|the story) json:|json response:", re.I)
_CLOSERS = {"{": "}", "[": "]"}
_MARKERS = ("<<CHARACTER_ID>>", "<<RESPONSE>>", "<<CHOICES>>", "<<TAGS>>")
_BULLET = re.compile(r"^[-*\d.)\s]+")
_NOTHING = {"nothing", "none"}
_TRUE = {"1", "true", "yes", "y", "on"}

_ENDS = r"(?:end|stop|finish|quit|exit)"
_WANTS_END = re.compile(
    rf"\b{_ENDS} (?:the|this|our|my) (?:story|game|session|adventure)\b|\bend ?story\b"
    rf"|\bi (?:want|need|would like|wish|'d like) to {_ENDS} (?:this|it|now|here)\b"
    rf"|\blet(?:'|’)?s {_ENDS} (?:(?:it|this)(?: here| now)?|here|now)\b"
    r"|(?:^|[.!?,;] |\b(?:please|just|now) )end it\b"
    r"|\b(?:结束故事|停止故事|结束这个故事)\b",
    re.I,
)


def extract_json(text: str) -> str | None:
    """Cut the JSON out of a reply by the published rule; None without an opening bracket.

    The rule counts brackets without regard to strings, so a brace inside a string may cost the
    last one; `read_json` reads such a reply all the same.
    """
    text = _unwrapped(text)
    opening = re.search(r"[{\[]", text)
    if opening is None:
        return None
    cut = text[opening.start() : text.rfind(_CLOSERS[opening[0]]) + 1]
    if not cut:
        return None
    for left, right in _CLOSERS.items():
        missing = cut.count(left) - cut.count(right)
        cut = cut + right * missing if missing > 0 else cut[: len(cut) + missing]
    return cut


def _unwrapped(text: str) -> str:
    """The first fenced piece with a bracket, or the whole text, without a preamble."""
    if _FENCE in text:
        text = next((piece for piece in text.split(_FENCE) if re.search(r"[{\[]", piece)), text)
    preamble = _PREAMBLE.search(text)
    return text[preamble.end() :] if preamble else text


def read_json(text: str, kind: type[T]) -> T | None:
    """Read the JSON object or array of a reply; None if it cannot be read.

    Tried in this order: the first bracket of the kind unchanged, the published rule, the text
    cleaned of curly quotes, control characters and trailing commas, and at last with the brackets
    closed that a cut reply left open.
    """
    unwrapped = _unwrapped(text)
    start = unwrapped.find("{" if kind is dict else "[")
    if start < 0:
        return None
    contents = map(decoded, _candidates(text, unwrapped[start:]))
    return next((content for content in contents if isinstance(content, kind)), None)


def _candidates(text: str, from_start: str) -> Iterator[str]:
    yield from_start
    cut = extract_json(text) or ""
    yield cut
    yield repaired(cut, is_closed=True)
    yield repaired(from_start)


@dataclass(frozen=True)
class Beat:
    """The text and the changes of a writer's turn; an empty text means no change.

    Attributes:
        speaker: character id.
        text: the reply that the reader sees.
        choices: suggestions as written, without bullets.
        scene_shift: whether the turn asks for a change of scene.
        act_advance: whether it asks for the next act.
        ending_ready: whether it asks for the end.
        replies: how many replies it has.
        branches: choices that the structure guard adds.
    """

    speaker: str = ""
    text: str = ""
    choices: tuple[str, ...] = ()
    scene_shift: bool = False
    act_advance: bool = False
    ending_ready: bool = False
    objective: str = ""
    tension: str = ""
    immediate_stakes: str = ""
    latest_reveal: str = ""
    relationship_shift: str = ""
    emotional_beat: str = ""
    emotional_intensity: str = ""
    location_status: str = ""
    next_location: str = ""
    time_progression: str = ""
    foreshadowing: str = ""
    easter_egg: str = ""
    advancement: str = ""
    caption: str = ""
    scene_description: str = ""
    atmosphere: str = ""
    visual_details: tuple[str, ...] = ()
    motifs: tuple[str, ...] = ()
    replies: int = 1
    branches: tuple[str, ...] = ()


# The tags of a turn are the fields of a beat, but for those of its other sections.
_FLAG_TAGS = [field.name for field in fields(Beat) if field.type is bool]
_TEXT_TAGS = [
    field.name
    for field in fields(Beat)
    if field.type is str and field.name not in ("speaker", "text")
]
_LIST_TAGS = ["visual_details", "motifs"]
_STATE_LINE = re.compile(
    rf"[ \t]*(?:{'|'.join(_FLAG_TAGS + _TEXT_TAGS + _LIST_TAGS)})[ \t]*:", re.I
)


def _sections(text: str) -> dict[str, str]:
    """The text of each marker, by marker.

    A marker counts at the beginning of a line only. If a scene quotes one there, the last one
    counts, because the sections follow each other in a fixed order.
    """
    end = len(text)
    sections: dict[str, str] = {}
    for marker in reversed(_MARKERS):
        # The first two open the reply; what a scene quotes comes later.
        first = marker in _MARKERS[:2]
        places = [m.start() for m in re.finditer(rf"^[ \t]*{marker}", text[:end], re.M)]
        if places:
            start = places[0] if first else places[-1]
            sections[marker] = text[start:end].lstrip()[len(marker) :].strip()
            end = start
    return sections


def read_beat(text: str, characters: Sequence[str], responder: str, *, as_published: bool) -> Beat:
    """Read a turn in the tagged format; any text gives a beat, perhaps with an empty reply.

    Args:
        text: the reply.
        characters: ids of all characters.
        responder: who speaks if the reply names nobody that exists.
        as_published: without a section of choices, take every line for one, and "nothing" in a
            tag for its value; otherwise both are missing.
    """
    sections = _sections(text)
    speaker = (sections.get("<<CHARACTER_ID>>") or "").split("\n")[0].strip()
    if speaker not in characters:
        speaker = responder
    reply = sections.get("<<RESPONSE>>", "")
    if not reply:
        lines = re.sub("|".join(_MARKERS), "", text).splitlines()
        skipped = {"", "exact_character_id", *characters}
        start = next((i for i, line in enumerate(lines) if line.strip() not in skipped), len(lines))
        reply = "\n".join(lines[start:])
    reply_lines = reply.rstrip().split("\n")
    while reply_lines and (not reply_lines[-1].strip() or _STATE_LINE.match(reply_lines[-1])):
        reply_lines.pop()
    listed = sections.get("<<CHOICES>>", text if as_published else "")
    tags = {}
    for line in sections.get("<<TAGS>>", "").splitlines():
        name, _, value = line.partition(":")
        is_said = as_published or value.strip(" .").lower() not in _NOTHING
        tags[name.strip().lower()] = value.strip() if is_said else ""
    values: dict[str, Any] = {name: tags.get(name, "") for name in _TEXT_TAGS}
    values |= {name: tags.get(name, "").lower() in _TRUE for name in _FLAG_TAGS}
    for name in _LIST_TAGS:
        values[name] = tuple(item.strip() for item in tags.get(name, "").split(";") if item.strip())
    values["replies"] = max(1, len(re.findall(r"^[ \t]*<<RESPONSE>>", text, re.M)))
    reply = "\n".join(reply_lines).strip()
    return Beat(speaker, reply, tuple(_choice_lines(listed)), **values)


def intensity_of(beat: Beat) -> float | None:
    """How strong the feeling of a turn is, from 0 to 1; None if the writer gives no such number."""
    try:
        intensity = float(beat.emotional_intensity)
    except ValueError:
        return None
    return intensity if 0 <= intensity <= 1 else None


def _choice_lines(text: str) -> list[str]:
    choices = []
    for line in text.splitlines():
        if _STATE_LINE.match(line):
            break
        choice = _BULLET.sub("", line.strip()).strip()
        if (
            choice
            and choice not in _MARKERS
            and choice.lower() not in {"choices", "player choices"}
        ):
            choices.append(choice)
    return choices


def resolve_choices(
    suggested: Sequence[str], fallback: Sequence[str], most: int, *, allow_end: bool
) -> tuple[list[str], bool]:
    """Make exactly `most` choices of what a writer suggests.

    Those of the fallback, at least `most`, fill up; `allow_end` keeps the choice to end the story.

    Returns:
        The choices, and whether all of them are fallbacks.
    """
    by_text: dict[str, str] = {}
    for choice in [*suggested, *fallback]:
        flat = " ".join(choice.split())
        if flat and (allow_end or flat.lower() != END_CHOICE.lower()):
            by_text.setdefault(flat.lower(), flat)
    chosen = list(by_text.values())[:most]
    texts = {choice.lower() for choice in fallback}
    return chosen, len(chosen) == most and all(choice.lower() in texts for choice in chosen)


def limit_choices(choices: Sequence[str], most: int | None) -> list[str]:
    """Keep the first `most` choices (0: all); the choice to end the story takes the last place."""
    first = list(choices[: most or None])
    is_end = [choice.strip().lower() == END_CHOICE.lower() for choice in choices]
    if first and True in is_end[len(first) :] and True not in is_end[: len(first)]:
        first[-1] = choices[is_end.index(True)]
    return first


def wants_end(text: str) -> bool:
    """Whether a reader's message asks to end the story."""
    return _WANTS_END.search(" ".join(text.split())) is not None


def character_id(name: str) -> str:
    """The id of a character: letters, digits and underscores, in lower case.

    An underscore stays: without it the ids that writers give would not be found again.
    """
    letters = "".join(c for c in name if c.isalnum() or c.isspace() or c == "_")
    return re.sub(r"\s", "_", letters).lower()


def is_scene_shift(location: str, next_location: str, time_progression: str) -> bool:
    """Whether the scene really changes: to another place (case and blanks aside) or in time."""
    new = " ".join(next_location.split()).lower()
    return bool(new and new != " ".join(location.split()).lower()) or bool(time_progression.strip())


def text_of(values: Mapping[str, Any], key: str) -> str:
    """The text under a key of a model's JSON; empty if it is absent or no text."""
    value = values.get(key)
    return value.strip() if isinstance(value, str) else ""
