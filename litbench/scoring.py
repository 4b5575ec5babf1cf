"""Scoring files of any size: the same rows with rewards, in chunks that survive a kill.

    score_files(ScoringJob(spec, "stories.jsonl", Path("scored.parquet")))

Rows are read into a Parquet file beside the output. The rewards of a chunk of rows are one small
file (a part), so a killed run loses the chunks that it was scoring. Several processes, started by
`accelerate launch`, share the chunks; the main process reads the input and writes the output.
Batches never cross the border of a chunk, so the output has the same bytes whether or not a run was
killed, and whatever the number of processes, for the same rater, options, device and threads.
"""

import contextlib
import itertools
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
)  # fmt: skip
from litbench.config import as_plain
from litbench.errors import ConfigError, DataError
from litbench.raters import (
    RaterSpec,
    ScoreRater,
    check_options,
    files_of,
    load_rater,
    parse_raters,
)  # fmt: skip
from litbench.records import Column, Schema
from litbench.tables import RejectedRows, read_large_table, write_sorted_batches
from litbench.text import digest, prompt_key

# Raise it when a change of the code changes rewards: parts of another version are scored again.
VERSION = 1
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".csv")
ADDED = ("reward", "rank_within_prompt", "beats_reference")
_SCORED = pa.schema([("prompt", pa.uint64()), ("story", pa.uint64()), ("reward", pa.float64())])
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
        if len({self.prompt_column, self.text_column, *ADDED}) < 2 + len(ADDED):
            raise ConfigError(
                f"prompt and story are in columns {self.prompt_column} and {self.text_column}: "
                f"name two columns, none of {', '.join(ADDED)}"
            )
        if self.reference_where is not None and self.reference is None:
            raise ConfigError("a condition on the reference needs a reference: name the file")
        for source in filter(None, (self.input, self.reference)):
            written = (self.out, self.manifest, self.rejected_rows)
            if Path(source).resolve() in {path.resolve() for path in written}:
                raise ConfigError(f"{source} is input and output: name another output")

    @property
    def schema(self) -> Schema:
        """The columns that a row needs; all others are kept."""
        prompt = Column(self.prompt_column, "text", "the prompt's text", required=True)
        text = Column(self.text_column, "text", "the story's text", required=True)
        return Schema("stories to score", (prompt, text), key=())

    @property
    def parts(self) -> Path:
        """The folder of the parts until the output is whole."""
        return Path(f"{self.out}.parts")

    @property
    def manifest(self) -> Path:
        """What made the output."""
        return Path(f"{self.out}.manifest.json")

    @property
    def rejected_rows(self) -> Path:
        """Rows that could not be scored, each with its reason; absent when there is none."""
        return Path(f"{self.out}.rejected.jsonl")


def scorer_entry(
    model: str, device: str | None = None, batch_tokens: int | None = None
) -> dict[str, Any]:
    """A config's entry for the folder of a feature or reward model, or for a model on the Hub."""
    folder = Path(model)
    if folder.is_dir() and not any((folder / name).exists() for name in _MODEL_FILES):
        raise ConfigError(
            f"{folder} holds no model (none of {', '.join(_MODEL_FILES)}): give the folder of a "
            "trained model, such as runs/verifier/model"
        )
    kind = "features" if (folder / "features.json").exists() else "reward"
    options = {"device": device, "batch_tokens": batch_tokens}
    given = {key: value for key, value in options.items() if value is not None}
    if given and kind == "features":
        raise ConfigError(f"{model} is a feature model: leave out {' and '.join(given)}")
    return {"kind": kind, "path": model, **given}


def scorer_spec(entry: Any) -> RaterSpec:
    """Check a rater's entry, as a config has it below its name; see `litbench.raters`."""
    kind = entry.get("kind", "rater") if isinstance(entry, Mapping) else "rater"
    (spec,) = parse_raters({str(kind): entry})
    check_options(spec, "raters")
    return spec


def load_scorer(spec: RaterSpec) -> ScoreRater:
    """Load a rater that gives each story a reward; ConfigError where it judges pairs only."""
    rater = load_rater(spec)
    if not isinstance(rater, ScoreRater):
        raise ConfigError(
            f"a rater of kind '{spec.kind}' gives verdicts on pairs and no rewards: take one with "
            "rewards, such as reward or features"
        )
    return rater


