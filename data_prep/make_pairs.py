"""Turn stories into preference pairs: filters, splits, pairing, caps, length symmetry.

    python data_prep/make_pairs.py --config configs/data/sample_pairs.yaml

Reads `stories` (the product of make_stories.py). The steps follow section 3.2 of the paper and
are counted one by one: clean, deduplicate, split by prompt, pair within a prompt, caps, length
symmetry last and inside each split. A key set to null or false leaves its step out. Writes
`pairs.parquet`, `pairs_before_symmetry.parquet` (the same without the last step),
`examples.jsonl` (a few rows that each step removed), `leakage.parquet` (where `must_be_clean`
names something) and `manifest.json` with the funnel into `out`. The same stories and seed give
the same bytes, whatever the order of the rows and the engine. With `variants` each named set of
changes is one more product, in a folder of its own.
"""

import hashlib
import importlib.util
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import ibis
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

from litbench.config import as_plain, build, run_program
from litbench.curation import filters, pairing, splits
from litbench.curation.engine import Engine, EngineName, open_engine
from litbench.curation.funnel import Examples, Funnel
from litbench.curation.leakage import Kind, by_split, leakage_report
from litbench.curation.near_duplicates import check_options, near_duplicate_groups
from litbench.curation.splits import Straddling
from litbench.errors import ConfigError, DataError, MissingExtraError
from litbench.manifest import Product, is_output, read_manifest
from litbench.reading import read_table
from litbench.records import PAIRS, STORIES, check_parquet, write_sorted_batches, write_table
from litbench.text import prompt_key

PAIR_FILES = ("pairs.parquet", "pairs_before_symmetry.parquet")

