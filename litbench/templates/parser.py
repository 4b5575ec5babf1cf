"""The verdict parser: which story an answer prefers.

    reading = read_answer(answer, "explanation")

The last explicit verdict of the judge binds: a line such as `Preferred: A`, a JSON object with such
a key, or a last line that is a letter alone. Anything else is `unparsed`; nothing is guessed.

Stories may hold verdict lines to steer their judge, and a judge may quote them. Fenced and indented
code, block quotations, table rows, HTML elements and text in quotation marks are therefore never
read as a verdict, and neither is a line that the judge introduces with a colon or continues in the
middle of a sentence. In doubt a text counts as quoted. Every step takes linear time, as answers are
written under the influence of the stories.
"""

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple, cast

# label: one letter and nothing else. verdict: the one line "Preferred: A". explanation: reasons,
# then that line as the last one. json_verdict: {"preferred": "A"}. json_explanation: an object with
# "explanation" first and "preferred" behind it, so that reasons come before the verdict here too.
AnswerForm = Literal["label", "verdict", "explanation", "json_verdict", "json_explanation"]
Label = Literal["A", "B"]
Verdict = Literal["A", "B", "tie", "unparsed", "refused"]


@dataclass(frozen=True)
class Reading:
    """What an answer says.

    Attributes:
        verdict: the preferred story; `tie` for an explicit verdict of no preference; `refused`
            where the judge declines and states no verdict; else `unparsed`.
        explanation: the text before the verdict, or else after it; the whole answer where there is
            no verdict. Hidden reasoning is left out.
    """

    verdict: Verdict
    explanation: str


class _Stated(NamedTuple):
    """A line or an object and its verdict; `unparsed`: it cannot be read; None: there is none."""

    start: int
    end: int
    verdict: Verdict | None
    explanation: str | None = None


def read_answer(text: str, form: AnswerForm) -> Reading:
    """Read a judge's answer.

    A judge that answers in another form than the one asked for is understood. The form decides two
    things: in the form `label` a letter alone on the first line counts, and in the JSON forms a
    fence tagged `json` holds the answer and not a quotation.
    """
    said = _after_reasoning(text)
    if said is None:
        return Reading("unparsed", _storable(text))
    said = _without_outer_fence(said.strip())
    quoted, is_open = _quoted_blocks(said, form.startswith("json"))
    if is_open:
        return Reading("unparsed", _storable(said))
    is_one_line = sum(bool(_WORD.search(said, *line)) for line in _lines(said)) == 1
    if is_one_line:
        quoted = bytearray(len(said))
    objects = list(_objects(said, quoted))
    hidden = bytearray(quoted)
    for one in objects:
        _mark(hidden, one.start, one.end)
    prose = _blanked(said, hidden)
    if not is_one_line:
        for span in _between_marks(prose):
            _mark(quoted, *span)
    prose = _blanked(prose, quoted)
    stated = [one for one in objects if not quoted[one.start] and one.verdict is not None]
    stated = [*stated, *_stated_lines(prose, form)]
    stated = [one for one in stated if not _is_part_of_a_sentence(one, said, prose)]
    bound = _binding(sorted(stated, key=lambda one: one.start), prose)
    if bound is None or bound.verdict is None:
        declines = _REFUSAL.search(_folded(_blanked(said, quoted)))
        return Reading("refused" if declines else "unparsed", _storable(said))
    explanation = bound.explanation
    if explanation is None:
        before = _CLOSED_LINE.split(said[: bound.start])[-1].strip().rstrip("`~")
        explanation = before or said[bound.end :]
    return Reading(bound.verdict, _storable(explanation))


def split_verdict(answer: str) -> tuple[str, Label | None]:
    """Divide an explanation that models are to be trained on.

    Stricter than `read_answer`: only lines that begin with `Preferred:` count, so that models learn
    the form that was asked for. The last one binds; the text after it is dropped.

    Returns:
        The explanation without the verdict line, and the label. Where no line, or not the last
        one, names one story, the whole answer and None.
    """
    lines = list(_VERDICT_LINE.finditer(answer))
    named = _NAMED.fullmatch(lines[-1]["named"]) if lines else None
    if named is None:
        return answer.strip(), None
    return answer[: lines[-1].start()].strip(), cast(Label, named["label"].upper())


