"""Answers of a writer, a reader and judges of narra, by rule from what they are asked."""

import json
import re

from litbench.data.text import digest
from litbench.writers.narra.episode import PROMPTS
from litbench.writers.narra.quantities import CRITERIA
from litbench.writers.protocol import load_protocol, mock_of

_CONSTRUCTION = ("foundation", "setting", "characters", "acts", "critic", "refiner", "opening")
EXAMPLES = mock_of("narra", load_protocol("narra", {})).texts["writer"]
_PROMPTS = {
    name: {
        "text": (PROMPTS["construction"][name] if name in _CONSTRUCTION else PROMPTS[name])["text"],
        "example": EXAMPLES[name],
    }
    for name in (
        *_CONSTRUCTION,
        "questions",
        "keywords",
        "profile_keywords",
        "turn",
        "choices",
        "dialogue_summary",
        "structured_memory",
        "journey_summary",
        "progress",
        "plan",
        "artifact",
    )
}


def _mark(text):
    """A line of a prompt that no other prompt has and no text fills."""
    lines = [line for line in text.strip().splitlines() if not re.search(r"\{\w+\}|=====", line)]
    return max(lines, key=len)


_MARKS = {name: _mark(prompt["text"]) for name, prompt in _PROMPTS.items()}
assert len(set(_MARKS.values())) == len(_MARKS)


def asked_for(question):
    """The name of the prompt that a question to the writer was made of."""
    return next(name for name, mark in _MARKS.items() if mark in question)


def writer(question):
    """A writer whose beats differ, so that no sign of stagnation fires."""
    name = asked_for(question)
    example = _PROMPTS[name]["example"]
    if name == "turn":
        return example.replace("the bell", f"the bell {digest(question)[:6]}")
    return (
        f"{example} {digest(question)[:6]}"
        if name in ("dialogue_summary", "journey_summary")
        else example
    )


def repeating_writer(question):
    """A writer who says the same in every turn, in stock words, and moves nothing."""
    if asked_for(question) == "turn":
        return (
            "<<RESPONSE>>\nTrust the path. Follow the light within.\n<<CHOICES>>\n- Trust it\n"
            "- Follow it\n- Wait\n<<TAGS>>\nscene_shift: no"
        )
    return _PROMPTS[asked_for(question)]["example"]


def rambling_writer(question):
    """A writer who wraps everything in talk and fences, and forgets the form of some turns."""
    name, text = asked_for(question), writer(question)
    if name == "turn" and int(digest(question), 16) % 3 == 0:
        return "Well! Let us see. *The door creaks.* Somebody comes in and says nothing at all."
    if text.startswith(("{", "[")):
        return f"Of course! Here is the JSON:\n```json\n{text}\n```\nTell me if you like it."
    return text


def reader(question):
    """A reader who takes choices, speaks, and now and then names no action."""
    number = int(digest(question), 16) % 5
    if "Do one thing" not in question:
        return json.dumps(
            {"action": "answer_question", "text": "At night, lamp", "internal_state": "hm"}
        )
    if number == 0:
        return "I do not know what to do."
    if number == 1:
        return '```json\n{"action": "select_choice", "choice_id": 2, "internal_state": "go"}\n```'
    if number == 2:
        return '{"action": "select_choice", "choice_id": "9"'
    text = f"I look at the {digest(question)[:4]} and say so."
    return json.dumps({"action": "send_message", "text": text, "internal_state": "we will see"})


def judge(question):
    """A judge whose ratings depend on the session."""
    number = int(digest(question), 16)
    scores = {name: 1 + number // 7**index % 5 for index, name in enumerate(CRITERIA)}
    scores["ux_use_again_intent"] = 1 + 2 * (number % 3)
    return json.dumps(
        {
            "scores": scores,
            "breaking_character_count": number % 3,
            "failure_modes": ["repetition", "unheard-of"] if number % 2 else [],
        }
    )


def lazy_judge(question):
    """A judge who leaves out a criterion for some sessions, however often asked."""
    content = json.loads(judge(question))
    if int(digest(question), 16) % 4 == 0:
        del content["scores"]["story_surprise"]
    return json.dumps(content)
