"""Features of explanations, and whether verdicts with a feature agree with the labels more often.

The unit is a verdict: a judgement of a pair in one order, with an explanation. A correct verdict
counts 1, a tie 1/2. For every rater and every feature of the text (see
litbench.research.explanation_words), the results give the rate of the feature, the agreement of
verdicts with and without it, and the difference (paper, 5.2, A.6 and Figure 8).

The differences are not causal effects: the features were not assigned, and a judge may talk about
the plot where the plots differ and the choice is easy.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.data.records import connected_prompts, label_text
from litbench.evaluation.report import figures
from litbench.evaluation.report.document import (
    Cell,
    Figure,
    Page,
    Section,
    Table,
    as_cell,
    few_prompts,
    p_value,
    percent,
    publish,
    short_name,
    show_results,
    signed,
    table_of,
    written_now,
)
from litbench.evaluation.results import Evaluation
from litbench.metrics.agreement import OUTCOME_CREDITS
from litbench.metrics.comparisons import difference_interval, holm, stratified_difference
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.research.explanation_words import FEATURES, features_of
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact

# Gain in correctness of explanations that talk about the plot, over all judges of the paper
# (section 5.2). The paper gives no interval and does not say whether the gain is relative or
# absolute; the figure shows it as absolute.
PUBLISHED_PLOT_GAIN = 0.148

_ALL = "all raters"
# Minimum number of verdicts with a feature, and without it, for a comparison.
_LEAST = 5


@dataclass
class ExplanationsConfig:
    """Find features of judges' explanations, and compare agreement with and without each feature.

        litbench explanations --config configs/paper/litbench_figure8.yaml --preset ttcw

    Reads folders of evaluations (eval/benchmark.py, or any program whose manifest names the pairs)
    whose verdicts have explanations. Finds features of each explanation (talk about plot,
    character, style, ...; litbench/research/explanation_words.yaml) and compares the agreement of
    verdicts with and without the feature. Writes `explanations.csv`, `.txt` and `.html`,
    `manifest.json` and, if there is a difference to plot, the paper's Figure 8 as `figure8.svg` and
    `.png` into `out`.

    Attributes:
        out: folder to write.
        evaluations: name -> folder of an evaluation.
        title: heading of the page.
    """

    out: Path
    evaluations: dict[str, Path]
    title: str = "What explanations say"


@dataclass(frozen=True)
class Explanations:
    """Verdicts with an explanation, one row each.

    Attributes:
        rows: `rater`, `pair_id`, `order`, `outcome` and `explanation` of each verdict, and
            `prompts`, the key of its connected prompts.
        credit: agreement with the label, 0, 1/2 or 1; shape (n,).
        present: which features the explanation has; bool, shape (n, features), by FEATURES.
        not_judged: by rater, the number of verdicts that are not judgements.
        unexplained: by rater, the number of judgements without an explanation.
    """

    rows: list[dict[str, Any]]
    credit: np.ndarray
    present: np.ndarray
    not_judged: Counter[str]
    unexplained: Counter[str]


def read_explanations(evaluations: Mapping[str, tuple[pa.Table, pa.Table]]) -> Explanations:
    """Collect the explanations of verdicts and find their features.

    Args:
        evaluations: by name, a table of verdicts (schema VERDICTS) and the pairs that were judged
            (schema PAIRS). Verdicts on other pairs are ignored. The evaluation's name is appended
            to raters that occur in several.
    """
    times = Counter(
        rater
        for verdicts, _ in evaluations.values()
        for rater in set(verdicts["rater"].to_pylist())
    )
    rows: list[dict[str, Any]] = []
    not_judged: Counter[str] = Counter()
    unexplained: Counter[str] = Counter()
    for name, (verdicts, pairs) in evaluations.items():
        prompts_of = dict(zip(pairs["pair_id"].to_pylist(), connected_prompts(pairs), strict=True))
        wanted = ["pair_id", "rater", "order", "outcome", "explanation"]
        for row in verdicts.select(wanted).to_pylist():
            if row["pair_id"] not in prompts_of:
                continue
            if times[row["rater"]] > 1:
                row["rater"] += f" ({name})"
            if row["outcome"] not in OUTCOME_CREDITS:
                not_judged[row["rater"]] += 1
            elif not (row["explanation"] or "").strip():
                unexplained[row["rater"]] += 1
            else:
                rows.append(row | {"prompts": prompts_of[row["pair_id"]]})
    if not rows:
        raise DataError(
            "no judgement on these pairs has an explanation: judge with a template that asks for "
            "explanations"
        )
    credit = np.array([OUTCOME_CREDITS[row["outcome"]] for row in rows])
    present = np.array([features_of(row["explanation"]) for row in rows])
    return Explanations(rows, credit, present, not_judged, unexplained)


@dataclass(frozen=True)
class FeatureDifference:
    """A feature in the explanations of a rater, or of all raters.

    Attributes:
        rater: its name, or "all raters".
        feature: name of the feature.
        group: subject or manner.
        rate: share of verdicts with the feature.
        agreement_present: agreement of verdicts with the feature.
        agreement_absent: agreement of verdicts without the feature.
        difference: `agreement_present` minus `agreement_absent`, within raters. None if fewer than
            5 verdicts have the feature or lack it, if either side has only one prompt, or if each
            rater has the feature always or never.
        p_holm: p value after Holm's correction, for all features of all raters together, or for all
            features of all single raters.
    """

    rater: str
    feature: str
    group: str
    rate: Interval
    agreement_present: Interval | None
    agreement_absent: Interval | None
    difference: Interval | None
    p_holm: float

    @property
    def is_clear(self) -> bool:
        """Whether the difference is significant at the 5 % level after Holm's correction."""
        return self.p_holm < 0.05


