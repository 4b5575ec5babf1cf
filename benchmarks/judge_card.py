"""Measure whether the judge card finds planted faults, and how often it finds faults that are not.

    python benchmarks/judge_card.py > judge_card.csv
    python benchmarks/judge_card.py --drift > drift.csv

Simulates judges with a planted fault and judges without it, and applies the card's functions:

- own family: the judge follows people in half of the pairs, else its own taste, which differs by
  prompt and by the source of the other side; planted, it prefers its family in 0.15 more of them.
  Found if the interval of the excess is above 0.
- repeats: two answers to the same question differ in 0.05 (not planted) or 0.15 of the cases. Found
  if the interval of `by_repeats` is above 0.05.
- position: in 0 or 0.15 of the answers the judge names the story shown first, whatever it is;
  repeats differ in 0.05. Found if the interval of `position_bias`, of the verdicts of three answers
  in each order, is above 0.5.
- order: the same fault, found if the flips between orders exceed those that repeats explain.

A row has the share of simulations in which the fault was found, and of false alarms. With
`--simulations 1000`, the binomial error of 0.05 is 0.007. One CPU core, about two minutes.

`--drift` prints the plans of `litbench drift` by repeat rate and change: the questions that find
the change in 80 %, the mean number asked without a change, and the false alarms of 4,000 other
simulations. Half a minute.
"""

import argparse
import itertools
from collections.abc import Callable

import numpy as np

from litbench.metrics.comparisons import difference_interval
from litbench.metrics.intervals import jackknife_interval
from litbench.suite.drift import plan_for, simulate
from litbench.suite.repeats import Repeats, repeats_of
from litbench.suite.self_preference import excess_mean

PLANTED, REPEAT_RATE = 0.15, 0.05
SOURCES = 6
SIZES = {
    "own family": (20, 40, 80),
    "repeats": (20, 40, 60),
    "position": (60, 120, 240),
    "order": (120, 240, 480),
}


def own_family(prompts: int, planted: float, random: np.random.Generator) -> bool:
    """Whether self-preference is found, with a pair of each prompt and other source."""
    prompt, other = (grid.ravel() for grid in np.indices((prompts, SOURCES)))
    shared = 0.6 + random.normal(0, 0.1, prompts)[prompt] + random.normal(0, 0.05, SOURCES)[other]
    people = random.random(len(prompt)) < shared
    taste = shared + random.normal(0, 0.1, prompts)[prompt] + random.normal(0, 0.05, SOURCES)[other]
    follows = random.random(len(prompt)) < 0.5
    judge = np.where(follows, people, random.random(len(prompt)) < taste)
    # The share of lost pairs that the judge gives to its family.
    judge |= random.random(len(prompt)) < planted / 0.4
    values = judge.astype(float) - people
    interval, _ = difference_interval(excess_mean(values, prompt, other))
    return interval.low > 0


def answers(
    pairs: int, rate: float, first: float, random: np.random.Generator, samples: int = 3
) -> np.ndarray:
    """The votes of a judge; shape (pairs, 2, samples); `first` of them are for the first story.

    Of the pairs, 2 * rate are coins, so that two answers differ in `rate` of the cases.
    """
    certain = random.random(pairs) < 0.7
    chance = np.where(random.random(pairs) < 2 * rate, 0.5, certain)
    votes = random.random((pairs, 2, samples)) < chance[:, None, None]
    leans = random.random(votes.shape) < first
    # In the first order the chosen story is shown first.
    return np.where(leans, np.array([True, False])[None, :, None], votes).astype(float)


def figures(votes: np.ndarray) -> Repeats:
    """The figures of repeats, with two pairs a prompt."""
    result = repeats_of(votes, np.arange(len(votes)) // 2)
    assert result is not None
    return result


def repeats(pairs: int, planted: float, random: np.random.Generator) -> bool:
    """Whether instability is found: more than the tolerated rate."""
    votes = answers(pairs, planted or REPEAT_RATE, 0.0, random)
    return figures(votes).figures["by_repeats"].low > REPEAT_RATE


def position(pairs: int, planted: float, random: np.random.Generator) -> bool:
    """Whether a preference for the first position is found."""
    verdicts = answers(pairs, REPEAT_RATE, planted, random).mean(axis=2) > 0.5
    first_wins = (verdicts[:, 0] + 1.0 - verdicts[:, 1]) / 2
    return jackknife_interval(first_wins, np.arange(pairs) // 2).low > 0.5


def order(pairs: int, planted: float, random: np.random.Generator) -> bool:
    """Whether an effect of the order is found."""
    result = figures(answers(pairs, REPEAT_RATE, planted, random))
    return result.p_order < 0.05 and result.figures["by_order"].mean > 0


FAULTS: dict[str, Callable[[int, float, np.random.Generator], bool]] = {
    "own family": own_family,
    "repeats": repeats,
    "position": position,
    "order": order,
}


def main() -> None:
    """Simulate all faults at all sizes, and print a row for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--simulations", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drift", action="store_true", help="print the plans of litbench drift")
    options = parser.parse_args()
    if options.drift:
        print("repeat_rate,change,questions,power,expected,false_alarms")
        for rate, change in itertools.product((0.0, 0.02, 0.05, 0.1), (0.05, 0.1, 0.2)):
            plan = plan_for(rate, change)
            alarms = simulate(rate, 0.0, plan.questions, change, seed=options.seed + 1).power
            figures_of_plan = f"{plan.power:.3f},{plan.expected:.0f},{alarms:.4f}"
            print(f"{rate},{change},{plan.questions},{figures_of_plan}", flush=True)
        return
    print("fault,unit,size,found,false_alarms")
    for fault, find in FAULTS.items():
        for size in SIZES[fault]:
            random = np.random.default_rng([options.seed, size])
            shares = [
                np.mean([find(size, planted, random) for _ in range(options.simulations)])
                for planted in (PLANTED, 0.0)
            ]
            unit = "prompts" if fault == "own family" else "pairs"
            print(f"{fault},{unit},{size},{shares[0]:.3f},{shares[1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
