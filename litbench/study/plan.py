"""The plan of a study with human readers, and the study's folder.

litbench study make writes a folder with `plan.json`, `manifest.json` and what is read:
`pairs.parquet`, or `stories.parquet` and `rubric.yaml`. `litbench study serve` adds `study.sqlite`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from litbench import __version__
from litbench.data.text import count_words_of
from litbench.runs.config import build, read_yaml
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import fingerprint, read_manifest_of
from litbench.study.metrics import Exclusions

PAGES = Path(__file__).with_name("pages")
# The parameter of the address that holds the reader's id, as Prolific names it.
ID_PARAMETER = "PROLIFIC_PID"
READER_ID = r"^[A-Za-z0-9_-]{1,64}$"
# What to do with a study that this version cannot read.
OTHER_VERSION = "make the study again in another folder, or end it with the version that made it"

# Defaults of each kind: titles, instructions, statements.
_TEXTS = Path(__file__).with_name("texts.yaml")


@dataclass(frozen=True)
class Statement:
    """A statement about the instructions, and whether it is true."""

    text: str
    is_true: bool


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Text = Annotated[str, Field(pattern=r"\S")]
Kind = Literal["pairs", "ratings", "session"]


@dataclass(kw_only=True)
class StudyPlan:
    """The part of a plan that does not depend on the kind of study.

    Attributes:
        consent: text that readers agree to; paragraphs are separated by blank lines.
        contact: whom readers can write to.
        completion_code: shown at the end.
        kind: what readers do: choose between the stories of pairs, rate stories, or play a session
            of the protocol narra.
        completion_url: address to return to at the end; null for none.
        title: heading of all pages; the default depends on the kind, as the next two do.
        instructions: what to weigh.
        statements: statements about the instructions; all must be answered right to go on.
        comprehension_attempts: how often a reader may answer the statements.
        checks_attention: show one pair in which one story, of either side, has its words in a
            random order; the default instructions and statements say so. The reader does not read
            this pair otherwise, so a reader of all pairs gets no check. In ratings, ask for a named
            number in one line of one page.
        shows_prompt: show the writing prompt above the stories.
        asks_reason: ask for the reason of each choice or the ratings of a story; readers may leave
            it empty.
        words_per_minute: typical reading speed, for the estimate of hours.
        max_words_per_minute: answers that would need faster reading are sent back; null
            accepts all.
        release_minutes: minutes without activity after which unanswered pairs are reassigned.
        requires_id: refuse readers without an id in the address.
        reader_ids: ids to accept, which plan.json then holds; null for any.
        max_starting: maximum number of readers who have pairs but no answer yet. Others wait until
            one of these answers, or loses the pairs after twice the usual time, at least 60 s.
        language: language tag of prompts and stories, such as `zh`.
        exclude: which readers the analysis leaves out.
        pay_per_hour: for the estimate of costs; null for none.
        seed: seed of the assignment.
    """

    consent: Text
    contact: Text
    completion_code: Text
    kind: Kind = "pairs"
    completion_url: str | None = None
    title: str = ""
    instructions: str = ""
    statements: list[Statement] | None = None
    comprehension_attempts: Count = 2
    checks_attention: bool = True
    shows_prompt: bool = True
    asks_reason: bool = False
    words_per_minute: Positive = 230
    max_words_per_minute: Positive | None = 800
    release_minutes: Positive = 90
    requires_id: bool = False
    reader_ids: list[Annotated[str, Field(pattern=READER_ID)]] | None = None
    max_starting: Count = 20
    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")] = "en"
    exclude: Exclusions = field(default_factory=Exclusions)
    pay_per_hour: Positive | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        texts = read_yaml(_TEXTS)[self.kind]
        texts["statements"] = [Statement(*statement) for statement in texts["statements"]]
        defaults = {option.name: option.default for option in fields(StudyPlan)}
        for name, text in texts.items():
            if getattr(self, name) == defaults[name]:
                setattr(self, name, text)


@dataclass(kw_only=True)
class PairPlan(StudyPlan):
    """The plan of a study of the kind `pairs`.

    Attributes:
        question: asked below every pair.
        tags: descriptions of a story, such as "surprising twist"; readers choose one for each
            story of a pair, without knowing its label. Empty asks for none.
        readers_per_pair: readers of each pair.
        pairs_per_reader: pairs that each reader reads.
        repeats_a_pair: show a reader's first pair again at the end, with its sides swapped.
        side_by_side: show the stories side by side where the screen is wide enough.
        expected_agreement: share of choices that agree with the labels, for the power.
        reader_agreement: how often two readers choose the same story, for the power.
    """

    question: str = "Which story is better written?"
    tags: list[Text] = field(default_factory=list)
    readers_per_pair: Count = 10
    pairs_per_reader: Count = 10
    repeats_a_pair: bool = True
    side_by_side: bool = True
    expected_agreement: Annotated[float, Field(gt=0, lt=1)] = 0.564
    reader_agreement: Annotated[float, Field(ge=0.5, le=1)] = 0.6


@dataclass(kw_only=True)
class RatingPlan(StudyPlan):
    """The plan of a study of the kind `ratings`.

    Attributes:
        rubric: in ratings, the criteria and their scale: a packaged rubric or a file.
        readers_per_story: in ratings, readers of each story.
        stories_per_group: in ratings, how many stories of a prompt a reader rates before submitting
            them together; null for all of the prompt.
        groups_per_reader: in ratings, prompts of which each reader rates a group.
    """

    rubric: str | None = None
    readers_per_story: Count = 3
    stories_per_group: Count | None = None
    groups_per_reader: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rubric is None:
            raise ConfigError("rubric is missing: name a packaged rubric or a file")


@dataclass(kw_only=True)
class SessionPlan(StudyPlan):
    """The plan of a study of the kind `session`.

    Attributes:
        writers: in sessions, the writers by name, as in `litbench run`.
        writers_per_reader: in sessions, number of writers with whom a reader plays one card, in
            random order; their stories are rated and submitted as one group.
        options: in sessions, options of the protocol.
        cards: in sessions, only these cards; null for all.
        prices: in sessions, file of prices that override the packaged ones.
        readers_per_card: in sessions, readers of each card with each writer.
        sessions_at_once: in sessions, how many readers play at the same time; further readers wait.
        dollars_per_reader: in sessions, maximum cost of a session; null for no limit.
        dollars: in sessions, maximum cost of all sessions; a session starts only if its
            `dollars_per_reader` is left.
        shows_card: in sessions, ask the reader to play the person of the card, as the simulated
            reader does; otherwise readers bring a personal matter.
    """

    writers: dict[str, Any] = field(default_factory=dict)
    writers_per_reader: Count = 1
    options: dict[str, Any] = field(default_factory=dict)
    cards: list[str | int] | None = None
    prices: Path | None = None
    readers_per_card: Count = 1
    sessions_at_once: Count = 8
    dollars_per_reader: Positive | None = None
    dollars: Positive | None = None
    shows_card: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.writers:
            raise ConfigError("writers is empty: name the writers that readers play with")
        if self.writers_per_reader > len(self.writers):
            raise ConfigError(
                f"writers_per_reader is {self.writers_per_reader}, and writers has "
                f"{len(self.writers)}: name more writers or lower it"
            )
        if self.dollars is not None and self.dollars_per_reader is None:
            raise ConfigError("dollars needs dollars_per_reader, the maximum cost of a session")


AnyPlan = TypeVar("AnyPlan", bound=StudyPlan)
PLANS: dict[str, type[StudyPlan]] = {
    "pairs": PairPlan,
    "ratings": RatingPlan,
    "session": SessionPlan,
}


@dataclass(frozen=True, eq=False)
class Study:
    """An opened study: its folder, its plan, and what readers read, by id."""

    folder: Path
    plan: StudyPlan

    @property
    def database(self) -> Path:
        """The file of the store."""
        return self.folder / "study.sqlite"

    @cached_property
    def by_id(self) -> dict[str, dict[str, Any]]:
        """The texts for readers: rows of a table by id."""
        raise NotImplementedError

    @cached_property
    def version(self) -> str:
        """Identifies what readers see: plan, what they read, and templates."""
        texts = [path.read_text(encoding="utf-8") for path in sorted(PAGES.iterdir())]
        ids = sorted(self.by_id)
        return fingerprint(__version__, self.plan, ids, texts)[:12]

    def words_of(self, name: str) -> int:
        """Words that a reader of the page reads."""
        raise NotImplementedError

    def estimate(self) -> dict[str, Any]:
        """The readers, hours and cost of the study, see `estimate_text`."""
        raise NotImplementedError

    def estimate_text(self, facts: Mapping[str, Any]) -> str:
        """The text of `estimate` for a terminal."""
        raise NotImplementedError

    def usual_seconds(self, name: str) -> float:
        """Seconds that reading a page takes at the usual speed."""
        return 60 * self.words_of(name) / self.plan.words_per_minute

    def min_seconds(self, name: str) -> float:
        """Seconds before which an answer is sent back."""
        fastest = self.plan.max_words_per_minute
        return 0.0 if fastest is None else 60 * self.words_of(name) / fastest


def read_plan(folder: Path, cls: type[AnyPlan]) -> AnyPlan:
    """Read the plan of a study of one kind, or of any for `StudyPlan`.

    Raises:
        ConfigError: the study is of another kind.
        DataError: the plan was changed, or another version wrote it.
    """
    read_manifest_of(folder / "plan.json")
    content = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    try:
        plan = build(PLANS[content["kind"]], content, str(folder / "plan.json"))
    except ConfigError as error:
        raise DataError(f"{error}; {OTHER_VERSION}") from error
    if not isinstance(plan, cls):
        (kind,) = (kind for kind, plan_type in PLANS.items() if plan_type is cls)
        raise ConfigError(f"{folder} is a study of the kind {plan.kind}: give one of {kind}")
    return plan


def reading_time(study: Study, readers: int, pages: int, page_seconds: float = 0) -> dict[str, Any]:
    """Pages, minutes, hours and cost, if each reader reads this number of pages.

    `page_seconds` are what a page takes besides reading.
    """
    plan = study.plan
    page_words = sum(map(study.words_of, study.by_id)) / len(study.by_id)
    first_words = count_words_of(plan.consent) + count_words_of(plan.instructions)
    minutes = (pages * page_words + first_words) / plan.words_per_minute
    minutes += pages * page_seconds / 60
    hours = readers * minutes / 60
    return {
        "readers": readers,
        "pages": pages,
        "words_per_page": page_words,
        "minutes_per_reader": minutes,
        "hours": hours,
        "cost": None if plan.pay_per_hour is None else hours * plan.pay_per_hour,
    }


def reading_text(plan: StudyPlan, facts: Mapping[str, Any]) -> str:
    """`reading_time` for a terminal."""
    text = f"""\
a reader reads {facts["pages"]} pages of {facts["words_per_page"]:,.0f} words, about \
{facts["minutes_per_reader"]:.0f} minutes at {plan.words_per_minute:g} words a minute; \
{facts["hours"]:,.1f} hours in all
"""
    if facts["cost"] is not None:
        text += f"at {plan.pay_per_hour:g} an hour: {facts['cost']:,.0f}, without fees\n"
    return text
