import json
import math
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib import image
from matplotlib.colors import to_rgb
from scipy import stats
from sklearn.linear_model import LogisticRegression

from litbench.config import build, read_yaml
from litbench.curation.simulation import World, simulate_world
from litbench.curation.world_studies import rows_of_worlds
from litbench.errors import ConfigError, DataError
from litbench.metrics.intervals import Interval
from litbench.metrics.pairing_rules import (
    LEARNED,
    MEASURES,
    TRUTH,
    Learner,
    Place,
    Prediction,
    Row,
    check_prediction,
    fit_preference,
    observe,
    pair_figures,
    rate_random,
    share_above,
    study_json,
    study_text,
    summarise,
    within_prompts,
)
from litbench.report.figures import light_colors
from litbench.report.study_figures import draw_study

ROOT = Path(__file__).parents[1]
PROGRAM = runpy.run_path(str(ROOT / "eval/simulate.py"))


def small(out, **changes):
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
        "draws": 1,
    }
    return build(PROGRAM["Config"], {**keys, **changes})


def test_pairs_within_prompts_are_all_there_once():
    prompt = np.array([3, 1, 3, 2, 3, 1])
    first, second = within_prompts(prompt)
    found = {frozenset(pair) for pair in zip(first.tolist(), second.tolist(), strict=True)}
    assert found == {frozenset(pair) for pair in ((0, 2), (0, 4), (2, 4), (1, 5))}
    assert len(first) == 4
    assert not len(within_prompts(np.array([1, 2, 3]))[0])


def test_share_above_counts_a_tie_as_one_half():
    assert share_above(np.array([1, -1, 0, 0])) == 0.5
    assert share_above(np.array([2.0, 0.1])) == 1
    assert math.isnan(share_above(np.zeros(0)))


def test_the_other_choice_turns_a_rule_around():
    random = np.random.default_rng(0)
    quality, words = random.normal(size=50), random.permutation(50)
    chosen, rejected = random.permutation(50)[:20], random.permutation(50)[20:40]
    there = pair_figures(quality, words, chosen, rejected)
    back = pair_figures(quality, words, rejected, chosen)
    assert back["right"] == pytest.approx(1 - there["right"])
    assert back["chosen_longer"] == pytest.approx(1 - there["chosen_longer"])
    # Which of the two is better does not depend on the choice.
    assert back["better_longer"] == there["better_longer"]


def test_the_penalty_is_one_of_the_sum_over_pairs():
    random = np.random.default_rng(1)
    differences = random.normal([0.8, 0, -0.3, 0], size=(200, 4))
    mirrored = np.vstack([differences, -differences])
    # Each pair counts twice there, so the penalty does as well.
    model = LogisticRegression(C=0.25, fit_intercept=False, tol=1e-10, max_iter=1_000)
    model.fit(mirrored, np.repeat([1, 0], 200))
    assert fit_preference(differences, 2.0) == pytest.approx(model.coef_[0], abs=1e-4)


def test_a_pair_that_counts_twice_is_two_pairs():
    random = np.random.default_rng(3)
    differences = random.normal(0.4, 1, size=(60, 3))
    twice = random.random(60) < 0.5
    weighted = fit_preference(differences, 1.0, np.where(twice, 2.0, 1.0))
    assert weighted == pytest.approx(
        fit_preference(np.vstack([differences, differences[twice]]), 1.0), abs=1e-6
    )
    assert np.abs(weighted - fit_preference(differences, 1.0)).max() > 0.01


def test_weights_stay_finite_where_one_feature_tells_all():
    weights = fit_preference(np.full((1_000, 1), 40.0), 1e-6)
    assert np.isfinite(weights).all()
    assert weights[0] > 0


