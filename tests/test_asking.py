"""Questions get their answers whatever fails on the way, and no stored answer is asked again."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_openai import FAULTS, KEY, FakeOpenAI, drawn_manners
from fake_reddit import drawn_faults

from litbench.errors import ConfigError, DataError, MissingExtraError, ModelError
from litbench.judges.asking import Budget, Traffic, ask, estimate_tokens
from litbench.judges.store import Answer, AnswerStore, Sampling, identity, keys_of, local_folder

pytest.importorskip("inspect_ai")
pytest.importorskip("openai")

# A good answer may be late on a busy machine; only who waits for a hang gives up sooner.
QUICK = Traffic(first_wait_seconds=0.01, longest_wait_seconds=0.05, timeout_seconds=60)
QUESTIONS = [f"Is {k} a good number? Answer {{story_a}} or é." for k in range(30)]


def echo(question: str) -> str:
    return f"You asked: {question}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenAI]:
    """A server without faults, which this process's judge talks to."""
    with FakeOpenAI(echo) as one:
        bring(one, monkeypatch)
        yield one


def bring(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)


def run(
    server: FakeOpenAI,
    folder: Path,
    questions: list[str] | None = None,
    traffic: Traffic = QUICK,
    sampling: Sampling | None = None,
    **more: Any,
) -> list[Answer]:
    with AnswerStore(folder) as store:
        asked = QUESTIONS if questions is None else questions
        return ask(server.model, asked, store, sampling or Sampling(), traffic, **more)


def test_answers_come_in_the_order_of_their_questions_and_are_kept(
    server: FakeOpenAI, tmp_path: Path
) -> None:
    asked = [*QUESTIONS, QUESTIONS[3]]
    answers = run(server, tmp_path, asked)
    assert [one.text for one in answers] == list(map(echo, asked))
    first = answers[0]
    assert (first.outcome, first.model, first.detail) == ("answered", "judge-1", None)
    words = len(QUESTIONS[0].split())
    assert (first.input_tokens, first.cached_tokens) == (words, 7), "cached tokens are input too"
    assert first.output_tokens == words + 2
    assert first.seconds is not None
    assert server.asked == Counter(QUESTIONS), "the same question twice is asked once"
    assert run(server, tmp_path, asked[::-1]) == answers[::-1]
    assert server.requests == len(QUESTIONS)


def test_an_answer_belongs_to_its_model_question_and_sampling(
    server: FakeOpenAI, tmp_path: Path
) -> None:
    question = QUESTIONS[:1]
    run(server, tmp_path, question)
    body = server.bodies[question[0]]
    assert (body["temperature"], body["max_tokens"]) == (0, 1024)
    assert "top_p" not in body
    run(server, tmp_path, question, traffic=Traffic(connections=3))
    assert server.requests == 1, "how it is sent has no part in an answer"
    sampling = Sampling(temperature=0.5, max_tokens=None, top_p=0.9, seed=4)
    run(server, tmp_path, question, sampling=sampling)
    assert server.requests == 2
    body = server.bodies[question[0]]
    assert (body["temperature"], body["top_p"], body["seed"]) == (0.5, 0.9, 4)
    run(server, tmp_path, question, sample=1)
    assert server.requests == 3
    run(server, tmp_path, question)
    assert server.requests == 3, "a config that changes back finds its answers"


def test_the_content_of_a_models_folder_is_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_text("one")
    before = keys_of(f"hf/{folder}", ["q"], Sampling())
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "weights").write_text("one")
    assert keys_of(f"hf/{copy}", ["q"], Sampling()) == before
    other = tmp_path / "other"
    other.mkdir()
    (other / "weights").write_text("two")
    assert keys_of(f"hf/{other}", ["q"], Sampling()) != before


def test_a_folder_called_like_a_model_of_a_provider_is_not_that_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run into a folder named after its model would pay for every answer again and again."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "gpt-4.1-mini"
    name = f"openai/{folder.name}"
    before = keys_of(name, ["q"], Sampling())
    folder.mkdir()
    (folder / "answers.jsonl").write_text("{}")
    identity.cache_clear()
    assert keys_of(name, ["q"], Sampling()) == before
    assert local_folder(name) is None
    assert local_folder("openai-api/mine/gpt-4.1-mini") is None
    for provider in ("hf", "vllm", "sglang"):
        assert local_folder(f"{provider}/{folder.name}") == Path(folder.name)
    assert local_folder("hf/") is local_folder("hf") is None


