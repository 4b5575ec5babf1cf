"""One episode: a reader's need, the construction of a story, and the turns through it.

An episode is a function of the answers that it gets. Asked again for the same answers it takes the
same way, so a killed run has nothing to restore.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from litbench.judges.session import WRITER, Session, UnfinishedError, gather_all
from litbench.raters.templates.delimiters import without_delimiters
from litbench.raters.templates.parser import without_reasoning
from litbench.raters.templates.template import fill
from litbench.runs.config import read_yaml
from litbench.runs.errors import LitBenchError
from litbench.writers.narra import artifacts, memory
from litbench.writers.narra.history import (
    NarraMessage,
    exchanges,
    has_transition,
    may_end,
    spoken,
)
from litbench.writers.narra.pacing import (
    Part,
    SceneState,
    guard,
    pace_of,
    stagnation_signals,
)
from litbench.writers.narra.personas import card_text
from litbench.writers.narra.reading import (
    END_CHOICE,
    Beat,
    character_id,
    intensity_of,
    is_scene_shift,
    limit_choices,
    read_beat,
    read_json,
    resolve_choices,
    text_of,
    wants_end,
)

READER = "reader"
PROMPTS: dict[str, Any] = read_yaml(Path(__file__).with_name("prompts.yaml"))

_RECENT = 12
_READER_LETTERS = 800
_VOICE_LINES, _VOICE_LETTERS = 3, 40
_MIN_QUESTIONS, _QUESTIONS = 5, 10
_MAX_KEYWORDS = 4
_CHOICES = 3
# The acts are refined if the critic's mean is below it (the paper gives no number); as published,
# always.
_CRITIC_THRESHOLD = 7.0
# The published service asks whether the plot has moved from this number of messages on.
_PROGRESS_FROM = 10
# What the critic rates: in the paper, and as published.
_DIMENSIONS = (
    "novelty, tension, pacing, cinematic quality, emotional resonance, structural coherence",
    "novelty, engagement, cinematic quality, emotional resonance, character depth, structural "
    "coherence",
)

End = Literal["turns", "left", "asked", "completed", "failed"]


class _StageError(LitBenchError):
    """A stage that must be there cannot be read; its message names the stage."""


@dataclass(frozen=True)
class _Action:
    """The reader's action; an action that cannot be read has no name."""

    name: str
    text: str
    choice_id: str = ""


