"""Tables in every format, column maps, templates, conditions, and the checks of a schema."""

import csv
import hashlib
import json
import random
import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.data.chunks import ROW
from litbench.data.ingest import RejectedRows, read_foreign, stream_foreign
from litbench.data.records import (
    STORIES,
    VERDICTS,
    empty_columns,
    numbers_of_pairs,
    pair_id,
    pair_weights,
)
from litbench.data.tables import check_parquet, read_table, write_table
from litbench.data.text import count_words_of
from litbench.runs.errors import DataError

Table = Callable[..., pa.Table]

FORMATS = ["stories.parquet", "stories.jsonl", "stories.ndjson", "stories.csv"]
with_folder = pytest.mark.parametrize("name", [*FORMATS, "stories"])

# What breaks careless readers: quotes, separators, line ends, other scripts, emoji, a NUL.
TEXTS = [
    'She said, "go", and went.',
    "one\ntwo\r\nthree\rfour",
    " leading, trailing \t",
    "你好，世界 🌍 ❤️ cafe\u0301 \u2028 line",
    "\\n is no line end; \\u0041 is no A",
    "'single' ‘curly’ “quotes”",
    "null",
    "=1+1;#x",
    "0123",
    "2024-01-01",
    "NaN",
    "a\x00b",
    "\ufeffstarts with a mark",
]


@pytest.fixture(autouse=True)
def _quiet_datasets(monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def _in_tokyo(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def hard_stories(story_table):
    rows = [
        {
            "story_id": f"0{index}",
            "text": text,
            "prompt": f"[WP] {text}",
            "score": [None, 0, -7, 2**62][index % 4],
            "score_utc": 1_500_000_000 + index,
            "created_utc": None if index % 3 else 1_400_000_000,
            "author": None if index % 2 else text,
        }
        for index, text in enumerate(TEXTS)
    ]
    return story_table(rows)


def write_rows(path, rows):
    """Write rows with the standard library, as a user's script would."""
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(k for row in rows for k in row)))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix in (".jsonl", ".ndjson"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_text(text, encoding="utf-8")
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        datasets = pytest.importorskip("datasets")
        datasets.Dataset(pa.Table.from_pylist(rows)).save_to_disk(str(path))
    return path


raw_format = pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])


def raw(path, **changes):
    """Three posts with the columns of an archive; `changes` maps a column to three values."""
    columns = {
        "id": ["a", "b", "c"],
        "title": ["[WP] The lamp", "[WP] The lamp", "[EU] The tide"],
        "body": ["one two three", "four five", "six"],
        "score": [5, -2, 0],
        "created_utc": [1_580_000_000, 1_583_000_000, 1_590_000_000],
        "subreddit": ["stories", "stories", "poems"],
        **changes,
    }
    rows = [{name: values[k] for name, values in columns.items()} for k in range(3)]
    return write_rows(path, rows)


MAP = {
    "story_id": "id",
    "prompt_id": "title",
    "prompt": "title",
    "text": "body",
    "source": "'test'",
}


# Formats -------------------------------------------------------------------------------------


@with_folder
def test_a_table_comes_back_with_every_value(tmp_path, story_table, name):
    stories = hard_stories(story_table)
    write_rows(tmp_path / name, stories.to_pylist())
    again = read_foreign(tmp_path / name, STORIES)
    assert again.to_pylist() == stories.to_pylist()
    assert again.schema.types == stories.schema.types


def test_bytes_do_not_depend_on_chunks(tmp_path, story_table):
    # Row groups have 16,384 rows and pages 1 MiB.
    ids = [f"s{k:05d}" for k in range(18_000)]
    rows = {name: value * 18_000 for name, value in story_table([{}]).to_pydict().items()}
    whole = pa.table({**rows, "story_id": ids, "text": ids}, story_table([{}]).schema)
    many = pa.concat_tables([whole.slice(start, 100) for start in range(0, 18_000, 100)])
    digests = set()
    for table in (whole, pa.concat_tables([whole.slice(0, 1), whole.slice(1)]), many):
        write_table(table, tmp_path / "s.parquet")
        digests.add(hashlib.sha256((tmp_path / "s.parquet").read_bytes()).hexdigest())
    assert len(digests) == 1
    assert read_foreign(tmp_path / "s.parquet", STORIES).equals(whole)


