"""Loading a model: its pad token, its head in fp32, its adapters, and the batches it is given."""

import json
import random
import shutil

import numpy as np
import pytest

from litbench.errors import ModelError
from litbench.models.backbone import (
    Lora,
    add_lora,
    collate,
    load_backbone,
    load_with_adapter,
    no_dropout,
    reward_head,
    rewards_of,
    use_pad_token,
)
from litbench.models.reward import RewardModel

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SAME = 1e-5


@pytest.fixture(scope="session")
def headless(tiny_model, tmp_path_factory):
    """A backbone as it comes from pretraining: no reward head."""
    folder = tmp_path_factory.mktemp("headless")
    source = tiny_model("llama")
    transformers.AutoModel.from_pretrained(source).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def texts(invented):
    source = random.Random(2)
    stories = [invented(source, source.randint(3, 60)) for _ in range(60)]
    return ["The gate"] * len(stories), stories


# Pad token -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("pad", ["own", "eos", None])
def test_the_pad_token_is_not_eos_and_model_and_tokenizer_agree(kind, pad, tiny_model):
    model, tokenizer = load_backbone(str(tiny_model(kind, pad, "left")))
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert tokenizer.padding_side == "right"
    # A pad token of the model's own stays what it was.
    own = tokenizer.convert_tokens_to_ids("<filler>")
    assert pad != "own" or tokenizer.pad_token_id == own


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        (["<|spare_pad|>", "<|reserved_1|>"], "<|spare_pad|>"),
        (["<|reserved_1|>", "<|image|>"], "<|reserved_1|>"),
    ],
)
def test_a_token_made_for_padding_comes_before_others(added, expected, tiny_model):
    folder = tiny_model("qwen3", None)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": added})
    use_pad_token(model, tokenizer)
    assert tokenizer.pad_token == expected
    assert len(tokenizer) == model.config.vocab_size + len(added)


# Head ----------------------------------------------------------------------------------------


def test_stories_that_tie_when_the_head_computes_in_bf16_do_not(tiny_model, texts):
    folder = tiny_model("llama")
    model = RewardModel.load(folder, dtype="bfloat16")
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.bfloat16
    ).eval()
    encoded = model.layout.encode(model.tokenizer, *texts).ids
    with torch.inference_mode():
        coarse = [float(plain(input_ids=torch.tensor([ids])).logits) for ids in encoded]
    fine = model.score(*texts)
    # Among 60 stories some share one of the few hundred numbers that bf16 has in this range.
    assert len(set(coarse)) < len(encoded)
    assert len(set(fine)) == len(encoded)
    assert np.abs(fine - coarse).max() < 0.1 * fine.std()


def test_the_head_stays_in_fp32_in_a_bf16_model_and_after_saving_and_loading(tiny_model, tmp_path):
    full, _ = load_backbone(str(tiny_model("llama")))
    weight = reward_head(full).weight.detach()
    assert not torch.equal(weight, weight.bfloat16().float())
    half = RewardModel.load(tiny_model("llama"), dtype="bfloat16")
    half.save(tmp_path)
    for model in (half.model, RewardModel.load(tmp_path, dtype="bfloat16").model):
        assert reward_head(model).weight.dtype == torch.float32
        assert torch.equal(reward_head(model).weight, weight)
        assert model.model.embed_tokens.weight.dtype == torch.bfloat16


def test_autocast_does_not_reach_the_head(tiny_model, texts):
    model = RewardModel.load(tiny_model("llama"))
    with torch.autocast("cpu", torch.bfloat16):
        rewards = model.score(*texts)
    assert len(set(rewards)) == len(rewards)
    assert (torch.tensor(rewards).bfloat16().double().numpy() != rewards).any()


def test_loading_a_model_in_fp32_leaves_others_as_they_were(tiny_model):
    kept = transformers.LlamaForSequenceClassification._keep_in_fp32_modules_strict
    load_backbone(str(tiny_model("llama")), dtype="bfloat16")
    assert transformers.LlamaForSequenceClassification._keep_in_fp32_modules_strict == kept


