"""Shared code for training raters on pairs with trl's RewardTrainer and SFTTrainer.

LitBench adds a few keys, counts of truncated and rejected pairs, validation split by prompt,
micro-batches of equal cost (`litbench.models.packing`), automatic resuming, and a record of the
run.
"""

import copy
import gc
import json
import math
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from accelerate import PartialState
from datasets import Dataset
from pydantic import Field
from transformers import TrainerCallback, TrainingArguments, set_seed
from transformers.integrations import TensorBoardCallback
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from trl import ModelConfig, get_peft_config

from litbench.data.chunks import ROW
from litbench.data.columns import PairColumns
from litbench.data.records import connected_prompts
from litbench.data.text import digest
from litbench.models.backbone import HEADS, Head, load_backbone, load_with_adapter, no_towers, quiet
from litbench.models.folder import Adapter, prompts_of
from litbench.models.packing import StepSampler
from litbench.raters.interface import check_prompts, training_prompts_of
from litbench.raters.nonstories import NEGATIVES, add_negatives
from litbench.runs.errors import ConfigError, DataError, ModelError
from litbench.runs.locations import PACKAGED
from litbench.runs.outputs import (
    as_json,
    fingerprint,
    translate_disk_full,
    write_atomically,
    write_json,
)
from litbench.runs.progress import ProgressBar

# Pairs that training did not use, with the reason.
REJECTED = "rejected.jsonl"
# In each checkpoint: a list of its files.
_FILES = "files.json"

# Keys that do not affect the trained model.
_RUNTIME = (
    "output_dir",
    "report_to",
    "run_name",
    "project",
    "disable_tqdm",
    "log_level",
    "push_to_hub",
    "resume_from_checkpoint",
    "save_steps",
    "save_total_limit",
    "use_cpu",
)
_RUNTIME_PREFIXES = ("hub_", "logging_", "dataloader_", "trackio_")
# Always in the record, even if a config does not set them.
_MAIN_KEYS = (
    "model_name_or_path",
    "max_length",
    "num_train_epochs",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "dtype",
    "use_peft",
    "seed",
)


# Options --------------------------------------------------------------------------------------


def option(default: Any, about: str) -> Any:
    """Dataclass field with a default and a `--help` text."""
    return field(default=default, metadata={"help": about})


