"""Send questions to a model and store the answers; a restarted run resumes.

The model is any name that inspect-ai knows: `openai/...`, `anthropic/...`, `hf/FOLDER` for a local
model, `openai-api/SERVICE/MODEL` for an OpenAI-compatible server, whose address and key are read
from `SERVICE_BASE_URL` and `SERVICE_API_KEY`. API keys are read from the environment.

Refusals and truncated answers are stored. Errors are retried, and retried again by the next run.
"""

import asyncio
import contextvars
import math
import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import unquote

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from litbench.config import as_plain, nearest
from litbench.errors import ConfigError, MissingExtraError, ModelError
from litbench.judges.prices import Price
from litbench.judges.responses import ResponseError, check_response
from litbench.judges.store import (
    Answer,
    AnswerStore,
    Attempt,
    Question,
    Sampling,
    Usage,
    identity,
    text_of,
)

_OUTCOME_OF = {"content_filter": "refused", "max_tokens": "cut", "model_length": "cut"}
# Settles an attempt that costs nothing.
_UNBILLED = Answer("error", input_tokens=0, output_tokens=0)
# English text has 4 to 4.5 bytes per token, Chinese 4 to 5.
_BYTES_PER_TOKEN = 4
# Base64 and rare scripts have 2 bytes per token or more.
_LEAST_BYTES_PER_TOKEN = 2
# Role and delimiter tokens that a provider adds to a message.
_TOKENS_AROUND = 16
# Output tokens to reserve if `max_tokens` is null, which only a run without a limit allows.
_USUAL_MOST_TOKENS = 4_096
_LONGEST_WAIT = 60.0
# `Traffic.connections` limits concurrency; inspect-ai's own limit is shared by the whole process.
_MOST_AT_ONCE = 1_000_000


@dataclass
class Traffic:
    """Concurrency, retries and limits; they do not change the answers.

    Attributes:
        connections: concurrent requests.
        max_retries: attempts after the first.
        timeout_seconds: timeout of one attempt.
        first_wait_seconds: pause after the first failed attempt; doubled after each further one.
        max_calls: maximum calls of this run, not counting retries; null for no limit.
        max_cost_usd: maximum dollars of the model in the folder of answers over all runs; null for
            no limit. An attempt is made only if its reservation stays within the limit.
        give_up_after: end the run after this many consecutive errors, for example a wrong key.
    """

    connections: PositiveInt = 16
    max_retries: NonNegativeInt = 6
    timeout_seconds: PositiveInt = 180
    first_wait_seconds: NonNegativeFloat = 2.0
    max_calls: NonNegativeInt | None = None
    max_cost_usd: NonNegativeFloat | None = None
    give_up_after: PositiveInt = 10


def check_limit(traffic: Traffic, price: Price | None, sampling: Sampling) -> None:
    """Raise a ConfigError if there is a limit of dollars, but no highest cost of an answer."""
    limit = f"max_cost_usd is {traffic.max_cost_usd}, but"
    if traffic.max_cost_usd is not None and price is None:
        raise ConfigError(
            f"{limit} the model has no price: add it to a file and set prices to that file, or set "
            "max_calls instead"
        )
    if traffic.max_cost_usd is not None and sampling.max_tokens is None:
        raise ConfigError(
            f"{limit} max_tokens is null, so an answer may be of any length: set max_tokens"
        )


