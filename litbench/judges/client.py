"""Ask any model many independent questions; a killed run asks only what is still open.

    with AnswerStore(out / "answers") as store:
        answers = ask("openai/gpt-4.1-mini", questions, store, Sampling(), Traffic())

The model is any name that inspect-ai knows: `openai/...`, `anthropic/...`, `hf/FOLDER` for a model
on this machine, `openai-api/SERVICE/MODEL` for a server with an OpenAI-compatible interface, whose
address and key stand in `SERVICE_BASE_URL` and `SERVICE_API_KEY`. Keys come from the environment,
where inspect-ai looks for them; a message that holds one is not shown.

inspect-ai reaches the providers, alone or in batches; every answer is stored as soon as it is there
(`litbench.judges.store`). Refusals and truncated answers are stored; errors are retried, and asked
again by the next run.
"""

import asyncio
import base64
import contextvars
import itertools
import math
import os
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import unquote

from tqdm import tqdm

from litbench.config import as_plain
from litbench.errors import ConfigError, MissingExtraError, ModelError
from litbench.judges.prices import Price
from litbench.judges.store import Answer, AnswerStore, Question, Sampling, keys_of, text_of
from litbench.raters import Estimate

_OUTCOME_OF = {
    "stop": "answered",
    "content_filter": "refused",
    "max_tokens": "cut",
    "model_length": "cut",
}
# English runs at 4 to 4.5 bytes a token, Chinese at 4 to 5.
_BYTES_PER_TOKEN = 4
# Roles and markers that a provider puts around a question.
_TOKENS_AROUND = 16
# Output tokens to expect at most when `max_tokens` is left to the model.
_MOST_TOKENS = 4_096
# The connections are limited here, not by inspect-ai, which keeps one limit for a whole process.
_MOST_AT_ONCE = 1_000_000
# Guesses for a model whose stored answers do not tell: how fast it starts, and how it writes.
_SECONDS_TO_START = 1.0
_TOKENS_PER_SECOND = 60.0
_ENOUGH_TIMED = 20


