"""Ask any model many independent questions; a killed run asks only what is still open.

    with AnswerStore(out / "answers") as store:
        answers = ask("openai/gpt-4.1-mini", questions, store, Sampling(), Traffic())

The model is any name that inspect-ai knows: `openai/...`, `anthropic/...`, `hf/FOLDER` for a model
on this machine, `openai-api/SERVICE/MODEL` for a server with an OpenAI-compatible interface, with
its address and key in `SERVICE_BASE_URL` and `SERVICE_API_KEY`. Keys come from the environment.

Refusals and truncated answers are stored; errors are retried, and asked again by the next run.
"""

import asyncio
import base64
import contextvars
import itertools
import math
import os
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from tqdm import tqdm

from litbench.config import as_plain
from litbench.errors import ConfigError, MissingExtraError, ModelError
from litbench.judges.prices import Price
from litbench.judges.store import Answer, AnswerStore, Question, Sampling, keys_of, text_of

_OUTCOME_OF = {"content_filter": "refused", "max_tokens": "cut", "model_length": "cut"}
# English runs at 4 to 4.5 bytes a token, Chinese at 4 to 5.
_BYTES_PER_TOKEN = 4
# Roles and markers that a provider puts around a question.
_TOKENS_AROUND = 16
# Output tokens to expect at most when `max_tokens` is left to the model.
_MOST_TOKENS = 4_096
_LONGEST_WAIT = 60.0
# Connections are limited here: inspect-ai keeps one limit for a whole process.
_MOST_AT_ONCE = 1_000_000


@dataclass
class Traffic:
    """How questions are sent; the answers do not depend on it.

    Attributes:
        connections: concurrent requests.
        max_retries: attempts after the first; some providers' libraries try twice within each.
        timeout_seconds: of one attempt.
        first_wait_seconds: pause after the first failed attempt; it doubles each time.
        max_calls: most calls of this run, retries not counted; null for no limit.
        max_cost_usd: most dollars billed for these questions in all runs together; null for no
            limit. An attempt is made only while its highest cost fits in.
        give_up_after: end the run after so many errors in a row, as a wrong key fails every time.
    """

    connections: PositiveInt = 16
    max_retries: NonNegativeInt = 6
    timeout_seconds: PositiveInt = 180
    first_wait_seconds: NonNegativeFloat = 2.0
    max_calls: NonNegativeInt | None = None
    max_cost_usd: NonNegativeFloat | None = None
    give_up_after: PositiveInt = 10


