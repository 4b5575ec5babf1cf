"""The state of an episode is a pure function of its history: exchanges, pacing, guard, memory."""

import json
from dataclasses import fields, replace

import pytest
from narra_golden import golden, history

from litbench.writers.narra import memory as memories
from litbench.writers.narra.history import (
    NarraMessage,
    exchanges,
    has_transition,
    may_end,
    render_transcript,
    spoken,
)
from litbench.writers.narra.memory import Memory, answered, compared, observe
from litbench.writers.narra.pacing import (
    SceneState,
    guard,
    has_material_shift,
    pace_of,
    shift_flags,
    stagnation_signals,
)
from litbench.writers.narra.reading import Beat

SENTENCES = {field.name: f"fixed {field.name}" for field in fields(Beat)} | {"branches": ["a", "b"]}
PARTS = {"default": "full", "benchmark": "benchmark"}
# Published names of fields, where ours differ.
OURS = {
    "current_objective": "objective",
    "current_tension": "tension",
    "symbolic_motifs": "motifs",
    "narrative_advancement": "advancement",
    "branching_paths": "branches",
    "transition_required": "scene_shift",
    "new_location": "next_location",
    "scene_transition_caption": "caption",
}


def said(*texts, kind="text", speaker="guide"):
    return [NarraMessage(speaker, text, kind) for text in texts]


def test_golden_exchanges():
    for case in golden("exchange_count")["cases"]:
        result = history([{"type": kind, "content": ""} for kind in case["types"]])
        assert (len(spoken(result)), exchanges(result)) == (case["non_system"], case["exchanges"])


def test_golden_transitions():
    for case in golden("transition_and_end_choice")["cases"]:
        scene = case["story"].get("current_scene", {})
        result = history(scene.get("messages", []))
        # The published code may also keep a caption; we write each change of scene as a message.
        inner = scene.get("scene_dynamics", {})
        if {**scene, **inner}.get("scene_transition_caption"):
            result += said("LATER", kind="transition")
        assert has_transition(result) == case["transition"], case
        assert may_end(case["countdown"] or 0, result) == case["end_choice"], case


def test_golden_ending_notice_is_not_ours():
    # Published: the ending is announced at a countdown of 0 or 1, so from the first turn on.
    for case in golden("sim_ending_available")["cases"]:
        countdown = case["story"].get("conclusion_countdown", 0)
        if isinstance(countdown, int):
            moved = said("[Later]", kind="transition")
            assert may_end(countdown, moved) == (countdown > 0)
            assert not may_end(countdown, [])


def test_golden_transcripts():
    for case in golden("judge_transcript_render")["cases"]:
        lines = [
            (e.get("role", ""), e.get("speaker") or e.get("character_id") or "", e["content"])
            for e in case["transcript"]
        ]
        assert render_transcript(lines) == case["expected"]


@pytest.mark.parametrize("speed", PARTS)
def test_golden_levels_of_the_code(speed):
    pace = pace_of(PARTS[speed], as_published=True)
    for case in golden("pacing_levels_code")["cases"]:
        if case["profile"] == speed:
            count = case["progression_count"]
            assert pace.level(count) == case["level"], case
            assert pace.guards(count, forced=False) == case["structure_guard"], case


def test_golden_levels_of_the_paper():
    for part in ("benchmark", "full"):
        pace = pace_of(part, as_published=False)
        for case in golden("pacing_levels_paper")["cases"]:
            results = (
                pace.level(case["exchanges"]),
                pace.guards(case["exchanges"], forced=False),
            )
            assert results == (case["level"], case["structure_guard"]), case


@pytest.mark.parametrize(
    ("as_published", "part", "starts", "guard_start"),
    [
        (False, "benchmark", (5, 7, 8, 14), 7),
        (True, "benchmark", (4, 6, 7, 16), 6),
        (True, "full", (10, 13, 15, 30), 12),
    ],
)
def test_levels(as_published, part, starts, guard_start):
    pace = pace_of(part, as_published=as_published)
    for level, start in enumerate(starts, 1):
        assert (pace.level(start - 1), pace.level(start)) == (level - 1, level)
    assert pace.guards(guard_start, forced=False)
    assert not pace.guards(guard_start - 1, forced=False)
    assert pace.guards(0, forced=True)
    four = said("a", "b", "c", "d") + said("later", kind="transition")
    assert pace.count(four) == (4 if part == "full" else 2)


def test_golden_stagnation():
    for case in golden("stagnation")["cases"]:
        characters = case["story"]["characters"]
        ids = [c["id"] for c in characters if c["role"] == "protagonist"]
        messages = history(case["story"].get("current_scene", {}).get("messages", []))
        signals = stagnation_signals(messages, ids[0] if ids else None)
        assert bool(signals) == case["expected"], case["note"]


