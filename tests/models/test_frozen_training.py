"""The trainers give the losses, gradients and weights that the trainer before trl gave.

`frozen_training.json` was written by that trainer: full batches of 24 pairs of random tokens, eight
steps, tiny models in fp32, one process.
"""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from datasets import Dataset  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from litbench.models.backbone import is_packed, load_backbone  # noqa: E402
from litbench.models.generative_training import GenerativeTraining, PackedSFTTrainer  # noqa: E402
from litbench.models.reward_training import PackedRewardTrainer, RewardTraining  # noqa: E402
from litbench.models.training import TokenisedPairs, train  # noqa: E402

FROZEN = json.loads((Path(__file__).parents[1] / "frozen_training.json").read_text())


def random_pairs(objective, n=24):
    source = np.random.default_rng(7)
    rows = []
    for k in range(n):
        sizes = source.integers(8, 60, 2)
        chosen, rejected = (source.integers(5, 100, size).tolist() for size in sizes)
        answer = int(source.integers(1, 6)) if objective == "generative" else 0
        row = {"pair_id": f"p{k}", "length": len(chosen) + len(rejected)}
        if objective == "generative":
            labels = [-100] * (len(chosen) - answer) + chosen[-answer:]
            row |= {"input_ids": chosen, "labels": labels, "length": len(chosen)}
        else:
            row |= {"chosen_ids": chosen, "rejected_ids": rejected}
            row |= {"weight": 1.0 + k % 3, "margin": 0.25 * (k % 2)}
        rows.append(row)
    return TokenisedPairs.make(rows, [], 0)


@pytest.mark.parametrize("name", FROZEN)
def test_losses_gradients_and_weights_stay(name, tiny_model, pair_table, tmp_path):
    objective, kind, *in_steps = name.split(" ")
    head = "reward" if objective == "bradley_terry" else "language"
    folder = tiny_model(kind, head=head)
    model, tokenizer = load_backbone(str(folder), head)
    options = {
        "model_name_or_path": str(folder),
        "num_train_epochs": 4 if in_steps else 8,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2 if in_steps else 6,
        "learning_rate": 3e-3,
        "warmup_steps": 0,
        "logging_steps": 1,
        "save_strategy": "no",
        "seed": 0,
    }
    data = random_pairs(objective)
    if objective == "bradley_terry":
        trainer = PackedRewardTrainer
        config = RewardTraining(center_rewards_coefficient=0.01, **options)
        how = {"pooling": "first" if kind == "bert" else "last", "packed": is_packed(model)}
    else:
        trainer, config, how = PackedSFTTrainer, GenerativeTraining(**options), {}
    parts = [data, TokenisedPairs(Dataset.from_list([]), {}, [])]
    made = train(trainer, model, tokenizer, config, parts, pair_table([]), tmp_path, head, **how)
    curve = made["training"]["curve"]
    losses = [line["loss"] for line in curve]
    norms = [line["grad_norm"] for line in curve]
    after, before = (load_file(one / "model.safetensors") for one in (tmp_path / "trained", folder))
    moved = sum(((after[k].double() - before[k].double()) ** 2).sum() for k in after) ** 0.5
    was = FROZEN[name]
    assert losses[0] == pytest.approx(was["losses"][0], rel=1e-5)
    assert losses == pytest.approx(was["losses"], rel=1e-3)
    assert norms == pytest.approx(was["grad_norms"], rel=1e-3)
    assert moved == pytest.approx(was["moved"], rel=1e-3)
