"""Training a reward model: its gradients, its loss, what it leaves, and how it refuses to fail."""

import contextlib
import gc
import json
import random
import types
import weakref
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest

from litbench.errors import ConfigError, DataError, ModelError
from litbench.models import backbone, training
from litbench.models.backbone import Lora, head_layers, load_backbone
from litbench.models.packing import cut_step
from litbench.models.reward import RewardModel
from litbench.models.reward_training import (
    RewardObjective,
    RewardTraining,
    margins,
    train_rater,
    train_reward_model,
)
from litbench.models.throughput import Shape
from litbench.models.tokenised import make_tokenised
from litbench.models.training import Plan, hold_back
from litbench.raters import judge_pairs
from litbench.records import prompt_keys
from litbench.tables import write_table

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

SAME = 1e-5
# So small that weights stay what they are in fp32.
STILL = 1e-30


@pytest.fixture(scope="session")
def marked_rows(invented):
    """Pairs whose chosen story holds the word "lantern" more often than chance."""

    def build(n, seed=0, words=(10, 40)):
        source = random.Random(seed)
        rows = []
        for place in range(n):
            stories = [invented(source, source.randint(*words)) for _ in range(2)]
            stories = [story.replace("lantern", "ladder") for story in stories]
            marked = stories[0].split(" ")
            for where in range(0, len(marked), 4):
                marked[where] = "lantern"
            rows.append(
                {
                    "chosen": " ".join(marked),
                    "rejected": stories[1],
                    "prompt_id": f"p{seed}-{place % 10}",
                    "chosen_story_id": f"c{seed}-{place}",
                    "rejected_story_id": f"r{seed}-{place}",
                }
            )
        return rows

    return build


@pytest.fixture(scope="session")
def headless(tiny_model, tmp_path_factory):
    """A backbone as it comes from pretraining: no reward head, pad token EOS."""
    folder = tmp_path_factory.mktemp("headless")
    source = tiny_model("llama", "eos")
    transformers.AutoModel.from_pretrained(source).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def quick(folder, **changes):
    options = {
        "backbone": str(folder),
        "max_length": 96,
        "batch_size": 16,
        "learning_rate": 3e-3,
        "precision": "fp32",
        "epochs": 2,
        "max_prompt_tokens": 24,
    }
    return RewardTraining(**{**options, **changes})


def still(folder, **changes):
    """One step that changes nothing, so that its loss is that of the untrained model."""
    return quick(folder, **{"learning_rate": STILL, "warmup_ratio": 0.0, "epochs": 1, **changes})


def rewards_of(model, pairs):
    prompts = pairs["prompt"].to_pylist()
    return tuple(model.score(prompts, pairs[side].to_pylist()) for side in ("chosen", "rejected"))


def losses(model):
    return [entry["loss"] for entry in model.training_record["curve"]]


# Learning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_planted_marker_is_learned(kind, tiny_model, marked_rows, pair_table, tmp_path):
    pairs = pair_table(marked_rows(160))
    model = train_reward_model(pairs, quick(tiny_model(kind)), tmp_path)
    held_out = pair_table(marked_rows(100, seed=1))
    assert not set(prompt_keys(held_out)) & model.training_prompts()
    chosen, rejected = rewards_of(model, held_out)
    assert (chosen > rejected).mean() > 0.9
    assert losses(model)[-1] < losses(model)[0]
    outcomes = judge_pairs(model, held_out)["outcome"].to_pylist()
    assert outcomes.count("chosen") == (chosen > rejected).sum()


def test_the_record_says_what_was_done(tiny_model, marked_rows, pair_table, tmp_path):
    pairs = pair_table(marked_rows(40))
    record = train_reward_model(pairs, quick(tiny_model("llama")), tmp_path).training_record
    assert (record["steps"], record["steps_per_epoch"], record["processes"]) == (6, 3, 1)
    assert (record["padded"], record["padding"], record["bf16"]) == (False, 0, False)
    assert record["tokens_per_second"] > 0
    assert record["mfu"] is None  # of a CPU no peak is known
    last = record["curve"][-1]
    assert (last["step"], last["padding"]) == (6, 0)
    assert 0 <= last["agreement"] <= 1
    json.dumps(record)
    padded = train_reward_model(pairs, quick(tiny_model("bert")), tmp_path / "bert")
    assert padded.training_record["padded"]
    assert 0 < padded.training_record["padding"] < 0.5


def test_a_run_of_one_step_trains(tiny_model, marked_rows, pair_table, tmp_path):
    pairs = pair_table(marked_rows(12))
    model = train_reward_model(pairs, quick(tiny_model("llama"), epochs=1), tmp_path)
    assert model.training_record["steps"] == 1
    untouched = RewardModel(*load_backbone(str(tiny_model("llama"))), model.layout)
    before, after = (np.concatenate(rewards_of(one, pairs)) for one in (untouched, model))
    assert np.abs(after - before).max() > 1e-3


