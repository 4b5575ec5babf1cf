"""Training a rater on pairs: the options and the trainer that both objectives share.

transformers' Trainer brings devices, sharding, precision, checkpoints and trackers. What is ours:
steps that do not depend on the number of processes, forward passes by token budget with the pairs
kept together (`litbench.models.packing`), the loss summed over a step's pairs and divided by their
weights, validation by agreement, and figures of speed without padding.
"""

import contextlib
import gc
import hashlib
import importlib.util
import json
import math
import netrc
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from litbench.artifact import (
    Artifact,
    code_digest,
    fingerprint,
    is_output,
    read_manifest_of,
    write_atomically,
)
from litbench.errors import ConfigError, DataError, MissingExtraError, ModelError
from litbench.models.backbone import (
    Head,
    Lora,
    add_lora,
    load_backbone,
    load_with_adapter,
    no_dropout,
    quiet,
    to_device,
)
from litbench.models.folder import Adapter
from litbench.models.packing import Step, cut_step, steps_of_epoch
from litbench.models.throughput import Shape, peak_flops, peak_memory_bytes
from litbench.models.tokenised import TokenisedPairs, cached
from litbench.records import prompt_keys
from litbench.text import digest

# Pairs that training did not use, beside the checkpoints: one id and reason a line.
SET_ASIDE = "rejected.jsonl"
_CPU_BATCH_TOKENS, _GPU_BATCH_TOKENS = 4_096, 32_768
# What the logits of all answers in a forward pass may take, gradients and their logarithms too.
_LOGIT_BYTES = 4 * 2**30
# What trained weights depend on beside options and inputs.
_CODE = ("models", "templates", "raters.py", "reading.py", "records.py", "text.py")
# Fewer tokens hold no prompt and story.
_LEAST_LENGTH = 8
# Options that say how the work is done and not what comes out: a run goes on when they change.
RUNTIME_KEYS = (
    "batch_tokens", "activation_checkpointing", "torch_compile", "save_steps", "report_to",
)  # fmt: skip
# A loss that stays where it began for this many steps in a row has no gradient to follow.
_CONSTANT_STEPS = 20
_CONSTANT_BY = 1e-7


@dataclass(kw_only=True)
class TrainingOptions:
    """How a rater is trained; the defaults are the paper's (A.9) where it names them.

    Attributes:
        backbone: `package:NAME/folder`, a folder, or a name on the Hub.
        max_length: most tokens of a sequence.
        max_prompt_tokens: most tokens of the prompt; null for the form's own choice.
        overlong: what to do with pairs that do not fit: `truncate` the stories' ends, `drop` the
            pair, or stop with an `error`; counted in any case.
        epochs: passes over the pairs.
        learning_rate: peak, after warm-up.
        lr_scheduler_type: what follows it: `linear` or `cosine` to zero, or `constant_with_warmup`.
        warmup_ratio: share of steps spent warming up.
        weight_decay: of AdamW.
        max_grad_norm: longest gradient; longer ones are scaled down.
        optim: transformers' name of the optimiser; `adamw_8bit` needs bitsandbytes.
        batch_size: most pairs of an optimiser step, over all processes.
        batch_tokens: most tokens of a forward pass on one device, padding included; 4,096 on a CPU
            and 32,768 elsewhere when null. Passes with long answers hold fewer, so that the logits
            of the answers take 4 GiB at most.
        precision: bf16 (autocast), fp32, or auto: bf16 where a GPU has it.
        weights: what weights are kept in; with bfloat16 small updates are lost to rounding, and
            memory is a half.
        lora: train adapters in place of all weights; null for all weights.
        quantize: keep the frozen weights in 4 bits (QLoRA); needs `lora` and bitsandbytes.
        merge: fold adapters into the weights that are saved; false saves them apart.
        attention: transformers' name of an attention implementation; null for variable-length
            attention without padding where the model allows it.
        activation_checkpointing: trade time for memory; auto: where the estimate asks for it.
        torch_compile: compile the model.
        dropout: leave the backbone's dropout on.
        label_smoothing: share of every label given to the other answer.
        validation: share of the training prompts kept back; the checkpoint of the epoch that agrees
            best with their pairs is the one that is kept.
        seed: seeds new weights, the order of pairs and what is kept back.
        save_steps: steps between checkpoints to resume from; null for none.
        report_to: none, wandb or tensorboard.
        trust_remote_code: run code from the backbone's repository.
    """

    backbone: str
    max_length: int = 2_048
    max_prompt_tokens: int | None = None
    overlong: Literal["truncate", "drop", "error"] = "truncate"
    epochs: float = 1.0
    learning_rate: float = 1e-5
    lr_scheduler_type: Literal["linear", "cosine", "constant_with_warmup"] = "linear"
    warmup_ratio: float = 0.1
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    optim: str = "adamw_torch_fused"
    batch_size: int = 128
    batch_tokens: int | None = None
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    weights: Literal["float32", "bfloat16"] = "float32"
    lora: Lora | None = None
    quantize: bool = False
    merge: bool = True
    attention: str | None = None
    activation_checkpointing: bool | Literal["auto"] = "auto"
    torch_compile: bool = False
    dropout: bool = False
    label_smoothing: float = 0.0
    validation: float = 0.0
    seed: int = 0
    save_steps: int | None = None
    report_to: Literal["none", "wandb", "tensorboard"] = "none"
    trust_remote_code: bool = False

    def files(self) -> dict[str, str]:
        """The backbone."""
        return {"backbone": self.backbone}

    def reason_to_drop(self, pair_id: str, max_length: int) -> str | None:
        """Why a pair that does not fit is set aside; None where stories' ends are cut off.

        Args:
            pair_id: the pair.
            max_length: what it does not fit into.

        Raises:
            DataError: `overlong` is error.
        """
        if self.overlong == "error":
            raise DataError(
                f"pair {pair_id} does not fit into max_length {max_length}: raise it, or set "
                "overlong to truncate or drop"
            )
        return "longer than max_length" if self.overlong == "drop" else None

    def check(self) -> None:
        """Check what does not need the data.

        Raises:
            ConfigError: values out of range, or options that do not fit together.
        """
        ranges = {
            "epochs": self.epochs > 0,
            "learning_rate": self.learning_rate > 0,
            "max_length": self.max_length >= _LEAST_LENGTH,
            "max_prompt_tokens": self.max_prompt_tokens is None or self.max_prompt_tokens >= 1,
            "warmup_ratio": 0 <= self.warmup_ratio < 1,
            "weight_decay": self.weight_decay >= 0,
            "max_grad_norm": self.max_grad_norm >= 0,
            "batch_size": self.batch_size >= 1,
            "batch_tokens": self.batch_tokens is None or self.batch_tokens >= 1,
            "label_smoothing": 0 <= self.label_smoothing < 0.5,
            "validation": 0 <= self.validation < 1,
            "save_steps": self.save_steps is None or self.save_steps >= 1,
        }
        for key, holds in ranges.items():
            if not holds:
                raise ConfigError(f"{key} is {getattr(self, key)}: that is out of its range")
        if self.quantize and self.lora is None:
            raise ConfigError(
                "quantize needs lora: four-bit weights cannot be trained themselves; set lora: {}"
            )
        if self.quantize and self.weights != "float32":
            raise ConfigError("quantize keeps the weights in 4 bits: leave the key weights out")


