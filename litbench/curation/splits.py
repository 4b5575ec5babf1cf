"""Splits by prompt: reposts of a prompt share its text, so its normalised text decides.

Prompts go to splits by a hash, or by the date of their stories.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any

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


def group_prompts(prompt_ids: Sequence[str], prompts: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Group prompt_ids that share a normalised text, directly or through others.

    Args:
        prompt_ids: one for each distinct prompt_id and text; shape (n,).
        prompts: their texts; shape (n,).

    Returns:
        For each prompt_id the smallest of its texts, and the smallest text of its group.
    """
    if not prompts:
        return {}
    keys = [prompt_key(prompt) for prompt in prompts]
    groups = _connected([("id", prompt_ids), ("prompt", keys)])
    smallest: dict[str, str] = {}
    smallest_of_group: dict[int, str] = {}
    group_of = dict(zip(prompt_ids, groups, strict=True))
    for name, prompt in zip(prompt_ids, prompts, strict=True):
        smallest[name] = min(prompt, smallest.get(name, prompt))
        group = group_of[name]
        smallest_of_group[group] = min(prompt, smallest_of_group.get(group, prompt))
    return {name: (prompt, smallest_of_group[group_of[name]]) for name, prompt in smallest.items()}


def day_start(day: str) -> int:
    """The first second of a day in UTC, in Unix seconds.

    Args:
        day: such as "2023-01-01".

    Raises:
        ConfigError: not a day of the calendar.
    """
    try:
        return int(datetime.combine(date.fromisoformat(day), time(), UTC).timestamp())
    except ValueError as error:
        raise ConfigError(f"test_from is '{day}': give a day such as 2023-01-01") from error


def date_split(stories: Any, *, test_from: str) -> Any:
    """Split by the time of posting: train before a day, test from it on, and no prompt in both.

    Prompts are reposted for years, so some have stories on both sides. Such a prompt is one of
    train, and its later stories go: test then holds only prompts that nobody had answered before
    the day.

    Args:
        stories: Ibis table with `prompt_key` and `created_utc`; all that were read, since a story
            that a filter removed still tells when its prompt was answered.
        test_from: first day of test, 00:00 UTC; a story of that very second is in test.

    Returns:
        `stories` with `split`: "train", "test", or null where the time is unknown or the prompt
        was answered before.
    """
    start = day_start(test_from)
    times = stories.group_by("prompt_key").agg(first_utc=stories.created_utc.min())
    joined = stories.join(times, "prompt_key")
    split = ibis.cases(
        (joined.created_utc < start, "train"),
        (joined.first_utc >= start, ibis.ifelse(joined.created_utc.notnull(), "test", None)),
        else_=ibis.null("string"),
    )
    return joined.mutate(split=split).drop("first_utc")
