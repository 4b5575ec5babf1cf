"""Analyse a study with human readers: the command `litbench study analyse`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from litbench.data.records import VERDICTS, empty_columns
from litbench.data.tables import read_table, write_table
from litbench.evaluation.report.document import publish, show_results
from litbench.evaluation.results import Evaluation
from litbench.metrics.agreement import length_differences, pair_scores
from litbench.metrics.leaderboard import plain
from litbench.runs.errors import DataError
from litbench.runs.outputs import Artifact, write_json
from litbench.study.metrics import (
    CHOICES,
    StudyFigures,
    exclusion_counts,
    leave_out,
    one_reader,
    pair_results,
    reader_results,
    study_figures,
    verdicts_of,
)
from litbench.study.page import human_study_page
from litbench.study.pairs import PairStudy


@dataclass
class StudyAnalysis:
    """Compare the readers of a study with the labels, each other and raters.

        litbench study analyse --config configs/eval/sample_study.yaml

    Reads the folder of litbench study make with the choices that `litbench study export` wrote.
    With `evaluation`, an output folder of eval/benchmark.py on the same pairs, its judges and
    verifiers are compared with the readers. Results are given with and without the readers whom the
    plan's rules leave out. Writes into `out`:

    - `human_study.json` and `.txt`: the figures (docs/human_study.md);
    - `readers.csv` and `pairs.csv`: every reader and every pair;
    - `verdicts.parquet`: every reader as a rater, and the raters of `evaluation`;
    - `human_study.html`, its plot as SVG and PNG, and `manifest.json`.

    Attributes:
        study: folder of litbench study make, with its export.
        out: folder to write.
        evaluation: output folder of eval/benchmark.py on the same pairs; null for none.
        verifier: name of what labelled the pairs.
    """

    study: Path
    out: Path
    evaluation: Path | None = None
    verifier: str = "labels"


def analyse(config: StudyAnalysis) -> None:
    """Compute the figures and write them."""
    exported = config.study / "export" / "choices.parquet"
    inputs = {
        "plan": config.study / "plan.json",
        "pairs": config.study / "pairs.parquet",
        "choices": exported,
    }
    evaluation = None if config.evaluation is None else Evaluation.find(config.evaluation)
    if evaluation is not None:
        inputs |= evaluation.inputs("evaluation")
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    if artifact.is_current():
        show_results(config.out, "human_study")
        return
    raters = pa.table(empty_columns(VERDICTS, 0)) if evaluation is None else evaluation.verdicts
    study, choices = PairStudy.open(config.study), read_table(exported, CHOICES)
    pairs = study.pairs
    longer = (1 + np.sign(np.nan_to_num(length_differences(pairs)))) / 2
    credits = {config.verifier: np.ones(pairs.num_rows), "longer": longer}
    credits |= {scores.rater: scores.credit for scores in pair_scores(raters, pairs)}

    def figures(some: pa.Table) -> StudyFigures:
        return study_figures(some, pairs, one_reader(some, pairs, credits))

    readers = reader_results(choices, study.plan.exclude)
    excluded = [row["reader"] for row in readers if row["excluded"]]
    if len(excluded) == len(readers):
        raise DataError("the rules of the plan leave out every reader: there is nothing to analyse")
    rest = leave_out(choices, excluded)
    everyone = figures(choices)
    attentive = figures(rest) if excluded else None
    results = {
        "all": plain(everyone),
        "kept": plain(attentive),
        "exclusions": exclusion_counts(readers),
    }
    rows = [row | {"excluded": "; ".join(row["excluded"])} for row in readers]
    verdicts = pa.concat_tables([verdicts_of(choices), raters])
    artifact.write("human_study.json", partial(write_json, results))
    artifact.write("verdicts.parquet", partial(write_table, verdicts))
    # As private as the export: explanations are what readers wrote.
    (config.out / "verdicts.parquet").chmod(0o600)
    artifact.counts = {"readers": len(readers), "excluded": len(excluded)}
    text, page = human_study_page(
        everyone,
        attentive,
        exclusion_counts(readers),
        label_sources=pairs["label_source"].unique().to_pylist(),
        versions=len(choices["version"].drop_null().unique()),
    )
    tables = {"readers": rows, "pairs": pair_results(rest, pairs)}
    publish(artifact, "human_study", text, page, tables)
