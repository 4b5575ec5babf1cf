"""How fast training is: LitBench's trainer beside two ways of padding, on the same pairs.

    python benchmarks/training.py
    python benchmarks/training.py --model llama-1b
    python benchmarks/training.py --model llama-8b --profile profile.txt

Random token ids and random weights; only the lengths are real. `_CHOSEN` and `_REJECTED` are the
deciles of prompt and story together in the 619 upvote pairs of StoryER's public sample (83 prompts,
196 to 781 words a story), counted with MiniLM's tokenizer. Both sides are drawn apart, as they
hardly go together there (rank correlation 0.08). Every sequence may have 2,048 tokens. The sides:

max_length   the published way, written again: chosen and rejected padded to 2,048, one forward pass
             of both, the loss of the pair, backward.
trl          trl's RewardTrainer with its own collator and loss on random batches, padded to the
             longest of each; its activation checkpointing, on by default, is off.
grouped      `litbench.models.training.train` on rows padded to pairs of like length: what it does
             with encoders.
packed       the same trainer on sequences laid end to end: what it does with decoders.

A run is whole optimiser steps with everything in them: collating, passes, clipping, AdamW. The
sides run in turn, `--repeats` times, each time on other pairs, and from the same weights: the
losses of their first steps must agree. Ratios are taken within a repeat; their median and range are
printed. On a CPU the last line holds ratios alone.

With `--model llama-1b` or `llama-8b` (the published shapes; needs a GPU) only `packed` runs unless
`--sides` says more, and the figures are kept in benchmarks/baselines/DEVICE.json: real tokens per
second, share of peak (formula in `litbench.models.throughput`), memory, versions. The trainer's own
meter measures; it reads a loss from the device at every step, so no work is left out of a step.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from litbench.models.throughput import Shape, peak_flops
from litbench.models.tokenised import TokenisedPairs, make_tokenised
from transformers import LlamaConfig, LlamaForSequenceClassification, TrainerCallback

from litbench.errors import LitBenchError
from litbench.models.backbone import Lora, load_backbone, quiet
from litbench.models.reward_training import RewardObjective
from litbench.models.training import Plan, TrainingOptions, train

_BASELINES = Path(__file__).resolve().parent / "baselines"
_CHOSEN = (295, 442, 541, 617, 684, 726, 799, 861, 940, 1039, 1237)
_REJECTED = (289, 374, 438, 493, 562, 645, 706, 772, 874, 983, 1278)
_MAX_LENGTH = 2_048
_LEARNING_RATE = 1e-5
_LN2 = float(np.log(2))
_PAD, _EOS = 0, 1
# From so many on a line of the trainer's curve is more than one step.
_MANY_STEPS = 40


@dataclass(frozen=True)
class Size:
    """A model to train and how.

    Attributes:
        shape: of transformers' LlamaConfig.
        weights: what they are kept in.
        lora: adapters in place of all weights.
        pairs: of an optimiser step.
    """

    shape: dict[str, Any]
    weights: str = "float32"
    lora: Lora | None = None
    pairs: int = 128


_LLAMA = {
    "vocab_size": 128_256,
    "num_key_value_heads": 8,
    "num_attention_heads": 32,
    "max_position_embeddings": 131_072,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8_192,
    },
}
SIZES = {
    "tiny": Size(
        {
            "vocab_size": 8_192,
            "hidden_size": 256,
            "intermediate_size": 704,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": _MAX_LENGTH,
        },
        pairs=8,
    ),
    "llama-1b": Size(
        {**_LLAMA, "hidden_size": 2_048, "intermediate_size": 8_192, "num_hidden_layers": 16},
        weights="bfloat16",
    ),
    "llama-8b": Size(
        {**_LLAMA, "hidden_size": 4_096, "intermediate_size": 14_336, "num_hidden_layers": 32},
        weights="bfloat16",
        lora=Lora(),
    ),
}
# What AdamW keeps its two moments in.
_MOMENTS = {
    "adamw_torch_fused": "as the weights",
    "adamw_torch": "as the weights",
    "paged_adamw_32bit": "float32",
    "adamw_8bit": "8 bits",
    "paged_adamw_8bit": "8 bits",
}


@dataclass
class Run:
    """What a run of one side showed.

    Attributes:
        tokens: real ones.
        seconds: of the steps.
        computed: tokens with padding.
        loss: of the first step.
        record: of LitBench's trainer.
    """

    tokens: int
    seconds: float
    computed: float
    loss: float
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def speed(self) -> float:
        """Real tokens per second."""
        return self.tokens / self.seconds


def draw_pairs(n: int, vocabulary: int, seed: int) -> TokenisedPairs:
    """Pairs of random tokens with the lengths of real prompts and stories."""
    source = np.random.default_rng(seed)
    deciles = np.linspace(0, 1, len(_CHOSEN))
    lengths = [
        np.interp(source.random(n), deciles, side).round().astype(int)
        for side in (_CHOSEN, _REJECTED)
    ]
    fixed = {"weight": 1.0, "margin": 0.0, "target": 1.0, "answer": 0, "label_at": 0}
    rows = [
        {
            "pair_id": str(row),
            **{
                f"ids_{side}": [
                    *source.integers(_EOS + 1, vocabulary, lengths[side][row] - 1),
                    _EOS,
                ]
                for side in (0, 1)
            },
            **fixed,
        }
        for row in range(n)
    ]
    return make_tokenised(rows, [], 0)


def save_random_model(size: Size, folder: Path, device: str) -> None:
    """Write a decoder with random weights, and a tokenizer that is there for its special tokens."""
    from tokenizers import Tokenizer, models  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    ends = {"pad_token_id": _PAD, "eos_token_id": _EOS, "bos_token_id": None}
    config = LlamaConfig(**size.shape, **ends, num_labels=1)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, size.weights))
    try:
        with torch.device(device):
            model = LlamaForSequenceClassification(config)
    finally:
        torch.set_default_dtype(before)
    with quiet():
        model.save_pretrained(folder)
    words = {"<pad>": _PAD, "<eos>": _EOS}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),  # noqa: S106
        pad_token="<pad>",  # noqa: S106
        eos_token="<eos>",  # noqa: S106
    )
    tokenizer.save_pretrained(folder)


class Bench:
    """The sides of the comparison on one saved model."""

    def __init__(self, given: argparse.Namespace, size: Size, folder: Path) -> None:
        self.given, self.size, self.folder = given, size, folder
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.bf16 = self.device == "cuda"

    def max_length(self, data: TokenisedPairs) -> Run:
        """Every story padded to 2,048 tokens."""
        model = self._stock_model().to(self.device)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=_LEARNING_RATE, weight_decay=0.0, fused=True
        )
        per_pass, per_step = self.given.pairs_per_pass, self.given.pairs
        first = computed = 0.0
        order = self._order(data)
        started = time.perf_counter()
        for start in range(0, len(data), per_step):
            rows = order[start : start + per_step]
            total = torch.zeros((), device=self.device)
            for at in range(0, len(rows), per_pass):
                chosen = rows[at : at + per_pass]
                both = [data.sequences(row) for row in chosen]
                sequences = [pair[side] for side in (0, 1) for pair in both]
                ids = torch.full((len(sequences), _MAX_LENGTH), _PAD)
                mask = torch.zeros_like(ids)
                for row, sequence in enumerate(sequences):
                    ids[row, : len(sequence)] = torch.from_numpy(sequence.astype(np.int64))
                    mask[row, : len(sequence)] = 1
                computed += ids.numel()
                with torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
                    rewards = model(
                        input_ids=ids.to(self.device),
                        attention_mask=mask.to(self.device),
                        use_cache=False,
                    ).logits
                ahead, behind = rewards.float().squeeze(-1).chunk(2)
                loss = -torch.nn.functional.logsigmoid(ahead - behind).sum() / len(rows)
                loss.backward()
                total += loss.detach()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            first = first or float(total)
        if self.device == "cuda":
            torch.cuda.synchronize()
        return Run(int(data.lengths().sum()), time.perf_counter() - started, computed, first)

    def trl(self, data: TokenisedPairs) -> Run:
        """What trl does: its own trainer."""
        from datasets import Dataset  # noqa: PLC0415
        from transformers.trainer_callback import PrinterCallback  # noqa: PLC0415
        from trl import RewardConfig, RewardTrainer  # noqa: PLC0415
        from trl.trainer.reward_trainer import DataCollatorForPreference  # noqa: PLC0415

        computed = [0]

        class Counting(DataCollatorForPreference):
            """Counts the tokens that will be computed."""

            def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
                batch: dict[str, Any] = super().torch_call(examples)
                computed[0] += batch["input_ids"].numel()
                return batch

        class Clock(TrainerCallback):  # type: ignore[misc]
            """Times from before the first batch is collated to the end of the last step."""

            def on_epoch_begin(self, *_: Any, **__: Any) -> None:
                self.since = time.perf_counter()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                self.seconds = time.perf_counter() - self.since

        per_pass = min(self.given.pairs_per_pass, self.given.pairs, len(data))
        both = [data.sequences(row) for row in self._order(data)]
        rows = {
            name: [pair[side].tolist() for pair in both]
            for side, name in enumerate(("chosen_ids", "rejected_ids"))
        }
        clock = Clock()
        with tempfile.TemporaryDirectory() as scratch, quiet(), _calm():
            arguments = RewardConfig(
                output_dir=scratch,
                per_device_train_batch_size=per_pass,
                gradient_accumulation_steps=max(1, self.given.pairs // per_pass),
                num_train_epochs=1,
                max_length=None,
                learning_rate=_LEARNING_RATE,
                lr_scheduler_type="constant",
                gradient_checkpointing=False,
                train_sampling_strategy="sequential",
                bf16=self.bf16,
                use_cpu=self.device == "cpu",
                save_strategy="no",
                report_to="none",
                logging_steps=1,
                disable_tqdm=True,
            )
            trainer = RewardTrainer(
                model=self._stock_model(),
                args=arguments,
                train_dataset=Dataset.from_dict(rows),
                processing_class=load_tokenizer(self.folder),
                data_collator=Counting(pad_token_id=_PAD),
                callbacks=[clock],
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        first = trainer.state.log_history[0]["loss"]
        return Run(int(data.lengths().sum()), clock.seconds, computed[0], first)

    def grouped(self, data: TokenisedPairs) -> Run:
        """LitBench's trainer, rows padded to pairs of like length."""
        return self._own(data, "sdpa")

    def packed(self, data: TokenisedPairs) -> Run:
        """LitBench's trainer, sequences laid end to end."""
        return self._own(data, None)

    def _own(self, data: TokenisedPairs, attention: str | None) -> Run:
        options = TrainingOptions(
            backbone=str(self.folder),
            max_length=_MAX_LENGTH,
            learning_rate=_LEARNING_RATE,
            lr_scheduler_type="constant_with_warmup",
            warmup_ratio=0.0,
            batch_size=self.given.pairs,
            batch_tokens=self.given.batch_tokens,
            weights=self.given.weights,
            lora=self.given.lora,
            optim=self.given.optim,
            attention=attention,
            torch_compile=self.given.torch_compile,
        )
        model, tokenizer = load_backbone(
            str(self.folder), trained_head=False, dtype=options.weights, attention=attention
        )
        with tempfile.TemporaryDirectory() as scratch, quiet():
            record = train(
                RewardObjective("last", padded=attention is not None),
                model, tokenizer, options, data, draw_pairs(0, 2, 0), Path(scratch),
                head="reward", chance_loss=_LN2,
            ).record  # fmt: skip
        tokens = int(data.lengths().sum())
        computed = tokens / (1 - record["padding"])
        seconds = tokens / record["tokens_per_second"]
        return Run(tokens, seconds, computed, record["curve"][0]["loss"], record)

    def _order(self, data: TokenisedPairs) -> np.ndarray:
        """The order in which LitBench's trainer takes the pairs, so that first steps are alike."""
        options = TrainingOptions(backbone=str(self.folder), batch_size=self.given.pairs)
        return np.concatenate(Plan.make(len(data), options).steps)

    def _stock_model(self) -> Any:
        dtype = getattr(torch, self.given.weights)
        with quiet():
            return LlamaForSequenceClassification.from_pretrained(
                self.folder, dtype=dtype, attn_implementation="sdpa"
            )


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer beside the random model."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    return AutoTokenizer.from_pretrained(folder)


