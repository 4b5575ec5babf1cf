"""Plots are whole, the same each time, in the light colours as files and themed on a page."""

import itertools
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import rc_params_from_file

from litbench.evaluation.report import figures
from litbench.metrics.intervals import Interval

DAYS = np.array([18_000, 18_200, 18_900])


def around(mean):
    return Interval(mean, mean - 0.1, mean + 0.1, 40, 8, 8.0)


DRAWN = {
    "curves": lambda: figures.curves(
        [
            figures.Line(
                "a",
                [(10, around(0.6), [0.5, 0.7]), (40, around(0.8), [0.8])],
                labels=["at ten"],
                published=[(10, 0.7)],
            )
        ],
        "pairs",
        tick=figures.short_count,
        references=[("coin", 0.5)],
    ),
    "dots": lambda: figures.dots(
        [("heading", []), ("plot", [[around(0.1), around(0.2)], []])],
        ["a", "b"],
        "effect",
        hollow={"plot": 0.1},
    ),
    "distribution": lambda: figures.distribution(np.array([1, 9]), np.array([2**62]), "words"),
    "densities": lambda: figures.densities({"a": np.array([1.0, 2, 2, 4]), "b": DAYS}, "rating"),
    "heat_map": lambda: figures.heat_map(
        ["a", "b"],
        ["c", "d", "e"],
        np.array([[1.0, -2, np.nan], [0, 0.5, 3]]),
        "gap",
        center=0,
        bold=np.eye(2, 3) > 0,
    ),
    "scatter": lambda: figures.scatter({"a": (DAYS, DAYS % 7), "b": (DAYS, DAYS % 5)}, "x", "y"),
    "behind": lambda: figures.dots([("a", [[around(1.8)]])], ["a"], "score", behind=DAYS / 1e4),
    "bars": lambda: figures.bars({"first": 0.7, "second": 0.3}, "share"),
    "timeline": lambda: figures.timeline(DAYS, DAYS + 30),
    "length_buckets": lambda: figures.length_buckets(np.arange(8), np.arange(8) // 2, 400),
}


def texts_of(drawn):
    return [node.text for node in ElementTree.fromstring(drawn.source).iter() if node.text]  # noqa: S314


@pytest.mark.parametrize("name", DRAWN)
def test_colours_of_files_and_page(name, tmp_path):
    for folder in ("one", "two"):
        drawn = DRAWN[name]()
        (tmp_path / folder).mkdir()
        for file, write in drawn.files("plot").items():
            write(tmp_path / folder / file)
    for file in ("plot.svg", "plot.png"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    svg = (tmp_path / "one" / "plot.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(svg)  # noqa: S314
    assert figures.COLORS["ink"] in svg
    assert "var(" not in svg
    assert not any(color in drawn.svg for color in figures.COLORS.values())
    assert "var(--ink)" in drawn.svg


def test_a_heat_map_has_its_numbers_and_widens():
    drawn = figures.heat_map(["a"], ["b", "c"], np.array([[-0.001, np.nan]]), "gap", center=0)
    assert "0.00" in texts_of(drawn)
    assert "−0.00" not in texts_of(drawn)
    assert drawn.figure.get_figwidth() == figures.WIDTH
    columns = [f"genre {number}" for number in range(12)]
    drawn = figures.heat_map(["a"], columns, np.arange(1000.4, 1012)[None], "characters")
    assert {"1000", "1011"} <= set(texts_of(drawn))
    assert drawn.figure.get_figwidth() > figures.WIDTH


def test_the_style_file_has_the_colours_of_the_page():
    style = rc_params_from_file(figures.STYLE, use_default_template=False)
    cycle = style["axes.prop_cycle"].by_key()["color"]
    results = [style["text.color"], style["grid.color"], *cycle]
    wanted = [figures.INK, figures.FAINT, *figures.SERIES]
    assert [color.lstrip("#") for color in results] == [color.lstrip("#") for color in wanted]


@pytest.mark.parametrize(
    ("first", "last", "wanted"),
    [
        (18_262, 19_357, {"2020", "2021", "2022"}),
        (18_628, 18_990, {"2021"}),
        (19_000, 19_020, {"Jan", "2022-Jan", "08", "15"}),
    ],
    ids=["three years", "one year", "three weeks"],
)
def test_dates_are_of_the_calendar_and_stand_once(first, last, wanted):
    axes = figures.timeline(np.array([first, last]), np.array([last])).figure.axes[0]
    ticks = [tick.get_text() for tick in axes.get_xticklabels()]
    assert len(ticks) == len(set(ticks)) >= 2
    shown = {*ticks, axes.xaxis.get_offset_text().get_text()}
    assert shown & wanted
    assert not any("." in text for text in shown)


def test_counts_are_whole_and_ticks_do_not_overlap():
    for drawn in (DRAWN["timeline"](), DRAWN["distribution"](), DRAWN["length_buckets"]()):
        axes = drawn.figure.axes[0]
        assert all(float(at).is_integer() for at in axes.get_yticks())
        boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


def test_a_name_like_a_style_leaves_the_plot_whole():
    names = ("font: 3px x", "font-family: y", "var(--z)", 'style="fill: red"', "_plain", "$x$")
    drawn = figures.dots([("a", [[around(0.5)]] * len(names))], names, "x")
    for svg in (drawn.source, drawn.svg):
        shown = [node.text for node in ElementTree.fromstring(svg).iter() if node.text]  # noqa: S314
        assert set(names) <= set(shown)


def test_names_in_any_script_are_drawn_without_a_warning(tmp_path):
    # Warnings are errors: an unknown glyph, in whatever font, must not stop a page.
    drawn = figures.dots([("深度求索 \U00013000", [[around(0.5)]])], ["작가"], "評分")
    assert "深度求索" in drawn.source
    for file, write in drawn.files("names").items():
        write(tmp_path / file)
        assert (tmp_path / file).stat().st_size > 0
