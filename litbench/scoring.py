"""Scoring files of any size: the same rows with rewards, in chunks that survive a kill.

    score_files(ScoringJob(spec, ("stories.jsonl",), Path("scored.parquet")))

Rows are read once into an Arrow file beside the output and cut into chunks whose borders depend on
the rows alone. A chunk's rewards are kept under the fingerprint of all that they depend on, so a
killed run loses the chunks under way. Ranks, shares and the size of the prompt part come from a
second pass on disk. Several processes, as `accelerate launch` starts them, take the chunks in turn
and meet in that folder; the first one reads and finishes.

Batches never reach over a chunk's border, and within a chunk they depend on its rows and the
rater's options. So the output has the same bytes whether or not a run was killed, and whatever the
number of processes, as long as rater, options, device and threads of each process are the same.
With another batch size or device rewards agree to 1e-5 in fp32 and not to the last bit.
"""

import contextlib
import fcntl
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from litbench.artifact import (
    code_digest,
    file_digest,
    fingerprint,
    source_digest,
    versions,
    write_atomically,
    write_json,
)
from litbench.config import as_plain
from litbench.crew import Crew
from litbench.errors import ConfigError, DataError
from litbench.evaluation import JUDGING_CODE, named_models
from litbench.raters import (
    RaterSpec,
    ScoreRater,
    check_options,
    load_rater,
    parse_raters,
)
from litbench.records import Column, Schema, prompt_keys
from litbench.tables import (
    CHUNK_BYTES,
    RejectedRows,
    cut_rows,
    read_large_table,
    row_sizes,
    write_sorted_batches,
    write_table,
)
from litbench.text import digest

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".csv")
CHUNK_STORIES = 1_024
ADDED = ("reward", "rank_within_prompt", "beats_reference")
_ROWS_FILE, _RECORD_FILE, _SET_ASIDE_FILE = "rows.arrow", "record.json", "rejected.jsonl"
_LOCK_FILE = "lock"
_READING_CODE = ("tables.py", "records.py", "text.py")
# Of the pass that ranks; what exceeds it goes to disk.
_MEMORY_LIMIT = "1GB"
_LEVELS_AT_ONCE = 65_536


@dataclass(frozen=True)
class ScoringJob:
    """What to score, with what, and where the result goes.

    Attributes:
        rater: a rater of a kind that gives rewards.
        inputs: tables (Parquet, JSONL, CSV, a folder saved by `datasets`, a data set's name), or
            text files and folders of them, one story to a file; read as one table in this order.
        out: Parquet, JSONL or CSV, by its ending.
        prompt_column: the column that holds the prompt.
        text_column: the column that holds the story.
        prompt: the prompt of all stories, for text files.
        where: SQL condition (DuckDB) on a row of the input; others are left out.
        reference: a table of human stories of the same prompts, in columns of the same names.
        reference_where: likewise for `reference`.
        chunk_stories: most stories of a chunk.
    """

    rater: RaterSpec
    inputs: tuple[str, ...]
    out: Path
    prompt_column: str = "prompt"
    text_column: str = "text"
    prompt: str | None = None
    where: str | None = None
    reference: str | None = None
    reference_where: str | None = None
    chunk_stories: int = CHUNK_STORIES

    def __post_init__(self) -> None:
        """Refuse what could only fail after hours.

        Raises:
            ConfigError: see the messages.
        """
        if self.out.suffix not in SUFFIXES:
            raise ConfigError(
                f"the output {self.out} ends in '{self.out.suffix}': end it in one of "
                f"{', '.join(SUFFIXES)}"
            )
        if self.chunk_stories < 1:
            raise ConfigError(f"a chunk of {self.chunk_stories} stories: take at least 1")
        if self.prompt_column == self.text_column:
            raise ConfigError(
                f"prompt and story are both in column '{self.text_column}': name two columns"
            )
        if {self.prompt_column, self.text_column} & set(ADDED):
            raise ConfigError(f"{', '.join(ADDED)} are written anew: rename the input's column")
        if self.reference_where is not None and self.reference is None:
            raise ConfigError("a condition on the reference needs a reference: name the file")
        if self.out.is_dir():
            raise ConfigError(f"the output {self.out} is a folder: name a file")
        if not self.inputs:
            raise ConfigError("there is nothing to score: name an input")
        sources = [*self.inputs, *([] if self.reference is None else [self.reference])]
        for written in (self.out, self.manifest, self.rejected_rows):
            if any(Path(source).resolve() == written.resolve() for source in sources):
                raise ConfigError(f"{written} is input and output: name another output")
        texts = [source for source in self.inputs if is_text(source)]
        if texts and len(texts) < len(self.inputs):
            raise ConfigError(f"{texts[0]} is text and others are tables: score them apart")
        if texts and self.prompt is None:
            raise ConfigError(f"{texts[0]} holds a story without its prompt: give the prompt")
        if not texts and self.prompt is not None:
            raise ConfigError(
                f"a prompt is given for the table {self.inputs[0]}, which has one in each row: "
                "leave it out, or give text files"
            )
        if self.reference is not None and is_text(self.reference):
            raise ConfigError(
                f"the reference {self.reference} is text: give a table with columns "
                f"{self.prompt_column} and {self.text_column}"
            )

    @property
    def schema(self) -> Schema:
        """What a row needs; everything else in it is kept."""
        return Schema(
            "stories to score",
            (
                Column(self.prompt_column, "text", "the prompt's text", required=True),
                Column(self.text_column, "text", "the story's text", required=True),
            ),
            key=(),
        )

    @property
    def target(self) -> Path:
        """The file that is written: `out`, or what it links to."""
        return self.out.resolve() if self.out.is_symlink() else self.out

    @property
    def parts(self) -> Path:
        """The folder of what is kept until the output is whole; on the output's own disk."""
        return self.target.with_name(f"{self.target.name}.parts")

    @property
    def manifest(self) -> Path:
        """What made the output."""
        return self.out.with_name(f"{self.out.name}.manifest.json")

    @property
    def rejected_rows(self) -> Path:
        """The rows that could not be scored, each with its reason; absent when there is none."""
        return self.out.with_name(f"{self.out.name}.rejected.jsonl")


