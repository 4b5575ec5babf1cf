"""Table 3 and Figures 4 and 5 of the paper from any leaderboard, as LaTeX, CSV and plots.

What a rater is called was chosen by whoever wrote the config or uploaded the model, so each format
escapes names in its own way. What the paper states (`published.yaml`) stands in columns and marks
of its own, beside a measured rater only where the caller says which one it is.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from litbench.config import nearest
from litbench.errors import ConfigError
from litbench.metrics.ablation import write_size
from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import LeaderboardRow
from litbench.metrics.printing import write_dollars
from litbench.report import figures
from litbench.report.document import Figure, short_name
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


@dataclass(frozen=True)
class PublishedRow:
    """A number of the paper.

    Attributes:
        name: as the paper has it, or where it has none as `published.yaml` calls it.
        group: one of `GROUPS`.
        stated: share of pairs, 0 to 1, with the digits that the paper has.
        where: table or section that states it.
        explanation: mean length of an explanation, in the unit of `Published.explanation_unit`.
        parameters: weights of the model.
        is_named_here: whether the name is ours, so that a rater of that name says nothing.
    """

    name: str
    group: str
    stated: str
    where: str
    explanation: float | None = None
    parameters: float | None = None
    is_named_here: bool = False


@dataclass(frozen=True)
class Published:
    """What the paper states about its test set.

    Attributes:
        source: the paper, as a column heading names it.
        test_pairs: number of pairs in its test set.
        explanation_unit: what the paper says about the unit of explanation lengths.
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
        rows = {row["name"]: PublishedRow(**row) for row in content.pop("rows")}
        return cls(**content, rows=rows)

    def match(self, raters: Sequence[str], named: Mapping[str, str]) -> dict[str, PublishedRow]:
        """Find the published row of each measured rater that has one.

        Args:
            raters: names of measured raters.
            named: rater -> name of a published row; a rater that is called exactly as the paper
                calls a row needs no entry. Nothing is guessed.

        Raises:
            ConfigError: an entry names no published row.
        """
        for rater, name in named.items():
            if name not in self.rows:
                known = nearest(name, list(self.rows))
                raise ConfigError(f"published.{rater}: '{name}' is no published row: {known}")
        own = {name for name, row in self.rows.items() if not row.is_named_here}
        exact = {rater: rater for rater in raters if rater in own}
        return {rater: self.rows[name] for rater, name in {**exact, **named}.items()}

    @property
    def note(self) -> str:
        """What a reader must know about the column of published numbers."""
        return (
            f"The column “published” is what {self.source} states for its own test set of "
            f"{self.test_pairs:,} pairs, without intervals. It was not measured here, and is "
            "comparable only where the pairs are the same."
        )


@dataclass(frozen=True)
class Entry:
    """A rater as the tables show it.

    Attributes:
        name: unique among the entries.
        row: its figures.
        group: see `group_of`.
        parameters: weights of its model; None where unknown.
        family: entries of one family are joined by a line in Figure 5.
        published: what the paper states about the same model.
    """

    name: str
    row: LeaderboardRow
    group: str
    parameters: float | None = None
    family: str | None = None
    published: PublishedRow | None = None


def group_of(row: LeaderboardRow, *, is_trained: bool) -> str:
    """The group of a rater by its kind, one of `GROUPS`.

    Args:
        row: its figures.
        is_trained: whether its model folder records a training; a generative model without one is
            prompted like any other judge.
    """
    if row.kind == "generative":
        if not is_trained:
            return "zero-shot judges"
        return "GenRM" if row.explanation_words is None else "GenRM-CoT"
    return _GROUP_OF_KIND.get(row.kind, "others")