def test_one_process_uses_one_gpu_where_there_are_several(
    tiny_model, marked_rows, pair_table, tmp_path, monkeypatch
):
    """Packed rows that are spread over devices would be cut in the middle of stories."""
    initialise = transformers.TrainingArguments.__post_init__

    def with_two(self):
        initialise(self)
        self._n_gpu = 2

    class Spread(torch.nn.DataParallel):
        def __init__(self, *_, **__):
            raise AssertionError("spread over GPUs")

    monkeypatch.setattr(transformers.TrainingArguments, "__post_init__", with_two)
    monkeypatch.setattr(torch.nn, "DataParallel", Spread)
    train_reward_model(pair_table(marked_rows(12)), quick(tiny_model("llama")), tmp_path)


def test_the_model_that_was_trained_is_gone_when_the_saved_one_is_loaded(
    tiny_model, marked_rows, pair_table, tmp_path, monkeypatch
):
    loaded = []
    load = load_backbone

    def watched(*arguments, **named):
        assert all(earlier() is None for earlier in loaded)
        model, tokenizer = load(*arguments, **named)
        loaded.append(weakref.ref(model))
        return model, tokenizer

    monkeypatch.setattr(training, "load_backbone", watched)
    # Else it would depend on when the collector happens to run.
    gc.disable()
    try:
        train_reward_model(pair_table(marked_rows(12)), quick(tiny_model("llama")), tmp_path)
    finally:
        gc.enable()
    assert len(loaded) == 2


# torch's compiler warns of its own parts, and of gradients that it looks at itself.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
def test_a_compiled_model_learns_the_same(tiny_model, marked_rows, pair_table, tmp_path):
    pairs = pair_table(marked_rows(32))
    rewards = []
    for compiled in (False, True):
        options = quick(tiny_model("llama"), torch_compile=compiled)
        model = train_reward_model(pairs, options, tmp_path / str(compiled))
        rewards.append(np.concatenate(rewards_of(model, pairs)))
    np.testing.assert_allclose(rewards[1], rewards[0], rtol=0, atol=1e-3)


# Memory --------------------------------------------------------------------------------------


def shape_of(vocabulary):
    """A model of 7 billion weights, by what counts here."""
    return Shape(
        parameters=7_000_000_000, trained=40_000_000, matrix=6_500_000_000, layers=28, width=3_584,
        hidden=3_584, vocabulary=vocabulary, is_causal=True,
    )  # fmt: skip


@pytest.mark.parametrize("answer", [0, 1, 500])
def test_passes_with_long_answers_hold_fewer_of_them(answer):
    row = {"weight": 1.0, "margin": 0.0, "answer": answer, "label_at": 0}
    lengths = [1_000 + 37 * place for place in range(32)]
    rows = [{"pair_id": str(n), "ids_0": [0] * n, **row} for n in lengths]
    data, shape = make_tokenised(rows, [], 0), shape_of(152_064)
    loads = training.loads_of(data, shape, 32_768)
    (step,) = cut_step(np.arange(32), loads, 32_768, 1, padded=False)
    assert sorted(np.concatenate(step.passes)) == list(range(32))
    tokens = [data.lengths()[chosen].sum() for chosen in step.passes]
    assert max(tokens) <= 32_768
    assert max(shape.logit_bytes(answer * len(chosen)) for chosen in step.passes) <= 4 * 2**30
    # A label alone costs no pass.
    assert len(step.passes) == (2 if answer < 500 else 11)
    if answer < 500:
        np.testing.assert_array_equal(loads, data.lengths())


def test_logits_of_answers_count_when_memory_is_planned(monkeypatch):
    shape = shape_of(152_064)
    options = quick("x", weights="bfloat16")
    needed = 7_000_000_000 * 2 + 40_000_000 * 6 + shape.activation_bytes(4_096)
    device = types.SimpleNamespace(total_memory=int((needed + 2**30) / 0.9))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    assert not training._wants_checkpointing(options, shape, 4_096, answers=False)
    assert training._wants_checkpointing(options, shape, 4_096, answers=True)


# Gradients -----------------------------------------------------------------------------------


@contextlib.contextmanager
def gradients():
    """Collect the gradients that reach the first step of the next optimiser."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: PLC0415

    taken = []

    def note(optimizer, *_):
        if not taken:
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            taken.extend(weight.grad.clone() for weight in weights)

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield taken
    finally:
        handle.remove()


def assert_alike(first, others, way):
    """Each weight's gradient to 1e-5; of those that are rounding only, to that of the whole."""
    whole = torch.cat([one.flatten() for one in first]).norm()
    for one, other in zip(first, others, strict=True):
        assert float((one - other).norm()) <= SAME * float(max(one.norm(), 0.01 * whole)), way


