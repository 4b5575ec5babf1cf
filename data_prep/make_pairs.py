"""Turn stories into preference pairs: filters, splits, pairing, caps, length symmetry.

    litbench data make_pairs --config configs/data/sample_pairs.yaml

Reads `stories`, a table written by make_stories.py, with story_id, prompt_id, prompt, text,
n_words, source, score, score_utc, created_utc, author, flair and n_tokens. The steps follow section
3.2 of the paper (docs/curation.md). Each step is counted, and skipped if its key is null or false.

Writes into `out`: `pairs.parquet`, `pairs_before_symmetry.parquet` (without the last step),
`examples.jsonl` (a few rows that each step removed) and `manifest.json` with the funnel. The bytes
depend only on the stories, the rules and the seed, not on row order or engine.
"""

from litbench.data.curation.pair_making import PairMaking, make_pairs
from litbench.data.records import NOT_STATED
from litbench.runs.config import run_program

Config = PairMaking


def main(config: PairMaking) -> None:
    """Make the pairs."""
    make_pairs(config, __file__)
    if config.label_source == NOT_STATED:
        print("the stories do not state who scored them: give --label_source votes or people")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
