"""Generated stories: n of each prompt, none twice paid for, none without its reason left out."""

import json
import re
import threading

import pytest
from fake_openai import KEY, FakeOpenAI

from litbench.config import build
from litbench.errors import ConfigError, DataError, ModelError
from litbench.records import STORIES
from litbench.store import read_manifest
from litbench.tables import read_table, write_table

pytest.importorskip("inspect_ai")
pytest.importorskip("openai")

QUICK = {"first_wait_seconds": 0.01, "timeout_seconds": 60}
PROMPTS = [
    "[WP] A lighthouse keeper answers a letter.",
    "[WP] The last bus has one seat {words} left, and a {prompt}.",
    "A map that is wrong on purpose",
]


class Writer:
    """Answers every question with another story each time."""

    def __init__(self):
        self.count = 0
        self.lock = threading.Lock()

    def __call__(self, question):
        with self.lock:
            self.count += 1
            return f"\n Story {self.count} of {len(question)} letters, and then it ends. \n"


@pytest.fixture
def generate(load_program, tmp_path):
    """Run the program with some keys; its counts."""
    program = load_program("eval/generate.py")

    def run(**keys):
        config = build(
            program.Config,
            {
                "prompts": PROMPTS,
                "out": str(tmp_path / "out"),
                "model": FakeOpenAI.model,
                "n": 3,
                "traffic": QUICK,
                **keys,
            },
        )
        program.main(config)
        return {} if config.dry_run else dict(read_manifest(config.out)["counts"])

    return run


def stories_of(tmp_path):
    return read_table(tmp_path / "out/stories.parquet", STORIES).to_pylist()


def bring(server, monkeypatch):
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)


def test_every_prompt_gets_n_stories(generate, monkeypatch, tmp_path):
    with FakeOpenAI(Writer()) as server:
        bring(server, monkeypatch)
        counts = generate()
        assert server.requests == 9
        bodies = list(server.bodies.values())
    assert (counts["stories"], counts["distinct"], counts["prompts"]) == (9, 9, 3)
    rows = stories_of(tmp_path)
    assert len({row["story_id"] for row in rows}) == 9
    assert {row["source"] for row in rows} == {FakeOpenAI.model}
    for prompt in PROMPTS:
        own = [row for row in rows if row["prompt"] == prompt]
        assert [row["sample"] for row in own] == [0, 1, 2]
        assert len({row["prompt_id"] for row in own}) == 1
    assert all(row["text"] == row["text"].strip() for row in rows)
    assert all(row["score"] is None for row in rows)
    assert {body["temperature"] for body in bodies} == {1.0}


def test_the_task_is_filled_in_once(generate, monkeypatch):
    with FakeOpenAI(Writer()) as server:
        bring(server, monkeypatch)
        generate(words=[1000, 1200])
        asked = list(server.asked)
    assert len(asked) == 3
    assert all("Length: 1,000 to 1,200 words." in question for question in asked)
    assert sum("one seat {words} left, and a {prompt}." in question for question in asked) == 1


def test_larger_n_requests_only_new_samples(generate, monkeypatch, tmp_path, capsys):
    with FakeOpenAI(Writer()) as server:
        bring(server, monkeypatch)
        generate(n=2)
        before = {row["story_id"]: row["text"] for row in stories_of(tmp_path)}
        generate(n=5, dry_run=True)
        assert "9 calls" in capsys.readouterr().out
        assert server.requests == 6
        generate(n=5)
        assert server.requests == 15
        generate(n=5)
        assert "unchanged" in capsys.readouterr().out
    after = {row["story_id"]: row["text"] for row in stories_of(tmp_path)}
    assert before.items() <= after.items()
    assert KEY not in "".join(
        path.read_text(errors="ignore") for path in (tmp_path / "out").rglob("*.json*")
    )


def test_a_run_that_was_stopped_goes_on(generate, monkeypatch):
    with FakeOpenAI(Writer()) as server:
        bring(server, monkeypatch)
        with pytest.raises(ConfigError, match="max_calls of 4"):
            generate(traffic={**QUICK, "max_calls": 4})
        assert server.requests == 4
        assert generate()["stories"] == 9
        assert server.requests == 9


