"""The model card: written from run.json alone, safe against names, and its examples run."""

import contextlib
import io
import json
import random
import re
import textwrap

import pytest
import yaml
from tolerance import assert_same

from litbench.models.backbone import load_backbone
from litbench.models.card import model_card, run_text
from litbench.models.folder import Adapter
from litbench.models.input_format import prepare_tokenizer
from litbench.models.reward import RewardModel

torch = pytest.importorskip("torch")

EVIL = "x | <script>alert(1)</script> [a](javascript:b) `c`\n# Heading"


@pytest.fixture
def run():
    interval = {"mean": 0.7, "low": 0.6, "high": 0.8, "n": 10, "clusters": 5}
    figures = ("processes", "steps", "kept_step", "seconds", "tokens_per_second", "padding")
    more = ("mfu", "peak_memory_gib", "parameters", "parameters_trained")
    return {
        "program": "bradley_terry.py",
        "finished_utc": "2026-01-02T03:04:05+00:00",
        "versions": {"torch": "2"},
        "kind": "reward",
        "adapter": False,
        "config": {},
        "inputs": {"pairs": {"path": "pairs.parquet", "sha256": "ab" * 32}},
        "label_source": {"votes": 10},
        "training": {
            "options": {"model_name_or_path": "owner/name", "learning_rate": 1e-5},
            "counts": {"pairs": 10, "rejected: no rationale": 1},
            "device": "cpu",
            **dict.fromkeys(figures, 1),
            **dict.fromkeys(more),
            "curve": [{"step": k + 1, "loss": 1 / (k + 1), "accuracy": 0.5} for k in range(45)],
            "validation": [],
            "validation_counts": None,
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
    run["inputs"]["pairs"]["path"] = "owner/pairs@main"
    head = head_of(model_card(run))
    (result,) = head.pop("model-index")[0]["results"]
    assert head == {
        "library_name": "transformers",
        "base_model": "owner/name",
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
    head = head_of(model_card({**run, "kind": "generative", "adapter": True}))
    assert (head["library_name"], head["pipeline_tag"]) == ("peft", "text-generation")


@pytest.mark.parametrize("name", ["package:minilm/model", "/home/me/models/a", "name", EVIL])
def test_local_base_model_is_not_linked(run, name):
    run["training"]["options"]["model_name_or_path"] = name
    assert "base_model" not in head_of(model_card(run))


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


def test_without_an_evaluation_it_says_so(run):
    assert "Not measured" in model_card({**run, "evaluation": None})


def test_run_text(run):
    run["training"]["counts"] |= {"pairs": 1_000, "pairs_cut": 3}
    used = "1,000 pairs (3 truncated), 1 steps in 1 s, last loss 0.022; "
    assert run_text(run) == f"{used}agreement 0.700 (0.600 to 0.800) on 10 pairs of 5 prompts"
    nothing = run_text({**run, "evaluation": None})
    assert nothing == f"{used}no held-out pairs were given"


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
    kept = None
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
        model, kept = adapted.merge_and_unload(), Adapter(str(base), False, apart)
    model = RewardModel(model, tokenizer, adapter=kept)
    model.save(folder)
    source = random.Random(1)
    card = model_card({**run, "adapter": adapter})
    blocks = re.findall(r"(?:^    .*\n|^\n)+", card, re.MULTILINE)
    codes = [textwrap.dedent(block) for block in blocks if "import" in block]
    assert len(codes) == 2
    for words in (5, 200):
        prompt, story = invented(source, words), invented(source, words)
        expected = model.score([prompt], [story])[0]
        found = []
        for code in codes:
            filled = code.replace('"FOLDER"', json.dumps(str(folder)))
            filled = filled.replace('"a prompt"', json.dumps(prompt))
            filled = filled.replace('"a story"', json.dumps(story))
            space = {}
            with contextlib.redirect_stderr(io.StringIO()):
                exec(filled, space)  # noqa: S102
            found.append(space["reward"] if "reward" in space else space["rewards"][0])
        assert_same(found, expected)
