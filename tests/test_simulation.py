"""Simulated readers and worlds: seeds are reproducible and parameters have their effects."""

import hashlib
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from litbench import records
from litbench.config import build, read_yaml
from litbench.curation.invented_texts import styles_of
from litbench.curation.simulation import (
    ReaderSimulation,
    World,
    changed_world,
    simulate_world,
    stories_table,
)
from litbench.errors import ConfigError
from litbench.models.features import feature_matrix
from litbench.tables import check_parquet, write_table
from litbench.text import count_words, prompt_key

ROOT = Path(__file__).parents[1]
PROMPTS, STORIES = 150, 12
COUNT = PROMPTS * STORIES


def agreement(score, value):
    """Return the share of pairs within a prompt whose higher score has the higher value."""
    right = unequal = 0
    for start in range(0, COUNT, STORIES):
        s, v = score[start : start + STORIES], value[start : start + STORIES]
        product = np.sign(s[:, None] - s[None, :]) * np.sign(v[:, None] - v[None, :])
        right += int((product > 0).sum())
        unequal += int((product != 0).sum())
    return right / unequal


# A world of as many stories as above, all of whose biases are off.
OFF = {
    "quality_weight": 0.0,
    "length_weight": 0.0,
    "fame_weight": 0.0,
    "decay_hours": math.inf,
    "growth_hours": 0.0,
    "fade_hours": math.inf,
    "ranking": 0.0,
    "noise": 0.0,
    "luck": 0.0,
    "down": 0.0,
    "audience_spread": 0.0,
}
READER_KEYS = set(ReaderSimulation.__dataclass_fields__) - {"seed"}


@cache
def _simulated(changes):
    changes = dict(changes)
    readers = {key: value for key, value in changes.items() if key in READER_KEYS}
    stories = {key: value for key, value in changes.items() if key not in READER_KEYS}
    base = {"seed": 5, "prompts": PROMPTS, "stories_per_prompt": STORIES}
    return simulate_world(World(**(base | stories), readers=ReaderSimulation(**readers)))


def simulated(*knobs, **changes):
    """Return a world with the given parameters; later ones win."""
    merged = {key: value for part in (*knobs, changes) for key, value in part.items()}
    return _simulated(tuple(sorted(merged.items())))


def test_a_seed_of_the_readers_changes_readers_only():
    world = simulated().world
    other = simulate_world(replace(world, readers=replace(world.readers, seed=9)))
    for name in ("prompt", "quality", "n_words", "author"):
        assert getattr(other, name).tolist() == getattr(simulated(), name).tolist()
    assert other.votes.created_utc.tolist() == simulated().votes.created_utc.tolist()
    assert other.votes.score.tolist() != simulated().votes.score.tolist()
    assert simulated(seed=6).quality.tolist() != simulated().quality.tolist()


# A knob's value that switches it off, one that does not, and a change that only it lets through.
SWITCHES = [
    ({"quality_weight": 0.0}, {"quality_weight": 0.7}, {"author_quality": 0.9}),
    ({"length_weight": 0.0}, {"length_weight": 0.35}, {"quality_length": 0.8}),
    ({"fame_weight": 0.0}, {"fame_weight": 0.5}, {"fame_quality": 0.8}),
    ({"ranking": 0.0}, {"ranking": 0.7}, {"steps": 5}),
    ({"decay_hours": math.inf}, {"decay_hours": 9.0}, {"delay_hours": 2.0}),
    ({"decay_hours": math.inf}, {"decay_hours": 9.0}, {"growth_hours": 3.0, "fade_hours": 4.0}),
    ({"decay_hours": math.inf}, {"decay_hours": 9.0}, {"quality_delay": 0.7}),
    ({"stories_spread": 0.0}, {"stories_spread": 0.5}, {"stories_audience": 0.9}),
]


@pytest.mark.parametrize(("off", "on", "change"), SWITCHES)
def test_a_bias_that_is_off_has_no_effect_at_all(off, on, change):
    for name in ("score", "readers"):
        without = [getattr(simulated(off, c).votes, name).tolist() for c in ({}, change)]
        assert without[0] == without[1]
    changed = [simulated(on, c).votes.score.tolist() for c in ({}, change)]
    assert changed[0] != changed[1]


@pytest.mark.parametrize("ranking", [0.0, 1.0])
def test_where_only_quality_counts_the_votes_follow_it(ranking):
    drawn = simulated(OFF, quality_weight=1.0, base=-1.0, audience=1e6, ranking=ranking)
    assert agreement(drawn.votes.score, drawn.quality) > 0.98


