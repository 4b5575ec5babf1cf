"""Plots, as SVG and PNG files and as pictures that follow the theme of a page.

Plots use the light colours of style.css and figures.mplstyle. On a page the colours become CSS
variables, so that a picture works in the light and the dark theme. Text in SVG stays text.
"""

import io
import itertools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from litbench.metrics.intervals import Interval
from litbench.runs.errors import MissingExtraError

STYLE = Path(__file__).with_name("figures.mplstyle")
# The first block of the style sheet is the light theme.
_LIGHT_THEME = STYLE.with_name("style.css").read_text(encoding="utf-8").split("}")[0]
COLORS: dict[str, str] = dict(re.findall(r"--([\w-]+):\s*(#\w+)", _LIGHT_THEME))
INK, FAINT = COLORS["ink"], COLORS["line"]
SERIES = tuple(COLORS[f"series-{number}"] for number in range(1, 7))
MARKERS = "osD^v"
WIDTH, HEIGHT = 4.4, 2.7
_DOTS_PER_INCH = 200
# 1900 and 2100 as days since 1970; dates outside are errors of the source and shown at the edge.
_CALENDAR = (-25_567, 47_482)


@dataclass(frozen=True)
class Drawing:
    """A plot: `source` is a standalone SVG file, `figure` the matplotlib figure."""

    source: str
    figure: Any

    @property
    def svg(self) -> str:
        """The SVG element for a page, with the page's CSS variables as colours."""
        svg = self.source[self.source.index("<svg") :]
        for name, color in COLORS.items():
            svg = svg.replace(color, f"var(--{name})")
        return svg

    def files(self, name: str) -> dict[str, Callable[[Path], object]]:
        """Functions that write NAME.svg and NAME.png, by file name."""
        return {
            f"{name}.svg": lambda path: path.write_text(self.source, encoding="utf-8"),
            f"{name}.png": self._write_png,
        }

    def _write_png(self, path: Path) -> None:
        import matplotlib as mpl  # noqa: PLC0415

        with warnings.catch_warnings(), mpl.rc_context({"font.family": _fonts()}, fname=STYLE):
            warnings.filterwarnings("ignore", r"Glyph \d+", UserWarning)
            # Without the version of matplotlib, so that the bytes are reproducible.
            self.figure.savefig(
                path,
                format="png",
                dpi=_DOTS_PER_INCH,
                facecolor="white",
                metadata={"Software": None},
            )


# Fonts with Chinese, Japanese and Korean glyphs, of which any may be installed.
_CJK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "Noto Serif CJK SC",
    "Noto Serif CJK JP",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "SimHei",
)


@cache
def _fonts() -> list[str]:
    """The default font, and the installed fonts for glyphs that it lacks."""
    from matplotlib import font_manager  # noqa: PLC0415

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _CJK_FONTS if name in installed)]


def drawing(
    name: str, draw: Callable[[Any], None], height: float = HEIGHT, width: float = WIDTH
) -> Drawing:
    """Run `draw(axes)` on a new figure with a size in inches; names must be unique on a page."""
    try:
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report") from error
    settings = {"svg.hashsalt": name, "font.family": _fonts()}
    with warnings.catch_warnings(), mpl.rc_context(settings, fname=STYLE):
        # A page's text is drawn by the browser, which has further fonts.
        warnings.filterwarnings("ignore", r"Glyph \d+", UserWarning)
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    return Drawing(svg, figure)


# Axes and legends -----------------------------------------------------------------------------


def bounds(intervals: Sequence[Interval]) -> np.ndarray:
    """Means, lower and upper bounds; float64, shape (3, n). NaN bounds become the mean."""
    mean, low, high = (
        np.array([getattr(interval, end) for interval in intervals], dtype=float)
        for end in ("mean", "low", "high")
    )
    return np.vstack([mean, *(np.where(np.isnan(end), mean, end) for end in (low, high))])


def short_count(value: float) -> str:
    """A number in the usual short form: 631, 6.31k, 22.7M, 1.24B."""
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        # Rounding to three digits: 999,999,999 is 1B, not 1000M.
        if value >= size * 0.9995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _whole_counts(axes: Any, label: str) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_ylabel(label)


