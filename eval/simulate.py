"""Evaluate filters and pairing rules in simulated worlds, where true quality is known.

    python eval/simulate.py --config configs/eval/sample_simulation_study.yaml

Simulates worlds (litbench.curation.simulation) with several seeds, pairs their stories by the rules
of every variant and trains a rater (litbench.metrics.pairing_rules.Learner) on each variant's
pairs: once on the number of pairs of the smallest variant, and once on all. The rater then judges
all pairs of stories of held-out prompts, regardless of votes. The variant `truth` has random pairs
labelled by true quality. An entry of `worlds` changes some keys of the base world; a sweep varies
one key.

Writes `study.parquet` (a row per world, seed, variant and amount), `study.csv` (means, 95 %
intervals over seeds and paired differences from the reference), `study.txt`, `study.html` with its
plots as SVG and PNG, and `manifest.json` into `out`. Finished worlds are stored in `out/parts`:
after a kill, or when seeds, values or worlds are added, only missing worlds are run.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from litbench.config import build, nearest, run_program
from litbench.curation.engine import open_engine
from litbench.curation.pair_making import CuratedPairs
from litbench.curation.rules import PairRules
from litbench.curation.simulation import World, changed_world, simulate_world, stories_table
from litbench.errors import ConfigError, DataError
from litbench.metrics.pairing_rules import (
    TRUTH,
    Learner,
    fit_preference,
    judge_random,
    observe,
    pair_figures,
    summarise,
    true_pairs,
    within_prompts,
)
from litbench.progress import ProgressBar
from litbench.report.pages import study_text, write_study
from litbench.store import Artifact, Cache, fingerprint

# Increase it when a change of the code changes the figures of the same config: stored worlds are
# then discarded.
VERSION = 2
# Share of prompts held out for evaluation.
_TEST_SHARE = 0.3

# Name of a world or sweep, and the swept value.
WorldKey = tuple[str, float | None]


@dataclass
class Config:
    """Configuration of `simulate.py`.

    Attributes:
        out: output folder.
        base: keys that all worlds share, see litbench.curation.simulation.World; its seed is
            ignored.
        variants: name -> keys of litbench.curation.rules.PairRules that differ from the
            paper's full set.
        worlds: name -> keys that differ from the base world; dotted for readers, such as
            readers.length_weight.
        sweeps: name -> keys as in `worlds`, one of which has a list of values, one per world.
        seeds: seeds of every world; intervals are over seeds.
        reference: the variant that the others are compared with; may be `truth`.
        learner: the rater's features, see litbench.metrics.pairing_rules.Learner.
        subsamples: number of subsamples at equal numbers of pairs; figures are means over them.
        title: heading of the page.
    """

    out: Path
    base: World = field(default_factory=World)
    variants: dict[str, dict[str, Any]] = field(default_factory=lambda: {"full": {}})
    worlds: dict[str, dict[str, Any]] = field(default_factory=dict)
    sweeps: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    reference: str = "full"
    learner: Learner = field(default_factory=Learner)
    subsamples: Annotated[int, Field(ge=1)] = 4
    title: str = "LitBench simulation study"


def read_rules(config: Config) -> dict[str, PairRules]:
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


def read_worlds(config: Config) -> dict[WorldKey, World]:
    """Return all worlds, before seeds are set, by name and swept value."""
    if len(set(config.seeds)) < max(2, len(config.seeds)) or min(config.seeds) < 0:
        raise ConfigError(
            f"seeds is {config.seeds}: give at least 2 distinct whole numbers, 0 or greater"
        )
    worlds: dict[WorldKey, World] = {}
    for name, keys in config.sweeps.items():
        swept = [key for key, value in keys.items() if isinstance(value, list) and value]
        if len(swept) != 1:
            raise ConfigError(f"sweeps: {name}: give a list of values for exactly one key")
        for value in keys[swept[0]]:
            changes = {**keys, swept[0]: value}
            worlds[name, value] = changed_world(config.base, changes, f"sweeps: {name}")
    for name, changes in config.worlds.items():
        worlds[name, None] = changed_world(config.base, changes, f"worlds: {name}")
    if not worlds or not all(re.fullmatch(r"(?!worlds$)[\w-]+", name) for name, _ in worlds):
        raise ConfigError(
            f"worlds and sweeps are named {[name for name, _ in worlds]}: give at least one, and "
            "use only letters, digits, - and _, but not 'worlds', since plots are named after them"
        )
    return worlds


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
    world: World, rules: Mapping[str, PairRules], config: Config, where: str
) -> list[dict[str, Any]]:
    """Simulate, pair, train and judge; returns a row per variant and amount."""
    simulated = simulate_world(world)
    quality, n_words, learner = simulated.quality, simulated.n_words, config.learner
    features = observe(quality, n_words, simulated.author, learner, world.seed)
    # Prompts are exchangeable: train on the first ones.
    in_train = simulated.prompt < round(world.prompts * (1 - _TEST_SHARE))
    both = within_prompts(simulated.prompt)
    possible, held_out = both[in_train[both[:, 0]]], both[~in_train[both[:, 0]]]
    if not len(possible) or not len(held_out):
        raise DataError(
            f"{where}: no training prompt or no held-out prompt has two stories: simulate more "
            "prompts"
        )
    stories = stories_table(simulated, texts=False).filter(pa.array(in_train))
    # Length symmetry draws by a hash of story_id. A prefix per world makes the draws independent.
    prefix = fingerprint(world)[:16]
    ids = pa.array([f"{prefix}-{name}" for name in stories["story_id"].to_pylist()])
    stories = stories.drop_columns("story_id").append_column("story_id", ids)
    pairs = make_pairs(stories, rules, config.out, where)

    equal, most = min(map(len, pairs.values())), max(map(len, pairs.values()))
    random = np.random.default_rng([world.seed, 11])
    pairs[TRUTH] = true_pairs(quality, possible, most, random)
    first, second = held_out.T
    seen = features[first] - features[second]
    better, longer = quality[first] - quality[second], n_words[first] - n_words[second]

    def learn(own_pairs: np.ndarray) -> dict[str, float]:
        differences = features[own_pairs[:, 0]] - features[own_pairs[:, 1]]
        return judge_random(fit_preference(differences), seen, better, longer)

    rows = []
    for name, own in pairs.items():
        shared = pair_figures(quality, n_words, own)
        drawn = [learn(own[random.permutation(len(own))[:equal]]) for _ in range(config.subsamples)]
        mean = {key: float(np.mean([figures[key] for figures in drawn])) for key in drawn[0]}
        rows.append({"variant": name, "amount": "equal", **mean, **shared, "pairs": equal})
        rows.append({"variant": name, "amount": "all", **learn(own), **shared, "pairs": len(own)})
    return rows


def run_all(
    worlds: Mapping[WorldKey, World], rules: Mapping[str, PairRules], config: Config
) -> list[dict[str, Any]]:
    """Run the worlds that are not stored yet; returns the rows of all worlds."""
    rows, parts = [], Cache(config.out / "parts")
    jobs = [(key, seed) for key in worlds for seed in config.seeds]
    for (name, value), seed in ProgressBar(jobs, desc="worlds", unit="", leave=False):
        world = replace(worlds[name, value], seed=seed)
        depends_on = [VERSION, world, rules, config.learner, config.subsamples]
        where = f"{name}, seed {seed}" if value is None else f"{name} {value:g}, seed {seed}"
        own = parts.get(depends_on, partial(run_world, world, rules, config, where))
        rows += [{"world": name, "value": value, "seed": seed, **row} for row in own]
    parts.discard_unused()
    return rows


def main(config: Config) -> None:
    """Run the worlds and write the results."""
    rules, worlds = read_rules(config), read_worlds(config)
    artifact = Artifact(config.out, program=__file__, config=config)
    if artifact.is_current():
        print((config.out / "study.txt").read_text(encoding="utf-8"), end="")
        return
    rows = run_all(worlds, rules, config)
    summaries = summarise(rows, config.reference)
    table = pa.Table.from_pylist(rows)
    artifact.write("study.parquet", lambda path: pq.write_table(table, path))
    write_study(artifact, summaries, config.title, config.reference)
    artifact.counts = {"worlds": len(worlds), "seeds": len(config.seeds), "rows": len(rows)}
    artifact.finish()
    print(study_text(summaries, config.reference), end="")
    print(f"page: {(config.out / 'study.html').resolve()}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
