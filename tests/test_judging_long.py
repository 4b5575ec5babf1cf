"""Runs of judges that are killed, and how often the interval of a noisy judge covers the truth."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fake_openai import FAULTS, KEY, FakeOpenAI, longer_story
from fake_reddit import Killer, drawn_faults

from litbench.judges.store import AnswerStore, Sampling, keys_of
from litbench.metrics.agreement import pair_scores
from litbench.metrics.intervals import jackknife_interval
from litbench.records import OUTCOMES, VERDICTS, empty_columns
from litbench.tables import read_table, write_table
from litbench.templates import load_template
from litbench.text import digest

ROOT = Path(__file__).resolve().parent.parent

# Kills ----------------------------------------------------------------------------------------


def many_pairs(n: int, seed: int) -> list[dict[str, Any]]:
    source = random.Random(seed)
    return [
        {
            "prompt_id": f"p{number // 3}",
            "chosen": f"Story {number} " + "rain " * source.randint(20, 60) + "end",
            "rejected": f"Other {number} " + "snow " * source.randint(20, 60) + "end",
        }
        for number in range(n)
    ]


def kept_manner(seed: int) -> Callable[[str], str | None]:
    """One question in ten is refused, cut, left without an answer, or gets one nobody can read."""
    manners = ("refusal", "filter", "length", "rambling", "no choice")

    def draw(question: str) -> str | None:
        number = int(digest(seed, question), 16)
        return manners[number // 1_000 % len(manners)] if number % 10 == 0 else None

    return draw


def judged_through_kills(
    pair_table: Callable[..., pa.Table],
    load_program: Callable[[str], ModuleType],
    folder: Path,
    *,
    pairs: int,
    kills: int,
    faults: float,
    seed: int,
) -> None:
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
        "longest_wait_seconds": 0.1,
        # A kill ends a row of errors early; the faulty kinds of answers come in rows too.
        "give_up_after": 1_000,
    }
    judge = {"kind": "judge", "model": FakeOpenAI.model, "traffic": traffic, "shard": 500}
    config = {
        "pairs": str(folder / "pairs.parquet"),
        "out": str(folder / "out"),
        "raters": {"judge": judge},
        "reference": "judge",
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    render = load_template("alternative").render
    questions = [
        render(row["prompt"], *stories)
        for row in table.to_pylist()
        for stories in (
            (row["chosen"], row["rejected"]),
            (row["rejected"], row["chosen"]),
        )
    ]
    keys = dict(zip(keys_of(FakeOpenAI.model, questions, Sampling()), questions, strict=True))
    manners = kept_manner(seed)
    silent = sum(manners(question) == "no choice" for question in questions)
    killer = Killer(seed, kills, requests=len(questions))
    kinds = [kind for kind in FAULTS if kind != "hang"] * 4 + ["hang"]
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
            with AnswerStore(folder / "out" / "answers", read_only=True) as known:
                stored = {question for key, question in keys.items() if known.get(key) is not None}
            before = server.asked.copy()
            killer.process = subprocess.Popen(
                [sys.executable, str(ROOT / "eval/benchmark.py"), "--config",
                 str(folder / "config.yaml")],
                cwd=ROOT, text=True,
                env=os.environ | server.environment() | {"INSPECT_TRACE_FILE": str(traces)},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            said, _ = killer.process.communicate(timeout=900)
            code = killer.process.returncode
            assert code in (0, -9), said[-2_000:]
            assert KEY not in said
            again = stored & (server.asked - before).keys()
            assert not again, f"{len(again)} stored answers were asked for again"
            runs += 1
            assert runs <= kills + 1
    assert killer.killed == kills
    assert runs == kills + 1
    seconds = time.monotonic() - started
    verdicts = read_table(folder / "out" / "verdicts.parquet", VERDICTS)
    orders = Counter(zip(verdicts["pair_id"].to_pylist(), verdicts["order"].to_pylist(),
                         strict=True))  # fmt: skip
    ids = table["pair_id"].to_pylist()
    assert orders == Counter((pair_id, o) for pair_id in ids for o in ("chosen", "rejected"))
    outcomes = Counter(verdicts["outcome"].to_pylist())
    assert outcomes.keys() <= set(OUTCOMES)
    assert outcomes["error"] == silent, "but for those that never get an answer"
    # What a kill can lose is what was under way; a question without an answer comes twice a run.
    assert server.answered.total() <= len(questions) + 16 * kills + 2 * silent * runs
    assert not list(folder.glob("trace*")), "nor elsewhere"
    logs = list((folder / "out" / "logs").rglob("*.eval"))
    assert len(logs) == -(-pairs // 500), "one for each shard"
    print(
        f"{seconds:.0f} s, {server.requests:,} requests for {len(questions):,} calls, faults "
        f"{dict(server.faults)}, outcomes {dict(outcomes)}"
    )

    undisturbed = load_program("eval/benchmark.py")
    with FakeOpenAI(longer_story, manners=manners) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        undisturbed.main(
            undisturbed.Config(
                pairs=folder / "pairs.parquet", out=folder / "calm", raters={"judge": judge},
                reference="judge",
            )
        )  # fmt: skip
    calm = read_table(folder / "calm" / "verdicts.parquet", VERDICTS)
    # Time, and the tokens of attempts that failed and were billed, are a run's own.
    own = ["seconds", "input_tokens", "output_tokens", "cost_usd"]
    assert verdicts.drop_columns(own).equals(calm.drop_columns(own))


def test_a_killed_run_asks_for_no_stored_answer_again(
    pair_table: Callable[..., pa.Table],
    load_program: Callable[[str], ModuleType],
    tmp_path: Path,
) -> None:
    judged_through_kills(pair_table, load_program, tmp_path, pairs=60, kills=1, faults=0.1, seed=34)


@pytest.mark.long
def test_2480_pairs_end_in_known_outcomes_through_faults_and_ten_kills(
    pair_table: Callable[..., pa.Table],
    load_program: Callable[[str], ModuleType],
    tmp_path: Path,
) -> None:
    judged_through_kills(
        pair_table, load_program, tmp_path, pairs=2_480, kills=10, faults=0.1, seed=32
    )


# Coverage -------------------------------------------------------------------------------------

# Pairs by prompt. The first two are those of configs/eval/storyer_crossvalidate.yaml and
# wpb_zh_crossvalidate.yaml. Of LitBench-Test the numbers of pairs and posts are known; how they are
# spread is made up.
SIZES = {
    "storyer_pairs, 619 pairs of 83 prompts": [
        *(42, 36, 36, 28, 24, 24, 24, 20, 16, 16, 16, 15, 15, 14, 14, 12, 12, 12, 12, 12, 10, 10),
        *(9, 9, 9, 7, 7, 6, 6, 6, 6, 6, 5, 5, 5, 5, 5, 5, 4, 4, 4, 4, 4, 4, *[3] * 10),
        *(*[2] * 15, *[1] * 14),
    ],
    "wpb_zh, 881 pairs of 137 prompts": [
        *(*[8] * 46, *[7] * 33, *[6] * 25, *[5] * 15, *[4] * 11, 3, 3, 2, 2, 1, 1, 1),
    ],
    "LitBench-Test, 2,480 pairs of 1,181 posts": [
        *(*[20] * 3, *[12] * 12, *[8] * 14, *[6] * 24, *[5] * 40, *[4] * 70, *[3] * 127),
        *(*[2] * 268, *[1] * 623),
    ],
}
_AT_ONCE = 50


def test_the_sizes_are_those_of_the_sets() -> None:
    told = [(sum(sizes), len(sizes)) for sizes in SIZES.values()]
    assert told == [(619, 83), (881, 137), (2_480, 1_181)]


def noisy_judges(
    sizes: list[int], judges: int, random: np.random.Generator
) -> tuple[pa.Table, np.ndarray]:
    """Verdicts of judges that lean to a position, refuse, find ties and know prompts unequally.

    In each order of a pair a judge refuses with probability r, else sees a tie with probability t.
    Else, if the pair is one in which it goes by the position (l), it takes the story shown first,
    and if not it is right with its share of the prompt, drawn from a beta distribution with mean a.
    With both orders asked, going by the position is right in one of them. So its agreement is
    r/2 + (1 - r) (t/2 + (1 - t) (l/2 + (1 - l) a)), whatever the prompts' sizes.

    Returns:
        Table by the schema VERDICTS, and the true agreements; shape (judges,).
    """
    n = sum(sizes)
    refuses, ties, leans = (random.uniform(0, most, judges) for most in (0.1, 0.1, 0.4))
    right, correlation = random.uniform(0.5, 0.85, judges), random.uniform(0.01, 0.3, judges)
    truth = refuses / 2 + (1 - refuses) * (
        ties / 2 + (1 - ties) * (leans / 2 + (1 - leans) * right)
    )
    strength = (1 - correlation) / correlation
    share = random.beta(
        (right * strength)[:, None], ((1 - right) * strength)[:, None], (judges, len(sizes))
    )
    share = np.repeat(share, sizes, axis=1)
    by_position = random.random((judges, n)) < leans[:, None]
    outcomes = []
    for order in ("chosen", "rejected"):
        is_right = random.random((judges, n)) < share
        is_right[by_position] = order == "chosen"
        outcome = np.where(is_right, "chosen", "rejected").astype("U8")
        outcome[random.random((judges, n)) < ties[:, None]] = "tie"
        outcome[random.random((judges, n)) < refuses[:, None]] = "refused"
        outcomes.append(outcome)
    types = {name: column.type for name, column in empty_columns(VERDICTS, 0).items()}
    rows = 2 * judges * n
    given = {
        "pair_id": np.tile([f"{number:04d}" for number in range(n)], 2 * judges),
        "rater": np.repeat([f"judge {number}" for number in range(judges)], 2 * n),
        "kind": np.full(rows, "judge"),
        "order": np.tile(np.repeat(["chosen", "rejected"], n), judges),
        "outcome": np.stack(outcomes, axis=1).reshape(-1),
    }
    columns = {
        name: pa.array(given[name], kind) if name in given else pa.nulls(rows, kind)
        for name, kind in types.items()
    }
    return pa.table(columns), truth


def covered(name: str, judges: int, seed: int) -> float:
    """Share of simulated judges whose interval covers their true agreement."""
    sizes = SIZES[name]
    random = np.random.default_rng(int(digest(seed, name), 16))
    pairs = pa.table({"pair_id": [f"{number:04d}" for number in range(sum(sizes))]})
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    inside = 0
    for _ in range(judges // _AT_ONCE):
        verdicts, truth = noisy_judges(sizes, _AT_ONCE, random)
        for scores, agreement in zip(pair_scores(verdicts, pairs), truth, strict=True):
            interval = jackknife_interval(scores.credit, clusters)
            inside += interval.low <= agreement <= interval.high
    return inside / judges


def test_simulated_judges_agree_as_often_as_their_formula_says() -> None:
    """Over many prompts the mean of each comes near to it; a slip in the truth would show."""
    random = np.random.default_rng(7)
    sizes = [1] * 4_000
    verdicts, truth = noisy_judges(sizes, 8, random)
    pairs = pa.table({"pair_id": [f"{number:04d}" for number in range(len(sizes))]})
    for scores, agreement in zip(pair_scores(verdicts, pairs), truth, strict=True):
        # A credit's standard deviation is at most 1/2: five standard errors.
        assert scores.credit.mean() == pytest.approx(agreement, abs=5 * 0.5 / len(sizes) ** 0.5)
        assert np.nanmean(scores.first_wins) > 0.5


@pytest.mark.long
@pytest.mark.parametrize("name", SIZES)
def test_the_interval_of_a_noisy_judge_covers_the_truth(name: str) -> None:
    share = covered(name, 1_000, seed=0)
    print(f"{name}: {share:.1%} of 1,000 intervals cover")
    assert 0.92 <= share <= 0.97
