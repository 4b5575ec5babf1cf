"""Books of WebNovelBench: their synopses, one per chapter, and the prompts about them."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from litbench.runs.config import read_yaml
from litbench.runs.errors import ConfigError, DataError
from litbench.writers.texts import check_texts, read_texts

# The published texts, with their placeholders; the version that they are of is not recorded.
PUBLISHED_FILES = {"prompts.json": None}
_PUBLISHED = {
    "generation_system_with_criteria": (),
    "generation_system_without_criteria": (),
    "extraction_user": ("text",),
    "judge_user": ("chapter",),
}
_PARTS = ("主要人物", "主要情节", "重要场景")


class Book(BaseModel):
    """A book to be written again, chapter by chapter, in the benchmark's form.

    Attributes:
        request_id: its identity; titles may repeat.
        novel: its title.
        novel_info: one synopsis per chapter; empty strings in a book that is only to be rated.
        original_score: mean ratings of the human chapters by the eight criteria.
    """

    request_id: Annotated[str, Field(pattern=r"\S")]
    novel: Annotated[str, Field(pattern=r"\S")]
    novel_info: Annotated[list[str], Field(min_length=1)]
    original_score: Annotated[
        list[float] | None, Field(alias="original score", min_length=8, max_length=8)
    ] = None


def read_books(path: Path) -> list[Book]:
    """Read books from a JSON list or JSON lines; unknown keys are ignored.

    Raises:
        DataError: the file cannot be read, or a record lacks what the protocol needs.
    """
    try:
        text = path.read_text(encoding="utf-8").strip()
        records = (
            json.loads(text)
            if text.startswith("[")
            else [json.loads(line) for line in text.split("\n") if line.strip()]
        )
        books = TypeAdapter(list[Book]).validate_python(records)
    except ValidationError as error:
        problem = error.errors()[0]
        number, *keys = problem["loc"]
        raise DataError(
            f"{path}: book {int(number) + 1}: {'.'.join(map(str, keys))} is "
            f"{problem['input']!r:.60}: {problem['msg']}"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot read books ({error}): give a JSON list or JSON lines"
        ) from error
    names = Counter(book.request_id for book in books)
    if repeated := [name for name, times in names.items() if times > 1]:
        raise DataError(
            f"{path}: request_id '{repeated[0]}' is repeated: give every book a unique id"
        )
    if not books:
        raise DataError(f"{path}: it has no books: give at least one")
    return books


def book_texts(folder: Path | None) -> dict[str, str]:
    """Read the prompts: our own, or `prompts.json` of a folder with the published ones.

    Returns:
        The texts by name; `judge_user` is only among the published ones.

    Raises:
        ConfigError: a published text is missing, or has other placeholders.
    """
    if folder is None:
        texts = read_yaml(Path(__file__).parent / "texts.yaml")
        return {name: text.strip() for name, text in texts.items()}
    path = folder / "prompts.json"
    origin = f"with a JSON object of {', '.join(_PUBLISHED)}"
    content = read_texts(folder, PUBLISHED_FILES, origin)[path.name]
    try:
        texts = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"texts: {path} is not JSON ({error}): give it {origin}") from error
    check_texts(texts if isinstance(texts, dict) else {}, _PUBLISHED, path)
    judge = texts["judge_user"].replace("{chapter}", "{text}")
    return {**{name: texts[name] for name in _PUBLISHED}, "judge_user": judge}


def read_synopsis(reply: str) -> str | None:
    """Return the three parts of a synopsis, with or without an enclosing tag; None if one lacks."""
    parts = []
    for name in _PARTS:
        matches = re.findall(rf"<{name}>(.*?)</{name}>", reply, re.DOTALL)
        if not matches or not matches[-1].strip():
            return None
        parts.append(f"<{name}>{matches[-1].strip()}</{name}>")
    return "\n".join(parts)
