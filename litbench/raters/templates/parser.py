"""Verdict parser: read which story a judge's answer prefers.

    reading = read_answer(answer, "explanation", code="k7f3q")

Stories may contain verdict lines to manipulate the judge, and a judge may quote them. Text alone
does not show whose a line is. Our templates therefore ask for a line such as `Preferred [k7f3q]: A`
with a code that no story can know (`make_code`). The verdict counts if every line with the code
names the same story. Nothing else is read. Questions about several stories always have a code.

Published prompts, recorded answers and trained models have no code. Their answer must end with the
asked form: `Preferred: A`, a JSON object with the key `preferred`, or for the form `label` a line
with the letter. If two statements of this form differ, anywhere and quoted or not, the answer is
`unparsed`. No other words are read. Every step takes linear time, because a story can influence the
judge to write a pathological answer.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from litbench.data.text import digest, valid_unicode
from litbench.raters.templates.json_replies import find_json

# label: a single letter. verdict: the line "Preferred: A". explanation: reasons, then that line.
# json_verdict: {"preferred": "A"}. json_explanation: an object with the keys "explanation" and
# "preferred", in this order, so that the reasons come before the verdict here too.
AnswerForm = Literal["label", "verdict", "explanation", "json_verdict", "json_explanation"]
# A letter, "tie" or "unparsed".
Verdict = str
# The letters of stories, in order; without the word I, and O, which looks like a digit.
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"

# Longer replies are not read, in characters.
LONGEST_REPLY = 500_000


@dataclass(frozen=True)
class Reading:
    """A parsed answer.

    Attributes:
        verdict: the preferred story; `tie` for an explicit verdict of no preference; else
            `unparsed`.
        explanation: the text before the verdict, or after it if there is none before; the whole
            answer if it has no verdict. Reasoning is excluded.
    """

    verdict: Verdict
    explanation: str


# Without vowels, so that a code is no word, and without letters that look like digits.
_CODE_LETTERS = "bcdfghjkmnpqrstvwxz23456789"
_CODE_LENGTH = 5
CODE = rf"[{_CODE_LETTERS}]{{{_CODE_LENGTH}}}"


def make_code(seed: str, question: str) -> str:
    """The code of a question: a hash of its text without the code and of a secret seed."""
    number, letters = int(digest("code", seed, question), 16), ""
    for _ in range(_CODE_LENGTH):
        number, index = divmod(number, len(_CODE_LETTERS))
        letters += _CODE_LETTERS[index]
    return letters


def read_answer(
    text: str, form: AnswerForm, code: str | None = None, *, letters: str = "AB"
) -> Reading:
    """Read a judge's answer.

    Args:
        text: the answer.
        form: the form that the question asked for. Lines and JSON objects are read for each of the
            forms but `label`.
        code: the code that the question asked for; None if it asked for none.
        letters: the letters of the stories; other letters than A and B are read with a code only.
    """
    if len(text) > LONGEST_REPLY:
        return Reading("unparsed", valid_unicode(text).strip())
    answer = valid_unicode(without_reasoning(text)).strip()
    reading = _plain(answer, form) if code is None else _coded(answer, code, letters)
    if reading is None:
        return Reading("unparsed", answer)
    verdict, start, end = reading
    before = answer[:start].rstrip(" \t\r\n`~*_#>-").strip()
    return Reading(verdict, _json_reasons(answer) or before or answer[end:].strip(" \t\r\n`~"))


# The verdict that an answer states, and the start and end of its lines.
_Stated = tuple[Verdict, int, int]

_NOUNS = (
    r"(?:story|response|option|text|answer|candidate|geschichte|erzählung|histoire"
    r"|récit|historia|relato|storia|racconto|história|conto|verhaal|история|рассказ|قصة|القصة"
    r"|故事|作品|物語|이야기)"
)
_TIE = r"(?:an? )?(?:tied?|draw|neither|either|both|equal|none|no preference)(?![a-z0-9])"


@cache
def _value(letters: str) -> str:
    """The expression of a verdict: a tie, or a letter."""
    label = rf"(?P<label>[{letters}])(?![a-z0-9]|['’]\w)"
    return rf"(?:(?:the )?{_NOUNS}[\W_]*+)?(?:{_TIE}|{label})"


_VALUE = _value("AB")
# With the code of a recorded answer, whose question is unknown.
_STATEMENT = re.compile(rf"preferred(?P<sign>[\W_]*+(?:(?:{CODE}|{_NOUNS})[\W_]*+)?){_VALUE}", re.I)
_LETTER_LINE = re.compile(rf"^(?:[^\w\n]|_)*+{_VALUE}(?=(?:[^\w\n]|_)*$)", re.I | re.M)
_LINE = re.compile(r"[^\r\n]+")
_WORD = re.compile(r"[^\W_]")
# What may precede the verdict of a longer answer on its line: Markdown, which judges put around
# verdicts, and the start of an object, but no quotation mark.
_DECORATION = re.compile(r" {0,3}(?:\d{1,2}[.)] )?[*_#\[(\\$`-]*[ \t]*[*_]*(?:\{\s*[\"'“]?)?")
_FENCE = re.compile(r"^ {0,3}(?:`{3,}|~{3,})([^\n`]*)$", re.M)
# HTML and LaTeX around a value.
_TAGS = re.compile(r"<(?![AB]>)[/|]?[a-zA-Z][^<>\n]{0,80}>|\\(?:boxed|text|mathbf)\b")
_OPENS = re.compile(r"^[ \t]*+(?P<start>\{)\s*+[\"'“]", re.M)


def _folded(text: str) -> str:
    """The text in compatibility form (NFKC), without invisible characters and CR line breaks."""
    compatible = unicodedata.normalize("NFKC", text.replace("\r\n", "\n").replace("\r", "\n"))
    return "".join(
        character
        for character in compatible
        if character in "\t\n" or unicodedata.category(character) not in ("Cc", "Cf")
    )


def _verdict(match: re.Match[str]) -> Verdict:
    return "tie" if match["label"] is None else match["label"].upper()


def _coded(answer: str, code: str, letters: str) -> _Stated | None:
    """The verdict that every line with the code states."""
    value = re.compile(rf"[\W_]*+(?:is[\W_]++)?{_value(letters)}(?P<rest>.*)", re.I | re.S)
    verdicts: set[Verdict | None] = set()
    spans = []
    for line in _LINE.finditer(answer):
        text = _TAGS.sub("", _folded(line[0]))
        for piece in re.split(re.escape(code), text, flags=re.I)[1:]:
            match = value.match(piece)
            verdicts.add(None if match is None else _clear_verdict(match, letters))
            spans.append(line.span())
    if len(verdicts) != 1 or (verdict := verdicts.pop()) is None:
        return None
    return verdict, spans[0][0], spans[-1][1]


def _clear_verdict(match: re.Match[str], letters: str) -> Verdict | None:
    """The verdict of a line; None if its rest names another story, as in "A: 6, B: 9"."""
    # A JSON string ends with its quotation mark.
    rest = re.split(r"[\"'”]\s*[,}]", match["rest"], maxsplit=1)[0]
    rest = re.sub(rf"\A\W*(?:over|rather than) {_value(letters)}", "", rest, flags=re.I)
    names = set(re.findall(rf"(?<![A-Za-z0-9'’])[{letters}](?![A-Za-z0-9'’])", rest))
    verdict = _verdict(match)
    return None if names - {verdict} else verdict


def _plain(answer: str, form: AnswerForm) -> _Stated | None:
    """The verdict in the asked form at the end of an answer, if no other one differs."""
    text = _TAGS.sub("", _folded(answer))
    statements = [m for m in _STATEMENT.finditer(text) if re.search("[:=–—-]", m["sign"])]
    lines = list(_LETTER_LINE.finditer(text)) if form == "label" or len(answer) < 100 else []
    # A letter alone counts in other forms only if it is the whole answer.
    if form == "label" or (lines and len(_WORD.findall(text)) == len(_WORD.findall(lines[0][0]))):
        statements += lines
    if not statements or len({_verdict(match) for match in statements}) > 1:
        return None
    last = max(statements, key=lambda match: match.end())
    if not (_ends(text, last) or _ends_json(answer, form)):
        return None
    *_, line = _LINE.finditer(answer.rstrip("`~ \t\r\n"))
    return _verdict(last), line.start(), len(answer)


def _ends(text: str, last: re.Match[str]) -> bool:
    """Whether a statement ends a text, on a line that nothing marks as a quotation."""
    before, behind = text[: last.start()], text[last.end() :]
    fences = _FENCE.findall(before)
    is_inside = bool(len(fences) % 2) and fences[-1].strip().casefold() != "json"
    is_open = "{" in before.rpartition("\n")[2] and "}" not in behind
    if is_open or _WORD.search(behind) or re.search("[?+/%&=]", behind):
        return False
    if not _WORD.search(_FENCE.sub("", before)):
        # Marks around the whole answer quote nobody.
        return True
    return not is_inside and _DECORATION.fullmatch(before.rpartition("\n")[2]) is not None


def _objects(answer: str) -> Iterator[tuple[dict[str, object], int]]:
    """The JSON objects of an answer that state a verdict, and where they end."""
    for match in find_json(answer, _OPENS):
        keys = map(_folded, match.content if isinstance(match.content, dict) else ())
        if any(key.casefold().startswith("preferred") for key in keys):
            yield match.content, match.end


def _ends_json(answer: str, form: AnswerForm) -> bool:
    """Whether an answer ends with a JSON object that states a verdict."""
    *_, last = [(None, 0), *_objects(answer)]
    content, end = last
    is_end = content is not None and form != "label" and not _WORD.search(answer, end)
    return is_end and any(
        isinstance(value, str) and re.fullmatch(rf"[\W_]*{_VALUE}[\W_]*", _folded(value), re.I)
        for key, value in (content or {}).items()
        if _folded(key).casefold().startswith("preferred")
    )


def _json_reasons(answer: str) -> str:
    """The explanation in the last JSON object that states a verdict; empty if there is none."""
    keys = ("explanation", "reasoning", "rationale", "analysis")
    contents = [content for content, _ in _objects(answer)]
    reasons = [content[key] for content in contents[-1:] for key in keys if key in content]
    return valid_unicode(reasons[0]).strip() if reasons and isinstance(reasons[0], str) else ""


# Reasoning that opens an answer, with the tags of chat templates and the channels of gpt-oss.
_REASONING = [
    (re.compile(opens, re.I), re.compile(closes, re.I))
    for opens, closes in (
        *((rf"\s*<{tag}>", rf"</{tag}>") for tag in ("think", "thinking", "thought", "reasoning")),
        (r"\s*\[think\]", r"\[/think\]"),
        (r"\s*<\|channel\|>analysis<\|message\|>", r"<\|channel\|>final<\|message\|>"),
        # Without its special tokens.
        (r"\s*analysis(?=.*assistantfinal)", r"assistantfinal"),
    )
]


def without_reasoning(text: str) -> str:
    """A text without the reasoning that opens it, stripped; empty if the reasoning does not end.

    Reasoning ends with the first closing tag. A tag later in the text is text.
    """
    start = 0
    while opened := next((pair for pair in _REASONING if pair[0].match(text, start)), None):
        closed = opened[1].search(text, start)
        if closed is None:
            return ""
        start = closed.end()
    return text[start:].strip()
