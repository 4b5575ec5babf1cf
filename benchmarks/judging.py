"""Benchmark what asks models: judges, and dialogues of writers, against a server on loopback.

    python benchmarks/judging.py           # 4 minutes
    python benchmarks/judging.py --full    # 4,960 questions at 1 s each

The server implements OpenAI's chat interface in a separate process.

- Judges at a latency of 1 s: questions per second of `ask`, divided by the number of connections.
- Judges without latency: questions per second of `ask`, which stores every answer, divided by those
  of plain asyncio loops over the openai client and over inspect-ai's model, which `ask` uses. They
  are run in turn, with the same number of connections from the start; by default `ask` gives a
  server on this machine two, and more while they answer faster. The loop over openai shows
  inspect-ai's cost.
- Dialogues: 36 of 13 turns of a writer and 9 of a judge, at a latency of 0.5 s and 36 connections a
  role: the share of the ideal rate, at which all connections are always busy.
- Memory: the highest of `litbench run` with 1,008 dialogues of six turns, to that with 96.

Questions have 1,000 random words, answers about 150.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from figures import WORDS, Figure, in_turn, quotients, report

from litbench.judges.answers import AnswerStore
from litbench.judges.client import Traffic
from litbench.judges.session import Models, Role, Session, ask, run_sessions

MODEL = "openai-api/loopback/judge"
DIALOGUES, TURNS, RATINGS, LATENCY = 36, 13, 9, 0.5


def random_text(seed: object, words: int) -> str:
    """Return random words; deterministic for a seed."""
    return " ".join(random.Random(str(seed)).choices(WORDS.split(), k=words))


def _answer(body: bytes) -> bytes:
    message = {"role": "assistant", "content": f"{random_text(body, 150)}.\nPreferred: A"}
    usage = {"prompt_tokens": len(body) // 4, "completion_tokens": 200, "total_tokens": 200}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "judge-1"}
    return json.dumps(head | {"choices": [choice], "usage": usage}).encode()


async def _serve(latency: float, port_to: Any) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:-2])
                body = await reader.readexactly(int(fields[b"content-length"]))
                await asyncio.sleep(latency)
                answer = _answer(body)
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(answer), answer)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The client has closed the connection.
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1_024)
    port_to.send(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


def serve(latency: float, port_to: Any) -> None:
    """Serve until the process is terminated."""
    asyncio.run(_serve(latency, port_to))


@contextmanager
def served(latency: float) -> Iterator[str]:
    """Run a server in a separate process; yields its address and sets the environment."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(latency, there), daemon=True)
    process.start()
    address = f"http://127.0.0.1:{here.recv()}/v1"
    os.environ |= {"LOOPBACK_BASE_URL": address, "LOOPBACK_API_KEY": "none-is-needed"}
    try:
        yield address
    finally:
        process.terminate()
        process.join()


def ask_ours(questions: list[str], connections: int) -> list[str]:
    """Send the questions with `ask` and an empty store."""
    traffic = Traffic(connections=connections, first_connections=connections)
    models = Models({}, {"judge": Role(MODEL, traffic=traffic)})
    with tempfile.TemporaryDirectory() as scratch, AnswerStore(Path(scratch)) as store:
        answers = ask(models, questions, store, "questions")
    return [answer.text for answer in answers]


async def ask_bare(questions: list[str], connections: int, address: str) -> list[str]:
    """Send the questions with a plain loop over the openai client."""
    from openai import AsyncOpenAI  # noqa: PLC0415

    answers: list[str] = []
    queue = iter(questions)

    async def work(client: AsyncOpenAI) -> None:
        for question in queue:
            message: Any = {"role": "user", "content": question}
            answer = await client.chat.completions.create(
                model="judge", messages=[message], temperature=0, max_tokens=1_024
            )
            answers.append(answer.choices[0].message.content or "")

    async with AsyncOpenAI(base_url=address, api_key="none") as client:
        await asyncio.gather(*(work(client) for _ in range(connections)))
    return answers


async def ask_inspect(questions: list[str], connections: int) -> list[str]:
    """Send the questions with a plain loop over inspect-ai's model."""
    from inspect_ai.model import GenerateConfig, get_model  # noqa: PLC0415

    answers: list[str] = []
    queue = iter(questions)
    options = GenerateConfig(temperature=0, max_tokens=1_024, max_connections=connections)
    model = get_model(MODEL, config=options, memoize=False)

    async def work() -> None:
        for question in queue:
            answer = await model.generate(question)
            answers.append(answer.completion)

    await asyncio.gather(*(work() for _ in range(connections)))
    return answers