@with_folder
def test_extra_columns_are_kept_after_the_declared_ones(tmp_path, story_table, name):
    stories = story_table([{}, {}])
    stories = stories.append_column("quality", pa.array([3, None], pa.int64()))
    stories = stories.add_column(0, "genre", pa.array(["myth", "你"], pa.large_string()))
    write_rows(tmp_path / name, stories.to_pylist())
    again = read_foreign(tmp_path / name, STORIES)
    assert again.column_names == [c.name for c in STORIES.columns] + ["genre", "quality"]
    assert again["genre"].to_pylist() == ["myth", "你"]
    quality = ["3", None] if name.endswith(".csv") else [3, None]
    assert again["quality"].to_pylist() == quality


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
            st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_text_and_score_survive_every_format(tmp_path_factory, rows):
    columns = {
        **empty_columns(STORIES, len(rows)),
        "story_id": pa.array([str(k) for k in range(len(rows))], pa.large_string()),
        "prompt_id": pa.array(["p"] * len(rows), pa.large_string()),
        "prompt": pa.array([text for text, _ in rows], pa.large_string()),
        "text": pa.array([f"+{text}" for text, _ in rows], pa.large_string()),
        "n_words": pa.array([count_words_of(f"+{text}") for text, _ in rows], pa.int64()),
        "source": pa.array(["test"] * len(rows), pa.large_string()),
        "score": pa.array([score for _, score in rows], pa.int64()),
    }
    table = pa.table(columns)
    folder = tmp_path_factory.mktemp("any")
    for name in FORMATS:
        write_rows(folder / name, table.to_pylist())
        assert read_foreign(folder / name, STORIES).equals(table), name


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_crlf_and_blank_lines_change_nothing(tmp_path, ending):
    path = raw(tmp_path / f"raw.{ending}")
    expected = read_foreign(path, STORIES, columns=MAP)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\r\n".join([*lines[:2], b"", *lines[2:], b"", b""]))
    assert read_foreign(path, STORIES, columns=MAP).equals(expected)
    path.write_bytes(b"\n".join(lines))
    assert read_foreign(path, STORIES, columns=MAP).equals(expected)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_fraction_among_ids_rejects_only_its_row(tmp_path, monkeypatch, size):
    monkeypatch.setattr("litbench.data.chunks.CHUNK_ROWS", size)
    rows = [{"id": k, "title": "t", "body": "b", "score": k} for k in range(8)]
    # A whole number among fractions stays the same name.
    rows[2]["id"], rows[5]["id"], rows[6]["score"] = 1.5, 5.0, "2.5 or 3"
    rejected_rows = RejectedRows()
    path = write_rows(tmp_path / "raw.jsonl", rows)
    stories = read_foreign(path, STORIES, columns=MAP, rejected_rows=rejected_rows)
    assert stories["story_id"].to_pylist() == ["0", "1", "3", "4", "5", "7"]
    assert rejected_rows.counts() == {"story_id: not text": 1, "score: not a number": 1}


@pytest.mark.parametrize("values", [[2**64, 1.5], [1.5, 2**64], [1, -(2**63) - 1]])
def test_integers_beyond_64_bits_keep_their_digits(tmp_path, values):
    rows = [{"id": str(k), "title": "t", "body": "b", "x": x} for k, x in enumerate(values)]
    path = write_rows(tmp_path / "raw.jsonl", rows)
    assert read_foreign(path, STORIES, columns=MAP)["x"].to_pylist() == [str(x) for x in values]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("name", FORMATS)
def test_scores_with_fractions_are_numbers(tmp_path, monkeypatch, name, size):
    monkeypatch.setattr("litbench.data.chunks.CHUNK_ROWS", size)
    scores = ["5", "-2", "3.25", None, "0", "1e300", "4.5"]
    rows = [{"id": str(k), "title": "t", "body": "t", "score": s} for k, s in enumerate(scores)]
    rejected = RejectedRows()
    path = write_rows(tmp_path / name, rows)
    stories = read_foreign(path, STORIES, columns=MAP, rejected_rows=rejected)
    assert stories["score"].to_pylist() == [5, -2, 3.25, None, 0, 4.5]
    assert stories["score"].type == pa.float64()
    assert rejected.counts() == {"score: not a number": 1}
    write_table(stories, tmp_path / "own.parquet")
    check_parquet(tmp_path / "own.parquet", STORIES)
    assert read_table(tmp_path / "own.parquet", STORIES).equals(stories)


