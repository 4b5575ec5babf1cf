"""Story, Pair, Verdict: the schemas, reading and writing them.

Three tables carry everything (`STORIES`, `PAIRS`, `VERDICTS`). They are Arrow tables in memory
and Parquet on disk; JSONL, CSV and `datasets` go in and out. Times are whole seconds since 1970
in UTC. A row that breaks its schema is set aside with its reason when the caller brings a
`RejectedRows`, and is an error that names file, row and column when not.
"""

import hashlib
import heapq
import itertools
import json
import os
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from litbench.errors import DataError, MissingExtraError
from litbench.text import prompt_key

Kind = Literal["text", "integer", "number", "time"]

ARROW_TYPES = {
    "text": pa.large_string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "time": pa.int64(),
}
_ROW_GROUP = 16_384
_ROW_GROUP_BYTES = 256 << 20
_BATCH_ROWS = 1_000


@dataclass(frozen=True)
class Column:
    """One column of a schema; `required` columns exist and hold no null."""

    name: str
    kind: Kind
    about: str
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schema:
    """A table's columns, in the order in which they are written.

    Attributes:
        name: what the table is called in messages.
        columns: the declared columns; a table may have more.
        key: columns that together name a row.
        latest: a column of times; of rows with one key the latest is the one to keep.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    latest: str | None = None

    def arrow(self) -> pa.Schema:
        """The Arrow schema of the declared columns."""
        return pa.schema(
            [pa.field(c.name, ARROW_TYPES[c.kind], nullable=not c.required) for c in self.columns]
        )


STORIES = Schema(
    "stories",
    (
        Column("story_id", "text", "unique name of the story", required=True),
        Column("prompt_id", "text", "the post or task it answers", required=True),
        Column("prompt", "text", "the prompt's text", required=True),
        Column("text", "text", "the story's text", required=True),
        Column("n_words", "integer", "length in words, see litbench.text", required=True),
        Column("source", "text", "where it comes from", required=True),
        Column("score", "integer", "net upvotes; may be negative"),
        Column("score_utc", "time", "when the score was read"),
        Column("created_utc", "time", "when the story was posted"),
        Column("author", "text", "salted hash of the author's name"),
        Column("flair", "text", "the post's tag, such as WP"),
        Column("n_tokens", "integer", "length in tokens of the tokenizer the manifest names"),
    ),
    key=("story_id",),
    latest="score_utc",
)

PAIRS = Schema(
    "pairs",
    (
        Column("pair_id", "text", "unique name; the same whichever side is chosen", required=True),
        Column("prompt_id", "text", "the prompt both stories answer", required=True),
        Column("prompt", "text", "the prompt's text", required=True),
        Column("chosen", "text", "text of the preferred story", required=True),
        Column("rejected", "text", "text of the other story", required=True),
        Column(
            "label_source",
            "text",
            "who preferred it",
            required=True,
            choices=("votes", "people", "model", "planted"),
        ),
        Column("split", "text", "train, test or another name; all when not split", required=True),
        Column("chosen_story_id", "text", "story_id of chosen", required=True),
        Column("rejected_story_id", "text", "story_id of rejected", required=True),
        Column("chosen_n_words", "integer", "words of chosen", required=True),
        Column("rejected_n_words", "integer", "words of rejected", required=True),
        Column("chosen_score", "integer", "net upvotes of chosen"),
        Column("rejected_score", "integer", "net upvotes of rejected"),
        Column("chosen_created_utc", "time", "when chosen was posted"),
        Column("rejected_created_utc", "time", "when rejected was posted"),
        Column("chosen_author", "text", "salted hash"),
        Column("rejected_author", "text", "salted hash"),
        Column("margin", "number", "by how much chosen should lead, in reward"),
        Column("weight", "number", "weight of the pair in training"),
        Column("fold", "text", "fold the source assigned"),
    ),
    key=("pair_id",),
)

OUTCOMES = ("chosen", "rejected", "tie", "unparsed", "refused", "cut", "error")

VERDICTS = Schema(
    "verdicts",
    (
        Column("pair_id", "text", "the pair judged", required=True),
        Column("rater", "text", "name of the rater in the run's config", required=True),
        Column("kind", "text", "kind of rater", required=True),
        Column("order", "text", "story that stood first; null without order",
               choices=("chosen", "rejected")),
        Column("outcome", "text", "what the rater decided", required=True, choices=OUTCOMES),
        Column("p_chosen", "number", "probability given to the chosen story, 0 to 1"),
        Column("reward_chosen", "number", "reward of the chosen story"),
        Column("reward_rejected", "number", "reward of the rejected story"),
        Column("label_mass", "number", "probability that the answer was a label at all, 0 to 1"),
        Column("explanation", "text", "what the rater wrote"),
        Column("input_tokens", "integer", "tokens read"),
        Column("output_tokens", "integer", "tokens written"),
        Column("cost_usd", "number", "price paid"),
        Column("seconds", "number", "time spent on this verdict"),
        Column("fold", "text", "repeat/fold whose model judged it; null outside cross-validation"),
    ),
    key=("pair_id", "rater", "order", "fold"),
)  # fmt: skip


class RejectedRows:
    """Rows that could not be used, each with its reason; any number of them, in little memory.

    Counts are exact. The rows themselves are kept in memory while they are few and in a temporary
    file (in `$TMPDIR`) once they are many.

    Attributes:
        not_selected: rows left out because the caller's own condition said so.
        empty_lists: rows of a nested set whose lists are empty, so that they hold no row.
    """

    _MOST_IN_MEMORY = 10_000

    def __init__(self) -> None:
        self.not_selected = 0
        self.empty_lists = 0
        self._counts: Counter[str] = Counter()
        self._waiting: list[dict[str, Any]] = []
        self._spilled: BinaryIO | None = None
        # Where each run of sorted rows starts and ends in the temporary file.
        self._runs: list[tuple[int, int]] = []

    def add(self, file: str, row: int, column: str, reason: str, value: Any = None) -> None:
        """Note one row; `row` counts from 1 in the file's own order.

        Raises:
            DataError: there is no room for the rows on the disk.
        """
        shown = None if value is None else repr(value)[:120]
        self._counts[f"{column}: {reason}"] += 1
        self._waiting.append(
            {"file": file, "row": row, "column": column, "reason": reason, "value": shown}
        )
        if len(self._waiting) >= self._MOST_IN_MEMORY:
            self._spill()

    @property
    def total(self) -> int:
        """How many rows were noted."""
        return self._counts.total()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows at once: file, row (from 1), column, reason and the start of the value."""
        return [*itertools.chain.from_iterable(map(self._read_run, self._runs)), *self._waiting]

    def counts(self) -> dict[str, int]:
        """How many rows per column and reason, most frequent first."""
        return dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0])))

    def summary(self) -> str:
        """Lines for the terminal; empty when every row could be used."""
        lines = [
            f"  set aside: {count:,} rows, {reason} (see rejected.jsonl)\n"
            for reason, count in self.counts().items()
        ]
        if self.not_selected:
            lines.append(f"  left out by where: {self.not_selected:,} rows\n")
        if self.empty_lists:
            lines.append(f"  lists without an element: {self.empty_lists:,} rows\n")
        return "".join(lines)

    def write(self, path: Path) -> None:
        """Write the rows as JSONL, by file and in the order of the file."""
        waiting = sorted(self._waiting, key=_by_place)
        runs = [*map(self._read_run, self._runs), iter(waiting)]
        with path.open("w", encoding="utf-8") as file:
            for row in heapq.merge(*runs, key=_by_place):
                file.write(json.dumps(row, ensure_ascii=True) + "\n")

    def _spill(self) -> None:
        rows = sorted(self._waiting, key=_by_place)
        lines = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows).encode()
        try:
            if self._spilled is None:
                self._spilled = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
                weakref.finalize(self, self._spilled.close)
            start = self._spilled.seek(0, os.SEEK_END)
            self._spilled.write(lines)
            self._spilled.flush()
        except OSError as error:
            raise DataError(
                f"cannot note the rows set aside in {tempfile.gettempdir()} ({error}): free space "
                "there or set TMPDIR to another folder"
            ) from error
        self._runs.append((start, start + len(lines)))
        self._waiting = []

    def _read_run(self, run: tuple[int, int]) -> Iterator[dict[str, Any]]:
        assert self._spilled is not None
        start, end = run
        rest = b""
        while start < end:
            # By place, since several runs are read in turn.
            block = os.pread(self._spilled.fileno(), min(end - start, 1 << 16), start)
            start += len(block)
            *lines, rest = (rest + block).split(b"\n")
            yield from map(json.loads, lines)


