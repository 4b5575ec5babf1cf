"""Write report.html: how well each rater agrees with the labels, on one self-contained page.

    litbench eval report --config configs/eval/report.yaml

Reads folders of evaluations (eval/benchmark.py or eval/crossvalidate.py). Writes `report.html` and
`manifest.json` into `out`. The page links to pages of other programs in sibling folders of `out`,
such as that of `litbench audit` on the pairs.

If there are several evaluations of the same pairs (their texts may differ, for example with and
without notes to readers), every rater of the first is compared with its results in the others,
paired by pair_id, with intervals clustered by prompt and Holm's correction. `comparison.json` has
the numbers.

With `--tables true` the program also writes Table 3 of all these raters as `table3.tex` and
`table3.csv`, and `figure4` and `figure5` (`.svg` and `.png`; Figure 5 if sizes are known). The
paper's numbers are in separate, labelled columns and markers. litbench explanations writes Figure
8.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from litbench.data.records import connected_prompts
from litbench.evaluation.report.csv_table import write_csv
from litbench.evaluation.report.document import p_value
from litbench.evaluation.report.page import render_report
from litbench.evaluation.report.tables import (
    Entry,
    draw_figure_4,
    draw_figure_5,
    group_of,
    match_published,
    table_3,
    table_3_latex,
)
from litbench.evaluation.results import Evaluation
from litbench.metrics.agreement import pair_scores
from litbench.metrics.comparisons import Change, compare_evaluations
from litbench.metrics.leaderboard import LeaderboardRow, plain
from litbench.runs.config import nearest, run_program
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact, write_json


@dataclass
class Config:
    """Configuration of `report.py`.

    In tables, a rater with different results in several evaluations is called "rater (evaluation)".

    Attributes:
        evaluations: name -> folder; the page shows the first, and the others are compared with it.
        out: folder to write.
        raters: names of the raters to compare and to put into tables; all by default.
        tables: also write Table 3 and Figures 4 and 5 as files.
        published: rater -> row of litbench/evaluation/report/published.yaml for the same model; not
            needed if their names are equal.
        parameters: rater -> number of parameters, if its evaluation does not record it.
        families: rater -> family; a line joins the members of a family in Figure 5.
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


def compare(evaluations: Mapping[str, Evaluation], raters: Sequence[str]) -> list[Change]:
    """Compare every rater of the first evaluation with its results in the others, pair by pair."""
    pairs = {
        name: evaluation.pairs.headline.sort_by("pair_id")
        for name, evaluation in evaluations.items()
    }
    (first, ids), *others = ((name, table["pair_id"].to_pylist()) for name, table in pairs.items())
    for name, other_ids in others:
        if other_ids != ids:
            raise DataError(
                f"evaluations: {name} has {len(other_ids)} pairs and {first} {len(ids)}, "
                f"{len(set(ids) & set(other_ids))} of them the same: give evaluations of the "
                "same pairs"
            )
    rows = evaluations[first].rows
    compared = [row.rater for row in rows if not raters or row.rater in raters]
    scores = {
        name: [s for s in pair_scores(evaluation.verdicts, pairs[name]) if s.rater in compared]
        for name, evaluation in evaluations.items()
    }
    credits = {name: {s.rater: s.credit for s in rows} for name, rows in scores.items()}
    trainings = {name: {s.rater: s.training for s in rows} for name, rows in scores.items()}
    return compare_evaluations(credits, connected_prompts(pairs[first]), trainings)


def table_entries(evaluations: Mapping[str, Evaluation], config: Config) -> list[Entry]:
    """The raters of all evaluations, highest agreement first, without duplicates."""
    distinct: dict[tuple[Any, ...], tuple[str, LeaderboardRow]] = {}
    for name, evaluation in evaluations.items():
        for row in evaluation.rows:
            key = (row.rater, row.kind, row.agreement, str(row.flip_rate), str(row.outcomes))
            distinct.setdefault(key, (name, row))
    times = Counter(row.rater for _, row in distinct.values())
    named = {
        row.rater if times[row.rater] == 1 else f"{row.rater} ({name})": (evaluations[name], row)
        for name, row in distinct.values()
    }
    for option in ("parameters", "families", "published"):
        check_raters(option, getattr(config, option), list(named))
    stated = match_published(list(named), config.published)
    entries = []
    for name, (evaluation, row) in named.items():
        parts = evaluation.manifest["counts"].get("raters", {}).get(row.rater, [])
        notes = parts[0].get("notes", {}) if parts else {}
        if not config.raters or row.rater in config.raters:
            size = config.parameters.get(name) or notes.get("parameters")
            group = group_of(row, is_trained="training" in notes)
            # A stopped mean is biased.
            shown = f"{name} (stopped)" if row.stopped else name
            entries.append(
                Entry(shown, row, group, size, config.families.get(name), stated.get(name))
            )
    return sorted(entries, key=lambda entry: (-entry.row.agreement.mean, entry.name))


def check_raters(key: str, named: Sequence[str] | Mapping[str, Any], raters: list[str]) -> None:
    """Raise a ConfigError for names of raters that no evaluation has."""
    for rater in named:
        if rater not in raters:
            raise ConfigError(f"{key}: '{rater}' is not a rater: {nearest(rater, raters)}")


def write_tables(artifact: Artifact, entries: Sequence[Entry]) -> None:
    """Write Table 3 and Figures 4 and 5."""
    rows = table_3(entries)
    artifact.write("table3.csv", lambda path: write_csv(rows, path))
    latex = table_3_latex(rows)
    artifact.write_text("table3.tex", latex)
    panels = {"figure4": draw_figure_4(entries), "figure5": draw_figure_5(entries)}
    for name, panel in panels.items():
        for file, write in panel.drawing.files(name).items() if panel else ():
            artifact.write(file, write)


def main(config: Config) -> None:
    """Write the report."""
    if not config.evaluations:
        raise ConfigError("evaluations is empty: give at least one, such as 'sample: FOLDER'")
    evaluations = {name: Evaluation.find(folder) for name, folder in config.evaluations.items()}
    inputs = {
        key: path
        for name, evaluation in evaluations.items()
        for key, path in evaluation.inputs(name).items()
    }
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    page_path = (config.out / "report.html").resolve()
    if artifact.is_current():
        print(f"report: {page_path}")
        return
    first = next(iter(evaluations.values()))
    names = list(
        dict.fromkeys(row.rater for evaluation in evaluations.values() for row in evaluation.rows)
    )
    check_raters("raters", config.raters, names)
    changes = compare(evaluations, config.raters) if len(evaluations) > 1 else []
    if len(evaluations) > 1:
        artifact.write("comparison.json", lambda path: write_json(plain(changes), path))
    for change in changes:
        print(
            f"{change.rater}: {change.reference} {change.before}, {change.evaluation} "
            f"{change.after}, difference {change.difference}, {p_value(change.p_holm)} (Holm)"
        )
    if config.tables:
        write_tables(artifact, table_entries(evaluations, config))
    page = render_report(first, config.title, page_path, changes=changes)
    artifact.write_text("report.html", page)
    artifact.counts = {"pairs": first.pairs.headline.num_rows, "raters": len(names)}
    artifact.finish()
    print(f"report: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
