"""What explanations say, and whether verdicts with it agree with the labels more often.

The unit is a verdict: a pair in one order, with an explanation and a judgement; right counts 1, a
tie 1/2. For every rater and every feature of the text (`litbench.metrics.explanation_text`) there
is the rate of the feature, the agreement with it and without it, and the difference (paper, 5.2,
A.6 and Figure 8).

A difference is no effect. Nobody assigned the features: a judge speaks of the plot where there is
a plot to speak of, and pairs whose plots differ may be the easy ones. What it tells is which
explanations to trust more, not what to ask a judge to write about.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from litbench.errors import DataError
from litbench.metrics.comparisons import difference_interval, holm
from litbench.metrics.explanation_text import (
    FEATURE_NAMES,
    FEATURES,
    LONGEST,
    SHORTEST,
    Explained,
    Side,
    bare,
)
from litbench.metrics.intervals import (
    ClusteredMean,
    Interval,
    effective_clusters,
    jackknife_interval,
)
from litbench.metrics.leaderboard import plain
from litbench.records import prompt_keys
from litbench.text import count_words

# Gain in correctness with talk of plot, over all judges of the paper (section 5.2). The paper
# gives no interval, and does not say whether it is relative or in points; drawn as points.
PUBLISHED_PLOT_GAIN = 0.148

ALL = "all raters"
_LEAST = 5
_CREDIT = {"chosen": 1.0, "rejected": 0.0, "tie": 0.5}
Level = Literal["rater", "family", "all"]


@dataclass(frozen=True)
class Explanations:
    """Verdicts with an explanation, one row each.

    Attributes:
        raters: name of the rater; shape (n,).
        pair_ids: shape (n,).
        outcomes: chosen, rejected or tie; shape (n,).
        orders: which story stood first; None without order; shape (n,).
        texts: the explanations; length n.
        clusters: `prompt_key` of the prompt; shape (n,).
        credit: agreement with the label, 0, 1/2 or 1; shape (n,).
        n_words: length of the explanation in words; shape (n,).
        present: which features it has; bool, shape (n, features), by FEATURE_NAMES.
        not_judged: per rater, verdicts that are no judgement.
        unexplained: per rater, judgements without an explanation.
    """

    raters: np.ndarray
    pair_ids: np.ndarray
    outcomes: np.ndarray
    orders: np.ndarray
    texts: list[str]
    clusters: np.ndarray
    credit: np.ndarray
    n_words: np.ndarray
    present: np.ndarray
    not_judged: Counter[str]
    unexplained: Counter[str]

    @property
    def names(self) -> list[str]:
        """The raters, in the order in which they first appear."""
        return list(dict.fromkeys(self.raters.tolist()))


def read_explanations(sources: Iterable[tuple[pa.Table, pa.Table]]) -> Explanations:
    """Take the explanations out of verdicts and look for all features in them.

    Args:
        sources: verdicts by the schema VERDICTS, and the pairs they are about by the schema PAIRS;
            verdicts on other pairs are left out. Raters of one name are one rater.

    Raises:
        DataError: no verdict on these pairs has an explanation.
    """
    rows: list[dict[str, Any]] = []
    present: list[list[bool]] = []
    not_judged: Counter[str] = Counter()
    unexplained: Counter[str] = Counter()
    for verdicts, pairs in sources:
        columns = (pairs[name].to_pylist() for name in ("prompt", "chosen", "rejected"))
        pair_ids = pairs["pair_id"].to_pylist()
        texts_of = dict(zip(pair_ids, zip(*columns, strict=True), strict=True))
        cluster_of = dict(zip(pair_ids, prompt_keys(pairs), strict=True))
        # Explanations of one pair mostly follow each other.
        bare_texts = cache(lambda pair_id, texts_of=texts_of: tuple(map(bare, texts_of[pair_id])))
        wanted = ["pair_id", "rater", "order", "outcome", "explanation"]
        for row in verdicts.select(wanted).to_pylist():
            if row["pair_id"] not in texts_of:
                continue
            if row["outcome"] not in _CREDIT:
                not_judged[row["rater"]] += 1
            elif not (row["explanation"] or "").strip():
                unexplained[row["rater"]] += 1
            else:
                about = Explained(
                    row["explanation"], _winner(row), partial(bare_texts, row["pair_id"])
                )
                present.append([f.holds is not None and f.holds(about) for f in FEATURES])
                rows.append({**row, "cluster": cluster_of[row["pair_id"]]})
    if not rows:
        raise DataError(
            "no verdict with an explanation is a judgement on these pairs: give verdicts of raters "
            "that explain, and the pairs that they judged"
        )

    def column(name: str) -> np.ndarray:
        return np.array([row[name] for row in rows], dtype=object)

    texts = [row["explanation"] for row in rows]
    found = Explanations(
        raters=column("rater"),
        pair_ids=column("pair_id"),
        outcomes=column("outcome"),
        orders=column("order"),
        texts=texts,
        clusters=column("cluster"),
        credit=np.array([_CREDIT[row["outcome"]] for row in rows]),
        n_words=count_words(pa.array(texts, pa.large_string())).to_numpy(zero_copy_only=False),
        present=np.array(present),
        not_judged=not_judged,
        unexplained=unexplained,
    )
    for rater in found.names:
        of = found.raters == rater
        low, high = np.quantile(found.n_words[of], [0.25, 0.75])
        found.present[of, FEATURE_NAMES.index(SHORTEST)] = found.n_words[of] < low
        found.present[of, FEATURE_NAMES.index(LONGEST)] = found.n_words[of] > high
    return found


def _winner(row: Mapping[str, Any]) -> Side | None:
    if row["order"] is None or row["outcome"] == "tie":
        return None
    return "first" if row["order"] == row["outcome"] else "second"


# Differences ---------------------------------------------------------------------------------


def stratified_difference(
    credit: np.ndarray,
    present: np.ndarray,
    strata: Sequence[Any] | np.ndarray,
    clusters: Sequence[Any] | np.ndarray,
) -> ClusteredMean:
    """Agreement with a feature minus agreement without it, within strata.

    The differences of the strata are averaged with weights n1 n0 / (n1 + n0) (Cochran, 1954; the
    weights of Mantel and Haenszel for a difference of shares), so that a stratum in which the
    feature is always or never there has no say, and a rater that is better than the others and
    has the feature more often makes no difference by that. The standard error is the
    delete-one-prompt jackknife (CV3, see `litbench.metrics.intervals.clustered_mean`): everything,
    weights included, is computed anew without each prompt in turn.

    Degrees of freedom go by the effective number of prompts of the rarer side, since a mean over
    five verdicts is as uncertain as their five prompts allow, whatever stands on the other side.

    Where all verdicts of a side are right, or all wrong, their variance of zero says nothing. In
    its place stands that of the side's prompts with one right and one wrong added (Agresti and
    Caffo, 2000); without it, 95 % intervals of a feature in 3 % of the verdicts of a rater that is
    then right nine times in ten covered 74 %.

    Args:
        credit: 0 to 1 per verdict; shape (n,).
        present: whether it has the feature; shape (n,).
        strata: what verdicts are compared within, such as their rater; shape (n,).
        clusters: prompt of each verdict; shape (n,).

    Returns:
        The difference; NaN where no stratum has both kinds of verdicts, and an error of NaN where
        that happens once one prompt is left out.
    """
    _, stratum = np.unique(np.asarray(strata), return_inverse=True)
    _, cluster = np.unique(np.asarray(clusters), return_inverse=True)
    shape = (int(cluster.max()) + 1, int(stratum.max()) + 1)
    cell = cluster * shape[1] + stratum

    def total(weights: np.ndarray) -> np.ndarray:
        sums: np.ndarray = np.bincount(cell, weights=weights, minlength=shape[0] * shape[1])
        return sums.reshape(shape)

    has = np.asarray(present, dtype=float)
    counts = (total(has), total(1 - has), total(has * credit), total((1 - has) * credit))

    def difference(n1: np.ndarray, n0: np.ndarray, s1: np.ndarray, s0: np.ndarray) -> np.ndarray:
        both = (n1 > 0) & (n0 > 0)
        one, none = np.where(both, n1, 1.0), np.where(both, n0, 1.0)
        weight = np.where(both, one * none / (one + none), 0.0)
        within = np.where(both, s1 / one - s0 / none, 0.0)
        known = weight.sum(axis=-1)
        mean: np.ndarray = np.divide(
            (weight * within).sum(axis=-1), known, out=np.full_like(known, np.nan), where=known > 0
        )
        return mean

    sums = [part.sum(axis=0) for part in counts]
    mean = float(difference(*(part[None] for part in sums))[0])
    varied = (sums[0] > 0) & (sums[1] > 0)
    sizes = [part[:, varied].sum(axis=1) for part in counts[:2]]
    effective = min(effective_clusters(size) for size in sizes)
    n = int(sum(size.sum() for size in sizes))
    count = int(np.count_nonzero(sizes[0] + sizes[1]))
    if math.isnan(mean) or count < 2:
        return ClusteredMean(mean, math.nan, n, count, effective)
    without = difference(*(whole - part for whole, part in zip(sums, counts, strict=True)))
    # Prompts outside all strata that vary change nothing and are not counted.
    variance = (count - 1) / count * float(np.sum((without - mean) ** 2))
    for size, right in zip(sizes, sums[2:], strict=True):
        share = float(right[varied].sum() / size.sum())
        if share in (0.0, 1.0):
            worth = effective_clusters(size)
            share = 1 / (worth + 2)
            variance += share * (1 - share) / (worth + 2)
    # What rounding leaves of a variance of zero.
    error = 0.0 if variance <= 1e-24 else math.sqrt(variance)
    return ClusteredMean(mean, error, n, count, effective)


@dataclass(frozen=True)
class FeatureDifference:
    """A feature in the explanations of a rater, of a family of raters, or of all.

    Attributes:
        level: whose explanations.
        of: name of the rater or family.
        feature: name.
        group: subject, manner or form.
        present: verdicts with the feature.
        rate: their share, with its interval.
        agreement_present: agreement of verdicts with it; None where there are none.
        agreement_absent: agreement of verdicts without it; None where there are none.
        difference: the first minus the second, within raters; None where it cannot be told.
        p_value: two-sided, of no difference; NaN without one.
        p_holm: after Holm's correction for all features and all raters of the level; the one
            that decides `is_clear`.
        same_length: the difference among explanations of like length: within raters and thirds
            of their lengths; None where it cannot be told, and for features that are a length.
        reason: why there is no difference.
    """

    level: Level
    of: str
    feature: str
    group: str
    present: int
    rate: Interval
    agreement_present: Interval | None
    agreement_absent: Interval | None
    difference: Interval | None
    p_value: float
    p_holm: float
    same_length: Interval | None
    reason: str | None

    @property
    def is_clear(self) -> bool:
        """Whether the difference is significant at the 5 % level after Holm's correction."""
        return self.p_holm < 0.05


