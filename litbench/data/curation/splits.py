"""Splits by prompt, assigned by a hash of the prompt or by the dates of its stories.

Reposts of a prompt share its text, so prompts are compared by their normalised text.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import ibis

from litbench.data.records import connected_rows
from litbench.data.text import digest, prompt_key
from litbench.runs.errors import ConfigError


def split_of(prompt: str, fractions: Mapping[str, float], seed: int) -> str:
    """Assign a prompt to a split, by a hash of its normalised text and the seed.

    `fractions` maps the names of splits to their shares of prompts, which sum to 1.
    """
    uniform = int(digest("split", seed, prompt_key(prompt))[:13], 16) / 16**13
    total = 0.0
    for name, fraction in fractions.items():
        total += fraction
        if uniform < total:
            return name
    return list(fractions)[-1]


def assign_folds(prompt_keys: Iterable[str], folds: int, seed: int) -> dict[str, int]:
    """Assign prompts to folds of equal size (up to one prompt), in seeded order.

    Args:
        prompt_keys: `litbench.data.text.prompt_key` of the prompts; may repeat.
        folds: number of folds, from 2 to the number of prompts.
        seed: seed of the order.
    """
    distinct = set(prompt_keys)
    if not 2 <= folds <= len(distinct):
        raise ConfigError(f"folds is {folds}: give 2 to {len(distinct)}, the number of prompts")
    ordered = sorted(distinct, key=lambda key: digest("fold", seed, key))
    return {key: index % folds for index, key in enumerate(ordered)}


def group_prompts(prompts: Sequence[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Group prompt_ids that share a normalised text, directly or through other prompts.

    Args:
        prompts: tuples of a prompt_id and its text.

    Returns:
        Maps each prompt_id to the smallest of its texts and the smallest text of its group.
    """
    ids, texts = [name for name, _ in prompts], [text for _, text in prompts]
    groups = connected_rows([("id", ids), ("prompt", list(map(prompt_key, texts)))])
    of_group = dict(sorted(zip(groups, texts, strict=True), reverse=True))
    rows = sorted(zip(ids, texts, groups, strict=True), reverse=True)
    return {name: (text, of_group[group]) for name, text, group in rows}


def day_start(day: str) -> int:
    """Return the start of a day in UTC, such as "2023-01-01", in Unix seconds."""
    try:
        return int(datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
    except ValueError as error:
        raise ConfigError(f"test_from is '{day}': give a day such as 2023-01-01") from error


def date_split(stories: Any, *, test_from: str) -> Any:
    """Split by time of posting: train before a day, test from that day on.

    No prompt is in both splits: later stories of a prompt that was answered before the day are in
    neither split, so test has only prompts that nobody had answered.

    Args:
        stories: Ibis table with `prompt_key` and `created_utc`. Pass all stories that were read:
            filtered stories also show when a prompt was first answered.
        test_from: first day of test; stories from 00:00 UTC on are in test.

    Returns:
        `stories` with the column `split`: "train", "test", or null if the time is unknown or the
        story is a late one of a train prompt.
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
