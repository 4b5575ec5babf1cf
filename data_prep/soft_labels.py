"""Add a teacher's probabilities to pairs, for a student to learn in place of the labels.

    python data_prep/soft_labels.py --config configs/data/sample_soft_labels.yaml

Reads `pairs` and trains the teacher on them fold by fold, so that each pair gets its probability
from a teacher that was not told its label; one that comes trained, on other prompts, judges them at
once. Writes `pairs.parquet` with the column `p_chosen`, which train/bradley_terry.py reads with
`target: column`, and `manifest.json` into `out`. A killed run goes on after the last finished fold.

Never cross-validate a student on such a file: the teacher of one fold has learned the labels of the
others. The kind `distilled` does both inside the training pairs. A teacher that knows prompts of
another split of the file is refused, since its student could not be judged there.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.errors import ConfigError
from litbench.evaluation import named_models, read_pairs
from litbench.models.distillation import with_soft_labels
from litbench.raters import checked_trainer, parse_raters, training_prompts_of
from litbench.tables import write_table


@dataclass
class Config:
    """What to label and by whom.

    Attributes:
        pairs: pairs file.
        out: folder to write.
        teacher: a rater's kind and options; its rewards must be log-odds.
        split: only pairs of this split; null where the file has one split only.
        folds: folds over prompts for a teacher that is trained.
        share: share of the teacher in `p_chosen`; the rest is the label, which is 1.
        seed: seeds folds and training.
    """

    pairs: Path
    out: Path
    teacher: dict[str, Any]
    split: str | None = None
    folds: int = 3
    share: float = 1.0
    seed: int = 0


def main(config: Config) -> None:
    """Train, judge, write."""
    (teacher,) = parse_raters({"teacher": config.teacher})
    checked_trainer(teacher)
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"pairs": config.pairs},
        models=named_models([teacher]),
    )
    if artifact.is_current():
        return
    whole = read_pairs(config.pairs, None, None).headline
    splits = sorted(set(whole["split"].to_pylist()))
    if config.split is None and len(splits) > 1:
        raise ConfigError(
            f"{config.pairs} has the splits {', '.join(splits)}, and no split is named: the "
            "teacher of one would learn from the labels of the others; name one, as split: train"
        )
    pairs = read_pairs(config.pairs, None, config.split).headline
    # What another config or other pairs left there is not gone on with.
    folder = config.out / f"training-{artifact.fingerprint[:12]}"
    labelled, known = with_soft_labels(
        pairs, teacher, folder, folds=config.folds, share=config.share, seed=config.seed
    )
    elsewhere = training_prompts_of(whole) - training_prompts_of(pairs)
    if known & elsewhere:
        raise ConfigError(
            f"{teacher.where} was trained on {len(known & elsewhere)} prompts of {config.pairs} "
            "that are not labelled here, and its student could not be judged on them: take a "
            "teacher that does not know this file"
        )
    artifact.write("pairs.parquet", lambda path: write_table(labelled, path))
    sides = pc.greater(labelled["p_chosen"], 0.5).to_pylist()
    artifact.counts = {
        "pairs": labelled.num_rows,
        "mean_p_chosen": round(pc.mean(labelled["p_chosen"]).as_py(), 4),
        "teacher_prefers_chosen": sum(sides),
    }
    artifact.finish()
    shutil.rmtree(folder, ignore_errors=True)
    print(
        f"{config.out / 'pairs.parquet'}: {labelled.num_rows:,} pairs, p_chosen "
        f"{artifact.counts['mean_p_chosen']:.3f} on average, above one half in {sum(sides):,}"
    )


if __name__ == "__main__":
    run_program(main, Config, __doc__)
