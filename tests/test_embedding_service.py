"""Embeddings by a service, against a server on loopback: paid for once, kept, limited, silent."""

import json
from collections import Counter

import numpy as np
import pytest
from loopback import Handler, Loopback

from litbench.errors import ConfigError, ModelError
from litbench.models.embedding_service import Service
from litbench.models.embeddings import EmbeddingOptions, EmbeddingStore, embed, normalised
from litbench.text import digest

KEY = "planted-key-of-the-fake-embedder"
MODEL = "openai-api/fake-embedder/small"


def vector_of(text):
    return [int(digest("v", k, text)[:4], 16) / 65_536 - 0.5 for k in range(6)]


class FakeEmbedder(Loopback):
    """The server; `fault` names what strikes a request by its number."""

    def __init__(self, fault=lambda _: None):
        self.fault = fault
        self.requests = 0
        self.sent: list[list[str]] = []
        self.answered: Counter[str] = Counter()
        super().__init__(_Handler)
        self.url += "/v1"


class _Handler(Handler):
    def do_POST(self):
        fake = self.server.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        given = self.headers["Authorization"].removeprefix("Bearer ")
        assert (self.path, body["model"]) == ("/v1/embeddings", "small")
        with fake.lock:
            fake.requests += 1
            fault = fake.fault(fake.requests)
            fake.sent.append(body["input"])
        if given != KEY or fault == "401":
            self._send(401, {"error": {"message": f"Incorrect API key provided: {given}"}})
        elif fault == "reset":
            self.reset()
        elif fault == "page":
            self._send(200, "<html>a proxy of somebody</html>")
        elif fault == "quota":
            self._send(429, {"error": {"message": "pay first", "code": "insufficient_quota"}})
        elif fault is not None and fault.isdigit():
            self._send(int(fault), {"error": {"message": "slow down"}})
        else:
            self._embed(fake, body["input"], fault)

    def _embed(self, fake, texts, fault):
        rows = [
            {"object": "embedding", "index": k, "embedding": vector_of(text)}
            for k, text in enumerate(texts)
        ]
        if fault == "fewer":
            rows.pop()
        elif fault == "nan":
            rows[0]["embedding"] = [float("nan")] * 6
        else:
            with fake.lock:
                fake.answered.update(texts)
        usage = sum(len(text.encode()) for text in texts) // 4
        content = {
            "object": "list", "model": "small-1", "data": rows[::-1],
            "usage": {"prompt_tokens": usage, "total_tokens": usage},
        }  # fmt: skip
        self._send(200, content)

    def _send(self, status, content):
        is_page = isinstance(content, str)
        data = content.encode() if is_page else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if is_page else "application/json")
        self.send_header("Content-Length", str(len(data)))
        # Its own waits are half a second and more.
        self.send_header("retry-after-ms", "1")
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def serve(monkeypatch):
    started = []

    def start(fault=lambda _: None):
        server = FakeEmbedder(fault).__enter__()
        started.append(server)
        monkeypatch.setenv("FAKE_EMBEDDER_BASE_URL", server.url)
        monkeypatch.setenv("FAKE_EMBEDDER_API_KEY", KEY)
        return server

    yield start
    for server in started:
        server.__exit__()


def fetch(texts, folder, **options):
    return embed(texts, EmbeddingOptions(MODEL, **options), folder)


def unit(vectors):
    found = np.array(vectors, dtype=np.float64)
    return found / np.linalg.norm(found, axis=-1, keepdims=True)


