"""Measure looks at a running study: errors, decisions and the share of the choices.

    python benchmarks/study_looks.py > study_looks.csv

Simulates studies of one pair per prompt in which each reader reads all pairs or ten of them. A
choice agrees with the label with probability 1/2 plus the difference, an effect of the prompt and
one of the reader. A look follows each tenth of the readers, from the eighth reader on, by the
statistic of `litbench study look`: the logit of the agreement, clustered by prompt and reader. The
boundary spends the error by the share of the choices. A row has the share of studies decided
without a difference (the error), also of the same test at the end only and of naive looks; then,
at the difference that all readers find in 80 % (by the normal approximation) and at twice that, the
share decided in the right direction and the mean share of the choices. One CPU core, half a minute.
"""

import argparse
import itertools
from dataclasses import dataclass

import numpy as np
from scipy import special

from litbench.metrics.sequential import MIN_PROMPTS_OF_LOOK, boundaries

SIDE = float(special.ndtri(0.975))
# Standard errors of the difference that is found in 80 %.
PLANNED = SIDE + float(special.ndtri(0.8))
# Standard deviations of the effects of prompts and of readers.
EFFECTS = ((0.2, 0.05), (0.1, 0.1), (0.2, 0.2))


@dataclass(frozen=True)
class Cell:
    """A kind of study."""

    readers: int
    prompts: int
    pairs_per_reader: int
    prompt_sd: float
    reader_sd: float

    def assigned(self) -> np.ndarray:
        """Which reader reads which pair, shape (readers, prompts)."""
        rows = np.arange(self.readers)[:, None]
        pairs = (rows * self.pairs_per_reader + np.arange(self.pairs_per_reader)) % self.prompts
        assigned = np.zeros((self.readers, self.prompts))
        assigned[rows, pairs] = 1
        return assigned


def jackknife(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The jackknife variance of the means; `sums` has shape (studies, clusters)."""
    total, n, count = sums.sum(1, keepdims=True), sizes.sum(), len(sizes)
    shifts = (total - sums) / (n - sizes) - total / n
    return np.asarray((count - 1) / count * np.square(shifts).sum(1))


def z_of(choices: np.ndarray, assigned: np.ndarray) -> np.ndarray:
    """The statistic, as `two_way_mean` and `interval_p` compute it; shape (studies,)."""
    is_read = assigned.sum(0) > 0
    rows, columns, single = choices.sum(2), choices.sum(1)[:, is_read], choices[:, assigned > 0]
    by_row, by_column = assigned.sum(1), assigned.sum(0)[is_read]
    alone = jackknife(single, np.ones(single.shape[1]))
    variance = jackknife(rows, by_row) + jackknife(columns, by_column) - alone
    error = np.sqrt(np.maximum(variance, alone / 2))
    mean = np.clip(single.mean(1), 1e-9, 1 - 1e-9)
    freedom = min(sizes.sum() ** 2 / np.square(sizes).sum() for sizes in (by_row, by_column)) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.nan_to_num(special.logit(mean) * mean * (1 - mean) / error)
    tail = special.stdtr(freedom, -np.abs(t))
    return np.asarray(np.sign(t) * -special.ndtri(np.clip(tail, 1e-80, 0.5)))


def simulate(cell: Cell, difference: float, studies: int, seed: int) -> dict[str, float]:
    """What looks do at a difference from 1/2."""
    random = np.random.default_rng(seed)
    prompt = random.normal(0, cell.prompt_sd, (studies, 1, cell.prompts))
    reader = random.normal(0, cell.reader_sd, (studies, cell.readers, 1))
    chance = np.clip(0.5 + difference + prompt + reader, 0, 1)
    assigned = cell.assigned()
    choices = (random.random(chance.shape) < chance) * assigned
    ends = np.unique(np.ceil(cell.readers * np.arange(1, 11) / 10).astype(int))
    ends = ends[ends >= MIN_PROMPTS_OF_LOOK]
    z = np.array([z_of(choices[:, :end], assigned[:end]) for end in ends])
    shares = np.array([assigned[:end].sum() for end in ends]) / assigned.sum()
    is_beyond = np.abs(z) >= np.array(boundaries(tuple(shares.tolist())))[:, None]
    is_decided = is_beyond.any(0)
    look = np.where(is_decided, is_beyond.argmax(0), len(ends) - 1)
    right = is_decided & (z[look, np.arange(studies)] > 0)
    return {
        "decided": is_decided.mean(),
        "right": right.mean(),
        "choices": shares[look].mean(),
        "fixed": (np.abs(z[-1]) > SIDE).mean(),
        "naive": (np.abs(z) > SIDE).any(0).mean(),
        "sd": choices.sum((1, 2)).std() / assigned.sum(),
    }


def main() -> None:
    """Print a row per cell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--studies", type=int, default=2_000)
    studies = parser.parse_args().studies
    print(
        "readers,prompts,pairs_per_reader,prompt_sd,reader_sd,error,fixed_error,naive_error,"
        "planned_decided,planned_choices,twice_decided,twice_choices"
    )
    kinds = itertools.product((10, 46), (10, 20, 40), EFFECTS)
    for seed, (readers, prompts, effects) in enumerate(kinds):
        for each in sorted({10, prompts}):
            cell = Cell(readers, prompts, each, *effects)
            none = simulate(cell, 0.0, studies, 3 * seed)
            numbers = [none["decided"], none["fixed"], none["naive"]]
            for times in (1, 2):
                difference = min(times * PLANNED * none["sd"], 0.45)
                row = simulate(cell, difference, studies, 3 * seed + times)
                numbers += [row["right"], row["choices"]]
            values = (readers, prompts, each, *effects, *(f"{number:.3f}" for number in numbers))
            print(*values, sep=",", flush=True)


if __name__ == "__main__":
    main()
