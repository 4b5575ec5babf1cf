"""Repetition index, grades and robustness; the printed numbers as a labelled reference."""

from statistics import fmean

import pytest
from narra_golden import golden

from litbench.writers.metrics import GradeCell, writer_rows
from litbench.writers.narra.quantities import (
    CRITERIA,
    grades,
    published_rating,
    repetition_index,
)

# Published per-judge means over all cells (paper, section on judge calibration).
PRINTED_JUDGE_MEANS = (1.97, 3.58, 3.22)
SHORT = dict(
    zip(
        CRITERIA,
        ["REL", "COH", "EMP", "SUR", "ENG", "CPX", "CHAR", "SAT", "PQUAL", "HELP", "REUSE"],
        strict=True,
    )
)


def test_golden_repetition():
    for case in golden("slop_stats")["cases"]:
        texts = [line["content"] for line in case["dialogue"] if line["role"] != "user"]
        assert repetition_index(texts) == case["expected"]["slop_score"]


def test_golden_ratings():
    for case in golden("judge_normalise")["cases"]:
        scores = case["raw"].get("scores")
        raw = scores if isinstance(scores, dict) else {}
        expected = case["expected"]
        results = {name: published_rating(name, raw.get(name)) for name in CRITERIA}
        assert results == expected["scores"]
        assert round(grades(results)["storyq"], 3) == expected["story_quality_mean"]
        assert round(grades(results)["ux"], 3) == expected["ux_mean"]


def test_missing_is_a_one_only_as_published():
    # The published code turns what a judge leaves out into the worst rating; ours stays missing.
    assert published_rating("story_empathy", None) == 1
    assert grades({"story_empathy": 4, "story_surprise": None}) == {
        "storyq": 4,
        "ux": None,
        "all11": 4,
    }


@pytest.mark.parametrize(
    ("criterion", "value", "expected"),
    [
        ("story_empathy", 2.5, 2),
        ("story_empathy", "3.6", 4),
        ("story_empathy", 9, 5),
        ("story_empathy", "high", 1),
        ("story_empathy", float("inf"), 1),
        ("ux_use_again_intent", 2, 1),
        ("ux_use_again_intent", 4, 3),
        ("ux_use_again_intent", 5, 5),
    ],
)
def test_published_ratings(criterion, value, expected):
    assert published_rating(criterion, value) == expected


def test_golden_aggregates():
    ours = {
        "storyq": "story_quality_mean",
        "ux": "human_benchmark_ux_mean",
        "all11": "user_experience_mean",
    }
    for case in golden("judge_aggregate")["cases"]:
        # The published code rounds each judge's grade to three digits before it takes the mean.
        judges = [
            {
                g: None if v is None else round(v, 3)
                for g, v in grades(judge["user_experience"]["scores"]).items()
            }
            for judge in case["per_judge"]
        ]
        for grade, name in ours.items():
            numbers = [judge[grade] for judge in judges if judge[grade] is not None]
            assert round(fmean(numbers), 3) == case["expected"][name], case["expected"]


def test_printed_story_quality_is_of_seven_and_printed_experience_of_eleven():
    results = {}
    for row in golden("published_tables")["cases"]:
        ratings = {name: row["dimensions"][SHORT[name]] for name in CRITERIA}
        results[row["model"]] = grades(ratings)
        assert round(results[row["model"]]["storyq"] + 1e-9, 2) == row["storyq_published"]
        assert results[row["model"]]["all11"] == pytest.approx(row["ux_published"], abs=0.0051)
    assert round(results["Claude Sonnet"]["ux"], 2) == 3.78
    order = sorted(results, key=lambda model: -results[model]["ux"])
    key = {
        key: next(i for i, model in enumerate(order) if key in model)
        for key in ("V3.2", "V4", "GLM", "Doubao")
    }
    assert key["V3.2"] < key["V4"]
    assert key["GLM"] < key["Doubao"]


def test_offsets_undo_a_missing_strict_judge():
    middle = fmean(PRINTED_JUDGE_MEANS)
    complete = [
        GradeCell(writer, persona, f"judge {index}", level + ease + mean - middle)
        for writer, level in (("ash", 3.9), ("birch", 3.2), ("cedar", 2.4))
        for persona, ease in (("mei", -0.6), ("sara", 0.5), ("eli", 0.1))
        for index, mean in enumerate(PRINTED_JUDGE_MEANS)
    ]
    holes = {("ash", "mei"), ("cedar", "eli")}
    cells = [c for c in complete if (c.writer, c.prompt) not in holes or c.judge != "judge 0"]
    (cell,) = {c.grade for c in complete if c[:3] == ("ash", "mei", "judge 0")}
    grades = [c.grade for c in cells if c[:2] == ("ash", "mei")]
    assert fmean(grades) - fmean([cell, *grades]) == pytest.approx(0.48, abs=0.005)
    means = {row.writer: row.grade.mean for row in writer_rows(cells)}
    expected = {row.writer: row.grade.mean for row in writer_rows(complete)}
    assert means == pytest.approx(expected, abs=1e-9)
