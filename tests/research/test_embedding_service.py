"""Embeddings by a service, through openai's client: paid for once, kept, no key in messages."""

import json
from collections import Counter
from functools import partial

import numpy as np
import pytest

from litbench.data.text import digest
from litbench.research.embedding_service import Service
from litbench.research.embeddings import EmbeddingOptions, embed, normalised
from litbench.runs.errors import ConfigError, ModelError

httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")

KEY = "planted-key-of-the-fake-embedder"
MODEL = "openai-api/fake-embedder/small"


def vector_of(text):
    return [int(digest("v", k, text)[:4], 16) / 65_536 - 0.5 for k in range(6)]


@pytest.fixture
def serve(monkeypatch):
    """Answer the client's requests; `fault` names what is wrong with all of them."""
    monkeypatch.setenv("FAKE_EMBEDDER_BASE_URL", "http://service/v1")
    monkeypatch.setenv("FAKE_EMBEDDER_API_KEY", KEY)

    def start(fault=None):
        calls = []

        def answer(request):
            body = json.loads(request.content)
            key = request.headers["Authorization"].removeprefix("Bearer ")
            assert (request.url.path, body["model"], key) == ("/v1/embeddings", "small", KEY)
            calls.append(body["input"])
            if isinstance(fault, int):
                said = f"Incorrect API key provided: {key}" if fault == 401 else "slow down"
                return httpx.Response(fault, json={"error": {"message": said}})
            rows = [{"index": k, "embedding": vector_of(t)} for k, t in enumerate(body["input"])]
            if fault == "nan":
                rows[0]["embedding"] = [float("nan")] * 6
            content = {"data": rows[: -1 if fault == "fewer" else None][::-1], "model": "small-1"}
            text = "<html>a proxy</html>" if fault == "page" else json.dumps(content)
            kind = "text/html" if fault == "page" else "application/json"
            return httpx.Response(200, text=text, headers={"Content-Type": kind})

        client = httpx.Client(transport=httpx.MockTransport(answer))
        monkeypatch.setattr(openai, "OpenAI", partial(openai.OpenAI, http_client=client))
        return calls

    return start


def fetch(texts, folder, **options):
    return embed(texts, EmbeddingOptions(MODEL, **options), folder)


def test_every_text_is_embedded_once(serve, tmp_path):
    calls = serve()
    texts = [f"story {k} of the moon" for k in range(150)] + ["story 3 of the moon"]
    vectors, notes = fetch(texts, tmp_path)
    expected = normalised(np.array([vector_of(text) for text in texts]))
    assert np.allclose(vectors, expected, atol=1e-6)
    assert vectors.dtype == np.float32
    assert Counter(text for call in calls for text in call) == Counter(set(texts))
    assert max(map(len, calls)) == 32
    assert notes["tokens"] == pytest.approx(sum(len(t) for t in set(texts)) / 4, rel=0.2)
    counts = (notes[name] for name in ("texts", "windows", "tokens_cut"))
    assert tuple(counts) == (150, 150, 0)
    asked = len(calls)
    again, noted = fetch(texts, tmp_path)
    assert len(calls) == asked
    assert (again == vectors).all()
    assert noted == notes
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or KEY.encode() not in file.read_bytes()


def test_a_killed_run_pays_for_nothing_twice(serve, tmp_path, monkeypatch):
    calls = serve()
    texts = [f"story {k}" for k in range(200)]
    request = Service._request

    def until_killed(self, windows):
        if len(calls) == 3:
            raise KeyboardInterrupt
        return request(self, windows)

    with monkeypatch.context() as patched:
        patched.setattr(Service, "_request", until_killed)
        with pytest.raises(KeyboardInterrupt):
            fetch(texts, tmp_path / "killed")
    assert sum(map(len, calls)) == 3 * 32
    resumed, _ = fetch(texts, tmp_path / "killed")
    assert sum(map(len, calls)) == 200
    whole, _ = fetch(texts, tmp_path / "whole")
    assert (whole == resumed).all()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (400, r"slow down.*max_tokens.*are stored"),
        (401, r"withheld: the message contains an API key"),
        ("fewer", "2 texts gave"),
        ("nan", "2 texts gave"),
        ("page", "fake-embedder/small"),
    ],
)
def test_permanent_failure_does_not_show_the_key(serve, tmp_path, fault, said):
    calls = serve(fault)
    with pytest.raises(ModelError, match=said) as error:
        fetch(["one story", "another"], tmp_path)
    assert len(calls) == 1
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
    calls = serve()
    cut, notes = fetch([text, "short"], tmp_path, max_tokens=100, long_stories="cut")
    assert len(calls) == notes["longer_than_a_window"] == 1
    first = next(sent for sent in calls[0] if sent != "short")
    assert text.startswith(first)
    assert 0.85 * 200 < len(first.encode()) <= 200
    lost = len(text.rstrip().encode()) - len(first.encode())
    assert notes["tokens_cut"] == pytest.approx(lost / 4, abs=4)
    assert np.allclose(cut[0], normalised(vector_of(first)), atol=1e-6)
    whole, notes = fetch([text, "short"], tmp_path, max_tokens=100)
    assert notes["tokens_cut"] == 0
    windows = Service(MODEL, 100, cuts=False)._windows(text)
    assert "".join(windows).rstrip() == text.rstrip()
    assert max(len(window.encode()) for window in windows) <= 200
    weights = [len(window.encode()) for window in windows]
    mean = np.average([vector_of(window) for window in windows], axis=0, weights=weights)
    assert np.allclose(whole[0], normalised(mean), atol=1e-6)
    assert np.allclose(whole[1], normalised(vector_of("short")), atol=1e-6)
