"""What a pairs file holds, counted from its columns without its stories.

DuckDB reads the columns that are needed and returns how often each value occurs, so a million
pairs take little more memory than a thousand. Every number here is a count or follows from one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pa_dataset

from litbench.metrics.intervals import Interval, effective_clusters, jackknife_interval
from litbench.records import prompt_keys

SIDES = ("chosen", "rejected")


@dataclass(frozen=True)
class ValueCounts:
    """How often each value occurs.

    Attributes:
        values: ascending, each once; int64; shape (k,).
        counts: how often, at least once; int64; shape (k,).
    """

    values: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(
        cls, values: Sequence[Any] | np.ndarray, counts: Sequence[Any] | np.ndarray
    ) -> "ValueCounts":
        """Sum the counts of equal values."""
        unique, place = np.unique(np.asarray(values, np.int64), return_inverse=True)
        summed = np.zeros(len(unique), np.int64)
        np.add.at(summed, place, np.asarray(counts, np.int64))
        return cls(unique, summed)

    @property
    def n(self) -> int:
        """How many there are."""
        return int(self.counts.sum())

    @property
    def least(self) -> int:
        """The smallest value."""
        return int(self.values[0])

    @property
    def most(self) -> int:
        """The largest value."""
        return int(self.values[-1])

    @property
    def mean(self) -> float:
        """The mean."""
        return float(self.values @ self.counts) / self.n

    def quantile(self, share: float) -> int:
        """The smallest value that at least this share of all do not exceed."""
        reached = np.cumsum(self.counts)
        # Rounding of share * n must not pass a whole number by.
        return int(self.values[np.searchsorted(reached, share * self.n * (1 - 1e-12))])

    def repeated(self) -> np.ndarray:
        """Each value as often as it occurs; shape (n,)."""
        return np.repeat(self.values, self.counts)


@dataclass(frozen=True)
class Lengths:
    """How length and choice go together in some pairs.

    Attributes:
        difference: words of chosen minus words of rejected.
        longer_wins: agreement of the rater "the longer story wins", where equal lengths count
            one half; clustered by prompt.
    """

    difference: ValueCounts
    longer_wins: Interval

    def _pairs(self, where: np.ndarray) -> int:
        return int(self.difference.counts[where].sum())

    @property
    def pairs(self) -> int:
        """All pairs."""
        return self.difference.n

    @property
    def longer(self) -> int:
        """Pairs whose chosen story is the longer."""
        return self._pairs(self.difference.values > 0)

    @property
    def equal(self) -> int:
        """Pairs of equal length."""
        return self._pairs(self.difference.values == 0)

    @property
    def shorter(self) -> int:
        """Pairs whose chosen story is the shorter."""
        return self._pairs(self.difference.values < 0)

    def buckets(self, widest: int, buckets: int) -> np.ndarray:
        """Pairs per bucket of the mirrored histogram that symmetry is made in.

        Args:
            widest: the largest absolute difference before pruning, as the buckets reach so far.
            buckets: an even number.

        Returns:
            Counts from the most negative differences to the most positive; shape (buckets,).
            Pairs of equal length are in no bucket.
        """
        half = buckets // 2
        values = self.difference.values
        place = np.minimum(np.abs(values) * half // max(widest, 1), half - 1)
        place = np.where(values > 0, half + place, half - 1 - place)
        differs = values != 0
        counts = np.bincount(
            place[differs], weights=self.difference.counts[differs], minlength=buckets
        )
        return counts.astype(np.int64)


@dataclass(frozen=True)
class StoryCounts:
    """Values of the stories of one side, each story once.

    Attributes:
        words: lengths.
        score: net upvotes, of stories that have them.
        day: days since 1970 on which they were posted, of stories whose time is known.
    """

    words: ValueCounts
    score: ValueCounts
    day: ValueCounts


@dataclass(frozen=True)
class SplitProfile:
    """One split.

    Attributes:
        name: of the split.
        pairs: rows.
        stories: distinct stories, whichever side.
        words: their lengths, each story once.
        both_sides: stories that are chosen in some pair and rejected in another.
        sides: the stories that are chosen anywhere, and those that are rejected.
        uses: in how many pairs a story stands.
        pairs_per_prompt: sizes of the prompts, by normalised text.
        gap: lead of the chosen score as a whole percentage of it, rounded down; 100 and more
            (a rejected score of zero or less) as 100. Pairs whose chosen score is known and
            above zero.
    """

    name: str
    pairs: int
    stories: int
    words: ValueCounts
    both_sides: int
    sides: Mapping[str, StoryCounts]
    uses: ValueCounts
    pairs_per_prompt: ValueCounts
    gap: ValueCounts

    @property
    def prompts(self) -> int:
        """Distinct prompts, by normalised text."""
        return self.pairs_per_prompt.n

    @property
    def effective_prompts(self) -> float:
        """How many prompts of equal size would be worth these."""
        return effective_clusters(self.pairs_per_prompt.repeated())

    def share_of_largest(self, share: float) -> float:
        """Share of the pairs that the largest prompts hold, such as the largest 1 %.

        Args:
            share: of the prompts, rounded up to a whole number of them.
        """
        sizes = self.pairs_per_prompt.repeated()[::-1]
        largest = int(np.ceil(share * len(sizes) - 1e-9))
        return float(sizes[:largest].sum() / sizes.sum())


@dataclass(frozen=True)
class Profile:
    """A pairs file.

    Attributes:
        splits: the largest first.
        stories: distinct stories of all splits.
        label_sources: who preferred, in alphabetical order.
        after: lengths per split, and of all pairs under None.
        before: the same before length symmetry, where the file is known. Empty otherwise.
    """

    splits: list[SplitProfile]
    stories: int
    label_sources: list[str]
    after: dict[str | None, Lengths]
    before: dict[str | None, Lengths]

    @property
    def pairs(self) -> int:
        """All pairs."""
        return sum(split.pairs for split in self.splits)


# One row per story of a split with the number of pairs in which it stands on either side.
_STORIES = """
CREATE TEMP TABLE stories AS
SELECT split, story_id, sum(chosen) AS chosen, sum(rejected) AS rejected,
    min(words) AS words, min(score) AS score, min(created_utc) // 86400 AS day
