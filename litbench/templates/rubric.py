"""Rubrics: a question about one text, the criteria to rate, and how a reply is read.

    rubric = load_rubric("story")
    question = rubric.render({"prompt": prompt, "text": story})
    ratings = rubric.read(reply)
    grade = rubric.grade(ratings)

A rubric is a YAML file. Its `text` contains `{text}`, usually `{prompt}`, and `{criteria}`, which
becomes one line per criterion; `{lower_is_better}` becomes the names of the reversed criteria. Any
other placeholder must be given to `render`. The reply has one of four forms:

- `lines`: lines such as `Pacing: 12`, after a line `[Scores]`;
- `tags`: `<Pacing>4</Pacing>`;
- `brackets`: one number such as `[[8]]`, for a rubric with one criterion;
- `json`: an object that maps criteria to numbers.
"""

import itertools
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from litbench.config import build, nearest, read_yaml
from litbench.errors import ConfigError
from litbench.templates.delimiters import without_delimiters
from litbench.templates.parser import LONGEST_REPLY

Form = Literal["lines", "tags", "brackets", "json"]

_FOLDER = Path(__file__).parent / "rubrics"
# A name in braces. The braces of JSON contain quotation marks, spaces or nothing and do not match.
PLACEHOLDER = re.compile(r"\{(\w+)\}")
# A number, optionally with what it is out of.
_OUT_OF = r"\s*(?:points?\s+|stars?\s+)?(?:/|(?:out\s+)?of\b)\s*"
# What makes it no number: a range such as 12-14 or "12 to 14", further digits, another fraction,
# a unit, a sentence such as "20 is too high".
_GOES_ON = (
    rf"\W{{0,3}}(?:[-–—~→]|->|to\b|or\b|and\b|&)\s*\d|[eE,:_]?[\d.]*\d|\s*/|{_OUT_OF}\d|\s+\d"
    r"|[a-z]|\s*[%‰^±×+?→]|\s*[-=]>|\s+(?!because\b|since\b|for\b|as\b|with\b|points?\b)[a-z]"
)
_NUMBER = re.compile(
    rf"([-+]?\d{{1,9}}(?:\.\d{{1,9}})?)(?:{_OUT_OF}(\d{{1,9}}))?(?!{_GOES_ON})", re.I
)
# A second number that corrects the first.
_CORRECTED = re.compile(
    r"\b(?:no|so|wait|rather|actually|sorry|mean|make|correct\w*|revis\w*|chang\w*|now|then|instead"
    r"|reduced|raised|lowered|should|minus|plus)\b\D{0,20}\d|(?:→|[-=]>)\s*\d",
    re.I,
)
# Characters that NFKC would turn into digits of another value, such as the exponent of 1².
_NO_DIGITS = re.compile("[²³¹\u2070-\u209f¼-¾⅐-⅟↉]")
_MARKS = "*_`[]()<>\"' \t\n"
_ROW = re.compile(r"\s*\|(.*)")
_SEPARATOR = re.compile(r"[:→]|\s[-–—=]+>?\s|=")
_RANGE = re.compile(r"\s*\([^()]{0,80}\)\W*\Z")
# Introduces what a story says: "The story ends with these lines:".
_QUOTES = re.compile(
    r"\b(?:says?|said|writes?|wrote|reads?|states?|prints?|ends?|closes?|claims?|contains?|includes?"
    r"|demands?|asks?|tells?|wants?|inserts?|quotes?|opens?|adds?|begs?)\b[^.!?]*\Z",
    re.I,
)
_OWN = re.compile(r"\b(?:my|overall|final)\b", re.I)
_SCORES = re.compile(r"^\W*(?:scores?|ratings?)\W*$", re.I)
_BRACKETS = re.compile(r"\[\[\s*([-+]?\d{1,9}(?:\.\d{1,9})?)\s*\]\]")
_LONGEST_NAME = 200
_Block = list[tuple[str, float | None]]
# Typical length of the reasoning before the ratings, for estimates.
_EXAMPLE_REASONS = "The text is rated criterion by criterion, with a reason for each. " * 24


@dataclass(frozen=True)
class Criterion:
    """One criterion of a rubric.

    Attributes:
        name: the name, as the reply should write it.
        about: what it means; shown in the list of criteria.
        reversed: whether lower is better.
        weight: weight in the grade.
        power: exponent applied to the rating, as a share of the scale, after reversing it.
        allowed: the allowed ratings; null for all numbers of the rubric's scale.
    """

    name: str
    about: str = ""
    reversed: bool = False
    weight: float = 1.0
    power: float = 1.0
    allowed: list[float] | None = None


