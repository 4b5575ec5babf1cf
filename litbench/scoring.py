"""Scoring files of any size: the same rows with rewards, in chunks that survive a kill.

    score_files(ScoringJob(spec, ("stories.jsonl",), Path("scored.parquet")))

Rows are read into an Arrow file beside the output, in chunks whose borders depend on the rows
alone. The rewards of a chunk are one small file (a part), so a killed run loses the chunks that it
was scoring. Several processes, started by `accelerate launch`, share the chunks; the main process
reads the input and writes the output.

Batches never cross the border of a chunk, and within it they depend on its rows and the rater's
options. So the output has the same bytes whether or not a run was killed, and whatever the number
of processes, as long as rater, options, device and threads of each process are the same. With
another batch size or device, rewards agree to 1e-5 in fp32 and not to the last bit.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from tqdm import tqdm

from litbench.artifact import (
    file_digest,
    fingerprint,
    source_digest,
    versions,
    write_atomically,
    write_json,
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
from litbench.tables import (
    RejectedRows,
    cut_rows,
    read_large_table,
    row_sizes,
    write_sorted_batches,
)
from litbench.text import digest, prompt_key

# Raise it when a change of the code changes rewards: parts of another version are scored again.
VERSION = 1
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".csv")
CHUNK_STORIES = 1_024
ADDED = ("reward", "rank_within_prompt", "beats_reference")
_CHUNK_BYTES = 64 << 20
_PART = np.dtype([("prompt", "u8"), ("story", "u8"), ("reward", "f8")])
_DIGEST_BYTES = 32
_MODEL_FILES = ("features.json", "litbench.json", "config.json", "adapter_config.json")


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
        reference_where: SQL condition on a row of `reference`.
        chunk_stories: most stories of a chunk.

    Raises:
        ConfigError: the job cannot be done.
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
        if not self.inputs:
            raise ConfigError("there is nothing to score: name an input")
        if self.out.suffix not in SUFFIXES:
            raise ConfigError(f"the output is {self.out}: end it in one of {', '.join(SUFFIXES)}")
        if self.out.is_dir():
            raise ConfigError(f"the output {self.out} is a folder: name a file")
        if self.chunk_stories < 1:
            raise ConfigError(f"a chunk of {self.chunk_stories} stories: take at least 1")
        names = {self.prompt_column, self.text_column}
        if len(names) < 2 or names & set(ADDED):
            raise ConfigError(
                f"prompt and story are in columns {self.prompt_column} and {self.text_column}: "
                f"name two columns, none of {', '.join(ADDED)}"
            )
        if self.reference_where is not None and self.reference is None:
            raise ConfigError("a condition on the reference needs a reference: name the file")
        written = {path.resolve() for path in (self.out, self.manifest, self.rejected_rows)}
        for source in (*self.inputs, *([] if self.reference is None else [self.reference])):
            if Path(source).resolve() in written:
                raise ConfigError(f"{source} is input and output: name another output")
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
            raise ConfigError(f"the reference {self.reference} is text: give a table")

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
    def target(self) -> Path:
        """The file that is written: `out`, or what it links to."""
        return self.out.resolve() if self.out.is_symlink() else self.out

    @property
    def parts(self) -> Path:
        """The folder of the parts until the output is whole; on the output's own disk."""
        return self.target.with_name(f"{self.target.name}.parts")

    @property
    def run(self) -> Path:
        """Rows and output of the current run."""
        return self.parts / "run"

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
    kind = str(entry["kind"]) if isinstance(entry, Mapping) and "kind" in entry else "rater"
    (spec,) = parse_raters({kind: entry})
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


# Reading --------------------------------------------------------------------------------------


def is_text(source: str) -> bool:
    """Whether a source is a text file, or a folder with text files and no saved data set."""
    path = Path(source)
    if path.is_dir():
        saved = any((path / name).exists() for name in ("state.json", "dataset_dict.json"))
        return not saved and next(path.rglob("*.txt"), None) is not None
    return path.suffix == ".txt"


