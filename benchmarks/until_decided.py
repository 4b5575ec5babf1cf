"""Measure group-sequential stopping: errors, decisions, coverage and the share of the calls.

    python benchmarks/until_decided.py > until_decided.csv
    python benchmarks/until_decided.py --recorded runs/hanna/recorded runs/psychdepth/recorded

Simulates evaluations of one or four raters against a reference of agreement 0.73, or 0.55 for the
differences of the plan, with a tenth of ties; correlations are those of the latent quality of a
pair within a prompt. Half of four raters, or the only one, differ by the cell's difference,
`planned` being what the fixed plan finds in 80 % and `twice` twice that. Rules: the fixed plan,
naive stopping at p < 0.05 (Holm) at any look, group-sequential boundaries, and these with a stop
for futility. A row has the share of evaluations with an error (a rater without a difference
decided, or one with a difference in the wrong direction), the share of the differing raters decided
in the right direction, the mean share of the calls, the coverage of the interval at the end (of
boundaries, by stage-wise ordering), the share of their estimates above the truth, the coverage of
the decided ones, and the bias of their plain mean.

`--recorded` resamples the prompts of finished evaluations instead, each rater against the reference
of the evaluation, with its differences shifted to the cell's difference. `--part 1/4` computes
every fourth cell, `--part 1/5` a fifth in which each factor has all its values. One CPU core, 8
minutes for a fifth.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import special
from tqdm import tqdm

from litbench.data.records import connected_prompts
from litbench.evaluation.results import Evaluation
from litbench.metrics.agreement import pair_scores
from litbench.metrics.intervals import effective_clusters
from litbench.metrics.power import needed_signal
from litbench.metrics.sequential import (
    ALPHA,
    MIN_POWER,
    boundaries,
    conditional_power,
    more_extreme,
    prompts_at_looks,
)

LOOKS, CHUNK = 10, 50
REFERENCE, TIES, SHARED = 0.73, 0.1, 0.4
# The reference's agreement where differences are those of the plan, and the highest with ties.
LOW, MOST = 0.55, 0.94
TIMES = {"planned": 1.0, "twice": 2.0}
DIFFERENCES = ("0", "0.02", "0.05", "0.1", "planned", "twice")
PROMPTS, CORRELATIONS, RATERS = (20, 50, 110, 300, 1_000), (0.0, 0.1, 0.3), (1, 4)
COLUMNS = "rule,error,decided,calls,coverage,above,coverage_if_decided,mean_minus_truth"


@dataclass(frozen=True)
class Cell:
    """A kind of evaluation; sizes of prompts are 5 pairs, or 1 to 40 with a mean near 5."""

    prompts: int
    sizes: str
    correlation: float
    raters: int
    difference: str


@dataclass
class Statistics:
    """The statistics of raters at all looks, shape (evaluations, raters, looks) each."""

    shares: tuple[float, ...]
    mean: np.ndarray
    error: np.ndarray
    z: np.ndarray
    freedom: np.ndarray


def draw_sizes(cell: Cell, random: np.random.Generator) -> np.ndarray:
    """Pairs per prompt, shape (prompts,)."""
    if cell.sizes == "equal":
        return np.full(cell.prompts, 5)
    sizes = np.exp(random.normal(1.1, 1.0, cell.prompts)).round()
    return np.asarray(np.clip(sizes, 1, 40), int)


def draw_sums(
    cell: Cell,
    sizes: np.ndarray,
    agreements: Sequence[float],
    count: int,
    random: np.random.Generator,
) -> np.ndarray:
    """Sums of the differences in credit of each prompt, shape (count, raters, prompts).

    `agreements` are of the reference and the raters.
    """
    pairs, starts = int(sizes.sum()), np.concatenate([[0], np.cumsum(sizes)[:-1]])
    shared = random.standard_normal((count, pairs))
    credits = []
    for agreement in agreements:
        prompt = np.repeat(random.standard_normal((count, len(sizes))), sizes, axis=1)
        alone = random.standard_normal((count, pairs))
        pair = np.sqrt(SHARED) * shared + np.sqrt(1 - SHARED) * alone
        quality = np.sqrt(cell.correlation) * prompt + np.sqrt(1 - cell.correlation) * pair
        low, high = special.ndtri([1 - agreement - TIES / 2, 1 - agreement + TIES / 2])
        credits.append(((quality > low).astype(float) + (quality > high)) / 2)
    return np.stack(
        [np.add.reduceat(credit - credits[0], starts, axis=1) for credit in credits[1:]], axis=1
    )


def statistics_of(sums: np.ndarray, sizes: np.ndarray) -> Statistics:
    """The clustered t statistics at all looks, as `clustered_mean` and `difference_interval`."""
    means, errors, zs, freedoms = [], [], [], []
    looks = prompts_at_looks(len(sizes), LOOKS)
    for prompts in looks:
        of_prompt, n_of_prompt = sums[..., :prompts], sizes[:prompts]
        total, n = of_prompt.sum(axis=-1), n_of_prompt.sum()
        mean = total / n
        shifts = (total[..., None] - of_prompt) / (n - n_of_prompt) - mean[..., None]
        error = np.sqrt((prompts - 1) / prompts * np.square(shifts).sum(axis=-1))
        effective = effective_clusters(n_of_prompt)
        freedom = max(effective - 1, 1.0)
        is_flat = error <= 1e-12
        with np.errstate(divide="ignore", invalid="ignore"):
            tail = np.where(
                is_flat,
                np.minimum(1, 2 * (1 + np.abs(mean)) ** -effective) / 2,
                special.stdtr(freedom, -np.abs(mean) / error),
            )
        means.append(mean)
        errors.append(error)
        zs.append(-special.ndtri(np.clip(tail, 1e-80, 0.5)))
        freedoms.append(np.full(mean.shape, freedom))
    pairs = np.cumsum(sizes)[np.array(looks) - 1]
    stacked = (np.stack(values, axis=-1) for values in (means, errors, zs, freedoms))
    return Statistics(tuple((pairs / pairs[-1]).tolist()), *stacked)


@dataclass
class Outcome:
    """What a rule did, shape (evaluations, raters) each.

    `chance` is that of a result above the one seen, at the true difference: the 95 % interval
    covers if it is between 0.025 and 0.975, and the estimate is above the truth if it is below 0.5.
    """

    look: np.ndarray
    is_decided: np.ndarray
    chance: np.ndarray


def bounds_of(rule: str, shares: tuple[float, ...], raters: int) -> np.ndarray:
    """The boundary by number of undecided raters and look; shape (raters + 1, looks)."""
    rows = [np.full(len(shares), np.inf)]
    for undecided in range(1, raters + 1):
        if rule in ("naive", "fixed"):
            bound = -special.ndtri(ALPHA / undecided / 2)
            early = bound if rule == "naive" else np.inf
            rows.append(np.array([early] * (len(shares) - 1) + [bound]))
        else:
            rows.append(np.array(boundaries(shares, ALPHA / undecided)))
    return np.array(rows)


def follow(rule: str, table: Statistics, truth: np.ndarray) -> Outcome:
    """Follow a rule over the looks; one rater's decision frees its share for the others."""
    count, raters, looks = table.z.shape
    bounds = bounds_of(rule, table.shares, raters)
    last = np.full((count, raters), looks - 1)
    is_decided, is_active = np.zeros((count, raters), bool), np.ones((count, raters), bool)
    met = np.zeros((count, looks))
    for look in range(looks):
        for _ in range(raters):
            undecided = (~is_decided).sum(axis=1)
            reached = is_active & (table.z[:, :, look] >= bounds[undecided, look][:, None])
            is_decided |= reached
            is_active &= ~reached
            last[reached] = look
        met[:, look] = bounds[(~is_decided).sum(axis=1), look]
        if rule == "futility" and look < looks - 1:
            share, z = table.shares[look], table.z[:, :, look]
            final = bounds[(~is_decided).sum(axis=1), -1][:, None]
            futile = is_active & (conditional_power(share, z, final) < MIN_POWER)
            is_active &= ~futile
            last[futile] = look
    at = (*np.indices((count, raters)), last)
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = special.stdtr(table.freedom[at], (table.mean[at] - truth) / table.error[at])
    if rule in ("fixed", "naive"):
        return Outcome(last, is_decided, 1 - tail)
    z = np.copysign(table.z[at], table.mean[at])
    drift = (z - special.ndtri(tail)) / np.sqrt(np.array(table.shares)[last])
    chance = np.empty((count, raters))
    for look in range(looks):
        for bound in np.unique(met[:, :look], axis=0):
            rows = (last == look) & (met[:, :look] == bound).all(axis=1)[:, None]
            chance[rows] = more_extreme(table.shares[: look + 1], bound, z[rows], drift[rows])
    return Outcome(last, is_decided, chance)


