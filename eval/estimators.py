"""Compare ways to turn votes into training pairs where the true quality is known.

    python eval/estimators.py --config configs/eval/estimators.yaml

Simulates each of `worlds` with each of `seeds` (litbench.curation.simulation). Each of `arms` makes
training pairs of the same stories: by rules of pairing, or by estimated quality
(litbench.curation.estimation). Four questions, all asked on test prompts, over all pairs of their
stories, whatever their votes:

- decided: of how many of these pairs the arm says which story is the better;
- right: how often that is so, by true quality; and `labels`: the same over all pairs, those not
  decided counted as one half;
- `learner`: how often a logistic regression on noisy signs of quality and on length, trained on the
  arm's pairs of the training prompts, prefers the truly better story: on all that the arm makes of
  the stories (`equal stories`), and on as many pairs as every arm has (`equal pairs`);
- `longer`: how often that learner prefers the longer story, beside how often it is the better.

Every world and seed is a part that is kept: a killed run goes on with the next. Writes
`estimators.parquet` (a row per world, seed and arm), `estimators.json` (means and differences from
`reference`, with intervals over seeds), `estimators.txt` and `manifest.json` into `out`.
"""

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from litbench.config import as_plain, build, run_program
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
from litbench.curation.simulation import SimulatedWorld, World, simulate_world, stories_table
from litbench.curation.splits import split_prompts
from litbench.errors import ConfigError, DataError
from litbench.manifest import Product, code_digest, fingerprint, write_json
from litbench.metrics.intervals import Interval, mean_interval
from litbench.models.features import feature_matrix
from litbench.records import write_table

MEASURES = (
    "decided", "right", "labels", "calibration", "equal_stories", "equal_pairs", "longer",
    "truly_longer", "pairs",
)  # fmt: skip

# The parts of the package that a part of the study depends on.
CODE = ("curation", "models/features.py", "records.py", "text.py")


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

    def pair_rules(self, seed: int) -> PairRules:
        """The rules, with the splits that all arms share."""
        shared = {"seed": seed, "splits": {"train": 0.8, "test": 0.2}, "label_source": "planted"}
        off: dict[str, Any] = {}
        if self.estimation is not None:
            off = dict.fromkeys(
                ("min_score", "max_tokens", "min_words", "min_gap", "symmetry_buckets")
            ) | {"chosen_later": False}
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
        world: keys that all worlds share, see litbench.curation.simulation.World.
        worlds: name -> keys that differ; `readers` are merged key by key.
        seeds: each simulates every world once.
        arms: name -> see Arm.
        reference: the arm that the others are compared with.
        learner: what the learner sees beside length: `signs`, six noisy signs of quality drawn for
            each story (`World.style` of its variance together), or `features`, the surface
            features of invented texts, which takes 1.5 ms a story.
        pairs: how many pairs are equal; null for as many as the arm with the fewest has.
    """

    out: Path
    world: dict[str, Any] = field(default_factory=dict)
    worlds: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4])
    arms: dict[str, Arm] = field(default_factory=dict)
    reference: str = "full"
    learner: Literal["signs", "features"] = "signs"
    pairs: int | None = None


@dataclass(frozen=True)
class Pairs:
    """Pairs of an arm by place of their stories; shape (n,) each, in the order of pair_id."""

    chosen: np.ndarray
    rejected: np.ndarray
    weight: np.ndarray
    p_chosen: np.ndarray
    split: np.ndarray

    def of(self, split: str) -> "Pairs":
        """Those of a split."""
        rows = self.split == split
        return Pairs(*(getattr(self, each.name)[rows] for each in fields(self)))


def build_worlds(config: Config) -> dict[str, World]:
    """Check all worlds before the first is simulated."""
    if not config.worlds or not config.arms or len(set(config.seeds)) < 2:
        raise ConfigError("give at least one world, one arm and two different seeds")
    if config.reference not in config.arms:
        raise ConfigError(
            f"reference is '{config.reference}', and the arms are {', '.join(config.arms)}: give "
            "one of these"
        )
    for arm in config.arms.values():
        arm.pair_rules(0)
    made = {}
    for name, keys in config.worlds.items():
        readers = {**config.world.get("readers", {}), **keys.get("readers", {})}
        merged = {**config.world, **keys, "readers": readers}
        made[name] = build(World, merged, f"worlds: {name}")
    return made


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
    ones = np.ones(table.num_rows)
    p_chosen = ones if arm.estimation is None else table["p_chosen"].to_numpy()
    weight = table["weight"].to_numpy() if arm.estimation is not None and arm.weights else ones
    return Pairs(*places, weight, p_chosen, np.asarray(table["split"].to_pylist()))


def all_pairs(simulated: SimulatedWorld, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both places of every pair of stories of one prompt, of the stories `inside`."""
    first: list[np.ndarray] = []
    second: list[np.ndarray] = []
    edges = np.flatnonzero(np.diff(simulated.prompt, prepend=-1))
    for start, end in zip(edges, [*edges[1:], len(simulated.prompt)], strict=True):
        if inside[start]:
            low, high = np.triu_indices(end - start, 1)
            first.append(low + start)
            second.append(high + start)
    return np.concatenate(first), np.concatenate(second)


