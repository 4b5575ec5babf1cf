"""Filters and pairing rules in simulated worlds, where the true quality of stories is known.

The simulation makes no claim about real readers. Each prompt has an audience of lognormal size,
which leaves at a constant rate; a story is seen by the readers who come after it was posted, times
a lognormal luck factor. Each of them votes up with probability

    sigmoid(-2.3 + quality_weight * quality + length_weight * log length + noise)

and down with a small fixed probability; quality and log length are standardised. A weight, noise
or correlation of 0 disables an effect, as does an infinite `decay_hours` (`.inf` in YAML). Every
quantity has its own stream of random numbers, so the others do not change.

A rule is right about a pair whose chosen story is the better one. The more relevant measure is what
a rater learns from the rule's pairs: a logistic regression on the features that it observes
(`observe`), tested on random pairs of held-out prompts, whatever their votes. Each world gives one
value of every measure, so intervals are over seeds.
"""

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from litbench.config import as_plain, build, nearest
from litbench.curation.engine import open_engine
from litbench.curation.pair_making import CuratedPairs
from litbench.curation.rules import PairRules
from litbench.errors import ConfigError, DataError
from litbench.metrics.comparisons import paired_difference
from litbench.metrics.intervals import Interval, jackknife_interval, mean_interval
from litbench.models.linear_preference import logistic
from litbench.progress import ProgressBar
from litbench.records import STORIES
from litbench.report import figures
from litbench.report.csv_table import write_csv
from litbench.report.document import (
    Figure,
    Page,
    Section,
    Table,
    signed,
    write_page,
    written_now,
)
from litbench.store import Artifact, Cache, fingerprint

# The variant that learns from random pairs labelled by true quality.
TRUTH = "truth"
# Share of prompts held out for evaluation.
_TEST_SHARE = 0.3
# Noisy signs of quality that a rater observes, and the standard deviation of their noise; that of
# quality is 1.
_SIGNS, _SIGN_NOISE = 6, 2.0
# Subsamples at equal numbers of pairs; figures are means over them.
_SUBSAMPLES = 4
# Share of a distractor's variance that all stories of an author have in common, so that a rater
# can learn to prefer an author; and of the variance of quality.
_AUTHOR_SHARE = 0.3
_AUTHORS = 2_000
# Standard deviations of log audience and of log luck, log-odds of an upvote for an average story,
# and the probability of a downvote.
_AUDIENCE_SPREAD, _LUCK, _BASE, _DOWN = 0.7, 0.35, -2.3, 0.015
_START_UTC, _END_UTC, _WEEK = 1_577_836_800, 1_672_531_200, 7 * 24 * 3_600
# Invented stories have no tokenizer; English prose has about this many tokens per word.
_TOKENS_PER_WORD = 1.3
# More than the world's population; keeps a wide spread within int64.
_MOST_READERS = 1e10

Weight = Annotated[float, Field(ge=-100, le=100)]
Hours = Annotated[float, Field(ge=1e-6)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]


@dataclass(frozen=True)
class World:
    """Prompts, stories of known quality and their readers.

    Attributes:
        prompts: number of prompts.
        stories_per_prompt: mean number of stories of a prompt; every prompt has at least one.
        median_words: median length of a story.
        words_spread: standard deviation of log length.
        quality_length: correlation of quality and log length.
        audience: median number of readers of a prompt.
        decay_hours: time in which the rate of new readers falls to 1/e. If infinite, all readers
            come after all stories, so posting times do not matter.
        delay_hours: mean time from prompt to story.
        quality_weight: change in log-odds per standard deviation of quality.
        length_weight: change in log-odds per standard deviation of log length, the preference that
            length symmetry is meant to cancel.
        noise: standard deviation of a random shift in log-odds per story.
    """

    prompts: Count = 1_000
    stories_per_prompt: Annotated[float, Field(ge=1, le=1e7)] = 8.0
    median_words: Annotated[float, Field(ge=1, le=1e5)] = 420.0
    words_spread: Annotated[float, Field(ge=0, le=3)] = 0.7
    quality_length: Annotated[float, Field(ge=-1, le=1)] = 0.0
    audience: Annotated[float, Field(ge=1e-6, le=1e9)] = 420.0
    decay_hours: Hours = 14.0
    delay_hours: Hours = 7.0
    quality_weight: Weight = 0.7
    length_weight: Weight = 0.35
    noise: Annotated[float, Field(ge=0, le=10)] = 0.35


