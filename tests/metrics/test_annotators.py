"""Leave-one-out agreement: what holds whatever the numbers are."""

import itertools
import json
import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.evaluation.report.leaderboard import annotators_section
from litbench.metrics.annotators import (
    annotator_agreement,
    annotators_json,
    krippendorff_alpha,
)

ANNOTATORS = ("ada", "bo", "cy", "di")


def pairs_of(prompts, stories):
    """All pairs within each prompt: first, second, clusters."""
    pairs = [
        (f"{prompt}-{first}", f"{prompt}-{other}", prompt)
        for prompt in range(prompts)
        for first, other in itertools.combinations(range(stories), 2)
    ]
    return [list(column) for column in zip(*pairs, strict=True)]


def panel(seed, prompts=12, stories=4, noise=1.0, names=ANNOTATORS):
    """Ratings 1 to 5 around a quality of each story."""
    draw = np.random.default_rng(seed)
    ratings = {person: {} for person in names}
    for prompt, story in itertools.product(range(prompts), range(stories)):
        quality = draw.normal(3, 1)
        for person in names:
            rating = float(np.clip(round(quality + noise * draw.normal()), 1, 5))
            ratings[person][f"{prompt}-{story}"] = rating
    return ratings


def credit_of(ratings, first, second):
    """How far one set of ratings prefers the first story."""
    gaps = [ratings[first] - ratings[other] for first, other in zip(first, second, strict=True)]
    return (1 + np.sign(gaps)) / 2


def test_one_annotator_by_hand():
    # Three people, two stories of one prompt and two of another; "b" is the one to check.
    ratings = {
        "a": {"s": 5.0, "t": 1.0, "u": 2.0, "v": 2.0},
        "b": {"s": 1.0, "t": 2.0, "u": 4.0, "v": 4.0},
        "c": {"s": 4.0, "t": 3.0, "u": 1.0, "v": 3.0},
    }
    result = annotator_agreement(ratings, ["s", "u"], ["t", "v"], ["p", "q"], {})
    assert result is not None
    # s, t: a for s, others 2.5 and 2.5, so left out; b for t, others for s: 0; c for s, others
    # 3 and 1.5, for s: 1. u, v: a tied, others for v: 1/2; b tied, others for v: 1/2; c for v,
    # the others tied: left out.
    assert (result.one_annotator.n, result.left_out, result.pairs) == (4, 2, 2)
    assert result.one_annotator.mean == pytest.approx((0 + 1 + 0.5 + 0.5) / 4)
    # s, t: a and b differ, a and c agree, b and c differ; u, v: a tie in each.
    assert result.two_annotators.mean == pytest.approx((1 / 3 + 1 / 2) / 2)
    # Only c decides between u and v.
    assert (result.two_decided.mean, result.two_decided.n) == (pytest.approx(1 / 3), 1)
    assert {name: interval.mean for name, interval in result.by_annotator.items()} == {
        "a": 0.5,
        "b": 0.25,
        "c": 1.0,
    }


@given(st.integers(0, 10_000), st.floats(0, 1.5))
def test_exchanging_the_stories_of_every_pair_changes_nothing(seed, min_gap):
    ratings = panel(seed, prompts=4)
    judge = panel(seed + 1, prompts=4, names=("judge",))["judge"]
    first, second, clusters = pairs_of(4, 4)
    item = annotator_agreement(
        ratings, first, second, clusters, {"j": credit_of(judge, first, second)}, min_gap=min_gap
    )
    other = annotator_agreement(
        ratings, second, first, clusters, {"j": credit_of(judge, second, first)}, min_gap=min_gap
    )
    if item is None or other is None:
        assert item is None
        assert other is None
        return
    assert annotators_json(item) == annotators_json(other)
    possible = len(ANNOTATORS) * len(first)
    assert item.one_annotator.n + item.left_out == possible


def test_random_annotators_score_one_half():
    # Chosen by the mean of the whole panel, such pairs would flatter each of its people.
    whole, gaps = [], {0.0: [], 1.0: []}
    for seed in range(30):
        draw = np.random.default_rng(seed)
        first, second, clusters = pairs_of(12, 4)
        stories = sorted({*first, *second})
        ratings = {p: {s: float(draw.integers(1, 6)) for s in stories} for p in ANNOTATORS[:3]}
        for gap, means in gaps.items():
            result = annotator_agreement(ratings, first, second, clusters, {}, min_gap=gap)
            means.append(result.one_annotator.mean)
        mean = {s: np.mean([ratings[p][s] for p in ratings]) for s in stories}
        far = [abs(mean[a] - mean[b]) >= 1 for a, b in zip(first, second, strict=True)]
        columns = ([x for x, keep in zip(c, far, strict=True) if keep] for c in (first, second))
        far_clusters = np.array(clusters)[far]
        whole.append(annotator_agreement(ratings, *columns, far_clusters, {}).one_annotator.mean)
    assert all(abs(np.mean(means) - 0.5) < 0.02 for means in gaps.values())
    assert np.mean(whole) > 0.7


