"""The public functions: what the commands do, on a path or a table, with results as tables.

    pairs = litbench.make_pairs(stories)
    fitted = litbench.fit(stories, "runs/mine")
    found = litbench.benchmark(pairs.pairs, {"mine": {"kind": "features", "path": fitted.model}})
    found.leaderboard.to_pandas()

A table is a pyarrow Table, a pandas DataFrame, or a Dataset or IterableDataset of `datasets`. A
path may also be the name of a data set on the Hub. Without `out`, the files are in a temporary
folder that is deleted with the result.
"""

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from litbench import fitting
from litbench.data.sources.posts import hash_accounts
from litbench.evaluation.benchmark import Benchmark, run_benchmark
from litbench.evaluation.report.csv_table import flat_rows
from litbench.evaluation.report.data_sections import PairsFolder
from litbench.evaluation.report.page import render_report
from litbench.evaluation.results import Evaluation
from litbench.metrics.leaderboard import leaderboard_csv
from litbench.runs.config import as_plain, build, check_installed
from litbench.runs.errors import DataError
from litbench.runs.outputs import write_atomically

_BATCH_ROWS = 4_096


@dataclass(frozen=True, kw_only=True)
class PairsResult:
    """Pairs made of stories.

    Attributes:
        folder: folder of the files.
        pairs: the pairs; the columns are those of `litbench.data.records.PAIRS`.
        funnel: rows left after each step, and removed by it.
    """

    folder: Path
    pairs: pa.Table
    funnel: pa.Table
    _temporary: Any = field(default=None, repr=False)

    def report(self, path: str | Path) -> Path:
        """Write the page of `litbench audit` to `path`; needs the extra `report`."""
        from litbench.audit.command import audit_files  # noqa: PLC0415

        check_installed("jinja2", "matplotlib")
        page = Path(path)
        files = audit_files(PairsFolder.find(self.folder), "LitBench audit", page)
        write_atomically(page, files["audit.html"])
        return page


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Verdicts of raters on pairs.

    Attributes:
        folder: folder of the files.
        leaderboard: a row per rater: agreement with the labels, with 95 % intervals, and more.
        verdicts: a row per pair, rater and order; the columns are those of
            `litbench.data.records.VERDICTS`.
        pairs: the pairs that were judged.
    """

    folder: Path
    leaderboard: pa.Table
    verdicts: pa.Table
    pairs: pa.Table
    _evaluation: Evaluation = field(repr=False)
    _temporary: Any = field(default=None, repr=False)

    def report(self, path: str | Path) -> Path:
        """Write the report to `path`; needs the extra `report`."""
        file = Path(path)
        page = render_report(self._evaluation, "LitBench report", file)
        write_atomically(file, lambda part: part.write_text(page, encoding="utf-8"))
        return file


@dataclass(frozen=True, kw_only=True)
class FitResult(EvaluationResult):
    """A model trained on stories, and its evaluation out of fold.

    Attributes:
        model: folder of the best model, for `litbench.load`.
    """

    model: Path


def make_pairs(stories: Any, out: str | Path | None = None, **options: Any) -> PairsResult:
    """Make preference pairs of stories with votes or ratings.

    Args:
        stories: path or table with a prompt, a text and a score in each row.
        out: output folder.
        options: keys of `litbench fit`: columns, cleaning and the rules of the pairs.

    Raises:
        DataError: a column is not found, or too few stories or pairs are left.
        ConfigError: an unknown option, or a value of the wrong type.
    """
    folder, temporary = _folder(out)
    values = {**options, "input": _as_path(stories, folder), "out": folder}
    config = build(fitting.Fit, values, "make_pairs")
    config.check()
    source = fitting.find_source(config)
    if source.is_pairs:
        raise DataError(f"{config.input} has pairs already: give them to fit or benchmark")
    made = fitting.make_own_pairs(config, source)
    counts = made.funnel()
    assert counts is not None
    funnel = pa.Table.from_pylist(counts.plain())
    return PairsResult(
        folder=made.folder, pairs=made.pairs.headline, funnel=funnel, _temporary=temporary
    )


def fit(stories: Any, out: str | Path | None = None, **options: Any) -> FitResult:
    """Train and evaluate on stories with votes or ratings; see `litbench fit`.

    Args:
        stories: path or table with a prompt, a text and a score in each row.
        out: output folder. The same call with the same folder does only what has changed.
        options: keys of `litbench fit`; those of training a reward model are in `training`.

    Raises:
        DataError: a column is not found, or too few stories or pairs are left.
        ConfigError: an unknown option, or a value of the wrong type.
    """
    folder, temporary = _folder(out)
    values = {**options, "input": _as_path(stories, folder), "out": folder}
    model, evaluation = fitting.fit(build(fitting.Fit, values, "fit"))
    return FitResult(folder=folder, model=model, _temporary=temporary, **_tables(evaluation))


def benchmark(
    pairs: Any, raters: Mapping[str, Any], out: str | Path | None = None, **options: Any
) -> EvaluationResult:
    """Measure how often raters agree with the labels of pairs; see `litbench eval benchmark`.

    Args:
        pairs: path or table with a prompt, a chosen and a rejected story in each row.
        raters: entries by name, such as {"mine": {"kind": "features", "path": "runs/mine/model"}}.
            The longer story is added, if no rater has its name.
        out: output folder.
        options: keys of `litbench eval benchmark`.

    Raises:
        DataError: the pairs cannot be read.
        ConfigError: an unknown option or rater, or a value of the wrong type.
    """
    folder, temporary = _folder(out)
    entries = as_plain({"longer": {"kind": "longer"}, **raters})
    values = {**options, "pairs": _as_path(pairs, folder), "raters": entries, "out": folder}
    evaluations = run_benchmark(build(Benchmark, values, "benchmark"), "litbench.benchmark")
    if "" not in evaluations:
        raise DataError("benchmark: no pair was judged: leave out dry_run")
    return EvaluationResult(folder=folder, _temporary=temporary, **_tables(evaluations[""]))


class _Temporary:
    """A folder that is deleted with this object; unlike TemporaryDirectory, without a warning."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="litbench-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


