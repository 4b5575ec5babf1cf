"""Score files of any size: the same rows with rewards, in chunks, so that killed runs resume.

    score_files(ScoringJob(spec, "stories.jsonl", Path("scored.parquet")))

Rows are read into a Parquet file beside the output. The rewards of each chunk of rows are stored in
a small file (a part), so a killed run loses only the chunks in progress. Several processes, started
by `accelerate launch`, share the chunks; the main process reads the input and writes the output.
No batch spans two chunks. So for the same rater, options, device and threads the output has the
same bytes, for any number of processes and whether or not a run was killed.
"""

import contextlib
import csv
import io
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from litbench.data.chunks import LINE
from litbench.data.ingest import RejectedRows, StreamingTable, no_rows
from litbench.data.records import SIDES, Column, Schema
from litbench.data.sources.items import list_answers
from litbench.data.sources.pairs import read_any_pairs
from litbench.data.tables import write_sorted_batches, write_table
from litbench.data.text import prompt_key
from litbench.evaluation.rescoring import rescore_best
from litbench.raters.entries import RaterSpec, files_of, parse_raters
from litbench.raters.interface import ScoreRater, check_training_prompts
from litbench.runs.config import as_plain
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import (
    Cache,
    file_digest,
    fingerprint,
    only_writer,
    read_sealed,
    source_digest,
    versions,
    write_atomically,
    write_sealed,
)
from litbench.runs.progress import ProgressBar

# Raise it when code changes rewards or flags: parts of another version are scored again.
VERSION = 6
# Stories per stored part of `score_stories`.
_STORIES_PER_PART = 1_024
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".csv")
_FLAGS = ("is_prose", "like_training", "reasons")
ADDED = ("reward", "reward_percentile", "rank_within_prompt", *_FLAGS)


@dataclass(frozen=True)
class ScoringJob:
    """A scoring job: the input, the rater and the output.

    Attributes:
        rater: a rater that gives rewards.
        input: Parquet, JSONL, CSV, a folder saved by `datasets`, or a data set's name.
        out: file to write: Parquet, JSONL or CSV, by its suffix.
        prompt_column: the column that holds the prompt.
        text_column: the column that holds the story.
        answers: the column of lists of stories, if a row has several: each becomes a row, with the
            story in `text_column` and the row's `item_id`.
        pairs: for a file of pairs, whose both sides are scored: columns of the prompt, chosen and
            rejected, as those of `litbench.data.sources.pairs.read_any_pairs`. Pairs from elsewhere
            are written in the order of their pair_id.
        where: SQL condition (DuckDB) on the rows of the input; only matching rows are scored.
        encoding: encoding of a text file of stories; see `litbench.data.formats.sniff`.
        chunk_stories: stories per chunk.
    """

    rater: RaterSpec
    input: str
    out: Path
    prompt_column: str = "prompt"
    text_column: str = "text"
    answers: str | None = None
    pairs: Mapping[str, str] | None = None
    where: str | None = None
    encoding: str | None = None
    chunk_stories: int = 1_024

    def __post_init__(self) -> None:
        if self.out.suffix not in SUFFIXES:
            raise ConfigError(f"unknown suffix of output {self.out}: use {', '.join(SUFFIXES)}")
        if self.pairs is not None and self.where is not None:
            raise ConfigError("where: it does not work on a file of pairs: leave it out")
        if len({self.prompt_column, self.text_column, *ADDED}) < 2 + len(ADDED):
            raise ConfigError(
                f"prompt is the column {self.prompt_column} and text {self.text_column}: "
                f"give two different columns other than {', '.join(ADDED)}"
            )
        try:
            is_folder = self.out.is_dir()
            written = {path.resolve() for path in (self.out, self.manifest, self.rejected_rows)}
        except OSError as error:
            raise ConfigError(f"cannot write {self.out}: {error}; choose another name") from error
        if is_folder:
            raise ConfigError(f"out: {self.out} is a folder: give a file")
        if Path(self.input).resolve() in written:
            raise ConfigError(f"{self.input} is both input and output: choose another output")

    @property
    def schema(self) -> Schema:
        """The required columns; all others are kept."""
        prompt, text = (
            Column(
                name,
                "text",
                f"the {whose}'s text; name its column by --{option}",
                required=True,
                is_story=whose == "story",
            )
            for name, whose, option in (
                (self.prompt_column, "prompt", "prompt"),
                (self.text_column, "story", "text"),
            )
        )
        # The rows of JSON, so that other keys are written as they came.
        line = [Column(LINE, "text", "the row's JSON")] if self.writes_json else []
        return Schema("stories to score", (prompt, text, *line), key=())

    @property
    def writes_json(self) -> bool:
        """Whether the output is JSON lines."""
        return self.out.suffix in (".jsonl", ".ndjson")

    @property
    def columns(self) -> list[str]:
        """The columns that are read: the prompt, and one or two stories."""
        if self.pairs is not None:
            return ["prompt", *SIDES]
        return [self.prompt_column, self.text_column]

    @property
    def added(self) -> list[str]:
        if self.pairs is None:
            return list(ADDED)
        return [f"{name}_{side}" for side in SIDES for name in (*ADDED[:2], *_FLAGS)]

    @property
    def parts(self) -> Path:
        """Folder of the parts, removed when the output is complete."""
        return Path(f"{self.out}.parts")

    @property
    def manifest(self) -> Path:
        """The manifest beside the output."""
        return Path(f"{self.out}.manifest.json")

    @property
    def rejected_rows(self) -> Path:
        """Rows that could not be scored, with reasons; absent if all could."""
        return Path(f"{self.out}.rejected.jsonl")


