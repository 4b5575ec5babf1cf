"""The page of a study with human readers."""

from collections.abc import Mapping, Sequence
from typing import Any

from litbench.metrics.annotators import annotators_json
from litbench.metrics.human_study import SHARES, StudyFigures, exclusion_counts
from litbench.report import figures as plots
from litbench.report.document import (
    Cell,
    Figure,
    Page,
    Section,
    Table,
    few_prompts,
    label_text,
    percent,
    short_name,
    shorten,
    write_interval,
    write_page,
    write_seconds,
    written_now,
)
from litbench.report.pages import annotators_section
from litbench.report.tables import load_published
from litbench.store import Artifact
from litbench.text import clean_name

_PUBLISHED = "readers-of-generated-stories"
_MADE_LABELS = (
    "The labels are means of these same ratings, so agreement with them would say nothing: each "
    "annotator is compared with the others."
)


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
    found, panels = figures.annotators, draw_study(figures, published)
    note = (
        "Shares of choices have 95 % intervals by prompt and by reader at once, shares of pairs by "
        "prompt, checks by reader."
    )
    if not made_labels:
        note += (
            " Choices and majorities are different figures: a pair on which six of ten readers "
            "agree with the label counts 0.6 in the first and 1 in the second. A tie counts ½."
        )
    sections = [
        Section(
            "Figures",
            [note, _MADE_LABELS] if made_labels else note,
            _shares_table(everyone, kept),
            warnings=_warnings(figures, made_labels, versions),
            remarks=[_times(figures)],
        ),
        Section("Plot", figures=list(panels.values())),
        *([annotators_section(annotators_json(found))] if found else []),
        _readers_section(readers),
        *([] if made_labels else [_pairs_section(pairs)]),
    ]
    out = everyone.readers - figures.readers
    without = f", without {out} readers whom the plan's rules leave out" if out else ""
    facts = (
        f"{figures.choices:,} choices by {figures.readers:,} readers on {figures.pairs:,} pairs of "
        f"{figures.prompts:,} prompts{without}. Labels: {label_text(label_sources)}. "
        f"{written_now()}"
    )
    title, lead = "LitBench: a study with readers", _lead(figures, made_labels)
    page = Page(title, lead, facts, sections, label_sources)
    write_page(artifact, "human_study", page, panels)


def _lead(figures: StudyFigures, made_labels: bool) -> str:
    if not made_labels:
        agreement, majority = (
            write_interval(figures.shares[name]) for name in ("agreement", "majority")
        )
        return (
            f"Readers agree with the labels in {agreement} of their choices; the majority of "
            f"readers agrees on {majority} of the pairs."
        )
    if figures.annotators is None:
        return "The ratings of the annotators, as choices."
    one = write_interval(figures.annotators.one_annotator)
    return f"One annotator agrees with the others in {one} of the pairs."


def _warnings(figures: StudyFigures, made_labels: bool, versions: int) -> list[str]:
    warnings = []
    if not made_labels:
        warnings += few_prompts(figures.shares["majority"])
    elif figures.annotators is not None:
        warnings += few_prompts(figures.annotators.one_annotator)
    if figures.readers < 20:
        warnings.append(
            f"Few readers: {figures.readers}. Their intervals are wide and less reliable, and "
            "other readers may choose differently."
        )
    if versions > 1:
        warnings.append(f"Readers saw {versions} versions of the pages.")
    return warnings


def _times(figures: StudyFigures) -> str:
    text = ""
    if figures.seconds:
        low, middle, high = map(write_seconds, figures.seconds)
        text = f"Seconds for a pair: median {middle}, quartiles {low} and {high}. "
    if figures.hurried is not None:
        text += f"Answers first sent too early: {percent(figures.hurried)}."
    return text


def _shares_table(everyone: StudyFigures, kept: StudyFigures | None) -> Table:
    columns = {"without readers\nleft out [95 %]": kept} if kept else {}
    columns["all readers [95 %]"] = everyone
    rows = []
    for name in everyone.shares:
        about, unit = SHARES[name]
        cells: list[str] = []
        for one in columns.values():
            interval = one.shares.get(name)
            cells += [write_interval(interval), f"{interval.n:,} {unit}" if interval else ""]
        rows.append([about, *cells])
    return Table(["share of", *(cell for name in columns for cell in (name, ""))], rows)


def _readers_section(readers: Sequence[Mapping[str, Any]]) -> Section:
    excluded = exclusion_counts(readers)
    note = "The rules of the plan leave nobody out."
    if excluded:
        rules = "; ".join(f"{count} {rule}" for rule, count in excluded.items())
        note = f"Left out by the rules of the plan: {rules}."
    heading = [
        "reader",
        "choices",
        "agree with\nthe labels",
        "median\nseconds",
        "attention\npassed",
        "same\nagain",
        "left out",
    ]
    rows = [
        [
            one["reader"],
            one["choices"],
            one["agreement"],
            write_seconds(one["median_seconds"]),
            one["attention"],
            one["repeats"],
            Cell(", ".join(one["excluded"]), is_text=True),
        ]
        for one in readers
    ]
    table = Table(heading, rows, is_narrow=True)
    return Section("Readers", note, parts=[Section("Every reader", table=table, fold=False)])


def _pairs_section(pairs: Sequence[Mapping[str, Any]]) -> Section:
    rows = [
        [
            shorten(clean_name(one["pair_id"]), 12),
            Cell(shorten(one["prompt"], 120), is_text=True),
            one["choices"],
            one["share"],
            Cell(bar=(one["share"], "")),
        ]
        for one in pairs
    ]
    table = Table(["pair", "prompt", "choices", "agree", ""], rows, is_narrow=True)
    note = "Share of the choices of each pair that agree with its label."
    return Section("Pairs", note, parts=[Section("Every pair", table=table, fold=False)])
