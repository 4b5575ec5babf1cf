"""How many pairs, prompts or annotators it takes to tell raters apart, planned or from verdicts.

    python eval/power.py --config configs/eval/paper_power.yaml
    python eval/power.py --evaluation runs/quickstart/evaluation --out runs/quickstart/power

`cases` are assumed numbers, see litbench.metrics.power.Case: two raters and how often they
disagree, or one rater against chance, and the pairs and prompts of an evaluation. A list of values
is swept. `evaluation` is a folder of eval/benchmark.py or eval/crossvalidate.py in which these
numbers are measured for every rater against the reference.

Writes `power.txt`, `power.csv` and `manifest.json` into `out`. Formulas: docs/power.md.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.csv as pa_csv
from pydantic import Field

from litbench.artifact import Artifact
from litbench.config import build, nearest, run_program
from litbench.errors import ConfigError
from litbench.evaluation_pairs import Judged
from litbench.metrics.agreement import PairFacts, pair_scores
from litbench.metrics.power import Case, measure, plan
from litbench.text import aligned, clean_name


@dataclass
class Config:
    """What to compute.

    Attributes:
        out: folder to write.
        cases: name -> keys of litbench.metrics.power.Case; a list for a key is swept.
        evaluation: folder of an evaluation.
        reference: the rater that the others are compared with; the evaluation's own when null.
        power: share of experiments in which the effect is to be found.
        alpha: two-sided level of all comparisons together.
        comparisons: made together, for Holm's worst case, alpha / comparisons; null for as many as
            the evaluation has, and one in a case. One rater against chance is not corrected.
    """

    out: Path
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    evaluation: Path | None = None
    reference: str | None = None
    power: float = 0.8
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    comparisons: Annotated[int, Field(ge=1)] | None = None


def plan_row(name: str, case: Case, config: Config, comparisons: int) -> dict[str, Any]:
    """What is assumed of a case, and what it can tell."""
    alpha = config.alpha / (config.comparisons or comparisons)
    row = {"name": name, **asdict(case), "effective_prompts": round(case.effective_prompts)}
    if case.reference is None:
        return row | plan(case, config.power, config.alpha)
    return row | {"disagreement": case.square} | plan(case, config.power, alpha)


def plan_cases(config: Config) -> list[dict[str, Any]]:
    """A row for every combination of the values of every case."""
    rows = []
    for name, keys in config.cases.items():
        values = [value if isinstance(value, list) else [value] for value in keys.values()]
        for combination in itertools.product(*values):
            case = build(Case, dict(zip(keys, combination, strict=True)), f"cases: {name}")
            rows.append(plan_row(name, case, config, 1))
    return rows


def plan_measured(config: Config, judged: Judged) -> list[dict[str, Any]]:
    """A row for every comparison of an evaluation."""
    pairs = judged.read_pairs().headline
    credits = {score.rater: score.credit for score in pair_scores(judged.read_verdicts(), pairs)}
    reference = config.reference or judged.reference
    if reference not in credits:
        raise ConfigError(f"reference '{reference}' has no verdicts: {nearest(reference, credits)}")
    cases = measure(credits, reference, PairFacts.of(pairs).clusters)
    return [plan_row(name, case, config, max(1, len(credits) - 1)) for name, case in cases.items()]


def plans_text(rows: Sequence[Mapping[str, Any]], wanted: float) -> str:
    """The plans for a terminal."""
    names = {
        "name": "case", "agreement": "agreement", "reference": "against",
        "disagreement": "disagree", "intra_prompt": "within", "pairs": "pairs",
        "prompts": "prompts", "effective_prompts": "effective", "power": "power",
        "half_width": "half width", "detectable": "detectable",
        "prompts_needed": "needs prompts", "pairs_needed": "or pairs",
        "annotators_needed": "or annotators",
    }  # fmt: skip

    def cell(value: Any) -> str:
        if value is None:
            return "-"
        form = ".3f" if isinstance(value, float) else ","
        return clean_name(value) if isinstance(value, str) else format(value, form)

    lines = [[cell(row[key]) for key in names] for row in rows]
    return aligned([list(names.values()), *lines]) + (
        f"\nDetectable and needed: with a power of {wanted:g}. Detectable: a difference of two "
        "raters that disagree as often,\nor an agreement of one. Needs: prompts with as many pairs "
        "each, pairs of these prompts, or annotators per pair.\n"
    )


def main(config: Config) -> None:
    """Compute, print, write."""
    if not config.cases and config.evaluation is None:
        raise ConfigError("cases and evaluation are empty: give one of them")
    judged = None if config.evaluation is None else Judged.find(config.evaluation)
    inputs = {} if judged is None else judged.inputs()
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    if artifact.is_current():
        print((config.out / "power.txt").read_text(encoding="utf-8"), end="")
        return
    rows = plan_cases(config) + ([] if judged is None else plan_measured(config, judged))
    text = plans_text(rows, config.power)
    table = pa.Table.from_pylist(rows)
    artifact.write("power.csv", lambda path: pa_csv.write_csv(table, path))
    artifact.write("power.txt", lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = {"plans": len(rows)}
    artifact.finish()
    print(text, end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
