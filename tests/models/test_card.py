"""The model card: written from run.json alone, safe against names, and its examples run."""

import contextlib
import io
import json
import random
import re

import numpy as np
import pytest
import yaml
from tolerance import assert_same

from litbench.models.backbone import load_backbone
from litbench.models.card import model_card, run_text
from litbench.models.folder import Adapter
from litbench.models.generative import GenerativeModel
from litbench.models.input_format import prepare_tokenizer
from litbench.models.question import Question
from litbench.models.reward import RewardModel
from litbench.raters.interface import BlindPair
from litbench.raters.templates.template import load_template

torch = pytest.importorskip("torch")

EVIL = "x | <script>alert(1)</script> [a](javascript:b) `c`\n# Heading"


@pytest.fixture
def run():
    interval = {"mean": 0.7, "low": 0.6, "high": 0.8, "n": 10, "clusters": 5}
    return {
        "program": "bradley_terry.py",
        "finished_utc": "2026-01-02T03:04:05+00:00",
        "versions": {"torch": "2"},
        "kind": "reward",
        "adapter": False,
        "reads_prompt": True,
        "config": {},
        "inputs": {"pairs": {"path": "pairs.parquet", "sha256": "ab" * 32}},
        "label_source": {"votes": 10},
        "training": {
            "options": {"model_name_or_path": "owner/name", "learning_rate": 1e-5},
            "counts": {"pairs": 10, "rejected: no rationale": 1},
            "steps": 1,
            "seconds": 1,
            "validation": [],
            "curve": [{"step": k + 1, "loss": 1 / (k + 1), "accuracy": 0.5} for k in range(45)],
        },
        "evaluation": {
            "pairs": 10,
            "prompts": 5,
            "label_source": {"votes": 10},
            "raters": [
                {
                    "rater": name,
                    "kind": kind,
                    "agreement": interval,
                    "chosen_longer": interval,
                    "chosen_shorter": {**interval, "mean": None, "low": None, "high": None},
                    "coverage": 1.0,
                }
                for name, kind in (("reward", "reward"), ("longer", "longer"))
            ],
        },
        "training_prompts": ["0" * 32],
    }


def head_of(card):
    return yaml.safe_load(card.split("---\n")[1])


def test_the_head_is_what_the_hub_reads(run):
    commit = "0" * 40
    run["config"]["language"] = "en"
    run["inputs"] = {
        "pairs": {"path": "owner/pairs", "sha256": f"name:owner/pairs@{commit}:train"},
        "evaluation_pairs": {"path": "owner/other", "sha256": f"name:owner/other@{commit}"},
        "model_name_or_path": {"path": "owner/name", "sha256": "name:owner/name"},
    }
    head = head_of(model_card(run))
    (result,) = head.pop("model-index")[0]["results"]
    assert head == {
        "library_name": "transformers",
        "base_model": "owner/name",
        "language": "en",
        "license": "other",
        "license_name": "licence-of-the-base-model",
        "license_link": "https://huggingface.co/owner/name",
        "datasets": ["owner/pairs"],
        "pipeline_tag": "text-classification",
        "tags": ["litbench", "reward-model", "preference"],
    }
    assert result["dataset"]["name"] == "10 held-out pairs of 5 prompts"
    assert result["metrics"] == [{"type": "accuracy", "value": 0.7, "name": "agreement"}]
    run["evaluation"]["raters"][0]["kind"] = "generative"
    head = head_of(model_card({**run, "kind": "generative", "answer": "label", "adapter": True}))
    assert (head["library_name"], head["pipeline_tag"]) == ("peft", "text-generation")


@pytest.mark.parametrize("name", ["data/pairs.parquet", "package:minilm/model", "/home/a", EVIL])
def test_local_inputs_are_not_linked(run, name):
    digest = f"name:{name}" if name.startswith("package:") else "ab" * 32
    run["training"]["options"]["model_name_or_path"] = name
    run["inputs"] = {key: {"path": name, "sha256": digest} for key in ("pairs", "model")}
    assert not {"base_model", "datasets", "license_link"} & head_of(model_card(run)).keys()