@dataclass
class Budget:
    """Limits of a run for one model, and what is used of them.

    Attributes:
        traffic: the limits.
        price: price of the model; required if `max_cost_usd` is set.
        calls: calls made by this run.
        under_way: attempts under way.
        usages: tokens of the model in all runs, see `AnswerStore.usages`; set by the client.
    """

    traffic: Traffic
    price: Price | None = None
    calls: int = 0
    under_way: int = 0
    usages: Sequence[tuple[Usage, bool]] = ()

    @property
    def dollars(self) -> float:
        """Dollars billed or reserved by all runs; 0 without a price."""
        if self.price is None:
            return 0.0
        price = self.price
        return sum(price.of_usage(usage, batched=batched) for usage, batched in self.usages)

    def start(self, store: AnswerStore, attempt: Attempt, *, is_retry: bool = False) -> bool:
        """Reserve an attempt in the store; False if a limit forbids it."""
        if not is_retry and self.calls == self.traffic.max_calls:
            return False
        most = 0.0
        if self.price is not None:
            ratio = self.usages[attempt.batched][0].ratio
            read, written = (n * r for n, r in zip(attempt.reserved, ratio, strict=True))
            most = self.price.of(read, written, batched=attempt.batched)
        if self._exceeds(store, most):
            return False
        store.reserve(attempt)
        if self._exceeds(store):
            # Another program made a reservation at the same moment.
            store.put(_UNBILLED, attempt)
            return False
        self.calls += not is_retry
        return True

    def _exceeds(self, store: AnswerStore, more: float = 0.0) -> bool:
        """Whether `max_cost_usd` is exceeded if `more` dollars are added."""
        limit = self.traffic.max_cost_usd
        if limit is None:
            return False
        store.refresh()
        # Rounded, because sums in another order differ in the last bit.
        return round(self.dollars + more, 9) > limit

    def spent(self) -> str:
        """The limit that stopped the run, for error messages."""
        limit = self.traffic.max_cost_usd
        if self.calls == self.traffic.max_calls:
            return f"max_calls of {self.calls} is reached"
        return (
            f"max_cost_usd of ${limit} would be exceeded (${self.dollars:.4f} are billed or "
            "reserved)"
        )


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens of a text from its bytes, to within about 20 %."""
    return -(-_bytes(text) // _BYTES_PER_TOKEN)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def providers() -> list[str]:
    """Return the names of inspect-ai's providers; none where it is not installed."""
    try:
        import inspect_ai.model  # noqa: F401, PLC0415
        from inspect_ai._util.registry import (  # noqa: PLC0415
            registry_find,
            registry_unqualified_name,
        )
    except ImportError:
        return []
    found = registry_find(lambda info: info.type == "modelapi")
    return sorted(map(registry_unqualified_name, found))


def check_model(name: str) -> None:
    """Raise a ConfigError for a model without a provider, or with one that inspect-ai lacks.

    Without inspect-ai, a dry run checks only that there is a provider.
    """
    provider, _, rest = name.partition("/")
    if not rest:
        raise ConfigError(f"model {name}: its provider is missing: write openai/{name}, or another")
    if (known := providers()) and provider not in known:
        raise ConfigError(f"model {name}: unknown provider: {nearest(provider, known)}")


