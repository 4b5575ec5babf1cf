"""Simulation study: what pairing rules buy and cost where the truth is known, with plots.

    python eval/simulate.py --config configs/eval/sample_simulation_study.yaml

Simulates worlds of stories whose quality is known (litbench.curation.simulation), pairs them by the
rules of every variant, and asks how often each variant is right about its own pairs, which way it
leans, how much data it leaves, and what a rater learns from it: a logistic regression on what can
be seen of a story (litbench.metrics.pairing_rules.Learner), trained on the variant's pairs and
asked about all pairs of stories of other prompts, whatever their votes. Trained on as many pairs of
each variant as the smallest has, and on all of them. Beside the variants stands `truth`: random
pairs labelled by quality itself. A sweep turns one knob of the base world; a world of `worlds`
stands alone and may come with predictions, which are checked.

Writes `study.parquet` (a row for every world, seed, variant and amount), `study.csv` and
`study.json` (means and 95 % intervals over seeds), `study.txt`, `study.html`, its plots as SVG and
PNG, and `manifest.json` into `out`. Worlds are kept as soon as they are done: a killed run
goes on with the next, and a seed, a value or a world added later is all there is to run.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.artifact import Artifact, code_digest
from litbench.config import build, run_program
from litbench.curation.engine import Engine, open_engine
from litbench.curation.pair_making import PairRules, make_keys
from litbench.curation.simulation import World, changed_world, simulate_world, stories_table
from litbench.curation.splits import split_of
from litbench.curation.world_studies import Unit, Worlds, check_variants, rows_of_worlds
from litbench.draws import check_seeds
from litbench.errors import ConfigError, DataError
from litbench.metrics.pairing_rules import (
    LEARNED,
    OUTCOMES,
    TRUTH,
    Amount,
    Learner,
    Place,
    Row,
    fit_preference,
    observe,
    pair_figures,
    rate_random,
    share_above,
    study_text,
    summarise,
    true_pairs,
    within_prompts,
)
from litbench.report.study_figures import draw_study
from litbench.report.study_page import render_study, write_study

# Worlds that are paired in one run: more of them are faster, and a killed run loses more.
_AT_ONCE = 32
# What the program itself says of the rules: pairs are made within the training prompts of a world.
_OWN_KEYS = ("seed", "splits", "test_from", "separate_authors", "label_source")


@dataclass
class Config:
    """Which worlds, which rules.

    Attributes:
        out: folder to write.
        base: what the worlds have in common, see litbench.curation.simulation.World; its seed
            is not used.
        variants: name -> keys of the rules that differ from the paper's full set, see
            litbench.curation.pair_making.PairRules.
        sweeps: name -> knob, values and so on, see `Sweep`.
        worlds: name -> changes and predictions, see litbench.metrics.pairing_rules.LoneWorld.
        seeds: of every world; intervals are over them.
        reference: the variant that gains are measured from.
        learner: what the rater sees, see litbench.metrics.pairing_rules.Learner.
        test_share: share of prompts that pairs are not made of; their random pairs are asked about.
        draws: how often the equal number of pairs is drawn anew; figures are means over draws.
        title: heading of the page.
    """

    out: Path
    base: World = field(default_factory=World)
    variants: dict[str, dict[str, Any]] = field(default_factory=lambda: {"full": {}})
    sweeps: dict[str, dict[str, Any]] = field(default_factory=dict)
    worlds: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    reference: str = "full"
    learner: Learner = field(default_factory=Learner)
    test_share: float = 0.3
    draws: int = 4
    title: str = "LitBench simulation study"


@dataclass
class Sweep:
    """A knob and its values.

    Attributes:
        knob: key of the world, dotted where it is the readers', as readers.length_weight.
        values: in the order of the plot.
        label: of the axis; the knob when empty.
        about: what turns with it.
        changes: keys of the world that differ from the base in all of its worlds.
    """

    knob: str
    values: list[float]
    label: str = ""
    about: str = ""
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The config, read and checked.

    Attributes:
        rules: of each variant.
        worlds: of the sweeps and those that stand alone.
        sweeps: by name.
    """

    rules: dict[str, PairRules]
    worlds: Worlds
    sweeps: dict[str, Sweep]


