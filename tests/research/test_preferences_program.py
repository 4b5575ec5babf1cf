"""litbench preferences from pairs to page, its embeddings and its questions."""

import csv
import json
import random

import numpy as np
import pytest
from fake_openai import FakeOpenAI
from tolerance import assert_same

from litbench.data.tables import write_table
from litbench.metrics.agreement import pair_scores
from litbench.research import preferences as experiment
from litbench.research import units
from litbench.research.embeddings import EmbeddingOptions, embed
from litbench.runs.errors import ConfigError, DataError, ModelError

HOSTILE = "<script>alert(1)</script> =HYPERLINK() \u202e {story_b}"
SMALL = {
    "units": 6,
    "active": 2,
    "prefixes": [2, 6],
    "epochs": 4,
    "batch_size": 16,
    "learning_rate": 5e-3,
}


@pytest.fixture
def pairs_file(pair_table, tmp_path):
    draw = random.Random(4)
    words = ["moon", "desk", "river", "lamp", "stone", "cat", "rain", "door"]

    def story(last):
        return " ".join([*draw.choices(words, k=draw.randint(5, 40)), last, draw.choice(words)])

    rows = [
        {
            "prompt_id": f"p{k % 14}",
            "split": "test" if k % 14 < 4 else "train",
            "prompt": f"A prompt {k % 14} {HOSTILE}",
            "chosen": story("bright") + (HOSTILE if k % 5 == 0 else ""),
            "rejected": story("dull"),
        }
        for k in range(70)
    ]
    path = tmp_path / "pairs.parquet"
    write_table(pair_table(rows), path)
    return path


@pytest.fixture
def preferences(load_program):
    return load_program("litbench preferences")


@pytest.fixture
def make(preferences, pairs_file, tiny_model, tmp_path):
    def build(**keys):
        from litbench.runs.config import build as checked  # noqa: PLC0415

        plain = {
            "pairs": str(pairs_file),
            "out": str(tmp_path / "out"),
            "embedding": {"model": str(tiny_model("bert")), "max_tokens": 24},
            "autoencoder": SMALL,
            "c": [0.1],
            "folds": 2,
        }
        return checked(preferences.Config, {**plain, **keys})

    return build


def texts_of(table):
    return sorted({text for side in ("chosen", "rejected") for text in table[side].to_pylist()})


