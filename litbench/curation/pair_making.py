"""From stories to pairs: every rule in its order, each step counted.

    with open_engine("duckdb", folder) as engine:
        made = make_keys(engine, engine.read(stories), PairRules(min_score=None))
        made.write(made.after, folder / "pairs.parquet")

The order follows section 3.2 of the paper: clean, deduplicate, split by prompt, pair within a
prompt, caps, length symmetry last and inside each split. All steps work on keys (ids, scores,
times, lengths); texts are joined when a table is written. The same stories and rules give the same
pairs, whatever the order of the rows and the engine.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import ibis
import pyarrow as pa
from tqdm import tqdm

from litbench.curation import filters, pairing, splits
from litbench.curation.engine import Engine
from litbench.curation.filters import Rule
from litbench.curation.funnel import Examples, Funnel
from litbench.curation.near_duplicates import check_threshold, near_duplicate_groups
from litbench.curation.splits import Straddling
from litbench.errors import ConfigError, DataError
from litbench.records import PAIRS, STORIES
from litbench.tables import check_parquet, read_table, write_sorted_batches
from litbench.text import prompt_key

# Examples of removed pairs are drawn from this many prompts of at most so many stories.
_EXAMPLE_PROMPTS = 200
_EXAMPLE_PROMPT_STORIES = 200
# A prompt with more pairs is sampled down to about its cap while it is paired.
_LARGE_PROMPT_PAIRS = 100_000


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
            similar (Jaccard, such as 0.8), across all prompts.
        splits: share of prompts per split, by a hash of the prompt's text.
        test_from: split by date instead: stories posted from this day (UTC) on are test, the
            others train; the paper's is "2023-01-01".
        straddling: with test_from, where a prompt with stories on both sides goes: to train (its
            later stories go), to test (its earlier ones go), or drop.
        separate_authors: no author in two splits: train loses the stories of test's authors.
        max_candidate_pairs: refuse stories that form more pairs within prompts, before the rules
            for pairs; counted before any is made.
        min_gap: least score gap, as a share of the chosen score.
        chosen_later: the chosen story must be the later one.
        max_uses_per_story: most pairs a story is in, drawn by seed.
        max_pairs_per_prompt: most pairs of a prompt, drawn by seed.
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
    max_candidate_pairs: int = 20_000_000
    min_gap: float | None = 0.25
    chosen_later: bool = True
    max_uses_per_story: int | None = None
    max_pairs_per_prompt: int | None = None
    symmetry_buckets: int | None = 100
    label_source: Literal["votes", "people", "planted"] = "votes"

    def check(self) -> None:
        """Check what the types cannot.

        Raises:
            ConfigError: a value out of range.
            MissingExtraError: near-duplicates are to be removed and rensa is not installed.
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
            check_threshold(self.drop_near_duplicates)


def check_stories_file(path: Path) -> None:
    """Check a Parquet file of stories before any work; other formats are checked as they are read.

    Raises:
        DataError: the file is missing or does not follow the schema STORIES.
    """
    if path.suffix == ".parquet":
        check_parquet(path, STORIES)


def read_stories(engine: Engine, path: Path) -> Any:
    """A stories table as an expression: Parquet stays on disk, other formats come into memory.

    Raises:
        DataError: the file is missing or does not follow the schema STORIES.
    """
    if path.suffix == ".parquet":
        return engine.read(path)
    return engine.put(read_table(path, STORIES))


