"""The audit's second part: what a rater, or the judge of a benchmark, measures on a set."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.audit.cues import (
    PairTexts,
    content_blind_cues,
    out_of_fold,
    scaled_features,
)
from litbench.audit.findings import ALPHA, Finding, between
from litbench.audit.probing import ProbeResult, ProbesConfig, read_probe_results, run_probes
from litbench.data.records import PAIRS, connected_prompts, has_texts
from litbench.evaluation.benchmark import Benchmark, run_benchmark
from litbench.evaluation.report.document import (
    ENDS,
    Cell,
    Section,
    Table,
    few_prompts,
    percent,
    short_name,
)
from litbench.metrics.agreement import length_differences, pair_scores
from litbench.metrics.comparisons import holm, paired_difference
from litbench.metrics.intervals import Interval, Training, jackknife_interval
from litbench.metrics.leaderboard import LeaderboardRow

# A column with more values holds no genres or sources.
_MAX_GROUPS, _MIN_PAIRS = 20, 20


@dataclass(frozen=True)
class RaterAudit:
    """The audit of a rater on a set.

    Attributes:
        row: its results, see `litbench.metrics.leaderboard`.
        prefers_longer: how often it prefers the longer story; a tie counts 1/2.
        labels_longer: how often the labels do, on the same pairs.
        against_length: its agreement where it prefers the shorter story; None without such pairs.
        groups: agreement by column and value.
        mimic: agreement of a content-blind model of the rater's choices, out of fold; None without
            texts.
        reproduced: (mimic - 1/2) / (agreement - 1/2): the share of the rater's agreement above
            chance that needs no reading; None if the rater is not above chance.
        probes: its results on changed stories; empty if they were left out.
        p_values: of the tests behind its findings, by name; those of probes after Benjamini and
            Hochberg.
    """

    row: LeaderboardRow
    prefers_longer: Interval
    labels_longer: Interval
    against_length: Interval | None
    groups: dict[str, dict[str, Interval]]
    mimic: Interval | None
    reproduced: float | None
    probes: list[ProbeResult]
    p_values: dict[str, float]


def audit_rater(
    name: str, benchmark: Benchmark, probes: ProbesConfig | None, seed: int = 0
) -> RaterAudit | None:
    """Judge the pairs and the probes, or read what an earlier run has judged.

    Args:
        name: name of the rater.
        benchmark: of the rater on the pairs; a dry run only estimates the cost and returns None.
        probes: of the rater on changed stories; None leaves them out.
        seed: seed of folds.
    """
    evaluations = run_benchmark(benchmark, "litbench audit")
    if probes is not None:
        run_probes(probes)
    if benchmark.dry_run:
        return None
    evaluation = evaluations[""]
    row = next(row for row in evaluation.rows if row.rater == name)
    probe_results = [] if probes is None else read_probe_results(probes.out)[name]
    return summarise(row, evaluation.verdicts, evaluation.pairs.headline, probe_results, seed)


def summarise(
    row: LeaderboardRow,
    verdicts: pa.Table,
    pairs: pa.Table,
    probes: list[ProbeResult],
    seed: int = 0,
) -> RaterAudit:
    """The audit of a rater's verdicts on pairs; see `audit_rater`."""
    scores = next(scores for scores in pair_scores(verdicts, pairs) if scores.rater == row.rater)
    prompts = np.array(connected_prompts(pairs))
    credit = scores.credit
    sign = np.nan_to_num(np.sign(length_differences(pairs)))
    longer, labels = 0.5 + sign * (credit - 0.5), (sign + 1) / 2
    shorter = longer < 0.5
    mimic = _mimic(pairs, credit, prompts, seed)
    reproduced = None
    if mimic is not None and row.agreement.low > 0.5:
        reproduced = (mimic.mean - 0.5) / (row.agreement.mean - 0.5)
    p_values = {"length": paired_difference(longer, labels, prompts)[1]}
    p_values["chance"] = paired_difference(credit, np.full(len(credit), 0.5), prompts)[1]
    first, is_known = scores.position_bias, np.isfinite(scores.position_bias)
    if is_known.any():
        half = np.full(int(is_known.sum()), 0.5)
        p_values["position"] = paired_difference(first[is_known], half, prompts[is_known])[1]
    p_values |= {f"probe {probe.probe}": probe.p_bh for probe in probes}
    return RaterAudit(
        row,
        jackknife_interval(longer, prompts),
        jackknife_interval(labels, prompts),
        jackknife_interval(credit[shorter], prompts[shorter]) if shorter.any() else None,
        _groups(pairs, credit, prompts),
        mimic,
        reproduced,
        probes,
        p_values,
    )