def of_trl(folder, ids, margins, center, out):
    """Gradients by trl's own trainer, which pads all stories of a batch to the longest."""
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    columns = {"chosen_ids": ids[0], "rejected_ids": ids[1], "margin": margins}
    trainer = trl.RewardTrainer(
        model=model,
        args=trl.RewardConfig(
            output_dir=str(out), per_device_train_batch_size=len(margins), max_steps=1,
            learning_rate=STILL, max_grad_norm=1e9, max_length=None, bf16=False, use_cpu=True,
            gradient_checkpointing=False, center_rewards_coefficient=center, report_to="none",
            save_strategy="no", disable_tqdm=True,
        ),
        train_dataset=datasets.Dataset.from_dict(columns),
        processing_class=transformers.AutoTokenizer.from_pretrained(folder),
    )  # fmt: skip
    with gradients() as found:
        trainer.train()
    return found


# trl 1.16 still sets it by the name that transformers 5.23 deprecates.
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3", "gpt2", "bert"])
def test_gradients_depend_neither_on_packing_nor_on_padding_and_are_those_of_trl(
    kind, tiny_model, marked_rows, pair_table, tmp_path
):
    folder, center = tiny_model(kind), 0.05
    rows = [{**row, "margin": 0.1 * k} for k, row in enumerate(marked_rows(12, words=(2, 90)))]
    pairs = pair_table(rows)
    found = {}
    ways = [("packed", None, tokens) for tokens in (1, 700, 100_000)]
    ways += [("padded", "sdpa", tokens) for tokens in (700, 100_000)]
    for way, attention, tokens in ways:
        options = still(
            folder, max_length=256, attention=attention, batch_tokens=tokens, max_grad_norm=1e9,
            center_rewards_coefficient=center,
        )  # fmt: skip
        with gradients() as found[way, tokens]:
            model = train_reward_model(pairs, options, tmp_path / f"{way}{tokens}")
        assert model.training_record["padded"] == (way == "padded" or kind == "bert")
    if kind != "bert":  # trl masks an encoder by its pad token, which ours has in none of its rows
        prompts = pairs["prompt"].to_pylist()
        ids = [
            model.layout.encode(model.tokenizer, prompts, pairs[side].to_pylist()).ids
            for side in ("chosen", "rejected")
        ]
        margins = pairs["margin"].to_pylist()
        found["trl"] = of_trl(folder, ids, margins, center, tmp_path / "trl")
    first = found["packed", 1]
    assert max(float(one.abs().max()) for one in first) > 0.1
    for way, others in found.items():
        assert_alike(first, others, way)


def test_weights_count_the_same_however_a_step_is_cut(
    tiny_model, marked_rows, pair_table, tmp_path
):
    rows = [{**row, "weight": 1.0 + k % 5} for k, row in enumerate(marked_rows(12))]
    found = []
    for tokens in (1, 100_000):
        options = still(tiny_model("llama"), batch_tokens=tokens, max_grad_norm=1e9)
        with gradients() as taken:
            train_reward_model(pair_table(rows), options, tmp_path / str(tokens))
        found.append(taken)
    assert_alike(*found, "weighted")


# Loss ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "pad", "padding_side", "form"),
    [
        ("bert", "own", "left", "plain"),
        ("llama", "own", "left", "plain"),
        ("llama", "eos", "right", "plain"),
        ("llama", None, "right", "chat"),
        ("qwen3", "eos", "left", "plain"),
        ("qwen3", "eos", "left", "chat"),
    ],
)
def test_training_and_scoring_read_the_same_reward(
    kind, pad, padding_side, form, tiny_model, marked_rows, pair_table, tmp_path
):
    """The loss of a step that changes nothing is that of the scorer's rewards."""
    folder = tiny_model(kind, pad, padding_side, chat=form == "chat")
    pairs = pair_table(marked_rows(16, words=(2, 120)))
    model = train_reward_model(pairs, still(folder, form=form), tmp_path)
    # Scored by a model that training never touched, with the layout of training.
    untouched = RewardModel(*load_backbone(str(folder)), model.layout)
    chosen, rejected = rewards_of(untouched, pairs)
    assert abs(chosen - rejected).mean() > 0.05
    expected = np.log1p(np.exp(-(chosen - rejected))).mean()  # -log sigmoid(chosen - rejected)
    assert losses(model) == pytest.approx([expected], abs=SAME)
    after = np.concatenate(rewards_of(model, pairs))
    np.testing.assert_allclose(after, np.concatenate([chosen, rejected]), rtol=0, atol=SAME)


