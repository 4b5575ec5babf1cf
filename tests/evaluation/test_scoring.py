"""Scoring of files: all rows are kept; kills and several processes do not change the output."""

import contextlib
import csv
import json
import math
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import litbench
import litbench.raters.interface
from litbench import models
from litbench.data.ingest import read_foreign
from litbench.data.records import Schema
from litbench.evaluation import scoring
from litbench.evaluation.command import Score, score
from litbench.evaluation.scoring import (
    ScoringJob,
    score_files,
    scorer_spec,
)
from litbench.models import model_entry
from litbench.models.baselines import LengthRater
from litbench.models.features import FeatureOptions, fit_features
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import only_writer
from litbench.testing import rename_sides

ROOT = Path(__file__).resolve().parents[2]
TWO = ROOT / "configs" / "accelerate" / "cpu_two_processes.yaml"
ANY = Schema("rows", (), ())
LONGER = scorer_spec({"kind": "longer"})


def story_rows(n, prompts=5, seed=0, words=9):
    source = random.Random(seed)
    return [
        {
            "id": index,
            "text": " ".join(source.choices(["a", "door", "river"], k=source.randint(1, words))),
            "prompt": f"[WP] Prompt {source.randrange(prompts)}",
        }
        for index in range(n)
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
    return read_foreign(made.out, made.schema).to_pylist()


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_rows_keep_order_and_get_reward_and_rank(job, suffix):
    rows = [{**row, "note": 'a "quote",\nand a line'} for row in story_rows(40)]
    whole, made = (job(rows, f"{n}.{suffix}", chunk_stories=n) for n in (1_000, 7))
    scored(whole)
    result = scored(made)
    assert made.out.read_bytes() == whole.out.read_bytes()
    for name in ("text", "note"):
        assert [row[name] for row in result] == [row[name] for row in rows]
    assert [int(row["id"]) for row in result] == [row["id"] for row in rows]
    rewards = [float(row["reward"]) for row in result]
    assert rewards == [row["text"].count(" ") + 1 for row in rows]
    for row, reward in zip(result, rewards, strict=True):
        better = {
            other["id"]
            for other, its in zip(result, rewards, strict=True)
            if other["prompt"] == row["prompt"] and its > reward
        }
        assert int(row["rank_within_prompt"]) == 1 + len(better)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_columns_of_any_name_and_type_are_written(job, tmp_path, suffix):
    rows = [{"prompt": "p", "text": "a b", "": 1, 'a"b': 2, "a\0b": 3}]
    names = ["prompt", "text", "unnamed", 'a"b', "a\0b"]
    source = tmp_path / "in.parquet"
    table = pa.Table.from_pylist(rows).append_column("half", pa.array([np.float16(0.5)]))
    pq.write_table(table.append_column("for", pa.array([90], pa.duration("s"))), source)
    for made in (job(rows, f"a.{suffix}"), job(None, f"b.{suffix}", source=source)):
        (row,) = scored(made)
        assert [row["prompt"], row["text"], *(int(row[name]) for name in names[2:])] == [
            "p",
            "a b",
            1,
            2,
            3,
        ]
    assert (str(row["half"]), str(row["for"])) == ("0.5", "PT1M30S")


# Columns of JSON may have values of any type, which Parquet has no type for.
@pytest.mark.parametrize(
    ("source", "suffix"), [("parquet", "parquet"), ("parquet", "jsonl"), ("jsonl", "jsonl")]
)
def test_objects_lists_and_large_integers_survive(job, tmp_path, source, suffix):
    rows = [
        {
            "prompt": "p",
            "text": f"a b {k}",
            "tags": ["x", 'y "z"'],
            "votes": {"up": [k, 2], "by": None if k else {"id": 2**60}},
            "large": 2**63 + k,
        }
        for k in range(3)
    ]
    path = tmp_path / f"in.{source}"
    if source == "jsonl":
        write_jsonl(rows, path)
    else:
        table = pa.Table.from_pylist([{**row, "large": 0} for row in rows])
        large = pa.array([row["large"] for row in rows], pa.uint64())
        pq.write_table(table.set_column(4, "large", large), path)
    made = job(None, f"out.{suffix}", source=path)
    score_files(made)
    if suffix == "parquet":
        result = pq.read_table(made.out).to_pylist()
    else:
        result = [json.loads(line) for line in made.out.read_text().splitlines()]
    assert [{name: row[name] for name in rows[0]} for row in result] == rows


def test_memory_does_not_grow_with_the_file(tmp_path):
    program = (
        "import resource, sys; from pathlib import Path; from litbench.data import chunks, ingest; "
        "from litbench.data.records import Schema; chunks.CHUNK_BYTES = 4 << 20; "
        "ingest.StreamingTable([sys.argv[1]], Schema('any', (), ()), Path(sys.argv[2])); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)"
    )

    def peak(megabytes):
        """Return the peak memory of reading a file, in MiB."""
        folder = tmp_path / str(megabytes)
        folder.mkdir()
        row = json.dumps({"prompt": "p", "text": "a door " * 14_285}) + "\n"
        with (folder / "in.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(row for _ in range(megabytes * 10))
        command = [sys.executable, "-c", program, str(folder / "in.jsonl"), str(folder)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert peak(300) < peak(100) + 100


# Columns that a rater without training stories leaves empty.
NO_TRAINING = dict.fromkeys(("reward_percentile", "is_prose", "like_training", "reasons"))


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_flags_and_their_reasons_are_columns(job, braces_are_code, suffix):
    del braces_are_code
    rows = [{"prompt": "p", "text": text} for text in ("a b c", "{} and {}")]
    made = job(rows, f"out.{suffix}")
    written = scored(made)
    good, bad = ("true", "false") if suffix == "csv" else (True, False)
    assert [(row["is_prose"], row["like_training"]) for row in written] == [(good,) * 2, (bad,) * 2]
    assert [row["reasons"] or None for row in written] == [None, "code; braces"]
    manifest = json.loads(made.manifest.read_text(encoding="utf-8"))
    assert manifest["counts"]["flagged"] == {"is_prose": 1, "like_training": 1}


def test_flags_of_both_sides_of_a_pair_are_theirs(tmp_path, braces_are_code):
    del braces_are_code
    rows = [{"prompt": f"p{n}", "chosen": "{a b}", "rejected": f"a b {n}"} for n in range(3)]
    write_jsonl(rows, tmp_path / "pairs.jsonl")
    pairs = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
    made = ScoringJob(LONGER, str(tmp_path / "pairs.jsonl"), tmp_path / "out.jsonl", pairs=pairs)
    score_files(made)
    written = [json.loads(line) for line in made.out.read_text(encoding="utf-8").splitlines()]
    assert [row["is_prose_chosen"] for row in written] == [False] * 3
    assert [row["is_prose_rejected"] for row in written] == [True] * 3
    assert written[0]["reasons_chosen"] == "code; braces"


def test_other_column_names_and_old_rewards(job):
    rows = [{"prompt": "not it", "title": "p", "body": "a b c", "reward": 9}]
    (row,) = scored(job(rows, prompt_column="title", text_column="body"))
    columns = {"title": "p", "body": "a b c", "prompt": "not it"}
    assert row == {**columns, "reward": 3.0, **NO_TRAINING, "rank_within_prompt": 1}


# Other columns, with their values in the one row of the input.
NAMES = [
    {"id": "1", "ID": "2"},
    {"id": "1", "ID": "2", "Id": "3", "iD": "4"},
    {"Score": "10", "score": "1"},
    {"score": "1", "Score": "10", "SCORE": "100"},
    {"Prompt": "other"},
    {"PROMPT": "other", "Text": "other", "TEXT": "another"},
    {"Reward": "5"},
    {"REWARD": "5", "Reward": "6"},
    {"Reward_Percentile": "7", "RANK_within_prompt": "8"},
    {"İ": "1", "i": "2", "ı": "3", "I": "4"},
    {"ß": "1", "SS": "2", "ss": "3", "ẞ": "4"},
    {"É": "1", "é": "2"},
    {"Σ": "1", "σ": "2", "ς": "3"},
    {"ǅ": "1", "Ǆ": "2", "ǆ": "3"},
    {"c0": "1", "C0": "2", "a0": "3"},
    {"id_1": "1", "id": "2", "ID": "3"},
    {'a"b': "1", 'A"B': "2"},
    {"it's": "1", "It's": "2"},
    {"a,b": "1", "A,B": "2"},
    {"select": "1", "SELECT": "2"},
    {"(row) ": "1", "(ROW)": "2"},
]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("others", NAMES, ids=" ".join)
def test_names_that_differ_only_in_case_keep_their_values(tmp_path, others, ending):
    row = {"prompt": "p", "text": "a b c", **others}
    source = tmp_path / f"in.{ending}"
    if ending == "jsonl":
        write_jsonl([row], source)
    elif ending == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), source)
    else:
        with source.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([row.keys(), row.values()])
    added = {"reward": 3.0, **NO_TRAINING, "rank_within_prompt": 1}
    for out in ("jsonl", "csv", "parquet"):
        job = ScoringJob(LONGER, str(source), tmp_path / f"out.{out}")
        score_files(job)
        if out == "jsonl":
            assert json.loads(job.out.read_text(encoding="utf-8")) == {**row, **added}
        elif out == "parquet":
            table = pq.read_table(job.out)
            assert dict(
                zip(table.column_names, (c[0].as_py() for c in table.columns), strict=True)
            ) == {
                **row,
                **added,
            }
        else:
            with job.out.open(encoding="utf-8", newline="") as file:
                names, values = csv.reader(file)
            assert dict(zip(names, values, strict=True)) == {
                **row,
                "reward": "3.0",
                **dict.fromkeys(NO_TRAINING, ""),
                "rank_within_prompt": "1",
            }


@pytest.mark.parametrize("separator", [", ", ","])
def test_json_rows_are_written_as_they_came(job, tmp_path, separator):
    rows = [
        '{"prompt": "p", "text": "a b", "meta": {"a": {"b": [1, {}]}}, "b": 12345678901234567890}',
        '{"text": "a", "prompt": "p", "tags": [], "n": 1.10, "mixed": 1, "null": null}  ',
        '{"text": "a b \\ud83d\\ude00 \\u2028", "prompt": "p", "mixed": "two", "x": "}"}',
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(row.replace(", ", separator) for row in rows))
    made = job(None, "out.jsonl", source=source)
    score_files(made)
    lines = made.out.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(rows)
    for line, row in zip(lines, source.read_text().split("\n"), strict=True):
        assert line.startswith(row.rstrip()[:-1] + ',"reward":')
        assert json.loads(line)["reward_percentile"] is None


def test_rows_of_an_array_and_old_rewards_are_written_as_json(job, tmp_path):
    rows = [{"prompt": "p", "text": "a b", "reward": 7, "Reward": 8, "meta": {"reward": 9}}]
    source = tmp_path / "in.json"
    source.write_text(json.dumps(rows, indent=2))
    made = job(None, "out.jsonl", source=source)
    assert score_files(made)["replaced_columns"] == ["reward"]
    added = {"reward": 2.0, **NO_TRAINING, "rank_within_prompt": 1}
    assert json.loads(made.out.read_text()) == {**rows[0], **added}


def test_an_empty_story_is_rejected(job):
    rows = [{"prompt": "p", "text": text} for text in ("a", "", "\u200b\n", "&#x200B;")]
    made = job(rows)
    assert len(scored(made)) == 1
    manifest = json.loads(made.manifest.read_text())
    assert manifest["counts"]["rejected_rows"] == {"text: no text": 3}


def test_two_programs_do_not_write_one_output(job):
    made = job(story_rows(3))
    with only_writer(made.parts), pytest.raises(DataError, match=r"out.parquet: another program"):
        score_files(made)
    assert len(scored(made)) == 3


@pytest.mark.parametrize("blocked", ["a file as folder", "a folder as file", "a name too long"])
def test_an_output_that_cannot_be_written_is_an_error_before_the_work(
    job, tmp_path, monkeypatch, blocked
):
    monkeypatch.setattr(scoring, "load_scorer", None)
    outs = {"a file as folder": "in.jsonl/out.csv", "a name too long": "n" * 300 + ".csv"}
    (tmp_path / "out.csv").mkdir()
    with pytest.raises((DataError, ConfigError), match=r"cannot write .*|out: .* is a folder"):
        score_files(job(story_rows(1), outs.get(blocked, "out.csv")))


def test_nan_is_null_in_json(job):
    # Python reads and writes NaN in JSON.
    rows = [
        {"prompt": "p", "text": "a b", "x": math.nan, "in": {"y": math.inf, "z": [-math.inf, 2.5]}},
        {"prompt": "p", "text": "a", "x": 1.5, "in": None},
    ]
    made = job(rows, "out.jsonl")
    score_files(made)
    first, second = map(json.loads, made.out.read_text().splitlines())
    assert (first["x"], first["in"]) == (None, {"y": None, "z": [None, 2.5]})
    assert (second["x"], second["in"]) == (1.5, None)
    # Parquet supports NaN, so it is kept.
    assert math.isnan(scored(job(rows))[0]["x"])


def test_broken_rows_are_rejected(job, tmp_path):
    rows = story_rows(3)
    source = write_jsonl(rows, tmp_path / "broken.jsonl")
    with source.open("a") as file:
        file.write('{"prompt": "p", "text": null}\nnot json\n')
    made = job(None, source=source, where="id IS DISTINCT FROM 1")
    assert [row["id"] for row in scored(made)] == [0, 2]
    assert json.loads(made.manifest.read_text())["counts"]["left_out_by_where"] == 1
    noted = [json.loads(line) for line in made.rejected_rows.read_text().splitlines()]
    assert [(Path(row["file"]).name, row["row"], row["reason"]) for row in noted] == [
        ("broken.jsonl", 4, "null"),
        ("broken.jsonl", 5, "not JSON"),
    ]
    scored(job(rows, source=write_jsonl(rows, source)))
    assert not made.rejected_rows.exists()


# Errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"out": Path("out.txt")}, r"unknown suffix .* use \.parquet"),
        ({"prompt_column": "text"}, "two different columns"),
        ({"text_column": "reward_percentile"}, "other than reward, reward_percentile"),
        ({"input": "out.csv"}, "is both input and output"),
        ({"input": "out.csv.rejected.jsonl"}, "is both input and output"),
        ({"input": "out.csv.manifest.json"}, "is both input and output"),
        ({"rater": scorer_spec({"kind": "random"})}, "compares stories and gives no rewards"),
    ],
)
def test_invalid_jobs(tmp_path, changes, message):
    source = write_jsonl(story_rows(1), tmp_path / "in.jsonl")
    arguments = {"rater": LONGER, "input": str(source), "out": Path("out.csv"), **changes}
    with pytest.raises(ConfigError, match=message):
        score_files(ScoringJob(**arguments))


