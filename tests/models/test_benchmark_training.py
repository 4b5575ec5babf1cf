"""The training benchmark: its sides compute the same pairs, with the lengths of real ones."""

import json

import numpy as np
import pytest

pytest.importorskip("trl")


def test_lengths_follow_the_deciles(load_program):
    benchmark = load_program("benchmarks/training.py")
    rows = benchmark.draw_pairs(1_000, 50, seed=3).rows
    for side, deciles in (("chosen", benchmark._CHOSEN), ("rejected", benchmark._REJECTED)):
        lengths = np.array([len(ids) for ids in rows[f"{side}_ids"]])
        assert deciles[0] <= lengths.min() <= lengths.max() <= deciles[-1]
        assert abs(np.median(lengths) - deciles[5]) < 40


def test_both_trainers_have_the_same_loss(program):
    command = ["--width", "32", "--layers", "1", "--pairs", "4", "--pairs_per_micro_batch", "2"]
    command += ["--steps", "2", "--repeats", "1", "--threads", "1"]
    done = program("benchmarks/training.py", *command)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert [row["goal"] for row in figures] == [2, 0.85]
