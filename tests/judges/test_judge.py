"""The kind `judge`, run by eval/benchmark.py against a server on loopback."""

import json
import math
import os
import re
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import pair_table
from fake_openai import (
    KEY,
    LOGIN,
    FakeOpenAI,
    asked_text,
    coded,
    longer_story,
    shown_story,
    uncoded,
)

from litbench.data.records import VERDICTS
from litbench.data.tables import read_table, write_table
from litbench.judges.answers import Answer, AnswerStore, Attempt, Sampling, keys_of
from litbench.judges.judge import averaged
from litbench.judges.prices import Price
from litbench.raters.entries import parse_raters
from litbench.raters.interface import UNASKED, BlindPair, Judgement
from litbench.raters.templates.parser import make_code
from litbench.raters.templates.template import load_template
from litbench.runs.errors import ConfigError
from litbench.testing import check_rater

pytest.importorskip("inspect_ai")
pytest.importorskip("openai")

Row = dict[str, Any]
QUICK = {"first_wait_seconds": 0.01, "timeout_seconds": 60}
PRICE = {"input": 100.0, "output": 1_000.0, "cached": 10.0}
PAIRS = 42


def entry(model=FakeOpenAI.model, traffic=None, **more):
    """A config entry under `raters:`."""
    return {"kind": "judge", "model": model, "traffic": {**QUICK, **(traffic or {})}, **more}


def story(number, words):
    return f"Story {number} tells of " + " ".join(["rain"] * words)


def some_pairs(n):
    """Pairs with votes, times and authors; in two of three the chosen story is the longer one."""
    rows = []
    for number in range(n):
        long, short = story(2 * number, 12), story(2 * number + 1, 6)
        chosen, rejected = (short, long) if number % 3 == 0 else (long, short)
        row = {"chosen": chosen, "rejected": rejected, "label_source": "votes"}
        for side, votes in (("chosen", 987_654_321), ("rejected", 876_543_219)):
            row |= {
                f"{side}_score": votes,
                f"{side}_created_utc": votes + 1,
                f"{side}_author": f"hash-of-somebody-{side}",
            }
        rows.append(row)
    return rows


def table_of(rows):
    return pair_table.__wrapped__()(some_pairs(rows) if isinstance(rows, int) else rows)


@dataclass
class Bench:
    """Runs eval/benchmark.py in this process."""

    program: ModuleType
    folder: Path

    def run(self, pairs, raters, out="out", **more):
        """Returns the leaderboard's rows by rater."""
        write_table(pairs, self.folder / "pairs.parquet")
        config = self.program.Config(
            pairs=self.folder / "pairs.parquet",
            out=self.folder / out,
            raters=raters,
            reference=next(iter(raters)),
            **more,
        )
        self.program.main(config)
        if config.dry_run:
            return {}
        rows = json.loads((self.folder / out / "leaderboard.json").read_text())
        return {row["rater"]: row for row in rows}

    def verdicts(self, rater, out="out"):
        table = read_table(self.folder / out / "verdicts.parquet", VERDICTS)
        return [row for row in table.to_pylist() if row["rater"] == rater]

    def logs(self, out="out"):
        return sorted((self.folder / out / "logs").rglob("*.eval"))


@pytest.fixture
def bench(load_program, tmp_path):
    return Bench(load_program("eval/benchmark.py"), tmp_path)


@pytest.fixture
def server():
    with FakeOpenAI() as server:
        yield server


def letter(text):
    """An answer of the form `explanation` with this verdict."""
    return f"It is the better one.\n\nPreferred: {text}"


