"""Which pairs make a step, and how a step is cut into forward passes.

The pairs of an optimiser step follow from the seed and the number of pairs alone, so a run goes on
in the same order after a kill, on any number of processes. A step is then cut into forward passes
of at most `batch_tokens` tokens; a pair's sequences stay together, every process gets as many
passes as the others (collectives would wait for ever otherwise), and the loss is summed over pairs
and divided by the weights of the whole step, so that gradients do not depend on the cutting.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Step:
    """One optimiser step of one process.

    Attributes:
        passes: rows of the pairs of each forward pass; never empty.
        is_filler: for each pass, whether it is there only to keep step with other processes; its
            loss does not count.
    """

    passes: list[np.ndarray]
    is_filler: list[bool]


def steps_of_epoch(n_pairs: int, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Deal shuffled pairs to the steps of one epoch.

    Args:
        n_pairs: how many there are.
        batch_size: most pairs of a step, over all processes.
        seed: of the order.
        epoch: counts from 0; another order each time.

    Returns:
        Row numbers, int64, one array per step; steps differ in size by one at most, so that no
        step stands on a few left-over pairs.
    """
    order = np.random.default_rng([seed, epoch]).permutation(n_pairs)
    return np.array_split(order, max(1, -(-n_pairs // batch_size)))


def cut_step(
    rows: np.ndarray,
    lengths: np.ndarray,
    batch_tokens: int,
    processes: int,
    *,
    padded: bool,
) -> list[Step]:
    """Cut one step into forward passes for every process.

    Args:
        rows: (n,) the step's pairs.
        lengths: (pairs, sequences of a pair) in tokens, of the whole data.
        batch_tokens: most tokens of a pass, padding included; a longer pair gets a pass of its own.
        processes: how many share the step.
        padded: whether the sequences of a pass are padded to the longest.

    Returns:
        One Step per process, all with the same number of passes.
    """
    total = lengths[rows].sum(axis=1)
    if padded:
        bins = _grouped(lengths[rows].max(axis=1), lengths.shape[1], batch_tokens, processes)
    else:
        bins = _balanced(total, batch_tokens, processes)
    # Passes of like cost happen at the same time: no process waits long for another.
    bins.sort(key=lambda places: -total[places].sum())
    spare = int(np.argmin(total))
    steps = []
    for process in range(processes):
        mine = bins[process::processes]
        fillers = -(-len(bins) // processes) - len(mine)
        passes = [rows[places] for places in mine] + [rows[[spare]]] * fillers
        steps.append(Step(passes, [False] * len(mine) + [True] * fillers))
    return steps


def _balanced(total: np.ndarray, budget: int, processes: int) -> list[np.ndarray]:
    """The fewest bins, a multiple of `processes`, filled evenly: largest pair to emptiest bin."""
    order = np.argsort(-total, kind="stable")
    count = max(1, -(-int(total.sum()) // (budget * processes))) * processes
    while True:
        count = min(count, len(total))
        loads = np.zeros(count, dtype=np.int64)
        bins: list[list[int]] = [[] for _ in range(count)]
        for place in order:
            emptiest = int(np.argmin(loads))
            bins[emptiest].append(int(place))
            loads[emptiest] += total[place]
        over = [load > budget and len(places) > 1 for load, places in zip(loads, bins, strict=True)]
        if not any(over) or count == len(total):
            return [np.array(places) for places in bins]
        count += processes


def _grouped(longest: np.ndarray, sequences: int, budget: int, processes: int) -> list[np.ndarray]:
    """Bins of pairs of like length, none wider than the budget when padded."""
    order = np.argsort(-longest, kind="stable")
    bins: list[list[int]] = []
    # With several processes no bin may hold all, or the others would compute fillers.
    most = -(-len(order) // processes)
    for place in order:
        if bins:
            # The first of a bin is its longest, and all are padded to it.
            padded = (len(bins[-1]) + 1) * sequences * longest[bins[-1][0]]
        if not bins or padded > budget or len(bins[-1]) == most:
            bins.append([])
        bins[-1].append(int(place))
    return [np.array(places) for places in bins]