def test_every_text_is_embedded_once_whatever_strikes(serve, tmp_path):
    kinds = ("429", "500", "503", "reset")
    server = serve(lambda number: kinds[number // 2 % 4] if number % 2 else None)
    texts = [f"story {k} of the moon" for k in range(150)] + ["story 3 of the moon"]
    found = fetch(texts, tmp_path)
    assert np.allclose(found.vectors, unit([vector_of(text) for text in texts]), atol=1e-6)
    assert found.vectors.dtype == np.float32
    assert server.answered == Counter(set(texts))
    assert max(map(len, server.sent)) <= 32
    assert server.requests > 8
    assert found.notes["tokens"] == pytest.approx(sum(len(t) for t in set(texts)) / 4, rel=0.2)
    assert (found.notes["texts"], found.notes["windows"], found.notes["tokens_cut"]) == (
        150,
        150,
        0,
    )
    asked = server.requests
    again = fetch(texts, tmp_path)
    assert server.requests == asked
    assert (again.vectors == found.vectors).all()
    assert again.notes == found.notes
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or KEY.encode() not in file.read_bytes()


def test_a_killed_run_pays_for_nothing_twice(serve, tmp_path, monkeypatch):
    server = serve()
    texts = [f"story {k}" for k in range(200)]
    kept = []
    once = EmbeddingStore.keep

    def until_killed(self):
        once(self)
        kept.append(1)
        if len(kept) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EmbeddingStore, "keep", until_killed)
        with pytest.raises(KeyboardInterrupt):
            fetch(texts, tmp_path / "killed")
    assert sum(server.answered.values()) == 3 * 32
    resumed = fetch(texts, tmp_path / "killed")
    assert set(server.answered.values()) == {1}
    whole = fetch(texts, tmp_path / "whole")
    assert (whole.vectors == resumed.vectors).all()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("400", r"slow down.*max_tokens.*are stored"),
        ("401", r"withheld: the message contains an API key"),
        ("fewer", "2 texts were sent"),
        ("nan", "2 texts were sent"),
        ("page", "fake-embedder/small"),
    ],
)
def test_permanent_failure_does_not_show_the_key(serve, tmp_path, fault, said):
    server = serve(lambda _: fault)
    with pytest.raises(ModelError, match=said) as error:
        fetch(["one story", "another"], tmp_path)
    assert server.requests == 1
    assert KEY not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_key_or_address_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("FAKE_EMBEDDER_API_KEY", raising=False)
    monkeypatch.delenv("FAKE_EMBEDDER_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match="FAKE_EMBEDDER_API_KEY is not set"):
        fetch(["one"], tmp_path)
    monkeypatch.setenv("FAKE_EMBEDDER_API_KEY", KEY)
    with pytest.raises(ConfigError, match="FAKE_EMBEDDER_BASE_URL is not set"):
        fetch(["one"], tmp_path)
    with pytest.raises(ConfigError, match="SERVICE/MODEL"):
        embed(["one"], EmbeddingOptions("openai-api/x"), tmp_path)


@pytest.mark.parametrize("text", ["moon and river, " * 40, "月光下的路" * 60, "x" * 700 + " \n "])
def test_long_stories_in_windows_or_cut(serve, tmp_path, text):
    server = serve()
    cut = fetch([text, "short"], tmp_path, max_tokens=100, long_stories="cut")
    assert server.requests == 1
    assert cut.notes["longer_than_a_window"] == 1
    first = next(sent for sent in server.answered if sent != "short")
    assert text.startswith(first)
    assert 0.85 * 200 < len(first.encode()) <= 200
    lost = len(text.rstrip().encode()) - len(first.encode())
    assert cut.notes["tokens_cut"] == pytest.approx(lost / 4, abs=4)
    assert np.allclose(cut.vectors[0], normalised(vector_of(first)), atol=1e-6)
    whole = fetch([text, "short"], tmp_path, max_tokens=100)
    assert whole.notes["tokens_cut"] == 0
    windows = Service(MODEL, 100, cuts=False)._windows(text)
    assert "".join(windows).rstrip() == text.rstrip()
    assert max(len(window.encode()) for window in windows) <= 200
    weights = [len(window.encode()) for window in windows]
    mean = np.average([vector_of(window) for window in windows], axis=0, weights=weights)
    assert np.allclose(whole.vectors[0], normalised(mean), atol=1e-6)
    assert np.allclose(whole.vectors[1], normalised(vector_of("short")), atol=1e-6)
