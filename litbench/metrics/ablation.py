"""Ablations: raters trained on several data variants and amounts of pairs, judged on shared tests.

An arm is a rater trained on so many pairs of a variant. Its seeds are repeats, so a pair's credit
is the mean over seeds before any interval is computed. Test sets share pairs, and each distinct
pair is judged once. Where variants label a pair differently, its credit in one is one minus that
in the other.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.errors import DataError
from litbench.metrics.comparisons import Comparison, holm, paired_difference
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.records import prompt_keys
from litbench.text import aligned, clean_name

Axis = Literal["variant", "pairs", "parameters"]

# The test set of random pairs labelled by true quality.
TRUTH = "truth"

_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k"))


@dataclass(frozen=True)
class Arm:
    """A rater as it stands in an ablation.

    Attributes:
        name: its name in the verdicts, unique.
        rater: the entry of the config.
        variant: what it was trained on; None for a rater that was ready.
        pairs_used: how many pairs of the variant; None for a rater that was ready.
        equal: whether every variant has an arm with as many pairs.
        natural: whether these are all pairs of the variant.
        family: raters that differ in size alone share one.
        parameters: weights of its model; None where unknown.
        kind: of the rater.
    """

    name: str
    rater: str
    variant: str | None = None
    pairs_used: int | None = None
    equal: bool = False
    natural: bool = False
    family: str | None = None
    parameters: int | None = None
    kind: str | None = None


@dataclass(frozen=True)
class TestSet:
    """A test set as indices into all judged pairs.

    Attributes:
        name: of the variant or the file, or `TRUTH`.
        rows: indices; shape (n,).
        flipped: whether the pair is labelled the other way there; bool, shape (n,).
    """

    # Not a class of tests, whatever its name begins with.
    __test__ = False

    name: str
    rows: np.ndarray
    flipped: np.ndarray

    def credit(self, credit: np.ndarray) -> np.ndarray:
        """Credit by the labels of this test set; shape (n,)."""
        own = credit[self.rows]
        turned: np.ndarray = np.where(self.flipped, 1 - own, own)
        return turned


def join_test_sets(sets: Mapping[str, pa.Table]) -> tuple[pa.Table, list[TestSet]]:
    """Gather the distinct pairs of several test sets.

    Args:
        sets: by name; tables with at least `pair_id` and the ids of both stories, and the same
            columns.

    Returns:
        The pairs, each labelled as in the first set that has it, and every set.

    Raises:
        DataError: one pair_id stands for different stories.
    """
    together = pa.concat_tables(sets.values())
    ids = together["pair_id"].combine_chunks()
    index = pc.index_in(ids, value_set=pc.unique(ids)).to_numpy()
    _, first = np.unique(index, return_index=True)
    chosen, rejected = (
        together[f"{side}_story_id"].to_numpy(zero_copy_only=False)
        for side in ("chosen", "rejected")
    )
    as_first = chosen[first][index], rejected[first][index]
    flipped = (chosen == as_first[1]) & (rejected == as_first[0])
    other = ~flipped & ((chosen != as_first[0]) | (rejected != as_first[1]))
    if other.any():
        of_sets = np.repeat(list(sets), [table.num_rows for table in sets.values()])
        row = int(np.argmax(other))
        raise DataError(
            f"pair_id {ids[row]} is stories {as_first[0][row]} and {as_first[1][row]} in the test "
            f"pairs of {of_sets[first[index[row]]]}, and {chosen[row]} and {rejected[row]} in "
            f"those of {of_sets[row]}: one file numbers its pairs by itself, so give it the ids of "
            "litbench.records.pair_id"
        )
    ends = np.cumsum([table.num_rows for table in sets.values()])[:-1]
    parts = zip(sets, np.split(index, ends), np.split(flipped, ends), strict=True)
    return together.take(pa.array(first)), [TestSet(*part) for part in parts]


@dataclass(frozen=True)
class Cell:
    """An arm on a test set.

    Attributes:
        arm: name of the arm.
        test: name of the test set.
        agreement: of the mean over seeds; the interval is over test prompts, with the trained
            models as they are.
        seeds: agreement of each seed; empty for a rater that was ready.
        chosen_longer: agreement where the chosen story is the longer.
        chosen_shorter: agreement where it is the shorter.
        prefers_longer: how often the rater prefers the longer story, over pairs of different
            length; a tie is one half.
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
        name: of the variant or the file, or `TRUTH`.
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
    """An arm against another one, paired on the same pairs.

    Attributes:
        axis: what differs: the variant (on as many pairs, or on all of each), the number of pairs
            of the reference variant (the most against the least), or the size of the model (the
            largest member of a family against the smallest).
        test: the test set on which both are judged.
        comparison: names both arms; Holm-corrected over all contrasts of variants, or over all
            others.
        seeds: the difference of each seed, where both arms have the same seeds.
    """

    axis: Axis
    test: str
    comparison: Comparison
    seeds: list[float]

    def row(self) -> list[str]:
        """The contrast as cells of text."""
        found = self.comparison
        star = "*" if found.is_clear else ""
        spread = f"{min(self.seeds):+.3f} to {max(self.seeds):+.3f}" if self.seeds else ""
        return [
            f"{clean_name(found.rater)} against {clean_name(found.reference)}",
            f"on {clean_name(self.test)}",
            f"{found.difference.mean:+.3f}{star}",
            spread,
        ]


