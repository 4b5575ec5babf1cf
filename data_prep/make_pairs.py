"""Turn stories into preference pairs: filters, splits, pairing, caps, length symmetry.

    python data_prep/make_pairs.py --config configs/data/sample_pairs.yaml

Reads `stories`, a table written by make_stories.py, with story_id, prompt_id, prompt, text,
n_words, source, score, score_utc, created_utc, author, flair and n_tokens. The steps follow section
3.2 of the paper (docs/curation.md). Each step is counted, and skipped if its key is null or false.

Writes into `out`: `pairs.parquet`, `pairs_before_symmetry.parquet` (without the last step),
`examples.jsonl` (a few rows that each step removed), `leakage.parquet` (if `must_be_clean` is
given) and `manifest.json` with the funnel. The bytes depend only on the stories, the rules and the
seed, not on row order or engine. With `variants`, each variant is written to its own folder.
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
    """Configuration of `make_pairs.py`; it extends `litbench.curation.rules.PairRules`.

    Attributes:
        stories: Parquet, JSONL, CSV or `datasets` table with the schema STORIES. Parquet is read
            in batches, other formats are loaded into memory.
        out: output folder.
        engine: duckdb, or spark (the active session, or the cluster named by spark.master).
        memory_limit: memory limit of DuckDB, such as "4GB"; above it, DuckDB spills into `out`.
        spark: Spark settings, such as {"spark.master": "spark://host:7077"}.
        must_be_clean: kinds of leakage between the written splits that are an error: prompts,
            authors, stories, near_duplicates. The check runs in memory.
        variants: maps names to the keys that they change; each variant is written into the folder
            of its name in `out`. The other keys apply to all variants.
    """

    stories: Path
    out: Path
    engine: EngineName = "duckdb"
    memory_limit: str | None = None
    spark: dict[str, str] = field(default_factory=dict)
    must_be_clean: list[Kind] = field(default_factory=list)
    variants: dict[str, dict[str, Any]] | None = None

    def check(self) -> None:
        """Raise ConfigError for values that the types allow but that do not fit together."""
        super().check()
        if "near_duplicates" in self.must_be_clean:
            check_rensa()
        if self.must_be_clean and self.test_from is None and len(self.splits) < 2:
            raise ConfigError("must_be_clean needs two splits: give splits or test_from")


def digest_of(path: Path) -> str:
    """Return a digest of the pairs, chosen sides and splits, independent of the file's encoding."""
    hasher = hashlib.sha256()
    columns = ["pair_id", "chosen_story_id", "rejected_story_id", "split"]
    for batch in pq.ParquetFile(path).iter_batches(columns=columns):
        for row in batch.to_pylist():
            hasher.update(("\t".join(row[name] for name in columns) + "\n").encode())
    return hasher.hexdigest()


def check_leakage(config: Config, artifact: Artifact) -> None:
    """Write a leakage report; raise DataError for kinds in `must_be_clean`."""
    report = leakage_report(
        by_split(pq.read_table(config.out / PAIRS)),
        near_duplicates="near_duplicates" in config.must_be_clean,
        threshold=config.drop_near_duplicates or 0.8,
        seed=config.seed,
    )
    artifact.write("leakage.parquet", lambda path: write_table(report.found, path))
    artifact.counts["leakage"] = report.counts
    try:
        report.check(config.must_be_clean)
    except DataError:
        # Other programs may read the files without checking the manifest, so delete them.
        for name in (PAIRS, BEFORE_SYMMETRY):
            (config.out / name).unlink(missing_ok=True)
        raise
    print(report)


def make_pairs(config: Config) -> None:
    """Make the pairs of one config and write them."""
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
    # The report also shows the counts of the program that wrote the stories.
    story_counts = None
    if (config.stories.parent / "manifest.json").is_file():
        manifest = read_manifest(config.stories.parent)
        story_counts = manifest.get("counts") if is_output(manifest, config.stories) else None
    limit, spark = config.memory_limit, config.spark
    with open_engine(config.engine, config.out, memory_limit=limit, spark=spark) as engine:
        stories, examples = read_stories(engine, config.stories), Examples()
        where = str(config.stories)
        pairs = CuratedPairs(engine, stories, config, examples=examples, where=where)
        pairs.check_not_empty()
        artifact.write(PAIRS, lambda path: pairs.write(pairs.after, path))
        if config.symmetry_buckets is not None:
            artifact.write(BEFORE_SYMMETRY, lambda path: pairs.write(pairs.before, path))
        artifact.write("examples.jsonl", examples.write)
        artifact.counts = {
            "funnel": pairs.funnel.plain(),
            "lengths": {
                "after": pairs.longer_share(pairs.after),
                "before": pairs.longer_share(pairs.before),
            },
            "digest": digest_of(config.out / PAIRS),
            "notes": pairs.notes,
        }
    if config.must_be_clean:
        check_leakage(config, artifact)
    if story_counts is not None:
        artifact.counts["stories"] = story_counts
    artifact.finish()
    print(f"{config.out / PAIRS}:\n{pairs.funnel}")
    for note in pairs.notes:
        print(f"note: {note}")


def variants_of(config: Config) -> dict[str, Config]:
    """Return the checked config of every variant, by name."""
    variants = {}
    shared = {key: value for key, value in as_plain(config).items() if key != "variants"}
    for name, keys in (config.variants or {}).items():
        if not re.fullmatch(r"[\w-][\w.-]*", name) or {"stories", "out", "variants"} & set(keys):
            raise ConfigError(
                f"variants: {name!r} must be a folder name (letters, digits, -, _ and .), and must "
                "not set stories, out or variants"
            )
        values = {**shared, "out": config.out / name, **keys}
        variants[name] = build(Config, values, f"variants: {name}")
        variants[name].check()
    return variants


def main(config: Config) -> None:
    """Make the pairs of the config or of each variant."""
    for variant in variants_of(config).values() if config.variants else [config]:
        make_pairs(variant)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
