"""The embedded sample: 48 prompts and their stories, written for this project, votes simulated.

`sample/README.md` is its card. Stories and qualities are written by hand; times, votes and authors
are simulated by `litbench.data.curation.simulation` and stored, so they are the same on every
machine. The sample supports no claims about real readers.
"""

import json
from importlib import resources
from pathlib import Path

import pyarrow as pa

from litbench.data.records import STORIES, empty_columns
from litbench.data.text import count_words

SAMPLE_FILE = "stories.jsonl"


def sample_path() -> Path:
    """Return the path of the sample's JSONL file."""
    return Path(str(resources.files("litbench.data.sample") / SAMPLE_FILE))


def read_sample() -> pa.Table:
    """Read the sample as a stories table.

    Returns:
        Table with the schema STORIES and two extra columns: `quality` (1 to 10, assigned by the
        story's author; null for rows that are not stories) and `fit` (the kind of row: story,
        short, overlong, repost, removed, bot).
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
