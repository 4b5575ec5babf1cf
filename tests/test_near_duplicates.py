"""Near-duplicates are found by what texts share, whatever the order and the size of batches."""

import random
import sys
from math import sqrt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.curation import near_duplicates
from litbench.curation.near_duplicates import (
    NearDuplicateIndex,
    bands_and_rows,
    exact_similarity,
    near_duplicate_groups,
    story_words,
)
from litbench.errors import ConfigError, DataError, MissingExtraError
from litbench.text import count_words

CHINESE = "山中有一座古老的寺廟住著個和尚他每天早晨都去河邊打水看見魚兒在水裡游來春風吹過柳樹"


def words_of(source, n):
    """So many made-up words; two texts share no run of five but by design."""
    return [f"{source.choice('bdfgklmnprst')}{source.randrange(5_000)}" for _ in range(n)]


def changed(source, words, n):
    """The words with n of them replaced."""
    words = list(words)
    for place in source.sample(range(len(words)), n):
        words[place] = f"other{source.randrange(10**6)}"
    return words


def stories(texts, prefix="s"):
    ids = [f"{prefix}{place:05d}" for place in range(len(texts))]
    return pa.table({"story_id": ids, "text": pa.array(texts, pa.large_string())})


def groups_of(texts, **options):
    """Sets of places of the texts that were grouped."""
    found = near_duplicate_groups([stories(texts)], **options).to_pylist()
    groups = {}
    for row in found:
        groups.setdefault(row["group"], set()).add(int(row["story_id"][1:]))
    for name, members in groups.items():
        assert int(name[1:]) == min(members), "a group is named for its smallest story_id"
        assert len(members) > 1
    return sorted(groups.values(), key=min)


def between(texts_a, texts_b, **options):
    with NearDuplicateIndex(**options) as index:
        a, b = stories(texts_a, "a"), stories(texts_b, "b")
        index.add(a["story_id"], a["text"], "train")
        index.add(b["story_id"], b["text"], "test")
        return index.between("train", "test").to_pylist()


def shared_runs(text_a, text_b, size=5):
    """Jaccard similarity, written out anew."""
    first, second = (
        {tuple(words[place : place + size]) for place in range(max(len(words) - size + 1, 1))}
        for words in (text.lower().split() for text in (text_a, text_b))
    )
    return len(first & second) / len(first | second)


# The similarity ---------------------------------------------------------------------------------


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=12),
       st.lists(st.sampled_from("ab"), min_size=1, max_size=12),
       st.integers(1, 6))  # fmt: skip
def test_exact_similarity_is_the_share_of_runs_in_common(first, second, size):
    a, b = " ".join(first), " ".join(second)
    assert exact_similarity(a, b, size) == pytest.approx(shared_runs(a, b, size))


def test_the_estimate_is_unbiased_and_as_spread_as_theory_has_it():
    source = random.Random(3)
    originals = [words_of(source, 300) for _ in range(250)]
    copies = [" ".join(changed(source, words, 8)) for words in originals]
    originals = [" ".join(words) for words in originals]
    found = between(originals, copies, threshold=0.5)
    assert len(found) == len(originals)
    errors, expected = [], []
    for row in found:
        place = int(row["story_a"][1:])
        assert int(row["story_b"][1:]) == place
        exact = exact_similarity(originals[place], copies[place])
        errors.append(row["similarity"] - exact)
        expected.append(exact * (1 - exact) / 128)
    error = sqrt(np.mean(expected))
    assert abs(np.mean(errors)) < 4 * error / sqrt(len(errors))
    assert max(map(abs, errors)) < 5 * error
    assert 0.5 * error < np.std(errors) < 1.25 * error


