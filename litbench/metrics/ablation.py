"""Ablations: one rater trained on several data variants, judged on the test pairs of them all.

An arm is a rater trained on so many pairs of a variant; its seeds are repeats of it, so a pair's
credit is the mean over seeds before any interval is taken. Test sets share pairs: each distinct
pair is judged once. Where variants label a pair differently, its credit in the one is one minus
that in the other.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.errors import DataError
from litbench.metrics.comparisons import Comparison, holm, paired_difference
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.metrics.leaderboard import csv_cell, plain
from litbench.records import prompt_keys
from litbench.text import clean_name

# The test set of random pairs labelled by true quality.
TRUTH = "truth"

_CSV_COLUMNS = (
    "rater", "kind", "variant", "pairs_used", "equal", "natural", "test", "agreement", "low",
    "high", "n", "prompts", "effective_prompts", "seeds", "seed_least", "seed_most",
    "chosen_longer", "chosen_shorter", "prefers_longer", "prefers_longer_low",
    "prefers_longer_high", "labels_prefer_longer",
)  # fmt: skip


@dataclass(frozen=True)
class AblationArm:
    """A rater as it stands in an ablation.

    Attributes:
        name: its name in the verdicts, unique.
        rater: the entry of the config.
        variant: what it was trained on; None for a rater that was ready.
        pairs_used: how many pairs of it; None likewise.
        equal: whether every variant has an arm with as many pairs.
        natural: whether these are all pairs of the variant.
    """

    name: str
    rater: str
    variant: str | None = None
    pairs_used: int | None = None
    equal: bool = False
    natural: bool = False


@dataclass(frozen=True)
class TestSet:
    """The test pairs of one variant, as places among all that were judged.

    Attributes:
        name: of the variant, or `TRUTH`.
        rows: places; shape (n,).
        flipped: whether the pair is labelled the other way there; bool, shape (n,).
    """

    # Not a class of tests, whatever its name begins with.
    __test__ = False

    name: str
    rows: np.ndarray
    flipped: np.ndarray


def join_test_sets(sets: Mapping[str, pa.Table]) -> tuple[pa.Table, list[TestSet]]:
    """Gather the distinct pairs of several test sets.

    Args:
        sets: by name; tables with at least `pair_id` and the ids of both stories, and the same
            columns.

    Returns:
        The pairs, each labelled as the first set with it has it, and every set.

    Raises:
        DataError: one pair_id stands for different stories.
    """
    together = pa.concat_tables(sets.values())
    ids = together["pair_id"].combine_chunks()
    distinct = pc.unique(ids)
    place = pc.index_in(ids, value_set=distinct).to_numpy()
    _, first = np.unique(place, return_index=True)
    pairs = together.take(pa.array(first))
    chosen, rejected = (
        together[f"{side}_story_id"].to_numpy(zero_copy_only=False)
        for side in ("chosen", "rejected")
    )
    flipped = chosen != chosen[first][place]
    as_first = np.where(flipped, rejected, chosen), np.where(flipped, chosen, rejected)
    other = (as_first[0] != chosen[first][place]) | (as_first[1] != rejected[first][place])
    if other.any():
        of_sets = np.repeat(list(sets), [table.num_rows for table in sets.values()])
        row = int(np.argmax(other))
        before = int(first[place[row]])
        raise DataError(
            f"pair_id {ids[row]} is stories {chosen[before]} and {rejected[before]} in the test "
            f"pairs of {of_sets[before]}, and {chosen[row]} and {rejected[row]} in those of "
            f"{of_sets[row]}: one file numbers its pairs by itself, so give it the ids of "
            "litbench.records.pair_id"
        )
    ends = np.cumsum([table.num_rows for table in sets.values()])[:-1]
    return pairs, [
        TestSet(name, rows, other)
        for name, rows, other in zip(
            sets, np.split(place, ends), np.split(flipped, ends), strict=True
        )
    ]


@dataclass(frozen=True)
class Cell:
    """An arm on a test set.

    Attributes:
        arm: name of the arm.
        test: name of the test set.
        agreement: of the mean over seeds; the interval is of the test prompts and holds the seeds
            as they are.
        seeds: agreement of each seed; empty for a rater that was ready.
        chosen_longer: agreement where the chosen story is the longer.
        chosen_shorter: agreement where it is the shorter.
        prefers_longer: length preference: how often the rater prefers the longer story, over
            pairs of different length; a tie is one half.
    """

    arm: str
    test: str
    agreement: Interval
    seeds: list[float]
    chosen_longer: Interval
    chosen_shorter: Interval
    prefers_longer: Interval


@dataclass(frozen=True)
class TestFacts:
    """What a test set is.

    Attributes:
        name: of the variant, or `TRUTH`.
        n: pairs.
        prompts: prompts.
        longer: how often its labels choose the longer story, over pairs of different length.
    """

    __test__ = False

    name: str
    n: int
    prompts: int
    longer: Interval


@dataclass(frozen=True)
class Contrast:
    """A variant against the reference: the same rater on as many pairs, or on all of each.

    Attributes:
        rater: entry of the config.
        variant: what it was trained on.
        test: the test set on which both are judged.
        pairs_used: pairs of the variant; the reference's are as many but at natural size.
        natural: whether both are trained on all of their pairs.
        comparison: paired on the same pairs; Holm-corrected over all contrasts of the study.
        seeds: the difference of each seed, whose pairs come from the same prompts in the same
            order in both.
    """

    rater: str
    variant: str
    test: str
    pairs_used: int
    natural: bool
    comparison: Comparison
    seeds: list[float]


@dataclass(frozen=True)
class AblationStudy:
    """The figures of an ablation.

    Attributes:
        reference: the variant that others are compared with.
        arms: all, in their order.
        kinds: kind of rater by arm.
        tests: the test sets, in their order.
        headline: names of the test sets on which variants are compared: the truth where it is
            known, and the reference's.
        cells: the matrix, one for each arm and test set.
        contrasts: at the largest equal number of pairs, and at natural size.
    """

    reference: str
    arms: list[AblationArm]
    kinds: dict[str, str]
    tests: list[TestFacts]
    headline: list[str]
    cells: list[Cell]
    contrasts: list[Contrast]

    def cell(self, arm: str, test: str) -> Cell:
        """The cell of an arm and a test set."""
        return next(cell for cell in self.cells if (cell.arm, cell.test) == (arm, test))

    def trained(self, rater: str) -> list[AblationArm]:
        """The arms of a rater that was trained here."""
        return [arm for arm in self.arms if arm.rater == rater and arm.variant is not None]

    @property
    def trained_raters(self) -> list[str]:
        """The raters that were trained here."""
        return list(dict.fromkeys(arm.rater for arm in self.arms if arm.variant is not None))

    @property
    def ready(self) -> list[AblationArm]:
        """The raters that were ready."""
        return [arm for arm in self.arms if arm.variant is None]

    @property
    def most_equal(self) -> int:
        """The largest number of pairs that every variant was trained on."""
        return most_equal(self.arms)

    def matrix(self, rater: str, *, natural: bool) -> list[tuple[AblationArm, list[Cell]]]:
        """A rater's rows of the matrix: at natural size, or at the largest equal one."""
        return [
            (arm, [self.cell(arm.name, test.name) for test in self.tests])
            for arm in self.trained(rater)
            if _is_of_size(arm, self.most_equal, natural=natural)
        ]


