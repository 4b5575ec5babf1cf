"""Near-duplicates: stories that share most of their runs of words (MinHash, Broder 1997).

Two stories are near-duplicates when the Jaccard similarity of their sets of shingles (runs of five
words; in Chinese and Japanese of five characters) is at least a threshold. The similarity J is
estimated as the share of equal hashes among 128 per story, with a standard error of
sqrt(J (1 - J) / 128), which is 0.035 at J = 0.8. The same texts and seed always give the same
estimate, so a set that was cleaned with it is also clean to a check that uses it.

The result depends on the set of stories alone, not on their order or on the size of batches. Texts
pass through once, in batches; a story then takes about 80 bytes of memory and, in a temporary
folder, 4 bytes for each hash and 8 for each band of hashes (680 bytes by default).
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from litbench.errors import ConfigError, DataError, MissingExtraError
from litbench.text import UNSPACED

_Hashes = npt.NDArray[np.uint64]
_Rows = npt.NDArray[np.int64]

_ROWS_AT_ONCE = 4_096
_BYTES_AT_ONCE = 32 << 20
_VOCABULARY = 1_000_000
_COMPARED_AT_ONCE = 1 << 16
# A pair right at the threshold may share no band with this chance.
_ESCAPE = 0.005
# Odd constants of splitmix64, which spread the bits of a 64-bit number.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_SPREAD = np.uint64(0xBF58476D1CE4E5B9)
_ALL_BITS = (1 << 64) - 1


def near_duplicate_groups(
    batches: Iterable[pa.RecordBatch | pa.Table],
    *,
    threshold: float = 0.8,
    num_perm: int = 128,
    shingle: int = 5,
    seed: int = 0,
    folder: Path | None = None,
) -> pa.Table:
    """Group stories that are near-duplicates of each other.

    A group holds all stories that are linked by near-duplicates, directly or through others
    (connected components). So no two stories of different groups are near-duplicates, whichever
    one of each group is kept; two stories of one group may resemble a third more than each other.

    Args:
        batches: columns `story_id` and `text`, in any order and size; read once.
        threshold: least similarity, above 0 and up to 1.
        num_perm: hashes per story; four times as many halve the standard error.
        shingle: words to a run.
        seed: another seed, other hashes.
        folder: where the temporary files lie; the system's own place by default.

    Returns:
        `story_id`, `group` (the smallest story_id of the group), one row for each story that has a
        near-duplicate, by story_id. Stories that have none are left out.

    Raises:
        ConfigError: a threshold, number of hashes or shingle out of range.
        DataError: an id or a text is null, or a story_id comes twice.
        MissingExtraError: rensa is not installed.
    """
    with NearDuplicateIndex(
        threshold=threshold, num_perm=num_perm, shingle=shingle, seed=seed, folder=folder
    ) as index:
        for batch in batches:
            index.add(batch["story_id"], batch["text"])
        return index.groups()


def check_options(*, threshold: float, num_perm: int, shingle: int) -> None:
    """Check the options of near-duplicates before any long work.

    Raises:
        ConfigError: one is out of range, or the threshold is too low for so few hashes.
    """
    if not 0 < threshold <= 1:
        raise ConfigError(f"threshold is {threshold}: give a similarity above 0 and up to 1")
    if not 16 <= num_perm <= 4_096:
        raise ConfigError(f"num_perm is {num_perm}: give from 16 to 4,096 hashes, such as 128")
    if not 1 <= shingle <= 100:
        raise ConfigError(f"shingle is {shingle}: give from 1 to 100 words, such as 5")


def bands_and_rows(threshold: float, num_perm: int) -> tuple[int, int]:
    """Divide hashes into bands, as long as a pair at the threshold rarely shares none.

    A pair of similarity J shares one of b bands of r hashes with the chance 1 - (1 - J^r)^b.
    Longer bands mean fewer comparisons, so r is the largest with which a pair right at the
    threshold escapes with a chance of at most 0.005 (r = 1 where none does).

    Returns:
        Number of bands and hashes per band; their product is at most `num_perm`.
    """
    for rows in range(num_perm, 1, -1):
        bands = num_perm // rows
        if (1 - threshold**rows) ** bands <= _ESCAPE:
            return bands, rows
    return num_perm, 1


# From texts to signatures ----------------------------------------------------------------------


def story_words(texts: pa.Array | pa.ChunkedArray) -> pa.ListArray:
    """The words of each text, folded to what near-copies share.

    Runs of Unicode letters, marks and digits, in lower case and compatibility forms; in Chinese
    and Japanese every character is a word, as in `litbench.text.count_words`. Punctuation, markup,
    apostrophes, spacing and invisible characters do not matter.
    """
    texts = pc.utf8_lower(pc.utf8_normalize(pc.cast(texts, pa.large_string()), form="NFKC"))
    # Dropped, not blanked, so that "don't", "don’t" and "dont" are one word.
    texts = pc.replace_substring_regex(
        texts, pattern=r"['’\p{Cf}\x{fe00}-\x{fe0f}]+", replacement=""
    )
    if pc.any(pc.match_substring_regex(texts, pattern=UNSPACED)).as_py():
        texts = pc.replace_substring_regex(texts, pattern=f"({UNSPACED})", replacement=r" \1 ")
    texts = pc.replace_substring_regex(texts, pattern=r"[^\p{L}\p{M}\p{N}]+", replacement=" ")
    texts = pc.ascii_trim_whitespace(texts)
    # The parts of an empty text would be one empty word; those of null are none.
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.large_string()), texts)
    words = pc.ascii_split_whitespace(texts)
    return words.combine_chunks() if isinstance(words, pa.ChunkedArray) else words


class Shingler:
    """Hashes the runs of words of texts to 64-bit numbers.

    Attributes:
        shingle: words to a run. A text with fewer is one run.
    """

    def __init__(self, shingle: int) -> None:
        self.shingle = shingle
        self._vocabulary: dict[str, int] = {}

    def __call__(self, texts: pa.Array | pa.ChunkedArray) -> tuple[_Hashes, _Rows]:
        """Hash the runs of every text.

        Returns:
            All hashes after one another, with repeats, and where each text's begin: shape (n + 1,).
            A text without words has none.
        """
        words = story_words(texts)
        begins = np.asarray(words.offsets, np.int64)
        hashes = self._hash_words(words.flatten())
        size = self.shingle
        n_words = np.diff(begins)
        counts = np.where(n_words >= size, n_words - size + 1, np.minimum(n_words, 1))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        shingles = np.empty(offsets[-1], np.uint64)
        runs = np.zeros(max(len(hashes) - size + 1, 0), np.uint64)
        for place in range(size):
            runs = runs * _STEP + hashes[place : place + len(runs)]
        long = n_words >= size
        # The first run of each long text, then the ones after it.
        starts = np.repeat(begins[:-1][long] - offsets[:-1][long], counts[long])
        places = np.flatnonzero(np.repeat(long, counts))
        shingles[places] = runs[starts + places]
        for text in np.flatnonzero((n_words > 0) & ~long):
            run = int(n_words[text])
            for word in hashes[begins[text] : begins[text + 1]].tolist():
                run = (run * int(_STEP) + word) & _ALL_BITS
            shingles[offsets[text]] = run
        return _spread(shingles), offsets

    def _hash_words(self, words: pa.Array) -> _Hashes:
        encoded = words.dictionary_encode()
        if len(self._vocabulary) > _VOCABULARY:
            self._vocabulary.clear()
        known, hashes = self._vocabulary, []
        for word in encoded.dictionary.to_pylist():
            value = known.get(word)
            if value is None:
                digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
                value = known[word] = int.from_bytes(digest, "little")
            hashes.append(value)
        found: _Hashes = np.array(hashes, np.uint64)[np.asarray(encoded.indices)]
        return found


def _spread(numbers: _Hashes) -> _Hashes:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _SPREAD
    return numbers ^ (numbers >> np.uint64(31))


def exact_similarity(text_a: str, text_b: str, shingle: int = 5) -> float:
    """Jaccard similarity of two texts' sets of shingles; 0 where one has no words."""
    hashes, offsets = Shingler(shingle)(pa.array([text_a, text_b], pa.large_string()))
    first, second = set(hashes[: offsets[1]].tolist()), set(hashes[offsets[1] :].tolist())
    if not first or not second:
        return 0.0
    return len(first & second) / len(first | second)