RULES = ("fixed", "naive", "spending", "futility")


class Counts:
    """Sums over evaluations, by rule."""

    def __init__(self) -> None:
        self.rows: dict[str, list[np.ndarray]] = {rule: [] for rule in RULES}

    def add(self, table: Statistics, truth: np.ndarray) -> None:
        """Follow all rules; `truth` has the true difference of each rater, shape (raters,)."""
        shares = np.array(table.shares)
        for rule in RULES:
            outcome = follow(rule, table, truth)
            at = (*np.indices(outcome.look.shape), outcome.look)
            mean = table.mean[at]
            # Rounding makes a mean of exactly 0.
            is_right = outcome.is_decided & (np.sign(mean) == np.sign(truth)) & (truth != 0)
            wrong = (outcome.is_decided & ~is_right).any(axis=1)
            differing = truth != 0 if truth.any() else np.ones(len(truth), bool)
            covered = (outcome.chance >= ALPHA / 2) & (outcome.chance <= 1 - ALPHA / 2)
            decided = outcome.is_decided[:, differing]
            self.rows[rule].append(
                np.array(
                    [
                        len(wrong),
                        wrong.sum(),
                        (is_right if truth.any() else outcome.is_decided)[:, differing].mean()
                        * len(wrong),
                        shares[outcome.look][:, differing].mean() * len(wrong),
                        covered.mean() * len(wrong),
                        (outcome.chance < 1 / 2)[:, differing].mean() * len(wrong),
                        (covered[:, differing] & decided).sum(),
                        decided.sum(),
                        ((mean - truth)[:, differing] * decided).sum(),
                    ]
                )
            )

    def lines(self) -> Iterator[str]:
        """The columns of each rule."""
        for rule, rows in self.rows.items():
            n, wrong, right, calls, covered, above, both, decided, bias = np.sum(rows, axis=0)
            values = (
                wrong / n,
                right / n,
                calls / n,
                covered / n,
                above / n,
                both / max(decided, 1),
                bias / max(decided, 1),
            )
            yield ",".join([rule, *(f"{value:.4f}" for value in values)])


