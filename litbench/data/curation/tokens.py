"""Count the tokens of stories."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from litbench.runs.errors import ConfigError
from litbench.runs.locations import resolve

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TEXTS_PER_BATCH = 512


def locate_tokenizer(name: str) -> str:
    """Return the path of a tokenizer file, or its name on the Hub."""
    location = resolve(name)
    return str(Path(location) / "tokenizer.json") if Path(location).is_dir() else location


def load_tokenizer(name: str) -> "Tokenizer":
    """Load a fast tokenizer from `package:NAME/folder`, a folder, a file or the Hub."""
    from tokenizers import Tokenizer  # noqa: PLC0415

    location = locate_tokenizer(name)
    load = Tokenizer.from_file if Path(location).exists() else Tokenizer.from_pretrained
    try:
        tokenizer = load(location)
    except Exception as error:
        raise ConfigError(
            f"tokenizer '{name}': cannot be loaded ({error}): give a folder with tokenizer.json or "
            "the name of a tokenizer on the Hub that you have access to"
        ) from error
    # A tokenizer file may contain a model's length limit; tokens are counted without it.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def count_tokens(
    tokenizer: "Tokenizer",
    texts: Sequence[str],
    n_words: Sequence[int] | np.ndarray,
    max_words: int,
) -> np.ndarray:
    """Count the tokens of n texts, without special tokens; int64, shape (n,).

    Texts of more than `max_words` words are not tokenised. Their number of words, far above any
    limit in use, is returned instead.
    """
    counts = np.array(n_words, dtype=np.int64)
    rows = np.flatnonzero(counts <= max_words)
    for start in range(0, len(rows), _TEXTS_PER_BATCH):
        batch = rows[start : start + _TEXTS_PER_BATCH]
        selected = [texts[row] for row in batch]
        encodings = tokenizer.encode_batch_fast(selected, add_special_tokens=False)
        counts[batch] = [len(encoding.ids) for encoding in encodings]
    return counts
