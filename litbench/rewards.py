"""A rater as the reward of reinforcement learning: for trl's GRPOTrainer and for verifiers.

    reward = PolicyReward.load("runs/verifier/model", RewardShaping(scaling="rank", clip=0.95),
                               references=(prompts, human_stories))
    trainer = GRPOTrainer(policy, reward_funcs=reward, ...)        # trl
    rubric = vf.Rubric(funcs=[rubric_function(reward)])            # verifiers, Rubric
    score = trace_function(reward)                                 # verifiers.v1, Task

A policy finds whatever a rater is wrong about. So its reward is shaped, in this order, for a story
of a prompt with reward r and w words:

1. length: with the range [a, b] of words, a story with w > b gets the smaller of its own reward
   and that of its first b words, so that text beyond b can never earn anything;
2. clipping: r := min(r, Q), where Q is a quantile of human stories' rewards;
3. scaling: raw; sigmoid, 1 / (1 + exp(-(r - centre) / width)); or the rank among the completions
   of the same prompt in the call, from 0 to 1, ties sharing the mean of their ranks;
4. penalty: minus penalty * (w - b) / b, or penalty * (a - w) / a.

By 1 and 4 a story that is too long always gets less than its own first b words would. A completion
without words gets the lowest reward: the least that any other completion of the prompt got in the
call (and at most 0 where rewards are scaled) minus the penalty, or 1 where that is 0.

Rewards are comparable within a prompt only, and GRPO compares within a prompt. Quantiles and
centres are those of the prompt's own human stories if there are eight, and else those of all
prompts together.
"""

