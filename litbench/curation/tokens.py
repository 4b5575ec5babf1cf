"""Counting the tokens of stories."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from litbench.errors import ConfigError
from litbench.locations import resolve

_TEXTS_PER_BATCH = 512


def locate_tokenizer(name: str) -> str:
    """The file of a tokenizer, or its name on the Hub."""
    place = resolve(name)
    return str(Path(place) / "tokenizer.json") if Path(place).is_dir() else place


def load_tokenizer(name: str) -> Tokenizer:
    """Load a fast tokenizer from `package:NAME/folder`, a folder, a file or the Hub."""
    place = locate_tokenizer(name)
    load = Tokenizer.from_file if Path(place).exists() else Tokenizer.from_pretrained
    try:
        tokenizer = load(place)
    except Exception as error:
        raise ConfigError(
            f"tokenizer '{name}': cannot be loaded ({error}): give a folder with tokenizer.json or "
            "a name on the Hub you have access to"
        ) from error
    # A tokenizer file may carry the limits of some model; lengths are counted in full.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def count_tokens(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    n_words: Sequence[int] | np.ndarray,
    most_words: int,
) -> np.ndarray:
    """Count the tokens of n texts, without special tokens; int64, shape (n,).

    A text of more than `most_words` is not tokenised: its number of words, far above any limit in
    use, stands in for its tokens.
    """
    counts = np.array(n_words, dtype=np.int64)
    rows = np.flatnonzero(counts <= most_words)
    for start in range(0, len(rows), _TEXTS_PER_BATCH):
        batch = rows[start : start + _TEXTS_PER_BATCH]
        some = [texts[row] for row in batch]
        encodings = tokenizer.encode_batch_fast(some, add_special_tokens=False)
        counts[batch] = [len(encoding.ids) for encoding in encodings]
    return counts
