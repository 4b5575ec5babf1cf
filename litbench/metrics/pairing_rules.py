"""How right pairing rules are, where the truth about each story is known.

A simulated story has a quality. A rule is right about a pair whose chosen story has the higher
one. What counts more is what a rater learns from the rule's pairs: `fit_preference` trains a
logistic regression on what a rater could see of the stories (`observe`), and `rate_random` asks it
about pairs that no votes chose. One simulated world gives one number of each kind, so the unit of
every interval here is the world: its seed is the cluster.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from litbench.config import build, nearest
from litbench.errors import ConfigError, DataError
from litbench.metrics.comparisons import paired_difference
from litbench.metrics.intervals import Interval, jackknife_interval, mean_interval
from litbench.metrics.leaderboard import csv_cell, plain

Amount = Literal["equal", "natural"]
AMOUNTS: dict[Amount, str] = {
    "equal": "on as many pairs of each variant as the smallest has",
    "natural": "on all pairs that a variant has",
}

# What every row of a study has, by column.
MEASURES = {
    "agreement": "agreement with true quality on random pairs",
    "prefers_longer": "how often the rater prefers the longer of two random stories",
    "agreement_longer": "agreement on random pairs whose better story is the longer",
    "agreement_shorter": "agreement on random pairs whose better story is the shorter",
    "right": "pairs of the rule whose chosen story is the better",
    "chosen_longer": "pairs of the rule whose chosen story is the longer",
    "better_longer": "pairs of the rule whose better story is the longer",
    "kept": "pairs of the rule, of all pairs of two stories of one prompt",
    "pairs": "pairs to train on",
}
# What depends on the amount; the rest is told of all pairs of a rule.
LEARNED = ("agreement", "prefers_longer", "agreement_longer", "agreement_shorter")
TRUTH = "truth"
_MOST_STEPS = 100


@dataclass(frozen=True)
class Learner:
    """What a rater sees of a story, and how it learns.

    A rater sees length as it is, quality through several signs of it that are each noisy, and more
    that has nothing to do with either. The more it sees, the more pairs it needs.

    Attributes:
        length: the scale on which it sees length.
        signs: features that show quality; 0 for a rater that sees nothing of it.
        sign_noise: standard deviation of the noise of each; quality has 1.
        distractors: features that show nothing of quality or length.
        author_share: share of a distractor's variance that all stories of an author have in
            common, so that a rater can take a liking to an author.
        penalty: of the squared weights, in units of pairs.
    """

    length: Literal["log", "words"] = "log"
    signs: int = 6
    sign_noise: float = 2.0
    distractors: int = 24
    author_share: float = 0.3
    penalty: float = 1.0

    def __post_init__(self) -> None:
        """Check the values."""
        for key in ("signs", "distractors", "sign_noise", "penalty"):
            # A value that is not a number is not at least 0.
            if not 0 <= getattr(self, key) < math.inf:
                raise ConfigError(
                    f"learner.{key} is {getattr(self, key)}: give a number, at least 0"
                )
        if not 0 <= self.author_share <= 1:
            raise ConfigError(
                f"learner.author_share is {self.author_share}: give a share from 0 to 1"
            )
        if self.penalty == 0:
            raise ConfigError("learner.penalty is 0: give more, or few pairs have no answer")


def observe(
    quality: np.ndarray, n_words: np.ndarray, author: np.ndarray, learner: Learner, seed: int
) -> np.ndarray:
    """What a rater sees of each story.

    Args:
        quality: standard normal; shape (n,).
        n_words: shape (n,).
        author: number of the author, from 0; shape (n,).
        learner: see there.
        seed: seeds the noise.

    Returns:
        Shape (n, 1 + signs + distractors): standardised length, signs, distractors.
    """
    random = np.random.default_rng([seed, 7])
    seen = np.log1p(n_words) if learner.length == "log" else n_words.astype(float)
    length = (seen - seen.mean()) / max(float(seen.std()), 1e-12)
    noise = random.normal(0, learner.sign_noise, (len(quality), learner.signs))
    names = random.normal(size=(int(author.max()) + 1, learner.distractors))
    own = random.normal(size=(len(quality), learner.distractors))
    common = learner.author_share
    rest = math.sqrt(common) * names[author] + math.sqrt(1 - common) * own
    return np.column_stack([length, quality[:, None] + noise, rest])


def within_prompts(prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of two stories of one prompt, whatever their votes.

    Args:
        prompt: of each story; shape (n,).

    Returns:
        Places of the two stories, the earlier place first; shape (m,) each.
    """
    order = np.argsort(prompt, kind="stable")
    _, starts, sizes = np.unique(prompt[order], return_index=True, return_counts=True)
    left, right = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for size in np.unique(sizes):
        first, second = np.triu_indices(size, 1)
        of = starts[sizes == size][:, None]
        left.append((of + first).ravel())
        right.append((of + second).ravel())
    return order[np.concatenate(left)], order[np.concatenate(right)]


