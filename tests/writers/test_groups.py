"""Grades by group: means, differences from the mean over all groups, and what a page shows."""

import math

import numpy as np
import pyarrow as pa
import pytest

from litbench.metrics.intervals import mean_interval
from litbench.runs.errors import ConfigError
from litbench.writers.grades import CHARACTERS, FAILURE, GradeTable, method_correlations
from litbench.writers.group_page import group_rows, group_sections
from litbench.writers.groups import ALL, group_matrices, group_matrix, groups_of_prompts

RANDOM = np.random.default_rng(5)


def test_groups_of_prompts_differ_from_the_rest():
    """The difference is (1 - share) x (mean of the group - mean of the others)."""
    grades = RANDOM.normal(size=20)
    rows = [(f"p{k}", "ab"[k % 4 == 0], grade) for k, grade in enumerate(grades)]
    cells = group_matrix("grades", {"ash": rows}).cells["ash"]
    inside, outside = grades[::4], np.delete(grades, slice(None, None, 4))
    cell = cells["b"]
    expected = mean_interval(inside, range(5))
    assert (cell.grade.mean, cell.grade.high) == pytest.approx((expected.mean, expected.high))
    assert cell.difference.mean == pytest.approx(0.75 * (inside.mean() - outside.mean()))
    half = cell.difference.high - cell.difference.mean
    assert half == pytest.approx(2.776445 * math.sqrt(linear_variance(inside, outside)), rel=1e-5)


def linear_variance(inside, outside):
    """The variance of the linearised difference, written out for both kinds of prompts."""
    n, k = len(inside) + len(outside), len(inside)
    overall = (inside.sum() + outside.sum()) / n
    shifts = np.concatenate(
        [n / k * (inside - inside.mean()) - (inside - overall), -(outside - overall)]
    )
    return float((shifts**2).sum() / (n * (n - 1)))


def test_judges_of_the_same_prompts_are_paired():
    base, noise = RANDOM.normal(0, 10, 12), RANDOM.normal(0, 0.1, (2, 12))
    rows = [
        (f"p{k}", judge, base[k] + shift + noise[at, k])
        for at, (judge, shift) in enumerate((("mild", 1.0), ("strict", -1.0)))
        for k in range(12)
    ]
    matrix = group_matrix("grades", {"ash": rows})
    mild = matrix.cells["ash"]["mild"]
    expected = mean_interval(1 + (noise[0] - noise[1]) / 2, range(12))
    assert mild.difference.low == pytest.approx(expected.low)
    assert mild.difference.high == pytest.approx(expected.high)
    assert mild.grade.high - mild.grade.low > 10 * (expected.high - expected.low)
    assert mild.p_holm < 0.001


def graded(stories=None, people=()):
    """Two writers, six prompts, two criteria: cedar is 1 better, people add 0.5 to the plot."""
    rows = [
        {
            "writer": writer,
            "prompt_id": f"p{prompt}",
            "sample": 0,
            "rater": rater,
            "quantity": quantity,
            "grade": level
            + prompt / 10
            + shift
            + (0.5 if (rater, quantity) == ("ann", "plot") else 0),
        }
        for writer, level in (("birch", 2.0), ("cedar", 3.0))
        for prompt in range(6)
        for rater, shift in (("mild", 0.25), ("strict", -0.25), *((name, 0.0) for name in people))
        for quantity in ("overall", "plot", "style")
    ]
    return GradeTable(rows, 0, set(people), stories, {}, "overall", [], criteria=["plot", "style"])


def means(matrix, group):
    return {row: cells[group].grade.mean for row, cells in matrix.cells.items()}


def test_people_minus_judges_and_utilities_by_criterion():
    ratings, gaps, utilities = group_matrices(graded(people=("ann",)), "criterion", "overall", 1.0)
    assert means(ratings, "plot") == pytest.approx({"birch": 2.25, "cedar": 3.25, ALL: 2.75})
    for criterion, gap in (("plot", 0.5), ("style", 0.0)):
        assert means(gaps, criterion) == pytest.approx(dict.fromkeys(("birch", "cedar", ALL), gap))
    assert utilities.title.endswith("by people")
    assert means(utilities, "plot")["cedar"] > 0 > means(utilities, "plot")["birch"]
    (alone, ranked) = group_matrices(graded(), "criterion", "overall", 1.0)
    assert (alone.title, ranked.title[-6:]) == (ratings.title, "judges")


def test_groups_have_correlations_lengths_and_failures():
    table = pa.table({"prompt_id": [f"p{k}" for k in range(6)], "task": ["open", "guide"] * 3})
    of_run = graded(table, people=("ann",))
    # A third writer, whom judges see last and people first.
    for row in [row for row in of_run.rows if row["writer"] == "birch"]:
        shift = 2 if row["rater"] == "ann" else -2
        of_run.rows.append(row | {"writer": "ash", "grade": row["grade"] + shift})
    for number in range(6):
        row = {"prompt_id": f"p{number}", "writer": "ash", "sample": 0, "rater": "mild"}
        failed = {"quantity": f"{FAILURE}platitude", "grade": float(number < 1)}
        length = {"quantity": f"{CHARACTERS}reference", "rater": None, "grade": 10.0 * number}
        of_run.rows += [row | failed, row | length]
    _, lengths, failures = group_matrices(of_run, "task", "overall", 0.0)
    assert means(lengths, "open") == pytest.approx({"reference": 20})
    assert means(failures, "open") == pytest.approx({"platitude": 1 / 3})
    methods = method_correlations(of_run, "overall", [groups_of_prompts(of_run, "task")])
    assert {judge for _, judge, _ in methods} == {"mild", "strict"}
    for _, _, by_group in methods:
        spearman = {group: row.spearman for group, row in by_group.items()}
        assert spearman == pytest.approx(dict.fromkeys(("all", "guide", "open"), -0.5))


def test_judges_have_means_correlations_and_a_spread():
    grades, correlations, spread = group_matrices(graded(people=("ann",)), "judge", "overall", 0.0)
    assert grades.groups == ["mild", "strict", "people"]
    assert means(grades, "mild") == pytest.approx({"birch": 2.5, "cedar": 3.5, ALL: 3.0})
    assert correlations.groups == list(correlations.cells) == grades.groups
    assert correlations.cells["mild"]["strict"].grade.mean == pytest.approx(1)
    assert means(spread, "p3") == pytest.approx(dict.fromkeys(spread.cells, math.sqrt(0.125)))


def test_a_page_has_every_cell_and_orders_writers():
    groups = {"prompt": group_matrices(graded(), "prompt", "overall", 0.0)}
    (section,), (text,) = group_sections(groups, ["cedar"])
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["cedar", "birch", "all"]
    assert lines[3].split()[1:] == ["2.00", "2.10", "2.20", "2.30", "2.40", "2.50"]
    assert "<svg" in section.figures[0].drawing.svg
    rows = list(group_rows(groups))
    assert len(rows) == 18
    assert {row["prompts"] for row in rows} == {1}


@pytest.mark.parametrize(
    ("by", "says"), [("genre", "no column 'genre'"), ("step", "stories"), ("judgee", "judge")]
)
def test_an_unknown_grouping_is_refused(by, says):
    with pytest.raises(ConfigError, match=says):
        group_matrices(graded(), by, "overall", 0.0)


def test_a_column_without_values_is_refused():
    empty = pa.table({"prompt_id": ["p0"], "genre": pa.nulls(1, pa.string())})
    with pytest.raises(ConfigError, match="'overall by genre' has no values"):
        group_matrices(graded(empty), "genre", "overall", 0.0)
