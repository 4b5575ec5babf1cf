"""Recompute the claims of docs/results/new_prompts.md on other prompts.

    python benchmarks/replicate.py --data FOLDER --train OTHER_FOLDER

`data` has a folder for each published set, with the files that `litbench data import NAME --from`
reads; a set that is not there is left out. With `train`, another folder of the same form, trained
raters learn from all its pairs, which must have other prompts; without it they are cross-validated
on the prompts of `data`. The claims and their stated values are in docs/results/claims.csv.

Writes `replication.csv` and `replication.txt` into `out`: each claim, the stated value, the value
there, the difference with its 95 % interval, and the p value of no effect there (1/2, or no
difference), corrected for all figures that the claims were chosen from (Bonferroni). The stated
values were chosen among many, so that smaller ones are to be expected (docs/results). A claim with
a `reason` in claims.csv cannot be recomputed here. Two CPU cores, minutes.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from litbench.audit.findings import audit_pairs
from litbench.data.records import VERDICTS, connected_prompts
from litbench.data.sources.evaluation_pairs import read_pairs
from litbench.data.sources.pairs import read_any_pairs
from litbench.data.sources.registry import find_dataset, import_dataset, read_registry
from litbench.evaluation.benchmark import Benchmark, run_benchmark
from litbench.evaluation.loop import compare_annotators
from litbench.evaluation.report.csv_table import write_csv
from litbench.evaluation.report.document import Table, p_value
from litbench.evaluation.results import Evaluation
from litbench.metrics.agreement import pair_scores
from litbench.metrics.comparisons import interval_p, paired_difference
from litbench.metrics.intervals import Interval, training_of_difference
from litbench.models.features import FeatureOptions, fit_features
from litbench.runs.config import run_program
from litbench.runs.outputs import write_atomically

CLAIMS = Path(__file__).parent.parent / "docs/results/claims.csv"
# Folders whose names are not those of the sets.
FOLDERS = {
    "storyer": "storyer_pairs",
    "storyer_cut": "storyer_pairs",
    "csg_lay": "csg_short",
    "lamp": "lamp_rankings",
    "wqrm": "wqrm_triplets",
}
TRAINED = ("features", "bag_of_words")


@dataclass
class Config:
    """Configuration of `replicate.py`.

    Attributes:
        data: folder of the sets to try the claims on.
        train: folder of the sets that trained raters learn from; null cross-validates them.
        out: output folder.
        looked_at: number of figures to correct for; by default all of docs/results.
    """

    data: Path
    train: Path | None = None
    out: Path = Path("runs/replication")
    looked_at: int = 370


def read_claims(*, recomputed: bool = True) -> list[dict[str, str]]:
    """The rows of claims.csv that can be recomputed, or those that cannot, with their `reason`."""
    with CLAIMS.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if recomputed == (not row["reason"])]


def import_set(name: str, data: Path, out: Path) -> Path | None:
    """Import a set from its folder in `data`; returns its pairs, or None if it is not there."""
    folder = data / FOLDERS.get(name, name)
    if not folder.is_dir():
        return None
    if not (out / name / "pairs/manifest.json").is_file():
        dataset = find_dataset(read_registry(), name)
        import_dataset(name, dataset, out / name, __file__, copy=folder)
    return out / name / "pairs/pairs.parquet"


def judged_split(name: str) -> str | None:
    """The split of a set that is judged, whose raters learn from `train`; None for all pairs."""
    return find_dataset(read_registry(), name).split


class Replication:
    """The figures of one folder of sets; each set is imported and judged once."""

    def __init__(self, config: Config, claims: Sequence[Mapping[str, str]]) -> None:
        self.config, self.claims = config, claims
        self.evaluations: dict[str, Evaluation] = {}

    def pairs(self, name: str) -> Path | None:
        """The pairs of a set in `data`."""
        return import_set(name, self.config.data, self.config.out / "data")

    def train_pairs(self, name: str) -> Path | None:
        """The pairs of a set that raters learn from, if `train` is given."""
        if self.config.train is None:
            return None
        return import_set(name, self.config.train, self.config.out / "train")

    def feature_model(self, name: str, pairs: Path) -> dict[str, Any]:
        """The entry of a feature model that has learnt from all pairs of a file."""
        folder = self.config.out / "models" / name
        if not folder.is_dir():
            learnt = read_pairs(pairs, None, "train" if judged_split(name) else None).headline
            fit_features(learnt, FeatureOptions()).save(folder)
        return {"kind": "features", "path": str(folder)}

    def entry(self, rater: str, name: str) -> dict[str, Any] | None:
        """The entry of a rater on a set; None if there is nothing to learn from."""
        if rater == "storyer_features":
            storyer = self.train_pairs("storyer") if self.config.train else self.pairs("storyer")
            return None if storyer is None else self.feature_model("storyer", storyer)
        if rater not in TRAINED or (self.config.train is None and not judged_split(name)):
            return {"kind": rater}
        learnt = self.pairs(name) if self.config.train is None else self.train_pairs(name)
        if learnt is None:
            return None
        if rater == "features":
            return self.feature_model(name, learnt)
        return {"kind": rater, "path": str(learnt)}

    def evaluation(self, name: str, pairs: Path) -> Evaluation:
        """All raters of a set's claims on its pairs, beside the longer story."""
        if name not in self.evaluations:
            raters = {claim["rater"] for claim in self.claims if claim["set"] == name}
            entries = {
                rater: entry
                for rater in sorted(raters - {"people", "source"} | {"longer"})
                if (entry := self.entry(rater, name)) is not None
            }
            source = {"pairs": str(pairs), "split": judged_split(name), "recorded": False}
            benchmark = Benchmark(
                pairs={name: source},
                out=self.config.out / "evaluations" / name,
                raters=entries,
                reference="longer",
                folds=5,
            )
            self.evaluations[name] = run_benchmark(benchmark, __file__)[name]
        return self.evaluations[name]

    def value(self, claim: Mapping[str, str]) -> Interval | None:
        """The claim's figure in `data`; None if it cannot be computed there."""
        name, rater, figure = claim["set"], claim["rater"], claim["figure"]
        pairs = self.pairs(name)
        if pairs is None:
            return None
        if rater == "people":
            ratings = pairs.with_name("ratings.parquet")
            within = read_any_pairs(pairs.with_name("all_pairs.parquet"))
            annotators = compare_annotators(VERDICTS.arrow().empty_table(), ratings, within)
            return None if annotators is None else getattr(annotators, figure)
        if rater == "source":
            results = audit_pairs(read_any_pairs(pairs)).results
            names = [result.agreement for result in results if result.cue.name.startswith("name:")]
            return max(names, key=lambda interval: abs(interval.mean - 0.5), default=None)
        evaluation = self.evaluation(name, pairs)
        row = next((row for row in evaluation.rows if row.rater == rater), None)
        if row is None or row.trained_on:
            return None
        if figure == "agreement":
            return row.agreement
        if figure == "minus_longer":
            return None if row.comparison is None else row.comparison.difference
        path = self.pairs("storyer_cut")
        assert path is not None
        both = (evaluation, self.evaluation("storyer_cut", path))
        whole, cut = (
            next(
                scores
                for scores in pair_scores(result.verdicts, result.pairs.headline)
                if scores.rater == rater
            )
            for result in both
        )
        prompts = connected_prompts(evaluation.pairs.headline)
        training = training_of_difference(whole.training, cut.training)
        return paired_difference(whole.credit, cut.credit, prompts, training)[0]