def test_non_finite_reward_stops_the_run(job, monkeypatch):
    monkeypatch.setattr(LengthRater, "score", lambda _, __, stories: [np.nan] * len(stories))
    with pytest.raises(DataError, match="3 of 3 rewards"):
        score_files(job(story_rows(3)))


def test_kind_of_model_folder(tmp_path, monkeypatch):
    folder = tmp_path / "run" / "model"
    folder.mkdir(parents=True)
    with pytest.raises(ConfigError, match="holds no model"):
        model_entry(str(folder))
    (folder / "features.json").touch()
    with pytest.raises(ConfigError, match=f"{folder.parent} holds no model .* give {folder}$"):
        model_entry(str(folder.parent))
    assert model_entry(str(folder)) == {"kind": "features", "path": str(folder)}
    with pytest.raises(ConfigError, match="leave out device"):
        model_entry(str(folder), device="cpu")
    monkeypatch.setattr(models, "fetch_model", lambda _: tmp_path)
    assert model_entry("owner/name", batch_tokens=9)["kind"] == "reward"


# Percentiles ---------------------------------------------------------------------------------


def test_percentile_is_the_share_of_lower_training_rewards(pair_table):
    pairs = pair_table([{"chosen": "a " * n, "rejected": "a " * (n + 50)} for n in range(1, 51)])
    rater = LengthRater("longer", "longer", 1)
    assert rater.percentiles([1.0]) is None
    rater.score_training_stories(pairs)
    # The stories have 1 to 100 words.
    assert rater.percentiles([0, 1, 50.5, 80.2, 100, 999]).tolist() == [0, 0, 50, 80, 100, 100]


