"""Try to fool raters: change stories and see whether the changed ones are preferred.

    python eval/probe.py --config configs/eval/sample_probes.yaml

Reads a pairs file, draws stories of every prompt and changes each by every probe at
every strength (litbench/probes.py). Every rater compares each story with its changed copies; one
that can be trained and has no model is trained on the pairs of other prompts, fold by fold. Writes
`probe_pairs.parquet`, `verdicts.parquet`, `probes.csv` and `.txt`, `probes.html` with pieces of the
stories, its plots as SVG and PNG, and `manifest.json` into `out`.

A killed run continues where it was; answers of judges are kept in `out/answers`. `--dry_run true`
estimates calls, tokens and cost of the judges without asking.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv as pa_csv

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.curation.splits import assign_folds, connected_prompts
from litbench.errors import ConfigError
from litbench.evaluation import (
    Job,
    VerdictParts,
    errors_in,
    evaluate,
    print_estimates,
    read_pairs,
)
from litbench.metrics.leaderboard import plain
from litbench.metrics.probes import ProbeResult, probe_results, probes_text
from litbench.probes import (
    draw_originals,
    originals_of_pairs,
    probe_pairs,
    select_probes,
)
from litbench.raters import RaterSpec, checked_trainer, files_of, parse_raters
from litbench.records import prompt_keys
from litbench.report.pages import write_probes
from litbench.tables import write_table
from litbench.text import digest


@dataclass
class Config:
    """What to change and who judges it.

    Attributes:
        pairs: pairs file to take stories from.
        out: folder to write.
        raters: named entries, see litbench.raters; one that can be trained takes its training
            options here, or the path of its model.
        split: of pairs; only those of this split.
        side: of pairs; which of their stories.
        per_prompt: most stories of a prompt.
        prompts: most prompts, drawn by a hash; null for all.
        probes: names of probes; all when empty.
        strengths: of every probe, above 0 and at most 1.
        folds: folds over prompts, for raters that are trained on the pairs.
        seed: of draws, changes, folds and training.
        on_training_prompts: refuse a rater that was trained on a prompt of these stories, or flag
            it.
        errors_again: judge again what has errors among its verdicts.
        dry_run: only estimate calls, tokens, dollars and minutes.
    """

    pairs: Path
    out: Path
    raters: dict[str, Any] = field(default_factory=dict)
    split: str | None = None
    side: Literal["chosen", "rejected", "both"] = "chosen"
    per_prompt: int = 2
    prompts: int | None = None
    probes: list[str] = field(default_factory=list)
    strengths: list[float] = field(default_factory=lambda: [0.25, 0.5, 1.0])
    folds: int = 5
    seed: int = 0
    on_training_prompts: Literal["refuse", "flag"] = "refuse"
    errors_again: bool = False
    dry_run: bool = False


def check(config: Config) -> list[RaterSpec]:
    """Check what can be checked before anything is read; returns the raters' entries."""
    if config.per_prompt < 1 or (config.prompts is not None and config.prompts < 1):
        raise ConfigError("per_prompt and prompts are numbers of stories and prompts: at least 1")
    if not config.strengths or len(set(config.strengths)) < len(config.strengths):
        raise ConfigError("strengths: name at least one, and each once")
    select_probes(config.probes)
    specs = parse_raters(config.raters)
    for spec in specs:
        if checked_trainer(spec) is not None and config.folds < 2:
            raise ConfigError(
                f"{spec.where}: has no model and is to be trained, which needs 2 folds or more: "
                "give its path, or raise folds"
            )
    return specs