def share_above(difference: np.ndarray) -> float:
    """Share of differences above zero; a difference of zero is one half, none at all is NaN."""
    if not len(difference):
        return math.nan
    return float(np.mean((difference > 0) + 0.5 * (difference == 0)))


def pair_figures(
    quality: np.ndarray, n_words: np.ndarray, chosen: np.ndarray, rejected: np.ndarray
) -> dict[str, float]:
    """How right a rule is about its own pairs, and which way it leans.

    Args:
        quality: of all stories; shape (n,).
        n_words: of all stories; shape (n,).
        chosen: places of the chosen stories; shape (m,).
        rejected: places of the rejected ones; shape (m,).

    Returns:
        `right`, `chosen_longer`, `better_longer`; see `MEASURES`.
    """
    better = quality[chosen] - quality[rejected]
    longer = n_words[chosen] - n_words[rejected]
    return {
        "right": share_above(better),
        "chosen_longer": share_above(longer),
        "better_longer": share_above(np.sign(better) * longer),
    }


def true_pairs(
    quality: np.ndarray, possible: np.ndarray, most: int, random: np.random.Generator
) -> np.ndarray:
    """Random pairs labelled by quality itself: what `TRUTH` learns from.

    Args:
        quality: of all stories; shape (n,).
        possible: places of the two stories of each pair; shape (m, 2).
        most: how many to draw.
        random: draws them.

    Returns:
        Places of the better story and the other; shape (most or m, 2).
    """
    is_better = quality[possible[:, 0]] > quality[possible[:, 1]]
    ordered: np.ndarray = np.where(is_better[:, None], possible, possible[:, ::-1])
    return ordered[random.permutation(len(ordered))[:most]]


def fit_preference(
    differences: np.ndarray, penalty: float, pair_weights: np.ndarray | None = None
) -> np.ndarray:
    """Weights of a logistic regression without intercept.

    Minimises sum(u log(1 + exp(-differences @ w))) + penalty / 2 * |w|^2, which has one minimum.

    Args:
        differences: features of the chosen story minus those of the rejected; shape (m, k).
        penalty: above 0.
        pair_weights: u, what each pair counts; shape (m,); one for each when None.

    Returns:
        Shape (k,).
    """
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    counts = np.ones(len(differences)) if pair_weights is None else pair_weights
    # Each pair from both sides and with half its weight: the same loss, and always two classes.
    model = LogisticRegression(
        C=1 / penalty, fit_intercept=False, solver="newton-cholesky", tol=1e-8, max_iter=_MOST_STEPS
    )
    model.fit(
        np.concatenate([differences, -differences]),
        np.repeat([1, 0], len(differences)),
        sample_weight=np.tile(counts / 2, 2),
    )
    weights: np.ndarray = model.coef_[0]
    return weights


def rate_random(
    weights: np.ndarray, differences: np.ndarray, better: np.ndarray, longer: np.ndarray
) -> dict[str, float]:
    """What a trained rater says of pairs that no votes chose.

    Args:
        weights: from `fit_preference`; shape (k,).
        differences: features of the first story minus those of the second; shape (m, k).
        better: quality of the first minus that of the second; shape (m,).
        longer: words of the first minus those of the second; shape (m,).

    Returns:
        `LEARNED` by name; see `MEASURES`.
    """
    rewards = differences @ weights
    agrees = np.sign(rewards) * np.sign(better)
    leans = np.sign(better) * np.sign(longer)
    return {
        "agreement": share_above(agrees),
        # Of two stories of one length none is the longer.
        "prefers_longer": share_above((np.sign(rewards) * np.sign(longer))[longer != 0]),
        "agreement_longer": share_above(agrees[leans > 0]),
        "agreement_shorter": share_above(agrees[leans < 0]),
    }


@dataclass(frozen=True)
class Place:
    """Where in a study a world stands.

    Attributes:
        group: the sweep, or the world where it stands alone.
        value: of the knob that the sweep turns; None for a world that stands alone.
    """

    group: str
    value: float | None = None

    def __str__(self) -> str:
        return f"{self.group} {self.at}".strip()

    @property
    def at(self) -> str:
        """The value as people write it; empty for a world that stands alone."""
        if self.value is None:
            return ""
        return "∞" if self.value == math.inf else f"{self.value:g}"


