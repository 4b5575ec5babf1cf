"""Write n stories for every prompt with any local or hosted model.

    python eval/generate.py --config configs/eval/sample_generate.yaml

Reads prompts from a table of stories, pairs or prompts, or from a list in the config. Writes
`stories.parquet` (a stories table whose `source` is the model, with the column `sample`, from 0),
`rejected.jsonl` (refusals, truncated stories, errors) and `manifest.json` into
`out`. Answers are kept in `out/answers` as they arrive: a killed run, or one with a larger `n`,
asks only for what is missing. `--dry_run true` estimates calls, tokens and cost without asking.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.errors import ConfigError, DataError, ModelError
from litbench.judges.client import Budget, Traffic, ask, estimate_tokens, is_error
from litbench.judges.prices import Price, dollars_of, load_prices, price_of
from litbench.judges.store import Answer, AnswerStore, Sampling, keys_of, local_folder
from litbench.records import STORIES, Column, Schema, empty_columns
from litbench.tables import ROW, RejectedRows, stream_table, write_table
from litbench.text import count_words, digest, prompt_key

PROMPTS = Schema(
    "prompts",
    (
        Column("prompt", "text", "the prompt's text", required=True),
        Column("prompt_id", "text", "its name in the source"),
    ),
    key=("prompt", "prompt_id"),
)

TASK = """\
Write a short story for the prompt below, for readers who come to be moved, surprised or amused, \
and who stop reading when they are not.

The story stands alone: it begins, something changes, and it ends. Let people want something, show \
what they do about it, and choose details that only this story could have. Leave out what a reader \
would guess.

Length: {words} words.

Give the story's text and nothing else: no title, no heading, no remark before or after it.

