"""The feature model: finite on any text, bit-exact, honest about what it was fitted on."""

import math
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from litbench.data.records import connected_prompts
from litbench.models import features, linear_preference
from litbench.models.features import (
    FEATURES,
    FeatureModel,
    FeatureOptions,
    feature_matrix,
    fit_features,
    shared_matrix,
)
from litbench.raters.entries import RaterSpec
from litbench.raters.interface import blind, judge_pairs
from litbench.testing import check_rater


def with_commas(text, source, every):
    return "".join(
        letter.replace(" ", ", ") if source.random() < every else letter for letter in text
    )


@pytest.fixture(scope="session")
def comma_rows(invented):
    """Pairs whose chosen story has commas in it, when `planted`; else a coin decides."""

    def build(n, planted=True, seed=0, prompts=20):
        source = random.Random(seed)
        rows = []
        for index in range(n):
            many = with_commas(invented(source, source.randint(30, 80)), source, 0.3)
            few = with_commas(invented(source, source.randint(30, 80)), source, 0.1)
            sides = (many, few) if planted or source.random() < 0.5 else (few, many)
            rows.append(
                {
                    "chosen": sides[0],
                    "rejected": sides[1],
                    "prompt_id": f"p{index % prompts}",
                    "chosen_story_id": f"c{seed}-{index}",
                    "rejected_story_id": f"r{seed}-{index}",
                }
            )
        return rows

    return build


@pytest.mark.parametrize("kind", ["features", "bag_of_words"])
def test_negatives_neither_select_the_strength_nor_describe_stories(
    kind, comma_rows, pair_table, monkeypatch
):
    pairs, seen = pair_table(comma_rows(60)), []
    choose = lambda *columns: seen.append([columns[k].shape[0] for k in (0, 1, 4)]) or 1.0  # noqa: E731
    monkeypatch.setattr(linear_preference, "choose_strength", choose)
    plain, model = (
        RaterSpec(kind, kind, options).train(pairs, Path(), 0)
        for options in ({}, {"negatives": True})
    )
    assert seen == [[60] * 3] * 2
    texts = [pairs[name].to_pylist() for name in ("prompt", "chosen")]
    assert not np.array_equal(model.score(*texts), plain.score(*texts))
    if kind == "features":
        assert (plain.negatives, model.negatives) == (0, 3)
        assert model.mean.tolist() == plain.mean.tolist()
        rewards = [*model.score(*texts), *model.score(texts[0], pairs["rejected"].to_pylist())]
        ends = [model.reward_quantiles[0], model.reward_quantiles[-1]]
        assert ends == pytest.approx([min(rewards), max(rewards)], abs=1e-5)


@pytest.mark.parametrize("kind", ["features", "bag_of_words"])
def test_flipped_by_names_the_prompts_whose_removal_flips_a_verdict(kind, comma_rows, pair_table):
    pairs = pair_table(comma_rows(80, planted=False, prompts=8))
    others = pair_table(comma_rows(60, planted=False, seed=1))
    # One strength, as the model without a prompt has that of the whole model.
    spec = RaterSpec("r", kind, {"c": [0.1]})
    model = spec.train(pairs, Path(), 0)
    result = model.flipped_by(blind(others)[0])
    outcomes = np.array(judge_pairs(model, others)["outcome"].to_pylist())
    prompts = np.array(connected_prompts(pairs))
    differs = []
    for prompt in sorted(set(prompts)):
        without = spec.train(pairs.filter(pa.array(prompts != prompt)), Path(), 0)
        flips = outcomes != np.array(judge_pairs(without, others)["outcome"].to_pylist())
        named = np.array([prompt in names for names in result])
        assert np.corrcoef(flips, named)[0, 1] > 0.5
        differs.append((flips != named).mean())
    # Means, scales and the vocabulary stay those of all training pairs.
    assert np.mean(differs) < 0.05


def agreement(model, pairs):
    outcomes = judge_pairs(model, pairs)["outcome"].to_pylist()
    return outcomes.count("chosen") / len(outcomes)


def surface_features(prompt, story):
    return feature_matrix([prompt], [story])[0].tolist()


def coefficient(model, name):
    return float(model.coefficients[model.names.index(name)])


@given(prompt=st.text(), story=st.text())
@example(prompt="", story="")
@example(prompt="?", story="🌙🌙🌙")
@example(prompt="夜", story="月亮升起。她走了。")
@example(prompt="a", story="\x00\u2028\u00a0\ufeff")
def test_features_are_finite_for_any_text(prompt, story):
    values = surface_features(prompt, story)
    assert len(values) == len(FEATURES)
    assert all(math.isfinite(value) for value in values)


