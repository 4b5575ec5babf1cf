"""Send questions to a model and store the answers; a restarted run resumes.

The model is any name that inspect-ai knows: `openai/...`, `anthropic/...`, `hf/FOLDER` for a local
model, `openai-api/SERVICE/MODEL` for an OpenAI-compatible server, whose address and key are read
from `SERVICE_BASE_URL` and `SERVICE_API_KEY`. API keys are read from the environment.

Refusals and truncated answers are stored. Errors that may pass are retried; the next run asks again
whatever ended in an error.
"""

import asyncio
import contextvars
import gc
import ipaddress
import math
import os
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from litbench.judges.answers import (
    Answer,
    AnswerStore,
    Attempt,
    Question,
    Sampling,
    Usage,
    identity,
    text_of,
)
from litbench.judges.prices import Price
from litbench.judges.responses import (
    COUNTS,
    Lasting,
    ResponseError,
    advice,
    check_response,
    is_block,
    lasting,
    written_tokens,
)
from litbench.runs.config import as_plain, nearest
from litbench.runs.errors import ConfigError, MissingExtraError, ModelError

_OUTCOME_OF = {"content_filter": "refused", "max_tokens": "cut", "model_length": "cut"}
# In the message of an error that would happen again; what to do follows.
REPEATING = "repeating does not help: "
# Settles an attempt that costs nothing.
_UNBILLED = Answer("error", input_tokens=0, output_tokens=0)
# English text has 4 to 4.5 bytes per token, Chinese 4 to 5.
_BYTES_PER_TOKEN = 4
# Base64 and rare scripts have 2 bytes per token or more.
_MIN_BYTES_PER_TOKEN = 2
# Role and delimiter tokens that a provider adds to a message.
_TOKENS_AROUND = 16
# Output tokens to reserve if `max_tokens` is null, which only a run without a limit allows.
_USUAL_MAX_TOKENS = 4_096
_LONGEST_WAIT = 60.0
# `Traffic.connections` limits concurrency; inspect-ai's own limit is shared by the whole process.
_MAX_AT_ONCE = 1_000_000
# Concurrent requests that a local server gets at first.
_FIRST_CONNECTIONS = 2
# A local server gets more connections while each doubling answers this many times faster.
_WORTHWHILE = 1.2
# Addresses of inspect-ai's providers of local servers, unless NAME_BASE_URL is set.
_LOCAL_URLS = {"ollama": "http://localhost:11434/v1"}


@dataclass
class Traffic:
    """Concurrency, retries and limits; they do not change the answers.

    Attributes:
        connections: maximum number of concurrent requests.
        first_connections: concurrent requests at the start, doubled while that makes a server
            faster; null: 2 for a local address, otherwise `connections`.
        max_retries: attempts after the first.
        timeout_seconds: timeout of one attempt.
        first_wait_seconds: pause after the first failed attempt; doubled after each further one.
        max_calls: maximum calls of this run, not counting retries; null for no limit.
        max_cost_usd: maximum dollars of the model in the folder of answers over all runs; null for
            no limit. An attempt is made only if its reservation stays within the limit.
        give_up_after: end the run after this many consecutive errors, for example a wrong key.
    """

    connections: PositiveInt = 16
    first_connections: PositiveInt | None = None
    max_retries: NonNegativeInt = 6
    timeout_seconds: PositiveInt = 180
    first_wait_seconds: NonNegativeFloat = 2.0
    max_calls: NonNegativeInt | None = None
    max_cost_usd: NonNegativeFloat | None = None
    give_up_after: PositiveInt = 10


