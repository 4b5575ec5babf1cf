"""A panel: several raters judge every pair, and the mean of their votes decides.

raters:
  panel:
    kind: panel
    members:
      verifier: {kind: reward, path: runs/verifier/model}
      judge: {kind: judge, model: openai/gpt-4.1-mini}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from litbench.config import build
from litbench.errors import ConfigError
from litbench.raters import (
    BlindPair,
    Estimate,
    Judgement,
    Preference,
    Rater,
    RaterSpec,
    ask,
    check_options,
    files_of,
    load_rater,
    parse_raters,
)

_VOTES = {"first": 1.0, "second": 0.0, "tie": 0.5}
_BILL = ("input_tokens", "output_tokens", "cost_usd", "seconds")


@dataclass
class PanelOptions:
    """A panel as a rater.

    Attributes:
        members: at least two entries as under `raters:`, all of them ready to judge.
    """

    members: dict[str, Any]

    def __post_init__(self) -> None:
        if len(self.members) < 2:
            raise ConfigError(f"members names {len(self.members)}: a panel needs at least 2")
        for spec in self._specs():
            check_options(spec, "raters")

    def files(self) -> dict[str, str]:
        """The files that the members' verdicts depend on."""
        named = files_of(self._specs())
        return {where.removeprefix("raters."): file for where, file in named.items()}

    def _specs(self) -> list[RaterSpec]:
        return parse_raters({f"members.{key}": entry for key, entry in self.members.items()})


@dataclass
class Panel(Rater):
    """Several raters, one verdict.

    A member has one vote: the mean over its orders of 1 for the first story, 0 for the second and
    1/2 for a tie or an order it could not judge. A member that could judge no order is left out
    of that pair and counted. The mean vote decides; where nobody could judge, the outcome is the
    one that all members have, or else `unparsed`. `p_first` is the mean of the members'
    probabilities, null where a member that voted gives none. The panel has no order of its own;
    tokens, price and time are sums over members.

    Attributes:
        members: the raters, by their names in the config.
        name: the rater's name.
    """

    members: Mapping[str, Rater]
    name: str = "panel"
    kind: str = "panel"

    def __post_init__(self) -> None:
        self.pairs = 0
        self.not_judged = dict.fromkeys(self.members, 0)
        shards = [rater.shard for rater in self.members.values() if rater.shard is not None]
        self.shard = min(shards, default=None)

    def work_in(self, folder: Path) -> None:
        """Let members keep answers in one folder, so that the same question is asked once."""
        for rater in self.members.values():
            rater.work_in(folder)

    def estimate(self, pairs: Sequence[BlindPair]) -> list[Estimate]:
        """What the members that send requests would take."""
        return [found for rater in self.members.values() for found in rater.estimate(pairs)]

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Ask every member about every pair; one judgement each, without order."""
        answers = [ask(rater, pairs) for rater in self.members.values()]
        self.pairs += len(pairs)
        return [[self._verdict(said)] for said in zip(*answers, strict=True)]

    def _verdict(self, said: Sequence[Sequence[Judgement]]) -> Judgement:
        votes, probabilities = [], []
        for name, judgements in zip(self.members, said, strict=True):
            if any(one.prefers in _VOTES for one in judgements):
                votes.append(fmean(_VOTES.get(one.prefers, 0.5) for one in judgements))
                probabilities.append(_mean_probability(judgements))
            else:
                self.not_judged[name] += 1
        everything = [one for judgements in said for one in judgements]
        bill = {key: _total(everything, key) for key in _BILL}
        if not votes:
            reasons = {one.prefers for one in everything}
            return Judgement(reasons.pop() if len(reasons) == 1 else "unparsed", **bill)
        # Rounded, since a mean of thirds may miss one half by the last bit.
        lead = round(fmean(votes) - 0.5, 9)
        prefers: Preference = "tie" if not lead else "first" if lead > 0 else "second"
        known = [p for p in probabilities if p is not None]
        return Judgement(prefers, fmean(known) if len(known) == len(votes) else None, **bill)

    def training_prompts(self) -> frozenset[str]:
        """`prompt_key` of every prompt that a member was trained on."""
        return frozenset().union(*(rater.training_prompts() for rater in self.members.values()))

    def notes(self) -> dict[str, Any]:
        """How many pairs each member could not judge, and what the members say of themselves."""
        members = {name: rater.notes() for name, rater in self.members.items()}
        return {"pairs": self.pairs, "not_judged": self.not_judged, "members": members}


def _mean_probability(judgements: Sequence[Judgement]) -> float | None:
    """Mean over orders; None where an order lacks one, as the other alone has a position bias."""
    known = [one.p_first for one in judgements if one.p_first is not None]
    return fmean(known) if len(known) == len(judgements) else None


def _total(judgements: Sequence[Judgement], key: str) -> Any:
    known = [value for one in judgements if (value := getattr(one, key)) is not None]
    return sum(known) if known else None


def rater_from_options(name: str, options: Mapping[str, Any], where: str) -> Panel:
    """The kind `panel` of a config."""
    entries = build(PanelOptions, options, where).members
    specs = parse_raters({f"{name}.{key}": entry for key, entry in entries.items()})
    return Panel(dict(zip(entries, map(load_rater, specs), strict=True)), name)
