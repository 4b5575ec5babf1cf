"""ablation.html: the same rater trained on several data variants (see document.py)."""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from litbench.metrics.ablation import TRUTH, AblationArm, AblationStudy, Cell
from litbench.metrics.intervals import Interval
from litbench.report.document import Figure, most_per_unit, render, short_name
from litbench.report.figures import (
    _FAINT,
    _SERIES,
    _legend,
    _legend_height,
    _level_lines,
    _scale_sizes,
)
from litbench.report.study_figures import _drawing
from litbench.text import clean_name, digest

_WIDTH, _HEIGHT = 4.4, 2.7
_MARKERS = "osD^v"


@dataclass(frozen=True)
class Panel:
    """A plot as the page shows it, and as pixels."""

    figure: Figure
    png: bytes


@dataclass(frozen=True)
class _Curve:
    """A variant's line: sizes and agreement at equal sizes, then at all of its pairs."""

    name: str
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
            caption = (
                "Line: mean over seeds, at as many pairs of every variant. Band: its 95 % "
                "interval, by test prompt. Dots: single seeds. Open mark: all pairs of the variant."
            )
            names = [curve.name for curve in curves] + [name for name, _ in flat]
            size = (_WIDTH, _HEIGHT + _legend_height(names))
            draw = functools.partial(_draw, curves=curves, flat=flat, names=names)
            drawing = _drawing(title, caption, draw, size)
            name = _file_name(f"{rater}_{test}", panels)
            panels[name] = Panel(Figure(title, caption, drawing.svg), drawing.png)
    return panels


def _tested_on(test: str) -> str:
    if test == TRUTH:
        return "random pairs by true quality"
    return f"test pairs of {short_name(test)}"


def _file_name(name: str, taken: Mapping[str, Any]) -> str:
    readable = re.sub(r"[^-\w]+", "-", name, flags=re.ASCII)[:80]
    return readable if readable == name and name not in taken else f"{readable}-{digest(name)[:8]}"


def _curves(study: AblationStudy, rater: str, test: str) -> list[_Curve]:
    found: dict[str, _Curve] = {}
    for arm in sorted(study.trained(rater), key=lambda arm: arm.pairs_used or 0):
        cell, used = study.cell(arm.name, test), arm.pairs_used or 0
        curve = found.setdefault(str(arm.variant), _Curve(short_name(str(arm.variant)), [], None))
        if arm.equal:
            curve.equal.append((used, cell.agreement, cell.seeds))
        if arm.natural:
            natural = (used, cell.agreement)
            found[str(arm.variant)] = _Curve(curve.name, curve.equal, natural)
    order = list(dict.fromkeys(str(arm.variant) for arm in study.trained(rater)))
    return [found[variant] for variant in order]


def _draw(
    axes: Any,
    curves: Sequence[_Curve],
    flat: Sequence[tuple[str, float]],
    names: Sequence[str],
) -> None:
    axes.axhline(0.5, color=_FAINT, linewidth=1.2, zorder=0.6)
    handles: list[Any] = []
    for place, curve in enumerate(curves):
        color, marker = _SERIES[place % len(_SERIES)], _MARKERS[place // len(_SERIES) % 5]
        x = [used for used, *_ in curve.equal]
        mean = [interval.mean for _, interval, _ in curve.equal]
        low, high = (
            np.array([getattr(interval, end) for _, interval, _ in curve.equal], dtype=float)
            for end in ("low", "high")
        )
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
    handles += _level_lines(axes, [value for _, value in flat])
    sizes = [used for curve in curves for used, *_ in curve.equal]
    sizes += [curve.natural[0] for curve in curves if curve.natural is not None]
    _scale_sizes(axes, sizes, lambda value: f"{value:,.0f}")
    axes.grid(axis="y")
    axes.set_xlabel("training pairs")
    axes.set_ylabel("agreement")
    _legend(axes, handles, names)


def _lead(study: AblationStudy) -> str:
    rater, test = study.trained_raters[0], study.headline[0]
    rows = study.matrix(rater, natural=False) or study.matrix(rater, natural=True)
    best = max((arm for arm, _ in rows), key=lambda arm: study.cell(arm.name, test).agreement.mean)
    cell = study.cell(best.name, test)
    where = (
        "the better of two random stories"
        if test == TRUTH
        else f"the chosen story in the test pairs of {clean_name(test)}"
    )
    text = (
        f"{clean_name(rater)} finds {where} most often when trained on "
        f"{clean_name(str(best.variant))}, {best.pairs_used:,} pairs: {cell.agreement.mean:.1%}"
    )
    if math.isfinite(cell.agreement.low):
        text += f" (95 % interval {cell.agreement.low:.1%} to {cell.agreement.high:.1%})"
    return text + f". It then prefers the longer story in {cell.prefers_longer.mean:.1%}."


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
    panels: Sequence[Figure],
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
        panels: its plots, from `draw_curves`.
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
        written=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
        label_sources=label_sources,
        lead=_lead(study),
        study=study,
        has_truth=TRUTH in study.headline,
        panels=panels,
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
