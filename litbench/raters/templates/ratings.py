"""Ratings parser: read the numbers of a rubric's criteria from a judge's reply.

Ratings are read from blocks: a JSON object, or consecutive lines that rate criteria. A block counts
if it rates every criterion exactly once. With a code (`litbench.raters.templates.parser`), only
lines with it, or objects whose last value it is, are read, and all of them must agree. Without one,
the block must end the reply, and no other rating may differ, anywhere and quoted or not. Every step
takes linear time.
"""

import itertools
import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from litbench.raters.templates.json_replies import find_json
from litbench.raters.templates.parser import CODE, LONGEST_REPLY

Form = Literal["lines", "tags", "brackets", "json"]

# A number, optionally with what it is out of; no unit, and no other number behind it.
_OUT_OF = r"\s*+(?:\(\s*+)?(?:(?:points?|stars?)\s++)?(?:/|(?:out\s++)?of\b)\s*+"
_NUMBER = re.compile(
    rf"([-+]?\d{{1,9}}(?:\.\d{{1,9}})?)(?:{_OUT_OF}(\d{{1,9}}))?(?![a-z_]|\s*[%‰^±×+?→<>]|\D*\d)",
    re.I,
)
# A scale before the number, as in "10分制：7".
_SCALE = re.compile(r"\A\W*+(?:满分)?\d{1,3}\s*(?:分制?|点満点|[- ]point scale)\s*:", re.I)
# Characters that NFKC would turn into digits of another value, such as the exponent of 1².
_NO_DIGITS = re.compile("[²³¹\u2070-\u209f¼-¾⅐-⅟↉]")
_MARKS = "*_`[]()<>\"' \t\n"
_SEPARATOR = re.compile(r"[:→]|\s[-–—=]+>?\s|=")
_IN_BRACKETS = re.compile(r"\([^()]{0,80}\)")
_BRACKETS = re.compile(r"\[\[\s*([-+]?\d{1,9}(?:\.\d{1,9})?)\s*\]\]")
_TAG = re.compile(r"<([^<>/]{1,100})>([^<>]{0,100})</\1>")
# Headings of a table's column of ratings, and of its other columns.
_SCORE_HEADING = re.compile("score|rating|grade|评分|得分|分数|打分", re.I)
_OTHER_HEADING = re.compile("max|weight|out of|scale|range|满分|权重", re.I)
# The value of a line that rates begins with a number.
_BEGINS = re.compile(r"[\W_]*(?:满分)?\d")
_FIRST_KEY = re.compile(r'\{\s*"([^"]{1,200})"\s*:')
# Names, canonical where they are compared, and values.
_Pairs = list[tuple[str, Any]]


def canonical(name: str) -> str:
    """A criterion's name without case, Markdown, leading numbers, spaces and punctuation."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return re.sub(r"[\W_]+", "", folded).lstrip("0123456789")


def read_ratings(
    reply: str, form: Form, names: Sequence[str], highest: float, code: str | None
) -> dict[str, float]:
    """The number of every criterion of a reply; empty if no block counts.

    Args:
        reply: the reply, without reasoning.
        form: form of the reply.
        names: canonical names of the criteria.
        highest: highest rating of the scale.
        code: the code that the question asked for; None if it asked for none.
    """
    if len(reply) > LONGEST_REPLY:
        return {}
    text = unicodedata.normalize("NFKC", _NO_DIGITS.sub("^", reply))
    parts = _objects(text, code) if form == "json" else _line_blocks(text, form, names, code)
    # The criteria that each block rates.
    blocks = [
        ([(k, _number(value, highest)) for k, value in pairs if k in names], is_end)
        for pairs, is_end in parts
    ]
    blocks = [block for block in blocks if block[0]]
    last, is_end = blocks[-1] if blocks else ([], False)
    numbers = {name: number for name, number in last if number is not None}
    is_settled = is_end and len(last) == len(numbers) == len(names)
    is_settled &= all(n in (None, numbers.get(k)) for pairs, _ in blocks for k, n in pairs)
    return numbers if is_settled else {}


def _objects(text: str, code: str | None) -> Iterator[tuple[_Pairs, bool]]:
    """JSON objects, and whether each ends the text; with a code, those whose last value it is.

    A broken one agrees with none.
    """
    last_word = max((match.start() for match in re.finditer(r"\w", text)), default=0)
    for match in find_json(text):
        key = _FIRST_KEY.match(text, match.start) if match.is_broken else None
        pairs = [(key[1], math.nan)] if key else list(_leaves(match.content))
        if code is None or (pairs and code in str(pairs[-1][1]).casefold()):
            is_end = code is not None or match.end > last_word
            yield [(canonical(name), value) for name, value in pairs], is_end


def _line_blocks(
    text: str, form: Form, names: Sequence[str], code: str | None
) -> Iterator[tuple[_Pairs, bool]]:
    """Lines that rate criteria, up to another or an empty line, and whether they end the text.

    With a code, the lines with it are one block, in which equal ratings count once.
    """
    block: _Pairs = []
    headings: list[str] = []
    if form == "tags":
        text = _TAG.sub(lambda tag: " ".join(tag[0].split()), text)
    # A recorded answer has the code of an unknown question.
    marker = re.compile(rf"\[{CODE}\]" if code is None else rf"[\[(]?{code}[\])]?", re.I)
    for line in text.strip().splitlines():
        own, n_markers = marker.subn("", line)
        pairs = _pairs(own, form, names, headings) if code is None or n_markers else []
        is_other = not pairs and re.search(r"[^\W_]", line)
        if is_other and not block and "|" in line:
            headings = _cells(line)
        elif code is None and (is_other or (block and not line.strip())):
            yield block, False
            block, headings = [], []
        block += pairs
    yield block if code is None else list(dict.fromkeys(block)), True


def _pairs(line: str, form: Form, names: Sequence[str], headings: list[str]) -> _Pairs:
    """Canonical names and values that a line states, of criteria or of anything else."""
    if form == "brackets":
        return [(names[0], number) for number in _BRACKETS.findall(line)]
    if form == "tags":
        return [(canonical(name), value) for name, value in _TAG.findall(line)]
    if "|" in line:
        return _pairs_of_row(_cells(line), headings)
    parts = [
        (canonical(_IN_BRACKETS.sub("", line[: match.start()])), line[match.end() :])
        for match in itertools.islice(_SEPARATOR.finditer(line), 3)
    ]
    pairs = [(name, value) for name, value in parts if _BEGINS.match(value)]
    return [pair for pair in pairs if pair[0] in names][:1] or pairs[:1]


def _cells(line: str) -> list[str]:
    """The cells of a row of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _pairs_of_row(cells: list[str], headings: list[str]) -> _Pairs:
    """The names that a row of a table may have, with its rating.

    The rating stands under a heading such as `Score`, else in the last column with a number that is
    no `Max` or `Weight`.
    """
    titles = headings if len(headings) == len(cells) else [""] * len(cells)
    numbers = [
        k
        for k, (title, cell) in enumerate(zip(titles, cells, strict=True))
        if k and _BEGINS.match(cell) and not _OTHER_HEADING.search(title)
    ]
    column = ([k for k in numbers if _SCORE_HEADING.search(titles[k])] or numbers)[-1:]
    return [(canonical(cell), cells[k]) for k in column for cell in cells[:k]]