def _folder(out: str | Path | None) -> tuple[Path, _Temporary | None]:
    """The output folder, and what deletes it if it is temporary."""
    if out is not None:
        return Path(out), None
    temporary = _Temporary()
    return temporary.folder, temporary


def _as_path(source: Any, folder: Path) -> str:
    """A path or name as it is; a table is written into the output folder."""
    if isinstance(source, str | Path):
        return str(source)
    if hasattr(source, "with_format") and hasattr(source, "keys"):
        raise DataError(
            f"{type(source).__name__} has the splits {', '.join(source)}: give one, such as "
            f"data[{next(iter(source), '')!r}]"
        )
    if hasattr(source, "with_format"):
        # Of an IterableDataset, features may be unknown, and batches differ in type.
        batches = source.with_format("arrow").iter(_BATCH_ROWS)
        table = pa.concat_tables(batches, promote_options="permissive")
    elif hasattr(source, "iloc"):
        columns = [_frame_column(source.iloc[:, k]) for k in range(source.shape[1])]
        table = pa.table(columns, list(map(str, source.columns)))
    elif hasattr(source, "__arrow_c_stream__"):
        table = pa.table(source)
    else:
        raise DataError(
            f"{type(source).__name__} is not a table: give a path, a pyarrow Table, a pandas "
            "DataFrame or a datasets Dataset"
        )
    table = hash_accounts(table)
    path = folder / "input.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    # Without the metadata of pandas and datasets, equal tables are equal files.
    write_atomically(path, lambda part: pq.write_table(table.replace_schema_metadata(), part))
    return str(path)


def _frame_column(series: Any) -> pa.Array:
    """A column of a pandas DataFrame; one of several types becomes text."""
    try:
        return pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        texts = series.astype("object").map(str, na_action="ignore")
        return pa.array(texts, pa.large_string(), from_pandas=True)


def _tables(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "leaderboard": pa.Table.from_pylist(flat_rows(leaderboard_csv(evaluation.rows))),
        "verdicts": evaluation.verdicts,
        "pairs": evaluation.pairs.headline,
        "_evaluation": evaluation,
    }
