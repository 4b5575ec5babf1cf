"""Several processes train the model of one, and a killed run ends as if it had not been killed.

Processes are started as a user starts them, by `accelerate launch` and the configs of
configs/accelerate. deepspeed is tested where it is installed.
"""

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from litbench.errors import ConfigError
from litbench.models.tokenised import cached, make_tokenised
from litbench.models.training import (
    TrainingOptions,
    _checkpoint_of,
    _prepare_sharding,
    _step_of,
    _trainer_class,
)
from litbench.models.training import last_whole_checkpoint as whole
from litbench.tables import write_table

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("peft")
psutil = pytest.importorskip("psutil")

ROOT = Path(__file__).resolve().parent.parent
LAUNCH = ROOT / "configs" / "accelerate"
TWO = LAUNCH / "cpu_two_processes.yaml"
# Sums over processes round otherwise than a sum in one; Adam makes a little more of it.
SAME = 1e-5
# accelerate leaves FSDP out on a CPU, though torch has it there.
FSDP_ON_CPU = """
import runpy, sys
from accelerate import state
first = state.PartialState.__init__
def init(self, *arguments, **named):
    first(self, *arguments, **named)
    if self.distributed_type == state.DistributedType.MULTI_CPU:
        self.distributed_type = state.DistributedType.MULTI_GPU
state.PartialState.__init__ = init
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def run(invented, pair_table, tiny_model, tmp_path):
    """Start a training program; `run(out, launcher, **options)` returns the process."""
    source = random.Random(0)
    rows = [
        {
            "chosen": invented(source, source.randint(5, 60)),
            "rejected": invented(source, source.randint(5, 60)),
            "prompt_id": f"p{place % 14}",
            "split": "test" if place % 14 < 3 else "train",
            "chosen_story_id": f"c{place}",
            "rejected_story_id": f"r{place}",
        }
        for place in range(64)
    ]
    write_table(pair_table(rows), tmp_path / "pairs.parquet")

    def start(
        out, launcher=None, program="bradley_terry", kind="llama", through=None, port=0, **changes
    ):
        head = "language" if program == "generative" else "reward"
        options = {
            "pairs": tmp_path / "pairs.parquet",
            "out": tmp_path / out,
            "split": "train",
            "evaluation_split": "test",
            "backbone": tiny_model(kind, head=head, positions=2048),
            "max_length": 96 if head == "reward" else 1_536,
            "max_prompt_tokens": 24,
            # 50 pairs in steps of 13 and 12, each of several forward passes.
            "batch_size": 16,
            "batch_tokens": 400 if head == "reward" else 4_000,
            "learning_rate": 3e-3,
            "precision": "fp32",
            "epochs": 2,
            **changes,
        }
        command = [str(ROOT / f"train/{program}.py")]
        for key, value in options.items():
            command += [f"--{key}", str(value)]
        if through is not None:
            command.insert(0, str(through))
        if launcher is None:
            command.insert(0, sys.executable)
        else:
            command = [
                *(sys.executable, "-m", "accelerate.commands.launch", "--config_file"),
                *(
                    str(launcher),
                    "--num_processes",
                    "2",
                    "--main_process_port",
                    str(port),
                    *command,
                ),
            ]
        return subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )

    return start


def finish(process):
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said[-3000:]


def record_of(folder):
    return json.loads((folder / "manifest.json").read_text())["counts"]["training"]


def assert_same_model(first, second):
    from safetensors.torch import load_file  # noqa: PLC0415

    one, two = (load_file(folder / "model" / "model.safetensors") for folder in (first, second))
    assert one.keys() == two.keys()
    for name, weight in one.items():
        if name.endswith(("key.bias", "classifier.bias")):
            # No difference of rewards depends on them: their gradients are rounding, which Adam
            # makes large.
            continue
        np.testing.assert_allclose(two[name], weight, rtol=0, atol=SAME, err_msg=name)
    records = [record_of(folder) for folder in (first, second)]
    assert records[0]["steps"] == records[1]["steps"]
    assert records[0]["kept_step"] == records[1]["kept_step"]
    curves = [
        [(at["step"], at["loss"], at["agreement"]) for at in record["validation"]]
        for record in records
    ]
    np.testing.assert_allclose(np.array(curves[0]), np.array(curves[1]), rtol=0, atol=1e-4)
    ends = [
        json.loads((folder / "model" / "run.json").read_text())["evaluation"]
        for folder in (first, second)
    ]
    shown = [[rater["agreement"] for rater in end["raters"]] for end in ends]
    assert shown[0] == shown[1]


def assert_two(folder, launched_as="MULTI_CPU"):
    record = record_of(folder)
    assert (record["processes"], record["launched_as"]) == (2, launched_as)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"kind": "llama"},
        # One pair a step: the second process has nothing but fillers.
        {"kind": "llama", "batch_size": 1, "epochs": 0.2},
        {"kind": "bert", "validation": 0.2},
        {"program": "generative"},
        {"kind": "qwen3", "lora": "{r: 4}", "validation": 0.2},
    ],
    ids=["packed", "fillers", "padded", "generative", "lora"],
)
def test_two_processes_train_the_model_of_one(options, run, tmp_path):
    finish(run("one", **options))
    finish(run("two", TWO, **options))
    assert record_of(tmp_path / "one")["processes"] == 1
    assert_two(tmp_path / "two")
    assert_same_model(tmp_path / "one", tmp_path / "two")


@pytest.mark.long
@pytest.mark.parametrize("sharded", ["fsdp2", "deepspeed_zero3"])
def test_shards_train_the_model_of_one(sharded, run, tmp_path):
    """Killed once on the way, and with the best checkpoint kept: both are written in shards."""
    through = None
    options = {"validation": 0.2, "save_steps": 2, "epochs": 4}
    if sharded == "deepspeed_zero3":
        pytest.importorskip("deepspeed")
    else:
        through = tmp_path / "fsdp_on_cpu.py"
        through.write_text(FSDP_ON_CPU)
    finish(run("one", **options))
    config = LAUNCH / f"{sharded}.yaml"
    kill_after_checkpoint(run("shards", config, through=through, **options), tmp_path / "shards", 0)
    finish(run("shards", config, through=through, **options))
    assert_two(tmp_path / "shards", {"fsdp2": "FSDP"}.get(sharded, "DEEPSPEED"))
    assert_same_model(tmp_path / "one", tmp_path / "shards")


def newest(folder):
    """Step of the newest whole checkpoint of a run; 0 when there is none."""
    found = [whole(checkpoints) for checkpoints in folder.glob("checkpoints-*")]
    return max((int(path.rpartition("-")[2]) for path in found if path), default=0)


def kill_after_checkpoint(process, folder, seconds):
    """Kill a run and all it started some time after its next checkpoint; drop what it said."""
    until = time.monotonic() + 300
    reached = newest(folder)
    while newest(folder) == reached:
        assert time.monotonic() < until
        if process.poll() is not None:
            pytest.fail(process.communicate()[0][-3000:])
        time.sleep(0.005)
    time.sleep(seconds)
    # A launcher's own death does not end the processes it started.
    tree = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for one in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(tree)
    process.communicate()
    assert not (folder / "manifest.json").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        (TWO, TWO, {}),
        (TWO, None, {"validation": 0.2}),
        (None, TWO, {"lora": "{r: 4}", "validation": 0.2}),
        (None, TWO, {"program": "generative"}),
    ],
    ids=["two to two", "two to one", "one to two", "generative"],
)
def test_a_killed_run_ends_as_if_it_had_not_been(before, after, options, run, tmp_path):
    """With a checkpoint after every step, most kills fall into the writing of one."""
    options = {**options, "epochs": 12, "save_steps": 1}
    source = random.Random(repr(options))
    finish(run("whole", **options))
    folder = tmp_path / "killed"
    for _ in range(2):
        kill_after_checkpoint(run("killed", before, **options), folder, source.uniform(0, 0.4))
    (checkpoints,) = folder.glob("checkpoints-*")
    # What a kill leaves of a checkpoint: no state, or half of one.
    for name, state in (("checkpoint-9998", None), ("checkpoint-9999", '{"global_step": 99')):
        (checkpoints / name).mkdir()
        (checkpoints / name / "model.safetensors").write_bytes(b"half")
        if state is not None:
            (checkpoints / name / "trainer_state.json").write_text(state)
    finish(run("killed", after, **options))
    assert record_of(folder)["processes"] == (1 if after is None else 2)
    assert_same_model(tmp_path / "whole", folder)


def test_one_process_of_a_machine_tokenises_for_all(monkeypatch, tmp_path):
    monkeypatch.setenv("LITBENCH_CACHE", str(tmp_path))
    row = {"pair_id": "p", "ids_0": [1, 2], "ids_1": [3], "weight": 1.0, "margin": 0.0}
    row |= {"answer": 0, "label_at": 0}
    found = []

    def must_not():
        raise AssertionError("the second process tokenises too")

    monkeypatch.setenv("LOCAL_RANK", "1")
    second = threading.Thread(target=lambda: found.append(cached(["data"], must_not)))
    second.start()
    time.sleep(0.1)
    monkeypatch.setenv("LOCAL_RANK", "0")
    first = cached(["data"], lambda: make_tokenised([row], [], 0))
    second.join(timeout=100)
    assert found[0].table.equals(first.table)
    assert len(list((tmp_path / "pairs").glob("*.arrow"))) == 1


BEFORE_COLLECTIVES = """
import runpy, sys
from litbench.models import reward_training
make = reward_training.tokenise
def early(*arguments):
    import torch
    assert not torch.distributed.is_initialized(), "collectives wait while pairs are tokenised"
    print("tokenised early")
    return make(*arguments)
