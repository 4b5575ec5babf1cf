"""Train a Bradley-Terry reward model (paper 4.1, A.9).

    accelerate launch --config_file configs/accelerate/one_gpu.yaml \
        train/bradley_terry.py --config configs/train/llama_3.2_1b.yaml
    python train/bradley_terry.py --config configs/train/sample_minilm.yaml

Reads `pairs`. Writes `model/` (weights as safetensors, tokenizer, `litbench.json` with the joined
form of prompt and story and the hashes of the training prompts) and `manifest.json` with the
loss curve into `out`. With `save_steps`, a killed run goes on from its last checkpoint.
"""

import os
import shutil
from dataclasses import dataclass, fields
from pathlib import Path

from litbench.config import run_program
from litbench.evaluation import read_pairs
from litbench.manifest import Product
from litbench.models.training import RewardTraining, train_reward_model


@dataclass(kw_only=True)
class Config(RewardTraining):
    """Pairs and options; the options are described at litbench.models.training.RewardTraining.

    Attributes:
        pairs: pairs file.
        out: folder to write.
        split: only pairs of this split; null for all.
    """

    pairs: Path
    out: Path
    split: str | None = None


def main(config: Config) -> None:
    """Train and write."""
    product = Product(
        config.out,
        program=__file__,
        config=config,
        inputs={"pairs": config.pairs},
        models={"backbone": config.backbone},
    )
    if product.is_current():
        return
    pairs = read_pairs(config.pairs, None, config.split).headline
    options = RewardTraining(**{f.name: getattr(config, f.name) for f in fields(RewardTraining)})
    # Checkpoints of another config or of other pairs are not gone on from.
    checkpoints = config.out / f"checkpoints-{product.fingerprint[:12]}"
    model = train_reward_model(pairs, options, checkpoints)
    if int(os.environ.get("RANK", "0")) != 0:
        return
    folder = product.write_folder("model", model.save)
    record = model.training_record
    product.counts = {"prompts": len(model.prompts), **record["counts"], "training": record}
    product.finish()
    shutil.rmtree(checkpoints, ignore_errors=True)
    print(
        f"{folder}: {pairs.num_rows:,} pairs ({record['counts']['pairs_cut']} cut to fit), "
        f"{record['steps']} steps in {record['seconds']:.0f} s, "
        f"last loss {record['curve'][-1]['loss']:.3f}"
    )


if __name__ == "__main__":
    run_program(main, Config, __doc__)
