"""Studies whose readers choose between the two stories of a pair.

Pages of the store have the kind `pair`, `repeat` (a pair again, its sides swapped) or `attention`
(a pair of which one story has its words in a random order); their `order` is the side that stands
first.
"""

import math
import random
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from litbench.data.records import PAIRS, SIDES, connected_prompts
from litbench.data.tables import read_table
from litbench.data.text import count_words_of, digest
from litbench.metrics.intervals import effective_clusters
from litbench.metrics.power import Case
from litbench.metrics.power import plan as plan_power
from litbench.runs.errors import ConfigError
from litbench.runs.outputs import read_manifest_of
from litbench.study.plan import PairPlan, Study, read_plan, reading_text, reading_time
from litbench.study.store import ReaderPage, Shown, Store

_OTHER = {"chosen": "rejected", "rejected": "chosen"}
_SIDES = """
create temp view sides as
select pair_id, prompt_id, prompt, 'chosen' as side, chosen_story_id as story_id, chosen as text
from pairs union all
select pair_id, prompt_id, prompt, 'rejected', rejected_story_id, rejected from pairs
"""
_STORIES = """
select story_id, any_value(prompt_id) as prompt_id, any_value(prompt) as prompt,
    any_value(text) as text
from sides group by story_id order by story_id
"""
_RATINGS = """
select story_id, reader as rater, avg((outcome = side)::int) as rating,
    string_agg(reason, chr(10) || chr(10) order by place) as explanation
from choices join sides using (pair_id) where kind = 'pair' group by all order by all
"""


@dataclass(frozen=True, eq=False)
class PairStudy(Study):
    """An opened study of pairs; `pairs` has the schema PAIRS."""

    plan: PairPlan
    pairs: pa.Table

    def __post_init__(self) -> None:
        """Check that the plan fits the pairs."""
        each, count = self.plan.pairs_per_reader, self.pairs.num_rows
        if each > count:
            raise ConfigError(
                f"pairs_per_reader is {each}, but there are {count} pairs: give at most {count}"
            )

    @classmethod
    def open(cls, folder: Path) -> "PairStudy":
        """Read the folder of a study; DataError if one of its files was changed."""
        plan = read_plan(folder, PairPlan)
        read_manifest_of(folder / "pairs.parquet")
        return cls(folder, plan, read_table(folder / "pairs.parquet", PAIRS))

    @cached_property
    def by_id(self) -> dict[str, dict[str, Any]]:
        return {row["pair_id"]: row for row in self.pairs.to_pylist()}

    def words_of(self, name: str) -> int:
        """Words that a reader of the pair reads."""
        pair = self.by_id[name]
        words: int = pair["chosen_n_words"] + pair["rejected_n_words"]
        return words + (count_words_of(pair["prompt"]) if self.plan.shows_prompt else 0)

    def stories_of(self, pair_ids: Iterable[str]) -> set[str]:
        """The `story_id`s of some pairs."""
        pairs = [self.by_id[name] for name in pair_ids]
        return {pair[f"{side}_story_id"] for pair in pairs for side in SIDES}

    def garbled_side(self, pair_id: str) -> str:
        """The side that an attention check on a pair garbles; independent of the label."""
        seed = digest("garbled side", self.plan.seed, pair_id)
        return random.Random(seed).choice(SIDES)

    def sides(self, pair_id: str, kind: str, first: str) -> tuple[str, str]:
        """The first and the second text of a page; in the attention check, one is garbled."""
        texts = {side: self.by_id[pair_id][side] for side in SIDES}
        if kind == "attention":
            garbled = self.garbled_side(pair_id)
            texts[garbled] = garble(texts[garbled], pair_id)
        return texts[first], texts[_OTHER[first]]

    def estimate(self) -> dict[str, Any]:
        """The readers, hours, cost and power of the study."""
        plan, pairs = self.plan, self.pairs
        checks = plan.checks_attention and plan.pairs_per_reader < pairs.num_rows
        pages = plan.pairs_per_reader + plan.repeats_a_pair + checks
        readers = math.ceil(pairs.num_rows * plan.readers_per_pair / plan.pairs_per_reader)
        sizes = list(Counter(connected_prompts(pairs)).values())
        facts: dict[str, Any] = {
            "pairs": pairs.num_rows,
            "prompts": len(sizes),
            "choices": pairs.num_rows * plan.readers_per_pair,
            "checks_attention": checks,
            **reading_time(self, readers, pages),
        }
        if len(sizes) < 2:
            return facts | dict.fromkeys(("power", "half_width", "detectable"))
        case = Case(
            agreement=plan.expected_agreement,
            pairs=pairs.num_rows,
            prompts=effective_clusters(np.array(sizes)),
            annotators=plan.readers_per_pair,
            annotator_agreement=plan.reader_agreement,
        )
        return facts | plan_power(case)

    def estimate_text(self, facts: Mapping[str, Any]) -> str:
        plan = self.plan
        text = f"""\
{facts["pairs"]:,} pairs of {facts["prompts"]:,} prompts, {plan.readers_per_pair} readers a pair, \
{plan.pairs_per_reader} pairs a reader: {facts["readers"]:,} readers, {facts["choices"]:,} choices
{reading_text(plan, facts)}"""
        if plan.checks_attention and not facts["checks_attention"]:
            text += (
                "no attention check: readers read all pairs; correct instructions that announce "
                "it\n"
            )
        if facts["power"] is None:
            return text + "one prompt: no interval, and no conclusion beyond it\n"
        reach = facts["detectable"]
        beyond = "no agreement" if reach is None else f"an agreement of {reach:.3f}"
        return (
            text
            + f"""\
if {plan.expected_agreement:.3f} of the choices agree with the labels, and two readers in \
{plan.reader_agreement:g} of the pairs:
  95 % interval about {plan.expected_agreement:.3f} +- {facts["half_width"]:.3f}, differs from \
chance with a power of {facts["power"]:.2f}
  {beyond} differs from chance with a power of 0.8
  readers of different reliability widen the interval
"""
        )


