"""Simulate stories of known quality and readers who vote on them.

The simulation makes no claim about real readers. Each prompt has an audience of lognormal size.
Readers arrive at a rate that grows as 1 - exp(-t / growth_hours) and decays as
exp(-t / decay_hours). Stories are posted with exponential delays. A story is seen by the readers
who arrive after it was posted. The share of them who see it falls with its age as
exp(-age / fade_hours) and with its rank among the prompt's stories as rank ** -ranking, times a
lognormal luck factor. Each reader who sees a story votes up with probability

    sigmoid(base + quality_weight * quality + length_weight * log length + fame_weight * fame
            + noise)

and down with a small fixed probability; quality, log length and fame are standardised. A weight,
spread, correlation or growth time of 0 disables an effect, as does an infinite decay time (`.inf`
in YAML). The random numbers of the other effects do not change.
"""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from litbench.config import as_plain, build
from litbench.curation.invented_texts import invented_prompts, invented_texts, styles_of
from litbench.records import STORIES

# Invented words have no tokenizer; English prose has about this many tokens per word.
TOKENS_PER_WORD = 1.3

_HOUR = 3_600
_READ_AFTER = 7 * 24 * _HOUR
# More than the world's population; keeps a wide spread within int64.
_MOST_READERS = 1e10
# Greater than any score, to combine prompt and score into one sort key.
_ABOVE_SCORES = 2**38

Streams = Callable[[str], np.random.Generator]
Seed = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Weight = Annotated[float, Field(ge=-100, le=100)]
Spread = Annotated[float, Field(ge=0, le=10)]
Share = Annotated[float, Field(ge=0, le=1)]
Correlation = Annotated[float, Field(ge=-1, le=1)]
Hours = Annotated[float, Field(ge=0, le=1e6)]
Decay = Annotated[float, Field(ge=1e-6)]


@dataclass(frozen=True)
class ReaderSimulation:
    """How readers arrive, what they see and how they vote.

    Attributes:
        seed: seed of the readers' random numbers.
        audience: median number of readers of a prompt.
        audience_spread: standard deviation of log audience between prompts.
        decay_hours: time in which the rate of new readers falls to 1/e. If infinite, all readers
            arrive after all stories, so posting times do not matter.
        growth_hours: time constant of the rate's initial growth; 0 means no growth phase.
        fade_hours: age at which a story is shown to 1/e of the new readers. If infinite, it is
            always shown to all.
        ranking: the story ranked j by votes so far is seen with probability j ** -ranking; 0 means
            that rank does not matter.
        steps: number of times that stories are ranked while readers arrive; used with `ranking`.
        delay_hours: mean time from prompt to story.
        base: log-odds of an upvote for an average story.
        quality_weight: change in log-odds per standard deviation of quality.
        length_weight: change in log-odds per standard deviation of log length, the preference that
            length symmetry is meant to cancel.
        fame_weight: change in log-odds per standard deviation of the author's fame.
        noise: standard deviation of a random shift in log-odds per story.
        luck: standard deviation of a story's log exposure.
        down: probability of a downvote.
        start_utc: earliest time of a prompt, Unix seconds.
        end_utc: latest time of a prompt; votes are read a week after its last story.
    """

    seed: Seed = 1
    audience: Annotated[float, Field(ge=1e-6, le=1e9)] = 420.0
    audience_spread: Spread = 0.7
    decay_hours: Decay = 14.0
    growth_hours: Hours = 0.0
    fade_hours: Decay = math.inf
    ranking: Spread = 0.0
    steps: Annotated[int, Field(ge=1, le=10_000)] = 24
    delay_hours: Hours = 7.0
    base: Weight = -2.3
    quality_weight: Weight = 0.7
    length_weight: Weight = 0.35
    fame_weight: Weight = 0.0
    noise: Spread = 0.35
    luck: Spread = 0.35
    down: Share = 0.015
    start_utc: Seed = 1_577_836_800
    end_utc: int = 1_672_531_200