import asyncio
import math
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

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
        scaling: raw, sigmoid or rank.
        centre: reward that sigmoid maps to 1/2; the median of the references when None.
        width: of the sigmoid, in units of the reward; the references' standard deviation when
            None. With 1 and a Bradley-Terry model, sigmoid is the probability of beating a story
            whose reward is `centre`.
        shortest: least words of the range; the references' 5 % quantile when None.
        longest: most words; the references' 95 % quantile when None.
        penalty: subtracted for twice the most words or for hardly any, in units of the scaled
            reward; 0 for no guard of the length.
        clip: quantile of the references' rewards above which nothing more is earned; None for no
            clipping.

    Raises:
        ConfigError: a value out of range.
    """

    scaling: Literal["raw", "sigmoid", "rank"] = "raw"
    centre: float | None = None
    width: float | None = None
    shortest: int | None = None
    longest: int | None = None
    penalty: float = 1.0
    clip: float | None = None

    def __post_init__(self) -> None:
        allowed = {
            "scaling": (self.scaling in ("raw", "sigmoid", "rank"), "raw, sigmoid or rank"),
            "centre": (math.isfinite(self.centre or 0), "a finite number"),
            "width": (self.width is None or 0 < self.width < math.inf, "a number above 0"),
            "clip": (self.clip is None or 0 < self.clip <= 1, "a quantile above 0, or null"),
            "penalty": (0 <= self.penalty < math.inf, "0 or a number above it"),
            "shortest": (self.shortest is None or self.shortest >= 1, "at least 1 word"),
            "longest": (
                self.longest is None or self.longest >= (self.shortest or 1), "at least shortest",
            ),
        }  # fmt: skip
        for key, (fits, wanted) in allowed.items():
            if not fits:
                raise ConfigError(f"{key} is {getattr(self, key)!r}: give {wanted}")

    def needs_references(self) -> list[str]:
        """The keys that cannot be filled in without reference stories."""
        keys = ["shortest", "longest"] if self.penalty else []
        keys += ["centre", "width"] if self.scaling == "sigmoid" else []
        missing = [key for key in keys if getattr(self, key) is None]
        return missing if self.clip is None else ["clip", *missing]


@dataclass(frozen=True)
class _Frame:
    """A RewardShaping filled in for one prompt; words, rewards."""

    shortest: float = 0.0
    longest: float = math.inf
    clip: float = math.inf
    centre: float = 0.0
    width: float = 1.0

    @classmethod
    def of(cls, shaping: RewardShaping, rewards: np.ndarray, words: np.ndarray) -> "_Frame":
        """Fill in from reference stories, which may be none if nothing needs them."""
        filled: dict[str, float] = {}
        if shaping.penalty:
            low, high = shaping.shortest, shaping.longest
            filled["shortest"] = float(np.quantile(words, 0.05) if low is None else low)
            longest = float(np.quantile(words, 0.95) if high is None else high)
            filled["longest"] = max(longest, filled["shortest"])
        if shaping.scaling == "sigmoid":
            centre, width = shaping.centre, shaping.width
            filled["centre"] = float(np.median(rewards) if centre is None else centre)
            filled["width"] = float(np.std(rewards) if width is None else width)
        if shaping.clip is not None:
            filled["clip"] = float(np.quantile(rewards, shaping.clip))
        return cls(**filled)


class PolicyReward:
    """A rater as a reward function of trl's GRPOTrainer; see the module.

    Called as trl calls it, it returns a reward for every completion, or None for one without a
    finite reward, which trl leaves out of its group. Completions and prompts are texts or lists of
    messages: the last one of the assistant is the story, the last one of the user the prompt.

    `last` has the metrics of the last call.

    Args:
        rater: gives the rewards.
        shaping: what becomes of them.
        references: prompts and human stories, of the same length.
        prompt_column: column of the data set (in verifiers: key of `info`) with the prompt as the
            rater knows it, if the policy's prompt says more, such as instructions.
        story_of: removes from a completion what is no story, such as thoughts.
        name: under which trl and verifiers log it.

    Raises:
        ConfigError: the shaping needs reference stories and there are none.
        DataError: the references do not fit each other, or hold no words.
        ModelError: the rater's rewards of the references are not finite.
    """

    def __init__(
        self,
        rater: GivesRewards,
        shaping: RewardShaping | None = None,
        *,
        references: tuple[Sequence[str], Sequence[str]] | None = None,
        prompt_column: str | None = None,
        story_of: Callable[[str], str] | None = None,
        name: str = "litbench_reward",
    ) -> None:
        self.rater = rater
        self.shaping = shaping or RewardShaping()
        # trl and verifiers ask a function for its name.
        self.__name__ = name
        self.last: dict[str, float] = {}
        self._lock = threading.Lock()
        self.prompt_column = prompt_column
        self._story_of = story_of or (lambda text: text)
        prompts, stories = references or ([], [])
        missing = self.shaping.needs_references()
        if missing and not len(stories):
            raise ConfigError(
                f"{', '.join(missing)}: to be taken from reference stories, and there are none: "
                "give human stories, or these numbers (penalty: 0 for any length)"
            )
        if len(prompts) != len(stories):
            raise DataError(
                f"references: {len(prompts)} prompts and {len(stories)} stories: give a prompt for "
                "every story"
            )
        words = _count(stories)
        if not words.all():
            raise DataError(f"references: {int((words == 0).sum())} have no words: leave them out")
        rewards = np.zeros(0)
        if len(stories):
            rewards = np.asarray(rater.score(prompts, stories), dtype=np.float64)
        if not np.isfinite(rewards).all():
            raise ModelError(
                f"{int((~np.isfinite(rewards)).sum())} of {len(rewards)} reference stories got a "
                "reward that is not finite: check the model's weights and precision"
            )
        self._overall = _Frame.of(self.shaping, rewards, words)
        if self._overall.width <= 0:
            raise ConfigError("all reference stories have one reward: give the width of sigmoid")
        rows: dict[str, list[int]] = {}
        for row, prompt in enumerate(prompts):
            rows.setdefault(prompt_key(prompt), []).append(row)
        frames = {
            key: _Frame.of(self.shaping, rewards[own], words[own])
            for key, own in rows.items()
            if len(own) >= _LEAST_REFERENCES
        }
        self._frames = {key: frame for key, frame in frames.items() if frame.width > 0}

    @classmethod
    def load(
        cls,
        path: str | Path,
        shaping: RewardShaping | None = None,
        **options: Any,
    ) -> "PolicyReward":
        """Load the rater from a model folder; see `litbench.scoring.scorer_entry` and the class.

        Each process that `accelerate launch` starts takes its own GPU.

        Raises:
            ConfigError: an option that does not fit the kind of rater.
            ModelError: it cannot be loaded.
        """
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
        """Reward completions as trl asks for it, shape (n,); log `last`.

        Args:
            prompts: texts or lists of messages; shape (n,).
            completions: likewise.
            log_metric: trl's.
            columns: the data set's other columns, and what else trl passes.

        Raises:
            ConfigError: there is no column `prompt_column`.
            ModelError: no reward of the call is finite.
        """
        if self.prompt_column is not None:
            prompts = _value_of(columns, self.prompt_column, "the data set")
        rewards, _ = self.shape(prompts, completions)
        if log_metric is not None:
            for metric, value in self.last.items():
                log_metric(f"{self.__name__}/{metric}", value)
        return [value if math.isfinite(value) else None for value in rewards.tolist()]

    def numbers(self, prompts: Sequence[Any], completions: Sequence[Any]) -> list[float]:
        """As `shape`, for a library that knows no missing rewards: the lowest in their place."""
        rewards, lowest = self.shape(prompts, completions)
        numbers: list[float] = np.where(np.isfinite(rewards), rewards, lowest).tolist()
        return numbers

    def shape(
        self, prompts: Sequence[Any], completions: Sequence[Any]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Score completions and shape their rewards; completions of one prompt are its group.

        Returns:
            The rewards, NaN where the rater's own is not finite, and what a completion gets that
            earned nothing; float64, shape (n,) each.

        Raises:
            DataError: a prompt has no text, or they are not as many as the completions.
            ModelError: no reward of the call is finite, though some completions have words.
        """
        shaping = self.shaping
        if not len(completions):
            return np.zeros(0), np.zeros(0)
        if len(prompts) != len(completions):
            raise DataError(
                f"{len(prompts)} prompts and {len(completions)} completions: give a prompt for "
                "every completion"
            )
        texts = [self._story_of(_text_of(completion, "assistant")) for completion in completions]
        asked = [_text_of(prompt, "user") for prompt in prompts]
        for row, prompt in enumerate(asked):
            if not prompt.strip():
                raise DataError(
                    f"prompt {row} has no text of the user: {prompts[row]!r:.80}: give texts or "
                    "messages, or name the column with the writing prompt as prompt_column"
                )
        keys = [prompt_key(prompt) for prompt in asked]
        frames = [self._frames.get(key, self._overall) for key in keys]
        shortest, longest, clip, centre, width = np.array([astuple(one) for one in frames]).T
        words = _count(texts)
        beyond = np.maximum(words - longest, 0) / longest
        below = np.maximum(1 - words / np.maximum(shortest, 1), 0) * (shortest > 0)
        outside = beyond + below
        guarded = (outside > 0) & (words > 0)
        # verifiers calls from several threads.
        with self._lock:
            raw, capped = self._scored(asked, texts, words, longest)
        value = np.minimum(capped, clip)
        groups = [np.flatnonzero(np.array(keys) == key) for key in dict.fromkeys(keys)]
        if shaping.scaling == "sigmoid":
            value = 1 / (1 + np.exp(-np.clip((value - centre) / width, -500, 500)))
        if shaping.scaling == "rank":
            for rows in groups:
                inside = rows[np.isfinite(value[rows])]
                value[inside] = _ranks(value[inside])
        value = value - shaping.penalty * outside
        lowest = np.zeros(len(texts))
        usable = np.isfinite(value)
        for rows in groups:
            # The others of a group may be in another process.
            others = value[rows][usable[rows]] if usable[rows].any() else value[usable]
            least = others.min() if len(others) else 0.0
            floor = least if shaping.scaling == "raw" else min(least, 0)
            lowest[rows] = floor - (shaping.penalty or 1)
        value = np.where(words == 0, lowest, value)
        scored, is_empty = np.isfinite(raw), words == 0
        metrics = {
            "raw": raw[scored].mean() if scored.any() else math.nan,
            "clipped_share": (capped > clip).mean(),
            "guarded_share": guarded.mean(),
            "empty_share": is_empty.mean(),
            "unscored_share": (~scored & ~is_empty).mean(),
            "words": words.mean(),
            "distinct_trigrams": distinct_trigrams(texts),
        }
        self.last = {key: float(number) for key, number in metrics.items() if math.isfinite(number)}
        return value, lowest

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