@dataclass(frozen=True)
class Row:
    """What one variant did in one world.

    Attributes:
        place: which world.
        seed: of the world.
        variant: pairing rules by name; `TRUTH` for random pairs labelled by quality itself.
        amount: which pairs the rater was trained on.
        figures: by `MEASURES`, and what else a study measures; the same in all of its rows.
        random_longer: share of the world's random pairs whose better story is the longer.
    """

    place: Place
    seed: int
    variant: str
    amount: Amount
    figures: Mapping[str, float]
    random_longer: float

    def plain(self) -> dict[str, Any]:
        """The row of a table."""
        keys = {"group": self.place.group, "value": self.place.value, "seed": self.seed}
        keys |= {"variant": self.variant, "amount": self.amount}
        return {**keys, **self.figures, "random_longer": self.random_longer}


@dataclass(frozen=True)
class Prediction:
    """A claim about a world, written before it is run.

    Attributes:
        variant: whose figure.
        against: variant that it is compared with.
        measure: of `MEASURES`, or another that the study has.
        direction: how the variant's figure stands to the other.
        amount: of `AMOUNTS`.
        at_least: by how much; never below 0.
        at_most: how far apart the two may be where they are claimed to be equal.
        because: the reasoning.
    """

    variant: str
    against: str
    measure: str
    direction: Literal["higher", "lower", "equal"]
    amount: Amount = "equal"
    at_least: float = 0.0
    at_most: float | None = None
    because: str = ""

    def check(self, variants: Sequence[str], where: str, further: Sequence[str] = ()) -> None:
        """Check the names.

        Args:
            variants: of the study.
            where: named in messages.
            further: what the study measures beside `MEASURES`.

        Raises:
            ConfigError: a variant or a measure is unknown, or the bound does not fit.
        """
        known = [*variants, TRUTH]
        for name in (self.variant, self.against):
            if name not in known:
                raise ConfigError(f"{where}: unknown variant '{name}': {nearest(name, known)}")
        measures = [*MEASURES, *further]
        if self.measure not in measures:
            raise ConfigError(
                f"{where}: unknown measure '{self.measure}': {nearest(self.measure, measures)}"
            )
        if self.at_least < 0:
            raise ConfigError(f"{where}: at_least is {self.at_least}: give 0 or more")
        if (self.direction == "equal") != (self.at_most is not None):
            raise ConfigError(
                f"{where}: at_most says how far 'equal' reaches: give both, or neither"
            )

    def __str__(self) -> str:
        bound = f" by {self.at_least:g} or more" if self.at_least else ""
        if self.direction == "equal":
            bound = f" to {self.against} within {self.at_most:g}"
            return f"{self.measure} of {self.variant} ({self.amount}) is equal{bound}"
        return (
            f"{self.measure} of {self.variant} ({self.amount}) is {self.direction} than that of "
            f"{self.against}{bound}"
        )


@dataclass(frozen=True)
class LoneWorld:
    """A world that stands alone, as a config describes it.

    Attributes:
        about: what is the matter with it.
        changes: keys of the world that differ from the base, see
            litbench.curation.simulation.changed_world.
        predictions: keys of each, see `Prediction`.
    """

    about: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    predictions: list[dict[str, Any]] = field(default_factory=list)

    def claims(
        self, variants: Sequence[str], where: str, further: Sequence[str] = ()
    ) -> list[Prediction]:
        """The predictions, checked as `Prediction.check` does."""
        found = [build(Prediction, keys, where) for keys in self.predictions]
        for prediction in found:
            prediction.check(variants, where, further)
        return found


Outcome = Literal["held", "failed", "undecided"]
OUTCOMES: tuple[Outcome, ...] = ("held", "failed", "undecided")


@dataclass(frozen=True)
class Checked:
    """What came of a prediction.

    Attributes:
        world: name.
        prediction: as written.
        difference: of the variant minus the other, over seeds.
        outcome: held where the whole interval is what was claimed, failed where none of it is.
    """

    world: str
    prediction: Prediction
    difference: Interval
    outcome: Outcome


@dataclass(frozen=True)
class Summary:
    """One variant in one world, over seeds.

    Attributes:
        place: which world.
        variant: name.
        amount: what the rater was trained on.
        figures: by the measures of the rows; of seeds that have the figure, NaN where none has.
        gain: agreement minus that of the reference, paired by seed; None for the reference.
        lean: `prefers_longer` minus that of `TRUTH`, paired by seed; None for `TRUTH`.
        random_longer: share of random pairs whose better story is the longer.
    """

    place: Place
    variant: str
    amount: Amount
    figures: Mapping[str, Interval]
    gain: Interval | None
    lean: Interval | None
    random_longer: Interval


