"""Killed runs of judges resume."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from fake_openai import (
    FAULTS,
    KEY,
    FakeOpenAI,
    drawn_manners,
    longer_story,
    stored_keys,
    uncoded,
)
from fake_reddit import Killer, drawn_faults

from litbench.data.records import OUTCOMES, VERDICTS
from litbench.data.tables import read_table, write_table

ROOT = Path(__file__).resolve().parents[2]


def many_pairs(n, seed):
    source = random.Random(seed)
    return [
        {
            "prompt_id": f"p{number // 3}",
            "chosen": f"Story {number} " + "rain " * source.randint(20, 60) + "end",
            "rejected": f"Other {number} " + "snow " * source.randint(20, 60) + "end",
        }
        for number in range(n)
    ]


def judged_through_kills(pair_table, load_program, folder, *, pairs, kills, faults, seed):
    pytest.importorskip("inspect_ai")
    pytest.importorskip("openai")
    print(f"seed {seed}: {pairs} pairs, {kills} kills, {faults:.0%} of requests fail")
    table = pair_table(many_pairs(pairs, seed))
    write_table(table, folder / "pairs.parquet")
    traffic = {
        "connections": 16,
        "max_retries": 10,
        "timeout_seconds": 10,
        "first_wait_seconds": 0.01,
        # Large, because the failing kinds of answers come in long rows.
        "give_up_after": 1_000,
    }
    judge = {"kind": "judge", "model": FakeOpenAI.model, "traffic": traffic}
    config = {
        "pairs": str(folder / "pairs.parquet"),
        "out": str(folder / "out"),
        "raters": {"judge": judge},
        "reference": "judge",
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    manners = drawn_manners(seed, 0.1)
    killer = Killer(seed, kills, requests=2 * pairs)
    # Two empty answers in a row would be taken for an answer.
    kinds = [kind for kind in FAULTS if kind not in ("hang", "empty")] * 4 + ["hang"]
    traces = folder / "trace.log"
    started = time.monotonic()
    with FakeOpenAI(
        longer_story,
        faults=drawn_faults(seed, faults, kinds),
        manners=manners,
        on_request=killer,
        hang_seconds=30,
        seconds=0.005,
    ) as server:
        runs, code = 0, -9
        while code != 0:
            killer.process = subprocess.Popen(
                [
                    sys.executable,
                    str(ROOT / "eval/benchmark.py"),
                    "--config",
                    str(folder / "config.yaml"),
                ],
                cwd=ROOT,
                text=True,
                env=os.environ | server.environment() | {"INSPECT_TRACE_FILE": str(traces)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            said, _ = killer.process.communicate(timeout=900)
            code = killer.process.returncode
            assert code in (0, -9), said[-2_000:]
            assert KEY not in said
            runs += 1
            assert runs <= kills + 1
    assert killer.killed == kills
    assert runs == kills + 1
    seconds = time.monotonic() - started
    verdicts = read_table(folder / "out" / "verdicts.parquet", VERDICTS)
    orders = Counter(
        zip(verdicts["pair_id"].to_pylist(), verdicts["order"].to_pylist(), strict=True)
    )
    ids = table["pair_id"].to_pylist()
    assert orders == Counter((pair_id, o) for pair_id in ids for o in ("chosen", "rejected"))
    outcomes = Counter(verdicts["outcome"].to_pylist())
    assert outcomes.keys() <= set(OUTCOMES)
    silent = {question for question in server.asked if manners(uncoded(question)) == "no choice"}
    assert outcomes["error"] == len(silent), "only questions that are never answered"
    keys = stored_keys(folder / "out/answers")
    # A kill loses only requests in flight; a question without an answer is sent twice per run.
    assert server.answered.total() <= len(keys) + 16 * kills + 2 * len(silent) * runs
    assert not list(folder.glob("trace*"))
    logs = list((folder / "out" / "logs").rglob("*.eval"))
    assert len(logs) == -(-pairs // 1_000), "one per shard"
    print(
        f"{seconds:.0f} s, {server.requests:,} requests for {len(keys):,} answers, faults "
        f"{dict(server.faults)}, outcomes {dict(outcomes)}"
    )

    # With the same codes, so that equal questions have equal keys.
    (folder / "calm/answers").mkdir(parents=True)
    shutil.copy(folder / "out/answers/seed.txt", folder / "calm/answers")
    undisturbed = load_program("eval/benchmark.py")
    with FakeOpenAI(longer_story, manners=manners) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        undisturbed.main(
            undisturbed.Config(
                pairs=folder / "pairs.parquet",
                out=folder / "calm",
                raters={"judge": judge},
                reference="judge",
            )
        )
    assert stored_keys(folder / "calm/answers") == keys
    calm = read_table(folder / "calm" / "verdicts.parquet", VERDICTS)
    # Time and the tokens of billed failures differ between runs.
    columns = ["seconds", "input_tokens", "output_tokens", "cost_usd"]
    assert verdicts.drop_columns(columns).equals(calm.drop_columns(columns))


def test_killed_run_resumes(pair_table, load_program, tmp_path):
    judged_through_kills(pair_table, load_program, tmp_path, pairs=40, kills=1, faults=0.1, seed=34)


@pytest.mark.long
def test_2480_pairs_with_failures_and_ten_kills(pair_table, load_program, tmp_path):
    judged_through_kills(
        pair_table, load_program, tmp_path, pairs=2_480, kills=10, faults=0.1, seed=32
    )
