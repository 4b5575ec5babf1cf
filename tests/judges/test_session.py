"""Sessions: what is asked, stored and asked again, limits, estimates and recorded models."""

import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from fake_openai import FakeOpenAI, messages_of

from litbench.data.records import TURNS, empty_columns
from litbench.data.tables import write_table
from litbench.data.text import digest
from litbench.judges.answers import AnswerStore, Sampling
from litbench.judges.client import Traffic
from litbench.judges.prices import Price
from litbench.judges.session import (
    Mock,
    Models,
    Role,
    Session,
    UnfinishedError,
    ask,
    estimate,
    read_seed,
    recorded_names,
    run_sessions,
)
from litbench.runs.errors import ModelError

pytest.importorskip("inspect_ai")
pytest.importorskip("openai")

QUICK = Traffic(first_wait_seconds=0.01, timeout_seconds=60, connections=4)
JUDGE = FakeOpenAI.model
WRITER = FakeOpenAI.model_called("writer")


def serve(**behaviour):
    """A server with a writer and a judge."""
    return FakeOpenAI(
        lambda question: f"rated {digest(question)}",
        others={"writer": lambda question: f"wrote {digest(question)}"},
        question_of=messages_of,
        **behaviour,
    )


async def script(session):
    """Two turns of the writer, then one of the judge."""
    history = [("system", "Be brief."), ("user", f"Write about {session.prompt_id}.")]
    first = await session.ask("writer", history, step="first")
    history += [("assistant", first.text), ("user", "Go on.")]
    second = await session.ask("writer", history, step="second")
    rated = await session.ask("judge", second.text, step="rating")
    if "error" in (first.outcome, second.outcome, rated.outcome):
        raise UnfinishedError("an answer is missing")
    return rated.text


async def same(session):
    return (await session.ask("writer", "Write.", step="one")).text


WORDS = ["words ", 10]
MOCK = Mock({"writer": {"first": WORDS, "second": WORDS}, "judge": {"rating": "rated 0"}})


def sessions(number, writers=("w",), samples=1, script=script):
    return [
        Session(writer, f"item {item}", sample, script)
        for writer in writers
        for item in range(number)
        for sample in range(samples)
    ]


def models_of(writers=("w",), writer=QUICK, judge=QUICK, prices=None):
    return Models(
        {name: Role(WRITER, Sampling(temperature=0.7, max_tokens=50), writer) for name in writers},
        {"judge": Role(JUDGE, Sampling(max_tokens=50), judge)},
        prices or {},
    )


def run_in(folder, planned, models=None):
    """Run sessions with the answers in a folder; returns them in the order in which they ended."""
    results = []
    models = models or models_of()
    fresh = [
        replace(
            item,
            models={},
            transcript={},
            result=None,
            reason=None,
        )
        for item in planned
    ]
    with AnswerStore(folder) as store:
        run_sessions(fresh, len(fresh), models, store, results.append, "test")
    return results


def test_turns_and_resume(tmp_path, monkeypatch):
    asked = sessions(9, samples=2)
    with serve() as server:
        result = run_in(tmp_path, asked)
        places = [(item.writer, item.prompt_id, item.sample) for item in asked]
        assert [(item.writer, item.prompt_id, item.sample) for item in result] == places, "in order"
        assert server.requests == 18 * 3
        first = result[0]
        assert [(turn.role, turn.step) for turn in first.transcript.values()] == [
            ("writer", "first"),
            ("writer", "second"),
            ("judge", "rating"),
        ]
        history = "Be brief.\nWrite about item 0."
        history += f"\nwrote {digest(history)}\nGo on."
        assert first.result == f"rated {digest(f'wrote {digest(history)}')}"
        body = server.bodies[history]
        roles = [message["role"] for message in body["messages"]]
        assert roles == ["system", "user", "assistant", "user"]
        assert (body["temperature"], body["max_tokens"]) == (0.7, 50)
    shown = first.messages()
    assert shown[2] == ("user", "[to writer: second]\n\nGo on.")
    assert shown[5] == ("assistant", first.result)
    # Without server, key and inspect-ai.
    monkeypatch.setitem(sys.modules, "inspect_ai.model", None)
    again = run_in(tmp_path, asked)
    assert [(item.transcript, item.result) for item in again] == [
        (item.transcript, item.result) for item in result
    ]