def _log_axis(axes: Any, values: Sequence[float], tick: Callable[[float], str]) -> None:
    """Set a logarithmic x axis, with ticks at those values that have room."""
    from matplotlib.ticker import NullLocator  # noqa: PLC0415

    distinct = sorted(set(values))
    axes.set_xscale("log")
    left, right = np.log(distinct[0]), np.log(distinct[-1])
    margin = 0.06 * (right - left) or 0.7
    axes.set_xlim(np.exp(left - margin), np.exp(right + margin))
    ticks: list[float] = []
    for at in distinct:
        if not ticks or np.log(at / ticks[-1]) >= 0.15 * (right - left):
            ticks.append(at)
    axes.set_xticks(ticks, [tick(at) for at in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def _legend_columns(names: Sequence[str]) -> int:
    # A row has about 62 characters; a marker and its spacing take about 8.
    return max(1, min(3, len(names), 62 // (max(map(len, names), default=0) + 8)))


def _legend_height(names: Sequence[str]) -> float:
    return 0.17 * -(-len(names) // _legend_columns(names))


def _legend(axes: Any, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Put a legend above the plot, with handles, since matplotlib hides names with a leading _."""
    columns = _legend_columns(names)
    axes.figure.legend(handles, names, loc="outside upper left", ncols=columns)


# Histograms -----------------------------------------------------------------------------------


def _sides(axes: Any, chosen: np.ndarray, rejected: np.ndarray, edges: np.ndarray) -> None:
    axes.hist(chosen, edges, histtype="stepfilled", color=SERIES[0], alpha=0.45, label="chosen")
    axes.hist(rejected, edges, histtype="step", color=SERIES[1], linewidth=1.4, label="rejected")
    _whole_counts(axes, "stories")
    # Leave room for the legend above the highest bar.
    axes.set_ylim(0, 1.2 * axes.get_ylim()[1])
    axes.legend(loc="upper right", ncols=2)


def distribution(chosen: np.ndarray, rejected: np.ndarray, label: str) -> Drawing:
    """Histogram of a quantity of at least 1, on a logarithmic axis (paper, Figure 3)."""

    def draw(axes: Any) -> None:
        both = np.concatenate([chosen, rejected]).astype(float)
        low, high = both.min(), max(both.max(), both.min() + 1)
        _sides(axes, chosen, rejected, np.geomspace(low, high, 31))
        decades = np.power(10.0, np.arange(np.floor(np.log10(low)), np.log10(high) + 1))
        ticks = [m * decade for decade in decades for m in (1, 2, 5) if low <= m * decade <= high]
        if len(ticks) > 6:
            ticks = [decade for decade in decades if low <= decade <= high]
        _log_axis(axes, [low, high], short_count)
        ticks = ticks[:: -(-len(ticks) // 6) or 1] or [low]
        axes.set_xticks(ticks, [short_count(at) for at in ticks])
        axes.set_xlabel(label)

    return drawing(f"distribution {label}", draw)


def densities(groups: Mapping[str, np.ndarray], label: str) -> Drawing:
    """Kernel density of each group of values, and its fitted normal curve, dashed.

    Args:
        groups: by name, at least two different values.
        label: what the values are.
    """

    def draw(axes: Any) -> None:
        from scipy.stats import gaussian_kde, norm  # noqa: PLC0415

        every = np.concatenate(list(groups.values()))
        margin = 0.2 * np.ptp(every)
        at = np.linspace(every.min() - margin, every.max() + margin, 201)
        colors = itertools.cycle(SERIES)
        lines = []
        for values, color in zip(groups.values(), colors, strict=False):
            lines += axes.plot(at, gaussian_kde(values)(at), color=color)
            axes.plot(at, norm.pdf(at, values.mean(), values.std()), color=color, linestyle="--")
        axes.set_xlabel(label)
        axes.set_ylabel("density")
        _legend(axes, lines, list(groups))

    return drawing(f"densities {label}", draw)


def boxes(groups: Sequence[tuple[str, Sequence[float]]], label: str) -> Drawing:
    """Box plot of groups of values: quartiles, median (solid) and mean (dashed).

    Args:
        groups: names and values, from the top; names may repeat.
        label: what the values are.
    """

    def draw(axes: Any) -> None:
        line, ink = {"color": SERIES[0]}, {"color": INK}
        axes.boxplot(
            [values for _, values in groups],
            tick_labels=[name for name, _ in groups],
            orientation="horizontal",
            showmeans=True,
            meanline=True,
            medianprops=line,
            meanprops=line | {"linestyle": "--"},
            boxprops=ink,
            whiskerprops=ink,
            capprops=ink,
            flierprops={"markersize": 3, "markeredgecolor": INK},
        )
        axes.invert_yaxis()
        axes.set_xlabel(label)

    return drawing(f"boxes {label}", draw, HEIGHT * max(1, len(groups) / 12))


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: np.ndarray,
    label: str,
    *,
    center: float | None = None,
    bold: np.ndarray | None = None,
) -> Drawing:
    """A matrix of coloured cells with their numbers; wider than a page's column if need be.

    Args:
        rows: names from the top.
        columns: names from the left.
        values: shape (rows, columns); NaN is an empty cell.
        label: what the values are.
        center: value without colour, with one colour above and one below; None for one colour from
            the lowest value to the highest.
        bold: cells whose numbers are in bold print; shape (rows, columns).
    """
    finite = values[np.isfinite(values)]
    base = center if center is not None else finite.min()
    reach = np.abs(finite - base).max() or 1.0
    # Longer numbers would touch each other.
    digits = 0 if np.abs(finite).max() >= 100 else 2

    def draw(axes: Any) -> None:
        from matplotlib.patches import Rectangle  # noqa: PLC0415

        for (row, column), value in np.ndenumerate(values):
            if not np.isfinite(value):
                continue
            # Half transparent at most, so that the numbers stand out in both themes.
            axes.add_patch(
                Rectangle(
                    (column - 0.5, row - 0.5),
                    1,
                    1,
                    facecolor=SERIES[0 if value >= base else 1],
                    alpha=0.5 * abs(value - base) / reach,
                    linewidth=0,
                )
            )
            weight = "bold" if bold is not None and bold[row, column] else "normal"
            text = f"{round(value, digits) + 0.0:.{digits}f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=7.5, fontweight=weight)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xticks(range(len(columns)), columns, rotation=40, ha="left", fontsize=7.5)
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0, labeltop=True, labelbottom=False)
        axes.spines[:].set_visible(False)
        axes.set_xlabel(label)

    names = max(map(len, rows)), max(map(len, columns))
    height = 0.6 + 0.24 * len(rows) + 0.05 * names[1]
    width = max(WIDTH, 0.6 + 0.075 * names[0] + 0.46 * len(columns))
    return drawing(f"heat map {label} {rows[0]} {columns[0]}", draw, height, width)


def scatter(
    groups: Mapping[str, tuple[np.ndarray, np.ndarray]],
    x_label: str,
    y_label: str,
    max_points: int = 600,
) -> Drawing:
    """Points of each group, and the least-squares lines of each group and of all (bold).

    Args:
        groups: by name, x and y, shape (n,) each.
        x_label: label of the x axis.
        y_label: label of the y axis.
        max_points: number of points to draw; lines are of all points.
    """

    def draw(axes: Any) -> None:
        step = -(-sum(len(x) for x, _ in groups.values()) // max_points)
        handles = []
        for index, (x, y) in enumerate(groups.values()):
            style = {"color": SERIES[index % 6], "marker": MARKERS[index // 6 % 5]}
            axes.scatter(x[::step], y[::step], s=7, alpha=0.4, linewidth=0, **style)
            handles += axes.plot([], [], markersize=4, linewidth=1, **style)
            _regression(axes, x, y, color=SERIES[index % 6], linewidth=0.8)
        x, y = (np.concatenate([xy[at] for xy in groups.values()]) for at in (0, 1))
        _regression(axes, x, y, color=INK, linewidth=2)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        if len(groups) > 1:
            _legend(axes, handles, list(groups))

    legend = _legend_height(list(groups)) if len(groups) > 1 else 0
    return drawing(f"scatter {x_label} {y_label}", draw, HEIGHT + legend)


def _regression(axes: Any, x: np.ndarray, y: np.ndarray, **style: Any) -> None:
    if len(x) > 1 and np.ptp(x) > 0:
        slope, start = np.polyfit(x, y, 1)
        ends = np.array([x.min(), x.max()])
        axes.plot(ends, start + slope * ends, **style)


def bars(values: Mapping[str, float], label: str) -> Drawing:
    """A horizontal bar for each named value, from the top."""

    def draw(axes: Any) -> None:
        axes.barh(range(len(values)), list(values.values()), color=SERIES[0], alpha=0.8)
        axes.set_yticks(range(len(values)), list(values))
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        axes.set_xlabel(label)

    return drawing(f"bars {label}", draw, max(HEIGHT / 2, 0.7 + 0.2 * len(values)))


def timeline(chosen: np.ndarray, rejected: np.ndarray) -> Drawing:
    """Histogram of posting dates, given in days since 1970 (paper, Figure 3)."""

    def draw(axes: Any) -> None:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415

        first, second = (np.clip(days, *_CALENDAR).astype(float) for days in (chosen, rejected))
        both = np.concatenate([first, second])
        _sides(axes, first, second, np.linspace(both.min(), both.max() + 1, 49))
        axes.xaxis_date()
        locator = AutoDateLocator(minticks=3, maxticks=8)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        axes.set_xlabel("date of posting")

    return drawing("timeline", draw)


def length_buckets(
    before: np.ndarray | None, after: np.ndarray, widest: int, shown: int | None = None
) -> Drawing:
    """The mirrored histogram of length differences (paper, Figure 2).

    Args:
        before: pairs per bucket before pruning, shape (buckets,), or None if unknown.
        after: pairs per bucket after pruning; shape (buckets,).
        widest: outer edge of the last bucket, in words.
        shown: number of buckets to draw on each side of zero; all by default.
    """

    def draw(axes: Any) -> None:
        from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

        half = len(after) // 2
        inner = slice(half - (shown or half), half + (shown or half))
        edges = np.linspace(-widest, widest, 2 * half + 1)[inner.start : inner.stop + 1]
        if before is not None:
            axes.stairs(
                before[inner], edges, fill=True, color=SERIES[1], alpha=0.55, label="before"
            )
        axes.stairs(after[inner], edges, fill=True, color=SERIES[0], alpha=0.85, label="after")
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel("words of chosen minus words of rejected")
        _whole_counts(axes, "pairs")
        if before is not None:
            axes.legend()

    return drawing("length buckets", draw)


# Lines and dots -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A line of `curves`.

    Attributes:
        name: name in the legend; lines with the same name share a colour.
        points: x, y with its interval, and y of each seed (drawn as dots).
        spread: how to draw the intervals.
        labels: labels of the points.
        published: further points, drawn as hollow markers.
    """

    name: str
    points: Sequence[tuple[float, Interval, Sequence[float]]]
    spread: Literal["band", "bars", "none"] = "band"
    labels: Sequence[str] = ()
    published: Sequence[tuple[float, float]] = ()


def _draw_line(axes: Any, line: Line, index: int, alpha: float) -> Any:
    """Draw a line in the style of its index, with its intervals; returns the legend's handle."""
    color, marker = SERIES[index % 6], MARKERS[index // 6 % 5]
    x = np.array([at for at, *_ in line.points], dtype=float)
    mean, low, high = bounds([interval for _, interval, _ in line.points])
    if line.spread == "band" and len(x) > 1:
        axes.fill_between(x, low, high, color=color, alpha=alpha, linewidth=0)
    elif line.spread != "none":
        axes.vlines(x, low, high, color=color, alpha=0.5, linewidth=1.6)
    seeds = [(at, value) for at, _, values in line.points for value in values]
    if seeds:
        axes.scatter(*zip(*seeds, strict=True), s=9, color=color, alpha=0.5, linewidth=0)
    (handle,) = axes.plot(x, mean, marker=marker, color=color, markersize=4, linewidth=1.3)
    for text, at, value in zip(line.labels, x, mean, strict=False):
        axes.annotate(text, (at, value), (4, 3), textcoords="offset points", fontsize=6.5)
    return handle


def curves(
    lines: Sequence[Line],
    label: str,
    *,
    y_label: str = "agreement",
    level: float | None = 0.5,
    tick: Callable[[float], str] | None = None,
    names_of_x: Sequence[str] = (),
    references: Sequence[tuple[str, float]] = (),
    mark: str = "published",
) -> Drawing:
    """A line plot with intervals (paper, Figures 5 and 6).

    Args:
        lines: lines, each with at least one point.
        label: label of the x axis, with its unit.
        y_label: label of the y axis.
        level: chance level, drawn as a horizontal line; None draws the diagonal.
        tick: format of the x ticks; if given, the x axis is logarithmic.
        names_of_x: tick labels of x = 0, 1, 2, ...
        references: names and values of raters without an x value, drawn as horizontal lines.
        mark: legend of the hollow markers.
    """

    def draw(axes: Any) -> None:
        if level is None:
            axes.plot([0.5, 1], [0.5, 1], color=INK, linewidth=0.7, linestyle=":")
        else:
            axes.axhline(level, color=INK, linewidth=0.7, linestyle=":", zorder=0.6)
        handles: dict[str, Any] = {}
        # Fainter bands if many overlap.
        alpha = 0.16 if len(lines) < 4 else 0.09
        for line in lines:
            handles[line.name] = _draw_line(axes, line, names.index(line.name), alpha)
            if line.published:
                (handles[mark],) = axes.plot(
                    *zip(*line.published, strict=True),
                    marker="D",
                    color=INK,
                    markersize=5.5,
                    markerfacecolor="none",
                    linestyle="none",
                )
        styles = ("--", "-.", (0, (1, 1.6)), (0, (3, 1.5)))
        for index, (name, value) in enumerate(references):
            style = styles[index % 4]
            handles[name] = axes.axhline(value, color=INK, linewidth=0.9, linestyle=style)
        if tick is not None:
            _log_axis(axes, [at for line in lines for at, *_ in line.points], tick)
        elif names_of_x:
            axes.set_xticks(range(len(names_of_x)), names_of_x)
        axes.grid(axis="y")
        axes.set_xlabel(label)
        axes.set_ylabel(y_label)
        _legend(axes, [handles[name] for name in names], names)

    names = [line.name for line in lines] + [name for name, _ in references]
    names += [mark for line in lines if line.published]
    names = list(dict.fromkeys(names))
    return drawing(f"curves {label} {y_label}", draw, HEIGHT + _legend_height(names))


def dots(
    rows: Sequence[tuple[str, Sequence[Sequence[Interval]]]],
    names: Sequence[str],
    label: str,
    *,
    levels: Sequence[float] = (0.5,),
    limits: tuple[float, float] | None = None,
    hollow: Mapping[str, float] | None = None,
    mark: str = "published",
    behind: np.ndarray | None = None,
) -> Drawing:
    """A dot plot of means with intervals, with named rows and a colour for each series.

    Args:
        rows: from the top, the name of a row and the intervals of each series. The last interval of
            a series is drawn large, with its bounds; the others as small dots. A row without series
            is a heading.
        names: names of the series.
        label: label of the x axis.
        levels: positions of vertical lines.
        limits: limits of the x axis; from the data by default.
        hollow: name of a row -> a published value, drawn as a hollow marker.
        mark: legend of the hollow markers.
        behind: values of a reference, shape (n,), whose density is drawn behind the rows.
    """
    marked = {name: value for name, value in (hollow or {}).items() if name in dict(rows)}

    def draw(axes: Any) -> None:
        for level in levels:
            axes.axvline(level, color=INK, linewidth=0.7, linestyle=":", zorder=0.6)
        step = 0.72 / len(names)
        handles: list[Any] = []
        for number in range(len(names)):
            color, marker = SERIES[number % 6], MARKERS[number // 6 % 5]
            handles += axes.plot([], [], marker=marker, color=color, markersize=4, linewidth=1)
            for center, (_, cells) in enumerate(rows):
                if cells and cells[number]:
                    at = center - 0.36 + step * (number + 0.5)
                    _series(axes, at, cells[number], color, marker)
        if marked:
            order = [name for name, _ in rows]
            heights = [order.index(name) for name in marked]
            look = {"markerfacecolor": "none", "markeredgecolor": INK, "markersize": 5.5}
            handles += axes.plot(list(marked.values()), heights, "D", **look)
        _name_rows(axes, rows)
        if behind is not None:
            _density_behind(axes, behind)
        if limits is not None:
            axes.set_xlim(*limits)
        axes.grid(axis="x")
        axes.set_xlabel(label)
        if legend:
            _legend(axes, handles[-len(legend) :], legend)

    legend = [*(names if len(names) > 1 else []), *([mark] if marked else [])]
    height = 0.7 + (0.17 + 0.06 * len(names)) * len(rows) + _legend_height(legend or [""])
    return drawing(f"dots {label} {rows[0][0]}", draw, height)


def _name_rows(axes: Any, rows: Sequence[tuple[str, Sequence[Any]]]) -> None:
    """The names of rows on the y axis, from the top; those without values are headings."""
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    for text, (_, cells) in zip(axes.get_yticklabels(), rows, strict=True):
        if not cells:
            text.set_fontweight("bold")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)


def _series(axes: Any, at: float, cells: Sequence[Interval], color: str, marker: str) -> None:
    """The intervals of a series at a height: the last one large, the others as small dots."""
    mean, low, high = bounds(cells)
    axes.hlines(at, low[-1], high[-1], color=color, alpha=0.4, linewidth=2.4)
    axes.plot(mean, np.full_like(mean, at), color=color, linewidth=0.7)
    small = {"marker": marker, "color": color, "markersize": 1.9, "linestyle": "none"}
    axes.plot(mean[:-1], np.full_like(mean[:-1], at), **small)
    axes.plot(mean[-1], at, marker=marker, color=color, markersize=4, zorder=3)


def _density_behind(axes: Any, values: np.ndarray) -> None:
    from scipy.stats import gaussian_kde  # noqa: PLC0415

    left, right = axes.get_xlim()
    at = np.linspace(min(left, values.min()), max(right, values.max()), 201)
    density = gaussian_kde(values)(at)
    bottom, top = axes.get_ylim()
    heights = bottom + (top - bottom) * density / density.max()
    axes.fill_between(at, heights, bottom, color=SERIES[1], alpha=0.2, linewidth=0, zorder=0.5)
