"""What a protocol is: its items, the dialogue about one item, and the rows that come of it.

A protocol is a subclass of `Protocol` in `PROTOCOLS`; `litbench.protocols.run` holds its dialogues
and writes the tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from litbench.config import build, nearest
from litbench.errors import ConfigError
from litbench.judges.dialogues import Cast, Talk, Turn, UnfinishedError, at_once, without_reasoning
from litbench.judges.rubric import Rated, rate
from litbench.judges.store import Sampling
from litbench.raters import load_object
from litbench.templates.rubric import Rubric

# The class of each protocol, imported on first use.
PROTOCOLS = {
    "longform": "litbench.protocols.longform:Longform",
    "narra": "litbench.protocols.narra:Narra",
    "tow": "litbench.protocols.tow:Tow",
    "webnovel": "litbench.protocols.webnovel:Webnovel",
}


@dataclass(frozen=True)
class Item:
    """One item of a protocol: what a writer is asked for; `content` is the protocol's own."""

    prompt_id: str
    prompt: str
    content: Any = None


@dataclass
class Piece:
    """The rows that one dialogue adds to the tables.

    Attributes:
        texts: the pieces of writing, by step.
        ratings: by judge and step, what the judge said about the text of that step.
        grades: (judge or None, quantity, grade or None, flags).
        events: rows of `events.jsonl`, for protocols that write it.
    """

    texts: dict[str, str] = field(default_factory=dict)
    ratings: dict[tuple[str, str], Rated] = field(default_factory=dict)
    grades: list[tuple[str | None, str, float | None, list[str]]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class RoleDefault:
    """A further role of a protocol.

    Attributes:
        sampling: its default sampling.
        is_judge: whether the first judge plays it unless the config names a model.
    """

    sampling: Sampling
    is_judge: bool = False


class Protocol:
    """Base class of protocols.

    Attributes:
        options: dataclass of the protocol's options; the constructor takes one, `_options`.
        headline: the quantity that the leaderboard of writers is sorted by.
        writer: default sampling of writers.
        judge: default sampling of judges.
        roles: roles besides the writer and the judges.
    """

    options: ClassVar[type]
    headline: str
    writer: ClassVar[Sampling]
    judge: ClassVar[Sampling]
    roles: ClassVar[Mapping[str, RoleDefault]] = {}
    _options: Any

    def items(self) -> list[Item]:
        """Return all items, in a fixed order."""
        raise NotImplementedError

    def check(self, cast: Cast) -> None:
        """Refuse models that make results invalid; raises a ConfigError."""

    async def hold(self, talk: Talk, item: Item, judges: Sequence[str]) -> Piece:
        """Hold the dialogue about one item; raises UnfinishedError if it cannot go on."""
        raise NotImplementedError

    def files(self) -> dict[str, Path]:
        """Files and folders of the user that results depend on: options that are paths."""
        options = vars(self._options)
        return {
            f"options.{name}": value for name, value in options.items() if isinstance(value, Path)
        }

    def record(self) -> dict[str, Any]:
        """Facts for the manifest: `not_comparable` lists why results differ from published ones."""
        return {"not_comparable": []}


def load_protocol(name: str, options: Mapping[str, Any]) -> Protocol:
    """Load a protocol with its options."""
    if name not in PROTOCOLS:
        raise ConfigError(f"unknown protocol '{name}': {nearest(name, list(PROTOCOLS))}")
    cls = load_object(PROTOCOLS[name])
    loaded: Protocol = cls(build(cls.options, options, f"{name}: options"))
    return loaded


async def rate_all(
    talk: Talk,
    judges: Sequence[str],
    questions: Mapping[str, tuple[Rubric, Mapping[str, str]]],
    *,
    as_published: bool = False,
) -> dict[tuple[str, str], Rated]:
    """Have every judge rate every text, at the same time.

    Args:
        talk: the dialogue.
        judges: roles.
        questions: by step, the rubric and the texts that fill it.
        as_published: see `Rubric.read`.

    Returns:
        What was said, by judge and step.
    """
    places = [(judge, step) for judge in judges for step in questions]
    rated = await at_once(
        *(
            rate(talk, judge, *questions[step], step=step, as_published=as_published)
            for judge, step in places
        )
    )
    return dict(zip(places, rated, strict=True))


def written_text(turn: Turn) -> str:
    """The text that a writer answered with; empty after a refusal or an empty answer.

    Raises:
        UnfinishedError: the request failed.
    """
    if turn.outcome == "error" and turn.answer.output_tokens is None:
        raise UnfinishedError(f"{turn.step}: {turn.answer.detail}")
    return without_reasoning(turn.text)


def missing_flag(rated: Sequence[Rated]) -> list[str]:
    """The flag of a grade that is made of fewer ratings than there are criteria."""
    missing = sum(len(one.missing) for one in rated)
    number = sum(len(one.ratings) for one in rated)
    return [f"{missing} of {number} ratings missing"] if missing else []
