"""Raters: the interface, and blind judging of pairs.

A rater gets a prompt and two texts in an order that does not depend on the label. It never sees
which text was chosen, nor votes or times. `judge_pairs` hides the labels, runs the rater and
returns verdicts. `litbench.raters.entries` reads the entries of raters in configs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.records import SIDES, VERDICTS, empty_columns, has_texts, prompt_keys
from litbench.data.text import NO_TEXT, are_empty, digest, prompt_key, valid_unicode
from litbench.raters.scope import Flags, Scope
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.progress import ProgressBar
from litbench.runs.terminal import show, write_dollars

# The explanation of an error where a limit did not allow the question.
UNASKED = "not asked: "
# More stories cost time and barely improve the percentile.
_STORIES_FOR_QUANTILES = 200

Preference = Literal["first", "second", "tie", "unparsed", "refused", "cut", "error"]
# The preference that a verdict or an outcome states, if the first story is A.
PREFERENCES: dict[str, Preference] = {
    "A": "first",
    "B": "second",
    "tie": "tie",
    "unparsed": "unparsed",
    "refused": "refused",
    "cut": "cut",
    "error": "error",
}
_SWAPPED: dict[Preference, Preference] = {"first": "second", "second": "first"}
# The credit of the first story; a pair that was not judged is not here.
CREDITS = {"first": 1.0, "second": 0.0, "tie": 0.5}


def swap(preference: Preference) -> Preference:
    """The preference if the stories change places."""
    return _SWAPPED.get(preference, preference)


@dataclass(frozen=True)
class BlindPair:
    """A pair as a rater sees it, independent of which story was chosen.

    `item` is shared by the pairs of answers that people compared together; None for other pairs.
    """

    prompt: str
    first: str
    second: str
    item: str | None = None


@dataclass(frozen=True)
class Judgement:
    """A rater's judgement of one BlindPair; for the fields see `litbench.data.records.VERDICTS`.

    `first_shown` is the story that came first in the rater's input; None if the rater scores
    stories separately. If `seconds` is None, the wall time of the shard is divided equally.
    `messages` are the (role, text) pairs of the conversation, for logs. `samples` are the
    preferences of repeated answers, whose mean is `prefers`; empty for a single answer.
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
    messages: Sequence[tuple[str, str]] = ()
    samples: Sequence[Preference] = ()


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of judging some pairs: `calls` to send, and `known` stored answers.

    Costs are in dollars, None if the price is unknown. `cost_usd` and `output_tokens` assume
    answers of typical length, `most_cost_usd` answers of the maximum length. `basis` says what
    `seconds` rests on.
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
    basis: str = ""


def estimates_text(estimates: Sequence[Estimate]) -> str:
    """Estimates as a table for the terminal."""
    heading = ("model", "calls", "stored", "tokens in", "tokens out", "$", "$ at most", "minutes")
    rows = [
        (
            row.model if row.rater == row.model else f"{row.rater} ({row.model})",
            *(f"{n:,}" for n in (row.calls, row.known, row.input_tokens, row.output_tokens)),
            *(write_dollars(n) for n in (row.cost_usd, row.most_cost_usd)),
            f"{row.seconds / 60:.1f}",
        )
        for row in estimates
    ]
    bases = [
        f"minutes of {row.rater}: {row.basis}\n" for row in estimates if row.calls and row.basis
    ]
    return "".join(bases) + show([heading, *rows])