@dataclass(frozen=True)
class RaterFacts:
    """A rater's explanations as a whole.

    Attributes:
        rater: name.
        family: name of its family; the rater's own without one.
        agreement: agreement of the verdicts with an explanation.
        words: mean length of an explanation, in words.
        not_judged: verdicts that are no judgement, left out.
        unexplained: judgements without an explanation, left out.
    """

    rater: str
    family: str
    agreement: Interval
    words: float
    not_judged: int
    unexplained: int


@dataclass(frozen=True)
class ExplanationStudy:
    """The figures.

    Attributes:
        raters: in the order of the verdicts.
        differences: all features for each rater, each family of several raters, and all raters.
    """

    raters: list[RaterFacts]
    differences: list[FeatureDifference]

    def at(self, level: Level) -> dict[str, list[FeatureDifference]]:
        """The differences of a level, by rater or family, each in the order of FEATURES."""
        found: dict[str, list[FeatureDifference]] = {}
        for one in self.differences:
            if one.level == level:
                found.setdefault(one.of, []).append(one)
        return found


def _why_not(present: int, absent: int, estimate: ClusteredMean | None) -> str | None:
    for count, name in ((present, "present"), (absent, "absent")):
        if count < _LEAST:
            return f"{name} in {count} of {present + absent} verdicts, fewer than {_LEAST}"
    assert estimate is not None
    if math.isnan(estimate.mean):
        return "each rater has it always or never"
    if math.isnan(estimate.error):
        return "present or absent in the verdicts on one prompt alone"
    return None