@dataclass
class Plan:
    """Which pairs when; the same on every process and on any number of them.

    Attributes:
        steps: rows of each optimiser step, all epochs in a row.
        steps_per_epoch: of a whole epoch.
    """

    steps: list[np.ndarray]
    steps_per_epoch: int

    @classmethod
    def make(cls, n_pairs: int, options: TrainingOptions) -> "Plan":
        """Deal the pairs to the steps of all epochs; a part of an epoch is rounded up to a step."""
        per_epoch = len(steps_of_epoch(n_pairs, options.batch_size, options.seed, 0))
        total = math.ceil(round(options.epochs * per_epoch, 9))
        steps: list[np.ndarray] = []
        epoch = 0
        while len(steps) < total:
            steps += steps_of_epoch(n_pairs, options.batch_size, options.seed, epoch)
            epoch += 1
        return cls(steps[:total], per_epoch)


class Objective(Protocol):
    """What is learned from a pair: the part that Bradley-Terry and generative training differ in.

    Attributes:
        padded: whether forward passes are rows with padding.
    """

    padded: bool

    def batch(self, data: TokenisedPairs, rows: np.ndarray) -> dict[str, Any]:
        """Tensors of one forward pass."""

    def normaliser(self, data: TokenisedPairs, rows: np.ndarray) -> float:
        """What the summed loss of a step's pairs is divided by."""

    def loss(self, model: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
        """Summed weighted loss, and for each pair how right the model is: 1, 1/2 (tie) or 0."""


@dataclass
class Trained:
    """What a run leaves.

    Attributes:
        folder: weights and tokenizer as the trainer saved them.
        record: options, counts, curve, speed; plain values.
    """

    folder: Path
    record: dict[str, Any]


def content_digest(pairs: pa.Table, tokenizer: Any) -> str:
    """Digest of all that tokenised pairs are made of: the pairs' values and the tokenizer."""
    hasher = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode())
    for name in pairs.column_names:
        hasher.update(repr((name, str(pairs[name].type))).encode())
        for value in pairs[name].to_pylist():
            hasher.update(repr(value).encode() + b"\0")
    return hasher.hexdigest()


