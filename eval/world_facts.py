"""Hold a simulated world against what the paper says of its data: pairs, lengths and votes.

    python eval/world_facts.py --config configs/eval/world_facts.yaml

Simulates the `world` that a config of data_prep/simulate_stories.py describes, once per seed and
without texts, makes the paper's three data sets of it (naive upvotes, upvotes and timestamps,
full: 5.4) and writes what they hold beside what the paper says, with t intervals over seeds, as
`facts.json` and `facts.txt`, and `manifest.json` into `out`. Facts that the paper does not give
stand beside them: among these how often each set is right about true quality.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from litbench.artifact import Artifact, write_json
from litbench.config import as_plain, build, read_yaml, run_program
from litbench.curation.engine import Engine, open_engine
from litbench.curation.pair_making import PairRules, make_keys
from litbench.curation.simulation import SimulatedWorld, World, simulate_world, stories_table
from litbench.draws import check_seeds
from litbench.errors import ConfigError, DataError
from litbench.metrics.intervals import mean_interval

_NO_LENGTHS: dict[str, Any] = {"max_tokens": None, "min_words": None, "symmetry_buckets": None}
# The paper's data sets (5.4).
RULES = {
    "naive": PairRules(chosen_later=False, **_NO_LENGTHS),
    "timestamps": PairRules(min_score=None, **_NO_LENGTHS),
    "full": PairRules(),
}

# What is told, and what the paper says; null where it does not.
FACTS: dict[str, tuple[str, float | None]] = {
    "chosen_longer": ("pairs whose chosen story is the longer, before symmetry (3.2)", 0.6525),
    "naive_per_timestamps": ("naive pairs per pair by timestamps (5.4)", 395 / 1030),
    "full_per_naive": ("full pairs per naive pair (5.4, 3.3)", 43.827 / 395),
    "stories_per_pair": ("stories in the full pairs, per pair (3.3)", 50_309 / 43_827),
    "mean_words": ("mean words of the stories in the full pairs (3.3)", 550),
    "least_chosen": ("fewest votes of a chosen story (3.3)", 14),
    "least_rejected": ("fewest votes of a rejected story (3.2)", 10),
    "stories_read_per_pair": ("stories of the world per full pair", None),
    "rejected_below_20": ("rejected stories with 10 to 19 votes", None),
    "median_rejected": ("median votes of rejected stories", None),
    "highest_rejected": ("99 % of rejected stories have at most so many votes", None),
    "median_chosen": ("median votes of chosen stories", None),
    "right_naive": ("naive pairs whose chosen story is the better", None),
    "right_timestamps": ("pairs by timestamps whose chosen story is the better", None),
    "right_full": ("full pairs whose chosen story is the better", None),
}


@dataclass
class Config:
    """Which world, and how often.

    Attributes:
        simulation: YAML of data_prep/simulate_stories.py; its key `world` is taken.
        out: folder to write.
        prompts: prompts per seed, in place of the world's.
        seeds: of the worlds; at least two.
    """

    simulation: Path
    out: Path
    prompts: int = 8_000
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3, 4, 5])


def pairs_of(engine: Engine, stories: Any, name: str) -> dict[str, np.ndarray]:
    """Keys of one data set's pairs before symmetry, and whether symmetry takes a pair away."""
    made = make_keys(engine, stories, RULES[name])
    wanted = made.before.select(
        "removed",
        *(
            f"{side}_{column}"
            for side in ("chosen", "rejected")
            for column in ("story_id", "score", "n_words")
        ),
    )
    table = pa.Table.from_batches(engine.batches(wanted))
    return {column: table[column].to_numpy() for column in table.column_names}


def facts_of(engine: Engine, simulated: SimulatedWorld) -> dict[str, float]:
    """Everything in FACTS."""
    table = stories_table(simulated, texts=False)
    stories = engine.put(table)
    place = {story_id: row for row, story_id in enumerate(table["story_id"].to_pylist())}

    def places(ids: np.ndarray) -> np.ndarray:
        return np.array([place[story_id] for story_id in ids], dtype=np.int64)

    counts, right = {}, {}
    for name in RULES:
        pairs = pairs_of(engine, stories, name)
        kept = ~pairs["removed"]
        chosen, rejected = (places(pairs[f"{side}_story_id"]) for side in ("chosen", "rejected"))
        if not kept.any():
            raise DataError(
                f"the rules of '{name}' leave no pair of {len(simulated.prompt):,} stories, seed "
                f"{simulated.world.seed}: give more prompts, or a world of more votes"
            )
        better = simulated.quality[chosen] > simulated.quality[rejected]
        counts[name], right[name] = int(kept.sum()), float(better[kept].mean())
    # The full set comes last: what is left in `pairs` is its.
    used = np.unique(np.concatenate([chosen[kept], rejected[kept]]))
    votes = {side: pairs[f"{side}_score"][kept] for side in ("chosen", "rejected")}
    return {
        "chosen_longer": float((pairs["chosen_n_words"] > pairs["rejected_n_words"]).mean()),
        "naive_per_timestamps": counts["naive"] / counts["timestamps"],
        "full_per_naive": counts["full"] / counts["naive"],
        "stories_per_pair": len(used) / counts["full"],
        "mean_words": float(simulated.n_words[used].mean()),
        "least_chosen": float(votes["chosen"].min()),
        "least_rejected": float(votes["rejected"].min()),
        "stories_read_per_pair": len(simulated.prompt) / counts["full"],
        "rejected_below_20": float((votes["rejected"] < 20).mean()),
        "median_rejected": float(np.median(votes["rejected"])),
        "highest_rejected": float(np.quantile(votes["rejected"], 0.99)),
        "median_chosen": float(np.median(votes["chosen"])),
        **{f"right_{name}": share for name, share in right.items()},
    }


def main(config: Config) -> None:
    """Simulate, pair, compare."""
    check_seeds(config.seeds, least=2)
    values = read_yaml(config.simulation).get("world")
    if not isinstance(values, dict):
        raise ConfigError(
            f"{config.simulation}: no key 'world': give a config of simulated stories"
        )
    world = replace(build(World, values, f"{config.simulation}: world"), prompts=config.prompts)
    artifact = Artifact(
        config.out, program=__file__, config=config, inputs={"simulation": config.simulation}
    )
    if artifact.is_current():
        return
    found = []
    for seed in tqdm(config.seeds, desc="worlds", unit=" worlds", disable=None, leave=False):
        with open_engine("duckdb", config.out) as engine:
            found.append(facts_of(engine, simulate_world(replace(world, seed=seed))))
    wide = max(len(about) for about, _ in FACTS.values())
    lines, facts = [f"{'':<{wide}} {'paper':>7}   simulated"], {}
    for name, (about, paper) in FACTS.items():
        told = mean_interval(np.array([one[name] for one in found]), config.seeds)
        facts[name] = {"about": about, "paper": paper, "by_seed": [one[name] for one in found]}
        facts[name] |= {"mean": told.mean, "low": told.low, "high": told.high}
        shown = "" if paper is None else f"{paper:.4g}"
        lines.append(
            f"{about:<{wide}} {shown:>7}   {told.mean:.4g} [{told.low:.4g}, {told.high:.4g}]"
        )
    text = "\n".join(lines) + "\n"
    artifact.write("facts.txt", lambda path: path.write_text(text, encoding="utf-8"))
    artifact.write("facts.json", lambda path: write_json(facts, path))
    artifact.counts = {"world": as_plain(world), "seeds": len(found)}
    artifact.finish()
    print(text, end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
