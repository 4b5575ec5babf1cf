"""Plackett-Luce utilities: known solutions, ties, holes in the comparisons, intervals."""

import itertools
import math
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from narra_golden import golden

from litbench.runs.errors import DataError
from litbench.writers.plackett_luce import Ranking, plackett_luce, ranking_of

SCALES = ("authenticity", "empathy", "engagement", "emotion_provoking", "narrative_complexity")


def panel(rng, utilities, raters=5, prompts=11, tied=0.09, story_sd=None):
    """Rankings by the model, with neighbours tied at random: 24 blocks of 55 in the mean.

    With `story_sd`, the raters of a prompt share the stories, whose quality varies around that of
    their writer by so much.
    """
    rankings = []
    effects = rng.normal(0, story_sd or 0, (prompts, len(utilities)))
    for rater, prompt in itertools.product(range(raters), range(prompts)):
        shifted = zip(utilities.items(), effects[prompt], strict=True)
        noisy = {item: u + effect + rng.gumbel() for (item, u), effect in shifted}
        blocks = []
        for item in sorted(noisy, key=noisy.get, reverse=True):
            if blocks and rng.random() < tied:
                blocks[-1].append(item)
            else:
                blocks.append([item])
        rankings.append(Ranking(blocks, rater, None if story_sd is None else prompt))
    return rankings


def log_likelihood(rankings, values):
    """The mean over all orders of tied items, written out."""
    total = 0.0
    for ranking in rankings:
        orders = [
            list(itertools.chain(*order))
            for order in itertools.product(*map(itertools.permutations, ranking.blocks))
        ]
        probabilities = [
            math.prod(
                math.exp(values[item]) / sum(math.exp(values[i]) for i in order[index:])
                for index, item in enumerate(order)
            )
            for order in orders
        ]
        total += math.log(np.mean(probabilities))
    return total


def test_two_items_three_wins_to_one():
    rankings = [Ranking([["a"], ["b"]], rater) for rater in range(3)] + [Ranking([["b"], ["a"]], 3)]
    result = plackett_luce(rankings)
    assert result.values == pytest.approx({"a": math.log(3) / 2, "b": -math.log(3) / 2}, abs=1e-8)
    assert result.values["a"] == pytest.approx(0.5493, abs=5e-5)


@pytest.mark.parametrize("prior", [0.25, 1.0, 4.0])
def test_strength_of_the_prior(prior):
    """The derivative of 5 log sigmoid(2u) - prior u^2 is zero at the maximum."""
    value = plackett_luce([Ranking([["a"], ["b"]])] * 5, prior=prior).values["a"]
    assert 5 / (1 + math.exp(2 * value)) == pytest.approx(prior * value)


def test_golden_rankings():
    for case in golden("plackett_luce")["cases"]:
        result = plackett_luce(
            [Ranking([[str(i)] for i in ranking]) for ranking in case["rankings_best_to_worst"]]
        )
        assert bool(result.infinite) != case["finite_mle"]
        if case["finite_mle"]:
            utilities = [result.values[str(i)] for i in range(case["n_items"])]
            assert utilities == pytest.approx(case["utilities_mean_zero"], abs=1e-4)
            assert result.log_likelihood == pytest.approx(case["log_likelihood"], abs=1e-4)


@pytest.mark.skipif("PSYCHDEPTH" not in os.environ, reason="PSYCHDEPTH is not set to its folder")
def test_psychdepth(monkeypatch):
    import pyarrow.parquet as pq  # noqa: PLC0415

    folder = Path(os.environ["PSYCHDEPTH"])
    stories = pq.read_table(folder / "stories.parquet").to_pylist()
    system = {s["story_id"]: "Human" if s["is_human"] else s["system"] for s in stories}
    rated = defaultdict(lambda: defaultdict(list))
    for row in pq.read_table(folder / "human_ratings.parquet").to_pylist():
        group = rated[row["rater_id"], row["prompt_id"]]
        group[system[row["story_id"]]].append(sum(row[scale] for scale in SCALES))
    rankings = [
        ranking_of({name: round(np.mean(sums) / len(SCALES), 9) for name, sums in group.items()}, r)
        for (r, _), group in rated.items()
    ]
    result = plackett_luce(rankings)
    assert (result.rankings, result.tied_blocks, result.raters) == (55, 24, 5)
    assert {name: round(value, 3) for name, value in result.values.items()} == {
        "GPT-4": 1.267,
        "Llama-2-70B": 0.042,
        "Human": -0.028,
        "Llama-2-13B": -0.379,
        "Llama-2-7B": -0.398,
        "Vicuna-33B": -0.505,
    }
    efron_always(monkeypatch)
    assert plackett_luce(rankings).values["GPT-4"] == pytest.approx(1.139, abs=5e-4)


