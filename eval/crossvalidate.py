"""Evaluate trained raters out of fold, by repeated folds over prompts.

    python eval/crossvalidate.py --config configs/eval/sample_crossvalidate.yaml

For small sets, where one test split would leave too few prompts. Each repeat deals the prompts
to folds anew; a rater that can be trained is trained on the other folds' pairs and judges its
own; verdicts carry "repeat/fold". Raters with nothing to train judge once. Whatever a rater
tunes, it tunes inside its training folds. With `author_groups`, authors are held out as well.

Reads `pairs` (and the pairs before length symmetry, when given: raters train on `pairs` and
judge both). Writes `verdicts.parquet`, `leaderboard.json` (also `.csv` and `.txt`) and
`manifest.json` into `out`. Each fold is kept as soon as it is done, so a killed run goes on with
the next, and with the one under way where its trainer leaves checkpoints.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from litbench.artifact import Artifact, code_digest
from litbench.config import run_program
from litbench.curation.splits import assign_folds
from litbench.errors import ConfigError, DataError
from litbench.evaluation import (
    JUDGING_CODE,
    EvaluationPairs,
    VerdictParts,
    check_training_prompts,
    finish_evaluation,
    named_models,
    print_leaderboard,
    read_pairs,
    ready_rater,
    trained,
)
from litbench.metrics.leaderboard import check_reference
from litbench.raters import (
    RaterSpec,
    Trainer,
    checked_trainer,
    judge_pairs,
    parse_raters,
)
from litbench.records import prompt_keys


@dataclass
class Config:
    """What to judge and by whom.

    Attributes:
        pairs: pairs file.
        out: folder to write.
        raters: named entries, see litbench.raters; one that can be trained takes its training
            options here, and `repeats` of its own.
        before_symmetry: pairs before the last filter; judged too and reported beside.
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
    folds: int = 5
    repeats: int = 1
    author_groups: int | None = None
    seed: int = 0
    reference: str = "longer"


@dataclass(frozen=True)
class Job:
    """One part of the work: a rater, and the fold and groups of authors it is trained without."""

    spec: RaterSpec
    trainer: Trainer | None
    repeat: int = 0
    fold: int = 0
    groups: tuple[int, ...] = ()

    @property
    def cell(self) -> tuple[int, int, tuple[int, ...]]:
        """What is held out; the same for every rater."""
        return self.repeat, self.fold, self.groups

    @property
    def label(self) -> str:
        """Name of the part."""
        if self.trainer is None:
            return self.spec.name
        return f"{self.spec.name}-repeat{self.repeat}-fold{self.fold}{self._groups}"

    @property
    def place(self) -> str:
        """What its verdicts carry as their fold."""
        return f"{self.repeat}/{self.fold}{self._groups}"

    @property
    def _groups(self) -> str:
        return "".join(f"-{group}" for group in self.groups)


def list_jobs(config: Config) -> list[Job]:
    """All parts, fold by fold."""
    if config.author_groups is not None and config.author_groups < 3:
        raise ConfigError(
            f"author_groups is {config.author_groups}: give at least 3, since the pairs of two "
            "groups are judged by what the others teach"
        )
    groups: list[tuple[int, ...]] = [()]
    if config.author_groups is not None:
        groups = list(itertools.combinations_with_replacement(range(config.author_groups), 2))
    jobs = []
    for spec in parse_raters(config.raters):
        repeats = spec.options.pop("repeats", config.repeats)
        if not isinstance(repeats, int) or repeats < 1:
            raise ConfigError(
                f"{spec.where}: repeats is {repeats!r}: give a whole number, at least 1"
            )
        trainer = checked_trainer(spec)
        if trainer is None:
            jobs.append(Job(spec, None))
            continue
        jobs += [
            Job(spec, trainer, repeat, fold, of)
            for repeat in range(repeats)
            for fold in range(config.folds)
            for of in groups
        ]
    return jobs


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