def test_a_model_without_a_head_that_we_know_is_refused(tiny_model):
    model = transformers.AutoModel.from_pretrained(tiny_model("llama"))
    with pytest.raises(ModelError, match="has no linear layer 'score' or 'classifier'"):
        reward_head(model)


# Batches -------------------------------------------------------------------------------------


def test_packed_sequences_restart_their_positions_and_are_read_at_their_ends():
    batch = collate([np.array([5, 6, 7]), np.array([8])], packed=True, pooling="last")
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0]]
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == [0, 3, 4]
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    assert batch["max_length_q"] == batch["max_length_k"] >= 3
    assert batch["read"].tolist() == [2, 3]


@pytest.mark.parametrize(("pooling", "read"), [("last", [2, 3]), ("first", [0, 3])])
def test_padded_rows_are_masked_and_read_by_their_place(pooling, read):
    batch = collate([np.array([5, 6, 7]), np.array([8])], packed=False, pooling=pooling)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["read"].tolist() == read


# Adapters ------------------------------------------------------------------------------------


@pytest.fixture
def adapter(headless, tmp_path):
    """A trained adapter on a backbone without head, its rewards, and a batch."""
    pytest.importorskip("peft")
    torch.manual_seed(1)
    model, tokenizer = load_backbone(str(headless), trained_head=False)
    adapted = add_lora(model, Lora(r=4), "reward")
    for name, weight in adapted.named_parameters():
        if weight.requires_grad:
            assert "lora_" in name or "score" in name
            torch.nn.init.normal_(weight, std=0.1)
    adapted.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    batch = collate([np.arange(5, 25), np.arange(30, 90)], packed=True, pooling="last")
    with torch.inference_mode():
        rewards = rewards_of(adapted.eval(), batch, "last")
    assert float((rewards[0] - rewards[1]).abs()) > 1e-3
    return tmp_path, rewards, batch


def test_folding_an_adapter_in_keeps_head_and_rewards(adapter, headless):
    folder, rewards, batch = adapter
    merged, _ = load_with_adapter(folder, str(headless), "reward")
    assert not any("lora" in name for name, _ in merged.named_parameters())
    with torch.inference_mode():
        found = rewards_of(merged.eval(), batch, "last")
    torch.testing.assert_close(found, rewards, rtol=0, atol=SAME)
    assert reward_head(merged).weight.dtype == torch.float32


def test_an_adapter_that_brings_no_head_to_a_headless_model_is_refused(adapter, headless):
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    folder, _, _ = adapter
    file = folder / "adapter_model.safetensors"
    weights = {name: weight for name, weight in load_file(file).items() if "score" not in name}
    save_file(weights, file)
    with pytest.raises(ModelError, match=r"lacks trained weights for score\.weight"):
        load_with_adapter(folder, str(headless), "reward")
    # What other tools wrote has no litbench.json, and its base model is named in peft's own file.
    about = json.loads((folder / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == str(headless)
    with pytest.raises(ModelError, match=r"lacks trained weights for score\.weight"):
        RewardModel.load(folder)


def test_an_adapter_of_another_model_is_refused(adapter, tiny_model):
    with pytest.raises(ModelError, match=r"the adapter in .* does not fit"):
        load_with_adapter(adapter[0], str(tiny_model("gpt2")), "reward")


def test_an_adapter_in_another_format_is_refused(adapter, headless, tmp_path):
    folder = tmp_path / "pickled"
    shutil.copytree(adapter[0], folder, ignore=shutil.ignore_patterns("*.safetensors", "pickled"))
    torch.save({}, folder / "adapter_model.bin")
    with pytest.raises(ModelError, match="an adapter must be saved as safetensors"):
        load_with_adapter(folder, str(headless), "reward")


def test_dropout_is_switched_off(tiny_model):
    model, _ = load_backbone(str(tiny_model("bert")))
    no_dropout(model)
    batch = collate([np.arange(5, 25)] * 2, packed=False, pooling="first")
    rewards = rewards_of(model.train(), batch, "first")
    torch.testing.assert_close(rewards[0], rewards[1], rtol=0, atol=SAME)
