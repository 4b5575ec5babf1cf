"""Results as text for a terminal."""

import math
from collections.abc import Sequence

from litbench.metrics.annotators import ONE_ANNOTATOR, AnnotatorAgreement
from litbench.metrics.comparisons import Comparison
from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import CHANCE, LeaderboardRow
from litbench.records import OUTCOMES
from litbench.show import show
from litbench.text import clean_name


def write_dollars(value: float | None) -> str:
    """Format dollars to the cent, or to two significant digits below ten cents."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def significance_note(rows: Sequence[LeaderboardRow]) -> str:
    """Which differences from the reference are not significant; empty without a comparison."""
    compared = [row.comparison for row in rows if row.comparison is not None]
    if not compared:
        return ""
    reference = clean_name(compared[0].reference)
    unclear = [clean_name(one.rater) for one in compared if not one.is_clear]
    if not unclear:
        return f"Every difference from {reference} is significant."
    return (
        f"Not significant: {len(unclear)} of {len(compared)} differences from {reference} "
        f"({', '.join(unclear)}). This does not show that they are equal to {reference}."
    )


def strata_note(row: LeaderboardRow) -> str:
    """How many pairs the strata by length have, if under 80 % of all pairs; else empty."""
    longer, shorter, n = row.chosen_longer.n, row.chosen_shorter.n, row.agreement.n
    if longer + shorter >= 0.8 * n:
        return ""
    return (
        f"Of {n:,} pairs, the chosen story is known to be longer in {longer:,} and shorter in "
        f"{shorter:,}; agreement on these says nothing about the other pairs."
    )


def _comparison(comparison: Comparison | None) -> tuple[str, str]:
    """The difference with its interval, and the p value after Holm's correction."""
    if comparison is None:
        return "reference", ""
    difference, p = comparison.difference, comparison.p_holm
    bounds = f" [{difference.low:+.3f}, {difference.high:+.3f}]" if math.isfinite(p) else ""
    return f"{difference.mean:+.3f}{bounds}", write_p(p)


def write_p(p: float | None) -> str:
    """A p value to three digits; a dash if it is unknown."""
    if p is None or not math.isfinite(p):
        return "–"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def coin_note(rows: Sequence[LeaderboardRow]) -> str:
    """Why the reference is 1/2; empty if it is a rater."""
    if not any(row.comparison is not None and row.comparison.reference == CHANCE for row in rows):
        return ""
    return (
        "The longer story is right in exactly half of these pairs, as after length symmetry, so "
        f"raters are compared with {CHANCE}."
    )


def leaderboard_text(rows: Sequence[LeaderboardRow]) -> str:
    """The leaderboard, with a second table for judges."""
    compared = next((row.comparison for row in rows if row.comparison is not None), None)
    reference = "" if compared is None else clean_name(compared.reference)
    first = rows[0].agreement
    heading = ("rater", "agreement", "chosen longer", "shorter", f"vs {reference}", "p (Holm)")
    table: list[tuple[str, ...]] = [heading]
    for row in rows:
        strata = [
            f"{of.mean:.3f}" if of.n else "-" for of in (row.chosen_longer, row.chosen_shorter)
        ]
        name = clean_name(row.rater)
        table.append((name, str(row.agreement), *strata, *_comparison(row.comparison)))
    blocks = [
        f"agreement with the labels: {first.n:,} pairs, {first.clusters:,} prompts "
        f"({first.effective_clusters:.0f} effective), 95 % intervals by prompt",
        show(table),
        "\n".join(
            f"{clean_name(row.rater)}: TRAINED ON {row.trained_on} OF THESE PROMPTS"
            for row in rows
            if row.trained_on
        ),
        coin_note(rows),
        strata_note(rows[0]),
    ]
    if judges := [row for row in rows if row.is_judge]:
        blocks += [show(_judges_table(judges)), significance_note(rows)]
    return "\n\n".join(block for block in blocks if block)


def _judges_table(rows: Sequence[LeaderboardRow]) -> list[list[str]]:
    """Heading and rows; a column that is empty for every judge is left out."""

    def share(values: Sequence[Interval | None]) -> list[str]:
        return ["" if value is None else f"{value.mean:.3f}" for value in values]

    def count(values: Sequence[float | None]) -> list[str]:
        return [f"{value:,.0f}" if value else "" for value in values]

    columns = {
        "judge": [clean_name(row.rater) for row in rows],
        "flip rate": share([row.flip_rate for row in rows]),
        "first wins": share([row.position_lean for row in rows]),
        "coverage": [f"{row.coverage:.3f}" for row in rows],
        **{name: count([row.outcomes[name] for row in rows]) for name in OUTCOMES[2:]},
        "words": count([row.explanation_words for row in rows]),
        "tokens in": count([row.input_tokens for row in rows]),
        "tokens out": count([row.output_tokens for row in rows]),
        "$": ["" if row.cost_usd is None else write_dollars(row.cost_usd) for row in rows],
    }
    filled = [[title, *(cell or "-" for cell in of)] for title, of in columns.items() if any(of)]
    return [list(cells) for cells in zip(*filled, strict=True)]


def annotators_text(agreement: AnnotatorAgreement) -> str:
    """Leave-one-out agreement of annotators and raters."""
    one = agreement.one_annotator
    gap = f" by {agreement.min_gap:g} or more" if agreement.min_gap else ""
    table = [
        ("", "agreement", f"vs {ONE_ANNOTATOR}", "p (Holm)"),
        (ONE_ANNOTATOR, str(one), "reference", ""),
        *(
            (clean_name(row.rater), str(row.agreement), *_comparison(row.comparison))
            for row in agreement.raters
        ),
    ]
    lines = [
        f"leave-one-out agreement with {agreement.annotators} annotators: {agreement.pairs:,} "
        f"pairs, {one.clusters} prompts, {one.n:,} comparisons in which the others' means "
        f"differ{gap}",
        "",
        show(table),
        "",
        f"two annotators prefer the same story: {agreement.two_annotators}; Krippendorff's alpha "
        f"{agreement.alpha:.3f}",
    ]
    if agreement.at_chance:
        lines.append(
            "two annotators agree no more often than by chance, so exceeding one says little"
        )
    if agreement.slots:
        lines.append("names are positions in a list: one annotator may be several people")
    return "\n".join(lines)
