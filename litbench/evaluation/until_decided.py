"""Judge until decided: comparisons stop once they are decided or futile.

    litbench judge pairs.parquet --model openai/gpt-4.1-mini --until decided --against 1/2

Prompts come in a seeded random order, in blocks of whole prompts. After each block, every
comparison that is still open gets a look (`litbench.metrics.sequential`). A killed run repeats the
stored blocks in the same order, and so the same looks. `litbench.writers.until_decided` compares
the grades of writers in the same way.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from litbench.data.records import connected_prompts
from litbench.data.sources.evaluation_pairs import EvaluationPairs
from litbench.data.text import digest
from litbench.evaluation.loop import Job, Result
from litbench.metrics.agreement import PairScores, pair_scores
from litbench.metrics.comparisons import difference_interval, holm
from litbench.metrics.intervals import (
    ClusteredMean,
    Interval,
    clustered_mean,
    effective_clusters,
    training_of_difference,
)
from litbench.metrics.leaderboard import CHANCE, check_reference, longer_is_coin, plain
from litbench.metrics.power import Case, detectable, needed_signal
from litbench.metrics.sequential import (
    ALPHA,
    GAMMA,
    MIN_POWER,
    MIN_PROMPTS,
    boundaries,
    conditional_power,
    decided,
    expected_looks,
    level_at,
    prompts_at_looks,
    repeated_p,
    stagewise_interval,
    z_of_p,
)
from litbench.raters.entries import RaterSpec
from litbench.raters.interface import UNASKED, blind
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import read_manifest
from litbench.runs.terminal import clean_name, show, write_dollars

# Kinds of raters that ask a model; others cost nothing and judge all pairs.
ASKING = ("judge", "rubric", "panel")
# Raters as in small real sets, for the difference that a plan can find.
_USUAL_AGREEMENT, _USUAL_CORRELATION = 0.7, 0.1
POWER = 0.8
_NO_PROMPTS = ClusteredMean(math.nan, math.nan, 0, 0, 0.0)


@dataclass(kw_only=True)
class UntilKeys:
    """Keys of a benchmark that stops early.

    Attributes:
        until: `decided` judges block by block and stops each rater that asks a model once its
            comparison is decided or futile; null judges all pairs.
        against: with `until`, the rater that all others are compared with, 1/2, or an agreement
            such as 0.7; null for the reference.
        looks: maximum number of looks, after blocks of equally many prompts.
        futility: stop a comparison that can hardly be decided any more; with false, the same
            command continues, and the error stays the same.
        order_seed: seed of the order of the prompts.
    """

    until: Literal["decided"] | None = None
    against: str | None = None
    looks: Annotated[int, Field(ge=1)] = 10
    futility: bool = True
    order_seed: int = 0


def until_keys(config: UntilKeys) -> UntilKeys:
    """The keys of a config that has more keys."""
    return UntilKeys(**{key: getattr(config, key) for key in vars(UntilKeys())})


def prompt_order(keys: UntilKeys, prompts: Collection[str]) -> list[str]:
    """The prompts in their seeded random order."""
    return sorted(set(prompts), key=lambda prompt: digest("order", keys.order_seed, prompt))


@dataclass(frozen=True)
class Plan:
    """What is compared, and the looks.

    Attributes:
        keys: see `UntilKeys`.
        against: the reference: a name, or the name of a number.
        level: the number; None for a name.
        prompts: prompts judged at each look; shape (looks,).
        counts: pairs of the leaderboard judged at each look, or the prompts; shape (looks,).
        quantity: of the grades of writers; empty for the agreement of raters.
    """

    keys: UntilKeys
    against: str
    level: float | None
    prompts: Sequence[int]
    counts: Sequence[int]
    quantity: str = field(default="", kw_only=True)

    @property
    def shares(self) -> list[float]:
        """Share of the pairs judged at each look."""
        return [count / self.counts[-1] for count in self.counts]

    @property
    def limit(self) -> float:
        """The largest possible difference."""
        return math.inf if self.quantity else 1.0

    @property
    def note(self) -> str:
        """Why no early stop is possible; empty if it is."""
        if len(self.counts) > 1:
            return ""
        few = f"{self.prompts[-1]} prompts are fewer than {MIN_PROMPTS}"
        return f"No early stop: {few if self.prompts[-1] < MIN_PROMPTS else 'a single look'}."

    def plain(self) -> dict[str, Any]:
        """The plan as in the record of `litbench.evaluation.stopping`."""
        return {
            "against": self.against,
            "level": self.level,
            "alpha": round(ALPHA, 6),
            "gamma": GAMMA,
            "min_power": MIN_POWER if self.keys.futility else None,
            "order_seed": self.keys.order_seed,
            "prompts": list(self.prompts),
            "pairs": list(self.counts),
            **({"quantity": self.quantity} if self.quantity else {}),
        }


@dataclass
class _Comparison:
    """A name against the reference: its looks, and how it ended; "" while it is open."""

    name: str
    is_sequential: bool
    looks: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""
    estimate: ClusteredMean = _NO_PROMPTS
    p_value: float = math.nan

    @property
    def is_open(self) -> bool:
        return self.is_sequential and not self.reason


class Looks:
    """The comparisons of a plan, each until it has ended.

    Attributes:
        plan: the plan.
    """

    def __init__(self, plan: Plan, compared: Mapping[str, bool]) -> None:
        """Prepare; `compared` says by name whether looks can stop it, or all is there at once."""
        self.plan = plan
        self._ended_at: dict[str, int] = {}
        self._comparisons = {name: _Comparison(name, row) for name, row in compared.items()}
        for comparison in self._comparisons.values():
            if not comparison.is_sequential:
                self._compare(comparison, len(plan.counts) - 1)

    def estimate(self, name: str, look: int) -> ClusteredMean:
        """The difference from the reference at a look, as the report computes it."""
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        """Whether a comparison is open."""
        return any(comparison.is_open for comparison in self._comparisons.values())

    def end_by_limit(self) -> None:
        """End all open comparisons at their last look."""
        for comparison in self._comparisons.values():
            if comparison.is_open:
                comparison.reason = "limit"

    def record(self) -> dict[str, Any]:
        """The record, see `litbench.evaluation.stopping`."""
        compared = list(self._comparisons.values())
        adjusted = holm([comparison.p_value for comparison in compared])
        comparisons = {}
        for comparison, p_holm in zip(compared, adjusted, strict=True):
            interval, _ = difference_interval(comparison.estimate, self.plan.limit)
            if comparison.looks:
                interval = self._interval(comparison)
            comparisons[comparison.name] = {
                "reason": comparison.reason or "fixed",
                "looks": comparison.looks,
                "interval": interval,
                "p_value": comparison.p_value,
                "p_holm": p_holm,
            }
        levels = {
            name: level_at(self.plan.shares[: look + 1]) for name, look in self._ended_at.items()
        }
        content: dict[str, Any] = plain(
            {
                "plan": self.plan.plain(),
                "note": self.plan.note,
                "levels": levels,
                "comparisons": comparisons,
            }
        )
        return content

    def _interval(self, comparison: _Comparison) -> Interval:
        """The interval of a difference that allows for the looks.

        A run that a limit ended may go on, so that only a repeated interval covers.
        """
        shares, limit = self.plan.shares[: len(comparison.looks)], self.plan.limit
        if comparison.reason == "limit":
            return difference_interval(comparison.estimate, limit, level_at(shares))[0]
        bounds = [look["bound"] for look in comparison.looks[:-1]]
        return stagewise_interval(comparison.estimate, shares, bounds, limit)

    def _compare(self, comparison: _Comparison, look: int) -> float:
        """Estimate a difference at a look; returns z."""
        comparison.estimate = self.estimate(comparison.name, look)
        _, comparison.p_value = difference_interval(comparison.estimate, self.plan.limit)
        return z_of_p(comparison.p_value, comparison.estimate.mean)

    def compare_at(self, look: int) -> None:
        """Compare what is open with the boundaries, and end what is decided or futile."""
        shares = self.plan.shares
        current = [comparison for comparison in self._comparisons.values() if comparison.is_open]
        z_of = {comparison.name: self._compare(comparison, look) for comparison in current}
        for comparison in current:
            comparison.p_value = repeated_p(shares[: look + 1], z_of[comparison.name])
        done = decided({name: row.p_value for name, row in self._comparisons.items()})
        tested = [row for row in self._comparisons.values() if not math.isnan(row.p_value)]
        alpha = ALPHA / max(len(tested) - len(done), 1)
        # A comparison decided here met the boundary of its turn in Holm's order.
        bounds = boundaries(tuple(shares), alpha)
        is_last = look == len(shares) - 1
        for comparison in current:
            z = z_of[comparison.name]
            power = None
            if not is_last and not math.isnan(z):
                power = float(conditional_power(shares[look], z, bounds[-1]))
            if comparison.name in done:
                comparison.reason = "decided"
            elif is_last:
                comparison.reason = "undecided"
            elif self.plan.keys.futility and power is not None and power < MIN_POWER:
                comparison.reason = "futile"
            comparison.looks.append(
                {
                    "prompts": self.plan.prompts[look],
                    "pairs": self.plan.counts[look],
                    "mean": comparison.estimate.mean,
                    "z": z,
                    "bound": bounds[look],
                    "p": comparison.p_value,
                    "power": power,
                    "detectable": self._detectable(comparison, look, alpha),
                }
            )
        self._print(look, current)

    def _detectable(self, comparison: _Comparison, look: int, alpha: float) -> float:
        """The difference that all pairs would find in 80 %, by the variance of this look."""
        error = comparison.estimate.error * math.sqrt(self.plan.shares[look])
        return float(needed_signal(POWER, math.inf, alpha) * error)

    def _print(self, look: int, current: Sequence[_Comparison]) -> None:
        counts, prompts = self.plan.counts, self.plan.prompts
        unit = "prompts" if self.plan.quantity else "pairs"
        pairs = f"{counts[look]:,} of {counts[-1]:,} pairs, " if unit == "pairs" else ""
        print(f"look {look + 1}: {pairs}{prompts[look]:,} of {prompts[-1]:,} prompts")
        for comparison in current:
            row = comparison.looks[-1]
            text = (
                f"  {clean_name(comparison.name)} - {clean_name(self.plan.against)}: "
                f"{row['mean']:+.3f}, z {row['z']:.2f}, boundary {row['bound']:.2f}"
            )
            if look == 0:
                text += f", all {unit} would find ±{row['detectable']:.3f}"
            print(f"{text}, {comparison.reason}" if comparison.reason else text)


@dataclass(frozen=True)
class PairPlan(Plan):
    """The order of the pairs and the looks.

    Attributes:
        is_coin: whether 1/2 replaces the longer story, see `reference_credits`.
        pairs: all pairs.
        blocks: pairs of each block.
    """

    is_coin: bool
    pairs: EvaluationPairs
    blocks: Sequence[pa.Table]

    def headline(self, look: int) -> pa.Table:
        """The pairs of the leaderboard judged at a look."""
        ids = pa.concat_arrays(
            block["pair_id"].combine_chunks() for block in self.blocks[: look + 1]
        )
        return self.pairs.headline.filter(pc.is_in(self.pairs.headline["pair_id"], ids))


def make_plan(
    keys: UntilKeys, reference: str, specs: Sequence[RaterSpec], pairs: EvaluationPairs
) -> PairPlan:
    """Order the prompts, and place the looks.

    Raises:
        ConfigError: no rater asks a model, or `against` is neither a rater nor a number.
    """
    if not any(spec.kind in ASKING for spec in specs):
        raise ConfigError(
            f"until: no rater asks a model (kinds {', '.join(ASKING)}), so there is nothing to "
            "stop: leave until out"
        )
    is_coin = longer_is_coin(pairs.headline)
    against, level = _against(keys.against or reference, specs, is_coin=is_coin)
    is_coin &= against == CHANCE
    groups = connected_prompts(pairs.all)
    order = prompt_order(keys, groups)
    rank = {group: number for number, group in enumerate(order)}
    ranks = np.array([rank[group] for group in groups])
    is_headline = pc.is_in(pairs.all["pair_id"], pairs.headline["pair_id"]).to_numpy()
    blocks: list[pa.Table] = []
    prompts: list[int] = []
    counts: list[int] = []
    start = 0
    for end in prompts_at_looks(len(order), keys.looks):
        count = int(is_headline[ranks < end].sum())
        # A look needs new pairs.
        if count > (counts[-1] if counts else 0):
            rows = np.flatnonzero((ranks >= start) & (ranks < end))
            blocks.append(pairs.all.take(rows[np.argsort(ranks[rows], kind="stable")]))
            prompts.append(end)
            counts.append(count)
            start = end
    return PairPlan(keys, against, level, prompts, counts, is_coin, pairs, blocks)


def _against(name: str, specs: Sequence[RaterSpec], *, is_coin: bool) -> tuple[str, float | None]:
    """The name and the number of the reference, see `Plan`."""
    if name == CHANCE:
        return CHANCE, 0.5
    kinds = {spec.name: spec.kind for spec in specs}
    level = reference_level(name, list(kinds))
    if level is not None and not 0 < level < 1:
        raise ConfigError(f"against is {name}: give an agreement between 0 and 1, or a rater")
    if kinds.get(name) == "longer" and is_coin:
        return CHANCE, 0.5
    return name, level


def reference_level(name: str, names: Collection[str]) -> float | None:
    """The number that a reference is; None for one of the names, else a ConfigError."""
    if name in names:
        return None
    try:
        return float(name)
    except ValueError:
        check_reference(name, list(names))
        raise


class UntilDecided(Looks):
    """Judges the pairs of a plan until every comparison has ended.

    Attributes:
        plan: the plan.
        asked: the raters that ask a model.
        limit: the limit that ended a rater; empty if none did.
    """

    plan: PairPlan

    def __init__(self, plan: PairPlan, specs: Sequence[RaterSpec], free: Sequence[Result]) -> None:
        """Prepare; `free` are the results of the raters that ask no model, on all pairs."""
        self.asked = [spec for spec in specs if spec.kind in ASKING]
        self.limit = ""
        self._free = [result.verdicts for result in free]
        self._verdicts: dict[str, list[pa.Table]] = {spec.name: [] for spec in self.asked}
        compared = {
            spec.name: spec.name in self._verdicts or plan.against in self._verdicts
            for spec in specs
            if spec.name != plan.against and not (spec.kind == "longer" and plan.is_coin)
        }
        super().__init__(plan, compared)

    def run(
        self, label: str, data: Any, judge: Callable[[Sequence[Job]], Iterable[Result]]
    ) -> list[Result]:
        """Judge block by block; returns the results of the raters that ask a model.

        Args:
            label: end of the labels of jobs: "@SET", or empty for a single set.
            data: plain values that change whenever the pairs change.
            judge: judges jobs, see `litbench.evaluation.loop.evaluate`.
        """
        results: list[Result] = []
        for look in range(len(self.plan.blocks)):
            active = [spec for spec in self.asked if self._is_active(spec.name)]
            if not active:
                break
            judged = list(judge([self._job(spec, look, label, data) for spec in active]))
            self._end_unasked(judged)
            if not self.limit:
                results += judged
                for result in judged:
                    self._verdicts[result.job.spec.name].append(result.verdicts)
                    self._ended_at[result.job.spec.name] = look
                self.compare_at(look)
            if self.limit:
                break
        if not results:
            raise ConfigError(f"{self.limit}; the first look was not reached")
        return results

    def _job(self, spec: RaterSpec, look: int, label: str, data: Any) -> Job:
        block = self.plan.blocks[look]
        depends_on = [data, "block", digest(*block["pair_id"].to_pylist())]
        name = f"{spec.name}{label}.{look + 1}"
        return Job(spec, name, lambda: block, depends_on, work=block.num_rows)

    def _is_active(self, rater: str) -> bool:
        """Whether a comparison of the rater is open."""
        return self.is_open if rater == self.plan.against else self._comparisons[rater].is_open

    def _end_unasked(self, judged: Sequence[Result]) -> None:
        """Note the first limit that left a pair unasked; the block is then not used."""
        for result in judged:
            details = result.verdicts["explanation"].to_pylist()
            for detail in details:
                if detail is not None and detail.startswith(UNASKED):
                    self.limit = f"{result.job.spec.name}: {detail.removeprefix(UNASKED)}"
                    self.end_by_limit()
                    return

    def _scores(self, rater: str, pairs: pa.Table) -> PairScores:
        tables = self._verdicts.get(rater) or self._free
        table = pa.concat_tables(tables, promote_options="default")
        (scores,) = pair_scores(table.filter(pc.equal(table["rater"], rater)), pairs)
        return scores

    def estimate(self, name: str, look: int) -> ClusteredMean:
        """The difference of a rater from the reference at a look."""
        pairs, level = self.plan.headline(look), self.plan.level
        scores = self._scores(name, pairs)
        base, training = np.full(pairs.num_rows, level), scores.training
        if level is None:
            reference = self._scores(self.plan.against, pairs)
            base = reference.credit
            training = training_of_difference(scores.training, reference.training)
        return clustered_mean(scores.credit - base, connected_prompts(pairs), training)


def print_plan(plan: PairPlan, specs: Sequence[RaterSpec], folder: Path, results: Path) -> None:
    """Print the expected cost of each rater that asks a model, sending no request.

    The expected share of the calls depends on the difference in units of what the plan can find,
    and not on the variance. What it can find is taken from the looks of an earlier run that a limit
    ended, such as a pilot, or else computed for usual raters with independent errors.

    Args:
        plan: the plan.
        specs: all raters.
        folder: has stored answers.
        results: output folder of the set.
    """
    comparisons = sum(spec.name != plan.against for spec in specs)
    alpha = ALPHA / max(comparisons, 1)
    sizes = np.unique(connected_prompts(plan.pairs.headline), return_counts=True)[1]
    case = Case(
        agreement=_USUAL_AGREEMENT,
        reference=_USUAL_AGREEMENT if plan.level is None else None,
        intra_prompt=_USUAL_CORRELATION,
        pairs=int(sizes.sum()),
        prompts=max(effective_clusters(sizes), 2.0),
    )
    basis = (
        f"agreement is near {_USUAL_AGREEMENT}, errors are independent and pairs of a prompt "
        f"correlate by {_USUAL_CORRELATION}; the first look measures it"
    )
    planned = _measured(results, plan.against)
    if planned is not None:
        basis = "differences vary as in the last look of the earlier run"
    else:
        planned = detectable(case, alpha=alpha)
    names = ["planned", "twice"] if planned is None else [f"{planned:.3f}", f"{2 * planned:.3f}"]
    print(
        f"until decided against {clean_name(plan.against)}: {len(plan.blocks)} looks, the first at "
        f"{plan.prompts[0]:,} of {plan.prompts[-1]:,} prompts. {plan.note}".rstrip()
    )
    print(f"All pairs find a difference of {names[0]} in 80 %, if {basis}.")
    signal = needed_signal(POWER, math.inf, alpha)
    chances = {"worst case": np.ones(len(plan.blocks))} | {
        name: expected_looks(plan.shares, alpha, drift, futility=plan.keys.futility)
        for name, drift in zip(("none", *names), (0.0, signal, 2 * signal), strict=True)
    }
    rows: list[Sequence[str]] = [("rater", "true difference", "share", "calls", "$")]
    for spec in specs:
        if spec.kind in ASKING:
            # The reference is asked as long as any comparison is open.
            times = comparisons if spec.name == plan.against else 1
            of_rater = {name: 1 - (1 - chance) ** times for name, chance in chances.items()}
            rows += _cost_rows(plan, spec, folder, of_rater)
    print(show(rows))


def _measured(folder: Path, against: str) -> float | None:
    """The difference that all pairs would find by an earlier run in this folder; None without."""
    try:
        record = read_manifest(folder)["counts"].get("until_decided")
    except DataError:
        return None
    if record is None or record["plan"]["against"] != against:
        return None
    looks = [row["looks"][-1] for row in record["comparisons"].values() if row["looks"]]
    # None if a single prompt has all pairs.
    return max((look["detectable"] for look in looks if look["detectable"]), default=None)


def _cost_rows(
    plan: PairPlan, spec: RaterSpec, folder: Path, chances: Mapping[str, np.ndarray]
) -> list[Sequence[str]]:
    """Expected shares, calls and dollars of a rater, by the chances to be asked each block."""
    rater = spec.load(folder)
    blocks = [rater.estimate(blind(block)[0]) for block in plan.blocks]
    calls = np.array([sum(row.calls for row in block) for block in blocks])
    # NaN without a price.
    dollars = np.array(
        [
            sum(math.nan if row.cost_usd is None else row.cost_usd for row in block)
            for block in blocks
        ]
    )
    steps = np.diff(plan.shares, prepend=0.0)
    rows: list[Sequence[str]] = []
    for name, chance in chances.items():
        cost = float(chance @ dollars)
        written = write_dollars(None if math.isnan(cost) else cost)
        rows.append((spec.name, name, f"{chance @ steps:.0%}", f"{chance @ calls:,.0f}", written))
    return rows


def ended_notes(record: Mapping[str, Any]) -> str:
    """How many comparisons ended in which way, for a table of several sets."""
    reasons = Counter(row["reason"] for row in record["comparisons"].values() if row["looks"])
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())
