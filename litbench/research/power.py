"""Power of evaluations and of comparisons of writers, assumed or measured.

The formulas are in `litbench.metrics.power`; docs/power.md explains them.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from pydantic import Field

from litbench.data.records import GRADES, RATINGS, connected_prompts
from litbench.data.tables import read_table
from litbench.evaluation.report.document import Table, publish, show_results
from litbench.evaluation.results import Evaluation
from litbench.metrics.agreement import pair_scores
from litbench.metrics.intervals import clustered_mean
from litbench.metrics.power import Case, measure, needed_signal, plan, t_power
from litbench.research.ablation import is_ablation, read_headline
from litbench.runs.config import build, nearest
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact


@dataclass
class PowerConfig:
    """Compute power, and the pairs or prompts needed to distinguish raters or writers.

        litbench power --config configs/eval/power.yaml
        litbench power --evaluation runs/quickstart/evaluation --out runs/quickstart/power

    `cases` give assumed numbers, see litbench.metrics.power.Case: the agreement of two raters and
    how often they disagree, or one rater against chance, and the numbers of pairs and prompts. A
    list of values is swept. `grades` give writers whose grades are compared on the same prompts,
    see litbench.research.power.GradeCase, if need be with the spread of the ratings in `people`.
    `evaluation` is an output folder of eval/benchmark.py, eval/crossvalidate.py or
    eval/ablation.py; the numbers are then measured for every rater, or variant of an ablation,
    against the reference.

    Writes `power.txt`, `power.csv` and `manifest.json` into `out`. Formulas: docs/power.md.

    Attributes:
        out: output folder.
        cases: name -> keys of litbench.metrics.power.Case; a list of values is swept.
        grades: name -> keys of `GradeCase`; a list of values is swept.
        people: ratings by people, a folder of data_prep/import_ratings.py (with `writer`) or of
            `litbench study export`; `grades` without a deviation use those of each criterion.
        evaluation: folder of an evaluation, or of an ablation, whose variants are compared as on
            its page.
        reference: the rater or variant that the others are compared with; null for the reference
            of the evaluation.
        power: target power, the probability of detecting the effect.
        alpha: two-sided family-wise significance level.
        comparisons: number of comparisons, for Holm's worst case, alpha / comparisons; null for the
            number in the evaluation, and for 1 in `cases`. A rater against chance is not corrected.
    """

    out: Path
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    grades: dict[str, dict[str, Any]] = field(default_factory=dict)
    people: Path | None = None
    evaluation: Path | None = None
    reference: str | None = None
    power: float = 0.8
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    comparisons: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True, kw_only=True)
class GradeCase:
    """Two writers whose grades are compared on the same prompts, or two variants of an ablation.

    Attributes:
        difference: difference of their grades, or agreements.
        prompts: number of prompts; of an ablation, the effective number.
        deviation: standard deviation over prompts of the difference on one prompt.
        raters: people who rate each text; `deviation` is then `Spread.deviation`.
        sessions: whether each of them rates a session of their own instead.
    """

    difference: Annotated[float, Field(gt=0)]
    prompts: Annotated[float, Field(ge=2)]
    deviation: Annotated[float | None, Field(gt=0)] = None
    raters: Annotated[int | None, Field(ge=1)] = None
    sessions: bool = False


@dataclass(frozen=True)
class Spread:
    """Standard deviations of people's ratings.

    Attributes:
        text: of a text around what its writer and its prompt have on average.
        rater: between people, of all ratings of a prompt.
        noise: of a person's rating of one text around these.
    """

    text: float
    rater: float
    noise: float

    def deviation(self, raters: int, *, sessions: bool) -> float:
        """Standard deviation of the difference of two writers' mean ratings on one prompt.

        The same people rate both texts, so what is common to all ratings of a person cancels; of
        sessions each has a person of its own.
        """
        personal = self.noise**2 + (self.rater**2 if sessions else 0.0)
        return math.sqrt(2 * (self.text**2 + personal / raters))


def spread_of(grades: Sequence[Mapping[str, Any]]) -> Spread:
    """The spread of people's grades of one criterion, by the method of moments.

    Within each prompt the people who rated all of its texts give a two-way table without
    repetition, whose mean squares have the variances of noise and of raters in them; that of texts
    is the rest of the texts' means without effects of writer and prompt, less their noise.

    Args:
        grades: rows of GRADES.

    Raises:
        DataError: no two people rated the same two texts of a prompt, or there are too few texts.
    """
    from sklearn.preprocessing import OneHotEncoder  # noqa: PLC0415

    by_prompt: dict[str, dict[str, dict[tuple[str, int], float]]] = defaultdict(dict)
    for row in grades:
        rated = by_prompt[row["prompt_id"]].setdefault(row["rater"], {})
        rated[row["writer"], row["sample"]] = row["grade"]
    squares, freedom, of_raters, cells = 0.0, 0, [], []
    for prompt, by_rater in by_prompt.items():
        texts = sorted(set().union(*by_rater.values()))
        complete = [rated for rated in by_rater.values() if len(rated) == len(texts)]
        table = np.array([[rated[text] for text in texts] for rated in complete])
        if min(table.shape) < 2 or table.ndim < 2:
            continue
        raters, number = table.shape
        means = table.mean(0)
        rest = table - means - table.mean(1, keepdims=True) + table.mean()
        squares, freedom = squares + float((rest**2).sum()), freedom + (raters - 1) * (number - 1)
        of_raters.append((table.mean(1).var(ddof=1), number))
        cells += [(text[0], prompt, mean, raters) for text, mean in zip(texts, means, strict=True)]
    writers, prompts = ({cell[at] for cell in cells} for at in (0, 1))
    left = len(cells) - len(writers) - len(prompts) + 1
    if not freedom or left < 1:
        raise DataError(
            "people: too few texts that the same people rated: give ratings of several writers' "
            "texts for the same prompts by the same people"
        )
    noise = squares / freedom
    rater = float(np.mean([variance - noise / number for variance, number in of_raters]))
    design = OneHotEncoder(sparse_output=False).fit_transform([cell[:2] for cell in cells])
    means = np.array([cell[2] for cell in cells])
    rest = means - design @ np.linalg.lstsq(design, means, rcond=None)[0]
    text = float((rest**2).sum()) / left - noise * float(np.mean([1 / cell[3] for cell in cells]))
    if max(text, noise) <= 0:
        raise DataError("people: all texts of a prompt have equal ratings: give other ratings")
    return Spread(*(math.sqrt(max(variance, 0.0)) for variance in (text, rater, noise)))


def _spreads(folder: Path) -> dict[str, Spread]:
    """By criterion, the spread of the people's ratings in a folder."""
    ratings = read_table(folder / "ratings.parquet", RATINGS).to_pylist()
    people = {row["rater"] for row in ratings if row["rater_kind"] == "person"}
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in read_table(folder / "grades.parquet", GRADES).to_pylist():
        if row["rater"] in people and row["grade"] is not None:
            rows[row["quantity"]].append(row)
    return {quantity: spread_of(grades) for quantity, grades in rows.items()}