# Raters with rewards -------------------------------------------------------------------------


def scorer_entry(
    model: str, device: str | None = None, batch_tokens: int | None = None
) -> dict[str, Any]:
    """The entry of a config for a model folder, whose kind is told by its files.

    Args:
        model: a folder of a feature model, a stack, an ensemble or a reward model, or the name of
            a reward model on the Hub.
        device: such as cuda or cpu, for a reward model.
        batch_tokens: most tokens of one forward pass, for a reward model.

    Raises:
        ConfigError: device or batch_tokens for another kind, or a mixture of an unknown kind.
    """
    folder = Path(model)
    kind = "reward"
    if (folder / "features.json").exists():
        kind = "features"
    elif (folder / "mixture.json").exists():
        try:
            kind = json.loads((folder / "mixture.json").read_text(encoding="utf-8"))["kind"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{folder}/mixture.json does not tell its kind ({error}): train it again"
            ) from error
    options = {"device": device, "batch_tokens": batch_tokens}
    given = {key: value for key, value in options.items() if value is not None}
    if given and kind != "reward":
        raise ConfigError(
            f"{model} is of kind {kind}, and {', '.join(given)} is for a reward model: leave it out"
        )
    return {"kind": kind, "path": model, **given}


def scorer_spec(entry: Any) -> RaterSpec:
    """Check a rater's entry, as a config has it below its name; see `litbench.raters`.

    Raises:
        ConfigError: no such kind, or options that do not fit it.
    """
    kind = str(entry["kind"]) if isinstance(entry, Mapping) and "kind" in entry else "rater"
    (spec,) = parse_raters({kind: entry})
    check_options(spec, "raters")
    return spec


def load_scorer(spec: RaterSpec) -> ScoreRater:
    """Load a rater that gives each story a reward of its own.

    Raises:
        ConfigError: it gives verdicts on pairs only.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and named_models([spec]):
        _choose_device(int(os.environ.get("LOCAL_RANK", "0")))
    rater = load_rater(spec)
    if not isinstance(rater, ScoreRater):
        raise ConfigError(
            f"a rater of kind '{spec.kind}' gives verdicts on pairs and no rewards: take one with "
            "rewards, such as reward, features, stack or ensemble, or compare stories in pairs "
            "with eval/benchmark.py"
        )
    return rater


def _choose_device(local_rank: int) -> None:
    """Let `cuda` mean this process's own GPU."""
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())