def has_verdict_line(text: str) -> bool:
    """Whether a line begins with `Preferred:`, whatever it names."""
    return _VERDICT_LINE.search(text) is not None


# Around the words stands whatever Markdown a model likes, as in "**Preferred: Story B**"; the
# full-width colon (U+FF1A) is the one of Chinese and Japanese keyboards.
_VERDICT_LINE = re.compile(
    r"(?:^|(?<=\r))[ \t*_#>`-]*preferred[ \t*_`]*[:\uff1a](?P<named>.*)$", re.I | re.M
)
_NAMED = re.compile(r"[\s*_`\"'(\[]*(?:story\s+)?(?P<label>[AB])[\s*_`\"')\].]*", re.I)

# Words of verdicts, matched after `_bare` has removed the markup.
_NOUN = (
    r"(?:story|response|option|text|answer|candidate|geschichte|histoire|historia|storia|故事|作品)"
)
_KEY = (
    r"(?:(?:my|the) )?(?:(?:final|overall) )?"
    r"(?:preferred|preference|verdict|answer|winner|choice|decision|judge?ment|better"
    rf"|bevorzugt|préférée?|preferid[ao]|偏好|首选|答案)(?: ?(?:{_NOUN}|one))?"
)
# A name, and perhaps a reason: "B — though A's imagery is lovely".
_REASON = r"(?P<reason>\Z|\s?[,;:.!–—].*| - .*| (?:because|since|for|over|rather than) .*)"
_VALUE = re.compile(rf"(?:(?:the )?{_NOUN} ?)?(?P<label>[AB]){_REASON}", re.I | re.S)
_TIE = re.compile(
    r"(?:an? )?(?:tie|tied|draw|neither|both|either|equal|none|no preference)"
    rf"(?: (?:story|stories|of (?:them|the two)))?{_REASON}",
    re.I | re.S,
)
_KEYED = re.compile(rf"(?:\d{{1,2}}[.)] )?{_KEY}(?P<sign> ?[:=–—]| -(?= )| is:?(?= ))", re.I)
_AMBIGUOUS = re.compile(
    rf"\bor (?:\w+ )?[AB]\b|\A\W*(?:(?:or|and|no),? )?(?:{_NOUN} )?[AB]\W*\Z", re.I
)
_TAKEN_BACK = re.compile(
    r"(?:^|[\r\n.!?,;:–—])\W{0,8}(?:actually|wait|no(?=[,:.!])|correction|scratch that"
    r"|on (?:second thought|reflection)|i(?:'ve| have)? changed my mind)",
    re.I,
)
_REFUSAL = re.compile(
    r"\bi(?:'m| am) (?:very |so )?sorry, but (?:i|as an ai)\b"
    r"|\bi ?(?:can't|cannot|won't|couldn't|am unable to|'m unable to|must (?:\w+ )?decline to"
    r"|am not able to|'m not able to|won't be able to) (?:\w+ )?(?:help (?:you )?with|assist|comply"
    r"|compare|judge|evaluate|assess|rate|rank|choose|provide|create|engage)"
    r"|\bi (?:must|have to)(?: \w+)? decline\b|\bi(?:'m| am) not comfortable (?:with )?\w+ing\b"
    r"|\bi (?:don't|do not) have (?:personal )?(?:preferences|opinions)\b",
    re.I,
)
_GOES_ON = re.compile(r"[ \t]*+(?:\r\n?|\n)?[ \t]*+(?:[a-zà-ÿ]{2}|[,;’”)])")
# A colon after these words introduces the judge's own verdict.
_OWN_LEAD = re.compile(
    r"\b(?:my|final|overall|therefore|conclusion|verdict|preferred|preference|answer|json)\b", re.I
)
_WORD = re.compile(r"[^\W_]|[Ⓐ-ⓩ]")
# Markup, LaTeX commands, and what opens an aside after a name.
_TAGS = re.compile(r"<(?:[/|]?[a-z][^<>]{0,80}|!--[^<>]*+)>|~~[^~\n]{1,80}~~|\\[a-z]*+", re.I)
_ASIDE = re.compile(r"(?<=\b[AB])\s*+[(\[\"“]++", re.I)
_SYMBOLS = re.compile(r"[^\w\s.,:;!?=|/'&+%–—-]|_|(?<!\w)'|'(?!\w)")


