"""The client retries failures, respects limits and sends no stored question again."""

import gc
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_openai import FAULTS, KEY, FakeOpenAI

from litbench.judges.answers import (
    Answer,
    AnswerStore,
    Attempt,
    Sampling,
    identity,
    keys_of,
    local_folder,
)
from litbench.judges.client import (
    REPEATING,
    WITHHELD,
    Connections,
    Traffic,
    estimate_tokens,
    first_connections,
    is_local,
    is_truncated,
    without_secrets,
)
from litbench.judges.prices import Price
from litbench.judges.session import JUDGE, Models, Role, ask
from litbench.raters.templates.parser import LONGEST_REPLY
from litbench.runs.errors import ConfigError, DataError, MissingExtraError, ModelError

pytest.importorskip("inspect_ai")
pytest.importorskip("openai")

# Long enough for a busy machine; tests of timeouts set a shorter one.
QUICK = Traffic(first_wait_seconds=0.01, timeout_seconds=60)
QUESTIONS = [f"Is {k} a good number? Answer {{story_a}} or é." for k in range(30)]
OLD_KEYS = [
    "d339efe0d6ca9dadeb22656e12d5a900",
    "334f9270e0d97a82a0d1f6261e63b302",
    "de3b15d15897f7e45cb5aabc9e26de4a",
    "5a7925e76035ff9fa149075321454430",
]


LINE = {"key": "old", "asked": "a/m", "reserved": [1, 1], "batched": False, "attempt": "1"}


def echo(question):
    return f"You asked: {question}"


def serve(**behaviour):
    return FakeOpenAI(echo, **behaviour)


@pytest.fixture
def server():
    """A server without failures."""
    with serve() as server:
        yield server


def models_of(model, traffic=QUICK, sampling=None, price=None):
    role = Role(model, sampling or Sampling(), traffic)
    return Models({}, {JUDGE: role}, {} if price is None else {model: price})


def run(server, folder, questions=None, traffic=QUICK, sampling=None, models=None):
    with AnswerStore(folder) as store:
        asked = QUESTIONS if questions is None else questions
        return ask(models or models_of(server.model, traffic, sampling), asked, store, "answers")


def put(store, key, answer):
    store.put(answer, Attempt(key, "a/m", (0, 0)))


def dollars_of(models):
    return models.budgets["role", JUDGE].dollars


def test_answers_keep_order_and_are_stored(server, tmp_path):
    asked = [*QUESTIONS, QUESTIONS[3]]
    answers = run(server, tmp_path, asked, Traffic(connections=1))
    assert list(server.asked) == sorted(QUESTIONS), "sorted by prefix"
    assert [answer.text for answer in answers] == list(map(echo, asked))
    first = answers[0]
    assert (first.outcome, first.model, first.detail) == ("answered", "judge-1", None)
    words = len(QUESTIONS[0].split())
    assert (first.input_tokens, first.cached_tokens) == (words, 7), "input includes cached tokens"
    assert first.output_tokens == words + 2
    assert first.seconds is not None
    assert server.asked == Counter(QUESTIONS), "duplicates are sent once"
    assert run(server, tmp_path, asked[::-1]) == answers[::-1]
    assert server.requests == len(QUESTIONS)


def test_answers_depend_on_model_question_and_sampling(server, tmp_path):
    question = QUESTIONS[:1]
    run(server, tmp_path, question)
    body = server.bodies[question[0]]
    assert (body["temperature"], body["max_tokens"]) == (0, 1024)
    assert "top_p" not in body
    run(server, tmp_path, question, traffic=Traffic(connections=3))
    assert server.requests == 1, "traffic is not part of the key"
    sampling = Sampling(temperature=0.5, max_tokens=None, top_p=0.9, seed=4)
    run(server, tmp_path, question, sampling=sampling)
    body = server.bodies[question[0]]
    assert (body["temperature"], body["top_p"], body["seed"]) == (0.5, 0.9, 4)
    run(server, tmp_path, question)
    assert server.requests == 2, "restoring the options finds the stored answers"


