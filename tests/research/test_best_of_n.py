"""Best of n: the curve is what drawing subsets gives, and says nothing that rewards cannot say."""

import itertools
from pathlib import Path

import numpy as np
import pyarrow.csv as pa_csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.data.records import PAIRS, STORIES
from litbench.data.tables import read_table, write_table
from litbench.research.best_of_n import (
    PromptStories,
    best_of_n,
    choice_weights,
    sizes,
)
from litbench.runs.config import build
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import read_manifest

WORDS = ["lantern", "river", "copper", "moth", "window", "ladder", "winter", "kettle", "salt"]


def by_brute_force(rewards, n):
    """The same by every subset; the best of equals is drawn among them."""
    weights = np.zeros(len(rewards))
    subsets = list(itertools.combinations(range(len(rewards)), n))
    for subset in subsets:
        best = max(rewards[list(subset)])
        equal = [index for index in subset if rewards[index] == best]
        weights[equal] += 1 / len(equal) / len(subsets)
    return weights


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=7))
def test_the_weights_are_those_of_every_subset(values):
    rewards = np.array(values, float)
    for n in range(1, len(values) + 1):
        assert choice_weights(rewards, n) == pytest.approx(by_brute_force(rewards, n), abs=1e-12)


def test_the_weights_of_many_stories_do_not_overflow():
    rewards = np.random.default_rng(0).normal(size=2_000)
    for n in (1, 2, 1_000, 1_999, 2_000):
        weights = choice_weights(rewards, n)
        assert weights.sum() == pytest.approx(1)
        assert np.isfinite(weights).all()
    assert choice_weights(rewards, 2_000)[rewards.argmax()] == pytest.approx(1)


def stories(seed=0, prompts=12, count=9):
    """A second rater that agrees up to a point: it dislikes what the first one likes too much."""
    source = np.random.default_rng(seed)
    results = []
    for index in range(prompts):
        rewards = source.normal(size=count)
        second = np.where(rewards > 1, -rewards, rewards)
        results.append(PromptStories(f"p{index}", rewards, np.full(count, 10), second))
    return results


def test_gain_is_expected_maximum_minus_mean():
    prompts, ns = stories(), sizes(9)
    assert ns == [1, 2, 4, 8, 9]
    for item in best_of_n(prompts, ns):
        expected = np.mean(
            [
                np.mean([max(subset) for subset in itertools.combinations(prompt.rewards, item.n)])
                - prompt.rewards.mean()
                for prompt in prompts
            ]
        )
        assert item.gain.mean == pytest.approx(expected)
        assert item.gain.clusters == len(prompts)
        assert item.words.mean == pytest.approx(1)


@pytest.fixture
def choose(load_program, story_table, tmp_path):
    """Run the program on stories of six prompts, five each, with some keys; its counts."""
    program = load_program("eval/best_of_n.py")
    rows = []
    for prompt in range(6):
        for index in range(5):
            length = 4 + (prompt * 7 + index * 3) % 11
            text = " ".join(WORDS[(prompt + index + k) % len(WORDS)] for k in range(length))
            rows.append({"story_id": f"s{prompt}-{index}", "prompt_id": f"p{prompt}", "text": text})
    rows.append({"story_id": "alone", "prompt_id": "p9", "text": "nobody beside it"})
    table = story_table(rows)

    def run(**keys):
        write_table(table, tmp_path / "in.parquet")
        config = build(
            program.Config,
            {"stories": str(tmp_path / "in.parquet"), "out": str(tmp_path / "out"), **keys},
        )
        program.main(config)
        return dict(read_manifest(config.out)["counts"])

    return run


LONGER = {"longer": {"kind": "longer"}}
BOTH = {**LONGER, "shorter": {"kind": "shorter"}}


def choices_in(folder):
    return list(pa_csv.read_csv(folder / "out/best_of_n.csv").to_pylist())


def test_prompts_are_grouped_by_text(load_program, story_table, tmp_path):
    program = load_program("eval/best_of_n.py")
    rows = [
        {"story_id": f"s{k}", "prompt_id": name, "prompt": prompt, "text": "word " * (k + 1)}
        for k, (name, prompt) in enumerate(
            [("one", "[WP] A door."), ("one", "A well"), ("two", "a door!"), ("one", "A well.")]
        )
    ]
    write_table(story_table(rows), tmp_path / "in.parquet")
    keys = {"stories": str(tmp_path / "in.parquet"), "out": str(tmp_path / "out"), "raters": LONGER}
    program.main(build(program.Config, keys))
    ranked = read_table(tmp_path / "out/stories.parquet", STORIES).to_pylist()
    assert {row["story_id"]: row["rank"] for row in ranked} == {"s0": 2, "s2": 1, "s1": 2, "s3": 1}
    pairs = read_table(tmp_path / "out/pairs.parquet", PAIRS).to_pylist()
    assert {(pair["chosen_story_id"], pair["rejected_story_id"]) for pair in pairs} == {
        ("s2", "s0"),
        ("s3", "s1"),
    }
    assert {pair["chosen_source"] for pair in pairs} == {"test"}
    assert read_manifest(tmp_path / "out")["counts"]["prompts"] == 2


