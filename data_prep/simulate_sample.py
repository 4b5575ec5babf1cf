"""Simulate the times, votes and authors of the embedded sample.

    python data_prep/simulate_sample.py --config configs/data/sample_votes.yaml

Reads litbench/sources/sample/stories.jsonl, whose texts, prompts and qualities are written by hand,
and replaces `created_utc`, `score_utc`, `score` and `author` in this file. The result depends only
on the texts and the config. Run it after adding stories or changing the simulated readers.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
from pydantic import Field

from litbench.config import run_program
from litbench.curation.simulation import ReaderSimulation, simulate_votes
from litbench.sources.sample import sample_path
from litbench.store import write_atomically
from litbench.text import count_words, digest


@dataclass
class Config:
    """Configuration of `simulate_sample.py`.

    Attributes:
        stories: JSONL file of the sample, rewritten in place.
        readers: see litbench.curation.simulation.ReaderSimulation.
        authors: number of simulated authors.
    """

    stories: Path = field(default_factory=sample_path)
    readers: ReaderSimulation = field(default_factory=ReaderSimulation)
    authors: Annotated[int, Field(ge=1)] = 160


def main(config: Config) -> None:
    """Simulate the votes and rewrite the sample."""
    with config.stories.open(encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    n_words = count_words(pa.array([record["text"] for record in records], pa.large_string()))
    # Rows that are not stories get the votes of an average story; filters must remove them anyway.
    quality = [5 if record["quality"] is None else record["quality"] for record in records]
    votes = simulate_votes(
        [record["prompt_id"] for record in records], quality, n_words.to_pylist(), config.readers
    )
    author_numbers = np.random.default_rng([config.readers.seed, 1]).integers(
        config.authors, size=len(records)
    )
    for row, record in enumerate(records):
        record["created_utc"] = int(votes.created_utc[row])
        record["score_utc"] = int(votes.score_utc[row])
        record["score"] = int(votes.score[row])
        author = "bot" if record["fit"] == "bot" else f"author {author_numbers[row]}"
        record["author"] = "AutoModerator" if author == "bot" else digest("sample", author)[:16]
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write_atomically(config.stories, lambda path: path.write_text(text, encoding="utf-8"))
    enough, median = int((votes.score >= 10).sum()), np.median(votes.score)
    print(f"{len(records)} rows, {enough} with at least 10 votes, median {median:.0f}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
