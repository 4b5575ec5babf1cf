"""Published pairs become a pairs table; what cannot is set aside and counted."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from litbench.reading import read_table
from litbench.records import PAIRS, pair_id


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_pairs_of_ids_find_their_stories(tmp_path: Path, program: Callable[..., object]) -> None:
    stories = write_jsonl(
        tmp_path / "stories.jsonl",
        [
            {"story_id": "a", "prompt_id": "p", "prompt": "[WP] A door", "story": "Two words."},
            {"story_id": "b", "prompt_id": "p", "prompt": "[WP] A door", "story": "It has three."},
            {"story_id": "c", "prompt_id": "q", "prompt": "[WP] A well", "story": "Deep."},
        ],
    )
    links = write_jsonl(
        tmp_path / "links.jsonl",
        [
            {"high": "b", "low": "a"},
            {"high": "a", "low": "b"},
            {"high": "b", "low": "gone"},
            {"high": "b", "low": "c"},
            {"high": "a", "low": "a"},
        ],
    )
    out = tmp_path / "out"
    done = program(
        "data_prep/import_pairs.py", "--pairs", links, "--stories", stories, "--out", out,
        "--pair_columns", "{chosen_story_id: high, rejected_story_id: low}",
        "--story_columns", "{text: story}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pairs = read_table(out / "pairs.parquet", PAIRS).to_pylist()
    assert len(pairs) == 1
    pair = pairs[0]
    assert (pair["chosen"], pair["rejected"]) == ("It has three.", "Two words.")
    assert (pair["chosen_n_words"], pair["rejected_n_words"]) == (3, 2)
    assert pair["pair_id"] == pair_id("a", "b")
    assert pair["chosen_score"] is None, "what the source does not have stays null"
    assert pair["chosen_created_utc"] is None
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["counts"]["set_aside"] == {
        "pair_id: the two stories are a pair already": 1,
        "rejected: the same text on both sides": 1,
        "prompt_id: stories of two prompts": 1,
        "rejected_story_id: no such story": 1,
    }


def test_pairs_that_hold_their_texts_need_no_stories(
    tmp_path: Path, program: Callable[..., object]
) -> None:
    source = tmp_path / "pairs.parquet"
    rows = {
        "prompt": ["[WP] A door", "[WP] A well", "[WP] A well"],
        "chosen_story": ["It opened.", "Deep down.", None],
        "rejected_story": ["Shut.", "Dry.", "Wet."],
        "chosen_upvotes": [30, 15, 9],
        "rejected_upvotes": [10, 11, 2],
    }
    pq.write_table(pa.table(rows), source)
    out = tmp_path / "out"
    columns = (
        "{chosen: chosen_story, rejected: rejected_story, chosen_score: chosen_upvotes, "
        "rejected_score: rejected_upvotes}"
    )
    done = program(
        "data_prep/import_pairs.py", "--pairs", source, "--out", out, "--pair_columns", columns,
        "--split", "train",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pairs = read_table(out / "pairs.parquet", PAIRS).to_pylist()
    assert {(pair["chosen"], pair["chosen_score"]) for pair in pairs} == {
        ("It opened.", 30), ("Deep down.", 15),
    }  # fmt: skip
    assert {pair["split"] for pair in pairs} == {"train"}
    assert len({pair["prompt_id"] for pair in pairs}) == 2
    assert json.loads((out / "manifest.json").read_text())["counts"]["set_aside"] == {
        "chosen: null": 1
    }


def test_a_wrong_column_is_named_with_its_nearest(
    tmp_path: Path, program: Callable[..., object]
) -> None:
    source = write_jsonl(tmp_path / "p.jsonl", [{"prompt": "p", "good": "x", "bad": "y"}])
    done = program(
        "data_prep/import_pairs.py", "--pairs", source, "--out", tmp_path / "out",
        "--pair_columns", "{chosen: goood, rejected: bad}",
    )  # fmt: skip
    assert done.returncode == 2
    assert "did you mean 'good'?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_rows_does_not_matter(
    order: int, tmp_path: Path, program: Callable[..., object]
) -> None:
    rows = [{"prompt": f"p{n}", "chosen": f"c {n}", "rejected": f"r {n}"} for n in range(30)]
    source = write_jsonl(tmp_path / "p.jsonl", rows[::order])
    program("data_prep/import_pairs.py", "--pairs", source, "--out", tmp_path / "out")
    pairs = read_table(tmp_path / "out" / "pairs.parquet", PAIRS)
    assert pairs["pair_id"].to_pylist() == sorted(pairs["pair_id"].to_pylist())
    assert pairs.num_rows == len(rows)
