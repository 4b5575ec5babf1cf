"""Splits and folds go by the prompt's normalised text."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.curation.splits import assign_folds, check_fractions, split_of, split_prompts
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
    counts = Counter(split_prompts(PROMPTS, FRACTIONS, 0).values())
    assert sum(counts.values()) == len(PROMPTS)
    for name, share in FRACTIONS.items():
        error = (share * (1 - share) / len(PROMPTS)) ** 0.5
        assert abs(counts[name] / len(PROMPTS) - share) < 4 * error, name


def test_the_split_of_a_prompt_does_not_depend_on_the_others():
    some = split_prompts(PROMPTS[::-7], FRACTIONS, 5)
    every = split_prompts(PROMPTS, FRACTIONS, 5)
    assert some == {prompt: every[prompt] for prompt in PROMPTS[::-7]}


def test_another_seed_gives_other_splits():
    first, second = (split_prompts(PROMPTS, FRACTIONS, seed) for seed in (0, 1))
    same = sum(first[prompt] == second[prompt] for prompt in PROMPTS) / len(PROMPTS)
    # Unrelated draws agree in 0.7² + 0.1² + 0.2² = 0.54 of the prompts, standard error 0.009.
    assert abs(same - 0.54) < 4 * 0.009


def test_a_larger_first_split_only_takes_from_the_next():
    small, large = (
        {
            p
            for p, s in split_prompts(PROMPTS, {"train": f, "test": 1 - f}, 0).items()
            if s == "train"
        }
        for f in (0.5, 0.8)
    )
    assert small < large


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
