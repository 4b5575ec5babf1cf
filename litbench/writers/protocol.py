"""A protocol: its items, the writing of texts about an item, and their rating.

A protocol is a subclass of `Protocol` in `PROTOCOLS`. `litbench.writers.run` runs it and writes
tables; `litbench.writers.tasks` makes it a task of inspect-ai.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from statistics import stdev
from typing import Any, ClassVar

from litbench.judges.answers import Sampling
from litbench.judges.rubric import Rated, mean_of_known, mean_rated, rate
from litbench.judges.session import (
    Mock,
    Models,
    Session,
    Turn,
    UnfinishedError,
    gather_all,
)
from litbench.raters.templates.parser import without_reasoning
from litbench.raters.templates.rubric import Rubric
from litbench.runs.config import build, nearest, read_yaml
from litbench.runs.errors import ConfigError

# The class of each protocol, imported on first use.
PROTOCOLS = {
    "longform": "litbench.writers.longform:Longform",
    "narra": "litbench.writers.narra:Narra",
    "stories": "litbench.writers.stories:Stories",
    "tow": "litbench.writers.tow:Tow",
    "webnovel": "litbench.writers.webnovel:Webnovel",
}


@dataclass(frozen=True)
class Item:
    """One item of a protocol: what a writer is asked for.

    Attributes:
        content: the protocol's own.
        groups: what it belongs to, such as its genre: columns of the run's stories.
    """

    prompt_id: str
    prompt: str
    content: Any = None
    groups: Mapping[str, str] = field(default_factory=dict)


# Rater (None: no judge), quantity, grade (None: missing) and flags.
Grade = tuple[str | None, str, float | None, list[str]]


@dataclass
class Written:
    """The texts written about an item, as plain values that a log can store.

    Attributes:
        texts: the pieces of writing, by step.
        flags: what is unusual, for grades.
        grades: quantities without a judge.
        events: rows of `events.jsonl`, for protocols that write it.
        facts: what else the protocol needs to have the texts rated.
    """

    texts: dict[str, str] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    grades: list[Grade] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class ItemRatings:
    """One judge's results for an item: ratings by step of the text, grades, and events.

    Attributes:
        repeats: the judge's grades of each of several judgements; empty for one.
    """

    ratings: dict[str, Rated] = field(default_factory=dict)
    grades: list[Grade] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    repeats: list[list[Grade]] = field(default_factory=list)


@dataclass(frozen=True)
class ItemResult:
    """The result of a session: the texts, and each judge's results."""

    written: Written
    judged: Mapping[str, ItemRatings]

    def grades(self) -> list[Grade]:
        """All grades; those that judges share, such as a plan's weights, once."""
        by_quantity: dict[tuple[str | None, str], Grade] = {}
        for grades in (self.written.grades, *(ratings.grades for ratings in self.judged.values())):
            for rater, quantity, grade, flags in grades:
                by_quantity.setdefault((rater, quantity), (rater, quantity, grade, flags))
        return list(by_quantity.values())


@dataclass(frozen=True)
class RoleDefault:
    """A further role of a protocol.

    The first judge plays a role with `is_judge` unless the config names a model.
    """

    sampling: Sampling
    is_judge: bool = False


class Protocol:
    """Base class of protocols.

    Attributes:
        options: dataclass of the protocol's options; the constructor takes one, `_options`.
        source: the benchmark's paper or repository.
        headline: the quantity that the leaderboard of writers is sorted by.
        writer: default sampling of writers.
        judge: default sampling of judges.
        roles: roles besides the writer and the judges.
        rubrics: the judges' rubrics, by kind of step.
        examples: answers of a dry run, see `Mock.texts`, that are not those of dry_run.yaml.
    """

    options: ClassVar[type]
    source: ClassVar[str]
    headline: str
    writer: ClassVar[Sampling]
    judge: ClassVar[Sampling]
    roles: ClassVar[Mapping[str, RoleDefault]] = {}
    rubrics: Mapping[str, Rubric]
    examples: Mapping[str, Mapping[str, Any]] | None = None
    _options: Any

    def items(self) -> list[Item]:
        """Return all items, in a fixed order."""
        raise NotImplementedError

    def select(self, names: Sequence[str | int] | None) -> list[Item]:
        """Return the items of these names, or all; raises a ConfigError for an unknown name."""
        items = {item.prompt_id: item for item in self.items()}
        chosen = list(items) if names is None else [str(name) for name in names]
        for name in chosen:
            if name not in items:
                raise ConfigError(f"items: no item '{name}': {nearest(name, list(items))}")
        return [item for name, item in items.items() if name in chosen]

    def check(self, models: Models) -> None:
        """Refuse models that make results invalid; raises a ConfigError."""

    async def write(self, session: Session, item: Item) -> Written:
        """Have the writer write about an item; raises UnfinishedError if it cannot go on."""
        raise NotImplementedError

    async def rate(self, session: Session, item: Item, written: Written, judge: str) -> ItemRatings:
        """Have one judge rate what was written; raises UnfinishedError if it cannot go on."""
        raise NotImplementedError

    def files(self) -> dict[str, Path | str]:
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
    cls = resolve_name(PROTOCOLS[name])
    loaded: Protocol = cls(build(cls.options, options, f"{name}: options"))
    return loaded


