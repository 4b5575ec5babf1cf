"""frontier.html: agreement against cost, for cascades and the raters beside them."""

import math
from collections.abc import Mapping, Sequence

import pyarrow as pa

from litbench.metrics.frontier import Curve, Frontier, RaterPoint, at_shares
from litbench.report import figures
from litbench.report.document import Panel, render, short_name
from litbench.text import clean_name

_SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def curve_name(curve: Curve) -> str:
    """A curve as plots and tables name it."""
    return f"{clean_name(curve.cheap)}, then {clean_name(curve.expensive)}"


def drawn_name(curve: Curve) -> str:
    """A curve as plots name it, where there is less room."""
    return f"{short_name(curve.cheap)}, then {short_name(curve.expensive)}"


def draw_frontier(found: Frontier, beside: Sequence[str]) -> dict[str, Panel]:
    """The plots of a frontier, by what is spent: `dollars`, where prices are known, and `asked`.

    Args:
        found: the figures.
        beside: names of further raters to draw.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    caption = (
        "Line: the cascade at every threshold, from the cheap rater alone to the expensive one "
        "asked everywhere. Band: its 95 % interval, by prompt. Dotted: as many pairs asked about, "
        "drawn at random."
    )
    ends = {name for curve in found.curves for name in (curve.cheap, curve.expensive)}
    shown = [rater for rater in found.raters if rater.rater in ends or rater.rater in beside]
    panels = {}
    priced = [curve for curve in found.curves if math.isfinite(curve.points[0].cost_usd)]
    if priced:
        drawn = figures.frontier(
            [
                (drawn_name(curve), [(point.cost_usd, point.agreement) for point in curve.points])
                for curve in priced
            ],
            [
                (short_name(rater.rater), 0.0 if math.isnan(rater.cost_usd) else rater.cost_usd,
                 rater.agreement)
                for rater in shown
            ],
            [],
            "dollars per 1,000 pairs",
        )  # fmt: skip
        title = "Agreement against price"
        panels["dollars"] = Panel(title, caption + " Verdicts without a price stand at 0.", drawn)
    drawn = figures.frontier(
        [
            (drawn_name(curve), [(100 * point.asked, point.agreement) for point in curve.points])
            for curve in found.curves
        ],
        [],
        [
            (short_name(rater.rater), rater.agreement.mean)
            for rater in shown
            if rater.rater not in ends
        ],
        "% of pairs asked about",
    )
    panels["asked"] = Panel("Agreement against questions", caption, drawn)
    return panels


def _lead(found: Frontier) -> str:
    alone = {rater.rater: rater.agreement.mean for rater in found.raters}
    curve = found.curves[0]
    (half,) = at_shares(curve, [0.5])
    cheap, expensive = clean_name(curve.cheap), clean_name(curve.expensive)
    return (
        f"{cheap} alone agrees with the labels on {alone[curve.cheap]:.1%} of the pairs, "
        f"{expensive} alone on {alone[curve.expensive]:.1%}, and {cheap} with {expensive} "
        f"asked about the {half.asked:.0%} of which it is least sure on "
        f"{half.agreement.mean:.1%}."
    )


def render_frontier(
    *,
    title: str,
    found: Frontier,
    panels: Mapping[str, Panel],
    pairs: pa.Table,
    trained_on: Mapping[str, int],
    manifests: Mapping[str, str],
) -> str:
    """Render the page.

    Args:
        title: heading of the page.
        found: its figures.
        panels: from `draw_frontier`.
        pairs: the pairs they stand on.
        trained_on: per rater how many of the prompts it was trained on.
        manifests: name and text of what made the page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    raters: list[RaterPoint] = sorted(
        found.raters, key=lambda rater: (-rater.agreement.mean, rater.rater)
    )
    return render(
        "frontier_page.html",
        title=title,
        label_sources=sorted(set(pairs["label_source"].to_pylist())),
        lead=_lead(found),
        curves=[(curve_name(curve), curve, at_shares(curve, _SHARES)) for curve in found.curves],
        raters=raters,
        fallback=found.fallback,
        priced=any(math.isfinite(rater.cost_usd) for rater in raters),
        seen=sorted(name for name, prompts in trained_on.items() if prompts),
        panels=[panel.figure for panel in panels.values()],
        manifests=manifests,
    )
