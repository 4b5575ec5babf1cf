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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

from litbench.artifact import (
    Artifact,
    fingerprint,
    is_output,
    read_manifest,
    read_manifest_of,
    read_part,
    source_digest,
    write_json,
    write_part,
)
from litbench.config import as_plain
from litbench.errors import ConfigError, DataError
from litbench.metrics.agreement import pair_scores
from litbench.metrics.annotators import AnnotatorAgreement, annotator_agreement, annotators_json
from litbench.metrics.csv_table import write_csv
from litbench.metrics.leaderboard import (
    LeaderboardRow,
    leaderboard,
    leaderboard_csv,
    leaderboard_json,
)
from litbench.metrics.printing import annotators_text, leaderboard_text, text_table
from litbench.raters import (
    Asks,
    Estimate,
    Rater,
    RaterSpec,
    blind,
    files_of,
    is_ready,
    judge_pairs,
    kinds,
    load_rater,
    load_trainer,
    prompts_seen,
)
from litbench.records import PAIRS, VERDICTS, prompt_keys
from litbench.sources.ratings import RATINGS, ROUNDING
from litbench.tables import read_table, write_table

# Raise it when a change of the code gives other verdicts from the same options and data: kept parts
# of every kind are then judged again. `Kind.version` does the same for one kind of rater.
LOOP_VERSION = 1

_TEXT = "leaderboard.txt"
_RECORD = b"record"
_MOST_LABEL_BYTES = 120


@dataclass(frozen=True)
class EvaluationPairs:
    """The pairs of an evaluation.

    Attributes:
        headline: the pairs of the leaderboard.
        before_symmetry: a superset without the last filter, or None.
        within_prompts: a superset, all pairs within a prompt, on which annotators are compared; or
            None.
        unlabelled: pairs left out of `headline`, since the means of their ratings are equal.
    """

    headline: pa.Table
    before_symmetry: pa.Table | None = None
    within_prompts: pa.Table | None = None
    unlabelled: int = 0

    @property
    def all(self) -> pa.Table:
        """The pairs that raters judge."""
        wider = (self.within_prompts, self.before_symmetry, self.headline)
        return next(table for table in wider if table is not None)


def read_pairs(
    pairs: Path, before_symmetry: Path | None, split: str | None, ratings: Path | None = None
) -> EvaluationPairs:
    """Read the pairs of an evaluation.

    Args:
        pairs: the pairs file.
        before_symmetry: the pairs before the last filter, or None.
        split: only pairs of this split; None for all.
        ratings: `ratings.parquet` of data_prep/import_ratings.py, for the pairs beside it.
    """

    def one(path: Path) -> pa.Table:
        table = read_table(path, PAIRS)
        if split is None:
            return table
        of_split = table.filter(pc.equal(table["split"], split))
        if not of_split.num_rows:
            there = sorted(set(table["split"].to_pylist()))
            raise DataError(f"{path}: no pair of split '{split}': it has {there}")
        return of_split

    if before_symmetry is not None and ratings is not None:
        raise ConfigError("before_symmetry and ratings are given: leave one of them out")
    given = one(pairs)
    headline = given.filter(pa.array(~_equal_ratings(given)))
    unlabelled = given.num_rows - headline.num_rows
    other = before_symmetry or (None if ratings is None else _all_pairs_path(ratings))
    if other is None:
        return EvaluationPairs(headline, unlabelled=unlabelled)
    wider = one(other)
    lacking = set(headline["pair_id"].to_pylist()) - set(wider["pair_id"].to_pylist())
    if lacking:
        raise DataError(
            f"{other} lacks {len(lacking)} pairs of {pairs}, such as {min(lacking)}: both files "
            "must come from one run of one program"
        )
    kind = "before_symmetry" if ratings is None else "within_prompts"
    return EvaluationPairs(headline, unlabelled=unlabelled, **{kind: wider})


