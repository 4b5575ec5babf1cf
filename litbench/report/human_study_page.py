"""The page of a study with human readers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from litbench.artifact import Artifact
from litbench.metrics.annotators import annotators_json
from litbench.metrics.human_study import (
    ReaderResult,
    StudyFigures,
    exclusion_counts,
    figure_rows,
)
from litbench.report import figures as plots
from litbench.report.document import Figure, short_name, write_page
from litbench.report.tables import load_published

_PUBLISHED = "readers-of-generated-stories"


def draw_study(figures: StudyFigures, published: float | None) -> Figure:
    """Plot the shares of a study, and of raters against the majority of the other readers."""
    rows = [(name, [[interval]]) for name, _, interval in figure_rows(figures)]
    if figures.annotators is not None:
        rows += [
            (f"{short_name(row.rater)} agrees with the others", [[row.agreement]])
            for row in figures.annotators.raters
        ]
    drawn = plots.dots(
        rows, ["readers"], "share",
        hollow={} if published is None else {rows[0][0]: published},
        mark="published for other pairs and readers",
    )  # fmt: skip
    return Figure("Shares", "With 95 % intervals. Dotted: ½, chance.", drawn)


def write_human_study(
    artifact: Artifact,
    everyone: StudyFigures,
    kept: StudyFigures | None,
    readers: Sequence[ReaderResult],
    pairs: Sequence[Mapping[str, Any]],
    *,
    label_sources: Sequence[str],
    from_choices: bool,
    warnings: Sequence[str],
    title: str,
) -> None:
    """Write human_study.html and its plot.

    Args:
        artifact: the output folder.
        everyone: figures of all readers.
        kept: figures without the readers left out; None if nobody is.
        readers: every reader.
        pairs: rows with `pair_id`, `prompt`, `choices` and `share`.
        label_sources: who labelled the pairs.
        from_choices: whether readers chose, rather than rated stories.
        warnings: what limits the figures.
        title: heading of the page.
    """
    figures = kept or everyone
    published = None
    if from_choices and "model" in label_sources:
        rows = {row["name"]: row for row in load_published()["other_test_sets"]}
        published = rows[_PUBLISHED]
    mark = None if published is None else float(published["stated"])
    found = figures.annotators
    write_page(
        artifact, "human_study", {"human_study": draw_study(figures, mark)},
        title=title,
        label_sources=label_sources,
        everyone=everyone,
        kept=kept,
        rows=figure_rows(figures),
        rows_of_all={name: interval for name, _, interval in figure_rows(everyone)},
        published=published,
        nan=math.nan,
        annotators=None if found is None else annotators_json(found),
        from_choices=from_choices,
        warnings=warnings,
        exclusions=exclusion_counts(readers),
        readers=readers,
        pairs=pairs,
    )  # fmt: skip
