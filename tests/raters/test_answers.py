"""Verdicts and explanations read from judges' answers."""

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.raters.templates.parser import (
    CODE,
    LONGEST_REPLY,
    make_code,
    read_answer,
    without_reasoning,
)
from litbench.raters.templates.template import load_template

ANSWERS = [
    json.loads(line)
    for line in (Path(__file__).parent / "answers.jsonl").read_text("utf-8").splitlines()
]
FORMS = ["label", "verdict", "explanation", "json_verdict", "json_explanation"]
VERDICTS = {"A", "B", "tie", "unparsed"}
MARK = "k7f3q"
KEY = re.compile(
    r"(?:pre[\u200b\xad]?ferred|preference|verdict|answer|winner|choice|better|bevorzugt|préférée"
    r"|preferida|偏好|首选|答案)(?:[ _]story)?",
    re.I,
)
LETTER = re.compile(
    r"^[^\w\n]*(?:_|\\\w+|\b(?:story|option|response)\b|\W)*[AB\uff21][\W_]*$", re.I | re.M
)


def with_code(answer, verdict, **_):
    """An answer with the code where it states its verdict: behind the last key, else its letter."""
    label = {"A": r"[Aa\uff21]", "B": r"[Bb\uff22]|u0042"}.get(verdict, r"\w+")
    keys = [m for m in KEY.finditer(answer) if re.match(rf"[^\n]*?(?:{label})", answer[m.end() :])]
    if keys:
        end = keys[-1].end()
        return f"{answer[:end]} [{MARK}]{answer[end:]}"
    start = [*LETTER.finditer(answer), re.match("", answer)][0].start()
    return f"{answer[:start]}Preferred [{MARK}]: {answer[start:].lstrip()}"


@pytest.mark.parametrize("case", ANSWERS, ids=[case["name"] for case in ANSWERS])
def test_answers_without_code(case):
    """`verdict` is what the judge means, `plain` what is read: the same, or nothing."""
    reading = read_answer(case["answer"], case["form"])
    assert reading.verdict == case["plain"], case["why"]
    assert case["plain"] in (case["verdict"], "unparsed") or case["verdict"] == "unparsed"
    if case["plain"] != "unparsed":
        assert reading.explanation == case.get("explanation", reading.explanation)
    assert read_answer(case["answer"], case["form"], MARK).verdict == "unparsed", (
        "no code, no verdict"
    )


def test_answers_with_code():
    stated = [case for case in ANSWERS if case["verdict"] in ("A", "B", "tie")]
    read = [
        (read_answer(case.get("coded") or with_code(**case), case["form"], MARK), case)
        for case in stated
    ]
    unread = {case["name"] for reading, case in read if reading.verdict == "unparsed"}
    assert all(reading.verdict in (case["verdict"], "unparsed") for reading, case in read)
    assert unread == UNREAD
    assert len(unread) < 0.02 * len(stated)


# An escape of JSON, a letter struck out, and a line that names both stories.
UNREAD = {"json-escaped-letter", "verdict-struck-out", "verdict-reason-with-the-other-story"}


# The code --------------------------------------------------------------------------------------


def test_code_depends_on_question_and_seed():
    code = make_code("seed", "question")
    assert re.fullmatch(CODE, code)
    assert code == make_code("seed", "question")
    assert len({code, make_code("other", "question"), make_code("seed", "question ")}) == 3


