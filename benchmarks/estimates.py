"""Measure estimates that depend on who rated what: grades of writers, label ceilings, and ECE.

    python benchmarks/estimates.py --simulations 500

Prints a table for each. Seeded; one CPU core, about four minutes.

- Six writers, of whom the worst lacks the hardest prompts: coverage of the 95 % intervals of its
  grade and of its difference from the best, and its rank. The level of each prompt is normal with
  standard deviation 1, the rest with 0.3 or 1.
- The ceiling of labels, where each annotator prefers the story of a pair with probability q, which
  is normal with mean 0.8 and standard deviation 0.2 and clipped to [0, 1]: the estimate, beside how
  often the annotators' majority is right.
- The expected calibration error of a rater whose probabilities are right, and the reference that
  reports print beside it.
"""

import argparse
import itertools

import numpy as np

from litbench.metrics.annotators import annotator_agreement, label_ceiling
from litbench.metrics.calibration import calibration
from litbench.writers.metrics import GradeCell, writer_rows


def measure_grades(prompts: int, missing: float, noise: float, simulations: int) -> list[float]:
    """Coverage of the worst writer's grade and of its difference in %, its rank, and that by means.

    Args:
        prompts: number of prompts.
        missing: share of the prompts, the hardest, that the worst writer lacks.
        noise: standard deviation of a grade around writer and prompt.
        simulations: number of simulated sets.
    """
    random = np.random.default_rng([prompts, round(100 * missing), round(10 * noise)])
    levels, results = np.linspace(0.5, -0.5, 6), []
    for _ in range(simulations):
        ease = random.normal(0, 1, prompts)
        grades = levels[:, None] + ease + random.normal(0, noise, (6, prompts))
        has = np.ones((6, prompts), bool)
        has[5, np.argsort(ease)[: round(missing * prompts)]] = False
        cells = [GradeCell(f"w{w}", f"p{p}", "judge", grades[w, p]) for w, p in np.argwhere(has)]
        rows = {row.writer: row for row in writer_rows(cells, "w0")}
        grade, gap = rows["w5"].grade, rows["w5"].difference
        means = np.array([grades[w, has[w]].mean() for w in range(6)])
        results.append(
            (
                100 * (grade.low <= -0.5 <= grade.high),
                100 * (gap is not None and gap.low <= -1 <= gap.high),
                list(rows).index("w5") + 1,
                1 + (means > means[5]).sum(),
            )
        )
    return list(np.mean(results, axis=0))


def measure_ceiling(people: int, pairs: int, simulations: int) -> list[float]:
    """Means of the ceiling by the estimated spread and by none, its RMSE, and the truth."""
    random, results = np.random.default_rng([people, pairs]), []
    first, second = ([f"{side}{row}" for row in range(pairs)] for side in (1, 0))
    for _ in range(simulations):
        q = np.clip(random.normal(0.8, 0.2, pairs), 0, 1)
        right = random.random((pairs, people)) < q[:, None]
        ratings = {
            str(k): dict(zip(first + second, [*column, *(1 - column)], strict=True))
            for k, column in enumerate(right.T.astype(float))
        }
        agreement = annotator_agreement(ratings, first, second, np.arange(pairs), {})
        assert agreement is not None
        two, spread = agreement.two_decided, agreement.difficulty_spread
        ceilings = (label_ceiling(two, people, spread).mean, label_ceiling(two, people).mean)
        votes = right.sum(1) - people / 2
        truth = np.where(votes == 0, 0.5, (votes > 0) == (q > 0.5)).mean()
        results.append((*ceilings, truth))
    estimate, bound, truth = np.array(results).T
    error = np.sqrt(np.square(estimate - truth).mean())
    return [estimate.mean(), error, bound.mean(), truth.mean()]


def measure_calibration(pairs: int, simulations: int) -> list[float]:
    """Means of the ECE of a calibrated rater and of the printed reference."""
    random, results = np.random.default_rng(pairs), []
    for _ in range(simulations):
        p = random.uniform(0, 1, pairs)
        p = np.where(random.random(pairs) < p, p, 1 - p)
        result = calibration(p, np.arange(pairs))
        assert result is not None
        results.append((result.ece, result.ece_if_calibrated))
    return list(np.mean(results, axis=0))


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--simulations", type=int, default=500, help="per row")
    count = parser.parse_args().simulations
    print("prompts  missing  noise  grade %  difference %  rank  rank by means")
    for prompts, missing, noise in itertools.product((12, 30), (0, 0.2, 0.33), (0.3, 1.0)):
        values = measure_grades(prompts, missing, noise, count)
        print(prompts, missing, noise, *(f"{value:.1f}" for value in values), flush=True)
    print("annotators  pairs  ceiling  RMSE  equal difficulty  truth")
    for people, pairs in itertools.product((3, 5, 7), (200, 1_000)):
        values = measure_ceiling(people, pairs, max(count // 5, 1))
        print(people, pairs, *(f"{value:.3f}" for value in values), flush=True)
    print("pairs  ECE  reference")
    for pairs in (100, 500, 2_000):
        print(pairs, *(f"{value:.3f}" for value in measure_calibration(pairs, count)), flush=True)


if __name__ == "__main__":
    main()
