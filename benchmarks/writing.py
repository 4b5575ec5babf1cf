"""Benchmark what the writing benchmarks compute, each against a usual way to compute it.

    python benchmarks/writing.py
    python benchmarks/writing.py rouge_l

- `rouge_l`: ROUGE-L of `litbench.metrics.overlap` against the table of rouge-chinese, on pairs of
  1,000 and 1,200 tokens, drawn by Zipf's law.
- `placing`: percentiles of 100,000 works with eight ratings each among a reference of 4,332,
  against a loop over scipy's `percentileofscore`.

Both ways run in this process, in turn, `--repeats` times, and must give the same values. Medians
are printed. The last line is one JSON object with the results of each name.
"""

import argparse
import json
import random
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from scipy.stats import percentileofscore

from litbench.metrics.overlap import rouge_l
from litbench.metrics.placement import ReferenceDistribution

with warnings.catch_warnings(action="ignore"):  # it has escape sequences that Python deprecates
    from rouge_chinese import Rouge

Result = dict[str, float]


def compare(own: Callable[[], Any], usual: Callable[[], Any], repeats: int) -> Result:
    """Time two ways to compute the same values; `ratio` is usual time divided by own time."""
    seconds: tuple[list[float], list[float]] = ([], [])
    values = []
    for _ in range(repeats):
        for way, times in zip((own, usual), seconds, strict=True):
            started = time.perf_counter()
            values.append(way())
            times.append(time.perf_counter() - started)
    difference = max(float(np.abs(np.subtract(found, values[0])).max()) for found in values)
    if difference > 1e-9:
        raise SystemExit(f"values differ by {difference:.2e}")
    first, second = map(median, seconds)
    return {"seconds": first, "usual_seconds": second, "ratio": second / first}


def measure_rouge_l(repeats: int) -> Result:
    """ROUGE-L of four pairs of token lists."""
    source = random.Random(0)
    vocabulary = [f"w{k}" for k in range(4_000)]
    weights = [1 / (k + 1) for k in range(len(vocabulary))]
    pairs = [
        [source.choices(vocabulary, weights, k=length) for length in (1_000, 1_200)]
        for _ in range(4)
    ]
    texts = [[" ".join(side) for side in pair] for pair in pairs]
    package = Rouge(metrics=["rouge-l"])
    return compare(
        lambda: [rouge_l(*pair) for pair in pairs],
        lambda: [package.get_scores(*pair)[0]["rouge-l"]["f"] for pair in texts],
        repeats,
    )


def measure_placing(repeats: int) -> Result:
    """Percentiles of works whose ratings share one factor."""
    source = np.random.default_rng(0)

    def draw(n: int) -> np.ndarray:
        return 3 + 0.3 * (source.normal(size=(n, 1)) + 0.5 * source.normal(size=(n, 8)))

    reference = ReferenceDistribution.fit(draw(4_332), [f"criterion {k}" for k in range(8)])
    ratings = draw(100_000)
    return compare(
        lambda: reference.percentile(ratings),
        lambda: [
            percentileofscore(reference.values, value, kind="weak")
            for value in reference.value(ratings)
        ],
        repeats,
    )


MEASUREMENTS: dict[str, Callable[[int], Result]] = {
    "rouge_l": measure_rouge_l,
    "placing": measure_placing,
}


def main() -> None:
    """Make the chosen measurements and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(MEASUREMENTS)}")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    unknown = set(given.names) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"no measurement {', '.join(unknown)}: give any of {', '.join(MEASUREMENTS)}")
    results = {}
    for name in given.names or MEASUREMENTS:
        results[name] = MEASUREMENTS[name](given.repeats)
        print(name, *(f"{key} {value:.4g}" for key, value in results[name].items()), sep="  ")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