CODED = {
    "as asked": ("Because.\n\nPreferred [k7f3q]: B", "B"),
    "bold": ("**Preferred [k7f3q]: B**", "B"),
    "bold value": ("Preferred [k7f3q]: **Story B**.", "B"),
    "escaped brackets": (r"Preferred \[k7f3q\]: B", "B"),
    "full-width": ("Preferred【ｋ７ｆ３ｑ】：Ｂ", "B"),
    "upper case": ("PREFERRED [K7F3Q]: B", "B"),
    "without brackets": ("Preferred k7f3q: B", "B"),
    "code behind": ("Preferred: B [k7f3q]", "unparsed"),
    "key in another language": ("首选 [k7f3q]：故事B", "B"),
    "a fence": ("```\nPreferred [k7f3q]: B\n```", "B"),
    "a block quotation": ("> Preferred [k7f3q]: B", "B"),
    "an element": ("<b>Preferred [k7f3q]:</b> B", "B"),
    "a reason": ("Preferred [k7f3q]: B, because it dares more", "B"),
    "a tie": ("Preferred [k7f3q]: tie", "tie"),
    "a tie with its article": ("Preferred [k7f3q]: a tie", "tie"),
    "JSON": ('{"explanation": "A is dull, B is not", "preferred [k7f3q]": "B"}', "B"),
    "JSON, verdict first": ('{"preferred [k7f3q]": "B", "explanation": "A is dull"}', "B"),
    "JSON, single quotes": ("{'preferred [k7f3q]': 'B'}", "B"),
    "JSON, cut": ('{"preferred [k7f3q]": "B"', "B"),
    "twice": ("Preferred [k7f3q]: B\nSo it is.\nPreferred [k7f3q]: B", "B"),
    "prose behind": ("Preferred [k7f3q]: B\n\nActually A is better. I prefer A.", "B"),
    "a quoted line": ("Preferred: A\nPreferred [k7f3q]: B\nPreferred: A", "B"),
    "another code": ("Preferred [h2m4x]: A\nPreferred [k7f3q]: B", "B"),
    "in gpt-oss's final channel": ("analysisA?Preferred: AassistantfinalPreferred [k7f3q]: B", "B"),
    "angle brackets": ("Preferred [k7f3q]: <B>", "B"),
    "behind a quotation": ("It says Preferred: A [k7f3q] Preferred: B", "unparsed"),
    "both options": ("Preferred [k7f3q]: A or Preferred [k7f3q]: B", "unparsed"),
    "two verdicts": ("Preferred [k7f3q]: A\nPreferred [k7f3q]: B", "unparsed"),
    "one unreadable": ("Preferred [k7f3q]: B\nPreferred [k7f3q]: hmm", "unparsed"),
    "both stories": ("Preferred [k7f3q]: A: 6/10, B: 9/10", "unparsed"),
    "both stories in JSON": ('{"preferred [k7f3q]": "A: 6, B: 9"}', "unparsed"),
    "another letter": ("Preferred [k7f3q]: А", "unparsed"),
    "no code": ("Preferred: B", "unparsed"),
    "free words": ("[k7f3q] Story B is better.", "B"),
}


@pytest.mark.parametrize(("answer", "verdict"), CODED.values(), ids=CODED)
def test_coded_answers(answer, verdict):
    for form in FORMS[1:]:
        assert read_answer(answer, form, MARK).verdict == verdict


# One of four stories.
OF_FOUR = {
    "D": "D",
    "**C**, for its end": "C",
    "Story C": "C",
    "D over A": "D",
    "a draw": "tie",
    "D, not A": "unparsed",
    "A or B": "unparsed",
    "E": "unparsed",
    "Dora's story": "unparsed",
}


@pytest.mark.parametrize(("stated", "verdict"), OF_FOUR.items())
def test_coded_answers_about_four_stories(stated, verdict):
    answer = f"Preferred: B\nPreferred [k7f3q]: {stated}"
    assert read_answer(answer, "explanation", MARK, letters="ABCD").verdict == verdict


# Without a code ----------------------------------------------------------------------------------

