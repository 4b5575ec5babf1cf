"""Training a reward model: it learns, reads the reward where the scorer does, and drops nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from litbench.errors import ConfigError, DataError, ModelError
from litbench.models.reward import RewardModel, load_backbone
from litbench.models.training import (
    RewardTraining,
    accumulation_steps,
    train_rater,
    train_reward_model,
)
from litbench.raters import judge_pairs
from litbench.records import prompt_keys, write_table

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("trl")

ROOT = Path(__file__).resolve().parent.parent
SAME = 1e-5


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


def quick(backbone, **changes):
    options = {
        "backbone": str(backbone),
        "max_length": 96,
        "batch_size": 16,
        "per_device_train_batch_size": 16,
        "learning_rate": 3e-3,
        "precision": "fp32",
        "epochs": 2,
        "max_prompt_tokens": 24,
    }
    return RewardTraining(**{**options, **changes})


def rewards_of(model, pairs):
    prompts = pairs["prompt"].to_pylist()
    return tuple(model.score(prompts, pairs[side].to_pylist()) for side in ("chosen", "rejected"))


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_planted_marker_is_learned(kind, tiny_model, marked_rows, pair_table, tmp_path):
    pairs = pair_table(marked_rows(160))
    model = train_reward_model(pairs, quick(tiny_model(kind)), tmp_path / "checkpoints")
    held_out = pair_table(marked_rows(100, seed=1))
    assert not set(prompt_keys(held_out)) & model.training_prompts()
    chosen, rejected = rewards_of(model, held_out)
    assert (chosen > rejected).mean() > 0.9
    curve = [entry["loss"] for entry in model.training_record["curve"]]
    assert curve[-1] < curve[0]
    outcomes = judge_pairs(model, held_out)["outcome"].to_pylist()
    assert outcomes.count("chosen") == (chosen > rejected).sum()


@pytest.mark.parametrize(
    ("kind", "pad", "padding_side"),
    [
        ("bert", "own", "left"),
        ("llama", "own", "left"),
        ("llama", "eos", "right"),
        ("llama", None, "right"),
        ("qwen3", "eos", "left"),
    ],
)
@pytest.mark.parametrize("center", [None, 0.05])
def test_training_and_scoring_read_the_same_reward(
    kind, pad, padding_side, center, tiny_model, marked_rows, pair_table, tmp_path
):
    """At a learning rate of zero, the loss of a padded batch is that of the scorer's rewards."""
    folder = tiny_model(kind, pad, padding_side)
    pairs = pair_table(marked_rows(16, words=(2, 120)))
    options = quick(
        folder, learning_rate=0.0, epochs=1, warmup_ratio=0.0, center_rewards_coefficient=center
    )
    model = train_reward_model(pairs, options, tmp_path)
    # Scored by a model that training never touched, with the layout of training.
    untouched = RewardModel(*load_backbone(str(folder)), model.layout)
    chosen, rejected = rewards_of(untouched, pairs)
    expected = np.log1p(np.exp(-(chosen - rejected))).mean()  # -log sigmoid(chosen - rejected)
    if center is not None:
        expected += center * ((chosen + rejected) ** 2).mean()
    assert abs(chosen - rejected).mean() > 0.05
    (entry,) = model.training_record["curve"]
    assert entry["loss"] == pytest.approx(expected, abs=SAME)
    after = np.concatenate(rewards_of(model, pairs))
    np.testing.assert_allclose(after, np.concatenate([chosen, rejected]), rtol=0, atol=SAME)


def test_margins_shift_the_loss(tiny_model, marked_rows, pair_table, tmp_path):
    rows = [{**row, "margin": 0.1 * place} for place, row in enumerate(marked_rows(16))]
    pairs = pair_table(rows)
    folder = tiny_model("llama")
    options = quick(folder, learning_rate=0.0, epochs=1, warmup_ratio=0.0)
    model = train_reward_model(pairs, options, tmp_path)
    chosen, rejected = rewards_of(model, pairs)
    lead = chosen - rejected - 0.1 * np.arange(16)
    assert model.training_record["curve"][0]["loss"] == pytest.approx(
        np.log1p(np.exp(-lead)).mean(), abs=SAME
    )


def test_margins_on_some_pairs_only_are_refused(tiny_model, marked_rows, pair_table, tmp_path):
    rows = marked_rows(4)
    rows[1]["margin"] = 0.5
    with pytest.raises(DataError, match="margin is null in 3 of 4 pairs"):
        train_reward_model(pair_table(rows), quick(tiny_model("llama")), tmp_path)


def test_weights_are_refused_rather_than_ignored(tiny_model, marked_rows, pair_table, tmp_path):
    rows = marked_rows(4)
    rows[1]["weight"] = 2.0
    with pytest.raises(DataError, match=r"column weight .* feature model"):
        train_reward_model(pair_table(rows), quick(tiny_model("llama")), tmp_path)