def _where_any(values: np.ndarray, clusters: np.ndarray) -> Interval | None:
    return jackknife_interval(values, clusters) if len(values) else None


def _difference(
    level: Level, of: str, place: int, found: Explanations, rows: np.ndarray, thirds: np.ndarray
) -> FeatureDifference:
    feature = FEATURES[place]
    present, credit = found.present[rows, place], found.credit[rows]
    clusters, raters = found.clusters[rows], found.raters[rows]
    n = int(present.sum())
    estimate = None
    if _LEAST <= n <= len(rows) - _LEAST:
        estimate = stratified_difference(credit, present, raters, clusters)
    reason = _why_not(n, len(rows) - n, estimate)
    difference, p_value, same_length = None, math.nan, None
    if estimate is not None and reason is None:
        difference, p_value = difference_interval(estimate)
        if feature.name not in (SHORTEST, LONGEST):
            alike = stratified_difference(credit, present, thirds[rows], clusters)
            if math.isfinite(alike.error):
                same_length, _ = difference_interval(alike)
    return FeatureDifference(
        level=level,
        of=of,
        feature=feature.name,
        group=feature.group,
        present=n,
        rate=jackknife_interval(present.astype(float), clusters),
        agreement_present=_where_any(credit[present], clusters[present]),
        agreement_absent=_where_any(credit[~present], clusters[~present]),
        difference=difference,
        p_value=p_value,
        p_holm=math.nan,
        same_length=same_length,
        reason=reason,
    )