def finite_rewards(rater: ScoreRater, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
    """A rater's rewards, each of which is a number; float64, shape (n,).

    Raises:
        DataError: a reward is not finite.
    """
    rewards = np.asarray(rater.score(prompts, stories), dtype=np.float64)
    finite = np.isfinite(rewards)
    if not finite.all():
        place = int(np.argmin(finite))
        raise DataError(
            f"rater {rater.name}: {int((~finite).sum())} of {len(rewards)} rewards are not "
            f"finite, the first of the story {stories[place]!r:.60}: check the model's weights "
            "and precision"
        )
    return rewards


def rewards_depend_on(spec: RaterSpec) -> dict[str, Any]:
    """What a rater's rewards depend on beside prompts, stories and their batches; plain values.

    Args:
        spec: its entry; `load_scorer` was called before, so that the device is known.
    """
    torch = sys.modules.get("torch")
    device = ""
    if torch is not None:
        device = str(spec.options.get("device") or ("cuda" if torch.cuda.is_available() else "cpu"))
    found = named_models([spec])
    return {
        "rater": as_plain(spec),
        "models": {key: source_digest(path, is_model=True) for key, path in found.items()},
        "device": device,
        "versions": versions(),
        "code": code_digest(__file__, *JUDGING_CODE),
    }


# Reading -------------------------------------------------------------------------------------


def is_text(source: str) -> bool:
    """Whether a source is a text file, or a folder with text files and no saved data set."""
    path = Path(source)
    if path.is_dir():
        saved = any((path / name).exists() for name in ("state.json", "dataset_dict.json"))
        return not saved and next(path.rglob("*.txt"), None) is not None
    return path.suffix == ".txt"


def _readable(path: Path) -> str:
    """A path as a table can hold it: on disk it is bytes, which need not be UTF-8."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def _text_files(sources: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Every text file with the name that its row gets."""
    for source in sources:
        path = Path(source)
        if path.is_dir():
            for inner in sorted(path.rglob("*.txt")):
                yield _readable(inner.relative_to(path)), inner
        elif path.is_file():
            yield _readable(Path(path.name)), path
        else:
            raise DataError(f"there is no file {source}: check the path")


def _digest(source: str) -> str:
    """Digest of what is read of a source: of a folder of text files these alone.

    Whatever else lies there, such as this very output, is not read.
    """
    if not (is_text(source) and Path(source).is_dir()):
        return source_digest(source)
    return fingerprint([[name, source_digest(file)] for name, file in _text_files([source])])


def _gather_texts(job: ScoringJob, path: Path, rejected_rows: RejectedRows) -> None:
    """Write the stories of text files as one table with columns prompt, text and `file`."""
    assert job.prompt is not None
    names = (job.prompt_column, job.text_column, "file")
    schema = pa.schema([(name, pa.large_string()) for name in names])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        waiting: list[dict[str, str]] = []
        size = 0

        def flush() -> None:
            nonlocal size
            writer.write_table(pa.Table.from_pylist(waiting, schema))
            waiting.clear()
            size = 0

        for name, file in _text_files(job.inputs):
            try:
                if file.stat().st_size > CHUNK_BYTES:
                    rejected_rows.add(
                        _readable(file), 1, "(file)", f"larger than {CHUNK_BYTES:,} bytes"
                    )
                    continue
                story = file.read_text(encoding="utf-8-sig")
            except UnicodeDecodeError as error:
                found = f"at byte {error.start}"
                rejected_rows.add(_readable(file), 1, "(file)", "bytes that are not UTF-8", found)
                continue
            except OSError as error:
                raise DataError(f"cannot read {file} ({error}): check your access") from error
            # An editor ends a file with a line break that is no part of the story.
            story = story.rstrip("\n")
            if not story.strip():
                rejected_rows.add(_readable(file), 1, "(file)", "no text")
                continue
            waiting.append(dict(zip(names, (job.prompt, story, name), strict=True)))
            size += len(story)
            if len(waiting) >= CHUNK_STORIES or size >= CHUNK_BYTES:
                flush()
        flush()
    if pq.read_metadata(path).num_rows == 0:
        raise DataError(f"{job.inputs[0]}: no usable text file: {rejected_rows.counts()}")


@dataclass(frozen=True)
class _Rows:
    """Rows on disk in chunks of fixed borders.

    Attributes:
        folder: where they lie.
        record: what was counted when they were read.
    """

    folder: Path
    record: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path) -> "_Rows":
        return cls(folder, json.loads((folder / _RECORD_FILE).read_text(encoding="utf-8")))

    @property
    def ends(self) -> list[int]:
        """The row after each chunk."""
        return list(self.record["ends"])

    @property
    def num_rows(self) -> int:
        return self.ends[-1]

    def chunks(self, indices: Iterable[int]) -> Iterator[tuple[int, pa.Table]]:
        """Read some chunks: the number of each one's first row, and its rows."""
        starts = [0, *self.ends]
        with pa.OSFile(str(self.folder / _ROWS_FILE)) as file:
            opened = pa.ipc.open_file(file)
            for index in indices:
                yield starts[index], pa.Table.from_batches([opened.get_batch(index)])

    @property
    def schema(self) -> pa.Schema:
        with pa.OSFile(str(self.folder / _ROWS_FILE)) as file:
            return pa.ipc.open_file(file).schema


def _cut(tables: Iterable[pa.Table], most_rows: int) -> Iterator[pa.RecordBatch]:
    """Cut rows into chunks whose borders do not depend on how the rows came."""
    waiting: pa.Table | None = None
    for table in tables:
        waiting = table if waiting is None else pa.concat_tables([waiting, table])
        ends = cut_rows(row_sizes(waiting), most_rows, CHUNK_BYTES)
        start = 0
        # The last group may still grow.
        for end in ends[:-1]:
            yield waiting.slice(start, end - start).combine_chunks().to_batches()[0]
            start = end
        waiting = waiting.slice(start)
    if waiting is not None:
        yield waiting.combine_chunks().to_batches()[0]


