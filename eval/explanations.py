"""What judges' explanations say, and which words go with verdicts that agree with the labels.

    python eval/explanations.py --config configs/eval/explanations.yaml

Reads verdicts with explanations: folders of evaluations (eval/benchmark.py, or any program whose
manifest names the pairs), or verdict files with the pairs they judged. Looks for features in each
explanation (talk of plot, character, style, ...; litbench/metrics/explanation_text.py) and
compares the agreement of verdicts with a feature and without it. Writes `explanations.json`,
`.csv`, `.txt` and `.html`, the paper's Figure 8 as `figure8.tex` and, where some difference can be
told, `.svg` and `.png`, and `manifest.json` into `out`. The page shows excerpts of explanations.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from litbench.artifact import Artifact, write_json
from litbench.config import nearest, run_program
from litbench.errors import ConfigError, DataError
from litbench.evaluation import Judged, read_pairs
from litbench.metrics.csv_table import write_csv
from litbench.metrics.explanations import (
    explanation_rows,
    explanation_study,
    explanations_json,
    explanations_text,
    read_explanations,
)
from litbench.records import VERDICTS
from litbench.report.explanations_page import draw_effects, figure_8_latex, render_explanations
from litbench.tables import read_table


@dataclass
class Source:
    """Verdicts outside an evaluation's folder.

    Attributes:
        verdicts: file by the schema VERDICTS.
        pairs: the pairs that were judged.
        split: only pairs of this split; None for all.
    """

    verdicts: Path
    pairs: Path
    split: str | None = None


@dataclass
class Config:
    """What to read.

    Attributes:
        out: folder to write.
        evaluations: name -> folder of an evaluation.
        tables: name -> verdicts, pairs and, if wanted, split.
        raters: names of raters; all with an explanation when empty.
        families: rater -> family; differences are also taken over each family of several.
        title: heading of the page.
    """

    out: Path
    evaluations: dict[str, Path] = field(default_factory=dict)
    tables: dict[str, Source] = field(default_factory=dict)
    raters: list[str] = field(default_factory=list)
    families: dict[str, str] = field(default_factory=dict)
    title: str = "What explanations say"


def read_sources(config: Config) -> dict[str, Source]:
    """All tables by the name of their source."""
    shared = sorted(set(config.evaluations) & set(config.tables))
    if shared:
        raise ConfigError(f"evaluations and tables both name {shared[0]}: rename one of them")
    found = {name: Judged.find(folder) for name, folder in config.evaluations.items()}
    sources = {
        name: Source(one.verdicts_path, one.pairs_path, one.split) for name, one in found.items()
    }
    sources |= config.tables
    if not sources:
        raise ConfigError("evaluations and tables are empty: name verdicts to read")
    return sources


def with_explanations(verdicts: pa.Table) -> set[str]:
    """The raters that explained something."""
    rows = verdicts.select(["rater", "explanation"]).to_pylist()
    return {row["rater"] for row in rows if (row["explanation"] or "").strip()}


def select_raters(verdicts: dict[str, pa.Table], config: Config) -> dict[str, pa.Table]:
    """The verdicts of the raters to look at; a name in several sources gets its source behind it.

    Raises:
        ConfigError: `raters` or `families` names a rater that explains nothing anywhere.
    """
    explaining = {name: with_explanations(table) for name, table in verdicts.items()}
    times = Counter(rater for raters in explaining.values() for rater in raters)
    selected, names = {}, set()
    for name, table in verdicts.items():
        called = {
            rater: f"{rater} ({name})" if times[rater] > 1 else rater for rater in explaining[name]
        }
        names |= set(called.values())
        wanted = {
            rater: new for rater, new in called.items() if not config.raters or new in config.raters
        }
        given = table["rater"].to_pylist()
        kept = table.filter(pa.array([rater in wanted for rater in given]))
        renamed = pa.array(
            [wanted[rater] for rater in kept["rater"].to_pylist()], pa.large_string()
        )
        selected[name] = kept.set_column(kept.column_names.index("rater"), "rater", renamed)
    for key, given in (("raters", config.raters), ("families", config.families)):
        for rater in given:
            if rater not in names:
                raise ConfigError(
                    f"{key}: no rater '{rater}' has an explanation: {nearest(rater, sorted(names))}"
                )
    return {name: table for name, table in selected.items() if table.num_rows}


def main(config: Config) -> None:
    """Read, look for features, compare, write."""
    sources = read_sources(config)
    inputs: dict[str, Path] = {}
    for name, source in sources.items():
        inputs |= {f"{name}: verdicts": source.verdicts, f"{name}: pairs": source.pairs}
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    page_path = (config.out / "explanations.html").resolve()
    if artifact.is_current():
        print((config.out / "explanations.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return
    verdicts = {name: read_table(source.verdicts, VERDICTS) for name, source in sources.items()}
    selected = select_raters(verdicts, config)
    if not selected:
        raise DataError(
            f"{', '.join(map(str, inputs.values()))}: no verdict has an explanation: judge with a "
            "template whose answers explain"
        )
    pairs = {
        name: read_pairs(sources[name].pairs, None, sources[name].split).headline
        for name in selected
    }
    found = read_explanations((table, pairs[name]) for name, table in selected.items())
    study = explanation_study(found, config.families)
    artifact.write("explanations.json", lambda path: write_json(explanations_json(study), path))
    artifact.write("explanations.csv", lambda path: write_csv(explanation_rows(study), path))
    text = explanations_text(study) + "\n"
    artifact.write("explanations.txt", lambda path: path.write_text(text, encoding="utf-8"))
    latex = figure_8_latex(study)
    artifact.write("figure8.tex", lambda path: path.write_text(latex, encoding="utf-8"))
    panel = draw_effects(study)
    if panel is not None:
        for file, write in panel.drawing.files("figure8").items():
            artifact.write(file, write)
    artifact.counts = {
        "explanations": len(found.texts),
        "not_judged": dict(found.not_judged),
        "without_explanation": dict(found.unexplained),
    }
    page = render_explanations(
        title=config.title,
        study=study,
        panel=panel,
        found=found,
        label_sources=sorted(
            {label for table in pairs.values() for label in table["label_source"].to_pylist()}
        ),
        manifests={"explanations": artifact.made_of()},
    )
    artifact.write("explanations.html", lambda path: path.write_text(page, encoding="utf-8"))
    artifact.finish()
    print(f"{text}page: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
