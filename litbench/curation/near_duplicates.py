"""Near-duplicates: stories that share most of their runs of five words (MinHash, Broder 1997).

Two stories are near-duplicates when the Jaccard similarity of their sets of five-word runs is at
least a threshold. rensa estimates it from 128 hashes per story, with a standard error of
sqrt(J (1 - J) / 128), which is 0.035 at J = 0.8, and finds candidates by locality-sensitive
hashing. The same texts and seed always give the same estimate, so a set cleaned with it also
passes a check that uses it. An index takes about 1.5 kB of memory per story.
"""

import importlib.util
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from litbench.errors import ConfigError, MissingExtraError
from litbench.text import UNSPACED

HASHES = 128
SHINGLE_WORDS = 5
_ROWS_PER_BATCH = 1_024
# The largest chance at which a pair right at the threshold may share no band.
_MISS_CHANCE = 0.005


def check_threshold(threshold: float) -> None:
    """Check a threshold and that rensa is there, before any long work."""
    if not 0 < threshold <= 1:
        raise ConfigError(f"threshold is {threshold}: give a similarity above 0 and up to 1")
    if importlib.util.find_spec("rensa") is None:
        raise MissingExtraError("rensa", "data")


def bands_for(threshold: float) -> int:
    """The number of bands that HASHES are divided into.

    A pair of similarity J shares at least one of b bands of r hashes with probability
    1 - (1 - J^r)^b. Fewer bands give fewer candidates to compare, so this is the smallest number
    at which a pair right at the threshold is missed with a probability of at most 0.005.
    """
    for bands in (8, 16, 32, 64):
        if (1 - threshold ** (HASHES // bands)) ** bands <= _MISS_CHANCE:
            return bands
    return HASHES


def story_words(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The words of each text without case, punctuation, markup and invisible characters.

    In Chinese and Japanese every character is a word, as in `litbench.text.count_words`.

    Args:
        texts: strings; shape (n,).

    Returns:
        Lists of strings; shape (n,).
    """
    texts = pc.utf8_lower(pc.utf8_normalize(pc.cast(texts, pa.large_string()), form="NFKC"))
    # Dropped, not blanked, so that "don't", "don’t" and "dont" are one word.
    texts = pc.replace_substring_regex(
        texts, pattern=r"['’\p{Cf}\x{fe00}-\x{fe0f}]+", replacement=""
    )
    texts = pc.replace_substring_regex(texts, pattern=f"({UNSPACED})", replacement=r" \1 ")
    texts = pc.replace_substring_regex(texts, pattern=r"[^\p{L}\p{M}\p{N}]+", replacement=" ")
    return pc.ascii_split_whitespace(pc.ascii_trim_whitespace(texts))


def _shingles(words: list[str]) -> list[str]:
    """Runs of five words; a shorter text is one run."""
    last = max(len(words) - SHINGLE_WORDS + 1, 1)
    return [" ".join(words[start : start + SHINGLE_WORDS]) for start in range(last)]


class NearDuplicateIndex:
    """The MinHash signatures of a set of stories.

    Attributes:
        threshold: least similarity of near-duplicates.
        story_ids: the stories that have words, in the order in which they were added.

    Args:
        threshold: above 0 and up to 1.
        seed: of the hashes; indexes of the same threshold and seed can be compared.
    """

    def __init__(self, *, threshold: float = 0.8, seed: int = 0) -> None:
        check_threshold(threshold)
        import rensa  # noqa: PLC0415

        self.threshold = threshold
        self.story_ids: list[str] = []
        self._rensa = rensa
        # rensa takes 64 unsigned bits.
        self._seed = seed % 2**64
        self._signatures: list[Any] = []
        self._lsh = rensa.RMinHashLSH(threshold, HASHES, bands_for(threshold))

    def add(self, story_ids: Any, texts: Any) -> None:
        """Add stories; a story without words resembles no other and is passed over.

        Args:
            story_ids: Arrow strings, unique over all calls; shape (n,).
            texts: Arrow strings; shape (n,).
        """
        for start in range(0, len(texts), _ROWS_PER_BATCH):
            names = story_ids.slice(start, _ROWS_PER_BATCH).to_pylist()
            words = story_words(texts.slice(start, _ROWS_PER_BATCH)).to_pylist()
            # An empty text is split into one empty word.
            known = [(name, row) for name, row in zip(names, words, strict=True) if row != [""]]
            signatures = self._rensa.RMinHash.from_token_sets(
                [_shingles(row) for _, row in known], HASHES, self._seed
            )
            self._lsh.insert_many(signatures, len(self.story_ids))
            self.story_ids.extend(name for name, _ in known)
            self._signatures.extend(signatures)

    def groups(self) -> dict[str, str]:
        """Connected components of near-duplicates.

        Returns:
            The smallest story_id of the group of each story that has a near-duplicate. No two
            stories of different groups are near-duplicates; two stories of one group may only be
            linked through others.
        """
        from scipy.cluster.hierarchy import DisjointSet  # noqa: PLC0415

        sets = DisjointSet(range(len(self.story_ids)))
        for row, signature in enumerate(self._signatures):
            for other in self._lsh.query(signature):
                if not sets.connected(row, other) and self._similar(signature, other) is not None:
                    sets.merge(row, other)
        families = [[self.story_ids[row] for row in rows] for rows in sets.subsets()]
        return {name: min(names) for names in families if len(names) > 1 for name in names}

    def closest(self, others: "NearDuplicateIndex") -> pa.Table:
        """Near-duplicates between the stories of two indexes.

        Returns:
            `story_a` (of this index), `story_b` (of `others`), `similarity` (estimated), by
            story_a and story_b. Every story that has a near-duplicate in the other index is in at
            least one row, with the most similar one (of several, the smallest story_id).
        """
        best_a: dict[int, tuple[float, str, int]] = {}
        best_b: dict[int, tuple[float, str, int]] = {}
        for row, signature in enumerate(self._signatures):
            for other in others._lsh.query(signature):
                similarity = others._similar(signature, other)
                if similarity is None:
                    continue
                found_a = (-similarity, others.story_ids[other], other)
                found_b = (-similarity, self.story_ids[row], row)
                best_a[row] = min(best_a.get(row, found_a), found_a)
                best_b[other] = min(best_b.get(other, found_b), found_b)
        pairs = {(row, other): -negative for row, (negative, _, other) in best_a.items()}
        pairs |= {(row, other): -negative for other, (negative, _, row) in best_b.items()}
        names_a = [self.story_ids[row] for row, _ in pairs]
        names_b = [others.story_ids[row] for _, row in pairs]
        return pa.table(
            {
                "story_a": pa.array(names_a, pa.string()),
                "story_b": pa.array(names_b, pa.string()),
                "similarity": pa.array(pairs.values(), pa.float64()),
            }
        ).sort_by([("story_a", "ascending"), ("story_b", "ascending")])

    def _similar(self, signature: Any, row: int) -> float | None:
        """The similarity of a signature with a story, if it reaches the threshold."""
        similarity = float(signature.jaccard(self._signatures[row]))
        return similarity if similarity >= self.threshold else None


def near_duplicate_groups(
    batches: Iterable[pa.RecordBatch | pa.Table], *, threshold: float = 0.8, seed: int = 0
) -> pa.Table:
    """Group stories that are near-duplicates; see `NearDuplicateIndex.groups`.

    Args:
        batches: columns `story_id` (unique) and `text`, in any order and size; read once.
        threshold: least similarity, above 0 and up to 1.
        seed: of the hashes.

    Returns:
        `story_id`, `group` (the smallest story_id of the group), by story_id.
    """
    index = NearDuplicateIndex(threshold=threshold, seed=seed)
    for batch in batches:
        index.add(batch["story_id"], batch["text"])
    groups = dict(sorted(index.groups().items()))
    columns = [pa.array(column, pa.string()) for column in (groups.keys(), groups.values())]
    return pa.table(columns, ["story_id", "group"])
