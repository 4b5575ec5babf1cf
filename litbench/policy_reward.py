"""A rater as the reward of reinforcement learning: for trl's GRPOTrainer and for verifiers.

    reward = PolicyReward.load("runs/verifier/model", RewardShaping(scaling="rank", clip=0.95),
                               references=(prompts, human_stories))
    trainer = GRPOTrainer(policy, reward_funcs=reward, ...)        # trl
    rubric = vf.Rubric(funcs=[rubric_function(reward)])            # verifiers, Rubric
    score = trace_function(reward)                                 # verifiers.v1, Task

A policy finds whatever a rater is wrong about. What stands between them, in this order, for story
s of prompt p with reward r and w words:

1. length guard `penalty`: with the range [a, b] of words, a story with w > b gets the lesser of
   its own reward and that of its first b words, so that text beyond b can never earn anything;
2. reference clipping: r := min(r, Q), Q being a quantile of human stories' rewards, so that what
   no human story reaches earns nothing more;
3. scaling: raw; sigmoid, 1 / (1 + exp(-(r - centre) / width)); or the rank among the completions
   of the same prompt in the call, from 0 to 1, ties sharing the mean of their ranks;
4. length guard: `penalty` takes penalty * (w - b) / b, or penalty * (a - w) / a, off; `cut` gives
   a story outside the range the lowest reward instead.

By 1 and 4 a story that is too long always gets less than its own first b words would in its
place. The lowest reward is the least that any other completion of the prompt got in the call (and
at most 0 where rewards are scaled) minus the penalty.

Rewards are comparable within a prompt only, and GRPO compares within a prompt. Quantiles, centres
and lengths are those of the prompt's own human stories where there are `least_references`, and
else those of all prompts together, with their offsets in them.
"""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, get_type_hints

import numpy as np
import pyarrow as pa

from litbench.errors import ConfigError, DataError, ModelError
from litbench.metrics.diversity import distinct_trigrams
from litbench.scoring import load_scorer, scorer_entry, scorer_spec
from litbench.text import count_words, prompt_key


class GivesRewards(Protocol):
    """Any rater that gives each story a reward of its own, such as a `ScoreRater`."""

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Rewards, float64, shape (n,)."""


@dataclass(frozen=True)
class RewardShaping:
    """What becomes of a rater's reward before a policy sees it; see the module for the formulas.

    Attributes:
        scaling: raw, sigmoid or rank.
        centre: reward that sigmoid maps to 1/2; the median of the reference stories when not given.
        width: of the sigmoid, in units of the reward; the references' standard deviation when not
            given. With 1 and a Bradley-Terry model, sigmoid is the probability of beating a story
            whose reward is `centre`.
        guard: what a story outside the range of words gets: none, penalty or cut.
        shortest: least words of the range; a quantile of the reference stories when not given.
        longest: most words, likewise.
        length_quantiles: those quantiles.
        penalty: taken off a story of twice the most words, or one with hardly any; in units of
            the scaled reward. Also the distance of the lowest reward from the others.
        clip: quantile of the reference stories' rewards above which nothing more is earned; None
            for no clipping.
        least_references: reference stories a prompt needs to go by its own; others go by those of
            all prompts.
        empty: what a completion without any word gets: the lowest reward, or none, which trl
            leaves out of its group (verifiers knows no such thing and gets the lowest).
    """

    scaling: Literal["raw", "sigmoid", "rank"] = "raw"
    centre: float | None = None
    width: float | None = None
    guard: Literal["none", "penalty", "cut"] = "penalty"
    shortest: int | None = None
    longest: int | None = None
    length_quantiles: tuple[float, float] = (0.05, 0.95)
    penalty: float = 1.0
    clip: float | None = None
    least_references: int = 8
    empty: Literal["lowest", "none"] = "lowest"

    def __post_init__(self) -> None:
        for key in ("scaling", "guard", "empty"):
            known = get_args(get_type_hints(RewardShaping)[key])
            if getattr(self, key) not in known:
                raise ConfigError(f"{key} is {getattr(self, key)!r}: choose of {', '.join(known)}")
        for key in ("centre", "width", "penalty"):
            number = getattr(self, key)
            if number is not None and not math.isfinite(number):
                raise ConfigError(f"{key} is {number}: give a finite number")
        low, high = self.length_quantiles
        if not 0 <= low < high <= 1:
            raise ConfigError(
                f"length_quantiles is {list(self.length_quantiles)}: give two from 0 to 1, rising"
            )
        if self.clip is not None and not 0 < self.clip <= 1:
            raise ConfigError(f"clip is {self.clip}: give a quantile above 0 and up to 1, or null")
        if self.width is not None and not self.width > 0:
            raise ConfigError(f"width is {self.width}: give a number above 0")
        if self.penalty < 0 or (self.guard == "penalty" and self.penalty == 0):
            raise ConfigError(
                f"penalty is {self.penalty}: give a number above 0, or set guard to none"
            )
        if self.shortest is not None and self.shortest < 1:
            raise ConfigError(f"shortest is {self.shortest}: give at least 1 word")
        if self.longest is not None and self.longest < (self.shortest or 1):
            raise ConfigError(f"longest is {self.longest}: give at least as many as shortest")
        if self.least_references < 1:
            raise ConfigError(f"least_references is {self.least_references}: give at least 1")

    def needs_references(self) -> list[str]:
        """The keys that cannot be filled in without reference stories."""
        missing = [] if self.clip is None else ["clip"]
        if self.guard != "none":
            missing += [key for key in ("shortest", "longest") if getattr(self, key) is None]
        if self.scaling == "sigmoid":
            missing += [key for key in ("centre", "width") if getattr(self, key) is None]
        return missing


@dataclass(frozen=True)
class _Frame:
    """What one prompt's completions are held against; fields as in RewardShaping, filled in."""

    shortest: float = 0.0
    longest: float = np.inf
    clip: float = np.inf
    centre: float = 0.0
    width: float = 1.0


