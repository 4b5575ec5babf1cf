"""Turn stories into preference pairs: filters, splits, pairing, caps, length symmetry.

    python data_prep/make_pairs.py --config configs/data/sample_pairs.yaml

Reads `stories`, the product of make_stories.py: story_id, prompt_id, prompt, text, n_words, source,
score, score_utc, created_utc, author, flair and n_tokens. The steps follow section 3.2 of the
paper (docs/curation.md) and are counted one by one; a key set to null or false leaves its step
out. Writes `pairs.parquet`, `pairs_before_symmetry.parquet` (the same without the last step),
`examples.jsonl` (a few rows that each step removed), `leakage.parquet` (where `must_be_clean`
names something) and `manifest.json` with the funnel into `out`. The same stories and seed give
the same bytes, whatever the order of the rows and the engine. With `variants` each named set of
changes is one more artifact, in a folder of its own.
"""

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from litbench.artifact import Artifact, is_output, read_manifest
from litbench.config import as_plain, build, run_program
from litbench.curation.engine import EngineName, open_engine
from litbench.curation.funnel import Examples
from litbench.curation.leakage import Kind, by_split, leakage_report
from litbench.curation.near_duplicates import check_rensa
from litbench.curation.pair_making import CuratedPairs, read_stories
from litbench.curation.rules import PairRules
from litbench.errors import ConfigError, DataError
from litbench.tables import write_table

PAIRS, BEFORE_SYMMETRY = "pairs.parquet", "pairs_before_symmetry.parquet"


@dataclass(kw_only=True)
class Config(PairRules):
    """The rules of `litbench.curation.rules.PairRules`, and these.

    Attributes:
        stories: Parquet, JSONL, CSV or `datasets` by the schema STORIES; Parquet is read from disk
            as needed, the others into memory.
        out: folder to write.
        engine: duckdb, or spark (the running session, or the cluster spark.master names).
        memory_limit: for DuckDB, such as "4GB"; it spills into `out` beyond.
        spark: settings of Spark, such as {"spark.master": "spark://host:7077"}.
        must_be_clean: kinds of leakage between the written splits that are an error: prompts,
            authors, stories, near_duplicates; looked for in memory.
        variants: name -> keys that differ; each is written into the folder of its name in `out`.
            The keys above are then what the variants share.
    """

    stories: Path
    out: Path
    engine: EngineName = "duckdb"
    memory_limit: str | None = None
    spark: dict[str, str] = field(default_factory=dict)
    must_be_clean: list[Kind] = field(default_factory=list)
    variants: dict[str, dict[str, Any]] | None = None

    def check(self) -> None:
        """Check what the types cannot."""
        super().check()
        if "near_duplicates" in self.must_be_clean:
            check_rensa()
        if self.must_be_clean and self.test_from is None and len(self.splits) < 2:
            raise ConfigError("must_be_clean needs two splits: give splits or test_from")


def digest_of(path: Path) -> str:
    """Digest of the pairs, their chosen sides and splits, whatever library wrote the file."""
    hasher = hashlib.sha256()
    columns = ["pair_id", "chosen_story_id", "rejected_story_id", "split"]
    for batch in pq.ParquetFile(path).iter_batches(columns=columns):
        for row in batch.to_pylist():
            hasher.update(("\t".join(row[name] for name in columns) + "\n").encode())
    return hasher.hexdigest()


def check_leakage(config: Config, artifact: Artifact) -> None:
    """Write what the splits share, and fail where they must not."""
    must = config.must_be_clean
    report = leakage_report(
        by_split(pq.read_table(config.out / PAIRS)),
        near_duplicates="near_duplicates" in must,
        threshold=config.drop_near_duplicates or 0.8,
        seed=config.seed,
    )
    artifact.write("leakage.parquet", lambda path: write_table(report.found, path))
    artifact.counts["leakage"] = report.counts
    try:
        report.check(must)
    except DataError:
        # Not every reader checks the manifest: pairs that leak must not keep this name.
        for name in (PAIRS, BEFORE_SYMMETRY):
            (config.out / name).unlink(missing_ok=True)
        raise
    print(report)


def make_pairs(config: Config) -> None:
    """Check, run the steps, write the manifest."""
    config.check()
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"stories": config.stories},
        runtime_keys=("engine", "memory_limit", "spark"),
    )
    if artifact.is_current():
        return
    # The counts of the program that wrote the stories, for the report.
    before = None
    if (config.stories.parent / "manifest.json").is_file():
        manifest = read_manifest(config.stories.parent)
        before = manifest.get("counts") if is_output(manifest, config.stories) else None
    limit, spark = config.memory_limit, config.spark
    with open_engine(config.engine, config.out, memory_limit=limit, spark=spark) as engine:
        stories, examples = read_stories(engine, config.stories), Examples()
        where = str(config.stories)
        made = CuratedPairs(engine, stories, config, examples=examples, where=where)
        made.check_not_empty()
        artifact.write(PAIRS, lambda path: made.write(made.after, path))
        if config.symmetry_buckets is not None:
            artifact.write(BEFORE_SYMMETRY, lambda path: made.write(made.before, path))
        artifact.write("examples.jsonl", examples.write)
        artifact.counts = {
            "funnel": made.funnel.plain(),
            "lengths": {
                "after": made.longer_share(made.after),
                "before": made.longer_share(made.before),
            },
            "digest": digest_of(config.out / PAIRS),
            "notes": made.notes,
        }
    if config.must_be_clean:
        check_leakage(config, artifact)
    if before is not None:
        artifact.counts["stories"] = before
    artifact.finish()
    print(f"{config.out / PAIRS}:\n{made.funnel}")
    for note in made.notes:
        print(f"note: {note}")


def variants_of(config: Config) -> dict[str, Config]:
    """The config of every variant, all of them checked."""
    variants = {}
    shared = {key: value for key, value in as_plain(config).items() if key != "variants"}
    for name, keys in (config.variants or {}).items():
        if not re.fullmatch(r"[\w-][\w.-]*", name) or {"stories", "out", "variants"} & set(keys):
            raise ConfigError(
                f"variants: {name!r} must name a folder (letters, digits, -, _ and .), and have no "
                "stories, out or variants of its own"
            )
        own = {**shared, "out": config.out / name, **keys}
        variants[name] = build(Config, own, f"variants: {name}")
        variants[name].check()
    return variants


def main(config: Config) -> None:
    """Make the pairs, or those of every variant."""
    for variant in variants_of(config).values() if config.variants else [config]:
        make_pairs(variant)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
