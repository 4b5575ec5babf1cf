"""From stories to pairs: every rule in its order, each step counted.

    with open_engine("duckdb", folder) as engine:
        made = CuratedPairs(engine, engine.read(stories), PairRules(min_score=None))
        made.write(made.after, folder / "pairs.parquet")

The order follows section 3.2 of the paper: clean, deduplicate, split by prompt, pair within a
prompt, caps, length symmetry last and inside each split. All steps work on keys (ids, scores,
times, lengths); texts are joined when a table is written. The same stories and rules give the same
pairs, whatever the order of the rows and the engine.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ibis
import pyarrow as pa
from tqdm import tqdm

from litbench.curation import filters, pairing, splits
from litbench.curation.engine import Engine
from litbench.curation.filters import Rule
from litbench.curation.funnel import Examples, Funnel
from litbench.curation.near_duplicates import NearDuplicateIndex
from litbench.curation.rules import PairRules
from litbench.errors import DataError
from litbench.records import PAIRS, STORIES
from litbench.tables import check_parquet, read_table, write_sorted_batches
from litbench.text import prompt_key


def read_stories(engine: Engine, path: Path) -> Any:
    """A stories table as an expression: Parquet stays on disk, other formats come into memory.

    Raises:
        DataError: the file is missing or does not follow the schema STORIES.
    """
    if path.suffix != ".parquet":
        return engine.put(read_table(path, STORIES))
    check_parquet(path, STORIES)
    return engine.read(path)


class CuratedPairs:
    """Pairs by their keys, without the stories' texts, and the steps that lead to them.

    The tables are Ibis expressions of the engine that made them and end with it.

    Args:
        engine: runs the steps.
        stories: Ibis table by the schema STORIES.
        rules: what to apply; the caller has checked them.
        examples: collects stories that steps removed.
        where: names the stories in messages.

    Attributes:
        before: the pairs before length symmetry: `pair_id`, `prompt_id`, `split` and, for chosen
            and rejected, `_story_id`, `_score`, `_created_utc`, `_n_words` and `_author`.
        after: the pairs that are left.
        funnel: counts of every step.
        notes: what the user should know about these data, a line each.

    Raises:
        DataError: ids that repeat, a column that a rule needs and that is empty, or more pairs
            within prompts than `max_candidate_pairs`.
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
        kept = self._drop_near_duplicates(self._drop_duplicates(self._clean()))
        self._prompts = self._name_prompts()
        self.before = self._cap_prompts(self._pair(self._split(kept)))
        self.after = self._balance_lengths(self.before)

    def check_not_empty(self) -> None:
        """Raise DataError with the funnel where no pair is left."""
        if self._engine.count(self.after) == 0:
            raise DataError(
                f"no pair is left:\n{self.funnel}\nloosen the step that removed the most"
            )

    def with_texts(self, keys: Any) -> Any:
        """Join prompts and texts to keys; an Ibis table by the schema PAIRS, by pair_id."""
        joined = keys.join(self._prompts.select("prompt_id", "prompt"), "prompt_id").mutate(
            label_source=ibis.literal(self._rules.label_source),
            margin=ibis.null("float64"),
            weight=ibis.null("float64"),
            fold=ibis.null("string"),
        )
        for side in ("chosen", "rejected"):
            texts = self._stories.select(**{f"{side}_story_id": "story_id", side: "text"})
            joined = joined.join(texts, f"{side}_story_id")
        return joined.select([column.name for column in PAIRS.columns]).order_by("pair_id")

    def write(self, keys: Any, path: Path) -> None:
        """Write a pairs table without holding it in memory."""
        total = self._engine.count(keys)
        batches = _with_progress(self._engine.batches(self.with_texts(keys)), path.stem, total)
        first = next(batches)
        every = itertools.chain([first], batches)
        write_sorted_batches(pa.RecordBatchReader.from_batches(first.schema, every), PAIRS, path)

    def longer_share(self, keys: Any) -> dict[str, Any]:
        """Per split: pairs, prompts, and pairs with the longer or the shorter story chosen."""
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
        """Remove the rows that rules name, count them, and show a few stories."""
        marked = table.select(columns or table.columns, removed_by=filters.removed_by(rules))
        marked = self._engine.keep(marked)
        self._count(marked, rules)
        removed = marked.filter(marked.removed_by.notnull())
        if self._examples is not None and "story_id" in marked.columns:
            draw = removed.removed_by.concat("|", removed.story_id).hexdigest("md5")
            order = ibis.window(group_by=removed.removed_by, order_by=draw)
            placed = removed.mutate(place=ibis.row_number().over(order))
            some = placed.filter(placed.place < self._examples.per_step)
            texts = self._stories.select("story_id", "text", "n_tokens")
            some = some.select("removed_by", "story_id", "score", "n_words")
            for row in self._engine.rows(some.join(texts, "story_id")):
                facts = {"score": row["score"], "words": row["n_words"], "tokens": row["n_tokens"]}
                about = ", ".join(f"{key} {n:,}" for key, n in facts.items() if n is not None)
                self._examples.add(row["removed_by"], row["story_id"], row["text"], about)
        return marked.filter(marked.removed_by.isnull()).drop("removed_by")

    def _count(self, marked: Any, rules: Sequence[Rule]) -> None:
        """Add to the funnel what `removed_by` says of each rule."""
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
        """Check what would make a rule silently wrong."""
        stories, rules = self._stories, self._rules
        found = self._engine.rows(
            stories.aggregate(
                repeated=stories.count() - stories.story_id.nunique(),
                uncounted=stories.n_tokens.isnull().sum(),
                timed=stories.created_utc.count(),
            )
        )[0]
        problems = {
            f"story_id: {found['repeated']:,} rows repeat an id: make the file with "
            "make_stories.py, which rejects them": found["repeated"],
            f"n_tokens is null in {found['uncounted']:,} rows, and max_tokens needs it: name a "
            "tokenizer in make_stories.py, or set max_tokens to null": (
                rules.max_tokens is not None and found["uncounted"]
            ),
            "created_utc is empty, and chosen_later needs it: map it in make_stories.py, or set "
            "chosen_later to false": rules.chosen_later and not found["timed"],
        }
        for problem, is_there in problems.items():
            if is_there:
                raise DataError(f"{self._where}: column {problem}")

    def _clean(self) -> Any:
        """Filter single stories; returns the keys of those that are left."""
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
            # Few stories have copies, and only these need an order.
            copies = stories.group_by("duplicate_key").agg(copies=stories.count())
            copies = stories.semi_join(copies.filter(copies.copies > 1), "duplicate_key")
            about = "not a copy of an earlier story"
            stories = self._drop_repeats("drop_duplicates", about, stories, copies)
        return stories.drop("duplicate_key")

    def _drop_near_duplicates(self, stories: Any) -> Any:
        """Keep the earliest of several stories that are nearly the same."""
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
        """Remove all but the earliest of the stories in `copies` that share a duplicate_key."""
        copies = copies.mutate(repeated=filters.is_repeat(copies))
        repeated = copies.filter(copies.repeated).select("story_id", "repeated")
        marked = stories.left_join(repeated, "story_id")
        return self._remove(marked, [Rule(step, about, marked.repeated.notnull())], stories.columns)

    # Splits ------------------------------------------------------------------------------------

    def _name_prompts(self) -> Any:
        """Every prompt_id with its text and its split.

        `prompt` is the smallest text of the id, `prompt_key` the same for all prompts that splits
        keep together (`splits.group_prompts`), and `split` is by the shares in `splits`.
        """
        distinct = self._stories.select("prompt_id", "prompt").distinct()
        given = [tuple(row.values()) for row in self._engine.rows(distinct)]
        texts = Counter(name for name, _ in {(name, prompt_key(text)) for name, text in given})
        different = sum(count > 1 for count in texts.values())
        if different:
            self.notes.append(
                f"{different:,} prompt_ids stand for several prompts, whose stories are paired "
                "with each other: check the column prompt_id"
            )
        rows = [
            {
                "prompt_id": name,
                "prompt": prompt,
                "prompt_key": prompt_key(group),
                "split": splits.split_of(group, self._rules.splits, self._rules.seed),
            }
            for name, (prompt, group) in splits.group_prompts(given).items()
        ]
        schema = pa.schema(
            [(name, pa.string()) for name in ("prompt_id", "prompt", "prompt_key", "split")]
        )
        return self._engine.put(pa.Table.from_pylist(rows, schema))

    def _split(self, stories: Any) -> Any:
        """Give every story its split; returns the stories that have one."""
        day = self._rules.test_from
        if day is None:
            joined = stories.join(self._prompts.select("prompt_id", "split"), "prompt_id")
            return self._engine.keep(joined)
        # All stories decide the side of a prompt, so that other filters do not move it.
        given = self._stories.select("story_id", "prompt_id", "created_utc")
        given = given.join(self._prompts.select("prompt_id", "prompt_key"), "prompt_id")
        dated = splits.date_split(given, test_from=day)
        marked = stories.join(dated.select("story_id", "split"), "story_id")
        about = f"before {day}, or of a prompt that was not answered before"
        return self._remove(marked, [Rule("test_from", about, marked.split.isnull())])

    # Pairs -------------------------------------------------------------------------------------

    def _check_candidates(self, stories: Any) -> None:
        """Count the pairs within prompts before they are made, and refuse too many."""
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
        """Pair within prompts; returns the keys of the pairs that no rule removes."""
        self._check_candidates(stories)
        candidates = pairing.within_prompt(stories)
        rules = pairing.pair_rules(
            candidates, min_gap=self._rules.min_gap, chosen_later=self._rules.chosen_later
        )
        # Counted and kept apart: what the rules remove is never held.
        marked = candidates.mutate(removed_by=filters.removed_by(rules))
        self._count(marked, rules)
        return self._engine.keep(marked.filter(marked.removed_by.isnull()).drop("removed_by"))

    def _cap_prompts(self, pairs: Any) -> Any:
        """Keep at most `max_pairs_per_prompt` pairs of a prompt, drawn by seed."""
        most = self._rules.max_pairs_per_prompt
        if most is None:
            return pairs
        over = pairing.over_cap(pairs, most, self._rules.seed)
        rule = Rule("max_pairs_per_prompt", f"at most {most} pairs per prompt", over)
        return self._remove(pairs, [rule])

    def _balance_lengths(self, pairs: Any) -> Any:
        """Prune to length symmetry."""
        buckets = self._rules.symmetry_buckets
        if buckets is None:
            return pairs
        marked = pairing.breaks_symmetry(pairs, buckets, self._rules.seed)
        about = f"length differences mirrored, {buckets} buckets"
        rule = Rule("symmetry_buckets", about, marked.removed)
        kept = self._remove(marked, [rule], pairs.columns)
        removed = self.funnel.steps[-1].removed
        total = self.funnel.steps[-1].kept + removed
        if removed > total / 2 and total < 10 * buckets:
            self.notes.append(
                f"symmetry_buckets: {removed:,} of {total:,} pairs are removed; {buckets} buckets "
                f"are many for so few pairs: try {max(total // 20, 1) * 2}"
            )
        return kept


def _with_progress(
    batches: Iterable[pa.RecordBatch], about: str, total: int
) -> Iterator[pa.RecordBatch]:
    """Show how many rows have come."""
    with tqdm(total=total, desc=about, unit=" rows", leave=False, disable=None) as bar:
        for batch in batches:
            yield batch
            bar.update(batch.num_rows)