def test_more_hashes_estimate_more_closely():
    source = random.Random(4)
    originals = [words_of(source, 300) for _ in range(60)]
    copies = [" ".join(changed(source, words, 12)) for words in originals]
    originals = [" ".join(words) for words in originals]
    spread = {}
    for num_perm in (32, 512):
        errors = [
            row["similarity"]
            - exact_similarity(originals[int(row["story_a"][1:])], copies[int(row["story_a"][1:])])
            for row in between(originals, copies, threshold=0.3, num_perm=num_perm)
        ]
        spread[num_perm] = np.std(errors)
    assert spread[512] < 0.6 * spread[32]


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
    assert exact_similarity(text, retyped) == 1
    assert groups_of([text, retyped]) == [{0, 1}]


letters = st.text("abcdeéñß 語日本かナー.,!?\n中文", max_size=60)


@given(letters)
def test_a_word_is_what_count_words_counts(text):
    words = story_words(pa.array([text], pa.large_string()))[0].as_py() or []
    assert len(words) == count_words(pa.array([text]))[0].as_py()


# Groups -----------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(
    families=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    seed=st.integers(0, 1_000),
    cut=st.integers(1, 9),
)
def test_groups_are_families_of_copies_whatever_order_and_batches(families, seed, cut):
    source = random.Random(seed)
    texts, expected = [], []
    for size in families:
        words = words_of(source, 150)
        members = set(range(len(texts), len(texts) + size))
        # Copies of a copy count as well; each is at 0.93 of its original and 0.87 of its sister.
        texts += [" ".join(words)]
        texts += [" ".join(changed(source, words, 1)) for _ in range(size - 1)]
        if size > 1:
            expected.append(members)
    assert groups_of(texts) == expected
    table = stories(texts)
    order = list(range(len(texts)))
    source.shuffle(order)
    shuffled = table.take(pa.array(order))
    batches = [shuffled.slice(start, cut) for start in range(0, len(texts), cut)]
    assert near_duplicate_groups(batches).equals(near_duplicate_groups([table]))


def test_chance_meetings_in_a_band_are_no_near_duplicates():
    source = random.Random(5)
    originals = [words_of(source, 400) for _ in range(40)]
    # At a similarity of 0.3, three of the hashes of some band agree for two pairs in three.
    copies = [" ".join(changed(source, words, 60)) for words in originals]
    originals = [" ".join(words) for words in originals]
    exact = [exact_similarity(*pair) for pair in zip(originals, copies, strict=True)]
    assert 0.2 < np.mean(exact) < 0.36
    assert groups_of(originals + copies, threshold=0.5) == []
    assert between(originals, copies, threshold=0.5) == []
    assert len(groups_of(originals + copies, threshold=0.1)) > 35


def test_close_copies_are_all_found():
    source = random.Random(6)
    originals = [words_of(source, 500) for _ in range(300)]
    copies = [" ".join(changed(source, words, 3)) for words in originals]
    originals = [" ".join(words) for words in originals]
    assert min(exact_similarity(*pair) for pair in zip(originals, copies, strict=True)) > 0.9
    assert groups_of(originals + copies) == [{place, place + 300} for place in range(300)]


def test_stories_linked_through_others_are_one_group():
    source = random.Random(7)
    words = words_of(source, 600)
    # Each window of 400 words shares most with the next and half with the last.
    texts = [" ".join(words[start : start + 400]) for start in (0, 40, 80, 120, 160)]
    assert exact_similarity(texts[0], texts[-1]) < 0.5
    assert groups_of(texts, threshold=0.7) == [{0, 1, 2, 3, 4}]
    assert groups_of([texts[0], texts[-1]], threshold=0.7) == []


def test_a_bucket_is_searched_to_its_end():
    # The second is like the first, the third like the second alone; the fourth is like none.
    halves = np.array([[1, 1, 1, 1], [1, 1, 1, 2], [1, 1, 2, 2], [3, 3, 3, 3]], np.uint32)
    parent = np.arange(4)
    with NearDuplicateIndex(threshold=0.75) as index:
        index._link(np.arange(4), halves, parent)
    roots = [near_duplicates._root(parent, row) for row in range(4)]
    assert roots[0] == roots[1] == roots[2] != roots[3]


