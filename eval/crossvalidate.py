"""Evaluate trained raters out of fold, by repeated folds over prompts.

    python eval/crossvalidate.py --config configs/eval/sample_crossvalidate.yaml

For small sets, where one test split would leave too few prompts. Each repeat deals the prompts to
folds anew; a rater that can be trained is trained on the other folds' pairs and judges its own;
verdicts carry "repeat/fold". Raters with nothing to train judge once. Whatever a rater tunes, it
tunes inside its training folds. Prompts that share a `prompt_id` or a story stay in one fold.

Reads `pairs` (and the pairs before length symmetry, when given: raters train on `pairs` and judge
both; or `ratings`, see eval/benchmark.py). Writes `verdicts.parquet`, `leaderboard.json` (also
`.csv` and `.txt`), with `ratings` also `annotators.json`, and `manifest.json` into `out`. Each fold
is kept as soon as it is done: a killed run continues with the next one, and with the last
checkpoint of an unfinished training.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.curation.splits import assign_folds, connected_prompts
from litbench.errors import ConfigError
from litbench.evaluation import (
    Job,
    VerdictParts,
    evaluate,
    finish_evaluation,
    print_leaderboard,
)
from litbench.evaluation_pairs import input_files, read_pairs
from litbench.judges.recorded import recorded_specs
from litbench.metrics.leaderboard import check_reference
from litbench.raters import RaterSpec, check_options, files_of, parse_raters


@dataclass
class Config:
    """What to judge and by whom.

    Attributes:
        pairs: pairs file.
        out: folder to write.
        raters: named entries, see litbench.raters; one that can be trained takes its training
            options here, and `repeats` of its own.
        before_symmetry: pairs before the last filter; judged too and reported beside.
        ratings: `ratings.parquet` of data_prep/import_ratings.py, see eval/benchmark.py.
        folds: folds over prompts.
        repeats: times the folds are dealt anew.
        seed: seeds folds and training.
        reference: the rater all others are compared with; choose it before looking.
    """

    pairs: Path
    out: Path
    raters: dict[str, Any] = field(default_factory=dict)
    before_symmetry: Path | None = None
    ratings: Path | None = None
    folds: int = 5
    repeats: int = 1
    seed: int = 0
    reference: str = "longer"


def list_raters(config: Config) -> list[tuple[RaterSpec, int]]:
    """The raters, each with its repeats; 0 where there is nothing to train."""
    found: list[tuple[RaterSpec, int]] = []
    recorded = [] if config.ratings is None else recorded_specs(config.ratings)
    for spec in [*parse_raters(config.raters), *recorded]:
        repeats = spec.options.pop("repeats", config.repeats)
        if not isinstance(repeats, int) or repeats < 1:
            raise ConfigError(
                f"{spec.where}: repeats is {repeats!r}: give a whole number, at least 1"
            )
        check_options(spec)
        found.append((spec, repeats if spec.is_trained else 0))
    return found


def main(config: Config) -> None:
    """Run every job, then write the figures."""
    raters = list_raters(config)
    specs = [spec for spec, _ in raters]
    check_reference(config.reference, [spec.name for spec in specs])
    inputs = input_files(config.pairs, config.before_symmetry, config.ratings)
    artifact = Artifact(
        config.out, program=__file__, config=config, inputs=inputs, models=files_of(specs)
    )
    if artifact.is_current():
        print_leaderboard(config.out)
        return
    pairs = read_pairs(config.pairs, config.before_symmetry, None, config.ratings)
    data = [artifact.digests[name] for name in inputs]
    prompts = np.array(connected_prompts(pairs.all))
    prompt_of = dict(zip(pairs.all["pair_id"].to_pylist(), prompts, strict=True))
    to_train_on = np.array([prompt_of[name] for name in pairs.headline["pair_id"].to_pylist()])
    jobs: list[Job] = []
    for spec, repeats in raters:
        if not repeats:
            jobs.append(Job(spec, spec.name, lambda: pairs.all, data, work=pairs.all.num_rows))
        for repeat in range(repeats):
            seed = config.seed + repeat
            fold_of = assign_folds(prompts.tolist(), config.folds, seed)
            for fold in range(config.folds):
                held_out = [prompt for prompt, of in fold_of.items() if of == fold]
                judged = np.flatnonzero(np.isin(prompts, held_out))
                learned = np.flatnonzero(~np.isin(to_train_on, held_out))
                if len(judged) and len(learned) < 2:
                    raise ConfigError(
                        f"{config.pairs}: fold {fold} has {len(judged)} pairs to judge and "
                        f"{len(learned)} to train on: give fewer folds, or more pairs"
                    )
                job = Job(
                    spec,
                    f"{spec.name}-repeat{repeat}-fold{fold}",
                    partial(pairs.all.take, pa.array(judged)),
                    [data, judged.tolist(), learned.tolist()],
                    train=partial(pairs.headline.take, pa.array(learned)),
                    seed=seed,
                    fold=f"{repeat}/{fold}",
                    work=len(judged) + len(learned),
                )
                # A small set may leave a fold without a pair.
                jobs += [job] if len(judged) else []
    parts = VerdictParts(config.out / "parts")
    results = list(evaluate(jobs, parts))
    finish_evaluation(artifact, results, pairs, config.reference, config.ratings)
    parts.discard_others()


if __name__ == "__main__":
    run_program(main, Config, __doc__)
