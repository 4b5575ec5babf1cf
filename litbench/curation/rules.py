"""The rules by which stories become pairs."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from litbench.curation.near_duplicates import check_rensa
from litbench.curation.splits import day_start
from litbench.errors import ConfigError


@dataclass(kw_only=True)
class PairRules:
    """The rules; the defaults are the paper's full set. Null or false leaves a step out.

    Attributes:
        seed: seeds splits, caps and symmetry.
        drop_deleted: remove deleted and removed bodies.
        drop_bots: remove bots and moderator templates.
        drop_talk: remove short replies that talk about the prompt instead of telling a story.
        min_score_age_hours: remove stories whose score was read sooner after posting than this,
            or at an unknown time.
        min_score: least net upvotes of a story.
        max_tokens: most tokens of a story; needs the column n_tokens.
        min_words: fewest words of a story.
        drop_duplicates: keep the earliest of several copies of a story.
        drop_near_duplicates: keep the earliest of stories whose runs of five words are this
            similar (Jaccard, such as 0.8), across all prompts.
        splits: share of prompts per split, by a hash of the prompt's text.
        test_from: split by date instead: stories posted from this day (UTC) on are test, the
            others train; the paper's is "2023-01-01". A prompt answered before it is one of train.
        max_candidate_pairs: refuse stories that form more pairs within prompts, before the rules
            for pairs; counted before any is made.
        min_gap: least score gap, as a share of the chosen score.
        chosen_later: the chosen story must be the later one.
        max_pairs_per_prompt: most pairs of a prompt, drawn by seed.
        symmetry_buckets: buckets of the length-difference histogram; even.
        label_source: votes, people where `score` is a rating, or planted where it is simulated.
    """

    seed: int = 0
    drop_deleted: bool = True
    drop_bots: bool = True
    drop_talk: bool = True
    min_score_age_hours: float | None = None
    min_score: int | None = 10
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
    symmetry_buckets: Annotated[int, Field(ge=2, multiple_of=2)] | None = 100
    label_source: Literal["votes", "people", "planted"] = "votes"

    def check(self) -> None:
        """Check what the types cannot."""
        if abs(sum(self.splits.values()) - 1) > 1e-6:
            raise ConfigError(f"splits: {self.splits}: give each split a share, summing to 1")
        if self.test_from is not None:
            day_start(self.test_from)
            if len(self.splits) > 1:
                raise ConfigError("test_from and splits are both given: keep one of them")
        if self.drop_near_duplicates is not None:
            check_rensa()
