"""Simulated readers who vote on stories of known quality, and whole worlds of such stories.

Where the truth is known, one can measure what filters, pairing rules and raters do. The sample
corpus has its times and votes from here. Nothing here says anything about real readers.

Each prompt has an audience of lognormal size. Readers arrive at a rate that grows as
1 - exp(-t / growth_hours) and decays as exp(-t / decay_hours). Stories are posted with exponential
delays. A story is seen by the readers who arrive after it; the share falls with its age as
exp(-age / fade_hours) and with its rank among the prompt's stories as rank ** -ranking, times a
lognormal luck factor. Each reader who sees it votes up with probability

    sigmoid(base + quality_weight * quality + length_weight * log length + fame_weight * fame
            + noise)

and down with a small fixed probability. Quality, log length and fame are standardised. A weight,
spread, correlation or growth of 0 switches its part off, a time of infinity (`.inf` in YAML) its
decay; switching a part off changes no random draw of the others.
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

# Invented words have no tokenizer: assume the tokens that a word of English prose takes.
TOKENS_PER_WORD = 1.3

_HOUR = 3_600
_READ_AFTER = 7 * 24 * _HOUR
# More readers than there are people, so that a wide spread stays within int64.
_MOST_READERS = 1e10
# Above any score, to sort by prompt and score with one number.
_ABOVE_SCORES = 2**38

Streams = Callable[[str], np.random.Generator]


def _check(options: Any, low: float, high: float, *names: str) -> None:
    """Raise ConfigError for the first named field outside the range; NaN is outside any."""
    for name in names:
        value = getattr(options, name)
        if not low <= value <= high:
            raise ConfigError(f"{name} is {value}: give {low:g} to {high:g}")


@dataclass(frozen=True)
class ReaderSimulation:
    """How readers arrive, what they see and how they vote.

    Attributes:
        seed: seeds every draw.
        audience: median number of readers of a prompt.
        audience_spread: standard deviation of log audience between prompts.
        decay_hours: time in which the rate of new readers falls to 1/e; infinite: all readers
            arrive after all stories, so posting times do not matter.
        growth_hours: time in which a prompt becomes known; 0: at once.
        fade_hours: age at which a story is shown to 1/e of the new readers; infinite: to all.
        ranking: the story ranked j by votes so far is seen with probability j ** -ranking; 0:
            rank does not matter.
        steps: how often stories are ranked anew while readers arrive; only `ranking` uses it.
        delay_hours: mean time from prompt to story.
        base: log-odds of a vote for an average story.
        quality_weight: change in log-odds per standard deviation of quality.
        length_weight: likewise of log length: the preference that length symmetry is to cancel.
        fame_weight: likewise of the author's fame.
        noise: standard deviation of a story's own shift in log-odds.
        luck: standard deviation of a story's log exposure.
        down: probability of a vote down.
        start_utc: earliest time of a prompt, Unix seconds.
        end_utc: latest time of a prompt; votes are read a week after its last story.
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
        _check(self, 1e-6, math.inf, "decay_hours", "fade_hours")
        _check(self, 0, 10, "audience_spread", "ranking", "noise", "luck")
        _check(self, 1e-6, 1e9, "audience")
        _check(self, 0, 1e6, "growth_hours", "delay_hours")
        _check(self, 0, 1, "down")
        _check(self, -100, 100, "base", "quality_weight", "length_weight", "fame_weight")
        if self.end_utc <= self.start_utc:
            raise ConfigError(f"end_utc is {self.end_utc}: give a time after start_utc")


