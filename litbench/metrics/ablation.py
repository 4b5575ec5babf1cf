"""Ablations: raters trained on several data variants and amounts of pairs, judged on shared tests.

An arm is a rater trained on a given number of pairs of a variant. The credit of a pair is averaged
over the arm's seeds before any interval is computed. Test sets share pairs, and each distinct pair
is judged once. Where two test sets label a pair differently, its credit in one is one minus its
credit in the other.
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
from litbench.records import connected_prompts
from litbench.text import aligned, clean_name

Axis = Literal["variant", "pairs", "parameters"]


@dataclass(frozen=True)
class Arm:
    """A rater in an ablation, under a unique name.

    Attributes:
        variant: data variant it was trained on; None for a pretrained rater.
        equal: whether every variant has an arm with this number of pairs.
        natural: whether it was trained on all pairs of its variant.
        family: shared by raters that differ only in model size.
    """

    name: str
    rater: str
    variant: str | None = None
    pairs_used: int | None = None
    equal: bool = False
    natural: bool = False
    family: str | None = None
    parameters: int | None = None


@dataclass(frozen=True)
class TestSet:
    """A test set: indices into all judged pairs, and whether its label of each is the opposite.

    Both have shape (n,).
    """

    # Keeps pytest from collecting the class.
    __test__ = False

    name: str
    rows: np.ndarray
    flipped: np.ndarray

    def credit(self, credit: np.ndarray) -> np.ndarray:
        """Credit by the labels of this test set; shape (n,)."""
        own = credit[self.rows]
        relabelled: np.ndarray = np.where(self.flipped, 1 - own, own)
        return relabelled


def join_test_sets(sets: Mapping[str, pa.Table]) -> tuple[pa.Table, list[TestSet]]:
    """Merge test sets into their distinct pairs; the first set that has a pair gives its label."""
    merged = pa.concat_tables(sets.values())
    ids = merged["pair_id"].combine_chunks()
    index = pc.index_in(ids, value_set=pc.unique(ids)).to_numpy()
    _, first = np.unique(index, return_index=True)
    chosen, rejected = (
        merged[f"{side}_story_id"].to_numpy(zero_copy_only=False) for side in ("chosen", "rejected")
    )
    flipped = (chosen == rejected[first][index]) & (rejected == chosen[first][index])
    differs = ~flipped & ((chosen != chosen[first][index]) | (rejected != rejected[first][index]))
    if differs.any():
        raise DataError(
            f"pair_id {ids[int(np.argmax(differs))]} names different stories in the test pairs "
            f"of {', '.join(sets)}: give each file the ids of litbench.records.pair_id"
        )
    ends = np.cumsum([table.num_rows for table in sets.values()])[:-1]
    parts = zip(sets, np.split(index, ends), np.split(flipped, ends), strict=True)
    return merged.take(pa.array(first)), [TestSet(*part) for part in parts]


@dataclass(frozen=True)
class Cell:
    """The results of an arm on a test set, both given by name.

    Attributes:
        agreement: of the credit averaged over seeds. The interval covers the sampling of prompts
            and takes the trained models as fixed.
        seeds: agreement of each seed; empty for a pretrained rater.
        chosen_longer: agreement on pairs whose chosen story is longer.
        chosen_shorter: agreement on pairs whose chosen story is shorter.
        prefers_longer: how often the rater prefers the longer story, over pairs of different
            length; a tie counts one half.
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
    """A test set's pairs and prompts, and how often its labels choose the longer story."""

    __test__ = False

    name: str
    n: int
    prompts: int
    longer: Interval


@dataclass(frozen=True)
class Contrast:
    """A paired comparison of two arms on a test set.

    Attributes:
        axis: what differs: the variant (with equal numbers of pairs, or with all pairs of each),
            the number of pairs of the reference variant (the largest against the smallest), or the
            size of the model (the largest of a family against the smallest).
        comparison: Holm-corrected over all contrasts of variants, or over all other contrasts.
        seeds: difference for each seed; empty where the arms have different numbers of seeds.
    """

    axis: Axis
    test: str
    comparison: Comparison
    seeds: list[float]


