"""The server: the model's own rewards whatever is asked beside them, clear words for the rest."""

import argparse
import asyncio
import http.client
import json
import logging
import math
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from litbench.errors import ConfigError, ModelError
from litbench.models.reward import RewardModel
from litbench.raters import LengthRater, ScoreRater
from litbench.serving import command
from litbench.serving.forms import sigmoid
from litbench.serving.joined import Joint, vllm_request
from litbench.serving.limits import Limits

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")

from litbench.serving.app import Server
from litbench.serving.connections import make_uvicorn

SAME = 1e-5
JSON = {"Content-Type": "application/json"}


def longer():
    return LengthRater.longer("longer", {}, "test")


# Seconds after which what should have come to pass has not, on however busy a machine.
PATIENCE = 60


def lengths(prompts, stories):  # noqa: ARG001
    return np.array([float(len(story)) for story in stories])


@dataclass
class Gated(ScoreRater):
    """Scores when it may; the reward is the story's length in characters, if no other is given.

    Nothing depends on how fast the machine is: a test that needs a busy model lets it wait.
    """

    name: str = "gated"
    kind: str = "gated"
    rewards: object = lengths
    may: threading.Event = field(default_factory=threading.Event)
    seen: list = field(default_factory=list)

    def score(self, prompts, stories):
        self.seen.append(list(stories))
        assert self.may.wait(PATIENCE)
        return self.rewards(prompts, stories)

    def count(self, story):
        return sum(stories.count(story) for stories in self.seen)