Prompt:
{prompt}
"""

# What the task may name.
PLACES = re.compile(r"\{(prompt|words)\}")


@dataclass
class Config:
    """What to write and by whom.

    Attributes:
        model: any name that inspect-ai knows, such as openai/gpt-4.1-2025-04-14, hf/FOLDER for a
            model on this machine, or openai-api/SERVICE/MODEL; see litbench.judges.client.
        prompts: table with a column `prompt` (and `prompt_id`), or a list of prompts.
        out: folder to write.
        n: stories per prompt.
        where: SQL condition on the table's rows, such as "split = 'test'".
        most_prompts: draw so many of the prompts; null for all.
        seed: of the draw.
        task: what the model is asked; {prompt} and {words} are filled in.
        words: least and greatest length asked for; null drops the task's line that names {words}.
        sampling: how answers are drawn. With a `seed` each sample has its own, which is the seed
            plus the sample's number.
        traffic: how fast to ask and when to stop; `max_cost_usd` limits dollars.
        prices: YAML file of prices beside those of LitBench.
        accept_errors: go on with the stories that are there when some questions got no answer.
        dry_run: only tell what would be asked.
    """

    model: str
    prompts: str | list[str]
    out: Path
    n: int = 16
    where: str | None = None
    most_prompts: int | None = None
    seed: int = 0
    task: str = TASK
    words: tuple[int, int] | None = (300, 800)
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=1.0, max_tokens=2048))
    traffic: Traffic = field(default_factory=Traffic)
    prices: Path | None = None
    accept_errors: bool = False
    dry_run: bool = False


class Prompt(NamedTuple):
    """A prompt and its row in the source, from 1."""

    row: int
    prompt_id: str
    text: str


def check(config: Config) -> None:
    """Check what can be checked before anything is read or asked."""
    if config.n < 1:
        raise ConfigError(f"n is {config.n}: ask for at least one story per prompt")
    if config.most_prompts is not None and config.most_prompts < 1:
        raise ConfigError(f"most_prompts is {config.most_prompts}: give at least 1, or null")
    if config.n > 1 and config.sampling.temperature == 0:
        raise ConfigError(
            f"temperature is 0 and n is {config.n}: the likeliest story is always the same one; "
            "raise sampling.temperature, or set n to 1"
        )
    if "{prompt}" not in config.task:
        raise ConfigError("task does not name {prompt}: say where the prompt belongs")
    if config.words is not None and not 0 < config.words[0] <= config.words[1]:
        raise ConfigError(f"words is {list(config.words)}: give the least and the greatest length")


def rows_of(config: Config, rejected_rows: RejectedRows) -> Iterator[tuple[int, str, str | None]]:
    """Number, prompt and id of every row of the source."""
    if not isinstance(config.prompts, str):
        yield from ((row, text, None) for row, text in enumerate(config.prompts, 1))
        return
    for table in stream_table(
        config.prompts,
        PROMPTS,
        rejected_rows=rejected_rows,
        where=config.where,
        numbered=True,
    ):
        columns = (table[name].to_pylist() for name in (ROW, "prompt", "prompt_id"))
        yield from zip(*columns, strict=True)


def read_prompts(config: Config, rejected_rows: RejectedRows) -> list[Prompt]:
    """The prompts to write for, each once, in the order of their ids."""
    found: dict[str, Prompt] = {}
    known: dict[str, str] = {}
    for row, text, name in rows_of(config, rejected_rows):
        if text.strip():
            # A table of pairs has a prompt many times; its key takes a while to compute.
            key = known.setdefault(text, prompt_key(text))
            found.setdefault(key, Prompt(row, name or key, text))
    if not found:
        raise DataError(f"{config.prompts}: no prompt has a text: check the table and where")
    drawn = sorted(found.values(), key=lambda prompt: digest(config.seed, prompt.text))
    return sorted(drawn[: config.most_prompts], key=lambda prompt: (prompt.prompt_id, prompt.text))


def make_question(task: str, prompt: str, words: tuple[int, int] | None) -> str:
    """Fill in the task in one pass, so that braces in a prompt stay as they are."""
    low, high = words or (0, 0)
    if words is None:
        task = "".join(line for line in task.splitlines(keepends=True) if "{words}" not in line)
    filled = {"prompt": prompt, "words": f"{low:,}" if low == high else f"{low:,} to {high:,}"}
    return PLACES.sub(lambda place: filled[place[1]], task)


def batches_of(
    config: Config, questions: Sequence[str]
) -> list[tuple[Sampling, list[int], list[str]]]:
    """Sampling, samples and answer keys that are asked for at once: all, or with a seed one each.

    One seed for all samples would give the same story n times.
    """
    seed, samples = config.sampling.seed, list(range(config.n))
    alike = [(config.sampling, samples)]
    if seed is not None:
        alike = [(replace(config.sampling, seed=seed + sample), [sample]) for sample in samples]
    return [(one, of, keys_of(config.model, questions, one, of)) for one, of in alike]


def estimate(config: Config, questions: Sequence[str], price: Price | None) -> None:
    """Print an estimate of calls, tokens and cost."""
    calls = read = 0
    with AnswerStore(config.out / "answers", read_only=True) as store:
        for *_, keys in batches_of(config, questions):
            is_open = [key not in store for key in keys]
            calls += sum(is_open)
            asked = zip(cycle(questions), is_open, strict=False)
            read += sum(estimate_tokens(question) for question, opens in asked if opens)
    print(
        f"dry run: {len(questions):,} prompts, {config.n} stories each; {calls:,} calls of "
        f"{config.model} ({config.n * len(questions) - calls:,} answers are there already)"
    )
    print(f"  about {read:,} input tokens (one for 4 bytes)")
    most = config.sampling.max_tokens
    if most is not None:
        print(f"  at most {calls * most:,} output tokens (max_tokens {most})")
    if price is None:
        print("  no price is known for this model: give prices")
        return
    if config.words is not None:
        # English runs at about four tokens to three words.
        written = calls * sum(config.words) // 2 * 4 // 3
        print(f"  about ${price.of(read, written):.2f} for stories of the length asked for")
    if most is not None:
        print(f"  at most ${price.of(read, calls * most):.2f}")


def ask_all(
    config: Config, questions: Sequence[str], price: Price | None
) -> list[tuple[int, list[str], list[Answer]]]:
    """Ask for every sample of every prompt.

    Returns:
        The number of each sample, its answer keys and its answers, in the order of `questions`.

    Raises:
        ModelError: some questions have no answer, and `accept_errors` is not set.
    """
    found = []
    with AnswerStore(config.out / "answers") as store:
        if store.unreadable:
            print(f"  {store.unreadable:,} stored lines hold no answer and are not used")
        budget = Budget(config.traffic, price)
        plan = batches_of(config, questions)
        budget.note_stored(store, (key for *_, keys in plan for key in keys))
        for sampling, samples, keys in plan:
            answers = ask(
                config.model,
                questions,
                store,
                sampling,
                config.traffic,
                sample=samples,
                about="stories" if len(plan) == 1 else f"sample {samples[0] + 1} of {config.n}",
                budget=budget,
            )
            for place, sample in enumerate(samples):
                own = slice(place * len(questions), (place + 1) * len(questions))
                found.append((sample, keys[own], answers[own]))
    failed = [answer for *_, answers in found for answer in answers if is_error(answer)]
    if failed and not config.accept_errors:
        raise ModelError(
            f"{len(failed)} of {len(questions) * config.n} stories have not come, such as: "
            f"{failed[0].detail}: run the same command again to ask for these alone, or set "
            "accept_errors"
        )
    return found


def as_story(
    config: Config,
    prompt: Prompt,
    sample: int,
    key: str,
    answer: Answer,
    rejected_rows: RejectedRows,
) -> dict[str, Any] | None:
    """A row of the stories table; None, with a rejected row, where there is no story."""
    source = config.prompts if isinstance(config.prompts, str) else "prompts"
    kept = answer.outcome == "answered"
    text = answer.text.strip()
    if not kept or not text:
        reason = "empty" if kept else answer.outcome
        rejected_rows.add(source, prompt.row, "text", reason, answer.detail or answer.text)
        return None
    return {
        "story_id": digest("story", key),
        "prompt_id": prompt.prompt_id,
        "prompt": prompt.text,
        "text": text,
        "source": config.model,
        "sample": sample,
    }


def as_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows by the schema STORIES, with `sample` behind."""
    types = {name: column.type for name, column in empty_columns(STORIES, 0).items()}
    columns = {name: pa.array([row.get(name) for row in rows], of) for name, of in types.items()}
    columns["n_words"] = count_words(columns["text"])
    columns["sample"] = pa.array([row["sample"] for row in rows], pa.int64())
    return pa.table(columns)


