"""How raters judge probes: how often they prefer a changed story to the original.

The rate counts a tie as one half, over the pairs that the rater judged in both orders. For a
label-breaking probe 0 is right and above 1/2 the rater is fooled; for a label-preserving one 1/2 is
right, and the distance from it shows how much the rater cares about the change.
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
from litbench.records import prompt_keys
from litbench.text import aligned, clean_name


@dataclass(frozen=True)
class ProbeResult:
    """A rater on one probe at one strength.

    Attributes:
        not_applicable: stories that the probe has no change for.
        words_ratio: words of the changed story over those of the original; mean.
        prefers_changed: rate, see the module; None where no pair was judged in both orders.
        p_bh: two-sided p value of a rate of 1/2, adjusted for the rater's probes and strengths
            (Benjamini and Hochberg); NaN where unknown.
        ties: share of the judgements that are ties.
        not_judged: share of the verdicts that are no judgement.
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
        """Whether the rater significantly prefers stories that are broken."""
        rate = self.prefers_changed
        return self.effect == "breaking" and rate is not None and rate.mean > 0.5 and self.is_clear


def probe_results(
    verdicts: pa.Table, pairs: pa.Table, not_applicable: Mapping[str, Mapping[str, int]]
) -> list[ProbeResult]:
    """The results of every rater, probe and strength, in this order.

    `pairs` and `not_applicable` are from `litbench.probes.probe_pairs`, `verdicts` on all pairs.
    """
    clusters = np.array(prompt_keys(pairs))
    ids, names, strengths = (
        np.array(pairs[n].to_pylist()) for n in ("pair_id", "probe", "strength")
    )
    words = pairs["rejected_n_words"].to_numpy() / np.maximum(pairs["chosen_n_words"].to_numpy(), 1)
    raters, judged_ids, outcomes = (
        np.array(verdicts[n].to_pylist()) for n in ("rater", "pair_id", "outcome")
    )
    results = []
    for scores in pair_scores(verdicts, pairs):
        found = []
        for probe in PROBES.values():
            for strength in sorted(set(strengths[names == probe.name])):
                rows = (names == probe.name) & (strengths == strength)
                said = outcomes[(raters == scores.rater) & np.isin(judged_ids, ids[rows])]
                judged, ties = np.isin(said, ("chosen", "rejected", "tie")), said == "tie"
                flipped = scores.flipped[rows]
                known = rows & np.isfinite(scores.both_orders)
                rates, of = 1 - scores.both_orders[known], clusters[known]
                rate, p_value = None, math.nan
                if len(rates):
                    rate = jackknife_interval(rates, of)
                    p_value = paired_difference(rates, 1 - rates, of)[1]
                found.append(
                    ProbeResult(
                        scores.rater, scores.kind, probe.name, probe.effect, float(strength),
                        stories=int(rows.sum()),
                        not_applicable=not_applicable.get(probe.name, {}).get(f"{strength:g}", 0),
                        words_ratio=float(words[rows].mean()),
                        prefers_changed=rate,
                        p_bh=p_value,
                        ties=float(ties.sum() / judged.sum()) if judged.any() else math.nan,
                        not_judged=float(1 - judged.mean()),
                        flip_rate=None if np.isnan(flipped).all() else float(np.nanmean(flipped)),
                    )
                )  # fmt: skip
        adjusted = benjamini_hochberg([one.p_bh for one in found])
        results += [replace(one, p_bh=p) for one, p in zip(found, adjusted, strict=True)]
    return results


def by_rater(results: Sequence[ProbeResult]) -> dict[str, list[ProbeResult]]:
    """The results of each rater, in their order."""
    found: dict[str, list[ProbeResult]] = {}
    for one in results:
        found.setdefault(one.rater, []).append(one)
    return found


def fooled_text(results: Sequence[ProbeResult]) -> str:
    """What fools each rater, in a sentence."""
    said = []
    for rater, own in by_rater(results).items():
        probes = dict.fromkeys(one.probe.replace("_", " ") for one in own if one.is_fooled)
        if probes:
            said.append(f"{clean_name(rater)} by {', '.join(probes)}")
    if not said:
        return "No rater significantly prefers a broken story."
    return f"Broken stories are significantly preferred: {'; '.join(said)}."


def probes_text(results: Sequence[ProbeResult]) -> str:
    """The rates for a terminal."""
    raters = by_rater(results)
    head = ["probe", "strength", "right", "stories", "n/a", "words", *map(clean_name, raters)]
    rows = [head]
    for same in zip(*raters.values(), strict=True):
        one = same[0]
        rates = [
            "-" if of.prefers_changed is None else str(of.prefers_changed) + "*" * of.is_clear
            for of in same
        ]
        right = "0" if one.effect == "breaking" else "1/2"
        rows.append([
            one.probe, f"{one.strength:g}", right, f"{one.stories:,}", f"{one.not_applicable:,}",
            f"x{one.words_ratio:.2f}", *rates,
        ])  # fmt: skip
    return (
        f"Share of pairs in which the changed story is preferred; a tie is 1/2.\n{aligned(rows)}"
        f"* differs significantly from 1/2 (Benjamini and Hochberg)\n\n{fooled_text(results)}\n"
    )
