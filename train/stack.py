"""Train a stack: several raters, and the weights that combine their rewards.

    python train/stack.py --config configs/train/sample_stack.yaml

Reads `pairs`. Trains every member `folds` times without a fold of the prompts, for the weights,
and once on all pairs. Writes `model/` (`mixture.json` and the members, each as its own trainer
leaves it) and `manifest.json` into `out`. A killed run goes on after the last finished fold, and
with the one under way where its trainer leaves checkpoints.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.evaluation import named_models, read_pairs
from litbench.models.mixture import StackTraining, fit_stack
from litbench.raters import RaterSpec


@dataclass(kw_only=True)
class Config(StackTraining):
    """Pairs and options; the options are described at litbench.models.mixture.StackTraining.

    Attributes:
        pairs: pairs file.
        out: folder to write.
        split: only pairs of this split; null for all.
        seed: seeds folds and members.
    """

    pairs: Path
    out: Path
    split: str | None = None
    seed: int = 0


def main(config: Config) -> None:
    """Train and write."""
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"pairs": config.pairs},
        models=named_models([RaterSpec("stack", "stack", {"members": config.members})]),
    )
    if artifact.is_current():
        return
    pairs = read_pairs(config.pairs, None, config.split).headline
    # What another config or other pairs left there is not gone on with.
    folder = config.out / f"training-{artifact.fingerprint[:12]}"
    options = StackTraining(config.members, config.folds, config.c)
    stack = fit_stack(pairs, options, folder, config.seed)
    place = artifact.write_folder("model", stack.save)
    artifact.counts = {"pairs": pairs.num_rows, "prompts": len(stack.prompts), **stack.notes()}
    artifact.counts["training"] = stack.training_record
    artifact.finish()
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{place}: {pairs.num_rows:,} pairs, {len(stack.prompts)} prompts")
    for member in stack.members:
        print(f"  {member.name:<22} {member.weight:+.3f}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