def rows_of(
    jobs: Sequence[Job], config: Config, pairs: EvaluationPairs
) -> dict[tuple[int, int, tuple[int, ...]], tuple[np.ndarray, np.ndarray]]:
    """Which pairs each trained job learns from and which it judges, before any of them runs.

    Returns:
        By repeat, fold and groups: rows of the headline pairs and of all pairs; int.

    Raises:
        ConfigError: a job has pairs to judge and too few to learn from.
    """
    row = {pair_id: place for place, pair_id in enumerate(pairs.all["pair_id"].to_pylist())}
    in_all = np.array([row[pair_id] for pair_id in pairs.headline["pair_id"].to_pylist()])
    keys = prompt_keys(pairs.all)
    found: dict[tuple[int, int, tuple[int, ...]], tuple[np.ndarray, np.ndarray]] = {}
    for repeat, of_repeat in itertools.groupby(
        sorted((job for job in jobs if job.trainer is not None), key=lambda job: job.repeat),
        key=lambda job: job.repeat,
    ):
        seed = config.seed + repeat
        fold_of = assign_folds(keys, config.folds, seed)
        folds = np.array([fold_of[key] for key in keys])
        authors = None
        if config.author_groups is not None:
            authors = groups_of_authors(pairs.all, config.author_groups, seed, config.pairs)
        for job in of_repeat:
            judged, learned = folds == job.fold, folds != job.fold
            if authors is not None:
                judged &= (authors == job.groups).all(1)
                learned &= ~np.isin(authors, job.groups).any(1)
            learns = np.flatnonzero(learned[in_all])
            if judged.any() and len(learns) < 2:
                raise ConfigError(
                    f"{job.spec.where}: in fold {job.fold} of repeat {repeat}"
                    + (f", groups of authors {job.groups}," if job.groups else "")
                    + f" {len(learns)} pairs are left to learn from, and {judged.sum()} are to be "
                    "judged: give fewer folds, other author_groups, or more pairs"
                )
            found[job.cell] = learns, np.flatnonzero(judged)
    return found


def main(config: Config) -> None:
    """Run every job, then write the figures."""
    jobs = list_jobs(config)
    check_reference(config.reference, [job.spec.name for job in jobs])
    inputs = {"pairs": config.pairs}
    if config.before_symmetry is not None:
        inputs["before_symmetry"] = config.before_symmetry
    models = named_models(job.spec for job in jobs)
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs, models=models)
    if artifact.is_current():
        print_leaderboard(config.out)
        return
    pairs = read_pairs(config.pairs, config.before_symmetry, None)
    rows = rows_of(jobs, config, pairs)
    # A fold may hold no pair of some two groups of authors.
    jobs = [job for job in jobs if job.trainer is None or len(rows[job.cell][1])]
    parts = VerdictParts(config.out / "parts")

    def work(job: Job, folder: Path) -> tuple[pa.Table, dict[str, Any]]:
        if job.trainer is None:
            rater = ready_rater(job.spec, config.out)
            check_training_prompts(rater, pairs.all, "refuse")
            return judge_pairs(rater, pairs.all), {"notes": rater.notes()}
        seed = config.seed + job.repeat
        learns, judged = rows[job.cell]
        train = pairs.headline.take(pa.array(learns))
        held_out = pairs.all.take(pa.array(judged))
        with trained(job.trainer, job.spec, train, held_out, folder, seed) as rater:
            verdicts = judge_pairs(rater, held_out, fold=job.place)
            return verdicts, {"notes": rater.notes()}

    data = {name: artifact.digests[name] for name in inputs}
    judging_code = code_digest(__file__, *JUDGING_CODE)
    verdicts: list[pa.Table] = []
    records: dict[str, list[dict[str, Any]]] = {}
    bar = tqdm(jobs, desc="folds", unit=" fold", leave=False, disable=None)
    for job in bar:
        bar.set_postfix_str(job.label)
        dealt = [job.place, config.folds, config.author_groups, config.seed]
        depends_on = [
            job.spec, dealt if job.trainer is not None else None, data, judging_code,
            [artifact.digests[key] for key in named_models([job.spec])],
        ]  # fmt: skip
        table, record = parts.get_or_train(job.label, depends_on, partial(work, job))
        verdicts.append(table)
        records.setdefault(job.spec.name, []).append(record)
    finish_evaluation(artifact, verdicts, records, pairs, config.reference)
    parts.discard_others()


if __name__ == "__main__":
    run_program(main, Config, __doc__)