@dataclass(frozen=True)
class Shaped:
    """Rewards of some completions and how they came about; arrays of shape (n,).

    Attributes:
        rewards: what the policy gets; NaN where a completion has none.
        lowest: what a completion gets that earned nothing.
        raw: the rater's own rewards; NaN for a completion without words or that it did not score.
        words: of each completion.
        clipped: whether reference clipping lowered it.
        guarded: whether its length is outside the range.
        empty: whether it has no words.
        group: how many completions of its prompt were in the call, itself among them.
        diversity: share of distinct trigrams; see litbench.metrics.diversity.
    """

    rewards: np.ndarray
    lowest: np.ndarray
    raw: np.ndarray
    words: np.ndarray
    clipped: np.ndarray
    guarded: np.ndarray
    empty: np.ndarray
    group: np.ndarray
    diversity: float

    def metrics(self) -> dict[str, float]:
        """Means over the call, without those that nothing can be said of."""
        scored = np.isfinite(self.raw)
        found = {
            "raw": float(self.raw[scored].mean()) if scored.any() else np.nan,
            "clipped_share": float(self.clipped.mean()),
            "guarded_share": float(self.guarded.mean()),
            "empty_share": float(self.empty.mean()),
            "unscored_share": float((~scored & ~self.empty).mean()),
            "words": float(self.words.mean()),
            "distinct_trigrams": self.diversity,
            # 1 means that rank scaling has nobody to compare with: the batch splits the groups.
            "group_size": float(self.group.mean()),
        }
        return {name: value for name, value in found.items() if np.isfinite(value)}

    def numbers(self) -> list[float]:
        """Rewards for those who know no missing ones: the lowest in their place."""
        found: list[float] = np.where(np.isfinite(self.rewards), self.rewards, self.lowest).tolist()
        return found


