"""Files of any size are scored: every row comes back, kills and processes leave no trace."""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from litbench import scoring
from litbench.errors import ConfigError, DataError
from litbench.raters import LengthRater
from litbench.scoring import (
    ScoringJob,
    score_files,
    scorer_entry,
    scorer_spec,
)
from litbench.tables import read_table

ROOT = Path(__file__).resolve().parent.parent
TWO = ROOT / "configs" / "accelerate" / "cpu_two_processes.yaml"
LONGER = scorer_spec({"kind": "longer"})
FORMATS = ("parquet", "jsonl", "csv")


def story_rows(n, prompts=5, seed=0, words=9):
    source = random.Random(seed)
    return [
        {
            "id": place,
            "text": " ".join(source.choices(["a", "door", "river"], k=source.randint(1, words))),
            "prompt": f"[WP] Prompt {source.randrange(prompts)}",
        }
        for place in range(n)
    ]


def write_jsonl(rows, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def job(tmp_path):
    """A job on invented stories: `job(rows, out="x.csv", chunk_stories=3)`."""

    def make(rows, out="out.parquet", **changes):
        source = changes.pop("source", None) or write_jsonl(rows, tmp_path / "in.jsonl")
        return ScoringJob(LONGER, str(source), tmp_path / out, **changes)

    return make


def scored(made):
    assert score_files(made) is not None
    assert not made.parts.exists()
    return read_table(made.out, made.schema).to_pylist()


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_row_comes_back_in_its_place_with_reward_and_rank(job, suffix):
    rows = story_rows(40)
    found = scored(job(rows, f"out.{suffix}", chunk_stories=7))
    assert [int(row["id"]) for row in found] == [row["id"] for row in rows]
    assert [row["text"] for row in found] == [row["text"] for row in rows]
    rewards = [float(row["reward"]) for row in found]
    assert rewards == [row["text"].count(" ") + 1 for row in rows]
    for row, reward in zip(found, rewards, strict=True):
        better = {
            other["id"]
            for other, its in zip(found, rewards, strict=True)
            if other["prompt"] == row["prompt"] and its > reward
        }
        assert int(row["rank_within_prompt"]) == 1 + len(better)


@pytest.mark.parametrize("suffix", FORMATS)
def test_chunks_do_not_show_in_the_output(job, suffix):
    rows = [{**row, "note": 'a "quote",\nand a line'} for row in story_rows(13)]
    outputs = set()
    for chunk in (3, 1000):
        made = job(rows, f"out{chunk}.{suffix}", chunk_stories=chunk)
        scored(made)
        outputs.add(made.out.read_bytes())
    assert len(outputs) == 1


def test_columns_can_have_other_names_and_older_rewards_are_replaced(job):
    rows = [{"prompt": "not it", "title": "p", "body": "a b c", "reward": 9}]
    made = job(rows, prompt_column="title", text_column="body")
    assert scored(made) == [
        {"title": "p", "body": "a b c", "prompt": "not it", "reward": 3.0, "rank_within_prompt": 1}
    ]


def test_broken_rows_are_rejected_with_their_reasons_and_an_old_list_goes(job, tmp_path):
    rows = story_rows(3)
    source = write_jsonl(rows, tmp_path / "broken.jsonl")
    with source.open("a") as file:
        file.write('{"prompt": "p", "text": null}\nnot json\n')
    made = job(None, source=source, where="id IS DISTINCT FROM 1")
    assert [row["id"] for row in scored(made)] == [0, 2]
    assert json.loads(made.manifest.read_text())["counts"]["left_out_by_where"] == 1
    noted = [json.loads(line) for line in made.rejected_rows.read_text().splitlines()]
    assert [(Path(row["file"]).name, row["row"], row["reason"]) for row in noted] == [
        ("broken.jsonl", 4, "null"), ("broken.jsonl", 5, "not JSON"),
    ]  # fmt: skip
    scored(job(rows, source=write_jsonl(rows, source)))
    assert not made.rejected_rows.exists()


# What may go wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"out": "out.txt"}, r"end it in one of \.parquet"),
        ({"prompt_column": "text"}, "name two columns"),
        ({"text_column": "reward"}, "none of reward"),
    ],
)
def test_a_job_that_cannot_be_done_is_refused_at_once(job, changes, message):
    with pytest.raises(ConfigError, match=message):
        job(story_rows(1), **changes)


