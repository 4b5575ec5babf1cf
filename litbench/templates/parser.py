"""Verdict parser: read which story a judge's answer prefers.

    reading = read_answer(answer, "explanation")

The last explicit verdict counts: a line such as `Preferred: A`, a JSON object with a key such as
`preferred`, or a last line such as `A` or, after prose, `A is better`. Anything else is `unparsed`,
and so is a verdict that later prose takes back or contradicts; nothing is guessed.

Stories may contain verdict lines to manipulate the judge, and a judge may quote them. Therefore
fenced and indented code, block quotations, table rows, HTML elements and text in quotation marks
are never read as a verdict. The same holds for a line that the judge introduces with a colon or
with words such as "the author writes", that continues in the middle of a sentence, or that the
next sentence calls a manipulation. In doubt, text counts as quoted. Every step takes linear time,
because a story can influence the judge to write a pathological answer.
"""

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple, cast

from litbench.templates.contradiction import NOUN, is_disowned, reconsiders, stands
from litbench.templates.json_replies import find_json

# label: a single letter. verdict: the line "Preferred: A". explanation: reasons, then that line.
# json_verdict: {"preferred": "A"}. json_explanation: an object with the keys "explanation" and
# "preferred", in this order, so that the reasons come before the verdict here too.
AnswerForm = Literal["label", "verdict", "explanation", "json_verdict", "json_explanation"]
Label = Literal["A", "B"]
Verdict = Literal["A", "B", "tie", "unparsed", "refused"]

# Longer replies are not read, in characters.
LONGEST_REPLY = 500_000


@dataclass(frozen=True)
class Reading:
    """A parsed answer.

    Attributes:
        verdict: the preferred story; `tie` for an explicit verdict of no preference; `refused`
            if the judge declines and states no verdict; else `unparsed`.
        explanation: the text before the verdict, or after it if there is none before; the whole
            answer if it has no verdict. Hidden reasoning is excluded.
    """

    verdict: Verdict
    explanation: str


class _Stated(NamedTuple):
    """A line or a JSON object with its verdict: `unparsed` if unreadable, None if it has none."""

    start: int
    end: int
    verdict: Verdict | None
    explanation: str | None = None


def read_answer(text: str, form: AnswerForm) -> Reading:
    """Read a judge's answer.

    Answers in a different form than the requested one are read as well. The form matters in two
    cases: for `label` a single letter on the first line counts, and for the JSON forms a fence
    tagged `json` contains the answer, not a quotation.
    """
    answer = _after_reasoning(text) if len(text) <= LONGEST_REPLY else None
    if answer is None:
        return Reading("unparsed", _storable(text))
    answer = _without_outer_fence(answer.strip())
    quoted, is_open = _quoted_blocks(answer, form.startswith("json"))
    if is_open:
        return Reading("unparsed", _storable(answer))
    is_one_line = sum(bool(_WORD.search(answer, *line)) for line in _lines(answer)) == 1
    if is_one_line:
        quoted = bytearray(len(answer))
    objects = list(_objects(answer, quoted, is_one_line=is_one_line))
    hidden = bytearray(quoted)
    for item in objects:
        _mark(hidden, item.start, item.end)
    prose = _with_bare_values(_blanked(answer, hidden))
    for span in _between_marks(prose):
        _mark(quoted, *span)
    if is_one_line and not _WORD.search(_blanked(prose, quoted)):
        # Marks around the whole answer quote nobody.
        quoted = bytearray(len(answer))
    prose = _blanked(prose, quoted)
    stated = [item for item in objects if not quoted[item.start] and item.verdict is not None]
    stated = [*stated, *_stated_lines(prose, form)]
    own = []
    for item in sorted(stated, key=lambda item: item.start):
        introduced = _introduction(item, answer, prose)
        if introduced == "others":
            _mark(quoted, item.start, item.end)
        else:
            own.append(item._replace(verdict="unparsed") if introduced else item)
    final = _final_verdict(own, _blanked(prose, quoted), form)
    if final is None or final.verdict is None:
        declines = _REFUSAL.search(_folded(_blanked(answer, quoted)))
        return Reading("refused" if declines else "unparsed", _storable(answer))
    explanation = final.explanation
    if explanation is None:
        before = _CLOSED_LINE.split(answer[: final.start])[-1].strip().rstrip("`~")
        explanation = before or answer[final.end :]
    return Reading(final.verdict, _storable(explanation))


