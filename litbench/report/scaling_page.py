"""scaling.html: agreement by amount of training data and by model size (see document.py)."""

import math
from collections.abc import Mapping

import pyarrow as pa

from litbench.metrics.scaling import (
    ScalingStudy,
    by_pairs,
    by_parameters,
    references,
    write_size,
)
from litbench.records import prompt_keys
from litbench.report import figures
from litbench.report.document import Panel, render, short_name


def draw_panels(study: ScalingStudy) -> dict[str, Panel]:
    """The plots of a study, by what grows: `pairs`, `parameters`.

    In the plot of amounts are the raters that were trained on several, in that of sizes the
    families with a known number of parameters; a plot with neither is left out.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    flat = [(short_name(point.name), point.agreement.mean) for point in references(study.points)]
    caption = (
        "Line: mean over seeds. Band: its 95 % interval, by prompt, on the held-out pairs. Dots: "
        "single seeds."
    )
    panels = {}
    amounts = [
        (
            short_name(rater),
            [(point.pairs_used or 0, point.agreement, point.seeds) for point in points],
        )
        for rater, points in by_pairs(study.points).items()
        if len(points) > 1
    ]
    if amounts:
        drawn = figures.scaling(amounts, flat, "training pairs", lambda value: f"{value:,.0f}")
        panels["pairs"] = Panel("Agreement by amount of training data", caption, drawn)
    sizes = [
        (
            short_name(family),
            [
                (point.parameters, point.agreement, point.seeds)
                for point in points
                if point.parameters is not None
            ],
        )
        for family, points in by_parameters(study.points).items()
    ]
    sizes = [(family, points) for family, points in sizes if points]
    if sizes:
        drawn = figures.scaling(sizes, flat, "parameters", write_size)
        used = {point.pairs_used for of in by_parameters(study.points).values() for point in of}
        at = "".join(f" Trained on {amount:,} pairs." for amount in used if amount is not None)
        panels["parameters"] = Panel("Agreement by model size", caption + at, drawn)
    return panels


def _lead(study: ScalingStudy) -> str:
    best = max(study.points, key=lambda point: point.agreement.mean)
    used = "" if best.pairs_used is None else f" trained on {best.pairs_used:,} pairs"
    text = (
        f"{best.rater}{used} agrees most with the labels of the held-out pairs: "
        f"{best.agreement.mean:.1%}"
    )
    if math.isfinite(best.agreement.low):
        text += f" (95 % interval {best.agreement.low:.1%} to {best.agreement.high:.1%})"
    return text + "."


def render_scaling(
    *,
    title: str,
    study: ScalingStudy,
    panels: Mapping[str, Panel],
    training: pa.Table,
    test: pa.Table,
    manifests: Mapping[str, str],
) -> str:
    """Render the page.

    Args:
        title: heading of the page.
        study: its figures.
        panels: from `draw_panels`.
        training: the pairs that amounts are drawn from.
        test: the held-out pairs.
        manifests: name and text of what made the page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    unsized = [
        point.name
        for points in by_parameters(study.points).values()
        for point in points
        if point.parameters is None
    ]
    return render(
        "scaling_page.html",
        title=title,
        label_sources=sorted(set(test["label_source"].to_pylist())),
        lead=_lead(study),
        study=study,
        panels=[panel.figure for panel in panels.values()],
        has_families=any(point.family for point in study.points),
        unsized=unsized,
        size=write_size,
        training_pairs=training.num_rows,
        training_prompts=len(set(prompt_keys(training))),
        manifests=manifests,
    )