def _fits(kind: pa.DataType, suffix: str) -> bool:
    """Whether a format holds the values of a type."""
    if suffix == ".parquet":
        return True
    if pa.types.is_dictionary(kind):
        return _fits(kind.value_type, suffix)
    if pa.types.is_nested(kind):
        inner = (kind.field(place).type for place in range(kind.num_fields))
        return suffix != ".csv" and all(_fits(one, suffix) for one in inner)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    if is_bytes or pa.types.is_fixed_size_binary(kind) or pa.types.is_interval(kind):
        return False
    return suffix == ".csv" or not (pa.types.is_duration(kind) or pa.types.is_time(kind))


def _read(
    job: ScoringJob,
    sources: Sequence[str],
    where: str | None,
    folder: Path,
    *,
    as_text: bool,
    is_written: bool,
) -> None:
    """Read sources into a folder, which appears when it is whole.

    Raises:
        DataError: see `score_files`; the rows are to be written, and have a column that the
            output's format cannot hold.
    """
    names = (job.prompt_column, job.text_column)
    try:
        with tempfile.TemporaryDirectory(prefix=".part-", dir=job.parts) as scratch:
            ready, large = Path(scratch) / "rows", Path(scratch) / "large"
            ready.mkdir()
            large.mkdir()
            rejected_rows = RejectedRows()
            if as_text:
                gathered = Path(scratch) / "texts.parquet"
                _gather_texts(job, gathered, rejected_rows)
                sources = [str(gathered)]
            table = read_large_table(
                sources, job.schema, large, columns={name: name for name in names},
                rejected_rows=rejected_rows, where=where,
            )  # fmt: skip
            for one in table.schema if is_written else ():
                if one.name not in ADDED and not _fits(one.type, job.out.suffix):
                    # Said now and not after hours of scoring.
                    raise DataError(
                        f"{sources[0]}: column '{one.name}' ({one.type}) does not fit into "
                        f"{job.out.name}: write .parquet, or leave the column out"
                    )
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            ends: list[int] = []
            with pa.ipc.new_file(ready / _ROWS_FILE, table.schema, options=options) as writer:
                for batch in _cut(table.chunks(), job.chunk_stories):
                    writer.write_batch(batch)
                    ends.append((ends[-1] if ends else 0) + batch.num_rows)
            rejected_rows.write(ready / _SET_ASIDE_FILE)
            record = {
                "ends": ends,
                "rejected_rows": rejected_rows.counts(),
                "not_selected": rejected_rows.not_selected,
            }
            write_json(record, ready / _RECORD_FILE)
            ready.replace(folder)
    except OSError as error:
        raise DataError(
            f"cannot keep rows in {job.parts} ({error}): free space or choose another output"
        ) from error


# Rewards -------------------------------------------------------------------------------------


def _without_cut(notes: Any) -> tuple[Any, int]:
    """A rater's notes without its counts of stories cut, and their sum.

    They are of one process since its start, and a run may be of several.
    """
    if not isinstance(notes, Mapping):
        return notes, 0
    kept, total = {}, 0
    for key, value in notes.items():
        if key == "stories_cut":
            total += int(value)
            continue
        kept[key], inner = _without_cut(value)
        total += inner
    return kept, total


class _Rewards:
    """Rewards of chunks, one file for each.

    Args:
        rows: of which they are.
        folder: named by all that the rewards depend on.
    """

    def __init__(self, rows: _Rows, folder: Path) -> None:
        self.rows = rows
        self._folder = folder
        self._ends = rows.ends
        self._missing = dict.fromkeys(range(len(self._ends)))

    def _path(self, index: int) -> Path:
        return self._folder / f"{index:07d}.parquet"

    def missing(self) -> list[int]:
        """The chunks that are not there yet."""
        here = {entry.name for entry in os.scandir(self._folder)}
        self._missing = {i: None for i in self._missing if self._path(i).name not in here}
        return list(self._missing)

    def done(self) -> int:
        """How many stories have a reward."""
        missing = self.missing()
        starts = [0, *self._ends]
        return self._ends[-1] - sum(self._ends[i] - starts[i] for i in missing)

    def make(self, job: ScoringJob, rater: ScoreRater, crew: Crew, what: str) -> None:
        """Score this process's share of the missing chunks; the first one waits for the others."""
        mine = [index for index in self.missing() if index % crew.count == crew.index]
        with tqdm(
            total=self._ends[-1], initial=self.done(), desc=what, unit=" stories",
            disable=None if crew.leads else True,
        ) as bar:  # fmt: skip
            for index, (start, table) in zip(mine, self.rows.chunks(mine), strict=True):
                self._score(job, rater, index, start, table)
                if crew.leads:
                    bar.update(self.done() - bar.n)

            def all_there() -> bool:
                bar.update(self.done() - bar.n)
                return not self._missing

            if crew.leads:
                crew.wait(all_there, f"the chunks of the other processes in {self._folder}")

    def _score(
        self, job: ScoringJob, rater: ScoreRater, index: int, start: int, table: pa.Table
    ) -> None:
        prompts = table[job.prompt_column].to_pylist()
        stories = table[job.text_column].to_pylist()
        before = _without_cut(rater.notes())[1]
        # Minus zero is zero, also to what compares rewards bit by bit.
        rewards = finite_rewards(rater, prompts, stories) + 0.0
        found = pa.table(
            {
                "row": np.arange(start, start + len(rewards)),
                "prompt_key": pa.array(
                    prompt_keys(pa.table({"prompt": table[job.prompt_column]})), pa.string()
                ),
                "text_key": pa.array([digest(story) for story in stories], pa.string()),
                "reward": rewards,
            }
        )
        cut = _without_cut(rater.notes())[1] - before
        found = found.replace_schema_metadata({"stories_cut": str(cut)})
        write_atomically(self._path(index), lambda path: pq.write_table(found, path))

    def tables(self) -> Iterator[tuple[pa.Table, int]]:
        """The chunks in order, and how many stories of each were cut."""
        for index in range(len(self._ends)):
            table = pq.read_table(self._path(index))
            yield table, int(table.schema.metadata[b"stories_cut"])