class Rating(NamedTuple):
    """The rating of a criterion, null unless it was rated, and its outcome, as in RATINGS."""

    rating: float | None
    outcome: str = "rated"


@dataclass(frozen=True)
class Rubric:
    """A rubric; its fields are the keys of its file.

    Attributes:
        name: name of the file, without its suffix.
        form: form of the reply.
        lowest: lowest rating.
        highest: highest rating.
        text: the question.
        criteria: the criteria; in a file, a name alone or the keys of `Criterion`.
        system: text of a system message before the question.
        path: the file.
        is_plain: whether texts are inserted unchanged. Otherwise lines that look like the
            delimiters of our own rubrics are changed, see `without_delimiters`.
    """

    name: str
    form: Form
    lowest: float
    highest: float
    text: str
    criteria: tuple[Criterion, ...]
    system: str | None = None
    path: Path | None = None
    is_plain: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        where = f"rubric {self.path or self.name}"
        names = [canonical(criterion.name) for criterion in self.criteria]
        if "text" not in self.placeholders:
            raise ConfigError(f"{where}: its text has no {{text}}: add it where the text belongs")
        if not names or len(set(names)) < len(names) or "" in names:
            raise ConfigError(f"{where}: criteria need names that differ, and at least one")
        if not self.lowest < self.highest:
            raise ConfigError(f"{where}: lowest is {self.lowest}, highest is {self.highest}")
        if self.form == "brackets" and len(names) > 1:
            raise ConfigError(f"{where}: the form brackets has one criterion, not {len(names)}")
        if any(criterion.weight <= 0 or criterion.power <= 0 for criterion in self.criteria):
            raise ConfigError(f"{where}: weights and powers must be above 0")

    @cached_property
    def placeholders(self) -> frozenset[str]:
        """Names of the texts that `render` needs."""
        own = {"criteria", "lower_is_better"}
        return frozenset(PLACEHOLDER.findall(self.text)) - own

    @cached_property
    def _by_name(self) -> dict[str, Criterion]:
        return {canonical(criterion.name): criterion for criterion in self.criteria}

    def render(self, texts: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the question as (role, text) messages; placeholders inside texts stay."""
        if missing := self.placeholders - set(texts):
            raise ConfigError(f"rubric {self.name} needs {', '.join(sorted(missing))}")
        filled = {
            name: text if self.is_plain else without_delimiters(text)
            for name, text in texts.items()
        }
        filled["criteria"] = "\n".join(
            f"- {one.name}{f': {one.about}' if one.about else ''}" for one in self.criteria
        )
        lower = [criterion.name for criterion in self.criteria if criterion.reversed]
        filled["lower_is_better"] = ", ".join(lower)
        text = PLACEHOLDER.sub(lambda match: filled.get(match[1], match[0]), self.text)
        system = [("system", self.system)] if self.system else []
        return [*system, ("user", text)]

    def read(self, reply: str, *, as_published: bool = False) -> dict[str, Rating]:
        """Return the rating of every criterion that a reply states; the others are unparsed.

        Names match without case, Markdown, numbers, spaces and hyphens. Within a block the last
        line of a criterion binds. If two blocks disagree, one may be quoted from the text, and
        nothing is read, unless the last one alone is complete. Block quotations never count.
        `as_published` reads as the benchmarks' own programs do: `lines` keeps names as
        they are written, unknown ones too, and clamps numbers to the scale; `tags` takes the first
        integer of each tag and nothing if one is missing; `brackets` takes the first number.
        """
        if as_published and self.form != "json":
            found = getattr(self, f"_published_{self.form}")(reply)
            stated = {name: Rating(number) for name, number in found.items()}
        else:
            reply = _own_text(reply) if len(reply) <= LONGEST_REPLY else ""
            numbers = self._agreed(getattr(self, f"_{self.form}")(reply))
            stated = {
                criterion.name: self._rated(criterion, numbers[key])
                for key, criterion in self._by_name.items()
                if key in numbers
            }
        missing = {one.name: Rating(None, "unparsed") for one in self.criteria}
        return missing | stated

    def unread(self, outcome: str) -> dict[str, Rating]:
        """The ratings of a reply that cannot be read, such as a refusal."""
        return {criterion.name: Rating(None, outcome) for criterion in self.criteria}

    def grade(self, ratings: Mapping[str, Rating]) -> float | None:
        """The weighted mean of the known ratings, on the rubric's scale; None without any.

        Reversed ratings are turned round first. Unknown criteria have weight 1.
        """
        total = weights = 0.0
        width = self.highest - self.lowest
        for name, (rating, _) in ratings.items():
            if rating is None:
                continue
            criterion = self._by_name.get(canonical(name))
            if criterion is None or criterion.name.lower() != name.strip().lower():
                criterion = Criterion(name)
            value = self.highest - rating if criterion.reversed else rating - self.lowest
            total += criterion.weight * width * max(value / width, 0.0) ** criterion.power
            weights += criterion.weight
        return self.lowest + total / weights if weights else None

    def example(self) -> str:
        """A reply of usual length that rates every criterion in the middle of the scale."""
        middle = {
            one.name: (one.allowed or [(self.lowest + self.highest) // 2])[0]
            for one in self.criteria
        }
        lines = {
            "lines": "[Scores]\n" + "\n".join(f"{name}: {n:g}" for name, n in middle.items()),
            "tags": "\n".join(f"<{name}>{n:g}</{name}>" for name, n in middle.items()),
            "brackets": "".join(f"Score: [[{n:g}]]" for n in middle.values()),
            "json": json.dumps(middle),
        }
        return f"{_EXAMPLE_REASONS}\n{lines[self.form]}"

    def _rated(self, criterion: Criterion, number: float | None) -> Rating:
        if number is None:
            return Rating(None, "unparsed")
        is_allowed = criterion.allowed is None or number in criterion.allowed
        if not (self.lowest <= number <= self.highest and is_allowed):
            return Rating(None, "off_scale")
        return Rating(number)

    def _agreed(self, blocks: Iterable[_Block]) -> dict[str, float | None]:
        """The numbers of all blocks; none if two disagree, unless the last alone is complete."""
        agreed: dict[str, float | None] = {}
        for block in blocks:
            found = {name: number for name, number in block if name in self._by_name}
            is_disputed = any(
                number is not None and agreed.get(name) not in (None, number)
                for name, number in found.items()
            )
            is_complete = [
                all(one.get(name) is not None for name in self._by_name) for one in (agreed, found)
            ]
            if is_disputed and is_complete != [False, True]:
                return {}
            agreed = found if is_disputed else agreed | found
        return agreed

    # Readers: blocks of canonical names with numbers, or None where no number can be read.

    def _lines(self, reply: str) -> Iterator[_Block]:
        lines = [line for line in reply.splitlines() if line.strip()]
        first = next((k for k, line in enumerate(lines) if _SCORES.match(line)), 0)
        block: _Block = []
        is_inside = is_quoted = False
        for before, line in itertools.islice(itertools.pairwise(["", *lines]), first, None):
            rating = self._line(line)
            # A marker or the first rating after other lines begins a block.
            if _SCORES.match(line) or (rating and not is_inside):
                yield block
                block, is_inside = [], True
                is_quoted = bool(_QUOTES.search(before)) and not _OWN.search(before)
            elif rating is None:
                is_inside = False
            if rating and not is_quoted:
                block.append(rating)
        yield block

    def _line(self, line: str) -> tuple[str, float | None] | None:
        """The criterion that a line begins with, and its number; None if it names none."""
        row = _ROW.match(line)
        if row:
            cells = [cell for cell in row[1].split("|") if cell.strip(_MARKS)]
            pairs = list(itertools.pairwise(cells))[:2]
        else:
            pairs = [
                (line[: match.start()], line[match.end() :])
                for match in itertools.islice(_SEPARATOR.finditer(line), 3)
            ]
        for name, rest in pairs:
            key = canonical(_RANGE.sub("", name[:_LONGEST_NAME]))
            is_open = name.count('"') % 2 or name.count("“") > name.count("”")
            if key in self._by_name and len(name) <= _LONGEST_NAME and not is_open:
                return key, _number(rest, self.highest)
        return None

    def _tags(self, reply: str) -> Iterator[_Block]:
        block: dict[str, float | None] = {}
        for tag, value in re.findall(r"<([^<>/]{1,100})>([^<>]{0,100})</\1>", reply):
            name = canonical(tag)
            if name in block:
                yield list(block.items())
                block = {}
            if name in self._by_name:
                block[name] = _number(value, self.highest)
        yield list(block.items())

    def _brackets(self, reply: str) -> Iterator[_Block]:
        # The first number after each word "score", else the last number.
        after = re.split(r"\bscores?\b", reply, flags=re.I)[1:]
        numbers = [number for part in after for number in _BRACKETS.findall(part)[:1]]
        for number in numbers or _BRACKETS.findall(reply)[-1:]:
            yield [(canonical(self.criteria[0].name), float(number))]

    def _json(self, reply: str) -> Iterator[_Block]:
        for content in json_objects(reply):
            block: _Block = []
            for name, value in _leaves(content):
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                number = float(value) if is_number else _number(str(value), self.highest)
                block.append((canonical(name), number))
            yield block

    def _published_lines(self, reply: str) -> dict[str, float]:
        # As longform-writing-bench, core/scoring.py: lines after a marker, until a rule or an end
        # marker; the name is what stands before the first colon that a number follows.
        ignored = ("overall assessment", "summary", "reasoning", "critique", "feedback", "notes")
        markers = ("[Scores]", "--- Scores ---")
        has_marker = any(marker in reply for marker in markers)
        is_reading = not has_marker
        found: dict[str, float] = {}
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
                        found[name.strip()] = min(max(value, self.lowest), self.highest)
                    break
        return found

    def _published_tags(self, reply: str) -> dict[str, float]:
        found = {}
        for criterion in self.criteria:
            # The first line with both tags; a regular expression would take quadratic time.
            start, end = f"<{criterion.name}>", f"</{criterion.name}>"
            rests = (line.partition(start)[2] for line in reply.split("\n"))
            texts = (rest.partition(end)[0] for rest in rests if end in rest)
            try:
                found[criterion.name] = float(int(next(texts, "")))
            except ValueError:
                found[criterion.name] = math.nan
        return {} if any(map(math.isnan, found.values())) else found

    def _published_brackets(self, reply: str) -> dict[str, float]:
        match = re.search(r"\[\[(\d+)\]\]", reply)
        return {self.criteria[0].name: float(match[1])} if match else {}


def canonical(name: str) -> str:
    """A criterion's name without case, Markdown, leading numbers, spaces and punctuation."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return re.sub(r"[\W_]+", "", folded).lstrip("0123456789")


def _own_text(reply: str) -> str:
    """The reply without block quotations, in compatibility form."""
    text = unicodedata.normalize("NFKC", _NO_DIGITS.sub("^", reply))
    return "\n".join(line for line in text.splitlines() if not re.match(r"\s*(?:>|&gt;)", line))


def json_objects(reply: str) -> Iterator[Any]:
    """Yield the outermost JSON objects of a reply, in order."""
    decoder = json.JSONDecoder(strict=False)
    start = reply.find("{")
    failures = 0
    # A bound on failures keeps the time linear in texts that are full of braces.
    while start >= 0 and failures < 100:
        try:
            content, end = decoder.raw_decode(reply, start)
            yield content
        except (ValueError, RecursionError):
            end, failures = start + 1, failures + 1
        start = reply.find("{", end)


@cache
def _packaged() -> dict[str, dict[str, Any]]:
    """The keys of the packaged rubrics, by name.

    A file with `rubrics` has several rubrics of one criterion, which share its other keys: `logic`
    in `tow.yaml` is `tow_logic`.
    """
    found = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        shared = {**read_yaml(path), "name": path.stem, "path": path}
        rubrics = shared.pop("rubrics", None)
        if rubrics is None:
            found[path.stem] = shared
            continue
        for criterion, own in rubrics.items():
            name = f"{path.stem}_{criterion}"
            found[name] = {
                **shared,
                "name": name,
                "highest": own.get("highest", shared["highest"]),
                "text": shared["text"].replace("{scale}", own["scale"]),
                "criteria": [{"name": criterion, "about": own["about"]}],
            }
    return found


def packaged_rubrics() -> list[str]:
    """Sorted names of the packaged rubrics."""
    return sorted(_packaged())


def rubric_files(name: str) -> dict[str, str]:
    """The file of a user's rubric, by the name of its option; empty for a packaged rubric."""
    return {} if name in packaged_rubrics() else {"rubric": name}


def load_rubric(name: str | Path) -> Rubric:
    """Load a packaged rubric or a YAML file."""
    known, path = packaged_rubrics(), Path(name)
    if str(name) in known:
        content = dict(_packaged()[str(name)])
    elif path.suffix in (".yaml", ".yml"):
        content = {**read_yaml(path), "name": path.stem, "path": path}
    else:
        raise ConfigError(
            f"unknown rubric '{name}' ({nearest(str(name), known)}): use a packaged rubric or the "
            "path of a .yaml file"
        )
    where = f"rubric {content['path']}"
    if isinstance(criteria := content.get("criteria"), list):
        content["criteria"] = tuple(
            build(Criterion, {"name": one} if isinstance(one, str) else one, f"{where}: criteria")
            for one in criteria
        )
    rubric = build(Rubric, content, where)
    return replace(rubric, text=rubric.text.strip())


def _number(text: str, highest: float) -> float | None:
    """The number at the start of a text; "4/5" is 4 if the scale ends at 5."""
    match = _NUMBER.match(text.strip(_MARKS))
    if match is None or (match[2] is not None and float(match[2]) != highest):
        return None
    is_bound = re.match(r"\W*[<>]\s*\d", text) and not re.match(r"\W*<[^<>]{0,20}>", text)
    if is_bound or _CORRECTED.search(text, match.end()):
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
