"""Turn stories into pairs: apply every rule in order and count each step.

    with open_engine("duckdb", folder) as engine:
        pairs = CuratedPairs(engine, engine.read(stories), PairRules(min_score=None))
        pairs.write(pairs.after, folder / "pairs.parquet")

The order follows section 3.2 of the paper: clean, deduplicate, split by prompt, pair within a
prompt, cap, and last balance lengths within each split. All steps work on keys (ids, scores, times,
lengths); texts are joined when a table is written. The pairs depend only on the stories and the
rules, not on row order or engine.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import ibis
import pyarrow as pa

from litbench.data.curation import filters, pairing, splits
from litbench.data.curation.engine import Engine, EngineName, open_engine
from litbench.data.curation.filters import Rule
from litbench.data.curation.funnel import Examples, Funnel
from litbench.data.curation.near_duplicates import NearDuplicateIndex
from litbench.data.curation.rules import PairRules, buckets_for
from litbench.data.records import PAIRS, SIDES, STORIES
from litbench.data.tables import check_parquet, write_sorted_batches
from litbench.data.text import prompt_key
from litbench.runs.config import Runtime
from litbench.runs.errors import DataError
from litbench.runs.outputs import Artifact, only_writer, own_manifest
from litbench.runs.progress import ProgressBar

PAIRS_FILE, BEFORE_SYMMETRY = "pairs.parquet", "pairs_before_symmetry.parquet"
# Texts are joined and sorted in parts: DuckDB fails where the rows of a sort exceed its memory.
_PAIRS_AT_ONCE = 500_000


def read_stories(engine: Engine, path: Path) -> Any:
    """Open a stories table as an expression, which is read in batches.

    Raises:
        DataError: the file is missing or does not follow the schema STORIES.
    """
    check_parquet(path, STORIES)
    return engine.read(path)


class CuratedPairs:
    """Pairs without the stories' texts, made by applying all rules.

    The tables are Ibis expressions, valid as long as the engine is open.

    Args:
        engine: engine that runs the steps.
        stories: Ibis table with the schema STORIES.
        rules: rules to apply; the caller has called their `check`.
        examples: collects examples of the stories that each step removed.
        where: name of the stories in error messages.

    Attributes:
        before: the pairs before length symmetry: `pair_id`, `prompt_id`, `split` and, for chosen
            and rejected, `_story_id`, `_score`, `_created_utc`, `_n_words` and `_author`.
        after: the pairs after length symmetry, in the same columns.
        buckets: number of buckets of length symmetry; None without.
        funnel: the counts of every step.
        notes: warnings about the data, one line each.

    Raises:
        DataError: ids repeat, a column that a rule needs is empty, or prompts have more pairs than
            `max_candidate_pairs`.
    """

    def __init__(
        self,
        engine: Engine,
        stories: Any,
        rules: PairRules,
        *,
        examples: Examples | None = None,
        where: str = "stories",
    ) -> None:
        self._engine, self._stories, self._rules = engine, stories, rules
        self._examples, self._where = examples, where
        self.funnel = Funnel()
        self.notes: list[str] = []
        self._check_stories()
        distinct = self._drop_near_duplicates(self._drop_duplicates(self._clean()))
        self._prompts = self._name_prompts()
        self.before = self._cap_prompts(self._pair(self._split(distinct)))
        self.buckets: int | None = None
        self.after = self._balance_lengths(self.before)

    def check_not_empty(self) -> None:
        """Raise DataError with the funnel if no pair is left."""
        if self._engine.count(self.after) == 0:
            raise DataError(f"no pair is left: {self.funnel.summary()}")

    def with_texts(self, keys: Any) -> Any:
        """Join prompts and texts; returns an Ibis table with the schema PAIRS, by pair_id."""
        joined = keys.join(self._prompts.select("prompt_id", "prompt"), "prompt_id").mutate(
            label_source=ibis.literal(self._rules.label_source),
            margin=ibis.null("float64"),
            weight=ibis.null("float64"),
            fold=ibis.null("string"),
            item_id=ibis.null("string"),
        )
        for side in SIDES:
            texts = self._stories.select(**{f"{side}_story_id": "story_id", side: "text"})
            joined = joined.join(texts, f"{side}_story_id")
        return joined.select([column.name for column in PAIRS.columns]).order_by("pair_id")

    def write(self, keys: Any, path: Path) -> None:
        total = self._engine.count(keys)
        parts = (self._engine.batches(self.with_texts(part)) for part in _split_by_id(keys, total))
        batches = _with_progress(itertools.chain.from_iterable(parts), "pairs", total)
        first = next(batches)
        reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
        write_sorted_batches(reader, PAIRS, path)

    def longer_share(self, keys: Any) -> dict[str, Any]:
        """Count per split its pairs, prompts, and pairs whose chosen story is longer or shorter."""
        difference = keys.chosen_n_words - keys.rejected_n_words
        counted = keys.group_by("split").agg(
            pairs=keys.count(),
            chosen_longer=(difference > 0).sum(),
            chosen_shorter=(difference < 0).sum(),
            prompts=keys.prompt_id.nunique(),
        )
        return {row.pop("split"): row for row in self._engine.rows(counted.order_by("split"))}

    # Counting ----------------------------------------------------------------------------------

    def _remove(
        self, table: Any, rules: Sequence[Rule], columns: Sequence[str] | None = None
    ) -> Any:
        """Remove the rows that rules mark, count them, and collect examples."""
        marked = table.select(columns or table.columns, removed_by=filters.removed_by(rules))
        marked = self._engine.keep(marked)
        self._count(marked, rules)
        removed = marked.filter(marked.removed_by.notnull())
        if self._examples is not None and "story_id" in marked.columns:
            draw = removed.removed_by.concat("|", removed.story_id).hexdigest("md5")
            order = ibis.window(group_by=removed.removed_by, order_by=draw)
            numbered = removed.mutate(number=ibis.row_number().over(order))
            sample = numbered.filter(numbered.number < self._examples.per_step)
            texts = self._stories.select("story_id", "text", "n_tokens")
            sample = sample.select("removed_by", "story_id", "score", "n_words")
            for row in self._engine.rows(sample.join(texts, "story_id")):
                facts = {"score": row["score"], "words": row["n_words"], "tokens": row["n_tokens"]}
                about = ", ".join(f"{key} {n:,}" for key, n in facts.items() if n is not None)
                self._examples.add(row["removed_by"], row["story_id"], row["text"], about)
        return marked.filter(marked.removed_by.isnull()).drop("removed_by")

    def _count(self, marked: Any, rules: Sequence[Rule]) -> None:
        """Add the counts of each rule in `removed_by` to the funnel."""
        by_rule = marked.group_by("removed_by").agg(rows=marked.count())
        counts = {row["removed_by"]: row["rows"] for row in self._engine.rows(by_rule)}
        total = sum(counts.values())
        unit = "pairs" if "pair_id" in marked.columns else "stories"
        if not self.funnel.steps:
            self.funnel.add("read", "stories read", unit, total, 0)
        elif self.funnel.steps[-1].unit != unit:
            about = "pairs within a prompt, scores differ"
            self.funnel.add("within_prompt", about, unit, total, 0)
        self.funnel.add_all([(rule.name, rule.about) for rule in rules], counts, total, unit)

    # Stories -----------------------------------------------------------------------------------

    def _check_stories(self) -> None:
        """Raise DataError if the stories would make a rule silently wrong."""
        stories, rules = self._stories, self._rules
        counts = self._engine.rows(
            stories.aggregate(
                repeated=stories.count() - stories.story_id.nunique(),
                uncounted=stories.n_tokens.isnull().sum(),
                timed=stories.created_utc.count(),
            )
        )[0]
        problems = {
            f"story_id: {counts['repeated']:,} rows repeat an id: make the file with "
            "make_stories.py, which rejects them": counts["repeated"],
            f"n_tokens is null in {counts['uncounted']:,} rows, and max_tokens needs it: name a "
            "tokenizer in make_stories.py, or set max_tokens to null": (
                rules.max_tokens is not None and counts["uncounted"]
            ),
            "created_utc is empty, and chosen_later needs it: map it in make_stories.py, or set "
            "chosen_later to false": rules.chosen_later and not counts["timed"],
        }
        for problem, applies in problems.items():
            if applies:
                raise DataError(f"{self._where}: column {problem}")

    def _clean(self) -> Any:
        """Filter single stories; returns the keys of the remaining ones."""
        key = filters.duplicate_key(self._stories)
        stories = self._stories.mutate(
            duplicate_key=key if self._rules.drop_duplicates else ibis.null("string")
        )
        columns = ("story_id", "prompt_id", "score", "created_utc", "author", "n_words")
        rules = filters.story_rules(stories, self._rules)
        return self._remove(stories, rules, (*columns, "duplicate_key"))

    def _drop_duplicates(self, stories: Any) -> Any:
        """Keep the earliest of several copies of a story."""
        if self._rules.drop_duplicates:
            # Few stories have copies; sorting only these is faster.
            copies = stories.group_by("duplicate_key").agg(copies=stories.count())
            copies = stories.semi_join(copies.filter(copies.copies > 1), "duplicate_key")
            about = "not a copy of an earlier story"
            stories = self._drop_repeats("drop_duplicates", about, stories, copies)
        return stories.drop("duplicate_key")

    def _drop_near_duplicates(self, stories: Any) -> Any:
        """Keep the earliest story of each group of near-duplicates."""
        threshold = self._rules.drop_near_duplicates
        if threshold is None:
            return stories
        texts = self._stories.semi_join(stories, "story_id").select("story_id", "text")
        total = self._engine.count(stories)
        index = NearDuplicateIndex(threshold=threshold, seed=self._rules.seed)
        for batch in _with_progress(self._engine.batches(texts), "near-duplicates", total):
            index.add(batch["story_id"], batch["text"])
        groups = self._engine.put(index.groups())
        copies = stories.join(groups, "story_id").rename(duplicate_key="group")
        about = f"not nearly ({threshold:.0%}) the same as an earlier story"
        return self._drop_repeats("drop_near_duplicates", about, stories, copies)

    def _drop_repeats(self, step: str, about: str, stories: Any, copies: Any) -> Any:
        """Keep only the earliest story of each duplicate_key in `copies`."""
        copies = copies.mutate(repeated=filters.is_repeat(copies))
        repeated = copies.filter(copies.repeated).select("story_id", "repeated")
        marked = stories.left_join(repeated, "story_id")
        return self._remove(marked, [Rule(step, about, marked.repeated.notnull())], stories.columns)

    # Splits ------------------------------------------------------------------------------------

    def _name_prompts(self) -> Any:
        """Return every prompt_id with its text, key and split.

        `prompt` is the smallest text of the id, `prompt_key` is equal for prompts that must share a
        split (`splits.group_prompts`), and `split` follows the shares in `splits`.
        """
        distinct = self._stories.select("prompt_id", "prompt").distinct()
        prompts = [tuple(row.values()) for row in self._engine.rows(distinct)]
        texts = Counter(name for name, _ in {(name, prompt_key(text)) for name, text in prompts})
        ambiguous = sum(count > 1 for count in texts.values())
        if ambiguous:
            self.notes.append(
                f"{ambiguous:,} prompt_ids have several prompts, whose stories are paired with "
                "each other: check the column prompt_id"
            )
        rows = [
            {
                "prompt_id": name,
                "prompt": prompt,
                "prompt_key": prompt_key(group),
                "split": splits.split_of(group, self._rules.splits, self._rules.seed),
            }
            for name, (prompt, group) in splits.group_prompts(prompts).items()
        ]
        schema = pa.schema(
            [(name, pa.string()) for name in ("prompt_id", "prompt", "prompt_key", "split")]
        )
        return self._engine.put(pa.Table.from_pylist(rows, schema))

    def _split(self, stories: Any) -> Any:
        """Assign every story to a split; stories without a split are removed."""
        day = self._rules.test_from
        if day is None:
            joined = stories.join(self._prompts.select("prompt_id", "split"), "prompt_id")
            return self._engine.keep(joined)
        # Dates of all stories count, so that other filters do not move a prompt between splits.
        every = self._stories.select("story_id", "prompt_id", "created_utc")
        every = every.join(self._prompts.select("prompt_id", "prompt_key"), "prompt_id")
        dated = splits.date_split(every, test_from=day)
        marked = stories.join(dated.select("story_id", "split"), "story_id")
        about = f"before {day}, or of a prompt that was not answered before"
        return self._remove(marked, [Rule("test_from", about, marked.split.isnull())])

    # Pairs -------------------------------------------------------------------------------------

    def _check_candidates(self, stories: Any) -> None:
        """Raise DataError if prompts have too many pairs, before any pair is made."""
        sizes = stories.group_by("prompt_id", "split").agg(size=stories.count())
        sizes = sizes.mutate(pairs=(sizes["size"] * (sizes["size"] - 1)).floordiv(2))
        total = self._engine.rows(sizes.aggregate(pairs=sizes.pairs.sum()))[0]["pairs"] or 0
        most = self._rules.max_candidate_pairs
        if total > most:
            largest = self._engine.rows(sizes.order_by(ibis.desc("size"), "prompt_id").limit(1))[0]
            raise DataError(
                f"{self._where}: {total:,} pairs within prompts, {largest['pairs']:,} of them from "
                f"the {largest['size']:,} stories of prompt_id '{largest['prompt_id']:.80}'; "
                f"max_candidate_pairs is {most:,}: remove stories, or set max_pairs_per_prompt and "
                "raise max_candidate_pairs"
            )

    def _pair(self, stories: Any) -> Any:
        """Pair within prompts; returns the pairs that pass all rules, not yet evaluated."""
        self._check_candidates(stories)
        candidates = pairing.within_prompt(stories)
        rules = pairing.pair_rules(
            candidates, min_gap=self._rules.min_gap, chosen_later=self._rules.chosen_later
        )
        # Evaluated again for each use, so that removed pairs are never stored.
        marked = candidates.mutate(removed_by=filters.removed_by(rules))
        self._count(marked, rules)
        return marked.filter(marked.removed_by.isnull()).drop("removed_by")

    def _cap_prompts(self, pairs: Any) -> Any:
        """Keep a subsample of at most `max_pairs_per_prompt` pairs per prompt."""
        most, seed = self._rules.max_pairs_per_prompt, self._rules.seed
        if most is None:
            return self._engine.keep(pairs)
        limits = self._engine.keep(pairing.draw_limits(pairs, most, seed))
        near = self._engine.keep(pairing.within_limits(pairs, limits, seed))
        capped = self._engine.keep(near.filter(~pairing.over_cap(near, most, seed)))
        total, count = self.funnel.steps[-1].kept, self._engine.count(capped)
        about = f"at most {most} pairs per prompt"
        self.funnel.add("max_pairs_per_prompt", about, "pairs", count, total - count)
        return capped

    def _balance_lengths(self, pairs: Any) -> Any:
        """Prune pairs until lengths are symmetric."""
        if self._rules.symmetry_buckets is None:
            return pairs
        total = self._engine.count(pairs)
        buckets = self._rules.symmetry_buckets
        self.buckets = buckets = buckets_for(total) if buckets == "auto" else buckets
        marked = pairing.breaks_symmetry(pairs, buckets, self._rules.seed)
        about = f"length differences mirrored, {buckets} buckets"
        rule = Rule("symmetry_buckets", about, marked.removed)
        balanced = self._remove(marked, [rule], pairs.columns)
        removed = self.funnel.steps[-1].removed
        if removed > total / 2 and total < 10 * buckets:
            fewer = buckets_for(total)
            self.notes.append(
                f"symmetry_buckets: {removed:,} of {total:,} pairs are removed; {buckets} buckets "
                f"are too many for so few pairs: try {fewer if fewer < buckets else 'null'}"
            )
        return balanced


def _split_by_id(keys: Any, total: int) -> Iterator[Any]:
    """Yield pairs in parts of about `_PAIRS_AT_ONCE`, in ascending ranges of pair_id (an md5)."""
    parts = math.ceil(total / _PAIRS_AT_ONCE) or 1
    bounds = [f"{(part << 32) // parts:08x}" for part in range(1, parts)]
    for low, high in itertools.pairwise(["", *bounds, "g"]):
        yield keys.filter(keys.pair_id >= low, keys.pair_id < high)


def _with_progress(
    batches: Iterable[pa.RecordBatch], about: str, total: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches and show a progress bar of their rows."""
    with ProgressBar(total=total, desc=about, unit=" rows", leave=False) as bar:
        for batch in batches:
            yield batch
            bar.update(batch.num_rows)


