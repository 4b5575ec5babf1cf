"""Ask any model many independent questions; killed at any moment, ask only what is still open.

    with AnswerStore(out / "answers") as store:
        answers = ask("openai/gpt-4.1-mini", questions, store, Sampling(), Traffic())

The model is any name that inspect-ai knows: `openai/...`, `anthropic/...`, `hf/FOLDER` for a model
on this machine, `openai-api/SERVICE/MODEL` for a server with an OpenAI-compatible interface, whose
address and key stand in `SERVICE_BASE_URL` and `SERVICE_API_KEY`. Keys come from the environment,
where inspect-ai looks for them, and are struck out of every message.

inspect-ai brings the providers, their errors and the retries. What it is not used for is keeping
the answers. Its evaluation log is written in batches, so a killed run loses answers that were paid
for; it is resumed by running the task file again; and it is a zip archive that Python's own
`zipfile` cannot read. Here an answer is one line of a JSON Lines file, appended in one write before
the next question of the same connection is sent, and named by everything that it depends on: the
model, the sampling and the whole question. So a run can be killed at random, a config can change
and change back, files from several machines can be put into one folder, and no stored answer is
asked for again. What a kill can lose is what was under way, one answer for each connection.

A refusal and an answer that was cut off are answers and are kept. An error is none: it is reported
and asked again by the next run.
"""

import asyncio
import fcntl
import json
import math
import os
import random
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

from tqdm import tqdm

from litbench.config import as_plain
from litbench.errors import ConfigError, DataError, MissingExtraError, ModelError
from litbench.manifest import file_digest
from litbench.text import digest

Outcome = Literal["answered", "refused", "cut", "error"]

_OUTCOME_OF = {
    "stop": "answered",
    "content_filter": "refused",
    "max_tokens": "cut",
    "model_length": "cut",
}
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.I)
# What stands before the @ of an address: a name and a password.
_LOGIN = re.compile(r"(://)[^/\s]+@")
# Providers of inspect-ai whose model may be a folder; to all others a folder is only a name.
_LOCAL_PROVIDERS = ("hf", "sglang", "vllm", "vllm-completions")
# English runs at 4 to 4.5 bytes a token, Chinese at 4 to 5.
_BYTES_PER_TOKEN = 4