def split_verdict(answer: str) -> tuple[str, Label | None]:
    """Split an answer into explanation and label, for training.

    Stricter than `read_answer`: only lines that begin with `Preferred:` count, so that models learn
    the requested form. The last such line counts; the text after it is dropped.

    Returns:
        The explanation without the verdict line, and the label. If there is no verdict line, or
        the last one does not name one story: the whole answer and None.
    """
    lines = list(_VERDICT_LINE.finditer(answer))
    named = _NAMED.fullmatch(lines[-1]["named"]) if lines else None
    if named is None:
        return answer.strip(), None
    return answer[: lines[-1].start()].strip(), cast(Label, named["label"].upper())


def has_verdict_line(text: str) -> bool:
    """Whether any line begins with `Preferred:`, even if it names no story."""
    return _VERDICT_LINE.search(text) is not None


# Allows Markdown around the words, as in "**Preferred: Story B**", and the full-width colon
# (U+FF1A) of Chinese and Japanese keyboards.
_VERDICT_LINE = re.compile(
    r"(?:^|(?<=\r))[ \t*_#>`-]*preferred[ \t*_`]*[:\uff1a](?P<named>.*)$", re.I | re.M
)
_NAMED = re.compile(r"[\s*_`\"'(\[]*(?:story\s+)?(?P<label>[AB])[\s*_`\"')\].]*", re.I)

