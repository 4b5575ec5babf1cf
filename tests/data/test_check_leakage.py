"""The program check_leakage."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from litbench.data.tables import write_table
from litbench.runs.config import build
from litbench.runs.errors import LitBenchError

PROGRAM = "data_prep/check_leakage.py"


@pytest.fixture
def files(tmp_path, pair_table):
    """Write train and test pairs of stories of 60 words that share nothing."""

    def write(name, names, **more):
        rows = [
            {
                "chosen_story_id": f"{story}_high",
                "rejected_story_id": f"{story}_low",
                "chosen": " ".join(f"{story}{word}" for word in range(60)),
                "rejected": " ".join(f"{story}{word}" for word in range(100, 160)),
                "prompt_id": f"prompt_{story}",
                **{key: values.get(story) for key, values in more.items() if story in values},
            }
            for story in names
        ]
        path = tmp_path / f"{name}.parquet"
        write_table(pair_table(rows), path)
        return path

    return write


def test_a_clean_pair_of_files_passes(files, program, tmp_path):
    train, test = files("train", "abc"), files("test", "de")
    out = tmp_path / "out"
    done = program(PROGRAM, "--train", train, "--test", test, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "train and test share 0 near-duplicates" in done.stdout
    assert pq.read_table(out / "leakage.parquet").num_rows == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["counts"]["splits"]["train"]["pairs"] == 3
    assert {item["shared"] for item in manifest["counts"]["shared"]} == {0}


def test_near_duplicate_fails_after_writing_the_report(
    files, program, load_program, tmp_path, capsys
):
    near = " ".join(f"b{word}" for word in range(59)) + " Changed. EDIT: wow"
    train, test = files("train", "abc"), files("test", "de", rejected={"d": near})
    out = tmp_path / "out"
    arguments = (PROGRAM, "--train", train, "--test", test, "--out", out)
    for run in range(2):
        # The second run finds its product made, and must not pass for that.
        done = program(*arguments)
        assert ("unchanged" in done.stdout) == bool(run)
        assert done.returncode == 2
        assert "b_high (train) and d_low (test)" in done.stderr
        assert "Traceback" not in done.stderr
    (row,) = pq.read_table(out / "leakage.parquet").to_pylist()
    assert (row["kind"], row["id_a"], row["id_b"]) == ("near_duplicates", "b_high", "d_low")
    module = load_program(PROGRAM)
    config = module.Config(out=out, train=train, test=test, must_be_clean=["prompts", "stories"])
    module.main(config)
    assert "share 1 near-duplicates" in capsys.readouterr().out
    module.main(module.Config(out=out, train=train, test=test, threshold=0.99))


def test_splits_of_one_table_are_compared(files, load_program, tmp_path, capsys):
    module = load_program(PROGRAM)
    parts = {"train": "ab", "validation": "cd", "test": "ea"}
    tables = []
    for split, names in parts.items():
        table = pq.read_table(files(split, names))
        index = table.column_names.index("split")
        tables.append(table.set_column(index, "split", pa.array([split] * 2, pa.large_string())))
    pairs = pa.concat_tables(tables)
    names = pa.array([f"pair{index}" for index in range(6)], pa.large_string())
    pairs = pairs.set_column(0, "pair_id", names)
    path = tmp_path / "pairs.parquet"
    write_table(pairs, path)
    config = module.Config(out=tmp_path / "out", pairs=path, must_be_clean=[])
    module.main(config)
    shown = capsys.readouterr().out
    assert "train and test share 2 stories" in shown
    assert "train and validation share 0 stories" in shown
    assert "test and validation share 0 prompts" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either pairs"),
        ({"train": "x.parquet"}, "give either pairs"),
        ({"pairs": "x.parquet", "test": "y.parquet"}, "give either pairs"),
        ({"pairs": "x.parquet", "threshold": 2}, "'threshold' is 2"),
        ({"pairs": "x.parquet"}, "no file|there is no file"),
    ],
)
def test_a_config_that_cannot_be_is_refused(load_program, tmp_path, options, message):
    module = load_program(PROGRAM)
    with pytest.raises(LitBenchError, match=message):
        module.main(build(module.Config, {"out": str(tmp_path / "out"), **options}))
    assert not (tmp_path / "out").exists()