def test_from_pairs_to_page_without_a_model(preferences, make, tmp_path, capsys):
    preferences.main(make())
    out = tmp_path / "out"
    result = json.loads((out / "preferences.json").read_text(encoding="utf-8"))
    assert {row["rater"] for row in result["leaderboard"]} == {
        "units",
        "6 principal components",
        "embedding",
        "surface features",
        "the longer story",
    }
    assert all(row["agreement"]["n"] == 70 for row in result["leaderboard"])
    assert all(0 < row["prevalence"] <= 1 and row["fidelity"] is None for row in result["units"])
    page = (out / "preferences.html").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "No model described the units" in page
    with (out / "units.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.reader(file))) == len(result["units"]) + 1
    assert "https://" not in page
    assert (out / "coefficients.png").read_bytes().startswith(b"\x89PNG")
    suffixes = (".json", ".csv", ".svg", ".png", ".parquet", ".txt")
    first = {p.name: p.read_bytes() for p in out.glob("*") if p.suffix in suffixes}
    capsys.readouterr()
    preferences.main(make())
    assert "unchanged" in capsys.readouterr().out
    preferences.main(make(out=str(tmp_path / "again")))
    for name, content in first.items():
        if name != "manifest.json":
            assert (tmp_path / "again" / name).read_bytes() == content, name


def test_units_predict_labels_but_not_shuffled_ones(make):
    """Made-up embeddings: one direction decides; labels that follow nothing give a half."""
    config = make(autoencoder={**SMALL, "epochs": 30})
    table = experiment.read_table(config)
    texts = texts_of(table)
    noise = np.random.default_rng(0).normal(size=(len(texts), 16)) * 0.3
    lean = np.outer(["bright" in text for text in texts], np.eye(16)[0]) * 2
    pairs = experiment.sign_pairs(table, 0)

    def agreement(vectors):
        verdicts, _ = experiment.measure(pairs.differences(vectors), pairs, config)
        credits = {rater.rater: rater.credit for rater in pair_scores(verdicts, table)}
        return float(credits["units"].mean())

    assert agreement(noise + lean) > 0.9
    assert abs(agreement(noise) - 0.5) < 0.2


def test_signs_are_drawn_by_pair_and_labels_follow(make):
    table = experiment.read_table(make())
    texts = texts_of(table)
    vectors = np.array([[float(len(text)), 1.0] for text in texts])
    pairs, other = (experiment.sign_pairs(table, seed) for seed in (0, 1))
    assert 0.25 < pairs.first_chosen.mean() < 0.75
    assert (pairs.first_chosen != other.first_chosen).any()
    toward = np.where(pairs.first_chosen, 1, -1)[:, None]
    again = np.where(other.first_chosen, 1, -1)[:, None]
    assert (pairs.differences(vectors) * toward == other.differences(vectors) * again).all()
    assert (pairs.surface * toward == other.surface * again).all()
    for (first, _), is_chosen, chosen in zip(
        pairs.sides, pairs.first_chosen, table["chosen"].to_pylist(), strict=True
    ):
        assert (first == chosen) == is_chosen


def test_nothing_is_fitted_on_the_prompts_that_are_judged(make, monkeypatch):
    config = make(repeats=2)
    table = experiment.read_table(config)
    pairs = experiment.sign_pairs(table, 0)
    judged = np.zeros(len(pairs.keys))

    def watch(_, train, is_held, *__):
        assert not set(train.keys[~is_held]) & set(train.keys[is_held])
        judged[is_held] += 1
        return {"units": np.ones(is_held.sum())}, 0.5

    monkeypatch.setattr(experiment, "held_out_margins", watch)
    verdicts, _ = experiment.measure(np.ones((70, 4)), pairs, config)
    assert (judged == 2).all()
    units_first, *_ = (r.credit for r in pair_scores(verdicts, table) if r.rater == "units")
    assert (units_first == pairs.first_chosen).all()


def test_descriptions_are_asked_for_once_tested_and_escaped(
    preferences, make, tmp_path, monkeypatch
):
    def answer(question):
        if "Quality: the stories" in question:
            return f"Quality: more moons {HOSTILE}"
        return "More: neither"

    monkeypatch.setattr(units, "_TESTS", 3)
    monkeypatch.setattr(units, "_QUIET_TESTS", 1)
    asking = {"model": FakeOpenAI.model}
    with FakeOpenAI(answer) as server:
        preferences.main(make(**asking))
        asked = server.requests
        assert asked > 6
        (tmp_path / "out" / "manifest.json").unlink()
        preferences.main(make(**asking))
        assert server.requests == asked
    result = json.loads((tmp_path / "out" / "preferences.json").read_text(encoding="utf-8"))
    told = [unit["fidelity"] for unit in result["units"] if unit["fidelity"] is not None]
    assert told
    assert all(item["agreement"]["mean"] == 0.5 and item["agreement"]["n"] <= 3 for item in told)
    page = (tmp_path / "out" / "preferences.html").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "more moons &lt;script&gt;" in page


def test_windows_are_averaged_or_cut_and_counted(tiny_model, tmp_path):
    import torch  # noqa: PLC0415
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415

    folder = tiny_model("bert")
    text = "lamp stone river cat " * 30
    options = EmbeddingOptions(str(folder), max_tokens=24)
    whole, notes = embed([text], options, tmp_path)
    cut, notes_cut = embed(
        [text], EmbeddingOptions(**{**vars(options), "long_stories": "cut"}), tmp_path
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert notes["tokens"] == len(tokens)
    assert notes["tokens_cut"] == 0
    assert notes_cut["tokens"] + notes_cut["tokens_cut"] == len(tokens)
    assert (notes_cut["windows"], notes_cut["longer_than_a_window"]) == (1, 1)
    assert notes["windows"] > 2
    ids = tokenizer(text, truncation=True, max_length=24, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        hidden = model(input_ids=ids).last_hidden_state[0]
    expected = hidden.mean(0) / hidden.mean(0).norm()
    assert_same(cut[0], expected)
    assert not np.allclose(whole, cut, atol=1e-3)


def test_embeddings_of_other_options_and_models_are_told_apart(tiny_model, tmp_path):
    bert, llama = str(tiny_model("bert")), str(tiny_model("llama"))
    texts = ["one story", "", "one story"]
    first, notes = embed(texts, EmbeddingOptions(bert), tmp_path)
    assert (first[0] == first[2]).all()
    assert notes["texts"] == 2
    assert np.allclose(np.linalg.norm(first, axis=1), 1, atol=1e-5)
    other, _ = embed(texts, EmbeddingOptions(llama), tmp_path)
    half, _ = embed(texts, EmbeddingOptions(bert, dtype="bfloat16"), tmp_path)
    assert not np.allclose(first, half, atol=1e-6)
    assert not np.allclose(first, other)
    with pytest.raises(ConfigError, match="max_tokens"):
        embed(["new"], EmbeddingOptions(bert, max_tokens=4_096), tmp_path)
    with pytest.raises(ModelError, match="cannot load"):
        embed(["new"], EmbeddingOptions(str(tmp_path)), tmp_path)


def test_configs_that_cannot_work_are_refused(preferences, make):
    with pytest.raises(ConfigError, match=r"key 'c.1' is 0"):
        preferences.main(make(c=[0.1, 0]))
    with pytest.raises(ConfigError, match="repeats"):
        preferences.main(make(repeats=0))
    # Before anything is embedded.
    with pytest.raises(DataError, match="14 prompts"):
        preferences.main(make(folds=15, embedding={"model": "openai-api/fake/no-such-model"}))
    with pytest.raises(ConfigError, match="dtype"):
        preferences.main(make(embedding={"model": "openai-api/fake/embedder", "dtype": "bfloat16"}))
    with pytest.raises(ConfigError, match="max_tokens"):
        preferences.main(make(embedding={"model": "bert", "max_tokens": 4}))
    with pytest.raises(ConfigError, match="prefixes"):
        preferences.main(make(autoencoder={**SMALL, "prefixes": [2]}))
