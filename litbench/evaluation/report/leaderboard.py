"""Tables of raters, judges and annotators, for pages and the terminal alike."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from litbench.data.records import OUTCOMES
from litbench.evaluation.report.document import (
    ENDS,
    Cell,
    Section,
    Table,
    as_cell,
    compared,
    p_value,
    percent,
    stacked,
    table_of,
    write_interval,
    write_seconds,
)
from litbench.metrics.agreement import pair_scores
from litbench.metrics.annotators import ONE_ANNOTATOR
from litbench.metrics.best_of_k import BestOfKResults, best_of_k
from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import CHANCE, LeaderboardRow
from litbench.metrics.reward_bench import RewardBenchScore, reward_bench_2
from litbench.runs.terminal import clean_name, write_dollars

# A column: what it shows of a row.
Column = Callable[[LeaderboardRow], Any]


def _named(row: LeaderboardRow) -> Cell:
    """The name of a rater, with its kind if that is another word, and its marks."""
    kind = "" if row.kind == row.rater else row.kind
    seen = f"trained on {row.trained_on} of these prompts" if row.trained_on else ""
    stopped = f"stopped: {row.stopped}" if row.stopped else ""
    about = ", ".join(filter(None, (kind, seen, stopped)))
    return Cell(row.rater, [f"({about})"] if about else [])


def rater_table(rows: Sequence[LeaderboardRow], columns: Mapping[str, Column]) -> Table:
    """A table of raters; those that were trained on the prompts are marked."""
    marks = {index: "flagged" for index, row in enumerate(rows) if row.trained_on}
    return table_of(rows, columns, marks=marks)


def agreement_columns(reference: str) -> dict[str, Column]:
    """Columns of a leaderboard: names, agreement, and the comparison with the reference."""
    return {
        "rater": _named,
        # Constant halves would have a narrow interval.
        "agreement [95 %]": lambda row: (
            f"{row.agreement.mean:.3f} (no information)"
            if row.is_judged and row.no_information
            else row.agreement
        ),
        f"against {reference},\np (Holm)": lambda row: compared(
            row.comparison, "reference" if row.is_judged else "–"
        ),
        "chosen is longer\n/ shorter": lambda row: " / ".join(
            as_cell(interval.mean).text for interval in (row.chosen_longer, row.chosen_shorter)
        ),
    }


def leaderboard_text(rows: Sequence[LeaderboardRow]) -> str:
    """The leaderboard for a terminal, with the tables of the judges."""
    judges = [row for row in rows if row.is_judge]
    blocks = [
        *information_warnings({row.rater: row.no_information for row in rows}),
        *headline(rows),
        coin_note(rows),
        strata_note(rows[0]),
        judges_section(judges).as_text() if judges else "",
        significance_note(rows),
    ]
    return "\n\n".join(block for block in blocks if block)


def headline(rows: Sequence[LeaderboardRow]) -> tuple[str, str]:
    """The first line of the leaderboard, and its table."""
    comparison = next((row.comparison for row in rows if row.comparison is not None), None)
    first = rows[0].agreement
    columns = agreement_columns("reference" if comparison is None else comparison.reference)
    about = (
        f"{first.n:,} pairs, {first.clusters:,} prompts ({first.effective_clusters:.0f} effective)"
    )
    if any(row.stopped for row in rows):
        about = "each rater on the pairs that it judged"
    title = f"agreement with the labels: {about}, 95 % intervals by prompt"
    return title, rater_table(rows, columns).as_text()


def information_warnings(reasons: Mapping[str, str]) -> list[str]:
    """A warning for each rater whose verdicts carry no information about the stories.

    Args:
        reasons: why, by rater, see `lacks_information`; empty for the others.
    """
    return [
        f"{clean_name(name)}: no information about the stories: {reason}. Its agreement does not "
        "measure taste."
        for name, reason in reasons.items()
        if reason
    ]


def correction_note(comparisons: Sequence[tuple[str, Interval, float]]) -> str:
    """How the p values of a family of comparisons relate to its intervals.

    Args:
        comparisons: name, difference and p value after Holm's correction.

    Returns:
        Empty for fewer than two comparisons, which need no correction.
    """
    tested = [row for row in comparisons if math.isfinite(row[2])]
    if len(tested) < 2:
        return ""
    note = (
        f"p values have Holm's correction for these {len(tested)} comparisons; each interval is "
        "for one comparison alone."
    )
    excluding = [
        clean_name(name)
        for name, difference, p in tested
        if p >= 0.05 and not difference.low <= 0 <= difference.high
    ]
    if excluding:
        names = ", ".join(excluding)
        note += f" Not significant after the correction though the interval excludes 0: {names}."
    return note


def significance_note(rows: Sequence[LeaderboardRow]) -> str:
    """The result of the comparisons with the reference; empty without a comparison."""
    comparisons = [row.comparison for row in rows if row.comparison is not None]
    if not comparisons:
        return ""
    reference = clean_name(comparisons[0].reference)
    unclear = [
        clean_name(comparison.rater) for comparison in comparisons if not comparison.is_clear
    ]
    text = f"Every difference from {reference} is significant."
    if unclear:
        text = (
            f"Not significant: {len(unclear)} of {len(comparisons)} differences from {reference} "
            f"({', '.join(unclear)}). This does not show that they are equal to {reference}."
        )
    family = [
        (comparison.rater, comparison.difference, comparison.p_holm) for comparison in comparisons
    ]
    return f"{text} {correction_note(family)}".rstrip()


def strata_note(row: LeaderboardRow) -> str:
    """How many pairs the strata by length have, if under 80 % of all pairs; else empty."""
    longer, shorter, n = row.chosen_longer.n, row.chosen_shorter.n, row.agreement.n
    if longer + shorter >= 0.8 * n:
        return ""
    return (
        f"Of {n:,} pairs, the chosen story is known to be longer in {longer:,} and shorter in "
        f"{shorter:,}; agreement on these does not carry over to the other pairs."
    )


def coin_note(rows: Sequence[LeaderboardRow]) -> str:
    """Why the reference is 1/2; empty if it is a rater, or if 1/2 was asked for."""
    references = {row.comparison.reference for row in rows if row.comparison is not None}
    is_replaced = any(row.kind == "longer" and row.comparison is None for row in rows)
    if CHANCE not in references or not is_replaced:
        return ""
    return (
        "The longer story is right in exactly half of these pairs, as after length symmetry, so "
        f"raters are compared with {CHANCE}."
    )


def judges_section(judges: Sequence[LeaderboardRow]) -> Section:
    """How judges answer: orders, coverage, tokens and costs."""

    def has(name: str) -> bool:
        return any(getattr(row, name) is not None for row in judges)

    uncovered = any(row.coverage < 1 for row in judges)
    whole: dict[str, Column] = {
        "fully judged\n[95 %]": lambda row: stacked(
            row.both_orders or (row.agreement if row.coverage == 1 else None)
        )
    }
    parts = []
    if has("position_bias"):
        orders: dict[str, Column] = {
            "judge": _named,
            "flip rate\n[95 %]": lambda row: stacked(row.flip_rate),
            "position bias\n[95 %]": lambda row: stacked(row.position_bias),
            "both orders\nagree": lambda row: percent(row.consistent_share),
            "agreement on\nthese [95 %]": lambda row: stacked(row.consistent),
        }
        note = (
            "Flip rate: how often the two orders name different stories. Position bias: how "
            "often the story shown first wins; ½ is none. Both orders agree: the share of "
            "pairs for which both orders name the same story, and the agreement on these pairs."
        )
        if has("pooled_agreement"):
            orders["pooled p\n[95 %]"] = lambda row: stacked(row.pooled_agreement)
            note += " Pooled p: agreement of the probability averaged over both orders."
        if uncovered:
            orders |= whole
            note += " Fully judged: agreement on the pairs judged in every order."
        parts.append(Section("Orders", note, rater_table(judges, orders)))
    note = (
        "Coverage: the share of verdicts that are judgements; other verdicts count ½ in the "
        "leaderboard."
    )
    answers: dict[str, Column] = {"judge": _named, "coverage": lambda row: row.coverage}
    if uncovered and not has("position_bias"):
        answers |= whole
        note += " Fully judged: agreement on pairs whose verdicts are all judgements."
    answers["named\na story"] = lambda row: row.outcomes["chosen"] + row.outcomes["rejected"]
    for name in OUTCOMES[2:]:
        if any(row.outcomes[name] for row in judges):
            answers[name] = lambda row, name=name: row.outcomes[name]  # type: ignore[misc]
    if has("explanation_words"):
        note += " Words: mean length of an explanation."
        answers["words"] = lambda row: (
            "–" if row.explanation_words is None else f"{row.explanation_words:,.1f}"
        )
    if has("input_tokens"):
        answers["tokens read\nand written"] = lambda row: Cell(
            as_cell(row.input_tokens).text, [as_cell(row.output_tokens).text]
        )
    if has("cost_usd"):
        answers["$, and per\n1,000 pairs"] = lambda row: Cell(
            write_dollars(row.cost_usd),
            [] if row.cost_usd is None else [write_dollars(row.cost_per_1000_pairs)],
        )
    answers["seconds"] = lambda row: write_seconds(row.seconds)
    note += " Tokens, dollars and seconds are for these pairs."
    parts.append(Section("Answers", note, rater_table(judges, answers)))
    return Section(
        "Judges", "Raters that read both stories together, or write answers.", parts=parts
    )


def annotators_section(figures: Mapping[str, Any]) -> Section:
    """One annotator against the others; `figures` is the content of annotators.json."""
    person = Interval.of(figures["one_annotator"])
    limit = f"differ by less than {figures['min_gap']:g}" if figures["min_gap"] else "are equal"
    note = (
        "Each annotator is left out in turn, and the mean of the others is the label for that "
        f"annotator and for every rater: {person.n:,} comparisons on {figures['pairs']:,} pairs "
        f"of {person.clusters} prompts. These are all pairs within a prompt except those in which "
        f"the others' means {limit} ({figures['left_out']:,} comparisons). Selecting pairs by the "
        "mean of all annotators would overestimate the agreement of the one left out. These labels "
        "are noisier than those of the leaderboard, so agreement is lower; compare the "
        "differences, which are paired."
    )
    rows: list[list[Any]] = [[ONE_ANNOTATOR, Cell(scale=person), person, "reference"]]
    family = []
    for row in figures["raters"]:
        agreement, comparison = Interval.of(row["agreement"]), row["comparison"]
        difference, p = Interval.of(comparison["difference"]), comparison["p_holm"]
        family.append((row["rater"], difference, math.nan if p is None else p))
        cell = stacked(difference, p_value(p), is_signed=True)
        rows.append([row["rater"], Cell(scale=agreement), agreement, cell])
    alpha = as_cell(math.nan if figures["alpha"] is None else figures["alpha"]).text
    two = write_interval(Interval.of(figures["two_annotators"]))
    remarks = [
        f"{figures['annotators']} annotators, {figures['pairs']:,} pairs, {person.clusters} "
        f"prompts, {person.n:,} comparisons. Two annotators prefer the same story in {two} of "
        f"the pairs; Krippendorff's alpha of their ratings is {alpha}.",
        correction_note(family),
    ]
    if figures["slots"]:
        remarks.append(
            "The source does not name its annotators: these names are positions in a list, so "
            f"“{ONE_ANNOTATOR}” may be different people for the two stories of a pair."
        )
    if figures["is_dependent"]:
        excess = figures["excess"]
        agreed = excess["expected"] + excess["difference"]["mean"]
        by = (
            "chance" if excess["rater"] is None else f"the agreement of {excess['rater']} with each"
        )
        remarks.append(
            f"Annotators' residuals correlate negatively: two agree {agreed:+.3f} above chance (-1 "
            f"to 1). Independent ones would agree at least {excess['expected']:.3f}, by {by}. "
            f"“{ONE_ANNOTATOR}” then measures how the ratings were collected, not people."
        )
    if figures["at_chance"]:
        remarks.append(
            "Two annotators do not agree significantly more often than by chance here: beating "
            "one of them means little."
        )
    heading = ["rater", ENDS, "agreement [95 %]", f"minus {ONE_ANNOTATOR}, p (Holm)"]
    title = "One annotator against the others"
    return Section(title, note, Table(heading, rows), remarks=remarks, name="annotators")


def item_sections(
    verdicts: pa.Table,
    pairs: pa.Table,
    reference: str,
    records: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[Section]:
    """Best of k and RewardBench 2, where the pairs have items of three or more answers.

    Args:
        verdicts: with the schema VERDICTS.
        pairs: all pairs that were judged.
        reference: the rater that the others are compared with.
        records: of each rater's jobs, see `litbench.evaluation.loop.evaluate`.
    """
    scores = pair_scores(verdicts, pairs)
    results = best_of_k(scores, pairs, reference)
    published = reward_bench_2(scores, verdicts, pairs)
    return [
        *([_best_of_k_section(results)] if results else []),
        *_positions_sections(records),
        *([_reward_bench_section(published)] if published else []),
    ]


def _best_of_k_section(results: BestOfKResults) -> Section:
    """How often each rater puts the best answer of an item first."""
    low, high = results.min_answers, results.max_answers
    k = str(low) if low == high else f"{low} to {high}"
    note = (
        "An item counts if the rater prefers the best answer to every worse one, in the mean over "
        "both orders. A tie for the first place counts 1 over the number of answers that share it. "
        "95 % intervals, clustered by prompt."
    )
    remarks = [
        f"{results.items:,} items of {k} answers that people compared together. A random choice is "
        f"right in {results.chance:.3f}."
    ]
    if results.left_out:
        remarks.append(f"{results.left_out:,} items are left out: their best answer is not known.")
    columns: dict[str, Any] = {
        "rater": lambda row: row.rater,
        ENDS: lambda row: Cell(scale=row.share),
        "best of k [95 %]": lambda row: row.share,
        f"against {results.reference},\np (Holm)": lambda row: compared(row.comparison),
    }
    if any(row.tau for row in results.rows):
        columns["Kendall's tau\n[95 %]"] = lambda row: row.tau
    return Section(
        "Best of k", note, table_of(results.rows, columns), remarks=remarks, name="best_of_k"
    )


def _positions_sections(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Section]:
    """How often judges that are asked for the best of k chose each position."""
    rows = []
    for rater, parts in records.items():
        counts: dict[str, list[int]] = {}
        for part in parts:
            for k, chosen in part["notes"].get("positions", {}).items():
                counts[k] = list(map(sum, zip(chosen, counts.get(k, [0] * int(k)), strict=True)))
        for k, chosen in counts.items():
            shares = ", ".join(f"{count / max(sum(chosen), 1):.2f}" for count in chosen)
            rows.append([rater, k, sum(chosen), 1 / int(k), shares])
    note = (
        "Each answer of an item stands once in each position, so without position bias every "
        "position is chosen in 1/k."
    )
    heading = ["judge", "answers, k", "choices", "1/k", "share of each position, from the first"]
    section = Section("Positions", note, Table(heading, rows, is_narrow=True), name="positions")
    return [section] if rows else []


def _reward_bench_section(scores: Sequence[RewardBenchScore]) -> Section:
    """RewardBench 2 as it is published, without intervals."""
    note = (
        "The published score: the mean over subsets of the share of items whose chosen answer has "
        "the highest reward, and of the subset Ties by its own formula. Ties needs rewards, so "
        "judges have no score there and no mean."
    )
    heading = ["rater", "RewardBench 2", *scores[0].subsets]
    rows = [[score.rater, score.mean, *score.subsets.values()] for score in scores]
    return Section(
        "RewardBench 2", note, Table(heading, rows, is_narrow=True), name="reward_bench_2"
    )