def count(answers: Sequence[Answer], stories: pa.Table, price: Price | None) -> dict[str, Any]:
    """The counts of the manifest."""
    given = [answer for answer in answers if not is_error(answer)]
    texts = zip(stories["prompt_id"].to_pylist(), stories["text"].to_pylist(), strict=True)
    by_prompt = Counter(stories["prompt_id"].to_pylist())
    return {
        "stories": stories.num_rows,
        "distinct": len(set(texts)),
        "prompts": len(by_prompt),
        "fewest_of_a_prompt": min(by_prompt.values()),
        "answers": dict(sorted(Counter(answer.outcome for answer in answers).items())),
        "input_tokens": sum(answer.input_tokens or 0 for answer in given),
        "output_tokens": sum(answer.output_tokens or 0 for answer in given),
        "cost_usd": dollars_of(answers, price),
        "models": sorted({answer.model for answer in given if answer.model is not None}),
    }


def main(config: Config) -> None:
    """Read the prompts, ask, write."""
    check(config)
    price = price_of(config.model, load_prices(config.prices))
    Budget(config.traffic, price)
    folder = local_folder(config.model)
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"prompts": config.prompts} if isinstance(config.prompts, str) else {},
        # A hosted model is identified by its name.
        models={} if folder is None else {"model": folder},
        runtime_keys=("traffic", "prices", "dry_run"),
    )
    if not config.dry_run and artifact.is_current():
        return
    rejected_rows = RejectedRows()
    prompts = read_prompts(config, rejected_rows)
    questions = [make_question(config.task, prompt.text, config.words) for prompt in prompts]
    if config.dry_run:
        estimate(config, questions, price)
        return
    found = ask_all(config, questions, price)
    rows = [
        story
        for sample, keys, answers in found
        for prompt, key, answer in zip(prompts, keys, answers, strict=True)
        if (story := as_story(config, prompt, sample, key, answer, rejected_rows)) is not None
    ]
    if not rows:
        raise DataError(
            f"{config.model}: no story came of {len(questions) * config.n} questions: "
            f"{rejected_rows.counts()}: look at {config.out / 'answers'}"
        )
    rows.sort(key=lambda row: (row["prompt_id"], row["prompt"], row["sample"]))
    stories = as_table(rows)
    artifact.write("stories.parquet", lambda path: write_table(stories, path))
    artifact.write("rejected.jsonl", rejected_rows.write)
    answers = [answer for *_, of_sample in found for answer in of_sample]
    artifact.counts = {
        **count(answers, stories, price),
        "asked_prompts": len(prompts),
        "not_selected": rejected_rows.not_selected,
        "rejected_rows": rejected_rows.counts(),
    }
    artifact.finish()
    counts = artifact.counts
    print(
        f"{config.out / 'stories.parquet'}: {counts['stories']:,} stories for "
        f"{counts['prompts']:,} prompts, {counts['distinct']:,} of them distinct"
    )
    print(
        f"  {counts['input_tokens']:,} tokens read, {counts['output_tokens']:,} written"
        + ("" if counts["cost_usd"] is None else f", ${counts['cost_usd']:.2f}")
    )
    print(rejected_rows.summary(), end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
