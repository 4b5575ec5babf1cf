"""Loading a model: its pad token, its head in fp32, its adapters, and the batches it is given."""

import json
import random
import shutil

import numpy as np
import pytest
from tolerance import assert_same

from litbench.models.backbone import (
    answer_logits,
    collate,
    head_layers,
    load_backbone,
    load_with_adapter,
    quiet,
    rewards_of,
)
from litbench.models.reward import RewardModel
from litbench.runs.errors import ConfigError, ModelError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def texts(invented):
    source = random.Random(2)
    stories = [invented(source, source.randint(3, 60)) for _ in range(60)]
    return ["The gate"] * len(stories), stories


# Head ----------------------------------------------------------------------------------------


def test_head_of_a_bf16_model_stays_in_fp32(tiny_model, tmp_path):
    full, _ = load_backbone(str(tiny_model("llama")))
    weight = head_layers(full)[-1].weight.detach()
    assert not torch.equal(weight, weight.bfloat16().float())
    half = RewardModel.load(tiny_model("llama"), dtype="bfloat16")
    half.save(tmp_path)
    for model in (half.model, RewardModel.load(tmp_path, dtype="bfloat16").model):
        assert head_layers(model)[-1].weight.dtype == torch.float32
        assert torch.equal(head_layers(model)[-1].weight, weight)
        assert model.model.embed_tokens.weight.dtype == torch.bfloat16


def test_autocast_does_not_reach_the_head(tiny_model, texts):
    model = RewardModel.load(tiny_model("llama"))
    with torch.autocast("cpu", torch.bfloat16):
        rewards = model.score(*texts)
    assert len(set(rewards)) == len(rewards)
    assert (torch.tensor(rewards).bfloat16().double().numpy() != rewards).any()


def test_loading_does_not_change_the_model_class(tiny_model):
    modules = transformers.LlamaForSequenceClassification._keep_in_fp32_modules_strict
    load_backbone(str(tiny_model("llama")), dtype="bfloat16")
    assert transformers.LlamaForSequenceClassification._keep_in_fp32_modules_strict == modules


def test_model_without_a_known_head_is_refused(tiny_model):
    model = transformers.AutoModel.from_pretrained(tiny_model("llama"))
    with pytest.raises(ModelError, match="'score' or 'classifier'"):
        head_layers(model)


