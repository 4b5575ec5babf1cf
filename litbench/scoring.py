"""Scoring files of any size: the same rows with rewards, in chunks that survive a kill.

    score_files(ScoringJob(spec, "stories.jsonl", Path("scored.parquet")))

Rows are read into a Parquet file beside the output. The rewards of a chunk of rows are one small
file (a part), so a killed run loses the chunks that it was scoring. Several processes, started by
`accelerate launch`, share the chunks; the main process reads the input and writes the output.

Batches never cross the border of a chunk, and within it they depend on its rows and the rater's
options. So the output has the same bytes whether or not a run was killed, and whatever the number
of processes, as long as rater, options, device and threads of each process are the same. With
another batch size or device, rewards agree to 1e-5 in fp32 and not to the last bit.
"""

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from tqdm import tqdm

from litbench.artifact import (
    file_digest,
    fingerprint,
    read_json_part,
    source_digest,
    versions,
    write_atomically,
    write_json,
    write_json_part,
)
from litbench.config import as_plain
from litbench.errors import ConfigError, DataError
from litbench.raters import (
    RaterSpec,
    ScoreRater,
    check_options,
    files_of,
    load_rater,
    parse_raters,
)
from litbench.records import Column, Schema
from litbench.tables import RejectedRows, read_large_table, write_sorted_batches
from litbench.text import digest, prompt_key

# Raise it when a change of the code changes rewards: parts of another version are scored again.
VERSION = 1
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".csv")
ADDED = ("reward", "rank_within_prompt", "beats_reference")
_MODEL_FILES = ("features.json", "litbench.json", "config.json", "adapter_config.json")


@dataclass(frozen=True)
class ScoringJob:
    """What to score, with what, and where the result goes.

    Attributes:
        rater: a rater of a kind that gives rewards.
        input: Parquet, JSONL, CSV, a folder saved by `datasets`, or a data set's name.
        out: Parquet, JSONL or CSV, by its ending.
        prompt_column: the column that holds the prompt.
        text_column: the column that holds the story.
        where: SQL condition (DuckDB) on a row of the input; others are left out.
        reference: a table of human stories of the same prompts, in columns of the same names.
        reference_where: SQL condition on a row of `reference`.
        chunk_stories: stories of a chunk.

    Raises:
        ConfigError: the job cannot be done.
    """

    rater: RaterSpec
    input: str
    out: Path
    prompt_column: str = "prompt"
    text_column: str = "text"
    where: str | None = None
    reference: str | None = None
    reference_where: str | None = None
    chunk_stories: int = 1_024

    def __post_init__(self) -> None:
        if self.out.suffix not in SUFFIXES:
            raise ConfigError(f"the output is {self.out}: end it in one of {', '.join(SUFFIXES)}")
        names = {self.prompt_column, self.text_column}
        if len(names) < 2 or names & set(ADDED):
            raise ConfigError(
                f"prompt and story are in columns {self.prompt_column} and {self.text_column}: "
                f"name two columns, none of {', '.join(ADDED)}"
            )
        if self.reference_where is not None and self.reference is None:
            raise ConfigError("a condition on the reference needs a reference: name the file")
        written = {path.resolve() for path in (self.out, self.manifest, self.rejected_rows)}
        for source in filter(None, (self.input, self.reference)):
            if Path(source).resolve() in written:
                raise ConfigError(f"{source} is input and output: name another output")

    @property
    def schema(self) -> Schema:
        """The columns that a row needs; all others are kept."""
        return Schema(
            "stories to score",
            (
                Column(self.prompt_column, "text", "the prompt's text", required=True),
                Column(self.text_column, "text", "the story's text", required=True),
            ),
            key=(),
        )

    @property
    def parts(self) -> Path:
        """The folder of the parts until the output is whole."""
        return self.out.with_name(f"{self.out.name}.parts")

    @property
    def manifest(self) -> Path:
        """What made the output."""
        return self.out.with_name(f"{self.out.name}.manifest.json")

    @property
    def rejected_rows(self) -> Path:
        """Rows that could not be scored, each with its reason; absent when there is none."""
        return self.out.with_name(f"{self.out.name}.rejected.jsonl")


# Raters with rewards --------------------------------------------------------------------------


