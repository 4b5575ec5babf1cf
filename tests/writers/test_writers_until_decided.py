"""A run until decided ends with its last comparison, and what it stopped is marked everywhere."""

import json
import re

import numpy as np
import pytest
from fake_openai import FakeOpenAI
from story_script import rate, write

from litbench.data.records import GRADES
from litbench.data.tables import read_table
from litbench.metrics.comparisons import paired_difference
from litbench.runs.errors import ConfigError
from litbench.runs.outputs import Cache, read_manifest
from litbench.writers.compare import WritersConfig, compare, compare_writers, read_runs
from litbench.writers.run import Run, run

pytest.importorskip("inspect_ai")
pytest.importorskip("openai")

PROMPTS = [f"[WP] Task {number}" for number in range(24)]


@pytest.fixture
def server():
    others = {name: write(name) for name in ("base", "good", "even")}
    with FakeOpenAI(others=others | {"judge": rate}) as server:
        yield server


@pytest.fixture
def until(tmp_path):
    """Run until decided against `base`; the record of its looks."""

    def call(*names, out="out", calls=None, prompts=PROMPTS, **keys):
        traffic = {"first_wait_seconds": 0.01, "timeout_seconds": 60, "max_calls": calls}
        entry = {"model": FakeOpenAI.model_called("judge"), "traffic": traffic}
        writers = {name: FakeOpenAI.model_called(name) for name in ("base", *names)}
        keys = {"until": "decided", "against": "base", **keys}
        options = {"prompts": prompts}
        run(Run("stories", tmp_path / out, writers, {"j": entry}, options=options, **keys))
        return None if keys.get("dry_run") else read_manifest(tmp_path / out)["counts"]

    return call


def test_a_clear_writer_ends_the_run_and_is_marked(until, server, tmp_path, capsys):
    record = until("good")["until_decided"]
    result, plan = record["comparisons"]["good"], record["plan"]
    last = result["looks"][-1]
    assert result["reason"] == "decided"
    assert last["prompts"] < plan["prompts"][-1] == 24
    # Two writers and the judge of each, once a prompt.
    assert server.requests == 4 * last["prompts"]
    stopped = f"{last['prompts']} of 24 prompts"
    text = f"decided after {stopped}, planned error 5 %: grade above base"
    output = capsys.readouterr().out
    assert text in output
    assert "items (stopped)" in output
    rows = read_table(tmp_path / "out/grades.parquet", GRADES).to_pylist()
    grades = {(row["writer"], row["prompt_id"]): row["grade"] for row in rows if row["rater"]}
    prompts = sorted({prompt for _, prompt in grades})
    good, base = (np.array([grades[name, key] for key in prompts]) for name in ("good", "base"))
    interval, _ = paired_difference(good, base, prompts)
    assert last["mean"] == pytest.approx(interval.mean, abs=1e-5)
    compare_writers(WritersConfig(tmp_path / "out", tmp_path / "page", reference="base"))
    row, other = json.loads((tmp_path / "page/writers.json").read_text())["rows"]
    assert row["stopped"] == other["stopped"] == stopped
    assert (row["difference"], row["p_holm"]) == (result["interval"], result["p_holm"])
    config = WritersConfig(tmp_path / "out", tmp_path / "page", reference="good")
    rows = compare(config, read_runs([tmp_path / "out"]), Cache(tmp_path / "parts")).rows
    assert {row.p_holm for row in rows} == {None}, "no p value that ignores the looks"
    page = (tmp_path / "page/writers.html").read_text()
    assert text in page
    assert f"good (stopped: {stopped})" in page
    assert "good (stopped)" in page, "pictures mark it too"


def test_a_limited_run_resumes_with_the_same_looks(until, server, tmp_path):
    whole = until("good", "even", out="whole")["until_decided"]
    assert whole["comparisons"]["even"]["reason"] == "futile"
    ends = {name: row["looks"][-1]["prompts"] for name, row in whole["comparisons"].items()}
    assert ends["even"] < ends["good"], "a comparison that has ended gets no further look"
    asked = server.requests
    limited = until("good", "even", calls=40)["until_decided"]
    assert limited["comparisons"]["good"]["reason"] == "limit"
    assert until("good", "even")["until_decided"] == whole
    assert server.requests == 2 * asked, "nothing is asked twice"
    counts = read_manifest(tmp_path / "out")["counts"]
    assert counts["dialogues"] == {"finished": 3 * ends["good"]}
    with pytest.raises(ConfigError, match="until changed"):
        until("good", "even", looks=5)
    with pytest.raises(ConfigError, match="until changed"):
        until("good", "even", until=None)
    before = server.requests
    assert until("good", "even", calls=0, out="none")["until_decided"]["plan"]
    assert server.requests == before + 3 * whole["plan"]["prompts"][0]


def test_a_grade_is_a_reference_and_a_dry_run_asks_nothing(until, server, capsys):
    record = until(against="3.0")["until_decided"]
    assert record["comparisons"]["base"]["reason"] == "decided"
    asked = server.requests
    capsys.readouterr()
    until("good", out="new", dry_run=True)
    output = capsys.readouterr().out
    assert "8 looks, the first at 8 of 24 prompts" in output
    assert re.search(r"96 calls at worst, \d\d \(\d\d%\) if the difference is none", output)
    assert server.requests == asked


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"prompts": PROMPTS[:19]}, "19 prompts are fewer than 20"),
        ({"against": None}, "name another writer"),
        ({"against": "bass"}, "base"),
    ],
)
def test_runs_that_cannot_be_decided(until, keys, message):
    with pytest.raises(ConfigError, match=message):
        until("good", **keys)