# Column maps ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("_in_tokyo")
@raw_format
def test_a_map_names_columns_or_computes_them(tmp_path, ending):
    columns = {
        **MAP,
        "prompt_id": "subreddit || strftime(to_timestamp(created_utc::BIGINT), ' %Y-%m')",
        "source": "'archive {2020}'",
        "flair": "title[:4] -- a remark",
        "author": "md5(concat_ws('|', id, score))",
    }
    stories = read_foreign(raw(tmp_path / f"raw.{ending}"), STORIES, columns=columns)
    # 1,580,000,000 is 26 January 2020, 1,583,000,000 is 29 February, 1,590,000,000 is 20 May.
    assert stories["prompt_id"].to_pylist() == [
        "stories 2020-01",
        "stories 2020-02",
        "poems 2020-05",
    ]
    assert stories["source"].to_pylist() == ["archive {2020}"] * 3
    assert stories["flair"].to_pylist() == ["[WP]", "[WP]", "[EU]"]
    digests = [hashlib.md5(item, usedforsecurity=False).hexdigest() for item in (b"a|5", b"b|-2")]
    assert stories["author"].to_pylist()[:2] == digests
    assert stories["score"].to_pylist() == [5, -2, 0]
    assert stories["created_utc"].to_pylist() == [1_580_000_000, 1_583_000_000, 1_590_000_000]
    # Columns that were renamed are gone, those of an expression stay.
    assert not {"id", "title", "body"} & set(stories.column_names)
    assert stories["subreddit"].to_pylist() == ["stories", "stories", "poems"]


@raw_format
def test_the_name_of_a_column_is_taken_before_sql(tmp_path, ending):
    rows = [{"id": "a", "1 + 1": "p", 'say "it"': "a title", "Body": "b", "body": "c"}]
    path = write_rows(tmp_path / f"raw.{ending}", rows)
    columns = {"story_id": "id", "prompt_id": "1 + 1", "prompt": 'say "it"', "text": "body"}
    (row,) = read_foreign(path, STORIES, columns={**columns, "source": "Body"}).to_pylist()
    assert (row["prompt_id"], row["prompt"], row["text"]) == ("p", "a title", "c")
    assert row["source"] == "b"


def test_null_and_failed_expressions_differ(tmp_path):
    path = raw(tmp_path / "raw.jsonl", subreddit=["12", None, "y"], score=[1, 2, 3])
    rejected_rows = RejectedRows()
    columns = {**MAP, "score": "CAST(subreddit AS INT)", "flair": "subreddit || id"}
    stories = read_foreign(path, STORIES, columns=columns, rejected_rows=rejected_rows)
    assert stories["score"].to_pylist() == [12, None]
    assert stories["flair"].to_pylist() == ["12a", None]
    assert [(row["row"], row["column"]) for row in rejected_rows.rows] == [(3, "score")]
    assert rejected_rows.rows[0]["reason"] == "cannot be computed: CAST(subreddit AS INT)"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"story_id": "idd"}, r"no column 'idd' \(mapped to story_id\).*: did you mean 'id'"),
        ({"story": "id"}, "'story' is not a column of stories: did you mean"),
        ({"prompt": "title ||"}, r"no column 'title \|\|'.*nor is it SQL \(Parser Error"),
        ({"prompt": "title) FROM raw; SELECT (1"}, "nor is it SQL"),
        ({"prompt": "getenv('HOME')"}, "nor is it SQL"),
        ({"prompt": "(SELECT content FROM read_text('/etc/hosts'))"}, "nor is it SQL"),
        ({"prompt": "(SELECT secret FROM columns)"}, "nor is it SQL"),
    ],
)
def test_invalid_column_map_is_an_error(tmp_path, columns, message):
    with pytest.raises(DataError, match=message):
        read_foreign(raw(tmp_path / "raw.jsonl"), STORIES, columns={**MAP, **columns})


