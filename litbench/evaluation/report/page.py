"""The page of a finished evaluation, report.html."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.records import SIDES, connected_prompts, has_texts, label_text
from litbench.data.text import digest
from litbench.evaluation.report import figures
from litbench.evaluation.report.document import (
    Card,
    Cell,
    Figure,
    Page,
    Section,
    Table,
    few_prompts,
    p_value,
    page_links,
    render,
    short_name,
    shorten,
    stacked,
    table_of,
    write_interval,
    write_seconds,
    written_now,
)
from litbench.evaluation.report.figures import Line
from litbench.evaluation.report.leaderboard import (
    agreement_columns,
    annotators_section,
    coin_note,
    correction_note,
    information_warnings,
    item_sections,
    judges_section,
    rater_table,
    significance_note,
    strata_note,
)
from litbench.evaluation.results import Evaluation, error_notes
from litbench.evaluation.stopping import common_note, until_section
from litbench.metrics.agreement import PairScores, pair_scores
from litbench.metrics.coefficients import coefficient_interval
from litbench.metrics.comparisons import Change, Trainings, compare_all
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.metrics.leaderboard import CHANCE, LeaderboardRow, reference_credits
from litbench.metrics.power import detectable, measure
from litbench.models.baselines import NotesRater
from litbench.models.features import FEATURE_TEXTS
from litbench.raters.interface import judge_pairs
from litbench.raters.nonstories import COLUMNS, preferred_kinds
from litbench.runs.terminal import clean_name

# Stories on a page are cut to this many characters.
_MAX_LETTERS = 12_000
_BASELINES = ("longer", "shorter", "random")
_MAX_RATERS, _EXAMPLES, _SHOWN_COEFFICIENTS = 8, 4, 16
_LEARNT_IN_WORDS = 4


def render_report(
    evaluation: Evaluation,
    title: str,
    page: Path,
    *,
    changes: Sequence[Change] = (),
    beside: Sequence[str] = (),
    learning: Mapping[str, Mapping[float, Interval]] = MappingProxyType({}),
    nonstories: Sequence[Mapping[str, Any]] = (),
    next_command: str = "",
) -> str:
    """Render report.html.

    Args:
        evaluation: what was found.
        title: heading of the page.
        page: where it will be written, for links to other pages.
        changes: comparisons with other evaluations of these pairs.
        beside: pages that the same run writes into the page's folder.
        learning: agreement by rater and share of the training prompts.
        nonstories: texts that are no stories, compared with stories by the model to use.
        next_command: what to run next.
    """
    rows, pairs = evaluation.rows, evaluation.pairs.headline
    until = evaluation.until_decided
    counts = dict(evaluation.manifest["counts"])
    records = counts.pop("raters", {})
    manifests = {"evaluation": json.dumps({**evaluation.manifest, "counts": counts}, indent=2)}
    pairs_manifest, annotators = evaluation.manifest_of_pairs(), evaluation.annotators()
    if pairs_manifest is not None:
        manifests["pairs"] = json.dumps(pairs_manifest, indent=2)
    scores = pair_scores(evaluation.verdicts, pairs)
    of_rater = {rater.rater: rater for rater in scores}
    reference, credits = reference_credits(scores, pairs, evaluation.reference)
    if until is not None and (reference := until["plan"]["against"]) not in credits:
        level = 0.5 if reference == CHANCE else float(reference)
        credits[reference] = np.full(pairs.num_rows, level)
    trainings = {rater.rater: rater.training for rater in scores}
    judges = [row for row in rows if row.is_judge]
    raters = [row for row in rows if row.is_judged and row.kind not in _BASELINES]
    plots, missing = _agreement_figures(rows)
    # A tall picture comes second, so that the others are stacked beside it.
    plots[1:1] = _coefficients(records)
    plots += _learning_curve(learning)
    sections = [
        _headline_section(rows),
        _leaderboard_section(evaluation, reference, credits, trainings),
        until_section(until) if until is not None else None,
        _against_section([of_rater[row.rater] for row in rows if row.is_judged], pairs, reference),
        _changes_section(changes),
        judges_section(judges) if judges else None,
        *item_sections(evaluation.verdicts, evaluation.pairs.all, evaluation.reference, records),
        annotators_section(annotators) if annotators else None,
        Section(
            "Where raters agree with the labels", figures=plots, remarks=[missing], name="agreement"
        )
        if plots or missing
        else None,
        _hits_section(rows, of_rater, pairs),
        _misses_section(
            pairs, [of_rater[row.rater] for row in raters], evaluation.verdicts, records
        ),
    ]
    if nonstories:
        sections.append(_nonstories_section(nonstories))
    if next_command:
        code = [Card([("command", next_command)])]
        sections.append(Section("Next", "Rewards for other stories:", cards=code))
    sources = sorted(set(pairs["label_source"].to_pylist()))
    n, prompts = pairs.num_rows, rows[0].agreement.clusters
    if until is not None:
        n, prompts = until["plan"]["pairs"][-1], until["plan"]["prompts"][-1]
    facts = f"{n:,} pairs from {prompts:,} prompts, {label_text(sources)}. {written_now()}"
    shown = [section for section in sections if section is not None]
    return render(
        Page(
            title,
            _lead(rows),
            facts,
            shown,
            sources,
            information_warnings({row.rater: row.no_information for row in rows}),
        ),
        manifests,
        page_links(page, beside),
    )


def _lead(rows: Sequence[LeaderboardRow]) -> str:
    # Not a baseline: symmetry can fix the longer story at 1/2.
    valid = [row for row in rows if row.is_judged and not row.trained_on]
    best = next((row for row in valid if row.kind not in _BASELINES), None)
    if best is None and any(not row.is_judged for row in rows):
        return "No rater judged these pairs; only baselines that do not read the stories did."
    if best is None and valid:
        return "Only baselines that do not read the stories were judged."
    if best is None:
        return "Every rater was trained on prompts of these pairs, so the results are not valid."
    if best.no_information:
        return f"{best.rater} gives no information about the stories: {best.no_information}."
    interval = best.agreement
    text = f"{best.rater} agrees with the labels on {100 * interval.mean:.1f}% of the pairs"
    if math.isfinite(interval.low):
        text += f" (95 % interval {100 * interval.low:.1f}% to {100 * interval.high:.1f}%)"
    if best.stopped:
        text += f", stopped at {best.stopped}"
    if (compared := best.comparison) is not None:
        text += (
            f", {100 * compared.difference.mean:+.1f} points against {compared.reference} "
            f"({'' if compared.is_clear else 'not '}significant, {p_value(compared.p_holm)}, Holm)"
        )
    longer = next((row for row in rows if row.kind == "longer"), None)
    if longer is not None:
        which = "all" if best.stopped else "the same"
        text += f". Longer story: {100 * longer.agreement.mean:.1f}% of {which} pairs"
    return f"{text}."


# The leaderboard ------------------------------------------------------------------------------


def _marked(row: LeaderboardRow) -> str:
    """The name of a rater in a picture, marked if it judged only until it was decided."""
    return f"{short_name(row.rater)} (stopped)" if row.stopped else short_name(row.rater)


def _headline_section(rows: Sequence[LeaderboardRow]) -> Section | None:
    """The agreement of every rater as one picture, with an axis by the data."""
    drawn = [row for row in rows if row.is_judged and not row.no_information]
    if not drawn:
        return None
    picture = figures.dots(
        [(_marked(row), [[row.agreement]]) for row in drawn],
        ["agreement"],
        "agreement with the labels",
    )
    caption = "Share of pairs in which a rater prefers the chosen story, with 95 % interval, by "
    caption += "prompt. Dotted: chance."
    figure = Figure("Agreement of each rater with the labels", caption, picture)
    return Section("At a glance", figures=[figure], name="headline")


def _leaderboard_section(
    evaluation: Evaluation,
    reference: str,
    credits: Mapping[str, np.ndarray],
    trainings: Trainings,
) -> Section:
    rows, pairs, wider = (
        evaluation.rows,
        evaluation.pairs.headline,
        evaluation.pairs.before_symmetry,
    )
    clusters = np.array(connected_prompts(pairs))
    # Power needs at least two prompts, and raters that are sometimes right.
    informative = {name: credit for name, credit in credits.items() if credit.any()}
    enough = reference in informative and len(set(clusters.tolist())) > 1
    cases = measure(informative, reference, clusters, trainings) if enough else {}
    alpha = 0.05 / max(len(credits) - 1, 1)

    def smallest(row: LeaderboardRow) -> str:
        case = cases.get(f"{row.rater} - {reference}")
        needed = None if case is None else detectable(case, alpha=alpha)
        if case is None or needed is None:
            return "–"
        # Of one rater it is the agreement, of two the difference.
        return f"±{needed - 0.5 if case.reference is None else needed:.3f}"

    def spread(row: LeaderboardRow) -> Cell:
        if len(row.repeats) < 2:
            return Cell("–")
        ends = f"{min(row.repeats):.3f}–{max(row.repeats):.3f}"
        return Cell(ends, [f"{len(row.repeats)} repeats"])

    def speed(row: LeaderboardRow) -> Cell:
        rate = row.stories_per_second
        text = "–" if not rate < 1e12 else f"{rate:.2g}" if rate < 10 else f"{rate:,.0f}"
        return Cell(text, [f"{write_seconds(row.seconds)} s"] if math.isfinite(row.seconds) else [])

    first = rows[0].agreement
    warnings = [evaluation.partial] if evaluation.partial else []
    warnings += [*error_notes(evaluation.verdicts), *few_prompts(first)]
    remarks = [coin_note(rows), strata_note(rows[0]), significance_note(rows)]
    if evaluation.until_decided is not None:
        remarks.insert(0, common_note(evaluation.until_decided, pairs.num_rows))
    columns = agreement_columns(reference) | {"detectable": smallest}
    if wider is not None:
        columns["before\nsymmetry"] = lambda row: row.before_symmetry and row.before_symmetry.mean
        remarks.insert(
            0,
            f"“Before symmetry” is on {wider.num_rows:,} pairs, of which the length filter kept "
            f"{pairs.num_rows:,}. If better stories really are longer, symmetry over-corrects, so "
            "both are shown.",
        )
    if any(len(row.repeats) > 1 for row in rows):
        columns["spread over\nrepeats"] = spread
    if any(row.calibration for row in rows):
        columns["Brier\n/ ECE"] = lambda row: (
            row.calibration
            and Cell(
                f"{row.calibration.brier:.3f} / {row.calibration.ece:.3f}",
                [f"ECE of a calibrated one: {row.calibration.ece_if_calibrated:.3f}"],
            )
        )
    columns["stories / s"] = speed
    trained = ""
    if any(trainings.values()):
        trained = ", with the training of the folds for cross-validated raters"
    # Stopped raters have other numbers of prompts.
    about = f"; {first.clusters} prompts ({first.effective_clusters:.0f} effective)"
    if any(row.stopped for row in rows):
        about = ""
    note = (
        "Agreement with the labels: correct 1, tie ½, not judged ½. Intervals are 95 %, clustered "
        f"by prompt (jackknife on the logit scale){about}{trained}. Differences are paired, "
        f"against “{reference}”. Detectable: the smallest true difference from “{reference}” that "
        "would be significant with a power of 80 %, after the correction for all comparisons."
    )
    notes_alone = reader_notes(pairs)
    if notes_alone is not None and notes_alone.low > 0.5:
        warnings.append(
            "Notes to readers around the stories (links, thanks, edits) alone agree with the "
            f"labels in {write_interval(notes_alone)} of the pairs, so raters may follow "
            "these notes rather than the stories. Cut them (cut_vote_talk) and compare."
        )
    return Section(
        "Leaderboard", note, rater_table(rows, columns), warnings=warnings, remarks=remarks
    )


def reader_notes(pairs: pa.Table) -> Interval | None:
    """Agreement of a rater that only looks for notes to readers; None if a text is unknown."""
    if not has_texts(pairs).all():
        return None
    (scores,) = pair_scores(judge_pairs(NotesRater(), pairs), pairs)
    return jackknife_interval(scores.credit, connected_prompts(pairs))


def _against_section(
    scores: Sequence[PairScores], pairs: pa.Table, reference: str
) -> Section | None:
    """Differences of all raters, without tests."""
    credits = {rater.rater: rater.credit for rater in scores[:_MAX_RATERS]}
    trainings = {rater.rater: rater.training for rater in scores}
    if len(credits) < 2:
        return None
    differences = {
        (comparison.rater, comparison.reference): comparison.difference
        for comparison in compare_all(credits, None, np.array(connected_prompts(pairs)), trainings)
    }
    first, *others = credits
    table = [
        [
            rater,
            *(
                stacked(differences[rater, other], is_signed=True)
                if (rater, other) in differences
                else Cell()
                for other in others
            ),
        ]
        for rater in (first, *others[:-1])
    ]
    part = f", for the first {len(credits)} raters" if len(credits) < len(scores) else ""
    note = (
        "Agreement of the row minus that of the column, paired on the same pairs, with 95 % "
        f"intervals{part}. These differences are for orientation: the page tests only those from "
        f"“{reference}” above."
    )
    title = "Raters against each other"
    return Section(title, note, Table(["", *others], table, is_narrow=True), name="against")


def _changes_section(changes: Sequence[Change]) -> Section | None:
    if not changes:
        return None
    first = changes[0].reference
    note = (
        f"Each rater compared with its results in the first evaluation, “{first}”: paired on the "
        "same pairs, with 95 % intervals clustered by prompt."
    )
    family = [
        (f"{change.rater} ({change.evaluation})", change.difference, change.p_holm)
        for change in changes
    ]
    table = table_of(
        changes,
        {
            "rater": lambda change: change.rater,
            "evaluation": lambda change: change.evaluation,
            f"{first} [95 %]": lambda change: stacked(change.before),
            "this evaluation [95 %]": lambda change: stacked(change.after),
            "difference [95 %]": lambda change: stacked(change.difference),
            "p (Holm)": lambda change: p_value(change.p_holm),
        },
        is_narrow=True,
    )
    remarks = [correction_note(family)]
    title = "Other evaluations of these pairs"
    return Section(title, note, table, remarks=remarks, name="comparison")


def _nonstories_section(rows: Sequence[Mapping[str, Any]]) -> Section:
    note = (
        "Texts made by code, beside rejected stories of the training pairs: how many the model "
        "prefers. Flagged: is_prose or like_training is false, so do not trust the reward. "
        "Training with negatives uses other texts of these kinds."
    )
    preferred = "of these\npreferred"
    heading = ["kind of text", "flagged", preferred, "not flagged", preferred]
    table = Table(heading, [[row[name] for name in COLUMNS] for row in rows], is_narrow=True)
    kinds = preferred_kinds(rows)
    warning = (
        "The model prefers more than 5 % of these texts to a story, and no flag warns: "
        f"{', '.join(kinds)}."
    )
    title = "Texts that are not stories"
    return Section(title, note, table, warnings=[warning] if kinds else [], name="nonstories")


# Figures --------------------------------------------------------------------------------------


def _coefficients(records: Mapping[str, list[dict[str, Any]]]) -> list[Figure]:
    """The largest coefficients of each feature model, in words and numbers."""
    panels = []
    for rater, parts in records.items():
        models = [part for part in parts if "coefficients" in part["notes"]]
        if not models:
            continue
        coefficients = [
            (FEATURE_TEXTS.get(name, name.replace("_", " ")), coefficient_interval(models, name))
            for name in models[0]["notes"]["coefficients"]
        ]
        coefficients.sort(key=lambda row: -abs(row[1].mean))
        caption = (
            f"{learnt_text(coefficients)} The {len(coefficients)} counts are on the surface of a "
            "story; none depends on meaning. Coefficients in log-odds per standard deviation; "
            "positive: readers preferred more of it. The "
            f"{min(_SHOWN_COEFFICIENTS, len(coefficients))} largest"
        )
        if len(models) > 1:
            caption += (
                ". Means over folds, with 95 % intervals: each fold leaves out some prompts "
                "(grouped jackknife)"
            )
        drawn = figures.dots(
            [(name, [[interval]]) for name, interval in coefficients[:_SHOWN_COEFFICIENTS]],
            [rater],
            "log-odds per standard deviation",
            levels=[0],
        )
        title = f"What {clean_name(rater)} has learnt"
        panels.append(Figure(title, f"{caption}.", drawn, tall=True))
    return panels


def learnt_text(coefficients: Sequence[tuple[str, Interval]]) -> str:
    """The largest coefficients whose intervals exclude 0, in words.

    Args:
        coefficients: name and coefficient of each feature, the largest first. An interval without
            bounds counts by its mean.
    """
    clear = [
        (name, value.mean)
        for name, value in coefficients
        if value.mean and not (value.is_bounded and value.low <= 0 <= value.high)
    ]
    parts = [
        f"{word} {', '.join(names)}"
        for word, sign in (("higher in", 1), ("lower in", -1))
        if (names := [name for name, mean in clear if mean * sign > 0][:_LEARNT_IN_WORDS])
    ]
    if not parts:
        return "No coefficient differs clearly from 0."
    return f"Other counts equal, the chosen story tends to be {'; '.join(parts)}."


def _agreement_figures(rows: Sequence[LeaderboardRow]) -> tuple[list[Figure], str]:
    """The plots by length gap and of calibration, and a note if the first is missing."""
    panels, missing = [], ""
    gaps = [row for row in rows if row.kind not in _BASELINES and row.by_gap][:6]
    ranges = sorted({(low, high) for row in gaps for low, high, _ in row.by_gap})
    if len(ranges) > 1:
        lines = []
        for index, row in enumerate(gaps):
            shift = (index - (len(gaps) - 1) / 2) * 0.09
            points = [(ranges.index((low, high)) + shift, at, ()) for low, high, at in row.by_gap]
            lines.append(Line(_marked(row), points, spread="bars"))
        names = [f"{a:.0f}+" if math.isinf(b) else f"{a:.0f}–{b - 1:.0f}" for a, b in ranges]
        drawn = figures.curves(lines, "difference in length, words", names_of_x=names)
        caption = (
            "Pairs by their difference in length; ranges with fewer than 10 pairs are left out. "
            "Dotted: chance."
        )
        panels.append(Figure("Agreement by length gap", caption, drawn))
    elif gaps:
        missing = "No plot by length gap: only one range of differences has at least 10 pairs."
    calibrated = [(row.rater, row.calibration.bins) for row in rows if row.calibration][:6]
    if calibrated:
        lines = [
            Line(short_name(name), [(sure, interval, []) for sure, interval in bins], spread="bars")
            for name, bins in calibrated
        ]
        drawn = figures.curves(lines, "confidence, max(p, 1 - p)", level=None)
        caption = "Dotted: perfect calibration. Bins of equal size."
        panels.append(Figure("Reliability", caption, drawn))
    return panels, missing


def _learning_curve(learning: Mapping[str, Mapping[float, Interval]]) -> list[Figure]:
    """Agreement by share of the training prompts."""
    lines = [
        Line(
            short_name(rater),
            [(100 * share, interval, ()) for share, interval in sorted(shares.items())],
        )
        for rater, shares in learning.items()
    ]
    if not lines:
        return []
    drawn = figures.curves(lines, "training prompts used, %")
    caption = (
        "Out of fold, trained on a share of the prompts of the other folds. If the line still "
        "rises at the right, more prompts will help. Band: 95 % interval, by prompt. Dotted: "
        "chance."
    )
    return [Figure("Learning curve", caption, drawn)]


# Examples --------------------------------------------------------------------------------------


def _examples(
    pairs: pa.Table,
    scores: PairScores,
    rows: np.ndarray,
    *,
    hit: bool = False,
    verdicts: pa.Table | None = None,
) -> list[Card]:
    """The most confident of some rows, one per prompt; selected by a hash without probabilities."""
    p = np.nan_to_num(scores.p_chosen, nan=0.5)
    ids, prompts = (pairs[name].to_pylist() for name in ("pair_id", "prompt_id"))
    first_of: dict[str, int] = {}
    for row in sorted(
        rows.tolist(), key=lambda row: (-abs(p[row] - 0.5), digest("shown", ids[row]))
    ):
        first_of.setdefault(prompts[row], row)
    tags = (
        ("chosen · the rater agrees", "rejected")
        if hit
        else ("chosen", "rejected · the rater prefers it")
    )
    cards = []
    for row in list(first_of.values())[:_EXAMPLES]:
        (pair,) = pairs.slice(row, 1).to_pylist()
        facts = [f"confidence {max(p[row], 1 - p[row]):.2f}"] if p[row] != 0.5 else []
        facts.append(f"{pair['chosen_n_words']:,} and {pair['rejected_n_words']:,} words")
        if pair["chosen_score"] is not None:
            facts.append(f"scores {pair['chosen_score']:,} and {pair['rejected_score']:,}")
        sides = [shorten(pair[side], _MAX_LETTERS) for side in SIDES]
        reasons = [] if verdicts is None else _reasons(verdicts, scores.rater, pair["pair_id"])
        tagged = list(zip(tags, sides, strict=True))
        cards.append(Card(tagged, pair["prompt"], " · ".join(facts), lost=[1], reasons=reasons))
    return cards


def _reasons(verdicts: pa.Table, rater: str, pair_id: str) -> list[tuple[str, str]]:
    """A rater's explanations of a pair, by the story that it read first."""
    mask = pc.and_(pc.equal(verdicts["rater"], rater), pc.equal(verdicts["pair_id"], pair_id))
    reasons = []
    for row in verdicts.filter(mask).to_pylist():
        if row["explanation"]:
            order = f"{row['order']} story first: " if row["order"] else ""
            tag = f"reasons · {order}{row['outcome']}"
            reasons.append((tag, shorten(row["explanation"], _MAX_LETTERS)))
    return reasons