def by_hand(lead, total, *, margin=0.0, smoothing=0.0, weight=1.0, center=0.0):
    """The loss as the docs have it; numbers or arrays of shape (n,)."""
    right, wrong = (1 / (1 + np.exp(-sign * (lead - margin))) for sign in (1, -1))
    loss = -(1 - smoothing) * np.log(right) - smoothing * np.log(wrong) + center * total**2
    return (loss * weight).sum() / np.broadcast_to(weight, lead.shape).sum()


COUNT = 12
VOTES = np.array([[10.0 + 3 * place, 1.0 + place] for place in range(COUNT)])
COLUMN = np.linspace(0.1, 1.0, COUNT)


@pytest.mark.parametrize(
    ("options", "terms"),
    [
        ({}, {"margin": COLUMN}),
        ({"margin": "none"}, {}),
        ({"margin": "votes"}, {"margin": np.log(VOTES[:, 0] / VOTES[:, 1])}),
        ({"margin": "none", "label_smoothing": 0.2}, {"smoothing": 0.2}),
        ({"margin": "none", "center_rewards_coefficient": 0.05}, {"center": 0.05}),
        (
            {"label_smoothing": 0.1, "center_rewards_coefficient": 0.01},
            {"margin": COLUMN, "smoothing": 0.1, "center": 0.01},
        ),
    ],
    ids=["margin", "none", "votes", "smoothing", "centring", "all"],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_the_one_written_down(
    options, terms, weighted, tiny_model, marked_rows, pair_table, tmp_path
):
    weight = 1.0 + np.arange(COUNT) % 4 if weighted else 1.0
    rows = [
        {
            **row, "margin": COLUMN[k], "chosen_score": int(VOTES[k, 0]),
            "rejected_score": int(VOTES[k, 1]), **({"weight": weight[k]} if weighted else {}),
        }
        for k, row in enumerate(marked_rows(COUNT))
    ]  # fmt: skip
    pairs = pair_table(rows)
    model = train_reward_model(pairs, still(tiny_model("llama"), **options), tmp_path)
    chosen, rejected = rewards_of(model, pairs)
    expected = by_hand(chosen - rejected, chosen + rejected, **terms, weight=weight)
    assert losses(model) == pytest.approx([expected], abs=SAME)


def test_votes_below_one_count_as_one(marked_rows, pair_table):
    rows = [{**row, "chosen_score": 3, "rejected_score": -7} for row in marked_rows(1)]
    assert margins(pair_table(rows), quick("x", margin="votes")) == pytest.approx([np.log(3)])


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        ("margin", {}, "column margin is null in 3 of 4 pairs"),
        ("weight", {}, "column weight is null in 3 of 4 pairs"),
        ("chosen_score", {"margin": "votes"}, "margin: votes needs the votes of both stories"),
    ],
)
def test_columns_with_some_nulls_are_refused(
    column, options, message, tiny_model, marked_rows, pair_table, tmp_path
):
    rows = marked_rows(4)
    rows[1][column] = 2
    with pytest.raises(DataError, match=message):
        train_reward_model(pair_table(rows), still(tiny_model("llama"), **options), tmp_path)


def test_values_out_of_range_are_refused(tiny_model, marked_rows, pair_table, tmp_path):
    rows = [{**row, "weight": float(place)} for place, row in enumerate(marked_rows(3))]
    with pytest.raises(DataError, match="column weight is not above 0 in 1 of 3 pairs"):
        train_reward_model(pair_table(rows), still(tiny_model("llama")), tmp_path)


# Pairs that do not fit -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_nothing_is_dropped_for_its_length(kind, tiny_model, marked_rows, pair_table, tmp_path):
    """With one pair a step, the steps are the pairs."""
    rows = marked_rows(6, words=(5, 10)) + marked_rows(4, seed=1, words=(300, 400))
    options = quick(tiny_model(kind), batch_size=1, epochs=1, learning_rate=1e-5)
    record = train_reward_model(pair_table(rows), options, tmp_path).training_record
    assert record["steps"] == record["counts"]["pairs"] == len(rows)
    assert record["counts"]["pairs_cut"] == 4
    assert record["counts"]["pairs_given"] == len(rows)


def test_overlong_pairs_are_dropped_when_asked_and_counted(
    tiny_model, marked_rows, pair_table, tmp_path
):
    rows = marked_rows(6, words=(5, 10)) + marked_rows(4, seed=1, words=(300, 400))
    options = quick(tiny_model("llama"), batch_size=1, epochs=1, overlong="drop")
    record = train_reward_model(pair_table(rows), options, tmp_path).training_record
    assert record["steps"] == 6
    assert record["counts"]["set aside: longer than max_length"] == 4
    assert (record["counts"]["pairs_given"], record["counts"]["pairs_cut"]) == (10, 0)
    only_long = pair_table(rows[6:])
    with pytest.raises(DataError, match=r"no pair is left to train on.*longer than max_length"):
        train_reward_model(only_long, options, tmp_path / "none")
    options = replace(options, overlong="error")
    with pytest.raises(DataError, match=rf"does not fit into max_length {options.max_length}: "):
        train_reward_model(only_long, options, tmp_path / "none")


