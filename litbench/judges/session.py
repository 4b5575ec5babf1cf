"""Sessions: conversations of several turns with models in roles; a killed run resumes.

A session runs a coroutine that asks models through `Session.ask`:

    async def script(session: Session) -> str:
        turn = await session.ask("writer", [("user", "Write a story.")], step="story")
        if not turn.text:
            raise UnfinishedError("the writer wrote no story")
        return turn.text

Only answers are stored. A restarted run starts every session anew and gets the stored answers at
once, so it continues where it stopped. A script must therefore not depend on a clock or on unseeded
chance. The model `recorded/FILE` stands for the turns of a table (`litbench.data.records.TURNS`).

A question whose answer is read (`Readable`) is asked by `Session.ask_readable`: with a code that no
story can know (`litbench.raters.templates.parser`), and once more in the same conversation if its
answer cannot be read. The code is a hash of the question and of a secret seed, which is stored
beside the answers, so that equal questions stay equal.
"""

import asyncio
import contextlib
import os
import re
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from litbench.data.records import TURNS
from litbench.data.tables import read_table
from litbench.judges.answers import (
    Answer,
    AnswerStore,
    Question,
    Sampling,
    keys_of,
    shown_text,
    text_of,
)
from litbench.judges.client import (
    Budget,
    Client,
    Traffic,
    check_limit,
    check_model,
    estimate_tokens,
    first_connections,
)
from litbench.judges.prices import Price, price_of
from litbench.raters.interface import UNASKED, Estimate
from litbench.raters.templates.parser import make_code
from litbench.runs.config import as_plain, build
from litbench.runs.errors import ConfigError, LitBenchError
from litbench.runs.progress import ProgressBar

RECORDED = "recorded/"
WRITER = "writer"
JUDGE = "judge"
# A session in a table of turns: writer, prompt_id and sample; in it, role and step of a turn.
_Place = tuple[str, str, int]
_Turns = dict[tuple[str, str], Answer]
# Sample numbers of stored answers: one block per sample of a session, one number per attempt.
_ATTEMPTS = 100
# Sessions under way at the same time, per connection: enough to keep all connections busy.
_SESSIONS_PER_CONNECTION = 4
# Of the folder of answers: the secret seed of the codes.
_SEED = "seed.txt"
# Attempts of recorded runs that asked a whole question again.
ATTEMPTS = 3
# Replaced in examples by what distinguishes the questions of sessions; see `Mock`.
_MARK = "SESSION_NAME"
# For estimates: time to the first token, and generation speed.
_SECONDS_TO_START = 1.0
_TOKENS_PER_SECOND = 60.0
# Number of answers after which their mean time replaces the assumed one.
_ENOUGH_ANSWERS = 10


class UnfinishedError(LitBenchError):
    """A session cannot go on; the others go on."""


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
        """Whether its turns are read from a table."""
        return self.model.startswith(RECORDED)


def read_role(entry: Any, where: str, sampling: Sampling, traffic: Traffic) -> Role:
    """Read a config's entry of a role: a model, or the keys of `Role`; with defaults."""
    keys: dict[str, Any] = {"model": entry} if isinstance(entry, str) else dict(entry)
    keys["sampling"] = {**as_plain(sampling), **keys.get("sampling", {})}
    keys["traffic"] = {**as_plain(traffic), **keys.get("traffic", {})}
    return build(Role, keys, where)


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

    @property
    def text(self) -> str:
        """The text of the answer; empty if it was refused, which includes filtered answers."""
        return self.answer.text if self.outcome in ("answered", "cut") else ""

    @property
    def outcome(self) -> str:
        return self.answer.outcome


class Readable(Protocol):
    """A question whose answer is read; `code` is None where it is asked without a code."""

    @property
    def is_coded(self) -> bool:
        """Whether it asks for a code."""

    def render(self, code: str | None) -> Question:
        """The question."""

    def is_read(self, answer: str, code: str | None) -> bool:
        """Whether an answer can be read."""

    def repair(self, code: str | None) -> str | None:
        """The request after an answer that cannot be read; None to ask only once."""


@dataclass(frozen=True)
class Request:
    """A request of a session to a model.

    Attributes:
        number: distinguishes samples and attempts.
        code: the code that the question asks for.
        repair: the request that follows if the answer cannot be read.
    """

    session: "Session"
    role: str
    step: str
    messages: Question
    number: int
    code: str | None = None
    repair: str | None = None