# Examples of removed pairs are drawn from the pairs of so many prompts.
_EXAMPLE_PROMPTS = 200


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
        drop_talk: remove short replies that talk about the prompt instead of telling a story.
        min_score_age_hours: remove stories whose score was read sooner after posting than this,
            or at an unknown time.
        min_score: least net upvotes of a story.
        max_tokens: most tokens of a story; needs the column n_tokens.
        min_words: fewest words of a story.
        drop_duplicates: keep the earliest of several copies of a story.
        drop_near_duplicates: keep the earliest of stories whose runs of five words are this
            similar (Jaccard, such as 0.8), across all prompts; takes about 0.1 ms a story.
        splits: share of prompts per split, by a hash of the prompt's text.
        test_from: split by date instead: stories posted from this day (UTC) on are test, the
            others train; the paper's is "2023-01-01".
        straddling: with test_from, where a prompt with stories on both sides goes: to train (its
            later stories go), to test (its earlier ones go), or drop.
        separate_authors: no author in two splits: train loses the stories of test's authors.
        min_gap: least score gap, as a share of the chosen score.
        chosen_later: the chosen story must be the later one.
        max_uses_per_story: most pairs a story is in, drawn by seed.
        max_pairs_per_prompt: cap, drawn by seed.
        symmetry_buckets: buckets of the length-difference histogram; even.
        write_before_symmetry: also write the pairs before the last step.
        must_be_clean: kinds of leakage between the written splits that are an error: prompts,
            authors, stories, near_duplicates; looked for in memory.
        label_source: votes, people where `score` is a rating, or planted where it is simulated.
        examples_per_step: rows kept of each step in examples.jsonl.
        engine: duckdb, or spark (the running session, or the cluster spark.master names).
        memory_limit: for DuckDB, such as "4GB"; it spills into `out` beyond.
        spark: settings of Spark, such as {"spark.master": "spark://host:7077"}.
        variants: name -> keys that differ; each is written into the folder of its name in `out`.
            The keys above are then what the variants share.
    """

    stories: Path
    out: Path
    seed: int = 0
    drop_deleted: bool = True
    drop_bots: bool = True
    drop_talk: bool = True
    min_score_age_hours: float | None = None
    min_score: int | None = 10
    max_tokens: int | None = 2_048
    min_words: int | None = 50
    drop_duplicates: bool = True
    drop_near_duplicates: float | None = None
    splits: dict[str, float] = field(default_factory=lambda: {"all": 1.0})
    test_from: str | None = None
    straddling: Straddling = "train"
    separate_authors: bool = False
    min_gap: float | None = 0.25
    chosen_later: bool = True
    max_uses_per_story: int | None = None
    max_pairs_per_prompt: int | None = None
    symmetry_buckets: int | None = 100
    write_before_symmetry: bool = True
    must_be_clean: list[Kind] = field(default_factory=list)
    label_source: Literal["votes", "people", "planted"] = "votes"
    examples_per_step: int = 5
    engine: EngineName = "duckdb"
    memory_limit: str | None = None
    spark: dict[str, str] = field(default_factory=dict)
    variants: dict[str, dict[str, Any]] | None = None


def check(config: Config) -> None:
    """Check what the types cannot."""
    splits.check_fractions(config.splits)
    buckets = config.symmetry_buckets
    if buckets is not None and (buckets < 2 or buckets % 2):
        raise ConfigError(f"symmetry_buckets is {buckets}: give an even number, 2 or more")
    if config.min_gap is not None and not 0 <= config.min_gap < 1:
        raise ConfigError(f"min_gap is {config.min_gap}: give a share from 0 to below 1")
    for key in ("max_pairs_per_prompt", "max_uses_per_story"):
        most = getattr(config, key)
        if most is not None and most < 1:
            raise ConfigError(f"{key} is {most}: give at least 1, or null for no cap")
    if config.test_from is not None:
        splits.day_start(config.test_from)
        if len(config.splits) > 1:
            raise ConfigError("test_from and splits are both given: keep one of them")
    if config.drop_near_duplicates is not None:
        check_options(threshold=config.drop_near_duplicates, num_perm=128, shingle=5)
    looks = config.drop_near_duplicates is not None or "near_duplicates" in config.must_be_clean
    if looks and importlib.util.find_spec("rensa") is None:
        # Said now, and not after hours of other steps.
        raise MissingExtraError("rensa", "data")
    if config.must_be_clean and config.test_from is None and len(config.splits) < 2:
        raise ConfigError("must_be_clean needs two splits: give splits or test_from")
    if config.examples_per_step < 0:
        raise ConfigError(f"examples_per_step is {config.examples_per_step}: give 0 or more")


@dataclass
class Run:
    """What the steps share.

    Attributes:
        engine: runs their expressions.
        config: the rules.
        stories: the whole table, texts included.
        funnel: counts every step.
        examples: a few rows that each step removed.
    """

    engine: Engine
    config: Config
    stories: Any
    funnel: Funnel
    examples: Examples


def check_stories(run: Run) -> None:
    """Check what would make a rule silently wrong."""
    stories, config = run.stories, run.config
    found = run.engine.rows(
        stories.aggregate(
            rows=stories.count(),
            ids=stories.story_id.nunique(),
            uncounted=stories.n_tokens.isnull().sum(),
            timed=stories.created_utc.count(),
        )
    )[0]
    if found["ids"] != found["rows"]:
        raise DataError(
            f"{config.stories}: column story_id: {found['rows'] - found['ids']:,} rows repeat an "
            "id: make the file with make_stories.py, which sets them aside"
        )
    if config.max_tokens is not None and found["uncounted"]:
        raise DataError(
            f"{config.stories}: column n_tokens is null in {found['uncounted']:,} rows, and "
            "max_tokens needs it: name a tokenizer in make_stories.py, or set max_tokens to null"
        )
    if "is_bot" in stories.columns:
        kind = stories.schema()["is_bot"]
        if not (kind.is_boolean() or kind.is_null()):
            raise DataError(
                f"{config.stories}: column is_bot holds {kind}, not true or false: write it as "
                "Parquet, or leave the column out"
            )
    if config.chosen_later and not found["timed"]:
        raise DataError(
            f"{config.stories}: column created_utc is empty, and chosen_later needs it: map it in "
            "make_stories.py, or set chosen_later to false"
        )


def filter_stories(run: Run) -> Any:
    """Clean; returns the keys of the stories that stay."""
    stories, config = run.stories, run.config
    rules = filters.story_rules(
        stories,
        drop_deleted=config.drop_deleted,
        drop_bots=config.drop_bots,
        drop_talk=config.drop_talk,
        min_score_age_hours=config.min_score_age_hours,
        needs_score=True,
        needs_time=config.chosen_later,
        min_score=config.min_score,
        max_tokens=config.max_tokens,
        min_words=config.min_words,
    )
    no_key = ibis.null("string")
    marked = stories.select(
        "story_id", "prompt_id", "score", "created_utc", "author", "n_words",
        removed_by=filters.removed_by(rules),
        duplicate_key=filters.duplicate_key(stories) if config.drop_duplicates else no_key,
    )  # fmt: skip
    marked = run.engine.keep(marked)
    removed = run.engine.count_by(marked, "removed_by")
    total = sum(removed.values())
    run.funnel.add("read", "stories read", "stories", total, 0)
    names = [(rule.name, rule.about) for rule in rules]
    run.funnel.add_all(names, {name: n for name, n in removed.items() if name}, total, "stories")
    show_stories(run, marked.filter(marked.removed_by.notnull()))
    return marked.filter(marked.removed_by.isnull()).drop("removed_by")


def drop_duplicates(run: Run, clean: Any) -> Any:
    """Keep the earliest of several copies of a story."""
    if not run.config.drop_duplicates:
        return clean
    # Few stories have copies, and only these need an order.
    keys = clean.group_by("duplicate_key").agg(copies=clean.count())
    copies = clean.semi_join(keys.filter(keys.copies > 1), "duplicate_key")
    return drop_repeats(run, "drop_duplicates", "not a copy of an earlier story", clean, copies)


def drop_near_duplicates(run: Run, clean: Any) -> Any:
    """Keep the earliest of several stories that are nearly the same."""
    threshold = run.config.drop_near_duplicates
    if threshold is None:
        return clean
    texts = run.stories.semi_join(clean, "story_id").select("story_id", "text")
    batches = with_progress(run.engine.batches(texts), "near-duplicates", run.engine.count(clean))
    groups = near_duplicate_groups(
        batches, threshold=threshold, seed=run.config.seed, folder=run.engine.work
    )
    copies = clean.drop("duplicate_key").join(run.engine.put(groups), "story_id")
    about = f"not nearly ({threshold:.0%}) the same as an earlier story"
    return drop_repeats(
        run, "drop_near_duplicates", about, clean, copies.rename(duplicate_key="group")
    )


def drop_repeats(run: Run, step: str, about: str, clean: Any, copies: Any) -> Any:
    """Remove all but the earliest of the stories in `copies` that share a duplicate_key."""
    copies = copies.mutate(repeated=filters.is_repeat(copies))
    repeats = run.engine.keep(copies.filter(copies.repeated))
    kept = run.engine.keep(clean.anti_join(repeats, "story_id"))
    n_kept, n_removed = run.engine.count(kept), run.engine.count(repeats)
    run.funnel.add(step, about, "stories", n_kept, n_removed)
    if n_removed:
        show_stories(run, repeats.mutate(removed_by=ibis.literal(step)))
    return kept


def name_prompts(run: Run) -> Any:
    """Give every prompt its key and, when splits go by prompt, its split.

    Where one prompt_id comes with several texts the smallest stands for it, in the split and in
    the pairs, so that no text of a prompt is in two splits.
    """
    prompts = run.stories.group_by("prompt_id").agg(prompt=run.stories.prompt.min())
    ids: list[str] = []
    texts: list[str] = []
    for batch in run.engine.batches(prompts):
        ids.extend(batch["prompt_id"].to_pylist())
        texts.extend(batch["prompt"].to_pylist())
    columns = {"prompt_id": ids, "prompt": texts}
    if run.config.test_from is None:
        assigned = splits.split_prompts(texts, run.config.splits, run.config.seed)
        columns["split"] = [assigned[text] for text in texts]
    else:
        columns["prompt_key"] = [prompt_key(text) for text in texts]
    return run.engine.put(pa.table({name: pa.array(c, pa.string()) for name, c in columns.items()}))


def split(run: Run, stories: Any, prompts: Any) -> Any:
    """Give every story its split; returns the stories that have one."""
    config = run.config
    if config.test_from is None:
        split = run.engine.keep(stories.join(prompts.select("prompt_id", "split"), "prompt_id"))
    else:
        # All stories decide where a prompt lies, so that other filters do not move it.
        given = run.stories.select("story_id", "prompt_id", "created_utc")
        keyed = given.join(prompts.select("prompt_id", "prompt_key"), "prompt_id")
        dated = splits.date_split(keyed, test_from=config.test_from, straddling=config.straddling)
        dated = dated.select("story_id", "split", "split_removed")
        marked = run.engine.keep(stories.join(dated, "story_id"))
        removed = run.engine.count_by(marked, "split_removed")
        rules = list(splits.DATE_RULES.items())
        counts = {name: n for name, n in removed.items() if name}
        run.funnel.add_all(rules, counts, sum(removed.values()), "stories")
        show_stories(
            run,
            marked.filter(marked.split_removed.notnull()).rename(removed_by="split_removed"),
        )
        split = marked.filter(marked.split_removed.isnull()).drop("split_removed")
    if not config.separate_authors:
        return split
    marked = run.engine.keep(splits.shares_author(split))
    shared = run.engine.count_by(marked, "shares_author")
    about = "no author in two splits, train gives way"
    step = "separate_authors"
    run.funnel.add(step, about, "stories", shared.get(False, 0), shared.get(True, 0))
    gone = marked.filter(marked.shares_author)
    show_stories(run, gone.mutate(removed_by=ibis.literal(step)))
    return marked.filter(~marked.shares_author).drop("shares_author")


def pair(run: Run, stories: Any) -> Any:
    """Pair within prompts; returns the keys of the pairs that keep the rules."""
    config = run.config
    candidates = pairing.within_prompt(stories)
    rules = pairing.pair_rules(candidates, min_gap=config.min_gap, chosen_later=config.chosen_later)
    marked = candidates.mutate(removed_by=filters.removed_by(rules))
    removed = run.engine.count_by(marked, "removed_by")
    total = sum(removed.values())
    run.funnel.add("within_prompt", "pairs within a prompt, scores differ", "pairs", total, 0)
    names = [(rule.name, rule.about) for rule in rules]
    run.funnel.add_all(names, {name: n for name, n in removed.items() if name}, total, "pairs")
    if config.examples_per_step:
        draw = stories.prompt_id.hexdigest("md5")
        some = stories.select("prompt_id", draw=draw).distinct().order_by("draw")
        few = run.engine.keep(marked.semi_join(some.limit(_EXAMPLE_PROMPTS), "prompt_id"))
        show_pairs(run, few.filter(few.removed_by.notnull()))
    return run.engine.keep(marked.filter(marked.removed_by.isnull()).drop("removed_by"))


def cap_uses(run: Run, pairs: Any) -> Any:
    """Keep pairs, in seeded order, so that no story is in more than `max_uses_per_story`."""
    config = run.config
    if config.max_uses_per_story is None:
        return pairs
    candidates, used, rounds = pairs, None, []
    while True:
        found = pairing.within_uses(candidates, used, config.max_uses_per_story, config.seed)
        found = run.engine.keep(found)
        taken = found.filter(found.taken).drop("taken")
        if not run.engine.count(taken):
            break
        rounds.append(taken)
        everything = rounds[0].union(*rounds[1:]) if rounds[1:] else rounds[0]
        sides = (everything.select(story_id=f"{side}_story_id") for side in ("chosen", "rejected"))
        stories = next(sides).union(next(sides))
        used = run.engine.keep(stories.group_by("story_id").agg(uses=stories.count()))
        candidates = found.filter(~found.taken).drop("taken")
    chosen = rounds[0].union(*rounds[1:]) if rounds[1:] else rounds[0]
    about = f"a story is in at most {config.max_uses_per_story} pairs"
    return count_cap(run, "max_uses_per_story", about, pairs, pairs.semi_join(chosen, "pair_id"))


def cap_prompts(run: Run, pairs: Any) -> Any:
    """Keep at most `max_pairs_per_prompt` pairs of a prompt, drawn by seed."""
    config = run.config
    if config.max_pairs_per_prompt is None:
        return pairs
    over = pairing.over_cap(pairs, config.max_pairs_per_prompt, config.seed)
    kept = pairs.mutate(over=over)
    kept = kept.filter(~kept.over).drop("over")
    about = f"at most {config.max_pairs_per_prompt} pairs per prompt"
    return count_cap(run, "max_pairs_per_prompt", about, pairs, kept)


def count_cap(run: Run, step: str, about: str, before: Any, after: Any) -> Any:
    """Keep and count what a cap left, and show what it took."""
    kept = run.engine.keep(after)
    n_kept, n_before = run.engine.count(kept), run.engine.count(before)
    run.funnel.add(step, about, "pairs", n_kept, n_before - n_kept)
    if n_kept < n_before:
        gone = before.anti_join(kept, "pair_id")
        show_pairs(run, gone.mutate(removed_by=ibis.literal(step)))
    return kept


def balance(run: Run, pairs: Any) -> Any:
    """Prune to length symmetry; returns the keys with a column `removed`."""
    buckets = run.config.symmetry_buckets
    if buckets is None:
        return pairs.mutate(removed=ibis.literal(False))
    marked = run.engine.keep(pairing.breaks_symmetry(pairs, buckets, run.config.seed))
    removed = run.engine.count_by(marked, "removed")
    about = f"length differences mirrored, {buckets} buckets"
    step = "symmetry_buckets"
    run.funnel.add(step, about, "pairs", removed.get(False, 0), removed.get(True, 0))
    if removed.get(True):
        gone = marked.filter(marked.removed)
        show_pairs(run, gone.mutate(removed_by=ibis.literal(step)))
    return marked


def show_stories(run: Run, removed: Any) -> None:
    """Add examples of stories that steps removed; `removed_by` names the step."""
    if not run.config.examples_per_step:
        return
    draw = removed.removed_by.concat("|", removed.story_id).hexdigest("md5")
    some = first_by(removed.mutate(draw=draw), "draw", run.config.examples_per_step)
    texts = run.stories.select("story_id", "text", "n_tokens")
    shown = some.select("removed_by", "story_id", "score", "n_words").join(texts, "story_id")
    for row in run.engine.rows(shown):
        facts = (("score", row["score"]), ("words", row["n_words"]), ("tokens", row["n_tokens"]))
        about = ", ".join(f"{name} {value:,}" for name, value in facts if value is not None)
        run.examples.add(row["removed_by"], row["story_id"], row["text"], about)


def show_pairs(run: Run, removed: Any) -> None:
    """Add examples of pairs that steps removed, by what the rules look at."""
    if not run.config.examples_per_step:
        return
    # pair_id is a hash already.
    for row in run.engine.rows(first_by(removed, "pair_id", run.config.examples_per_step)):
        sides = []
        for side in ("chosen", "rejected"):
            names = ("score", "created_utc", "n_words")
            score, created, words = (row[f"{side}_{name}"] for name in names)
            when = "unknown" if created is None else f"{pa.scalar(created, pa.timestamp('s'))}"
            sides.append(f"{side}: score {score:,}, {words:,} words, posted {when}")
        run.examples.add(row["removed_by"], row["pair_id"], "; ".join(sides))


def first_by(removed: Any, column: str, most: int) -> Any:
    """The first few rows of each step, in the order of a column."""
    order = ibis.window(group_by=removed.removed_by, order_by=removed[column])
    placed = removed.mutate(place=ibis.row_number().over(order))
    return placed.filter(placed.place < most)


def with_texts(run: Run, pairs: Any, prompts: Any) -> Any:
    """Join prompt and texts to the keys and put them in the order of pair_id."""
    stories = run.stories.select("story_id", "text")
    chosen = stories.select(chosen_story_id="story_id", chosen="text")
    rejected = stories.select(rejected_story_id="story_id", rejected="text")
    joined = (
        pairs.join(prompts.select("prompt_id", "prompt"), "prompt_id")
        .join(chosen, "chosen_story_id")
        .join(rejected, "rejected_story_id")
        .mutate(
            label_source=ibis.literal(run.config.label_source),
            margin=ibis.null("float64"),
            weight=ibis.null("float64"),
            fold=ibis.null("string"),
        )
    )
    return joined.select([column.name for column in PAIRS.columns]).order_by("pair_id")


def with_progress(
    batches: Iterator[pa.RecordBatch], about: str, total: int
) -> Iterator[pa.RecordBatch]:
    """Show how many rows have come."""
    with tqdm(total=total, desc=about, unit=" rows", leave=False, disable=None) as bar:
        for batch in batches:
            yield batch
            bar.update(batch.num_rows)


def as_reader(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Batches with their schema."""
    first = next(batches)
    return pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))


