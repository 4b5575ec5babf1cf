"""Compare ways to turn votes into training pairs where the true quality is known.

    python eval/estimators.py --config configs/eval/estimators.yaml

Simulates each of `worlds` with each of `seeds` (litbench.curation.simulation). Each of `arms` makes
training pairs of the same stories: by rules of pairing, or by estimated quality
(litbench.curation.estimation). Asked on test prompts, over all pairs of their stories, whatever
their votes:

- `kept`: of how many of these pairs the arm says which story is the better;
- `right`: how often that is so, by true quality; and `labels`: the same over all pairs, those not
  decided counted as one half; `calibration`: how far `p_chosen` is above `right` on average;
- `agreement`: how often a logistic regression on noisy signs of quality and on length, trained on
  the arm's pairs of the training prompts, prefers the truly better story: on all that the arm makes
  of the stories (`natural`), and on as many pairs as every arm has (`equal`);
- `prefers_longer`: how often that learner prefers the longer story.

Beside the arms stands `truth`: random pairs of the training prompts labelled by quality itself.
Worlds may come with predictions, which are checked.

Every world and seed is a part that is kept: a killed run goes on with the next. Writes
`estimators.parquet` (a row per world, seed, arm and amount), `estimators.csv` and `estimators.json`
(means, and differences from `reference` paired by seed, with 95 % intervals over seeds),
`estimators.txt`, `estimators.html`, its plot `estimators_worlds.svg` and `.png`, and
`manifest.json` into `out`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from litbench.curation.world_studies import Unit, Worlds, check_variants, rows_of_worlds
from litbench.report.study_figures import draw_study

from litbench.artifact import Artifact, code_digest
from litbench.config import build, run_program
from litbench.curation.engine import Engine, open_engine
from litbench.curation.estimation import (
    EstimationOptions,
    check_rules,
    estimate_stories,
    make_estimated_keys,
    more_probable,
    with_confidence,
)
from litbench.curation.invented_texts import styles_of
from litbench.curation.pair_making import PairRules, make_keys
from litbench.curation.simulation import World, simulate_world, stories_table
from litbench.curation.splits import split_prompts
from litbench.draws import check_seeds
from litbench.errors import ConfigError, DataError
from litbench.metrics.pairing_rules import (
    TRUTH,
    Study,
    fit_preference,
    pair_figures,
    rate_random,
    share_above,
    study_text,
    summarise,
    true_pairs,
    within_prompts,
)
from litbench.models.features import feature_matrix
from litbench.report.study_page import render_study, write_study

# What is told of labels, by column of the page.
_OF_LABELS = {"labels": "right of all test pairs", "calibration": "surer than right, by"}

# The parts of the package that a part of the study depends on.
CODE = ("curation", "metrics/pairing_rules.py", "models/features.py", "records.py", "text.py")


@dataclass
class Arm:
    """One way to make pairs.

    Attributes:
        rules: keys of PairRules; for an arm that estimates, those that prune are off unless given.
        estimation: options of the estimate; null for pairs by votes.
        min_probability: of an arm that estimates: least probability that chosen is the better.
        weights: of an arm that estimates: train with the pairs' weights.
    """

    rules: dict[str, Any] = field(default_factory=dict)
    estimation: EstimationOptions | None = None
    min_probability: float = 0.5
    weights: bool = True

    def check(self) -> None:
        """Check what the types cannot."""
        if not 0.5 <= self.min_probability < 1:
            raise ConfigError(
                f"min_probability is {self.min_probability}: give a probability from 0.5 to below 1"
            )
        if self.estimation is None and (self.min_probability > 0.5 or not self.weights):
            raise ConfigError(
                "min_probability and weights are of an estimate: give estimation, or leave them out"
            )
        self.pair_rules(0)

    def pair_rules(self, seed: int) -> PairRules:
        """The rules, with the splits that all arms share."""
        shared = {"seed": seed, "splits": {"train": 0.8, "test": 0.2}, "label_source": "planted"}
        off: dict[str, Any] = {}
        if self.estimation is not None:
            off = dict.fromkeys(
                ("min_score", "max_tokens", "min_words", "min_gap", "symmetry_buckets")
            ) | {"chosen_later": False}
        for key in shared.keys() & self.rules.keys():
            raise ConfigError(f"rules: '{key}' is the comparison's own: leave it out")
        rules = build(PairRules, {**off, **self.rules, **shared}, "rules")
        rules.check()
        if self.estimation is not None:
            check_rules(rules)
        return rules


@dataclass
class Config:
    """What to simulate and what to compare.

    Attributes:
        out: folder to write.
        world: what the worlds have in common, see litbench.curation.simulation.World; its seed
            is not used.
        worlds: name -> changes and predictions, see litbench.metrics.pairing_rules.LoneWorld.
        seeds: each simulates every world once.
        arms: name -> see Arm.
        reference: the arm that the others are compared with.
        learner: what the learner sees beside length: `signs`, six noisy signs of quality drawn for
            each story (`World.style` of its variance together), or `features`, the surface
            features of invented texts, which takes 1.5 ms a story.
        pairs: how many pairs are equal; null for as many as the arm with the fewest has.
        title: heading of the page.
    """

    out: Path
    world: World = field(default_factory=World)
    worlds: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4])
    arms: dict[str, Arm] = field(default_factory=dict)
    reference: str = "full"
    learner: Literal["signs", "features"] = "signs"
    pairs: int | None = None
    title: str = "LitBench: filters and estimates"


@dataclass(frozen=True)
class Pairs:
    """Pairs of an arm by place of their stories; shape (n,) each, in the order of pair_id.

    Attributes:
        chosen: places of the chosen stories.
        rejected: places of the rejected ones.
        weight: in training.
        p_chosen: probability that chosen is the better; NaN where the arm gives none.
        split: train or test.
    """

    chosen: np.ndarray
    rejected: np.ndarray
    weight: np.ndarray
    p_chosen: np.ndarray
    split: np.ndarray

    def of(self, split: str) -> "Pairs":
        """Those of a split."""
        rows = self.split == split
        return Pairs(*(getattr(self, each.name)[rows] for each in fields(self)))


def read_worlds(config: Config) -> Worlds:
    """Check everything before the first world is simulated."""
    if not config.worlds or not config.arms:
        raise ConfigError("worlds or arms is empty: give at least one of each")
    check_seeds(config.seeds, least=2)
    check_variants(list(config.arms), config.reference, "arms")
    if config.pairs is not None and config.pairs < 1:
        raise ConfigError(f"pairs is {config.pairs}: give at least 1, or null")
    for name, arm in config.arms.items():
        try:
            arm.check()
        except ConfigError as error:
            raise ConfigError(f"arms: {name}: {error}") from error
    return Worlds.alone(config.world, config.worlds, list(config.arms), list(_OF_LABELS))


def make_arm(engine: Engine, stories: Any, arm: Arm, seed: int) -> Pairs:
    """The pairs of an arm."""
    rules = arm.pair_rules(seed)
    if arm.estimation is None:
        made = make_keys(engine, stories, rules)
        columns = ("pair_id", "chosen_story_id", "rejected_story_id", "split")
        batches = list(engine.batches(made.after.select(*columns).order_by("pair_id")))
    else:
        estimated = estimate_stories(engine, stories, rules, arm.estimation, fit_split="train")
        made = make_estimated_keys(engine, stories, estimated, rules)
        sure = with_confidence(engine, made.after, estimated)
        batches = list(more_probable(sure, arm.min_probability))
    if not sum(batch.num_rows for batch in batches):
        raise DataError(f"no pair is left:\n{made.funnel}\nloosen a rule, or simulate more stories")
    table = pa.Table.from_batches(batches)
    places = [
        # Stories are named s0, s1, ... in their order.
        pc.cast(pc.utf8_slice_codeunits(table[f"{side}_story_id"], 1), pa.int64()).to_numpy()
        for side in ("chosen", "rejected")
    ]
    weight, p_chosen = np.ones(table.num_rows), np.full(table.num_rows, math.nan)
    if arm.estimation is not None:
        p_chosen = table["p_chosen"].to_numpy()
        weight = table["weight"].to_numpy() if arm.weights else weight
    return Pairs(*places, weight, p_chosen, np.asarray(table["split"].to_pylist()))


def measure(config: Config, world: World) -> list[dict[str, Any]]:
    """All arms on one simulated world; returns plain rows, an arm and an amount each."""
    simulated, seed = simulate_world(world), world.seed
    quality, n_words = simulated.quality, simulated.n_words
    table = stories_table(simulated, texts=config.learner == "features")
    prompts = table["prompt"].to_pylist()
    if config.learner == "features":
        signs = feature_matrix(prompts, table["text"].to_pylist())
    else:
        drawn = styles_of(quality, world.style, np.random.default_rng([seed, 7]))
        signs = np.column_stack([drawn, np.log1p(n_words)])
    signs = signs - signs.mean(0)
    signs = signs / np.where(signs.std(0) > 0, signs.std(0), 1)
    split = split_prompts(prompts, {"train": 0.8, "test": 0.2}, seed)
    in_test = np.array([split[prompt] == "test" for prompt in prompts])
    both = np.column_stack(within_prompts(simulated.prompt))
    possible, asked = both[~in_test[both[:, 0]]], both[in_test[both[:, 0]]]
    if not len(possible) or not len(asked):
        raise DataError("no prompt to train on, or none to test on, has two stories: give more")
    with open_engine("duckdb", config.out, memory_limit=None, spark={}) as engine:
        stories = engine.put(table)
        made = {name: make_arm(engine, stories, arm, seed) for name, arm in config.arms.items()}
    sizes = [len(pairs.of("train").chosen) for pairs in made.values()]
    equal = min(sizes) if config.pairs is None else min(config.pairs, *sizes)
    if not equal:
        raise DataError(
            f"arm {list(made)[sizes.index(0)]} has no pair to train on: loosen a rule, or simulate "
            "more prompts"
        )
    random = np.random.default_rng([seed, 11])
    learnt = true_pairs(quality, possible, max(sizes), random)
    told = true_pairs(quality, asked, len(asked), random)
    sides = np.concatenate([learnt, told])
    weight, p_chosen = np.ones(len(sides)), np.full(len(sides), math.nan)
    splits = np.repeat(["train", "test"], [len(learnt), len(told)])
    made[TRUTH] = Pairs(*sides.T, weight, p_chosen, splits)
    first, second = asked[:, 0], asked[:, 1]
    better, longer = quality[first] - quality[second], n_words[first] - n_words[second]
    seen = signs[first] - signs[second]

    def learn(of: Pairs) -> dict[str, float]:
        weights = fit_preference(signs[of.chosen] - signs[of.rejected], 1.0, of.weight)
        return rate_random(weights, seen, better, longer)

    rows = []
    for name, pairs in made.items():
        train, test = pairs.of("train"), pairs.of("test")
        own = pair_figures(quality, n_words, test.chosen, test.rejected)
        kept, right = len(test.chosen) / len(asked), own["right"]
        own |= {
            "kept": kept,
            "labels": kept * right + (1 - kept) / 2 if kept else 0.5,
            "calibration": float(test.p_chosen.mean()) - right if kept else math.nan,
        }
        # pair_id is a hash, so that the first pairs are drawn at random.
        some = Pairs(*(getattr(train, each.name)[:equal] for each in fields(train)))
        for amount, of in (("equal", some), ("natural", train)):
            rows.append({
                "variant": name, "amount": amount,
                "figures": {**learn(of), **own, "pairs": len(of.chosen)},
                "random_longer": share_above(np.sign(better) * longer),
            })  # fmt: skip
    return rows


def run_units(units: Sequence[Unit], config: Config) -> list[list[dict[str, Any]]]:
    """The rows of every unit."""
    rows = []
    for unit in units:
        try:
            rows.append(measure(config, unit.world))
        except DataError as error:
            raise DataError(f"{unit.where}: {error}") from error
    return rows


def labels_text(study: Study) -> str:
    """What the arms say of the test pairs, for a terminal."""
    width = max(len(name) for name in study.variants)
    lines = ["", "test pairs: says which is the better of, right of these, right of all (undecided"]
    lines.append("counted as one half), and how far p_chosen is above right on average")
    for place in study.places:
        lines += ["", str(place)]
        for one in study.at(place, "natural"):
            cells = [f"{one.figures[name]!s:<21}" for name in ("kept", "right", "labels")]
            surer = one.figures["calibration"].mean
            cells.append("" if math.isnan(surer) else f"{surer:+.3f}")
            lines.append("  ".join([f"{one.variant:<{width}}", *cells]).rstrip())
    return "\n".join(lines)


def main(config: Config) -> None:
    """Simulate, make pairs, learn, compare."""
    worlds = read_worlds(config)
    artifact = Artifact(config.out, program=__file__, config=config, inputs={})
    page_path = (config.out / "estimators.html").resolve()
    if artifact.is_current():
        print((config.out / "estimators.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return
    rows = rows_of_worlds(
        config.out / "parts",
        worlds.places,
        config.seeds,
        [config.arms, config.learner, config.pairs, code_digest(__file__, *CODE)],
        lambda units: run_units(units, config),
    )
    study = summarise(rows, config.reference, worlds.predictions)
    text = f"{study_text(study)}\n{labels_text(study)}\n"
    panels = draw_study(study, {}, ("equal", "natural"))
    page = render_study(
        title=config.title,
        study=study,
        panels=panels,
        about=worlds.about,
        labels={},
        manifests={"estimators": artifact.made_of()},
        further=_OF_LABELS,
    )
    write_study(artifact, "estimators", study=study, rows=rows, text=text, page=page, panels=panels)
    artifact.counts = {"worlds": len(study.worlds), "seeds": len(config.seeds), "rows": len(rows)}
    artifact.finish()
    print(f"{text}page: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