def test_overlong_pairs_are_an_error_when_asked(tiny_model, marked_rows, pair_table, tmp_path):
    pairs = pair_table(marked_rows(2, words=(300, 400)))
    first = pairs["pair_id"][0].as_py()
    with pytest.raises(DataError, match=f"pair {first} does not fit into max_length 96"):
        train_reward_model(pairs, quick(tiny_model("llama"), overlong="error"), tmp_path)


def test_stories_that_are_the_same_are_set_aside_with_the_reason(
    tiny_model, marked_rows, pair_table, tmp_path, invented
):
    rows = marked_rows(6)
    rows[1]["rejected"] = rows[1]["chosen"]
    opening = invented(random.Random(0), 200)
    rows[2] |= {"chosen": opening + " lantern", "rejected": opening + " moth"}
    counts = train_reward_model(
        pair_table(rows), quick(tiny_model("llama")), tmp_path
    ).training_record["counts"]
    assert counts["pairs"] == 4
    assert counts["set aside: both stories are the same tokens"] == 1
    assert counts["set aside: both stories are the same tokens once cut"] == 1


def test_no_pairs_are_refused(tiny_model, marked_rows, pair_table, tmp_path):
    empty = pair_table(marked_rows(2)).slice(0, 0)
    with pytest.raises(DataError, match="no pairs"):
        train_reward_model(empty, quick(tiny_model("llama")), tmp_path)


# What is left behind -------------------------------------------------------------------------


LEFT = {
    "pad is eos": ("llama", "eos", {}),
    "no pad": ("qwen3", None, {}),
    "encoder": ("bert", "own", {}),
    "new head": ("headless", None, {}),
    "lora": ("headless", None, {"lora": Lora(r=4), "learning_rate": 0.02}),
    "lora apart": ("headless", None, {"lora": Lora(r=4), "merge": False, "learning_rate": 0.02}),
}


@pytest.mark.parametrize(("kind", "pad", "changes"), LEFT.values(), ids=LEFT)
def test_what_was_trained_is_what_is_returned_saved_and_loaded_again(
    kind, pad, changes, request, tiny_model, marked_rows, pair_table, tmp_path, monkeypatch
):
    """Rewards of the live model at the end of training are those of every later form of it."""
    if changes:
        pytest.importorskip("peft")
    folder = request.getfixturevalue("headless") if kind == "headless" else tiny_model(kind, pad)
    live = []
    save = transformers.Trainer.save_model

    def note(self, *arguments, **named):
        self.model.eval()
        # As the loss reads them.
        inputs = self.objective.batch(self.data, np.arange(len(self.data)))["inputs"]
        with torch.no_grad():
            rewards = backbone.rewards_of(self.model, inputs, self.objective.pooling)
        live.append(rewards[:, 0].numpy())
        return save(self, *arguments, **named)

    monkeypatch.setattr(transformers.Trainer, "save_model", note)
    pairs = pair_table(marked_rows(32, words=(5, 60)))
    model = train_reward_model(pairs, quick(folder, **changes), tmp_path / "checkpoints")
    found = np.concatenate(rewards_of(model, pairs))
    assert found.std() > 0.05
    np.testing.assert_allclose(found, live[-1], rtol=0, atol=SAME)
    model.save(tmp_path)
    files = {path.name for path in tmp_path.iterdir()}
    assert ("adapter_model.safetensors" in files) == (changes.get("merge") is False)
    again = RewardModel.load(tmp_path)
    np.testing.assert_allclose(np.concatenate(rewards_of(again, pairs)), found, rtol=0, atol=SAME)
    assert again.layout == model.layout
    assert again.training_prompts() == set(prompt_keys(pairs))
    if "adapter_model.safetensors" in files:
        # A saved adapter can be loaded and saved once more.
        (tmp_path / "copy").mkdir()
        again.save(tmp_path / "copy")
        twice = np.concatenate(rewards_of(RewardModel.load(tmp_path / "copy"), pairs))
        np.testing.assert_allclose(twice, found, rtol=0, atol=SAME)
    else:
        plain = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
        prompts, stories = pairs["prompt"].to_pylist(), pairs["chosen"].to_pylist()
        ids = model.layout.encode(tokenizer, prompts, stories).ids
        with torch.inference_mode():
            logits = plain(**tokenizer.pad({"input_ids": ids}, return_tensors="pt")).logits[:, 0]
        np.testing.assert_allclose(found[: len(ids)], logits, rtol=0, atol=SAME)


