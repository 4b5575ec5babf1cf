"""Training a rater on pairs with trl: what both objectives share.

trl's RewardTrainer and SFTTrainer train; every key of trl and transformers works under its own
name. Added here: a few keys, truncation that is counted, validation by prompts, micro-batches of
equal cost (`litbench.models.packing`), resuming without being told to, and the record of the run.
"""

import contextlib
import copy
import gc
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa

from litbench.artifact import as_json, fingerprint, write_atomically
from litbench.config import nearest, read_yaml
from litbench.errors import ConfigError, DataError, MissingExtraError, ModelError
from litbench.models.backbone import Head, load_backbone, load_with_adapter, no_towers, quiet
from litbench.models.card import REJECTED
from litbench.models.folder import Adapter
from litbench.models.packing import StepSampler
from litbench.models.throughput import (
    count_parameters,
    peak_flops,
    peak_memory_gib,
    training_flops,
)
from litbench.records import prompt_keys
from litbench.text import digest

try:
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback, set_seed
    from transformers.trainer_callback import PrinterCallback
    from trl import ModelConfig, TrlParser, get_peft_config
except ImportError as error:
    raise MissingExtraError("trl", "train") from error

C = TypeVar("C")

# Keys that say how the work is done and not what comes out.
_RUNTIME = (
    "output_dir", "report_to", "run_name", "project", "disable_tqdm", "log_level", "push_to_hub",
    "resume_from_checkpoint", "save_steps", "save_total_limit", "use_cpu",
)  # fmt: skip
_RUNTIME_PREFIXES = ("hub_", "logging_", "dataloader_", "trackio_")
# Shown in the record whether or not a config names them.
_MAIN_KEYS = (
    "model_name_or_path", "max_length", "num_train_epochs", "learning_rate", "lr_scheduler_type",
    "warmup_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "dtype",
    "use_peft", "validation", "seed",
)  # fmt: skip
# A loss that stays where it began for this many steps has no gradient to follow.
_CONSTANT_STEPS = 20
_CONSTANT_BY = 1e-7


# Options --------------------------------------------------------------------------------------


def key(default: Any, about: str) -> Any:
    """A key of a config with its default and its line of `--help`."""
    return field(default=default, metadata={"help": about})