@dataclass(frozen=True)
class CuratedPairs:
    """Pairs by their keys, without the stories' texts.

    The tables are Ibis expressions of the engine that made them and end with it.

    Attributes:
        engine: runs them.
        rules: what was applied.
        stories: the stories as given, texts included.
        prompts: `prompt_id`, `prompt`.
        before: the pairs before length symmetry: `pair_id`, `prompt_id`, `split` and, for chosen
            and rejected, `_story_id`, `_score`, `_created_utc`, `_n_words` and `_author`.
        after: the pairs that are left.
        funnel: counts of every step.
        notes: what the user should know about these data, a line each.
    """

    engine: Engine
    rules: PairRules
    stories: Any
    prompts: Any
    before: Any
    after: Any
    funnel: Funnel
    notes: list[str]

    def check_not_empty(self) -> None:
        """Check that a pair is left.

        Raises:
            DataError: none is; the message has the funnel.
        """
        if self.engine.count(self.after) == 0:
            raise DataError(
                f"no pair is left:\n{self.funnel}\nloosen the step that removed the most"
            )

    def with_prompts(self, keys: Any) -> Any:
        """Join the prompts to keys; an Ibis table by the schema PAIRS but for the two texts."""
        joined = keys.join(self.prompts, "prompt_id").mutate(
            label_source=ibis.literal(self.rules.label_source),
            margin=ibis.null("float64"),
            weight=ibis.null("float64"),
            fold=ibis.null("string"),
        )
        names = [column.name for column in PAIRS.columns]
        return joined.select([name for name in names if name not in ("chosen", "rejected")])

    def with_texts(self, keys: Any) -> Any:
        """Join prompts and texts to keys; an Ibis table by the schema PAIRS, by pair_id."""
        joined = self.with_prompts(keys)
        for side in ("chosen", "rejected"):
            texts = self.stories.select(**{f"{side}_story_id": "story_id", side: "text"})
            joined = joined.join(texts, f"{side}_story_id")
        return joined.select([column.name for column in PAIRS.columns]).order_by("pair_id")

    def write(self, keys: Any, path: Path) -> None:
        """Write a pairs table without holding it in memory.

        Args:
            keys: such as `after`.
            path: Parquet file.

        Raises:
            DataError: there are no pairs.
        """
        total = self.engine.count(keys)
        batches = _with_progress(self.engine.batches(self.with_texts(keys)), path.stem, total)
        first = next(batches, None)
        if first is None:
            raise DataError("there is no pair to write: see the funnel, and loosen a step")
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
        return {row.pop("split"): row for row in self.engine.rows(counted.order_by("split"))}


def make_keys(
    engine: Engine,
    stories: Any,
    rules: PairRules,
    *,
    examples: Examples | None = None,
    where: str = "stories",
) -> CuratedPairs:
    """Apply the rules in their order.

    Args:
        engine: runs them.
        stories: Ibis table by the schema STORIES, such as `engine.read(path)`.
        rules: what to apply; the caller has checked them.
        examples: collects rows that steps removed; none are looked for when None.
        where: names the stories in messages.

    Raises:
        DataError: ids that repeat, a column that a rule needs and that is empty or of another
            type, or more pairs within prompts than `max_candidate_pairs`.
    """
    return _Curation(engine, stories, rules, examples or Examples(0), where).run()