def test_conversation_as_question(server, tmp_path):
    talk = [("system", "Be brief."), ("user", "Which?"), ("assistant", "A."), ("user", "Sure?")]
    sampling = Sampling(extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    (answer,) = run(server, tmp_path, [talk], sampling=sampling)
    assert answer.text == echo("Sure?")
    body = server.bodies["Sure?"]
    assert [(message["role"], message["content"]) for message in body["messages"]] == talk
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert run(server, tmp_path, [talk], sampling=sampling) == [answer]
    run(server, tmp_path, [talk[1:], "Sure?"], sampling=sampling)
    assert server.requests == 3, "each conversation is a different question"


def test_keys_are_stable(tmp_path):
    """With a different key, every stored answer would be paid for again."""
    questions = ["Which story is better?", "é"]
    assert keys_of("openai/gpt-4.1", questions, Sampling(), [0, 3]) == OLD_KEYS
    line = {**LINE, "key": OLD_KEYS[0], "outcome": "cut", "asked_utc": 1.5, "first_token": None}
    line["sha256"] = "c3b6dd7b184de205ebd658653ad43d0594489290fc87d8d78c29a2dc59eb8ad0"
    (tmp_path / "answers.jsonl").write_text(json.dumps(line))
    assert AnswerStore(tmp_path, read_only=True).get(OLD_KEYS[0]) == Answer("cut")


def test_local_model_key_is_its_content(tmp_path, monkeypatch):
    """A folder with the same name as a provider's model is ignored."""
    monkeypatch.chdir(tmp_path)
    before = keys_of("openai/one", ["q"], Sampling())
    for name, weights in (("one", "a"), ("copy", "a"), ("other", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(weights)
    identity.cache_clear()
    keys = [keys_of(f"hf/{name}", ["q"], Sampling()) for name in ("one", "copy", "other")]
    assert keys[0] == keys[1] != keys[2]
    assert keys_of("openai/one", ["q"], Sampling()) == before
    assert local_folder("openai/one") is local_folder("hf/") is local_folder("hf") is None
    assert local_folder("vllm/one") == Path("one")


# Failures -------------------------------------------------------------------------------------


def test_temporary_failures_are_retried(tmp_path):
    questions = [f"Question {k}" for k in range(60)]
    kinds = [kind for kind in FAULTS if kind != "hang"]

    def every_third(number, _):
        return kinds[number // 3 % len(kinds)] if number % 3 == 0 else None

    with serve(faults=every_third) as server:
        answers = run(server, tmp_path, questions)
        while any(answer.outcome == "error" for answer in answers):
            answered = {q for q, a in zip(questions, answers, strict=True) if a.outcome != "error"}
            before = server.asked.copy()
            answers = run(server, tmp_path, questions)
            assert not answered & (server.asked - before).keys(), "only errors are retried"
    assert [answer.text for answer in answers] == list(map(echo, questions))
    assert set(server.faults) == set(kinds)


def test_timeout_is_retried(tmp_path):
    hasty = replace(QUICK, timeout_seconds=1)
    started = time.monotonic()
    with serve(
        faults=lambda number, _: "hang" if number <= 3 else None, hang_seconds=300
    ) as server:
        answers = run(server, tmp_path, QUESTIONS[:6], hasty)
    assert [answer.outcome for answer in answers] == ["answered"] * 6
    assert server.faults["hang"] == 3
    assert time.monotonic() - started < 200, "the timeout ended the request"


def test_refusals_and_truncated_answers_are_stored(tmp_path):
    manners = dict(zip(QUESTIONS, ("refusal", "filter", "length", "no choice", None), strict=False))
    with serve(manners=manners.get) as server:
        answers = run(server, tmp_path, QUESTIONS[:5])
        outcomes = [answer.outcome for answer in answers]
        assert outcomes == ["refused", "refused", "cut", "error", "answered"]
        assert answers[0].text == "I would rather not judge this."
        assert answers[2].text, "truncated text is stored"
        assert "empty" in str(answers[3].detail)
        assert server.asked[QUESTIONS[3]] == 2, "empty answers are retried once"
        before = server.asked.copy()
        assert [item.outcome for item in run(server, tmp_path, QUESTIONS[:5])] == outcomes
        assert set(server.asked - before) == {QUESTIONS[3]}


def test_lone_surrogates_are_replaced(tmp_path):
    """In the text, the refusal, the model's name and the provider's message; also if stored."""
    bad = "A \ud800 and \udfff, \ud83d\ude00"
    with serve(manners={"r": "refusal"}.get) as server:
        server.answers["judge"] = lambda _: bad
        server.name, server.refusal = f"judge {bad}", f"I would not. {bad}"
        answers = run(server, tmp_path, ["q", "r"])
        assert answers[0].text == "A \ufffd and \ufffd, 😀"
        assert answers[0].model == "judge A \ufffd and \ufffd, 😀"
        assert answers[1].text == "I would not. A \ufffd and \ufffd, 😀"
        talk = [("user", "q"), ("assistant", answers[0].text), ("user", "And?")]
        assert run(server, tmp_path, [talk])[0].outcome == "answered", "as part of a question"
    with serve(faults=lambda *_: "400", complaint=bad) as server:
        (answer,) = run(server, tmp_path, ["other"], replace(QUICK, max_retries=0))
        assert "A \ufffd and \ufffd, 😀" in answer.detail
    line = {**LINE, "outcome": "answered", "text": bad, "model": bad, "detail": bad}
    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    stored = AnswerStore(tmp_path, read_only=True).get("old")
    assert {stored.text, stored.model, stored.detail} == {"A \ufffd and \ufffd, 😀"}


def test_answers_are_cut_before_anything_reads_them():
    answer = Answer("answered", "# " * 2**19)
    assert (answer.outcome, answer.text) == ("cut", "# " * (LONGEST_REPLY // 2))
    assert Answer("answered", "x" * LONGEST_REPLY).outcome == "answered"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<think " * 32_000, "more than 64 tags <think>"),
        ("<think>" * 32_000, "more than 64 tags <think>"),
        ("<think a>b</think" * 10_000, "more than 64 tags <think>"),
        ("word " * 10**6, "more than 4,194,304 bytes"),
    ],
)
def test_long_or_slow_responses_are_errors(text, said, tmp_path, monkeypatch):
    """They are not parsed, and not requested again; the tokens that they report are charged."""

    def parse(_):
        raise AssertionError("inspect-ai parses the answer")

    with serve() as server:
        server.answers["judge"] = lambda _: text
        with monkeypatch.context() as patch:
            patch.setattr("inspect_ai.model._openai.parse_content_with_reasoning", parse)
            models = models_of(server.model, price=Price(1.0, 1.0))
            (answer,) = run(server, tmp_path, ["q"], models=models)
        assert (answer.outcome, answer.detail) == (
            "error",
            f"ResponseError: the response has {said}",
        )
        assert dollars_of(models) == pytest.approx(server.dollars(Price(1.0, 1.0)))
        assert server.requests == 1
        server.answers["judge"] = lambda _: "<think>So.</think> A long answer. " * 60
        assert run(server, tmp_path, ["q"])[0].outcome == "answered", "in the next run"


def test_an_empty_answer_after_a_failure_is_retried(tmp_path):
    with serve(faults=lambda number, _: {1: "no json", 2: "empty"}.get(number)) as server:
        (answer,) = run(server, tmp_path, QUESTIONS[:1])
        assert answer.outcome == "answered"
        assert server.requests == 3


def error_of(message, **more):
    return {"error": {"message": message, **more}}


def in_choice(content):
    """An error inside the choice of a response with status 200."""
    choice = {"index": 0, "finish_reason": "error", "message": {"role": "assistant", "content": ""}}
    return {**content, "choices": [{**choice, **error_of("Upstream failed", code=502)}]}


def with_choice(reason, content="", **message):
    """Change the reason and the message of a good response."""

    def change(response):
        message_of = {"role": "assistant", "content": content, **message}
        choice = {"index": 0, "finish_reason": reason, "message": message_of}
        return {**response, "choices": [choice]}

    return change


# What a server sends, what the detail contains, and whether repeating is advised against.
ERRORS = {
    "key": ((401, error_of("Incorrect API key", code="invalid_api_key")), "Incorrect API", "key"),
    "FastAPI": ((401, {"detail": "Unauthorized"}), "Unauthorized", "key"),
    "credit": ((402, error_of("Insufficient credits", code=402)), "Insufficient", "credit"),
    "quota": ((429, error_of("Check your plan", code="insufficient_quota")), "plan", "credit"),
    "region": ((403, error_of("Country is not supported", code="x")), "Country", "key"),
    "model": ((404, error_of("The model `x` does not exist")), "does not exist", "name"),
    "pull": ((404, error_of('model "x" not found, try pulling it first')), "pulling", "name"),
    "page": ((404, {"detail": "Not Found"}), "Not Found", "name"),
    "method": ((405, {"detail": "Method Not Allowed"}), "Not Allowed", "name"),
    "context": ((400, error_of("maximum context length is 4096 tokens")), "4096", "context"),
    "prompt": ((400, error_of("prompt is too long: 9000 tokens > 4096")), "9000", "context"),
    "window": ((500, error_of("exceeds the available context size")), "available", "context"),
    "count": ((400, error_of("The input token count exceeds the maximum")), "count", "context"),
    "payload": ((413, error_of("Payload too large")), "too large", "options"),
    "option": ((400, error_of("'temperature' is unsupported")), "temperature", "options"),
    "validation": ((422, {"detail": [{"msg": "Field required"}]}), "Field required", "options"),
    "body": ((200, error_of("Provider returned error", code=502)), "Provider returned", None),
    "key in body": ((200, error_of("Bad token", code=401)), "Bad token", "key"),
    "text in body": ((200, {"error": "out of memory"}), "out of memory", None),
    "object": ((200, {"object": "error", "message": "no slot"}), "no slot", None),
    "choice": (in_choice, "Upstream failed", None),
    "no choices": (lambda content: {**content, "choices": None}, "the answer is empty", None),
    "overloaded": ((529, error_of("Overloaded")), "Overloaded", None),
    "rate": ((429, error_of("Rate limit: 100 tokens per minute")), "per minute", None),
    "memory": ((500, {"detail": "CUDA out of memory"}), "CUDA", None),
}
BLOCKS = {
    "Gemini": (400, error_of("Gemini blocked the request: PROHIBITED_CONTENT", code=400)),
    "OpenRouter": (403, error_of("This model requires moderation. Your input was flagged.")),
    "OpenAI": (400, error_of("Your prompt was flagged: it violates our usage policy", code="x")),
    "Azure": (400, error_of("The response was filtered", code="content_filter")),
    "Anthropic": (400, error_of("Output blocked by content filtering policy")),
    "xAI": (403, error_of("Content violates usage guidelines")),
    "Qwen": (400, error_of("May contain inappropriate content", code="data_inspection_failed")),
    "DeepSeek": (400, error_of("Content Exists Risk")),
    "Bedrock": (400, error_of("The guardrail blocked this input")),
    "in a body": (200, error_of("Your input was flagged by moderation", code=403)),
    **{
        reason: with_choice(reason)
        for reason in ("SAFETY", "refusal", "content_filter", "PROHIBITED_CONTENT", "RECITATION")
    },
    "message": with_choice("stop", None, refusal="I would rather not."),
}
NO_BLOCKS = {
    "account": (403, error_of("Your account is blocked")),
    "address": (403, error_of("Access from your IP is blocked by the firewall")),
    "other": (400, error_of("The field content is missing")),
}
PATIENT = replace(QUICK, max_retries=0, give_up_after=100, connections=1)


def answers_to(manners, folder, traffic=PATIENT):
    """The answers to questions with these names, after a good one; and how often each was sent."""
    with serve(manners=manners.get) as server:
        _, *answers = run(server, folder, ["", *manners], traffic)
    return dict(zip(manners, answers, strict=True)), server.answered


def test_errors_give_their_cause_and_only_some_are_retried(tmp_path):
    once = replace(PATIENT, max_retries=1, first_wait_seconds=0)
    manners = {name: row[0] for name, row in ERRORS.items()}
    answers, sent = answers_to(manners, tmp_path, once)
    for name, (_, message, advice) in ERRORS.items():
        detail = str(answers[name].detail)
        assert (answers[name].outcome, message in detail) == ("error", True), (name, detail)
        assert (REPEATING in detail, (advice or "") in detail) == (advice is not None, True), detail
        assert sent[name] == 1 + (advice is None), name
    _, sent = answers_to({name: manners[name] for name in ("context", "rate")}, tmp_path)
    assert (sent["context"], sent["rate"]) == (1, 1), "asked again by the next run"


def test_blocks_by_a_provider_are_refusals(tmp_path):
    answers, _ = answers_to({**BLOCKS, **NO_BLOCKS}, tmp_path)
    for name in BLOCKS:
        assert answers[name].outcome == "refused", (name, answers[name].detail)
    for name in NO_BLOCKS:
        assert answers[name].outcome == "error", name
    _, sent = answers_to(BLOCKS, tmp_path)
    assert not sent, "refusals are stored"


@pytest.mark.parametrize("status", [401, 404])
def test_a_model_that_cannot_answer_is_asked_once(status, tmp_path):
    with serve(manners=lambda _: (status, error_of("No."))) as server:
        answers = run(server, tmp_path, QUESTIONS, PATIENT)
        assert server.requests == 1
    assert {(answer.outcome, REPEATING in str(answer.detail)) for answer in answers} == {
        ("error", True)
    }


def without(key, **more):
    return lambda content: {**{k: v for k, v in content.items() if k != key}, **more}


# Responses with status 200 that are no chat completion, and what their error contains.
MALFORMED = {
    "page": (b"<!DOCTYPE html><title>Sign in</title>", "an HTML page: Sign in"),
    "page after a space": (b"\n <html><p>Portal</p></html>", "an HTML page: Portal"),
    "XML": (b"<error>none</error>", "an HTML page: none"),
    "text": (b"Preferred: A", "plain text: Preferred: A"),
    "event stream": (b'data: {"choices": []}\n\ndata: [DONE]\n', "event stream: data"),
    "comment of a stream": (b": keep-alive\n\ndata: {}\n", "event stream: : keep-alive"),
    "number": (3, "response: Input should be an object): 3"),
    "null": (None, "): null"),
    "string": ("Preferred: A", '): "Preferred'),
    "list": ([{"generated_text": "A"}], "generated_text"),
    "greeting": ({"message": "Welcome", "version": 1}, "Welcome"),
    "status": ({"detail": "Not found"}, "Not found"),
    "Ollama": ({"message": {"content": "A"}, "done": True}, "choices: Field required"),
    "no choices": (without("choices"), "choices: Field required"),
    "text completion": (without("choices", choices=[{"text": "A"}]), "0.message: Field required"),
    "chunk": (without("choices", choices=[{"delta": {"content": "A"}}]), "delta"),
    "choices": (without("choices", choices={"message": "A"}), "choices: Input should be"),
    "choice": (without("choices", choices=["A"]), 'choices.0: Input should be an object): "A"'),
    "message": (with_choice("stop", [1, 2]), "content: Input should be a valid string): [1, 2]"),
    "content": (with_choice("stop", 7), "content: Input should be a valid string): 7"),
    "object as content": (with_choice("stop", {"preferred": "A"}), '): {"preferred": "A"}'),
    "boolean": (with_choice("stop", True), "): true"),
    "key": ({"message": f"bad key {KEY}"}, WITHHELD),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_response_that_is_no_chat_completion_names_its_form(name, tmp_path):
    response, message = MALFORMED[name]
    manner = response if callable(response) else (200, response)
    with serve(manners=lambda _: manner) as server:
        answers = run(server, tmp_path, QUESTIONS, replace(PATIENT, max_retries=6))
        assert server.requests == 2, "once more, in case it was an accident"
    (detail,) = {answer.detail for answer in answers}
    assert message in detail
    assert "check the model's name and the base URL" in detail
    assert REPEATING in detail


def test_a_malformed_response_among_answers_may_be_an_accident(tmp_path):
    manners = dict.fromkeys(("page", "another"), (200, b"<p>Wait</p>"))
    manners |= {"broken": (200, b'{"choices": [{"mess'), "empty": (200, b"  ")}
    # This one is billed.
    manners["number"] = with_choice("stop", 7)
    answers, sent = answers_to(manners, tmp_path, replace(PATIENT, max_retries=3))
    assert [sent[name] for name in manners] == [4, 4, 4, 4, 2]
    assert {answer.outcome for answer in answers.values()} == {"error"}
    assert not [answer for answer in answers.values() if REPEATING in str(answer.detail)]


def test_content_in_parts_is_read(tmp_path):
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    parts = [thought, {"type": "text", "text": "Preferred: "}, {"type": "text", "text": "A"}]
    manners = {"parts": with_choice("stop", parts), "one": with_choice("STOP", {"text": "B"})}
    answers, _ = answers_to(manners, tmp_path)
    assert [(answer.outcome, answer.text) for answer in answers.values()] == [
        ("answered", "Preferred: A"),
        ("answered", "B"),
    ]


def test_no_server_ends_the_run_at_once(tmp_path, monkeypatch):
    with serve() as server:
        pass
    for url in (server.url, "http://no-such-host.invalid/v1"):
        monkeypatch.setenv("FAKE_API_KEY", KEY)
        monkeypatch.setenv("FAKE_BASE_URL", url)
        started = time.monotonic()
        with pytest.raises(ModelError, match=rf"no connection to its server at {url}: .*start"):
            run(server, tmp_path, QUESTIONS, Traffic())
        assert time.monotonic() - started < Traffic().first_wait_seconds * 10


@pytest.mark.parametrize("keys", [{"choices": [{"message": 3}]}, {"choices": None, "error": "x"}])
def test_usage_of_a_malformed_response_is_charged(keys, tmp_path):
    with serve(manners=lambda _: lambda content: {**content, **keys}) as server:
        models = models_of(server.model, PATIENT, price=Price(1.0, 1.0))
        run(server, tmp_path, ["q"], models=models)
        assert dollars_of(models) == pytest.approx(server.dollars(Price(1.0, 1.0)))


def test_redirects_are_not_followed(tmp_path):
    """The redirected request would be paid for twice."""
    with serve() as other, serve() as server:
        server.manners = lambda _: (307, {}, {"Location": f"{other.url}/chat/completions"})
        os.environ |= server.environment()
        answers = run(server, tmp_path, QUESTIONS[:3], PATIENT)
        assert (server.requests, other.requests) == (1, 0)
    assert "redirects are not followed" in str(answers[0].detail)


class SlowServer:
    """Answers one after the other, or `parallel` at a time."""

    def __init__(self, parallel):
        self.parallel, self.now = parallel, 0.0

    def answer(self, connections):
        self.now += 1 / min(connections.limit, self.parallel)
        connections.count_answer()


@pytest.mark.parametrize(("parallel", "limit"), [(1, 2), (8, 8), (100, 16)])
def test_connections_grow_while_the_server_gets_faster(parallel, limit):
    server = SlowServer(parallel)
    connections = Connections(2, 16, lambda: server.now)
    for _ in range(200):
        server.answer(connections)
    assert connections.limit == limit


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:8000/v1", True),
        ("http://127.0.0.1:8000/v1", True),
        ("http://192.168.1.7/v1", True),
        ("http://[::1]:8080/v1", True),
        ("http://gpu.local:1234/v1", True),
        ("https://api.example.com/v1", False),
        ("https://8.8.8.8/v1", False),
        ("", False),
    ],
)
def test_local_addresses(url, expected, monkeypatch):
    monkeypatch.setenv("MY_SERVER_BASE_URL", url)
    model = "openai-api/my-server/m"
    assert is_local(model) == expected
    assert first_connections(model, Traffic()) == (2 if expected else 16)
    assert first_connections(model, Traffic(connections=1, first_connections=4)) == 1
    monkeypatch.delenv("OLLAMA_BASE_URL", raising=False)
    assert (is_local("ollama/m"), is_local("openai/m")) == (True, False)


def test_gives_up_after_consecutive_errors(tmp_path):
    with serve(faults=lambda n, _: "400" if n > 20 else None) as server:
        few = Traffic(connections=2, max_retries=0, first_wait_seconds=0, give_up_after=3)
        with pytest.raises(ModelError, match="20 answers are stored"):
            run(server, tmp_path, [f"r{k}" for k in range(100)], traffic=few)
        assert server.requests < 40


def test_missing_key_provider_or_extra(server, monkeypatch, tmp_path):
    run(server, tmp_path, QUESTIONS[:1])
    with AnswerStore(tmp_path) as store:
        del os.environ["FAKE_API_KEY"]
        for model, said in ((server.model, "FAKE_API_KEY"), ("nobody/model", "nobody")):
            with pytest.raises(ConfigError, match=said):
                ask(models_of(model), ["q"], store, "answers")
    monkeypatch.setitem(sys.modules, "inspect_ai.model", None)
    assert run(server, tmp_path, QUESTIONS[:1])[0].text == echo(QUESTIONS[0]), "stored"
    with pytest.raises(MissingExtraError, match=r"litbench\[judge\]"):
        run(server, tmp_path, QUESTIONS[:2])


# Keys -----------------------------------------------------------------------------------------

SPELLINGS = {
    "plain": str,
    "in capitals": str.upper,
    "percent-encoded": lambda key: key.replace("-", "%2D"),
    "over lines": lambda key: "\n".join(re.findall(".{1,5}", key)),
    "in pieces": " ".join,
    "cut short": lambda key: key[: len(key) * 2 // 3],
    "at the end of what is shown": lambda key: "x " * 145 + key,
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_message_with_key_is_withheld(spelling, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", KEY)
    monkeypatch.setenv("SOME_BASE_URL", "http://me:pass-of-the-proxy@host/v1")
    for secret in (KEY, "pass-of-the-proxy"):
        assert without_secrets(f"bad key: {spelling(secret)}, sorry") == WITHHELD
    said = "the model is not well today at http://***@host/v1"
    assert without_secrets(said.replace("***", "me:pass-of-the-proxy")) == said


@pytest.mark.parametrize(
    ("fault", "code", "outcome"),
    [
        ("400", None, "error"),
        ("503", None, "error"),
        ("400", "content_filter", "refused"),
        ("400", "context_length_exceeded", "error"),
    ],
)
def test_provider_message_without_keys_and_questions(fault, code, outcome, tmp_path):
    once = replace(QUICK, max_retries=0)
    pieces = [KEY[start : start + 8] for start in range(len(KEY) - 7)]
    for complaint, said in (("not well today", "not well today"), ("x" * 280 + KEY, WITHHELD)):
        with serve(faults=lambda *_: fault, complaint=complaint, code=code) as server:
            (answer,) = run(server, tmp_path / complaint[:3], ["A story nobody may see"], once)
        assert answer.outcome == outcome
        assert said in f"{answer.detail} {answer.text}"
        stored = (tmp_path / complaint[:3] / "answers.jsonl").read_text()
        answers = AnswerStore(tmp_path / complaint[:3], read_only=True)
        assert len(answers) == (outcome != "error")
        for text in (f"{answer.detail} {answer.text}", stored):
            assert not [piece for piece in pieces if piece in text]
            assert "nobody may see" not in text


# The budget -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "attempts"), [("500", 1), ("400", 0), ("429", 0), ("reset", 1)])
def test_possible_cost_stays_reserved(fault, attempts, tmp_path):
    """Failed attempts report no tokens; a rejected request costs nothing."""
    traffic = replace(QUICK, max_retries=0)
    price = Price(input=0.0, output=1_000.0)
    with serve(faults=lambda *_: fault, retry_after="0.01") as server:
        models = models_of(server.model, traffic, Sampling(max_tokens=100), price)
        run(server, tmp_path, ["q"], models=models)
    assert dollars_of(models) == pytest.approx(attempts * 0.1)


def test_call_limit_stops_and_next_run_resumes(server, tmp_path):
    limited = Traffic(max_calls=12)
    for count in (12, 24):
        with pytest.raises(ConfigError, match=f"{count} of 30 questions are answered"):
            run(server, tmp_path, traffic=limited)
    assert len(run(server, tmp_path, traffic=limited)) == 30
    assert server.asked == Counter(QUESTIONS)
    models = models_of(server.model, limited)
    run(server, tmp_path / "again", QUESTIONS[:10], models=models)
    with pytest.raises(ConfigError, match=r"max_calls of 12 .*; 2 of 5"):
        run(server, tmp_path / "again", QUESTIONS[10:15], models=models)
    assert len(run(server, tmp_path / "again", QUESTIONS[:12], models=models)) == 12, (
        "stored answers are free"
    )


def test_number_of_connections(tmp_path):
    """Even if an earlier run in the same process used fewer connections."""
    for connections in (2, 8):
        enough = threading.Event()

        def hold(number, _, least=connections, go=enough):
            """Delay all answers until enough requests have arrived."""
            if number >= least:
                go.set()
            go.wait(30)

        with serve(on_request=hold, seconds=0.1) as server:
            traffic = Traffic(connections=connections, first_connections=connections)
            run(server, tmp_path / str(connections), QUESTIONS[:12], traffic)
            assert server.max_at_once == connections


def test_garbage_collections_skip_what_was_imported_only_while_asking(tmp_path):
    frozen = []
    gc.unfreeze()
    # The moment after an answer may come once the client has ended.
    before = {"before": frozen.append, "after": lambda _: None}
    count = gc.get_freeze_count
    with serve(on_request=lambda _, moment: before[moment](count())) as server:
        run(server, tmp_path, QUESTIONS[:2])
    assert min(frozen) > gc.get_freeze_count() == 0


@pytest.mark.long
def test_local_model_answers(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tiny_model("llama", head="language", chat=True)
    traffic = Traffic(connections=2, max_retries=0, first_wait_seconds=0)
    results = []
    for name in ("one", "two"):
        with AnswerStore(tmp_path / name) as store:
            models = models_of(f"hf/{folder}", traffic, Sampling(max_tokens=5))
            results += ask(models, ["Which?"], store, "answers")
    assert [(item.outcome, item.output_tokens) for item in results] == [("cut", 5)] * 2
    assert results[0].text == results[1].text, "at temperature 0"


@pytest.mark.parametrize(
    ("tokens", "counted", "truncated"),
    [(3, 24, False), (24, 24, True), (22, 24, True), (3, 4, False)],
)
def test_a_short_answer_of_a_local_batch_is_not_truncated(tokens, counted, truncated):
    """All answers of a batch have the number of tokens of its longest."""
    answer = Answer("answered", "word " * tokens, output_tokens=counted)
    tokenizer = SimpleNamespace(encode=lambda text, **_: text.split())
    assert is_truncated(answer, 24, tokenizer) == truncated


# The store ------------------------------------------------------------------------------------


def test_truncated_line_loses_one_answer(tmp_path):
    with AnswerStore(tmp_path) as store:
        for k in range(5):
            put(store, f"k{k}", Answer("answered", f"text\n{k} \ud800 é"))
    path = tmp_path / "answers.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    with AnswerStore(tmp_path) as store:
        assert (len(store), store.unreadable) == (4, 1)
        assert store.get("k4") is None
        assert store.get("k3") == Answer("answered", "text\n3 \ufffd é")
        put(store, "k4", Answer("refused"))
    lines = ["", "[]", '{"key": "a"}', "null", "\xff", json.dumps({"key": "c", "outcome": "cut"})]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines), encoding="latin-1")
    with AnswerStore(tmp_path) as store:
        assert (len(store), store.unreadable) == (5, 6), "a line without an attempt is unreadable"
        assert store.get("k4") == Answer("refused")
        assert store.get("c") is None


def test_a_file_in_place_of_the_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"^cannot write answers to [^\n]+$"):
        AnswerStore(tmp_path / "file")


def test_store_lock_and_shared_reading(tmp_path):
    with AnswerStore(tmp_path) as store:
        put(store, "a", Answer("answered", "one"))
        with pytest.raises(DataError, match="another program"):
            AnswerStore(tmp_path)
        with AnswerStore(tmp_path, "shard-2") as other:
            assert other.get("a") == Answer("answered", "one")
            put(other, "b", Answer("cut"))
    assert len(AnswerStore(tmp_path, read_only=True)) == 2
    assert len(AnswerStore(tmp_path / "absent", read_only=True)) == 0
    assert not (tmp_path / "absent").exists()


def test_files_that_grow_while_the_store_is_opened(tmp_path, monkeypatch):
    read = AnswerStore._read_file
    with AnswerStore(tmp_path, "other") as other:
        put(other, "a", Answer("answered", "one"))

        def grow(store, path):
            result = read(store, path)
            put(other, "b", Answer("answered", "two"))
            (tmp_path / "new.jsonl").write_bytes((tmp_path / "other.jsonl").read_bytes())
            return result

        with monkeypatch.context() as patch:
            patch.setattr(AnswerStore, "_read_file", grow)
            store = AnswerStore(tmp_path, read_only=True)
        assert (store.unreadable, len(store)) == (0, 1)
        store.refresh()
        assert len(store) == 2


def test_full_disk(server, tmp_path):
    with AnswerStore(tmp_path) as store:
        store.close()
        store._file = full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
        with full, pytest.raises(DataError, match=r"No space left.*run the same command again"):
            ask(models_of(server.model), QUESTIONS, store, "answers")


def test_estimate_tokens():
    assert list(map(estimate_tokens, ("", "abcde", "故事 \ud800"))) == [0, 2, 2]
