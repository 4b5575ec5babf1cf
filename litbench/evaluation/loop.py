"""Run the jobs of an evaluation, store their verdicts, and write leaderboard and manifest.

A program lists its jobs, and `evaluate` yields the verdicts of each job, read from disk if an
earlier run has stored them. A killed run loses only the job in progress, and a run with one more
rater judges only that rater.

    parts = Cache(config.out / "parts")
    jobs = [Job(spec, spec.name, lambda: pairs, artifact.digests["pairs"]) for spec in specs]
    finish_evaluation(artifact, list(evaluate(jobs, parts)), pairs, "longer")
    parts.discard_unused()
"""

import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from litbench.data.records import RATINGS, connected_prompts, prompt_keys
from litbench.data.sources.evaluation_pairs import EvaluationPairs
from litbench.data.sources.ratings import overall_ratings
from litbench.data.tables import read_table, write_table
from litbench.evaluation.report.csv_table import write_csv
from litbench.evaluation.report.leaderboard import (
    annotators_section,
    item_sections,
    leaderboard_text,
)
from litbench.evaluation.results import Evaluation, error_notes, failed_requests
from litbench.evaluation.stopping import common_pairs, rows_of, until_section
from litbench.metrics.agreement import pair_scores
from litbench.metrics.annotators import AnnotatorAgreement, annotator_agreement, annotators_json
from litbench.metrics.leaderboard import leaderboard, leaderboard_csv, plain
from litbench.raters.entries import RaterSpec
from litbench.raters.interface import (
    UNASKED,
    BlindPair,
    Estimate,
    Rater,
    blind,
    check_training_prompts,
    estimates_text,
    judge_pairs,
)
from litbench.raters.templates.parser import LETTERS
from litbench.raters.templates.template import load_template
from litbench.runs.config import as_plain
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import (
    Artifact,
    Cache,
    fingerprint,
    package_version,
    read_manifest,
    read_manifest_of,
    source_digest,
    write_json,
)
from litbench.runs.progress import ProgressBar
from litbench.runs.terminal import clean_name

_TEXT = "leaderboard.txt"
# The ways to ask a model about an item: the kind of rater, and its options.
_WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "pairs, both orders": ("judge", {}),
    "grades": ("rubric", {}),
    "one question, k rotations": ("judge", {"template": "best_of_k"}),
}
# Options of every kind of rater that asks a model.
_SHARED = {"model", "traffic", "prices", "answers", "samples"}
_RECORD = b"record"


@dataclass(frozen=True)
class Job:
    """One part of an evaluation: one rater's verdicts on some pairs.

    Attributes:
        label: name of the part's file, also shown in the progress bar.
        pairs: returns the pairs to judge.
        depends_on: plain values that change whenever the pairs to judge or to train on change, such
            as digests of files, splits, folds and seeds that select the rows.
        train: returns the pairs to train the rater on first; None if it needs no training.
        seed: seed of the training.
        fold: value of the verdicts' column `fold`.
        name: the rater's name in the verdicts; None for the entry's name.
        work: weight in the progress bar, in proportion to the time that the job takes.
        in_folds: whether other jobs train on the pairs that this one judges: the verdicts then name
            the training prompts that flip them, if the rater can tell.
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
    in_folds: bool = False


class Result(NamedTuple):
    """A job's verdicts, with the schema VERDICTS, and its record; see `evaluate`."""

    job: Job
    verdicts: pa.Table
    record: dict[str, Any]


