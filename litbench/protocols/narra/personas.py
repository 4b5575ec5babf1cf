"""Personas: the readers that a model plays, as YAML cards in the published form."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from litbench.config import nearest, read_yaml
from litbench.errors import ConfigError

CARDS = Path(__file__).with_name("cards")
# The keys of a card and their types; a leading "*" marks a key that must be given.
_TEXTS = ("language", "clarifying_question_style")
_KEYS: dict[str, Any] = {
    **dict.fromkeys(("*id", "*display_name", "*emotional_need"), str),
    "*end_condition": {"*max_user_turns": int, "type": str, "satisfaction_signal": str},
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(("demographics", "big_five", "conversation_style"), dict),
    **dict.fromkeys(("goals", "resistance_patterns"), list),
}


def card_text(persona: Mapping[str, Any]) -> str:
    """The whole card as YAML, as reader and judges get it."""
    return yaml.safe_dump(dict(persona), allow_unicode=True, sort_keys=False, width=100)


def load_personas(folder: Path = CARDS) -> dict[str, dict[str, Any]]:
    """Read the cards of a folder, by id, in the order of their files.

    Raises:
        ConfigError: no card, an unknown key, no turn limit, an empty need or a repeated id; the
            message starts with the file.
    """
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise ConfigError(f"{folder} has no persona card: give a folder with *.yaml files")
    personas: dict[str, dict[str, Any]] = {}
    for path in paths:
        persona = read_yaml(path)
        _check(persona, _KEYS, "", path)
        for key in ("id", "emotional_need"):
            if not persona[key].strip():
                raise ConfigError(f"{path}: key '{key}' is empty: write a text")
        if persona["end_condition"]["max_user_turns"] < 1:
            raise ConfigError(f"{path}: key 'end_condition.max_user_turns' is below 1: raise it")
        if persona["id"] in personas:
            raise ConfigError(f"{path}: id '{persona['id']}' is taken by another card: rename one")
        personas[persona["id"]] = persona
    return personas


def _check(values: Mapping[str, Any], keys: Mapping[str, Any], prefix: str, path: Path) -> None:
    """Check keys and types of a card, also those of nested mappings."""
    known = {name.removeprefix("*"): kind for name, kind in keys.items()}
    for name, value in values.items():
        if name not in known:
            raise ConfigError(
                f"{path}: unknown key '{prefix}{name}': {nearest(name, list(known), prefix)}"
            )
        kind = dict if isinstance(known[name], dict) else known[name]
        if type(value) is not kind:
            raise ConfigError(
                f"{path}: key '{prefix}{name}' is {value!r:.60}: write a {kind.__name__}"
            )
    for name, kind in keys.items():
        key = name.removeprefix("*")
        if key not in values and key != name:
            raise ConfigError(f"{path}: key '{prefix}{key}' is missing: give it a value")
        if isinstance(kind, dict) and key in values:
            _check(values[key], kind, f"{key}.", path)
