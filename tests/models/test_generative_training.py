"""Training a generative reward model: the loss on the answer only, on the right side's label."""

import random

import numpy as np
import pytest
from conftest import EXPLANATION, LABEL, TEXT
from tolerance import assert_same

from litbench.models.backbone import load_backbone
from litbench.models.generative import GenerativeModel
from litbench.models.question import LABELS, Question
from litbench.raters.interface import judge_pairs
from litbench.raters.templates.template import load_template
from litbench.runs.errors import ConfigError, DataError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("trl")

from litbench.models.generative_training import (  # noqa: E402
    GenerativeTraining,
    tokenise,
    train_generative_model,
)
from litbench.models.reward_training import RewardTraining, train_reward_model  # noqa: E402


@pytest.fixture
def reasoned_pairs(some_pairs):
    """Every third rationale calls the rejected story A."""

    def build(n, rationales=None, *, without=()):
        table = some_pairs(n)
        words = random.Random(5).choices(["moth", "gate"], k=n)
        made = [f"It has the {word}." for word in words]
        firsts = ["chosen" if k % 3 else "rejected" for k in range(n)]
        for name, values in (("rationale", rationales or made), ("rationale_first", firsts)):
            if name not in without:
                table = table.append_column(name, [values])
        return table

    return build


@pytest.fixture
def prepared(tiny_model, template):
    """A tokenizer and a question, ready to tokenise pairs for."""

    def build(text=LABEL, kind="llama", *, chat=False):
        folder = str(tiny_model(kind, head="language", chat=chat))
        model, tokenizer = load_backbone(folder, "language")
        question = Question.make(
            tokenizer,
            model,
            load_template(template(text)),
            max_length=400,
            max_prompt_tokens=40,
            max_answer_tokens=60,
        )
        return tokenizer, question

    return build


def taught(row):
    return [token for token in row["labels"] if token != -100]


def test_positions_are_assigned_by_the_seed_and_balanced(prepared, reasoned_pairs):
    tokenizer, question = prepared()
    pairs = reasoned_pairs(20)
    a, b = (ids[0] for ids in question.label_ids)
    labels = []
    for seed in (0, 0, 1):
        rows = tokenise(pairs, tokenizer, question, seed).rows
        labels.append([token for row in rows for token in taught(row)])
        assert labels[-1].count(a) == labels[-1].count(b) == 10
        stories = zip(pairs["chosen"].to_pylist(), pairs["rejected"].to_pylist(), strict=True)
        for row, both, label in zip(rows, stories, labels[-1], strict=True):
            text = tokenizer.decode(row["input_ids"])
            first, second = both if label == a else both[::-1]
            assert text.index(f"A: {first}\n") < text.index(f"B: {second}\n")
    assert labels[0] == labels[1] != labels[2]


def test_a_rationale_fixes_the_side_it_was_written_for(prepared, reasoned_pairs):
    tokenizer, question = prepared(EXPLANATION)
    pairs = reasoned_pairs(6)
    for seed in (0, 1):
        rows = tokenise(pairs, tokenizer, question, seed).rows
        for row, pair in zip(rows, pairs.to_pylist(), strict=True):
            label = "A" if pair["rationale_first"] == "chosen" else "B"
            assert f"\n{label}: {pair['chosen']}\n" in tokenizer.decode(row["input_ids"])
            # Rationale, verdict and end are taught, and nothing before them.
            answer = f"{pair['rationale']}\n\nPreferred:{label}<end>"
            assert tokenizer.decode(taught(row)) == answer
            assert question.label_ids[LABELS.index(label)][0] == taught(row)[-2]


@pytest.mark.parametrize("text", [LABEL, EXPLANATION])
def test_both_forms_train_on_pairs_with_rationales(prepared, reasoned_pairs, text):
    tokenizer, question = prepared(text)
    counts = tokenise(reasoned_pairs(4, ["good", "", None, "fine"]), tokenizer, question, 0).counts
    assert (counts["pairs"], counts["rejected: no rationale"]) == (2, 2)