def test_the_pace_is_measured_after_ten_answers(tmp_path, capsys):
    models = Models({}, {"judge": Role(JUDGE, traffic=replace(QUICK, connections=1))})
    with serve(seconds=0.06), AnswerStore(tmp_path) as store:
        ask(models, [f"question {number}" for number in range(25)], store, "rater r")
        (line,) = (text for text in capsys.readouterr().err.splitlines() if "measured" in text)
        seconds, minutes, left = re.search(
            r"rater r: measured: ([\d.]+) s an answer, about ([\d.]+) minutes for (\d+) more", line
        ).groups()
        assert float(minutes) == pytest.approx(float(seconds) * int(left) / 60, abs=0.07)
        assert (left, float(seconds) > 0) == ("14", True)
        # Stored answers are no measurement.
        ask(models, [f"question {number}" for number in range(25)], store, "rater r")
    assert "measured" not in capsys.readouterr().err


def test_equal_questions_at_a_time_are_sent_once_per_sample(tmp_path):
    """Two writers with one model, and a writer whose items have the same text."""
    asked = sessions(3, ("w", "v"), samples=2, script=same)
    with serve(seconds=0.2) as server:
        result = run_in(tmp_path, asked, models_of(("w", "v")))
        assert server.asked["Write."] == 2
    assert {item.result for item in result} == {f"wrote {digest('Write.')}"}


def test_a_limit_of_one_writer_leaves_equal_questions_to_another(tmp_path):
    with serve() as server:
        models = models_of(("w", "v"))
        models.budgets["writer", "w"].traffic = replace(QUICK, max_calls=0)
        none, first = run_in(tmp_path, sessions(1, ("w", "v"), script=same), models)
        assert server.requests == 1
    assert none.reason == "max_calls of 0 is reached: run the same command again to go on"
    assert first.result == f"wrote {digest('Write.')}"


def test_unfinished_dialogues_are_reported_and_others_go_on(tmp_path):
    once = replace(QUICK, max_retries=0)
    with serve(faults=lambda number, _: "400" if number in (1, 7) else None) as server:
        result = run_in(tmp_path, sessions(6), models_of(writer=once, judge=once))
        reasons = Counter(item.reason for item in result)
        assert reasons[None] >= 4
        assert reasons["an answer is missing"] >= 1
        before = server.requests
        again = run_in(tmp_path, sessions(6))
        assert [item.reason for item in again] == [None] * 6
        assert server.requests - before <= 3 * reasons["an answer is missing"]


def test_errors_end_the_run(tmp_path):
    async def broken(session):
        await session.ask("judge", "Which?", step="rating")
        raise ValueError("a fault of the script")

    with serve(), pytest.raises(ValueError, match="a fault of the script"):
        run_in(tmp_path, sessions(3, script=broken))
    few = replace(QUICK, max_retries=0, give_up_after=2)
    with serve(faults=lambda *_: "500"), pytest.raises(ModelError, match="2 consecutive errors"):
        run_in(tmp_path / "other", sessions(8), models_of(writer=few))


# Limits and estimates -------------------------------------------------------------------------

PRICES = {WRITER: Price(1_000.0, 1_000.0, 1_000.0), JUDGE: Price(0.0, 0.0)}


def test_cost_limit_counts_stored_answers_and_billed_failures(tmp_path):
    """Half of the answers are empty but billed; calls under way reserve three times their cost."""

    async def twice(session):
        for number in range(2):
            text = f"Write {number} about {session.prompt_id}."
            if not (await session.ask("writer", text, step=f"{number}")).text:
                raise UnfinishedError("an answer is missing")
        return True

    asked = sessions(40, script=twice)
    with serve(faults=lambda number, _: "empty" if number % 2 else None) as server:
        for limit in (0.9, 0.9, 1.2, 100.0):
            models = models_of(writer=replace(QUICK, max_cost_usd=limit), prices=PRICES)
            result = run_in(tmp_path, asked, models)
            dollars = server.dollars(PRICES[WRITER])
            assert models.budgets["writer", "w"].dollars == pytest.approx(dollars)
            assert dollars <= limit
            stopped = [item.reason for item in result if "max_cost_usd" in str(item.reason)]
            if limit < 100:
                assert stopped
                assert dollars > limit - 0.1, "calls under way do not end the others too early"
        assert not stopped
        assert sum(item.result is True for item in result) > 20