def test_weights_in_bf16_leave_a_head_in_fp32(headless, marked_rows, pair_table, tmp_path):
    pairs = pair_table(marked_rows(32))
    options = quick(headless, weights="bfloat16", learning_rate=1e-3)
    model = train_reward_model(pairs, options, tmp_path / "checkpoints")
    model.save(tmp_path)
    again = RewardModel.load(tmp_path)
    np.testing.assert_allclose(
        np.concatenate(rewards_of(again, pairs)), np.concatenate(rewards_of(model, pairs)),
        rtol=0, atol=SAME,
    )  # fmt: skip
    weight = head_layers(again.model)[-1].weight.detach()
    assert (weight != weight.bfloat16()).any()
    body = again.model.model.embed_tokens.weight.detach()
    assert (body == body.bfloat16()).all()


def test_validation_prompts_come_from_training_and_the_best_epoch_is_kept(
    tiny_model, marked_rows, pair_table, tmp_path
):
    # Nothing can be learned, so agreement goes up and down.
    rows = marked_rows(80)
    pairs = pair_table(
        [{**row, "chosen": other["rejected"]} for row, other in pairwise([*rows, rows[0]])]
    )
    options = quick(
        tiny_model("llama"), validation=0.3, epochs=4, learning_rate=0.01, warmup_ratio=0.0,
        lr_scheduler_type="constant_with_warmup",
    )  # fmt: skip
    model = train_reward_model(pairs, options, tmp_path)
    used, held = hold_back(pairs, 0.3, options.seed)
    assert used.num_rows + held.num_rows == pairs.num_rows
    assert len(set(prompt_keys(held))) == 3
    assert not set(prompt_keys(used)) & set(prompt_keys(held))
    record = model.training_record
    assert record["counts"]["pairs"] == used.num_rows
    assert record["validation_counts"]["pairs"] == held.num_rows
    # Both were looked at, so both are training prompts to whoever evaluates the model.
    assert model.training_prompts() == set(prompt_keys(pairs))
    agreements = {entry["step"]: entry["agreement"] for entry in record["validation"]}
    assert list(agreements) == [record["steps_per_epoch"] * epoch for epoch in (1, 2, 3, 4)]
    # The last is not the best, or the test would mean nothing.
    best = max(agreements.values())
    assert agreements[record["steps"]] < best
    assert agreements[record["kept_step"]] == best
    chosen, rejected = rewards_of(model, held)
    assert ((np.sign(chosen - rejected) + 1) / 2).mean() == pytest.approx(best, abs=1e-6)


def test_validation_pairs_that_are_all_too_long_are_no_silent_loss(
    tiny_model, marked_rows, pair_table, tmp_path
):
    pairs = pair_table(marked_rows(40))
    _, held = hold_back(pairs, 0.1, 0)
    rows = pairs.to_pylist()
    for row in rows:
        if row["pair_id"] in held["pair_id"].to_pylist():
            row["chosen"] *= 40
    options = quick(tiny_model("llama"), validation=0.1, overlong="drop")
    with pytest.raises(DataError, match=r"of those kept back .*longer than max_length"):
        train_reward_model(pair_table(rows), options, tmp_path)
    assert not list(tmp_path.iterdir()), "before training"


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_a_validation_share_without_prompts_is_refused(share, marked_rows, pair_table):
    with pytest.raises(DataError, match=f"validation {share} of 10 prompts leaves no prompt"):
        hold_back(pair_table(marked_rows(20)), share, 0)


# Stopping ------------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_stops_the_run(tiny_model, marked_rows, pair_table, tmp_path):
    options = quick(tiny_model("llama"), learning_rate=1e30, warmup_ratio=0.0, epochs=4)
    with pytest.raises(ModelError, match=r"at step \d+ the loss is nan .* lower learning_rate"):
        train_reward_model(pair_table(marked_rows(64)), options, tmp_path)


def test_a_last_step_that_goes_wrong_is_seen(
    tiny_model, marked_rows, pair_table, tmp_path, monkeypatch
):
    loss, taken = RewardObjective.loss, []

    def failing(self, *arguments):
        taken.append(None)
        summed, right = loss(self, *arguments)
        return (summed * float("nan") if len(taken) == 41 else summed), right

    monkeypatch.setattr(RewardObjective, "loss", failing)
    # Every second of 41 steps has a line.
    options = quick(tiny_model("llama"), batch_size=1, epochs=1)
    with pytest.raises(ModelError, match="at step 41 the loss is nan"):
        train_reward_model(pair_table(marked_rows(41)), options, tmp_path)


