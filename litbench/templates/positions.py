"""Which story of a pair stands as A."""

from collections.abc import Sequence

from litbench.text import digest


def assign_positions(pair_ids: Sequence[str], seed: int) -> list[bool]:
    """Assign the chosen story to position A or B, at random and exactly balanced.

    Pairs are sorted by a hash of the seed and their id; the chosen story is A in the first half.
    So the order of the rows says nothing, and a model that always answers A gets one half.

    Args:
        pair_ids: distinct names; shape (n,).
        seed: of the hash.

    Returns:
        Whether the chosen story stands as A; shape (n,), true for n / 2 of them, rounded up.
    """
    shuffled = sorted(range(len(pair_ids)), key=lambda place: digest(seed, pair_ids[place]))
    as_a = [False] * len(pair_ids)
    for place in shuffled[: (len(shuffled) + 1) // 2]:
        as_a[place] = True
    return as_a
