"""Rank the stories of each prompt by reward, keep the best and the worst, draw best-of-n curves.

    python eval/best_of_n.py --config configs/eval/sample_best_of_n.yaml

Reads a stories table with several stories per prompt, such as eval/generate.py writes, and takes
their rewards from a rater (`rater`) or from a column (`reward`). Writes into `out`:

- `stories.parquet`: the stories with `reward` and `rank` within the prompt (1 is the best) and,
  where a second rater has rewards, `second_reward`;
- `pairs.parquet`: the best beside the worst story of every prompt, for a study with people or as
  preference data; `label_source` is model, for no person has seen them;
- `best_of_n.json`, `.csv` and `.txt`: what choosing the best of n brings at each n, in reward over
  the prompt's own mean, in length, and in the eyes of a second rater (`second`), where the gain
  that only the first one sees shows;
- `best_of_n.html` with its plots as `best_of_n_*.svg` and `.png`, and `manifest.json`.

A second rater that gives no rewards, such as a judge, compares the best of n drawn stories with
another story of the prompt in both orders; its answers are kept in `out/answers`. With
`--dry_run true` the program tells what that would cost, once the first rater has given its rewards.

Rewards and verdicts are kept in `out/parts` as soon as a thousand of them are there: a killed run
goes on where it was, and a dry run's rewards are not made again.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from litbench.artifact import (
    Artifact,
    fingerprint,
    without_runtime_keys,
    write_atomically,
    write_json,
)
from litbench.config import nearest, run_program
from litbench.errors import ConfigError, DataError
from litbench.evaluation import VerdictParts, estimates_text, named_models, ready_rater
from litbench.metrics.agreement import pair_scores
from litbench.metrics.best_of_n import (
    Choice,
    Draw,
    PromptStories,
    best_of_n,
    best_of_n_text,
    draw_comparisons,
    sizes,
    with_comparisons,
    write_best_of_n_csv,
)
from litbench.metrics.leaderboard import plain
from litbench.raters import (
    Asks,
    Rater,
    RaterSpec,
    ScoreRater,
    blind,
    check_options,
    judge_pairs,
    parse_raters,
)
from litbench.records import PAIRS, STORIES, empty_columns, pair_id, prompt_keys
from litbench.report.best_of_n_page import draw_panels, render_best_of_n
from litbench.report.document import write_panels
from litbench.scoring import finite_rewards, rewards_depend_on
from litbench.tables import read_table, write_table
from litbench.text import digest, prompt_key

# Stories, or pairs, of one part.
_PART = 1_024


@dataclass
class Config:
    """What to rank and by whom.

    Attributes:
        stories: stories table.
        out: folder to write.
        rater: the rater that chooses, one named entry that gives rewards, such as
            {verifier: {kind: reward, path: runs/verifier/model}}.
        reward: or a column of the stories that holds its rewards.
        second: a second rater, likewise; one that compares stories, such as a judge, will do.
        second_reward: or a column with its rewards.
        columns: where the columns of a stories table come from; empty for one of LitBench's.
        where: SQL condition on the rows of `stories`.
        least_stories: prompts with fewer stories are left out; n goes up to the fewest of the
            others.
        most_n: greatest n; null for as many as there are.
        comparisons: drawn for each prompt and n, where the second rater compares.
        x_axis: of the plots: n, or the bound on the divergence from the model, log n - (n - 1)/n.
        split: written into `pairs.parquet`.
        seed: of the draws.
        title: heading of the page.
        dry_run: only tell what the second rater would take.
    """

    stories: str
    out: Path
    rater: dict[str, Any] = field(default_factory=dict)
    reward: str | None = None
    second: dict[str, Any] = field(default_factory=dict)
    second_reward: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    where: str | None = None
    least_stories: int = 2
    most_n: int | None = None
    comparisons: int = 4
    x_axis: Literal["n", "kl"] = "n"
    split: str = "all"
    seed: int = 0
    title: str = "LitBench: best of n"
    dry_run: bool = False


def one_entry(raters: dict[str, Any], column: str | None, key: str) -> RaterSpec | None:
    """The rater of an entry; None where a column has its rewards, or nobody is named.

    Raises:
        ConfigError: both are given, or several raters.
    """
    if raters and column is not None:
        raise ConfigError(f"{key} names a rater and a column of rewards: give one of them")
    if not raters:
        return None
    if len(raters) > 1:
        raise ConfigError(f"{key} names {len(raters)} raters: give one")
    (spec,) = parse_raters(raters)
    check_options(spec, "raters")
    return spec


def check(config: Config) -> tuple[RaterSpec | None, RaterSpec | None]:
    """Refuse what can be refused before anything is read.

    Returns:
        The entries of both raters.

    Raises:
        ConfigError: see `one_entry`; nobody chooses; a number is too small.
    """
    first = one_entry(config.rater, config.reward, "rater")
    second = one_entry(config.second, config.second_reward, "second")
    if first is None and config.reward is None:
        raise ConfigError("nobody chooses: name a rater, or a column of rewards as reward")
    for name, least in (("least_stories", 2), ("comparisons", 1), ("most_n", 1)):
        value = getattr(config, name)
        if value is not None and value < least:
            raise ConfigError(f"{name} is {value}: give at least {least}")
    return first, second


def rewards_of(
    rater: ScoreRater, spec: RaterSpec, stories: pa.Table, parts: VerdictParts
) -> np.ndarray:
    """A rater's reward of every story; each distinct one is scored once; shape (n,).

    Args:
        rater: the rater.
        spec: its entry.
        stories: the stories.
        parts: its folder keeps the rewards, too.

    Raises:
        DataError: a reward is not finite.
    """
    rows = list(zip(*(stories[name].to_pylist() for name in ("prompt", "text")), strict=True))
    distinct = list(dict.fromkeys(rows))
    depends_on = rewards_depend_on(spec)
    given: dict[tuple[str, str], float] = {}
    for start in tqdm(
        range(0, len(distinct), _PART), desc=rater.name, unit=" part", leave=False, disable=None
    ):
        some = distinct[start : start + _PART]
        name = f"rewards-{fingerprint(depends_on, some)[:16]}"
        parts.used.add(name)
        path = parts.folder / f"{name}.parquet"
        if not path.exists():
            found = finite_rewards(rater, [prompt for prompt, _ in some], [t for _, t in some])
            table = pa.table({"reward": pa.array(found, pa.float64())})
            write_atomically(path, lambda part, table=table: pq.write_table(table, part))
        given.update(zip(some, pq.read_table(path)["reward"].to_pylist(), strict=True))
    return np.array([given[row] for row in rows])


def rewards_in(name: str, stories: pa.Table, source: str) -> np.ndarray:
    """The rewards of a column; shape (n,).

    Raises:
        DataError: there is no such column, or it does not hold a number for every story.
    """
    if name not in stories.column_names:
        raise DataError(f"{source}: no column '{name}': {nearest(name, stories.column_names)}")
    try:
        values = np.array(stories[name].cast(pa.float64()).to_pylist(), dtype=np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{source}: column '{name}' holds no numbers ({error})") from error
    if not np.isfinite(values).all():
        raise DataError(
            f"{source}: column '{name}' is no finite number in "
            f"{int((~np.isfinite(values)).sum())} of {len(values)} rows: leave them out by where"
        )
    return values


def in_order(stories: pa.Table) -> pa.Table:
    """By prompt, then story, so that the order of rows in the source says nothing."""
    return stories.sort_by([("prompt_id", "ascending"), ("story_id", "ascending")])


def rank(stories: pa.Table, rewards: np.ndarray) -> pa.Table:
    """The stories with `reward` and `rank`; equal rewards share the better rank."""
    ranks = np.empty(len(rewards), dtype=np.int64)
    for at in group(stories, 1):
        ranks[at] = 1 + (rewards[at][None, :] > rewards[at][:, None]).sum(1)
    for name, values in (("reward", pa.array(rewards)), ("rank", pa.array(ranks))):
        if name in stories.column_names:
            stories = stories.drop_columns([name])
        stories = stories.append_column(name, values)
    return stories


def group(stories: pa.Table, least: int) -> list[np.ndarray]:
    """Places of each prompt's stories, of the prompts that have enough of them.

    Prompts go by their normalised text as in `litbench score`, whatever their names: stories of two
    prompts cannot be compared, and those of a prompt that was posted twice can.
    """
    places: dict[str, list[int]] = {}
    for place, key in enumerate(prompt_keys(stories)):
        places.setdefault(key, []).append(place)
    return [np.array(at) for at in places.values() if len(at) >= least]


def pair_of(chosen: dict[str, Any], rejected: dict[str, Any], split: str) -> dict[str, Any]:
    """A row of a pairs table, with `reward` once per side."""
    row: dict[str, Any] = {
        "pair_id": pair_id(chosen["story_id"], rejected["story_id"]),
        "prompt_id": chosen["prompt_id"],
        "prompt": chosen["prompt"],
        "label_source": "model",
        "split": split,
    }
    for side, story in (("chosen", chosen), ("rejected", rejected)):
        row[side] = story["text"]
        for name in ("story_id", "n_words", "reward"):
            row[f"{side}_{name}"] = story[name]
    return row


def as_pairs(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows of `pair_of` as a table."""
    types = {name: column.type for name, column in empty_columns(PAIRS, 0).items()}
    types |= dict.fromkeys(("chosen_reward", "rejected_reward"), pa.float64())
    return pa.table({name: pa.array([row.get(name) for row in rows], of)
                     for name, of in types.items()})  # fmt: skip