def scorer_spec(entry: Any) -> RaterSpec:
    """Check a rater's config entry and parse it; see `litbench.raters.entries`."""
    kind = entry.get("kind", "rater") if isinstance(entry, Mapping) else "rater"
    (spec,) = parse_raters({str(kind): entry})
    return spec


def load_scorer(spec: RaterSpec) -> ScoreRater:
    """Load a rater that gives rewards; ConfigError if it only judges pairs."""
    spec.check_installed()
    rater = spec.load()
    if not isinstance(rater, ScoreRater):
        raise ConfigError(
            f"{spec.where}: a rater of kind '{spec.kind}' compares stories and gives no rewards: "
            "use one with rewards, such as reward or features; eval/benchmark.py judges pairs"
        )
    return rater


def finite_rewards(rater: ScoreRater, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
    """A rater's rewards, float64, shape (n,); DataError if one is not finite."""
    rewards = np.asarray(rater.score(prompts, stories), dtype=np.float64)
    finite = np.isfinite(rewards)
    if not finite.all():
        raise DataError(
            f"rater {rater.name}: {int((~finite).sum())} of {len(rewards)} rewards are not "
            "finite: check the model's weights and precision"
        )
    return rewards


def rewards_depend_on(spec: RaterSpec) -> dict[str, Any]:
    """Everything that rewards depend on except the texts, as plain values."""
    models = files_of([spec])
    return {
        "rater": as_plain(spec.plain()),
        "models": {key: source_digest(path, is_model=True) for key, path in models.items()},
        "version": VERSION,
    }


# The number of a chunk, and a prompt and a story for each reward.
Chunk = tuple[int, Sequence[str], Sequence[str]]


def _rewards(
    rater: ScoreRater, chunks: Iterable[Chunk], parts: Cache, key: str
) -> Iterator[tuple[Sequence[str], dict[str, Any]]]:
    """Yield prompts and stored rewards of each chunk; chunks without a part are scored.

    A part has the `rewards`, the number of truncated stories, `stories_cut`, and the `flags`.
    """
    for number, prompts, stories in chunks:

        def score(prompts: Sequence[str] = prompts, stories: Sequence[str] = stories) -> Any:
            cut = -rater.notes().get("stories_cut", 0)
            # Adding 0.0 turns -0.0 into 0.0, so that equal rewards have equal bytes.
            rewards = finite_rewards(rater, prompts, stories) + 0.0
            cut += rater.notes().get("stories_cut", 0)
            flags = vars(rater.flags(stories))
            return {"rewards": rewards.tolist(), "stories_cut": cut, "flags": flags}

        yield prompts, parts.get([key, number], score, label=f"{number:07d}")


def score_stories(
    spec: RaterSpec, stories: pa.Table, parts: Cache
) -> tuple[np.ndarray, int, np.ndarray]:
    """Score the stories of a table; each distinct text is scored once, and stored in parts.

    Returns:
        The rewards, float64, shape (n,); the number of prompts that the rater was trained on; and
        whether each story is flagged as no prose, bool, shape (n,).
    """
    rater = load_scorer(spec)
    rows = list(zip(*(stories[name].to_pylist() for name in ("prompt", "text")), strict=True))
    distinct = list(dict.fromkeys(rows))

    def chunks() -> Iterator[Chunk]:
        for start in range(0, len(distinct), _STORIES_PER_PART):
            prompts, texts = zip(*distinct[start : start + _STORIES_PER_PART], strict=True)
            yield start, prompts, texts

    key = fingerprint(rewards_depend_on(spec), distinct)
    stored = [part for _, part in _rewards(rater, chunks(), parts, key)]
    rewards, _ = _with_exact(
        rater,
        list(itertools.chain.from_iterable(part["rewards"] for part in stored)),
        (prompt for prompt, _ in distinct),
        lambda indices: [distinct[index] for index in indices],
    )
    prose = itertools.chain.from_iterable(part["flags"]["is_prose"] for part in stored)
    row_of = {row: index for index, row in enumerate(distinct)}
    indices = [row_of[row] for row in rows]
    trained_on = check_training_prompts(rater, stories, "flag")
    no_prose = np.array([flag is False for flag in prose], bool)
    return np.array(rewards)[indices], trained_on, no_prose[indices]


def _with_exact(
    rater: ScoreRater,
    rewards: list[float],
    prompts: Iterable[str],
    texts: Callable[[Sequence[int]], Sequence[tuple[str, str]]],
) -> tuple[list[float], int]:
    """Score the best stories of each prompt again, see `rescore_best`, and count them.

    `texts` returns the prompts and stories of these indices.
    """
    if rater.load_exact is None:
        return rewards, 0
    exact, numbers = rater.load_exact(), dict[str, int]()
    groups = [numbers.setdefault(prompt_key(prompt), len(numbers)) for prompt in prompts]

    def score(indices: np.ndarray) -> np.ndarray:
        return finite_rewards(exact, *zip(*texts(indices.tolist()), strict=True)) + 0.0

    best, count = rescore_best(np.array(rewards), np.array(groups), score)
    return best.tolist(), count


def _rescored(
    job: ScoringJob,
    rater: ScoreRater,
    rows: Path,
    scored: Iterable[tuple[Sequence[str], dict[str, Any]]],
) -> tuple[Iterable[tuple[Sequence[str], dict[str, Any]]], int]:
    """Replace and count the rewards of the best stories of each prompt; pairs stay as they are."""
    if rater.load_exact is None or job.pairs is not None:
        return scored, 0
    chunks = list(scored)

    def texts(indices: Sequence[int]) -> list[tuple[str, str]]:
        pairs = (zip(prompts, stories, strict=True) for _, prompts, stories in _chunks(job, rows))
        numbered, wanted = enumerate(itertools.chain.from_iterable(pairs)), set(indices)
        return [pair for number, pair in numbered if number in wanted]

    rewards, count = _with_exact(
        rater,
        [reward for _, stored in chunks for reward in stored["rewards"]],
        (prompt for prompts, _ in chunks for prompt in prompts),
        texts,
    )
    left = iter(rewards)
    return [
        (prompts, stored | {"rewards": list(itertools.islice(left, len(prompts)))})
        for prompts, stored in chunks
    ], count


def _read_rows(job: ScoringJob, rejected: RejectedRows, path: Path) -> None:
    """Write the rows of the input to a Parquet file."""
    if job.pairs is not None:
        pairs = read_any_pairs(job.input, job.pairs)
        write_atomically(path, partial(write_table, pairs))
        return
    schema, answers = job.schema, job.answers
    if answers is not None:
        lists = Column(answers, "messages", "the stories of a row", required=True)
        columns = [lists if name.name == job.text_column else name for name in schema.columns]
        schema = replace(schema, columns=tuple(columns))
    with tempfile.TemporaryDirectory(dir=job.parts) as scratch:
        table = StreamingTable(
            [job.input],
            schema,
            Path(scratch),
            where=job.where,
            encoding=job.encoding,
            rejected_rows=rejected,
            nested=job.out.suffix != ".csv",
            numbered=answers is not None,
        )

        def rows_of(chunk: pa.Table) -> pa.Table:
            if answers is None:
                return chunk
            names = {"prompt": job.prompt_column, "answers": answers, "text": job.text_column}
            return list_answers(chunk, names, job.input, rejected)

        batches = (batch for chunk in table.chunks() for batch in rows_of(chunk).to_batches())
        of_rows = rows_of(table.schema.empty_table()).schema
        reader = pa.RecordBatchReader.from_batches(of_rows, batches)
        write_atomically(path, lambda part: write_sorted_batches(reader, job.schema, part))
    if not pq.read_metadata(path).num_rows:
        path.unlink()
        raise no_rows(job.input, {"where": job.where, "rejected_rows": rejected})


def _chunks(job: ScoringJob, rows: Path, index: int = 0, count: int = 1) -> Iterator[Chunk]:
    """Yield every chunk of the rows whose number modulo `count` is `index`.

    Of pairs, the chosen stories of a chunk come first, then the rejected ones.
    """
    with pq.ParquetFile(rows, pre_buffer=False) as file:
        batches = enumerate(file.iter_batches(job.chunk_stories, columns=job.columns))
        for number, chunk in itertools.islice(batches, index, None, count):
            prompts, *sides = (chunk[name].to_pylist() for name in job.columns)
            yield number, prompts * len(sides), list(itertools.chain(*sides))


def _added_columns(
    job: ScoringJob, rater: ScoreRater, scored: Iterable[tuple[Sequence[str], dict[str, Any]]]
) -> tuple[pa.Table, int]:
    """Return the added columns for every row, and the number of truncated stories."""
    tables, cut = [], 0
    sides: list[list[pa.Table]] = [[] for _ in job.columns[1:]]
    for prompts, stored in scored:
        rewards = np.reshape(stored["rewards"], (len(sides), -1))
        keys = [prompt_key(prompt)[:16] for prompt in prompts[: rewards.shape[1]]]
        columns = {"reward": rewards[0], "rejected": rewards[-1]}
        tables.append(pa.table({"prompt": keys, **columns}))
        for side, start in zip(sides, range(0, rewards.size, rewards.shape[1]), strict=True):
            side.append(_flag_columns(stored["flags"], slice(start, start + rewards.shape[1])))
        cut += stored["stories_cut"]
    table, flags = pa.concat_tables(tables), [pa.concat_tables(side) for side in sides]
    if job.pairs is not None:
        rewards_of = [table[name] for name in ("reward", "rejected")]
        both = [
            column
            for side, flagged in zip(rewards_of, flags, strict=True)
            for column in (side, _percentiles(rater, side), *flagged.columns)
        ]
        return pa.table(both, job.added), cut
    with duckdb.connect() as connection:
        connection.register("scored", table)
        added = connection.sql(
            "SELECT reward, rank() OVER (PARTITION BY prompt ORDER BY reward DESC) AS "
            "rank_within_prompt FROM (SELECT *, row_number() OVER () AS row_index FROM scored) "
            "ORDER BY row_index"
        )
        table = added.to_arrow_table()
    percentiles = _percentiles(rater, table["reward"])
    table = table.add_column(1, "reward_percentile", percentiles)
    return pa.table([*table.columns, *flags[0].columns], job.added), cut


def _flag_columns(flags: Mapping[str, Any], rows: slice) -> pa.Table:
    """Return the flags of some rows of a part as columns; without flags, all are null."""
    listed = zip(flags["is_prose"][rows], flags["reasons"][rows], strict=True)
    reasons = [None if prose is None else "; ".join(texts) or None for prose, texts in listed]
    columns = [pa.array(flags[name][rows], pa.bool_()) for name in _FLAGS[:2]]
    return pa.table([*columns, pa.array(reasons, pa.large_string())], list(_FLAGS))


def _flagged(added: pa.Table, flag: str) -> int:
    """Return the number of stories for which a flag is false."""
    columns = [name for name in added.column_names if name.startswith(flag)]
    return sum(pc.sum(pc.equal(added[name], False)).as_py() or 0 for name in columns)


def _percentiles(rater: ScoreRater, rewards: pa.ChunkedArray) -> pa.Array:
    percentiles = rater.percentiles(rewards.to_numpy())
    return pa.nulls(len(rewards), pa.float64()) if percentiles is None else pa.array(percentiles)


def _replaced(job: ScoringJob, rows: Path) -> list[str]:
    """Return the columns of the input that added columns replace."""
    return [name for name in job.added if name in pq.read_schema(rows).names]


def _write_output(job: ScoringJob, rows: Path, added: pa.Table, path: Path) -> None:
    """Write the rows with the added columns, in the format of the path's suffix.

    DuckDB ignores the case of names, so the columns are read by position: c0, c1, ...
    """
    replaced, schema = _replaced(job, rows), pq.read_schema(rows)
    columns = {
        name: f"c{index}"
        for index, name in enumerate(schema.names)
        if name not in (LINE, *replaced)
    } | {name: f"a{index}" for index, name in enumerate(added.column_names)}
    relation = (
        f"read_parquet($rows) AS r({', '.join(f'c{k}' for k in range(len(schema)))}) "
        f"POSITIONAL JOIN added AS a({', '.join(f'a{k}' for k in range(added.num_columns))})"
    )
    with duckdb.connect() as connection:
        # One thread, so that the same rows give the same bytes.
        connection.execute("SET threads = 1").register("added", added)
        if path.suffix == ".csv":
            header = io.StringIO()
            csv.writer(header, lineterminator="\n").writerow(columns)
            connection.execute(
                f"COPY (SELECT {', '.join(columns.values())} FROM {relation}) TO $path "  # noqa: S608
                "(FORMAT csv, HEADER false, PREFIX $header, SUFFIX '\n')",
                {"rows": str(rows), "path": str(path), "header": header.getvalue()},
            )
            return
        values = ", ".join(columns.values())
        if job.writes_json:
            values = _json_rows(columns, schema, added, replaced)
        query = f"SELECT {values} FROM {relation}"  # noqa: S608
        reader = connection.sql(query, params={"rows": str(rows)}).to_arrow_reader(16_384)
        if job.writes_json:
            with path.open("w", encoding="utf-8") as file:
                for batch in reader:
                    file.writelines(
                        f"{_without_nan(line)}\n" for line in batch.column(0).to_pylist()
                    )
            return
        kinds = [field.type for field in reader.schema]
        named = pa.schema(list(zip(columns, kinds, strict=True)))
        with pq.ParquetWriter(path, named, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=named))


