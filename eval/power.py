"""Compute power, and the pairs, prompts or annotators needed to distinguish raters.

    python eval/power.py --config configs/eval/paper_power.yaml
    python eval/power.py --evaluation runs/quickstart/evaluation --out runs/quickstart/power

`cases` give assumed numbers, see litbench.metrics.power.Case: the agreement of two raters and how
often they disagree, or one rater against chance, and the numbers of pairs and prompts. A list of
values is swept. `grades` give writers whose grades are compared on the same prompts, see
litbench.metrics.power.GradeCase. `evaluation` is an output folder of eval/benchmark.py or
eval/crossvalidate.py; the numbers are then measured for every rater against the reference.

Writes `power.txt`, `power.csv` and `manifest.json` into `out`. Formulas: docs/power.md.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.csv as pa_csv
from pydantic import Field

from litbench.config import build, nearest, run_program
from litbench.errors import ConfigError
from litbench.evaluation.results import EvaluationFolder
from litbench.metrics.agreement import pair_scores
from litbench.metrics.power import Case, GradeCase, grade_plan, measure, plan
from litbench.records import connected_prompts
from litbench.store import Artifact
from litbench.text import aligned, clean_name


@dataclass
class Config:
    """Configuration of `power.py`.

    Attributes:
        out: output folder.
        cases: name -> keys of litbench.metrics.power.Case; a list of values is swept.
        grades: name -> keys of litbench.metrics.power.GradeCase; a list of values is swept.
        evaluation: folder of an evaluation.
        reference: the rater that the others are compared with; null for the evaluation's reference.
        power: target power, the probability of detecting the effect.
        alpha: two-sided family-wise significance level.
        comparisons: number of comparisons, for Holm's worst case, alpha / comparisons; null for the
            number in the evaluation, and for 1 in `cases`. A rater against chance is not corrected.
    """

    out: Path
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    grades: dict[str, dict[str, Any]] = field(default_factory=dict)
    evaluation: Path | None = None
    reference: str | None = None
    power: float = 0.8
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    comparisons: Annotated[int, Field(ge=1)] | None = None


def plan_row(name: str, case: Case, config: Config, comparisons: int) -> dict[str, Any]:
    """Return the assumptions of a case, its power and the sizes needed."""
    alpha = config.alpha / (config.comparisons or comparisons)
    row = {"name": name, **asdict(case), "effective_prompts": round(case.effective_prompts)}
    if case.reference is None:
        return row | plan(case, config.power, config.alpha)
    return row | {"disagreement": case.square} | plan(case, config.power, alpha)


def plan_cases(config: Config) -> list[dict[str, Any]]:
    """Return a row for every combination of swept values of every case."""
    return [
        plan_row(name, build(Case, values, f"cases: {name}"), config, 1)
        for name, values in swept(config.cases)
    ]


def swept(cases: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the values of every combination of swept values."""
    for name, keys in cases.items():
        values = [value if isinstance(value, list) else [value] for value in keys.values()]
        for combination in itertools.product(*values):
            yield name, dict(zip(keys, combination, strict=True))


def plan_grades(config: Config) -> list[dict[str, Any]]:
    """Return a row for every combination of swept values of the writers' grades."""
    alpha = config.alpha / (config.comparisons or 1)
    rows = []
    for name, values in swept(config.grades):
        case = build(GradeCase, values, f"grades: {name}")
        rows.append({"name": name, **asdict(case), **grade_plan(case, config.power, alpha)})
    return rows


def grades_text(rows: Sequence[Mapping[str, Any]], wanted: float) -> str:
    """Format the rows of the writers' grades for a terminal."""
    heading = ["writers", "difference", "deviation", "prompts", "power", "detectable", "needs"]
    lines = [
        [
            clean_name(row["name"]),
            f"{row['difference']:g}",
            f"{row['deviation']:.3f}",
            f"{row['prompts']:,}",
            f"{row['power']:.3f}",
            f"{row['detectable']:.2f}",
            "-" if row["prompts_needed"] is None else f"{row['prompts_needed']:,}",
        ]
        for row in rows
    ]
    return aligned([heading, *lines]) + (
        f"\nAt a power of {wanted:g}. Deviation: of the difference on one prompt, over prompts. "
        "Needs: prompts.\n"
    )


def plan_measured(config: Config, judged: EvaluationFolder) -> list[dict[str, Any]]:
    """Return a row for every comparison of an evaluation."""
    pairs = judged.read_pairs().headline
    credits = {score.rater: score.credit for score in pair_scores(judged.read_verdicts(), pairs)}
    reference = config.reference or judged.reference
    if reference not in credits:
        raise ConfigError(f"reference '{reference}' has no verdicts: {nearest(reference, credits)}")
    cases = measure(credits, reference, connected_prompts(pairs))
    return [plan_row(name, case, config, max(1, len(credits) - 1)) for name, case in cases.items()]


def plans_text(rows: Sequence[Mapping[str, Any]], wanted: float) -> str:
    """Format the rows for a terminal."""
    names = {
        "name": "case",
        "agreement": "agreement",
        "reference": "against",
        "disagreement": "disagree",
        "intra_prompt": "within",
        "pairs": "pairs",
        "prompts": "prompts",
        "effective_prompts": "effective",
        "power": "power",
        "half_width": "half width",
        "detectable": "detectable",
        "prompts_needed": "needs prompts",
        "pairs_needed": "or pairs",
        "annotators_needed": "or annotators",
    }

    def cell(value: Any) -> str:
        if value is None:
            return "-"
        form = ".3f" if isinstance(value, float) else ","
        return clean_name(value) if isinstance(value, str) else format(value, form)

    lines = [[cell(row[key]) for key in names] for row in rows]
    return aligned([list(names.values()), *lines]) + (
        f"\nAt a power of {wanted:g}. Detectable: the difference of two raters at the same "
        "disagreement, or the agreement\nof one rater. Needs: prompts with as many pairs each, "
        "pairs of the same prompts, or annotators per pair.\n"
    )


def main(config: Config) -> None:
    """Compute power for the cases and the evaluation, and write the table."""
    if not config.cases and not config.grades and config.evaluation is None:
        raise ConfigError("cases, grades and evaluation are empty: give one of them")
    judged = None if config.evaluation is None else EvaluationFolder.find(config.evaluation)
    inputs = {} if judged is None else judged.inputs()
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    if artifact.is_current():
        print((config.out / "power.txt").read_text(encoding="utf-8"), end="")
        return
    rows = plan_cases(config) + ([] if judged is None else plan_measured(config, judged))
    graded = plan_grades(config)
    text = "\n".join(
        [plans_text(rows, config.power)] * bool(rows)
        + [grades_text(graded, config.power)] * bool(graded)
    )
    table = pa.concat_tables(
        [pa.Table.from_pylist(found) for found in (rows, graded) if found],
        promote_options="default",
    )
    artifact.write("power.csv", lambda path: pa_csv.write_csv(table, path))
    artifact.write("power.txt", lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = {"plans": len(rows) + len(graded)}
    artifact.finish()
    print(text, end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