@dataclass
class Running:
    port: int
    server: Server
    uvicorn: object
    thread: threading.Thread

    def call(self, path, body=None, headers=None, method=None):
        """Status, headers and parsed answer of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            if body is not None and not isinstance(body, bytes | str):
                body = json.dumps(body)
            wanted = JSON if headers is None else headers
            connection.request(method or ("GET" if body is None else "POST"), path, body, wanted)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        parsed = text if path == "/metrics" else json.loads(text)
        return answer.status, dict(answer.getheaders()), parsed

    def rewards(self, prompts, stories):
        items = [{"prompt": p, "story": s} for p, s in zip(prompts, stories, strict=True)]
        status, _, answer = self.call("/score", {"items": items})
        assert status == 200, answer
        return answer["rewards"]

    def metric(self, name):
        _, _, text = self.call("/metrics")
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if re.match(rf"(litbench_)?{name}(\{{|\s)", line)
        )

    def wait_until(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "it never came to that"
            time.sleep(0.01)


@contextmanager
def serving(load, wait=True, **options):
    server = Server(load, "verifier", **options)
    running = make_uvicorn(server)
    listener = socket.create_server(("127.0.0.1", 0))
    server._failed = lambda: setattr(running, "should_exit", True)
    thread = threading.Thread(target=running.run, args=([listener],))
    thread.start()
    made = Running(listener.getsockname()[1], server, running, thread)
    try:
        if wait:
            made.wait_until(lambda: server.batcher.state == "ready" and running.started)
        yield made
    finally:
        running.handle_exit(signal.SIGTERM, None)
        thread.join(PATIENCE)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"


@pytest.fixture(scope="module")
def model(tiny_model):
    return RewardModel.load(tiny_model("llama"))


@pytest.fixture(scope="module")
def texts(invented):
    source = random.Random(5)
    stories = [invented(source, source.randint(1, 120)) for _ in range(40)]
    return [f"The {place % 7}. lantern" for place in range(len(stories))], stories


@pytest.fixture(scope="module")
def local(model, texts):
    found = model.score(*texts)
    assert found.std() > 1e-2  # else every reward were right
    return found


@pytest.fixture(scope="module")
def served(model):
    with serving(lambda: model) as running:
        yield running


@pytest.fixture(scope="module")
def plain():
    with serving(longer, limits=Limits(body_bytes=20_000, stories=5, story_characters=500)) as one:
        yield one


# The right rewards --------------------------------------------------------------------------


def test_all_forms_give_the_local_rewards(served, model, texts, local):
    prompts, stories = texts
    assert served.rewards(prompts, stories) == pytest.approx(local, abs=SAME, rel=0)
    same_prompt = [place for place, prompt in enumerate(prompts) if prompt == prompts[0]]
    body = {"prompt": prompts[0], "stories": [stories[place] for place in same_prompt]}
    _, _, answer = served.call("/score", body)
    assert answer["rewards"] == pytest.approx(local[same_prompt], abs=SAME, rel=0)
    assert answer["model"] == "verifier"
    assert answer["comparable"] == "within a prompt"

    joint = Joint.of(model)
    joined = [joint.join(prompt, story) for prompt, story in zip(*texts, strict=True)]
    _, _, answer = served.call("/classify", {"input": joined, "use_activation": False})
    assert [one["index"] for one in answer["data"]] == list(range(len(stories)))
    assert [one["num_classes"] for one in answer["data"]] == [1] * len(stories)
    assert [one["probs"][0] for one in answer["data"]] == pytest.approx(local, abs=SAME, rel=0)
    turns = [
        {"role": "user", "content": prompts[3]},
        {"role": "assistant", "content": stories[3]},
    ]
    _, _, answer = served.call("/classify", {"model": "verifier", "messages": turns})
    assert answer["object"] == "list"
    assert answer["data"][0]["probs"] == [pytest.approx(sigmoid(local[3]), abs=SAME)]

    queries = [f"<begin>{p}{s}<end><end>" for p, s in zip(*texts, strict=True)]
    body = {"query": queries, "prompts": prompts, "labels": [None] * len(stories)}
    _, _, answer = served.call("/get_reward", body)
    assert answer["rewards"] == pytest.approx(local, abs=SAME, rel=0)
    assert answer["scores"] == pytest.approx([*map(sigmoid, local)], abs=SAME)
    assert answer["extra_logs"]["reward"] == answer["rewards"]


def test_requests_share_batches_and_keep_their_own_rewards(model, texts, local):
    prompts, stories = texts
    requests = 24
    chosen = [random.Random(place).sample(range(len(stories)), 3) for place in range(requests)]
    rater = Gated(rewards=model.score)
    with serving(lambda: rater) as running, ThreadPoolExecutor(requests) as pool:

        def ask(places):
            return pool.submit(
                running.rewards, [prompts[p] for p in places], [stories[p] for p in places]
            )

        asked = [ask(chosen[0])]
        running.wait_until(lambda: rater.seen)
        asked += map(ask, chosen[1:])
        running.wait_until(lambda: running.server.batcher.waiting == 3 * (requests - 1))
        rater.may.set()
        for places, answer in zip(chosen, asked, strict=True):
            assert answer.result() == pytest.approx(local[places], abs=SAME, rel=0)
        assert len(rater.seen) == 2
        assert running.metric("queue_stories") == 0


def test_batches_show_no_progress(tiny_model, monkeypatch):
    inner = RewardModel.load(tiny_model("llama"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    heard = []
    monkeypatch.setattr(sys.stderr, "write", heard.append)
    inner.score(["p"], ["a story"])
    assert any("stories" in piece for piece in heard)
    heard.clear()
    with serving(lambda: inner) as running:
        running.rewards(["p"], ["a story"])
    assert not any("stories" in piece for piece in heard)


def test_any_rater_with_rewards_is_served(pair_table, tmp_path):
    from litbench.models.features import FeatureOptions, fit_features  # noqa: PLC0415
    from litbench.scoring import load_scorer, scorer_entry, scorer_spec  # noqa: PLC0415

    rows = [{"prompt_id": f"p{k % 9}", "chosen": "a b c " * (k + 2)} for k in range(60)]
    fitted = fit_features(pair_table(rows), FeatureOptions())
    fitted.save(tmp_path)
    with serving(lambda: load_scorer(scorer_spec(scorer_entry(str(tmp_path))))) as running:
        expected = fitted.score(["p", "p"], ["one two three", "one"])
        assert running.rewards(["p", "p"], ["one two three", "one"]) == expected.tolist()
        # A policy may have written nothing at all; that is an answer too.
        body = {"query": ["p"], "prompts": ["p"]}
        assert running.call("/get_reward", body)[0] == 200


def test_a_short_request_does_not_wait_for_a_long_one_to_end():
    rater = Gated()
    with (
        serving(lambda: rater, limits=Limits(batch_tokens=60)) as running,
        ThreadPoolExecutor(2) as pool,
    ):
        long = pool.submit(running.rewards, ["p"] * 50, ["long"] * 50)
        running.wait_until(lambda: rater.seen)
        short = pool.submit(running.rewards, ["p"], ["short"])
        running.wait_until(lambda: running.server.batcher.waiting == 51 - len(rater.seen[0]))
        rater.may.set()
        assert (short.result(), long.result()) == ([5.0], [4.0] * 50)
        assert "short" in rater.seen[1]
        assert len(rater.seen) > 3


# Clear words for the rest -------------------------------------------------------------------

SECRET = "moonflower"  # noqa: S105
WRONG = {
    "no JSON": ("/score", '{"prompt": "moonflower', 400, "JSON"),
    "binary": ("/score", b"\x00\xff\xfe" * 9, 400, "JSON"),
    "a bomb of brackets": ("/score", "[" * 15_000, 400, "JSON"),
    "a list": ("/score", [SECRET], 422, "body"),
    "numbers": ("/score", {"prompt": 1, "stories": [2]}, 422, "body.stories.0: Input should be"),
    "NaN": ("/score", '{"prompt": "p", "stories": [NaN]}', 422, "body.stories.0"),
    "half a character": (
        "/score",
        '{"prompt": "p", "stories": ["\\ud800"]}',
        422,
        "story 0: holds",
    ),
    "half a character in a key": ("/score", '{"\\ud800": 1}', 422, "unicode"),
    "null": ("/score", {"prompt": "p", "stories": [None]}, 422, "body.stories.0"),
    "a typo": ("/score", {"promt": SECRET, "stories": ["x"]}, 422, "body.promt"),
    "both kinds": ("/score", {"prompt": SECRET, "items": []}, 422, '"items"'),
    "neither kind": ("/score", {}, 422, '"stories"'),
    "no story": ("/score", {"prompt": SECRET, "stories": []}, 422, "at least one"),
    "an empty story": (
        "/score",
        {"prompt": "p", "stories": ["x", " \n"]},
        422,
        "story 1: is empty",
    ),
    "too many": ("/score", {"prompt": SECRET, "stories": ["x"] * 6}, 422, "the limit is 5"),
    "too long": ("/score", {"prompt": "p", "stories": [SECRET * 51]}, 422, "the limit is 500"),
    "a long prompt": (
        "/score",
        {"prompt": SECRET * 51, "stories": ["x"]},
        422,
        "prompt of story 0",
    ),
    "no border": ("/classify", {"input": [SECRET]}, 422, "body.input.0: no '\\n\\n'"),
    "token ids": ("/classify", {"input": [[1, 2]]}, 422, "body.input"),
    "another model": ("/classify", {"model": "gpt", "input": SECRET}, 404, "verifier"),
    "a story alone": ("/classify", {"messages": [{"role": "user", "content": "x"}]}, 422, "two"),
    "input and messages": ("/classify", {"input": "x", "messages": []}, 422, "either"),
    "cutting": ("/classify", {"input": "x", "truncate_prompt_tokens": 5}, 422, "truncate"),
    "no prompts": ("/get_reward", {"query": [SECRET]}, 422, "body.prompts"),
    "another prompt": ("/get_reward", {"query": [SECRET], "prompts": ["x"]}, 422, "body.query.0"),
    "fewer prompts": ("/get_reward", {"query": ["x", "y"], "prompts": ["x"]}, 422, "as many"),
    "a path of its own": (f"/{SECRET}", {"prompt": SECRET}, 404, "/score"),
}


@pytest.mark.parametrize(("path", "body", "status", "words"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_and_never_repeated(plain, caplog, path, body, status, words):
    caplog.set_level(logging.DEBUG)
    found, _, answer = plain.call(path, body)
    assert (found, answer["error"]["code"]) == (status, status)
    assert words in answer["error"]["message"]
    assert SECRET not in answer["error"]["message"].replace("body.promt", "")
    assert SECRET not in caplog.text
    assert SECRET not in plain.call("/metrics")[2]
    assert plain.rewards(["p"], ["a b"]) == [2.0]


MANY = 100
ERRORS = {
    "stories": ("/score", {"prompt": "p", "stories": [1] * MANY}),
    "items": ("/score", {"items": [1] * MANY}),
    "fields": ("/score", dict.fromkeys(map(str, range(MANY)), 1)),
    "fields of an item": ("/score", {"items": [dict.fromkeys(map(str, range(MANY)), 1)]}),
    "messages": ("/classify", {"messages": [1] * MANY}),
    "inputs": ("/classify", {"input": [1] * MANY}),
    "queries": ("/get_reward", {"query": [1] * MANY, "prompts": ["x"]}),
}


@pytest.mark.parametrize(("path", "body"), ERRORS.values(), ids=ERRORS)
def test_not_every_error_of_a_body_is_gathered(plain, path, body):
    # A body has room for two million of them, and all other requests would wait for half a minute.
    status, _, answer = plain.call(path, body)
    assert status == 422
    assert " more: " not in answer["error"]["message"]


def test_a_text_of_nothing_but_end_tokens_holds_up_nobody(served):
    body = json.dumps({"query": ["p" + "<end>" * 300_000], "prompts": ["p"]})
    started = time.process_time()
    assert served.call("/get_reward", body)[0] == 200
    # A copy of the text for each of them would take minutes.
    assert time.process_time() - started < 20


def test_a_client_that_does_not_take_its_answers_is_let_go():
    with serving(longer, limits=Limits(timeout_s=0.2, read_s=0.2)) as running:
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            raw.settimeout(PATIENCE)
            raw.connect(("127.0.0.1", running.port))
            # A thousand times what fits between a server and a client that does not read.
            with pytest.raises(ConnectionError):
                raw.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 500_000)
        running.wait_until(lambda: not running.uvicorn.server_state.connections)
        running.wait_until(lambda: running.server.app.held == 0)


def test_a_path_with_a_slash_too_many_leads_to_no_other_host(plain):
    with socket.create_connection(("127.0.0.1", plain.port), timeout=PATIENCE) as raw:
        raw.sendall(b"GET /health/ HTTP/1.1\r\nHost: elsewhere\r\n\r\n")
        answer = raw.recv(1_000)
    assert b" 404 " in answer
    assert b"elsewhere" not in answer


def test_heads_that_are_wrong_are_refused(plain):
    body = '{"prompt": "p", "stories": ["x"]}'
    assert plain.call("/score", body, headers={})[0] == 415
    assert plain.call("/score", body, headers={**JSON, "Content-Encoding": "gzip"})[0] == 415
    assert plain.call("/score", method="PUT")[0] == 405
    assert plain.call("/score")[0] == 405
    with socket.create_connection(("127.0.0.1", plain.port)) as raw:
        raw.sendall(b"moon\x00flower\r\n\r\n")
        assert b" 400 " in raw.recv(1_000)


def test_oversized_bodies_are_refused_with_and_without_a_length(plain):
    body = json.dumps({"prompt": "p", "stories": ["x" * 100_000]})
    status, _, answer = plain.call("/score", body)
    assert status == 413
    assert "the limit is 20,000" in answer["error"]["message"]
    pieces = (b"%x\r\n%s\r\n" % (1_000, b"x" * 1_000) for _ in range(60))
    head = {**JSON, "Transfer-Encoding": "chunked"}
    connection = http.client.HTTPConnection("127.0.0.1", plain.port, timeout=PATIENCE)
    connection.request("POST", "/score", b"".join(pieces) + b"0\r\n\r\n", head)
    assert connection.getresponse().status == 413
    connection.close()
    plain.wait_until(lambda: plain.metric("held_bytes") == 0)


def test_a_full_queue_says_when_to_come_again():
    rater = Gated()
    limits = Limits(batch_tokens=1, waiting_stories=4)
    with serving(lambda: rater, limits=limits) as running, ThreadPoolExecutor(1) as pool:
        first = pool.submit(running.rewards, ["p"] * 4, ["abc"] * 4)
        running.wait_until(lambda: rater.seen)
        status, headers, answer = running.call("/score", {"prompt": "p", "stories": ["x"] * 4})
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert "over the limit of 4" in answer["error"]["message"]
        rater.may.set()
        assert first.result() == [3.0] * 4


def test_bodies_together_have_a_limit():
    rater = Gated()
    with serving(lambda: rater, limits=Limits(held_bytes=3_000)) as running:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(running.rewards, ["p"], ["x" * 2_000])
            running.wait_until(lambda: rater.seen)
            assert running.call("/score", {"prompt": "p", "stories": ["y" * 2_000]})[0] == 429
            rater.may.set()
            assert first.result() == [2_000.0]
        running.wait_until(lambda: running.metric("held_bytes") == 0)
        assert running.rewards(["p"], ["z" * 2_000]) == [2_000.0]


def test_too_many_requests_at_once_are_refused():
    rater = Gated()
    with (
        serving(lambda: rater, limits=Limits(requests=1)) as running,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(running.rewards, ["p"], ["x"])
        running.wait_until(lambda: rater.seen)
        assert running.call("/score", {"prompt": "p", "stories": ["y"]})[0] == 429
        assert running.call("/health")[0] == 200
        rater.may.set()
        assert first.result() == [1.0]


def test_time_is_up_after_a_while_and_the_queue_is_free_again():
    rater = Gated()
    with serving(lambda: rater, limits=Limits(batch_tokens=1, timeout_s=0.5)) as running:
        status, headers, _ = running.call("/score", {"prompt": "p", "stories": ["x"] * 50})
        assert status == 504
        assert "retry-after" in headers
        running.wait_until(lambda: running.metric("queue_stories") == 0)
        rater.may.set()
        # A busy machine may need more than half a second for this one, too.
        running.wait_until(
            lambda: running.call("/score", {"prompt": "p", "stories": ["ab"]})[0] == 200
        )
        assert rater.count("x") == 1


def request_bytes(body, path="/score", length=None):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    size = len(text) if length is None else length
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {size}\r\n\r\n"
    ).encode() + text


def test_a_client_that_leaves_frees_its_place():
    rater = Gated()
    with serving(lambda: rater, limits=Limits(batch_tokens=1)) as running:
        with socket.create_connection(("127.0.0.1", running.port)) as raw:
            raw.sendall(request_bytes({"prompt": "p", "stories": ["x"] * 200}))
            running.wait_until(lambda: rater.seen)
        running.wait_until(lambda: running.metric("queue_stories") == 0)
        rater.may.set()
        assert running.rewards(["p"], ["ab"]) == [2.0]
        assert rater.count("x") == 1
        assert 'path="/score",status="499"} 1.0' in running.call("/metrics")[2]


def test_clients_that_say_nothing_or_not_enough_are_let_go():
    whole = request_bytes({"prompt": "p", "stories": ["a b"]})

    def heard_after(said):
        with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as raw:
            raw.sendall(said)
            heard = b""
            # Until the server closes: a reset is a close too.
            while True:
                try:
                    piece = raw.recv(10_000)
                except ConnectionResetError:
                    return heard
                if not piece:
                    return heard
                heard += piece

    expected = {
        b"": b"",
        whole[:30]: b"",
        whole[:-5]: b" 408 ",
        request_bytes(b"x" * 10, length=10**9): b" 413 ",
        whole: b" 200 ",
    }
    with (
        serving(longer, limits=Limits(read_s=2)) as running,
        ThreadPoolExecutor(len(expected)) as pool,
    ):
        for heard, answer in zip(pool.map(heard_after, expected), expected.values(), strict=True):
            assert answer in heard
            assert bool(heard) == bool(answer)
        running.wait_until(lambda: not running.uvicorn.server_state.connections)


def test_a_token_is_asked_of_all_but_health(caplog):
    caplog.set_level(logging.DEBUG)
    with serving(longer, token="sesame-42") as running:  # noqa: S106
        body = {"prompt": "p", "stories": ["a b"]}
        right = {**JSON, "Authorization": "Bearer sesame-42"}
        assert running.call("/score", body, right)[0] == 200
        assert running.call("/metrics", headers=right)[0] == 200
        for same in ("bearer sesame-42", "BEARER  sesame-42"):
            assert running.call("/metrics", headers={"Authorization": same})[0] == 200
        for wrong in (
            "Bearer sesame-4", "Bearer sesame-422", "Bearer Sesame-42", "Bearersesame-42",
            "Basic sesame-42", "sesame-42", "Bearer", "Basic x", "",
        ):  # fmt: skip
            status, headers, answer = running.call("/score", body, {**JSON, "Authorization": wrong})
            assert status == 401
            assert headers["www-authenticate"] == "Bearer"
            assert "sesame" not in str(answer)
        assert running.call("/score", body)[0] == 401
        assert running.call("/health")[0] == 200
    assert "sesame" not in caplog.text


# The model ----------------------------------------------------------------------------------


def test_until_the_model_is_there_the_server_says_so():
    may_load = threading.Event()

    def load():
        assert may_load.wait(PATIENCE)
        return longer()

    with serving(load, wait=False) as running:
        running.wait_until(lambda: running.uvicorn.started)
        status, _, answer = running.call("/health")
        assert (status, answer["status"]) == (503, "loading")
        status, headers, _ = running.call("/score", {"prompt": "p", "stories": ["a b"]})
        assert status == 503
        assert "retry-after" in headers
        may_load.set()
        running.wait_until(lambda: running.call("/health")[0] == 200)
        assert running.rewards(["p"], ["a b"]) == [2.0]


def test_a_model_that_cannot_be_loaded_stops_the_server():
    def load():
        raise ModelError("no such folder: check the path")

    with serving(load, wait=False) as running:
        running.thread.join(PATIENCE)
        assert not running.thread.is_alive()
        assert isinstance(running.server.batcher.failure, ModelError)


@dataclass
class Picky(ScoreRater):
    """Fails on some stories, and gives no number to others."""

    name: str = "picky"
    kind: str = "picky"

    def score(self, prompts, stories):  # noqa: ARG002
        if any("broken" in story for story in stories):
            raise ValueError(f"cannot read {stories}")
        return np.array([math.nan if "odd" in story else 1.0 for story in stories])


def test_a_failing_story_fails_its_own_request_only(caplog):
    with serving(Picky, limits=Limits(wait_ms=200)) as running:
        wanted = {"fine": 200, "broken": 500, "odd": 500, "good": 200}
        with ThreadPoolExecutor(4) as pool:
            answers = pool.map(
                lambda word: running.call("/score", {"prompt": "p", "stories": [word, "x"]}), wanted
            )
            assert dict(zip(wanted, [one[0] for one in answers], strict=True)) == wanted
        assert running.metric("model_failures_total") in (1, 2)  # in a batch with others, or alone
        assert running.rewards(["p"], ["x"]) == [1.0]
    assert "ValueError" in caplog.text
    assert "cannot read [" not in caplog.text


def test_a_stop_answers_what_is_queued_and_takes_nothing_new():
    rater = Gated()
    limits = Limits(batch_tokens=1, read_s=PATIENCE)
    late = request_bytes({"prompt": "p", "stories": ["x"]})
    with (
        serving(lambda: rater, limits=limits) as running,
        ThreadPoolExecutor(8) as pool,
        socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as half,
    ):
        half.sendall(late[:-4])
        queued = [pool.submit(running.rewards, ["p"] * 3, ["abc"] * 3) for _ in range(5)]
        # One story is with the model.
        running.wait_until(lambda: running.server.batcher.waiting == 14)
        running.uvicorn.handle_exit(signal.SIGTERM, None)
        half.sendall(late[-4:])
        assert half.recv(1_000).startswith(b"HTTP/1.1 503 ")
        rater.may.set()
        assert [one.result() for one in queued] == [[3.0] * 3] * 5
        running.thread.join(PATIENCE)
        with pytest.raises(OSError):
            running.call("/health")


def test_what_a_stop_cannot_wait_for_is_told_so(caplog):
    rater = Gated()
    with (
        serving(lambda: rater, limits=Limits(stop_s=0.1)) as running,
        ThreadPoolExecutor(1) as pool,
    ):
        queued = pool.submit(running.call, "/score", {"prompt": "p", "stories": ["x"]})
        running.wait_until(lambda: rater.seen)
        running.uvicorn.handle_exit(signal.SIGTERM, None)
        status, headers, answer = queued.result()
        rater.may.set()
    assert status == 503
    assert headers["retry-after"] == "5"
    assert "stopped before it could answer" in answer["error"]["message"]
    assert "Traceback" not in caplog.text


# vLLM ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "bert", "qwen3"])
def test_token_ids_for_vllm_give_our_rewards_in_plain_transformers(
    kind, tiny_model, texts, tmp_path
):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = RewardModel.load(tiny_model(kind))
    model.save(tmp_path)
    body = vllm_request(model, *texts, name="verifier")
    assert body["use_activation"] is False
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        alone = [float(plain(input_ids=torch.tensor([ids])).logits) for ids in body["input"]]
    np.testing.assert_allclose(model.score(*texts), alone, rtol=0, atol=SAME)
    joint = Joint.of(model)
    for prompt, story in zip(*texts, strict=True):
        assert joint.split(joint.join(prompt, story)) == (prompt, story)
    model.reversed = True
    with pytest.raises(ModelError, match="reversed"):
        vllm_request(model, *texts, name="verifier")


# The command --------------------------------------------------------------------------------


def parse(*arguments):
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["serve", *arguments])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--model FOLDER"),
        (["--rater", "{kind: longer}", "--model", "x"], "one of the two"),
        (["--rater", "{kind: longest}"], "longer"),
        (["--rater", "{kind: ["], "no YAML"),
        (["--rater", "longer"], "needs a kind"),
        (["--rater", "{kind: longer}", "--device", "cpu"], "--device"),
        (["--rater", "{kind: longer}", "--stories", "0"], "--stories is 0"),
        (["--rater", "{kind: longer}", "--wait-ms", "-1"], "--wait-ms is -1.0"),
        (["--rater", "{kind: longer}", "--timeout-s", "nan"], "--timeout-s is nan"),
        (["--rater", "{kind: longer}", "--stop-s", "inf"], "--stop-s is inf"),
        (["--rater", "{kind: longer}", "--port", "99999"], "--port is 99999"),
    ],
)
def test_options_that_do_not_fit_are_named(arguments, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        command.serve(parse(*arguments))


def test_a_server_may_open_as_many_files_as_the_system_lets_it():
    """Else a thousand idle clients leave no connection to the others."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = before[1]
    wanted = 65_536 if most == resource.RLIM_INFINITY else min(most, 65_536)
    try:
        for low, high in ((128, wanted), (wanted, wanted)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (low, most))
            command._raise_file_limit()
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (high, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_port_in_use_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(ConfigError, match="is the port free"):
            command.serve(parse("--rater", "{kind: longer}", "--port", port))


@pytest.mark.parametrize("token", ["", "two words", "schlüssel", "line\n"])
def test_a_token_that_no_header_can_carry_is_refused(token, monkeypatch):
    monkeypatch.setenv("LITBENCH_SERVE_TOKEN", token)
    with pytest.raises(ConfigError, match="LITBENCH_SERVE_TOKEN"):
        command.serve(parse("--rater", "{kind: longer}"))


def test_bound_wide_without_a_token_it_warns(monkeypatch, capsys):
    def refuse(*_):
        raise ConfigError("not here")

    monkeypatch.setattr(command, "_listen", refuse)
    for host, token, warns in (
        ("0.0.0.0", None, True),  # noqa: S104
        ("0.0.0.0", "sesame", False),  # noqa: S104
        ("::", None, True),
        ("127.0.0.1", None, False),
        ("localhost", None, False),
    ):
        monkeypatch.delenv("LITBENCH_SERVE_TOKEN", raising=False)
        if token:
            monkeypatch.setenv("LITBENCH_SERVE_TOKEN", token)
        with pytest.raises(ConfigError, match="not here"):
            command.serve(parse("--rater", "{kind: longer}", "--host", host))
        assert ("warning" in capsys.readouterr().err) == warns


@contextmanager
def process(*arguments):
    """The server in a process of its own: its port, and the process."""
    started = subprocess.Popen(
        [sys.executable, "-m", "litbench.cli", "serve", "--port", "0", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        first = started.stderr.readline()
        found = re.search(r":(\d+), loading", first)
        assert found, first + started.stderr.read()
        running = Running(int(found[1]), None, None, None)
        running.wait_until(lambda: running.call("/health")[0] == 200)
        yield running, started
    finally:
        started.kill()
        started.wait()
        started.stderr.close()


def test_the_command_serves_until_it_is_told_to_stop():
    with process("--rater", "{kind: longer}") as (running, started):
        assert running.rewards(["p"], ["a b c"]) == [3.0]
        started.send_signal(signal.SIGTERM)
        assert started.wait(PATIENCE) == 0


# The crowd ----------------------------------------------------------------------------------


class Crowd:
    """Clients of every sort, until a moment; what they saw is counted.

    Most ask for rewards and check them; the others hang, send garbage or too much, or leave early.
    """

    def __init__(self, port, texts, local, limits):
        self.port = port
        self.texts = texts
        self.local = local
        self.limits = limits
        self.seen = Counter()
        self.wrong = []
        self.slowest = 0.0
        self.longest_hang = 0.0

    async def run(self, clients, seconds):
        self.until = time.monotonic() + seconds
        sorts = [self.good] * 12 + [self.garbage] * 3 + [self.leave] * 3 + [self.big, self.hang]
        tasks = [self.again(sorts[k % len(sorts)], random.Random(k)) for k in range(clients)]
        await asyncio.gather(*tasks)

    async def again(self, sort, source):
        while time.monotonic() < self.until:
            await sort(source)
            # Those who do not wait for rewards would otherwise be most of what is asked.
            if sort != self.good:
                await asyncio.sleep(source.random())

    async def ask(self, data):
        """Status and body of the answer; status 0 where the connection was closed without one."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**22)
        try:
            for piece in data:
                writer.write(piece)
                await writer.drain()
            async with asyncio.timeout(2 * PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(re.search(rb"content-length: (\d+)", head)[1])
                return int(head.split()[1]), await reader.readexactly(length)
        except (ConnectionError, asyncio.IncompleteReadError):
            return 0, b""
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except ConnectionError:
                self.seen["reset"] += 1

    def request(self, source):
        prompts, stories = self.texts
        places = [source.randrange(len(stories)) for _ in range(source.randint(1, 4))]
        form = source.randrange(3)
        if form == 0:
            items = [{"prompt": prompts[p], "story": stories[p]} for p in places]
            return places, "/score", {"items": items}, lambda found: found["rewards"]
        if form == 1:
            both = {
                "query": [prompts[p] + stories[p] for p in places],
                "prompts": [prompts[p] for p in places],
            }
            return places, "/get_reward", both, lambda found: found["rewards"]
        turns = [
            {"role": "user", "content": prompts[places[0]]},
            {"role": "assistant", "content": stories[places[0]]},
        ]
        body = {"messages": turns, "use_activation": False}
        return places[:1], "/classify", body, lambda found: found["data"][0]["probs"]

    async def good(self, source):
        places, path, body, read = self.request(source)
        started = time.monotonic()
        status, text = await self.ask([request_bytes(body, path)])
        self.slowest = max(self.slowest, time.monotonic() - started)
        self.seen[f"good {status}"] += 1
        if status == 200:
            off = np.abs(np.array(read(json.loads(text))) - self.local[places]).max()
            if not off < SAME:
                self.wrong.append((places, off))

    async def garbage(self, source):
        path, body, status, _ = source.choice(list(WRONG.values()))
        if body and isinstance(body, dict) and ("too long" in body or "stories" in body):
            body = {"prompt": "p", "stories": ["x"] * (self.limits.stories + 1)}
            status = 422
        text = body.encode() if isinstance(body, str) else body
        found, _ = await self.ask([request_bytes(text, path)])
        self.seen["garbage as told" if found == status else f"garbage {status}: {found}"] += 1

    async def big(self, source):
        data = request_bytes(b"", length=10**9)
        # Such a body is too big only once so much of it has come, and on a busy machine its time
        # may be up before that. One whose head tells its size is sure to be refused.
        if self.seen["big 413"] and source.random() < 0.5:
            data = data.replace(b"Content-Length: 1000000000", b"Transfer-Encoding: chunked")
        piece = b"10000\r\n" + b"x" * 2**16 + b"\r\n"
        pieces = [piece] * (2 * self.limits.body_bytes // 2**16)
        status, _ = await self.ask([data, *pieces])
        self.seen[f"big {status}"] += 1

    async def hang(self, source):
        _, path, body, _ = self.request(source)
        whole = request_bytes(body, path)
        started = time.monotonic()
        status, _ = await self.ask([whole[: source.randrange(len(whole))]])
        self.longest_hang = max(self.longest_hang, time.monotonic() - started)
        self.seen[f"hang {status}"] += 1

    async def leave(self, source):
        _, path, body, _ = self.request(source)
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request_bytes(body, path))
        await writer.drain()
        await asyncio.sleep(source.random() * 0.05)
        if source.random() < 0.5:
            writer.transport.abort()
        writer.close()
        self.seen["left"] += 1

    def check(self):
        assert not self.wrong, f"{len(self.wrong)} wrong rewards, such as {self.wrong[:3]}"
        allowed = {"good 200", "garbage as told", "big 413", "hang 408", "hang 0", "left", "reset"}
        # See `big`; and who goes on sending what was refused is cut off, perhaps before the answer.
        allowed |= {"big 408", "big 0"}
        # More than the server takes on: asked to come again is a clear answer too.
        busy = {name for name in self.seen if name.endswith("429")}
        assert set(self.seen) - busy <= allowed, self.seen
        assert sum(self.seen[name] for name in busy) < self.seen["good 200"] / 20, self.seen
        assert {"good 200", "garbage as told", "big 413", "left"} <= set(self.seen), self.seen
        assert self.seen["hang 408"] + self.seen["hang 0"], self.seen


def is_empty(running):
    return all(
        running.metric(name) == wanted
        for name, wanted in (
            ("queue_stories", 0),
            ("queue_requests", 0),
            ("held_bytes", 0),
            ("requests_held", 1),  # the one that asks
        )
    )


def test_a_crowd_of_good_and_bad_clients_gets_what_it_should(model, texts, local):
    # A good client must not be kept from its own request for so long.
    limits = Limits(body_bytes=500_000, read_s=3)
    with serving(lambda: model, limits=limits) as running:
        tasks = running.metric("asyncio_tasks")
        crowd = Crowd(running.port, texts, local, limits)
        asyncio.run(crowd.run(clients=40, seconds=2))
        crowd.check()
        running.wait_until(lambda: is_empty(running))
        running.wait_until(lambda: running.metric("asyncio_tasks") <= tasks + 1)
        assert running.metric("model_failures_total") == 0


@pytest.mark.long
def test_200_clients_for_a_minute_meet_a_server_that_leaks_nothing(tiny_model, texts, local):
    limits = Limits(body_bytes=500_000, read_s=5)
    seconds = float(os.environ.get("LITBENCH_SOAK_SECONDS", "60"))
    options = ["--body-bytes", str(limits.body_bytes), "--read-s", str(limits.read_s)]
    with process("--model", str(tiny_model("llama")), *options) as (running, started):
        crowd = Crowd(running.port, texts, local, limits)
        # What a server at work holds is part of it; what grows after that is a leak.
        asyncio.run(crowd.run(clients=200, seconds=seconds / 3))
        names = ("process_resident_memory_bytes", "process_open_fds", "asyncio_tasks")
        running.wait_until(lambda: is_empty(running))
        before = {name: running.metric(name) for name in names}
        asyncio.run(crowd.run(clients=200, seconds=seconds))
        crowd.check()
        running.wait_until(lambda: is_empty(running))
        after = {name: running.metric(name) for name in names}
        scored = running.metric("stories_scored_total")
        batches = running.metric("batch_stories_count")
        print(
            f"\n{dict(crowd.seen)}, slowest {crowd.slowest:.2f} s, longest hang "
            f"{crowd.longest_hang:.2f} s"
        )
        print(f"{scored:,.0f} stories in {batches:,.0f} batches; before {before}, after {after}")
        assert after["asyncio_tasks"] <= before["asyncio_tasks"] + 1
        assert after["process_open_fds"] <= before["process_open_fds"] + 2
        grown = after["process_resident_memory_bytes"] - before["process_resident_memory_bytes"]
        assert grown < 30e6, f"{grown / 1e6:.0f} MB more"
        started.send_signal(signal.SIGTERM)
        assert started.wait(PATIENCE) == 0
