"""Conversations in cells: every form that tools write, and texts that only look like one."""

import json

import numpy as np
import pytest

from litbench.data.ingest import RejectedRows, read_foreign
from litbench.data.records import Column, Schema
from litbench.data.sources.messages import read_messages
from litbench.data.sources.pairs import read_any_pairs

STORY = 'It\'s "open",\n} {said nan'
USER, ASSISTANT = {"role": "user", "content": "A lamp."}, {"role": "assistant", "content": STORY}
SHAREGPT = [{"from": "human", "value": "A lamp."}, {"from": "gpt", "value": STORY, "weight": 1}]


def part(text):
    return {"type": "text", "text": text}


def as_array(*values):
    return np.array(values, dtype=object)


PARTS = [{**USER, "content": [part("A lamp.")]}, {**ASSISTANT, "content": [part(STORY)]}]
CONVERSATIONS = {
    "JSON": json.dumps([USER, ASSISTANT]),
    "indented JSON": json.dumps([USER, ASSISTANT], indent=2),
    "line breaks in JSON": json.dumps([USER, ASSISTANT]).replace("\\n", "\n"),
    "JSON encoded twice": json.dumps(json.dumps([USER, ASSISTANT])),
    "messages as JSON": json.dumps([json.dumps(USER), json.dumps(ASSISTANT)]),
    "JSON lines": f"{json.dumps(USER)}\n{json.dumps(ASSISTANT)}",
    "around": json.dumps({"messages": [USER, ASSISTANT]}),
    "around, Python": repr({"id": "x", "conversations": SHAREGPT}),
    "ShareGPT": json.dumps(SHAREGPT),
    "ShareGPT, Python": repr(SHAREGPT),
    "speakers": json.dumps(
        [{"speaker": "human", "text": "A lamp."}, {"speaker": "bot", "text": STORY}]
    ),
    "Gemini": json.dumps(
        [{"role": "user", "parts": [part("A lamp.")]}, {"role": "model", "parts": [part(STORY)]}]
    ),
    "Python": repr([USER, ASSISTANT]),
    "tuple": repr((USER, ASSISTANT)),
    "numpy": str(as_array(USER, ASSISTANT)),
    "numpy's repr": repr(as_array(USER, ASSISTANT)),
    "pandas' nan": repr([{**USER, "name": float("nan")}, {**ASSISTANT, "name": float("nan")}]),
    "parts": json.dumps(PARTS),
    "parts, Python": repr(PARTS),
    "parts, numpy": str(as_array({**USER, "content": as_array(part("A lamp."))}, PARTS[1])),
    "one part": json.dumps([{**USER, "content": part("A lamp.")}, ASSISTANT]),
    "texts as parts": json.dumps([{**USER, "content": ["A", " lamp."]}, ASSISTANT]),
    "other keys": json.dumps([{**USER, "name": None}, {**ASSISTANT, "tool_calls": []}]),
    "capitals": json.dumps([{**USER, "role": "USER"}, {**ASSISTANT, "role": "Assistant"}]),
    "dialogue": f"\n\nHuman: A lamp.\n\nAssistant: {STORY}",
    "dialogue at once": f"Human: A lamp.\n\nAssistant: {STORY}",
    "dialogue of Windows": f"\r\n\r\nHuman: A lamp.\r\n\r\nAssistant: {STORY}",
}
TEXTS = {
    "tag": "[WP] A lamp that sings.",
    "brackets": "[She waited.] And then.",
    "parentheses": "(She waited.) And then.",
    "braces": "{'lamp'} it said.",
    "quotation": '"[sighs]"',
    "quoted object": '"{lamp}" it said.',
    "quotation alone": '"Come in."',
    "numbers": "[1, 2]",
    "nothing": "[]",
    "texts": '["A lamp.", "It shone."]',
    "lists": "[['user', 'A lamp.']]",
    "object": '{"lamp": 1}',
    "other objects": json.dumps([{"text": STORY, "rank": 1}]),
    "Human later": "He said.\n\nHuman: A lamp.",
    "Human": "Humans: A lamp.",
    "number as content": json.dumps([{**USER, "content": 1}]),
    "no role": json.dumps([{"role": None, "content": "A lamp."}]),
    "picture": json.dumps([{**USER, "content": [{"type": "image_url", "image_url": "x"}]}]),
    "cut by numpy": "[{'role': 'user', 'content': 'a'} ... {'role': 'bot', 'content': 'b'}]",
    "cut by pandas": "[{'role': 'user', 'content': 'A lamp...",
    "bytes": "[{'role': 'user', 'content': b'A lamp.'}]",
    "deep": "[" * 100_000,
}
NO_STORY = ("number as content", "picture", "cut by numpy", "cut by pandas")


@pytest.mark.parametrize("form", CONVERSATIONS)
def test_a_conversation_is_read(form):
    assert read_messages(CONVERSATIONS[form]) == [("user", "A lamp."), ("assistant", STORY)]


@pytest.mark.parametrize("form", TEXTS)
def test_a_text_is_no_conversation(form):
    assert read_messages(TEXTS[form]) is None


@pytest.mark.parametrize("form", NO_STORY)
def test_messages_that_cannot_be_read_are_no_story(tmp_path, form):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in (TEXTS[form], STORY)))
    rejected = RejectedRows()
    schema = Schema("rows", (Column("text", "text", "the text", required=True),), ())
    assert read_foreign(path, schema, rejected_rows=rejected)["text"].to_pylist() == [STORY]
    assert rejected.counts() == {"text: a list of messages, not a text": 1}


# Openings that both stories of a pair share; none of them is a prompt.
OPENINGS = {
    "word": "The ",
    "sentence": "It rained all night. ",
    "paragraph": "It rained all night.\n\n",
    "long": "The tide came in, and the tide went out. " * 40,
    "tag": "[WP] A lamp that sings.\n\n",
    "heading": "# The Lamp\n\n",
    "quotation": '"Wait," she said. ',
    "label": "Prompt: A lamp.\n\nStory: ",
    "question": "Q: Who is there?\nA: ",
    "user": "User: A lamp.\nAssistant: ",
    "lower case": "human: A lamp.\n\nassistant: ",
    "turn later": "He wrote:\n\nHuman: A lamp.\n\nAssistant: ",
    "instruction": "### Instruction:\nA lamp.\n\n### Response:\n",
    "brackets": "[A door opens.] ",
    "braces": "{lamp} ",
    "parentheses": "(Night.) ",
    "dash": "- ",
    "spaces": "    ",
    "Chinese": "夜里下雨。",
    "emoji": "🕯️ ",
    "rule": "***\n\n",
}


@pytest.mark.parametrize("column", [{}, {"prompt": None}, {"prompt": " "}], ids=str)
@pytest.mark.parametrize("opening", OPENINGS)
def test_a_common_opening_is_no_prompt(tmp_path, capsys, opening, column):
    shared = [
        (f"{OPENINGS[opening]}lamp {k} shone.", f"{OPENINGS[opening]}lamp {k}.") for k in "ab"
    ]
    texts = [*shared, *((f"Gate {k} shut.", f"Tide {k}.") for k in range(3))]
    path = tmp_path / "pairs.jsonl"
    rows = [{**column, "chosen": chosen, "rejected": rejected} for chosen, rejected in texts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = read_any_pairs(path)
    assert {*zip(pairs["chosen"].to_pylist(), pairs["rejected"].to_pylist(), strict=True)} == {
        *texts
    }
    assert set(pairs["prompt"].to_pylist()) == {""}
    assert capsys.readouterr().err == f"{path}: the pairs have no prompts\n"