def _grade_cases(
    config: PowerConfig, spreads: Mapping[str, Spread]
) -> Iterator[tuple[str, GradeCase]]:
    """The cases of grades; those with raters for every criterion of `people`."""
    for name, keys in _swept(config.grades):
        case = build(GradeCase, keys, f"grades: {name}")
        if (case.deviation is None) != (case.raters is not None and bool(spreads)):
            raise ConfigError(f"grades: {name}: give deviation, or raters and the folder people")
        if case.raters is None:
            yield name, case
            continue
        for criterion, spread in spreads.items():
            deviation = spread.deviation(case.raters, sessions=case.sessions)
            yield f"{name}: {criterion}", replace(case, deviation=deviation)


def grade_plan(case: GradeCase, wanted: float = 0.8, alpha: float = 0.05) -> dict[str, Any]:
    """The power of the paired t test over prompts, and what it would need.

    Returns:
        `power`; `detectable`, the difference with the wanted power; `prompts_needed`.
    """
    from scipy import optimize  # noqa: PLC0415

    deviation = case.deviation
    assert deviation is not None

    def power(prompts: float) -> float:
        signal = case.difference / deviation * math.sqrt(prompts)
        return t_power(signal, prompts - 1, alpha)

    most = 4.0
    while power(most) < wanted:
        most *= 2
    enough = 2.0
    if power(enough) < wanted:
        enough = optimize.brentq(lambda prompts: power(prompts) - wanted, enough, most)
    signal = needed_signal(wanted, case.prompts - 1, alpha)
    return {
        "power": power(case.prompts),
        "detectable": signal * deviation / math.sqrt(case.prompts),
        "prompts_needed": math.ceil(enough - 1e-7),
    }


