"""The plot of a power calculation."""

from collections.abc import Sequence
from typing import Any

from litbench.report.figures import (
    INK,
    MARKERS,
    SERIES,
    Drawing,
    drawing,
    legend,
    legend_height,
    scale_sizes,
)


def pairs_needed(
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    at_hand: int | None,
    label: str,
    tick: float,
) -> Drawing:
    """Pairs that an effect takes, against its size; both on scales of logarithms.

    Args:
        lines: name and points by growing effect: the effect in points of agreement, pairs.
        at_hand: pairs of the evaluation; a horizontal line. None for none.
        label: the effect with its unit.
        tick: the effect that is assumed or was seen; a vertical line.
    """

    def draw(axes: Any) -> None:
        handles: list[Any] = []
        for place, (_, points) in enumerate(lines):
            handles += axes.plot(
                *zip(*points, strict=True), color=SERIES[place % len(SERIES)], linewidth=1.5,
                marker=MARKERS[place // len(SERIES) % 5], markersize=3,
            )  # fmt: skip
        scale_sizes(axes, [effect for _, points in lines for effect, _ in points], "{:g}".format)
        left, right = axes.get_xlim()
        if left < tick < right:
            axes.axvline(tick, color=INK, linewidth=0.8, linestyle=":")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        if at_hand is not None:
            handles.append(axes.axhline(at_hand, color=INK, linewidth=0.9, linestyle=(0, (6, 2))))
        axes.grid(axis="y")
        axes.set_xlabel(label)
        axes.set_ylabel("pairs needed")
        legend(axes, handles, names)

    names = [name for name, _ in lines]
    if at_hand is not None:
        names.append(f"{at_hand:,} pairs at hand")
    return drawing(f"pairs needed {label}", draw, 2.7 + legend_height(names))