def saying(verdicts):
    """Answer each pair with its own verdict; the stories contain the number of the pair."""

    def answer(question):
        result = re.search(r"Story (\d+) tells", question)
        assert result is not None
        return verdicts[int(result[1]) // 2]

    return answer


# Servers of one's own -------------------------------------------------------------------------

SERVERS = yaml.safe_load((Path(__file__).parent / "servers.yaml").read_text(encoding="utf-8"))


def answering(good, case):
    """Answer as a server does: change a good response, or send an error."""

    def change(content):
        text = content["choices"][0]["message"]["content"]
        message = {**good["message"], "content": text, **case.get("message", {})}
        choice = {**good["choice"], "message": message, **case.get("choice", {})}
        return {**good["rest"], "choices": [choice], "usage": case.get("usage", good["usage"])}

    return (case["status"], {"error": case["error"]}) if "status" in case else change


@pytest.mark.parametrize("name", SERVERS)
def test_verdicts_of_servers_of_your_own(name, tmp_path):
    cases = {f"Case {case}.": row for case, row in SERVERS[name]["cases"].items()}
    manners = {case: answering(SERVERS[name]["good"], row) for case, row in cases.items()}
    (tmp_path / "prices.yaml").write_text(json.dumps({FakeOpenAI.model: PRICE}))
    keys = {"traffic": {"max_retries": 0, "give_up_after": 99}, "prices": tmp_path / "prices.yaml"}
    (spec,) = parse_raters({"judge": entry(**keys)})

    def manner(question):
        return next((manners[case] for case in cases if case in question), None)

    with FakeOpenAI(manners=manner):
        rater = spec.load(tmp_path)
        pairs = [BlindPair(case, story(1, 9), story(2, 3)) for case in ["A good one.", *cases]]
        _, *judged = rater.judge(pairs)
    for (case, row), orders in zip(cases.items(), judged, strict=True):
        prefers, tokens, words = row["sees"]
        cost = None if tokens is None else pytest.approx(Price(**PRICE).of(*tokens))
        for order in orders:
            assert (order.prefers, words in str(order.explanation)) == (prefers, True), (
                case,
                order,
            )
            assert (order.input_tokens, order.cost_usd) == ((tokens or [None])[0], cost), case


# One run of several judges --------------------------------------------------------------------


@dataclass
class Whole:
    """One run of several raters, shared by tests."""

    bench: Bench
    pairs: pa.Table
    board: dict[str, Row]
    server: FakeOpenAI
    raters: dict[str, Row]


@pytest.fixture(scope="module")
def whole(load_program, tmp_path_factory):
    folder, pairs = tmp_path_factory.mktemp("whole"), table_of(PAIRS)
    (folder / "prices.yaml").write_text(json.dumps({FakeOpenAI.model: PRICE}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("litbench.judges.judge.SHARD", 15)
        bench = Bench(load_program("eval/benchmark.py"), folder)
        with FakeOpenAI(others={"lazy": lambda _: letter("A")}) as server:
            raters = {
                "longer": {"kind": "longer"},
                "careful": entry(prices=str(folder / "prices.yaml")),
                "lazy": entry(server.model_called("lazy")),
            }
            yield Whole(bench, pairs, bench.run(pairs, raters), server, raters)


def test_judges_share_the_leaderboard(whole):
    board, rows = whole.board, whole.bench.verdicts("careful")
    assert board.keys() == whole.raters.keys()
    assert board["careful"]["agreement"]["mean"] == pytest.approx(2 / 3)
    assert board["careful"]["agreement"] == board["longer"]["agreement"]
    assert board["careful"]["flip_rate"]["mean"] == 0
    assert board["careful"]["position_bias"]["mean"] == 0.5
    assert board["careful"]["coverage"] == 1
    by_pair = Counter((row["pair_id"], row["order"]) for row in rows)
    wanted = {(i, order) for i in whole.pairs["pair_id"].to_pylist() for order in SIDES}
    assert by_pair == Counter(wanted)
    pairs = {row["pair_id"]: row for row in whole.pairs.to_pylist()}
    template = load_template("alternative")
    for row in rows:
        pair = pairs[row["pair_id"]]
        other = "rejected" if row["order"] == "chosen" else "chosen"
        question = coded_question(whole, template, pair["prompt"], pair[row["order"]], pair[other])
        longer = "chosen" if len(pair["chosen"]) > len(pair["rejected"]) else "rejected"
        assert row["outcome"] == longer
        assert row["explanation"].endswith("there is more of it.")
        assert "Preferred" not in row["explanation"]
        read = len(question.split())
        written = len(coded(question, longer_story(question)).split())
        assert (row["input_tokens"], row["output_tokens"]) == (read, written)
        dollars = ((read - 7) * 100 + 7 * 10 + written * 1_000) / 1e6
        assert row["cost_usd"] == pytest.approx(dollars)
        assert row["seconds"] > 0
        assert row["p_chosen"] is None
    assert board["careful"]["cost_usd"] == pytest.approx(sum(row["cost_usd"] for row in rows))
    assert board["lazy"]["cost_usd"] is None, "no price is known"
    assert board["lazy"]["input_tokens"] > 0


def coded_question(whole, template, *texts):
    """A question with its code, as the run asks it."""
    seed = (whole.bench.folder / "out/answers/seed.txt").read_text()
    return template.render(*texts, make_code(seed, template.render(*texts)))


SIDES = ("chosen", "rejected")


def test_always_a_gives_one_half_and_flips_every_pair(whole):
    lazy = whole.board["lazy"]
    assert lazy["agreement"]["mean"] == 0.5
    assert lazy["flip_rate"]["mean"] == 1.0
    assert lazy["position_bias"]["mean"] == 1.0
    assert lazy["consistent"] is None
    assert all(row["outcome"] == row["order"] for row in whole.bench.verdicts("lazy"))


@pytest.mark.parametrize("name", ["careful", "lazy"])
def test_a_judge_is_blind_and_asked_once(name, whole, tmp_path):
    before = whole.server.requests
    answers = {"answers": str(whole.bench.folder / "out" / "answers")}
    (spec,) = parse_raters({name: whole.raters[name] | answers})
    check_rater(spec.load(tmp_path), whole.pairs)
    assert whole.server.requests == before, "the questions are unchanged"


def test_only_prompt_stories_and_template_are_sent(whole):
    template = load_template("alternative")
    questions = set()
    for pair in whole.pairs.to_pylist():
        for stories in ((pair["chosen"], pair["rejected"]), (pair["rejected"], pair["chosen"])):
            questions.add(coded_question(whole, template, pair["prompt"], *stories))
    assert set(whole.server.bodies) == questions
    for body in whole.server.bodies.values():
        assert body.keys() == {"model", "messages", "temperature", "max_tokens"}
        assert [message.keys() for message in body["messages"]] == [{"role", "content"}]
    # Nothing that reveals the pair or its label is sent or logged.
    secrets = [*whole.pairs["pair_id"].to_pylist(), "chosen", "rejected"]
    secrets += ["hash-of-somebody", "987654321", "876543219", "987654322", "876543220"]
    texts = [json.dumps(list(whole.server.bodies.values()))]
    texts += [text for path in whole.bench.logs() for _, text in members(path)]
    assert not [secret for secret in secrets for text in texts if secret in text]


def members(log):
    """The files in an inspect-ai log, as text."""
    # Adds the compression of these files to Python's zipfile.
    import inspect_ai._util.zipfile  # noqa: PLC0415

    del inspect_ai
    with zipfile.ZipFile(log) as archive:
        for name in archive.namelist():
            yield name, archive.read(name).decode()


def test_one_log_per_shard_with_both_orders(whole):
    from inspect_ai.log import read_eval_log  # noqa: PLC0415

    careful = [path for path in whole.bench.logs() if path.parent.name == "careful"]
    assert len(careful) == math.ceil(PAIRS / 15)
    logs = [read_eval_log(str(path)) for path in careful]
    assert sorted(len(log.samples or []) for log in logs) == [12, 15, 15]
    read = Counter()
    for log in logs:
        assert log.status == "success"
        for sample in log.samples or []:
            roles = [message.role for message in sample.messages]
            assert roles == ["user", "assistant"] * 2
            first, _, second, _ = (message.text for message in sample.messages)
            assert shown_story(first, "A") == shown_story(second, "B")
            assert shown_story(first, "B") == shown_story(second, "A")
            read.update((first, second))
            assert sample.scores is not None
            assert sample.scores["preference"].value in (0, 1), "the same story in both orders"
        assert log.results is not None
        (score,) = log.results.scores
        values = [sample.scores["preference"].value for sample in log.samples if sample.scores]
        assert score.metrics["accuracy"].value == pytest.approx(fmean(values))
        assert score.metrics["stderr"].value > 0
    assert len(read) == 2 * PAIRS
    assert set(read.values()) == {1}


# Repeated answers -----------------------------------------------------------------------------


def test_samples_keep_the_first_answer_and_decide_by_their_mean(bench, capsys):
    """A judge that says A, then B and B, whatever the stories."""
    pairs, told = table_of(6), Counter()

    def answer(question):
        told[uncoded(question)] += 1
        return letter("A" if told[uncoded(question)] == 1 else "B")

    prices = bench.folder / "prices.yaml"
    prices.write_text(json.dumps({FakeOpenAI.model: PRICE}))
    with FakeOpenAI(answer) as server:
        bench.run(pairs, {"judge": entry(prices=str(prices))})
        assert server.requests == 12
        (first, *_) = bench.verdicts("judge")
        assert (first["outcome"], first["samples"]) == (first["order"], None)
        raters = {"judge": entry(prices=str(prices), samples=3)}
        bench.run(pairs, raters, dry_run=True)
        assert re.search(r"judge \(\S+\) +24 +12 ", capsys.readouterr().out)
        board = bench.run(pairs, raters)
        assert server.requests == 36
        bench.run(pairs, raters, out="again")
        assert max(told.values()) == 6, "another folder has no answers"
    rows = bench.verdicts("judge")
    assert len(rows) == 12
    for row in rows:
        other = "rejected" if row["order"] == "chosen" else "chosen"
        assert row["samples"] == f"{row['order']} {other} {other}"
        assert row["outcome"] == other
        assert row["cost_usd"] > 2 * first["cost_usd"]
    assert board["judge"]["position_bias"]["mean"] == 0
    assert board["judge"]["flip_rate"]["mean"] == 1


def votes(*prefers):
    return [Judgement(each, explanation=each, cost_usd=1.0) for each in prefers]


@pytest.mark.parametrize(
    ("samples", "prefers", "explanation"),
    [
        (("first",), "first", "first"),
        (("first", "second", "second"), "second", "second"),
        (("first", "second"), "tie", "first"),
        (("first", "tie", "unparsed"), "first", "first"),
        (("refused", "unparsed"), "refused", "refused"),
        (("first", "error", "first"), "error", "error"),
    ],
)
def test_mean_of_repeated_answers(samples, prefers, explanation):
    mean = averaged(votes(*samples))
    assert (mean.prefers, mean.explanation) == (prefers, explanation)
    assert mean.cost_usd == len(samples)


def test_a_question_with_an_unasked_sample_is_unasked():
    unasked = Judgement("error", explanation=f"{UNASKED}the limit")
    assert averaged([*votes("error", "first"), unasked]).explanation == unasked.explanation


# Outcomes of answers --------------------------------------------------------------------------


def test_outcome_of_every_kind_of_answer(bench):
    pairs = table_of(9)
    answers = [
        letter("A"),
        letter("tie"),
        "I cannot help with judging such stories.",
        "zxq ## 77",
        "",
        letter("A"),
        letter("A"),
        letter("A"),
        letter("A"),
    ]
    manner = saying(["", "", "", "", "", "refusal", "filter", "length", "no choice"])
    with FakeOpenAI(saying(answers), manners=lambda question: manner(question) or None):
        board = bench.run(pairs, {"judge": entry(traffic={"give_up_after": 100})})
    outcomes = {}
    number = {pair_id: index for index, pair_id in enumerate(pairs["pair_id"].to_pylist())}
    for row in bench.verdicts("judge"):
        outcomes.setdefault(number[row["pair_id"]], []).append(row["outcome"])
        if row["outcome"] == "cut":
            assert row["explanation"].startswith("It is the better")
    assert outcomes == {
        0: ["chosen", "rejected"] if outcomes[0][0] == "chosen" else ["rejected", "chosen"],
        1: ["tie"] * 2,
        2: ["unparsed"] * 2,
        3: ["unparsed"] * 2,
        4: ["error"] * 2,
        5: ["refused"] * 2,
        6: ["refused"] * 2,
        7: ["cut"] * 2,
        8: ["error"] * 2,
    }
    assert board["judge"]["coverage"] == pytest.approx(2 / 9)
    assert board["judge"]["agreement"]["mean"] == 0.5
    counted = board["judge"]["outcomes"]
    assert (counted["error"], counted["refused"], counted["cut"]) == (4, 4, 2)


def test_unread_answer_is_asked_for_once_more(bench):
    """In the same conversation; then it stays unparsed, and both calls are counted."""
    pairs, repaired = table_of(4), []

    def question_of(messages):
        if len(messages) > 1:
            repaired.append([message["content"] for message in messages])
        return (
            messages[-1]["content"] if "Story 1 " in asked_text(messages) else asked_text(messages)
        )

    def answer(question):
        if question.startswith("Reply with the last line only: Preferred:"):
            return "Preferred: A"
        return letter("A") if "Story 3 " in question else "I like the calmer of the two."

    prices = bench.folder / "prices.yaml"
    prices.write_text(json.dumps({FakeOpenAI.model: PRICE}))
    with FakeOpenAI(answer, question_of=question_of) as server:
        judge = entry(prices=str(prices))
        board = bench.run(pairs, {"judge": judge})
        assert server.requests == 8 + 6
        rows = bench.verdicts("judge")
        assert sum(row["cost_usd"] for row in rows) == pytest.approx(
            server.dollars(Price(**PRICE)) - 14 * 7 * (100 - 10) / 1e6
        )
        bench.run(pairs, {"again": judge | {"answers": str(bench.folder / "out/answers")}}, "b")
        assert server.requests == 14, "answers are stored, the second ones too"
    outcomes = Counter(row["outcome"] for row in rows)
    assert outcomes == {"unparsed": 4, "chosen": 2, "rejected": 2}
    assert board["judge"]["coverage"] == 0.5
    for first, said, request in repaired:
        assert (said, request[:10]) == ("I like the calmer of the two.", "Reply with")
        code = re.search(r"\[(\w{5})\]", request)
        assert code is not None
        assert code[0] in first
    texts = [row["explanation"] for row in rows if row["outcome"] == "unparsed"]
    assert set(texts) == {"I like the calmer of the two."}


def test_answers_of_older_runs_are_read(bench):
    """An older run asked without a code: its answers are found, and read by the plain form."""
    pairs, template = table_of(3), load_template("alternative")
    folder = bench.folder / "old"
    questions = [
        template.render(pair["prompt"], *stories)
        for pair in pairs.to_pylist()
        for stories in ((pair["chosen"], pair["rejected"]), (pair["rejected"], pair["chosen"]))
    ]
    with AnswerStore(folder) as store:
        for question, key in zip(
            questions, keys_of(FakeOpenAI.model, questions, Sampling()), strict=True
        ):
            attempt = Attempt(key, FakeOpenAI.model, (1, 1))
            store.reserve(attempt)
            store.put(Answer("answered", longer_story(question), model="old"), attempt)
    with FakeOpenAI() as server:
        board = bench.run(pairs, {"judge": entry(answers=str(folder))})
        assert server.requests == 0
    assert board["judge"]["coverage"] == 1


def test_errors_are_retried_on_request(bench, capsys):
    pairs = table_of(3)
    raters = {"judge": entry(traffic={"max_retries": 0, "give_up_after": 100, "connections": 1})}
    # The first question is answered.
    with FakeOpenAI(faults=lambda number, _: "400" if number > 1 else None) as server:
        board = bench.run(pairs, raters)
    assert board["judge"]["outcomes"]["error"] == 5
    assert board["judge"]["coverage"] == pytest.approx(1 / 6, abs=1e-6)
    assert "judge: 5 of 6 verdicts are errors" in capsys.readouterr().out
    assert len(AnswerStore(bench.folder / "out" / "answers", read_only=True)) == 1
    with FakeOpenAI() as server:
        board = bench.run(pairs, raters)
        assert server.requests == 5
        bench.run(pairs, raters)
        assert server.requests == 5, "the evaluation is complete"
    assert board["judge"]["coverage"] == 1
    assert len(bench.logs()) == 1


def test_truncated_label_is_a_verdict(bench):
    with FakeOpenAI(saying(["A", "Pre", "B"]), manners=lambda _: "limit") as server:
        judge = entry(answer="label", sampling={"max_tokens": 1})
        board = bench.run(table_of(3), {"judge": judge})
        assert all(body["max_tokens"] == 1 for body in server.bodies.values())
    assert board["judge"]["outcomes"]["cut"] == 2
    assert board["judge"]["coverage"] == pytest.approx(2 / 3)


# Requests and cost ----------------------------------------------------------------------------


def test_stored_answers_are_reused(bench, server):
    pairs = table_of(5)
    shared = str(bench.folder / "answers")
    bench.run(pairs, {"judge": entry(answers=shared)})
    assert server.requests == 10
    bench.run(pairs, {"renamed": entry(answers=shared)}, out="out2")
    assert server.requests == 10
    assert bench.verdicts("renamed", "out2")[0]["explanation"]
    # The last pair is a duplicate.
    rows = some_pairs(6)
    rows.append({**rows[5], "chosen_story_id": "again", "prompt_id": "p5"})
    bench.run(table_of(rows), {"judge": entry(answers=shared)}, out="out3")
    assert server.requests == 12
    assert len(bench.verdicts("judge", "out3")) == 14
    bench.run(pairs, {"judge": entry(answers=shared, template="writerly")}, out="out4")
    assert server.requests == 22


def test_cost_limit_holds_over_runs_and_shards(bench, server, monkeypatch):
    """A call costs about 0.04 dollars and reserves 0.07."""
    monkeypatch.setattr("litbench.judges.judge.SHARD", 3)
    pairs = table_of(8)
    prices = bench.folder / "prices.yaml"
    prices.write_text(json.dumps({server.model: PRICE}))
    asked = []
    for limit in (0.4, 0.4, 100.0):
        traffic = {"max_cost_usd": limit, "connections": 2}
        judge = entry(traffic=traffic, prices=str(prices), sampling={"max_tokens": 30})
        if limit < 1:
            with pytest.raises(ConfigError, match=r"max_cost_usd of \$0.4"):
                bench.run(pairs, {"judge": judge})
            assert server.dollars(Price(**PRICE)) <= 0.4
        else:
            bench.run(pairs, {"judge": judge})
        asked.append(server.requests)
    assert asked[0] > 6, "stopped in a later shard"
    # Two concurrent calls may have reserved too much, so the next run can make one more call.
    assert asked[1] <= asked[0] + 1
    assert server.asked.total() == asked[2] == 16


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "nobody/model"}, "nobody"),
        ({"model": "openai-api/absent/model"}, "ABSENT"),
        ({"template": "absent"}, "absent"),
        ({"answer": "song"}, "answer"),
        ({"batch": 0}, "batch"),
        ({"traffic": {"connections": 0}}, "connections"),
        ({"traffic": {"max_cost_usd": 1.0}}, "the model has no price"),
        ({"sampling": {"temprature": 1}}, "temprature"),
    ],
)
def test_wrong_options(options, said, bench, server):
    with pytest.raises(ConfigError, match=said):
        bench.run(table_of(2), {"judge": {**entry(), **options}})
    assert server.requests == 0


