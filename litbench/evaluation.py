"""An evaluation's files: verdicts in parts that survive a kill, then table, leaderboard, manifest.

A program lists its jobs, and `evaluate` yields the verdicts of each: read where an earlier run has
judged them, else judged and kept. A killed run loses the part under way; a run with one more rater
judges only that rater.

    parts = VerdictParts(config.out / "parts")
    jobs = [Job(spec, spec.name, lambda: pairs, artifact.digests["pairs"]) for spec in specs]
    finish_evaluation(artifact, list(evaluate(jobs, parts)), pairs, "longer")
    parts.discard_others()
"""

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

from litbench.artifact import (
    Artifact,
    fingerprint,
    read_manifest_of,
    read_part,
    source_digest,
    write_json,
    write_part,
)
from litbench.config import as_plain
from litbench.evaluation_pairs import EvaluationPairs
from litbench.metrics.agreement import pair_scores
from litbench.metrics.annotators import AnnotatorAgreement, annotator_agreement, annotators_json
from litbench.metrics.csv_table import write_csv
from litbench.metrics.leaderboard import leaderboard, leaderboard_csv, leaderboard_json
from litbench.metrics.printing import annotators_text, leaderboard_text, text_table, write_dollars
from litbench.raters import (
    Estimate,
    Rater,
    RaterSpec,
    blind,
    check_training_prompts,
    files_of,
    judge_pairs,
    kinds,
    load_rater,
)
from litbench.records import prompt_keys
from litbench.sources.ratings import RATINGS
from litbench.tables import read_table, write_table

# Raise it when a change of the code gives other verdicts from the same options and data: kept parts
# of every kind are then judged again. `Kind.version` does the same for one kind of rater.
LOOP_VERSION = 1

_TEXT = "leaderboard.txt"
_RECORD = b"record"


@dataclass(frozen=True)
class Job:
    """One part of an evaluation: one rater's verdicts on some pairs.

    Attributes:
        label: name of the part, for its file and the progress bar.
        pairs: returns the pairs to judge.
        depends_on: plain values that differ when the pairs to judge or to train on differ, such as
            digests of files, splits, folds and seeds that choose the rows.
        train: returns the pairs to train the rater on first; None for a rater that is ready.
        seed: of the training.
        fold: written into the column of that name.
        name: the rater's name in the verdicts, where it is not the entry's.
        work: share of the progress bar, such as the number of pairs.
    """

    spec: RaterSpec
    label: str
    pairs: Callable[[], pa.Table]
    depends_on: Any
    train: Callable[[], pa.Table] | None = None
    seed: int = 0
    fold: str | None = None
    name: str | None = None
    work: float = 1


class Result(NamedTuple):
    """A job's verdicts, by the schema VERDICTS, and its record; see `evaluate`."""

    job: Job
    verdicts: pa.Table
    record: dict[str, Any]


@dataclass
class VerdictParts:
    """Where verdicts are kept: a file for each job, its record in the metadata of the Parquet file.

    `discard_others` removes the files that this run has not `used`.
    """

    folder: Path
    used: set[str] = field(default_factory=set)

    def path(self, label: str, depends_on: Any, ending: str = "parquet") -> Path:
        """The file of a part, named by the fingerprint of all that it depends on."""
        # A rater may be named after its model, as owner/model; the fingerprint tells labels apart.
        readable = re.sub(r"[^-.+=@ \w]", "_", label)[:40]
        path = self.folder / f"{readable}-{fingerprint(depends_on)[:16]}.{ending}"
        self.used.add(path.name)
        return path

    def discard_others(self) -> None:
        """Remove the parts of earlier configs and unfinished trainings."""
        shutil.rmtree(self.folder.parent / "scratch", ignore_errors=True)
        for path in self.folder.glob("*.*"):
            if path.name.removesuffix(".sha256") not in self.used:
                path.unlink()


def evaluate(
    jobs: Sequence[Job],
    parts: VerdictParts,
    *,
    on_training_prompts: Literal["refuse", "flag"] = "refuse",
    errors_again: bool = False,
) -> Iterator[Result]:
    """Judge pairs blind, job by job; what an earlier run has judged is read, unless it is damaged.

    What a kept part depends on: the entry's options, the files that it names (see `files_of`), the
    job's own `depends_on`, and two version numbers, `Kind.version` and `LOOP_VERSION`.

    Args:
        jobs: what to judge; jobs of one rater that is ready go one after the other, since only the
            rater loaded last is kept in memory.
        parts: where verdicts are kept; answers and logs of judges go beside it.
        on_training_prompts: refuse a ready rater that was trained on prompts of the pairs, or flag
            it in its record. A rater trained here is always refused.
        errors_again: judge again what has errors among its verdicts.

    Yields:
        Each job, its verdicts and its record: `notes` of the rater, `trained_on` (prompts of the
        pairs that it was trained on) and, where it was trained here, `pairs_used`, `prompts_used`
        and `seed`.
    """
    loaded: tuple[RaterSpec, Rater] | None = None
    digest_of = cache(partial(source_digest, is_model=True))
    total = sum(job.work for job in jobs)
    with tqdm(total=total, desc="evaluation", unit=" pairs", unit_scale=True, disable=None) as bar:
        for job in jobs:
            bar.set_postfix_str(job.label)
            spec = job.spec
            files = {name: digest_of(path) for name, path in files_of([spec]).items()}
            way = on_training_prompts if job.train is None else job.seed
            versions = [LOOP_VERSION, kinds()[spec.kind].version]
            depends_on = [versions, spec, job.name, job.fold, files, job.depends_on, way]
            path = parts.path(job.label, depends_on)
            table = read_part(path, pq.read_table)
            if table is not None and not (errors_again and errors_in(table)):
                record = json.loads(table.schema.metadata[_RECORD])
            else:
                pairs, scratch = job.pairs(), parts.folder.parent / "scratch" / path.stem
                if job.train is None:
                    if loaded is None or loaded[0] != spec:
                        # Free the last one's memory first.
                        loaded = None
                        loaded = spec, load_rater(spec)
                        loaded[1].work_in(parts.folder.parent)
                    rater, when, record = loaded[1], on_training_prompts, {}
                else:
                    train = job.train()
                    # An interrupted run finds its checkpoints in the same folder.
                    rater, when = spec.train(train, scratch, job.seed, job.name), "refuse"
                    counts = {
                        "pairs_used": len(train),
                        "prompts_used": len(set(prompt_keys(train))),
                    }
                    record = {**counts, "seed": job.seed}
                record["trained_on"] = check_training_prompts(rater, pairs, when)
                table = judge_pairs(rater, pairs, job.fold)
                record["notes"] = rater.notes()
                described = table.replace_schema_metadata({_RECORD: json.dumps(as_plain(record))})
                write_part(path, partial(write_table, described))
                shutil.rmtree(scratch, ignore_errors=True)
            bar.update(job.work)
            yield Result(job, table.replace_schema_metadata(), record)