def test_faults_are_overcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    questions = [f"Question {k}" for k in range(80)]
    kinds = [kind for kind in FAULTS if kind != "hang"]

    def every_third(number: int, _kind: str) -> str | None:
        return kinds[number // 3 % len(kinds)] if number % 3 == 0 else None

    with FakeOpenAI(echo, faults=every_third) as server:
        bring(server, monkeypatch)
        answers = run(server, tmp_path, questions)
        while any(one.outcome == "error" for one in answers):
            known = {q for q, a in zip(questions, answers, strict=True) if a.outcome != "error"}
            before = server.asked.copy()
            answers = run(server, tmp_path, questions)
            assert not known & (server.asked - before).keys(), "only errors are asked again"
    assert [one.text for one in answers] == list(map(echo, questions))
    assert set(server.faults) == set(kinds)
    assert server.answered >= Counter(questions)


def test_a_silent_server_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first_three: dict[str, Any] = {"faults": lambda number, _: "hang" if number <= 3 else None}
    hasty = replace(QUICK, timeout_seconds=1)
    started = time.monotonic()
    with FakeOpenAI(echo, **first_three, hang_seconds=300) as server:
        bring(server, monkeypatch)
        answers = run(server, tmp_path, QUESTIONS[:6], hasty)
    assert [one.outcome for one in answers] == ["answered"] * 6
    assert server.faults["hang"] == 3
    assert time.monotonic() - started < 200, "nobody waited for it to come back"


def test_refusals_and_cuts_are_answers_and_errors_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manners = dict(zip(QUESTIONS, ("refusal", "filter", "length", "no choice", None), strict=False))
    with FakeOpenAI(echo, manners=manners.get) as server:
        bring(server, monkeypatch)
        answers = run(server, tmp_path, QUESTIONS[:5])
        outcomes = [one.outcome for one in answers]
        assert outcomes == ["refused", "refused", "cut", "error", "answered"]
        assert answers[0].text == "I would rather not judge this."
        assert answers[2].text, "what there is of it is kept"
        assert "empty" in str(answers[3].detail)
        before = server.asked.copy()
        assert [one.outcome for one in run(server, tmp_path, QUESTIONS[:5])] == outcomes
        assert set(server.asked - before) == {QUESTIONS[3]}


def test_a_run_that_gets_no_answers_gives_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with FakeOpenAI(echo) as server:
        bring(server, monkeypatch)
        monkeypatch.setenv("FAKE_API_KEY", "wrong-and-still-secret")
        with pytest.raises(ModelError, match=r"without an answer between them.*Incorrect") as error:
            run(server, tmp_path, [f"q{k}" for k in range(500)])
        assert "wrong-and-still-secret" not in str(error.value)
        assert "***" in str(error.value)
        assert server.requests == 0
    with FakeOpenAI(echo, faults=lambda n, _: "500" if n > 20 else None) as server:
        bring(server, monkeypatch)
        few = Traffic(connections=2, max_retries=0, first_wait_seconds=0, give_up_after=3)
        with pytest.raises(ModelError, match="20 answers are kept"):
            run(server, tmp_path, [f"r{k}" for k in range(500)], traffic=few)
        assert server.requests < 60


@pytest.mark.parametrize("fault", ["400", "500"])
def test_keys_and_questions_are_in_no_error(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    once = Traffic(max_retries=0, first_wait_seconds=0, timeout_seconds=5)
    complaint = f"not well today: the key {KEY} is refused"
    with FakeOpenAI(echo, faults=lambda *_: fault, complaint=complaint) as server:
        bring(server, monkeypatch)
        (answer,) = run(server, tmp_path, ["A story nobody may see"], traffic=once)
    assert answer.outcome == "error"
    assert "not well today: the key *** is refused" in str(answer.detail)
    assert not leaked(answer.detail)
    assert "nobody may see" not in str(answer.detail)
    assert (tmp_path / "answers.jsonl").read_text() == "", "an error is no answer"


def leaked(text: str | None, secret: str = KEY) -> list[str]:
    """Pieces of a secret, eight characters long, that a text holds."""
    pieces = [secret[start : start + 8] for start in range(len(secret) - 7)]
    return [piece for piece in pieces if piece in str(text)]


def test_a_key_that_crosses_the_end_of_a_message_is_struck_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Messages are cut after 297 characters, some of which the provider's library adds."""
    once = Traffic(max_retries=0, first_wait_seconds=0, timeout_seconds=5, give_up_after=1)
    with FakeOpenAI(echo, faults=lambda *_: "400") as server:
        bring(server, monkeypatch)
        for before in range(220, 300, 8):
            server.complaint = "x" * before + KEY + " was the key" + " and more" * 9
            with pytest.raises(ModelError, match=r"such as .*\.\.\.: mend it") as error:
                run(server, tmp_path, ["q"], traffic=once)
            assert not leaked(str(error.value))


@pytest.mark.parametrize("code", ["content_filter", "context_length_exceeded"])
def test_what_a_provider_says_in_place_of_an_answer_is_kept_without_keys(
    code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    complaint = "x" * 280 + KEY
    with FakeOpenAI(echo, faults=lambda *_: "400", complaint=complaint, code=code) as server:
        bring(server, monkeypatch)
        (answer,) = run(server, tmp_path, ["q"])
    assert answer.outcome == ("refused" if code == "content_filter" else "cut")
    stored = (tmp_path / "answers.jsonl").read_text()
    assert "xxxx" in stored
    assert not leaked(stored)


def test_secrets_within_secrets_and_logins_in_addresses_are_struck(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    longer, login = f"{KEY}-and-its-tail-of-secrets", "http://me:pass-of-the-proxy@host/v1"
    monkeypatch.setenv("AAA_API_KEY", longer)
    monkeypatch.setenv("SPACED_TOKEN", " a-token-with-a-newline\n")
    monkeypatch.setenv("PROXY_BASE_URL", login)
    complaint = f"{longer}, a-token-with-a-newline and {login}"
    with FakeOpenAI(echo, faults=lambda *_: "400", complaint=complaint) as server:
        bring(server, monkeypatch)
        (answer,) = run(server, tmp_path, ["q"])
    assert "***, *** and http://***@host/v1" in str(answer.detail)
    for secret in (longer, "a-token-with-a-newline", "pass-of-the-proxy"):
        assert not leaked(answer.detail, secret)


def test_a_missing_key_or_provider_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with AnswerStore(tmp_path) as store:
        monkeypatch.delenv("FAKE_API_KEY", raising=False)
        with pytest.raises(ConfigError, match="FAKE_API_KEY"):
            ask(FakeOpenAI.model, ["q"], store, Sampling(), QUICK)
        with pytest.raises(ConfigError, match="nobody"):
            ask("nobody/model", ["q"], store, Sampling(), QUICK)
        with pytest.raises(ConfigError, match="connections is 0"):
            ask("nobody/model", ["q"], store, Sampling(), Traffic(connections=0))


def test_without_the_extra_stored_answers_can_still_be_read(
    server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run(server, tmp_path, QUESTIONS[:1])
    monkeypatch.setitem(sys.modules, "inspect_ai.model", None)
    assert run(server, tmp_path, QUESTIONS[:1])[0].text == echo(QUESTIONS[0])
    with pytest.raises(MissingExtraError, match=r"litbench\[judge\]"):
        run(server, tmp_path, QUESTIONS[:2])


def test_a_limit_of_calls_stops_and_the_next_run_goes_on(
    server: FakeOpenAI, tmp_path: Path
) -> None:
    limited = Traffic(max_calls=12)
    with pytest.raises(ConfigError, match="12 of 30 questions are asked"):
        run(server, tmp_path, traffic=limited)
    with pytest.raises(ConfigError, match="24 of 30"):
        run(server, tmp_path, traffic=limited)
    assert len(run(server, tmp_path, traffic=limited)) == 30
    assert server.asked == Counter(QUESTIONS)


def test_a_limit_of_calls_holds_for_second_tries_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limited = Traffic(max_retries=0, first_wait_seconds=0, give_up_after=100, max_calls=12)
    with FakeOpenAI(echo, faults=lambda *_: "400") as server:
        bring(server, monkeypatch)
        answers = run(server, tmp_path, QUESTIONS[:9], traffic=limited)
        assert [one.outcome for one in answers] == ["error"] * 9
        assert server.requests == 12, "nine, and three of them again"


def test_a_budget_is_shared_by_all_that_a_run_asks(server: FakeOpenAI, tmp_path: Path) -> None:
    budget = Budget(Traffic(max_calls=12))
    run(server, tmp_path, QUESTIONS[:10], budget=budget)
    with pytest.raises(ConfigError, match="max_calls of 12 is reached: 2 of 5 questions"):
        run(server, tmp_path, QUESTIONS[10:15], budget=budget)
    assert server.requests == 12
    assert len(run(server, tmp_path, QUESTIONS[:12], budget=budget)) == 12, "known ones are free"


def held_back(requests: int) -> Callable[[int, str], None]:
    """Hold all answers back until so many requests came in."""
    enough = threading.Event()

    def hold(number: int, _moment: str) -> None:
        if number >= requests:
            enough.set()
        enough.wait(30)

    return hold


def test_connections_are_as_many_as_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also when an earlier run in the process had fewer."""
    for connections in (2, 8):
        with FakeOpenAI(echo, on_request=held_back(connections), seconds=0.1) as server:
            bring(server, monkeypatch)
            run(
                server,
                tmp_path / str(connections),
                QUESTIONS[:12],
                traffic=Traffic(connections=connections),
            )
            assert server.most_at_once == connections


def test_questions_that_begin_alike_follow_each_other(server: FakeOpenAI, tmp_path: Path) -> None:
    questions = [f"{head} {tail}" for tail in range(3) for head in "dbca"]
    run(server, tmp_path, questions, traffic=Traffic(connections=1))
    assert list(server.asked) == sorted(questions)


@pytest.mark.long
def test_a_model_on_this_machine_answers_too(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tiny_model("llama", head="language", chat=True)
    traffic = Traffic(connections=2, max_retries=0, first_wait_seconds=0)
    sampling = Sampling(max_tokens=5)
    for name in ("one", "two"):
        with AnswerStore(tmp_path / name) as store:
            ask(f"hf/{folder}", ["Which?", "A or B?"], store, sampling, traffic)
    keys = keys_of(f"hf/{folder}", ["Which?", "A or B?"], sampling)
    with (
        AnswerStore(tmp_path / "one", read_only=True) as first,
        AnswerStore(tmp_path / "two", read_only=True) as second,
    ):
        for key in keys:
            one, two = first.get(key), second.get(key)
            assert one is not None
            assert two is not None
            assert (one.outcome, one.output_tokens) == ("cut", 5)
            assert one.text == two.text, "at temperature 0"


# The store ------------------------------------------------------------------------------------


def test_a_torn_line_loses_one_answer_and_no_other(tmp_path: Path) -> None:
    with AnswerStore(tmp_path) as store:
        for k in range(5):
            store.put(f"k{k}", Answer("answered", f"text\n{k} \ud800 é"))
    path = tmp_path / "answers.jsonl"
    assert path.read_bytes().isascii()
    path.write_bytes(path.read_bytes()[:-10])
    with AnswerStore(tmp_path) as store:
        assert (len(store), store.unreadable) == (4, 1)
        assert store.get("k4") is None
        assert store.get("k3") == Answer("answered", "text\n3 \ud800 é")
        store.put("k4", Answer("refused"))
    with AnswerStore(tmp_path) as store:
        assert (len(store), store.unreadable) == (5, 1)
        assert store.get("k4") == Answer("refused")


def test_two_programs_do_not_write_one_file_but_read_each_others(tmp_path: Path) -> None:
    with AnswerStore(tmp_path) as store:
        store.put("a", Answer("answered", "one"))
        with pytest.raises(DataError, match="being written by another program"):
            AnswerStore(tmp_path)
        with AnswerStore(tmp_path, "shard-2") as other:
            assert other.get("a") == Answer("answered", "one")
            other.put("b", Answer("cut"))
    assert len(AnswerStore(tmp_path, read_only=True)) == 2
    assert len(AnswerStore(tmp_path / "absent", read_only=True)) == 0
    assert not (tmp_path / "absent").exists()


def test_what_is_no_answer_in_a_file_is_counted(tmp_path: Path) -> None:
    lines = ["", "[]", '{"key": "a"}', "null", '{"key": "b", "outcome": "cut", "new": 1}', "\xff"]
    good = json.dumps({"key": "c", "outcome": "cut"})
    (tmp_path / "mine.jsonl").write_text("\n".join([*lines, good]), encoding="latin-1")
    with AnswerStore(tmp_path) as store:
        assert store.get("c") == Answer("cut")
        assert (len(store), store.unreadable) == (1, 5)


def test_a_full_disk_ends_the_run_with_a_message(server: FakeOpenAI, tmp_path: Path) -> None:
    with AnswerStore(tmp_path) as store:
        store.close()
        store._file = full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
        with full, pytest.raises(DataError, match=r"No space left.*run the same command again"):
            ask(server.model, QUESTIONS, store, Sampling(), QUICK)


def test_tokens_are_estimated_from_bytes() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens("abcde") == 2
    assert estimate_tokens("故事 \ud800") == 2


# Kills ----------------------------------------------------------------------------------------

CHILD = """
import json, sys
from pathlib import Path
from litbench.judges.asking import Traffic, ask
from litbench.judges.store import AnswerStore, Sampling

questions = json.loads(Path(sys.argv[1]).read_text())
traffic = Traffic(connections=8, first_wait_seconds=0.01, longest_wait_seconds=0.05)
with AnswerStore(Path(sys.argv[2])) as store:
    answers = ask("openai-api/fake/judge", questions, store, Sampling(), traffic)
Path(sys.argv[3]).write_text(json.dumps([[one.outcome, one.text] for one in answers]))
"""


@pytest.mark.long
@pytest.mark.parametrize("seed", [11, 12])
def test_killed_at_random_no_stored_answer_is_asked_again(seed: int, tmp_path: Path) -> None:
    from fake_reddit import Killer  # noqa: PLC0415

    print(f"seed {seed}")
    questions = [f"Question {k} of seed {seed}" for k in range(150)]
    (tmp_path / "questions.json").write_text(json.dumps(questions))
    killer = Killer(seed, kills=8, requests=len(questions))
    keys = dict(zip(keys_of(FakeOpenAI.model, questions, Sampling()), questions, strict=True))
    kinds = ["429", "429 later", "500", "reset", "cut"]
    store = tmp_path / "answers"
    with FakeOpenAI(
        echo,
        faults=drawn_faults(seed, 0.1, kinds),
        manners=drawn_manners(seed, 0.05),
        on_request=killer,
        seconds=0.01,
    ) as server:
        runs = 0
        while not (tmp_path / "out.json").exists():
            with AnswerStore(store, read_only=True) as known:
                stored = {question for key, question in keys.items() if known.get(key) is not None}
            before = server.asked.copy()
            command = [sys.executable, "-c", CHILD, tmp_path / "questions.json", store,
                       tmp_path / "out.json"]  # fmt: skip
            killer.process = subprocess.Popen(
                list(map(str, command)), env=os.environ | server.environment(), text=True
            )
            assert killer.process.wait(timeout=300) in (0, -9)
            assert not stored & (server.asked - before).keys()
            runs += 1
            assert runs < 30
    assert killer.killed == 8
    assert runs == 9
    outcomes = Counter(outcome for outcome, _ in json.loads((tmp_path / "out.json").read_text()))
    assert outcomes["answered"] > 130
    # What a kill can lose is what was under way.
    assert server.answered.total() <= len(questions) + 8 * 8 + 2 * outcomes["error"]