@dataclass
class Client:
    """Sends the questions of one run to one model.

    As an async context manager it answers single questions, at most `traffic.connections` at a
    time; the model is opened for the first one that is not stored.

    Attributes:
        name: name of the model, see the module.
        store: supplies known answers and stores new ones.
        sampling: generation options.
        budget: limits, and what is used of them.
        batch: questions per batch of the provider's batch interface; None for no batches.
        pending: answers under way by key, so that equal questions asked at the same time are sent
            once; shared by the clients of a run.
    """

    name: str
    store: AnswerStore
    sampling: Sampling
    budget: Budget
    batch: int | None = None
    pending: dict[str, asyncio.Task[Answer | None]] = field(default_factory=dict)
    _model: Any = None
    _consecutive_errors: int = 0

    def __post_init__(self) -> None:
        self.budget.usages = self.store.usages(self.name)

    async def __aenter__(self) -> Self:
        connections = self.budget.traffic.connections if self.batch is None else _MOST_AT_ONCE
        self._slots = asyncio.Semaphore(connections)
        return self

    async def __aexit__(self, *error: Any) -> None:
        if self._model is not None:
            await self._model.__aexit__(*error)

    async def answer(self, question: Question, key: str) -> Answer | None:
        """The stored answer of a key, or a new one; None if the budget does not allow the call."""
        stored = self.store.get(key)
        if stored is not None:
            return stored
        while key in self.pending:
            # None if the budget of another client does not allow the call.
            if (answer := await self.pending[key]) is not None:
                return answer
        self.pending[key] = asyncio.create_task(self._answer_in_turn(question, key))
        return await self.pending[key]

    async def _answer_in_turn(self, question: Question, key: str) -> Answer | None:
        async with self._slots:
            try:
                if self._model is None:
                    self._model = self._open()
                answer = await self._answer(question, key)
                while answer is None and self.budget.under_way:
                    # Calls under way have reserved their highest cost, and most cost less.
                    others = set(self.pending.values()) - {asyncio.current_task()}
                    await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
                    answer = await self._answer(question, key)
                return answer
            finally:
                del self.pending[key]

    def _open(self) -> Any:
        """Return inspect-ai's model for the current event loop."""
        try:
            from inspect_ai.model import BatchConfig, GenerateConfig, get_model  # noqa: PLC0415
            from tenacity import wait_none  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("inspect-ai", "judge") from error
        given = {name: v for name, v in as_plain(self.sampling).items() if v is not None}
        arguments = {}
        if self.name.startswith("hf/") and given.get("temperature") == 0:
            # Transformers rejects temperature 0; greedy decoding is equivalent.
            del given["temperature"]
            arguments["do_sample"] = False
        if self.batch is not None:
            given["batch"] = BatchConfig(size=self.batch, max_size=self.batch)
        else:
            # `_answer` retries instead, so that every attempt is charged to the budget.
            given |= {"max_retries": 0, "attempt_timeout": self.budget.traffic.timeout_seconds}
        config = GenerateConfig(max_connections=_MOST_AT_ONCE, **given)
        try:
            # A memoised client would outlive its event loop.
            model = get_model(self.name, config=config, memoize=False, **arguments)
        except Exception as error:
            message = re.sub(r"\[/?(?:bold|red|blue|italic|dim)\]", "", str(error))
            raise ConfigError(f"model {self.name}: {_short(message)}") from error
        if self.batch is None:
            # Never called; inspect-ai's default uses an argument that tenacity deprecates.
            model.api.retry_wait = wait_none
            # Of the provider's library, if it retries by itself.
            if hasattr(getattr(model.api, "client", None), "max_retries"):
                model.api.client.max_retries = 0
            # Only OpenAI-compatible providers have one.
            if (http_client := getattr(model.api, "http_client", None)) is not None:
                http_client.event_hooks["response"].append(check_response)
        return model

    async def _answer(self, question: Question, key: str) -> Answer | None:
        """Send one question and store its answer; None if the budget does not allow the call."""
        traffic, batched = self.budget.traffic, self.batch is not None
        turns = 1 if isinstance(question, str) else len(question)
        most_read = -(-_bytes(text_of(question)) // _LEAST_BYTES_PER_TOKEN) + turns * _TOKENS_AROUND
        most_written = self.sampling.max_tokens
        reserved = (most_read, _USUAL_MOST_TOKENS if most_written is None else most_written)
        answer: Answer | None = None
        replies = 0
        for number in range(1 if batched else traffic.max_retries + 1):
            if number:
                pause = min(traffic.first_wait_seconds * 2.0 ** (number - 1), _LONGEST_WAIT)
                # Jitter, so that connections do not all retry at the same moment.
                await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
            attempt = Attempt(key, identity(self.name), reserved, batched)
            if not self.budget.start(self.store, attempt, is_retry=number > 0):
                break
            # A separate task and context, so that inspect-ai's record of the call is freed.
            call = asyncio.create_task(self._attempt(question), context=contextvars.Context())
            self.budget.under_way += 1
            try:
                answer, is_retriable, settlement = await call
            finally:
                self.budget.under_way -= 1
            if settlement is not None:
                self.store.put(settlement, attempt)
            # Empty answers are billed, so only one is retried.
            replies += settlement is answer
            if answer.outcome != "error" or not is_retriable or replies > 1:
                break
        if answer is None:
            return None
        self._consecutive_errors = 0 if replies else self._consecutive_errors + 1
        if self._consecutive_errors >= traffic.give_up_after:
            raise ModelError(
                f"model {self.name}: {self._consecutive_errors} consecutive errors, the last: "
                f"{answer.detail}: fix the cause and run the same command again, or raise "
                f"give_up_after; {len(self.store)} answers are stored in {self.store.folder}"
            )
        return answer

    async def _attempt(self, question: Question) -> tuple[Answer, bool, Answer | None]:
        """Return the answer, whether to retry, and what to store; None if the cost is unknown."""
        from tenacity import RetryError  # noqa: PLC0415

        sent = question if isinstance(question, str) else chat_messages(question)
        try:
            output = await self._model.generate(sent)
        except Exception as error:  # noqa: BLE001 - every provider raises different errors
            # inspect-ai raises a RetryError for errors it considers temporary.
            inner = error.last_attempt.exception() if isinstance(error, RetryError) else error
            status = getattr(inner, "status_code", None)
            rejected = isinstance(status, int) and 400 <= status < 500
            # Some of inspect-ai's error messages contain the whole request.
            message = _short(getattr(inner, "provider_message", None) or str(inner))
            answer = Answer("error", detail=f"{type(inner).__name__}: {message}")
            may_retry = isinstance(error, RetryError) or not rejected
            may_retry &= not isinstance(inner, ResponseError)
            return answer, may_retry, _UNBILLED if rejected or _is_unsent(inner) else None
        answer = replace(read_output(output), batched=self.batch is not None)
        is_whole = (answer.output_tokens or 0) < (self.sampling.max_tokens or math.inf)
        if self.name.startswith("hf/") and answer.outcome == "answered" and not is_whole:
            # For `hf` models inspect-ai does not report that an answer was truncated.
            answer = replace(answer, outcome="cut")
        return answer, True, answer


def chat_messages(conversation: Sequence[tuple[str, str]]) -> list[Any]:
    """A conversation as inspect-ai's messages."""
    from inspect_ai import model as inspect_model  # noqa: PLC0415

    return [
        getattr(inspect_model, f"ChatMessage{role.capitalize()}")(content=text)
        for role, text in conversation
    ]


def _is_unsent(error: BaseException | None) -> bool:
    """Whether there was no connection to the provider."""
    while error is not None:
        if type(error).__name__ in ("ConnectError", "ConnectTimeout"):
            return True
        error = error.__cause__
    return False


def read_output(output: Any) -> Answer:
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
        # `text` is the provider's message, not the model's answer.
        detail, text = _short(output.error or text), ""
    elif outcome == "refused":
        # `text` may be the model's answer or the provider's message.
        text = without_secrets(text)
    return replace(answer, outcome=outcome, text=text, detail=detail)


def _short(text: str) -> str:
    """A provider's message on one line, without secrets and at most 300 characters long."""
    line = " ".join(without_secrets(text).split())
    return line if len(line) <= 300 else line[:297] + "..."


# User name and password in a URL.
_LOGIN = re.compile(r"(://)([^/\s@]+)@")
_LEAST_SECRET = 8
WITHHELD = "(withheld: the message contains an API key)"


def without_secrets(text: str) -> str:
    """The text without logins in URLs, or `WITHHELD` if it contains a key of the environment.

    Eight consecutive letters and digits of a key count as the key, plain or percent-encoded, in any
    case and with anything else between them.
    """
    redacted = _LOGIN.sub(r"\1***@", text)
    named = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.I)
    secrets = {value.strip() for name, value in os.environ.items() if named.search(name)}
    for value in os.environ.values():
        secrets |= {login.partition(":")[2] for _, login in _LOGIN.findall(value)}
    forms = (_letters(redacted), _letters(unquote(redacted)))
    for secret in map(_letters, secrets):
        for start in range(len(secret) - _LEAST_SECRET + 1):
            if any(secret[start : start + _LEAST_SECRET] in form for form in forms):
                return WITHHELD
    return redacted


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()
