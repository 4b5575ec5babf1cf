"""The plots of a simulation study, as SVG for the page and as PNG."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from litbench.metrics.intervals import Interval
from litbench.metrics.pairing_rules import TRUTH, Amount, Place, Study, Summary
from litbench.report.figures import (
    _FAINT,
    _INK,
    _SERIES,
    _VARIABLES,
    _draw,
    light_colors,
    standalone,
)

_DOTS_PER_INCH = 200
_PANELS: tuple[tuple[str, Amount, str], ...] = (
    ("agreement", "equal", "agreement, equal n"),
    ("agreement", "natural", "agreement, all pairs"),
    ("prefers_longer", "equal", "rater prefers the longer"),
    ("right", "equal", "rule is right"),
    ("chosen_longer", "equal", "chosen is longer"),
    ("pairs", "natural", "pairs left"),
)


@dataclass(frozen=True)
class Drawing:
    """A plot in both forms.

    Attributes:
        title: heading.
        caption: what to look for.
        svg: with the page's variables for colours.
        png: in the page's light colours.
    """

    title: str
    caption: str
    svg: str
    png: bytes

    def write_svg(self, path: Path) -> None:
        """Write it as a file of its own."""
        path.write_text(standalone(self.svg), encoding="utf-8")

    def write_png(self, path: Path) -> None:
        """Write it as pixels."""
        path.write_bytes(self.png)


def _in_light(figure: Any) -> None:
    """Give every placeholder colour of a drawn figure its colour of the light theme."""
    from matplotlib.colors import to_hex, to_rgb, to_rgba_array  # noqa: PLC0415

    light = light_colors()
    colors = {color: light[name[len("var(--") : -1]] for color, name in _VARIABLES.items()}
    for artist in figure.findobj():
        for key in ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor"):
            get, put = getattr(artist, f"get_{key}", None), getattr(artist, f"set_{key}", None)
            if get is None or put is None:
                continue
            given = get()
            if isinstance(given, str) and given in ("auto", "none"):
                continue
            found = to_rgba_array(given)
            known = [colors.get(to_hex(row[:3])) for row in found]
            if not any(known):
                continue
            for row, color in zip(found, known, strict=True):
                if color is not None:
                    row[:3] = to_rgb(color)
            put(found if np.ndim(given) == 2 else found[0])


def _drawing(
    title: str, caption: str, draw: Callable[[Any], None], size: tuple[float, float]
) -> Drawing:
    """Draw once, for both forms."""
    drawn = []

    def keep(axes: Any) -> None:
        drawn.append(axes.figure)
        axes.figure.set_size_inches(*size)
        draw(axes)

    svg = _draw(title, keep, size[1])
    _in_light(drawn[0])
    buffer = io.BytesIO()
    # Without the version of the library in it, the same figures give the same bytes.
    drawn[0].savefig(
        buffer, format="png", dpi=_DOTS_PER_INCH, facecolor="white", metadata={"Software": None}
    )
    return Drawing(title, caption, svg, buffer.getvalue())


def _style(place: int, name: str) -> dict[str, Any]:
    if name == TRUTH:
        return {"color": _INK, "linestyle": (0, (4, 2)), "marker": ""}
    again = place // len(_SERIES)
    return {
        "color": _SERIES[place % len(_SERIES)],
        "marker": "osD^v"[again % 5],
        # Two lines of one colour cross each other.
        "linestyle": (0, (1, 1.2)) if again else "-",
    }


def _legend(figure: Any, handles: Sequence[Any], names: Sequence[str]) -> None:
    # By hand, as matplotlib takes a label that begins with _ for none.
    figure.legend(handles, names, loc="outside upper left", ncols=5, columnspacing=1.2)


def _ends(intervals: Sequence[Interval]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mean, low, high = (
        np.array([getattr(one, end) for one in intervals]) for end in ("mean", "low", "high")
    )
    return mean, np.where(np.isnan(low), mean, low), np.where(np.isnan(high), mean, high)


def _of(study: Study, places: Sequence[Place], amount: Amount, variant: str) -> list[Summary]:
    return [one for place in places for one in study.at(place, amount) if one.variant == variant]


def _sweep(study: Study, name: str, places: Sequence[Place], label: str) -> Drawing:
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
                level = own.plot(x, mean, color=_INK, linewidth=0.9, linestyle=":")
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
    return _drawing(name.replace("_", " "), caption, draw, (9.0, 5.4))


def _worlds(study: Study, places: Sequence[Place]) -> Drawing:
    names = study.variants

    def draw(axes: Any) -> None:
        figure = axes.figure
        axes.remove()
        sides = figure.subplots(1, 2, sharey=True)
        handles: list[Any] = []
        titles = ("agreement, equal n", "rater prefers the longer, equal n")
        for own, measure, title in zip(sides, ("agreement", "prefers_longer"), titles, strict=True):
            own.hlines(np.arange(1, len(places)) - 0.5, 0, 1, color=_FAINT, linewidth=0.4)
            for number, variant in enumerate(names):
                of = _of(study, places, "equal", variant)
                mean, low, high = _ends([one.figures[measure] for one in of])
                at = np.arange(len(places)) - 0.36 + 0.72 * (number + 0.5) / len(names)
                style = {**_style(number, variant), "linestyle": "none"}
                style["marker"] = style["marker"] or "|"
                own.hlines(at, low, high, color=style["color"], alpha=0.45, linewidth=2)
                drawn = own.plot(mean, at, markersize=4, **style)
                if measure == "agreement":
                    handles += drawn
            ends = _ends(
                [one.figures[measure] for place in places for one in study.at(place, "equal")]
            )
            margin = 0.05 * (ends[2].max() - ends[1].min())
            own.set_xlim(ends[1].min() - margin, ends[2].max() + margin)
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
    return _drawing("worlds", caption, draw, (9.0, height))


def draw_study(study: Study, labels: Mapping[str, str]) -> dict[str, Drawing]:
    """The plots by name: one of each sweep, and `worlds` where worlds stand alone.

    Args:
        study: the figures.
        labels: the axis of each sweep.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    drawings = {
        name: _sweep(study, name, places, labels[name]) for name, places in study.sweeps.items()
    }
    alone = [place for place in study.places if place.value is None]
    if alone:
        drawings["worlds"] = _worlds(study, alone)
    return drawings
