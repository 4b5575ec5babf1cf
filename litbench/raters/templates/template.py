"""Template: the fixed text around a prompt and its stories, validated on loading."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from litbench.data.text import digest
from litbench.raters.templates.delimiters import without_delimiters
from litbench.raters.templates.parser import LETTERS, AnswerForm, read_answer
from litbench.runs.config import build, nearest, read_yaml
from litbench.runs.errors import ConfigError

Slot = Literal["prompt", "story_a", "story_b", "stories"]
SLOTS: tuple[Slot, ...] = ("prompt", "story_a", "story_b")
_ALL_SLOTS: tuple[Slot, ...] = (*SLOTS, "stories")
# A name in braces. The braces of JSON contain quotation marks, spaces or nothing and do not match.
PLACEHOLDER = re.compile(r"\{(\w+)\}")
# What a question without a code leaves out: the placeholder of the code in brackets or as the value
# of a JSON key, and other lines with it.
_CODE_PLACE = re.compile(
    r'(?:, the code|、代码)? \[\{code\}\]|, "code": "\{code\}"|"code": "\{code\}", '
)
_CODE_LINE = re.compile(r"^.*\{code\}.*\n?", re.M)
# Typical length of an explanation in words, as in the paper's Table 3.
_REASONS: dict[AnswerForm, int] = {"explanation": 295, "json_explanation": 310}
_FOLDER = Path(__file__).parent
_FRAME = _FOLDER / "frame.yaml"


@dataclass(frozen=True)
class FixedFile:
    """The keys of a fixed template.

    `text` contains `{story_a}` and `{story_b}`, and `{prompt}` unless the prompt is not shown. With
    `{code}`, as in `Preferred [{code}]: A`, only lines with this code are read.

    `{stories}` in place of `{story_a}` and `{story_b}` asks about several stories. It needs
    `{code}` and `{letters}`, the letters to choose from.
    """

    answer: AnswerForm
    text: str


@dataclass(frozen=True)
class FamilyFile:
    """The keys of a template family; `criteria` contains no placeholders."""

    criteria: str


@dataclass(frozen=True)
class Template:
    """A question text with slots for stories and, unless it is not shown, a prompt.

    Attributes:
        answer: the answer form that the text requests.
        slots: names of the slots, in the order of the text.
        pieces: the fixed text before each slot, and after the last; may contain `{code}`
            and `{letters}`.
    """

    name: str
    path: Path
    answer: AnswerForm
    slots: tuple[Slot, ...]
    pieces: tuple[str, ...]

    @property
    def is_coded(self) -> bool:
        """Whether the question asks for a code."""
        return any("{code}" in piece for piece in self.pieces)

    @property
    def takes_list(self) -> bool:
        """Whether it asks which of several stories is the best."""
        return "stories" in self.slots

    def without_code(self) -> "Template":
        """The template that asks for no code, for models that are trained on it."""
        return replace(self, pieces=tuple(with_code(piece, None) for piece in self.pieces))

    def render(self, prompt: str, story_a: str, story_b: str, code: str | None = None) -> str:
        """Return the complete question; placeholders inside a prompt or story are not filled."""
        return self.render_stories(prompt, (story_a, story_b), code)

    def render_stories(self, prompt: str, stories: Sequence[str], code: str | None = None) -> str:
        """Return the question about these stories: two, unless the template `takes_list`."""
        prompt, *shown = map(without_delimiters, (prompt, *stories))
        texts = {"prompt": prompt}
        if self.takes_list:
            texts["stories"] = "\n\n".join(map(_enclosed, LETTERS, shown))
        else:
            texts |= zip(("story_a", "story_b"), shown, strict=True)
        letters = letters_text(len(stories))
        pieces = (with_code(piece, code).replace("{letters}", letters) for piece in self.pieces)
        *before, after = pieces
        filled = (part + texts[slot] for part, slot in zip(before, self.slots, strict=True))
        return "".join(filled) + after

    def repair(self, code: str | None, n_stories: int = 2) -> str:
        """The request for the verdict alone, after an answer that states none."""
        text = _frame()["repair_of_list" if self.takes_list else "repairs"]
        text = text if self.takes_list else text[self.answer]
        return with_code(text, code).replace("{letters}", letters_text(n_stories))

    def example(self, code: str | None) -> str:
        """An answer of usual length."""
        verdict = _frame()["examples"][self.answer].strip()
        return "word " * _REASONS.get(self.answer, 0) + with_code(f"\n{verdict}", code)

    def is_read(self, answer: str, code: str | None, n_stories: int = 2) -> bool:
        """Whether an answer to the question with this code states a verdict."""
        reading = read_answer(answer, self.answer, code, letters=LETTERS[:n_stories])
        return reading.verdict != "unparsed"


@cache
def _frame() -> dict[str, Any]:
    return read_yaml(_FRAME)


def _enclosed(letter: str, story: str) -> str:
    """A story between the delimiters of the frame."""
    name = f"STORY {letter}"
    return f"===== {name} BEGINS =====\n{story}\n===== {name} ENDS ====="


def letters_text(n_stories: int) -> str:
    """The letters to choose from: "A, B or C"."""
    *letters, last = list(LETTERS[:n_stories])
    return f"{', '.join(letters)} or {last}"


def with_code(text: str, code: str | None) -> str:
    """A question's fixed text with its code, or without the request for one."""
    if code is not None:
        return text.replace("{code}", code)
    return _CODE_LINE.sub("", _CODE_PLACE.sub("", text))


