"""Benchmark what the writing benchmarks compute, each against a usual way to compute it.

    python benchmarks/writing.py
    python benchmarks/writing.py rouge_l

- `rouge_l`: ROUGE-L of `litbench.metrics.overlap` against the table of rouge-chinese, on pairs of
  1,000 and 1,200 tokens, drawn by Zipf's law.
- `placing`: percentiles of 100,000 works with eight ratings each among a reference of 4,332,
  against a loop over scipy's `percentileofscore`;
- `dialogues`: 36 dialogues of 13 turns of a writer and 9 of a judge, against a server on loopback
  with a latency of 0.5 s and 36 connections a role: the share of the ideal rate, at which all
  connections are always busy;
- `calls`: the same without latency, against a task of inspect-ai with its cache;
- `memory`: highest memory of `litbench run` with 96 and with 1,008 dialogues.
- `narra`: 72 episodes of 12 turns of the protocol narra, by models that answer after 0.2 s, with 48
  connections a role: the share of the ideal, the same episodes on a clock that only answers move.
  `own_ms_per_turn` is the CPU time of running the episodes again with stored answers.

The two ways of the first two must give the same values.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from figures import Figure, in_turn, quotients, report
from judging import served
from scipy.stats import percentileofscore

from litbench.judges.client import Traffic
from litbench.judges.session import Mock, Models, Request, Role, Session, Turn, run_sessions
from litbench.judges.store import Answer, AnswerStore
from litbench.metrics.overlap import rouge_l
from litbench.metrics.placement import ReferenceDistribution
from litbench.protocols.narra import Narra, NarraOptions
from litbench.protocols.protocol import Item, mock_of

with warnings.catch_warnings(action="ignore"):  # it has escape sequences that Python deprecates
    from rouge_chinese import Rouge

Measured = tuple[list[Figure], dict[str, Any]]
# Of `narra`: seconds per answer, connections of each role, turns of an episode.
LATENCY, CONNECTIONS, EPISODE_TURNS = 0.2, 48, 12


def compare(name: str, own: Callable[[], Any], usual: Callable[[], Any], repeats: int) -> Measured:
    """Time two ways to compute the same values."""
    seconds, values = in_turn({"own": own, "usual": usual}, repeats)
    difference = float(np.abs(np.subtract(values["own"], values["usual"])).max())
    if difference > 1e-9:
        raise SystemExit(f"{name}: values differ by {difference:.2e}")
    return [
        Figure(f"{name}: speed to the usual way", quotients(seconds["usual"], seconds["own"]))
    ], {}


def measure_rouge_l(repeats: int) -> Measured:
    """ROUGE-L of four pairs of token lists."""
    source = random.Random(0)
    vocabulary = [f"w{k}" for k in range(4_000)]
    weights = [1 / (k + 1) for k in range(len(vocabulary))]
    pairs = [
        [source.choices(vocabulary, weights, k=length) for length in (1_000, 1_200)]
        for _ in range(4)
    ]
    texts = [[" ".join(side) for side in pair] for pair in pairs]
    package = Rouge(metrics=["rouge-l"])
    return compare(
        "ROUGE-L",
        lambda: [rouge_l(*pair) for pair in pairs],
        lambda: [package.get_scores(*pair)[0]["rouge-l"]["f"] for pair in texts],
        repeats,
    )


def measure_placing(repeats: int) -> Measured:
    """Percentiles of works whose ratings share one factor."""
    source = np.random.default_rng(0)

    def draw(n: int) -> np.ndarray:
        return 3 + 0.3 * (source.normal(size=(n, 1)) + 0.5 * source.normal(size=(n, 8)))

    reference = ReferenceDistribution.fit(draw(4_332), [f"criterion {k}" for k in range(8)])
    ratings = draw(100_000)
    return compare(
        "placing works",
        lambda: reference.percentile(ratings),
        lambda: [
            percentileofscore(reference.values, value, kind="weak")
            for value in reference.value(ratings)
        ],
        repeats,
    )


MODEL = "openai-api/loopback/judge"
DIALOGUES, TURNS, RATINGS = 36, 13, 9


async def script(session: Session) -> None:
    """A story in turns with the whole history, then its ratings, in the order of longform."""
    history = []
    for step in range(TURNS):
        history.append(("user", f"Step {step} of {session.prompt_id}"))
        turn = await session.ask("writer", list(history), step=f"{step}")
        history.append(("assistant", turn.text))
    for step in range(RATINGS):
        text = f"{step} {history[-1][1]}"
        if (await session.ask("judge", text, step=f"{step}")).outcome != "answered":
            raise SystemExit("an answer is missing")


def litbench_sessions(connections: int) -> float:
    """Run all sessions with an empty store; returns seconds."""
    traffic = Traffic(connections=connections)
    models = Models({"w": Role(MODEL, traffic=traffic)}, {"judge": Role(MODEL, traffic=traffic)})
    sessions = [Session("w", f"item {k}", 0, script) for k in range(DIALOGUES)]
    ended: list[Session] = []
    with tempfile.TemporaryDirectory() as scratch, AnswerStore(Path(scratch)) as store:
        started = time.perf_counter()
        run_sessions(sessions, len(sessions), models, store, ended.append, "sessions")
        seconds = time.perf_counter() - started
    if sum(len(one.transcript) for one in ended) != DIALOGUES * (TURNS + RATINGS):
        raise SystemExit("turns are missing")
    return seconds


def inspect_task(connections: int) -> float:
    """Ask the same in a task of inspect-ai with its cache; returns seconds."""
    import inspect_ai  # noqa: PLC0415
    from inspect_ai.dataset import Sample  # noqa: PLC0415
    from inspect_ai.model import ChatMessageUser, get_model  # noqa: PLC0415
    from inspect_ai.solver import solver  # noqa: PLC0415

    @solver  # type: ignore[untyped-decorator]
    def turns() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            del generate
            model = get_model()
            history: list[Any] = []
            for step in range(TURNS):
                history.append(ChatMessageUser(content=f"Step {step} of {state.input}"))
                history.append((await model.generate(list(history), cache=True)).message)
            for step in range(RATINGS):
                state.output = await model.generate(f"{step} {history[-1].text}", cache=True)
            return state

        return solve

    samples = [Sample(input=f"item {k}") for k in range(DIALOGUES)]
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["INSPECT_CACHE_DIR"] = f"{scratch}/cache"
        started = time.perf_counter()
        (log,) = inspect_ai.eval(
            inspect_ai.Task(dataset=samples, solver=turns()),
            model=MODEL,
            max_connections=connections,
            max_samples=DIALOGUES,
            log_dir=scratch,
            display="none",
        )
        seconds = time.perf_counter() - started
    if log.status != "success":
        raise SystemExit(f"inspect-ai: {log.error}")
    return seconds


def measure_dialogues(repeats: int) -> Measured:
    """The share of the ideal rate; with lockstep phases each connection makes every 36th call."""
    latency, connections = 0.5, 36
    with served(0.0):
        # The first call imports libraries.
        litbench_sessions(connections)
    ideal = latency * DIALOGUES * (TURNS + RATINGS) / connections
    with served(latency):
        shares = [ideal / litbench_sessions(connections) for _ in range(repeats)]
    return [Figure("dialogues: share of the ideal rate", shares, 0.85)], {}


def measure_calls(repeats: int) -> Measured:
    """Calls per second without latency."""
    with served(0.0):
        ways = {"own": lambda: litbench_sessions(36), "inspect": lambda: inspect_task(36)}
        seconds, _ = in_turn(ways, repeats)
    ratios = quotients(seconds["inspect"], seconds["own"])
    return [Figure("calls: rate to that of inspect-ai with its cache", ratios)], {}


_RUN = """
import json, resource, sys
from litbench.config import build
from litbench.protocols.run import Run, run
run(build(Run, json.loads(sys.argv[1])))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def measure_memory(_: int) -> Measured:
    """Megabytes of a process; six turns a dialogue."""
    found = {}
    with served(0.0), tempfile.TemporaryDirectory() as scratch:
        for samples in (8, 84):
            config = {
                "protocol": "longform",
                "out": f"{scratch}/{samples}",
                "samples": samples,
                "writers": {"w": MODEL},
                "options": {"chapters": 1},
            }
            done = subprocess.run(
                [sys.executable, "-c", _RUN, json.dumps(config)],
                capture_output=True,
                text=True,
                check=True,
            )
            found[f"megabytes_{12 * samples}"] = float(done.stdout.splitlines()[-1])
    few, many = found.values()
    name = "memory: 1,008 dialogues to 96"
    return [Figure(name, [many / few], 1.2, at_most=True)], found


