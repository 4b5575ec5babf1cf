"""A rater as a reward function for reinforcement learning with trl's GRPOTrainer.

    reward = PolicyReward.load("runs/verifier/model", RewardShaping(clip=0.95),
                               references=(prompts, human_stories))
    trainer = GRPOTrainer(policy, reward_funcs=reward, ...)

A policy exploits the errors of its rater. So the reward r of a story with w words is shaped, in
this order, by a range [a, b] of words and a quantile Q of the rewards of human stories:

1. length: if w > b, r becomes the minimum of r and the reward of the story's first b words, so that
   text beyond b never increases the reward;
2. clipping: r := min(r, Q);
3. penalty: minus penalty * (w - b) / b if w > b, or penalty * (a - w) / a if w < a. By default the
   penalty is the standard deviation of the references' rewards within a prompt, so that neither
   length nor the rater dominates.

By steps 1 and 3, a story that is too long gets less than its first b words alone. A completion
without words, or one that the rater flags as no prose (`is_prose`), gets the lowest reward: the
minimum over the other completions of the prompt in the call, minus the penalty, or minus 1 if the
penalty is 0.

Rewards are comparable within a prompt only, and GRPO compares within a prompt.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from litbench.data.text import count_words, prompt_key
from litbench.evaluation.scoring import load_scorer, scorer_spec
from litbench.metrics.diversity import distinct_trigrams
from litbench.models import model_entry
from litbench.raters.interface import ScoreRater
from litbench.runs.errors import ConfigError, DataError, ModelError


@dataclass(frozen=True)
class RewardShaping:
    """How rewards are shaped; see the module for the formulas.

    Attributes:
        min_words: minimum number of words; None for the references' 5 % quantile.
        max_words: maximum number of words; None for the references' 95 % quantile.
        penalty: subtracted at twice the maximum length and near zero words, in units of the reward;
            None for the standard deviation of the references' rewards within a prompt, 0 for
            stories of any length.
        clip: quantile of the references' rewards at which rewards are clipped; None for no
            clipping.
    """

    min_words: Annotated[int, Field(ge=1)] | None = None
    max_words: Annotated[int, Field(ge=1)] | None = None
    penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    clip: Annotated[float, Field(gt=0, le=1)] | None = None


class PolicyReward:
    """A rater as a reward function of trl's GRPOTrainer; see the module.

    Completions and prompts are texts or lists of messages: the last assistant message is the story,
    the last user message is the prompt.

    Args:
        rater: gives the rewards; any object with the method `score` of a ScoreRater.
        shaping: how the rewards are shaped.
        references: prompts and human stories, of the same length.
        prompt_column: column of the data set with the writing prompt alone, if the policy's prompt
            contains more, such as instructions.
        story_of: extracts the story from a completion, for example without thoughts.
        name: name under which trl logs the reward.
    """

    def __init__(
        self,
        rater: ScoreRater,
        shaping: RewardShaping | None = None,
        *,
        references: tuple[Sequence[str], Sequence[str]] = ((), ()),
        prompt_column: str | None = None,
        story_of: Callable[[str], str] = str,
        name: str = "litbench_reward",
    ) -> None:
        self.rater, self.prompt_column, self._story_of = rater, prompt_column, story_of
        # trl logs a reward function under its __name__.
        self.__name__ = name
        prompts, stories = references
        shaping = self.shaping = shaping or RewardShaping()
        scales = (shaping.penalty, shaping.min_words, shaping.max_words)
        needs_stories = shaping.clip is not None or (shaping.penalty != 0 and None in scales)
        if needs_stories and not len(stories):
            raise ConfigError(
                "clip, penalty, min_words and max_words are computed from reference stories, and "
                "there are none: give human stories, or set clip to null and give the others, or "
                "penalty: 0 for any length"
            )
        words = _count(stories)
        rewards = np.asarray(
            rater.score(prompts, stories) if len(stories) else [], dtype=np.float64
        )
        if not words.all() or not np.isfinite(rewards).all():
            raise DataError("a reference story has no words or no finite reward: remove it")
        self._penalty = _spread(rewards, prompts) if shaping.penalty is None else shaping.penalty
        if shaping.penalty is None and not self._penalty > 0:
            raise ConfigError(
                f"the rewards of the {len(stories)} reference stories do not differ within a "
                "prompt, so they give no penalty: give more stories, or set penalty"
            )
        self._min_words, self._max_words, self._clip = 0.0, math.inf, math.inf
        if self._penalty:
            self._min_words = shaping.min_words or float(np.quantile(words, 0.05))
            max_words = shaping.max_words or float(np.quantile(words, 0.95))
            self._max_words = max(max_words, self._min_words)
        if shaping.clip is not None:
            self._clip = float(np.quantile(rewards, shaping.clip))

    @classmethod
    def load(
        cls, path: str | Path, shaping: RewardShaping | None = None, **options: Any
    ) -> "PolicyReward":
        """Load the rater from a model folder, in each process of `accelerate launch` on its GPU."""
        entry = model_entry(path)
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
        """Return the rewards of completions, shape (n,), with the signature that trl expects.

        Completions of the same prompt form a group. A completion without a finite reward gets
        None, and trl leaves it out of its group.

        Raises:
            ModelError: some completions have words, but none of them has a finite reward.
        """
        if self.prompt_column is not None:
            if self.prompt_column not in columns:
                raise ConfigError(
                    f"prompt_column is {self.prompt_column}, but the data set has {sorted(columns)}"
                )
            prompts = columns[self.prompt_column]
        texts = [self._story_of(_text_of(completion, "assistant")) for completion in completions]
        prompt_texts = [_text_of(prompt, "user") for prompt in prompts]
        if not all(prompt.strip() for prompt in prompt_texts):
            raise DataError(
                "a prompt is empty or has no user message: give texts or messages, or set "
                "prompt_column to the column with the writing prompt"
            )
        keys = np.array([prompt_key(prompt) for prompt in prompt_texts])
        words = _count(texts)
        is_empty, no_prose = words == 0, self._no_prose(texts)
        outside = np.maximum(words - self._max_words, 0) / self._max_words
        if self._min_words:
            outside += np.maximum(1 - words / self._min_words, 0)
        raw, capped = self._score(prompt_texts, texts, words)
        clipped, penalty = np.minimum(capped, self._clip), self._penalty * outside
        value = np.where(no_prose, np.nan, clipped - penalty)
        usable = np.isfinite(value)
        spreads = [_spread(part[usable], keys[usable]) for part in (penalty, clipped)]
        for key in dict.fromkeys(keys.tolist()):
            group = keys == key
            # The rest of a group may be in another process.
            others = value[group & usable] if usable[group].any() else value[usable]
            floor = others.min() if len(others) else 0.0
            value[group & (is_empty | no_prose)] = floor - (self._penalty or 1)
        scored = np.isfinite(raw)
        metrics = {
            "raw": raw[scored].mean() if scored.any() else math.nan,
            "clipped_share": np.mean(capped > self._clip),
            "penalty_share": spreads[0] / sum(spreads) if sum(spreads) > 0 else math.nan,
            "guarded_share": np.mean((outside > 0) & ~is_empty),
            "empty_share": np.mean(is_empty),
            "no_prose_share": np.mean(no_prose & ~is_empty),
            "unscored_share": np.mean(~scored & ~is_empty),
            "words": np.mean(words),
            "distinct_trigrams": distinct_trigrams(texts),
        }
        for metric, number in metrics.items():
            if log_metric is not None and math.isfinite(number):
                log_metric(f"{self.__name__}/{metric}", float(number))
        return [reward if math.isfinite(reward) else None for reward in value.tolist()]

    def _no_prose(self, texts: list[str]) -> np.ndarray:
        """Return whether the rater flags each text as no prose; all false if it has no scope."""
        scope = getattr(self.rater, "scope", None)
        flags = [True] * len(texts) if scope is None else scope.flags(texts).is_prose
        return ~np.array(flags, bool)

    def _score(
        self, prompts: list[str], texts: list[str], words: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the rater's rewards before and after step 1 (length); NaN if not finite."""
        raw = np.full(len(texts), np.nan)
        rows = np.flatnonzero(words)
        if not len(rows):
            return raw, raw
        long_rows = np.flatnonzero(words > self._max_words)
        starts = _first_words([texts[row] for row in long_rows], self._max_words)
        both = [prompts[row] for row in (*rows, *long_rows)]
        rewards = np.array(self.rater.score(both, [texts[row] for row in rows] + starts), float)
        rewards[~np.isfinite(rewards)] = np.nan
        raw[rows] = rewards[: len(rows)]
        if np.isnan(raw[rows]).all():
            raise ModelError(
                f"none of the {len(rows)} completions got a finite reward: check the reward "
                "model's weights and precision"
            )
        capped = raw.copy()
        capped[long_rows] = np.minimum(raw[long_rows], rewards[len(rows) :])
        return raw, capped


