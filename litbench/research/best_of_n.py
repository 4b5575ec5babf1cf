"""Best of n: the gain from choosing the story with the highest reward among n.

All figures come from one set of N stories per prompt. Each story is the best of a random subset of
n with a known probability (`choice_weights`), so every story is used at every n. Rewards are
comparable only within a prompt, so gains are relative to the mean of the prompt's stories.

With a second rater, the same weights give how often it prefers the chosen story to another. The
first rater's gain never falls as n grows; where the second's preference stops rising, a larger n
over-optimises the first (Gao, Schulman and Hilton, 2023, Scaling laws for reward model
overoptimization).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.data.ingest import read_foreign
from litbench.data.records import PAIRS, SIDES, STORIES, empty_columns, pair_id, prompt_keys
from litbench.data.tables import write_table
from litbench.data.text import digest
from litbench.evaluation.report import figures
from litbench.evaluation.report.document import (
    Figure,
    Page,
    Section,
    Table,
    few_prompts,
    publish,
    short_name,
    show_results,
    table_of,
    written_now,
)
from litbench.evaluation.scoring import score_stories
from litbench.metrics.intervals import Interval, jackknife_interval, mean_interval
from litbench.raters.entries import files_of, parse_raters
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact, Cache


@dataclass
class BestOfN:
    """The stories to choose from, and the rater.

    Attributes:
        stories: one or several stories tables, which are pooled, such as one per generator.
        raters: named entries that give rewards: the rater that ranks, and a second one, if any.
        out: output folder.
        where: SQL condition on the rows of `stories`.
        min_stories: leave out prompts with fewer stories; n is at most the smallest number of
            stories of the remaining prompts.
    """

    stories: str | list[str]
    raters: dict[str, Any]
    out: Path
    where: str | None = None
    min_stories: int = 2


@dataclass(frozen=True)
class PromptStories:
    """The stories of one prompt; shape (N,) each.

    Attributes:
        prompt: key that intervals cluster by.
        rewards: rewards by the rater that chooses.
        n_words: lengths in words.
        second: rewards by a second rater, in its own units; None without a second rater.
    """

    prompt: str
    rewards: np.ndarray
    n_words: np.ndarray
    second: np.ndarray | None = None


@dataclass(frozen=True)
class Choice:
    """The best of n stories, averaged over prompts.

    Attributes:
        n: number of stories chosen from.
        kl: upper bound of the Kullback-Leibler divergence of best-of-n from the writer, in nats:
            log n - (n - 1) / n (Stiennon et al., 2020, Learning to summarize from human feedback,
            appendix G.3). It is only a bound if rewards can tie (Beirami et al., 2024, Theoretical
            guarantees on the best-of-n alignment policy).
        gain: reward of the chosen story minus the mean reward of the prompt's stories.
        words: length of the chosen story over the mean length of the prompt's stories.
        beats_random: share of the prompt's other stories to which the second rater prefers the
            chosen one, a tie counting one half; None without a second rater.
    """

    n: int
    kl: float
    gain: Interval
    words: Interval
    beats_random: Interval | None


def choice_weights(rewards: np.ndarray, n: int) -> np.ndarray:
    """Probability of each story being the best of a random subset of n.

    The story with the i-th lowest of N rewards is the best of C(i - 1, n - 1) of the C(N, n)
    subsets; a mean with these weights is an unbiased estimate for the best of n new stories
    (Nakano et al., 2021, WebGPT, appendix I). Equal rewards share their probability.

    Args:
        rewards: shape (N,).
        n: from 1 to N.

    Returns:
        float64, shape (N,); their sum is 1.
    """
    count = len(rewards)
    order = np.argsort(rewards, kind="stable")
    # C(i - 1, n - 1) / C(N, n) from rank to rank, since each of the two overflows.
    by_rank = np.zeros(count)
    weight = n / count
    for rank in range(count - 1, n - 2, -1):
        by_rank[rank] = weight
        if rank:
            weight *= (rank - n + 1) / rank
    weights = np.empty(count)
    weights[order] = by_rank
    _, group = np.unique(rewards, return_inverse=True)
    shared: np.ndarray = (np.bincount(group, weights) / np.bincount(group))[group]
    return shared


def _beats_others(second: np.ndarray) -> np.ndarray:
    """Share of the other stories that each story beats, a tie counting one half; shape (N,)."""
    above = np.heaviside(second[:, None] - second[None, :], 0.5)
    share: np.ndarray = (above.sum(1) - 0.5) / (len(second) - 1)
    return share


def sizes(fewest: int) -> list[int]:
    """The values of n on a curve: the powers of two up to `fewest`, and `fewest`.

    `fewest` is the smallest number of stories of a prompt.
    """
    return sorted({1 << power for power in range(fewest.bit_length())} | {fewest})


def best_of_n(prompts: Sequence[PromptStories], ns: Sequence[int]) -> list[Choice]:
    """The gain at every n; every prompt has the same weight.

    Args:
        prompts: each with at least two stories, and at least as many as the largest n.
        ns: values of n, see `sizes`.
    """
    names = [stories.prompt for stories in prompts]
    second = [stories.second for stories in prompts if stories.second is not None]
    lengths = [stories.n_words / max(stories.n_words.mean(), 1.0) for stories in prompts]
    choices = []
    for n in ns:
        weights = [choice_weights(stories.rewards, n) for stories in prompts]

        def expected(
            values: Iterable[np.ndarray], weighting: list[np.ndarray] = weights
        ) -> np.ndarray:
            """The expected value for the chosen story of each prompt."""
            return np.array(
                [weight @ value for weight, value in zip(weighting, values, strict=True)]
            )

        gains = expected(stories.rewards - stories.rewards.mean() for stories in prompts)
        beats = None
        if second:
            # Rounding may exceed 1. At n = 1 the share is one half by construction.
            shares = np.clip(expected(map(_beats_others, second)), 0.0, 1.0)
            beats = mean_interval(shares, names) if n == 1 else jackknife_interval(shares, names)
        words = mean_interval(expected(lengths), names)
        kl = math.log(n) - (n - 1) / n
        choices.append(Choice(n, kl, mean_interval(gains, names), words, beats))
    return choices


def _read_stories(paths: list[str], where: str | None) -> pa.Table:
    """Read all stories, sorted so that the order of rows and files has no effect."""
    tables = [read_foreign(path, STORIES, where=where) for path in paths]
    stories = pa.concat_tables(tables, promote_options="default")
    ids = stories["story_id"].to_pylist()
    if len(set(ids)) < len(ids):
        raise DataError(
            f"stories: {len(ids) - len(set(ids))} rows repeat a story_id: give each table once"
        )
    return stories.sort_by([("prompt_id", "ascending"), ("story_id", "ascending")])


def _best_and_worst(stories: pa.Table, groups: list[np.ndarray]) -> pa.Table:
    """Return a pairs table of all prompts whose rewards differ; `groups` are rows by prompt."""
    rows = {}
    for indices in groups:
        of_prompt = stories.take(pa.array(indices)).to_pylist()
        # Ties are broken by a hash.
        of_prompt.sort(key=lambda story: (-story["reward"], digest("equal", story["story_id"])))
        chosen, rejected = of_prompt[0], of_prompt[-1]
        if chosen["reward"] == rejected["reward"]:
            continue
        row = {name: chosen[name] for name in ("prompt_id", "prompt")}
        for side, story in (("chosen", chosen), ("rejected", rejected)):
            row[side] = story["text"]
            for name in ("story_id", "n_words", "reward", "source"):
                row[f"{side}_{name}"] = story[name]
        name = pair_id(chosen["story_id"], rejected["story_id"])
        rows[name] = row | {"pair_id": name, "label_source": "model", "split": "all"}
    types = {name: column.type for name, column in empty_columns(PAIRS, 0).items()}
    for side in SIDES:
        types |= {f"{side}_reward": pa.float64(), f"{side}_source": pa.large_string()}
    return pa.Table.from_pylist([rows[name] for name in sorted(rows)], pa.schema(types))


def with_ranks(
    stories: pa.Table,
    groups: Iterable[np.ndarray],
    rewards: np.ndarray,
    second_rewards: np.ndarray | None,
) -> pa.Table:
    """Add the rewards, shape (n,), and the rank within each group of rows; null in no group."""
    ranks = np.zeros(stories.num_rows, dtype=np.int64)
    for rows in groups:
        # Equal rewards share the better rank.
        ranks[rows] = 1 + (rewards[rows][None, :] > rewards[rows][:, None]).sum(1)
    columns: dict[str, Any] = {"reward": rewards, "rank": pa.array(ranks, mask=ranks == 0)}
    columns |= {} if second_rewards is None else {"second_reward": second_rewards}
    stories = stories.drop_columns([name for name in columns if name in stories.column_names])
    for name, values in columns.items():
        stories = stories.append_column(name, pa.array(values))
    return stories


def run_best_of_n(config: BestOfN, program: str) -> None:
    """Score and rank the stories, and write the results."""
    if len(config.raters) > 2:
        raise ConfigError(f"raters has {len(config.raters)} entries: give one or two")
    specs = dict(zip(("rater", "second"), parse_raters(config.raters), strict=False))
    if config.min_stories < 2:
        raise ConfigError(f"min_stories is {config.min_stories}: give at least 2")
    paths = [config.stories] if isinstance(config.stories, str) else config.stories
    artifact = Artifact(
        config.out,
        program=program,
        # The contents of the tables are inputs; the order of the raters matters.
        config=vars(config) | {"stories": None, "raters": list(config.raters.items())},
        inputs={f"stories {number}": path for number, path in enumerate(paths, 1)},
        models=files_of(specs.values()),
    )
    if artifact.is_current():
        show_results(config.out, "best_of_n")
        return

    stories, parts = _read_stories(paths, config.where), Cache(config.out / "parts")
    rewards: dict[str, np.ndarray] = {}
    trained_on: dict[str, int] = {}
    no_prose = np.zeros(stories.num_rows, bool)
    for key, spec in specs.items():
        rewards[key], trained_on[key], is_flagged = score_stories(spec, stories, parts)
        # Never chosen: a rater may prefer such a text to every story.
        no_prose |= is_flagged

    # Grouped by the prompt's normalised text, not by prompt_id.
    indices: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompt_keys(stories)):
        indices.setdefault(prompt, []).append(index)
    first, second = rewards["rater"], rewards.get("second")
    prose = {key: np.array(at)[~no_prose[at]] for key, at in indices.items()}
    stories = with_ranks(stories, prose.values(), first, second)
    groups = {key: at for key, at in prose.items() if len(at) >= config.min_stories}
    if not groups:
        raise DataError(
            f"stories: no prompt has {config.min_stories} stories: generate more with "
            "`litbench run stories`, or lower min_stories"
        )
    n_words = stories["n_words"].to_numpy()
    prompts = [
        PromptStories(key, first[at], n_words[at], None if second is None else second[at])
        for key, at in groups.items()
    ]
    counts = [len(at) for at in groups.values()]
    choices = best_of_n(prompts, sizes(min(counts)))
    pairs = _best_and_worst(stories, list(groups.values()))
    artifact.counts = {
        "stories": stories.num_rows,
        "no_prose": int(no_prose.sum()),
        "prompts": len(groups),
        "prompts_with_too_few": len(indices) - len(groups),
        "fewest_of_a_prompt": min(counts),
        "max_of_a_prompt": max(counts),
        "trained_on": trained_on,
        "pairs": pairs.num_rows,
    }
    text = (
        f"best of n: {len(groups)} prompts, 95 % intervals by prompt; gains are within a prompt\n"
        f"{_table(choices).as_text()}\n"
    )
    artifact.write("stories.parquet", partial(write_table, stories))
    artifact.write("pairs.parquet", partial(write_table, pairs))
    print(f"{config.out / 'pairs.parquet'}: best and worst of {pairs.num_rows:,} prompts")
    page = _page(choices, artifact.counts, *(spec.name for spec in specs.values()))
    publish(artifact, "best_of_n", text, page, {"best_of_n": list(map(vars, choices))})
    parts.discard_unused()


# The page -------------------------------------------------------------------------------------

# The plots: field, level without a gain, axis, title, caption.
_PLOTS = (
    (
        "gain",
        0.0,
        "gain in reward",
        "Gain for the rater that chooses",
        "Reward of the best of n minus the mean of its prompt's stories; it never falls with n.",
    ),
    (
        "beats_random",
        0.5,
        "share preferred",
        "The best of n against a random story",
        "How often the second rater prefers the best of n to another story of the prompt. Where "
        "it stops rising, n is too large.",
    ),
    (
        "words",
        1.0,
        "length relative to the mean",
        "Length",
        "Words of the best of n over the mean of the prompt's stories.",
    ),
)


def _table(choices: Sequence[Choice]) -> Table:
    columns: dict[str, Callable[[Choice], Any]] = {
        "n": lambda choice: choice.n,
        "divergence,\nnats": lambda choice: f"{choice.kl:.2f}",
        "gain in reward": lambda choice: choice.gain,
        "length": lambda choice: choice.words,
    }
    if choices[0].beats_random is not None:
        columns["second rater prefers it\nto a random one"] = lambda choice: choice.beats_random
    return table_of(choices, columns)


def _page(
    choices: Sequence[Choice], counts: Mapping[str, Any], rater: str, second: str | None = None
) -> Page:
    """The page, with its plots."""
    panels = {}
    for key, level, y_label, title, caption in _PLOTS:
        points = [
            (choice.n, getattr(choice, key), ()) for choice in choices if getattr(choice, key)
        ]
        name = rater if key in ("gain", "words") else second
        if name and points:
            drawn = figures.curves(
                [figures.Line(short_name(name), points)],
                "n, stories chosen from",
                y_label=y_label,
                level=level,
                tick="{:,.0f}".format,
            )
            about = f"{caption} Band: 95 % interval, by prompt."
            panels[f"best_of_n_{key}"] = Figure(title, about, drawn)
    first, last = choices[0], choices[-1]
    warnings = few_prompts(first.gain)
    for key, name in (("rater", rater), ("second", second)):
        if seen := counts["trained_on"].get(key):
            warnings.append(
                f"{name} was trained on {seen:,} of these prompts, so it may have seen which "
                "stories readers preferred."
            )
    lead = (
        f"The best of {last.n} by {rater} has a reward {last.gain.mean:.2f} above the mean of its "
        f"prompt and {last.words.mean:.2f} times the mean length"
    )
    if last.beats_random is not None:
        lead += f"; {second} prefers it to {100 * last.beats_random.mean:.0f} % of the others"
    about_gain = (
        "Rewards are comparable only within a prompt, so a gain is relative to the mean of the "
        "prompt's stories, and then averaged over prompts. Every n uses all stories of a prompt: "
        "the story with the i-th lowest of N rewards is the best of C(i − 1, n − 1) of the C(N, n) "
        "sets of n. No readers judged these stories; to ask them, pairs.parquet has the best and "
        "the worst story of each prompt."
    )
    about_figures = (
        f"Intervals are 95 %, clustered by prompt (jackknife); {first.gain.clusters:,} prompts. "
        "The divergence is at most log n − (n − 1)/n."
    )
    sections = [
        Section(
            "Gain from choosing",
            figures=list(panels.values()),
            warnings=warnings,
            remarks=[about_gain],
            name="plots",
        ),
        Section("Figures", about_figures, _table(choices)),
    ]
    fewest, most = counts["fewest_of_a_prompt"], counts["max_of_a_prompt"]
    facts = f"{counts['stories']:,} stories; {counts['prompts']:,} prompts with {fewest:,}"
    facts += f"{'' if fewest == most else f' to {most:,}'} stories each"
    if counts["no_prose"]:
        facts += f"; {counts['no_prose']:,} of them are no prose for a rater and are never chosen"
    if counts["prompts_with_too_few"]:
        facts += f"; {counts['prompts_with_too_few']:,} prompts with too few stories left out"
    facts = f"{facts}. {written_now()}"
    return Page("LitBench: best of n", f"{lead}.", facts, sections, files=panels)
