r"""Train a generative reward model: GenRM or GenRM-CoT (paper 4.2).

    accelerate launch --config_file configs/accelerate/fsdp2.yaml \
        -m litbench train generative --config configs/paper/genrm.yaml

Reads `pairs`. Writes into `output_dir`: `model/` (safetensors, tokenizer, the question, hashes of
the training prompts, `run.json`, a model card), `rejected.jsonl` (pairs not used in training,
with the reason) and `manifest.json`. A killed run resumes from its last checkpoint. Every key of
trl's SFTConfig and ModelConfig works under its own name, such as `use_peft`, `load_in_4bit`,
`report_to` and `push_to_hub`.
"""

from dataclasses import dataclass

from litbench.models.generative_training import GenerativeTraining, train_generative_model
from litbench.models.publishing import train_and_write
from litbench.models.training import ProgramOptions
from litbench.runs.config import run_program


@dataclass(kw_only=True)
class Config(ProgramOptions, GenerativeTraining):
    """Input pairs, output folder and training options."""


def main(config: Config) -> None:
    """Train, evaluate, write and push the model."""
    train_and_write(train_generative_model, config, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