# The index -------------------------------------------------------------------------------------


class NearDuplicateIndex:
    """Signatures of stories in temporary files, and which of them are near-duplicates.

    Use it in a `with` block, which removes the files. All parts together are one set of
    signatures, so parts (such as splits) can be compared with each other.

    Attributes:
        threshold: least similarity of near-duplicates.
        bands: groups of hashes; two stories are compared when they agree in all of one.
        rows: hashes to a band; see `bands_and_rows`.
    """

    def __init__(
        self,
        *,
        threshold: float = 0.8,
        num_perm: int = 128,
        shingle: int = 5,
        seed: int = 0,
        folder: Path | None = None,
    ) -> None:
        check_options(threshold=threshold, num_perm=num_perm, shingle=shingle)
        try:
            import rensa  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("rensa", "data") from error
        self._sketch = rensa.RMinHash.digest_matrix_from_flat_token_hashes
        self.threshold = threshold
        self.bands, self.rows = bands_and_rows(threshold, num_perm)
        self._num_perm = num_perm
        # rensa takes 64 bits of seed.
        self._seed = seed & _ALL_BITS
        self._shingler = Shingler(shingle)
        self._ids: list[pa.Array] = []
        self._parts: list[npt.NDArray[np.int16]] = []
        self._part_names: list[str] = []
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="near-duplicates-", dir=folder))
            self._files = [self._path(band).open("wb") for band in (None, *range(self.bands))]
        except OSError as error:
            raise DataError(
                f"cannot write signatures of stories into {folder or tempfile.gettempdir()} "
                f"({error}): free space or choose another folder"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary files."""
        for file in self._files:
            file.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, story_ids: Any, texts: Any, part: str = "all") -> None:
        """Add stories to a part; a story without words is like no other and is passed over.

        Args:
            story_ids: Arrow strings, unique within a part; shape (n,).
            texts: Arrow strings; shape (n,).
            part: name of a set of stories, such as a split.

        Raises:
            DataError: an id or a text is null, or the disk is full.
        """
        if story_ids.null_count or texts.null_count:
            raise DataError(
                f"{story_ids.null_count} of {len(story_ids)} story_ids and {texts.null_count} "
                f"texts in part '{part}' are null: near-duplicates need both; remove these rows"
            )
        story_ids, texts = (pc.cast(column, pa.large_string()) for column in (story_ids, texts))
        if part not in self._part_names:
            self._part_names.append(part)
        number = self._part_names.index(part)
        for start, stop in _slices(texts):
            self._add(
                story_ids.slice(start, stop - start), texts.slice(start, stop - start), number
            )

    def _add(self, story_ids: Any, texts: Any, part: int) -> None:
        hashes, offsets = self._shingler(texts)
        worded = np.flatnonzero(np.diff(offsets))
        if not len(worded):
            return
        # Texts without words have no hashes, so leaving them out only shortens the offsets.
        begins = np.append(offsets[worded], offsets[-1]).astype(np.uint64)
        made = self._sketch(hashes, begins, self._num_perm, self._seed)
        signatures = np.array(made.to_rows(), np.uint32)
        keys = np.zeros((self.bands, len(worded)), np.uint64)
        for row in range(self.rows):
            keys = keys * _STEP + signatures[:, row : self.bands * self.rows : self.rows].T
        try:
            self._files[0].write(signatures.tobytes())
            for file, band in zip(self._files[1:], _spread(keys), strict=True):
                file.write(band.tobytes())
        except OSError as error:
            raise DataError(
                f"cannot write signatures of stories into {self._folder} ({error}): free space or "
                "choose another folder"
            ) from error
        ids = story_ids.take(pa.array(worded))
        chunks = ids.chunks if isinstance(ids, pa.ChunkedArray) else [ids]
        self._ids.extend(chunks)
        self._parts.append(np.full(len(worded), part, np.int16))

    def groups(self, part: str | None = None) -> pa.Table:
        """Connected components of near-duplicates; see `near_duplicate_groups`.

        Args:
            part: among the stories of this part only; among all by default, whose ids must then
                be unique over all parts.

        Raises:
            DataError: a story_id comes twice.
        """
        names, parts = self._gather()
        rows = np.arange(len(parts)) if part is None else self._rows_of(part, parts)
        _check_unique(names, rows)
        signatures = self._signatures()
        parent = np.arange(len(parts))
        for members in self._buckets(rows):
            # Most copies share many bands; after the first there is nothing left to find.
            roots = {_root(parent, row) for row in members.tolist()}
            if len(roots) > 1:
                self._link(members, signatures, parent)
        while not np.array_equal(parent, above := parent[parent]):
            parent = above
        sizes = np.bincount(parent, minlength=1)
        grouped = rows[sizes[parent[rows]] > 1]
        table = pa.table(
            {"story_id": names.take(pa.array(grouped)), "root": pa.array(parent[grouped])}
        )
        smallest = table.group_by("root").aggregate([("story_id", "min")])
        table = table.join(smallest, "root").rename_columns({"story_id_min": "group"})
        return table.select(["story_id", "group"]).sort_by("story_id").combine_chunks()

    def between(self, part_a: str, part_b: str) -> pa.Table:
        """Near-duplicates between two parts, each with its closest.

        Returns:
            `story_a`, `story_b`, `similarity` (estimated), by story_a and story_b. Every story of
            either part that has a near-duplicate in the other part stands in at least one row,
            with the closest of them (of several the smallest story_id).
        """
        names, parts = self._gather()
        first, second = self._rows_of(part_a, parts), self._rows_of(part_b, parts)
        signatures = self._signatures()
        # Ties go to the smallest story_id, so rows are compared by the rank of theirs.
        rank = np.empty(len(parts), np.int64)
        rank[np.asarray(pc.sort_indices(names), np.int64)] = np.arange(len(parts))
        closest: dict[int, tuple[float, int, int]] = {}
        in_first = np.zeros(len(parts), bool)
        in_first[first] = True
        for members in self._buckets(np.concatenate([first, second])):
            ours, others = members[in_first[members]], members[~in_first[members]]
            for row in ours.tolist() if len(others) else ():
                similarity = _similarity(signatures, row, others)
                for place in np.flatnonzero(similarity >= self.threshold).tolist():
                    other, value = int(others[place]), float(similarity[place])
                    for one, two in ((row, other), (other, row)):
                        found = (-value, int(rank[two]), two)
                        closest[one] = min(closest.get(one, found), found)
        pairs = {
            ((row, other) if in_first[row] else (other, row)): -negative
            for row, (negative, _, other) in closest.items()
        }
        return pa.table(
            {
                "story_a": names.take(pa.array([a for a, _ in pairs], pa.int64())),
                "story_b": names.take(pa.array([b for _, b in pairs], pa.int64())),
                "similarity": pa.array(list(pairs.values()), pa.float64()),
            }
        ).sort_by([("story_a", "ascending"), ("story_b", "ascending")])

    def _path(self, band: int | None) -> Path:
        return self._folder / ("signatures" if band is None else f"band-{band}")

    def _gather(self) -> tuple[pa.Array, npt.NDArray[np.int16]]:
        for file in self._files:
            file.flush()
        if not self._ids:
            return pa.array([], pa.large_string()), np.empty(0, np.int16)
        if len(self._ids) > 1:
            self._ids, self._parts = [pa.concat_arrays(self._ids)], [np.concatenate(self._parts)]
        return self._ids[0], self._parts[0]

    def _rows_of(self, part: str, parts: npt.NDArray[np.int16]) -> _Rows:
        number = self._part_names.index(part) if part in self._part_names else -1
        return np.flatnonzero(parts == number)

    def _signatures(self) -> npt.NDArray[np.uint32]:
        if not self._ids:
            return np.empty((0, self._num_perm), np.uint32)
        return np.memmap(self._path(None), np.uint32, "r").reshape(-1, self._num_perm)

    def _buckets(self, rows: _Rows) -> Iterator[_Rows]:
        """Rows that agree in a band, two or more at a time, band after band."""
        for band in range(self.bands):
            keys = np.fromfile(self._path(band), np.uint64)[rows]
            order = np.argsort(keys)
            keys = keys[order]
            edges = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1], True])
            for place in np.flatnonzero(np.diff(edges) > 1).tolist():
                yield rows[order[edges[place] : edges[place + 1]]]

    def _link(self, members: _Rows, signatures: npt.NDArray[np.uint32], parent: _Rows) -> None:
        """Join the near-duplicates of a bucket, without comparing all of them where they are alike.

        One story is compared with all, then those it reached with the ones that are left, so a
        bucket of a thousand copies takes a thousand comparisons and not half a million.
        """
        while len(members):
            reached, members = [int(members[0])], members[1:]
            while reached and len(members):
                row = reached.pop()
                similar = _similarity(signatures, row, members) >= self.threshold
                for other in members[similar].tolist():
                    parent[_root(parent, other)] = _root(parent, row)
                reached.extend(members[similar].tolist())
                members = members[~similar]


def _check_unique(names: pa.Array, rows: _Rows) -> None:
    # By Python's own hash, batch by batch: a set of all names would take most of the memory.
    hashes = np.empty(len(rows), np.int64)
    for start in range(0, len(rows), _COMPARED_AT_ONCE):
        some = names.take(pa.array(rows[start : start + _COMPARED_AT_ONCE])).to_pylist()
        hashes[start : start + len(some)] = [hash(name) for name in some]
    order = np.argsort(hashes)
    for place in np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]]).tolist():
        one, two = (names[int(rows[order[place + step]])].as_py() for step in (0, 1))
        if one == two:
            raise DataError(
                f"story_id '{one}' comes twice among the stories to compare: name each story once"
            )


def _slices(texts: Any) -> Iterator[tuple[int, int]]:
    """Cut rows into runs of bounded number and bytes; one huge text is a run of its own."""
    sizes = np.asarray(pc.binary_length(texts), np.int64)
    start = held = 0
    for row, size in enumerate(sizes.tolist()):
        if row > start and (row - start >= _ROWS_AT_ONCE or held + size > _BYTES_AT_ONCE):
            yield start, row
            start, held = row, 0
        held += size
    if start < len(sizes):
        yield start, len(sizes)


def _similarity(
    signatures: npt.NDArray[np.uint32], row: int, others: _Rows
) -> npt.NDArray[np.float64]:
    """Share of equal hashes of one story with each of some others; shape (len(others),)."""
    own = np.asarray(signatures[row])
    parts = [
        (signatures[others[start : start + _COMPARED_AT_ONCE]] == own).mean(axis=1)
        for start in range(0, len(others), _COMPARED_AT_ONCE)
    ]
    return np.concatenate(parts)


def _root(parent: _Rows, row: int) -> int:
    """The root of a row's component; paths are halved on the way."""
    while (above := int(parent[row])) != row:
        parent[row] = parent[above]
        row = above
    return row
