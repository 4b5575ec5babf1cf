"""Rank the stories of each prompt by reward, pair the best with the worst, plot best-of-n curves.

    python eval/best_of_n.py --config configs/eval/sample_best_of_n.yaml

Reads stories tables with several stories per prompt, such as those of `litbench run stories`, and
scores the stories with a rater. Writes into `out`:

- `stories.parquet`: the stories with `reward`, `rank` within the prompt (1 is the best) and, with a
  second rater, `second_reward`;
- `pairs.parquet`: the best and the worst story of every prompt, with the source of both, for a
  study with annotators, for a judge (eval/benchmark.py) or as preference data; `label_source` is
  model;
- `best_of_n.csv` and `.txt`: the gain of the best of n over the prompt's mean in reward, in length
  and in the reward of the second rater. A gain that the second rater does not confirm may be reward
  hacking;
- `best_of_n.html`, its plots as SVG and PNG, and `manifest.json`.

A killed run resumes.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from litbench.config import Runtime, run_program
from litbench.errors import ConfigError, DataError
from litbench.ingest import read_foreign
from litbench.metrics.best_of_n import PromptStories, best_of_n, best_of_n_text, sizes
from litbench.metrics.csv_table import write_csv
from litbench.raters import RaterSpec, check_options, files_of, parse_raters
from litbench.records import PAIRS, STORIES, empty_columns, pair_id, prompt_keys
from litbench.report.pages import write_best_of_n
from litbench.scoring import score_stories
from litbench.store import Artifact, Cache
from litbench.tables import write_table
from litbench.text import digest


@dataclass
class Config:
    """Configuration of `best_of_n.py`.

    Attributes:
        stories: one or several stories tables, which are pooled, such as one per generator.
        rater: the rater that ranks, one named entry that gives rewards, such as
            {verifier: {kind: reward, path: runs/verifier/model}}.
        out: output folder.
        second: a second rater, in the same form.
        where: SQL condition on the rows of `stories`.
        least_stories: leave out prompts with fewer stories; n is at most the smallest number of
            stories of the remaining prompts.
    """

    # The contents of the tables are inputs; their paths do not matter.
    stories: Annotated[str | list[str], Runtime]
    rater: dict[str, Any]
    out: Path
    second: dict[str, Any] = field(default_factory=dict)
    where: str | None = None
    least_stories: int = 2


def read_entry(entry: dict[str, Any], key: str) -> RaterSpec:
    """Parse and check an entry that names one rater."""
    if len(entry) != 1:
        raise ConfigError(f"{key} names {len(entry)} raters: give exactly one")
    (spec,) = parse_raters(entry)
    check_options(spec, "raters")
    return spec


def read_stories(paths: list[str], where: str | None) -> pa.Table:
    """Read all stories, sorted so that the order of rows and files has no effect."""
    tables = [read_foreign(path, STORIES, where=where) for path in paths]
    stories = pa.concat_tables(tables, promote_options="default")
    ids = stories["story_id"].to_pylist()
    if len(set(ids)) < len(ids):
        raise DataError(
            f"stories: {len(ids) - len(set(ids))} rows repeat a story_id: give each table once"
        )
    return stories.sort_by([("prompt_id", "ascending"), ("story_id", "ascending")])


def with_column(stories: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    """Add or replace a column."""
    if name in stories.column_names:
        stories = stories.drop_columns([name])
    return stories.append_column(name, pa.array(values))


def best_and_worst(stories: pa.Table, groups: list[np.ndarray]) -> pa.Table:
    """Return a pairs table of all prompts whose rewards differ; `groups` are rows by prompt."""
    rows = {}
    for indices in groups:
        of_prompt = stories.take(pa.array(indices)).to_pylist()
        # Ties are broken by a hash.
        of_prompt.sort(key=lambda story: (-story["reward"], digest("equal", story["story_id"])))
        chosen, rejected = of_prompt[0], of_prompt[-1]
        if chosen["reward"] == rejected["reward"]:
            continue
        row = {name: chosen[name] for name in ("prompt_id", "prompt")}
        for side, story in (("chosen", chosen), ("rejected", rejected)):
            row[side] = story["text"]
            for name in ("story_id", "n_words", "reward", "source"):
                row[f"{side}_{name}"] = story[name]
        name = pair_id(chosen["story_id"], rejected["story_id"])
        rows[name] = row | {"pair_id": name, "label_source": "model", "split": "all"}
    types = {name: column.type for name, column in empty_columns(PAIRS, 0).items()}
    for side in ("chosen", "rejected"):
        types |= {f"{side}_reward": pa.float64(), f"{side}_source": pa.large_string()}
    return pa.Table.from_pylist([rows[name] for name in sorted(rows)], pa.schema(types))


def main(config: Config) -> None:
    """Score and rank the stories, and write the results."""
    specs = {"rater": read_entry(config.rater, "rater")}
    if config.second:
        specs["second"] = read_entry(config.second, "second")
    if config.least_stories < 2:
        raise ConfigError(f"least_stories is {config.least_stories}: give at least 2")
    paths = [config.stories] if isinstance(config.stories, str) else config.stories
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={f"stories {number}": path for number, path in enumerate(paths, 1)},
        models=files_of(specs.values()),
    )
    page_path = (config.out / "best_of_n.html").resolve()
    if artifact.is_current():
        text = (config.out / "best_of_n.txt").read_text(encoding="utf-8")
        print(f"{text}page: {page_path}")
        return

    stories, parts = read_stories(paths, config.where), Cache(config.out / "parts")
    rewards: dict[str, np.ndarray] = {}
    trained_on: dict[str, int] = {}
    for key, spec in specs.items():
        rewards[key], trained_on[key] = score_stories(spec, stories, parts)

    # Grouped by the prompt's normalised text, not by prompt_id.
    indices: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompt_keys(stories)):
        indices.setdefault(prompt, []).append(index)
    first, ranks = rewards["rater"], np.empty(stories.num_rows, dtype=np.int64)
    for at in indices.values():
        # Equal rewards share the better rank.
        ranks[at] = 1 + (first[at][None, :] > first[at][:, None]).sum(1)
    stories = with_column(with_column(stories, "reward", first), "rank", ranks)
    if "second" in rewards:
        stories = with_column(stories, "second_reward", rewards["second"])
    groups = {key: np.array(at) for key, at in indices.items() if len(at) >= config.least_stories}
    if not groups:
        raise DataError(
            f"stories: no prompt has {config.least_stories} stories: generate more with "
            "`litbench run stories`, or lower least_stories"
        )
    n_words, second = stories["n_words"].to_numpy(), rewards.get("second")
    prompts = [
        PromptStories(key, first[at], n_words[at], None if second is None else second[at])
        for key, at in groups.items()
    ]
    counts = [len(at) for at in groups.values()]
    choices = best_of_n(prompts, sizes(min(counts)))
    pairs = best_and_worst(stories, list(groups.values()))
    artifact.counts = {
        "stories": stories.num_rows,
        "prompts": len(groups),
        "prompts_with_too_few": len(indices) - len(groups),
        "fewest_of_a_prompt": min(counts),
        "most_of_a_prompt": max(counts),
        "trained_on": trained_on,
        "pairs": pairs.num_rows,
    }
    text = best_of_n_text(choices) + "\n"
    artifact.write("stories.parquet", partial(write_table, stories))
    artifact.write("pairs.parquet", partial(write_table, pairs))
    artifact.write("best_of_n.csv", partial(write_csv, [vars(one) for one in choices]))
    names = specs["rater"].name, specs["second"].name if config.second else None
    artifact.write("best_of_n.txt", lambda path: path.write_text(text, encoding="utf-8"))
    write_best_of_n(artifact, choices, *names)
    artifact.finish()
    parts.discard_unused()
    print(f"{text}{config.out / 'pairs.parquet'}: best and worst of {pairs.num_rows:,} prompts")
    print(f"page: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