class _Curation:
    """The steps from stories to pairs, and what they share."""

    def __init__(
        self, engine: Engine, stories: Any, rules: PairRules, examples: Examples, where: str
    ) -> None:
        self.engine, self.stories, self.rules = engine, stories, rules
        self.examples, self.where = examples, where
        self.funnel = Funnel()
        self.notes: list[str] = []

    def run(self) -> CuratedPairs:
        self.check_stories()
        stories = self.drop_near_duplicates(self.drop_duplicates(self.clean()))
        prompts = self.name_prompts()
        stories = self.split(stories, prompts)
        before = self.cap_prompts(self.cap_uses(self.pair(stories)))
        after = self.balance_lengths(before)
        prompts = prompts.select("prompt_id", "prompt")
        return CuratedPairs(
            self.engine, self.rules, self.stories, prompts, before, after, self.funnel, self.notes
        )

    def remove(self, table: Any, rules: list[Rule]) -> Any:
        """Remove the rows that a rule names; count them and show a few."""
        marked = self.engine.keep(table.mutate(removed_by=filters.removed_by(rules)))
        self.count(marked, rules, "pairs" if "pair_id" in table.columns else "stories")
        self.show(marked.filter(marked.removed_by.notnull()))
        return marked.filter(marked.removed_by.isnull()).drop("removed_by")

    def count(self, marked: Any, rules: list[Rule], unit: str) -> None:
        """Add the steps of some rules to the funnel."""
        counts = self.engine.count_by(marked, "removed_by")
        total = sum(counts.values())
        if not self.funnel.steps or self.funnel.steps[-1].unit != unit:
            first = {"stories": ("read", "stories read")}
            step, about = first.get(unit, ("within_prompt", "pairs within a prompt, scores differ"))
            self.funnel.add(step, about, unit, total, 0)
        names = [(rule.name, rule.about) for rule in rules]
        self.funnel.add_all(names, {name: n for name, n in counts.items() if name}, total, unit)

    def check_stories(self) -> None:
        """Check what would make a rule silently wrong."""
        stories, rules = self.stories, self.rules
        found = self.engine.rows(
            stories.aggregate(
                rows=stories.count(),
                ids=stories.story_id.nunique(),
                uncounted=stories.n_tokens.isnull().sum(),
                timed=stories.created_utc.count(),
            )
        )[0]
        if found["ids"] != found["rows"]:
            raise DataError(
                f"{self.where}: column story_id: {found['rows'] - found['ids']:,} rows repeat an "
                "id: make the file with make_stories.py, which rejects them"
            )
        if rules.max_tokens is not None and found["uncounted"]:
            raise DataError(
                f"{self.where}: column n_tokens is null in {found['uncounted']:,} rows, and "
                "max_tokens needs it: name a tokenizer in make_stories.py, or set max_tokens to "
                "null"
            )
        if "is_bot" in stories.columns:
            kind = stories.schema()["is_bot"]
            if not (kind.is_boolean() or kind.is_null()):
                raise DataError(
                    f"{self.where}: column is_bot holds {kind}, not true or false: write it as "
                    "Parquet, or leave the column out"
                )
        if rules.chosen_later and not found["timed"]:
            raise DataError(
                f"{self.where}: column created_utc is empty, and chosen_later needs it: map it in "
                "make_stories.py, or set chosen_later to false"
            )

    # Stories ----------------------------------------------------------------------------------

    def clean(self) -> Any:
        """Filter single stories; returns the keys of those that are left."""
        rules = self.rules
        story_rules = filters.story_rules(
            self.stories,
            drop_deleted=rules.drop_deleted,
            drop_bots=rules.drop_bots,
            drop_talk=rules.drop_talk,
            min_score_age_hours=rules.min_score_age_hours,
            needs_score=True,
            needs_time=rules.chosen_later,
            min_score=rules.min_score,
            max_tokens=rules.max_tokens,
            min_words=rules.min_words,
        )
        keys = self.stories.select(
            "story_id", "prompt_id", "score", "created_utc", "author", "n_words",
            removed_by=filters.removed_by(story_rules),
            duplicate_key=filters.duplicate_key(self.stories)
            if rules.drop_duplicates
            else ibis.null("string"),
        )  # fmt: skip
        marked = self.engine.keep(keys)
        self.count(marked, story_rules, "stories")
        self.show(marked.filter(marked.removed_by.notnull()))
        return marked.filter(marked.removed_by.isnull()).drop("removed_by")

    def drop_duplicates(self, stories: Any) -> Any:
        """Keep the earliest of several copies of a story."""
        if self.rules.drop_duplicates:
            # Few stories have copies, and only these need an order.
            copies = stories.group_by("duplicate_key").agg(copies=stories.count())
            copies = stories.semi_join(copies.filter(copies.copies > 1), "duplicate_key")
            about = "not a copy of an earlier story"
            stories = self.drop_repeats("drop_duplicates", about, stories, copies)
        return stories.drop("duplicate_key")

    def drop_near_duplicates(self, stories: Any) -> Any:
        """Keep the earliest of several stories that are nearly the same."""
        threshold = self.rules.drop_near_duplicates
        if threshold is None:
            return stories
        texts = self.stories.semi_join(stories, "story_id").select("story_id", "text")
        total = self.engine.count(stories)
        batches = _with_progress(self.engine.batches(texts), "near-duplicates", total)
        groups = near_duplicate_groups(batches, threshold=threshold, seed=self.rules.seed)
        copies = stories.join(self.engine.put(groups), "story_id").rename(duplicate_key="group")
        about = f"not nearly ({threshold:.0%}) the same as an earlier story"
        return self.drop_repeats("drop_near_duplicates", about, stories, copies)

    def drop_repeats(self, step: str, about: str, stories: Any, copies: Any) -> Any:
        """Remove all but the earliest of the stories in `copies` that share a duplicate_key."""
        copies = copies.mutate(repeated=filters.is_repeat(copies))
        repeated = copies.filter(copies.repeated).select("story_id", "repeated")
        marked = stories.left_join(repeated, "story_id").drop("story_id_right")
        return self.remove(marked, [Rule(step, about, marked.repeated.notnull())]).drop("repeated")

    # Splits -----------------------------------------------------------------------------------

    def name_prompts(self) -> Any:
        """Every prompt_id with its text and what decides about its split.

        Returns:
            `prompt_id`, `prompt` (the smallest text of the id), `prompt_key` (the same for all
            prompts that splits keep together; see `splits.group_prompts`) and `split`, by the
            shares in `splits`.
        """
        ids: list[str] = []
        texts: list[str] = []
        for batch in self.engine.batches(self.stories.select("prompt_id", "prompt").distinct()):
            ids.extend(batch["prompt_id"].to_pylist())
            texts.extend(batch["prompt"].to_pylist())
        groups = splits.group_prompts(ids, texts)
        different = sum(group.texts > 1 for group in groups.values())
        if different:
            self.notes.append(
                f"{different:,} prompt_ids stand for several prompts, whose stories are paired "
                "with each other: check the column prompt_id"
            )
        fractions, seed = self.rules.splits, self.rules.seed
        columns = {
            "prompt_id": list(groups),
            "prompt": [group.prompt for group in groups.values()],
            "prompt_key": [prompt_key(group.group_prompt) for group in groups.values()],
            "split": [splits.split_of(g.group_prompt, fractions, seed) for g in groups.values()],
        }
        schema = pa.schema([(name, pa.string()) for name in columns])
        return self.engine.put(pa.table(columns, schema))

    def split(self, stories: Any, prompts: Any) -> Any:
        """Give every story its split; returns the stories that have one."""
        rules = self.rules
        if rules.test_from is None:
            stories = self.engine.keep(
                stories.join(prompts.select("prompt_id", "split"), "prompt_id")
            )
        else:
            # All stories decide the side of a prompt, so that other filters do not move it.
            given = self.stories.select("story_id", "prompt_id", "created_utc")
            given = given.join(prompts.select("prompt_id", "prompt_key"), "prompt_id")
            dated = splits.date_split(given, test_from=rules.test_from, straddling=rules.straddling)
            marked = stories.join(dated.select("story_id", "split", "split_removed"), "story_id")
            date_rules = [
                Rule(name, about, (marked.split_removed == name).fill_null(False))
                for name, about in splits.DATE_RULES.items()
            ]
            stories = self.remove(marked, date_rules).drop("split_removed")
        if rules.separate_authors:
            about = "no author in two splits, train gives way"
            marked = splits.shares_author(stories)
            rule = Rule("separate_authors", about, marked.shares_author)
            stories = self.remove(marked, [rule]).drop("shares_author")
        return stories

    # Pairs ------------------------------------------------------------------------------------

    def check_candidates(self, stories: Any) -> int:
        """Count the pairs within prompts before they are made; returns those of the largest prompt.

        Raises:
            DataError: there are too many.
        """
        sizes = stories.group_by("prompt_id", "split").agg(size=stories.count())
        sizes = sizes.mutate(pairs=(sizes["size"] * (sizes["size"] - 1)).floordiv(2))
        total = self.engine.rows(sizes.aggregate(pairs=sizes.pairs.sum()))[0]["pairs"] or 0
        largest = self.engine.rows(sizes.order_by(ibis.desc("size"), "prompt_id").limit(1))
        if not largest:
            return 0
        size, pairs, name = (largest[0][key] for key in ("size", "pairs", "prompt_id"))
        most = self.rules.max_candidate_pairs
        if total > most:
            raise DataError(
                f"{self.where}: {total:,} pairs within prompts, {pairs:,} of them from the "
                f"{size:,} stories of prompt_id '{name:.80}'; max_candidate_pairs is {most:,}: "
                "remove stories, or set max_pairs_per_prompt and raise max_candidate_pairs"
            )
        if pairs > max(_LARGE_PROMPT_PAIRS, total // 2) and not self.rules.max_pairs_per_prompt:
            self.notes.append(
                f"{pairs:,} of {total:,} pairs within prompts are of prompt_id '{name:.80}', which "
                f"has {size:,} stories: max_pairs_per_prompt limits its weight"
            )
        return int(pairs)

    def pair(self, stories: Any) -> Any:
        """Pair within prompts; returns the keys of the pairs that no rule removes."""
        rules = self.rules
        largest = self.check_candidates(stories)
        candidates = pairing.within_prompt(stories)
        pair_rules = pairing.pair_rules(
            candidates, min_gap=rules.min_gap, chosen_later=rules.chosen_later
        )
        marked = candidates.mutate(removed_by=filters.removed_by(pair_rules))
        self.count(marked, pair_rules, "pairs")
        if self.examples.per_step:
            sizes = stories.group_by("prompt_id").agg(stories=stories.count())
            small = sizes.filter(sizes.stories <= _EXAMPLE_PROMPT_STORIES)
            small = small.mutate(draw=small.prompt_id.hexdigest("md5")).order_by("draw")
            few = self.engine.keep(marked.semi_join(small.limit(_EXAMPLE_PROMPTS), "prompt_id"))
            self.show(few.filter(few.removed_by.notnull()))
        pairs = marked.filter(marked.removed_by.isnull()).drop("removed_by")
        capped = rules.max_pairs_per_prompt is not None and rules.max_uses_per_story is None
        if capped and largest > _LARGE_PROMPT_PAIRS:
            pairs = self.sample_large_prompts(pairs)
        return self.engine.keep(pairs)

    def sample_large_prompts(self, pairs: Any) -> Any:
        """Leave out pairs that `max_pairs_per_prompt` removes in any case, before they are held."""
        most = self.rules.max_pairs_per_prompt
        assert most is not None
        sizes = pairs.group_by("prompt_id").agg(pairs=pairs.count())
        large = self.engine.rows(sizes.filter(sizes.pairs > _LARGE_PROMPT_PAIRS))
        limits = {row["prompt_id"]: pairing.draw_limit(most, row["pairs"]) for row in large}
        table = pa.table(
            {
                "prompt_id": pa.array(limits.keys(), pa.string()),
                "draw_limit": pa.array(limits.values(), pa.string()),
            }
        )
        limited = pairs.left_join(self.engine.put(table), "prompt_id").drop("prompt_id_right")
        drawn = pairing.cap_draw(limited, self.rules.seed) < limited.draw_limit
        return limited.filter(drawn.fill_null(True)).drop("draw_limit")

    def cap_uses(self, pairs: Any) -> Any:
        """Keep pairs, in seeded order, so that no story is in more than `max_uses_per_story`."""
        most = self.rules.max_uses_per_story
        if most is None:
            return pairs
        candidates, used, rounds = pairs, None, []
        while True:
            found = pairing.within_uses(candidates, used, most, self.rules.seed)
            found = self.engine.keep(found)
            taken = found.filter(found.taken)
            if not self.engine.count(taken):
                break
            rounds.append(taken)
            every = ibis.union(*rounds) if len(rounds) > 1 else taken
            sides = [every.select(story_id=f"{side}_story_id") for side in ("chosen", "rejected")]
            stories = ibis.union(*sides)
            used = self.engine.keep(stories.group_by("story_id").agg(uses=stories.count()))
            candidates = found.filter(~found.taken)
        if not rounds:
            return pairs
        kept = (ibis.union(*rounds) if len(rounds) > 1 else rounds[0]).select("pair_id", "taken")
        marked = pairs.left_join(kept, "pair_id").drop("pair_id_right")
        about = f"a story is in at most {most} pairs"
        rule = Rule("max_uses_per_story", about, marked.taken.isnull())
        return self.remove(marked, [rule]).drop("taken")

    def cap_prompts(self, pairs: Any) -> Any:
        """Keep at most `max_pairs_per_prompt` pairs of a prompt, drawn by seed."""
        most = self.rules.max_pairs_per_prompt
        if most is None:
            return pairs
        over = self.engine.keep(pairs.mutate(over=pairing.over_cap(pairs, most, self.rules.seed)))
        kept, step = over.filter(~over.over).drop("over"), "max_pairs_per_prompt"
        n_kept, n_before = self.engine.count(kept), self.funnel.steps[-1].kept
        about = f"at most {most} pairs per prompt"
        self.funnel.add(step, about, "pairs", n_kept, n_before - n_kept)
        self.show(over.filter(over.over).mutate(removed_by=ibis.literal(step)))
        return kept

    def balance_lengths(self, pairs: Any) -> Any:
        """Prune to length symmetry."""
        buckets = self.rules.symmetry_buckets
        if buckets is None:
            return pairs
        marked = pairing.breaks_symmetry(pairs, buckets, self.rules.seed)
        about = f"length differences mirrored, {buckets} buckets"
        rule = Rule("symmetry_buckets", about, marked.removed)
        kept = self.remove(marked, [rule]).drop("removed")
        step = self.funnel.steps[-1]
        total = step.kept + step.removed
        if step.removed > total / 2 and total < 10 * buckets:
            fewer = max(total // 20, 1) * 2
            self.notes.append(
                f"symmetry_buckets: {step.removed:,} of {total:,} pairs are removed; {buckets} "
                f"buckets are many for so few pairs: try {fewer}"
            )
        return kept

    # Examples ---------------------------------------------------------------------------------

    def show(self, removed: Any) -> None:
        """Add examples of rows that steps removed; `removed_by` names the step."""
        if not self.examples.per_step:
            return
        if "pair_id" in removed.columns:
            # A pair_id is a hash already.
            for row in self.engine.rows(self.first(removed, removed.pair_id)):
                about = "; ".join(_side_in_words(row, side) for side in ("chosen", "rejected"))
                self.examples.add(row["removed_by"], row["pair_id"], about)
            return
        draw = removed.removed_by.concat("|", removed.story_id).hexdigest("md5")
        some = self.first(removed, draw).select("removed_by", "story_id", "score", "n_words")
        texts = self.stories.select("story_id", "text", "n_tokens")
        for row in self.engine.rows(some.join(texts, "story_id")):
            facts = {"score": row["score"], "words": row["n_words"], "tokens": row["n_tokens"]}
            about = ", ".join(f"{key} {n:,}" for key, n in facts.items() if n is not None)
            self.examples.add(row["removed_by"], row["story_id"], row["text"], about)

    def first(self, removed: Any, draw: Any) -> Any:
        """The first few rows of each step in the order of a draw."""
        order = ibis.window(group_by=removed.removed_by, order_by=draw)
        placed = removed.mutate(place=ibis.row_number().over(order))
        return placed.filter(placed.place < self.examples.per_step)


def _side_in_words(pair: dict[str, Any], side: str) -> str:
    """What the rules look at in one story of a pair."""
    names = ("score", "created_utc", "n_words")
    score, created, words = (pair[f"{side}_{name}"] for name in names)
    when = "unknown" if created is None else f"{pa.scalar(created, pa.timestamp('s'))}"
    return f"{side}: score {score:,}, {words:,} words, posted {when}"


def _with_progress(
    batches: Iterable[pa.RecordBatch], about: str, total: int
) -> Iterator[pa.RecordBatch]:
    """Show how many rows have come."""
    with tqdm(total=total, desc=about, unit=" rows", leave=False, disable=None) as bar:
        for batch in batches:
            yield batch
            bar.update(batch.num_rows)
