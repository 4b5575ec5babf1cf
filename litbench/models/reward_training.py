"""Training a Bradley-Terry reward model (paper 4.1, A.9) with trl's RewardTrainer.

Loss of a pair: -log sigmoid(reward of chosen - reward of rejected - margin). A step's loss is the
mean over its pairs, by their weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from torch.nn.functional import logsigmoid
from trl import RewardConfig, RewardTrainer

from litbench.errors import DataError
from litbench.models.backbone import is_packed, rewards_of
from litbench.models.folder import prompts_of
from litbench.models.input_format import encode_stories, is_encoder, prepare_tokenizer
from litbench.models.packing import PairCollator
from litbench.models.reward import RewardModel
from litbench.models.training import (
    PairTrainer,
    TokenisedPairs,
    TrainingOptions,
    hold_back,
    is_main_process,
    kept_adapter,
    key,
    load_to_train,
    load_trained,
    read_options,
    train,
)
from litbench.raters import training_prompts_of
from litbench.records import numbers_of_pairs, pair_weights


@dataclass(kw_only=True)
class RewardTraining(TrainingOptions, RewardConfig):  # type: ignore[misc]
    """Keys of training a reward model; see `--help`."""

    max_length: int | None = key(2_048, "Most tokens of prompt and story; longer stories are cut.")
    margin: Literal["column", "votes", "none"] = key(
        "column",
        "By how much the chosen story should lead: the pairs' own column, the logarithm of the "
        "ratio of their votes, or nothing.",
    )


class PackedRewardTrainer(PairTrainer, RewardTrainer):  # type: ignore[misc]
    """trl's RewardTrainer on rows without padding, with weights and a loss of the whole step."""

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
        """Weighted loss of a micro-batch, over the weights of the whole step."""
        batch = dict(inputs)
        weight, margin = batch.pop("weight"), batch.pop("margin")
        rewards = rewards_of(model, batch, self.pooling)[:, 0]
        chosen, rejected = rewards.chunk(2)
        loss = -logsigmoid(chosen - rejected - margin)
        if self.args.center_rewards_coefficient is not None:
            loss = loss + self.args.center_rewards_coefficient * (chosen + rejected) ** 2
        # Gradients of processes are averaged.
        loss = (loss * weight).sum() * self.accelerator.num_processes / num_items_in_batch
        with torch.no_grad():
            lead = chosen - rejected
            tokens = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).sum()
            sums = [lead.new_tensor(len(lead)), ((lead.sign() + 1) / 2).sum(), lead.sum()]
            sums += [rewards.sum(), rewards.min(), rewards.max(), tokens]
            mode = "train" if self.model.training else "eval"
            self._sums[mode].append(torch.stack([one.float() for one in sums]))
        return (loss, {"rewards": rewards}) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add trl's metrics over the pairs since the last line; ties count as half right."""
        mode = "train" if self.model.training else "eval"
        if self._sums[mode]:
            # Waits for the device, and only here.
            mine = torch.stack(self._sums[mode])
            lows, highs = mine[:, 4].min(), mine[:, 5].max()
            summed = torch.stack([*mine.sum(0)[[0, 1, 2, 3, 6]], lows, highs])
            every = self.accelerator.gather(summed[None]).double().cpu()
            pairs, right, lead, reward, tokens = every[:, :5].sum(0).tolist()
            if mode == "train":
                self._total_train_tokens += int(tokens)
            found = {
                "accuracy": right / pairs,
                "margin": lead / pairs,
                "mean_reward": reward / pairs / 2,
                "min_reward": every[:, 5].min().item(),
                "max_reward": every[:, 6].max().item(),
                "num_tokens": self._total_train_tokens,
            }
            self._metrics[mode] |= {name: [value] for name, value in found.items()}
            self._sums[mode] = []
        super().log(logs, start_time)


