"""Findings about a set of pairs without reading: cues, leakage, label noise.

A cue is something of a pair that needs no reading, such as which story is longer. Its effect is the
share of pairs that it decides for the chosen story, minus the share that it decides for the
rejected one, from -1 to 1. Several cues together are columns of -1, 0 and 1 in a linear model
without intercept, in which 1 (the chosen story) is regressed on them: the coefficient of a cue is
its effect with the others held fixed. The standard error is the cluster jackknife by prompt.

A cue is stated as a finding by Holm's step-down rule: the cue with the smallest p value first; the
next one must be significant after controlling for those already reported, at 5 % divided by the
number of tests that are left. So paragraphs are not named where length explains them. A cue that
alone is not significant at 5 % is not stated: it may only correct another cue.

If every pair that differs in a cue is decided the same way, the prompts do not differ and the
jackknife error is 0. The p value is then that of a sign test over the stories that these pairs do
not share. A cue beside the text that so decides every pair, such as the time where pairs are made
by it, is stated but not held fixed: it would explain every label, and hide all other cues.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.audit.cues import Cue, PairTexts, content_blind_cues
from litbench.data.curation.leakage import by_split, leakage_report
from litbench.data.records import SIDES, connected_prompts, prompt_keys
from litbench.evaluation.report.document import percent
from litbench.metrics.annotators import AnnotatorAgreement, label_ceiling
from litbench.metrics.comparisons import difference_interval, interval_p
from litbench.metrics.intervals import (
    TRAINED_VARIANCE,
    ClusteredMean,
    Interval,
    Training,
    effective_clusters,
    jackknife_interval,
)
from litbench.metrics.power import Case, detectable, intra_prompt_correlation

ALPHA, POWER = 0.05, 0.8
# Minimum number of pairs that a tested cue decides.
_MIN_DECIDED = 10
# Above this agreement of two annotators, label noise is not worth a finding.
NOISELESS = 0.9
_ANY_STYLE = "Compare every rater on pairs that do not differ in it, or show it beside every rater."


@dataclass(frozen=True)
class AuditResult:
    """A cue's results.

    Attributes:
        agreement: how often the story with more of it is the chosen one; equal counts 1/2.
        alone: its effect, from -1 to 1.
        held_fixed: its effect with all other cues of the kind held fixed.
        p_holm: p value of the step that stated it, or at which nothing more was stated, after Holm.
    """

    cue: Cue
    agreement: Interval
    alone: Interval
    held_fixed: Interval
    p_holm: float
    is_stated: bool


@dataclass(frozen=True)
class Finding:
    """A finding.

    Attributes:
        kind: what was found: the name of a cue, `leakage`, `prompt_ids`, `copies`,
            `contradictions`, `label_noise`, or one of a rater.
        severity: 0 to 1, by which findings are sorted: how much of a rater's result it can explain.
        number: its number; `low` and `high` are its 95 % interval, None for a count.
        p_holm: see the module docstring; None for a count.
        sentence: what was found, with its number and interval.
        advice: what to do.
    """

    kind: str
    severity: float
    number: float
    sentence: str
    advice: str
    low: float | None = None
    high: float | None = None
    p_holm: float | None = None

    @classmethod
    def of(
        cls,
        kind: str,
        number: float | Interval,
        sentence: str,
        advice: str,
        *,
        severity: float | None = None,
        p_holm: float | None = None,
    ) -> "Finding":
        """A finding from a share, which is its severity by default, or from an interval."""
        mean, low, high = (
            (number.mean, number.low, number.high)
            if isinstance(number, Interval)
            else (number, None, None)
        )
        severity = mean if severity is None else severity
        return cls(kind, severity, mean, sentence, advice, low, high, p_holm)


@dataclass(frozen=True)
class SetAudit:
    """The audit of a set.

    Attributes:
        size: numbers of `pairs`, `prompts`, `effective_prompts`, `stories`, `stories_per_prompt`.
        tests: how many tests were made.
        detectable: smallest share of pairs that a cue must decide to be found with 80 % power,
            after Holm over all tests; None if none is, or no cue can be tested.
        detectable_difference: smallest difference in agreement of two raters that disagree on 30 %
            of the pairs, with 80 % power, without correction.
        results: of all cues that were tested.
        findings: worst first.
        leakage: counts of `litbench.data.curation.leakage`; None with one split.
        ceiling: see `label_ceiling`; None without annotators. An upper bound if their
            `difficulty_spread` is NaN.
        notes: what could not be looked for.
    """

    size: dict[str, float]
    tests: int
    detectable: float | None
    detectable_difference: float | None
    results: list[AuditResult]
    findings: list[Finding]
    leakage: dict[str, Any] | None
    annotators: AnnotatorAgreement | None
    ceiling: Interval | None
    notes: list[str] = field(default_factory=list)


# Tests ----------------------------------------------------------------------------------------


def effects(columns: np.ndarray, group: np.ndarray) -> list[ClusteredMean]:
    """The coefficients of the linear model in the module docstring, with jackknife errors.

    Args:
        columns: -1 to 1; shape (n, k).
        group: number of the prompt of each pair; shape (n,).
    """
    n, k = columns.shape
    count = int(group.max()) + 1
    outer, sums = np.zeros((count, k, k)), np.zeros((count, k))
    np.add.at(outer, group, columns[:, :, None] * columns[:, None, :])
    np.add.at(sums, group, columns)
    total = outer.sum(0) + 1e-9 * n * np.eye(k)
    target = sums.sum(0)
    means = np.linalg.solve(total, target)
    without = np.linalg.solve(total - outer, (target - sums)[:, :, None])[:, :, 0]
    errors = np.sqrt((count - 1) / count * np.square(without - means).sum(0))
    means_by_cue = []
    for mean, error, column in zip(means.tolist(), errors.tolist(), columns.T, strict=True):
        sizes = np.bincount(group, column != 0)
        decided, effective = int(sizes.sum()), effective_clusters(sizes)
        count = int((sizes > 0).sum())
        # A variance of zero is not exactly zero after rounding.
        rounded = error if error > 1e-7 else 0.0
        means_by_cue.append(ClusteredMean(mean, rounded, decided, count, effective))
    return means_by_cue


def screen(
    cues: Sequence[Cue], group: np.ndarray, others: Sequence[float], stories: np.ndarray
) -> list[AuditResult]:
    """Test the cues and state those of Holm's step-down rule; see the module docstring.

    Args:
        cues: those that can be tested.
        group: number of the prompt of each pair; shape (n,).
        others: p values of other tests of the same family.
        stories: ids of the chosen and the rejected story of each pair; shape (2, n).
    """
    stated: list[Cue] = []
    p_of: dict[str, float] = {}
    agreements = {
        cue.name: jackknife_interval(
            (cue.sign + 1) / 2, group, Training() if cue.is_learnt else None
        )
        for cue in cues
    }
    alone = {cue.name: _effect(cue, cue.sign[:, None], group) for cue in cues}
    undecided = {cue.name for cue in cues if not _p_value(cue, alone[cue.name], stories) < ALPHA}
    tests = len(cues) + len(others)
    # Others that are significant are steps of the rule as well.
    spent = sum(p * tests < ALPHA for p in others)
    for is_learnt in (False, True):
        rest = [cue for cue in cues if _is_text_model(cue) == is_learnt]
        while rest:
            p_values = []
            for cue in rest:
                fixed = [
                    column
                    for other in _beside(cue, stated)
                    for column in (other.sign, other.amount)
                ]
                effect = _effect(cue, np.column_stack([cue.sign, *fixed]), group)
                p = _p_value(cue, effect, stories)
                is_nothing = abs(effect.mean) < 1e-6 or (cue.is_learnt and effect.mean < 0)
                is_nothing |= cue.name in undecided
                is_explained = is_nothing or math.isnan(p) or _is_explained(cue.sign, fixed)
                p_values.append(1.0 if is_explained else p)
            left = max(tests - len(stated) - spent, 1)
            p_of |= {cue.name: min(p * left, 1.0) for cue, p in zip(rest, p_values, strict=True)}
            best = int(np.argmin(p_values))
            if p_values[best] * left >= ALPHA:
                break
            stated.append(rest.pop(best))
    results = []
    for cue in cues:
        # A model of the texts repeats what the counted cues say: it is not held fixed with them.
        counted = _beside(cue, [other for other in cues if not _is_text_model(other)])
        amounts = [other.amount for other in _beside(cue, stated)]
        columns = np.column_stack([cue.sign, *(other.sign for other in counted), *amounts])
        results.append(
            AuditResult(
                cue,
                agreements[cue.name],
                difference_interval(alone[cue.name])[0],
                difference_interval(_effect(cue, columns, group))[0],
                p_of[cue.name],
                cue in stated,
            )
        )
    return results


def _beside(cue: Cue, others: Sequence[Cue]) -> list[Cue]:
    """The other cues that are held fixed with a cue; see the module docstring."""
    return [
        other
        for other in others
        if other is not cue and (not other.is_rule or (other.is_of_text and cue.is_of_text))
    ]


def _p_value(cue: Cue, effect: ClusteredMean, stories: np.ndarray) -> float:
    """Two-sided p value of a cue's effect; see the module docstring."""
    if effect.error > 0 or abs(effect.mean) < 1 - 1e-6:
        return difference_interval(effect)[1]
    # A story that wins against many others is one observation, not many.
    distinct = min(len(set(side[cue.sign != 0].tolist())) for side in stories)
    return float(2.0 ** (1 - distinct))


