"""Benchmark training against trl's padded RewardTrainer and against a bare forward and backward.

    python benchmarks/training.py
    python benchmarks/training.py --model llama-1b
    python benchmarks/training.py --model llama-8b --lora
    python benchmarks/training.py --model llama-8b --checkpointing --optim adamw_8bit

Token ids and weights are random; the lengths are real. `_CHOSEN` and `_REJECTED` are the deciles of
the tokens of prompt plus story in the 619 upvote pairs of StoryER's public sample (83 prompts, 196
to 781 words per story), counted with MiniLM's tokenizer. The lengths of the two stories of a pair
are drawn independently, because they are nearly uncorrelated there (rank correlation 0.08). The
ways:

trl      trl's RewardTrainer with its own collator and loss on random batches, padded to the longest
         sequence of each; its activation checkpointing, on by default, is off unless asked for.
packed   `litbench.models.reward_training.PackedRewardTrainer`.
bare     the limit: forward and backward passes over the batches of `packed`, collated beforehand;
         no trainer, clipping or optimiser.

A run of a trainer consists of complete optimiser steps: collating, forward and backward passes,
clipping, AdamW. The ways run in turn, `--repeats` times, each time on new pairs and from the same
weights; the losses of the trainers' first steps must agree. On a GPU, the real tokens per second,
the share of the peak (MFU, 6 N FLOPs per token) and the memory are printed too.
"""

import argparse
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from figures import Figure, quotients, report
from transformers import LlamaConfig, LlamaForSequenceClassification, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import RewardConfig, RewardTrainer

from litbench.data.records import PAIRS
from litbench.models.backbone import is_packed, load_backbone, quiet, rewards_of, to_device
from litbench.models.reward_training import PackedRewardTrainer, RewardTraining
from litbench.models.training import TokenisedPairs

_CHOSEN = (295, 442, 541, 617, 684, 726, 799, 861, 940, 1039, 1237)
_REJECTED = (289, 374, 438, 493, 562, 645, 706, 772, 874, 983, 1278)
_PAD, _EOS = 0, 1
# Peak dense bf16 FLOP/s from the vendors' data sheets.
_PEAKS = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12}
_SHAPE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
SIZES = {
    "tiny": (8_192, 256, 704, 2, 4, 2),
    "llama-1b": (128_256, 2_048, 8_192, 16, 32, 8),
    "llama-8b": (128_256, 4_096, 14_336, 32, 32, 8),
}
WAYS = ("trl", "packed", "bare")
# Linear layers of a decoder block.
_LORA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def draw_pairs(n: int, vocabulary: int, seed: int) -> TokenisedPairs:
    """Draw pairs of random tokens with the lengths of real prompts and stories."""
    source = np.random.default_rng(seed)
    deciles = np.linspace(0, 1, len(_CHOSEN))
    lengths = [
        np.interp(source.random(n), deciles, side).round().astype(int)
        for side in (_CHOSEN, _REJECTED)
    ]
    rows = []
    for row in range(n):
        ids = [
            [*source.integers(_EOS + 1, vocabulary, side[row] - 1).tolist(), _EOS]
            for side in lengths
        ]
        length = len(ids[0]) + len(ids[1])
        rows.append(
            {
                "pair_id": str(row),
                "chosen_ids": ids[0],
                "rejected_ids": ids[1],
                "length": length,
                "weight": 1.0,
                "margin": 0.0,
            }
        )
    return TokenisedPairs.make(rows, PAIRS.arrow().empty_table(), {}, 0)


def random_decoder(given: argparse.Namespace, device: str, **changes: Any) -> Any:
    """A reward model with random weights in the shape of `--model`, `--width` and `--layers`."""
    shape = dict(zip(_SHAPE, SIZES[given.model], strict=True))
    shape["hidden_size"] = given.width or shape["hidden_size"]
    shape["num_hidden_layers"] = given.layers or shape["num_hidden_layers"]
    config = LlamaConfig(
        **shape | changes, max_position_embeddings=131_072, bos_token_id=None, num_labels=1
    )
    torch.manual_seed(0)
    with torch.device(device):
        return LlamaForSequenceClassification(config)


def save_random_model(given: argparse.Namespace, folder: Path) -> int:
    """Write the model, with a tokenizer of special tokens only; return the vocabulary's size."""
    from tokenizers import Tokenizer, models  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = random_decoder(given, device, pad_token_id=_PAD, eos_token_id=_EOS)
    with quiet():
        model.to(getattr(torch, given.dtype)).save_pretrained(folder)
    words = {"<pad>": _PAD, "<eos>": _EOS}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),  # noqa: S106
        pad_token="<pad>",  # noqa: S106
        eos_token="<eos>",  # noqa: S106
    ).save_pretrained(folder)
    return int(model.config.vocab_size)


