"""Adapters on weights in four bits (QLoRA): what is trained is what scores, merged or apart."""

import random

import numpy as np
import pytest
from tolerance import assert_same

from litbench.models.backbone import load_backbone, load_with_adapter
from litbench.models.reward import RewardModel

torch = pytest.importorskip("torch")
pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")
pytest.importorskip("trl")

from litbench.models.input_format import prepare_tokenizer  # noqa: E402
from litbench.models.reward_training import RewardTraining, train_reward_model  # noqa: E402

SIDES = ("chosen", "rejected")


@pytest.fixture(scope="module")
def backbone(tiny_model, tmp_path_factory):
    """A backbone without a reward head, so that the head is new.

    64 wide: bitsandbytes packs weights anew for scoring on a CPU, in blocks of so many.
    """
    import transformers  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("four-bits")
    source = tiny_model("llama", head="language")
    config = transformers.AutoConfig.from_pretrained(source)
    config.hidden_size, config.intermediate_size, config.head_dim = 64, 128, 32
    torch.manual_seed(0)
    transformers.LlamaModel(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


@pytest.fixture
def pairs(invented, pair_table):
    """Pairs whose chosen story says "lantern"."""
    source = random.Random(0)
    rows = []
    for _ in range(96):
        stories = [invented(source, 20).replace("lantern", "ladder") for _ in range(2)]
        rows.append({"chosen": stories[0].replace("the", "lantern"), "rejected": stories[1]})
    return pair_table(rows)


def train(backbone, pairs, folder, **changes):
    options = {
        "model_name_or_path": str(backbone),
        "max_length": 64,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "learning_rate": 1e-2,
        "num_train_epochs": 6,
        "use_peft": True,
        "lora_r": 8,
        "load_in_4bit": True,
        "save_strategy": "no",
    }
    return train_reward_model(pairs, RewardTraining(**options, **changes), folder)


def rewards_of(model, pairs):
    prompts = pairs["prompt"].to_pylist()
    return np.stack([model.score(prompts, pairs[side].to_pylist()) for side in SIDES])


def test_four_bit_weights_are_rounded_and_the_head_is_not(backbone):
    model, _ = load_backbone(str(backbone), trained_head=False, quantize=True)
    whole, _ = load_backbone(str(backbone), trained_head=False)
    layer = "layers.0.mlp.up_proj"
    assert model.get_submodule(f"model.{layer}").weight.dtype == torch.uint8
    assert model.score.weight.dtype == torch.float32
    rounded = model.dequantize().get_submodule(f"model.{layer}").weight.float()
    assert (rounded - whole.get_submodule(f"model.{layer}").weight).abs().max() > 1e-3


def test_what_was_trained_is_what_scores_merged_or_apart(backbone, pairs, tmp_path):
    merged = train(backbone, pairs, tmp_path / "one")
    apart = train(backbone, pairs, tmp_path / "two", merge_adapter=False)
    # In fp32 an 8B model would not fit the GPU it was trained on.
    for model in (merged, apart):
        body = {weight.dtype for weight in model.model.model.parameters()}
        assert body == {torch.bfloat16}
        assert model.model.score.weight.dtype == torch.float32
    expected = rewards_of(merged, pairs)
    assert (expected[0] > expected[1]).mean() > 0.8
    assert_same(rewards_of(apart, pairs), expected)
    for name, model in (("merged", merged), ("apart", apart)):
        (tmp_path / name).mkdir()
        model.save(tmp_path / name)
        loaded = RewardModel.load(tmp_path / name)
        assert_same(rewards_of(loaded, pairs), expected)
        whole = RewardModel.load(tmp_path / name, dtype="float32")
        assert {weight.dtype for weight in whole.model.parameters()} == {torch.float32}
        rounding = np.abs(rewards_of(whole, pairs) - expected)
        assert 0 < rounding.mean() < 0.05 * expected.std()
    assert not (tmp_path / "apart" / "model.safetensors").exists()
    assert not (tmp_path / "merged" / "adapter_config.json").exists()


def test_merging_keeps_the_answers_of_the_four_bit_model(backbone, pairs, tmp_path):
    """Merged into the weights before rounding, the adapter would be on another model."""
    train(backbone, pairs, tmp_path / "run")
    folder = tmp_path / "run" / "trained"
    from peft import PeftModel  # noqa: PLC0415
    from safetensors.torch import load_file  # noqa: PLC0415

    # In 16 bits most updates at the default learning rate are lost to rounding.
    adapter = load_file(folder / "adapter_model.safetensors")
    assert {weight.dtype for weight in adapter.values()} == {torch.float32}
    model, tokenizer = load_backbone(str(backbone), trained_head=False, quantize=True)
    four_bits = PeftModel.from_pretrained(model, str(folder)).eval()
    merged, _ = load_with_adapter(folder, str(backbone), "reward", quantized=True)
    wrong, _ = load_with_adapter(folder, str(backbone), "reward", quantized=False)
    prepare_tokenizer(tokenizer, merged, 64)
    expected, right, other = (
        rewards_of(RewardModel(item, tokenizer), pairs) for item in (four_bits, merged, wrong)
    )
    # Four-bit layers multiply in bfloat16.
    apart = np.abs(right - expected).max()
    assert apart < 0.25 * np.abs(other - expected).max()