@dataclass(frozen=True)
class World:
    """Prompts, authors, stories of known quality and their readers.

    Attributes:
        seed: seeds every draw, together with the readers' seed, which alone gives the same stories
            another audience.
        prompts: how many.
        stories_per_prompt: mean; every prompt has at least one.
        stories_spread: standard deviation of the log number of stories between prompts.
        stories_audience: correlation of log audience and log number of stories.
        median_words: median length of a story.
        words_spread: standard deviation of log length.
        quality_length: correlation of quality and log length.
        quality_delay: correlation of quality and the normal score of the posting delay; above 0,
            late stories are better.
        authors: how many; all write equally often.
        author_quality: share of the variance of quality that is the author's.
        fame_quality: correlation of an author's fame and quality.
        style: share of the variance of quality that the style of a text shows.
        readers: how they arrive and vote.
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
    """A world with some keys changed.

    Args:
        base: all other keys.
        changes: new values; keys of the readers are dotted, as `readers.length_weight`.
        where: named in messages.

    Raises:
        ConfigError: an unknown key, or a value of the wrong type or out of its range.
    """
    plain = as_plain(base)
    readers = plain.pop("readers")
    flat = plain | {f"readers.{key}": value for key, value in readers.items()}
    for key in changes:
        if key not in flat:
            raise ConfigError(f"{where}: unknown key '{key}': {nearest(key, list(flat))}")
    flat |= changes
    values = {key: value for key, value in flat.items() if "." not in key}
    values["readers"] = {key: flat[f"readers.{key}"] for key in readers}
    try:
        return build(World, values, where)
    except ConfigError as error:
        # The checks of World do not know where the values come from.
        message = str(error).removeprefix(f"{where}: ")
        raise ConfigError(f"{where}: {message}") from error


@dataclass(frozen=True)
class SimulatedVotes:
    """Votes on n stories; every array has shape (n,) and type int64.

    Attributes:
        created_utc: time of posting, Unix seconds.
        score_utc: when the votes were read.
        score: votes up minus votes down.
        readers: how many readers saw the story; no score is larger.
    """

    created_utc: np.ndarray
    score_utc: np.ndarray
    score: np.ndarray
    readers: np.ndarray


@dataclass(frozen=True)
class SimulatedWorld:
    """The n stories of a world, by prompt; every array has shape (n,).

    Attributes:
        world: what was simulated.
        prompt: index of the prompt, int64, ascending.
        quality: true quality, float64, standard normal.
        n_words: length, int64.
        author: index of the author, int64.
        votes: what the readers did.
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
    """Simulate posting times and votes of given stories; `fame_weight` does not count.

    Args:
        prompt_ids: the prompt of each story; shape (n,).
        quality: true quality on any scale; shape (n,).
        n_words: words; shape (n,).
        options: parameters.
    """
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

    Every quantity has its own stream of random numbers, so two worlds that differ in one parameter
    share all other draws.
    """
    from scipy.special import log_ndtr  # noqa: PLC0415

    readers = world.readers
    random = _streams(world)
    crowd = random("crowd").standard_normal(world.prompts)
    opened = random("opened").integers(readers.start_utc, readers.end_utc, world.prompts)
    busy = _with(world.stories_audience, crowd, random("busy"))
    # Minus half the variance: the spread leaves the mean as it is.
    log_stories = math.log(world.stories_per_prompt) - world.stories_spread**2 / 2
    stories = np.exp(log_stories + world.stories_spread * busy)
    # Random rounding keeps a fractional mean.
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
    """A generator by name; the same seeds give the same generators."""
    seeds = [world.seed, world.readers.seed]
    of_readers = ("luck", "readers", "noise", "up", "down")

    def stream(name: str) -> np.random.Generator:
        reader_seed = seeds[1] if name in of_readers else 0
        return np.random.default_rng([seeds[0], reader_seed, zlib.crc32(name.encode())])

    return stream


def _with(correlation: float, values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Standard normal numbers with the given correlation to `values`; same shape."""
    own = random.standard_normal(values.shape)
    if not correlation:
        return own
    mixed: np.ndarray = correlation * values + math.sqrt(1 - correlation**2) * own
    return mixed


