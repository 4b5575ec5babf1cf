"""Simulations: worlds and their readers, what raters learn, intervals over seeds, the program."""

import math
from pathlib import Path

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from litbench.config import build, read_yaml
from litbench.errors import ConfigError, DataError
from litbench.experiments import simulation
from litbench.experiments.simulation import (
    MEASURES,
    TRUTH,
    World,
    observe,
    simulate_world,
    summarise,
    within_prompts,
)
from litbench.models.linear_preference import logistic
from litbench.records import STORIES
from litbench.tables import check_parquet, write_table

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def program(load_program):
    return load_program("eval/simulate.py")


def small(program, out, **changes):
    keys = {
        "out": out,
        "base": {"prompts": 50},
        "distractors": 2,
        "variants": {
            "full": {},
            "naive": {"chosen_later": False, "symmetry_buckets": None},
        },
        "worlds": {"plain": {}},
        "seeds": [1, 2],
        "reference": "naive",
    }
    return build(program.Config, {**keys, **changes})


# Worlds and readers ---------------------------------------------------------------------------


OFF = {"quality_weight": 0.0, "length_weight": 0.0, "decay_hours": math.inf, "noise": 0.0}


def simulated(seed=5, **changes):
    return simulate_world(World(**{"prompts": 150, "stories_per_prompt": 12.0, **changes}), seed)


@pytest.mark.parametrize(
    ("off", "on", "change"),
    [
        ({"length_weight": 0.0}, {"length_weight": 0.35}, {"quality_length": 0.8}),
        ({"decay_hours": math.inf}, {"decay_hours": 9.0}, {"delay_hours": 2.0}),
    ],
)
def test_a_bias_that_is_off_has_no_effect_at_all(off, on, change):
    def scores(knobs):
        return [simulated(**knobs, **more).table["score"].to_pylist() for more in ({}, change)]

    one, other = scores(off)
    assert one == other
    one, other = scores(on)
    assert one != other


def test_where_only_quality_counts_the_votes_follow_it():
    drawn = simulated(**{**OFF, "quality_weight": 1.0, "audience": 1e8})
    # Readers and luck differ, the share of upvotes does not.
    first, second = within_prompts(drawn.prompt).T
    even = simulated(**{**OFF, "audience": 1e8}).table["score"].to_numpy()
    share = drawn.table["score"].to_numpy() / even
    right = np.sign(share[first] - share[second]) == np.sign(
        drawn.quality[first] - drawn.quality[second]
    )
    assert right.mean() > 0.98


def test_later_stories_have_fewer_readers_by_the_decay():
    knobs = {**OFF, "audience": 1e5, "delay_hours": 6.0, "prompts": 600}
    for decay in (6.0, 18.0):
        late, never = (simulated(**{**knobs, "decay_hours": of}) for of in (decay, math.inf))
        share = late.table["score"].to_numpy() / never.table["score"].to_numpy()
        # The mean of exp(-t / decay) over exponential delays.
        assert share.mean() == pytest.approx(decay / (decay + 6.0), rel=0.05)


def test_a_world_has_the_shape_asked_for(tmp_path):
    drawn = simulated(prompts=2_000, stories_per_prompt=6.5, quality_length=0.5)
    assert set(np.bincount(drawn.prompt)) == {6, 7}
    assert abs(drawn.quality.mean()) < 0.1
    assert 0.93 < drawn.quality.std() < 1.07
    assert 0.47 < np.corrcoef(drawn.quality, np.log(drawn.n_words))[0, 1] < 0.53
    assert abs(np.median(drawn.n_words) / 420 - 1) < 0.05
    counts = np.bincount(drawn.author)
    means = np.bincount(drawn.author, drawn.quality) / np.maximum(counts, 1)
    # The author's share of the variance, and a seventh of the rest.
    assert 0.33 < np.var(means[counts > 0]) < 0.53
    write_table(drawn.table, tmp_path / "stories.parquet")
    check_parquet(tmp_path / "stories.parquet", STORIES)
    assert simulated(seed=6).quality.tolist() != simulated().quality.tolist()


# What raters learn ----------------------------------------------------------------------------


def test_pairs_within_prompts_are_all_there_once():
    prompt = np.array([3, 1, 3, 2, 3, 1])
    assert sorted(map(tuple, within_prompts(prompt))) == [(0, 2), (0, 4), (1, 5), (2, 4)]
    assert within_prompts(np.array([1, 2, 3])).shape == (0, 2)


def test_the_penalty_is_one_of_the_sum_over_pairs():
    random = np.random.default_rng(1)
    differences = random.normal([0.8, 0, -0.3, 0], size=(200, 4))
    weights = logistic(differences, np.ones(200, dtype=bool), 1.0)
    wrong = 1 / (1 + np.exp(differences @ weights))
    # The slope of what is minimised.
    assert weights - differences.T @ wrong == pytest.approx(np.zeros(4), abs=1e-3)


