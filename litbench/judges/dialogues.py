"""Dialogues: conversations of several turns with models in roles; a killed run resumes.

A dialogue is a coroutine that asks models through `Talk.say`:

    async def script(talk: Talk) -> str:
        turn = await talk.say("writer", [("user", "Write a story.")], step="story", example="...")
        if not turn.text:
            raise UnfinishedError("the writer wrote no story")
        return turn.text

Only answers are stored. A restarted run starts every dialogue anew and gets the stored answers at
once, so it continues where it stopped. A dialogue must therefore not depend on a clock or on
unseeded chance.

The model `recorded/FILE` answers from a table of turns (`litbench.records.TURNS`).
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from litbench.errors import LitBenchError
from litbench.judges.client import (
    Budget,
    Client,
    Traffic,
    check_limit,
    estimate_tokens,
    run_workers,
)
from litbench.judges.prices import Price, price_of
from litbench.judges.store import (
    Answer,
    AnswerStore,
    Question,
    Sampling,
    keys_of,
    shown_text,
    text_of,
)
from litbench.raters import Estimate
from litbench.records import TURNS
from litbench.tables import read_table

RECORDED = "recorded/"
WRITER = "writer"
# In a writer's example, what tells its text from those of other dialogues; appended if absent.
EXAMPLE_MARK = "DIALOGUE_NAME"
# Sample numbers of stored answers: one block per sample of a dialogue, one number per attempt.
_ATTEMPTS = 100
# Dialogues under way at the same time, per connection: enough to keep all connections busy.
_DIALOGUES_PER_CONNECTION = 4
_REASONING = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.I | re.S)


class UnfinishedError(LitBenchError):
    """A dialogue cannot go on; the others go on."""


@dataclass
class Role:
    """The model that plays a role.

    Attributes:
        model: a name that inspect-ai knows, or recorded/FILE; see litbench.judges.client.
        sampling: generation options.
        traffic: connections, retries and limits.
    """

    model: str
    sampling: Sampling = field(default_factory=Sampling)
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def is_recorded(self) -> bool:
        """Whether the model answers from a table of turns."""
        return self.model.startswith(RECORDED)


@dataclass(frozen=True)
class Turn:
    """A question and its answer.

    Attributes:
        step: name of the step; later attempts have their number, such as `chapter_1/2`.
        question: the last message of the conversation.
    """

    role: str
    step: str
    question: str
    answer: Answer
    cost_usd: float | None

    @property
    def text(self) -> str:
        """The text of the answer; empty if it was refused, which includes filtered answers."""
        return self.answer.text if self.outcome in ("answered", "cut") else ""

    @property
    def outcome(self) -> str:
        """The outcome of the answer."""
        return self.answer.outcome


@dataclass(frozen=True)
class Dialogue:
    """A conversation about one item; `script` is its coroutine.

    Attributes:
        writer: name of the writer, which plays the role `writer`.
        prompt_id: the item.
        sample: number of the sample.
    """

    writer: str
    prompt_id: str
    sample: int
    script: Callable[["Talk"], Awaitable[Any]]


@dataclass(frozen=True)
class Held:
    """A dialogue that has ended.

    Attributes:
        turns: in the order of the answers.
        result: what the script returned; None if the dialogue is unfinished.
        reason: why it is unfinished; None if it is not.
    """

    dialogue: Dialogue
    turns: list[Turn]
    result: Any = None
    reason: str | None = None

    def messages(self) -> list[tuple[str, str]]:
        """All questions and answers, as a log shows them."""
        return [
            message
            for turn in self.turns
            for message in (
                ("user", f"[to {turn.role}: {turn.step}]\n\n{turn.question}"),
                ("assistant", shown_text(turn.answer)),
            )
        ]


class Endpoint(Protocol):
    """Answers the questions of one role."""

    @property
    def price(self) -> Price | None:
        """Price of the model's tokens; None if unknown."""

    async def answer(
        self, talk: "Talk", role: str, step: str, question: Question, sample: int, example: str
    ) -> Answer | None:
        """Answer a question; None if a recorded model has no answer.

        Raises:
            UnfinishedError: a limit is reached.
        """


