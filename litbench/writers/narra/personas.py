"""Personas: the readers that a model plays, as YAML cards in the published form."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import PositiveInt, StringConstraints

from litbench.runs.config import build, read_yaml
from litbench.runs.errors import ConfigError

CARDS = Path(__file__).with_name("cards")
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


@dataclass(kw_only=True)
class _End:
    max_user_turns: PositiveInt
    type: str = ""
    satisfaction_signal: str = ""


@dataclass(kw_only=True)
class _Card:
    """The keys of a card. It checks them only: the card itself is used as it was read."""

    id: _Text
    display_name: str
    emotional_need: _Text
    end_condition: _End
    language: str = ""
    demographics: dict[str, Any] | None = None
    big_five: dict[str, Any] | None = None
    conversation_style: dict[str, Any] | None = None
    goals: list[Any] | None = None
    resistance_patterns: list[Any] | None = None
    clarifying_question_style: str = ""


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
        build(_Card, persona, str(path))
        if persona["id"] in personas:
            raise ConfigError(f"{path}: id '{persona['id']}' is taken by another card: rename one")
        personas[persona["id"]] = persona
    return personas
