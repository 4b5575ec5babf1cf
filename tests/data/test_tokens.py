"""Counting tokens."""

import pytest
from tokenizers import Tokenizer, models

from litbench.data.curation.tokens import count_tokens, load_tokenizer
from litbench.runs.errors import ConfigError


@pytest.fixture
def letters(tmp_path):
    """A tokenizer file with one token per letter, truncation at three tokens and padding."""
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, " ": 2}, merges=[]))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_tokenizer_limits_are_ignored(letters):
    texts = ["", "a", "ab ba", "ab" * 700]
    for path in (letters, letters / "tokenizer.json"):
        counts = count_tokens(load_tokenizer(str(path)), texts, [1] * 4, 20_000)
        assert counts.tolist() == [0, 1, 5, 1_400]


def test_a_text_too_long_to_tokenise_gets_its_words(letters):
    counts = count_tokens(load_tokenizer(str(letters)), ["ab", "ab"], [20, 21], 20)
    assert counts.tolist() == [2, 21]


def test_a_tokenizer_that_cannot_be_loaded_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer '.*': cannot be loaded"):
        load_tokenizer(str(tmp_path))
