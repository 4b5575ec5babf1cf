"""Pairs within a prompt, compared with a double loop in Python: gap, later story, caps."""

import hashlib
from fractions import Fraction
from itertools import permutations

import ibis
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.data.curation import filters, pairing
from litbench.data.records import pair_id

QUICK = settings(max_examples=12)


def with_split(stories, splits=None):
    return stories.append_column("split", pa.array(splits or ["all"] * stories.num_rows))


def pairs_of(stories, splits=None, *, min_gap=0.25, chosen_later=True):
    """Return the rows of the pairs that pass all rules."""
    candidates = pairing.within_prompt(ibis.memtable(with_split(stories, splits)))
    rules = pairing.pair_rules(candidates, min_gap=min_gap, chosen_later=chosen_later)
    marked = candidates.mutate(removed_by=filters.removed_by(rules)).to_pyarrow().to_pylist()
    return [row for row in marked if row["removed_by"] is None]


def sides(pairs):
    return sorted((row["chosen_story_id"], row["rejected_story_id"]) for row in pairs)


def loop_over_stories(rows, *, min_gap, chosen_later):
    """Return the pairs by the rules of the paper, in a double loop."""
    results = []
    for a, b in permutations(rows, 2):
        if a["prompt_id"] != b["prompt_id"] or a["split"] != b["split"]:
            continue
        if a["score"] is None or b["score"] is None or a["score"] <= b["score"]:
            continue
        gap = Fraction(str(min_gap)) if min_gap is not None else None
        larger = max(abs(a["score"]), abs(b["score"]))
        if gap is not None and a["score"] - b["score"] < gap * larger:
            continue
        if chosen_later:
            times = (a["created_utc"], b["created_utc"])
            if None in times or times[0] <= times[1]:
                continue
        results.append((a["story_id"], b["story_id"]))
    return sorted(results)


@QUICK
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "prompt_id": st.sampled_from(["p0", "p1", "p2"]),
                "split": st.sampled_from(["train", "test"]),
                "score": st.one_of(st.none(), st.integers(-6, 40)),
                "created_utc": st.one_of(st.none(), st.integers(0, 6)),
            }
        ),
        min_size=1,
        max_size=24,
    ),
    min_gap=st.sampled_from([None, 0.0, 0.1, 0.25, 0.3, 0.9]),
    chosen_later=st.booleans(),
)
def test_pairs_are_those_of_a_double_loop(story_table, rows, min_gap, chosen_later):
    rows = [{**row, "story_id": f"s{index}"} for index, row in enumerate(rows)]
    options = {"min_gap": min_gap, "chosen_later": chosen_later}
    result = pairs_of(story_table(rows), [row["split"] for row in rows], **options)
    assert sides(result) == loop_over_stories(rows, **options)
    by_name = {row["story_id"]: row for row in rows}
    for pair in result:
        for side in ("chosen", "rejected"):
            story = by_name[pair[f"{side}_story_id"]]
            assert pair[f"{side}_score"] == story["score"]
            assert pair[f"{side}_created_utc"] == story["created_utc"]
        assert pair["pair_id"] == pair_id(pair["chosen_story_id"], pair["rejected_story_id"])


@pytest.mark.parametrize(
    ("low", "high", "passes"),
    [
        (10, 13, False),  # 3 < 0.25 * 13 = 3.25
        (10, 14, True),  # 4 >= 0.25 * 14 = 3.5
        (12, 16, True),  # 4 = 0.25 * 16
        (13, 17, False),  # 4 < 0.25 * 17 = 4.25
        (750_000, 1_000_000, True),
        (750_001, 1_000_000, False),
        (0, 1, True),
        (-5, 0, True),  # a quarter of nothing is nothing
        (-2, -1, True),
        (-1, 3, True),
    ],
)
def test_the_gap_is_a_share_of_the_chosen_score(story_table, low, high, passes):
    stories = story_table([{"score": low, "created_utc": 1}, {"score": high, "created_utc": 2}])
    assert bool(pairs_of(stories)) is passes


@pytest.mark.parametrize(
    ("share", "chosen", "lead"), [(0.07, 100, 7), (0.14, 50, 7), (0.28, 25, 7), (0.55, 100, 55)]
)
def test_gap_of_exactly_the_share_passes(story_table, share, chosen, lead):
    assert share * chosen > lead
    scores = (chosen - lead, chosen - lead + 1, chosen)
    stories = story_table([{"score": score, "created_utc": score} for score in scores])
    assert ("s0002", "s0000") in sides(pairs_of(stories, min_gap=share))
    assert ("s0002", "s0001") not in sides(pairs_of(stories, min_gap=share))


def draw(seed, name):
    return hashlib.md5(f"{seed}|{name}".encode(), usedforsecurity=False).hexdigest()


def crowd(story_table, sizes):
    """Return a prompt per size, with that many stories of different scores."""
    return story_table(
        [
            {"prompt_id": f"p{index}", "score": score, "created_utc": score}
            for index, size in enumerate(sizes)
            for score in range(size)
        ]
    )


def test_the_cap_keeps_the_first_draws_of_each_prompt(story_table):
    stories = crowd(story_table, [60, 9, 2, 1])
    candidates = pairing.within_prompt(ibis.memtable(with_split(stories)))
    rows = candidates.to_pyarrow().to_pylist()
    for most in (1, 30, 36, 5_000):
        expected, first = [], {}
        for row in sorted(rows, key=lambda row: draw("cap|7", row["pair_id"])):
            first.setdefault(row["prompt_id"], []).append(row)
        for pairs in first.values():
            expected += pairs[:most]
        limits = pairing.draw_limits(candidates, most, 7)
        near = pairing.within_limits(candidates, limits, 7)
        capped = near.filter(~pairing.over_cap(near, most, 7)).to_pyarrow().to_pylist()
        assert sides(capped) == sides(expected)
        # 1,770 pairs of the largest prompt, 7 for each of 256 starts.
        assert near.count().to_pyarrow().as_py() <= len(capped) + 20
        # With the same hash for both, symmetry would prefer the capped pairs of large prompts.
        if most == 30:
            mean = sum(int(draw(7, row["pair_id"])[:8], 16) for row in capped) / len(capped) / 2**32
            # Uniform draws have mean 1/2 and standard error sqrt(1/12/n).
            assert abs(mean - 0.5) < 4 / (12 * len(capped)) ** 0.5


def test_scores_at_the_limits_do_not_overflow(story_table):
    rows = [{"score": score, "created_utc": score} for score in (-(2**63), 2**63 - 1)]
    (pair,) = pairs_of(story_table(rows))
    assert pair["chosen_score"] == 2**63 - 1