def scorer_entry(
    model: str, device: str | None = None, batch_tokens: int | None = None
) -> dict[str, Any]:
    """The entry of a config for a model folder, whose kind is told by its files.

    Args:
        model: a folder of a feature model or a reward model, or a reward model's name on the Hub.
        device: such as cuda or cpu, for a reward model.
        batch_tokens: most tokens of one forward pass, for a reward model.

    Raises:
        ConfigError: a folder without a model, or device or batch_tokens for a feature model.
    """
    folder = Path(model)
    if folder.is_dir() and not _holds_model(folder):
        inner = sorted(str(one) for one in folder.iterdir() if one.is_dir() and _holds_model(one))
        raise ConfigError(
            f"{folder} holds no model (none of {', '.join(_MODEL_FILES)}): "
            f"give {' or '.join(inner) or 'the folder of a trained model'}"
        )
    kind = "features" if (folder / "features.json").exists() else "reward"
    options = {"device": device, "batch_tokens": batch_tokens}
    given = {key: value for key, value in options.items() if value is not None}
    if given and kind == "features":
        raise ConfigError(f"{model} is a feature model: leave out {' and '.join(given)}")
    return {"kind": kind, "path": model, **given}


def _holds_model(folder: Path) -> bool:
    return any((folder / name).exists() for name in _MODEL_FILES)


def scorer_spec(entry: Any) -> RaterSpec:
    """Check a rater's entry, as a config has it below its name; see `litbench.raters`.

    Raises:
        ConfigError: no such kind, or options that do not fit it.
    """
    kind = entry.get("kind", "rater") if isinstance(entry, Mapping) else "rater"
    (spec,) = parse_raters({str(kind): entry})
    check_options(spec, "raters")
    return spec


def load_scorer(spec: RaterSpec) -> ScoreRater:
    """Load a rater that gives each story a reward of its own.

    Raises:
        ConfigError: it gives verdicts on pairs only.
    """
    rater = load_rater(spec)
    if not isinstance(rater, ScoreRater):
        raise ConfigError(
            f"a rater of kind '{spec.kind}' gives verdicts on pairs and no rewards: take one with "
            "rewards, such as reward or features, or compare stories in pairs with "
            "eval/benchmark.py"
        )
    return rater


