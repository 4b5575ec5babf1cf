"""Embeddings of stories by a service with OpenAI's interface, stored as they arrive.

`openai-api/SERVICE/MODEL` names a service, as for judges: its address and key are in
`SERVICE_BASE_URL` and `SERVICE_API_KEY`. The `openai` client retries failed calls.

A window has at most two bytes per token of `max_tokens`, since the service's tokenizer is unknown.
Windows are embedded and stored; the embedding of a story is their mean, weighted by length.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from litbench.artifact import fingerprint
from litbench.errors import ConfigError, MissingExtraError, ModelError
from litbench.judges.client import estimate_tokens, without_secrets
from litbench.models.embeddings import (
    SERVICE,
    Embedded,
    EmbeddingOptions,
    EmbeddingStore,
    normalised,
)
from litbench.text import digest

# Raise it when the stored form of a window's embedding changes.
_VERSION = 1
# The limit of OpenAI's models.
_MAX_TOKENS = 8_191
_LEAST_BYTES_PER_TOKEN = 2
# Limits per call: small servers accept 32 texts, OpenAI 300,000 tokens.
_TEXTS_PER_CALL, _BYTES_PER_CALL = 32, 400_000
_RETRIES = 6
_LAST_SPACE = re.compile(r"\s\S*$")


def embed_by_service(texts: Sequence[str], options: EmbeddingOptions, folder: Path) -> Embedded:
    """Embed texts, requesting only windows that are not stored yet.

    Args:
        texts: shape (n,).
        options: see EmbeddingOptions.
        folder: where embeddings are stored; several models and sets may share it.
    """
    windows_of = {text: _windows(text, options.max_tokens or _MAX_TOKENS) for text in texts}
    read = 1 if options.long_stories == "cut" else None
    read_of = {text: windows[:read] for text, windows in windows_of.items()}
    key_of = {window: digest("window", window) for some in read_of.values() for window in some}
    store = EmbeddingStore(folder / fingerprint("service", options.model, _VERSION)[:16])
    new = [window for window, key in key_of.items() if key not in store.rows]
    if new:
        _request(options.model, _batches(new), key_of, store)
    vector_of = {window: store.rows[key][0] for window, key in key_of.items()}
    if len({len(vector) for vector in vector_of.values()}) > 1:
        raise ModelError(
            f"{options.model} returned embeddings of different lengths, so its model has changed: "
            f"remove {store.folder} and run the same command again"
        )
    means = {}
    for text, windows in read_of.items():
        lengths = [max(len(window.encode()), 1) for window in windows]
        means[text] = np.average([vector_of[w] for w in windows], axis=0, weights=lengths)
    vectors = normalised(np.array([means[text] for text in texts]))
    cut = [w for text, some in read_of.items() for w in windows_of[text][len(some) :]]
    notes = {
        "texts": len(read_of),
        "tokens": sum(store.rows[key][1][0] for key in key_of.values()),
        "longer_than_a_window": sum(len(windows) > 1 for windows in windows_of.values()),
        "windows": len(key_of),
        "tokens_cut": sum(map(estimate_tokens, cut)),
    }
    return Embedded(vectors.astype(np.float32), notes)


def _batches(windows: Sequence[str]) -> list[list[str]]:
    """Group windows into calls of limited size, longest first."""
    batches: list[list[str]] = []
    size = 0
    for window in sorted(windows, key=lambda window: (-len(window), window)):
        more = len(window.encode())
        if not batches or len(batches[-1]) == _TEXTS_PER_CALL or size + more > _BYTES_PER_CALL:
            batches.append([])
            size = 0
        batches[-1].append(window)
        size += more
    return batches


def _request(
    model: str, batches: Sequence[list[str]], key_of: Mapping[str, str], store: EmbeddingStore
) -> None:
    try:
        from openai import OpenAI  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("openai", "judge") from error
    address, key = _address(model)
    with OpenAI(api_key=key, base_url=address, max_retries=_RETRIES) as client:
        for batch in tqdm(batches, desc="embeddings", unit=" calls", disable=None):
            try:
                response = client.embeddings.create(
                    input=batch, model=model.split("/", 2)[2], encoding_format="float"
                )
                rows = sorted(response.data, key=lambda row: row.index)
                vectors = np.array([row.embedding for row in rows], dtype=np.float32)
                if len(rows) != len(batch) or not np.isfinite(vectors).all():
                    raise ValueError(f"{len(batch)} texts were sent, {len(rows)} came back")
            except Exception as error:  # the client, its transport and JSON raise dozens of types
                reason = without_secrets(f"{type(error).__name__}: {error}")
                raise ModelError(
                    f"{model}: {' '.join(reason.split())[:300]}: fix it and run the same command "
                    "again (if a text is too long, lower embedding.max_tokens); "
                    f"{len(store.rows)} windows are stored in {store.folder}"
                ) from error
            for window, vector in zip(batch, vectors, strict=True):
                store.put(key_of[window], vector, [estimate_tokens(window)])
            store.keep()


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


def _windows(text: str, max_tokens: int) -> list[str]:
    """Split a text into windows of at most `max_tokens`, between words if possible."""
    most = max_tokens * _LEAST_BYTES_PER_TOKEN
    windows, rest = [], text
    while len(rest.encode()) > most:
        start = rest.encode()[:most].decode(errors="ignore")
        space = _LAST_SPACE.search(start)
        # Scripts without spaces are cut anywhere.
        end = space.start() if space and space.start() > len(start) * 0.9 else len(start)
        windows.append(rest[:end])
        rest = rest[end:]
    return [*windows, rest] if rest.strip() or not windows else windows
