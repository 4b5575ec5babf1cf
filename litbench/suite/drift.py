"""Drift: does the model behind a passport still judge as it did when it was measured?

    litbench drift runs/suite/passports/NAME.json --dry_run

Questions of the run are asked again, in blocks, until a change of the judge is found or excluded.
Each question has three answers, two from one time and a single one from the other: two stored
samples and a new answer, or a stored answer and two new ones. If one answer differs from two equal
ones, it is the odd one. Without a change each answer is the odd one with probability 1/3, however
much repeats differ. So the number of questions whose odd answer is the single one is binomial, and
the test is exact.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Annotated, Any

import numpy as np
import pyarrow.compute as pc

from litbench.data.records import SIDES
from litbench.data.text import digest, prompt_key
from litbench.evaluation.results import Evaluation
from litbench.judges.judge import Judge, StoriesQuestion
from litbench.metrics.sequential import boundaries
from litbench.raters.interface import estimates_text
from litbench.runs.config import Positional, nearest
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import file_name
from litbench.suite.invariance import judge_options
from litbench.suite.passport import Drift, read_passport, write_passport

# One-sided error over all looks, the wanted power, and the number of looks.
ALPHA, POWER, LOOKS = 0.01, 0.8, 5
# The repeat rate that a plan assumes without repeats, and the largest plan.
REPEAT_RATE, MAX_QUESTIONS = 0.05, 5_000
_CONFIDENCE = 0.95
_SIMULATIONS = 4_000


@dataclass(frozen=True)
class DriftPlan:
    """How many questions tell whether a judge has changed.

    Attributes:
        questions: the largest number of questions.
        power: how often a change of the planned size is found.
        expected: mean number of questions asked if nothing has changed.
    """

    questions: int
    power: float
    expected: float


def looks_of(questions: int) -> list[int]:
    """Number of questions asked at each look."""
    return [round(questions * look / LOOKS) for look in range(1, LOOKS + 1)]


@cache
def _levels() -> np.ndarray:
    """The p value at or below which each look finds a change."""
    bounds = boundaries(tuple(look / LOOKS for look in range(1, LOOKS + 1)), 2 * ALPHA)
    return np.array([NormalDist().cdf(-bound) for bound in bounds])


def binomial_p(single: Any, odd: Any) -> Any:
    """The chance of at least `single` of `odd` questions whose odd answer is the single one."""
    from scipy import special  # noqa: PLC0415

    return special.bdtrc(np.asarray(single) - 1.0, odd, 1 / 3)


def is_unchanged(single: Any, odd: Any, asked: Any, change: float) -> Any:
    """Whether a change of this size is excluded with 95 % confidence.

    The share of changed questions is that of the single odd answers minus half of the other odd
    ones; its bound adds that of Clopper and Pearson (1934) for the former.
    """
    from scipy import special  # noqa: PLC0415

    single, odd = np.asarray(single, float), np.asarray(odd, float)
    upper = special.betaincinv(single + 1, np.maximum(asked - single, 1e-9), _CONFIDENCE)
    return upper - (odd - single) / 2 / asked < change


def simulate(
    rate: float, change: float, questions: int, planned: float, seed: int = 0
) -> DriftPlan:
    """Simulate drift checks; `power` is the share in which a change is found.

    Of the questions, 2 * rate are coins, so that repeats differ in `rate`; a share `change` gets
    another answer than before.
    """
    random, asked = np.random.default_rng(seed), looks_of(questions)
    coins = min(2 * rate, 1.0)
    chances = [coins / 4 + change, coins / 2, max(1 - 3 * coins / 4 - change, 0.0)]
    blocks = np.diff(asked, prepend=0)
    drawn = np.stack([random.multinomial(n, chances, _SIMULATIONS) for n in blocks], axis=1)
    totals = drawn.cumsum(axis=1)
    single, odd = totals[..., 0], totals[..., :2].sum(axis=2)
    is_changed = binomial_p(single, odd) <= _levels()
    is_decided = is_changed | is_unchanged(single, odd, np.asarray(asked), planned)
    is_decided[:, -1] = True
    first = is_decided.argmax(axis=1)
    power = is_changed[np.arange(_SIMULATIONS), first].mean()
    return DriftPlan(questions, float(power), float(np.take(asked, first).mean()))


@cache
def plan_for(rate: float, change: float) -> DriftPlan:
    """The smallest number of questions that finds a change in 80 %, by simulation.

    Args:
        rate: how often two answers to the same question differ.
        change: share of the questions whose verdict has changed beyond that.
    """
    low, high = LOOKS, MAX_QUESTIONS
    while high - low > max(LOOKS, low // 50):
        middle = (low + high) // 2
        is_enough = simulate(rate, change, middle, change).power >= POWER
        low, high = (low, middle) if is_enough else (middle, high)
    plan = simulate(rate, change, high, change)
    return replace(plan, expected=simulate(rate, 0.0, high, change).expected)


# The command -----------------------------------------------------------------------------------


@dataclass(kw_only=True)
class DriftKeys:
    """Find out whether a judge still judges as its passport says.

        litbench drift runs/suite/passports/NAME.json --dry_run
        litbench drift runs/suite/passports/NAME.json --max_cost_usd 1

    Asks questions of the run again, spread over prompts, in blocks, until a change is found or
    excluded, and writes the result into the passport; `litbench leaderboard` greys a rater whose
    change was found. The error is 1 %; `change` is found in 80 %.

    Attributes:
        passport: a passport of `litbench suite`. It can be the first argument, without --passport.
        run: output folder of the suite; the folder above that of the passport by default.
        change: the share of changed verdicts to find, beyond what repeats explain.
        max_cost_usd: maximum dollars, over all runs with this `out`.
        out: folder of the new answers, RUN/drift/NAME_DATE by default; name it to resume on
            another day.
        dry_run: only estimate calls, tokens, dollars and minutes; needs no API key.
    """

    passport: Annotated[Path, Positional]
    run: Path | None = None
    change: float = 0.1
    max_cost_usd: float | None = None
    out: Path | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class StoredQuestion:
    """A question of a run: the stories and their sides as shown, and the stored outcomes."""

    prompt: str
    stories: tuple[str, str]
    sides: tuple[str, ...]
    outcomes: tuple[str, ...]


def check_drift(config: DriftKeys) -> None:
    """Ask stored questions again until it is decided, and write the result into the passport."""
    if not 0 < config.change < 1:
        raise ConfigError(f"change is {config.change}: give a share between 0 and 1")
    passport = read_passport(config.passport)
    run = config.run or config.passport.parent.parent
    evaluations = [Evaluation.find(run / name) for name in passport.sets]
    judge = _judge_of(evaluations[0], passport.rater, config.max_cost_usd)
    questions = _stored_questions(evaluations, passport.rater)
    measured = repeat_rate(questions)
    rate = REPEAT_RATE if measured is None else measured
    plan = plan_for(round(rate, 2), config.change)
    about = "assumed: there are no repeats" if measured is None else "measured"
    print(
        f"repeats differ in {rate:.1%} ({about}): up to {plan.questions:,} questions find a change "
        f"of {config.change:.0%} with probability {plan.power:.2f}; without a change, about "
        f"{plan.expected:,.0f} are asked"
    )
    if len(questions) < plan.questions:
        print(f"the run has only {len(questions):,} questions, so a change is found less often")
    name = f"{file_name(passport.rater)}_{datetime.now(UTC):%Y-%m-%d}"
    judge.work_in(config.out or run / "drift" / name)
    questions = questions[: plan.questions]
    asked = [_asked(judge, question) for question in questions]
    print(estimates_text(judge.estimate_questions(asked, 2 - (measured is not None))))
    if config.dry_run:
        return
    drift = _ask_until_decided(judge, questions, plan, config.change)
    print(
        f"{drift.result}: {drift.odd} of {drift.questions:,} questions have an odd answer; "
        f"{drift.single} of these are the single answer of their time (expected without a change: "
        f"{drift.odd / 3:.1f}), p = {drift.p_value:.4f}"
    )
    write_passport(replace(passport, drift=drift), config.passport)


def _judge_of(evaluation: Evaluation, rater: str, max_cost_usd: float | None) -> Judge:
    """The judge of an evaluation, without its stored answers."""
    raters = evaluation.manifest["config"]["raters"]
    if rater not in raters:
        raise ConfigError(f"{evaluation.folder} has no rater '{rater}': {nearest(rater, raters)}")
    options = judge_options(evaluation, rater, max_cost_usd)
    if options is None:
        raise ConfigError(f"{rater} cannot be asked again: give the passport of a judge of pairs")
    return Judge(rater, replace(options, answers=None, batch=None))


def _stored_questions(evaluations: Sequence[Evaluation], rater: str) -> list[StoredQuestion]:
    """A question of each pair, in one of its orders: first one of each prompt, then a second.

    Raises:
        DataError: the judge has no verdicts in both orders.
    """
    ranked: list[tuple[int, str, StoredQuestion]] = []
    per_prompt: Counter[str] = Counter()
    for evaluation in evaluations:
        rows = evaluation.verdicts.filter(pc.equal(evaluation.verdicts["rater"], rater)).to_pylist()
        by_pair = {
            row["pair_id"]: row
            for row in sorted(rows, key=lambda row: digest(row["pair_id"], row["order"]))
        }
        table = evaluation.all_pairs.all
        pairs = [pair for pair in table.to_pylist() if pair["pair_id"] in by_pair]
        for pair in sorted(pairs, key=lambda pair: digest(pair["pair_id"])):
            row, prompt = by_pair[pair["pair_id"]], prompt_key(pair["prompt"] or pair["prompt_id"])
            if row["order"] is None:
                raise DataError(f"rater {rater} has no order: only judges of pairs can be checked")
            sides = SIDES if row["order"] == SIDES[0] else SIDES[::-1]
            outcomes = (row["samples"] or row["outcome"]).split()
            question = StoredQuestion(
                pair["prompt"], (pair[sides[0]], pair[sides[1]]), sides, tuple(outcomes)
            )
            ranked.append((per_prompt[prompt], digest(pair["pair_id"]), question))
            per_prompt[prompt] += 1
    return [question for *_, question in sorted(ranked, key=lambda entry: entry[:2])]


def repeat_rate(questions: Sequence[StoredQuestion]) -> float | None:
    """How often the first two stored outcomes of a question differ; None without repeats."""
    repeated = [question.outcomes for question in questions if len(question.outcomes) > 1]
    return fmean(first != second for first, second, *_ in repeated) if repeated else None


def _asked(judge: Judge, question: StoredQuestion) -> StoriesQuestion:
    return StoriesQuestion(judge.template, question.prompt, question.stories)


def _ask_until_decided(
    judge: Judge, questions: Sequence[StoredQuestion], plan: DriftPlan, change: float
) -> Drift:
    """Ask block by block until a change is found or excluded."""
    triples: list[tuple[str, ...]] = []
    looks = [n for n in looks_of(plan.questions) if n < len(questions)]
    single = odd = asked = 0
    for level, asked in zip(_levels(), [*looks, len(questions)], strict=False):
        triples += _triples(judge, questions[len(triples) : asked])
        kinds = [_odd_one(triple) for triple in triples]
        single, odd = kinds.count("single"), len(kinds) - kinds.count(None)
        is_changed = binomial_p(single, odd) <= level
        if is_changed or is_unchanged(single, odd, asked, change):
            break
    is_whole = asked == plan.questions
    excluded = is_whole or bool(is_unchanged(single, odd, asked, change))
    result: Any = "changed" if is_changed else "unchanged" if excluded else "undecided"
    answered_by = sorted(judge.notes()["answered_by"])
    p = round(float(binomial_p(single, odd)), 6)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Drift(result, now, asked, odd, single, change, p, answered_by)


def _triples(judge: Judge, questions: Sequence[StoredQuestion]) -> list[tuple[str, ...]]:
    """The outcomes of each question: two of one time, then the single one of the other time."""
    samples = 1 if len(questions[0].outcomes) > 1 else 2
    asked = judge.ask([_asked(judge, question) for question in questions], samples)
    triples = []
    for number, question in enumerate(questions):
        named = dict(zip("AB", question.sides, strict=True))
        new = [
            named.get(verdict := judge.read_turns(*answer)[0], verdict)
            for answer in asked[number * samples : (number + 1) * samples]
        ]
        triples.append(
            (*question.outcomes[:2], *new) if samples == 1 else (*new, question.outcomes[0])
        )
    return triples


def _odd_one(triple: tuple[str, ...]) -> str | None:
    """Whether the last of three outcomes is the odd one (`single`), or another (`pair`)."""
    if len(set(triple)) != 2 or not set(triple) <= {*SIDES, "tie"}:
        return None
    return "single" if triple[0] == triple[1] else "pair"
