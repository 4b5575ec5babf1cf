"""The training programs: what they leave, what they refuse, and what they say."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from litbench.config import load_config
from litbench.errors import ConfigError
from litbench.models.generative import GenerativeModel
from litbench.models.reward import RewardModel
from litbench.raters import judge_pairs
from litbench.records import PAIRS, prompt_keys
from litbench.tables import read_table, write_table

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = sorted((ROOT / "configs" / "train").glob("*.yaml"))
SAME = 1e-5
MARK = "A marked story"
TEMPLATE = "answer: label\ntext: |-\n  : {prompt} A {story_a} B {story_b} ?\n"


@pytest.fixture
def pairs_file(pair_table, invented, tmp_path):
    source = random.Random(0)
    rows = [
        {
            "prompt_id": f"p{place % 8}",
            "prompt": f"[WP] Marked prompt {place % 8}",
            "split": "test" if place % 8 in (0, 1, 2) else "train",
            "chosen": f"{MARK} {place} {invented(source, 10)}",
            "rejected": invented(source, 12),
            "chosen_story_id": f"c{place}",
            "rejected_story_id": f"r{place}",
            "label_source": "planted",
        }
        for place in range(40)
    ]
    # Cut to max_length both sides are the same tokens: it is set aside.
    start = "river " * 200
    rows[3] |= {"chosen": f"{start} moth", "rejected": f"{start} salt"}
    path = tmp_path / "pairs.parquet"
    write_table(pair_table(rows), path)
    return path


@pytest.fixture
def train(load_program, tiny_model, pairs_file, tmp_path):
    """Run one of the programs on a tiny model; returns its folder."""

    def run(kind="reward", out="run", **keys):
        (tmp_path / "question.yaml").write_text(TEMPLATE)
        about = {
            "reward": ("train/bradley_terry.py", {"max_length": 64, "max_prompt_tokens": 8}),
            "generative": (
                "train/generative.py",
                {
                    "max_length": 200,
                    "max_prompt_tokens": 8,
                    "template": str(tmp_path / "question.yaml"),
                },
            ),
        }[kind]
        head = "reward" if kind == "reward" else "language"
        values = {
            "pairs": pairs_file, "out": tmp_path / out, "split": "train",
            "backbone": str(tiny_model("llama", head=head)), "batch_size": 8,
            "learning_rate": 1e-3, "precision": "fp32", **about[1], **keys,
        }  # fmt: skip
        module = load_program(about[0])
        arguments = [f"--{key}={json.dumps(value, default=str)}" for key, value in values.items()]
        module.main(load_config(module.Config, arguments))
        return tmp_path / out

    return run


def run_of(folder):
    return json.loads((folder / "model" / "run.json").read_text())


@pytest.mark.parametrize("kind", ["reward", "generative"])
def test_what_a_training_leaves(kind, train, pairs_file, capsys):
    folder = train(kind, evaluation_split="test", validation=0.2)
    run = run_of(folder)
    pairs = read_table(pairs_file, PAIRS)
    splits = np.array(pairs["split"].to_pylist())
    train_pairs, test_pairs = (pairs.filter(splits == name) for name in ("train", "test"))
    assert run["training_prompts"] == sorted(set(prompt_keys(train_pairs)))
    assert run["inputs"]["pairs"]["path"] == "pairs.parquet"
    assert len(run["inputs"]["pairs"]["sha256"]) == 64
    assert {"torch", "transformers", "litbench"} <= set(run["versions"])
    training = run["training"]
    assert training["curve"][-1]["step"] == training["steps"]
    assert len(training["validation"]) == 1
    # The agreement is that of the folder as it is loaded from now on.
    kinds = {"reward": RewardModel, "generative": GenerativeModel}
    model = kinds[kind].load(folder / "model")
    outcomes = judge_pairs(model, test_pairs)["outcome"].to_pylist()
    (row,) = [row for row in run["evaluation"]["raters"] if row["kind"] == kind]
    credit = {"chosen": 1.0, "rejected": 0.0}
    expected = np.mean([credit.get(outcome, 0.5) for outcome in outcomes])
    assert row["agreement"]["mean"] == pytest.approx(expected, abs=1e-6)
    assert (row["agreement"]["n"], row["agreement"]["clusters"]) == (15, 3)
    assert {row["rater"] for row in run["evaluation"]["raters"]} == {kind, "longer", "shorter"}
    said = capsys.readouterr().out
    assert f"agreement {row['agreement']['mean']:.3f}" in said
    assert "15 pairs of 3 prompts" in said
    card = (folder / "model" / "README.md").read_text()
    assert f"| this model | {row['agreement']['mean']:.3f} (" in card
    assert "simulated" in card
    assert "## Limits" in card


def test_every_pair_that_training_did_not_use_is_listed_with_its_reason(train, pairs_file):
    folder = train(validation=0.2)
    rows = [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]
    reasons = {row["pair_id"]: row["reason"] for row in rows}
    assert len(reasons) == len(rows)
    counts = run_of(folder)["training"]["counts"]
    assert counts["pairs"] + len(rows) == 25
    pairs = read_table(pairs_file, PAIRS)
    assert "same tokens" in reasons[pairs["pair_id"][3].as_py()]
    assert "kept back for validation" in reasons.values()


def test_no_text_of_the_pairs_is_in_what_is_published(train):
    folder = train(evaluation_split="test")
    for path in (folder / "model").rglob("*"):
        if path.suffix != ".safetensors":
            text = path.read_text(encoding="utf-8")
            assert MARK not in text, path
            assert "Marked prompt" not in text, path
            # Here all that is read and written lies below the same folder.
            assert str(folder.parent.parent) not in text, path


def test_pairs_to_evaluate_on_must_not_be_trained_on(train, tmp_path):
    with pytest.raises(ConfigError, match=r"5 prompts of the pairs to evaluate on are trained on"):
        train(evaluation_split="train")
    with pytest.raises(ConfigError, match="name another evaluation_split"):
        train(split=None, evaluation_split="test")
    assert not (tmp_path / "run").exists(), "before any work"


def test_pairs_to_evaluate_on_may_be_another_file(train, pairs_file, tmp_path):
    pairs = read_table(pairs_file, PAIRS)
    test = pairs.filter(np.array(pairs["split"].to_pylist()) == "test")
    write_table(test.slice(0, 7), tmp_path / "others.parquet")
    run = run_of(train(evaluation_pairs=tmp_path / "others.parquet"))
    assert run["evaluation"]["pairs"] == 7
    assert run["inputs"]["evaluation_pairs"]["path"] == "others.parquet"


def test_evaluation_changes_no_weight(train):
    plain, judged = train(out="plain"), train(out="judged", evaluation_split="test")
    one, other = ((f / "model" / "model.safetensors").read_bytes() for f in (plain, judged))
    assert one == other
    assert run_of(plain)["evaluation"] is None
    assert "Not measured" in (plain / "model" / "README.md").read_text()


@pytest.mark.parametrize(
    ("kind", "options"),
    [("reward", {}), ("generative", {}), ("reward", {"lora": {"r": 2}, "merge": False})],
    ids=["reward", "generative", "adapter"],
)
def test_an_evaluation_named_later_does_not_train_again(
    kind, options, train, load_program, monkeypatch, capsys
):
    folder = train(kind, **options)
    weights = {path.name: path.read_bytes() for path in (folder / "model").glob("*.safetensors")}
    aside, before = (folder / "rejected.jsonl").read_bytes(), run_of(folder)
    name = {"reward": "bradley_terry", "generative": "generative"}[kind]
    module = load_program(f"train/{name}.py")

    def must_not(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(module, module_trainer(kind), must_not)
    train(kind, **options, evaluation_split="test")
    assert "is trained: only what it is judged on has changed" in capsys.readouterr().out
    after = run_of(folder)
    assert after["evaluation"]["pairs"] == 15
    assert (after["training"], after["training_prompts"]) == (
        before["training"], before["training_prompts"]
    )  # fmt: skip
    assert weights == {
        path.name: path.read_bytes() for path in (folder / "model").glob("*.safetensors")
    }
    assert (folder / "rejected.jsonl").read_bytes() == aside
    for changed in ({"learning_rate": 1e-4}, {"split": None}):
        with pytest.raises(AssertionError, match="trained again"):
            train(kind, **{**options, **changed})
    # A model that was changed is not the one that was trained.
    (path,) = (folder / "model").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(AssertionError, match="trained again"):
        train(kind, **options, evaluation_split="test")


def module_trainer(kind):
    return {"reward": "train_reward_model", "generative": "train_generative_model"}[kind]


def test_checkpoints_of_another_config_are_named(train, tmp_path, capsys):
    other = tmp_path / "run" / "checkpoints-0123456789ab"
    other.mkdir(parents=True)
    (other / "weights").write_bytes(b"x" * 2**20)
    train()
    assert f"{other} (0.0 GiB) is of another config" in capsys.readouterr().out
    assert (other / "weights").exists()


def test_prepare_only_says_what_it_cached_and_writes_nothing(train, tmp_path, capsys):
    train(prepare_only=True)
    said = capsys.readouterr().out
    assert "cached: to train on 25 pairs given, 24 pairs" in said
    assert not list((tmp_path / "run").glob("*"))


def test_processes_but_the_first_write_nothing(train, tmp_path, monkeypatch, load_program):
    module = load_program("train/bradley_terry.py")
    monkeypatch.setattr(module, "train_reward_model", lambda *_, **__: None)
    train()
    assert not list((tmp_path / "run").glob("*"))


def test_an_adapter_kept_apart_has_a_card_that_says_so(train):
    folder = train(lora={"r": 2}, merge=False, evaluation_split="test")
    card = (folder / "model" / "README.md").read_text()
    head = yaml.safe_load(card.split("---")[1])
    assert head["library_name"] == "peft"
    assert "The folder holds an adapter" in card
    assert not (folder / "model" / "model.safetensors").exists()


@pytest.mark.parametrize("tracker", ["wandb", "wandb with another key", "tensorboard", "none"])
def test_trackers_write_their_files_without_a_key(tracker, train, tmp_path, monkeypatch):
    tracker, _, with_netrc = tracker.partition(" ")
    if tracker != "none":
        pytest.importorskip(tracker)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    if with_netrc:
        (tmp_path / ".netrc").write_text("machine example.org login user password x\n")
        (tmp_path / ".netrc").chmod(0o600)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    folder = train(report_to=tracker)
    assert len(list(folder.rglob("run-*.wandb"))) == (tracker == "wandb")
    assert len(list(folder.rglob("events.out.tfevents*"))) == (tracker == "tensorboard")
    assert not list(folder.glob("checkpoints-*"))


def test_a_key_of_wandb_is_in_no_file(train, tmp_path, monkeypatch, capfd):
    pytest.importorskip("wandb")
    key = "0123456789abcdef0123456789abcdef01234567"
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = train(report_to="wandb")
    assert list(folder.rglob("run-*.wandb"))
    holding = [p for p in tmp_path.rglob("*") if p.is_file() and key.encode() in p.read_bytes()]
    assert not holding
    assert key not in "".join(capfd.readouterr())


def test_on_a_terminal_a_bar_shows_steps_and_time_left(tiny_model, pairs_file, tmp_path):
    """Through a pseudo-terminal, as `script` makes one."""
    program = ROOT / "train" / "bradley_terry.py"
    command = (
        f"stty cols 100 rows 40; {sys.executable} {program} --pairs {pairs_file} "
        f"--out {tmp_path / 'tty'} --split train --backbone {tiny_model('llama')} "
        "--max_length 64 --precision fp32 --batch_size 4"
    )
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"],
        capture_output=True, text=True, timeout=300, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    # tqdm: 6/6 [00:00<00:00, 50.0it/s]
    assert re.search(r"\d+/6 \[[0-9:]+<[0-9:?]+, ", done.stdout)
    assert "Writing model shards" not in done.stdout


def test_nothing_is_said_but_the_last_line_without_a_terminal(tiny_model, pairs_file, tmp_path):
    done = subprocess.run(
        [
            sys.executable, str(ROOT / "train" / "bradley_terry.py"), "--pairs", str(pairs_file),
            "--out", str(tmp_path / "quiet"), "--split", "train", "--backbone",
            str(tiny_model("llama")), "--max_length", "64", "--precision", "fp32",
            "--validation", "0.2",
        ],
        capture_output=True, text=True, timeout=300, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_training_config_fits_its_paper_and_itself(path, load_program):
    text = path.read_text(encoding="utf-8")
    (name,) = set(re.findall(rf"(train/\w+\.py) --config configs/train/{path.name}", text))
    module = load_program(name)
    config = load_config(module.Config, ["--config", str(path)])
    assert "Not run" in text or re.search(r"\d+(\.\d)? s|seconds", text), "measured, or not run"
    if not hasattr(config, "backbone"):
        return
    config.check()
    room = config.max_prompt_tokens or config.max_length // 4
    answer = getattr(config, "max_answer_tokens", None) or 1
    assert room + answer < config.max_length / 2
    assert not config.quantize or config.lora is not None
    if "A.9" in text and config.lora is None:
        paper = (config.batch_size, config.learning_rate, config.warmup_ratio, config.epochs)
        assert paper == (128, 1e-5, 0.1, 1)
