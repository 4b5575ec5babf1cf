"""Splits and folds go by the prompt's normalised text; by date and author no rule leaks."""

from collections import Counter
from datetime import date

import ibis
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.curation.splits import (
    DATE_RULES,
    assign_folds,
    check_fractions,
    connected_prompts,
    date_split,
    day_start,
    group_prompts,
    shares_author,
    split_of,
)
from litbench.errors import ConfigError
from litbench.text import prompt_key

FRACTIONS = {"train": 0.7, "validation": 0.1, "test": 0.2}
PROMPTS = [f"[WP] Somebody finds door number {n} in the harbour." for n in range(3_000)]


@pytest.mark.parametrize(
    "repost",
    [
        "[WP] The clock strikes thirteen, and nobody looks up.",
        "[EU] The clock strikes thirteen, and nobody looks up.",
        "The clock strikes thirteen and nobody looks up",
        "  [wp]  THE CLOCK\nstrikes thirteen -- and nobody looks up...",
        "[WP][TT] “The clock strikes thirteen, and nobody looks up.”",
    ],
)
def test_a_repost_lands_in_the_split_of_the_original(repost):
    # By chance alone 20 seeds would agree with a probability of (0.7² + 0.1² + 0.2²)^20 = 2e-6.
    for seed in range(20):
        original = split_of(
            "[WP] The clock strikes thirteen, and nobody looks up.", FRACTIONS, seed
        )
        assert split_of(repost, FRACTIONS, seed) == original


def test_splits_hold_about_their_share_of_prompts():
    counts = Counter(split_of(prompt, FRACTIONS, 0) for prompt in PROMPTS)
    assert sum(counts.values()) == len(PROMPTS)
    for name, share in FRACTIONS.items():
        error = (share * (1 - share) / len(PROMPTS)) ** 0.5
        assert abs(counts[name] / len(PROMPTS) - share) < 4 * error, name


def test_another_seed_gives_other_splits():
    same = sum(split_of(p, FRACTIONS, 0) == split_of(p, FRACTIONS, 1) for p in PROMPTS)
    same /= len(PROMPTS)
    # Unrelated draws agree in 0.7² + 0.1² + 0.2² = 0.54 of the prompts, standard error 0.009.
    assert abs(same - 0.54) < 4 * 0.009


@pytest.mark.parametrize(
    "fractions",
    [
        {},
        {"train": 0.8, "test": 0.1},
        {"train": 0.8, "test": 0.3},
        {"train": 1.0, "test": 0.0},
        {"train": 1.2, "test": -0.2},
    ],
)
def test_shares_that_do_not_divide_the_whole_are_refused(fractions):
    with pytest.raises(ConfigError, match=r"splits: .*summing to 1"):
        check_fractions(fractions)


def test_shares_may_miss_one_by_what_floats_round():
    check_fractions({str(n): 0.1 for n in range(10)})
    check_fractions({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})


keys = st.sets(st.text("abcdef", min_size=1, max_size=5), min_size=2, max_size=40)


@given(keys=keys, folds=st.integers(2, 7), seed=st.integers(0, 5))
def test_folds_divide_the_prompts_evenly(keys, folds, seed):
    folds = min(folds, len(keys))
    assigned = assign_folds(keys, folds, seed)
    sizes = Counter(assigned.values())
    assert set(assigned) == keys
    assert set(sizes) == set(range(folds))
    assert max(sizes.values()) - min(sizes.values()) <= 1


def test_folds_do_not_depend_on_order_or_repeats():
    keys = [prompt_key(prompt) for prompt in PROMPTS[:50]]
    assert assign_folds(keys, 5, 0) == assign_folds([*keys[::-1], *keys[:9]], 5, 0)
    assert assign_folds(keys, 5, 0) != assign_folds(keys, 5, 1)


@pytest.mark.parametrize("folds", [-1, 0, 1, 4])
def test_more_folds_than_prompts_or_fewer_than_two_are_refused(folds):
    with pytest.raises(ConfigError, match=f"folds is {folds}: give from 2 to the 3 prompts"):
        assign_folds(["a", "b", "c", "c"], folds, 0)


