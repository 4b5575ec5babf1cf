"""Evaluate trained raters out of fold, by repeated folds over prompts.

    python eval/crossvalidate.py --config configs/eval/sample_crossvalidate.yaml

For small sets, where one test split would leave too few prompts. Each repeat deals the prompts to
folds anew; a rater that can be trained is trained on the other folds' pairs and judges its own;
verdicts carry "repeat/fold". Raters with nothing to train judge once. Whatever a rater tunes, it
tunes inside its training folds. Prompts that share a `prompt_id` or a story stay in one fold. With
`author_groups`, authors are held out as well.

Reads `pairs` (and the pairs before length symmetry, when given: raters train on `pairs` and judge
both; or `ratings`, see eval/benchmark.py). Writes `verdicts.parquet`, `leaderboard.json` (also
`.csv` and `.txt`), with `ratings` also `annotators.json`, and `manifest.json` into `out`. Each fold
is kept as soon as it is done: a killed run continues with the next one, and with the last
checkpoint of an unfinished training.
"""

import itertools
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.curation.splits import assign_folds, connected_prompts
from litbench.errors import ConfigError, DataError
from litbench.evaluation import (
    EvaluationPairs,
    Job,
    VerdictParts,
    evaluate,
    finish_evaluation,
    input_files,
    print_leaderboard,
    read_pairs,
)
from litbench.judges.recorded import recorded_specs
from litbench.metrics.leaderboard import check_reference
from litbench.raters import RaterSpec, checked_trainer, files_of, parse_raters


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
        author_groups: deal authors to so many groups as well, at least 3, and train for the pairs
            of one group or two on pairs whose authors are both in others; every pair is judged
            once a repeat, by fewer training pairs. Null: only prompts are held out.
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
    author_groups: int | None = None
    seed: int = 0
    reference: str = "longer"


@dataclass(frozen=True)
class Fold:
    """What is held out at once: rows of all pairs to judge, rows of the headline to train on."""

    name: str
    judged: np.ndarray
    learned: np.ndarray


def list_raters(config: Config) -> list[tuple[RaterSpec, int]]:
    """The raters, each with its repeats; 0 where there is nothing to train."""
    found: list[tuple[RaterSpec, int]] = []
    specs = [] if config.ratings is None else recorded_specs(config.ratings)
    for spec in [*parse_raters(config.raters), *specs]:
        repeats = spec.options.pop("repeats", config.repeats)
        if not isinstance(repeats, int) or repeats < 1:
            raise ConfigError(
                f"{spec.where}: repeats is {repeats!r}: give a whole number, at least 1"
            )
        found.append((spec, 0 if checked_trainer(spec) is None else repeats))
    return found


def groups_of_authors(pairs: pa.Table, groups: int, seed: int, path: Path) -> np.ndarray:
    """The group of each pair's two authors, the smaller number first; int, shape (n, 2)."""
    sides = [pairs[f"{side}_author"].to_pylist() for side in ("chosen", "rejected")]
    unknown = sum(None in both for both in zip(*sides, strict=True))
    if unknown:
        raise DataError(
            f"{path}: {unknown:,} of {pairs.num_rows:,} pairs lack an author, and author_groups "
            "needs both: map `author` where the stories are made, or leave author_groups out"
        )
    authors = set(itertools.chain(*sides))
    if len(authors) < groups:
        raise ConfigError(
            f"author_groups is {groups}, and {path} has {len(authors)} authors: give fewer groups"
        )
    group_of = assign_folds(authors, groups, seed)
    return np.sort([[group_of[author] for author in side] for side in sides], axis=0).T


def list_folds(config: Config, pairs: EvaluationPairs, repeat: int) -> list[Fold]:
    """The folds of a repeat; with groups of authors, a part of a fold for every two of them.

    Raises:
        ConfigError: a fold has pairs to judge and too few to train on.
    """
    seed = config.seed + repeat
    prompts = connected_prompts(pairs.all)
    fold_of = assign_folds(prompts, config.folds, seed)
    folds = np.array([fold_of[prompt] for prompt in prompts])
    groups: list[tuple[int, ...]] = [()]
    authors = np.empty((len(folds), 0))
    if config.author_groups is not None:
        authors = groups_of_authors(pairs.all, config.author_groups, seed, config.pairs)
        groups = list(itertools.combinations_with_replacement(range(config.author_groups), 2))
    row = {name: place for place, name in enumerate(pairs.all["pair_id"].to_pylist())}
    headline = np.array([row[name] for name in pairs.headline["pair_id"].to_pylist()])
    found = []
    for fold, held_out in itertools.product(range(config.folds), groups):
        is_judged = (folds == fold) & (authors == held_out).all(1)
        is_learned = (folds != fold) & ~np.isin(authors, held_out).any(1)
        name = "-".join(map(str, (fold, *held_out)))
        judged, learned = np.flatnonzero(is_judged), np.flatnonzero(is_learned[headline])
        if len(judged) and len(learned) < 2:
            raise ConfigError(
                f"{config.pairs}: fold {name} of repeat {repeat} has {len(judged)} pairs to judge "
                f"and {len(learned)} to train on: give fewer folds, other author_groups, or more "
                "pairs"
            )
        # A fold may hold no pair of some two groups of authors.
        if len(judged):
            found.append(Fold(name, judged, learned))
    return found


def list_jobs(
    config: Config, raters: list[tuple[RaterSpec, int]], pairs: EvaluationPairs, data: list[str]
) -> list[Job]:
    """Every rater's folds; a rater with nothing to train has one job."""
    most = max(repeats for _, repeats in raters)
    of_repeat = [list_folds(config, pairs, repeat) for repeat in range(most)]
    jobs: list[Job] = []
    for spec, repeats in raters:
        if not repeats:
            jobs.append(Job(spec, spec.name, lambda: pairs.all, data, work=pairs.all.num_rows))
        jobs += [
            Job(
                spec,
                f"{spec.name}-repeat{repeat}-fold{fold.name}",
                partial(pairs.all.take, pa.array(fold.judged)),
                [data, fold.judged.tolist(), fold.learned.tolist()],
                train=partial(pairs.headline.take, pa.array(fold.learned)),
                seed=config.seed + repeat,
                fold=f"{repeat}/{fold.name}",
                work=len(fold.judged) + len(fold.learned),
            )
            for repeat in range(repeats)
            for fold in of_repeat[repeat]
        ]
    return jobs


def main(config: Config) -> None:
    """Run every job, then write the figures."""
    if config.author_groups is not None and config.author_groups < 3:
        raise ConfigError(
            f"author_groups is {config.author_groups}: give at least 3, since the pairs of two "
            "groups are judged by what the others teach"
        )
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
    jobs = list_jobs(config, raters, pairs, data)
    parts = VerdictParts(config.out / "parts")
    results = list(evaluate(jobs, parts))
    finish_evaluation(artifact, results, pairs, config.reference, config.ratings)
    parts.discard_others()


if __name__ == "__main__":
    run_program(main, Config, __doc__)