def test_dollars_are_told_and_limited(generate, monkeypatch, tmp_path, capsys):
    prices = tmp_path / "prices.yaml"
    prices.write_text(f"{FakeOpenAI.model}: {{input: 0, output: 100}}\n")
    sampling = {"temperature": 1.0, "max_tokens": 1000}
    with FakeOpenAI(Writer()) as server:
        bring(server, monkeypatch)
        generate(prices=str(prices), sampling=sampling, words=[75, 75], dry_run=True)
        said = capsys.readouterr().out
        assert "9 calls" in said
        # 9 times 100 tokens, and 9 times 1000 of them, at $100 a million.
        assert "about $0.09 for stories" in said
        assert "at most $0.90" in said
        limit = {**QUICK, "max_cost_usd": 0.25, "connections": 1}
        with pytest.raises(ConfigError, match="max_cost_usd"):
            generate(prices=str(prices), sampling=sampling, traffic={**limit, "max_cost_usd": 0.05})
        assert server.requests == 0
        counts = generate(prices=str(prices), sampling=sampling, traffic=limit)
        assert 0 < counts["cost_usd"] < 0.25
        # What earlier runs paid counts: the dearest end of a call, $0.10, is not left.
        left = {**limit, "max_cost_usd": 0.1 + counts["cost_usd"] / 2}
        before = server.requests
        with pytest.raises(ConfigError, match="max_cost_usd"):
            generate(prices=str(prices), sampling=sampling, traffic=left, n=4)
        assert server.requests == before
    with pytest.raises(ConfigError, match="no price"):
        generate(traffic={**QUICK, "max_cost_usd": 1.0}, out=str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("manner", "reason"), [("refusal", "refused"), ("filter", "refused"), ("length", "cut")]
)
def test_answers_without_a_story_are_rejected_rows(generate, monkeypatch, tmp_path, manner, reason):
    with FakeOpenAI(Writer(), manners=lambda q: manner if "lighthouse" in q else None) as server:
        bring(server, monkeypatch)
        counts = generate()
        assert counts["rejected_rows"] == {f"text: {reason}": 3}
        assert counts["stories"] + 3 == 9
        assert counts["answers"] == {"answered": 6, reason: 3}
        noted = [json.loads(x) for x in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
        assert {one["row"] for one in noted} == {1}
        assert server.requests == 9


def test_errors_end_a_run_or_are_accepted(generate, monkeypatch):
    traffic = {**QUICK, "max_retries": 0, "give_up_after": 100}
    with FakeOpenAI(Writer(), faults=lambda n, _: "400" if n % 2 else None) as server:
        bring(server, monkeypatch)
        generate(traffic=traffic, n=1, accept_errors=True)
    with FakeOpenAI(Writer(), faults=lambda *_: "400") as server:
        bring(server, monkeypatch)
        with pytest.raises(ModelError, match="stories failed"):
            generate(traffic=traffic)


def test_prompts_come_from_a_table_once_each(generate, monkeypatch, tmp_path, pair_table):
    rows = [
        {
            "prompt": f"[WP] Task {k // 3}",
            "prompt_id": f"p{k // 3}",
            "split": "train" if k < 6 else "test",
        }
        for k in range(18)
    ]
    # The same prompt under another tag.
    rows.append({"prompt": "task 5!", "prompt_id": "z", "split": "test"})
    write_table(pair_table(rows), tmp_path / "pairs.parquet")
    with FakeOpenAI(Writer()) as server:
        bring(server, monkeypatch)
        keys = {"prompts": str(tmp_path / "pairs.parquet"), "where": "split = 'test'", "n": 1}
        counts = generate(**keys)
        assert (counts["prompts"], counts["not_selected"]) == (4, 6)
        assert {row["prompt_id"] for row in stories_of(tmp_path)} == {"p2", "p3", "p4", "p5"}
        drawn = generate(**keys, most_prompts=2)
        assert drawn["prompts"] == 2
        assert server.requests == 4, "those drawn were asked for already"


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ({"n": 0}, ConfigError, "at least 1"),
        ({"sampling": {"temperature": 0}}, ConfigError, "all stories are the same"),
        ({"sampling": {"seed": 1}}, ConfigError, "all stories are the same"),
        ({"sampling": {"top_logprobs": 3}, "n": 1}, ConfigError, "top_logprobs"),
        ({"task": "Write."}, ConfigError, re.escape("{prompt}")),
        ({"words": [300, 200]}, ConfigError, "minimum and maximum"),
        ({"most_prompts": 0}, ConfigError, "most_prompts"),
        ({"prompts": ["  "]}, DataError, "no prompt has a text"),
    ],
)
def test_invalid_configs_raise_before_requests(generate, keys, error, says):
    with pytest.raises(error, match=says):
        generate(**keys)
