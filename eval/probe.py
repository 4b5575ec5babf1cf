"""Probe raters with changed stories: how often is the changed story preferred?

    python eval/probe.py --config configs/eval/sample_probes.yaml

Reads a pairs file, draws stories of every prompt and applies every probe at every strength
(litbench/probes.py). Every rater compares each story with its changed copies. Writes
`probe_pairs.parquet`, `verdicts.parquet`, `probes.csv` and `.txt`, `probes.html` with excerpts of
the stories, its plots as SVG and PNG, and `manifest.json` into `out`.

A killed run resumes; judges store their answers in `out/answers`. `--dry_run true` estimates calls,
tokens and cost of the judges without sending requests.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa

from litbench.config import Input, Runtime, run_program
from litbench.entries import files_of, parse_raters
from litbench.evaluation.loop import Job, evaluate, print_errors, print_estimates
from litbench.metrics.csv_table import write_csv
from litbench.metrics.probes import probe_results, probes_text
from litbench.probes import check_strengths, draw_originals, probe_pairs, select_probes
from litbench.report.pages import write_probes
from litbench.sources.evaluation_pairs import read_pairs
from litbench.store import Artifact, Cache
from litbench.tables import write_table
from litbench.text import digest


@dataclass
class Config:
    """Configuration of `probe.py`.

    Attributes:
        pairs: pairs file to draw stories from.
        out: output folder.
        raters: named entries, see litbench.entries.
        split: only pairs of this split; null for all.
        side: draw chosen stories, rejected stories or both.
        per_prompt: maximum number of stories per prompt.
        prompts: maximum number of prompts, drawn by a hash; null for all.
        probes: names of probes; all if empty.
        strengths: strengths of every probe, above 0 and at most 1.
        seed: seed of draws and changes.
        on_training_prompts: refuse raters that were trained on prompts of these stories, or flag
            them.
        errors_again: run raters again that have errors among their verdicts.
        dry_run: only estimate calls, tokens, dollars and minutes.
    """

    pairs: Annotated[Path, Input]
    out: Path
    raters: dict[str, Any] = field(default_factory=dict)
    split: str | None = None
    side: Literal["chosen", "rejected", "both"] = "chosen"
    per_prompt: int = 2
    prompts: int | None = None
    probes: list[str] = field(default_factory=list)
    strengths: list[float] = field(default_factory=lambda: [0.25, 0.5, 1.0])
    seed: int = 0
    on_training_prompts: Literal["refuse", "flag"] = "refuse"
    errors_again: Annotated[bool, Runtime] = False
    dry_run: Annotated[bool, Runtime] = False


def main(config: Config) -> None:
    """Change the stories, judge the pairs, and write the results."""
    specs, probes = parse_raters(config.raters), select_probes(config.probes)
    check_strengths(config.strengths)
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        models=files_of(specs),
    )
    page_path = (config.out / "probes.html").resolve()
    if not (config.errors_again or config.dry_run) and artifact.is_current():
        print((config.out / "probes.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return

    labelled = read_pairs(config.pairs, None, config.split).headline
    stories = draw_originals(labelled, config.side, config.per_prompt, config.prompts, config.seed)
    pairs, not_applicable = probe_pairs(stories, probes, config.strengths, config.seed)
    if config.dry_run:
        print_estimates(specs, pairs, config.out)
        return

    parts = Cache(config.out / "parts")
    columns = (pairs[name].to_pylist() for name in ("pair_id", "chosen", "rejected"))
    data = digest(*(digest(*row) for row in zip(*columns, strict=True)))
    jobs = [Job(spec, spec.name, lambda: pairs, data, work=pairs.num_rows) for spec in specs]
    judged = list(
        evaluate(
            jobs,
            parts,
            on_training_prompts=config.on_training_prompts,
            errors_again=config.errors_again,
        )
    )
    verdicts = pa.concat_tables(result.verdicts for result in judged)
    results = probe_results(verdicts, pairs, not_applicable)
    text = probes_text(results)
    records = {result.job.spec.name: result.record for result in judged}
    trained_on = {name: record["trained_on"] for name, record in records.items()}
    artifact.counts = {
        "stories": len(stories),
        "pairs": pairs.num_rows,
        "not_applicable": not_applicable,
        "trained_on": trained_on,
        "raters": records,
    }
    artifact.write("probe_pairs.parquet", partial(write_table, pairs))
    artifact.write("verdicts.parquet", partial(write_table, verdicts))
    artifact.write("probes.csv", partial(write_csv, [vars(one) for one in results]))
    artifact.write("probes.txt", lambda path: path.write_text(text, encoding="utf-8"))
    write_probes(artifact, results, pairs, trained_on)
    artifact.finish()
    parts.discard_unused()
    print(f"{text}page: {page_path}")
    print_errors(judged)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
