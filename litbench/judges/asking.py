"""Ask any model many independent questions; killed at any moment, ask only what is still open.

    with AnswerStore(out / "answers") as store:
        answers = ask("openai/gpt-4.1-mini", questions, store, Sampling(), Traffic())

The model is any name that inspect-ai knows: `openai/...`, `anthropic/...`, `hf/FOLDER` for a model
on this machine, `openai-api/SERVICE/MODEL` for a server with an OpenAI-compatible interface, whose
address and key stand in `SERVICE_BASE_URL` and `SERVICE_API_KEY`. Keys come from the environment,
where inspect-ai looks for them, and are struck out of every message.

inspect-ai brings the providers, their errors, the retries and their interfaces for batches. What it
is not used for is keeping the answers: its evaluation log is written in batches, so a killed run
loses answers that were paid for. They are in `litbench.judges.store`, each as soon as it is there.

A refusal and an answer that was cut off are answers and are kept. An error is none: it is reported
and asked again by the next run.
"""

import asyncio
import contextvars
import itertools
import math
import os
import random
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from litbench.config import as_plain
from litbench.errors import ConfigError, MissingExtraError, ModelError
from litbench.judges.prices import Price
from litbench.judges.store import Answer, AnswerStore, Sampling, keys_of

_OUTCOME_OF = {
    "stop": "answered",
    "content_filter": "refused",
    "max_tokens": "cut",
    "model_length": "cut",
}
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.I)
# What stands before the @ of an address: a name and a password.
_LOGIN = re.compile(r"(://)[^/\s]+@")
# English runs at 4 to 4.5 bytes a token, Chinese at 4 to 5.
_BYTES_PER_TOKEN = 4
# Roles and markers that a provider puts around a question.
_TOKENS_AROUND = 16
# What a call is expected to write at most when `max_tokens` is left to the model.
_MOST_TOKENS = 4_096
_MOST_AT_ONCE = 1_000_000