def test_mapped_tables_recount_words(tmp_path):
    path = raw(tmp_path / "raw.jsonl", n_words=[99, 99, 99])
    assert read_foreign(path, STORIES, columns=MAP)["n_words"].to_pylist() == [3, 2, 1]
    names = {"id": "story_id", "title": "prompt", "body": "text"}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [{names.get(k, k): v for k, v in row.items()} for row in rows]
    path = write_rows(path, [{**row, "prompt_id": "p", "source": "s"} for row in rows])
    assert read_foreign(path, STORIES)["n_words"].to_pylist() == [99, 99, 99]
    assert read_foreign(path, STORIES, columns={})["n_words"].to_pylist() == [3, 2, 1]


# Other formats and hostile ones ---------------------------------------------------------------

ONE = {"id": "a", "post": "p", "title": "t", "body": "a caf\u00e9 \u2013 x", "created_utc": 5}
ALIKE = {"story_id": "id", "prompt_id": "post", "prompt": "title", "text": "body", "source": "'s'"}


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "tsv"])
def test_text_files_of_any_encoding_are_read(tmp_path, capsys, ending, encoding):
    first = json.dumps(ONE, ensure_ascii=False)
    delimiter = {"csv": ",", "tsv": "\t"}.get(ending, "")
    lines = [delimiter.join(ONE), delimiter.join(map(str, ONE.values()))]
    content = {"jsonl": first, "json": f"[{first}]"}.get(ending, "\n".join(lines))
    path = tmp_path / f"raw.{ending}"
    path.write_bytes(content.encode(encoding))
    (row,) = read_foreign(path, STORIES, columns=ALIKE, encoding=encoding).to_pylist()
    assert (row["text"], row["created_utc"]) == (ONE["body"], 5)
    assert read_foreign(path, STORIES, columns=ALIKE)["text"].to_pylist() == [ONE["body"]]
    assert ("is read as cp1252" in capsys.readouterr().err) == (encoding == "cp1252")
    with pytest.raises(DataError, match="unknown encoding: cp125"):
        read_foreign(path, STORIES, columns=ALIKE, encoding="cp125")


def test_nested_extra_values_are_kept_as_json(tmp_path):
    deep = "x"
    for _ in range(200):
        deep = {"a": deep}
    rows = [{**ONE, "id": str(k), "media": {f"key{k}": [k]}} for k in range(40)]
    rows[3]["media"] = deep
    rows[4]["media"] = "a text"
    table = read_foreign(write_rows(tmp_path / "raw.jsonl", rows), STORIES, columns=ALIKE)
    write_table(table, tmp_path / "s.parquet")
    media = pq.read_table(tmp_path / "s.parquet")["media"].to_pylist()
    assert media[:2] == ['{"key0":[0]}', '{"key1":[1]}']
    assert (json.loads(media[3]), media[4]) == (deep, "a text")


@pytest.mark.parametrize("form", ["body", "list", "struct"])
def test_large_dictionaries_are_refused_before_decoding(tmp_path, form):
    count, path = 8_192, tmp_path / "raw.parquet"
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), ["a" * (1 << 18)])
    columns = {name: [ONE[name]] * count for name in ("post", "title", "body")}
    columns[form] = {
        "body": texts,
        "list": pa.ListArray.from_arrays(pa.array(range(count + 1), pa.int32()), texts),
        "struct": pa.StructArray.from_arrays([texts], ["text"]),
    }[form]
    table = pa.table({"id": [str(k) for k in range(count)], **columns})
    pq.write_table(table, path, compression="zstd", store_schema=False)
    with pytest.raises(DataError, match=r"raw.parquet .*decodes to more than"):
        read_foreign(path, STORIES, columns=ALIKE)
    pq.write_table(table.slice(0, 100), path, compression="zstd", store_schema=False)
    assert read_foreign(path, STORIES, columns=ALIKE).num_rows == 100


