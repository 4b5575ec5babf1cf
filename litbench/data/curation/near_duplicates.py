"""Near-duplicates: stories that share most of their five-word shingles (MinHash, Broder 1997).

Two stories are near-duplicates when the Jaccard similarity of their sets of five-word shingles is
at least a threshold. rensa estimates it from 128 hashes per story, with a standard error of
sqrt(J (1 - J) / 128), which is 0.035 at J = 0.8, and finds candidates by locality-sensitive
hashing. The estimate is deterministic for given texts and seed, so a data set deduplicated with a
seed also passes a leakage check with this seed. An index takes about 1.5 kB of memory per story.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.text import UNSPACED

HASHES = 128
SHINGLE_WORDS = 5
_ROWS_PER_BATCH = 1_024


def bands_for(threshold: float) -> int:
    """Return the number of bands that HASHES are divided into.

    A pair of similarity J shares at least one of b bands of r hashes with probability
    1 - (1 - J^r)^b. Fewer bands give fewer candidates to compare, so this is the smallest number
    that misses a pair exactly at the threshold with a probability of at most 0.005.
    """
    possible = (8, 16, 32, 64)
    enough = (b for b in possible if (1 - threshold ** (HASHES // b)) ** b <= 0.005)
    return next(enough, HASHES)


def story_words(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a list of words per text, without case, punctuation, markup and format characters.

    In Chinese and Japanese every character is a word, as in `litbench.data.text.count_words`.
    """
    texts = pc.utf8_lower(pc.utf8_normalize(pc.cast(texts, pa.large_string()), form="NFKC"))
    replacements = (
        # Removed, not replaced by a space, so that "don't", "don’t" and "dont" are one word.
        (r"['’\p{Cf}\x{fe00}-\x{fe0f}]+", ""),
        (f"({UNSPACED})", r" \1 "),
        (r"[^\p{L}\p{M}\p{N}]+", " "),
    )
    for pattern, replacement in replacements:
        texts = pc.replace_substring_regex(texts, pattern=pattern, replacement=replacement)
    return pc.ascii_split_whitespace(pc.ascii_trim_whitespace(texts))


def _shingles(words: list[str]) -> list[str]:
    """Return the five-word shingles; a shorter text is one shingle."""
    last = max(len(words) - SHINGLE_WORDS + 1, 1)
    return [" ".join(words[start : start + SHINGLE_WORDS]) for start in range(last)]


class NearDuplicateIndex:
    """The MinHash signatures of a set of stories.

    Attributes:
        story_ids: ids of the stories that have words, in the order of addition.

    Args:
        threshold: minimum similarity of near-duplicates, above 0 and up to 1.
        seed: seed of the hashes; indexes with equal threshold and seed can be compared.
    """

    def __init__(self, *, threshold: float = 0.8, seed: int = 0) -> None:
        import rensa  # noqa: PLC0415

        self.story_ids: list[str] = []
        self._threshold = threshold
        self._minhash = rensa.RMinHash
        self._seed = seed % 2**64  # rensa takes an unsigned 64-bit integer
        self._signatures: list[Any] = []
        self._lsh = rensa.RMinHashLSH(threshold, HASHES, bands_for(threshold))

    def add(self, story_ids: Any, texts: Any) -> None:
        """Add stories, Arrow strings of shape (n,); stories without words are skipped."""
        for start in range(0, len(texts), _ROWS_PER_BATCH):
            names = story_ids.slice(start, _ROWS_PER_BATCH).to_pylist()
            words = story_words(texts.slice(start, _ROWS_PER_BATCH)).to_pylist()
            # An empty text is split into one empty word.
            worded = [(name, row) for name, row in zip(names, words, strict=True) if row != [""]]
            signatures = self._minhash.from_token_sets(
                [_shingles(row) for _, row in worded], HASHES, self._seed
            )
            self._lsh.insert_many(signatures, len(self.story_ids))
            self.story_ids.extend(name for name, _ in worded)
            self._signatures.extend(signatures)

    def _similarity(self, signature: Any, row: int) -> float:
        return float(signature.jaccard(self._signatures[row]))

    def groups(self) -> pa.Table:
        """Return the connected components of near-duplicates with more than one story.

        Returns:
            Table with `story_id` and `group` (the smallest story_id of the group), sorted by
            story_id. Near-duplicates are always in one group; two stories of a group may be linked
            only through others.
        """
        from scipy.cluster.hierarchy import DisjointSet  # noqa: PLC0415

        sets = DisjointSet(range(len(self.story_ids)))
        for row, signature in enumerate(self._signatures):
            for other in self._lsh.query(signature):
                is_new = not sets.connected(row, other)
                if is_new and self._similarity(signature, other) >= self._threshold:
                    sets.merge(row, other)
        families = [[self.story_ids[row] for row in rows] for rows in sets.subsets()]
        groups = {name: min(names) for names in families if len(names) > 1 for name in names}
        columns = [pa.array(column, pa.string()) for column in (groups.keys(), groups.values())]
        return pa.table(columns, ["story_id", "group"]).sort_by("story_id")

    def closest(self, others: "NearDuplicateIndex") -> list[tuple[str, str, float]]:
        """Return the closest near-duplicate in this index of every story of `others`.

        Returns:
            The story_id in this index (ties go to the smallest), the story_id in `others`, and the
            estimated similarity; stories without a near-duplicate are left out.
        """
        matches = []
        signatures = others._signatures  # noqa: SLF001
        for name, signature in zip(others.story_ids, signatures, strict=True):
            rows = self._lsh.query(signature)
            similar = [(-self._similarity(signature, row), self.story_ids[row]) for row in rows]
            if similar and -min(similar)[0] >= self._threshold:
                matches.append((min(similar)[1], name, -min(similar)[0]))
        return matches
