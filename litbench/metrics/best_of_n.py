"""Best of n: the gain from choosing the story with the highest reward among n.

All figures come from one set of N stories per prompt. Each story is the best of a random subset of
n with a known probability (`choice_weights`), so every story is used at every n. Rewards are
comparable only within a prompt, so gains are relative to the mean of the prompt's stories.

With a second rater, the same weights give its reward of the chosen story. The first rater's gain
never falls as n grows; where the second's stops rising, a larger n over-optimises the first (Gao,
Schulman and Hilton, 2023, Scaling laws for reward model overoptimization).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from litbench.metrics.intervals import Interval, jackknife_interval, mean_interval


@dataclass(frozen=True)
class PromptStories:
    """The stories of one prompt; shape (N,) each.

    Attributes:
        prompt: key that intervals cluster by.
        rewards: rewards by the rater that chooses.
        n_words: lengths in words.
        second: rewards by a second rater, in its own units; None without a second rater.
    """

    prompt: str
    rewards: np.ndarray
    n_words: np.ndarray
    second: np.ndarray | None = None


@dataclass(frozen=True)
class Choice:
    """The best of n stories, averaged over prompts.

    Attributes:
        n: number of stories chosen from.
        kl: see `kl_bound`.
        gain: reward of the chosen story minus the mean reward of the prompt's stories.
        words: length of the chosen story over the mean length of the prompt's stories.
        second_gain: `gain` by the second rater; None without a second rater.
        beats_random: share of the prompt's other stories to which the second rater prefers the
            chosen one, a tie counting one half; None without a second rater.
    """

    n: int
    kl: float
    gain: Interval
    words: Interval
    second_gain: Interval | None
    beats_random: Interval | None


def kl_bound(n: int) -> float:
    """Upper bound of the Kullback-Leibler divergence of best-of-n from the writer, in nats.

    log n - (n - 1) / n (Stiennon et al., 2020, Learning to summarize from human feedback, appendix
    G.3). It is only a bound if rewards can tie (Beirami et al., 2024, Theoretical guarantees on the
    best-of-n alignment policy).
    """
    return math.log(n) - (n - 1) / n


def choice_weights(rewards: np.ndarray, n: int) -> np.ndarray:
    """Probability of each story being the best of a random subset of n.

    The story with the i-th lowest of N rewards is the best of C(i - 1, n - 1) of the C(N, n)
    subsets; a mean with these weights is an unbiased estimate for the best of n new stories
    (Nakano et al., 2021, WebGPT, appendix I). Equal rewards share their probability.

    Args:
        rewards: shape (N,).
        n: from 1 to N.

    Returns:
        float64, shape (N,); their sum is 1.
    """
    count = len(rewards)
    order = np.argsort(rewards, kind="stable")
    # C(i - 1, n - 1) / C(N, n) from rank to rank, since each of the two overflows.
    by_rank = np.zeros(count)
    weight = n / count
    for rank in range(count - 1, n - 2, -1):
        by_rank[rank] = weight
        if rank:
            weight *= (rank - n + 1) / rank
    weights = np.empty(count)
    weights[order] = by_rank
    _, group = np.unique(rewards, return_inverse=True)
    shared: np.ndarray = (np.bincount(group, weights) / np.bincount(group))[group]
    return shared


def beats_others(second: np.ndarray) -> np.ndarray:
    """Share of the other stories that each story beats, a tie counting one half; shape (N,)."""
    above = (second[:, None] > second[None, :]) + 0.5 * (second[:, None] == second[None, :])
    share: np.ndarray = (above.sum(1) - 0.5) / (len(second) - 1)
    return share


def sizes(fewest: int) -> list[int]:
    """The values of n on a curve: the powers of two up to `fewest`, and `fewest`.

    `fewest` is the smallest number of stories of a prompt.
    """
    return sorted({1 << power for power in range(fewest.bit_length())} | {fewest})


def best_of_n(prompts: Sequence[PromptStories], ns: Sequence[int]) -> list[Choice]:
    """The gain at every n; every prompt has the same weight.

    Args:
        prompts: each with at least two stories, and at least as many as the largest n.
        ns: values of n, see `sizes`.
    """
    names = [stories.prompt for stories in prompts]
    second = [stories.second for stories in prompts if stories.second is not None]
    choices = []
    for n in ns:
        weights = [choice_weights(stories.rewards, n) for stories in prompts]

        def expected(values: Iterable[np.ndarray], of: list[np.ndarray] = weights) -> np.ndarray:
            """The expected value for the chosen story of each prompt."""
            return np.array([weight @ value for weight, value in zip(of, values, strict=True)])

        lengths = [stories.n_words / max(stories.n_words.mean(), 1.0) for stories in prompts]
        gains = expected(stories.rewards - stories.rewards.mean() for stories in prompts)
        second_gain = beats = None
        if second:
            second_gain = mean_interval(expected(of - of.mean() for of in second), names)
            # Rounding may exceed 1. At n = 1 the share is one half by construction.
            shares = np.clip(expected(map(beats_others, second)), 0.0, 1.0)
            beats = mean_interval(shares, names) if n == 1 else jackknife_interval(shares, names)
        words = mean_interval(expected(lengths), names)
        kl = kl_bound(n)
        choices.append(Choice(n, kl, mean_interval(gains, names), words, second_gain, beats))
    return choices


def best_of_n_text(choices: Sequence[Choice]) -> str:
    """The curve as text for a terminal."""
    first = choices[0].gain
    lines = [
        f"best of n: {first.clusters} prompts, 95 % intervals by prompt; gains are within a prompt",
        "",
        f"{'n':>4}  {'KL <=':>6}  {'gain in reward':<24}  {'length':>7}"
        + ("" if choices[0].beats_random is None else f"  {'beats a random one':<21}"),
    ]
    for row in choices:
        beats = "" if row.beats_random is None else f"  {row.beats_random!s:<21}"
        lines.append(
            f"{row.n:>4}  {row.kl:>6.2f}  {row.gain!s:<24}  {row.words.mean:>7.3f}{beats}".rstrip()
        )
    return "\n".join(lines)