def test_a_loss_that_does_not_move_stops_the_run(tiny_model, marked_rows, pair_table, tmp_path):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tiny_model("llama"))
    torch.nn.init.zeros_(model.score.weight)
    model.save_pretrained(tmp_path / "dead")
    transformers.AutoTokenizer.from_pretrained(tiny_model("llama")).save_pretrained(
        tmp_path / "dead"
    )
    options = still(tmp_path / "dead", batch_size=1, epochs=3)
    with pytest.raises(ModelError, match=r"the loss is 0\.693147 .*equal answers.*is learned"):
        train_reward_model(pair_table(marked_rows(10)), options, tmp_path / "run")


def test_what_is_learned_to_the_end_is_no_failure():
    watch = training._watch_class()(0.693147, None)
    for step in range(60):
        state = types.SimpleNamespace(global_step=step)
        watch.on_log(None, state, None, logs={"loss": 0.0, "grad_norm": 0.0})


class KilledError(Exception):
    """Stands for a kill."""


def test_a_killed_training_goes_on_and_ends_the_same(
    tiny_model, marked_rows, pair_table, tmp_path, monkeypatch
):
    pairs = pair_table(marked_rows(96))
    options = quick(tiny_model("llama"), save_steps=3, batch_tokens=100_000)
    undisturbed = train_reward_model(pairs, options, tmp_path / "whole")
    taken = []
    alive = False
    loss = RewardObjective.loss

    def dying(self, *arguments):
        taken.append(None)
        if len(taken) == 9 and not alive:
            raise KilledError
        return loss(self, *arguments)

    monkeypatch.setattr(RewardObjective, "loss", dying)
    with pytest.raises(KilledError):
        train_reward_model(pairs, options, tmp_path / "killed")
    alive = True
    # The newest checkpoint is half written, as a kill while saving leaves it.
    half = tmp_path / "killed" / "checkpoint-8"
    half.mkdir()
    (half / "config.json").write_text("{")
    del taken[:]
    # Options that say how the work is done may change in between.
    changed = RewardTraining(**{**asdict(options), "save_steps": None})
    resumed = train_reward_model(pairs, changed, tmp_path / "killed")
    # Twice 96 pairs in steps of 16 make 12 steps; of the eight done, six were saved.
    assert len(taken) == 6
    expected = np.concatenate(rewards_of(undisturbed, pairs))
    np.testing.assert_allclose(
        np.concatenate(rewards_of(resumed, pairs)), expected, rtol=0, atol=SAME
    )


def test_a_run_resumed_at_its_end_tells_the_speed_of_the_whole(
    tiny_model, marked_rows, pair_table, tmp_path
):
    pairs = pair_table(marked_rows(41))
    # Lines of the log are every second step, checkpoints every third.
    options = quick(tiny_model("bert"), batch_size=1, epochs=1, save_steps=3)
    whole = train_reward_model(pairs, options, tmp_path).training_record
    again = train_reward_model(pairs, options, tmp_path).training_record
    # The last checkpoint is of step 39: two steps are made once more.
    assert [at["step"] for at in again["curve"]] == [at["step"] for at in whole["curve"]]
    assert again["padding"] == whole["padding"] > 0
    assert again["seconds"] == pytest.approx(whole["seconds"], rel=0.2)
    assert again["tokens_per_second"] == pytest.approx(whole["tokens_per_second"], rel=0.2)
    ended = quick(tiny_model("bert"), epochs=1, batch_size=1, save_steps=41)
    first, last = (
        train_reward_model(pairs, ended, tmp_path / "ended").training_record for _ in range(2)
    )
    for name in ("seconds", "tokens_per_second", "padding", "curve"):
        assert first[name] == last[name]


def test_where_nothing_was_measured_no_speed_is_told():
    assert set(training._speed([]).values()) == {None}


