"""How fast a judge is asked, against a server on loopback.

    python benchmarks/judging.py           # 1 to 2 minutes
    python benchmarks/judging.py --full    # 2,480 pairs at 1 s a call

The server speaks OpenAI's chat interface in a process of its own. Two ratios are measured:

- answers take 1 s: calls per second of `judge_pairs` over the rate that the connections allow;
- answers come at once: calls per second of `judge_pairs` over those of a bare asyncio loop over the
  openai client, in turn, medians. Ours stores every answer, writes logs and reads verdicts.

Stories are invented, about 500 words each; explanations have 150. The last line is JSON.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from litbench.judges.client import Traffic
from litbench.judges.judge import Judge, JudgeOptions
from litbench.raters import blind, judge_pairs
from litbench.records import PAIRS, empty_columns, pair_id
from litbench.templates import load_template

MODEL = "openai-api/loopback/judge"
WORDS = [
    *("the", "a", "of", "and", "to", "in", "was", "her", "his", "she", "he", "it", "that"),
    *("with", "for", "on", "as", "had", "at", "but", "they", "from", "this", "river"),
    *("lantern", "winter", "window", "silence", "mountain", "brother", "letter", "kitchen"),
    *("shadow", "doorway", "evening", "remembered", "whispered", "carried", "opened"),
]


def _answer(body: bytes) -> bytes:
    source = random.Random(body)
    explanation = " ".join(source.choices(WORDS, k=150))
    message = {
        "role": "assistant",
        "content": f"{explanation}.\nPreferred: {source.choice('AB')}",
    }
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": "judge-1",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": len(body) // 4,
                "completion_tokens": 200,
                "total_tokens": len(body) // 4 + 200,
            },
        }
    ).encode()


async def _serve(latency: float, port_to: Any) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:-2])
                body = await reader.readexactly(int(fields[b"content-length"]))
                if latency:
                    await asyncio.sleep(latency)
                answer = _answer(body)
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(answer), answer)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # Whoever asked has gone.
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, backlog=1_024)
    port_to.send(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


def serve(latency: float, port_to: Any) -> None:
    """Serve until the process is ended."""
    asyncio.run(_serve(latency, port_to))


@contextmanager
def served(latency: float) -> Iterator[str]:
    """A server in a process of its own; gives its address and puts it into the environment."""
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


def invent(source: random.Random, words: int) -> str:
    """Words in sentences and paragraphs."""
    ends = source.choices([" ", ". ", ", ", "\n\n"], weights=[20, 2, 1, 1], k=words)
    chosen = source.choices(WORDS, k=words)
    return "".join(word + end for word, end in zip(chosen, ends, strict=True)).strip()


def invent_pairs(start: int, n: int) -> pa.Table:
    """Pairs by the schema PAIRS; the same for the same numbers."""
    rows = []
    for number in range(start, start + n):
        source = random.Random(number)
        prompt = f"[WP] {number // 5} {invent(random.Random(-1 - number // 5), 29)}"
        row: dict[str, Any] = {
            "pair_id": pair_id(f"c{number}", f"r{number}"),
            "prompt_id": f"p{number // 5}",
            "prompt": prompt,
            "label_source": "planted",
            "split": "all",
        }
        for side in ("chosen", "rejected"):
            length = max(int(source.gauss(500, 100)), 50)
            row |= {side: invent(source, length), f"{side}_n_words": length}
            row[f"{side}_story_id"] = f"{side[0]}{number}"
        rows.append(row)
    types = {name: column.type for name, column in empty_columns(PAIRS, 0).items()}
    return pa.Table.from_pylist(rows, pa.schema(types))


def ask_ours(pairs: pa.Table, connections: int) -> float:
    """Seconds that `judge_pairs` takes."""
    with tempfile.TemporaryDirectory() as scratch:
        judge = Judge("judge", JudgeOptions(MODEL, traffic=Traffic(connections=connections)))
        judge.work_in(Path(scratch))
        gc.collect()
        started = time.perf_counter()
        verdicts = judge_pairs(judge, pairs)
        seconds = time.perf_counter() - started
    outcomes = set(verdicts["outcome"].to_pylist())
    if verdicts.num_rows != 2 * pairs.num_rows or not outcomes <= {"chosen", "rejected"}:
        raise SystemExit(f"{verdicts.num_rows} verdicts with outcomes {outcomes}")
    return seconds


def ask_bare(questions: list[str], connections: int, address: str) -> float:
    """Seconds that a loop over the openai client takes."""
    from openai import AsyncOpenAI  # noqa: PLC0415

    async def ask_all() -> None:
        async with AsyncOpenAI(base_url=address, api_key="none") as client:
            queue = iter(questions)

            async def work() -> None:
                for question in queue:
                    answer = await client.chat.completions.create(
                        model="judge",
                        messages=[{"role": "user", "content": question}],
                        temperature=0,
                        max_tokens=1_024,
                    )
                    answers.append(answer.choices[0].message.content or "")

            await asyncio.gather(*(work() for _ in range(connections)))

    answers: list[str] = []
    gc.collect()
    started = time.perf_counter()
    asyncio.run(ask_all())
    seconds = time.perf_counter() - started
    if len(answers) != len(questions) or not all("Preferred:" in text for text in answers):
        raise SystemExit(f"{len(answers)} answers to {len(questions)} questions")
    return seconds


def questions_about(pairs: pa.Table) -> list[str]:
    """Both orders of every pair, as the judge asks them."""
    render = load_template(JudgeOptions(MODEL).template).render
    blinded, _ = blind(pairs)
    return [
        render(pair.prompt, *stories)
        for pair in blinded
        for stories in ((pair.first, pair.second), (pair.second, pair.first))
    ]


def measure_latency(pairs: int, latency: float, connections: int) -> float:
    """Our rate over the one that the connections allow."""
    with served(latency):
        ask_ours(invent_pairs(1_000_000, connections // 2), connections)
        seconds = ask_ours(invent_pairs(0, pairs), connections)
    rate, ideal = 2 * pairs / seconds, connections / latency
    print(
        f"{latency:g} s latency, {connections} connections, {2 * pairs:,} calls: {rate:.1f} "
        f"calls/s of {ideal:.0f} ({rate / ideal:.3f})"
    )
    return round(rate / ideal, 3)


def measure_overhead(pairs: int, connections: int, repeats: int) -> dict[str, float]:
    """Our rate without latency, the bare loop's, and their ratio."""
    some = invent_pairs(0, pairs)
    questions = questions_about(some)
    ours, bare = [], []
    with served(0.0) as address:
        ask_ours(invent_pairs(1_000_000, 32), connections)
        ask_bare(questions[:64], connections, address)
        for _ in range(repeats):
            ours.append(len(questions) / ask_ours(some, connections))
            bare.append(len(questions) / ask_bare(questions, connections, address))
    for name, rates in (("judge_pairs", ours), ("bare loop", bare)):
        print(
            f"no latency, {len(questions):,} calls, {name}: {statistics.median(rates):.0f} "
            f"calls/s ({min(rates):.0f} to {max(rates):.0f} in {repeats} runs)"
        )
    own, theirs = statistics.median(ours), statistics.median(bare)
    shown = {"calls_per_second": round(own, 1), "bare_calls_per_second": round(theirs, 1)}
    return shown | {"over_bare_loop": round(own / theirs, 3)}


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--connections", type=int, default=64)
    given = parser.parse_args()
    over_ideal = measure_latency(2_480 if given.full else 320, 1.0, given.connections)
    rates = measure_overhead(
        1_000 if given.full else 250, given.connections, 5 if given.full else 3
    )
    result = {"connections": given.connections, "cores": os.cpu_count(), "over_ideal": over_ideal}
    print(json.dumps(result | rates))


if __name__ == "__main__":
    main()