def most_equal(arms: Sequence[AblationArm]) -> int:
    """The largest number of pairs that every variant was trained on; 0 without any."""
    return max((arm.pairs_used or 0 for arm in arms if arm.equal), default=0)


def _is_of_size(arm: AblationArm, most: int, *, natural: bool) -> bool:
    """Whether an arm is its variant's at natural size, or at the largest equal one."""
    return arm.natural if natural else arm.equal and arm.pairs_used == most


def ablation_study(
    arms: Sequence[AblationArm],
    credits: Mapping[str, Sequence[np.ndarray]],
    kinds: Mapping[str, str],
    pairs: pa.Table,
    tests: Sequence[TestSet],
    reference: str,
) -> AblationStudy:
    """Compute the figures.

    Args:
        arms: of the study.
        credits: by arm, the credit of each seed (`litbench.metrics.agreement.pair_scores`) on the
            judged pairs, 0 to 1; shape (n,) each. One for a rater that was ready.
        kinds: kind of rater by arm.
        pairs: what was judged; n rows with `prompt`, `chosen_n_words` and `rejected_n_words`.
        tests: see `join_test_sets`.
        reference: a variant.
    """
    _, clusters = np.unique(np.array(prompt_keys(pairs)), return_inverse=True)
    words = pairs["chosen_n_words"].to_numpy() - pairs["rejected_n_words"].to_numpy()
    headline = [test.name for test in tests if test.name in (TRUTH, reference)]
    means = {arm.name: np.mean(credits[arm.name], axis=0) for arm in arms}
    facts, cells = [], []
    for test in tests:
        prompts = clusters[test.rows]
        difference = np.where(test.flipped, -words[test.rows], words[test.rows])
        differs, longer = difference != 0, difference > 0
        labels = jackknife_interval(longer[differs].astype(float), prompts[differs])
        facts.append(TestFacts(test.name, len(test.rows), len(np.unique(prompts)), labels))
        for arm in arms:
            credit = _turned(means[arm.name], test)
            prefers = np.where(longer, credit, 1 - credit)[differs]
            of_seeds = [float(_turned(one, test).mean()) for one in credits[arm.name]]
            shorter = differs & ~longer
            cells.append(
                Cell(
                    arm.name,
                    test.name,
                    jackknife_interval(credit, prompts),
                    [] if arm.variant is None else of_seeds,
                    jackknife_interval(credit[longer], prompts[longer]),
                    jackknife_interval(credit[shorter], prompts[shorter]),
                    jackknife_interval(prefers, prompts[differs]),
                )
            )
    against = [test for test in tests if test.name in headline]
    contrasts = _contrasts(arms, credits, clusters, against, reference)
    return AblationStudy(reference, list(arms), dict(kinds), facts, headline, cells, contrasts)


