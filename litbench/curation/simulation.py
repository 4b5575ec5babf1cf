"""Simulated readers who vote on stories of known quality, and whole worlds of such stories.

They tell what filters, pairing rules and raters do where the truth is known, and give the sample
corpus its times and votes. They say nothing about people.

For each prompt an audience arrives whose size is lognormal and whose rate of arrival first grows
as 1 - exp(-t / growth_hours) and then decays as exp(-t / decay_hours). Stories are posted with
exponential delays. A story meets those readers who arrive after it, fewer as it ages by
exp(-age / fade_hours) and by its place among the prompt's stories, place ** -ranking, times a
lognormal luck. Each of them votes up with probability

    sigmoid(base + quality_weight * quality + length_weight * log length + fame_weight * fame
            + noise)

and down with a fixed small probability; who does both counts for nothing. Quality, log length and
fame enter in standard deviations. A weight, spread, correlation or growth of 0 switches its part
off, and a time of infinity (`.inf` in YAML) its fading; what is off changes no draw of the rest.
"""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.config import as_plain, build, nearest
from litbench.curation.invented_texts import invented_prompts, invented_texts, styles_of
from litbench.errors import ConfigError
from litbench.records import STORIES

_HOUR = 3_600
_READ_AFTER = 7 * 24 * _HOUR
# More readers than there are people; what a wide spread draws beyond them breaks off there.
_MOST_READERS = 1e10
# More votes than a story can have.
_ABOVE_SCORES = 2**38

# Invented words have no tokenizer of their own: as many tokens as a word of English prose takes.
TOKENS_PER_WORD = 1.3

Streams = Callable[[str], np.random.Generator]


def _check(options: Any, low: float, high: float, *names: str, open_low: bool = False) -> None:
    """Raise ConfigError for the first named field outside the range."""
    for name in names:
        value = getattr(options, name)
        # A value that is not a number is in no range.
        inside = low < value <= high if open_low else low <= value <= high
        if not inside:
            least = f"above {low:g}" if open_low else f"{low:g} or more"
            most = "" if math.isinf(high) else f", at most {high:g}"
            raise ConfigError(f"{name} is {value}: give {least}{most}")


