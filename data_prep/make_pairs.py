"""Turn stories into preference pairs: filters, splits, pairing, caps, length symmetry.

    python data_prep/make_pairs.py --config configs/data/sample_pairs.yaml

Reads `stories` (the product of make_stories.py). The steps follow section 3.2 of the paper and
are counted one by one: clean, deduplicate, split by prompt, pair within a prompt, caps, length
symmetry last and inside each split. A key set to null or false leaves its step out. Writes
`pairs.parquet`, `pairs_before_symmetry.parquet` (the same without the last step),
`examples.jsonl` (a few rows that each step removed), `leakage.parquet` (where `must_be_clean`
names something) and `manifest.json` with the funnel into `out`. The same stories and seed give
the same bytes, whatever the order of the rows and the engine. With `variants` each named set of
changes is one more artifact, in a folder of its own.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from litbench.artifact import Artifact, is_output, read_manifest
from litbench.config import as_plain, build, run_program
from litbench.curation.engine import Engine
from litbench.curation.funnel import Examples, Funnel
from litbench.curation.leakage import Kind, by_split, leakage_report
from litbench.curation.pair_making import (
    PairsConfig,
    digest_of,
    make_keys,
    read_stories,
    require_rensa,
)
from litbench.errors import ConfigError, DataError
from litbench.tables import write_table

PAIR_FILES = ("pairs.parquet", "pairs_before_symmetry.parquet")


@dataclass(kw_only=True)
class Config(PairsConfig):
    """The rules and keys of `litbench.curation.pair_making.PairsConfig`, and these.

    Attributes:
        write_before_symmetry: also write the pairs before the last step.
        must_be_clean: kinds of leakage between the written splits that are an error: prompts,
            authors, stories, near_duplicates; looked for in memory.
        examples_per_step: rows kept of each step in examples.jsonl.
        variants: name -> keys that differ; each is written into the folder of its name in `out`.
            The keys above are then what the variants share.
    """

    write_before_symmetry: bool = True
    must_be_clean: list[Kind] = field(default_factory=list)
    examples_per_step: int = 5
    variants: dict[str, dict[str, Any]] | None = None

    def check(self) -> None:
        """Check what the types cannot."""
        super().check()
        if "near_duplicates" in self.must_be_clean:
            require_rensa()
        if self.must_be_clean and self.test_from is None and len(self.splits) < 2:
            raise ConfigError("must_be_clean needs two splits: give splits or test_from")
        if self.examples_per_step < 0:
            raise ConfigError(f"examples_per_step is {self.examples_per_step}: give 0 or more")


def run_steps(engine: Engine, config: Config, artifact: Artifact) -> Funnel:
    """Run the steps in their order and write the tables."""
    stories = read_stories(engine, config.stories)
    examples = Examples(config.examples_per_step)
    made = make_keys(engine, stories, config, examples=examples, where=str(config.stories))
    made.check_not_empty()
    pairs_name, before_name = PAIR_FILES
    tables = {pairs_name: made.after}
    if config.write_before_symmetry and config.symmetry_buckets is not None:
        tables[before_name] = made.before.drop("removed")
    for name, keys in tables.items():
        artifact.write(name, lambda path, name=name, keys=keys: made.write(keys, path, name))
    artifact.write("examples.jsonl", examples.write)
    artifact.counts = {
        "funnel": made.funnel.plain(),
        "lengths": {
            "after": made.longer_share(made.after),
            "before": made.longer_share(made.before),
        },
        "digest": digest_of(config.out / pairs_name),
    }
    check_leakage(engine, config, artifact)
    return made.funnel


def check_leakage(engine: Engine, config: Config, artifact: Artifact) -> None:
    """Write what the splits share, and fail where they must not."""
    must = config.must_be_clean
    if not must:
        return
    pairs = by_split(pq.read_table(config.out / "pairs.parquet"))
    report = leakage_report(
        pairs,
        near_duplicates="near_duplicates" in must,
        threshold=config.drop_near_duplicates or 0.8,
        seed=config.seed,
        folder=engine.work,
    )
    artifact.write("leakage.parquet", lambda path: write_table(report.found, path))
    artifact.counts["leakage"] = report.counts
    try:
        report.check(must)
    except DataError:
        # Not every reader asks for the manifest: pairs that leak must not lie under this name.
        for name in PAIR_FILES:
            (config.out / name).unlink(missing_ok=True)
        raise
    print(report)


def counts_before(stories: Path) -> dict[str, Any] | None:
    """What the program that wrote the stories counted, so that the report can tell the whole way.

    Null where the manifest beside the file is not the file's own.
    """
    if not (stories.parent / "manifest.json").is_file():
        return None
    manifest = read_manifest(stories.parent)
    return manifest.get("counts", {}) if is_output(manifest, stories) else None


def make_pairs(config: Config) -> None:
    """Check, run the steps, write the manifest."""
    artifact = config.artifact(__file__)
    if artifact.is_current():
        return
    before = counts_before(config.stories)
    with config.open_engine() as engine:
        funnel = run_steps(engine, config, artifact)
    if before is not None:
        artifact.counts["stories"] = before
    artifact.finish()
    print(f"{config.out / 'pairs.parquet'}:\n{funnel}")


def main(config: Config) -> None:
    """Make the pairs, or those of every variant."""
    if config.variants is None:
        make_pairs(config)
        return
    if not config.variants:
        raise ConfigError("variants is empty: name at least one, such as full: {}, or leave it out")
    shared = {key: value for key, value in as_plain(config).items() if key != "variants"}
    for name, keys in config.variants.items():
        if not re.fullmatch(r"[\w-][\w.-]*", name):
            raise ConfigError(
                f"variants: {name!r} names no folder in out: write letters, digits, -, _ and ."
            )
        for key in ("stories", "out", "variants"):
            if key in keys:
                raise ConfigError(f"variants: {name}: '{key}' is shared by all: set it outside")
    # All are checked before the first runs.
    variants = {
        name: build(Config, {**shared, "out": config.out / name, **keys}, f"variants: {name}")
        for name, keys in config.variants.items()
    }
    for variant in variants.values():
        variant.check()
    for name, variant in variants.items():
        print(f"{name}:")
        make_pairs(variant)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
