"""Evaluate trained raters by repeated cross-validation over prompts.

    litbench eval crossvalidate --config configs/eval/sample_crossvalidate.yaml

For small sets, where a single test split would have too few prompts. Each repeat assigns prompts to
folds with another seed. A trainable rater judges each fold after training on the other folds; its
verdicts have `fold` "repeat/fold". Other raters judge once. Raters tune hyperparameters within
their training folds. Prompts that share a `prompt_id` or a story are in the same fold.

Reads `pairs` and, optionally, `before_symmetry` (raters train on `pairs` and judge both) or
`ratings` (see eval/benchmark.py). Writes `verdicts.parquet`, `leaderboard.json` (also `.csv` and
`.txt`), `manifest.json` and, with `ratings`, `annotators.json` into `out`. Each fold is stored when
complete: a killed run resumes with the next fold, or the last checkpoint of an unfinished training.
"""

from litbench.evaluation.crossvalidation import CrossValidation, crossvalidate
from litbench.runs.config import run_program

Config = CrossValidation


def main(config: CrossValidation) -> None:
    """Train and judge every fold, then write the results."""
    crossvalidate(config, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
