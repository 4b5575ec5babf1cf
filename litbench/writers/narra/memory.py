"""The memory of an episode: the story's state after every message, summaries at their cadence.

Light fields follow from the last messages by fixed rules. The episode makes the calls that
refine and summarise: `observe` returns those that are due, `answered` takes the answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from litbench.writers.narra.history import NarraMessage, spoken
from litbench.writers.narra.reading import WORDS, Beat, read_json, text_of

Call = Literal[
    "dialogue_summary", "structured_memory", "summary_comparison", "journey_summary", "state_patch"
]

# Number of messages, without those of the system; the journey counts these too.
_SUMMARY_EVERY, _COMPARE_EVERY, _JOURNEY_EVERY = 3, 6, 10
_RECENT = 6
_EVENT_LETTERS, _SHORT_LETTERS = 220, 160
_MAX_TENSIONS, _MAX_CLUES = 3, 4
# Our names of text fields, and those in a refinement.
_TEXT_FIELDS = {
    "what_just_happened": "what_just_happened",
    "current_goal": "current_goal",
    "last_turning_point": "last_major_turning_point",
}


@dataclass(frozen=True)
class Memory:
    """The story's state and the reader's journey.

    Attributes:
        what_just_happened: the last message, cut.
        current_goal: what the protagonist is after.
        open_tensions: at most three, the newest last.
        active_clues: at most four, the newest last.
        last_turning_point: the message before the last one, cut.
        summaries: rolling summaries, the newest last.
        force_advance: the last two summaries are equal; stays until the next comparison.
        journey: number, emotion, intensity (0 to 1) and trigger or decision of each turn.
        journey_summary: summary of the story and the reader's way through it.
        failed_calls: memory calls whose answer could not be used.
    """

    what_just_happened: str = ""
    current_goal: str = ""
    open_tensions: tuple[str, ...] = ()
    active_clues: tuple[str, ...] = ()
    last_turning_point: str = ""
    summaries: tuple[str, ...] = ()
    force_advance: bool = False
    journey: tuple[Mapping[str, Any], ...] = ()
    journey_summary: str = ""
    failed_calls: int = 0


def observe(
    memory: Memory, history: Sequence[NarraMessage], default_goal: str
) -> tuple[Memory, list[Call]]:
    """Take in the last message of the history; `default_goal` is used until a message names one.

    Returns:
        The state with its light fields renewed, and the calls that are due; a message of the
        system changes nothing.
    """
    said = spoken(history)
    if not said or history[-1] is not said[-1]:
        return memory, []
    last = history[-1].text
    recent = [message.text for message in said[-_RECENT:]]
    goal = memory.current_goal
    if not goal:
        obliges = any(word in last.lower() for word in WORDS["obligations"])
        goal = last[:_SHORT_LETTERS] if obliges else default_goal
    before = said[-2].text[:_SHORT_LETTERS] if len(said) > 1 else memory.last_turning_point
    memory = replace(
        memory,
        what_just_happened=last[:_EVENT_LETTERS],
        current_goal=goal,
        open_tensions=_merged(memory.open_tensions, recent, WORDS["tensions"], _MAX_TENSIONS),
        active_clues=_merged(memory.active_clues, recent, WORDS["clues"], _MAX_CLUES),
        last_turning_point=before,
    )
    calls: list[Call] = []
    if len(said) % _SUMMARY_EVERY == 0:
        calls += ["dialogue_summary", "structured_memory"]
    if len(said) % _COMPARE_EVERY == 0:
        calls.append("summary_comparison")
    if len(history) % _JOURNEY_EVERY == 0:
        calls.append("journey_summary")
    return memory, calls


def _merged(
    stored: Sequence[str], recent: Sequence[str], words: Sequence[str], most: int
) -> tuple[str, ...]:
    """The kept texts and the last two recent ones with one of the words, without repetition."""
    matching = [text for text in recent if any(word in text.lower() for word in words)]
    return tuple(dict.fromkeys([*stored, *matching[-2:]]))[-most:]


def compared(memory: Memory) -> Memory:
    """Set the force flag if the last two summaries are equal (App. F), otherwise clear it.

    Nothing changes with fewer than two summaries.
    """
    if len(memory.summaries) < 2:
        return memory
    first, second = (summary.strip() for summary in memory.summaries[-2:])
    return replace(memory, force_advance=first == second)


def answered(memory: Memory, call: Call, answer: str) -> Memory:
    """Take the answer to a memory call; one that cannot be used is counted, and the state stays."""
    values = read_json(answer, dict) if call in ("structured_memory", "state_patch") else None
    if call == "dialogue_summary" and answer.strip():
        return replace(memory, summaries=(*memory.summaries, answer))
    if call == "journey_summary" and answer.strip():
        return replace(memory, journey_summary=answer)
    if values is None:
        return replace(memory, failed_calls=memory.failed_calls + 1)
    texts = {name: text_of(values, key) for name, key in _TEXT_FIELDS.items()}
    changes: dict[str, Any] = {name: text for name, text in texts.items() if text}
    for name, most in (("open_tensions", _MAX_TENSIONS), ("active_clues", _MAX_CLUES)):
        if isinstance(values.get(name), list):
            changes[name] = _listed(values[name], most)
    return replace(memory, **changes)


def with_tensions(memory: Memory, tensions: Any) -> Memory:
    """The state with the open tensions of a model's JSON; unchanged if these are no list."""
    if not isinstance(tensions, list):
        return memory
    return replace(memory, open_tensions=_listed(tensions, _MAX_TENSIONS))


def _listed(items: Sequence[Any], most: int) -> tuple[str, ...]:
    """The last items of a list in a model's JSON, as texts."""
    return tuple(text for item in items if (text := str(item).strip()))[-most:]


def overwritten(memory: Memory, beat: Beat) -> Memory:
    """The state as the published benchmark has it after a turn: what the tags say, one of each.

    A turn without a reveal empties the clues.
    """
    return replace(
        memory,
        current_goal=beat.objective or memory.current_goal,
        open_tensions=(beat.tension,) if beat.tension else memory.open_tensions,
        active_clues=(beat.latest_reveal,) if beat.latest_reveal else (),
    )


def needs_patch(exchange_count: int, *, shifted: bool) -> bool:
    """Whether the published benchmark has a model refresh the state after a turn.

    At the first exchange, at even counts (the opening counts, too) and after a change of scene. Its
    further condition, an empty field, is never met, because it fills the fields with sentences.
    """
    return exchange_count <= 1 or exchange_count % 2 == 0 or shifted
