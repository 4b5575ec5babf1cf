"""LitBench's own tables: read strictly, with the file, row and column of the first fault."""

import shutil
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from litbench.data.ingest import read_foreign
from litbench.data.records import PAIRS, VERDICTS
from litbench.data.tables import check_parquet, read_table, write_table
from litbench.runs.errors import DataError
from litbench.runs.outputs import Artifact


def test_a_table_is_read_as_by_the_reader_of_foreign_files(tmp_path, pair_table):
    pairs = pair_table([{"margin": None if k % 2 else k / 4} for k in range(50)])
    pairs = pairs.append_column("note", pa.array(map(str, range(50)), pa.large_string()))
    path = tmp_path / "a=1" / "pairs.parquet"
    path.parent.mkdir()
    write_table(pairs, path)
    result = read_table(path, PAIRS)
    assert result.equals(pairs)
    assert result.equals(read_foreign(path, PAIRS))


def test_types_that_hold_the_same_values_are_cast(tmp_path, pair_table):
    pairs = pair_table([{}, {}])
    names = pairs.column_names
    other = pairs.set_column(names.index("chosen"), "chosen", pairs["chosen"].cast(pa.string()))
    words = pairs["chosen_n_words"].cast(pa.float32())
    other = other.set_column(names.index("chosen_n_words"), "chosen_n_words", words)
    other = other.set_column(names.index("split"), "split", other["split"].dictionary_encode())
    other = other.set_column(names.index("fold"), "fold", pa.nulls(2)).drop_columns(["weight"])
    pq.write_table(other, tmp_path / "pairs.parquet")
    assert read_table(tmp_path / "pairs.parquet", PAIRS).equals(pairs)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("chosen", pa.array(["a", None, "c"]), "row 2, column chosen: null"),
        ("chosen", pa.array([1, 2, 3]), "column 'chosen' is int64, not large_string"),
        ("chosen", None, "column 'chosen' is missing (text of the preferred story)"),
        ("chosen", pa.array([b"a", b"\xff", b"c"]).view(pa.string()), "UTF8"),
        ("label_source", pa.array(["votes", "votes", "me"]), "row 3, column label_source: not one"),
        ("margin", pa.array([None, 0.5, float("nan")]), "row 3, column margin: not a finite"),
        ("chosen_score", pa.array(["a", "b", "c"]), "column 'chosen_score' is string, not int64"),
        ("chosen_n_words", pa.array([1, 2, 3.5]), "truncated"),
        ("pair_id", pa.array(["a", "b", "a"]), "row 3, column pair_id: repeats the key ('a',)"),
    ],
)
def test_the_first_fault_is_named(tmp_path, pair_table, column, values, said):
    pairs = pair_table([{}, {}, {}])
    index = pairs.column_names.index(column)
    pairs = pairs.drop_columns([column])
    if values is not None:
        pairs = pairs.add_column(index, column, values)
    path = tmp_path / "pairs.parquet"
    pq.write_table(pairs, path)
    with pytest.raises(DataError) as caught:
        read_table(path, PAIRS)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)
    assert "write it again" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "there is no file"), (b"PAR1", "cannot be read"), ([], "holds no rows")],
)
def test_files_that_are_no_table(tmp_path, pair_table, content, said):
    path = tmp_path / "pairs.parquet"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        pq.write_table(pair_table([{}]).slice(0, 0), path)
    with pytest.raises(DataError, match=said):
        read_table(path, PAIRS)


def test_keys_may_have_nulls(tmp_path):
    row = {"pair_id": "a", "rater": "r", "kind": "longer", "outcome": "tie"}
    rows = [{**row, "order": order} for order in ("chosen", "rejected", None)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "verdicts.parquet")
    assert read_table(tmp_path / "verdicts.parquet", VERDICTS).num_rows == 3
    pq.write_table(pa.Table.from_pylist([*rows, rows[2]]), tmp_path / "verdicts.parquet")
    with pytest.raises(DataError, match="row 4, column pair_id"):
        read_table(tmp_path / "verdicts.parquet", VERDICTS)


def test_a_file_that_its_manifest_lists_must_be_unchanged(tmp_path, pair_table):
    first, second = (pair_table([{"pair_id": name}]) for name in ("a", "b"))
    artifact = Artifact(tmp_path, program=__file__, config={})
    path = artifact.write("pairs.parquet", partial(write_table, first))
    artifact.finish()
    write_table(second, tmp_path / "other.parquet")
    checks = (partial(check_parquet, schema=PAIRS), partial(read_table, schema=PAIRS))
    for check in checks:
        check(path)
        check(tmp_path / "other.parquet")
    # The same schema and number of rows, as of another run.
    shutil.copy(tmp_path / "other.parquet", path)
    for check in checks:
        with pytest.raises(DataError, match=r"pairs.parquet does not match"):
            check(path)
