"""The embedded sample: 48 prompts and their stories, written for this project, votes simulated.

`sample/README.md` is its card. The stories and their quality are written; times, votes and
authors are drawn by `litbench.curation.simulation` and stored, so that every machine reads the
same ones. No claim about people can be made from it.
"""

import json
from importlib import resources
from pathlib import Path

import pyarrow as pa

from litbench.records import STORIES, empty_columns
from litbench.text import count_words

SAMPLE_FILE = "stories.jsonl"


def sample_path() -> Path:
    """Where the sample's JSONL file lies."""
    return Path(str(resources.files("litbench.sources") / "sample" / SAMPLE_FILE))


def read_sample() -> pa.Table:
    """Read the sample as a stories table.

    Returns:
        Table by the schema STORIES, with the extra columns `quality` (1 to 10, written beside
        each story by its author; null for rows that are no stories) and `fit` (why a row is
        there: story, short, overlong, repost, removed, bot).
    """
    with sample_path().open(encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    types = {name: column.type for name, column in empty_columns(STORIES, 0).items()}
    columns = {
        name: pa.array([record.get(name) for record in records], kind)
        for name, kind in types.items()
    }
    columns["n_words"] = count_words(columns["text"])
    columns["source"] = pa.array(["sample"] * len(records), pa.large_string())
    columns["quality"] = pa.array([record["quality"] for record in records], pa.int64())
    columns["fit"] = pa.array([record["fit"] for record in records], pa.large_string())
    return pa.table(columns)