# The second pass: what takes all rows at once ------------------------------------------------


@dataclass(frozen=True)
class PromptPart:
    """How much of the differences between rewards are differences between prompts.

    Attributes:
        share: of the rewards' variance that lies between prompts, 0 to 1; None where it cannot be
            told, as when no prompt has two stories.
        stories: how many stories.
        prompts: how many prompts.
    """

    share: float | None
    stories: int
    prompts: int

    @classmethod
    def of(
        cls, stories: int, prompts: int, squares: float, between: float, within: float
    ) -> "PromptPart":
        """One-way random effects: the intraclass correlation, by the analysis of variance.

            share = s / (s + MSW),  s = max(0, (MSB - MSW) / n0),
            MSB = between / (k - 1),  MSW = within / (N - k),  n0 = (N - sum(n^2) / N) / (k - 1)

        with N stories of k prompts and n stories of each (Searle, Casella and McCulloch, Variance
        Components, 1992, section 3.6, for groups of unequal size). Unlike between / (between +
        within) it does not grow only because each prompt has few stories.

        Args:
            stories: N.
            prompts: k.
            squares: sum of n^2.
            between: sum over prompts of n (their mean - the mean of all)^2.
            within: sum over stories of (reward - their prompt's mean)^2.
        """
        if prompts < 2 or stories == prompts:
            return cls(None, stories, prompts)
        mean_within = within / (stories - prompts)
        size = (stories - squares / stories) / (prompts - 1)
        component = max(0.0, (between / (prompts - 1) - mean_within) / size)
        total = component + mean_within
        return cls(component / total if total > 0 else None, stories, prompts)

    def __str__(self) -> str:
        size = (
            "how large it is here cannot be told"
            if self.share is None
            else f"here {self.share:.0%} of the rewards' variance lies between prompts"
        )
        return (
            "rewards can be compared within a prompt only: each prompt has a free offset, and "
            f"{size} ({self.stories:,} stories, {self.prompts:,} prompt{'s' * (self.prompts != 1)})"
        )