def _standard(values: np.ndarray) -> np.ndarray:
    """Standardise; zeros where all values are equal."""
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
    """Let the readers arrive and vote.

    `opened` (Unix seconds) and `log_audience` (log of audience / median audience) are per prompt;
    `prompt_of` (its index), `delay` (hours from prompt to story) and `taste` (log-odds of a vote
    above `base`) are per story.
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
        exposure = audience * _share_seen(options, delay, delay)
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


def _share_seen(options: ReaderSimulation, delay: np.ndarray, since: np.ndarray) -> np.ndarray:
    """Share of the audience that arrives after `since` hours and is shown a story; shape (n,).

    The integral from `since` of the normalised rate of arrival, (1 - exp(-t / growth))
    exp(-t / decay), times exp(-(t - delay) / fade). With an infinite decay it is 1.
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
    """Readers arrive in steps; before each, the stories posted so far are ranked by score.

    `exposure` is how many readers would see a story that always ranked first.

    Returns:
        Readers and score of every story; both int64, shape (n,).
    """
    streams = {name: random(name) for name in ("readers", "up", "down")}
    sorted_prompts = np.sort(prompt_of)
    places = np.arange(1, len(prompt_of) + 1) - np.searchsorted(sorted_prompts, sorted_prompts)
    chance = places ** -float(options.ranking)
    stands, readers, score = np.empty(len(places)), np.zeros_like(places), np.zeros_like(places)
    for is_there, share in _steps(options, delay):
        # One sort key: prompt, whether the story is posted, score.
        keys = (prompt_of * 2 + ~is_there) * _ABOVE_SCORES - score
        order = np.argsort(keys)
        # Stories of equal score take turns, so each gets the mean chance of their ranks.
        group = np.cumsum(np.diff(keys[order], prepend=keys[order[0]]) != 0)
        stands[order] = (np.bincount(group, chance) / np.bincount(group))[group]
        met = streams["readers"].poisson(exposure * share * stands)
        readers += met
        score += streams["up"].binomial(met, p_up)
        score -= streams["down"].binomial(met, options.down)
    return readers, score


def _steps(options: ReaderSimulation, delay: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each step: which stories are posted before it ends, and their share of the audience."""
    if math.isinf(options.decay_hours):
        for _ in range(options.steps):
            yield np.ones(len(delay), dtype=bool), np.full(len(delay), 1 / options.steps)
        return
    # Without growth, every step has the same number of readers.
    ends = -options.decay_hours * np.log1p(-np.arange(1, options.steps) / options.steps)
    left = _share_seen(options, delay, delay)
    for end in [*ends, None]:
        after = np.zeros_like(delay)
        if end is not None:
            after = _share_seen(options, delay, np.maximum(delay, end))
        yield delay < (np.inf if end is None else end), left - after
        left = after


def stories_table(simulated: SimulatedWorld, *, texts: bool = True) -> pa.Table:
    """The stories as a table by the schema STORIES, with the columns `quality` and `readers`.

    Args:
        simulated: the world.
        texts: invent texts of exactly `n_words` words whose style shows `World.style` of the
            variance of quality (`litbench.curation.invented_texts`); otherwise the text is a
            placeholder.

    Returns:
        One row per story, in the world's order. `make_pairs` drops the two additional columns.
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
    columns = {
        "story_id": story_ids,
        "prompt_id": [f"p{prompt}" for prompt in simulated.prompt.tolist()],
        "prompt": prompts.take(pa.array(simulated.prompt)),
        "text": stories,
        "n_words": simulated.n_words,
        "source": ["simulated"] * count,
        "score": simulated.votes.score,
        "score_utc": simulated.votes.score_utc,
        "created_utc": simulated.votes.created_utc,
        "author": [f"a{author}" for author in simulated.author.tolist()],
        "flair": pa.nulls(count),
        "n_tokens": np.ceil(simulated.n_words * TOKENS_PER_WORD).astype(np.int64),
    }
    schema = STORIES.arrow()
    arrays = [
        (values if isinstance(values, pa.Array) else pa.array(values)).cast(schema.field(name).type)
        for name, values in columns.items()
    ]
    table = pa.Table.from_arrays(arrays, schema=schema)
    return table.append_column("quality", pa.array(simulated.quality)).append_column(
        "readers", pa.array(simulated.votes.readers)
    )