class Talk:
    """What a script uses to ask the models of its dialogue."""

    def __init__(self, dialogue: Dialogue, roles: Mapping[str, Endpoint]) -> None:
        self.dialogue = dialogue
        self.turns: list[Turn] = []
        self._roles = roles

    def is_recorded(self, role: str) -> bool:
        """Whether a role answers from a table of turns, whatever it is asked."""
        return isinstance(self._roles[role], _Recorded)

    async def say(
        self, role: str, conversation: Question, *, step: str, example: str, attempt: int = 0
    ) -> Turn:
        """Ask the model of a role.

        Args:
            role: a name of the run's roles.
            conversation: a text, or messages as (role, text) with the roles system, user and
                assistant.
            step: name of the step, unique within the dialogue and role.
            example: an answer of usual length, which a dry run gets.
            attempt: a later attempt gets another answer to the same question.

        Returns:
            The turn; its outcome is `error` if the request failed, or if a recorded model has no
            such turn.
        """
        endpoint = self._roles[role]
        name = f"{step}/{attempt + 1}" if attempt else step
        sample = self.dialogue.sample * _ATTEMPTS + attempt
        answer = await endpoint.answer(self, role, name, conversation, sample, example)
        asked = conversation if isinstance(conversation, str) else conversation[-1][1]
        if answer is None:
            missing = Answer("error", detail=f"the recorded turns have no {role} {name}")
            return Turn(role, name, asked, missing, None)
        cost = None if endpoint.price is None else endpoint.price.of_answer(answer)
        turn = Turn(role, name, asked, answer, cost)
        self.turns.append(turn)
        return turn