@dataclass(frozen=True)
class World:
    """Prompts, authors, stories of known quality and their readers.

    Attributes:
        seed: seed of all random numbers. Changing only `readers.seed` gives the same stories other
            readers.
        prompts: number of prompts.
        stories_per_prompt: mean number of stories of a prompt; every prompt has at least one.
        stories_spread: standard deviation of the log number of stories between prompts.
        stories_audience: correlation of log audience and log number of stories.
        median_words: median length of a story.
        words_spread: standard deviation of log length.
        quality_length: correlation of quality and log length.
        quality_delay: correlation of quality and the normal score of the posting delay; if
            positive, late stories are better.
        authors: number of authors, who write equally often on average.
        author_quality: share of the variance of quality that is due to the author.
        fame_quality: correlation of an author's fame and quality.
        style: share of the variance of quality that the style of a text explains.
        readers: how readers arrive and vote.
    """

    seed: Seed = 1
    prompts: Count = 1_000
    stories_per_prompt: Annotated[float, Field(ge=1, le=1e7)] = 8.0
    stories_spread: Annotated[float, Field(ge=0, le=3)] = 0.0
    stories_audience: Correlation = 0.0
    median_words: Annotated[float, Field(ge=1, le=1e5)] = 420.0
    words_spread: Annotated[float, Field(ge=0, le=3)] = 0.7
    quality_length: Correlation = 0.0
    quality_delay: Correlation = 0.0
    authors: Count = 2_000
    author_quality: Share = 0.3
    fame_quality: Correlation = 0.0
    style: Annotated[float, Field(ge=0, le=0.95)] = 0.6
    readers: ReaderSimulation = field(default_factory=ReaderSimulation)


def changed_world(base: World, changes: Mapping[str, Any], where: str) -> World:
    """Return a world with some keys changed; keys of readers are dotted: `readers.ranking`."""
    values = as_plain(base)
    for key, value in changes.items():
        of_readers = key.startswith("readers.")
        (values["readers"] if of_readers else values)[key.removeprefix("readers.")] = value
    return build(World, values, where)


@dataclass(frozen=True)
class SimulatedVotes:
    """Votes on n stories; every array has shape (n,) and type int64.

    Attributes:
        created_utc: time of posting, Unix seconds.
        score_utc: time at which the votes were read, Unix seconds.
        score: upvotes minus downvotes.
        readers: number of readers who saw the story, never less than the score.
    """

    created_utc: np.ndarray
    score_utc: np.ndarray
    score: np.ndarray
    readers: np.ndarray


@dataclass(frozen=True)
class SimulatedWorld:
    """The n stories of a world, sorted by prompt; every array has shape (n,).

    Attributes:
        world: the parameters.
        prompt: index of the prompt, int64, ascending.
        quality: true quality, float64, standard normal.
        n_words: length, int64.
        author: index of the author, int64.
        votes: votes of the simulated readers.
    """

    world: World
    prompt: np.ndarray
    quality: np.ndarray
    n_words: np.ndarray
    author: np.ndarray
    votes: SimulatedVotes


def simulate_votes(
    prompt_ids: Sequence[str],
    quality: Sequence[float],
    n_words: Sequence[int],
    options: ReaderSimulation,
) -> SimulatedVotes:
    """Simulate posting times and votes of n given stories; `fame_weight` is ignored."""
    random = np.random.default_rng(options.seed)
    prompts, prompt_of = np.unique(np.asarray(prompt_ids), return_inverse=True)
    taste = options.quality_weight * _standard(np.asarray(quality, dtype=float))
    taste += options.length_weight * _standard(np.log1p(np.asarray(n_words, dtype=float)))
    opened = random.integers(options.start_utc, options.end_utc, len(prompts))
    audience = random.normal(0, options.audience_spread, len(prompts))
    delay = random.exponential(options.delay_hours, len(prompt_of))
    return _read(options, lambda _: random, prompt_of, opened, audience, delay, taste)


