"""Counting tokens: once per text, in parallel batches, and kept for the next time.

Counts are kept by content in `$LITBENCH_CACHE`, or else `litbench` in the user's cache folder, one
SQLite file for each tokenizer. Its name is a digest of the tokenizer itself, and its keys are
digests of the texts, so that what lies there holds for every data set. The file can be deleted at
any time.
"""

import hashlib
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import Tokenizer
from tqdm import tqdm

from litbench.errors import ConfigError, DataError
from litbench.locations import resolve

# A batch is bounded in characters too: an encoding takes about 100 bytes for each token.
_BATCH_TEXTS, _BATCH_CHARACTERS = 512, 1_000_000
# How many keys SQLite is asked for at once; it takes 32,766 at most.
_LOOKED_UP = 4_096
_PATIENCE_SECONDS = 60
# A damaged file also speaks of tables whose names are no text.
_FAILURES = (OSError, sqlite3.Error, UnicodeDecodeError)


def locate_tokenizer(name: str) -> str:
    """The file of a tokenizer, whose content says what it counts, or its name on the Hub.

    Raises:
        ConfigError: a local or packaged folder that does not exist.
        MissingExtraError: the package is not installed and an extra would bring it.
    """
    place = resolve(name)
    file = Path(place) / "tokenizer.json"
    return str(file) if Path(place).is_dir() else place


def load_tokenizer(name: str) -> Tokenizer:
    """Load a fast tokenizer from `package:NAME/folder`, a folder, a file or the Hub.

    Raises:
        ConfigError: it cannot be loaded.
    """
    place = locate_tokenizer(name)
    try:
        if Path(place).exists():
            tokenizer = Tokenizer.from_file(place)
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


