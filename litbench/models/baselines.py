"""Baselines that do not judge quality; every report compares the other raters with them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from litbench.data.curation.reader_notes import cut_reader_notes
from litbench.data.text import count_words, digest
from litbench.raters.interface import BlindPair, Judgement, Rater, ScoreRater, check_stories

# Shard size, so that memory does not grow with the number of pairs.
_PAIRS_AT_ONCE = 1_000


@dataclass
class LengthRater(ScoreRater):
    """Prefers the longer story (`sign` 1) or the shorter one (-1), in words."""

    name: str
    kind: str
    sign: int
    shard = _PAIRS_AT_ONCE

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Return signed word counts."""
        check_stories(stories)
        del prompts
        words = count_words(pa.array(stories, pa.large_string()))
        rewards: np.ndarray = self.sign * words.to_numpy(zero_copy_only=False).astype(np.float64)
        return rewards


@dataclass
class NotesRater(ScoreRater):
    """Prefers the story with notes to readers, which often give the label away."""

    name: str = "notes"
    kind: str = "notes"
    shard = _PAIRS_AT_ONCE

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Return 1 for stories with notes that `litbench.data.curation` would cut, else 0."""
        check_stories(stories)
        del prompts
        rewards = np.zeros(len(stories))
        rewards[list(cut_reader_notes(pa.array(stories, pa.large_string())))] = 1
        return rewards


@dataclass
class RandomRater(Rater):
    """Prefers either story with probability 1/2, determined by the seed and the texts."""

    name: str = "random"
    kind: str = "random"
    seed: int = 0
    shard = _PAIRS_AT_ONCE

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Prefer the first story if the pair's hash is even."""
        hashes = [digest(self.seed, pair.prompt, pair.first, pair.second) for pair in pairs]
        return [
            [Judgement("second" if int(value, 16) % 2 else "first", p_first=0.5)]
            for value in hashes
        ]


@dataclass
class LongerOptions:
    """The kind `longer` has no options."""

    def load(self, name: str) -> LengthRater:
        return LengthRater(name, "longer", 1)


@dataclass
class ShorterOptions:
    """The kind `shorter` has no options."""

    def load(self, name: str) -> LengthRater:
        return LengthRater(name, "shorter", -1)


@dataclass
class NotesOptions:
    """The kind `notes` has no options."""

    def load(self, name: str) -> NotesRater:
        return NotesRater(name)


@dataclass
class RandomOptions:
    """Options of the kind `random`; see RandomRater."""

    seed: int = 0

    def load(self, name: str) -> RandomRater:
        return RandomRater(name, seed=self.seed)