# By date and by author -------------------------------------------------------------------------

DAY = 1_672_531_200  # 2023-01-01 00:00:00 UTC
SPLITS = st.sampled_from(["train", "test", "validation", "0 calibration"])


def stories(rows, **more):
    """Stories from (prompt_key, created_utc)."""
    return pa.table(
        {
            "story_id": [f"s{place:03d}" for place in range(len(rows))],
            "prompt_key": pa.array([key for key, _ in rows], pa.large_string()),
            "created_utc": pa.array([time for _, time in rows], pa.int64()),
            **more,
        }
    )


def dated(rows, straddling="train", test_from="2023-01-01"):
    """(split, split_removed) of every story, in their order."""
    table = stories(rows)
    made = date_split(ibis.memtable(table), test_from=test_from, straddling=straddling)
    assert set(made.columns) == {*table.column_names, "split", "split_removed"}
    found = made.order_by("story_id").to_pyarrow().to_pylist()
    assert [row["story_id"] for row in found] == table["story_id"].to_pylist()
    return [(row["split"], row["split_removed"]) for row in found]


def test_test_begins_with_the_first_second_of_the_day():
    rows = [("old", DAY - 1), ("new", DAY), ("newer", DAY + 10**8)]
    assert dated(rows) == [("train", None), ("test", None), ("test", None)]
    assert dated(rows, test_from=date(2023, 1, 2))[1] == ("train", None)
    assert day_start("1970-01-01") == 0


@pytest.mark.parametrize(
    ("straddling", "early", "late"),
    [
        ("train", ("train", None), (None, "straddling")),
        ("test", (None, "straddling"), ("test", None)),
        ("drop", (None, "straddling"), (None, "straddling")),
    ],
)
def test_a_prompt_on_both_sides_keeps_one(straddling, early, late):
    rows = [("p", DAY - 1), ("p", DAY), ("p", DAY + 1), ("p", None), ("q", DAY), ("r", DAY - 9)]
    assert dated(rows, straddling) == [
        early, late, late, (None, "no_time"), ("test", None), ("train", None),
    ]  # fmt: skip
    assert dated(rows[:2], straddling) == [early, late]


times = st.one_of(st.none(), st.integers(DAY - 3, DAY + 3))


@settings(max_examples=40)
@given(
    rows=st.lists(st.tuples(st.sampled_from("pqrs"), times), min_size=1, max_size=25),
    straddling=st.sampled_from(["train", "test", "drop"]),
)
def test_no_rule_leaves_a_prompt_or_a_day_in_both_splits(rows, straddling):
    found = dated(rows, straddling)
    sides = {}
    for (key, time), (split, removed) in zip(rows, found, strict=True):
        assert (split is None) == (removed is not None)
        assert removed is None or removed in DATE_RULES
        assert (removed == "no_time") == (time is None)
        if split is not None:
            assert split == ("test" if time >= DAY else "train")
            sides.setdefault(key, set()).add(split)
    assert all(len(splits) == 1 for splits in sides.values())
    both = {
        key
        for key in "pqrs"
        if {time >= DAY for k, time in rows if k == key and time is not None} == {True, False}
    }
    for (key, time), (split, _) in zip(rows, found, strict=True):
        if key not in both and time is not None:
            assert split is not None, "only prompts on both sides lose stories"
    if straddling != "drop":
        assert {key for key in both if sides.get(key) == {straddling}} == both


@pytest.mark.parametrize("day", ["2023-13-01", "soon", "2023", ""])
def test_a_date_that_is_none_is_refused(day):
    with pytest.raises(ConfigError, match=f"test_from is '{day}': give a day"):
        date_split(ibis.memtable(stories([("p", 0)])), test_from=day)


def marked_authors(rows, **options):
    """`shares_author` of stories from (split, author)."""
    table = stories(
        [("p", 0)] * len(rows),
        split=pa.array([split for split, _ in rows], pa.string()),
        author=pa.array([author for _, author in rows], pa.string()),
    )
    made = shares_author(ibis.memtable(table), **options)
    assert set(made.columns) == {*table.column_names, "shares_author"}
    found = made.order_by("story_id").to_pyarrow().to_pylist()
    assert [row["story_id"] for row in found] == table["story_id"].to_pylist()
    return [row["shares_author"] for row in found]