def garble(text: str, seed: str) -> str:
    """The words of a text in a random order; its characters if it has no spaces."""
    pieces, between = text.split(), " "
    if len(pieces) < count_words_of(text) / 2:
        pieces, between = list("".join(pieces)), ""
    random.Random(digest("garble", seed)).shuffle(pieces)
    return between.join(pieces)


class PairStore(Store):
    """The store of a study of pairs; an answer is "first" or "second".

    With tags, the numbers of the tags of the first and the second story follow: "first 3 0".
    """

    counted = ("pair",)
    nouns = ("choices", "pair")
    study: PairStudy

    def _assign(self, number: int) -> None:
        """Give a reader the pairs with the fewest readers, each with the side shown less often.

        So two pairs differ by one reader at most, and the two sides of a pair by one, as long as
        nobody leaves; later readers fill the gaps of those who left.
        """
        load = Counter(
            (row["pair_id"], row["order"])
            for row in self._all("select pair_id, \"order\" from choices where kind = 'pair'")
        )
        choices = self._all("select kind, pair_id from choices where number = ?", number)
        read = {row["pair_id"] for row in choices if row["kind"] == "pair"}
        checked = self.study.stories_of(r["pair_id"] for r in choices if r["kind"] == "attention")
        kinds = {row["kind"] for row in choices}
        draw = random.Random(digest("assign", self.study.plan.seed, number, len(choices)))

        def readers_of(pair_id: str) -> int:
            return load[pair_id, "chosen"] + load[pair_id, "rejected"]

        free = [
            name
            for name in sorted(self.study.by_id)
            if name not in read
            and readers_of(name) < self.study.plan.readers_per_pair
            and checked.isdisjoint(self.study.stories_of([name]))
        ]
        draw.shuffle(free)
        free.sort(key=readers_of)
        picked = free[: self.study.plan.pairs_per_reader - len(read)]
        if not picked:
            return
        draw.shuffle(picked)
        sides = ["chosen", "rejected"]
        rows: list[tuple[str, str, str | None]] = []
        for name in picked:
            draw.shuffle(sides)
            rows.append(("pair", name, min(sides, key=lambda side: load[name, side])))
        _, first, side = rows[0]
        seen = self.study.stories_of([*picked, *read])
        unread = [
            name
            for name in sorted(self.study.by_id)
            if seen.isdisjoint(self.study.stories_of([name]))
        ]
        if self.study.plan.checks_attention and "attention" not in kinds and unread:
            check = ("attention", draw.choice(unread), draw.choice(sides))
            rows.insert(draw.randint(1, len(rows)), check)
        if self.study.plan.repeats_a_pair and "repeat" not in kinds and len(picked) > 1:
            rows.append(("repeat", first, _OTHER[str(side)]))
        self._add_pages(number, rows)

    def view(self, reader: str, page: ReaderPage) -> Shown:
        """A pair, or an attention check, which looks the same."""
        del reader
        first, second = self.study.sides(page.pair_id, page.kind, str(page.order))
        values = {
            "prompt": self.study.by_id[page.pair_id]["prompt"],
            "stories": [("first", "Story A", first), ("second", "Story B", second)],
            "least": math.ceil(self.study.min_seconds(page.pair_id)),
            "choice": "",
            "tags": {},
        }
        return "pair", values

    def read_form(self, form: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
        choice = form.get("choice", "")
        asked = ("first", "second") if self.study.plan.tags else ()
        tags = {name: form.get(f"tag_{name}", "") for name in asked}
        return " ".join([choice, *tags.values()]), {"choice": choice, "tags": tags}

    def _read_answer(self, page: sqlite3.Row, answer: str) -> tuple[str | None, bool | None]:
        choice, *tags = answer.split(" ")
        numbers = {str(number) for number in range(len(self.study.plan.tags))}
        is_tagged = len(tags) == 2 * bool(numbers) and set(tags) <= numbers
        if choice not in ("first", "second") or not is_tagged:
            raise ValueError("no such answer")
        side = page["order"] if choice == "first" else _OTHER[page["order"]]
        is_check = page["kind"] == "attention"
        return side, side != self.study.garbled_side(page["pair_id"]) if is_check else None

    def _answered(self) -> list[dict[str, Any]]:
        rows = super()._answered()
        for row in rows:
            sides = (row["order"], _OTHER[row["order"]])
            for side, tag in zip(sides, row["answer"].split(" ")[1:], strict=False):
                row[f"tag_{side}"] = self.study.plan.tags[int(tag)]
        return rows

    def export(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """The choices, also as ratings of stories in the form that import_ratings.py reads."""
        choices = self.choices()
        stories, ratings = stories_and_ratings(choices, self.study.pairs)
        return {"choices": choices, "stories": stories, "ratings": ratings}, {}


def stories_and_ratings(choices: pa.Table, pairs: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The stories of a study, and how often each reader chose each story.

    Args:
        choices: table with the schema CHOICES; checks and repeated pairs are left out.
        pairs: table with the schema PAIRS.

    Returns:
        Stories with `story_id`, `prompt_id`, `prompt` and `text`, and ratings with `story_id`,
        `rater`, `rating` (0 to 1) and `explanation` (the reasons).
    """
    with duckdb.connect() as database:
        database.register("choices", choices)
        database.register("pairs", pairs)
        database.execute(_SIDES)
        return database.sql(_STORIES).to_arrow_table(), database.sql(_RATINGS).to_arrow_table()