# Verdict words, matched after `_bare` has removed the markup.
_KEY = (
    r"(?:(?:my|the) )?(?:(?:final|overall) )?"
    r"(?:preferred|preference|verdict|answer|winner|choice|decision|judge?ment|better"
    rf"|bevorzugt|préférée?|preferid[ao]|偏好|首选|答案)(?: ?(?:{NOUN}|one))?"
)
# A story with an optional reason: "B — though A's imagery is lovely".
_REASON = r"(?P<reason>\Z|\s?[,;:.!–—].*| - .*| (?:because|since|for|over|rather than) .*)"
_VALUE = re.compile(rf"(?:(?:the )?{NOUN} ?)?(?P<label>[AB]){_REASON}", re.I | re.S)
_TIE = re.compile(
    r"(?:an? )?(?:tie|tied|draw|neither|both|either|equal|none|no preference)"
    rf"(?: (?:story|stories|of (?:them|the two)))?{_REASON}",
    re.I | re.S,
)
_KEYED = re.compile(rf"(?:\d{{1,2}}[.)] )?{_KEY}(?P<sign> ?[:=–—]| -(?= )| is:?(?= ))", re.I)
_IS_BETTER = re.compile(
    rf"(?:(?:the )?{NOUN} )?(?P<label>[AB]) is (?:clearly |overall )?(?:the )?"
    rf"(?:better|preferred|stronger)(?: (?:{NOUN}|one))?(?: overall)?",
    re.I,
)
_SENTENCE_END = re.compile(r"[.!?。！？][\W_]*\Z")
_ARROW = re.compile(r"[-=]{1,3}>|[→⇒⟶➔➜➡]")
# Words of a judge that comes to its last verdict after others.
_CONCLUDES = re.compile(
    r"\b(?:overall|final(?:ly)?|conclu\w+|all in all|on balance|in sum|ultimately)\b", re.I
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
_CONTINUED = re.compile(r"[ \t]*+(?:\r\n?|\n)?[ \t]*+(?:[a-zà-ÿ]{2}|[,;’”)])")
# A line of three words or more without an end, and no item of a list, introduces a quotation.
_UNFINISHED = re.compile(r"\s*(?![-*+•#]|\w{1,2}[.)])(?:\w+\W+){2}\w[^\r\n]*(?<![.!?。！？…)])\Z")
# These words introduce the judge's own verdict.
_OWN_INTRODUCTION = re.compile(
    r"\b(?:my|overall|therefore|conclusion|verdict|preferred|preference|answer|json)\b", re.I
)
_WORD = re.compile(r"[^\W_]|[Ⓐ-ⓩ]")
# Markup, LaTeX commands, and an opening bracket or quotation mark after a story's letter.
_TAGS = re.compile(r"<(?:[/|]?[a-z][^<>]{0,80}|!--[^<>]*+)>|~~[^~\n]{1,80}~~|\\[a-z]*+", re.I)
_ASIDE = re.compile(r"(?<=\b[AB])\s*+[(\[\"“]++", re.I)
_SYMBOLS = re.compile(r"[^\w\s.,:;!?=|/'&+%–—-]|_|(?<!\w)'|'(?!\w)")


def _folded(text: str) -> str:
    """Normalise to NFKC, replace all white space by spaces and drop invisible characters."""
    compatible = unicodedata.normalize("NFKC", text).replace("’", "'")
    if compatible.isprintable():
        return compatible
    return "".join(
        " " if character.isspace() else character
        for character in compatible
        if character.isspace() or unicodedata.category(character) not in ("Cc", "Cf")
    )


def _folded_lines(text: str) -> str:
    return _TAGS.sub(" ", "\n".join(map(_folded, _LINE_BREAK.split(text))))


def _bare(text: str) -> str:
    """The words of a line without Markdown, HTML, LaTeX, brackets and quotation marks."""
    words = _ARROW.sub(":", _TAGS.sub(" ", _folded(text)))
    words = _SYMBOLS.sub(" ", _ASIDE.sub(", ", words))
    return " ".join(words.split()).strip(" .,;!-–—")


def _value(words: str, *, whole: bool = False) -> Verdict | None:
    """The verdict that `words` begin with, or consist of if `whole`; None if there is none."""
    match = _VALUE.fullmatch(words) or _TIE.fullmatch(words)
    if not match or (whole and match["reason"]):
        return None
    verdict = cast(Verdict, match["label"].upper()) if match.re is _VALUE else "tie"
    reason = match["reason"]
    return verdict if stands(reason, verdict) and not is_disowned(reason) else None


def _final_verdict(stated: Sequence[_Stated], prose: str, form: AnswerForm) -> _Stated | None:
    """The last verdict; None if it is ambiguous, or contradicted or taken back by later prose."""
    if not stated or stated[-1].verdict == "unparsed":
        return None
    *earlier, last = stated
    later = _folded_lines(prose[last.end :])
    if not stands(later, last.verdict or ""):
        return None
    others = [item for item in earlier if item.verdict != last.verdict]
    if not others:
        return last
    if _WORD.search(later):
        return None
    if others[-1].verdict == "unparsed":
        return last
    # Without words of a change of mind, one of the two may be a quotation or the question.
    between = _folded_lines(prose[others[-1].end : last.start])
    concludes = form != "label" and _CONCLUDES.search(prose, others[-1].end, last.end)
    is_changed = concludes or reconsiders(between)
    return last if is_changed and _WORD.search(between) else None


def _stated_lines(prose: str, form: AnswerForm) -> Iterator[_Stated]:
    """Verdicts stated by lines; quoted text is blank in `prose`."""
    own = [line for line in _lines(prose) if _WORD.search(prose, *line)]
    for index, (start, end) in enumerate(own):
        line = _bare(prose[start:end])
        keyed = _KEYED.match(line)
        verdict: Verdict | None = None
        if keyed:
            verdict = _value(line[keyed.end() :].lstrip(" :"))
        elif index == len(own) - 1 or (index == 0 and form == "label"):
            verdict = _value(line, whole=True)
            if index and not verdict and (better := _IS_BETTER.fullmatch(line)):
                # Below a heading such as "Style" it speaks of one criterion only.
                is_after_prose = _SENTENCE_END.search(prose[slice(*own[index - 1])].rstrip())
                verdict = cast(Verdict, better["label"].upper()) if is_after_prose else None
        if verdict or (keyed and not keyed["sign"].startswith(" is")):
            yield _Stated(start, end, verdict or "unparsed")


def _introduction(stated: _Stated, answer: str, prose: str) -> Literal["others", "unclear"] | None:
    """Whether the sentences around a verdict introduce, continue or disown it as someone else's.

    An unfinished sentence that introduces it and speaks of "I" leaves open whose it is.
    """
    before = prose[max(0, stated.start - 300) : stated.start].rstrip(" \t\r\n*_#=~-")
    line = _LINE_BREAK.split(before)[-1]
    is_introduced = line.endswith((":", "：")) or _UNFINISHED.match(line)
    if is_introduced and not _OWN_INTRODUCTION.search(line):
        return "unclear" if re.search(r"\bI\b", line) else "others"
    is_disputed = _CONTINUED.match(answer, stated.end) or is_disowned(
        _folded(prose[stated.end : stated.end + 300])
    )
    return "others" if is_disputed else None


# Hidden reasoning -----------------------------------------------------------------------------

_TAG = r"(?:think|thinking|thought)[>\]]"
_OPENED = re.compile(rf"\s*+[<\[]{_TAG}", re.I)
_CLOSED = re.compile(rf"[<\[]/{_TAG}", re.I)
_CLOSED_LINE = re.compile(rf"(?:\A|(?<=[\r\n]))[ \t]*+[<\[]/{_TAG}", re.I)
_MOST_CLOSINGS = 100
_PARAGRAPH_BREAK = re.compile(r"(?:\r\n?|\n)[ \t]*+(?:\r\n?|\n)")


def _after_reasoning(text: str) -> str | None:
    """The text after the reasoning at the start of an answer; None if the reasoning does not end.

    A closing tag inside a quotation (a quoted block, or quotation marks within a paragraph) belongs
    to the story and is ignored. Reasoning without an opening tag is kept: the verdict after it is
    the last one.
    """
    if not _OPENED.match(text):
        return text
    quoted, _ = _quoted_blocks(text, skip_json=False)
    breaks = [0, *(match.end() for match in _PARAGRAPH_BREAK.finditer(text)), len(text)]
    closings = []
    for match in islice(_CLOSED.finditer(text), _MOST_CLOSINGS):
        index = bisect_right(breaks, match.start())
        before = text[breaks[index - 1] : match.start()]
        after = text[match.end() : breaks[min(index, len(breaks) - 1)]]
        marked = any(before.count(o) > before.count(c) and c in after for o, c in _TYPOGRAPHIC)
        marked |= any(before.count(mark) % 2 == 1 and mark in after for mark in '"`')
        if not marked and not quoted[match.start()]:
            closings.append(match.end())
    start = 0
    while opened := _OPENED.match(text, start):
        start = next((end for end in closings if end > opened.end()), 0)
        if not start:
            return None
    return text[start:]


# Quotations: masks are 1 at every quoted character. ---------------------------------------------

_LINE_BREAK = re.compile(r"\r\n?|\n")
_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})(?P<info>.*)", re.S)
_OUTER_FENCE = re.compile(r"(?P<marks>`{3,}+|~{3,}+)[^\r\n]*+(?P<inside>.*)[\r\n](?P=marks)", re.S)
_QUOTED_LINE = re.compile(
    r" {0,3}(?:(?:[-*+]|\d{1,3}[.)])[ \t]+)?(?:[>|＞≫❯▶┃│]|&gt;)| {4}|\t", re.I
)
# Opening and closing marks of quotations.
_QUOTATION_MARKS = (
    "“” „“ „” ‘’ «» »« ‹› ›‹ 「」 『』 《》 〈〉 ‚‘ ‚’ ”” ‟” ‛’ "
    '〝〞 〝〟 ❝❞ ❛❜ ❮❯ ❰❱ ﹁﹂ ﹃﹄ ＂＂ ＇＇ ⹂“ „" “" "” ‚\''
)
_TYPOGRAPHIC = [tuple(marks) for marks in _QUOTATION_MARKS.split()]
# HTML elements that may contain the judge's verdict; all others count as quotations.
_OWN = r"(?:p|div|span|b|i|u|em|strong|html|body|answer|verdict|final|response|result|output|br|hr)"
_MARKS = [
    (re.compile(opens, re.I | re.M), re.compile(closes, re.I | re.M))
    for opens, closes in [
        *_TYPOGRAPHIC,
        *(("``", "''"), ('"', '"'), ("`", "`"), (r"(?<!\w)'(?=\S|$)", r"'(?!\w)"), ("<!--", "-->")),
        *(
            (r"(?<!\w)’(?=\S|$)", r"’(?!\w)"),
            (",,", "''|[\"”“]"),
            ("<<", ">>"),
            (r"^={5}", r"^={5}.*$"),
        ),
        (
            rf"[<\[](?!{_OWN}\b)[a-z][^<>\[\]\r\n]{{0,80}}[>\]]",
            rf"[<\[]/(?!{_OWN}\b)[a-z][\w-]{{0,30}}[>\]]",
        ),
    ]
]


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of every line; line breaks as in CommonMark, so U+2028 is not one."""
    start = 0
    for match in _LINE_BREAK.finditer(text):
        yield start, match.start()
        start = match.end()
    yield start, len(text)


def _without_outer_fence(text: str) -> str:
    """Remove a fence around the whole answer."""
    match = _OUTER_FENCE.fullmatch(text)
    if not match or re.search(rf"^ {{0,3}}{match['marks'][:3]}", match["inside"], re.M):
        return text
    return match["inside"]


def _quoted_blocks(text: str, skip_json: bool) -> tuple[bytearray, bool]:
    """Mask of fenced and indented code, block quotations and table rows.

    With `skip_json` only the first and last line of a fence tagged `json` are masked. The second
    value says whether the last fence is unclosed.
    """
    quoted = bytearray(len(text))
    marks, is_json = "", False
    for start, end in _lines(text):
        match = _FENCE.match(text[start:end])
        opens = closes = False
        if match and not marks:
            opens = "`" not in match["info"] or match["marks"][0] == "~"
        elif match:
            # A closing fence has the same character, at least the same length and no info string.
            closes = match["marks"].startswith(marks) and not match["info"].strip()
        if match and opens:
            marks = match["marks"]
            is_json = skip_json and match["info"].strip().casefold() == "json"
        inside = not is_json if marks else _QUOTED_LINE.match(text[start:end])
        if opens or closes or inside:
            _mark(quoted, start, end)
        if closes:
            marks = ""
    return quoted, bool(marks)


def _between_marks(text: str) -> Iterator[tuple[int, int]]:
    """Spans from the first opening to the last closing quotation mark or element of each kind.

    Text between two quotations is included, because it is often unclear whether it is quoted.
    """
    for opens, closes in _MARKS:
        first = opens.search(text)
        ends = [match.end() for match in closes.finditer(text)] if first else []
        if first and ends and ends[-1] > first.end():
            yield first.start(), ends[-1]


def _with_bare_values(text: str) -> str:
    """Replace quotation marks that enclose only the value of a verdict line by spaces.

    They stay where an earlier quotation mark is open: then the line may end a quotation.
    """
    pieces, end = [], 0
    marks: Counter[str] = Counter()
    for match in _QUOTED_VALUE.finditer(text):
        start, stop = match.span("value")
        marks.update(re.findall(f"[{_VALUE_MARKS}]", text[end:start]))
        is_open = (
            marks['"'] % 2
            or marks["`"] % 2
            or any(
                marks[opens] > marks[closes]
                for opens, closes in ("“”", "„“", "«»", "‹›", "「」", "『』")
            )
        )
        value = match["value"]
        pieces += [text[end:start], value if is_open else re.sub(f"[{_VALUE_MARKS}]", " ", value)]
        if is_open:
            marks.update(value)
        end = stop
    return "".join([*pieces, text[end:]])


def _mark(mask: bytearray, start: int, end: int) -> None:
    mask[start:end] = b"\1" * (end - start)


def _blanked(text: str, mask: bytearray) -> str:
    """Replace every masked character except line breaks by a space."""
    if not any(mask):
        return text
    return "".join(
        " " if hidden and character not in "\r\n" else character
        for character, hidden in zip(text, mask, strict=True)
    )


# Objects --------------------------------------------------------------------------------------

_QUOTE = "[\"'“”]"
_VALUE_MARKS = "\"'`“”„‘’‚«»‹›「」『』"
_QUOTED_VALUE = re.compile(
    rf"(?:\A|(?<=[\r\n]))[ \t*_#-]*+{_KEY}[ *_]*+(?:[:：=–—→-]>?| is)[ \t*_:]*+"
    rf"(?P<value>[{_VALUE_MARKS}]{{1,3}}(?:{NOUN} ?)?[AB][.,]?[{_VALUE_MARKS}]{{1,3}})(?!\w)",
    re.I,
)
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


def _objects(text: str, quoted: bytearray, *, is_one_line: bool) -> Iterator[_Stated]:
    """JSON objects that start a line outside of quoted blocks, with their verdicts, if any.

    After prose the value may be a list of one. If an object is not valid JSON, the rest of the
    answer is treated as part of it.
    """
    for start, end, value, is_broken in find_json(text, _OPENS):
        if quoted[start]:
            continue
        if is_broken:
            behind = text.rfind("}", start) + 1 or len(text)
            yield _Stated(start, behind, _loose_verdict(text[start:behind]))
            return
        values = [entry for key, entry in value.items() if _OBJECT_KEY.fullmatch(_bare(key))]
        preferred = value.get("preferred", values[-1] if values else None)
        if isinstance(preferred, list) and len(preferred) == 1 and not is_one_line:
            preferred = preferred[0]
        reasons = next((value[key] or "" for key in _EXPLANATION_KEYS if key in value), None)
        verdict = _value(_bare(preferred)) if isinstance(preferred, str) else None
        explanation = reasons if reasons is None or isinstance(reasons, str) else ""
        yield _Stated(start, end, verdict or "unparsed" if values else None, explanation)


def _loose_verdict(text: str) -> Verdict:
    """The verdict of invalid JSON: the value of the last entry, if no other entry is a verdict."""
    match = _LOOSE_LAST.search(text)
    if not match or len(_LOOSE_KEY.findall(text)) > 1:
        return "unparsed"
    return _value(_bare(match["value"] or match["bare"])) or "unparsed"


def _storable(text: str) -> str:
    """Strip the text and replace lone surrogates, which JSON escapes may contain."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text).strip()
