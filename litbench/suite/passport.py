"""Passports: all figures of one rater on the suite's sets, in a small JSON file.

    passport = read_passport(Path("passport.json"))

A reader checks that a passport is complete and its values possible, not that its figures are right:
`litbench leaderboard --runs` recomputes them from the verdicts.
"""

import json
import math
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from litbench.data.sources.registry import Judged, Kind, Language
from litbench.metrics.intervals import LEVEL, Interval
from litbench.metrics.leaderboard import lacks_information, plain
from litbench.runs.config import build
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import read_object, write_json
from litbench.runs.terminal import clean_name

VERSION = 1
_DATE = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$"
_LONGEST_NAME = 200
# Greek and Cyrillic letters and digits that look like a Latin letter.
_ALIKE = str.maketrans("αικνορτυχвеікмнорѕстухјԛԝ10|", "aikvoptuxbeikmhopsctyxjqwlol")


def _check_name(name: str) -> str:
    if not name or len(name) > _LONGEST_NAME or name != clean_name(name):
        raise ValueError("the name is empty, too long, or has invisible characters")
    return name


def appearance(name: str) -> str:
    """Return what names that look alike share: case, width, dashes and similar letters folded."""
    folded = unicodedata.normalize("NFKC", name).casefold().translate(_ALIKE)
    return "".join("-" if unicodedata.category(letter) == "Pd" else letter for letter in folded)


