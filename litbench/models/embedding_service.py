"""Embeddings of stories by a service with OpenAI's interface, each kept as soon as it is paid for.

    EmbeddingOptions("openai-api/openai/text-embedding-3-small")

`openai-api/SERVICE/MODEL` names a service as it does for judges: its address and key stand in
`SERVICE_BASE_URL` and `SERVICE_API_KEY`, and OpenAI's own address is known. The key is in no file
and is struck out of every message.

No service says how it divides a text, so a window of `max_tokens` is that many times two bytes:
English has about four bytes a token, Chinese more than two. Windows are what is asked for and kept;
a story is their mean, weighted by their length. So a killed run pays again only for what was under
way, and one whose stories were cut pays for the rest alone when they are to be read whole.
"""

import asyncio
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from litbench.artifact import fingerprint
from litbench.errors import ConfigError, MissingExtraError, ModelError
from litbench.judges.client import Budget, Traffic, estimate_tokens, without_secrets
from litbench.judges.prices import Price
from litbench.judges.store import Answer, Sampling
from litbench.models.embeddings import (
    SERVICE,
    Embedded,
    EmbeddingOptions,
    EmbeddingStore,
    normalised,
)
from litbench.raters import Estimate
from litbench.text import digest

# To be raised when the same window and model come to be kept otherwise.
_FORM = 1
# What OpenAI's models read at most.
_MAX_TOKENS = 8_191
_LEAST_BYTES_PER_TOKEN = 2
# Of one call: small servers take 32 texts, OpenAI 300,000 tokens.
_TEXTS_AT_ONCE, _BYTES_AT_ONCE = 32, 400_000
_USUAL_SECONDS = 2.0
_LAST_SPACE = re.compile(r"\s\S*$")
# An embedding writes nothing.
_NOTHING_WRITTEN = Sampling(max_tokens=0)


class ServiceEmbeddings:
    """The embeddings of some texts by a service: what is there, and what must be asked for.

    Args:
        texts: shape (n,).
        options: see EmbeddingOptions.
        folder: where embeddings are kept; may serve several models and sets.

    Raises:
        DataError: the folder cannot be read.
    """

    def __init__(self, texts: Sequence[str], options: EmbeddingOptions, folder: Path) -> None:
        self._texts = texts
        self._options = options
        self._windows = {text: _windows(text, options.max_tokens or _MAX_TOKENS) for text in texts}
        read = 1 if options.long_stories == "cut" else None
        self._read = {text: windows[:read] for text, windows in self._windows.items()}
        self._store = EmbeddingStore(folder / fingerprint("service", options.model, _FORM)[:16])
        self._key_of = {
            window: digest("window", window) for some in self._read.values() for window in some
        }

    def waiting(self) -> list[str]:
        """The windows that no earlier run has paid for, the longest first."""
        new = [window for window, key in self._key_of.items() if key not in self._store.rows]
        return sorted(new, key=lambda window: (-len(window), window))

    def estimate(self, price: Price | None, traffic: Traffic) -> Estimate:
        """What asking for the rest would take."""
        waiting = self.waiting()
        calls = len(_batches(waiting))
        usual, most = _tokens(waiting), _tokens(waiting, dearest=True)
        return Estimate(
            rater="embeddings",
            model=self._options.model,
            calls=calls,
            known=len(self._key_of) - len(waiting),
            input_tokens=usual,
            output_tokens=0,
            most_output_tokens=0,
            cost_usd=None if price is None else price.of(usual, 0),
            most_cost_usd=None if price is None else price.of(most, 0),
            seconds=calls * _USUAL_SECONDS / min(traffic.connections, max(calls, 1)),
        )

    def fetch(self, traffic: Traffic, budget: Budget) -> Embedded:
        """Ask for the rest, and put the windows of every text together.

        Args:
            traffic: how to ask; a call that fails for good ends the run, so `give_up_after` has no
                part in it.
            budget: of the run; what earlier runs paid is noted in it.

        Raises:
            ConfigError: the address or the key is missing, or the budget is spent.
            ModelError: the service does not answer, or with something else than embeddings.
            DataError: an embedding cannot be kept.
            MissingExtraError: openai is not installed and something must be asked.
        """
        for key in self._key_of.values():
            if key in self._store.rows:
                budget.note(_answer(self._store.rows[key][1][0]))
        if waiting := self.waiting():
            asking = _Asking(self._options.model, self._store, self._key_of, traffic, budget)
            asyncio.run(asking.ask_all(_batches(waiting), len(waiting)))
        if missing := len(self.waiting()):
            raise ConfigError(
                f"{budget.spent()}: {len(self._key_of) - missing} of {len(self._key_of)} windows "
                "are embedded and kept: run the same command again, or raise the limit"
            )
        return Embedded(self._vectors(), self._notes())

    def _vectors(self) -> np.ndarray:
        vector_of = {window: self._store.rows[key][0] for window, key in self._key_of.items()}
        if len({len(vector) for vector in vector_of.values()}) > 1:
            raise ModelError(
                f"{self._options.model} gave embeddings of different lengths: its model has "
                f"changed, so remove {self._store.folder} and run the same command again"
            )
        found = {}
        for text, windows in self._read.items():
            lengths = [max(len(window.encode()), 1) for window in windows]
            rows = [vector_of[window] for window in windows]
            found[text] = np.average(rows, axis=0, weights=lengths)
        vectors = np.array([found[text] for text in self._texts])
        if self._options.normalise:
            vectors = normalised(vectors)
        return vectors.astype(np.float32)

    def _notes(self) -> dict[str, Any]:
        cut = [self._windows[text][len(read) :] for text, read in self._read.items()]
        return {
            "texts": len(self._read),
            "tokens": sum(self._store.rows[key][1][0] for key in self._key_of.values()),
            "longer_than_a_window": sum(len(windows) > 1 for windows in self._windows.values()),
            "windows": len(self._key_of),
            "tokens_cut": sum(_tokens(windows) for windows in cut),
        }