@dataclass(frozen=True)
class AblationStudy:
    """The figures of an ablation.

    Attributes:
        reference: the variant that the others are compared with.
        arms: all, in their order.
        tests: the test sets, in their order.
        headline: names of the test sets on which variants are compared.
        cells: one for each arm and test set.
        contrasts: of variants on the headline tests, then of amounts and sizes on the first.
    """

    reference: str
    arms: list[Arm]
    tests: list[TestFacts]
    headline: list[str]
    cells: list[Cell]
    contrasts: list[Contrast]

    def cell(self, arm: str, test: str) -> Cell:
        """The cell of an arm and a test set."""
        return next(cell for cell in self.cells if (cell.arm, cell.test) == (arm, test))

    @property
    def trained_raters(self) -> list[str]:
        """The raters that were trained here."""
        return list(dict.fromkeys(arm.rater for arm in self.arms if arm.variant is not None))

    @property
    def ready(self) -> list[Arm]:
        """The raters that were ready."""
        return [arm for arm in self.arms if arm.variant is None]

    @property
    def most_equal(self) -> int:
        """The largest number of pairs that every variant was trained on."""
        return most_equal(self.arms)

    def matrices(self) -> list[tuple[str, bool, list[Arm]]]:
        """Each trained rater on every variant: its name, whether at natural size, and its arms.

        At the largest equal size, and at natural size where that differs.
        """
        found = []
        for rater in self.trained_raters:
            own = [arm for arm in self.arms if arm.rater == rater and arm.variant is not None]
            equal = of_size(own, self.most_equal, natural=False)
            natural = of_size(own, self.most_equal, natural=True)
            found += [(rater, False, equal)] if equal else []
            found += [(rater, True, natural)] if natural and natural != equal else []
        return found


def most_equal(arms: Sequence[Arm]) -> int:
    """The largest number of pairs that every variant was trained on; 0 without any."""
    return max((arm.pairs_used or 0 for arm in arms if arm.equal), default=0)


def of_size(arms: Sequence[Arm], most: int, *, natural: bool) -> list[Arm]:
    """The arms at natural size, or at the largest equal one, `most`."""
    if natural:
        return [arm for arm in arms if arm.natural]
    return [arm for arm in arms if arm.equal and arm.pairs_used == most]


def by_family(arms: Sequence[Arm], reference: str) -> dict[str, list[Arm]]:
    """The arms that compare model sizes, by family and number of parameters.

    Raters trained here are shown at the largest equal number of pairs of the reference, so that no
    size owes its place to more pairs; ready ones are shown as they are. Unknown sizes are left out.
    """
    most = most_equal(arms)
    found: dict[str, list[Arm]] = {}
    for arm in sorted(arms, key=lambda arm: arm.parameters or 0):
        at_size = arm.variant == reference and arm.equal and arm.pairs_used == most
        if arm.family and arm.parameters and (arm.variant is None or at_size):
            found.setdefault(arm.family, []).append(arm)
    return found