def test_a_head_of_two_layers_computes_in_fp32(tiny_model, tmp_path, texts):
    """RoBERTa's: a layer, tanh, and the layer that gives the reward."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model("bert"))
    config = transformers.AutoConfig.from_pretrained(tiny_model("bert")).to_dict()
    del config["model_type"]
    torch.manual_seed(0)
    model = transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**config))
    torch.nn.init.normal_(model.classifier.out_proj.weight)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    full = RewardModel.load(tmp_path).score(*texts)
    half = RewardModel.load(tmp_path, dtype="bfloat16")
    assert half.model.classifier.dense.weight.dtype == torch.float32
    assert half.model.roberta.embeddings.word_embeddings.weight.dtype == torch.bfloat16
    rewards = half.score(*texts)
    assert (torch.tensor(rewards).bfloat16().double().numpy() != rewards).any()
    assert 0 < np.abs(rewards - full).max() < 0.2 * full.std()


def bend(logits):
    return 5.0 * torch.tanh(logits / 5.0)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("name", "changes", "scale"),
    [
        ("Llama", {}, lambda logits: logits),
        ("Gemma3", {"final_logit_softcapping": 5.0, "head_dim": 16}, bend),
        ("Granite", {"logits_scaling": 8.0}, lambda logits: logits / 8.0),
        ("Cohere", {"logit_scale": 0.25}, lambda logits: logits * 0.25),
    ],
)
@pytest.mark.parametrize("low", ["weights", "autocast"])
def test_logits_are_computed_and_scaled_in_fp32(
    name, changes, scale, tied, low, tiny_model, tmp_path
):
    folder = tiny_model("llama", head="language")
    config = transformers.AutoConfig.from_pretrained(folder).to_dict()
    for key in ("model_type", "architectures", "head_dim"):
        config.pop(key)
    kind = "Gemma3Text" if name == "Gemma3" else name
    config = getattr(transformers, f"{kind}Config")(
        **{**config, "tie_word_embeddings": tied, **changes}
    )
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    dtype = "bfloat16" if low == "weights" else "float32"
    model, _ = load_backbone(str(tmp_path), "language", dtype=dtype)
    seen = []
    model.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    batch = collate([np.arange(5, 25), np.arange(30, 90)], packed=True, pooling="last")
    with torch.autocast("cpu", torch.bfloat16, enabled=low == "autocast"):
        logits = answer_logits(model.eval(), batch, batch["read"])
    expected = scale(seen[0][0].double() @ model.lm_head.weight.double().T)
    assert logits.shape == expected.shape
    assert_same(logits.detach().double(), expected.detach())
    # The weights are still those of the embeddings, and of their type.
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied
    assert model.lm_head.weight.dtype == getattr(torch, dtype)
    logits.sum().backward()
    assert model.lm_head.weight.grad is not None


# Names ---------------------------------------------------------------------------------------


def test_a_revision_reaches_every_loader(tiny_model, monkeypatch):
    asked = []
    for auto in ("AutoConfig", "AutoTokenizer", "AutoModelForSequenceClassification"):
        auto_class = getattr(transformers, auto)

        def load(path, *, original=auto_class.from_pretrained, revision=None, **options):
            # They call each other as well, by the folder.
            if path == "owner/name":
                asked.append((path, revision))
            return original(tiny_model("llama"), **options)

        monkeypatch.setattr(auto_class, "from_pretrained", load)
    for revision in ("v1.2", "refs/pr/3", None):
        asked.clear()
        load_backbone("owner/name" + ("" if revision is None else f"@{revision}"))
        assert asked == [("owner/name", revision)] * 3


def test_a_folder_may_hold_an_at_sign(tiny_model, tmp_path, monkeypatch):
    shutil.copytree(tiny_model("llama"), tmp_path / "runs" / "a@b")
    load_backbone(str(tmp_path / "runs" / "a@b"))
    monkeypatch.chdir(tmp_path)
    load_backbone("runs/a@b")
    with pytest.raises(ConfigError, match=r"no folder \./a@b"):
        load_backbone("./a@b")


# Batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pooling", "read"), [("last", [2, 3]), ("first", [0, 3])])
def test_padded_rows_are_masked_and_read_by_index(pooling, read):
    batch = collate([np.array([5, 6, 7]), np.array([8])], packed=False, pooling=pooling)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["read"].tolist() == read


# Adapters ------------------------------------------------------------------------------------


@pytest.fixture
def adapter(headless, tmp_path):
    """A trained adapter on a backbone without head, its rewards, and a batch."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    model, tokenizer = load_backbone(str(headless), trained_head=False)
    lora = peft.LoraConfig(
        task_type="SEQ_CLS", r=4, target_modules="all-linear", modules_to_save=["score"]
    )
    adapted = peft.get_peft_model(model, lora)
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


def test_merging_an_adapter_keeps_head_and_rewards(adapter, headless):
    folder, rewards, batch = adapter
    merged, _ = load_with_adapter(folder, str(headless), "reward")
    assert not any("lora" in name for name, _ in merged.named_parameters())
    with torch.inference_mode():
        result = rewards_of(merged.eval(), batch, "last")
    assert_same(result, rewards)
    assert head_layers(merged)[-1].weight.dtype == torch.float32


