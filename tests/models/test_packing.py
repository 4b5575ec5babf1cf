"""Cutting a step into micro-batches: every pair once, every process as many, balanced by tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from litbench.models.packing import PairCollator, StepSampler  # noqa: E402


def samplers(lengths, processes, micro_batches, size, epoch=0, seed=0, *, packed=True):
    return [
        StepSampler(
            lengths,
            lambda: epoch,
            packed=packed,
            dp_size=processes,
            grad_accum=micro_batches,
            effective_batch_size=processes * micro_batches * size,
            rank=rank,
            seed=seed,
        )
        for rank in range(processes)
    ]


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(0, 60),
    st.integers(0, 3),
    st.booleans(),
)
def test_epoch_has_every_pair_once_in_equal_steps(
    processes, micro_batches, size, more, epoch, packed
):
    groups = processes * micro_batches
    lengths = np.random.default_rng(more).integers(5, 500, groups + more).tolist()
    made = samplers(lengths, processes, micro_batches, size, epoch, packed=packed)
    each = [list(item) for item in made]
    assert {len(item) for item in each} == {len(item) for item in made}
    taken = [row for item in each for batch in item for row in batch]
    assert sorted(taken) == list(range(len(lengths)))
    assert all(batch for item in each for batch in item)
    steps = [
        sum(len(item[k]) for item in each for k in range(start, start + micro_batches))
        for start in range(0, len(each[0]), micro_batches)
    ]
    assert max(steps) - min(steps) <= 1
    again = [list(sampler) for sampler in samplers(lengths, processes, micro_batches, size, epoch)]
    assert packed is False or again == each


def test_another_seed_or_epoch_is_another_order():
    lengths = list(range(10, 110))
    orders = [
        [row for batch in samplers(lengths, 1, 2, 5, epoch, seed)[0] for row in batch]
        for epoch, seed in [(0, 0), (1, 0), (0, 1)]
    ]
    assert len(set(map(tuple, orders))) == 3


@pytest.mark.parametrize("packed", [False, True])
def test_micro_batches_cost_about_the_same(packed):
    lengths = np.random.default_rng(0).integers(100, 1_000, 128)
    made = samplers(lengths.tolist(), 2, 4, 16, packed=packed)
    costs = [
        sum(lengths[batch]) if packed else len(batch) * max(lengths[batch])
        for item in made
        for batch in item
    ]
    assert max(costs) < 2 * min(costs)


def test_chosen_stories_lie_before_rejected_ones():
    pairs = [
        {"chosen_ids": [1, 2, 3], "rejected_ids": [4], "weight": 1.0, "margin": 0.5},
        {"chosen_ids": [5], "rejected_ids": [6, 7], "weight": 2.0, "margin": 0.0},
    ]
    made = PairCollator(packed=True, pooling="last")(pairs)
    assert made["input_ids"].tolist() == [[1, 2, 3, 5, 4, 6, 7]]
    assert made["position_ids"].tolist() == [[0, 1, 2, 0, 0, 0, 1]]
    assert made["cu_seq_lens_q"].tolist() == [0, 3, 4, 5, 7]
    assert made["read"].tolist() == [2, 3, 4, 6]
    assert (made["weight"].tolist(), made["margin"].tolist()) == ([1.0, 2.0], [0.5, 0.0])