def finite_rewards(rater: ScoreRater, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
    """A rater's rewards, each of which is a number; float64, shape (n,).

    Raises:
        DataError: a reward is not finite.
    """
    rewards = np.asarray(rater.score(prompts, stories), dtype=np.float64)
    finite = np.isfinite(rewards)
    if not finite.all():
        raise DataError(
            f"rater {rater.name}: {int((~finite).sum())} of {len(rewards)} rewards are not "
            f"finite, the first of the story {stories[int(np.argmin(finite))]!r:.60}: check the "
            "model's weights and precision"
        )
    return rewards


def rewards_depend_on(spec: RaterSpec) -> dict[str, Any]:
    """What a rater's rewards depend on beside prompts and stories; plain values."""
    models = files_of([spec])
    return {
        "rater": as_plain(spec),
        "models": {key: source_digest(path, is_model=True) for key, path in models.items()},
        "version": VERSION,
    }


# Rows and their rewards -----------------------------------------------------------------------


class _Source:
    """The input or the reference: its rows, and a part with the rewards of each chunk of them."""

    def __init__(self, job: ScoringJob, name: str, depends_on: Any) -> None:
        is_input = name == "input"
        self.job, self.name = job, name
        self.path = str(job.input if is_input else job.reference)
        self.where = job.where if is_input else job.reference_where
        self.sha256 = source_digest(self.path)
        self.rejected_rows = RejectedRows()
        columns = (job.prompt_column, job.text_column)
        mark = fingerprint(self.sha256, columns, self.where, job.chunk_stories, depends_on)
        self.folder = job.parts / f"{name}-{mark[:16]}"
        self.rows = self.folder / "rows.parquet"

    def read(self) -> None:
        """Write the rows to a Parquet file.

        Raises:
            DataError: no such input, or no usable row.
        """
        job = self.job
        columns = {name: name for name in (job.prompt_column, job.text_column)}
        with tempfile.TemporaryDirectory(dir=job.parts) as scratch:
            table = read_large_table(
                [self.path], job.schema, Path(scratch), columns=columns,
                rejected_rows=self.rejected_rows, where=self.where,
            )  # fmt: skip
            batches = (batch for chunk in table.chunks() for batch in chunk.to_batches())
            reader = pa.RecordBatchReader.from_batches(table.schema, batches)
            write_atomically(self.rows, lambda path: write_sorted_batches(reader, job.schema, path))

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows in chunks, whose borders depend on the rows alone."""
        with pq.ParquetFile(self.rows, pre_buffer=False) as file:
            yield from file.iter_batches(self.job.chunk_stories, columns=columns)

    def texts(self) -> Iterator[tuple[int, list[str], list[str]]]:
        """Number, prompts and stories of every chunk."""
        columns = [self.job.prompt_column, self.job.text_column]
        for number, chunk in enumerate(self.chunks(columns)):
            yield number, *(chunk[name].to_pylist() for name in columns)

    def part(self, number: int) -> Path:
        return self.folder / f"{number:07d}.json"

    def score(self, rater: ScoreRater, index: int, count: int) -> None:
        """Write the missing parts of every chunk whose number modulo `count` is `index`."""
        total = pq.read_metadata(self.rows).num_rows // count
        with tqdm(
            total=total, desc=f"score the {self.name}", unit=" stories",
            disable=True if index else None,
        ) as bar:  # fmt: skip
            for number, prompts, stories in self.texts():
                if number % count != index:
                    continue
                if read_json_part(self.part(number)) is None:
                    cut = -rater.notes().get("stories_cut", 0)
                    # Minus zero is zero, also to what compares rewards bit by bit.
                    rewards = finite_rewards(rater, prompts, stories) + 0.0
                    cut += rater.notes().get("stories_cut", 0)
                    part = {"rewards": rewards.tolist(), "stories_cut": cut}
                    write_json_part(part, self.part(number))
                bar.update(len(stories))

    def scored(self) -> tuple[pa.Table, int]:
        """Prompt, story (hashes) and reward of every row, and how many stories lost their end.

        Raises:
            DataError: a part is damaged or missing.
        """
        columns: dict[str, list[Any]] = {"prompt": [], "story": [], "reward": []}
        cut = 0
        for number, prompts, stories in self.texts():
            part = read_json_part(self.part(number))
            if part is None:
                raise DataError(
                    f"{self.part(number)} is damaged or missing: run the same command again"
                )
            keys = {prompt: prompt_key(prompt) for prompt in set(prompts)}
            columns["prompt"] += [int(keys[prompt][:16], 16) for prompt in prompts]
            columns["story"] += [int(digest(story)[:16], 16) for story in stories]
            columns["reward"] += part["rewards"]
            cut += part["stories_cut"]
        types = {"prompt": pa.uint64(), "story": pa.uint64(), "reward": pa.float64()}
        return pa.table({name: pa.array(columns[name], of) for name, of in types.items()}), cut


# A rank of 1 is the best, equal rewards share it. A story beats a human story of its prompt with a
# lower reward, half of one with the same, and is not compared with its own copies.
_COMPARE = """
    WITH every AS (
        SELECT row_number() OVER () AS place, *, 0 AS human FROM stories
        UNION ALL SELECT NULL, *, 1 FROM humans
    ), compared AS (
        SELECT *,
            sum(human) OVER (PARTITION BY prompt ORDER BY reward)
                - sum(human) OVER (PARTITION BY prompt, reward) / 2 AS beaten,
            sum(human) OVER (PARTITION BY prompt) AS met,
            sum(human) OVER (PARTITION BY prompt, story ORDER BY reward)
                - sum(human) OVER (PARTITION BY prompt, story, reward) / 2 AS own_beaten,
            sum(human) OVER (PARTITION BY prompt, story) AS own_met
        FROM every
    )
    SELECT reward, rank() OVER (PARTITION BY prompt ORDER BY reward DESC) AS rank_within_prompt,
        (beaten - own_beaten) / nullif(met - own_met, 0) AS beats_reference
    FROM compared WHERE place IS NOT NULL ORDER BY place
"""


def _compare(stories: pa.Table, humans: pa.Table) -> pa.Table:
    """The columns of `ADDED`, a row for each of the stories, in their order."""
    with duckdb.connect() as connection:
        connection.register("stories", stories)
        connection.register("humans", humans)
        return connection.sql(_COMPARE).to_arrow_table().combine_chunks()


def _write_output(path: Path, schema: Schema, source: _Source, added: pa.Table) -> None:
    """Write the rows with the added columns, in the format of the path's ending."""
    rows = pq.read_schema(source.rows)
    kept = [one for one in rows if one.name not in ADDED]
    whole = pa.schema([*kept, *added.schema])

    def batches() -> Iterator[pa.RecordBatch]:
        start = 0
        for chunk in source.chunks():
            own = added.slice(start, chunk.num_rows).combine_chunks()
            columns = [chunk[one.name] for one in kept]
            columns += [column.chunk(0) for column in own.columns]
            yield pa.record_batch(columns, whole)
            start += chunk.num_rows

    if path.suffix == ".parquet":
        write_sorted_batches(pa.RecordBatchReader.from_batches(whole, batches()), schema, path)
    elif path.suffix == ".csv":
        with pa_csv.CSVWriter(path, whole) as writer:
            for batch in batches():
                writer.write_batch(batch)
    else:
        with path.open("w", encoding="utf-8") as file:
            for batch in batches():
                for row in _finite_or_null(batch).to_pylist():
                    file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")


def _finite_or_null(batch: pa.RecordBatch) -> pa.RecordBatch:
    """JSON has no NaN and no infinity."""
    columns = [
        pc.if_else(pc.is_finite(column), column, None)
        if pa.types.is_floating(column.type)
        else column
        for column in batch.columns
    ]
    return pa.record_batch(columns, batch.schema)


# The whole job --------------------------------------------------------------------------------


@contextlib.contextmanager
def _processes() -> Iterator[tuple[int, int, Callable[[], None]]]:
    """Index of this process, number of processes, and a function that waits for all of them."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield 0, 1, lambda: None
        return
    import torch  # noqa: PLC0415
    from accelerate import PartialState  # noqa: PLC0415

    # A process may wait for hours until the slowest has scored its share.
    timeout = timedelta(days=30)
    state = PartialState(cpu=not torch.accelerator.is_available(), timeout=timeout)
    yield state.process_index, state.num_processes, state.wait_for_everyone
    state.destroy_process_group()


def _current(job: ScoringJob, mark: str) -> dict[str, Any] | None:
    """The manifest, if the output is that of this very job."""
    try:
        manifest: dict[str, Any] = json.loads(job.manifest.read_text(encoding="utf-8"))
        same = manifest["fingerprint"] == mark
        return manifest if same and manifest["output"]["sha256"] == file_digest(job.out) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def score_files(job: ScoringJob) -> dict[str, Any] | None:
    """Score stories; go on where a killed run of the same job was.

    Writes the output, `OUT.manifest.json` and, where rows could not be used,
    `OUT.rejected.jsonl`. A job that is done already is not done again.

    Returns:
        The manifest, with `unchanged` true where there was nothing to do; None in every process
        but the main one.

    Raises:
        ConfigError: the rater gives no rewards.
        DataError: no such input, no usable row, no room on the disk, or a reward that is not
            finite.
        ModelError: the model cannot be loaded.
    """
    started = time.time()
    with _processes() as (index, count, wait_for_all):
        is_main = index == 0
        depends_on = rewards_depend_on(job.rater)
        names = ["input"] if job.reference is None else ["input", "reference"]
        sources = [_Source(job, name, depends_on) for name in names]
        mark = fingerprint([source.folder.name for source in sources], job.out.suffix)
        if (manifest := _current(job, mark)) is not None:
            return {**manifest, "unchanged": True} if is_main else None
        rater = load_scorer(job.rater)
        if is_main:
            job.parts.mkdir(parents=True, exist_ok=True)
            for source in sources:
                source.read()
        wait_for_all()
        for source in sources:
            source.score(rater, index, count)
        wait_for_all()
        if not is_main:
            return None
        manifest = {
            "command": "litbench score",
            "fingerprint": mark,
            "rater": as_plain(job.rater),
            "models": depends_on["models"],
            **{one.name: {"path": one.path, "sha256": one.sha256} for one in sources},
            "options": {
                name: getattr(job, name)
                for name in ("prompt_column", "text_column", "where", "reference_where")
            },
            "processes": count,
            "counts": _finish(job, sources),
            "output": {"path": str(job.out), "sha256": file_digest(job.out)},
            "notes": {key: value for key, value in rater.notes().items() if key != "stories_cut"},
            "versions": versions(),
            "finished_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - started, 2),
        }
        write_json(manifest, job.manifest)
        shutil.rmtree(job.parts)
    return manifest


def _finish(job: ScoringJob, sources: Sequence[_Source]) -> dict[str, Any]:
    """Write output and rejected rows; return the counts of the manifest."""
    stories, cut = sources[0].scored()
    humans, humans_cut = sources[-1].scored() if len(sources) > 1 else (stories.slice(0, 0), 0)
    added = _compare(stories, humans)
    compared = len(added) - added["beats_reference"].null_count
    if len(sources) == 1:
        added = added.drop_columns("beats_reference")
    write_atomically(job.out, lambda path: _write_output(path, job.schema, sources[0], added))
    lines = b""
    for source in sources:
        source.rejected_rows.write(job.parts / "rejected.jsonl")
        lines += (job.parts / "rejected.jsonl").read_bytes()
    job.rejected_rows.unlink(missing_ok=True)
    if lines:
        write_atomically(job.rejected_rows, lambda path: path.write_bytes(lines))
    counts: dict[str, Any] = {"stories": len(stories), "stories_cut": cut}
    if len(sources) > 1:
        counts |= {"reference_stories": len(humans), "reference_stories_cut": humans_cut}
        counts["stories_with_reference"] = compared
    for source, prefix in zip(sources, ("", "reference_"), strict=False):
        counts[f"{prefix}rejected_rows"] = source.rejected_rows.counts()
        counts[f"{prefix}left_out_by_where"] = source.rejected_rows.not_selected
    return counts
