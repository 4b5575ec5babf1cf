"""Put recorded judges into a leaderboard, beside raters that read and beside one human.

    python eval/recorded.py --config configs/eval/psychdepth_recorded.yaml

Reads `pairs` (of data_prep/import_ratings.py, with all it wrote beside them) and, under
`evaluations`, folders of eval/benchmark.py or eval/crossvalidate.py whose raters stand in the same
leaderboard; they judged the same pairs or, to be compared with one human as well, the
`all_pairs.parquet` beside them. Writes `verdicts.parquet`, `leaderboard.json` (also `.csv` and
`.txt`), `humans.json` and `humans.txt` (one human, and each rater, against the other humans) and
`manifest.json` into `out`.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.artifact import Artifact, read_manifest, read_manifest_of, write_json
from litbench.config import nearest, run_program
from litbench.errors import ConfigError, DataError
from litbench.evaluation import EvaluationPairs, finish_evaluation, print_leaderboard, read_pairs
from litbench.judges.recorded import recorded_verdicts
from litbench.metrics.agreement import pair_scores
from litbench.metrics.humans import HumanAgreement, human_agreement, humans_json, humans_text
from litbench.metrics.leaderboard import check_reference
from litbench.records import VERDICTS, prompt_keys
from litbench.sources.ratings import RATINGS
from litbench.tables import read_table

HUMANS_TEXT = "humans.txt"


@dataclass
class Config:
    """Whom to compare on what.

    Attributes:
        pairs: `pairs.parquet` of data_prep/import_ratings.py.
        out: folder to write.
        reference: the rater all others are compared with; choose it before looking.
        judges: names of recorded judges; all when empty.
        evaluations: name -> folder of an evaluation of the same pairs.
        split: only pairs of this split; null for all.
    """

    pairs: Path
    out: Path
    reference: str
    judges: list[str] = field(default_factory=list)
    evaluations: dict[str, Path] = field(default_factory=dict)
    split: str | None = None


def read_evaluations(
    config: Config, digests: set[str]
) -> tuple[list[pa.Table], dict[str, list[dict[str, Any]]]]:
    """Read the verdicts and records of other evaluations of these pairs.

    Args:
        config: names them.
        digests: of the files they may have judged.
    """
    tables, records = [], {}
    for name, folder in config.evaluations.items():
        manifest = read_manifest(folder)
        judged = manifest.get("inputs", {}).get("pairs", {})
        if judged.get("sha256") not in digests:
            raise DataError(
                f"evaluations.{name}: {folder} judged {judged.get('path')}, which is neither "
                f"{config.pairs} nor the all_pairs.parquet beside it, as they are now: evaluate "
                "one of them"
            )
        tables.append(read_table(folder / "verdicts.parquet", VERDICTS))
        for rater, parts in manifest["counts"]["raters"].items():
            if rater in records:
                raise ConfigError(
                    f"evaluations.{name}: rater '{rater}' is in another evaluation too: name them "
                    "differently"
                )
            records[rater] = parts
    return tables, records


def compare_humans(
    verdicts: pa.Table, ratings: pa.Table, every: pa.Table, made: dict[str, Any]
) -> HumanAgreement | None:
    """One human, and each rater, against the other humans, on all pairs within a prompt.

    Args:
        verdicts: of all raters.
        ratings: table by the schema RATINGS.
        every: all pairs within a prompt.
        made: the manifest of data_prep/import_ratings.py.
    """
    by_person: dict[str, dict[str, float]] = defaultdict(dict)
    for row in ratings.to_pylist():
        if row["rater_kind"] == "person" and row["rating"] is not None:
            by_person[row["rater"]][row["story_id"]] = row["rating"]
    ids = every["pair_id"].to_pylist()
    credits = {}
    for rater in dict.fromkeys(verdicts["rater"].to_pylist()):
        own = verdicts.filter(pa.array([name == rater for name in verdicts["rater"].to_pylist()]))
        asked = set(own["pair_id"].to_pylist())
        some = every.filter(pa.array([name in asked for name in ids]))
        (scores,) = pair_scores(own, some)
        known = dict(zip(some["pair_id"].to_pylist(), scores.credit, strict=True))
        credits[rater] = np.array([known.get(name, math.nan) for name in ids])
    return human_agreement(
        by_person,
        every["chosen_story_id"].to_pylist(),
        every["rejected_story_id"].to_pylist(),
        prompt_keys(every),
        credits,
        min_gap=made["config"]["min_gap"],
        slots=made["config"]["people"].get("slots", False),
    )


def main(config: Config) -> None:
    """Read, compare, write."""
    beside = config.pairs.parent
    made = read_manifest_of(config.pairs)
    if "all_pairs.parquet" not in made["outputs"]:
        raise DataError(f"{config.pairs} is not of data_prep/import_ratings.py: make it with that")
    inputs = {"pairs": config.pairs, "ratings_manifest": beside / "manifest.json"}
    for name in ("all_pairs", "ratings"):
        inputs[name] = beside / f"{name}.parquet"
        read_manifest_of(inputs[name])
    for name, folder in config.evaluations.items():
        inputs |= {
            f"{name}: {file}": folder / file for file in ("manifest.json", "verdicts.parquet")
        }
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    if artifact.is_current():
        print_leaderboard(config.out)
        if (config.out / HUMANS_TEXT).is_file():
            print((config.out / HUMANS_TEXT).read_text(encoding="utf-8"), end="")
        return
    both = read_pairs(config.pairs, inputs["all_pairs"], config.split)
    ratings = read_table(inputs["ratings"], RATINGS)
    recorded = recorded_verdicts(ratings, both.all)
    for judge in config.judges:
        if judge not in recorded:
            raise ConfigError(f"judges: no '{judge}': {nearest(judge, list(recorded))}")
    digests = {made["outputs"][name]["sha256"] for name in ("pairs.parquet", "all_pairs.parquet")}
    tables, records = read_evaluations(config, digests)
    for judge in config.judges or recorded:
        if judge in records:
            raise ConfigError(f"judges: '{judge}' is a rater of an evaluation too: rename that one")
        tables.append(recorded[judge])
        records[judge] = [{"notes": made["counts"]["recorded"][judge], "trained_on": 0}]
    check_reference(config.reference, list(records))
    humans = compare_humans(pa.concat_tables(tables), ratings, both.all, made)
    text = ""
    if humans is not None:
        text = f"\n{humans_text(humans)}\n"
        artifact.write("humans.json", lambda path: write_json(humans_json(humans), path))
        artifact.write(HUMANS_TEXT, lambda path: path.write_text(text, encoding="utf-8"))
    finish_evaluation(
        artifact, tables, records, EvaluationPairs(both.headline, None), config.reference
    )
    print(text, end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
