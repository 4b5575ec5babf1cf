"""Training a reward model: its gradients, its loss, what it leaves, and what it refuses."""

import contextlib
import json
import random
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tolerance import assert_same

from litbench.data.chunks import ROW
from litbench.data.records import prompt_keys
from litbench.models.backbone import collate, head_layers, rewards_of
from litbench.models.reward import RewardModel
from litbench.raters.entries import RaterSpec
from litbench.raters.interface import judge_pairs
from litbench.runs.config import load_config
from litbench.runs.errors import ConfigError, DataError, ModelError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")

import reward_keys  # noqa: E402

from litbench.models.reward_training import (  # noqa: E402
    PackedRewardTrainer,
    RewardTraining,
    tokenise,
    train_reward_model,
)
from litbench.models.training import hold_back  # noqa: E402

PINNED = (Path(__file__).parents[2] / "constraints.txt").read_text()
# So small that weights stay what they are in fp32.
STILL = 1e-30


@pytest.fixture(scope="session")
def marked_rows(invented):
    """Pairs whose chosen story holds the word "lantern" more often than chance."""

    def build(n, seed=0, words=(10, 40)):
        source = random.Random(seed)
        rows = []
        for index in range(n):
            stories = [invented(source, source.randint(*words)) for _ in range(2)]
            stories = [story.replace("lantern", "ladder") for story in stories]
            marked = stories[0].split(" ")
            for where in range(0, len(marked), 4):
                marked[where] = "lantern"
            rows.append(
                {
                    "chosen": " ".join(marked),
                    "rejected": stories[1],
                    "prompt_id": f"p{seed}-{index % 10}",
                    "chosen_story_id": f"c{seed}-{index}",
                    "rejected_story_id": f"r{seed}-{index}",
                }
            )
        return rows

    return build


def quick(folder, **changes):
    options = {
        "model_name_or_path": str(folder),
        "max_length": 96,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 8,
        "learning_rate": 3e-3,
        "num_train_epochs": 2,
        "save_strategy": "no",
        "logging_steps": 1,
    }
    return RewardTraining(**{**options, **changes})


def still(folder, **changes):
    """One step that changes nothing, so that its loss is that of the untrained model."""
    return quick(folder, **{"learning_rate": STILL, "warmup_steps": 0, "max_steps": 1, **changes})


def scores_of(model, pairs):
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
    chosen, rejected = scores_of(model, held_out)
    assert (chosen > rejected).mean() > 0.9
    outcomes = judge_pairs(model, held_out)["outcome"].to_pylist()
    assert outcomes.count("chosen") == (chosen > rejected).sum()
    record = model.training_record
    assert (record["steps"], record["processes"], record["packed"]) == (20, 1, kind != "bert")
    assert record["tokens_per_second"] > 0
    assert record["curve"][-1]["accuracy"] > record["curve"][0]["accuracy"]
    json.dumps(record)


@pytest.mark.parametrize("pairs", [3, 12])
def test_a_run_with_fewer_pairs_than_a_step_trains(
    pairs, tiny_model, marked_rows, pair_table, tmp_path
):
    options = quick(tiny_model("llama"), num_train_epochs=1)
    model = train_reward_model(pair_table(marked_rows(pairs)), options, tmp_path)
    before = RewardModel.load(tiny_model("llama"))
    first, after = (
        next(item.model.model.layers[0].mlp.up_proj.parameters()) for item in (before, model)
    )
    assert model.training_record["steps"] == 1
    assert not torch.equal(first, after)


# Gradients and loss --------------------------------------------------------------------------


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
    whole = torch.cat([item.flatten() for item in first]).norm()
    for left, other in zip(first, others, strict=True):
        assert float((left - other).norm()) <= 1e-5 * float(max(left.norm(), 0.01 * whole)), way


