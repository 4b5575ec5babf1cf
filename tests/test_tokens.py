"""Tokens are counted as the tokenizer does."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from litbench.curation.tokens import count_tokens, load_tokenizer
from litbench.errors import ConfigError


@pytest.fixture(scope="session")
def tokenizer(tiny_model) -> str:
    return str(tiny_model("llama"))


def one_by_one(tokenizer: str, texts: list[str]) -> list[int]:
    loaded = Tokenizer.from_file(str(Path(tokenizer) / "tokenizer.json"))
    return [len(loaded.encode(text, add_special_tokens=False).ids) for text in texts]


@settings(max_examples=20)
@given(st.lists(st.text(max_size=30), max_size=30))
def test_any_texts_are_counted_as_the_tokenizer_does(tokenizer: str, texts: list[str]) -> None:
    counts = count_tokens(load_tokenizer(tokenizer), texts, [1] * len(texts), 100)
    assert counts.tolist() == one_by_one(tokenizer, texts)


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """A tokenizer file with one token per letter that would cut texts at three and pad them."""
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, " ": 2}, merges=[]))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_tokens_are_counted_in_full_whatever_limits_the_tokenizer_has(letters: Path) -> None:
    texts = ["", "a", "ab ba", "ab" * 700]
    for place in (letters, letters / "tokenizer.json"):
        counts = count_tokens(load_tokenizer(str(place)), texts, [1] * 4, 20_000)
        assert counts.tolist() == [0, 1, 5, 1_400]


def test_a_text_too_long_to_tokenise_gets_its_words(letters: Path) -> None:
    counts = count_tokens(load_tokenizer(str(letters)), ["ab", "ab"], [20, 21], 20)
    assert counts.tolist() == [2, 21]


def test_a_tokenizer_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer '.*': cannot be loaded"):
        load_tokenizer(str(tmp_path))