@dataclass
class Traffic:
    """How questions are sent; the answers do not depend on it.

    Attributes:
        connections: concurrent requests.
        max_retries: attempts after the first one, when the provider is busy, fails or is silent.
            Some providers' own libraries try twice more within each.
        timeout_seconds: of one attempt.
        first_wait_seconds: pause after the first failed attempt; it doubles each time.
        longest_wait_seconds: longest pause.
        max_calls: most calls of this run, questions that are asked again included; null for no
            limit. Retries within a call do not count.
        max_cost_usd: most dollars billed for these questions in all runs together, by the table of
            prices; null for no limit. An attempt is made only while its highest cost fits in.
        give_up_after: end the run after so many calls in a row without an answer, since a wrong
            key or model name fails every time.
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
        """Refuse numbers that are too small.

        Raises:
            ConfigError: a number is too small.
        """
        least = {"connections": 1, "timeout_seconds": 1, "give_up_after": 1}
        for name, value in as_plain(self).items():
            if value is not None and value < least.get(name, 0):
                raise ConfigError(f"{name} is {value}: give at least {least.get(name, 0)}")


class Budget:
    """The calls and dollars that a run may still spend.

    Attributes:
        calls: how many calls it has made.
        dollars: the cost so far, with the noted answers of earlier runs.

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

    def take(
        self,
        question: Question,
        sampling: Sampling,
        *,
        batched: bool = False,
        is_retry: bool = False,
    ) -> float | None:
        """Reserve the highest cost of an attempt.

        Returns:
            Dollars, to be given to `settle`; None where the attempt must not be made.
        """
        if not is_retry and self._most_calls is not None and self.calls >= self._most_calls:
            return None
        most = 0.0
        if self._price is not None:
            written = _MOST_TOKENS if sampling.max_tokens is None else sampling.max_tokens
            read = estimate_tokens(text_of(question)) + _TOKENS_AROUND
            most = self._price.of(read, written, batched=batched)
        if self._most_dollars is not None and (
            self.dollars + self._reserved + most > self._most_dollars
        ):
            return None
        self.calls += not is_retry
        self._reserved += most
        return most

    def settle(self, reserved: float, answer: Answer, *, is_billed: bool = True) -> None:
        """Replace a reservation by the cost of what came back.

        Args:
            reserved: of `take`.
            answer: what came back. An attempt whose tokens were not counted may be billed all the
                same: its reservation stays.
            is_billed: False where the provider rejected the request.
        """
        self._reserved -= reserved
        if answer.input_tokens is None or answer.output_tokens is None:
            self.dollars += reserved if is_billed else 0.0
        else:
            self.note(answer)

    def note(self, answer: Answer) -> None:
        """Count the cost of a stored answer."""
        if self._price is not None:
            self.dollars += self._price.of_answer(answer) or 0.0

    def note_stored(self, store: AnswerStore, keys: Iterable[str]) -> None:
        """Count the cost of the answers of earlier runs, billed errors included."""
        for key in set(keys):
            for answer in store.billed(key):
                self.note(answer)

    def spent(self) -> str:
        """Which limit stops a run, and the cost so far."""
        if self._most_calls is not None and self.calls >= self._most_calls:
            return f"max_calls of {self._most_calls} is reached"
        return f"max_cost_usd of ${self._most_dollars} would be passed (${self.dollars:.4f} spent)"


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

    They are asked in the order of their texts, so that those that begin alike follow each other
    and a provider's prompt cache can help. The same question twice is asked once, for each sample.
    Questions whose answer is an error are asked once more at the end.

    Args:
        model: see the module.
        questions: texts, or conversations as lists of (role, text); shape (n,).
        store: has the answers that are known, and takes the new ones.
        sampling: what the answers depend on.
        traffic: how they are asked for.
        sample: see `keys_of`.
        about: label of the progress bar.
        budget: of a run that asks more than once; else `max_calls` is for these questions alone.
        batch: questions per batch of the provider's batch interface; None asks at once.

    Returns:
        The answers in the order of `keys_of`; shape (samples * n,).

    Raises:
        ConfigError: the model's name or its key is missing or wrong, or a limit is reached.
        ModelError: too many errors in a row.
        DataError: an answer cannot be stored.
        MissingExtraError: inspect-ai is not installed and something must be asked.
    """
    traffic.check()
    keys = keys_of(model, questions, sampling, sample)
    known = {key: answer for key in keys if (answer := store.get(key)) is not None}
    by_key = dict(zip(keys, itertools.cycle(questions)))
    waiting = [(question, key) for key, question in by_key.items() if key not in known]
    if waiting:
        waiting.sort(key=lambda one: (text_of(one[0]), one[1]))
        budget = Budget(traffic) if budget is None else budget
        client = Client(model, store, sampling, traffic, budget, batch=batch)
        known |= asyncio.run(client.ask_all(waiting, about))
        if len(known) < len(by_key):
            raise ConfigError(
                f"{about}: {budget.spent()}: {len(known)} of {len(by_key)} questions are asked, "
                f"and {len(store):,} answers are kept in {store.folder}: run the same command "
                "again, or raise the limit"
            )
    return [known[key] for key in keys]


def estimate(
    rater: str,
    model: str,
    questions: Sequence[Question],
    store: AnswerStore,
    sampling: Sampling,
    traffic: Traffic,
    *,
    price: Price | None,
    usual_tokens: int,
    batched: bool = False,
) -> Estimate:
    """Estimate the cost without sending requests.

    Args:
        rater: name of the rater that would ask.
        model: see the module.
        questions: as for `ask`.
        store: has the known answers, whose length and time are taken where there are enough.
        sampling: as for `ask`.
        traffic: as for `ask`.
        price: of the model.
        usual_tokens: of an answer, where too few are known.
        batched: whether they would be asked in batches.
    """
    by_key = dict(zip(keys_of(model, questions, sampling), questions, strict=True))
    answers = [answer for key in by_key if (answer := store.get(key)) is not None]
    waiting = [text_of(question) for key, question in by_key.items() if key not in store]
    read = sum(map(estimate_tokens, waiting))
    written = [one.output_tokens for one in answers if one.output_tokens is not None]
    timed = [one.seconds for one in answers if one.seconds is not None]
    if len(written) >= _ENOUGH_TIMED:
        usual_tokens = round(statistics.mean(written))
    seconds = _SECONDS_TO_START + usual_tokens / _TOKENS_PER_SECOND
    if len(timed) >= _ENOUGH_TIMED:
        seconds = statistics.mean(timed)
    calls = len(waiting)
    most = None if sampling.max_tokens is None else calls * sampling.max_tokens
    cost = None if price is None else partial(price.of, read, batched=batched)
    return Estimate(
        rater=rater,
        model=model,
        calls=calls,
        known=len(answers),
        input_tokens=read,
        output_tokens=calls * usual_tokens,
        cost_usd=None if cost is None else cost(calls * usual_tokens),
        most_cost_usd=None if cost is None or most is None else cost(most),
        seconds=calls * seconds / traffic.connections,
    )


class Client:
    """Asks one model for one run; see `ask` for the arguments.

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
        self._name = model
        self._store = store
        self._sampling = sampling
        self._traffic = traffic
        self._budget = budget
        self._batch = batch
        self._is_local = model.startswith("hf/")
        self._model: Any = None
        self._gives_up = True
        self._errors_in_a_row = 0
        self._counts: Counter[str] = Counter()

    async def ask_all(
        self, waiting: Sequence[tuple[Question, str]], about: str
    ) -> dict[str, Answer]:
        """Ask (question, key) by (question, key).

        Returns:
            Answers by key, without those that the budget does not allow.

        Raises:
            ConfigError: the model's name or its key is missing or wrong.
            ModelError: too many errors in a row.
            DataError: an answer cannot be stored.
        """
        async with self.open() as self._model:
            answers = await self._ask_each(waiting, about)
            # What failed once, such as an empty answer, often succeeds a while later.
            failed = [one for one in waiting if one[1] in answers and is_error(answers[one[1]])]
            if failed:
                self._gives_up = False
                self._counts.clear()
                answers |= await self._ask_each(failed, f"{about} again")
        return answers

    def open(self) -> Any:
        """Inspect-ai's model, for one event loop.

        Raises:
            ConfigError: its name or its key is missing or wrong.
        """
        from inspect_ai.model import BatchConfig, GenerateConfig, get_model  # noqa: PLC0415
        from tenacity import wait_none  # noqa: PLC0415

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
            # Attempts are repeated here, where each is paid for from the budget.
            given |= {"max_retries": 0, "attempt_timeout": self._traffic.timeout_seconds}
        config = GenerateConfig(max_connections=_MOST_AT_ONCE, **given)
        try:
            # Memoised, a client would outlive the event loop that it belongs to.
            model = get_model(self._name, config=config, memoize=False, **arguments)
        except Exception as error:
            said = re.sub(r"\[/?(?:bold|red|blue|italic|dim)\]", "", str(error))
            raise ConfigError(f"model {self._name}: {_short(said)}") from error
        if self._batch is None:
            # Never used; inspect-ai's own takes an argument that tenacity deprecates.
            model.api.retry_wait = wait_none
        return model

    async def _ask_each(
        self, waiting: Sequence[tuple[Question, str]], about: str
    ) -> dict[str, Answer]:
        answers: dict[str, Answer] = {}
        queue = iter(waiting)

        async def work(bar: Any) -> None:
            for question, key in queue:
                answer = await self._answer(question, key)
                if answer is None:
                    return
                answers[key] = answer
                bar.update()
                bar.set_postfix(self._progress())

        size = len(waiting)
        if self._batch is None:
            size = min(size, self._traffic.connections)
        with tqdm(total=len(waiting), desc=about, unit="call", leave=False, disable=None) as bar:
            workers = [asyncio.create_task(work(bar)) for _ in range(size)]
            try:
                done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        for worker in done:
            worker.result()
        return answers

    def _progress(self) -> dict[str, Any]:
        shown: dict[str, Any] = {k: n for k, n in self._counts.items() if k != "answered"}
        if self._budget.dollars:
            shown["$"] = f"{self._budget.dollars:.2f}"
        return shown

    async def _answer(self, question: Question, key: str) -> Answer | None:
        """Ask one question and store its answer; None where the budget does not allow the call."""
        traffic, batched = self._traffic, self._batch is not None
        attempt: _Attempt | None = None
        for number in range(1 if batched else traffic.max_retries + 1):
            reserved = self._budget.take(
                question, self._sampling, batched=batched, is_retry=number > 0
            )
            if reserved is None:
                break
            if attempt is not None:
                longest = min(
                    traffic.first_wait_seconds * 2.0 ** min(number - 1, 30),
                    traffic.longest_wait_seconds,
                )
                # Spread out, or all connections would knock again at the same moment.
                await asyncio.sleep(random.uniform(0.5, 1.0) * longest)
            # A task and a context of its own: what inspect-ai notes of a call is dropped with them.
            call = asyncio.create_task(self._attempt(question), context=contextvars.Context())
            attempt = await call
            self._budget.settle(reserved, attempt.answer, is_billed=attempt.is_billed)
            if not is_error(attempt.answer) or attempt.answer.input_tokens is not None:
                self._store.put(key, attempt.answer)
            if not attempt.may_pass:
                break
        if attempt is None:
            return None
        self._counts[attempt.answer.outcome] += 1
        self._errors_in_a_row = 0 if attempt.came_back else self._errors_in_a_row + 1
        if self._gives_up and self._errors_in_a_row >= traffic.give_up_after:
            raise ModelError(
                f"model {self._name}: {self._errors_in_a_row} errors without an answer between "
                f"them, such as {attempt.answer.detail}: mend it and run the same command again, "
                f"or raise give_up_after; {len(self._store)} answers are kept in "
                f"{self._store.folder}"
            )
        return attempt.answer

    async def _attempt(self, question: Question) -> "_Attempt":
        from inspect_ai import model as inspect_model  # noqa: PLC0415
        from tenacity import RetryError  # noqa: PLC0415

        kinds: dict[str, Any] = {
            "system": inspect_model.ChatMessageSystem,
            "user": inspect_model.ChatMessageUser,
            "assistant": inspect_model.ChatMessageAssistant,
        }
        sent: Any = question
        if not isinstance(question, str):
            sent = [kinds[role](content=text) for role, text in question]
        try:
            output = await self._model.generate(sent)
        except Exception as error:  # noqa: BLE001 - every provider has errors of its own
            # What it is when inspect-ai would try again.
            may_pass = isinstance(error, RetryError)
            inner = error.last_attempt.exception() if isinstance(error, RetryError) else error
            status = getattr(inner, "status_code", None)
            is_rejected = isinstance(status, int) and 400 <= status < 500
            answer = Answer("error", detail=_describe(inner or error))
            return _Attempt(answer, False, may_pass, is_billed=not is_rejected)
        answer = replace(_read_output(output), batched=self._batch is not None)
        if (
            self._is_local
            and answer.outcome == "answered"
            and (answer.output_tokens or 0) >= (self._sampling.max_tokens or math.inf)
        ):
            # inspect-ai does not say of a model in this process that its answer was cut off.
            answer = replace(answer, outcome="cut")
        return _Attempt(answer)


