"""What explanations say, and whether verdicts with it agree with the labels more often.

The unit is a verdict: a pair in one order, with an explanation and a judgement; right counts 1, a
tie 1/2. For every rater and every feature of the text (`litbench.metrics.explanation_text`) there
is the rate of the feature, the agreement with it and without it, and the difference (paper, 5.2,
A.6 and Figure 8).

A difference is no effect: nobody assigned the features, and a judge may speak of the plot where the
plots differ and the choice is easy.
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
from litbench.records import prompt_keys
from litbench.text import aligned, count_words

# Gain in correctness with talk of plot, over all judges of the paper (section 5.2). The paper
# gives no interval, and does not say whether it is relative or in points; drawn as points.
PUBLISHED_PLOT_GAIN = 0.148

ALL = "all raters"
# A feature is compared where so many verdicts have it and so many do not.
_LEAST = 5
_CREDIT = {"chosen": 1.0, "rejected": 0.0, "tie": 0.5}


@dataclass(frozen=True)
class Explanations:
    """Verdicts with an explanation, one row each.

    Attributes:
        rows: `rater`, `pair_id`, `order`, `outcome` and `explanation` of each.
        raters: name of the rater; shape (n,).
        clusters: `prompt_key` of the prompt; shape (n,).
        credit: agreement with the label, 0, 1/2 or 1; shape (n,).
        present: which features it has; bool, shape (n, features), by FEATURES.
        not_judged: per rater, verdicts that are no judgement.
        unexplained: per rater, judgements without an explanation.
    """

    rows: list[dict[str, Any]]
    raters: np.ndarray
    clusters: np.ndarray
    credit: np.ndarray
    present: np.ndarray
    not_judged: Counter[str]
    unexplained: Counter[str]


def read_explanations(sources: Iterable[tuple[pa.Table, pa.Table]]) -> Explanations:
    """Take the explanations out of verdicts and look for all features in them.

    Args:
        sources: verdicts by the schema VERDICTS, and the pairs they are about by the schema PAIRS;
            verdicts on other pairs are left out. Raters of one name are one rater.
    """
    rows: list[dict[str, Any]] = []
    clusters: list[str] = []
    not_judged: Counter[str] = Counter()
    unexplained: Counter[str] = Counter()
    for verdicts, pairs in sources:
        cluster_of = dict(zip(pairs["pair_id"].to_pylist(), prompt_keys(pairs), strict=True))
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
            "no judgement on these pairs has an explanation: judge with a template whose answers "
            "explain"
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
    that a rater that is better than the others and has the feature more often makes no difference
    by that. The standard error is the delete-one-prompt jackknife (CV3) of all of it. Degrees of
    freedom go by the effective number of prompts of the rarer side.

    Where all verdicts of a side are right, or all wrong, their variance is taken from the side's
    prompts with one right and one wrong added (Agresti and Caffo, 2000); docs/statistics.md has
    the coverage with it and without it.

    Args:
        credit: 0 to 1 per verdict; shape (n,).
        present: whether it has the feature; shape (n,).
        strata: what verdicts are compared within, such as their rater; shape (n,).
        clusters: prompt of each verdict; shape (n,).

    Returns:
        The difference; NaN where no stratum has both kinds of verdicts, and an error of NaN where
        that happens once one prompt is left out.
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
    # Prompts outside all strata that vary change nothing and are not counted.
    without = difference(*(sums[:, None] - counts))
    variance = (count - 1) / count * float(np.sum((without - mean) ** 2))
    for size, right in zip(sizes, sums[2:], strict=True):
        if float(right[varied].sum() / size.sum()) in (0.0, 1.0):
            worth = effective_clusters(size) + 2
            variance += 1 / worth * (1 - 1 / worth) / worth
    # What rounding leaves of a variance of zero.
    error = 0.0 if variance <= 1e-24 else math.sqrt(variance)
    return ClusteredMean(mean, error, n, count, effective)


@dataclass(frozen=True)
class FeatureDifference:
    """A feature in the explanations of a rater, or of all.

    Attributes:
        of: name of the rater, or `ALL`.
        feature: its name.
        group: subject or manner.
        rate: share of the verdicts that have the feature.
        agreement_present: agreement of verdicts with it.
        agreement_absent: agreement of verdicts without it.
        difference: the first minus the second, within raters; None where the feature is present or
            absent in fewer than 5 verdicts, or on one prompt alone, or always or never per rater.
        p_holm: after Holm's correction for all features, of all raters or over all raters.
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
    """A rater's explanations as a whole; `words` is the mean length of an explanation."""

    rater: str
    agreement: Interval
    words: float
    not_judged: int
    unexplained: int