class Rater:
    """Base class of raters, which prefer one of two stories. Subclasses define `judge`.

    Attributes:
        shard: number of pairs passed to `judge` per call; None for all pairs.
        needs_texts: whether pairs without texts are an error. If false, `judge` gets the
            `story_id` in place of a missing text.
        reads_prompt: whether verdicts need the prompt, so that a pair without one is an error.
        may_stop: whether `judge` may leave pairs out when a limit is reached: their judgements are
            errors whose explanation starts with `UNASKED`.
        columns: columns of the prompt and the story (`text`) in the data that it was trained on.
        scope: what its training stories look like; None if it is not known.
    """

    name: str
    kind: str
    shard: int | None = None
    needs_texts = True
    reads_prompt = False
    may_stop = False
    columns: Mapping[str, str] = MappingProxyType({})
    scope: Scope | None = None

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Judge every pair; returns one judgement per order read, or one if order is irrelevant."""
        raise NotImplementedError

    def compare(
        self, prompts: Sequence[str], stories: Sequence[str], others: Sequence[str]
    ) -> np.ndarray:
        """Return how far each story is preferred to the other story of its prompt.

        Args:
            prompts: shape (n,).
            stories: shape (n,).
            others: shape (n,).

        Returns:
            float64, shape (n,): the probability that `stories` is preferred, or 1, 1/2 (a tie) and
            0 if the rater gives no probabilities; averaged over the orders that it reads. NaN
            where an order was not judged.
        """
        pairs = [BlindPair(*row) for row in zip(prompts, stories, others, strict=True)]
        preferred: np.ndarray = np.array(
            [
                np.mean(
                    [
                        CREDITS.get(answer.prefers, np.nan)
                        if answer.p_first is None
                        else answer.p_first
                        for answer in judged
                    ]
                )
                for judged in self.judge(pairs)
            ],
            dtype=np.float64,
        )
        return preferred

    def flags(self, stories: Sequence[str]) -> Flags:
        """Return whether each story is prose, and like the training stories, with reasons."""
        return self.scope.flags(stories) if self.scope else Flags.unknown(len(stories))

    def learn_scope(self, pairs: pa.Table) -> None:
        """Set `scope` from the stories of the training pairs; None if they are too few."""
        both = zip(*(pairs[name].to_pylist() for name in ("prompt", *SIDES)), strict=True)
        rows = [(prompt, text) for prompt, *texts in both for text in texts if text]
        self.scope = Scope.learn([prompt for prompt, _ in rows], [text for _, text in rows])

    def training_prompts(self) -> frozenset[str]:
        """Return the `litbench.data.text.prompt_key` of every prompt the rater was trained on."""
        return frozenset()

    def flipped_by(self, pairs: Sequence[BlindPair]) -> list[list[str]] | None:
        """Return the training prompts without any of which the rater prefers the other story.

        Cross-validation asks raters that are cheap to train again; the intervals of others have
        twice the variance (see `litbench.metrics.intervals.Training`).

        Returns:
            For each pair, names of `litbench.data.records.connected_prompts` of the training pairs;
            None if training again without each prompt takes too long.
        """
        del pairs
        return None

    def notes(self) -> dict[str, Any]:
        """Return notes for the manifest, such as the number of truncated stories."""
        return {}

    def work_in(self, folder: Path) -> None:
        """Store answers and logs in `folder`, unless the rater's options name another folder."""

    def estimate(self, pairs: Sequence[BlindPair]) -> list[Estimate]:
        """Estimate the cost without sending requests; returns one entry per model."""
        del pairs
        return []

    def write_log(
        self, judged: Sequence[Sequence[Judgement]], chosen_first: Sequence[bool]
    ) -> None:
        """Log judgements, with labels; both arguments have shape (pairs,)."""


