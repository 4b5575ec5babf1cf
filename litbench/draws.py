"""Amounts of training pairs: how many, which ones, and that only the study sets the seed."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from litbench.errors import ConfigError
from litbench.records import prompt_keys
from litbench.text import digest


def seeded_key(options: Mapping[str, Any], where: str) -> str | None:
    """The key that sets a seed, in an entry or in its members; None where there is none."""
    for key, value in options.items():
        if key == "seed":
            return f"{where}.seed"
        inner = seeded_key(value, f"{where}.{key}") if isinstance(value, Mapping) else None
        if inner is not None:
            return inner
    return None


def check_unseeded(options: Mapping[str, Any], where: str) -> None:
    """Check that an entry leaves the seed of its training to the study.

    Raises:
        ConfigError: it sets one, or one of its members does.
    """
    seeded = seeded_key(options, where)
    if seeded is not None:
        raise ConfigError(
            f"{seeded} is given, so that all trainings would have one seed: leave it out, the "
            "study's own key seeds tells them apart"
        )


def check_seeds(seeds: list[int], least: int = 1) -> None:
    """Check the seeds of a study.

    Args:
        seeds: as given.
        least: how many there must be; 2 where intervals are over seeds.

    Raises:
        ConfigError: fewer, one twice, or one below 0.
    """
    if len(seeds) < least or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        said = f"{least} or more whole numbers" if least > 1 else "whole numbers"
        raise ConfigError(f"seeds is {seeds}: give {said} from 0, each once")


def count_pairs(amount: float, total: int, where: str) -> int:
    """How many of `total` pairs an amount stands for; a share is rounded, to at least 2."""
    if isinstance(amount, float) and 0 < amount <= 1:
        if total < 2:
            raise ConfigError(f"{where}: there is 1 pair to train on: give at least 2")
        return max(2, round(amount * total))
    if not (isinstance(amount, int) and amount >= 2):
        raise ConfigError(
            f"{where}: pairs_used has {amount!r}: give shares above 0 and up to 1.0, or whole "
            "numbers of pairs from 2"
        )
    if amount > total:
        raise ConfigError(
            f"{where}: pairs_used has {amount:,}, and there are {total:,} pairs to train on: give "
            "at most that many, or 1.0 for all"
        )
    return amount


def draw_order(train: pa.Table, seed: int) -> list[int]:
    """The rows in the order in which amounts take them: by a hash of the prompt, then the pair."""
    keys = [
        (digest("scaling", seed, key), digest("scaling", seed, pair_id))
        for key, pair_id in zip(prompt_keys(train), train["pair_id"].to_pylist(), strict=True)
    ]
    return sorted(range(len(keys)), key=keys.__getitem__)