def _mimic(pairs: pa.Table, credit: np.ndarray, prompts: np.ndarray, seed: int) -> Interval | None:
    """Agreement with the labels of a content-blind model that is trained on the rater's choices."""
    choice = np.sign(credit - 0.5)
    if not has_texts(pairs).all() or (choice != 0).sum() < _MIN_PAIRS:
        return None
    texts = PairTexts.of(pairs)
    cues = [cue.sign for cue in content_blind_cues(pairs, texts, seed) if not cue.is_learnt]
    columns = np.column_stack([scaled_features(texts), *cues])
    named = np.flatnonzero(choice)
    # The rater's choice takes the place of the label: rows are what it prefers minus the other.
    margins = np.zeros(len(choice))
    margins[named] = out_of_fold(columns[named] * choice[named, None], prompts[named], seed)
    return jackknife_interval((np.sign(margins * choice) + 1) / 2, prompts, Training())


def _groups(
    pairs: pa.Table, credit: np.ndarray, prompts: np.ndarray
) -> dict[str, dict[str, Interval]]:
    declared = {column.name for column in PAIRS.columns} - {"split", "label_source"}
    groups = {}
    for name in pairs.column_names:
        column = pairs[name]
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        if name in declared or name.startswith(("chosen_", "rejected_")) or not is_text:
            continue
        values = np.array(column.to_pylist(), dtype=object)
        masks = {value: values == value for value in pc.unique(column.drop_null()).to_pylist()}
        if 2 <= len(masks) <= _MAX_GROUPS:
            groups[name] = {
                value: jackknife_interval(credit[rows], prompts[rows])
                for value, rows in sorted(masks.items())
                if rows.sum() >= _MIN_PAIRS
            }
    return groups