def explanation_study(
    found: Explanations, families: Mapping[str, str] | None = None
) -> ExplanationStudy:
    """Compute the rate of every feature and the difference in agreement that goes with it.

    Holm's correction covers all features of all raters of a level together, whatever their
    dependence.

    Args:
        found: the explanations.
        families: rater -> family; differences are also pooled over each family of several.
    """
    families = families or {}
    names = found.names
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(families.get(name, name), []).append(name)
    # Numbers are sorted and compared many times faster than names.
    coded = replace(
        found,
        raters=np.unique(found.raters, return_inverse=True)[1],
        clusters=np.unique(found.clusters, return_inverse=True)[1],
    )
    groups: list[tuple[Level, str, list[str]]] = [("rater", name, [name]) for name in names]
    groups += [("family", family, of) for family, of in members.items() if len(of) > 1]
    groups.append(("all", ALL, names))
    thirds = np.empty(len(found.raters), dtype=np.int64)
    raters = []
    for place, name in enumerate(names):
        of = found.raters == name
        edges = np.quantile(found.n_words[of], [1 / 3, 2 / 3])
        thirds[of] = 3 * place + np.searchsorted(edges, found.n_words[of])
        raters.append(
            RaterFacts(
                rater=name,
                family=families.get(name, name),
                agreement=jackknife_interval(found.credit[of], found.clusters[of]),
                words=float(np.mean(found.n_words[of])),
                not_judged=found.not_judged[name],
                unexplained=found.unexplained[name],
            )
        )
    differences = []
    for level, name, of_group in groups:
        rows = np.flatnonzero(np.isin(found.raters, of_group))
        differences += [
            _difference(level, name, place, coded, rows, thirds) for place in range(len(FEATURES))
        ]
    return ExplanationStudy(raters, list(_corrected(differences)))


def _corrected(differences: Sequence[FeatureDifference]) -> Iterable[FeatureDifference]:
    for level in ("rater", "family", "all"):
        of = [one for one in differences if one.level == level]
        for one, p_holm in zip(of, holm([one.p_value for one in of]), strict=True):
            yield replace(one, p_holm=p_holm)


# Writing them down ---------------------------------------------------------------------------


def explanations_json(study: ExplanationStudy) -> dict[str, Any]:
    """The figures as JSON can hold them; what cannot be told is null, with its reason."""
    return {
        "features": [
            {"name": one.name, "group": one.group, "about": one.about} for one in FEATURES
        ],
        "raters": plain(study.raters),
        "differences": [
            plain({**asdict(one), "is_clear": one.is_clear}) for one in study.differences
        ],
    }


def explanation_rows(study: ExplanationStudy) -> list[dict[str, Any]]:
    """The differences as rows of a table; None where one cannot be told."""
    return [
        {**vars(one), "verdicts": one.rate.n, "prompts": one.rate.clusters}
        for one in study.differences
    ]


def explanations_text(study: ExplanationStudy) -> str:
    """The differences over all raters for a terminal, the largest first."""
    (overall,) = study.at("all").values()
    first = overall[0].rate
    width = max(len(one.feature) for one in overall)
    lines = [
        f"{first.n:,} verdicts with an explanation on {first.clusters:,} prompts, of "
        f"{len(study.raters)} raters; differences are within raters, 95 % intervals by prompt",
        "",
        f"{'feature':<{width}}   rate  agreement with / without  difference",
    ]

    def size(one: FeatureDifference) -> float:
        return -abs(one.difference.mean) if one.difference else 1.0

    for one in sorted(overall, key=size):
        shares = [
            "    -" if value is None else f"{value.mean:.3f}"
            for value in (one.agreement_present, one.agreement_absent)
        ]
        told = one.reason or ""
        if one.difference is not None:
            bounds = f"[{one.difference.low:+.3f}, {one.difference.high:+.3f}]"
            told = f"{one.difference.mean:+.3f} {bounds}, " + (
                f"p {one.p_holm:.3f}" if one.is_clear else "not significant"
            )
        lines.append(
            f"{one.feature:<{width}}  {one.rate.mean:.3f}            {shares[0]} / {shares[1]}  "
            f"{told}"
        )
    return "\n".join(lines)