def test_long_answers_are_rejected_and_stories_truncated(prepared, reasoned_pairs):
    tokenizer, question = prepared(EXPLANATION)
    counts = tokenise(reasoned_pairs(2, ["good", "endless " * 40]), tokenizer, question, 0).counts
    assert counts["rejected: answer longer than max_answer_tokens"] == 1
    with pytest.raises(DataError, match="make_rationales"):
        tokenise(reasoned_pairs(2, without=["rationale_first"]), tokenizer, question, 0)
    tokenizer, question = prepared()
    pairs = reasoned_pairs(3)
    chosen = [["short", "long " * 500, "short"]]
    pairs = pairs.set_column(pairs.column_names.index("chosen"), "chosen", chosen)
    data = tokenise(pairs, tokenizer, question, 0)
    assert (data.counts["pairs"], data.counts["pairs_cut"]) == (3, 1)
    # The room of a longer answer stays free; the question and the other story are whole.
    text = tokenizer.decode(data.rows[1]["input_ids"])
    assert text.endswith(("Preferred:A", "Preferred:B"))
    assert f"{pairs['rejected'][1].as_py()}\n" in text


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("text", [LABEL, EXPLANATION])
def test_loss_is_cross_entropy_of_the_answer(
    prepared, reasoned_pairs, template, tiny_model, tmp_path, kind, text
):
    """Of a step that changes nothing, against plain transformers on one row after another."""
    folder = tiny_model(kind, head="language")
    options = GenerativeTraining(
        model_name_or_path=str(folder),
        template=template(text),
        max_length=400,
        max_prompt_tokens=40,
        max_answer_tokens=60,
        learning_rate=1e-30,
        max_steps=1,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        save_strategy="no",
    )
    pairs = reasoned_pairs(6)
    model = train_generative_model(pairs, options, tmp_path)
    tokenizer, question = prepared(text, kind)
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    total = count = 0
    for row in tokenise(pairs, tokenizer, question, options.seed).rows:
        ids, labels = (torch.tensor([row[name]]) for name in ("input_ids", "labels"))
        with torch.no_grad():
            logits = plain.eval()(input_ids=ids).logits[0, :-1]
        total += torch.nn.functional.cross_entropy(logits, labels[0, 1:], reduction="sum").item()
        count += len(taught(row))
    (line,) = model.training_record["curve"]
    assert_same(line["loss"], total / count)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (LABEL, {"validation": 0.2, "num_train_epochs": 2}),
        (LABEL, {"use_peft": True, "lora_r": 4}),
        (LABEL, {"use_peft": True, "lora_r": 4, "merge_adapter": False}),
        (EXPLANATION, {"max_answer_tokens": 60, "validation": 0.2}),
    ],
    ids=["validation", "merged adapter", "adapter kept apart", "explanation"],
)
def test_a_trained_model_answers_alike_once_saved(
    tiny_model, template, reasoned_pairs, tmp_path, text, options
):
    folder = str(tiny_model("llama", head="language"))
    ready = GenerativeTraining(
        model_name_or_path=folder,
        template=template(text),
        max_length=400,
        max_prompt_tokens=40,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        warmup_steps=0,
        **options,
    )
    pairs = reasoned_pairs(12)
    model = train_generative_model(pairs, ready, tmp_path / "run")
    # Checkpoints are chosen by loss: a verdict read after the gold rationale knows the label.
    assert all("agreement" not in entry for entry in model.training_record["validation"])
    (tmp_path / "saved").mkdir()
    model.save(tmp_path / "saved")
    again = GenerativeModel.load(tmp_path / "saved")
    assert again.question == model.question
    assert again.training_prompts() == model.training_prompts() != set()
    kept_apart = (tmp_path / "saved" / "adapter_config.json").exists()
    assert kept_apart == (options.get("merge_adapter") is False)
    if text is LABEL:
        untrained = GenerativeModel.load(folder, template=template(), max_length=400)
        readings = []
        for item in (model, again, untrained):
            item.min_label_mass = 0.0
            readings.append(judge_pairs(item, pairs)["p_chosen"].to_numpy())
        assert np.abs(readings[0] - readings[1]).max() < 1e-6
        assert np.abs(readings[0] - readings[2]).max() > 1e-3


