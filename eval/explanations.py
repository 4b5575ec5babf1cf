"""Find features of judges' explanations, and compare agreement with and without each feature.

    python eval/explanations.py --config configs/paper/litbench_figure8.yaml --preset ttcw

Reads folders of evaluations (eval/benchmark.py, or any program whose manifest names the pairs)
whose verdicts have explanations. Finds features of each explanation (talk about plot, character,
style, ...; litbench/metrics/explanation_words.yaml) and compares the agreement of verdicts with
and without the feature. Writes `explanations.csv`, `.txt` and `.html`, `manifest.json` and, if
there is a difference to plot, the paper's Figure 8 as `figure8.svg` and `.png` into `out`.
"""

from litbench.config import run_program
from litbench.experiments.explanations import ExplanationsConfig, run_explanations

Config = ExplanationsConfig


def main(config: ExplanationsConfig) -> None:
    """Write the study of explanations."""
    run_explanations(config, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
