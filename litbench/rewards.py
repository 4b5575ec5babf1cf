"""A rater as the reward of reinforcement learning, for trl's GRPOTrainer.

    reward = PolicyReward.load("runs/verifier/model", RewardShaping(scaling="rank", clip=0.95),
                               references=(prompts, human_stories))
    trainer = GRPOTrainer(policy, reward_funcs=reward, ...)

A policy finds whatever a rater is wrong about. So its reward is shaped, in this order, for a story
of a prompt with reward r and w words:

1. length: with the range [a, b] of words, a story with w > b gets the smaller of its own reward
   and that of its first b words, so that text beyond b can never earn anything;
2. clipping: r := min(r, Q), where Q is a quantile of human stories' rewards;
3. scaling: raw, or the rank among the completions of the same prompt in the call, from 0 to 1,
   ties sharing the mean of their ranks;
4. penalty: minus penalty * (w - b) / b, or penalty * (a - w) / a.

By 1 and 4 a story that is too long always gets less than its own first b words would. A completion
without words gets the lowest reward: the least that any other completion of the prompt got in the
call (and at most 0 for ranks) minus the penalty, or 1 where that is 0.

Rewards are comparable within a prompt only, and GRPO compares within a prompt. Quantiles are those
of the prompt's own human stories if there are eight, and else those of all prompts together.
"""

import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import pyarrow as pa
from pydantic import Field

from litbench.errors import ConfigError, DataError, ModelError
from litbench.metrics.diversity import distinct_trigrams
from litbench.scoring import load_scorer, scorer_entry, scorer_spec
from litbench.text import count_words, prompt_key

# Human stories that a prompt needs to go by its own.
_LEAST_REFERENCES = 8