@dataclass(kw_only=True)
class TrainingOptions(ModelConfig):  # type: ignore[misc]
    """Keys of both programs beside trl's, and the defaults that differ: the paper's (A.9)."""

    learning_rate: float = key(1e-5, "Peak learning rate.")
    warmup_steps: float = key(0.1, "Steps of warm-up, or their share below 1.")
    per_device_train_batch_size: int = key(4, "Average pairs of a forward pass on one device.")
    gradient_accumulation_steps: int = key(32, "Forward passes of an optimiser step.")
    gradient_checkpointing: bool | None = key(None, "Old name of activation_checkpointing.")
    bf16: bool | None = key(None, "Compute in bfloat16; where a GPU has it when not given.")
    logging_steps: float = key(0.05, "Steps between lines of the log, or their share below 1.")
    logging_nan_inf_filter: bool = key(False, "Hide losses that are not finite.")
    report_to: str | list[str] | None = key("none", "Trackers: wandb, tensorboard, several, none.")
    ddp_find_unused_parameters: bool | None = key(False, "Look for weights without gradient.")
    ddp_broadcast_buffers: bool | None = key(False, "Send constants to all processes again.")
    lora_target_modules: list[str] | None = key("all-linear", "Layers with adapters.")
    hub_private_repo: bool | None = key(True, "Push to a private repository.")
    validation: float = key(
        0.0, "Share of the training prompts held back; they choose the epoch to keep, by loss."
    )
    merge_adapter: bool = key(True, "Fold adapters into the weights that are saved.")

    def __post_init__(self) -> None:
        """Check what can be checked without data.

        Raises:
            ConfigError: keys that do not fit together, or a GPU is asked for and there is none.
        """
        if not self.model_name_or_path:
            raise ConfigError("key 'model_name_or_path' is missing: give it a value")
        if not 0 <= self.validation < 1:
            raise ConfigError(f"validation is {self.validation}: give a share from 0 to below 1")
        if self.load_in_8bit or (self.load_in_4bit and not self.use_peft):
            raise ConfigError(
                "quantised training is load_in_4bit: true with use_peft: true (QLoRA)"
            )
        has_gpu = torch.accelerator.is_available()
        told_cpu = self.use_cpu or os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"
        is_launched = "WORLD_SIZE" in os.environ or "ACCELERATE_USE_CPU" in os.environ
        if not has_gpu and not told_cpu and (self.bf16 or is_launched):
            raise ConfigError(
                "this machine has no GPU, which "
                + ("bf16: true asks for" if self.bf16 else "the launch config asks for")
                + ": set use_cpu: true to train on the CPU"
            )
        self.use_cpu = self.use_cpu or not has_gpu
        if self.bf16 is None:
            self.bf16 = not self.fp16 and not self.use_cpu and torch.cuda.is_bf16_supported(False)
        if self.validation and self.eval_strategy == "no":
            self.eval_strategy = self.save_strategy = "epoch"
            self.load_best_model_at_end, self.save_total_limit = True, 2
        ModelConfig.__post_init__(self)
        super(ModelConfig, self).__post_init__()

    def files(self) -> dict[str, str]:
        """The model."""
        return {"model_name_or_path": self.model_name()}

    def model_name(self) -> str:
        """The model's name, with a revision other than main."""
        revision = "" if self.model_revision == "main" else f"@{self.model_revision}"
        return f"{self.model_name_or_path}{revision}"

    def record(self) -> dict[str, Any]:
        """What a config or the command line named, and the main keys; plain values."""
        shown = dict.fromkeys([*_MAIN_KEYS, *getattr(self, "given", ())])
        plain = self.to_dict()
        kept = [name for name in shown if not name.startswith(_RUNTIME_PREFIXES)]
        return dict(as_json({name: plain[name] for name in kept if name not in _RUNTIME}))


class _Parser(TrlParser):  # type: ignore[misc]
    def error(self, message: str) -> Any:
        raise ConfigError(f"command line: {message}")


def read_options(
    cls: type[C],
    values: Mapping[str, Any],
    where: str = "config",
    arguments: Sequence[str] = (),
    about: str | None = None,
) -> C:
    """Make a config of trl from a mapping and a command line that wins over it.

    Args:
        cls: dataclass, a subclass of `TrainingOptions` and of a config of trl.
        values: keys and values as YAML gives them.
        where: named in messages, such as the config's path.
        arguments: `--key value` or `--key=value`.
        about: what `--help` prints first.

    Raises:
        ConfigError: an unknown key (the nearest valid one is named), a missing key, or a value
            that does not fit.
        SystemExit: after `--help`.
    """
    parser = _Parser([cls], description=about, allow_abbrev=False)
    known = {name.lstrip("-").replace("-", "_") for name in parser._option_string_actions}
    named = [
        word[2:].partition("=")[0].replace("-", "_") for word in arguments if word.startswith("--")
    ]
    for place, names in ((where, values), ("command line", named)):
        for name in names:
            if name not in known:
                found = nearest(name, sorted(known - {"h", "help"}))
                raise ConfigError(f"{place}: unknown key '{name}': {found}")
    for action in parser._actions:
        value = values.get(action.dest)
        if action.choices and value is not None and value not in action.choices:
            choices = ", ".join(map(str, action.choices))
            raise ConfigError(f"{where}: key '{action.dest}' is {value!r}: one of {choices}")
    parser.set_defaults_with_config(**values)
    try:
        (made,) = parser.parse_args_into_dataclasses(list(arguments), look_for_args_file=False)
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(f"{where}: {error}") from error
    made.given = [*values, *named]
    return made