class _Ranking:
    """Ranks, shares and the prompt part of all rewards, by way of the disk."""

    def __init__(self, folder: Path, rewards: Mapping[str, _Rewards]) -> None:
        import duckdb  # noqa: PLC0415

        self._connection = duckdb.connect(str(folder / "ranking.duckdb"))
        self._connection.execute(f"SET memory_limit = '{_MEMORY_LIMIT}'")
        self._connection.execute("SET temp_directory = ?", [str(folder / "duckdb")])
        self._connection.execute("SET preserve_insertion_order = false")
        self._connection.execute(
            "CREATE TABLE everyone (row BIGINT, prompt_key VARCHAR, text_key VARCHAR, "
            "reward DOUBLE, is_reference BOOLEAN)"
        )
        self.stories_cut = {
            key: self._add(one, is_reference=key == "reference") for key, one in rewards.items()
        }
        self._rank(folder)

    def _add(self, rewards: _Rewards, *, is_reference: bool) -> int:
        cut = 0
        for table, cut_here in rewards.tables():
            cut += cut_here
            self._connection.register("chunk", table)
            self._connection.execute("INSERT INTO everyone SELECT *, ? FROM chunk", [is_reference])
            self._connection.unregister("chunk")
        return cut

    def _rank(self, folder: Path) -> None:
        # Windows over all stories of a prompt take minutes where there is one prompt. So equal
        # rewards of a prompt are a level, levels are counted up in order, and joins do the rest.
        levels = folder / "levels.parquet"
        self._count_up(levels)
        # Of the human stories of the prompt it beats those with a lower reward, and half of those
        # with an equal one. It is not compared with its own copies among them.
        self._connection.execute(
            "CREATE TABLE placed AS WITH levels AS (FROM read_parquet(?)), prompts AS ("
            "  SELECT prompt_key, max(stories_to) AS last, min(humans_to - humans) AS before,"
            "  sum(humans) AS met FROM levels GROUP BY prompt_key"
            "), copies AS ("
            "  SELECT prompt_key, text_key, reward, count(*) AS n FROM everyone"
            "  WHERE is_reference GROUP BY ALL"
            "), own AS ("
            "  SELECT row, sum(n) AS own, sum(CASE WHEN copies.reward < everyone.reward THEN n"
            "  WHEN copies.reward = everyone.reward THEN n / 2.0 ELSE 0 END) AS own_below"
            "  FROM everyone JOIN copies USING (prompt_key, text_key)"
            "  WHERE NOT is_reference GROUP BY row"
            ") SELECT row, reward, 1 + last - stories_to AS rank,"
            " CASE WHEN met > ifnull(own, 0) THEN (humans_to - humans / 2.0 - before"
            " - ifnull(own_below, 0)) / (met - ifnull(own, 0)) END AS beats"
            " FROM everyone JOIN levels USING (prompt_key, reward) JOIN prompts USING (prompt_key)"
            " LEFT JOIN own USING (row) WHERE NOT is_reference ORDER BY row",
            [str(levels)],
        )

    def _count_up(self, path: Path) -> None:
        """Write each prompt's different rewards, rising, with how many stories came until then."""
        batches = self._connection.sql(
            "SELECT prompt_key, reward, count(*) FILTER (NOT is_reference) AS stories,"
            " count(*) FILTER (is_reference) AS humans FROM everyone GROUP BY prompt_key, reward"
            " ORDER BY prompt_key, reward"
        ).to_arrow_reader(_LEVELS_AT_ONCE)
        counts = ("stories", "humans")
        schema = batches.schema
        for name in counts:
            schema = schema.append(pa.field(f"{name}_to", pa.int64()))
        before = dict.fromkeys(counts, 0)
        with pq.ParquetWriter(path, schema) as writer:
            for batch in batches:
                columns = list(batch.columns)
                for name in counts:
                    until = before[name] + np.cumsum(batch.column(name).to_numpy())
                    before[name] = int(until[-1])
                    columns.append(pa.array(until, pa.int64()))
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

    def prompt_part(self) -> PromptPart:
        """See `PromptPart`."""
        (row,) = self._connection.sql(
            "SELECT sum(n), count(*), sum(n * n), sum(n * power(mean - grand, 2)),"
            " sum(n * variance) FROM"
            " (SELECT count(*) AS n, avg(reward) AS mean, var_pop(reward) AS variance"
            "  FROM everyone WHERE NOT is_reference GROUP BY prompt_key),"
            " (SELECT avg(reward) AS grand FROM everyone WHERE NOT is_reference)"
        ).fetchall()
        stories, prompts, *sums = row
        return PromptPart.of(int(stories), int(prompts), *map(float, sums))

    def compared(self) -> int:
        """How many stories have human ones to be compared with."""
        ((count,),) = self._connection.sql("SELECT count(beats) FROM placed").fetchall()
        return int(count)

    def columns(self, start: int, end: int) -> pa.Table:
        """The added columns of rows from `start` to before `end`."""
        return self._connection.sql(
            "SELECT reward, rank AS rank_within_prompt, beats AS beats_reference"
            " FROM placed WHERE row >= ? AND row < ? ORDER BY row",
            params=[start, end],
        ).to_arrow_table()

    def close(self) -> None:
        self._connection.close()


def _scored(
    job: ScoringJob, rows: _Rows, ranking: _Ranking
) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """The output's columns, and its rows chunk by chunk."""
    added = ADDED if job.reference is not None else ADDED[:2]
    kept = [field for field in rows.schema if field.name not in ADDED]
    types = (pa.float64(), pa.int64(), pa.float64())
    schema = pa.schema([*kept, *zip(added, types, strict=False)])

    def chunks() -> Iterator[pa.Table]:
        for start, table in rows.chunks(range(len(rows.ends))):
            found = ranking.columns(start, start + table.num_rows)
            columns = [table[field.name] for field in kept]
            columns += [found[name].cast(schema.field(name).type) for name in added]
            yield pa.table(columns, schema)

    return schema, chunks()