def _effect(cue: Cue, columns: np.ndarray, group: np.ndarray) -> ClusteredMean:
    """The effect of a cue, the first column; if folds learnt it, with the variance of training."""
    effect = effects(columns, group)[0]
    factor = math.sqrt(TRAINED_VARIANCE) if cue.is_learnt else 1.0
    return replace(effect, error=effect.error * factor)


def _is_explained(column: np.ndarray, others: Sequence[np.ndarray]) -> bool:
    """Whether a column is a combination of others, as of two names of one thing."""
    if not others:
        return False
    fixed = np.column_stack(others)
    rest = column - fixed @ np.linalg.lstsq(fixed, column, rcond=None)[0]
    return float(np.square(rest).sum()) < 1e-6 * float(np.square(column).sum())


def _is_text_model(cue: Cue) -> bool:
    return cue.name in ("features", "words")


def _noise_p(agreement: Interval) -> float:
    """Two-sided p value of an agreement of two annotators of NOISELESS, on the logit scale."""
    if not 0.5 < agreement.mean < NOISELESS:
        return 1.0 if agreement.mean > 0.5 or math.isnan(agreement.low) else 0.0
    return interval_p(agreement, NOISELESS, is_share=True)


# The audit of a set ---------------------------------------------------------------------------


def _testable(
    cues: Iterable[Cue], group: np.ndarray, by_rule: Collection[str]
) -> tuple[list[Cue], list[str]]:
    """The cues that can be tested, and notes on why the others cannot."""
    tested, notes = [], []
    for cue in cues:
        sizes = np.bincount(group, cue.sign != 0)
        if cue.name in by_rule:
            notes.append(f"{cue.name}: a pairing rule decides it; keep it from raters.")
        elif sizes.sum() >= _MIN_DECIDED:
            tested.append(cue)
        else:
            notes.append(f"{cue.name}: differs in {int(sizes.sum()):,} pairs, too few to test.")
    return tested, notes


