"""Scoring on engines, by the code of docs/scale.md: two workers, one of which dies."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import litbench
from litbench.models.features import FEATURES, FeatureModel

DOCS = Path(__file__).resolve().parents[2] / "docs/scale.md"
pytestmark = pytest.mark.long


# Kills the first process that loads the model.
KILLER = """
import os


def load_once(folder):
    import litbench
    try:
        os.close(os.open(KILLED, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return litbench.load(folder)
    os._exit(1)


"""


def run_recipe(engine, names):
    """Run the block of code that mentions the engine, as a program."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if engine in block]
    assert "litbench.load(" in code
    code = KILLER + code.replace("litbench.load(", "load_once(")
    # Classes and functions of a main program travel to workers by value.
    exec(code, {"__name__": "__main__", **names})  # noqa: S102


@pytest.fixture
def job(tmp_path):
    """The names that a recipe uses, and the reward of each story in one process."""
    model, stories = str(tmp_path / "model"), tmp_path / "stories"
    ones = np.ones(len(FEATURES))
    FeatureModel("features", FEATURES, ones, ones, ones, 1.0, frozenset({"a"})).save(Path(model))
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
    names = {"STORIES": str(stories), "MODEL": model, "OUT": str(tmp_path / "out")}
    names["KILLED"] = str(tmp_path / "killed")
    return names, dict(zip(rows["story_id"], rewards.tolist(), strict=True))


def check(job):
    """Every story once, with the reward of one process, although a worker died."""
    names, rewards = job
    assert Path(names["KILLED"]).exists()
    scored = pq.read_table(names["OUT"], columns=["story_id", "reward"])
    assert scored.num_rows == len(rewards)
    assert dict(zip(*scored.to_pydict().values(), strict=True)) == pytest.approx(rewards, rel=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_ray_data_scores_and_survives_a_killed_worker(job):
    ray = pytest.importorskip("ray", reason="pip install 'ray[data]'")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        run_recipe("ray.data", job[0])
    finally:
        ray.shutdown()
    check(job)


@pytest.mark.filterwarnings("ignore")
def test_spark_scores_and_survives_a_killed_worker(job, monkeypatch):
    sql = pytest.importorskip("pyspark.sql", reason="pip install 'litbench[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    builder = sql.SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    try:
        run_recipe("mapInPandas", {**job[0], "spark": spark})
    finally:
        spark.stop()
    check(job)