@dataclass
class SimulationConfig:
    """Worlds, variants of the rules, and the features of the rater.

    Attributes:
        out: output folder.
        base: keys that all worlds share, see World.
        variants: name -> keys of litbench.curation.rules.PairRules that differ from the paper's
            full set.
        worlds: name -> keys that differ from the base world.
        seeds: seeds of every world; intervals are over seeds.
        reference: the variant that the others are compared with; may be `truth`.
        distractors: number of observed features that are unrelated to quality and length. With more
            of them, the rater needs more pairs.
        title: heading of the page.
    """

    out: Path
    base: World = field(default_factory=World)
    variants: dict[str, dict[str, Any]] = field(default_factory=lambda: {"full": {}})
    worlds: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    reference: str = "full"
    distractors: Annotated[int, Field(ge=0)] = 24
    title: str = "LitBench simulation study"


# Worlds ---------------------------------------------------------------------------------------


class Stories(NamedTuple):
    """The n stories of a world, sorted by prompt; every array has shape (n,).

    Attributes:
        prompt: index of the prompt, int64, ascending.
        author: index of the author, int64.
        quality: true quality, float64, standard normal.
        table: what readers and rules know of the stories; schema STORIES, in the same order, with
            placeholders for texts.
    """

    prompt: np.ndarray
    author: np.ndarray
    quality: np.ndarray
    table: pa.Table

    @property
    def n_words(self) -> np.ndarray:
        """Length of each story."""
        words: np.ndarray = self.table["n_words"].to_numpy()
        return words


def simulate_world(world: World, seed: int) -> Stories:
    """Simulate the stories of a world and the votes of its readers."""
    from scipy.special import log_ndtr  # noqa: PLC0415

    def random(name: str) -> np.random.Generator:
        by_readers = name in ("luck", "readers", "noise", "up", "down")
        return np.random.default_rng([seed, int(by_readers), zlib.crc32(name.encode())])

    def correlated(correlation: float, values: np.ndarray, name: str) -> np.ndarray:
        noise = random(name).standard_normal(values.shape)
        mixed: np.ndarray = correlation * values + math.sqrt(1 - correlation**2) * noise
        return mixed

    opened = random("opened").integers(_START_UTC, _END_UTC, world.prompts)
    # Stochastic rounding preserves a fractional mean.
    stories = np.floor(world.stories_per_prompt + random("stories").random(world.prompts))
    prompt = np.repeat(np.arange(world.prompts), np.maximum(stories.astype(np.int64), 1))
    of_author = random("author quality").standard_normal(_AUTHORS)
    author = random("author").integers(_AUTHORS, size=len(prompt))
    quality = correlated(math.sqrt(_AUTHOR_SHARE), of_author[author], "quality")
    length = correlated(world.quality_length, quality, "length")
    n_words = np.exp(math.log(world.median_words) + world.words_spread * length)
    n_words = np.maximum(np.round(n_words), 1).astype(np.int64)
    # Exponential delays.
    delay = -world.delay_hours * log_ndtr(-random("delay").standard_normal(len(prompt)))
    audience = world.audience * np.exp(
        _AUDIENCE_SPREAD * random("crowd").standard_normal(world.prompts)
    )
    luck = np.exp(random("luck").normal(0, _LUCK, len(prompt)))
    exposure = audience[prompt] * np.exp(-delay / world.decay_hours) * luck
    readers = random("readers").poisson(np.minimum(exposure, _MOST_READERS))
    log_odds = _BASE + world.quality_weight * quality
    log_odds += world.length_weight * length * bool(world.words_spread)
    log_odds += random("noise").normal(0, world.noise, len(prompt))
    score = random("up").binomial(readers, 1 / (1 + np.exp(-log_odds)))
    score -= random("down").binomial(readers, _DOWN)
    created = opened[prompt] + np.round(delay * 3_600).astype(np.int64)
    read = np.zeros(world.prompts, dtype=np.int64)
    np.maximum.at(read, prompt, created + _WEEK)
    # Length symmetry draws by a hash of story_id. A prefix per world makes the draws independent.
    prefix = fingerprint(world, seed)[:16]
    names = [f"{prefix}-s{index}" for index in range(len(prompt))]
    columns = {
        "story_id": names,
        "prompt_id": [f"p{index}" for index in prompt.tolist()],
        "prompt": [f"Prompt {index}" for index in prompt.tolist()],
        "text": [f"The text of story {name}." for name in names],
        "n_words": n_words,
        "source": ["simulated"] * len(names),
        "score": score,
        "score_utc": read[prompt],
        "created_utc": created,
        "author": [f"a{index}" for index in author.tolist()],
        "n_tokens": np.ceil(n_words * _TOKENS_PER_WORD).astype(np.int64),
    }
    fields = STORIES.arrow()
    table = pa.table(
        {one.name: pa.array(columns.get(one.name, [None] * len(names)), one.type) for one in fields}
    )
    return Stories(prompt, author, quality, table)