def ablation_study(
    arms: Sequence[Arm],
    credits: Mapping[str, Sequence[np.ndarray]],
    pairs: pa.Table,
    tests: Sequence[TestSet],
    reference: str,
    headline: Sequence[str],
) -> AblationStudy:
    """Compute the figures.

    Args:
        arms: of the study.
        credits: by arm, the credit of each seed (`litbench.metrics.agreement.pair_scores`) on the
            judged pairs, 0 to 1; shape (n,) each. One for a rater that was ready.
        pairs: what was judged; n rows with `prompt`, `chosen_n_words` and `rejected_n_words`.
        tests: see `join_test_sets`.
        reference: a variant.
        headline: names of the test sets on which variants are compared.
    """
    _, clusters = np.unique(np.array(prompt_keys(pairs)), return_inverse=True)
    words = pairs["chosen_n_words"].to_numpy() - pairs["rejected_n_words"].to_numpy()
    facts, cells = [], []
    for test in tests:
        prompts = clusters[test.rows]
        difference = np.where(test.flipped, -words[test.rows], words[test.rows])
        differs, longer, shorter = difference != 0, difference > 0, difference < 0
        labels = jackknife_interval(longer[differs].astype(float), prompts[differs])
        facts.append(TestFacts(test.name, len(test.rows), len(np.unique(prompts)), labels))
        for arm in arms:
            of_seeds = np.stack([test.credit(one) for one in credits[arm.name]])
            credit = test.credit(np.mean(credits[arm.name], axis=0))
            prefers = np.where(longer, credit, 1 - credit)[differs]
            cells.append(
                Cell(
                    arm.name,
                    test.name,
                    jackknife_interval(credit, prompts),
                    [] if arm.variant is None else of_seeds.mean(1).tolist(),
                    jackknife_interval(credit[longer], prompts[longer]),
                    jackknife_interval(credit[shorter], prompts[shorter]),
                    jackknife_interval(prefers, prompts[differs]),
                )
            )
    against = [test for test in tests if test.name in headline]
    contrasts = [
        *_contrasts(_variants(arms, reference), against, credits, clusters),
        *_contrasts(_sizes(arms, reference), against[:1], credits, clusters),
    ]
    names = [test.name for test in against]
    return AblationStudy(reference, list(arms), facts, names, cells, contrasts)


def _variants(arms: Sequence[Arm], reference: str) -> list[tuple[Axis, Arm, Arm]]:
    """Each arm with the reference's arm of the same rater and size; every two once."""
    most = most_equal(arms)
    found: list[tuple[Axis, Arm, Arm]] = []
    for rater in dict.fromkeys(arm.rater for arm in arms):
        own = [arm for arm in arms if arm.rater == rater and arm.variant is not None]
        for natural in (False, True):
            at = of_size(own, most, natural=natural)
            bases = [arm for arm in at if arm.variant == reference]
            found += [("variant", arm, base) for base in bases for arm in at if arm is not base]
    return list(dict.fromkeys(found))


def _sizes(arms: Sequence[Arm], reference: str) -> list[tuple[Axis, Arm, Arm]]:
    """The arm with the most and that with the least pairs of each rater, or weights of a family."""
    lines: list[tuple[Axis, list[Arm]]] = []
    for rater in dict.fromkeys(arm.rater for arm in arms):
        own = [arm for arm in arms if (arm.rater, arm.variant) == (rater, reference) and arm.equal]
        lines.append(("pairs", sorted(own, key=lambda arm: arm.pairs_used or 0)))
    lines += [("parameters", of) for of in by_family(arms, reference).values()]
    return [(axis, line[-1], line[0]) for axis, line in lines if len(line) > 1]