@contextlib.contextmanager
def _calm() -> Iterator[None]:
    """Keep bars and advice of datasets and trl off the screen."""
    import datasets  # noqa: PLC0415

    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    if shown:
        datasets.enable_progress_bar()


SIDES = ("max_length", "trl", "grouped", "packed")


def compare(bench: Bench, sides: list[str], given: argparse.Namespace) -> dict[str, list[Run]]:
    """Run the sides in turn, each repeat on other pairs.

    Raises:
        SystemExit: the losses of a repeat differ.
    """
    vocabulary = bench.size.shape["vocab_size"]
    runs: dict[str, list[Run]] = {side: [] for side in sides}
    for repeat in range(given.repeats + 1):
        # Repeat 0 warms up: it loads libraries and allocates memory.
        pairs = given.pairs * given.steps if repeat else min(2, given.pairs)
        data = draw_pairs(pairs, vocabulary, seed=repeat)
        for side in sides:
            run = getattr(bench, side)(data)
            if repeat:
                runs[side].append(run)
        if repeat and given.steps < _MANY_STEPS:
            losses = {side: runs[side][-1].loss for side in sides}
            # In 16 bits sums round differently.
            if max(losses.values()) - min(losses.values()) > (1e-2 if bench.bf16 else 1e-4):
                raise SystemExit(f"the sides disagree about the loss of the same pairs: {losses}")
    return runs


