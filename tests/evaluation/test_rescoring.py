"""With `dtype: auto` the best story of each prompt is that of float32."""

import json

import numpy as np
import pytest

from litbench.data.ingest import read_foreign
from litbench.data.records import Schema
from litbench.evaluation.rescoring import rescore_best
from litbench.evaluation.scoring import ScoringJob, load_scorer, score_files, scorer_spec


@pytest.mark.parametrize("error", [0.0, 0.003, 0.03])
def test_the_best_of_each_prompt_is_the_exact_one(error):
    rng = np.random.default_rng(0)
    groups = rng.permutation(np.repeat(np.arange(200), 16))
    exact = rng.normal(size=3_200)
    rounded = exact + error * rng.choice([-1, 1], 3_200)
    scored = []

    def score(indices):
        scored.extend(indices.tolist())
        return exact[indices]

    rewards, count = rescore_best(rounded, groups, score)
    by_prompt = [np.flatnonzero(groups == group) for group in range(200)]
    assert all(rewards[rows].argmax() == exact[rows].argmax() for rows in by_prompt)
    assert count == len(set(scored)) == len(scored)
    assert count <= 64 + 3_200 * 8 * error
    wrong = sum(rounded[rows].argmax() != exact[rows].argmax() for rows in by_prompt)
    assert (wrong > 0) == (error == 0.03)


@pytest.mark.parametrize("count", [0, 1])
def test_without_a_choice_only_the_sample_is_scored_again(count):
    rewards = np.zeros(count)
    result, rescored = rescore_best(rewards, np.zeros(count, int), lambda rows: rewards[rows])
    assert (result.shape, rescored) == ((count,), count)


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_score_chooses_the_stories_of_float32(tmp_path, monkeypatch, tiny_model, has_bfloat16):
    monkeypatch.setattr("litbench.models.folder._has_bfloat16", lambda: has_bfloat16)
    folder, rng = tiny_model("llama"), np.random.default_rng(0)
    words = ["a", "door", "river", "lamp", "it", "opened"]
    rows = [
        {"prompt": f"Prompt {k % 6}", "text": " ".join(rng.choice(words, rng.integers(3, 9)))}
        for k in range(120)
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    best, counts, dtypes = {}, {}, {}
    for dtype in ("float32", "auto"):
        entry = {"kind": "reward", "path": str(folder), "device": "cpu", "dtype": dtype}
        spec = scorer_spec(entry)
        job = ScoringJob(spec, str(source), tmp_path / f"{dtype}.parquet", chunk_stories=50)
        counts[dtype] = score_files(job)["counts"].get("stories_rescored", 0)
        table = read_foreign(job.out, Schema("scored", (), ())).to_pylist()
        best[dtype] = [row["text"] for row in table if row["rank_within_prompt"] == 1]
        dtypes[dtype] = str(load_scorer(spec).model.dtype)
    assert best["auto"] == best["float32"]
    assert counts["float32"] == 0
    assert (counts["auto"] > 0) == has_bfloat16
    assert dtypes["auto"] == ("torch.bfloat16" if has_bfloat16 else "torch.float32")
