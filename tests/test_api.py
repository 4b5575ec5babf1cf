"""The public functions take paths and tables, and return tables and pages."""

import random

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import litbench
from litbench.runs.errors import ConfigError, DataError


@pytest.fixture
def stories(invented):
    """Stories of six prompts under foreign names; those with more commas have more votes."""
    source = random.Random(6)
    commas = [source.randint(0, 8) for _ in range(30)]
    return {
        "heading": [f"A door, number {row // 5}" for row in range(30)],
        "body": [invented(source, source.randint(60, 120)) + "and so, " * n for n in commas],
        "hearts": [20 + 30 * n for n in commas],
    }


def test_exceptions_are_public():
    for name in litbench.errors.__all__:
        assert getattr(litbench, name) is getattr(litbench.errors, name)
    assert litbench.errors.DataError is DataError


def test_functions_go_from_a_frame_to_a_model_and_a_page(stories, tmp_path):
    fitted = litbench.fit(pd.DataFrame(stories), tmp_path / "mine", repeats=1)
    board = fitted.leaderboard.to_pandas().set_index("rater")
    assert board.loc["features", "agreement"] > board.loc["random", "agreement"]
    assert fitted.report(tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")
    model = litbench.load(fitted.model)
    assert model.columns == {"prompt": "heading", "text": "body"}
    again = litbench.benchmark(
        fitted.pairs.to_pandas(),
        {"mine": {"kind": "features", "path": fitted.model}},
        on_training_prompts="flag",
    )
    rewards = [
        model.score(fitted.pairs["prompt"].to_pylist(), fitted.pairs[side].to_pylist())
        for side in ("chosen", "rejected")
    ]
    agreement = np.mean((np.sign(rewards[0] - rewards[1]) + 1) / 2)
    result = again.leaderboard.to_pandas().set_index("rater").loc["mine"]
    assert result["agreement"] == pytest.approx(agreement, abs=1e-6)


def mixed_frame(rows):
    """A frame with scores of several types, and such a column that nobody reads."""
    frame = pd.DataFrame(rows)
    frame["hearts"] = [str(n) if k % 2 else n for k, n in enumerate(frame["hearts"])]
    return frame.assign(flags=["none" if k % 2 else 3 for k in range(len(frame))])


AS_TABLE = [
    pa.table,
    pd.DataFrame,
    mixed_frame,
    datasets.Dataset.from_dict,
    lambda rows: datasets.Dataset.from_dict(rows).to_iterable_dataset(),
]


@pytest.mark.parametrize("as_table", AS_TABLE)
def test_every_kind_of_table_gives_the_same_pairs(stories, as_table):
    result = litbench.make_pairs(as_table(stories))
    expected = litbench.make_pairs(pa.table(stories))
    assert result.pairs.equals(expected.pairs)
    assert result.funnel.to_pylist()[-1]["kept"] == result.pairs.num_rows > 0
    folder = result.folder
    del result
    assert not folder.exists(), "a temporary folder goes with its result"


def test_wrong_calls_are_named(stories, tmp_path):
    with pytest.raises(ConfigError, match=r"unknown key 'repeat': .*'repeats'"):
        litbench.fit(pa.table(stories), tmp_path, repeat=1)
    with pytest.raises(DataError, match="list is not a table"):
        litbench.make_pairs([stories])
    splits = datasets.DatasetDict(train=datasets.Dataset.from_dict(stories))
    with pytest.raises(DataError, match=r"DatasetDict has the splits train: .*data\['train'\]"):
        litbench.make_pairs(splits)
