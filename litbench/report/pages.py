"""The pages of all programs except the data report: their plots, examples and template values."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.metrics.agreement import PairScores, pair_scores
from litbench.metrics.coefficients import coefficient_interval
from litbench.metrics.comparisons import Change, compare_all
from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import LeaderboardRow, reference_credits
from litbench.metrics.power import detectable, measure
from litbench.metrics.printing import coin_note, significance_note, strata_note, write_dollars
from litbench.metrics.writers import WriterRow
from litbench.records import OUTCOMES, connected_prompts
from litbench.report import figures
from litbench.report.document import (
    ENDS,
    Card,
    Cell,
    Figure,
    Page,
    Section,
    Table,
    as_cell,
    compared,
    few_prompts,
    funnel_table,
    label_text,
    p_value,
    page_links,
    percent,
    render,
    short_name,
    shorten,
    signed,
    stacked,
    table_of,
    write_interval,
    write_page,
    write_seconds,
    written_now,
)
from litbench.report.figures import Line
from litbench.store import Artifact
from litbench.text import clean_name, digest

# Stories on a page are cut to this many characters.
_MOST_LETTERS = 12_000

# The report -----------------------------------------------------------------------------------

_BASELINES = ("longer", "shorter", "random")
_MOST_RATERS, _EXAMPLES, _SHOWN_COEFFICIENTS = 8, 4, 16


def _one_per_prompt(
    rows: Sequence[int], prompts: Sequence[str], key: Callable[[int], Any], count: int
) -> list[int]:
    """The first rows by a key, at most one of each prompt."""
    first_of: dict[str, int] = {}
    for row in sorted(rows, key=key):
        first_of.setdefault(prompts[row], row)
    return list(first_of.values())[:count]


def _examples(
    pairs: pa.Table, scores: PairScores, rows: np.ndarray, *, hit: bool = False
) -> list[Card]:
    """The most confident of some rows, one per prompt; selected by a hash without probabilities."""
    p = np.nan_to_num(scores.p_chosen, nan=0.5)
    ids = pairs["pair_id"].to_pylist()
    picked = _one_per_prompt(
        rows.tolist(),
        pairs["prompt_id"].to_pylist(),
        lambda row: (-abs(p[row] - 0.5), digest("shown", ids[row])),
        _EXAMPLES,
    )
    cards = []
    tags = (
        ("chosen · the rater agrees", "rejected")
        if hit
        else ("chosen", "rejected · the rater prefers it")
    )
    for one, row in zip(pairs.take(pa.array(picked, pa.int64())).to_pylist(), picked, strict=True):
        facts = [f"confidence {max(p[row], 1 - p[row]):.2f}"] if p[row] != 0.5 else []
        facts.append(f"{one['chosen_n_words']:,} and {one['rejected_n_words']:,} words")
        if one["chosen_score"] is not None:
            facts.append(f"scores {one['chosen_score']:,} and {one['rejected_score']:,}")
        sides = [shorten(one[side], _MOST_LETTERS) for side in ("chosen", "rejected")]
        cards.append(
            Card(list(zip(tags, sides, strict=True)), one["prompt"], " · ".join(facts), lost=[1])
        )
    return cards


def _misses(pairs: pa.Table, raters: Sequence[PairScores]) -> list[Section]:
    """By rater, the number of pairs that it gets wrong, that only it gets wrong, and examples."""
    parts: list[Section] = []
    for scores in raters:
        wrong = scores.credit < 0.5
        others = [one.credit > 0.5 for one in raters if one is not scores]
        only = wrong & np.logical_and.reduce(others) if others else wrong
        title = f"{clean_name(scores.rater)}: {wrong.sum():,} of {len(wrong):,} pairs"
        title += f", {only.sum():,} only this rater" if others else ""
        cards = _examples(pairs, scores, np.flatnonzero(wrong))
        notes = "" if cards else "None."
        name = f"misses-{len(parts)}"
        parts.append(Section(title, notes, cards=cards, name=name, fold=not parts))
    return parts


def _coefficients(records: Mapping[str, list[dict[str, Any]]]) -> list[Figure]:
    """The largest coefficients of each feature model."""
    panels = []
    for rater, parts in records.items():
        models = [one for one in parts if "coefficients" in one["notes"]]
        if not models:
            continue
        rows = [
            (name.replace("_", " "), [[coefficient_interval(models, name)]])
            for name in models[0]["notes"]["coefficients"]
        ]
        rows.sort(key=lambda row: -abs(row[1][0][0].mean))
        caption = (
            f"{len(rows)} counts on the surface of a story, such as its length, the length of its "
            "sentences, pronouns and punctuation; none depends on meaning. Coefficients in "
            "log-odds per standard deviation; positive: readers preferred more of it. The "
            f"{min(_SHOWN_COEFFICIENTS, len(rows))} largest"
        )
        if len(models) > 1:
            caption += (
                ". Means over folds, with 95 % intervals: each fold leaves out some prompts "
                "(grouped jackknife)"
            )
        drawn = figures.dots(
            rows[:_SHOWN_COEFFICIENTS], [rater], "log-odds per standard deviation", levels=[0]
        )
        title = f"What {clean_name(rater)} looks at"
        panels.append(Figure(title, f"{caption}.", drawn, tall=True))
    return panels


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
            lines.append(Line(short_name(row.rater), points, spread="bars"))
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
            Line(short_name(name), [(sure, one, []) for sure, one in bins], spread="bars")
            for name, bins in calibrated
        ]
        drawn = figures.curves(lines, "confidence, max(p, 1 - p)", level=None)
        caption = "Dotted: perfect calibration. Bins of equal size."
        panels.append(Figure("Reliability", caption, drawn))
    return panels, missing


@dataclass(frozen=True)
class ReportData:
    """What the report shows; see `litbench.evaluation.results.Evaluation`.

    Attributes:
        rows: the leaderboard.
        verdicts: table with the schema VERDICTS.
        pairs: the pairs of the headline.
        before_symmetry: a superset, before length symmetry.
        reference: the rater that the others are compared with.
        evaluation_manifest: manifest of the evaluation.
        pairs_manifest: manifest of the pairs; None for external ones, whose page has no funnel.
        annotators: content of annotators.json.
        changes: comparisons with other evaluations of these pairs.
        reader_notes: agreement of a rater that only looks for notes to readers.
        learning: agreement by rater and share of the training prompts.
        next_command: what to run next.
    """

    rows: Sequence[LeaderboardRow]
    verdicts: pa.Table
    pairs: pa.Table
    before_symmetry: pa.Table | None
    reference: str
    evaluation_manifest: Mapping[str, Any]
    pairs_manifest: Mapping[str, Any] | None
    annotators: Mapping[str, Any] | None = None
    changes: Sequence[Change] = ()
    reader_notes: Interval | None = None
    learning: Mapping[str, Mapping[float, Interval]] = field(default_factory=dict)
    next_command: str = ""


def render_report(
    title: str, data: ReportData, page: Path | None = None, beside: Sequence[str] = ()
) -> str:
    """Render report.html, which will be written as `page`, with links to pages `beside` it."""
    rows, pairs = data.rows, data.pairs
    scores = pair_scores(data.verdicts, pairs)
    of_rater = {one.rater: one for one in scores}
    counts = dict(data.evaluation_manifest["counts"])
    records = counts.pop("raters", {})
    manifests = {"evaluation": json.dumps({**data.evaluation_manifest, "counts": counts}, indent=2)}
    if data.pairs_manifest is not None:
        manifests["pairs"] = json.dumps(data.pairs_manifest, indent=2)
    plots, missing = _agreement_figures(rows)
    # A tall picture comes second, so that the others are stacked beside it.
    plots[1:1] = _coefficients(records)
    plots += _learning_curve(data.learning)
    judges = [row for row in rows if row.is_judge]
    reference, credits = reference_credits(scores, pairs, data.reference)
    sections = [
        _leaderboard_section(data, reference, credits),
        _against_section(rows, of_rater, pairs, reference),
        _changes_section(data.changes),
        *([_judges_section(judges)] if judges else []),
        *([annotators_section(data.annotators)] if data.annotators else []),
        Section(
            "Where raters agree with the labels", figures=plots, remarks=[missing], name="agreement"
        ),
        _data_section((data.pairs_manifest or {}).get("counts", {})),
    ]
    confident = next((row.rater for row in rows if row.calibration is not None), None)
    if confident is not None:
        one = of_rater[confident]
        right = np.flatnonzero((one.credit > 0.5) & (one.p_chosen > 0.5))
        cards = _examples(pairs, one, right, hit=True)
        notes = "At most one pair of each prompt." if cards else "None."
        title_of_hits = f"Most confident hits of {clean_name(confident)}"
        sections.append(Section(title_of_hits, notes, cards=cards, name="hits"))
    reading = [row.rater for row in rows if row.kind not in _BASELINES][:_MOST_RATERS]
    if misses := _misses(pairs, [of_rater[name] for name in reading]):
        notes = (
            "Pairs on which a rater prefers the rejected story; “only this rater”: pairs that all "
            "other raters below get right. The examples are the most confident ones, or selected "
            "by a hash for raters without probabilities; at most one per prompt."
        )
        sections.append(Section("Misses of each rater", notes, parts=misses, name="misses"))
    if data.next_command:
        code = [Card([("command", data.next_command)])]
        sections.append(Section("Next", "Rewards for other stories:", cards=code))
    sources = sorted(set(pairs["label_source"].to_pylist()))
    facts = (
        f"{pairs.num_rows:,} pairs from {rows[0].agreement.clusters:,} prompts, "
        f"{label_text(sources)}. {written_now()}"
    )
    shown = [one for one in sections if one is not None]
    links = page_links(page, beside) if page else []
    return render(Page(title, _report_lead(rows), facts, shown, sources), manifests, links)


def _report_lead(rows: Sequence[LeaderboardRow]) -> str:
    # Not a baseline: symmetry can fix the longer story at 1/2.
    valid = [row for row in rows if not row.trained_on]
    best = next((row for row in valid if row.kind not in _BASELINES), None)
    if best is None and valid:
        return "Only baselines that do not read the stories were judged."
    if best is None:
        return "Every rater was trained on prompts of these pairs, so the results are not valid."
    found = best.agreement
    text = f"{best.rater} agrees with the labels on {100 * found.mean:.1f}% of the pairs"
    if math.isfinite(found.low):
        text += f" (95 % interval {100 * found.low:.1f}% to {100 * found.high:.1f}%)"
    if best.comparison is not None:
        text += (
            f", {100 * best.comparison.difference.mean:+.1f} points against "
            f"{best.comparison.reference}, {p_value(best.comparison.p_holm)}"
        )
    return f"{text}."


def _named(row: LeaderboardRow) -> Cell:
    """The name of a rater, with its kind if that is another word."""
    kind = "" if row.kind == row.rater else row.kind
    seen = f"trained on {row.trained_on} of these prompts" if row.trained_on else ""
    return Cell(row.rater, [", ".join(filter(None, (kind, seen)))])


def _flagged(rows: Sequence[LeaderboardRow]) -> dict[int, str]:
    return {place: "flagged" for place, row in enumerate(rows) if row.trained_on}


def agreement_columns(reference: str) -> dict[str, Callable[[LeaderboardRow], Any]]:
    """Columns of a leaderboard: names, agreement, and the comparison with the reference."""
    return {
        "rater": _named,
        ENDS: lambda row: Cell(scale=row.agreement),
        "agreement [95 %]": lambda row: row.agreement,
        f"against\n{reference}": lambda row: compared(row.comparison),
        "chosen is longer\n/ shorter": lambda row: " / ".join(
            as_cell(of.mean).text for of in (row.chosen_longer, row.chosen_shorter)
        ),
    }


def _leaderboard_section(
    data: ReportData, reference: str, credits: Mapping[str, np.ndarray]
) -> Section:
    rows, clusters = data.rows, np.array(connected_prompts(data.pairs))
    # Power needs at least two prompts, and raters that are sometimes right.
    known = {name: credit for name, credit in credits.items() if credit.any()}
    enough = reference in known and len(set(clusters.tolist())) > 1
    cases = measure(known, reference, clusters) if enough else {}

    def smallest(row: LeaderboardRow) -> str:
        found = detectable(cases[key]) if (key := f"{row.rater} - {reference}") in cases else None
        return f"±{found:.3f}" if found else "–"

    def spread(row: LeaderboardRow) -> Cell:
        if len(row.repeats) < 2:
            return Cell("–")
        ends = f"{min(row.repeats):.3f}–{max(row.repeats):.3f}"
        return Cell(ends, [f"{len(row.repeats)} repeats"])

    def speed(row: LeaderboardRow) -> Cell:
        rate = row.stories_per_second
        text = "–" if not rate < 1e12 else f"{rate:.2g}" if rate < 10 else f"{rate:,.0f}"
        return Cell(text, [f"{write_seconds(row.seconds)} s"] if math.isfinite(row.seconds) else [])

    columns = agreement_columns(reference)
    columns["detectable"] = smallest
    if data.before_symmetry is not None and any(row.before_symmetry for row in rows):
        columns["before\nsymmetry"] = lambda row: row.before_symmetry and row.before_symmetry.mean
    if any(len(row.repeats) > 1 for row in rows):
        columns["spread over\nrepeats"] = spread
    if any(row.calibration for row in rows):
        columns["Brier\n/ ECE"] = lambda row: (
            row.calibration and (f"{row.calibration.brier:.3f} / {row.calibration.ece:.3f}")
        )
    columns["stories / s"] = speed
    first = rows[0].agreement
    note = (
        "Agreement with the labels: correct 1, tie ½, not judged ½. Intervals are 95 %, clustered "
        f"by prompt (jackknife on the logit scale); {first.clusters} prompts "
        f"({first.effective_clusters:.0f} effective). Differences are paired, against "
        f"“{reference}”, with Holm's correction. Detectable: the smallest true difference from "
        f"“{reference}” that would be significant with a power of 80 %."
    )
    remarks = [coin_note(rows), strata_note(rows[0]), significance_note(rows)]
    if data.before_symmetry is not None and any(row.before_symmetry for row in rows):
        remarks.insert(
            0,
            (
                f"“Before symmetry” is on {data.before_symmetry.num_rows:,} pairs, of which the "
                f"length filter kept {data.pairs.num_rows:,}. If better stories really are longer, "
                "symmetry over-corrects, so both are shown."
            ),
        )
    warnings = few_prompts(first)
    if data.reader_notes is not None and data.reader_notes.low > 0.5:
        warnings.append(
            "Notes to readers around the stories (links, thanks, edits) alone agree with the "
            f"labels in {write_interval(data.reader_notes)} of the pairs, so raters may follow "
            "these notes rather than the stories. Cut them (cut_vote_talk) and compare."
        )
    table = table_of(rows, columns, marks=_flagged(rows))
    return Section("Leaderboard", note, table, warnings=warnings, remarks=remarks)


def _against_section(
    rows: Sequence[LeaderboardRow],
    of_rater: Mapping[str, PairScores],
    pairs: pa.Table,
    reference: str,
) -> Section | None:
    """Differences of all raters, without tests."""
    first = [row.rater for row in rows][:_MOST_RATERS]
    if len(first) < 2:
        return None
    credits = {name: of_rater[name].credit for name in first}
    found = {
        (one.rater, one.reference): one.difference
        for one in compare_all(credits, None, np.array(connected_prompts(pairs)))
    }

    def cell(rater: str, other: str) -> Cell:
        one = found.get((rater, other))
        if one is None:
            return Cell()
        return Cell(signed(one.mean), [f"[{signed(one.low)}, {signed(one.high)}]"])

    table = [[rater, *(cell(rater, other) for other in first[1:])] for rater in first[:-1]]
    part = f", for the first {len(first)} raters" if len(first) < len(rows) else ""
    note = (
        "Agreement of the row minus that of the column, paired on the same pairs, with 95 % "
        f"intervals{part}. These differences are for orientation: the page tests only those from "
        f"“{reference}” above."
    )
    heading = ["", *first[1:]]
    title = "Raters against each other"
    return Section(title, note, Table(heading, table, is_narrow=True), name="against")


def _changes_section(changes: Sequence[Change]) -> Section | None:
    if not changes:
        return None
    first = changes[0].reference
    note = (
        f"Each rater compared with its results in the first evaluation, “{first}”: paired on the "
        "same pairs, with 95 % intervals clustered by prompt. p values have Holm's correction for "
        "all rows."
    )
    table = table_of(
        changes,
        {
            "rater": lambda one: one.rater,
            "evaluation": lambda one: one.evaluation,
            f"{first} [95 %]": lambda one: stacked(one.before),
            "this evaluation [95 %]": lambda one: stacked(one.after),
            "difference [95 %]": lambda one: stacked(one.difference),
            "": lambda one: p_value(one.p_holm),
        },
        is_narrow=True,
    )
    return Section("Other evaluations of these pairs", note, table, name="comparison")


def _judges_section(judges: Sequence[LeaderboardRow]) -> Section:
    any_order = any(row.position_lean for row in judges)
    uncovered = any(row.coverage < 1 for row in judges)
    whole = {
        "fully judged\n[95 %]": lambda row: stacked(
            row.both_orders or (row.agreement if row.coverage == 1 else None)
        )
    }
    parts = []
    if any_order:
        orders: dict[str, Callable[[LeaderboardRow], Any]] = {
            "judge": _named,
            "flip rate\n[95 %]": lambda row: stacked(row.flip_rate),
            "first wins\n[95 %]": lambda row: stacked(row.position_lean),
            "both orders\nagree": lambda row: percent(row.consistent_share),
            "agreement on\nthese [95 %]": lambda row: stacked(row.consistent),
        }
        note = (
            "Flip rate: how often the two orders name different stories. First wins: how often the "
            "story shown first wins; ½ means no position bias. Both orders agree: the share of "
            "pairs for which both orders name the same story, and the agreement on these pairs."
        )
        if any(row.pooled_agreement for row in judges):
            orders["pooled p\n[95 %]"] = lambda row: stacked(row.pooled_agreement)
            note += " Pooled p: agreement of the probability averaged over both orders."
        if uncovered:
            orders |= whole
            note += " Fully judged: agreement on the pairs judged in every order."
        parts.append(Section("Orders", note, table_of(judges, orders, marks=_flagged(judges))))
    note = (
        "Coverage: the share of verdicts that are judgements; other verdicts count ½ in the "
        "leaderboard."
    )
    answers: dict[str, Callable[[LeaderboardRow], Any]] = {
        "judge": _named,
        "coverage": lambda row: row.coverage,
    }
    if uncovered and not any_order:
        answers |= whole
        note += " Fully judged: agreement on pairs whose verdicts are all judgements."
    answers["named\na story"] = lambda row: row.outcomes["chosen"] + row.outcomes["rejected"]
    for name in OUTCOMES[2:]:
        if any(row.outcomes[name] for row in judges):
            answers[name] = lambda row, name=name: row.outcomes[name]  # type: ignore[misc]
    if any(row.explanation_words is not None for row in judges):
        note += " Words: mean length of an explanation."
        answers["words"] = lambda row: (
            "–" if row.explanation_words is None else f"{row.explanation_words:,.1f}"
        )
    if any(row.input_tokens is not None for row in judges):
        answers["tokens read\nand written"] = lambda row: Cell(
            as_cell(row.input_tokens).text, [as_cell(row.output_tokens).text]
        )
    if any(row.cost_usd is not None for row in judges):
        answers["$, and per\n1,000 pairs"] = lambda row: Cell(
            write_dollars(row.cost_usd),
            [] if row.cost_usd is None else [write_dollars(row.cost_per_1000_pairs)],
        )
    answers["seconds"] = lambda row: write_seconds(row.seconds)
    note += " Tokens, dollars and seconds are for these pairs."
    parts.append(Section("Answers", note, table_of(judges, answers, marks=_flagged(judges))))
    note = "Raters that read both stories together, or write answers."
    return Section("Judges", note, parts=parts)


def annotators_section(found: Mapping[str, Any]) -> Section:
    """One annotator against the others; `found` is the content of annotators.json."""

    def interval(value: Mapping[str, Any]) -> Interval:
        known: dict[str, Any] = {
            key: math.nan if item is None else item for key, item in value.items()
        }
        return Interval(**known)

    one = interval(found["one_annotator"])
    limit = f"differ by less than {found['min_gap']:g}" if found["min_gap"] else "are equal"
    notes = [
        "Each annotator is left out in turn, and the mean of the others is the label for that "
        f"annotator and for every rater: {one.n:,} comparisons on {found['pairs']:,} pairs of "
        f"{one.clusters} prompts. These are all pairs within a prompt except those in which the "
        f"others' means {limit} ({found['left_out']:,} comparisons). Selecting pairs by the mean "
        "of all annotators would overestimate the agreement of the one left out. These labels are "
        "noisier than those of the leaderboard, so agreement is lower; compare the differences, "
        "which are paired and Holm-corrected."
    ]
    if found["slots"]:
        notes.append(
            f"The source does not name its annotators: the {found['annotators']} names are "
            "positions in a list, so “one annotator” may be different people for the two stories "
            "of a pair."
        )
    if found["at_chance"]:
        notes.append(
            "Two annotators agree no more often than by chance here: exceeding one means little."
        )
    rows: list[list[Any]] = [["one annotator", Cell(scale=one), one, "reference"]]
    for row in found["raters"]:
        agreement = interval(row["agreement"])
        difference, p = interval(row["comparison"]["difference"]), row["comparison"]["p_holm"]
        rows.append(
            [row["rater"], Cell(scale=agreement), agreement, Cell(signed(difference), [p_value(p)])]
        )
    alpha = as_cell(math.nan if found["alpha"] is None else found["alpha"]).text
    two = write_interval(interval(found["two_annotators"]))
    remark = (
        f"Two annotators prefer the same story in {two} of the pairs; Krippendorff's alpha of "
        f"their ratings is {alpha}."
    )
    table = Table(["rater", ENDS, "agreement [95 %]", "minus one annotator"], rows)
    title = "One annotator against the others"
    return Section(title, notes, table, remarks=[remark], name="annotators")


def _learning_curve(learning: Mapping[str, Mapping[float, Interval]]) -> list[Figure]:
    """Agreement by share of the training prompts."""
    lines = [
        Line(short_name(rater), [(100 * share, one, ()) for share, one in sorted(of.items())])
        for rater, of in learning.items()
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


def _data_section(counts: Mapping[str, Any]) -> Section | None:
    funnel, lengths = counts.get("funnel", []), counts.get("lengths", {})
    if not (funnel or lengths):
        return None
    notes = ["The data report shows words, dates and votes of the stories."]
    read, remarks = counts.get("stories", {}), []
    if funnel:
        stories = ""
        if read.get("stories"):
            stories = f"; {read['stories']:,} stories of {read['prompts']:,} prompts were read"
        notes.append(f"From stories to pairs, step by step{stories}.")
    splits = lengths.get("after", {})
    for split, after in splits.items():
        before = lengths["before"][split]
        shares = [
            percent(of["chosen_longer"] / max(of["chosen_longer"] + of["chosen_shorter"], 1))
            for of in (before, after)
        ]
        name = f"Split {split}: of" if len(splits) > 1 else "Of"
        remarks.append(
            f"{name} the pairs whose stories differ in length, the longer one was chosen in "
            f"{shares[0]} before length symmetry ({before['pairs']:,} pairs) and in {shares[1]} "
            f"after ({after['pairs']:,} pairs)."
        )
    table = funnel_table(funnel) if funnel else None
    return Section("The data", notes, table, remarks=remarks, name="data")


# Writers --------------------------------------------------------------------------------------

_EXCERPT = 600


def write_writers(
    artifact: Artifact,
    quantity: str,
    rows: Sequence[WriterRow],
    tables: Mapping[str, Sequence[Sequence[str]]],
    notes: Sequence[str],
    published: Mapping[str, Mapping[str, float]],
    *,
    scale: str = "",
    excerpts: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    distributions: Mapping[str, Mapping[str, np.ndarray]] = MappingProxyType({}),
) -> None:
    """Write writers.html: the leaderboard of writers as a plot, all tables, and excerpts.

    Args:
        artifact: the output folder.
        quantity: what was graded.
        rows: the leaderboard.
        tables: by title, the rows of each table, of which the first is the heading.
        notes: what a reader must know about these results.
        published: published results by name and writer.
        scale: the scale of the grades.
        excerpts: by writer, a prompt and a text.
        distributions: by quantity and writer, the grades of its items.
    """
    name = next(iter(published), None)
    hollow = {} if name is None else {short_name(w): n for w, n in published[name].items()}
    drawn = figures.dots(
        [(short_name(row.writer), [[row.grade]]) for row in rows],
        [quantity],
        f"{quantity}, mean over prompts",
        levels=(),
        hollow=hollow,
        mark=f"published: {name}",
    )
    panel = Figure("Writers", "Mean grade and 95 % interval, by prompt.", drawn, tall=True)
    about = (
        f"{scale} Grades are the ratings of models unless a table says people. A writer's grade is "
        "the mean over prompts, without the judges' offsets. Beaten: the share of other writers' "
        "texts for the same prompt and step that have a lower reward."
    )
    warnings = [*few_prompts(rows[0].grade), *(f"{note}." for note in notes)]
    sections = [Section("Overview", about.strip(), figures=[panel], name="overview")]
    sections += [Section("Limits", warnings=warnings)] if warnings else []
    sections += [
        Section(title, table=Table(table[0], table[1:])) for title, table in tables.items()
    ]
    drawings = {one: figures.densities(of, one) for one, of in distributions.items()}
    normal = "Kernel density over items; dashed: the normal curve of the same mean and deviation."
    pictures = [Figure(one, "", drawn) for one, drawn in drawings.items()]
    sections += [Section("Distributions", normal, figures=pictures)] if pictures else []
    cards = [
        Card([(writer, shorten(text, _EXCERPT))], prompt=shorten(prompt, _EXCERPT))
        for writer, (prompt, text) in excerpts.items()
    ]
    note = "The beginning of one text of each writer, for the same prompt where there is one."
    sections += [Section("Excerpts", note, cards=cards)] if cards else []
    best = rows[0].grade
    same = [row.writer for row in rows if abs(row.grade.mean - best.mean) < 1e-9]
    who = same[0] if len(same) == 1 else f"{', '.join(same[:-1])} and {same[-1]}"
    lead = (
        f"{who} {'has' if len(same) == 1 else 'share'} the highest mean "
        f"{quantity.replace('_', ' ')}: {best.mean:.2f}, over {best.clusters:,} prompts."
    )
    facts = f"{len(rows)} writers. {written_now()}"
    page = Page("LitBench: writers", lead, facts, sections)
    write_page(artifact, "writers", page, {"writers": panel})
