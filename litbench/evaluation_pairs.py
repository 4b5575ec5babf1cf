"""What an evaluation stands on: its pairs, and an evaluation that is finished."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from litbench.artifact import is_output, read_manifest, source_digest
from litbench.errors import ConfigError, DataError
from litbench.metrics.leaderboard import LeaderboardRow, leaderboard
from litbench.records import PAIRS, VERDICTS, prompt_keys
from litbench.sources.ratings import ROUNDING
from litbench.tables import read_table
from litbench.text import prompt_key


@dataclass(frozen=True)
class EvaluationPairs:
    """The pairs of an evaluation: those of the leaderboard, and perhaps a superset.

    `before_symmetry` lacks the last filter; `within_prompts` are all pairs within a prompt, on
    which annotators are compared.
    """

    headline: pa.Table
    before_symmetry: pa.Table | None = None
    within_prompts: pa.Table | None = None

    @property
    def all(self) -> pa.Table:
        """The pairs that raters judge."""
        wider = (self.within_prompts, self.before_symmetry, self.headline)
        return next(table for table in wider if table is not None)


def input_files(
    pairs: Path, before_symmetry: Path | None = None, ratings: Path | None = None
) -> dict[str, Path]:
    """The files that `read_pairs` reads, by the keys of a config."""
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
        before_symmetry: the pairs before the last filter, or None.
        split: only pairs of this split; None for all.
        ratings: `ratings.parquet` of data_prep/import_ratings.py, for the pairs beside it.
    """

    def one(path: Path) -> pa.Table:
        table = read_table(path, PAIRS)
        kept = table if split is None else table.filter(pc.equal(table["split"], split))
        if not kept.num_rows:
            there = sorted(set(table["split"].to_pylist()))
            raise DataError(f"{path}: no pair of split '{split}': it has {there}")
        return kept

    if before_symmetry is not None and ratings is not None:
        raise ConfigError("before_symmetry and ratings are given: leave one of them out")
    files = input_files(pairs, before_symmetry, ratings)
    headline, other = one(pairs), files.get("all_pairs", before_symmetry)
    if {"chosen_rating", "rejected_rating"} <= set(headline.column_names):
        gap = pc.abs(pc.subtract(headline["chosen_rating"], headline["rejected_rating"]))
        if equal := pc.sum(pc.less_equal(gap, ROUNDING)).as_py():
            raise DataError(
                f"{pairs}: {equal} pairs have equal ratings, so no label: leave them out"
            )
    if other is None:
        return EvaluationPairs(headline)
    wider = one(other)
    if lacking := set(headline["pair_id"].to_pylist()) - set(wider["pair_id"].to_pylist()):
        raise DataError(
            f"{other} lacks {len(lacking)} pairs of {pairs}, such as {min(lacking)}: both files "
            "must come from one run of one program"
        )
    return EvaluationPairs(headline, *((wider, None) if ratings is None else (None, wider)))


def read_held_out(
    path: Path | None,
    split: str | None,
    training: pa.Table,
    pairs: Path,
    known: frozenset[str] = frozenset(),
) -> pa.Table | None:
    """Read the pairs that a model is to judge once it is trained; before training, to fail early.

    `path` is the file of `training`, `pairs`, when None; `known` are `prompt_key` of further
    prompts that the model knows. None where neither file nor split is named.
    """
    if path is None and split is None:
        return None
    held_out = read_pairs(path or pairs, None, split).headline
    shared = (known | set(prompt_keys(training))).intersection(prompt_keys(held_out))
    if shared:
        prompts = held_out["prompt"].to_pylist()
        example = min(prompt for prompt in prompts if prompt_key(prompt) in shared)
        raise ConfigError(
            f"{len(shared)} prompts of the pairs to evaluate on are trained on, here or by the "
            f"backbone before, such as {example!r:.80}: name another evaluation_split or "
            "evaluation_pairs, or train on a split"
        )
    return held_out


@dataclass(frozen=True)
class Judged:
    """A finished evaluation of one set of pairs, in its folder; the pairs are unchanged since."""

    folder: Path
    manifest: dict[str, Any]
    pairs_path: Path

    @classmethod
    def find(cls, folder: Path) -> "Judged":
        """Find an evaluation; a DataError where there is none, or its pairs have changed since."""
        manifest = read_manifest(folder)
        try:
            path, judged = (manifest["inputs"]["pairs"][key] for key in ("path", "sha256"))
            manifest["config"]["reference"], manifest["counts"]["trained_on"]
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{folder}: its manifest is of no evaluation: give a folder of eval/benchmark.py "
                "or eval/crossvalidate.py, of several sets the folder of one"
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
        """What a program that reads it depends on, by name; of several, each has its own."""
        start = f"{name}: " if name else ""
        return {
            f"{start}evaluation": self.folder / "manifest.json",
            f"{start}verdicts": self.folder / "verdicts.parquet",
            f"{start}pairs": self.pairs_path,
        }

    def read_verdicts(self) -> pa.Table:
        """Its verdicts, by the schema VERDICTS."""
        return read_table(self.folder / "verdicts.parquet", VERDICTS)

    def read_pairs(self) -> EvaluationPairs:
        """The pairs that were judged."""
        wider = self.manifest["inputs"].get("before_symmetry", {}).get("path")
        split = self.manifest["config"].get("split")
        found = read_pairs(self.pairs_path, None if wider is None else Path(wider), split)
        # Some may have been left out.
        judged = self.read_verdicts()["pair_id"].unique()
        return replace(
            found, headline=found.headline.filter(pc.is_in(found.headline["pair_id"], judged))
        )

    def leaderboard(self, verdicts: pa.Table, pairs: EvaluationPairs) -> list[LeaderboardRow]:
        """Compute every figure anew."""
        return leaderboard(
            verdicts,
            pairs.headline,
            self.reference,
            before_symmetry=pairs.before_symmetry,
            trained_on=self.manifest["counts"]["trained_on"],
        )

    def annotators(self) -> dict[str, Any] | None:
        """`annotators.json`; None where there is none."""
        path = self.folder / "annotators.json"
        if not is_output(self.manifest, path):
            return None
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def manifest_of_pairs(self) -> dict[str, Any] | None:
        """The manifest of the program that wrote the pairs; None for pairs from elsewhere."""
        if not (self.pairs_path.parent / "manifest.json").is_file():
            return None
        beside = read_manifest(self.pairs_path.parent)
        return beside if is_output(beside, self.pairs_path) else None
