"""report.html: one self-contained page from an evaluation and its pairs (see document.py)."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.metrics.agreement import PairFacts, pair_scores
from litbench.metrics.comparisons import Change
from litbench.metrics.leaderboard import LeaderboardRow
from litbench.metrics.printing import significance_note, strata_note
from litbench.records import OUTCOMES
from litbench.report import figures
from litbench.report.document import Figure, most_per_unit, render, short_name
from litbench.text import clean_name

_SHOWN_COEFFICIENTS = 16
_EXAMPLES = 10


@dataclass(frozen=True)
class Example:
    """A pair and a rater's confidence in it."""

    prompt: str
    chosen: str
    rejected: str
    confidence: float
    facts: str


def _examples(
    pairs: pa.Table, p_chosen: np.ndarray, credit: np.ndarray
) -> tuple[list[Example], list[Example]]:
    """The most confident hits and misses, one per prompt so that they differ."""
    columns = {name: pairs[name].to_pylist() for name in pairs.column_names}

    def pick(rows: Sequence[int]) -> list[Example]:
        found, prompts = [], set()
        for row in rows:
            if columns["prompt_id"][row] in prompts:
                continue
            prompts.add(columns["prompt_id"][row])
            facts = [
                f"{columns['chosen_n_words'][row]:,} and {columns['rejected_n_words'][row]:,} words"
            ]
            if columns["chosen_score"][row] is not None:
                scores = [columns[f"{side}_score"][row] for side in ("chosen", "rejected")]
                facts.append(f"scores {scores[0]:,} and {scores[1]:,}")
            found.append(
                Example(
                    columns["prompt"][row], columns["chosen"][row], columns["rejected"][row],
                    max(p_chosen[row], 1 - p_chosen[row]), ", ".join(facts),
                )
            )  # fmt: skip
            if len(found) == _EXAMPLES:
                break
        return found

    order = [row for row in np.argsort(-p_chosen, kind="stable") if math.isfinite(p_chosen[row])]
    hits = [row for row in order if credit[row] > 0.5 and p_chosen[row] > 0.5]
    misses = [row for row in order[::-1] if credit[row] < 0.5 and p_chosen[row] < 0.5]
    return pick(hits), pick(misses)


def _known(values: np.ndarray) -> np.ndarray:
    known: np.ndarray = values[np.isfinite(values)]
    return known


def _distributions(pairs: pa.Table) -> list[Figure]:
    found = []
    for name, label, log in (
        ("score", "score, net upvotes", True),
        ("created_utc", "year of posting", False),
        ("n_words", "length, words", True),
    ):
        sides = []
        for side in ("chosen", "rejected"):
            ids = np.array(pairs[f"{side}_story_id"].to_pylist())
            _, first = np.unique(ids, return_index=True)
            values = pairs[f"{side}_{name}"].take(pa.array(first)).drop_null().to_numpy()
            if name == "created_utc":
                # Average length of the Gregorian year.
                values = 1970 + values / (365.2425 * 86_400)
            if name == "n_words":
                # Texts that are not known have none.
                values = values[values > 0]
            sides.append(values)
        if min(len(side) for side in sides):
            title = {"score": "Scores", "created_utc": "Dates", "n_words": "Lengths"}[name]
            caption = "Each story once per side."
            found.append(
                Figure(title, caption, figures.distribution(sides[0], sides[1], label, log=log))
            )
    return found


def _coefficients(records: Mapping[str, list[dict[str, Any]]]) -> list[Figure]:
    found = []
    for rater, parts in records.items():
        models = [
            part["notes"]["coefficients"] for part in parts if "coefficients" in part["notes"]
        ]
        if not models:
            continue
        rows = []
        for name in models[0]:
            values = [model[name] for model in models]
            rows.append((name, float(np.mean(values)), min(values), max(values)))
        rows.sort(key=lambda row: -abs(row[1]))
        caption = (
            f"Right: readers preferred more of it. The {_SHOWN_COEFFICIENTS} largest of {len(rows)}"
        )
        if len(models) > 1:
            caption += f"; mean and range over {len(models)} models"
        drawn = figures.coefficients(rows[:_SHOWN_COEFFICIENTS])
        found.append(
            Figure(f"Coefficients of {clean_name(rater)}", caption + ".", drawn, tall=True)
        )
    return found


@dataclass(frozen=True)
class Summary:
    """The first sentence of the page.

    Attributes:
        best: the rater with the highest agreement that was not trained on these prompts; None
            when there is no such rater.
        text: what follows its name.
    """

    best: str | None
    text: str


def _summary(rows: Sequence[LeaderboardRow], reference: str) -> Summary:
    honest = [row for row in rows if not row.trained_on]
    if not honest:
        text = "Every rater was trained on prompts of these pairs: nothing can be concluded."
        return Summary(None, text)
    best = honest[0]
    text = f" agrees with the labels on {best.agreement.mean:.1%} of the pairs"
    if math.isfinite(best.agreement.low):
        text += f" (95 % interval {best.agreement.low:.1%} to {best.agreement.high:.1%})"
    if best.comparison is not None:
        found = "significant" if best.comparison.is_clear else "not significant"
        text += (
            f", {100 * best.comparison.difference.mean:+.1f} points against "
            f"{clean_name(reference)}, {found}"
        )
    return Summary(best.rater, text + ".")


