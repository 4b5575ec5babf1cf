"""Scaling study: agreement by amount of training data and by model size, with plots.

    python eval/scaling.py --config configs/eval/sample_scaling.yaml

Trains each rater on each amount of pairs with each seed and judges the same held-out pairs. For
every seed the training pairs stand in the order of a seeded hash of their prompt, then of the pair,
and the first ones are used: a smaller amount is contained in a larger one, and but for the last
prompt all pairs of a prompt are in or out together. The seed is also that of the training, which an
entry must not set itself. So the spread over seeds is that of drawing the pairs and of training on
them; at all pairs of training alone, and none for kinds whose training draws nothing, such as
features. A rater that cannot be trained, or has a `path`, judges once: without `family` it is a
flat line in the plots, with `family` a point among the sizes.

Reads `pairs` (and `test_pairs`, when given). Writes `verdicts.parquet`, `scaling.json` (also
`.csv` and `.txt`), `scaling.html`, its plots `scaling_pairs` and `scaling_parameters` (`.svg` and
`.png`), and `manifest.json` into `out`. In the verdicts an amount is a rater of its own, as
minilm@310, and a seed a repeat of it, as fold 2/0: so whatever reads verdicts takes the mean over
seeds per pair and never counts seeds as pairs. Columns `pairs_used` and `seed` say the same in
numbers.

Each training is kept as soon as its rater has judged: a killed run goes on with the next, and
with the one under way where its trainer leaves checkpoints; an amount or a seed added later is
the only one to run. Runs as one process: train a model that needs several with train/*.py and
name its folder as `path`.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from litbench.artifact import (
    Artifact,
    code_digest,
    is_output,
    read_manifest,
    without_runtime_keys,
    write_json,
)
from litbench.config import build, run_program
from litbench.draws import check_seeds, check_unseeded, count_pairs, draw_order
from litbench.errors import ConfigError, DataError
from litbench.evaluation import (
    JUDGING_CODE,
    VerdictParts,
    check_training_prompts,
    named_models,
    read_pairs,
    ready_rater,
    trained,
)
from litbench.metrics.scaling import (
    Arm,
    by_parameters,
    scaling_json,
    scaling_study,
    scaling_text,
    write_scaling_csv,
)
from litbench.raters import (
    RaterSpec,
    Trainer,
    checked_trainer,
    judge_pairs,
    parse_raters,
)
from litbench.records import prompt_keys
from litbench.report.document import write_panels
from litbench.report.scaling_page import draw_panels, render_scaling
from litbench.tables import write_table


@dataclass
class Config:
    """What to train, on how much, and what to judge.

    Attributes:
        pairs: pairs file to train on.
        out: folder to write.
        raters: named entries, see litbench.raters; one that can be trained takes its training
            options here. Each may have `pairs_used` and `seeds` of its own, `family` (raters that
            differ in size alone: one line in the plot of sizes) and `parameters` (weights, where
            the rater does not tell).
        split: train on pairs of this split; null for all.
        test_pairs: pairs file to judge, where it is not `pairs`.
        test_split: judge pairs of this split; null for all.
        pairs_used: amounts: shares up to 1.0, or numbers of pairs from 2.
        seeds: each draws the pairs and seeds the training.
        title: heading of the page.
    """

    pairs: Path
    out: Path
    raters: dict[str, Any] = field(default_factory=dict)
    split: str | None = "train"
    test_pairs: Path | None = None
    test_split: str | None = "test"
    pairs_used: list[int | float] = field(default_factory=lambda: [0.1, 0.3, 1.0])
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    title: str = "LitBench scaling study"


@dataclass
class StudyOptions:
    """What an entry says to this program; the rest is for its rater.

    Attributes:
        pairs_used: see Config.
        seeds: see Config.
        family: see Config.
        parameters: see Config.
    """

    pairs_used: list[int | float]
    seeds: list[int]
    family: str | None = None
    parameters: int | None = None

    def __post_init__(self) -> None:
        if not self.pairs_used:
            raise ConfigError("pairs_used is empty: give amounts, such as [0.1, 0.3, 1.0]")
        check_seeds(self.seeds)


@dataclass(frozen=True)
class Entry:
    """A rater of the config; `trainer` is None for one that is ready."""

    spec: RaterSpec
    trainer: Trainer | None
    options: StudyOptions


@dataclass(frozen=True)
class Job:
    """One part of the work: an arm of the study, and the seed it is trained with."""

    entry: Entry
    arm: Arm
    seed: int | None = None

    @property
    def label(self) -> str:
        """Name of the part."""
        return self.arm.name if self.seed is None else f"{self.arm.name}-seed{self.seed}"


def read_entries(config: Config) -> list[Entry]:
    """Check all raters before any of them runs."""
    entries = []
    for spec in parse_raters(config.raters):
        own = {"pairs_used": config.pairs_used, "seeds": config.seeds}
        for key in ("pairs_used", "seeds", "family", "parameters"):
            if key in spec.options:
                own[key] = spec.options.pop(key)
        trainer = checked_trainer(spec)
        if trainer is not None:
            check_unseeded(spec.options, spec.where)
        entries.append(Entry(spec, trainer, build(StudyOptions, own, spec.where)))
    return entries


def list_jobs(entries: Sequence[Entry], total: int) -> list[Job]:
    """All parts, those with the fewest pairs first, so that a fault shows early."""
    jobs = []
    for entry in entries:
        name, own = entry.spec.name, entry.options
        if entry.trainer is None:
            jobs.append(Job(entry, Arm(name, name, None, own.family, own.parameters)))
            continue
        for pairs_used, times in Counter(
            count_pairs(amount, total, entry.spec.where) for amount in own.pairs_used
        ).items():
            if times > 1:
                raise ConfigError(
                    f"{entry.spec.where}: pairs_used {own.pairs_used} names {pairs_used:,} of the "
                    f"{total:,} pairs {times} times: give amounts that differ"
                )
            arm = Arm(f"{name}@{pairs_used}", name, pairs_used, own.family, own.parameters)
            jobs += [Job(entry, arm, seed) for seed in own.seeds]
    rater_of: dict[str, str] = {}
    for job in jobs:
        if rater_of.setdefault(job.arm.name, job.arm.rater) != job.arm.rater:
            raise ConfigError(
                f"raters {rater_of[job.arm.name]} and {job.arm.rater} are both {job.arm.name} in "
                "the verdicts: rename one of them"
            )
    return sorted(jobs, key=lambda job: job.arm.pairs_used or 0)


def read_both(config: Config) -> tuple[pa.Table, pa.Table]:
    """Read the pairs to train on and to judge; no prompt may be in both."""
    train = read_pairs(config.pairs, None, config.split).headline
    test = read_pairs(config.test_pairs or config.pairs, None, config.test_split).headline
    trained_on = set(prompt_keys(train))
    shared = {
        prompt
        for key, prompt in zip(prompt_keys(test), test["prompt"].to_pylist(), strict=True)
        if key in trained_on
    }
    if shared:
        raise DataError(
            f"{len(shared)} prompts are in both the pairs to train on ({config.pairs}, split "
            f"{config.split}) and those to judge ({config.test_pairs or config.pairs}, split "
            f"{config.test_split}), such as {min(shared)!r:.80}: give other prompts to judge"
        )
    return train, test


def with_columns(verdicts: pa.Table, job: Job) -> pa.Table:
    """The verdicts with the columns `pairs_used` and `seed`."""
    for name, value in (("pairs_used", job.arm.pairs_used), ("seed", job.seed)):
        column = pa.array([value] * verdicts.num_rows, pa.int64())
        verdicts = verdicts.append_column(name, column)
    return verdicts


def sized_arm(arm: Arm, records: Sequence[dict[str, Any]]) -> Arm:
    """The arm with the number of parameters that its config or else its rater tells."""
    told = arm.parameters or records[0]["notes"].get("parameters")
    return Arm(arm.name, arm.rater, arm.pairs_used, arm.family, told)


def main(config: Config) -> None:
    """Train, judge, then write the figures and the page."""
    entries = read_entries(config)
    inputs = {"pairs": config.pairs}
    if config.test_pairs is not None:
        inputs["test_pairs"] = config.test_pairs
    models = named_models(entry.spec for entry in entries)
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs, models=models)
    page_path = (config.out / "scaling.html").resolve()
    if artifact.is_current():
        print((config.out / "scaling.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return
    train, test = read_both(config)
    jobs = list_jobs(entries, train.num_rows)
    # Raises before any work where sizes would be compared across amounts.
    by_parameters([job.arm for job in jobs])
    parts = VerdictParts(config.out / "parts")

    def work(job: Job, folder: Path) -> tuple[pa.Table, dict[str, Any]]:
        spec, trainer = job.entry.spec, job.entry.trainer
        if trainer is None or job.seed is None:
            rater = ready_rater(spec, config.out)
            check_training_prompts(rater, test, "refuse")
            return with_columns(judge_pairs(rater, test), job), {"notes": rater.notes()}
        rows = draw_order(train, job.seed)[: job.arm.pairs_used]
        # In the order of the file: the trainer shuffles by its own seed.
        drawn = train.take(pa.array(sorted(rows)))
        prompts = len(set(prompt_keys(drawn)))
        with trained(trainer, spec, drawn, test, folder, job.seed, job.arm.name) as rater:
            verdicts = judge_pairs(rater, test, fold=f"{job.seed}/0")
            record = {"notes": rater.notes(), "seed": job.seed, "prompts_used": prompts}
            return with_columns(verdicts, job), record

    digests = {name: artifact.digests[name] for name in inputs}
    judging_code = code_digest(__file__, *JUDGING_CODE)
    verdicts: list[pa.Table] = []
    arms: dict[str, Arm] = {}
    records: dict[str, list[dict[str, Any]]] = {}
    # Pairs are trained on and judged, so that the time left is not that of the small amounts.
    steps = [(job.arm.pairs_used or 0) + test.num_rows for job in jobs]
    with tqdm(
        total=sum(steps), desc="study", unit=" pairs", unit_scale=True, leave=False, disable=None
    ) as bar:
        for job, step in zip(jobs, steps, strict=True):
            bar.set_postfix_str(job.label)
            depends_on = [
                job.entry.spec, job.arm.pairs_used, job.seed, config.split, config.test_split,
                digests, judging_code,
                [artifact.digests[key] for key in named_models([job.entry.spec])],
            ]  # fmt: skip
            table, record = parts.get_or_train(job.label, depends_on, partial(work, job))
            verdicts.append(table)
            records.setdefault(job.arm.name, []).append(record)
            arms[job.arm.name] = job.arm
            bar.update(step)
    together = pa.concat_tables(verdicts)
    study = scaling_study(
        together, test, [sized_arm(arm, records[name]) for name, arm in arms.items()]
    )
    artifact.write("verdicts.parquet", lambda path: write_table(together, path))
    artifact.write("scaling.json", lambda path: write_json(scaling_json(study), path))
    artifact.write("scaling.csv", lambda path: write_scaling_csv(study, path))
    text = scaling_text(study) + "\n"
    artifact.write("scaling.txt", lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = {
        "training_pairs": train.num_rows,
        "held_out_pairs": test.num_rows,
        "held_out_prompts": len(set(prompt_keys(test))),
        "verdicts": together.num_rows,
        "raters": records,
    }
    panels = draw_panels(study)
    write_panels(artifact, "scaling", panels)
    manifests = {"study": artifact.made_of()}
    for name, path in inputs.items():
        # A pairs file from elsewhere has none of its own.
        if (path.parent / "manifest.json").is_file():
            beside = read_manifest(path.parent)
            if is_output(beside, path):
                manifests[name] = json.dumps(without_runtime_keys(beside), indent=2)
    page = render_scaling(
        title=config.title,
        study=study,
        panels=panels,
        test=test,
        training=train,
        manifests=manifests,
    )
    artifact.write("scaling.html", lambda path: path.write_text(page, encoding="utf-8"))
    artifact.finish()
    parts.discard_others()
    print(f"{text}page: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