def errors_in(verdicts: pa.Table) -> int:
    """How many verdicts are errors."""
    return int(pc.sum(pc.equal(verdicts["outcome"], "error")).as_py() or 0)


def print_errors(results: Iterable[Result]) -> None:
    """Say which raters have errors among their verdicts, and how to ask for them again."""
    for job, table, _ in results:
        # A story that a recorded judge never rated stays without a rating.
        if job.spec.kind != "recorded" and (errors := errors_in(table)):
            print(
                f"{job.spec.name}: {errors:,} of {table.num_rows:,} verdicts are errors: run the "
                "same command with --errors_again true to ask for these alone"
            )


def print_estimates(specs: Sequence[RaterSpec], pairs: pa.Table, folder: Path) -> None:
    """Print what judging would take, without sending requests; `folder` has stored answers."""
    estimates: list[Estimate] = []
    # An entry that names a path is a model on this machine, which takes long to load.
    for spec in specs:
        if "path" not in spec.options and not spec.is_trained:
            rater = load_rater(spec)
            rater.work_in(folder)
            estimates += rater.estimate(blind(pairs)[0])
    print(f"{pairs.num_rows:,} pairs, both orders\ndry run: no request is sent")
    heading = ("judge", "calls", "stored", "tokens in", "tokens out", "$", "$ at most", "minutes")
    rows = [
        (
            f"{one.rater} ({one.model})",
            *(f"{n:,}" for n in (one.calls, one.known, one.input_tokens, one.output_tokens)),
            *(write_dollars(n) for n in (one.cost_usd, one.most_cost_usd)),
            f"{one.seconds / 60:.1f}",
        )
        for one in estimates
    ]
    if rows:
        print(*text_table([heading, *rows]), sep="\n")


# Writing --------------------------------------------------------------------------------------


def compare_annotators(
    verdicts: pa.Table, ratings: Path, pairs: pa.Table
) -> AnnotatorAgreement | None:
    """One annotator, and each rater, against the other annotators; None where that cannot be told.

    The manifest is beside `ratings`; `pairs` are all pairs within a prompt.
    """
    config = read_manifest_of(ratings)["config"]
    by_annotator: dict[str, dict[str, float]] = defaultdict(dict)
    for row in read_table(ratings, RATINGS).to_pylist():
        if row["rater_kind"] == "person" and row["rating"] is not None:
            by_annotator[row["rater"]][row["story_id"]] = row["rating"]
    return annotator_agreement(
        by_annotator,
        pairs["chosen_story_id"].to_pylist(),
        pairs["rejected_story_id"].to_pylist(),
        prompt_keys(pairs),
        {scores.rater: scores.credit for scores in pair_scores(verdicts, pairs)},
        min_gap=config["min_gap"],
        slots=config["people"].get("slots", False),
    )


def finish_evaluation(
    artifact: Artifact,
    results: Sequence[Result],
    pairs: EvaluationPairs,
    reference: str,
    ratings: Path | None = None,
) -> None:
    """Write verdicts, the leaderboard as JSON, CSV and text, and the manifest; print.

    With `ratings`, what `compare_annotators` finds is written as `annotators.json`.
    """
    table = pa.concat_tables(result.verdicts for result in results)
    records: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        records[result.job.spec.name].append(result.record)
    trained_on = {name: max(part["trained_on"] for part in of) for name, of in records.items()}
    rows = leaderboard(
        table,
        pairs.headline,
        reference,
        before_symmetry=pairs.before_symmetry,
        trained_on=trained_on,
    )
    text = leaderboard_text(rows) + "\n"
    found = None if ratings is None else compare_annotators(table, ratings, pairs.all)
    if found is not None:
        text += f"\n{annotators_text(found)}\n"
        artifact.write("annotators.json", partial(write_json, annotators_json(found)))
    artifact.write("verdicts.parquet", partial(write_table, table))
    artifact.write("leaderboard.json", partial(write_json, leaderboard_json(rows)))
    artifact.write("leaderboard.csv", partial(write_csv, leaderboard_csv(rows)))
    artifact.write(_TEXT, lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = {
        "pairs": pairs.headline.num_rows,
        "pairs_judged": pairs.all.num_rows,
        "verdicts": table.num_rows,
        "trained_on": trained_on,
        "raters": records,
    }
    artifact.finish()
    print(text, end="")


def print_leaderboard(folder: Path) -> None:
    """Print the leaderboard of an evaluation that is current."""
    print((folder / _TEXT).read_text(encoding="utf-8"), end="")