def of_trl(folder, data, center, out):
    """Gradients by trl's own trainer, which pads all stories of a batch to the longest."""
    config = trl.RewardConfig(
        output_dir=str(out),
        per_device_train_batch_size=len(data.rows),
        max_steps=1,
        learning_rate=STILL,
        max_grad_norm=1e9,
        max_length=None,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=None,
        center_rewards_coefficient=center,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = trl.RewardTrainer(
        model=transformers.AutoModelForSequenceClassification.from_pretrained(folder),
        args=config,
        train_dataset=data.rows.remove_columns(["pair_id", "length", "weight"]),
        processing_class=transformers.AutoTokenizer.from_pretrained(folder),
    )
    trainer._send_telemetry = lambda: None
    with gradients() as gradients_seen:
        trainer.train()
    return gradients_seen


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3", "gpt2", "bert"])
def test_gradients_equal_those_of_trl(kind, tiny_model, marked_rows, pair_table, tmp_path):
    folder, results = tiny_model(kind), {}
    rows = [{**row, "margin": 0.1 * k} for k, row in enumerate(marked_rows(12, words=(2, 90)))]
    pairs = pair_table(rows)
    for way, size, attention in [("one", 12, None), ("six", 2, None), ("sdpa", 4, "sdpa")]:
        options = still(
            folder,
            max_length=256,
            max_grad_norm=1e9,
            center_rewards_coefficient=0.05,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=12 // size,
            attn_implementation=attention,
        )
        with gradients() as results[way]:
            model = train_reward_model(pairs, options, tmp_path / way)
        assert model.training_record["packed"] == (kind != "bert" and attention is None)
    if kind != "bert":  # trl masks an encoder by its pad token, which ours has in none of its rows
        data = tokenise(pairs, model.tokenizer)
        results["trl"] = of_trl(folder, data, 0.05, tmp_path / "trl")
    assert max(float(item.abs().max()) for item in results["one"]) > 0.1
    for way, others in results.items():
        assert_alike(results["one"], others, way)


COLUMN = np.linspace(0.1, 1.0, 12)


@pytest.mark.parametrize("center", [None, 0.05])
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_loss_is_the_documented_formula(
    kind, center, tiny_model, marked_rows, pair_table, tmp_path
):
    weight = 1.0 + np.arange(12) % 4
    rows = [
        {**row, "margin": COLUMN[k], "weight": weight[k]} for k, row in enumerate(marked_rows(12))
    ]
    pairs = pair_table(rows)
    options = still(tiny_model(kind), center_rewards_coefficient=center)
    model = train_reward_model(pairs, options, tmp_path)
    chosen, rejected = scores_of(model, pairs)
    assert abs(chosen - rejected).mean() > 0.05
    loss = (
        np.log1p(np.exp(-(chosen - rejected - COLUMN))) + (center or 0) * (chosen + rejected) ** 2
    )
    assert_same(losses(model), [(loss * weight).sum() / weight.sum()])
    result = model.training_record["curve"][0]
    assert result["accuracy"] == pytest.approx((chosen > rejected).mean())
    assert_same(result["margin"], (chosen - rejected).mean())


@pytest.mark.parametrize("column", ["margin", "weight"])
def test_columns_with_some_nulls_are_refused(column, tiny_model, marked_rows, pair_table, tmp_path):
    rows = [{**row, column: None if k else 1.0} for k, row in enumerate(marked_rows(8))]
    with pytest.raises(DataError, match=column):
        train_reward_model(pair_table(rows), quick(tiny_model("llama")), tmp_path)


# Pairs that do not fit -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_long_stories_are_cut_and_counted(kind, tiny_model, marked_rows, pair_table, tmp_path):
    """trl would drop such pairs and say nothing; those that are equal once cut are rejected."""
    rows = marked_rows(12, words=(200, 300))
    start = "river " * 200
    rows[3] |= {"chosen": f"{start} moth", "rejected": f"{start} salt"}
    rows[4] |= {"chosen": "river", "rejected": "river"}
    options = quick(tiny_model(kind), num_train_epochs=1)
    numbered = pair_table(rows).append_column(ROW, pa.array(range(1, 13)))
    model = train_reward_model(numbered, options, tmp_path)
    counts = model.training_record["counts"]
    assert (counts["pairs_given"], counts["pairs"], counts["pairs_cut"]) == (12, 10, 10)
    assert counts["rejected: both stories are the same tokens once cut"] == 1
    lines = (tmp_path / "rejected.jsonl").read_text().splitlines()
    rejected = [json.loads(line) for line in lines]
    assert [(row["row"], row["reason"]) for row in rejected] == [
        (4, "both stories are the same tokens once cut"),
        (5, "both stories are the same tokens"),
    ]


def test_too_few_pairs_are_refused(tiny_model, marked_rows, pair_table, tmp_path):
    options = quick(tiny_model("llama"))
    with pytest.raises(DataError, match="no pairs"):
        train_reward_model(pair_table([]), options, tmp_path)
    same = [{**row, "rejected": row["chosen"]} for row in marked_rows(4)]
    with pytest.raises(DataError, match="too few pairs"):
        train_reward_model(pair_table(same), options, tmp_path)


# What is left behind -------------------------------------------------------------------------


LORA = {"use_peft": True, "lora_r": 4, "learning_rate": 0.02}
LEFT = {
    "pad is eos": ("llama", "eos", {}),
    "no pad": ("qwen3", None, {}),
    "encoder": ("bert", "own", {}),
    "new head": ("headless", None, {}),
    "lora": ("headless", None, LORA),
    "lora apart": ("headless", None, {**LORA, "merge_adapter": False}),
}


@pytest.mark.parametrize(("kind", "pad", "changes"), LEFT.values(), ids=LEFT)
def test_trained_returned_and_loaded_models_agree(
    kind, pad, changes, request, tiny_model, marked_rows, pair_table, tmp_path, monkeypatch
):
    """Rewards of the live model at the end of training are those of every later form of it."""
    folder = request.getfixturevalue("headless") if kind == "headless" else tiny_model(kind, pad)
    live = []
    save = PackedRewardTrainer.save_model

    def note(self, *arguments, **named):
        self.model.eval()
        sequences = [*self.train_dataset["chosen_ids"], *self.train_dataset["rejected_ids"]]
        batch = collate(sequences, packed=self.packed, pooling=self.pooling)
        with torch.no_grad():
            live.append(rewards_of(self.model, batch, self.pooling)[:, 0].numpy())
        return save(self, *arguments, **named)

    monkeypatch.setattr(PackedRewardTrainer, "save_model", note)
    pairs = pair_table(marked_rows(32, words=(5, 60)))
    model = train_reward_model(pairs, quick(folder, **changes), tmp_path / "checkpoints")
    result = np.concatenate(scores_of(model, pairs))
    assert result.std() > 0.05
    assert_same(result, live[-1])
    model.save(tmp_path)
    files = {path.name for path in tmp_path.iterdir()}
    assert ("adapter_model.safetensors" in files) == (changes.get("merge_adapter") is False)
    again = RewardModel.load(tmp_path)
    assert_same(np.concatenate(scores_of(again, pairs)), result)
    assert again.training_prompts() == set(prompt_keys(pairs))


def test_weights_in_bf16_leave_a_head_in_fp32(headless, marked_rows, pair_table, tmp_path):
    pairs = pair_table(marked_rows(32))
    options = quick(headless, dtype="bfloat16", learning_rate=1e-3)
    model = train_reward_model(pairs, options, tmp_path / "checkpoints")
    weight = head_layers(model.model)[-1].weight.detach()
    assert (weight != weight.bfloat16()).any()
    body = model.model.model.embed_tokens.weight.detach()
    assert (body == body.bfloat16()).all()


def test_validation_keeps_the_best_epoch(tiny_model, marked_rows, pair_table, tmp_path):
    # Nothing can be learned, so the loss on other prompts goes up.
    rows = marked_rows(80)
    texts = [row["rejected"] for row in rows]
    mixed = [{**row, "chosen": text} for row, text in zip(rows, texts[1:] + texts[:1], strict=True)]
    pairs = pair_table(mixed)
    options = quick(tiny_model("llama"), validation=0.3, num_train_epochs=4, learning_rate=0.01)
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
    results = {entry["step"]: entry for entry in record["validation"]}
    assert len(results) == 4
    # The last is not the best, or the test would mean nothing.
    assert (
        record["kept_step"]
        == min(results, key=lambda step: results[step]["loss"])
        != record["steps"]
    )
    chosen, rejected = scores_of(model, held)
    best = results[record["kept_step"]]
    assert ((np.sign(chosen - rejected) + 1) / 2).mean() == pytest.approx(
        best["accuracy"], abs=1e-5
    )


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_a_validation_share_without_prompts_is_refused(share, marked_rows, pair_table):
    with pytest.raises(DataError, match="leaves no prompt"):
        hold_back(pair_table(marked_rows(10)), share, 0)


def test_loss_that_is_not_finite_stops_the_run(tiny_model, marked_rows, pair_table, tmp_path):
    options = quick(tiny_model("llama"), learning_rate=1e30, warmup_steps=0, max_grad_norm=0)
    with pytest.raises(ModelError, match="lower learning_rate"):
        train_reward_model(pair_table(marked_rows(64)), options, tmp_path)


def test_resumed_training_ends_with_the_same_weights(
    headless, marked_rows, pair_table, tmp_path, monkeypatch, capsys
):
    pairs = pair_table(marked_rows(50))
    options = quick(headless, num_train_epochs=3, save_strategy="steps", save_steps=2, **LORA)
    whole = train_reward_model(pairs, options, tmp_path / "whole")
    stop = {"at": 5}
    step = PackedRewardTrainer.training_step

    def fail(self, *arguments, **named):
        if self.state.global_step == stop["at"]:
            raise RuntimeError("power cut")
        return step(self, *arguments, **named)

    monkeypatch.setattr(PackedRewardTrainer, "training_step", fail)
    with pytest.raises(RuntimeError, match="power cut"):
        train_reward_model(pairs, options, tmp_path / "parts")
    # Half of a checkpoint, as a kill leaves it.
    (tmp_path / "parts" / "checkpoint-99").mkdir()
    (tmp_path / "parts" / "checkpoint-4" / "optimizer.pt").unlink()
    path = tmp_path / "parts" / "checkpoint-2" / "trainer_state.json"
    state = json.loads(path.read_bytes())
    state["log_history"][-1]["seconds"] = 1e4
    path.write_text(json.dumps(state))
    stop["at"] = None
    capsys.readouterr()
    parts = train_reward_model(pairs, options, tmp_path / "parts")
    out, told = capsys.readouterr()
    assert "pairs: 50 read, 50 used, 0 truncated" in out
    assert f"training resumes from {tmp_path / 'parts' / 'checkpoint-2'}" in told
    np.testing.assert_array_equal(scores_of(parts, pairs), scores_of(whole, pairs))
    assert losses(parts) == losses(whole)
    logged = [
        json.loads((tmp_path / name / "checkpoint-6" / "trainer_state.json").read_bytes())
        for name in ("whole", "parts")
    ]
    tokens, resumed = (
        [row["num_tokens"] for row in state["log_history"] if "num_tokens" in row]
        for state in logged
    )
    assert resumed == tokens
    # Of both runs together.
    assert parts.training_record["seconds"] > 1e4 > whole.training_record["seconds"]


def test_full_disk_names_the_folder(tiny_model, marked_rows, pair_table, tmp_path, monkeypatch):
    def save(*_):
        torch.save(torch.zeros(9), "/dev/full")

    monkeypatch.setattr(PackedRewardTrainer, "_save_optimizer_and_scheduler", save)
    options = quick(tiny_model("llama"), save_strategy="steps", save_steps=1)
    with pytest.raises(DataError, match=f"cannot write {tmp_path}: .*; free space"):
        train_reward_model(pair_table(marked_rows(64)), options, tmp_path)


# Keys ----------------------------------------------------------------------------------------


REFUSED = {
    "unknown": ({"learning_rat": 1}, "unknown key 'learning_rat': did you mean 'learning_rate'"),
    "no model": ({"model_name_or_path": None}, "'model_name_or_path' is None"),
    "choice": ({"lr_scheduler_type": "linnear"}, "linnear"),
    "number": ({"num_train_epochs": "three"}, "'num_train_epochs' is 'three'"),
    "validation": ({"validation": 1.0}, "'validation' is 1.0"),
    "quantised": ({"load_in_4bit": True}, "use_peft"),
    "of transformers": ({"fp16": True, "bf16": True, "use_cpu": True}, "fp16 and bf16"),
}


@pytest.mark.parametrize(("values", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_keys_are_refused_in_one_line(values, message):
    with pytest.raises(ConfigError, match=message) as refused:
        RaterSpec("minilm", "reward", {"model_name_or_path": "x", **values})
    assert "\n" not in str(refused.value)


def test_keys_of_trl_and_transformers_work(tmp_path):
    values = {
        "model_name_or_path": "owner/name",
        "model_revision": "v2",
        "use_peft": True,
        "lora_r": 8,
        "learning_rate": "1e-4",
        "report_to": ["wandb", "tensorboard"],
        "push_to_hub": True,
        "hub_model_id": "me/it",
        "weight_decay": 0.1,
        "center_rewards_coefficient": 0.01,
        "lora_target_modules": ["q_proj", "v_proj"],
    }
    arguments = ["--num_train_epochs", "3", "--lora-alpha=64", "--activation_checkpointing", "true"]
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(values))
    made = load_config(RewardTraining, ["--config", str(config), *arguments])
    assert (made.learning_rate, made.num_train_epochs, made.lora_alpha) == (1e-4, 3, 64)
    assert (made.report_to, made.hub_private_repo) == (["wandb", "tensorboard"], True)
    assert made.activation_checkpointing
    assert made.gradient_checkpointing, "trl and transformers before 5.23 read the old name"
    assert made.files() == {"model_name_or_path": "owner/name@v2"}
    record = made.record()
    assert record["center_rewards_coefficient"] == 0.01
    assert not {"hub_model_id", "report_to", "output_dir"} & record.keys()
    # Trackers get all of them.
    assert {"validation", "lora_r", "weight_decay"} <= made.to_dict().keys()


@pytest.mark.parametrize("words", [["--model_revision=null"], ["--model_revision", "null"]])
def test_null_on_the_command_line_is_none(words):
    inputs = ["--model_name_or_path=x", "--center_rewards_coefficient=0.1", "--run_name=a"]
    arguments = [*inputs, "--center_rewards_coefficient", "null", "--run_name=null", *words]
    made = load_config(RewardTraining, arguments)
    assert (made.center_rewards_coefficient, made.run_name) == (None, None)
    assert made.model_revision == "null", "a key that cannot be None takes the text"
    with pytest.raises(ConfigError, match=r"'learning_rate' is None: .* valid number"):
        load_config(RewardTraining, [*inputs, "--learning_rate", "null"])


def test_missing_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "False")  # as `accelerate launch` sets it
    made = RewardTraining(model_name_or_path="x", bf16=True)
    assert (made.bf16, made.use_cpu) == (True, True)
    monkeypatch.setenv("RANK", "0")  # as a launch config for several GPUs sets it
    with pytest.raises(ConfigError, match="set use_cpu: true"):
        RewardTraining(model_name_or_path="x")


def test_raters_inside_other_programs_take_the_same_keys(
    tiny_model, marked_rows, pair_table, tmp_path
):
    options = {
        "model_name_or_path": str(tiny_model("bert")),
        "max_length": 64,
        "max_steps": 1,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
    }
    spec = RaterSpec("minilm", "reward", options)
    pairs = pair_table(marked_rows(8))
    model = spec.train(pairs, tmp_path, 7)
    assert spec.options.seed == 42, "the options are shared by all folds"
    assert (model.name, model.training_record["options"]["seed"]) == ("minilm", 7)


def test_no_telemetry_is_sent(tiny_model, marked_rows, pair_table, tmp_path, monkeypatch):
    """trl sends which models are trained to its authors unless it is kept from it."""
    monkeypatch.delenv("CI", raising=False)

    def told(*_, **__):
        raise AssertionError("telemetry")

    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", told)
    options = still(tiny_model("llama"))
    train_reward_model(pair_table(marked_rows(4)), options, tmp_path)
    assert not list(Path(tmp_path).rglob("README.md"))


@pytest.mark.skipif(
    any(f"{name}=={version(name)}\n" not in PINNED for name in ("transformers", "trl")),
    reason="the keys are listed from the versions in constraints.txt",
)
def test_the_listed_keys_are_those_of_the_installed_trl():
    listed = reward_keys.FILE.read_text(encoding="utf-8")
    assert listed == reward_keys.source(), "run: python tests/reward_keys.py"