def longer_share(run: Run, pairs: Any) -> dict[str, Any]:
    """Per split: pairs, and how many have the longer, the shorter or an equally long one chosen."""
    difference = pairs.chosen_n_words - pairs.rejected_n_words
    counted = pairs.group_by("split").agg(
        pairs=pairs.count(),
        chosen_longer=(difference > 0).sum(),
        chosen_shorter=(difference < 0).sum(),
        prompts=pairs.prompt_id.nunique(),
    )
    return {row.pop("split"): row for row in run.engine.rows(counted.order_by("split"))}


def digest_of(path: Path) -> str:
    """Digest of which pairs a file holds, which side is chosen and their splits.

    Unlike the file's bytes it does not depend on the version of any library.
    """
    hasher = hashlib.sha256()
    columns = ["pair_id", "chosen_story_id", "rejected_story_id", "split"]
    for batch in pq.ParquetFile(path).iter_batches(columns=columns):
        tab = pa.scalar("\t", pa.large_string())
        lines = pc.binary_join_element_wise(*(batch[name] for name in columns), tab)
        hasher.update("\n".join([*lines.to_pylist(), ""]).encode())
    return hasher.hexdigest()


def run_steps(engine: Engine, config: Config, product: Product) -> Funnel:
    """Run the steps in their order and write the tables."""
    if config.stories.suffix == ".parquet":
        # Stays on disk: the engine reads what a step needs.
        stories = engine.read(config.stories)
    else:
        stories = engine.put(read_table(config.stories, STORIES))
    run = Run(engine, config, stories, Funnel(), Examples(config.examples_per_step))
    check_stories(run)
    clean = drop_near_duplicates(run, drop_duplicates(run, filter_stories(run)))
    prompts = name_prompts(run)
    pairs = pair(run, split(run, clean, prompts))
    before = cap_prompts(run, cap_uses(run, pairs))
    marked = balance(run, before)
    after = marked.filter(~marked.removed).drop("removed")
    if engine.count(after) == 0:
        raise DataError(f"no pair is left:\n{run.funnel}\nloosen the step that removed the most")
    pairs_name, before_name = PAIR_FILES
    tables = {pairs_name: after}
    if config.write_before_symmetry and config.symmetry_buckets is not None:
        tables[before_name] = marked.drop("removed")
    for name, keys in tables.items():
        batches = engine.batches(with_texts(run, keys, prompts))
        rows = as_reader(with_progress(batches, name, engine.count(keys)))
        product.write(name, lambda path, rows=rows: write_sorted_batches(rows, PAIRS, path))
    product.write("examples.jsonl", run.examples.write)
    product.counts = {
        "funnel": run.funnel.plain(),
        "lengths": {"after": longer_share(run, after), "before": longer_share(run, marked)},
        "digest": digest_of(config.out / "pairs.parquet"),
    }
    check_leakage(run, product)
    return run.funnel