def _turned(credit: np.ndarray, test: TestSet) -> np.ndarray:
    """Credit by the labels of a test set."""
    of = credit[test.rows]
    turned: np.ndarray = np.where(test.flipped, 1 - of, of)
    return turned


def _contrasts(
    arms: Sequence[AblationArm],
    credits: Mapping[str, Sequence[np.ndarray]],
    clusters: np.ndarray,
    tests: Sequence[TestSet],
    reference: str,
) -> list[Contrast]:
    most = most_equal(arms)
    # A size, whether natural, and the reference's arm and the others' of one rater.
    matched: list[tuple[bool, AblationArm, AblationArm]] = []
    for rater in dict.fromkeys(arm.rater for arm in arms):
        own = [arm for arm in arms if arm.rater == rater and arm.variant is not None]
        for natural in (False, True):
            at = [arm for arm in own if _is_of_size(arm, most, natural=natural)]
            base = next((arm for arm in at if arm.variant == reference), None)
            known = {(arm, base) for _, arm, base in matched}
            # Two variants with as many pairs are compared once.
            matched += [
                (natural, arm, base)
                for arm in at
                if base is not None and arm is not base and (arm, base) not in known
            ]
    found = []
    for natural, arm, base in matched:
        for test in tests:
            ours, theirs = (
                np.stack([_turned(credit, test) for credit in credits[one.name]])
                for one in (arm, base)
            )
            difference, p_value = paired_difference(
                ours.mean(0), theirs.mean(0), clusters[test.rows]
            )
            of_seeds = [float(value) for value in (ours - theirs).mean(1)]
            found.append((natural, arm, base, test, difference, p_value, of_seeds))
    adjusted = holm([p_value for *_, p_value, _ in found])
    return [
        Contrast(
            arm.rater,
            str(arm.variant),
            test.name,
            arm.pairs_used or 0,
            natural,
            Comparison(arm.name, base.name, difference, p_value, p_holm),
            of_seeds,
        )
        for (natural, arm, base, test, difference, p_value, of_seeds), p_holm in zip(
            found, adjusted, strict=True
        )
    ]