@dataclass(frozen=True)
class _Attempt:
    """What came of one attempt.

    Attributes:
        answer: the answer, or an error.
        came_back: whether the provider sent any answer, an empty one too.
        may_pass: whether another attempt may succeed.
        is_billed: False where the provider rejected the request.
    """

    answer: Answer
    came_back: bool = True
    may_pass: bool = False
    is_billed: bool = True


def _read_output(output: Any) -> Answer:
    """Convert inspect-ai's ModelOutput."""
    usage = output.usage
    cached = usage and (usage.input_tokens_cache_read or 0)
    answer = Answer(
        "error",
        input_tokens=usage and usage.input_tokens + cached + (usage.input_tokens_cache_write or 0),
        cached_tokens=cached,
        output_tokens=usage and usage.output_tokens,
        seconds=None if output.time is None else round(output.time, 3),
        model=output.model or None,
        asked_utc=round(time.time(), 3),
    )
    if output.empty:
        return replace(answer, detail="the answer is empty")
    reason = output.stop_reason
    pieces = output.message.content if isinstance(output.message.content, list) else []
    declined = any(getattr(piece, "refusal", None) for piece in pieces)
    outcome: Any = "refused" if declined else _OUTCOME_OF.get(reason, "answered")
    text = output.completion
    if outcome == "answered" and not text.strip():
        return replace(answer, detail=f"the answer is empty (stopped by: {reason})")
    detail = None
    if reason == "model_length" or (outcome == "refused" and output.error):
        # The provider's message stands in place of the model's answer.
        detail, text = _short(output.error or text), ""
    elif outcome == "refused":
        # It may be either, and nothing says which.
        text = without_secrets(text)
    return replace(
        answer, outcome=outcome, text=text, detail=detail, first_token=_first_token(output)
    )


