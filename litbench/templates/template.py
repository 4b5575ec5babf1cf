"""Template: the fixed text around a prompt and two stories, checked when it is loaded.

A file is fixed, with a text and the form of its answer, or a family, with criteria alone. What
families share, and the words that ask for each form, stand in `frame.yaml`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from litbench.config import build, nearest, read_yaml
from litbench.errors import ConfigError
from litbench.templates.delimiters import without_delimiters
from litbench.templates.forms import AnswerForm, Label

SLOTS = ("prompt", "story_a", "story_b")
# A name in braces; the braces of JSON hold quotes or nothing and pass through.
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_FOLDER = Path(__file__).parent
_FRAME = _FOLDER / "frame.yaml"


@dataclass(frozen=True)
class FixedFile:
    """The keys of a file with a whole text.

    Attributes:
        answer: the form of the answer that the text asks for.
        text: the text, with `{prompt}`, `{story_a}`, `{story_b}` and perhaps, behind them,
            `{hint}`.
        hint: what stands at `{hint}` for a judge that is told which story won, with `{preferred}`
            for its letter; a blind judge sees nothing there.
    """

    answer: AnswerForm
    text: str
    hint: str | None = None


@dataclass(frozen=True)
class FamilyFile:
    """The keys of a family's file.

    Attributes:
        criteria: who the judge is and what to go by; no placeholders.
    """

    criteria: str


@dataclass(frozen=True)
class FrameFile:
    """The keys of the frame.

    Attributes:
        text: the text, with `{criteria}` before the places of a fixed one and `{request}` behind.
        requests: what asks for each form of answer.
    """

    text: str
    requests: dict[AnswerForm, str]


@dataclass(frozen=True)
class Template:
    """A text with room for a prompt and two stories.

    Attributes:
        name: as it was loaded.
        path: its file.
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
        """The fixed text before the prompt, before story A, before story B, and after it.

        Models that count tokens put theirs together from these parts, so that a long story can be
        shortened and the question cannot.
        """
        before, to_first, to_second, after = self.pieces
        return before, to_first, to_second, after.replace("{hint}", "")

    def render(self, prompt: str, story_a: str, story_b: str) -> str:
        """The whole question.

        A placeholder inside a text stays text, and a line that could pass for one of the markers
        loses its equals signs; see `without_delimiters`.
        """
        before, to_first, to_second, after = self.parts()
        prompt, story_a, story_b = map(without_delimiters, (prompt, story_a, story_b))
        return before + prompt + to_first + story_a + to_second + story_b + after

    def hinted(self, preferred: Label) -> "Template":
        """The template of a judge that is told which story won.

        Raises:
            ConfigError: the template has no hint.
        """
        if self.hint is None:
            raise ConfigError(
                f"template {self.name} has no hint: add the key hint and put {{hint}} behind "
                "{story_b}, or ask without a hint"
            )
        told = self.hint.replace("{preferred}", preferred)
        *fixed, after = self.pieces
        pieces = cast(tuple[str, str, str, str], (*fixed, after.replace("{hint}", told)))
        return replace(self, pieces=pieces, hint=None)


def packaged_names() -> list[str]:
    """Names of the templates that come with LitBench, families among them, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml") if path != _FRAME)


def family_names() -> list[str]:
    """Names of the families that come with LitBench, sorted."""
    return [name for name in packaged_names() if "criteria" in read_yaml(_packaged(name))]


def template_files(name: str | None) -> dict[str, str]:
    """The file of a user's own template, by option; nothing for one that comes with LitBench."""
    return {} if name is None or name in packaged_names() else {"template": name}


