"""The renderer of all pages: sections of tables, figures and texts in one template.

A page has no scripts and requests nothing from the network, as its content security policy states.
All texts are untrusted and escaped, except pictures.

    section = Section("Leaderboard", "95 % intervals.", table=Table(["rater"], [["longer"]]))
    publish(artifact, "report", text, Page("A title", "What was found.", "When.", [section]))
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from litbench.evaluation.report.csv_table import write_csv
from litbench.evaluation.report.figures import WIDTH, Drawing
from litbench.metrics.comparisons import Comparison
from litbench.metrics.intervals import Interval
from litbench.runs.errors import MissingExtraError
from litbench.runs.outputs import Artifact
from litbench.runs.terminal import clean_name, show

# The pages of all programs by file name, in the order of the links to them.
PAGES = {
    "audit.html": "Audit",
    "report.html": "Report",
    "explanations.html": "Explanations",
    "preferences.html": "Preferences",
    "probes.html": "Probes",
    "ablation.html": "Ablation",
    "best_of_n.html": "Best of n",
    "writers.html": "Writers",
    "human_study.html": "Human study",
}


# Heading of a column of `scale` cells.
ENDS = "0 ½ 1"


@dataclass(frozen=True)
class Figure:
    """A picture with title and caption; if tall, it spans two rows of the grid."""

    title: str
    caption: str
    drawing: Drawing
    tall: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what it says.
        small: lines below, in small print.
        scale: an interval to draw between 0 and 1.
        bar: a share to draw as a bar, and the unit, which gives the colour.
        is_text: left-aligned, with line breaks.
        is_bold: in bold print; with a star in a terminal.
        address: where it links to.
    """

    text: str = ""
    small: Sequence[str] = ()
    scale: Interval | None = None
    bar: tuple[float, str] | None = None
    is_text: bool = False
    is_bold: bool = False
    address: str | None = None

    def as_text(self) -> str:
        """For a terminal: in one line, a text without its small print."""
        star = "*" * self.is_bold
        parts = () if self.is_text else filter(None, self.small)
        return " ".join([f"{self.text}{star}", *parts])


@dataclass(frozen=True)
class Table:
    """A table: its heading, and rows of cells or plain values (see `as_cell`).

    Attributes:
        heading: names of the columns; a line break divides a name.
        rows: each as long as the heading.
        marks: place of a row -> "flagged".
        is_narrow: only as wide as its content.
    """

    heading: Sequence[str]
    rows: Sequence[Sequence[Any]]
    marks: Mapping[int, str] = field(default_factory=dict)
    is_narrow: bool = False

    @property
    def cells(self) -> list[list[Cell]]:
        return [[as_cell(value) for value in row] for row in self.rows]

    def as_text(self, form: Literal["text", "latex"] = "text") -> str:
        """The table for a terminal or LaTeX, without pictures, links and small print of texts."""
        named = zip(self.heading, zip(*self.cells, strict=True), strict=False)
        shown = [(name, cells) for name, cells in named if any(cell.text for cell in cells)]
        if not shown:
            return ""
        texts = (
            [clean_name(name), *(clean_name(cell.as_text()) for cell in cells)]
            for name, cells in shown
        )
        align = "l" + "".join("l" if cells[0].is_text else "r" for _, cells in shown[1:])
        return show(list(zip(*texts, strict=True)), form, align)


@dataclass(frozen=True)
class Card:
    """Texts to read: a prompt, facts, and sides of (tag, text), of which some are lost.

    `reasons` are further (tag, text), below the sides.
    """

    sides: Sequence[tuple[str, str]]
    prompt: str = ""
    facts: str = ""
    lost: Sequence[int] = ()
    reasons: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Section:
    """A part of a page, in this order: warnings, notes, table, figures, remarks, cards, parts.

    Attributes:
        title: its heading.
        notes: paragraphs above the table.
        remarks: paragraphs below it.
        warnings: highlighted paragraphs.
        table: its table.
        figures: its figures, side by side where there is room.
        cards: texts to read.
        parts: smaller sections within it.
        name: its address on the page; the title by default.
        fold: None shows it; otherwise only its heading, until it is opened, or True to open it.
    """

    title: str
    notes: str | Sequence[str] = ()
    table: Table | None = None
    figures: Sequence[Figure] = ()
    remarks: Sequence[str] = ()
    warnings: Sequence[str] = ()
    cards: Sequence[Card] = ()
    parts: Sequence["Section"] = ()
    name: str = ""
    fold: bool | None = None

    @property
    def address(self) -> str:
        """The id of its heading."""
        return self.name or re.sub(r"\W+", "-", self.title.lower()).strip("-")

    @property
    def paragraphs(self) -> list[str]:
        notes = [self.notes] if isinstance(self.notes, str) else self.notes
        return [note for note in notes if note]

    def as_text(self) -> str:
        """Table, remarks and parts for a terminal."""
        table = self.table.as_text() if self.table else ""
        blocks = [table, *self.remarks, *(part.as_text() for part in self.parts)]
        return "\n\n".join(block for block in blocks if block)