FROM (
    SELECT split, chosen_story_id AS story_id, 1 AS chosen, 0 AS rejected,
        chosen_n_words AS words, chosen_score AS score, chosen_created_utc AS created_utc
    FROM pairs
    UNION ALL
    SELECT split, rejected_story_id, 0, 1,
        rejected_n_words, rejected_score, rejected_created_utc
    FROM pairs
)
GROUP BY split, story_id
"""
_PROMPTS = """
SELECT split, prompt,
    count(*) FILTER (WHERE chosen_n_words > rejected_n_words) AS longer,
    count(*) FILTER (WHERE chosen_n_words = rejected_n_words) AS equal,
    count(*) FILTER (WHERE chosen_n_words < rejected_n_words) AS shorter
FROM {view} GROUP BY split, prompt ORDER BY split, prompt
"""


def _columns(con: Any, query: str) -> dict[str, Any]:
    """Run a query; return its columns as arrays, its first one (the split) as a list."""
    table = con.sql(query).to_arrow_table()
    return {
        name: table[name].to_pylist() if place == 0 else table[name].to_numpy()
        for place, name in enumerate(table.column_names)
    }


def _value_counts(con: Any, value: str, source: str, where: str = "true") -> dict[str, ValueCounts]:
    """ValueCounts an expression per split, where it is not null."""
    found = _columns(
        con,
        f"SELECT split, ({value})::BIGINT AS value, count(*)::BIGINT AS n FROM {source} "  # noqa: S608
        f"WHERE ({value}) IS NOT NULL AND {where} GROUP BY ALL ORDER BY ALL",
    )
    places: dict[str, list[int]] = {}
    for place, split in enumerate(found["split"]):
        places.setdefault(split, []).append(place)
    return {
        split: ValueCounts.of(found["value"][at], found["n"][at]) for split, at in places.items()
    }


@dataclass(frozen=True)
class _PromptRows:
    """Pairs per split and prompt's text; shape (n,) each, counts (n, 3).

    Attributes:
        splits: the split.
        clusters: the normalised prompt, numbered.
        counts: pairs whose chosen story is the longer, equally long, the shorter.
    """

    splits: np.ndarray
    clusters: np.ndarray
    counts: np.ndarray


def _prompt_rows(con: Any, views: Sequence[str]) -> dict[str, _PromptRows]:
    """Pairs per split and prompt of each view."""
    tables = [con.sql(_PROMPTS.format(view=view)).to_arrow_table() for view in views]
    # Together, since normalising prompts is the slowest part and the views share most of them.
    _, clusters = np.unique(np.array(prompt_keys(pa.concat_tables(tables))), return_inverse=True)
    found, start = {}, 0
    for view, table in zip(views, tables, strict=True):
        counts = [table[name].to_numpy() for name in ("longer", "equal", "shorter")]
        found[view] = _PromptRows(
            np.array(table["split"].to_pylist(), dtype=object),
            clusters[start : start + table.num_rows],
            np.stack(counts, axis=1).astype(np.int64),
        )
        start += table.num_rows
    return found


def _longer_wins(clusters: np.ndarray, counts: np.ndarray) -> Interval:
    """Interval of "the longer story wins" from (longer, equal, shorter) per prompt."""
    credit = np.tile([1.0, 0.5, 0.0], len(counts))
    times = counts.ravel()
    return jackknife_interval(np.repeat(credit, times), np.repeat(np.repeat(clusters, 3), times))


def _sizes(rows: _PromptRows) -> dict[str, ValueCounts]:
    """Sizes of the prompts of each split."""
    sizes = {}
    for split in set(rows.splits):
        here = rows.splits == split
        per_prompt = ValueCounts.of(rows.clusters[here], rows.counts[here].sum(1))
        sizes[split] = ValueCounts.of(per_prompt.counts, np.ones(len(per_prompt.counts)))
    return sizes


def _lengths(con: Any, view: str, rows: _PromptRows) -> dict[str | None, Lengths]:
    """Lengths per split, and of all under None."""
    differences = _value_counts(con, "chosen_n_words - rejected_n_words", view)
    found: dict[str | None, Lengths] = {}
    for split, difference in differences.items():
        here = rows.splits == split
        found[split] = Lengths(difference, _longer_wins(rows.clusters[here], rows.counts[here]))
    everything = ValueCounts.of(
        np.concatenate([part.values for part in differences.values()]),
        np.concatenate([part.counts for part in differences.values()]),
    )
    found[None] = Lengths(everything, _longer_wins(rows.clusters, rows.counts))
    return found


def read_profile(pairs: Path, before_symmetry: Path | None = None) -> Profile:
    """Count what two pairs files hold, reading no story.

    Args:
        pairs: Parquet by the schema PAIRS.
        before_symmetry: the same without the last step, where it is known.
    """
    nothing = ValueCounts.of([], [])
    con = duckdb.connect()
    try:
        # Arrow opens the files: DuckDB takes a star in a path for a pattern.
        con.register("pairs", pa_dataset.dataset(str(pairs), format="parquet"))
        con.execute(_STORIES)
        views = ["pairs"]
        if before_symmetry is not None:
            con.register("wider", pa_dataset.dataset(str(before_symmetry), format="parquet"))
            views.append("wider")
        rows = _prompt_rows(con, views)
        lengths = {view: _lengths(con, view, rows[view]) for view in views}
        after, before = lengths["pairs"], lengths.get("wider", {})
        sizes = _sizes(rows["pairs"])
        words = _value_counts(con, "words", "stories")
        uses = _value_counts(con, "chosen + rejected", "stories")
        both = _value_counts(con, "1", "stories", "chosen > 0 AND rejected > 0")
        sides = {
            side: {
                name: _value_counts(con, name, "stories", f"{side} > 0")
                for name in ("words", "score", "day")
            }
            for side in SIDES
        }
        gaps = _value_counts(
            con,
            # Wide enough for any two scores; floor, since // rounds towards zero.
            "greatest(-100, least(100, floor(100.0 * (chosen_score::DOUBLE - rejected_score) "
            "/ chosen_score)))",
            "pairs",
            # least and greatest pass over a null.
            "chosen_score > 0 AND rejected_score IS NOT NULL",
        )
        sources = con.sql("SELECT DISTINCT label_source FROM pairs ORDER BY 1").fetchall()
        stories = con.sql("SELECT count(DISTINCT story_id) FROM stories").fetchall()[0][0]
    finally:
        con.close()
    splits = [
        SplitProfile(
            name=name,
            pairs=after[name].pairs,
            stories=uses_of.n,
            words=words[name],
            both_sides=both.get(name, nothing).n,
            sides={
                side: StoryCounts(
                    **{part: sides[side][part].get(name, nothing) for part in sides[side]}
                )
                for side in SIDES
            },
            uses=uses_of,
            pairs_per_prompt=sizes[name],
            gap=gaps.get(name, nothing),
        )
        for name, uses_of in uses.items()
    ]
    splits.sort(key=lambda split: (-split.pairs, split.name))
    return Profile(splits, stories, [source for (source,) in sources], after, before)