def test_names_are_escaped_in_the_card(run):
    run["training"]["options"]["model_name_or_path"] = EVIL
    run["inputs"]["pairs"]["path"] = EVIL
    run["label_source"] = {EVIL: 3}
    run["training"]["counts"][f"rejected: {EVIL}"] = 1
    card = model_card(run)
    assert "<script>" not in card
    assert "[a](" not in card
    assert "\n# Heading" not in card
    rows = [line for line in card.splitlines() if line.startswith("| ") and "alert" in line]
    assert rows
    # Every row has its own number of cells and no more.
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= {3, 4}


def test_card_contains_figures(run):
    card = model_card(run)
    assert "| this model | 0.700 (0.600 to 0.800) |" in card
    assert "? (? to ?)" in card
    assert "10 held-out pairs of 5 prompts" in card
    assert "comparable within a prompt only" in card
    assert "derived from owner/name" in card


def test_rates_of_the_flags_are_shown_if_the_model_has_them(run):
    run["scope"] = {"stories": 1_200, "is_prose": 0.0025, "like_training": 0.013}
    card = " ".join(model_card(run).split())
    assert "Of 1,200 held-out training stories, `is_prose` flags 0.2 %" in card
    assert "`like_training` 1.3 %" in card
    for scope in ({"scope": None}, {}):
        without = {key: value for key, value in run.items() if key != "scope"} | scope
        assert "is_prose" not in model_card(without)


def test_the_error_of_bfloat16_is_told_or_why_it_is_not(run):
    assert "bfloat16" not in model_card(run)
    measured = model_card(run | {"bfloat16": {"stories": 64, "mean": 0.01, "max": 0.0456}})
    assert "of 64 training stories" in measured
    assert "at most 0.0456" in measured
    assert "bfloat16 was not measured" in model_card(run | {"bfloat16": {}})


def test_texts_that_are_no_stories_are_a_table(run):
    assert "kind of text" not in model_card(run)
    row = {"flagged": 1_000, "flagged_preferred": 9, "kind": "JSON", "unflagged": 3}
    run["nonstories"] = [row | {"unflagged_preferred": 2}]
    assert "| JSON | 1,000 | 9 | 3 | 2 |" in model_card(run)


def test_a_passport_is_shown(run):
    assert "LitBench suite" not in model_card(run)
    rows = [["a|set", "0.750 [0.600, 0.850]", "0.750 [0.600, 0.850]", "–"]]
    card = model_card(run, rows, "2026-01-02")
    assert "| a\\|set | 0.750 \\[0.600, 0.850\\] | 0.750 \\[0.600, 0.850\\] | – |" in card
    assert "2026-01-02" in card


def test_without_an_evaluation_it_says_so(run):
    assert "Not measured" in model_card({**run, "evaluation": None})


