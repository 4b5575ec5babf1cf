"""Analyse a study with human readers: how far they agree with the labels, each other and raters.

    python eval/study.py --config configs/eval/sample_study.yaml

Reads the folder of data_prep/make_study.py and the choices that `litbench study export` wrote; or a
finished study of others, as pairs and ratings of data_prep/import_ratings.py. With `evaluation`, an
output folder of eval/benchmark.py on the same pairs, its judges and verifiers are compared with the
readers. Results are given with and without the readers whom the plan's rules leave out. Writes into
`out`:

- `human_study.json` and `.txt`: the figures (docs/human_study.md);
- `readers.csv` and `pairs.csv`: every reader and every pair;
- `verdicts.parquet`: every reader as a rater, and the raters of `evaluation`;
- `human_study.html`, its plot as SVG and PNG, and `manifest.json`.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.artifact import Artifact, write_json
from litbench.config import run_program
from litbench.errors import ConfigError, DataError
from litbench.evaluation import compare_annotators
from litbench.evaluation_pairs import input_files, read_pairs
from litbench.finished_evaluation import Judged
from litbench.metrics.agreement import length_differences, pair_scores
from litbench.metrics.annotators import AnnotatorAgreement
from litbench.metrics.csv_table import write_csv
from litbench.metrics.human_study import (
    CHOICES,
    Exclusions,
    StudyFigures,
    choices_of_ratings,
    exclusion_counts,
    figures_text,
    leave_out,
    one_reader,
    pair_shares,
    reader_results,
    study_figures,
    verdicts_of,
)
from litbench.metrics.leaderboard import plain
from litbench.metrics.printing import annotators_text
from litbench.records import VERDICTS, empty_columns
from litbench.report.human_study_page import write_human_study
from litbench.sources.ratings import RATINGS, ROUNDING
from litbench.study.plan import Study
from litbench.tables import read_table, write_table


@dataclass
class Config:
    """Configuration of `study.py`.

    Attributes:
        out: folder to write.
        study: folder of data_prep/make_study.py.
        choices: choices of its readers; null for `export/choices.parquet` in the folder.
        pairs: pairs of a finished study, in place of `study`.
        ratings: ratings of a finished study, in the folder of `pairs`.
        evaluation: output folder of eval/benchmark.py on the same pairs; null for none.
        verifier: name of what labelled the pairs of `study`.
        title: heading of the page.
    """

    out: Path
    study: Path | None = None
    choices: Path | None = None
    pairs: Path | None = None
    ratings: Path | None = None
    evaluation: Path | None = None
    verifier: str = "labels"
    title: str = "LitBench: a study with readers"


@dataclass(frozen=True)
class Opened:
    """What was collected: choices, pairs, rules, and by whom the readers are compared.

    `ratings` is None if readers chose between the stories of a pair.
    """

    choices: pa.Table
    pairs: pa.Table
    every_pair: pa.Table
    rules: Exclusions
    raters: pa.Table
    verifier: str
    ratings: Path | None = None

    def annotators(self, choices: pa.Table) -> AnnotatorAgreement | None:
        """One reader against the others, with the raters on the same pairs."""
        if self.ratings is not None:
            return compare_annotators(self.raters, self.ratings, self.every_pair)
        longer = (1 + np.sign(np.nan_to_num(length_differences(self.pairs)))) / 2
        credits = {self.verifier: np.ones(self.pairs.num_rows), "longer": longer}
        credits |= {one.rater: one.credit for one in pair_scores(self.raters, self.pairs)}
        return one_reader(choices, self.pairs, credits)

    def figures(self, choices: pa.Table) -> StudyFigures:
        """The figures of some choices."""
        readers = reader_results(choices, self.rules)
        return study_figures(choices, self.pairs, readers, self.annotators(choices))


def check(config: Config) -> None:
    """Raise a ConfigError unless one study is given."""
    own, finished = config.study is not None, config.pairs is not None
    if own == finished or finished != (config.ratings is not None):
        raise ConfigError("give study, or pairs and ratings of a finished study")


def input_paths(config: Config) -> dict[str, Path]:
    """The files of the study and of the evaluation."""
    if config.study is not None:
        paths = {
            "plan": config.study / "plan.json",
            "pairs": config.study / "pairs.parquet",
            "choices": config.choices or config.study / "export" / "choices.parquet",
        }
    else:
        assert config.pairs is not None
        paths = input_files(config.pairs, None, config.ratings)
    if config.evaluation is not None:
        paths |= Judged.find(config.evaluation).inputs("evaluation")
    return paths


def open_study(config: Config, paths: dict[str, Path]) -> Opened:
    """Read what was collected."""
    raters = pa.table(empty_columns(VERDICTS, 0))
    if config.evaluation is not None:
        raters = Judged.find(config.evaluation).read_verdicts()
    if config.study is not None:
        study = Study.open(config.study)
        choices = read_table(paths["choices"], CHOICES)
        return Opened(
            choices, study.pairs, study.pairs, study.plan.exclude, raters, config.verifier
        )
    assert config.pairs is not None
    read = read_pairs(config.pairs, None, None, config.ratings)
    ratings: dict[str, dict[str, float]] = defaultdict(dict)
    for row in read_table(paths["ratings"], RATINGS).to_pylist():
        if row["rater_kind"] == "person" and row["rating"] is not None:
            ratings[row["rater"]][row["story_id"]] = row["rating"]
    choices = choices_of_ratings(ratings, read.headline, ROUNDING)
    return Opened(
        choices, read.headline, read.all, Exclusions(), raters, config.verifier, config.ratings
    )


def pair_rows(choices: pa.Table, pairs: pa.Table) -> list[dict[str, Any]]:
    """The pairs that were read, those with the highest share first."""
    own = choices.filter(pc.equal(choices["kind"], "pair"))
    count = own.group_by("pair_id").aggregate([("outcome", "count")]).to_pydict()
    choices_of = dict(zip(count["pair_id"], count["outcome_count"], strict=True))
    columns = (pairs[name].to_pylist() for name in ("pair_id", "prompt_id", "prompt"))
    rows = [
        {"pair_id": name, "prompt_id": prompt_id, "prompt": prompt, "share": share,
         "choices": choices_of[name]}
        for name, prompt_id, prompt, share in zip(
            *columns, pair_shares(choices, pairs).tolist(), strict=True
        )
        if name in choices_of
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-row["share"], row["pair_id"]))


def warnings_of(choices: pa.Table, *, from_choices: bool) -> list[str]:
    """What limits the figures of these choices."""
    if not from_choices:
        return [
            "The labels are means of these same ratings, so the first two shares say how far "
            "annotators agree with a label that they made; one annotator against the others does "
            "not have this fault."
        ]
    versions = choices["version"].drop_null().unique()
    if len(versions) > 1:
        return [f"Readers saw {len(versions)} versions of the pages."]
    return []


def main(config: Config) -> None:
    """Compute the figures and write them."""
    check(config)
    paths = input_paths(config)
    artifact = Artifact(config.out, program=__file__, config=config, inputs=paths)
    page_path = (config.out / "human_study.html").resolve()
    if artifact.is_current():
        print((config.out / "human_study.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return
    opened = open_study(config, paths)
    choices, from_choices = opened.choices, opened.ratings is None
    readers = reader_results(choices, opened.rules)
    excluded = [one.reader for one in readers if one.excluded]
    if len(excluded) == len(readers):
        raise DataError("the rules of the plan leave out every reader: there is nothing to analyse")
    everyone = opened.figures(choices)
    text, kept, rest = figures_text(everyone), None, choices
    if excluded:
        rest = leave_out(choices, excluded)
        kept = opened.figures(rest)
        rules = ", ".join(f"{n} {rule}" for rule, n in exclusion_counts(readers).items())
        text = f"{text}\nwithout {len(excluded)} readers ({rules}):\n\n{figures_text(kept)}"
    annotators = (kept or everyone).annotators
    if annotators is not None:
        text += f"\n{annotators_text(annotators)}\n"
    results = {"all": plain(everyone), "kept": plain(kept), "exclusions": exclusion_counts(readers)}
    artifact.write("human_study.json", partial(write_json, results))
    artifact.write("human_study.txt", lambda path: path.write_text(text, encoding="utf-8"))
    pairs = pair_rows(rest, opened.pairs)
    rows = [vars(one) | {"excluded": "; ".join(one.excluded)} for one in readers]
    artifact.write("readers.csv", partial(write_csv, rows))
    artifact.write("pairs.csv", partial(write_csv, pairs))
    verdicts = pa.concat_tables([verdicts_of(choices), opened.raters])
    artifact.write("verdicts.parquet", partial(write_table, verdicts))
    artifact.counts = {"readers": len(readers), "excluded": len(excluded)}
    write_human_study(
        artifact, everyone, kept, readers, pairs,
        label_sources=sorted(set(opened.pairs["label_source"].to_pylist())),
        from_choices=from_choices,
        warnings=warnings_of(choices, from_choices=from_choices),
        title=config.title,
    )  # fmt: skip
    artifact.finish()
    print(f"{text}page: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