def render_report(
    *,
    title: str,
    rows: Sequence[LeaderboardRow],
    verdicts: pa.Table,
    pairs: pa.Table,
    before_symmetry: pa.Table | None,
    reference: str,
    evaluation_manifest: Mapping[str, Any],
    pairs_manifest: Mapping[str, Any] | None,
    humans: Mapping[str, Any] | None = None,
    changes: Sequence[Change] = (),
) -> str:
    """Render the page.

    Args:
        title: heading of the page.
        rows: from litbench.metrics.leaderboard.
        verdicts: table by the schema VERDICTS.
        pairs: the pairs of the headline.
        before_symmetry: the pairs before the last filter, where known.
        reference: the rater that others are compared with.
        evaluation_manifest: of eval/benchmark.py or eval/crossvalidate.py.
        pairs_manifest: of the program that wrote the pairs, where it left one.
        humans: of litbench.metrics.humans.humans_json, where people rated the stories one by one.
        changes: the same raters in other evaluations of these pairs.

    Raises:
        MissingExtraError: jinja2 or matplotlib is not installed.
    """
    facts = PairFacts.of(pairs)
    wider = None if before_symmetry is None else _known(PairFacts.of(before_symmetry).difference)
    differences = _known(facts.difference)
    counts = (pairs_manifest or {}).get("counts", {})
    buckets = (pairs_manifest or {}).get("config", {}).get("symmetry_buckets") or 60
    plots = _distributions(pairs)
    if len(differences):
        every = differences if wider is None else wider
        widest = max(1, int(np.abs(every).max()))
        edges = np.linspace(-widest, widest, min(buckets, 60) // 2 * 2 + 1)
        before = None if wider is None else np.histogram(wider, edges)[0]
        drawn = figures.length_buckets(before, np.histogram(differences, edges)[0], widest)
        caption = "Pairs right of the line have the longer story chosen."
        plots.insert(0, Figure("Length differences", caption, drawn))
    shown = [row for row in rows if row.kind not in ("longer", "shorter", "random")] or list(rows)
    gaps = [(short_name(row.rater), row.by_gap) for row in shown if row.by_gap]
    agreement_plots = []
    if gaps:
        caption = "Pairs by how much longer one story is, for raters that read. Dotted: chance."
        agreement_plots.append(
            Figure("Agreement by length gap", caption, figures.by_length_gap(gaps))
        )
    calibrated = [
        (short_name(row.rater), row.calibration) for row in rows if row.calibration is not None
    ]
    if calibrated:
        caption = "Dotted: perfect calibration. Bins of equal size."
        agreement_plots.append(Figure("Reliability", caption, figures.reliability(calibrated)))
    # A tall picture comes second, so that the others stack beside it.
    agreement_plots[1:1] = _coefficients(evaluation_manifest.get("counts", {}).get("raters", {}))
    examples_of = next((row.rater for row in rows if row.calibration is not None), None)
    hits: list[Example] = []
    misses: list[Example] = []
    if examples_of is not None:
        scores = next(s for s in pair_scores(verdicts, pairs) if s.rater == examples_of)
        hits, misses = _examples(pairs, scores.p_chosen, scores.credit)
    sources = sorted(set(pairs["label_source"].to_pylist()))
    judges = [row for row in rows if row.is_judge]
    return render(
        "page.html",
        title=title,
        summary=_summary(rows, reference),
        label_sources=sources,
        rows=rows,
        reference=reference,
        judges=judges,
        humans=humans,
        changes=changes,
        noise=significance_note(rows),
        strata=strata_note(rows[0]),
        any_order=any(row.position_lean is not None for row in judges),
        any_pooled=any(row.pooled_agreement is not None for row in judges),
        any_uncovered=any(row.coverage < 1 for row in judges),
        any_words=any(row.explanation_words is not None for row in judges),
        any_tokens=any(row.input_tokens is not None for row in judges),
        any_seconds=any(math.isfinite(row.seconds) for row in judges),
        other_outcomes=[
            name
            for name in OUTCOMES
            if name not in ("chosen", "rejected") and any(row.outcomes[name] for row in judges)
        ],
        any_before=any(row.before_symmetry is not None for row in rows),
        any_calibration=any(row.calibration is not None for row in rows),
        any_repeats=any(len(row.repeats) > 1 for row in rows),
        any_cost=any(row.cost_usd is not None for row in judges),
        before=before_symmetry,
        pairs=pairs,
        prompts=len(set(facts.clusters)),
        funnel=counts.get("funnel", []),
        read=counts.get("stories", {}),
        lengths=counts.get("lengths", {}),
        data_plots=plots,
        agreement_plots=agreement_plots,
        examples_of=examples_of,
        hits=hits,
        misses=misses,
        manifests={
            "evaluation": _without_notes(evaluation_manifest),
            **({"pairs": json.dumps(pairs_manifest, indent=2)} if pairs_manifest else {}),
        },
        most=most_per_unit(counts.get("funnel", [])),
    )


def _without_notes(manifest: Mapping[str, Any]) -> str:
    """The manifest without the per-part notes, which the figures show."""
    short = {**manifest, "counts": {k: v for k, v in manifest["counts"].items() if k != "raters"}}
    return json.dumps(short, indent=2)