def test_train_gives_way_to_what_is_held_out():
    rows = [("train", "x"), ("test", "x"), ("train", "y"), ("train", None), ("test", None),
            ("validation", "x"), ("validation", "y")]  # fmt: skip
    assert marked_authors(rows) == [True, False, True, False, False, True, False]
    assert marked_authors(rows, keep=("train",)) == [False, True, False, False, False, True, True]


@settings(max_examples=40)
@given(st.lists(st.tuples(SPLITS, st.sampled_from(["x", "y", "z", None])), min_size=1, max_size=20))
def test_no_author_stays_in_two_splits_and_none_is_lost(rows):
    left = [row for row, gone in zip(rows, marked_authors(rows), strict=True) if not gone]
    for author in {author for _, author in rows} - {None}:
        splits = {split for split, name in left if name == author}
        assert len(splits) == 1
        held = [split for split, name in rows if name == author]
        first = next((name for name in ("test", "validation") if name in held), min(held))
        assert splits == {first}
    assert sum(author is None for _, author in left) == sum(author is None for _, author in rows)


EDGES = st.lists(
    st.tuples(*(st.integers(0, 7) for _ in range(4))).filter(lambda row: row[2] != row[3]),
    min_size=1,
    max_size=20,
)


def pairs_of(edges):
    """Pairs by numbers of prompt text, prompt_id and both stories."""
    names = ("prompt", "prompt_id", "chosen_story_id", "rejected_story_id")
    numbers = dict(zip(names, zip(*edges, strict=True), strict=True))
    return pa.table(
        {
            name: [f"{'story' if 'story' in name else name} {n}" for n in column]
            for name, column in numbers.items()
        }
    )


@given(EDGES)
def test_no_group_is_without_a_pair_that_shares_a_prompt_or_story(edges):
    groups = connected_prompts(pairs_of(edges))
    texts = {}
    for group, (prompt, name, *stories) in zip(groups, edges, strict=True):
        for node in (("prompt", prompt), ("id", name), *(("story", story) for story in stories)):
            assert texts.setdefault(node, group) == group
    # And no group is larger than it must be: flooding from its first pair reaches all of it.
    for group in set(groups):
        rows = {row for row, of_row in enumerate(groups) if of_row == group}
        reached = {min(rows)}
        while True:
            near = {
                row
                for row in rows
                for other in reached
                if edges[row][0] == edges[other][0]
                or edges[row][1] == edges[other][1]
                or set(edges[row][2:]) & set(edges[other][2:])
            }
            if near == reached:
                break
            reached = near
        assert reached == rows


def test_where_texts_and_ids_agree_a_group_is_the_prompt():
    pairs = pairs_of([(n // 2, n // 2, 2 * n, 2 * n + 1) for n in range(8)])
    assert connected_prompts(pairs) == [prompt_key(text) for text in pairs["prompt"].to_pylist()]


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=14))
def test_prompt_ids_that_share_a_text_are_in_one_group(rows):
    rows = sorted(rows)
    ids, texts = [f"id{name}" for name, _ in rows], [f"Prompt {text}!" for _, text in rows]
    groups = group_prompts(ids, texts)
    # The groups are those of pairs that share an id or a text, and no story.
    pairs = pa.table(
        {
            "prompt_id": ids,
            "prompt": texts,
            "chosen_story_id": [f"chosen{n}" for n in range(len(ids))],
            "rejected_story_id": [f"rejected{n}" for n in range(len(ids))],
        }
    )
    expected = {}
    for name, group in zip(ids, connected_prompts(pairs), strict=True):
        expected.setdefault(group, set()).add(name)
    found = {}
    for name, group in groups.items():
        found.setdefault(group.group_prompt, set()).add(name)
        own = [text for one, text in zip(ids, texts, strict=True) if one == name]
        assert (group.prompt, group.texts) == (min(own), len(own))
    assert sorted(map(sorted, found.values())) == sorted(map(sorted, expected.values()))
