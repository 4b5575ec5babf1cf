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
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from litbench.raters.entries import files_of, parse_raters
from litbench.raters.interface import (
    CREDITS,
    UNASKED,
    BlindPair,
    Estimate,
    Judgement,
    Preference,
    Rater,
    ask,
)
from litbench.runs.errors import ConfigError


@dataclass
class PanelOptions:
    """Options of the kind `panel`: at least two entries of the form used under `raters:`."""

    members: dict[str, Any]

    def __post_init__(self) -> None:
        if len(self.members) < 2:
            raise ConfigError(f"members has length {len(self.members)}: a panel needs at least 2")
        self._specs = parse_raters({f"members.{key}": entry for key, entry in self.members.items()})

    def files(self) -> dict[str, str]:
        """The files that the members' verdicts depend on."""
        return {key.removeprefix("raters."): file for key, file in files_of(self._specs).items()}

    def load(self, name: str) -> "Panel":
        specs = zip(self.members, self._specs, strict=True)
        return Panel({key: spec.options.load(f"{name}.{key}") for key, spec in specs}, name)


@dataclass
class Panel(Rater):
    """Several raters with one verdict per pair, independent of order.

    A member's vote is the mean over its orders of 1 for the first story, 0 for the second and 1/2
    for a tie or an order it could not judge. A member that could judge neither order of a pair is
    excluded from that pair and counted. If no member could judge, the outcome is the one all
    members share, or else `unparsed`. Tokens, cost and time are sums.
    """

    members: Mapping[str, Rater]
    name: str = "panel"
    kind: str = "panel"

    def __post_init__(self) -> None:
        self.not_judged = dict.fromkeys(self.members, 0)
        shards = {(rater.kind, rater.shard) for rater in self.members.values()}
        sizes = [shard for _, shard in shards if shard is not None]
        # Batches and items are judged whole; scores of stories can be shards of any size.
        self.shard = None if ("judge", None) in shards else min(sizes, default=None)

    def work_in(self, folder: Path) -> None:
        """Share one folder of answers between members, so that no question is sent twice."""
        for rater in self.members.values():
            rater.work_in(folder)

    def estimate(self, pairs: Sequence[BlindPair]) -> list[Estimate]:
        """Estimate the cost of the members that send requests."""
        return [estimate for rater in self.members.values() for estimate in rater.estimate(pairs)]

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Judge every pair by all members; one judgement per pair, independent of order."""
        for rater in self.members.values():
            rater.may_stop = self.may_stop
        judged = [ask(rater, pairs) for rater in self.members.values()]
        return [[self._verdict(by_member)] for by_member in zip(*judged, strict=True)]

    def _verdict(self, by_member: Sequence[Sequence[Judgement]]) -> Judgement:
        for judgement in chain.from_iterable(by_member):
            if (judgement.explanation or "").startswith(UNASKED):
                return Judgement("error", explanation=judgement.explanation)
        votes = []
        for name, judgements in zip(self.members, by_member, strict=True):
            if any(judged.prefers in CREDITS for judged in judgements):
                votes.append(fmean(CREDITS.get(judged.prefers, 0.5) for judged in judgements))
            else:
                self.not_judged[name] += 1
        everything = list(chain.from_iterable(by_member))
        totals: dict[str, Any] = {}
        for key in ("input_tokens", "output_tokens", "cost_usd", "seconds"):
            numbers = [
                value for judgement in everything if (value := getattr(judgement, key)) is not None
            ]
            totals[key] = sum(numbers) if numbers else None
        if not votes:
            outcomes = {judgement.prefers for judgement in everything}
            return Judgement(outcomes.pop() if len(outcomes) == 1 else "unparsed", **totals)
        # Rounded, because a mean of thirds may differ from one half in the last bit.
        margin = round(fmean(votes) - 0.5, 9)
        prefers: Preference = "tie" if not margin else "first" if margin > 0 else "second"
        return Judgement(prefers, **totals)

    def training_prompts(self) -> frozenset[str]:
        return frozenset().union(*(rater.training_prompts() for rater in self.members.values()))

    def notes(self) -> dict[str, Any]:
        """How many pairs each member could not judge, and the notes of the members."""
        members = {name: rater.notes() for name, rater in self.members.items()}
        return {"not_judged": self.not_judged, "members": members}