def test_adapter_and_base_without_head_are_refused(adapter, headless):
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    folder, _, _ = adapter
    file = folder / "adapter_model.safetensors"
    weights = {name: weight for name, weight in load_file(file).items() if "score" not in name}
    save_file(weights, file)
    with pytest.raises(ModelError, match=r"weights for score\.weight"):
        load_with_adapter(folder, str(headless), "reward")
    # What other tools wrote has no litbench.json, and its base model is named in peft's own file.
    about = json.loads((folder / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == str(headless)
    with pytest.raises(ModelError, match=r"weights for score\.weight"):
        RewardModel.load(folder)


def test_adapter_without_tokenizer_uses_its_base_model(adapter, headless):
    folder, rewards, batch = adapter
    for path in folder.glob("tokenizer*"):
        path.unlink()
    model, tokenizer = load_with_adapter(folder, str(headless), "reward")
    tokenizer_of_base = transformers.AutoTokenizer.from_pretrained(headless)
    assert tokenizer.get_vocab() == tokenizer_of_base.get_vocab()
    with torch.inference_mode():
        assert_same(rewards_of(model.eval(), batch, "last"), rewards)


def test_foreign_adapter_pins_its_base_revision(adapter, monkeypatch):
    folder, _, _ = adapter
    file = folder / "adapter_config.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps(about | {"base_model_name_or_path": "owner/name", "revision": "v1"}))
    asked = []

    def load(*path, **_):
        asked.extend(path)
        raise ModelError("seen")

    monkeypatch.setattr("litbench.models.folder.load_with_adapter", load)
    with pytest.raises(ModelError, match="seen"):
        RewardModel.load(folder)
    assert asked[1] == "owner/name@v1"


def test_an_adapter_of_another_model_is_refused(adapter, tiny_model):
    with pytest.raises(ModelError, match="the adapter in"):
        load_with_adapter(adapter[0], str(tiny_model("gpt2")), "reward")


def test_an_adapter_in_another_format_is_refused(adapter, headless, tmp_path):
    folder = tmp_path / "pickled"
    shutil.copytree(adapter[0], folder, ignore=shutil.ignore_patterns("*.safetensors", "pickled"))
    torch.save({}, folder / "adapter_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        load_with_adapter(folder, str(headless), "reward")


def test_gguf_model_can_be_saved(tmp_path, capsys):
    peft = pytest.importorskip("peft")
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    letters = "".join(map(chr, range(33, 127)))
    tokens = ["<end>", *letters, "\u0120", "th", "the"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, *[1] * (len(tokens) - 1)])
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    source = np.random.default_rng(0)
    shapes = {
        "token_embd": (len(tokens), 32),
        "output_norm": (32,),
        "blk.0.attn_norm": (32,),
        "blk.0.ffn_norm": (32,),
        "blk.0.attn_q": (32, 32),
        "blk.0.attn_k": (16, 32),
        "blk.0.attn_v": (16, 32),
        "blk.0.attn_output": (32, 32),
        "blk.0.ffn_gate": (32, 32),
        "blk.0.ffn_up": (32, 32),
        "blk.0.ffn_down": (32, 32),
    }
    weights = {name: source.normal(size=shape).astype("f") for name, shape in shapes.items()}
    for name, weight in weights.items():
        writer.add_tensor(f"{name}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path = str(tmp_path / "tiny.gguf")
    with pytest.raises(ModelError, match="weights for score"):
        load_backbone(path)
    model, tokenizer = load_backbone(path, trained_head=False)
    body = model.model.layers[0]
    np.testing.assert_array_equal(body.mlp.up_proj.weight.detach().numpy(), weights["blk.0.ffn_up"])
    assert tokenizer("the")["input_ids"] == [len(tokens) - 1]
    assert capsys.readouterr().err == ""
    with quiet():  # an adapter's base model has no config.json
        lora = peft.LoraConfig(task_type="SEQ_CLS", target_modules="all-linear")
        adapted = peft.get_peft_model(model, lora)
        adapted.save_pretrained(tmp_path / "adapter")
        model = adapted.merge_and_unload()
    RewardModel(model, tokenizer, form="story").save(tmp_path)
    again, _ = load_backbone(str(tmp_path))
    assert torch.equal(again.model.norm.weight, model.model.norm.weight)
    assert not hasattr(again, "hf_quantizer"), "it could not be saved again after training"