def test_sources_and_output_are_told_apart(job):
    made = job(story_rows(1))
    for source in (made.out, made.rejected_rows, made.manifest):
        with pytest.raises(ConfigError, match="is input and output"):
            replace(made, input=str(source))


def test_raters_without_rewards_are_refused(job):
    with pytest.raises(ConfigError, match="verdicts on pairs and no rewards"):
        score_files(replace(job(story_rows(1)), rater=scorer_spec({"kind": "random"})))


def test_a_reward_that_is_no_number_stops_the_run(job, monkeypatch):
    monkeypatch.setattr(LengthRater, "score", lambda _, __, stories: [np.nan] * len(stories))
    with pytest.raises(DataError, match="3 of 3 rewards are not finite"):
        score_files(job(story_rows(3)))


def test_a_model_folder_tells_its_kind(tmp_path):
    folder = tmp_path / "run" / "model"
    folder.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"holds no model .* the folder of a trained model"):
        scorer_entry(str(folder))
    (folder / "features.json").touch()
    assert scorer_entry(str(folder)) == {"kind": "features", "path": str(folder)}
    with pytest.raises(ConfigError, match="is a feature model: leave out device"):
        scorer_entry(str(folder), device="cpu")
    assert scorer_entry("owner/name", batch_tokens=9)["kind"] == "reward"


# Going on ------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


@pytest.fixture
def dying(monkeypatch):
    """Let the rater die after so many chunks; returns the stories it was given."""
    given = []
    score = LengthRater.score

    def start(chunks):
        given.clear()

        def dies(self, prompts, stories):
            if len(given) == chunks:
                raise Killed
            given.append(list(stories))
            return score(self, prompts, stories)

        monkeypatch.setattr(LengthRater, "score", dies)
        return given

    return start


def test_a_run_goes_on_after_the_last_finished_chunk(job, dying):
    rows = story_rows(50)
    whole = job(rows, "whole.parquet", chunk_stories=8)
    given = dying(None)
    scored(whole)
    assert len(given) == 7
    made = job(rows, chunk_stories=8)
    for chunks in (2, 3):
        dying(chunks)
        with pytest.raises(Killed):
            score_files(made)
    # What a kill leaves of a half-written chunk.
    (folder,) = made.parts.glob("input-*")
    (folder / ".part-half").write_bytes(b"half")
    dying(None)
    scored(made)
    assert len(given) == 2
    assert made.out.read_bytes() == whole.out.read_bytes()
    dying(0)
    assert score_files(made)["unchanged"]


def test_a_damaged_part_is_scored_again(job, dying):
    rows = story_rows(50)
    whole, made = job(rows, "whole.csv", chunk_stories=8), job(rows, "out.csv", chunk_stories=8)
    scored(whole)
    dying(3)
    with pytest.raises(Killed):
        score_files(made)
    part = sorted(made.parts.glob("input-*/0*.json"))[1]
    part.write_bytes(part.read_bytes().replace(b"1.0", b"2.0"))
    given = dying(None)
    scored(made)
    assert len(given) == 5
    assert made.out.read_bytes() == whole.out.read_bytes()


@pytest.mark.parametrize("change", ["input", "rater", "where", "column", "version"])
def test_chunks_of_another_job_are_not_taken(job, dying, monkeypatch, change):
    rows = story_rows(20)
    made = job([{**row, "story": row["text"]} for row in rows], chunk_stories=5)
    dying(3)
    with pytest.raises(Killed):
        score_files(made)
    given = dying(None)
    if change == "input":
        made = job([{**rows[0], "text": "other"}, *rows[1:]], chunk_stories=5)
    elif change == "version":
        monkeypatch.setattr(scoring, "VERSION", scoring.VERSION + 1)
    else:
        changes = {
            "rater": {"rater": scorer_spec({"kind": "shorter"})},
            "where": {"where": "true"},
            "column": {"text_column": "story"},
        }
        made = replace(made, **changes[change])
    scored(made)
    assert sum(map(len, given)) == 20