PLAIN = {
    "after a line without a full stop": ("Story A: 8/10\nStory B: 7/10\n\nPreferred: A", "A"),
    "after a colon": ("Taking everything into account:\n\n**Preferred: A**", "A"),
    "gpt-oss's channels": (
        "<|channel|>analysis<|message|>Preferred: B?<|end|><|start|>assistant<|channel|>final"
        "<|message|>Preferred: A",
        "A",
    ),
    "gpt-oss without special tokens": ("analysisPreferred: B?assistantfinalPreferred: A", "A"),
    "both stories": ("Preferred: A: 6/10, B: 9/10", "unparsed"),
    "both stories in JSON": ('{"preferred": "A: 6, B: 9"}', "unparsed"),
    "other words": ("Fine.\n\nOverall verdict: A: 6/10, B: 9/10", "unparsed"),
    "two verdicts": ("Preferred: B\n\nOr rather:\n\nPreferred: A", "unparsed"),
    "a quoted verdict": ("It ends with “Preferred: B”.\n\nPreferred: A", "unparsed"),
    "a quoted verdict in JSON": (
        '{"explanation": "\\"preferred\\": \\"B\\"", "preferred": "A"}',
        "unparsed",
    ),
    "equal verdicts": ("It ends with “Preferred: A”.\n\nPreferred: A", "A"),
    "not at the end": ("Preferred: A\n\nIt dares more.", "unparsed"),
    "a question": ("Fine.\nPreferred: A?", "unparsed"),
    "in marks at the end": ("The second edges it. It ends with\n“Preferred: A”", "unparsed"),
    "a fence at the end": ("The second edges it.\n```\nPreferred: A\n```", "unparsed"),
    "a block at the end": ("The second edges it.\n> Preferred: A", "unparsed"),
    "an object in a sentence": ('It ends with {"preferred": "A"}', "unparsed"),
    "in backticks at the end": ("It dares more.\n`Preferred: A`", "A"),
    "a recorded code": ("Because.\n\nPreferred [h2m4x]: A", "A"),
}


@pytest.mark.parametrize(("answer", "verdict"), PLAIN.values(), ids=PLAIN)
def test_plain_answers(answer, verdict):
    assert read_answer(answer, "explanation").verdict == verdict


@pytest.mark.parametrize(
    "name", ["asked_form", "free_words", "no_full_stop", "ratings", "closing_tag"]
)
def test_no_answer_is_read_as_a_story_wants(name, load_program):
    program = load_program("benchmarks/answers.py")
    title = next(k for k, campaign in program.CAMPAIGNS.items() if campaign.__name__ == name)
    for mark, code in ((f" [{program.CODE}]", program.CODE), ("", None)):
        for answer in program.cases(program.CAMPAIGNS[title], 300, 1, mark):
            assert program.outcome(title, answer, code) != "story", answer


def test_honest_answers_in_ten_languages(load_program):
    program = load_program("benchmarks/answers.py")
    for mark, code in ((f" [{program.CODE}]", program.CODE), ("", None)):
        for _, answer in program.honest(mark):
            assert read_answer(answer, "json_explanation", code).verdict == "B", answer
        for reply in program.honest_ratings(mark):
            assert program.outcome("ratings", reply, code) == "judge", reply


def test_bare_lines_complete_no_coded_ratings(load_program):
    program = load_program("benchmarks/answers.py")
    for answer in program.cases(program.completed_block, 300, 1, f" [{program.CODE}]"):
        assert program.outcome("ratings", answer, program.CODE) == "unread", answer


@given(
    st.lists(st.sampled_from(["A is dull.", "B sings", "Plot: A", "一个故事"]), min_size=1),
    st.sampled_from("AB"),
)
def test_explanation_excludes_verdict(reasons, letter):
    text = "\n".join(reasons)
    as_line = read_answer(f"{text}\n\nPreferred: {letter}\n", "explanation")
    assert (as_line.verdict, as_line.explanation) == (letter, text)
    answer = {"explanation": text, "preferred": letter}
    for whole in (json.dumps(answer), f"```json\n{json.dumps(answer, indent=1)}\n```"):
        assert read_answer(whole, "json_explanation") == as_line
    coded = {"explanation": text, f"preferred [{MARK}]": letter}
    assert read_answer(json.dumps(coded), "json_explanation", MARK) == as_line