def rater_findings(rater: RaterAudit, others: int) -> Iterator[Finding]:
    """Yield what is significant after Holm's correction, over its tests and `others` of the set."""
    row = rater.row
    # Tests of the set are counted as if none of them were significant.
    adjusted = holm([*rater.p_values.values(), *[1.0] * others])
    p_holm = dict(zip(rater.p_values, adjusted, strict=False))
    if not (p_holm["chance"] < ALPHA and row.agreement.mean > 0.5):
        yield Finding.of(
            "at_chance",
            row.agreement,
            f"{row.rater} agrees with {between(row.agreement)} of the labels: not significantly "
            "more than chance.",
            "Do not rank by it on texts of this kind.",
            severity=1.0,
            p_holm=p_holm["chance"],
        )
    longer, labels = rater.prefers_longer, rater.labels_longer
    if p_holm["length"] < ALPHA:
        side = "longer" if longer.mean > labels.mean else "shorter"
        yield Finding.of(
            "rater_length",
            longer,
            f"{row.rater} prefers the longer story in {between(longer)} of the pairs, the "
            f"labels in {percent(labels.mean)}: it leans to the {side} story.",
            "Compare it on pairs of similar length, or on both sides of length symmetry.",
            severity=abs(longer.mean - labels.mean),
            p_holm=p_holm["length"],
        )
    if row.position_bias is not None and p_holm.get("position", 1.0) < ALPHA:
        first = row.position_bias
        yield Finding.of(
            "rater_position",
            first,
            f"{row.rater} prefers the story shown first in {between(first)} of its verdicts.",
            "Ask in both orders and average; count a flip as a tie.",
            severity=abs(2 * first.mean - 1),
            p_holm=p_holm["position"],
        )
    if row.coverage < 1:
        yield Finding.of(
            "rater_coverage",
            row.coverage,
            f"{row.rater} gave a verdict in {percent(row.coverage)} of its requests.",
            "Look at the outcomes below before comparing it with others.",
            severity=1 - row.coverage,
        )
    if rater.mimic is not None and rater.reproduced is not None and rater.reproduced > 0.5:
        yield Finding.of(
            "rater_mimic",
            rater.mimic,
            f"A content-blind model of {row.rater}'s choices agrees with {between(rater.mimic)} of "
            f"the labels: {percent(rater.reproduced)} of its agreement above chance.",
            "Its agreement on this set does not show that it reads.",
            severity=min(rater.reproduced, 1.0) / 2,
            p_holm=p_holm["chance"],
        )
    for result in rater.probes:
        p, share = p_holm[f"probe {result.probe}"], result.prefers_changed
        if result.is_fooled and p < ALPHA and share is not None:
            yield Finding.of(
                "rater_probe",
                share,
                f"{row.rater} prefers stories spoiled by {result.probe.replace('_', ' ')} in "
                f"{between(share)} of the pairs.",
                "Do not optimise against it without a penalty for this change.",
                severity=2 * share.mean - 1,
                p_holm=p,
            )


def rater_section(rater: RaterAudit) -> Section:
    """The part of the page on a rater."""
    row = rater.row
    rows: list[tuple[str, Any]] = [
        ("agreement with the labels", row.agreement),
        ("verdicts (coverage)", percent(row.coverage)),
        ("the two orders disagree (flips)", row.flip_rate),
        ("prefers the story shown first (position bias)", row.position_bias),
        ("prefers the longer story", rater.prefers_longer),
        ("the labels prefer the longer story", rater.labels_longer),
        ("agreement where it prefers the shorter story", rater.against_length),
        ("agreement where the chosen story is longer", row.chosen_longer),
        ("agreement where the chosen story is shorter", row.chosen_shorter),
        ("calibration error (ECE)", row.calibration and row.calibration.ece),
        (
            "the same of a perfectly calibrated rater",
            row.calibration and row.calibration.ece_if_calibrated,
        ),
        ("a content-blind model of its choices agrees with the labels", rater.mimic),
        ("share of its agreement above chance that this reproduces", percent(rater.reproduced)),
    ]
    cells = [[Cell(name, is_text=True), value] for name, value in rows]
    parts = []
    if rater.probes:
        probes = [
            [
                Cell(probe.probe.replace("_", " "), is_text=True, is_bold=probe.is_fooled),
                probe.stories,
                Cell(scale=probe.prefers_changed),
                probe.prefers_changed,
            ]
            for probe in rater.probes
        ]
        note = (
            "How often it prefers a spoiled story to the original: 0 is right, above ½ is fooled."
        )
        table = Table(["change", "stories", ENDS, "share [95 %]"], probes)
        parts.append(Section("What fools it", note, table))
    for name, intervals in rater.groups.items():
        groups = [
            [Cell(value, is_text=True), interval.n, Cell(scale=interval), interval]
            for value, interval in intervals.items()
        ]
        table = Table([name, "pairs", ENDS, "agreement [95 %]"], groups)
        parts.append(
            Section(f"Agreement by {name.replace('_', ' ')}", table=table, name=f"by-{name}")
        )
    warnings = few_prompts(row.agreement)
    if row.trained_on:
        warnings.append(f"Trained on {row.trained_on:,} of these prompts: not valid.")
    title = f"The rater {short_name(row.rater)}"
    table = Table(["", ""], cells, is_narrow=True)
    return Section(title, "", table, warnings=warnings, parts=parts, name="rater")
