"""Programs of benchmarks/: figures beside a machine's baseline, and the page of the papers."""

import pytest


@pytest.mark.parametrize(
    ("before", "now", "worse"),
    [
        ([1.00], [1.04], False),
        ([1.00], [0.96], False),
        ([1.00], [0.90], True),
        ([1.00], [1.10], False),
        ([0.98, 1.00, 1.02], [0.96], False),
        ([0.98, 1.00, 1.02], [0.90], True),
        ([0.98, 1.00, 1.02], [0.96, 0.97, 0.975], True),
        ([0.98, 1.00, 1.02], [0.90, 0.95, 1.00], False),
    ],
)
def test_a_single_repeat_may_differ_by_five_percent(before, now, worse, load_program):
    figures = load_program("benchmarks/figures.py")
    rows = [[figures.Figure("speed", ratios).row()] for ratios in (before, now)]
    assert bool(figures.changes(*rows)["worse"]) == worse


def test_the_page_of_the_papers_copies_sections_and_says_what_lacks(load_program, tmp_path):
    paper = load_program("benchmarks/paper.py")
    sections = '<h2 id="one-b">One</h2><p id="x">first</p><h2 id="two">Two</h2>'
    (tmp_path / "a.html").write_text(f"<main>{sections}</main>")
    (tmp_path / "b.svg").write_text('<?xml?><svg id="x"><use href="#x"/></svg>')
    common = {"paper": "P", "about": "<about>", "source": "s", "state": "whole"}
    common |= {"why not exactly": "why", "printed": "", "here": ""}
    rows = [
        common | {"item": f"Table {n}", "page": page}
        for n, page in enumerate(("a.html#one three", "b.svg", "c.html#one"))
    ]
    rows[1] |= {"printed": "0.24", "here": "0.23"}
    page = paper.paper_page(rows, tmp_path, "invented")
    assert page.count('<p id="i1-x">first</p>') == 1
    assert "no section three" in page
    assert "Two</h3>" not in page
    assert '<svg id="i2-x"><use href="#i2-x"/></svg>' in page
    assert page.count(paper.MISSING) == 1
    assert page.count("invented") == 4, "in the lead, its column, and with each item shown"
    assert "Printed: 0.24. From published data here: 0.23." in page
    assert "<about>" not in page