class GivesRewards(Protocol):
    """Any rater that gives each story a reward of its own, such as a `ScoreRater`."""

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Rewards, float64, shape (n,)."""


@dataclass(frozen=True)
class RewardShaping:
    """How a rater's reward becomes a policy's; see the module for the formulas.

    Attributes:
        scaling: raw or rank.
        shortest: least words of the range; the references' 5 % quantile when None.
        longest: most words; the references' 95 % quantile when None.
        penalty: subtracted for twice the most words or for hardly any, in units of the scaled
            reward; 0 for stories of any length.
        clip: quantile of the references' rewards above which nothing more is earned; None for no
            clipping.
    """

    scaling: Literal["raw", "rank"] = "raw"
    shortest: Annotated[int, Field(ge=1)] | None = None
    longest: Annotated[int, Field(ge=1)] | None = None
    penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    clip: Annotated[float, Field(gt=0, le=1)] | None = None


class PolicyReward:
    """A rater as a reward function of trl's GRPOTrainer; see the module.

    Completions and prompts are texts or lists of messages: the last one of the assistant is the
    story, the last one of the user the prompt. `last` has the metrics of the last call.

    Args:
        rater: gives the rewards.
        shaping: what becomes of them.
        references: prompts and human stories, of the same length.
        prompt_column: column of the data set with the prompt as the rater knows it, if the
            policy's prompt says more, such as instructions.
        story_of: removes from a completion what is no story, such as thoughts.
        name: under which trl logs it.
    """

    def __init__(
        self,
        rater: GivesRewards,
        shaping: RewardShaping | None = None,
        *,
        references: tuple[Sequence[str], Sequence[str]] = ((), ()),
        prompt_column: str | None = None,
        story_of: Callable[[str], str] = str,
        name: str = "litbench_reward",
    ) -> None:
        self.rater = rater
        self.shaping = shaping or RewardShaping()
        self.last: dict[str, float] = {}
        self.prompt_column = prompt_column
        # trl asks a function for its name.
        self.__name__ = name
        self._story_of = story_of
        prompts, stories = references
        one = self.shaping
        needs_range = one.penalty and (one.shortest is None or one.longest is None)
        if not len(stories) and (needs_range or one.clip is not None):
            raise ConfigError(
                "clip, shortest and longest come from reference stories, and there are none: give "
                "human stories, or shortest and longest, or penalty: 0 for any length"
            )
        words = _count(stories)
        rewards = np.asarray(
            rater.score(prompts, stories) if len(stories) else [], dtype=np.float64
        )
        if not words.all() or not np.isfinite(rewards).all():
            raise DataError("a reference story has no words, or no finite reward: leave it out")
        self._bounds_of_all = self._bounds(rewards, words)
        rows: dict[str, list[int]] = defaultdict(list)
        for row, prompt in enumerate(prompts):
            rows[prompt_key(prompt)].append(row)
        self._bounds_of_prompt = {
            key: self._bounds(rewards[own], words[own])
            for key, own in rows.items()
            if len(own) >= _LEAST_REFERENCES
        }

    def _bounds(self, rewards: np.ndarray, words: np.ndarray) -> tuple[float, float, float]:
        """Least words, most words and highest reward, by some reference stories."""
        one = self.shaping
        shortest, longest, clip = 0.0, math.inf, math.inf
        if one.penalty:
            shortest = one.shortest or float(np.quantile(words, 0.05))
            longest = max(one.longest or float(np.quantile(words, 0.95)), shortest)
        if one.clip is not None:
            clip = float(np.quantile(rewards, one.clip))
        return shortest, longest, clip

    @classmethod
    def load(
        cls, path: str | Path, shaping: RewardShaping | None = None, **options: Any
    ) -> "PolicyReward":
        """Load the rater from a model folder; each process of `accelerate launch` on its GPU."""
        entry = scorer_entry(str(path))
        if "LOCAL_RANK" in os.environ and entry["kind"] == "reward":
            import torch  # noqa: PLC0415

            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        return cls(load_scorer(scorer_spec(entry)), shaping, **options)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Reward completions as trl asks for it, shape (n,); completions of one prompt are a group.

        None, which trl leaves out of the group, stands where the rater's reward is not finite.

        Raises:
            ModelError: no reward of the call is finite, though some completions have words.
        """
        if self.prompt_column is not None:
            if self.prompt_column not in columns:
                raise ConfigError(
                    f"prompt_column is {self.prompt_column}, and the data set has {sorted(columns)}"
                )
            prompts = columns[self.prompt_column]
        texts = [self._story_of(_text_of(completion, "assistant")) for completion in completions]
        asked = [_text_of(prompt, "user") for prompt in prompts]
        if not all(prompt.strip() for prompt in asked):
            raise DataError(
                "a prompt has no text of the user: give texts or messages, or name the column with "
                "the writing prompt as prompt_column"
            )
        keys = [prompt_key(prompt) for prompt in asked]
        bounds = [self._bounds_of_prompt.get(key, self._bounds_of_all) for key in keys]
        shortest, longest, clip = np.array(bounds, dtype=np.float64).reshape(-1, 3).T
        words = _count(texts)
        is_empty = words == 0
        outside = np.maximum(words - longest, 0) / longest
        outside += np.maximum(1 - words / np.maximum(shortest, 1), 0) * (shortest > 0)
        raw, capped = self._scored(asked, texts, words, longest)
        value = np.minimum(capped, clip)
        groups = [np.flatnonzero(np.array(keys) == key) for key in dict.fromkeys(keys)]
        for rows in groups if self.shaping.scaling == "rank" else []:
            from scipy.stats import rankdata  # noqa: PLC0415

            n = np.isfinite(value[rows]).sum()
            ranks = rankdata(value[rows], nan_policy="omit")
            value[rows] = (ranks - 1) / (n - 1) if n > 1 else 0 * ranks + 0.5
        value -= self.shaping.penalty * outside
        usable = np.isfinite(value)
        for rows in groups:
            # The others of a group may be in another process.
            others = value[rows][usable[rows]] if usable[rows].any() else value[usable]
            least = others.min() if len(others) else 0.0
            floor = least if self.shaping.scaling == "raw" else min(least, 0)
            value[rows] = np.where(is_empty[rows], floor - (self.shaping.penalty or 1), value[rows])
        scored = np.isfinite(raw)
        metrics = {
            "raw": raw[scored].mean() if scored.any() else math.nan,
            "clipped_share": np.mean(capped > clip),
            "guarded_share": np.mean((outside > 0) & ~is_empty),
            "empty_share": np.mean(is_empty),
            "unscored_share": np.mean(~scored & ~is_empty),
            "words": np.mean(words),
            "distinct_trigrams": distinct_trigrams(texts),
        }
        self.last = {key: float(number) for key, number in metrics.items() if math.isfinite(number)}
        if log_metric is not None:
            for metric, number in self.last.items():
                log_metric(f"{self.__name__}/{metric}", number)
        return [one if math.isfinite(one) else None for one in value.tolist()]

    def _scored(
        self, prompts: list[str], texts: list[str], words: np.ndarray, longest: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rater's rewards, and those of at most the longest words."""
        raw = np.full(len(texts), np.nan)
        rows = np.flatnonzero(words)
        if not len(rows):
            return raw, raw
        long_rows = np.flatnonzero(words > longest)
        starts = _first_words([texts[row] for row in long_rows], longest[long_rows])
        asked = [prompts[row] for row in (*rows, *long_rows)]
        found = np.array(self.rater.score(asked, [texts[row] for row in rows] + starts), float)
        found[~np.isfinite(found)] = np.nan
        raw[rows] = found[: len(rows)]
        if np.isnan(raw[rows]).all():
            raise ModelError(
                f"none of the {len(rows)} completions got a finite reward: check the reward "
                "model's weights and precision"
            )
        capped = raw.copy()
        capped[long_rows] = np.minimum(raw[long_rows], found[len(rows) :])
        return raw, capped


def _count(texts: Sequence[str]) -> np.ndarray:
    counted = count_words(pa.array(texts, pa.large_string()))
    words: np.ndarray = counted.to_numpy(zero_copy_only=False).astype(np.int64)
    return words


def _first_words(texts: Sequence[str], most: np.ndarray) -> list[str]:
    """The longest beginnings with so many words, by the rule of `count_words`."""
    # Halving for all at once: what counting one text costs is mostly the call.
    low, high = np.zeros(len(texts), int), np.array([len(text) for text in texts], int)
    while (low < high).any():
        middle = (low + high + 1) // 2
        fits = _count([text[:end] for text, end in zip(texts, middle, strict=True)]) <= most
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return [text[:end] for text, end in zip(texts, low, strict=True)]


def _text_of(content: Any, role: str) -> str:
    """A text, or the last message of a role; of a list of parts, those that are text."""
    if isinstance(content, str):
        return content
    messages = [content] if isinstance(content, Mapping) else content or []
    own = [message["content"] for message in messages if message["role"] == role]
    if not own or isinstance(own[-1], str | None):
        return (own or [""])[-1] or ""
    return "".join(part.get("text") or "" for part in own[-1])