def _check_finite(options: Any, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if not math.isfinite(value):
            raise ConfigError(f"{name} is {value}: give a finite number")


@dataclass(frozen=True)
class ReaderSimulation:
    """How readers come, what they meet and how they vote.

    Attributes:
        seed: seeds every draw.
        audience: median number of readers a prompt gets.
        audience_spread: standard deviation of log audience between prompts.
        decay_hours: time in which the rate of new readers falls to 1/e; infinite: the whole
            audience comes when every story is there, and no time of posting matters.
        growth_hours: time in which a prompt becomes known; 0: at once.
        fade_hours: age at which a story is shown to 1/e of the new readers; infinite: to all.
        ranking: a reader meets the story in place j with probability j ** -ranking, places by
            the votes so far: the rich get richer; 0: places do not matter.
        steps: how often stories are placed anew while readers come; only `ranking` needs them.
        delay_hours: mean time from prompt to story.
        base: log-odds that a reader of an average story votes for it.
        quality_weight: change in log-odds per standard deviation of quality.
        length_weight: change in log-odds per standard deviation of log length: the taste for
            length that symmetry is there to cancel.
        fame_weight: change in log-odds per standard deviation of the author's fame.
        noise: standard deviation of a story's own shift in log-odds.
        luck: standard deviation of a story's log exposure.
        down: probability that a reader votes down.
        start_utc: earliest time of a prompt.
        end_utc: latest time of a prompt; votes are read a week after the last story.

    Raises:
        ConfigError: a value out of its range; the message names it.
    """

    seed: int = 1
    audience: float = 420.0
    audience_spread: float = 0.7
    decay_hours: float = 14.0
    growth_hours: float = 0.0
    fade_hours: float = math.inf
    ranking: float = 0.0
    steps: int = 24
    delay_hours: float = 7.0
    base: float = -2.3
    quality_weight: float = 0.7
    length_weight: float = 0.35
    fame_weight: float = 0.0
    noise: float = 0.35
    luck: float = 0.35
    down: float = 0.015
    start_utc: int = 1_577_836_800
    end_utc: int = 1_672_531_200

    def __post_init__(self) -> None:
        """Check the values."""
        _check(self, 0, math.inf, "seed", "start_utc")
        _check(self, 1, 10_000, "steps")
        _check(self, 0, math.inf, "decay_hours", "fade_hours", open_low=True)
        _check(self, 0, 10, "audience_spread", "ranking", "noise", "luck")
        _check(self, 0, 1e9, "audience", open_low=True)
        _check(self, 0, 1e6, "growth_hours", "delay_hours")
        _check(self, 0, 1, "down")
        _check_finite(self, "base", "quality_weight", "length_weight", "fame_weight")
        if self.end_utc <= self.start_utc:
            raise ConfigError(f"end_utc is {self.end_utc}: give a time after start_utc")


@dataclass(frozen=True)
class World:
    """Prompts, authors and stories whose quality is known, and who reads them.

    Attributes:
        seed: seeds every draw, together with the seed of the readers, which alone gives the same
            stories another audience.
        prompts: how many.
        stories_per_prompt: their mean number; at least one is written.
        stories_spread: standard deviation of the log number of stories between prompts.
        stories_audience: correlation of log audience and log number of stories between prompts;
            needs a spread of both.
        median_words: median length of a story.
        words_spread: standard deviation of log length.
        quality_length: correlation of quality and log length: how far longer really is better.
        quality_delay: correlation of quality and (normal score of) the delay of posting: above 0,
            late stories come from better authors.
        authors: how many authors there are; each writes as often as any other.
        author_quality: share of the variance of quality that is its author's.
        fame_quality: correlation of an author's fame and quality.
        style: share of the variance of quality that the style of a text tells, see
            `stories_table`.
        readers: how they come and vote.

    Raises:
        ConfigError: a value out of its range; the message names it.
    """

    seed: int = 1
    prompts: int = 1_000
    stories_per_prompt: float = 8.0
    stories_spread: float = 0.0
    stories_audience: float = 0.0
    median_words: float = 420.0
    words_spread: float = 0.7
    quality_length: float = 0.0
    quality_delay: float = 0.0
    authors: int = 2_000
    author_quality: float = 0.3
    fame_quality: float = 0.0
    style: float = 0.6
    readers: ReaderSimulation = field(default_factory=ReaderSimulation)

    def __post_init__(self) -> None:
        """Check the values."""
        _check(self, 0, math.inf, "seed")
        _check(self, 1, 1e7, "prompts", "authors", "stories_per_prompt")
        _check(self, 1, 1e5, "median_words")
        _check(self, 0, 3, "stories_spread", "words_spread")
        _check(self, -1, 1, "stories_audience", "quality_length", "quality_delay", "fame_quality")
        _check(self, 0, 1, "author_quality")
        _check(self, 0, 0.95, "style")


def changed_world(base: World, changes: Mapping[str, Any], where: str) -> World:
    """The base world with some keys changed.

    Args:
        base: the world.
        changes: by key, those of the readers dotted (readers.length_weight) or nested; keys that
            are not named stay those of the base.
        where: named in messages.

    Raises:
        ConfigError: an unknown key (the nearest valid one is named), or a value of the wrong type
            or out of its range.
    """
    plain = as_plain(base)
    for key, value in changes.items():
        inner = plain
        *path, last = key.split(".")
        for step in path:
            if not isinstance(inner.get(step), dict):
                raise ConfigError(f"{where}: unknown key '{key}': {nearest(step, list(inner))}")
            inner = inner[step]
        kept = inner.get(last)
        nested = isinstance(value, Mapping) and isinstance(kept, dict)
        inner[last] = {**kept, **value} if nested else value
    try:
        return build(World, plain, where)
    except ConfigError as error:
        # A world's own checks do not know which world it is.
        said = str(error)
        raise ConfigError(said if said.startswith(where) else f"{where}: {said}") from error


@dataclass(frozen=True)
class SimulatedVotes:
    """What the readers did; every array has shape (n,) and type int64.

    Attributes:
        created_utc: when each story was posted, Unix seconds.
        score_utc: when its votes were read.
        score: votes up minus votes down.
        readers: how many readers met the story; no score is larger.
    """

    created_utc: np.ndarray
    score_utc: np.ndarray
    score: np.ndarray
    readers: np.ndarray


@dataclass(frozen=True)
class SimulatedWorld:
    """The stories of a world and what its readers did; every array has shape (n,).

    Attributes:
        world: what was simulated.
        prompt: number of the prompt, int64, not falling.
        quality: true quality, float64, standard normal.
        n_words: length, int64.
        author: number of the author, int64.
        created_utc: when each story was posted, Unix seconds, int64.
        score_utc: when its votes were read, int64.
        score: votes up minus votes down, int64.
        readers: how many readers met the story, int64.
    """

    world: World
    prompt: np.ndarray
    quality: np.ndarray
    n_words: np.ndarray
    author: np.ndarray
    created_utc: np.ndarray
    score_utc: np.ndarray
    score: np.ndarray
    readers: np.ndarray


def simulate_votes(
    prompt_ids: Sequence[str],
    quality: Sequence[float],
    n_words: Sequence[int],
    options: ReaderSimulation,
    fame: Sequence[float] | None = None,
) -> SimulatedVotes:
    """Simulate posting times and votes of given stories.

    Args:
        prompt_ids: the prompt of each story; shape (n,).
        quality: true quality, any scale; shape (n,).
        n_words: words; shape (n,).
        options: parameters.
        fame: of the author, any scale; shape (n,); needed where `fame_weight` is not 0.

    Raises:
        ConfigError: `fame_weight` is not 0 and no fame is given.
    """
    random = np.random.default_rng(options.seed)
    prompts, prompt_of = np.unique(np.asarray(prompt_ids), return_inverse=True)
    taste = options.quality_weight * _standard(np.asarray(quality, dtype=float))
    taste += options.length_weight * _standard(np.log1p(np.asarray(n_words, dtype=float)))
    if fame is not None:
        taste += options.fame_weight * _standard(np.asarray(fame, dtype=float))
    elif options.fame_weight:
        raise ConfigError(
            f"fame_weight is {options.fame_weight} and no fame is given: give the fame of every "
            "story's author, or set fame_weight to 0"
        )
    opened = random.integers(options.start_utc, options.end_utc, len(prompts))
    audience = random.normal(0, options.audience_spread, len(prompts))
    delay = random.exponential(options.delay_hours, len(prompt_of))
    return _read(options, lambda _: random, prompt_of, opened, audience, delay, taste)


def simulate_world(world: World) -> SimulatedWorld:
    """Simulate the stories of a world and their readers.

    Every quantity has its own stream of random numbers, so that two worlds that differ in one
    knob share all other draws.

    Returns:
        Stories by prompt.
    """
    from scipy.special import log_ndtr  # noqa: PLC0415

    readers = world.readers
    random = _streams(world)
    crowd = random("crowd").standard_normal(world.prompts)
    opened = random("opened").integers(readers.start_utc, readers.end_utc, world.prompts)
    busy = _with(world.stories_audience, crowd, random("busy"))
    # Less half the variance, so that the spread leaves the mean.
    log_stories = math.log(world.stories_per_prompt) - world.stories_spread**2 / 2
    stories = np.exp(log_stories + world.stories_spread * busy)
    # A draw rounds, so that a mean of 2.5 is one.
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
    return SimulatedWorld(
        world, prompt, quality, n_words, author,
        votes.created_utc, votes.score_utc, votes.score, votes.readers,
    )  # fmt: skip


def _streams(world: World) -> Streams:
    """A generator for every name, always the same for the same seeds."""
    seeds = [world.seed, world.readers.seed]
    of_readers = ("luck", "readers", "noise", "up", "down")

    def stream(name: str) -> np.random.Generator:
        reader_seed = seeds[1] if name in of_readers else 0
        return np.random.default_rng([seeds[0], reader_seed, zlib.crc32(name.encode())])

    return stream


def _with(correlation: float, values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Standard normal numbers with a correlation to given ones; shape of the given ones."""
    own = random.standard_normal(values.shape)
    if not correlation:
        return own
    mixed: np.ndarray = correlation * values + math.sqrt(1 - correlation**2) * own
    return mixed


def _standard(values: np.ndarray) -> np.ndarray:
    """Values less their mean, in standard deviations; zeros where all are equal."""
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
    """Let the readers come and vote.

    Args:
        options: parameters.
        random: generators by name.
        prompt_of: place of each story's prompt; shape (n,).
        opened: when each prompt was posted, Unix seconds; shape (n_prompts,).
        log_audience: log audience of each prompt, less the log of the median; shape (n_prompts,).
        delay: hours from prompt to story; shape (n,).
        taste: how readers like a story, in log-odds above `base`; shape (n,).
    """
    count = len(prompt_of)
    audience = (options.audience * np.exp(log_audience))[prompt_of]
    luck = random("luck").normal(0, options.luck, count)
    if options.ranking:
        noise = random("noise").normal(0, options.noise, count)
        p_up = 1 / (1 + np.exp(-(options.base + taste + noise)))
        exposure = np.minimum(audience * np.exp(luck), _MOST_READERS)
        readers, score = _ranked(options, random, prompt_of, exposure, delay, p_up)
    else:
        exposure = audience * _share_met(options, delay, delay)
        exposure *= np.exp(luck)
        readers = random("readers").poisson(np.minimum(exposure, _MOST_READERS))
        log_odds = options.base + taste + random("noise").normal(0, options.noise, count)
        up = random("up").binomial(readers, 1 / (1 + np.exp(-log_odds)))
        score = up - random("down").binomial(readers, options.down)
    created = opened[prompt_of] + np.round(delay * _HOUR).astype(np.int64)
    read = np.zeros(len(opened), dtype=np.int64)
    np.maximum.at(read, prompt_of, created + _READ_AFTER)
    return SimulatedVotes(
        created, read[prompt_of], score.astype(np.int64), readers.astype(np.int64)
    )


def _share_met(options: ReaderSimulation, delay: np.ndarray, since: np.ndarray) -> np.ndarray:
    """Share of the audience that comes after `since` hours and is shown a story.

    The integral of the rate of arrival, which is (1 - exp(-t / growth)) exp(-t / decay) over its
    whole integral, times exp(-(t - delay) / fade), from `since` on.

    Args:
        options: parameters; with an infinite decay the whole audience is still to come.
        delay: hours from prompt to story; shape (n,).
        since: hours from the prompt, not before the story; shape (n,).

    Returns:
        Shares, shape (n,).
    """
    if math.isinf(options.decay_hours):
        return np.ones_like(delay)
    decay, growth = options.decay_hours, options.growth_hours
    if not growth and math.isinf(options.fade_hours):
        plain: np.ndarray = np.exp(-since / decay)
        return plain
    fade = 1 / options.fade_hours
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
    """Readers come in steps; before each, the stories that are there are placed by their score.

    Args:
        options: parameters.
        random: generators by name.
        prompt_of: place of each story's prompt; shape (n,).
        exposure: readers whom a story would meet in the first place all the time; shape (n,).
        delay: hours from prompt to story; shape (n,).
        p_up: probability that a reader votes up; shape (n,).

    Returns:
        Readers and score of every story; both int64, shape (n,).
    """
    streams = {name: random(name) for name in ("readers", "up", "down")}
    sorted_prompts = np.sort(prompt_of)
    places = np.arange(1, len(prompt_of) + 1) - np.searchsorted(sorted_prompts, sorted_prompts)
    chance = places ** -float(options.ranking)
    stands, readers, score = np.empty(len(places)), np.zeros_like(places), np.zeros_like(places)
    for is_there, share in _steps(options, delay):
        # One number to sort by: prompt, then whether it is there, then the score.
        keys = (prompt_of * 2 + ~is_there) * _ABOVE_SCORES - score
        order = np.argsort(keys)
        # Stories of equal scores share their places, as they take turns in them.
        group = np.cumsum(np.diff(keys[order], prepend=keys[order[0]]) != 0)
        stands[order] = (np.bincount(group, chance) / np.bincount(group))[group]
        met = streams["readers"].poisson(exposure * share * stands)
        readers += met
        score += streams["up"].binomial(met, p_up)
        score -= streams["down"].binomial(met, options.down)
    return readers, score


def _steps(options: ReaderSimulation, delay: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each step: whether a story is there before it ends, and its share of the audience."""
    if math.isinf(options.decay_hours):
        for _ in range(options.steps):
            yield np.ones(len(delay), dtype=bool), np.full(len(delay), 1 / options.steps)
        return
    # Without growth the same number of readers comes in every step.
    ends = -options.decay_hours * np.log1p(-np.arange(1, options.steps) / options.steps)
    left = _share_met(options, delay, delay)
    for end in [*ends, None]:
        after = np.zeros_like(delay)
        if end is not None:
            after = _share_met(options, delay, np.maximum(delay, end))
        yield delay < (np.inf if end is None else end), left - after
        left = after


def stories_table(simulated: SimulatedWorld, *, texts: bool = True) -> pa.Table:
    """The stories of a world as a table by the schema STORIES, with two columns more.

    Args:
        simulated: the world.
        texts: invent texts of exactly `n_words` words whose style tells `World.style` of the
            variance of quality (`litbench.curation.invented_texts`). Without, the text is a name,
            for whatever reads numbers only.

    Returns:
        One row per story, in the world's order; `quality` (number) and `readers` (integer) are
        the truth, which no pair file takes over.
    """
    world = simulated.world
    count = len(simulated.prompt)
    story_ids = [f"s{place}" for place in range(count)]
    random = _streams(world)
    if texts:
        styles = styles_of(simulated.quality, world.style, random("style"))
        stories = invented_texts(styles, simulated.n_words, random("text"))
        prompts = invented_prompts(world.prompts, random("prompt"))
    else:
        stories = pa.array([f"The text of story {story_id}." for story_id in story_ids])
        prompts = pa.array([f"Prompt {place}" for place in range(world.prompts)])
    n_tokens = np.ceil(simulated.n_words * TOKENS_PER_WORD).astype(np.int64)
    columns = {
        "story_id": story_ids,
        "prompt_id": [f"p{prompt}" for prompt in simulated.prompt.tolist()],
        "prompt": prompts.take(pa.array(simulated.prompt)),
        "text": stories,
        "n_words": simulated.n_words,
        "source": ["simulated"] * count,
        "score": simulated.score,
        "score_utc": simulated.score_utc,
        "created_utc": simulated.created_utc,
        "author": [f"a{author}" for author in simulated.author.tolist()],
        "flair": pa.nulls(count),
        "n_tokens": n_tokens,
    }
    schema = STORIES.arrow()
    arrays = [
        (values if isinstance(values, pa.Array) else pa.array(values)).cast(schema.field(name).type)
        for name, values in columns.items()
    ]
    table = pa.Table.from_arrays(arrays, schema=schema)
    return table.append_column("quality", pa.array(simulated.quality)).append_column(
        "readers", pa.array(simulated.readers)
    )
