"""Counting tokens: once per story, in parallel batches."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from litbench.errors import ConfigError
from litbench.locations import resolve

_BATCH = 512


def load_tokenizer(name: str) -> Tokenizer:
    """Load a fast tokenizer from `package:NAME/folder`, a folder, a file or the Hub.

    Raises:
        ConfigError: it cannot be loaded.
    """
    place = resolve(name)
    path = Path(place)
    try:
        if path.exists():
            file = path / "tokenizer.json" if path.is_dir() else path
            tokenizer = Tokenizer.from_file(str(file))
        else:
            tokenizer = Tokenizer.from_pretrained(place)
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
    texts: Sequence[str], n_words: Sequence[int], tokenizer: str, most_words: int
) -> np.ndarray:
    """Count the tokens of every text, special tokens left out.

    Args:
        texts: shape (n,).
        n_words: words of each text; a text with more than `most_words` is not tokenised and
            gets its words as a stand-in, far over any limit in use.
        tokenizer: see `load_tokenizer`.
        most_words: see `n_words`.

    Returns:
        int64, shape (n,).
    """
    loaded = load_tokenizer(tokenizer)
    counts = np.array(n_words, dtype=np.int64)
    todo = np.flatnonzero(counts <= most_words)
    with tqdm(total=len(todo), desc="tokens", unit=" stories", leave=False, disable=None) as bar:
        for start in range(0, len(todo), _BATCH):
            rows = todo[start : start + _BATCH]
            encoded = loaded.encode_batch_fast(
                [texts[row] for row in rows], add_special_tokens=False
            )
            counts[rows] = [len(one.ids) for one in encoded]
            bar.update(len(rows))
    return counts
