"""Look for what training and test pairs share that they should not.

    python data_prep/check_leakage.py --config configs/data/check_leakage.yaml

Reads two pairs tables, `train` and `test`, or one, `pairs`, whose splits are compared two by two.
Looks for shared prompts, authors and stories and for near-duplicate stories, and writes
`leakage.parquet` (one row for each, with an id on either side) and `manifest.json` (counts) into
`out`. Ends with an error and exit code 2 when a kind in `must_be_clean` is found, after the files
are written, so that it can stand in a build.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pyarrow.parquet as pq
from pydantic import Field

from litbench.artifact import Artifact, read_manifest
from litbench.config import run_program
from litbench.curation.leakage import Kind, LeakageReport, by_split, leakage_report
from litbench.curation.near_duplicates import check_rensa
from litbench.errors import ConfigError
from litbench.records import PAIRS
from litbench.tables import read_table, write_table


@dataclass
class Config:
    """What is compared, and what must not be shared.

    Attributes:
        out: folder to write.
        pairs: pairs table with two or more splits; or null, with `train` and `test` given.
        train: pairs table of the training split, whatever its column split says.
        test: pairs table of the test split.
        must_be_clean: kinds that end the program with an error when shared; [] to report only.
        threshold: least similarity of near-duplicates, as in make_pairs.py.
        seed: seed of the hashes, as in make_pairs.py.
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
    """Check what the types cannot; returns the inputs by their key."""
    check_rensa()
    if config.pairs is not None and config.train is None and config.test is None:
        return {"pairs": config.pairs}
    if config.pairs is None and config.train is not None and config.test is not None:
        return {"train": config.train, "test": config.test}
    raise ConfigError("give either pairs, a table with several splits, or both train and test")


def main(config: Config) -> None:
    """Compare, write, and fail where the config says so."""
    inputs = check(config)
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    path = config.out / "leakage.parquet"
    if artifact.is_current():
        # Still not clean when it was not.
        report = LeakageReport(pq.read_table(path), read_manifest(config.out)["counts"])
    else:
        tables = {name: read_table(path, PAIRS) for name, path in inputs.items()}
        pairs = by_split(tables["pairs"]) if "pairs" in tables else tables
        report = leakage_report(pairs, threshold=config.threshold, seed=config.seed)
        artifact.write(path.name, lambda part: write_table(report.found, part))
        artifact.counts = report.counts
        artifact.finish()
    print(f"{path}:\n{report}")
    report.check(config.must_be_clean)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