@pytest.mark.parametrize(
    ("decay", "growth", "fade"), [(9.0, 0.0, 4.0), (9.0, 2.0, math.inf), (9.0, 30.0, 4.0)]
)
def test_number_of_readers_follows_the_arrival_rate(decay, growth, fade):
    times = np.linspace(0, 400, 400_001)
    rate = np.exp(-times / decay) * (1 - np.exp(-times / growth) if growth else 1)
    seen = np.exp(-times / fade)
    expected = np.trapezoid(rate * seen) / np.trapezoid(rate)
    knobs = {"decay_hours": decay, "growth_hours": growth, "fade_hours": fade, "delay_hours": 0}
    drawn = simulated(OFF, knobs, audience=1_000.0)
    error = math.sqrt(expected / COUNT / 1_000)
    assert abs(drawn.votes.readers.mean() / 1_000 - expected) < 5 * error
    # In steps as at once, with places that hardly matter.
    stepped = simulated(OFF, knobs, audience=1_000.0, ranking=1e-9)
    assert abs(stepped.votes.readers.mean() / 1_000 - expected) < 5 * error


def test_ranking_favours_leading_stories():
    even, ranked = (simulated(OFF, decay_hours=14.0, ranking=r) for r in (0.0, 1.0))
    top = [
        np.mean(
            (world.votes.readers.reshape(PROMPTS, STORIES) / world.votes.readers.mean()).max(axis=1)
        )
        for world in (even, ranked)
    ]
    assert top[1] > 1.5 * top[0]
    assert ranked.votes.readers.mean() < even.votes.readers.mean()
    first = np.arange(1, STORIES + 1) ** -1.0
    everything = simulated(OFF, ranking=1.0, audience=10_000.0)
    met = everything.votes.readers.reshape(PROMPTS, STORIES).sum(axis=1)
    # Every reader looks through all places once, whoever stands in them.
    assert np.allclose(met / 10_000, first.sum(), rtol=0.05)


def test_correlations_are_those_asked_for():
    knobs = {"prompts": 2_000, "stories_per_prompt": 10.0, "authors": 500}
    drawn = simulated(knobs, quality_length=0.5, quality_delay=-0.6, author_quality=0.4)
    delay = drawn.votes.created_utc - np.array(simulated(knobs, delay_hours=0.0).votes.created_utc)
    ranks = delay.argsort().argsort() / len(delay)
    assert abs(drawn.quality.mean()) < 0.1
    assert 0.93 < drawn.quality.std() < 1.07
    assert 0.47 < np.corrcoef(drawn.quality, np.log(drawn.n_words))[0, 1] < 0.53
    # Of ranks it is 6 / pi * asin(r / 2) for each and so a little less.
    assert -0.62 < np.corrcoef(drawn.quality, ranks)[0, 1] < -0.52
    assert abs(np.median(drawn.n_words) / drawn.world.median_words - 1) < 0.05
    assert abs(delay.mean() / 3_600 / drawn.world.readers.delay_hours - 1) < 0.3
    counts = np.bincount(drawn.author)
    means = np.bincount(drawn.author, drawn.quality) / np.maximum(counts, 1)
    assert 0.33 < np.var(means[counts > 0]) < 0.53


def test_busy_prompts_have_more_stories():
    world = {"prompts": 4_000, "stories_per_prompt": 6.5}
    same = simulated(world)
    assert set(np.bincount(same.prompt)) == {6, 7}
    spread = simulated(world, OFF, stories_spread=0.6, stories_audience=0.8, audience_spread=1.0)
    counts = np.bincount(spread.prompt, minlength=4_000)
    assert counts.min() >= 1
    assert 6.2 < counts.mean() < 6.8
    mean_readers = np.bincount(spread.prompt, spread.votes.readers) / counts
    assert np.corrcoef(np.log(counts), np.log1p(mean_readers))[0, 1] > 0.65


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"readers.rankin": 1}, "here: .*'readers.ranking'"),
        ({"prompts": 0}, "here: key 'prompts' is 0"),
        ({"quality_delay": math.nan}, "quality_delay"),
        ({"readers.decay_hours": 0.0}, "readers.decay_hours"),
        ({"readers.base": math.inf}, "readers.base"),
    ],
)
def test_values_that_make_no_sense_are_named(changes, said):
    with pytest.raises(ConfigError, match=said):
        changed_world(World(), changes, "here")


