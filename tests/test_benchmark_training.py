"""The training benchmark: its sides compute the same pairs, and its padding figures are theirs."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
pytest.importorskip("trl")


@pytest.fixture(scope="module")
def benchmark(load_program: Callable[[str], ModuleType]) -> ModuleType:
    return load_program("benchmarks/training.py")


def test_drawn_lengths_are_those_of_the_stories_they_stand_for(benchmark: ModuleType) -> None:
    lengths = benchmark.draw_pairs(2_000, 50, seed=3).lengths()
    for side, deciles in enumerate((benchmark._CHOSEN, benchmark._REJECTED)):
        assert lengths[:, side].min() >= deciles[0]
        assert lengths[:, side].max() <= deciles[-1]
        assert abs(np.median(lengths[:, side]) - deciles[5]) < 30
    # One side's draw says nothing about the other's.
    assert abs(np.corrcoef(lengths.T)[0, 1]) < 0.1


def test_all_sides_agree_about_the_loss_and_count_their_own_padding() -> None:
    command = ["--width", "32", "--layers", "1", "--pairs", "2", "--repeats", "1", "--threads", "1"]
    command += ["--steps", "2"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/training.py"), *command],
        capture_output=True, text=True, timeout=300, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    padding = result["padding"]
    assert padding["packed"] == 0
    assert 0 < padding["grouped"] <= padding["trl"] < padding["max_length"] < 1
    assert {"over_max_length", "over_trl", "over_grouped"} <= set(result)
    # Absolute times of a CPU stay out of the last line.
    assert not {"tokens_per_second", "seconds"} & set(result)


@pytest.mark.parametrize("steps", [1, 3])
def test_sides_that_disagree_about_the_loss_stop_the_benchmark(
    benchmark: ModuleType, steps: int
) -> None:
    class Disagreeing:
        size, bf16 = benchmark.SIZES["tiny"], False

        def max_length(self, _: object) -> object:
            return benchmark.Run(1, 1.0, 1.0, loss=0.70)

        def packed(self, _: object) -> object:
            return benchmark.Run(1, 1.0, 1.0, loss=0.71)

    given = argparse.Namespace(repeats=1, pairs=2, steps=steps)
    with pytest.raises(SystemExit, match="disagree"):
        benchmark.compare(Disagreeing(), ["max_length", "packed"], given)


def test_baselines_of_two_models_share_the_file_of_their_device(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "_BASELINES", tmp_path / "baselines")
    benchmark.keep_baseline("NVIDIA H200", "llama-1b full", {"mfu": 0.4})
    path = benchmark.keep_baseline("NVIDIA H200", "llama-8b lora", {"mfu": 0.3})
    assert path.name == "nvidia-h200.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept["llama-1b full"] == {"mfu": 0.4}
    assert kept["llama-8b lora"] == {"mfu": 0.3}


def test_a_gpu_model_asks_for_a_gpu(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["training.py", "--model", "llama-1b"])
    with pytest.raises(SystemExit, match="needs a GPU"):
        benchmark.main()
