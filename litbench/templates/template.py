"""Template: the fixed text around a prompt and two stories, checked when it is loaded."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from litbench.config import build, nearest, read_yaml
from litbench.errors import ConfigError
from litbench.templates.delimiters import without_delimiters
from litbench.templates.parser import AnswerForm, Label
from litbench.text import digest

SLOTS = ("prompt", "story_a", "story_b")
# A name in braces; the braces of JSON hold quotes or nothing and pass through.
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_FOLDER = Path(__file__).parent
_FRAME = _FOLDER / "frame.yaml"


@dataclass(frozen=True)
class FixedFile:
    """The keys of a file with a whole text, with `{prompt}`, `{story_a}` and `{story_b}`.

    `hint` stands at `{hint}` for a judge that is told which story won, with `{preferred}` for its
    letter; a blind judge sees nothing there.
    """

    answer: AnswerForm
    text: str
    hint: str | None = None


@dataclass(frozen=True)
class FamilyFile:
    """The keys of a family's file; `criteria` have no placeholders."""

    criteria: str


@dataclass(frozen=True)
class Template:
    """A text with room for a prompt and two stories.

    Attributes:
        answer: the form of the answer that the text asks for.
        pieces: the fixed text before, between and after the prompt, story A and story B.
        hint: what a judge that is told which story won reads besides, see `hinted`.
    """

    name: str
    path: Path
    answer: AnswerForm
    pieces: tuple[str, str, str, str]
    hint: str | None = None

    def parts(self) -> tuple[str, str, str, str]:
        """The fixed text before the prompt, before story A, before story B, and after it."""
        before, to_first, to_second, after = self.pieces
        return before, to_first, to_second, after.replace("{hint}", "")

    def render(self, prompt: str, story_a: str, story_b: str) -> str:
        """The whole question; a placeholder inside a text stays text."""
        before, to_first, to_second, after = self.parts()
        prompt, story_a, story_b = map(without_delimiters, (prompt, story_a, story_b))
        return before + prompt + to_first + story_a + to_second + story_b + after

    def hinted(self, preferred: Label) -> "Template":
        """The template of a judge that is told which story won."""
        if self.hint is None:
            raise ConfigError(
                f"template {self.name} has no hint: add the key hint, and {{hint}} to its text"
            )
        told = self.hint.replace("{preferred}", preferred)
        *fixed, after = self.pieces
        pieces = cast(tuple[str, str, str, str], (*fixed, after.replace("{hint}", told)))
        return replace(self, pieces=pieces, hint=None)


def packaged_names() -> list[str]:
    """Names of the packaged templates, families among them, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml") if path != _FRAME)


def family_names() -> list[str]:
    """Names of the packaged families, sorted."""
    return [n for n in packaged_names() if "criteria" in read_yaml(_FOLDER / f"{n}.yaml")]


def template_files(name: str | None) -> dict[str, str]:
    """The file of a user's own template, by option; nothing for a packaged one."""
    return {} if name is None or name in packaged_names() else {"template": name}


def load_template(name: str | Path, answer: AnswerForm | None = None) -> Template:
    """Load a packaged template or a YAML file.

    Args:
        name: of a packaged template, or the path of a file.
        answer: form of the answer. A family asks for any, for an explanation when not given; a
            fixed template for its own only.

    Raises:
        ConfigError: there is no such template, or its keys or placeholders are wrong.
    """
    known = packaged_names()
    path = _FOLDER / f"{name}.yaml" if str(name) in known else Path(name)
    if str(name) not in known and path.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"there is no template '{name}' ({nearest(str(name), known)}): name one of those, or "
            "the path of a .yaml file"
        )
    keys = read_yaml(path)
    if "criteria" in keys:
        file = _framed(build(FamilyFile, keys, f"template {path}"), answer or "explanation", path)
    else:
        file = build(FixedFile, keys, f"template {path}")
    if answer not in (None, file.answer):
        raise ConfigError(
            f"template {name} asks for the answer form {file.answer}, not {answer}: leave answer "
            f"out, or take a family, which asks for any form: {', '.join(family_names())}"
        )
    found = [match[1] for match in _PLACEHOLDER.finditer(file.text)]
    expected = [*SLOTS, *(["hint"] if file.hint is not None else [])]
    told = [] if file.hint is None else _PLACEHOLDER.findall(file.hint)
    if (
        found != expected
        or told not in ([], ["preferred"])
        or file.text.rstrip().endswith("{story_b}")
    ):
        named = ", ".join(f"{{{one}}}" for one in found) or "none"
        raise ConfigError(
            f"template {path}: the placeholders of its text are {named}: write {{prompt}}, "
            "{story_a} and {story_b} once each and in this order, then what to answer; with a key "
            "hint, which holds {preferred}, also {hint} before the answer"
        )
    pieces, text = [], file.text
    for slot in SLOTS:
        piece, _, text = text.partition(f"{{{slot}}}")
        pieces.append(piece)
    whole = cast(tuple[str, str, str, str], (*pieces, text))
    return Template(str(name), path, file.answer, whole, file.hint)


def _framed(family: FamilyFile, answer: AnswerForm, path: Path) -> FixedFile:
    """A family's criteria in the frame, with the request for one form of answer."""
    criteria = family.criteria.strip()
    if not criteria or _PLACEHOLDER.search(criteria):
        raise ConfigError(
            f"template {path}: criteria are empty or hold a placeholder: say what to go by; "
            "prompt, stories and the form of the answer follow by themselves"
        )
    frame: dict[str, Any] = read_yaml(_FRAME)
    if answer not in frame["requests"]:
        raise ConfigError(
            f"template {path}: there is no answer form '{answer}' "
            f"({nearest(answer, sorted(frame['requests']))}): name one of those"
        )
    filled = {"criteria": criteria, "request": frame["requests"][answer]}
    text = _PLACEHOLDER.sub(lambda match: filled.get(match[1], match[0]), frame["text"])
    return FixedFile(answer, text)


def assign_positions(pair_ids: Sequence[str], seed: int) -> list[bool]:
    """Assign the chosen story to position A or B, at random and exactly balanced.

    Pairs are sorted by a hash of the seed and their id; the chosen story is A in the first half.

    Returns:
        Whether the chosen story stands as A; shape (n,), true for n / 2 of them, rounded up.
    """
    shuffled = sorted(range(len(pair_ids)), key=lambda place: digest(seed, pair_ids[place]))
    first_half = set(shuffled[: (len(shuffled) + 1) // 2])
    return [place in first_half for place in range(len(pair_ids))]
