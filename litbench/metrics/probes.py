"""Results of raters on probes: how often they prefer a changed story to the original.

The rate is over the pairs that the rater judged in both orders; a tie counts one half. For a
label-breaking probe the right rate is 0, and above 1/2 the rater is fooled. For a label-preserving
probe the right rate is 1/2, and the distance from it is the rater's sensitivity to the change.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from litbench.metrics.agreement import pair_scores
from litbench.metrics.comparisons import benjamini_hochberg, paired_difference
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.probes import PROBES, Effect
from litbench.records import connected_prompts
from litbench.text import aligned, clean_name


@dataclass(frozen=True)
class ProbeResult:
    """A rater on one probe at one strength.

    Attributes:
        not_applicable: number of stories that the probe cannot change.
        words_ratio: mean ratio of the words of the changed story to those of the original.
        prefers_changed: see the module docstring; None if no pair was judged in both orders.
        p_bh: two-sided p value of a rate of 1/2, adjusted for the rater's probes and strengths
            (Benjamini and Hochberg); NaN if unknown.
        ties: share of judgements that are ties.
        not_judged: share of verdicts that are not judgements.
        flip_rate: share of pairs in which the two orders disagree; None without orders.
    """

    rater: str
    kind: str
    probe: str
    effect: Effect
    strength: float
    stories: int
    not_applicable: int
    words_ratio: float
    prefers_changed: Interval | None
    p_bh: float
    ties: float
    not_judged: float
    flip_rate: float | None

    @property
    def is_clear(self) -> bool:
        """Whether the rate differs from 1/2 significantly."""
        return self.p_bh < 0.05

    @property
    def is_fooled(self) -> bool:
        """Whether the rater significantly prefers broken stories."""
        rate = self.prefers_changed
        return self.effect == "breaking" and rate is not None and rate.mean > 0.5 and self.is_clear


def probe_results(
    verdicts: pa.Table, pairs: pa.Table, not_applicable: Mapping[str, Mapping[str, int]]
) -> list[ProbeResult]:
    """The results by rater, probe and strength, in this order.

    `pairs` and `not_applicable` are from `litbench.probes.probe_pairs`; `verdicts` cover all pairs.
    """
    clusters = np.array(connected_prompts(pairs))
    ids, names, strengths = (
        np.array(pairs[n].to_pylist()) for n in ("pair_id", "probe", "strength")
    )
    words = pairs["rejected_n_words"].to_numpy() / np.maximum(pairs["chosen_n_words"].to_numpy(), 1)
    raters, judged_ids, outcomes = (
        np.array(verdicts[n].to_pylist()) for n in ("rater", "pair_id", "outcome")
    )
    results = []
    for scores in pair_scores(verdicts, pairs):
        own = []
        for probe in PROBES.values():
            for strength in sorted(set(strengths[names == probe.name])):
                rows = (names == probe.name) & (strengths == strength)
                given = outcomes[(raters == scores.rater) & np.isin(judged_ids, ids[rows])]
                judged, ties = np.isin(given, ("chosen", "rejected", "tie")), given == "tie"
                flipped = scores.flipped[rows]
                known = rows & np.isfinite(scores.both_orders)
                rates, of = 1 - scores.both_orders[known], clusters[known]
                rate, p_value = None, math.nan
                if len(rates):
                    rate = jackknife_interval(rates, of)
                    p_value = paired_difference(rates, 1 - rates, of)[1]
                own.append(
                    ProbeResult(
                        scores.rater,
                        scores.kind,
                        probe.name,
                        probe.effect,
                        float(strength),
                        stories=int(rows.sum()),
                        not_applicable=not_applicable.get(probe.name, {}).get(f"{strength:g}", 0),
                        words_ratio=float(words[rows].mean()),
                        prefers_changed=rate,
                        p_bh=p_value,
                        ties=float(ties.sum() / judged.sum()) if judged.any() else math.nan,
                        not_judged=float(1 - judged.mean()),
                        flip_rate=None if np.isnan(flipped).all() else float(np.nanmean(flipped)),
                    )
                )
        adjusted = benjamini_hochberg([result.p_bh for result in own])
        results += [replace(result, p_bh=p) for result, p in zip(own, adjusted, strict=True)]
    return results


def by_rater(results: Sequence[ProbeResult]) -> dict[str, list[ProbeResult]]:
    """The results by rater, in the given order."""
    of_rater: dict[str, list[ProbeResult]] = {}
    for result in results:
        of_rater.setdefault(result.rater, []).append(result)
    return of_rater


def fooled_text(results: Sequence[ProbeResult]) -> str:
    """A sentence that lists the probes that fool each rater."""
    fooled = []
    for rater, own in by_rater(results).items():
        probes = dict.fromkeys(one.probe.replace("_", " ") for one in own if one.is_fooled)
        if probes:
            fooled.append(f"{clean_name(rater)} by {', '.join(probes)}")
    if not fooled:
        return "No rater significantly prefers broken stories."
    return f"Significantly fooled: {'; '.join(fooled)}."


def probes_text(results: Sequence[ProbeResult]) -> str:
    """The rates as text for a terminal."""
    raters = by_rater(results)
    head = ["probe", "strength", "right", "stories", "n/a", "words", *map(clean_name, raters)]
    rows = [head]
    for of_raters in zip(*raters.values(), strict=True):
        one = of_raters[0]
        rates = [
            "-" if of.prefers_changed is None else str(of.prefers_changed) + "*" * of.is_clear
            for of in of_raters
        ]
        right = "0" if one.effect == "breaking" else "1/2"
        rows.append(
            [
                one.probe,
                f"{one.strength:g}",
                right,
                f"{one.stories:,}",
                f"{one.not_applicable:,}",
                f"x{one.words_ratio:.2f}",
                *rates,
            ]
        )
    return (
        "Share of pairs in which the rater prefers the changed story; a tie counts 1/2.\n"
        f"{aligned(rows)}"
        f"* differs significantly from 1/2 (Benjamini and Hochberg)\n\n{fooled_text(results)}\n"
    )
