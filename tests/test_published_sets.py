"""Other people's benchmarks in the forms in which data_prep/import_pairs.py reads them."""

import json
from pathlib import Path

import pytest
import yaml

from litbench.config import load_config
from litbench.records import PAIRS
from litbench.store import read_manifest
from litbench.tables import read_table

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def import_with(load_program, tmp_path, monkeypatch):
    """Run import_pairs.py by one of its configs on some rows; the pairs."""
    program = load_program("data_prep/import_pairs.py")

    def run(config, rows):
        for name in ("WQ", "WPB"):
            monkeypatch.setenv(name, str(tmp_path))
        path = ROOT / "configs/data" / config
        named = Path(yaml.safe_load(path.read_text())["pairs"].rpartition("/")[2])
        source = tmp_path / (named if named.suffix == ".jsonl" else "rows.jsonl")
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        out = tmp_path / "imported"
        arguments = ["--config", str(path), "--out", str(out), "--pairs", str(source)]
        program.main(load_config(program.Config, arguments))
        return read_table(out / "pairs.parquet", PAIRS)

    return run


@pytest.mark.parametrize(
    "name", sorted(path.name for path in (ROOT / "configs/data").glob("wq_*.yaml"))
)
def test_the_writing_quality_benchmark_is_read(name, import_with):
    rows = [
        {
            "original_id": f"h-{k}",
            "paragraph1": f"first text {k}",
            "paragraph2": f"second text {k}",
            "reference_preference": str(1 + k % 2),
            "sample_type": "style-mimic",
            "source": f"Author_{k % 3}",
            "text_input": "both",
            "output": "{}",
            "id": f"test-{k}",
        }
        for k in range(6)
    ]
    pairs = import_with(name, rows).to_pylist()
    assert len(pairs) == 6
    for pair in pairs:
        place = int(pair["chosen"][-1])
        assert pair["chosen"].startswith("second" if place % 2 else "first")
    assert len({pair["prompt"] for pair in pairs}) > 1, "else all are one cluster"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_published_pairs_of_writing_preference_bench_are_read(language, import_with):
    rows = [
        {
            "prompt": f"task {k}",
            "language": of,
            "genre": "fiction",
            "chosen": f"good {of} {k}",
            "rejected": f"dull {of} {k}",
            "chosen_human_score": 3,
            "rejected_human_score": 1,
        }
        for k in range(3)
        for of in ("en", "zh")
    ]
    pairs = import_with(f"wpb_{language}_published_pairs.yaml", rows)
    assert pairs.num_rows == 3
    assert all(language in text for text in pairs["chosen"].to_pylist())


def test_several_rejected_texts_make_several_pairs(import_with, tmp_path):
    rows = [
        {
            "id": "1",
            "prompt": "task 1",
            "chosen": ["right 1"],
            "rejected": ["wrong a", "wrong b", "wrong c"],
            "subset": "Focus",
        },
        {"id": "2", "prompt": "task 2", "chosen": ["tie"], "rejected": ["x"], "subset": "Ties"},
        {"id": "3", "prompt": "task 3", "chosen": ["right 3"], "rejected": [], "subset": "Math"},
        {"id": "4", "prompt": "task 4", "chosen": [None], "rejected": ["x"], "subset": "Math"},
        {
            "id": "5",
            "prompt": "task 5",
            "chosen": ["same"],
            "rejected": ["same", "wrong"],
            "subset": "Math",
        },
    ]
    pairs = import_with("reward_bench_2_pairs.yaml", rows).to_pylist()
    assert {(pair["chosen"], pair["rejected"], pair["subset"]) for pair in pairs} == {
        ("right 1", "wrong a", "Focus"),
        ("right 1", "wrong b", "Focus"),
        ("right 1", "wrong c", "Focus"),
        ("same", "wrong", "Math"),
    }
    lines = (tmp_path / "imported/rejected.jsonl").read_text().splitlines()
    noted = [(one["row"], one["column"]) for one in map(json.loads, lines)]
    assert noted == [(4, "chosen"), (5, "rejected")]
    counts = read_manifest(tmp_path / "imported")["counts"]
    assert counts["not_selected"] == 1
