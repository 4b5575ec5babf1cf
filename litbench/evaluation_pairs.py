"""Read the pairs of an evaluation, and finished evaluations."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from litbench.artifact import is_output, read_manifest, source_digest
from litbench.errors import ConfigError, DataError
from litbench.metrics.comparisons import Change
from litbench.metrics.leaderboard import LeaderboardRow, leaderboard
from litbench.records import PAIRS, VERDICTS, prompt_keys
from litbench.report.pages import render_report
from litbench.sources.ratings import ROUNDING
from litbench.tables import read_table
from litbench.text import prompt_key


@dataclass(frozen=True)
class EvaluationPairs:
    """The pairs of an evaluation.

    Attributes:
        headline: the pairs of the leaderboard.
        before_symmetry: a superset, the pairs before the last filter.
        within_prompts: a superset, all pairs within a prompt, on which annotators are compared.
    """

    headline: pa.Table
    before_symmetry: pa.Table | None = None
    within_prompts: pa.Table | None = None

    @property
    def all(self) -> pa.Table:
        """The pairs that raters judge: the superset, if there is one."""
        wider = (self.within_prompts, self.before_symmetry, self.headline)
        return next(table for table in wider if table is not None)


def input_files(
    pairs: Path, before_symmetry: Path | None = None, ratings: Path | None = None
) -> dict[str, Path]:
    """Return the files that `read_pairs` reads, by config key."""
    all_pairs = None if ratings is None else ratings.parent / "all_pairs.parquet"
    files = {
        "pairs": pairs,
        "before_symmetry": before_symmetry,
        "ratings": ratings,
        "all_pairs": all_pairs,
    }
    return {key: path for key, path in files.items() if path is not None}


def read_pairs(
    pairs: Path, before_symmetry: Path | None, split: str | None, ratings: Path | None = None
) -> EvaluationPairs:
    """Read the pairs of an evaluation.

    Args:
        pairs: the pairs file.
        before_symmetry: the pairs file before the last filter, or None.
        split: only pairs of this split; None for all.
        ratings: `ratings.parquet` of data_prep/import_ratings.py; also reads `all_pairs.parquet`
            in the same folder.
    """

    def read_split(path: Path) -> pa.Table:
        table = read_table(path, PAIRS)
        selected = table if split is None else table.filter(pc.equal(table["split"], split))
        if not selected.num_rows:
            splits = sorted(set(table["split"].to_pylist()))
            raise DataError(f"{path}: no pair of split '{split}': name one of {splits}")
        return selected

    if before_symmetry is not None and ratings is not None:
        raise ConfigError("before_symmetry and ratings are both given: leave one of them out")
    files = input_files(pairs, before_symmetry, ratings)
    headline, wider_path = read_split(pairs), files.get("all_pairs", before_symmetry)
    if {"chosen_rating", "rejected_rating"} <= set(headline.column_names):
        gap = pc.abs(pc.subtract(headline["chosen_rating"], headline["rejected_rating"]))
        if equal := pc.sum(pc.less_equal(gap, ROUNDING)).as_py():
            raise DataError(
                f"{pairs}: {equal} pairs have equal ratings and thus no label: leave them out"
            )
    if wider_path is None:
        return EvaluationPairs(headline)
    wider = read_split(wider_path)
    if missing := set(headline["pair_id"].to_pylist()) - set(wider["pair_id"].to_pylist()):
        raise DataError(
            f"{wider_path} lacks {len(missing)} pairs of {pairs}, such as {min(missing)}: use two "
            "files of the same run"
        )
    return EvaluationPairs(headline, *((wider, None) if ratings is None else (None, wider)))


def read_held_out(
    path: Path | None,
    split: str | None,
    training: pa.Table,
    pairs: Path,
    known: frozenset[str] = frozenset(),
) -> pa.Table | None:
    """Read the pairs that a model judges after training; called before training to fail early.

    Args:
        path: the pairs file; None for `pairs`.
        split: only pairs of this split; None for all.
        training: the training pairs, which must not share a prompt with the held-out pairs.
        pairs: the file of `training`.
        known: `prompt_key`s of prompts that the base model was trained on.

    Returns:
        The held-out pairs; None if both `path` and `split` are None.
    """
    if path is None and split is None:
        return None
    held_out = read_pairs(path or pairs, None, split).headline
    shared = (known | set(prompt_keys(training))).intersection(prompt_keys(held_out))
    if shared:
        prompts = held_out["prompt"].to_pylist()
        example = min(prompt for prompt in prompts if prompt_key(prompt) in shared)
        raise ConfigError(
            f"{len(shared)} prompts of the evaluation pairs are also training prompts, of this "
            f"training or of the base model, such as {example!r:.80}: name another "
            "evaluation_split or evaluation_pairs, or train on a split"
        )
    return held_out


@dataclass(frozen=True)
class Judged:
    """A finished evaluation of one set of pairs, whose pairs file has not changed since."""

    folder: Path
    manifest: dict[str, Any]
    pairs_path: Path

    @classmethod
    def find(cls, folder: Path) -> "Judged":
        """Open an evaluation; a DataError if `folder` has none or its pairs have changed since."""
        manifest = read_manifest(folder)
        try:
            path, judged = (manifest["inputs"]["pairs"][key] for key in ("path", "sha256"))
            manifest["config"]["reference"], manifest["counts"]["trained_on"]
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{folder}: its manifest is not that of an evaluation: give the output folder of "
                "eval/benchmark.py or eval/crossvalidate.py; with several sets, the folder of one"
            ) from error
        if source_digest(Path(path)) != judged:
            raise DataError(f"{path} has changed since {folder} judged it: evaluate it again")
        return cls(folder, manifest, Path(path))

    @property
    def reference(self) -> str:
        """The rater that the others were compared with."""
        named: str = self.manifest["config"]["reference"]
        return named

    def inputs(self, name: str = "") -> dict[str, Path]:
        """Return the files of an evaluation by key, prefixed with `name`, if given."""
        start = f"{name}: " if name else ""
        return {
            f"{start}evaluation": self.folder / "manifest.json",
            f"{start}verdicts": self.folder / "verdicts.parquet",
            f"{start}pairs": self.pairs_path,
        }

    def read_verdicts(self) -> pa.Table:
        """Read the verdicts, with the schema VERDICTS."""
        return read_table(self.folder / "verdicts.parquet", VERDICTS)

    def read_pairs(self) -> EvaluationPairs:
        """Read the pairs that were judged."""
        wider = self.manifest["inputs"].get("before_symmetry", {}).get("path")
        split = self.manifest["config"].get("split")
        pairs = read_pairs(self.pairs_path, None if wider is None else Path(wider), split)
        # The benchmark leaves out pairs without texts, and those beyond `most_pairs`.
        judged = self.read_verdicts()["pair_id"].unique()
        return replace(
            pairs, headline=pairs.headline.filter(pc.is_in(pairs.headline["pair_id"], judged))
        )

    def leaderboard(self, verdicts: pa.Table, pairs: EvaluationPairs) -> list[LeaderboardRow]:
        """Compute the leaderboard from verdicts."""
        return leaderboard(
            verdicts,
            pairs.headline,
            self.reference,
            before_symmetry=pairs.before_symmetry,
            trained_on=self.manifest["counts"]["trained_on"],
        )

    def annotators(self) -> dict[str, Any] | None:
        """Return the content of `annotators.json`; None if the evaluation has none."""
        path = self.folder / "annotators.json"
        if not is_output(self.manifest, path):
            return None
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return content

    def manifest_of_pairs(self) -> dict[str, Any] | None:
        """Return the manifest of the program that wrote the pairs; None if there is none."""
        if not (self.pairs_path.parent / "manifest.json").is_file():
            return None
        manifest = read_manifest(self.pairs_path.parent)
        return manifest if is_output(manifest, self.pairs_path) else None


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation with its pairs, verdicts and results."""

    judged: Judged
    pairs: EvaluationPairs
    verdicts: pa.Table
    rows: list[LeaderboardRow]

    @classmethod
    def read(cls, judged: Judged) -> "Evaluation":
        """Read pairs and verdicts, and compute the leaderboard."""
        pairs, verdicts = judged.read_pairs(), judged.read_verdicts()
        return cls(judged, pairs, verdicts, judged.leaderboard(verdicts, pairs))

    def report(
        self, title: str, page: Path, changes: Sequence[Change] = (), beside: Sequence[str] = ()
    ) -> str:
        """Render report.html, which will be written as `page`; see `render_report`."""
        return render_report(
            title=title,
            rows=self.rows,
            verdicts=self.verdicts,
            pairs=self.pairs.headline,
            before_symmetry=self.pairs.before_symmetry,
            reference=self.judged.reference,
            evaluation_manifest=self.judged.manifest,
            # None for external pairs; the page then has no funnel.
            pairs_manifest=self.judged.manifest_of_pairs(),
            annotators=self.judged.annotators(),
            changes=changes,
            page=page,
            beside=beside,
        )
