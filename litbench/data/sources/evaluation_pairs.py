"""Read the pairs of an evaluation and their audit, and check held-out pairs."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.records import has_texts, prompt_keys
from litbench.data.sources.pairs import is_pairs_table, read_any_pairs
from litbench.data.sources.ratings import ROUNDING
from litbench.data.text import digest, prompt_key
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import read_manifest_of


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

    def select(self, pair_ids: pa.ChunkedArray | pa.Array) -> "EvaluationPairs":
        def selected(table: pa.Table) -> pa.Table:
            return table.filter(pc.is_in(table["pair_id"], pair_ids))

        wider = (self.before_symmetry, self.within_prompts)
        return EvaluationPairs(
            selected(self.headline),
            *(None if table is None else selected(table) for table in wider),
        )


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
    pairs: Path,
    before_symmetry: Path | None,
    split: str | None,
    ratings: Path | None = None,
    columns: Mapping[str, str] | None = None,
    *,
    numbered: bool = False,
) -> EvaluationPairs:
    """Read the pairs of an evaluation.

    Args:
        pairs: the pairs, see `litbench.data.sources.pairs.read_any_pairs`.
        before_symmetry: the pairs file before the last filter, or None.
        split: only pairs of this split; None for all.
        ratings: `ratings.parquet` of data_prep/import_ratings.py; also reads `all_pairs.parquet`
            in the same folder.
        columns: columns of the prompt, chosen and rejected; others are guessed.
        numbered: see `read_any_pairs`.
    """

    def read_split(path: Path) -> pa.Table:
        table = read_any_pairs(path, columns, numbered=numbered)
        selected = table if split is None else table.filter(pc.equal(table["split"], split))
        if not selected.num_rows:
            splits = sorted(set(table["split"].to_pylist()))
            raise DataError(f"{path}: no pair of split '{split}': name one of {splits}")
        return selected

    if before_symmetry is not None and ratings is not None:
        raise ConfigError("before_symmetry and ratings are both given: leave one of them out")
    files = input_files(pairs, before_symmetry, ratings)
    headline, unpruned = read_split(pairs), files.get("all_pairs", before_symmetry)
    if {"chosen_rating", "rejected_rating"} <= set(headline.column_names):
        gap = pc.abs(pc.subtract(headline["chosen_rating"], headline["rejected_rating"]))
        if equal := pc.sum(pc.less_equal(gap, ROUNDING)).as_py():
            raise DataError(
                f"{pairs}: {equal} pairs have equal ratings and thus no label: leave them out"
            )
    if unpruned is None:
        return EvaluationPairs(headline)
    wider = read_split(unpruned)
    if missing := set(headline["pair_id"].to_pylist()) - set(wider["pair_id"].to_pylist()):
        raise DataError(
            f"{unpruned} lacks {len(missing)} pairs of {pairs}, such as {min(missing)}: use two "
            "files of the same run"
        )
    return EvaluationPairs(headline, *((wider, None) if ratings is None else (None, wider)))


def subsample(pairs: pa.Table, size: int) -> pa.Table:
    """Draw pairs from as many prompts as possible; the result keeps the order of the table.

    A prompt gives a second pair only after every prompt has given one. A smaller subsample is
    contained in a larger one. The order of the table has no effect on the choice. The pairs of an
    item are drawn together, and count as one.
    """
    names = pairs["pair_id"].to_pylist()
    by_prompt: dict[str, dict[str, list[int]]] = {}
    items = pairs["item_id"].to_pylist() if "item_id" in pairs.column_names else names
    for row, (key, name, item) in enumerate(zip(prompt_keys(pairs), names, items, strict=True)):
        by_prompt.setdefault(key, {}).setdefault(item or name, []).append(row)
    order = sorted(
        (rank, digest("prompt", 0, key), rows)
        for key, of_prompt in by_prompt.items()
        for rank, (_, rows) in enumerate(
            sorted((digest("pair", 0, name), rows) for name, rows in of_prompt.items())
        )
    )
    drawn: list[int] = []
    for *_, rows in order:
        if drawn and len(drawn) + len(rows) > size:
            break
        drawn += rows
    return pairs.take(pa.array(sorted(drawn), pa.int64()))


def draw(pairs: EvaluationPairs, size: int | None) -> tuple[EvaluationPairs, list[str]]:
    """Draw at most `size` of the pairs with both texts; also return notes on those left out."""
    notes = []
    drawn = pairs.all.filter(pa.array(has_texts(pairs.all)))
    if (lost := pairs.all.num_rows - drawn.num_rows) > 0:
        notes.append(f"{lost:,} pairs left out: no text")
    if size is not None and drawn.num_rows > size:
        notes.append(f"{size:,} of {drawn.num_rows:,} pairs drawn")
        drawn = subsample(drawn, size)
    return pairs.select(drawn["pair_id"]), notes


def read_training_pairs(
    path: Path,
    split: str | None,
    columns: Mapping[str, str] | None = None,
    *,
    numbered: bool = False,
) -> pa.Table:
    """Read the pairs of a training set that have both texts; the others are counted on stderr.

    For the arguments and errors see `read_pairs`.
    """
    pairs, notes = draw(read_pairs(path, None, split, columns=columns, numbered=numbered), None)
    for note in notes:
        print(f"{path}: {note}", file=sys.stderr)
    return pairs.headline


def read_held_out(
    path: Path | None,
    split: str | None,
    training: pa.Table,
    pairs: Path,
    keys: frozenset[str] = frozenset(),
    columns: Mapping[str, str] | None = None,
) -> pa.Table | None:
    """Read the pairs that a model judges after training; called before training to fail early.

    Args:
        path: the pairs file; None for `pairs`.
        split: only pairs of this split; None for all.
        training: the training pairs, which must not share a prompt with the held-out pairs.
        pairs: the file of `training`.
        keys: `prompt_key`s of prompts that the base model was trained on.
        columns: see `read_pairs`; those of `pairs`, and of `path` unless it is LitBench's own.

    Returns:
        The held-out pairs; None if both `path` and `split` are None.
    """
    if path is None and split is None:
        return None
    if path is not None and is_pairs_table(path):
        columns = {key: value for key, value in (columns or {}).items() if key == "label_source"}
    held_out = read_pairs(path or pairs, None, split, columns=columns).headline
    shared = (keys | set(prompt_keys(training))).intersection(prompt_keys(held_out))
    if shared:
        prompts = held_out["prompt"].to_pylist()
        example = min(prompt for prompt in prompts if prompt_key(prompt) in shared)
        raise ConfigError(
            f"{len(shared)} prompts of the evaluation pairs are also training prompts, of this "
            f"training or of the base model, such as {example!r:.80}: name another "
            "evaluation_split or evaluation_pairs, or train on a split"
        )
    return held_out


def read_audit(folder: Path, pairs: str) -> dict[str, Any]:
    """Read the result of `litbench audit` on some pairs.

    Args:
        folder: its output folder.
        pairs: digest of the pairs file.

    Raises:
        DataError: audit.json is missing, damaged, or of other pairs.
    """
    manifest = read_manifest_of(folder / "audit.json")
    if manifest["inputs"]["pairs"]["sha256"] != pairs:
        raise DataError(f"{folder} is the audit of other pairs: run litbench audit on these")
    content: dict[str, Any] = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    return content
