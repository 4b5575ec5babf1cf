"""The page of a study with human readers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from litbench.data.records import label_text
from litbench.evaluation.report import figures
from litbench.evaluation.report.document import (
    Cell,
    Figure,
    Page,
    Section,
    few_prompts,
    percent,
    table_of,
    write_interval,
    write_seconds,
    written_now,
)
from litbench.evaluation.report.leaderboard import annotators_section
from litbench.evaluation.report.tables import load_published
from litbench.metrics.annotators import annotators_json
from litbench.study.metrics import SHARES, StudyFigures, TagFigures

_PUBLISHED = "readers-of-generated-stories"


def draw_study(shown: StudyFigures, published: Mapping[str, Any] | None) -> dict[str, Figure]:
    """Plot the shares of a study.

    `published` is the paper's entry for the first share, drawn as a hollow mark; None for none.
    """
    rows = [(SHARES[name][0], [[interval]]) for name, interval in shown.shares.items()]
    caption, hollow = "With 95 % intervals. Dotted: ½, chance.", {}
    if published is not None:
        hollow = {rows[0][0]: float(published["stated"])}
        caption += f" Hollow: {published['about']}: {published['stated']} ({published['where']})."
    mark = "published for other pairs and readers"
    drawn = figures.dots(rows, ["readers"], "share", hollow=hollow, mark=mark)
    return {"human_study": Figure("Shares", caption, drawn)}


def human_study_page(
    everyone: StudyFigures,
    attentive: StudyFigures | None,
    excluded: Mapping[str, int],
    *,
    label_sources: Sequence[str],
    versions: int,
) -> tuple[str, Page]:
    """The results for a terminal, and the page with its plot.

    Args:
        everyone: figures of all readers.
        attentive: figures without the readers left out; None if nobody is.
        excluded: see `exclusion_counts`.
        label_sources: who labelled the pairs.
        versions: number of versions of the pages that readers saw.
    """
    figures, published = attentive or everyone, None
    if "model" in label_sources:
        published = {row["name"]: row for row in load_published()["other_test_sets"]}[_PUBLISHED]
    panels = draw_study(figures, published)
    note = (
        "Shares of choices have 95 % intervals by prompt and by reader at once, shares of pairs by "
        "prompt, checks by reader. Choices and majorities are different figures: a pair on which "
        "six of ten readers agree with the label counts 0.6 in the first and 1 in the second."
    )
    rules = "The plan's rules exclude no reader."
    if excluded:
        broken = "; ".join(f"{count} {rule}" for rule, count in excluded.items())
        rules = f"Excluded by the plan's rules: {broken}."
    columns: dict[str, Callable[[str], Any]] = {"share of": lambda name: SHARES[name][0]}
    if attentive is not None:
        columns["without readers\nleft out [95 %]"] = partial(_share, attentive)
    columns["all readers [95 %]"] = partial(_share, everyone)
    shares = Section(
        "Figures",
        [note, rules],
        table_of(list(everyone.shares), columns, is_narrow=True),
        warnings=_warnings(figures, versions),
        remarks=[_times(figures)],
    )
    read = [shares]
    if figures.annotators is not None:
        read.append(annotators_section(annotators_json(figures.annotators)))
    if figures.tags is not None:
        read.append(_tags_section(figures.tags))
    out = everyone.readers - figures.readers
    without = f", without {out} left out by the plan's rules" if out else ""
    counts = (
        f"{figures.choices:,} choices by {figures.readers:,} readers on {figures.pairs:,} pairs of "
        f"{figures.prompts:,} prompts{without}."
    )
    texts = [counts, rules, *(section.as_text() for section in read)]
    sections = [
        shares,
        Section("Plot", figures=list(panels.values())),
        *read[1:],
    ]
    facts = f"{counts} Labels: {label_text(label_sources)}. {written_now()}"
    page = Page(
        "LitBench: a study with readers",
        _lead(figures),
        facts,
        sections,
        label_sources,
        files=panels,
    )
    return "\n\n".join(filter(None, texts)) + "\n", page


def _tags_section(tags: TagFigures) -> Section:
    columns: dict[str, Callable[[Any], Any]] = {
        "tag": lambda row: row[0],
        "chosen stories": lambda row: row[1][0],
        "rejected stories": lambda row: row[1][1],
    }
    remark = (
        f"Two readers gave the same tag to a story in {write_interval(tags.same)}; kappa "
        f"{tags.kappa:.2f}."
    )
    table = table_of(list(tags.counts.items()), columns, is_narrow=True)
    if not tags.same.n:
        remark = "No story has tags of two readers, so their agreement is unknown."
    return Section("Tags", table=table, remarks=[remark])


def _share(figures: StudyFigures, name: str) -> Cell:
    share = figures.shares.get(name)
    return Cell(write_interval(share), [f"{share.n:,} {SHARES[name][1]}"] if share else [])


def _lead(figures: StudyFigures) -> str:
    agreement, majority = (
        write_interval(figures.shares[name]) for name in ("agreement", "majority")
    )
    return (
        f"Readers agree with the labels in {agreement} of their choices; the majority of "
        f"readers agrees on {majority} of the pairs."
    )


def _warnings(figures: StudyFigures, versions: int) -> list[str]:
    warnings = few_prompts(figures.shares["majority"])
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
