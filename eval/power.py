"""How many pairs, prompts or annotators it takes to tell raters apart, planned or from verdicts.

    python eval/power.py --config configs/eval/paper_power.yaml
    python eval/power.py --evaluation runs/quickstart/evaluation --out runs/quickstart/power

`cases` are assumed numbers, see litbench.metrics.power.Case: two raters and how often they
disagree, or one rater against chance, and the pairs and prompts of an evaluation. A list of values
is swept. `evaluation` is a folder of eval/benchmark.py or eval/crossvalidate.py in which these
numbers are measured: the smallest difference that its pairs could show, and how many pairs it would
take if the difference that was found were the true one.

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
from litbench.evaluation import Judged
from litbench.metrics.agreement import PairFacts, pair_scores
from litbench.metrics.power import Case, Measured, Plan, corrected_alpha, measure, plan
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
            alpha = corrected_alpha(config.alpha, together)
            plans.append(plan(name, case, config.power, alpha))
    return plans


def plan_measured(config: Config, judged: Judged) -> tuple[list[Measured], list[Plan]]:
    """What was found in an evaluation, and a plan for each rater that one can be made for."""
    pairs = judged.read_pairs().headline
    credits = {score.rater: score.credit for score in pair_scores(judged.read_verdicts(), pairs)}
    reference = config.reference or judged.reference
    if reference not in credits:
        raise ConfigError(f"reference '{reference}' has no verdicts: {nearest(reference, credits)}")
    found = measure(credits, reference, PairFacts.of(pairs).clusters)
    together = config.comparisons or max(1, len(credits) - 1)
    plans = []
    for one in found:
        if one.case is not None:
            alpha = corrected_alpha(config.alpha, 1 if one.case.reference is None else together)
            plans.append(plan(one.name, one.case, config.power, alpha))
    return found, plans


def cell(value: float | None, form: str = ".3f") -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None or math.isnan(value) else format(value, form)


def plans_text(plans: Sequence[Plan], found: Sequence[Measured], wanted: float) -> str:
    """The plans for a terminal.

    The power for an effect that was found is left out: it is another way to write the p value
    (Hoenig and Heisey, 2001, The Abuse of Power).
    """
    rows = [[
        "case", "agreement", "against", "disagree", "within", "pairs", "prompts", "effective",
        "found" if found else "power", "half width", "detectable", "needs prompts", "or pairs",
        "or annotators",
    ]]  # fmt: skip
    seen = {one.name: one.found for one in found}
    for one in plans:
        case = one.case
        against, disagreement = case.against, case.disagreement
        if case.reference is not None:
            against, disagreement = case.reference, case.square
        rows.append([
            clean_name(one.name), cell(case.agreement), cell(against), cell(disagreement),
            cell(case.intra_prompt), f"{case.pairs:,}", f"{case.prompts:,}",
            f"{case.effective_prompts:,.0f}", str(seen.get(one.name, cell(one.power))),
            cell(one.half_width), cell(one.detectable), cell(one.prompts_needed, ","),
            cell(one.pairs_needed, ","), cell(one.annotators_needed, ","),
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
    judged = None if config.evaluation is None else Judged.find(config.evaluation)
    inputs = {} if judged is None else judged.inputs()
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    if artifact.is_current():
        print((config.out / "power.txt").read_text(encoding="utf-8"), end="")
        return
    plans, texts = plan_cases(config), []
    if plans:
        texts.append(plans_text(plans, [], config.power))
    if judged is not None:
        found, further = plan_measured(config, judged)
        texts.append(plans_text(further, found, config.power))
        plans += further
    text = "\n".join(texts)
    rows = [asdict(one) for one in plans]
    table = pa.Table.from_pylist([{"name": row["name"], **row.pop("case"), **row} for row in rows])
    artifact.write("power.csv", lambda path: pa_csv.write_csv(table, path))
    artifact.write("power.txt", lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = {"plans": len(plans)}
    artifact.finish()
    print(text, end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