@pytest.mark.parametrize(
    "unit", ["a", ".", "!?", ".)", '"', "“", "。", "\n", "i ", "é🌙", "a'", "( "], ids=repr
)
def test_a_hundred_thousand_characters_of_one_kind_are_finite(unit):
    # A regular expression that tries a run of marks from every place needs minutes for this.
    story = unit * (100_000 // len(unit))
    assert np.isfinite(surface_features("the moth", story)).all()


def test_features_count_what_they_name():
    story = 'I saw it, briefly. "Run!" he said; i ran... Did SHE? *No* -- 3 doors'
    result = dict(zip(FEATURES, surface_features("The seven doors", story), strict=True))
    words = 13  # I saw it briefly Run he said i ran Did SHE No doors, and the digit makes 14
    words += 1
    assert result["log_words"] == math.log1p(words)
    assert result["commas"] == 1 / words
    assert result["exclamations"] == 1 / words
    assert result["questions"] == 1 / words
    assert result["semicolons"] == 1 / words
    assert result["ellipses"] == 1 / words
    assert result["dashes"] == 1 / words
    assert result["digits"] == 1 / words
    assert result["asterisks"] == math.log1p(2)
    assert result["lower_case_i"] == 1
    assert result["rate_i"] == 2 / words
    assert result["rate_third_person"] == 3 / words  # it, he, SHE
    assert result["all_caps_words"] == 1 / words
    assert result["quoted_share"] == len('"Run!"') / len(story)
    assert result["prompt_overlap"] == 1 / 2  # doors, of seven and doors
    assert result["ends_in_quote"] == 0


@pytest.mark.parametrize(
    ("story", "lengths"),
    [
        ("One two. Three four five! Six", [2, 3, 1]),
        ('He said "go." Then left?! Yes.', [3, 2, 1]),
        ("Wait... what\nNew line", [1, 1, 2]),
        ("3.5 miles", [2]),
        ("ab。cd。", [1, 1]),
        ("ab。。cd", [1, 1]),
    ],
)
def test_sentence_ends(story, lengths):
    result = dict(zip(FEATURES, surface_features("", story), strict=True))
    assert result["sentence_length"] == math.log1p(np.mean(lengths))
    assert result["sentence_length_sd"] == math.log1p(np.std(lengths))
    assert result["last_sentence_length"] == math.log1p(lengths[-1])


def test_it_is_blind_and_the_same_once_saved(pair_table, comma_rows, tmp_path):
    pairs = pair_table(comma_rows(80))
    model = fit_features(pairs, FeatureOptions(c=[0.1], drop=["digits"]))
    check_rater(model, pair_table(comma_rows(80, planted=False, seed=3)), tolerance=1e-12)
    model.save(tmp_path)
    again = FeatureModel.load(tmp_path)
    assert again.training_prompts() == model.training_prompts()
    assert again.notes() == model.notes()


def test_a_planted_liking_of_commas_is_learned(pair_table, comma_rows):
    model = fit_features(pair_table(comma_rows(200)), FeatureOptions())
    assert coefficient(model, "commas") > 0
    # What was planted outweighs everything that was not.
    assert abs(model.coefficients).argmax() == model.names.index("commas")
    assert agreement(model, pair_table(comma_rows(200, seed=1))) > 0.9
    dislikes = [
        {**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in comma_rows(200)
    ]
    opposite = fit_features(pair_table(dislikes), FeatureOptions())
    assert coefficient(opposite, "commas") < 0


def test_random_labels_teach_nothing(pair_table, comma_rows):
    model = fit_features(pair_table(comma_rows(300, planted=False)), FeatureOptions())
    held_out = pair_table(comma_rows(400, planted=False, seed=5))
    # Four standard errors of a fair coin over 400 pairs: 4 * sqrt(0.25 / 400) = 0.1.
    assert abs(agreement(model, held_out) - 0.5) < 4 * math.sqrt(0.25 / 400)


def test_swapping_every_label_flips_every_coefficient(pair_table, comma_rows):
    rows = comma_rows(60)
    swapped = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows]
    options = FeatureOptions(c=[0.1])
    first, other = (
        fit_features(pair_table(rows), options),
        fit_features(pair_table(swapped), options),
    )
    np.testing.assert_allclose(first.coefficients, -other.coefficients, atol=1e-6)


def test_strength_is_tuned_by_prompt(pair_table, invented):
    """Within a prompt the same two stories recur, so folds that cut prompts would leak labels."""
    source = random.Random(4)
    rows = []
    for prompt in range(12):
        sides = [invented(source, source.randint(30, 80)) for _ in range(2)]
        rows += [
            {
                "prompt_id": f"p{prompt}",
                "chosen": sides[0],
                "rejected": sides[1],
                "chosen_story_id": f"c{prompt}-{copy}",
                "rejected_story_id": f"r{prompt}-{copy}",
            }
            for copy in range(8)
        ]
    strengths = [0.0001, 100.0]
    noise = fit_features(pair_table(rows), FeatureOptions(c=strengths))
    assert noise.c == min(strengths)
    # The same rows under prompts that cut across the stories: now memory pays.
    leaky = [{**row, "prompt_id": f"p{index % 8}"} for index, row in enumerate(rows)]
    assert fit_features(pair_table(leaky), FeatureOptions(c=strengths)).c == max(strengths)


def test_shared_features_are_computed_once(pair_table, comma_rows, monkeypatch):
    computed = []

    def note(prompts, stories):
        computed.extend(stories)
        return feature_matrix(prompts, stories)

    monkeypatch.setattr(features, "feature_matrix", note)
    monkeypatch.setattr(features, "_shared", {})
    pairs = pair_table(comma_rows(30))
    plain = fit_features(pairs, FeatureOptions(c=[0.1]))
    for _ in range(2):
        model = features.FeatureOptions(c=[0.1]).train("f", pairs, None, 0)
        assert model.coefficients.tolist() == plain.coefficients.tolist()
    stories = pairs["chosen"].to_pylist()
    assert model.score(pairs["prompt"].to_pylist(), stories).shape == (30,)
    assert len(computed) == len(set(computed)) == 60
    assert shared_matrix(["Another"] * 2, stories[:2]).tolist() == (
        feature_matrix(["Another"] * 2, stories[:2]).tolist()
    )
    assert len(computed) == 62


def test_many_stories_are_computed_in_several_processes(monkeypatch):
    for name, value in (("_STORIES_PER_PROCESS", 5), ("_STORIES_AT_ONCE", 3), ("_shared", {})):
        monkeypatch.setattr(features, name, value)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    stories = [f"A story, {'really ' * index} number {index}." for index in range(11)]
    prompts = [f"prompt {index}" for index in range(11)]
    expected = feature_matrix(prompts, stories)
    assert shared_matrix(prompts, stories).tolist() == expected.tolist()
