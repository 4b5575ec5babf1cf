"""Make the stories table: read raw rows, map their columns, clean the texts, count words.

The input is streamed, so it can be of any size; the order of its rows is kept. While it runs, it
needs disk space in the output folder for a second copy of the rows.
"""

import glob
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from litbench.data.curation.cleaning import Cleaning, clean_table
from litbench.data.curation.funnel import Examples
from litbench.data.curation.tokens import count_tokens, load_tokenizer, locate_tokenizer
from litbench.data.ingest import RejectedRows, StreamingTable
from litbench.data.records import STORIES
from litbench.data.sample import read_sample, sample_path
from litbench.data.sources.posts import hash_accounts, is_reddit_shaped, unescape
from litbench.data.tables import write_sorted_batches
from litbench.data.text import count_words
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact, only_writer
from litbench.runs.progress import ProgressBar

# Rows between updates of the progress bar.
_PIECE_ROWS = 1_000
# Longer stories are not tokenised; their number of words is used as their number of tokens.
_MAX_WORDS_TOKENIZED = 20_000
# Key of the number of stories with Reddit's escapes.
_UNESCAPED = "unescape"


@dataclass
class StoryMaking:
    """Input, columns and cleaning of a stories table.

    Attributes:
        out: output folder.
        input: `sample`, a file, a pattern that matches several files such as
            "archive/*/stories.parquet", a folder saved by datasets, or
            owner/name[@revision][:split] on the Hub.
        columns: maps each column of the stories table to a column of the input or to an SQL
            expression (DuckDB) over the input's columns, such as
            "strftime(to_timestamp(created_utc), '%Y-%m')", "md5(concat_ws('|', title, body))" for
            data without ids, or "'a constant'"; "unnest(comments)" makes one row per element.
        where: SQL condition on the input's columns; rows that fail it are counted and left out.
        encoding: encoding of text files, such as cp1252; null: UTF-8, or detected.
        source: value of the column `source`, unless `columns` maps it.
        cleaning: cleaning steps, applied before words and tokens are counted.
        tokenizer: `package:NAME/folder`, a folder or file, or a name on the Hub; null skips
            counting tokens.
    """

    out: Path
    input: str = "sample"
    columns: dict[str, str] = field(default_factory=dict)
    where: str | None = None
    encoding: str | None = None
    source: str = "input"
    cleaning: Cleaning = field(default_factory=Cleaning)
    tokenizer: str | None = None


def _find_inputs(pattern: str) -> list[str]:
    """Return the files that match a pattern, sorted by name, or the input itself."""
    if not any(mark in pattern for mark in "*?[") or Path(pattern).exists():
        return [pattern]
    # Path.glob does not accept absolute patterns.
    files = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
    if not files:
        raise DataError(
            f"no file matches {pattern}: check the path, or run the step that writes the files"
        )
    return files


def _prepare(
    chunks: Iterable[pa.Table],
    config: StoryMaking,
    names: Sequence[str],
    cut: Counter[str],
    examples: Examples,
) -> Iterator[pa.Table]:
    """Clean the texts and count words and tokens; adds the changed texts per step to `cut`.

    Texts of Reddit's JSON are unescaped first.
    """
    is_escaped = is_reddit_shaped({**{name: name for name in names}, **config.columns})
    tokenizer = None if config.tokenizer is None else load_tokenizer(config.tokenizer)
    pieces = (
        chunk.slice(start, _PIECE_ROWS)
        for chunk in chunks
        for start in range(0, chunk.num_rows, _PIECE_ROWS)
    )
    for piece in pieces:
        table = _unescaped(piece, cut) if is_escaped else piece
        table, changed = clean_table(table, config.cleaning, {"text": "story_id"}, examples)
        cut.update(changed)
        n_words = table["n_words"].to_numpy().copy()
        edited = np.flatnonzero(pc.not_equal(table["text"], piece["text"]).to_numpy())
        n_words[edited] = count_words(table["text"].take(pa.array(edited))).to_numpy()
        counts = {"n_words": n_words}
        if tokenizer is not None:
            texts = table["text"].to_pylist()
            counts["n_tokens"] = count_tokens(tokenizer, texts, n_words, _MAX_WORDS_TOKENIZED)
        for name, values in counts.items():
            table = table.set_column(table.column_names.index(name), name, pa.array(values))
        yield table


