"""Probe raters with changed stories: how often is the changed story preferred?

    python eval/probe.py --config configs/eval/probes.yaml

Reads a pairs file, draws stories of every prompt and applies every probe at every strength
(litbench/probes.py). Every rater compares each story with its changed copies. Writes
`probe_pairs.parquet`, `verdicts.parquet`, `probes.csv` and `.txt`, `probes.html` with excerpts of
the stories, its plots as SVG and PNG, and `manifest.json` into `out`.

A killed run resumes; judges store their answers in `out/answers`. `--dry_run true` estimates calls,
tokens and cost of the judges without sending requests.
"""

from litbench.config import run_program
from litbench.experiments.probes import ProbesConfig, run_probes

Config = ProbesConfig


def main(config: ProbesConfig) -> None:
    """Change the stories, judge the pairs, and write the results."""
    run_probes(config, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