def test_a_rater_observes_length_signs_and_distractors(program, tmp_path):
    config = small(program, tmp_path, distractors=3)
    stories = simulate_world(World(prompts=600), 2)
    features = observe(stories, config, 1)
    assert features.shape == (len(stories.quality), 10)
    told = np.corrcoef(np.column_stack([stories.quality, np.log(stories.n_words), features]).T)
    assert told[1, 2] > 0.99, "length is observed without noise"
    assert np.abs(told[0, 3:9] - 1 / math.sqrt(5)).max() < 0.03
    assert np.abs(told[:2, 9:]).max() < 0.06


def rows_of(gain, seeds=(1, 2, 3), **changes):
    """A study of one world, in which seeds differ by 0.01 and what is gained by 0.001."""
    return [
        {
            "world": "w",
            "seed": seed,
            "variant": variant,
            "amount": amount,
            **dict.fromkeys(MEASURES, 0.5 + plus + seed / 100),
            **changes,
        }
        for seed in seeds
        for variant, plus in (("naive", 0.0), ("full", gain + seed / 1_000), (TRUTH, 0.2))
        for amount in ("equal", "all")
    ]


def found_in(rows, variant="full", measure="agreement", reference="naive"):
    (one,) = [
        one
        for one in summarise(rows, reference)
        if (one["variant"], one["amount"], one["measure"]) == (variant, "equal", measure)
    ]
    return one


def test_differences_are_paired_by_seed():
    rows = rows_of(0.1)
    one = found_in(rows)
    assert found_in(rows, "naive")["difference"] is None
    assert one["difference"].mean == pytest.approx(0.102)
    assert one["difference"].high - one["difference"].low < 0.006
    assert one["interval"].high - one["interval"].low > 0.02
    turned = found_in(rows, "naive", reference="full")["difference"]
    assert (turned.low, turned.high) == pytest.approx(
        (-one["difference"].high, -one["difference"].low)
    )
    assert found_in(rows, reference=TRUTH)["difference"].mean == pytest.approx(-0.098)


def test_seeds_without_a_figure_are_left_out_of_it():
    rows = rows_of(0.1, seeds=(1, 2, 3, 4))
    for row in rows:
        if row["seed"] == 4:
            row["prefers_longer"] = math.nan
    one = found_in(rows, measure="prefers_longer")
    assert one["difference"] == found_in(rows_of(0.1), measure="prefers_longer")["difference"]
    assert one["interval"].clusters == 3
    assert found_in(rows)["interval"].clusters == 4
    none = found_in(rows_of(0.1, prefers_longer=math.nan), measure="prefers_longer")
    assert math.isnan(none["interval"].mean)
    assert math.isnan(none["difference"].mean)


@pytest.mark.parametrize("measure", ["right", "agreement"])
def test_shares_and_intervals_are_within_zero_and_one(measure):
    rows = [{**row, measure: {1: 0.7, 2: 0.999}[row["seed"]]} for row in rows_of(0.1, seeds=(1, 2))]
    interval = found_in(rows, measure=measure)["interval"]
    assert 0 <= interval.low < interval.mean < interval.high <= 1
    alone = found_in([row for row in rows if row["seed"] == 1], measure=measure)
    assert math.isnan(alone["interval"].low)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": [1, 1]}, "seeds is"),
        ({"reference": "fulll"}, "reference 'fulll' is not a variant: did you mean 'full'"),
        ({"variants": {"naive": {"min_scor": 3}}}, "variants: naive"),
        ({"variants": {"naive": {"splits": {"all": 1.0}}}}, "splits"),
        ({"variants": {"naive": {}, "truth": {}}}, "itself defines the variant truth"),
        ({"worlds": {}}, "give at least one"),
        ({"worlds": {"w": {"audienc": 3}}}, "worlds: w.*audience"),
        ({"worlds": {"w": {"prompts": 0}}}, "worlds: w: key 'prompts' is 0"),
        ({"worlds": {"w": {"decay_hours": 0.0}}}, "decay_hours"),
        ({"worlds": {"w": {"quality_weight": math.inf}}}, "quality_weight"),
        ({"worlds": {"../w": {}}}, "use only letters"),
    ],
)
def test_invalid_configs_raise_before_running(program, tmp_path, changes, said):
    with pytest.raises(ConfigError, match=said):
        program.main(small(program, tmp_path, **changes))
    assert not (tmp_path / "parts").exists()


def test_the_truth_reaches_no_pair(program, tmp_path, monkeypatch):
    config = small(program, tmp_path)
    drawn = simulate_world(config.base, 1)
    rows = []
    for quality in (drawn.quality, -drawn.quality):
        stories = drawn._replace(quality=quality)
        monkeypatch.setattr(simulation, "simulate_world", lambda *_, stories=stories: stories)
        rules = simulation.read_rules(config)
        rows.append(simulation.run_world(config.base, 1, rules, config, "world"))
    for one, other in zip(*rows, strict=True):
        if one["variant"] != TRUTH:
            for name in ("pairs", "chosen_longer"):
                assert one[name] == other[name]
            assert one["right"] == pytest.approx(1 - other["right"])


