"""Train a Bradley-Terry reward model with trl's RewardTrainer (paper 4.1, A.9).

The loss of a pair is -log sigmoid(chosen reward - rejected reward - margin). The loss of a step is
the weighted mean over its pairs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import torch
from torch.nn.functional import logsigmoid
from trl import RewardConfig, RewardTrainer

from litbench.data.records import SIDES, numbers_of_pairs, pair_weights
from litbench.models.backbone import is_packed, rewards_of
from litbench.models.input_format import encode_stories, is_encoder, prepare_tokenizer
from litbench.models.packing import PairCollator
from litbench.models.reward import RewardModel
from litbench.models.training import (
    PairTrainer,
    TokenisedPairs,
    TrainingOptions,
    load_to_train,
    option,
    train,
    train_inside,
    training_parts,
)


@dataclass(kw_only=True)
class RewardTraining(TrainingOptions, RewardConfig):  # type: ignore[misc]
    """Configuration of training a reward model; see `--help`."""

    max_length: int = option(2_048, "Maximum number of tokens; longer stories lose their end.")
    form: Literal["chat", "story"] = option(
        "chat", "Input: chat for prompt and story, or story for the story alone."
    )

    def train(self, name: str, pairs: pa.Table, folder: Path, seed: int) -> Any:
        """Train a rater inside cross-validation; see `train_inside`."""
        return train_inside(train_reward_model, self, name, pairs, folder, seed)


class PackedRewardTrainer(PairTrainer, RewardTrainer):  # type: ignore[misc]
    """trl's RewardTrainer without padding, with pair weights and step-wide normalisation."""

    loss_is_scaled_for_ga = True

    def __init__(self, *, pooling: Any, packed: bool, **arguments: Any) -> None:
        self.packed, self.pooling = packed, pooling
        self._sums: dict[str, list[torch.Tensor]] = {"train": [], "eval": []}
        super().__init__(data_collator=PairCollator(packed, pooling), **arguments)

    def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
        weight = sum(batch["weight"].sum() for batch in batch_samples)
        return self.accelerator.gather(weight.to(device)).sum()

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Weighted loss of a micro-batch, divided by the total weight of the step."""
        batch = dict(inputs)
        weight, margin = batch.pop("weight"), batch.pop("margin")
        rewards = rewards_of(model, batch, self.pooling)[:, 0]
        chosen, rejected = rewards.chunk(2)
        difference = chosen - rejected
        loss = -logsigmoid(difference - margin)
        if self.args.center_rewards_coefficient is not None:
            loss = loss + self.args.center_rewards_coefficient * (chosen + rejected) ** 2
        # Gradients are averaged over processes, so the loss is scaled by their number.
        loss = (loss * weight).sum() * self.accelerator.num_processes / num_items_in_batch
        with torch.no_grad():
            correct = ((difference.sign() + 1) / 2).sum()
            tokens = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).sum()
            pairs = difference.new_tensor(len(difference))
            sums = [pairs, correct, difference.sum(), rewards.sum() / 2]
            sums += [rewards.min(), rewards.max(), tokens]
            mode = "train" if self.model.training else "eval"
            self._sums[mode].append(torch.stack([value.float() for value in sums]))
        return (loss, {"rewards": rewards}) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add trl's metrics as means over pairs; a tie counts as half correct."""
        mode = "train" if self.model.training else "eval"
        if rows := self._sums[mode]:
            # The only synchronisation with the device.
            means = self.accelerator.gather(torch.stack(rows).mean(0)[None]).mean(0).tolist()
            pairs, correct, margin, reward, low, high, tokens = means
            if mode == "train":
                self._total_train_tokens += round(
                    tokens * len(rows) * self.accelerator.num_processes
                )
            self._metrics[mode] |= {
                "accuracy": [correct / pairs],
                "margin": [margin / pairs],
                "mean_reward": [reward / pairs],
                "min_reward": [low],
                "max_reward": [high],
                "num_tokens": [self._total_train_tokens],
            }
            rows.clear()
        super().log(logs, start_time)


def tokenise(pairs: pa.Table, tokenizer: Any) -> TokenisedPairs:
    """Tokenise pairs; long stories lose their end."""
    prompts = pairs["prompt"].to_pylist()
    chosen, rejected = (
        encode_stories(tokenizer, prompts, pairs[side].to_pylist()) for side in SIDES
    )
    columns = {
        "pair_id": pairs["pair_id"].to_pylist(),
        "chosen_ids": chosen.ids,
        "rejected_ids": rejected.ids,
        "weight": pair_weights(pairs).tolist(),
        "margin": numbers_of_pairs(pairs, "margin", 0.0).tolist(),
        "length": [len(a) + len(b) for a, b in zip(chosen.ids, rejected.ids, strict=True)],
    }
    rows, reasons, shortened = [], {}, 0
    for index, values in enumerate(zip(*columns.values(), strict=True)):
        row, cut = dict(zip(columns, values, strict=True)), chosen.cut[index] or rejected.cut[index]
        if row["chosen_ids"] == row["rejected_ids"]:
            # Their rewards are always equal.
            reasons[index] = "both stories are the same tokens" + (" once cut" if cut else "")
        else:
            rows.append(row)
            shortened += cut
    return TokenisedPairs.make(rows, pairs, reasons, shortened)


def train_reward_model(
    pairs: pa.Table, options: RewardTraining, folder: Path, name: str = "reward"
) -> RewardModel | None:
    """Train a reward model on preference pairs.

    Args:
        pairs: table with the schema PAIRS; all its rows are used.
        options: see `RewardTraining`.
        folder: folder for checkpoints; training resumes from the last one in it.
        name: the rater's name.

    Returns:
        The trained model, not yet saved. None on every process but rank 0.
    """
    model, tokenizer = load_to_train(pairs, options, "reward", reads_prompt=options.form == "chat")
    prepare_tokenizer(tokenizer, model, options.max_length, options.form)
    parts = [tokenise(part, tokenizer) for part in training_parts(pairs, options)]
    trained = train(
        PackedRewardTrainer,
        model,
        tokenizer,
        options,
        parts,
        pairs,
        folder,
        "reward",
        pooling="first" if is_encoder(model) else "last",
        packed=is_packed(model),
    )
    return RewardModel(**trained, name=name) if trained else None