def read_plan(config: Config) -> Plan:
    """Check everything before any world is run."""
    check_seeds(config.seeds, least=2)
    if not 0 < config.test_share < 1:
        raise ConfigError(f"test_share is {config.test_share}: give a share between 0 and 1")
    if config.draws < 1:
        raise ConfigError(f"draws is {config.draws}: give at least 1")
    check_variants(list(config.variants), config.reference, "variants")
    rules = {}
    for name, keys in config.variants.items():
        for key in _OWN_KEYS:
            if key in keys:
                raise ConfigError(f"variants: {name}: '{key}' is the study's own: leave it out")
        rules[name] = build(PairRules, {**keys, "label_source": "planted"}, f"variants: {name}")
        rules[name].check()
    places, sweeps, about = {}, {}, {}
    for name, keys in config.sweeps.items():
        if not re.fullmatch(r"[\w-]+", name) or name == "worlds":
            raise ConfigError(
                f"sweeps: '{name}' becomes the name of a plot: write letters, digits, - and _, "
                "and not 'worlds', which the plot of the worlds is called"
            )
        if name in config.worlds:
            raise ConfigError(f"worlds: {name} is the name of a sweep too: rename one of them")
        sweep = sweeps[name] = build(Sweep, keys, f"sweeps: {name}")
        if not sweep.values:
            raise ConfigError(f"sweeps: {name}: values is empty: give one value or more")
        about[name] = sweep.about
        for value in sweep.values:
            changes = {**sweep.changes, sweep.knob: value}
            places[Place(name, value)] = changed_world(config.base, changes, f"sweeps: {name}")
    alone = Worlds.alone(config.base, config.worlds, list(rules))
    worlds = Worlds(places | alone.places, about | alone.about, alone.predictions)
    if not worlds.places:
        raise ConfigError("there are neither sweeps nor worlds: give one at least")
    return Plan(rules, worlds, sweeps)


@dataclass(frozen=True)
class Simulated:
    """A unit's stories and the pairs that do not depend on votes.

    Attributes:
        unit: whose.
        quality: of each story; shape (n,).
        n_words: of each story; shape (n,).
        features: what a rater sees; shape (n, k).
        possible: places of the stories of all pairs to train on; shape (m, 2).
        asked: likewise of the pairs that raters are asked about.
        stories: those that pairs are made of, the first of all; table by the schema STORIES.
    """

    unit: Unit
    quality: np.ndarray
    n_words: np.ndarray
    features: np.ndarray
    possible: np.ndarray
    asked: np.ndarray
    stories: pa.Table


def simulate_unit(unit: Unit, config: Config) -> Simulated:
    """Simulate a world and set prompts aside to ask about."""
    world = unit.world
    simulated = simulate_world(world)
    quality, n_words = simulated.quality, simulated.n_words
    features = observe(quality, n_words, simulated.author, config.learner, world.seed)
    # Prompts are drawn alike, so the first are as good as any.
    in_train = simulated.prompt < round(world.prompts * (1 - config.test_share))
    both = np.column_stack(within_prompts(simulated.prompt))
    possible, asked = both[in_train[both[:, 0]]], both[~in_train[both[:, 0]]]
    if not len(possible) or not len(asked):
        raise DataError(
            f"{unit.where}: no prompt to train on, or none to ask about, has two stories: "
            "simulate more prompts"
        )
    stories = stories_table(simulated, texts=False).filter(pa.array(in_train))
    # Two worlds have the same names, and the same texts in the place of stories.
    for column in ("story_id", "prompt_id", "text"):
        place = stories.schema.get_field_index(column)
        prefix = pa.scalar(unit.key, stories.schema.field(place).type)
        dash = pa.scalar("-", prefix.type)
        named = pc.binary_join_element_wise(prefix, stories[column], dash)
        stories = stories.set_column(place, column, named)
    return Simulated(unit, quality, n_words, features, possible, asked, stories)


def name_prompts(units: Sequence[Simulated], splits: Mapping[str, float], seed: int) -> pa.Table:
    """All stories, with prompts whose hash puts each unit's into a split of its own.

    Nearly all the time of pairing is spent per run and not per story, and all that pairing does, it
    does within a split.
    """
    needed = {one.unit.key: len(pc.unique(one.stories["prompt_id"])) for one in units}
    texts: dict[str, list[str]] = {name: [] for name in splits}
    lacking = sum(needed.values())
    for number in itertools.count():
        if not lacking:
            break
        text = f"Prompt {number}"
        found = texts[split_of(text, splits, seed)]
        found.append(text)
        lacking -= len(found) <= needed[split_of(text, splits, seed)]
    tables = []
    for one in units:
        prompts = pc.dictionary_encode(one.stories["prompt_id"].combine_chunks())
        column = pa.array(texts[one.unit.key]).take(prompts.indices)
        place = one.stories.schema.get_field_index("prompt")
        column = column.cast(one.stories.schema.field(place).type)
        tables.append(one.stories.set_column(place, "prompt", column))
    return pa.concat_tables(tables)