async def at_once(*scripts: Awaitable[Any]) -> list[Any]:
    """Await parts of a dialogue at the same time; raises the first exception once all have ended.

    Unlike `asyncio.gather`, it leaves no part behind that asks on after the dialogue has ended.
    """
    results = await asyncio.gather(*scripts, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def without_reasoning(text: str) -> str:
    """A text without blocks such as <think>...</think>, stripped."""
    text = _REASONING.sub("", text)
    # Some servers strip the opening tag.
    return text.rpartition("</think>")[2].strip()


# Endpoints -----------------------------------------------------------------------------------


@dataclass
class _Asked:
    """A model behind inspect-ai; the client stores its answers."""

    client: Client

    @property
    def price(self) -> Price | None:
        return self.client.budget.price

    def key(self, question: Question, sample: int) -> str:
        return keys_of(self.client.name, [question], self.client.sampling, sample)[0]

    async def answer(
        self, talk: Talk, role: str, step: str, question: Question, sample: int, example: str
    ) -> Answer:
        del talk, role, step, example
        answer = await self.client.answer(question, self.key(question, sample))
        if answer is None:
            raise UnfinishedError(self.client.budget.spent())
        return answer


@dataclass
class _Rehearsed:
    """Stored answers, and examples in place of all others.

    Attributes:
        keys: of all questions, and whether they are answered.
        tokens: read and written, by each call that is left.
    """

    asked: _Asked
    keys: dict[str, bool] = field(default_factory=dict)
    tokens: list[tuple[int, int]] = field(default_factory=list)

    @property
    def price(self) -> Price | None:
        return self.asked.price

    async def answer(
        self, talk: Talk, role: str, step: str, question: Question, sample: int, example: str
    ) -> Answer:
        key = self.asked.key(question, sample)
        is_new = key not in self.keys
        stored = self.asked.client.store.get(key)
        self.keys[key] = stored is not None
        if stored is not None:
            return stored
        read, written = estimate_tokens(text_of(question)), estimate_tokens(example)
        if is_new:
            self.tokens.append((read, written))
        if role == WRITER:
            # Texts differ between writers and items, and so do the questions about them.
            about = talk.dialogue
            mark = f"{about.writer} {about.prompt_id} {about.sample} {step}"
            marked = example.replace(EXAMPLE_MARK, mark)
            example = f"{example}\n{mark}" if marked == example else marked
        return Answer("answered", example, input_tokens=read, output_tokens=written)

    def estimate(self, role: str, dialogues: int) -> Estimate:
        """Estimate what the answers that are not stored cost."""
        client = self.asked.client
        at_once = min(client.traffic.connections, dialogues)
        return client.estimate(role, self.tokens, sum(self.keys.values()), at_once)


@dataclass
class _Recorded:
    """A table of turns as a model."""

    model: str
    price: None = None

    async def answer(
        self, talk: Talk, role: str, step: str, question: Question, sample: int, example: str
    ) -> Answer | None:
        del question, sample, example
        dialogue = talk.dialogue
        place = (dialogue.writer, dialogue.prompt_id, dialogue.sample, role, step)
        return _recorded_turns(self.model).get(place)


@cache
def _recorded_turns(model: str) -> dict[tuple[str, str, int, str, str], Answer]:
    rows = read_table(Path(model.removeprefix(RECORDED)), TURNS).to_pylist()
    names = ("text", "outcome", "model", "input_tokens", "output_tokens", "seconds")
    return {
        tuple(row[name] for name in TURNS.key): Answer(**{name: row[name] for name in names})
        for row in rows
    }


def recorded_names(model: str) -> tuple[list[str], list[str]]:
    """Names of the writers, and of the other roles, in a file of turns `recorded/FILE`."""
    places = _recorded_turns(model)
    writers = dict.fromkeys(place[0] for place in places)
    roles = dict.fromkeys(place[3] for place in places if place[3] != WRITER)
    return list(writers), list(roles)


# Holding dialogues ---------------------------------------------------------------------------


@dataclass
class Cast:
    """The models of a run.

    Attributes:
        writers: by name; each plays the role `writer` in its dialogues.
        roles: the other roles by name.
        prices: prices by model, see `litbench.judges.prices`.
        budgets: what each model that is asked has spent, by ("writer", name) or ("role", name).

    Raises:
        ConfigError: see `check_limit`.
    """

    writers: Mapping[str, Role]
    roles: Mapping[str, Role]
    prices: Mapping[str, Price]
    budgets: dict[tuple[str, str], Budget] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for key, role in self._by_key().items():
            if not role.is_recorded:
                price = price_of(role.model, self.prices)
                check_limit(role.traffic, price, role.sampling)
                self.budgets[key] = Budget(role.traffic, price)

    def _by_key(self) -> dict[tuple[str, str], Role]:
        roles = {("role", name): role for name, role in self.roles.items()}
        return {("writer", name): role for name, role in self.writers.items()} | roles

    def endpoints(self, store: AnswerStore) -> dict[tuple[str, str], Endpoint]:
        """An endpoint per ("writer", name) and ("role", name)."""
        found: dict[tuple[str, str], Endpoint] = {}
        pending: dict[str, asyncio.Task[Answer | None]] = {}
        for key, role in self._by_key().items():
            if role.is_recorded:
                found[key] = _Recorded(role.model)
                continue
            budget = self.budgets[key]
            client = Client(role.model, store, role.sampling, role.traffic, budget, pending=pending)
            found[key] = _Asked(client)
        return found


def hold(
    dialogues: Sequence[Dialogue],
    cast: Cast,
    store: AnswerStore,
    take: Callable[[Held], None],
    about: str,
) -> None:
    """Hold all dialogues and pass each to `take`, in the order of `dialogues`.

    Raises:
        ModelError: a model failed `give_up_after` times in a row.
    """
    asyncio.run(_hold_all(dialogues, cast.endpoints(store), take, about))


def estimate(dialogues: Sequence[Dialogue], cast: Cast, store: AnswerStore) -> list[Estimate]:
    """Hold all dialogues with stored answers and examples; returns an estimate per model."""
    endpoints = cast.endpoints(store)
    known = {
        key: _Rehearsed(found) for key, found in endpoints.items() if isinstance(found, _Asked)
    }
    asyncio.run(_hold_all(dialogues, {**endpoints, **known}, lambda _: None, "reading answers"))
    return [found.estimate(name, len(dialogues)) for (_, name), found in known.items()]


async def _hold_all(
    dialogues: Sequence[Dialogue],
    endpoints: Mapping[tuple[str, str], Endpoint],
    take: Callable[[Held], None],
    about: str,
) -> None:
    clients = [found.client for found in endpoints.values() if isinstance(found, _Asked)]
    connections = sum(client.traffic.connections for client in clients) or 1
    size = min(len(dialogues), _DIALOGUES_PER_CONNECTION * connections)
    roles = {name: found for (kind, name), found in endpoints.items() if kind == "role"}
    queue = iter(enumerate(dialogues))
    ended: dict[int, Held] = {}
    expected = 0

    async def work(bar: Any) -> None:
        nonlocal expected
        for index, dialogue in queue:
            writer = endpoints.get(("writer", dialogue.writer))
            cast = roles if writer is None else {WRITER: writer, **roles}
            talk = Talk(dialogue, cast)
            try:
                ended[index] = Held(dialogue, talk.turns, await dialogue.script(talk))
            except UnfinishedError as error:
                ended[index] = Held(dialogue, talk.turns, reason=str(error))
            bar.update()
            # Clients of the same model share its dollars.
            dollars = {client.name: client.budget.dollars for client in clients}
            bar.set_postfix({"$": f"{sum(dollars.values()):.2f}"})
            while expected in ended:
                take(ended.pop(expected))
                expected += 1

    async with contextlib.AsyncExitStack() as stack:
        for client in clients:
            await stack.enter_async_context(client)
        with tqdm(
            total=len(dialogues), desc=about, unit="dialogue", leave=False, disable=None
        ) as bar:
            await run_workers(work(bar) for _ in range(size))
