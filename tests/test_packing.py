"""Cutting a step into forward passes: every pair once, no pass too large, no process left alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.models.packing import cut_step, steps_of_epoch

BUDGET = 64


@st.composite
def cuts(draw):
    """Lengths of a data set's sequences, the pairs of a step, and how they are to be cut."""
    sequences = draw(st.integers(1, 2))
    pairs = draw(st.integers(1, 40))
    row = st.lists(st.integers(1, 50), min_size=sequences, max_size=sequences)
    lengths = np.array(draw(st.lists(row, min_size=pairs, max_size=pairs)), dtype=np.int64)
    rows = np.array(sorted(draw(st.sets(st.integers(0, pairs - 1), min_size=1))))
    return rows, lengths, draw(st.integers(1, 9)), draw(st.booleans())


def cost(lengths, rows, *, padded):
    """Tokens that a forward pass computes."""
    return lengths[rows].size * lengths[rows].max() if padded else lengths[rows].sum()


@given(cuts())
def test_every_pair_counts_exactly_once(cut):
    rows, lengths, processes, padded = cut
    steps = cut_step(rows, lengths, BUDGET, processes, padded=padded)
    counted = [
        one
        for step in steps
        for chosen, is_filler in zip(step.passes, step.is_filler, strict=True)
        if not is_filler
        for one in chosen
    ]
    assert sorted(counted) == sorted(rows)


@given(cuts())
def test_every_process_gets_as_many_passes_as_the_others_and_none_is_empty(cut):
    rows, lengths, processes, padded = cut
    steps = cut_step(rows, lengths, BUDGET, processes, padded=padded)
    assert len(steps) == processes
    assert len({len(step.passes) for step in steps}) == 1
    assert all(len(step.passes) == len(step.is_filler) > 0 for step in steps)
    assert all(len(chosen) and set(chosen) <= set(rows) for s in steps for chosen in s.passes)
    # A process that only computes fillers is idle: it must be that there was nothing to give.
    idle = sum(all(step.is_filler) for step in steps)
    assert idle <= max(0, processes - len(rows)) or (padded and len(rows) % processes)


@given(cuts())
def test_a_pass_keeps_to_the_budget_unless_it_is_a_single_pair(cut):
    rows, lengths, processes, padded = cut
    for step in cut_step(rows, lengths, BUDGET, processes, padded=padded):
        for chosen in step.passes:
            assert len(chosen) == 1 or cost(lengths, chosen, padded=padded) <= BUDGET


@given(cuts())
def test_the_same_step_is_cut_the_same_way(cut):
    rows, lengths, processes, padded = cut
    twice = [cut_step(rows, lengths, BUDGET, processes, padded=padded) for _ in range(2)]
    for first, second in zip(*twice, strict=True):
        assert first.is_filler == second.is_filler
        assert [list(one) for one in first.passes] == [list(one) for one in second.passes]


def test_packed_passes_are_as_few_as_fit_and_evenly_filled():
    lengths = np.random.default_rng(0).integers(50, 500, (128, 2))
    rows = np.arange(128)
    (step,) = cut_step(rows, lengths, 8_192, 1, padded=False)
    loads = [lengths[chosen].sum() for chosen in step.passes]
    assert len(loads) == -(-lengths.sum() // 8_192)
    assert max(loads) - min(loads) < 500


def test_processes_at_the_same_pass_have_like_loads():
    lengths = np.random.default_rng(0).integers(50, 2_000, (128, 2))
    steps = cut_step(np.arange(128), lengths, 16_384, 4, padded=False)
    for together in zip(*(step.passes for step in steps), strict=True):
        loads = [lengths[chosen].sum() for chosen in together]
        assert min(loads) > 0.8 * max(loads)


def test_padded_passes_hold_pairs_of_like_length():
    lengths = np.random.default_rng(0).integers(50, 500, (128, 2))
    rows = np.arange(128)
    (step,) = cut_step(rows, lengths, 8_192, 1, padded=True)
    computed = sum(cost(lengths, chosen, padded=True) for chosen in step.passes)
    at_random = sum(
        cost(lengths, chosen, padded=True) for chosen in np.array_split(rows, len(step.passes))
    )
    # What is left is the shorter story of each pair, padded to the longer.
    assert computed < 1.1 * 2 * lengths.max(axis=1).sum() < at_random


@given(st.integers(1, 300), st.integers(1, 64), st.integers(0, 5), st.integers(0, 3))
def test_an_epoch_deals_every_pair_once_to_steps_of_like_size(n_pairs, batch_size, seed, epoch):
    steps = steps_of_epoch(n_pairs, batch_size, seed, epoch)
    assert sorted(np.concatenate(steps)) == list(range(n_pairs))
    sizes = {len(step) for step in steps}
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1
    again = steps_of_epoch(n_pairs, batch_size, seed, epoch)
    assert all((one == other).all() for one, other in zip(steps, again, strict=True))


@pytest.mark.parametrize("changed", [(4, 0), (3, 1)])
def test_another_seed_or_epoch_is_another_order(changed):
    first, other = steps_of_epoch(100, 10, 3, 0), steps_of_epoch(100, 10, *changed)
    assert (np.concatenate(first) != np.concatenate(other)).any()
