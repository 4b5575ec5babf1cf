"""Markdown for cards, from texts of others, which may contain any markup."""

import html
import json
import re
from collections.abc import Mapping
from typing import Any


def escape(value: Any) -> str:
    """A value as one line of Markdown, with all markup escaped."""
    line = html.escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~$]|^[#+=-])", r"\\\1", line)


def without_folders(value: Any) -> Any:
    """A config value with paths reduced to file names, which hides the user's folders.

    Paths are recognised by their start: /, ~, ../ or a drive.
    """
    if isinstance(value, Mapping):
        return {key: without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_folders(inner) for inner in value]
    if isinstance(value, str) and (value.startswith(("/", "~", "../")) or ":\\" in value):
        return re.split(r"[/\\]", value)[-1]
    return value


def as_text(value: Any) -> str:
    """A config value as text, with absolute paths reduced to file names."""
    value = without_folders(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