def rubric_function(reward: PolicyReward) -> Callable[..., Awaitable[list[float]]]:
    """The group reward function of a `verifiers.Rubric` (verifiers 0.1).

    A Rubric recognises a function for groups by its parameters' names. It logs an exception and
    goes on with 0 for all: watch its log.

    Args:
        reward: its `prompt_column` is a key of the rollouts' `info`.

    Returns:
        A coroutine function of prompts, completions and infos; a float for each rollout.
    """
    column = reward.prompt_column

    async def grouped(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        infos: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[float]:
        if column is not None:
            infos = [{}] * len(completions) if infos is None else infos
            prompts = [_value_of(info, column, "a rollout's info") for info in infos]
        return await asyncio.to_thread(reward.numbers, prompts, completions)

    grouped.__name__ = reward.__name__
    return grouped


def trace_function(reward: PolicyReward) -> Callable[..., Awaitable[float]]:
    """The reward function of a task in `verifiers.v1` (verifiers 0.4), for one rollout.

    Call it in a method marked `@vf.reward`, or name it in the task's config. To compare the
    rollouts of a task, give `reward.numbers` all of them in the environment's `finalize`.

    Args:
        reward: its `prompt_column` is a field of the task's data.

    Returns:
        A coroutine function of `task` (the task's data) and `trace`.

    Raises:
        ConfigError: its scaling is not sigmoid: one rollout has no rank, and with raw rewards no
            lowest one that is sure to be below that of any story.
    """
    if reward.shaping.scaling != "sigmoid":
        raise ConfigError(
            f"scaling is {reward.shaping.scaling}, and a task's reward function sees one rollout, "
            "which has no rank and no lowest reward: choose sigmoid, or call reward.numbers in the "
            "environment's finalize"
        )
    column = reward.prompt_column

    async def single(task: Any, trace: Any) -> float:
        prompt = getattr(task, column or "prompt")
        (number,) = await asyncio.to_thread(reward.numbers, [prompt], [trace.last_reply])
        return number

    single.__name__ = reward.__name__
    return single


def _value_of(columns: Mapping[str, Any], column: str, where: str) -> Any:
    if column not in columns:
        raise ConfigError(
            f"prompt_column is {column}, and {where} has no such key "
            f"({', '.join(sorted(columns))}): name the one with the writing prompt"
        )
    return columns[column]


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0 to 1, ties sharing the mean of theirs; 1/2 for one alone."""
    if len(values) < 2:
        return np.full(len(values), 0.5)
    wins = np.sign(values[:, None] - values).sum(1)
    shares: np.ndarray = (wins / (len(values) - 1) + 1) / 2
    return shares


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
    if isinstance(content, Mapping):
        content = [content]
    messages = [message for message in content or () if _part(message, "role") == role]
    inner = _part(messages[-1], "content") if messages else ""
    if inner is None or isinstance(inner, str):
        return inner or ""
    return "".join(_part(part, "text") or "" for part in inner)


def _part(message: Any, key: str) -> Any:
    return message.get(key) if isinstance(message, Mapping) else getattr(message, key, None)