def versions() -> dict[str, str]:
    """Of what the figures depend on."""
    names = ("litbench", "torch", "transformers", "accelerate", "trl", "peft")
    found = {name: version(name) for name in names}
    return {"python": platform.python_version(), **found, "cuda": str(torch.version.cuda)}


def gpu_baseline(bench: Bench, given: argparse.Namespace) -> dict[str, Any]:
    """Train `packed` for some steps and read the trainer's own figures, warm-up left out."""
    data = draw_pairs(
        given.pairs * (given.warmup + given.steps), bench.size.shape["vocab_size"], seed=0
    )
    torch.cuda.reset_peak_memory_stats()
    record = bench.packed(data).record
    curve = record["curve"]
    speeds = [line["tokens_per_second"] for line in curve if line["step"] > given.warmup]
    speed = median(speeds)
    with torch.device("meta"):
        config = LlamaConfig(**bench.size.shape, num_labels=1, pad_token_id=_PAD)
        shape = Shape.of(LlamaForSequenceClassification(config))
    lengths = data.lengths().ravel()
    # Adapters leave the frozen weights without gradients: 4 N for each token, not 6 N.
    flops = shape.training_flops(lengths)
    if given.lora is not None:
        flops -= 2.0 * shape.matrix * float(lengths.sum())
    name = torch.cuda.get_device_name()
    peak = peak_flops(name)
    return {
        "tokens_per_second": round(speed),
        "lowest": round(min(speeds)),
        "highest": round(max(speeds)),
        "mfu": None if peak is None else round(speed * flops / lengths.sum() / peak, 4),
        "flops_per_token": round(flops / float(lengths.sum())),
        "padding": record["padding"],
        "peak_memory_gib": record["peak_memory_gib"],
        "parameters": record["parameters"],
        "parameters_trained": record["parameters_trained"],
        "weights": given.weights,
        "optimiser": given.optim,
        "moments": _MOMENTS.get(given.optim, "see the optimiser"),
        "batch_tokens": record["batch_tokens"],
        "pairs_per_step": given.pairs,
        "steps": given.steps,
        "activation_checkpointing": record["activation_checkpointing"],
        "torch_compile": given.torch_compile,
        "versions": versions(),
        "command": given.command,
    }