# What a rater learns --------------------------------------------------------------------------

MEASURES = {
    "agreement": "agreement with true quality on random pairs",
    "prefers_longer": "how often the rater prefers the longer of two random stories",
    "random_longer": "random pairs whose better story is the longer",
    "right": "training pairs whose chosen story is the better",
    "chosen_longer": "training pairs whose chosen story is the longer",
    "pairs": "pairs to train on",
}
# Shares of random pairs, with intervals on the logit scale.
_OF_RANDOM_PAIRS = tuple(MEASURES)[:3]


def observe(stories: Stories, config: SimulationConfig, seed: int) -> np.ndarray:
    """The features of n stories that a rater observes.

    Returns:
        Shape (n, 7 + distractors): standardised log length, signs of quality, distractors.
    """
    random, count = np.random.default_rng([seed, 7]), len(stories.quality)
    scaled = np.log1p(stories.n_words)
    length = (scaled - scaled.mean()) / max(float(scaled.std()), 1e-12)
    noise = random.normal(0, _SIGN_NOISE, (count, _SIGNS))
    of_author = random.normal(size=(int(stories.author.max()) + 1, config.distractors))
    own = random.normal(size=(count, config.distractors))
    distractors = math.sqrt(_AUTHOR_SHARE) * of_author[stories.author]
    distractors += math.sqrt(1 - _AUTHOR_SHARE) * own
    return np.column_stack([length, stories.quality[:, None] + noise, distractors])


def within_prompts(prompt: np.ndarray) -> np.ndarray:
    """Indices of all pairs of two stories of the same prompt, in ascending order; shape (m, 2).

    `prompt` has the prompt of each story, shape (n,).
    """
    order = np.argsort(prompt, kind="stable")
    _, starts, sizes = np.unique(prompt[order], return_index=True, return_counts=True)
    pairs = [np.zeros((0, 2), np.int64)]
    for size in np.unique(sizes):
        both = np.column_stack(np.triu_indices(size, 1))
        pairs.append((starts[sizes == size][:, None, None] + both).reshape(-1, 2))
    indices: np.ndarray = order[np.concatenate(pairs)]
    return indices


def _share_above(difference: np.ndarray) -> float:
    """Share of differences above zero; zero counts one half, NaN for an empty array."""
    return float(np.mean((np.sign(difference) + 1) / 2)) if len(difference) else math.nan


