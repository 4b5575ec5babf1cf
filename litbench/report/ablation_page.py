"""ablation.html: raters trained on several data variants and amounts of pairs (see document.py)."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from litbench.metrics.ablation import (
    AblationStudy,
    Arm,
    by_family,
    write_size,
)
from litbench.report import figures
from litbench.report.document import Figure, most_per_unit, render, short_name
from litbench.report.figures import Line
from litbench.text import clean_name, digest

# More bands than this hide each other; then only the reference has one.
_MOST_BANDS = 3


def draw_panels(study: AblationStudy) -> dict[str, Figure]:
    """Draw agreement by amount of pairs on every test set, and by model size on the headline's.

    With several variants each trained rater has a plot per test set, whose lines are the variants
    (paper, Figure 6); with one variant the lines are the raters. Where entries have a family and a
    known size, there is a plot by size (paper, Figure 5).

    Returns:
        By a name that a file can have, headline tests first.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    tests = [*study.headline, *(t.name for t in study.tests if t.name not in study.headline)]
    several = len({arm.variant for arm in study.arms if arm.variant is not None}) > 1
    plots: list[tuple[str, dict[str, list[Arm]]]] = []
    for rater in study.trained_raters if several else [""]:
        lines: dict[str, list[Arm]] = {}
        for arm in study.arms:
            if arm.variant is not None and arm.rater in (rater, rater or arm.rater):
                lines.setdefault(arm.variant if several else arm.rater, []).append(arm)
        plots.append((rater, lines))
    panels: dict[str, Figure] = {}
    for rater, lines in plots:
        for test in tests:
            name = _file_name(rater or "pairs", test)
            panels[name] = _by_pairs(study, rater, lines, test, with_last=several)
    families = by_family(study.arms, study.reference)
    if families:
        test = study.headline[0]
        panels[_file_name("parameters", test)] = _by_size(study, families, test)
    return panels


def _by_pairs(
    study: AblationStudy, rater: str, arms: Mapping[str, list[Arm]], test: str, *, with_last: bool
) -> Figure:
    lines = []
    for name, own in arms.items():
        banded = len(arms) <= _MOST_BANDS or name == study.reference or not with_last
        last = None
        for arm in own:
            if with_last and arm.natural:
                last = (float(arm.pairs_used or 0), study.cell(arm.name, test).agreement)
        equal = sorted((arm for arm in own if arm.equal), key=lambda arm: arm.pairs_used or 0)
        points = [_point(study, arm, test, arm.pairs_used) for arm in equal]
        lines.append(Line(short_name(name), points, last, banded))
    whose = "its" if all(line.is_banded for line in lines) else f"{short_name(study.reference)}’s"
    caption = (
        f"Line: mean over seeds. Band: {whose} 95 % interval, by test prompt. Dots: single seeds."
    )
    if with_last:
        caption += " Open mark: all pairs of the variant."
    on = f"test pairs of {short_name(test)}"
    title = f"{short_name(rater)}, {on}" if rater else f"Agreement by training pairs, {on}"
    drawn = figures.scaling(lines, _references(study, test), "training pairs", _short_count)
    return Figure(title, caption, drawn)


def _by_size(study: AblationStudy, families: Mapping[str, list[Arm]], test: str) -> Figure:
    lines = [
        Line(short_name(family), [_point(study, arm, test, arm.parameters) for arm in arms])
        for family, arms in families.items()
    ]
    caption = (
        f"Raters trained here on {study.most_equal:,} pairs of {short_name(study.reference)}; "
        "others as they are. Bars and bands: 95 % intervals, by test prompt."
    )
    drawn = figures.scaling(lines, _references(study, test), "parameters", write_size)
    return Figure("Agreement by model size", caption, drawn)


def _point(
    study: AblationStudy, arm: Arm, test: str, value: int | None
) -> tuple[float, Any, Sequence[float]]:
    cell = study.cell(arm.name, test)
    return float(value or 0), cell.agreement, cell.seeds


def _references(study: AblationStudy, test: str) -> list[tuple[str, float]]:
    return [
        (short_name(arm.name), study.cell(arm.name, test).agreement.mean)
        for arm in study.ready
        if arm.family is None
    ]


def _file_name(rater: str, test: str) -> str:
    name = f"{rater}_{test}"
    readable = re.sub(r"[^-\w]+", "-", name, flags=re.ASCII)[:80]
    return readable if readable == name else f"{readable}-{digest(rater, test)[:8]}"


def _short_count(value: float) -> str:
    """A count short enough for an axis: 631, 6.3k, 18k, 1.0M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.{1 if value < 10 * size else 0}f}{letter}"
    return f"{value:.0f}"


def _summary(study: AblationStudy) -> str:
    """The reference first: the best of several variants is the best in part by luck."""
    rater, test = study.trained_raters[0], study.headline[0]
    _, _, arms = study.matrices()[0]
    arm = next(arm for arm in arms if arm.variant == study.reference)
    cell = study.cell(arm.name, test)
    text = (
        f"Trained on {arm.pairs_used:,} pairs of {clean_name(study.reference)}, "
        f"{clean_name(rater)} agrees with the labels on {cell.agreement.mean:.1%} of the test "
        f"pairs of {clean_name(test)}"
    )
    if math.isfinite(cell.agreement.low):
        text += f" (95 % interval {cell.agreement.low:.1%} to {cell.agreement.high:.1%})"
    text += f" and prefers the longer story in {cell.prefers_longer.mean:.1%}."
    others = [
        one.comparison
        for one in study.contrasts
        if (one.axis, one.test, one.comparison.reference) == ("variant", test, arm.name)
        and one.comparison.rater in [other.name for other in arms]
    ]
    if others:
        significant = sorted(
            (one for one in others if one.is_clear), key=lambda one: one.difference.mean
        )
        found = ", ".join(
            f"{clean_name(one.rater)} ({one.difference.mean:+.1%})" for one in significant
        )
        text += (
            f" With as many pairs {len(significant)} of {len(others)} other variants differ from "
            f"it significantly{': ' if found else ''}{found}."
        )
    return text


def render_ablation(
    *,
    title: str,
    study: AblationStudy,
    panels: Mapping[str, Figure],
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
        panels: from `draw_panels`.
        label_sources: of the test pairs.
        variants: the keys of each variant that differ, by its name.
        training_pairs: how many there are, by variant.
        funnels: steps by variant; empty for a ready pairs file.
        manifests: name and text of what made the page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    return render(
        "ablation_page.html",
        title=title,
        label_sources=label_sources,
        summary=_summary(study),
        study=study,
        panels=list(panels.values()),
        matrices=study.matrices(),
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
