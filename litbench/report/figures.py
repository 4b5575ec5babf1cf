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


def _draw(name: str, draw: Callable[[Any], None], height: float = HEIGHT) -> str:
    """A plot that is for a page alone, as SVG."""
    return drawing(name, draw, height).svg


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


def _line_with_intervals(
    axes: Any, place: int, x: np.ndarray, intervals: Sequence[Interval]
) -> Any:
    mean, low, high = bounds(intervals)
    return axes.errorbar(
        x, mean, np.nan_to_num(np.abs(np.vstack([mean - low, high - mean]))), fmt="o-",
        color=SERIES[place], markersize=3.5, linewidth=1.1, elinewidth=0.8,
    )  # fmt: skip


def length_symmetry(before: np.ndarray | None, after: np.ndarray, buckets: int) -> str:
    """Histogram of length differences before and after pruning (paper, Figure 2).

    Args:
        before: words of chosen minus words of rejected, all pairs; None where unknown.
        after: the same for the pairs that stayed.
        buckets: buckets over the whole width, even.
    """

    def draw(axes: Any) -> None:
        widest = max(1, int(np.abs(after if before is None else before).max()))
        edges = np.linspace(-widest, widest, min(buckets, 60) // 2 * 2 + 1)
        if before is not None:
            axes.hist(before, edges, color=SERIES[1], alpha=0.55, label="before")
        label = None if before is None else "after"
        axes.hist(after, edges, color=SERIES[0], alpha=0.85, label=label)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_xlabel("words of chosen minus words of rejected")
        axes.set_ylabel("pairs")
        if before is not None:
            axes.legend()

    return _draw("symmetry", draw)


def distribution(chosen: np.ndarray, rejected: np.ndarray, label: str, *, log: bool = False) -> str:
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

    return _draw(f"distribution {label}", draw)


def by_length_gap(raters: Sequence[tuple[str, list[tuple[float, float, Interval]]]]) -> str:
    """Agreement by length gap, a line per rater with its intervals; the first six raters."""
    shown = raters[: len(SERIES)]
    names = [name for name, _ in shown]

    def draw(axes: Any) -> None:
        ranges = sorted({(low, high) for _, rows in shown for low, high, _ in rows})
        handles = []
        for place, (_, rows) in enumerate(shown):
            x = np.array([ranges.index((low, high)) for low, high, _ in rows], dtype=float)
            x += (place - (len(shown) - 1) / 2) * 0.09
            intervals = [interval for *_, interval in rows]
            handles.append(_line_with_intervals(axes, place, x, intervals))
        axes.axhline(0.5, color=INK, linewidth=0.7, linestyle=":")
        labels = [
            f"{low:.0f}+" if np.isinf(high) else f"{low:.0f}-{high - 1:.0f}" for low, high in ranges
        ]
        axes.set_xticks(range(len(ranges)), labels)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("difference in length, words")
        axes.set_ylabel("agreement")
        legend(axes, handles, names)

    return _draw("gap", draw, 2.7 + legend_height(names))


def reliability(raters: Sequence[tuple[str, Calibration]]) -> str:
    """Reliability curve: agreement against confidence, with intervals."""
    shown = raters[: len(SERIES)]
    names = [name for name, _ in shown]

    def draw(axes: Any) -> None:
        axes.plot([0.5, 1], [0.5, 1], color=INK, linewidth=0.7, linestyle=":")
        handles = []
        for place, (_, found) in enumerate(shown):
            x = np.array([confidence for confidence, _ in found.bins])
            intervals = [interval for _, interval in found.bins]
            handles.append(_line_with_intervals(axes, place, x, intervals))
        axes.set_xlim(0.49, 1.01)
        axes.set_ylim(0.2, 1.02)
        axes.set_xlabel("confidence, max(p, 1 - p)")
        axes.set_ylabel("agreement")
        legend(axes, handles, names)

    return _draw("reliability", draw, 2.7 + legend_height(names))


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
) -> str:
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

    return _draw("length buckets", draw)


def timeline(chosen: np.ndarray, rejected: np.ndarray, edges: np.ndarray) -> str:
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

    return _draw("timeline", draw)


def score_plane(cells: np.ndarray, edges: np.ndarray) -> str:
    """Pairs by the scores of their two stories; the stronger, the more, on a scale of logarithms.

    Args:
        cells: pairs by (chosen, rejected); shape (k, k).
        edges: scores at which the cells begin, and the last one's end; positive; shape (k + 1,).
    """

    def draw(axes: Any) -> None:
        from matplotlib.collections import PolyCollection  # noqa: PLC0415
        from matplotlib.colors import to_rgba  # noqa: PLC0415
        from matplotlib.ticker import LogLocator  # noqa: PLC0415

        corners, colors = [], []
        darkest = np.log1p(cells.max())
        for chosen, rejected in zip(*np.nonzero(cells), strict=True):
            left, right = edges[rejected], edges[rejected + 1]
            low, high = edges[chosen], edges[chosen + 1]
            corners.append([(left, low), (right, low), (right, high), (left, high)])
            depth = 0.08 + 0.92 * np.log1p(cells[chosen, rejected]) / darkest
            colors.append(to_rgba(SERIES[0], round(float(depth), 3)))
        axes.add_collection(PolyCollection(corners, facecolors=colors, edgecolors="none"))
        ends = (edges[0], edges[-1])
        axes.plot(ends, ends, color=INK, linewidth=0.7, linestyle=":")
        # The scale first: it brings locators of its own.
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(10, subs=(1, 2, 5), numticks=8))
            axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axis.set_minor_formatter(lambda *_: "")
        axes.set_xlabel("score of rejected")
        axes.set_ylabel("score of chosen")

    return _draw("score plane", draw, 3.2)


