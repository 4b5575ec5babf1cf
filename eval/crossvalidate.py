"""Evaluate trained raters out of fold, by repeated folds over prompts.

    python eval/crossvalidate.py --config configs/eval/sample_crossvalidate.yaml

For small sets, where one test split would leave too few prompts. Each repeat deals the prompts
to folds anew; a rater that can be trained is trained on the other folds' pairs and judges its
own; verdicts carry "repeat/fold". Raters with nothing to train judge once. Whatever a rater
tunes, it tunes inside its training folds.

Reads `pairs` (and the pairs before length symmetry, when given: raters train on `pairs` and
judge both). Writes `verdicts.parquet`, `leaderboard.json` (also `.csv` and `.txt`) and
`manifest.json` into `out`. Each fold is kept as soon as it is done, so a killed run goes on with
the next.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from litbench.config import run_program
from litbench.curation.splits import assign_folds
from litbench.errors import ConfigError
from litbench.evaluation import (
    JUDGING_CODE,
    VerdictParts,
    check_training_prompts,
    finish_evaluation,
    print_leaderboard,
    read_pairs,
)
from litbench.manifest import Product, code_digest, source_digest
from litbench.metrics.leaderboard import check_reference
from litbench.raters import (
    RaterSpec,
    Trainer,
    check_options,
    judge_pairs,
    load_rater,
    load_trainer,
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
        seed: seeds folds and training.
        reference: the rater all others are compared with; choose it before looking.
    """

    pairs: Path
    out: Path
    raters: dict[str, Any] = field(default_factory=dict)
    before_symmetry: Path | None = None
    folds: int = 5
    repeats: int = 1
    seed: int = 0
    reference: str = "longer"


@dataclass(frozen=True)
class Job:
    """One part of the work: a rater, and the fold it is trained without."""

    spec: RaterSpec
    trainer: Trainer | None
    repeat: int = 0
    fold: int = 0

    @property
    def label(self) -> str:
        """Name of the part."""
        if self.trainer is None:
            return self.spec.name
        return f"{self.spec.name}-repeat{self.repeat}-fold{self.fold}"


def list_jobs(config: Config) -> list[Job]:
    """All parts, fold by fold."""
    jobs = []
    for spec in parse_raters(config.raters):
        repeats = spec.options.pop("repeats", config.repeats)
        if not isinstance(repeats, int) or repeats < 1:
            raise ConfigError(
                f"{spec.where}: repeats is {repeats!r}: give a whole number, at least 1"
            )
        trainer = load_trainer(spec)
        check_options(spec, "raters" if trainer is None else "trainers")
        if trainer is None:
            jobs.append(Job(spec, None))
            continue
        jobs += [
            Job(spec, trainer, repeat, fold)
            for repeat in range(repeats)
            for fold in range(config.folds)
        ]
    return jobs


def main(config: Config) -> None:
    """Run every job, then write the figures."""
    jobs = list_jobs(config)
    check_reference(config.reference, [job.spec.name for job in jobs])
    inputs = {"pairs": config.pairs}
    if config.before_symmetry is not None:
        inputs["before_symmetry"] = config.before_symmetry
    models = {
        f"raters.{job.spec.name}": job.spec.options[key]
        for job in jobs
        for key in ("path", "backbone")
        if key in job.spec.options
    }
    product = Product(config.out, program=__file__, config=config, inputs=inputs, models=models)
    if product.is_current():
        print_leaderboard(config.out)
        return
    pairs = read_pairs(config.pairs, config.before_symmetry, None)
    keys = {"train": prompt_keys(pairs.headline), "judge": prompt_keys(pairs.all)}
    parts = VerdictParts(config.out / "parts")
    scratch = config.out / "scratch"

    def work(job: Job) -> tuple[pa.Table, dict[str, Any]]:
        if job.trainer is None:
            rater = load_rater(job.spec)
            check_training_prompts(rater, pairs.all, "refuse")
            return judge_pairs(rater, pairs.all), {"notes": rater.notes()}
        seed = config.seed + job.repeat
        fold_of = assign_folds(keys["judge"], config.folds, seed)
        train = pairs.headline.filter(pa.array([fold_of[key] != job.fold for key in keys["train"]]))
        held_out = pairs.all.filter(pa.array([fold_of[key] == job.fold for key in keys["judge"]]))
        # What an interrupted run left there belongs to no finished part.
        shutil.rmtree(scratch, ignore_errors=True)
        rater = job.trainer(job.spec.name, job.spec.options, train, scratch, seed, job.spec.where)
        check_training_prompts(rater, held_out, "refuse")
        verdicts = judge_pairs(rater, held_out, fold=f"{job.repeat}/{job.fold}")
        shutil.rmtree(scratch, ignore_errors=True)
        return verdicts, {"notes": rater.notes()}

    data = {name: source_digest(path) for name, path in inputs.items()}
    judging_code = code_digest(__file__, *JUDGING_CODE)
    weights = {name: source_digest(path, is_model=True) for name, path in models.items()}
    verdicts: list[pa.Table] = []
    records: dict[str, list[dict[str, Any]]] = {}
    bar = tqdm(jobs, desc="folds", unit=" fold", leave=False, disable=None)
    for job in bar:
        bar.set_postfix_str(job.label)
        depends_on = [
            job.spec, job.repeat, job.fold, config.folds, config.seed, data, judging_code,
            weights.get(f"raters.{job.spec.name}"),
        ]  # fmt: skip
        table, record = parts.get_or_make(job.label, depends_on, lambda job=job: work(job))
        verdicts.append(table)
        records.setdefault(job.spec.name, []).append(record)
    finish_evaluation(product, verdicts, records, pairs, config.reference)
    parts.discard_others()


if __name__ == "__main__":
    run_program(main, Config, __doc__)
