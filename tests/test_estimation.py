"""Quality estimated from votes: the model, the pairs it makes and the programs that use it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.config import load_config
from litbench.curation.estimation import (
    EstimationOptions,
    VoteFacts,
    better_probability,
    estimate_quality,
    fit_votes,
)
from litbench.curation.simulation import ReaderSimulation, World, simulate_world, stories_table
from litbench.errors import ConfigError, DataError
from litbench.metrics.pairing_rules import TRUTH
from litbench.records import PAIRS, pair_weights
from litbench.tables import check_parquet, write_table

CONFIGS = Path(__file__).parent.parent / "configs"
PLAIN = EstimationOptions(delay=False, length="keep")
BIASED = World(seed=3, prompts=150, stories_per_prompt=8, authors=300)


def facts_of(votes, prompt=None, **more):
    count = len(votes)
    given = {
        "story": np.arange(count),
        "prompt": np.zeros(count, dtype=int) if prompt is None else np.asarray(prompt),
        "votes": np.asarray(votes),
        "n_words": np.full(count, 300),
    }
    return VoteFacts(**{**given, **more})


def facts_of_world(simulated):
    return VoteFacts(
        np.arange(len(simulated.prompt)),
        simulated.prompt,
        simulated.score,
        simulated.n_words,
        simulated.created_utc,
        simulated.author,
    )


def estimated(facts, options):
    return estimate_quality(fit_votes(facts, options), facts)


def agreement(simulated, guess):
    """Share of pairs of one prompt that a guess puts in the true order; a tie counts one half."""
    right = []
    for prompt in np.unique(simulated.prompt):
        rows = np.flatnonzero(simulated.prompt == prompt)
        first, second = np.triu_indices(len(rows), 1)
        lead = np.sign(guess[rows[first]] - guess[rows[second]])
        truth = np.sign(simulated.quality[rows[first]] - simulated.quality[rows[second]])
        right.append((1 + lead * truth) / 2)
    return np.concatenate(right).mean()


@pytest.fixture(scope="module")
def simulated():
    return simulate_world(BIASED)


# The model --------------------------------------------------------------------------------------


def test_two_stories_are_solved_by_hand():
    model = fit_votes(facts_of([10, 30]), PLAIN)
    # The mean is 20; Pearson: 200 / (20 + spread 400) = 1 degree of freedom.
    assert model.spread == pytest.approx(0.45, rel=1e-6)
    found = estimate_quality(model, facts_of([10, 30]))
    k, weight = 1 / 0.225, 1 / (1 + 0.225 * 20)
    np.testing.assert_allclose(found.shape, k + weight * np.array([10, 30]), rtol=1e-6)
    np.testing.assert_allclose(found.rate, k + weight * 20, rtol=1e-6)


def test_quality_is_recovered_better_than_by_votes_where_exposure_differs(simulated):
    found = estimated(facts_of_world(simulated), EstimationOptions())
    by_votes = agreement(simulated, simulated.score)
    assert agreement(simulated, found.median) > by_votes + 0.03


def test_the_exposure_curve_falls_as_the_audience_does(simulated):
    model = fit_votes(facts_of_world(simulated), EstimationOptions())
    # The rate of readers falls by exp(-t / 14 hours).
    height = model.delay.at(np.log1p(np.array([2.0, 12.0])))
    assert height[1] - height[0] == pytest.approx(-10 / 14, abs=0.3)


def test_length_is_removed_or_kept():
    world = replace(BIASED, readers=ReaderSimulation(length_weight=0.7))
    simulated = simulate_world(world)
    words = np.log(simulated.n_words)
    follows = {
        how: np.corrcoef(estimated(facts_of_world(simulated), EstimationOptions(length=how)).median,
                         words)[0, 1]
        for how in ("keep", "remove")
    }  # fmt: skip
    assert abs(follows["remove"]) < 0.1
    assert follows["keep"] > 0.3


def test_more_votes_make_smaller_errors():
    model = fit_votes(facts_of([10, 30]), PLAIN)
    errors = [estimate_quality(model, facts_of([n, 3 * n])).error for n in (1, 10, 100, 1000)]
    assert np.all(np.diff(errors, axis=0) < 0)


def test_the_size_of_an_audience_is_not_quality():
    # Many votes, so that nothing is left to shrink but for luck.
    small, large = [40_000, 90_000, 50_000], [400_000, 900_000, 500_000]
    prompt = [0] * 3 + [1] * 3
    options = replace(PLAIN, quality_share=1.0)
    found = estimated(facts_of([*small, *large], prompt), options).median
    np.testing.assert_allclose(found[:3], found[3:], atol=1e-3)


def test_another_prompts_audience_changes_nothing_within_a_prompt():
    model = fit_votes(facts_of([10, 30, 5, 9], [0, 0, 1, 1]), PLAIN)
    alone = estimate_quality(model, facts_of([10, 30]))
    beside = estimate_quality(model, facts_of([10, 30, 500, 900], [0, 0, 1, 1]))
    np.testing.assert_array_equal(alone.median, beside.median[:2])


@pytest.mark.parametrize("author", ["ignore", "keep", "remove"])
def test_the_order_of_rows_does_not_matter(simulated, author):
    facts = facts_of_world(simulated)
    order = np.random.default_rng(0).permutation(len(simulated.prompt))
    options = EstimationOptions(author=author)
    found, shuffled = estimated(facts, options), estimated(facts.take(order), options)
    np.testing.assert_array_equal(found.median[order], shuffled.median)
    np.testing.assert_array_equal(found.error[order], shuffled.error)


def test_a_prompt_without_votes_says_nothing():
    model = fit_votes(facts_of([10, 30]), PLAIN)
    found = estimate_quality(model, facts_of([0, 0, -3]))
    assert len(set(found.median)) == 1
    np.testing.assert_allclose(found.shape, found.rate)


def test_votes_below_zero_count_as_none():
    model = fit_votes(facts_of([10, 30]), PLAIN)
    found = [estimate_quality(model, facts_of([low, 12])).median for low in (0, -5)]
    np.testing.assert_array_equal(*found)


def test_votes_that_vary_like_counts_leave_little_spread():
    votes = np.random.default_rng(0).poisson(50, 400)
    assert fit_votes(facts_of(votes), PLAIN).spread < 0.005


def test_authors_are_shrunk_and_kept_or_removed():
    random = np.random.default_rng(2)
    author = np.repeat(np.arange(20), 20)
    effect = np.exp(random.normal(0, 0.6, 20))
    prompt = random.permutation(np.arange(400) % 40)
    votes = random.poisson(40 * effect[author] * random.gamma(4, 1 / 4, 400))
    # Number -1 stands for authors who are not known.
    facts = facts_of(votes, prompt, author=np.where(author == 0, -1, author))
    models = {how: fit_votes(facts, replace(PLAIN, author=how)) for how in ("keep", "remove")}
    model = models["keep"]
    # Levels of prompts take a part of it along.
    assert 0.5 < model.author_spread / (effect.var() / effect.mean() ** 2) < 1.1
    assert -1 not in model.authors
    # Those not known are no one author: each might as well be someone of whom nothing else is.
    alone = np.where(author == 0, 1_000 + np.arange(400), author)
    apart = fit_votes(replace(facts, author=alone), replace(PLAIN, author="keep"))
    assert apart.author_spread == pytest.approx(model.author_spread)
    known = np.array([model.authors[number] for number in range(1, 20)])
    assert np.corrcoef(np.log(known), np.log(effect[1:]))[0, 1] > 0.9
    means = {
        how: np.bincount(author, weights=estimate_quality(one, facts).median)[1:]
        for how, one in models.items()
    }
    assert np.std(means["keep"]) > 2 * np.std(means["remove"])


positive = st.floats(0.05, 500)


@given(positive, positive, positive, positive)
def test_swapped_sides_give_the_other_probability(shape, rate, other_shape, other_rate):
    one = better_probability(shape, rate, other_shape, other_rate)
    other = better_probability(other_shape, other_rate, shape, rate)
    assert one + other == pytest.approx(1, abs=1e-9)


def test_the_probability_is_that_of_two_gammas():
    random = np.random.default_rng(0)
    first, second = random.gamma(3, 1 / 2, 200_000), random.gamma(5, 1 / 4, 200_000)
    p = better_probability(np.array(3), np.array(2), np.array(5), np.array(4))
    assert p == pytest.approx((first > second).mean(), abs=0.005)


def test_the_probability_is_calibrated_where_the_model_holds():
    random = np.random.default_rng(2)
    prompt = np.repeat(np.arange(400), 6)
    quality, luck = random.gamma(4, 1 / 4, 2_400), random.gamma(4, 1 / 4, 2_400)
    votes = random.poisson(np.repeat(np.exp(random.normal(3, 1, 400)), 6) * quality * luck)
    # Variance of the product of both: (1 + 1/4)^2 - 1, of which quality alone is 1/4.
    options = replace(PLAIN, quality_share=0.25 / (1.25**2 - 1))
    found = estimated(facts_of(votes, prompt), options)
    first, second = np.arange(0, 2_400, 2), np.arange(1, 2_400, 2)
    p = better_probability(
        found.shape[first], found.rate[first], found.shape[second], found.rate[second]
    )
    right = quality[first] > quality[second]
    sure = np.where(p > 0.5, p, 1 - p)
    assert sure.mean() == pytest.approx((right == (p > 0.5)).mean(), abs=0.03)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda: facts_of([1.0, np.nan]), "votes of story 1 is nan"),
        (lambda: facts_of([1, 2], n_words=np.array([3])), "1 n_words for 2 stories"),
        (lambda: fit_votes(facts_of([1, 2], [0, 1]), PLAIN), "two stories and a vote"),
        (lambda: fit_votes(facts_of([0, 0]), PLAIN), "two stories and a vote"),
        (lambda: fit_votes(facts_of([]), PLAIN), "two stories and a vote"),
        (lambda: fit_votes(facts_of([1, 2]), EstimationOptions()), "give created_utc"),
        (lambda: fit_votes(facts_of([1, 2]), replace(PLAIN, author="keep")), "give author"),
    ],
)
def test_bad_facts_are_refused(broken, message):
    with pytest.raises(DataError, match=message):
        broken()


@pytest.mark.parametrize("options", [{"quality_share": 0}, {"quality_share": 1.1}, {"knots": 1}])
def test_bad_options_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        EstimationOptions(**options)


# The program ------------------------------------------------------------------------------------


@pytest.fixture
def estimate(load_program, tmp_path):
    """Write stories, run the program and read its pairs and manifest."""
    program = load_program("data_prep/estimate_quality.py")
    runs = iter(range(100))

    def run(stories, **options):
        folder = tmp_path / f"run{next(runs)}"
        folder.mkdir()
        write_table(stories, folder / "stories.parquet")
        given = {"splits": {"train": 0.7, "test": 0.3}, "label_source": "planted", **options}
        arguments = [f"--{key}={json.dumps(value)}" for key, value in given.items()]
        paths = [f"--stories={folder / 'stories.parquet'}", f"--out={folder / 'out'}"]
        program.main(load_config(program.Config, [*paths, *arguments]))
        return folder / "out"

    return run


@pytest.fixture(scope="module")
def stories():
    world = World(seed=5, prompts=30, stories_per_prompt=6)
    return stories_table(simulate_world(world), texts=False)


def test_the_program_writes_every_pair_with_its_weight(estimate, stories):
    out = estimate(stories, fit_split="train")
    check_parquet(out / "pairs.parquet", PAIRS)
    pairs = pq.read_table(out / "pairs.parquet")
    # Six stories of each of 30 prompts; stories without a time or score are none here.
    assert pairs.num_rows == 30 * 15
    p = pairs["p_chosen"].to_numpy()
    assert p.min() > 0.5
    np.testing.assert_allclose(pair_weights(pairs), 2 * p - 1)
    assert pairs["margin"].null_count == pairs.num_rows
    votes = dict(zip(stories["story_id"].to_pylist(), stories["score"].to_pylist(), strict=True))
    ids = pairs["chosen_story_id"].to_pylist()
    assert pairs["chosen_score"].to_pylist() == [votes[story] for story in ids]
    by_split = dict(zip(pairs["prompt_id"].to_pylist(), pairs["split"].to_pylist(), strict=True))
    assert set(by_split.values()) == {"train", "test"}
    counts = json.loads((out / "manifest.json").read_text())["counts"]
    assert counts["funnel"][-1]["kept"] == sum(one["pairs"] for one in counts["splits"].values())


def test_the_same_stories_give_the_same_bytes_in_any_order(estimate, stories):
    order = np.random.default_rng(0).permutation(stories.num_rows)
    one, other = estimate(stories), estimate(stories.take(pa.array(order)))
    for name in ("pairs.parquet", "estimates.parquet"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_a_second_run_says_unchanged(load_program, estimate, stories, capsys):
    out = estimate(stories)
    program = load_program("data_prep/estimate_quality.py")
    given = ["--splits", '{"train": 0.7, "test": 0.3}', "--label_source", "planted"]
    paths = ["--stories", str(out.parent / "stories.parquet"), "--out", str(out)]
    program.main(load_config(program.Config, [*given, *paths]))
    assert "unchanged" in capsys.readouterr().out


def test_the_truth_of_simulated_stories_is_not_looked_at(estimate, stories):
    place = stories.column_names.index("quality")
    lied = stories.set_column(place, "quality", pa.array(-stories["quality"].to_numpy()))
    one, other = estimate(stories), estimate(lied)
    assert (one / "pairs.parquet").read_bytes() == (other / "pairs.parquet").read_bytes()
    assert "quality" not in pq.read_schema(one / "pairs.parquet").names


def test_votes_of_test_prompts_change_no_pair_of_train(estimate, stories):
    before = estimate(stories, fit_split="train")
    pairs = pq.read_table(before / "pairs.parquet")
    tests = {row["prompt_id"] for row in pairs.to_pylist() if row["split"] == "test"}
    score = [
        3 * row["score"] + row["n_words"] if row["prompt_id"] in tests else row["score"]
        for row in stories.to_pylist()
    ]
    place = stories.column_names.index("score")
    changed = stories.set_column(place, "score", pa.array(score, stories.schema.field(place).type))
    after = pq.read_table(estimate(changed, fit_split="train") / "pairs.parquet")
    train = [
        [row for row in table.to_pylist() if row["split"] == "train"] for table in (pairs, after)
    ]
    assert train[0] == train[1]
    assert train[0]


@pytest.mark.parametrize("straddling", ["train", "test", "drop"])
def test_stories_that_no_split_has_change_no_pair_of_train(estimate, stories, straddling):
    options = {"splits": {"all": 1.0}, "test_from": "2022-01-01", "straddling": straddling}
    early, late = 1_600_000_000, 1_660_000_000
    rows = stories.to_pylist()
    for place, row in enumerate(rows):
        # A third of the prompts each: answered before the day, on both sides of it, and after it.
        kind = int(row["prompt_id"][1:]) % 3
        row["created_utc"] = place * 60 + (late if kind + place % 2 > 1 else early)
        row["score_utc"] = row["created_utc"] + 1
    found = []
    for factor in (1, 4):
        for row in rows:
            straddles = int(row["prompt_id"][1:]) % 3 == 1
            in_train = straddling == "train" and row["created_utc"] < late
            if straddles and not in_train and factor > 1:
                row["score"] = factor * row["score"] + row["n_words"]
        given = pa.Table.from_pylist(rows, stories.schema)
        pairs = pq.read_table(estimate(given, fit_split="train", **options) / "pairs.parquet")
        plain = [row for row in pairs.to_pylist() if int(row["prompt_id"][1:]) % 3 == 0]
        found.append([row for row in plain if row["split"] == "train"])
    assert found[0] == found[1]
    assert found[0]


def test_the_least_probability_and_the_other_columns(estimate, stories):
    out = estimate(stories, min_probability=0.8, weights=False, margins=True)
    pairs = pq.read_table(out / "pairs.parquet")
    assert 0 < pairs.num_rows < 450
    assert pairs["p_chosen"].to_numpy().min() > 0.8
    assert pairs["weight"].null_count == pairs.num_rows
    assert pairs["margin"].to_numpy().min() > 0
    funnel = json.loads((out / "manifest.json").read_text())["counts"]["funnel"]
    assert funnel[-1]["kept"] == pairs.num_rows


def test_a_model_of_fewer_stories_still_estimates_all(estimate, stories):
    out = estimate(stories, fit_stories=60)
    assert pq.read_table(out / "estimates.parquet").num_rows == stories.num_rows
    fitted = json.loads((out / "manifest.json").read_text())["counts"]["model"]["stories"]
    assert 0 < fitted <= 60


def test_rules_of_time_and_symmetry_still_work(estimate, stories):
    out = estimate(stories, chosen_later=True, symmetry_buckets=4)
    rows = pq.read_table(out / "pairs.parquet").to_pylist()
    assert all(row["chosen_created_utc"] > row["rejected_created_utc"] for row in rows)
    signs = [np.sign(row["chosen_n_words"] - row["rejected_n_words"]) for row in rows]
    for split in ("train", "test"):
        own = [s for s, row in zip(signs, rows, strict=True) if row["split"] == split]
        assert own.count(1) == own.count(-1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_gap": 0.25}, "min_gap is 0.25: it compares votes"),
        ({"min_probability": 0.4}, "min_probability is 0.4"),
        ({"fit_stories": 1}, "fit_stories is 1"),
        ({"fit_split": "dev"}, "fit_split is 'dev'"),
    ],
)
def test_options_that_make_no_sense_are_refused(estimate, stories, options, message):
    with pytest.raises(ConfigError, match=message):
        estimate(stories, **options)


def test_a_least_probability_that_no_pair_reaches_is_refused(estimate, stories, tmp_path):
    with pytest.raises(DataError, match=r"min_probability 0\.99999"):
        estimate(stories, min_probability=0.99999)
    assert not list(tmp_path.rglob("pairs.parquet"))


def test_stories_that_all_fall_to_the_rules_are_refused(estimate, stories):
    with pytest.raises(DataError, match="no story passes the rules"):
        estimate(stories, min_score=10**6)


# The comparison ---------------------------------------------------------------------------------


LOOSE = {"min_score": None, "min_gap": None, "chosen_later": False, "symmetry_buckets": None}
COMPARED = {
    "world": {"prompts": 40, "stories_per_prompt": 6},
    "worlds": {"biases": {"about": "<i>all</i>"}},
    "seeds": [0, 1],
    "reference": "votes",
    "arms": {"votes": {"rules": LOOSE}, "estimated": {"estimation": {}}},
}


def compared(program, out, **changes):
    given = {**COMPARED, "out": str(out), **changes}
    return load_config(
        program.Config, [f"--{key}={json.dumps(value)}" for key, value in given.items()]
    )


def test_the_comparison_runs_and_says_what_it_found(load_program, tmp_path, capsys, monkeypatch):
    program = load_program("eval/estimators.py")
    claim = {"variant": "estimated", "against": "votes", "measure": "labels",
             "direction": "higher", "because": "<b>exposure</b>"}  # fmt: skip
    world = {"about": "<i>all</i>", "predictions": [claim]}
    config = compared(program, tmp_path, worlds={"biases": world})
    program.main(config)
    rows = pq.read_table(tmp_path / "estimators.parquet").to_pylist()
    assert [(row["seed"], row["variant"], row["amount"]) for row in rows] == [
        (seed, arm, amount)
        for seed in (0, 1)
        for arm in ("votes", "estimated", TRUTH)
        for amount in ("equal", "natural")
    ]
    of = {(row["seed"], row["variant"], row["amount"]): row for row in rows}
    for seed in (0, 1):
        votes, estimate, truth = (of[seed, arm, "natural"] for arm in ("votes", "estimated", TRUTH))
        assert estimate["kept"] == truth["kept"] == truth["right"] == truth["labels"] == 1
        assert estimate["labels"] > votes["labels"]
        assert votes["labels"] == pytest.approx(
            votes["kept"] * votes["right"] + (1 - votes["kept"]) / 2
        )
        assert truth["agreement"] > 0.7
        # Only an estimate says how sure it is.
        assert np.isnan(votes["calibration"])
        assert np.isfinite(estimate["calibration"])
        fewest = min(row["pairs"] for (own, *_), row in of.items() if own == seed)
        assert {of[seed, arm, "equal"]["pairs"] for arm in config.arms} == {fewest}
    study = json.loads((tmp_path / "estimators.json").read_text())
    assert study["checked"][0]["difference"]["mean"] == pytest.approx(
        np.mean([of[s, "estimated", "equal"]["labels"] - of[s, "votes", "equal"]["labels"]
                 for s in (0, 1)]), abs=1e-6,
    )  # fmt: skip
    page = (tmp_path / "estimators.html").read_text()
    assert "&lt;i&gt;all" in page
    assert "&lt;b&gt;exposure" in page
    assert "<i>all" not in page
    assert "right of all test pairs" in page
    assert "nan" not in page
    assert (tmp_path / "estimators_worlds.png").read_bytes().startswith(b"\x89PNG")
    assert "var(--" not in (tmp_path / "estimators_worlds.svg").read_text()
    assert "labels_low" in (tmp_path / "estimators.csv").read_text()
    first = (tmp_path / "estimators.txt").read_text()
    assert "nan" not in first
    program.main(config)
    assert "unchanged" in capsys.readouterr().out
    # The parts that are there are not made again, and the result is the same.
    (tmp_path / "manifest.json").unlink()
    monkeypatch.setattr(program, "measure", None)
    program.main(config)
    assert (tmp_path / "estimators.txt").read_text() == first


def test_the_truth_reaches_no_arm(load_program, tmp_path, monkeypatch):
    program = load_program("eval/estimators.py")
    config = compared(program, tmp_path)
    world = replace(config.world, seed=1)
    drawn, seen = simulate_world(world), []

    def turned(_):
        return replace(drawn, quality=-drawn.quality)

    for simulate in (simulate_world, turned):
        monkeypatch.setattr(program, "simulate_world", simulate)
        rows = program.measure(config, world)
        seen.append([row["figures"] for row in rows if row["amount"] == "natural"])
    for one, other in zip(*[of[:2] for of in seen], strict=True):
        # The same pairs, right exactly where they were wrong.
        assert (one["pairs"], one["kept"]) == (other["pairs"], other["kept"])
        assert one["right"] == pytest.approx(1 - other["right"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reference": "full"}, "reference is 'full'"),
        ({"seeds": [1]}, "seeds is"),
        ({"seeds": [1, 2, 2]}, "seeds is"),
        ({"pairs": 0}, "pairs is 0"),
        ({"arms": {"truth": {}}, "reference": "truth"}, "truth"),
        ({"arms": {"votes": {"rules": {"min_scor": 3}}}}, "arms: votes.*min_scor"),
        ({"arms": {"votes": {"rules": {"seed": 3}}}}, "arms: votes.*'seed'"),
        ({"arms": {"votes": {"min_probability": 0.8}}}, "votes.*give estimation"),
        ({"arms": {"votes": {"weights": False}}}, "votes.*give estimation"),
        ({"arms": {"votes": {"estimation": {}, "min_probability": 1.0}}}, "min_probability is"),
        ({"worlds": {"w": {"changes": {"readers.audienc": 3}}}}, "worlds: w.*audience"),
        ({"worlds": {"w": {"predictions": [
            {"variant": "vote", "against": "votes", "measure": "right", "direction": "lower"}
        ]}}}, "worlds: w.*unknown variant"),
    ],
)  # fmt: skip
def test_mistakes_of_the_comparison_are_said_before_any_world_is_run(
    load_program, tmp_path, changes, said
):
    program = load_program("eval/estimators.py")
    with pytest.raises(ConfigError, match=said):
        program.main(compared(program, tmp_path, **changes))


def test_a_world_too_small_for_an_arm_is_named(load_program, tmp_path):
    program = load_program("eval/estimators.py")
    arms = {"votes": {"rules": {**LOOSE, "min_score": 10**6}}}
    with pytest.raises(DataError, match="world biases, seed 0: no pair is left"):
        program.main(compared(program, tmp_path, arms=arms))


@pytest.mark.parametrize(
    ("program", "config"),
    [
        ("data_prep/estimate_quality.py", "data/sample_estimate.yaml"),
        ("data_prep/estimate_quality.py", "data/reddit_2013_estimate.yaml"),
        ("eval/estimators.py", "eval/estimators.yaml"),
    ],
)
def test_the_configs_can_be_read(load_program, program, config):
    load_config(load_program(program).Config, ["--config", str(CONFIGS / config)])
