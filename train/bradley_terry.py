r"""Train a Bradley-Terry reward model (paper 4.1, A.9).

    litbench train bradley_terry --config configs/train/sample_minilm.yaml
    accelerate launch --config_file configs/accelerate/fsdp2.yaml \
        -m litbench train bradley_terry --config configs/paper/bradley_terry.yaml

Reads `pairs`. Writes into `output_dir`: `model/` (safetensors, tokenizer with the input format,
hashes of the training prompts, `run.json`, a model card), `rejected.jsonl` (pairs not used in
training, with the reason) and `manifest.json`. A killed run resumes from its last checkpoint. Every
key of trl's RewardConfig and ModelConfig works under its own name, such as `use_peft`,
`load_in_4bit`, `report_to` and `push_to_hub`.
"""

from dataclasses import dataclass

from litbench.models.publishing import train_and_write
from litbench.models.reward_training import RewardTraining, train_reward_model
from litbench.models.training import ProgramOptions
from litbench.runs.config import run_program


@dataclass(kw_only=True)
class Config(ProgramOptions, RewardTraining):
    """Input pairs, output folder and training options."""


def main(config: Config) -> None:
    """Train, evaluate, write and push the model."""
    train_and_write(train_reward_model, config, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
