"""Features of explanations, and whether verdicts with a feature agree with the labels more often.

The unit is a verdict: a judgement of a pair in one order, with an explanation. A correct verdict
counts 1, a tie 1/2. For every rater and every feature of the text
(`litbench.metrics.explanation_text`), the study gives the rate of the feature, the agreement of
verdicts with and without it, and the difference (paper, 5.2, A.6 and Figure 8).

The differences are not causal effects: the features were not assigned, and a judge may talk about
the plot where the plots differ and the choice is easy.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.errors import DataError
from litbench.metrics.comparisons import difference_interval, holm
from litbench.metrics.explanation_text import FEATURES, features_of
from litbench.metrics.intervals import (
    ClusteredMean,
    Interval,
    effective_clusters,
    jackknife_interval,
)
from litbench.records import connected_prompts
from litbench.text import aligned, count_words

# Gain in correctness of explanations that talk about the plot, over all judges of the paper
# (section 5.2). The paper gives no interval and does not say whether the gain is relative or
# absolute; the figure shows it as absolute.
PUBLISHED_PLOT_GAIN = 0.148

ALL = "all raters"
# Minimum number of verdicts with a feature, and without it, for a comparison.
_LEAST = 5
_CREDIT = {"chosen": 1.0, "rejected": 0.0, "tie": 0.5}


@dataclass(frozen=True)
class Explanations:
    """Verdicts with an explanation, one row each.

    Attributes:
        rows: `rater`, `pair_id`, `order`, `outcome` and `explanation` of each verdict.
        raters: name of the rater; shape (n,).
        clusters: `prompt_key` of the prompt; shape (n,).
        credit: agreement with the label, 0, 1/2 or 1; shape (n,).
        present: which features the explanation has; bool, shape (n, features), by FEATURES.
        not_judged: by rater, the number of verdicts that are not judgements.
        unexplained: by rater, the number of judgements without an explanation.
    """

    rows: list[dict[str, Any]]
    raters: np.ndarray
    clusters: np.ndarray
    credit: np.ndarray
    present: np.ndarray
    not_judged: Counter[str]
    unexplained: Counter[str]


def read_explanations(sources: Iterable[tuple[pa.Table, pa.Table]]) -> Explanations:
    """Collect the explanations of verdicts and find their features.

    Args:
        sources: tables of verdicts (schema VERDICTS), each with the pairs that were judged (schema
            PAIRS). Verdicts on other pairs are ignored. Raters with the same name count as one.
    """
    rows: list[dict[str, Any]] = []
    clusters: list[str] = []
    not_judged: Counter[str] = Counter()
    unexplained: Counter[str] = Counter()
    for verdicts, pairs in sources:
        cluster_of = dict(zip(pairs["pair_id"].to_pylist(), connected_prompts(pairs), strict=True))
        wanted = ["pair_id", "rater", "order", "outcome", "explanation"]
        for row in verdicts.select(wanted).to_pylist():
            if row["pair_id"] not in cluster_of:
                continue
            if row["outcome"] not in _CREDIT:
                not_judged[row["rater"]] += 1
            elif not (row["explanation"] or "").strip():
                unexplained[row["rater"]] += 1
            else:
                rows.append(row)
                clusters.append(cluster_of[row["pair_id"]])
    if not rows:
        raise DataError(
            "no judgement on these pairs has an explanation: judge with a template that asks for "
            "explanations"
        )
    return Explanations(
        rows,
        np.array([row["rater"] for row in rows], dtype=object),
        np.array(clusters, dtype=object),
        np.array([_CREDIT[row["outcome"]] for row in rows]),
        np.array([features_of(row["explanation"]) for row in rows]),
        not_judged,
        unexplained,
    )


def stratified_difference(
    credit: np.ndarray, present: np.ndarray, strata: np.ndarray, clusters: np.ndarray
) -> ClusteredMean:
    """Agreement with a feature minus agreement without it, within strata.

    The differences of the strata are averaged with weights n1 n0 / (n1 + n0) (Cochran, 1954), so
    that a better rater which uses the feature more often does not confound the difference. The
    standard error is the delete-one-prompt jackknife (CV3) of this average. The degrees of freedom
    follow from the effective number of prompts of the rarer side.

    If all verdicts of a side are correct, or all wrong, the variance of that side is computed from
    its effective number of prompts plus one correct and one wrong prompt (Agresti and Caffo, 2000);
    docs/statistics.md has the coverage with and without this.

    Args:
        credit: agreement of each verdict, 0 to 1; shape (n,).
        present: whether the verdict has the feature; shape (n,).
        strata: group of each verdict, such as its rater; shape (n,).
        clusters: prompt of each verdict; shape (n,).

    Returns:
        The difference. It is NaN if no stratum has verdicts with and without the feature; its error
        is NaN if no stratum has both after leaving out some prompt.
    """
    _, stratum = np.unique(strata, return_inverse=True)
    _, cluster = np.unique(clusters, return_inverse=True)
    shape = (int(cluster.max()) + 1, int(stratum.max()) + 1)
    has = np.asarray(present, dtype=float)
    # Per prompt and stratum: verdicts with the feature and without it, and their credit.
    counts = np.zeros((4, *shape))
    for total, weights in zip(
        counts, (has, 1 - has, has * credit, (1 - has) * credit), strict=True
    ):
        np.add.at(total, (cluster, stratum), weights)

    def difference(n1: np.ndarray, n0: np.ndarray, s1: np.ndarray, s0: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            within = np.where((n1 > 0) & (n0 > 0), s1 / n1 - s0 / n0, 0.0)
            weight = np.nan_to_num(n1 * n0 / (n1 + n0))
            mean: np.ndarray = (weight * within).sum(axis=-1) / weight.sum(axis=-1)
        return mean

    sums = counts.sum(axis=1)
    mean = float(difference(*sums))
    varied = (sums[0] > 0) & (sums[1] > 0)
    sizes = counts[:2, :, varied].sum(axis=2)
    effective = min(effective_clusters(size) for size in sizes)
    n, count = int(sizes.sum()), int(np.count_nonzero(sizes.sum(axis=0)))
    if math.isnan(mean) or count < 2:
        return ClusteredMean(mean, math.nan, n, count, effective)
    # Prompts that occur only in strata without variation do not matter and are not counted.
    without = difference(*(sums[:, None] - counts))
    variance = (count - 1) / count * float(np.sum((without - mean) ** 2))
    for size, right in zip(sizes, sums[2:], strict=True):
        if float(right[varied].sum() / size.sum()) in (0.0, 1.0):
            worth = effective_clusters(size) + 2
            variance += 1 / worth * (1 - 1 / worth) / worth
    # A variance of zero is not exactly zero after rounding.
    error = 0.0 if variance <= 1e-24 else math.sqrt(variance)
    return ClusteredMean(mean, error, n, count, effective)


@dataclass(frozen=True)
class FeatureDifference:
    """A feature in the explanations of a rater, or of all raters.

    Attributes:
        of: name of the rater, or `ALL`.
        feature: name of the feature.
        group: subject or manner.
        rate: share of verdicts with the feature.
        agreement_present: agreement of verdicts with the feature.
        agreement_absent: agreement of verdicts without the feature.
        difference: `agreement_present` minus `agreement_absent`, within raters. None if fewer than
            5 verdicts have the feature or lack it, if either side has only one prompt, or if each
            rater has the feature always or never.
        p_holm: p value after Holm's correction, for all features of `ALL`, or for all features of
            all single raters.
    """

    of: str
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
class RaterFacts:
    """Facts of all explanations of a rater; `words` is the mean length of an explanation."""

    rater: str
    agreement: Interval
    words: float
    not_judged: int
    unexplained: int


@dataclass(frozen=True)
class ExplanationStudy:
    """Facts of each rater, and the differences of all features, over all raters and by rater."""

    raters: list[RaterFacts]
    overall: list[FeatureDifference]
    by_rater: dict[str, list[FeatureDifference]]


def _differences(of: str, data: Explanations, rows: np.ndarray) -> list[FeatureDifference]:
    """The differences of all features; `p_holm` is still the uncorrected p value."""
    credit, clusters, raters = data.credit[rows], data.clusters[rows], data.raters[rows]
    differences = []
    for (name, words), present in zip(FEATURES.items(), data.present[rows].T, strict=True):
        difference, p_value = None, math.nan
        if _LEAST <= present.sum() <= len(present) - _LEAST:
            estimate = stratified_difference(credit, present, raters, clusters)
            if math.isfinite(estimate.error):
                difference, p_value = difference_interval(estimate)
        rate = jackknife_interval(present.astype(float), clusters)
        having, lacking = (
            jackknife_interval(credit[some], clusters[some]) if some.any() else None
            for some in (present, ~present)
        )
        differences.append(
            FeatureDifference(of, name, words.group, rate, having, lacking, difference, p_value)
        )
    return differences


def _corrected(differences: Sequence[FeatureDifference]) -> list[FeatureDifference]:
    adjusted = holm([one.p_holm for one in differences])
    return [replace(one, p_holm=p) for one, p in zip(differences, adjusted, strict=True)]


def explanation_study(data: Explanations) -> ExplanationStudy:
    """Compute the rate of every feature, and the difference in agreement with and without it."""
    # Sorting and comparing integer codes is much faster than names.
    codes = [np.unique(of, return_inverse=True)[1] for of in (data.raters, data.clusters)]
    coded = replace(data, raters=codes[0], clusters=codes[1])
    texts = pa.array([row["explanation"] for row in data.rows], pa.large_string())
    n_words = count_words(texts).to_numpy(zero_copy_only=False)
    raters, separate = [], []
    for name in dict.fromkeys(data.raters.tolist()):
        own = np.flatnonzero(data.raters == name)
        agreement = jackknife_interval(data.credit[own], data.clusters[own])
        left_out = data.not_judged[name], data.unexplained[name]
        raters.append(RaterFacts(name, agreement, float(np.mean(n_words[own])), *left_out))
        separate += _differences(name, coded, own)
    by_rater: dict[str, list[FeatureDifference]] = {}
    for one in _corrected(separate):
        by_rater.setdefault(one.of, []).append(one)
    overall = _differences(ALL, coded, np.arange(len(data.rows)))
    return ExplanationStudy(raters, _corrected(overall), by_rater)


def explanation_rows(study: ExplanationStudy) -> list[dict[str, Any]]:
    """The differences as rows of a table; None where a difference cannot be estimated."""
    return [
        {**vars(one), "verdicts": one.rate.n, "prompts": one.rate.clusters}
        for differences in (study.overall, *study.by_rater.values())
        for one in differences
    ]


def explanations_text(study: ExplanationStudy) -> str:
    """The differences over all raters as text for a terminal, largest first."""
    rows = [["feature", "rate", "agreement with", "without", "difference", "p (Holm)"]]
    for one in sorted(
        study.overall, key=lambda one: -abs(one.difference.mean) if one.difference else 1.0
    ):
        difference = ["not estimated", ""]
        if one.difference is not None:
            d = one.difference
            difference = [f"{d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}]", f"{one.p_holm:.3f}"]
        shares = (one.agreement_present, one.agreement_absent)
        agreements = ["-" if value is None else f"{value.mean:.3f}" for value in shares]
        rows.append([one.feature, f"{one.rate.mean:.3f}", *agreements, *difference])
    first = study.overall[0].rate
    return (
        f"{first.n:,} verdicts with an explanation on {first.clusters:,} prompts, of "
        f"{len(study.raters)} raters; differences are within raters, 95 % intervals by prompt\n"
        f"{aligned(rows)}"
    )
