"""Entries of raters in a config: a kind, and the options of that kind.

    raters:
      longer: {kind: longer}
      verifier: {kind: reward, path: runs/verifier}

`KINDS` lists the built-in kinds. An installed package adds a kind with an entry point in the group
`litbench.kinds` that loads a `Kind`.
"""

import importlib.metadata
import pkgutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from litbench.raters.interface import Rater
from litbench.runs.config import build, check_installed, nearest
from litbench.runs.errors import ConfigError


@dataclass(frozen=True)
class Kind:
    """A kind of rater: dataclasses of options, as "module:attribute", imported on first use.

    If verdicts depend on files or models, the dataclass has a method `files()` that returns them
    by option name. By default, every option of type `Path` counts as a file.

    Attributes:
        options: has a method `load(name)` that returns a `Rater` ready to judge.
        training: has a method `train(name, pairs, folder, seed)` that trains a rater on a pairs
            table and writes its files into `folder`; None if the kind cannot be trained. Entries
            without `path` have these options.
        version: increase it when a change of code or template changes verdicts for the same
            options and data. Stored verdicts of this kind are then discarded.
        needs: libraries of extras with which it judges.
        needs_to_train: libraries of extras with which it is trained.
    """

    options: str | type
    training: str | type | None = None
    version: int = 1
    needs: tuple[str, ...] = ()
    needs_to_train: tuple[str, ...] = ()


_NEURAL: dict[str, Any] = {"needs": ("torch", "transformers"), "needs_to_train": ("trl",)}
_ASKED: dict[str, Any] = {"needs": ("inspect_ai", "openai")}
KINDS: dict[str, Kind] = {
    "longer": Kind("litbench.models.baselines:LongerOptions"),
    "shorter": Kind("litbench.models.baselines:ShorterOptions"),
    "notes": Kind("litbench.models.baselines:NotesOptions"),
    "random": Kind("litbench.models.baselines:RandomOptions"),
    "features": Kind(
        "litbench.models.features:PathOptions",
        "litbench.models.features:FeatureOptions",
        version=2,
    ),
    "bag_of_words": Kind(
        "litbench.models.bag_of_words:PairsOptions",
        "litbench.models.bag_of_words:BagOfWordsOptions",
        version=2,
    ),
    "reward": Kind(
        "litbench.models.reward:RewardRaterOptions",
        "litbench.models.reward_training:RewardTraining",
        version=2,
        **_NEURAL,
    ),
    "generative": Kind(
        "litbench.models.generative:GenerativeRaterOptions",
        "litbench.models.generative_training:GenerativeTraining",
        version=4,
        **_NEURAL,
    ),
    "judge": Kind("litbench.judges.judge:JudgeOptions", version=5, **_ASKED),
    "rubric": Kind("litbench.judges.rubric:RubricOptions", version=2, **_ASKED),
    "recorded": Kind("litbench.judges.recorded:RecordedOptions"),
    "panel": Kind("litbench.judges.panel:PanelOptions"),
}


@cache
def _plugins() -> dict[str, Kind]:
    """The kinds of installed packages; finding them takes 6 ms."""
    points = importlib.metadata.entry_points(group="litbench.kinds")
    return {point.name: point.load() for point in points}


def kinds() -> dict[str, Kind]:
    """Return all kinds by name: `KINDS` and those of installed packages."""
    return _plugins() | KINDS


@dataclass(frozen=True)
class RaterSpec:
    """One entry under `raters:`, checked when it is made.

    Attributes:
        name: the entry's key, and the rater's name in every table.
        kind: a name of `kinds()`.
        given: the options as given, for manifests and fingerprints.
        may_train: whether an entry without `path` of a trainable kind is trained first; if false,
            it is an error.
        extra: keys that the program reads itself; see `parse_raters`.
        options: the checked options; a dataclass of the kind.

    Raises:
        ConfigError: an unknown kind or option, or a value of the wrong type.
    """

    name: str
    kind: str
    given: Mapping[str, Any] = field(default_factory=dict)
    may_train: bool = field(default=True, compare=False)
    extra: Mapping[str, Any] = field(default_factory=dict)
    options: Any = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        all_kinds = kinds()
        if self.kind not in all_kinds:
            raise ConfigError(
                f"{self.where}: unknown kind '{self.kind}': {nearest(self.kind, list(all_kinds))}"
            )
        kind = all_kinds[self.kind]
        if self.is_trained:
            check_installed(*kind.needs_to_train)
        cls: Any = kind.training if self.is_trained else kind.options
        cls = pkgutil.resolve_name(cls) if isinstance(cls, str) else cls
        object.__setattr__(self, "options", build(cls, self.given, self.where))

    @property
    def where(self) -> str:
        """The entry's key, for error messages."""
        return f"raters.{self.name}"

    @property
    def version(self) -> int:
        return kinds()[self.kind].version

    @property
    def is_trained(self) -> bool:
        """Whether the rater must be trained first."""
        is_trainable = kinds()[self.kind].training is not None
        return self.may_train and is_trainable and "path" not in self.given

    def plain(self) -> dict[str, Any]:
        """The entry as in a config."""
        return {"kind": self.kind, **self.given}

    def files(self) -> dict[str, str]:
        """Return the files, folders and models that verdicts depend on, by option."""
        if hasattr(self.options, "files"):
            return dict(self.options.files())
        options = vars(self.options).items()
        return {name: str(value) for name, value in options if isinstance(value, Path)}

    def check_installed(self) -> None:
        """Raise MissingExtraError if a library with which the rater judges is not installed."""
        check_installed(*kinds()[self.kind].needs)

    def load(self, folder: Path | None = None, *, may_stop: bool = False) -> Rater:
        """Load the rater.

        Args:
            folder: see `Rater.work_in`.
            may_stop: see `Rater.may_stop`.
        """
        rater: Rater = self.options.load(self.name)
        rater.may_stop = may_stop
        if folder is not None:
            rater.work_in(folder)
        return rater

    def train(self, pairs: pa.Table, folder: Path, seed: int, name: str | None = None) -> Rater:
        """Train the rater on a pairs table; its files are written into `folder`."""
        rater: Rater = self.options.train(name or self.name, pairs, folder, seed)
        return rater


def parse_raters(
    raters: Mapping[str, Any], *, may_train: bool = False, extra: Collection[str] = ()
) -> list[RaterSpec]:
    """Read and check the `raters:` part of a config.

    Call it before any rater runs, since the last rater may start hours later.

    Args:
        raters: entries by name.
        may_train: see `RaterSpec`.
        extra: keys of the entries that the program reads itself.
    """
    if not raters:
        raise ConfigError("raters is empty: name at least one, such as longer: {kind: longer}")
    specs = []
    for name, entry in raters.items():
        if not isinstance(entry, Mapping) or "kind" not in entry:
            valid = ", ".join(sorted(kinds()))
            raise ConfigError(f"raters.{name}: needs a kind: one of {valid}")
        options = {key: value for key, value in entry.items() if key not in ("kind", *extra)}
        extra_values = {key: entry[key] for key in extra if key in entry}
        specs.append(RaterSpec(str(name), str(entry["kind"]), options, may_train, extra_values))
    return specs


def files_of(specs: Iterable[RaterSpec]) -> dict[str, str]:
    """Return the files of all entries, by "raters.NAME.OPTION"."""
    return {
        f"{spec.where}.{option}": path for spec in specs for option, path in spec.files().items()
    }