def test_run_text(run):
    run["training"]["counts"] |= {"pairs": 1_000, "pairs_cut": 3}
    used = "1,000 pairs (3 truncated), 1 steps in 1 s, last loss 0.022; "
    agreement = "0.700 (0.600 to 0.800)"
    assert run_text(run) == (
        f"{used}agreement {agreement} on 10 pairs of 5 prompts; longer story {agreement} on the "
        "same pairs"
    )
    nothing = run_text({**run, "evaluation": None})
    assert nothing == f"{used}no held-out pairs were given"
    rows = [{"step": step, "loss": 0.1, "accuracy": step / 10} for step in (4, 8)]
    training = {"kept_step": 4, "validation": rows, "validation_counts": {"pairs": 9}}
    validated = run_text({**run, "training": run["training"] | training, "evaluation": None})
    assert validated == f"{used}step 4 kept, loss 0.100, accuracy 0.400 on 9 validation pairs"


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_the_cards_examples_run_and_give_the_same_reward(
    kind, adapter, run, tiny_model, invented, tmp_path
):
    peft = pytest.importorskip("peft")
    base, apart, folder = tiny_model(kind), tmp_path / "apart", tmp_path / "folder"
    folder.mkdir()
    model, tokenizer = load_backbone(str(base))
    prepare_tokenizer(tokenizer, model, 64)
    part = None
    if adapter:
        torch.manual_seed(1)
        heads = ["classifier" if kind == "bert" else "score"]
        lora = peft.LoraConfig(
            task_type="SEQ_CLS",
            r=2,
            target_modules="all-linear",
            modules_to_save=heads,
            init_lora_weights=False,
        )
        adapted = peft.get_peft_model(model, lora)
        adapted.save_pretrained(apart)
        model, part = adapted.merge_and_unload(), Adapter(str(base), False, apart)
    model = RewardModel(model, tokenizer, adapter=part)
    model.save(folder)
    source = random.Random(1)
    codes = examples(model_card({**run, "adapter": adapter}))
    assert len(codes) == 2
    for words in (5, 200):
        prompt, story = invented(source, words), invented(source, words)
        expected = model.score([prompt], [story])[0]
        spaces = [execute(code, folder, prompt, story) for code in codes]
        assert_same([spaces[0]["rewards"][0], spaces[1]["reward"]], expected)


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_a_generative_models_examples_run_and_give_the_same_probability(
    chat, adapter, run, tiny_model, invented, tmp_path
):
    peft = pytest.importorskip("peft")
    base = tiny_model("qwen3" if chat else "llama", head="language", chat=chat)
    apart, folder, part = tmp_path / "apart", tmp_path / "folder", None
    folder.mkdir()
    model, tokenizer = load_backbone(str(base), "language")
    question = short_question(tokenizer, model, tmp_path, "label")
    if adapter:
        torch.manual_seed(1)
        lora = peft.LoraConfig(
            task_type="CAUSAL_LM", r=2, target_modules="all-linear", init_lora_weights=False
        )
        adapted = peft.get_peft_model(model, lora)
        adapted.save_pretrained(apart)
        model, part = adapted.merge_and_unload(), Adapter(str(base), False, apart)
    model = GenerativeModel(model, tokenizer, question, min_label_mass=0, adapter=part)
    model.save(folder)
    source = random.Random(1)
    prompt, story, other = (invented(source, words) for words in (5, 20, 30))
    special = f"{tokenizer.eos_token} {story}\n"
    card = model_card({**run, "kind": "generative", "answer": "label", "adapter": adapter})
    with_litbench, without = examples(card)
    for text in (story, special):
        ((first, second),) = model.judge([BlindPair(prompt, text, other)])
        assert_same(execute(without, folder, prompt, text, other)["p_a"], first.p_first)
    # The packaged threshold of the label mass gives no verdict of an untrained model.
    result = execute(with_litbench, folder, prompt, story, other)["p_first"]
    assert np.isnan(result[0]) or result[0] == (first.p_first + second.p_first) / 2


def test_an_explaining_models_example_generates(run, tiny_model, tmp_path):
    model, tokenizer = load_backbone(str(tiny_model("llama", head="language")), "language")
    question = short_question(tokenizer, model, tmp_path, "explanation")
    GenerativeModel(model, tokenizer, question).save(tmp_path)
    card = model_card({**run, "kind": "generative", "answer": "explanation"})
    assert isinstance(execute(examples(card)[1], tmp_path, "p", "s", "t")["text"], str)


def short_question(tokenizer, model, folder, answer):
    path = folder / "template.yaml"
    text = "On {prompt}:\n{story_a}\n\nOr\n{story_b}\n\nPreferred:"
    path.write_text(yaml.safe_dump({"answer": answer, "text": text}))
    lengths = {"max_length": 500, "max_prompt_tokens": 40, "max_answer_tokens": 8}
    return Question.make(tokenizer, model, load_template(path), **lengths)


def examples(card):
    return re.findall(r"^```python\n(.*?)^```$", card, re.MULTILINE | re.DOTALL)


def execute(code, folder, prompt, story, other=""):
    """Variables after an example of the card has run with these texts."""
    texts = {"FOLDER": str(folder), "a prompt": prompt, "a story": story, "another": other}
    for placeholder, text in texts.items():
        code = code.replace(json.dumps(placeholder), json.dumps(text))
    space = {}
    with contextlib.redirect_stderr(io.StringIO()):
        exec(code, space)  # noqa: S102
    return space
