"""An evaluation's files: verdicts in parts that survive a kill, then table, leaderboard, manifest.

A program lists its jobs, and `evaluate` yields the verdicts of each: read where an earlier run has
judged them, else judged and kept. A killed run loses the part under way; a run with one more rater
judges only that rater.

    parts = VerdictParts(config.out / "parts")
    jobs = [Job(spec, spec.name, lambda: pairs, artifact.digests["pairs"]) for spec in specs]
    for job, verdicts, record in evaluate(jobs, parts):
        ...
    artifact.finish()
    parts.discard_others()
"""

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from litbench.artifact import (
    Artifact,
    file_digest,
    fingerprint,
    is_output,
    read_manifest,
    source_digest,
    write_atomically,
    write_json,
)
from litbench.errors import ConfigError, DataError
from litbench.metrics.leaderboard import (
    LeaderboardRow,
    leaderboard,
    leaderboard_json,
    leaderboard_text,
    write_leaderboard_csv,
)
from litbench.raters import (
    Asks,
    Estimate,
    Rater,
    RaterSpec,
    Trainer,
    files_of,
    judge_pairs,
    kinds,
    load_rater,
    load_trainer,
    prompts_seen,
)
from litbench.records import PAIRS, VERDICTS, prompt_keys
from litbench.tables import read_table, write_table

# Raise it when a change of the code gives other verdicts from the same options and data: kept parts
# of every kind are then judged again. `Kind.version` does the same for one kind of rater.
LOOP_VERSION = 1

_TEXT = "leaderboard.txt"
_MOST_LABEL_BYTES = 120


@dataclass
class EvaluationPairs:
    """The pairs of an evaluation.

    Attributes:
        headline: the pairs the leaderboard stands on.
        before_symmetry: a superset without the last filter, or None.
    """

    headline: pa.Table
    before_symmetry: pa.Table | None

    @property
    def all(self) -> pa.Table:
        """The pairs that raters judge."""
        return self.headline if self.before_symmetry is None else self.before_symmetry

    def without_texts(self) -> "EvaluationPairs":
        """The same pairs with only the first letter of each story.

        Figures ask whether there is a text and no more, and texts are most of the memory.
        """

        def shorten(table: pa.Table) -> pa.Table:
            for side in ("chosen", "rejected"):
                letters = pc.utf8_slice_codeunits(table[side], 0, 1)
                table = table.set_column(table.column_names.index(side), side, letters)
            return table

        wider = self.before_symmetry
        return EvaluationPairs(shorten(self.headline), None if wider is None else shorten(wider))


def read_pairs(pairs: Path, before_symmetry: Path | None, split: str | None) -> EvaluationPairs:
    """Read the pairs of an evaluation.

    Raises:
        DataError: no pair of that split, or `before_symmetry` lacks some of `pairs`.
    """

    def one(path: Path) -> pa.Table:
        table = read_table(path, PAIRS)
        if split is None:
            return table
        keep = [name == split for name in table["split"].to_pylist()]
        if not any(keep):
            there = sorted(set(table["split"].to_pylist()))
            raise DataError(f"{path}: no pair of split '{split}': it has {there}")
        return table.filter(pa.array(keep))

    headline = one(pairs)
    wider = None if before_symmetry is None else one(before_symmetry)
    if wider is not None:
        lacking = set(headline["pair_id"].to_pylist()) - set(wider["pair_id"].to_pylist())
        if lacking:
            raise DataError(
                f"{before_symmetry} lacks {len(lacking)} pairs of {pairs}, such as {min(lacking)}: "
                "both files must come from one run of make_pairs.py"
            )
    return EvaluationPairs(headline, wider)


@dataclass(frozen=True)
class Judged:
    """A finished evaluation, on disk.

    Attributes:
        folder: what eval/benchmark.py, eval/crossvalidate.py or eval/recorded.py wrote.
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
                f"{folder}: its manifest is of no evaluation: give a folder of eval/benchmark.py, "
                "eval/crossvalidate.py or eval/recorded.py"
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
        """Its verdicts."""
        return read_table(self.verdicts_path, VERDICTS)

    def read_pairs(self) -> EvaluationPairs:
        """The pairs that were judged."""
        return read_pairs(self.pairs_path, self.before_symmetry_path, self.split)

    def leaderboard(self, verdicts: pa.Table, pairs: EvaluationPairs) -> list[LeaderboardRow]:
        """Every figure anew, from what the two methods before returned."""
        return leaderboard(
            verdicts,
            pairs.headline,
            self.reference,
            before_symmetry=pairs.before_symmetry,
            trained_on=self.manifest["counts"]["trained_on"],
        )

    def humans(self) -> dict[str, Any] | None:
        """What eval/recorded.py found about the people, where they rated one by one."""
        path = self.folder / "humans.json"
        if not is_output(self.manifest, path):
            return None
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def manifest_of_pairs(self) -> dict[str, Any] | None:
        """That of the program that wrote the pairs; None where they are from elsewhere."""
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
        A pairs table; None where neither file nor split is named.

    Raises:
        ConfigError: a prompt of theirs is trained on, or known.
        DataError: see `read_pairs`.
    """
    if path is None and split is None:
        return None
    held_out = read_pairs(path or pairs, None, split).headline
    shared = set(prompt_keys(held_out)) & (known | set(prompt_keys(training)))
    if shared:
        seen = next(
            prompt
            for prompt, key in zip(
                held_out["prompt"].to_pylist(), prompt_keys(held_out), strict=True
            )
            if key in shared
        )
        raise ConfigError(
            f"{len(shared)} prompts of the pairs to evaluate on are trained on, here or by the "
            f"backbone before, such as {seen!r:.80}: name another evaluation_split or "
            "evaluation_pairs, or train on a split"
        )
    return held_out