def _folded(text: str) -> str:
    """Compatibility forms (NFKC), one kind of blank, nothing invisible."""
    compatible = unicodedata.normalize("NFKC", text).replace("’", "'")
    return "".join(
        " " if one.isspace() else one
        for one in compatible
        if one.isspace() or unicodedata.category(one) not in ("Cc", "Cf")
    )


def _bare(text: str) -> str:
    """The words of a line without Markdown, HTML, LaTeX, brackets and quotation marks."""
    words = _SYMBOLS.sub(" ", _ASIDE.sub(", ", _TAGS.sub(" ", _folded(text))))
    return " ".join(words.split()).strip(" .,;!-–—")


def _value(words: str, *, alone: bool = False) -> Verdict | None:
    """The verdict that some words begin with, or are; None where they name no story and no tie."""
    found = _VALUE.fullmatch(words) or _TIE.fullmatch(words)
    if not found or (alone and found["reason"]):
        return None
    if _AMBIGUOUS.search(found["reason"]) or _TAKEN_BACK.search(found["reason"]):
        return None
    return cast(Verdict, found["label"].upper()) if found.re is _VALUE else "tie"


def _binding(stated: Sequence[_Stated], prose: str) -> _Stated | None:
    """The last verdict, where no doubt is left."""
    if not stated or stated[-1].verdict == "unparsed":
        return None
    *earlier, last = stated
    if _TAKEN_BACK.search(prose, last.end):
        return None
    if {one.verdict for one in earlier} - {last.verdict}:
        before = earlier[-1]
        # "Preferred: A" and "Preferred: B" on consecutive lines repeat the question.
        repeats = before.verdict not in (last.verdict, "unparsed")
        if _WORD.search(prose, last.end) or (
            repeats and not _WORD.search(prose, before.end, last.start)
        ):
            return None
    return last


def _stated_lines(prose: str, form: AnswerForm) -> Iterator[_Stated]:
    """Verdicts that lines state, whatever is quoted being blank."""
    own = [line for line in _lines(prose) if _WORD.search(prose, *line)]
    for at, (start, end) in enumerate(own):
        line = _bare(prose[start:end])
        keyed = _KEYED.match(line)
        verdict: Verdict | None = None
        if keyed:
            verdict = _value(line[keyed.end() :].lstrip(" :"))
        elif at == len(own) - 1 or (at == 0 and form == "label"):
            verdict = _value(line, alone=True)
        if verdict or (keyed and not keyed["sign"].startswith(" is")):
            yield _Stated(start, end, verdict or "unparsed")


def _is_part_of_a_sentence(stated: _Stated, said: str, prose: str) -> bool:
    """Whether a colon introduces it, but not as the judge's own, or a sentence goes on after it."""
    before = prose[max(0, stated.start - 300) : stated.start].rstrip(" \t\r\n*_#")
    line = _LINE_BREAK.split(before)[-1]
    introduced = line.endswith((":", "：")) and not _OWN_LEAD.search(line)
    return introduced or bool(_GOES_ON.match(said, stated.end))


# Hidden reasoning -----------------------------------------------------------------------------

