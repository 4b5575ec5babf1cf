"""Finished evaluations: pairs, verdicts and leaderboard."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.columns import given_columns
from litbench.data.records import VERDICTS
from litbench.data.sources.evaluation_pairs import EvaluationPairs, read_pairs
from litbench.data.tables import read_table
from litbench.evaluation.stopping import common_pairs, rows_of
from litbench.judges.client import REPEATING
from litbench.metrics.leaderboard import LeaderboardRow, leaderboard
from litbench.runs.errors import DataError
from litbench.runs.outputs import Artifact, own_manifest, read_manifest, source_digest
from litbench.runs.terminal import clean_name


def find_input(folder: Path, manifest: Mapping[str, Any], key: str) -> Path:
    """Find the file that an evaluation has read, also after its folder was copied.

    Looks at the path in the manifest, which is relative to the folder, and at files of this name in
    the folder, beside it and in its sibling folders.

    Args:
        folder: the folder of the evaluation.
        manifest: its manifest.
        key: key of the input.

    Raises:
        DataError: there is no such file, or only files with other contents.
    """
    path, judged = (str(manifest["inputs"][key][field]) for field in ("path", "sha256"))
    here, name = folder.resolve(), Path(path).name
    named = (here / path).resolve()
    beside = [here / name, here.parent / name, *sorted(here.parent.glob(f"*/{name}"))]
    for candidate in filter(Path.is_file, [named, *beside]):
        if source_digest(candidate) == judged:
            return candidate
    if named.is_file():
        raise DataError(f"{named} has changed since {folder} judged it: evaluate it again")
    raise DataError(
        f"{path} is not found, nor is a file {name} with the same content in or beside {folder}, "
        f"which judged it: copy it into {folder}"
    )


def failed_requests(verdicts: pa.Table) -> pa.Table:
    """The verdicts whose requests failed.

    An error of a recorded judge is a rating that the recording lacks, not a failed request.
    """
    is_asked = pc.not_equal(verdicts["kind"], "recorded")
    return verdicts.filter(pc.and_(pc.equal(verdicts["outcome"], "error"), is_asked))


def error_notes(verdicts: pa.Table) -> list[str]:
    """By rater, how many verdicts are failed requests, the first message and how often it came."""
    notes = []
    failed = failed_requests(verdicts)
    for rater in failed["rater"].unique().to_pylist():
        total = pc.sum(pc.equal(verdicts["rater"], rater)).as_py()
        errors = failed.filter(pc.equal(failed["rater"], rater))
        messages = Counter(clean_name(text or "") for text in errors["explanation"].to_pylist())
        message, count = next(iter(messages.items()))
        note = f"{rater}: {messages.total():,} of {total:,} verdicts are errors"
        if message:
            note += f": {count:,} times “{message}”"
        if len(messages) > 1:
            note += f", and {len(messages) - 1:,} other messages"
        if any(REPEATING not in text for text in messages):
            note += ": run the same command again to repeat only these"
        notes.append(note)
    return notes


@dataclass
class Evaluation:
    """A finished evaluation of one set of pairs; pairs, verdicts and leaderboard are read once.

    Attributes:
        folder: the evaluation's folder.
        manifest: its manifest.
        pairs_path: the pairs file.
        path_before_symmetry: the pairs before length symmetry; None if they were not judged.
    """

    folder: Path
    manifest: dict[str, Any]
    pairs_path: Path
    path_before_symmetry: Path | None

    @classmethod
    def of(cls, artifact: Artifact) -> "Evaluation":
        """Return the evaluation that a program has just written, or found to be current."""
        wider = artifact.paths.get("before_symmetry")
        manifest = read_manifest(artifact.folder)
        return cls(artifact.folder, manifest, artifact.paths["pairs"], wider)

    @classmethod
    def find(cls, folder: Path) -> "Evaluation":
        """Open an evaluation.

        Raises:
            DataError: `folder` has none, or its pairs are not found or have changed since; see
                `find_input`.
        """
        manifest = read_manifest(folder)
        try:
            manifest["inputs"]["pairs"]["sha256"], manifest["config"]["reference"]
            manifest["counts"]["trained_on"]
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{folder}: its manifest is not that of an evaluation: give the output folder of "
                "eval/benchmark.py or eval/crossvalidate.py; with several sets, the folder of one"
            ) from error
        wider = "before_symmetry" in manifest["inputs"]
        return cls(
            folder,
            manifest,
            find_input(folder, manifest, "pairs"),
            find_input(folder, manifest, "before_symmetry") if wider else None,
        )

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

    @cached_property
    def verdicts(self) -> pa.Table:
        """The verdicts, with the schema VERDICTS."""
        return read_table(self.folder / "verdicts.parquet", VERDICTS)

    @cached_property
    def all_pairs(self) -> EvaluationPairs:
        """The pairs that any rater judged."""
        config = self.manifest["config"]
        columns = given_columns(config)
        pairs = read_pairs(
            self.pairs_path, self.path_before_symmetry, config.get("split"), columns=columns
        )
        # The benchmark leaves out pairs without texts, and those beyond `max_pairs`.
        return pairs.select(self.verdicts["pair_id"].unique())

    @cached_property
    def pairs(self) -> EvaluationPairs:
        """The pairs that every rater judged."""
        if self.until_decided is None:
            return self.all_pairs
        return self.all_pairs.select(common_pairs(self.verdicts))

    @property
    def until_decided(self) -> dict[str, Any] | None:
        """The record of `litbench.evaluation.stopping`; None if all pairs were judged."""
        record: dict[str, Any] | None = self.manifest["counts"].get("until_decided")
        return record

    @cached_property
    def rows(self) -> list[LeaderboardRow]:
        trained_on = self.manifest["counts"]["trained_on"]
        if self.until_decided is not None:
            return rows_of(self.verdicts, self.all_pairs, self.until_decided, trained_on)
        return leaderboard(
            self.verdicts,
            self.pairs.headline,
            self.reference,
            before_symmetry=self.pairs.before_symmetry,
            trained_on=trained_on,
        )

    @property
    def partial(self) -> str:
        """How many pairs are missing because a limit was reached, and how to go on; else empty."""
        return str(self.manifest["counts"].get("partial", ""))

    def annotators(self) -> dict[str, Any] | None:
        """Return the content of `annotators.json`; None if the evaluation has none."""
        path = self.folder / "annotators.json"
        if own_manifest(path) is None:
            return None
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return content

    def manifest_of_pairs(self) -> dict[str, Any] | None:
        """Return the manifest of the program that wrote the pairs; None if there is none."""
        return own_manifest(self.pairs_path)
