"""What a pairs file holds, counted by DuckDB from its columns without its stories."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.dataset as pa_dataset

from litbench.metrics.intervals import Interval, effective_clusters, jackknife_interval
from litbench.records import prompt_keys

SIDES = ("chosen", "rejected")


@dataclass(frozen=True)
class Lengths:
    """How length and choice go together in some pairs.

    Attributes:
        difference: words of chosen minus words of rejected; shape (pairs,).
        longer_wins: agreement of the rater "the longer story wins", where equal lengths count
            one half; clustered by prompt.
    """

    difference: np.ndarray
    longer_wins: Interval

    @property
    def longer(self) -> int:
        """Pairs whose chosen story is the longer."""
        return int((self.difference > 0).sum())

    @property
    def equal(self) -> int:
        """Pairs of equal length."""
        return int((self.difference == 0).sum())

    @property
    def shorter(self) -> int:
        """Pairs whose chosen story is the shorter."""
        return int((self.difference < 0).sum())

    @property
    def widest(self) -> int:
        """The largest absolute difference, at least 1."""
        return max(int(np.abs(self.difference).max()), 1)

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
        values = self.difference[self.difference != 0]
        place = np.minimum(np.abs(values) * half // widest, half - 1)
        return np.bincount(np.where(values > 0, half + place, half - 1 - place), minlength=buckets)


@dataclass(frozen=True)
class SplitProfile:
    """One split; each array is sorted and holds each story, pair or prompt once.

    Attributes:
        name: of the split.
        words: lengths of the stories, whichever side.
        sides: per side its stories' `words`, their `score` and `day` of posting (days since 1970),
            where these are known.
        pairs_per_prompt: pairs of each prompt, by normalised text.
        gap: lead of the chosen score as a whole percentage of it, rounded down, from -100 to 100;
            of pairs whose chosen score is above zero.
    """

    name: str
    words: np.ndarray
    sides: Mapping[str, Mapping[str, np.ndarray]]
    pairs_per_prompt: np.ndarray
    gap: np.ndarray

    @property
    def pairs(self) -> int:
        """All pairs."""
        return int(self.pairs_per_prompt.sum())

    @property
    def effective_prompts(self) -> float:
        """How many prompts of equal size would be worth these."""
        return effective_clusters(self.pairs_per_prompt)


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


_STORIES = """
CREATE TEMP TABLE stories AS
SELECT split, side, story_id,
    min(words) AS words, min(score) AS score, min(created_utc) // 86400 AS day
FROM (
    SELECT split, 'chosen' AS side, chosen_story_id AS story_id,
        chosen_n_words AS words, chosen_score AS score, chosen_created_utc AS created_utc
    FROM pairs
    UNION ALL
    SELECT split, 'rejected', rejected_story_id,
        rejected_n_words, rejected_score, rejected_created_utc
    FROM pairs
)
GROUP BY ALL
"""
# Wide enough for any two scores; floor, since // rounds towards zero.
_GAP = """
SELECT greatest(-100, least(100,
    floor(100.0 * (chosen_score::DOUBLE - rejected_score) / chosen_score)))::BIGINT
FROM pairs WHERE split = ? AND chosen_score > 0 AND rejected_score IS NOT NULL ORDER BY 1
"""


def _lengths(con: Any, view: str) -> tuple[dict[str | None, Lengths], dict[str, np.ndarray]]:
    """Lengths per split, and of all under None; pairs per prompt of each split."""
    table = con.sql(
        "SELECT split, prompt, (chosen_n_words - rejected_n_words)::BIGINT AS difference "  # noqa: S608
        f"FROM {view} ORDER BY ALL"
    ).to_arrow_table()
    splits = np.array(table["split"].to_pylist(), dtype=object)
    _, prompts = np.unique(np.array(prompt_keys(table), dtype=object), return_inverse=True)
    difference = table["difference"].to_numpy()
    credit = (np.sign(difference) + 1) / 2
    lengths: dict[str | None, Lengths] = {
        None: Lengths(difference, jackknife_interval(credit, prompts))
    }
    sizes = {}
    for name in sorted(set(splits)):
        here = splits == name
        lengths[name] = Lengths(difference[here], jackknife_interval(credit[here], prompts[here]))
        sizes[name] = np.sort(np.unique(prompts[here], return_counts=True)[1])
    return lengths, sizes


def read_profile(pairs: Path, before_symmetry: Path | None = None) -> Profile:
    """Count what two pairs files hold, reading no story.

    Args:
        pairs: Parquet by the schema PAIRS.
        before_symmetry: the same without the last step, where it is known.
    """

    def column(query: str, *values: str) -> np.ndarray:
        found: np.ndarray = con.sql(query, params=values).to_arrow_table().column(0).to_numpy()
        return found

    with duckdb.connect() as con:
        # Arrow opens the files: DuckDB takes a star in a path for a pattern.
        con.register("pairs", pa_dataset.dataset(str(pairs), format="parquet"))
        con.execute(_STORIES)
        after, sizes = _lengths(con, "pairs")
        before: dict[str | None, Lengths] = {}
        if before_symmetry is not None:
            con.register("wider", pa_dataset.dataset(str(before_symmetry), format="parquet"))
            before, _ = _lengths(con, "wider")
        splits = [
            SplitProfile(
                name,
                column(
                    "SELECT words FROM (SELECT story_id, min(words) AS words FROM stories "
                    "WHERE split = ? GROUP BY story_id) ORDER BY 1",
                    name,
                ),
                {
                    side: {
                        quantity: column(
                            f"SELECT {quantity} FROM stories WHERE split = ? AND side = ? "  # noqa: S608
                            f"AND {quantity} IS NOT NULL ORDER BY 1",
                            name,
                            side,
                        )
                        for quantity in ("words", "score", "day")
                    }
                    for side in SIDES
                },
                sizes[name],
                column(_GAP, name),
            )
            for name in sizes
        ]
        stories = int(column("SELECT count(DISTINCT story_id) FROM stories")[0])
        sources = column("SELECT DISTINCT label_source FROM pairs ORDER BY 1").tolist()
    splits.sort(key=lambda split: (-split.pairs, split.name))
    return Profile(splits, stories, sources, after, before)