def checked(questions: list[str], texts: list[str]) -> None:
    """Stop if an answer is missing or wrong."""
    if len(texts) != len(questions) or not all("Preferred:" in text for text in texts):
        raise SystemExit(f"{len(texts)} answers to {len(questions)} questions, or wrong ones")


def measure_judges(full: bool, connections: int, repeats: int) -> list[Figure]:
    """The judge client with and without latency."""
    questions = [random_text(number, 1_000) for number in range(4_960 if full else 640)]

    def ours(some: list[str]) -> None:
        checked(some, ask_ours(some, connections))

    def bare(some: list[str], address: str) -> None:
        checked(some, asyncio.run(ask_bare(some, connections, address)))

    def inspect(some: list[str]) -> None:
        checked(some, asyncio.run(ask_inspect(some, connections)))

    with served(1.0):
        ours(questions[:connections])  # Warm up, to exclude imports.
        slow, _ = in_turn({"ours": lambda: ours(questions)}, repeats)
    few = questions[: 2_000 if full else 500]
    with served(0.0) as address:
        ways = {
            "ours": lambda: ours(few),
            "inspect": lambda: inspect(few),
            "bare": lambda: bare(few, address),
        }
        fast, _ = in_turn(ways, repeats)
    ideal = len(questions) / connections
    shares = [ideal / seconds for seconds in slow["ours"]]
    about = "judges, no latency: share of the rate of a bare loop over"
    return [
        Figure("judges, 1 s latency: share of the ideal rate", shares, 0.85),
        Figure(f"{about} openai", quotients(fast["bare"], fast["ours"])),
        Figure(f"{about} inspect-ai", quotients(fast["inspect"], fast["ours"]), 0.9),
    ]


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


def run_dialogues() -> float:
    """Run all dialogues with an empty store; returns seconds."""
    traffic = Traffic(connections=DIALOGUES, first_connections=DIALOGUES)
    models = Models({"w": Role(MODEL, traffic=traffic)}, {"judge": Role(MODEL, traffic=traffic)})
    sessions = [Session("w", f"item {k}", 0, script) for k in range(DIALOGUES)]
    ended: list[Session] = []
    with tempfile.TemporaryDirectory() as scratch, AnswerStore(Path(scratch)) as store:
        started = time.perf_counter()
        run_sessions(sessions, len(sessions), models, store, ended.append, "sessions")
        seconds = time.perf_counter() - started
    if sum(len(session.transcript) for session in ended) != DIALOGUES * (TURNS + RATINGS):
        raise SystemExit("turns are missing")
    return seconds


def measure_dialogues(repeats: int) -> Figure:
    """The share of the ideal rate."""
    with served(0.0):
        run_dialogues()  # Warm up, to exclude imports.
    ideal = LATENCY * (TURNS + RATINGS)
    with served(LATENCY):
        shares = [ideal / run_dialogues() for _ in range(repeats)]
    return Figure("dialogues: share of the ideal rate", shares, 0.85)


_RUN = """
import json, resource, sys
from litbench.runs.config import build
from litbench.writers.run import Run, run
run(build(Run, json.loads(sys.argv[1])))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def measure_memory() -> Figure:
    """The highest memory of a process, 1,008 dialogues to 96."""
    highest = []
    with served(0.0), tempfile.TemporaryDirectory() as scratch:
        for samples in (8, 84):
            config = {
                "protocol": "longform",
                "out": f"{scratch}/{samples}",
                "samples": samples,
                "writers": {"w": MODEL},
                "options": {"chapters": 1},
            }
            command = [sys.executable, "-c", _RUN, json.dumps(config)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            highest.append(float(done.stdout.splitlines()[-1]))
    few, many = highest
    return Figure("memory: 1,008 dialogues to 96", [many / few], 1.2, at_most=True)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="more questions to judges")
    parser.add_argument("--connections", type=int, default=64, help="of the judges")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    figures = measure_judges(arguments.full, arguments.connections, arguments.repeats)
    figures += [measure_dialogues(arguments.repeats), measure_memory()]
    report("judging", figures, connections=arguments.connections)


if __name__ == "__main__":
    main()