@dataclass(frozen=True)
class ExplanationResults:
    """The differences of all features, over all raters and by rater."""

    overall: list[FeatureDifference]
    by_rater: dict[str, list[FeatureDifference]]


def _differences(
    rater: str, credit: np.ndarray, every: np.ndarray, raters: np.ndarray, clusters: np.ndarray
) -> list[FeatureDifference]:
    """The differences of all features; `p_holm` is still the uncorrected p value."""
    differences = []
    for (name, words), present in zip(FEATURES.items(), every.T, strict=True):
        difference, p = None, math.nan
        if _LEAST <= present.sum() <= len(present) - _LEAST:
            estimate = stratified_difference(credit, present, raters, clusters)
            if math.isfinite(estimate.error):
                difference, p = difference_interval(estimate)
        rate = jackknife_interval(present.astype(float), clusters)
        having, lacking = (
            jackknife_interval(credit[some], clusters[some]) if some.any() else None
            for some in (present, ~present)
        )
        differences.append(
            FeatureDifference(rater, name, words.group, rate, having, lacking, difference, p)
        )
    return differences


def _corrected(differences: Sequence[FeatureDifference]) -> list[FeatureDifference]:
    adjusted = holm([row.p_holm for row in differences])
    return [replace(row, p_holm=p) for row, p in zip(differences, adjusted, strict=True)]


def explanation_results(data: Explanations) -> ExplanationResults:
    """Compute the rate of every feature, and the difference in agreement with and without it."""
    # Sorting and comparing integer codes is much faster than names.
    columns = (np.array([row[key] for row in data.rows], object) for key in ("rater", "prompts"))
    (names, of_rater), (_, clusters) = (
        np.unique(column, return_inverse=True) for column in columns
    )
    arrays = (data.credit, data.present, of_rater, clusters)
    separate = []
    for name in dict.fromkeys(row["rater"] for row in data.rows):
        is_rater = names[of_rater] == name
        separate += _differences(name, *(array[is_rater] for array in arrays))
    by_rater: dict[str, list[FeatureDifference]] = {}
    for row in _corrected(separate):
        by_rater.setdefault(row.rater, []).append(row)
    return ExplanationResults(_corrected(_differences(_ALL, *arrays)), by_rater)


# The program ----------------------------------------------------------------------------------


def run_explanations(config: ExplanationsConfig) -> None:
    """Find the features, compare verdicts, and write the results."""
    if not config.evaluations:
        raise ConfigError("evaluations is empty: give at least one, such as 'sample: FOLDER'")
    sources = {name: Evaluation.find(folder) for name, folder in config.evaluations.items()}
    inputs = {
        key: path for name, source in sources.items() for key, path in source.inputs(name).items()
    }
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    if artifact.is_current():
        show_results(config.out, "explanations")
        return
    data = read_explanations(
        {name: (source.verdicts, source.pairs.headline) for name, source in sources.items()}
    )
    results = explanation_results(data)
    rows = [
        {**vars(row), "verdicts": row.rate.n, "prompts": row.rate.clusters}
        for differences in (results.overall, *results.by_rater.values())
        for row in differences
    ]
    artifact.counts = {
        "explanations": len(data.rows),
        "not_judged": dict(data.not_judged),
        "without_explanation": dict(data.unexplained),
    }
    labels = [source.pairs.headline["label_source"].to_pylist() for source in sources.values()]
    labelled_by = sorted(set().union(*labels))
    page = explanations_page(results, config.title, labelled_by)
    publish(artifact, "explanations", _text(results), page, {"explanations": rows})


def _text(results: ExplanationResults) -> str:
    """The differences over all raters as text for a terminal, largest first."""
    first = results.overall[0].rate
    rows = sorted(
        results.overall, key=lambda row: -abs(row.difference.mean) if row.difference else 1
    )
    return (
        f"{first.n:,} verdicts with an explanation on {first.clusters:,} prompts, of "
        f"{len(results.by_rater)} raters; differences are within raters, 95 % intervals by prompt\n"
        f"{_features_table(rows).as_text()}\n"
    )


# The page -------------------------------------------------------------------------------------


