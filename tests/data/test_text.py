"""What counts as a word, and which prompts are the same one."""

import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.data.text import (
    count_words,
    count_words_of,
    digest,
    normalise,
    normalise_prompt,
    prompt_key,
)

WORDS = st.sampled_from(["night", "naïve", "Ænima", "42nd", "река", "don't", "half-light"])
HAN = st.sampled_from("你好世界夜雨")
KANA = st.sampled_from("ひらカター")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        (" \n\t ", 0),
        ("one", 1),
        ("She left, slowly.", 3),
        ("don't", 1),
        ("don’t", 1),
        ("rock 'n' roll", 3),
        ("'quoted'", 1),
        ("mother-in-law's", 1),
        ("half‑light", 1),
        ("word - word", 2),
        ("word--word", 2),
        ("no—yes", 2),
        ("half\u00adlight", 1),
        ("3 dogs and 1st", 4),
        ("snake_case", 2),
        ("# **The** _end_\n\n---\n\n> She *said*: `go`!\n\n***", 5),
        ("你好，世界！", 4),
        ("abc你好def", 1 + 2 + 1),
        ("我有3只cats。", 2 + 1 + 1 + 1),
        ("コーヒー", 4),
        ("한국어 문장", 2),
        ("это не сон", 3),
        ("สวัสดีชาวโลก", 1),
        ("𠀀𠀁", 2),
    ],
)
def test_words_are_counted_by_one_rule(text, words):
    assert count_words_of(text) == words


@pytest.mark.parametrize("word", ["café", "Ångström", "tiếng", "が", "ガール"])
def test_a_decomposed_character_counts_as_its_composed_one(word):
    decomposed = unicodedata.normalize("NFD", word)
    assert decomposed != word
    assert count_words_of(decomposed) == count_words_of(word)


@pytest.mark.parametrize("emoji", ["😀", "❤️", "❤", "👩‍🚀", "🏳️‍🌈", "👍🏽", "☠️", "©️"])
def test_emoji_are_no_words_and_split_none(emoji):
    assert count_words_of(emoji) == 0
    assert count_words_of(f"two {emoji} words") == 2
    assert count_words_of(f"two{emoji}words") == 2


@given(st.lists(WORDS, max_size=8), st.sampled_from([" ", "\n\n", "... ", " — ", "\u00a0"]))
def test_words_apart_by_anything_but_letters_add_up(words, gap):
    assert count_words_of(gap.join(words)) == len(words)


@given(st.lists(st.one_of(HAN, KANA), max_size=12), WORDS, WORDS)
def test_chinese_and_japanese_characters_are_words(characters, before, after):
    run = "".join(characters)
    assert count_words_of(run) == len(run)
    assert count_words_of(f"{before} {run} {after}") == 2 + len(run)
    assert count_words_of(before + "你" + run + after) == 1 + 1 + len(run) + 1


@given(st.lists(st.one_of(st.none(), st.text(max_size=30)), max_size=6))
def test_counts_do_not_depend_on_the_batch(texts):
    alone = [None if text is None else count_words_of(text) for text in texts]
    for kind in (pa.string(), pa.large_string()):
        together = count_words(pa.chunked_array([texts[:2], [], texts[2:]], kind))
        assert together.type == pa.int64()
        assert together.to_pylist() == alone


@given(st.text("ab1'-_. \n", max_size=30))
def test_ascii_texts_are_counted_by_the_same_rule(text):
    # A dash is no word and no ASCII.
    first, other = count_words(pa.array([text, text + " \u2014"])).to_pylist()
    assert first == other


@given(st.text(max_size=30), st.text(max_size=30))
def test_two_texts_on_two_lines_have_the_words_of_both(text, other):
    assert count_words_of(f"{text}\n{other}") == count_words_of(text) + count_words_of(other)


@pytest.mark.parametrize(
    "repost",
    [
        "[WP] The moon doesn't set tonight.",
        "[wp]The moon doesn't set tonight",
        "[WP][TT] The  moon doesn’t set\ntonight!!",
        "  [WP]   THE MOON DOESN'T SET TONIGHT...",
        "The moon doesn't set tonight",
        "[WP] “The moon doesn’t set tonight.”",
        "［WP］ The moon doesn't set tonight",
        "[WP] The moon doesn't set ton\u200bight",
        "[WP] The moon doesn't set to\u00adnight \ufe0f",
        "**[WP]** *The moon* doesn't set tonight",
    ],
)
def test_reposts_of_a_prompt_are_the_same_prompt(repost):
    first = "[WP] The moon doesn't set tonight."
    assert normalise_prompt(repost) == "the moon doesn t set tonight"
    assert prompt_key(repost) == prompt_key(first)


@pytest.mark.parametrize(
    "other",
    [
        "[WP] The moon does set tonight.",
        "[WP] The moons don't set tonight.",
        "[WP] The moon doesn't set tonight 2",
    ],
)
def test_other_prompts_stay_other_prompts(other):
    assert prompt_key(other) != prompt_key("[WP] The moon doesn't set tonight.")


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("STRASSE", "straße"),
        ("café", "cafe\u0301"),
        ("ﬁre", "fire"),
        ("Ｗｉｄｅ", "wide"),
        ("ΟΔΟΣ", "οδος"),
        ("“a” – ‘b’", "\"a\" - 'b'"),
    ],
)
def test_copies_of_a_text_fold_to_one(text, other):
    assert normalise(text) == normalise(other)


@given(st.text(max_size=40))
def test_folding_twice_is_folding_once(text):
    assert normalise(normalise(text)) == normalise(text)
    assert normalise(unicodedata.normalize("NFD", text)) == normalise(text)
    assert normalise_prompt(normalise_prompt(text)) == normalise_prompt(text)


def test_a_digest_keeps_its_parts_apart():
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab") != digest("ab", "")
    assert digest("\ud800") != digest("")
