"""Splits by prompt: reposts of a prompt share its text, so its normalised text decides."""

from collections.abc import Iterable, Mapping

from litbench.errors import ConfigError
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


def split_prompts(
    prompts: Iterable[str], fractions: Mapping[str, float], seed: int
) -> dict[str, str]:
    """The split of each distinct prompt text."""
    return {prompt: split_of(prompt, fractions, seed) for prompt in set(prompts)}


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