def test_weights_are_found_where_a_whole_step_goes_too_far():
    random = np.random.default_rng(35)
    differences = np.abs(random.standard_cauchy((8, 2))) * random.choice([1, -1], size=(8, 2)) * 5
    weights = fit_preference(differences, 1e-3)
    wrong = 1 / (1 + np.exp(differences @ weights))
    # The slope of what is minimised.
    assert 1e-3 * weights - differences.T @ wrong == pytest.approx(np.zeros(2), abs=1e-3)


def test_a_rater_of_true_labels_learns_quality_and_no_length():
    random = np.random.default_rng(2)
    quality, words = random.normal(size=4_000), random.integers(50, 900, 4_000)
    learner = Learner(signs=3, sign_noise=0.5, distractors=3)
    features = observe(quality, words, np.zeros(4_000, int), learner, 1)
    assert features.shape == (4_000, 7)
    first, second = np.arange(2_000), np.arange(2_000, 4_000)
    better = quality[first] - quality[second]
    chosen = np.where((better > 0)[:, None], features[first], features[second])
    rejected = np.where((better > 0)[:, None], features[second], features[first])
    weights = fit_preference(chosen - rejected, 1.0)
    found = rate_random(
        weights, features[first] - features[second], better, words[first] - words[second]
    )
    assert set(found) == set(LEARNED)
    assert found["agreement"] > 0.85
    assert abs(found["prefers_longer"] - 0.5) < 0.04
    # The opposite weights are wrong exactly where these are right.
    turned = rate_random(
        -weights, features[first] - features[second], better, words[first] - words[second]
    )
    for name, value in found.items():
        assert turned[name] == pytest.approx(1 - value)


def test_distractors_are_shared_by_an_author():
    author = np.repeat(np.arange(200), 10)
    learner = Learner(signs=1, distractors=4, author_share=0.5)
    seen = observe(np.zeros(2_000), np.full(2_000, 9), author, learner, 1)[:, 2:]
    means = seen.reshape(200, 10, 4).mean(1)
    assert means.var() == pytest.approx(0.5 + 0.5 / 10, rel=0.15)
    assert seen.var() == pytest.approx(1, rel=0.1)


def test_a_rater_may_see_nothing_of_quality():
    random = np.random.default_rng(4)
    quality, words, author = random.normal(size=50), random.integers(1, 900, 50), np.arange(50)
    learner = Learner(signs=0, distractors=2)
    seen = observe(quality, words, author, learner, 1)
    assert seen.shape == (50, 3)
    assert (seen == observe(-quality, words, author, learner, 1)).all()


