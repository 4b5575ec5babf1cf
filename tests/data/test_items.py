"""Rows with several answers become pairs of one item, in every form and door."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from litbench.data.records import pair_weights
from litbench.data.sources.evaluation_pairs import subsample
from litbench.data.sources.pairs import PairImport, import_pairs, read_any_pairs
from litbench.runs.errors import DataError

ANSWERS = [f"The {word} keeper counted the boats until dawn." for word in ["old", "sad", "tall"]]
BEST_OLD = {("old", "sad"), ("old", "tall")}
IN_ORDER = {*BEST_OLD, ("sad", "tall")}

# By form: the columns of a row beside its prompt, and the pairs expected of it.
FORMS = {
    "rejected list": ({"chosen": ANSWERS[0], "rejected": ANSWERS[1:]}, BEST_OLD),
    "two lists": ({"chosen": ANSWERS[:1], "rejected": ANSWERS[1:]}, BEST_OLD),
    "several chosen": (
        {"chosen": ANSWERS[:2], "rejected": ANSWERS[2:]},
        {("old", "tall"), ("sad", "tall")},
    ),
    "ranks": ({"completions": ANSWERS, "ranks": [1, 2, 3]}, IN_ORDER),
    "scores": ({"responses": ANSWERS, "scores": [0.9, 0.5, -1]}, IN_ORDER),
    "equal ranks": ({"completions": ANSWERS, "ranks": [1, 2, 2]}, BEST_OLD),
    "best by index": ({"completions": ANSWERS, "best": 0}, BEST_OLD),
    "best by text": ({"completions": ANSWERS, "best": ANSWERS[0]}, BEST_OLD),
    "objects with ranks": (
        {"answers": [{"answer": text, "rank": k, "model": "m"} for k, text in enumerate(ANSWERS)]},
        IN_ORDER,
    ),
    "objects with scores": (
        {
            "completions": [
                {"response": text, "overall_score": -k} for k, text in enumerate(ANSWERS)
            ]
        },
        IN_ORDER,
    ),
}


def rows_of(columns):
    return [{"prompt": f"The harbour, {number}.", **columns} for number in range(4)]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def write_csv(path, rows, dumps=json.dumps):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(rows[0])
        writer.writerows(
            [dumps(v) if isinstance(v, list) else v for v in row.values()] for row in rows
        )
    return path


def sides(pairs):
    """The second word of the chosen and the rejected story of every pair."""
    names = ("chosen", "rejected")
    return {tuple(pair[name].split()[1] for name in names) for pair in pairs.to_pylist()}


@pytest.mark.parametrize(("columns", "expected"), FORMS.values(), ids=FORMS)
def test_every_form_gives_the_pairs_of_its_items(tmp_path, columns, expected):
    rows = rows_of(columns)
    files = [
        write_jsonl(tmp_path / "rows.jsonl", rows),
        write_parquet(tmp_path / "rows.parquet", rows),
        write_csv(tmp_path / "rows.csv", rows),
        write_csv(tmp_path / "python.csv", rows, str),
    ]
    for file in files:
        pairs = read_any_pairs(file)
        assert sides(pairs) == expected, file
        assert pairs.num_rows == 4 * len(expected)
        assert len(set(pairs["item_id"].to_pylist())) == 4


BROKEN = {
    "2 values for 3 answers": {"completions": ANSWERS, "ranks": [1, 2]},
    "no answer is better": {"completions": ANSWERS, "ranks": [1, 1, 1]},
    "not a number": {"completions": ANSWERS, "ranks": [1, None, 2]},
    "neither an answer nor its index": {"completions": ANSWERS, "best": 7},
    "no answers": {"chosen": ANSWERS[0], "rejected": []},
    "an answer is not text": {"chosen": ANSWERS[0], "rejected": ["  ", ANSWERS[1]]},
}


@pytest.mark.parametrize(("reason", "columns"), BROKEN.items())
def test_a_row_that_cannot_be_ordered_is_rejected_with_its_reason(tmp_path, reason, columns):
    good = {"completions": ANSWERS, "ranks": [1, 2, 3]}
    if "chosen" in columns:
        good = {"chosen": ANSWERS[0], "rejected": ANSWERS[1:]}
    if "best" in columns:
        good = {"completions": ANSWERS, "best": 1}
    rows = [{"prompt": "Broken.", **columns}, *rows_of(good)]
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    import_pairs(PairImport(pairs=str(file), out=tmp_path / "out"), "test")
    rejected = (tmp_path / "out/rejected.jsonl").read_text(encoding="utf-8").splitlines()
    first = json.loads(rejected[-1])
    assert reason in first["reason"]
    assert first["row"] == 1


def test_an_item_id_of_the_source_is_kept(tmp_path):
    rows = [{**row, "item_id": f"mine {k}"} for k, row in enumerate(rows_of(FORMS["ranks"][0]))]
    pairs = read_any_pairs(write_jsonl(tmp_path / "rows.jsonl", rows))
    assert set(pairs["item_id"].to_pylist()) == {f"mine {k}" for k in range(4)}


def test_steps_of_one_answer_with_labels_are_no_item(tmp_path):
    rows = rows_of({"completions": ANSWERS, "labels": [True, False, True]})
    with pytest.raises(DataError, match="chosen and the rejected"):
        read_any_pairs(write_jsonl(tmp_path / "rows.jsonl", rows))


def test_the_pairs_of_an_item_weigh_together_as_one_pair(tmp_path):
    rows = [
        *rows_of(FORMS["ranks"][0]),
        {"prompt": "Two.", "completions": ANSWERS[:2], "ranks": [1, 2]},
    ]
    pairs = read_any_pairs(write_jsonl(tmp_path / "rows.jsonl", rows))
    assert sorted(pair_weights(pairs)) == pytest.approx([1 / 3] * 12 + [1.0])
    # A column of weights comes first.
    index = pairs.column_names.index("weight")
    stated = pairs.set_column(index, "weight", pa.array([2.0] * pairs.num_rows))
    assert set(pair_weights(stated)) == {2.0}


def test_a_subsample_has_whole_items(tmp_path):
    pairs = read_any_pairs(write_jsonl(tmp_path / "rows.jsonl", rows_of(FORMS["ranks"][0])))
    drawn = subsample(pairs, 7)
    assert drawn.num_rows == 6
    assert len(set(drawn["item_id"].to_pylist())) == 2