def test_what_follows_a_failed_request_counts_towards_the_limit(tmp_path):
    async def both(session):
        return [await session.ask("writer", about, step=about) for about in ("1", "2")]

    traffic = replace(QUICK, max_cost_usd=100.0, max_retries=0)
    with serve(faults=lambda number, _: "400" if number == 1 else None) as server:
        for _ in range(2):
            models = models_of(writer=traffic, prices=PRICES)
            run_in(tmp_path, sessions(1, script=both), models)
            dollars = server.dollars(PRICES[WRITER])
            assert models.budgets["writer", "w"].dollars == pytest.approx(dollars)
        assert server.requests == 3


def test_dry_run_tells_what_is_left(tmp_path):
    def told():
        with AnswerStore(tmp_path, read_only=True) as store:
            return estimate(sessions(6), 6, models_of(prices=PRICES), store, MOCK)

    with serve() as server:
        writer, judge = told()
        assert (writer.rater, writer.calls, writer.known) == ("w", 12, 0)
        assert (judge.rater, judge.calls) == ("judge", 6)
        assert writer.output_tokens == 12 * 15
        assert writer.cost_usd == pytest.approx((writer.input_tokens + 180) / 1e3)
        assert writer.most_cost_usd == pytest.approx((writer.input_tokens + 12 * 50) / 1e3)
        assert writer.seconds == pytest.approx(12 * (1 + 15 / 60) / 2), "two at a local address"
        assert server.requests == 0
        assert not list(tmp_path.iterdir())
        run_in(tmp_path, sessions(2), models_of())
        writer, judge = told()
        assert (writer.calls, writer.known, judge.known) == (8, 4, 2)


def test_an_estimate_has_no_more_than_max_tokens(tmp_path):
    models = Models({"w": Role(WRITER, Sampling(max_tokens=4))}, {"judge": Role(JUDGE)})
    with serve(), AnswerStore(tmp_path, read_only=True) as store:
        writer, _ = estimate(sessions(6), 6, models, store, MOCK)
    assert (writer.calls, writer.output_tokens) == (12, 12 * 4)


# Recorded models ------------------------------------------------------------------------------


def turns_file(path, rows):
    base = {"writer": "w", "prompt_id": "item 0", "sample": 0, "outcome": "answered"}
    types = {name: column.type for name, column in empty_columns(TURNS, 0).items()}
    full = [{**base, **row} for row in rows]
    write_table(pa.Table.from_pylist(full, pa.schema(types)), path)
    return f"recorded/{path}"


def test_recorded_model_answers_from_a_table(tmp_path, monkeypatch):
    model = turns_file(
        tmp_path / "turns.parquet",
        [
            {"role": "writer", "step": "first", "text": "one", "input_tokens": 7},
            {"role": "writer", "step": "second", "text": "two"},
            {"role": "judge", "step": "rating", "text": "three"},
            {"role": "writer", "step": "first", "text": "other", "prompt_id": "item 1"},
        ],
    )
    assert recorded_names(model) == (["w"], ["judge"])
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        turns_file(Path("turns.parquet"), [{"role": name, "step": "first", "text": ""}])
        assert recorded_names("recorded/turns.parquet") == (["w"], [name])
    models = Models({"w": Role(model)}, {"judge": Role(model)}, {})
    first, second = run_in(tmp_path / "answers", sessions(2), models)
    assert first.result == "three"
    assert next(iter(first.transcript.values())).answer.input_tokens == 7
    assert models.cost("w", next(iter(first.transcript.values()))) is None
    assert (second.result, len(second.transcript)) == (None, 1), "what was not recorded is no turn"
    with AnswerStore(tmp_path / "answers") as store:
        assert len(store) == 0
        assert estimate(sessions(2), 2, models, store, MOCK) == []


def test_seed_of_codes_is_made_once(tmp_path):
    """It is secret, stays with the answers, and a dry run writes none."""
    assert read_seed(tmp_path, may_write=False) != read_seed(tmp_path, may_write=False)
    assert not list(tmp_path.iterdir())
    seed = read_seed(tmp_path, may_write=True)
    assert len(seed) == 64
    assert {read_seed(tmp_path, may_write=flag) for flag in (True, False)} == {seed}
    assert [path.name for path in tmp_path.iterdir()] == ["seed.txt"]