def check_training_prompts(rater: Rater, pairs: pa.Table, when: str) -> int:
    """Count the prompts of `pairs` a rater was trained on.

    Args:
        rater: any rater.
        pairs: the pairs it is to judge.
        when: refuse or flag.

    Raises:
        ConfigError: there are some and `when` is refuse.
    """
    seen = prompts_seen(rater, pairs)
    if seen and when == "refuse":
        raise ConfigError(
            f"rater {rater.name} was trained on {len(seen)} of the prompts of these pairs, such as "
            f"{seen[0]!r:.80}: evaluate it on other prompts, or set on_training_prompts to flag"
        )
    return len(seen)


def ready_rater(spec: RaterSpec, folder: Path) -> Rater:
    """Load a rater that is ready to judge.

    Args:
        spec: its entry.
        folder: of the evaluation, where one that `Asks` keeps answers and logs.
    """
    rater = load_rater(spec)
    if isinstance(rater, Asks):
        rater.work_in(folder)
    return rater


def estimates_text(estimates: Sequence[Estimate]) -> str:
    """What asking would take, for a terminal: a row for each model, and the sum."""

    def dollars(values: Sequence[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{sum(known):.2f}" if len(known) == len(values) else "not known"

    def row(name: str, some: Sequence[Estimate]) -> tuple[str, ...]:
        counts = ("calls", "known", "input_tokens", "output_tokens")
        return (
            name,
            *(f"{sum(getattr(one, count) for one in some):,}" for count in counts),
            dollars([one.cost_usd for one in some]),
            dollars([one.most_cost_usd for one in some]),
            f"{sum(one.seconds for one in some) / 60:.1f}",
        )

    rows: list[tuple[str, ...]] = [
        ("judge", "calls", "stored", "tokens in", "tokens out", "$", "$ at most", "minutes")
    ]
    rows += [
        row(f"{one.rater} ({one.model}){', at most' if one.is_bound else ''}", [one])
        for one in estimates
    ]
    if len(estimates) > 1:
        rows.append(row("all", estimates))
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["dry run: nothing is asked"]
    for name, *numbers in rows:
        cells = [n.rjust(width) for n, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *cells]))
    lines.append(
        "one token for four bytes; answers of the usual length, or of that of the stored ones; "
        "minutes by stored answers or a guess"
    )
    if len({one.model for one in estimates}) < len(estimates):
        lines.append("a question that several raters put to one model is counted for each of them")
    return "\n".join(lines)


def errors_in(verdicts: pa.Table) -> int:
    """How many verdicts are errors."""
    count: int = pc.sum(pc.equal(verdicts["outcome"], "error")).as_py()
    return count or 0