def list_jobs(
    config: Config,
    specs: list[RaterSpec],
    probed: pa.Table,
    labelled: pa.Table,
    fold_of: dict[str, int],
) -> list[Job]:
    """One job for a rater that is ready, one for each fold of a rater that is trained."""
    names = ("pair_id", "chosen", "rejected")
    rows = zip(*(probed[name].to_pylist() for name in names), strict=True)
    data, jobs = digest(*(digest(*row) for row in rows)), []
    for spec in specs:
        if checked_trainer(spec) is None:
            jobs.append(Job(spec, spec.name, lambda: probed, data, work=probed.num_rows))
            continue
        learned = digest(*labelled["pair_id"].to_pylist())
        folds, judged = ([fold_of[key] for key in prompt_keys(of)] for of in (labelled, probed))
        # Small data may leave a fold without stories.
        for fold in sorted(set(judged)):
            others = labelled.filter(pa.array([one != fold for one in folds]))
            held_out = probed.filter(pa.array([one == fold for one in judged]))
            jobs.append(
                Job(
                    spec,
                    f"{spec.name}-fold{fold}",
                    lambda table=held_out: table,
                    [data, learned, config.folds, fold],
                    train=lambda table=others: table,
                    seed=config.seed,
                    fold=f"0/{fold}",
                    work=others.num_rows + held_out.num_rows,
                )
            )
    return jobs


def as_csv(results: list[ProbeResult]) -> pa.Table:
    """A row for every rater, probe and strength."""
    rows = []
    for one in plain(results):
        interval = one.pop("prefers_changed") or {}
        one |= {f"prefers_changed_{end}": interval.get(end) for end in ("mean", "low", "high")}
        rows.append(one)
    return pa.Table.from_pylist(rows)


def main(config: Config) -> None:
    """Change, judge, compare, write."""
    specs = check(config)
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"pairs": config.pairs},
        models=files_of(specs),
        runtime_keys=("errors_again", "dry_run"),
    )
    page_path = (config.out / "probes.html").resolve()
    if not (config.errors_again or config.dry_run) and artifact.is_current():
        print((config.out / "probes.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return

    labelled = read_pairs(config.pairs, None, config.split).headline
    originals = originals_of_pairs(labelled, config.side)
    fold_of: dict[str, int] = {}
    if any(checked_trainer(spec) is not None for spec in specs):
        groups = connected_prompts(labelled)
        fold_of_group = assign_folds(groups, config.folds, config.seed)
        keys = zip(prompt_keys(labelled), groups, strict=True)
        fold_of = {key: fold_of_group[group] for key, group in keys}
    drawn = draw_originals(originals, config.per_prompt, config.prompts, config.seed)
    probes = select_probes(config.probes)
    pairs, not_applicable = probe_pairs(drawn, probes, config.strengths, config.seed, fold_of)
    if config.dry_run:
        ready = [spec for spec in specs if checked_trainer(spec) is None]
        print_estimates(ready, pairs, config.out)
        return

    parts, verdicts = VerdictParts(config.out / "parts"), []
    records: dict[str, list[dict[str, Any]]] = {}
    for job, table, record in evaluate(
        list_jobs(config, specs, pairs, labelled, fold_of),
        parts,
        on_training_prompts=config.on_training_prompts,
        errors_again=config.errors_again,
    ):
        verdicts.append(table)
        records.setdefault(job.spec.name, []).append(record)
    whole = pa.concat_tables(verdicts)
    results = probe_results(whole, pairs, not_applicable)
    text = probes_text(results)
    trained_on = {
        rater: max(part["trained_on"] for part in of_rater) for rater, of_rater in records.items()
    }
    artifact.counts = {
        "stories": len(drawn),
        "pairs": pairs.num_rows,
        "not_applicable": not_applicable,
        "trained_on": trained_on,
        "raters": records,
    }
    artifact.write("probe_pairs.parquet", lambda path: write_table(pairs, path))
    artifact.write("verdicts.parquet", lambda path: write_table(whole, path))
    artifact.write("probes.csv", lambda path: pa_csv.write_csv(as_csv(results), path))
    artifact.write("probes.txt", lambda path: path.write_text(text, encoding="utf-8"))
    write_probes(artifact, results, pairs, trained_on)
    artifact.finish()
    parts.discard_others()
    print(f"{text}page: {page_path}")
    if errors := errors_in(whole):
        print(f"{errors:,} verdicts are errors: --errors_again true asks for these alone")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