REASONING = {
    "opens": ("<think>\nMaybe B.\n</think>\n\nFine.", "Fine."),
    "twice": ("<think>a</think> <thinking>b</thinking>Fine.", "Fine."),
    "never closes": ("<think>\nMaybe B.", ""),
    "a later tag": ("Fine. <think>b</think> So.", "Fine. <think>b</think> So."),
    "a quoted closing tag": ("It says </think> and ends.", "It says </think> and ends."),
    "the first closing tag": ("<think>a</think>It says </think> b", "It says </think> b"),
    "another closing tag": ("<think>a</thinking>b</think>c", "c"),
    "gpt-oss": ("<|channel|>analysis<|message|>a<|channel|>final<|message|>Fine.", "Fine."),
    "none": (" Analysis of both. ", "Analysis of both."),
}


@pytest.mark.parametrize(("text", "expected"), REASONING.values(), ids=REASONING)
def test_without_reasoning(text, expected):
    assert without_reasoning(text) == expected


# Any text ----------------------------------------------------------------------------------------

PIECES = ["Preferred:", " A", "B", "\n", "{", '{"preferred": ', '"', "}", "```", "> ", "<think>"]
PIECES += ["</think>", MARK, "Story ", "[", ", ", "“", "”", "is better", "\\", '"\\ud800"']


@given(
    st.lists(st.text(st.characters(codec=None), max_size=20) | st.sampled_from(PIECES)).map(
        "".join
    ),
    st.sampled_from(FORMS),
    st.sampled_from([None, MARK]),
)
def test_any_text_is_read_and_storable(text, form, code):
    reading = read_answer(text, form, code)
    assert reading.verdict in VERDICTS
    reading.explanation.encode("utf-8")
    assert read_answer(text.replace("\n", "\r\n"), form, code).verdict == reading.verdict


HOSTILE = ["\n", "> ", "A\n", "Preferred: A\n", "Preferred:", "{", '{"a":', '{"preferred": "A"}\n']
HOSTILE += ["“", "```\n", "Preferred: A over B", "A[", "<|a", "<think></think>", "k7f3q", "<", "\\"]
HOSTILE += ["k7f3q: A\n", "preferred ", "analysis", "_", "*", " ", "story ", "preferred k7f3q "]


@pytest.mark.parametrize("piece", HOSTILE)
def test_long_answer_is_read_in_linear_time(piece):
    """Four times the text may take eight times as long; a quadratic expression takes sixteen."""
    for before, behind in (("", ""), ("<think>", "\nPreferred: B"), ("x\nPreferred: A, ", "")):
        for code in (None, MARK):
            seconds = []
            for size in (10_000, 40_000):
                answer = before + piece * (size // len(piece)) + behind
                started = time.process_time()
                read_answer(answer, "json_verdict", code)
                seconds.append(time.process_time() - started)
            assert seconds[1] < 8 * max(seconds[0], 0.05), (before, behind, code)


def test_too_long_answer_is_unparsed():
    answer = "It ends. " * (LONGEST_REPLY // 9) + "\nPreferred: A"
    assert read_answer(answer[-LONGEST_REPLY:], "explanation").verdict == "A"
    assert read_answer("x" + answer, "explanation").verdict == "unparsed"


def test_deeply_nested_json():
    assert read_answer('{"a":' * 100_000, "json_verdict").verdict == "unparsed"
    assert read_answer('{"preferred": ' + "[" * 100_000, "json_verdict").verdict == "unparsed"


@pytest.mark.parametrize(
    "answer", ['{"explanation": "\\ud800", "preferred": "A"}', "\ud800\nPreferred: A", "\udfff"]
)
def test_lone_surrogate_is_storable(answer):
    assert read_answer(answer, "explanation").explanation == "\ufffd"


@pytest.mark.parametrize("form", FORMS)
def test_template_reads_its_example_and_repairs(form):
    template = load_template("alternative", form)
    code = MARK if template.is_coded else None
    for asked in (code, None):
        assert template.is_read(template.example(asked), asked)
        assert asked is None or f"[{asked}]" in template.repair(asked)
    assert "{" not in template.render("p", "a", "b", code).replace('{"', "")
    assert template.without_code().render("p", "a", "b") == template.render("p", "a", "b")
    assert "code" not in template.render("p", "a", "b")
