"""Train raters on several data variants and numbers of pairs, and judge all test sets.

    litbench eval ablation --config configs/eval/sample_ablation.yaml

A variant is either a set of pairing rules applied to `stories`, or a pairs file (`{pairs: FILE}`).
Top-level rules of the config apply to all variants. Each rater is trained with each seed
on each variant, at increasing numbers of pairs that are equal across variants and on all pairs of
the variant. It then judges the test pairs of every variant and of every file in `test_pairs`,
because a test set that was filtered like the training set favours it. Training on a prompt of any
test set is an error. A rater that cannot be trained, or has a `path`, is only evaluated.

For every seed, the training pairs are ordered by a seeded hash of their prompt, then of the pair,
and the first ones are used. `headline_rater`, trained on equally many pairs of each variant, is
compared between the variants on `headline_test`, with Holm's correction over these comparisons.

Writes into `out`: `ablation.txt` and `ablation.html` (the matrix of variants and test sets, then
the comparisons), `learning_curves.svg` and `.png`, `ablation.csv` (every rater on every test set),
`ablation.json`, `test_pairs.parquet` (the distinct test pairs; `test_sets` names their sets),
`verdicts.parquet` (with `entry`, `variant`, `training_pairs` and `test_sets`; without `seconds`, so
that results are reproducible byte by byte) and `manifest.json`. The page has the command that makes
the pairs of each variant again. A killed run resumes.
"""

from litbench.research.ablation import Ablation, run_ablation
from litbench.runs.config import run_program

Config = Ablation


def main(config: Ablation) -> None:
    """Make the variants, train and judge, and write the results."""
    run_ablation(config, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
