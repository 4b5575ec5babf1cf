"""Turn published ratings of stories into pairs and a table of ratings.

    python data_prep/import_ratings.py --config configs/data/psychdepth_ratings.yaml

Reads a table of stories, a table of ratings by annotators and, optionally, a table of ratings by
recorded judges (models). Two stories of a prompt become a pair, whose chosen story has the higher
mean rating by the annotators. Writes into `out`:

- `pairs.parquet`: pairs whose means differ, by `min_gap` or more;
- `all_pairs.parquet`: all pairs within a prompt, on which eval/benchmark.py compares annotators.
  Pairs of equal means are in the split `tied`; which side is chosen has no meaning there;
- `ratings.parquet`: one number per story and rater;
- `grades.parquet`, if `writer` names the column of the stories' authors or systems: each rater's
  grades by criterion, for eval/writers.py;
- `rejected.jsonl` (rows that could not be used, with reasons) and `manifest.json`.

Texts that the source does not have are empty, with a length of 0. Raters that need the text cannot
judge these pairs; recorded judges can. `where: text IS NOT NULL` leaves these stories out.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc

from litbench.config import Input, build, run_program
from litbench.curation.funnel import Funnel
from litbench.errors import DataError
from litbench.ingest import RejectedRows, read_foreign
from litbench.sources.ratings import (
    RATED_STORIES,
    RaterKind,
    RatingTable,
    grades_of,
    overall_ratings,
    pair_rated_stories,
    people_means,
    read_ratings,
    story_digest,
    with_label,
)
from litbench.store import Artifact
from litbench.tables import write_table


@dataclass
class Config:
    """Configuration of `import_ratings.py`.

    Attributes:
        stories: file of the stories.
        people: ratings by annotators, see litbench.sources.ratings.RatingTable.
        out: output folder.
        recorded: ratings by recorded judges, in the same form; empty if there are none.
        story_columns: maps `story_id`, `prompt_id`, `prompt` and `text` to the file's columns.
        where: SQL condition on the stories' rows.
        encoding: encoding of the stories' file, if it is a text file.
        keep: further columns of the stories to copy into the pairs, once per side.
        min_raters: least number of annotators who rated a story.
        min_gap: least difference of two means, in units of a rating.
        split: name of the split.
        writer: column of the stories that says who wrote them, a system or a person.
    """

    stories: Annotated[Path, Input]
    people: dict[str, Any]
    out: Path
    recorded: dict[str, Any] = field(default_factory=dict)
    story_columns: dict[str, str] = field(default_factory=dict)
    where: str | None = None
    encoding: str = "utf-8"
    keep: list[str] = field(default_factory=list)
    min_raters: int = 2
    min_gap: float = 0.0
    split: str = "all"
    writer: str | None = None


def main(config: Config) -> None:
    """Import the ratings, make pairs and write them."""
    tables: dict[RaterKind, RatingTable] = {"person": build(RatingTable, config.people, "people")}
    if config.recorded:
        tables["recorded"] = build(RatingTable, config.recorded, "recorded")
    inputs = {f"ratings ({kind})": how.table for kind, how in tables.items()}
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    if artifact.is_current():
        return
    rejected_rows, funnel = RejectedRows(), Funnel()
    stories = read_foreign(
        config.stories,
        RATED_STORIES,
        columns=config.story_columns,
        rejected_rows=rejected_rows,
        where=config.where,
        encoding=config.encoding,
    )
    rows = zip(*(stories[name].to_pylist() for name in ("story_id", "prompt", "text")), strict=True)
    digests = {name: story_digest(prompt, text) if text else None for name, prompt, text in rows}
    selected = config.where is not None
    read = [
        read_ratings(how, kind, digests, rejected_rows, are_selected=selected)
        for kind, how in tables.items()
    ]
    ratings = pa.concat_tables(read)
    funnel.add("stories", "stories that can be used", "stories", stories.num_rows, 0)
    means = people_means(ratings, config.min_raters)
    every = pair_rated_stories(stories, means, funnel, split=config.split, keep=config.keep)
    pairs = with_label(every, config.min_gap, funnel)
    if pairs.num_rows == 0:
        raise DataError(
            f"{config.stories}: none of {every.num_rows} pairs has means that differ by "
            f"{config.min_gap:g}: lower min_gap"
        )
    artifact.write("pairs.parquet", lambda path: write_table(pairs, path))
    artifact.write("all_pairs.parquet", lambda path: write_table(every, path))
    artifact.write("ratings.parquet", lambda path: write_table(ratings, path))
    if config.writer is not None:
        grades = grades_of(ratings, stories, config.writer)
        artifact.write("grades.parquet", lambda path: write_table(grades, path))
    artifact.write("rejected.jsonl", rejected_rows.write)
    recorded: dict[str, Counter[str]] = {}
    of_judges = overall_ratings(ratings).filter(pc.field("rater_kind") == "recorded")
    for row in of_judges.to_pylist():
        count = recorded.setdefault(row["rater"], Counter(rated=0, unread=0))
        count["unread" if row["rating"] is None else "rated"] += 1
    artifact.counts = {
        "headline": "overall",
        "pairs": pairs.num_rows,
        "prompts": pc.count_distinct(pairs["prompt_id"]).as_py(),
        "people": len(set(read[0]["rater"].to_pylist())),
        "recorded": recorded,
        "funnel": funnel.plain(),
        "not_selected": rejected_rows.not_selected,
        "rejected_rows": rejected_rows.counts(),
    }
    artifact.finish()
    print(f"{config.out / 'pairs.parquet'}: {pairs.num_rows:,} pairs")
    print(funnel)
    print(rejected_rows.summary(), end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
