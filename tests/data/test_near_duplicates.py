"""Near-duplicates are found by shared shingles, independently of order."""

import random
from math import sqrt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.data.curation.near_duplicates import (
    HASHES,
    NearDuplicateIndex,
    bands_for,
)


def words_of(source, n):
    """Return n invented words; unrelated texts share no five-word shingle."""
    return [f"{source.choice('bdfgklmnprst')}{source.randrange(5_000)}" for _ in range(n)]


def changed(source, words, n):
    """Return the words with n of them replaced."""
    words = list(words)
    for index in source.sample(range(len(words)), n):
        words[index] = f"other{source.randrange(10**6)}"
    return words


def stories(texts, prefix="s"):
    ids = [f"{prefix}{index:05d}" for index in range(len(texts))]
    return pa.table({"story_id": ids, "text": pa.array(texts, pa.large_string())})


def near_duplicate_groups(batches, **options):
    index = NearDuplicateIndex(**options)
    for batch in batches:
        index.add(batch["story_id"], batch["text"])
    return index.groups()


def groups_of(texts, **options):
    """Return the groups as sets of indices of texts."""
    groups = {}
    for row in near_duplicate_groups([stories(texts)], **options).to_pylist():
        groups.setdefault(row["group"], set()).add(int(row["story_id"][1:]))
    for name, members in groups.items():
        assert int(name[1:]) == min(members), "a group is named for its smallest story_id"
        assert len(members) > 1
    return sorted(groups.values(), key=min)


def closest(texts_a, texts_b, **options):
    indexes = []
    for prefix, texts in (("a", texts_a), ("b", texts_b)):
        index = NearDuplicateIndex(**options)
        table = stories(texts, prefix)
        index.add(table["story_id"], table["text"])
        indexes.append(index)
    return indexes[0].closest(indexes[1])


def exact_similarity(text_a, text_b, size=5):
    """Return the Jaccard similarity of the sets of shingles."""
    first, second = (
        {tuple(words[start : start + size]) for start in range(max(len(words) - size + 1, 1))}
        for words in (text.split() for text in (text_a, text_b))
    )
    return len(first & second) / len(first | second)


def copies_of(source, count, words, edits):
    originals = [words_of(source, words) for _ in range(count)]
    copies = [" ".join(changed(source, original, edits)) for original in originals]
    return [" ".join(original) for original in originals], copies


def test_estimate_has_the_expected_bias_and_spread():
    originals, copies = copies_of(random.Random(3), 250, 300, 8)
    result = closest(originals, copies, threshold=0.5)
    assert len(result) == len(originals)
    errors, expected = [], []
    for story_a, story_b, similarity in result:
        index = int(story_a[1:])
        assert int(story_b[1:]) == index
        exact = exact_similarity(originals[index], copies[index])
        errors.append(similarity - exact)
        expected.append(exact * (1 - exact) / HASHES)
    error = sqrt(np.mean(expected))
    assert abs(np.mean(errors)) < 4 * error / sqrt(len(errors))
    assert max(map(abs, errors)) < 5 * error


@pytest.mark.parametrize(
    "retyped",
    [
        "SHE SAID, “DON’T GO” AND WENT\n\n**TO** THE HALF LIGHT OF THE OLD QUAY",
        "she said dont go... and went to the half-light of the old quay!",
        "She\u200b said: 'don't go' -- and we\u00adnt to the half light of the old quay",
        '  She said "don\'t go"; and went to the half—light of the ｏｌｄ quay  ',
    ],
)
def test_case_punctuation_and_spacing_do_not_matter(retyped):
    text = 'She said, "don\'t go" and went to the half-light of the old quay.'
    assert groups_of([text, retyped], threshold=1) == [{0, 1}]


@settings(max_examples=10)
@given(
    families=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    seed=st.integers(0, 1_000),
    cut=st.integers(1, 9),
)
def test_groups_do_not_depend_on_order_or_batches(families, seed, cut):
    source = random.Random(seed)
    texts, expected = [], []
    for size in families:
        words = words_of(source, 150)
        if size > 1:
            expected.append(set(range(len(texts), len(texts) + size)))
        # Each copy has a similarity of 0.93 with its original and 0.87 with another copy.
        texts += [" ".join(words)]
        texts += [" ".join(changed(source, words, 1)) for _ in range(size - 1)]
    assert groups_of(texts) == expected
    table = stories(texts)
    order = list(range(len(texts)))
    source.shuffle(order)
    shuffled = table.take(pa.array(order))
    batches = [shuffled.slice(start, cut) for start in range(0, len(texts), cut)]
    assert near_duplicate_groups(batches).equals(near_duplicate_groups([table]))


def test_stories_linked_through_others_are_one_group():
    words = words_of(random.Random(7), 600)
    # Each window of 400 words shares most with the next and half with the last.
    texts = [" ".join(words[start : start + 400]) for start in (0, 40, 80, 120, 160)]
    assert groups_of(texts, threshold=0.7) == [{0, 1, 2, 3, 4}]
    assert groups_of([texts[0], texts[-1]], threshold=0.7) == []


def test_texts_without_words_are_like_no_other():
    assert groups_of(["", "", "...", "***", "   ", "- - -"]) == []
    assert groups_of(["", "a word", "!", "A word!"]) == [{1, 3}]
    assert near_duplicate_groups([]).column_names == ["story_id", "group"]


@pytest.mark.parametrize("piece", [" ", "語", "\u0301", "x "])
def test_hostile_characters_are_only_a_long_text(piece):
    text = (piece * 300_000)[:300_000]
    assert groups_of([text, "an honest story of six words", text]) in ([], [{0, 2}])


def test_closest_names_every_story_with_its_most_similar():
    source = random.Random(11)
    first, two = words_of(source, 300), words_of(source, 300)
    edited, other = changed(source, first, 3), words_of(source, 300)
    train = [" ".join(words) for words in (first, edited, other)]
    test = [" ".join(words) for words in (two, edited, first)]
    assert exact_similarity(train[0], test[1]) > 0.85, "each is near both, and closest to itself"
    assert closest(train, test) == [("a00001", "b00001", 1), ("a00000", "b00002", 1)]
    ((_, _, similarity),) = closest(train[:1], train[1:2])
    assert 0.8 <= similarity < 1
    # Of equally similar stories the smallest id is named, for every copy.
    same = ["the very same story of eight words here"] * 2
    assert closest(same, same) == [("a00000", "b00000", 1), ("a00000", "b00001", 1)]


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.7, 0.8, 0.9, 0.99, 1.0])
def test_bands_let_few_pairs_at_the_threshold_escape(threshold):
    bands = bands_for(threshold)
    assert HASHES % bands == 0
    assert bands == HASHES or (1 - threshold ** (HASHES // bands)) ** bands <= 0.005