def test_ties_average_over_orders():
    rng = np.random.default_rng(3)
    rankings = panel(rng, {"a": 0.5, "b": 0.0, "c": -0.2, "d": -0.3}, prompts=4, tied=0.5)
    result = plackett_luce(rankings)
    assert result.tied_blocks > 10
    assert result.log_likelihood == pytest.approx(log_likelihood(rankings, result.values), abs=1e-9)
    for item, step in itertools.product(result.values, (-0.01, 0.01)):
        moved = {**result.values, item: result.values[item] + step}
        assert log_likelihood(rankings, moved) < result.log_likelihood


def efron_always(monkeypatch):
    """Efron's form for every tied block, not only for large ones."""
    monkeypatch.setattr("litbench.writers.plackett_luce._MAX_ORDERED", 1)


def test_efron_is_its_formula(monkeypatch):
    efron_always(monkeypatch)
    # Two tied above one: exp(2u) / ((2 exp(u) + exp(v)) (exp(u) + exp(v))), and c wins once.
    rankings = [Ranking([["a", "b"], ["c"]]), Ranking([["c"], ["a", "b"]])]
    result = plackett_luce(rankings)
    assert result.values["a"] == pytest.approx(result.values["b"], abs=1e-8)
    a, c = math.exp(result.values["a"]), math.exp(result.values["c"])
    terms = (a * a / ((2 * a + c) * (a + c)), c / (2 * a + c) / 2)
    assert result.log_likelihood == pytest.approx(sum(map(math.log, terms)), abs=1e-9)


def test_a_block_of_six_needs_no_720_orders():
    items = list("abcdef")
    rankings = [
        Ranking([items]),
        Ranking([[i] for i in items]),
        Ranking([[i] for i in items[::-1]]),
    ]
    assert max(map(abs, plackett_luce(rankings).values.values())) < 1


@pytest.mark.parametrize(
    ("orders", "infinite"),
    [
        (["abc", "acb", "bc", "cb"], ("a",)),
        (["abc", "bac", "ab"], ("c",)),
        (["abc", "abc"], ("a", "b", "c")),
        (["ab", "ba", "cd", "dc", "cd"], ("c", "d")),
    ],
)
def test_items_without_a_finite_utility_are_named(orders, infinite):
    rankings = [Ranking([[item] for item in order], n) for n, order in enumerate(orders)]
    result = plackett_luce(rankings)
    assert result.infinite == infinite
    assert all(math.isnan(result.values[item]) for item in infinite)
    shrunk = plackett_luce(rankings, prior=0.5)
    assert not shrunk.infinite
    assert shrunk.prior == 0.5
    assert not any(math.isnan(value) for value in shrunk.values.values())
    assert sum(shrunk.values.values()) == pytest.approx(0, abs=1e-9)


def test_a_tie_of_two_says_nothing_about_them(monkeypatch):
    rankings = [Ranking([["a", "b"]]), Ranking([["b"], ["c"]]), Ranking([["c"], ["b"]])]
    assert plackett_luce(rankings).infinite == ("a",)
    efron_always(monkeypatch)
    assert not plackett_luce(rankings).infinite


def test_ratings_become_a_ranking():
    assert ranking_of({"a": 2, "b": 4, "c": 2}, "r") == Ranking([["b"], ["a", "c"]], "r")


def test_intervals_need_raters_who_all_can_be_left_out():
    rng = np.random.default_rng(5)
    rankings = panel(rng, {"a": 0.6, "b": 0.0, "c": -0.6})
    result = plackett_luce(rankings)
    assert all(result.low[i] < result.values[i] < result.high[i] for i in result.values)
    alone = plackett_luce([Ranking(ranking.blocks, "one") for ranking in rankings])
    assert alone.values == pytest.approx(result.values, abs=1e-8)
    assert math.isnan(alone.low["a"])
    # Only rater "x" ever ranks "d" above another.
    pairs = [("x", ["d", "a"]), ("y", ["a", "d"]), ("y", ["a", "b"]), ("x", ["b", "a"])]
    result = plackett_luce([Ranking([[i] for i in order], rater) for rater, order in pairs])
    assert not result.infinite
    assert all(math.isnan(bound) for bound in result.low.values())


