"""Compute power, and the pairs or prompts needed to distinguish raters or writers.

    python eval/power.py --config configs/eval/power.yaml
    python eval/power.py --evaluation runs/quickstart/evaluation --out runs/quickstart/power

`cases` give assumed numbers, see litbench.metrics.power.Case: the agreement of two raters and how
often they disagree, or one rater against chance, and the numbers of pairs and prompts. A list of
values is swept. `grades` give writers whose grades are compared on the same prompts, see
litbench.experiments.power.GradeCase, and `judges` a judge against one annotator (JudgeCase there),
both with the spread of the ratings in `people`. `evaluation` is an output folder of
eval/benchmark.py or eval/crossvalidate.py; the numbers are then measured for every rater against
the reference.

Writes `power.txt`, `power.csv` and `manifest.json` into `out`. Formulas: docs/power.md.
"""

from litbench.config import run_program
from litbench.experiments.power import PowerConfig, run_power

Config = PowerConfig


def main(config: PowerConfig) -> None:
    """Compute power for the cases and the evaluation, and write the table."""
    run_power(config, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