def ablation_json(study: AblationStudy) -> dict[str, Any]:
    """The figures as JSON can hold them; what cannot be told is null."""
    return {
        "reference": study.reference,
        "headline": study.headline,
        "arms": [{**asdict(arm), "kind": study.kinds[arm.name]} for arm in study.arms],
        "tests": plain(study.tests),
        "cells": plain(study.cells),
        "contrasts": plain(study.contrasts),
    }


def write_ablation_csv(study: AblationStudy, path: Path) -> None:
    """Write the matrix as CSV, a row for each cell, by `csv_cell`."""
    longer = {test.name: test.longer.mean for test in study.tests}
    arms = {arm.name: arm for arm in study.arms}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_CSV_COLUMNS)
        for cell in study.cells:
            arm, known, prefers = arms[cell.arm], cell.agreement, cell.prefers_longer
            values = [
                arm.rater, study.kinds[arm.name], arm.variant, arm.pairs_used, arm.equal,
                arm.natural, cell.test, known.mean, known.low, known.high, known.n,
                known.clusters, known.effective_clusters, len(cell.seeds),
                min(cell.seeds, default=None), max(cell.seeds, default=None),
                cell.chosen_longer.mean, cell.chosen_shorter.mean, prefers.mean, prefers.low,
                prefers.high, longer[cell.test],
            ]  # fmt: skip
            writer.writerow([csv_cell(value) for value in values])


def ablation_text(study: AblationStudy) -> str:
    """The figures for a terminal."""
    lines = ["test pairs of each variant, and how often their labels choose the longer story:"]
    names = [*(test.name for test in study.tests), "trained on"]
    width = max(len(clean_name(name)) for name in names)
    lines += [
        f"  {clean_name(test.name):<{width}}  {test.n:>7,} pairs, {test.prompts:,} prompts  "
        f"{test.longer}"
        for test in study.tests
    ]
    for rater in study.trained_raters:
        for natural in (False, True):
            rows = study.matrix(rater, natural=natural)
            if not rows:
                continue
            size = "all pairs of each" if natural else f"{study.most_equal:,} pairs of each"
            about = "agreement, and how often it prefers the longer story"
            lines += ["", f"{clean_name(rater)}, {size}: {about}"]
            for test in study.headline:
                lines.append(f"  on {clean_name(test)}:")
                for arm, _ in rows:
                    cell = study.cell(arm.name, test)
                    lines.append(
                        f"    {clean_name(str(arm.variant)):<{width}}  {arm.pairs_used:>9,}  "
                        f"{cell.agreement}  longer {cell.prefers_longer}"
                    )
    if study.contrasts:
        lines += [
            "",
            f"against {clean_name(study.reference)}, p by Holm over {len(study.contrasts)}; least "
            "and most of single seeds:",
        ]
    for contrast in study.contrasts:
        found, seeds = contrast.comparison, contrast.seeds
        size = "all pairs" if contrast.natural else f"{contrast.pairs_used:,} pairs"
        noise = "" if found.is_clear else " (within noise)"
        spread = f"; {min(seeds):+.3f} to {max(seeds):+.3f}" if len(seeds) > 1 else ""
        lines.append(
            f"  {clean_name(contrast.rater)} on {clean_name(contrast.variant)}, {size}, test "
            f"{clean_name(contrast.test)}: {found.difference.mean:+.3f}{noise}{spread}"
        )
    return "\n".join(lines)
