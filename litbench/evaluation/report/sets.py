"""The tables of an evaluation on several sets, in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from litbench.runs.markdown import escape
from litbench.runs.terminal import show


def _interval(row: Mapping[str, Any] | None, start: str = "", form: str = ".3f") -> str:
    """A mean with its interval, or a dash; `start` is that of the names of the bounds."""
    if row is None:
        return "–"
    names = (start or "mean", *(f"{start}_{end}" if start else end for end in ("low", "high")))
    text, low, high = ("" if row[key] is None else format(row[key], form) for key in names)
    return f"{text} [{low}, {high}]" if low else text


def sets_markdown(
    rows: Sequence[Mapping[str, Any]], means: Mapping[str, Any], notes: Sequence[tuple[str, str]]
) -> str:
    """The tables in Markdown, with a row for each set and a column for each rater.

    Args:
        rows: rows of `leaderboard_csv` of all sets, flat, with `set` and `labels`.
        means: result of `litbench.metrics.sets.over_sets`.
        notes: pairs of the name of a set and a note about it.
    """

    def cell(row: Mapping[str, Any] | None) -> str:
        seen = 0 if row is None else row["trained_on"]
        return (_interval(row, "agreement") or "–") + (
            f" TRAINED ON {seen} OF ITS PROMPTS" if seen else ""
        )

    by_set: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        by_set.setdefault(row["set"], {})[row["rater"]] = row
    raters = list(dict.fromkeys(row["rater"] for row in [*means["raters"], *rows]))
    table = [["set", "labels", "pairs", "prompts", *raters]]
    for name, of in by_set.items():
        first = next(iter(of.values()))
        facts = [name, first["labels"], f"{first['pairs']:,}", str(first["prompts"])]
        table.append([*facts, *(cell(of.get(rater)) for rater in raters)])
    blocks = [
        "# Agreement with the labels, set by set",
        "95 % intervals by prompt.",
        show(table, "md"),
        "\n".join(f"- {escape(name)}: {escape(note)}" for name, note in notes),
    ]
    if len(means["sets"]) > 1:
        over = [["rater", "mean", "difference from the reference", "lowest", "highest"]]
        for row in means["raters"]:
            ends = (f"{row[key]:.3f}" for key in ("lowest", "highest"))
            difference = _interval(row["minus_reference"], form="+.3f")
            over.append([row["rater"], _interval(row), difference, *ends])
        blocks += [
            "## Over sets",
            f"Unweighted means over the same {len(means['sets'])} sets for every rater. Sets on "
            "whose prompts a rater was trained are left out. 95 % intervals over sets, and prompts "
            "within them.",
            show(over, "md"),
        ]
    blocks.append(
        "\n".join(
            f"Left out of the means: {escape(name)} (trained on: {escape(', '.join(trained))})."
            for name, trained in means["left_out"].items()
        )
    )
    return "\n\n".join(block for block in blocks if block) + "\n"