@dataclass
class Episode:
    """The state of one episode, and the coroutine that runs it.

    Attributes:
        session: asks the writer and the reader.
        persona: the card of whom the reader plays.
        part: see `NarraOptions`, also for `as_published`.
        detail: the stage at which it failed.
        cut: answers of the writer that were cut.
        events: rows of `events.jsonl`.
        history: all messages.
        notes: the reader's hidden notes.
    """

    session: Session
    persona: Mapping[str, Any]
    prompts: Mapping[str, Any]
    part: Part
    as_published: bool
    end: End = "turns"
    detail: str = ""
    cut: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    history: list[NarraMessage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pace = pace_of(self.part, as_published=self.as_published)
        self._is_full = self.part == "full"
        self._is_sweep = self.as_published and not self._is_full
        self._need = self._about = self._location = self._objective = ""
        self._story: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._protagonist = ""
        self._acts: list[dict[str, Any]] = []
        self._act = 0
        self._choices: list[str] = []
        self._countdown = 0
        self._memory = memory.Memory()
        self._due: dict[memory.Call, int] = {}
        self._records: tuple[artifacts.Record, ...] = ()
        self._is_forced = False
        self._carried = ""
        self._opening_length = 0
        self._places: list[str] = []

    async def run(self) -> None:
        """Run the episode; raises UnfinishedError if a request fails."""
        try:
            await self._start()
            await self._construct()
            await self._play()
        except _StageError as error:
            self.end, self.detail = "failed", str(error)
            self._note_event("stage", name=self.detail, state="failed")
        self._note_event(
            "end",
            reason=self.end,
            turns=self.count("turn"),
            safe_turns=self.count("turn", safe=True),
            repaired=self.count("repaired"),
            failed_memory_calls=self._memory.failed_calls,
        )

    def count(self, event: str, **facts: Any) -> int:
        """How many events of a kind have these facts, such as turns that are safe."""
        return sum({"event": event, **facts}.items() <= entry.items() for entry in self.events)

    def lines(self) -> list[tuple[str, str, str]]:
        """Role, speaker and text of all messages."""
        roles = {"text": "assistant", "message": "user", "choice": "user"}
        return [
            (roles.get(m.kind, "system"), self._names.get(m.speaker, ""), m.text)
            for m in self.history
        ]

    # Asking --------------------------------------------------------------------------------

    def _note_event(self, event: str, **facts: Any) -> None:
        self.events.append({"event": event, **facts})

    async def _ask(self, step: str, prompt: str, texts: Mapping[str, str], attempt: int = 0) -> str:
        """The writer's answer; empty if it refused."""
        messages = [
            ("system", self.prompts["system"]["writer"].strip()),
            ("user", _filled(prompt, texts)),
        ]
        turn = await self.session.ask(WRITER, messages, step=step, attempt=attempt)
        if turn.outcome == "error":
            raise UnfinishedError(f"{step}: {turn.answer.detail}")
        self.cut += turn.outcome == "cut"
        return without_reasoning(turn.text)

    async def _act_as_reader(
        self,
        step: str,
        task: str,
        texts: Mapping[str, str],
        instead: str,
        options: Sequence[Any] = (),
    ) -> _Action:
        """The reader's action among options or in own words; `instead` where none can be read."""
        prompts = self.prompts["reader"]
        framed = {
            "card": card_text(self.persona),
            "recent": self._recent(_READER_LETTERS) or "(nothing yet)",
            "note": self.notes[-1] if self.notes else "(none)",
            "task": _filled(prompts[task], texts),
        }
        messages = [
            ("system", self.prompts["system"]["reader"].strip()),
            ("user", _filled(prompts["frame"], framed)),
        ]
        self.session.shown = {
            **texts,
            "task": task,
            "options": [str(option) for option in options],
            "lines": self.lines(),
            "countdown": self._countdown,
        }
        turn = await self.session.ask(READER, messages, step=step)
        if turn.outcome == "error":
            raise UnfinishedError(f"{step}: {turn.answer.detail}")
        value = read_json(without_reasoning(turn.text), dict)
        name, text = text_of(value or {}, "action"), text_of(value or {}, "text")
        note = text_of(value or {}, "internal_state")
        self.notes += [note] * bool(note)
        if not text and name not in ("select_choice", "end_story"):
            self._note_event("repaired", step=step)
            return _Action("", instead)
        return _Action(name, text, str((value or {}).get("choice_id", "")).strip())

    def _recent(self, letters: int | None = None) -> str:
        return "\n".join(
            f"{self._names.get(m.speaker, m.speaker)}: {_flat(m.text)[:letters]}"
            for m in self.history[-_RECENT:]
        )

    # Before the story ----------------------------------------------------------------------

    async def _start(self) -> None:
        """Need, questions, answers and keywords."""
        need = await self._act_as_reader("need", "need", {}, self.persona["emotional_need"].strip())
        self._need = need.text
        texts = {"need": self._need}
        names = ("questions", "keywords", "profile_keywords")
        asked = await gather_all(
            *(self._ask(name, self.prompts[name]["text"], texts) for name in names)
        )
        questions = _questions(asked[0])
        if len(questions) < _MIN_QUESTIONS:
            raise _StageError("questions")
        words = [str(word) for word in read_json(asked[1], list) or []]
        profile = read_json(asked[2], dict) or {}
        lines = [f"Need: {self._need}"]
        for number, question in enumerate(questions, 1):
            options = question.get("options")
            listed = ", ".join(map(str, options)) if isinstance(options, list) else ""
            text = text_of(question, "question")
            answer = await self._act_as_reader(
                f"answer_{number}",
                "answer",
                {"question": text, "options": listed},
                self.prompts["reader"]["repaired"]["answer"],
                options if isinstance(options, list) else (),
            )
            lines.append(f"{text} {answer.text}")
        picked = await self._act_as_reader(
            "keywords",
            "keywords",
            {"keywords": ", ".join(words)},
            self.prompts["reader"]["repaired"]["keywords"],
            words,
        )
        chosen = [word.strip() for word in picked.text.split(",") if word.strip()]
        lines.append(f"Keywords: {', '.join(chosen[:_MAX_KEYWORDS])}")
        lines += [
            f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in profile.items()
        ]
        self._about = "\n".join(lines)
        self._note_event("stage", name="need", state="done", questions=len(questions))

    async def _construct(self) -> None:
        """The five stages; each gets what the former ones made."""
        self._story |= await self._build("foundation", dict)
        self._story |= await self._build("setting", dict)
        characters = _records(await self._build("characters", list))
        for character in characters:
            character["id"] = character_id(text_of(character, "id") or text_of(character, "name"))
            self._names.setdefault(
                character["id"], " ".join(text_of(character, "name").split()) or character["id"]
            )
        leads = [
            character["id"]
            for character in characters
            if text_of(character, "role").lower() == "protagonist"
        ]
        if not leads or len(self._names) < 2 or "" in self._names:
            raise _StageError("characters")
        self._protagonist = leads[0]
        self._story["characters"] = characters
        self._story["acts"] = self._acts = _records(await self._build("acts", list))
        if not self._acts:
            raise _StageError("acts")
        if self._is_full:
            await self._criticise()
        opening = await self._build("opening", dict)
        sequence = opening.get("opening_sequence")
        if not isinstance(sequence, dict):
            raise _StageError("opening")
        self._location = text_of(sequence, "location")
        self._objective = text_of(self._story, "protagonist_objective")
        self._places = [self._location]
        if not self.as_published:
            self._story["hidden_elements"] = _records(opening.get("hidden_elements"))
            self._memory = memory.with_tensions(self._memory, opening.get("active_tensions"))
        first = text_of(sequence, "narrative_text") or text_of(sequence, "description")
        if first:
            self._add(NarraMessage("system", first, "notice"))
        for line in _records(opening.get("initial_dialogue")):
            speaker = character_id(text_of(line, "character_id"))
            speaker = speaker if speaker in self._names else self._responder()
            if text_of(line, "content"):
                self._add(NarraMessage(speaker, text_of(line, "content"), "text"))
        texts = [text_of(choice, "text") for choice in _records(opening.get("branching_choices"))]
        fallback = self.prompts["fallback_choices"]["normal"]
        self._choices, _ = resolve_choices(texts, fallback, _CHOICES, allow_end=False)
        self._opening_length = len(self.history)

    async def _build(self, stage: str, kind: type[Any]) -> Any:
        """A stage's JSON of the kind; an unreadable one ends the episode."""
        value = read_json(await self._ask(stage, *self._of_stage(stage)), kind)
        if not value:
            raise _StageError(stage)
        self._note_event("stage", name=stage, state="done")
        return value

    def _of_stage(self, stage: str, **texts: str) -> tuple[str, dict[str, str]]:
        """The prompt of a stage in the frame of all, and the texts that fill it."""
        prompts = self.prompts["construction"]
        prompt = prompts["frame"].replace("{task}", prompts[stage]["text"])
        return prompt, {"profile": self._about, "story": _compact(self._story), **texts}

    async def _criticise(self) -> None:
        """Have the acts criticised and, if they are weak, refined; a failure keeps the draft."""
        dimensions = _DIMENSIONS[self.as_published]
        critique = read_json(
            await self._ask("critic", *self._of_stage("critic", dimensions=dimensions)), dict
        )
        scored = (critique or {}).get("dimensions")
        named = scored.values() if isinstance(scored, dict) else []
        scores = [item.get("score") for item in named if isinstance(item, dict)]
        numbers = [score for score in scores if isinstance(score, int | float)]
        mean = sum(numbers) / len(numbers) if numbers else None
        is_weak = mean is not None and mean < _CRITIC_THRESHOLD
        if critique is None or not (is_weak or self.as_published):
            self._note_event("stage", name="critic", state="kept", mean=mean)
            return
        texts = self._of_stage("refiner", critique=_compact(critique))
        refined = read_json(await self._ask("refiner", *texts), dict) or {}
        acts = _records(refined.get("refined_acts"))
        if acts:
            self._story["acts"] = self._acts = acts
        self._note_event("stage", name="refiner", state="done" if acts else "kept", mean=mean)

    # The turns -----------------------------------------------------------------------------

    async def _play(self) -> None:
        for turn in range(1, self.persona["end_condition"]["max_user_turns"] + 1):
            # The reader does not see the memory, so both are asked at the same time.
            action, answers = await gather_all(self._reader_turn(turn), self._ask_memory())
            self._remember(answers)
            if action is None:
                return
            self._add(action)
            self._remember(await self._ask_memory())
            await self._writer_turn(turn, action)
            if self.end == "completed":
                return

    async def _reader_turn(self, turn: int) -> NarraMessage | None:
        """The reader's action; None at the end of the story."""
        offered = may_end(self._countdown, self.history)
        texts = {
            "turn": str(turn),
            "turns": str(self.persona["end_condition"]["max_user_turns"]),
            "choices": "; ".join(f"{n}: {text}" for n, text in enumerate(self._choices, 1)),
            "ending": self.prompts["reader"]["ending_offered" if offered else "ending_not_offered"],
        }
        instead = self.prompts["reader"]["repaired"]["turn"]
        action = await self._act_as_reader(f"turn_{turn}", "turn", texts, instead, self._choices)
        text, kind = action.text or instead, "message"
        if action.name == "select_choice" and self._choices:
            numbers = [str(number) for number in range(1, len(self._choices) + 1)]
            index = numbers.index(action.choice_id) if action.choice_id in numbers else 0
            text, kind = self._choices[index], "choice"
        self._note_event(
            "action", turn=turn, action=action.name or "repaired", ending_offered=offered
        )
        if action.name == "end_story":
            self.end = "left"
        elif text.lower() == END_CHOICE.lower() or (kind == "message" and wants_end(text)):
            self.end = "asked"
        else:
            return NarraMessage(
                self._protagonist, text, "choice" if kind == "choice" else "message"
            )
        return None

    async def _writer_turn(self, turn: int, action: NarraMessage) -> None:
        """Take the beat that answers the reader."""
        answered = self.history[:-1]
        count = self._pace.count(answered[self._opening_length :])
        # For its prompts the published code counts the lines of the opening, too.
        prompt_count = self._pace.count(answered) if self.as_published else count
        level = self._pace.level(prompt_count)
        self._note_event(
            "pacing", turn=turn, count=prompt_count, level=level, forced=self._is_forced
        )
        plan, progress = "", dict[str, Any]()
        if self._is_full:
            plan = await self._plan(turn, action.text)
            progress = await self._check_progress(turn)
        responder = self._responder()
        prompt, texts = self._turn_prompt(turn, action, responder, self._directive(level), plan)
        text = await self._ask(f"turn_{turn}", prompt, texts)
        beat = read_beat(text, list(self._names), responder, as_published=self.as_published)
        is_safe = not beat.text
        if is_safe:
            beat = replace(beat, text=self.prompts["safe_text"])
        beat = self._guarded(self._with_shift(beat), turn, count, progress)
        shifted = self._take(beat)
        self._advance_countdown()
        if self.end == "completed":
            self._choices = []
        else:
            self._choices = await self._offer(beat, turn, prompt_count, shifted)
        self._note_event(
            "turn",
            turn=turn,
            speaker=beat.speaker,
            safe=is_safe,
            shifted=shifted,
            choices=self._choices,
        )
        if self._is_sweep:
            self._memory = memory.overwritten(self._memory, beat)
            if memory.needs_patch(exchanges(self.history), shifted=shifted):
                self._due["state_patch"] = len(spoken(self.history))
        entry = {
            "turn": turn,
            "emotion": beat.emotional_beat,
            # Published: a constant.
            "intensity": 0.7 if self.as_published else intensity_of(beat),
            "trigger" if action.kind == "message" else "decision": action.text,
        }
        self._memory = replace(self._memory, journey=(*self._memory.journey, entry))
        for signal in stagnation_signals(self.history, self._protagonist):
            self._signal(signal)

    def _turn_prompt(
        self, turn: int, action: NarraMessage, responder: str, directive: str, plan: str
    ) -> tuple[str, dict[str, str]]:
        """The prompt of a turn, and the texts that fill it."""
        voice = [
            m.text for m in self.history if m.speaker == responder and len(m.text) >= _VOICE_LETTERS
        ]
        texts = {
            "turn": str(turn),
            "story": _compact(self._story),
            "act": str(self._act + 1),
            "location": self._location,
            "objective": self._objective,
            "memory": self._memory_text(),
            "voice": "\n".join(voice[-_VOICE_LINES:]),
            "recent": self._recent(),
            "directive": directive,
            "plan": plan,
            "action": action.text,
            "protagonist": self._names[self._protagonist],
            "speaker": responder,
            "cast": ", ".join(name for name in self._names if name != self._protagonist),
        }
        prompt = self.prompts["turn"]["text"]
        if not self.as_published:
            prompt = prompt.rstrip() + "\n" + self.prompts["turn"]["paper_tags"]
        if self._is_full:
            prompt = prompt.rstrip() + "\n" + self.prompts["turn"]["full_tags"]
        return prompt, texts

    def _directive(self, level: int) -> str:
        """The demands of a turn's prompt: the pace, and the facts that the story must keep."""
        directive = [self.prompts["pacing"][level]]
        directive += [self.prompts["forced"]] * self._is_forced
        if self._countdown:
            directive.append(
                _filled(self.prompts["countdown"], {"countdown": str(self._countdown)})
            )
        if not self._is_sweep:
            choices = [m.text for m in self.history[:-1] if m.kind == "choice"]
            texts = {
                "choices": "; ".join(dict.fromkeys(choices)) or "(none)",
                "places": "; ".join(dict.fromkeys(filter(None, self._places))) or "(none)",
            }
            directive.append(_filled(self.prompts["tracked"], texts))
        if self._carried:
            directive.append(_filled(self.prompts["carried"], {"change": self._carried}))
        return " ".join(directive)

    def _with_shift(self, beat: Beat) -> Beat:
        """A beat whose change of scene counts, or does not, as the rules have it."""
        if not beat.scene_shift:
            beat = replace(beat, next_location="")
        elif self._is_sweep:
            # Published: a shift always takes time, so that it counts without a new location.
            beat = replace(beat, time_progression=self.prompts["shift_time"])
        if self._is_sweep:
            # Published: these are never empty, so that every turn counts as an escalation.
            return replace(
                beat,
                tension=beat.tension or self.prompts["guard"]["tension"],
                immediate_stakes=beat.immediate_stakes or self.prompts["guard"]["immediate_stakes"],
                advancement=beat.objective or self._objective,
            )
        if not self.as_published and not is_scene_shift(
            self._location, beat.next_location, beat.time_progression
        ):
            # Else the guard would take it for a change of scene.
            return replace(beat, scene_shift=False, next_location="")
        return beat

    def _guarded(self, beat: Beat, turn: int, count: int, progress: Mapping[str, Any]) -> Beat:
        """The beat after the structure guard, which reads and clears the force flag."""
        self._carried = ""
        if not self._pace.guards(count, forced=self._is_forced):
            return beat
        following = self._acts[self._act + 1] if self._act + 1 < len(self._acts) else {}
        state = SceneState(
            location=self._location,
            objective=self._objective,
            progressed=progress.get("has_progressed") is not False,
            suggested_development=text_of(progress, "suggested_development"),
            reasoning=text_of(progress, "reasoning"),
            clues=self._memory.active_clues,
            next_act=following,
            tensions=self._memory.open_tensions,
        )
        beat, patches = guard(
            beat, state, count, self._pace, self.prompts["guard"], forced=self._is_forced
        )
        self._is_forced = False
        for patch in patches:
            self._note_event("guard_patch", turn=turn, **vars(patch))
        self._carried = " ".join(patch.after for patch in patches if patch.field != "branches")
        return beat

    def _take(self, beat: Beat) -> bool:
        """Add the beat to the story; returns whether the scene has changed."""
        shifted = is_scene_shift(self._location, beat.next_location, beat.time_progression)
        if shifted:
            caption = beat.next_location or beat.time_progression
            self._add(NarraMessage("system", f"[{caption}]", "transition"))
            self._location = beat.next_location or self._location
            self._places.append(self._location)
        if beat.act_advance or (beat.ending_ready and self._countdown):
            self._act = min(self._act + 1, len(self._acts) - 1)
        self._objective = beat.objective or self._objective
        self._add(NarraMessage(beat.speaker, beat.text, "text"))
        return shifted

    async def _offer(self, beat: Beat, turn: int, count: int, shifted: bool) -> list[str]:
        """The choices of the next turn."""
        ending = may_end(self._countdown, self.history)
        kind = "late" if self._pace.must_change(count) else "normal"
        if ending or shifted:
            kind = "ending" if ending else "shift"
        fallback = self.prompts["fallback_choices"][kind]
        # In the published code the guard's branches never reach the reader.
        is_branched = bool(beat.branches) and not self.as_published
        suggested: Sequence[str] = beat.branches if is_branched else beat.choices
        most = self._pace.max_choices or max(_CHOICES, len(suggested))
        choices, only_fallback = resolve_choices(suggested, fallback, most, allow_end=ending)
        if only_fallback:
            texts = {"beat": beat.text, "most": str(most)}
            text = await self._ask(f"choices_{turn}", self.prompts["choices"]["text"], texts)
            again = read_beat(text, [], "", as_published=False).choices
            choices, _ = resolve_choices(again, fallback, most, allow_end=ending)
        return limit_choices([*choices, END_CHOICE], most) if ending else choices

    def _advance_countdown(self) -> None:
        """Begin or lower the countdown; the story is completed when it has run out."""
        if self._countdown:
            self._countdown -= 1
            self.end = "turns" if self._countdown else "completed"
            return
        is_late = self._pace.level(self._pace.count(self.history[self._opening_length :])) == 4
        if is_late and (self._is_full or has_transition(self.history)):
            self._countdown = self._pace.countdown
            self._note_event("countdown", turns=self._countdown)

    def _responder(self) -> str:
        """The answering character: the last speaker beside the protagonist, or the first other."""
        speakers = [m.speaker for m in self.history if m.kind == "text"]
        others = [name for name in [*reversed(speakers), *self._names] if name != self._protagonist]
        return others[0]

    # Memory, planner, artifacts ------------------------------------------------------------

    def _add(self, message: NarraMessage) -> None:
        """Add a message; memory calls that it makes due are made before the writer's next turn."""
        self.history.append(message)
        self._memory, calls = memory.observe(
            self._memory, self.history, self.prompts["default_goal"]
        )
        if message.kind == "choice" and "journey_summary" not in calls:
            calls.append("journey_summary")
        # Two summaries of one moment would be equal, which is a sign of stagnation.
        self._due |= dict.fromkeys(calls, len(spoken(self.history)))

    async def _ask_memory(self) -> list[tuple[memory.Call, int, str]]:
        """Make the memory calls that are due, at the same time; nothing is taken from them yet."""
        due, self._due = self._due, {}
        journey = [
            {name: value for name, value in entry.items() if value not in ("", None)}
            for entry in self._memory.journey
        ]
        texts = {
            "recent": self._recent(),
            "memory": self._memory_text(),
            "summary": self._memory.summaries[-1] if self._memory.summaries else "(none)",
            "journey": _compact(journey),
            "count": str(len(self.history)),
            "need": self._need,
        }

        async def ask(call: memory.Call, number: int) -> str:
            if call == "summary_comparison":
                return ""
            prompt = self.prompts["structured_memory" if call == "state_patch" else call]["text"]
            return await self._ask(f"{call}_{number}", prompt, texts)

        answers = await gather_all(*(ask(*call) for call in due.items()))
        return [(*call, answer) for call, answer in zip(due.items(), answers, strict=True)]

    def _remember(self, answers: Sequence[tuple[memory.Call, int, str]]) -> None:
        """Take the answers to memory calls, in the order in which they were due."""
        for call, number, answer in answers:
            if call == "summary_comparison":
                self._memory = memory.compared(self._memory)
                if self._memory.force_advance:
                    self._signal("equal_summaries")
                continue
            failed = self._memory.failed_calls
            self._memory = memory.answered(self._memory, call, answer)
            has_failed = self._memory.failed_calls > failed
            self._note_event("memory", messages=number, call=call, failed=has_failed)

    def _memory_text(self) -> str:
        memo = self._memory
        shown = {
            "what_just_happened": memo.what_just_happened,
            "current_goal": memo.current_goal,
            "open_tensions": memo.open_tensions,
            "active_clues": memo.active_clues,
            "last_turning_point": memo.last_turning_point,
            "summary": memo.summaries[-1:],
            "journey": memo.journey_summary,
            "reader": self._about,
        }
        return _compact({name: value for name, value in shown.items() if value})

    def _signal(self, name: str) -> None:
        """Log a sign of stagnation; it forces a change until the guard has read the flag."""
        self._note_event("stagnation", messages=len(spoken(self.history)), signal=name)
        # As published, a sign of stagnation only changes labels.
        self._is_forced |= not self.as_published

    async def _check_progress(self, turn: int) -> dict[str, Any]:
        """Whether the plot has moved; a failure counts as moved."""
        if len(spoken(self.history)) < _PROGRESS_FROM:
            return {}
        texts = {"recent": self._recent(), "count": str(len(self.history))}
        text = await self._ask(f"progress_{turn}", self.prompts["progress"]["text"], texts)
        progress = read_json(text, dict) or {}
        if progress.get("has_progressed") is False:
            self._signal("no_progress")
        return progress

    async def _plan(self, turn: int, action: str) -> str:
        """The planner's suggestion for the beat; makes the artifact that it recommends."""
        texts = {
            "title": text_of(self._story, "title"),
            "act": str(self._act + 1),
            "theme": text_of(self._story, "cinematic_theme"),
            "objective": self._objective,
            "count": str(len(spoken(self.history))),
            "recent": self._recent(),
            "action": action,
        }
        plan = read_json(await self._ask(f"plan_{turn}", self.prompts["plan"]["text"], texts), dict)
        strategy = (plan or {}).get("story_advancement_strategy")
        listed = strategy.get("plot_suggestions") if isinstance(strategy, dict) else None
        suggestions = [str(item) for item in listed] if isinstance(listed, list) else []
        self._note_event("plan", turn=turn, is_default=not suggestions)
        recommended = (plan or {}).get("ui_element_recommendation")
        if isinstance(recommended, dict) and text_of(recommended, "element_type"):
            await self._make_artifact(turn, recommended)
        texts = {"suggestions": " ".join(suggestions) or self.prompts["default_plan"]}
        return _filled(self.prompts["plan_hint"], texts)

    async def _make_artifact(self, turn: int, wanted: Mapping[str, Any]) -> None:
        """Make an element, once more if it is too much like a former one."""
        described = {
            "type": text_of(wanted, "element_type"),
            "description": text_of(wanted, "description"),
            "purpose": text_of(wanted, "purpose"),
        }

        async def make(retry: str, attempt: int) -> artifacts.Element | None:
            texts = {**described, "retry": retry}
            prompt = self.prompts["artifact"]["text"]
            text = await self._ask(f"artifact_{turn}", prompt, texts, attempt)
            html = artifacts.extract_html(text)
            return artifacts.Element(html=html, **described) if "<" in html else None

        first, second = await make("", 0), None
        if first is None:
            self._note_event("artifact", turn=turn, failed=True)
            return
        again, score, nearest = artifacts.needs_retry(
            first, self._records, as_published=self.as_published
        )
        if again and nearest is not None:
            texts = {
                "score": f"{score:.2f}",
                "closest": nearest.summary,
                "tags": ", ".join(sorted(artifacts.element_tags(first))),
            }
            second = await make(_filled(self.prompts["artifact"]["retry"], texts), 1)
        self._records = artifacts.accept(
            first, second, self._records, as_published=self.as_published
        )
        self._note_event("artifact", turn=turn, failed=False, **vars(self._records[-1]))


def _filled(template: str, texts: Mapping[str, str]) -> str:
    """A prompt with its texts; what looks like a marker in them is changed."""
    return fill(template.strip(), {name: without_delimiters(text) for name, text in texts.items()})


def _flat(text: str) -> str:
    """A text on one line, in which nothing looks like a marker."""
    return " ".join(without_delimiters(text).split())


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _records(value: Any) -> list[dict[str, Any]]:
    """The objects of a list in a model's JSON."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _questions(text: str) -> list[dict[str, Any]]:
    """The questions of a reply; where the array is broken, its flat objects one by one."""
    records = _records(read_json(text, list))
    if not records:
        pieces = (read_json(piece, dict) for piece in re.findall(r"\{[^{}]*\}", text))
        records = [piece for piece in pieces if piece is not None]
    return [record for record in records if text_of(record, "question")][:_QUESTIONS]