def keep_baseline(device: str, name: str, found: dict[str, Any]) -> Path:
    """Write a model's figures into the device's file, beside those of other models."""
    _BASELINES.mkdir(exist_ok=True)
    path = _BASELINES / f"{re.sub(r'[^a-z0-9]+', '-', device.lower()).strip('-')}.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"device": device}
    known[name] = found
    path.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
    return path


def profile(bench: Bench, given: argparse.Namespace) -> None:
    """Write where the time of `packed` goes, as torch's profiler sees it."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    key = "self_cpu_time_total"
    if bench.device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        key = "self_cuda_time_total"
    data = draw_pairs(2 * given.pairs, bench.size.shape["vocab_size"], seed=0)
    with torch.profiler.profile(activities=activities) as seen:
        bench.packed(data)
    table = seen.key_averages().table(sort_by=key, row_limit=40, max_name_column_width=60)
    given.profile.write_text(table, encoding="utf-8")


def report(runs: dict[str, list[Run]], bench: Bench, given: argparse.Namespace) -> dict[str, Any]:
    """Print the table; returns what the last line holds."""
    tokens = sum(run.tokens for run in next(iter(runs.values())))
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(
        f"{given.model}, {bench.device}, {torch.get_num_threads()} threads{load}; {given.repeats} "
        f"repeats of {given.pairs * given.steps} pairs, {tokens:,} real tokens a side"
    )
    print(f"{'side':<11} {'real tokens/s':>13} {'(lowest to highest)':>20} {'padding':>8}")
    padding = {}
    for side, done in runs.items():
        speeds = [run.speed for run in done]
        padding[side] = 1 - tokens / sum(run.computed for run in done)
        spread = f"({min(speeds):,.0f} to {max(speeds):,.0f})"
        print(f"{side:<11} {median(speeds):>13,.0f} {spread:>20} {padding[side]:>8.1%}")
    result: dict[str, Any] = {
        "model": given.model,
        "device": bench.device,
        "threads": torch.get_num_threads(),
        "pairs": given.pairs * given.steps,
        "repeats": given.repeats,
        "padding": {side: round(share, 4) for side, share in padding.items()},
    }
    if "packed" in runs:
        for side, done in runs.items():
            if side == "packed":
                continue
            ratios = [
                own.speed / other.speed for own, other in zip(runs["packed"], done, strict=True)
            ]
            print(
                f"packed is {median(ratios):.2f} times {side} "
                f"({min(ratios):.2f} to {max(ratios):.2f})"
            )
            result[f"over_{side}"] = round(median(ratios), 2)
            result[f"over_{side}_range"] = [round(min(ratios), 2), round(max(ratios), 2)]
    return result


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="which to run; all when tiny")
    parser.add_argument("--repeats", type=int, default=3, help="of each side")
    parser.add_argument("--steps", type=int, help="of a run; 1 when tiny, else 10")
    parser.add_argument("--warmup", type=int, default=3, help="steps before those, on a GPU")
    parser.add_argument("--pairs", type=int, help="of an optimiser step; 8 when tiny, else 128")
    parser.add_argument(
        "--pairs_per_pass", type=int, default=8, help="of max_length and trl; 8 is trl's default"
    )
    parser.add_argument("--batch_tokens", type=int, help="of LitBench; its default when left out")
    parser.add_argument("--width", type=int, help="of the model")
    parser.add_argument("--layers", type=int, help="of the model")
    parser.add_argument("--threads", type=int, help="of the CPU; torch's own choice when left out")
    parser.add_argument("--weights", choices=("float32", "bfloat16"))
    parser.add_argument(
        "--optim", default="adamw_torch_fused",
        help="transformers' name; paged_adamw_32bit keeps moments in fp32 beside bf16 weights, "
        "adamw_8bit in 8 bits",
    )  # fmt: skip
    parser.add_argument(
        "--full", action="store_true", help="train all weights where adapters are the default"
    )
    parser.add_argument("--torch_compile", action="store_true")
    parser.add_argument("--profile", type=Path, help="also write torch's profile of packed here")
    given = parser.parse_args()
    size = SIZES[given.model]
    tiny = given.model == "tiny"
    given.lora = None if given.full else size.lora
    given.weights = given.weights or size.weights
    given.pairs = given.pairs or size.pairs
    given.steps = given.steps or (1 if tiny else 10)
    given.command = f"python benchmarks/training.py {shlex.join(sys.argv[1:])}"
    return given


def main() -> None:
    """Run, check, print."""
    given = arguments()
    if given.threads:
        torch.set_num_threads(given.threads)
    size = SIZES[given.model]
    shape = dict(size.shape)
    shape["hidden_size"] = given.width or shape["hidden_size"]
    shape["num_hidden_layers"] = given.layers or shape["num_hidden_layers"]
    size = Size(shape, given.weights, given.lora, given.pairs)
    has_gpu = torch.cuda.is_available()
    if given.model != "tiny" and not has_gpu:
        raise SystemExit(f"--model {given.model} needs a GPU, and torch sees none: leave it out")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_random_model(size, folder, "cuda" if has_gpu else "cpu")
        bench = Bench(given, size, folder)
        result: dict[str, Any] = {"model": given.model, "device": bench.device}
        sides = given.sides or (list(SIDES) if given.model == "tiny" else [])
        if sides:
            result = report(compare(bench, sides, given), bench, given)
        if given.model != "tiny":
            device = torch.cuda.get_device_name()
            found = gpu_baseline(bench, given)
            mode = "lora" if given.lora is not None else "full"
            path = keep_baseline(device, f"{given.model} {mode} {given.optim}", found)
            for name, value in found.items():
                print(f"{name:<26} {value}")
            print(f"kept in {path}")
            result |= {"device": device, "mode": mode, **found}
        if given.profile is not None:
            profile(bench, given)
            print(f"profile in {given.profile}")
    print(json.dumps(result))


if __name__ == "__main__":
    try:
        main()
    except LitBenchError as error:
        raise SystemExit(f"error: {error}") from error