def simulate_world(world: World) -> SimulatedWorld:
    """Simulate the stories of a world and their readers.

    Every quantity has its own stream of random numbers, so changing one parameter leaves the other
    random numbers unchanged.
    """
    from scipy.special import log_ndtr  # noqa: PLC0415

    readers, random = world.readers, _streams(world)
    crowd = random("crowd").standard_normal(world.prompts)
    opened = random("opened").integers(readers.start_utc, readers.end_utc, world.prompts)
    busy = _with(world.stories_audience, crowd, random("busy"))
    # Subtracting half the variance keeps the mean independent of the spread.
    log_stories = math.log(world.stories_per_prompt) - world.stories_spread**2 / 2
    stories = np.exp(log_stories + world.stories_spread * busy)
    # Stochastic rounding preserves a fractional mean.
    stories = np.floor(stories + random("stories").random(world.prompts)).astype(np.int64)
    prompt = np.repeat(np.arange(world.prompts), np.maximum(stories, 1))
    author_quality = random("author quality").standard_normal(world.authors)
    fame = _with(world.fame_quality, author_quality, random("fame"))
    author = random("author").integers(world.authors, size=len(prompt))
    quality = _with(math.sqrt(world.author_quality), author_quality[author], random("quality"))
    length = _with(world.quality_length, quality, random("length"))
    n_words = np.exp(math.log(world.median_words) + world.words_spread * length)
    n_words = np.maximum(np.round(n_words), 1).astype(np.int64)
    late = _with(world.quality_delay, quality, random("delay"))
    delay = -readers.delay_hours * log_ndtr(-late)
    taste = readers.quality_weight * quality + readers.fame_weight * fame[author]
    if world.words_spread:
        taste += readers.length_weight * length
    votes = _read(readers, random, prompt, opened, readers.audience_spread * crowd, delay, taste)
    return SimulatedWorld(world, prompt, quality, n_words, author, votes)


def _streams(world: World) -> Streams:
    """Return a function that makes a random generator from a name and the world's seeds."""
    of_readers = ("luck", "readers", "noise", "up", "down")

    def stream(name: str) -> np.random.Generator:
        reader_seed = world.readers.seed if name in of_readers else 0
        return np.random.default_rng([world.seed, reader_seed, zlib.crc32(name.encode())])

    return stream