def load_to_train(pairs: pa.Table, options: TrainingOptions, head: Head) -> Any:
    """Check what can be checked, seed what draws new weights, and load the backbone.

    Args:
        pairs: the pairs to train on.
        options: see TrainingOptions.
        head: kind of model; a reward head may be new.

    Returns:
        (model, tokenizer).

    Raises:
        ConfigError: options that do not fit together.
        DataError: there are no pairs.
        ModelError: the backbone cannot be loaded.
        MissingExtraError: a library is not installed.
    """
    options.check()
    if pairs.num_rows == 0:
        raise DataError("there are no pairs to train on: check the filters and the split")
    try:
        from transformers import set_seed  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("transformers", "models") from error
    # One line for parallel tokenizers that fork, not one per process.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    set_seed(options.seed)
    return load_backbone(
        options.backbone,
        head,
        trained_head=False,
        trust_remote_code=options.trust_remote_code,
        dtype=options.weights,
        quantize=options.quantize,
        attention=options.attention,
    )


def tokenise_parts(
    pairs: pa.Table,
    tokenizer: Any,
    options: TrainingOptions,
    depends_on: Sequence[Any],
    tokenise: Callable[[pa.Table], TokenisedPairs],
) -> tuple[TokenisedPairs, TokenisedPairs]:
    """Keep prompts back for validation, and tokenise both parts into the cache.

    Args:
        pairs: table by the schema PAIRS.
        tokenizer: the backbone's.
        options: `validation` and `seed` say what is kept back.
        depends_on: plain values that token ids follow from, beside pairs and tokenizer.
        tokenise: makes one part.

    Returns:
        The pairs to train on, and those kept back.
    """

    def part(table: pa.Table) -> TokenisedPairs:
        return cached([*depends_on, content_digest(table, tokenizer)], lambda: tokenise(table))

    used, held_back = hold_back(pairs, options.validation, options.seed)
    return part(used), part(held_back)


def kept_adapter(options: TrainingOptions, folder: Path) -> Adapter | None:
    """The adapter of a run that keeps it apart from the weights; None for any other run."""
    if options.lora is None or options.merge:
        return None
    return Adapter(options.backbone, options.quantize, folder)


def load_trained(folder: Path, options: TrainingOptions, head: Head) -> Any:
    """Load what a run saved, as it will be loaded from now on; adapters are folded in.

    Returns:
        (model, tokenizer), on the GPU where there is one: judging comes next. Weights are in fp32,
        and in bfloat16 after training on four-bit weights: a GPU that they fit may have no room
        for others.
    """
    import torch  # noqa: PLC0415

    attention = options.attention
    if attention is not None and "flash" in attention and not options.quantize:
        # It refuses fp32.
        attention = None
    # Patched forward passes are cycles: the model that was trained would stay beside this one.
    gc.collect()
    torch.cuda.empty_cache()
    if options.lora is None:
        model, tokenizer = load_backbone(
            str(folder), head, trust_remote_code=options.trust_remote_code, attention=attention,
        )  # fmt: skip
    else:
        model, tokenizer = load_with_adapter(
            folder, options.backbone, head, quantized=options.quantize,
            trust_remote_code=options.trust_remote_code, attention=attention,
        )  # fmt: skip
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def is_main_process() -> bool:
    """Whether this process writes the files."""
    return int(os.environ.get("RANK", "0")) == 0


def training_fingerprint(artifact: Artifact, options: TrainingOptions, split: str | None) -> str:
    """Digest of all that trained weights depend on, and of nothing that is done with them later.

    Args:
        artifact: of the program; all that it reads counts, but pairs to evaluate on.
        options: of the training.
        split: of the pairs.
    """
    inputs = {
        name: item["sha256"]
        for name, item in artifact.as_manifest()["inputs"].items()
        if name != "evaluation_pairs"
    }
    keys = {
        key: value
        for key, value in asdict(options).items()
        if key not in RUNTIME_KEYS and key not in inputs
    }
    return fingerprint(keys, inputs, split, code_digest(__file__, *_CODE))


def checkpoint_folder(out: Path, training: str) -> Path:
    """Where a training keeps its checkpoints; says which others lie there and are left alone.

    Args:
        out: the program's folder.
        training: of `training_fingerprint`.
    """
    own = out / f"checkpoints-{training[:12]}"
    if is_main_process():
        for other in sorted(out.glob("checkpoints-*")):
            if other != own:
                size = sum(file.stat().st_size for file in other.rglob("*") if file.is_file())
                print(
                    f"{other} ({size / 2**30:.1f} GiB) is of another config, other pairs or other "
                    "code, and is not gone on from: remove it if you do not go back"
                )
    return own


def is_trained(out: Path, training: str) -> bool:
    """Whether a folder holds the whole model of this very training, and what it set aside.

    Args:
        out: the program's folder.
        training: of `training_fingerprint`.
    """
    try:
        manifest = read_manifest_of(out / "model")
    except (DataError, OSError):
        return False
    is_whole = (out / SET_ASIDE).exists() and is_output(manifest, out / SET_ASIDE)
    return is_whole and bool(manifest["counts"].get("training_fingerprint") == training)