@dataclass
class Budget:
    """The calls and dollars that a run may still spend.

    Attributes:
        traffic: has the limits.
        price: of the model; needed where dollars are limited.
        calls: how many calls it has made.
        dollars: the cost so far, with the noted answers of earlier runs.
    """

    traffic: Traffic
    price: Price | None = None
    calls: int = 0
    dollars: float = 0.0
    _reserved: float = 0.0

    def __post_init__(self) -> None:
        if self.traffic.max_cost_usd is not None and self.price is None:
            raise ConfigError(
                f"max_cost_usd is {self.traffic.max_cost_usd}, and the model has no price: name it "
                "in a file and give that as prices, or limit max_calls"
            )

    def take(
        self, question: Question, sampling: Sampling, batched: bool = False, is_retry: bool = False
    ) -> float | None:
        """Reserve the highest cost of an attempt, in dollars; None where it must not be made."""
        if not is_retry and self.calls == self.traffic.max_calls:
            return None
        most = 0.0
        if self.price is not None:
            written = _MOST_TOKENS if sampling.max_tokens is None else sampling.max_tokens
            read = estimate_tokens(text_of(question)) + _TOKENS_AROUND
            most = self.price.of(read, written, batched=batched)
        limit = self.traffic.max_cost_usd
        if limit is not None and self.dollars + self._reserved + most > limit:
            return None
        self.calls += not is_retry
        self._reserved += most
        return most

    def settle(self, reserved: float, answer: Answer, *, is_billed: bool = True) -> None:
        """Replace a reservation by the cost of what came back.

        An attempt whose tokens were not counted may be billed all the same: it costs what was
        reserved, unless the provider rejected the request.
        """
        self._reserved -= reserved
        cost = None if self.price is None else self.price.of_answer(answer)
        self.dollars += (reserved if is_billed else 0.0) if cost is None else cost

    def note_stored(self, store: AnswerStore, keys: Iterable[str]) -> None:
        """Count the cost of the answers of earlier runs, billed errors included."""
        if self.price is not None:
            for key in set(keys):
                self.dollars += sum(self.price.of_answer(one) or 0.0 for one in store.billed(key))

    def spent(self) -> str:
        """Which limit stops a run, and the cost so far."""
        limit = self.traffic.max_cost_usd
        if self.calls == self.traffic.max_calls:
            return f"max_calls of {self.calls} is reached"
        return f"max_cost_usd of ${limit} would be passed (${self.dollars:.4f} spent)"


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has: one for four bytes; right to a fifth or so."""
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


def is_error(answer: Answer) -> bool:
    """Whether nothing came back."""
    return answer.outcome == "error"


def ask(
    model: str,
    questions: Sequence[Question],
    store: AnswerStore,
    sampling: Sampling,
    traffic: Traffic,
    *,
    sample: int | Sequence[int] = 0,
    about: str = "answers",
    budget: Budget | None = None,
    batch: int | None = None,
) -> list[Answer]:
    """Ask a model some independent questions.

    Questions that begin alike follow each other, so that a provider's prompt cache can help. The
    same question twice is asked once, for each sample.

    Args:
        model: see the module.
        questions: texts, or conversations as lists of (role, text); shape (n,).
        store: has the known answers, and takes the new ones.
        sampling: what the answers depend on.
        traffic: how they are asked for.
        sample: number of the sample, or several.
        about: label of the progress bar.
        budget: of a run that asks more than once.
        batch: questions per batch of the provider's batch interface.

    Returns:
        The answers in the order of `keys_of`; shape (samples * n,).

    Raises:
        ConfigError: the model's name or its key is missing or wrong, or a limit is reached.
        ModelError: too many errors in a row.
        DataError: an answer cannot be stored.
    """
    keys = keys_of(model, questions, sampling, sample)
    known = {key: answer for key in keys if (answer := store.get(key)) is not None}
    by_key = dict(zip(keys, itertools.cycle(questions)))
    waiting = [(question, key) for key, question in by_key.items() if key not in known]
    if waiting:
        waiting.sort(key=lambda one: (text_of(one[0]), one[1]))
        budget = Budget(traffic) if budget is None else budget
        client = Client(model, store, sampling, traffic, budget, batch)
        known |= asyncio.run(client.ask_all(waiting, about))
        if len(known) < len(by_key):
            raise ConfigError(
                f"{about}: {budget.spent()}: {len(known)} of {len(by_key)} questions are asked, "
                f"and {len(store):,} answers are kept in {store.folder}: run the same command "
                "again, or raise the limit"
            )
    return [known[key] for key in keys]


@dataclass
class Client:
    """Asks one model for one run; see `ask`."""

    name: str
    store: AnswerStore
    sampling: Sampling
    traffic: Traffic
    budget: Budget
    batch: int | None = None

    def __post_init__(self) -> None:
        self._model: Any = None
        self._errors_in_a_row = 0

    def open(self) -> Any:
        """Inspect-ai's model, for one event loop.

        Raises:
            ConfigError: its name or its key is missing or wrong.
        """
        try:
            from inspect_ai.model import BatchConfig, GenerateConfig, get_model  # noqa: PLC0415
            from tenacity import wait_none  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("inspect-ai", "judge") from error
        given = {name: v for name, v in as_plain(self.sampling).items() if v is not None}
        arguments = {}
        if self.name.startswith("hf/") and given.get("temperature") == 0:
            # Transformers takes no temperature of 0; not to sample is the same.
            del given["temperature"]
            arguments["do_sample"] = False
        if self.batch is not None:
            given["batch"] = BatchConfig(size=self.batch, max_size=self.batch)
        else:
            # Attempts are repeated here, where each is paid for from the budget.
            given |= {"max_retries": 0, "attempt_timeout": self.traffic.timeout_seconds}
        config = GenerateConfig(max_connections=_MOST_AT_ONCE, **given)
        try:
            # Memoised, a client would outlive the event loop that it belongs to.
            model = get_model(self.name, config=config, memoize=False, **arguments)
        except Exception as error:
            said = re.sub(r"\[/?(?:bold|red|blue|italic|dim)\]", "", str(error))
            raise ConfigError(f"model {self.name}: {_short(said)}") from error
        if self.batch is None:
            # Never used; inspect-ai's own takes an argument that tenacity deprecates.
            model.api.retry_wait = wait_none
        return model

    async def ask_all(
        self, waiting: Sequence[tuple[Question, str]], about: str
    ) -> dict[str, Answer]:
        """Ask (question, key) by (question, key); answers by key, as far as the budget allows."""
        answers: dict[str, Answer] = {}
        queue = iter(waiting)

        async def work(bar: Any) -> None:
            for question, key in queue:
                answer = await self._answer(question, key)
                if answer is None:
                    return
                answers[key] = answer
                bar.update()
                bar.set_postfix({"$": f"{self.budget.dollars:.2f}"})

        size = len(waiting)
        if self.batch is None:
            size = min(size, self.traffic.connections)
        with tqdm(total=len(waiting), desc=about, unit="call", leave=False, disable=None) as bar:
            async with self.open() as self._model:
                workers = [asyncio.create_task(work(bar)) for _ in range(size)]
                try:
                    await asyncio.gather(*workers)
                finally:
                    for worker in workers:
                        worker.cancel()
                    await asyncio.gather(*workers, return_exceptions=True)
        return answers

    async def _answer(self, question: Question, key: str) -> Answer | None:
        """Ask one question and store its answer; None where the budget does not allow the call."""
        traffic, batched = self.traffic, self.batch is not None
        answer: Answer | None = None
        for number in range(1 if batched else traffic.max_retries + 1):
            reserved = self.budget.take(question, self.sampling, batched, is_retry=number > 0)
            if reserved is None:
                break
            if number:
                pause = min(traffic.first_wait_seconds * 2.0 ** (number - 1), _LONGEST_WAIT)
                # Spread out, or all connections would knock again at the same moment.
                await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
            # A task and a context of its own: what inspect-ai notes of a call is dropped with them.
            call = asyncio.create_task(self._attempt(question), context=contextvars.Context())
            answer, may_pass, is_billed = await call
            self.budget.settle(reserved, answer, is_billed=is_billed)
            counted = answer.input_tokens is not None
            if counted or not is_error(answer):
                self.store.put(key, answer)
            # An empty answer is billed like any other: it is asked for once more, and no more.
            if not is_error(answer) or not may_pass or (counted and number):
                break
        if answer is None:
            return None
        came_back = not is_error(answer) or answer.input_tokens is not None
        self._errors_in_a_row = 0 if came_back else self._errors_in_a_row + 1
        if self._errors_in_a_row >= traffic.give_up_after:
            raise ModelError(
                f"model {self.name}: {self._errors_in_a_row} errors without an answer between "
                f"them, such as {answer.detail}: mend it and run the same command again, or raise "
                f"give_up_after; {len(self.store)} answers are kept in {self.store.folder}"
            )
        return answer

    async def _attempt(self, question: Question) -> tuple[Answer, bool, bool]:
        """An answer or an error, whether another attempt may succeed, whether it may be billed."""
        from inspect_ai import model as inspect_model  # noqa: PLC0415
        from tenacity import RetryError  # noqa: PLC0415

        sent: Any = question
        if not isinstance(question, str):
            sent = [
                getattr(inspect_model, f"ChatMessage{role.capitalize()}")(content=text)
                for role, text in question
            ]
        try:
            output = await self._model.generate(sent)
        except Exception as error:  # noqa: BLE001 - every provider has errors of its own
            # A RetryError is what inspect-ai would try again.
            inner = error.last_attempt.exception() if isinstance(error, RetryError) else error
            status = getattr(inner, "status_code", None)
            rejected = isinstance(status, int) and 400 <= status < 500
            # The text of some of inspect-ai's errors holds the whole request.
            said = _short(getattr(inner, "provider_message", None) or str(inner))
            answer = Answer("error", detail=f"{type(inner).__name__}: {said}")
            return answer, isinstance(error, RetryError) or not rejected, not rejected
        answer = replace(_read_output(output), batched=self.batch is not None)
        is_whole = (answer.output_tokens or 0) < (self.sampling.max_tokens or math.inf)
        if self.name.startswith("hf/") and answer.outcome == "answered" and not is_whole:
            # inspect-ai does not say of a model in this process that its answer was cut off.
            answer = replace(answer, outcome="cut")
        return answer, True, True


def _read_output(output: Any) -> Answer:
    """Convert inspect-ai's ModelOutput."""
    usage = output.usage
    cached = usage and (usage.input_tokens_cache_read or 0)
    answer = Answer(
        "error",
        detail="the answer is empty",
        input_tokens=usage and usage.input_tokens + cached + (usage.input_tokens_cache_write or 0),
        cached_tokens=cached,
        output_tokens=usage and usage.output_tokens,
        seconds=None if output.time is None else round(output.time, 3),
        model=output.model or None,
    )
    if output.empty:
        return answer
    pieces = output.message.content if isinstance(output.message.content, list) else []
    declined = any(getattr(piece, "refusal", None) for piece in pieces)
    outcome: Any = "refused" if declined else _OUTCOME_OF.get(output.stop_reason, "answered")
    text, detail = output.completion, None
    if outcome == "answered" and not text.strip():
        return answer
    if output.stop_reason == "model_length" or (outcome == "refused" and output.error):
        # The provider's message stands in place of the model's answer.
        detail, text = _short(output.error or text), ""
    elif outcome == "refused":
        # It may be either, and nothing says which.
        text = without_secrets(text)
    return replace(answer, outcome=outcome, text=text, detail=detail)


