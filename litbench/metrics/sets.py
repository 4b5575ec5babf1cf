"""Results on several sets of pairs, and means over the same sets for all raters compared."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import numpy as np

from litbench.markdown import escape
from litbench.metrics.comparisons import compare_all
from litbench.metrics.intervals import jackknife_interval
from litbench.metrics.leaderboard import plain
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
                "flip_rate": row["flip_rate"] and row["flip_rate"]["mean"],
                "first_share": row["position_lean"] and row["position_lean"]["mean"],
                "chosen_longer": row["chosen_longer"]["mean"],
                "chosen_shorter": row["chosen_shorter"]["mean"],
                "minus_reference": comparison and comparison["difference"]["mean"],
                "p_holm": comparison and comparison["p_holm"],
                "trained_on_prompts": row["trained_on"],
            }
        )
    return rows


def linked_sets(prompts: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Group sets that share prompts; by set, the first name of its group.

    `prompts` has by set the keys of its prompts.
    """
    groups: list[tuple[str, set[str]]] = []
    for name, own in prompts.items():
        linked = [group for group in groups if group[1] & set(own)]
        rest = [group for group in groups if group not in linked]
        first = linked[0][0] if linked else name
        groups = [*rest, (first, set(own).union(*(keys for _, keys in linked)))]
    return {
        name: next(first for first, keys in groups if keys & set(own))
        for name, own in prompts.items()
    }


def over_sets(
    rows: Sequence[Mapping[str, Any]],
    raters: Sequence[str],
    reference: str,
    groups: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Unweighted means over the sets on which no rater was trained.

    The intervals are those of a two-stage sample, of sets and of prompts within them: the spread
    of the sets' agreements around their mean has both sources of error (Cochran, 1977, Sampling
    Techniques, 10.3). They tell what to expect of further sets like these, if there are such.

    Args:
        rows: rows of all sets, from `set_rows`; every rater has a row in every set.
        raters: the raters to compare.
        reference: the rater that the others are compared with, set by set.
        groups: `linked_sets`; sets that share prompts are one cluster.

    Returns:
        `sets`: names of the sets in the means; `left_out`: for each other set, the raters that were
        trained on its prompts; `raters`: sorted by mean, `mean`, `low` and `high` (null for one
        set), `lowest` and `highest`, and `minus_reference` (a paired difference with its interval
        and `p_holm`; null for the reference).
    """
    names = list(dict.fromkeys(row["set"] for row in rows))
    trained = {
        name: [row["rater"] for row in rows if row["set"] == name and row["trained_on_prompts"]]
        for name in names
    }
    used = [name for name in names if not trained[name]]
    value = {(row["rater"], row["set"]): row["agreement"] for row in rows}
    values = {
        rater: np.array([value[rater, name] for name in used])
        for rater in raters
        if used and (rater, used[0]) in value
    }
    clusters = [groups.get(name, name) for name in used]
    compared = compare_all(values, reference, clusters) if reference in values else []
    comparisons = {one.rater: one for one in compared}
    means = []
    for rater, own in values.items():
        interval, against = jackknife_interval(own, clusters), comparisons.get(rater)
        difference = against and {**asdict(against.difference), "p_holm": against.p_holm}
        numbers: dict[str, Any] = {
            "mean": interval.mean,
            "low": interval.low,
            "high": interval.high,
        }
        numbers |= {"lowest": min(own), "highest": max(own), "minus_reference": difference}
        means.append({"rater": rater, **plain(numbers)})
    return {
        "sets": used,
        "left_out": {name: raters for name, raters in trained.items() if raters},
        "raters": sorted(means, key=lambda row: (-row["mean"], row["rater"])),
    }


def _written(interval: Mapping[str, Any] | None, form: str) -> str:
    """A mean with its interval, or a dash."""
    if interval is None:
        return "–"
    if interval["low"] is None:
        return form.format(interval["mean"])
    return f"{form} [{form}, {form}]".format(*(interval[key] for key in ("mean", "low", "high")))


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
            "whose prompts a rater was trained are left out. 95 % intervals over sets, and prompts "
            "within them.",
            "",
            show(
                [
                    ["rater", "mean", "difference from the reference", "lowest", "highest"],
                    *(
                        [
                            row["rater"],
                            _written(row, "{:.3f}"),
                            _written(row["minus_reference"], "{:+.3f}"),
                            *(f"{row[key]:.3f}" for key in ("lowest", "highest")),
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