@dataclass(frozen=True)
class Study:
    """The figures of a study.

    Attributes:
        reference: variant that gains are measured from.
        seeds: of every world.
        summaries: by world, amount and variant, in the order of the rows.
        checked: every prediction.
    """

    reference: str
    seeds: list[int]
    summaries: list[Summary]
    checked: list[Checked]

    @property
    def variants(self) -> list[str]:
        """All variants in their order, `TRUTH` among them."""
        return list(dict.fromkeys(one.variant for one in self.summaries))

    @property
    def places(self) -> list[Place]:
        """All worlds in their order."""
        return list(dict.fromkeys(one.place for one in self.summaries))

    @property
    def worlds(self) -> list[Place]:
        """The first place of every world: one where sweeps meet has several, and counts once."""
        first: dict[tuple[float, ...], Place] = {}
        for place in self.places:
            # The same seeds of the same world have the same figures to the last digit.
            figures = [one.figures for one in self.at(place, "equal")]
            key = tuple(of[name].mean for of in figures for name in ("agreement", "right", "pairs"))
            first.setdefault(key, place)
        return list(first.values())

    @property
    def sweeps(self) -> dict[str, list[Place]]:
        """The worlds of each sweep."""
        found: dict[str, list[Place]] = {}
        for place in self.places:
            if place.value is not None:
                found.setdefault(place.group, []).append(place)
        return found

    def at(self, place: Place, amount: Amount) -> list[Summary]:
        """The variants of a world."""
        return [one for one in self.summaries if (one.place, one.amount) == (place, amount)]


def _interval(measure: str, values: np.ndarray, seeds: Sequence[int]) -> Interval:
    # None is known, say, of pairs with a longer story where all stories are of one length.
    known = np.isfinite(values)
    kept = [seed for seed, there in zip(seeds, known, strict=True) if there]
    if measure in LEARNED:
        return jackknife_interval(values[known], kept)
    # What a rule fixes, such as the share of longer stories after symmetry, may not vary at all.
    interval = mean_interval(values[known], kept)
    if measure == "pairs":
        return interval
    # What is measured beyond the common may be a difference of shares.
    least = 0.0 if measure in MEASURES else -1.0
    # In this order NaN stays NaN.
    return replace(interval, low=max(interval.low, least), high=min(interval.high, 1.0))


def _difference(measure: str, one: np.ndarray, other: np.ndarray, seeds: list[int]) -> Interval:
    known = np.isfinite(one - other)
    kept = [seed for seed, there in zip(seeds, known, strict=True) if there]
    if measure == "pairs":
        return mean_interval(one - other, seeds)
    return paired_difference(one[known], other[known], kept)[0]


def check_prediction(prediction: Prediction, difference: Interval) -> Outcome:
    """Whether a difference is what was claimed.

    Args:
        prediction: the claim.
        difference: variant minus the other.

    Returns:
        held where every value of the interval is what was claimed, failed where none is,
        undecided in between and where there is no interval.
    """
    low, high = difference.low, difference.high
    if math.isnan(low):
        return "undecided"
    if prediction.at_most is not None:
        most = prediction.at_most
        if -most <= low and high <= most:
            return "held"
        return "failed" if high < -most or low > most else "undecided"
    if prediction.direction == "lower":
        low, high = -high, -low
    if low > prediction.at_least or low == high == prediction.at_least > 0:
        return "held"
    return "failed" if high < prediction.at_least or high == low == 0 else "undecided"


