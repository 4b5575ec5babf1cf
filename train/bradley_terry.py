r"""Train a Bradley-Terry reward model (paper 4.1, A.9).

    python train/bradley_terry.py --config configs/train/sample_minilm.yaml
    accelerate launch --config_file configs/accelerate/fsdp2.yaml \
        train/bradley_terry.py --config configs/train/bradley_terry.yaml

Reads `pairs`. Writes into `output_dir`: `model/` (safetensors, tokenizer with the input format,
hashes of the training prompts, `run.json`, a model card), `rejected.jsonl` (pairs not used in
training, with the reason) and `manifest.json`. A killed run resumes from its last checkpoint. Every
key of trl's RewardConfig and ModelConfig works under its own name, such as `use_peft`,
`load_in_4bit`, `report_to` and `push_to_hub`.
"""

from dataclasses import dataclass
from pathlib import Path

from litbench.artifact import Artifact
from litbench.evaluation_pairs import read_held_out, read_pairs
from litbench.models.folder import prompts_of
from litbench.models.publishing import check_push, finish, push_model
from litbench.models.reward_training import RewardTraining, train_reward_model
from litbench.models.training import (
    ProgramOptions,
    checkpoint_folder,
    is_main_process,
    run_trainer,
)


@dataclass(kw_only=True)
class Config(ProgramOptions, RewardTraining):
    """Input pairs, output folder and training options."""


def main(config: Config) -> None:
    """Train, evaluate, write and push the model."""
    check_push(config)
    out = Path(config.output_dir)
    artifact = Artifact(
        out, program=__file__, config=config.record(), inputs=config.inputs(), models=config.files()
    )
    if artifact.is_current():
        if is_main_process():
            push_model(out / "model", config)
        return
    pairs = read_pairs(Path(config.pairs), None, config.split).headline
    held_out = read_held_out(
        config.evaluation_pairs, config.evaluation_split, pairs, Path(config.pairs),
        prompts_of(config.model_name()),
    )  # fmt: skip
    checkpoints = checkpoint_folder(out, artifact.fingerprint)
    model = train_reward_model(pairs, config, checkpoints)
    if model is not None:
        finish(artifact, model, pairs, held_out, checkpoints, config)


if __name__ == "__main__":
    run_trainer(main, Config, __doc__)
