"""Analyse a study with human readers: how far they agree with the labels, each other and raters.

    python eval/study.py --config configs/eval/sample_study.yaml

Reads the folder of data_prep/make_study.py with the choices that `litbench study export` wrote; or
a finished study of others, as pairs and ratings of data_prep/import_ratings.py: their ratings made
the labels, so readers are compared with each other only. With `evaluation`, an output folder of
eval/benchmark.py on the same pairs, its judges and verifiers are compared with the readers. Results
are given with and without the readers whom the plan's rules leave out. Writes into `out`:

- `human_study.json` and `.txt`: the figures (docs/human_study.md);
- `readers.csv` and `pairs.csv`: every reader and every pair;
- `verdicts.parquet`: every reader as a rater, and the raters of `evaluation`;
- `human_study.html`, its plot as SVG and PNG, and `manifest.json`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from litbench.config import run_program
from litbench.errors import ConfigError, DataError
from litbench.evaluation.loop import compare_annotators
from litbench.evaluation.results import Evaluation
from litbench.human_study.pairs import PairStudy
from litbench.metrics.agreement import length_differences, pair_scores
from litbench.metrics.annotators import AnnotatorAgreement
from litbench.metrics.human_study import (
    CHOICES,
    Exclusions,
    StudyFigures,
    choices_of_ratings,
    exclusion_counts,
    leave_out,
    one_reader,
    pair_results,
    reader_results,
    study_figures,
    verdicts_of,
)
from litbench.metrics.leaderboard import plain
from litbench.records import RATINGS, VERDICTS, empty_columns
from litbench.report.csv_table import write_csv
from litbench.report.human_study import write_human_study
from litbench.sources.evaluation_pairs import input_files, read_pairs
from litbench.sources.ratings import ROUNDING
from litbench.store import Artifact, write_json
from litbench.tables import read_table, write_table


@dataclass
class Config:
    """Configuration of `study.py`.

    Attributes:
        out: folder to write.
        study: folder of data_prep/make_study.py, with its export.
        pairs: pairs of a finished study, in place of `study`.
        ratings: ratings of a finished study, in the folder of `pairs`.
        evaluation: output folder of eval/benchmark.py on the same pairs; null for none.
        verifier: name of what labelled the pairs of `study`.
    """

    out: Path
    study: Path | None = None
    pairs: Path | None = None
    ratings: Path | None = None
    evaluation: Path | None = None
    verifier: str = "labels"


@dataclass(frozen=True)
class Collected:
    """What was collected.

    Attributes:
        annotators: compares the readers of some choices with each other.
        made_labels: whether the readers' answers made the labels.
    """

    choices: pa.Table
    pairs: pa.Table
    rules: Exclusions
    annotators: Callable[[pa.Table], AnnotatorAgreement | None]
    made_labels: bool

    def figures(self, choices: pa.Table) -> StudyFigures:
        """The figures of some of the choices."""
        found = self.annotators(choices)
        return study_figures(choices, self.pairs, found, made_labels=self.made_labels)


def export_of(study: Path) -> Path:
    """The choices that `litbench study export` wrote."""
    return study / "export" / "choices.parquet"


def input_paths(config: Config) -> dict[str, Path]:
    """The files of the study and of the evaluation; ConfigError unless one study is given."""
    if config.study is not None and config.pairs is None and config.ratings is None:
        plan, pairs = config.study / "plan.json", config.study / "pairs.parquet"
        paths = {"plan": plan, "pairs": pairs, "choices": export_of(config.study)}
    elif config.study is None and config.pairs is not None and config.ratings is not None:
        paths = input_files(config.pairs, None, config.ratings)
    else:
        raise ConfigError("give study, or pairs and ratings of a finished study")
    if config.evaluation is not None:
        paths |= Evaluation.find(config.evaluation).inputs("evaluation")
    return paths


def read_study(folder: Path, verifier: str, raters: pa.Table) -> Collected:
    """Read a study of our own, whose readers are compared with raters on its pairs."""
    study, choices = PairStudy.open(folder), read_table(export_of(folder), CHOICES)
    pairs = study.pairs
    longer = (1 + np.sign(np.nan_to_num(length_differences(pairs)))) / 2
    credits = {verifier: np.ones(pairs.num_rows), "longer": longer}
    credits |= {one.rater: one.credit for one in pair_scores(raters, pairs)}
    return Collected(
        choices,
        pairs,
        study.plan.exclude,
        lambda some: one_reader(some, pairs, credits),
        made_labels=False,
    )


def read_finished(pairs: Path, ratings: Path, raters: pa.Table) -> Collected:
    """Read a finished study, whose readers rated stories."""
    read = read_pairs(pairs, None, None, ratings)
    choices = choices_of_ratings(read_table(ratings, RATINGS), read.headline, ROUNDING)
    annotators = compare_annotators(raters, ratings, read.all)
    return Collected(
        choices,
        read.headline,
        Exclusions(),
        lambda _: annotators,
        made_labels="people" in read.headline["label_source"].to_pylist(),
    )


def main(config: Config) -> None:
    """Compute the figures and write them."""
    artifact = Artifact(config.out, program=__file__, config=config, inputs=input_paths(config))
    if artifact.is_current():
        artifact.show("human_study.txt", "human_study.html")
        return
    raters = pa.table(empty_columns(VERDICTS, 0))
    if config.evaluation is not None:
        raters = Evaluation.find(config.evaluation).verdicts
    if config.study is not None:
        found = read_study(config.study, config.verifier, raters)
    else:
        assert config.pairs is not None
        assert config.ratings is not None
        found = read_finished(config.pairs, config.ratings, raters)

    readers = reader_results(found.choices, found.rules)
    excluded = [row["reader"] for row in readers if row["excluded"]]
    if len(excluded) == len(readers):
        raise DataError("the rules of the plan leave out every reader: there is nothing to analyse")
    rest = leave_out(found.choices, excluded)
    everyone = found.figures(found.choices)
    kept = found.figures(rest) if excluded else None
    pairs = pair_results(rest, found.pairs)
    if found.made_labels:
        readers = [row | {"agreement": None} for row in readers]
        pairs = [row | {"share": None} for row in pairs]
    results = {"all": plain(everyone), "kept": plain(kept), "exclusions": exclusion_counts(readers)}
    rows = [row | {"excluded": "; ".join(row["excluded"])} for row in readers]
    verdicts = pa.concat_tables([verdicts_of(found.choices), raters])
    artifact.write("human_study.json", partial(write_json, results))
    artifact.write("readers.csv", partial(write_csv, rows))
    artifact.write("pairs.csv", partial(write_csv, pairs))
    artifact.write("verdicts.parquet", partial(write_table, verdicts))
    if config.study is not None:
        # As private as the export: explanations are what readers wrote.
        (config.out / "verdicts.parquet").chmod(0o600)
    artifact.counts = {"readers": len(readers), "excluded": len(excluded)}
    write_human_study(
        artifact,
        everyone,
        kept,
        readers,
        pairs,
        label_sources=found.pairs["label_source"].unique().to_pylist(),
        from_choices=config.study is not None,
        versions=len(found.choices["version"].drop_null().unique()),
    )
    artifact.finish()
    artifact.show("human_study.txt", "human_study.html")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
