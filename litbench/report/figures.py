"""Plots, as SVG that follows the page's theme, and as PNG in its light colours.

matplotlib draws with placeholder colours, which are then replaced by CSS variables: one picture
serves light and dark. Text stays text, so that it can be read, searched and scaled.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from litbench.errors import MissingExtraError
from litbench.metrics.calibration import Calibration
from litbench.metrics.intervals import Interval

# Placeholders: colours that nothing else has, each to become a variable of the page.
INK, FAINT = "#010101", "#020202"
SERIES = ("#030301", "#030302", "#030303", "#030304", "#030305", "#030306")
# One for each round of the colours.
MARKERS = "osD^v"
_VARIABLES = {
    INK: "var(--ink)",
    FAINT: "var(--line)",
    **{color: f"var(--series-{place})" for place, color in enumerate(SERIES, 1)},
}
WIDTH, HEIGHT = 4.4, 2.7
_DOTS_PER_INCH = 200
_STYLE = {
    "svg.fonttype": "none",
    # A rater may be called "$x$".
    "text.parse_math": False,
    "font.size": 9,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@dataclass(frozen=True)
class Drawing:
    """A plot that a page shows and a paper takes.

    Attributes:
        svg: for the page, whose variables are its colours.
        figure: what matplotlib drew.
    """

    svg: str
    figure: Any

    def files(self, name: str) -> dict[str, Callable[[Path], object]]:
        """What writes the plot, by the names of its two files: NAME.svg and NAME.png."""
        return {f"{name}.svg": self.write_svg, f"{name}.png": self.write_png}

    def write_svg(self, path: Path) -> None:
        """Write it as a file of its own, see `standalone`."""
        path.write_text(standalone(self.svg), encoding="utf-8")

    def write_png(self, path: Path) -> None:
        """Write it as pixels in the page's light colours; the same plot gives the same bytes."""
        import matplotlib as mpl  # noqa: PLC0415

        with mpl.rc_context(_STYLE):
            _in_light(self.figure)
            # Without the version of the library in it.
            self.figure.savefig(
                path, format="png", dpi=_DOTS_PER_INCH, facecolor="white",
                metadata={"Software": None},
            )  # fmt: skip


def drawing(
    name: str, draw: Callable[[Any], None], height: float = HEIGHT, width: float = WIDTH
) -> Drawing:
    """Run `draw(axes)` on a fresh figure; every plot of every page is drawn here.

    Args:
        name: two plots of a page have two names.
        draw: takes the axes; it may remove them and divide `axes.figure` itself.
        height: in inches.
        width: in inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report") from error
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = in_styles(svg, _themed)
    # Width and height come from the page; the view box keeps the proportions.
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", svg, count=1)
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"', r'<svg \1role="img"', svg, count=1)
    return Drawing(re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL), figure)


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


def in_styles(svg: str, change: Callable[[str], str]) -> str:
    """A picture with every style attribute changed.

    Names stand in pictures as text, and one of them may read like a style.

    Args:
        svg: as matplotlib writes it.
        change: takes and gives what stands between the quotation marks.
    """
    # Text holds no "<", and tags of matplotlib no ">" but their last.
    return re.sub(
        r'<[^>]*? style="[^>]*>',
        lambda tag: re.sub(r'(?<= style=")[^"]*', lambda style: change(style[0]), tag[0]),
        svg,
    )


def _themed(style: str) -> str:
    for color, variable in _VARIABLES.items():
        style = style.replace(color, variable)
    return re.sub(r"font: ([\d.]+px) [^;]*", r"font-size: \1; font-family: inherit", style)


def light_colors() -> dict[str, str]:
    """The colours of the light theme, by the name of their CSS variable."""
    style = resources.files("litbench.report").joinpath("style.css").read_text(encoding="utf-8")
    # The first block of the style sheet holds the light theme.
    return dict(re.findall(r"--([\w-]+):\s*(#\w+)", style[: style.index("}")]))


def standalone(svg: str) -> str:
    """A plot of a page as a file of its own: the page's light colours and a font by name."""
    colors = light_colors()

    def light(style: str) -> str:
        style = re.sub(r"var\(--([\w-]+)\)", lambda match: colors[match[1]], style)
        return re.sub(r"font-family: [^;]*", "font-family: Helvetica, Arial, sans-serif", style)

    return f'<?xml version="1.0" encoding="utf-8"?>\n{in_styles(svg, light)}'