_TAG = r"(?:think|thinking|thought)[>\]]"
_OPENED = re.compile(rf"\s*+[<\[]{_TAG}", re.I)
_CLOSED = re.compile(rf"[<\[]/{_TAG}", re.I)
_CLOSED_LINE = re.compile(rf"(?:\A|(?<=[\r\n]))[ \t]*+[<\[]/{_TAG}", re.I)
_MOST_CLOSINGS = 100
_PARAGRAPH_BREAK = re.compile(r"(?:\r\n?|\n)[ \t]*+(?:\r\n?|\n)")


def _after_reasoning(text: str) -> str | None:
    """What comes after the reasoning that opens an answer; None where it does not end.

    A closing tag inside a quotation is the story's: in a block, or between the quotation marks of
    a paragraph. Where the opening tag is missing, the verdict after the reasoning is the last.
    """
    if not _OPENED.match(text):
        return text
    quoted, _ = _quoted_blocks(text, skip_json=False)
    breaks = [0, *(found.end() for found in _PARAGRAPH_BREAK.finditer(text)), len(text)]
    closings = []
    for found in islice(_CLOSED.finditer(text), _MOST_CLOSINGS):
        at = bisect_right(breaks, found.start())
        before = text[breaks[at - 1] : found.start()]
        after = text[found.end() : breaks[min(at, len(breaks) - 1)]]
        marked = any(before.count(o) > before.count(c) and c in after for o, c in _TYPOGRAPHIC)
        marked |= any(before.count(mark) % 2 == 1 and mark in after for mark in '"`')
        if not marked and not quoted[found.start()]:
            closings.append(found.end())
    start = 0
    while opened := _OPENED.match(text, start):
        start = next((end for end in closings if end > opened.end()), 0)
        if not start:
            return None
    return text[start:]


# Quotations: a mask marks with 1 every character that is quoted. --------------------------------

