"""Embeddings of stories by a service with OpenAI's interface, stored as they come.

    embed_by_service(texts, EmbeddingOptions("openai-api/openai/text-embedding-3-small"), folder)

`openai-api/SERVICE/MODEL` names a service as it does for judges: its address and key are in
`SERVICE_BASE_URL` and `SERVICE_API_KEY`. The `openai` client retries failed calls.

Services do not say how they divide a text, so a window of `max_tokens` has that many times two
bytes: English has about four bytes a token, Chinese more than two. Windows are embedded and stored,
and a story is their mean, weighted by length.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from litbench.artifact import fingerprint
from litbench.errors import ConfigError, MissingExtraError, ModelError
from litbench.judges.client import estimate_tokens, without_secrets
from litbench.judges.prices import Price
from litbench.models.embeddings import (
    SERVICE,
    Embedded,
    EmbeddingOptions,
    EmbeddingStore,
    normalised,
)
from litbench.raters import Estimate
from litbench.text import digest

# Raise it when the same window and model come to be stored in another way.
_VERSION = 1
# The most that OpenAI's models read.
_MAX_TOKENS = 8_191
_LEAST_BYTES_PER_TOKEN = 2
# Per call: small servers take 32 texts, OpenAI 300,000 tokens.
_TEXTS_PER_CALL, _BYTES_PER_CALL = 32, 400_000
_SECONDS_PER_CALL, _RETRIES = 2.0, 6
_LAST_SPACE = re.compile(r"\s\S*$")


class ServiceEmbeddings:
    """The embeddings of some texts by a service: what is stored, and what must be requested.

    Args:
        texts: shape (n,).
        options: see EmbeddingOptions.
        folder: where embeddings are stored; may serve several models and sets.

    Raises:
        DataError: the folder cannot be read.
    """

    def __init__(self, texts: Sequence[str], options: EmbeddingOptions, folder: Path) -> None:
        self._texts, self._options = texts, options
        self._windows = {text: _windows(text, options.max_tokens or _MAX_TOKENS) for text in texts}
        read = 1 if options.long_stories == "cut" else None
        self._read = {text: windows[:read] for text, windows in self._windows.items()}
        self._store = EmbeddingStore(folder / fingerprint("service", options.model, _VERSION)[:16])
        self._key_of = {
            window: digest("window", window) for some in self._read.values() for window in some
        }

    def _batches(self) -> list[list[str]]:
        """The windows that are not stored, in calls of bounded size, the longest first."""
        new = [window for window, key in self._key_of.items() if key not in self._store.rows]
        batches: list[list[str]] = []
        size = 0
        for window in sorted(new, key=lambda window: (-len(window), window)):
            more = len(window.encode())
            if not batches or len(batches[-1]) == _TEXTS_PER_CALL or size + more > _BYTES_PER_CALL:
                batches.append([])
                size = 0
            batches[-1].append(window)
            size += more
        return batches

    def estimate(self, price: Price | None) -> Estimate:
        """What requesting the rest would take."""
        batches = self._batches()
        tokens = sum(estimate_tokens(window) for batch in batches for window in batch)
        return Estimate(
            rater="embeddings",
            model=self._options.model,
            calls=len(batches),
            known=len(self._key_of) - sum(map(len, batches)),
            input_tokens=tokens,
            output_tokens=0,
            cost_usd=None if price is None else price.of(tokens, 0),
            most_cost_usd=None if price is None else price.of(2 * tokens, 0),
            seconds=len(batches) * _SECONDS_PER_CALL,
        )

    def fetch(self) -> Embedded:
        """Request the rest, and average the windows of every text.

        Raises:
            ConfigError: the address or the key is missing.
            ModelError: the service does not answer, or not with the embeddings of these texts.
            DataError: an embedding cannot be stored.
            MissingExtraError: openai is not installed and something must be requested.
        """
        if batches := self._batches():
            self._request(batches)
        vector_of = {window: self._store.rows[key][0] for window, key in self._key_of.items()}
        if len({len(vector) for vector in vector_of.values()}) > 1:
            raise ModelError(
                f"{self._options.model} gave embeddings of different lengths: its model has "
                f"changed, so remove {self._store.folder} and run the same command again"
            )
        found = {}
        for text, windows in self._read.items():
            lengths = [max(len(window.encode()), 1) for window in windows]
            found[text] = np.average([vector_of[w] for w in windows], axis=0, weights=lengths)
        vectors = np.array([found[text] for text in self._texts])
        if self._options.normalise:
            vectors = normalised(vectors)
        cut = [w for text, read in self._read.items() for w in self._windows[text][len(read) :]]
        notes = {
            "texts": len(self._read),
            "tokens": sum(self._store.rows[key][1][0] for key in self._key_of.values()),
            "longer_than_a_window": sum(len(windows) > 1 for windows in self._windows.values()),
            "windows": len(self._key_of),
            "tokens_cut": sum(map(estimate_tokens, cut)),
        }
        return Embedded(vectors.astype(np.float32), notes)

    def _request(self, batches: Sequence[Sequence[str]]) -> None:
        try:
            from openai import OpenAI  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("openai", "judge") from error
        address, key = _address(self._options.model)
        name = self._options.model.split("/", 2)[2]
        with OpenAI(api_key=key, base_url=address, max_retries=_RETRIES) as client:
            for batch in tqdm(batches, desc="embeddings", unit=" calls", disable=None):
                try:
                    response = client.embeddings.create(
                        input=list(batch), model=name, encoding_format="float"
                    )
                    rows = sorted(response.data, key=lambda row: row.index)
                    vectors = np.array([row.embedding for row in rows], dtype=np.float32)
                    if len(rows) != len(batch) or not np.isfinite(vectors).all():
                        raise ValueError(f"{len(batch)} texts were sent, {len(rows)} came back")
                except Exception as error:  # the client, its transport and JSON have dozens
                    said = without_secrets(f"{type(error).__name__}: {error}")
                    raise ModelError(
                        f"{self._options.model}: {' '.join(said.split())[:300]}: fix it and run "
                        "the same command again (a text that is too long needs a smaller "
                        f"embedding.max_tokens); {len(self._store.rows)} windows are stored in "
                        f"{self._store.folder}"
                    ) from error
                for window, vector in zip(batch, vectors, strict=True):
                    self._store.put(self._key_of[window], vector, [estimate_tokens(window)])
                self._store.keep()


def _address(model: str) -> tuple[str | None, str]:
    """Address and key of a service, from the environment; no address where the client knows it."""
    service, _, name = model.removeprefix(SERVICE).partition("/")
    if not service or not name:
        raise ConfigError(f"embedding: model is {model}: give {SERVICE}SERVICE/MODEL")
    variable = service.upper().replace("-", "_")
    key, address = (os.environ.get(f"{variable}_{end}") for end in ("API_KEY", "BASE_URL"))
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
    """A text in pieces of at most so many tokens, cut between words where there are any."""
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