# Numbers and names of a passport, which may come from anyone.
Number = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[Number, Field(ge=0, le=1)]
Name = Annotated[str, AfterValidator(_check_name)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass
class PassportInterval:
    """A mean over pairs and its 95 % interval; null where they cannot be estimated."""

    mean: Number | None
    low: Number | None
    high: Number | None
    n: NonNegativeInt
    clusters: NonNegativeInt
    effective_clusters: NonNegativeFloat

    def __post_init__(self) -> None:
        """Check the order of the numbers; ValueError otherwise."""
        bounds = [self.low, self.mean, self.high]
        if (self.low is None) != (self.high is None) or (
            self.mean is None and self.low is not None
        ):
            raise ValueError("low and high need each other, and the mean")
        numbers = [number for number in bounds if number is not None]
        if numbers != sorted(numbers):
            raise ValueError(f"low, mean and high are {', '.join(map(str, numbers))}")
        if self.mean is not None and not self.n:
            raise ValueError("the mean is of n = 0")
        if not self.effective_clusters - 1e-6 <= self.clusters <= self.n:
            raise ValueError(
                f"effective_clusters, clusters and n are {self.effective_clusters}, "
                f"{self.clusters} and {self.n}"
            )

    @classmethod
    def of(cls, interval: Interval) -> Self:
        """The interval, rounded to six digits, with null for NaN."""
        return cls(**plain(interval))

    def interval(self) -> Interval:
        """Return the interval, with NaN for null."""
        return Interval.of({key.name: getattr(self, key.name) for key in fields(Interval)})

    def check(self, name: str, lowest: float) -> None:
        """Check that the numbers are between `lowest` and 1; ValueError otherwise."""
        numbers = [self.low, self.mean, self.high]
        if any(number is not None and not lowest <= number <= 1 for number in numbers):
            raise ValueError(f"{name} is not between {lowest} and 1")


@dataclass
class Difference(PassportInterval):
    """A paired difference from the reference, and its p value after Holm's correction."""

    p_holm: Share | None


@dataclass
class PeopleFigures:
    """The rater and one annotator against the other annotators, on the same comparisons.

    Attributes:
        annotators: number of annotators.
        agreement: of the rater.
        one_annotator: of one annotator.
        difference: the rater minus one annotator.
        relative: see `litbench.metrics.annotators.RaterAgreement`.
        at_chance: whether annotators do not agree significantly above chance.
        blind_above: content-blind raters that agree with annotators more than one of them does.
        is_dependent: whether annotators agree significantly less than independent ones would.
    """

    annotators: Annotated[int, Field(ge=2)]
    agreement: PassportInterval
    one_annotator: PassportInterval
    difference: PassportInterval
    relative: PassportInterval
    at_chance: bool
    blind_above: list[Name]
    is_dependent: bool = False

    def __post_init__(self) -> None:
        """Check the ranges; ValueError otherwise."""
        for name in ("agreement", "one_annotator"):
            getattr(self, name).check(name, 0)
        self.difference.check("difference", -1)


@dataclass
class Stop:
    """How judging a set until decided ended, see `litbench.evaluation.stopping`.

    Attributes:
        judged: such as "312 of 1,200 pairs"; empty if all were judged.
        reason: null for the rater that others were compared with.
        plan: boundaries, order and looks.
        looks: the looks that were made.
    """

    judged: Annotated[str, Field(pattern=r"^([\d,]+ of [\d,]+ pairs)?$")]
    reason: Literal["decided", "futile", "undecided"] | None
    plan: dict[str, Any]
    looks: list[dict[str, Any]]


@dataclass
class CallFigures:
    """A way to ask: the answers that a verdict takes, its agreement, and dollars a pair."""

    orders: PositiveInt
    samples: PositiveInt
    agreement: PassportInterval
    dollars: Annotated[Number, Field(ge=0)] | None


@dataclass
class ResolutionFigures:
    """The writers that a rater tells apart.

    Attributes:
        writers: number of writers.
        pairs: pairs of writers with at least three common prompts.
        told_apart: pairs that differ significantly after Holm's correction.
        smallest: the difference that is found in 80 % for the median pair of writers, at the level
            of the first of Holm's tests; null if no possible difference is.
        spread: the largest minus the smallest mean grade, to compare `smallest` with.
        dollars: price of all grades; null if unknown.
    """

    writers: NonNegativeInt
    pairs: NonNegativeInt
    told_apart: NonNegativeInt
    smallest: Number | None
    spread: Number
    dollars: Annotated[Number, Field(ge=0)] | None = None


@dataclass
class InvarianceFigures:
    """How often verdicts change with the form of the question.

    Attributes:
        form: what was changed.
        changed: how often an answer differs from one to the other form.
        beyond: `changed` minus what repeats explain.
        p_holm: p value of no effect, after Holm's correction for all forms.
    """

    form: Name
    changed: PassportInterval
    beyond: PassportInterval
    p_holm: Share | None


@dataclass
class MissingFigures:
    """What a card lacks: why, what to do, and the calls and dollars that it takes, if known."""

    part: Name
    why: str
    remedy: str
    calls: NonNegativeInt | None = None
    dollars: Annotated[Number, Field(ge=0)] | None = None


@dataclass
class JudgeCard:
    """Whether a judge can be trusted, see `litbench.suite.card`.

    Attributes:
        figures: by name: agreement, longer, minus_annotator, flip_rate, position_bias,
            self_agreement, by_repeats, by_order, gain, own_family, own_family_people and
            own_family_excess, those that the records allow.
        samples: answers to each question.
        calls: agreement by number of calls; empty without repeats.
        family: the judge's family; null if it is not known.
        content_blind: the share of its agreement above chance that needs no reading, see
            `litbench audit`.
        resolution: writers told apart by the judge, `longer` and `people`.
        dollars: price of a pair, in all its orders and samples; null if it is not known.
        missing: what is missing.
        invariance: changes with the form of the question; empty if no other form was asked.
    """

    figures: dict[Name, PassportInterval]
    samples: PositiveInt
    calls: list[CallFigures]
    family: Name | None
    content_blind: Number | None
    resolution: dict[Name, ResolutionFigures]
    dollars: Annotated[Number, Field(ge=0)] | None
    missing: list[MissingFigures]
    invariance: list[InvarianceFigures] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the ranges; ValueError otherwise."""
        for name, figure in self.figures.items():
            figure.check(f"card.{name}", -1)

    def interval(self, name: str) -> Interval | None:
        """A figure; None if it is missing."""
        return self.figures[name].interval() if name in self.figures else None

    def mean(self, name: str) -> float:
        """The mean of a figure; NaN if it is missing."""
        figure = self.interval(name)
        return math.nan if figure is None else figure.mean


@dataclass
class SetFigures:
    """A rater on one set.

    Attributes:
        title: of the registry, as language, kind, judged, licence, origin and revision.
        group: the first of the sets judged together that shares prompts with it, or itself.
        pairs_sha256: digest of the pairs: their ids, the chosen stories' ids and all texts. Compare
            figures only where it is the same.
        agreement: with the labels.
        minus_reference: paired; null for the reference.
        p_value: of `minus_reference`, for this comparison alone.
        flip_rate: share of pairs in which the two orders disagree; null if order is irrelevant.
        position_bias: how often the story shown first wins.
        coverage: share of verdicts that are judgements.
        chosen_longer: agreement on pairs whose chosen story is longer.
        chosen_shorter: agreement on the others.
        outcomes: number of verdicts by outcome.
        trained_on_prompts: prompts of the set that the rater was trained on; if above 0, the
            figures are not valid.
        beside: agreement of the baselines that ran beside it.
        people: null without several annotators.
        audit: findings of `litbench audit` on the set, worst first; null if it was not audited.
        stop: null unless its comparison was looked at until it was decided.
        card: whether the judge can be trusted; null for baselines.
    """

    title: str
    language: Language
    kind: Kind
    judged: Judged
    licence: str | None
    origin: str
    revision: str | None
    group: Name
    pairs_sha256: Digest
    agreement: PassportInterval
    minus_reference: PassportInterval | None
    p_value: Share | None
    flip_rate: PassportInterval | None
    position_bias: PassportInterval | None
    coverage: Share
    chosen_longer: PassportInterval
    chosen_shorter: PassportInterval
    outcomes: dict[str, NonNegativeInt]
    trained_on_prompts: NonNegativeInt
    beside: dict[Name, PassportInterval]
    people: PeopleFigures | None
    audit: list[str] | None = None
    stop: Stop | None = None
    card: JudgeCard | None = None

    def __post_init__(self) -> None:
        """Check the ranges; ValueError otherwise."""
        if self.agreement.mean is None:
            raise ValueError("agreement has no mean")
        for name in ("agreement", "flip_rate", "position_bias", "chosen_longer", "chosen_shorter"):
            if (share := getattr(self, name)) is not None:
                share.check(name, 0)
        for name, share in self.beside.items():
            share.check(f"beside.{name}", 0)
        if self.minus_reference is not None:
            self.minus_reference.check("minus_reference", -1)

    @property
    def stopped(self) -> str:
        """Its mark where figures of several raters are shown; empty if it judged all pairs."""
        return f"stopped: {self.stop.judged}" if self.stop and self.stop.judged else ""

    @property
    def no_information(self) -> str:
        """Why its verdicts carry no information, see `lacks_information`; empty otherwise."""
        flip_rate, first = self.flip_rate, self.position_bias
        return lacks_information(
            self.outcomes,
            self.coverage,
            None if flip_rate is None else flip_rate.mean,
            None if first is None else first.mean,
        )


@dataclass
class OverSets:
    """A rater in `litbench.metrics.sets.over_sets`; `sets` are the names of the sets."""

    sets: list[Name]
    rater: Name
    mean: Share
    low: Number | None
    high: Number | None
    lowest: Share
    highest: Share
    minus_reference: Difference | None


@dataclass
class Drift:
    """The last result of `litbench drift`.

    Attributes:
        result: whether the judge has changed; `undecided` if the run had too few questions.
        date: of the check, in UTC.
        questions: number of questions asked again.
        odd: questions with one answer that differs from two equal ones.
        single: those whose odd answer is the single one of its time.
        change: the share of changed verdicts that was looked for.
        p_value: of no change.
        answered_by: models by the provider's answers.
    """

    result: Literal["changed", "unchanged", "undecided"]
    date: Annotated[str, Field(pattern=_DATE)]
    questions: PositiveInt
    odd: NonNegativeInt
    single: NonNegativeInt
    change: Share
    p_value: Share
    answered_by: list[Name]


@dataclass
class Passport:
    """A rater's passport.

    Attributes:
        rater: its name.
        kind: kind of rater.
        options: its entry in the config, without paths.
        files: digests of the files and models that its verdicts depend on, by option.
        reference: the rater that it is compared with.
        max_pairs: maximum number of pairs per set; null for all.
        sets: figures by set.
        over_sets: means of `litbench.metrics.sets.over_sets`; null with a single set.
        cost_usd: of all verdicts; null if nothing was paid.
        input_tokens: null if unknown, as `output_tokens`.
        versions: of Python and libraries.
        date: when the last set was judged, in UTC.
        answered_by: models of a judge, as the provider's answers name them; empty in passports
            from before LitBench recorded it.
        template: question of a judge; null for other raters, and in such passports.
        scope: see `litbench.raters.scope.Scope.held_out`; null if the rater has no scope.
        drift: whether it has changed since; null if that was not checked.
        version: version of this form.
    """

    rater: Name
    kind: str
    options: dict[str, Any]
    files: dict[str, Digest]
    reference: Name
    max_pairs: PositiveInt | None
    sets: Annotated[dict[Name, SetFigures], Field(min_length=1)]
    over_sets: OverSets | None
    cost_usd: Annotated[Number, Field(ge=0)] | None
    input_tokens: NonNegativeInt | None
    output_tokens: NonNegativeInt | None
    versions: dict[str, str]
    date: Annotated[str, Field(pattern=_DATE)]
    answered_by: list[Name] = field(default_factory=list)
    template: str | None = None
    scope: dict[Name, Annotated[Number, Field(ge=0)]] | None = None
    drift: Drift | None = None
    version: int = VERSION


def write_passport(passport: Passport, path: Path) -> None:
    """Write a passport; equal passports give equal bytes."""
    write_json(passport, path)


def read_passport(path: Path) -> Passport:
    """Read a passport.

    Raises:
        DataError: it is not a passport of this version, or has impossible values.
    """
    advice = "ask its author for the file"
    content = read_object(path, DataError, advice)
    try:
        if content.get("version") != VERSION:
            raise ConfigError(f"{path}: not a passport of version {VERSION}")
        passport = build(Passport, content, str(path))
        _check_over_sets(passport, str(path))
    except ConfigError as error:
        raise DataError(f"{error}; {advice}, or use the LitBench that wrote it") from error
    return passport


def _check_over_sets(passport: Passport, where: str) -> None:
    """Refuse a mean over sets that is not the mean of the passport's sets."""
    if (over := passport.over_sets) is None:
        return
    if over.rater != passport.rater or not set(over.sets) <= passport.sets.keys():
        raise ConfigError(f"{where}: over_sets is of another rater or of other sets")
    means = [passport.sets[name].agreement.interval().mean for name in over.sets]
    if not means or not math.isclose(over.mean, fmean(means), abs_tol=1e-5):
        raise ConfigError(f"{where}: over_sets.mean is {over.mean}, the sets have another mean")


def set_rows_of(passport: Passport) -> list[dict[str, Any]]:
    """The rows that `litbench.metrics.sets.over_sets` reads."""
    return [
        {
            "set": name,
            "rater": passport.rater,
            "agreement": figures.agreement.mean,
            "trained_on": figures.trained_on_prompts,
        }
        for name, figures in passport.sets.items()
    ]


# Other forms -----------------------------------------------------------------------------------


def every_eval_ever(passport: Passport) -> dict[str, Any]:
    """A passport in the form of Every Eval Ever (github.com/evaleval/every_eval_ever, 0.3.0)."""
    results = []
    for name, figures in passport.sets.items():
        quantities: dict[str, PassportInterval | None] = {
            "agreement": figures.agreement,
            "flip_rate": figures.flip_rate,
            "position_bias": figures.position_bias,
        }
        if figures.people is not None:
            quantities["agreement_relative_to_people"] = figures.people.relative
        results += [
            _eval_result(name, figures, quantity, value)
            for quantity, value in quantities.items()
            if value is not None and value.mean is not None
        ]
    return {
        "schema_version": "0.3.0",
        "evaluation_id": f"litbench/{passport.rater}/{passport.date}",
        "evaluation_timestamp": passport.date,
        "retrieved_timestamp": passport.date,
        "source_metadata": {
            "source_name": "LitBench suite",
            "source_type": "evaluation_run",
            "source_organization_name": "LitBench",
            "evaluator_relationship": "other",
        },
        "eval_library": {
            "name": "litbench",
            "version": passport.versions.get("litbench", "unknown"),
        },
        "model_info": {
            "name": passport.rater,
            "id": str(passport.options.get("model", passport.rater)),
            "additional_details": {
                "deployment_type": "unknown",
                "model_availability": "unknown",
                "kind": passport.kind,
                "options": json.dumps(passport.options, sort_keys=True),
            },
        },
        "evaluation_results": results,
    }


def _eval_result(
    name: str, figures: SetFigures, quantity: str, value: PassportInterval
) -> dict[str, Any]:
    """A quantity on a set in the form of Every Eval Ever."""
    uncertainty: dict[str, Any] = {"num_samples": value.n}
    details = {"pairs_sha256": figures.pairs_sha256}
    if sequential := quantity == "agreement" and figures.stop is not None:
        details["until_decided"] = json.dumps(asdict(figures.stop), sort_keys=True)
    if value.low is not None and value.high is not None:
        uncertainty["confidence_interval"] = {
            "lower": value.low,
            "upper": value.high,
            "confidence_level": LEVEL,
            "method": ("group-sequential, " if sequential else "") + "cluster jackknife by prompt",
        }
    is_share = quantity != "agreement_relative_to_people"
    return {
        "evaluation_result_id": f"{name}/{quantity}",
        "evaluation_name": name,
        "source_data": _source_data(name, figures),
        "metric_config": {
            "metric_id": f"litbench.{quantity}",
            "metric_name": quantity,
            "metric_unit": "proportion",
            "lower_is_better": quantity == "flip_rate",
            "score_type": "continuous",
            "min_score": 0.0 if is_share else "-Infinity",
            "max_score": 1.0 if is_share else "Infinity",
        },
        "score_details": {
            "score": value.mean,
            "uncertainty": uncertainty,
            "details": details,
        },
    }


def _source_data(name: str, figures: SetFigures) -> dict[str, Any]:
    more = {"additional_details": {"pairs_sha256": figures.pairs_sha256}}
    if "://" in figures.origin:
        return {"dataset_name": name, "source_type": "url", "url": [figures.origin], **more}
    repository, _, split = figures.origin.partition(":")
    source = {"dataset_name": name, "source_type": "hf_dataset", "hf_repo": repository, **more}
    return source | ({"hf_split": split} if split else {})


def eval_results(passport: Passport, benchmark: str | None = None) -> list[dict[str, Any]]:
    """The entries of `.eval_results/litbench.yaml` in a model's repository on the Hub.

    An entry names a data set on the Hub: `benchmark`, if the suite is registered as one, else that
    of the set, where it is on the Hub; other sets are left out.
    """
    return [
        {
            "dataset": {"id": benchmark or figures.origin.partition(":")[0], "task_id": name},
            "value": figures.agreement.mean,
            "date": passport.date[:10],
            "notes": f"LitBench suite: agreement with people, {figures.agreement.n:,} pairs"
            + (figures.stopped and f" ({figures.stopped})"),
        }
        for name, figures in passport.sets.items()
        if figures.agreement.mean is not None and (benchmark or "://" not in figures.origin)
    ]


def figures_text(figures: Mapping[str, SetFigures]) -> list[list[str]]:
    """Rows of set, agreement, the longer story's and agreement relative to people, for cards."""
    rows = []
    for name, row in figures.items():
        relative = None if row.people is None else row.people.relative.interval()
        is_known = relative is not None and relative.is_bounded
        agreement = str(row.agreement.interval())
        if row.no_information:
            agreement = f"{row.agreement.mean:.3f} (no information: {row.no_information})"
        if row.stopped:
            agreement += f" ({row.stopped})"
        longer = row.beside.get("longer")
        baseline = "–" if longer is None else str(longer.interval())
        rows.append([name, agreement, baseline, str(relative) if is_known else "–"])
    return rows
