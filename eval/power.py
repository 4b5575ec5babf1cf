"""How many pairs, prompts or annotators it takes to tell raters apart, planned or from verdicts.

    python eval/power.py --config configs/eval/paper_power.yaml
    python eval/power.py --evaluation runs/quickstart/evaluation --out runs/quickstart/power

`cases` are assumed numbers, see litbench.metrics.power.Case: two raters and how often they
disagree, or one rater against chance, and the pairs and prompts of an evaluation. A list of values
is swept. `evaluation` is a folder of eval/benchmark.py or eval/crossvalidate.py in which these
numbers are measured for every rater against the reference: the smallest difference that its pairs
could show, and how many pairs it would take if the difference that was found were the true one.
(The power for a difference that was found only says its p value in another way.)

Writes `power.txt`, `power.csv` and `manifest.json` into `out`. Formulas: docs/power.md.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from litbench.artifact import Artifact
from litbench.config import build, nearest, run_program
from litbench.errors import ConfigError
from litbench.evaluation_pairs import Judged
from litbench.metrics.agreement import PairFacts, pair_scores
from litbench.metrics.power import Case, Plan, measure, plan
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
    alpha: float = 0.05
    comparisons: int | None = None


def plan_cases(config: Config) -> list[Plan]:
    """A plan for every combination of the values of every case."""
    plans = []
    for name, keys in config.cases.items():
        values = [value if isinstance(value, list) else [value] for value in keys.values()]
        for combination in itertools.product(*values):
            case = build(Case, dict(zip(keys, combination, strict=True)), f"cases: {name}")
            together = 1 if case.reference is None else config.comparisons or 1
            plans.append(plan(name, case, config.power, config.alpha / together))
    return plans


def plan_measured(config: Config, judged: Judged) -> list[Plan]:
    """A plan for every comparison of an evaluation."""
    pairs = judged.read_pairs().headline
    credits = {score.rater: score.credit for score in pair_scores(judged.read_verdicts(), pairs)}
    reference = config.reference or judged.reference
    if reference not in credits:
        raise ConfigError(f"reference '{reference}' has no verdicts: {nearest(reference, credits)}")
    alpha = config.alpha / (config.comparisons or max(1, len(credits) - 1))
    cases = measure(credits, reference, PairFacts.of(pairs).clusters)
    return [plan(name, case, config.power, alpha) for name, case in cases.items()]


def cell(value: float | None, form: str = ".3f") -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None or math.isnan(value) else format(value, form)


def plans_text(plans: Sequence[Plan], wanted: float) -> str:
    """The plans for a terminal."""
    rows = [[
        "case", "agreement", "against", "disagree", "within", "pairs", "prompts", "effective",
        "power", "half width", "detectable", "needs prompts", "or pairs", "or annotators",
    ]]  # fmt: skip
    for one in plans:
        case = one.case
        against, disagreement = case.against, case.disagreement
        if case.reference is not None:
            against, disagreement = case.reference, case.square
        rows.append([
            clean_name(one.name), cell(case.agreement), cell(against), cell(disagreement),
            cell(case.intra_prompt), f"{case.pairs:,}", f"{case.prompts:,}",
            f"{case.effective_prompts:,.0f}", cell(one.power), cell(one.half_width),
            cell(one.detectable), cell(one.prompts_needed, ","), cell(one.pairs_needed, ","),
            cell(one.annotators_needed, ","),
        ])  # fmt: skip
    return aligned(rows) + (
        f"\nDetectable and needed: with a power of {wanted:g}. Detectable: a difference of two "
        "raters that disagree as often,\nor an agreement of one. Needs: prompts with as many pairs "
        "each, pairs of these prompts, or annotators per pair.\n"
    )


def main(config: Config) -> None:
    """Compute, print, write."""
    if not config.cases and config.evaluation is None:
        raise ConfigError("cases and evaluation are empty: give one of them")
    if not 0 < config.alpha < 1 or (config.comparisons or 1) < 1:
        raise ConfigError(
            f"alpha is {config.alpha} and comparisons {config.comparisons}: give a share and a "
            "number from 1"
        )
    judged = None if config.evaluation is None else Judged.find(config.evaluation)
    inputs = {} if judged is None else judged.inputs()
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    if artifact.is_current():
        print((config.out / "power.txt").read_text(encoding="utf-8"), end="")
        return
    plans = plan_cases(config) + ([] if judged is None else plan_measured(config, judged))
    text = plans_text(plans, config.power)
    rows = [asdict(one) for one in plans]
    table = pa.Table.from_pylist([{"name": row["name"], **row.pop("case"), **row} for row in rows])
    artifact.write("power.csv", lambda path: pa_csv.write_csv(table, path))
    artifact.write("power.txt", lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = {"plans": len(plans)}
    artifact.finish()
    print(text, end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