def _spread(rewards: np.ndarray, prompts: Sequence[str] | np.ndarray) -> float:
    """Standard deviation within a prompt, pooled; NaN if no prompt has two rewards."""
    names, groups, sizes = np.unique(
        np.asarray(prompts, dtype=str), return_inverse=True, return_counts=True
    )
    if len(rewards) == len(names):
        return math.nan
    means = np.bincount(groups, weights=rewards) / sizes
    squares = np.square(rewards - means[groups]).sum()
    return float(np.sqrt(squares / (len(rewards) - len(names))))


def _count(texts: Sequence[str]) -> np.ndarray:
    counted = count_words(pa.array(texts, pa.large_string()))
    words: np.ndarray = counted.to_numpy(zero_copy_only=False).astype(np.int64)
    return words


def _first_words(texts: Sequence[str], most: float) -> list[str]:
    """Return the longest prefixes with at most `most` words, as counted by `count_words`."""
    # Binary search over all texts at once: each call of count_words has a high fixed cost.
    low, high = np.zeros(len(texts), int), np.array([len(text) for text in texts], int)
    while (low < high).any():
        middle = (low + high + 1) // 2
        fits = _count([text[:end] for text, end in zip(texts, middle, strict=True)]) <= most
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return [text[:end] for text, end in zip(texts, low, strict=True)]


def _text_of(content: Any, role: str) -> str:
    """Return a text as it is, or the text parts of a role's last message."""
    if isinstance(content, str):
        return content
    messages = [content] if isinstance(content, Mapping) else content or []
    contents = [message["content"] for message in messages if message["role"] == role]
    if not contents or isinstance(contents[-1], str | None):
        return (contents or [""])[-1] or ""
    return "".join(part.get("text") or "" for part in contents[-1])