def test_drawn_training_stories_depend_on_the_texts_only(pair_table, monkeypatch):
    monkeypatch.setattr(litbench.raters.interface, "_STORIES_FOR_QUANTILES", 20)
    pairs = pair_table([{"chosen": "a " * n, "rejected": "a " * (n + 50)} for n in range(1, 51)])
    results = []
    for table in (pairs, rename_sides(pairs).take(list(range(49, -1, -1)))):
        rater, scored_texts = LengthRater("longer", "longer", 1), []
        score = rater.score
        monkeypatch.setattr(rater, "score", lambda p, s: scored_texts.extend(s) or score(p, s))  # noqa: B023
        rater.score_training_stories(table)
        results.append((scored_texts, rater.reward_quantiles))
    assert results[0] == results[1]
    assert len(results[0][0]) == 20


def test_saved_models_keep_their_percentiles(pair_table, tiny_model, tmp_path):
    pytest.importorskip("torch")
    from litbench.models.reward import RewardModel  # noqa: PLC0415

    pairs = pair_table([{"prompt_id": f"p{n % 3}"} for n in range(20)])
    features = fit_features(pairs, FeatureOptions(c=[0.1]))
    reward = RewardModel.load(tiny_model("llama"), device="cpu")
    assert reward.percentiles([0.0]) is None
    reward.score_training_stories(pairs)
    for model in (features, reward):
        model.save(tmp_path / model.kind)
        loaded = type(model).load(tmp_path / model.kind)
        assert loaded.reward_quantiles == model.reward_quantiles
        prompts = [*pairs["prompt"].to_pylist()] * 2
        rewards = loaded.score(
            prompts, [*pairs["chosen"].to_pylist(), *pairs["rejected"].to_pylist()]
        )
        assert sorted(loaded.percentiles(rewards))[::39] == pytest.approx([0, 100], abs=0.1)
    reverse = RewardModel.load(tmp_path / "reward", reverse=True)
    assert reverse.reward_quantiles is None