def best_and_worst(stories: pa.Table, groups: Sequence[np.ndarray], split: str) -> pa.Table:
    """Best beside worst of every prompt whose rewards differ; of equals one goes by a hash."""
    rows = []
    for at in groups:
        told = stories.take(pa.array(at)).to_pylist()
        told.sort(key=lambda story: (-story["reward"], digest("equal", story["story_id"])))
        if told[0]["reward"] > told[-1]["reward"]:
            rows.append(pair_of(told[0], told[-1], split))
    rows.sort(key=lambda row: row["pair_id"])
    return as_pairs(rows)


def compare(
    rater: Rater,
    spec: RaterSpec,
    stories: pa.Table,
    groups: Sequence[np.ndarray],
    draws: Sequence[Draw],
    parts: VerdictParts,
) -> list[float]:
    """What a rater that compares says of each draw; every two stories are compared once."""
    table = pairs_to_compare(stories, groups, draws)
    depends_on = rewards_depend_on(spec)
    kept = []
    for start in range(0, table.num_rows, _PART):
        some = table.slice(start, _PART)
        told = some.select(["prompt", "chosen", "rejected", "pair_id"]).to_pylist()
        verdicts, _ = parts.get_or_make(
            rater.name,
            [depends_on, told],
            lambda some=some: (judge_pairs(rater, some), {}),
            errors_again=True,
        )
        kept.append(verdicts)
    verdicts = pa.concat_tables(kept)
    (scores,) = pair_scores(verdicts, table)
    credit = dict(zip(table["pair_id"].to_pylist(), scores.credit.tolist(), strict=True))
    chosen = set(
        zip(table["pair_id"].to_pylist(), table["chosen_story_id"].to_pylist(), strict=True)
    )
    ids = stories["story_id"].to_pylist()
    found = []
    for draw in draws:
        best, other = (ids[groups[draw.prompt][place]] for place in (draw.best, draw.other))
        name = pair_id(best, other)
        found.append(credit[name] if (name, best) in chosen else 1 - credit[name])
    return found


