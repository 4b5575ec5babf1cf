"""The files of a simulation study: study.csv, study.txt, study.html and its plots."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from litbench.artifact import Artifact
from litbench.metrics.intervals import Interval
from litbench.metrics.pairing_rules import TRUTH, Summary
from litbench.report.document import Figure, render, write_panels
from litbench.report.figures import INK, MARKERS, SERIES, bounds, drawing
from litbench.text import aligned

_PLOTTED = (
    ("agreement", "equal", "agreement, equal n"),
    ("agreement", "all", "agreement, all pairs"),
    ("prefers_longer", "equal", "prefers the longer, equal n"),
)


# The figures of one world, by variant, amount and measure.
Figures = Mapping[tuple[str, str, str], Summary]


def group_worlds(summaries: Sequence[Summary]) -> dict[str, dict[str, Figures]]:
    """The figures by sweep (`worlds` for single worlds), then by the label of the world."""
    found: dict[str, dict[str, Any]] = {}
    for one in summaries:
        group, label = one.world, f"{one.world} {one.value}"
        if one.value is None:
            group, label = "worlds", one.world
        of = found.setdefault(group, {}).setdefault(label.removesuffix(".0"), {})
        of[one.variant, one.amount, one.measure] = one
    return found


def variants_of(of: Figures) -> list[str]:
    """In the order of the study."""
    return list(dict.fromkeys(variant for variant, _, _ in of))


def _signed(value: Interval | None) -> str:
    if value is None or not np.isfinite(value.mean):
        return ""
    return f"{value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}]"


def table_rows(of: Figures, reference: str) -> list[list[str]]:
    """The table of one world: a heading, then a row for every variant."""
    rows = [[
        "variant", "agreement, equal n", f"minus {reference}", "prefers the longer",
        f"minus {reference}", "pairs are right", "chosen is longer", "pairs",
        "agreement, all pairs", f"minus {reference}",
    ]]  # fmt: skip
    for name in variants_of(of):
        longer, alone = of[name, "equal", "prefers_longer"], of[name, "all", "agreement"]
        equal, size = of[name, "equal", "agreement"], of[name, "all", "pairs"].interval.mean
        right, chosen = (of[name, "all", key].interval for key in ("right", "chosen_longer"))
        rows.append([
            name, str(equal.interval), _signed(equal.difference), str(longer.interval),
            _signed(longer.difference), f"{right.mean:.3f}", f"{chosen.mean:.3f}", f"{size:,.0f}",
            str(alone.interval), _signed(alone.difference),
        ])  # fmt: skip
    return rows


def study_text(summaries: Sequence[Summary], reference: str) -> str:
    """The figures for a terminal."""
    text = "Agreement is with true quality on random pairs; means and 95 % intervals over seeds.\n"
    for worlds in group_worlds(summaries).values():
        for label, of in worlds.items():
            equal = of[reference, "equal", "pairs"].interval.mean
            longer = of[reference, "equal", "random_longer"].interval
            text += f"\n{label}: equal n is {equal:,.0f} pairs; the better story is the longer in "
            text += f"{longer}\n{aligned(table_rows(of, reference))}"
    return text


def draw_group(group: str, worlds: Mapping[str, Figures]) -> Figure:
    """Three plots side by side, with a line for every variant."""
    names = [name for name in variants_of(next(iter(worlds.values()))) if name != TRUTH] + [TRUTH]
    labels = [label.removeprefix(f"{group} ").replace("_", " ") for label in worlds]
    is_sweep, at = group != "worlds", np.arange(len(worlds))

    def draw(axes: Any) -> None:
        figure = axes.figure
        axes.remove()
        for own, (measure, amount, title) in zip(figure.subplots(1, 3), _PLOTTED, strict=True):
            for place, name in enumerate(names):
                mean, low, high = bounds(
                    [w[name, amount, measure].interval for w in worlds.values()]
                )
                color = INK if name == TRUTH else SERIES[place % len(SERIES)]
                x = at + (0.1 if is_sweep else 0.6) * (place / len(names) - 0.5)
                own.vlines(x, low, high, color=color, alpha=0.4, linewidth=2)
                own.plot(x, mean, color=color, linestyle="-" if is_sweep else "none",
                         marker=MARKERS[place // len(SERIES) % 5], markersize=3.5)  # fmt: skip
            own.set_xticks(at, labels)
            if not is_sweep:
                own.tick_params(axis="x", rotation=90)
            own.set_title(title, fontsize=9, loc="left")
            own.grid(axis="y")
        legend = [name.replace("_", " ") for name in names]
        figure.legend(own.lines, legend, loc="outside upper left", ncols=5)

    caption = "Means and 95 % intervals over seeds; truth: trained on pairs labelled by quality."
    title = group.replace("_", " ")
    return Figure(title, caption, drawing(title, draw, 3.2 if is_sweep else 4.4, 9.0))


def _csv_row(one: Summary) -> dict[str, Any]:
    ends = {"": one.interval, "difference_": one.difference}
    return {
        **{key: getattr(one, key) for key in ("world", "value", "variant", "amount", "measure")},
        **{
            f"{name}{end}": None if interval is None else getattr(interval, end)
            for name, interval in ends.items()
            for end in ("mean", "low", "high")
        },
    }


def write_study(
    artifact: Artifact, summaries: Sequence[Summary], title: str, reference: str
) -> None:
    """Write all files but the rows.

    Args:
        artifact: takes the files.
        summaries: of every world, variant, amount and measure.
        title: heading of the page.
        reference: the variant that differences are to.

    Raises:
        MissingExtraError: jinja2 or matplotlib is not installed.
    """
    text, groups = study_text(summaries, reference), group_worlds(summaries)
    panels = {group: draw_group(group, worlds) for group, worlds in groups.items()}
    page = render(
        "study_page.html",
        title=title,
        # The page itself says that everything is simulated.
        label_sources=[],
        n_seeds=summaries[0].interval.n,
        tables={
            group: {label: table_rows(of, reference) for label, of in worlds.items()}
            for group, worlds in groups.items()
        },
        panels=panels,
        manifests={"study": artifact.made_of()},
    )
    table = pa.Table.from_pylist([_csv_row(one) for one in summaries])
    artifact.write("study.csv", lambda path: pa_csv.write_csv(table, path))
    artifact.write("study.txt", lambda path: path.write_text(text, encoding="utf-8"))
    write_panels(artifact, "study", panels)
    artifact.write("study.html", lambda path: path.write_text(page, encoding="utf-8"))