@dataclass(frozen=True)
class _Asking:
    """One run's connection to a service; see `ServiceEmbeddings.fetch`."""

    model: str
    store: EmbeddingStore
    key_of: dict[str, str]
    traffic: Traffic
    budget: Budget

    async def ask_all(self, batches: Sequence[Sequence[str]], count: int) -> None:
        """Ask batch by batch; those that the budget forbids are left."""
        try:
            from openai import AsyncOpenAI  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("openai", "judge") from error
        self.traffic.check()
        failed: list[ModelError] = []

        async def work(client: Any, queue: Iterator[Sequence[str]], bar: Any) -> None:
            for windows in queue:
                # What is under way elsewhere comes to its end: it may be paid for already.
                if failed or not await self._ask(client, windows, failed):
                    return
                bar.update(len(windows))

        address, key = _address(self.model)
        async with AsyncOpenAI(
            api_key=key, base_url=address, timeout=self.traffic.timeout_seconds
        ) as client:
            with tqdm(total=count, desc="embeddings", unit=" windows", disable=None) as bar:
                queue = iter(batches)
                size = min(self.traffic.connections, len(batches))
                await asyncio.gather(*(work(client, queue, bar) for _ in range(size)))
        if failed:
            raise failed[0]

    async def _ask(self, client: Any, windows: Sequence[str], failed: list[ModelError]) -> bool:
        """Embed some windows and keep them; whether the budget allowed it and it was done."""
        from tenacity import (  # noqa: PLC0415
            AsyncRetrying,
            retry_if_exception,
            stop_after_attempt,
            wait_random_exponential,
        )

        # Twice the text, since a tokenizer may need twice the tokens that are expected.
        reserved = self.budget.take(2 * "".join(windows), _NOTHING_WRITTEN)
        if reserved is None:
            return False
        tries = AsyncRetrying(
            stop=stop_after_attempt(self.traffic.max_retries + 1),
            wait=wait_random_exponential(
                self.traffic.first_wait_seconds, self.traffic.longest_wait_seconds
            ),
            retry=retry_if_exception(_may_pass),
            reraise=True,
        )
        name = self.model.split("/", 2)[2]

        async def once() -> tuple[np.ndarray, int | None]:
            response = await client.embeddings.create(
                input=list(windows), model=name, encoding_format="float"
            )
            return _read(response, len(windows))

        try:
            vectors, tokens = await tries(once)
        except Exception as error:  # noqa: BLE001 - the client, its transport and JSON have dozens
            said = " ".join(without_secrets(f"{type(error).__name__}: {error}").split())[:300]
            failed.append(
                ModelError(
                    f"{self.model}: {said}: mend it and run the same command again (a text that is "
                    "too long needs a smaller embedding.max_tokens); "
                    f"{len(self.store.rows)} windows are kept in {self.store.folder}"
                )
            )
            return False
        shares = _shared_out(_tokens(windows) if tokens is None else tokens, windows)
        self.budget.settle(reserved, _answer(sum(shares)))
        for window, vector, share in zip(windows, vectors, shares, strict=True):
            self.store.put(self.key_of[window], vector, [share])
        self.store.keep()
        return True


