"""Turn stories into preference pairs by estimated quality: no pair is pruned, each has a weight.

    python data_prep/estimate_quality.py --config configs/data/sample_estimate.yaml

Reads `stories` (the product of make_stories.py). Fits the model of litbench/curation/estimation.py
to their votes: a level for each prompt, curves of posting delay and length, authors, luck. Writes
into `out`:

- `estimates.parquet`: `story_id`, `prompt_id`, `score`, `quality` (log votes beyond what prompt,
  delay and the rest explain) and `quality_error`; compare stories of one prompt only.
- `pairs.parquet`: all pairs of a prompt, the story of higher quality chosen, with the column
  `p_chosen`, the probability that it really is the better, and `weight` = 2 p_chosen - 1. Any
  trainer reads `weight`; with `weights: false`, train/bradley_terry.py reads `p_chosen` with
  `target: column`.
- `manifest.json`: the funnel, and what was fitted.

The same stories and seed give the same bytes, whatever the order of the rows.
"""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.config import run_program
from litbench.curation.engine import Engine
from litbench.curation.estimation import (
    EstimatedStories,
    EstimationOptions,
    VoteModel,
    check_rules,
    estimate_stories,
    make_estimated_keys,
    more_probable,
    with_confidence,
)
from litbench.curation.pair_making import (
    Made,
    PairsConfig,
    digest_of,
    read_stories,
)
from litbench.errors import ConfigError, DataError
from litbench.records import PAIRS
from litbench.tables import write_sorted_batches, write_table


@dataclass(kw_only=True)
class Config(PairsConfig):
    """The rules and keys of `litbench.curation.pair_making.PairsConfig`, and these.

    Those that prune are off unless given: no minimum of votes, no gap, no rule of time, no limit of
    length, no symmetry.

    Attributes:
        estimation: what is exposure and what is quality, see EstimationOptions.
        fit_split: fit the curves to this split alone, so that what a test pair is weighed with was
            learnt elsewhere; null for all stories.
        fit_stories: fit to at most so many stories, drawn by prompt; null for all.
        min_probability: leave out pairs whose `p_chosen` is not above this; from 0.5.
        weights: fill `weight`; false where `p_chosen` is to be the target, which says the same.
        margins: fill `margin` with the difference of the qualities.
    """

    min_score: int | None = None
    max_tokens: int | None = None
    min_words: int | None = None
    min_gap: float | None = None
    chosen_later: bool = False
    symmetry_buckets: int | None = None
    estimation: EstimationOptions = field(default_factory=EstimationOptions)
    fit_split: str | None = None
    fit_stories: int | None = 1_000_000
    min_probability: float = 0.5
    weights: bool = True
    margins: bool = False

    def check(self) -> None:
        """Check what the types cannot."""
        super().check()
        check_rules(self)
        if not 0.5 <= self.min_probability < 1:
            raise ConfigError(
                f"min_probability is {self.min_probability}: give a probability from 0.5 to below 1"
            )
        if self.fit_stories is not None and self.fit_stories < 2:
            raise ConfigError(f"fit_stories is {self.fit_stories}: give at least 2, or null")


def curve_points(model: VoteModel) -> dict[str, list[dict[str, float]]]:
    """Both curves as factors of the votes, against their value at the first point."""
    hours = np.array([0.0, 1, 3, 6, 12, 24, 48])
    words = np.array([50.0, 100, 200, 400, 800, 1_600])
    drawn = {}
    for name, curve, unit, at in (
        ("delay", model.delay, "hours", hours),
        ("length", model.length, "words", words),
    ):
        height = curve.at(np.log1p(at))
        factor = np.exp(height - height[0])
        drawn[name] = [
            {unit: float(x), "votes": round(float(y), 4)} for x, y in zip(at, factor, strict=True)
        ]
    return drawn


def write_pairs(
    engine: Engine, config: Config, made: Made, estimated: EstimatedStories, path: Path
) -> dict[str, Any]:
    """Write the pairs; returns their number and mean weight per split."""
    found: dict[str, list[float]] = {}

    def counted() -> Any:
        pairs = with_confidence(
            engine, made.with_texts(made.after), estimated, margins=config.margins
        )
        for batch in more_probable(pairs, config.min_probability):
            for group in pc.struct_field(pc.value_counts(batch["split"]), "values").to_pylist():
                of_split = pc.filter(batch["p_chosen"], pc.equal(batch["split"], group))
                sums = found.setdefault(group, [0, 0.0])
                sums[0] += len(of_split)
                sums[1] += float(np.sum(of_split.to_numpy()))
            if not config.weights:
                empty = pa.nulls(batch.num_rows, pa.float64())
                table = pa.Table.from_batches([batch])
                place = table.column_names.index("weight")
                table = table.set_column(place, "weight", empty)
                yield from table.to_batches()
            else:
                yield batch

    rows = counted()
    first = next(rows, None)
    if first is None:
        raise DataError(f"no pair is left:\n{made.funnel}\nloosen the step that removed the most")
    reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], rows))
    write_sorted_batches(reader, PAIRS, path)
    if not found:
        raise DataError(
            f"no pair is left with p_chosen above min_probability {config.min_probability}:\n"
            f"{made.funnel}\nlower it, or raise estimation.quality_share"
        )
    return {
        split: {"pairs": int(count), "mean_p_chosen": round(total / count, 4)}
        for split, (count, total) in sorted(found.items())
    }


def main(config: Config) -> None:
    """Fit, estimate, pair, write."""
    artifact = config.artifact(__file__)
    if artifact.is_current():
        return
    with config.open_engine() as engine:
        stories = read_stories(engine, config.stories)
        estimated = estimate_stories(
            engine,
            stories,
            config,
            config.estimation,
            fit_split=config.fit_split,
            fit_stories=config.fit_stories,
        )
        shown = estimated.table.drop_columns(["quality_shape", "quality_rate"])
        artifact.write("estimates.parquet", lambda path: write_table(shown, path))
        made = make_estimated_keys(engine, stories, estimated, config, where=str(config.stories))
        counted: dict[str, Any] = {}
        artifact.write(
            "pairs.parquet",
            lambda path: counted.update(write_pairs(engine, config, made, estimated, path)),
        )
        total, kept = engine.count(made.after), sum(each["pairs"] for each in counted.values())
        about = f"chosen is the better with a probability above {config.min_probability}"
        made.funnel.add("min_probability", about, "pairs", kept, total - kept)
        model = estimated.model
        artifact.counts = {
            "funnel": made.funnel.plain(),
            "splits": counted,
            "model": {
                "stories": model.stories,
                "prompts": model.prompts,
                "spread": round(model.spread, 4),
                "author_spread": round(model.author_spread, 4),
                "curves": curve_points(model),
            },
            "digest": digest_of(config.out / "pairs.parquet"),
        }
    artifact.finish()
    print(f"{config.out / 'pairs.parquet'}:\n{made.funnel}")
    print(f"spread of stories {model.spread:.3f}, of authors {model.author_spread:.3f}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