@dataclass(frozen=True)
class AblationStudy:
    """The results of an ablation; variants are compared with `reference` on `headline` tests."""

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
        """Names of the raters that were trained in the ablation."""
        return list(dict.fromkeys(arm.rater for arm in self.arms if arm.variant is not None))

    @property
    def ready(self) -> list[Arm]:
        """The arms of pretrained raters."""
        return [arm for arm in self.arms if arm.variant is None]

    @property
    def most_equal(self) -> int:
        """The largest number of pairs that every variant was trained on."""
        return _most_equal(self.arms)

    def matrices(self) -> list[tuple[str, bool, list[Arm]]]:
        """Each trained rater's name, whether its arms are at natural size, and its arms."""
        matrices = []
        for rater in self.trained_raters:
            equal, natural = _at_both_sizes(self.arms, rater)
            matrices += [(rater, False, equal)] if equal else []
            matrices += [(rater, True, natural)] if natural and natural != equal else []
        return matrices


def _most_equal(arms: Sequence[Arm]) -> int:
    return max((arm.pairs_used or 0 for arm in arms if arm.equal), default=0)


def _at_both_sizes(arms: Sequence[Arm], rater: str) -> tuple[list[Arm], list[Arm]]:
    """A trained rater's arms at the largest equal size, and at natural size."""
    own = [arm for arm in arms if arm.rater == rater and arm.variant is not None]
    most = _most_equal(arms)
    equal = [arm for arm in own if arm.equal and arm.pairs_used == most]
    return equal, [arm for arm in own if arm.natural]


def by_family(arms: Sequence[Arm], reference: str) -> dict[str, list[Arm]]:
    """The arms that compare model sizes, by family, in the order of their number of parameters.

    Of the trained raters, only arms with the largest equal number of pairs of the reference variant
    are included, so that sizes are compared on the same number of pairs. Arms without a family or a
    known number of parameters are left out.
    """
    most = _most_equal(arms)
    families: dict[str, list[Arm]] = {}
    for arm in sorted(arms, key=lambda arm: arm.parameters or 0):
        at_size = arm.variant == reference and arm.equal and arm.pairs_used == most
        if arm.family and arm.parameters and (arm.variant is None or at_size):
            families.setdefault(arm.family, []).append(arm)
    return families


def ablation_study(
    arms: Sequence[Arm],
    credits: Mapping[str, Sequence[np.ndarray]],
    pairs: pa.Table,
    tests: Sequence[TestSet],
    reference: str,
    headline: Sequence[str],
) -> AblationStudy:
    """Compute the results of an ablation.

    Args:
        arms: the arms to compare.
        credits: by arm, the credit of each seed on the judged pairs, 0 to 1; shape (n,) each. A
            pretrained rater has one.
        pairs: the judged pairs; n rows.
        tests: test sets from `join_test_sets`.
        reference: the variant that others are compared with.
        headline: names of the test sets on which variants are compared.
    """
    _, clusters = np.unique(np.array(connected_prompts(pairs)), return_inverse=True)
    words = pairs["chosen_n_words"].to_numpy() - pairs["rejected_n_words"].to_numpy()
    facts, cells = [], []
    for test in tests:
        prompts = clusters[test.rows]
        difference = np.where(test.flipped, -words[test.rows], words[test.rows])
        differs, longer, shorter = difference != 0, difference > 0, difference < 0
        labels = jackknife_interval(longer[differs].astype(float), prompts[differs])
        facts.append(TestFacts(test.name, len(test.rows), len(np.unique(prompts)), labels))
        for arm in arms:
            seed_credits = [test.credit(credit) for credit in credits[arm.name]]
            credit = np.mean(seed_credits, axis=0)
            prefers = np.where(longer, credit, 1 - credit)[differs]
            cells.append(
                Cell(
                    arm.name,
                    test.name,
                    jackknife_interval(credit, prompts),
                    [] if arm.variant is None else [float(own.mean()) for own in seed_credits],
                    jackknife_interval(credit[longer], prompts[longer]),
                    jackknife_interval(credit[shorter], prompts[shorter]),
                    jackknife_interval(prefers, prompts[differs]),
                )
            )
    against = [test for test in tests if test.name in headline]
    variants, sizes = _matched(arms, reference)
    contrasts = [
        *_contrasts(variants, against, credits, clusters),
        *_contrasts(sizes, against[:1], credits, clusters),
    ]
    names = [test.name for test in against]
    return AblationStudy(reference, list(arms), facts, names, cells, contrasts)


