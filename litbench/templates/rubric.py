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
from litbench.templates.json_replies import find_json
from litbench.templates.parser import LONGEST_REPLY
from litbench.templates.template import PLACEHOLDER, fill

Form = Literal["lines", "tags", "brackets", "json"]

_FOLDER = Path(__file__).parent / "rubrics"
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
_Stated = tuple[str, float | None]
# Reasons in words instead of a number.
_PROSE = re.compile(r"\W*(?:[^\W\d]+\W+){3,}[^\W\d]+\D*\Z")
_FIRST_KEY = re.compile(r'\{\s*"([^"]{1,200})"\s*:')
# A quotation of several lines.
_PASSAGE = re.compile(r"“[^“”\n]*+\n[^“”]*+”")
_ANCHORS = re.compile(r"[;,] (?:only )?(?=\d+ = )")
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

    @cached_property
    def parts(self) -> tuple[str, dict[float, str]]:
        """What `about` asks, and what it says of ratings, as in `... ; 1 = dull; 5 = fine`."""
        question, *anchors = _ANCHORS.split(self.about)
        pieces = (one.partition(" = ") for one in anchors)
        return question, {float(number): text for number, _, text in pieces}


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
        system = [("system", self.system)] if self.system else []
        return [*system, ("user", fill(self.text, filled))]

    def read(self, reply: str, *, as_published: bool = False) -> dict[str, Rating]:
        """Return the rating of every criterion that a reply states; the others are unparsed.

        Names match without case, Markdown, numbers, spaces and hyphens. If a criterion is rated
        twice and differently, one of the two may be quoted from the text, and nothing is read.
        Block quotations, and quotations of several lines, never count.
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

    def options(self, criterion: Criterion) -> list[float]:
        """The ratings that a person can give: those allowed, else whole numbers of the scale."""
        numbers = range(math.ceil(self.lowest), math.floor(self.highest) + 1)
        return criterion.allowed or [float(number) for number in numbers]

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

    def _agreed(self, stated: Iterable[_Stated]) -> dict[str, float | None]:
        """The number of every criterion; none at all if one is stated in two ways."""
        agreed: dict[str, float | None] = {}
        for name, number in stated:
            if name in self._by_name and agreed.setdefault(name, number) != number:
                return {}
        return agreed

    # Readers: canonical names with numbers, or None where no number can be read.

    def _lines(self, reply: str) -> Iterator[_Stated]:
        lines = [line for line in reply.splitlines() if line.strip()]
        first = next((k for k, line in enumerate(lines) if _SCORES.match(line)), 0)
        is_inside = is_quoted = False
        for before, line in itertools.islice(itertools.pairwise(["", *lines]), first, None):
            rating = self._line(line)
            # A marker or the first rating after other lines may follow an introduction.
            if _SCORES.match(line) or (rating and not is_inside):
                is_quoted = bool(_QUOTES.search(before)) and not _OWN.search(before)
            is_inside = rating is not None or _SCORES.match(line) is not None
            if rating and not is_quoted:
                yield rating

    def _line(self, line: str) -> _Stated | None:
        """The criterion that a line rates, and its number; None for other lines and for prose."""
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
                return None if _PROSE.match(rest) else (key, _number(rest, self.highest))
        return None

    def _tags(self, reply: str) -> Iterator[_Stated]:
        for tag, value in re.findall(r"<([^<>/]{1,100})>([^<>]{0,100})</\1>", reply):
            yield canonical(tag), _number(value, self.highest)

    def _brackets(self, reply: str) -> Iterator[_Stated]:
        # The first number after each word "score", else every number.
        after = re.split(r"\bscores?\b", reply, flags=re.I)[1:]
        numbers = [number for part in after for number in _BRACKETS.findall(part)[:1]]
        for number in numbers or _BRACKETS.findall(reply):
            yield canonical(self.criteria[0].name), float(number)

    def _json(self, reply: str) -> Iterator[_Stated]:
        for found in find_json(reply):
            # A truncated object, before one that may be the text's.
            if found.is_broken and (key := _FIRST_KEY.match(reply, found.start)):
                yield canonical(key[1]), None
            for name, value in _leaves(found.content):
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                number = float(value) if is_number else _number(str(value), self.highest)
                yield canonical(name), number

    def _published_lines(self, reply: str) -> dict[str, float]:
        # As longform-writing-bench, core/scoring.py: lines after a marker, until a rule or an end
        # marker; the name is the text before the first colon followed by a number.
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
    """The reply without quotations, in compatibility form."""
    text = unicodedata.normalize("NFKC", _PASSAGE.sub("", _NO_DIGITS.sub("^", reply)))
    return "\n".join(line for line in text.splitlines() if not re.match(r"\s*(?:>|&gt;)", line))


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
