"""Turn published ratings of stories into pairs and a table of ratings.

    litbench data import_ratings --config mine.yaml

Reads a table of stories, a table of ratings by annotators and, optionally, a table of ratings by
recorded judges (models). Two stories of a prompt become a pair, whose chosen story has the higher
mean rating by the annotators. Writes into `out`:

- `pairs.parquet`: pairs whose means differ, by `min_gap` or more;
- `all_pairs.parquet`: all pairs within a prompt, on which eval/benchmark.py compares annotators.
  Pairs of equal means are in the split `tied`; which side is chosen has no meaning there;
- `ratings.parquet`: one number per story and rater;
- `grades.parquet`, if `writer` names the column of the stories' authors or systems: each rater's
  grades by criterion, for litbench writers compare;
- `rejected.jsonl` (rows that could not be used, with reasons) and `manifest.json`.

Texts that the source does not have are empty, with a length of 0. Raters that need the text cannot
judge these pairs; recorded judges can. `where: text IS NOT NULL` leaves these stories out.
"""

from litbench.data.sources.ratings import RatingImport, import_ratings
from litbench.runs.config import run_program

Config = RatingImport


def main(config: RatingImport) -> None:
    """Import the ratings, make pairs and write them."""
    import_ratings(config, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