@pytest.mark.parametrize("key", ["signs", "distractors", "sign_noise", "penalty"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_a_learner_that_cannot_be_is_refused(key, value):
    with pytest.raises(ConfigError, match=f"learner.{key} is"):
        Learner(**{key: value})


@pytest.mark.parametrize(
    ("direction", "bounds", "low", "high", "outcome"),
    [
        ("higher", {}, 0.01, 0.03, "held"),
        ("higher", {}, -0.01, 0.03, "undecided"),
        ("higher", {}, -0.03, -0.01, "failed"),
        ("higher", {"at_least": 0.02}, 0.01, 0.03, "undecided"),
        ("higher", {"at_least": 0.04}, 0.01, 0.03, "failed"),
        ("lower", {}, -0.03, -0.01, "held"),
        ("lower", {}, 0.01, 0.03, "failed"),
        ("lower", {}, -0.03, 0.01, "undecided"),
        ("lower", {"at_least": 0.02}, -0.05, -0.03, "held"),
        ("equal", {"at_most": 0.02}, -0.01, 0.015, "held"),
        ("equal", {"at_most": 0.01}, -0.01, 0.015, "undecided"),
        ("equal", {"at_most": 0.01}, 0.02, 0.04, "failed"),
        ("higher", {}, math.nan, math.nan, "undecided"),
    ],
)
def test_predictions_are_judged_by_the_whole_interval(direction, bounds, low, high, outcome):
    claim = Prediction("full", "naive", "agreement", direction, **bounds)
    middle = (low + high) / 2
    assert check_prediction(claim, Interval(middle, low, high, 3, 3, 3.0)) == outcome


WORLD = Place("w")


def rows_of(gain, seeds=(1, 2, 3), place=WORLD):
    rows = []
    for seed in seeds:
        for variant, plus in (("naive", 0.0), ("full", gain + seed / 1_000), (TRUTH, 0.2)):
            figures = dict.fromkeys(MEASURES, 0.5 + plus + seed / 100)
            rows += [
                Row(place, seed, variant, amount, figures, 0.5) for amount in ("equal", "natural")
            ]
    return rows


def test_gains_are_paired_by_seed():
    study = summarise(rows_of(0.1), "naive", {})
    of = {one.variant: one for one in study.at(Place("w"), "equal")}
    assert of["naive"].gain is None
    assert of[TRUTH].lean is None
    # Seeds differ by 0.01 and what is gained by 0.001: paired, only the latter is noise.
    gain = of["full"].gain
    assert gain.mean == pytest.approx(0.102)
    assert gain.high - gain.low < 0.006
    assert of["full"].figures["agreement"].high - of["full"].figures["agreement"].low > 0.02
    claim = Prediction("full", "naive", "agreement", "higher")
    (checked,) = summarise(rows_of(0.1), "naive", {"w": [claim]}).checked
    assert checked.outcome == "held"
    assert checked.difference == gain
    assert "held" in study_text(summarise(rows_of(0.1), "naive", {"w": [claim]}))


def without(rows, measure, seeds):
    """The rows without a figure of some seeds."""
    return [
        replace(row, figures={**row.figures, measure: math.nan}) if row.seed in seeds else row
        for row in rows
    ]


def test_seeds_without_a_figure_are_left_out_of_it():
    rows = without(rows_of(0.1, seeds=(1, 2, 3, 4)), "prefers_longer", (4,))
    of = {one.variant: one for one in summarise(rows, "naive", {}).at(WORLD, "equal")}
    assert of["full"].lean == summarise(rows_of(0.1), "naive", {}).at(WORLD, "equal")[1].lean
    assert of["full"].figures["prefers_longer"].clusters == 3
    assert of["full"].gain.clusters == 4
    rows = without(rows, "prefers_longer", (1, 2, 3))
    claim = Prediction("full", "naive", "prefers_longer", "higher")
    study = summarise(rows, "naive", {"w": [claim]})
    assert math.isnan(study.at(WORLD, "equal")[1].lean.mean)
    assert study.checked[0].outcome == "undecided"
    json.dumps(study_json(study), allow_nan=False)


def test_intervals_are_of_student_t_over_seeds():
    values = np.array([0.1, 0.13, 0.2])
    rows = [
        replace(row, figures={**row.figures, "agreement": 0.5 + values[row.seed - 1]})
        if row.variant == "full" else replace(row, figures={**row.figures, "agreement": 0.5})
        for row in rows_of(0.1)
    ]  # fmt: skip
    gain = summarise(rows, "naive", {}).at(WORLD, "equal")[1].gain
    half = stats.t.ppf(0.975, 2) * values.std(ddof=1) / math.sqrt(3)
    assert (gain.low, gain.high) == pytest.approx((values.mean() - half, values.mean() + half))


@pytest.mark.parametrize("measure", ["right", "agreement", "kept"])
def test_a_share_and_its_interval_lie_between_zero_and_one(measure):
    rows = [
        replace(row, figures={**row.figures, measure: {1: 0.7, 2: 0.999}[row.seed]})
        for row in rows_of(0.1, seeds=(1, 2))
    ]
    interval = summarise(rows, "naive", {}).at(WORLD, "equal")[0].figures[measure]
    assert 0 <= interval.low < interval.mean < interval.high <= 1
    alone = summarise([row for row in rows if row.seed == 1], "naive", {})
    assert math.isnan(alone.at(WORLD, "equal")[0].figures[measure].low)


def test_seeds_that_are_not_the_same_are_refused():
    rows = rows_of(0.1) + rows_of(0.1, seeds=(1, 2), place=Place("v"))
    with pytest.raises(DataError, match="world v"):
        summarise(rows, "naive", {})


def test_the_same_plot_gives_the_same_bytes(tmp_path):
    written = []
    for order in (("svg", "png"), ("png", "svg")):
        study = summarise(rows_of(0.1), "naive", {})
        drawing = draw_study(study, {}, ("equal", "natural"))["worlds"].drawing
        files = drawing.files("p")
        for kind in order:
            files[f"p.{kind}"](tmp_path / f"p.{kind}")
        written.append([(tmp_path / f"p.{kind}").read_bytes() for kind in ("svg", "png")])
    assert written[0] == written[1]
    assert b"agreement, all pairs" in written[0][0]


def test_a_world_where_sweeps_meet_counts_once():
    rows = [
        row for place in (Place("a", 0.0), Place("b", 0.35)) for row in rows_of(0.1, place=place)
    ]
    study = summarise([*rows, *rows_of(0.2, place=Place("a", 1.0))], "naive", {})
    assert len(study.places) == 3
    assert study.worlds == [Place("a", 0.0), Place("a", 1.0)]


def test_an_infinite_value_is_not_an_unknown_one():
    study = summarise(rows_of(0.1, place=Place("sweep", math.inf)), "naive", {})
    json.dumps(study_json(study), allow_nan=False)
    assert study_json(study)["summaries"][0]["place"]["value"] == "inf"
    assert list(study.sweeps) == ["sweep"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": [1, 1]}, "seeds is"),
        ({"seeds": [1]}, "seeds is"),
        ({"test_share": 1.0}, "test_share"),
        ({"reference": "fulll"}, "reference is 'fulll', .* did you mean 'full'"),
        ({"variants": {"naive": {"min_scor": 3}}}, "variants: naive"),
        ({"variants": {"naive": {"splits": {"all": 1.0}}}}, "splits"),
        ({"variants": {"naive": {}, "truth": {}}}, "truth"),
        ({"worlds": {}}, "neither"),
        ({"worlds": {"w": {"changes": {"readers.audienc": 3}}}}, "worlds: w.*audience"),
        ({"worlds": {"w": {"changes": {"reader.audience": 3}}}}, "worlds: w.*readers"),
        ({"worlds": {"w": {"changes": {"quality_length": 3}}}}, "worlds: w.*quality_length"),
        ({"sweeps": {"w": {"knob": "readers.noise", "values": [-1]}}}, "sweeps: w"),
        ({"sweeps": {"w": {"knob": "readers.noise", "values": []}}}, "sweeps: w: values"),
        ({"sweeps": {"plain": {"knob": "readers.noise", "values": [1]}}}, "name of a sweep"),
        ({"sweeps": {"../w": {"knob": "readers.noise", "values": [1]}}}, "name of a plot"),
        ({"sweeps": {"worlds": {"knob": "readers.noise", "values": [1]}}}, "name of a plot"),
    ],
)
def test_mistakes_are_said_before_any_world_is_run(tmp_path, changes, said):
    with pytest.raises(ConfigError, match=said):
        PROGRAM["read_plan"](small(tmp_path, **changes))


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"variant": "ful"}, "unknown variant 'ful'"),
        ({"measure": "agreemen"}, "unknown measure"),
        ({"direction": "equal"}, "at_most"),
        ({"at_least": -1.0}, "at_least"),
        ({"direction": "above"}, "direction"),
    ],
)
def test_claims_are_checked(tmp_path, claim, said):
    good = {"variant": "full", "against": "naive", "measure": "agreement", "direction": "higher"}
    config = small(tmp_path, worlds={"w": {"predictions": [{**good, **claim}]}})
    with pytest.raises(ConfigError, match=f"worlds: w.*{said}"):
        PROGRAM["read_plan"](config)