def test_a_thousand_copies_do_not_take_a_million_comparisons(monkeypatch):
    compared = []
    similarity = near_duplicates._similarity

    def counting(signatures, row, others):
        compared.append(len(others))
        return similarity(signatures, row, others)

    monkeypatch.setattr(near_duplicates, "_similarity", counting)
    source = random.Random(8)
    words = words_of(source, 200)
    texts = [" ".join(changed(source, words, 1)) for _ in range(1_000)]
    assert [len(group) for group in groups_of(texts, threshold=0.7)] == [1_000]
    assert sum(compared) < 20_000


def test_chinese_goes_by_characters():
    source = random.Random(9)
    stories_of = ["".join(source.choices(CHINESE, k=300)) for _ in range(3)]
    copy = list(stories_of[1])
    copy[100] = "龍"
    spaced = "\n".join(stories_of[2][start : start + 30] for start in range(0, 300, 30))
    assert groups_of([*stories_of, "，".join(["".join(copy)]), spaced]) == [{1, 3}, {2, 4}]


def test_short_texts_match_only_when_all_their_words_do():
    texts = ["The end.", "the end", "The end now", "end the", "a b c d", "a b c d e", "a b c d e"]
    assert groups_of(texts) == [{0, 1}, {5, 6}]


def test_texts_without_words_are_like_no_other():
    assert groups_of(["", "", "...", "***", "   ", "- - -"]) == []
    assert groups_of(["", "a word", "!", "A word!"]) == [{1, 3}]
    empty = near_duplicate_groups([])
    assert empty.num_rows == 0
    assert empty.column_names == ["story_id", "group"]


@pytest.mark.parametrize(
    "piece", [" ", "a", "語", "'", "\u0301", "\u200d", "a\u0301", "'a-", "𝔞", "x ", "\x00"]
)
def test_a_million_hostile_characters_are_only_a_long_text(piece):
    text = (piece * 1_000_000)[:1_000_000]
    groups = groups_of([text, "an honest story of six words", text])
    assert groups in ([], [{0, 2}])
    assert bool(groups) == bool(story_words(pa.array([text], pa.large_string()))[0].as_py())


def test_characters_that_stand_for_many_are_only_a_longer_text():
    assert groups_of(["ﷺ " * 50_000, "word " * 50_000, "ﷺ\n" * 50_000]) == [{0, 2}]


def test_a_huge_text_shares_no_batch(monkeypatch):
    monkeypatch.setattr(near_duplicates, "_BYTES_AT_ONCE", 100)
    monkeypatch.setattr(near_duplicates, "_ROWS_AT_ONCE", 3)
    source = random.Random(10)
    texts = [" ".join(words_of(source, n)) for n in (2, 40, 3, 1, 1, 1, 1, 1, 90)]
    texts += texts[::-1]
    slices = list(near_duplicates._slices(pa.array(texts)))
    assert [row for start, stop in slices for row in range(start, stop)] == list(range(18))
    assert all(stop - start <= 3 for start, stop in slices)
    assert (1, 2) in slices
    assert len(groups_of(texts)) == 9


# Between parts ----------------------------------------------------------------------------------


def test_between_names_every_story_with_its_closest():
    source = random.Random(11)
    one, two = words_of(source, 300), words_of(source, 300)
    edited, other = changed(source, one, 3), words_of(source, 300)
    train = [" ".join(words) for words in (one, edited, other)]
    test = [" ".join(words) for words in (two, edited, one)]
    assert exact_similarity(train[0], test[1]) > 0.85, "each is near both, and closest to itself"
    assert [(row["story_a"][-1], row["story_b"][-1], row["similarity"])
            for row in between(train, test)] == [("0", "2", 1), ("1", "1", 1)]  # fmt: skip
    found = between([train[0], train[1]], [train[0]])
    assert [(row["story_a"][-1], row["story_b"][-1]) for row in found] == [("0", "0"), ("1", "0")]
    assert found[1]["similarity"] < 1


def test_of_equally_close_stories_the_smallest_id_is_named():
    texts = ["the very same story of eight words here"] * 3
    found = between(texts, texts)
    assert {(row["story_a"][-1], row["story_b"][-1]) for row in found} == {
        *(("0", "0"), ("0", "1"), ("0", "2")),
        *(("1", "0"), ("2", "0")),
    }