def evaluate(
    jobs: Sequence[Job],
    parts: Cache,
    *,
    on_training_prompts: Literal["refuse", "flag"] = "refuse",
    may_stop: bool = False,
    raters: dict[str, Rater] | None = None,
) -> Iterator[Result]:
    """Judge pairs blind, job by job; intact verdicts of an earlier run are reused.

    Stored verdicts are reused if the entry's options, the files they name, the job's `depends_on`,
    `Kind.version` and the version of LitBench are unchanged, and no request failed: otherwise it is
    repeated, with the answers that are stored.

    Args:
        jobs: group the jobs of a rater that needs no training, since only the last loaded rater
            is kept in memory.
        parts: stores a Parquet file per job, with the job's record in the file's metadata; judges
            store answers and logs in the parent folder.
        on_training_prompts: refuse raters that were trained on prompts of the pairs, or flag them
            in their record. A rater trained by the job itself is always refused.
        may_stop: see `Rater.may_stop`.
        raters: keeps all loaded raters by name over several calls, for raters that are small: a
            judge counts its calls.

    Yields:
        Each job, its verdicts and its record: `notes` of the rater, `trained_on` (number of
        prompts of the pairs that it was trained on), `scope` (rates of its flags on held-out
        training stories, if known) and, if the job trained it, `pairs_used`, `prompts_used` and
        `seed`.
    """
    for job in jobs:
        job.spec.check_installed()
    # The last loaded rater. `judge` is a function so that no local variable of the loop below
    # keeps a model in memory.
    loaded: list[tuple[RaterSpec, Rater]] = []
    digest_of = cache(partial(source_digest, is_model=True))

    def load(spec: RaterSpec) -> Rater:
        if raters is not None and spec.name in raters:
            return raters[spec.name]
        if not loaded or loaded[0][0] != spec:
            loaded.clear()
            loaded.append((spec, spec.load(parts.folder.parent, may_stop=may_stop)))
        if raters is not None:
            raters[spec.name] = loaded[0][1]
        return loaded[0][1]

    def judge(job: Job, scratch: Path) -> pa.Table:
        pairs, policy = job.pairs(), on_training_prompts
        record: dict[str, Any] = {}
        if job.train is None:
            rater = load(job.spec)
        else:
            train, policy = job.train(), "refuse"
            rater = job.spec.train(train, scratch, job.seed, job.name)
            counts = {"pairs_used": len(train), "prompts_used": len(set(prompt_keys(train)))}
            record = {**counts, "seed": job.seed}
        record["trained_on"] = check_training_prompts(rater, pairs, policy)
        verdicts = judge_pairs(rater, pairs, job.fold)
        flipped_by = rater.flipped_by(blind(pairs)[0]) if job.in_folds else None
        if flipped_by is not None:
            column = pa.array(map(" ".join, flipped_by), pa.large_string())
            index = verdicts.column_names.index("flipped_by")
            verdicts = verdicts.set_column(index, "flipped_by", column)
        record = {"notes": rater.notes(), **record}
        if rater.scope is not None:
            record["scope"] = rater.scope.held_out
        return verdicts.replace_schema_metadata({_RECORD: json.dumps(as_plain(record))})

    total = sum(job.work for job in jobs)
    # `work` is a relative weight: count and rate are hidden.
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
    # Jobs differ too much for a moving average.
    with ProgressBar(total=total, desc="evaluation", bar_format=form, smoothing=0) as bar:
        for job in jobs:
            bar.set_postfix_str(job.label)
            files = {name: digest_of(path) for name, path in job.spec.files().items()}
            versions = [package_version(), job.spec.version]
            policy_or_seed = on_training_prompts if job.train is None else job.seed
            entry = [job.spec.name, job.spec.plain(), job.name]
            depends_on = [versions, entry, job.fold, files, job.depends_on, policy_or_seed]
            # The folder is named after the part, so that an interrupted training resumes.
            scratch = parts.folder / "scratch" / fingerprint(depends_on)[:16]
            table = parts.get(
                depends_on,
                partial(judge, job, scratch),
                pq.read_table,
                write_table,
                label=job.label,
                suffix=".parquet",
                is_stale=lambda verdicts: failed_requests(verdicts).num_rows,
            )
            shutil.rmtree(scratch, ignore_errors=True)
            record = json.loads(table.schema.metadata[_RECORD])
            bar.update(job.work)
            yield Result(job, table.replace_schema_metadata(), record)


