"""Try to fool raters: change stories and see whether the changed ones are preferred.

    python eval/probe.py --config configs/eval/sample_probes.yaml

Reads a pairs file or a stories file, draws stories of every prompt, and changes each by every probe
at every strength (litbench/probes.py): some changes readers should not care about, others spoil the
story. Every rater of the config, judges too, compares the story with its changed copy; one that can
be trained and has no model yet learns from the pairs of other prompts, fold by fold. Writes
`probe_pairs.parquet`, `verdicts.parquet`, `probes.json`, `.csv` and `.txt`, `probes.html`, its
plots `probes_breaking` and `probes_preserving` (`.svg` and `.png`), and `manifest.json` into `out`.
The page shows pieces of the stories.

Each rater's verdicts are kept as soon as it is done, and a judge's answers as soon as they are
there, in `out/answers`. With `--dry_run true` the program tells what the judges would cost.
"""

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from litbench.artifact import (
    Artifact,
    code_digest,
    without_runtime_keys,
    write_json,
)
from litbench.config import run_program
from litbench.curation.splits import assign_folds
from litbench.errors import ConfigError
from litbench.evaluation import (
    JUDGING_CODE,
    VerdictParts,
    check_training_prompts,
    errors_in,
    estimates_text,
    named_models,
    read_pairs,
    ready_rater,
    trained,
)
from litbench.metrics.probes import probe_study, probes_json, probes_text, write_probes_csv
from litbench.probes import (
    Original,
    draw_originals,
    originals_of_pairs,
    originals_of_stories,
    probe_pairs,
    select_probes,
)
from litbench.raters import (
    Asks,
    RaterSpec,
    Trainer,
    blind,
    checked_trainer,
    judge_pairs,
    parse_raters,
)
from litbench.records import STORIES, prompt_keys
from litbench.report.document import write_panels
from litbench.report.probes_page import draw_probes, render_probes
from litbench.tables import read_table, write_table
from litbench.text import digest


@dataclass
class Config:
    """What to change and who judges it.

    Attributes:
        out: folder to write.
        pairs: pairs file to take stories from; or
        stories: stories file.
        raters: named entries, see litbench.raters; one that can be trained takes its training
            options here, or the path of its model.
        split: of pairs; only those of this split.
        side: of pairs; which of their stories.
        sources: of stories; only those of these sources, such as the human ones; all when empty.
        per_prompt: most stories of a prompt; two or more give the rater's usual difference of
            rewards, the unit of shifts.
        prompts: most prompts, drawn by a hash; null for all.
        probes: names of probes; all when empty.
        strengths: of every probe, above 0 and at most 1.
        folds: folds over prompts, for raters that are trained on the pairs.
        seed: of draws, changes, folds and training.
        on_training_prompts: refuse a rater that was trained on a prompt of these stories, or flag
            it.
        errors_again: run raters again that have errors among their verdicts; what is stored is not
            asked for again.
        dry_run: only tell calls, tokens, dollars and minutes of the raters that ask others.
        title: heading of the page.
    """

    out: Path
    pairs: Path | None = None
    stories: Path | None = None
    raters: dict[str, Any] = field(default_factory=dict)
    split: str | None = None
    side: Literal["chosen", "rejected", "both"] = "chosen"
    sources: list[str] = field(default_factory=list)
    per_prompt: int = 2
    prompts: int | None = None
    probes: list[str] = field(default_factory=list)
    strengths: list[float] = field(default_factory=lambda: [0.25, 0.5, 1.0])
    folds: int = 5
    seed: int = 0
    on_training_prompts: Literal["refuse", "flag"] = "refuse"
    errors_again: bool = False
    dry_run: bool = False
    title: str = "LitBench: probes"


@dataclass(frozen=True)
class Job:
    """One part of the work: a rater, and the fold that it is trained without."""

    spec: RaterSpec
    trainer: Trainer | None
    fold: int = 0

    @property
    def label(self) -> str:
        """Name of the part."""
        return self.spec.name if self.trainer is None else f"{self.spec.name}-fold{self.fold}"