def _first_token(output: Any) -> dict[str, float] | None:
    """Log probabilities of the likeliest first tokens, where the provider gives them."""
    given = output.choices[0].logprobs
    if given is None or not given.content or not given.content[0].top_logprobs:
        return None
    return {one.token: round(one.logprob, 6) for one in given.content[0].top_logprobs}


def _describe(error: BaseException) -> str:
    """Name an error in one line: its kind and what the provider said, without the question."""
    # The text of some of inspect-ai's errors holds the whole request.
    return (
        f"{type(error).__name__}: {_short(getattr(error, 'provider_message', None) or str(error))}"
    )


def _short(text: str) -> str:
    """The start of a message in one line; keys are looked for in the whole of it."""
    line = " ".join(without_secrets(text).split())
    return line if len(line) <= 300 else line[:297] + "..."


# Messages of providers ------------------------------------------------------------------------

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.I)
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
    found = (_letters(shown), _letters(unquote(shown)))
    pieces = {
        form[start : start + _LEAST_SECRET]
        for secret in _secrets()
        for form in _spellings(secret)
        for start in range(len(form) - _LEAST_SECRET + 1)
    }
    return WITHHELD if any(piece in one for piece in pieces for one in found) else shown


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


def _secrets() -> set[str]:
    """Keys and passwords of the environment, and those in its addresses."""
    named = {v.strip() for name, v in os.environ.items() if _SECRET_NAME.search(name)}
    logins = {login for v in os.environ.values() for _, login in _LOGIN.findall(v)}
    found = {*named, *(login.partition(":")[2] for login in logins)}
    return {secret for secret in found if len(secret) >= _LEAST_SECRET}


def _spellings(secret: str) -> Iterator[str]:
    data = secret.encode("utf-8", "replace")
    yield _letters(secret)
    yield data.hex()
    for shift in range(3):
        # Base64 of a text that the key stands in; what its neighbours change is left out.
        yield _letters(base64.b64encode(b" " * shift + data).decode()[4:-4])
