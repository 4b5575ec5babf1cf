"""Results on several sets of pairs, and means over the same sets for all raters compared."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from litbench.markdown import escape
from litbench.show import show


def set_rows(
    name: str, labels: Sequence[str], leaderboard: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Rows for the raters of one set.

    Args:
        name: name of the set.
        labels: sources of its labels.
        leaderboard: content of the set's `leaderboard.json`.
    """
    rows = []
    for row in leaderboard:
        agreement, comparison = row["agreement"], row["comparison"]
        rows.append(
            {
                "set": name,
                "labels": " and ".join(labels),
                "rater": row["rater"],
                "kind": row["kind"],
                "agreement": agreement["mean"],
                "low": agreement["low"],
                "high": agreement["high"],
                "pairs": agreement["n"],
                "prompts": agreement["clusters"],
                "effective_prompts": agreement["effective_clusters"],
                "coverage": row["coverage"],
                "minus_reference": comparison and comparison["difference"]["mean"],
                "p_holm": comparison and comparison["p_holm"],
                "trained_on_prompts": row["trained_on"],
            }
        )
    return rows


def over_sets(rows: Sequence[Mapping[str, Any]], raters: Sequence[str]) -> dict[str, Any]:
    """Unweighted means over the sets on which no rater was trained.

    Args:
        rows: rows of all sets, from `set_rows`; every rater has a row in every set.
        raters: the raters to compare.

    Returns:
        `sets`: names of the sets in the means; `left_out`: for each other set, the raters that were
        trained on its prompts; `raters`: sorted by mean, `mean`, `sd` over sets (null for one set),
        `lowest` and `highest`.
    """
    names = list(dict.fromkeys(row["set"] for row in rows))
    trained = {
        name: [row["rater"] for row in rows if row["set"] == name and row["trained_on_prompts"]]
        for name in names
    }
    means = []
    for rater in raters:
        own = [r["agreement"] for r in rows if r["rater"] == rater and not trained[r["set"]]]
        if own:
            means.append(
                {
                    "rater": rater,
                    "mean": round(statistics.fmean(own), 6),
                    "sd": round(statistics.stdev(own), 6) if len(own) > 1 else None,
                    "lowest": min(own),
                    "highest": max(own),
                }
            )
    return {
        "sets": [name for name in names if not trained[name]],
        "left_out": {name: raters for name, raters in trained.items() if raters},
        "raters": sorted(means, key=lambda row: (-row["mean"], row["rater"])),
    }


def sets_markdown(
    rows: Sequence[Mapping[str, Any]], means: Mapping[str, Any], notes: Sequence[tuple[str, str]]
) -> str:
    """The tables in Markdown, with a row for each set and a column for each rater.

    Args:
        rows: rows of all sets, from `set_rows`.
        means: result of `over_sets`.
        notes: pairs of the name of a set and a note about it.
    """
    by_mean = [row["rater"] for row in means["raters"]]
    raters = list(dict.fromkeys([*by_mean, *(row["rater"] for row in rows)]))
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        text = f"{row['agreement']:.3f}"
        if row["low"] is not None:
            text += f" [{row['low']:.3f}, {row['high']:.3f}]"
        if row["trained_on_prompts"]:
            text += f" TRAINED ON {row['trained_on_prompts']} OF ITS PROMPTS"
        facts = {"labels": row["labels"], "pairs": f"{row['pairs']:,}", "prompts": row["prompts"]}
        cells.setdefault(row["set"], facts)[row["rater"]] = text
    heading = ["labels", "pairs", "prompts", *raters]
    lines = [
        "# Agreement with the labels, set by set",
        "",
        "95 % intervals by prompt.",
        "",
        show(
            [
                ["set", *heading],
                *([name, *(of.get(key, "–") for key in heading)] for name, of in cells.items()),
            ],
            "md",
        ),
        "",
        *(f"- {escape(name)}: {escape(note)}" for name, note in notes),
        "",
    ]
    if len(means["sets"]) > 1:
        lines += [
            "## Over sets",
            "",
            f"Unweighted means over the same {len(means['sets'])} sets for every rater. Sets on "
            "whose prompts a rater was trained are left out. The sets are not a sample of a "
            "population, so the means have a standard deviation and no interval.",
            "",
            show(
                [
                    ["rater", "mean", "sd over sets", "lowest", "highest"],
                    *(
                        [
                            row["rater"],
                            *(f"{row[key]:.3f}" for key in ("mean", "sd", "lowest", "highest")),
                        ]
                        for row in means["raters"]
                    ),
                ],
                "md",
            ),
            "",
        ]
    lines += [
        f"Left out of the means: {escape(name)} (trained on: {escape(', '.join(raters))})."
        for name, raters in means["left_out"].items()
    ]
    return "\n".join(lines).rstrip() + "\n"
