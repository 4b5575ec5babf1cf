"""The simulation study: what raters learn, intervals over seeds, and the program."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from litbench.config import build, read_yaml
from litbench.curation.simulation import simulate_world
from litbench.errors import ConfigError, DataError
from litbench.metrics.pairing_rules import (
    MEASURES,
    TRUTH,
    Learner,
    fit_preference,
    judge_random,
    observe,
    summarise,
    within_prompts,
)

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def program(load_program):
    return load_program("eval/simulate.py")


def small(program, out, **changes):
    keys = {
        "out": out,
        "base": {"prompts": 50, "authors": 40},
        "learner": {"signs": 2, "distractors": 2},
        "variants": {
            "full": {},
            "naive": {"chosen_later": False, "symmetry_buckets": None},
        },
        "worlds": {"plain": {}},
        "seeds": [1, 2],
        "reference": "naive",
        "subsamples": 1,
    }
    return build(program.Config, {**keys, **changes})


def test_pairs_within_prompts_are_all_there_once():
    prompt = np.array([3, 1, 3, 2, 3, 1])
    assert sorted(map(tuple, within_prompts(prompt))) == [(0, 2), (0, 4), (1, 5), (2, 4)]
    assert within_prompts(np.array([1, 2, 3])).shape == (0, 2)


def test_the_penalty_is_one_of_the_sum_over_pairs():
    random = np.random.default_rng(1)
    differences = random.normal([0.8, 0, -0.3, 0], size=(200, 4))
    weights = fit_preference(differences)
    wrong = 1 / (1 + np.exp(differences @ weights))
    # The slope of what is minimised.
    assert weights - differences.T @ wrong == pytest.approx(np.zeros(4), abs=1e-3)


def test_true_labels_teach_quality_not_length():
    random = np.random.default_rng(2)
    quality, words = random.normal(size=4_000), random.integers(50, 900, 4_000)
    learner = Learner(signs=3, sign_noise=0.5, distractors=3)
    features = observe(quality, words, np.zeros(4_000, int), learner, 1)
    assert features.shape == (4_000, 7)
    first, second = np.arange(2_000), np.arange(2_000, 4_000)
    better = quality[first] - quality[second]
    chosen = np.where((better > 0)[:, None], features[first], features[second])
    rejected = np.where((better > 0)[:, None], features[second], features[first])
    weights = fit_preference(chosen - rejected)
    found = judge_random(
        weights, features[first] - features[second], better, words[first] - words[second]
    )
    assert list(found) == list(MEASURES)[:3]
    assert found["agreement"] > 0.85
    assert abs(found["prefers_longer"] - 0.5) < 0.04
    # The opposite weights are wrong exactly where these are right.
    turned = judge_random(
        -weights, features[first] - features[second], better, words[first] - words[second]
    )
    for name in ("agreement", "prefers_longer"):
        assert turned[name] == pytest.approx(1 - found[name])


def rows_of(gain, seeds=(1, 2, 3), **changes):
    """A study of one world, in which seeds differ by 0.01 and what is gained by 0.001."""
    return [
        {
            "world": "w",
            "value": None,
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
        if (one.variant, one.amount, one.measure) == (variant, "equal", measure)
    ]
    return one


def test_differences_are_paired_by_seed():
    rows = rows_of(0.1)
    one = found_in(rows)
    assert found_in(rows, "naive").difference is None
    assert one.difference.mean == pytest.approx(0.102)
    assert one.difference.high - one.difference.low < 0.006
    assert one.interval.high - one.interval.low > 0.02
    turned = found_in(rows, "naive", reference="full").difference
    assert (turned.low, turned.high) == pytest.approx((-one.difference.high, -one.difference.low))
    assert found_in(rows, reference=TRUTH).difference.mean == pytest.approx(-0.098)


def test_seeds_without_a_figure_are_left_out_of_it():
    rows = rows_of(0.1, seeds=(1, 2, 3, 4))
    for row in rows:
        if row["seed"] == 4:
            row["prefers_longer"] = math.nan
    one = found_in(rows, measure="prefers_longer")
    assert one.difference == found_in(rows_of(0.1), measure="prefers_longer").difference
    assert one.interval.clusters == 3
    assert found_in(rows).interval.clusters == 4
    none = found_in(rows_of(0.1, prefers_longer=math.nan), measure="prefers_longer")
    assert math.isnan(none.interval.mean)
    assert math.isnan(none.difference.mean)


@pytest.mark.parametrize("measure", ["right", "agreement"])
def test_shares_and_intervals_are_within_zero_and_one(measure):
    rows = [{**row, measure: {1: 0.7, 2: 0.999}[row["seed"]]} for row in rows_of(0.1, seeds=(1, 2))]
    interval = found_in(rows, measure=measure).interval
    assert 0 <= interval.low < interval.mean < interval.high <= 1
    alone = found_in([row for row in rows if row["seed"] == 1], measure=measure)
    assert math.isnan(alone.interval.low)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": [1, 1]}, "seeds is"),
        ({"reference": "fulll"}, "reference 'fulll' is not a variant: did you mean 'full'"),
        ({"variants": {"naive": {"min_scor": 3}}}, "variants: naive"),
        ({"variants": {"naive": {"splits": {"all": 1.0}}}}, "splits"),
        ({"variants": {"naive": {}, "truth": {}}}, "itself defines the variant truth"),
        ({"learner": {"sign_noise": math.nan}}, "'learner.sign_noise' is nan"),
        ({"worlds": {}}, "give at least one"),
        ({"worlds": {"w": {"readers.audienc": 3}}}, "worlds: w.*audience"),
        ({"sweeps": {"w": {"readers.noise": [-1]}}}, "sweeps: w"),
        ({"sweeps": {"w": {"readers.noise": [1], "prompts": [5, 6]}}}, "sweeps: w"),
        ({"sweeps": {"../w": {"readers.noise": [1]}}}, "use only letters"),
        ({"sweeps": {"worlds": {"readers.noise": [1]}}}, "but not 'worlds'"),
    ],
)
def test_invalid_configs_raise_before_running(program, tmp_path, changes, said):
    with pytest.raises(ConfigError, match=said):
        program.main(small(program, tmp_path, **changes))
    assert not (tmp_path / "parts").exists()


def test_the_truth_reaches_no_pair(program, tmp_path, monkeypatch):
    config = small(program, tmp_path)
    drawn = simulate_world(config.base)
    rows = []
    for quality in (drawn.quality, -drawn.quality):
        world = replace(drawn, quality=quality)
        monkeypatch.setattr(program, "simulate_world", lambda _, world=world: world)
        rows.append(program.run_world(config.base, program.read_rules(config), config, "world"))
    for one, other in zip(*rows, strict=True):
        if one["variant"] != TRUTH:
            for name in ("pairs", "chosen_longer"):
                assert one[name] == other[name]
            assert one["right"] == pytest.approx(1 - other["right"])


def test_raters_judge_held_out_prompts(program, tmp_path, monkeypatch):
    config, seen = small(program, tmp_path), {}
    make_pairs = program.make_pairs

    def spy(stories, *rest):
        seen["prompts"] = set(stories["prompt_id"].to_pylist())
        found = make_pairs(stories, *rest)
        # Rows of the table are the rows of the arrays.
        assert max(of.max() for of in found.values()) < stories.num_rows
        return found

    monkeypatch.setattr(program, "make_pairs", spy)
    program.run_world(config.base, program.read_rules(config), config, "world")
    assert seen["prompts"] == {f"p{place}" for place in range(35)}


def test_the_study_from_worlds_to_page(program, tmp_path, capsys, monkeypatch):
    keys = {
        "sweeps": {"taste": {"readers.length_weight": [0.35, 1.5]}},
        "seeds": [1, 2],
        "title": "<i>all</i>",
    }
    run_world, ran = program.run_world, []

    def killed(world, *rest):
        ran.append(world.seed)
        if len(ran) == 3:
            raise DataError("killed")
        return run_world(world, *rest)

    monkeypatch.setattr(program, "run_world", killed)
    with pytest.raises(DataError, match="killed"):
        program.main(small(program, tmp_path, **keys))
    damaged = next((tmp_path / "parts").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-40])
    program.main(small(program, tmp_path, **keys))
    # The base world is in the sweep as well, and no world is run twice but the damaged one.
    assert len(ran) == 4 + 1 + 1
    rows = pq.read_table(tmp_path / "study.parquet").to_pylist()
    # Worlds, seeds, variants with the truth, amounts.
    assert len(rows) == 3 * 2 * 3 * 2
    assert {row["right"] for row in rows if row["variant"] == TRUTH} == {1.0}
    assert {row["chosen_longer"] for row in rows if row["variant"] == "full"} == {0.5}
    agreement, pairs = {}, {}
    for row in rows:
        unit = (row["world"], row["value"], row["seed"])
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
    for name in ("taste_agreement_equal", "worlds_prefers_longer_equal"):
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


@pytest.mark.parametrize(
    "name",
    ["worlds_against_filters", "simulation_study", "sample_simulation_study", "paper_world_study"],
)
def test_committed_worlds_can_be_run(program, name):
    config = build(program.Config, read_yaml(ROOT / f"configs/eval/{name}.yaml"), name)
    assert program.read_rules(config)
    assert program.read_worlds(config)


def test_the_sample_study_keeps_its_figures(program, tmp_path):
    keys = read_yaml(ROOT / "configs/eval/sample_simulation_study.yaml") | {
        "out": str(tmp_path),
        "sweeps": {},
        "seeds": [1, 2],
    }
    program.main(build(program.Config, keys))
    found = {
        (row["seed"], row["variant"]): (row["pairs"], round(row["agreement"], 6))
        for row in pq.read_table(tmp_path / "study.parquet").to_pylist()
        if row["amount"] == "all"
    }
    assert found == {
        (1, "full"): (454, 0.742857),
        (1, "naive_upvotes"): (1828, 0.737619),
        (1, "without_symmetry"): (619, 0.708095),
        (1, "truth"): (1828, 0.77381),
        (2, "full"): (515, 0.74619),
        (2, "naive_upvotes"): (2043, 0.717143),
        (2, "without_symmetry"): (726, 0.705714),
        (2, "truth"): (2043, 0.776667),
    }