def learn(signs: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Coefficients of a logistic regression on differences; the scale is that of the signs."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    difference = signs[pairs.chosen] - signs[pairs.rejected]
    # Both orders of every pair, as the feature model does.
    both = np.concatenate([difference, -difference])
    label = np.repeat([1, 0], len(difference))
    model = LogisticRegression(fit_intercept=False, solver="newton-cholesky", max_iter=1_000)
    return model.fit(both, label, sample_weight=np.tile(pairs.weight, 2) / 2).coef_[0]


def measure(config: Config, world: World, seed: int) -> list[dict[str, Any]]:
    """All arms on one simulated world."""
    simulated = simulate_world(world)
    table = stories_table(simulated, texts=config.learner == "features")
    if config.learner == "features":
        signs = feature_matrix(table["prompt"].to_pylist(), table["text"].to_pylist())
    else:
        drawn = styles_of(simulated.quality, world.style, np.random.default_rng([seed, 7]))
        signs = np.column_stack([drawn, np.log1p(simulated.n_words)])
    signs = signs - signs.mean(0)
    signs = signs / np.where(signs.std(0) > 0, signs.std(0), 1)
    prompts = table["prompt"].to_pylist()
    split = split_prompts(prompts, {"train": 0.8, "test": 0.2}, seed)
    first, second = all_pairs(simulated, np.array([split[p] == "test" for p in prompts]))
    better = simulated.quality[first] > simulated.quality[second]
    words = simulated.n_words[first] - simulated.n_words[second]
    truly = float(np.mean(better[words != 0] == (words > 0)[words != 0]))
    with open_engine("duckdb", config.out, memory_limit=None, spark={}) as engine:
        stories = engine.put(table)
        made = {name: make_arm(engine, stories, arm, seed) for name, arm in config.arms.items()}
    fewest = min(len(pairs.of("train").chosen) for pairs in made.values())
    equal = fewest if config.pairs is None else min(config.pairs, fewest)
    rows = []
    for name, pairs in made.items():
        train, test = pairs.of("train"), pairs.of("test")
        right = simulated.quality[test.chosen] > simulated.quality[test.rejected]
        decided = len(right) / len(first)
        share = float(right.mean()) if len(right) else 0.5
        # pair_id is a hash, so that the first pairs are drawn at random.
        some = Pairs(*(getattr(train, each.name)[:equal] for each in fields(train)))
        rewards = [signs @ learn(signs, part) for part in (train, some)]
        ahead = [reward[first] > reward[second] for reward in rewards]
        rows.append(
            {
                "arm": name,
                "decided": decided,
                "right": share,
                "labels": decided * share + (1 - decided) / 2,
                "calibration": float(test.p_chosen.mean()) - share if len(right) else 0.0,
                "equal_stories": float(np.mean(ahead[0] == better)),
                "equal_pairs": float(np.mean(ahead[1] == better)),
                "longer": float(np.mean((ahead[0] == (words > 0))[words != 0])),
                "truly_longer": truly,
                "pairs": float(len(train.chosen)),
                "equal": equal,
            }
        )
    return rows


def summarise(rows: list[dict[str, Any]], config: Config) -> dict[str, Any]:
    """Means over seeds and paired differences from the reference, with intervals."""
    summary: dict[str, Any] = {}
    for world in config.worlds:
        arms = {}
        for arm in config.arms:
            own = [r for r in rows if r["world"] == world and r["arm"] == arm]
            other = [r for r in rows if r["world"] == world and r["arm"] == config.reference]
            figures = {
                name: plain(mean_interval(np.array([r[name] for r in own]), config.seeds))
                for name in MEASURES
            }
            lead = {
                name: plain(
                    mean_interval(
                        np.array([a[name] - b[name] for a, b in zip(own, other, strict=True)]),
                        config.seeds,
                    )
                )
                for name in ("labels", "equal_stories", "equal_pairs")
            }
            arms[arm] = {**figures, "equal": own[0]["equal"], "lead": lead}
        summary[world] = arms
    return summary


def plain(interval: Interval) -> dict[str, float]:
    """A mean and its bounds."""
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}