def pairs_to_compare(
    stories: pa.Table, groups: Sequence[np.ndarray], draws: Sequence[Draw]
) -> pa.Table:
    """The pairs of some draws, each once; the story with the higher reward stands as chosen."""
    rows: dict[str, dict[str, Any]] = {}
    told = stories.select(["story_id", "prompt_id", "prompt", "text", "n_words", "reward"])
    for draw in draws:
        two = told.take(pa.array(groups[draw.prompt][[draw.best, draw.other]])).to_pylist()
        two.sort(key=lambda story: (-story["reward"], story["story_id"]))
        row = pair_of(*two, "all")
        rows[row["pair_id"]] = row
    return as_pairs([rows[name] for name in sorted(rows)])


def seen_prompts(rater: Rater | None, stories: pa.Table) -> int:
    """How many prompts of the stories a rater was trained on."""
    if rater is None or not (trained := rater.training_prompts()):
        return 0
    return sum(prompt_key(prompt) in trained for prompt in set(stories["prompt"].to_pylist()))


def main(config: Config) -> None:
    """Score, rank, choose, ask the second rater, write."""
    first_spec, second_spec = check(config)
    specs = [spec for spec in (first_spec, second_spec) if spec is not None]
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"stories": config.stories},
        models=named_models(specs),
        runtime_keys=("dry_run",),
    )
    page_path = (config.out / "best_of_n.html").resolve()
    if not config.dry_run and artifact.is_current():
        text = (config.out / "best_of_n.txt").read_text(encoding="utf-8")
        print(f"{text}page: {page_path}")
        return
    columns = config.columns or None
    stories = in_order(read_table(config.stories, STORIES, columns=columns, where=config.where))
    parts = VerdictParts(config.out / "parts")
    first = None if first_spec is None else ready_rater(first_spec, config.out)
    if first is not None:
        if not isinstance(first, ScoreRater):
            raise ConfigError(
                f"rater {first.name} ({first.kind}) compares stories and gives no rewards: name "
                "one that does to choose, and this one as second"
            )
        rewards = rewards_of(first, first_spec, stories, parts)
    else:
        assert config.reward is not None
        rewards = rewards_in(config.reward, stories, config.stories)
    second = None if second_spec is None else ready_rater(second_spec, config.out)
    second_rewards = None
    if isinstance(second, ScoreRater):
        second_rewards = rewards_of(second, second_spec, stories, parts)
    elif config.second_reward is not None:
        second_rewards = rewards_in(config.second_reward, stories, config.stories)
    stories = rank(stories, rewards)
    if second_rewards is not None:
        if "second_reward" in stories.column_names:
            stories = stories.drop_columns(["second_reward"])
        stories = stories.append_column("second_reward", pa.array(second_rewards))
    groups = group(stories, config.least_stories)
    if not groups:
        raise DataError(
            f"{config.stories}: no prompt has {config.least_stories} stories: make more with "
            "eval/generate.py, or lower least_stories"
        )
    texts, n_words = stories["prompt"].to_pylist(), stories["n_words"].to_numpy()
    prompts = [
        PromptStories(
            prompt_key(texts[at[0]]),
            rewards[at],
            n_words[at],
            None if second_rewards is None else second_rewards[at],
        )
        for at in groups
    ]
    ns = sizes(min(map(len, groups)), config.most_n)
    choices = best_of_n(prompts, ns)
    draws: list[Draw] = []
    if second is not None and second_rewards is None:
        draws = draw_comparisons(prompts, ns, config.comparisons, config.seed)
    if config.dry_run:
        asked = pairs_to_compare(stories, groups, draws)
        print(f"{asked.num_rows:,} pairs to compare, both orders")
        is_asked = isinstance(second, Asks) and asked.num_rows
        estimates = second.estimate(blind(asked)[0]) if is_asked else []
        print(estimates_text(estimates) if estimates else "dry run: no rater asks others")
        return
    if draws:
        assert second is not None
        credit = compare(second, second_spec, stories, groups, draws, parts)
        choices = with_comparisons(choices, prompts, draws, credit)
    names = [
        config.reward if first is None else first.name,
        config.second_reward if second is None else second.name,
    ]
    all_prompts = len(group(stories, 1))
    artifact.counts = {
        "stories": stories.num_rows,
        "prompts": len(groups),
        "prompts_with_too_few": all_prompts - len(groups),
        "fewest_of_a_prompt": min(map(len, groups)),
        "most_of_a_prompt": max(map(len, groups)),
        "comparisons": len(draws),
        "trained_on": {
            "rater": seen_prompts(first, stories), "second": seen_prompts(second, stories)
        },
    }  # fmt: skip
    finish(config, artifact, stories, groups, choices, names)
    parts.discard_others()
    print(f"page: {page_path}")