def audit_pairs(
    pairs: pa.Table,
    annotators: AnnotatorAgreement | None = None,
    per_story: float = 1.0,
    seed: int = 0,
    by_rule: Collection[str] = (),
    others: Sequence[float] = (),
) -> SetAudit:
    """Audit a set of pairs; no model is asked.

    Args:
        pairs: table with the schema PAIRS; extra columns `chosen_NAME` and `rejected_NAME` are
            cues if they are names, or a position.
        annotators: agreement of the annotators, if there are any.
        per_story: number of annotators of a story.
        seed: seed of folds.
        by_rule: names of cues that a rule of the pairing decides, which are not tested.
        others: p values of other tests of the same family, such as those of a rater.
    """
    names, group = np.unique(np.array(connected_prompts(pairs)), return_inverse=True)
    texts = PairTexts.of(pairs)
    cues, notes = _testable(content_blind_cues(pairs, texts, seed), group, by_rule)
    two = None if annotators is None else annotators.two_decided
    noise = [] if two is None or math.isnan(two.mean) else [_noise_p(two)]
    ids = {side: pairs[f"{side}_story_id"].to_pylist() for side in SIDES}
    others = [p for p in others if not math.isnan(p)]
    results = screen(cues, group, [*noise, *others], np.array([ids[side] for side in SIDES]))
    tests = max(len(cues) + len(noise) + len(others), 1)
    sizes = np.bincount(group)
    effective = effective_clusters(sizes)
    within = [intra_prompt_correlation(cue.sign, group) for cue in cues]
    case = None
    if cues:
        case = Case(
            agreement=0.6,
            pairs=float(pairs.num_rows),
            prompts=effective,
            intra_prompt=min(max([0.0, *(r for r in within if not math.isnan(r))]), 0.99),
        )
    stories = len({*ids["chosen"], *ids["rejected"]})
    leakage, leaks = _leakage(pairs, notes)
    findings = [*map(_cue_finding, (result for result in results if result.is_stated)), *leaks]
    findings += [*_id_findings(pairs), *_copy_findings(pairs)]
    ceiling = None
    if annotators is not None and noise:
        ceiling = label_ceiling(annotators.two_decided, per_story, annotators.difficulty_spread)
        if noise[0] * tests < ALPHA:
            findings.append(_noise_finding(annotators, ceiling, noise[0] * tests))
    return SetAudit(
        {
            "pairs": pairs.num_rows,
            "prompts": len(names),
            "effective_prompts": effective,
            "stories": stories,
            "stories_per_prompt": stories / max(len(names), 1),
        },
        tests,
        None if case is None else detectable(case, POWER, ALPHA / tests),
        None
        if case is None
        else detectable(replace(case, reference=0.6, disagreement=0.3), POWER, ALPHA),
        results,
        sorted(findings, key=lambda finding: (-finding.severity, finding.kind)),
        leakage,
        annotators,
        ceiling,
        notes,
    )


