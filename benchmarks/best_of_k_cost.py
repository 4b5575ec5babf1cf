"""What three ways to ask a judge about items cost for the same interval of best of k.

    python benchmarks/best_of_k_cost.py

Simulated judges: an answer's quality is normal with standard deviation 1, people's best answer has
the highest one, and the judge's own opinion correlates with it by 0.7. Every call adds noise to
each answer that it shows, and half a unit to the answer in the first position. The credit of an
item is that of `litbench.metrics.best_of_k`. Items: as many as give an interval of +-0.05. Tokens
and dollars are those of a dry run on stories of 400 words. Seeded; a few seconds.
"""

import tempfile
from itertools import product
from pathlib import Path

import numpy as np

from litbench.evaluation.loop import item_estimates
from litbench.raters.entries import RaterSpec
from litbench.raters.interface import BlindPair

MODEL = "openai/gpt-4.1-mini"
ITEMS = 40_000
TASTE = 0.7
FIRST = 0.5
HALF_WIDTH = 0.05
WORDS = 400


def credits(lead: np.ndarray) -> np.ndarray:
    """Credit of each item by how far its best answer leads each other one; shape (items,)."""
    ties = (lead == 0).sum(axis=1)
    return np.where((lead < 0).any(axis=1), 0.0, 1 / (1 + ties))


def leads(opinions: np.ndarray, noise: float, random: np.random.Generator) -> list[np.ndarray]:
    """By way, how far the first answer leads each other one; shape (items, k - 1)."""
    k = opinions.shape[1]

    def heard(answers: list[int]) -> np.ndarray:
        shown = opinions[:, answers]
        shown = shown + random.normal(0, noise, shown.shape)
        shown[:, 0] += FIRST
        return shown

    pairs = np.zeros((len(opinions), k - 1))
    for other in range(1, k):
        for order in ([0, other], [other, 0]):
            winner = np.array(order)[heard(order).argmax(axis=1)]
            pairs[:, other - 1] += np.where(winner == 0, 1, -1)
    # A call with a single answer gives every answer the same bonus.
    graded = opinions + random.normal(0, noise, opinions.shape)
    votes = np.zeros(opinions.shape)
    for start in range(k):
        order = [(start + position) % k for position in range(k)]
        chosen = np.array(order)[heard(order).argmax(axis=1)]
        votes[np.arange(len(votes)), chosen] += 1
    return [pairs, graded[:, :1] - graded[:, 1:], votes[:, :1] - votes[:, 1:]]


def main() -> None:
    """Print a row for each k, noise and way."""
    print("k  noise  way                        best of k  items  calls  tokens in        $")
    with tempfile.TemporaryDirectory() as folder:
        for k, noise in product((4, 8), (0.3, 1.0)):
            random = np.random.default_rng([k, round(10 * noise)])
            quality = random.normal(0, 1, (ITEMS, k))
            # The first answer is people's best one.
            quality = -np.sort(-quality, axis=1)
            taste = random.normal(0, 1, quality.shape)
            opinions = TASTE * quality + (1 - TASTE**2) ** 0.5 * taste
            texts = [f"{answer} " + "word " * WORDS for answer in range(k)]
            item = [BlindPair("A prompt.", texts[0], text, "item") for text in texts[1:]]
            spec = RaterSpec("judge", "judge", {"model": MODEL})
            costs = item_estimates([spec], item, Path(folder))
            for lead, cost in zip(leads(opinions, noise, random), costs, strict=True):
                share = credits(lead)
                n = round(share.var() * (1.96 / HALF_WIDTH) ** 2)
                dollars = n * (cost.cost_usd or 0)
                print(
                    f"{k}  {noise:5}  {cost.rater:25}  {share.mean():9.3f}  {n:5}  "
                    f"{n * cost.calls:5}  {n * cost.input_tokens:9,}  {dollars:7.2f}"
                )


if __name__ == "__main__":
    main()