def check_leakage(run: Run, product: Product) -> None:
    """Write what the splits share, and fail where they must not."""
    must = run.config.must_be_clean
    if not must:
        return
    pairs = by_split(pq.read_table(run.config.out / "pairs.parquet"))
    report = leakage_report(
        pairs,
        near_duplicates="near_duplicates" in must,
        threshold=run.config.drop_near_duplicates or 0.8,
        seed=run.config.seed,
        folder=run.engine.work,
    )
    product.write("leakage.parquet", lambda path: write_table(report.found, path))
    product.counts["leakage"] = report.counts
    try:
        report.check(must)
    except DataError:
        # Not every reader asks for the manifest: pairs that leak must not lie under this name.
        for name in PAIR_FILES:
            (run.config.out / name).unlink(missing_ok=True)
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
    check(config)
    if config.stories.suffix == ".parquet":
        check_parquet(config.stories, STORIES)
    product = Product(
        config.out,
        program=__file__,
        config=config,
        inputs={"stories": config.stories},
        runtime_keys=("engine", "memory_limit", "spark"),
    )
    if product.is_current():
        return
    before = counts_before(config.stories)
    with open_engine(
        config.engine, config.out, memory_limit=config.memory_limit, spark=config.spark
    ) as engine:
        funnel = run_steps(engine, config, product)
    if before is not None:
        product.counts["stories"] = before
    product.finish()
    print(f"{config.out / 'pairs.parquet'}:\n{funnel}")


def main(config: Config) -> None:
    """Make the pairs, or those of every variant."""
    if config.variants is None:
        make_pairs(config)
        return
    shared = {key: value for key, value in as_plain(config).items() if key != "variants"}
    for name, keys in config.variants.items():
        for key in ("stories", "out", "variants"):
            if key in keys:
                raise ConfigError(f"variants: {name}: '{key}' is shared by all: set it outside")
    # All are checked before the first runs.
    variants = {
        name: build(Config, {**shared, "out": config.out / name, **keys}, f"variants: {name}")
        for name, keys in config.variants.items()
    }
    for variant in variants.values():
        check(variant)
    for name, variant in variants.items():
        print(f"{name}:")
        make_pairs(variant)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
