"""Splits by prompt: reposts of a prompt share its text, so its normalised text decides.

Prompts go to splits by a hash, or by the date of their stories.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import ibis
import pyarrow as pa

from litbench.errors import ConfigError
from litbench.records import prompt_keys
from litbench.text import digest, prompt_key


def split_of(prompt: str, fractions: Mapping[str, float], seed: int) -> str:
    """Assign a prompt to a split, by a hash of its normalised text and the seed.

    `fractions` are the shares of prompts by the name of each split; they sum to 1.
    """
    place = int(digest("split", seed, prompt_key(prompt))[:13], 16) / 16**13
    total = 0.0
    for name, fraction in fractions.items():
        total += fraction
        if place < total:
            return name
    return list(fractions)[-1]


def assign_folds(prompt_keys: Iterable[str], folds: int, seed: int) -> dict[str, int]:
    """Assign prompts to folds in seeded order, so that folds hold equally many prompts.

    Args:
        prompt_keys: `litbench.text.prompt_key` of the prompts; repeats do not matter.
        folds: number of folds, from 2 to the number of prompts.
        seed: another seed, other folds.
    """
    distinct = set(prompt_keys)
    if not 2 <= folds <= len(distinct):
        raise ConfigError(f"folds is {folds}: give from 2 to the {len(distinct)} prompts there are")
    ordered = sorted(distinct, key=lambda key: digest("fold", seed, key))
    return {key: place % folds for place, key in enumerate(ordered)}


def connected_prompts(pairs: pa.Table) -> list[str]:
    """Group pairs that must not be separated by folds or splits.

    Two pairs are in one group when they have the same prompt (by `litbench.text.prompt_key`), the
    same `prompt_id` or a story in common, or when a chain of such pairs connects them.

    Args:
        pairs: table by the schema PAIRS.

    Returns:
        Name of each pair's group, in the order of the rows: the first of its prompt keys, so that
        it is the pair's own key where texts and ids agree.
    """
    keys = prompt_keys(pairs)
    stories = [("story", pairs[f"{side}_story_id"].to_pylist()) for side in ("chosen", "rejected")]
    groups = _connected([("prompt", keys), ("id", pairs["prompt_id"].to_pylist()), *stories])
    first = dict(sorted(zip(groups, keys, strict=True), reverse=True))
    return [first[group] for group in groups]


def _connected(columns: Sequence[tuple[str, Sequence[str]]]) -> list[int]:
    """The connected component of each row; columns have a kind and a value for each row.

    Rows are connected that share a value of one kind.
    """
    parents = list(range(len(columns[0][1])))

    def root(row: int) -> int:
        while parents[row] != row:
            parents[row] = row = parents[parents[row]]
        return row

    first: dict[tuple[str, str], int] = {}
    for kind, values in columns:
        for row, value in enumerate(values):
            parents[root(row)] = root(first.setdefault((kind, value), row))
    return [root(row) for row in range(len(parents))]


def group_prompts(prompts: Sequence[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Group prompt_ids that share a normalised text, directly or through others.

    Takes pairs of a prompt_id and its text; returns for each prompt_id the smallest of its texts,
    and the smallest text of its group.
    """
    ids, texts = [name for name, _ in prompts], [text for _, text in prompts]
    groups = _connected([("id", ids), ("prompt", list(map(prompt_key, texts)))])
    of_group = dict(sorted(zip(groups, texts, strict=True), reverse=True))
    rows = sorted(zip(ids, texts, groups, strict=True), reverse=True)
    return {name: (text, of_group[group]) for name, text, group in rows}


def day_start(day: str) -> int:
    """The first second of a day in UTC, such as "2023-01-01", in Unix seconds."""
    try:
        return int(datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
    except ValueError as error:
        raise ConfigError(f"test_from is '{day}': give a day such as 2023-01-01") from error


def date_split(stories: Any, *, test_from: str) -> Any:
    """Split by the time of posting: train before a day, test from it on, and no prompt in both.

    A prompt that was answered before the day is one of train, and its later stories go: test then
    holds only prompts that nobody had answered.

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
        ((joined.first_utc >= start) & joined.created_utc.notnull(), "test"),
        else_=ibis.null("string"),
    )
    return joined.mutate(split=split).drop("first_utc")
