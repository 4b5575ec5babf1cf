"""The page of a study with human readers."""

from collections.abc import Mapping, Sequence
from typing import Any

from litbench.metrics.annotators import annotators_json
from litbench.metrics.human_study import SHARES, StudyFigures, exclusion_counts
from litbench.report import figures as plots
from litbench.report.document import Figure, short_name, write_page
from litbench.report.tables import load_published
from litbench.store import Artifact

_PUBLISHED = "readers-of-generated-stories"


def draw_study(figures: StudyFigures, published: Mapping[str, Any] | None) -> dict[str, Figure]:
    """Plot the shares of a study, and of raters against the majority of the other readers.

    Empty without any share, as for a single reader whose ratings made the labels.

    `published` is the paper's entry for the first share, drawn as a hollow mark; None for none.
    """
    rows = [(SHARES[name][0], [[interval]]) for name, interval in figures.shares.items()]
    caption = "With 95 % intervals. Dotted: ½, chance."
    hollow = {}
    if published is not None:
        hollow = {rows[0][0]: float(published["stated"])}
        caption += f" Hollow: {published['about']}: {published['stated']} ({published['where']})."
    if figures.annotators is not None:
        rows.append(("one reader agrees with the others", [[figures.annotators.one_annotator]]))
        rows += [
            (f"{short_name(row.rater)} agrees with the others", [[row.agreement]])
            for row in figures.annotators.raters
        ]
    mark = "published for other pairs and readers"
    if not rows:
        return {}
    drawn = plots.dots(rows, ["readers"], "share", hollow=hollow, mark=mark)
    return {"human_study": Figure("Shares", caption, drawn)}


def write_human_study(
    artifact: Artifact,
    everyone: StudyFigures,
    kept: StudyFigures | None,
    readers: Sequence[Mapping[str, Any]],
    pairs: Sequence[Mapping[str, Any]],
    *,
    label_sources: Sequence[str],
    from_choices: bool,
    made_labels: bool,
    versions: int,
) -> None:
    """Write human_study.html and its plot.

    Args:
        artifact: the output folder.
        everyone: figures of all readers.
        kept: figures without the readers left out; None if nobody is.
        readers: rows of `reader_results`.
        pairs: rows of `pair_results`.
        label_sources: who labelled the pairs.
        from_choices: whether readers chose, rather than rated stories.
        made_labels: whether the readers' answers made the labels.
        versions: number of versions of the pages that readers saw.
    """
    figures, published = kept or everyone, None
    if from_choices and "model" in label_sources:
        published = {row["name"]: row for row in load_published()["other_test_sets"]}[_PUBLISHED]
    found = figures.annotators
    write_page(
        artifact, "human_study", draw_study(figures, published),
        title="LitBench: a study with readers",
        label_sources=label_sources,
        everyone=everyone,
        kept=kept,
        names=SHARES,
        annotators=None if found is None else annotators_json(found),
        made_labels=made_labels,
        versions=versions,
        exclusions=exclusion_counts(readers),
        readers=readers,
        pairs=pairs,
    )  # fmt: skip