def load_options(cls: type[C], arguments: Sequence[str], about: str | None = None) -> C:
    """Read `--config FILE` and the other keys of a command line; see `read_options`."""
    rest, values, where = list(arguments), {}, "command line"
    while "--config" in rest:
        place = rest.index("--config")
        if place + 1 == len(rest):
            raise ConfigError("command line: --config needs a file")
        where = rest[place + 1]
        values |= read_yaml(Path(where))
        del rest[place : place + 2]
    return read_options(cls, values, where, rest, about)


# Pairs as token ids ---------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenisedPairs:
    """Pairs ready for a trainer.

    Attributes:
        rows: columns of the trainer, and `length`, the tokens of a pair.
        counts: pairs given, used, cut to fit and rejected by reason, and tokens.
        rejected: id and reason of each pair that is not used.
    """

    rows: Any
    counts: dict[str, int]
    rejected: list[dict[str, str]]

    @classmethod
    def make(
        cls, rows: list[dict[str, Any]], rejected: list[dict[str, str]], cut: int
    ) -> "TokenisedPairs":
        """Count and keep; `cut` pairs lost tokens."""
        reasons = Counter(entry["reason"] for entry in rejected)
        counts = {
            "pairs_given": len(rows) + len(rejected),
            "pairs": len(rows),
            "pairs_cut": cut,
            "tokens": sum(row["length"] for row in rows),
            **{f"rejected: {reason}": count for reason, count in sorted(reasons.items())},
        }
        return cls(Dataset.from_list(rows), counts, rejected)


def hold_back(pairs: pa.Table, share: float, seed: int) -> tuple[pa.Table, pa.Table]:
    """Split training pairs by prompt into those to train on and those to validate on.

    Args:
        pairs: table by the schema PAIRS.
        share: of the prompts to keep back; 0 for none.
        seed: of the choice.

    Raises:
        DataError: a share so small or large that one part has no prompt.
    """
    if not share:
        return pairs, pairs.slice(0, 0)
    keys = prompt_keys(pairs)
    prompts = sorted(set(keys), key=lambda key: digest("validation", seed, key))
    count = round(share * len(prompts))
    if not 0 < count < len(prompts):
        raise DataError(
            f"validation {share} of {len(prompts)} prompts leaves no prompt on one side: change "
            "it, or give more pairs"
        )
    held = pa.array([key in set(prompts[:count]) for key in keys])
    return pairs.filter(pa.compute.invert(held)), pairs.filter(held)


# Training -------------------------------------------------------------------------------------