def hold_back(pairs: pa.Table, share: float, seed: int) -> tuple[pa.Table, pa.Table]:
    """Split training pairs by prompt into those to train on and those to validate on.

    Args:
        pairs: table by the schema PAIRS.
        share: of the prompts to keep back; 0 for none.
        seed: of the choice.

    Returns:
        Training pairs, validation pairs.

    Raises:
        DataError: a share so small or large that one part has no prompt.
    """
    keys = prompt_keys(pairs)
    prompts = sorted(set(keys), key=lambda key: digest("validation", seed, key))
    if not share:
        return pairs, pairs.slice(0, 0)
    count = round(share * len(prompts))
    if not 0 < count < len(prompts):
        raise DataError(
            f"validation {share} of {len(prompts)} prompts leaves no prompt on one side: change "
            "it, or give more pairs"
        )
    held = set(prompts[:count])
    is_held = [key in held for key in keys]
    return pairs.filter(pa.array([not one for one in is_held])), pairs.filter(pa.array(is_held))


def _use_bf16(precision: str) -> bool:
    import torch  # noqa: PLC0415

    if precision == "auto":
        # Older GPUs emulate it, slower than fp32.
        return bool(
            torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
        )
    return precision == "bf16"


def _wants_checkpointing(
    options: TrainingOptions, shape: Shape, batch_tokens: int, answers: bool
) -> bool:
    """Whether activations must be computed twice, since they do not fit beside the weights."""
    import torch  # noqa: PLC0415

    if options.activation_checkpointing != "auto":
        return options.activation_checkpointing
    if not torch.cuda.is_available():
        return False
    bytes_of = 2 if options.weights == "bfloat16" else 4
    weights = shape.parameters * (0.5 if options.quantize else bytes_of)
    # Gradients and Adam's two moments; sharding over processes would need less.
    states = shape.trained * 3 * bytes_of
    memory = torch.cuda.get_device_properties(0).total_memory
    logits = shape.logit_bytes(min(batch_tokens, _most_places(shape))) if answers else 0
    return bool(weights + states + shape.activation_bytes(batch_tokens) + logits > 0.9 * memory)