def between(interval: Interval) -> str:
    """A share and its interval in per cent."""
    return f"{percent(interval.mean)} [{percent(interval.low)} to {percent(interval.high)}]"


def _cue_finding(result: AuditResult) -> Finding:
    agreement, cue = result.agreement, result.cue
    is_more = agreement.mean > 0.5
    shown = agreement
    if not is_more:
        low, high = 1 - agreement.high, 1 - agreement.low
        shown = replace(agreement, mean=1 - agreement.mean, low=low, high=high)
    what, advice = cue.texts[0 if is_more else 1] or cue.texts[0], cue.texts[2] or _ANY_STYLE
    decided = result.alone.n
    sentence = f"{what[0].upper()}{what[1:]} wins in {between(shown)} of the pairs"
    if decided < agreement.n:
        net = (1 + abs(result.alone.mean)) / 2
        sentence += f", and in {percent(net)} of the {decided:,} pairs that differ in it"
    return Finding.of(
        cue.name,
        shown,
        f"{sentence}.",
        advice,
        severity=abs(2 * agreement.mean - 1),
        p_holm=result.p_holm,
    )


def _noise_finding(annotators: AnnotatorAgreement, ceiling: Interval, p: float) -> Finding:
    two = annotators.two_decided
    bound, reason = "about", ""
    if math.isnan(annotators.difficulty_spread):
        bound, reason = "at most", "; with fewer if pairs differ in difficulty"
    return Finding.of(
        "label_noise",
        two,
        f"Two annotators who both prefer a story prefer the same one in {between(two)} of the "
        "pairs. If they err independently, a rater that always prefers what most people would "
        f"agrees with {bound} {percent(ceiling.mean)} of the labels{reason}.",
        "Show the agreement of one annotator beside every rater; collect more annotators per pair.",
        severity=2 * (1 - ceiling.mean),
        p_holm=p,
    )


