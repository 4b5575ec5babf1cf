"""Splits and folds by the prompt's normalised text, and splits by date."""

import json
import shutil
from collections import Counter

import ibis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from litbench.data.curation.splits import (
    assign_folds,
    date_split,
    day_start,
    split_of,
)
from litbench.data.records import PAIRS, connected_prompts
from litbench.data.tables import read_table
from litbench.data.text import prompt_key
from litbench.metrics.leaderboard import leaderboard
from litbench.models.baselines import LengthRater
from litbench.raters.interface import judge_pairs
from litbench.runs.config import build
from litbench.runs.errors import ConfigError, DataError

FRACTIONS = {"train": 0.7, "validation": 0.1, "test": 0.2}
PROMPTS = [f"[WP] Somebody finds door number {n} in the harbour." for n in range(3_000)]


@pytest.mark.parametrize(
    "repost",
    [
        "[WP] The clock strikes thirteen, and nobody looks up.",
        "[EU] The clock strikes thirteen, and nobody looks up.",
        "The clock strikes thirteen and nobody looks up",
        "  [wp]  THE CLOCK\nstrikes thirteen -- and nobody looks up...",
        "[WP][TT] “The clock strikes thirteen, and nobody looks up.”",
    ],
)
def test_a_repost_lands_in_the_split_of_the_original(repost):
    # By chance alone 20 seeds would agree with a probability of (0.7² + 0.1² + 0.2²)^20 = 2e-6.
    for seed in range(20):
        original = split_of(
            "[WP] The clock strikes thirteen, and nobody looks up.", FRACTIONS, seed
        )
        assert split_of(repost, FRACTIONS, seed) == original


def test_splits_hold_about_their_share_of_prompts():
    counts = Counter(split_of(prompt, FRACTIONS, 0) for prompt in PROMPTS)
    assert sum(counts.values()) == len(PROMPTS)
    for name, share in FRACTIONS.items():
        error = (share * (1 - share) / len(PROMPTS)) ** 0.5
        assert abs(counts[name] / len(PROMPTS) - share) < 4 * error, name


keys = st.sets(st.text("abcdef", min_size=1, max_size=5), min_size=2, max_size=40)


@given(keys=keys, folds=st.integers(2, 7), seed=st.integers(0, 5))
def test_folds_divide_the_prompts_evenly(keys, folds, seed):
    folds = min(folds, len(keys))
    assigned = assign_folds(keys, folds, seed)
    sizes = Counter(assigned.values())
    assert set(assigned) == keys
    assert set(sizes) == set(range(folds))
    assert max(sizes.values()) - min(sizes.values()) <= 1


def test_folds_do_not_depend_on_order_or_repeats():
    keys = [prompt_key(prompt) for prompt in PROMPTS[:50]]
    assert assign_folds(keys, 5, 0) == assign_folds([*keys[::-1], *keys[:9]], 5, 0)
    assert assign_folds(keys, 5, 0) != assign_folds(keys, 5, 1)


@pytest.mark.parametrize("folds", [1, 4])
def test_invalid_number_of_folds_is_refused(folds):
    with pytest.raises(ConfigError, match=f"folds is {folds}: give 2 to 3"):
        assign_folds(["a", "b", "c", "c"], folds, 0)


DAY = 1_672_531_200  # 2023-01-01 00:00:00 UTC


def dated(rows, test_from="2023-01-01"):
    """Return the splits of stories given as (prompt_key, created_utc), in order."""
    table = pa.table(
        {
            "story_id": [f"s{index:03d}" for index in range(len(rows))],
            "prompt_key": pa.array([key for key, _ in rows], pa.large_string()),
            "created_utc": pa.array([when for _, when in rows], pa.int64()),
        }
    )
    made = date_split(ibis.memtable(table), test_from=test_from)
    result = made.order_by("story_id").to_pyarrow()
    assert result["story_id"].to_pylist() == table["story_id"].to_pylist()
    return result["split"].to_pylist()


times = st.one_of(st.none(), st.integers(DAY - 3, DAY + 3))


@settings(max_examples=15)
@given(st.lists(st.tuples(st.sampled_from("pqrs"), times), min_size=1, max_size=25))
def test_date_split_puts_new_prompts_into_test(rows):
    old = {key for key, when in rows if when is not None and when < DAY}
    for (key, when), split in zip(rows, dated(rows), strict=True):
        if when is None:
            assert split is None
        elif when < DAY:
            assert split == "train"
        else:
            assert split == (None if key in old else "test")