def bounds(intervals: Sequence[Interval]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means, lower and upper ends of intervals; float64, shape (n,) each, NaN where not told."""
    mean, low, high = (
        np.array([getattr(one, end) for one in intervals], dtype=float)
        for end in ("mean", "low", "high")
    )
    return mean, low, high


def distribution(
    chosen: np.ndarray, rejected: np.ndarray, label: str, *, log: bool = False
) -> Drawing:
    """Histogram of one quantity for chosen and rejected stories (paper, Figure 3).

    Args:
        chosen: one number per chosen story; shape (n,).
        rejected: one number per rejected story; shape (m,).
        label: the quantity with its unit.
        log: whether its axis is logarithmic, where all values are positive.
    """

    def draw(axes: Any) -> None:
        from matplotlib.ticker import LogLocator  # noqa: PLC0415

        both = np.concatenate([chosen, rejected]).astype(float)
        low, high = both.min(), max(both.max(), both.min() + 1)
        edges = (
            np.geomspace(max(low, 1), high, 31) if log and low > 0 else np.linspace(low, high, 31)
        )
        axes.hist(chosen, edges, histtype="stepfilled", color=SERIES[0], alpha=0.45, label="chosen")
        axes.hist(
            rejected, edges, histtype="step", color=SERIES[1], linewidth=1.4, label="rejected"
        )
        if log and low > 0:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.xaxis.set_minor_formatter(lambda *_: "")
        axes.set_xlabel(label)
        axes.set_ylabel("stories")
        axes.legend()

    return drawing(f"distribution {label}", draw)


def _lines_with_intervals(
    name: str,
    lines: Sequence[tuple[str, np.ndarray, Sequence[Interval]]],
    finish: Callable[[Any], object],
) -> Drawing:
    """A line for each of the first six raters, with its intervals; `finish` sets the axes."""
    names = [rater for rater, *_ in lines[: len(SERIES)]]

    def draw(axes: Any) -> None:
        handles = []
        for color, (_, x, intervals) in zip(SERIES, lines, strict=False):
            mean, low, high = bounds(intervals)
            spread = np.nan_to_num(np.abs(np.vstack([mean - low, high - mean])))
            handles.append(
                axes.errorbar(
                    x, mean, spread, fmt="o-", color=color, markersize=3.5, linewidth=1.1,
                    elinewidth=0.8,
                )
            )  # fmt: skip
        finish(axes)
        axes.set_ylabel("agreement")
        legend(axes, handles, names)

    return drawing(name, draw, 2.7 + legend_height(names))


def by_length_gap(raters: Sequence[tuple[str, list[tuple[float, float, Interval]]]]) -> Drawing:
    """Agreement by length gap, a line per rater with its intervals; the first six raters."""
    shown = raters[: len(SERIES)]
    ranges = sorted({(low, high) for _, rows in shown for low, high, _ in rows})
    lines = []
    for place, (name, rows) in enumerate(shown):
        x = np.array([ranges.index((low, high)) for low, high, _ in rows], dtype=float)
        x += (place - (len(shown) - 1) / 2) * 0.09
        lines.append((name, x, [interval for *_, interval in rows]))

    def finish(axes: Any) -> None:
        axes.axhline(0.5, color=INK, linewidth=0.7, linestyle=":")
        labels = [
            f"{low:.0f}+" if np.isinf(high) else f"{low:.0f}-{high - 1:.0f}" for low, high in ranges
        ]
        axes.set_xticks(range(len(ranges)), labels)
        axes.set(ylim=(0, 1.02), xlabel="difference in length, words")

    return _lines_with_intervals("gap", lines, finish)


def reliability(raters: Sequence[tuple[str, Calibration]]) -> Drawing:
    """Reliability curve: agreement against confidence, with intervals; the first six raters."""
    lines = [
        (
            name,
            np.array([confidence for confidence, _ in found.bins]),
            [one for _, one in found.bins],
        )
        for name, found in raters
    ]

    def finish(axes: Any) -> None:
        axes.plot([0.5, 1], [0.5, 1], color=INK, linewidth=0.7, linestyle=":")
        axes.set(xlim=(0.49, 1.01), ylim=(0.2, 1.02), xlabel="confidence, max(p, 1 - p)")

    return _lines_with_intervals("reliability", lines, finish)


def coefficients(
    rows: Sequence[tuple[str, float, float, float]],
    label: str = "coefficient, log-odds per standard deviation",
) -> Drawing:
    """Coefficients, largest first.

    Args:
        rows: name, mean, least and most, over models or of an interval.
        label: the quantity with its unit.
    """

    def draw(axes: Any) -> None:
        place = np.arange(len(rows))[::-1]
        mean = np.array([row[1] for row in rows])
        spread = np.vstack([mean - [row[2] for row in rows], [row[3] for row in rows] - mean])
        colors = [SERIES[0] if value > 0 else SERIES[1] for value in mean]
        axes.barh(place, mean, color=colors, height=0.66, alpha=0.8)
        axes.errorbar(mean, place, xerr=np.abs(spread), fmt="none", ecolor=INK, elinewidth=0.8)
        axes.set_yticks(place, [row[0].replace("_", " ") for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_xlabel(label)

    return drawing("coefficients", draw, 0.9 + 0.27 * len(rows))


def length_buckets(
    before: np.ndarray | None, after: np.ndarray, widest: int, shown: int | None = None
) -> Drawing:
    """The mirrored histogram of length differences in its own buckets (paper, Figure 2).

    Args:
        before: pairs per bucket before pruning; shape (buckets,); None where unknown.
        after: the same for the pairs that stayed.
        widest: the difference in words at which the outermost buckets end.
        shown: buckets drawn on each side of zero; all when not given.
    """

    def draw(axes: Any) -> None:
        half = len(after) // 2
        inner = slice(half - (shown or half), half + (shown or half))
        edges = np.linspace(-widest, widest, 2 * half + 1)[inner.start : inner.stop + 1]
        if before is not None:
            axes.stairs(before[inner], edges, fill=True, color=SERIES[1], alpha=0.55,
                        label="before")  # fmt: skip
        label = None if before is None else "after"
        axes.stairs(after[inner], edges, fill=True, color=SERIES[0], alpha=0.85, label=label)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_xlabel("words of chosen minus words of rejected")
        axes.set_ylabel("pairs")
        if before is not None:
            axes.legend()

    return drawing("length buckets", draw)


def timeline(chosen: np.ndarray, rejected: np.ndarray, edges: np.ndarray) -> Drawing:
    """When stories were posted, counted in steps of the calendar (paper, Figure 3).

    Args:
        chosen: chosen stories per step; shape (k,).
        rejected: rejected stories per step; shape (k,).
        edges: the steps' beginnings and the last one's end, in years; shape (k + 1,).
    """

    def draw(axes: Any) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: PLC0415

        axes.stairs(chosen, edges, fill=True, color=SERIES[0], alpha=0.45, label="chosen")
        axes.stairs(rejected, edges, color=SERIES[1], linewidth=1.4, label="rejected")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        axes.set_xlabel("year of posting")
        axes.set_ylabel("stories")
        # Any month can be the highest: the legend has a strip of its own.
        axes.set_ylim(0, 1.2 * max(chosen.max(), rejected.max()))
        axes.legend(loc="upper right", ncols=2)

    return drawing("timeline", draw)


def scale_sizes(axes: Any, values: Sequence[float], tick: Callable[[float], str]) -> None:
    """Make the x axis logarithmic, with a tick at each value where there is room."""
    from matplotlib.ticker import NullLocator  # noqa: PLC0415

    places = sorted(set(values))
    axes.set_xscale("log")
    left, right = np.log(places[0]), np.log(places[-1])
    margin = 0.06 * (right - left) or 0.7
    axes.set_xlim(np.exp(left - margin), np.exp(right + margin))
    ticks: list[float] = []
    for at in places:
        if not ticks or np.log(at / ticks[-1]) >= 0.11 * (right - left):
            ticks.append(at)
    axes.set_xticks(ticks, [tick(at) for at in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def _legend_columns(names: Sequence[str], line: float) -> int:
    # The letters of a row, each name with its line and the space around it.
    return max(1, min(3, len(names), 62 // (max(map(len, names)) + round(3.5 + 2 * line))))


def legend_height(names: Sequence[str], line: float = 2.4) -> float:
    """Height of a legend above a plot, in inches; see `legend`."""
    return 0.17 * -(-len(names) // _legend_columns(names, line))


def legend(axes: Any, handles: Sequence[Any], names: Sequence[str], line: float = 2.4) -> None:
    """Put a legend above the plot, in as many columns as the names leave room for.

    Args:
        axes: of the plot.
        handles: lines and marks.
        names: of each; by hand, as matplotlib takes a label that begins with _ for none.
        line: how long a line is drawn, in letters.
    """
    axes.figure.legend(
        handles, names, loc="outside upper left", ncols=_legend_columns(names, line),
        columnspacing=1.2, handlelength=line,
    )  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A line of `scaling`.

    Attributes:
        name: in the legend; lines of one name share their colour.
        points: by what grows: its value, the quantity with its interval (drawn as a band), that of
            each seed (drawn as dots).
        last: a point that is reached by a dotted line and drawn as an open mark.
        is_banded: whether the intervals are drawn.
        labels: written beside the points.
        published: further points, as hollow marks.
    """

    name: str
    points: Sequence[tuple[float, Interval, Sequence[float]]]
    last: tuple[float, Interval] | None = None
    is_banded: bool = True
    labels: Sequence[str] = ()
    published: Sequence[tuple[float, float]] = ()


def scaling(
    lines: Sequence[Line],
    references: Sequence[tuple[str, float]],
    label: str,
    tick: Callable[[float], str],
    y_label: str = "agreement",
    level: float = 0.5,
    mark: str = "published",
) -> Drawing:
    """A quantity, such as agreement, against another one that grows, on a logarithmic scale.

    The paper's Figures 5 and 6.

    Args:
        lines: each with at least one point.
        references: name and agreement of raters without a value on the axis; horizontal lines.
        label: what grows, with its unit.
        tick: writes a value of it.
        y_label: the other quantity.
        level: what chance gives; a line.
        mark: says what hollow marks are.
    """

    def draw(axes: Any) -> None:
        axes.axhline(level, color=FAINT, linewidth=1.2, zorder=0.6)
        handles: dict[str, Any] = {}
        for line in lines:
            index = names.index(line.name)
            color, marker = SERIES[index % 6], MARKERS[index // 6 % 5]
            x = np.array([at for at, *_ in line.points], dtype=float)
            mean, low, high = bounds([interval for _, interval, _ in line.points])
            if line.is_banded and len(line.points) > 1:
                # Bands of many lines cover each other.
                alpha = 0.16 if len(lines) < 4 else 0.09
                axes.fill_between(x, low, high, color=color, alpha=alpha, linewidth=0)
            elif line.is_banded:
                axes.vlines(x, low, high, color=color, alpha=0.4, linewidth=3)
            seeds = [(at, value) for at, _, values in line.points for value in values]
            if seeds:
                axes.scatter(*zip(*seeds, strict=True), s=9, color=color, alpha=0.5, linewidth=0)
            (handles[line.name],) = axes.plot(
                x, mean, marker=marker, color=color, markersize=4.5, linewidth=1.5
            )
            for text, at, value in zip(line.labels, x, mean, strict=False):
                axes.annotate(text, (at, value), (4, 3), textcoords="offset points", fontsize=6.5)
            if line.published:
                (handles[mark],) = axes.plot(
                    *zip(*line.published, strict=True), marker="D", color=INK, markersize=5.5,
                    markerfacecolor="none", linestyle="none",
                )  # fmt: skip
            if line.last is not None:
                at, interval = line.last
                axes.plot([x[-1], at], [mean[-1], interval.mean], color=color, linewidth=0.9,
                          linestyle=":")  # fmt: skip
                axes.plot([at], [interval.mean], marker=marker, color=color, markersize=6,
                          markerfacecolor="none", linewidth=0)  # fmt: skip
        # Lines that can be told apart, for raters without a place on the axis.
        styles = ((0, (6, 2)), (0, (1, 1.6)), (0, (6, 2, 1, 2)), (0, (3, 1.5)))
        for index, (name, value) in enumerate(references):
            handles[name] = axes.axhline(
                value, color=INK, linewidth=0.9, linestyle=styles[index % 4], alpha=0.75
            )
        values = [at for line in lines for at, *_ in line.points]
        scale_sizes(axes, values + [line.last[0] for line in lines if line.last], tick)
        axes.grid(axis="y")
        axes.set_xlabel(label)
        axes.set_ylabel(y_label)
        legend(axes, [handles[name] for name in names], names)

    names = [line.name for line in lines] + [name for name, _ in references]
    names += [mark for line in lines if line.published]
    names = list(dict.fromkeys(names))
    return drawing(f"scaling {label} {y_label}", draw, 2.7 + legend_height(names))


def explanation_effects(
    rows: Sequence[tuple[str, Interval, Sequence[Interval | None]]],
    groups: Sequence[str],
    published: Mapping[str, float],
) -> Drawing:
    """Difference in agreement with a feature of the explanation (paper, Figure 8).

    Args:
        rows: the feature, from the top; the difference over all raters; that of each group, or
            None where it cannot be told.
        groups: names of raters or families, each with a colour and a mark; none are drawn for one
            group, which is all raters.
        published: feature -> a difference published by others, drawn as a hollow mark.
    """

    def draw(axes: Any) -> None:
        top = len(rows) - 1
        axes.axvline(0, color=INK, linewidth=0.8, zorder=0.7)
        handles: list[Any] = []

        def points(at: np.ndarray, intervals: Sequence[Interval | None], **style: Any) -> None:
            known = [k for k, interval in enumerate(intervals) if interval is not None]
            mean, low, high = bounds([interval for interval in intervals if interval is not None])
            spread = np.nan_to_num(np.vstack([mean - low, high - mean]))
            handles.append(axes.errorbar(mean, at[known], xerr=spread, **style))

        places = top - np.arange(len(rows), dtype=float)
        axes.hlines(places[:-1] - 0.5, -1, 1, color=FAINT, linewidth=0.4)
        # All raters at the top of the row, the groups below, so that no mark hides another.
        step = 0.64 / max(len(groups), 1)
        highest = 0.32 if groups else 0.0
        points(
            places + highest, [overall for _, overall, _ in rows], fmt="o", color=INK,
            markersize=4, elinewidth=1.6, zorder=3,
        )  # fmt: skip
        for place, _ in enumerate(groups):
            points(
                places + highest - step * (place + 1), [own[place] for *_, own in rows],
                fmt=MARKERS[place // 6 % 5], color=SERIES[place % 6], markersize=2.6,
                elinewidth=0.8,
            )  # fmt: skip
        if marked:
            handles += axes.plot(
                [published[rows[place][0]] for place in marked],
                [places[place] + highest for place in marked],
                "D", markerfacecolor="none", markeredgecolor=INK, markersize=5,
            )  # fmt: skip
        axes.set_yticks(places, [feature.replace("_", " ") for feature, *_ in rows])
        axes.set_ylim(-0.7, top + 0.7)
        axes.tick_params(axis="y", length=0)
        known = [one for _, overall, own in rows for one in (overall, *own) if one is not None]
        means = [abs(one.mean) for one in known] + [published[rows[place][0]] for place in marked]
        ends = [abs(bound) for one in known for bound in (one.low, one.high)]
        # A range of a few verdicts may run out of the picture, so that the others can be read.
        widest = 1.08 * max(0.1, *means, min(0.4, max(ends)))
        axes.set_xlim(-widest, widest)
        axes.grid(axis="x")
        axes.set_xlabel("agreement with it minus agreement without it")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:+.2f}" if value else "0")
        legend(axes, handles, names, line=1.6)

    marked = [place for place, (feature, *_) in enumerate(rows) if feature in published]
    names = ["all raters", *groups, *(["published for other judges"] if marked else [])]
    row_height = 0.17 + 0.045 * len(groups)
    height = 0.7 + row_height * len(rows) + legend_height(names, line=1.6)
    return drawing("explanation effects", draw, height)


def grouped(
    groups: Sequence[tuple[str, Sequence[tuple[str, Interval, float | None]]]], mark: str
) -> Drawing:
    """Agreement by rater, in groups (paper, Figure 4).

    Args:
        groups: name and members: name, agreement with its interval, and a number from elsewhere
            (drawn as a hollow mark) or None.
        mark: says what the hollow marks are.
    """

    def draw(axes: Any) -> None:
        ticks: list[tuple[int, str]] = []
        hollow = []
        place = 0
        for number, (group, members) in enumerate(groups):
            axes.text(0.005, place, group, transform=axes.get_yaxis_transform(), fontsize=8,
                      va="center", color=SERIES[number % len(SERIES)])  # fmt: skip
            place += 1
            for name, interval, elsewhere in members:
                color = SERIES[number % len(SERIES)]
                low, high = np.nan_to_num([interval.low, interval.high], nan=interval.mean)
                axes.hlines(place, low, high, color=color, alpha=0.45, linewidth=3)
                axes.plot(interval.mean, place, marker="o", color=color, markersize=4.5)
                if elsewhere is not None:
                    hollow = axes.plot(elsewhere, place, marker="D", color=INK, markersize=5.5,
                                       markerfacecolor="none", linestyle="none")  # fmt: skip
                ticks.append((place, name))
                place += 1
        axes.axvline(0.5, color=INK, linewidth=0.7, linestyle=":")
        axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(place - 0.4, -0.6)
        left, right = axes.get_xlim()
        # Room for the names of the groups.
        axes.set_xlim(max(0.0, min(left, 0.45) - 0.12 * (right - left)), min(1.01, right))
        axes.grid(axis="x")
        axes.set_xlabel("agreement")
        if hollow:
            axes.figure.legend(hollow, [mark], loc="outside upper left")

    rows = sum(1 + len(members) for _, members in groups)
    return drawing("grouped", draw, 0.9 + 0.2 * rows)


def policy_curves(
    panels: Sequence[
        tuple[str, Sequence[tuple[int, float]], Sequence[tuple[int, float]], float | None]
    ],
) -> Drawing:
    """Reward, length and diversity of a policy over the steps of its training, one below another.

    Args:
        panels: label, (step, value) in training, (step, value) on held-out prompts, and the same
            quantity of people's stories, or None.
    """

    def draw(axes: Any) -> None:
        figure = axes.figure
        axes.remove()
        for place, own in enumerate(figure.subplots(len(panels), 1, sharex=True, squeeze=False)):
            label, training, held_out, people = panels[place]
            if training:
                own[0].plot(*zip(*training, strict=True), color=SERIES[1], linewidth=0.8,
                            alpha=0.7, label="in training")  # fmt: skip
            own[0].plot(*zip(*held_out, strict=True), "o-", color=SERIES[0], markersize=3.5,
                        linewidth=1.3, label="held-out prompts")  # fmt: skip
            if people is not None:
                own[0].axhline(people, color=INK, linewidth=0.8, linestyle=":",
                               label="people")  # fmt: skip
            own[0].set_ylabel(label)
            own[0].grid(axis="y")
        own[0].set_xlabel("step")
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=3)

    return drawing("policy curves", draw, 0.7 + 1.4 * len(panels))


def probe_rates(
    rows: Sequence[tuple[str, Sequence[Sequence[Interval | None]]]],
    raters: Sequence[str],
    right: float,
) -> Drawing:
    """How often each rater prefers a changed story, by probe.

    Args:
        rows: the probe, from the top, and for each rater its rates by rising strength, None where
            it judged nothing.
        raters: their names.
        right: the rate of a rater that is not fooled; the axis marks it with a line.
    """

    def draw(axes: Any) -> None:
        top = len(rows) - 1
        places = top - np.arange(len(rows), dtype=float)
        axes.axvline(0.5, color=INK, linewidth=0.7, linestyle=":", zorder=0.7)
        axes.axvline(right, color=INK, linewidth=0.8, zorder=0.6)
        axes.hlines(places[:-1] - 0.5, -0.03, 1.03, color=FAINT, linewidth=0.4)
        step = 0.72 / len(raters)
        handles: list[Any] = []
        for number in range(len(raters)):
            color, marker = SERIES[number % len(SERIES)], MARKERS[number // len(SERIES) % 5]
            at = places + 0.36 - step * (number + 0.5)
            (handle,) = axes.plot([], [], marker=marker, color=color, markersize=4, linewidth=1)
            handles.append(handle)
            for height, (_, rates) in zip(at, rows, strict=True):
                known = [rate for rate in rates[number] if rate is not None]
                if not known:
                    continue
                means = [rate.mean for rate in known]
                low, high = np.nan_to_num([known[-1].low, known[-1].high], nan=means[-1])
                axes.hlines(height, low, high, color=color, alpha=0.35, linewidth=2.4)
                axes.plot(means, [height] * len(means), color=color, linewidth=0.7)
                axes.plot(means[:-1], [height] * (len(means) - 1), marker=marker, color=color,
                          markersize=1.9, linestyle="none")  # fmt: skip
                axes.plot(means[-1], height, marker=marker, color=color, markersize=4, zorder=3)
        axes.set_yticks(places, [name for name, _ in rows])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(-0.6, top + 0.6)
        axes.set_xlim(-0.03, 1.03)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "1"])
        axes.set_xlabel("prefers the changed story")
        legend(axes, handles, raters, line=1.6)

    height = 0.7 + (0.16 + 0.07 * len(raters)) * len(rows) + legend_height(raters, line=1.6)
    return drawing(f"probe rates {right}", draw, height)
