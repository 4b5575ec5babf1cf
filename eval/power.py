"""Power: how many pairs and prompts it takes to tell raters apart, planned or from an evaluation.

    python eval/power.py --config configs/eval/sample_power.yaml

Two uses, together or alone. `cases` are assumed numbers: the agreement of two raters and how often
they disagree, or of one rater against chance, and the pairs and prompts of an evaluation. Each
case is computed for every number of prompts, every disagreement and every correlation within
prompts that it names: these are seldom published, and most of the answer hangs on them.
`evaluation` is a folder of eval/benchmark.py or eval/crossvalidate.py: how often raters disagree
with the reference there and how alike the pairs of a prompt are is measured, and with that, what
could have been found, and how many prompts or pairs it would take if the difference that was
found were the true one.

Writes `power.json` (what is in the text, and the curves of the plots), `power.csv` (the plans),
`power.txt`, a plot `power_NAME.svg` (and `.png`) of each case and of each difference that was seen,
numbered, and `manifest.json` into `out`. The formulas and what they leave out: docs/power.md.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from litbench.artifact import Artifact, write_json
from litbench.config import build, nearest, run_program
from litbench.errors import ConfigError
from litbench.evaluation import Judged
from litbench.metrics.agreement import PairFacts, pair_scores
from litbench.metrics.leaderboard import plain
from litbench.metrics.power import (
    Design,
    Difference,
    Effect,
    Lead,
    Plan,
    Seen,
    corrected_alpha,
    plan,
    plans_text,
    prompts_needed,
    seen_differences,
    seen_leads,
    seen_text,
    write_power_csv,
)
from litbench.report.figures import Drawing
from litbench.report.power_figure import pairs_needed


@dataclass
class Config:
    """What to compute.

    Attributes:
        out: folder to write.
        cases: name -> assumed numbers, see Case.
        evaluation: folder of an evaluation.
        raters: names of its raters; all when empty.
        reference: the rater that they are compared with; the evaluation's own when null.
        power: share of experiments in which the effect is to be found.
        alpha: two-sided level of all comparisons together.
        comparisons: comparisons made together, for Holm's worst case, alpha / comparisons; null
            for as many as the evaluation has, and one in a case. One rater against chance is
            never corrected.
        pairs_per_prompt: a line each in the plots.
        points: differences in the plots, in points of agreement.
        simulations: simulated evaluations for each row of a case, as a check; none when 0.
        seed: seeds them.
    """

    out: Path
    cases: dict[str, Any] = field(default_factory=dict)
    evaluation: Path | None = None
    raters: list[str] = field(default_factory=list)
    reference: str | None = None
    power: float = 0.8
    alpha: float = 0.05
    comparisons: int | None = None
    pairs_per_prompt: list[float] = field(default_factory=lambda: [1, 3, 10, 30])
    points: list[float] = field(default_factory=lambda: [1, 2, 3, 5, 7, 10, 15, 20])
    simulations: int = 0
    seed: int = 0


@dataclass
class Case:
    """Assumed numbers.

    Attributes:
        agreement: of the rater.
        pairs: of the evaluation.
        prompts: numbers of prompts that they may lie in; a row for each.
        reference: agreement of the other rater; null for one rater against `against`.
        against: the number that one rater's interval is to leave out.
        disagreement: shares of pairs in which the two name different stories; or
        correlation: correlations of whether the two are right; 0: they err independently.
        intra_prompt: correlations, of two pairs of one prompt, of the difference between the two
            raters, or of whether the one is right.
        evenness: effective prompts for each prompt; 1 for the same number of pairs in each.
    """

    agreement: float
    pairs: int
    prompts: list[int]
    reference: float | None = None
    against: float = 0.5
    disagreement: list[float] = field(default_factory=list)
    correlation: list[float] = field(default_factory=list)
    intra_prompt: list[float] = field(default_factory=lambda: [0.0])
    evenness: float = 1.0

    def __post_init__(self) -> None:
        if not self.prompts or not self.intra_prompt:
            raise ConfigError("prompts and intra_prompt: give one number or more for each")
        if min(self.prompts) < 1:
            raise ConfigError(f"prompts is {self.prompts}: give numbers of 2 or more")
        if self.reference is None and (self.disagreement or self.correlation):
            raise ConfigError("disagreement and correlation are of two raters: give reference too")
        if self.reference is not None and bool(self.disagreement) == bool(self.correlation):
            raise ConfigError("give disagreement or correlation of the two raters, one of them")

    def effects(self) -> list[Effect]:
        """Every effect that the numbers make."""
        if self.reference is None:
            return [
                Lead(agreement=self.agreement, against=self.against, intra_prompt=within)
                for within in self.intra_prompt
            ]
        shares = [{"disagreement": value} for value in self.disagreement]
        shares += [{"correlation": value} for value in self.correlation]
        return [
            Difference.of_raters(self.agreement, self.reference, intra_prompt=within, **share)
            for share in shares
            for within in self.intra_prompt
        ]

    def designs(self) -> list[Design]:
        """Every design."""
        return [
            Design(prompts=count, pairs_per_prompt=self.pairs / count, evenness=self.evenness)
            for count in self.prompts
        ]


@dataclass(frozen=True)
class Curves:
    """What a plot shows.

    Attributes:
        name: of its file.
        case: of what.
        effect: what is assumed beside the size of the effect.
        pairs: at hand.
        lines: pairs a prompt -> (difference, pairs needed).
    """

    name: str
    case: str
    effect: Effect
    pairs: int
    lines: dict[str, list[tuple[float, int]]]


def comparisons(config: Config, made: int) -> int:
    """Comparisons made together: as configured, or those that are made."""
    return made if config.comparisons is None else config.comparisons


def check(config: Config) -> None:
    """Refuse numbers that nothing can be computed with.

    Raises:
        ConfigError: a level, a number of comparisons, of simulations or of points is out of range.
    """
    corrected_alpha(config.alpha, comparisons(config, 1))
    if config.simulations < 0:
        raise ConfigError(f"simulations is {config.simulations}: give 0 for none, or more")
    if not config.points or min(config.points) <= 0:
        raise ConfigError(f"points is {config.points}: give differences above 0")
    if not config.pairs_per_prompt or min(config.pairs_per_prompt) < 1:
        raise ConfigError(f"pairs_per_prompt is {config.pairs_per_prompt}: give 1 or more")


def draw_curves(
    config: Config, name: str, case: str, effect: Effect, pairs: int, alpha: float
) -> Curves | None:
    """Pairs needed at every difference, in prompts that are even; None where none would do."""
    none, largest = effect.span
    lines = {}
    for each in config.pairs_per_prompt:
        found = []
        for points in sorted(config.points):
            value = none + points / 100
            # Raters cannot differ by more than they disagree.
            if value >= largest:
                continue
            design = Design(prompts=2, pairs_per_prompt=each)
            needed = prompts_needed(effect.at(value), design, config.power, alpha)
            if needed is not None:
                found.append((points, replace(design, prompts=needed).pairs))
        if found:
            lines[f"{each:g} a prompt"] = found
    return Curves(name, case, effect, pairs, lines) if lines else None


def planned(config: Config) -> tuple[list[Plan], list[Curves]]:
    """Compute the cases."""
    plans: list[Plan] = []
    curves = []
    for name, entry in config.cases.items():
        if not re.fullmatch(r"[\w-]+", name):
            raise ConfigError(
                f"cases: '{name}' becomes the name of a plot: write letters, digits, - and _"
            )
        if not isinstance(entry, dict):
            raise ConfigError(f"cases: {name} is {entry!r}: give it keys, such as agreement")
        case = build(Case, entry, f"cases: {name}")
        level = (
            config.alpha
            if case.reference is None
            else corrected_alpha(config.alpha, comparisons(config, 1))
        )
        effects, designs = case.effects(), case.designs()
        plans += [
            plan(
                name, effect, design, config.power, level, agreement=case.agreement,
                simulations=config.simulations, seed=config.seed,
            )
            for effect in effects
            for design in designs
        ]  # fmt: skip
        # One plot: with the last of each list, whose numbers are to rise.
        curves.append(draw_curves(config, name, name, effects[-1], case.pairs, level))
    return plans, [one for one in curves if one is not None]


def seen(config: Config, judged: Judged) -> tuple[list[Seen], list[Seen], list[Curves]]:
    """Measure the raters of an evaluation, two by two with the reference and one by one."""
    pairs = judged.read_pairs().headline
    credits = {score.rater: score.credit for score in pair_scores(judged.read_verdicts(), pairs)}
    reference = config.reference or judged.reference
    for key, names in (("raters", config.raters), ("reference", [reference])):
        for name in names:
            if name not in credits:
                raise ConfigError(f"{key}: '{name}' has no verdicts: {nearest(name, credits)}")
    wanted = config.raters or list(credits)
    chosen = {name: credits[name] for name in dict.fromkeys([*wanted, reference])}
    clusters = PairFacts.of(pairs).clusters
    differences = seen_differences(
        chosen, reference, clusters, config.power, config.alpha, config.comparisons
    )
    leads = seen_leads(chosen, clusters, config.power, config.alpha)
    level = corrected_alpha(config.alpha, comparisons(config, len(differences)))
    curves = []
    for number, row in enumerate(differences, 1):
        if row.plan is None or row.plan.disagreement is None:
            continue
        effect = Difference(
            difference=row.found.mean,
            disagreement=row.plan.disagreement,
            intra_prompt=row.plan.intra_prompt,
        )
        curves.append(
            draw_curves(config, f"seen_{number}", row.plan.case, effect, row.found.n, level)
        )
    return differences, leads, [one for one in curves if one is not None]


def pictures(curves: list[Curves]) -> Iterator[tuple[str, Drawing]]:
    """Names of plots, and the plots."""
    for one in curves:
        what = "difference"
        if isinstance(one.effect, Lead):
            what = f"agreement above {one.effect.against:g}"
        at = 100 * abs(one.effect.value - one.effect.span[0])
        label = f"{what}, percentage points"
        yield f"power_{one.name}", pairs_needed(list(one.lines.items()), one.pairs, label, at)


def main(config: Config) -> None:
    """Compute, print, write."""
    if not config.cases and config.evaluation is None:
        raise ConfigError("cases and evaluation are empty: give one of them")
    judged = None if config.evaluation is None else Judged.find(config.evaluation)
    inputs = {} if judged is None else judged.inputs()
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    if artifact.is_current():
        print((config.out / "power.txt").read_text(encoding="utf-8"), end="")
        return
    check(config)
    plans, curves = planned(config)
    differences: list[Seen] = []
    leads: list[Seen] = []
    if judged is not None:
        differences, leads, further = seen(config, judged)
        curves += further
    texts = [plans_text(plans, config.power)] if plans else []
    texts += [seen_text(rows, config.power) for rows in (differences, leads) if rows]
    text = "\n\n".join(texts) + "\n"
    content = {
        "plans": plans,
        "differences": differences,
        "leads": leads,
        "curves": [asdict(one) for one in curves],
    }
    artifact.write("power.json", lambda path: write_json(plain(content), path))
    rows = plans + [row.plan for row in (*differences, *leads) if row.plan is not None]
    artifact.write("power.csv", lambda path: write_power_csv(rows, path))
    artifact.write("power.txt", lambda path: path.write_text(text, encoding="utf-8"))
    for name, picture in pictures(curves):
        for file, write in picture.files(name).items():
            artifact.write(file, write)
    artifact.counts = {"plans": len(plans), "differences": len(differences), "leads": len(leads)}
    artifact.finish()
    print(text, end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