def _hits_section(
    rows: Sequence[LeaderboardRow], of_rater: Mapping[str, PairScores], pairs: pa.Table
) -> Section | None:
    confident = next((row.rater for row in rows if row.calibration is not None), None)
    if confident is None:
        return None
    rater = of_rater[confident]
    right = np.flatnonzero((rater.credit > 0.5) & (rater.p_chosen > 0.5))
    cards = _examples(pairs, rater, right, hit=True)
    note = "At most one pair of each prompt." if cards else "None."
    title = f"Most confident hits of {clean_name(confident)}"
    return Section(title, note, cards=cards, name="hits")


def _misses_section(
    pairs: pa.Table,
    raters: Sequence[PairScores],
    verdicts: pa.Table,
    records: Mapping[str, list[dict[str, Any]]],
) -> Section | None:
    """By rater, the number of pairs that it gets wrong, that only it gets wrong, and examples.

    With a judge's question, and its reasons beside each example.
    """
    parts: list[Section] = []
    shown = raters[:_MAX_RATERS]
    for scores in shown:
        wrong = scores.credit < 0.5
        others = [rater.credit > 0.5 for rater in shown if rater is not scores]
        only = wrong & np.logical_and.reduce(others) if others else wrong
        title = f"{clean_name(scores.rater)}: {wrong.sum():,} of {len(wrong):,} pairs"
        title += f", {only.sum():,} only this rater" if others else ""
        if undecided := int((scores.credit == 0.5).sum()):
            title += f", {undecided:,} undecided"
        cards = _examples(pairs, scores, np.flatnonzero(wrong), verdicts=verdicts)
        name, note = f"misses-{len(parts)}", "" if cards else "None."
        shown_parts = []
        if question := _question(records.get(scores.rater, [])):
            # Above the examples, folded.
            card = Card([("", question)])
            shown_parts = [
                Section("The question", cards=[card], name=f"{name}-question", fold=False),
                Section("Its misses", note, cards=cards, name=f"{name}-examples", fold=True),
            ]
            cards, note = [], ""
        parts.append(
            Section(title, note, cards=cards, parts=shown_parts, name=name, fold=not parts)
        )
    note = (
        "Pairs on which a rater prefers the rejected story; “only this rater”: pairs that all "
        "other raters below get right. The examples are the most confident ones, or selected "
        "by a hash for raters without probabilities; at most one per prompt."
    )
    return Section("Misses of each rater", note, parts=parts, name="misses") if parts else None


def _question(records: Sequence[Mapping[str, Any]]) -> str:
    """The question that a judge is asked; empty for other raters."""
    return next(filter(None, (record["notes"].get("question") for record in records)), "")
