"""A limit of $1 holds for providers that count honestly, and whenever a run is killed.

`attack` gives the dollars that a server billed; the limit may be exceeded by what is in flight when
an answer first costs more than was reserved for it.
"""

import base64
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_openai import FakeOpenAI

from litbench.judges.answers import AnswerStore, Sampling
from litbench.judges.client import Traffic
from litbench.judges.prices import Price
from litbench.judges.session import JUDGE, Models, Role, ask
from litbench.runs.errors import ConfigError

pytest.importorskip("inspect_ai")
pytest.importorskip("openai")

LIMIT = 1.0
PRICE = Price(input=300.0, output=300.0)
CONNECTIONS = 4


def tokens(question, answer):
    """4.5 bytes per token, as in English."""
    return round(len(question.encode()) / 4.5), round(len(answer.encode()) / 4.5) + 1


def changed(**counts):
    """A server that reports other numbers than it bills."""
    return lambda usage: {**usage, **counts}


@dataclass
class Case:
    """What a server does; see FakeOpenAI."""

    question: Callable[[int], str] = lambda k: f"{k}: which of these stories is better? " * 8
    count: Callable[[str, str], tuple[int, int]] = tokens
    report: Callable[[Any], Any] = lambda usage: usage
    fault: Callable[[int], str | None] = lambda _: None
    max_tokens: int | None = 100
    runs: int = 2
    surprise: bool = False


def base64_of(k):
    return base64.b64encode(f"{k}".encode() * 100).decode()


REPORTS = {
    "no usage": None,
    "empty usage": {},
    **{
        f"{name} {count!r:.9}": changed(**{f"{name}_tokens": count})
        for name in ("prompt", "completion")
        for count in (-1, True, "12", None)
    },
    "total": changed(total_tokens="many"),
}