class Clock(TrainerCallback):  # type: ignore[misc]
    """Measures the time from before the first batch is collated to the end of the last step."""

    def __init__(self, warmup: int) -> None:
        self.warmup = warmup

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        self.since = time.perf_counter()

    def on_step_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Record the time; restart the clock after the warmup steps."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self.since
        if state.global_step == self.warmup:
            self.since = time.perf_counter()


def trainer_of(
    side: str, data: TokenisedPairs, given: argparse.Namespace, folder: Path, scratch: str
) -> Any:
    """Build a trainer on the random model."""
    has_gpu = torch.cuda.is_available()
    keys = {
        "output_dir": scratch,
        "per_device_train_batch_size": given.pairs_per_micro_batch,
        "gradient_accumulation_steps": max(1, given.pairs // given.pairs_per_micro_batch),
        "num_train_epochs": 1,
        "learning_rate": 1e-5,
        "warmup_steps": 0,
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": given.checkpointing or None,
        "optim": given.optim,
        "bf16": has_gpu and not given.fp32,
        "use_cpu": not has_gpu,
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "remove_unused_columns": side == "trl",
    }
    model, tokenizer = load_backbone(
        str(folder), dtype=given.dtype, attention="sdpa" if side == "trl" else None
    )
    if side == "trl":
        # The same pairs in the same order as PackedRewardTrainer.
        source = np.random.default_rng([42, 0])
        rows = data.rows.select(source.permutation(len(data.rows)))
        model = LlamaForSequenceClassification.from_pretrained(
            folder, dtype=model.dtype, attn_implementation="sdpa"
        )
        config = RewardConfig(**keys, max_length=None, train_sampling_strategy="sequential")
        trainer_class, extra = RewardTrainer, {}
    else:
        rows, trainer_class = data.rows, PackedRewardTrainer
        config = RewardTraining(**keys, model_name_or_path=str(folder))
        config.max_length = None  # type: ignore[assignment]  # no pair is too long
        extra = {"pooling": "last", "packed": is_packed(model)}
    if given.lora:
        from peft import LoraConfig, get_peft_model  # noqa: PLC0415

        lora = LoraConfig(r=16, target_modules=list(_LORA), modules_to_save=["score"])
        model = get_peft_model(model, lora)
    return trainer_class(
        model=model,
        args=config,
        train_dataset=rows,
        processing_class=tokenizer,
        **extra,
    )


def run_trainer(
    side: str, data: TokenisedPairs, given: argparse.Namespace, folder: Path
) -> tuple[float, float]:
    """Train; return the seconds of the timed steps and the loss of the first step."""
    clock = Clock(given.warmup)
    with tempfile.TemporaryDirectory() as scratch, quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = trainer_of(side, data, given, folder, scratch)
        trainer.add_callback(clock)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        # Embeddings are looked up, not multiplied.
        given.parameters = trainer.model.num_parameters(exclude_embeddings=True)
    return clock.seconds, trainer.state.log_history[0]["loss"]


def run_bare(data: TokenisedPairs, given: argparse.Namespace, folder: Path) -> float:
    """Forward and backward passes over the batches of PackedRewardTrainer; return seconds."""
    with tempfile.TemporaryDirectory() as scratch, quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = trainer_of("packed", data, given, folder, scratch)
        model, device = trainer.model.train(), trainer.args.device
        if given.checkpointing:
            model.gradient_checkpointing_enable()
        batches = [
            {name: value for name, value in batch.items() if name not in ("weight", "margin")}
            for batch in trainer.get_train_dataloader()
        ]
        skipped = len(batches) * given.warmup // (given.steps + given.warmup)
        for number, batch in enumerate(batches):
            if number == skipped:
                model.zero_grad()
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                started = time.perf_counter()
            with torch.autocast(device.type, torch.bfloat16, enabled=not given.fp32):
                rewards = rewards_of(model, to_device(batch, device), trainer.pooling)[:, 0]
                chosen, rejected = rewards.chunk(2)
                loss = -torch.nn.functional.logsigmoid(chosen - rejected).mean()
            loss.backward()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - started


def compare(given: argparse.Namespace, folder: Path, vocabulary: int) -> dict[str, list[float]]:
    """Tokens per second, without padding, of each way; each repeat uses new pairs.

    Raises:
        SystemExit: the losses of the trainers differ in a repeat.
    """
    speeds: dict[str, list[float]] = {name: [] for name in WAYS}
    for repeat in range(given.repeats + 1):
        # Repeat 0 is a warmup that loads libraries and allocates memory.
        pairs = given.pairs * (given.steps + given.warmup)
        data = draw_pairs(pairs if repeat else given.pairs_per_micro_batch, vocabulary, seed=repeat)
        timed = sum(data.rows["length"]) * given.steps / (given.steps + given.warmup)
        losses: dict[str, float] = {}
        for side in WAYS[:: -1 if repeat % 2 else 1]:
            if side == "bare":
                seconds = run_bare(data, given, folder)
            else:
                seconds, losses[side] = run_trainer(side, data, given, folder)
            if repeat:
                speeds[side].append(timed / seconds)
        # bf16 has larger rounding errors.
        if abs(losses["trl"] - losses["packed"]) > (1e-4 if given.fp32 else 1e-2):
            raise SystemExit(f"the trainers have different losses on the same pairs: {losses}")
    return speeds


def gpu_facts(given: argparse.Namespace, speeds: dict[str, list[float]]) -> dict[str, Any]:
    """Absolute speeds, which mean something on a GPU."""
    device, speed = torch.cuda.get_device_name(), median(speeds["packed"])
    peak = next((peak for name, peak in _PEAKS.items() if name in device), None)
    names = ("litbench", "torch", "transformers", "accelerate", "trl")
    facts = {
        "device": device,
        "tokens_per_second": {side: round(median(tps)) for side, tps in speeds.items()},
        "mfu": round(6 * given.parameters * speed / peak, 4) if peak and not given.fp32 else None,
        "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "versions": {name: version(name) for name in names},
    }
    for name, value in facts.items():
        print(f"{name}: {value}")
    return facts


def main() -> None:
    """Run all ways and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each way")
    parser.add_argument("--steps", type=int, help="timed steps per run; 1 if tiny, else 10")
    parser.add_argument("--warmup", type=int, help="untimed steps before; 0 if tiny, else 3")
    parser.add_argument("--pairs", type=int, help="pairs per optimiser step; 8 if tiny, else 128")
    parser.add_argument(
        "--pairs_per_micro_batch", type=int, default=8, help="per-device batch size"
    )
    parser.add_argument("--dtype", default="float32", help="dtype of the weights")
    parser.add_argument("--optim", default="adamw_torch_fused", help="transformers' name")
    parser.add_argument("--lora", action="store_true", help="train adapters of rank 16")
    parser.add_argument("--checkpointing", action="store_true", help="checkpoint activations")
    parser.add_argument("--fp32", action="store_true", help="compute in fp32 on a GPU too")
    parser.add_argument("--width", type=int, help="hidden size of the model")
    parser.add_argument("--layers", type=int, help="number of layers of the model")
    parser.add_argument("--threads", type=int, help="CPU threads; torch's default if omitted")
    arguments = parser.parse_args()
    tiny, has_gpu = arguments.model == "tiny", torch.cuda.is_available()
    if not tiny and not has_gpu and arguments.layers is None:
        raise SystemExit(
            f"--model {arguments.model} needs a GPU, but torch finds none: omit --model, or make "
            "the model small with --width and --layers"
        )
    for name, small, large in (("steps", 1, 10), ("warmup", 0, 3), ("pairs", 8, 128)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, small if tiny else large)
    arguments.fp32 = arguments.fp32 or not has_gpu
    arguments.pairs_per_micro_batch = min(arguments.pairs_per_micro_batch, arguments.pairs)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        vocabulary = save_random_model(arguments, Path(scratch))
        speeds = compare(arguments, Path(scratch), vocabulary)
    modes = [arguments.model, *(["lora"] if arguments.lora else [])]
    modes += ["checkpointing"] if arguments.checkpointing else []
    name = ", ".join(modes)
    facts = {"model": name} | (gpu_facts(arguments, speeds) if has_gpu else {})
    report(
        "training",
        [
            Figure(
                f"training, {name}: over trl padded", quotients(speeds["packed"], speeds["trl"]), 2
            ),
            Figure(
                f"training, {name}: share of the rate of a bare forward and backward",
                quotients(speeds["packed"], speeds["bare"]),
                0.85,
            ),
        ],
        **facts,
    )


if __name__ == "__main__":
    main()