# Secrets --------------------------------------------------------------------------------------


def secrets_in(folder, *secrets):
    """Files of a folder that contain eight consecutive characters of a secret."""
    from inspect_ai.log import read_eval_log  # noqa: PLC0415

    pieces = {secret[start : start + 8] for secret in secrets for start in range(len(secret) - 7)}
    results = []
    for path in folder.rglob("*"):
        texts = [("", path.read_bytes().decode("latin-1"))] if path.is_file() else []
        if path.suffix == ".eval":
            texts += members(path)
            texts.append(("read", read_eval_log(str(path)).model_dump_json()))
        if path.suffix == ".parquet":
            texts.append(("read", str(pq.read_table(path).to_pylist())))
        results += [f"{path} {name}" for name, text in texts if any(p in text for p in pieces)]
    return results


def test_no_api_key_in_files_or_output(bench, monkeypatch, capfd):
    password = LOGIN.partition(":")[2]
    traces = bench.folder / "traces.log"
    monkeypatch.setenv("INSPECT_TRACE_FILE", str(traces))
    pairs = table_of(4)
    with FakeOpenAI(
        faults=lambda number, _: None if number == 3 else "400", complaint=f"bad {KEY} key"
    ) as server:
        login = server.url.replace("://", f"://{LOGIN}@")
        os.environ["FAKE_BASE_URL"] = login
        traffic = {"max_retries": 0, "give_up_after": 100}
        board = bench.run(pairs, {"judge": entry(traffic=traffic)})
        assert server.faults["400"] > 0
        assert server.answered.total() > 0
    assert board["judge"]["outcomes"]["error"] > 0
    assert not secrets_in(bench.folder / "out", KEY, password)
    said = capfd.readouterr()
    for text in (said.out, said.err):
        assert KEY not in text
        assert password not in text


