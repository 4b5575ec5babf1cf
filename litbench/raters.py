"""The Rater protocol, how a rater is named in a config, running raters over pairs.

A rater gets a prompt and two texts in an order that says nothing, never which was chosen, never
votes or times. `judge_pairs` hides the labels, asks, and writes verdict rows.

In a config a rater is a named entry with a `kind` and that kind's options:

    raters:
      longer: {kind: longer}
      verifier: {kind: reward, path: runs/verifier}

`KINDS` lists every kind. An installed package adds its own by an entry point of the group
`litbench.kinds` that loads a `Kind`.
"""

import importlib
import importlib.metadata
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, cast, runtime_checkable

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from litbench.config import build, nearest
from litbench.curation.cleaning import Cleaning, clean_table
from litbench.errors import ConfigError, DataError
from litbench.metrics.agreement import has_texts
from litbench.records import VERDICTS, empty_columns, prompt_keys
from litbench.text import count_words, digest, prompt_key

# Given to raters that look at one pair at a time, so that memory does not grow with the pairs.
_PAIRS_AT_ONCE = 1_000

Preference = Literal["first", "second", "tie", "unparsed", "refused", "cut", "error"]


@dataclass(frozen=True)
class BlindPair:
    """What a rater sees: nothing in it depends on which story was chosen."""

    prompt: str
    first: str
    second: str


@dataclass(frozen=True)
class Judgement:
    """What a rater says of one BlindPair.

    Attributes:
        prefers: which story, or why there is no verdict.
        p_first: probability that the first is the better one, 0 to 1.
        reward_first: the first story's reward; comparable within a prompt only.
        reward_second: the second story's.
        first_shown: the story that stood first in what the rater read ("first", "second"), or
            null when the rater has no order.
        explanation: what the rater wrote.
        input_tokens: tokens read.
        output_tokens: tokens written.
        cost_usd: price paid.
        label_mass: probability that the rater's answer was one of the labels at all.
        seconds: time it took, of a rater that measures its own; else the run's time is shared out.
    """

    prefers: Preference
    p_first: float | None = None
    reward_first: float | None = None
    reward_second: float | None = None
    first_shown: Literal["first", "second"] | None = None
    explanation: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    label_mass: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Estimate:
    """What judging some pairs would take; see `Asks`.

    Attributes:
        rater: its name.
        model: whom it asks.
        calls: how many questions are to be asked.
        known: how many answers are there already.
        input_tokens: to be read.
        output_tokens: to be written, by the usual length of such answers.
        cost_usd: dollars for the usual length; None where no price is known.
        most_cost_usd: dollars at most.
        seconds: time, by what stored answers took or a guess.
    """

    rater: str
    model: str
    calls: int
    known: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    most_cost_usd: float | None
    seconds: float


@runtime_checkable
class Rater(Protocol):
    """Everything that can prefer one story to another."""

    name: str
    kind: str

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Judge every pair; one judgement per order in which the rater read it (one without)."""

    def training_prompts(self) -> frozenset[str]:
        """`litbench.text.prompt_key` of every prompt the rater was trained on."""

    def notes(self) -> dict[str, Any]:
        """What a reader should know, such as how many stories were cut; goes to the manifest."""


@runtime_checkable
class Asks(Protocol):
    """A rater that asks others, for money or a long time, or one made of such raters.

    Attributes:
        shard: pairs that it is given at once, so that memory does not grow with the pairs; None
            for all.
    """

    shard: int | None

    def work_in(self, folder: Path) -> None:
        """Keep answers and logs in a folder, where the rater's options name no other."""

    def estimate(self, pairs: Sequence[BlindPair]) -> list[Estimate]:
        """Tell what judging some pairs would take, asking nothing; one entry per model."""


@runtime_checkable
class WritesLogs(Protocol):
    """A rater that logs what it judged, with the label, once the verdicts are there."""

    def write_log(
        self, judged: Sequence[Sequence[Judgement]], chosen_first: Sequence[bool]
    ) -> None:
        """Write the log of the pairs that were judged last; both of shape (pairs,)."""


