"""Self-preference: families, and preferences counted by hand."""

import numpy as np
import pyarrow as pa
import pytest
from conftest import pair_table

from litbench.runs.errors import ConfigError
from litbench.suite.self_preference import (
    family_of,
    people_preference,
    read_families,
    self_preference,
)

FAMILIES = read_families()


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("openai/gpt-4.1-mini", "OpenAI"),
        ("GPT4", "OpenAI"),
        ("o3-mini", "OpenAI"),
        ("GPT-2 (tag)", None),
        ("openai-api/local/Qwen/QwQ-32B", "Alibaba"),
        ("DeepSeek-R1-Distill-Llama-70B", "DeepSeek"),
        ("anthropic/claude-sonnet-4-5", "Anthropic"),
        ("Vicuna-33B", "Meta"),
        ("Human-Novice", None),
        ("demo1", None),
        (None, None),
    ],
)
def test_family_of_a_name(name, family):
    assert family_of(name, FAMILIES) == family


def test_a_users_families_add_and_replace(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("Mine: house-model\nMeta: llama-9\n")
    families = read_families(path)
    assert family_of("House-Model-2", families) == "Mine"
    assert family_of("Vicuna-33B", families) is None
    path.write_text("Mine: '('\n")
    with pytest.raises(ConfigError, match="regular expression"):
        read_families(path)


def pairs_of(rows):
    """Pairs of (prompt, chosen system, rejected system, chosen rating, rejected rating)."""
    prompts, *columns = zip(*rows, strict=True)
    names = ("chosen_system", "rejected_system", "chosen_rating", "rejected_rating")
    table = pair_table.__wrapped__()([{"prompt_id": f"Task {prompt}"} for prompt in prompts])
    for name, column in zip(names, columns, strict=True):
        table = table.append_column(name, pa.array(column))
    return table


ROWS = [
    (0, "GPT-4", "Human", 5.0, 1.0),
    (0, "Llama", "GPT-4", 2.0, 1.0),
    (1, "Human", "GPT-4", 3.0, 3.0 - 1e-12),
    (1, "GPT-4", "gpt-3.5", 4.0, 1.0),
    (2, "Llama", "Human", 4.0, 1.0),
    (2, "GPT-4", "Llama", 4.0, 1.0),
]


def test_preference_beyond_people_counted_by_hand():
    """The judge prefers GPT-4 always; people in 1, 0, 1/2 and 1 of four pairs."""
    credit = np.array([1.0, 0, 0, 1, 1, 1, 1])
    rows = [*ROWS, (3, "GPT-4", None, 4.0, 1.0)]
    result = self_preference(credit, pairs_of(rows), "OpenAI", FAMILIES)
    means = {name: figure.mean for name, figure in result.items()}
    assert means == pytest.approx(
        {"own_family": 1, "own_family_people": 2.5 / 4, "own_family_excess": 1.5 / 4}
    )
    excess = result["own_family_excess"]
    assert (excess.n, excess.clusters) == (4, 3)


@pytest.mark.parametrize(
    ("change", "family", "why"),
    [
        (lambda table: table, "Google", "no pair"),
        (lambda table: table.drop_columns(["chosen_system"]), "OpenAI", "no column"),
        (
            lambda table: table.set_column(
                table.column_names.index("label_source"),
                "label_source",
                pa.array(["model"] * len(table)),
            ),
            "OpenAI",
            "no people here",
        ),
    ],
)
def test_no_number_without_people_or_sources(change, family, why):
    result = self_preference(np.ones(len(ROWS)), change(pairs_of(ROWS)), family, FAMILIES)
    assert isinstance(result, str)
    assert why in result


def test_equal_ratings_are_a_tie_whatever_the_rounding():
    assert people_preference(pairs_of(ROWS)).tolist() == [1, 1, 0.5, 1, 1, 1]