def test_stagnation():
    choice = said("Go", kind="choice", speaker="you")
    filler = said("one", "two")
    assert stagnation_signals([*choice, *filler, *choice], "you") == ["repeated_choice"]
    six = [*filler, *filler, *filler]
    assert stagnation_signals([*choice, *six, *choice], "you")
    assert not stagnation_signals([*choice, *six, *filler[:1], *choice], "you")
    # "delight" holds "light".
    stock = said("trust the delight of the path", "a", "b", "Trust, light, path")
    assert stagnation_signals(stock, "you") == ["generic_words"]
    assert not stagnation_signals(stock, "guide")
    assert not stagnation_signals(stock[:1] + stock[3:], "you")
    between = said("a", "b", "c", "d", "e")
    assert stagnation_signals([*stock[:1], *between[:4], *stock[3:]], "you") == ["generic_words"]
    assert not stagnation_signals([*stock[:1], *between, *stock[3:]], "you"), "seven messages"


def test_golden_guard():
    loaded = golden("structure_guard")
    for case in loaded["cases"]:
        result = case["progression_result"]
        checked = (
            (result["has_progressed"], result["suggested_development"], result["reasoning"])
            if result
            else ()
        )
        scene = SceneState("The front room", "Find the letter", *checked)
        payload = case["payload"]
        values = {
            OURS.get(name, name): tuple(value) if isinstance(value, list) else value
            for section in ("story_state", "scene_dynamics", "hidden_elements", "scene_elements")
            for name, value in payload.get(section, {}).items()
        }
        branches = tuple(path["text"] for path in payload.get("branching_paths", []))
        beat = Beat(
            replies=len(payload.get("cinematic_responses", [])), branches=branches, **values
        )
        assert has_material_shift(beat) == case["material_shift"], case
        assert shift_flags(beat, scene) == case["flags"], case
        patched, patches = guard(
            beat,
            scene,
            case["progression_count"],
            pace_of(PARTS[case["profile"]], as_published=True),
            SENTENCES,
            forced=case["force_advance"],
        )
        names = [path.rsplit("/", 1)[1] for path in case["patched_fields"]]
        assert {patch.field for patch in patches} == {OURS.get(name, name) for name in names}, case
        assert (patched == beat) == case["returned_unchanged"]


def test_published_guard_fills_every_missing_field():
    pace = pace_of("benchmark", as_published=True)
    scene = SceneState("Quay", "Cross", False, "The rope snaps.", "Nothing happened.")
    beat, patches = guard(Beat(text="hm"), scene, 7, pace, SENTENCES, forced=False)
    assert [patch.field for patch in patches] == [
        "location_status",
        "latest_reveal",
        "objective",
        "tension",
        "immediate_stakes",
        "relationship_shift",
        "emotional_beat",
        "advancement",
        "scene_description",
        "atmosphere",
        "foreshadowing",
        "branches",
    ]
    assert (beat.latest_reveal, beat.tension) == ("The rope snaps.", "Nothing happened.")
    assert beat.objective == "fixed objective"
    assert not beat.next_location


ACT = {"key_locations": ["The mill"], "opening_moment": "The wheel stops."}


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        (
            {"suggested_development": "He lied.", "clues": ["key"]},
            ("new_reveal", "latest_reveal", "suggestion", "He lied."),
        ),
        (
            {"clues": ["old", "new"], "next_act": ACT},
            ("new_reveal", "latest_reveal", "clue", "new"),
        ),
        ({"next_act": ACT}, ("location_shift", "next_location", "act", "The mill")),
        (
            {"next_act": {"opening_moment": "Leave."}},
            ("goal_shift", "objective", "act", "Leave."),
        ),
        (
            {"tensions": ["The threat at home"]},
            ("conflict_escalation", "immediate_stakes", "tension", "The threat at home"),
        ),
        # This tension would not count as an escalation, and the next act plays here.
        (
            {"tensions": ["Why?"], "next_act": {"key_locations": ["QUAY"]}},
            ("branches", "branches", "fixed", ("a", "b")),
        ),
        ({}, ("branches", "branches", "fixed", ("a", "b"))),
    ],
)
def test_guard_of_the_paper_writes_the_first_kind_with_material(scene, expected):
    pace = pace_of("benchmark", as_published=False)
    state = SceneState("Quay", "Cross", **scene)
    after, patches = guard(Beat(), state, 8, pace, SENTENCES, forced=False)
    assert [(p.kind, p.field, p.source, p.after) for p in patches] == [expected]
    assert getattr(after, expected[1]) == expected[3]