def cache_folder() -> Path:
    """Where counts are kept: `$LITBENCH_CACHE`, or else `litbench` in the user's cache folder."""
    given = os.environ.get("LITBENCH_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "litbench"


class TokenCache:
    """Counts of one tokenizer on disk, by content.

    Several processes may use it at once, and a kill at any moment leaves it whole. Each count
    carries a checksum, so that a damaged file is noticed and never gives a wrong count.

    Args:
        folder: where the file lies; made when it is not there.
        tokenizer: whose counts they are.

    Raises:
        DataError: the file or the folder cannot be used.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        # The library counts, so its version says which counts these are.
        state = f"{tokenizers.__version__}\n{tokenizer.to_str()}".encode()
        name = hashlib.blake2b(state, digest_size=16).hexdigest()
        self.path = folder / f"tokens-{name}.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Without a log of its own (WAL), which network file systems cannot share.
            self._database = sqlite3.connect(
                self.path, timeout=_PATIENCE_SECONDS, isolation_level=None
            )
            self._database.execute("PRAGMA cache_size = -65536")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS counts (key BLOB PRIMARY KEY, count INTEGER NOT NULL) "
                "WITHOUT ROWID"
            )
        except _FAILURES as error:
            raise self._unusable(error) from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """Counts of those texts that were counted before, by the key of the text.

        Raises:
            DataError: the file is damaged or cannot be read.
        """
        found: dict[bytes, int] = {}
        for start in range(0, len(keys), _LOOKED_UP):
            asked = keys[start : start + _LOOKED_UP]
            marks = ",".join("?" * len(asked))
            try:
                rows = self._database.execute(
                    f"SELECT key, count FROM counts WHERE key IN ({marks})",  # noqa: S608
                    asked,
                ).fetchall()
            except _FAILURES as error:
                raise self._unusable(error) from error
            for key, packed in rows:
                typed = isinstance(key, bytes) and isinstance(packed, int) and packed >= 0
                count = packed >> 32 if typed else -1
                if not typed or _pack(key, count) != packed:
                    raise self._unusable("a count does not match its checksum")
                found[key] = count
        return found

    def keep(self, counts: Mapping[bytes, int]) -> None:
        """Keep counts for the next time; all of them or none.

        Raises:
            DataError: the disk is full, or the file is damaged.
        """
        # In order, neighbours in the file are written together.
        rows = [(key, _pack(key, count)) for key, count in sorted(counts.items())]
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR REPLACE INTO counts VALUES (?, ?)", rows)
            self._database.execute("COMMIT")
        except _FAILURES as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception | str) -> DataError:
        return DataError(
            f"the token counts kept in {self.path} cannot be used ({error}): delete the file, set "
            "LITBENCH_CACHE to another folder, or set cache_tokens to false"
        )


def text_key(text: str) -> bytes:
    """The key of a text in a cache; 16 bytes."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _pack(key: bytes, count: int) -> int:
    return count << 32 | zlib.crc32(key + count.to_bytes(4, "little"))


class TokenCounter:
    """Counts tokens, special tokens left out, and remembers them.

    Args:
        tokenizer: see `load_tokenizer`.
        most_words: a text of more words is not tokenised and gets its words as a stand-in, far
            over any limit in use.
        cache: folder of the cache; null counts everything anew.

    Attributes:
        counted: texts tokenised so far.
        remembered: texts whose count was known.
    """

    def __init__(self, tokenizer: str, most_words: int, cache: Path | None = None) -> None:
        self.counted = self.remembered = 0
        self._tokenizer = load_tokenizer(tokenizer)
        self._most_words = most_words
        self._cache = None if cache is None else TokenCache(cache, self._tokenizer)

    def close(self) -> None:
        """Close the cache."""
        if self._cache is not None:
            self._cache.close()

    def count(self, texts: Sequence[str], n_words: Sequence[int] | np.ndarray) -> np.ndarray:
        """Count the tokens of every text.

        Args:
            texts: shape (n,).
            n_words: words of each text; shape (n,).

        Returns:
            int64, shape (n,).
        """
        counts = np.array(n_words, dtype=np.int64)
        todo = np.flatnonzero(counts <= self._most_words)
        for start in range(0, len(todo), _LOOKED_UP):
            self._count_some(texts, todo[start : start + _LOOKED_UP], counts)
        return counts

    def _count_some(self, texts: Sequence[str], rows: np.ndarray, counts: np.ndarray) -> None:
        keys = [text_key(texts[row]) for row in rows]
        known = {} if self._cache is None else self._cache.find(list(dict.fromkeys(keys)))
        self.remembered += sum(key in known for key in keys)
        new = {key: row for key, row in zip(keys, rows, strict=True) if key not in known}
        self.counted += len(new)
        made: dict[bytes, int] = {}
        for batch in _batches(texts, new):
            encoded = self._tokenizer.encode_batch_fast(
                [texts[new[key]] for key in batch], add_special_tokens=False
            )
            made.update(zip(batch, (len(one.ids) for one in encoded), strict=True))
        if self._cache is not None and made:
            self._cache.keep(made)
        known |= made
        counts[rows] = [known[key] for key in keys]


def _batches(texts: Sequence[str], rows: Mapping[bytes, int]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    characters = 0
    for key, row in rows.items():
        if batch and (
            len(batch) == _BATCH_TEXTS or characters + len(texts[row]) > _BATCH_CHARACTERS
        ):
            yield batch
            batch, characters = [], 0
        batch.append(key)
        characters += len(texts[row])
    if batch:
        yield batch


def count_tokens(
    texts: Sequence[str], n_words: Sequence[int], tokenizer: str, most_words: int
) -> np.ndarray:
    """Count the tokens of texts that are all in memory, without a cache; see `TokenCounter`.

    Returns:
        int64, shape (n,).
    """
    counter = TokenCounter(tokenizer, most_words)
    counts = np.zeros(len(texts), dtype=np.int64)
    with tqdm(total=len(texts), desc="tokens", unit=" stories", leave=False, disable=None) as bar:
        for start in range(0, len(texts), _LOOKED_UP):
            end = start + _LOOKED_UP
            counts[start:end] = counter.count(texts[start:end], n_words[start:end])
            bar.update(len(texts[start:end]))
    return counts
