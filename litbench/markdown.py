"""Markdown of cards, made from texts that others wrote, which may hold any markup."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any


def escape(value: Any) -> str:
    """Plain text for one line of Markdown, whatever is in it."""
    line = html.escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~$]|^[#+=-])", r"\\\1", line)


def make_rows(heading: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """A table in Markdown; cells are escaped."""
    lines = [f"| {' | '.join(heading)} |", f"|{' --- |' * len(heading)}"]
    return [*lines, *(f"| {' | '.join(map(escape, row))} |" for row in rows), ""]


def without_folders(value: Any) -> Any:
    """A value of a config without the folders of who made it."""
    if isinstance(value, Mapping):
        return {key: without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_folders(inner) for inner in value]
    if isinstance(value, str) and (value.startswith(("/", "~")) or ":\\" in value):
        return re.split(r"[/\\]", value)[-1]
    return value


def as_text(value: Any) -> str:
    """A value as a config would give it, without folders."""
    shown = without_folders(value)
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