def difference(stated: Sequence[float], there: Interval) -> list[float]:
    """There minus stated, with an interval from both (MOVER; Zou and Donner, 2008).

    The two are of different prompts, so their errors are independent. Bounds are NaN where one of
    the two has none.

    Args:
        stated: mean, lower and upper bound.
        there: the value on other prompts.
    """
    mean, low, high = stated
    gap = there.mean - mean
    below = math.hypot(there.mean - there.low, high - mean)
    above = math.hypot(there.high - there.mean, mean - low)
    return [gap, gap - below, gap + above]


def main(config: Config) -> None:
    """Recompute all claims, and write the table."""
    claims = read_claims()
    replication = Replication(config, claims)
    rows, shown = [], []
    for claim in claims:
        stated = [float(claim[end] or math.nan) for end in ("stated", "low", "high")]
        there = replication.value(claim)
        row: dict[str, Any] = {"claim": claim["claim"], "stated": stated[0]}
        cells = [claim["claim"], _text(stated), "–", "–", "–", "–"]
        if there is not None:
            gap = difference(stated, there)
            row |= {"there": there.mean, "low": there.low, "high": there.high, "n": there.n}
            row |= {"prompts": there.clusters, "difference": gap[0]}
            row |= {"difference_low": gap[1], "difference_high": gap[2]}
            is_share = not claim["figure"].startswith("minus")
            row["p"] = interval_p(there, 0.5 * is_share, is_share=is_share)
            row["p_corrected"] = min(1.0, row["p"] * config.looked_at)
            size = f"{there.n:,}, {there.clusters} ({there.effective_clusters:.0f})"
            cells[2:] = [str(there), _text(gap, sign="+"), size, p_value(row["p_corrected"])]
        rows.append(row)
        shown.append(cells)
    heading = ["claim", "stated", "there", "there minus stated", "n, prompts (effective)"]
    heading.append(f"p, corrected for {config.looked_at} figures")
    table = Table(heading, shown).as_text()
    names = list(dict.fromkeys(name for row in rows for name in row))
    filled = [{name: row.get(name) for name in names} for row in rows]
    config.out.mkdir(parents=True, exist_ok=True)
    write_atomically(config.out / "replication.csv", partial(write_csv, filled))
    text = partial(Path.write_text, data=f"{table}\n", encoding="utf-8")
    write_atomically(config.out / "replication.txt", text)
    print(table)


def _text(ends: Sequence[float], sign: str = "") -> str:
    mean, low, high = (f"{end:{sign}.3f}" for end in ends)
    return mean if math.isnan(ends[1]) else f"{mean} [{low}, {high}]"


if __name__ == "__main__":
    run_program(main, Config, __doc__)
