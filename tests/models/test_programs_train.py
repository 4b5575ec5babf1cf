"""The training programs: what they leave, what they refuse, and what they say."""

import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from pyarrow import csv
from tolerance import assert_same

import litbench
from litbench.data.records import PAIRS, prompt_keys
from litbench.data.tables import read_table, write_table
from litbench.evaluation.command import Score, score
from litbench.models import trained_columns
from litbench.models.generative import GenerativeModel
from litbench.models.reward import RewardModel
from litbench.raters.interface import judge_pairs
from litbench.raters.nonstories import KINDS
from litbench.runs.errors import ConfigError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("trl")

from litbench.models.training import TrainingOptions  # noqa: E402
from litbench.runs.config import build, load_config  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PAPER = [ROOT / "configs" / "paper" / f"{name}.yaml" for name in ("bradley_terry", "genrm")]
CONFIGS = sorted((ROOT / "configs" / "train").glob("*.yaml")) + PAPER
MARK = "A marked story"
TEMPLATE = "answer: label\ntext: |-\n  : {prompt} A {story_a} B {story_b} ?\n"


@pytest.fixture
def pairs_file(pair_table, invented, tmp_path):
    source = random.Random(0)
    rows = [
        {
            "prompt_id": f"p{index % 8}",
            "prompt": f"[WP] Marked prompt {index % 8}",
            "split": "test" if index % 8 in (0, 1, 2) else "train",
            "chosen": f"{MARK} {index} {invented(source, 10)}",
            "rejected": invented(source, 12),
            "chosen_story_id": f"c{index}",
            "rejected_story_id": f"r{index}",
            "label_source": "planted",
        }
        for index in range(40)
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
        question = {"template": str(tmp_path / "question.yaml"), "max_prompt_tokens": 8}
        name, more, head = {
            "reward": ("bradley_terry", {"max_length": 64}, "reward"),
            "generative": ("generative", {"max_length": 200, **question}, "language"),
        }[kind]
        values = {
            "pairs": str(pairs_file),
            "output_dir": str(tmp_path / out),
            "split": "train",
            "model_name_or_path": str(tiny_model("llama", head=head)),
            "learning_rate": 1e-3,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 4,
            **more,
            **keys,
        }
        module = load_program(f"train/{name}.py")
        module.main(build(module.Config, values))
        return tmp_path / out

    return run


def run_of(folder):
    return json.loads((folder / "model" / "run.json").read_text())


@pytest.mark.parametrize("kind", ["reward", "generative"])
def test_written_files(kind, train, pairs_file, capsys):
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
    if kind == "reward":
        stored = model.reward_quantiles
        model.score_training_stories(train_pairs)
        assert_same(model.reward_quantiles, stored)
    outcomes = judge_pairs(model, test_pairs)["outcome"].to_pylist()
    (row,) = [row for row in run["evaluation"]["raters"] if row["kind"] == kind]
    credit = {"chosen": 1.0, "rejected": 0.0}
    expected = np.mean([credit.get(outcome, 0.5) for outcome in outcomes])
    is_judged = any(outcome in credit for outcome in outcomes)
    assert row["agreement"]["mean"] == (pytest.approx(expected, abs=1e-6) if is_judged else None)
    assert (row["agreement"]["n"], row["agreement"]["clusters"]) == (15, 3)
    assert {row["rater"] for row in run["evaluation"]["raters"]} == {kind, "longer"}
    said = capsys.readouterr().out
    if is_judged:
        assert f"agreement {row['agreement']['mean']:.3f}" in said
    assert "15 pairs of 3 prompts" in said
    card = (folder / "model" / "README.md").read_text()
    if is_judged:
        assert f"| this model | {row['agreement']['mean']:.3f} (" in card
    assert "simulated" in card
    assert "## Limits" in card
    assert [row["kind"] for row in run["nonstories"]] == list(KINDS)
    assert "kind of text" in card
    assert "not stories: " in said
    assert "| negatives |" not in card


@pytest.mark.parametrize("kind", ["reward", "generative"])
def test_negatives_are_counted_apart_and_judge_nothing(kind, train, capsys):
    run = run_of(folder := train(kind, validation=0.2, evaluation_split="test", negatives=True))
    counts = run["training"]["counts"]
    assert counts["pairs_given"] == 21, "20 pairs, and 5 % of them"
    assert counts["negatives"] == run["label_source"]["negatives"] == 1
    assert run["label_source"]["planted"] == 25
    assert run["training"]["validation_counts"]["pairs_given"] == 5
    assert run["evaluation"]["label_source"] == {"planted": 15}
    assert "(1 of them negatives" in capsys.readouterr().out
    card = (folder / "model" / "README.md").read_text()
    assert "| negatives | 1 |" in " ".join(card.split())


def test_unused_pairs_are_listed_with_reasons(train, pairs_file):
    folder = train(validation=0.2)
    rows = [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]
    reasons = {row["pair_id"]: row["reason"] for row in rows}
    assert len(reasons) == len(rows)
    counts = run_of(folder)["training"]["counts"]
    assert counts["pairs"] + len(rows) == 25
    pairs = read_table(pairs_file, PAIRS)
    assert "same tokens" in reasons[pairs["pair_id"][3].as_py()]
    assert "held back for validation" in reasons.values()


def test_published_files_contain_no_texts(train):
    folder = train(evaluation_split="test")
    for path in (folder / "model").rglob("*"):
        if path.suffix != ".safetensors":
            text = path.read_text(encoding="utf-8")
            assert MARK not in text, path
            assert "Marked prompt" not in text, path
            # Here all that is read and written lies below the same folder.
            assert str(folder.parent.parent) not in text, path


def test_pairs_to_evaluate_on_must_not_be_trained_on(train, tmp_path):
    with pytest.raises(ConfigError, match=r"5 prompts .* training prompts"):
        train(evaluation_split="train")
    with pytest.raises(ConfigError, match="name another evaluation_split"):
        train(split=None, evaluation_split="test")
    assert not (tmp_path / "run/model").exists(), "before any work"


def test_pairs_to_evaluate_on_may_be_another_file(train, pairs_file, tmp_path):
    pairs = read_table(pairs_file, PAIRS)
    test = pairs.filter(np.array(pairs["split"].to_pylist()) == "test")
    write_table(test.slice(0, 7), tmp_path / "others.parquet")
    run = run_of(train(evaluation_pairs=str(tmp_path / "others.parquet")))
    assert run["evaluation"]["pairs"] == 7
    assert run["inputs"]["evaluation_pairs"]["path"] == "others.parquet"


def test_evaluation_changes_no_weight(train):
    plain, judged = train(out="plain"), train(out="judged", evaluation_split="test")
    first, other = ((f / "model" / "model.safetensors").read_bytes() for f in (plain, judged))
    assert first == other
    assert run_of(plain)["evaluation"] is None
    assert "Not measured" in (plain / "model" / "README.md").read_text()


def test_checkpoints_of_another_config_are_named(train, tmp_path, capsys):
    other = tmp_path / "run" / "checkpoints-0123456789ab"
    other.mkdir(parents=True)
    (other / "weights").write_bytes(b"x")
    folder = train()
    assert f"{other} has checkpoints of another config" in capsys.readouterr().out
    assert (other / "weights").exists()
    train(report_to="none", save_steps=7)
    assert f"unchanged: {folder}" in capsys.readouterr().out


def test_only_rank_0_writes(train, tmp_path, monkeypatch, load_program):
    module = load_program("train/bradley_terry.py")
    monkeypatch.setattr(module, "train_reward_model", lambda *_, **__: None)
    train()
    assert not list((tmp_path / "run").glob("*"))


def test_trackers_get_config_and_held_out_result(train, tmp_path, monkeypatch):
    """Several at once; wandb offline where it has no key, and a key in no file."""
    pytest.importorskip("wandb")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415
        EventAccumulator,
    )

    for name in ("WANDB_API_KEY", "WANDB_MODE", "TENSORBOARD_LOGGING_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
    folder = train(report_to=["wandb", "tensorboard"], evaluation_split="test", validation=0.2)
    (file,) = folder.rglob("run-*.wandb")
    until = time.monotonic() + 20
    while b"agreement_low" not in (written := file.read_bytes()) and time.monotonic() < until:
        time.sleep(0.1)  # wandb's own process writes
    keys = ["pairs", "split", "validation", "lora_r", "learning_rate", "hidden_size"]
    metrics = ["train/accuracy", "train/margin", "train/num_tokens", "eval/accuracy", "eval/loss"]
    for name in [*keys, *metrics, "test/agreement_mean", "test/agreement_low"]:
        assert name.encode() in written, name
    assert re.search(rb'"?max_length"?\W+64\b', written)
    board = EventAccumulator(str(next(folder.rglob("events.out.tfevents*")).parent))
    board.Reload()
    assert {"train/accuracy", "test/agreement_mean"} <= set(board.Tags()["scalars"])
    assert not list(folder.glob("checkpoints-*"))


def test_command_shows_a_bar_on_a_terminal(tiny_model, pairs_file, tmp_path):
    """Through a pseudo-terminal, as `script` makes one."""
    command = (
        f"stty cols 100 rows 40; {sys.executable} -m litbench train bradley_terry "
        f"--pairs {pairs_file} --output_dir {tmp_path / 'tty'} --split train "
        f"--model_name_or_path {tiny_model('llama')} --max_length 64 "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 2"
    )
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout
    # tqdm: 6/6 [00:00<00:00, 50.0it/s]
    assert re.search(r"\d+/6 \[[0-9:]+<[0-9:?]+, ", done.stdout)
    assert re.search(r"loss=\d", done.stdout)
    assert "{'loss'" not in done.stdout
    assert "Writing model shards" not in done.stdout
    assert "{'" not in done.stdout


def test_three_lines_of_output_without_a_terminal(tiny_model, pairs_file, program, tmp_path):
    options = {
        "pairs": pairs_file,
        "output_dir": tmp_path / "quiet",
        "split": "train",
        "model_name_or_path": tiny_model("llama"),
        "max_length": 64,
        "validation": 0.2,
    }
    arguments = [f"--{key}={value}" for key, value in options.items()]
    done = program("train/bradley_terry.py", *arguments)
    assert done.returncode == 0, done.stderr
    # How many cores are free depends on what else runs.
    assert [line for line in done.stderr.splitlines() if "threads" not in line] == []
    assert len(done.stdout.splitlines()) == 3, "pairs, result, no stories"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_training_configs_are_valid_and_match_the_paper(path, load_program):
    text = path.read_text(encoding="utf-8")
    name_of_file = path.relative_to(ROOT)
    (name,) = set(re.findall(rf"litbench train (\w+) --config {name_of_file}", text))
    if name == "grpo":
        pytest.importorskip("litbench.rl.rewards")
    module = load_program(f"litbench train {name}")
    assert "Not run" in text or re.search(r"\d+(\.\d)? s|seconds", text), "measured, or not run"
    if not issubclass(module.Config, TrainingOptions):
        load_config(module.Config, ["--config", str(path)])
        return
    values = yaml.safe_load(text)
    for preset, keys in {None: {}, **values.pop("presets", {})}.items():
        # A config for a GPU is refused on a machine without one, before any work.
        config = build(module.Config, values | keys | {"use_cpu": True}, str(path))
        if path.parent.name == "paper":
            processes = 4 if path.stem == "genrm" or preset == "llama_8b" else 1
            pairs = config.per_device_train_batch_size * config.gradient_accumulation_steps
            settings = (pairs * processes, config.learning_rate, config.warmup_steps)
            is_authors_genrm = path.stem == "genrm" and "authors" in (preset or "")
            assert settings == (128, 2e-5 if is_authors_genrm else 1e-5, 0.1)
            assert config.num_train_epochs == (3 if is_authors_genrm else 1)


@pytest.mark.parametrize(
    ("path", "preset", "answer"),
    [
        (PAPER[0], "authors", None),
        (PAPER[1], "authors", "label"),
        (PAPER[1], "authors_cot", "explanation"),
    ],
)
def test_the_authors_recipes_train_without_prompts(
    path, preset, answer, load_program, tiny_model, pair_table, invented, tmp_path
):
    source = random.Random(0)
    texts = [(invented(source, 10), invented(source, 12)) for _ in range(8)]
    pairs = pair_table([{"prompt": "", "chosen": first, "rejected": two} for first, two in texts])
    for name, value in (("rationale", "It has the moth."), ("rationale_first", "chosen")):
        pairs = pairs.append_column(name, [[value] * len(texts)])
    write_table(pairs, tmp_path / "pairs.parquet")
    generative = path.stem == "genrm"
    content = yaml.safe_load(path.read_text())
    presets = content.pop("presets")
    values = {
        **content,
        **presets[preset],
        "pairs": str(tmp_path / "pairs.parquet"),
        "output_dir": str(tmp_path / "run"),
        "model_name_or_path": str(
            tiny_model("llama", head="language" if generative else "reward", positions=8_192)
        ),
        "max_steps": 2,
        "use_cpu": True,
        "bf16": False,
    }
    module = load_program(f"train/{'generative' if generative else 'bradley_terry'}.py")
    module.main(build(module.Config, values))
    run = run_of(tmp_path / "run")
    assert (run["training"]["steps"], run["training"]["counts"]["pairs"]) == (2, 8)
    assert run["reads_prompt"] is False
    model = litbench.load(tmp_path / "run" / "model")
    assert not model.reads_prompt
    assert answer is None or model.question.answer == answer


@pytest.mark.parametrize("kind", ["reward", "features"])
def test_columns_of_own_pairs_are_remembered(train, load_program, tmp_path, pairs_file, kind):
    names = {"prompt": "heading", "chosen": "a", "rejected": "b"}
    rows = read_table(pairs_file, PAIRS).select(list(names)).slice(4)
    table = rows.rename_columns(list(names.values()))
    source, new = tmp_path / "own.csv", tmp_path / "new.csv"
    csv.write_csv(table.slice(4), source)
    csv.write_csv(table.slice(0, 4), new)
    if kind == "reward":
        folder = train(pairs=str(source), split=None, **names)
    else:
        folder = tmp_path / "features"
        program = load_program("train/features.py")
        program.main(program.Config(pairs=source, out=folder, **names))
    assert trained_columns(folder / "model") == names
    score(Score(model=str(folder / "model"), input=str(new), out=tmp_path / "scored.jsonl"))
    model = litbench.load(folder / "model")
    for line in (tmp_path / "scored.jsonl").read_text().splitlines():
        row = json.loads(line)
        (expected,) = model.score([row["prompt"]], [row["rejected"]])
        assert row["reward_rejected"] == pytest.approx(expected, abs=1e-4)
