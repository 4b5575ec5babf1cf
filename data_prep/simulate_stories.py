"""Simulate prompts, stories of known quality, and readers who vote on them.

    python data_prep/simulate_stories.py --config configs/data/simulated_stories.yaml

Writes `stories.parquet` and `manifest.json` into `out`. The table has the schema STORIES and two
extra columns, `quality` (the true quality) and `readers` (the number of readers who saw the story),
which are not copied into pairs. Run make_pairs.py on it with `--label_source planted`. With
`texts: false` each text is a placeholder, which suffices to study votes, times and lengths. The
same config gives the same bytes. See docs/simulation.md.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from litbench.config import run_program
from litbench.curation.simulation import TOKENS_PER_WORD, World, simulate_world, stories_table
from litbench.store import Artifact
from litbench.tables import write_table


@dataclass
class Config:
    """Configuration of `simulate_stories.py`.

    Attributes:
        out: output folder.
        world: see litbench.curation.simulation.World.
        texts: whether to generate texts whose style partly reveals quality.
    """

    out: Path
    world: World = field(default_factory=World)
    texts: bool = True


def main(config: Config) -> None:
    """Simulate the stories and write them."""
    artifact = Artifact(config.out, program=__file__, config=config)
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
