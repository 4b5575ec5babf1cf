"""Rubrics: a question about one text, the criteria to rate, and how a reply is read.

    rubric = load_rubric("story")
    question = rubric.render({"prompt": prompt, "text": story}, code)
    ratings = rubric.read(reply, code)
    grade = rubric.grade(ratings)

A rubric is a YAML file. Its `text` contains `{text}`, usually `{prompt}`, and `{criteria}`, which
becomes one line per criterion; `{lower_is_better}` becomes the names of the reversed criteria, and
`{code}` the code of the question (`litbench.raters.templates.parser`). Any other placeholder must
be given to `render`. The reply has one of four forms:

- `lines`: lines such as `Pacing [{code}]: 12`, or a table whose rows have the code;
- `tags`: lines such as `<Pacing>4</Pacing> [{code}]`;
- `brackets`: one number such as `Score [{code}]: [[8]]`, for a rubric with one criterion;
- `json`: an object that maps criteria to numbers and ends with the key `code`.

`litbench.raters.templates.ratings` reads it.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from litbench.raters.templates.delimiters import without_delimiters
from litbench.raters.templates.ratings import Form, canonical, published_ratings, read_ratings
from litbench.raters.templates.template import PLACEHOLDER, fill, with_code
from litbench.runs.config import build, nearest, read_yaml
from litbench.runs.errors import ConfigError

_FOLDER = Path(__file__).parent / "rubrics"
_ANCHORS = re.compile(r"[;,] (?:only )?(?=\d+ = )")
# Typical length of the reasoning before the ratings, for estimates.
_EXAMPLE_REASONS = "The text is rated criterion by criterion, with a reason for each. " * 24
_REPAIRS = {
    "lines": "Reply with the line [Scores] and the lines of ratings below it only",
    "tags": "Reply with the ratings in their tags only",
    "brackets": "Reply with the last line only: Score [{code}]: [[number]]",
    "json": 'Reply with the JSON object only: {"...": 0, "code": "{code}"}',
}


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
        """The question of `about`, and its text for ratings, as in `... ; 1 = dull; 5 = fine`."""
        question, *anchors = _ANCHORS.split(self.about)
        pieces = (anchor.partition(" = ") for anchor in anchors)
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
        ours = {"criteria", "lower_is_better", "code"}
        return frozenset(PLACEHOLDER.findall(self.text)) - ours

    @cached_property
    def _by_name(self) -> dict[str, Criterion]:
        return {canonical(criterion.name): criterion for criterion in self.criteria}

    @property
    def is_coded(self) -> bool:
        """Whether the question asks for a code."""
        return "{code}" in self.text

    def render(self, texts: Mapping[str, str], code: str | None = None) -> list[tuple[str, str]]:
        """Return the question as (role, text) messages; placeholders inside texts stay."""
        if missing := self.placeholders - set(texts):
            raise ConfigError(f"rubric {self.name} needs {', '.join(sorted(missing))}")
        filled = {
            name: text if self.is_plain else without_delimiters(text)
            for name, text in texts.items()
        }
        filled["criteria"] = "\n".join(
            f"- {criterion.name}{f': {criterion.about}' if criterion.about else ''}"
            for criterion in self.criteria
        )
        lower = [criterion.name for criterion in self.criteria if criterion.reversed]
        filled["lower_is_better"] = ", ".join(lower)
        system = [("system", self.system)] if self.system else []
        return [*system, ("user", fill(with_code(self.text, code), filled))]

    def repair(self, code: str | None) -> str:
        """The request for the ratings alone, after a reply without all of them."""
        text = f"{with_code(_REPAIRS[self.form], code)}. Rate each criterion exactly once."
        has_lines = code is not None and self.form in ("lines", "tags")
        return f"{text} Write the code [{code}] on each of these lines." if has_lines else text

    def read(
        self, reply: str, code: str | None = None, *, as_published: bool = False
    ) -> dict[str, Rating]:
        """Return the rating of every criterion of a reply.

        A reply without a block that counts (`read_ratings`) is unparsed as a whole; where a rating
        is off the scale, the others are unparsed. Names match without case, Markdown, numbers,
        spaces and hyphens.

        Args:
            reply: the reply, without reasoning.
            code: the code that the question asked for; None if it asked for none.
            as_published: read as the benchmarks' own programs do: `lines` keeps names as they are
                written, unknown ones too, and clamps numbers to the scale; `tags` takes the first
                integer of each tag and nothing if one is missing; `brackets` takes the first
                number.
        """
        missing = {criterion.name: Rating(None, "unparsed") for criterion in self.criteria}
        if as_published and self.form != "json":
            names = [criterion.name for criterion in self.criteria]
            published = published_ratings(reply, self.form, names, self.lowest, self.highest)
            return missing | {name: Rating(number) for name, number in published.items()}
        numbers = read_ratings(reply, self.form, list(self._by_name), self.highest, code)
        if not numbers:
            return missing
        read = {criterion.name: numbers[key] for key, criterion in self._by_name.items()}
        off_scale = {
            criterion.name: Rating(None, "off_scale")
            for criterion in self.criteria
            if not self.lowest <= read[criterion.name] <= self.highest
            or (criterion.allowed and read[criterion.name] not in criterion.allowed)
        }
        return missing | (off_scale or {name: Rating(number) for name, number in read.items()})

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

    def example(self, code: str | None = None) -> str:
        """A reply of usual length that rates every criterion in the middle of the scale."""
        middle = {
            criterion.name: (criterion.allowed or [(self.lowest + self.highest) // 2])[0]
            for criterion in self.criteria
        }
        lines = {
            "lines": "[Scores]\n" + "\n".join(f"{k} [{{code}}]: {n:g}" for k, n in middle.items()),
            "tags": "\n".join(f"<{k}>{n:g}</{k}> [{{code}}]" for k, n in middle.items()),
            "brackets": "".join(f"Score [{{code}}]: [[{n:g}]]" for n in middle.values()),
            "json": json.dumps({**middle, "code": "{code}"}),
        }
        return f"{_EXAMPLE_REASONS}\n{with_code(lines[self.form], code)}"


@cache
def _packaged() -> dict[str, dict[str, Any]]:
    """The keys of the packaged rubrics, by name.

    A file with `rubrics` has several rubrics of one criterion, which share its other keys: `logic`
    in `tow.yaml` is `tow_logic`.
    """
    packaged = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        shared = {**read_yaml(path), "name": path.stem, "path": path}
        rubrics = shared.pop("rubrics", None)
        if rubrics is None:
            packaged[path.stem] = shared
            continue
        for criterion, entry in rubrics.items():
            name = f"{path.stem}_{criterion}"
            packaged[name] = {
                **shared,
                "name": name,
                "highest": entry.get("highest", shared["highest"]),
                "text": shared["text"].replace("{scale}", entry["scale"]),
                "criteria": [{"name": criterion, "about": entry["about"]}],
            }
    return packaged


def packaged_rubrics() -> list[str]:
    """Sorted names of the packaged rubrics."""
    return sorted(_packaged())


def rubric_files(name: str) -> dict[str, str]:
    """The file of a user's rubric, by the name of its option; empty for a packaged rubric."""
    return {} if name in packaged_rubrics() else {"rubric": name}


def load_rubric(name: str | Path) -> Rubric:
    """Load a packaged rubric or a YAML file."""
    names, path = packaged_rubrics(), Path(name)
    if str(name) in names:
        content = dict(_packaged()[str(name)])
    elif path.suffix in (".yaml", ".yml"):
        content = {**read_yaml(path), "name": path.stem, "path": path}
    else:
        raise ConfigError(
            f"unknown rubric '{name}' ({nearest(str(name), names)}): use a packaged rubric or the "
            "path of a .yaml file"
        )
    where = f"rubric {content['path']}"
    if isinstance(criteria := content.get("criteria"), list):
        content["criteria"] = tuple(
            build(
                Criterion,
                {"name": entry} if isinstance(entry, str) else entry,
                f"{where}: criteria",
            )
            for entry in criteria
        )
    rubric = build(Rubric, content, where)
    return replace(rubric, text=rubric.text.strip())
