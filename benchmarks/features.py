"""Benchmark the feature model against TF-IDF with logistic regression on the same pairs.

    python benchmarks/features.py --stories 5000

Stories are random words; their lengths are log-normal with a median of 450 words. Labels are
planted: the story with more commas wins. The baseline is scikit-learn's TfidfVectorizer on words
and bigrams with LogisticRegression on differences of its vectors. Both are timed in this process,
one after the other, `--repeats` times. Prints medians; the last line is one JSON object.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from litbench.models.features import FeatureOptions, feature_matrix, fit_features
from litbench.records import PAIRS, empty_columns, pair_id
from litbench.text import count_words


def generate_stories(n: int, seed: int) -> list[str]:
    """Random words with sentences, paragraphs and commas; Zipf-like word frequencies."""
    source = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(source.choices(letters, k=source.randint(2, 9))) for _ in range(20_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    stories = []
    for _ in range(n):
        length = min(max(int(source.lognormvariate(np.log(450), 0.6)), 20), 4_000)
        comma = source.uniform(0.02, 0.12)
        ends = source.choices(
            [" ", ", ", ". ", ".\n\n"], weights=[1 - comma - 0.08, comma, 0.07, 0.01], k=length
        )
        chosen = source.choices(words, weights, k=length)
        stories.append("".join(word + end for word, end in zip(chosen, ends, strict=True)))
    return stories


def make_pairs(stories: list[str]) -> pa.Table:
    """Pair neighbouring stories; the one with more commas per word wins nine pairs in ten."""
    source = random.Random(1)
    words = count_words(pa.array(stories, pa.large_string())).to_pylist()
    rows = []
    for start in range(0, len(stories) - 1, 2):
        sides = sorted(
            (start, start + 1), key=lambda row: stories[row].count(",") / words[row], reverse=True
        )
        if source.random() < 0.1:
            sides.reverse()
        values: dict[str, Any] = {
            "pair_id": pair_id(f"s{start}", f"s{start + 1}"),
            "prompt_id": f"p{start // 16}",
            "prompt": f"[WP] Prompt {start // 16}",
            "label_source": "planted",
            "split": "all",
        }
        for side, row in zip(("chosen", "rejected"), sides, strict=True):
            values |= {side: stories[row], f"{side}_story_id": f"s{row}"}
            values[f"{side}_n_words"] = words[row]
        rows.append(values)
    types = {name: column.type for name, column in empty_columns(PAIRS, 0).items()}
    return pa.Table.from_pylist(rows, pa.schema(types))


def fit_tfidf(pairs: pa.Table) -> LogisticRegression:
    """Fit the baseline; the sides of every other pair are exchanged, to have two classes."""
    chosen, rejected = pairs["chosen"].to_pylist(), pairs["rejected"].to_pylist()
    vectors = TfidfVectorizer(ngram_range=(1, 2), min_df=2).fit_transform(chosen + rejected)
    difference = vectors[: len(chosen)] - vectors[len(chosen) :]
    sign = np.where(np.arange(len(chosen)) % 2, 1, -1)
    model = LogisticRegression(C=10, fit_intercept=False, max_iter=1_000)
    return model.fit(difference.multiply(sign[:, None]).tocsr(), sign > 0)


def timed(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Return the median seconds and the last result."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - started)
    return median(seconds), result


def main() -> None:
    """Time both models and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stories", type=int, default=5_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    stories = generate_stories(given.stories, seed=0)
    pairs = make_pairs(stories)
    prompts = ["[WP] Prompt"] * len(stories)
    matrix, _ = timed(lambda: feature_matrix(prompts, stories), given.repeats)
    # Includes the matrix of both sides, the choice of C by five-fold cross-validation, and the fit.
    features, model = timed(lambda: fit_features(pairs, FeatureOptions()), given.repeats)
    tfidf, _ = timed(lambda: fit_tfidf(pairs), given.repeats)
    strongest = next(iter(model.notes()["coefficients"].items()))
    if strongest[0] != "commas" or strongest[1] <= 0:
        raise SystemExit(f"labels depend on commas, but the strongest coefficient is {strongest}")
    print(f"{len(stories):,} stories; seconds, and TF-IDF over the feature model:")
    seconds = {"matrix": matrix, "features": features, "tfidf": tfidf}
    result = {name: round(value, 3) for name, value in seconds.items()}
    print(json.dumps(result | {"tfidf_over_features": round(tfidf / features, 2)}))


if __name__ == "__main__":
    main()
