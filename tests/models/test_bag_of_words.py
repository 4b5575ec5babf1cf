"""The bag of words: a baseline that is trained in every fold."""

import json

import numpy as np
import pyarrow as pa
import pytest

from litbench.data.tables import write_table
from litbench.metrics.agreement import pair_scores
from litbench.models.bag_of_words import BagOfWordsOptions, fit_bag_of_words
from litbench.raters.entries import RaterSpec, parse_raters
from litbench.raters.interface import judge_pairs
from litbench.runs.errors import ConfigError, DataError
from litbench.testing import check_rater, rename_sides

WORDS = ["rain", "door", "lamp", "mill", "river", "stone", "field", "house", "night", "bread"]


def rows(count, seed=0, words=WORDS, good="silver", joined=" "):
    """Pairs whose chosen story has one more of a word; both sides have random lengths."""
    random = np.random.default_rng(seed)
    results = []
    for number in range(count):
        chosen, rejected = (
            [str(item) for item in random.choice(words, random.integers(8, 20))] for _ in range(2)
        )
        chosen[0] = good
        texts = {"chosen": joined.join(chosen), "rejected": joined.join(rejected)}
        prompt = f"{number % 12}"
        results.append({"prompt": f"A prompt {prompt}.", "prompt_id": prompt, **texts})
    return results


@pytest.mark.parametrize(
    ("words", "good", "joined"), [(WORDS, "silver", " "), (list("雨门灯河石田屋夜饭山"), "银", "")]
)
def test_it_learns_words_and_chinese_characters(pair_table, words, good, joined):
    pairs = pair_table(rows(60, 0, words, good, joined))
    model = fit_bag_of_words(pairs, BagOfWordsOptions())
    assert sorted(model.vectorizer.vocabulary_) == sorted([*words, good])
    others = pair_table(rows(40, 1, words, good, joined))
    (scores,) = pair_scores(judge_pairs(model, others), others)
    assert scores.credit.mean() > 0.95
    best = max(
        model.vectorizer.vocabulary_,
        key=lambda w: model.coefficients[model.vectorizer.vocabulary_[w]],
    )
    assert best == good


def test_it_is_blind_and_independent_of_the_batch(pair_table):
    pairs = pair_table(rows(40))
    check_rater(fit_bag_of_words(pair_table(rows(60, 5, good="rain")), BagOfWordsOptions()), pairs)
    mirrored = fit_bag_of_words(rename_sides(pairs), BagOfWordsOptions())
    model = fit_bag_of_words(pairs, BagOfWordsOptions())
    assert mirrored.coefficients == pytest.approx(-model.coefficients, abs=1e-4)
    assert model.score(["p"], ["*"]).tolist() == [0.0]


def test_a_benchmark_trains_it_on_other_prompts(pair_table, tmp_path):
    path = tmp_path / "train.parquet"
    train = pair_table([{**row, "split": "train"} for row in rows(40)])
    test = pair_table(
        [{**row, "prompt": f"{row['prompt']} More.", "split": "test"} for row in rows(20, 1)]
    )
    renamed = test.set_column(
        test.column_names.index("pair_id"),
        "pair_id",
        pa.array([f"t{k}" for k in range(20)], pa.large_string()),
    )
    write_table(pa.concat_tables([train, renamed]), path)
    (spec,) = parse_raters({"bag": {"kind": "bag_of_words", "path": str(path), "split": "train"}})
    model = spec.load()
    assert not spec.is_trained
    assert len(model.training_prompts()) == 12
    (scores,) = pair_scores(judge_pairs(model, test), test)
    assert scores.credit.mean() > 0.9


def test_what_cannot_be_trained_is_said(pair_table, tmp_path):
    with pytest.raises(DataError, match="1 pairs are too few"):
        fit_bag_of_words(pair_table(rows(1)), BagOfWordsOptions())
    alone = pair_table([{"chosen": f"x{k}", "rejected": f"y{k}"} for k in range(6)])
    with pytest.raises(DataError, match="12 training stories"):
        fit_bag_of_words(alone, BagOfWordsOptions())
    with pytest.raises(ConfigError, match="min_story"):
        RaterSpec("bag", "bag_of_words", {"path": str(tmp_path), "min_story": 3}).load()


def test_it_is_cross_validated_on_shares_of_the_prompts(pair_table, load_program, tmp_path):
    write_table(pair_table(rows(60)), tmp_path / "pairs.parquet")
    program = load_program("eval/crossvalidate.py")
    raters = {"longer": {"kind": "longer"}}
    raters |= {f"of {share}": {"kind": "bag_of_words", "share": share} for share in (0.5, 1)}
    keys = {"pairs": tmp_path / "pairs.parquet", "out": tmp_path / "out", "folds": 3}
    program.main(program.Config(raters=raters, **keys))
    records = json.loads((tmp_path / "out/manifest.json").read_text())["counts"]["raters"]
    used = {
        name: [fold["prompts_used"] for fold in folds]
        for name, folds in records.items()
        if name != "longer"
    }
    # 12 prompts in 3 folds: 8 to train on.
    assert used == {"of 0.5": [4, 4, 4], "of 1": [8, 8, 8]}
    results = {
        row["rater"]: row for row in json.loads((tmp_path / "out/leaderboard.json").read_text())
    }
    assert results["of 1"]["agreement"]["mean"] > 0.9
    assert results["of 1"]["trained_on"] == 0
    for wrong in (0, 1.5, "half"):
        raters["of 1"]["share"] = wrong
        with pytest.raises(ConfigError, match=r"raters.of 1: share is"):
            program.main(program.Config(raters=raters, **keys))