class VirtualClock(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        select = self._selector.select

        def jump(timeout: float | None = None) -> Any:
            self._now += timeout or 0.0
            return select(0)

        self._selector.select = jump

    def time(self) -> float:
        """Seconds that timers have taken."""
        return self._now


class Connections:
    """Answers with the mock's answers after `LATENCY` seconds, over so many connections."""

    def __init__(self, mock: Mock) -> None:
        self._mock = mock
        self._free = asyncio.Semaphore(CONNECTIONS)

    async def __call__(self, request: Request) -> Answer:
        """Wait for a connection, then for the answer."""
        async with self._free:
            await asyncio.sleep(LATENCY)
        return Answer("answered", self._mock.answer(request))


@dataclass
class WithExamples(Session):
    """A session whose questions end in the mock's answers, which the sleeping models repeat."""

    mock: Mock = field(default_factory=Mock)

    async def ask(self, role: str, messages: Any, *, step: str, attempt: int = 0) -> Turn:
        """Ask for the mock's answer."""
        example = self.mock.answer(Request(self, role, step, messages, attempt))
        return await super().ask(role, [*messages, ("user", example)], step=step, attempt=attempt)


def measure_narra(repeats: int) -> Measured:
    """Episodes of twelve turns with models that sleep."""
    from inspect_ai.model import ModelAPI, ModelOutput, modelapi  # noqa: PLC0415

    class Sleeping(ModelAPI):  # type: ignore[misc,unused-ignore]
        async def generate(self, input: Any, **_: Any) -> Any:
            await asyncio.sleep(LATENCY)
            return ModelOutput.from_content(self.model_name, input[-1].text)

    modelapi(name="sleeping")(Sleeping)
    protocol = Narra(NarraOptions())

    mock = mock_of("narra", protocol)

    def session(item: Item, sample: int) -> Session:
        twelve = {**item.content, "end_condition": {"max_user_turns": EPISODE_TURNS}}
        short = replace(item, content=twelve)

        async def script(session: Session) -> None:
            written = await protocol.write(session, short)
            await protocol.rate(session, short, written, "judge")

        return WithExamples("writer", item.prompt_id, sample, script, mock=mock)

    def sessions() -> list[Session]:
        return [session(item, sample) for sample in range(9) for item in protocol.items()]

    traffic = Traffic(connections=CONNECTIONS)
    roles = {"reader": protocol.roles["reader"].sampling, "judge": protocol.judge}
    models = Models(
        {"writer": Role("sleeping/writer", protocol.writer, traffic)},
        {name: Role(f"sleeping/{name}", sampling, traffic) for name, sampling in roles.items()},
    )

    async def run_ideally() -> float:
        asked = {name: Connections(mock) for name in ("writer", *roles)}
        started = asyncio.get_running_loop().time()
        await asyncio.gather(*(one.script(replace(one, models=asked)) for one in sessions()))
        return asyncio.get_running_loop().time() - started

    with asyncio.Runner(loop_factory=VirtualClock) as runner:
        ideal = runner.run(run_ideally())
    shares, own = [], []
    total = len(sessions())
    for _ in range(repeats):
        ended: list[Session] = []
        with tempfile.TemporaryDirectory() as folder, AnswerStore(Path(folder)) as store:
            started = time.perf_counter()
            run_sessions(sessions(), total, models, store, ended.append, "narra")
            shares.append(ideal / (time.perf_counter() - started))
            started = time.process_time()
            run_sessions(sessions(), total, models, store, lambda _: None, "narra")
            own.append((time.process_time() - started) * 1_000 / (total * EPISODE_TURNS))
    figure = Figure("narra: share of the ideal rate", shares, 0.85)
    return [figure], {"narra_own_ms_per_turn": round(median(own), 2)}


MEASUREMENTS: dict[str, Callable[[int], Measured]] = {
    "rouge_l": measure_rouge_l,
    "placing": measure_placing,
    "dialogues": measure_dialogues,
    "calls": measure_calls,
    "memory": measure_memory,
    "narra": measure_narra,
}


def main() -> None:
    """Make the chosen measurements and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(MEASUREMENTS)}")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    unknown = set(given.names) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"no measurement {', '.join(unknown)}: give any of {', '.join(MEASUREMENTS)}")
    figures: list[Figure] = []
    facts: dict[str, Any] = {}
    for name in given.names or MEASUREMENTS:
        found, more = MEASUREMENTS[name](given.repeats)
        figures += found
        facts |= more
    report("writing", figures, **facts)


if __name__ == "__main__":
    main()