# The folder of a pairs table ----------------------------------------------------------------------


@dataclass(kw_only=True)
class PairMaking(PairRules):
    """Stories, output folder, engine and rules of a pairs table.

    Attributes:
        stories: the stories table of make_stories.py.
        out: output folder.
        engine: duckdb, or spark (the active session, or the cluster named by spark.master).
        memory_limit: memory limit of DuckDB, such as "4GB"; above it, DuckDB spills into `out`.
        spark: Spark settings, such as {"spark.master": "spark://host:7077"}.
    """

    stories: Path
    out: Path
    engine: Annotated[EngineName, Runtime] = "duckdb"
    memory_limit: Annotated[str | None, Runtime] = None
    spark: Annotated[dict[str, str], Runtime] = field(default_factory=dict)


def make_pairs(config: PairMaking, program: str) -> None:
    """Make the pairs and write them into `config.out`, unless they are there and current.

    Writes `pairs.parquet`, `pairs_before_symmetry.parquet` (without the last step),
    `examples.jsonl` (a few rows that each step removed) and `manifest.json` with the funnel.

    Raises:
        DataError: no pair is left, or another program is writing there.
    """
    config.check()
    with only_writer(config.out):
        _make_pairs(config, program)


def _make_pairs(config: PairMaking, program: str) -> None:
    inputs = {"stories": config.stories}
    artifact = Artifact(config.out, program=program, config=config, inputs=inputs)
    if artifact.is_current():
        return
    # The report also shows the counts of the program that wrote the stories.
    story_counts = (own_manifest(config.stories) or {}).get("counts")
    limit, spark = config.memory_limit, config.spark
    with open_engine(config.engine, config.out, memory_limit=limit, spark=spark) as engine:
        stories, examples = read_stories(engine, config.stories), Examples()
        where = str(config.stories)
        pairs = CuratedPairs(engine, stories, config, examples=examples, where=where)
        pairs.check_not_empty()
        artifact.write(PAIRS_FILE, lambda path: pairs.write(pairs.after, path))
        if pairs.buckets is not None:
            artifact.write(BEFORE_SYMMETRY, lambda path: pairs.write(pairs.before, path))
        artifact.write("examples.jsonl", examples.write)
        artifact.counts = {
            "funnel": pairs.funnel.plain(),
            "lengths": {
                "after": pairs.longer_share(pairs.after),
                "before": pairs.longer_share(pairs.before),
                "buckets": pairs.buckets,
            },
            "notes": pairs.notes,
        }
    if story_counts is not None:
        artifact.counts["stories"] = story_counts
    artifact.finish()
    print(f"{config.out / PAIRS_FILE}:\n{pairs.funnel}")
    for note in pairs.notes:
        print(f"note: {note}")
