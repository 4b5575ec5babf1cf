"""The pictures of the papers: which runs have them, and what they show."""

import json

import numpy as np
import pyarrow as pa
import pytest

from litbench.raters.templates.rubric import load_rubric
from litbench.runs.errors import ConfigError
from litbench.writers.grades import LENGTHS, GradeTable, Repeats
from litbench.writers.pictures import pictures

CRITERIA = [criterion.name for criterion in load_rubric("webnovel").criteria]
WRITERS, PROMPTS = ("birch", "cedar"), [f"p{number}" for number in range(12)]
COMMON = ["Mean lengths"]


def graded(*quantities, judges=("fair",)):
    random = np.random.default_rng(3)
    rows = [
        {"writer": writer, "prompt_id": prompt, "sample": 0, "rater": rater, "quantity": name}
        | {"grade": float(random.normal(5, 1))}
        for writer in WRITERS
        for prompt in PROMPTS
        for name in ("overall", *quantities)
        for rater in ([None] if name in LENGTHS else judges)
    ]
    texts = [(writer, prompt) for writer in WRITERS for prompt in PROMPTS]
    columns = {
        "source": [writer for writer, _ in texts],
        "prompt_id": [prompt for _, prompt in texts],
        "n_words": [900 + 300 * (writer == "cedar") for writer, _ in texts],
        "genre": ["ode" if prompt < "p2" else "tale" for _, prompt in texts],
    }
    return GradeTable(rows, 0, set(), pa.table(columns), {}, "overall", [])


CASES = {
    "plain": (graded(), {}, COMMON),
    "lengths": (graded(*LENGTHS), {}, [*COMMON, "Lengths and grades"]),
    "judges": (
        graded(judges=("fair", "mild")),
        {"by": ["judge"]},
        [*COMMON, "Judges on single texts"],
    ),
    "weights": (
        graded("weight logic"),
        {"by": ["genre"]},
        [*COMMON, "Spread of the weights by genre"],
    ),
    "novels": (graded(*CRITERIA), {}, [*COMMON, "Distributions"]),
}


@pytest.mark.parametrize(("table", "options", "titles"), CASES.values(), ids=CASES)
def test_a_run_has_the_pictures_of_its_data(table, options, titles):
    sections = pictures(table, "overall", [], **options)
    assert [section.title for section in sections] == titles
    for figure in (figure for section in sections for figure in section.figures):
        assert "<svg" in figure.drawing.svg


def test_lengths_and_repeats():
    samples = [f"{'p0' * 16}, sample {number}" for number in (1, 2)]
    repeats = [Repeats("birch", name, "fair", [1.0, 2.0, 4.0]) for name in ("p0", *samples)]
    lengths, repeated = pictures(graded(), "overall", repeats, words=(800, 1200))
    assert "800 to 1,200" in lengths.figures[0].caption
    svg = lengths.figures[0].drawing.source
    assert svg.index("cedar") < svg.index("birch"), "the longest first"
    for name in ("p0", "sample 1", "sample 2"):
        assert f"{name}, birch, fair" in repeated.figures[0].drawing.source


def test_place_among_novels(tmp_path):
    parameters = {
        **dict.fromkeys(("mean", "std"), [1.0] * 8),
        "weights": [0.125] * 8,
        "min_score": -1,
        "max_score": 1,
        "normalized_existing_scores": [k / 19 for k in range(20)],
        "explained_variance": [0.65, *[0.05] * 7],
    }
    (tmp_path / "novels.json").write_text(json.dumps(parameters))
    section, *_ = pictures(graded("value"), "overall", [], novels=tmp_path / "novels.json")
    assert [figure.title for figure in section.figures] == [
        "Writers",
        "Weights of the criteria",
        "Principal components",
    ]
    assert "20 novels" in section.notes
    assert [row[-1] for row in section.table.rows] == [0.125] * 8
    with pytest.raises(ConfigError, match="value"):
        pictures(graded(), "overall", [], novels=tmp_path / "novels.json")
