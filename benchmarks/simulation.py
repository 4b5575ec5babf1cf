"""Measure the simulated readers against a plain loop over them.

    python benchmarks/simulation.py

The loop draws every story and asks every reader of it in Python, and must come to the same mean
of readers and votes: checked before any time is told. Both run the same world in turn, in this
process, and are compared by stories per second. Then `n_stories` at once, with places that change
as readers come (`ranking`), and texts. Last, how far texts tell quality: a linear model of surface
features learns from half of the prompts which of two random stories is better, and is asked about
the other half. Reads and writes no file; prints a table and, as last line, one JSON object. One CPU
core, about a minute.
"""

import json
import math
import random
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from litbench.config import run_program
from litbench.curation.simulation import ReaderSimulation, World, simulate_world, stories_table
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.models.features import feature_matrix
from litbench.text import count_words

# Luck is off: a reader of the loop meets a story once or not, and a chance is at most 1.
_READERS = ReaderSimulation(luck=0.0, quality_weight=0.7, length_weight=0.35)


@dataclass
class Config:
    """How much to simulate.

    Attributes:
        n_stories: for the vectorised simulation alone.
        n_compared: stories of the comparison with the loop.
        n_texts: stories with texts.
        n_told: stories whose features are to tell quality.
        repeats: of the comparison; medians are told.
    """

    n_stories: int = 200_000
    n_compared: int = 8_000
    n_texts: int = 20_000
    n_told: int = 16_000
    repeats: int = 3


def by_loop(world: World) -> tuple[list[int], list[int]]:
    """Readers and scores of the world's stories, one reader after the other."""
    options, draw = world.readers, random.Random(world.seed)
    readers, scores = [], []
    for _ in range(world.prompts):
        audience = options.audience * math.exp(draw.gauss(0, options.audience_spread))
        stories = []
        for _ in range(round(world.stories_per_prompt)):
            taste = options.quality_weight * draw.gauss(0, 1)
            taste += options.length_weight * draw.gauss(0, 1) + draw.gauss(0, options.noise)
            p_up = 1 / (1 + math.exp(-(options.base + taste)))
            stories.append([draw.expovariate(1 / options.delay_hours), p_up, 0, 0])
        for _ in range(round(audience)):
            came = draw.expovariate(1 / options.decay_hours)
            for story in stories:
                if came < story[0]:
                    continue
                story[2] += 1
                story[3] += draw.random() < story[1]
                story[3] -= draw.random() < options.down
        readers += [int(story[2]) for story in stories]
        scores += [int(story[3]) for story in stories]
    return readers, scores


def check_means(loop: list[int], ours: np.ndarray, per_prompt: int, about: str) -> None:
    """Both means must lie within five of their standard errors, prompts being what is drawn."""
    prompts = [np.array(values).reshape(-1, per_prompt).mean(axis=1) for values in (loop, ours)]
    apart = abs(prompts[0].mean() - prompts[1].mean())
    error = math.hypot(*(means.std(ddof=1) / math.sqrt(len(means)) for means in prompts))
    if apart > 5 * error:
        raise AssertionError(f"{about}: {prompts[0].mean():.2f} by loop, {prompts[1].mean():.2f}")


def told_by_features(world: World) -> Interval:
    """Agreement with true quality on random pairs, two neighbours of a prompt each."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    simulated = simulate_world(world)
    table = stories_table(simulated)
    features = feature_matrix(table["prompt"].to_pylist(), table["text"].to_pylist())
    features = (features - features.mean(0)) / np.maximum(features.std(0), 1e-9)
    difference = features[0::2] - features[1::2]
    better = simulated.quality[0::2] > simulated.quality[1::2]
    half = len(better) // 2
    model = LogisticRegression(C=0.1, fit_intercept=False, max_iter=1_000)
    model.fit(difference[:half], better[:half])
    right = (model.predict(difference[half:]) == better[half:]).astype(float)
    return jackknife_interval(right, simulated.prompt[0::2][half:])


def main(given: Config) -> dict[str, Any]:
    """Measure, check, print; returns what the last line holds."""
    per_prompt = 8
    world = World(
        prompts=given.n_compared // per_prompt, stories_per_prompt=per_prompt, readers=_READERS
    )
    seconds: dict[str, list[float]] = {"loop": [], "ours": []}
    simulate_world(world)
    for _ in range(given.repeats):
        start = time.perf_counter()
        readers, scores = by_loop(world)
        seconds["loop"].append(time.perf_counter() - start)
        start = time.perf_counter()
        simulated = simulate_world(world)
        seconds["ours"].append(time.perf_counter() - start)
    check_means(readers, simulated.votes.readers, per_prompt, "readers")
    check_means(scores, simulated.votes.score, per_prompt, "score")
    compared = len(simulated.prompt)
    rates = {name: compared / statistics.median(took) for name, took in seconds.items()}
    large = replace(world, prompts=given.n_stories // per_prompt)
    for name, readers_of in (
        ("plain", _READERS),
        ("ranked", replace(_READERS, ranking=0.5, growth_hours=1.0, fade_hours=20.0)),
    ):
        start = time.perf_counter()
        stories = simulate_world(replace(large, readers=readers_of))
        rates[name] = len(stories.prompt) / (time.perf_counter() - start)
    stories = simulate_world(replace(world, prompts=given.n_texts // per_prompt))
    start = time.perf_counter()
    table = stories_table(stories)
    rates["texts"] = table.num_rows / (time.perf_counter() - start)
    if not (count_words(table["text"]).to_numpy() == stories.n_words).all():
        raise AssertionError("a text has other words than it is to have")
    about = {
        "loop": f"a loop over readers, {compared:,} stories",
        "ours": f"the same {compared:,} stories at once",
        "plain": f"{given.n_stories:,} stories",
        "ranked": f"{given.n_stories:,} stories, places that change in 24 steps",
        "texts": f"{given.n_texts:,} texts of {stories.n_words.mean():.0f} words",
    }
    for name, rate in rates.items():
        print(f"{about[name]:<60} {rate:>12,.0f} stories a second")
    # As long as in configs/data/simulated_200k.yaml.
    told = told_by_features(
        replace(world, prompts=given.n_told // per_prompt, median_words=120.0, words_spread=0.6)
    )
    print(f"features tell the better of two random stories: {told} of {told.n:,} pairs")
    summary = {
        "n_compared": compared,
        "ours_over_loop": round(rates["ours"] / rates["loop"], 1),
        "ranked_over_plain": round(rates["ranked"] / rates["plain"], 3),
        "features_agreement": round(told.mean, 3),
        **{f"{name}_stories_per_second": round(rate) for name, rate in rates.items()},
    }
    print(json.dumps(summary))
    return summary


if __name__ == "__main__":
    run_program(lambda config: main(config) and None, Config, __doc__)