def summarise(
    rows: Sequence[Row], reference: str, predictions: Mapping[str, Sequence[Prediction]]
) -> Study:
    """Means and intervals over seeds.

    Args:
        rows: of every world, seed, variant and amount.
        reference: variant that gains are measured from.
        predictions: by the name of the world.

    Raises:
        DataError: worlds have different seeds, or a prediction is about a world without rows.
    """
    groups: dict[tuple[Place, Amount, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.place, row.amount, row.variant), []).append(row)
    seeds = [row.seed for row in next(iter(groups.values()))]

    def values(key: tuple[Place, Amount, str], measure: str) -> np.ndarray:
        if key not in groups:
            raise DataError(f"no rows of {key[2]} in world {key[0]}: run it first")
        of = groups[key]
        if [row.seed for row in of] != seeds:
            raise DataError(f"world {key[0]}, {key[2]}: its seeds are not {seeds}: run it again")
        return np.array([row.figures[measure] for row in of], dtype=float)

    summaries = []
    for key, of in groups.items():
        place, amount, variant = key

        def against(other: str, measure: str, key: tuple[Place, Amount, str] = key) -> Interval:
            there = values((key[0], key[1], other), measure)
            return _difference(measure, values(key, measure), there, seeds)

        summaries.append(
            Summary(
                place,
                variant,
                amount,
                {name: _interval(name, values(key, name), seeds) for name in of[0].figures},
                None if variant == reference else against(reference, "agreement"),
                None if variant == TRUTH else against(TRUTH, "prefers_longer"),
                jackknife_interval(np.array([row.random_longer for row in of]), seeds),
            )
        )
    checked = []
    for world, claims in predictions.items():
        for claim in claims:
            one, other = (
                values((Place(world), claim.amount, name), claim.measure)
                for name in (claim.variant, claim.against)
            )
            difference = _difference(claim.measure, one, other, seeds)
            checked.append(Checked(world, claim, difference, check_prediction(claim, difference)))
    return Study(reference, seeds, summaries, checked)


def study_json(study: Study) -> dict[str, Any]:
    """The figures as JSON can hold them; what cannot be told is null."""
    found: dict[str, Any] = plain(asdict(study))
    for one, summary in zip(found["summaries"], study.summaries, strict=True):
        one["place"]["value"] = _value(summary.place)
    return found


def _value(place: Place) -> float | str | None:
    """The value as JSON and CSV can hold it: an infinite one by name, as it is not unknown."""
    if place.value is None or math.isfinite(place.value):
        return place.value
    return str(place.value)


def write_study_csv(study: Study, path: Path) -> None:
    """Write a line for every world, amount and variant, with the ends of every interval."""
    ends = ("mean", "low", "high")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        names = [*study.summaries[0].figures, "gain", "lean", "random_longer"]
        columns = [name if end == "mean" else f"{name}_{end}" for name in names for end in ends]
        writer.writerow(["group", "value", "variant", "amount", "seeds", *columns])
        for one in study.summaries:
            intervals = [*one.figures.values(), one.gain, one.lean, one.random_longer]
            cells = [
                None if interval is None else getattr(interval, end)
                for interval in intervals
                for end in ends
            ]
            place = one.place
            start = [place.group, _value(place), one.variant, one.amount, len(study.seeds)]
            writer.writerow([csv_cell(value) for value in [*start, *cells]])


def study_text(study: Study) -> str:
    """The figures for a terminal."""
    width = max(len(name) for name in study.variants)
    lines = [
        f"{len(study.seeds)} seeds of every world, 95 % intervals over them; agreement with true "
        f"quality on random pairs, whatever their votes; gain over {study.reference}",
    ]
    for place in study.places:
        of = study.at(place, "equal")
        size = of[0].figures["pairs"].mean
        longer = of[0].random_longer
        lines += [
            "",
            f"{place}: trained on {size:,.0f} pairs of each; the better story is the longer in "
            f"{longer}",
            f"{'variant':<{width}}  {'agreement':<21}  {'gain':<24}  {'prefers longer':<21}  "
            f"{'right about its pairs':<21}  {'chosen is longer':<21}  {'all pairs':>9}  "
            f"{'agreement with all':<21}  gain",
        ]
        for one, whole in zip(of, study.at(place, "natural"), strict=True):
            shown = [
                one.figures[name]
                for name in ("agreement", "prefers_longer", "right", "chosen_longer")
            ]
            cells = [f"{one.variant:<{width}}", *(f"{interval!s:<21}" for interval in shown)]
            cells.insert(2, f"{_signed(one.gain, '.3f'):<24}")
            cells.append(f"{whole.figures['pairs'].mean:>9,.0f}")
            cells += [f"{whole.figures['agreement']!s:<21}", _signed(whole.gain, ".3f")]
            lines.append("  ".join(cells).rstrip())
    if study.checked:
        lines += ["", "predictions:"]
    for checked in study.checked:
        found = _signed(checked.difference, ".4g")
        lines.append(f"{checked.outcome:<9}  {checked.world}: {checked.prediction}; {found}")
    return "\n".join(lines)


def _signed(value: Interval | None, form: str) -> str:
    """A difference; empty where it is that of the reference to itself."""
    if value is None:
        return ""
    return f"{value.mean:+{form}} [{value.low:+{form}}, {value.high:+{form}}]"
