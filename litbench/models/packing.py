"""Micro-batches of an optimiser step, and the batch of a Bradley-Terry step.

An optimiser step takes `per_device_train_batch_size` x `gradient_accumulation_steps` x processes
pairs. transformers' `BatchRebalanceSampler` splits them into `gradient_accumulation_steps`
micro-batches per process, of about equal cost instead of equal size. Losses are summed and divided
by the total weight of the step, so gradients do not depend on the split.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.trainer_pt_utils import BatchRebalanceSampler

from litbench.models.backbone import Pooling, collate


class StepSampler(BatchRebalanceSampler):  # type: ignore[misc]
    """Batch sampler whose steps depend only on the seed, the epoch and the number of pairs.

    The parent class (https://github.com/huggingface/transformers/pull/47340) is not documented.
    Unlike the parent class, all steps of an epoch have the same size up to one pair, and the epoch
    comes from a callable, since a resumed data loader does not set it.

    Args:
        lengths: number of tokens of each pair.
        epoch: returns the current epoch.
        packed: whether sequences are packed, so that padding costs nothing.
        arguments: arguments of the parent class.
    """

    def __init__(
        self, lengths: Sequence[int], epoch: Callable[[], int], *, packed: bool, **arguments: int
    ) -> None:
        super().__init__(list(lengths), **arguments)
        self.current_epoch, self.packed = epoch, packed
        pairs, groups = len(self.lengths), self.dp_size * self.grad_accum
        # Every micro-batch needs a pair.
        self.num_global_batches = min(-(-pairs // self.effective_batch_size), pairs // groups)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this process's micro-batches, step by step."""
        source = np.random.default_rng([self.seed, self.current_epoch()])
        order = source.permutation(len(self.lengths))
        for step in np.array_split(order, self.num_global_batches):
            yield from self._yield_global_batch(step.tolist())

    def _group_cost(self, group: list[tuple[int, int]]) -> float:
        if not self.packed:
            return float(super()._group_cost(group))
        return float(sum(self._cost(1, length) for _, length in group))


@dataclass
class PairCollator:
    """Collates a micro-batch: the chosen stories, then the rejected ones, packed or padded."""

    packed: bool
    pooling: Pooling

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the tensors of `litbench.models.backbone.collate`, and `weight` and `margin`."""
        sides = ("chosen_ids", "rejected_ids")
        sequences = [np.asarray(example[side]) for side in sides for example in examples]
        numbers = {
            name: torch.tensor([example[name] for example in examples], dtype=torch.float32)
            for name in ("weight", "margin")
        }
        return {**numbers, **collate(sequences, packed=self.packed, pooling=self.pooling)}