# Resuming ------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


@pytest.fixture
def dying(monkeypatch):
    """Let the rater raise after some chunks; returns the stories that it scored."""
    chunks_scored = []
    score = LengthRater.score

    def start(chunks):
        chunks_scored.clear()

        def dies(self, prompts, stories):
            if len(chunks_scored) == chunks:
                raise Killed
            chunks_scored.append(list(stories))
            return score(self, prompts, stories)

        monkeypatch.setattr(LengthRater, "score", dies)
        return chunks_scored

    return start


def test_killed_run_resumes(job, dying):
    rows = story_rows(50)
    whole = job(rows, "whole.parquet", chunk_stories=8)
    scored_chunks = dying(None)
    scored(whole)
    assert len(scored_chunks) == 7
    made = job(rows, chunk_stories=8)
    for chunks in (2, 3):
        dying(chunks)
        with pytest.raises(Killed):
            score_files(made)
    # A chunk that was half written when the run was killed.
    (folder,) = made.parts.glob("input-*")
    (folder / ".part-half").write_bytes(b"half")
    dying(None)
    scored(made)
    assert len(scored_chunks) == 2
    assert made.out.read_bytes() == whole.out.read_bytes()
    dying(0)
    assert score_files(made)["unchanged"]


@pytest.mark.parametrize("change", ["input", "rater", "where", "column", "version"])
def test_chunks_of_another_job_are_not_used(job, dying, monkeypatch, change):
    rows = story_rows(20)
    made = job([{**row, "story": row["text"]} for row in rows], chunk_stories=5)
    dying(3)
    with pytest.raises(Killed):
        score_files(made)
    scored_chunks = dying(None)
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
    assert sum(map(len, scored_chunks)) == 20