@pytest.mark.parametrize(
    ("change", "stays"),
    [
        ({"next_location": "Mill", "scene_shift": True}, True),
        ({"latest_reveal": "It burns."}, True),
        ({"tension": "The wall may break."}, True),
        ({"relationship_shift": "She trusts you."}, False),
        ({"objective": "Leave"}, False),
    ],
)
def test_a_required_change_is_a_location_a_reveal_or_an_escalation(change, stays):
    scene, beat = SceneState("Quay", "Cross"), Beat(**change)
    for count, forced in ((8, False), (0, True)):
        pace = pace_of("benchmark", as_published=False)
        assert (guard(beat, scene, count, pace, SENTENCES, forced=forced)[1] == []) == stays
        # The published code accepts a new location only.
        pace = pace_of("benchmark", as_published=True)
        patches = guard(beat, scene, count, pace, SENTENCES, forced=forced)[1]
        assert (patches == []) == ("scene_shift" in change)


def test_golden_memory():
    names = {
        "structured_memory": "structured_memory_llm",
        "summary_comparison": "summary_compare",
        "journey_summary": "narrative_and_journey_summary",
    }
    fields_checked = ("what_just_happened", "current_goal", "last_turning_point", "force_advance")
    for case in golden("memory_cadence")["cases"]:
        memory, messages, summary = Memory(), [], "same"
        for step in case["timeline"]:
            messages += history([step])
            memory, calls = observe(memory, messages, "fixed sentence")
            for call in calls:
                if call == "dialogue_summary":
                    summary += {"constant string": "", "a new string each time": "x"}.get(
                        case["summariser"], " "
                    )
                    memory = answered(memory, call, summary)
                elif call == "summary_comparison":
                    memory = compared(memory)
            assert [names.get(call, call) for call in calls] == step["calls"]
            assert len(spoken(messages)) == step["counter"]
            assert {name: getattr(memory, name) for name in fields_checked} == {
                name: step[name] for name in fields_checked
            }
            assert list(memory.open_tensions) == step["open_tensions"]
            assert list(memory.active_clues) == step["active_clues"]
            assert len(memory.summaries) == step["summaries"]


def test_memory_cadence_and_light_fields():
    memory, messages, due = Memory(), [], []
    texts = ["Rain.", "We must row.", "But the door?", "A key.", "x" * 300, "the butter", "name"]
    for text in texts:
        messages += said(text)
        memory, calls = observe(memory, messages, "go on")
        due.append(calls)
    assert [len(calls) for calls in due] == [0, 0, 2, 0, 0, 3, 0]
    assert due[5][2] == "summary_comparison"
    assert memory.current_goal == "go on"
    # "but" is found in "butter".
    assert memory.open_tensions == ("But the door?", "the butter")
    assert memory.active_clues == ("But the door?", "A key.", "name")
    assert observe(memory, [*messages, *said("[Later]", kind="notice")], "go on") == (memory, [])
    assert len(observe(Memory(), said("y" * 300), "g")[0].what_just_happened) == 220
    # The journey counts the system's messages too.
    nine = [*said("[Later]", kind="transition"), *said(*"abcdefghi")]
    assert "journey_summary" in observe(Memory(), nine, "g")[1]
    assert "journey_summary" not in observe(Memory(), [*nine, *said("j")], "g")[1]


def summarised(*summaries):
    return Memory(summaries=summaries)


def test_summaries_that_say_the_same_force_a_change():
    memory = compared(summarised("They row on.", " They row on. "))
    assert memory.force_advance
    assert not compared(answered(memory, "dialogue_summary", "They land.")).force_advance
    assert not compared(summarised("They row on.", "They row on now.")).force_advance
    assert not compared(summarised("one")).force_advance


def test_failed_memory_calls_keep_the_state():
    values = {"current_goal": "Land", "open_tensions": ["a", "b", "c", "d"]}
    memory = answered(Memory(), "structured_memory", json.dumps(values))
    assert memory == Memory(current_goal="Land", open_tensions=("b", "c", "d"))
    for call in ("structured_memory", "state_patch", "dialogue_summary", "journey_summary"):
        assert answered(memory, call, " ") == replace(memory, failed_calls=1)
    odd = '{"current_goal": 3, "active_clues": "no list"}'
    assert answered(memory, "state_patch", odd) == memory
    assert answered(memory, "journey_summary", "Far.").journey_summary == "Far."


def test_published_state_follows_the_tags():
    beat = Beat(objective="Land", tension="Wind", latest_reveal="The map is false.")
    memory = memories.overwritten(Memory(open_tensions=("a", "b")), beat)
    assert memory.open_tensions == ("Wind",)
    assert memory.active_clues == ("The map is false.",)
    # A turn without a reveal empties the clues.
    assert memories.overwritten(memory, Beat()) == replace(memory, active_clues=())
    due = [memories.needs_patch(count, shifted=False) for count in range(6)]
    assert due == [True, True, True, False, True, False]
    assert memories.needs_patch(3, shifted=True)