def _by_place(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["file"], row["row"]


def check_parquet(path: Path, schema: Schema) -> None:
    """Check a Parquet file's columns and nulls against a schema.

    Texts are read only where the file does not say how many nulls they have.

    Raises:
        DataError: no such file, not Parquet, no rows, a column missing, of another type, or null
            where it must not be.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}: check the path, or run the step that writes it")
    try:
        # With a buffer and without pre-buffering, pages are read as they are needed.
        file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a Parquet file ({error}): make it again") from error
    if file.metadata.num_rows == 0:
        raise DataError(f"{path} holds no rows: make it again")
    given = file.schema_arrow
    for column in schema.columns:
        if column.name not in given.names:
            raise DataError(
                f"{path}: column '{column.name}' is missing ({column.about}): make the file with "
                f"the program that writes {schema.name}"
            )
        found, wanted = given.field(column.name).type, ARROW_TYPES[column.kind]
        text = pa.types.is_string(found) or pa.types.is_large_string(found)
        if not (text if column.kind == "text" else found == wanted):
            raise DataError(
                f"{path}: column '{column.name}' holds {found}, not {wanted}: make it again"
            )
        if column.required:
            nulls = _count_nulls(file, path, column.name)
            if nulls:
                raise DataError(f"{path}: column '{column.name}' has {nulls} nulls: make it again")


def _count_nulls(file: pq.ParquetFile, path: Path, name: str) -> int:
    """Nulls of a column, by the file's own statistics where it has them."""
    # A column of lists or objects has a place for each of its parts.
    paths = [file.schema.column(place).path for place in range(len(file.schema))]
    place = paths.index(name)
    nulls = 0
    for group in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(group).column(place).statistics
        if statistics is not None and statistics.has_null_count:
            nulls += statistics.null_count
            continue
        try:
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[name]):
                nulls += batch.column(0).null_count
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path}: column '{name}' cannot be read ({error}): make it again"
            ) from error
    return nulls


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table as Parquet, JSONL or CSV by the path's ending, or else as a `datasets` folder.

    The same table gives the same bytes, whatever its chunks. CSV has no types: there an empty
    text is read back as null and an extra column as text.

    Raises:
        DataError: a column holds what the format cannot, such as lists in CSV.
        MissingExtraError: a folder was asked for and `datasets` is not installed.
    """
    if path.suffix == ".parquet":
        with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
            for start in range(0, max(table.num_rows, 1), _ROW_GROUP):
                # Arrow ends a page where a chunk ends, so chunks would show in the bytes.
                writer.write_table(table.slice(start, _ROW_GROUP).combine_chunks())
    elif path.suffix in (".jsonl", ".ndjson"):
        with path.open("w", encoding="utf-8") as file:
            for row in iterate_rows(table):
                file.write(json.dumps(row, ensure_ascii=False, default=_plain) + "\n")
    elif path.suffix == ".csv":
        for one in table.schema:
            if pa.types.is_nested(one.type):
                raise DataError(
                    f"{path}: CSV cannot hold column '{one.name}' ({one.type}): use Parquet"
                )
        pa_csv.write_csv(table, path)
    else:
        try:
            import datasets  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("datasets", "data") from error
        # Chunks become record batches, and so would show in the bytes.
        whole = datasets.table.InMemoryTable(table.combine_chunks())
        datasets.Dataset(whole).save_to_disk(str(path))


def _plain(value: Any) -> str:
    if isinstance(value, date | Decimal):
        return str(value)
    raise DataError(f"JSONL cannot hold {value!r:.80} ({type(value).__name__}): use Parquet")


def iterate_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows as dictionaries, a batch at a time."""
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
        yield from batch.to_pylist()