def _contrasts(
    matched: Sequence[tuple[Axis, Arm, Arm]],
    tests: Sequence[TestSet],
    credits: Mapping[str, Sequence[np.ndarray]],
    clusters: np.ndarray,
) -> list[Contrast]:
    found = []
    for (axis, arm, base), test in itertools.product(matched, tests):
        ours, theirs = (
            np.stack([test.credit(credit) for credit in credits[one.name]]) for one in (arm, base)
        )
        paired = paired_difference(ours.mean(0), theirs.mean(0), clusters[test.rows])
        seeds = (ours - theirs).mean(1).tolist() if len(ours) == len(theirs) else []
        found.append((axis, arm.name, base.name, test.name, *paired, seeds))
    adjusted = holm([p_value for *_, p_value, _ in found])
    return [
        Contrast(axis, test, Comparison(arm, base, difference, p_value, p_holm), seeds)
        for (axis, arm, base, test, difference, p_value, seeds), p_holm in zip(
            found, adjusted, strict=True
        )
    ]


def ablation_rows(study: AblationStudy) -> list[dict[str, Any]]:
    """The cells as rows of a table."""
    longer = {test.name: test.longer.mean for test in study.tests}
    arms = {arm.name: arm for arm in study.arms}
    return [
        {
            **vars(arms[cell.arm]),
            "test": cell.test,
            "agreement": cell.agreement,
            "n": cell.agreement.n,
            "prompts": cell.agreement.clusters,
            "effective_prompts": cell.agreement.effective_clusters,
            "seeds": len(cell.seeds),
            "seed_least": min(cell.seeds, default=None),
            "seed_most": max(cell.seeds, default=None),
            "chosen_longer": cell.chosen_longer.mean,
            "chosen_shorter": cell.chosen_shorter.mean,
            "prefers_longer": cell.prefers_longer,
            "labels_prefer_longer": longer[cell.test],
        }
        for cell in study.cells
    ]


def write_size(parameters: float) -> str:
    """A number of parameters in the usual short form: 22.7M, 1.24B."""
    for size, unit in _UNITS:
        # Half a unit of the last digit shown: 999,999,999 is 1B and not 1000M.
        if parameters >= size * 0.9995:
            return f"{parameters / size:.3g}{unit}"
    return f"{parameters:.0f}"


def ablation_text(study: AblationStudy) -> str:
    """The figures for a terminal."""
    text = "test pairs, and how often their labels choose the longer story:\n" + aligned(
        [
            [
                clean_name(test.name),
                f"{test.n:,} pairs",
                f"{test.prompts:,} prompts",
                str(test.longer),
            ]
            for test in study.tests
        ]
    )
    test = study.headline[0]
    for rater in study.trained_raters:
        cells = [
            (arm, study.cell(arm.name, test))
            for arm in study.arms
            if (arm.rater, arm.variant) == (rater, study.reference)
        ]
        text += f"\n{clean_name(rater)} on {clean_name(study.reference)}, by training pairs:\n"
        text += aligned(
            [
                [
                    f"{arm.pairs_used:,}", str(cell.agreement),
                    f"seeds {min(cell.seeds):.3f} to {max(cell.seeds):.3f}",
                ]
                for arm, cell in cells
            ]
        )  # fmt: skip
    for rater, is_natural, arms in study.matrices():
        size = "all pairs of each" if is_natural else f"{study.most_equal:,} pairs of each"
        text += f"\n{clean_name(rater)}, {size}: agreement, prefers the longer story\n"
        rows = [["trained on", "pairs", *(f"on {clean_name(name)}" for name in study.headline)]]
        for arm in arms:
            own = [study.cell(arm.name, name) for name in study.headline]
            told = [f"{cell.agreement}, longer {cell.prefers_longer}" for cell in own]
            rows.append([clean_name(str(arm.variant)), f"{arm.pairs_used:,}", *told])
        text += aligned(rows)
    if study.ready:
        text += f"\nnot trained here, on {clean_name(test)}:\n" + aligned(
            [
                [clean_name(arm.name), str(study.cell(arm.name, test).agreement)]
                for arm in study.ready
            ]
        )
    if study.contrasts:
        text += "\ndifferences, significant (*) after Holm; least and most of single seeds:\n"
        text += aligned([contrast.row() for contrast in study.contrasts])
    return text