@dataclass(kw_only=True)
class JudgeKeys:
    """Keys of a command that asks models.

    Attributes:
        template: question to language models: a family such as writerly, or a file.
        max_tokens: maximum length of an answer, with hidden reasoning.
        temperature: temperature of sampling; null: the model's default. `samples` need one above 0.
        samples: answers of a language model to each question, whose mean is its verdict.
        prices: file of prices that override the packaged ones.
        max_cost_usd: maximum dollars for each model that is asked, over all runs.
        traffic: connections, time-outs, retries and further limits.
    """

    template: str = "alternative"
    samples: PositiveInt = 1
    max_tokens: int | None = Sampling.max_tokens
    temperature: float | None = Sampling.temperature
    prices: Path | None = None
    max_cost_usd: float | None = None
    traffic: Traffic = field(default_factory=Traffic)

    def judge_entry(self) -> dict[str, Any]:
        """The config entry of a judge, without its kind and model."""
        usual = vars(Traffic())
        changed = {key: value for key, value in vars(self.traffic).items() if value != usual[key]}
        if self.max_cost_usd is not None:
            changed["max_cost_usd"] = self.max_cost_usd
        sampling = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        return {
            "template": self.template,
            "prices": self.prices,
            "sampling": sampling,
            "traffic": changed,
            **({"samples": self.samples} if self.samples > 1 else {}),
        }