@dataclass(frozen=True)
class ExplanationStudy:
    """Raters in the order of the verdicts, and every feature over all raters and for each."""

    raters: list[RaterFacts]
    overall: list[FeatureDifference]
    by_rater: dict[str, list[FeatureDifference]]


def _differences(of: str, found: Explanations, rows: np.ndarray) -> list[FeatureDifference]:
    """All features; `p_holm` is the p value as it is."""
    credit, clusters, raters = found.credit[rows], found.clusters[rows], found.raters[rows]
    differences = []
    for (name, words), present in zip(FEATURES.items(), found.present[rows].T, strict=True):
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


def explanation_study(found: Explanations) -> ExplanationStudy:
    """Compute the rate of every feature and the difference in agreement that goes with it."""
    # Numbers are sorted and compared many times faster than names.
    codes = [np.unique(of, return_inverse=True)[1] for of in (found.raters, found.clusters)]
    coded = replace(found, raters=codes[0], clusters=codes[1])
    texts = pa.array([row["explanation"] for row in found.rows], pa.large_string())
    n_words = count_words(texts).to_numpy(zero_copy_only=False)
    raters, separate = [], []
    for name in dict.fromkeys(found.raters.tolist()):
        own = np.flatnonzero(found.raters == name)
        agreement = jackknife_interval(found.credit[own], found.clusters[own])
        left_out = found.not_judged[name], found.unexplained[name]
        raters.append(RaterFacts(name, agreement, float(np.mean(n_words[own])), *left_out))
        separate += _differences(name, coded, own)
    by_rater: dict[str, list[FeatureDifference]] = {}
    for one in _corrected(separate):
        by_rater.setdefault(one.of, []).append(one)
    every = _differences(ALL, coded, np.arange(len(found.rows)))
    return ExplanationStudy(raters, _corrected(every), by_rater)


def explanation_rows(study: ExplanationStudy) -> list[dict[str, Any]]:
    """The differences as rows of a table; None where one cannot be told."""
    return [
        {**vars(one), "verdicts": one.rate.n, "prompts": one.rate.clusters}
        for differences in (study.overall, *study.by_rater.values())
        for one in differences
    ]


def explanations_text(study: ExplanationStudy) -> str:
    """The differences over all raters for a terminal, the largest first."""
    rows = [["feature", "rate", "agreement with", "without", "difference", "p (Holm)"]]
    for one in sorted(
        study.overall, key=lambda one: -abs(one.difference.mean) if one.difference else 1.0
    ):
        told = ["cannot be told", ""]
        if one.difference is not None:
            d = one.difference
            told = [f"{d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}]", f"{one.p_holm:.3f}"]
        shares = (one.agreement_present, one.agreement_absent)
        agreements = ["-" if value is None else f"{value.mean:.3f}" for value in shares]
        rows.append([one.feature, f"{one.rate.mean:.3f}", *agreements, *told])
    first = study.overall[0].rate
    return (
        f"{first.n:,} verdicts with an explanation on {first.clusters:,} prompts, of "
        f"{len(study.raters)} raters; differences are within raters, 95 % intervals by prompt\n"
        f"{aligned(rows)}"
    )
