"""Plots that are files of their own: SVG and PNG in the page's light colours."""

import io
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from litbench.metrics.intervals import Interval
from litbench.report import figures


def around(mean):
    return Interval(mean, mean - 0.1, mean + 0.1, 40, 8, 8.0)


DRAWN = {
    "scaling": lambda: figures.scaling(
        [figures.Line("a", [(10, around(0.6), [0.5, 0.7]), (40, around(0.8), [0.8])],
                      (90, around(0.9)))],
        [("coin", 0.5)], "pairs", str,
    ),
    "explanation_effects": lambda: figures.explanation_effects(
        [("plot", around(0.1), [around(0.2), None])], ["a", "b"], {"plot": 0.1}
    ),
    "grouped": lambda: figures.grouped([("one", [("a", around(0.6), 0.7)])], "published"),
    "sizes": lambda: figures.scaling(
        [figures.Line("one", [(1e6, around(0.6), [])], labels=["a"], published=[(1e6, 0.7)]),
         figures.Line("one", [(1e9, around(0.7), [])])],
        [], "parameters", str,
    ),
    "probe_rates": lambda: figures.probe_rates(
        [("typos", [[around(0.3), around(0.4)], [None, None]])], ["a", "b"], 0.5
    ),
    "policy_curves": lambda: figures.policy_curves(
        [("reward", [(1, 0.0), (2, 1.0)], [(0, 0.0), (2, 1.0)], 0.5)]
    ),
    "coefficients": lambda: figures.coefficients([("up", 0.5, 0.4, 0.6), ("down", -1, -2, 0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_both_files_of_a_plot_have_the_light_colours(name, tmp_path):
    files = DRAWN[name]().files("plot")
    assert list(files) == ["plot.svg", "plot.png"]
    for file, write in files.items():
        write(tmp_path / file)
    svg = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(svg)  # noqa: S314
    assert "var(" not in svg
    light = figures.light_colors()
    assert light["series-1"] in svg or light["ink"] in svg
    pixels = imread(io.BytesIO((tmp_path / "plot.png").read_bytes()))[..., :3]
    seen = {tuple(color) for color in np.round(pixels.reshape(-1, 3) * 255).astype(int).tolist()}
    placeholders = (figures.INK, figures.FAINT, *figures.SERIES)
    assert not seen & {tuple(round(255 * part) for part in to_rgb(c)) for c in placeholders}
    assert tuple(round(255 * part) for part in to_rgb(light["ink"])) in seen


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_plot_gives_the_same_bytes(name, tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for file, write in DRAWN[name]().files("plot").items():
            write(tmp_path / folder / file)
    for file in ("plot.svg", "plot.png"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
