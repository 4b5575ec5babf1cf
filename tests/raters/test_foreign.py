"""Reward models of others: each with its own template and head, and never a wrong verdict."""

import json
import random
import shutil

import numpy as np
import pytest
import safetensors.numpy
from tolerance import assert_same

from litbench.models.reward import RewardModel
from litbench.raters.entries import RaterSpec
from litbench.raters.interface import judge_pairs
from litbench.runs.errors import ModelError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PROMPT = "The gate. of winter"


@pytest.fixture
def stories(invented):
    source = random.Random(5)
    # As a chat template leaves them: without spaces at the ends.
    return [invented(source, length).strip() for length in (3, 8, 20, 41, 90)]


@pytest.fixture
def pairs(pair_table, stories):
    return pair_table([{"chosen": a, "rejected": b} for a in stories for b in stories if a != b])


def outcomes(folder, pairs, **options):
    rater = RaterSpec("foreign", "reward", {"path": str(folder), **options}).load()
    return judge_pairs(rater, pairs)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("pad", ["own", "eos", None])
def test_chat_reward_model_is_read_at_the_last_token(kind, pad, tiny_model, stories):
    """As the cards of such models compute it: template, one BOS, no padding, the last token."""
    folder = tiny_model(kind, pad=pad, chat=True)
    model = RewardModel.load(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    expected = []
    for story in stories:
        chat = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": story}]
        ids = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=True)["input_ids"]
        assert ids.count(tokenizer.bos_token_id) == (1 if tokenizer.bos_token else 0)
        with torch.no_grad():
            hidden = plain.model(input_ids=torch.tensor([ids])).last_hidden_state
            expected.append(float(plain.score(hidden[0, -1])[0]))
    rewards = model.score([PROMPT] * len(stories), stories)
    assert_same(rewards, expected)
    assert np.std(expected) > 1e-2


@pytest.mark.parametrize("kind", ["llama", "qwen3", "bert"])
def test_form_story_leaves_out_the_prompt(kind, tiny_model, stories):
    folder = tiny_model(kind)
    model = RewardModel.load(folder, form="story")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = [
            float(plain(input_ids=torch.tensor([tokenizer(story)["input_ids"]])).logits)
            for story in stories
        ]
    rewards = model.score([PROMPT] * len(stories), stories)
    assert_same(rewards, expected)
    np.testing.assert_array_equal(rewards, model.score(["Another"] * len(stories), stories))
    assert model.notes()["stories_cut"] == 0


def test_rewards_do_not_depend_on_the_date(tiny_model, tmp_path, monkeypatch):
    folder = shutil.copytree(tiny_model("llama", chat=True), tmp_path / "dated")
    template = folder / "chat_template.jinja"
    dated = (
        "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}"
        "{% endif %}Today {{ date_string }}. "
    )
    template.write_text(dated + template.read_text())
    from transformers.utils import chat_template_utils  # noqa: PLC0415

    class Tomorrow(chat_template_utils.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2031, 5, 6, tzinfo=tz)

    today = RewardModel.load(folder).score([PROMPT], ["She."])
    monkeypatch.setattr(chat_template_utils, "datetime", Tomorrow)
    assert RewardModel.load(folder).score([PROMPT], ["She."]) == today


def test_probability_false_gives_no_probability(tiny_model, pairs):
    verdicts = outcomes(tiny_model("bert"), pairs, probability=False)
    assert verdicts["p_chosen"].null_count == pairs.num_rows
    assert (
        verdicts["outcome"].to_pylist()
        == outcomes(tiny_model("bert"), pairs)["outcome"].to_pylist()
    )


def test_code_in_a_models_folder_is_not_run(tiny_model, pairs, tmp_path):
    folder = shutil.copytree(tiny_model("llama"), tmp_path / "coded")
    (folder / "coded.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).write_text('ran')\n"
        "from transformers import LlamaConfig as C, LlamaForSequenceClassification as M\n"
    )
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "coded",
        # Only the caller may say so.
        "trust_remote_code": True,
        "auto_map": {"AutoConfig": "coded.C", "AutoModelForSequenceClassification": "coded.M"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    about = {"base_model_name_or_path": str(folder), "peft_type": "LORA", "trust_remote_code": True}
    (adapter / "adapter_config.json").write_text(json.dumps(about))
    (adapter / "adapter_model.safetensors").write_bytes(safetensors.numpy.save({}))
    for saved in (folder, adapter):
        with pytest.raises(ModelError, match="cannot load the model"):
            outcomes(saved, pairs)
    assert not (tmp_path / "ran").exists()


def test_foreign_adapter_loads_with_base_and_head(tiny_model, stories, tmp_path):
    peft = pytest.importorskip("peft")
    base = tiny_model("llama")
    torch.manual_seed(1)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(base)
    lora = peft.LoraConfig(
        task_type="SEQ_CLS",
        r=2,
        target_modules="all-linear",
        modules_to_save=["score"],
        init_lora_weights=False,
    )
    adapted = peft.get_peft_model(model, lora).eval()
    torch.nn.init.normal_(adapted.base_model.model.score.modules_to_save["default"].weight)
    adapted.save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    tokenizer.save_pretrained(tmp_path)
    loaded = RewardModel.load(tmp_path, form="story")
    with torch.no_grad():
        expected = [
            float(adapted(input_ids=torch.tensor([tokenizer(story)["input_ids"]])).logits)
            for story in stories
        ]
    rewards = loaded.score([PROMPT] * len(stories), stories)
    np.testing.assert_allclose(rewards, expected, rtol=0, atol=1e-4)
    before = RewardModel.load(base, form="story").score([PROMPT] * len(stories), stories)
    assert np.abs(rewards - before).max() > 1e-2