reward_training.tokenise = early
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.long
def test_pairs_are_tokenised_before_any_collective_is_set_up(run, tmp_path, monkeypatch):
    monkeypatch.setenv("LITBENCH_CACHE", str(tmp_path / "cache"))
    through = tmp_path / "early.py"
    through.write_text(BEFORE_COLLECTIVES)
    process = run("two", TWO, through=through, epochs=0.5)
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said[-3000:]
    # Once for those to train on, once for those kept back, by one process.
    assert said.count("tokenised early") == 2
    assert_two(tmp_path / "two")


def fake_trainer(*, fsdp=None, deepspeed=False):
    plugin = SimpleNamespace(fsdp_version=fsdp, mixed_precision_policy=None)
    return SimpleNamespace(
        is_fsdp_enabled=fsdp is not None,
        is_deepspeed_enabled=deepspeed,
        accelerator=SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)),
    )


@pytest.mark.parametrize(
    ("trainer", "options", "message"),
    [
        (fake_trainer(fsdp=2), {"weights": "bfloat16"}, "weights: bfloat16 cannot be sharded"),
        (fake_trainer(fsdp=2), {"quantize": True}, "weights in 4 bits cannot be sharded"),
        (fake_trainer(deepspeed=True), {"quantize": True}, "4 bits cannot be sharded"),
        (fake_trainer(fsdp=1), {}, "fsdp_version is 1: only 2"),
    ],
)
def test_what_cannot_be_sharded_is_refused(trainer, options, message):
    with pytest.raises(ConfigError, match=message):
        _prepare_sharding(trainer, TrainingOptions(backbone="x", **options), bf16=True)


