"""Simulate a world of prompts, stories of known quality and the readers who vote on them.

    python data_prep/simulate_stories.py --config configs/data/simulated_stories.yaml

Writes `stories.parquet` by the schema STORIES with two columns more, `quality` (the truth) and
`readers` (how many met the story), and `manifest.json` into `out`. It is what make_pairs.py reads,
to be run with `--label_source planted`; neither column goes into pairs. `texts: false` writes a
name in place of each text, for what looks at votes, times and lengths only. The same config gives
the same bytes. See docs/simulation.md.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.curation.simulation import TOKENS_PER_WORD, World, simulate_world, stories_table
from litbench.tables import write_table


@dataclass
class Config:
    """What to simulate.

    Attributes:
        out: folder to write.
        world: parameters, see litbench.curation.simulation.World.
        texts: invent texts whose style partly tells quality.
    """

    out: Path
    world: World = field(default_factory=World)
    texts: bool = True


def main(config: Config) -> None:
    """Simulate and write."""
    artifact = Artifact(config.out, program=__file__, config=config, inputs={})
    if artifact.is_current():
        return
    simulated = simulate_world(config.world)
    table = stories_table(simulated, texts=config.texts)
    artifact.write("stories.parquet", lambda path: write_table(table, path))
    enough = int((simulated.votes.score >= 10).sum())
    artifact.counts = {
        "prompts": config.world.prompts,
        "stories": table.num_rows,
        "at_least_10_votes": enough,
        "tokenizer": f"none: {TOKENS_PER_WORD} tokens a word",
    }
    artifact.finish()
    print(
        f"{config.out / 'stories.parquet'}: {table.num_rows:,} stories of {config.world.prompts:,} "
        f"prompts, {enough:,} with at least 10 votes, median {np.median(simulated.votes.score):.0f}"
    )


if __name__ == "__main__":
    run_program(main, Config, __doc__)
