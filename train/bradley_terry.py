r"""Train a Bradley-Terry reward model (paper 4.1, A.9).

    accelerate launch --config_file configs/accelerate/one_gpu.yaml \
        train/bradley_terry.py --config configs/train/llama_3.2_1b.yaml
    python train/bradley_terry.py --config configs/train/sample_minilm.yaml

Reads `pairs`. Writes `model/` (weights as safetensors, tokenizer, `litbench.json` with the joined
form of prompt and story and the hashes of the training prompts, `run.json` with all that was done
and came out, and a model card), `rejected.jsonl` (pairs that training did not use, with the
reason) and `manifest.json` into `out`. With `evaluation_split` or `evaluation_pairs` the trained
model judges pairs it has not seen at the end; they choose nothing. With `save_steps`, a killed run
goes on from its last checkpoint, on another number of processes too (under ZeRO-3 on the same).
Pairs to evaluate on that are named later are judged by the model that is there.

With `push_to_hub` and `hub_model_id` the folder `model/` goes to the Hub, privately unless
`hub_private_repo: false`; given later, they push the model that is there. The token comes from
`hf auth login` or HF_TOKEN and from nowhere else.
"""

from dataclasses import dataclass, fields
from pathlib import Path

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.evaluation import read_held_out, read_pairs
from litbench.models.card import run_text, write_trained_model
from litbench.models.folder import prompts_of
from litbench.models.publishing import HUB_KEYS, HubOptions, check_push, push_model
from litbench.models.reward import RewardModel
from litbench.models.reward_training import RewardTraining, train_reward_model
from litbench.models.training import (
    RUNTIME_KEYS,
    checkpoint_folder,
    is_main_process,
    is_trained,
    training_fingerprint,
)


@dataclass(kw_only=True)
class Config(RewardTraining, HubOptions):
    """Pairs, where to write, and how to train.

    Attributes:
        pairs: pairs file.
        out: folder to write.
        split: only pairs of this split; null for all.
        evaluation_split: split that the trained model judges at the end; null for all of
            `evaluation_pairs`, or for none.
        evaluation_pairs: file of those pairs; `pairs` when null.
        prepare_only: tokenise into the cache and stop; once before a launch on several machines.
    """

    pairs: Path
    out: Path
    split: str | None = None
    evaluation_split: str | None = None
    evaluation_pairs: Path | None = None
    prepare_only: bool = False


def main(config: Config) -> None:
    """Train, judge, write and push."""
    keeps_adapter = config.lora is not None and not config.merge
    check_push(config, config.backbone if keeps_adapter else None)
    inputs = {"pairs": config.pairs}
    if config.evaluation_pairs is not None:
        inputs["evaluation_pairs"] = config.evaluation_pairs
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs=inputs,
        models={"backbone": config.backbone},
        runtime_keys=(*RUNTIME_KEYS, *HUB_KEYS, "prepare_only"),
    )
    if artifact.is_current():
        if is_main_process():
            push_model(config.out / "model", config)
        return
    pairs = read_pairs(config.pairs, None, config.split).headline
    held_out = read_held_out(
        config.evaluation_pairs, config.evaluation_split, pairs, config.pairs,
        prompts_of(config.backbone),
    )  # fmt: skip
    options = RewardTraining(**{f.name: getattr(config, f.name) for f in fields(RewardTraining)})
    fingerprint = training_fingerprint(artifact, options, config.split)
    checkpoints = checkpoint_folder(config.out, fingerprint)
    if config.prepare_only or not is_trained(config.out, fingerprint):
        model = train_reward_model(pairs, options, checkpoints, prepare_only=config.prepare_only)
    elif is_main_process():
        print(f"{config.out / 'model'} is trained: only what it is judged on has changed")
        model = RewardModel.load(config.out / "model", trust_remote_code=config.trust_remote_code)
    else:
        model = None
    # Every process but the first ends here.
    if model is None:
        return
    run = write_trained_model(artifact, model, pairs, held_out, checkpoints, fingerprint)
    print(f"{config.out / 'model'}: {run_text(run)}")
    push_model(config.out / "model", config)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