def test_long_texts_are_not_held_in_memory(tmp_path, monkeypatch):
    """Arrow holds the values of a column that is read as a dictionary."""
    monkeypatch.setattr("litbench.data.chunks.CHUNK_BYTES", 4 << 20)
    bodies = [random.Random(k).randbytes(1 << 15).hex() for k in range(1_000)]
    rows = [{**ONE, "id": str(k), "body": body} for k, body in enumerate(bodies)]
    # Pages have 1 MiB, or one batch of the writer.
    how = {"use_dictionary": False, "write_batch_size": 16}
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "raw.parquet", **how)
    del bodies, rows
    before, most = pa.total_allocated_bytes(), 0
    for table in stream_foreign(tmp_path / "raw.parquet", STORIES, columns=ALIKE):
        most = max(most, pa.total_allocated_bytes() - before - table.nbytes)
    # The texts have 65 MB.
    assert most < 30e6


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_too_many_columns_are_refused(tmp_path, ending):
    rows = [{**ONE, "id": str(k), **{f"key {k} {n}": n for n in range(100)}} for k in range(11)]
    if ending != "jsonl":
        rows = [{key: row.get(key) for row in rows for key in row}]
    path = write_rows(tmp_path / f"raw.{ending}", rows)
    with pytest.raises(DataError, match=r"1,000 columns"):
        read_foreign(path, STORIES, columns=ALIKE)


def test_file_changed_while_read_raises(tmp_path):
    path = write_rows(tmp_path / "raw.jsonl", [{**ONE, "id": str(k)} for k in range(9_000)])
    tables = stream_foreign(path, STORIES, columns=ALIKE)
    next(tables)
    with path.open("a") as file:
        file.write("\n")
    with pytest.raises(DataError, match="changed while"):
        list(tables)


# Conditions ----------------------------------------------------------------------------------


@raw_format
@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("score >= 0", ["a", "c"]),
        ("subreddit = 'poems' OR score < 0", ["b", "c"]),
        ("id IN ('a', 'b') AND title LIKE '[WP]%'", ["a", "b"]),
        ("true", ["a", "b", "c"]),
        ("nullif(id, 'b') = id", ["a", "c"]),
        ("score", ["a", "b"]),
    ],
)
def test_a_condition_selects_rows_and_counts_the_others(tmp_path, ending, where, count):
    if ending == "csv":
        where = where.replace("score", "TRY_CAST(score AS INT)")
    rejected_rows = RejectedRows()
    stories = read_foreign(
        raw(tmp_path / f"raw.{ending}"),
        STORIES,
        columns=MAP,
        rejected_rows=rejected_rows,
        where=where,
    )
    assert stories["story_id"].to_pylist() == count
    assert rejected_rows.not_selected == 3 - len(count)
    assert not rejected_rows.rows


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("score >", "cannot be evaluated"),
        ("votes > 3", "cannot be evaluated.*votes"),
        ("title", "cannot be evaluated"),
        ("max(score) > 3", "cannot be evaluated"),
        ("score > 1000", "no usable row"),
        ("score > 1, true", "cannot be evaluated"),
    ],
)
def test_invalid_where_is_an_error(tmp_path, where, message):
    with pytest.raises(DataError, match=f"(?s)raw.jsonl: .*{message}"):
        read_foreign(raw(tmp_path / "raw.jsonl"), STORIES, columns=MAP, where=where)