def _text_files(sources: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Every text file with the name that its row gets; names on disk need not be UTF-8."""
    for source in map(Path, sources):
        if not source.exists():
            raise DataError(f"there is no file {source}: check the path")
        for file in sorted(source.rglob("*.txt")) if source.is_dir() else [source]:
            name = file.relative_to(source if source.is_dir() else source.parent)
            yield os.fsencode(name.as_posix()).decode("utf-8", "backslashreplace"), file


def _source_digest(source: str) -> str:
    """Digest of what is read of a source; whatever else lies beside text files is not read."""
    if is_text(source):
        return fingerprint([[name, file_digest(file)] for name, file in _text_files([source])])
    return source_digest(source)


def _gather_texts(job: ScoringJob, rejected_rows: RejectedRows) -> Path:
    """Write the stories of text files as a table with columns prompt, text and `file`."""
    gathered = job.run / "texts.jsonl"
    usable = 0
    with gathered.open("w", encoding="utf-8") as table:
        for name, file in _text_files(job.inputs):
            if file.stat().st_size > _CHUNK_BYTES:
                rejected_rows.add(name, 1, "(file)", f"larger than {_CHUNK_BYTES:,} bytes")
                continue
            try:
                # An editor ends a file with a line break that is no part of the story.
                story = file.read_text(encoding="utf-8-sig").rstrip("\n")
            except UnicodeDecodeError as error:
                found = f"at byte {error.start}"
                rejected_rows.add(name, 1, "(file)", "bytes that are not UTF-8", found)
                continue
            if not story.strip():
                rejected_rows.add(name, 1, "(file)", "no text")
                continue
            row = {job.prompt_column: job.prompt, job.text_column: story, "file": name}
            table.write(json.dumps(row) + "\n")
            usable += 1
    if not usable:
        raise DataError(f"{job.inputs[0]}: no usable text file: {rejected_rows.counts()}")
    return gathered


class _Source:
    """The input or the reference: its rows in chunks, and a part with the rewards of each chunk.

    Attributes:
        sizes: rows of every chunk; known to the main process.
        stories_cut: how many stories did not fit into the model and lost their end.
    """

    def __init__(
        self, job: ScoringJob, name: str, paths: Sequence[str], where: str | None, depends_on: Any
    ) -> None:
        self.name, self.paths, self.where = name, [*paths], where
        self.sha256 = [_source_digest(path) for path in paths]
        self.rejected_rows = RejectedRows()
        self.sizes: list[int] = []
        self.stories_cut = 0
        columns = (job.prompt_column, job.text_column)
        mark = fingerprint(self.sha256, columns, job.prompt, where, job.chunk_stories, depends_on)
        self.folder = job.parts / f"{name}-{mark[:16]}"
        self._rows = job.run / f"{name}.arrow"

    def part(self, number: int) -> Path:
        return self.folder / f"{number:07d}"

    def read(self, job: ScoringJob) -> None:
        """Write the rows in chunks.

        Raises:
            DataError: no such input, no usable row, or a column that the output cannot hold.
        """
        paths: list[Any] = self.paths
        if is_text(paths[0]):
            paths = [_gather_texts(job, self.rejected_rows)]
        scratch = job.run / "scratch"
        scratch.mkdir()
        columns = {name: name for name in (job.prompt_column, job.text_column)}
        table = read_large_table(
            paths, job.schema, scratch, columns=columns, rejected_rows=self.rejected_rows,
            where=self.where,
        )  # fmt: skip
        for one in table.schema if self.name == "input" else ():
            if one.name not in ADDED and not _fits(one.type, job.out.suffix):
                # Said now and not after hours of scoring.
                raise DataError(
                    f"{self.paths[0]}: column '{one.name}' ({one.type}) does not fit into "
                    f"{job.out.name}: write .parquet, or leave the column out"
                )
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(self._rows, table.schema, options=options) as writer:
            for batch in _cut(table.chunks(), job.chunk_stories):
                writer.write_batch(batch)
                self.sizes.append(batch.num_rows)
        shutil.rmtree(scratch)

    def chunks(self, numbers: Iterable[int] | None = None) -> Iterator[pa.Table]:
        """Some chunks, or all."""
        with pa.memory_map(str(self._rows)) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches) if numbers is None else numbers:
                yield pa.Table.from_batches([reader.get_batch(number)])

    @property
    def schema(self) -> pa.Schema:
        with pa.memory_map(str(self._rows)) as file:
            return pa.ipc.open_file(file).schema

    def missing(self) -> list[int]:
        """The chunks without a part, or with a damaged one."""
        with pa.memory_map(str(self._rows)) as file:
            count = pa.ipc.open_file(file).num_record_batches
        return [number for number in range(count) if _read_part(self.part(number)) is None]

    def stories(self) -> np.ndarray:
        """Keys and rewards of all rows, dtype _PART, shape (n,)."""
        parts = [_read_part(self.part(number)) for number in range(len(self.sizes))]
        if any(part is None for part in parts):
            raise DataError(f"a part in {self.folder} is damaged or missing: run the command again")
        self.stories_cut = sum(cut for _, cut in filter(None, parts))
        return np.concatenate([stories for stories, _ in filter(None, parts)])


def _cut(tables: Iterable[pa.Table], most_rows: int) -> Iterator[pa.RecordBatch]:
    """Cut rows into chunks whose borders do not depend on how the rows came."""
    waiting: pa.Table | None = None
    for table in tables:
        waiting = table if waiting is None else pa.concat_tables([waiting, table])
        start = 0
        # The last chunk may still grow.
        for end in cut_rows(row_sizes(waiting), most_rows, _CHUNK_BYTES)[:-1]:
            yield waiting.slice(start, end - start).combine_chunks().to_batches()[0]
            start = end
        waiting = waiting.slice(start)
    if waiting is not None:
        yield waiting.combine_chunks().to_batches()[0]


# Rewards --------------------------------------------------------------------------------------


def _write_part(path: Path, stories: np.ndarray, cut: int) -> None:
    body = cut.to_bytes(8, "little") + stories.tobytes()
    whole = hashlib.sha256(body).digest() + body
    write_atomically(path, lambda part: part.write_bytes(whole))


def _read_part(path: Path) -> tuple[np.ndarray, int] | None:
    """The stories of a part, and how many of them were cut; None if it is absent or damaged."""
    try:
        whole = path.read_bytes()
    except FileNotFoundError:
        return None
    body = whole[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != whole[:_DIGEST_BYTES]:
        return None
    return np.frombuffer(body, _PART, offset=8), int.from_bytes(body[:8], "little")


def _score_chunk(job: ScoringJob, rater: ScoreRater, table: pa.Table, path: Path) -> None:
    prompts = table[job.prompt_column].to_pylist()
    texts = table[job.text_column].to_pylist()
    keys = {prompt: prompt_key(prompt) for prompt in set(prompts)}
    cut = -rater.notes().get("stories_cut", 0)
    stories = np.empty(len(texts), _PART)
    # Minus zero is zero, also to what compares rewards bit by bit.
    stories["reward"] = finite_rewards(rater, prompts, texts) + 0.0
    stories["prompt"] = [int(keys[prompt][:16], 16) for prompt in prompts]
    pairs = zip(prompts, texts, strict=True)
    stories["story"] = [int(digest(keys[prompt], text)[:16], 16) for prompt, text in pairs]
    _write_part(path, stories, cut + rater.notes().get("stories_cut", 0))


# Ranks, shares and the variance between prompts -----------------------------------------------


def _levels(*rewards: np.ndarray) -> list[np.ndarray]:
    """Rewards by their rank among all of them; equal ones share it."""
    levels = np.unique(np.concatenate(rewards), return_inverse=True)[1].astype(np.int64)
    return np.split(levels, np.cumsum([len(one) for one in rewards])[:-1])


def _compare(
    keys: np.ndarray, levels: np.ndarray, other_keys: np.ndarray, other_levels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compare stories with the others of the same key.

    Args:
        keys: shape (n,).
        levels: shape (n,).
        other_keys: shape (m,).
        other_levels: shape (m,).

    Returns:
        How many others have a lower level, the same one, and any; int64, shape (n,) each.
    """
    groups = np.unique(np.concatenate([keys, other_keys]), return_inverse=True)[1]
    # One number that rises with the key, then with the level.
    size = 1 + max(int(levels.max()), int(other_levels.max()))
    start, other_start = np.split(groups.astype(np.int64) * size, [len(keys)])
    others = np.sort(other_start + other_levels)
    first, last = (np.searchsorted(others, start + end) for end in (0, size))
    low, high = (np.searchsorted(others, start + levels, side) for side in ("left", "right"))
    return low - first, high - low, last - first


def _ranks(stories: np.ndarray) -> np.ndarray:
    """Rank within the prompt, 1 the best, equal rewards sharing it; int64, shape (n,)."""
    (levels,) = _levels(stories["reward"])
    prompts = stories["prompt"]
    lower, equal, total = _compare(prompts, levels, prompts, levels)
    ranks: np.ndarray = 1 + total - lower - equal
    return ranks


def _shares_beaten(stories: np.ndarray, humans: np.ndarray) -> np.ndarray:
    """Share of the human stories of its prompt that a story beats, ties one half; shape (n,).

    A story is not compared with its own copies; NaN where nothing is left to compare it with.
    """
    levels, human_levels = _levels(stories["reward"], humans["reward"])
    beaten, met = np.zeros(len(stories)), np.zeros(len(stories))
    for key, sign in (("prompt", 1), ("story", -1)):
        lower, equal, total = _compare(stories[key], levels, humans[key], human_levels)
        beaten += sign * (lower + equal / 2)
        met += sign * total
    shares: np.ndarray = np.divide(beaten, met, out=np.full(len(met), np.nan), where=met > 0)
    return shares


def share_between_prompts(prompts: np.ndarray, rewards: np.ndarray) -> float | None:
    """Share of the rewards' variance that lies between prompts, 0 to 1; None if undetermined.

    One-way random effects, the intraclass correlation by the analysis of variance:

        share = s / (s + MSW),  s = max(0, (MSB - MSW) / n0),
        n0 = (N - sum(n^2) / N) / (k - 1)

    with N stories of k prompts, n of each (Searle, Casella and McCulloch, Variance Components,
    1992, section 3.6, for groups of unequal size).

    Args:
        prompts: key of each story's prompt, shape (n,).
        rewards: shape (n,).
    """
    groups, sizes = np.unique(prompts, return_inverse=True, return_counts=True)[1:]
    stories, k = len(rewards), len(sizes)
    if k < 2 or stories == k:
        return None
    means = np.bincount(groups, rewards) / sizes
    within = ((rewards - means[groups]) ** 2).sum() / (stories - k)
    between = (sizes * (means - rewards.mean()) ** 2).sum() / (k - 1)
    size = (stories - (sizes**2).sum() / stories) / (k - 1)
    component = max(0.0, (between - within) / size)
    return float(component / (component + within)) if component + within > 0 else None


# Writing --------------------------------------------------------------------------------------


def _fits(kind: pa.DataType, suffix: str) -> bool:
    """Whether a format holds the values of a type, whose name contains those of its parts."""
    if suffix == ".parquet":
        return True
    if suffix == ".csv" and pa.types.is_nested(kind):
        return False
    only_csv = () if suffix == ".csv" else ("duration", "time32", "time64")
    return not any(word in str(kind) for word in ("binary", "interval", *only_csv))


def _json_line(row: Mapping[str, Any], lost: Counter[str]) -> str:
    """A row as JSON, which has no NaN and no infinity: they become null and are counted."""
    line = json.dumps(row, ensure_ascii=False, default=str)
    if "NaN" in line or "Infinity" in line:
        clean = {}
        for name, value in row.items():
            found: list[str] = []
            text = json.dumps(value, default=str)
            clean[name] = json.loads(text, parse_constant=found.append)
            lost.update({name: len(found)} if found else {})
        line = json.dumps(clean, ensure_ascii=False)
    return line + "\n"


def _write_output(job: ScoringJob, source: _Source, added: Mapping[str, pa.Array]) -> Counter[str]:
    """Write the rows with the added columns; return the numbers made null, by column."""
    kept = [one for one in source.schema if one.name not in ADDED]
    schema = pa.schema([*kept, *((name, column.type) for name, column in added.items())])

    def batches() -> Iterator[pa.RecordBatch]:
        start = 0
        for chunk in source.chunks():
            size = chunk.num_rows
            columns = [chunk[one.name].combine_chunks() for one in kept]
            columns += [column.slice(start, size) for column in added.values()]
            yield pa.record_batch(columns, schema)
            start += size

    lost: Counter[str] = Counter()
    ready = job.run / f"output{job.out.suffix}"
    if job.out.suffix == ".parquet":
        reader = pa.RecordBatchReader.from_batches(schema, batches())
        write_sorted_batches(reader, job.schema, ready)
    elif job.out.suffix == ".csv":
        with pa_csv.CSVWriter(ready, schema) as writer:
            for batch in batches():
                writer.write_batch(batch)
    else:
        with ready.open("w", encoding="utf-8") as file:
            for batch in batches():
                file.writelines(_json_line(row, lost) for row in batch.to_pylist())
    ready.replace(job.target)
    return lost


def _write_rejected(job: ScoringJob, sources: Iterable[_Source]) -> None:
    """Write the rejected rows of all sources; the file of an older run goes."""
    lines = b""
    for source in sources:
        path = job.run / f"{source.name}.rejected.jsonl"
        source.rejected_rows.write(path)
        lines += path.read_bytes()
    if lines:
        write_atomically(job.rejected_rows, lambda path: path.write_bytes(lines))
    else:
        job.rejected_rows.unlink(missing_ok=True)


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


@contextlib.contextmanager
def _locked(job: ScoringJob) -> Iterator[None]:
    """Hold the folder of parts, in which a second run would undo what this one does.

    Raises:
        DataError: another run holds it.
    """
    job.parts.mkdir(parents=True, exist_ok=True)
    path = job.parts / "lock"
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(
                f"{job.parts} is in use by another run: wait until it is done, or stop it"
            ) from error
        shutil.rmtree(job.run, ignore_errors=True)
        job.run.mkdir()
        try:
            yield
        finally:
            shutil.rmtree(job.run, ignore_errors=True)
            path.unlink(missing_ok=True)
            # Without any part, as when no row could be read, no folder stays.
            with contextlib.suppress(OSError):
                job.parts.rmdir()


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
        sources = [_Source(job, "input", job.inputs, job.where, depends_on)]
        if job.reference is not None:
            paths = (job.reference,)
            sources.append(_Source(job, "reference", paths, job.reference_where, depends_on))
        mark = fingerprint([source.folder.name for source in sources], job.out.suffix)
        if (manifest := _current(job, mark)) is not None:
            return {**manifest, "unchanged": True} if is_main else None
        rater = load_scorer(job.rater)
        try:
            with _locked(job) if is_main else contextlib.nullcontext():
                for source in sources if is_main else ():
                    source.read(job)
                wait_for_all()
                work = [(source, source.missing()) for source in sources]
                # No process scores before all have seen what is missing.
                wait_for_all()
                scoring_started = time.time()
                for source, numbers in work:
                    mine = [number for number in numbers if number % count == index]
                    _score(job, rater, source, mine, is_main=is_main)
                wait_for_all()
                if not is_main:
                    return None
                manifest = {
                    "command": "litbench score",
                    "fingerprint": mark,
                    "rater": as_plain(job.rater),
                    "models": depends_on["models"],
                    **{one.name: {"paths": one.paths, "sha256": one.sha256} for one in sources},
                    "options": {
                        name: getattr(job, name)
                        for name in (
                            "prompt_column", "text_column", "prompt", "where", "reference_where",
                            "chunk_stories",
                        )
                    },
                    "processes": count,
                    # Of this run alone, which may have gone on from another.
                    "stories_scored": sum(one.sizes[n] for one, numbers in work for n in numbers),
                    "scoring_seconds": round(time.time() - scoring_started, 2),
                    **_finish(job, *sources),
                    "notes": {k: v for k, v in rater.notes().items() if k != "stories_cut"},
                    "versions": versions(),
                    "finished_utc": datetime.now(UTC).isoformat(timespec="seconds"),
                    "seconds": round(time.time() - started, 2),
                }  # fmt: skip
                write_json(manifest, job.manifest)
                shutil.rmtree(job.parts)
        except OSError as error:
            raise DataError(
                f"cannot write {job.out} by way of {job.parts} ({error}): free space and run the "
                "same command again; finished chunks are kept"
            ) from error
    return manifest


def _score(
    job: ScoringJob, rater: ScoreRater, source: _Source, numbers: list[int], *, is_main: bool
) -> None:
    total = sum(source.sizes[number] for number in numbers) if is_main else None
    with tqdm(
        total=total, desc=f"score the {source.name}", unit=" stories",
        disable=None if is_main else True,
    ) as bar:  # fmt: skip
        for number, chunk in zip(numbers, source.chunks(numbers), strict=True):
            _score_chunk(job, rater, chunk, source.part(number))
            bar.update(chunk.num_rows)


def _finish(job: ScoringJob, source: _Source, reference: _Source | None = None) -> dict[str, Any]:
    """Write output and rejected rows; return what the manifest says of them."""
    stories = source.stories()
    added = {
        "reward": pa.array(stories["reward"]),
        "rank_within_prompt": pa.array(_ranks(stories)),
    }
    if reference is not None:
        shares = _shares_beaten(stories, reference.stories())
        added["beats_reference"] = pa.array(shares, mask=np.isnan(shares))
    lost = _write_output(job, source, added)
    _write_rejected(job, [source] if reference is None else [source, reference])
    counts = {
        "stories": len(stories),
        "rejected_rows": source.rejected_rows.counts(),
        "left_out_by_where": source.rejected_rows.not_selected,
        "stories_cut": source.stories_cut,
        "not_finite_made_null": dict(sorted(lost.items())),
    }
    if reference is not None:
        counts |= {
            "reference_stories": sum(reference.sizes),
            "reference_rejected_rows": reference.rejected_rows.counts(),
            "reference_left_out_by_where": reference.rejected_rows.not_selected,
            "reference_stories_cut": reference.stories_cut,
            "stories_with_reference": int((~np.isnan(shares)).sum()),
        }
    share = share_between_prompts(stories["prompt"], stories["reward"])
    prompts = len(np.unique(stories["prompt"]))
    said = "how large it is here cannot be told"
    if share is not None:
        said = f"here {share:.0%} of the rewards' variance lies between prompts"
    return {
        "output": {"path": str(job.out), "sha256": file_digest(job.out)},
        "replaced_columns": [name for name in ADDED if name in source.schema.names],
        "counts": counts,
        "across_prompts": {
            "share_of_variance_between_prompts": share,
            "prompts": prompts,
            "warning": "rewards can be compared within a prompt only: each prompt has a free "
            f"offset, and {said} ({len(stories):,} stories, {prompts:,} "
            f"prompt{'s' * (prompts != 1)})",
        },
    }