Model = Callable[[Request], Awaitable[Answer]]


@dataclass
class Session:
    """A conversation about one item.

    Attributes:
        writer: name of the writer, which plays the role `writer`.
        prompt_id: the item.
        sample: number of the sample.
        script: its coroutine; None if somebody else asks.
        models: by role; set when the session starts.
        recorded: answers of roles without a model, by role and step; set likewise.
        transcript: its turns by role and step, in the order of the answers.
        result: what the script returned; None if the session is unfinished.
        reason: why it is unfinished.
        judge_sample: number of a repeated judgement of the same texts; see `rubric.rate`.
        seed: secret seed of the codes; that of the stored answers in a run.
        is_stored: whether the answer of a role to a question is stored; set when the session
            starts.
        shown: what a person who plays a role is shown with the next question; set by protocols
            that people can play.
    """

    writer: str
    prompt_id: str
    sample: int
    script: Callable[["Session"], Awaitable[Any]] | None = None
    models: Mapping[str, Model] = field(default_factory=dict)
    recorded: Mapping[tuple[str, str], Answer] = field(default_factory=dict)
    transcript: dict[tuple[str, str], Turn] = field(default_factory=dict)
    result: Any = None
    reason: str | None = None
    judge_sample: int = 0
    seed: str = field(default_factory=secrets.token_hex)
    is_stored: Callable[[str, Question, int], bool] = lambda *_: False
    shown: Mapping[str, Any] = field(default_factory=dict)

    async def ask(
        self,
        role: str,
        messages: Question,
        *,
        step: str,
        attempt: int = 0,
        code: str | None = None,
        repair: str | None = None,
    ) -> Turn:
        """Ask the model of a role, or look up the recorded answer.

        Args:
            role: a name of the run's roles.
            messages: a text, or (role, text) pairs with the roles system, user and assistant.
            step: name of the step, unique within the session and role.
            attempt: a later attempt gets another answer to the same question.
            code: the code that the question asks for.
            repair: the request that may follow, for estimates.

        Returns:
            The turn; its outcome is `error` if the request failed, or if no such turn is recorded.

        Raises:
            UnfinishedError: a limit is reached.
        """
        name = f"{step}/{attempt + 1}" if attempt else step
        question = messages if isinstance(messages, str) else messages[-1][1]
        number = self.sample * _ATTEMPTS + attempt
        if role in self.models:
            request = Request(self, role, name, messages, number, code, repair)
            answer = await self.models[role](request)
        elif self.is_missing(role, name):
            detail = f"the recorded turns have no {role} {name}"
            return Turn(role, name, question, Answer("error", detail=detail))
        else:
            answer = self.recorded[role, name]
        return self.transcript.setdefault((role, name), Turn(role, name, question, answer))

    async def ask_readable(
        self, role: str, question: Readable, *, step: str, attempt: int = 0
    ) -> "Asked":
        """Ask a question, and once more in the same conversation if the answer cannot be read.

        Recorded answers, and answers that an older run stored, have no code.

        Raises:
            UnfinishedError: a limit is reached.
        """
        plain = question.render(None)
        is_old = self.is_stored(role, plain, self.sample * _ATTEMPTS + attempt)
        has_code = question.is_coded and not is_old and not self.is_recorded(role)
        code = make_code(self.seed, text_of(plain)) if has_code else None
        messages, repair = question.render(code), question.repair(code)
        turns = [
            await self.ask(role, messages, step=step, attempt=attempt, code=code, repair=repair)
        ]
        for number in range(attempt + 1, attempt + (ATTEMPTS if self.is_recorded(role) else 2)):
            turn = turns[-1]
            is_unread = turn.outcome == "answered" and not question.is_read(turn.text, code)
            if repair is None or not is_unread or self.is_missing(role, f"{step}/{number + 1}"):
                break
            asked = [("user", messages)] if isinstance(messages, str) else list(messages)
            asked += [("assistant", turn.text), ("user", repair)]
            turns.append(await self.ask(role, asked, step=step, attempt=number, code=code))
        return turns, code

    def is_missing(self, role: str, step: str) -> bool:
        """Whether a role has recorded answers, but none for this step."""
        return self.is_recorded(role) and (role, step) not in self.recorded

    def is_recorded(self, role: str) -> bool:
        """Whether a role has recorded answers, whatever it is asked."""
        return role not in self.models

    def messages(self) -> list[tuple[str, str]]:
        """All questions and answers, as a log shows them."""
        return [
            message
            for turn in self.transcript.values()
            for message in (
                ("user", f"[to {turn.role}: {turn.step}]\n\n{turn.question}"),
                ("assistant", shown_text(turn.answer)),
            )
        ]


