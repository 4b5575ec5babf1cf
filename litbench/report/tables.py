"""Tables 3 and Figures 4, 5 and 8 of the paper from any leaderboards, in several formats.

A sheet is a table of plain values; the writers turn the same sheets into Markdown, LaTeX and CSV,
and `render_tables` into a page. What a rater is called was chosen by whoever wrote the config or
uploaded the model, so every format escapes it in its own way.

What the paper states (`published.yaml`) stands in columns and marks of its own, beside a measured
rater only where the caller says which one it is.
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from litbench import markdown
from litbench.config import nearest
from litbench.errors import ConfigError
from litbench.metrics.explanations import ExplanationStudy
from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import LeaderboardRow, csv_cell, write_dollars
from litbench.metrics.scaling import write_size
from litbench.records import OUTCOMES
from litbench.report import figures
from litbench.report.document import Panel, render, short_name, write_seconds
from litbench.text import clean_name

GROUPS = (
    "zero-shot judges", "Bradley-Terry", "GenRM", "GenRM-CoT", "panels", "baselines", "others",
)  # fmt: skip
_GROUP_OF_KIND = {
    "judge": "zero-shot judges",
    "recorded": "zero-shot judges",
    "reward": "Bradley-Terry",
    "panel": "panels",
    "longer": "baselines",
    "shorter": "baselines",
    "random": "baselines",
    "talk": "baselines",
    "features": "baselines",
}

Form = Literal["text", "count", "share", "percent", "words", "dollars", "size", "seconds"]


# What the paper states -----------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedRow:
    """A number of the paper.

    Attributes:
        name: as the paper has it, or where it has none as `published.yaml` calls it.
        group: one of `GROUPS`.
        stated: share of pairs, 0 to 1, with the digits that the paper has.
        where: table or section that states it.
        explanation: mean length of an explanation, in the unit of `Published.explanation_unit`.
        parameters: weights of its backbone.
        is_named_here: whether the name is ours, so that a rater of that name says nothing.
    """

    name: str
    group: str
    stated: str
    where: str
    explanation: float | None = None
    parameters: float | None = None
    is_named_here: bool = False

    @property
    def agreement(self) -> float:
        """The stated share as a number."""
        return float(self.stated)


@dataclass(frozen=True)
class Published:
    """What the paper states of its test set.

    Attributes:
        source: the paper, as a column heading names it.
        test_pairs: pairs of its test set.
        explanation_unit: what the paper says of the unit of explanation lengths.
        rows: by name.
    """

    source: str
    test_pairs: int
    explanation_unit: str
    rows: Mapping[str, PublishedRow]

    @classmethod
    def load(cls) -> "Published":
        """Read the file that comes with the package."""
        file = resources.files("litbench.report").joinpath("published.yaml")
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        rows = [PublishedRow(**row) for row in content["rows"]]
        return cls(
            content["source"],
            content["test_pairs"],
            content["explanation_unit"],
            {row.name: row for row in rows},
        )

    def match(self, raters: Sequence[str], named: Mapping[str, str]) -> dict[str, PublishedRow]:
        """The published row of each measured rater that has one.

        Args:
            raters: names of measured raters.
            named: rater -> name of a published row; a rater that is called exactly as the paper
                calls a row needs no entry. Nothing is guessed.

        Raises:
            ConfigError: an entry names no measured rater, or no published row.
        """
        for rater, name in named.items():
            if rater not in raters:
                raise ConfigError(f"published: '{rater}' is no rater: {nearest(rater, raters)}")
            if name not in self.rows:
                known = nearest(name, list(self.rows))
                raise ConfigError(f"published.{rater}: '{name}' is no published row: {known}")
        own = {name for name, row in self.rows.items() if not row.is_named_here}
        exact = {rater: rater for rater in raters if rater in own}
        return {rater: self.rows[name] for rater, name in {**exact, **named}.items()}


# Raters and their places ---------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A rater as the tables have it.

    Attributes:
        name: unique among the entries of a pair set.
        row: its figures.
        group: see `group_of`.
        parameters: weights of its model; None where nobody says.
        family: entries of one family are joined by a line in Figure 5.
        published: what the paper states of the same model.
    """

    name: str
    row: LeaderboardRow
    group: str
    parameters: float | None = None
    family: str | None = None
    published: PublishedRow | None = None