_Match = tuple[Axis, Arm, Arm]


def _matched(arms: Sequence[Arm], reference: str) -> tuple[list[_Match], list[_Match]]:
    """Pairs of arms to compare: variants at equal size, then sizes of the data and of the model."""
    variants: list[_Match] = []
    lines: list[tuple[Axis, list[Arm]]] = []
    for rater in dict.fromkeys(arm.rater for arm in arms):
        for at in _at_both_sizes(arms, rater):
            bases = [arm for arm in at if arm.variant == reference]
            variants += [("variant", arm, base) for base in bases for arm in at if arm is not base]
        own = [arm for arm in arms if (arm.rater, arm.variant) == (rater, reference) and arm.equal]
        lines.append(("pairs", sorted(own, key=lambda arm: arm.pairs_used or 0)))
    lines += [("parameters", of) for of in by_family(arms, reference).values()]
    sizes = [(axis, line[-1], line[0]) for axis, line in lines if len(line) > 1]
    return list(dict.fromkeys(variants)), sizes


def _contrasts(
    matched: Sequence[_Match],
    tests: Sequence[TestSet],
    credits: Mapping[str, Sequence[np.ndarray]],
    clusters: np.ndarray,
) -> list[Contrast]:
    results = []
    for (axis, arm, base), test in itertools.product(matched, tests):
        own, other = (
            np.stack([test.credit(credit) for credit in credits[name]])
            for name in (arm.name, base.name)
        )
        paired = paired_difference(own.mean(0), other.mean(0), clusters[test.rows])
        seeds = (own - other).mean(1).tolist() if len(own) == len(other) else []
        results.append((axis, arm.name, base.name, test.name, *paired, seeds))
    adjusted = holm([p_value for *_, p_value, _ in results])
    return [
        Contrast(axis, test, Comparison(arm, base, difference, p_value, p_holm), seeds)
        for (axis, arm, base, test, difference, p_value, seeds), p_holm in zip(
            results, adjusted, strict=True
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
    """Format a number of parameters in the usual short form: 22.7M, 1.24B."""
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        # Rounding to three digits: 999,999,999 is 1B, not 1000M.
        if parameters >= size * 0.9995:
            return f"{parameters / size:.3g}{unit}"
    return f"{parameters:.0f}"


def ablation_text(study: AblationStudy) -> str:
    """The results as text for a terminal."""
    text = ""
    for test in (test for test in study.tests if test.name in study.headline):
        text += (
            f"{clean_name(test.name)}: {test.n:,} test pairs, {test.prompts:,} prompts; share of "
            f"labels that choose the longer story: {test.longer}\n"
        )
        rows = [["", "agreement", "single seeds", "prefers longer"]]
        for arm in study.arms:
            cell = study.cell(arm.name, test.name)
            seeds = f"{min(cell.seeds):.3f} to {max(cell.seeds):.3f}" if cell.seeds else ""
            rows.append(
                [clean_name(arm.name), str(cell.agreement), seeds, str(cell.prefers_longer)]
            )
        text += f"{aligned(rows)}\n"
    if study.contrasts:
        text += "differences (* significant after Holm's correction), and their range over seeds:\n"
    rows = []
    for contrast in study.contrasts:
        comparison, differences = contrast.comparison, contrast.seeds
        rows.append(
            [
                f"{clean_name(comparison.rater)} vs {clean_name(comparison.reference)}",
                f"on {clean_name(contrast.test)}",
                f"{comparison.difference.mean:+.3f}{'*' * comparison.is_clear}",
                f"{min(differences):+.3f} to {max(differences):+.3f}" if differences else "",
            ]
        )
    return text + aligned(rows)