@runtime_checkable
class KnowsStories(Protocol):
    """A rater that knows stories by their ids, so that it judges pairs without texts too."""

    def judge_known(
        self, pairs: Sequence[BlindPair], ids: Sequence[tuple[str, str]]
    ) -> Sequence[Sequence[Judgement]]:
        """Judge every pair; `ids` are the story_id of its first and second story."""


class Trainer(Protocol):
    """Trains a rater of one kind; see `Kind`."""

    def __call__(
        self,
        name: str,
        options: Mapping[str, Any],
        pairs: pa.Table,
        folder: Path,
        seed: int,
        where: str,
    ) -> Rater:
        """Train on a pairs table; files, if any, go into `folder`."""


class Untrained:
    """What a rater that was not trained says of itself."""

    def training_prompts(self) -> frozenset[str]:
        """No prompts."""
        return frozenset()

    def notes(self) -> dict[str, Any]:
        """Nothing to note."""
        return {}


class ScoreRater(Untrained):
    """A rater that gives each story a reward of its own and prefers the higher one.

    Subclasses define `score`. Each distinct (prompt, story) is scored once.

    Attributes:
        gives_probability: whether sigmoid(difference of rewards) is meant as a probability.
    """

    name: str
    kind: str
    gives_probability = False

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Rewards, float64, shape (n,)."""
        raise NotImplementedError

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Compare rewards; equal ones are a tie, one that is not finite is a DataError."""
        places: dict[tuple[str, str], int] = {}
        for pair in pairs:
            for story in (pair.first, pair.second):
                places.setdefault((pair.prompt, story), len(places))
        rewards = self.score([p for p, _ in places], [s for _, s in places])
        if not np.isfinite(rewards).all():
            bad = int((~np.isfinite(rewards)).sum())
            raise DataError(
                f"rater {self.name}: {bad} of {len(rewards)} rewards are not finite: "
                "check the model's weights and precision"
            )
        judged = []
        for pair in pairs:
            first = float(rewards[places[pair.prompt, pair.first]])
            second = float(rewards[places[pair.prompt, pair.second]])
            prefers: Preference = "tie"
            if first != second:
                prefers = "first" if first > second else "second"
            p_first = float(1 / (1 + np.exp(np.clip(second - first, -500, 500))))
            judged.append(
                [Judgement(prefers, p_first if self.gives_probability else None, first, second)]
            )
        return judged


@dataclass
class LengthRater(ScoreRater):
    """Prefers the longer story (`sign` 1) or the shorter one (-1), in words."""

    name: str
    kind: str
    sign: int
    shard: ClassVar[int] = _PAIRS_AT_ONCE

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Signed word counts."""
        del prompts
        words = count_words(pa.array(stories, pa.large_string()))
        rewards: np.ndarray = self.sign * words.to_numpy(zero_copy_only=False).astype(np.float64)
        return rewards


@dataclass
class TalkRater(ScoreRater):
    """Prefers the story that talks to its readers, of votes, thanks or the author's other places.

    What it agrees with is the share of the label that stands in plain sight; `cut_vote_talk` of
    `litbench.curation.cleaning` takes it away.
    """

    name: str
    kind: str
    shard: ClassVar[int] = _PAIRS_AT_ONCE

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """1 where such talk would be cut, 0 elsewhere."""
        text = pa.large_string()
        columns = {"prompt": pa.array(prompts, text), "story": pa.array(stories, text)}
        texts = pa.table({**columns, "id": pa.array(range(len(stories)), pa.int64())})
        only_talk = Cleaning(strip_prompt_tags=False, cut_quoted_prompt=False)
        cut, _ = clean_table(texts, only_talk, {"story": "id"})
        kept = cut["story"].to_pylist()
        return np.array([left != given for left, given in zip(kept, stories, strict=True)], float)


@dataclass
class NoOptions:
    """Options of a kind that has none."""


@dataclass
class RandomOptions:
    """Options of the kind `random`; see RandomRater."""

    seed: int = 0


@dataclass
class RandomRater(Untrained):
    """Throws a coin for each pair; the same coin for the same seed and texts."""

    name: str = "random"
    kind: str = "random"
    seed: int = 0
    shard: ClassVar[int] = _PAIRS_AT_ONCE

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Prefer the first story where the pair's hash is even."""
        judged = []
        for pair in pairs:
            even = int(digest(self.seed, pair.prompt, pair.first, pair.second), 16) % 2 == 0
            judged.append([Judgement("first" if even else "second", p_first=0.5)])
        return judged