def by_group(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The entries of each group, in the order of `GROUPS`."""
    found: dict[str, list[Entry]] = {group: [] for group in GROUPS}
    for entry in entries:
        found[entry.group].append(entry)
    return {group: of for group, of in found.items() if of}


# Tables ---------------------------------------------------------------------------------------


def table_3(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Every rater with agreement, both orders, explanations and cost (paper, Table 3).

    The rows have what Figures 4 and 5 draw, too: group, family and parameters.
    """
    return [
        {
            "rater": entry.name,
            "group": entry.group,
            "kind": row.kind,
            "family": entry.family,
            "parameters": entry.parameters,
            "pairs": row.agreement.n,
            "prompts": row.agreement.clusters,
            "agreement": row.agreement,
            "difference": row.comparison and row.comparison.difference,
            "p_holm": row.comparison and row.comparison.p_holm,
            "compared": _compared(row),
            "flip_rate": row.flip_rate,
            "first_wins": row.position_lean,
            "coverage": row.coverage,
            "explanation_words": row.explanation_words,
            "cost_per_1000_pairs": row.cost_per_1000_pairs,
            "published_agreement": stated and stated.stated,
            "published_where": stated and stated.where,
            "published_explanation": stated and stated.explanation,
        }
        for entry in entries
        for row, stated in [(entry.row, entry.published)]
    ]


def _compared(row: LeaderboardRow) -> str | None:
    if row.comparison is None:
        return None
    found = "" if row.comparison.is_clear else ", not significant"
    return f"{row.comparison.difference.mean:+.3f} from {row.comparison.reference}{found}"


def _written(value: Any, form: str) -> str:
    if isinstance(value, Interval) and math.isfinite(value.low):
        return str(value)
    if isinstance(value, Interval):
        value = value.mean
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if form == "dollars":
        return write_dollars(value)
    return format(value, form) if form else clean_name(str(value))


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


def latex_table(
    name: str,
    caption: str,
    columns: Mapping[str, tuple[str, str]],
    rows: Sequence[Mapping[str, Any]],
) -> str:
    """A table in LaTeX, without empty columns; the document needs booktabs and graphicx.

    Args:
        name: of its label.
        caption: title and notes.
        columns: by key the heading and the format of numbers: a format specification, "dollars",
            or "" for text.
        rows: values by key: text, number, Interval or None.
    """
    shown = [key for key in columns if any(row[key] is not None for row in rows)]
    cells = [[_written(row[key], columns[key][1]) for key in shown] for row in rows]
    heading, *body = [
        " & ".join(map(latex_escape, row)) + r" \\"
        for row in [[columns[key][0] for key in shown], *cells]
    ]
    lines = [
        r"% \usepackage{booktabs,graphicx}",
        "",
        r"\begin{table}",
        r"\centering",
        f"\\caption{{{latex_escape(caption)}}}",
        f"\\label{{tab:{name}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        f"\\begin{{tabular}}{{{''.join('r' if columns[key][1] else 'l' for key in shown)}}}",
        r"\toprule",
        heading,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def table_3_latex(rows: Sequence[Mapping[str, Any]], published: Published) -> str:
    """The rows of `table_3` as LaTeX."""
    columns = {
        "rater": ("rater", ""),
        "agreement": ("agreement [95 %]", ".3f"),
        "compared": ("difference", ""),
        "flip_rate": ("flip rate [95 %]", ".3f"),
        "first_wins": ("first wins [95 %]", ".3f"),
        "coverage": ("coverage", ".3f"),
        "explanation_words": ("words of an explanation", ",.1f"),
        "cost_per_1000_pairs": ("$ per 1,000 pairs", "dollars"),
        "published_agreement": (f"published ({published.source})", ""),
        "published_where": ("stated in", ""),
        "published_explanation": (
            f"published length of an explanation ({published.explanation_unit})",
            ",.1f",
        ),
    }
    caption = (
        "Table 3: raters and their agreement with the labels: right 1, tie 1/2, not judged 1/2, "
        "mean over both orders, then over pairs. Intervals are 95 %, clustered by prompt. "
        "Differences are paired, with Holm's correction."
    )
    if any(row["published_agreement"] for row in rows):
        caption = f"{caption} {published.note}"
    return latex_table("table3", caption, columns, rows)


# Plots ----------------------------------------------------------------------------------------


def _mark(published: Published) -> str:
    return f"published ({published.source}), not measured here"


def _elsewhere(entry: Entry) -> float | None:
    return None if entry.published is None else float(entry.published.stated)


def draw_figure_4(entries: Sequence[Entry], published: Published) -> Figure:
    """Draw agreement by kind of rater.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    groups = [
        (group, [(short_name(e.name), e.row.agreement, _elsewhere(e)) for e in members])
        for group, members in by_group(entries).items()
    ]
    caption = "Agreement with its 95 % interval, by prompt. Dotted: chance."
    return Figure("Agreement by kind of rater", caption, figures.grouped(groups, _mark(published)))


def draw_figure_5(entries: Sequence[Entry], published: Published) -> Figure | None:
    """Draw agreement by model size; None where no size is known.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    known = [entry for entry in entries if entry.parameters is not None]
    lines: dict[tuple[str, str], list[Entry]] = {}
    for entry in sorted(known, key=lambda entry: entry.parameters or 0):
        # A rater without a family is a line of its own.
        lines.setdefault((entry.group, entry.family or f"\0{entry.name}"), []).append(entry)
    if not lines:
        return None
    drawn = figures.scaling(
        [
            figures.Line(
                group,
                [(float(e.parameters or 0), e.row.agreement, []) for e in members],
                labels=[short_name(e.name) for e in members],
                published=[
                    (float(e.parameters or 0), value)
                    for e in members
                    if (value := _elsewhere(e)) is not None
                ],
            )
            for (group, _), members in lines.items()
        ],
        [],
        "parameters",
        write_size,
        mark=_mark(published),
    )
    caption = (
        "Agreement with its 95 % interval, by prompt, for raters whose size is known. A line joins "
        "raters of one family. Grey: chance."
    )
    return Figure("Agreement by model size", caption, drawn)