def make_pairs(
    stories: pa.Table, rules: Mapping[str, PairRules], folder: Path, where: str
) -> dict[str, np.ndarray]:
    """Return rows of chosen and rejected stories by variant, sorted by pair_id; (pairs, 2)."""
    pairs_of = {}
    rows = {story_id: row for row, story_id in enumerate(stories["story_id"].to_pylist())}
    with open_engine("duckdb", folder) as engine:
        table = engine.put(stories)
        for name, variant in rules.items():
            keys = CuratedPairs(engine, table, variant, where=where).after.order_by("pair_id")
            pairs = engine.rows(keys.select("chosen_story_id", "rejected_story_id"))
            if not pairs:
                raise DataError(
                    f"{where}: variant {name} has no pairs: simulate more prompts or leave the "
                    "variant out"
                )
            pairs_of[name] = np.array([[rows[story] for story in pair.values()] for pair in pairs])
    return pairs_of


def run_world(
    world: World, seed: int, rules: Mapping[str, PairRules], config: SimulationConfig, where: str
) -> list[dict[str, Any]]:
    """Simulate, pair, train and judge; returns a row per variant and amount."""
    stories = simulate_world(world, seed)
    quality, n_words = stories.quality, stories.n_words
    features = observe(stories, config, seed)
    # Prompts are exchangeable: train on the first ones.
    in_train = stories.prompt < round(world.prompts * (1 - _TEST_SHARE))
    both = within_prompts(stories.prompt)
    possible, held_out = both[in_train[both[:, 0]]], both[~in_train[both[:, 0]]]
    if not len(possible) or not len(held_out):
        raise DataError(
            f"{where}: no training prompt or no held-out prompt has two stories: simulate more "
            "prompts"
        )
    pairs = make_pairs(stories.table.filter(pa.array(in_train)), rules, config.out, where)
    equal, most = min(map(len, pairs.values())), max(map(len, pairs.values()))
    random = np.random.default_rng([seed, 11])
    # The better story first.
    is_better = quality[possible[:, 0]] > quality[possible[:, 1]]
    true = np.where(is_better[:, None], possible, possible[:, ::-1])
    pairs[TRUTH] = true[random.permutation(len(true))[:most]]
    first, second = held_out.T
    better, longer = (np.sign(of[first] - of[second]) for of in (quality, n_words))

    def learn(own: np.ndarray) -> dict[str, float]:
        differences = features[own[:, 0]] - features[own[:, 1]]
        weights = logistic(differences, np.ones(len(own), dtype=bool), 1.0)
        preferred = np.sign((features[first] - features[second]) @ weights)
        return {
            "agreement": _share_above(preferred * better),
            "prefers_longer": _share_above((preferred * longer)[longer != 0]),
            "random_longer": _share_above(better * longer),
        }

    rows = []
    for name, own in pairs.items():
        chosen, rejected = own.T
        shared = {
            "right": _share_above(quality[chosen] - quality[rejected]),
            "chosen_longer": _share_above(n_words[chosen] - n_words[rejected]),
        }
        drawn = [learn(own[random.permutation(len(own))[:equal]]) for _ in range(_SUBSAMPLES)]
        mean = {key: float(np.mean([one[key] for one in drawn])) for key in drawn[0]}
        rows.append({"variant": name, "amount": "equal", **mean, **shared, "pairs": equal})
        rows.append({"variant": name, "amount": "all", **learn(own), **shared, "pairs": len(own)})
    return rows


# The study ------------------------------------------------------------------------------------


def _interval(measure: str, values: np.ndarray, seeds: np.ndarray) -> Interval:
    known = np.isfinite(values)
    if measure in _OF_RANDOM_PAIRS:
        return jackknife_interval(values[known], seeds[known])
    interval = mean_interval(values[known], seeds[known])
    if measure == "pairs":
        return interval
    # Other shares may be fixed by the rule, such as 0.5 by symmetry; their interval has no width.
    return replace(interval, low=max(interval.low, 0.0), high=min(interval.high, 1.0))