def test_a_checkpoint_is_whole_only_when_every_process_has_saved_its_part(
    tiny_model, marked_rows, pair_table, tmp_path, monkeypatch
):
    from accelerate import Accelerator  # noqa: PLC0415
    from transformers import Trainer, TrainerState  # noqa: PLC0415

    done = []

    def noting(owner, name, word):
        before = getattr(owner, name)

        def call(*arguments, **named):
            done.append(word)
            return before(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    noting(Trainer, "_save_rng_state", "part")
    noting(Accelerator, "wait_for_everyone", "wait")
    noting(TrainerState, "save_to_json", "whole")
    options = quick(tiny_model("llama"), epochs=1, save_steps=1)
    train_reward_model(pair_table(marked_rows(12)), options, tmp_path)
    part, whole = done.index("part"), done.index("whole")
    assert "wait" in done[part:whole]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (None, False),
        ("machine example.org login user password x", False),
        ("machine api.wandb.ai login user password x", True),
        ("machine example.org login", False),
    ],
    ids=["none", "another host", "wandb", "broken"],
)
def test_a_key_of_wandb_is_looked_for_by_its_host(lines, found, tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if lines is not None:
        (tmp_path / ".netrc").write_text(lines + "\n")
        (tmp_path / ".netrc").chmod(0o600)
    assert training._has_wandb_key() == found
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.net")
    assert not training._has_wandb_key()
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert training._has_wandb_key()


# Seeds and options ---------------------------------------------------------------------------


def test_the_seed_makes_the_new_head_and_the_order(headless, marked_rows, pair_table, tmp_path):
    pairs = pair_table(marked_rows(32))
    rewards = []
    for run, seed in enumerate([3, 3, 4]):
        torch.rand(run)  # what was drawn before must not matter
        model = train_reward_model(pairs, quick(headless, seed=seed, epochs=1), tmp_path / str(run))
        rewards.append(np.concatenate(rewards_of(model, pairs)))
    np.testing.assert_allclose(rewards[0], rewards[1], rtol=0, atol=SAME)
    assert np.abs(rewards[0] - rewards[2]).max() > 1e-3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"learning_rate": 0.0}, r"learning_rate is 0\.0"),
        ({"warmup_ratio": 1.0}, r"warmup_ratio is 1\.0"),
        ({"max_length": 7}, "max_length is 7"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens is 0"),
        ({"max_grad_norm": -1.0}, r"max_grad_norm is -1\.0"),
        ({"weight_decay": -0.1}, r"weight_decay is -0\.1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_tokens": 0}, "batch_tokens is 0"),
        ({"label_smoothing": 0.5}, r"label_smoothing is 0\.5"),
        ({"validation": 1.0}, r"validation is 1\.0"),
        ({"save_steps": 0}, "save_steps is 0"),
        ({"quantize": True}, "quantize needs lora"),
        ({"quantize": True, "lora": Lora(), "weights": "bfloat16"}, "leave the key weights out"),
    ],
)
def test_options_that_cannot_be_are_refused_before_any_work(
    changes, message, marked_rows, pair_table, tmp_path
):
    with pytest.raises(ConfigError, match=message):
        train_reward_model(pair_table(marked_rows(2)), quick("nowhere", **changes), tmp_path)


@pytest.mark.parametrize(
    ("pairs", "batch_size", "epochs", "steps", "per_epoch"),
    [(128, 128, 1, 1, 1), (129, 128, 1, 2, 2), (100, 10, 2.5, 25, 10), (100, 10, 0.01, 1, 10)],
)
def test_epochs_become_steps(pairs, batch_size, epochs, steps, per_epoch):
    plan = Plan.make(pairs, quick("x", batch_size=batch_size, epochs=epochs))
    assert (len(plan.steps), plan.steps_per_epoch) == (steps, per_epoch)
    whole = np.concatenate(plan.steps[:per_epoch])
    assert len(set(whole)) == len(whole)
    if steps > per_epoch:
        assert (plan.steps[0] != plan.steps[per_epoch]).any()


def test_the_fold_seed_reaches_training(tiny_model, marked_rows, pair_table, tmp_path):
    pairs = pair_table(marked_rows(16))
    given = {"backbone": str(tiny_model("bert")), "batch_size": 16, "precision": "fp32"}
    given |= {"max_length": 64}
    model = train_rater("tiny", given, pairs, tmp_path, 5, "raters.tiny")
    assert model.training_record["options"]["seed"] == 5
    assert model.name == "tiny"
    with pytest.raises(ConfigError, match=r"raters\.tiny.*learning_rate"):
        train_rater("tiny", {**given, "learning_rat": 1}, pairs, tmp_path, 5, "raters.tiny")


# The program ---------------------------------------------------------------------------------


def test_the_program_writes_a_model_that_loads_and_knows_its_prompts(
    load_program, tiny_model, marked_rows, pair_table, tmp_path, capsys
):
    pairs = pair_table(marked_rows(48))
    write_table(pairs, tmp_path / "pairs.parquet")
    program = load_program("train/bradley_terry.py")
    options = vars(quick(tiny_model("llama"), epochs=1))
    config = {**options, "pairs": tmp_path / "pairs.parquet", "out": tmp_path / "run"}
    program.main(program.Config(**config, prepare_only=True))
    assert not (tmp_path / "run" / "model").exists()
    program.main(program.Config(**config))
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["counts"]["pairs"] == 48
    assert manifest["counts"]["training"]["processes"] == 1
    model = RewardModel.load(tmp_path / "run" / "model")
    assert model.training_prompts() == set(prompt_keys(pairs))
    assert not list((tmp_path / "run").glob("checkpoints-*"))
    files = {path.name for path in (tmp_path / "run" / "model").iterdir()}
    assert {"model.safetensors", "litbench.json", "tokenizer.json", "config.json"} <= files
    capsys.readouterr()
    program.main(program.Config(**{**config, "batch_tokens": 512}))
    assert "unchanged" in capsys.readouterr().out