_LINE_BREAK = re.compile(r"\r\n?|\n")
_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})(?P<info>.*)", re.S)
_OUTER_FENCE = re.compile(r"(?P<marks>`{3,}+|~{3,}+)[^\r\n]*+(?P<inside>.*)[\r\n](?P=marks)", re.S)
_QUOTED_LINE = re.compile(r" {0,3}[>|]| {4}|\t")
_TYPOGRAPHIC = [
    tuple(marks) for marks in ("“”", "„“", "„”", "‘’", "«»", "»«", "‹›", "「」", "『』", "《》")
]
# Elements that may hold the judge's verdict; all others quote.
_OWN = r"(?:p|div|span|b|i|u|em|strong|html|body|answer|verdict|final|response|result|output|br|hr)"
_MARKS = [
    (re.compile(opens, re.I | re.M), re.compile(closes, re.I))
    for opens, closes in [
        *_TYPOGRAPHIC,
        *(("``", "''"), ('"', '"'), ("`", "`"), (r"(?<!\w)'(?=\S|$)", r"'(?!\w)"), ("<!--", "-->")),
        (
            rf"[<\[](?!{_OWN}\b)[a-z][^<>\[\]\r\n]{{0,80}}[>\]]",
            rf"[<\[]/(?!{_OWN}\b)[a-z][\w-]{{0,30}}[>\]]",
        ),
    ]
]


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of every line; a line ends as in CommonMark, so not at U+2028."""
    start = 0
    for found in _LINE_BREAK.finditer(text):
        yield start, found.start()
        start = found.end()
    yield start, len(text)


def _without_outer_fence(text: str) -> str:
    """The inside of a fence around the whole answer."""
    found = _OUTER_FENCE.fullmatch(text)
    if not found or re.search(rf"^ {{0,3}}{found['marks'][:3]}", found["inside"], re.M):
        return text
    return found["inside"]


def _quoted_blocks(text: str, skip_json: bool) -> tuple[bytearray, bool]:
    """Mask of fenced and indented code, block quotations and table rows.

    With `skip_json` only the two marker lines of a fence tagged `json` are masked. The second
    value says whether the last fence is not closed.
    """
    quoted = bytearray(len(text))
    marks, is_json = "", False
    for start, end in _lines(text):
        found = _FENCE.match(text[start:end])
        opens = closes = False
        if found and not marks:
            opens = "`" not in found["info"] or found["marks"][0] == "~"
        elif found:
            # The same character, at least as long, and nothing behind it.
            closes = found["marks"].startswith(marks) and not found["info"].strip()
        if found and opens:
            marks = found["marks"]
            is_json = skip_json and found["info"].strip().casefold() == "json"
        inside = not is_json if marks else _QUOTED_LINE.match(text[start:end])
        if opens or closes or inside:
            _mark(quoted, start, end)
        if closes:
            marks = ""
    return quoted, bool(marks)


def _between_marks(text: str) -> Iterator[tuple[int, int]]:
    """From the first opening to the last closing quotation mark of each kind, and of elements.

    Of what stands between two quotations it is often unclear whether it is quoted.
    """
    for opens, closes in _MARKS:
        first = opens.search(text)
        ends = [found.end() for found in closes.finditer(text)] if first else []
        if first and ends and ends[-1] > first.end():
            yield first.start(), ends[-1]


def _mark(mask: bytearray, start: int, end: int) -> None:
    mask[start:end] = b"\1" * (end - start)


def _blanked(text: str, mask: bytearray) -> str:
    """The text with a blank for every masked character but line breaks."""
    return "".join(
        " " if hidden and one not in "\r\n" else one for one, hidden in zip(text, mask, strict=True)
    )


# Objects --------------------------------------------------------------------------------------

_QUOTE = "[\"'“”]"
_OPENS = re.compile(
    rf"(?:\A|(?<=[\r\n]))[ \t]*+(?P<start>\{{\s*+{_QUOTE}?\w[\w ]{{0,40}}{_QUOTE}?\s*+:)"
)
_OBJECT_KEY = re.compile(_KEY, re.I)
_EXPLANATION_KEYS = ("explanation", "reasoning", "rationale", "analysis")
_LOOSE_KEY = re.compile(rf"(?<![\w\\]){_KEY}{_QUOTE}?\s*+:", re.I)
_LOOSE_LAST = re.compile(
    rf"(?:\A\{{|,)\s*+{_QUOTE}?{_KEY}{_QUOTE}?\s*+:\s*+"
    rf"(?:{_QUOTE}(?P<value>[\w ]{{1,80}}+){_QUOTE}|(?P<bare>[\w ]{{1,80}}+))\s*+,?\s*+\}}?\s*+\Z",
    re.I,
)


def _objects(text: str, quoted: bytearray) -> Iterator[_Stated]:
    """Objects that start a line outside of quoted blocks, with the verdicts they state, if any.

    From the first one on that is no JSON, the rest of the answer is taken for that object.
    """
    decoder = json.JSONDecoder(strict=False)
    found = _OPENS.search(text)
    while found:
        start = found.start("start")
        end = found.end()
        if not quoted[start]:
            try:
                value, end = decoder.raw_decode(text, start)
            except (ValueError, RecursionError):
                end = text.rfind("}", start) + 1 or len(text)
                yield _Stated(start, end, _loose_verdict(text[start:end]))
                return
            values = [given for key, given in value.items() if _OBJECT_KEY.fullmatch(_bare(key))]
            asked = value.get("preferred", values[-1] if values else None)
            told = next((value[key] or "" for key in _EXPLANATION_KEYS if key in value), None)
            verdict = _value(_bare(asked)) if isinstance(asked, str) else None
            explanation = told if told is None or isinstance(told, str) else ""
            yield _Stated(start, end, verdict or "unparsed" if values else None, explanation)
        found = _OPENS.search(text, end)


def _loose_verdict(text: str) -> Verdict:
    """The verdict of an object that JSON cannot read: its last entry, and the only such one."""
    found = _LOOSE_LAST.search(text)
    if not found or len(_LOOSE_KEY.findall(text)) > 1:
        return "unparsed"
    return _value(_bare(found["value"] or found["bare"])) or "unparsed"


def _storable(text: str) -> str:
    """No blanks around, and no half of a surrogate pair, which an escape of JSON may hold."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text).strip()