def planned_difference(
    cell: Cell, sizes: np.ndarray, times: float, random: np.random.Generator
) -> float:
    """A multiple of what the fixed plan finds in 80 %, by the standard deviation of its mean."""
    signal = needed_signal(0.8, effective_clusters(sizes) - 1, ALPHA / cell.raters)
    difference = 0.0
    # The deviation depends a little on the difference.
    for _ in range(4):
        sums = draw_sums(cell, sizes, [LOW, LOW + difference], 400, random)
        sd = float(np.std(sums.sum(axis=-1) / sizes.sum()))
        difference = min(signal * sd, MOST - LOW)
    return min(times * difference, MOST - LOW)


def simulate(cell: Cell, count: int, seed: int) -> Counts:
    """Simulate the evaluations of a cell."""
    random = np.random.default_rng([seed, *repr(cell).encode()])
    sizes = draw_sizes(cell, random)
    reference = REFERENCE
    if cell.difference in TIMES:
        reference = LOW
        difference = planned_difference(cell, sizes, TIMES[cell.difference], random)
    else:
        difference = float(cell.difference)
    truth = np.array([difference] * max(cell.raters // 2, 1) + [0.0] * (cell.raters // 2))
    agreements = [reference, *(reference + truth).tolist()]
    counts = Counts()
    for _ in range(count // CHUNK):
        order = random.permutation(sizes)
        counts.add(statistics_of(draw_sums(cell, order, agreements, CHUNK, random), order), truth)
    return counts


def resample(folder: Path, count: int, seed: int) -> Iterator[str]:
    """Resample the prompts of a finished evaluation; a row per rater, difference and rule."""
    evaluation = Evaluation.find(folder)
    pairs = evaluation.pairs.headline
    _, prompt = np.unique(np.array(connected_prompts(pairs)), return_inverse=True)
    sizes = np.bincount(prompt)
    credits = {scores.rater: scores.credit for scores in pair_scores(evaluation.verdicts, pairs)}
    for rater, name in itertools.product(credits, ("0", "planned", "twice")):
        values = credits[rater] - credits[evaluation.reference]
        if rater == evaluation.reference or not np.ptp(values):
            continue
        sums = np.bincount(prompt, values - values.mean())
        random = np.random.default_rng([seed, len(sizes)])
        drawn = random.integers(0, len(sizes), (400, len(sizes)))
        totals = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
        signal = needed_signal(0.8, effective_clusters(sizes) - 1, ALPHA)
        difference = {"0": 0.0, "planned": 1.0, "twice": 2.0}[name] * signal * float(totals.std())
        counts = Counts()
        for _ in range(count):
            rows = random.integers(0, len(sizes), len(sizes))
            shifted = sums[rows] + difference * sizes[rows]
            counts.add(statistics_of(shifted[None, None], sizes[rows]), np.array([difference]))
        for line in counts.lines():
            counts_of_set = f"{len(sizes)},{len(values)},{difference:.3f}"
            yield f'{folder.parent.name},"{rater}",{counts_of_set},{name},{line}'


def main() -> None:
    """Simulate all cells, or resample evaluations, and print a row per rule."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--simulations", type=int, default=2_000, help="per cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="1/1", help="such as 2/4: the second of four parts")
    parser.add_argument("--recorded", type=Path, nargs="+", default=[])
    parser.add_argument("--prompts", type=int, nargs="+", default=list(PROMPTS))
    options = parser.parse_args()
    if options.recorded:
        print(f"set,rater,prompts,pairs,difference,name,{COLUMNS}")
        for folder in options.recorded:
            for line in resample(folder, options.simulations, options.seed):
                print(line, flush=True)
        return
    part, parts = map(int, options.part.split("/"))
    grid = itertools.product(
        options.prompts, ("equal", "unequal"), CORRELATIONS, RATERS, DIFFERENCES
    )
    print(f"prompts,sizes,correlation,raters,difference,{COLUMNS}")
    for key in tqdm(list(grid)[part - 1 :: parts], unit="cell", file=sys.stderr):
        for line in simulate(Cell(*key), options.simulations, options.seed).lines():
            print(",".join(map(str, key)) + f",{line}", flush=True)


if __name__ == "__main__":
    main()