@pytest.mark.parametrize(
    ("rankings", "options", "message"),
    [
        ([Ranking([["a"]])], {}, "no ranking has two items"),
        ([Ranking([["a"], ["a"]])], {}, "has an item twice"),
        ([Ranking([["a"], ["b"]])], {"prior": -1}, "prior is -1"),
    ],
)
def test_errors(rankings, options, message):
    with pytest.raises(DataError, match=message):
        plackett_luce(rankings, **options)


def test_two_way_variance_by_hand():
    rng = np.random.default_rng(9)
    rankings = panel(rng, {"a": 0.6, "b": 0.0, "c": -0.6}, story_sd=1.0)

    def spread(name):
        """The jackknife variance of "a" by refitting without each cluster."""
        clusters = sorted({name(ranking) for ranking in rankings})
        results = [
            plackett_luce([ranking for ranking in rankings if name(ranking) != cluster]).values["a"]
            for cluster in clusters
        ]
        best = plackett_luce(rankings).values["a"]
        return (len(results) - 1) / len(results) * sum((value - best) ** 2 for value in results)

    by_rater, by_prompt, by_both = (
        spread(name)
        for name in (
            lambda item: item.rater,
            lambda item: item.prompt,
            lambda item: (item.rater, item.prompt),
        )
    )
    result = plackett_luce(rankings)
    # 97.5 % of Student's t with 4 degrees of freedom; single rankings are left out by one step.
    half = 2.7764451 * math.sqrt(by_rater + by_prompt - by_both)
    assert result.high["a"] - result.values["a"] == pytest.approx(half, rel=0.05)
    assert (result.raters, result.prompts) == (5, 11)
    # One way where only prompts, or only raters, are named; none where one is alone.
    only = plackett_luce([Ranking(ranking.blocks, prompt=ranking.prompt) for ranking in rankings])
    half = 2.2281389 * math.sqrt(by_prompt)
    assert only.high["a"] - only.values["a"] == pytest.approx(half, rel=1e-4)
    alone = plackett_luce([Ranking(ranking.blocks, "one", ranking.prompt) for ranking in rankings])
    assert math.isnan(alone.low["a"])


@pytest.mark.long
@pytest.mark.parametrize("story_sd", [0.0, 0.5, 1.0])
def test_two_way_intervals_cover(story_sd):
    utilities = {"a": 1.267, "b": 0.042, "c": -0.028, "d": -0.379, "e": -0.398, "f": -0.504}
    # What many prompts would give: varying stories bring the utilities closer together.
    many = panel(np.random.default_rng(7), utilities, 1, 20_000, story_sd=story_sd)
    true = plackett_luce([Ranking(item.blocks) for item in many]).values
    rng = np.random.default_rng(11)
    hits, one_way = [], []
    for _ in range(300):
        rankings = panel(rng, utilities, story_sd=story_sd)
        result = plackett_luce(rankings)
        hits += [result.low[item] <= u <= result.high[item] for item, u in true.items()]
        result = plackett_luce([Ranking(ranking.blocks, ranking.rater) for ranking in rankings])
        one_way += [result.low[item] <= u <= result.high[item] for item, u in true.items()]
    print(f"story sd {story_sd}: {np.mean(hits):.3f}, by rater only {np.mean(one_way):.3f}")
    assert np.mean(hits) >= 0.92
    if story_sd == 1:
        assert np.mean(one_way) < 0.85


@pytest.mark.long
def test_intervals_cover():
    rng = np.random.default_rng(11)
    utilities = {"a": 1.267, "b": 0.042, "c": -0.028, "d": -0.379, "e": -0.398, "f": -0.504}
    hits, tied = [], []
    for _ in range(1_000):
        result = plackett_luce(panel(rng, utilities))
        hits += [result.low[item] <= u <= result.high[item] for item, u in utilities.items()]
        tied.append(result.tied_blocks)
    assert 20 < np.mean(tied) < 28
    assert 0.92 <= np.mean(hits) <= 0.97