def load_template(name: str | Path, answer: AnswerForm | None = None) -> Template:
    """Load a template.

    Args:
        name: one that comes with LitBench, or the path of a YAML file; fixed or a family.
        answer: the form of the answer. A family asks for any, for an explanation when not given; a
            fixed template for its own only.

    Raises:
        ConfigError: there is no such template, its keys are wrong, it asks for another form, its
            criteria are empty or hold a placeholder, or a placeholder of its text is missing,
            unknown, twice there or in another place than where it belongs.
    """
    known = packaged_names()
    path = _packaged(str(name)) if str(name) in known else Path(name)
    if str(name) not in known and path.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"there is no template '{name}' ({nearest(str(name), known)}): name one of those, or "
            "the path of a .yaml file"
        )
    keys = read_yaml(path)
    if not keys.keys() & {"criteria", "text"}:
        raise ConfigError(
            f"template {path}: there is no criteria and no text, but {', '.join(keys) or 'nothing'}"
            ": give criteria, for a family that asks for any form of answer, or text and answer"
        )
    file = (
        _framed(keys, answer or "explanation", path) if "criteria" in keys else _fixed(keys, path)
    )
    if answer not in (None, file.answer):
        raise ConfigError(
            f"template {name} asks for the answer form {file.answer}, not {answer}: leave answer "
            f"out, or take a family, which asks for any form: {', '.join(family_names())}"
        )
    pieces = _cut(file.text, path)
    _check_hint(file, pieces[-1], path)
    return Template(str(name), path, file.answer, pieces, file.hint)


def _packaged(name: str) -> Path:
    return _FOLDER / f"{name}.yaml"


def _fixed(keys: Mapping[str, Any], path: Path) -> FixedFile:
    return build(FixedFile, keys, f"template {path}")


def _framed(keys: Mapping[str, Any], answer: AnswerForm, path: Path) -> FixedFile:
    """A family's criteria in the frame, with the request for one form of answer."""
    if "text" in keys:
        raise ConfigError(
            f"template {path}: it has criteria and a text: keep criteria, which stand in a text "
            "that all families share, or text and answer"
        )
    criteria = build(FamilyFile, keys, f"template {path}").criteria.strip()
    if not criteria:
        raise ConfigError(f"template {path}: criteria are empty: say what to go by")
    found = _PLACEHOLDER.search(criteria)
    if found is not None:
        raise ConfigError(
            f"template {path}: criteria hold the placeholder {found[0]}: leave it out, since "
            "prompt, stories and the form of the answer follow by themselves; or write a whole "
            "template with the keys text and answer"
        )
    frame = build(FrameFile, read_yaml(_FRAME), f"template {_FRAME}")
    if answer not in frame.requests:
        raise ConfigError(
            f"template {path}: there is no answer form '{answer}' "
            f"({nearest(answer, sorted(frame.requests))}): name one of those"
        )
    filled = {"criteria": criteria, "request": frame.requests[answer]}
    text = _PLACEHOLDER.sub(lambda match: filled.get(match[1], match[0]), frame.text)
    return FixedFile(answer, text)


def _cut(text: str, path: Path) -> tuple[str, str, str, str]:
    """The pieces of a text around its places."""
    found = [match[1] for match in _PLACEHOLDER.finditer(text)]
    if found not in (list(SLOTS), [*SLOTS, "hint"]) or text.rstrip().endswith("{story_b}"):
        named = ", ".join(f"{{{name}}}" for name in found) or "none"
        raise ConfigError(
            f"template {path}: the placeholders of its text are {named}: write {{prompt}}, "
            "{story_a} and {story_b} once each and in this order, then what to answer, with {hint} "
            "before it where the template has one"
        )
    pieces = []
    for name in SLOTS:
        piece, _, text = text.partition(f"{{{name}}}")
        pieces.append(piece)
    return cast(tuple[str, str, str, str], (*pieces, text))


def _check_hint(file: FixedFile, after: str, path: Path) -> None:
    if ("{hint}" in after) != (file.hint is not None):
        raise ConfigError(
            f"template {path}: the key hint and the placeholder {{hint}} belong together: give "
            "both, or neither"
        )
    if file.hint is not None and _PLACEHOLDER.findall(file.hint) != ["preferred"]:
        raise ConfigError(
            f"template {path}: hint must hold {{preferred}} once and no other placeholder"
        )