def list_jobs(config: Config) -> list[Job]:
    """All parts.

    Raises:
        ConfigError: no rater or a wrong option; neither or both files are named, a number is too
            small, or a rater has nothing to learn from.
    """
    if (config.pairs is None) == (config.stories is None):
        raise ConfigError("pairs, stories: name one of the two files to take stories from")
    if config.per_prompt < 1 or (config.prompts is not None and config.prompts < 1):
        raise ConfigError("per_prompt and prompts are numbers of stories and prompts: at least 1")
    if not config.strengths or len(set(config.strengths)) < len(config.strengths):
        raise ConfigError("strengths: name at least one, and each once")
    jobs = []
    for spec in parse_raters(config.raters):
        trainer = checked_trainer(spec)
        if trainer is None:
            jobs.append(Job(spec, None))
            continue
        if config.pairs is None or config.folds < 2:
            raise ConfigError(
                f"{spec.where}: has no model and is to be trained, which needs pairs and folds of "
                "at least 2: give its path, or take the stories from pairs"
            )
        jobs += [Job(spec, trainer, fold) for fold in range(config.folds)]
    return jobs


def read_originals(config: Config) -> tuple[list[Original], pa.Table | None]:
    """The stories to change, and the pairs they come from, if they do."""
    if config.pairs is not None:
        pairs = read_pairs(config.pairs, None, config.split).headline
        found = originals_of_pairs(pairs, config.side)
    else:
        assert config.stories is not None, "list_jobs() has seen to it"
        pairs, found = (
            None,
            originals_of_stories(read_table(config.stories, STORIES), config.sources),
        )
    return draw_originals(found, config.per_prompt, config.prompts, config.seed), pairs


def tell(config: Config, jobs: list[Job], pairs: pa.Table) -> None:
    """Say what the raters that ask others would take."""
    blinded, _ = blind(pairs)
    raters = [ready_rater(job.spec, config.out) for job in jobs if job.trainer is None]
    estimates = [e for rater in raters if isinstance(rater, Asks) for e in rater.estimate(blinded)]
    print(f"{pairs.num_rows:,} pairs of a story and its changed copy, both orders")
    print(estimates_text(estimates) if estimates else "dry run: no rater asks others")


def assign(config: Config, jobs: list[Job], learned: pa.Table | None) -> dict[str, int] | None:
    """The fold of every prompt; None where nothing is trained."""
    if learned is None or all(job.trainer is None for job in jobs):
        return None
    return assign_folds(prompt_keys(learned), config.folds, config.seed)


def folds_in(table: pa.Table | None, fold_of: dict[str, int] | None) -> np.ndarray:
    """The fold of every pair; int, shape (n,)."""
    if table is None or fold_of is None:
        return np.zeros(0, dtype=int)
    return np.array([fold_of[key] for key in prompt_keys(table)])


