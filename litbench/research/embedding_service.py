"""Embeddings by a service with OpenAI's interface.

`openai-api/SERVICE/MODEL` names a service, as for judges: its address and key are in
`SERVICE_BASE_URL` and `SERVICE_API_KEY`. The `openai` client retries failed calls.
"""

import os
import re
from collections.abc import Iterator, Sequence

import numpy as np

from litbench.judges.client import estimate_tokens, without_secrets
from litbench.runs.errors import ConfigError, ModelError

SERVICE = "openai-api/"
# The service's tokenizer is unknown.
_MIN_BYTES_PER_TOKEN = 2
# Small servers accept 32 texts in a call.
TEXTS_PER_CALL = 32
_RETRIES = 6
_LAST_SPACE = re.compile(r"\s\S*$")


class Service:
    """A service that embeds texts in windows.

    Args:
        model: `openai-api/SERVICE/MODEL`.
        max_tokens: size of a window; it has at most two bytes per token.
        cuts: embed only the first window of a text.
    """

    def __init__(self, model: str, max_tokens: int, *, cuts: bool) -> None:
        from openai import OpenAI  # noqa: PLC0415

        address, key = _address(model)
        self._client = OpenAI(api_key=key, base_url=address, max_retries=_RETRIES)
        self._model, self._max_bytes = model, max_tokens * _MIN_BYTES_PER_TOKEN
        self._read = 1 if cuts else None

    def embed_all(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, list[int]]]:
        """Yield a vector of length 1, float32, per text, and estimated counts.

        The vector is the mean over the windows, weighted by their length. Counts are tokens read,
        tokens cut, unknown tokens (0) and windows.
        """
        for start in range(0, len(texts), TEXTS_PER_CALL):
            windows_of = list(map(self._windows, texts[start : start + TEXTS_PER_CALL]))
            read_of = [windows[: self._read] for windows in windows_of]
            vectors = self._request([window for read in read_of for window in read])
            for windows, read in zip(windows_of, read_of, strict=True):
                text_vectors, vectors = vectors[: len(read)], vectors[len(read) :]
                weights = [max(len(window.encode()), 1) for window in read]
                mean = np.average(text_vectors, axis=0, weights=weights)
                tokens = [sum(map(estimate_tokens, some)) for some in (read, windows[len(read) :])]
                vector = (mean / np.linalg.norm(mean)).astype(np.float32)
                yield vector, [*tokens, 0, len(read)]

    def _windows(self, text: str) -> list[str]:
        """Split a text into windows, between words if possible."""
        windows, rest = [], text
        while len(rest.encode()) > self._max_bytes:
            start = rest.encode()[: self._max_bytes].decode(errors="ignore")
            space = _LAST_SPACE.search(start)
            # Scripts without spaces are cut anywhere.
            end = space.start() if space and space.start() > len(start) * 0.9 else len(start)
            windows.append(rest[:end])
            rest = rest[end:]
        return [*windows, rest] if rest.strip() or not windows else windows

    def _request(self, windows: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = []
        for start in range(0, len(windows), TEXTS_PER_CALL):
            batch = windows[start : start + TEXTS_PER_CALL]
            try:
                response = self._client.embeddings.create(
                    input=batch, model=self._model.split("/", 2)[2], encoding_format="float"
                )
                rows = sorted(response.data, key=lambda row: row.index)
                embeddings = [row.embedding for row in rows]
                if len(rows) != len(batch) or not np.isfinite(embeddings).all():
                    raise ValueError(f"{len(batch)} texts gave {len(rows)} embeddings")
            except Exception as error:  # the client, its transport and JSON raise dozens of types
                reason = without_secrets(f"{type(error).__name__}: {error}")
                raise ModelError(
                    f"{self._model}: {' '.join(reason.split())[:300]}: fix it and run the same "
                    "command again (if a text is too long, lower embedding.max_tokens); earlier "
                    "embeddings are stored"
                ) from error
            vectors += embeddings
        return vectors


def _address(model: str) -> tuple[str | None, str]:
    """Address and key of a service from the environment; the address may be None for OpenAI."""
    service, _, name = model.removeprefix(SERVICE).partition("/")
    if not service or not name:
        raise ConfigError(f"embedding: model is {model}: give {SERVICE}SERVICE/MODEL")
    variable = service.upper().replace("-", "_")
    key, address = (os.environ.get(f"{variable}_{end}") for end in ("API_KEY", "BASE_URL"))
    if not key:
        raise ConfigError(
            f"{model}: {variable}_API_KEY is not set: set it to the service's key, or to any word "
            "if the service needs none"
        )
    if not address and service != "openai":
        raise ConfigError(
            f"{model}: {variable}_BASE_URL is not set: set it to the service's address, such as "
            "http://localhost:8000/v1"
        )
    return address or None, key