def test_forms_that_are_not_trained_are_refused(tiny_model, reasoned_pairs, tmp_path):
    path = tmp_path / "verdict.yaml"
    path.write_text(f"answer: verdict\n{TEXT}  Preferred: A or Preferred: B?")
    folder = str(tiny_model("llama", head="language"))
    options = GenerativeTraining(model_name_or_path=folder, template=str(path))
    with pytest.raises(ConfigError, match="answer form verdict"):
        train_generative_model(reasoned_pairs(4), options, tmp_path / "run")


# Models for text and images ------------------------------------------------------------------


@pytest.fixture(scope="session")
def gemma_with_eyes(tiny_model, tmp_path_factory):
    """A tiny Gemma 3 as its 4B and larger are: a language model beside a vision tower."""

    def build(head):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            tiny_model("gemma3", head="language", chat=True)
        )
        text = transformers.AutoConfig.from_pretrained(tiny_model("gemma3", head="language"))
        size = len(tokenizer)
        config = transformers.Gemma3Config(
            text_config={**text.to_dict(), "vocab_size": size},
            vision_config={
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            mm_tokens_per_image=4,
            image_token_index=size - 1,
            boi_token_index=size - 2,
            eoi_token_index=size - 3,
            num_labels=1,
            pad_token_id=tokenizer.pad_token_id,
        )
        torch.manual_seed(0)
        kind = "SequenceClassification" if head == "reward" else "ConditionalGeneration"
        model = getattr(transformers, f"Gemma3For{kind}")(config)
        folder = tmp_path_factory.mktemp(f"gemma-{head}")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return build


@pytest.mark.parametrize("lora", [False, True])
def test_both_objectives_train_a_model_with_a_vision_tower(
    gemma_with_eyes, template, reasoned_pairs, tmp_path, lora
):
    """Its tower is not trained: a launcher that waits for its gradients would stop."""
    shared = {"max_length": 400, "per_device_train_batch_size": 3, "use_peft": lora}
    pairs = reasoned_pairs(6)
    options = RewardTraining(model_name_or_path=gemma_with_eyes("reward"), **shared)
    reward = train_reward_model(pairs, options, tmp_path / "r")
    options = GenerativeTraining(
        model_name_or_path=gemma_with_eyes("language"), template=template(), **shared
    )
    language = train_generative_model(pairs, options, tmp_path / "g")
    language.min_label_mass = 0.0
    for model, name in ((reward, "r"), (language, "g")):
        record = model.training_record
        assert 0 < record["parameters_trained"] < record["parameters"]
        folder = tmp_path / name / "saved"
        folder.mkdir()
        model.save(folder)
        again = type(model).load(folder)
        again.min_label_mass = 0.0
        readings = [judge_pairs(item, pairs)["p_chosen"].to_numpy() for item in (model, again)]
        assert np.abs(readings[0] - readings[1]).max() < 1e-6


def test_a_model_of_stories_alone_needs_no_prompts(
    tiny_model, reasoned_pairs, pair_table, tmp_path
):
    options = GenerativeTraining(
        model_name_or_path=str(tiny_model("llama", head="language", positions=2_000)),
        form="story",
        max_length=2_000,
        max_steps=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        use_cpu=True,
    )
    rows = [{**row, "prompt": ""} for row in reasoned_pairs(4).to_pylist()]
    pairs = pair_table([{k: v for k, v in row.items() if "rationale" not in k} for row in rows])
    model = train_generative_model(pairs, options, tmp_path / "checkpoints")
    assert model.question.slots == ("story_a", "story_b")
    (tmp_path / "model").mkdir()
    model.save(tmp_path / "model")
    loaded = GenerativeModel.load(tmp_path / "model", min_label_mass=0.0)
    assert loaded.question == model.question
    stories = [["It shone."] * 2, ["No light, and no one came."] * 2]
    without, with_prompt = loaded.compare(["", "[WP] A lamp."], *stories)
    assert without == with_prompt
    options.form = "chat"
    with pytest.raises(DataError, match="prompt, and 4 of 4 pairs"):
        train_generative_model(pairs, options, tmp_path / "other")