TEXT_WORLD = {"prompts": 100, "median_words": 130.0, "words_spread": 0.9}


def test_texts_have_exactly_n_words(tmp_path):
    drawn = simulated(TEXT_WORLD)
    table = stories_table(drawn)
    assert count_words(table["text"]).to_pylist() == table["n_words"].to_pylist()
    assert table["n_words"].to_pylist() == drawn.n_words.tolist()
    assert table.column_names == [*records.STORIES.arrow().names, "quality", "readers"]
    write_table(table, tmp_path / "stories.parquet")
    check_parquet(tmp_path / "stories.parquet", records.STORIES)
    assert table.equals(stories_table(drawn))
    prompts = set(table["prompt"].to_pylist())
    assert len({prompt_key(prompt) for prompt in prompts}) == len(prompts) == 100
    named = stories_table(drawn, texts=False)
    assert pc.count_distinct(named["text"]).as_py() == len(drawn.prompt)
    for name in (*records.STORIES.arrow().names, "quality", "readers"):
        if name not in ("prompt", "text"):
            assert named[name].equals(table[name])


def test_styles_tell_the_share_of_quality_asked_for():
    quality = np.random.default_rng(1).standard_normal(40_000)
    for share in (0.0, 0.3, 0.8):
        styles = styles_of(quality, share, np.random.default_rng(2))
        told = styles @ np.linalg.lstsq(styles, quality, rcond=None)[0]
        assert abs(np.var(told) - share) < 0.02


def told_by_features(style):
    """Return the held-out agreement on random pairs of a linear model of surface features."""
    drawn = simulated(TEXT_WORLD, style=style, prompts=100)
    table = stories_table(drawn)
    features = feature_matrix(table["prompt"].to_pylist(), table["text"].to_pylist())
    features = (features - features.mean(0)) / np.maximum(features.std(0), 1e-9)
    half = len(features) // 2
    weights = np.linalg.solve(
        features[:half].T @ features[:half] + 10 * np.eye(features.shape[1]),
        features[:half].T @ drawn.quality[:half],
    )
    told = np.corrcoef(features[half:] @ weights, drawn.quality[half:])[0, 1]
    return 0.5 + math.asin(told) / math.pi


def test_features_learn_some_of_the_quality_and_never_all():
    assert 0.62 < told_by_features(0.6) < 0.80
    assert 0.43 < told_by_features(0.0) < 0.57


def test_make_pairs_reads_simulated_stories(load_program, tmp_path, capsys):
    simulate, make_pairs = (
        load_program(f"data_prep/{name}.py") for name in ("simulate_stories", "make_pairs")
    )
    world = World(prompts=60, median_words=150.0)
    for folder, texts in (("a", True), ("b", True), ("c", False)):
        simulate.main(simulate.Config(out=tmp_path / folder, world=world, texts=texts))
    # A fading that is off is infinite, for which JSON has no number.
    written = (tmp_path / "a" / "manifest.json").read_text()
    readers = json.loads(written, parse_constant=pytest.fail)["config"]["world"]["readers"]
    assert readers["fade_hours"] == "inf"
    assert build(ReaderSimulation, readers) == world.readers
    first, second = (tmp_path / folder / "stories.parquet" for folder in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    capsys.readouterr()
    simulate.main(simulate.Config(out=tmp_path / "a", world=world))
    assert capsys.readouterr().out.startswith("unchanged")
    pairs = {}
    for folder in ("a", "c"):
        config = make_pairs.Config(
            stories=tmp_path / folder / "stories.parquet",
            out=tmp_path / folder / "pairs",
            label_source="planted",
        )
        make_pairs.main(config)
        pairs[folder] = pq.read_table(config.out / "pairs.parquet")
    assert pairs["a"].num_rows > 20
    assert pairs["a"].column_names == records.PAIRS.arrow().names
    assert pairs["a"]["pair_id"].equals(pairs["c"]["pair_id"])


def test_a_world_keeps_its_stories():
    keys = read_yaml(ROOT / "configs/data/simulated_stories.yaml")["world"] | {"prompts": 40}
    table = stories_table(simulate_world(build(World, keys)))
    columns = ["story_id", "prompt", "text", "score", "created_utc", "author"]
    text = json.dumps(table.select(columns).to_pylist())
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "208ebffeac293f35e7df38af39f1c8d28813fe65d90a76a84b2075b7c5ca17e2"
    )