# inspect-ai 0.3.285 uses an argument that tenacity 9.1 deprecates.
@pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning")
def test_batch_interface(bench, monkeypatch):
    """Uses inspect-ai's OpenAI provider, which polls a batch every 15 seconds."""
    from inspect_ai.model._providers.util import batch  # noqa: PLC0415

    monkeypatch.setattr(batch, "DEFAULT_BATCH_TICK", 0.05)
    monkeypatch.setattr(batch, "DEFAULT_SEND_DELAY", 0.2)
    pairs = table_of(6)
    with FakeOpenAI(others={"gpt-4o-mini": longer_story}) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        judge = entry("openai/gpt-4o-mini", batch=5)
        board = bench.run(pairs, {"judge": judge})["judge"]
        assert server.requests == 0, "no single requests"
        assert sorted(map(len, server.files.values())) == [2, 5, 5]
        assert set(server.asked.values()) == {1}
        bench.run(pairs, {"again": judge | {"answers": str(bench.folder / "out" / "answers")}}, "b")
        assert len(server.files) == 3
    assert board["agreement"]["mean"] == pytest.approx(4 / 6)
    assert not secrets_in(bench.folder, KEY)
    for row in bench.verdicts("judge"):
        # The packaged price of the model, halved for a batch.
        read, written = row["input_tokens"], row["output_tokens"]
        dollars = ((read - 7) * 0.15 + 7 * 0.075 + written * 0.6) / 1e6 / 2
        assert row["cost_usd"] == pytest.approx(dollars)
