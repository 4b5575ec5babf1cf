"""The chain of LitBench's Figure 7, from prompts to readers, by the commands of its config."""

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from chinese_writers import served
from study_folder import free_port, wait_for

from litbench.data.tables import write_table
from litbench.data.text import digest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs/paper/litbench_figure7_stories.yaml"
PROMPTS, SAMPLES = 12, 2


ANSWERS = itertools.count()


def write_story(question):
    """A story of 20 to 60 sentences, another one each time."""
    number = next(ANSWERS)
    marks = [digest(question, number, k)[:5] for k in range(20 + number * 7 % 40)]
    return "The lamp went out. " + " ".join(f"{mark} waited." for mark in marks)


@pytest.mark.long
def test_the_chain_runs_as_its_header_says(tmp_path, tiny_model, pair_table):
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    rows = [{"prompt_id": f"p{k}", "prompt": f"A door in field {k}"} for k in range(PROMPTS)]
    (tmp_path / "runs/litbench_test/pairs").mkdir(parents=True)
    write_table(pair_table(rows), tmp_path / "runs/litbench_test/pairs/pairs.parquet")
    verifier = {"verifier": {"kind": "reward", "path": str(tiny_model("llama"))}}
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    def start(line, more):
        name, *inputs = shlex.split(line)
        program = ["-m", "litbench"] if name == "litbench" else [str(ROOT / inputs.pop(0))]
        # In a process of its own, because paths in the configs begin here.
        return subprocess.Popen(
            [sys.executable, *program, *inputs, *map(str, more)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    with served(write_story, others={"second": write_story}) as server:
        models = {"gpt_4.1": server.model, "gpt_4o": server.model_called("second")}
        # What stands in for the paper's models and numbers, by a word of the command.
        stand_ins = {
            "run": ["--writers", json.dumps(models), "--samples", SAMPLES],
            "best_of_n": ["--raters", json.dumps(verifier), "--min_stories", 2 * SAMPLES],
            "make": [
                "--pairs_per_reader",
                4,
                "--readers_per_pair",
                4,
                "--max_words_per_minute",
                "null",
            ],
            "serve": ["--port", port],
            "simulate": ["--url", url, "--readers", PROMPTS, "--agreement", 0.9],
        }
        text = CONFIG.read_text(encoding="utf-8")
        commands = re.findall(r"^#   (.+?)(?: +# .*)?$", text, re.M)
        names = [re.match(r"litbench (?:study |eval )?(\w+)", command)[1] for command in commands]
        assert set(stand_ins) < set(names)
        study_server = None
        for line, name in zip(commands, names, strict=True):
            process = start(line, stand_ins.get(name, ()))
            if name == "serve":
                study_server = process
                wait_for(url)
                continue
            said, _ = process.communicate(timeout=300)
            print(line, process.returncode, said, flush=True)
            assert process.returncode == 0, f"{line}: {said}"
        assert study_server is not None
        study_server.terminate()
        study_server.communicate(timeout=60)
    result = json.loads((tmp_path / "runs/litbench_figure7/result/human_study.json").read_text())
    assert result["all"]["shares"]["agreement"]["n"] == 4 * PROMPTS