def _equal_ratings(pairs: pa.Table) -> np.ndarray:
    """Whether the mean ratings of both stories are equal, so that there is no label; shape (n,)."""
    names = [name for name in ("chosen_rating", "rejected_rating") if name in pairs.column_names]
    if len(names) < 2 or not all(pa.types.is_floating(pairs[name].type) for name in names):
        return np.zeros(pairs.num_rows, dtype=bool)
    one, other = (pairs[name].to_numpy() for name in names)
    equal: np.ndarray = np.abs(one - other) <= ROUNDING
    return equal


def _all_pairs_path(ratings: Path) -> Path:
    return ratings.parent / "all_pairs.parquet"


def input_files(
    pairs: Path, before_symmetry: Path | None = None, ratings: Path | None = None
) -> dict[str, Path]:
    """The files that `read_pairs` reads, by the keys of a config."""
    found = {"pairs": pairs}
    if before_symmetry is not None:
        found["before_symmetry"] = before_symmetry
    if ratings is not None:
        found |= {"ratings": ratings, "all_pairs": _all_pairs_path(ratings)}
    return found


@dataclass(frozen=True)
class Judged:
    """A finished evaluation, on disk.

    Attributes:
        folder: what eval/benchmark.py or eval/crossvalidate.py wrote, of one set of pairs.
        manifest: of it.
        pairs_path: the pairs that were judged, unchanged since.
        before_symmetry_path: the pairs before the last filter, where they were judged too.
    """

    folder: Path
    manifest: dict[str, Any]
    pairs_path: Path
    before_symmetry_path: Path | None

    @classmethod
    def find(cls, folder: Path) -> "Judged":
        """Find an evaluation.

        Raises:
            DataError: the folder holds none, or its pairs have changed since.
        """
        manifest = read_manifest(folder)
        try:
            path, judged = (manifest["inputs"]["pairs"][key] for key in ("path", "sha256"))
            wider = manifest["inputs"].get("before_symmetry", {}).get("path")
            manifest["config"]["reference"], manifest["counts"]["trained_on"]
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{folder}: its manifest is of no evaluation: give a folder of eval/benchmark.py "
                "or eval/crossvalidate.py, of several sets the folder of one"
            ) from error
        if source_digest(Path(path)) != judged:
            raise DataError(f"{path} has changed since {folder} judged it: evaluate it again")
        return cls(folder, manifest, Path(path), None if wider is None else Path(wider))

    @property
    def verdicts_path(self) -> Path:
        """The file of its verdicts."""
        return self.folder / "verdicts.parquet"

    @property
    def reference(self) -> str:
        """The rater that the others were compared with."""
        named: str = self.manifest["config"]["reference"]
        return named

    @property
    def split(self) -> str | None:
        """The split whose pairs were judged; None for all."""
        named: str | None = self.manifest["config"].get("split")
        return named

    def inputs(self, name: str = "") -> dict[str, Path]:
        """What a program that reads it depends on, by name; of several, each has its own."""
        start = f"{name}: " if name else ""
        return {
            f"{start}evaluation": self.folder / "manifest.json",
            f"{start}verdicts": self.verdicts_path,
            f"{start}pairs": self.pairs_path,
        }

    def read_verdicts(self) -> pa.Table:
        """Its verdicts, by the schema VERDICTS."""
        return read_table(self.verdicts_path, VERDICTS)

    def read_pairs(self) -> EvaluationPairs:
        """The pairs that were judged."""
        return read_pairs(self.pairs_path, self.before_symmetry_path, self.split)

    def leaderboard(self, verdicts: pa.Table, pairs: EvaluationPairs) -> list[LeaderboardRow]:
        """Compute every figure anew."""
        return leaderboard(
            verdicts,
            pairs.headline,
            self.reference,
            before_symmetry=pairs.before_symmetry,
            trained_on=self.manifest["counts"]["trained_on"],
        )

    def annotators(self) -> dict[str, Any] | None:
        """`annotators.json`; None where there is none."""
        path = self.folder / "annotators.json"
        if not is_output(self.manifest, path):
            return None
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def manifest_of_pairs(self) -> dict[str, Any] | None:
        """The manifest of the program that wrote the pairs; None for pairs from elsewhere."""
        if not (self.pairs_path.parent / "manifest.json").is_file():
            return None
        beside = read_manifest(self.pairs_path.parent)
        return beside if is_output(beside, self.pairs_path) else None