async def gather_all(*scripts: Awaitable[Any]) -> list[Any]:
    """Await parts of a session at the same time; raises the first exception once all have ended.

    Unlike `asyncio.gather`, it leaves no part behind that asks on after the session has ended.
    """
    results = await asyncio.gather(*scripts, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


# The models of a run ---------------------------------------------------------------------------


@dataclass
class Models:
    """The models of a run, and what they have spent.

    Attributes:
        writers: by name; each plays the role `writer` in its sessions.
        roles: the other roles by name.
        prices: prices by model, see `litbench.judges.prices`.
        batch: questions per batch of the provider's batch interface; None for no batches.
        budgets: of each model that is asked, by ("writer", name) or ("role", name).

    Raises:
        ConfigError: see `check_limit`.
    """

    writers: Mapping[str, Role]
    roles: Mapping[str, Role]
    prices: Mapping[str, Price] = field(default_factory=dict)
    batch: int | None = None
    budgets: dict[tuple[str, str], Budget] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for key, role in self._by_key().items():
            if not role.is_recorded:
                price = price_of(role.model, self.prices)
                check_limit(role.traffic, role.model, price, role.sampling)
                self.budgets[key] = Budget(role.traffic, price)

    def all_roles(self) -> list[Role]:
        """Writers and other roles."""
        return list(self._by_key().values())

    def _by_key(self) -> dict[tuple[str, str], Role]:
        return {
            (kind, name): role
            for kind, roles in (("writer", self.writers), ("role", self.roles))
            for name, role in roles.items()
        }

    def clients(self, store: AnswerStore) -> dict[tuple[str, str], Client]:
        """A client of each model that is asked; equal questions at the same time are sent once."""
        roles = self._by_key()
        pending: dict[str, asyncio.Task[Answer | None]] = {}
        return {
            key: Client(roles[key].model, store, roles[key].sampling, budget, self.batch, pending)
            for key, budget in self.budgets.items()
        }

    def cost(self, writer: str, turn: Turn) -> float | None:
        """Dollars of a turn; None if they are unknown."""
        key = ("writer", writer) if turn.role == WRITER else ("role", turn.role)
        budget = self.budgets.get(key)
        return budget.price.of_answer(turn.answer) if budget and budget.price else None

    def recorded(self, session: Session) -> _Turns:
        """The recorded answers of a session, by role and step."""
        key = (session.writer, session.prompt_id, session.sample)
        roles = dict(self.roles)
        if session.writer in self.writers:
            roles[WRITER] = self.writers[session.writer]
        return {
            (name, step): answer
            for name, role in roles.items()
            if role.is_recorded
            for (role_name, step), answer in _recorded_turns(role.model).get(key, {}).items()
            if role_name == name
        }


def _recorded_turns(model: str) -> dict[_Place, _Turns]:
    """The turns of `recorded/FILE`, by session."""
    # Absolute, because the working directory may change.
    return _read_turns(Path(model.removeprefix(RECORDED)).absolute())


@cache
def _read_turns(path: Path) -> dict[_Place, _Turns]:
    names = ("text", "outcome", "model", "input_tokens", "output_tokens", "seconds")
    turns: dict[_Place, _Turns] = defaultdict(dict)
    for row in read_table(path, TURNS).to_pylist():
        key = (row["writer"], row["prompt_id"], row["sample"])
        turns[key][row["role"], row["step"]] = Answer(**{name: row[name] for name in names})
    return turns


def recorded_names(model: str) -> tuple[list[str], list[str]]:
    """Names of the writers, and of the other roles, in a file of turns `recorded/FILE`."""
    turns = _recorded_turns(model)
    roles = dict.fromkeys(role for of_session in turns.values() for role, _ in of_session)
    return list(dict.fromkeys(writer for writer, *_ in turns)), [r for r in roles if r != WRITER]


class Example(Protocol):
    """A rubric or a template, with the usual length of its answers."""

    def example(self, code: str | None) -> str:
        """The answer to a question with this code."""


@dataclass(frozen=True)
class Mock:
    """Answers of usual length for a dry run, by kind of step: `chapter` of `chapter_3`.

    A writer's answers contain the name of their session, so that the questions about them differ;
    in answers of other roles, SESSION_NAME becomes the name of the item.

    Attributes:
        texts: by role and kind: a text, or a text and how often it is repeated.
        rubrics: by kind, of all roles without texts: rubrics or templates.
    """

    texts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rubrics: Mapping[str, "Example"] = field(default_factory=dict)

    def example(self, request: Request) -> str:
        """An answer of usual length to a request."""
        step = request.step.partition("/")[0]
        kind = re.sub(r"_\d+$", "", step)
        if request.role not in self.texts:
            return (self.rubrics.get(step) or self.rubrics[kind]).example(request.code)
        example: Any = self.texts[request.role][kind]
        return example if isinstance(example, str) else example[0] * example[1]

    def answer(self, request: Request) -> str:
        """The example, with names."""
        text, about = self.example(request), request.session
        if request.role != WRITER:
            return text.replace(_MARK, about.prompt_id)
        mark = f"{about.writer} {about.prompt_id} {about.sample} {request.step}"
        return text.replace(_MARK, mark) if _MARK in text else f"{text}\n{mark}"


# Running sessions ------------------------------------------------------------------------------


async def _send(client: Client, request: Request) -> Answer:
    """The stored answer to a request, or a new one; UnfinishedError if a limit is reached."""
    key = _key(client, request.messages, request.number)
    answer = await client.answer(request.messages, key)
    if answer is None:
        raise UnfinishedError(client.budget.spent())
    return answer


class _Pace:
    """Prints once, after ten new answers, how long the rest will take."""

    def __init__(self, about: str) -> None:
        self._about = about
        self._first: tuple[float, int] | None = None
        self._is_told = False

    def add(self, n_calls: int, n_left: int) -> None:
        """Note that this many calls have ended, and this many answers are missing."""
        if self._is_told or not n_calls:
            return
        self._first = self._first or (time.monotonic(), n_calls)
        moment, first = self._first
        if n_calls - first >= _ENOUGH_ANSWERS and n_left:
            self._is_told = True
            seconds = (time.monotonic() - moment) / (n_calls - first)
            ProgressBar.write(
                f"{self._about}: measured: {seconds:.1f} s an answer, about "
                f"{n_left * seconds / 60:.1f} minutes for {n_left:,} more answers",
                file=sys.stderr,
            )


def run_sessions(
    sessions: Iterable[Session],
    total: int,
    models: Models,
    store: AnswerStore,
    add: Callable[[Session], None],
    about: str,
    answer: Callable[[Client, Request], Awaitable[Answer]] = _send,
    unit: str = "session",
) -> None:
    """Run all sessions and pass each to `add`, in their order.

    Args:
        sessions: they are made when they start, and kept by `add` alone.
        total: their number.
        models: the models of all roles.
        store: stored answers.
        add: takes a session that has ended.
        about: label of the progress bar.
        answer: answers a request by the client of its model.
        unit: what the progress bar counts.

    Raises:
        ModelError: a model failed `give_up_after` times in a row.
    """
    clients = models.clients(store)
    asked = {key: partial(answer, client) for key, client in clients.items()}
    roles = {name: model for (kind, name), model in asked.items() if kind == "role"}
    seed = read_seed(store.folder, may_write=answer is _send)
    queue = iter(enumerate(sessions))
    ended: dict[int, Session] = {}
    expected = 0
    pace = _Pace(about)

    def is_stored(writer: str, role: str, messages: Question, number: int) -> bool:
        client = clients.get(("writer", writer) if role == WRITER else ("role", role))
        return client is not None and _key(client, messages, number) in store

    async def work(bar: Any) -> None:
        nonlocal expected
        for index, session in queue:
            writer = asked.get(("writer", session.writer))
            session.models = roles if writer is None else {WRITER: writer, **roles}
            session.seed, session.is_stored = seed, partial(is_stored, session.writer)
            session.recorded = models.recorded(session)
            assert session.script is not None
            try:
                session.result = await session.script(session)
            except UnfinishedError as error:
                session.reason = str(error)
            ended[index] = session
            # Clients of the same model share its dollars.
            dollars = {client.name: client.budget.dollars for client in clients.values()}
            if unit == "answer":
                n_calls = sum(
                    client.budget.calls - client.budget.under_way for client in clients.values()
                )
                pace.add(n_calls, total - bar.n - 1)
            bar.set_postfix({"$": f"{sum(dollars.values()):.2f}"}, refresh=False)
            bar.update()
            while expected in ended:
                add(ended.pop(expected))
                expected += 1

    async def run() -> None:
        size = total
        if models.batch is None:
            connections = sum(client.budget.traffic.connections for client in clients.values())
            size = min(total, _SESSIONS_PER_CONNECTION * max(connections, 1))
        async with contextlib.AsyncExitStack() as stack:
            for client in clients.values():
                await stack.enter_async_context(client)
            form = (
                "{desc}: {n_fmt} of {total_fmt} "
                + unit
                + "s |{bar}| {elapsed}<{remaining}{postfix}"
            )
            with ProgressBar(total=total, desc=about, bar_format=form, leave=False) as bar:
                workers = [asyncio.create_task(work(bar)) for _ in range(size)]
                try:
                    await asyncio.gather(*workers)
                finally:
                    # The first error ends the others.
                    for worker in workers:
                        worker.cancel()
                    await asyncio.gather(*workers, return_exceptions=True)

    # Not `asyncio.run`, which inspect-ai may replace by one that leaves its loop open.
    with asyncio.Runner() as runner:
        runner.run(run())


def finish_sessions(
    sessions: Sequence[Session],
    models: Models,
    store: AnswerStore,
    about: str,
    done: str,
    *,
    may_stop: bool = False,
) -> list[Session]:
    """Run sessions that all must end, unless `may_stop`: then a limit leaves some without result.

    Raises:
        ConfigError: a limit is reached; `about` and `done` ("stories are rated") are for messages.
        ModelError: see `run_sessions`.
    """
    ended: list[Session] = []
    run_sessions(sessions, len(sessions), models, store, ended.append, about, unit="answer")
    reasons = [session.reason for session in ended if session.reason is not None]
    if reasons and not may_stop:
        raise ConfigError(
            f"{about}: {reasons[0]}; {len(ended) - len(reasons)} of {len(ended)} {done}, and "
            f"{len(store):,} answers are stored in {store.folder}"
        )
    return ended


# The turns of a question, of which the last is to be read, and its code.
Asked = tuple[list[Turn], str | None]


def question_sessions(questions: Iterable[Question | Readable], samples: int = 1) -> list[Session]:
    """Sessions for each question to the role `judge`, one a sample; their results are `Asked`."""

    async def script(question: Question | Readable, session: Session) -> Asked:
        if isinstance(question, str | Sequence):
            return [await session.ask(JUDGE, question, step="answer")], None
        return await session.ask_readable(JUDGE, question, step="answer")

    return [
        Session("", "", sample, partial(script, question))
        for question in questions
        for sample in range(samples)
    ]


def ask(
    models: Models, questions: Sequence[Question], store: AnswerStore, about: str
) -> list[Answer]:
    """Ask independent questions whose answers are not read, see `ask_readable`."""
    return [turns[-1].answer for turns, _ in ask_readable(models, questions, store, about)]


def ask_readable(
    models: Models,
    questions: Sequence[Question | Readable],
    store: AnswerStore,
    about: str,
    *,
    samples: int = 1,
    may_stop: bool = False,
) -> list[Asked]:
    """Ask the model of the role `judge` independent questions.

    Questions are sent in sorted order, so that those with a common prefix benefit from the
    provider's prompt cache.

    Args:
        models: with the role `judge`.
        questions: texts, conversations, or questions whose answers are read; shape (n,).
        store: supplies known answers and stores new ones.
        about: label of the progress bar.
        samples: answers to each question.
        may_stop: whether questions that a limit does not allow get an error that starts with
            `UNASKED`.

    Returns:
        The turns and codes, shape (n * samples,); those of a question are adjacent.

    Raises:
        ConfigError: a limit is reached, unless `may_stop`.
        ModelError: see `run_sessions`.
    """
    texts = [
        text_of(asked if isinstance(asked, str | Sequence) else asked.render(None))
        for asked in questions
    ]
    ordered = sorted(range(len(questions)), key=texts.__getitem__)
    sessions = question_sessions((questions[index] for index in ordered), samples)
    numbers = [index * samples + sample for index in ordered for sample in range(samples)]
    done = "questions are answered"
    ended = finish_sessions(sessions, models, store, about, done, may_stop=may_stop)
    answers: dict[int, Asked] = {}
    for number, session in zip(numbers, ended, strict=True):
        unasked = Answer("error", detail=f"{UNASKED}{session.reason}")
        turn = Turn(JUDGE, "answer", texts[number // samples], unasked)
        answers[number] = session.result or ([turn], None)
    return [answers[number] for number in range(len(numbers))]


def estimate(
    sessions: Iterable[Session], total: int, models: Models, store: AnswerStore, mock: Mock
) -> list[Estimate]:
    """Run all sessions with stored answers, else the mock's; returns an estimate per model.

    Raises:
        ConfigError: a model has no known provider.
    """
    # By budget and key of the question: the tokens of a new call; None if the answer is stored.
    calls: dict[int, dict[str, tuple[int, int] | None]] = defaultdict(dict)
    # Likewise the tokens that each repair of a new answer reads besides this answer.
    repairs: dict[int, list[int]] = defaultdict(list)
    # Seconds of the stored answers.
    measured: dict[int, list[float]] = defaultdict(list)

    async def answer(client: Client, request: Request) -> Answer:
        counted = calls[id(client.budget)]
        key = _key(client, request.messages, request.number)
        if (stored := store.get(key)) is not None:
            counted[key] = None
            if stored.seconds is not None:
                measured[id(client.budget)].append(stored.seconds)
            return stored
        read, written = map(estimate_tokens, (text_of(request.messages), mock.example(request)))
        written = min(written, client.sampling.max_tokens or written)
        counted[key] = read, written
        if request.repair is not None:
            repairs[id(client.budget)].append(read + estimate_tokens(request.repair))
        text = mock.answer(request)
        return Answer("answered", text, input_tokens=read, output_tokens=written)

    early: list[str] = []

    def add(session: Session) -> None:
        if session.reason is not None:
            early.append(f"{session.prompt_id}: {session.reason}")

    run_sessions(sessions, total, models, store, add, "reading answers", answer)
    if early:
        print(f"{len(early):,} of {total:,} would end early, for example {early[0]}")
    estimates = []
    for (_, name), client in models.clients(store).items():
        check_model(client.name)
        of_model, price = calls[id(client.budget)], client.budget.price
        new = [tokens for tokens in of_model.values() if tokens is not None]
        read, written = (sum(tokens[side] for tokens in new) for side in (0, 1))
        most = client.sampling.max_tokens
        repaired = repairs[id(client.budget)]
        costs = [
            None if price is None else price.of(*tokens, batched=client.batch is not None)
            for tokens in (
                (read, written),
                (
                    read + sum(repaired) + len(repaired) * (most or 0),
                    (len(new) + len(repaired)) * (most or 0),
                ),
            )
        ]
        parallel = max(min(first_connections(client.name, client.budget.traffic), total), 1)
        per_call = _SECONDS_TO_START + written / _TOKENS_PER_SECOND / max(len(new), 1)
        source, times = "assumed", measured[id(client.budget)]
        if len(times) >= _ENOUGH_ANSWERS:
            per_call, source = fmean(times), f"measured on {len(times):,} stored answers"
        estimates.append(
            Estimate(
                rater=name,
                model=client.name,
                calls=len(new),
                known=len(of_model) - len(new),
                input_tokens=read,
                output_tokens=written,
                cost_usd=costs[0],
                most_cost_usd=None if most is None else costs[1],
                seconds=len(new) * per_call / parallel,
                basis=f"{len(new):,} calls x {per_call:.1f} s ({source}) / {parallel} connections",
            )
        )
    return estimates


def _key(client: Client, messages: Question, number: int) -> str:
    return keys_of(client.name, [messages], client.sampling, number)[0]


def read_seed(folder: Path, *, may_write: bool) -> str:
    """The secret seed of a folder of answers, made at random where there is none."""
    path, seed = folder / _SEED, secrets.token_hex()
    if may_write and not path.exists():
        draft = path.with_name(f"{_SEED}.{seed[:8]}")
        draft.write_text(seed)
        # A link is made whole or not at all, and another program may have been first.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    return path.read_text() if path.exists() else seed
