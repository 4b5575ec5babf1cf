"""Repeated cross-validation over prompts.

Each repeat assigns prompts to folds with another seed. A trainable rater judges each fold after
training on the other folds; its verdicts have `fold` "repeat/fold". Other raters judge once.
Prompts that share a `prompt_id` or a story are in the same fold.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.data.columns import PairColumns
from litbench.data.curation.splits import assign_folds
from litbench.data.records import connected_prompts
from litbench.data.sources.evaluation_pairs import EvaluationPairs, draw, input_files, read_pairs
from litbench.evaluation.folds import fold_jobs
from litbench.evaluation.loop import (
    Job,
    evaluate,
    finish_evaluation,
    finished_evaluation,
    is_finished,
)
from litbench.evaluation.results import Evaluation
from litbench.judges.recorded import recorded_specs
from litbench.metrics.leaderboard import check_reference
from litbench.raters.entries import RaterSpec, files_of, parse_raters
from litbench.runs.errors import ConfigError
from litbench.runs.outputs import Artifact, Cache


@dataclass
class CrossValidation(PairColumns):
    """Pairs, raters and folds of a repeated cross-validation over prompts.

    Attributes:
        pairs: pairs file.
        out: output folder.
        raters: named entries, see litbench.raters.entries; a trainable rater takes its training
            options here, and may override `repeats`; with `share`, it is trained on that share of
            the training prompts, drawn by a hash.
        before_symmetry: pairs file before length symmetry; also judged and reported; each
            training balances its pairs from these.
        ratings: `ratings.parquet` of data_prep/import_ratings.py, see eval/benchmark.py.
        folds: number of folds over prompts.
        judged_folds: number of folds that are judged; null for all. With 1, the others are the
            training set, and the raters are compared on one test set of held-out prompts.
        repeats: number of repeated assignments of prompts to folds.
        seed: seed of folds and training.
        reference: the rater that all others are compared with; choose it before seeing results.
    """

    pairs: Path
    out: Path
    raters: dict[str, Any] = field(default_factory=dict)
    before_symmetry: Path | None = None
    ratings: Path | None = None
    folds: int = 5
    judged_folds: int | None = None
    repeats: int = 1
    seed: int = 0
    reference: str = "longer"


def _list_raters(config: CrossValidation) -> list[tuple[RaterSpec, int, float]]:
    """Return the raters, with their repeats, 0 if not trained, and shares of training prompts."""
    raters: list[tuple[RaterSpec, int, float]] = []
    recorded = [] if config.ratings is None else recorded_specs(config.ratings)
    named = parse_raters(config.raters, may_train=True, extra=("repeats", "share"))
    for spec in [*named, *recorded]:
        repeats = spec.extra.get("repeats", config.repeats)
        if not isinstance(repeats, int) or repeats < 1:
            raise ConfigError(
                f"{spec.where}: repeats is {repeats!r}: give a whole number, at least 1"
            )
        share = spec.extra.get("share", 1)
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise ConfigError(f"{spec.where}: share is {share!r}: give a number above 0, up to 1")
        raters.append((spec, repeats if spec.is_trained else 0, float(share)))
    return raters


def crossvalidate(
    config: CrossValidation, program: str, pairs: EvaluationPairs | None = None
) -> Evaluation:
    """Train and judge every fold, then write the results into `config.out` and print them.

    Each fold is stored when complete: a killed run resumes with the next fold, or the last
    checkpoint of an unfinished training.

    Args:
        config: see `CrossValidation`.
        program: named in the manifest.
        pairs: the pairs of `config`, if they have been read.
    """
    raters = _list_raters(config)
    specs = [spec for spec, *_ in raters]
    check_reference(config.reference, [spec.name for spec in specs])
    inputs = input_files(config.pairs, config.before_symmetry, config.ratings)
    artifact = Artifact(
        config.out, program=program, config=config, inputs=inputs, models=files_of(specs)
    )
    if is_finished(artifact):
        return finished_evaluation(artifact)
    if pairs is None:
        read = read_pairs(
            config.pairs, config.before_symmetry, None, config.ratings, config.columns()
        )
        pairs, notes = draw(read, None)
        for note in notes:
            print(f"{config.pairs}: {note}")
    data = [artifact.digests[name] for name in inputs] + list(config.columns().items())
    prompts = np.array(connected_prompts(pairs.all))
    judged_pairs, folds = pairs, range(config.folds)
    if config.judged_folds is not None:
        if config.repeats > 1:
            raise ConfigError("judged_folds and repeats are both given: repeats judge all folds")
        folds = folds[: config.judged_folds]
        fold_of = assign_folds(prompts.tolist(), config.folds, config.seed)
        is_judged = [fold_of[prompt] in folds for prompt in prompts.tolist()]
        judged_pairs = pairs.select(pairs.all["pair_id"].filter(pa.array(is_judged)))
        data = [*data, f"{config.judged_folds} of {config.folds} folds"]
    jobs: list[Job] = []
    for spec, repeats, share in raters:
        if not repeats:
            work = judged_pairs.all.num_rows
            jobs.append(Job(spec, spec.name, lambda: judged_pairs.all, data, work=work))
        for repeat in range(repeats):
            jobs += fold_jobs(
                spec,
                spec.name,
                pairs,
                data,
                folds=config.folds,
                judged=folds,
                seed=config.seed + repeat,
                repeat=repeat,
                share=share,
            )
    parts = Cache(config.out / "parts")
    results = list(evaluate(jobs, parts))
    evaluation = finish_evaluation(
        artifact, results, judged_pairs, config.reference, config.ratings
    )
    parts.discard_unused()
    return evaluation
