"""Benchmark any list of raters on any pairs: one verdict table, one leaderboard.

    python eval/benchmark.py --config configs/eval/sample_benchmark.yaml

Reads `pairs` (and the pairs before length symmetry, when given) and the raters of the config.
Writes `verdicts.parquet`, `leaderboard.json` (also `.csv` and `.txt`) and `manifest.json` into
`out`. Each rater's verdicts are kept as soon as it is done: a killed run goes on with the next
rater, and a rater added later is the only one to run. Judges keep each answer as soon as it is
there, in `out/answers`, and leave logs for `inspect view` in `out/logs`: no answer that is stored
is asked for again. With `--dry_run true` the program tells what the judges would cost.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from tqdm import tqdm

from litbench.artifact import Artifact, code_digest
from litbench.config import run_program
from litbench.evaluation import (
    JUDGING_CODE,
    VerdictParts,
    check_training_prompts,
    errors_in,
    estimates_text,
    finish_evaluation,
    named_models,
    print_leaderboard,
    read_pairs,
    ready_rater,
)
from litbench.metrics.leaderboard import check_reference
from litbench.raters import Asks, RaterSpec, blind, check_options, judge_pairs, parse_raters


@dataclass
class Config:
    """What to judge and by whom.

    Attributes:
        pairs: pairs file.
        out: folder to write.
        raters: named entries, see litbench.raters.
        before_symmetry: pairs before the last filter; judged too and reported beside.
        split: only pairs of this split; null for all.
        reference: the rater all others are compared with; choose it before looking.
        on_training_prompts: refuse a rater that was trained on a prompt of these pairs, or flag
            its row.
        errors_again: run raters again that have errors among their verdicts, such as a judge that
            got no answer; what is stored is not asked for again.
        dry_run: only tell calls, tokens, dollars and minutes of the raters that ask others.
    """

    pairs: Path
    out: Path
    raters: dict[str, Any] = field(default_factory=dict)
    before_symmetry: Path | None = None
    split: str | None = None
    reference: str = "longer"
    on_training_prompts: Literal["refuse", "flag"] = "refuse"
    errors_again: bool = False
    dry_run: bool = False


def tell(config: Config, specs: list[RaterSpec]) -> None:
    """Say what the raters that ask others would take."""
    pairs = read_pairs(config.pairs, config.before_symmetry, config.split)
    blinded, _ = blind(pairs.all)
    raters = [ready_rater(spec, config.out) for spec in specs]
    estimates = [e for rater in raters if isinstance(rater, Asks) for e in rater.estimate(blinded)]
    print(f"{pairs.all.num_rows:,} pairs, both orders")
    print(estimates_text(estimates) if estimates else "dry run: no rater asks others")


def main(config: Config) -> None:
    """Run every rater, then write the figures."""
    specs = parse_raters(config.raters)
    for spec in specs:
        check_options(spec, "raters")
    check_reference(config.reference, [spec.name for spec in specs])
    if config.dry_run:
        tell(config, specs)
        return
    inputs = {"pairs": config.pairs}
    if config.before_symmetry is not None:
        inputs["before_symmetry"] = config.before_symmetry
    models = named_models(specs)
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs=inputs,
        models=models,
        runtime_keys=("errors_again", "dry_run"),
    )
    if not config.errors_again and artifact.is_current():
        print_leaderboard(config.out)
        return
    pairs = read_pairs(config.pairs, config.before_symmetry, config.split)
    parts = VerdictParts(config.out / "parts")

    def judge(spec: RaterSpec) -> tuple[pa.Table, dict[str, Any]]:
        rater = ready_rater(spec, config.out)
        trained_on = check_training_prompts(rater, pairs.all, config.on_training_prompts)
        verdicts = judge_pairs(rater, pairs.all)
        return verdicts, {"notes": rater.notes(), "trained_on": trained_on}

    data = {name: artifact.digests[name] for name in inputs}
    judging_code = code_digest(__file__, *JUDGING_CODE)
    verdicts, records = [], {}
    for spec in tqdm(specs, desc="raters", unit=" rater", leave=False, disable=None):
        depends_on = [
            spec, data, config.split, config.on_training_prompts, judging_code,
            [artifact.digests[key] for key in named_models([spec])],
        ]  # fmt: skip
        table, record = parts.get_or_make(
            spec.name,
            depends_on,
            lambda spec=spec: judge(spec),
            errors_again=config.errors_again,
        )
        verdicts.append(table)
        records[spec.name] = [record]
    pairs = pairs.without_texts()
    # Else the room of the texts stays with the process, and the figures take theirs beside it.
    pa.default_memory_pool().release_unused()
    finish_evaluation(artifact, verdicts, records, pairs, config.reference)
    parts.discard_others()
    for spec, table in zip(specs, verdicts, strict=True):
        if errors := errors_in(table):
            print(
                f"{spec.name}: {errors:,} of {table.num_rows:,} verdicts are errors: run the same "
                "command with --errors_again true to ask for these alone"
            )


if __name__ == "__main__":
    run_program(main, Config, __doc__)