def read_held_out(
    path: Path | None,
    split: str | None,
    training: pa.Table,
    pairs: Path,
    known: frozenset[str] = frozenset(),
) -> pa.Table | None:
    """Read the pairs that a model is to judge once it is trained; before training, to fail early.

    Args:
        path: pairs file; that of the training pairs when None.
        split: only pairs of this split; None for all.
        training: the pairs to train on.
        pairs: their file.
        known: `prompt_key` of further prompts that the model knows, such as its backbone's.

    Returns:
        A pairs table without the prompts of training; None where neither file nor split is named.
    """
    if path is None and split is None:
        return None
    held_out = read_pairs(path or pairs, None, split).headline
    trained_on = known | set(prompt_keys(training))
    texts = zip(held_out["prompt"].to_pylist(), prompt_keys(held_out), strict=True)
    shared = {key: prompt for prompt, key in texts if key in trained_on}
    if shared:
        raise ConfigError(
            f"{len(shared)} prompts of the pairs to evaluate on are trained on, here or by the "
            f"backbone before, such as {min(shared.values())!r:.80}: name another evaluation_split "
            "or evaluation_pairs, or train on a split"
        )
    return held_out


def check_training_prompts(rater: Rater, pairs: pa.Table, when: str) -> int:
    """Count the prompts of `pairs` that a rater was trained on; with "refuse" they are an error."""
    seen = prompts_seen(rater, pairs)
    if seen and when == "refuse":
        raise ConfigError(
            f"rater {rater.name} was trained on {len(seen)} of the prompts of these pairs, such as "
            f"{seen[0]!r:.80}: evaluate it on other prompts, or set on_training_prompts to flag"
        )
    return len(seen)


def ready_rater(spec: RaterSpec, folder: Path) -> Rater:
    """Load a rater that is ready to judge; one that `Asks` keeps answers and logs in `folder`."""
    rater = load_rater(spec)
    if isinstance(rater, Asks):
        rater.work_in(folder)
    return rater


def print_estimates(specs: Sequence[RaterSpec], pairs: pa.Table, folder: Path) -> None:
    """Print what judging would take, without sending requests; `folder` has stored answers."""
    blinded, estimates = blind(pairs)[0], []
    # An entry that names a path is a model on this machine, which takes long to load.
    for spec in specs:
        if not is_ready(spec) and isinstance(rater := ready_rater(spec, folder), Asks):
            estimates += rater.estimate(blinded)
    print(f"{pairs.num_rows:,} pairs, both orders")
    print(estimates_text(estimates) if estimates else "dry run: no rater sends requests")


