"""Pacing of a scene: levels, signs of stagnation, and the guard that patches a turn.

The paper and the published code differ in nearly every number; a result says which it was made
with.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from litbench.writers.narra.history import NarraMessage, exchanges, spoken
from litbench.writers.narra.reading import WORDS, Beat

Part = Literal["benchmark", "full"]


@dataclass(frozen=True)
class Pace:
    """The counts at which a scene has to move.

    Attributes:
        unit: what is counted: exchanges, or messages.
        starts: counts from which a turn should bring sharper developments (level 1), prepare a
            shift (2), must bring a concrete change (3) and should lead to the end (4).
        guard: count from which the structure guard runs.
        countdown: turns from the beginning of the end to the end.
        max_choices: choices that the reader is offered; None without a limit.
        as_published: whether the guard requires a new location and patches every missing field, as
            the published code does; otherwise a reveal, a location or an escalation is enough, and
            it patches the first kind of change for which the story has material.
    """

    unit: Literal["exchanges", "messages"]
    starts: tuple[int, int, int, int]
    guard: int
    countdown: int
    max_choices: int | None
    as_published: bool = True

    def count(self, history: Sequence[NarraMessage]) -> int:
        """How far the scene has come, in the unit of the pace."""
        return exchanges(history) if self.unit == "exchanges" else len(spoken(history))

    def level(self, count: int) -> int:
        """Pacing level from 0 to 4."""
        return sum(count >= start for start in self.starts)

    def must_change(self, count: int) -> bool:
        """Whether a turn must bring a concrete change (level 3)."""
        return count >= self.starts[2]

    def guards(self, count: int, *, forced: bool) -> bool:
        """Whether the structure guard looks at a turn."""
        return forced or count >= self.guard


# Changes of which one is required from level 3 on (App. G); the published code requires a location.
_CONCRETE = ("new_reveal", "location_shift", "conflict_escalation")

# The paper gives no countdown: three turns, as the code.
_PAPER = Pace("exchanges", (5, 7, 8, 14), 7, 3, 3, as_published=False)
_PUBLISHED = {
    "benchmark": Pace("exchanges", (4, 6, 7, 16), 6, 3, 3),
    "full": Pace("messages", (10, 13, 15, 30), 12, 5, None),
}


def pace_of(part: Part, *, as_published: bool) -> Pace:
    """The numbers of the paper, or of the published code, which has others for the full service."""
    return _PUBLISHED[part] if as_published else _PAPER


def stagnation_signals(history: Sequence[NarraMessage], protagonist: str | None) -> list[str]:
    """Signs in the last messages that a scene has stalled.

    Args:
        history: messages of the scene; fewer than four give no sign.
        protagonist: id of the reader's character, if the story has one.

    Returns:
        `repeated_choice` if a choice was made twice in the last 8 messages; `generic_words` if
        three of eight stock words are in two of the last 6 messages each, also inside longer words.
    """
    if len(history) < 4:
        return []
    signals = []
    choices = Counter(m.text.lower() for m in history[-8:] if m.kind == "choice")
    if any(times > 1 for times in choices.values()):
        signals.append("repeated_choice")
    texts = [m.text.lower() for m in history[-6:] if m.kind == "text" and m.speaker != protagonist]
    repeated = [word for word in WORDS["generic"] if sum(word in text for text in texts) >= 2]
    if len(repeated) >= 3:
        signals.append("generic_words")
    return signals


@dataclass(frozen=True)
class SceneState:
    """The guard's view of the story before a turn.

    Attributes:
        progressed: result of the progress check; True without one.
        suggested_development: the check's suggestion.
        reasoning: the check's reason.
        clues: active clues of the memory, the newest last.
        next_act: the next act of the plan; empty in the last one.
        tensions: open tensions of the memory, the newest last.
    """

    location: str = ""
    objective: str = ""
    progressed: bool = True
    suggested_development: str = ""
    reasoning: str = ""
    clues: Sequence[str] = ()
    next_act: Mapping[str, Any] = field(default_factory=dict)
    tensions: Sequence[str] = ()


@dataclass(frozen=True)
class Patch:
    """One field that the guard wrote.

    Attributes:
        kind: the kind of change.
        field: field of `Beat`.
        source: `suggestion`, `reasoning`, `clue`, `act`, `tension` or `fixed`.
        before: value before, empty if it was missing.
        after: value written.
    """

    kind: str
    field: str
    source: str
    before: Any
    after: Any


def has_material_shift(beat: Beat) -> bool:
    """Whether a turn brings anything that moves the story."""
    return bool(
        beat.scene_shift
        or beat.next_location
        or beat.caption
        or beat.advancement
        or beat.foreshadowing
        or beat.easter_egg
        or beat.latest_reveal
        or beat.relationship_shift
        or beat.tension
        or beat.immediate_stakes
        or beat.visual_details
        or beat.motifs
        or beat.replies >= 2
    )


def shift_flags(beat: Beat, state: SceneState) -> dict[str, bool]:
    """Which kinds of change a turn brings."""
    conflict = f"{beat.tension} {beat.immediate_stakes} {beat.advancement}".lower()
    location = beat.next_location.strip().lower()
    return {
        "new_reveal": bool(beat.latest_reveal or beat.foreshadowing or beat.easter_egg),
        "location_shift": beat.scene_shift
        or bool(location and location != state.location.strip().lower()),
        "relationship_shift": bool(beat.relationship_shift),
        "goal_shift": bool(beat.objective.strip() and beat.objective.strip() != state.objective),
        "conflict_escalation": any(word in conflict for word in WORDS["escalation"])
        or bool(beat.tension and beat.immediate_stakes),
    }


def guard(
    beat: Beat,
    state: SceneState,
    count: int,
    pace: Pace,
    sentences: Mapping[str, Any],
    *,
    forced: bool,
) -> tuple[Beat, list[Patch]]:
    """Patch a turn that does not move the story although it has to.

    Args:
        beat: the turn.
        state: the story before it.
        count: how far the scene has come.
        pace: when a turn must bring a change, and what is patched.
        sentences: by field of `Beat`, what is written without material of the story.
        forced: whether a signal of stagnation forces a change.

    Returns:
        The beat and what was written, in order; the beat itself and nothing if it may stay.
    """
    flags = shift_flags(beat, state)
    if pace.must_change(count) or forced:
        enough = ("location_shift",) if pace.as_published else _CONCRETE
        may_stay = any(flags[kind] for kind in enough)
    else:
        may_stay = state.progressed or any(flags.values())
    if may_stay and has_material_shift(beat):
        return beat, []
    if pace.as_published:
        patches = _all_missing(beat, state, flags, sentences, pace.must_change(count))
    else:
        patches = _first_missing(beat, state, flags, sentences)
    written: dict[str, Any] = {patch.field: patch.after for patch in patches}
    return replace(beat, **written), patches


def _first_missing(
    beat: Beat, state: SceneState, flags: Mapping[str, bool], sentences: Mapping[str, Any]
) -> list[Patch]:
    """One patch: the first missing kind for which the story has material, or branches."""
    places = state.next_act.get("key_locations")
    first = places[0] if isinstance(places, list) and places else ""
    clue = state.clues[-1] if state.clues else ""
    tension = state.tensions[-1] if state.tensions else ""
    candidates = (
        ("new_reveal", "latest_reveal", "suggestion", state.suggested_development),
        ("new_reveal", "latest_reveal", "clue", clue),
        ("location_shift", "next_location", "act", first),
        ("goal_shift", "objective", "act", state.next_act.get("opening_moment")),
        ("conflict_escalation", "immediate_stakes", "tension", tension),
    )
    for kind, name, source, material in candidates:
        written: dict[str, Any] = {name: material}
        is_text = isinstance(material, str) and bool(material.strip())
        # Material may repeat what the story already has: the flag must turn true.
        if is_text and not flags[kind] and shift_flags(replace(beat, **written), state)[kind]:
            return [Patch(kind, name, source, getattr(beat, name), material)]
    return [Patch("branches", "branches", "fixed", beat.branches, tuple(sentences["branches"]))]


def _all_missing(
    beat: Beat,
    state: SceneState,
    flags: Mapping[str, bool],
    sentences: Mapping[str, Any],
    must_change: bool,
) -> list[Patch]:
    """Every missing field; the scene itself never moves."""
    suggestion, reasoning = state.suggested_development, state.reasoning
    wanted = (
        ("location_shift", "location_status", "", "", must_change),
        ("new_reveal", "latest_reveal", "suggestion", suggestion, True),
        ("goal_shift", "objective", "", "", True),
        ("conflict_escalation", "tension", "reasoning", reasoning, True),
        ("conflict_escalation", "immediate_stakes", "", "", True),
        ("relationship_shift", "relationship_shift", "", "", True),
        ("", "emotional_beat", "", "", True),
        ("", "advancement", "suggestion", suggestion, True),
        ("", "scene_description", "", "", True),
        ("", "atmosphere", "", "", True),
        ("", "foreshadowing", "", "", True),
        ("", "branches", "", "", True),
    )
    patches = []
    for kind, name, source, material, applies in wanted:
        before = getattr(beat, name)
        if applies and not before and not flags.get(kind, False):
            fixed = tuple(sentences[name]) if name == "branches" else sentences[name]
            patches.append(
                Patch(
                    kind or name, name, source if material else "fixed", before, material or fixed
                )
            )
    return patches
