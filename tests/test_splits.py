"""Splits and folds by the prompt's normalised text, and splits by date."""

from collections import Counter

import ibis
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.curation.splits import (
    assign_folds,
    connected_prompts,
    date_split,
    day_start,
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


@pytest.mark.parametrize("folds", [1, 4])
def test_invalid_number_of_folds_is_refused(folds):
    with pytest.raises(ConfigError, match=f"folds is {folds}: give 2 to 3, the number of prompts"):
        assign_folds(["a", "b", "c", "c"], folds, 0)


DAY = 1_672_531_200  # 2023-01-01 00:00:00 UTC


def dated(rows, test_from="2023-01-01"):
    """Return the splits of stories given as (prompt_key, created_utc), in order."""
    table = pa.table(
        {
            "story_id": [f"s{place:03d}" for place in range(len(rows))],
            "prompt_key": pa.array([key for key, _ in rows], pa.large_string()),
            "created_utc": pa.array([when for _, when in rows], pa.int64()),
        }
    )
    made = date_split(ibis.memtable(table), test_from=test_from)
    found = made.order_by("story_id").to_pyarrow()
    assert found["story_id"].to_pylist() == table["story_id"].to_pylist()
    return found["split"].to_pylist()


times = st.one_of(st.none(), st.integers(DAY - 3, DAY + 3))


@settings(max_examples=15)
@given(st.lists(st.tuples(st.sampled_from("pqrs"), times), min_size=1, max_size=25))
def test_date_split_puts_new_prompts_into_test(rows):
    old = {key for key, when in rows if when is not None and when < DAY}
    for (key, when), split in zip(rows, dated(rows), strict=True):
        if when is None:
            assert split is None
        elif when < DAY:
            assert split == "train"
        else:
            assert split == (None if key in old else "test")


@pytest.mark.parametrize("day", ["2023-13-01", "soon"])
def test_a_date_that_is_none_is_refused(day):
    with pytest.raises(ConfigError, match=f"test_from is '{day}': give a day"):
        day_start(day)


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
def test_groups_are_connected_by_prompts_or_stories(edges):
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


def test_group_is_the_prompt_if_ids_agree():
    pairs = pairs_of([(n // 2, n // 2, 2 * n, 2 * n + 1) for n in range(8)])
    assert connected_prompts(pairs) == [prompt_key(text) for text in pairs["prompt"].to_pylist()]
