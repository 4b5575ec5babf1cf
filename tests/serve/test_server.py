"""The server: rewards equal the local ones under any load; invalid requests get clear errors."""

import contextlib
import http.client
import json
import logging
import math
import os
import random
import re
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
from tolerance import WITHIN, assert_same

from litbench.models.baselines import LengthRater
from litbench.raters.interface import ScoreRater

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")

from litbench.serve.server import ServerLimits, accepted_hosts, make_app, make_server

JSON = {"Content-Type": "application/json"}
# Timeout of tests in seconds, long enough for a busy machine.
PATIENCE = 60


def longer():
    return LengthRater("longer", "longer", 1)


def lengths(prompts, stories):  # noqa: ARG001
    return np.array([float(len(story)) for story in stories])


@dataclass
class Gated(ScoreRater):
    """Scores when released, one story at a time unless `batch_tokens` is raised.

    Nothing depends on how fast the machine is: a test that needs a busy model lets it wait.
    """

    name: str = "gated"
    kind: str = "gated"
    batch_tokens: int = 1
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
    uvicorn: object = None
    thread: threading.Thread = None

    def call(self, path, body=None, headers=None, method=None):
        """Status, headers and parsed response of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            if body is not None and not isinstance(body, bytes | str):
                body = json.dumps(body)
            wanted = JSON if headers is None else headers
            connection.request(method or ("GET" if body is None else "POST"), path, body, wanted)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        is_json = response.headers["content-type"] == "application/json"
        return (
            response.status,
            dict(response.getheaders()),
            json.loads(text) if is_json and text else text,
        )

    def rewards(self, prompts, stories):
        body = {"prompt": prompts, "stories": stories}
        status, _, response = self.call("/score", body)
        assert status == 200, response
        return response["rewards"]

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
            assert time.monotonic() < end, "it never happened"
            time.sleep(0.01)


@contextmanager
def serving(rater, limits=None, **options):
    limits = limits or ServerLimits()
    server = make_server(make_app(rater, "verifier", limits, **options), limits, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run)
    thread.start()
    made = Running(0, server, thread)
    try:
        made.wait_until(lambda: server.started)
        made.port = server.servers[0].sockets[0].getsockname()[1]
        yield made
    finally:
        server.handle_exit(signal.SIGTERM, None)
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server did not stop"


@pytest.fixture(scope="module")
def model(tiny_model):
    from litbench.models.reward import RewardModel  # noqa: PLC0415

    return RewardModel.load(tiny_model("llama"))


@pytest.fixture(scope="module")
def texts(invented):
    source = random.Random(5)
    stories = [invented(source, source.randint(1, 120)) for _ in range(40)]
    return [f"The {number % 7}. lantern" for number in range(len(stories))], stories


@pytest.fixture(scope="module")
def local(model, texts):
    result = model.score(*texts)
    assert result.std() > 1e-2  # otherwise the comparison would be trivial
    return result


@pytest.fixture(scope="module")
def served(model):
    with serving(model) as running:
        yield running


@pytest.fixture(scope="module")
def plain():
    with serving(longer(), ServerLimits(max_body_bytes=20_000, max_waiting_stories=5)) as address:
        yield address


# Rewards ------------------------------------------------------------------------------------


def test_all_formats_give_the_local_rewards(served, texts, local):
    prompts, stories = texts
    assert_same(served.rewards(prompts, stories), local)
    same_prompt = [row for row, prompt in enumerate(prompts) if prompt == prompts[0]]
    body = {"prompt": prompts[0], "stories": [stories[row] for row in same_prompt]}
    _, _, response = served.call("/score", body)
    assert_same(response["rewards"], local[same_prompt])
    assert (response["model"], response["comparable"]) == ("verifier", "within a prompt")

    turns = [
        {"role": "user", "content": prompts[3]},
        {"role": "assistant", "content": stories[3]},
    ]
    _, _, response = served.call("/classify", {"model": "verifier", "messages": turns})
    # This folder was not written by LitBench: its config does not say problem_type: regression.
    assert_same(response["data"][0]["probs"], [1 / (1 + math.exp(-local[3]))])
    _, _, response = served.call("/classify", {"messages": turns, "use_activation": False})
    assert_same(response["data"][0]["probs"], [local[3]])
    assert (response["data"][0]["index"], response["data"][0]["num_classes"]) == (0, 1)
    parts = [{"type": "text", "text": part} for part in ("a b", "c")]
    turns = [{**turn, "content": parts} for turn in turns]
    _, _, response = served.call("/classify", {"messages": turns, "use_activation": False})
    assert_same(response["data"][0]["probs"], served.rewards("a b\nc", ["a b\nc"]))


def test_concurrent_requests_share_batches(model, texts, local):
    prompts, stories = texts
    requests = 24
    chosen = [random.Random(number).sample(range(len(stories)), 3) for number in range(requests)]
    rater = Gated(rewards=model.score, batch_tokens=10_000)
    with serving(rater) as running, ThreadPoolExecutor(requests) as pool:

        def ask(rows):
            return pool.submit(
                running.rewards, [prompts[row] for row in rows], [stories[row] for row in rows]
            )

        asked = [ask(chosen[0])]
        running.wait_until(lambda: rater.seen)
        asked += map(ask, chosen[1:])
        running.wait_until(lambda: running.metric("queue_stories") == 3 * (requests - 1))
        rater.may.set()
        for rows, response in zip(chosen, asked, strict=True):
            assert_same(response.result(), local[rows])
        assert len(rater.seen) == 2
        assert running.metric("queue_stories") == 0


def test_connections_send_without_delay(plain):
    """Without TCP_NODELAY each response on a keep-alive connection takes 40 ms more."""
    connection = http.client.HTTPConnection("127.0.0.1", plain.port, timeout=PATIENCE)
    connection.request("GET", "/health")
    assert connection.getresponse().read()
    for item in plain.uvicorn.server_state.connections:
        socket_of_client = item.transport.get_extra_info("socket")
        assert socket_of_client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert plain.uvicorn.server_state.connections
    connection.close()


# Errors -------------------------------------------------------------------------------------

SECRET = "moonflower"  # noqa: S105
USER, STORY = {"role": "user", "content": SECRET}, {"role": "assistant", "content": SECRET}
WRONG = {
    "no JSON": ("/score", '{"prompt": "moonflower', 422, "JSON"),
    "binary": ("/score", b"\x00\xff\xfe" * 9, 400, ""),
    "nested brackets": ("/score", "[" * 1_000, 400, ""),
    "many brackets": ("/score", "[" * 15_000, 422, "too many values"),
    "many objects": ("/classify", "[{}" + ",{}" * 500 + "]", 422, "too many values"),
    "many texts": ("/score", '{"stories": [""' + ',""' * 1_500 + "]}", 422, "too many values"),
    "numbers": ("/score", {"prompt": 1, "stories": [2]}, 422, "body.prompt"),
    "NaN": ("/score", '{"prompt": "p", "stories": [NaN]}', 422, "body.stories.0"),
    "a lone surrogate": ("/score", '{"prompt": "p", "stories": ["\\ud800"]}', 422, "urrogate"),
    "a typo": ("/score", {"promt": SECRET, "stories": ["x"]}, 422, "body.prompt"),
    "no story": ("/score", {"prompt": SECRET, "stories": []}, 422, "send 1 to 5"),
    "too many": ("/score", {"prompt": SECRET, "stories": ["x"] * 6}, 422, "send 1 to 5"),
    "wrong roles": ("/classify", {"messages": [STORY, USER]}, 422, "body.messages"),
    "fewer prompts": ("/score", {"prompt": ["x"], "stories": ["x", "y"]}, 422, "different lengths"),
    "another path": (f"/{SECRET}", {"prompt": SECRET}, 404, "Not Found"),
    "too large": ("/score", {"prompt": SECRET, "stories": ["x" * 20_000]}, 413, "20,000 bytes"),
}


@pytest.mark.parametrize(("path", "body", "status", "words"), WRONG.values(), ids=WRONG)
def test_errors_never_repeat_a_text(plain, caplog, path, body, status, words):
    caplog.set_level(logging.DEBUG)
    result, _, response = plain.call(path, body)
    assert (result, response["error"]["code"]) == (status, status)
    assert words in response["error"]["message"]
    assert SECRET not in response["error"]["message"]
    # The access log is off; its handler is pytest's.
    logged = [record.getMessage() for record in caplog.records if record.name != "uvicorn.access"]
    assert SECRET not in str(logged)
    assert SECRET not in plain.call("/metrics")[2]
    assert plain.rewards(["p"], ["a b"]) == [2.0]


def test_the_host_is_checked_on_loopback(plain):
    for host in ("localhost", "127.0.0.1:8000", "[::1]:8000"):
        assert plain.call("/health", headers={"Host": host})[0] == 200
    status, _, response = plain.call("/health", headers={"Host": "evil.example"})
    assert (status, response["error"]["code"]) == (400, 400)
    assert "--allowed_host" in response["error"]["message"]
    assert accepted_hosts("0.0.0.0", []) == ["*"]  # noqa: S104
    assert "*" not in accepted_hosts("0.0.0.0", ["scores.example"])  # noqa: S104
    assert "scores.example" in accepted_hosts("127.0.0.1", ["scores.example"])


def request_bytes(body, path="/score", length=None):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    size = len(text) if length is None else length
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {size}\r\n\r\n"
    ).encode() + text


def test_a_body_that_is_too_large_closes_the_connection(plain):
    with socket.create_connection(("127.0.0.1", plain.port), timeout=PATIENCE) as raw:
        raw.sendall(request_bytes(b"x" * 30_000, length=10**9))
        heard = b""
        while piece := raw.recv(10_000):
            heard += piece
        assert b" 413 " in heard


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/openapi.json"])
def test_head_has_the_status_of_get(plain, path):
    assert plain.call(path, method="HEAD", headers={})[0] == 200


@pytest.mark.parametrize(
    ("form", "status"),
    [
        (None, 415),
        ("application/x-www-form-urlencoded", 415),
        ("text/plain", 415),
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
    ],
)
def test_the_body_has_to_be_called_json(plain, form, status):
    headers = {} if form is None else {"Content-Type": form}
    body = json.dumps({"prompt": "p", "stories": ["a b"]})
    result, _, response = plain.call("/score", body, headers)
    assert result == status
    assert status == 200 or "Content-Type: application/json" in response["error"]["message"]


def test_requests_take_turns():
    rater = Gated(batch_tokens=10)
    with serving(rater) as running, ThreadPoolExecutor(3) as pool:
        large = pool.submit(running.rewards, ["p"] * 400, ["abc"] * 400)
        running.wait_until(lambda: rater.seen)
        small = [pool.submit(running.rewards, ["p"] * 2, [word] * 2) for word in ("x", "y")]
        running.wait_until(lambda: running.metric("queue_stories") == 400 - 4 + 4)
        rater.may.set()
        assert [item.result() for item in small] == [[1.0] * 2] * 2
        assert large.result() == [3.0] * 400
    before = rater.seen[: 1 + max(at for at, batch in enumerate(rater.seen) if "y" in batch)]
    assert sum(batch.count("abc") for batch in before) < 20


def test_full_queue_gives_retry_after():
    rater = Gated()
    with (
        serving(rater, ServerLimits(max_waiting_stories=4)) as running,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(running.rewards, ["p"] * 4, ["abc"] * 4)
        running.wait_until(lambda: rater.seen)
        status, headers, response = running.call("/score", {"prompt": "p", "stories": ["x"] * 4})
        assert status == 503
        assert int(headers["retry-after"]) >= 1
        assert "3 stories are waiting" in response["error"]["message"]
        rater.may.set()
        assert first.result() == [3.0] * 4


def test_timeout_frees_the_queue():
    rater = Gated()
    with serving(rater, ServerLimits(timeout_s=0.5)) as running:
        assert running.call("/score", {"prompt": "p", "stories": ["x"] * 50})[0] == 504
        running.wait_until(lambda: running.metric("queue_stories") == 0)
        rater.may.set()
        # On a busy machine this may take more than half a second, too.
        running.wait_until(
            lambda: running.call("/score", {"prompt": "p", "stories": ["ab"]})[0] == 200
        )
        assert rater.count("x") == 1


def test_percentiles_stand_beside_the_rewards():
    rater, results = longer(), []
    with serving(rater) as running:
        for rater.reward_quantiles in ([0.0, 4.0], None):
            _, _, response = running.call("/score", {"prompt": "p", "stories": ["a b c", "a"]})
            results.append(response["reward_percentiles"])
    assert results == [[75.0, 25.0], None]


def test_flags_stand_beside_the_rewards(braces_are_code):
    del braces_are_code
    with serving(longer()) as running:
        _, _, response = running.call("/score", {"prompt": "p", "stories": ["a b", "{a}"]})
    assert response["is_prose"] == response["like_training"] == [True, False]
    assert response["reasons"] == [[], ["code", "braces"]]


def test_every_request_but_health_needs_the_token(caplog):
    caplog.set_level(logging.DEBUG)
    with serving(longer(), token="sesame-42") as running:  # noqa: S106
        body = {"prompt": "p", "stories": ["a b"]}
        assert running.call("/score", body, {**JSON, "Authorization": "Bearer sesame-42"})[0] == 200
        for same in ("bearer sesame-42", "BEARER  sesame-42"):
            assert running.call("/metrics", headers={"Authorization": same})[0] == 200
        for wrong in (
            "Bearer sesame-4",
            "Bearer sesame-422",
            "Bearer Sesame-42",
            "Bearersesame-42",
            "Basic sesame-42",
            "sesame-42",
            "Bearer",
            "",
            None,
        ):
            sent = {} if wrong is None else {"Authorization": wrong}
            status, headers, response = running.call("/score", body, {**JSON, **sent})
            assert status == 401
            assert headers["www-authenticate"] == "Bearer"
            assert "sesame" not in str(response)
        assert running.call("/health")[0] == 200
    assert "sesame" not in caplog.text


# The model ----------------------------------------------------------------------------------


@dataclass
class Picky(ScoreRater):
    """Raises for some stories and returns NaN for others."""

    name: str = "picky"
    kind: str = "picky"

    def score(self, prompts, stories):  # noqa: ARG002
        if stories == ["first"]:
            time.sleep(0.3)  # meanwhile the other requests queue up
        if any("broken" in story for story in stories):
            raise ValueError(f"cannot read {stories}")
        return np.array([math.nan if "odd" in story else 1.0 for story in stories])


def test_failing_story_fails_only_its_request(caplog):
    with serving(Picky()) as running, ThreadPoolExecutor(5) as pool:
        first = pool.submit(running.rewards, ["p"], ["first"])
        wanted = {"fine": 200, "broken": 500, "odd": 500, "good": 200}
        responses = pool.map(
            lambda word: running.call("/score", {"prompt": "p", "stories": [word, "x"]}), wanted
        )
        assert dict(zip(wanted, [response[0] for response in responses], strict=True)) == wanted
        assert first.result() == [1.0]
        assert running.metric("model_failures_total") >= 1
        assert running.rewards(["p"], ["x"]) == [1.0]
    assert "ValueError" in caplog.text
    assert "cannot read [" not in caplog.text


def test_shutdown_answers_accepted_requests():
    rater = Gated()
    with serving(rater) as running, ThreadPoolExecutor(5) as pool:
        queued = [pool.submit(running.rewards, ["p"] * 3, ["abc"] * 3) for _ in range(5)]
        # The model is scoring one story.
        running.wait_until(lambda: running.metric("queue_stories") == 14)
        running.uvicorn.handle_exit(signal.SIGTERM, None)
        running.wait_until(lambda: not running.uvicorn.servers[0].is_serving())
        rater.may.set()
        assert [item.result() for item in queued] == [[3.0] * 3] * 5
        running.thread.join(PATIENCE)
        with pytest.raises(OSError):
            running.call("/health")


# The command --------------------------------------------------------------------------------


def test_a_used_port_is_one_line_before_the_model_is_loaded(program, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = program("litbench serve", "--model", tmp_path / "none", "--port", port)
    assert done.returncode == 2
    assert re.fullmatch(r"error: cannot listen on 127.0.0.1, port \d+ .*\n", done.stderr)


@contextmanager
def process(*arguments):
    """Start the server in a separate process; yields its port and the process."""
    started = subprocess.Popen(
        [sys.executable, "-m", "litbench", "serve", "--port", "0", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        lines = []
        while not (result := re.search(r"running on http://127.0.0.1:(\d+)", "".join(lines))):
            lines.append(started.stderr.readline())
            assert lines[-1], "".join(lines)
        yield Running(int(result[1])), started
    finally:
        started.kill()
        started.wait()
        started.stderr.close()


def test_command_serves_until_stopped():
    with process("--rater", "{kind: longer}") as (running, started):
        assert running.rewards(["p"], ["a b c"]) == [3.0]
        started.send_signal(signal.SIGTERM)
        assert started.wait(PATIENCE) == 0


# Many clients -------------------------------------------------------------------------------


def test_large_requests_at_once_are_served():
    """40 bodies just below the default size limit, of 100 stories each."""
    stories = ["word " * 8_300] * 100
    body = json.dumps({"prompt": "p", "stories": stories})
    assert 0.95 * 4 * 2**20 < len(body) < 4 * 2**20
    with serving(longer()) as running, ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: running.call("/score", body), range(40)))
    assert Counter(status for status, _, _ in answers) == {200: 40}
    assert all(content["rewards"] == [8_300.0] * 100 for _, _, content in answers)


@pytest.mark.parametrize(
    ("good", "hostile", "seconds"),
    [(20, 6, 2), pytest.param(200, 60, 60, marks=pytest.mark.long)],
)
def test_hostile_clients_change_no_reward(good, hostile, seconds, model, texts, local):
    prompts, stories = texts
    garbage = [item for item in WRONG.values() if item[2] in (400, 404) or item[3] == "JSON"]
    seen, wrong = Counter(), []

    def ask(source):
        rows = [source.randrange(len(stories)) for _ in range(source.randint(1, 4))]
        body = {"prompt": [prompts[k] for k in rows], "stories": [stories[k] for k in rows]}
        status, _, result = running.call("/score", body)
        seen[f"good {status}"] += 1
        if status == 200 and not np.allclose(result["rewards"], local[rows], **WITHIN):
            wrong.append(rows)

    def send_garbage(source):
        path, body, status, _ = source.choice(garbage)
        result = running.call(path, body)[0]
        seen["garbage refused" if result in (status, 503) else f"garbage {result}"] += 1

    def name_wrong_host(_):
        result = running.call("/score", "{}", {**JSON, "Host": "evil.example"})[0]
        seen["host refused" if result in (400, 503) else f"host {result}"] += 1

    def hear(raw):
        with contextlib.suppress(ConnectionError):
            return raw.recv(100)[9:12]
        return b""

    def send_raw(name, sent, statuses):
        with socket.create_connection(("127.0.0.1", running.port), PATIENCE) as raw:
            with contextlib.suppress(ConnectionError):
                raw.sendall(sent)
            result = hear(raw)
        seen[f"{name} refused" if result in statuses else f"{name} {result}"] += 1

    def send_too_much(_):
        send_raw("huge", request_bytes(b"x" * 2**20, length=10**9), (b"413", b"503", b""))

    def leave(source):
        with socket.create_connection(("127.0.0.1", running.port)) as raw:
            raw.sendall(request_bytes({"prompt": "p", "stories": ["x"] * source.randint(1, 99)}))
        seen["left"] += 1

    attacks = [send_garbage, name_wrong_host, send_too_much, leave]

    def client(number):
        source, until = random.Random(number), time.monotonic() + seconds
        kind = ask if number < good else attacks[number % len(attacks)]
        while True:
            kind(source)
            if time.monotonic() > until:
                return

    limits = ServerLimits(max_body_bytes=20_000)
    with serving(model, limits) as running, ThreadPoolExecutor(good + hostile) as pool:
        list(pool.map(client, range(good + hostile)))
        running.wait_until(lambda: running.metric("queue_stories") == 0)
        assert running.metric("model_failures_total") == 0
    print(dict(seen))
    assert not wrong
    refused = {f"{name} refused" for name in ("garbage", "host", "huge")}
    assert seen.keys() <= {"good 200", "good 503", "good 504", "left", *refused}, seen
    assert min(seen[name] for name in ("good 200", "left", *refused)) > 0, seen