def _short(text: str) -> str:
    """The start of a provider's message in one line."""
    line = " ".join(without_secrets(text).split())
    return line if len(line) <= 300 else line[:297] + "..."


# What stands before the @ of an address: a name and a password.
_LOGIN = re.compile(r"(://)([^/\s@]+)@")
_LEAST_SECRET = 8
WITHHELD = "(withheld: the message holds a key)"


def without_secrets(text: str) -> str:
    """The text without logins in addresses; or a note, where it holds a key of the environment.

    A key counts as held where eight letters and digits of it in a row are, in any spelling: plain,
    percent-encoded, in base64 or hexadecimal, in capitals, broken over lines.
    """
    shown = _LOGIN.sub(r"\1***@", text)
    named = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.I)
    secrets = {value.strip() for name, value in os.environ.items() if named.search(name)}
    for value in os.environ.values():
        secrets |= {login.partition(":")[2] for _, login in _LOGIN.findall(value)}
    pieces: set[str] = set()
    for secret in secrets:
        data = secret.encode("utf-8", "replace")
        # Base64 of a text that holds the key; what its neighbours change is left out.
        shifted = [base64.b64encode(b" " * k + data).decode()[4:-4] for k in range(3)]
        if len(secret) >= _LEAST_SECRET:
            for form in map(_letters, (secret, data.hex(), *shifted)):
                last = len(form) - _LEAST_SECRET
                pieces |= {form[k : k + _LEAST_SECRET] for k in range(last + 1)}
    found = (_letters(shown), _letters(unquote(shown)))
    return WITHHELD if any(piece in one for piece in pieces for one in found) else shown


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()
