"""ablation.html: the same rater trained on several data variants (see document.py)."""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from litbench.metrics.ablation import TRUTH, AblationArm, AblationStudy, Cell
from litbench.metrics.intervals import Interval
from litbench.report.document import Panel, most_per_unit, render, short_name
from litbench.report.figures import (
    FAINT,
    HEIGHT,
    MARKERS,
    SERIES,
    bounds,
    drawing,
    legend,
    legend_height,
    level_lines,
    scale_sizes,
)
from litbench.text import clean_name, digest


@dataclass(frozen=True)
class _Curve:
    """A variant's line: sizes and agreement at equal sizes, then at all of its pairs."""

    variant: str
    equal: list[tuple[int, Interval, list[float]]]
    natural: tuple[int, Interval] | None


def draw_curves(study: AblationStudy) -> dict[str, Panel]:
    """The plots of a study (paper, Figure 6), one for each trained rater and test set.

    Returns:
        By a name that a file can have, those of the headline tests first.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    tests = [*study.headline, *(t.name for t in study.tests if t.name not in study.headline)]
    panels: dict[str, Panel] = {}
    for rater in study.trained_raters:
        for test in tests:
            curves = _curves(study, rater, test)
            flat = [
                (short_name(arm.name), study.cell(arm.name, test).agreement.mean)
                for arm in study.ready
            ]
            title = f"{short_name(rater)}, {_tested_on(test)}"
            # More bands than this hide each other.
            banded = [c for c in curves if len(curves) <= 3 or c.variant == study.reference]
            whose = "its" if len(banded) == len(curves) else f"{short_name(study.reference)}’s"
            caption = (
                f"Line: mean over seeds, at as many pairs of every variant. Band: {whose} 95 % "
                "interval, by test prompt. Dots: single seeds. Open mark: all pairs of the variant."
            )
            names = [short_name(curve.variant) for curve in curves] + [name for name, _ in flat]
            draw = functools.partial(_draw, curves=curves, banded=banded, flat=flat, names=names)
            drawn = drawing(title, draw, HEIGHT + legend_height(names))
            panels[_file_name(rater, test, panels)] = Panel(title, caption, drawn)
    return panels


def _tested_on(test: str) -> str:
    if test == TRUTH:
        return "random pairs by true quality"
    return f"test pairs of {short_name(test)}"


def _file_name(rater: str, test: str, taken: Mapping[str, Any]) -> str:
    name = f"{rater}_{test}"
    readable = re.sub(r"[^-\w]+", "-", name, flags=re.ASCII)[:80]
    # Some file systems take a and A for one.
    is_taken = readable.lower() in {other.lower() for other in taken}
    return f"{readable}-{digest(rater, test)[:8]}" if is_taken or readable != name else readable


def _curves(study: AblationStudy, rater: str, test: str) -> list[_Curve]:
    found: dict[str, _Curve] = {}
    for arm in sorted(study.trained(rater), key=lambda arm: arm.pairs_used or 0):
        cell, used = study.cell(arm.name, test), arm.pairs_used or 0
        curve = found.setdefault(str(arm.variant), _Curve(str(arm.variant), [], None))
        if arm.equal:
            curve.equal.append((used, cell.agreement, cell.seeds))
        if arm.natural:
            natural = (used, cell.agreement)
            found[str(arm.variant)] = _Curve(curve.variant, curve.equal, natural)
    order = list(dict.fromkeys(str(arm.variant) for arm in study.trained(rater)))
    return [found[variant] for variant in order]


def _draw(
    axes: Any,
    curves: Sequence[_Curve],
    banded: Sequence[_Curve],
    flat: Sequence[tuple[str, float]],
    names: Sequence[str],
) -> None:
    axes.axhline(0.5, color=FAINT, linewidth=1.2, zorder=0.6)
    handles: list[Any] = []
    for place, curve in enumerate(curves):
        color, marker = SERIES[place % len(SERIES)], MARKERS[place // len(SERIES) % 5]
        x = [used for used, *_ in curve.equal]
        mean = [interval.mean for _, interval, _ in curve.equal]
        if curve in banded:
            _, low, high = bounds([interval for _, interval, _ in curve.equal])
            axes.fill_between(x, low, high, color=color, alpha=0.09, linewidth=0)
        seeds = [(used, value) for used, _, values in curve.equal for value in values]
        if seeds:
            axes.scatter(*zip(*seeds, strict=True), s=7, color=color, alpha=0.45, linewidth=0)
        handles += axes.plot(x, mean, marker=marker, color=color, markersize=4, linewidth=1.5)
        if curve.natural is not None:
            used, interval = curve.natural
            axes.plot(
                [*x[-1:], used], [*mean[-1:], interval.mean], color=color, linewidth=0.9,
                linestyle=":",
            )  # fmt: skip
            axes.plot(
                [used], [interval.mean], marker=marker, color=color, markersize=6,
                markerfacecolor="none", linewidth=0,
            )  # fmt: skip
    handles += level_lines(axes, [value for _, value in flat])
    sizes = [used for curve in curves for used, *_ in curve.equal]
    sizes += [curve.natural[0] for curve in curves if curve.natural is not None]
    scale_sizes(axes, sizes, _short_count)
    axes.grid(axis="y")
    axes.set_xlabel("training pairs")
    axes.set_ylabel("agreement")
    legend(axes, handles, names)


def _short_count(value: float) -> str:
    """A count short enough for an axis: 631, 6.3k, 18k, 1.0M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.{1 if value < 10 * size else 0}f}{letter}"
    return f"{value:.0f}"