def as_text(summary: dict[str, Any], config: Config) -> str:
    """One line per world and arm."""
    lines = []
    for world, arms in summary.items():
        lines.append(f"{world} ({len(config.seeds)} seeds; lead over {config.reference})")
        for arm, one in arms.items():
            cells = [
                f"pairs {one['pairs']['mean']:8,.0f}",
                *(f"{n} {one[n]['mean']:.3f}" for n in ("decided", "right", "labels")),
            ]
            for name in ("equal_stories", "equal_pairs"):
                lead = one["lead"][name]
                cells.append(
                    f"{name} {one[name]['mean']:.3f} "
                    f"({lead['mean']:+.3f} [{lead['low']:+.3f}, {lead['high']:+.3f}])"
                )
            longer = f"longer {one['longer']['mean']:.3f} of {one['truly_longer']['mean']:.3f}"
            lines.append("  " + "  ".join([f"{arm:24}", *cells, longer]))
    return "\n".join(lines) + "\n"


def main(config: Config) -> None:
    """Simulate, make pairs, learn, compare."""
    worlds = build_worlds(config)
    product = Product(config.out, program=__file__, config=config, inputs={})
    if product.is_current():
        print((config.out / "estimators.txt").read_text(encoding="utf-8"), end="")
        return
    code = code_digest(__file__, *CODE)
    rows: list[dict[str, Any]] = []
    jobs = [(name, seed) for seed in config.seeds for name in worlds]
    arms = as_plain(config.arms)
    wanted = set()
    for name, seed in tqdm(jobs, desc="worlds", leave=False, disable=None):
        plain_world = {**as_plain(worlds[name]), "seed": seed}
        depends_on = fingerprint(plain_world, arms, config.learner, config.pairs, code)
        path = config.out / "parts" / f"{depends_on[:24]}.json"
        wanted.add(path.name)
        if path.is_file():
            part = json.loads(path.read_text(encoding="utf-8"))
        else:
            part = measure(config, build(World, plain_world, f"worlds: {name}"), seed)
            write_json(part, path)
        rows += [{"world": name, "seed": seed, **row} for row in part]
    summary = summarise(rows, config)
    text = as_text(summary, config)
    product.write("estimators.parquet", lambda path: write_table(pa.Table.from_pylist(rows), path))
    product.write("estimators.json", lambda path: write_json(summary, path))
    product.write("estimators.txt", lambda path: path.write_text(text, encoding="utf-8"))
    product.counts = {"rows": len(rows)}
    product.finish()
    for path in (config.out / "parts").glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    print(text, end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