def _leakage(pairs: pa.Table, notes: list[str]) -> tuple[dict[str, Any] | None, list[Finding]]:
    splits = by_split(pairs)
    if len(splits) < 2:
        notes.append("leakage: there is one split.")
        return None, []
    counts = leakage_report(splits).counts
    shared: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for row in counts["shared"]:
        shared[row["split_a"], row["split_b"]][row["kind"]] = row["shared"]
    findings = []
    for (a, b), by_kind in shared.items():
        items = counts["splits"][b] | {"near_duplicates": counts["splits"][b]["stories"]}
        shares = {kind: by_kind[kind] / max(items[kind], 1) for kind in by_kind if by_kind[kind]}
        if not shares:
            continue
        listed = ", ".join(f"{by_kind[kind]:,} {kind.replace('_', '-')}" for kind in shares)
        # Other stories by an author say less than the same prompt or story.
        hard = [share for kind, share in shares.items() if kind != "authors"]
        worst = max(hard, default=max(shares.values()) / 4)
        findings.append(
            Finding.of(
                "leakage" if hard else "shared_authors",
                max(shares.values()),
                f"The splits {a} and {b} share {listed}: up to "
                f"{percent(max(shares.values()))} of those of {b}.",
                f"Leave them out of {b} (check_leakage.py lists them), or split anew by prompt.",
                severity=min(worst, 1.0),
            )
        )
    return counts, findings


def _id_findings(pairs: pa.Table) -> list[Finding]:
    findings = []
    keys, ids = prompt_keys(pairs), pairs["prompt_id"].to_pylist()
    for groups, by, what in (
        (ids, keys, "{:,} prompts have several prompt_ids"),
        (keys, ids, "{:,} prompt_ids have several prompts"),
    ):
        several: dict[str, set[str]] = defaultdict(set)
        for key, value in zip(by, groups, strict=True):
            several[key].add(value)
        affected = sum(len(several[key]) > 1 for key in by)
        if affected:
            count = sum(len(values) > 1 for values in several.values())
            share = affected / pairs.num_rows
            sentence = f"{what.format(count)}, in {percent(share)} of the pairs."
            advice = (
                "Split and cluster by the prompt's text: by its id, copies fall into both splits."
            )
            findings.append(Finding.of("prompt_ids", share, sentence, advice))
    return findings


def _copy_findings(pairs: pa.Table) -> list[Finding]:
    """Copies of stories under several ids, and two stories each of which is preferred once."""
    ids_of: dict[str, set[str]] = defaultdict(set)
    labels: dict[tuple[str, ...], set[bool]] = defaultdict(set)
    columns = (pairs[name].to_pylist() for name in (*SIDES, *(f"{s}_story_id" for s in SIDES)))
    seen = []
    for *stories, chosen_id, rejected_id in zip(*columns, strict=True):
        chosen, rejected = (" ".join(story.lower().split()) for story in stories)
        if not chosen or not rejected:
            continue
        ids_of[chosen].add(chosen_id)
        ids_of[rejected].add(rejected_id)
        seen.append((min(chosen, rejected), max(chosen, rejected)))
        labels[seen[-1]].add(chosen < rejected)
    findings = []
    against = sum(len(labels[key]) > 1 for key in seen)
    if against:
        share = against / pairs.num_rows
        sentence = f"In {against:,} pairs ({percent(share)}) the same two texts are also preferred "
        advice = "Average the labels of equal pairs, or leave these pairs out."
        findings.append(
            Finding.of("contradictions", share, f"{sentence}the other way round.", advice)
        )
    copies = sum(len(ids) > 1 for ids in ids_of.values())
    if copies:
        share = copies / len(ids_of)
        sentence = f"{copies:,} stories ({percent(share)}) have several ids."
        advice = "Merge the copies (drop_duplicates of make_pairs.py), before splitting."
        findings.append(Finding.of("copies", share, sentence, advice))
    return findings