def margins(pairs: pa.Table, margin: str) -> np.ndarray:
    """Margin of every pair; float64, shape (n,).

    Raises:
        DataError: a column that it needs has nulls, or values that are not finite.
    """
    if margin == "column":
        return numbers_of_pairs(pairs, "margin", 0.0)
    if margin == "none":
        return np.zeros(pairs.num_rows)
    sides = [pairs["chosen_score"], pairs["rejected_score"]]
    if any(side.null_count for side in sides):
        raise DataError(
            "margin: votes needs the votes of both stories, and columns chosen_score and "
            "rejected_score have nulls: take pairs with votes, or another value"
        )
    # A story starts with its author's own vote; what fell below counts as that.
    chosen, rejected = (np.maximum(side.to_numpy().astype(np.float64), 1.0) for side in sides)
    ratio: np.ndarray = np.log(chosen / rejected)
    return ratio


def tokenise(
    pairs: pa.Table, tokenizer: Any, options: RewardTraining
) -> TokenisedPairs:
    """Turn pairs into token ids; ends of stories are cut, and pairs without a difference rejected."""
    prompts = pairs["prompt"].to_pylist()
    chosen, rejected = (
        encode_stories(tokenizer, prompts, pairs[side].to_pylist())
        for side in ("chosen", "rejected")
    )
    cut = [one or other for one, other in zip(chosen.cut, rejected.cut, strict=True)]
    columns = (
        pairs["pair_id"].to_pylist(), chosen.ids, rejected.ids, pair_weights(pairs).tolist(),
        margins(pairs, options.margin).tolist(),
    )  # fmt: skip
    names = ("pair_id", "chosen_ids", "rejected_ids", "weight", "margin")
    rows, unused, shortened = [], [], 0
    for place, values in enumerate(zip(*columns, strict=True)):
        row = dict(zip(names, values, strict=True))
        if row["chosen_ids"] == row["rejected_ids"]:
            # They would get equal rewards whatever is learned.
            reason = "both stories are the same tokens" + (" once cut" if cut[place] else "")
            unused.append({"pair_id": row["pair_id"], "reason": reason})
            continue
        shortened += cut[place]
        rows.append({**row, "length": len(row["chosen_ids"]) + len(row["rejected_ids"])})
    return TokenisedPairs.make(rows, unused, shortened)


def train_reward_model(
    pairs: pa.Table, options: RewardTraining, folder: Path, name: str = "reward"
) -> RewardModel | None:
    """Train a reward model on preference pairs.

    Args:
        pairs: table by the schema PAIRS; all its rows are used.
        options: see RewardTraining.
        folder: for checkpoints; training goes on from the last one there.
        name: the rater's name.

    Returns:
        The trained model, not saved; None on every process but the first.

    Raises:
        DataError: no pairs, or columns that the options need have nulls.
        ModelError: the model cannot be loaded, or the loss is no number or does not move.
    """
    model, tokenizer = load_to_train(pairs, options, "reward")
    prepare_tokenizer(tokenizer, model, options.max_length or 2_048)
    data, validation = (
        tokenise(part, tokenizer, options)
        for part in hold_back(pairs, options.validation, options.seed)
    )
    trained = train(
        PackedRewardTrainer, model, tokenizer, options, data, validation, folder, "reward",
        pooling="first" if is_encoder(model) else "last", packed=is_packed(model),
    )  # fmt: skip
    if not is_main_process():
        return None
    # Two models side by side may not fit.
    del model
    model, tokenizer = load_trained(trained.folder, options, "reward")
    made = RewardModel(
        model, tokenizer, name=name,
        prompts=training_prompts_of(pairs) | prompts_of(options.model_name()),
        training=trained.record, adapter=kept_adapter(options, trained.folder),
    )  # fmt: skip
    made.report = trained.report
    return made


def options_of(values: Mapping[str, Any], where: str) -> RewardTraining:
    """Options of training the kind `reward` inside another program."""
    return read_options(RewardTraining, values, where)


def train_rater(
    name: str, options: Mapping[str, Any], pairs: pa.Table, folder: Path, seed: int, where: str
) -> RewardModel:
    """Train the kind `reward` inside cross-validation; the fold's seed joins the config's."""
    made = train_reward_model(pairs, options_of({"seed": seed, **options}, where), folder, name)
    assert made is not None
    made.report({})
    return made