def finite_rewards(rater: ScoreRater, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
    """A rater's rewards, float64, shape (n,); DataError where one is not finite."""
    rewards = np.asarray(rater.score(prompts, stories), dtype=np.float64)
    finite = np.isfinite(rewards)
    if not finite.all():
        raise DataError(
            f"rater {rater.name}: {int((~finite).sum())} of {len(rewards)} rewards are not "
            "finite: check the model's weights and precision"
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


class _Source:
    """The input or the reference: its rows, and a part with the rewards of each chunk of them."""

    def __init__(self, job: ScoringJob, name: str, depends_on: Any) -> None:
        self.job, self.name = job, name
        self.path, self.where = job.input, job.where
        if name == "reference":
            self.path, self.where = str(job.reference), job.reference_where
        self.sha256 = source_digest(self.path)
        self.rejected_rows = RejectedRows()
        self.columns = [job.prompt_column, job.text_column]
        mark = fingerprint(self.sha256, self.columns, self.where, job.chunk_stories, depends_on)
        self.folder = job.parts / f"{name}-{mark[:16]}"
        self.rows = self.folder / "rows.parquet"

    def read(self) -> None:
        """Write the rows to a Parquet file."""
        with tempfile.TemporaryDirectory(dir=self.job.parts) as scratch:
            table = read_large_table(
                [self.path], self.job.schema, Path(scratch), where=self.where,
                columns={name: name for name in self.columns}, rejected_rows=self.rejected_rows,
            )  # fmt: skip
            batches = (batch for chunk in table.chunks() for batch in chunk.to_batches())
            reader = pa.RecordBatchReader.from_batches(table.schema, batches)
            write_atomically(
                self.rows, lambda path: write_sorted_batches(reader, self.job.schema, path)
            )

    def chunks(self) -> Iterator[tuple[Path, list[str], list[str]]]:
        """Part, prompts and stories of every chunk, whose borders depend on the rows alone."""
        with pq.ParquetFile(self.rows, pre_buffer=False) as file:
            found = file.iter_batches(self.job.chunk_stories, columns=self.columns)
            for number, chunk in enumerate(found):
                texts = (chunk[name].to_pylist() for name in self.columns)
                yield self.folder / f"{number:07d}.json", *texts

    def score(self, rater: ScoreRater, index: int, count: int) -> None:
        """Write the missing parts of every chunk whose number modulo `count` is `index`."""
        total = pq.read_metadata(self.rows).num_rows // count
        about = f"score the {self.name}"
        hidden = True if index else None
        with tqdm(total=total, desc=about, unit=" stories", disable=hidden) as bar:
            for part, prompts, stories in itertools.islice(self.chunks(), index, None, count):
                if read_json_part(part) is None:
                    cut = -rater.notes().get("stories_cut", 0)
                    # Minus zero is zero, also to what compares rewards bit by bit.
                    rewards = finite_rewards(rater, prompts, stories) + 0.0
                    cut += rater.notes().get("stories_cut", 0)
                    write_json_part({"rewards": rewards.tolist(), "stories_cut": cut}, part)
                bar.update(len(stories))

    def scored(self) -> tuple[pa.Table, int]:
        """Prompt, story (hashes) and reward of every row, and how many stories lost their end."""
        tables, cut = [], 0
        for part, prompts, stories in self.chunks():
            found = read_json_part(part)
            if found is None:
                raise DataError(f"{part} is damaged or missing: run the same command again")
            columns = {
                "prompt": [int(prompt_key(prompt)[:16], 16) for prompt in prompts],
                "story": [int(digest(story)[:16], 16) for story in stories],
                "reward": found["rewards"],
            }
            tables.append(pa.table(columns, _SCORED))
            cut += found["stories_cut"]
        return pa.concat_tables(tables), cut


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


def _write_output(rows: Path, added: pa.Table, path: Path) -> None:
    """Write the rows with the added columns, in the format of the path's ending."""
    columns = []
    for one in pq.read_schema(rows):
        name = '"' + one.name.replace('"', '""') + '"'
        if pa.types.is_floating(one.type) and path.suffix in (".jsonl", ".ndjson"):
            # JSON has no NaN and no infinity.
            name = f"CASE WHEN isfinite({name}) THEN {name} END AS {name}"
        if one.name not in ADDED:
            columns.append(name)
    form = {".parquet": "parquet, COMPRESSION zstd, ROW_GROUP_SIZE 16384", ".csv": "csv"}
    with duckdb.connect() as connection:
        # With one thread the same rows give the same bytes.
        connection.execute("SET threads = 1").register("added", added)
        connection.execute(
            f"COPY (SELECT {', '.join(columns)}, added.* FROM read_parquet($rows) POSITIONAL JOIN "  # noqa: S608
            f"added) TO $path (FORMAT {form.get(path.suffix, 'json')})",
            {"rows": str(rows), "path": str(path)},
        )


@contextlib.contextmanager
def _processes() -> Iterator[tuple[int, int, Callable[[], None]]]:
    """Index of this process, number of processes, and a function that waits for all of them."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield 0, 1, lambda: None
        return
    import torch  # noqa: PLC0415
    from accelerate import PartialState  # noqa: PLC0415

    # A process may wait for hours until the slowest has scored its share.
    state = PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(days=30))
    yield state.process_index, state.num_processes, state.wait_for_everyone
    state.destroy_process_group()


def score_files(job: ScoringJob) -> dict[str, Any] | None:
    """Score stories; go on where a killed run of the same job was.

    Writes the output, `OUT.manifest.json` and, where rows could not be used, `OUT.rejected.jsonl`.

    Returns:
        The manifest, with `unchanged` true where the job was done already; None in every process
        but the main one.
    """
    started = time.time()
    with _processes() as (index, count, wait_for_all):
        depends_on = rewards_depend_on(job.rater)
        names = ["input"] if job.reference is None else ["input", "reference"]
        sources = [_Source(job, name, depends_on) for name in names]
        mark = fingerprint([source.folder.name for source in sources], job.out.suffix)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            manifest = json.loads(job.manifest.read_text(encoding="utf-8"))
            digest_then = manifest["output"]["sha256"]
            if manifest["fingerprint"] == mark and digest_then == file_digest(job.out):
                return None if index else {**manifest, "unchanged": True}
        rater = load_scorer(job.rater)
        if index == 0:
            job.parts.mkdir(parents=True, exist_ok=True)
            for source in sources:
                source.read()
        wait_for_all()
        for source in sources:
            source.score(rater, index, count)
        wait_for_all()
        if index:
            return None
        manifest = {
            "command": "litbench score",
            "fingerprint": mark,
            "job": as_plain(job),
            "models": depends_on["models"],
            "sha256": {source.name: source.sha256 for source in sources},
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
    scored = [source.scored() for source in sources]
    stories, humans = scored[0][0], scored[-1][0] if len(scored) > 1 else _SCORED.empty_table()
    with duckdb.connect() as connection:
        connection.register("stories", stories).register("humans", humans)
        added = connection.sql(_COMPARE).to_arrow_table()
    counts: dict[str, Any] = {"stories": len(stories)}
    if len(sources) > 1:
        counts["reference_stories"] = len(humans)
        counts["stories_with_reference"] = len(added) - added["beats_reference"].null_count
    else:
        added = added.drop_columns("beats_reference")
    write_atomically(job.out, lambda path: _write_output(sources[0].rows, added, path))
    rejected = job.parts / "rejected.jsonl"
    lines = b""
    for source, (_, cut), prefix in zip(sources, scored, ("", "reference_"), strict=False):
        source.rejected_rows.write(rejected)
        lines += rejected.read_bytes()
        counts[f"{prefix}stories_cut"] = cut
        counts[f"{prefix}rejected_rows"] = source.rejected_rows.counts()
        counts[f"{prefix}left_out_by_where"] = source.rejected_rows.not_selected
    job.rejected_rows.unlink(missing_ok=True)
    if lines:
        write_atomically(job.rejected_rows, lambda path: path.write_bytes(lines))
    return counts