def test_no_pairs_are_refused(tiny_model, marked_rows, pair_table, tmp_path):
    empty = pair_table(marked_rows(2)).slice(0, 0)
    with pytest.raises(DataError, match="no pairs"):
        train_reward_model(empty, quick(tiny_model("llama")), tmp_path)


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_nothing_is_dropped_for_its_length(kind, tiny_model, marked_rows, pair_table, tmp_path):
    """With one pair a step, the steps are the pairs."""
    rows = marked_rows(6, words=(5, 10)) + marked_rows(4, seed=1, words=(300, 400))
    pairs = pair_table(rows)
    options = quick(
        tiny_model(kind), batch_size=1, per_device_train_batch_size=1, epochs=1, learning_rate=1e-5
    )
    record = train_reward_model(pairs, options, tmp_path).training_record
    assert record["steps"] == len(rows)
    assert record["counts"]["pairs"] == len(rows)
    assert record["counts"]["pairs_cut"] == 4


def test_accumulation_gives_the_model_of_one_large_batch(
    tiny_model, marked_rows, pair_table, tmp_path
):
    pairs = pair_table(marked_rows(32))
    rewards = []
    for per_device in (16, 4):
        options = quick(tiny_model("llama"), per_device_train_batch_size=per_device, epochs=1)
        model = train_reward_model(pairs, options, tmp_path / str(per_device))
        assert model.training_record["steps"] == 2
        rewards.append(np.concatenate(rewards_of(model, pairs)))
    np.testing.assert_allclose(rewards[0], rewards[1], rtol=0, atol=1e-3)


def test_the_same_seed_gives_the_same_rewards_and_another_seed_others(
    tiny_model, marked_rows, pair_table, tmp_path
):
    pairs = pair_table(marked_rows(32))
    rewards = [
        np.concatenate(
            rewards_of(
                train_reward_model(
                    pairs, quick(tiny_model("llama"), seed=seed, epochs=1), tmp_path / str(run)
                ),
                pairs,
            )
        )
        for run, seed in enumerate([3, 3, 4])
    ]
    np.testing.assert_allclose(rewards[0], rewards[1], rtol=0, atol=SAME)
    assert np.abs(rewards[0] - rewards[2]).max() > 1e-3


def test_the_seed_makes_the_new_head(tiny_model, marked_rows, pair_table, tmp_path):
    body = transformers.AutoModel.from_pretrained(tiny_model("bert"))
    body.save_pretrained(tmp_path / "body")
    transformers.AutoTokenizer.from_pretrained(tiny_model("bert")).save_pretrained(
        tmp_path / "body"
    )
    pairs = pair_table(marked_rows(4))
    rewards = []
    for run, seed in enumerate([3, 3, 4]):
        torch.rand(run)  # what was drawn before must not matter
        options = quick(tmp_path / "body", seed=seed, learning_rate=0.0, epochs=1)
        model = train_reward_model(pairs, options, tmp_path / str(run))
        rewards.append(np.concatenate(rewards_of(model, pairs)))
    np.testing.assert_allclose(rewards[0], rewards[1], rtol=0, atol=SAME)
    assert np.abs(rewards[0] - rewards[2]).max() > 1e-3


class KilledError(Exception):
    """Stands for a kill."""


def test_a_killed_training_goes_on_and_ends_the_same(
    tiny_model, marked_rows, pair_table, tmp_path, monkeypatch
):
    pairs = pair_table(marked_rows(96))
    options = quick(tiny_model("llama"), save_steps=3)
    undisturbed = train_reward_model(pairs, options, tmp_path / "whole")
    taken = []
    alive = False
    step = transformers.Trainer.training_step

    def dying(self, *arguments, **named):
        taken.append(self.state.global_step)
        if len(taken) == 9 and not alive:
            raise KilledError
        return step(self, *arguments, **named)

    monkeypatch.setattr(transformers.Trainer, "training_step", dying)
    with pytest.raises(KilledError):
        train_reward_model(pairs, options, tmp_path / "killed")
    alive = True
    # The newest checkpoint is half written, as a kill while saving leaves it.
    half = tmp_path / "killed" / "checkpoint-8"
    half.mkdir()
    (half / "config.json").write_text("{")
    del taken[:]
    resumed = train_reward_model(pairs, options, tmp_path / "killed")
    # Twice 96 pairs in steps of 16 make 12 steps; of the eight done, six were saved.
    assert taken == list(range(6, 12))
    expected = np.concatenate(rewards_of(undisturbed, pairs))
    np.testing.assert_allclose(
        np.concatenate(rewards_of(resumed, pairs)), expected, rtol=0, atol=SAME
    )


@pytest.mark.parametrize(
    ("batch_size", "per_device", "processes", "steps"),
    [(128, 8, 1, 16), (128, 8, 4, 4), (8, 8, 1, 1)],
)
def test_all_processes_together_see_the_batch(batch_size, per_device, processes, steps):
    assert accumulation_steps(batch_size, per_device, processes) == steps
    assert steps * per_device * processes == batch_size