def main(config: Config) -> None:
    """Change, judge, compare, write."""
    jobs = list_jobs(config)
    probes = select_probes(config.probes)
    name = "pairs" if config.pairs is not None else "stories"
    models = named_models(job.spec for job in jobs)
    if config.dry_run:
        originals, labelled = read_originals(config)
        fold_of = assign(config, jobs, labelled)
        pairs, _ = probe_pairs(originals, probes, config.strengths, config.seed, fold_of)
        tell(config, jobs, pairs)
        return
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={name: getattr(config, name)},
        models=models,
        runtime_keys=("errors_again", "dry_run"),
    )
    page_path = (config.out / "probes.html").resolve()
    if not config.errors_again and artifact.is_current():
        print((config.out / "probes.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return
    originals, labelled = read_originals(config)
    fold_of = assign(config, jobs, labelled)
    pairs, not_applicable = probe_pairs(originals, probes, config.strengths, config.seed, fold_of)
    learned_folds, judged_folds = folds_in(labelled, fold_of), folds_in(pairs, fold_of)
    # Prompts may be fewer than folds.
    jobs = [job for job in jobs if job.trainer is None or (judged_folds == job.fold).any()]
    parts = VerdictParts(config.out / "parts")

    def work(job: Job, folder: Path) -> tuple[pa.Table, dict[str, Any]]:
        if job.trainer is None:
            rater = ready_rater(job.spec, config.out)
            trained_on = check_training_prompts(rater, pairs, config.on_training_prompts)
            return judge_pairs(rater, pairs), {"notes": rater.notes(), "trained_on": trained_on}
        assert labelled is not None, "list_jobs() has seen to it"
        train = labelled.filter(pa.array(learned_folds != job.fold))
        held_out = pairs.filter(pa.array(judged_folds == job.fold))
        with trained(job.trainer, job.spec, train, held_out, folder, config.seed) as rater:
            verdicts = judge_pairs(rater, held_out, fold=f"0/{job.fold}")
            return verdicts, {"notes": rater.notes(), "trained_on": 0}

    texts = zip(*(pairs[c].to_pylist() for c in ("pair_id", "chosen", "rejected")), strict=True)
    data = digest(*(digest(*row) for row in texts))
    learned = [artifact.digests["pairs"], config.split] if config.pairs is not None else None
    judging_code = code_digest(__file__, *JUDGING_CODE)
    verdicts: list[pa.Table] = []
    records: dict[str, list[dict[str, Any]]] = {}
    bar = tqdm(jobs, desc="raters", unit=" part", leave=False, disable=None)
    for job in bar:
        bar.set_postfix_str(job.label)
        depends_on = [
            job.spec, data, config.on_training_prompts, judging_code,
            [artifact.digests[key] for key in named_models([job.spec])],
            None if job.trainer is None else [job.fold, config.folds, config.seed, learned],
        ]  # fmt: skip
        table, record = parts.get_or_train(
            job.label, depends_on, partial(work, job), errors_again=config.errors_again
        )
        verdicts.append(table)
        records.setdefault(job.spec.name, []).append(record)
    whole = pa.concat_tables(verdicts)
    study = probe_study(whole, pairs, not_applicable)
    artifact.write("probe_pairs.parquet", lambda path: write_table(pairs, path))
    artifact.write("verdicts.parquet", lambda path: write_table(whole, path))
    artifact.write("probes.json", lambda path: write_json(probes_json(study), path))
    artifact.write("probes.csv", lambda path: write_probes_csv(study, path))
    text = probes_text(study) + "\n"
    artifact.write("probes.txt", lambda path: path.write_text(text, encoding="utf-8"))
    panels = draw_probes(study)
    write_panels(artifact, "probes", panels)
    trained_on = {
        rater: max(part["trained_on"] for part in of_rater) for rater, of_rater in records.items()
    }
    artifact.counts = {
        "stories": study.stories,
        "prompts": study.prompts,
        "pairs": pairs.num_rows,
        "not_applicable": not_applicable,
        "trained_on": trained_on,
        "raters": records,
    }
    page = render_probes(
        title=config.title,
        study=study,
        panels=panels,
        pairs=pairs,
        trained_on=trained_on,
        manifests={
            "probes": json.dumps(without_runtime_keys(artifact.as_manifest()), indent=2),
        },
    )
    artifact.write("probes.html", lambda path: path.write_text(page, encoding="utf-8"))
    artifact.finish()
    parts.discard_others()
    print(f"{text}page: {page_path}")
    for job, table in zip(jobs, verdicts, strict=True):
        if errors := errors_in(table):
            print(
                f"{job.label}: {errors:,} of {table.num_rows:,} verdicts are errors: run the same "
                "command with --errors_again true to ask for these alone"
            )


if __name__ == "__main__":
    run_program(main, Config, __doc__)
