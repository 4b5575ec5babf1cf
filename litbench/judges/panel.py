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

from litbench import raters
from litbench.config import build
from litbench.errors import ConfigError
from litbench.raters import BlindPair, Estimate, Judgement, Preference, Rater

_VOTES = {"first": 1.0, "second": 0.0, "tie": 0.5}


@dataclass
class PanelOptions:
    """A panel: at least two entries as under `raters:`, all of them ready to judge."""

    members: dict[str, Any]

    def __post_init__(self) -> None:
        if len(self.members) < 2:
            raise ConfigError(f"members names {len(self.members)}: a panel needs at least 2")
        for spec in self._specs():
            raters.check_options(spec, "raters")

    def files(self) -> dict[str, str]:
        """The files that the members' verdicts depend on."""
        named = raters.files_of(self._specs())
        return {where.removeprefix("raters."): file for where, file in named.items()}

    def _specs(self) -> list[raters.RaterSpec]:
        return raters.parse_raters({f"members.{key}": one for key, one in self.members.items()})


@dataclass
class Panel(Rater):
    """Several raters, one verdict without order.

    A member has one vote: the mean over its orders of 1 for the first story, 0 for the second and
    1/2 for a tie or an order it could not judge. A member that could judge no order is left out
    of that pair and counted. Where nobody could judge, the outcome is the one that all members
    have, or else `unparsed`. Tokens, cost and time are sums.
    """

    members: Mapping[str, Rater]
    name: str = "panel"
    kind: str = "panel"

    def __post_init__(self) -> None:
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
        answers = [raters.ask(rater, pairs) for rater in self.members.values()]
        return [[self._verdict(said)] for said in zip(*answers, strict=True)]

    def _verdict(self, said: Sequence[Sequence[Judgement]]) -> Judgement:
        votes = []
        for name, judgements in zip(self.members, said, strict=True):
            if any(one.prefers in _VOTES for one in judgements):
                votes.append(fmean(_VOTES.get(one.prefers, 0.5) for one in judgements))
            else:
                self.not_judged[name] += 1
        everything = [one for judgements in said for one in judgements]
        bill: dict[str, Any] = {}
        for key in ("input_tokens", "output_tokens", "cost_usd", "seconds"):
            known = [value for one in everything if (value := getattr(one, key)) is not None]
            bill[key] = sum(known) if known else None
        if not votes:
            reasons = {one.prefers for one in everything}
            return Judgement(reasons.pop() if len(reasons) == 1 else "unparsed", **bill)
        # Rounded, since a mean of thirds may miss one half by the last bit.
        lead = round(fmean(votes) - 0.5, 9)
        prefers: Preference = "tie" if not lead else "first" if lead > 0 else "second"
        return Judgement(prefers, **bill)

    def training_prompts(self) -> frozenset[str]:
        """`prompt_key` of every prompt that a member was trained on."""
        return frozenset().union(*(rater.training_prompts() for rater in self.members.values()))

    def notes(self) -> dict[str, Any]:
        """How many pairs each member could not judge, and what the members say of themselves."""
        members = {name: rater.notes() for name, rater in self.members.items()}
        return {"not_judged": self.not_judged, "members": members}


def rater_from_options(name: str, options: Mapping[str, Any], where: str) -> Panel:
    """The kind `panel` of a config."""
    entries = build(PanelOptions, options, where).members
    specs = raters.parse_raters({f"{name}.{key}": entry for key, entry in entries.items()})
    return Panel(dict(zip(entries, map(raters.load_rater, specs), strict=True)), name)