@dataclass(frozen=True)
class Page:
    """A page: what it says first, and its sections.

    Attributes:
        title: heading of the page.
        lead: the main result, in a sentence or two.
        facts: what was measured.
        sections: see Section.
        label_sources: who labelled the pairs; "planted" adds a warning.
        warnings: highlighted paragraphs above all sections.
        files: figures that are also written as files, by name.
    """

    title: str
    lead: str
    facts: str
    sections: Sequence[Section]
    label_sources: Sequence[str] = ()
    warnings: Sequence[str] = ()
    files: Mapping[str, Figure | None] = field(default_factory=dict)


def table_of(
    rows: Sequence[Any], columns: Mapping[str, Callable[[Any], Any]], **options: Any
) -> Table:
    """A table of functions of each row."""
    return Table(
        list(columns), [[value(row) for value in columns.values()] for row in rows], **options
    )


def as_cell(value: Any) -> Cell:
    """A cell of any value: whole numbers with separators, others to three digits, or a dash."""
    if isinstance(value, Cell):
        return value
    if value is None or isinstance(value, Interval):
        return Cell(write_interval(value))
    if isinstance(value, float):
        return Cell(f"{value:,.3f}" if math.isfinite(value) else "–")
    return Cell(f"{value:,}" if isinstance(value, Integral) else str(value))


def stacked(interval: Interval | None, *more: str, is_signed: bool = False) -> Cell:
    """A mean above its interval; further small lines follow."""
    if interval is None or not math.isfinite(interval.mean):
        return Cell("–", more)
    write = signed if is_signed else "{:.3f}".format
    bounds = f"[{write(interval.low)}, {write(interval.high)}]"
    unbounded = "no interval" if interval.clusters > 1 else "one prompt: no interval"
    small = bounds if interval.is_bounded else unbounded
    return Cell(write(interval.mean), (small, *more))


def compared(comparison: Comparison | None, otherwise: str = "reference") -> Cell:
    """A difference above its interval and p value."""
    if comparison is None:
        return Cell(otherwise)
    p = [p_value(comparison.p_holm)] if math.isfinite(comparison.p_holm) else []
    difference = comparison.difference
    if p and not comparison.is_clear and not difference.low <= 0 <= difference.high:
        # The interval alone would suggest the opposite.
        p.append("not significant")
    return stacked(difference, *p, is_signed=True)


def few_prompts(interval: Interval) -> list[str]:
    """A warning if there are few prompts."""
    if not interval.effective_clusters < 20:
        return []
    return [
        f"Few prompts: {interval.clusters:,} ({interval.effective_clusters:.0f} effective). With "
        "fewer than 20 effective prompts, intervals are wide and less reliable, and other prompts "
        "may rank the raters differently."
    ]


def funnel_table(steps: Sequence[Mapping[str, Any]]) -> Table:
    """The steps of a funnel, with a bar of the share that is kept of each unit."""
    # The full width of a unit's bars is its count after the first step.
    most = {step["unit"]: max(step["kept"], 1) for step in reversed(steps)}
    rows = [
        [
            Cell(str(step["about"]), is_text=True),
            f"{step['kept']:,} {step['unit']}",
            step["removed"] or "–",
            Cell(bar=(step["kept"] / most[step["unit"]], step["unit"])),
        ]
        for step in steps
    ]
    return Table(["step", "kept", "removed", ""], rows)


def page_links(page: Path, beside: Sequence[str]) -> list[tuple[str, str]]:
    """Names and addresses of the other pages that the same run writes into a page's folder."""
    return [(name, file) for file, name in PAGES.items() if file in beside and file != page.name]


def short_name(name: str) -> str:
    """`clean_name`, cut to 40 characters to fit beside a picture."""
    name = clean_name(name)
    return name if len(name) <= 40 else f"{name[:39]}…"


