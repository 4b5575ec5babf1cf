"""Find features of judges' explanations, and compare agreement with and without each feature.

    python eval/explanations.py --config configs/eval/explanations.yaml

Reads folders of evaluations (eval/benchmark.py, or any program whose manifest names the pairs)
whose verdicts have explanations. Finds features of each explanation (talk about plot, character,
style, ...; litbench/metrics/explanation_words.yaml) and compares the agreement of verdicts with and
without the feature. Writes `explanations.csv`, `.txt` and `.html`, `manifest.json` and, if there is
a difference to plot, the paper's Figure 8 as `figure8.svg` and `.png` into `out`. The page shows
excerpts of explanations.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from litbench.config import run_program
from litbench.errors import ConfigError
from litbench.evaluation.results import EvaluationFolder
from litbench.metrics.csv_table import write_csv
from litbench.metrics.explanations import (
    explanation_rows,
    explanation_study,
    explanations_text,
    read_explanations,
)
from litbench.report.pages import write_explanations
from litbench.store import Artifact


@dataclass
class Config:
    """Configuration of `explanations.py`.

    Attributes:
        out: folder to write.
        evaluations: name -> folder of an evaluation.
        title: heading of the page.
    """

    out: Path
    evaluations: dict[str, Path]
    title: str = "What explanations say"


def rename_namesakes(verdicts: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """Append the evaluation's name to raters that occur in several evaluations."""
    times = Counter(
        rater for table in verdicts.values() for rater in set(table["rater"].to_pylist())
    )
    renamed = {}
    for name, table in verdicts.items():
        raters = [
            f"{rater} ({name})" if times[rater] > 1 else rater
            for rater in table["rater"].to_pylist()
        ]
        index = table.column_names.index("rater")
        renamed[name] = table.set_column(index, "rater", pa.array(raters, pa.large_string()))
    return renamed


def main(config: Config) -> None:
    """Write the study of explanations."""
    if not config.evaluations:
        raise ConfigError("evaluations is empty: give at least one, such as 'sample: FOLDER'")
    sources = {name: EvaluationFolder.find(folder) for name, folder in config.evaluations.items()}
    inputs: dict[str, Path] = {}
    for name, source in sources.items():
        inputs |= source.inputs(name)
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    page_path = (config.out / "explanations.html").resolve()
    if artifact.is_current():
        print((config.out / "explanations.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return
    verdicts = rename_namesakes({name: one.read_verdicts() for name, one in sources.items()})
    pairs = {name: one.read_pairs().headline for name, one in sources.items()}
    data = read_explanations((table, pairs[name]) for name, table in verdicts.items())
    study = explanation_study(data)
    artifact.write("explanations.csv", lambda path: write_csv(explanation_rows(study), path))
    text = explanations_text(study)
    artifact.write("explanations.txt", lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = {
        "explanations": len(data.rows),
        "not_judged": dict(data.not_judged),
        "without_explanation": dict(data.unexplained),
    }
    labels = {label for table in pairs.values() for label in table["label_source"].to_pylist()}
    write_explanations(artifact, study, data, title=config.title, label_sources=sorted(labels))
    artifact.finish()
    print(f"{text}page: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
