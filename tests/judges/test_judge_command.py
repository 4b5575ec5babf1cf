"""litbench judge: zero-shot judges on pairs, against a server on loopback."""

import json
import sys

import pyarrow as pa
import pytest
from fake_openai import KEY, FakeOpenAI

from litbench.cli import main
from litbench.data.tables import write_table

pytest.importorskip("inspect_ai")
pytest.importorskip("openai")
pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def judge(monkeypatch, pair_table, tmp_path, capsys):
    """Run the command on 12 pairs, of which 9 have the longer story as chosen; returns stdout."""
    long, short = "it goes on and on and on", "it ends"
    sides = [(long, short) if number % 4 else (short, long) for number in range(12)]
    rows = [
        {"chosen": f"{chosen} {number}", "rejected": f"{rejected} {number}"}
        for number, (chosen, rejected) in enumerate(sides)
    ]
    write_table(pair_table(rows), tmp_path / "pairs.parquet")
    price = {FakeOpenAI.model: {"input": 1_000, "output": 1_000}}
    (tmp_path / "prices.yaml").write_text(json.dumps(price))
    monkeypatch.chdir(tmp_path)

    def run(*arguments, model=FakeOpenAI.model):
        monkeypatch.setattr(
            sys, "argv", ["litbench", "judge", "pairs.parquet", "--model", model, *arguments]
        )
        main()
        return capsys.readouterr().out

    return run


def test_dry_run_needs_no_key_and_writes_nothing(judge, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    said = judge("--dry_run", "--model", "openai/gpt-4.1-mini", "--max_pairs", "5")
    assert "5 of 12 pairs drawn" in said
    assert "dry run: no request is sent" in said
    lines = {line.split()[0]: line.split()[1:] for line in said.splitlines()[-2:]}
    calls, _, read, written, dollars, at_most, _ = lines["openai/gpt-4.1-mini"]
    assert calls == "10"
    cost = (int(read.replace(",", "")) * 0.4 + int(written.replace(",", "")) * 1.6) / 1e6
    assert float(dollars) == pytest.approx(cost, rel=0.05)
    assert float(at_most) > float(dollars)
    assert {path.name for path in tmp_path.iterdir()} == {"pairs.parquet", "prices.yaml"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("gpt-4.1", "model gpt-4.1: its provider is missing: write openai/gpt-4.1"),
        ("opnai/gpt-4.1", "model opnai/gpt-4.1: unknown provider: did you mean 'openai'"),
    ],
)
def test_a_dry_run_refuses_what_a_run_refuses(judge, model, message, capsys):
    for more in (["--dry_run"], []):
        with pytest.raises(SystemExit):
            judge(*more, model=model)
        assert message in capsys.readouterr().err


def test_columns_can_be_named(judge, tmp_path):
    write_table(
        pa.table({"p": ["A door."], "a": ["It opened."], "b": ["No."]}), tmp_path / "pairs.parquet"
    )
    columns = ("--prompt", "p", "--chosen", "a", "--rejected", "b")
    assert "1 pairs; estimate" in judge("--dry_run", *columns)


def test_judges_share_the_leaderboard_with_the_baselines(judge, tmp_path):
    lazy = FakeOpenAI.model_called("lazy")
    with FakeOpenAI(others={"lazy": lambda _: "Preferred: A"}) as server:
        said = judge("--model", lazy)
        assert server.requests == 2 * 2 * 12, "both orders, two models"
        assert said.index("estimate") < said.index("agreement"), "the cost is said first"
        rows = json.loads((tmp_path / "runs/judge/leaderboard.json").read_text())
        results = {row["rater"]: row["agreement"]["mean"] for row in rows}
        assert results == {server.model: 0.75, "longer": 0.75, lazy: 0.5}
        again = judge("--model", lazy)
        assert server.requests == 2 * 2 * 12
    board = (tmp_path / "runs/judge/leaderboard.txt").read_text()
    for text in (said, again):
        assert board in text
        assert f"report: {tmp_path / 'runs/judge/report.html'}" in text
    page = (tmp_path / "runs/judge/report.html").read_text("utf-8")
    assert lazy in page
    assert "0.750" in page
    assert "estimate" not in again
    manifest = json.loads((tmp_path / "runs/judge/manifest.json").read_text())
    assert manifest["program"] == "litbench judge"