@dataclass(frozen=True)
class PairSet:
    """The raters that judged the same pairs.

    Attributes:
        name: of the evaluation, or of several.
        entries: highest agreement first.
    """

    name: str
    entries: Sequence[Entry]


def group_of(row: LeaderboardRow, *, is_trained: bool) -> str:
    """The group of a rater by its kind, one of `GROUPS`.

    Args:
        row: its figures.
        is_trained: whether its model folder tells of a training; a generative model without one
            is asked as any judge is.
    """
    if row.kind == "generative":
        if not is_trained:
            return "zero-shot judges"
        return "GenRM" if row.explanation_words is None else "GenRM-CoT"
    return _GROUP_OF_KIND.get(row.kind, "others")


def by_group(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The entries of each group, in the order of `GROUPS`, then groups of the user's own."""
    found: dict[str, list[Entry]] = {group: [] for group in GROUPS}
    for entry in entries:
        found.setdefault(entry.group, []).append(entry)
    return {group: of for group, of in found.items() if of}


# Sheets --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of a sheet.

    Attributes:
        key: its name in CSV; a column of intervals has `key_low` and `key_high` behind it.
        title: its heading elsewhere.
        form: how its values are written for people.
        is_interval: whether its values are intervals.
        is_detail: whether it is in CSV alone.
        is_published: whether its values were stated by others and not measured.
        in_print: whether LaTeX has it; a page of paper holds about eight columns.
    """

    key: str
    title: str
    form: Form = "text"
    is_interval: bool = False
    is_detail: bool = False
    is_published: bool = False
    in_print: bool = True


@dataclass(frozen=True)
class Sheet:
    """A table of plain values.

    Attributes:
        name: of its files.
        title: heading.
        notes: what to know when reading it.
        columns: what each row has.
        rows: one value per column: text, number, Interval or None.
    """

    name: str
    title: str
    notes: Sequence[str]
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]

    def shown(self, *, in_print: bool = False) -> tuple[list[Column], list[list[str]]]:
        """Columns and cells for people; columns that say nothing of any row are left out."""
        kept = [
            place
            for place, column in enumerate(self.columns)
            if not column.is_detail
            and (column.in_print or not in_print)
            and any(
                row[place] is not None and (row[place] or column.form != "count")
                for row in self.rows
            )
        ]
        columns = [self.columns[place] for place in kept]
        cells = [
            [_written(row[place], column.form) for place, column in zip(kept, columns, strict=True)]
            for row in self.rows
        ]
        return columns, cells


def _written(value: Any, form: Form) -> str:
    if isinstance(value, Interval):
        if not math.isfinite(value.mean):
            return "–"
        return str(value) if math.isfinite(value.low) else f"{value.mean:.3f}"
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if form == "text":
        return clean_name(str(value))
    if form == "dollars":
        return write_dollars(value)
    if form == "size":
        return write_size(value)
    if form == "seconds":
        return write_seconds(value)
    forms = {"count": ",.0f", "share": ".3f", "percent": ".1%", "words": ",.1f"}
    return format(value, forms[form])


def _difference(row: LeaderboardRow) -> str | None:
    if row.comparison is None:
        return None
    noise = "" if row.comparison.is_clear else ", within noise"
    return f"{row.comparison.difference.mean:+.3f} from {row.comparison.reference}{noise}"


def _published_columns(published: Published) -> tuple[Column, Column]:
    return (
        Column("published_agreement", f"published ({published.source})", is_published=True),
        Column("published_where", "stated in", is_published=True),
    )


def _on(published: Published) -> str:
    return (
        f"The column “published” is what {published.source} states for its own test set of "
        f"{published.test_pairs:,} pairs, without intervals. It was not measured here, and is "
        "comparable only where the pairs are the same."
    )


def table_3(sets: Sequence[PairSet], published: Published) -> Sheet:
    """Every rater with agreement, both orders, explanations and cost (paper, Table 3)."""
    first = (
        Column("pairs_of", "pairs of"), Column("rater", "rater"),
        Column("group", "group", in_print=False),
        Column("kind", "kind", is_detail=True), Column("pairs", "pairs", "count", in_print=False),
        Column("prompts", "prompts", "count", in_print=False),
        Column("agreement", "agreement [95 %]", "share", is_interval=True),
        Column("difference", "difference [95 %]", "share", is_interval=True, is_detail=True),
        Column("p_holm", "p (Holm)", is_detail=True),
        Column("difference_told", "difference"),
        Column("both_orders", "fully judged [95 %]", "share", is_interval=True, in_print=False),
        Column("flip_rate", "flip rate [95 %]", "share", is_interval=True),
        Column("position_lean", "first wins [95 %]", "share", is_interval=True),
        Column("consistent_share", "orders agree on", "percent", in_print=False),
        Column(
            "consistent", "and agree with the labels [95 %]", "share", is_interval=True,
            in_print=False,
        ),
        Column("coverage", "coverage", "share"),
        *(
            Column(
                name, name, "count", is_detail=name in ("chosen", "rejected"), in_print=False
            )
            for name in OUTCOMES
        ),
        Column("explanation_words", "words of an explanation", "words"),
        Column("input_tokens", "tokens read", "count", in_print=False),
        Column("output_tokens", "tokens written", "count", in_print=False),
        Column("cost_usd", "$", "dollars", in_print=False),
        Column("cost_per_1000_pairs", "$ per 1,000 pairs", "dollars"),
        Column("seconds", "seconds", "seconds", in_print=False),
        Column("trained_on", "of these prompts trained on", "count"),
    )  # fmt: skip
    columns = (
        *first,
        *_published_columns(published),
        Column(
            "published_explanation",
            f"published length of an explanation ({published.explanation_unit})",
            "words",
            is_published=True,
        ),
    )
    rows = []
    for one in sets:
        for entry in one.entries:
            row, stated = entry.row, entry.published
            rows.append((
                one.name if len(sets) > 1 else None, entry.name, entry.group, row.kind,
                row.agreement.n, row.agreement.clusters, row.agreement,
                row.comparison and row.comparison.difference,
                row.comparison and row.comparison.p_holm, _difference(row),
                row.both_orders, row.flip_rate, row.position_lean, row.consistent_share,
                row.consistent, row.coverage, *(row.outcomes[name] for name in OUTCOMES),
                row.explanation_words, row.input_tokens, row.output_tokens, row.cost_usd,
                row.cost_per_1000_pairs, row.seconds, row.trained_on or None,
                stated and stated.stated, stated and stated.where,
                stated and stated.explanation,
            ))  # fmt: skip
    notes = [
        "Agreement with the labels: right 1, tie 1/2, not judged 1/2, mean over both orders, then "
        "over pairs. Intervals are 95 %, clustered by prompt. A difference within noise could be "
        "chance (paired, Holm's correction over its evaluation). “Fully judged” is empty where "
        "every verdict is a judgement: there it is the agreement.",
        *(
            [_on(published)]
            if any(entry.published for one in sets for entry in one.entries)
            else []
        ),
    ]
    return Sheet("table3", "Table 3: raters and their agreement", notes, columns, rows)


def figure_4(sets: Sequence[PairSet], published: Published) -> Sheet:
    """What Figure 4 draws: agreement by rater, in groups."""
    columns = (
        Column("pairs_of", "pairs of"), Column("group", "group"), Column("rater", "rater"),
        Column("agreement", "agreement [95 %]", "share", is_interval=True),
        *_published_columns(published),
    )  # fmt: skip
    rows = [
        (
            one.name if len(sets) > 1 else None, group, entry.name, entry.row.agreement,
            entry.published and entry.published.stated,
            entry.published and entry.published.where,
        )
        for one in sets
        for group, entries in by_group(one.entries).items()
        for entry in entries
    ]  # fmt: skip
    return Sheet("figure4", "Figure 4: agreement by kind of rater", (), columns, rows)


def figure_5(sets: Sequence[PairSet], published: Published) -> Sheet:
    """What Figure 5 draws: agreement by size, of raters whose size somebody tells."""
    columns = (
        Column("pairs_of", "pairs of"), Column("group", "group"), Column("family", "family"),
        Column("rater", "rater"), Column("parameters", "parameters", "size"),
        Column("agreement", "agreement [95 %]", "share", is_interval=True),
        *_published_columns(published),
    )  # fmt: skip
    rows = [
        (
            one.name if len(sets) > 1 else None, entry.group, entry.family, entry.name,
            entry.parameters, entry.row.agreement,
            entry.published and entry.published.stated,
            entry.published and entry.published.where,
        )
        for one in sets
        for entry in sorted(one.entries, key=lambda entry: entry.parameters or 0)
        if entry.parameters is not None
    ]  # fmt: skip
    return Sheet("figure5", "Figure 5: agreement by model size", (), columns, rows)


def published_sheet(published: Published) -> Sheet:
    """All that the paper states, apart from anything measured."""
    columns = (
        Column("published_name", "published"), Column("group", "group"),
        Column("parameters", "parameters", "size"),
        Column("published_agreement", "agreement"),
        Column("published_explanation",
               f"length of an explanation ({published.explanation_unit})", "words"),
        Column("published_where", "stated in"),
    )  # fmt: skip
    rows = [
        (row.name, row.group, row.parameters, row.stated, row.explanation, row.where)
        for row in published.rows.values()
    ]
    title = f"Published: {published.source}"
    notes = (
        f"What the paper states for its test set of {published.test_pairs:,} pairs, with its own "
        "names and digits. Nothing here was measured by LitBench, and the paper gives no "
        "intervals.",
    )
    return Sheet("published", title, notes, columns, rows)


def figure_8(study: ExplanationStudy) -> Sheet:
    """What explanations over all raters say (paper, Figure 8)."""
    columns = (
        Column("feature", "feature"), Column("group", "group"),
        Column("present", "explanations with it", "count"),
        Column("rate", "their share [95 %]", "share", is_interval=True),
        Column("difference", "change in agreement [95 %]", "share", is_interval=True),
        Column("p_holm", "p (Holm)", "share"), Column("noise", "difference"),
    )  # fmt: skip

    (overall,) = study.at("all").values()
    rows = [
        (
            one.feature, one.group, one.present, one.rate, one.difference, one.p_holm,
            one.reason or ("outside the noise" if one.is_clear else "within noise"),
        )
        for one in overall
    ]  # fmt: skip
    notes = (
        "Agreement of verdicts whose explanation has the feature minus that of verdicts without "
        "it, within raters, over all raters; p values with Holm's correction. The same for each "
        "rater is in the folder of eval/explanations.py.",
    )
    return Sheet("figure8", "Figure 8: what explanations say", notes, columns, rows)


# Formats -------------------------------------------------------------------------------------


def sheets_markdown(title: str, sheets: Sequence[Sheet]) -> str:
    """All sheets as Markdown; every cell is escaped."""
    lines = [f"# {markdown.escape(clean_name(title))}", ""]
    for sheet in sheets:
        columns, cells = sheet.shown()
        lines += [f"## {markdown.escape(sheet.title)}", ""]
        lines += markdown.make_rows([markdown.escape(column.title) for column in columns], cells)
        for note in sheet.notes:
            lines += [markdown.escape(note), ""]
    return "\n".join(lines)


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"{\char34}",
    "`": r"{\char96}", "'": r"{'}", "-": "{-}",
    # Behind the end of a row they would be read as its options.
    "[": "{[}", "]": "{]}", "*": "{*}",
    "–": "--", "“": "``", "”": "''", "…": r"\dots{}",
}  # fmt: skip


def latex_escape(text: str) -> str:
    """Plain text for LaTeX, whatever is in it."""
    return "".join(_LATEX.get(letter, letter) for letter in clean_name(text))


def sheets_latex(title: str, sheets: Sequence[Sheet]) -> str:
    """All sheets as LaTeX tables; the document needs booktabs and graphicx."""
    lines = [f"% {latex_escape(title)}", "% \\usepackage{booktabs,graphicx}"]
    for sheet in sheets:
        columns, cells = sheet.shown(in_print=True)
        sides = "".join("l" if column.form == "text" else "r" for column in columns)
        caption = " ".join([f"{sheet.title}.", *sheet.notes])
        lines += [
            "", r"\begin{table}", r"\centering", f"\\caption{{{latex_escape(caption)}}}",
            f"\\label{{tab:{sheet.name}}}", r"\resizebox{\ifdim\width>\linewidth\linewidth\else"
            r"\width\fi}{!}{%", f"\\begin{{tabular}}{{{sides}}}", r"\toprule",
            " & ".join(latex_escape(column.title) for column in columns) + r" \\", r"\midrule",
            *(" & ".join(map(latex_escape, row)) + r" \\" for row in cells),
            r"\bottomrule", r"\end{tabular}}", r"\end{table}",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def write_sheet_csv(sheet: Sheet, path: Path) -> None:
    """Write a sheet as CSV with all its columns and digits, by `csv_cell`."""
    heading: list[str] = []
    for column in sheet.columns:
        ends = (f"{column.key}_low", f"{column.key}_high") if column.is_interval else ()
        heading += [column.key, *ends]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(heading)
        for row in sheet.rows:
            cells: list[Any] = []
            for value, column in zip(row, sheet.columns, strict=True):
                if not column.is_interval:
                    cells.append(value)
                elif value is None:
                    cells += [None, None, None]
                else:
                    cells += [value.mean, value.low, value.high]
            writer.writerow([csv_cell(cell) for cell in cells])


# Pictures and the page -----------------------------------------------------------------------


@dataclass(frozen=True)
class Pictures:
    """The pictures of a pair set; None where there is nothing to draw."""

    groups: Panel
    sizes: Panel | None


def draw(one: PairSet, published: Published) -> Pictures:
    """Draw Figures 4 and 5 of a pair set.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    mark = f"published ({published.source}), not measured here"
    drawn = figures.grouped(
        [
            (short_name(group), [
                (short_name(entry.name), entry.row.agreement,
                 None if entry.published is None else entry.published.agreement)
                for entry in entries
            ])
            for group, entries in by_group(one.entries).items()
        ],
        mark,
    )  # fmt: skip
    caption = "Agreement with its 95 % interval, by prompt. Dotted: a coin."
    groups = Panel("Agreement by kind of rater", caption, drawn)
    sized = [entry for entry in one.entries if entry.parameters is not None]
    if not sized:
        return Pictures(groups, None)
    lines: dict[tuple[str, str], list[Entry]] = {}
    for entry in sorted(sized, key=lambda entry: entry.parameters or 0):
        lines.setdefault((entry.group, entry.family or f"\0{entry.name}"), []).append(entry)
    drawn = figures.by_size(
        [
            (short_name(group), [
                (short_name(entry.name), entry.parameters or 0.0, entry.row.agreement,
                 None if entry.published is None else entry.published.agreement)
                for entry in entries
            ])
            for (group, _), entries in lines.items()
        ],
        mark,
        write_size,
    )  # fmt: skip
    caption = (
        "Agreement with its 95 % interval, by prompt, for raters whose size is known. A line joins "
        "raters of one family. Dotted: a coin."
    )
    return Pictures(groups, Panel("Agreement by model size", caption, drawn))


def render_tables(
    *,
    title: str,
    sets: Sequence[PairSet],
    pictures: Sequence[Pictures],
    sheets: Sequence[Sheet],
    published: Published,
    label_sources: Sequence[str],
    explanations: Panel | None,
    manifests: Mapping[str, str],
) -> str:
    """Render the page.

    Args:
        title: heading of the page.
        sets: pair sets and their raters.
        pictures: of each pair set, from `draw`.
        sheets: to show, in order.
        published: what the paper states.
        label_sources: of all pairs.
        explanations: the picture of Figure 8, where there is one.
        manifests: name and text of what made the page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    return render(
        "tables_page.html",
        title=clean_name(title),
        label_sources=label_sources,
        sets=sets,
        pictures=list(zip(sets, pictures, strict=True)),
        sheets=[(sheet, *sheet.shown()) for sheet in sheets],
        published=published,
        any_published=any(entry.published for one in sets for entry in one.entries),
        explanations=None if explanations is None else explanations.figure,
        manifests=manifests,
    )
