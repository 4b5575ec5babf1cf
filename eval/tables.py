"""Write the paper's Table 3 and Figures 4, 5 and 8 from any evaluations, in every format.

    python eval/tables.py --config configs/eval/tables.yaml

Reads folders of evaluations (eval/benchmark.py, eval/crossvalidate.py or any other whose manifest
names pairs and a reference) and, when given, one of eval/explanations.py. Evaluations of the same
pairs are put together. Writes `tables.html`, `tables.md`, `tables.tex`, a CSV for each table, and
the plots `figure4`, `figure5` (numbered where there are several sets of pairs; Figure 5 where sizes
are known) and `figure8` (`.svg` and `.png`) into `out`, with `manifest.json`. Numbers that the
paper states stand apart, in columns and marks that say so.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from litbench.artifact import Artifact, read_manifest_of
from litbench.config import nearest, run_program
from litbench.errors import ConfigError
from litbench.evaluation import Judged
from litbench.metrics.explanations import ExplanationStudy, read_study
from litbench.metrics.leaderboard import LeaderboardRow
from litbench.report.document import Panel
from litbench.report.explanations_page import draw_effects
from litbench.report.tables import (
    Entry,
    PairSet,
    Published,
    draw,
    figure_4,
    figure_5,
    figure_8,
    group_of,
    published_sheet,
    render_tables,
    sheets_latex,
    sheets_markdown,
    table_3,
    write_sheet_csv,
)
from litbench.text import digest


@dataclass
class Config:
    """What to show.

    Raters are called as in their evaluation; one that is in several with other figures is called
    "rater (evaluation)".

    Attributes:
        evaluations: name -> folder.
        out: folder to write.
        raters: names of raters; all when empty.
        groups: rater -> group in Figure 4, where its kind does not say.
        parameters: rater -> weights of its model, where its evaluation does not tell.
        families: rater -> family; a line joins its members in Figure 5.
        published: rater -> row of litbench/report/published.yaml that is the same model; a rater
            called as the paper calls one needs none. It is only said, never guessed.
        explanations: folder of eval/explanations.py, for Figure 8.
        title: heading of the page.
    """

    evaluations: dict[str, Path]
    out: Path
    raters: list[str] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, float] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)
    published: dict[str, str] = field(default_factory=dict)
    explanations: Path | None = None
    title: str = "LitBench: tables and figures"


@dataclass
class Evaluation:
    """One evaluation's figures.

    Attributes:
        name: as the config has it.
        pairs: digest of what was judged.
        label_sources: of its pairs.
        rows: of its raters.
        notes: what each rater's record tells.
    """

    name: str
    pairs: str
    label_sources: set[str]
    rows: list[LeaderboardRow]
    notes: Mapping[str, Mapping[str, Any]]


def digest_pairs(pairs: pa.Table) -> str:
    """What tells whether two evaluations judged the same: names and texts, in any order."""
    columns = [pairs[name].to_pylist() for name in ("pair_id", "prompt", "chosen", "rejected")]
    return digest(*(digest(*row) for row in sorted(zip(*columns, strict=True))))


def read_evaluation(name: str, judged: Judged) -> Evaluation:
    """Read verdicts and pairs, and compute every figure anew."""
    pairs = judged.read_pairs()
    records = judged.manifest["counts"].get("raters", {})
    return Evaluation(
        name,
        digest_pairs(pairs.headline),
        set(pairs.headline["label_source"].to_pylist()),
        judged.leaderboard(judged.read_verdicts(), pairs),
        {rater: parts[0].get("notes", {}) for rater, parts in records.items() if parts},
    )


def measured(row: LeaderboardRow) -> tuple[Any, ...]:
    """What is the same where one rater stands in two evaluations of the same pairs."""
    return row.kind, row.agreement, row.flip_rate, row.outcomes


def unique_rows(evaluations: Sequence[Evaluation]) -> list[tuple[str, Evaluation, LeaderboardRow]]:
    """The raters of evaluations of the same pairs, each with a name of its own.

    The same figures under the same name, as of a baseline that stands in all, are shown once.
    """
    found: list[tuple[Evaluation, LeaderboardRow]] = []
    for evaluation in evaluations:
        for row in evaluation.rows:
            twin = any(
                one.rater == row.rater and measured(one) == measured(row) for _, one in found
            )
            if not twin:
                found.append((evaluation, row))
    times = Counter(row.rater for _, row in found)
    return [
        (row.rater if times[row.rater] == 1 else f"{row.rater} ({evaluation.name})",
         evaluation, row)
        for evaluation, row in found
    ]  # fmt: skip


def pair_sets(
    evaluations: Sequence[Evaluation], config: Config, published: Published
) -> list[PairSet]:
    """The raters by the pairs they judged."""
    together: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        together.setdefault(evaluation.pairs, []).append(evaluation)
    found = {tuple(one.name for one in of): unique_rows(of) for of in together.values()}
    names = [name for rows in found.values() for name, *_ in rows]
    given: dict[str, Sequence[str]] = {
        "raters": config.raters, "groups": list(config.groups),
        "parameters": list(config.parameters), "families": list(config.families),
    }  # fmt: skip
    for key, raters in given.items():
        for rater in raters:
            if rater not in names:
                raise ConfigError(f"{key}: '{rater}' is no rater: {nearest(rater, names)}")
    stated = published.match(names, config.published)
    sets = []
    for of, rows in found.items():
        entries = [
            Entry(
                name,
                row,
                config.groups.get(name)
                or group_of(row, is_trained="training" in evaluation.notes.get(row.rater, {})),
                config.parameters.get(name)
                or evaluation.notes.get(row.rater, {}).get("parameters"),
                config.families.get(name),
                stated.get(name),
            )
            for name, evaluation, row in rows
            if not config.raters or name in config.raters
        ]
        if entries:
            entries.sort(key=lambda entry: (-entry.row.agreement.mean, entry.name))
            sets.append(PairSet(" + ".join(of), entries))
    return sets


def read_explanations(folder: Path) -> ExplanationStudy:
    """The study that eval/explanations.py wrote, unchanged since."""
    path = folder / "explanations.json"
    read_manifest_of(path)
    return read_study(json.loads(path.read_text(encoding="utf-8")))


def main(config: Config) -> None:
    """Read, match, write every format."""
    if not config.evaluations:
        raise ConfigError("evaluations is empty: name the folder of at least one")
    found = {name: Judged.find(folder) for name, folder in config.evaluations.items()}
    inputs = {key: path for name, one in found.items() for key, path in one.inputs(name).items()}
    if config.explanations is not None:
        inputs["explanations"] = config.explanations / "explanations.json"
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    page_path = (config.out / "tables.html").resolve()
    if artifact.is_current():
        print(f"tables: {page_path}")
        return
    evaluations = [read_evaluation(name, one) for name, one in found.items()]
    published = Published.load()
    sets = pair_sets(evaluations, config, published)
    sheets = [table_3(sets, published), figure_4(sets, published), figure_5(sets, published)]
    drawn_explanations = None
    if config.explanations is not None:
        study = read_explanations(config.explanations)
        drawn_explanations = draw_effects(study)
        sheets.append(figure_8(study))
    sheets.append(published_sheet(published))
    sheets = [sheet for sheet in sheets if sheet.rows]
    pictures = [draw(one, published) for one in sets]
    panels: dict[str, Panel | None] = {}
    for place, drawn in enumerate(pictures, 1):
        number = f"-{place}" if len(pictures) > 1 else ""
        panels |= {f"figure4{number}": drawn.groups, f"figure5{number}": drawn.sizes}
    panels["figure8"] = drawn_explanations
    for name, panel in panels.items():
        if panel is not None:
            for file, write in panel.drawing.files(name).items():
                artifact.write(file, write)
    for sheet in sheets:
        artifact.write(f"{sheet.name}.csv", lambda path, sheet=sheet: write_sheet_csv(sheet, path))
    for ending, text in (
        ("md", sheets_markdown(config.title, sheets)),
        ("tex", sheets_latex(config.title, sheets)),
    ):
        artifact.write(
            f"tables.{ending}", lambda path, text=text: path.write_text(text, encoding="utf-8")
        )
    artifact.counts = {
        one.name: {"pairs": one.entries[0].row.agreement.n, "raters": len(one.entries)}
        for one in sets
    }
    page = render_tables(
        title=config.title,
        sets=sets,
        pictures=pictures,
        # The pictures show what their own sheets have.
        sheets=[sheet for sheet in sheets if sheet.name not in ("figure4", "figure5")],
        published=published,
        label_sources=sorted(set().union(*(one.label_sources for one in evaluations))),
        explanations=drawn_explanations,
        manifests={"tables": artifact.made_of()},
    )
    artifact.write("tables.html", lambda path: path.write_text(page, encoding="utf-8"))
    artifact.finish()
    print(f"tables: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