def make_pairs(
    engine: Engine, units: Sequence[Simulated], rules: Mapping[str, PairRules]
) -> list[dict[str, np.ndarray]]:
    """Pair the stories of all units by the rules of every variant.

    Returns:
        For each unit and variant the places of chosen and rejected stories, by pair_id; shape
        (pairs, 2).
    """
    splits = {one.unit.key: 1 / len(units) for one in units}
    stories = name_prompts(units, splits, next(iter(rules.values())).seed)
    known = engine.put(stories)
    found: list[dict[str, np.ndarray]] = [{} for _ in units]
    starts = np.cumsum([0, *(one.stories.num_rows for one in units)])
    for name, own in rules.items():
        made = make_keys(engine, known, replace(own, splits=splits), where="the simulated stories")
        keys = made.after.select("pair_id", "chosen_story_id", "rejected_story_id")
        keys = keys.order_by("pair_id")
        table = pa.Table.from_batches(engine.batches(keys), keys.schema().to_pyarrow())
        places = np.column_stack(
            [
                pc.index_in(table[f"{side}_story_id"], value_set=stories["story_id"]).to_numpy()
                for side in ("chosen", "rejected")
            ]
        ).astype(np.int64)
        unit_of = np.searchsorted(starts, places[:, 0], side="right") - 1
        for number, one in enumerate(units):
            of = places[unit_of == number] - starts[number]
            if not len(of):
                raise DataError(
                    f"{one.unit.where}: variant {name} leaves no pair: simulate more prompts or "
                    "leave the variant out"
                )
            found[number][name] = of
    return found


def figures_of(
    one: Simulated, pairs: dict[str, np.ndarray], config: Config
) -> list[dict[str, Any]]:
    """Train, ask and count; returns plain rows, a variant and an amount each."""
    equal, most = min(map(len, pairs.values())), max(map(len, pairs.values()))
    random = np.random.default_rng([one.unit.world.seed, 11])
    pairs = {**pairs, TRUTH: true_pairs(one.quality, one.possible, most, random)}
    first, second = one.asked[:, 0], one.asked[:, 1]
    better, longer = (values[first] - values[second] for values in (one.quality, one.n_words))
    seen = one.features[first] - one.features[second]

    def learn(of: np.ndarray) -> dict[str, float]:
        differences = one.features[of[:, 0]] - one.features[of[:, 1]]
        weights = fit_preference(differences, config.learner.penalty)
        return rate_random(weights, seen, better, longer)

    rows = []
    for name, of in pairs.items():
        own = pair_figures(one.quality, one.n_words, of[:, 0], of[:, 1])
        own["kept"] = len(of) / len(one.possible)
        drawn = [learn(of[random.permutation(len(of))[:equal]]) for _ in range(config.draws)]
        learned: dict[Amount, dict[str, float]] = {
            "equal": {key: float(np.mean([figures[key] for figures in drawn])) for key in LEARNED},
            "natural": learn(of),
        }
        for amount, figures in learned.items():
            used = equal if amount == "equal" else len(of)
            rows.append({
                "variant": name, "amount": amount, "figures": {**figures, **own, "pairs": used},
                "random_longer": share_above(np.sign(better) * longer),
            })  # fmt: skip
    return rows


def run_units(units: Sequence[Unit], plan: Plan, config: Config) -> list[list[dict[str, Any]]]:
    """The rows of every unit."""
    simulated = [simulate_unit(unit, config) for unit in units]
    with open_engine("duckdb", config.out) as engine:
        pairs = make_pairs(engine, simulated, plan.rules)
    return [figures_of(one, own, config) for one, own in zip(simulated, pairs, strict=True)]


def run_all(plan: Plan, config: Config) -> list[Row]:
    """Run what is not there yet; returns the rows of the whole study."""
    code = code_digest(__file__, "curation", "metrics/pairing_rules.py")
    return rows_of_worlds(
        config.out / "parts",
        plan.worlds.places,
        config.seeds,
        [plan.rules, config.learner, config.test_share, config.draws, code],
        lambda units: run_units(units, plan, config),
        at_once=_AT_ONCE,
    )


def main(config: Config) -> None:
    """Run the worlds, then write the figures and the page."""
    plan = read_plan(config)
    artifact = Artifact(config.out, program=__file__, config=config, inputs={})
    page_path = (config.out / "study.html").resolve()
    if artifact.is_current():
        print((config.out / "study.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return
    rows = run_all(plan, config)
    study = summarise(rows, config.reference, plan.worlds.predictions)
    text = study_text(study) + "\n"
    labels = {name: sweep.label or sweep.knob for name, sweep in plan.sweeps.items()}
    panels = draw_study(study, labels)
    page = render_study(
        title=config.title,
        study=study,
        panels=panels,
        about=plan.worlds.about,
        labels=labels,
        manifests={"study": artifact.made_of()},
    )
    write_study(artifact, "study", study=study, rows=rows, text=text, page=page, panels=panels)
    artifact.counts = {
        "worlds": len(study.worlds),
        "seeds": len(config.seeds),
        "rows": len(rows),
        "predictions": {
            outcome: sum(one.outcome == outcome for one in study.checked) for outcome in OUTCOMES
        },
    }
    artifact.finish()
    print(f"{text}page: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
