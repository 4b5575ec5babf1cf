"""Check whether training and test pairs share prompts, authors, stories or near-duplicates.

    litbench data check_leakage --config configs/data/check_leakage.yaml

Reads two pairs tables, `train` and `test`, or one table, `pairs`, and compares every two of its
splits. Writes `leakage.parquet` (one row per shared item, with an id in each split) and
`manifest.json` (counts) into `out`. After writing, exits with code 2 if a kind in `must_be_clean`
was found, for use in a build.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pyarrow.parquet as pq
from pydantic import Field

from litbench.data.curation.leakage import Kind, LeakageReport, by_split, leakage_report
from litbench.data.records import PAIRS
from litbench.data.tables import read_table, write_table
from litbench.runs.config import run_program
from litbench.runs.errors import ConfigError
from litbench.runs.outputs import Artifact, read_manifest


@dataclass
class Config:
    """Configuration of `check_leakage.py`.

    Attributes:
        out: output folder.
        pairs: pairs table with two or more splits; null if `train` and `test` are given.
        train: pairs table of the training split; its column `split` is ignored.
        test: pairs table of the test split; its column `split` is ignored.
        must_be_clean: kinds of leakage that are an error; [] only reports.
        threshold: minimum similarity, as `drop_near_duplicates` of make_pairs.py.
        seed: seed of the MinHash signatures, as in make_pairs.py.
    """

    out: Path
    pairs: Path | None = None
    train: Path | None = None
    test: Path | None = None
    must_be_clean: list[Kind] = field(
        default_factory=lambda: ["prompts", "stories", "near_duplicates"]
    )
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.8
    seed: int = 0


def check(config: Config) -> dict[str, Path]:
    """Return the input files by config key; raise ConfigError if the keys do not fit together."""
    if config.pairs is not None and config.train is None and config.test is None:
        return {"pairs": config.pairs}
    if config.pairs is None and config.train is not None and config.test is not None:
        return {"train": config.train, "test": config.test}
    raise ConfigError("give either pairs, a table with several splits, or both train and test")


def main(config: Config) -> None:
    """Write the leakage report; raise DataError for kinds in `must_be_clean`."""
    inputs = check(config)
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    path = config.out / "leakage.parquet"
    if artifact.is_current():
        # Check a stored report again, so that a second run also fails.
        report = LeakageReport(pq.read_table(path), read_manifest(config.out)["counts"])
    else:
        tables = {name: read_table(path, PAIRS) for name, path in inputs.items()}
        pairs = by_split(tables["pairs"]) if "pairs" in tables else tables
        report = leakage_report(pairs, threshold=config.threshold, seed=config.seed)
        artifact.write(path.name, lambda part: write_table(report.shared, part))
        artifact.counts = report.counts
        artifact.finish()
    print(f"{path}:\n{report}")
    report.check(config.must_be_clean)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