def shares(
    series: Sequence[tuple[str, np.ndarray]], edges: np.ndarray, label: str, unit: str
) -> str:
    """Outlines of several histograms, each as shares of its own total; the first six.

    Args:
        series: name and counts per bin; shape (k,) each.
        edges: of the bins; shape (k + 1,).
        label: the quantity with its unit.
        unit: what is counted.
    """

    def draw(axes: Any) -> None:
        for place, (name, counts) in enumerate(series[: len(SERIES)]):
            axes.stairs(
                100 * counts / max(counts.sum(), 1), edges, color=SERIES[place], linewidth=1.4,
                fill=len(series) == 1, alpha=0.6 if len(series) == 1 else 1, label=name,
            )  # fmt: skip
        axes.set_xlabel(label)
        axes.set_ylabel(f"% of {unit}")
        if len(series) > 1:
            axes.legend()

    return _draw(f"shares {label}", draw)


def bars(series: Sequence[tuple[str, np.ndarray]], names: Sequence[str], label: str) -> str:
    """Bars beside each other, a colour per series; shares in per cent; the first six series.

    Args:
        series: name and one share per bar, 0 to 1; shape (k,) each.
        names: of the bars.
        label: the axis of the bars; the other one says "% of stories".
    """

    def draw(axes: Any) -> None:
        drawn = series[: len(SERIES)]
        width = 0.8 / len(drawn)
        for place, (name, values) in enumerate(drawn):
            x = np.arange(len(names)) + (place - (len(drawn) - 1) / 2) * width
            axes.bar(x, 100 * values, width * 0.92, color=SERIES[place], alpha=0.85, label=name)
        axes.set_xticks(range(len(names)), names)
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel(label)
        axes.set_ylabel("% of stories")
        if len(drawn) > 1:
            axes.legend()

    return _draw(f"bars {label}", draw)


def concentration(series: Sequence[tuple[str, np.ndarray]]) -> str:
    """Share of the pairs that the largest prompts hold, by their share of all prompts.

    Args:
        series: name and pairs per prompt, in any order; shape (prompts,) each.
    """

    def draw(axes: Any) -> None:
        for place, (name, sizes) in enumerate(series[: len(SERIES)]):
            held = np.append(0, np.cumsum(np.sort(sizes)[::-1])) / sizes.sum()
            share = np.linspace(0, 1, len(held))
            # A line of a hundred thousand prompts looks the same through fewer points.
            at = np.unique(np.linspace(0, len(held) - 1, 400).astype(int))
            axes.plot(100 * share[at], 100 * held[at], color=SERIES[place], linewidth=1.4,
                      label=name)  # fmt: skip
        axes.plot([0, 100], [0, 100], color=INK, linewidth=0.7, linestyle=":")
        axes.set_xlabel("% of prompts, largest first")
        axes.set_ylabel("% of pairs")
        if len(series) > 1:
            axes.legend(loc="lower right")

    return _draw("concentration", draw)


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


def level_lines(axes: Any, values: Sequence[float]) -> list[Any]:
    """Horizontal lines that can be told apart, for raters without a place on the axis."""
    styles = ((0, (6, 2)), (0, (1, 1.6)), (0, (6, 2, 1, 2)), (0, (3, 1.5)))
    return [
        axes.axhline(value, color=INK, linewidth=0.9, linestyle=styles[place % 4], alpha=0.75)
        for place, value in enumerate(values)
    ]


@dataclass(frozen=True)
class Line:
    """A line of `scaling`.

    Attributes:
        name: in the legend.
        points: by growing quantity: the quantity, agreement with its interval (drawn as a band),
            agreement of each seed (drawn as dots).
        last: a point that is reached by a dotted line and drawn as an open mark.
        is_banded: whether the intervals are drawn.
    """

    name: str
    points: Sequence[tuple[float, Interval, Sequence[float]]]
    last: tuple[float, Interval] | None = None
    is_banded: bool = True


