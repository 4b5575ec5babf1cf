"""Scaling studies: agreement by amount of training data and by number of parameters.

Each arm of a study, a rater trained on so many pairs, is a rater of its own in the verdict table,
and its seeds are the repeats of that rater (`fold` reads "seed/0"). So a pair's credit is the
mean over seeds before any interval is taken: three seeds are not three times the pairs.
"""

import csv
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa

from litbench.errors import ConfigError
from litbench.metrics.agreement import PairFacts, pair_scores, per_repeat_agreement
from litbench.metrics.comparisons import Comparison, holm, paired_difference
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.metrics.leaderboard import plain

_CSV_COLUMNS = (
    "name", "rater", "kind", "family", "parameters", "pairs_used", "agreement", "low", "high", "n",
    "prompts", "effective_prompts", "seeds", "seed_least", "seed_most", "seed_sd",
    "chosen_longer", "chosen_shorter", "coverage",
)  # fmt: skip
_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k"))


@dataclass(frozen=True)
class Arm:
    """A rater as it stands in a study.

    Attributes:
        name: the rater's name in the verdicts, unique in the study.
        rater: the entry of the config.
        pairs_used: pairs it was trained on in the study; None for one that was ready.
        family: raters that differ in size alone share one; None outside the comparison of sizes.
        parameters: weights of its model; None where nobody says.
    """

    name: str
    rater: str
    pairs_used: int | None
    family: str | None
    parameters: int | None


@dataclass(frozen=True)
class ScalingPoint(Arm):
    """An arm with its figures, all on the same held-out pairs.

    Attributes:
        kind: kind of rater.
        agreement: headline agreement of the mean over seeds; the interval is of the held-out
            prompts and holds the seeds as they are.
        seeds: agreement of each seed, by seed; empty for a rater that was ready.
        chosen_longer: agreement on pairs whose chosen story is the longer.
        chosen_shorter: agreement on pairs whose chosen story is the shorter.
        coverage: share of verdicts that are judgements.
    """

    kind: str
    agreement: Interval
    seeds: list[float]
    chosen_longer: Interval
    chosen_shorter: Interval
    coverage: float


@dataclass(frozen=True)
class Gain:
    """What the step from the least to the most brings.

    Attributes:
        of: the rater (more pairs) or the family (more parameters).
        axis: what grows.
        least: the least number of pairs or parameters.
        most: the most.
        comparison: the most against the least, paired on the same pairs, Holm-corrected over all
            gains of the study.
    """

    of: str
    axis: Literal["pairs", "parameters"]
    least: int
    most: int
    comparison: Comparison


@dataclass(frozen=True)
class ScalingStudy:
    """The figures of a study.

    Attributes:
        points: one per arm, in the order of the arms.
        gains: one per rater with several amounts and per family with several sizes.
    """

    points: list[ScalingPoint]
    gains: list[Gain]


A = TypeVar("A", bound=Arm)


def by_pairs(arms: Sequence[A]) -> dict[str, list[A]]:
    """The arms of each rater that was trained in the study, by number of pairs."""
    trained = [arm for arm in arms if arm.pairs_used is not None]
    found: dict[str, list[A]] = {arm.rater: [] for arm in trained}
    for arm in sorted(trained, key=_pairs_used):
        found[arm.rater].append(arm)
    return found


def by_parameters(arms: Sequence[A]) -> dict[str, list[A]]:
    """The arms that compare sizes, by family; one per rater, by parameters, unknown ones last.

    Raters trained in the study stand at the largest amount that all raters with a family were
    trained on, so that no line owes its height to more pairs; ready ones stand as they are.

    Raises:
        ConfigError: those raters share no amount.
    """
    members = [arm for arm in arms if arm.family is not None]
    amounts = {name: {_pairs_used(arm) for arm in of} for name, of in by_pairs(members).items()}
    shared = set.intersection(*amounts.values()) if amounts else set()
    if amounts and not shared:
        raise ConfigError(
            f"raters {', '.join(amounts)} have a family and share no number of pairs, so that "
            "their sizes cannot be compared: give them an amount in common in pairs_used"
        )
    at = max(shared, default=None)
    found: dict[str, list[A]] = {}
    for arm in sorted(members, key=_parameters):
        if arm.pairs_used in (None, at):
            found.setdefault(str(arm.family), []).append(arm)
    # In the order of the config, whatever the sizes.
    return {family: found[family] for family in dict.fromkeys(str(arm.family) for arm in members)}


def references(arms: Sequence[A]) -> list[A]:
    """The arms without a place on either axis: ready raters outside any family."""
    return [arm for arm in arms if arm.pairs_used is None and arm.family is None]


def _pairs_used(arm: Arm) -> int:
    return arm.pairs_used or 0


def _parameters(arm: Arm) -> tuple[bool, int]:
    return arm.parameters is None, arm.parameters or 0