def load_longer(name: str, options: Mapping[str, Any], where: str) -> LengthRater:
    """The kind `longer`; no options."""
    build(NoOptions, options, where)
    return LengthRater(name, "longer", 1)


def load_shorter(name: str, options: Mapping[str, Any], where: str) -> LengthRater:
    """The kind `shorter`; no options."""
    build(NoOptions, options, where)
    return LengthRater(name, "shorter", -1)


def load_talk(name: str, options: Mapping[str, Any], where: str) -> TalkRater:
    """The kind `talk`; no options."""
    build(NoOptions, options, where)
    return TalkRater(name, "talk")


def load_random(name: str, options: Mapping[str, Any], where: str) -> RandomRater:
    """The kind `random`; option `seed`."""
    return RandomRater(name, seed=build(RandomOptions, options, where).seed)


# Naming raters in a config -------------------------------------------------------------------


@dataclass
class RaterSpec:
    """One entry under `raters:`.

    Attributes:
        name: the entry's key; the rater's name in every table.
        kind: which code.
        options: the rest, for that code.
    """

    name: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The entry as messages name it."""
        return f"raters.{self.name}"


@dataclass(frozen=True)
class Kind:
    """A kind of rater: where its code is, as "module:attribute", imported when it is used.

    Attributes:
        load: function (name, options, where) that returns a `Rater` ready to judge.
        options: dataclass of the options of `load`, checked before any rater runs.
        train: a `Trainer`; None when there is nothing to train.
        training: dataclass of the options of `train`, or a function (options, where) that makes
            them.
        version: raise it when a change of the code gives other verdicts from the same options and
            data, a changed template included: kept verdicts of this kind are then judged again.

    A dataclass of options whose verdicts depend on files or models defines `files()`, which
    returns them by the option that names them; see `files_of`.
    """

    load: str
    options: str
    train: str | None = None
    training: str | None = None
    version: int = 1


KINDS: dict[str, Kind] = {
    "longer": Kind("litbench.raters:load_longer", "litbench.raters:NoOptions"),
    "shorter": Kind("litbench.raters:load_shorter", "litbench.raters:NoOptions"),
    "random": Kind("litbench.raters:load_random", "litbench.raters:RandomOptions"),
    "talk": Kind("litbench.raters:load_talk", "litbench.raters:NoOptions"),
    "features": Kind(
        "litbench.models.features:rater_from_options",
        "litbench.models.features:PathOptions",
        "litbench.models.features:train_rater",
        "litbench.models.features:FeatureOptions",
    ),
    "reward": Kind(
        "litbench.models.reward:rater_from_options",
        "litbench.models.reward:RewardRaterOptions",
        "litbench.models.reward_training:train_rater",
        "litbench.models.reward_training:options_of",
    ),
    "generative": Kind(
        "litbench.models.generative:rater_from_options",
        "litbench.models.generative:GenerativeRaterOptions",
        "litbench.models.generative_training:train_rater",
        "litbench.models.generative_training:options_of",
        version=2,
    ),
    "judge": Kind(
        "litbench.judges.judge:rater_from_options", "litbench.judges.judge:JudgeOptions", version=2
    ),
    "recorded": Kind(
        "litbench.judges.recorded:RecordedRater.from_options",
        "litbench.judges.recorded:RecordedOptions",
    ),
    "panel": Kind("litbench.judges.panel:rater_from_options", "litbench.judges.panel:PanelOptions"),
}


def kinds() -> dict[str, Kind]:
    """`KINDS` and those of installed packages."""
    plugins = importlib.metadata.entry_points(group="litbench.kinds")
    return {point.name: point.load() for point in plugins} | KINDS


def load_object(path: str) -> Any:
    """Import what "module:attribute" names."""
    module, _, attribute = path.partition(":")
    return operator.attrgetter(attribute)(importlib.import_module(module))


def parse_raters(raters: Mapping[str, Any]) -> list[RaterSpec]:
    """Read the `raters:` part of a config.

    Raises:
        ConfigError: none are given, an entry is no mapping, or its kind does not exist.
    """
    if not raters:
        raise ConfigError("raters: none are given: name at least one, as longer: {kind: longer}")
    known = kinds()
    specs = []
    for name, entry in raters.items():
        if not isinstance(entry, Mapping) or "kind" not in entry:
            raise ConfigError(f"raters.{name}: needs a kind: one of {', '.join(sorted(known))}")
        kind = str(entry["kind"])
        if kind not in known:
            raise ConfigError(f"raters.{name}: unknown kind '{kind}': {nearest(kind, list(known))}")
        options = {key: value for key, value in entry.items() if key != "kind"}
        specs.append(RaterSpec(str(name), kind, options))
    return specs


def check_options(spec: RaterSpec, group: Literal["raters", "trainers"]) -> Any:
    """Check an entry's options before any rater runs, since the last one may be hours away.

    Returns:
        The options of judging or of training, as the kind's dataclass.
    """
    kind = kinds()[spec.kind]
    options = kind.options if group == "raters" else kind.training
    assert options is not None
    made = load_object(options)
    if not isinstance(made, type):
        return made(spec.options, spec.where)
    return build(made, spec.options, spec.where)


def files_of(specs: Iterable[RaterSpec]) -> dict[str, str]:
    """The files, folders and models on which raters' verdicts depend.

    The options of a kind name them by `files()`, which returns them by option. Where the options
    have no such method, every option that holds a `Path` is one.

    Returns:
        Paths and names on the Hub, by entry and option, such as "raters.verifier.path".
    """
    found: dict[str, str] = {}
    for spec in specs:
        options = check_options(spec, "raters" if load_trainer(spec) is None else "trainers")
        files = getattr(options, "files", None)
        if files is None:
            named = {
                name: value for name, value in vars(options).items() if isinstance(value, Path)
            }
        else:
            named = files()
        found |= {f"{spec.where}.{option}": str(path) for option, path in named.items()}
    return found


def load_rater(spec: RaterSpec) -> Rater:
    """Load a rater that is ready to judge."""
    make = load_object(kinds()[spec.kind].load)
    return cast(Rater, make(spec.name, spec.options, spec.where))


def is_ready(spec: RaterSpec) -> bool:
    """Whether an entry names a model to load."""
    return "path" in spec.options


def load_trainer(spec: RaterSpec) -> Trainer | None:
    """Load the trainer of a rater that has no model yet; None when there is nothing to train."""
    train = kinds()[spec.kind].train
    if train is None or is_ready(spec):
        return None
    return cast(Trainer, load_object(train))


def checked_trainer(spec: RaterSpec) -> Trainer | None:
    """What `load_trainer` returns, once the options of training or of judging are checked."""
    trainer = load_trainer(spec)
    check_options(spec, "raters" if trainer is None else "trainers")
    return trainer


# Running raters over pairs -------------------------------------------------------------------


def blind(pairs: pa.Table) -> tuple[list[BlindPair], np.ndarray]:
    """Put both sides of every pair into an order that does not depend on the label.

    Args:
        pairs: table by the schema PAIRS.

    Returns:
        The blind pairs, and for each whether the chosen story stands first; bool, shape (n,).
    """
    blinded, chosen_first = [], []
    columns = [pairs[name].to_pylist() for name in ("pair_id", "prompt", "chosen", "rejected")]
    for pair_id, prompt, chosen, rejected in zip(*columns, strict=True):
        is_first = digest(pair_id, chosen) < digest(pair_id, rejected)
        first, second = (chosen, rejected) if is_first else (rejected, chosen)
        blinded.append(BlindPair(prompt, first, second))
        chosen_first.append(is_first)
    return blinded, np.array(chosen_first, dtype=bool)


def training_prompts_of(pairs: pa.Table) -> frozenset[str]:
    """`prompt_key` of every prompt in a pairs table."""
    return frozenset(prompt_keys(pairs))


def prompts_seen(rater: Rater, pairs: pa.Table) -> list[str]:
    """The prompts of a pairs table that the rater was trained on, sorted."""
    trained = rater.training_prompts()
    if not trained:
        return []
    return sorted(p for p in set(pairs["prompt"].to_pylist()) if prompt_key(p) in trained)


def ask(rater: Rater, pairs: Sequence[BlindPair]) -> list[list[Judgement]]:
    """Let a rater judge, and time it.

    Returns:
        Its judgements, each with `seconds`: what the rater measured itself, or an even share of
        the wall time.

    """
    started = time.perf_counter()
    judged = rater.judge(pairs)
    seconds = time.perf_counter() - started
    spoken = sum(map(bool, judged))
    if spoken != len(pairs) or len(judged) != len(pairs):
        raise DataError(
            f"rater {rater.name}: judged {spoken} of {len(pairs)} pairs: its judge() must return a "
            "judgement for every pair, with prefers='error' where there is none"
        )
    share = seconds / max(sum(map(len, judged)), 1)
    return [
        [one if one.seconds is not None else replace(one, seconds=share) for one in judgements]
        for judgements in judged
    ]


def judge_pairs(rater: Rater, pairs: pa.Table, fold: str | None = None) -> pa.Table:
    """Run a rater over pairs, blind, and write its verdicts.

    Args:
        rater: any rater; one that has a `shard` gets so many pairs at once.
        pairs: table by the schema PAIRS.
        fold: written into the column of that name.

    Returns:
        Table by the schema VERDICTS; one row per pair and order.
    """
    shard: int | None = getattr(rater, "shard", None)
    if shard is None or pairs.num_rows <= shard:
        return _judge_at_once(rater, pairs, fold)
    tables = []
    with tqdm(total=pairs.num_rows, desc=rater.name, unit=" pairs", disable=None) as bar:
        for start in range(0, pairs.num_rows, shard):
            part = pairs.slice(start, shard)
            tables.append(_judge_at_once(rater, part, fold))
            bar.update(part.num_rows)
    return pa.concat_tables(tables)


def _judge_at_once(rater: Rater, pairs: pa.Table, fold: str | None) -> pa.Table:
    blinded, chosen_first = blind(pairs)
    ids = pairs["pair_id"].to_pylist()
    if isinstance(rater, KnowsStories):
        sides = (pairs[f"{side}_story_id"].to_pylist() for side in ("chosen", "rejected"))
        stories = [
            (chosen, rejected) if is_first else (rejected, chosen)
            for chosen, rejected, is_first in zip(*sides, chosen_first, strict=True)
        ]
        judged = rater.judge_known(blinded, stories)
    elif has_texts(pairs).all():
        judged = ask(rater, blinded)
    else:
        raise DataError(
            f"rater {rater.name}: some pairs have no text to read: leave them out (where: of "
            "data_prep/import_ratings.py), or take recorded judges only"
        )
    if isinstance(rater, WritesLogs):
        rater.write_log(judged, chosen_first.tolist())
    rows = [
        {"pair_id": pair_id, "rater": rater.name, "kind": rater.kind, "fold": fold}
        | _to_sides(judgement, "chosen" if is_first else "rejected")
        for pair_id, is_first, judgements in zip(ids, chosen_first, judged, strict=True)
        for judgement in judgements
    ]
    types = {name: column.type for name, column in empty_columns(VERDICTS, 0).items()}
    return pa.Table.from_pylist(rows, pa.schema(types))


def _to_sides(judgement: Judgement, first: Literal["chosen", "rejected"]) -> dict[str, Any]:
    """A judgement in the columns of VERDICTS, where `first` names the first story's side."""
    second = "rejected" if first == "chosen" else "chosen"
    side: dict[str | None, str] = {"first": first, "second": second}
    row = vars(judgement).copy()
    prefers, shown, p_first = (row.pop(name) for name in ("prefers", "first_shown", "p_first"))
    return row | {
        "outcome": side.get(prefers, prefers),
        "order": side.get(shown),
        "p_chosen": p_first if p_first is None or first == "chosen" else 1 - p_first,
        f"reward_{first}": row.pop("reward_first"),
        f"reward_{second}": row.pop("reward_second"),
    }