@dataclass(kw_only=True)
class TrainingOptions(ModelConfig):  # type: ignore[misc]
    """Keys that both training programs add to trl's, and the paper's defaults (A.9).

    Attributes:
        given: names of the keys that were set, see `litbench.runs.config.build`.
    """

    given: ClassVar[Sequence[str]] = ()

    # Without `field` it would inherit trl's default, None.
    model_name_or_path: str = field(
        metadata={"help": f"Model to train: a folder or a Hub name; from a package {PACKAGED}."}
    )
    learning_rate: float = option(1e-5, "Learning rate; small models need more.")
    num_train_epochs: float = option(1.0, "Number of epochs.")
    warmup_steps: float = 0.1
    per_device_train_batch_size: int = option(4, "Pairs on a device at a time.")
    gradient_accumulation_steps: int = option(32, "Device batches per optimiser step.")
    # trl's default is True, under the old name of activation_checkpointing.
    gradient_checkpointing: bool | None = None
    # Before 5.23, transformers has only the old name.
    activation_checkpointing: bool | None = option(
        None, "Save memory by computing activations again in the backward pass."
    )
    logging_steps: float = 0.05
    logging_nan_inf_filter: bool = False
    ddp_find_unused_parameters: bool | None = False
    ddp_broadcast_buffers: bool | None = False
    lora_target_modules: list[str] | None = field(default_factory=lambda: ["all-linear"])
    hub_private_repo: bool | None = True
    bf16: bool | None = option(None, "Compute in bfloat16; default: if the GPU supports it.")
    validation: Annotated[float, Field(ge=0, lt=1)] = option(
        0.0,
        "Share of the training prompts held out; keeps the epoch with the lowest loss on them.",
    )
    negatives: bool = option(
        False, "Add texts that are no stories as rejected sides of training pairs (at most 5 %)."
    )
    merge_adapter: bool = option(True, "Merge adapters into the saved weights.")

    def __post_init__(self: Any) -> None:
        """Check that the keys are consistent and that a requested GPU exists."""
        if self.load_in_8bit or (self.load_in_4bit and not self.use_peft):
            raise ConfigError("training on quantised weights needs load_in_4bit and use_peft: true")
        has_gpu = torch.accelerator.is_available()
        is_for_gpus = os.environ.get("ACCELERATE_USE_CPU", "no").lower() in ("no", "false")
        if not has_gpu and not self.use_cpu and "RANK" in os.environ and is_for_gpus:
            raise ConfigError(
                "the launch asks for a GPU, and this machine has none: set use_cpu: true to train "
                "on the CPU"
            )
        self.use_cpu = self.use_cpu or not has_gpu
        if self.bf16 is None:
            self.bf16 = not (self.fp16 or self.use_cpu) and torch.cuda.is_bf16_supported(False)
        if self.validation and self.eval_strategy == "no":
            self.eval_strategy = self.save_strategy = "epoch"
            self.load_best_model_at_end, self.save_total_limit = True, 2
        if not hasattr(TrainingArguments, "activation_checkpointing"):
            self.gradient_checkpointing = (
                self.gradient_checkpointing or self.activation_checkpointing
            )
        ModelConfig.__post_init__(self)
        super(ModelConfig, self).__post_init__()

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Number of warm-up steps; at least one step comes after them."""
        steps = super().get_warmup_steps(num_training_steps)
        return int(min(steps, num_training_steps - 1))

    def files(self) -> dict[str, str]:
        return {"model_name_or_path": self.model_name()}

    def model_name(self) -> str:
        """Name of the model, with its revision unless that is main."""
        revision = "" if self.model_revision == "main" else f"@{self.model_revision}"
        return f"{self.model_name_or_path}{revision}"

    def record(self) -> dict[str, Any]:
        """Main keys and keys set in the config or on the command line, as JSON values."""
        names = dict.fromkeys([*_MAIN_KEYS, *self.given])
        listed = [name for name in names if not name.startswith(_RUNTIME_PREFIXES)]
        plain = self.to_dict()
        return dict(as_json({name: plain[name] for name in listed if name not in _RUNTIME}))


@dataclass(kw_only=True)
class ProgramOptions(PairColumns):
    """Keys for the input and evaluation pairs of a training program."""

    pairs: str = field(metadata={"help": "Pairs to train on."})
    output_dir: str = field(metadata={"help": "Output folder."})
    split: str | None = option(None, "Use only this split.")
    evaluation_split: str | None = option(None, "Split to evaluate on at the end.")
    evaluation_pairs: str | None = option(None, "Pairs to evaluate on, if not in pairs.")
    language: str | None = option(None, "Language of the stories, such as en, for the model card.")

    def inputs(self) -> dict[str, str]:
        """Input files, by key."""
        named = {"pairs": self.pairs, "evaluation_pairs": self.evaluation_pairs}
        return {name: path for name, path in named.items() if path is not None}


# Pairs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenisedPairs:
    """Tokenised pairs for a trainer.

    Attributes:
        rows: data set with the trainer's columns and `length`, the number of tokens of a pair.
        counts: number of pairs given, used, truncated and rejected by reason, and of tokens.
        rejected: id and reason of each rejected pair, and its row in a file from elsewhere.
    """

    rows: Any
    counts: dict[str, int]
    rejected: list[dict[str, Any]]

    @classmethod
    def make(
        cls, rows: list[dict[str, Any]], pairs: pa.Table, reasons_of: Mapping[int, str], cut: int
    ) -> "TokenisedPairs":
        """Add counts.

        Args:
            rows: the tokenised pairs.
            pairs: all pairs.
            reasons_of: why pairs are rejected, by index in `pairs`.
            cut: number of truncated pairs.
        """
        named = pairs.select([name for name in ("pair_id", ROW) if name in pairs.column_names])
        named = named.rename_columns(["pair_id", "row"][: named.num_columns])
        indices = pa.array(reasons_of, pa.int64())
        entries = zip(named.take(indices).to_pylist(), reasons_of.values(), strict=True)
        rejected = [entry | {"reason": reason} for entry, reason in entries]
        reasons = Counter(reasons_of.values())
        counts = {
            "pairs_given": len(rows) + len(rejected),
            "pairs": len(rows),
            "pairs_cut": cut,
            "tokens": sum(row["length"] for row in rows),
            **{f"rejected: {reason}": count for reason, count in sorted(reasons.items())},
        }
        is_negative = np.array(pairs["label_source"]) == NEGATIVES
        if is_negative.any():
            counts[NEGATIVES] = int(is_negative.sum() - is_negative[list(reasons_of)].sum())
        return cls(Dataset.from_list(rows), counts, rejected)


def counts_text(counts: Mapping[str, int], validation: Mapping[str, int] | None) -> str:
    """One line: pairs read, used, for validation, rejected by reason, truncated."""
    parts = [counts] if validation is None else [counts, validation]
    total = Counter[str]()
    for part in parts:
        total.update(part)
    reasons = [f"{total[key]:,} {key}" for key in total if key.startswith("rejected: ")]
    held = [] if validation is None else [f"{validation['pairs']:,} for validation"]
    used = f"{counts['pairs']:,} used"
    if NEGATIVES in counts:
        used += f" ({counts[NEGATIVES]:,} of them negatives: texts that are no stories)"
    listed = [used, *held, *reasons, f"{total['pairs_cut']:,} truncated"]
    return f"pairs: {total['pairs_given']:,} read, {', '.join(listed)}"


def training_parts(pairs: pa.Table, options: Any) -> tuple[pa.Table, pa.Table]:
    """Training pairs, with negatives if the options ask for them, and validation pairs."""
    training, validation = hold_back(pairs, options.validation, options.seed)
    return add_negatives(training) if options.negatives else training, validation


def hold_back(pairs: pa.Table, share: float, seed: int) -> tuple[pa.Table, pa.Table]:
    """Split pairs by prompt into training pairs and validation pairs."""
    if not share:
        return pairs, pairs.slice(0, 0)
    keys = connected_prompts(pairs)
    prompts = sorted(set(keys), key=lambda key: digest("validation", seed, key))
    count = round(share * len(prompts))
    if not 0 < count < len(prompts):
        raise DataError(
            f"validation {share} of {len(prompts)} prompts leaves no prompt on one side: change "
            "validation, or use more pairs"
        )
    held = pc.is_in(pa.array(keys), pa.array(prompts[:count]))
    return pairs.filter(pc.invert(held)), pairs.filter(held)


# Training -------------------------------------------------------------------------------------


class PairTrainer:
    """Mixin for trl's trainers; must come before the trainer in the list of base classes."""

    args: Any
    state: Any
    train_dataset: Any
    packed = True
    # Of the training before the checkpoint that it resumes from.
    earlier_seconds = 0.0
    # trl's own count, which it starts again at 0 after a resume.
    _total_train_tokens: int

    def train(self: Any, resume_from_checkpoint: str | None = None, **arguments: Any) -> Any:
        """Train; after a resume, tokens and seconds are of the whole training."""
        if resume_from_checkpoint is not None:
            state = json.loads((Path(resume_from_checkpoint) / "trainer_state.json").read_bytes())
            logged = [entry for entry in state["log_history"] if "num_tokens" in entry]
            if logged:
                self._total_train_tokens = round(logged[-1]["num_tokens"])
                self.earlier_seconds = logged[-1].get("seconds", 0.0)
        return super().train(resume_from_checkpoint, **arguments)  # type: ignore[misc]

    def log(self: Any, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with the seconds since the training began, without interruptions."""
        if start_time is not None:
            logs["seconds"] = round(self.earlier_seconds + time.time() - start_time, 2)
        super().log(logs, start_time)  # type: ignore[misc]

    def _send_telemetry(self) -> None:
        """Send no telemetry to trl (https://github.com/huggingface/trl/pull/5758)."""

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Do nothing: `litbench.models.card` writes the card."""

    def _get_train_sampler(self, _: Any = None) -> StepSampler:
        args, micro_batches = self.args, self.args.gradient_accumulation_steps
        sampler = StepSampler(
            self.train_dataset["length"],
            lambda: self.state.global_step // (len(sampler) // micro_batches),
            packed=self.packed,
            effective_batch_size=args.train_batch_size * micro_batches * args.world_size,
            dp_size=args.world_size,
            grad_accum=micro_batches,
            rank=args.process_index,
            seed=args.seed,
        )
        return sampler

    def save_model(self: Any, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save; under FSDP create the folder first, since the best checkpoint's must exist."""
        if _internal_call and output_dir is not None and self.is_fsdp_enabled:
            Path(output_dir).mkdir(parents=True, exist_ok=True)
        super().save_model(output_dir, _internal_call)  # type: ignore[misc]


class Progress(TrainerCallback):  # type: ignore[misc]
    """Shows one bar with the loss, and stops a run whose loss or gradient norm is not finite."""

    def on_train_begin(self, args: Any, state: Any, _: Any, **__: Any) -> None:
        """Show the bar."""
        hidden = args.disable_tqdm or not state.is_world_process_zero
        self._bar = ProgressBar(
            total=state.max_steps,
            initial=state.global_step,
            desc="training",
            unit=" steps",
            dynamic_ncols=True,
            disable=hidden or None,
        )

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Log before each checkpoint and at the end, so that `on_log` checks what is saved."""
        self._bar.update(state.global_step - self._bar.n)
        if control.should_save or state.global_step == state.max_steps:
            control.should_log = True

    def on_log(self, _args: Any, state: Any, _: Any, logs: Any, **__: Any) -> None:
        """Show the loss; check loss and gradient norm."""
        numbers = {name: logs[name] for name in ("loss", "grad_norm") if name in logs}
        if "loss" in numbers:
            self._bar.set_postfix(loss=f"{numbers['loss']:.4g}")
        if not all(map(math.isfinite, numbers.values())):
            raise ModelError(
                f"at step {state.global_step} training gave {numbers}: lower learning_rate, or set "
                "bf16: false and dtype: float32"
            )

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._bar.close()


def add_callbacks(trainer: Any) -> None:
    """Show `Progress` in place of transformers' dicts, and keep tensorboard's files."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(Progress())
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            # Beside the checkpoints, which are removed at the end.
            callback.logging_dir = str(Path(trainer.args.output_dir).parent / "tensorboard")


def load_to_train(pairs: pa.Table, options: Any, head: Head, *, reads_prompt: bool) -> Any:
    """Load the model to train and its tokenizer; a missing reward head is initialised."""
    if pairs.num_rows == 0:
        raise DataError("there are no pairs to train on: check the filters and the split")
    check_prompts(pairs, reads_prompt, "the training")
    set_seed(options.seed)
    return load_backbone(
        options.model_name(),
        head,
        trained_head=False,
        dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
        quantize=options.load_in_4bit,
        attention=options.attn_implementation,
    )


def train(
    trainer_class: Any,
    model: Any,
    tokenizer: Any,
    options: Any,
    parts: Sequence[TokenisedPairs],
    pairs: pa.Table,
    folder: Path,
    head: Head,
    **arguments: Any,
) -> dict[str, Any] | None:
    """Train a model on tokenised pairs.

    Args:
        trainer_class: subclass of `PairTrainer` and a trl trainer.
        model: from `load_to_train`.
        tokenizer: from `load_to_train`.
        options: instance of a subclass of `TrainingOptions` and a trl config.
        parts: training pairs and validation pairs.
        pairs: the table that contains both.
        folder: folder for checkpoints; training resumes from the last complete one in it.
        head: see `load_backbone`.
        arguments: further arguments of the trainer.

    Returns:
        Arguments for the rater: the model as loaded from the saved files, with adapters merged, in
        fp32 (bfloat16 after training on 4-bit weights), its tokenizer, hashes of the training
        prompts, the training record, the adapter, and a function that logs further values to the
        trackers and closes them. None on every process but rank 0.
    """
    data, validation = parts
    args = copy.copy(options)
    micro_batches = len(data.rows) // args.world_size
    if not micro_batches or (args.validation and not len(validation.rows)):
        raise DataError(
            f"too few pairs are left ({data.counts}; validation {validation.counts}): check the "
            "filters, the split, validation and max_length"
        )
    args.gradient_accumulation_steps = min(args.gradient_accumulation_steps, micro_batches)
    args.output_dir, args.push_to_hub, args.remove_unused_columns = str(folder), False, False
    # The pairs are truncated already.
    args.max_length = None
    # Without this one process would use all visible GPUs, which trl refuses:
    # https://github.com/huggingface/trl/issues/6836
    args._n_gpu = min(1, args.n_gpu)  # noqa: SLF001
    _prepare_trackers(args, folder)
    if is_main_process():
        print(counts_text(data.counts, validation.counts if args.validation else None))
        _warn_of_threads(args)
    with quiet():
        trainer = trainer_class(
            model=model,
            args=args,
            train_dataset=data.rows,
            eval_dataset=validation.rows if args.validation else None,
            processing_class=tokenizer,
            peft_config=_adapter_config(options, model, head),
            **arguments,
        )
        # Trackers record the limit of the stories, which trl would apply again.
        trainer.args.max_length = options.max_length
        add_callbacks(trainer)
        for name, weight in trainer.model.named_parameters():
            adapts_4_bits = options.load_in_4bit and weight.requires_grad
            if adapts_4_bits or "modules_to_save" in name:
                # trl trains a quantised model's adapters and head in 16 bits, where updates are
                # lost to rounding and rewards come out equal.
                weight.data = weight.data.float()
        if trainer.is_fsdp_enabled and args.bf16:
            _keep_sums_in_32_bits(trainer)
        try:
            train_from_last_checkpoint(trainer, folder, args.resume_from_checkpoint)
        except torch.OutOfMemoryError as error:
            raise ModelError(
                "the device is out of memory: halve per_device_train_batch_size and double "
                "gradient_accumulation_steps, or set activation_checkpointing or use_peft to true"
            ) from error
        if trainer.is_fsdp_enabled:
            trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        with translate_disk_full(folder):
            trainer.save_model(str(folder / "trained"))
    record = _record(trainer, options, data, validation)
    report = _reporter(trainer)
    trainer.accelerator.wait_for_everyone()
    # Only rank 0 evaluates and writes.
    trainer.accelerator.end_training()
    # Otherwise transformers would load the model in shards again.
    unset_hf_deepspeed_config()
    if not is_main_process():
        return None
    _write_rejected(folder / REJECTED, data, validation, options)
    # Free the model before loading it again. The patched forward methods are reference cycles.
    del trainer, model, arguments
    gc.collect()
    torch.cuda.empty_cache()
    model, tokenizer, adapter = _load_trained(folder / "trained", options, head)
    return {
        "model": model.to(options.device),
        "tokenizer": tokenizer,
        "prompts": training_prompts_of(pairs) | prompts_of(options.model_name()),
        "training": record,
        "adapter": adapter,
        "report": report,
    }


def _adapter_config(options: Any, model: Any, head: Head) -> Any:
    """The config of peft, without towers, with the reward head; None if no adapter is trained."""
    config = get_peft_config(options)
    if config is not None:
        config.exclude_modules = no_towers(model)
        if head == "reward":
            heads = [name for name in HEADS if hasattr(model, name)]
            config.task_type = "SEQ_CLS"
            config.modules_to_save = options.lora_modules_to_save or heads
    return config


def _write_rejected(
    path: Path, data: TokenisedPairs, validation: TokenisedPairs, options: Any
) -> None:
    held = validation.rows["pair_id"] if options.validation else []
    reasons = [{"pair_id": pair, "reason": "held back for validation"} for pair in held]
    lines = map(json.dumps, [*data.rejected, *validation.rejected, *reasons])
    text = "".join(f"{line}\n" for line in lines)
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def _load_trained(folder: Path, options: Any, head: Head) -> tuple[Any, Any, Adapter | None]:
    """Model, tokenizer and adapter from saved files; the adapter is None if it was merged."""
    base, code = options.model_name(), options.trust_remote_code
    if not options.use_peft:
        return *load_backbone(str(folder), head, trust_remote_code=code), None
    model, tokenizer = load_with_adapter(
        folder, base, head, quantized=options.load_in_4bit, trust_remote_code=code
    )
    adapter = None if options.merge_adapter else Adapter(base, options.load_in_4bit, folder)
    return model, tokenizer, adapter


def train_inside(
    train_model: Callable[..., Any],
    options: TrainingOptions,
    name: str,
    pairs: pa.Table,
    folder: Path,
    seed: int,
) -> Any:
    """Train a rater inside cross-validation, with the fold's seed unless `options` sets one."""
    ready: Any = copy.copy(options)
    if "seed" not in options.given:
        ready.seed = seed
    made = train_model(pairs, ready, folder, name)
    if made is not None:
        made.report({})
    return made


def _keep_sums_in_32_bits(trainer: Any) -> None:
    """Make FSDP reduce gradients in fp32 and not cast rewards, unlike accelerate's policy."""
    from torch.distributed.fsdp import MixedPrecisionPolicy  # noqa: PLC0415

    trainer.accelerator.state.fsdp_plugin.mixed_precision_policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )


def _warn_of_threads(args: Any) -> None:
    """Say when other programs use the cores that training on a CPU would use."""
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    free = max(1, round(cores - os.getloadavg()[0]))
    if args.use_cpu and threads > free:
        print(
            f"note: {threads} threads, but about {free} of {cores} cores are free: "
            f"OMP_NUM_THREADS={free} may be faster",
            file=sys.stderr,
        )


def _prepare_trackers(args: Any, folder: Path) -> None:
    """Run wandb offline if it has no API key, in one run per training, with files beside `folder`.

    The run's id is stored with the checkpoints, so a resumed training goes on in its run.
    """
    if "wandb" in args.report_to and is_main_process():
        import wandb  # noqa: PLC0415

        mode: Any = os.environ.get("WANDB_MODE")
        if mode is None and not wandb.login(prompt=False):
            mode = "offline"
        project, quietly = os.environ.get("WANDB_PROJECT", "litbench"), wandb.Settings(silent=True)
        run = folder / "wandb_run.txt"
        if not run.exists():
            folder.mkdir(parents=True, exist_ok=True)
            run.write_text(uuid.uuid4().hex, encoding="utf-8")
        wandb.init(
            project=project,
            name=args.run_name,
            mode=mode,
            settings=quietly,
            dir=folder.parent,
            id=run.read_text(encoding="utf-8"),
            resume="allow",
        )


def _reporter(trainer: Any) -> Callable[[Mapping[str, float]], None]:
    handler, args, state = trainer.callback_handler, trainer.args, trainer.state
    control = trainer.control
    for part in ("model", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"):
        setattr(handler, part, None)

    def report(values: Mapping[str, float]) -> None:
        handler.on_log(args, state, control, dict(values))
        if "wandb" in args.report_to:
            # Otherwise the next fold's training would log to this run.
            import wandb  # noqa: PLC0415

            wandb.finish()

    return report


def is_main_process() -> bool:
    """Whether this process has rank 0, which writes the files."""
    return int(os.environ.get("RANK", "0")) == 0


def checkpoint_folder(out: Path, training: str) -> Path:
    """Folder for the checkpoints of a training; prints which other folders are ignored.

    The folder depends on the fingerprint, the number of processes and the kind of shards.
    """
    shards = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
    launch = [os.environ.get(name, "") for name in ("WORLD_SIZE", *shards)]
    folder = out / f"checkpoints-{fingerprint(training, launch)[:12]}"
    if is_main_process():
        for other in sorted({*out.glob("checkpoints-*")} - {folder}):
            print(f"{other} has checkpoints of another config, data or launch: ignored")
    return folder


def train_from_last_checkpoint(trainer: Any, folder: Path, checkpoint: str | None = None) -> None:
    """Train from `checkpoint`, or else from the last complete one of a folder, and print which."""
    trainer.add_callback(_ListCheckpointFiles())
    checkpoint = checkpoint or last_complete_checkpoint(folder)
    if checkpoint is not None and is_main_process():
        print(f"training resumes from {checkpoint}", file=sys.stderr)
    with translate_disk_full(folder):
        trainer.train(resume_from_checkpoint=checkpoint)


class _ListCheckpointFiles(TrainerCallback):  # type: ignore[misc]
    """Lists the files of each checkpoint in it, once every process has written its own."""

    def on_save(self, args: Any, state: Any, _: Any, **__: Any) -> None:
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            files = [path for path in checkpoint.rglob("*") if path.is_file()]
            names = sorted(str(path.relative_to(checkpoint)) for path in files)
            write_json(names, checkpoint / _FILES)


def _is_complete(checkpoint: Path) -> bool:
    """Whether all files are there: a kill can interrupt writing and deleting a checkpoint."""
    files = checkpoint / _FILES
    return files.is_file() and all(
        (checkpoint / name).is_file() for name in json.loads(files.read_bytes())
    )


def last_complete_checkpoint(folder: Path) -> str | None:
    """Find the latest complete checkpoint whose best checkpoint, if it has one, is complete."""
    states = {
        path: json.loads((path / "trainer_state.json").read_bytes())
        for path in folder.glob("checkpoint-*/")
        if _is_complete(path)
    }
    complete = {path.name for path in states}
    checkpoints = [
        (state["global_step"], path)
        for path, state in states.items()
        if (best := state["best_model_checkpoint"]) is None or Path(best).name in complete
    ]
    return str(max(checkpoints)[1]) if checkpoints else None


def _record(
    trainer: Any, options: Any, data: TokenisedPairs, validation: TokenisedPairs
) -> dict[str, Any]:
    state = trainer.state
    shown = ("step", "epoch", "loss", "accuracy", "mean_token_accuracy", "margin", "grad_norm")
    seconds = trainer.earlier_seconds + state.log_history[-1].get("train_runtime", 0.0)
    best = state.best_model_checkpoint
    tokens = trainer._total_train_tokens  # noqa: SLF001
    return {
        "options": options.record(),
        "bf16": options.bf16,
        "counts": data.counts,
        "validation_counts": validation.counts if options.validation else None,
        "processes": trainer.accelerator.num_processes,
        "launched_as": trainer.accelerator.distributed_type.value,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "packed": trainer.packed,
        "parameters": trainer.model.num_parameters(),
        "parameters_trained": trainer.model.num_parameters(only_trainable=True),
        "steps": state.global_step,
        "kept_step": int(best.rpartition("-")[2]) if best else state.global_step,
        "seconds": round(seconds, 2),
        "tokens_per_second": round(tokens / seconds, 1) if seconds else None,
        "curve": [
            {name: round(entry[name], 8) for name in shown if name in entry}
            for entry in state.log_history
            if "loss" in entry
        ],
        "validation": [
            {name.removeprefix("eval_"): round(value, 6) for name, value in entry.items()}
            for entry in state.log_history
            if "eval_loss" in entry
        ],
    }