def test_a_text_that_is_no_prose_is_never_chosen(
    load_program, story_table, tmp_path, braces_are_code
):
    del braces_are_code
    program = load_program("eval/best_of_n.py")
    texts = ["a b c", "a b", "{a b c d e f}"]
    rows = [
        {"story_id": f"{prompt}{k}", "prompt_id": prompt, "text": text}
        for prompt in "pq"
        for k, text in enumerate(texts)
    ]
    write_table(story_table(rows), tmp_path / "in.parquet")
    keys = {"stories": str(tmp_path / "in.parquet"), "out": str(tmp_path / "out"), "raters": LONGER}
    program.main(build(program.Config, keys))
    ranked = read_table(tmp_path / "out/stories.parquet", STORIES).to_pylist()
    assert [row["rank"] for row in sorted(ranked, key=lambda row: row["story_id"])] == [
        1,
        2,
        None,
    ] * 2
    pairs = read_table(tmp_path / "out/pairs.parquet", PAIRS).to_pylist()
    assert {pair["chosen_story_id"] for pair in pairs} == {"p0", "q0"}
    assert read_manifest(tmp_path / "out")["counts"]["no_prose"] == 2


def test_the_program_keeps_best_and_worst(choose, tmp_path):
    counts = choose(raters=BOTH)
    assert (counts["prompts"], counts["prompts_with_too_few"], counts["pairs"]) == (6, 1, 6)
    pairs = read_table(tmp_path / "out/pairs.parquet", PAIRS).to_pylist()
    ranked = read_table(tmp_path / "out/stories.parquet", STORIES).to_pylist()
    for pair in pairs:
        stories = [row for row in ranked if row["prompt_id"] == pair["prompt_id"]]
        lengths = [row["n_words"] for row in stories]
        assert (pair["chosen_n_words"], pair["rejected_n_words"]) == (max(lengths), min(lengths))
        assert pair["label_source"] == "model"
        assert pair["margin"] is None
        assert min(row["rank"] for row in stories) == 1
        best = next(row for row in stories if row["story_id"] == pair["chosen_story_id"])
        assert best["rank"] == 1
        assert best["second_reward"] == -best["reward"]
    table = choices_in(tmp_path)
    assert [row["n"] for row in table] == [1, 2, 4, 5]
    assert table[-1]["beats_random"] < 0.2
    page = (tmp_path / "out/best_of_n.html").read_text()
    assert "only within a prompt" in page
    assert (tmp_path / "out/best_of_n_gain.svg").read_text().startswith("<?xml")
    assert (tmp_path / "out/best_of_n_gain.png").read_bytes().startswith(b"\x89PNG")
    choose(raters=dict(reversed(BOTH.items())))
    ranked = read_table(tmp_path / "out/stories.parquet", STORIES).to_pylist()
    assert all(row["reward"] == -row["n_words"] for row in ranked), "the first one ranks"


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ({"raters": {}}, ConfigError, "raters is empty"),
        ({"raters": {**BOTH, "c": {"kind": "notes"}}}, ConfigError, "3 entries: give one or two"),
        ({"raters": {"coin": {"kind": "random"}}}, ConfigError, "gives no rewards"),
        ({"raters": {**LONGER, "coin": {"kind": "random"}}}, ConfigError, "benchmark.py"),
        ({"raters": LONGER, "min_stories": 1}, ConfigError, "at least 2"),
        ({"raters": LONGER, "min_stories": 6}, DataError, "no prompt has 6"),
    ],
)
def test_invalid_configs_raise(choose, keys, error, says):
    with pytest.raises(error, match=says):
        choose(**keys)


def test_stories_of_several_generators_are_pooled(load_program, story_table, tmp_path):
    program, paths = load_program("eval/best_of_n.py"), []
    for source in ("small", "large"):
        rows = [
            {"story_id": f"{source}{k}", "source": source, "text": "word " * (k + len(source))}
            for k in range(3)
        ]
        paths.append(str(tmp_path / f"{source}.parquet"))
        write_table(story_table(rows), Path(paths[-1]))
    keys = {"out": str(tmp_path / "out"), "raters": LONGER}
    program.main(build(program.Config, {**keys, "stories": paths}))
    (pair,) = read_table(tmp_path / "out/pairs.parquet", PAIRS).to_pylist()
    assert {pair["chosen_source"], pair["rejected_source"]} <= {"small", "large"}
    assert len(read_table(tmp_path / "out/stories.parquet", STORIES)) == 6
    with pytest.raises(DataError, match="3 rows repeat"):
        program.main(build(program.Config, {**keys, "stories": [paths[0], paths[0]]}))
