"""Fit the feature model: logistic regression on differences of surface features.

    litbench train features --config configs/train/features.yaml

Reads `pairs`. Writes `model/` (`features.json`, with readable coefficients, and `scope.json`) and
`manifest.json` into `out`.
Runs on any machine, in seconds for thousands of pairs.
"""

from dataclasses import dataclass
from pathlib import Path

from litbench.data.columns import PairColumns
from litbench.data.sources.evaluation_pairs import read_training_pairs
from litbench.data.sources.pairs import find_pair_columns
from litbench.models.features import FeatureOptions, fit_features
from litbench.raters.nonstories import compare_nonstories, nonstories_text
from litbench.runs.config import run_program
from litbench.runs.outputs import Artifact, only_writer


@dataclass(kw_only=True)
class Config(PairColumns, FeatureOptions):
    """Configuration of `train/features.py`.

    Attributes:
        pairs: pairs to train on.
        out: output folder.
        split: use only this split; null for all.
        c: inverse regularisation strengths, chosen by cross-validation on the training pairs.
        drop: features to exclude.
        negatives: add texts that are no stories as rejected sides, at most 5 % of the pairs.
    """

    pairs: Path
    out: Path
    split: str | None = None


def main(config: Config) -> None:
    """Fit and write the model."""
    with only_writer(config.out):
        _fit_and_write(config)


def _fit_and_write(config: Config) -> None:
    inputs = {"pairs": config.pairs}
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    if artifact.is_current():
        return
    columns = config.columns()
    pairs = read_training_pairs(config.pairs, config.split, columns)
    model = fit_features(pairs, config)
    model.columns = find_pair_columns(config.pairs, columns)
    model.learn_scope(pairs)
    nonstories = compare_nonstories(model, pairs)
    folder = artifact.write_folder("model", model.save)
    artifact.counts = {
        "pairs": pairs.num_rows,
        "prompts": len(model.prompts),
        "negatives": model.negatives,
        "nonstories": {model.name: nonstories},
        **model.notes(),
    }
    artifact.finish()
    negatives = f" and {model.negatives:,} negatives" if config.negatives else ""
    print(
        f"pairs: {pairs.num_rows:,}{negatives} used, {len(model.prompts):,} prompts; no text is "
        "truncated"
    )
    print(f"{folder}: C = {model.c}; coefficients of the standardised differences:")
    for name, coefficient in list(model.notes()["coefficients"].items())[:10]:
        print(f"  {name:<22} {coefficient:+.3f}")
    print(nonstories_text(model.name, nonstories))
    print("agreement: not measured here; litbench eval benchmark or crossvalidate measures it")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
