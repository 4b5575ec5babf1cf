"""Results of a run that judged until decided: its record, leaderboard rows and texts.

The record is plain, and stored in the manifest as `counts.until_decided`:

    {"plan": {"against": "longer", "level": null, "prompts": [11, ...], "pairs": [120, ...], ...},
     "note": "", "levels": {"gpt": 0.997},
     "comparisons": {"gpt": {"reason": "decided", "looks": [...], "interval": {...}, ...}}}
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.records import connected_prompts
from litbench.data.sources.evaluation_pairs import EvaluationPairs
from litbench.evaluation.report.document import (
    Figure,
    Section,
    p_value,
    signed,
    table_of,
)
from litbench.evaluation.report.figures import Line, curves
from litbench.metrics.agreement import pair_scores
from litbench.metrics.comparisons import Comparison
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.metrics.leaderboard import LeaderboardRow, leaderboard, sorted_rows
from litbench.runs.terminal import clean_name

_MAX_FIGURES = 8
_REASONS = {
    "decided": "decided",
    "futile": "stopped for futility",
    "limit": "ended by a limit, undecided",
    "undecided": "undecided",
}


def common_pairs(verdicts: pa.Table) -> pa.Array:
    """Ids of the pairs that every rater judged; stopped raters judged fewer."""
    seen = verdicts.group_by(["pair_id"]).aggregate([("rater", "count_distinct")])
    raters = len(verdicts["rater"].unique())
    return seen.filter(pc.equal(seen["rater_count_distinct"], raters))["pair_id"].combine_chunks()


def rows_of(
    verdicts: pa.Table,
    pairs: EvaluationPairs,
    record: Mapping[str, Any],
    trained_on: Mapping[str, int],
) -> list[LeaderboardRow]:
    """The leaderboard, where each rater has its own pairs.

    The difference of a rater that asked until decided is median-unbiased, with an interval that
    allows for the looks. So is its agreement if the reference is a number; else it is the plain
    mean with the repeated interval of its last look, as after a limit. Other figures are those of
    the judged pairs.

    Args:
        verdicts: table with the schema VERDICTS; raters may lack pairs.
        pairs: all pairs of the plan.
        record: see the module.
        trained_on: see `leaderboard`.
    """
    by_size: dict[int, list[str]] = {}
    for rater in verdicts["rater"].unique().to_pylist():
        of_rater = verdicts.filter(pc.equal(verdicts["rater"], rater))
        by_size.setdefault(len(of_rater["pair_id"].unique()), []).append(rater)
    rows: list[LeaderboardRow] = []
    for raters in by_size.values():
        table = verdicts.filter(pc.is_in(verdicts["rater"], pa.array(raters)))
        judged = pairs.select(table["pair_id"].unique())
        # Differences are those of the record, so that any rater can be the reference.
        of_size = leaderboard(
            table,
            judged.headline,
            raters[0],
            before_symmetry=judged.before_symmetry,
            trained_on=trained_on,
        )
        rows += [_stopped(row, record, table, judged.headline) for row in of_size]
    return sorted_rows(rows)


def _stopped(
    row: LeaderboardRow, record: Mapping[str, Any], verdicts: pa.Table, pairs: pa.Table
) -> LeaderboardRow:
    """A row with its comparison, its mark, and an interval that allows for the looks."""
    plan, result = record["plan"], record["comparisons"].get(row.rater)
    comparison = None
    if result is not None:
        difference = Interval.of(result["interval"])
        p, p_holm = (
            math.nan if result[key] is None else result[key] for key in ("p_value", "p_holm")
        )
        comparison = Comparison(row.rater, plan["against"], difference, p, p_holm)
    row = replace(row, comparison=comparison)
    if row.rater not in record["levels"]:
        return row
    n, all_pairs, level = row.agreement.n, plan["pairs"][-1], plan["level"]
    if row.is_judged and comparison and level is not None and result["reason"] != "limit":
        difference = comparison.difference
        ends = difference.mean, difference.low, difference.high
        mean, low, high = (float(np.clip(level + end, 0, 1)) for end in ends)
        row = replace(row, agreement=replace(row.agreement, mean=mean, low=low, high=high))
    elif row.is_judged:
        table = verdicts.filter(pc.equal(verdicts["rater"], row.rater))
        (scores,) = pair_scores(table, pairs)
        clusters = np.array(connected_prompts(pairs))
        confidence = record["levels"][row.rater]
        agreement = jackknife_interval(scores.credit, clusters, scores.training, confidence)
        row = replace(row, agreement=agreement)
    return replace(row, stopped=f"{n:,} of {all_pairs:,} pairs" if n < all_pairs else "")


def outcome_text(rater: str, record: Mapping[str, Any]) -> str:
    """How a comparison ended: "decided after 312 of 1,200 pairs (28 of 110 prompts), ..."."""
    result, plan = record["comparisons"][rater], record["plan"]
    look, against = result["looks"][-1], plan["against"]
    judged = f"{look['prompts']:,} of {plan['prompts'][-1]:,} prompts"
    verdict = f"agrees {'more' if look['mean'] > 0 else 'less'} than {against}"
    if "quantity" in plan:
        verdict = f"{plan['quantity']} {'above' if look['mean'] > 0 else 'below'} {against}"
    else:
        judged = f"{look['pairs']:,} of {plan['pairs'][-1]:,} pairs ({judged})"
    text = f"{_REASONS[result['reason']]} after {judged}, planned error {100 * plan['alpha']:.0f} %"
    endings = {
        "decided": f": {verdict}",
        "futile": ": to find a difference has become improbable",
    }
    return text + endings.get(result["reason"], "")


def stopped_text(record: Mapping[str, Any]) -> str:
    """At how many prompts a run of writers stopped; empty if it took all."""
    looks = [result["looks"] for result in record["comparisons"].values()]
    count, total = max(map(len, looks)), record["plan"]["prompts"]
    reached = total[count - 1] if count else 0
    return f"{reached:,} of {total[-1]:,} prompts" if reached < total[-1] else ""


def _estimates(record: Mapping[str, Any]) -> str:
    """How differences and agreements of stopped raters are estimated."""
    plan = record["plan"]
    is_number = plan["level"] is not None and "quantity" not in plan
    text = "Their differences " + ("and agreements " if is_number else "")
    text += "are median-unbiased, with exact intervals by stage-wise ordering"
    if not is_number and "quantity" not in plan:
        text += "; their agreements are plain means with wider, repeated intervals"
    if any(row["reason"] == "limit" for row in record["comparisons"].values()):
        both = "differences" if "quantity" in plan else "both"
        text += f"; after a limit, {both} are plain means with repeated intervals"
    return f"{text}."


def common_note(record: Mapping[str, Any], pairs: int) -> str:
    """On which pairs the figures of a page are."""
    return (
        "Raters that ask a model judged until decided: their agreement and difference are of the "
        f"pairs they judged. {_estimates(record)} Detectable differences, and what the page shows "
        f"of single pairs, are of the {pairs:,} of {record['plan']['pairs'][-1]:,} pairs that "
        "every rater judged."
    )


def until_section(record: Mapping[str, Any], *, with_figures: bool = True) -> Section:
    """How each comparison ended, and the path of its statistic."""
    plan, results = record["plan"], record["comparisons"]
    sequential = {name: result for name, result in results.items() if result["looks"]}
    columns = {
        "writer" if "quantity" in plan else "rater": lambda name: name,
        "looks": lambda name: len(results[name]["looks"]),
        "plain mean\n(biased)": lambda name: f"{results[name]['looks'][-1]['mean']:+.3f}",
        f"difference from {plan['against']}\n[95 %]": lambda name: signed(
            Interval.of(results[name]["interval"])
        ),
        "p (Holm)": lambda name: p_value(results[name]["p_holm"]),
    }
    note = (
        f"Prompts came in a seeded random order, with at most {len(plan['prompts'])} looks. "
        "A look compares the clustered t statistic, as a normal quantile, with a boundary that "
        f"spends an error of {100 * plan['alpha']:g} % over all looks (Lan and DeMets, 1983; "
        "Hwang, Shih and DeCani, 1990, gamma -1); several comparisons share it by the "
        f"group-sequential Holm procedure. {_estimates(record)} The plain mean is biased away "
        "from 0, since lucky runs stop early."
    )
    ends = [f"{clean_name(name)}: {outcome_text(name, record)}." for name in sequential]
    plots = [_path(name, result, record) for name, result in sequential.items()]
    return Section(
        "Judged until decided",
        note,
        table_of(list(sequential), columns),
        warnings=[record["note"]] if record["note"] else [],
        remarks=ends,
        figures=plots[:_MAX_FIGURES] if with_figures else [],
        name="until-decided",
    )


def _path(rater: str, result: Mapping[str, Any], record: Mapping[str, Any]) -> Figure:
    """The path of a statistic between its boundaries."""
    looks: Sequence[Mapping[str, Any]] = result["looks"]

    def line(name: str, values: Sequence[float | None]) -> Line:
        points = [
            (look["pairs"], Interval(value, math.nan, math.nan, look["pairs"], 0, 0), ())
            for look, value in zip(looks, values, strict=True)
            if value is not None
        ]
        return Line(name, points, "none")

    bounds = [look["bound"] for look in looks]
    name = clean_name(rater)
    lines = [
        line(name, [look["z"] for look in looks]),
        line("boundary", bounds),
        line("boundary", [-bound for bound in bounds]),
    ]
    x_label = "prompts" if "quantity" in record["plan"] else f"pairs judged by {name}"
    drawing = curves([line for line in lines if line.points], x_label, y_label="z", level=0)
    caption = (
        f"{outcome_text(rater, record)}. Beyond the boundary the comparison is decided; it falls "
        "when another comparison is decided."
    )
    return Figure(f"{name} against {record['plan']['against']}", caption, drawing)