def _with(correlation: float, values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return standard normal numbers with the given correlation to `values`; same shape."""
    noise = random.standard_normal(values.shape)
    correlated: np.ndarray = correlation * values + math.sqrt(1 - correlation**2) * noise
    return correlated


def _standard(values: np.ndarray) -> np.ndarray:
    """Standardise values; returns zeros if all values are equal."""
    centred: np.ndarray = values - values.mean()
    spread = float(values.std())
    return centred / spread if spread > 0 else centred


def _read(
    options: ReaderSimulation,
    random: Streams,
    prompt_of: np.ndarray,
    opened: np.ndarray,
    log_audience: np.ndarray,
    delay: np.ndarray,
    taste: np.ndarray,
) -> SimulatedVotes:
    """Simulate readers who arrive and vote.

    `opened` (Unix seconds) and `log_audience` (log of audience / median audience) are per prompt.
    `prompt_of` (index of the prompt), `delay` (hours from prompt to story) and `taste` (log-odds of
    an upvote, relative to `base`) are per story.
    """
    count = len(prompt_of)
    audience = (options.audience * np.exp(log_audience))[prompt_of]
    luck = np.exp(random("luck").normal(0, options.luck, count))
    if options.ranking:
        noise = random("noise").normal(0, options.noise, count)
        p_up = 1 / (1 + np.exp(-(options.base + taste + noise)))
        exposure = np.minimum(audience * luck, _MOST_READERS)
        readers, score = _ranked(options, random, prompt_of, exposure, delay, p_up)
    else:
        exposure = audience * _share_seen(options, delay, delay) * luck
        readers = random("readers").poisson(np.minimum(exposure, _MOST_READERS))
        log_odds = options.base + taste + random("noise").normal(0, options.noise, count)
        score = random("up").binomial(readers, 1 / (1 + np.exp(-log_odds)))
        score -= random("down").binomial(readers, options.down)
    created = opened[prompt_of] + np.round(delay * _HOUR).astype(np.int64)
    read = np.zeros(len(opened), dtype=np.int64)
    np.maximum.at(read, prompt_of, created + _READ_AFTER)
    return SimulatedVotes(created, read[prompt_of], score, readers)


def _share_seen(options: ReaderSimulation, delay: np.ndarray, since: np.ndarray) -> np.ndarray:
    """Return the share of the audience that arrives after `since` hours and sees a story.

    This is the integral from `since` of the normalised arrival rate, (1 - exp(-t / growth))
    exp(-t / decay), times exp(-(t - delay) / fade). It is 1 if decay is infinite. Shape (n,).
    """
    if math.isinf(options.decay_hours):
        return np.ones_like(delay)
    decay, growth, fade = options.decay_hours, options.growth_hours, 1 / options.fade_hours
    if not growth and not fade:
        plain: np.ndarray = np.exp(-since / decay)
        return plain
    met = np.exp(-since / decay - (since - delay) * fade) / (1 / decay + fade)
    whole = decay
    if growth:
        unknown = np.exp(-since * (1 / decay + 1 / growth) - (since - delay) * fade)
        met -= unknown / (1 / decay + 1 / growth + fade)
        whole = decay**2 / (decay + growth)
    shares: np.ndarray = met / whole
    return shares


def _ranked(
    options: ReaderSimulation,
    random: Streams,
    prompt_of: np.ndarray,
    exposure: np.ndarray,
    delay: np.ndarray,
    p_up: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate readers who arrive in steps; stories are ranked by score before each step.

    `exposure` is the number of readers who would see a story that always ranks first.

    Returns:
        Readers and score of every story; both int64, shape (n,).
    """
    streams = {name: random(name) for name in ("readers", "up", "down")}
    sorted_prompts = np.sort(prompt_of)
    ranks = np.arange(1, len(prompt_of) + 1) - np.searchsorted(sorted_prompts, sorted_prompts)
    chance = ranks ** -float(options.ranking)
    seen, readers, score = np.empty(len(ranks)), np.zeros_like(ranks), np.zeros_like(ranks)
    for is_posted, share in _steps(options, delay):
        # Sort by prompt, whether the story is posted, and score.
        keys = (prompt_of * 2 + ~is_posted) * _ABOVE_SCORES - score
        order = np.argsort(keys)
        # Stories with equal scores share the mean chance of their ranks.
        group = np.cumsum(np.diff(keys[order], prepend=keys[order[0]]) != 0)
        seen[order] = (np.bincount(group, chance) / np.bincount(group))[group]
        new_readers = streams["readers"].poisson(exposure * share * seen)
        readers += new_readers
        score += streams["up"].binomial(new_readers, p_up)
        score -= streams["down"].binomial(new_readers, options.down)
    return readers, score


def _steps(options: ReaderSimulation, delay: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, per step, which stories are posted before it ends and their audience shares."""
    if math.isinf(options.decay_hours):
        for _ in range(options.steps):
            yield np.ones(len(delay), dtype=bool), np.full(len(delay), 1 / options.steps)
        return
    # Without growth, all steps have equally many readers.
    ends = -options.decay_hours * np.log1p(-np.arange(1, options.steps) / options.steps)
    left = _share_seen(options, delay, delay)
    for end in ends:
        after = _share_seen(options, delay, np.maximum(delay, end))
        yield delay < end, left - after
        left = after
    yield np.ones(len(delay), dtype=bool), left


def stories_table(simulated: SimulatedWorld, *, texts: bool = True) -> pa.Table:
    """Return the stories as a table with the schema STORIES and columns `quality` and `readers`.

    Rows are in the order of `simulated`. If `texts` is false, each text is a placeholder. Otherwise
    it has exactly `n_words` invented words, whose style explains the share `World.style` of the
    variance of quality (`litbench.curation.invented_texts`).
    """
    world, votes, random = simulated.world, simulated.votes, _streams(simulated.world)
    story_ids = [f"s{index}" for index in range(len(simulated.prompt))]
    if texts:
        styles = styles_of(simulated.quality, world.style, random("style"))
        stories = invented_texts(styles, simulated.n_words, random("text"))
        prompts = invented_prompts(world.prompts, random("prompt"))
    else:
        stories = pa.array([f"The text of story {story_id}." for story_id in story_ids])
        prompts = pa.array([f"Prompt {index}" for index in range(world.prompts)])
    columns = {
        "story_id": story_ids,
        "prompt_id": [f"p{prompt}" for prompt in simulated.prompt.tolist()],
        "prompt": prompts.take(pa.array(simulated.prompt)),
        "text": stories,
        "n_words": simulated.n_words,
        "source": ["simulated"] * len(story_ids),
        "score": votes.score,
        "score_utc": votes.score_utc,
        "created_utc": votes.created_utc,
        "author": [f"a{author}" for author in simulated.author.tolist()],
        "flair": pa.nulls(len(story_ids)),
        "n_tokens": np.ceil(simulated.n_words * TOKENS_PER_WORD).astype(np.int64),
    }
    table = pa.table(columns).select(STORIES.arrow().names).cast(STORIES.arrow())
    table = table.append_column("quality", pa.array(simulated.quality))
    return table.append_column("readers", pa.array(votes.readers))