def test_gradients_and_rewards_of_shards_stay_in_32_bits():
    trainer = fake_trainer(fsdp=2)
    _prepare_sharding(trainer, TrainingOptions(backbone="x"), bf16=True)
    policy = trainer.accelerator.state.fsdp_plugin.mixed_precision_policy
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    assert policy.output_dtype is None


@pytest.mark.parametrize(
    ("written", "trainer"),
    [
        ("optimizer.pt", fake_trainer(fsdp=2)),
        ("optimizer_0", fake_trainer()),
        ("latest", fake_trainer()),
        ("optimizer.pt", fake_trainer(deepspeed=True)),
    ],
)
def test_an_optimiser_is_never_silently_new(written, trainer, tmp_path):
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    (folder / "trainer_state.json").write_text('{"global_step": 3}')
    (folder / written).touch()
    with pytest.raises(ConfigError, match="checkpoint-3 was written under another kind of launch"):
        _checkpoint_of(trainer, tmp_path)


def test_a_sharded_checkpoint_has_its_folder_before_it_is_looked_for(tmp_path, monkeypatch):
    """Or the best one would not be taken note of, and an older one loaded at the end."""
    transformers = pytest.importorskip("transformers")
    there = []
    monkeypatch.setattr(
        transformers.Trainer,
        "save_model",
        lambda _, folder, __: there.append(Path(folder).is_dir()),
    )
    cls = _trainer_class()
    trainer = cls.__new__(cls)
    trainer.is_fsdp_enabled = True
    trainer.save_model(str(tmp_path / "run" / "checkpoint-3"), _internal_call=True)
    assert there == [True]


