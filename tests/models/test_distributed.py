"""Several processes train the model of one, and a killed run ends as if it had not been killed.

Processes are started as a user starts them, by `accelerate launch` and the configs of
configs/accelerate.
"""

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tolerance import assert_same

from litbench.data.tables import write_table

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("peft")
psutil = pytest.importorskip("psutil")

from litbench.models.training import last_complete_checkpoint  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "configs" / "accelerate"
TWO = LAUNCH / "cpu_two_processes.yaml"
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
    """Start a training program; `run(output_dir, launcher, **options)` returns the process."""
    source = random.Random(0)
    rows = [
        {
            "chosen": invented(source, source.randint(5, 60)),
            "rejected": invented(source, source.randint(5, 60)),
            "prompt_id": f"p{index % 14}",
            "split": "test" if index % 14 < 3 else "train",
            "chosen_story_id": f"c{index}",
            "rejected_story_id": f"r{index}",
        }
        for index in range(64)
    ]
    write_table(pair_table(rows), tmp_path / "pairs.parquet")

    def start(out, launcher=None, program="bradley_terry", kind="llama", through=None, **changes):
        head = "language" if program == "generative" else "reward"
        options = {
            "pairs": tmp_path / "pairs.parquet",
            "output_dir": tmp_path / out,
            "split": "train",
            "evaluation_split": "test",
            "model_name_or_path": tiny_model(kind, head=head, positions=2048),
            "max_length": 96 if head == "reward" else 1_536,
            # 49 pairs in steps of 12 and 13, each of eight micro-batches over all processes.
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 4 if launcher else 8,
            "learning_rate": 3e-3,
            "num_train_epochs": 2,
            "use_cpu": "true",
            **changes,
        }
        command = [str(ROOT / f"train/{program}.py")]
        for key, value in options.items():
            command += [f"--{key}", str(value)]
        if through is not None:
            command.insert(0, str(through))
        launch = ["-m", "accelerate.commands.launch", "--config_file", str(launcher)]
        return subprocess.Popen(
            [sys.executable, *(launch if launcher else ()), *command],
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

    left, two = (load_file(folder / "model" / "model.safetensors") for folder in (first, second))
    assert left.keys() == two.keys()
    for name, weight in left.items():
        # No difference of rewards depends on some biases: their gradients are rounding, which Adam
        # makes large.
        if not name.endswith(("key.bias", "classifier.bias")):
            assert_same(two[name], weight, name)
    records = [record_of(folder) for folder in (first, second)]
    assert records[0]["steps"] == records[1]["steps"]
    assert records[0]["kept_step"] == records[1]["kept_step"]


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [{"kind": "bert", "validation": 0.2}, {"program": "generative"}, {"use_peft": "true"}],
    ids=["padded", "generative", "lora"],
)
def test_two_processes_train_the_model_of_one(options, run, tmp_path):
    finish(run("one", **options))
    finish(run("two", TWO, **options))
    record = record_of(tmp_path / "two")
    assert (record["processes"], record["launched_as"]) == (2, "MULTI_CPU")
    assert_same_model(tmp_path / "one", tmp_path / "two")


def newest(folder):
    """Step of the newest complete checkpoint of a run; 0 when there is none."""
    results = [
        last_complete_checkpoint(checkpoints) for checkpoints in folder.glob("checkpoints-*")
    ]
    return max((int(path.rpartition("-")[2]) for path in results if path), default=0)


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
    for item in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            item.kill()
    psutil.wait_procs(tree)
    process.communicate()
    assert not (folder / "manifest.json").exists()


@pytest.mark.long
def test_shards_train_the_model_of_one(run, tmp_path):
    """Killed once on the way, and with the best checkpoint kept: both are written in shards."""
    through = tmp_path / "fsdp_on_cpu.py"
    through.write_text(FSDP_ON_CPU)
    each = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    options = {**each, "validation": 0.2, "load_best_model_at_end": "true", "num_train_epochs": 4}
    finish(run("one", **options))
    how = {"launcher": LAUNCH / "fsdp2.yaml", "through": through, **options}
    kill_after_checkpoint(run("shards", **how), tmp_path / "shards", 0)
    finish(run("shards", **how))
    record = record_of(tmp_path / "shards")
    assert (record["processes"], record["launched_as"]) == (2, "FSDP")
    assert_same_model(tmp_path / "one", tmp_path / "shards")


@pytest.mark.long
def test_zero_3_trains_the_model_of_one(run, tmp_path):
    pytest.importorskip("deepspeed")
    finish(run("one", max_steps=2))
    finish(run("zero", LAUNCH / "deepspeed_zero3.yaml", max_steps=2))
    record = record_of(tmp_path / "zero")
    assert (record["processes"], record["launched_as"]) == (2, "DEEPSPEED")
    assert_same_model(tmp_path / "one", tmp_path / "zero")


@pytest.mark.long
@pytest.mark.parametrize(
    ("launcher", "options"),
    [
        (TWO, {}),
        (None, {"use_peft": "true", "validation": 0.2}),
        (None, {"program": "generative"}),
    ],
    ids=["two processes", "lora", "generative"],
)
def test_killed_run_ends_with_the_same_weights(launcher, options, run, tmp_path):
    """With a checkpoint after every step, most kills fall into the writing of one."""
    steps = {"save_strategy": "steps", "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    if "validation" in options:
        options = {**options, **steps}
    options = {**options, "num_train_epochs": 12, "save_steps": 1}
    source = random.Random(repr(options))
    finish(run("whole", launcher, **options))
    folder = tmp_path / "killed"
    for _ in range(2):
        kill_after_checkpoint(run("killed", launcher, **options), folder, source.uniform(0, 0.4))
    (checkpoints,) = folder.glob("checkpoints-*")
    # What a kill leaves of a checkpoint: no state, or half of one.
    for name, state in (("checkpoint-9998", None), ("checkpoint-9999", '{"global_step": 99')):
        (checkpoints / name).mkdir()
        (checkpoints / name / "model.safetensors").write_bytes(b"half")
        if state is not None:
            (checkpoints / name / "trainer_state.json").write_text(state)
    finish(run("killed", launcher, **options))
    assert_same_model(tmp_path / "whole", folder)


@pytest.mark.long
def test_launcher_shows_our_error_last(run):
    """Its report ends with our message; a launch for GPUs is refused without one."""
    process = run("two", TWO, learning_rte=1)
    said, _ = process.communicate(timeout=300)
    assert "did you mean 'learning_rate'?" in "".join(said.splitlines(keepends=True)[-8:])
    if not torch.accelerator.is_available():
        said, _ = run("two", LAUNCH / "multi_gpu.yaml", use_cpu="false").communicate(timeout=300)
        assert "this machine has none" in "".join(said.splitlines(keepends=True)[-8:])


@pytest.mark.parametrize("path", sorted(LAUNCH.glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_reads_a_launch_config(path):
    from accelerate.commands.config.config_args import load_config_from_file  # noqa: PLC0415

    config = load_config_from_file(str(path))
    command = re.search(
        r"accelerate launch --config_file (\S+) .*litbench train \w+ --config (\S+)",
        path.read_text(),
    )
    assert command is not None
    assert command[1] == str(path.relative_to(ROOT))
    assert (ROOT / command[2]).exists()
    # The program's own key decides; accelerate's would be a second home of it.
    assert config.mixed_precision == "no"
