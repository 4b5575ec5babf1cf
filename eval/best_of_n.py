"""Rank the stories of each prompt by reward, keep the best and the worst, draw best-of-n curves.

    python eval/best_of_n.py --config configs/eval/sample_best_of_n.yaml

Reads stories tables with several stories per prompt, such as eval/generate.py writes, and takes
their rewards from a rater. Writes into `out`:

- `stories.parquet`: the stories with `reward`, `rank` within the prompt (1 is the best) and, where
  a second rater gives rewards, `second_reward`;
- `pairs.parquet`: the best and the worst story of every prompt, with the source of both, for a
  study with people or as preference data; `label_source` is model;
- `best_of_n.csv` and `.txt`: what the best of n gains in reward over the prompt's mean, in length,
  and by a second rater, which shows the gain that only the first one sees;
- `best_of_n.html`, its plots as SVG and PNG, and `manifest.json`.

A second rater without rewards, such as a judge, compares the best of n drawn stories with another
story of the prompt; its answers are kept in `out/answers`. `--dry_run true` estimates its cost. A
killed run continues where it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from litbench.artifact import (
    Artifact,
    fingerprint,
    read_json_part,
    write_json_part,
)
from litbench.config import run_program
from litbench.errors import ConfigError, DataError
from litbench.evaluation import Job, VerdictParts, estimates_text, evaluate, ready_rater
from litbench.metrics.agreement import pair_scores
from litbench.metrics.best_of_n import (
    Choice,
    Draw,
    PromptStories,
    best_of_n,
    best_of_n_table,
    best_of_n_text,
    draw_comparisons,
    sizes,
    with_comparisons,
)
from litbench.raters import (
    Asks,
    RaterSpec,
    ScoreRater,
    blind,
    check_options,
    files_of,
    parse_raters,
    prompts_seen,
)
from litbench.records import PAIRS, STORIES, empty_columns, pair_id, prompt_keys
from litbench.report.pages import write_best_of_n
from litbench.scoring import finite_rewards, rewards_depend_on
from litbench.tables import read_table, write_table
from litbench.text import digest, prompt_key

# Stories, or pairs, that are kept together.
_PART = 1_024


@dataclass
class Config:
    """What to rank and by whom.

    Attributes:
        stories: a stories table, or several, such as one of each generator, which are pooled.
        rater: the rater that chooses, one named entry that gives rewards, such as
            {verifier: {kind: reward, path: runs/verifier/model}}.
        out: folder to write.
        second: a second rater, likewise; one that compares stories, such as a judge, will do.
        where: SQL condition on the rows of `stories`.
        least_stories: prompts with fewer stories are left out; n goes up to the fewest of the
            others.
        comparisons: drawn for each prompt and n, where the second rater compares.
        seed: of the draws.
        dry_run: only estimate what the second rater would take.
    """

    stories: str | list[str]
    rater: dict[str, Any]
    out: Path
    second: dict[str, Any] = field(default_factory=dict)
    where: str | None = None
    least_stories: int = 2
    comparisons: int = 4
    seed: int = 0
    dry_run: bool = False


def read_entry(entry: dict[str, Any], key: str) -> RaterSpec:
    """The rater of an entry."""
    if len(entry) != 1:
        raise ConfigError(f"{key} names {len(entry)} raters: give one")
    (spec,) = parse_raters(entry)
    check_options(spec, "raters")
    return spec


def paths_of(config: Config) -> list[str]:
    """The stories tables."""
    return [config.stories] if isinstance(config.stories, str) else config.stories


def read_stories(config: Config) -> pa.Table:
    """All stories by prompt, then story; the order of rows and files has no effect."""
    stories = pa.concat_tables(
        [read_table(path, STORIES, where=config.where) for path in paths_of(config)],
        promote_options="default",
    )
    ids = stories["story_id"].to_pylist()
    if len(set(ids)) < len(ids):
        raise DataError(
            f"stories: {len(ids) - len(set(ids))} rows repeat a story_id: give each table once"
        )
    return stories.sort_by([("prompt_id", "ascending"), ("story_id", "ascending")])


def rewards_by_rater(
    rater: ScoreRater, spec: RaterSpec, stories: pa.Table, parts: VerdictParts
) -> np.ndarray:
    """A rater's reward of every story, kept part by part; each text is scored once; shape (n,)."""
    rows = list(zip(*(stories[name].to_pylist() for name in ("prompt", "text")), strict=True))
    distinct = list(dict.fromkeys(rows))
    depends_on = rewards_depend_on(spec)
    found: dict[tuple[str, str], float] = {}
    for start in range(0, len(distinct), _PART):
        some = distinct[start : start + _PART]
        name = f"rewards-{fingerprint(depends_on, some)[:16]}"
        parts.used.add(f"{name}.json")
        path = parts.folder / f"{name}.json"
        rewards = read_json_part(path)
        if rewards is None:
            prompts, texts = zip(*some, strict=True)
            rewards = finite_rewards(rater, prompts, texts).tolist()
            write_json_part(rewards, path)
        found.update(zip(some, rewards, strict=True))
    return np.array([found[row] for row in rows])