# Checks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("story_id", None, "null"),
        ("text", None, "null"),
        ("text", " ", "no text"),
        ("text", "\n\u200b\u2060\ufeff\u3164\n", "no text"),
        ("text", "&#x200B;\n\n&amp;#8203; &nbsp;", "no text"),
        ("text", {"a": 1}, "not text"),
        ("text", ["a"], "not text"),
        ("text", True, "not text"),
        ("text", 1.5, "not text"),
        ("score", "many", "not a number"),
        ("score", True, "not a number"),
        ("score", 2**63, "not a number"),
        ("score", -(2**63) - 1, "not a number"),
        ("score", 1e30, "not a number"),
        ("score", "1e400", "not a number"),
        ("score", [1], "not a number"),
        ("created_utc", "soon", "not a time"),
        ("created_utc", True, "not a time"),
        ("created_utc", "20179914", "not a time"),
        ("created_utc", 1e30, "not a time"),
        ("created_utc", -1e30, "not a time"),
        ("created_utc", "inf", "not a time"),
        ("created_utc", "nan", "not a time"),
        ("created_utc", 33_000_000_000, "in the future"),
        ("created_utc", 1_580_000_000_000, "in the future"),
        ("created_utc", "3015-01-01", "in the future"),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_broken_value_names_row_column_and_reason(
    tmp_path, story_table, column, value, reason, alone
):
    good = story_table([{"story_id": f"s{k}", "score": 1, "created_utc": 1} for k in range(3)])
    rows = good.to_pylist()
    rows[1][column] = value
    if alone:
        # Without neighbours the column has the type of its one value.
        rows = [{**row, column: value if row is rows[1] else None} for row in rows]
    path = write_rows(tmp_path / "raw.jsonl", rows)
    with pytest.raises(DataError, match=f"raw.jsonl: row .*, column {column}: .*fix or remove"):
        read_foreign(path, STORIES)
    rejected_rows = RejectedRows()
    if alone and column in ("story_id", "text"):
        with pytest.raises(DataError, match="no usable row"):
            read_foreign(path, STORIES, rejected_rows=rejected_rows)
    else:
        assert read_foreign(path, STORIES, rejected_rows=rejected_rows).num_rows == 2
    result = next(row for row in rejected_rows.rows if row["row"] == 2)
    assert result["file"] == str(path)
    assert result["column"] == column
    assert result["reason"].startswith(reason)


@pytest.mark.usefixtures("_in_tokyo")
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (1_580_000_000, 1_580_000_000),
        ("20200126", 1_579_996_800),
        (1_580_000_000.9, 1_580_000_000),
        ("1580000000", 1_580_000_000),
        ("2020-01-26T00:53:20Z", 1_580_000_000),
        ("2020-01-26 00:53:20", 1_580_000_000),
        ("2020-01-26T01:53:20+01:00", 1_580_000_000),
        ("2020-01-26", 1_580_000_000 - (53 * 60 + 20)),
        (-1, -1),
    ],
)
def test_times_are_read_as_seconds_in_utc(tmp_path, value, seconds):
    path = raw(tmp_path / "raw.jsonl", created_utc=[value] * 3)
    assert read_foreign(path, STORIES, columns=MAP)["created_utc"].to_pylist() == [seconds] * 3


@pytest.mark.usefixtures("_in_tokyo")
@pytest.mark.parametrize(
    "moment",
    [
        datetime(2020, 1, 26, 0, 53, 20, 999_999),
        datetime(2020, 1, 26, 0, 53, 20, tzinfo=UTC),
        pa.scalar(1_580_000_000_123, pa.timestamp("ms", "America/New_York")),
        pa.scalar(1_580_000_000, pa.timestamp("s")),
    ],
)
def test_parquet_timestamps_are_utc_seconds(tmp_path, moment):
    path = raw(tmp_path / "raw.parquet")
    table = pq.read_table(path)
    index = table.column_names.index("created_utc")
    pq.write_table(table.set_column(index, "created_utc", pa.array([moment] * 3)), path)
    assert (
        read_foreign(path, STORIES, columns=MAP)["created_utc"].to_pylist() == [1_580_000_000] * 3
    )
    columns = {**MAP, "flair": "strftime(created_utc, '%Y-%m-%d')"}
    assert read_foreign(path, STORIES, columns=columns)["flair"][0].as_py() == "2020-01-26"


def test_repeated_key_keeps_one_row(tmp_path, verdict_table):
    rows = verdict_table(
        [
            {"pair_id": "a", "p_chosen": 0.2},
            {"pair_id": "a", "p_chosen": 0.8},
            {"pair_id": "a", "p_chosen": 0.2},
            {"pair_id": "a", "p_chosen": 0.2, "fold": "1/0"},
            {"pair_id": "b", "p_chosen": 0.2, "order": "chosen"},
            {"pair_id": "b", "p_chosen": 0.2, "order": "rejected"},
        ]
    ).to_pylist()
    names = set()
    for turn in range(6):
        rejected_rows = RejectedRows()
        path = write_rows(tmp_path / "verdicts.jsonl", rows[turn:] + rows[:turn])
        table = read_foreign(path, VERDICTS, rejected_rows=rejected_rows)
        assert table.num_rows == 4
        assert sum(rejected_rows.counts().values()) == 2
        names.add(tuple(sorted(str(row) for row in table.to_pylist())))
    assert len(names) == 1