def _most_places(shape: Shape) -> int:
    """Answer tokens of a forward pass whose logits stay below what they may take."""
    return max(1, _LOGIT_BYTES // max(1, shape.logit_bytes(1)))


def loads_of(data: TokenisedPairs, shape: Shape, batch_tokens: int) -> np.ndarray:
    """What every sequence counts for in a forward pass of `batch_tokens`.

    Its tokens; or more where its answer takes a larger part of what logits may take than that.

    Returns:
        int64, shape (pairs, sequences of a pair).
    """
    share = data.column("answer") / _most_places(shape)
    loads = np.maximum(data.lengths(), np.ceil(share * batch_tokens).astype(np.int64)[:, None])
    return np.asarray(loads)


def last_whole_checkpoint(folder: Path) -> str | None:
    """Find the newest checkpoint whose last file was written; a kill may leave half of one."""
    found = []
    for state in folder.glob("checkpoint-*/trainer_state.json"):
        try:
            found.append((int(json.loads(state.read_text())["global_step"]), state.parent))
        except (ValueError, KeyError):
            continue
    return str(max(found)[1]) if found else None


def _has_wandb_key() -> bool:
    """Whether wandb finds a key where it looks for one; else it would ask, or stop."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
    try:
        entry = netrc.netrc(os.environ.get("NETRC")).authenticators(host or "")
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError):
        return False
    return entry is not None


@contextlib.contextmanager
def _tracking(options: TrainingOptions, folder: Path) -> Iterator[list[Any]]:
    """Let a tracker write beside the checkpoints, which go; wandb offline where it has no key.

    Yields:
        Callbacks for the trainer.
    """
    if options.report_to == "none":
        yield []
        return
    if importlib.util.find_spec(options.report_to) is None:
        raise MissingExtraError(options.report_to, "tracking")
    if options.report_to == "tensorboard":
        from transformers.integrations import TensorBoardCallback  # noqa: PLC0415

        board = TensorBoardCallback()
        board.logging_dir = board.logging_dir or str(folder.parent / "tensorboard" / folder.name)
        yield [board]
        return
    import wandb  # noqa: PLC0415
    from transformers.integrations import WandbCallback  # noqa: PLC0415

    if is_main_process():
        mode: Any = os.environ.get("WANDB_MODE") or (None if _has_wandb_key() else "offline")
        folder.parent.mkdir(parents=True, exist_ok=True)
        wandb.init(
            project=os.environ.get("WANDB_PROJECT", "litbench"),
            name=folder.parent.name,
            dir=os.environ.get("WANDB_DIR", str(folder.parent)),
            mode=mode,
            settings=wandb.Settings(silent=True),
        )
    try:
        yield [WandbCallback()]
    finally:
        # Else the next fold's training would go on in this run.
        wandb.finish()


@dataclass
class _Meter:
    """Sums since the last line of the log; tensors stay on their device until then."""

    tokens: int = 0
    flops: float = 0.0
    computed: int = 0
    right: Any = 0.0
    pairs: int = 0
    paused: float = 0.0
    since: float = field(default_factory=time.perf_counter)


def _trainer_class() -> Any:
    """Make the trainer class; a function, so that importing this module does not import torch."""
    try:
        import accelerate  # noqa: F401, PLC0415
        import torch  # noqa: PLC0415
        from transformers import Trainer  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("accelerate and transformers", "train") from error

    class PairTrainer(Trainer):  # type: ignore[misc]
        """transformers' Trainer with an optimiser step for an item of data."""

        control: Any

        def __init__(
            self,
            *,
            objective: Objective,
            data: TokenisedPairs,
            validation: TokenisedPairs,
            plan: Plan,
            batch_tokens: int,
            shape: Shape,
            **arguments: Any,
        ) -> None:
            self.objective = objective
            self.data, self.held_back, self.plan = data, validation, plan
            self.batch_tokens, self.shape = batch_tokens, shape
            self._lengths = data.lengths()
            self._loads = loads_of(data, shape, batch_tokens)
            self.device_name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
            self.peak = peak_flops(self.device_name)
            self.meter = _Meter()
            super().__init__(**arguments)

        def _steps_of(self, data: TokenisedPairs, rows: np.ndarray) -> list[Step]:
            return cut_step(
                rows,
                loads_of(data, self.shape, self.batch_tokens)
                if data is self.held_back
                else self._loads,
                self.batch_tokens,
                self.accelerator.num_processes,
                padded=self.objective.padded,
            )

        def _passes(self, data: TokenisedPairs, rows: np.ndarray) -> list[dict[str, Any]]:
            """This process's forward passes of a step."""
            step = self._steps_of(data, rows)[self.accelerator.process_index]
            passes = []
            for chosen, is_filler in zip(step.passes, step.is_filler, strict=True):
                one = self.objective.batch(data, chosen)
                if is_filler:
                    one["weight"] = torch.zeros_like(one["weight"])
                passes.append(one)
            return passes

        def get_train_dataloader(self) -> Any:
            """Steps in their order; every process makes its own share of each."""
            # Setting up is no training.
            self.meter = _Meter()
            return torch.utils.data.DataLoader(
                self.train_dataset,
                batch_size=1,
                shuffle=False,
                collate_fn=self._collate,
                # Copies from other memory wait for the work queued before them.
                pin_memory=self.args.dataloader_pin_memory,
            )

        def _collate(self, items: Sequence[np.ndarray]) -> dict[str, Any]:
            rows = items[0]
            lengths = self._lengths[rows]
            return {
                "passes": self._passes(self.data, rows),
                "normaliser": self.objective.normaliser(self.data, rows),
                "tokens": int(lengths.sum()),
                "flops": self.shape.training_flops(lengths.ravel()),
                "pairs": len(rows),
            }

        def training_step(
            self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None
        ) -> Any:
            """All forward and backward passes of one optimiser step.

            Gradients are exchanged once, in the last pass; in every pass where they are sharded,
            since a process has no room for all of them. Processes average theirs, so each
            multiplies its share by their number.
            """
            del num_items_in_batch
            model.train()
            passes = inputs["passes"]
            scale = self.accelerator.num_processes / inputs["normaliser"]
            total = torch.zeros((), device=self.args.device)
            for place, batch in enumerate(passes):
                is_last = place == len(passes) - 1
                self.accelerator.gradient_state._set_sync_gradients(is_last)
                exchanges = is_last or self.is_fsdp_enabled
                wait = contextlib.nullcontext() if exchanges else self.accelerator.no_sync(model)
                on_device = to_device(batch, self.args.device)
                with wait:
                    with self.compute_loss_context_manager():
                        loss, right = self.objective.loss(model, on_device)
                    self.accelerator.backward(loss * scale)
                total += loss.detach() * scale
                self.meter.right = self.meter.right + (right * (on_device["weight"] > 0)).sum()
                self.meter.computed += batch["inputs"]["input_ids"].numel()
            self.meter.tokens += inputs["tokens"]
            self.meter.flops += inputs["flops"]
            self.meter.pairs += inputs["pairs"]
            return total

        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
            # The best checkpoint is taken note of once its folder is there. Of shards this writes
            # nothing, and an older checkpoint would be loaded at the end, or each process another.
            if _internal_call and output_dir is not None and self.is_fsdp_enabled:
                Path(output_dir).mkdir(parents=True, exist_ok=True)
            super().save_model(output_dir, _internal_call)

        def _save_rng_state(self, output_dir: str) -> None:
            super()._save_rng_state(output_dir)
            # The file written next tells that a checkpoint is whole: on every process.
            self.accelerator.wait_for_everyone()

        def floating_point_ops(self, inputs: dict[str, Any]) -> int:
            """Model FLOPs of a step, over all processes."""
            return int(inputs["flops"] / self.accelerator.num_processes)

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            """Add agreement and speed since the last line; the only place that waits for a GPU."""
            if "loss" in logs:
                meter, now = self.meter, time.perf_counter()
                seconds = now - meter.since - meter.paused
                sums = torch.tensor(
                    [float(meter.right), float(meter.computed)], dtype=torch.float64
                )
                right, computed = self.accelerator.reduce(
                    sums.to(torch.float32).to(self.args.device), "sum"
                ).tolist()
                logs["agreement"] = right / meter.pairs
                logs["tokens_per_second"] = meter.tokens / seconds
                # A run that goes on has these lines of its first part, and no other clock.
                logs["seconds"] = seconds
                logs["padding"] = 1 - meter.tokens / computed
                logs["peak_memory_gib"] = peak_memory_bytes() / 2**30
                if self.peak is not None:
                    available = seconds * self.accelerator.num_processes * self.peak
                    logs["mfu"] = meter.flops / available
                self.meter = _Meter()
            super().log(logs, start_time)

        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            """Agreement and loss on the pairs kept back, computed by all processes."""
            started = time.perf_counter()
            self.model.eval()
            rows = np.arange(len(self.held_back))
            sums = torch.zeros(2, device=self.args.device)
            with torch.no_grad():
                for batch in self._passes(self.held_back, rows):
                    on_device = to_device(batch, self.args.device)
                    with self.compute_loss_context_manager():
                        loss, right = self.objective.loss(self.model_wrapped, on_device)
                    sums += torch.stack([loss, (right * (on_device["weight"] > 0)).sum()])
            loss, right = self.accelerator.reduce(sums, "sum").tolist()
            found = {
                "eval_loss": loss / self.objective.normaliser(self.held_back, rows),
                "eval_agreement": right / len(rows),
            }
            self.log(dict(found))
            self.control = self.callback_handler.on_evaluate(
                self.args, self.state, self.control, found
            )
            self.meter.paused += time.perf_counter() - started
            return found

    return PairTrainer


def _watch_class() -> Any:
    from transformers import TrainerCallback  # noqa: PLC0415

    class Watch(TrainerCallback):  # type: ignore[misc]
        """Stops a run that cannot end well, and says why."""

        def __init__(self, first_loss: float | None, save_steps: int | None) -> None:
            self.first_loss, self.save_steps = first_loss, save_steps
            self.same_since: tuple[float, int] | None = None

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del args
            if self.save_steps and state.global_step % self.save_steps == 0:
                control.should_save = True
            if state.global_step == state.max_steps:
                # What went wrong in the last steps would be saved unseen.
                control.should_log = True
            if control.should_save:
                # What a checkpoint leaves unsaid, a run that goes on from it cannot say.
                control.should_log = True

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            del args, control
            loss = (logs or {}).get("loss")
            if loss is None:
                return
            norm = logs.get("grad_norm")
            if not math.isfinite(float(loss)) or (norm is not None and not math.isfinite(norm)):
                raise ModelError(
                    f"at step {state.global_step} the loss is {loss} and the gradient's norm "
                    f"{norm}: lower learning_rate, or set precision (and weights) to fp32; if it "
                    "happens in the first steps, the backbone's own weights may be broken"
                )
            same = self.same_since
            # A loss of zero stays where it is because all is learned.
            if same is None or abs(loss - same[0]) > _CONSTANT_BY or loss < _CONSTANT_BY:
                self.same_since = (loss, state.global_step)
            elif state.global_step - same[1] >= _CONSTANT_STEPS:
                chance = self.first_loss is not None and abs(loss - self.first_loss) < _CONSTANT_BY
                raise ModelError(
                    f"the loss is {loss:.6f} since step {same[1]}"
                    + (", that of equal answers for both stories" if chance else "")
                    + f", with a gradient of norm {norm}: nothing is learned. Look whether "
                    "learning_rate is 0 for so long, whether all weights are frozen, and whether "
                    "max_length leaves room for the stories (counts: pairs_cut)"
                )

    return Watch


def train(
    objective: Objective,
    model: Any,
    tokenizer: Any,
    options: TrainingOptions,
    data: TokenisedPairs,
    validation: TokenisedPairs,
    folder: Path,
    *,
    head: Head,
    chance_loss: float | None,
) -> Trained:
    """Train a model on tokenised pairs.

    Args:
        objective: what is learned.
        model: of `litbench.models.backbone.load_backbone`.
        tokenizer: its tokenizer; saved beside it.
        options: see TrainingOptions.
        data: pairs to train on.
        validation: pairs kept back; may be empty.
        folder: for checkpoints; training goes on from the last whole one there.
        head: what kind of model it is.
        chance_loss: loss of a model that finds both stories equal, for the diagnosis.

    Raises:
        ConfigError: an option that this machine or model does not have.
        DataError: no pairs are left to train on, or none of those kept back to validate on.
        ModelError: the loss is no number, or does not move.
        MissingExtraError: a library is not installed.
    """
    if not len(data):
        raise DataError(
            f"no pair is left to train on ({data.counts}): check the filters, the split and "
            "max_length"
        )
    if options.validation and not len(validation):
        raise DataError(
            f"no pair is left of those kept back for validation ({validation.counts}): raise "
            "validation or max_length, or set overlong to truncate"
        )
    trainer_class = _trainer_class()
    import torch  # noqa: PLC0415
    from transformers import TrainingArguments  # noqa: PLC0415
    from transformers.trainer_callback import PrinterCallback  # noqa: PLC0415

    if not options.dropout:
        no_dropout(model)
    if options.lora is not None:
        model = add_lora(model, options.lora, head)
    shape = Shape.of(model)
    has_accelerator = torch.accelerator.is_available()
    batch_tokens = options.batch_tokens or (
        _GPU_BATCH_TOKENS if has_accelerator else _CPU_BATCH_TOKENS
    )
    plan = Plan.make(len(data), options)
    bf16 = _use_bf16(options.precision)
    answers = bool(data.column("answer").any())
    checkpointing = _wants_checkpointing(options, shape, batch_tokens, answers)
    validates = len(validation) > 0
    arguments = TrainingArguments(
        output_dir=str(folder),
        # An item of data is a whole optimiser step, and all epochs are one list of them.
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,
        num_train_epochs=1,
        learning_rate=options.learning_rate,
        lr_scheduler_type=options.lr_scheduler_type,
        # The first step of a warm-up has rate 0: one step of it alone would train nothing.
        warmup_steps=min(math.ceil(options.warmup_ratio * len(plan.steps)), len(plan.steps) - 1),
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
        optim=options.optim,
        bf16=bf16,
        # Without it, transformers refuses bf16 on a machine without a GPU.
        use_cpu=not has_accelerator,
        activation_checkpointing=checkpointing,
        torch_compile=options.torch_compile,
        seed=options.seed,
        eval_strategy="steps" if validates else "no",
        eval_steps=plan.steps_per_epoch if validates else None,
        save_strategy="steps" if validates else "no",
        save_steps=plan.steps_per_epoch,
        save_total_limit=2,
        load_best_model_at_end=validates,
        metric_for_best_model="eval_agreement" if validates else None,
        greater_is_better=True if validates else None,
        logging_steps=max(1, min(10, len(plan.steps) // 20)),
        # The filter would show the last finite loss in place of NaN, and the run would go on.
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=not sys.stderr.isatty(),
        dataloader_pin_memory=has_accelerator,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        # They are constants, such as frequencies of rotary positions.
        ddp_broadcast_buffers=False,
    )
    # Or it is set later to the number of GPUs, and one process would spread packed rows over them.
    _ = arguments.n_gpu
    arguments._n_gpu = min(1, arguments.n_gpu)
    trainer = trainer_class(
        model=model,
        args=arguments,
        train_dataset=plan.steps,
        eval_dataset=validation if validates else None,
        processing_class=tokenizer,
        callbacks=[_watch_class()(chance_loss, options.save_steps)],
        objective=objective,
        data=data,
        validation=validation,
        plan=plan,
        batch_tokens=batch_tokens,
        shape=shape,
    )
    trainer.remove_callback(PrinterCallback)
    _prepare_sharding(trainer, options, bf16)
    try:
        with quiet(), _tracking(options, folder) as trackers:
            for tracker in trackers:
                trainer.add_callback(tracker)
            trainer.train(resume_from_checkpoint=_checkpoint_of(trainer, folder))
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"the device's memory is full with batch_tokens {batch_tokens}: halve it, set "
            "activation_checkpointing to true, or train adapters (lora)"
        ) from error
    weights = folder / "trained"
    if trainer.is_fsdp_enabled:
        # In shards, transformers would write nothing that can be loaded by itself.
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    with quiet():
        trainer.save_model(str(weights))
    if is_main_process():
        _write_set_aside(folder / SET_ASIDE, data, validation)
    record = _record(trainer, options, bf16, checkpointing)
    _part(trainer)
    return Trained(weights, record)


def _prepare_sharding(trainer: Any, options: TrainingOptions, bf16: bool) -> None:
    """Refuse what cannot be sharded, and keep gradients and rewards out of 16 bits under FSDP."""
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    if sharded and options.quantize:
        raise ConfigError(
            "quantize: weights in 4 bits cannot be sharded by FSDP or DeepSpeed; launch with "
            "configs/accelerate/multi_gpu.yaml, or leave quantize out"
        )
    if not trainer.is_fsdp_enabled:
        return
    if options.weights != "float32":
        raise ConfigError(
            f"weights: {options.weights} cannot be sharded by FSDP, which wants one type of "
            "weights, and a reward head is float32: leave weights out (precision: bf16 computes "
            "in 16 bits all the same), or launch with configs/accelerate/multi_gpu.yaml"
        )
    plugin = trainer.accelerator.state.fsdp_plugin
    if plugin.fsdp_version != 2:
        raise ConfigError(
            f"fsdp_version is {plugin.fsdp_version}: only 2 is supported; launch with "
            "configs/accelerate/fsdp2.yaml"
        )
    if bf16:
        import torch  # noqa: PLC0415
        from torch.distributed.fsdp import MixedPrecisionPolicy  # noqa: PLC0415

        # accelerate's own policy would sum gradients and return rewards in 16 bits.
        plugin.mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )


def _checkpoint_of(trainer: Any, folder: Path) -> str | None:
    """The checkpoint to go on from; the same on every process.

    Raises:
        ConfigError: processes see different ones, or it was written under another launch config.
    """
    from accelerate.utils import gather_object  # noqa: PLC0415

    found = last_whole_checkpoint(folder)
    seen = gather_object([found and Path(found).name])
    if len(set(seen)) > 1:
        raise ConfigError(
            f"processes see different checkpoints in {folder} ({seen}): out must be a folder that "
            "all machines share"
        )
    if found is None:
        return None
    marks = ["optimizer.pt"]
    if trainer.is_fsdp_enabled:
        marks = ["optimizer.bin", "optimizer_0"]
    elif trainer.is_deepspeed_enabled:
        marks = ["latest"]
    if not any((Path(found) / mark).exists() for mark in marks):
        # transformers would go on with a new optimiser and say nothing.
        raise ConfigError(
            f"{found} was written under another kind of launch config (FSDP, DeepSpeed or neither):"
            " go on under that one, or remove the folder to start again"
        )
    return found


def _part(trainer: Any) -> None:
    """End the work that processes do together; the first goes on alone, and waits for none."""
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config  # noqa: PLC0415

    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
    # Models loaded from now on would still be spread over all processes.
    unset_hf_deepspeed_config()


def _write_set_aside(path: Path, data: TokenisedPairs, validation: TokenisedPairs) -> None:
    kept_back = [
        {"pair_id": pair_id, "reason": "kept back for validation"}
        for pair_id in validation.table["pair_id"].to_pylist()
    ]
    rows = [*data.rejected_rows, *validation.rejected_rows, *kept_back]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_atomically(path, lambda part: part.write_text(lines, encoding="utf-8"))


def _record(
    trainer: Any, options: TrainingOptions, bf16: bool, checkpointing: bool
) -> dict[str, Any]:
    plan, state = trainer.plan, trainer.state
    lines = [entry for entry in state.log_history if "loss" in entry]
    shown = ("loss", "agreement", "grad_norm", "learning_rate", "tokens_per_second", "padding")
    return {
        "options": asdict(options),
        "counts": trainer.data.counts,
        "validation_counts": trainer.held_back.counts if options.validation else None,
        "processes": trainer.accelerator.num_processes,
        "launched_as": trainer.accelerator.distributed_type.value,
        "device": trainer.device_name,
        "steps": state.global_step,
        "steps_per_epoch": plan.steps_per_epoch,
        "batch_tokens": trainer.batch_tokens,
        "padded": trainer.objective.padded,
        "bf16": bf16,
        "activation_checkpointing": checkpointing,
        "parameters": trainer.shape.parameters,
        "parameters_trained": trainer.shape.trained,
        **_speed(lines),
        "peak_memory_gib": round(peak_memory_bytes() / 2**30, 2),
        "curve": [
            {"step": entry["step"], **{key: round(entry[key], 8) for key in shown if key in entry}}
            for entry in lines
        ],
        "validation": [
            {
                "step": entry["step"],
                "epoch": round(entry["step"] / plan.steps_per_epoch, 3),
                "loss": round(entry["eval_loss"], 6),
                "agreement": round(entry["eval_agreement"], 6),
            }
            for entry in state.log_history
            if "eval_agreement" in entry
        ],
        "kept_step": _step_of(state.best_model_checkpoint, state.global_step),
    }


def _step_of(checkpoint: str | None, last_step: int) -> int:
    """The step of the checkpoint whose weights were loaded at the end; the last without one."""
    return last_step if checkpoint is None else int(Path(checkpoint).name.rpartition("-")[2])


def _speed(lines: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """Figures of speed over the lines of the log, those of a run's earlier parts too.

    Returns:
        `seconds` of optimiser steps, validation left out; `tokens_per_second`, `padding` and `mfu`,
        None where nothing was measured or the device's peak is not known.
    """
    seconds = sum(line["seconds"] for line in lines)
    if not seconds:
        return dict.fromkeys(("seconds", "tokens_per_second", "padding", "mfu"))
    tokens = [line["tokens_per_second"] * line["seconds"] for line in lines]
    computed = sum(t / (1 - line["padding"]) for t, line in zip(tokens, lines, strict=True))
    has_peak = all("mfu" in line for line in lines)
    work = sum(line.get("mfu", 0.0) * line["seconds"] for line in lines)
    return {
        "seconds": round(seconds, 2),
        "tokens_per_second": round(sum(tokens) / seconds, 1),
        "padding": round(1 - sum(tokens) / computed, 4),
        "mfu": round(work / seconds, 4) if has_peak else None,
    }
