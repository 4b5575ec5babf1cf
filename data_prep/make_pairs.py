"""Turn stories into preference pairs: filters, splits, pairing, caps, length symmetry.

    python data_prep/make_pairs.py --config configs/data/sample_pairs.yaml

Reads `stories` (the product of make_stories.py). The steps follow section 3.2 of the paper and
are counted one by one: clean, deduplicate, split by prompt, pair within a prompt, caps, length
symmetry last and inside each split. A key set to null or false leaves its step out. Writes
`pairs.parquet`, `pairs_before_symmetry.parquet` (the same without the last step) and
`manifest.json` with the funnel into `out`. The same stories and seed give the same bytes,
whatever the order of the rows.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import duckdb
import ibis
import pyarrow as pa

from litbench.config import run_program
from litbench.curation import filters, pairing, splits
from litbench.curation.funnel import Funnel
from litbench.errors import ConfigError, DataError
from litbench.manifest import Product, read_manifest
from litbench.reading import read_table
from litbench.records import PAIRS, STORIES, check_parquet, write_sorted_batches


@dataclass
class Config:
    """The rules; the defaults are the paper's full set.

    Attributes:
        stories: Parquet, JSONL, CSV or `datasets` by the schema STORIES; Parquet is read from disk
            as needed, the others into memory.
        out: folder to write.
        seed: seeds splits, caps and symmetry.
        drop_deleted: remove deleted and removed bodies.
        drop_bots: remove bots and moderator templates.
        min_score: least net upvotes of a story.
        max_tokens: most tokens of a story; needs the column n_tokens.
        min_words: fewest words of a story.
        drop_duplicates: keep the earliest of several copies of a story.
        splits: share of prompts per split.
        min_gap: least score gap, as a share of the chosen score.
        chosen_later: the chosen story must be the later one.
        max_pairs_per_prompt: cap, drawn by seed.
        symmetry_buckets: buckets of the length-difference histogram; even.
        write_before_symmetry: also write the pairs before the last step.
        label_source: votes, or planted where the votes are simulated.
        memory_limit: for DuckDB, such as "4GB"; it spills to disk beyond.
    """

    stories: Path
    out: Path
    seed: int = 0
    drop_deleted: bool = True
    drop_bots: bool = True
    min_score: int | None = 10
    max_tokens: int | None = 2_048
    min_words: int | None = 50
    drop_duplicates: bool = True
    splits: dict[str, float] = field(default_factory=lambda: {"all": 1.0})
    min_gap: float | None = 0.25
    chosen_later: bool = True
    max_pairs_per_prompt: int | None = None
    symmetry_buckets: int | None = 100
    write_before_symmetry: bool = True
    label_source: Literal["votes", "planted"] = "votes"
    memory_limit: str | None = None


def check(config: Config) -> None:
    """Check what the types cannot."""
    splits.check_fractions(config.splits)
    buckets = config.symmetry_buckets
    if buckets is not None and (buckets < 2 or buckets % 2):
        raise ConfigError(f"symmetry_buckets is {buckets}: give an even number, 2 or more")
    if config.min_gap is not None and not 0 <= config.min_gap < 1:
        raise ConfigError(f"min_gap is {config.min_gap}: give a share from 0 to below 1")
    if config.max_pairs_per_prompt is not None and config.max_pairs_per_prompt < 1:
        raise ConfigError("max_pairs_per_prompt is below 1: give at least 1, or null for no cap")


def count_by(table: Any, column: str) -> dict[str | None, int]:
    """Rows per value of a column."""
    counted = table.group_by(column).agg(rows=table.count()).to_pyarrow().to_pylist()
    return {row[column]: row["rows"] for row in counted}


def filter_stories(con: Any, stories: Any, config: Config, funnel: Funnel) -> Any:
    """Clean and deduplicate; returns the keys of the stories that stay."""
    uncounted = stories.n_tokens.isnull().sum().to_pyarrow().as_py()
    if config.max_tokens is not None and uncounted:
        raise DataError(
            f"{config.stories}: column n_tokens is null in {uncounted:,} rows, and max_tokens "
            "needs it: name a tokenizer in make_stories.py, or set max_tokens to null"
        )
    if config.chosen_later and stories.created_utc.count().to_pyarrow().as_py() == 0:
        raise DataError(
            f"{config.stories}: column created_utc is empty, and chosen_later needs it: map it in "
            "make_stories.py, or set chosen_later to false"
        )
    rules = filters.story_rules(
        stories,
        drop_deleted=config.drop_deleted,
        drop_bots=config.drop_bots,
        needs_score=True,
        needs_time=config.chosen_later,
        min_score=config.min_score,
        max_tokens=config.max_tokens,
        min_words=config.min_words,
    )
    marked = stories.select(
        "story_id", "prompt_id", "prompt", "score", "created_utc", "author", "n_words",
        removed_by=filters.removed_by(rules),
        duplicate_key=filters.duplicate_key(stories),
    )  # fmt: skip
    marked = con.create_table("marked", marked, temp=True)
    removed = count_by(marked, "removed_by")
    total = sum(removed.values())
    funnel.add("read", "stories read", "stories", total, 0)
    names = [(rule.name, rule.about) for rule in rules]
    funnel.add_all(names, {name: n for name, n in removed.items() if name}, total, "stories")
    clean = marked.filter(marked.removed_by.isnull())
    if not config.drop_duplicates:
        return clean
    repeats = clean.mutate(repeated=filters.is_repeat(clean))
    repeats = con.create_table("repeats", repeats, temp=True)
    unique = repeats.filter(~repeats.repeated)
    kept, before = unique.count().to_pyarrow().as_py(), repeats.count().to_pyarrow().as_py()
    funnel.add("drop_duplicates", "not a copy of an earlier story", "stories", kept, before - kept)
    return unique


def make_pairs(con: Any, stories: Any, config: Config, funnel: Funnel) -> Any:
    """Split, pair and cap; returns the keys of the pairs before symmetry."""
    prompts = stories.select("prompt").distinct().to_pyarrow()["prompt"].to_pylist()
    assigned = splits.split_prompts(prompts, config.splits, config.seed)
    table = {"prompt": list(assigned), "split": list(assigned.values())}
    schema = {"prompt": "string", "split": "string"}
    stories = stories.join(ibis.memtable(table, schema=schema), "prompt")
    stories = con.create_table("split_stories", stories, temp=True)
    candidates = pairing.within_prompt(stories)
    rules = pairing.pair_rules(candidates, min_gap=config.min_gap, chosen_later=config.chosen_later)
    marked = candidates.mutate(removed_by=filters.removed_by(rules))
    removed = count_by(marked, "removed_by")
    total = sum(removed.values())
    funnel.add("within_prompt", "pairs within a prompt, scores differ", "pairs", total, 0)
    names = [(rule.name, rule.about) for rule in rules]
    funnel.add_all(names, {name: n for name, n in removed.items() if name}, total, "pairs")
    pairs = marked.filter(marked.removed_by.isnull()).drop("removed_by")
    pairs = con.create_table("pairs", pairs, temp=True)
    if config.max_pairs_per_prompt is None:
        return pairs
    capped = pairs.mutate(over=pairing.over_cap(pairs, config.max_pairs_per_prompt, config.seed))
    capped = con.create_table("capped", capped, temp=True)
    kept = capped.filter(~capped.over)
    n_kept, before = kept.count().to_pyarrow().as_py(), capped.count().to_pyarrow().as_py()
    about = f"at most {config.max_pairs_per_prompt} pairs per prompt"
    funnel.add("max_pairs_per_prompt", about, "pairs", n_kept, before - n_kept)
    return kept.drop("over")


def balance(con: Any, pairs: Any, config: Config, funnel: Funnel) -> Any:
    """Prune to length symmetry; returns the keys with a column `removed`."""
    buckets = config.symmetry_buckets
    if buckets is None:
        return pairs.mutate(removed=ibis.literal(False))
    marked = pairing.breaks_symmetry(pairs, buckets, config.seed)
    marked = con.create_table("balanced", marked, temp=True)
    removed = count_by(marked, "removed")
    about = f"length differences mirrored, {buckets} buckets"
    funnel.add("symmetry_buckets", about, "pairs", removed.get(False, 0), removed.get(True, 0))
    return marked


def with_texts(pairs: Any, stories: Any, label_source: str) -> Any:
    """Join prompt and texts to the keys and put them in the order of pair_id."""
    chosen = stories.select("prompt", chosen_story_id="story_id", chosen="text")
    rejected = stories.select(rejected_story_id="story_id", rejected="text")
    null_number = ibis.null("float64")
    return (
        pairs.join(chosen, "chosen_story_id")
        .join(rejected, "rejected_story_id")
        .mutate(
            label_source=ibis.literal(label_source),
            margin=null_number,
            weight=null_number,
            fold=ibis.null("string"),
        )
        .order_by("pair_id")
    )


def stream(con: Any, table: Any) -> pa.RecordBatchReader:
    """Read an expression batch by batch.

    Not `to_pyarrow_batches`: ibis 12.0 calls a DuckDB method that DuckDB 2.0 no longer has.
    """
    return con.con.sql(con.compile(table)).to_arrow_reader()


def longer_share(pairs: Any) -> dict[str, Any]:
    """Per split: pairs, and how many have the longer, the shorter or an equally long one chosen."""
    difference = pairs.chosen_n_words - pairs.rejected_n_words
    counted = pairs.group_by("split").agg(
        pairs=pairs.count(),
        chosen_longer=(difference > 0).sum(),
        chosen_shorter=(difference < 0).sum(),
        prompts=pairs.prompt_id.nunique(),
    )
    rows = counted.order_by("split").to_pyarrow().to_pylist()
    return {row.pop("split"): row for row in rows}


def connect(config: Config) -> Any:
    """Open an in-memory DuckDB through Ibis."""
    con = ibis.duckdb.connect()
    if config.memory_limit is not None:
        try:
            con.raw_sql(f"SET memory_limit = '{config.memory_limit}'")
        except duckdb.Error as error:
            raise ConfigError(
                f"memory_limit is '{config.memory_limit}' ({error}): give a size such as 4GB"
            ) from error
    return con


def run_steps(con: Any, config: Config, product: Product) -> Funnel:
    """Run the steps in their order and write the tables."""
    if config.stories.suffix == ".parquet":
        # Stays on disk: DuckDB reads what a step needs.
        stories = con.read_parquet(config.stories)
    else:
        stories = ibis.memtable(read_table(config.stories, STORIES))
    funnel = Funnel()
    kept = filter_stories(con, stories, config, funnel)
    before = make_pairs(con, kept, config, funnel)
    marked = balance(con, before, config, funnel)
    after = marked.filter(~marked.removed).drop("removed")
    if after.count().to_pyarrow().as_py() == 0:
        raise DataError(f"no pair is left:\n{funnel}\nloosen the step that removed the most")
    tables = {"pairs.parquet": after}
    if config.write_before_symmetry and config.symmetry_buckets is not None:
        tables["pairs_before_symmetry.parquet"] = marked.drop("removed")
    for name, keys in tables.items():
        rows = with_texts(keys, stories, config.label_source)
        product.write(
            name,
            lambda path, rows=rows: write_sorted_batches(stream(con, rows), PAIRS, path),
        )
    product.counts = {
        "funnel": funnel.plain(),
        "lengths": {"after": longer_share(after), "before": longer_share(marked)},
    }
    return funnel


def main(config: Config) -> None:
    """Check, run the steps, write the manifest."""
    check(config)
    if config.stories.suffix == ".parquet":
        check_parquet(config.stories, STORIES)
    product = Product(
        config.out, program=__file__, config=config, inputs={"stories": config.stories}
    )
    if product.is_current():
        return
    con = connect(config)
    try:
        funnel = run_steps(con, config, product)
    finally:
        con.disconnect()
    if (config.stories.parent / "manifest.json").exists():
        # What came before, so that the report can tell the whole way.
        product.counts["stories"] = read_manifest(config.stories.parent).get("counts", {})
    product.finish()
    print(f"{config.out / 'pairs.parquet'}:\n{funnel}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