def scaling(
    lines: Sequence[Line],
    references: Sequence[tuple[str, float]],
    label: str,
    tick: Callable[[float], str],
) -> Drawing:
    """Agreement against a quantity that grows, on a logarithmic scale (paper, Figures 5 and 6).

    Args:
        lines: each with at least one point.
        references: name and agreement of raters without a value on the axis; horizontal lines.
        label: the quantity with its unit.
        tick: writes a value of it.
    """

    def draw(axes: Any) -> None:
        axes.axhline(0.5, color=FAINT, linewidth=1.2, zorder=0.6)
        handles: list[Any] = []
        for index, line in enumerate(lines):
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
            handles += axes.plot(x, mean, marker=marker, color=color, markersize=4.5, linewidth=1.5)
            if line.last is not None:
                at, interval = line.last
                axes.plot([x[-1], at], [mean[-1], interval.mean], color=color, linewidth=0.9,
                          linestyle=":")  # fmt: skip
                axes.plot([at], [interval.mean], marker=marker, color=color, markersize=6,
                          markerfacecolor="none", linewidth=0)  # fmt: skip
        handles += level_lines(axes, [value for _, value in references])
        values = [at for line in lines for at, *_ in line.points]
        scale_sizes(axes, values + [line.last[0] for line in lines if line.last], tick)
        axes.grid(axis="y")
        axes.set_xlabel(label)
        axes.set_ylabel("agreement")
        legend(axes, handles, names)

    names = [line.name for line in lines] + [name for name, _ in references]
    return drawing(f"scaling {label}", draw, 2.7 + legend_height(names))


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


def by_size(
    lines: Sequence[tuple[str, Sequence[tuple[str, float, Interval, float | None]]]],
    mark: str,
    tick: Callable[[float], str],
) -> Drawing:
    """Agreement by model size, on a scale of logarithms (paper, Figure 5).

    Args:
        lines: group and the members that a line joins, by size: name, weights, agreement with its
            interval, and a number from elsewhere (drawn as a hollow mark) or None. Lines of one
            group share a colour.
        mark: says what the hollow marks are.
        tick: writes a size.
    """

    def draw(axes: Any) -> None:
        handles: dict[str, Any] = {}
        sizes = [size for _, members in lines for _, size, *_ in members]
        middle = np.sqrt(min(sizes) * max(sizes))
        for group, members in lines:
            number = groups.index(group)
            color, marker = SERIES[number % len(SERIES)], MARKERS[number // len(SERIES) % 5]
            x = np.array([size for _, size, *_ in members])
            mean, low, high = bounds([interval for *_, interval, _ in members])
            low, high = np.where(np.isnan(low), mean, low), np.where(np.isnan(high), mean, high)
            axes.vlines(x, low, high, color=color, alpha=0.4, linewidth=2)
            (handles[group],) = axes.plot(
                x, mean, marker=marker, color=color, markersize=4.5, linewidth=1.2
            )
            for name, size, interval, elsewhere in members:
                side = 1 if size <= middle else -1
                axes.annotate(
                    name, (size, interval.mean), (4 * side, 3), textcoords="offset points",
                    ha="left" if side > 0 else "right", fontsize=6.5,
                )  # fmt: skip
                if elsewhere is not None:
                    (handles[mark],) = axes.plot(
                        size, elsewhere, marker="D", color=INK, markersize=5.5,
                        markerfacecolor="none", linestyle="none",
                    )  # fmt: skip
        axes.axhline(0.5, color=INK, linewidth=0.7, linestyle=":")
        scale_sizes(axes, sizes, tick)
        axes.grid(axis="y")
        axes.set_xlabel("parameters")
        axes.set_ylabel("agreement")
        names = [*groups, *([mark] if mark in handles else [])]
        axes.figure.legend([handles[name] for name in names], names, loc="outside upper left",
                           ncols=1 if mark in handles else 2)  # fmt: skip

    groups = list(dict.fromkeys(group for group, _ in lines))
    return drawing("by size", draw, 3.0 + 0.17 * len(groups))


def best_of_n(
    lines: Sequence[tuple[str, Sequence[tuple[float, Interval]]]],
    level: float,
    x_label: str,
    y_label: str,
    *,
    by_factor: bool,
) -> Drawing:
    """What choosing the best of n brings, a line with its band per rater.

    Args:
        lines: name and points by growing n: the place on the axis and the mean with its interval.
        level: what a random story has.
        x_label: the axis of n.
        y_label: the quantity with its unit.
        by_factor: whether the axis of n is logarithmic, with whole numbers on it.
    """

    def draw(axes: Any) -> None:
        handles: list[Any] = []
        for place, (_, of) in enumerate(lines):
            color = SERIES[place % len(SERIES)]
            x = np.array([at for at, _ in of], dtype=float)
            mean, low, high = bounds([interval for _, interval in of])
            axes.fill_between(x, low, high, color=color, alpha=0.16, linewidth=0)
            handles += axes.plot(x, mean, "o-", color=color, linewidth=1.5, markersize=3.5)
        axes.axhline(level, color=INK, linewidth=0.7, linestyle=":")
        if by_factor:
            places = [at for _, of in lines for at, _ in of]
            scale_sizes(axes, places, lambda value: f"{value:,.0f}")
        axes.grid(axis="y")
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        legend(axes, handles, names)

    names = [name for name, _ in lines]
    return drawing(f"best of n {y_label}", draw, 2.7 + legend_height(names))


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