def _number(value: Any, highest: float) -> float | None:
    """A JSON number, or the number at the start of a text; "4/5" is 4 of a scale up to 5."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    text = str(value)
    match = _NUMBER.match(_SCALE.sub("", text, count=1).strip(_MARKS))
    is_bound = re.match(r"\W*[<>]\s*\d", text) and not re.match(r"\W*<[^<>]{0,20}>", text)
    if match is None or is_bound or (match[2] is not None and float(match[2]) != highest):
        return None
    return float(match[1])


def _leaves(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of nested objects; an object with a "score" is its value."""
    if isinstance(content, dict):
        for name, value in content.items():
            if isinstance(value, dict):
                inner = next((value[key] for key in ("score", "rating") if key in value), None)
                yield from _leaves(value) if inner is None else [(name, inner)]
            else:
                yield name, value


# As published -----------------------------------------------------------------------------------


def published_ratings(
    reply: str, form: Form, names: Sequence[str], lowest: float, highest: float
) -> dict[str, float]:
    """The ratings that a benchmark's own program reads, see `Rubric.read`; not for `json`."""
    if form == "lines":
        return _published_lines(reply, lowest, highest)
    if form == "tags":
        return _published_tags(reply, names)
    match = re.search(r"\[\[(\d+)\]\]", reply)
    return {names[0]: float(match[1])} if match else {}


def _published_lines(reply: str, lowest: float, highest: float) -> dict[str, float]:
    # As longform-writing-bench, core/scoring.py: lines after a marker, until a rule or an end
    # marker; the name is the text before the first colon followed by a number.
    ignored = ("overall assessment", "summary", "reasoning", "critique", "feedback", "notes")
    markers = ("[Scores]", "--- Scores ---")
    has_marker = any(marker in reply for marker in markers)
    is_reading = not has_marker
    ratings: dict[str, float] = {}
    for line in map(str.strip, reply.splitlines()):
        if any(marker in line for marker in markers):
            is_reading = True
            continue
        if has_marker and ("---" in line or "[End Scores]" in line):
            is_reading = False
        parts = line.split(":") if is_reading else []
        for name, rest in itertools.pairwise(parts):
            number = re.match(r"\s*\[?(-?\d+(?:\.\d+)?)", rest)
            if name and number:
                if name.strip().lower() not in ignored:
                    value = float(number[1])
                    ratings[name.strip()] = min(max(value, lowest), highest)
                break
    return ratings


def _published_tags(reply: str, names: Sequence[str]) -> dict[str, float]:
    ratings = {}
    for name in names:
        # The first line with both tags; a regular expression would take quadratic time.
        start, end = f"<{name}>", f"</{name}>"
        rests = (line.partition(start)[2] for line in reply.split("\n"))
        texts = (rest.partition(end)[0] for rest in rests if end in rest)
        try:
            ratings[name] = float(int(next(texts, "")))
        except ValueError:
            ratings[name] = math.nan
    return {} if any(map(math.isnan, ratings.values())) else ratings
