"""Rank the stories of each prompt by reward, pair the best with the worst, plot best-of-n curves.

    litbench eval best_of_n --config configs/eval/best_of_n.yaml

Reads stories tables with several stories per prompt, such as those of `litbench run stories`, and
scores the stories with a rater. Writes into `out`:

- `stories.parquet`: the stories with `reward`, `rank` within the prompt (1 is the best) and, with a
  second rater, `second_reward`;
- `pairs.parquet`: the best and the worst story of every prompt, with the source of both, for a
  study with annotators, for a judge (eval/benchmark.py) or as preference data; `label_source` is
  model;
- `best_of_n.csv` and `.txt`: the gain of the best of n over the prompt's mean in reward and in
  length, and how often the second rater prefers it to another story. A gain that the second rater
  does not confirm may be reward hacking;
- `best_of_n.html`, its plots as SVG and PNG, and `manifest.json`.

A killed run resumes.
"""

from litbench.research.best_of_n import BestOfN, run_best_of_n
from litbench.runs.config import run_program

Config = BestOfN


def main(config: BestOfN) -> None:
    """Score and rank the stories, and write the results."""
    run_best_of_n(config, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