def test_raters_judge_held_out_prompts(program, tmp_path, monkeypatch):
    config, seen = small(program, tmp_path), {}
    make_pairs = simulation.make_pairs

    def spy(stories, *rest):
        seen["prompts"] = set(stories["prompt_id"].to_pylist())
        found = make_pairs(stories, *rest)
        # Rows of the table are the rows of the arrays.
        assert max(of.max() for of in found.values()) < stories.num_rows
        return found

    monkeypatch.setattr(simulation, "make_pairs", spy)
    simulation.run_world(config.base, 1, simulation.read_rules(config), config, "world")
    assert seen["prompts"] == {f"p{place}" for place in range(35)}


def test_the_study_from_worlds_to_page(program, tmp_path, capsys, monkeypatch):
    keys = {
        "worlds": {"plain": {}, "again": {}, "taste": {"length_weight": 1.5}},
        "seeds": [1, 2],
        "title": "<i>all</i>",
    }
    run_world, ran = simulation.run_world, []

    def killed(world, seed, *rest):
        ran.append(seed)
        if len(ran) == 3:
            raise DataError("killed")
        return run_world(world, seed, *rest)

    monkeypatch.setattr(simulation, "run_world", killed)
    with pytest.raises(DataError, match="killed"):
        program.main(small(program, tmp_path, **keys))
    damaged = next((tmp_path / "parts").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-40])
    program.main(small(program, tmp_path, **keys))
    # Two worlds are equal, and no world is run twice but the damaged one.
    assert len(ran) == 4 + 1 + 1
    rows = pq.read_table(tmp_path / "study.parquet").to_pylist()
    # Worlds, seeds, variants with the truth, amounts.
    assert len(rows) == 3 * 2 * 3 * 2
    assert {row["right"] for row in rows if row["variant"] == TRUTH} == {1.0}
    assert {row["chosen_longer"] for row in rows if row["variant"] == "full"} == {0.5}
    agreement, pairs = {}, {}
    for row in rows:
        unit = (row["world"], row["seed"])
        agreement[*unit, row["variant"], row["amount"]] = row["agreement"]
        pairs.setdefault((unit, row["amount"]), []).append(row["pairs"])
        if (row["variant"], row["amount"]) == ("full", "all"):
            # It has the fewest pairs: the order in which they are drawn changes nothing.
            assert row["agreement"] == pytest.approx(agreement[*unit, "full", "equal"], abs=1e-3)
    for (unit, amount), counts in pairs.items():
        assert amount == "all" or set(counts) == {min(pairs[unit, "all"])}
    csv = pa_csv.read_csv(tmp_path / "study.csv").to_pylist()
    assert len(csv) == 3 * 3 * 2 * len(MEASURES)
    page = (tmp_path / "study.html").read_text(encoding="utf-8")
    assert "&lt;i&gt;all" in page
    assert "<i>all</i>" not in page
    for name in ("agreement_equal", "prefers_longer_equal"):
        assert (tmp_path / f"study_{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "var(--" not in (tmp_path / f"study_{name}.svg").read_text(encoding="utf-8")

    first = (tmp_path / "study.parquet").read_bytes()
    capsys.readouterr()
    program.main(small(program, tmp_path, **keys))
    assert "unchanged" in capsys.readouterr().out
    # A seed more is all there is to run; another reference needs no world at all.
    program.main(small(program, tmp_path, **{**keys, "seeds": [1, 2, 3]}))
    assert len(ran) == 8
    program.main(small(program, tmp_path, **keys, reference=TRUTH))
    assert len(ran) == 8
    assert (tmp_path / "study.parquet").read_bytes() == first
    assert "minus truth" in (tmp_path / "study.txt").read_text(encoding="utf-8")
    assert len(list((tmp_path / "parts").glob("*.json"))) == 4


def test_the_sample_study_keeps_its_figures(program, tmp_path):
    keys = read_yaml(ROOT / "configs/eval/simulation_study.yaml")
    keys |= keys.pop("presets")["small"] | {
        "out": str(tmp_path),
        "worlds": {"biases_on": {}},
        "seeds": [1, 2],
    }
    program.main(build(program.Config, keys))
    found = {
        (row["seed"], row["variant"]): (row["pairs"], round(row["agreement"], 6))
        for row in pq.read_table(tmp_path / "study.parquet").to_pylist()
        if row["amount"] == "all"
    }
    assert found == {
        (1, "full"): (454, 0.744762),
        (1, "naive_upvotes"): (1828, 0.737619),
        (1, "without_symmetry"): (619, 0.708095),
        (1, "truth"): (1828, 0.77381),
        (2, "full"): (515, 0.740952),
        (2, "naive_upvotes"): (2043, 0.717143),
        (2, "without_symmetry"): (726, 0.705714),
        (2, "truth"): (2043, 0.776667),
    }