@pytest.mark.parametrize("day", ["2023-13-01", "soon"])
def test_a_date_that_is_none_is_refused(day):
    with pytest.raises(ConfigError, match=f"test_from is '{day}': give a day"):
        day_start(day)


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# Numbers of prompt text, prompt_id and both stories of each pair.
EDGES = st.lists(
    st.tuples(*(st.integers(0, 7) for _ in range(4))).filter(lambda row: row[2] != row[3]),
    min_size=1,
    max_size=20,
    unique_by=lambda row: frozenset(row[2:]),
)


def components(columns):
    """Connected components of rows that share a value in any group of columns, by SciPy."""
    links = np.zeros((len(columns[0]), len(columns[0])))
    for column in columns:
        links += [[bool(item & other) for other in column] for item in column]
    return connected_components(csr_array(links))[1]


def check_folds_and_clusters(pairs):
    """Connected pairs are in one fold and count as one prompt."""
    sides = ("chosen_story_id", "rejected_story_id")
    stories = map(set, zip(*(pairs[name].to_pylist() for name in sides), strict=True))
    ids, prompts = pairs["prompt_id"].to_pylist(), pairs["prompt"].to_pylist()
    expected = components(
        [list(stories), [{name} for name in ids], [{prompt_key(text)} for text in prompts]]
    )
    groups = connected_prompts(pairs)
    assert len(set(groups)) == len(set(zip(groups, expected, strict=True))) == max(expected) + 1
    if len(set(groups)) > 1:
        fold_of = assign_folds(groups, 2, 0)
        folds = np.array([fold_of[group] for group in groups])
        assert all(len(set(folds[expected == group])) == 1 for group in expected)
    (row,) = leaderboard(judge_pairs(LengthRater("longer", "longer", 1), pairs), pairs, "longer")
    assert row.agreement.clusters == len(set(expected))


@settings(max_examples=40)
@given(EDGES)
def test_connected_pairs_are_one_prompt(pair_table, edges):
    names = ("prompt", "prompt_id", "chosen_story_id", "rejected_story_id")
    check_folds_and_clusters(
        pair_table([dict(zip(names, map(str, numbers), strict=True)) for numbers in edges])
    )


@pytest.mark.parametrize("form", ["texts", "links", "ratings"])
@settings(max_examples=15)
@given(edges=EDGES, tags=st.tuples(*(st.sampled_from(["", "[WP] "]) for _ in range(8))))
def test_imports_never_merge_prompts(load_program, tmp_path, form, edges, tags):
    """Two prompts under one id are refused; ids that share a prompt are one prompt."""
    pairs, stories = [], {}
    for other, name, *of_sides in edges:
        # Seven of eight ids have the prompt that belongs to them.
        prompt = {
            "prompt_id": f"p{name}",
            "prompt": f"{tags[name]}{'abc'[(name + other // 7) % 3]}",
        }
        ids = [f"s{story}" for story in of_sides]
        pairs.append(prompt | dict(zip(("chosen_story_id", "rejected_story_id"), ids, strict=True)))
        pairs[-1] |= dict(zip(("chosen", "rejected"), ids, strict=True))
        for story in ids:
            stories.setdefault(story, {"story_id": story, "text": story} | prompt)
    rows = pairs if form == "texts" else list(stories.values())
    program = load_program(f"data_prep/import_{'ratings' if form == 'ratings' else 'pairs'}.py")
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    keys = {"out": tmp_path / "out"}
    if form != "texts":
        keys["stories"] = str(write_jsonl(tmp_path / "stories.jsonl", rows))
    if form == "ratings":
        ratings = [
            {"story_id": name, "who": k, "plot": k * int(name[1:])}
            for name in stories
            for k in (1, 2)
        ]
        table = str(write_jsonl(tmp_path / "ratings.jsonl", ratings))
        keys["people"] = {"table": table, "rater": "who", "values": ["plot"]}
    else:
        keys["pairs"] = str(write_jsonl(tmp_path / "pairs.jsonl", pairs))
    texts = {(row["prompt_id"], prompt_key(row["prompt"])) for row in rows}
    if len(texts) > len({name for name, _ in texts}):
        with pytest.raises(DataError, match="prompt_ids have several prompts"):
            program.main(build(program.Config, keys))
        return
    try:
        program.main(build(program.Config, keys))
    except DataError as error:
        assume("no prompt has two stories" not in str(error))
        assume("no pair could be made" not in str(error))
        raise
    check_folds_and_clusters(read_table(keys["out"] / "pairs.parquet", PAIRS))
