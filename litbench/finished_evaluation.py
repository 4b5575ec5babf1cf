"""Finished evaluations: read back, with the leaderboard computed again, and shown as a page."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from litbench.errors import DataError
from litbench.evaluation_pairs import EvaluationPairs, read_pairs
from litbench.metrics.comparisons import Change
from litbench.metrics.leaderboard import LeaderboardRow, leaderboard
from litbench.records import VERDICTS
from litbench.report.pages import render_report
from litbench.store import is_output, read_manifest, source_digest
from litbench.tables import read_table


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
        pairs = folder.resolve() / path
        if source_digest(pairs) != judged:
            raise DataError(f"{pairs} has changed since {folder} judged it: evaluate it again")
        return cls(folder, manifest, pairs)

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
        pairs = read_pairs(
            self.pairs_path, None if wider is None else self.folder.resolve() / wider, split
        )
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