def _lead(study: AblationStudy) -> str:
    """The reference first: the best of several variants is the best in part by luck."""
    rater, test = study.trained_raters[0], study.headline[0]
    rows = study.matrix(rater, natural=False)
    arm = next(arm for arm, _ in rows if arm.variant == study.reference)
    cell = study.cell(arm.name, test)
    where = (
        "the better of two random stories"
        if test == TRUTH
        else f"the chosen story in the test pairs of {clean_name(test)}"
    )
    text = (
        f"Trained on {arm.pairs_used:,} pairs of {clean_name(study.reference)}, "
        f"{clean_name(rater)} finds {where} in {cell.agreement.mean:.1%}"
    )
    if math.isfinite(cell.agreement.low):
        text += f" (95 % interval {cell.agreement.low:.1%} to {cell.agreement.high:.1%})"
    text += f" and prefers the longer story in {cell.prefers_longer.mean:.1%}."
    others = [
        contrast
        for contrast in study.contrasts
        if (contrast.rater, contrast.test, contrast.natural) == (rater, test, False)
    ]
    if not others:
        return text
    clear = [contrast for contrast in others if contrast.comparison.is_clear]
    if not clear:
        return f"{text} No other variant with as many pairs differs from it beyond noise."
    found = ", ".join(
        f"{clean_name(one.variant)} ({one.comparison.difference.mean:+.1%})"
        for one in sorted(clear, key=lambda one: one.comparison.difference.mean)
    )
    return (
        f"{text} With as many pairs {len(clear)} of {len(others)} other variants differ from it "
        f"beyond noise: {found}."
    )


@dataclass(frozen=True)
class _Matrix:
    """A table of the page: a rater's rows at one size."""

    rater: str
    natural: bool
    rows: list[tuple[AblationArm, list[Cell]]]


def render_ablation(
    *,
    title: str,
    study: AblationStudy,
    panels: Mapping[str, Panel],
    label_sources: Sequence[str],
    variants: Mapping[str, Mapping[str, Any]],
    training_pairs: Mapping[str, int],
    funnels: Mapping[str, Sequence[Mapping[str, Any]]],
    manifests: Mapping[str, str],
) -> str:
    """Render the page.

    Args:
        title: heading of the page.
        study: its figures.
        panels: from `draw_curves`.
        label_sources: of the test pairs.
        variants: keys of each variant that differ, by its name.
        training_pairs: how many there are, by variant.
        funnels: steps by variant; empty for a ready pairs file.
        manifests: name and text of what made the page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    matrices = [
        _Matrix(rater, natural, rows)
        for rater in study.trained_raters
        for natural in (False, True)
        if (rows := study.matrix(rater, natural=natural))
    ]
    return render(
        "ablation_page.html",
        title=title,
        label_sources=label_sources,
        lead=_lead(study),
        study=study,
        has_truth=TRUTH in study.headline,
        panels=[panel.figure for panel in panels.values()],
        matrices=matrices,
        variants={
            name: ", ".join(f"{key}: {value}" for key, value in keys.items()) or "the shared rules"
            for name, keys in variants.items()
        },
        training_pairs=training_pairs,
        funnels={
            name: (list(steps), most_per_unit(steps)) for name, steps in funnels.items() if steps
        },
        manifests=manifests,
    )