def test_a_changed_model_is_not_taken_for_the_old_one(job, tiny_model, tmp_path):
    pytest.importorskip("torch")
    import shutil  # noqa: PLC0415

    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    folder = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    spec = scorer_spec(scorer_entry(str(folder), device="cpu"))
    made = replace(job(story_rows(9), chunk_stories=4), rater=spec)
    before = [row["reward"] for row in scored(made)]
    assert score_files(made)["unchanged"]
    weights = load_file(folder / "model.safetensors")
    save_file({name: w * 1.1 for name, w in weights.items()}, folder / "model.safetensors",
              {"format": "pt"})  # fmt: skip
    after = [row["reward"] for row in scored(made)]
    assert all(abs(a - b) > 1e-3 for a, b in zip(before, after, strict=True))


def test_stories_cut_are_counted_over_all_runs(job, tiny_model, invented):
    source = random.Random(0)
    rows = [{"prompt": "p", "text": invented(source, 700 if n % 3 else 5)} for n in range(9)]
    spec = scorer_spec(scorer_entry(str(tiny_model("bert")), device="cpu"))
    made = replace(job(rows, chunk_stories=2), rater=spec)
    found = []
    finite_rewards = scoring.finite_rewards

    def dies(*arguments):
        found.append(1)
        if len(found) == 3:
            raise Killed
        return finite_rewards(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "finite_rewards", dies)
        with pytest.raises(Killed):
            score_files(made)
    scored(made)
    manifest = json.loads(made.manifest.read_text())
    assert manifest["counts"]["stories_cut"] == 6
    assert "stories_cut" not in manifest["notes"]


# Processes -----------------------------------------------------------------------------------


def start(arguments, launcher=(), **environment):
    command = launcher or [sys.executable]
    return subprocess.Popen(
        [*command, "-m", "litbench", "score", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    try:
        said, _ = process.communicate(timeout=580)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    assert process.returncode == 0, said[-3000:]
    return said


def kill(process):
    """Kill a process and all that it started: a launcher's death does not end them."""
    psutil = pytest.importorskip("psutil")
    tree = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for one in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(tree)
    process.communicate()


def test_processes_share_the_chunks_and_end_with_the_bytes_of_one(job, tmp_path):
    pytest.importorskip("accelerate")
    whole = job(story_rows(3_000, prompts=40), "whole.jsonl")
    scored(whole)
    arguments = ["--rater", "{kind: longer}", "--input", whole.input]
    arguments += ["--out", tmp_path / "two.jsonl"]
    said = finish(start(arguments, launcher(2)))
    assert said.count("3,000 stories scored") == 1
    assert (tmp_path / "two.jsonl").read_bytes() == whole.out.read_bytes()
    assert json.loads((tmp_path / "two.jsonl.manifest.json").read_text())["processes"] == 2
    assert not (tmp_path / "two.jsonl.parts").exists()


def launcher(processes):
    if processes == 1:
        return ()
    command = (sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(TWO))
    return (*command, "--num_processes", str(processes), "--main_process_port", "0")


@pytest.mark.long
def test_killed_runs_of_two_processes_end_with_the_bytes_of_one(tiny_model, invented, tmp_path):
    source = random.Random(0)
    rows = [
        {"prompt": f"[WP] {n % 999}", "text": invented(source, source.randint(5, 60))}
        for n in range(20_000)
    ]
    arguments = [
        "--model",
        tiny_model("llama"),
        "--input",
        write_jsonl(rows, tmp_path / "in.jsonl"),
    ]
    finish(start([*arguments, "--out", tmp_path / "whole.parquet"]))
    out = tmp_path / "out.parquet"
    for parts in (1, 5, 10):
        process = start([*arguments, "--out", out], launcher(2))
        while len(list(tmp_path.glob("out.parquet.parts/input-*/[0-9]*.json"))) < parts:
            assert process.poll() is None, "the kill would come too late"
            time.sleep(0.01)
        kill(process)
    finish(start([*arguments, "--out", out]))
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
