"""Table 3 and Figures 4 and 5 of the paper from any leaderboard, as LaTeX, CSV and plots.

Names of raters come from configs and uploads, so each format escapes them. The paper's numbers
(`published.yaml`) are in separate columns and markers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from litbench.evaluation.report import figures
from litbench.evaluation.report.document import Figure, short_name, signed, table_of
from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import LeaderboardRow
from litbench.runs.config import nearest, read_yaml
from litbench.runs.errors import ConfigError
from litbench.runs.terminal import latex_escape, write_dollars

_GROUP_OF_KIND = {
    "judge": "zero-shot judges",
    "recorded": "zero-shot judges",
    "reward": "Bradley-Terry",
    "panel": "panels",
    **dict.fromkeys(
        ("longer", "shorter", "random", "notes", "features", "bag_of_words"), "baselines"
    ),
}
GROUPS = (
    "zero-shot judges",
    "Bradley-Terry",
    "GenRM",
    "GenRM-CoT",
    "panels",
    "baselines",
    "others",
)


def load_published() -> dict[str, Any]:
    """Load the paper's numbers from published.yaml, with `rows` by name."""
    content = read_yaml(Path(__file__).with_name("published.yaml"))
    return {**content, "rows": {row["name"]: row for row in content["rows"]}}


def match_published(raters: Sequence[str], named: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The published rows of measured raters.

    Args:
        raters: names of measured raters; names that are identical to the paper's are matched.
        named: rater -> name of a published row, for other names.
    """
    rows = load_published()["rows"]
    for rater, name in named.items():
        if name not in rows:
            names = nearest(name, list(rows))
            raise ConfigError(f"published.{rater}: '{name}' is not a published row: {names}")
    same_names = [name for name in raters if name in rows and not rows[name].get("is_named_here")]
    return {
        rater: rows[name]
        for rater, name in {**{name: name for name in same_names}, **named}.items()
    }


@dataclass(frozen=True)
class Entry:
    """A rater in the tables.

    Attributes:
        name: unique name.
        row: results of the rater.
        group: one of `GROUPS`.
        parameters: number of parameters of its model, or None if unknown.
        family: entries of a family are joined by a line in Figure 5.
        published: the paper's row of the same model.
    """

    name: str
    row: LeaderboardRow
    group: str
    parameters: float | None = None
    family: str | None = None
    published: Mapping[str, Any] | None = None


def group_of(row: LeaderboardRow, *, is_trained: bool) -> str:
    """The group of a rater; a generative model that was not trained is a zero-shot judge."""
    if row.kind == "generative" and is_trained:
        return "GenRM" if row.explanation_words is None else "GenRM-CoT"
    return _GROUP_OF_KIND.get(
        row.kind, "zero-shot judges" if row.kind == "generative" else "others"
    )


def table_3(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The rows of Table 3, with the values of Figures 4 and 5."""
    rows = []
    for entry in entries:
        row, stated = entry.row, entry.published or {}
        compared = row.comparison
        rows.append(
            {
                "rater": entry.name,
                "group": entry.group,
                "kind": row.kind,
                "family": entry.family,
                "parameters": entry.parameters,
                "pairs": row.agreement.n,
                "prompts": row.agreement.clusters,
                "agreement": row.agreement,
                "difference": compared and compared.difference,
                "p_holm": compared and compared.p_holm,
                "compared": compared
                and f"{signed(compared.difference.mean)} from {compared.reference}"
                + ("" if compared.is_clear else ", not significant"),
                "flip_rate": row.flip_rate,
                "position_bias": row.position_bias,
                "coverage": row.coverage,
                "explanation_words": row.explanation_words,
                "cost_per_1000_pairs": row.cost_per_1000_pairs,
                "published_agreement": stated.get("stated"),
                "published_where": stated.get("where"),
                "published_explanation": stated.get("explanation"),
            }
        )
    return rows


def table_3_latex(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of `table_3` as LaTeX, without empty columns; requires booktabs and graphicx."""
    published = load_published()

    def length(key: str) -> Callable[[Mapping[str, Any]], str | None]:
        return lambda row: None if row[key] is None else f"{row[key]:,.1f}"

    def dollars(row: Mapping[str, Any]) -> str | None:
        cost = row["cost_per_1000_pairs"]
        return None if cost is None else write_dollars(cost)

    columns: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "rater": itemgetter("rater"),
        "agreement [95 %]": itemgetter("agreement"),
        "difference": itemgetter("compared"),
        "flip rate [95 %]": itemgetter("flip_rate"),
        "position bias [95 %]": itemgetter("position_bias"),
        "coverage": itemgetter("coverage"),
        "words of an explanation": length("explanation_words"),
        "$ per 1,000 pairs": dollars,
        f"published ({published['source']})": itemgetter("published_agreement"),
        "stated in": itemgetter("published_where"),
        f"published length of an explanation ({published['explanation_unit']})": length(
            "published_explanation"
        ),
    }
    shown = {
        name: value
        for name, value in columns.items()
        if any(value(row) is not None for row in rows)
    }
    caption = (
        "Table 3: raters and their agreement with the labels. A correct verdict counts 1, a tie or "
        "a pair that was not judged 1/2, averaged over both orders, then over pairs. Intervals are "
        "95 %, clustered by prompt. Differences are paired, with Holm's correction."
    )
    if any(row["published_agreement"] for row in rows):
        caption += (
            f" The column “published” has the numbers of {published['source']} for its test set of "
            f"{published['test_pairs']:,} pairs, without intervals. They were not measured here, "
            "and are comparable only on the same pairs."
        )
    lines = [
        r"% \usepackage{booktabs,graphicx}",
        r"\begin{table}",
        r"\centering",
        f"\\caption{{{latex_escape(caption)}}}",
        r"\label{tab:table3}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        table_of(rows, shown).as_text("latex") + "}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _mark() -> str:
    return f"published ({load_published()['source']}), not measured here"


def draw_figure_4(entries: Sequence[Entry]) -> Figure:
    """Agreement by kind of rater."""
    rows: list[tuple[str, list[list[Interval]]]] = []
    for group in GROUPS:
        members = [entry for entry in entries if entry.group == group]
        rows += [(group, [])] if members else []
        rows += [(short_name(entry.name), [[entry.row.agreement]]) for entry in members]
    hollow = {
        short_name(entry.name): float(entry.published["stated"])
        for entry in entries
        if entry.published
    }
    drawn = figures.dots(rows, ["agreement"], "agreement", hollow=hollow, mark=_mark())
    caption = "Agreement with its 95 % interval, by prompt. Dotted: chance."
    return Figure("Agreement by kind of rater", caption, drawn)


def draw_figure_5(entries: Sequence[Entry]) -> Figure | None:
    """Agreement by model size; None if no size is known."""
    sized = [entry for entry in entries if entry.parameters is not None]
    families: dict[tuple[str, str], list[Entry]] = {}
    for entry in sorted(sized, key=lambda entry: entry.parameters or 0):
        # A rater without a family gets a separate line.
        families.setdefault((entry.group, entry.family or f"\0{entry.name}"), []).append(entry)
    if not families:
        return None
    lines = [
        figures.Line(
            group,
            [(entry.parameters or 0, entry.row.agreement, []) for entry in members],
            labels=[short_name(entry.name) for entry in members],
            published=[
                (entry.parameters or 0, float(entry.published["stated"]))
                for entry in members
                if entry.published
            ],
        )
        for (group, _), members in families.items()
    ]
    drawn = figures.curves(lines, "parameters", tick=figures.short_count, mark=_mark())
    caption = (
        "Agreement with its 95 % interval, by prompt, for raters whose size is known. A line joins "
        "raters of one family. Dotted: chance."
    )
    return Figure("Agreement by model size", caption, drawn)