class ScoreRater(Rater):
    """A rater that scores each story separately and prefers the higher reward.

    Subclasses define `score`. Each distinct (prompt, story) is scored once.

    Attributes:
        gives_probability: whether sigmoid(difference of rewards) is a probability.
        applies_sigmoid: whether other programs return the sigmoid of the reward by default.
        reward_quantiles: the quantiles 0, 0.01, ..., 1 of the rewards of the training stories; None
            if they are not known.
        load_exact: loads the same rater in float32, if it scores in 16 bits by `dtype: auto`.
    """

    load_exact: "Callable[[], ScoreRater] | None" = None
    gives_probability = False
    applies_sigmoid = False
    reward_quantiles: list[float] | None = None

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Return rewards, float64, shape (n,).

        Implementations call `check_stories` first: an empty story is a DataError.
        """
        raise NotImplementedError

    def percentiles(self, rewards: Sequence[float] | np.ndarray) -> np.ndarray | None:
        """Return the percentile of each reward among the rewards of the training stories.

        Returns:
            float64, shape (n,), 0 to 100; None if `reward_quantiles` is None.
        """
        if self.reward_quantiles is None:
            return None
        percents = np.linspace(0, 100, len(self.reward_quantiles))
        ranks: np.ndarray = np.interp(np.asarray(rewards), self.reward_quantiles, percents)
        return ranks.round(1)

    def score_training_stories(self, pairs: pa.Table) -> tuple[list[tuple[str, str]], np.ndarray]:
        """Set `reward_quantiles`, from at most 200 stories of the training pairs, drawn by hash.

        Returns:
            The prompts and stories, and their rewards, float64, shape (n,).
        """
        blinded, _ = blind(pairs)
        texts = {(pair.prompt, story) for pair in blinded for story in (pair.first, pair.second)}
        drawn = sorted(texts, key=lambda text: digest(*text))[:_STORIES_FOR_QUANTILES]
        rewards = self.score([prompt for prompt, _ in drawn], [story for _, story in drawn])
        self.reward_quantiles = quantiles_of(rewards)
        return drawn, rewards

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Compare rewards; equal rewards are a tie, non-finite rewards raise a DataError."""
        inputs = ((pair.prompt, story) for pair in pairs for story in (pair.first, pair.second))
        distinct = list(dict.fromkeys(inputs))
        rewards = self.score([prompt for prompt, _ in distinct], [story for _, story in distinct])
        if bad := int((~np.isfinite(rewards)).sum()):
            raise DataError(
                f"rater {self.name}: {bad} of {len(rewards)} rewards are not finite: "
                "check the model's weights and precision"
            )
        reward_of = dict(zip(distinct, rewards.tolist(), strict=True))
        judged = []
        for pair in pairs:
            first, second = (reward_of[pair.prompt, story] for story in (pair.first, pair.second))
            prefers: Preference = "tie"
            if first != second:
                prefers = "first" if first > second else "second"
            p_first = float(1 / (1 + np.exp(np.clip(second - first, -500, 500))))
            judged.append(
                [Judgement(prefers, p_first if self.gives_probability else None, first, second)]
            )
        return judged


def check_stories(stories: Sequence[str]) -> None:
    """Raise a DataError that names the first story without visible text; raters call it first."""
    empty = are_empty(pa.array(map(valid_unicode, stories), pa.large_string())).to_pylist()
    if any(empty):
        raise DataError(
            f"story {empty.index(True) + 1} of {len(empty)}: {NO_TEXT}: leave out empty stories"
        )


def quantiles_of(rewards: np.ndarray) -> list[float]:
    """Return the quantiles 0, 0.01, ..., 1 of rewards, as `ScoreRater.reward_quantiles`."""
    quantiles: list[float] = np.quantile(rewards, np.linspace(0, 1, 101)).round(6).tolist()
    return quantiles


# Judging pairs -------------------------------------------------------------------------------


def blind(pairs: pa.Table) -> tuple[list[BlindPair], np.ndarray]:
    """Put both stories of every pair into an order that does not depend on the label.

    Returns:
        The blind pairs, and whether the chosen story comes first; bool, shape (n,).
    """
    columns = [pairs[name].to_pylist() for name in ("pair_id", "prompt")]
    for side in SIDES:
        texts, ids = pairs[side].to_pylist(), pairs[f"{side}_story_id"].to_pylist()
        columns.append([text or name for text, name in zip(texts, ids, strict=True)])
    has_items = "item_id" in pairs.column_names
    columns.append(pairs["item_id"].to_pylist() if has_items else [None] * pairs.num_rows)
    blinded, chosen_first = [], []
    for pair_id, prompt, chosen, rejected, item in zip(*columns, strict=True):
        is_first = digest(pair_id, chosen) < digest(pair_id, rejected)
        first, second = (chosen, rejected) if is_first else (rejected, chosen)
        blinded.append(BlindPair(prompt, first, second, item))
        chosen_first.append(is_first)
    return blinded, np.array(chosen_first, dtype=bool)


def training_prompts_of(pairs: pa.Table) -> frozenset[str]:
    """Return the distinct `prompt_key`s of a pairs table."""
    return frozenset(prompt_keys(pairs))