@dataclass
class VerdictParts:
    """Verdict tables in a folder, each named by the fingerprint of all that it depends on.

    A part is a Parquet file and a JSON record of it, which holds a digest of both. A part that is
    incomplete or damaged is made again.

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
        name = f"{readable}-{fingerprint(depends_on)[:16]}"
        self.used.add(name)
        found = self._read(name)
        if found is not None and not (errors_again and errors_in(found[0])):
            return found
        table, record = make()
        table_path, record_path = self._paths(name)
        write_atomically(table_path, lambda path: write_table(table, path))
        sha256 = fingerprint(file_digest(table_path), record)
        # The record last: its digest says that the part is complete.
        write_json({"sha256": sha256, "record": record}, record_path)
        return table, record

    def get_or_train(
        self,
        label: str,
        depends_on: Any,
        work: Callable[[Path], tuple[pa.Table, dict[str, Any]]],
        *,
        errors_again: bool = False,
    ) -> tuple[pa.Table, dict[str, Any]]:
        """Goes when every program has moved to `evaluate`."""
        scratch = self.scratch(depends_on)
        return self.get_or_make(label, depends_on, lambda: work(scratch), errors_again=errors_again)

    def discard_others(self) -> None:
        """Remove the parts of earlier configs and unfinished trainings."""
        shutil.rmtree(self.folder.parent / "scratch", ignore_errors=True)
        for path in self.folder.glob("*"):
            if path.suffix in (".parquet", ".json") and path.stem not in self.used:
                path.unlink()

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"{name}.parquet", self.folder / f"{name}.json"

    def _read(self, name: str) -> tuple[pa.Table, dict[str, Any]] | None:
        table_path, record_path = self._paths(name)
        if not (table_path.exists() and record_path.exists()):
            return None
        try:
            content = json.loads(record_path.read_text(encoding="utf-8"))
            record = content["record"]
            is_whole = content["sha256"] == fingerprint(file_digest(table_path), record)
        except (ValueError, KeyError, TypeError):
            is_whole = False
        if not is_whole:
            tqdm.write(f"{table_path}: damaged, made again")
            return None
        return read_table(table_path, VERDICTS), record


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


def evaluate(
    jobs: Sequence[Job],
    parts: VerdictParts,
    *,
    on_training_prompts: Literal["refuse", "flag"] = "refuse",
    errors_again: bool = False,
) -> Iterator[tuple[Job, pa.Table, dict[str, Any]]]:
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
        Each job, its verdicts (schema VERDICTS) and its record: `notes` of the rater, `trained_on`
        (prompts of the pairs that it was trained on) and, where it was trained here, `pairs_used`,
        `prompts_used` and `seed`.

    Raises:
        ConfigError: a rater was trained on prompts of the pairs.
        DataError: a rater cannot read the pairs.
    """
    loaded: dict[str, Rater] = {}
    digests = {
        name: source_digest(path, is_model=True)
        for name, path in files_of(job.spec for job in jobs).items()
    }

    def judge(job: Job, scratch: Path) -> tuple[pa.Table, dict[str, Any]]:
        pairs = job.pairs()
        if job.train is None:
            if job.spec.name not in loaded:
                loaded.clear()
                loaded[job.spec.name] = ready_rater(job.spec, parts.folder.parent)
            rater = loaded[job.spec.name]
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

    with tqdm(
        total=sum(job.work for job in jobs),
        desc="evaluation",
        unit=" pairs",
        unit_scale=True,
        leave=False,
        disable=None,
    ) as bar:
        for job in jobs:
            bar.set_postfix_str(job.label)
            depends_on = [
                LOOP_VERSION, kinds()[job.spec.kind].version, job.spec, job.name, job.fold,
                {name: digests[name] for name in files_of([job.spec])}, job.depends_on,
                on_training_prompts if job.train is None else [job.seed],
            ]  # fmt: skip
            scratch = parts.scratch(depends_on)
            table, record = parts.get_or_make(
                job.label, depends_on, partial(judge, job, scratch), errors_again=errors_again
            )
            shutil.rmtree(scratch, ignore_errors=True)
            bar.update(job.work)
            yield job, table, record


def finish_evaluation(
    artifact: Artifact,
    verdicts: list[pa.Table],
    records: Mapping[str, list[dict[str, Any]]],
    pairs: EvaluationPairs,
    reference: str,
) -> list[LeaderboardRow]:
    """Write verdicts, the leaderboard as JSON, CSV and text, and the manifest; print.

    Args:
        artifact: of the program.
        verdicts: the parts.
        records: per rater, the record of each of its parts; keys `notes` and `trained_on`.
        pairs: what was judged.
        reference: rater that others are compared with.
    """
    table = pa.concat_tables(verdicts)
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
    artifact.write("verdicts.parquet", lambda path: write_table(table, path))
    artifact.write("leaderboard.json", lambda path: write_json(leaderboard_json(rows), path))
    artifact.write("leaderboard.csv", lambda path: write_leaderboard_csv(rows, path))
    text = leaderboard_text(rows) + "\n"
    artifact.write(_TEXT, lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = {
        "pairs": pairs.headline.num_rows,
        "pairs_judged": pairs.all.num_rows,
        "verdicts": table.num_rows,
        "trained_on": trained_on,
        "raters": dict(records),
    }
    artifact.finish()
    print(text, end="")
    return rows


def print_leaderboard(folder: Path) -> None:
    """Print the leaderboard of an evaluation that is current."""
    print((folder / _TEXT).read_text(encoding="utf-8"), end="")


# Until every program has moved to `evaluate` ---------------------------------------------------

JUDGING_CODE = ("raters.py", "records.py", "text.py", "models", "judges", "templates", "curation")
named_models = files_of


@contextlib.contextmanager
def trained(
    trainer: Trainer,
    spec: RaterSpec,
    train: pa.Table,
    held_out: pa.Table,
    folder: Path,
    seed: int,
    name: str | None = None,
) -> Iterator[Rater]:
    """Train a rater for as long as it judges."""
    rater = trainer(name or spec.name, spec.options, train, folder, seed, spec.where)
    check_training_prompts(rater, held_out, "refuse")
    yield rater
    shutil.rmtree(folder, ignore_errors=True)
