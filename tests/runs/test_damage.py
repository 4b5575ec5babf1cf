"""Damaged parts, caches and checkpoints: the run ends as if nothing had been damaged."""

import importlib
import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from litbench.collect.parts import fresh_parts
from litbench.data.tables import write_table
from litbench.evaluation import scoring
from litbench.evaluation.loop import Job, evaluate
from litbench.judges.answers import Answer, AnswerStore, Attempt
from litbench.raters.entries import parse_raters
from litbench.research.ablation import make_pairs
from litbench.research.embeddings import EmbeddingStore
from litbench.runs.outputs import Artifact, Cache, write_digest

# Resumes the work in a folder and returns its result.
Finish = Callable[[Path], Any]


def stop(*_, **__):
    raise KeyboardInterrupt


def judge(folder, pairs):
    specs = parse_raters({name: {"kind": name} for name in ("longer", "shorter", "random")})
    jobs = [Job(spec, spec.name, lambda: pairs, "these pairs") for spec in specs]
    results = evaluate(jobs, Cache(folder / "parts"))
    return [
        (result.verdicts.drop_columns("seconds").to_pylist(), result.record) for result in results
    ]


def score(folder, stories):
    spec = scoring.scorer_spec({"kind": "longer"})
    job = scoring.ScoringJob(spec, str(stories), folder / "out.parquet", chunk_stories=5)
    scoring.score_files(job)
    return pq.read_table(job.out).to_pylist()


def import_dumps(folder, module, dumps):
    files = {key: [str(dumps / key)] for key in ("submissions", "comments")}
    module.main(module.Config(out=folder / "out", **files))
    return [(folder / "out" / name).read_bytes() for name in ("stories.parquet", "rejected.jsonl")]


def copy_pairs(folder, pairs):
    made = make_pairs(None, pairs, "digest of the pairs", Cache(folder / "data"))
    return [(made / name).read_bytes() for name in ("pairs.parquet", "funnel.json")]


def collect(folder):
    parts = fresh_parts(folder, "posts", "a salt")
    posts = [{"read_utc": 5, "made_for": "a salt", "name": f"{k}"} for k in range(12)]
    return [parts.get(post["name"], lambda post=post: post) for post in posts]


def embed(folder):
    store = EmbeddingStore(folder / "embeddings")
    for k in range(12):
        if f"key {k}" not in store.rows:
            store.put(f"key {k}", np.full(4, k / 10, np.float32), [k, 0])
            store.keep()
    return [(store.rows[f"key {k}"][0].tolist(), store.rows[f"key {k}"][1]) for k in range(12)]


def ask(folder):
    with AnswerStore(folder) as store:
        for k in range(12):
            if store.get(f"key {k}") is None:
                answer = Answer("answered", f"Story {k} is better.", input_tokens=k)
                store.put(answer, Attempt(f"key {k}", "a/m", (k, 9)))
        return [store.get(f"key {k}") for k in range(12)]


def resume(folder):
    folder /= "checkpoints"
    for step in (2, 4, 6) if not folder.exists() else ():
        path = folder / f"checkpoint-{step}"
        path.mkdir(parents=True)
        state = {"global_step": step, "best_model_checkpoint": str(folder / "checkpoint-2")}
        (path / "trainer_state.json").write_text(json.dumps(state))
        (path / "model.safetensors").write_bytes(str(step).encode() * 500)
        write_digest(path, path)
    training = importlib.import_module("litbench.models.training")
    found = training.last_whole_checkpoint(folder)
    # The model may have been at any step.
    step = None if found is None else found.rpartition("-")[2].encode()
    return step is None or (Path(found) / "model.safetensors").read_bytes() == step * 500


KINDS = ["verdicts", "scores", "dumps", "pairs", "collected", "embeddings", "answers"]


@pytest.fixture
def prepare(tmp_path, load_program, pair_table, monkeypatch):
    """Leave the parts of a killed run in a folder; returns what finishes it."""

    def dump(name, rows):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def interrupt(run, owner, name):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, stop)
            with pytest.raises(KeyboardInterrupt):
                run()

    def build(kind, folder):
        if kind == "verdicts":
            pairs = pair_table([{} for _ in range(8)])
            return partial(judge, pairs=pairs)
        if kind == "scores":
            dump("in.jsonl", [{"prompt": f"p{k % 3}", "text": "a " * k + "b"} for k in range(32)])
            finish = partial(score, stories=tmp_path / "in.jsonl")
            interrupt(lambda: finish(folder), scoring, "_added_columns")
            return finish
        if kind == "dumps":
            monkeypatch.setenv("LITBENCH_SALT", "a salt of the tests")
            made = {
                "subreddit": "WritingPrompts",
                "author": "someone",
                "created_utc": 1_500_000_000,
            }
            dump("submissions", [{**made, "id": "p1", "title": "[WP] A door"}, {**made, "id": 3.5}])
            answer = {"link_id": "t3_p1", "parent_id": "t3_p1", "retrieved_on": 1_600_000_000}
            bodies = [f"It began {k} times." for k in range(20)]
            rows = [{**made, **answer, "id": f"c{k}", "body": b} for k, b in enumerate(bodies)]
            dump("comments", rows)
            module = load_program("data_prep/import_archive.py")
            finish = partial(import_dumps, module=module, dumps=tmp_path)
            interrupt(lambda: finish(folder), Artifact, "write")
            return finish
        if kind == "pairs":
            write_table(pair_table([{} for _ in range(8)]), tmp_path / "pairs.parquet")
            return partial(copy_pairs, pairs=tmp_path / "pairs.parquet")
        return {"collected": collect, "embeddings": embed, "answers": ask, "checkpoints": resume}[
            kind
        ]

    return build


def damage(folder, source):
    """Flip a bit of one file, or truncate it."""
    # The rows to score are read again by every run.
    contents = {
        path: bytearray(path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.stat().st_size and path.name != "rows.parquet"
    }
    victim, content = source.choice(list(contents.items()))
    position = source.randrange(len(content))
    if source.random() < 0.5:
        del content[position:]
    else:
        content[position] ^= 1 << source.randrange(8)
    victim.write_bytes(content)
    return victim


@pytest.mark.parametrize("count", [5, pytest.param(63, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", [*KINDS, "checkpoints"])
def test_damage_changes_no_result(kind, count, prepare, tmp_path, capsys):
    if kind == "checkpoints":
        pytest.importorskip("trl")
    whole = tmp_path / "whole"
    whole.mkdir()
    finish = prepare(kind, whole)
    if not any(whole.iterdir()):
        finish(whole)
    shutil.copytree(whole, tmp_path / "intact")
    expected = finish(tmp_path / "intact")
    assert "damaged" not in capsys.readouterr().err
    source = random.Random(f"{kind} {count}")
    for number in range(count):
        folder = tmp_path / f"copy {number}"
        shutil.copytree(whole, folder)
        victim = damage(folder, source)
        assert finish(folder) == expected, f"damage {number}, {victim}"
        # A file of answers may be truncated at the end of a line.
        assert "damaged" in capsys.readouterr().err or kind == "answers", victim
        shutil.rmtree(folder)