def _without_nan(line: str) -> str:
    """Replace NaN and infinities, which Python writes and JSON does not have, by null."""
    if "NaN" not in line and "Infinity" not in line:
        return line
    return json.dumps(json.loads(line, parse_constant=lambda _: None), ensure_ascii=False)


def _json_rows(
    columns: Mapping[str, str], schema: pa.Schema, added: pa.Table, replaced: Sequence[str]
) -> str:
    """Return SQL that writes a row as JSON: the row of the input, if it was JSON, and `added`."""

    def members(names: Iterable[str]) -> str:
        texts = []
        for name in names:
            value, fields = columns[name], added.schema if name in added.column_names else schema
            if pa.types.is_floating(fields.field(name).type):
                # JSON has no NaN and no infinity.
                value = f"CASE WHEN isfinite({value}) THEN {value} END"
            key = json.dumps(name, ensure_ascii=False).replace("'", "''")
            texts.append(f"'{key}:' || coalesce(CAST(to_json({value}) AS VARCHAR), 'null')")
        return " || ',' || ".join(texts)

    new, every = members(added.column_names), f"'{{' || {members(columns)} || '}}'"
    if LINE not in schema.names:
        return every
    line = f"c{schema.names.index(LINE)}"
    if replaced:
        nulls = json.dumps(dict.fromkeys(replaced)).replace("'", "''")
        line = f"CAST(json_merge_patch({line}, '{nulls}') AS VARCHAR)"
    line = f"translate({line}, chr(10) || chr(13), '  ')"
    return (
        f"CASE WHEN {line} IS NULL THEN {every} "
        f"ELSE left(rtrim({line}, ' ' || chr(9)), -1) || ',' || {new} || '}}' END"
    )