def test_changed_model_is_scored_again(job, tiny_model, tmp_path):
    pytest.importorskip("torch")
    import shutil  # noqa: PLC0415

    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    folder = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    spec = scorer_spec(model_entry(str(folder), device="cpu"))
    made = replace(job(story_rows(9), chunk_stories=4), rater=spec)
    before = [row["reward"] for row in scored(made)]
    assert score_files(made)["unchanged"]
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: w * 1.1 for name, w in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    after = [row["reward"] for row in scored(made)]
    assert all(abs(a - b) > 1e-3 for a, b in zip(before, after, strict=True))


def test_truncated_stories_are_counted_over_all_runs(job, tiny_model, invented):
    source = random.Random(0)
    rows = [{"prompt": "p", "text": invented(source, 700 if n % 3 else 5)} for n in range(9)]
    spec = scorer_spec(model_entry(str(tiny_model("bert")), device="cpu"))
    made = replace(job(rows, chunk_stories=2), rater=spec)
    results = []
    finite_rewards = scoring.finite_rewards

    def dies(*arguments):
        results.append(1)
        if len(results) == 3:
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
    """Kill a process and its children, which would survive their launcher."""
    psutil = pytest.importorskip("psutil")
    tree = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for item in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            item.kill()
    psutil.wait_procs(tree)
    process.communicate()