def test_parts_are_kept_shared_and_cleared_away(tmp_path):
    one, other = World(prompts=5), World(prompts=6)
    places = {Place("a", 0.0): one, Place("b", 1.0): other, Place("c"): one}
    ran = []

    def run(units):
        if len(ran) == 1:
            raise DataError("killed")
        ran.append([unit.world for unit in units])
        figures = dict.fromkeys(MEASURES, 0.5)
        return [
            [{"variant": "full", "amount": "equal", "figures": figures, "random_longer": 0.1}]
            for _ in units
        ]

    with pytest.raises(DataError, match="killed"):
        rows_of_worlds(tmp_path, places, [1, 2], ["code"], run, at_once=3)
    assert len(list(tmp_path.iterdir())) == 3
    ran.append([])
    rows = rows_of_worlds(tmp_path, places, [1, 2], ["code"], run, at_once=3)
    seeded = [replace(world, seed=seed) for world in (one, other) for seed in (1, 2)]
    # Each world once, and those of the killed run not again.
    assert ran == [seeded[:3], [], seeded[3:]]
    assert [(row.place, row.seed) for row in rows] == [(p, s) for p in places for s in (1, 2)]
    # Other code, other parts; the old ones go.
    before = set(tmp_path.iterdir())
    rows_of_worlds(tmp_path, {Place("a", 0.0): one}, [1], ["other code"], run)
    assert len(list(tmp_path.iterdir())) == 1
    assert not before & set(tmp_path.iterdir())