def empty_columns(schema: Schema, rows: int) -> dict[str, pa.Array]:
    """Null columns for every declared column of a schema; shape (rows,) each."""
    return {column.name: pa.nulls(rows, ARROW_TYPES[column.kind]) for column in schema.columns}


def pair_id(story_a: str, story_b: str) -> str:
    """Name a pair by its two stories; the same in either order, and in SQL (md5 of "low|high")."""
    low, high = sorted((story_a, story_b))
    return hashlib.md5(f"{low}|{high}".encode(), usedforsecurity=False).hexdigest()


def prompt_keys(table: pa.Table) -> list[str]:
    """`litbench.text.prompt_key` of every row's prompt: what all statistics cluster by."""
    prompts = table["prompt"].to_pylist()
    keys = {prompt: prompt_key(prompt) for prompt in set(prompts)}
    return [keys[prompt] for prompt in prompts]


def numbers_of_pairs(pairs: pa.Table, name: str, otherwise: float) -> np.ndarray:
    """A column of numbers that is there for all pairs or for none.

    Args:
        pairs: table by the schema PAIRS.
        name: the column.
        otherwise: what every pair gets where none has it.

    Returns:
        float64, shape (n,).

    Raises:
        DataError: it is null in some pairs only, or not finite.
    """
    column = pairs[name] if name in pairs.column_names else None
    if column is None or column.null_count == len(column):
        return np.full(pairs.num_rows, otherwise, dtype=np.float64)
    if column.null_count:
        raise DataError(
            f"column {name} is null in {column.null_count} of {len(column)} pairs: give every pair "
            f"a {name}, or none"
        )
    values: np.ndarray = column.to_numpy().astype(np.float64)
    if not np.isfinite(values).all():
        raise DataError(
            f"column {name} is no finite number in {int((~np.isfinite(values)).sum())} of "
            f"{len(values)} pairs: mend these values, or leave the pairs out"
        )
    return values


