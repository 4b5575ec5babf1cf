"""Training a Bradley-Terry reward model with trl's RewardTrainer (paper 4.1, A.9).

Loss: -log sigmoid(reward of chosen - reward of rejected). Token ids come from the model's
`Layout`, cut where they do not fit and counted; the reward is read at the same position as when
scoring. trl itself would drop overlong pairs, and read the reward one token early where the pad
token is the EOS token.
"""

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from litbench.config import build
from litbench.errors import ConfigError, DataError, MissingExtraError, ModelError
from litbench.models.layout import Layout
from litbench.models.reward import RewardModel, last_token_logits, load_backbone
from litbench.raters import training_prompts_of


@dataclass
class RewardTraining:
    """How a reward model is trained; the defaults are the paper's (A.9).

    Attributes:
        backbone: `package:NAME/folder`, a folder, or a name on the Hub.
        max_length: most tokens of prompt and story together; longer stories lose their end.
        max_prompt_tokens: most tokens of the prompt; a quarter of max_length when null.
        epochs: passes over the pairs.
        learning_rate: peak, after warm-up, then linear to zero.
        warmup_ratio: share of steps spent warming up.
        weight_decay: of AdamW.
        batch_size: pairs per optimiser step, over all processes.
        per_device_train_batch_size: pairs per forward pass; accumulation fills up the rest.
        precision: fp32, bf16 (autocast), or auto: bf16 where a GPU has it.
        center_rewards_coefficient: weight of (r_chosen + r_rejected)^2, which keeps the free
            offset near zero (Eisenstein et al., 2023); null for none.
        activation_checkpointing: trade time for memory.
        seed: seeds the new head and the order of pairs.
        save_steps: steps between checkpoints to resume from; null for none.
        report_to: none, wandb or tensorboard.
        trust_remote_code: run code from the backbone's repository.
    """

    backbone: str
    max_length: int = 2_048
    max_prompt_tokens: int | None = None
    epochs: float = 1.0
    learning_rate: float = 1e-5
    warmup_ratio: float = 0.1
    weight_decay: float = 0.0
    batch_size: int = 128
    per_device_train_batch_size: int = 8
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    center_rewards_coefficient: float | None = None
    activation_checkpointing: bool = False
    seed: int = 0
    save_steps: int | None = None
    report_to: Literal["none", "wandb", "tensorboard"] = "none"
    trust_remote_code: bool = False


def accumulation_steps(batch_size: int, per_device: int, processes: int) -> int:
    """Forward passes per optimiser step so that all processes together see `batch_size` pairs.

    Raises:
        ConfigError: batch_size is no multiple of per_device * processes.
    """
    together = per_device * processes
    if batch_size % together:
        raise ConfigError(
            f"batch_size {batch_size} is not a multiple of per_device_train_batch_size "
            f"{per_device} times {processes} processes: change one of them"
        )
    return batch_size // together


def _trainer_class() -> Any:
    """Make the trainer class; a function, so that importing this module does not import trl."""
    try:
        from trl import RewardTrainer  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("trl", "train") from error

    class PreferenceTrainer(RewardTrainer):  # type: ignore[misc]
        """RewardTrainer that reads a decoder's reward where the scorer reads it."""

        def compute_loss(
            self,
            model: Any,
            inputs: Any,
            return_outputs: bool = False,
            num_items_in_batch: Any = None,
        ) -> Any:
            inner = self.accelerator.unwrap_model(self.model)
            head = getattr(inner, "score", None)
            if head is None:
                return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

            def forward(**arguments: Any) -> Any:
                # The wrapped model must be called as a whole, or gradients are not averaged over
                # processes; the head's input is caught on the way.
                caught: dict[str, Any] = {}
                hook = head.register_forward_pre_hook(
                    lambda _, given: caught.update(hidden=given[0])
                )
                try:
                    output = model(**arguments)
                finally:
                    hook.remove()
                last = arguments["attention_mask"].sum(1) - 1
                output.logits = last_token_logits(caught["hidden"], head, last)
                return output

            return super().compute_loss(forward, inputs, return_outputs, num_items_in_batch)

    return PreferenceTrainer


