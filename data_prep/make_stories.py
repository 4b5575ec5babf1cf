"""Turn raw rows (posts, comments, a data set) into a stories table.

    python data_prep/make_stories.py --config configs/data/sample_stories.yaml

Reads the embedded sample (`input: sample`), or Parquet, JSONL, CSV, a folder saved by datasets
or a data set's name, with a map of columns. Counts words, and tokens when a tokenizer is named,
once. Writes `stories.parquet`, `set_aside.jsonl` (rows that could not be used, with reasons) and
`manifest.json` into `out`.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from litbench.config import run_program
from litbench.curation.tokens import count_tokens
from litbench.errors import ConfigError
from litbench.manifest import Product
from litbench.reading import read_table
from litbench.records import STORIES, SetAside, write_table
from litbench.sources.sample import read_sample, sample_path


@dataclass
class Config:
    """What to read and how its columns are called.

    Attributes:
        out: folder to write.
        input: `sample`, a file, a folder saved by datasets, or owner/name[@revision][:split].
        columns: for each column of a stories table its origin: a column's name, a template over
            columns such as "{subreddit} {created_utc:%Y-%m}", or "=constant".
        where: SQL condition on the input's own columns; rows that fail it are counted and left
            out.
        source: written into the column `source` unless `columns` maps it.
        tokenizer: `package:NAME/folder`, a folder or file, or a name on the Hub; null skips
            counting tokens.
        max_words_tokenized: a longer story is not tokenised; its words stand in for its tokens.
    """

    out: Path
    input: str = "sample"
    columns: dict[str, str] = field(default_factory=dict)
    where: str | None = None
    source: str = "input"
    tokenizer: str | None = None
    max_words_tokenized: int = 20_000


def main(config: Config) -> None:
    """Read, check, count, write."""
    is_sample = config.input == "sample"
    if is_sample and (config.columns or config.where is not None):
        raise ConfigError("the sample takes no columns: and no where: name a file as input")
    product = Product(
        config.out,
        program=__file__,
        config=config,
        inputs={"input": sample_path() if is_sample else config.input},
    )
    if product.is_current():
        return
    set_aside = SetAside()
    if is_sample:
        stories = read_sample()
    else:
        stories = read_table(
            config.input,
            STORIES,
            columns={"source": f"={config.source}", **config.columns},
            set_aside=set_aside,
            where=config.where,
        )
    if config.tokenizer is not None:
        counts = count_tokens(
            stories["text"].to_pylist(),
            stories["n_words"].to_pylist(),
            config.tokenizer,
            config.max_words_tokenized,
        )
        place = stories.column_names.index("n_tokens")
        stories = stories.set_column(place, "n_tokens", pa.array(counts))
    stories = stories.sort_by("story_id")
    product.write("stories.parquet", lambda path: write_table(stories, path))
    product.write("set_aside.jsonl", set_aside.write)
    product.counts = {
        "stories": stories.num_rows,
        "prompts": len(set(stories["prompt_id"].to_pylist())),
        "not_selected": set_aside.not_selected,
        "set_aside": set_aside.counts(),
    }
    product.finish()
    print(f"{config.out / 'stories.parquet'}: {stories.num_rows:,} stories")
    print(set_aside.summary(), end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
