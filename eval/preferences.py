"""Explain preferences by sparse units of embedding differences.

    python eval/preferences.py --config configs/eval/preferences.yaml

The method of the paper (3.4.1, A.1; Movva et al., 2025), see docs/preferences.md. Both stories of
every pair are embedded, an autoencoder describes the differences by a few signed units, and a
linear model predicts the label from the units. Agreement is measured in folds over prompts, and
compared with linear models on the whole difference, on as many principal components and on surface
features, and with the longer story. The table of units and the page show another autoencoder,
fitted on all pairs.

With `model`, any model of inspect-ai describes every unit, and its descriptions are tested on pairs
of other prompts. Without it, units are labelled by counts: surface features and words.

Reads `pairs`. Writes `preferences.json` and `.txt`, `units.csv`, `units.parquet` (every pair's
units), `preferences.html` (which shows stories), `coefficients.svg` and `.png`, `model/` (the
autoencoder) and `manifest.json` into `out`. Embeddings in `out/embeddings` and answers in
`out/answers` are stored as they arrive, so a killed run resumes.
"""

from litbench.config import run_program
from litbench.experiments.preferences import PreferencesConfig, run_preferences

Config = PreferencesConfig


def main(config: PreferencesConfig) -> None:
    """Write the study of preferences."""
    run_preferences(config, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