def _holds_fractions(kind: pa.DataType) -> bool:
    """Whether values of a type may be floating-point numbers, or hold some."""
    if pa.types.is_dictionary(kind):
        return _holds_fractions(kind.value_type)
    if pa.types.is_nested(kind):
        return any(_holds_fractions(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def _finite(value: Any) -> tuple[Any, int]:
    """A value as JSON can hold it, and how many numbers became null: JSON has no NaN."""
    if isinstance(value, float):
        return (value, 0) if math.isfinite(value) else (None, 1)
    if isinstance(value, dict):
        inner, lost = _finite(list(value.values()))
        return dict(zip(value, inner, strict=True)), lost
    if isinstance(value, list | tuple):
        pairs = [_finite(one) for one in value]
        return type(value)(one for one, _ in pairs), sum(lost for _, lost in pairs)
    return value, 0


def _for_json(table: pa.Table, lost: Counter[str]) -> pa.Table:
    """Rows as JSON can hold them; `lost` counts by column the numbers that became null."""
    for place, one in enumerate(table.schema):
        if _holds_fractions(one.type):
            values, found = _finite(table[one.name].to_pylist())
            if found:
                lost[one.name] += found
                table = table.set_column(place, one, pa.array(values, one.type))
    return table


def _write(
    schema: pa.Schema, chunks: Iterator[pa.Table], job: ScoringJob, path: Path
) -> dict[str, int]:
    """Write chunks as one file of the format that its ending names; pieces stand beside it.

    Returns:
        By column, how many numbers are null in JSONL, which has neither NaN nor infinity.
    """
    lost: Counter[str] = Counter()
    if path.suffix == ".parquet":
        batches = (batch for chunk in chunks for batch in chunk.to_batches())
        write_sorted_batches(pa.RecordBatchReader.from_batches(schema, batches), job.schema, path)
        return lost
    # One writer decides what a row looks like, here as elsewhere; it writes whole files.
    piece = path.with_name(f"piece{path.suffix}")
    with path.open("wb") as file:
        write_table(schema.empty_table(), piece)
        heading = piece.read_bytes()
        file.write(heading)
        for chunk in chunks:
            write_table(chunk if path.suffix == ".csv" else _for_json(chunk, lost), piece)
            with piece.open("rb") as written:
                written.seek(len(heading))
                shutil.copyfileobj(written, file)
    return lost


# The whole job -------------------------------------------------------------------------------


def _current(job: ScoringJob, mark: str) -> dict[str, Any] | None:
    """The manifest, where the output is that of this very job."""
    try:
        manifest: Any = json.loads(job.manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(manifest, dict) or manifest.get("fingerprint") != mark:
        return None
    if not job.out.exists():
        return None
    return manifest if manifest["output"]["sha256"] == file_digest(job.out) else None


def score_files(job: ScoringJob) -> dict[str, Any] | None:
    """Score stories; go on where a killed run of the same job was.

    Writes the output, `OUT.manifest.json` and, where rows could not be used,
    `OUT.rejected.jsonl`. A job that is done already is not done again. Several processes score
    together, see the module.

    Returns:
        The manifest, with `unchanged` true where there was nothing to do; None in every process
        but the first.

    Raises:
        ConfigError: the rater gives no rewards, or see `ScoringJob`.
        DataError: no such input, no usable row, no room on the disk, or a reward that is not
            finite.
        ModelError: the model cannot be loaded.
    """
    started = time.time()
    crew = Crew.of_launcher()
    as_text = is_text(job.inputs[0])
    paths = list(job.inputs)
    inputs = {"paths": paths, "sha256": [_digest(path) for path in paths]}
    reference = None
    if job.reference is not None:
        reference = {"path": job.reference, "sha256": source_digest(job.reference)}
    rater = load_scorer(job.rater)
    judging = rewards_depend_on(job.rater)
    reading = [
        job.prompt_column, job.text_column, job.chunk_stories, pa.__version__,
        code_digest(__file__, *_READING_CODE),
    ]  # fmt: skip
    # Text files are named in the output.
    names = [name for name, _ in _text_files(paths)] if as_text else []
    marks = {"input": fingerprint(reading, inputs["sha256"], names, job.prompt, job.where)}
    if reference is not None:
        marks["reference"] = fingerprint(reading, reference["sha256"], job.reference_where)
    mark = fingerprint(marks, judging, job.out.suffix)
    manifest = _current(job, mark)
    if manifest is not None:
        return {**manifest, "unchanged": True} if crew.leads else None

    sources = {"input": (paths, job.where, as_text)}
    if job.reference is not None:
        sources["reference"] = ([job.reference], job.reference_where, False)
    found: dict[str, _Rewards] = {}
    with _alone(job) if crew.leads else contextlib.nullcontext():
        try:
            for key, (paths_of, where, is_texts) in sources.items():
                rows = job.parts / f"rows-{marks[key][:16]}"
                rewards = job.parts / f"rewards-{fingerprint(marks[key], judging)[:16]}"
                if crew.leads:
                    if not rows.exists():
                        is_written = key == "input"
                        _read(job, paths_of, where, rows, as_text=is_texts, is_written=is_written)
                    rewards.mkdir(exist_ok=True)
                else:
                    crew.wait(
                        partial(_are_there, job, mark, [rewards, rows]),
                        f"the first process to read {', '.join(paths_of)} into {rows}",
                    )
                found[key] = _Rewards(_Rows.open(rows), rewards)
            waiting = sum(one.rows.num_rows - one.done() for one in found.values())
            scoring_started = time.time()
            for key, one in found.items():
                one.make(job, rater, crew, "score" if key == "input" else "score the reference")
        except FileNotFoundError:
            # Nothing was left to do, and the first process was faster.
            if crew.leads or _current(job, mark) is None:
                raise
            return None
        except OSError as error:
            raise DataError(
                f"cannot keep rewards in {job.parts} ({error}): free space or choose another output"
            ) from error
        scoring_seconds = time.time() - scoring_started
        if not crew.leads:
            return None
        results = _finish(job, found)
        manifest = {
            "command": "litbench score",
            "fingerprint": mark,
            "rater": as_plain(job.rater),
            "models": judging["models"],
            "input": inputs,
            **({"reference": reference} if reference is not None else {}),
            "options": {
                "prompt_column": job.prompt_column,
                "text_column": job.text_column,
                "prompt": job.prompt,
                "where": job.where,
                "reference_where": job.reference_where,
                "chunk_stories": job.chunk_stories,
            },
            **results,
            "notes": _without_cut(rater.notes())[0],
            "versions": versions(),
            "finished_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "processes": crew.count,
            # Of this run alone, which may have gone on from another.
            "stories_scored": waiting,
            "scoring_seconds": round(scoring_seconds, 2),
            "seconds": round(time.time() - started, 2),
        }
        write_json(manifest, job.manifest)
        shutil.rmtree(job.parts, ignore_errors=True)
    return manifest


@contextlib.contextmanager
def _alone(job: ScoringJob) -> Iterator[None]:
    """Hold the folder of parts, in which a second run would undo what this one does.

    Raises:
        DataError: another run holds it, or it cannot be written.
    """
    path = job.parts / _LOCK_FILE
    try:
        job.parts.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        raise DataError(
            f"cannot write {path} ({error}): free space or choose another output"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(
                f"{job.parts} is in use by another run: wait until it is done, or stop it"
            ) from error
        for leftover in job.parts.glob(".part-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            yield
        finally:
            # Where no row could be read and nothing else is kept, no folder stays.
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                job.parts.rmdir()


def _finish(job: ScoringJob, found: Mapping[str, _Rewards]) -> dict[str, Any]:
    """Rank, and write the output and what was set aside.

    Returns:
        What the manifest says of them.

    Raises:
        DataError: the disk is full, or the output cannot be written.
    """
    import duckdb  # noqa: PLC0415

    stories = found["input"]
    try:
        with tempfile.TemporaryDirectory(prefix=".part-", dir=job.parts) as scratch:
            ready = Path(scratch) / f"output{job.out.suffix}"
            ranking = _Ranking(Path(scratch), found)
            schema, chunks = _scored(job, stories.rows, ranking)
            not_finite = _write(schema, chunks, job, ready)
            part, compared = ranking.prompt_part(), ranking.compared()
            ranking.close()
            ready.replace(job.target)
            _write_set_aside(job, [one.rows for one in found.values()])
    except (OSError, duckdb.Error) as error:
        raise DataError(
            f"cannot write {job.out} by way of {job.parts} ({error}): free space and run the same "
            "command again; the rewards are kept"
        ) from error
    counts = {
        "stories": stories.rows.num_rows,
        "rejected_rows": stories.rows.record["rejected_rows"],
        "left_out_by_where": stories.rows.record["not_selected"],
        "stories_cut": ranking.stories_cut["input"],
        "not_finite_made_null": dict(sorted(not_finite.items())),
    }
    if "reference" in found:
        counts |= {
            "reference_stories": found["reference"].rows.num_rows,
            "reference_set_aside": found["reference"].rows.record["rejected_rows"],
            "reference_left_out_by_where": found["reference"].rows.record["not_selected"],
            "reference_stories_cut": ranking.stories_cut["reference"],
            "stories_with_reference": compared,
        }
    return {
        "output": {"path": str(job.out), "sha256": file_digest(job.out)},
        "replaced_columns": [name for name in ADDED if name in stories.rows.schema.names],
        "counts": counts,
        "across_prompts": {
            "share_of_variance_between_prompts": part.share,
            "prompts": part.prompts,
            "warning": str(part),
        },
    }


def _are_there(job: ScoringJob, mark: str, folders: Sequence[Path]) -> bool:
    return all(folder.exists() for folder in folders) or _current(job, mark) is not None


def _write_set_aside(job: ScoringJob, sources: Sequence[_Rows]) -> None:
    """Write what was set aside of all sources; an older run's file goes."""
    if not any(rows.record["rejected_rows"] for rows in sources):
        job.rejected_rows.unlink(missing_ok=True)
        return

    def write(path: Path) -> None:
        with path.open("wb") as file:
            for rows in sources:
                with (rows.folder / _SET_ASIDE_FILE).open("rb") as part:
                    shutil.copyfileobj(part, file)

    write_atomically(job.rejected_rows, write)
