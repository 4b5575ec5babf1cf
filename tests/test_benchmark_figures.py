"""The comparison of a benchmark's figures with the baseline of a machine."""

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