def summarise(rows: Sequence[Mapping[str, Any]], reference: str) -> list[dict[str, Any]]:
    """Means and 95 % intervals over seeds, in the order of the rows, then of `MEASURES`.

    Args:
        rows: one row for each world, seed, variant and amount, with these keys and `MEASURES`.
            Every world has the same seeds in the same order.
        reference: the variant that others are compared with.

    Returns:
        Rows of `world`, `variant`, `amount`, `measure`, `interval` (over the seeds that have the
        measure) and `difference` from the reference, paired by seed; None for the reference.
    """
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["world"], row["variant"], row["amount"]), []).append(row)
    summaries = []
    for (world, variant, amount), of in groups.items():
        others = groups[world, reference, amount]
        seeds = np.array([row["seed"] for row in of])
        for measure in MEASURES:
            own, other = (np.array([row[measure] for row in part], float) for part in (of, others))
            difference = None
            if variant != reference:
                known = np.isfinite(own - other)
                gain = (own - other)[known]
                difference = paired_difference(gain, np.zeros(len(gain)), seeds[known])[0]
            summaries.append(
                {
                    "world": world,
                    "variant": variant,
                    "amount": amount,
                    "measure": measure,
                    "interval": _interval(measure, own, seeds),
                    "difference": difference,
                }
            )
    return summaries


def read_rules(config: SimulationConfig) -> dict[str, PairRules]:
    """Return the checked rules of every variant."""
    names = [*config.variants, TRUTH]
    if config.reference not in names:
        raise ConfigError(
            f"reference '{config.reference}' is not a variant: {nearest(config.reference, names)}"
        )
    rules = {}
    for name, keys in config.variants.items():
        if name == TRUTH or {"seed", "splits", "test_from", "label_source"} & set(keys):
            raise ConfigError(
                f"variants: {name}: the study itself defines the variant {TRUTH}, and sets seed, "
                "splits, test_from and label_source: leave them out"
            )
        rules[name] = build(PairRules, {**keys, "label_source": "planted"}, f"variants: {name}")
        rules[name].check()
    return rules


def read_worlds(config: SimulationConfig) -> dict[str, World]:
    """Return all worlds by name."""
    if len(set(config.seeds)) < max(2, len(config.seeds)) or min(config.seeds) < 0:
        raise ConfigError(
            f"seeds is {config.seeds}: give at least 2 distinct whole numbers, 0 or greater"
        )
    if not config.worlds or not all(re.fullmatch(r"[\w-]+", name) for name in config.worlds):
        raise ConfigError(
            f"worlds are named {list(config.worlds)}: give at least one, and use only letters, "
            "digits, - and _"
        )
    return {
        name: build(World, as_plain(config.base) | changes, f"worlds: {name}")
        for name, changes in config.worlds.items()
    }


def run_simulation(config: SimulationConfig, program: str) -> None:
    """Run the worlds and write the results."""
    rules, worlds = read_rules(config), read_worlds(config)
    artifact = Artifact(config.out, program=program, config=config)
    if artifact.is_current():
        artifact.show("study.txt", "study.html")
        return
    rows, parts = [], Cache(config.out / "parts")
    learner = [_SIGNS, _SIGN_NOISE, config.distractors]
    jobs = [(name, seed) for name in worlds for seed in config.seeds]
    for name, seed in ProgressBar(jobs, desc="worlds", unit="", leave=False):
        world, where = worlds[name], f"{name}, seed {seed}"
        own = parts.get(
            [world, seed, rules, learner], partial(run_world, world, seed, rules, config, where)
        )
        rows += [{"world": name, "seed": seed, **row} for row in own]
    parts.discard_unused()
    summaries, table = summarise(rows, config.reference), pa.Table.from_pylist(rows)
    tables = _tables(summaries, config.reference)
    text = "Agreement with true quality on random pairs; means and 95 % intervals over seeds.\n"
    text += "".join(f"\n{name}\n{of.as_text()}\n" for name, of in tables.items())
    artifact.write("study.parquet", lambda path: pq.write_table(table, path))
    artifact.write("study.csv", partial(write_csv, summaries))
    artifact.write_text("study.txt", text)
    _write_page(artifact, config, summaries, tables)
    artifact.counts = {"worlds": len(worlds), "seeds": len(config.seeds), "rows": len(rows)}
    artifact.finish()
    artifact.show("study.txt", "study.html")