def test_groups_of_one_part_do_not_see_the_others():
    texts = pa.array(["one two three four five six", "one two three four five six"])
    with NearDuplicateIndex() as index:
        index.add(pa.array(["a", "b"]), texts, "train")
        index.add(pa.array(["a", "c"]), texts, "test")
        assert index.groups("train")["story_id"].to_pylist() == ["a", "b"]
        assert index.groups("test").to_pylist() == [
            {"story_id": "a", "group": "a"},
            {"story_id": "c", "group": "a"},
        ]
        assert index.groups("validation").num_rows == 0
        with pytest.raises(DataError, match=r"'a' comes twice"):
            index.groups()


# Options and files ------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.7, 0.8, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("num_perm", [16, 100, 128, 256])
def test_bands_let_few_pairs_at_the_threshold_escape(threshold, num_perm):
    bands, rows = bands_and_rows(threshold, num_perm)
    assert bands * rows <= num_perm
    if rows > 1:
        assert (1 - threshold**rows) ** bands <= 0.005
    if rows < num_perm:
        longer = rows + 1
        assert (1 - threshold**longer) ** (num_perm // longer) > 0.005, "longer bands would do"


def test_the_seed_decides_the_estimate_and_nothing_else_does():
    source = random.Random(12)
    words = words_of(source, 200)
    texts = [" ".join(words)], [" ".join(changed(source, words, 4))]
    seeds = [0, 1, 2, 3, -1, 2**70]
    first = [between(*texts, threshold=0.5, seed=seed)[0]["similarity"] for seed in seeds]
    again = [between(*texts, threshold=0.6, seed=seed)[0]["similarity"] for seed in seeds]
    assert first == again
    assert len(set(first)) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0}, "threshold is 0: give a similarity above 0"),
        ({"threshold": 1.1}, "threshold is 1.1"),
        ({"num_perm": 8}, "num_perm is 8: give from 16"),
        ({"num_perm": 10**6}, "num_perm is 1000000"),
        ({"shingle": 0}, "shingle is 0: give from 1"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        near_duplicate_groups([], **options)


def test_nulls_and_repeated_ids_are_refused():
    with pytest.raises(DataError, match=r"1 of 2 story_ids and 0 texts .* null"):
        near_duplicate_groups([pa.table({"story_id": ["a", None], "text": ["x", "y"]})])
    with pytest.raises(DataError, match=r"0 of 2 story_ids and 1 texts .* null"):
        near_duplicate_groups([pa.table({"story_id": ["a", "b"], "text": ["x", None]})])
    with pytest.raises(DataError, match=r"story_id 'a' comes twice"):
        near_duplicate_groups([pa.table({"story_id": ["a", "b", "a"], "text": ["x", "y", "z"]})])


def test_columns_may_be_of_any_arrow_text_type():
    texts = ["one two three four five six", "seven", "one two three four five six"]
    coded = pa.dictionary(pa.int32(), pa.string())
    for kind in (pa.string(), pa.large_string(), pa.string_view(), coded):
        table = pa.table({"story_id": ["a", "b", "c"], "text": pa.array(texts).cast(kind)})
        for batches in ([table], table.to_batches(), [table.slice(1), table.slice(0, 1)]):
            assert near_duplicate_groups(batches)["story_id"].to_pylist() == ["a", "c"], kind


def test_no_file_is_left_behind(tmp_path):
    near_duplicate_groups([stories(["one two three"] * 2)], folder=tmp_path)
    with pytest.raises(DataError):
        near_duplicate_groups([pa.table({"story_id": ["a"], "text": pa.nulls(1, pa.string())})],
                              folder=tmp_path)  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match=r"cannot write signatures .* choose another folder"):
        near_duplicate_groups([], folder=tmp_path / "absent")


def test_without_rensa_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(MissingExtraError, match=r"litbench\[data\]"):
        near_duplicate_groups([])