def test_numbered_rows_have_file_positions(tmp_path):
    stories = [
        {"story_id": name, "prompt_id": "p", "prompt": "p", "text": text, "source": "s", ROW: "x"}
        for name, text in [("a", "1"), ("b", None), ("c", "3"), ("a", "1"), ("d", "5"), ("e", "6")]
    ]
    path = tmp_path / "stories.jsonl"
    lines = [json.dumps(row) + "\n" for row in stories]
    path.write_text("".join([*lines[:2], "{\n", *lines[2:]]), encoding="utf-8")
    keys = {"columns": {}, "where": "story_id <> 'd'"}
    table = read_foreign(path, STORIES, rejected_rows=RejectedRows(), numbered=True, **keys)
    result = dict(zip(table["story_id"].to_pylist(), table[ROW].to_pylist(), strict=True))
    assert result == {"a": 1, "c": 4, "e": 7}
    plain = read_foreign(path, STORIES, rejected_rows=RejectedRows(), **keys)
    assert plain.equals(table.drop_columns([ROW]))


def test_missing_source_is_an_error(tmp_path):
    for source in (tmp_path / "none.parquet", "none.jsonl", "a/b/c", "./x", "", "nothing"):
        with pytest.raises(DataError):
            read_foreign(source, STORIES)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"folder cannot be read"):
        read_foreign(tmp_path / "folder", STORIES)


def test_a_folder_of_splits_says_how_to_name_one(tmp_path, story_table):
    datasets = pytest.importorskip("datasets")
    part = datasets.Dataset(story_table([{}, {}]))
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk(str(tmp_path / "both"))
    with pytest.raises(DataError, match=r"has splits \['test', 'train'\].*both/test"):
        read_foreign(tmp_path / "both", STORIES)
    assert read_foreign(tmp_path / "both" / "test", STORIES).num_rows == 2


# Other nouns ---------------------------------------------------------------------------------


def test_parquet_check_reads_no_texts(tmp_path, story_table):
    path = tmp_path / "stories.parquet"
    stories = story_table([{}, {}])
    write_table(stories, path)
    check_parquet(path, STORIES)
    index = stories.column_names.index("prompt")
    nulls = pa.array(["x", None], pa.large_string())
    for table, message in [
        (stories.drop_columns("prompt"), "column 'prompt' is missing"),
        (stories.set_column(index, "prompt", pa.array([1, 2])), "column 'prompt' is int64"),
        (stories.set_column(index, "prompt", nulls), "column 'prompt' has 1 nulls"),
        (stories.slice(0, 0), "holds no rows"),
    ]:
        write_table(table, path)
        with pytest.raises(DataError, match=message):
            check_parquet(path, STORIES)
    path.write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(DataError, match="not a Parquet file"):
        check_parquet(path, STORIES)
    with pytest.raises(DataError, match="there is no file"):
        check_parquet(tmp_path / "none.parquet", STORIES)


def test_a_pair_has_one_name_in_either_order():
    assert pair_id("b", "a") == pair_id("a", "b")
    assert pair_id("a", "b") == hashlib.md5(b"a|b", usedforsecurity=False).hexdigest()
    assert pair_id("a", "b") != pair_id("a", "c")


def test_rejected_rows_need_bounded_memory():
    rejected_rows = RejectedRows()
    for number in range(3):
        rejected_rows.add("f", number, "text", "null", "x" * 100)
    tracemalloc.start()
    for number in range(200_000):
        rejected_rows.add("f", number, "text", "null", "x" * 100)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rejected_rows.counts() == {"text: null": 200_003}
    # All of them take about 90 MB.
    assert used < 20e6


def test_pairs_have_weights_or_none_has(pair_table):
    assert pair_weights(pair_table([{}, {}])).tolist() == [1.0, 1.0]
    assert pair_weights(pair_table([{"weight": 0.5}, {"weight": 2.0}])).tolist() == [0.5, 2.0]
    with pytest.raises(DataError, match="weight is null in 1 of 2"):
        pair_weights(pair_table([{"weight": 0.5}, {}]))


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_non_finite_numbers_of_pairs_raise(pair_table, value):
    pairs = pair_table([{"margin": 1.0}, {"margin": value}])
    with pytest.raises(DataError, match="margin is not finite in 1 of 2"):
        numbers_of_pairs(pairs, "margin", 0.0)
    assert numbers_of_pairs(pairs, "p_chosen", 1.0).tolist() == [1.0, 1.0]


