"""A simulation of readers who vote on stories of known quality.

It gives the sample corpus its times and votes, so that filters, raters and reports can be tried
where the truth is known. It says nothing about people.

For each prompt an audience arrives whose size is lognormal and whose rate decays as
exp(-t / decay_hours). Stories are posted with exponential delays. A story meets those readers
who arrive after it, times a lognormal luck; each votes up with probability
sigmoid(base + quality_weight * quality + length_weight * length + noise) and down with a fixed
small probability. `quality` and log length enter standardised over the corpus.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_HOUR = 3_600


@dataclass(frozen=True)
class ReaderSimulation:
    """Parameters of the simulation.

    Attributes:
        seed: seeds every draw.
        audience: median number of readers a prompt gets.
        audience_spread: standard deviation of log audience between prompts.
        decay_hours: time in which the rate of new readers falls to 1/e.
        delay_hours: mean time from prompt to story.
        base: log-odds that a reader of an average story votes for it.
        quality_weight: change in log-odds per standard deviation of quality.
        length_weight: change in log-odds per standard deviation of log length: the taste for
            length that symmetry is there to cancel.
        noise: standard deviation of a story's own shift in log-odds.
        luck: standard deviation of a story's log exposure.
        down: probability that a reader votes down.
        start_utc: earliest time of a prompt.
        end_utc: latest time of a prompt; votes are read a week after the last story.
    """

    seed: int = 1
    audience: float = 420.0
    audience_spread: float = 0.7
    decay_hours: float = 14.0
    delay_hours: float = 7.0
    base: float = -2.3
    quality_weight: float = 0.7
    length_weight: float = 0.35
    noise: float = 0.35
    luck: float = 0.35
    down: float = 0.015
    start_utc: int = 1_577_836_800
    end_utc: int = 1_672_531_200


@dataclass(frozen=True)
class SimulatedVotes:
    """What the readers did; every array has shape (n,) and type int64.

    Attributes:
        created_utc: when each story was posted, Unix seconds.
        score_utc: when its votes were read.
        score: votes up minus votes down.
    """

    created_utc: np.ndarray
    score_utc: np.ndarray
    score: np.ndarray


def simulate_votes(
    prompt_ids: Sequence[str],
    quality: Sequence[float],
    n_words: Sequence[int],
    options: ReaderSimulation,
) -> SimulatedVotes:
    """Simulate posting times and votes.

    Args:
        prompt_ids: the prompt of each story; shape (n,).
        quality: true quality, any scale; shape (n,).
        n_words: words; shape (n,).
        options: parameters.
    """
    random = np.random.default_rng(options.seed)
    prompts, prompt_of = np.unique(np.asarray(prompt_ids), return_inverse=True)

    def standard(values: np.ndarray) -> np.ndarray:
        centred: np.ndarray = values - values.mean()
        spread = float(values.std())
        return centred / spread if spread > 0 else centred

    taste = options.quality_weight * standard(np.asarray(quality, dtype=float))
    taste += options.length_weight * standard(np.log1p(np.asarray(n_words, dtype=float)))
    count = len(prompt_of)
    opened = random.integers(options.start_utc, options.end_utc, len(prompts))
    audience = options.audience * np.exp(random.normal(0, options.audience_spread, len(prompts)))
    delay = random.exponential(options.delay_hours, count)
    exposure = audience[prompt_of] * np.exp(-delay / options.decay_hours)
    exposure *= np.exp(random.normal(0, options.luck, count))
    readers = random.poisson(exposure)
    log_odds = options.base + taste + random.normal(0, options.noise, count)
    up = random.binomial(readers, 1 / (1 + np.exp(-log_odds)))
    down = random.binomial(readers, options.down)
    created = opened[prompt_of] + np.round(delay * _HOUR).astype(np.int64)
    read = np.zeros(len(prompts), dtype=np.int64)
    np.maximum.at(read, prompt_of, created + 7 * 24 * _HOUR)
    return SimulatedVotes(created, read[prompt_of], (up - down).astype(np.int64))