def finish(
    config: Config,
    artifact: Artifact,
    stories: pa.Table,
    groups: Sequence[np.ndarray],
    choices: Sequence[Choice],
    names: Sequence[str | None],
) -> None:
    """Write tables, figures and page; `names` are those of the two raters."""
    pairs = best_and_worst(stories, groups, config.split)
    artifact.counts["pairs"] = pairs.num_rows
    first, second = names
    artifact.write("stories.parquet", lambda path: write_table(stories, path))
    artifact.write("pairs.parquet", lambda path: write_table(pairs, path))
    content = {"rater": first, "second": second, "choices": plain(list(choices))}
    artifact.write("best_of_n.json", lambda path: write_json(content, path))
    artifact.write("best_of_n.csv", lambda path: write_best_of_n_csv(choices, path))
    text = best_of_n_text(choices) + "\n"
    artifact.write("best_of_n.txt", lambda path: path.write_text(text, encoding="utf-8"))
    panels = draw_panels(choices, first or "", second, config.x_axis)
    write_panels(artifact, "best_of_n", panels)
    manifest = json.dumps(without_runtime_keys(artifact.as_manifest()), indent=2)
    page = render_best_of_n(
        title=config.title,
        choices=choices,
        rater=first or "",
        second=second,
        counts=artifact.counts,
        panels=panels,
        manifests={"best_of_n": manifest},
    )
    artifact.write("best_of_n.html", lambda path: path.write_text(page, encoding="utf-8"))
    artifact.finish()
    print(text, end="")
    print(f"{config.out / 'pairs.parquet'}: best and worst of {pairs.num_rows:,} prompts")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
