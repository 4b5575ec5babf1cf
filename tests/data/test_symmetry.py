"""Length symmetry: mirrored buckets hold equal numbers, and no pair is pruned without need."""

import hashlib
from collections import Counter
from fractions import Fraction

import ibis
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.data.curation import pairing
from litbench.data.records import pair_id


def pairs_by_length(lengths, split="all"):
    """Pairs from (words of chosen, words of rejected), with whatever else symmetry reads."""
    splits = [split] * len(lengths) if isinstance(split, str) else split
    return pa.table(
        {
            "pair_id": [pair_id(f"c{index}", f"r{index}") for index in range(len(lengths))],
            "split": splits,
            "chosen_n_words": pa.array([chosen for chosen, _ in lengths], pa.int64()),
            "rejected_n_words": pa.array([rejected for _, rejected in lengths], pa.int64()),
        }
    )


def balanced(pairs, buckets=100, seed=0):
    marked = pairing.breaks_symmetry(ibis.memtable(pairs), buckets, seed).to_pyarrow()
    assert set(marked.column_names) == {*pairs.column_names, "removed"}
    assert sorted(marked["pair_id"].to_pylist()) == sorted(pairs["pair_id"].to_pylist())
    return [row for row in marked.to_pylist() if not row["removed"]]


def difference(row):
    return row["chosen_n_words"] - row["rejected_n_words"]


def cells(rows, every_row, buckets):
    """(split, mirrored bucket) of every row, from edges at i * widest / (buckets / 2)."""
    half = buckets // 2
    widest = {}
    for row in every_row:
        widest[row["split"]] = max(widest.get(row["split"], 0), abs(difference(row)))
    edges = {
        split: [Fraction(i * wide, half) for i in range(half)] for split, wide in widest.items()
    }
    return [
        (row["split"], max(i for i, edge in enumerate(edges[row["split"]]) if edge <= size))
        if (size := abs(difference(row)))
        else (row["split"], 0)
        for row in rows
    ]


def md5(text):
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def prune_in_plain_python(rows, buckets, seed):
    """Ids of the pairs that stay: of both signs of a bucket the same number, by seeded draw."""
    places = cells(rows, rows, buckets)
    stay = {row["pair_id"] for row in rows if difference(row) == 0}
    for position in set(places):
        here = [row for row, other in zip(rows, places, strict=True) if other == position]
        signs = [[r for r in here if difference(r) * sign > 0] for sign in (1, -1)]
        fewer = min(map(len, signs))
        for item in signs:
            drawn = [row["pair_id"] for row in item]
            drawn.sort(key=lambda name: md5(f"{seed}|{name}"))
            stay.update(drawn[:fewer])
    return stay


length = st.integers(1, 60)


@settings(max_examples=15)
@given(
    rows=st.lists(
        st.tuples(length, length, st.sampled_from(["train", "test"])), min_size=1, max_size=60
    ),
    buckets=st.sampled_from([2, 4, 10, 100]),
    seed=st.integers(0, 3),
)
def test_what_stays_is_the_largest_balanced_subset(rows, buckets, seed):
    pairs = pairs_by_length([row[:2] for row in rows], [row[2] for row in rows])
    remaining = balanced(pairs, buckets, seed)
    every = pairs.to_pylist()
    assert {row["pair_id"] for row in remaining} == prune_in_plain_python(every, buckets, seed)

    def count(rows):
        signs = [(d > 0) - (d < 0) for d in map(difference, rows)]
        return Counter(zip(cells(rows, every, buckets), signs, strict=True))

    before, after = count(every), count(remaining)
    for cell, sign in before:
        if sign == 0:
            assert after[cell, 0] == before[cell, 0]
        else:
            assert after[cell, sign] == min(before[cell, 1], before[cell, -1])