def _tables(summaries: Sequence[Mapping[str, Any]], reference: str) -> dict[str, Table]:
    """A table for each world, with a row for every variant."""
    against = f"minus {reference}"
    heading = ["variant", "agreement, equal n", against, "prefers the longer", against]
    heading += ["pairs are right", "chosen is longer", "pairs", "agreement, all pairs", against]
    rows: dict[tuple[str, str], dict[tuple[str, str], Mapping[str, Any]]] = {}
    for one in summaries:
        of = rows.setdefault((one["world"], one["variant"]), {})
        of[one["amount"], one["measure"]] = one
    tables: dict[str, list[list[Any]]] = {}
    for (world, variant), of in rows.items():
        agreement, longer, whole = (
            [of[key]["interval"], signed(of[key]["difference"])]
            for key in (("equal", "agreement"), ("equal", "prefers_longer"), ("all", "agreement"))
        )
        shares = [f"{of['all', key]['interval'].mean:.3f}" for key in ("right", "chosen_longer")]
        pairs = f"{of['all', 'pairs']['interval'].mean:,.0f}"
        row = [variant, *agreement, *longer, *shares, pairs, *whole]
        tables.setdefault(world, []).append(row)
    return {world: Table(heading, of) for world, of in tables.items()}


_PLOTTED = (
    ("agreement", "equal", "agreement, equal n"),
    ("agreement", "all", "agreement, all pairs"),
    ("prefers_longer", "equal", "prefers the longer, equal n"),
)


def _write_page(
    artifact: Artifact,
    config: SimulationConfig,
    summaries: Sequence[Mapping[str, Any]],
    tables: Mapping[str, Table],
) -> None:
    """Write study.html and its plots: a row for each world, and a colour for each variant."""
    found = {
        (one["world"], one["variant"], one["amount"], one["measure"]): one["interval"]
        for one in summaries
    }
    names = [*config.variants, TRUTH]
    caption = "Means and 95 % intervals over seeds. truth: trained on pairs labelled by quality."
    panels = {}
    for measure, amount, title in _PLOTTED:
        rows = [
            (world.replace("_", " "), [[found[world, name, amount, measure]] for name in names])
            for world in tables
        ]
        drawn = figures.dots(rows, [name.replace("_", " ") for name in names], title)
        panels[f"study_{measure}_{amount}"] = Figure(title.capitalize(), caption, drawn)
    warning = (
        "Nobody read these stories. The page shows what pairing rules do if readers behave as "
        "simulated; it says nothing about real readers."
    )
    note = (
        "Equal n: every variant is trained on as many pairs as the smallest has. Pairs are right: "
        "share of pairs whose chosen story is the better one. truth: trained on random pairs "
        "labelled by true quality. Intervals are 95 %, over seeds; differences are paired by seed."
    )
    parts = [
        Section(world.replace("_", " "), table=table, name=f"world-{place}")
        for place, (world, table) in enumerate(tables.items())
    ]
    section = Section(
        "Worlds", note, figures=list(panels.values()), parts=parts, warnings=[warning]
    )
    lead = (
        "Raters trained on pairs of each variant of the rules, tested on random pairs against true "
        "quality."
    )
    facts = f"{len(config.seeds)} seeds per world; every story, reader and vote is simulated."
    page = Page(config.title, lead, f"{facts} {written_now()}", [section])
    write_page(artifact, "study", page, panels)