def draw_effects(results: ExplanationResults) -> Figure | None:
    """Plot the differences over all raters, largest first (paper, Figure 8); None without any."""
    by_name = results.by_rater if len(results.by_rater) > 1 else {}
    rows = []
    for index, row in enumerate(results.overall):
        if row.difference is not None:
            each = [
                row.difference,
                *(rows_of_rater[index].difference for rows_of_rater in by_name.values()),
            ]
            rows.append((_words(row.feature), [[d] if d else [] for d in each]))
    if not rows:
        return None
    rows.sort(key=lambda row: -row[1][0][0].mean)
    intervals = [interval for _, cells in rows for cell in cells for interval in cell]
    # Wide intervals of rare features may exceed the plot, so that the others stay readable.
    ends = max(abs(bound) for interval in intervals for bound in (interval.low, interval.high))
    widest = 1.08 * max(0.16, *(abs(interval.mean) for interval in intervals), min(0.4, ends))
    drawn = figures.dots(
        rows,
        ["all raters", *map(short_name, by_name)],
        "agreement with it minus agreement without it",
        levels=[0],
        limits=(-widest, widest),
        hollow={"plot": PUBLISHED_PLOT_GAIN},
        mark="published for other judges",
    )
    caption = (
        "Agreement of verdicts whose explanation has the feature minus that of the others, with "
        "95 % intervals clustered by prompt. The difference over all raters is within raters. The "
        f"hollow marker is the +{PUBLISHED_PLOT_GAIN:.1%} that the LitBench paper reports for "
        "explanations about the plot (section 5.2), for other judges and pairs, without interval."
    )
    return Figure("Features of explanations and agreement", caption, drawn)


def explanations_page(
    results: ExplanationResults, title: str, label_sources: Sequence[str]
) -> Page:
    """The page, with Figure 8; `label_sources` says who labelled the pairs."""
    panel, overall = draw_effects(results), results.overall
    rate = overall[0].rate
    warning = (
        "These are associations, not causal effects. The features were not assigned: a judge may "
        "talk about the plot where the plots differ and the choice is easy. A difference shows "
        "which explanations come with better verdicts, not that asking for them improves verdicts."
    )
    missing = "No plot: no feature is present in five verdicts and absent in five."
    about_features = (
        "Differences are computed within each rater and averaged, so that a better rater which "
        "uses the feature more often does not confound them. Intervals are 95 %, by leaving out "
        "one prompt at a time; p values have Holm's correction for all features with an estimate, "
        "which requires five verdicts with the feature and five without. Features are lists of "
        "English words, so they miss explanations that use other words."
    )
    groups = {"What explanations talk about": "subject", "How they talk": "manner"}
    sections = [
        Section(
            "Features and agreement",
            "" if panel else missing,
            name="plot",
            figures=[panel] if panel else [],
            warnings=[*few_prompts(rate), warning],
        ),
        Section(
            "Features, over all raters",
            about_features,
            parts=[
                Section(name, table=_features_table([row for row in overall if row.group == group]))
                for name, group in groups.items()
            ],
            name="features",
        ),
        *([_by_rater_section(results)] if len(results.by_rater) > 1 else []),
    ]
    shown = [row for row in overall if row.difference is not None]
    clear = [(row.feature, row.difference.mean) for row in shown if row.is_clear and row.difference]
    clear.sort(key=lambda pair: -abs(pair[1]))
    lead = f"None of the {len(shown)} features with an estimate is significant."
    if clear:
        named = (f"{_words(name)} ({100 * mean:+.1f} points)" for name, mean in clear[:4])
        lead = (
            f"{len(clear)} of {len(shown)} features are significantly associated with agreement, "
            f"above all {', '.join(named)}."
        )
    facts = (
        f"{rate.n:,} verdicts with an explanation on {rate.clusters:,} prompts, of "
        f"{len(results.by_rater)} raters; {label_text(label_sources)}. Other verdicts are left "
        f"out. {written_now()}"
    )
    return Page(title, lead, facts, sections, label_sources, files={"figure8": panel})


def _words(feature: str) -> str:
    return feature.replace("_", " ")


def _features_table(rows: Sequence[FeatureDifference]) -> Table:
    def both(row: FeatureDifference) -> str:
        sides = (row.agreement_present, row.agreement_absent)
        return " / ".join("–" if mean is None else as_cell(mean.mean).text for mean in sides)

    return table_of(
        rows,
        {
            "feature": lambda row: Cell(
                _words(row.feature), [FEATURES[row.feature].about], is_text=True
            ),
            "rate [95 %]": lambda row: row.rate,
            "agreement\nwith it / without": both,
            "difference [95 %]": lambda row: signed(row.difference),
            "p (Holm)": lambda row: p_value(row.p_holm) if row.difference else "",
        },
    )


def _by_rater_section(results: ExplanationResults) -> Section:
    def cell(row: FeatureDifference) -> Cell:
        small = [f"in {percent(row.rate.mean)}"]
        return Cell(signed(row.difference), small, is_bold=row.is_clear)

    of_feature = zip(FEATURES, *results.by_rater.values(), strict=True)
    rows = [[_words(name), *map(cell, each)] for name, *each in of_feature]
    note = (
        "Rate of the feature, and the difference in agreement with and without it. Bold: "
        "significant after Holm's correction for all features of all raters. No difference is "
        "shown if fewer than five verdicts of the rater have the feature, or fewer than five lack "
        "it."
    )
    return Section("By rater", note, Table(["feature", *results.by_rater], rows))
