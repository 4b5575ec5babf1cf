"""Do the programs find something in noise? `crossvalidate`, `ablation` and `audit` on random votes.

    python benchmarks/program_noise.py --sets 60

Each set has 24 prompts with 7 invented stories, whose votes do not depend on anything: every true
agreement is 1/2 and every true difference 0. Its pairs are made as in `litbench fit`, and go
through the functions that the programs call. Prints for each figure after every 20 sets how many
95 % intervals exclude the truth, with the exact binomial interval of the share; p values before
Holm's correction are under 0.05 in the same cases. One CPU core, about 5 s a set.
"""

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from invented_texts import STYLES, invented_prompts, invented_texts
from scipy import stats

from litbench.audit.findings import audit_pairs
from litbench.data.curation.pair_making import BEFORE_SYMMETRY, PAIRS_FILE, PairMaking, make_pairs
from litbench.data.records import STORIES
from litbench.data.sources.pairs import read_any_pairs
from litbench.data.tables import write_table
from litbench.data.text import count_words
from litbench.evaluation.crossvalidation import CrossValidation, crossvalidate
from litbench.metrics.intervals import Interval
from litbench.research.ablation import Ablation, run_ablation

PROMPTS, STORIES_PER_PROMPT = 24, 7
RULES: dict[str, Any] = {"min_score": None, "max_tokens": None, "min_words": None}
RATERS = {kind: {"kind": kind} for kind in ("features", "bag_of_words", "longer")}
VARIANTS = {"full": {}, "without_time": {"chosen_later": False, "symmetry_buckets": None}}


def noise_stories(random: np.random.Generator) -> pa.Table:
    """Stories of a set, with random votes and times."""
    n = PROMPTS * STORIES_PER_PROMPT
    lengths = np.maximum(np.exp(random.normal(np.log(80), 0.5, n)), 12).astype(int)
    texts = invented_texts(random.standard_normal((n, STYLES)), lengths, random)
    prompts = np.repeat(np.arange(PROMPTS), STORIES_PER_PROMPT)
    content = {
        "story_id": [f"s{row:04d}" for row in random.permutation(n)],
        "prompt_id": [f"p{prompt}" for prompt in prompts],
        "prompt": invented_prompts(PROMPTS, random).take(pa.array(prompts)),
        "text": texts,
        "n_words": count_words(texts),
        "source": ["noise"] * n,
        "score": random.integers(10, 1_000, n),
        "created_utc": random.permutation(n) + 1_500_000_000,
    }
    fields = STORIES.arrow()
    arrays = [pa.array(content.get(field.name, [None] * n), field.type) for field in fields]
    return pa.table(arrays, fields)


def intervals_of_programs(folder: Path) -> Iterator[tuple[str, float, Interval]]:
    """Name, truth and interval of every figure of the set in `folder`."""
    stories, pairs = folder / "stories.parquet", folder / "pairs" / PAIRS_FILE
    make_pairs(PairMaking(stories=stories, out=pairs.parent, **RULES), __file__)
    before = pairs.with_name(BEFORE_SYMMETRY)
    for row in crossvalidate(
        CrossValidation(pairs, folder / "folds", RATERS, before, folds=3), __file__
    ).rows:
        if row.comparison is not None:
            yield f"crossvalidate: {row.rater}", 0.5, row.agreement
            yield f"crossvalidate: {row.rater} - longer", 0, row.comparison.difference
    ablation = Ablation(
        out=folder / "ablation",
        stories=stories,
        variants=VARIANTS,
        raters={"features": RATERS["features"]},
        pairs_used=[1.0],
        natural=False,
        seeds=[0],
        splits={"train": 0.7, "test": 0.3},
        **RULES,
    )
    run_ablation(ablation, __file__)
    for effect in json.loads((ablation.out / "ablation.json").read_text("utf-8"))["effects"]:
        yield "ablation: features", 0.5, Interval.of(effect["agreement"])
        if effect["comparison"] is not None:
            difference = Interval.of(effect["comparison"]["difference"])
            yield "ablation: difference of variants", 0, difference
    # The rule that the chosen story is later decides that cue.
    for result in audit_pairs(read_any_pairs(pairs), by_rule=("later",)).results:
        name = result.cue.name if result.cue.is_learnt else "cues without a fit"
        yield f"audit: {name}", 0.5, result.agreement


def main() -> None:
    """Simulate, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sets", type=int, default=60)
    options = parser.parse_args()
    rows: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    for number in range(1, options.sets + 1):
        with tempfile.TemporaryDirectory() as scratch, redirect_stdout(StringIO()):
            folder = Path(scratch)
            write_table(noise_stories(np.random.default_rng(number)), folder / "stories.parquet")
            for name, truth, interval in intervals_of_programs(folder):
                if interval.is_bounded:
                    missed = not interval.low <= truth <= interval.high
                    rows[name].append((missed, interval.mean))
        if number % 20 and number != options.sets:
            continue
        print("figure,intervals,missed_percent,low,high,mean")
        for name, results in rows.items():
            missed, mean = np.mean(results, axis=0)
            ends = stats.binomtest(round(missed * len(results)), len(results)).proportion_ci()
            percents = ",".join(f"{100 * share:.1f}" for share in (missed, ends.low, ends.high))
            print(f"{name},{len(results)},{percents},{mean:.3f}", flush=True)


if __name__ == "__main__":
    main()