def estimates_text(estimates: Sequence[Estimate]) -> str:
    """What asking would take, for a terminal: a row for each model, and the sum of dollars."""

    def dollars(values: Sequence[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{sum(known):.2f}" if len(known) == len(values) else "not known"

    heading = ("judge", "calls", "stored", "tokens in", "tokens out", "$", "$ at most", "minutes")
    rows = [
        (
            f"{one.rater} ({one.model})",
            *(f"{n:,}" for n in (one.calls, one.known, one.input_tokens, one.output_tokens)),
            dollars([one.cost_usd]),
            dollars([one.most_cost_usd]),
            f"{one.seconds / 60:.1f}",
        )
        for one in estimates
    ]
    costs, most = ([getattr(e, key) for e in estimates] for key in ("cost_usd", "most_cost_usd"))
    return "\n".join(
        [
            "dry run: no request is sent",
            *text_table([heading, *rows]),
            f"$ {dollars(costs)} in all, $ {dollars(most)} at most; by one token for four bytes, "
            "and by answers of the usual length or of that of the stored ones",
        ]
    )


def errors_in(verdicts: pa.Table) -> int:
    """How many verdicts are errors."""
    count: int = pc.sum(pc.equal(verdicts["outcome"], "error")).as_py()
    return count or 0


@dataclass
class VerdictParts:
    """Verdict tables in a folder, each named by the fingerprint of all that it depends on.

    The record about a part is in the metadata of its Parquet file. A part that is incomplete or
    damaged is made again.

    Attributes:
        folder: where the parts lie.
        used: names of the parts of this run; `discard_others` removes the rest.
    """

    folder: Path
    used: set[str] = field(default_factory=set)

    def scratch(self, depends_on: Any) -> Path:
        """The folder of an unfinished training; an interrupted run finds its checkpoints there."""
        return self.folder.parent / "scratch" / fingerprint(depends_on)

    def get_or_make(
        self,
        label: str,
        depends_on: Any,
        make: Callable[[], tuple[pa.Table, dict[str, Any]]],
        *,
        errors_again: bool = False,
    ) -> tuple[pa.Table, dict[str, Any]]:
        """Read a part, or make and keep it.

        Args:
            label: readable start of its name.
            depends_on: plain values; other values name another part.
            make: returns the verdicts and a JSON record about them.
            errors_again: make a part again that has errors among its verdicts.
        """
        # A rater may be named after its model, as owner/model.
        readable = re.sub(r"[^-.+=@ \w]", "_", label)
        # File names end at 255 bytes, and the fingerprint tells equal starts apart.
        readable = readable.encode()[:_MOST_LABEL_BYTES].decode(errors="ignore")
        path = self.folder / f"{readable}-{fingerprint(depends_on)[:16]}.parquet"
        self.used.add(path.name)
        table = read_part(path, pq.read_table)
        if table is None or (errors_again and errors_in(table)):
            table, record = make()
            described = table.replace_schema_metadata({_RECORD: json.dumps(as_plain(record))})
            write_part(path, lambda part: write_table(described, part))
            return table, record
        record = json.loads(table.schema.metadata[_RECORD])
        return table.replace_schema_metadata(), record

    def discard_others(self) -> None:
        """Remove the parts of earlier configs and unfinished trainings."""
        shutil.rmtree(self.folder.parent / "scratch", ignore_errors=True)
        for path in self.folder.glob("*.*"):
            if path.name.removesuffix(".sha256") not in self.used:
                path.unlink()


@dataclass(frozen=True)
class Job:
    """One part of an evaluation: one rater's verdicts on some pairs.

    Attributes:
        spec: the rater's entry in the config.
        label: name of the part, for its file and the progress bar; unique in an evaluation.
        pairs: returns the pairs to judge.
        depends_on: plain values that differ when the pairs to judge or to train on differ, such as
            digests of files, splits, folds and seeds that choose the rows.
        train: returns the pairs to train the rater on first; None for a rater that is ready.
        seed: of the training.
        fold: written into the column of that name.
        name: the rater's name in the verdicts, where it is not the entry's.
        work: share of the progress bar, such as the number of pairs to train on and to judge.
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


def evaluate(
    jobs: Sequence[Job],
    parts: VerdictParts,
    *,
    on_training_prompts: Literal["refuse", "flag"] = "refuse",
    errors_again: bool = False,
) -> Iterator[Result]:
    """Judge pairs blind, job by job; what an earlier run has judged is read.

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
    loaded: list[tuple[RaterSpec, Rater]] = []
    digest_of = cache(partial(source_digest, is_model=True))

    def judge(job: Job, scratch: Path) -> tuple[pa.Table, dict[str, Any]]:
        pairs = job.pairs()
        if job.train is None:
            if not loaded or loaded[0][0] != job.spec:
                loaded.clear()
                loaded.append((job.spec, ready_rater(job.spec, parts.folder.parent)))
            rater = loaded[0][1]
            record = {"trained_on": check_training_prompts(rater, pairs, on_training_prompts)}
        else:
            trainer, train = load_trainer(job.spec), job.train()
            assert trainer is not None, f"{job.spec.where} has nothing to train"
            name, spec = job.name or job.spec.name, job.spec
            rater = trainer(name, spec.options, train, scratch, job.seed, spec.where)
            record = {
                "trained_on": check_training_prompts(rater, pairs, "refuse"),
                "pairs_used": train.num_rows,
                "prompts_used": len(set(prompt_keys(train))),
                "seed": job.seed,
            }
        verdicts = judge_pairs(rater, pairs, job.fold)
        return verdicts, {"notes": rater.notes(), **record}

    total = sum(job.work for job in jobs)
    with tqdm(total=total, desc="evaluation", unit=" pairs", unit_scale=True, disable=None) as bar:
        for job in jobs:
            bar.set_postfix_str(job.label)
            depends_on = [
                LOOP_VERSION, kinds()[job.spec.kind].version, job.spec, job.name, job.fold,
                {name: digest_of(path) for name, path in files_of([job.spec]).items()},
                job.depends_on,
                on_training_prompts if job.train is None else [job.seed],
            ]  # fmt: skip
            scratch = parts.scratch(depends_on)
            table, record = parts.get_or_make(
                job.label, depends_on, partial(judge, job, scratch), errors_again=errors_again
            )
            shutil.rmtree(scratch, ignore_errors=True)
            bar.update(job.work)
            yield Result(job, table, record)


def compare_annotators(
    verdicts: pa.Table, ratings: Path, pairs: pa.Table
) -> AnnotatorAgreement | None:
    """One annotator, and each rater, against the other annotators; None where that cannot be told.

    Args:
        verdicts: of all raters, on these pairs.
        ratings: `ratings.parquet` of data_prep/import_ratings.py, its manifest beside it.
        pairs: all pairs within a prompt.
    """
    made = read_manifest_of(ratings)["config"]
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
        min_gap=made["min_gap"],
        slots=made["people"].get("slots", False),
    )


def finish_evaluation(
    artifact: Artifact,
    results: Sequence[Result],
    pairs: EvaluationPairs,
    reference: str,
    ratings: Path | None = None,
) -> None:
    """Write verdicts, the leaderboard as JSON, CSV and text, and the manifest; print.

    Args:
        artifact: of the program.
        results: of `evaluate`.
        pairs: what was judged.
        reference: rater that others are compared with.
        ratings: see `compare_annotators`, whose figures are written as `annotators.json`.
    """
    table = pa.concat_tables(result.verdicts for result in results)
    records: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        records[result.job.spec.name].append(result.record)
    trained_on = {
        rater: max(part.get("trained_on", 0) for part in parts) for rater, parts in records.items()
    }
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
        content = annotators_json(found)
        artifact.write("annotators.json", lambda path: write_json(content, path))
    artifact.write("verdicts.parquet", lambda path: write_table(table, path))
    artifact.write("leaderboard.json", lambda path: write_json(leaderboard_json(rows), path))
    artifact.write("leaderboard.csv", lambda path: write_csv(leaderboard_csv(rows), path))
    artifact.write(_TEXT, lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = {
        "pairs": pairs.headline.num_rows,
        "pairs_judged": pairs.all.num_rows,
        "pairs_unlabelled": pairs.unlabelled,
        "verdicts": table.num_rows,
        "trained_on": trained_on,
        "raters": records,
    }
    artifact.finish()
    print(text, end="")


def print_leaderboard(folder: Path) -> None:
    """Print the leaderboard of an evaluation that is current."""
    print((folder / _TEXT).read_text(encoding="utf-8"), end="")


def print_errors(rater: str, verdicts: pa.Table) -> None:
    """Say how many of a rater's verdicts are errors, and how to ask for them again."""
    if errors := errors_in(verdicts):
        print(
            f"{rater}: {errors:,} of {verdicts.num_rows:,} verdicts are errors: run the same "
            "command with --errors_again true to ask for these alone"
        )
