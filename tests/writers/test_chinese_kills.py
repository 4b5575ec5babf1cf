"""Runs of the Chinese protocols go through faults and kills and end like undisturbed ones."""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from chinese_writers import TAGS, answer, served, write_books, write_instructions
from conftest import ROOT
from fake_openai import KEY, FakeOpenAI, stored_keys
from fake_reddit import Killer

from litbench.writers.run import Run, run
from litbench.writers.webnovel.placement import ReferenceDistribution

TABLES = ("turns", "stories", "ratings", "grades")
FAULTS = (
    "429",
    "500",
    "reset",
    "503",
    "cut",
    "429 later",
    "empty",
    "no json",
    "wrong types",
    "hang",
)
TRAFFIC = {
    "connections": 8,
    "max_retries": 12,
    "timeout_seconds": 60,
    "first_wait_seconds": 0.01,
    "give_up_after": 1_000,
}


def planned_faults(number, _kind):
    """Every fifth request fails. Two empty answers in a row would be taken for an answer."""
    return FAULTS[number // 5 % len(FAULTS)] if number % 5 == 0 else None


def manners(question):
    """The judge refuses a few ratings."""
    return "refusal" if "评分" in question and len(question) % 23 == 0 else None


def write_inputs(protocol, folder):
    if protocol == "webnovel":
        source = np.random.default_rng(0)
        ReferenceDistribution.fit(
            source.normal(3, 0.4, (60, 1)) + source.normal(0, 0.2, (60, 8)), TAGS
        ).write(folder / "reference.json")
        books = write_books(folder / "books.json", ["a_1.x", "a_1.y", "b"])
        return {"books": str(books), "reference": str(folder / "reference.json")}
    outline = "人物：老人。情节：等客。"
    gap = "前文。[fill in the blank]后文。"
    rows = [
        {"task": "open"},
        {"task": "open", "genre": "公文"},
        {"task": "guide", "information": outline},
        {"task": "guide", "genre": "诗歌"},
        {"task": "completion", "information": gap},
        {"task": "completion"},
    ]
    return {"instructions": str(write_instructions(folder / "instructions.parquet", rows))}


def results(folder):
    """The tables, without durations."""
    tables = {name: pq.read_table(folder / f"{name}.parquet").to_pylist() for name in TABLES}
    return {name: [row | {"seconds": None} for row in rows] for name, rows in tables.items()}


@pytest.mark.parametrize(
    ("protocol", "kills"),
    [
        ("tow", 1),
        pytest.param("webnovel", 8, marks=pytest.mark.long),
        pytest.param("tow", 8, marks=pytest.mark.long),
    ],
)
def test_killed_runs_end_like_an_undisturbed_one(protocol, kills, tmp_path):
    models = {
        "first": FakeOpenAI.model_called("first"),
        "second": FakeOpenAI.model_called("second"),
    }
    config = {
        "protocol": protocol,
        "options": write_inputs(protocol, tmp_path),
        "writers": {name: {"model": model, "traffic": TRAFFIC} for name, model in models.items()},
        "judges": {"judge": {"model": FakeOpenAI.model, "traffic": TRAFFIC}},
    }

    def answers(name):
        return lambda question: answer(question if name == "judge" else f"{question}\n{name}")

    judge = answers("judge")
    others = {name: answers(name) for name in ("first", "second")}
    with served(judge, others=others, manners=manners) as server:
        run(Run(out=tmp_path / "calm", **config))
        calm_requests = server.requests
    keys = stored_keys(tmp_path / "calm/answers")
    assert calm_requests == len(keys)

    # The same codes, so that equal questions have equal keys.
    (tmp_path / "out/answers").mkdir(parents=True)
    shutil.copy(tmp_path / "calm/answers/seed.txt", tmp_path / "out/answers")
    config["out"] = str(tmp_path / "out")
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "litbench", "run", "--config", str(tmp_path / "config.yaml")]
    killer = Killer(7, kills, calm_requests)
    with FakeOpenAI(
        judge,
        others=others,
        manners=manners,
        faults=planned_faults,
        on_request=killer,
        hang_seconds=0.5,
        seconds=0.01,
    ) as server:
        code = -signal.SIGKILL
        while code == -signal.SIGKILL:
            killer.process = subprocess.Popen(
                command,
                cwd=ROOT,
                text=True,
                env=os.environ | server.environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            said, _ = killer.process.communicate(timeout=300)
            code = killer.process.returncode
            assert KEY not in said
        assert code == 0, said
        assert server.faults.keys() == set(FAULTS)
    assert killer.killed == kills
    assert stored_keys(tmp_path / "out/answers") == keys
    # A kill loses only requests in flight.
    connections = TRAFFIC["connections"] * len([*models, "judge"])
    assert server.answered.total() <= len(keys) + kills * connections
    rows, expected = results(tmp_path / "out"), results(tmp_path / "calm")
    for name in TABLES:
        pairs = zip(rows[name], expected[name], strict=True)
        differ = [pair for pair in pairs if len(set(map(str, pair))) > 1]
        assert not differ, f"{name}: {differ[:2]}"
    counts = json.loads((tmp_path / "calm/manifest.json").read_text())["counts"]
    print(
        f"\n{protocol}: {kills} kills, {server.requests} requests for {len(keys)} answers, "
        f"faults {dict(server.faults)}, ratings {counts['ratings']}"
    )
    assert counts["dialogues"] == {"finished": 6 if protocol == "webnovel" else 12}