@dataclass
class Sampling:
    """What an answer depends on besides the question and the model; null leaves it to the model.

    Attributes:
        temperature: 0 takes the likeliest token; some reasoning models accept null only.
        max_tokens: most tokens of an answer; reasoning models spend their thoughts from them.
        top_p: share of probability to draw from.
        seed: of the draws, where the provider takes one.
        reasoning_effort: such as low or high, for models that have it.
    """

    temperature: float | None = 0.0
    max_tokens: int | None = 1024
    top_p: float | None = None
    seed: int | None = None
    reasoning_effort: str | None = None


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
        give_up_after: so many calls in a row that the provider does not answer end the run, since
            a wrong key or a wrong name fails every time.
    """

    connections: int = 16
    max_retries: int = 6
    timeout_seconds: int = 180
    first_wait_seconds: float = 2.0
    longest_wait_seconds: float = 60.0
    max_calls: int | None = None
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
            ("give_up_after", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}: give at least {least}")


@dataclass(frozen=True)
class Answer:
    """What came back for one question.

    Attributes:
        outcome: answered, refused, cut (at `max_tokens`, or the question was too long) or error.
        text: what the model wrote, without its hidden reasoning; empty after an error.
        detail: what a refusal or an error said of itself.
        input_tokens: tokens read, those from a cache too.
        cached_tokens: those of them that came from the provider's prompt cache.
        output_tokens: tokens written, hidden reasoning too.
        seconds: of the request that was answered.
        model: the name that the provider gives itself.
        asked_utc: when the answer was there, in seconds since 1970.
    """

    outcome: Outcome
    text: str = ""
    detail: str | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    seconds: float | None = None
    model: str | None = None
    asked_utc: int | None = None


class AnswerStore:
    """Answers on disk, by key: every `*.jsonl` of a folder is read, one of them is written.

    Attributes:
        folder: where the files lie.
        unreadable: lines that hold no answer, such as one that a power cut has left torn.

    Args:
        folder: where the files lie; made when it is not there.
        name: the file to write. Programs that work at the same time, such as shards, need a name
            each; what the others wrote is read when the store is opened.
        read_only: nothing will be written, and nothing is made.
    """

    def __init__(self, folder: Path, name: str = "answers", *, read_only: bool = False) -> None:
        self.folder = folder
        self.unreadable = 0
        self._answers: dict[str, Answer] = {}
        self._path = folder / f"{name}.jsonl"
        self._file: BinaryIO | None = None
        if not read_only:
            self._file = self._open()
        try:
            for path in sorted(folder.glob("*.jsonl")):
                self._read(path)
        except OSError as error:
            self.close()
            raise DataError(f"cannot read the answers in {folder}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._answers)

    def close(self) -> None:
        """Let another program write."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def get(self, key: str) -> Answer | None:
        """The answer stored under a key, if any."""
        return self._answers.get(key)

    def put(self, key: str, answer: Answer) -> None:
        """Keep an answer; when this returns, killing the program cannot lose it.

        Raises:
            DataError: the disk is full or the file cannot be written.
        """
        assert self._file is not None, "the store was opened to be written"
        line = json.dumps({"key": key, **as_plain(answer)}, ensure_ascii=True) + "\n"
        try:
            self._file.write(line.encode("ascii"))
        except OSError as error:
            raise DataError(
                f"cannot write {self._path}: {error}; free space and run the same command again"
            ) from error
        self._answers[key] = answer

    def _open(self) -> BinaryIO:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a line goes out in one write.
            file = self._path.open("a+b", buffering=0)
        except OSError as error:
            raise DataError(
                f"cannot write {self._path}: {error.strerror}; choose another folder"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise DataError(
                f"{self._path} is being written by another program: wait until it is done, or "
                "stop it"
            ) from error
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                # A full disk can tear a line. The next one must not be joined to it.
                file.write(b"\n")
        return file

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            for line in file:
                if not line.strip():
                    continue
                try:
                    content = json.loads(line)
                    key = content.pop("key")
                    self._answers[key] = Answer(**content)
                except (ValueError, KeyError, TypeError, AttributeError):
                    self.unreadable += 1


class Budget:
    """The calls that a run may still make.

    Attributes:
        most: how many it may make in all; None for as many as it takes.
        spent: how many it has made.
    """

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.spent = 0

    def cut(self, waiting: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        """The first of some questions with their keys, as many as there are calls left."""
        return waiting if self.most is None else waiting[: max(0, self.most - self.spent)]


@cache
def identity(model: str) -> str:
    """What stands for a model in keys and manifests: its name, or the content of its folder."""
    folder = local_folder(model)
    return model if folder is None else f"{model.partition('/')[0]}/{file_digest(folder)}"


def local_folder(model: str) -> Path | None:
    """The folder of a model on this machine, as in `hf/FOLDER`; None for any other name.

    A provider on the network never has one, even where a folder is called like its model, such as
    the very folder that the run writes.
    """
    provider, _, name = model.partition("/")
    if provider not in _LOCAL_PROVIDERS or not name:
        return None
    folder = Path(name)
    return folder if folder.is_dir() else None


def keys_of(model: str, questions: Sequence[str], sampling: Sampling, sample: int = 0) -> list[str]:
    """The names of the answers to some questions.

    An option that is null has no part in the name, so an option added later renames nothing.

    Args:
        model: see the module.
        questions: whole texts.
        sampling: see `Sampling`.
        sample: another number asks the same question again, for several answers to it.
    """
    given = {name: value for name, value in as_plain(sampling).items() if value is not None}
    about = (identity(model), json.dumps(given, sort_keys=True), sample)
    return [digest("answer", *about, question) for question in questions]


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
    sample: int = 0,
    about: str = "answers",
    budget: Budget | None = None,
) -> list[Answer]:
    """Ask a model some independent questions, each of which is one message of a conversation.

    They are asked in the order of their texts, so that those that begin alike follow each other
    and a provider's prompt cache can help. The same question twice is asked once.

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
        The answers in the order of the questions; shape (n,).

    Raises:
        ConfigError: the model's name or its key is missing or wrong, or `max_calls` is reached.
        ModelError: too many errors in a row.
        DataError: an answer cannot be stored.
        MissingExtraError: inspect-ai is not installed and something must be asked.
    """
    traffic.check()
    keys = keys_of(model, questions, sampling, sample)
    known = {key: answer for key in keys if (answer := store.get(key)) is not None}
    texts = dict(zip(keys, questions, strict=True))
    waiting = sorted((text, key) for key, text in texts.items() if key not in known)
    if waiting:
        budget = Budget(traffic.max_calls) if budget is None else budget
        allowed = budget.cut(waiting)
        if allowed:
            asking = _Asking(model, store, sampling, traffic, budget)
            known |= asyncio.run(asking.run(allowed, about))
        if len(allowed) < len(waiting):
            raise ConfigError(
                f"max_calls of {budget.most} is reached: {len(known)} of {len(set(keys))} "
                "questions are asked, and their answers are kept: run the same command again, or "
                "raise max_calls"
            )
    return [known[key] for key in keys]


class _Asking:
    """One run's conversation with a model."""

    def __init__(
        self,
        model: str,
        store: AnswerStore,
        sampling: Sampling,
        traffic: Traffic,
        budget: Budget,
    ) -> None:
        try:
            import inspect_ai.model  # noqa: F401, PLC0415
        except ImportError as error:
            raise MissingExtraError("inspect-ai", "judge") from error
        self._name = model
        self._is_local = model.startswith("hf/")
        self._store = store
        self._sampling = sampling
        self._traffic = traffic
        self._budget = budget
        self._answers: dict[str, Answer] = {}
        self._counts: Counter[str] = Counter()
        self._errors_in_a_row = 0
        self._gives_up = True

    async def run(self, waiting: Sequence[tuple[str, str]], about: str) -> dict[str, Answer]:
        """Ask (question, key) by (question, key); answers by key."""
        async with self._open_model() as model:
            await self._ask_all(model, waiting, about)
            # What failed once, such as an empty answer, often succeeds a while later.
            failed = [(q, key) for q, key in waiting if self._answers[key].outcome == "error"]
            again = self._budget.cut(failed)
            if again:
                self._gives_up = False
                await self._ask_all(model, again, f"{about} again")
        return self._answers

    async def _ask_all(self, model: Any, waiting: Sequence[tuple[str, str]], about: str) -> None:
        self._counts.clear()
        with tqdm(total=len(waiting), desc=about, unit="call", disable=None) as bar:
            queue = iter(waiting)
            workers = [
                asyncio.create_task(self._work(model, queue, bar))
                for _ in range(min(self._traffic.connections, len(waiting)))
            ]
            try:
                done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        for worker in done:
            worker.result()

    def _open_model(self) -> Any:
        from inspect_ai.model import GenerateConfig, get_model  # noqa: PLC0415

        traffic = self._traffic
        given = {name: v for name, v in as_plain(self._sampling).items() if v is not None}
        arguments = {}
        if self._is_local and given.get("temperature") == 0:
            # Transformers takes no temperature of 0; not to sample is the same.
            del given["temperature"]
            arguments["do_sample"] = False
        config = GenerateConfig(
            max_retries=traffic.max_retries,
            attempt_timeout=traffic.timeout_seconds,
            max_connections=traffic.connections,
            **given,
        )
        try:
            # Memoised, a client would outlive the event loop that it belongs to.
            model = get_model(self._name, config=config, memoize=False, **arguments)
        except Exception as error:
            raise ConfigError(
                f"model {self._name}: {_without_secrets(_plain_text(str(error)))}"
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
        return model

    async def _work(self, model: Any, queue: Iterator[tuple[str, str]], bar: Any) -> None:
        for question, key in queue:
            # A task of its own: what inspect-ai notes of a call is dropped with it.
            answer = await asyncio.create_task(self._answer(model, question, key))
            self._answers[key] = answer
            self._counts[answer.outcome] += 1
            bar.update()
            bar.set_postfix({k: n for k, n in self._counts.items() if k != "answered"})
            if self._gives_up and self._errors_in_a_row >= self._traffic.give_up_after:
                raise ModelError(
                    f"model {self._name}: {self._errors_in_a_row} errors without an answer between "
                    f"them, such as {answer.detail}: mend it and run the same command again, or "
                    f"raise give_up_after; {len(self._store)} answers are kept in "
                    f"{self._store.folder}"
                )

    async def _answer(self, model: Any, question: str, key: str) -> Answer:
        self._budget.spent += 1
        try:
            output = await model.generate(question)
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
        if answer.outcome != "error":
            self._store.put(key, answer)
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
        text = _without_secrets(text)
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
        asked_utc=int(time.time()),
    )


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
    line = " ".join(_without_secrets(text).split())
    return line if len(line) <= 300 else line[:297] + "..."


def _plain_text(text: str) -> str:
    """Without the marks that inspect-ai puts into messages for the terminal."""
    return re.sub(r"\[/?(?:bold|red|blue|italic|dim)\]", "", " ".join(text.split()))


def _without_secrets(text: str) -> str:
    """Strike out keys and passwords that stand in the environment, and logins in addresses."""
    secrets = {v.strip() for name, v in os.environ.items() if _SECRET_NAME.search(name)}
    # Longest first: of a key that begins with another the rest would remain.
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 8:
            text = text.replace(secret, "***")
    return _LOGIN.sub(r"\1***@", text)
