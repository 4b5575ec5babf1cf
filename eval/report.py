"""Write report.html: how well each rater agrees with the labels, on one self-contained page.

    python eval/report.py --config configs/eval/sample_report.yaml

Reads folders of evaluations (eval/benchmark.py or eval/crossvalidate.py) and, for the funnel, the
manifest beside the first one's pairs. Writes `report.html` and `manifest.json` into `out`.

With several evaluations of the same pairs, which may differ in their texts (as published and with
talk cut out), every rater of the first is compared with itself in the others: paired by pair_id,
with intervals clustered by prompt and Holm's correction. The page then has the comparison too, and
`comparison.json` its numbers.

With `--tables true` the program also writes Table 3 of all these raters as `table3.tex` and
`table3.csv`, which has the numbers of Figures 4 and 5 too, and `figure4` and `figure5` (`.svg` and
`.png`; Figure 5 where sizes are known). The paper's own numbers are in columns and marks that say
so. Figure 8 is written by eval/explanations.py.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.artifact import Artifact, write_json
from litbench.config import nearest, run_program
from litbench.errors import ConfigError, DataError
from litbench.evaluation import EvaluationPairs, Judged
from litbench.metrics.agreement import PairFacts, pair_scores
from litbench.metrics.comparisons import Change, compare_evaluations
from litbench.metrics.csv_table import write_csv
from litbench.metrics.leaderboard import LeaderboardRow, plain
from litbench.report.page import render_report
from litbench.report.tables import (
    Entry,
    Published,
    draw_figure_4,
    draw_figure_5,
    group_of,
    table_3,
    table_3_latex,
)


@dataclass
class Config:
    """What to show.

    In tables, a rater that has different figures in several evaluations is called
    "rater (evaluation)".

    Attributes:
        evaluations: name -> folder; the page is about the first, and the others are compared with
            it.
        out: folder to write.
        raters: names of the raters to compare and to put into tables; all when empty.
        tables: also write Table 3 and Figures 4 and 5 as files.
        published: rater -> row of litbench/report/published.yaml that is the same model; a rater
            called as the paper calls it needs none.
        parameters: rater -> weights of its model, where its evaluation does not record them.
        families: rater -> family; a line joins its members in Figure 5.
        title: heading of the page.
    """

    evaluations: dict[str, Path]
    out: Path
    raters: list[str] = field(default_factory=list)
    tables: bool = False
    published: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, float] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)
    title: str = "LitBench report"


@dataclass(frozen=True)
class Evaluation:
    """One evaluation, read.

    Attributes:
        name: as in the config.
        judged: its folder.
        pairs: what was judged.
        verdicts: by the schema VERDICTS.
        rows: its leaderboard.
    """

    name: str
    judged: Judged
    pairs: EvaluationPairs
    verdicts: pa.Table
    rows: list[LeaderboardRow]

    @classmethod
    def read(cls, name: str, judged: Judged) -> "Evaluation":
        """Read verdicts and pairs, and compute all figures."""
        pairs, verdicts = judged.read_pairs(), judged.read_verdicts()
        return cls(name, judged, pairs, verdicts, judged.leaderboard(verdicts, pairs))

    def sorted_pairs(self) -> pa.Table:
        """The pairs of the leaderboard, by pair_id."""
        return self.pairs.headline.sort_by("pair_id")

    def credit(self, raters: Sequence[str]) -> dict[str, np.ndarray]:
        """Credit of each pair by rater, 0 to 1, in the order of `sorted_pairs`; shape (n,)."""
        scores = pair_scores(self.verdicts, self.sorted_pairs())
        return {score.rater: score.credit for score in scores if score.rater in raters}

    def notes(self, rater: str) -> Mapping[str, Any]:
        """What the manifest records about a rater."""
        parts = self.judged.manifest["counts"].get("raters", {}).get(rater, [])
        notes: Mapping[str, Any] = parts[0].get("notes", {}) if parts else {}
        return notes


def compare(evaluations: Sequence[Evaluation], raters: Sequence[str]) -> list[Change]:
    """Compare every rater of the first evaluation with itself in the others.

    Raises:
        DataError: the evaluations are not of the same pairs.
    """
    first, *others = evaluations
    pairs = first.sorted_pairs()
    ids = pairs["pair_id"].to_pylist()
    for other in others:
        other_ids = other.sorted_pairs()["pair_id"].to_pylist()
        if other_ids != ids:
            shared = len(set(ids) & set(other_ids))
            raise DataError(
                f"evaluations: {other.name} has {len(other_ids)} pairs and {first.name} "
                f"{len(ids)}, {shared} of them the same: give evaluations of the same pairs"
            )
    names = [row.rater for row in first.rows if not raters or row.rater in raters]
    credits = {one.name: one.credit(names) for one in evaluations}
    return compare_evaluations(credits, np.asarray(PairFacts.of(pairs).clusters))


def changes_text(changes: Sequence[Change]) -> str:
    """The comparison for a terminal."""
    return "".join(
        f"{one.rater}: {one.reference} {one.before}, {one.evaluation} {one.after}, "
        f"difference {one.difference}, p {one.p_holm:.3f}\n"
        for one in changes
    )


def table_entries(
    evaluations: Sequence[Evaluation], config: Config, published: Published
) -> list[Entry]:
    """The raters of all evaluations, highest agreement first; equal rows are shown once."""
    found: list[tuple[Evaluation, LeaderboardRow]] = []
    for one in evaluations:
        for row in one.rows:
            figures = (row.rater, row.kind, row.agreement, row.flip_rate, row.outcomes)
            if figures not in [
                (r.rater, r.kind, r.agreement, r.flip_rate, r.outcomes) for _, r in found
            ]:
                found.append((one, row))
    times = Counter(row.rater for _, row in found)
    named = {
        row.rater if times[row.rater] == 1 else f"{row.rater} ({one.name})": (one, row)
        for one, row in found
    }
    for key in ("parameters", "families", "published"):
        check_raters(key, getattr(config, key), list(named))
    stated = published.match(list(named), config.published)
    entries = []
    for name, (one, row) in named.items():
        notes = one.notes(row.rater)
        if not config.raters or row.rater in config.raters:
            entries.append(
                Entry(
                    name,
                    row,
                    group_of(row, is_trained="training" in notes),
                    config.parameters.get(name) or notes.get("parameters"),
                    config.families.get(name),
                    stated.get(name),
                )
            )
    return sorted(entries, key=lambda entry: (-entry.row.agreement.mean, entry.name))


def check_raters(key: str, given: Sequence[str] | Mapping[str, Any], known: list[str]) -> None:
    """Refuse names of raters that no evaluation has."""
    for rater in given:
        if rater not in known:
            raise ConfigError(f"{key}: '{rater}' is no rater: {nearest(rater, known)}")


def write_tables(artifact: Artifact, entries: Sequence[Entry], published: Published) -> None:
    """Write Table 3 and Figures 4 and 5."""
    rows = table_3(entries)
    artifact.write("table3.csv", lambda path: write_csv(rows, path))
    latex = table_3_latex(rows, published)
    artifact.write("table3.tex", lambda path: path.write_text(latex, encoding="utf-8"))
    for name, draw in (("figure4", draw_figure_4), ("figure5", draw_figure_5)):
        if (panel := draw(entries, published)) is not None:
            for file, write in panel.drawing.files(name).items():
                artifact.write(file, write)


def main(config: Config) -> None:
    """Read, compare, render, write."""
    if not config.evaluations:
        raise ConfigError("evaluations is empty: name at least one, as sample: FOLDER")
    judged = {name: Judged.find(folder) for name, folder in config.evaluations.items()}
    inputs = {key: path for name, one in judged.items() for key, path in one.inputs(name).items()}
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    page_path = (config.out / "report.html").resolve()
    if artifact.is_current():
        print(f"report: {page_path}")
        return
    evaluations = [Evaluation.read(name, one) for name, one in judged.items()]
    first = evaluations[0]
    known = list(dict.fromkeys(row.rater for one in evaluations for row in one.rows))
    check_raters("raters", config.raters, known)
    changes = compare(evaluations, config.raters) if len(evaluations) > 1 else []
    if len(evaluations) > 1:
        artifact.write("comparison.json", lambda path: write_json(plain(changes), path))
        print(changes_text(changes) or "no rater is in several evaluations: nothing to compare")
    if config.tables:
        published = Published.load()
        write_tables(artifact, table_entries(evaluations, config, published), published)
    page = render_report(
        title=config.title,
        rows=first.rows,
        verdicts=first.verdicts,
        pairs=first.pairs.headline,
        before_symmetry=first.pairs.before_symmetry,
        reference=first.judged.reference,
        evaluation_manifest=first.judged.manifest,
        # A pairs file from elsewhere has none of its own; the page then has no funnel.
        pairs_manifest=first.judged.manifest_of_pairs(),
        humans=first.judged.annotators(),
        changes=changes,
    )
    artifact.write("report.html", lambda path: path.write_text(page, encoding="utf-8"))
    artifact.counts = {"pairs": first.pairs.headline.num_rows, "raters": len(known)}
    artifact.finish()
    print(f"report: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
