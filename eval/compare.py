"""Compare evaluations of the same pairs: what a filter, a text or a model was worth.

    python eval/compare.py --config configs/eval/storyer_talk.yaml

Reads the folders of two or more evaluations (eval/benchmark.py or eval/crossvalidate.py) whose
pairs have the same pair_ids, such as one set of pairs with its texts cleaned and as published.
For each rater that they share, the difference of its agreement to the first evaluation is taken
pair by pair, with an interval clustered by prompt and Holm's correction over all differences.
Writes `comparison.json` and `manifest.json` into `out`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from litbench.artifact import Artifact, write_json
from litbench.config import nearest, run_program
from litbench.errors import ConfigError, DataError
from litbench.evaluation import Judged
from litbench.metrics.agreement import PairFacts, pair_scores
from litbench.metrics.comparisons import holm, paired_difference
from litbench.metrics.intervals import jackknife_interval
from litbench.metrics.leaderboard import plain


@dataclass
class Config:
    """What to compare.

    Attributes:
        evaluations: name -> folder; the first is what the others are compared with.
        out: folder to write.
        raters: names of raters; all that every evaluation has when empty.
    """

    evaluations: dict[str, Path]
    out: Path
    raters: list[str] = field(default_factory=list)


@dataclass
class Evaluation:
    """One evaluation's verdicts, in the order of pair_id.

    Attributes:
        name: as the config has it.
        pair_ids: shape (n,).
        clusters: prompt of each pair; shape (n,).
        credit: per rater the credit of each pair, 0 to 1; shape (n,) each.
    """

    name: str
    pair_ids: list[str]
    clusters: np.ndarray
    credit: dict[str, np.ndarray]


def read_evaluation(name: str, judged: Judged) -> Evaluation:
    """Read verdicts and the pairs they are about."""
    pairs = judged.read_pairs().headline.sort_by("pair_id")
    scores = pair_scores(judged.read_verdicts(), pairs)
    return Evaluation(
        name,
        pairs["pair_id"].to_pylist(),
        np.asarray(PairFacts.of(pairs).clusters),
        {score.rater: score.credit for score in scores},
    )


def shared_raters(evaluations: list[Evaluation], wanted: list[str]) -> list[str]:
    """The raters to compare; each is in every evaluation."""
    common = [
        rater for rater in evaluations[0].credit if all(rater in e.credit for e in evaluations)
    ]
    for rater in wanted:
        if rater not in common:
            raise ConfigError(
                f"raters: '{rater}' is not in every evaluation: {nearest(rater, common)}"
            )
    if not common:
        raise ConfigError("evaluations: no rater is in all of them: name the same rater in each")
    return wanted or common


def compare(first: Evaluation, other: Evaluation, rater: str) -> dict[str, Any]:
    """One rater in two evaluations."""
    difference, p_value = paired_difference(
        other.credit[rater], first.credit[rater], first.clusters
    )
    agreement = jackknife_interval(other.credit[rater], other.clusters)
    return {
        "rater": rater,
        "evaluation": other.name,
        "agreement": agreement,
        "reference": first.name,
        "difference": difference,
        "p_value": p_value,
    }


def main(config: Config) -> None:
    """Read, compare, print, write."""
    if len(config.evaluations) < 2:
        raise ConfigError("evaluations: give two or more, the one to compare with first")
    found = {name: Judged.find(folder) for name, folder in config.evaluations.items()}
    inputs = {key: path for name, one in found.items() for key, path in one.inputs(name).items()}
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    evaluations = [read_evaluation(name, one) for name, one in found.items()]
    first, *others = evaluations
    for other in others:
        if other.pair_ids != first.pair_ids:
            shared = len(set(other.pair_ids) & set(first.pair_ids))
            raise DataError(
                f"evaluations: {other.name} has {len(other.pair_ids)} pairs and {first.name} "
                f"{len(first.pair_ids)}, {shared} of them the same: compare evaluations of the "
                "same pairs"
            )
    raters = shared_raters(evaluations, config.raters)
    rows = [compare(first, other, rater) for rater in raters for other in others]
    for row, p in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["p_holm"] = p
    print(f"{len(first.pair_ids):,} pairs, {len(set(first.clusters.tolist())):,} prompts")
    for rater in raters:
        before = jackknife_interval(first.credit[rater], first.clusters)
        print(f"  {rater}: {first.name} {before}")
        for row in (row for row in rows if row["rater"] == rater):
            print(
                f"    {row['evaluation']} {row['agreement']}, difference {row['difference']}, "
                f"p {row['p_holm']:.3f}"
            )
    artifact.write("comparison.json", lambda path: write_json(plain(rows), path))
    artifact.counts = {"pairs": len(first.pair_ids), "raters": len(raters)}
    artifact.finish()


if __name__ == "__main__":
    run_program(main, Config, __doc__)
