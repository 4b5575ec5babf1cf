"""The engines of curation: DuckDB with little memory and Spark give the same rows."""

import errno
import json
import os
import shutil

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from litbench.data.curation.engine import open_engine
from litbench.data.tables import write_table
from litbench.runs.errors import ConfigError, DataError


def letters(rows):
    return pa.table({"name": [f"row{row:05d}" for row in range(rows)], "place": range(rows)})


def test_rows_come_out_in_order(tmp_path):
    with open_engine("duckdb", tmp_path) as engine:
        table = engine.put(letters(20_000))
        even = engine.keep(table.filter(table.place % 2 == 0))
        batches = list(engine.batches(even.order_by(even.name.desc())))
        names = [name for batch in batches for name in batch["name"].to_pylist()]
        assert names == [f"row{row:05d}" for row in range(19_998, -1, -2)]
        assert len(batches) > 1
        assert engine.count(even) == 10_000


def test_star_in_a_folder_name_is_not_a_pattern(tmp_path):
    for name, rows in (("a*", 3), ("ab", 4), ("[a]?", 5)):
        (tmp_path / name).mkdir()
        write_table(letters(rows), tmp_path / name / "letters.parquet")
    with open_engine("duckdb", tmp_path / "work*") as engine:
        results = [
            engine.count(engine.read(tmp_path / n / "letters.parquet")) for n in ("a*", "[a]?")
        ]
        assert results == [3, 5]
        assert engine.count(engine.put(letters(6))) == 6


def test_working_files_are_removed(tmp_path):
    def use_and_stop():
        with open_engine("duckdb", tmp_path) as engine:
            engine.put(letters(5))
            assert list(engine.work.iterdir())
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        use_and_stop()
    assert list(tmp_path.iterdir()) == []


def test_invalid_memory_limit_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="memory_limit is 'plenty'"):
        open_engine("duckdb", tmp_path, memory_limit="plenty")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["keep", "batches"])
def test_out_of_memory_error_names_the_key(how, tmp_path):
    def sort(table, engine):
        numbered = table.order_by(table.name.desc()).mutate(n=ibis.row_number())
        list(getattr(engine, how)(numbered))

    def use():
        with open_engine("duckdb", tmp_path, memory_limit="1MB") as engine:
            sort(engine.put(letters(200_000)), engine)

    with pytest.raises(DataError, match="raise memory_limit"):
        use()
    assert list(tmp_path.iterdir()) == []


def test_full_disk_names_the_folder(tmp_path, monkeypatch):
    def full_disk(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pq, "write_table", full_disk)
    with (
        pytest.raises(DataError, match=rf"engine failed in {tmp_path} .*free disk space there"),
        open_engine("duckdb", tmp_path) as engine,
    ):
        engine.put(letters(5))


def test_what_does_not_fit_goes_to_disk(tmp_path):
    with open_engine("duckdb", tmp_path, memory_limit="80MB") as engine:
        names = pa.array([f"{row * 7919 % 1_000_003:032d}" for row in range(1_000_000)])
        table = engine.put(pa.table({"name": names}))
        # Two copies of a million names of 32 letters do not fit into 80 MB.
        doubled = engine.keep(table.union(table))
        spilled = sum(file.stat().st_size for file in engine.work.glob("duckdb_temp*"))
        assert spilled > 100_000
        last = None
        rows = 0
        for batch in engine.batches(doubled.order_by("name")):
            values = batch["name"].to_pylist()
            assert last is None or last <= values[0]
            assert values == sorted(values)
            last, rows = values[-1], rows + len(values)
        assert rows == 2_000_000


@pytest.fixture(scope="module")
def spark_options():
    pytest.importorskip("pyspark", reason="pip install 'litbench[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    return {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def crowd(story_table, seed=3):
    """Stories in several scripts; every step removes some of them."""
    random = np.random.default_rng(seed)
    words = ["mill", "river", "Straße", "été", "雨", "夜", "ghost", "ÎLE", "edit:", "[ot]"]
    rows = []
    for index in range(900):
        text = " ".join(random.choice(words, int(random.integers(5, 300))))
        rows.append(
            {
                "story_id": f"s{random.integers(1 << 40):x}-{index}",
                "prompt_id": f"p{index % 40}",
                "prompt": f"[WP] Prompt {index % 37}",
                "text": text,
                "score": int(random.poisson(6 + len(text) / 60)),
                "created_utc": int(random.integers(0, 500)),
                "author": str(random.choice(["4f1b", "77aa", "AutoModerator"])),
                "n_tokens": len(text) * int(random.choice([1, 1, 1, 3])),
            }
        )
    # What the engines' languages of patterns, trims and folds of case may disagree about.
    hostile = [
        "[removed]",
        "  [deleted]\n",
        "I am a bot, and this action was performed automatically.",
        "[deleted]\u2028",
        "[deleted by useré]",
        "[\u00a0removed]",
        "great prompt\u0085",
        "\x0b",
        "Great prompt\r\n",
        "Placeholder\u2029",
        "ſaving this for later",
        "İ like this prompt",
        "https://example.org\u00a0",
        "https://a.b\n\n[c](d)",
        "\u3000[OT]",
        "**Off-Topic**",
        "[OT]\u0085\n\u2028",
        "門" * 500,
        "[a](b) " * 60,
        "Great\u0301 prompt",
        "\ufeff[OT]",
    ]
    for row, text in zip(rows[200:], hostile * 4, strict=False):
        row.update(text=text, n_words=60, n_tokens=60)
    for copy, original in ((100, 140), (101, 141), (102, 182)):
        rows[original].update(score=30, text=" ".join(["Once a RIVER rose", *words[:2]] * 12))
        rows[copy].update(score=40, text=rows[original]["text"].lower().replace(" ", "\r\n"))
    return story_table(rows)


ALL_STEPS = {
    "splits": {"train": 0.6, "test": 0.4},
    "max_pairs_per_prompt": 25,
    "min_score": 4,
    "symmetry_buckets": 10,
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::UserWarning")
def test_spark_gives_the_bytes_of_duckdb(story_table, load_program, tmp_path, spark_options):
    program = load_program("data_prep/make_pairs.py")
    stories = crowd(story_table)
    write_table(stories, tmp_path / "stories.parquet")
    order = np.random.default_rng(0).permutation(stories.num_rows)
    write_table(stories.take(pa.array(order)), tmp_path / "shuffled.parquet")
    made = {}
    for engine, file in (("duckdb", "stories"), ("duckdb", "shuffled"), ("spark", "shuffled")):
        out = tmp_path / engine / f"[{file}]*"
        options = {"engine": engine, "spark": spark_options, **ALL_STEPS}
        program.main(program.Config(stories=tmp_path / f"{file}.parquet", out=out, **options))
        counts = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["counts"]
        files = {path.name: path.read_bytes() for path in sorted(out.glob("*pairs*.parquet"))}
        files["examples"] = (out / "examples.jsonl").read_bytes()
        made[engine, file] = (counts, files)
    first = made["duckdb", "stories"]
    removed = {step["step"]: step["removed"] for step in first[0]["funnel"]}
    idle = {name for name, count in removed.items() if count == 0}
    assert idle <= {"read", "has_score", "has_time", "min_words", "within_prompt"}
    assert len(first[1]) == 3
    assert made["duckdb", "shuffled"] == first
    assert made["spark", "shuffled"] == first
