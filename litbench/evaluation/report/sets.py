"""The tables of an evaluation on several sets, in Markdown and for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from litbench.runs.markdown import escape
from litbench.runs.terminal import clean_name, show


def _interval(row: Mapping[str, Any] | None, start: str = "", form: str = ".3f") -> str:
    """A mean with its interval, or a dash; `start` is that of the names of the bounds."""
    if row is None:
        return "–"
    names = (start or "mean", *(f"{start}_{end}" if start else end for end in ("low", "high")))
    text, low, high = ("" if row[key] is None else format(row[key], form) for key in names)
    return f"{text} [{low}, {high}]" if low else text


def sets_page(
    rows: Sequence[Mapping[str, Any]],
    means: Mapping[str, Any],
    notes: Sequence[tuple[str, str]],
    form: Literal["text", "md"],
) -> str:
    """The tables: a row for each set and a column for each rater, then means over sets.

    Args:
        rows: rows of `leaderboard_csv` of all sets, flat, with `set` and `labels`.
        means: result of `litbench.metrics.sets.over_sets`.
        notes: pairs of the name of a set and a note about it.
        form: Markdown, or text for a terminal, whose table has the sets as columns.
    """
    is_text = form == "text"
    heading, shown = ("", clean_name) if is_text else ("#", escape)

    def cell(row: Mapping[str, Any] | None) -> str:
        seen = 0 if row is None else row["trained_on"]
        if row is not None and row["no_information"]:
            return f"{row['agreement']:.3f} (no information: {row['no_information']})"
        stopped = f" (stopped: {row['stopped']})" if row and row["stopped"] else ""
        return (_interval(row, "agreement") or "–") + (
            f" TRAINED ON {seen} OF ITS PROMPTS" if seen else stopped
        )

    by_set: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        by_set.setdefault(row["set"], {})[row["rater"]] = row
    raters = list(dict.fromkeys(row["rater"] for row in [*means["raters"], *rows]))
    names = list(by_set)
    # A stopped rater has fewer pairs.
    firsts = [max(of_set.values(), key=lambda row: row["pairs"]) for of_set in by_set.values()]
    stopped = {row["rater"] for row in rows if row["stopped"]}
    facts = [
        ["set", *names],
        ["labels", *(row["labels"] for row in firsts)],
        ["pairs", *(f"{row['pairs']:,}" for row in firsts)],
        ["prompts", *(str(row["prompts"]) for row in firsts)],
    ]
    columns = [
        [rater, *(cell(of_set.get(rater)) for of_set in by_set.values())] for rater in raters
    ]
    # A terminal is narrow: a line for each rater.
    table = (
        [*facts, *columns] if is_text else [list(row) for row in zip(*facts, *columns, strict=True)]
    )
    blocks = [
        f"{heading} Agreement with the labels, set by set".strip(),
        "95 % intervals by prompt.",
        show(table, form),
        "\n".join(f"- {shown(name)}: {shown(note)}" for name, note in notes),
    ]
    if len(means["sets"]) > 1:
        over = [["rater", "mean", "difference from the reference", "lowest", "highest"]]
        for row in means["raters"]:
            ends = (f"{row[key]:.3f}" for key in ("lowest", "highest"))
            difference = _interval(row["minus_reference"], form="+.3f")
            mark = " (stopped early)" if row["rater"] in stopped else ""
            over.append([row["rater"] + mark, _interval(row), difference, *ends])
        blocks += [
            f"{heading * 2} Over sets".strip(),
            f"Unweighted means over the same {len(means['sets'])} sets for every rater. Sets on "
            "whose prompts a rater was trained are left out. 95 % intervals over sets, and prompts "
            "within them.",
            show(over, form),
        ]
    blocks.append(
        "\n".join(
            f"Left out of the means: {shown(name)} (trained on: {shown(', '.join(trained))})."
            for name, trained in means["left_out"].items()
        )
    )
    return "\n\n".join(block for block in blocks if block) + "\n"