def check_prompts(pairs: pa.Table, reads_prompt: bool, reader: str) -> None:
    """Raise a DataError if a reader of the prompts gets pairs without them."""
    if reads_prompt and (missing := pc.sum(pc.equal(pairs["prompt"], "")).as_py()):
        raise DataError(
            f"{reader} reads the prompt, and {missing:,} of {pairs.num_rows:,} pairs have none: "
            "use form: story, or a template without {prompt}"
        )


def check_training_prompts(rater: Rater, table: pa.Table, when: str) -> int:
    """Count the prompts that a rater was trained on; with "refuse", any is a ConfigError."""
    trained = rater.training_prompts()
    prompts = set(table["prompt"].to_pylist()) if trained else set()
    seen = [prompt for prompt in prompts if prompt_key(prompt) in trained]
    if seen and when == "refuse":
        raise ConfigError(
            f"rater {rater.name} was trained on {len(seen)} of the prompts of these pairs, such as "
            f"{min(seen)!r:.80}: evaluate on other prompts, or set on_training_prompts to flag"
        )
    return len(seen)


def ask(rater: Rater, pairs: Sequence[BlindPair]) -> list[list[Judgement]]:
    """Judge pairs; judgements without `seconds` get an equal share of the wall time."""
    started = time.perf_counter()
    judged = rater.judge(pairs)
    seconds = time.perf_counter() - started
    answered = sum(map(bool, judged))
    if answered != len(pairs) or len(judged) != len(pairs):
        raise DataError(
            f"rater {rater.name}: judged {answered} of {len(pairs)} pairs: judge() must return a "
            "judgement for every pair, with prefers='error' if it failed"
        )
    share = seconds / max(sum(map(len, judged)), 1)
    return [
        [
            judgement if judgement.seconds is not None else replace(judgement, seconds=share)
            for judgement in judgements
        ]
        for judgements in judged
    ]


def judge_pairs(rater: Rater, pairs: pa.Table, fold: str | None = None) -> pa.Table:
    """Judge pairs (schema PAIRS) blind.

    Returns:
        Table with the schema VERDICTS; one row per pair and order.
    """
    if rater.needs_texts and not has_texts(pairs).all():
        raise DataError(
            f"rater {rater.name}: some pairs have no texts: leave them out (`where` of "
            "data_prep/import_ratings.py), or use recorded judges only"
        )
    check_prompts(pairs, rater.reads_prompt, f"rater {rater.name}")
    schema = pa.schema({name: column.type for name, column in empty_columns(VERDICTS, 0).items()})
    shard = rater.shard or max(pairs.num_rows, 1)
    tables = [schema.empty_table()]
    bar = ProgressBar(total=pairs.num_rows, desc=rater.name, unit="pair", leave=False)
    for start in range(0, pairs.num_rows, shard):
        blinded, chosen_first = blind(pairs.slice(start, shard))
        judged = ask(rater, blinded) if rater.needs_texts else rater.judge(blinded)
        rater.write_log(judged, chosen_first.tolist())
        ids = pairs["pair_id"].slice(start, shard).to_pylist()
        rows = [
            {"pair_id": name, "rater": rater.name, "kind": rater.kind, "fold": fold}
            | _named_by_side(judgement, *(SIDES if is_first else SIDES[::-1]))
            for name, is_first, judgements in zip(ids, chosen_first, judged, strict=True)
            for judgement in judgements
        ]
        tables.append(pa.Table.from_pylist(rows, schema))
        bar.update(len(ids))
    bar.close()
    return pa.concat_tables(tables)


def _named_by_side(judgement: Judgement, first: str, second: str) -> dict[str, Any]:
    """Return a row of VERDICTS, in which first and second are replaced by sides."""
    side = {"first": first, "second": second}
    p_first = judgement.p_first
    return vars(judgement) | {
        "outcome": side.get(judgement.prefers, judgement.prefers),
        "order": side.get(str(judgement.first_shown)),
        "samples": " ".join(side.get(each, each) for each in judgement.samples) or None,
        "p_chosen": p_first if p_first is None or first == "chosen" else 1 - p_first,
        f"reward_{first}": judgement.reward_first,
        f"reward_{second}": judgement.reward_second,
    }