def test_missing_ratings():
    ratings = {
        "a": {"s": 5.0, "t": 1.0},
        "b": {"s": 4.0},
        "c": {"t": 2.0},
        "d": {"x": 1.0},
    }
    result = annotator_agreement(ratings, ["s"], ["t"], ["p"], {})
    assert result is not None
    # Only a rated both; b and c say what the others think of them.
    assert (result.one_annotator.n, result.one_annotator.mean) == (1, 1.0)
    assert list(result.by_annotator) == ["a"]
    assert annotator_agreement({"a": ratings["a"]}, ["s"], ["t"], ["p"], {}) is None
    assert annotator_agreement({"a": {"s": 1.0}, "b": {"t": 2.0}}, ["s"], ["t"], ["p"], {}) is None


def test_names_move_no_cursor():
    ratings = {f"{name}\x1b[2J": ratings_of for name, ratings_of in panel(3).items()}
    first, second, clusters = pairs_of(12, 4)
    judge = credit_of(next(iter(ratings.values())), first, second)
    result = annotator_agreement(ratings, first, second, clusters, {"a\x1b[2J": judge})
    text = annotators_section(annotators_json(result)).as_text()
    assert "a[2J  " in text
    assert "\x1b" not in text


def test_krippendorff_alpha():
    assert krippendorff_alpha([[1, 1], [2, 2], [3, 3, 3]]) == pytest.approx(1)
    # Two stories, ratings crossed: observed 1, expected mean squared difference of the pairs of
    # 1, 2, 1, 2 is 4 of 6.
    assert krippendorff_alpha([[1, 2], [1, 2]]) == pytest.approx(1 - 1 / (4 / 6))
    # A story with one rating says nothing, not even about what to expect.
    assert krippendorff_alpha([[1, 2], [1, 2], [9]]) == krippendorff_alpha([[1, 2], [1, 2]])
    assert math.isnan(krippendorff_alpha([[2, 2], [2, 2]]))
    assert math.isnan(krippendorff_alpha([[1], [2]]))
    draw = np.random.default_rng(0)
    assert abs(krippendorff_alpha(draw.normal(size=(2_000, 3)).tolist())) < 0.05


@pytest.mark.parametrize("prompts", [1, 8])
def test_agreement_is_at_chance_unless_it_is_significantly_above(prompts):
    ratings = {
        name: {f"{p}-{k}": float(k) for p in range(prompts) for k in range(6)} for name in "ab"
    }
    result = annotator_agreement(ratings, *pairs_of(prompts, 6), {})
    assert result.two_annotators.mean == 1
    # All agree, but of one prompt nothing is known.
    assert result.at_chance == (prompts == 1)


@pytest.mark.parametrize(("shift", "is_dependent"), [(0.0, False), (1.5, True)])
def test_annotators_that_are_made_to_differ_are_named(shift, is_dependent):
    """Three slots of one list: with a shift, a hash orders them apart, whatever the story is."""
    draw = np.random.default_rng(2)
    quality = {f"{p}-{s}": draw.normal(0, 0.7) for p in range(40) for s in range(4)}
    names = ("a", "b", "c")
    ratings = {name: {} for name in names}
    for story, level in quality.items():
        offsets = draw.permutation([-shift, 0.0, shift])
        for name, offset in zip(names, offsets, strict=True):
            ratings[name][story] = level + offset + draw.normal()
    first, second, clusters = pairs_of(40, 4)
    result = annotator_agreement(
        ratings, first, second, clusters, {"j": credit_of(quality, first, second)}
    )
    assert result.is_dependent == is_dependent
    assert not result.at_chance or is_dependent
    text = annotators_section(annotators_json(result)).as_text()
    assert ("residuals correlate negatively" in text) == is_dependent


def test_independent_annotators_are_rarely_called_dependent():
    alarms = 0
    for seed in range(40):
        ratings = panel(seed, prompts=20, names=(*ANNOTATORS, "j"))
        judge = ratings.pop("j")
        pairs = pairs_of(20, 4)
        alarms += annotator_agreement(
            ratings, *pairs, {"j": credit_of(judge, *pairs[:2])}
        ).is_dependent
    assert alarms < 3


# As in docs/results: one annotator against the others, two annotators, Krippendorff's alpha.
@pytest.mark.parametrize(
    ("name", "option", "one", "two", "alpha"),
    [
        (
            "psychdepth",
            "--raters={longer: {kind: longer}}",
            (0.679, 0.629, 0.724),
            (0.623, 0.576, 0.667),
            0.191,
        ),
        ("ttcw", "--reference=gpt-4-turbo", (0.803, 0.698, 0.878), None, None),
    ],
)
def test_annotators_of_published_sets(program, tmp_path, name, option, one, two, alpha):
    if name.upper() not in os.environ:
        pytest.skip(f"{name.upper()} does not name the folder of that data set")
    made, out = tmp_path / name, tmp_path / "out"
    program("data_prep/import.py", name, "--from", os.environ[name.upper()], "--out", made)
    files = [f"--{key}={made / 'pairs' / key}.parquet" for key in ("pairs", "ratings")]
    program("eval/benchmark.py", *files, "--out", out, option)
    result = json.loads((out / "annotators.json").read_text())

    def rounded(key):
        return tuple(round(result[key][end], 3) for end in ("mean", "low", "high"))

    assert rounded("one_annotator") == one
    if two is not None:
        assert (rounded("two_annotators"), round(result["alpha"], 3)) == (two, alpha)