def without_reasoning(usage):
    """Counts as xAI reports them: most of the tokens written are reasoning."""
    reasoning = usage["completion_tokens"] - 10
    details = {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    return {**usage, "completion_tokens": 10, **details}


def without_total(usage):
    return {**without_reasoning(usage), "total_tokens": None}


def without_details(usage):
    """Counts as Gemini's OpenAI interface reports them."""
    return {**without_reasoning(usage), "completion_tokens_details": None}


CASES = {
    "honest": Case(),
    "max_tokens null": Case(max_tokens=None, count=lambda q, a: (tokens(q, a)[0], 3_000)),
    "timeouts": Case(fault=lambda n: "hang" if n % 4 else None),
    "resets": Case(fault=lambda n: "reset" if n % 4 else None),
    "status 500": Case(fault=lambda n: "500" if n % 4 else None),
    "whole answers": Case(count=lambda q, a: (tokens(q, a)[0], 100)),
    "reasoning beyond max_tokens": Case(count=lambda *_: (10, 800), surprise=True),
    **{
        f"{n} tokens {report.__name__}": Case(
            count=lambda *_, n=n: (10, n), report=report, surprise=n > 100
        )
        for n in (100, 800)
        for report in (without_reasoning, without_total, without_details)
    },
    "Chinese": Case(
        question=lambda k: f"{k}" + "哪个故事更好？" * 40,
        count=lambda q, _: (round(len(q) * 1.6), 1),
        surprise=True,
    ),
    "base64": Case(question=base64_of, count=lambda q, _: (len(q) * 2 // 3, 1), surprise=True),
    "emoji": Case(
        question=lambda k: f"{k}" + "🧙" * 200, count=lambda q, _: (len(q) * 3, 1), surprise=True
    ),
    **{
        name: Case(report=report if callable(report) else (lambda _, report=report: report))
        for name, report in REPORTS.items()
    },
}


def attack(case, folder):
    """Run a command some times; returns the dollars billed, and the highest of one answer."""
    traffic = Traffic(
        connections=CONNECTIONS,
        first_connections=CONNECTIONS,
        max_retries=2,
        timeout_seconds=1,
        first_wait_seconds=0.0,
        max_cost_usd=LIMIT,
        give_up_after=1_000,
    )
    questions = [case.question(k) for k in range(600)]
    server = FakeOpenAI(
        lambda question: f"Story A, since {len(question)} says so. " * 4,
        faults=lambda number, _: case.fault(number),
        hang_seconds=1.3,
    )
    server.count, server.report = case.count, case.report
    server.billed_faults = ("hang", "reset", "500")
    with server:
        for _ in range(case.runs):
            ask_all(folder, server.model, questions, traffic, PRICE, max_tokens=case.max_tokens)
        return server.dollars(PRICE), PRICE.of(*case.count(questions[-1], "Story A. " * 20))


def ask_all(folder, model, questions, traffic, price, *, max_tokens=100, name="answers"):
    """Ask until the limit is reached, or all is answered."""
    with AnswerStore(folder, name) as store, contextlib.suppress(ConfigError):
        role = Role(model, Sampling(max_tokens=max_tokens), traffic)
        ask(Models({}, {JUDGE: role}, {model: price}), questions, store, "answers")


QUICK = {"honest", "max_tokens null", "reasoning beyond max_tokens", "no usage", "status 500"}
QUICK |= {"prompt -1", "completion '12'", "800 tokens without_details", "100 tokens without_total"}


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CASES],
)
def test_limit_of_one_dollar(name, tmp_path):
    case = CASES[name]
    billed, first = attack(case, tmp_path)
    assert billed <= LIMIT + case.surprise * CONNECTIONS * first
    if name in ("honest", "whole answers") or case.surprise:
        assert billed > 0.8, "the limit is used"


KILLED = """
import sys
from pathlib import Path
from litbench.judges.client import Traffic
from litbench.judges.prices import Price
from test_cost_limit import CASES, ask_all
traffic = Traffic(connections=16, first_connections=16, max_retries=0, max_cost_usd=1.0)
questions = [CASES["honest"].question(k) for k in range(800)]
ask_all(Path(sys.argv[1]), "openai-api/fake/judge", questions, traffic, Price(20.0, 20.0))
"""


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.long)])
def test_killed_with_16_calls_in_flight(kills, tmp_path):
    """Every request that arrived is billed in full."""
    enough, killed = threading.Event(), threading.Event()

    def hold(_, moment):
        if moment == "before" and not killed.is_set():
            if server.under_way >= 16:
                enough.set()
            killed.wait(60)

    server = FakeOpenAI(lambda _: "Story A.", on_request=hold)
    server.count = lambda question, _: (tokens(question, "")[0], 100)
    with server:
        tests = os.pathsep.join(map(str, Path(__file__).parents[:2]))
        environment = os.environ | server.environment() | {"PYTHONPATH": tests}
        for _ in range(kills):
            enough.clear()
            killed.clear()
            command = [sys.executable, "-c", KILLED, str(tmp_path)]
            process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
            assert enough.wait(60)
            process.kill()
            process.wait()
            killed.set()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert 0.7 < server.dollars(Price(20.0, 20.0)) <= 1.0


def test_programs_at_once_share_the_limit(tmp_path):
    case = CASES["whole answers"]
    traffic = Traffic(connections=CONNECTIONS, max_retries=0, max_cost_usd=LIMIT)
    questions = [[f"{name} {case.question(k)}" for k in range(300)] for name in "abc"]
    with FakeOpenAI(lambda _: "Story A.", seconds=0.01) as server:
        server.count = case.count
        programs = [
            threading.Thread(
                target=ask_all,
                args=(tmp_path, server.model, asked, traffic, PRICE),
                kwargs={"name": f"program {number}"},
            )
            for number, asked in enumerate(questions)
        ]
        for program in programs:
            program.start()
        for program in programs:
            program.join()
        assert 0.5 < server.dollars(PRICE) <= LIMIT
