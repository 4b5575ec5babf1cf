"""Plots, as SVG that follows the page's theme.

matplotlib draws with placeholder colours, which are then replaced by CSS variables: one picture
serves light and dark. Text stays text, so that it can be read, searched and scaled.
"""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from litbench.errors import MissingExtraError
from litbench.metrics.calibration import Calibration
from litbench.metrics.intervals import Interval

_INK, _FAINT = "#010101", "#020202"
_SERIES = ("#030301", "#030302", "#030303", "#030304", "#030305", "#030306")
_VARIABLES = {
    _INK: "var(--ink)",
    _FAINT: "var(--line)",
    **{color: f"var(--series-{place})" for place, color in enumerate(_SERIES, 1)},
}
_WIDTH, _HEIGHT = 4.4, 2.7


def _draw(name: str, draw: Callable[[Any], None], height: float = _HEIGHT) -> str:
    """Run `draw(axes)` on a fresh figure and return it as themed inline SVG."""
    try:
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report") from error
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        # A rater may be called "$x$".
        "text.parse_math": False,
        "font.size": 9,
        "axes.edgecolor": _FAINT,
        "axes.labelcolor": _INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "text.color": _INK,
        "grid.color": _FAINT,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.fontsize": 8,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    # Width and height come from the page; the view box keeps the proportions.
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", svg, count=1)
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"', r'<svg \1role="img"', svg, count=1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1; font-family: inherit", svg)


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
            axes.hist(before, edges, color=_SERIES[1], alpha=0.55, label="before")
        label = None if before is None else "after"
        axes.hist(after, edges, color=_SERIES[0], alpha=0.85, label=label)
        axes.axvline(0, color=_INK, linewidth=0.8)
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
        axes.hist(
            chosen, edges, histtype="stepfilled", color=_SERIES[0], alpha=0.45, label="chosen"
        )
        axes.hist(
            rejected, edges, histtype="step", color=_SERIES[1], linewidth=1.4, label="rejected"
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

    def draw(axes: Any) -> None:
        ranges = sorted({(low, high) for _, rows in raters for low, high, _ in rows})
        for place, (name, rows) in enumerate(raters[: len(_SERIES)]):
            x = np.array([ranges.index((low, high)) for low, high, _ in rows], dtype=float)
            x += (place - (len(raters) - 1) / 2) * 0.09
            mean = np.array([interval.mean for *_, interval in rows])
            low = np.array([interval.low for *_, interval in rows])
            high = np.array([interval.high for *_, interval in rows])
            spread = np.nan_to_num(np.abs(np.vstack([mean - low, high - mean])))
            axes.errorbar(
                x, mean, spread, fmt="o-", color=_SERIES[place], markersize=3.5, linewidth=1.1,
                elinewidth=0.8, label=name,
            )  # fmt: skip
        axes.axhline(0.5, color=_INK, linewidth=0.7, linestyle=":")
        labels = [
            f"{low:.0f}+" if np.isinf(high) else f"{low:.0f}-{high - 1:.0f}" for low, high in ranges
        ]
        axes.set_xticks(range(len(ranges)), labels)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("difference in length, words")
        axes.set_ylabel("agreement")
        axes.legend(ncols=2)

    return _draw("gap", draw, 2.9)


def reliability(raters: Sequence[tuple[str, Calibration]]) -> str:
    """Reliability curve: agreement against confidence, with intervals."""

    def draw(axes: Any) -> None:
        axes.plot([0.5, 1], [0.5, 1], color=_INK, linewidth=0.7, linestyle=":")
        for place, (name, found) in enumerate(raters[: len(_SERIES)]):
            x = np.array([confidence for confidence, _ in found.bins])
            mean = np.array([interval.mean for _, interval in found.bins])
            low = np.array([interval.low for _, interval in found.bins])
            high = np.array([interval.high for _, interval in found.bins])
            spread = np.nan_to_num(np.abs(np.vstack([mean - low, high - mean])))
            axes.errorbar(
                x, mean, spread, fmt="o-", color=_SERIES[place], markersize=3.5, linewidth=1.1,
                elinewidth=0.8, label=name,
            )  # fmt: skip
        axes.set_xlim(0.49, 1.01)
        axes.set_ylim(0.2, 1.02)
        axes.set_xlabel("confidence, max(p, 1 - p)")
        axes.set_ylabel("agreement")
        axes.legend(loc="lower right")

    return _draw("reliability", draw, 2.9)


def coefficients(rows: Sequence[tuple[str, float, float, float]]) -> str:
    """Feature coefficients, largest first: (name, mean, least, most) over models."""

    def draw(axes: Any) -> None:
        place = np.arange(len(rows))[::-1]
        mean = np.array([row[1] for row in rows])
        spread = np.vstack([mean - [row[2] for row in rows], [row[3] for row in rows] - mean])
        colors = [_SERIES[0] if value > 0 else _SERIES[1] for value in mean]
        axes.barh(place, mean, color=colors, height=0.66, alpha=0.8)
        axes.errorbar(mean, place, xerr=np.abs(spread), fmt="none", ecolor=_INK, elinewidth=0.8)
        axes.set_yticks(place, [row[0].replace("_", " ") for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.axvline(0, color=_INK, linewidth=0.8)
        axes.set_xlabel("coefficient, log-odds per standard deviation")

    return _draw("coefficients", draw, 0.9 + 0.27 * len(rows))


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
            axes.stairs(before[inner], edges, fill=True, color=_SERIES[1], alpha=0.55,
                        label="before")  # fmt: skip
        label = None if before is None else "after"
        axes.stairs(after[inner], edges, fill=True, color=_SERIES[0], alpha=0.85, label=label)
        axes.axvline(0, color=_INK, linewidth=0.8)
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

        axes.stairs(chosen, edges, fill=True, color=_SERIES[0], alpha=0.45, label="chosen")
        axes.stairs(rejected, edges, color=_SERIES[1], linewidth=1.4, label="rejected")
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
            colors.append(to_rgba(_SERIES[0], round(float(depth), 3)))
        axes.add_collection(PolyCollection(corners, facecolors=colors, edgecolors="none"))
        ends = (edges[0], edges[-1])
        axes.plot(ends, ends, color=_INK, linewidth=0.7, linestyle=":")
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
        for place, (name, counts) in enumerate(series[: len(_SERIES)]):
            axes.stairs(
                100 * counts / max(counts.sum(), 1), edges, color=_SERIES[place], linewidth=1.4,
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
        drawn = series[: len(_SERIES)]
        width = 0.8 / len(drawn)
        for place, (name, values) in enumerate(drawn):
            x = np.arange(len(names)) + (place - (len(drawn) - 1) / 2) * width
            axes.bar(x, 100 * values, width * 0.92, color=_SERIES[place], alpha=0.85, label=name)
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
        for place, (name, sizes) in enumerate(series[: len(_SERIES)]):
            held = np.append(0, np.cumsum(np.sort(sizes)[::-1])) / sizes.sum()
            share = np.linspace(0, 1, len(held))
            # A line of a hundred thousand prompts looks the same through fewer points.
            at = np.unique(np.linspace(0, len(held) - 1, 400).astype(int))
            axes.plot(100 * share[at], 100 * held[at], color=_SERIES[place], linewidth=1.4,
                      label=name)  # fmt: skip
        axes.plot([0, 100], [0, 100], color=_INK, linewidth=0.7, linestyle=":")
        axes.set_xlabel("% of prompts, largest first")
        axes.set_ylabel("% of pairs")
        if len(series) > 1:
            axes.legend(loc="lower right")

    return _draw("concentration", draw)


def scaling(
    lines: Sequence[tuple[str, Sequence[tuple[float, Interval, Sequence[float]]]]],
    references: Sequence[tuple[str, float]],
    label: str,
    tick: Callable[[float], str],
) -> str:
    """Agreement against a quantity that grows, on a scale of logarithms (paper, Figure 5).

    Args:
        lines: name and points by growing quantity: the quantity, agreement with its interval
            (drawn as a band), agreement of each seed (drawn as dots).
        references: name and agreement of raters without a place on the axis; horizontal lines.
        label: the quantity with its unit.
        tick: writes a value of it.
    """

    def draw(axes: Any) -> None:
        from matplotlib.ticker import NullLocator  # noqa: PLC0415

        axes.axhline(0.5, color=_FAINT, linewidth=1.2, zorder=0.6)
        handles: list[Any] = []
        for place, (_, points) in enumerate(lines):
            color, marker = _SERIES[place % 6], "osD^v"[place // 6 % 5]
            x = np.array([at for at, *_ in points], dtype=float)
            mean = np.array([interval.mean for _, interval, _ in points])
            low = np.array([interval.low for _, interval, _ in points])
            high = np.array([interval.high for _, interval, _ in points])
            if len(points) > 1:
                # Bands of many lines cover each other.
                alpha = 0.16 if len(lines) < 4 else 0.09
                axes.fill_between(x, low, high, color=color, alpha=alpha, linewidth=0)
            else:
                axes.vlines(x, low, high, color=color, alpha=0.4, linewidth=3)
            seeds = [(at, value) for at, _, values in points for value in values]
            if seeds:
                axes.scatter(*zip(*seeds, strict=True), s=9, color=color, alpha=0.5, linewidth=0)
            handles += axes.plot(x, mean, marker=marker, color=color, markersize=4.5, linewidth=1.5)
        for place, (_, value) in enumerate(references):
            style = ((0, (6, 2)), (0, (1, 1.6)), (0, (6, 2, 1, 2)), (0, (3, 1.5)))[place % 4]
            line = axes.axhline(value, color=_INK, linewidth=0.9, linestyle=style, alpha=0.75)
            handles.append(line)
        places = sorted({at for _, points in lines for at, *_ in points})
        axes.set_xscale("log")
        left, right = np.log(places[0]), np.log(places[-1])
        margin = 0.06 * (right - left) or 0.7
        axes.set_xlim(np.exp(left - margin), np.exp(right + margin))
        ticks: list[float] = []
        for at in places:
            # Each point says its value where there is room.
            if not ticks or np.log(at / ticks[-1]) >= 0.11 * (right - left):
                ticks.append(at)
        axes.set_xticks(ticks, [tick(at) for at in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="y")
        axes.set_xlabel(label)
        axes.set_ylabel("agreement")
        # By hand: matplotlib takes a label that begins with _ for none.
        axes.figure.legend(handles, names, loc="outside upper left", ncols=columns,
                           columnspacing=1.2, handlelength=2.4)  # fmt: skip

    names = [name for name, _ in (*lines, *references)]
    # The letters of a row, each name with its line and the space around it.
    columns = max(1, min(3, len(names), 62 // (max(map(len, names)) + 8)))
    return _draw(f"scaling {label}", draw, 2.7 + 0.17 * -(-len(names) // columns))