def test_processes_give_the_bytes_of_one(job, tmp_path):
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
def test_killed_processes_give_the_bytes_of_one(tiny_model, invented, tmp_path):
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


# Loading -------------------------------------------------------------------------------------


def test_load_gives_whatever_was_saved(tmp_path, pair_table, tiny_model):
    rows = [{"chosen": "Well, well. " * (1 + n % 3), "rejected": "Dull! " * 9} for n in range(20)]
    fit_features(pair_table(rows), FeatureOptions(c=[0.1])).save(tmp_path / "features")
    features = litbench.load(tmp_path / "features")
    prompts, stories = ["[WP] A door."] * 2, ["Well, it opened.", "Shut! Shut!"]
    first, second = features.score(prompts, stories)
    compared = features.compare(prompts[:1], stories[:1], stories[1:])
    assert compared[0] == pytest.approx(1 / (1 + np.exp(second - first)))
    assert features.percentiles([first]).shape == (1,)

    reward = litbench.load(str(tiny_model("bert")), device="cpu")
    assert reward.kind == "reward"
    assert reward.score(prompts, stories).shape == (2,)
    preferred = reward.compare(prompts, stories, stories[::-1])
    assert set(preferred) <= {0.0, 0.5, 1.0} or preferred.sum() == pytest.approx(1)

    class Unsure(LengthRater):
        def judge(self, pairs):
            return [[replace(judged[0], prefers="refused")] for judged in super().judge(pairs)]

    assert np.isnan(Unsure("x", "x", 1).compare(prompts, stories, stories)).all()
    with pytest.raises(ConfigError, match="there is no folder"):
        litbench.load(tmp_path / "nowhere")


LISTS = {
    "completions": [["a door", "a door opens"], ["a", "a b", "a b c"], ["a"]],
    "answers": [[{"text": "a door", "rank": 2}, {"text": "a door opens"}], *[[{"story": "a"}]] * 3],
}


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize("column", LISTS)
def test_each_answer_of_a_row_is_scored(column, suffix, tmp_path):
    """Rows without texts are rejected; the other columns are repeated, and answers share a key."""
    lists = [*LISTS[column], [], ["a", 3], ["a", "&nbsp;"]]
    rows = [{"prompt": f"P{k}", column: answers, "n": k} for k, answers in enumerate(lists)]
    source = write_jsonl(rows, tmp_path / "rows.jsonl")
    if suffix == ".csv":
        source = tmp_path / "rows.csv"
        with source.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    out = tmp_path / f"scored{suffix}"
    score(Score(rater={"kind": "longer"}, input=str(source), out=out))
    scored = list(read_foreign(out, ANY).to_pylist())
    texts = [
        (f"P{k}", answer if isinstance(answer, str) else next(iter(answer.values())), k)
        for k, answers in enumerate(LISTS[column])
        for answer in answers
    ]
    assert [(row["prompt"], row["text"], int(row["n"])) for row in scored] == texts
    assert [float(row["reward"]) for row in scored] == [len(text.split()) for _, text, _ in texts]
    assert len({row["item_id"] for row in scored}) == len(LISTS[column])
    assert column not in scored[0]
    rejected = read_foreign(f"{out}.rejected.jsonl", ANY)["reason"].to_pylist()
    assert rejected == ["no list of answers", "an answer is not text", "no text"]
    source = write_jsonl([{"prompt": "P", column: ["&nbsp;"]}], tmp_path / "empty.jsonl")
    with pytest.raises(DataError, match="no usable row"):
        score(Score(rater={"kind": "longer"}, input=str(source), out=out))