def group(stories: pa.Table, least: int) -> list[np.ndarray]:
    """Rows of each prompt's stories, of the prompts (by normalised text) that have enough."""
    places: dict[str, list[int]] = {}
    for place, key in enumerate(prompt_keys(stories)):
        places.setdefault(key, []).append(place)
    return [np.array(at) for at in places.values() if len(at) >= least]


def with_column(stories: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    """The stories with a column added or replaced."""
    if name in stories.column_names:
        stories = stories.drop_columns([name])
    return stories.append_column(name, pa.array(values))


def rank(stories: pa.Table, rewards: np.ndarray) -> pa.Table:
    """The stories with `reward` and `rank`; equal rewards share the better rank."""
    ranks = np.empty(len(rewards), dtype=np.int64)
    for at in group(stories, 1):
        ranks[at] = 1 + (rewards[at][None, :] > rewards[at][:, None]).sum(1)
    return with_column(with_column(stories, "reward", rewards), "rank", ranks)


def pairs_of(both: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> pa.Table:
    """A pairs table by pair_id, each pair once, with `reward` and `source` of both sides."""
    rows = {}
    for chosen, rejected in both:
        row: dict[str, Any] = {
            "pair_id": pair_id(chosen["story_id"], rejected["story_id"]),
            "prompt_id": chosen["prompt_id"],
            "prompt": chosen["prompt"],
            "label_source": "model",
            "split": "all",
        }
        for side, story in (("chosen", chosen), ("rejected", rejected)):
            row[side] = story["text"]
            for name in ("story_id", "n_words", "reward", "source"):
                row[f"{side}_{name}"] = story[name]
        rows[row["pair_id"]] = row
    ordered = [rows[name] for name in sorted(rows)]
    types = {name: column.type for name, column in empty_columns(PAIRS, 0).items()}
    for side in ("chosen", "rejected"):
        types |= {f"{side}_reward": pa.float64(), f"{side}_source": pa.large_string()}
    return pa.table({n: pa.array([row.get(n) for row in ordered], of) for n, of in types.items()})


def best_and_worst(stories: pa.Table, groups: Sequence[np.ndarray]) -> pa.Table:
    """The best and the worst of every prompt whose rewards differ; ties go by a hash."""
    both = []
    for at in groups:
        told = stories.take(pa.array(at)).to_pylist()
        told.sort(key=lambda story: (-story["reward"], digest("equal", story["story_id"])))
        if told[0]["reward"] > told[-1]["reward"]:
            both.append((told[0], told[-1]))
    return pairs_of(both)


def pairs_to_compare(
    stories: pa.Table, groups: Sequence[np.ndarray], draws: Sequence[Draw]
) -> pa.Table:
    """The pairs of some draws; the story with the higher reward is the chosen one."""
    both = []
    for draw in draws:
        two = stories.take(pa.array(groups[draw.prompt][[draw.best, draw.other]])).to_pylist()
        two.sort(key=lambda story: (-story["reward"], story["story_id"]))
        both.append((two[0], two[1]))
    return pairs_of(both)


def compare(
    spec: RaterSpec,
    stories: pa.Table,
    groups: Sequence[np.ndarray],
    draws: Sequence[Draw],
    parts: VerdictParts,
) -> list[float]:
    """The credit that a comparing rater gives to the best of each draw."""
    table = pairs_to_compare(stories, groups, draws)
    jobs = []
    for start in range(0, table.num_rows, _PART):
        some = table.slice(start, _PART)
        data = fingerprint(some.select(["prompt", "chosen", "rejected", "pair_id"]).to_pylist())
        label = f"{spec.name}-{start}"
        jobs.append(Job(spec, label, lambda table=some: table, data, work=some.num_rows))
    # Prompts that the rater was trained on are counted for the page.
    found = evaluate(jobs, parts, on_training_prompts="flag", errors_again=True)
    (scores,) = pair_scores(pa.concat_tables([verdicts for _, verdicts, _ in found]), table)
    credit: dict[tuple[str, str], float] = {}
    sides = zip(
        *(table[f"{side}_story_id"].to_pylist() for side in ("chosen", "rejected")), strict=True
    )
    for (chosen, rejected), value in zip(sides, scores.credit.tolist(), strict=True):
        credit |= {(chosen, rejected): value, (rejected, chosen): 1 - value}
    ids = stories["story_id"].to_pylist()
    return [
        credit[ids[groups[draw.prompt][draw.best]], ids[groups[draw.prompt][draw.other]]]
        for draw in draws
    ]


def main(config: Config) -> None:
    """Score, rank, choose, ask the second rater, write."""
    specs = [read_entry(config.rater, "rater")]
    if config.second:
        specs.append(read_entry(config.second, "second"))
    for name, least in (("least_stories", 2), ("comparisons", 1)):
        if getattr(config, name) < least:
            raise ConfigError(f"{name} is {getattr(config, name)}: give at least {least}")
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={f"stories {number}": path for number, path in enumerate(paths_of(config), 1)},
        models=files_of(specs),
        # What the tables hold is among the inputs; where they are does not matter.
        runtime_keys=("dry_run", "stories"),
    )
    page_path = (config.out / "best_of_n.html").resolve()
    if not config.dry_run and artifact.is_current():
        text = (config.out / "best_of_n.txt").read_text(encoding="utf-8")
        print(f"{text}page: {page_path}")
        return

    stories, parts = read_stories(config), VerdictParts(config.out / "parts")
    raters = [ready_rater(spec, config.out) for spec in specs]
    rewards = [
        rewards_by_rater(rater, spec, stories, parts) if isinstance(rater, ScoreRater) else None
        for rater, spec in zip(raters, specs, strict=True)
    ]
    if rewards[0] is None:
        raise ConfigError(
            f"rater {config.rater} compares stories and gives no rewards: name one that does to "
            "choose, and this one as second"
        )
    first_rewards, second_rewards = rewards[0], rewards[1] if len(rewards) > 1 else None
    stories = rank(stories, first_rewards)
    if second_rewards is not None:
        stories = with_column(stories, "second_reward", second_rewards)
    groups = group(stories, config.least_stories)
    if not groups:
        raise DataError(
            f"stories: no prompt has {config.least_stories} stories: make more with "
            "eval/generate.py, or lower least_stories"
        )
    texts, n_words = stories["prompt"].to_pylist(), stories["n_words"].to_numpy()
    prompts = [
        PromptStories(
            prompt_key(texts[at[0]]),
            first_rewards[at],
            n_words[at],
            None if second_rewards is None else second_rewards[at],
        )
        for at in groups
    ]
    ns = sizes(min(map(len, groups)))
    choices, draws = best_of_n(prompts, ns), []
    if len(raters) > 1 and second_rewards is None:
        draws = draw_comparisons(prompts, ns, config.comparisons, config.seed)
    if config.dry_run:
        asked = pairs_to_compare(stories, groups, draws)
        print(f"{asked.num_rows:,} pairs to compare, both orders")
        is_asked = isinstance(raters[-1], Asks) and asked.num_rows
        print(estimates_text(raters[-1].estimate(blind(asked)[0])) if is_asked
              else "dry run: no rater sends requests")  # fmt: skip
        return
    if draws:
        credit = compare(specs[1], stories, groups, draws, parts)
        choices = with_comparisons(choices, prompts, draws, credit)
    artifact.counts = {
        "stories": stories.num_rows,
        "prompts": len(groups),
        "prompts_with_too_few": len(group(stories, 1)) - len(groups),
        "fewest_of_a_prompt": min(map(len, groups)),
        "most_of_a_prompt": max(map(len, groups)),
        "comparisons": len(draws),
        "trained_on": {
            key: len(prompts_seen(rater, stories))
            for key, rater in zip(("rater", "second"), raters, strict=False)
        },
    }
    finish(config, artifact, stories, groups, choices)
    parts.discard_others()
    print(f"page: {page_path}")


def finish(
    config: Config,
    artifact: Artifact,
    stories: pa.Table,
    groups: Sequence[np.ndarray],
    choices: Sequence[Choice],
) -> None:
    """Write tables, figures and page."""
    pairs = best_and_worst(stories, groups)
    artifact.counts["pairs"] = pairs.num_rows
    first, second = next(iter(config.rater)), next(iter(config.second), None)
    artifact.write("stories.parquet", lambda path: write_table(stories, path))
    artifact.write("pairs.parquet", lambda path: write_table(pairs, path))
    table, text = best_of_n_table(choices), best_of_n_text(choices) + "\n"
    artifact.write("best_of_n.csv", lambda path: pa_csv.write_csv(table, path))
    artifact.write("best_of_n.txt", lambda path: path.write_text(text, encoding="utf-8"))
    write_best_of_n(artifact, choices, first, second)
    artifact.finish()
    print(text, end="")
    print(f"{config.out / 'pairs.parquet'}: best and worst of {pairs.num_rows:,} prompts")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