def _address(model: str) -> tuple[str | None, str]:
    """Address and key of a service, from the environment; no address where the client knows it."""
    service, _, name = model.removeprefix(SERVICE).partition("/")
    if not service or not name:
        raise ConfigError(f"embedding: model is {model}: give {SERVICE}SERVICE/MODEL")
    variable = service.upper().replace("-", "_")
    key = os.environ.get(f"{variable}_API_KEY")
    address = os.environ.get(f"{variable}_BASE_URL")
    if not key:
        raise ConfigError(
            f"{model}: {variable}_API_KEY is not set: put the service's key there, or any word "
            "where it wants none"
        )
    if not address and service != "openai":
        raise ConfigError(
            f"{model}: {variable}_BASE_URL is not set: put the service's address there, such as "
            "http://localhost:8000/v1"
        )
    return address or None, key


def _windows(text: str, max_tokens: int) -> list[str]:
    """A text in pieces of no more tokens than that, cut between words where there are any."""
    most = max_tokens * _LEAST_BYTES_PER_TOKEN
    windows, rest = [], text
    while len(rest.encode()) > most:
        start = rest.encode()[:most].decode(errors="ignore")
        space = _LAST_SPACE.search(start)
        # Without spaces between words there is nothing to cut at.
        end = space.start() if space and space.start() > len(start) * 0.9 else len(start)
        windows.append(rest[:end])
        rest = rest[end:]
    return [*windows, rest] if rest.strip() or not windows else windows


def _batches(windows: Sequence[str]) -> list[list[str]]:
    """Windows as they are sent, in calls of bounded size."""
    batches: list[list[str]] = []
    size = 0
    for window in windows:
        more = len(window.encode())
        if not batches or len(batches[-1]) == _TEXTS_AT_ONCE or size + more > _BYTES_AT_ONCE:
            batches.append([])
            size = 0
        batches[-1].append(window)
        size += more
    return batches


def _tokens(windows: Sequence[str], *, dearest: bool = False) -> int:
    """About how many tokens some windows have, or how many at most."""
    times = 2 if dearest else 1
    return sum(estimate_tokens(times * window) for window in windows)


def _answer(tokens: int) -> Answer:
    """What a budget wants to know of an embedding."""
    return Answer("answered", input_tokens=tokens, output_tokens=0)


def _shared_out(tokens: int, windows: Sequence[str]) -> list[int]:
    """The tokens of a call by its windows' lengths; they add up."""
    ends = np.cumsum([0, *(len(window.encode()) for window in windows)])
    shares: list[int] = np.diff(np.rint(tokens * ends / max(ends[-1], 1))).astype(int).tolist()
    return shares


class _NoEmbeddingsError(Exception):
    """An answer that holds no embeddings, such as a proxy's page."""


def _read(response: Any, count: int) -> tuple[np.ndarray, int | None]:
    """The vectors of a response in the order of its texts, and the tokens it says it read.

    Raises:
        _NoEmbeddingsError: there are none.
        ModelError: they are not those of the texts, and paid for.
    """
    try:
        rows = sorted(response.data, key=lambda row: row.index)
        vectors = np.array([row.embedding for row in rows], dtype=np.float32)
        places = [row.index for row in rows]
    except (AttributeError, TypeError, ValueError) as error:
        raise _NoEmbeddingsError(f"the answer holds no embeddings ({error})") from error
    if places != list(range(count)) or vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise ModelError(
            f"{count} texts were sent, and {len(rows)} embeddings came back, or not of numbers"
        )
    usage = getattr(response, "usage", None)
    # Some servers count nothing.
    return vectors, (usage.prompt_tokens or None) if usage else None


def _may_pass(error: BaseException) -> bool:
    """Whether a second try may help."""
    from openai import APIConnectionError, InternalServerError, RateLimitError  # noqa: PLC0415

    # It comes with the status of a rate limit, and stays until somebody pays.
    if getattr(error, "code", None) == "insufficient_quota":
        return False
    passing = (APIConnectionError, InternalServerError, RateLimitError, _NoEmbeddingsError)
    return isinstance(error, passing)
