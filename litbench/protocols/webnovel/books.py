"""Books of WebNovelBench: their synopses, one per chapter, and the prompts about them."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litbench.config import read_yaml
from litbench.errors import ConfigError, DataError

TEXTS = (
    "generation_system_with_criteria", "generation_system_without_criteria", "extraction_user",
)  # fmt: skip
_JUDGE = "judge_user"
_PARTS = ("主要人物", "主要情节", "重要场景")
_CRITERIA = 8


@dataclass(frozen=True)
class Book:
    """A book to be written again, chapter by chapter.

    Attributes:
        book_id: its identity; titles may repeat.
        title: its title.
        synopses: one per chapter; empty strings in a book that is only to be rated.
    """

    book_id: str
    title: str
    synopses: tuple[str, ...]


def read_books(path: Path) -> list[Book]:
    """Read books in the benchmark's form, a JSON list or JSON lines; unknown keys are ignored.

    Raises:
        DataError: the file cannot be read, or a record lacks what the protocol needs.
    """
    try:
        text = path.read_text(encoding="utf-8")
        is_list = text.lstrip().startswith("[")
        records = (
            json.loads(text) if is_list else [*map(json.loads, filter(str.strip, text.split("\n")))]
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot read books ({error}): give a JSON list or JSON lines"
        ) from error
    books = [_book(record, f"{path}: book {number}") for number, record in enumerate(records, 1)]
    name, times = Counter(book.book_id for book in books).most_common(1)[0] if books else ("", 0)
    if times != 1:
        problem = f"request_id '{name}' occurs {times} times" if books else "it has no books"
        raise DataError(f"{path}: {problem}: give every book an id of its own")
    return books


def _book(record: Any, where: str) -> Book:
    if not isinstance(record, dict):
        raise DataError(f"{where}: is a {type(record).__name__}: write one object per book")
    for key in ("request_id", "novel"):
        if not (isinstance(record.get(key), str) and record[key].strip()):
            raise DataError(f"{where}: {key} is {record.get(key)!r:.60}: give it a text")
    synopses = record.get("novel_info")
    if not (synopses and isinstance(synopses, list) and all(isinstance(s, str) for s in synopses)):
        raise DataError(f"{where}: novel_info is {synopses!r:.60}: list one synopsis per chapter")
    scores = record.get("original score")
    if scores is not None and len(scores) != _CRITERIA:
        raise DataError(
            f"{where}: original score has {len(scores)} numbers: give {_CRITERIA}, or none"
        )
    return Book(record["request_id"], record["novel"], tuple(synopses))


def read_texts(folder: Path | None) -> dict[str, str]:
    """Read the prompts: our own, or `prompts.json` of a folder with the published ones.

    Returns:
        The texts by the names in `TEXTS`, and `judge_user` if they are the published ones.

    Raises:
        ConfigError: a published text is missing.
    """
    if folder is None:
        return {name: text.strip() for name, text in
                read_yaml(Path(__file__).parent / "texts.yaml").items()}  # fmt: skip
    path = folder / "prompts.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        texts = {name: str(content[name]) for name in (*TEXTS, _JUDGE)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"texts: cannot read the published prompts in {path} ({error!r}): give a JSON object "
            f"with {', '.join((*TEXTS, _JUDGE))}"
        ) from error
    texts[_JUDGE] = texts[_JUDGE].replace("{chapter}", "{text}")
    for name in ("extraction_user", _JUDGE):
        if "{text}" not in texts[name]:
            raise ConfigError(f"texts: {name} in {path} has no slot for the chapter: add {{text}}")
    return texts


def read_synopsis(reply: str) -> str | None:
    """Return the three parts of a synopsis, with or without an enclosing tag; None if one lacks."""
    parts = []
    for name in _PARTS:
        found = re.findall(rf"<{name}>(.*?)</{name}>", reply, re.DOTALL)
        if not found or not found[-1].strip():
            return None
        parts.append(f"<{name}>{found[-1].strip()}</{name}>")
    return "\n".join(parts)