class PairTrainer:
    """What both trainers add to trl's; the first base of a class whose second is one of trl's."""

    packed = True
    _since: float | None = None
    _logged_tokens = 0

    def _send_telemetry(self) -> None:
        """Tell nobody."""

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Nothing: the card is `litbench.models.card`'s."""

    def _get_train_sampler(self: Any, train_dataset: Any = None) -> StepSampler:
        del train_dataset
        args = self.args
        micro_batches = args.gradient_accumulation_steps
        sampler = StepSampler(
            self.train_dataset["length"],
            lambda: self.state.global_step // max(1, len(sampler) // micro_batches),
            packed=self.packed,
            effective_batch_size=args.train_batch_size * micro_batches * args.world_size,
            dp_size=args.world_size,
            grad_accum=micro_batches,
            rank=args.process_index,
            seed=args.seed,
        )
        return sampler

    def training_step(self: Any, *arguments: Any, **named: Any) -> Any:
        """Start the clock, and train."""
        self._since = self._since or time.perf_counter()
        return super().training_step(*arguments, **named)  # type: ignore[misc]

    def evaluate(self: Any, *arguments: Any, **named: Any) -> Any:
        """Evaluate; the clock of training stands still."""
        started = time.perf_counter()
        found = super().evaluate(*arguments, **named)  # type: ignore[misc]
        if self._since is not None:
            self._since += time.perf_counter() - started
        return found

    def log(self: Any, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add speed since the last line."""
        if "loss" in logs and self._since is not None:
            now = time.perf_counter()
            seconds, self._since = now - self._since, now
            tokens = self._total_train_tokens - self._logged_tokens
            self._logged_tokens = self._total_train_tokens
            logs |= {"seconds": seconds, "tokens_per_second": tokens / seconds}
            device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
            if (peak := peak_flops(device)) is not None:
                available = seconds * peak * self.accelerator.num_processes
                logs["mfu"] = training_flops(self.model, tokens) / available
        super().log(logs, start_time)  # type: ignore[misc]

    def save_model(self: Any, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save; under FSDP the folder of a checkpoint must be there to be noted as the best."""
        if _internal_call and output_dir is not None and self.is_fsdp_enabled:
            Path(output_dir).mkdir(parents=True, exist_ok=True)
        super().save_model(output_dir, _internal_call)  # type: ignore[misc]


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Stops a run that cannot end well, and says why."""

    first: tuple[float, int] | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # Before a checkpoint, which must not hide what came before it; and at the end.
        if control.should_save or state.global_step == state.max_steps:
            control.should_log = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        loss, norm = (logs or {}).get("loss"), (logs or {}).get("grad_norm", 0.0)
        if loss is None:
            return
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise ModelError(
                f"at step {state.global_step} the loss is {loss} and the gradient's norm {norm}: "
                "lower learning_rate, or set bf16: false and dtype: float32"
            )
        if self.first is None or abs(loss - self.first[0]) > _CONSTANT_BY or loss < _CONSTANT_BY:
            self.first = (loss, state.global_step)
        elif state.global_step - self.first[1] >= _CONSTANT_STEPS:
            raise ModelError(
                f"the loss is {loss:.6f} since step {self.first[1]}: nothing is learned. Check "
                "learning_rate, and whether max_length leaves room for the stories (pairs_cut)"
            )


@dataclass
class Trained:
    """What a run leaves.

    Attributes:
        folder: weights and tokenizer as the trainer saved them.
        record: options, counts, curve, speed; plain values.
        report: writes values to the run's trackers, such as the held-out result, and closes them.
    """

    folder: Path
    record: dict[str, Any]
    report: Any


def load_to_train(pairs: pa.Table, options: Any, head: Head) -> Any:
    """Load the model with its tokenizer; a reward head may be new.

    Raises:
        DataError: there are no pairs.
        ModelError: the model cannot be loaded.
    """
    if pairs.num_rows == 0:
        raise DataError("there are no pairs to train on: check the filters and the split")
    set_seed(options.seed)
    return load_backbone(
        options.model_name(), head, trained_head=False, dtype=options.dtype,
        trust_remote_code=options.trust_remote_code, quantize=options.load_in_4bit,
        attention=options.attn_implementation,
    )  # fmt: skip


def peft_config(options: Any, model: Any, head: Head) -> Any:
    """trl's peft config, with a reward head trained in full and no adapter where no text goes."""
    made = get_peft_config(options)
    if made is not None:
        made.exclude_modules = no_towers(model)
        if head == "reward":
            made.task_type = "SEQ_CLS"
            heads = [name for name in ("score", "classifier") if hasattr(model, name)]
            made.modules_to_save = options.lora_modules_to_save or heads
    return made


def train(
    trainer_class: Any,
    model: Any,
    tokenizer: Any,
    options: Any,
    data: TokenisedPairs,
    validation: TokenisedPairs,
    folder: Path,
    head: Head,
    **arguments: Any,
) -> Trained:
    """Train a model on tokenised pairs.

    Args:
        trainer_class: subclass of `PairTrainer` and of a trainer of trl.
        model: of `load_to_train`.
        tokenizer: its tokenizer; saved beside it.
        options: subclass of `TrainingOptions` and of a config of trl.
        data: pairs to train on.
        validation: pairs held back; may be empty.
        folder: for checkpoints; training goes on from the last whole one there.
        head: kind of model.
        arguments: further ones of the trainer.

    Raises:
        DataError: no pairs are left to train on, or none of those held back.
        ModelError: the loss is no number or does not move, or memory is full.
    """
    args = copy.copy(options)
    micro_batches = len(data.rows) // args.world_size
    if not micro_batches or (args.validation and not len(validation.rows)):
        raise DataError(
            f"too few pairs are left ({data.counts}; held back {validation.counts}): check the "
            "filters, the split, validation and max_length"
        )
    args.gradient_accumulation_steps = min(args.gradient_accumulation_steps, micro_batches)
    args.output_dir, args.push_to_hub, args.remove_unused_columns = str(folder), False, False
    # Truncation is done, and counted.
    args.max_length = None
    # Or several visible GPUs would be used by one process, which trl refuses.
    args._n_gpu = min(1, args.n_gpu)
    args.disable_tqdm = args.disable_tqdm or not sys.stderr.isatty()
    _prepare_trackers(args)
    with quiet():
        trainer = trainer_class(
            model=model,
            args=args,
            train_dataset=data.rows,
            eval_dataset=validation.rows if args.validation else None,
            processing_class=tokenizer,
            callbacks=[_Watch()],
            peft_config=peft_config(options, model, head),
            **arguments,
        )
    trainer.remove_callback(PrinterCallback)
    for name, weight in trainer.model.named_parameters():
        if "modules_to_save" in name:
            # trl trains a quantised model's head in 16 bits, where rewards come out equal.
            weight.data = weight.data.float()
    _prepare_sharding(trainer)
    with quiet(), _memory_error():
        trainer.train(args.resume_from_checkpoint or last_whole_checkpoint(folder))
        if trainer.is_fsdp_enabled:
            trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        trainer.save_model(str(folder / "trained"))
    if is_main_process():
        held = [
            {"pair_id": one, "reason": "held back for validation"}
            for one in (validation.rows["pair_id"] if args.validation else ())
        ]
        rows = [*data.rejected, *validation.rejected, *held]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_atomically(folder / REJECTED, lambda part: part.write_text(lines, encoding="utf-8"))
    record = _record(trainer, options, data, validation)
    trainer.accelerator.wait_for_everyone()
    # Rank 0 judges and writes; nobody waits for it.
    trainer.accelerator.end_training()
    return Trained(folder / "trained", record, _reporter(trainer))


@contextlib.contextmanager
def _memory_error() -> Any:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError(
            "the device's memory is full: halve per_device_train_batch_size and double "
            "gradient_accumulation_steps, set activation_checkpointing: true, or use_peft: true"
        ) from error


def _prepare_sharding(trainer: Any) -> None:
    """Keep gradients and rewards out of 16 bits under FSDP; accelerate's policy would not."""
    if trainer.is_fsdp_enabled and trainer.args.bf16:
        from torch.distributed.fsdp import MixedPrecisionPolicy  # noqa: PLC0415

        trainer.accelerator.state.fsdp_plugin.mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )


def _prepare_trackers(args: Any) -> None:
    """Let wandb work offline where it has no key: it would ask for one."""
    os.environ.setdefault("WANDB_PROJECT", "litbench")
    if "wandb" in args.report_to and "WANDB_MODE" not in os.environ:
        with contextlib.suppress(ImportError):
            import wandb  # noqa: PLC0415

            if not wandb.api.api_key:
                os.environ["WANDB_MODE"] = "offline"
    if "tensorboard" in args.report_to:
        # Checkpoints are removed at the end.
        place = Path(args.output_dir).parent / "tensorboard"
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(place))


def _reporter(trainer: Any) -> Any:
    """Write to a trainer's trackers once its model is gone."""
    handler, args, state, control = (
        trainer.callback_handler, trainer.args, trainer.state, trainer.control,
    )  # fmt: skip
    for part in ("model", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"):
        setattr(handler, part, None)

    def report(values: Mapping[str, float]) -> None:
        handler.on_log(args, state, control, dict(values))
        handler.on_train_end(args, state, control)
        if "wandb" in args.report_to:
            # Else the next fold's training would go on in this run.
            import wandb  # noqa: PLC0415

            wandb.finish()

    return report


def is_main_process() -> bool:
    """Whether this process writes the files."""
    return int(os.environ.get("RANK", "0")) == 0


def checkpoint_folder(out: Path, training: str) -> Path:
    """Where a training keeps its checkpoints; says which others lie there and are left alone.

    Args:
        out: the program's folder.
        training: fingerprint; checkpoints of another number of processes or another way of
            sharding are others too.
    """
    launch = [os.environ.get(name, "") for name in ("WORLD_SIZE", "ACCELERATE_USE_FSDP")]
    own = out / f"checkpoints-{fingerprint(training, launch)[:12]}"
    if is_main_process():
        for other in sorted(set(out.glob("checkpoints-*")) - {own}):
            print(f"{other} is of another config, other pairs or another launch: not gone on from")
    return own


def last_whole_checkpoint(folder: Path) -> str | None:
    """Find the newest checkpoint whose last file was written; a kill may leave half of one."""
    found = []
    for state in folder.glob("checkpoint-*/trainer_state.json"):
        with contextlib.suppress(ValueError, KeyError):
            found.append((int(json.loads(state.read_text())["global_step"]), state.parent))
    return str(max(found)[1]) if found else None


def load_trained(folder: Path, options: Any, head: Head) -> Any:
    """Load what a run saved, as it will be loaded from now on; adapters are folded in.

    Returns:
        (model, tokenizer), on the GPU where there is one; weights in fp32, and in bfloat16 after
        training on four-bit weights.
    """
    # Patched forward passes are cycles: the model that was trained would stay beside this one.
    gc.collect()
    torch.cuda.empty_cache()
    attention = options.attn_implementation
    if attention is not None and "flash" in attention and not options.load_in_4bit:
        # It refuses fp32.
        attention = None
    how = {"trust_remote_code": options.trust_remote_code, "attention": attention}
    if options.use_peft:
        model, tokenizer = load_with_adapter(
            folder, options.model_name(), head, quantized=options.load_in_4bit, **how
        )
    else:
        model, tokenizer = load_backbone(str(folder), head, **how)
    return model.to("cpu" if options.use_cpu else options.device), tokenizer


def kept_adapter(options: Any, folder: Path) -> Adapter | None:
    """The adapter of a run that keeps it apart from the weights; None for any other run."""
    if not options.use_peft or options.merge_adapter:
        return None
    return Adapter(options.model_name(), options.load_in_4bit, folder)


def _record(
    trainer: Any, options: Any, data: TokenisedPairs, validation: TokenisedPairs
) -> dict[str, Any]:
    state = trainer.state
    lines = [entry for entry in state.log_history if "loss" in entry]
    names: Sequence[Literal["accuracy", "mean_token_accuracy"]] = (
        "accuracy",
        "mean_token_accuracy",
    )
    shown = ("step", "epoch", "loss", *names, "grad_norm", "learning_rate", "tokens_per_second")
    seconds = sum(line.get("seconds", 0.0) for line in lines)
    rate = {
        name: sum(line.get(name, 0.0) * line.get("seconds", 0.0) for line in lines) / seconds
        for name in ("tokens_per_second", "mfu")
        if seconds and any(name in line for line in lines)
    }
    best = state.best_model_checkpoint
    return {
        "options": options.record(),
        "counts": data.counts,
        "validation_counts": validation.counts if options.validation else None,
        "processes": trainer.accelerator.num_processes,
        "launched_as": trainer.accelerator.distributed_type.value,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "steps": state.global_step,
        "kept_step": int(best.rpartition("-")[2]) if best else state.global_step,
        "packed": trainer.packed,
        "parameters": count_parameters(trainer.model),
        "parameters_trained": count_parameters(trainer.model, trained=True),
        "seconds": round(seconds, 2),
        "tokens_per_second": round(rate["tokens_per_second"], 1) if rate else None,
        "mfu": round(rate["mfu"], 4) if "mfu" in rate else None,
        "peak_memory_gib": round(peak_memory_gib(), 2),
        "curve": [{k: round(line[k], 8) for k in shown if k in line} for line in lines],
        "validation": [
            {k.removeprefix("eval_"): round(v, 6) for k, v in entry.items()}
            for entry in state.log_history
            if "eval_loss" in entry
        ],
    }
