"""Splits by prompt: reposts of a prompt share its text, so its normalised text decides.

Prompts go to splits by a hash, or by the date of their stories; authors can be kept apart as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal

import ibis
import numpy as np
import pyarrow as pa
from scipy.sparse import block_array, coo_array
from scipy.sparse.csgraph import connected_components

from litbench.errors import ConfigError
from litbench.records import prompt_keys
from litbench.text import digest, prompt_key


def split_of(prompt: str, fractions: Mapping[str, float], seed: int) -> str:
    """Assign a prompt to a split, by a hash of its normalised text and the seed.

    Args:
        prompt: the prompt's text.
        fractions: name of each split and its share of prompts; the shares sum to 1.
        seed: another seed, other splits.
    """
    place = int(digest("split", seed, prompt_key(prompt))[:13], 16) / 16**13
    total = 0.0
    for name, fraction in fractions.items():
        total += fraction
        if place < total:
            return name
    return list(fractions)[-1]


def check_fractions(fractions: Mapping[str, float]) -> None:
    """Check that shares are positive and sum to 1.

    Raises:
        ConfigError: they do not.
    """
    if not fractions or min(fractions.values()) <= 0 or abs(sum(fractions.values()) - 1) > 1e-6:
        raise ConfigError(
            f"splits: {dict(fractions)}: give each split a positive share, summing to 1"
        )


def assign_folds(prompt_keys: Iterable[str], folds: int, seed: int) -> dict[str, int]:
    """Deal prompts to folds in seeded order, so that folds hold equally many prompts.

    Args:
        prompt_keys: `litbench.text.prompt_key` of the prompts; repeats do not matter.
        folds: number of folds.
        seed: another seed, other folds.

    Raises:
        ConfigError: fewer than two folds, or more folds than prompts.
    """
    distinct = set(prompt_keys)
    if not 2 <= folds <= len(distinct):
        raise ConfigError(f"folds is {folds}: give from 2 to the {len(distinct)} prompts there are")
    ordered = sorted(distinct, key=lambda key: digest("fold", seed, key))
    return {key: place % folds for place, key in enumerate(ordered)}


def connected_prompts(pairs: pa.Table) -> list[str]:
    """Group pairs that must not be separated by folds or splits.

    Two pairs are in one group when they have the same prompt (by `litbench.text.prompt_key`), the
    same `prompt_id` or a story in common, or when a chain of such pairs connects them. One
    `prompt_id` may have several prompt texts, such as with and without damaged letters.

    Args:
        pairs: table by the schema PAIRS.

    Returns:
        Name of each pair's group, in the order of the rows: the first of its prompt keys, so that
        it is the pair's own key where texts and ids agree.
    """
    keys = prompt_keys(pairs)
    stories = [("story", pairs[f"{side}_story_id"].to_pylist()) for side in ("chosen", "rejected")]
    group = _connected([("prompt", keys), ("id", pairs["prompt_id"].to_pylist()), *stories])
    first: dict[int, str] = {}
    for number, key in zip(group, keys, strict=True):
        first[number] = min(key, first.get(number, key))
    return [first[number] for number in group]


def _connected(columns: Sequence[tuple[str, Sequence[str]]]) -> list[int]:
    """Number the connected components of rows that share a value.

    Args:
        columns: the kind of a column's values, and the values; at least one column, all of shape
            (n,). Values of columns of one kind are compared with each other.

    Returns:
        The component of each row; shape (n,).
    """
    rows = len(columns[0][1])
    nodes: dict[tuple[str, str], int] = {}
    ends = [
        nodes.setdefault((kind, value), len(nodes)) for kind, values in columns for value in values
    ]
    # A graph of rows on one side and of values on the other.
    starts = np.tile(np.arange(rows), len(columns))
    graph = coo_array((np.ones(len(ends)), (starts, ends)), shape=(rows, len(nodes)))
    whole = block_array([[None, graph], [graph.T, None]])
    found: list[int] = connected_components(whole, directed=False)[1][:rows].tolist()
    return found


@dataclass(frozen=True)
class PromptGroup:
    """A prompt_id and what splits keep together with it.

    Attributes:
        prompt: the smallest text of the prompt_id.
        group_prompt: the smallest text of all prompt_ids that are connected by a normalised text.
        texts: how many different normalised texts the prompt_id has.
    """

    prompt: str
    group_prompt: str
    texts: int


def group_prompts(prompt_ids: Sequence[str], prompts: Sequence[str]) -> dict[str, PromptGroup]:
    """Group prompt_ids that share a normalised text, directly or through others.

    Args:
        prompt_ids: one for each distinct prompt_id and text; shape (n,).
        prompts: their texts; shape (n,).

    Returns:
        The group of each prompt_id.
    """
    if not prompts:
        return {}
    keys = [prompt_key(prompt) for prompt in prompts]
    component_of = dict(
        zip(prompt_ids, _connected([("id", prompt_ids), ("prompt", keys)]), strict=True)
    )
    texts: dict[str, set[str]] = {}
    smallest: dict[str, str] = {}
    smallest_of_group: dict[int, str] = {}
    for name, prompt, key in zip(prompt_ids, prompts, keys, strict=True):
        texts.setdefault(name, set()).add(key)
        smallest[name] = min(prompt, smallest.get(name, prompt))
        group = component_of[name]
        smallest_of_group[group] = min(prompt, smallest_of_group.get(group, prompt))
    return {
        name: PromptGroup(prompt, smallest_of_group[component_of[name]], len(texts[name]))
        for name, prompt in smallest.items()
    }


# By date and by author -------------------------------------------------------------------------

Straddling = Literal["train", "test", "drop"]

# Why `date_split` gives a story no split, and the rule in words.
DATE_RULES = {
    "no_time": "time of posting is known",
    "straddling": "on its prompt's side of the date",
}


def day_start(day: str | date) -> int:
    """The first second of a day in UTC, in Unix seconds.

    Args:
        day: such as "2023-01-01".

    Raises:
        ConfigError: not a day of the calendar.
    """
    try:
        given = date.fromisoformat(day) if isinstance(day, str) else day
    except ValueError as error:
        raise ConfigError(f"test_from is '{day}': give a day such as 2023-01-01") from error
    return int(datetime(given.year, given.month, given.day, tzinfo=UTC).timestamp())


def date_split(stories: Any, *, test_from: str | date, straddling: Straddling = "train") -> Any:
    """Split by the time of posting: train before a day, test from it on, and no prompt in both.

    Prompts are reposted for years, so some (by `prompt_key`) have stories on both sides. Three
    rules leave none of them in both splits:

    - `train`: such a prompt is one of train, the side of its earliest story, and its later stories
      go. Test then holds only prompts that nobody had answered before the day, which is what the
      date is for.
    - `test`: it is one of test, and its earlier stories go. More test pairs, on prompts that were
      known before the day.
    - `drop`: all its stories go.

    Args:
        stories: Ibis table with `prompt_key` and `created_utc`; all that were read, since a story
            that a filter removed still tells when its prompt was answered.
        test_from: first day of test, 00:00 UTC; a story of that very second is in test.
        straddling: the rule for prompts with stories on both sides.

    Returns:
        `stories` with `split` ("train", "test" or null) and `split_removed`, which is null or why
        there is no split: "no_time" (such a story is on neither side, and does not decide its
        prompt's) or "straddling"; see DATE_RULES.

    Raises:
        ConfigError: not a day of the calendar.
    """
    start = day_start(test_from)
    times = stories.group_by("prompt_key").agg(
        first_utc=stories.created_utc.min(), last_utc=stories.created_utc.max()
    )
    joined = stories.join(times, "prompt_key")
    in_test = joined.created_utc >= start
    straddles = (joined.first_utc < start) & (joined.last_utc >= start)
    goes = {"train": straddles & in_test, "test": straddles & ~in_test, "drop": straddles}
    reason = ibis.cases(
        (joined.created_utc.isnull(), "no_time"),
        (goes[straddling], "straddling"),
        else_=ibis.null("string"),
    )
    side = ibis.ifelse(in_test, "test", "train")
    marked = joined.mutate(
        split=ibis.ifelse(reason.isnull(), side, ibis.null("string")), split_removed=reason
    )
    return marked.drop("first_utc", "last_utc")


def shares_author(stories: Any, *, keep: Sequence[str] = ("test", "validation")) -> Any:
    """Mark the stories to remove so that no author is in two splits.

    Authors and prompts form one graph, most of which hangs together, so it cannot be cut along
    both. Prompts are split first; then an author's stories stay in the first split of `keep` that
    has one of them and go from all others. With the default, train gives way to the splits that
    are held out. An unknown author (null) is shared with nobody.

    Args:
        stories: Ibis table with `split` and `author`.
        keep: splits, the one that keeps an author before all others first; splits not named come
            last, in the order of their names.

    Returns:
        `stories` with a boolean column `shares_author`.
    """
    place = ibis.cases(
        *((stories.split == name, f"0{rank:06d}") for rank, name in enumerate(keep)),
        else_=ibis.literal("1").concat(stories.split),
    )
    placed = stories.mutate(author_place=place)
    known = placed.filter(placed.author.notnull())
    first = known.group_by(first_author="author").agg(first_place=known.author_place.min())
    joined = placed.left_join(first, placed.author == first.first_author)
    # Null, and so false, where the author is unknown.
    shared = (joined.author_place > joined.first_place).fill_null(False)
    return joined.mutate(shares_author=shared).drop("author_place", "first_author", "first_place")