def fill(template: str, texts: Mapping[str, str]) -> str:
    """A template with its placeholders filled once: braces in texts, and unknown names, stay."""
    return PLACEHOLDER.sub(lambda match: texts.get(match[1], match[0]), template)


def packaged_names() -> list[str]:
    """Sorted names of the packaged templates, including families."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml") if path != _FRAME)


def family_names() -> list[str]:
    """Sorted names of the packaged families."""
    return [n for n in packaged_names() if "criteria" in read_yaml(_FOLDER / f"{n}.yaml")]


def template_files(name: str | None) -> dict[str, str]:
    """The file of a user's template, by the name of its option; empty for a packaged template."""
    return {} if name is None or name in packaged_names() else {"template": name}


def load_template(
    name: str | Path,
    answer: AnswerForm | None = None,
    *,
    shows_prompt: bool = True,
    may_take_list: bool = False,
) -> Template:
    """Load a packaged template or a YAML file.

    Args:
        name: name of a packaged template, or path of a YAML file.
        answer: answer form. A family supports every form and defaults to `explanation`; a fixed
            template supports only its own.
        shows_prompt: if False, only the stories are shown; a fixed template with `{prompt}` is then
            an error.
        may_take_list: whether the template may ask about more than two stories.
    """
    names = packaged_names()
    path = _FOLDER / f"{name}.yaml" if str(name) in names else Path(name)
    if str(name) not in names and path.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"unknown template '{name}' ({nearest(str(name), names)}): use a packaged template or "
            "the path of a .yaml file"
        )
    keys = read_yaml(path)
    if "criteria" in keys:
        family = build(FamilyFile, keys, f"template {path}")
        file = _framed(family, answer or "explanation", path, shows_prompt)
    else:
        file = build(FixedFile, keys, f"template {path}")
    if answer not in (None, file.answer):
        raise ConfigError(
            f"template {name} has the answer form {file.answer}, not {answer}: omit answer, or use "
            f"a family, which supports every form: {', '.join(family_names())}"
        )
    placeholders = [name for name in PLACEHOLDER.findall(file.text) if name != "code"]
    if "prompt" in placeholders and not shows_prompt:
        raise ConfigError(
            f"template {name} shows the prompt, and form is story: use a family "
            f"({', '.join(family_names())}), or a template without {{prompt}}"
        )
    if "stories" in placeholders and not may_take_list:
        raise ConfigError(
            f"template {name} asks about several stories: only raters of the kind judge ask it"
        )
    _check_placeholders(placeholders, file, path)
    slots = tuple(slot for name in placeholders for slot in _ALL_SLOTS if slot == name)
    pieces = tuple(re.split("|".join(re.escape(f"{{{slot}}}") for slot in slots), file.text))
    return Template(str(name), path, file.answer, slots, pieces)


def _check_placeholders(placeholders: Sequence[str], file: FixedFile, path: Path) -> None:
    """Raise a ConfigError unless a text has the placeholders of a pair, or of a list of stories."""
    needed = ["story_a", "story_b"]
    is_whole = not file.text.rstrip().endswith(tuple(f"{{{slot}}}" for slot in _ALL_SLOTS))
    if "stories" in placeholders:
        needed = ["stories"]
        is_coded = "{code}" in file.text and file.answer in ("verdict", "explanation")
        is_whole = is_whole and is_coded and "letters" in placeholders
        placeholders = [name for name in placeholders if name != "letters"]
    if not is_whole or sorted(placeholders) not in (needed, ["prompt", *needed]):
        listed = ", ".join(f"{{{name}}}" for name in placeholders) or "none"
        raise ConfigError(
            f"template {path}: the placeholders of its text are {listed}: it needs {{story_a}} and "
            "{story_b} once each, may have {prompt} once and {code}, and ends with the request for "
            "an answer. A question about several stories has {stories} once in their place, "
            "{letters}, {code}, and the answer form verdict or explanation"
        )


def _framed(family: FamilyFile, answer: AnswerForm, path: Path, shows_prompt: bool) -> FixedFile:
    """Insert a family's criteria and the request for an answer form into the frame."""
    criteria = family.criteria.strip()
    if not criteria or PLACEHOLDER.search(criteria):
        raise ConfigError(
            f"template {path}: criteria is empty or contains a placeholder: describe the criteria "
            "only; prompt, stories and the request for an answer are added automatically"
        )
    frame = _frame()
    if answer not in frame["requests"]:
        raise ConfigError(
            f"template {path}: unknown answer form '{answer}' "
            f"({nearest(answer, sorted(frame['requests']))})"
        )
    texts = frame["with_prompt" if shows_prompt else "without_prompt"]
    filled = {"criteria": criteria, "request": frame["requests"][answer], **texts}
    return FixedFile(answer, fill(frame["text"], filled))


def assign_positions(pair_ids: Sequence[str], seed: int) -> list[bool]:
    """Assign the chosen story to position A or B, at random and exactly balanced.

    Pairs are sorted by a hash of the seed and their id; the chosen story is A in the first half.

    Returns:
        Whether the chosen story is shown as A; shape (n,), true for n / 2 pairs, rounded up.
    """
    shuffled = sorted(range(len(pair_ids)), key=lambda index: digest(seed, pair_ids[index]))
    first_half = set(shuffled[: (len(shuffled) + 1) // 2])
    return [index in first_half for index in range(len(pair_ids))]
