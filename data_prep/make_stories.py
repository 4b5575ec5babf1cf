"""Turn raw rows (posts, comments, a data set) into a stories table.

    litbench data make_stories --config configs/data/sample_stories.yaml

Reads the embedded sample (`input: sample`), or Parquet, JSONL, CSV, a folder saved by datasets
or a data set on the Hub, of any size, and maps its columns. Cleans the texts, then counts words,
and tokens if a tokenizer is given. Keeps the order of the rows. While it runs, it needs disk space
in `out` for a second copy of the rows. A killed run starts from the beginning when run again.

Writes into `out`: `stories.parquet`, `rejected.jsonl` (rows that could not be used, with reasons),
`examples.jsonl` (passages that cleaning removed) and `manifest.json`.
"""

from litbench.data.curation.story_making import StoryMaking, make_stories
from litbench.runs.config import run_program

Config = StoryMaking


def main(config: StoryMaking) -> None:
    """Make the stories table and write it."""
    make_stories(config, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