def test_worlds_do_not_see_each_other(tmp_path):
    config = small(tmp_path, base={"prompts": 40, "authors": 40})
    plan = PROGRAM["read_plan"](config)
    units = [PROGRAM["Unit"](f"u{k}", "world", replace(config.base, seed=k)) for k in (1, 2)]
    alone = [PROGRAM["run_units"]([unit], plan, config)[0] for unit in units]
    assert PROGRAM["run_units"](units, plan, config) == alone
    assert alone[0] != alone[1]


def test_the_truth_reaches_no_pair(tmp_path, monkeypatch):
    config = small(tmp_path)
    plan = PROGRAM["read_plan"](config)
    unit = PROGRAM["Unit"]("u", "world", config.base)
    drawn = simulate_world(config.base)
    rows = []
    for quality in (drawn.quality, -drawn.quality):
        world = replace(drawn, quality=quality)
        known = PROGRAM["run_units"].__globals__
        monkeypatch.setitem(known, "simulate_world", lambda _, world=world: world)
        rows.append(PROGRAM["run_units"]([unit], plan, config)[0])
    for one, other in zip(*rows, strict=True):
        if one["variant"] != TRUTH:
            for name in ("pairs", "kept", "chosen_longer"):
                assert one["figures"][name] == other["figures"][name]
            assert one["figures"]["right"] == pytest.approx(1 - other["figures"]["right"])


def test_raters_are_asked_about_prompts_that_no_pair_was_made_of(tmp_path):
    config = small(tmp_path)
    one = PROGRAM["simulate_unit"](PROGRAM["Unit"]("u", "world", config.base), config)
    assert not set(one.possible.ravel()) & set(one.asked.ravel())
    # Pairs are made of the first stories: their places in the table are those in the arrays.
    assert one.possible.max() == one.stories.num_rows - 1
    assert one.stories["n_words"].to_pylist() == one.n_words[: one.stories.num_rows].tolist()