def _unescaped(table: pa.Table, changed: Counter[str]) -> pa.Table:
    """Undo Reddit's escapes in prompts and stories; adds the changed stories to `changed`."""
    for name in ("prompt", "text"):
        index = table.column_names.index(name)
        before = table[name]
        after = pa.array(map(unescape, before.to_pylist()), before.type)
        table = table.set_column(index, name, after)
    changed[_UNESCAPED] += pc.sum(pc.not_equal(before.combine_chunks(), after)).as_py()
    return table


def make_stories(config: StoryMaking, program: str) -> None:
    """Make the stories table and write it into `config.out`, unless it is there and current.

    Writes `stories.parquet`, `rejected.jsonl` (rows that could not be used, with reasons),
    `examples.jsonl` (passages that cleaning removed) and `manifest.json`, which names `program`.
    """
    is_sample = config.input == "sample"
    if is_sample and (config.columns or config.where is not None):
        raise ConfigError(
            "input: sample cannot be used with columns or where: give a file as input"
        )
    files = [str(sample_path())] if is_sample else _find_inputs(config.input)
    if any(Path(file).resolve() == (config.out / "stories.parquet").resolve() for file in files):
        raise ConfigError(f"out: {config.out}/stories.parquet is the input: name another folder")
    with only_writer(config.out):
        _make_stories(config, program, files)


def _make_stories(config: StoryMaking, program: str, files: Sequence[str]) -> None:
    # The artifact records the tokenizer's file, since its contents determine the counts.
    tokenizer = None if config.tokenizer is None else locate_tokenizer(config.tokenizer)
    artifact = Artifact(
        config.out,
        program=program,
        config=config,
        inputs={"input" if k == 0 else f"input {k + 1}": file for k, file in enumerate(files)},
        models={} if tokenizer is None else {"tokenizer": tokenizer},
    )
    if artifact.is_current():
        return
    rejected_rows, examples = RejectedRows(), Examples()
    cut: Counter[str] = Counter()
    with ExitStack() as stack:
        if config.input == "sample":
            sample = read_sample()
            chunks, total, schema = iter([sample]), sample.num_rows, sample.schema
        else:
            # A later run deletes folders with this prefix that a killed run left behind.
            folder = tempfile.TemporaryDirectory(prefix=".part-", dir=config.out)
            source = "'" + config.source.replace("'", "''") + "'"
            rows = StreamingTable(
                files,
                STORIES,
                Path(stack.enter_context(folder)),
                columns={"source": source, **config.columns},
                rejected_rows=rejected_rows,
                where=config.where,
                encoding=config.encoding,
            )
            chunks, total = map(hash_accounts, rows.chunks()), rows.num_rows
            schema = hash_accounts(rows.schema.empty_table()).schema
        bar = ProgressBar(total=total, desc="stories", unit=" stories", leave=False)

        def batches() -> Iterator[pa.RecordBatch]:
            # Declared columns may be missing in the input.
            names = set(schema.names) - {column.name for column in STORIES.columns}
            for table in _prepare(chunks, config, sorted(names), cut, examples):
                yield from table.cast(schema).to_batches()
                bar.update(table.num_rows)

        reader = pa.RecordBatchReader.from_batches(schema, batches())
        with bar:
            artifact.write(
                "stories.parquet", lambda path: write_sorted_batches(reader, STORIES, path)
            )
    unescaped = cut.pop(_UNESCAPED, 0)
    artifact.write("rejected.jsonl", rejected_rows.write)
    artifact.write("examples.jsonl", examples.write)
    written = pq.read_table(config.out / "stories.parquet", columns=["prompt_id"])
    artifact.counts = {
        "stories": total,
        "prompts": pc.count_distinct(written["prompt_id"]).as_py(),
        "not_selected": rejected_rows.not_selected,
        "rejected_rows": rejected_rows.counts(),
        "unescaped": unescaped,
        "cleaning": dict(cut),
    }
    artifact.finish()
    print(f"{config.out / 'stories.parquet'}: {total:,} stories")
    print(rejected_rows.summary(), end="")
    if unescaped:
        print(f"  Reddit's escapes such as &gt; undone: {unescaped:,} texts")
    for step, count in cut.items():
        if count:
            print(f"  {step}: {count:,} texts (see examples.jsonl)")
