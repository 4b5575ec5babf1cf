"""From stories to pairs: all rules of pairing in their order, each step counted.

    with open_engine("duckdb", folder) as engine:
        made = make_keys(engine, engine.read(stories), PairRules(min_score=None))
        made.write(made.after, folder / "pairs.parquet")

The steps follow section 3.2 of the paper: clean, deduplicate, split by prompt, pair within a
prompt, caps, length symmetry last and inside each split. All of it works on keys; texts are joined
when a table is written. The same stories and rules give the same pairs, whatever the order of the
rows and the engine.
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

from litbench.artifact import Artifact
from litbench.curation import filters, pairing, splits
from litbench.curation.engine import Engine, EngineName, open_engine
from litbench.curation.funnel import Examples, Funnel
from litbench.curation.near_duplicates import check_options, near_duplicate_groups
from litbench.curation.splits import Straddling
from litbench.errors import ConfigError, DataError, MissingExtraError
from litbench.records import PAIRS, STORIES
from litbench.tables import check_parquet, read_table, write_sorted_batches
from litbench.text import prompt_key

# Examples of removed pairs are drawn from the pairs of so many prompts.
_EXAMPLE_PROMPTS = 200


@dataclass(kw_only=True)
class PairRules:
    """The rules; the defaults are the paper's full set. Null or false leaves a step out.

    Attributes:
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
        label_source: votes, people where `score` is a rating, or planted where it is simulated.
    """

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
    label_source: Literal["votes", "people", "planted"] = "votes"

    def check(self) -> None:
        """Check what the types cannot.

        Raises:
            ConfigError: a value that makes no sense.
            MissingExtraError: near-duplicates are to go and rensa is not installed.
        """
        splits.check_fractions(self.splits)
        buckets = self.symmetry_buckets
        if buckets is not None and (buckets < 2 or buckets % 2):
            raise ConfigError(f"symmetry_buckets is {buckets}: give an even number, 2 or more")
        if self.min_gap is not None and not 0 <= self.min_gap < 1:
            raise ConfigError(f"min_gap is {self.min_gap}: give a share from 0 to below 1")
        for key in ("max_pairs_per_prompt", "max_uses_per_story"):
            most = getattr(self, key)
            if most is not None and most < 1:
                raise ConfigError(f"{key} is {most}: give at least 1, or null for no cap")
        if self.test_from is not None:
            splits.day_start(self.test_from)
            if len(self.splits) > 1:
                raise ConfigError("test_from and splits are both given: keep one of them")
        if self.drop_near_duplicates is not None:
            check_options(threshold=self.drop_near_duplicates, num_perm=128, shingle=5)
            require_rensa()


@dataclass(kw_only=True)
class PairsConfig(PairRules):
    """What a program is told that makes a file of stories into a folder of pairs.

    Attributes:
        stories: Parquet, JSONL, CSV or `datasets` by the schema STORIES; Parquet is read from disk
            as needed, the others into memory.
        out: folder to write.
        engine: duckdb, or spark (the running session, or the cluster spark.master names).
        memory_limit: for DuckDB, such as "4GB"; it spills into `out` beyond.
        spark: settings of Spark, such as {"spark.master": "spark://host:7077"}.
    """

    stories: Path
    out: Path
    engine: EngineName = "duckdb"
    memory_limit: str | None = None
    spark: dict[str, str] = field(default_factory=dict)

    def artifact(self, program: str) -> Artifact:
        """The folder of pairs, once all that can be checked before any work is checked.

        Args:
            program: file of the program.

        Raises:
            ConfigError: a value that makes no sense.
            DataError: the stories are missing, or a Parquet file of them breaks the schema.
        """
        self.check()
        check_stories_file(self.stories)
        return Artifact(
            self.out,
            program=program,
            config=self,
            inputs={"stories": self.stories},
            runtime_keys=("engine", "memory_limit", "spark"),
        )

    def open_engine(self) -> Engine:
        """What runs the steps; close it, or use it in `with`."""
        return open_engine(self.engine, self.out, memory_limit=self.memory_limit, spark=self.spark)


def read_stories(engine: Engine, path: Path) -> Any:
    """A stories table as an expression: Parquet stays on disk, other formats come into memory.

    Raises:
        DataError: the file is missing or does not follow the schema STORIES.
    """
    if path.suffix == ".parquet":
        return engine.read(path)
    return engine.put(read_table(path, STORIES))


def check_stories_file(path: Path) -> None:
    """Check a Parquet file of stories before any work; other formats are checked as they are read.

    Raises:
        DataError: the file is missing or does not follow the schema STORIES.
    """
    if path.suffix == ".parquet":
        check_parquet(path, STORIES)


def require_rensa() -> None:
    """Say that near-duplicates cannot be looked for, and not after hours of other steps.

    Raises:
        MissingExtraError: rensa is not installed.
    """
    if importlib.util.find_spec("rensa") is None:
        raise MissingExtraError("rensa", "data")


@dataclass(frozen=True)
class Made:
    """Pairs by their keys: no texts but those of the prompts.

    The tables are Ibis expressions of the engine that made them and end with it.

    Attributes:
        engine: runs them.
        rules: what was applied.
        stories: the stories as given, texts included.
        prompts: `prompt_id`, `prompt` and, where splits go by prompt, `split`.
        before: the pairs before length symmetry: `pair_id`, `prompt_id`, `split` and, for chosen
            and rejected, `_story_id`, `_score`, `_created_utc`, `_n_words` and `_author`; `removed`
            says whether symmetry prunes the pair.
        after: the pairs that are left, without `removed`.
        funnel: counts of every step.
        examples: a few rows that each step removed.
    """

    engine: Engine
    rules: PairRules
    stories: Any
    prompts: Any
    before: Any
    after: Any
    funnel: Funnel
    examples: Examples

    def check_not_empty(self) -> None:
        """Check that a pair is left.

        Raises:
            DataError: none is; says where they went.
        """
        if self.engine.count(self.after) == 0:
            raise DataError(
                f"no pair is left:\n{self.funnel}\nloosen the step that removed the most"
            )

    def with_prompts(self, keys: Any) -> Any:
        """Join the prompts to keys; an Ibis table by the schema PAIRS but for the two texts."""
        joined = keys.join(self.prompts.select("prompt_id", "prompt"), "prompt_id").mutate(
            label_source=ibis.literal(self.rules.label_source),
            margin=ibis.null("float64"),
            weight=ibis.null("float64"),
            fold=ibis.null("string"),
        )
        names = [column.name for column in PAIRS.columns]
        return joined.select([name for name in names if name not in ("chosen", "rejected")])

    def with_texts(self, keys: Any) -> Any:
        """Join prompt and texts to keys; an Ibis table by the schema PAIRS, by pair_id."""
        stories = self.stories.select("story_id", "text")
        chosen = stories.select(chosen_story_id="story_id", chosen="text")
        rejected = stories.select(rejected_story_id="story_id", rejected="text")
        joined = (
            self.with_prompts(keys)
            .join(chosen, "chosen_story_id")
            .join(rejected, "rejected_story_id")
        )
        return joined.select([column.name for column in PAIRS.columns]).order_by("pair_id")

    def write(self, keys: Any, path: Path, about: str | None = None) -> None:
        """Write a pairs table, never holding it all.

        Args:
            keys: such as `after`.
            path: Parquet file.
            about: heading of the progress bar; the file's name when None.

        Raises:
            DataError: there are none; see `check_not_empty`.
        """
        batches = self.engine.batches(self.with_texts(keys))
        total = self.engine.count(keys)
        rows = _as_reader(_with_progress(batches, about or path.name, total))
        write_sorted_batches(rows, PAIRS, path)

    def longer_share(self, keys: Any) -> dict[str, Any]:
        """Per split: pairs, prompts, and pairs with the longer or the shorter story chosen."""
        difference = keys.chosen_n_words - keys.rejected_n_words
        counted = keys.group_by("split").agg(
            pairs=keys.count(),
            chosen_longer=(difference > 0).sum(),
            chosen_shorter=(difference < 0).sum(),
            prompts=keys.prompt_id.nunique(),
        )
        return {row.pop("split"): row for row in self.engine.rows(counted.order_by("split"))}


def make_keys(
    engine: Engine,
    stories: Any,
    rules: PairRules,
    *,
    funnel: Funnel | None = None,
    examples: Examples | None = None,
    where: str = "stories",
) -> Made:
    """Run the steps in their order.

    Args:
        engine: runs them.
        stories: Ibis table by the schema STORIES, such as `engine.read(path)`.
        rules: what to apply; the caller has checked them.
        funnel: counts the steps; a new one when None.
        examples: collects rows that steps removed; none are looked for when None.
        where: names the stories in messages.

    Raises:
        DataError: the stories would make a rule silently wrong: ids that repeat, or a column that
            a rule needs and that is empty or of another type.
    """
    run = _Run(engine, rules, stories, funnel or Funnel(), examples or Examples(0), where)
    _check_stories(run)
    clean = _drop_near_duplicates(run, _drop_duplicates(run, _filter_stories(run)))
    prompts = _name_prompts(run)
    pairs = _pair(run, _split(run, clean, prompts))
    before = _balance(run, _cap_prompts(run, _cap_uses(run, pairs)))
    after = before.filter(~before.removed).drop("removed")
    return Made(engine, rules, stories, prompts, before, after, run.funnel, run.examples)


@dataclass
class _Run:
    """What the steps share.

    Attributes:
        engine: runs their expressions.
        rules: what to apply.
        stories: the whole table, texts included.
        funnel: counts every step.
        examples: a few rows that each step removed.
        where: names the stories in messages.
    """

    engine: Engine
    rules: PairRules
    stories: Any
    funnel: Funnel
    examples: Examples
    where: str


def _check_stories(run: _Run) -> None:
    """Check what would make a rule silently wrong."""
    stories, wanted = run.stories, run.rules
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
            f"{run.where}: column story_id: {found['rows'] - found['ids']:,} rows repeat an "
            "id: make the file with make_stories.py, which sets them aside"
        )
    if wanted.max_tokens is not None and found["uncounted"]:
        raise DataError(
            f"{run.where}: column n_tokens is null in {found['uncounted']:,} rows, and "
            "max_tokens needs it: name a tokenizer in make_stories.py, or set max_tokens to null"
        )
    if "is_bot" in stories.columns:
        kind = stories.schema()["is_bot"]
        if not (kind.is_boolean() or kind.is_null()):
            raise DataError(
                f"{run.where}: column is_bot holds {kind}, not true or false: write it as "
                "Parquet, or leave the column out"
            )
    if wanted.chosen_later and not found["timed"]:
        raise DataError(
            f"{run.where}: column created_utc is empty, and chosen_later needs it: map it in "
            "make_stories.py, or set chosen_later to false"
        )


def _filter_stories(run: _Run) -> Any:
    """Clean; returns the keys of the stories that stay."""
    stories, wanted = run.stories, run.rules
    rules = filters.story_rules(
        stories,
        drop_deleted=wanted.drop_deleted,
        drop_bots=wanted.drop_bots,
        drop_talk=wanted.drop_talk,
        min_score_age_hours=wanted.min_score_age_hours,
        needs_score=True,
        needs_time=wanted.chosen_later,
        min_score=wanted.min_score,
        max_tokens=wanted.max_tokens,
        min_words=wanted.min_words,
    )
    no_key = ibis.null("string")
    marked = stories.select(
        "story_id", "prompt_id", "score", "created_utc", "author", "n_words",
        removed_by=filters.removed_by(rules),
        duplicate_key=filters.duplicate_key(stories) if wanted.drop_duplicates else no_key,
    )  # fmt: skip
    marked = run.engine.keep(marked)
    removed = run.engine.count_by(marked, "removed_by")
    total = sum(removed.values())
    run.funnel.add("read", "stories read", "stories", total, 0)
    names = [(rule.name, rule.about) for rule in rules]
    run.funnel.add_all(names, {name: n for name, n in removed.items() if name}, total, "stories")
    _show_stories(run, marked.filter(marked.removed_by.notnull()))
    return marked.filter(marked.removed_by.isnull()).drop("removed_by")


def _drop_duplicates(run: _Run, clean: Any) -> Any:
    """Keep the earliest of several copies of a story."""
    if not run.rules.drop_duplicates:
        return clean
    # Few stories have copies, and only these need an order.
    keys = clean.group_by("duplicate_key").agg(copies=clean.count())
    copies = clean.semi_join(keys.filter(keys.copies > 1), "duplicate_key")
    return _drop_repeats(run, "drop_duplicates", "not a copy of an earlier story", clean, copies)


def _drop_near_duplicates(run: _Run, clean: Any) -> Any:
    """Keep the earliest of several stories that are nearly the same."""
    threshold = run.rules.drop_near_duplicates
    if threshold is None:
        return clean
    texts = run.stories.semi_join(clean, "story_id").select("story_id", "text")
    batches = _with_progress(run.engine.batches(texts), "near-duplicates", run.engine.count(clean))
    groups = near_duplicate_groups(
        batches, threshold=threshold, seed=run.rules.seed, folder=run.engine.work
    )
    copies = clean.drop("duplicate_key").join(run.engine.put(groups), "story_id")
    about = f"not nearly ({threshold:.0%}) the same as an earlier story"
    return _drop_repeats(
        run, "drop_near_duplicates", about, clean, copies.rename(duplicate_key="group")
    )


def _drop_repeats(run: _Run, step: str, about: str, clean: Any, copies: Any) -> Any:
    """Remove all but the earliest of the stories in `copies` that share a duplicate_key."""
    copies = copies.mutate(repeated=filters.is_repeat(copies))
    repeats = run.engine.keep(copies.filter(copies.repeated))
    kept = run.engine.keep(clean.anti_join(repeats, "story_id"))
    n_kept, n_removed = run.engine.count(kept), run.engine.count(repeats)
    run.funnel.add(step, about, "stories", n_kept, n_removed)
    if n_removed:
        _show_stories(run, repeats.mutate(removed_by=ibis.literal(step)))
    return kept


def _name_prompts(run: _Run) -> Any:
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
    if run.rules.test_from is None:
        assigned = splits.split_prompts(texts, run.rules.splits, run.rules.seed)
        columns["split"] = [assigned[text] for text in texts]
    else:
        columns["prompt_key"] = [prompt_key(text) for text in texts]
    return run.engine.put(pa.table({name: pa.array(c, pa.string()) for name, c in columns.items()}))


def _split(run: _Run, stories: Any, prompts: Any) -> Any:
    """Give every story its split; returns the stories that have one."""
    wanted = run.rules
    if wanted.test_from is None:
        split = run.engine.keep(stories.join(prompts.select("prompt_id", "split"), "prompt_id"))
    else:
        # All stories decide where a prompt lies, so that other filters do not move it.
        given = run.stories.select("story_id", "prompt_id", "created_utc")
        keyed = given.join(prompts.select("prompt_id", "prompt_key"), "prompt_id")
        dated = splits.date_split(keyed, test_from=wanted.test_from, straddling=wanted.straddling)
        dated = dated.select("story_id", "split", "split_removed")
        marked = run.engine.keep(stories.join(dated, "story_id"))
        removed = run.engine.count_by(marked, "split_removed")
        rules = list(splits.DATE_RULES.items())
        counts = {name: n for name, n in removed.items() if name}
        run.funnel.add_all(rules, counts, sum(removed.values()), "stories")
        _show_stories(
            run,
            marked.filter(marked.split_removed.notnull()).rename(removed_by="split_removed"),
        )
        split = marked.filter(marked.split_removed.isnull()).drop("split_removed")
    if not wanted.separate_authors:
        return split
    marked = run.engine.keep(splits.shares_author(split))
    shared = run.engine.count_by(marked, "shares_author")
    about = "no author in two splits, train gives way"
    step = "separate_authors"
    run.funnel.add(step, about, "stories", shared.get(False, 0), shared.get(True, 0))
    gone = marked.filter(marked.shares_author)
    _show_stories(run, gone.mutate(removed_by=ibis.literal(step)))
    return marked.filter(~marked.shares_author).drop("shares_author")


def _pair(run: _Run, stories: Any) -> Any:
    """Pair within prompts; returns the keys of the pairs that keep the rules."""
    wanted = run.rules
    candidates = pairing.within_prompt(stories)
    rules = pairing.pair_rules(candidates, min_gap=wanted.min_gap, chosen_later=wanted.chosen_later)
    marked = candidates.mutate(removed_by=filters.removed_by(rules))
    removed = run.engine.count_by(marked, "removed_by")
    total = sum(removed.values())
    run.funnel.add("within_prompt", "pairs within a prompt, scores differ", "pairs", total, 0)
    names = [(rule.name, rule.about) for rule in rules]
    run.funnel.add_all(names, {name: n for name, n in removed.items() if name}, total, "pairs")
    if run.examples.per_step:
        draw = stories.prompt_id.hexdigest("md5")
        some = stories.select("prompt_id", draw=draw).distinct().order_by("draw")
        few = run.engine.keep(marked.semi_join(some.limit(_EXAMPLE_PROMPTS), "prompt_id"))
        _show_pairs(run, few.filter(few.removed_by.notnull()))
    return run.engine.keep(marked.filter(marked.removed_by.isnull()).drop("removed_by"))


def _cap_uses(run: _Run, pairs: Any) -> Any:
    """Keep pairs, in seeded order, so that no story is in more than `max_uses_per_story`."""
    wanted = run.rules
    if wanted.max_uses_per_story is None:
        return pairs
    candidates, used, rounds = pairs, None, []
    while True:
        found = pairing.within_uses(candidates, used, wanted.max_uses_per_story, wanted.seed)
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
    about = f"a story is in at most {wanted.max_uses_per_story} pairs"
    return _count_cap(run, "max_uses_per_story", about, pairs, pairs.semi_join(chosen, "pair_id"))


def _cap_prompts(run: _Run, pairs: Any) -> Any:
    """Keep at most `max_pairs_per_prompt` pairs of a prompt, drawn by seed."""
    wanted = run.rules
    if wanted.max_pairs_per_prompt is None:
        return pairs
    over = pairing.over_cap(pairs, wanted.max_pairs_per_prompt, wanted.seed)
    kept = pairs.mutate(over=over)
    kept = kept.filter(~kept.over).drop("over")
    about = f"at most {wanted.max_pairs_per_prompt} pairs per prompt"
    return _count_cap(run, "max_pairs_per_prompt", about, pairs, kept)


def _count_cap(run: _Run, step: str, about: str, before: Any, after: Any) -> Any:
    """Keep and count what a cap left, and show what it took."""
    kept = run.engine.keep(after)
    n_kept, n_before = run.engine.count(kept), run.engine.count(before)
    run.funnel.add(step, about, "pairs", n_kept, n_before - n_kept)
    if n_kept < n_before:
        gone = before.anti_join(kept, "pair_id")
        _show_pairs(run, gone.mutate(removed_by=ibis.literal(step)))
    return kept


def _balance(run: _Run, pairs: Any) -> Any:
    """Prune to length symmetry; returns the keys with a column `removed`."""
    buckets = run.rules.symmetry_buckets
    if buckets is None:
        return pairs.mutate(removed=ibis.literal(False))
    marked = run.engine.keep(pairing.breaks_symmetry(pairs, buckets, run.rules.seed))
    removed = run.engine.count_by(marked, "removed")
    about = f"length differences mirrored, {buckets} buckets"
    step = "symmetry_buckets"
    run.funnel.add(step, about, "pairs", removed.get(False, 0), removed.get(True, 0))
    if removed.get(True):
        gone = marked.filter(marked.removed)
        _show_pairs(run, gone.mutate(removed_by=ibis.literal(step)))
    return marked


def _show_stories(run: _Run, removed: Any) -> None:
    """Add examples of stories that steps removed; `removed_by` names the step."""
    if not run.examples.per_step:
        return
    draw = removed.removed_by.concat("|", removed.story_id).hexdigest("md5")
    some = _first_by(removed.mutate(draw=draw), "draw", run.examples.per_step)
    texts = run.stories.select("story_id", "text", "n_tokens")
    shown = some.select("removed_by", "story_id", "score", "n_words").join(texts, "story_id")
    for row in run.engine.rows(shown):
        facts = (("score", row["score"]), ("words", row["n_words"]), ("tokens", row["n_tokens"]))
        about = ", ".join(f"{name} {value:,}" for name, value in facts if value is not None)
        run.examples.add(row["removed_by"], row["story_id"], row["text"], about)


def _show_pairs(run: _Run, removed: Any) -> None:
    """Add examples of pairs that steps removed, by what the rules look at."""
    if not run.examples.per_step:
        return
    # pair_id is a hash already.
    for row in run.engine.rows(_first_by(removed, "pair_id", run.examples.per_step)):
        sides = []
        for side in ("chosen", "rejected"):
            names = ("score", "created_utc", "n_words")
            score, created, words = (row[f"{side}_{name}"] for name in names)
            when = "unknown" if created is None else f"{pa.scalar(created, pa.timestamp('s'))}"
            sides.append(f"{side}: score {score:,}, {words:,} words, posted {when}")
        run.examples.add(row["removed_by"], row["pair_id"], "; ".join(sides))


def _first_by(removed: Any, column: str, most: int) -> Any:
    """The first few rows of each step, in the order of a column."""
    order = ibis.window(group_by=removed.removed_by, order_by=removed[column])
    placed = removed.mutate(place=ibis.row_number().over(order))
    return placed.filter(placed.place < most)


def _with_progress(
    batches: Iterator[pa.RecordBatch], about: str, total: int
) -> Iterator[pa.RecordBatch]:
    """Show how many rows have come."""
    with tqdm(total=total, desc=about, unit=" rows", leave=False, disable=None) as bar:
        for batch in batches:
            yield batch
            bar.update(batch.num_rows)


def _as_reader(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Batches with their schema."""
    first = next(batches, None)
    if first is None:
        raise DataError("there is no pair to write: see the funnel, and loosen a step")
    return pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))


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