def pair_weights(pairs: pa.Table) -> np.ndarray:
    """Weight of every pair in training, float64, shape (n,); 1 where no pair has one.

    Raises:
        DataError: weights on some pairs only, or one that is not a finite number above 0.
    """
    weight = numbers_of_pairs(pairs, "weight", 1.0)
    if (weight <= 0).any():
        raise DataError(
            f"column weight is not above 0 in {int((weight <= 0).sum())} of {len(weight)} pairs: "
            "leave these pairs out"
        )
    return weight


def row_sizes(table: pa.Table) -> np.ndarray:
    """Bytes of the texts of every row; int64, shape (rows,)."""
    sizes = np.zeros(table.num_rows, dtype=np.int64)
    for column in table.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            lengths = pc.fill_null(pc.binary_length(column), 0)
            sizes += lengths.to_numpy().astype(np.int64, copy=False)
    return sizes


def cut_rows(sizes: np.ndarray, most_rows: int, most_bytes: int) -> list[int]:
    """Cut rows into groups of at most so many rows and bytes; a single row may be larger.

    Args:
        sizes: bytes of each row, see `row_sizes`.
        most_rows: of a group.
        most_bytes: of a group of several rows.

    Returns:
        The end of each group. A group depends on no row after it but the next.
    """
    until = np.cumsum(sizes)
    ends: list[int] = []
    start = 0
    while start < len(sizes):
        before = until[start - 1] if start else 0
        fit = int(np.searchsorted(until, before + most_bytes, side="right"))
        start = min(start + most_rows, max(start + 1, fit), len(sizes))
        ends.append(start)
    return ends


def write_sorted_batches(batches: pa.RecordBatchReader, schema: Schema, path: Path) -> int:
    """Write a stream of rows as Parquet with a schema's columns first; return the rows written.

    Row groups go by rows and bytes whatever the batches, so the same rows give the same bytes,
    and no more than one group is held in memory.
    """
    names = [column.name for column in schema.columns]
    extra = [name for name in batches.schema.names if name not in names]
    target = pa.schema(
        [*schema.arrow(), *(batches.schema.field(name).with_metadata(None) for name in extra)]
    )
    rows = 0
    with pq.ParquetWriter(path, target, compression="zstd") as writer:
        waiting = target.empty_table()
        sizes = np.zeros(0, dtype=np.int64)
        for batch in itertools.chain(batches, [None]):
            if batch is not None:
                table = pa.Table.from_batches([batch]).select(target.names).cast(target)
                waiting = pa.concat_tables([waiting, table])
                sizes = np.concatenate([sizes, row_sizes(table)])
                if len(sizes) < _ROW_GROUP and sizes.sum() < _ROW_GROUP_BYTES:
                    continue
            ends = cut_rows(sizes, _ROW_GROUP, _ROW_GROUP_BYTES)
            if batch is not None and ends and ends[-1] - ([0, *ends])[-2] < _ROW_GROUP:
                # The last group may still grow.
                ends.pop()
            for start, end in itertools.pairwise([0, *ends]):
                # Arrow ends a page where a chunk ends, so chunks would show in the bytes.
                group = waiting.slice(start, end - start).combine_chunks()
                writer.write_table(group, row_group_size=_ROW_GROUP)
            written = ends[-1] if ends else 0
            waiting, sizes = waiting.slice(written), sizes[written:]
            rows += written
    return rows