# 2017-01-01, 2017-07-01 and 2017-07-14 in Unix seconds.
YEAR, MONTH, DAY = 1_483_228_800, 1_498_867_200, 1_499_990_400


@pytest.mark.parametrize("name", ["raw.jsonl", "raw.csv", "raw.parquet"])
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (2017, YEAR),
        (2017.0, YEAR),
        ("2017", YEAR),
        (201707, MONTH),
        ("201707", MONTH),
        (20170714, DAY),
        ("20170714", DAY),
        (42930, DAY),
        ("42930.25", DAY + 21_600),
        (42930.25, DAY + 21_600),
        (DAY, DAY),
        (DAY + 0.5, DAY),
        (str(DAY), DAY),
        ("2017-07-14", DAY),
        (1, 1),
        (201713, 201_713),
        (2101, 2_101),
    ],
)
def test_years_months_days_and_excels_days_are_times(tmp_path, story_table, name, value, seconds):
    (row,) = story_table([{"text": "It opened."}]).to_pylist()
    path = write_rows(tmp_path / name, [{**row, "created_utc": value}])
    assert read_foreign(path, STORIES)["created_utc"].to_pylist() == [seconds]


@pytest.mark.parametrize(
    ("columns", "where", "text"),
    [
        ({"text": '"Text"'}, None, "second"),
        ({"text": "Text"}, None, "second"),
        ({"text": "trim(Text)"}, None, "second"),
        ({"text": "trim(text)"}, None, "first"),
        ({"text": """CASE WHEN 'Text' <> '"Text"' THEN "TEXT" END"""}, None, "third"),
        ({"text": "CAST(Text AS text)"}, None, "second"),
        ({"text": "Text::text"}, None, "second"),
        ({"text": '"ßa"'}, None, "fourth"),
        ({"text": '"SSA"'}, None, "fifth"),
        ({"text": "'İ: ' || concat(İ, ı)"}, None, "İ: sixthseventh"),
        ({"text": "POST.Text"}, None, "field"),
        ({}, "Text = 'second'", "first"),
        ({}, """"text" = 'first' AND TEXT = 'third' """, "first"),
    ],
)
@pytest.mark.parametrize("name", ["raw.jsonl", "raw.parquet"])
def test_names_that_differ_only_in_case_are_different_columns(
    tmp_path, story_table, name, columns, where, text
):
    (row,) = story_table([{"text": "first"}]).to_pylist()
    row |= {"Text": "second", "TEXT": "third", "ßa": "fourth", "SSA": "fifth"}
    row |= {"İ": "sixth", "ı": "seventh", "post": {"Text": "field"}}
    path = write_rows(tmp_path / name, [row])
    read = read_foreign(path, STORIES, columns=columns, where=where)
    assert read["text"].to_pylist() == [text]
    others = set(row) - {column for column in columns.values() if column in row}
    assert others - {"text"} <= set(read.column_names)


def test_an_ambiguous_name_is_an_error(tmp_path, story_table):
    (row,) = story_table([{"text": "first"}]).to_pylist()
    path = write_rows(tmp_path / "raw.jsonl", [{**row, "Score": 1, "SCORE": 2}])
    with pytest.raises(DataError, match="where: 'sCoRe > 1'"):
        read_foreign(path, STORIES, where="sCoRe > 1")


def test_rejected_rows_do_not_contain_account_names(tmp_path, story_table):
    (row,) = story_table([{"text": "It opened."}]).to_pylist()
    path = write_rows(tmp_path / "raw.jsonl", [row, {**row, "author": ["invented_writer"]}])
    path.write_text(path.read_text() + '{"author": "invented_writer", "text": "cut\n')
    rejected = RejectedRows()
    read_foreign(path, STORIES, rejected_rows=rejected)
    rejected.write(tmp_path / "rejected.jsonl")
    assert rejected.counts() == {"(line): not JSON": 1, "author: not text": 1}
    assert "invented" not in (tmp_path / "rejected.jsonl").read_text()