@pytest.mark.parametrize("arguments", [(12, 8, 1), (8, 8, 2), (4, 8, 1)])
def test_a_batch_that_cannot_be_divided_is_refused(arguments):
    with pytest.raises(ConfigError, match="not a multiple of per_device_train_batch_size"):
        accumulation_steps(*arguments)


def test_a_loss_that_is_no_number_stops_the_run(tiny_model, marked_rows, pair_table, tmp_path):
    options = quick(tiny_model("llama"), learning_rate=1e30, warmup_ratio=0.0, epochs=4)
    with pytest.raises(ModelError, match=r"the loss is nan at step \d+: lower learning_rate"):
        train_reward_model(pair_table(marked_rows(64)), options, tmp_path)


def test_the_fold_seed_reaches_training(tiny_model, marked_rows, pair_table, tmp_path):
    pairs = pair_table(marked_rows(16))
    given = {"backbone": str(tiny_model("bert")), "batch_size": 16, "precision": "fp32"}
    given |= {"per_device_train_batch_size": 16, "max_length": 64}
    model = train_rater("tiny", given, pairs, tmp_path, 5, "raters.tiny")
    assert model.training_record["options"]["seed"] == 5
    assert model.name == "tiny"
    with pytest.raises(ConfigError, match=r"raters\.tiny.*learning_rate"):
        train_rater("tiny", {**given, "learning_rat": 1}, pairs, tmp_path, 5, "raters.tiny")


# The program ---------------------------------------------------------------------------------


@pytest.fixture
def arguments(tiny_model, marked_rows, pair_table, tmp_path):
    """The program's command line for a small run, and its pairs."""

    def build(out, **changes):
        pairs = pair_table(marked_rows(96))
        write_table(pairs, tmp_path / "pairs.parquet")
        options = vars(quick(tiny_model("llama"), **changes))
        options = {key: value for key, value in options.items() if value is not None}
        options |= {"pairs": tmp_path / "pairs.parquet", "out": tmp_path / out}
        return [part for key, value in options.items() for part in (f"--{key}", str(value))], pairs

    return build


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


def loaded_rewards(folder, pairs):
    return np.concatenate(rewards_of(RewardModel.load(folder), pairs))


def test_the_program_writes_a_model_that_loads_and_knows_its_prompts(program, arguments, tmp_path):
    given, pairs = arguments("run", epochs=1)
    done = program("train/bradley_terry.py", *given)
    assert done.returncode == 0, done.stderr
    manifest = manifest_of(tmp_path / "run")
    assert manifest["counts"]["pairs"] == 96
    assert manifest["counts"]["training"]["processes"] == 1
    model = RewardModel.load(tmp_path / "run" / "model")
    assert model.training_prompts() == set(prompt_keys(pairs))
    assert not list((tmp_path / "run").glob("checkpoints-*"))
    files = {path.name for path in (tmp_path / "run" / "model").iterdir()}
    assert {"model.safetensors", "litbench.json", "tokenizer.json", "config.json"} <= files
    again = program("train/bradley_terry.py", *given)
    assert "unchanged" in again.stdout


@pytest.mark.long
def test_two_processes_train_the_model_of_one(program, arguments, tmp_path):
    given, pairs = arguments("one", per_device_train_batch_size=8)
    assert program("train/bradley_terry.py", *given).returncode == 0
    given, _ = arguments("two", per_device_train_batch_size=8)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"),
            *("--num_processes", "2", "--main_process_port", "0"),
            *(str(ROOT / "train/bradley_terry.py"), *given),
        ],
        env={**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    one, two = (manifest_of(tmp_path / name)["counts"]["training"] for name in ("one", "two"))
    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["steps"] == two["steps"]
    first, second = (loaded_rewards(tmp_path / name / "model", pairs) for name in ("one", "two"))
    # The processes deal the pairs out in another order, so the models are alike, not equal.
    assert np.corrcoef(first, second)[0, 1] > 0.95
    for rewards in (first, second):
        assert (rewards[:96] > rewards[96:]).mean() > 0.9


@pytest.mark.long
def test_a_program_killed_after_a_checkpoint_goes_on(program, arguments, tmp_path):
    given, pairs = arguments("whole", save_steps=5, epochs=5)
    assert program("train/bradley_terry.py", *given).returncode == 0
    given, _ = arguments("killed", save_steps=5, epochs=5)
    command = [sys.executable, str(ROOT / "train/bradley_terry.py"), *given]
    running = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("checkpoints-*/checkpoint-1?/trainer_state.json")):
        assert time.monotonic() < until
        assert running.poll() is None
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not (tmp_path / "killed" / "manifest.json").exists()
    assert program("train/bradley_terry.py", *given).returncode == 0
    np.testing.assert_allclose(
        loaded_rewards(tmp_path / "killed" / "model", pairs),
        loaded_rewards(tmp_path / "whole" / "model", pairs),
        rtol=0,
        atol=SAME,
    )