def check_limit(traffic: Traffic, model: str, price: Price | None, sampling: Sampling) -> None:
    """Raise a ConfigError if there is a limit of dollars, but no highest cost of an answer."""
    limit = f"max_cost_usd is {traffic.max_cost_usd}, but"
    if traffic.max_cost_usd is not None and price is None:
        raise ConfigError(
            f"{limit} the model has no price: write the line `{model}: {{input: DOLLARS, output: "
            "DOLLARS}}` (per million tokens) into a file and set prices to that file, or set "
            "traffic.max_calls instead"
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
            most = self.price.of(*attempt.reserved, batched=attempt.batched)
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
        """The limit that stopped the run, and how to go on; for error messages."""
        limit = self.traffic.max_cost_usd
        if self.calls == self.traffic.max_calls:
            return f"max_calls of {self.calls} is reached: run the same command again to go on"
        return (
            f"max_cost_usd of ${limit} would be exceeded (${self.dollars:.4f} are billed or "
            "reserved): raise it to go on"
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

        # inspect-ai's public interface adds providers, and does not list them:
        # https://inspect.aisi.org.uk/extensions.html
        from inspect_ai._util.registry import (  # noqa: PLC0415
            registry_find,
            registry_unqualified_name,
        )
    except ImportError:
        return []
    entries = registry_find(lambda info: info.type == "modelapi")
    return sorted(map(registry_unqualified_name, entries))


def check_model(name: str) -> None:
    """Raise a ConfigError for a model without a provider, or with one that inspect-ai lacks.

    Without inspect-ai, a dry run checks only that there is a provider.
    """
    provider, _, rest = name.partition("/")
    if not rest:
        raise ConfigError(f"model {name}: its provider is missing: write openai/{name}, or another")
    if (names := providers()) and provider not in names:
        raise ConfigError(f"model {name}: unknown provider: {nearest(provider, names)}")


def base_url(model: str) -> str | None:
    """The address of a model's server in the environment, as inspect-ai reads it; None if unset."""
    provider, _, rest = model.partition("/")
    service = rest.partition("/")[0] if provider == "openai-api" else provider
    name = f"{service.upper().replace('-', '_')}_BASE_URL"
    return os.environ.get(name) or _LOCAL_URLS.get(provider)


def is_local(model: str) -> bool:
    """Whether a model's server is on this machine or in the local network."""
    host = urlsplit(base_url(model) or "").hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return host == "localhost" or host.endswith((".localhost", ".local"))


def first_connections(model: str, traffic: Traffic) -> int:
    """The number of concurrent requests at the start; see `Traffic`."""
    usual = _FIRST_CONNECTIONS if is_local(model) else traffic.connections
    return min(traffic.first_connections or usual, traffic.connections)


class Connections:
    """Limits concurrent requests; the limit grows while that makes the server faster.

    Args:
        first: limit at the start.
        most: highest limit.
        clock: returns seconds.
    """

    def __init__(self, first: int, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit, self._most, self._clock = first, most, clock
        self._free = asyncio.Semaphore(first)
        # Slots to remove when they become free.
        self._surplus = 0
        self._is_growing = first < most
        self._best_rate = 0.0
        self._n_answers, self._since = 0, clock()

    async def __aenter__(self) -> None:
        await self._free.acquire()

    async def __aexit__(self, *error: object) -> None:
        if self._surplus:
            self._surplus -= 1
        else:
            self._free.release()

    def count_answer(self) -> None:
        """Count an answer; after four per connection, double the limit or stop growing."""
        self._n_answers += 1
        if not self._is_growing or self._n_answers < 4 * self.limit:
            return
        rate = self._n_answers / max(self._clock() - self._since, 1e-9)
        before, is_faster = self.limit, rate > _WORTHWHILE * self._best_rate
        self.limit = min(2 * before, self._most) if is_faster else max(before // 2, 1)
        self._is_growing = is_faster and before < self._most
        for _ in range(self.limit - before):
            self._free.release()
        self._surplus += max(before - self.limit, 0)
        self._best_rate, self._n_answers, self._since = rate, 0, self._clock()


class _Reply(NamedTuple):
    """The end of an attempt: its answer, what to store (None: its cost is unknown), and more."""

    answer: Answer
    settlement: Answer | None
    lasting: Lasting = "no"
    is_unsent: bool = False
    is_malformed: bool = False


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
    _has_frozen: bool = False
    _consecutive_errors: int = 0
    # Whether a response has come, and whether one was an answer.
    _is_reached: bool = False
    _has_answered: bool = False
    # The error that every question would get.
    _failure: Answer | None = None

    def __post_init__(self) -> None:
        self.budget.usages = self.store.usages(self.name)

    async def __aenter__(self) -> Self:
        traffic = self.budget.traffic
        first, most = first_connections(self.name, traffic), traffic.connections
        if self.batch is not None:
            first = most = _MAX_AT_ONCE
        self._connections = Connections(first, most)
        return self

    async def __aexit__(self, *error: Any) -> None:
        if self._has_frozen:
            gc.unfreeze()
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
        async with self._connections:
            try:
                if self._model is None:
                    self._model = self._open()
                    if not gc.get_freeze_count():
                        # Without this, garbage collections over imported objects take a tenth of
                        # the time of asking a fast server.
                        gc.freeze()
                        self._has_frozen = True
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
        options = {name: v for name, v in as_plain(self.sampling).items() if v is not None}
        arguments = {}
        if self.name.startswith("hf/") and options.get("temperature") == 0:
            # Transformers rejects temperature 0; greedy decoding is equivalent.
            del options["temperature"]
            arguments["do_sample"] = False
        if self.batch is not None:
            options["batch"] = BatchConfig(size=self.batch, max_size=self.batch)
        else:
            # `_answer` retries instead, so that every attempt is charged to the budget.
            options |= {"max_retries": 0, "attempt_timeout": self.budget.traffic.timeout_seconds}
        config = GenerateConfig(max_connections=_MAX_AT_ONCE, **options)
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
                # The redirected request would be paid for again.
                http_client.follow_redirects = False
        return model

    async def _answer(self, question: Question, key: str) -> Answer | None:
        """Send one question and store its answer; None if the budget does not allow the call.

        Raises:
            ModelError: the first request reached no server, or `give_up_after` is reached.
        """
        if self._failure is not None:
            return self._failure
        traffic, batched = self.budget.traffic, self.batch is not None
        turns = 1 if isinstance(question, str) else len(question)
        max_read = -(-_bytes(text_of(question)) // _MIN_BYTES_PER_TOKEN) + turns * _TOKENS_AROUND
        max_written = self.sampling.max_tokens
        reserved = (max_read, _USUAL_MAX_TOKENS if max_written is None else max_written)
        answer: Answer | None = None
        # A malformed response may be an accident, such as a proxy's page, above all among answers.
        replies = malformed = 0
        # Where a question has failed for good and none was answered, there is no use in waiting.
        is_down = self._consecutive_errors > 0 and not self._has_answered
        for number in range(1 if batched or is_down else traffic.max_retries + 1):
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
                reply = await call
            finally:
                self.budget.under_way -= 1
            answer = reply.answer
            if reply.settlement is not None:
                self.store.put(reply.settlement, attempt)
            self._check_connection(reply)
            # Empty answers are billed, so only one is retried.
            replies += reply.settlement is answer
            is_costly = reply.settlement is not None
            malformed += reply.is_malformed and (is_costly or not self._has_answered)
            if answer.outcome != "error" or reply.lasting != "no" or max(replies, malformed) > 1:
                if reply.lasting == "model" and not self._has_answered:
                    self._failure = answer
                break
        if answer is None:
            return None
        if malformed and answer.outcome == "error" and not self._has_answered:
            # Nothing else has come from this address.
            answer = self._failure = replace(
                answer, detail=f"{answer.detail} ({REPEATING}{advice(404, '')})"
            )
        if replies:
            self._has_answered, self._consecutive_errors = True, 0
            self._connections.count_answer()
        elif self._failure is None:
            self._consecutive_errors += 1
        if self._consecutive_errors >= traffic.give_up_after:
            raise ModelError(
                f"model {self.name}: {self._consecutive_errors} consecutive errors, the last: "
                f"{answer.detail}: fix the cause and run the same command again, or raise "
                f"traffic.give_up_after; {len(self.store)} answers are stored in "
                f"{self.store.folder}"
            )
        return answer

    def _check_connection(self, reply: _Reply) -> None:
        """Raise a ModelError if the first request reached no server."""
        if not reply.is_unsent:
            self._is_reached = True
        if self._is_reached:
            return
        client = getattr(self._model.api, "client", None)
        url = getattr(self._model.api, "base_url", None) or getattr(client, "base_url", "")
        tried = f" at {without_secrets(str(url))}" if url else ""
        raise ModelError(
            f"model {self.name}: no connection to its server{tried}: {reply.answer.detail}: start "
            "the server, or correct the base URL in the environment"
        )

    async def _attempt(self, question: Question) -> _Reply:
        from tenacity import RetryError  # noqa: PLC0415

        sent = question if isinstance(question, str) else chat_messages(question)
        counts: list[tuple[int, int, int]] = []
        COUNTS.set(counts)
        try:
            output = await self._model.generate(sent)
        except Exception as error:  # noqa: BLE001 - every provider raises different errors
            # inspect-ai raises a RetryError for errors it considers temporary.
            inner = error.last_attempt.exception() if isinstance(error, RetryError) else error
            return _failed_reply(inner or error, counts)
        answer = replace(
            read_output(output),
            batched=self.batch is not None,
            connections=None if self.batch is not None else self._connections.limit,
        )
        may_be_cut = self.name.startswith("hf/") and answer.outcome == "answered"
        limit = self.sampling.max_tokens or math.inf
        if may_be_cut and is_truncated(answer, limit, self._model.api.tokenizer):
            answer = replace(answer, outcome="cut")
        if REPEATING in str(answer.detail):
            return _Reply(answer, replace(answer, input_tokens=0, output_tokens=0), "question")
        return _Reply(answer, answer)


def is_truncated(answer: Answer, limit: float, tokenizer: Any) -> bool:
    """Whether an answer of an `hf` model ends at the limit, which inspect-ai does not report.

    inspect-ai's number of tokens is that of the longest answer of the batch, so the text is counted
    again. That count may be slightly smaller, as the tokenizer can join what the model did not.
    """
    if (answer.output_tokens or 0) < limit:
        return False
    return len(tokenizer.encode(answer.text, add_special_tokens=False)) > 0.9 * limit


def _failed_reply(error: BaseException, counts: Sequence[tuple[int, int, int]]) -> _Reply:
    """The reply that an exception stands for; `counts` are those of `COUNTS`."""
    status = getattr(error, "status_code", None)
    status = status if isinstance(status, int) else None
    # Some of inspect-ai's error messages contain the whole request.
    message = str(getattr(error, "provider_message", None) or error)
    body = getattr(error, "body", None) or getattr(error.__cause__, "body", None)
    body = body if isinstance(body, dict) else {}
    # FastAPI's errors have their reason there.
    if (reason := str(body.get("detail") or "")) and reason not in message:
        message += f": {reason}"
    about = f"{message} {body.get('code')} {body.get('metadata')}"
    detail = f"{type(error).__name__}: {_short(message)}"
    is_unsent = _is_unsent(error)
    billed: dict[str, Any] = {}
    if counts:
        billed = dict(
            zip(("input_tokens", "cached_tokens", "output_tokens"), counts[-1], strict=True)
        )
    elif is_unsent or (400 <= (status or 0) < 500 and not isinstance(error, ResponseError)):
        billed = {"input_tokens": 0, "output_tokens": 0}
    if is_block(status, about):
        answer = Answer("refused", detail=_short(message), **billed)
        return _Reply(answer, answer)
    scope: Lasting = lasting(status, about)
    if scope != "no":
        detail += f" ({REPEATING}{advice(status, about)})"
    elif getattr(error, "is_too_large", False):
        # Not again in this run.
        scope = "question"
    answer = Answer("error", detail=detail)
    settlement = replace(answer, **billed) if billed else None
    return _Reply(answer, settlement, scope, is_unsent, getattr(error, "is_malformed", False))


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
    read = cached = written = None
    if (usage := output.usage) is not None:
        cached = usage.input_tokens_cache_read or 0
        read = usage.input_tokens + cached + (usage.input_tokens_cache_write or 0)
        # inspect-ai's `grok` leaves reasoning out of the tokens written:
        # https://github.com/UKGovernmentBEIS/inspect_ai/issues/5528
        reasoning = usage.reasoning_tokens or 0
        written = written_tokens(read, usage.output_tokens, usage.total_tokens, reasoning)
    answer = Answer(
        "error",
        detail="the answer is empty",
        input_tokens=read,
        cached_tokens=cached,
        output_tokens=written,
        seconds=None if output.time is None else round(output.time, 3),
        model=output.model or None,
    )
    if output.empty:
        return answer
    pieces = output.message.content if isinstance(output.message.content, list) else []
    declined = any(getattr(piece, "refusal", None) for piece in pieces)
    outcome: Any = "refused" if declined else _OUTCOME_OF.get(output.stop_reason, "answered")
    text, detail = output.completion, None
    if output.stop_reason == "model_length" and usage is None:
        # `text` is the provider's message: the question is too long.
        detail = f"{_short(output.error or text)} ({REPEATING}{advice(400, text)})"
        return replace(answer, detail=detail)
    if outcome in ("answered", "cut") and not text.strip():
        detail = _why_empty(output.message.tool_calls, pieces, is_cut=outcome == "cut")
        return replace(answer, outcome="cut" if outcome == "cut" else "error", detail=detail)
    if outcome == "refused" and output.error:
        # `text` is the provider's message, not the model's answer.
        detail, text = _short(output.error), ""
    elif outcome == "refused":
        # `text` may be the model's answer or the provider's message.
        text = without_secrets(text)
    return replace(answer, outcome=outcome, text=text, detail=detail)


def _why_empty(tool_calls: Any, pieces: Sequence[Any], *, is_cut: bool) -> str:
    if tool_calls:
        return "the answer is empty: the model called a tool"
    if not any(getattr(piece, "type", None) == "reasoning" for piece in pieces):
        return "the answer is empty"
    remedy = "raise max_tokens" if is_cut else "turn reasoning off, or set another reasoning parser"
    return f"the answer is hidden reasoning alone: {remedy}"


def _short(text: str) -> str:
    """A provider's message on one line, without secrets and at most 300 characters long."""
    line = " ".join(without_secrets(text).split())
    return line if len(line) <= 300 else line[:297] + "..."


# User name and password in a URL.
_LOGIN = re.compile(r"(://)([^/\s@]+)@")
_MIN_SECRET = 8
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
        for start in range(len(secret) - _MIN_SECRET + 1):
            if any(secret[start : start + _MIN_SECRET] in form for form in forms):
                return WITHHELD
    return redacted


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()
