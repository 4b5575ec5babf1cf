"""Scoring on engines, by the code of docs/scale.md: two workers, one of which dies."""

import os
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import litbench

DOCS = Path(__file__).resolve().parent.parent / "docs/scale.md"
pytestmark = pytest.mark.long


def recipe(engine):
    """The block of code that mentions the engine."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if engine in block]
    return code


@pytest.fixture
def job(fit_model, tmp_path, monkeypatch):
    """A model whose first use kills the process that uses it, stories, and their rewards."""
    model, stories = str(fit_model), tmp_path / "stories"
    texts = [f"The door opened {number} times. " * (number % 7 + 1) for number in range(64)]
    rows = {
        "story_id": [f"s{number}" for number in range(64)],
        "prompt": [f"[WP] Door {number % 4}" for number in range(64)],
        "text": texts,
    }
    stories.mkdir()
    for part in range(4):
        pq.write_table(pa.table(rows).slice(16 * part, 16), stories / f"{part}.parquet")
    rewards = litbench.load(model).score(rows["prompt"], texts)
    killer = tmp_path / "site" / "sitecustomize.py"
    killer.parent.mkdir()
    killer.write_text(f"""
import os
import litbench
load = litbench.load
def load_once(folder):
    try:
        os.close(os.open({str(tmp_path / "killed")!r}, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return load(folder)
    os._exit(1)
litbench.load = load_once
""")
    monkeypatch.setenv("PYTHONPATH", f"{killer.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    names = {"STORIES": str(stories), "MODEL": model, "OUT": str(tmp_path / "out")}
    return names, dict(zip(rows["story_id"], rewards.tolist(), strict=True)), tmp_path / "killed"


def check(job):
    """Every story once, with the reward of one process, although a worker died."""
    names, rewards, killed = job
    assert killed.exists()
    scored = pq.read_table(names["OUT"], columns=["story_id", "reward"])
    assert scored.num_rows == len(rewards)
    assert dict(zip(*scored.to_pydict().values(), strict=True)) == pytest.approx(rewards, rel=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_ray_data_scores_and_survives_a_killed_worker(job):
    ray = pytest.importorskip("ray", reason="pip install 'ray[data]'")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        exec(recipe("ray.data"), job[0])
    finally:
        ray.shutdown()
    check(job)


@pytest.mark.filterwarnings("ignore")
def test_spark_scores_and_survives_a_killed_worker(job):
    sql = pytest.importorskip("pyspark.sql", reason="pip install 'litbench[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    builder = sql.SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    try:
        exec(recipe("mapInPandas"), {**job[0], "spark": spark})
    finally:
        spark.stop()
    check(job)
