"""Configuration of the rules that turn stories into pairs."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from litbench.data.curation.splits import day_start
from litbench.data.records import NOT_STATED, LabelSource
from litbench.runs.errors import ConfigError

Buckets = Annotated[int, Field(ge=2, multiple_of=2)] | Literal["auto"] | None


@dataclass(kw_only=True)
class PairRules:
    """Rules that turn stories into pairs. Null or false skips a step.

    The defaults are the rules of the paper's full set and our own cleaning.

    Attributes:
        seed: seed of splits, caps and symmetry.
        drop_deleted: remove deleted and removed texts.
        drop_bots: remove texts by bots and moderator templates.
        drop_talk: remove short replies that comment on the prompt instead of telling a story.
        min_score: minimum net upvotes of a story. `auto`: 10, or null if the scores are ratings.
        max_tokens: maximum tokens of a story; needs the column n_tokens.
        min_words: minimum words of a story.
        drop_duplicates: keep the earliest of several copies of a story.
        drop_near_duplicates: keep the earliest of several near-duplicates across all prompts. The
            value is the minimum Jaccard similarity of their five-word shingles, such as 0.8.
        splits: share of prompts per split, assigned by a hash of the prompt's text.
        test_from: split by date instead: stories posted on or after this day (UTC) are test, the
            others train; the paper uses "2023-01-01". Prompts answered before the day are train.
        max_candidate_pairs: fail if the stories form more pairs within prompts than this, counted
            before the rules for pairs.
        min_gap: minimum score gap, as a share of the score further from zero, usually the chosen's.
        chosen_later: require that the chosen story was posted later.
        max_pairs_per_prompt: maximum pairs of a prompt; larger prompts are subsampled.
        symmetry_buckets: number of buckets of the length-difference histogram; must be even. `auto`
            selects it by the number of pairs, see `buckets_for`.
        label_source: who gave the scores: votes; people if they are ratings; planted if they are
            simulated.
    """

    seed: int = 0
    drop_deleted: bool = True
    drop_bots: bool = True
    drop_talk: bool = True
    min_score: int | float | Literal["auto"] | None = "auto"
    max_tokens: int | None = 2_048
    min_words: int | None = 50
    drop_duplicates: bool = True
    drop_near_duplicates: Annotated[float, Field(gt=0, le=1)] | None = None
    splits: dict[str, Annotated[float, Field(gt=0)]] = field(default_factory=lambda: {"all": 1.0})
    test_from: str | None = None
    max_candidate_pairs: int = 20_000_000
    min_gap: Annotated[float, Field(ge=0, lt=1)] | None = 0.25
    chosen_later: bool = True
    max_pairs_per_prompt: Annotated[int, Field(ge=1)] | None = None
    symmetry_buckets: Buckets = 100
    label_source: LabelSource = NOT_STATED

    def check(self) -> None:
        """Raise ConfigError for values that the types allow but that do not fit together."""
        if abs(sum(self.splits.values()) - 1) > 1e-6:
            raise ConfigError(f"splits: {self.splits}: give each split a share, summing to 1")
        if self.test_from is not None:
            day_start(self.test_from)
            if len(self.splits) > 1:
                raise ConfigError("test_from and splits are both given: keep one of them")

    @property
    def least_score(self) -> float | None:
        """The value of `min_score`: the paper's minimum of votes does not apply to ratings."""
        if self.min_score != "auto":
            return self.min_score
        return None if self.label_source == "people" else 10


def buckets_for(pairs: int) -> int:
    """Return the number of symmetry buckets for a number of pairs before symmetry.

    It is the largest of 2, 4, 10, 20, 50 and 100 (the paper's number) that leaves 20 pairs per
    bucket: with fewer, most pairs have no partner in the mirrored bucket and are pruned.
    """
    return max((n for n in (4, 10, 20, 50, 100) if 20 * n <= pairs), default=2)
