"""Personas: the readers that a model plays, as YAML cards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from pydantic import PositiveInt

from litbench.config import as_plain, build, read_yaml
from litbench.errors import ConfigError
from litbench.text import digest

CARDS = Path(__file__).with_name("cards")


@dataclass(frozen=True, kw_only=True)
class EndCondition:
    """When a persona's episode ends.

    Attributes:
        max_user_turns: most turns of the reader.
        type: with or without satisfaction as a reason to end before.
        satisfaction_signal: what tells the reader that the story has done its work.
    """

    max_user_turns: PositiveInt
    type: str = "turns_or_satisfaction"
    satisfaction_signal: str = ""


@dataclass(frozen=True, kw_only=True)
class Persona:
    """A card, in the published form.

    Attributes:
        id: name of the persona in tables.
        display_name: name for people.
        emotional_need: the burden, in the persona's own words; not empty.
        end_condition: most turns, and the signal of satisfaction.
        language: language code.
        demographics: such as age, gender and occupation.
        big_five: trait to low, medium or high.
        conversation_style: such as verbosity, with notes.
        goals: what the persona wants of a story.
        resistance_patterns: what the persona will not put up with.
        clarifying_question_style: how the persona answers questions.
    """

    id: str
    display_name: str
    emotional_need: str
    end_condition: EndCondition
    language: str = "en"
    demographics: Mapping[str, Any] = field(default_factory=dict)
    big_five: Mapping[str, Any] = field(default_factory=dict)
    conversation_style: Mapping[str, Any] = field(default_factory=dict)
    goals: list[str] = field(default_factory=list)
    resistance_patterns: list[str] = field(default_factory=list)
    clarifying_question_style: str = ""

    @cached_property
    def card(self) -> str:
        """The whole card as YAML, as reader and judges get it."""
        return yaml.safe_dump(as_plain(self), allow_unicode=True, sort_keys=False, width=100)

    @property
    def digest(self) -> str:
        """Digest of the card's content."""
        return digest(self.card)


def load_personas(folder: Path = CARDS) -> dict[str, Persona]:
    """Read the cards of a folder, by id, in the order of their files.

    Raises:
        ConfigError: no card, an unknown key, no turn limit, an empty need or a repeated id; the
            message starts with the file.
    """
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise ConfigError(f"{folder} has no persona card: give a folder with *.yaml files")
    personas: dict[str, Persona] = {}
    for path in paths:
        persona = build(Persona, read_yaml(path), where=str(path))
        for key in ("id", "emotional_need"):
            if not getattr(persona, key).strip():
                raise ConfigError(f"{path}: key '{key}' is empty: write a text")
        if persona.id in personas:
            raise ConfigError(f"{path}: id '{persona.id}' is taken by another card: rename one")
        personas[persona.id] = persona
    return personas