@dataclass
class Traffic:
    """How questions are sent; what comes out does not depend on it.

    Attributes:
        connections: questions under way at once.
        max_retries: tries after the first one, when the provider is busy, fails or is silent. Some
            providers' own libraries try twice more within each.
        timeout_seconds: after which one try is given up.
        first_wait_seconds: pause after the first failed try; it doubles from try to try.
        longest_wait_seconds: of these pauses.
        max_calls: most calls of this run, second tries of questions that failed and questions with
            a hint among them; null for as many as it takes. Tries within a call do not count.
        max_cost_usd: most dollars for these questions in all runs together, by the table of prices;
            null for no limit. A call is made only while its dearest end fits in.
        give_up_after: so many calls in a row that the provider does not answer end the run, since
            a wrong key or a wrong name fails every time.
    """

    connections: int = 16
    max_retries: int = 6
    timeout_seconds: int = 180
    first_wait_seconds: float = 2.0
    longest_wait_seconds: float = 60.0
    max_calls: int | None = None
    max_cost_usd: float | None = None
    give_up_after: int = 10

    def check(self) -> None:
        """Refuse numbers that ask for nothing.

        Raises:
            ConfigError: a number is too small.
        """
        for name, least in (
            ("connections", 1),
            ("max_retries", 0),
            ("timeout_seconds", 1),
            ("first_wait_seconds", 0),
            ("longest_wait_seconds", 0),
            ("max_calls", 0),
            ("max_cost_usd", 0),
            ("give_up_after", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}: give at least {least}")


class Budget:
    """The calls and dollars that a run may still spend.

    Attributes:
        calls: how many calls it has made.
        dollars: what its answers cost, those of earlier runs that were noted too.

    Args:
        traffic: has the limits.
        price: of the model; needed where dollars are limited.

    Raises:
        ConfigError: dollars are limited and the price is not known.
    """

    def __init__(self, traffic: Traffic, price: Price | None = None) -> None:
        if traffic.max_cost_usd is not None and price is None:
            raise ConfigError(
                f"max_cost_usd is {traffic.max_cost_usd}, and the model has no price: name it in a "
                "file and give that as prices, or limit max_calls"
            )
        self.calls = 0
        self.dollars = 0.0
        self._price = price
        self._most_calls = traffic.max_calls
        self._most_dollars = traffic.max_cost_usd
        self._reserved = 0.0

    def take(self, question: str, sampling: Sampling, *, batched: bool = False) -> float | None:
        """Set aside what one call may cost.

        Returns:
            Its dearest end in dollars, to be given to `settle`; None where it must not be made.
        """
        if self._most_calls is not None and self.calls >= self._most_calls:
            return None
        dearest = 0.0
        if self._price is not None:
            written = _MOST_TOKENS if sampling.max_tokens is None else sampling.max_tokens
            read = estimate_tokens(question) + _TOKENS_AROUND
            dearest = self._price.of(read, written, batched=batched)
        if self._most_dollars is not None and (
            self.dollars + self._reserved + dearest > self._most_dollars
        ):
            return None
        self.calls += 1
        self._reserved += dearest
        return dearest

    def settle(self, dearest: float, answer: Answer) -> None:
        """Replace what was set aside by what an answer cost; nothing is known of an error's."""
        self._reserved -= dearest
        self.note(answer)

    def note(self, answer: Answer) -> None:
        """Count what a stored answer cost."""
        if self._price is not None:
            self.dollars += self._price.of_answer(answer) or 0.0

    def note_stored(self, store: AnswerStore, keys: Iterable[str]) -> None:
        """Count what the answers cost that are there from earlier runs."""
        for key in keys:
            if (stored := store.get(key)) is not None:
                self.note(stored)

    def spent(self) -> str:
        """Which limit stops a run, and what came of it."""
        if self._most_calls is not None and self.calls >= self._most_calls:
            return f"max_calls of {self._most_calls} is reached"
        return f"max_cost_usd of ${self._most_dollars} would be passed (${self.dollars:.4f} spent)"


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has: one for four bytes; right to a fifth or so."""
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


def ask(
    model: str,
    questions: Sequence[str],
    store: AnswerStore,
    sampling: Sampling,
    traffic: Traffic,
    *,
    sample: int | Sequence[int] = 0,
    about: str = "answers",
    budget: Budget | None = None,
) -> list[Answer]:
    """Ask a model some independent questions, each of which is one message of a conversation.

    They are asked in the order of their texts, so that those that begin alike follow each other
    and a provider's prompt cache can help. The same question twice is asked once, for each sample.

    Args:
        model: see the module.
        questions: whole texts; shape (n,).
        store: has the answers that are known, and takes the new ones.
        sampling: what the answers depend on.
        traffic: how they are asked for.
        sample: see `keys_of`.
        about: said beside the progress bar.
        budget: of a run that asks more than once; else `max_calls` is for these questions alone.

    Returns:
        The answers in the order of `keys_of`; shape (samples * n,).

    Raises:
        ConfigError: the model's name or its key is missing or wrong, or `max_calls` is reached.
        ModelError: too many errors in a row.
        DataError: an answer cannot be stored.
        MissingExtraError: inspect-ai is not installed and something must be asked.
    """
    traffic.check()
    keys = keys_of(model, questions, sampling, sample)
    known = {key: answer for key in keys if (answer := store.get(key)) is not None}
    texts = dict(zip(keys, itertools.cycle(questions)))
    waiting = sorted((text, key) for key, text in texts.items() if key not in known)
    if waiting:
        budget = Budget(traffic) if budget is None else budget
        conversation = Conversation(model, store, sampling, traffic, budget)
        known |= asyncio.run(_ask_all(conversation, waiting, about))
        asked = len(set(keys))
        if len(known) < asked:
            raise ConfigError(
                f"{budget.spent()}: {len(known)} of {asked} questions are asked, and their answers "
                "are kept: run the same command again, or raise the limit"
            )
    return [known[key] for key in keys]


async def _ask_all(
    conversation: "Conversation", waiting: Sequence[tuple[str, str]], about: str
) -> dict[str, Answer]:
    """Ask (question, key) by (question, key); answers by key, without those the budget forbade."""
    answers: dict[str, Answer] = {}

    async def work(queue: Iterator[tuple[str, str]], bar: Any) -> None:
        for question, key in queue:
            answer = await conversation.answer(question, key)
            if answer is None:
                return
            answers[key] = answer
            bar.update()
            bar.set_postfix(conversation.said())

    async def all_of(some: Sequence[tuple[str, str]], said: str) -> None:
        with tqdm(total=len(some), desc=said, unit="call", disable=None) as bar:
            queue = iter(some)
            size = min(conversation.traffic.connections, len(some))
            workers = [asyncio.create_task(work(queue, bar)) for _ in range(size)]
            try:
                done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        for worker in done:
            worker.result()

    async with conversation:
        await all_of(waiting, about)
        # What failed once, such as an empty answer, often succeeds a while later.
        failed = [(q, key) for q, key in waiting if key in answers and is_error(answers[key])]
        if failed:
            conversation.gives_up = False
            conversation.counts.clear()
            await all_of(failed, f"{about} again")
    return answers


def is_error(answer: Answer) -> bool:
    """Whether nothing came back."""
    return answer.outcome == "error"


class Conversation:
    """One run's connection to a model; an asynchronous context manager.

    Attributes:
        traffic: how questions are sent.
        gives_up: whether too many errors in a row end it.
        counts: answers by outcome.

    Args:
        model: see the module.
        store: takes the answers.
        sampling: what they depend on.
        traffic: how they are asked for.
        budget: of the run.
        batch: ask through the provider's interface for batches, so many questions in each; null
            asks at once.

    Raises:
        MissingExtraError: inspect-ai is not installed.
    """

    def __init__(
        self,
        model: str,
        store: AnswerStore,
        sampling: Sampling,
        traffic: Traffic,
        budget: Budget,
        *,
        batch: int | None = None,
    ) -> None:
        try:
            import inspect_ai.model  # noqa: F401, PLC0415
        except ImportError as error:
            raise MissingExtraError("inspect-ai", "judge") from error
        self.traffic = traffic
        self.gives_up = True
        self.counts: Counter[str] = Counter()
        self._name = model
        self._is_local = model.startswith("hf/")
        self._store = store
        self._sampling = sampling
        self._budget = budget
        self._batch = batch
        self._errors_in_a_row = 0

    async def __aenter__(self) -> Self:
        await self.open().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._model.__aexit__(kind, error, trace)

    def open(self) -> Any:
        """Make the model, as inspect-ai's object, for one event loop.

        Raises:
            ConfigError: its name or its key is missing or wrong.
        """
        from inspect_ai.model import BatchConfig, GenerateConfig, get_model  # noqa: PLC0415

        traffic = self.traffic
        given = {name: v for name, v in as_plain(self._sampling).items() if v is not None}
        if "top_logprobs" in given:
            given["logprobs"] = True
        arguments = {}
        if self._is_local and given.get("temperature") == 0:
            # Transformers takes no temperature of 0; not to sample is the same.
            del given["temperature"]
            arguments["do_sample"] = False
        if self._batch is not None:
            given["batch"] = BatchConfig(size=self._batch, max_size=self._batch)
        else:
            given["attempt_timeout"] = traffic.timeout_seconds
            given["max_connections"] = traffic.connections
        config = GenerateConfig(max_retries=traffic.max_retries, **given)
        try:
            # Memoised, a client would outlive the event loop that it belongs to.
            model = get_model(self._name, config=config, memoize=False, **arguments)
        except Exception as error:
            raise ConfigError(
                f"model {self._name}: {without_secrets(_plain_text(str(error)))}"
            ) from error

        def wait(state: Any) -> float:
            tries: int = state.attempt_number
            doubled = traffic.first_wait_seconds * 2.0 ** min(tries - 1, 30)
            # Spread out, or all connections would knock again at the same moment.
            return random.uniform(0.5, 1.0) * min(doubled, traffic.longest_wait_seconds)

        # inspect-ai waits up to half an hour otherwise, and has no option for it.
        model.api.retry_wait = lambda: wait
        # Otherwise the first run of a process would set the connections of all later ones.
        key = uuid.uuid4().hex
        model.api.connection_key = lambda: key
        # A batch waits in one queue of the provider: nothing is gained by holding questions back.
        self._places = asyncio.Semaphore(
            traffic.connections if self._batch is None else _MOST_AT_ONCE
        )
        self._model = model
        self._closing: asyncio.Task[None] | None = None
        return model

    def close_with_the_loop(self) -> None:
        """Close the model's connections when the running event loop ends; for loops of others."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close_at_the_end())

    async def _close_at_the_end(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # A loop cancels the tasks that are left, and waits for them, before it closes.
            await self._model.__aexit__(None, None, None)

    def said(self) -> dict[str, Any]:
        """What a progress bar shows beside the calls."""
        shown: dict[str, Any] = {k: n for k, n in self.counts.items() if k != "answered"}
        if self._budget.dollars:
            shown["$"] = f"{self._budget.dollars:.2f}"
        return shown

    async def answer(self, question: str, key: str) -> Answer | None:
        """Ask one question and keep its answer, unless it is an error.

        Returns:
            The answer; None where the budget does not allow the call.

        Raises:
            ModelError: too many errors in a row.
            DataError: the answer cannot be stored.
        """
        async with self._places:
            batched = self._batch is not None
            dearest = self._budget.take(question, self._sampling, batched=batched)
            if dearest is None:
                return None
            # A task and a context of its own: what inspect-ai notes of a call is dropped with them.
            call = asyncio.create_task(self._call(question), context=contextvars.Context())
            answer = replace(await call, batched=batched)
            self._budget.settle(dearest, answer)
        self.counts[answer.outcome] += 1
        if not is_error(answer):
            self._store.put(key, answer)
        elif self.gives_up and self._errors_in_a_row >= self.traffic.give_up_after:
            raise ModelError(
                f"model {self._name}: {self._errors_in_a_row} errors without an answer between "
                f"them, such as {answer.detail}: mend it and run the same command again, or raise "
                f"give_up_after; {len(self._store)} answers are kept in {self._store.folder}"
            )
        return answer

    async def _call(self, question: str) -> Answer:
        try:
            output = await self._model.generate(question)
        except Exception as error:  # noqa: BLE001 - every provider has errors of its own
            self._errors_in_a_row += 1
            return Answer("error", detail=_describe(error))
        self._errors_in_a_row = 0
        answer = _read_output(output)
        if (
            self._is_local
            and answer.outcome == "answered"
            and (answer.output_tokens or 0) >= (self._sampling.max_tokens or math.inf)
        ):
            # inspect-ai does not say of a model in this process that its answer was cut off.
            answer = replace(answer, outcome="cut")
        return answer


def _read_output(output: Any) -> Answer:
    """What inspect-ai's ModelOutput says, as an Answer."""
    if output.empty:
        return Answer("error", detail="the answer is empty")
    reason = output.stop_reason
    pieces = output.message.content if isinstance(output.message.content, list) else []
    declined = any(getattr(piece, "refusal", None) for piece in pieces)
    outcome: Any = "refused" if declined else _OUTCOME_OF.get(reason, "answered")
    text = output.completion
    if outcome == "answered" and not text.strip():
        return Answer("error", detail=f"the answer is empty (stopped by: {reason})")
    detail = None
    if reason == "model_length" or (outcome == "refused" and output.error):
        # What stands there as text is the provider's message, not the model's answer.
        detail, text = _short(output.error or text), ""
    elif outcome == "refused":
        # Here it may be either, and nothing says which.
        text = without_secrets(text)
    usage = output.usage
    cached = usage and (usage.input_tokens_cache_read or 0)
    return Answer(
        outcome,
        text=text,
        detail=detail,
        input_tokens=usage and usage.input_tokens + cached + (usage.input_tokens_cache_write or 0),
        cached_tokens=cached,
        output_tokens=usage and usage.output_tokens,
        seconds=None if output.time is None else round(output.time, 3),
        model=output.model or None,
        asked_utc=round(time.time(), 3),
        first_token=_first_token(output),
    )


def _first_token(output: Any) -> dict[str, float] | None:
    """Log probabilities of the likeliest first tokens, where the provider gives them."""
    given = output.choices[0].logprobs
    if given is None or not given.content or not given.content[0].top_logprobs:
        return None
    return {one.token: round(one.logprob, 6) for one in given.content[0].top_logprobs}


def _describe(error: BaseException) -> str:
    """Name an error in one line: its kind and what the provider said, without the question."""
    from tenacity import RetryError  # noqa: PLC0415

    if isinstance(error, RetryError) and error.last_attempt.exception() is not None:
        error = error.last_attempt.exception()
    # The text of some of inspect-ai's errors holds the whole request.
    said = getattr(error, "provider_message", None) or str(error)
    return _short(f"{type(error).__name__}: {said}")


def _short(text: str) -> str:
    """The start of a message in one line, without keys.

    Keys go first: one that crosses the end would be unlike any key afterwards, and stay.
    """
    line = " ".join(without_secrets(text).split())
    return line if len(line) <= 300 else line[:297] + "..."


def _plain_text(text: str) -> str:
    """Without the marks that inspect-ai puts into messages for the terminal."""
    return re.sub(r"\[/?(?:bold|red|blue|italic|dim)\]", "", " ".join(text.split()))


def without_secrets(text: str) -> str:
    """Strike out keys and passwords that stand in the environment, and logins in addresses."""
    secrets = {v.strip() for name, v in os.environ.items() if _SECRET_NAME.search(name)}
    # Longest first: of a key that begins with another the rest would remain.
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 8:
            text = text.replace(secret, "***")
    return _LOGIN.sub(r"\1***@", text)