def _watch_class() -> Any:
    from transformers import TrainerCallback  # noqa: PLC0415

    class Watch(TrainerCallback):  # type: ignore[misc]
        """Stops a run whose loss is no number."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            del args, control
            loss = (logs or {}).get("loss")
            if loss is not None and not math.isfinite(float(loss)):
                raise ModelError(
                    f"the loss is {loss} at step {state.global_step}: lower learning_rate, or set "
                    "precision to fp32"
                )

    return Watch


def _last_whole_checkpoint(folder: Path) -> str | None:
    """Find the newest checkpoint whose last file was written; a kill may leave half of one."""
    found = []
    for state in folder.glob("checkpoint-*/trainer_state.json"):
        try:
            found.append((int(json.loads(state.read_text())["global_step"]), state.parent))
        except (ValueError, KeyError):
            continue
    return str(max(found)[1]) if found else None


def _use_bf16(precision: str) -> bool:
    import torch  # noqa: PLC0415

    if precision == "auto":
        return bool(torch.cuda.is_available() and torch.cuda.is_bf16_supported())
    return precision == "bf16"


def _dataset(model: RewardModel, pairs: pa.Table) -> tuple[Any, dict[str, int]]:
    import datasets  # noqa: PLC0415

    prompts = pairs["prompt"].to_pylist()
    encoded = {
        side: model.layout.encode(model.tokenizer, prompts, pairs[side].to_pylist())
        for side in ("chosen", "rejected")
    }
    columns: dict[str, Any] = {f"{side}_ids": one.ids for side, one in encoded.items()}
    margin = pairs["margin"]
    if margin.null_count == 0:
        columns["margin"] = margin.to_pylist()
    elif margin.null_count < len(margin):
        raise DataError(
            f"column margin is null in {margin.null_count} of {len(margin)} pairs: give every pair "
            "a margin, or none"
        )
    if pairs["weight"].null_count < len(margin):
        raise DataError(
            "column weight is not empty, and the Bradley-Terry trainer has no weights: drop the "
            "column, or train the feature model, which uses it"
        )
    cut = np.array(encoded["chosen"].cut) | np.array(encoded["rejected"].cut)
    tokens = sum(len(ids) for one in encoded.values() for ids in one.ids)
    counts = {"pairs": pairs.num_rows, "pairs_cut": int(cut.sum()), "tokens": tokens}
    return datasets.Dataset.from_dict(columns), counts


def train_reward_model(
    pairs: pa.Table, options: RewardTraining, folder: Path, name: str = "reward"
) -> RewardModel:
    """Train a reward model on preference pairs.

    Args:
        pairs: table by the schema PAIRS; all its rows are used.
        options: see RewardTraining.
        folder: for checkpoints; with `save_steps`, training goes on from the last one there.
        name: the rater's name.

    Returns:
        The trained model; not saved. Its `training` record holds options, counts and the curve.

    Raises:
        ConfigError: options that do not fit together.
        DataError: no pairs, or margins on some of them only.
        ModelError: the backbone cannot be loaded, or the loss is no number.
        MissingExtraError: trl is not installed.
    """
    if pairs.num_rows == 0:
        raise DataError("there are no pairs to train on: check the filters and the split")
    trainer_class = _trainer_class()
    import torch  # noqa: PLC0415
    from transformers import set_seed  # noqa: PLC0415
    from transformers.trainer_callback import PrinterCallback  # noqa: PLC0415
    from trl import RewardConfig  # noqa: PLC0415

    # One line for parallel tokenizers that fork, not one per process.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    set_seed(options.seed)
    backbone, tokenizer = load_backbone(
        options.backbone, trained_head=False, trust_remote_code=options.trust_remote_code
    )
    layout = Layout.infer(tokenizer, backbone, options.max_length, options.max_prompt_tokens)
    model = RewardModel(backbone, tokenizer, layout, name=name, prompts=training_prompts_of(pairs))
    dataset, counts = _dataset(model, pairs)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    bf16, has_accelerator = _use_bf16(options.precision), torch.accelerator.is_available()
    accumulation = accumulation_steps(
        options.batch_size, options.per_device_train_batch_size, processes
    )
    steps = math.ceil(options.epochs * math.ceil(len(dataset) / options.batch_size))
    arguments = RewardConfig(
        output_dir=str(folder),
        # The layout has cut already; trl would drop what is too long.
        max_length=None,
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        warmup_steps=math.ceil(options.warmup_ratio * steps),
        weight_decay=options.weight_decay,
        per_device_train_batch_size=options.per_device_train_batch_size,
        gradient_accumulation_steps=accumulation,
        bf16=bf16,
        # Without it, transformers refuses bf16 on a machine without a GPU.
        use_cpu=not has_accelerator,
        center_rewards_coefficient=options.center_rewards_coefficient,
        activation_checkpointing=options.activation_checkpointing,
        seed=options.seed,
        save_strategy="no" if options.save_steps is None else "steps",
        save_steps=options.save_steps or 500,
        save_total_limit=2,
        logging_steps=max(1, min(10, steps // 20)),
        # The filter would show the last finite loss in place of NaN, and the run would go on.
        logging_nan_inf_filter=False,
        report_to=options.report_to,
        disable_tqdm=not sys.stderr.isatty(),
        dataloader_pin_memory=has_accelerator,
    )
    # trl takes the pad token from the tokenizer, and falls back to EOS by itself.
    trainer = trainer_class(
        model=model.model,
        args=arguments,
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=[_watch_class()()],
    )
    trainer.remove_callback(PrinterCallback)
    outcome = trainer.train(resume_from_checkpoint=_last_whole_checkpoint(folder))
    curve = [
        {"step": entry["step"], "loss": round(entry["loss"], 6)}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]
    record = {
        "options": asdict(options),
        "counts": counts,
        "processes": trainer.accelerator.num_processes,
        "steps": trainer.state.global_step,
        "bf16": bf16,
        "seconds": round(outcome.metrics["train_runtime"], 2),
        "curve": curve,
    }
    trained = trainer.accelerator.unwrap_model(trainer.model)
    return RewardModel(
        trained, tokenizer, layout, name=name, prompts=model.prompts, training=record
    )


def train_rater(
    name: str,
    options: Mapping[str, Any],
    pairs: pa.Table,
    folder: Path,
    seed: int,
    where: str,
) -> RewardModel:
    """Train the kind `reward` inside cross-validation; the fold's seed joins the config's."""
    ready = build(RewardTraining, {"seed": seed, **options}, where)
    return train_reward_model(pairs, ready, folder, name)