def asked_pairs(verdicts: pa.Table) -> tuple[pa.Array, str]:
    """The pairs that no limit left unasked, and the first limit; empty if none was reached.

    Raises:
        ConfigError: every pair was left unasked.
    """
    ids = verdicts["pair_id"].unique()
    is_unasked = pc.and_(
        pc.equal(verdicts["outcome"], "error"),
        pc.fill_null(pc.starts_with(verdicts["explanation"], UNASKED), False),
    )
    unasked = verdicts.filter(is_unasked)
    if not unasked.num_rows:
        return ids, ""
    limit = f"{unasked['rater'][0]}: {unasked['explanation'][0].as_py().removeprefix(UNASKED)}"
    asked = ids.filter(pc.invert(pc.is_in(ids, unasked["pair_id"].unique())))
    if not len(asked):
        raise ConfigError(f"{limit}; no pair is judged in both orders by every rater")
    return asked, f"Partial: {len(asked):,} of {len(ids):,} pairs. {limit}."


def check_judged(evaluations: Iterable[Evaluation]) -> None:
    """Exit with status 1 if a rater judged nothing; ConfigError if a limit was reached."""
    for evaluation in evaluations:
        if unjudged := [row for row in evaluation.rows if not row.is_judged]:
            names = ", ".join(map(clean_name, (row.rater for row in unjudged)))
            advice = ""
            if any(row.outcomes["cut"] for row in unjudged):
                advice = ": answers were cut: raise max_tokens of the sampling"
            elif any(row.outcomes["unparsed"] for row in unjudged):
                advice = (
                    ": answers have no verdict in the form that the question asks for: read "
                    "explanation in verdicts.parquet"
                )
            print(
                f"error: {evaluation.folder}: no pair was judged by {names}{advice}",
                file=sys.stderr,
            )
            raise SystemExit(1)
        if evaluation.partial:
            raise ConfigError(f"{evaluation.folder}: {evaluation.partial}")


def is_finished(artifact: Artifact) -> bool:
    """Whether the folder holds this artifact, and no request failed; prints a line if so."""
    try:
        counts = read_manifest(artifact.folder)["counts"]
    except DataError:
        return False
    is_whole = not counts.get("errors") and not counts.get("partial")
    return is_whole and artifact.is_current()


def print_estimates(
    specs: Sequence[RaterSpec], pairs: pa.Table, folder: Path, *, dry_run: bool = True
) -> None:
    """Print the estimated cost of the judges; `folder` has stored answers."""
    estimates: list[Estimate] = []
    blinded, _ = blind(pairs)
    # Entries with a path are local models: they cost nothing and are slow to load.
    for spec in specs:
        if "path" not in spec.given and not spec.is_trained:
            estimates += spec.load(folder).estimate(blinded)
    if dry_run:
        print("dry run: no request is sent")
    if estimates:
        print(f"{pairs.num_rows:,} pairs; estimate:")
        print(estimates_text(estimates))
    if dry_run and (ways := item_estimates(specs, blinded, folder)):
        print("\nthe same items, in each way to ask:")
        print(estimates_text(ways))


def item_estimates(
    specs: Sequence[RaterSpec], pairs: Sequence[BlindPair], folder: Path
) -> list[Estimate]:
    """The cost of the ways to ask each model about items; none without three or more answers.

    One question about all answers is left out if an item has too many of them.
    """
    answers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for pair in pairs:
        if pair.item is not None:
            answers[pair.prompt, pair.item] |= {pair.first, pair.second}
    max_answers = max(map(len, answers.values()), default=0)
    if max_answers < 3:
        return []
    estimates = []
    for spec in specs:
        if spec.kind not in ("judge", "rubric"):
            continue
        template = getattr(spec.options, "template", None)
        takes_list = template is not None and load_template(template, may_take_list=True).takes_list
        for way, (kind, options) in _WAYS.items():
            if "template" in options and max_answers > len(LETTERS):
                continue
            keys = set(spec.given) if kind == spec.kind else _SHARED
            if takes_list != ("template" in options):
                keys = keys - {"template", "answer"}
            entry = options | {key: spec.given[key] for key in keys & set(spec.given)}
            rater = RaterSpec(spec.name, kind, entry).load(folder)
            estimates += [replace(row, rater=way) for row in rater.estimate(pairs)]
    return estimates


# Writing --------------------------------------------------------------------------------------