def scaling_study(verdicts: pa.Table, pairs: pa.Table, arms: Sequence[Arm]) -> ScalingStudy:
    """Compute the figures of a study.

    Args:
        verdicts: table by the schema VERDICTS; the rater of a row is the arm's name, its fold
            "seed/0", or null for a rater that was ready.
        pairs: the held-out pairs, by the schema PAIRS.
        arms: all raters of the verdicts.

    Raises:
        DataError: an arm has no verdict on some pair.
        ConfigError: see `by_parameters`.
    """
    facts = PairFacts.of(pairs)
    longer, shorter = facts.difference > 0, facts.difference < 0
    scores_of = {scores.rater: scores for scores in pair_scores(verdicts, pairs)}
    points = []
    for arm in arms:
        scores = scores_of[arm.name]
        points.append(
            ScalingPoint(
                **asdict(arm),
                kind=scores.kind,
                agreement=jackknife_interval(scores.credit, facts.clusters),
                seeds=per_repeat_agreement(verdicts, pairs, arm.name),
                chosen_longer=jackknife_interval(scores.credit[longer], facts.clusters[longer]),
                chosen_shorter=jackknife_interval(scores.credit[shorter], facts.clusters[shorter]),
                coverage=float(scores.judged.mean()),
            )
        )
    sizes = {
        family: [point for point in given if point.parameters is not None]
        for family, given in by_parameters(points).items()
    }
    axes: list[tuple[Literal["pairs", "parameters"], dict[str, list[ScalingPoint]]]] = [
        ("pairs", by_pairs(points)),
        ("parameters", sizes),
    ]
    found: list[Gain] = []
    for axis, lines in axes:
        for of, given in lines.items():
            values = [(p.pairs_used if axis == "pairs" else p.parameters) or 0 for p in given]
            if not given or values[0] == values[-1]:
                continue
            names = given[-1].name, given[0].name
            credits = [scores_of[name].credit for name in names]
            difference, p_value = paired_difference(credits[0], credits[1], facts.clusters)
            # Holm's correction needs the p values of all gains and follows below.
            step = Comparison(*names, difference, p_value, p_value)
            found.append(Gain(of, axis, values[0], values[-1], step))
    adjusted = holm([gain.comparison.p_value for gain in found])
    gains = [
        replace(gain, comparison=replace(gain.comparison, p_holm=p_holm))
        for gain, p_holm in zip(found, adjusted, strict=True)
    ]
    return ScalingStudy(points, gains)


def scaling_json(study: ScalingStudy) -> dict[str, Any]:
    """The figures as JSON can hold them; what cannot be told is null."""
    return {"points": plain(study.points), "gains": plain(study.gains)}


def write_scaling_csv(study: ScalingStudy, path: Path) -> None:
    """Write the points as CSV; `seed_sd` is the standard deviation over seeds (n - 1)."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_CSV_COLUMNS)
        for point in study.points:
            known = point.agreement
            values = [
                point.name, point.rater, point.kind, point.family, point.parameters,
                point.pairs_used, known.mean, known.low, known.high, known.n, known.clusters,
                known.effective_clusters, len(point.seeds), min(point.seeds, default=None),
                max(point.seeds, default=None),
                statistics.stdev(point.seeds) if len(point.seeds) > 1 else None,
                point.chosen_longer.mean, point.chosen_shorter.mean, point.coverage,
            ]  # fmt: skip
            writer.writerow([plain(value) for value in values])


def write_size(parameters: float) -> str:
    """A number of parameters as people say it: 22.7M, 1.24B."""
    for size, unit in _UNITS:
        # Half a unit of the last digit shown: 999,999,999 is 1B and not 1000M.
        if parameters >= size * 0.9995:
            return f"{parameters / size:.3g}{unit}"
    return f"{parameters:.0f}"


def scaling_text(study: ScalingStudy) -> str:
    """The figures for a terminal."""
    width = max(len(point.name) for point in study.points)
    first = study.points[0].agreement
    lines = [
        f"agreement with the labels: {first.n:,} held-out pairs, {first.clusters:,} prompts "
        f"(worth {first.effective_clusters:.0f} of equal size), 95 % intervals by prompt",
        "",
        f"{'rater@pairs':<{width}}  parameters  agreement              over seeds",
    ]
    for point in study.points:
        size = "-" if point.parameters is None else write_size(point.parameters)
        spread = "-"
        if point.seeds:
            spread = f"{min(point.seeds):.3f} to {max(point.seeds):.3f} of {len(point.seeds)}"
        lines.append(f"{point.name:<{width}}  {size:>10}  {point.agreement!s:<21}  {spread}")
    if study.gains:
        lines.append("")
    for gain in study.gains:
        write = write_size if gain.axis == "parameters" else "{:,}".format
        found = gain.comparison
        noise = "" if found.is_clear else " (within noise)"
        lines.append(
            f"{gain.of}, {write(gain.least)} to {write(gain.most)} {gain.axis}: "
            f"{found.difference.mean:+.3f}{noise}"
        )
    return "\n".join(lines)