@contextlib.contextmanager
def _processes() -> Iterator[tuple[int, int, Callable[[], None]]]:
    """Yield the process index, the number of processes, and a function that waits for all."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield 0, 1, lambda: None
        return
    import torch  # noqa: PLC0415
    from accelerate import PartialState  # noqa: PLC0415

    # The first process to finish may wait for hours for the slowest.
    state = PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(days=30))
    yield state.process_index, state.num_processes, state.wait_for_everyone
    state.destroy_process_group()


def score_files(job: ScoringJob) -> dict[str, Any] | None:
    """Score stories; a killed run of the same job resumes.

    Writes the output, `OUT.manifest.json` and, if rows were rejected, `OUT.rejected.jsonl`.

    Returns:
        The manifest, with `unchanged` true if the job was already done; None in every process
        except the main one.
    """
    started = time.time()
    with contextlib.ExitStack() as stack:
        index, count, wait_for_all = stack.enter_context(_processes())
        depends_on = rewards_depend_on(job.rater)
        sha256 = source_digest(job.input)
        columns = (job.columns, job.pairs, job.encoding, *filter(None, [job.answers]))
        job_fingerprint = fingerprint(sha256, columns, job.where, job.chunk_stories, depends_on)
        with contextlib.suppress(DataError, KeyError, TypeError):
            manifest = read_sealed(job.manifest, DataError, "score again")
            written = manifest["output"]["sha256"]
            if manifest["fingerprint"] == job_fingerprint and written == file_digest(job.out):
                return None if index else {**manifest, "unchanged": True}
        if index == 0:
            stack.enter_context(only_writer(job.parts, job.out))
        rater = load_scorer(job.rater)
        parts, rejected = Cache(job.parts / f"input-{job_fingerprint[:16]}"), RejectedRows()
        rows = parts.folder / "rows.parquet"
        if index == 0:
            _read_rows(job, rejected, rows)
        wait_for_all()
        total = pq.read_metadata(rows).num_rows * len(job.columns[1:])
        hidden = True if index else None
        with ProgressBar(
            total=total // count, desc="score", unit=" stories", disable=hidden
        ) as bar:
            chunks = _chunks(job, rows, index, count)
            for prompts, _ in _rewards(rater, chunks, parts, job_fingerprint):
                bar.update(len(prompts))
        wait_for_all()
        if index:
            return None
        stored = _rewards(rater, _chunks(job, rows), parts, job_fingerprint)
        scored, rescored = _rescored(job, rater, rows, stored)
        added, cut = _added_columns(job, rater, scored)
        write_atomically(job.out, partial(_write_output, job, rows, added))
        job.rejected_rows.unlink(missing_ok=True)
        if rejected.counts():
            write_atomically(job.rejected_rows, rejected.write)
        manifest = {
            "command": "litbench score",
            "fingerprint": job_fingerprint,
            "job": as_plain(vars(job) | {"rater": job.rater.plain()}),
            "models": depends_on["models"],
            "input": {"path": job.input, "sha256": sha256},
            "output": {"path": str(job.out), "sha256": file_digest(job.out)},
            "counts": {
                "stories": len(added) * len(job.columns[1:]),
                "stories_cut": cut,
                **({"stories_rescored": rescored} if rescored else {}),
                "flagged": {name: _flagged(added, name) for name in _FLAGS[:2]},
                "rejected_rows": rejected.counts(),
                "left_out_by_where": rejected.not_selected,
            },
            "replaced_columns": _replaced(job, rows),
            "has_percentiles": rater.reward_quantiles is not None,
            "has_flags": rater.scope is not None,
            "processes": count,
            "notes": {key: value for key, value in rater.notes().items() if key != "stories_cut"},
            "versions": versions(),
            "finished_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - started, 2),
        }
        write_sealed(manifest, job.manifest)
        shutil.rmtree(job.parts)
    return manifest