def compare_annotators(
    verdicts: pa.Table, ratings: Path, pairs: pa.Table
) -> AnnotatorAgreement | None:
    """Compute leave-one-out agreement of annotators, and of each rater with the annotators.

    `ratings` must have its manifest beside it; `pairs` are all pairs within a prompt. Returns None
    if the ratings allow no comparison.
    """
    config = read_manifest_of(ratings)["config"]
    by_annotator: dict[str, dict[str, float]] = defaultdict(dict)
    for row in overall_ratings(read_table(ratings, RATINGS)).to_pylist():
        if row["rater_kind"] == "person" and row["rating"] is not None:
            by_annotator[row["rater"]][row["story_id"]] = row["rating"]
    raters = pair_scores(verdicts, pairs)
    return annotator_agreement(
        by_annotator,
        pairs["chosen_story_id"].to_pylist(),
        pairs["rejected_story_id"].to_pylist(),
        connected_prompts(pairs),
        {scores.rater: scores.credit for scores in raters},
        trainings={scores.rater: scores.training for scores in raters},
        min_gap=config["min_gap"],
        slots=config["people"]["slots"],
    )


def finish_evaluation(
    artifact: Artifact,
    results: Sequence[Result],
    pairs: EvaluationPairs,
    reference: str,
    ratings: Path | None = None,
    *,
    is_shown: bool = True,
    until: Mapping[str, Any] | None = None,
    limit: str = "",
) -> Evaluation:
    """Write the verdicts, the leaderboard and the manifest, and print the leaderboard.

    If a limit was reached, the results are those of the pairs that every rater was asked.
    With `ratings`, also write the result of `compare_annotators` as `annotators.json`.
    With `until`, the record of `litbench.evaluation.stopping`, raters may have judged fewer pairs
    than others; `limit` is then the limit that was reached.
    """
    # Parts of earlier versions may lack a column.
    table = pa.concat_tables((result.verdicts for result in results), promote_options="default")
    asked, partial_note = asked_pairs(table)
    if partial_note:
        table = table.filter(pc.is_in(table["pair_id"], asked))
        pairs = pairs.select(asked)
    records: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        records[result.job.spec.name].append(result.record)
    trained_on = {
        name: max(part["trained_on"] for part in parts) for name, parts in records.items()
    }
    if until is None:
        rows = leaderboard(
            table,
            pairs.headline,
            reference,
            before_symmetry=pairs.before_symmetry,
            trained_on=trained_on,
        )
    else:
        rows = rows_of(table, pairs, until, trained_on)
        pairs = pairs.select(common_pairs(table))
        partial_note = f"Partial: {limit}." if limit else ""
    text = "".join(f"{line}\n\n" for line in [partial_note] if line) + leaderboard_text(rows) + "\n"
    if until is not None:
        text += f"\n{until_section(until, with_figures=False).as_text()}\n"
    for section in item_sections(table, pairs.all, reference, records):
        text += f"\n{section.as_text()}\n"
    annotators = None if ratings is None else compare_annotators(table, ratings, pairs.all)
    if annotators is not None:
        figures = annotators_json(annotators)
        text += f"\n{annotators_section(figures).as_text()}\n"
        artifact.write("annotators.json", partial(write_json, figures))
    artifact.write("verdicts.parquet", partial(write_table, table))
    artifact.write("leaderboard.json", partial(write_json, plain(rows)))
    artifact.write("leaderboard.csv", partial(write_csv, leaderboard_csv(rows)))
    artifact.write_text(_TEXT, text)
    if is_shown:
        print(text, end="")
    for note in error_notes(table):
        print(note)
    artifact.counts = {
        "pairs": pairs.headline.num_rows,
        "pairs_judged": pairs.all.num_rows,
        "verdicts": table.num_rows,
        "errors": failed_requests(table).num_rows,
        "partial": partial_note,
        "trained_on": trained_on,
        "raters": records,
    }
    if until is not None:
        artifact.counts["until_decided"] = until
    artifact.finish()
    evaluation = Evaluation.of(artifact)
    evaluation.pairs, evaluation.verdicts, evaluation.rows = pairs, table, rows
    return evaluation


def finished_evaluation(artifact: Artifact) -> Evaluation:
    """Print the stored leaderboard of an evaluation that is current, and return it."""
    print((artifact.folder / _TEXT).read_text(encoding="utf-8"), end="")
    return Evaluation.of(artifact)