def test_a_reached_limit_keeps_the_answers(judge, tmp_path, capsys):
    with FakeOpenAI() as server:
        with pytest.raises(SystemExit) as stopped:
            judge("--prices", "prices.yaml", "--max_cost_usd", "4", "--out", "out")
        assert stopped.value.code == 2
        error = capsys.readouterr().err
        assert "max_cost_usd of $4.0 would be exceeded" in error
        assert 0 < server.requests < 24
        judge("--prices", "prices.yaml", "--out", "out")
        assert server.requests == 24
    assert (tmp_path / "out/leaderboard.json").is_file()


def test_template_length_and_temperature_of_answers_are_sent(judge):
    with FakeOpenAI() as server:
        judge("--template", "writerly", "--max_tokens", "77", "--temperature", "0.5")
    sent = {(body["max_tokens"], body["temperature"]) for body in server.bodies.values()}
    assert sent == {(77, 0.5)}
    assert all("tension" in question.lower() for question in server.asked)


def test_failed_requests_are_repeated_by_the_next_run(judge):
    with FakeOpenAI(faults=lambda number, _: "400" if number == 1 else None):
        said = judge()
        assert "1 of 24 verdicts are errors: 1 times “ModelGenerateError: Error code: 400" in said
        assert "run the same command again" not in said, "it does not help"
        assert "errors" not in judge()


@pytest.mark.parametrize(
    ("manner", "advice"),
    [("length", "answers were cut: raise max_tokens"), ("rambling", "answers have no verdict")],
)
def test_a_model_whose_answers_are_unusable_is_told_why(judge, capsys, manner, advice):
    with FakeOpenAI(manners=lambda _: manner) as server:
        with pytest.raises(SystemExit):
            judge("--out", "out")
        said = capsys.readouterr()
    assert f"no pair was judged by {server.model}: {advice}" in said.err


@pytest.mark.parametrize("status", [200, 401, 404, 413])
def test_a_model_that_judges_nothing_has_no_figures(status, judge, tmp_path, capsys):
    def manners(_):
        if status == 200:
            return 200, f"<h1>No, because of {KEY[:6]}.</h1>".encode()
        return status, {"error": {"message": f"No, because of {KEY[:6]}."}}

    with FakeOpenAI(manners=manners) as server:
        with pytest.raises(SystemExit) as stopped:
            judge("--out", "out", "--traffic.give_up_after", "100")
        assert stopped.value.code == 1
        # Two at a time; a malformed response is asked for once more.
        assert server.requests in {200: (2, 3, 4), 413: (24,)}.get(status, (1, 2))
        said = capsys.readouterr()
    page = (tmp_path / "out/report.html").read_text("utf-8")
    for text in (said.out, page):
        assert "24 of 24 verdicts are errors: 24 times" in text
        assert f"No, because of {KEY[:6]}" in text
    assert "run the same command again" not in said.out + said.err
    assert f"no pair was judged by {server.model}" in said.err
    assert "Not significant" not in said.out
    row = json.loads((tmp_path / "out/leaderboard.json").read_text())[-1]
    assert (row["rater"], row["agreement"]["mean"], row["comparison"]) == (server.model, None, None)
    (record,) = json.loads((tmp_path / "out/manifest.json").read_text())["counts"]["raters"][
        server.model
    ]
    assert record["notes"]["errors"] == 24
    assert "No, because" in record["notes"]["such_as"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max_calls", "3"], "unknown key 'max_calls': did you mean 'traffic.max_calls'"),
        (["--max_cost_usd", "1"], "set traffic.max_calls instead"),
    ],
)
def test_messages_name_keys_of_the_command(arguments, message, judge, capsys):
    with pytest.raises(SystemExit):
        judge(*arguments)
    assert message in capsys.readouterr().err


def test_traffic_is_used_and_calls_are_limited(judge, tmp_path, capsys):
    keys = ("--traffic.connections", "3", "--traffic.first_connections", "3", "--out", "out")
    with FakeOpenAI(seconds=0.05) as server:
        with pytest.raises(SystemExit):
            judge(*keys, "--traffic.max_calls", "10")
        said = capsys.readouterr()
        assert (server.requests, server.max_at_once) == (10, 3)
        assert "max_calls of 10 is reached: run the same command again" in said.err
        page = (tmp_path / "out/report.html").read_text("utf-8")
        counts = json.loads((tmp_path / "out/manifest.json").read_text())["counts"]
        assert 0 < counts["pairs"] <= 5
        assert (counts["verdicts"], counts["errors"]) == (3 * counts["pairs"], 0)
        for text in (said.out, page):
            assert f"Partial: {counts['pairs']} of 12 pairs." in text
        judge(*keys)
        assert server.requests == 24
    assert "Partial" not in (tmp_path / "out/report.html").read_text("utf-8")