@cache
def _mock_texts() -> dict[str, dict[str, Any]]:
    return read_yaml(Path(__file__).with_name("dry_run.yaml"))


def mock_of(name: str, protocol: Protocol) -> Mock:
    """The answers of a dry run of a protocol."""
    return Mock(protocol.examples or _mock_texts()[name], protocol.rubrics)


async def judge_repeatedly(
    protocol: Protocol, session: Session, item: Item, written: Written, judge: str, samples: int
) -> ItemRatings:
    """Have a judge rate what was written `samples` times.

    Returns:
        The means of its ratings and grades. With several samples, every quantity of the judge has
        another, "QUANTITY spread", the standard deviation over the samples.
    """
    repeats: list[ItemRatings] = await gather_all(
        *(
            protocol.rate(replace(session, judge_sample=number), item, written, judge)
            for number in range(samples)
        )
    )
    first = repeats[0]
    if samples == 1:
        return first
    ratings = {
        step: mean_rated([repeat.ratings[step] for repeat in repeats]) for step in first.ratings
    }
    # Others are asked once, such as the planner.
    grades = [grade for grade in first.grades if grade[0] != judge]
    repeated = [[grade for grade in repeat.grades if grade[0] == judge] for repeat in repeats]
    # Judgements may differ in their quantities, such as criteria that the judge plans itself.
    for quantity in dict.fromkeys(grade[1] for repeat in repeated for grade in repeat):
        same = [grade for repeat in repeated for grade in repeat if grade[1] == quantity]
        flags = list(dict.fromkeys(flag for *_, flags in same for flag in flags))
        numbers = [value for _, _, value, _ in same if value is not None]
        grades.append((judge, quantity, mean_of_known(numbers), flags))
        if len(numbers) > 1:
            grades.append((judge, f"{quantity} spread", stdev(numbers), flags))
    events = [event for repeat in repeats for event in repeat.events]
    return ItemRatings(ratings, grades, events, repeated)


def list_sessions(
    protocol: Protocol,
    items: Sequence[Item],
    writers: Iterable[str],
    judges: Collection[str],
    samples: int,
    judge_samples: int,
) -> Iterator[Session]:
    """The sessions of a run, by writer, item and sample."""

    def session(writer: str, item: Item, sample: int) -> Session:
        async def script(session: Session) -> ItemResult:
            written = await protocol.write(session, item)
            rated = (
                judge_repeatedly(protocol, session, item, written, judge, judge_samples)
                for judge in judges
            )
            return ItemResult(written, dict(zip(judges, await gather_all(*rated), strict=True)))

        return Session(writer, item.prompt_id, sample, script)

    for writer in writers:
        for item in items:
            yield from (session(writer, item, sample) for sample in range(samples))


async def rate_texts(
    session: Session,
    judge: str,
    questions: Mapping[str, tuple[Rubric, Mapping[str, str]]],
    *,
    as_published: bool = False,
) -> dict[str, Rated]:
    """Have a judge rate every text, at the same time; returns the ratings by step.

    `questions` has the rubric of each step, and the texts that fill it.
    """
    rated = await gather_all(
        *(
            rate(session, judge, *asked, step=step, as_published=as_published)
            for step, asked in questions.items()
        )
    )
    return dict(zip(questions, rated, strict=True))


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
    missing = sum(len(rating.missing) for rating in rated)
    number = sum(len(rating.ratings) for rating in rated)
    return [f"{missing} of {number} ratings missing"] if missing else []