def shorten(text: str, most: int) -> str:
    """A text cut to `most` characters, with a note of how many were cut."""
    return text if len(text) <= most else f"{text[:most]} […{len(text) - most:,} more letters]"


def write_interval(value: Interval | None) -> str:
    """A mean with its interval, or a dash."""
    return "–" if value is None else str(value)


def signed(value: Interval | float | None) -> str:
    """A difference with its sign, and its interval if it has one."""
    if isinstance(value, Interval):
        bounds = f" [{value.low:+.3f}, {value.high:+.3f}]" if value.is_bounded else ""
        return signed(value.mean) + bounds
    # Adding 0.0 removes the sign of a negative zero.
    return "–" if value is None or not math.isfinite(value) else f"{round(value, 3) + 0.0:+.3f}"


def p_value(value: float | None) -> str:
    """A p value with its name, or a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share in per cent, or a dash."""
    is_known = value is not None and math.isfinite(value)
    return f"{100 * value:.{digits}f} %" if value is not None and is_known else "–"


def write_seconds(value: float | None) -> str:
    """Seconds to three digits, or a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def written_now() -> str:
    """The time at which the page was written."""
    return f"Written {datetime.now(UTC):%d %B %Y, %H:%M} UTC."


def render(page: Page, manifests: Mapping[str, str], links: Sequence[tuple[str, str]] = ()) -> str:
    """Render a page.

    Args:
        page: its content.
        manifests: texts by name, which say how the page was made.
        links: other pages, from `page_links`.
    """
    try:
        import jinja2  # noqa: PLC0415
        import markupsafe  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("jinja2", "report") from error

    def picture(figure: Figure) -> markupsafe.Markup:
        alt = markupsafe.escape(f"{figure.title}. {figure.caption}")
        width, style = figure.drawing.figure.get_figwidth(), ""
        if width > WIDTH:
            # As large as other figures: on a phone it scrolls in its frame.
            style = f' style="min-width:{6.4 * width:.0f}rem;max-width:{8.3 * width:.0f}rem"'
        named = f'<svg role="img" aria-label="{alt}"{style} '
        svg = figure.drawing.svg.replace("<svg ", named, 1)
        framed = f'<div class="scroll" tabindex="0">{svg}</div>' if style else svg
        return markupsafe.Markup(framed)  # noqa: S704

    def breakable(name: str) -> markupsafe.Markup:
        # Names may break after an underscore where a column is narrow.
        return markupsafe.Markup("_<wbr>").join(name.split("_"))

    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.PackageLoader("litbench.evaluation.report", ""),
    )
    environment.filters.update(
        breakable=breakable,
        clean=clean_name,
        picture=picture,
        place=lambda value: 100 * min(max(value, 0.0), 1.0),
    )
    style = (
        resources.files("litbench.evaluation.report")
        .joinpath("style.css")
        .read_text(encoding="utf-8")
    )
    text = environment.get_template("page.html").render(
        page=page,
        manifests=manifests,
        links=links,
        ends=ENDS,
        style=markupsafe.Markup(style),  # noqa: S704
    )
    # JSON may contain lone surrogates, which UTF-8 cannot encode.
    return text.encode("utf-8", "replace").decode("utf-8")


def publish(
    artifact: Artifact,
    name: str,
    text: str,
    page: Page | None = None,
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = MappingProxyType({}),
    *,
    is_final: bool = True,
) -> None:
    """Write CSV tables, NAME.txt, NAME.html with its figures, and the manifest; print the text.

    Args:
        artifact: the output folder.
        name: name of the results.
        text: the results for a terminal.
        page: the page; None if there is none.
        tables: rows of the CSV files, by name.
        is_final: if false, no manifest is written, and the next run goes on.
    """
    for key, rows in tables.items():
        artifact.write(f"{key}.csv", partial(write_csv, rows))
    artifact.write_text(f"{name}.txt", text)
    for key, figure in page.files.items() if page else ():
        for file, write in figure.drawing.files(key).items() if figure else ():
            artifact.write(file, write)
    if page is not None:
        artifact.write_text(f"{name}.html", render(page, {name: artifact.made_of()}))
    if is_final:
        artifact.finish()
    show_results(artifact.folder, name)


def show_results(folder: Path, name: str) -> None:
    """Print published results, and the path of their page."""
    print((folder / f"{name}.txt").read_text(encoding="utf-8"), end="")
    if (page := (folder / f"{name}.html").resolve()).is_file():
        print(f"page: {page}")
