"""The plots of a simulation study."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from litbench.metrics.intervals import Interval
from litbench.metrics.pairing_rules import TRUTH, Amount, Place, Study, Summary
from litbench.report.document import Panel
from litbench.report.figures import FAINT, INK, MARKERS, SERIES, bounds, drawing

_WIDTH = 9.0
_LONGER = "rater prefers the longer"
_PANELS: tuple[tuple[str, Amount, str], ...] = (
    ("agreement", "equal", "agreement, equal n"),
    ("agreement", "natural", "agreement, all pairs"),
    ("prefers_longer", "equal", _LONGER),
    ("right", "equal", "rule is right"),
    ("chosen_longer", "equal", "chosen is longer"),
    ("pairs", "natural", "pairs left"),
)


def _style(place: int, name: str) -> dict[str, Any]:
    if name == TRUTH:
        return {"color": INK, "linestyle": (0, (4, 2)), "marker": ""}
    again = place // len(SERIES)
    return {
        "color": SERIES[place % len(SERIES)],
        "marker": MARKERS[again % 5],
        # Two lines of one colour cross each other.
        "linestyle": (0, (1, 1.2)) if again else "-",
    }


def _legend(figure: Any, handles: Sequence[Any], names: Sequence[str]) -> None:
    # By hand, as matplotlib takes a label that begins with _ for none.
    figure.legend(handles, names, loc="outside upper left", ncols=5, columnspacing=1.2)


def _ends(intervals: Sequence[Interval]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mean, low, high = bounds(intervals)
    return mean, np.where(np.isnan(low), mean, low), np.where(np.isnan(high), mean, high)


def _of(study: Study, places: Sequence[Place], amount: Amount, variant: str) -> list[Summary]:
    return [one for place in places for one in study.at(place, amount) if one.variant == variant]


def _sweep(study: Study, name: str, places: Sequence[Place], label: str) -> Panel:
    names = [*(name for name in study.variants if name != TRUTH), TRUTH]

    def draw(axes: Any) -> None:
        from matplotlib.ticker import LogLocator  # noqa: PLC0415

        figure = axes.figure
        axes.remove()
        x = np.arange(len(places))
        handles: list[Any] = []
        for own, (measure, amount, title) in zip(
            figure.subplots(2, 3, sharex=True).ravel(), _PANELS, strict=True
        ):
            for number, variant in enumerate(names):
                if variant == TRUTH and measure in ("right", "pairs"):
                    continue
                of = _of(study, places, amount, variant)
                mean, low, high = _ends([one.figures[measure] for one in of])
                style = _style(number, variant)
                own.fill_between(x, low, high, color=style["color"], alpha=0.1, linewidth=0)
                drawn = own.plot(x, mean, linewidth=1.3, markersize=3.5, **style)
                if measure == "agreement" and amount == "equal":
                    handles += drawn
            if measure == "prefers_longer":
                truth = _of(study, places, amount, names[0])
                mean, *_ = _ends([one.random_longer for one in truth])
                level = own.plot(x, mean, color=INK, linewidth=0.9, linestyle=":")
            if measure == "pairs":
                own.set_yscale("log")
                own.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
                own.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
                own.yaxis.set_minor_formatter(lambda *_: "")
            own.set_xticks(x, [place.at for place in places])
            own.set_title(title, fontsize=9, loc="left")
            own.grid(axis="y")
        for own in figure.axes[3:]:
            own.set_xlabel(label)
        said = [name.replace("_", " ") for name in names]
        _legend(figure, handles + level, [*said, "better is longer"])

    caption = (
        "Lines: means over seeds; bands: 95 % intervals over them. Agreement is with true quality "
        "on random pairs; truth is a rater trained on true labels; dotted: how often the better "
        "of two random stories is the longer."
    )
    title = name.replace("_", " ")
    return Panel(title, caption, drawing(title, draw, 5.4, _WIDTH))


def _worlds(study: Study, places: Sequence[Place], amounts: Sequence[Amount]) -> Panel:
    names = study.variants
    size: dict[Amount, str] = {"equal": "equal n", "natural": "all pairs"}
    shown = [("agreement", amount, f"agreement, {size[amount]}") for amount in amounts]
    shown.append(("prefers_longer", amounts[-1], f"{_LONGER}, {size[amounts[-1]]}"))

    def draw(axes: Any) -> None:
        figure = axes.figure
        axes.remove()
        sides = figure.subplots(1, len(shown), sharey=True)
        handles: list[Any] = []
        for own, (measure, amount, title) in zip(sides, shown, strict=True):
            own.hlines(np.arange(1, len(places)) - 0.5, 0, 1, color=FAINT, linewidth=0.4)
            for number, variant in enumerate(names):
                of = _of(study, places, amount, variant)
                mean, low, high = _ends([one.figures[measure] for one in of])
                at = np.arange(len(places)) - 0.36 + 0.72 * (number + 0.5) / len(names)
                style = {**_style(number, variant), "linestyle": "none"}
                style["marker"] = style["marker"] or "|"
                own.hlines(at, low, high, color=style["color"], alpha=0.45, linewidth=2)
                drawn = own.plot(mean, at, markersize=4, **style)
                if own is sides[0]:
                    handles += drawn
            ends = _ends(
                [one.figures[measure] for place in places for one in study.at(place, amount)]
            )
            if np.isfinite(ends[0]).any():
                low, high = np.nanmin(ends[1]), np.nanmax(ends[2])
                margin = 0.05 * (high - low) or 0.05
                own.set_xlim(low - margin, high + margin)
            own.set_title(title, fontsize=9, loc="left")
            own.tick_params(axis="y", length=0)
            own.grid(axis="x")
        sides[0].set_yticks(range(len(places)), [place.group.replace("_", " ") for place in places])
        sides[0].set_ylim(len(places) - 0.5, -0.5)
        _legend(figure, handles, [name.replace("_", " ") for name in names])

    caption = (
        "Marks: means over seeds; bars: 95 % intervals over them. Agreement is with true quality "
        "on random pairs; truth is a rater trained on true labels."
    )
    height = 1.3 + (0.2 + 0.09 * len(names)) * len(places)
    return Panel("worlds", caption, drawing("worlds", draw, height, _WIDTH))


def draw_study(
    study: Study, labels: Mapping[str, str], amounts: Sequence[Amount] = ("equal",)
) -> dict[str, Panel]:
    """The plots by name: one of each sweep, and `worlds` where worlds stand alone.

    Args:
        study: the figures.
        labels: the axis of each sweep.
        amounts: whose agreement is shown of the worlds that stand alone; beside it, how often the
            rater prefers the longer story at the last of them.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    panels = {
        name: _sweep(study, name, places, labels[name]) for name, places in study.sweeps.items()
    }
    alone = [place for place in study.places if place.value is None]
    if alone:
        panels["worlds"] = _worlds(study, alone, amounts)
    return panels