def _swept(cases: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the values of every combination of swept values."""
    for name, keys in cases.items():
        values = [value if isinstance(value, list) else [value] for value in keys.values()]
        for combination in itertools.product(*values):
            yield name, dict(zip(keys, combination, strict=True))


def _measured(config: PowerConfig, judged: Evaluation) -> tuple[dict[str, Case], int]:
    """The comparisons of an evaluation, and how many raters it compares with the reference."""
    pairs = judged.pairs.headline
    scores = pair_scores(judged.verdicts, pairs)
    credits = {score.rater: score.credit for score in scores}
    trainings = {score.rater: score.training for score in scores}
    reference = config.reference or judged.reference
    if reference not in credits:
        raise ConfigError(
            f"reference '{reference}' has no verdicts: {nearest(reference, list(credits))}"
        )
    prompts = connected_prompts(pairs)
    return measure(credits, reference, prompts, trainings), len(credits) - 1


def _ablation_rows(config: PowerConfig, folder: Path) -> list[dict[str, Any]]:
    """The comparisons of a finished ablation, each as a paired t test over its prompts."""
    credits, reference, clusters = read_headline(folder)
    reference = config.reference or reference
    if reference not in credits:
        raise ConfigError(
            f"reference '{reference}' is not compared: {nearest(reference, list(credits))}"
        )
    alpha = config.alpha / (config.comparisons or max(len(credits) - 1, 1))
    rows = []
    for name in credits:
        estimate = clustered_mean(credits[name] - credits[reference], clusters)
        # NaN with a single prompt; 0 for the reference, or without any difference.
        if estimate.error > 0 and estimate.mean:
            prompts = estimate.effective_clusters
            deviation = estimate.error * math.sqrt(prompts)
            case = GradeCase(difference=abs(estimate.mean), prompts=prompts, deviation=deviation)
            row = {"name": f"{name} - {reference}", **asdict(case)}
            del row["raters"], row["sessions"]
            rows.append(row | grade_plan(case, config.power, alpha))
    if not rows:
        raise DataError(f"{folder}: no rater differs from {reference}, or there is one prompt only")
    return rows


def _rows(
    config: PowerConfig, cases: Sequence[tuple[str, Case]], comparisons: int
) -> list[dict[str, Any]]:
    """The assumptions of each case, its power and the sizes needed."""
    rows = []
    for name, case in cases:
        is_single = case.reference is None
        alpha = config.alpha / (1 if is_single else config.comparisons or comparisons)
        row = {"name": name, **asdict(case), "disagreement": None if is_single else case.square}
        rows.append(row | plan(case, config.power, alpha))
    return rows


_HEADINGS = {
    "name": "case",
    "agreement": "agreement",
    "reference": "against",
    "disagreement": "disagree",
    "intra_prompt": "within",
    "pairs": "pairs",
    "difference": "difference",
    "deviation": "deviation",
    "prompts": "prompts",
    "raters": "raters",
    "power": "power",
    "half_width": "half width",
    "detectable": "detectable",
    "prompts_needed": "needs prompts",
    "pairs_needed": "or pairs",
}


# The note below a table of cases or of grades, by a column that only it has.
_NOTES = {
    "pairs": "Prompts: effective number. Detectable: the difference of two raters at the same\n"
    "disagreement, or the agreement of one rater. Needs: effective prompts with as many pairs each,"
    " or pairs\nof the same prompts.",
    "deviation": "Prompts: effective number. Deviation: of the difference on one prompt, over "
    "prompts. Detectable: the smallest difference.",
}


def _text(rows: Sequence[Mapping[str, Any]], power: float) -> str:
    """The rows as a table for a terminal, with the columns that they have."""
    keys = [key for key in _HEADINGS if key in rows[0]]
    # Effective numbers are fractions: round them.
    cells = [[round(row[k]) if k in ("pairs", "prompts") else row[k] for k in keys] for row in rows]
    table = Table([_HEADINGS[key] for key in keys], cells).as_text()
    note = next(text for name, text in _NOTES.items() if name in rows[0])
    return f"{table}\n\nAt a power of {power:g}. {note}\n"


def run_power(config: PowerConfig) -> None:
    """Compute the power of the cases and of the evaluation, and write the tables."""
    if not (config.cases or config.grades or config.evaluation):
        raise ConfigError("cases, grades and evaluation are empty: give one of them")
    ablation, judged = None, None
    inputs: dict[str, Path | None] = {"people": config.people}
    if config.evaluation is not None and is_ablation(config.evaluation):
        ablation = config.evaluation
        files = ("manifest.json", "verdicts.parquet", "test_pairs.parquet")
        inputs |= {name: ablation / name for name in files}
    elif config.evaluation is not None:
        judged = Evaluation.find(config.evaluation)
        inputs |= judged.inputs()
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    if artifact.is_current():
        show_results(config.out, "power")
        return
    cases = [(name, build(Case, keys, f"cases: {name}")) for name, keys in _swept(config.cases)]
    rows = _rows(config, cases, 1)
    if judged is not None:
        measured, others = _measured(config, judged)
        rows += _rows(config, list(measured.items()), max(1, others))
    alpha = config.alpha / (config.comparisons or 1)
    graded = [] if ablation is None else _ablation_rows(config, ablation)
    spreads = {} if config.people is None else _spreads(config.people)
    for name, grades in _grade_cases(config, spreads):
        graded.append({"name": name, **asdict(grades), **grade_plan(grades, config.power, alpha)})
    parts = [part for part in (rows, graded) if part]
    text = "\n".join(_text(part, config.power) for part in parts)
    table = pa.concat_tables(map(pa.Table.from_pylist, parts), promote_options="permissive")
    artifact.write("power.csv", lambda path: pa_csv.write_csv(table, path))
    artifact.counts = {"plans": table.num_rows}
    publish(artifact, "power", text)