def test_the_step_that_is_told_is_of_the_checkpoint_that_was_loaded():
    assert _step_of("runs/checkpoints-0a/checkpoint-9", 12) == 9
    assert _step_of(None, 12) == 12


def test_machines_that_see_different_checkpoints_are_refused(tmp_path, monkeypatch):
    from accelerate import utils  # noqa: PLC0415

    monkeypatch.setattr(utils, "gather_object", lambda seen: [*seen, "checkpoint-9"])
    with pytest.raises(ConfigError, match="out must be a folder that all machines share"):
        _checkpoint_of(fake_trainer(), tmp_path)


# Launch configs -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(LAUNCH.glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_reads_a_launch_config(path):
    from accelerate.commands.config.config_args import load_config_from_file  # noqa: PLC0415

    config = load_config_from_file(str(path))
    header = path.read_text().split("compute_environment")[0]
    command = re.search(
        r"accelerate launch --config_file (\S+) .*train/\w+\.py --config (\S+)", header
    )
    assert command is not None
    assert command[1] == str(path.relative_to(ROOT))
    assert (ROOT / command[2]).exists()
    assert "Hardware: " in header
    assert "Not run" in header or "Run with" in header
    # The program's own key decides; accelerate's would be a second home of it.
    assert config.mixed_precision == "no"
    assert yaml.safe_load(path.read_text())["dynamo_backend"] == "no"


def test_the_programs_name_a_launch_config_that_exists():
    for program in ("bradley_terry", "generative"):
        text = (ROOT / f"train/{program}.py").read_text()
        for name in re.findall(r"configs/accelerate/\w+\.yaml", text):
            assert (ROOT / name).exists()


@pytest.mark.long
def test_two_machines_find_each_other(run, tmp_path):
    """Two launches of one process each, with the keys of two_nodes.yaml."""
    with_cpu = yaml.safe_load((LAUNCH / "two_nodes.yaml").read_text())
    with_cpu |= {"num_processes": 2, "main_process_ip": "127.0.0.1", "main_process_port": 29571}
    launches = []
    for rank in range(2):
        path = tmp_path / f"machine_{rank}.yaml"
        path.write_text(yaml.safe_dump({**with_cpu, "machine_rank": rank}))
        launches.append(path)
    finish(run("one"))
    started = [run("two", path, port=29571) for path in launches]
    for process in started:
        finish(process)
    assert_two(tmp_path / "two")
    assert_same_model(tmp_path / "one", tmp_path / "two")