class PolicyReward:
    """A rater as a reward function of trl's GRPOTrainer; see the module.

    Called as trl calls it, it returns a reward for every completion, or None for one that the
    rater gave no finite reward, which trl leaves out of its group. Completions and prompts are
    texts or lists of messages; of messages the last one of the assistant is the story, and the
    last one of the user the prompt.

    Attributes:
        rater: gives the rewards.
        shaping: what becomes of them.
        prompt_column: where the prompt is read.
        last: what the last call logged.

    Args:
        rater: gives the rewards.
        shaping: what becomes of them.
        references: prompts and human stories, of the same length.
        prompt_column: column of the data set (in verifiers: key of `info`) with the prompt as the
            rater knows it, where the policy's prompt says more, such as instructions.
        story_of: takes what is no story out of a completion's text, such as thoughts.
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
        self.prompt_column = prompt_column
        self._story_of = story_of
        missing = self.shaping.needs_references()
        if references is None or not len(references[1]):
            if missing:
                raise ConfigError(
                    f"{', '.join(missing)}: to be taken from reference stories, and there are "
                    "none: give human stories, or these numbers (guard: none for no guard)"
                )
            self._overall = _filled_in(self.shaping, np.zeros(0), np.zeros(0))
            self._frames: dict[str, _Frame] = {}
            return
        prompts, stories = references
        if len(prompts) != len(stories):
            raise DataError(
                f"references: {len(prompts)} prompts and {len(stories)} stories: give a prompt for "
                "every story"
            )
        words = _count(stories)
        if not words.all():
            raise DataError(
                f"references: {int((words == 0).sum())} of {len(words)} stories have no words: "
                "leave them out"
            )
        rewards = np.asarray(rater.score(prompts, stories), dtype=np.float64)
        if not np.isfinite(rewards).all():
            raise ModelError(
                f"{int((~np.isfinite(rewards)).sum())} of {len(rewards)} reference stories got a "
                "reward that is not finite: check the model's weights and precision"
            )
        self._overall = _filled_in(self.shaping, rewards, words)
        if self._overall.width <= 0:
            raise ConfigError("all reference stories have one reward: give the width of sigmoid")
        rows: dict[str, list[int]] = {}
        for row, prompt in enumerate(prompts):
            rows.setdefault(prompt_key(prompt), []).append(row)
        own = {
            key: _filled_in(self.shaping, rewards[places], words[places])
            for key, places in rows.items()
            if len(places) >= self.shaping.least_references
        }
        self._frames = {key: frame for key, frame in own.items() if frame.width > 0}

    @classmethod
    def load(
        cls,
        path: str | Path,
        shaping: RewardShaping | None = None,
        *,
        device: str | None = None,
        **options: Any,
    ) -> "PolicyReward":
        """Load the rater from a model folder.

        Args:
            path: see `litbench.scoring.scorer_entry`.
            shaping: see RewardShaping.
            device: such as cuda or cpu, for a reward model.
            options: as of the class.

        Raises:
            ConfigError: an option that does not fit the kind of rater.
            ModelError: it cannot be loaded.
        """
        rater = load_scorer(scorer_spec(scorer_entry(str(path), device)))
        return cls(rater, shaping, **options)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Reward completions as trl asks for it.

        Args:
            prompts: texts or lists of messages; shape (n,).
            completions: likewise.
            log_metric: trl's; gets every entry of `Shaped.metrics` under this reward's name.
            log_extra: trl's; gets the rater's own rewards and the words.
            columns: the data set's other columns, and what else trl hands over.

        Raises:
            ConfigError: there is no column `prompt_column`.
            ModelError: no reward of the call is finite.
        """
        given = prompts if self.prompt_column is None else columns.get(self.prompt_column)
        if given is None:
            raise ConfigError(
                f"prompt_column is {self.prompt_column}, and the data set has no such column "
                f"({', '.join(sorted(columns))}): name the one with the writing prompt"
            )
        shaped = self.shape(given, completions)
        if log_metric is not None:
            for metric, value in self.last.items():
                log_metric(f"{self.__name__}/{metric}", value)
        if log_extra is not None:
            log_extra(f"{self.__name__}_raw", _optional(shaped.raw))
            log_extra(f"{self.__name__}_words", shaped.words.tolist())
        return _optional(shaped.rewards)

    def shape(self, prompts: Sequence[Any], completions: Sequence[Any]) -> Shaped:
        """Score completions and shape their rewards; completions of one prompt are its group.

        Raises:
            DataError: a prompt has no text, or they are not as many as the completions.
            ModelError: no reward of the call is finite, though some have words.
        """
        shaping = self.shaping
        if len(prompts) != len(completions):
            raise DataError(
                f"{len(prompts)} prompts and {len(completions)} completions: give a prompt for "
                "every completion"
            )
        texts = [_text_of(completion, "assistant") for completion in completions]
        if self._story_of is not None:
            texts = [self._story_of(text) for text in texts]
        asked = [_text_of(prompt, "user") for prompt in prompts]
        for place, prompt in enumerate(asked):
            if not prompt.strip():
                raise DataError(
                    f"prompt {place} has no text of the user: {prompts[place]!r:.80}: give texts "
                    "or messages, or name the column with the writing prompt as prompt_column"
                )
        keys = [prompt_key(prompt) for prompt in asked]
        frames = [self._frames.get(key, self._overall) for key in keys]
        words = _count(texts)
        empty = words == 0
        lowest_words = np.array([frame.shortest for frame in frames])
        most_words = np.array([frame.longest for frame in frames])
        beyond = np.maximum(words - most_words, 0) / most_words
        below = np.maximum(1 - words / np.maximum(lowest_words, 1), 0) * (lowest_words > 0)
        outside = beyond + below
        guarded = (outside > 0) & ~empty
        raw, capped = self._scored(asked, texts, empty, (beyond > 0) & ~empty, most_words)
        clip = np.array([frame.clip for frame in frames])
        clipped = capped > clip
        value = np.minimum(capped, clip)
        groups = [np.flatnonzero(np.array(keys) == key) for key in dict.fromkeys(keys)]
        if shaping.scaling == "sigmoid":
            centre = np.array([frame.centre for frame in frames])
            width = np.array([frame.width for frame in frames])
            value = 1 / (1 + np.exp(-np.clip((value - centre) / width, -500, 500)))
        out = guarded & (shaping.guard == "cut")
        if shaping.scaling == "rank":
            for rows in groups:
                # Who gets the lowest reward anyway is nobody's rival.
                inside = rows[np.isfinite(value[rows]) & ~out[rows]]
                value[inside] = _ranks(value[inside])
        if shaping.guard == "penalty":
            value = value - shaping.penalty * outside
        lowest = np.zeros(len(texts))
        size = np.zeros(len(texts))
        usable = np.isfinite(value) & ~out
        # Of a group that was split over processes, no other may be here.
        least_of_all = float(value[usable].min(initial=np.inf)) if usable.any() else 0.0
        for rows in groups:
            least = float(value[rows][usable[rows]].min(initial=np.inf))
            least = least if math.isfinite(least) else least_of_all
            floor = least if shaping.scaling == "raw" else min(least, 0.0)
            lowest[rows] = floor - shaping.penalty
            size[rows] = len(rows)
        value[out] = lowest[out]
        if shaping.empty == "lowest":
            value[empty] = lowest[empty]
        shaped = Shaped(
            value, lowest, raw, words, clipped, guarded, empty, size, distinct_trigrams(texts)
        )
        self.last = shaped.metrics() if texts else {}
        return shaped

    def _scored(
        self,
        prompts: list[str],
        texts: list[str],
        empty: np.ndarray,
        too_long: np.ndarray,
        most_words: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = np.flatnonzero(~empty)
        long_rows = np.flatnonzero(too_long & (self.shaping.guard == "penalty"))
        starts = _first_words([texts[row] for row in long_rows], most_words[long_rows])
        raw = np.full(len(texts), np.nan)
        if not len(rows):
            return raw, raw.copy()
        found = np.asarray(
            self.rater.score(
                [prompts[row] for row in (*rows, *long_rows)],
                [texts[row] for row in rows] + starts,
            ),
            dtype=np.float64,
        )
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


def rubric_function(
    reward: PolicyReward,
) -> Callable[..., Awaitable[list[float]]]:
    """The group reward function of a `verifiers.Rubric` (verifiers 0.1).

    A Rubric takes a function for a group's by its parameters' names, and gives rollouts that
    belong together to it at once. It logs an exception and goes on with 0 for all: keep an eye on
    its log.

    Args:
        reward: shapes the rewards; its `prompt_column` is a key of the rollouts' `info`.

    Returns:
        A coroutine function of prompts, completions and infos; a float for each rollout. Calls
        are made one after another in a thread, so that the loop goes on.
    """
    lock = threading.Lock()
    column = reward.prompt_column

    async def grouped(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        infos: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[float]:
        if column is not None and infos is None:
            raise ConfigError(f"prompt_column is {column}, and the rollouts have no info: give it")
        given = prompts if column is None else [_info(info, column) for info in infos or ()]
        return await asyncio.to_thread(_locked, lock, reward, given, completions)

    grouped.__name__ = reward.__name__
    return grouped


def trace_function(reward: PolicyReward) -> Callable[..., Awaitable[float]]:
    """The reward function of a task in `verifiers.v1` (verifiers 0.4), for one rollout.

    Call it in a method marked `@vf.reward`, or name it in the task's config. There a rollout is
    rewarded alone; to compare those of one task, give `reward.shape` all of them in the
    environment's `finalize`.

    Args:
        reward: shapes the rewards; its `prompt_column` is a field of the task's data.

    Returns:
        A coroutine function of `task` (the task's data) and `trace`.

    Raises:
        ConfigError: its scaling is rank, and one rollout has no rank; or raw, which has no lowest
            reward for a rollout that is empty or cut: it might be above that of any story.
    """
    if reward.shaping.scaling != "sigmoid":
        raise ConfigError(
            f"scaling is {reward.shaping.scaling}, and a task's reward function sees one rollout, "
            "which has no rank and no lowest reward: choose sigmoid, or call reward.shape in the "
            "environment's finalize"
        )
    lock = threading.Lock()
    column = reward.prompt_column

    async def single(task: Any, trace: Any) -> float:
        prompt = task.prompt if column is None else getattr(task, column)
        found = await asyncio.to_thread(_locked, lock, reward, [prompt], [trace.last_reply])
        return found[0]

    single.__name__ = reward.__name__
    return single


def _locked(
    lock: threading.Lock, reward: PolicyReward, prompts: Sequence[Any], completions: Sequence[Any]
) -> list[float]:
    with lock:
        return reward.shape(prompts, completions).numbers()


def _info(info: Mapping[str, Any], column: str) -> Any:
    if column not in info:
        raise ConfigError(
            f"prompt_column is {column}, and a rollout's info has no such key "
            f"({', '.join(sorted(info))}): name the one with the writing prompt"
        )
    return info[column]


def _filled_in(shaping: RewardShaping, rewards: np.ndarray, words: np.ndarray) -> _Frame:
    low, high = shaping.length_quantiles
    guards, bends = shaping.guard != "none", shaping.scaling == "sigmoid"

    def given(number: float | None, wanted: bool, otherwise: float, found: Any) -> float:
        if not wanted:
            return otherwise
        return float(found()) if number is None else float(number)

    shortest = given(shaping.shortest, guards, 0.0, lambda: np.quantile(words, low))
    longest = given(shaping.longest, guards, np.inf, lambda: np.quantile(words, high))
    return _Frame(
        shortest=shortest,
        longest=max(longest, shortest),
        clip=np.inf if shaping.clip is None else float(np.quantile(rewards, shaping.clip)),
        centre=given(shaping.centre, bends, 0.0, lambda: np.median(rewards)),
        width=given(shaping.width, bends, 1.0, lambda: np.std(rewards)),
    )


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0 to 1, ties sharing the mean of theirs; 1/2 for one alone."""
    if len(values) < 2:
        return np.full(len(values), 0.5)
    wins = (values[:, None] > values[None]).sum(1)
    ties = (values[:, None] == values[None]).sum(1) - 1
    shares: np.ndarray = (wins + ties / 2) / (len(values) - 1)
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
    if not messages:
        return ""
    inner = _part(messages[-1], "content")
    if inner is None or isinstance(inner, str):
        return inner or ""
    return "".join(_part(part, "text") or "" for part in inner)


def _part(message: Any, key: str) -> Any:
    return message.get(key) if isinstance(message, Mapping) else getattr(message, key, None)


def _optional(values: np.ndarray) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]