def test_the_study_from_worlds_to_page(tmp_path, capsys):
    claim = {"variant": "full", "against": "naive", "measure": "chosen_longer",
             "direction": "lower", "because": "<b>symmetry</b>"}  # fmt: skip
    keys = {
        "worlds": {"plain": {"about": "<i>all</i>", "predictions": [claim]}},
        "sweeps": {"taste": {"knob": "readers.length_weight", "values": [0.35, 1.5]}},
        "seeds": [1, 2, 3],
    }
    PROGRAM["main"](small(tmp_path, **keys))
    rows = pq.read_table(tmp_path / "study.parquet").to_pylist()
    # Worlds, seeds, variants with the truth, amounts.
    assert len(rows) == 3 * 3 * 3 * 2
    own = [row for row in rows if row["variant"] == TRUTH]
    assert {row["right"] for row in own} == {1.0}
    assert {row["chosen_longer"] for row in rows if row["variant"] == "full"} == {0.5}
    for row in rows:
        if row["amount"] == "equal":
            assert row["pairs"] == min(
                other["pairs"] for other in rows
                if (other["group"], other["value"], other["seed"])
                == (row["group"], row["value"], row["seed"])
            )  # fmt: skip
    learned = {(row["group"], row["value"], row["seed"], row["variant"], row["amount"]):
               row["agreement"] for row in rows}  # fmt: skip
    for (*unit, variant, amount), agreement in learned.items():
        if variant == "full" and amount == "equal":
            # It has the fewest pairs: the order in which they are drawn changes nothing.
            assert agreement == pytest.approx(learned[*unit, variant, "natural"], abs=1e-3)
    assert any(
        abs(agreement - learned[*unit, variant, "natural"]) > 0.005
        for (*unit, variant, amount), agreement in learned.items()
        if variant == "naive"
    )
    # The base world is in the sweep as well, and is run once.
    assert len(list((tmp_path / "parts").iterdir())) == 6
    study = json.loads((tmp_path / "study.json").read_text(encoding="utf-8"))
    assert study["checked"][0]["outcome"] == "held"
    page = (tmp_path / "study.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;symmetry" in page
    assert "<i>all</i>" not in page
    for name in ("taste", "worlds"):
        pixels = image.imread(tmp_path / f"study_{name}.png")[..., :3]
        for color in (light_colors()[key] for key in ("series-1", "series-2")):
            assert np.isclose(pixels, to_rgb(color), atol=0.01).all(-1).any()
        svg = (tmp_path / f"study_{name}.svg").read_text(encoding="utf-8")
        assert "var(--" not in svg

    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "parts").iterdir()}
    first = (tmp_path / "study.parquet").read_bytes()
    PROGRAM["main"](small(tmp_path, **keys))
    assert "unchanged" in capsys.readouterr().out
    # A seed more is all there is to run.
    PROGRAM["main"](small(tmp_path, **{**keys, "seeds": [1, 2, 3, 4]}))
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "parts").iterdir()}
    assert len(after) == 8
    assert before.items() <= after.items()
    PROGRAM["main"](small(tmp_path, **keys))
    assert (tmp_path / "study.parquet").read_bytes() == first


def test_a_world_of_one_length_has_no_longer_story(tmp_path):
    base = {"prompts": 50, "authors": 40, "words_spread": 0.0}
    PROGRAM["main"](small(tmp_path, base=base))
    row = pq.read_table(tmp_path / "study.parquet").to_pylist()[0]
    assert math.isnan(row["prefers_longer"])
    assert row["chosen_longer"] == row["random_longer"] == 0.5
    page = (tmp_path / "study.html").read_text(encoding="utf-8")
    assert "nan" not in page.split("<pre")[0]
    assert (tmp_path / "study_worlds.png").exists()


@pytest.mark.parametrize(
    "name",
    [
        "worlds_against_filters",
        "simulation_study",
        "sample_simulation_study",
        "paper_world_study",
    ],
)
def test_committed_worlds_can_be_run(name):
    keys = read_yaml(ROOT / f"configs/eval/{name}.yaml")
    plan = PROGRAM["read_plan"](build(PROGRAM["Config"], keys, name))
    assert any(plan.worlds.predictions.values())
